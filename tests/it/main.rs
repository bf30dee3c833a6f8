//! The black-box tests: the built binary in a stand-in internet.

mod lab;
