//! tidegate
fn main(){}
