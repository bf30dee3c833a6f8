//! tidegate
fn main() {}
