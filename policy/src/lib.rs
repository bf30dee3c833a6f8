//! What a sandbox may reach, as pure values and functions: no sockets, no files, no clock, no environment.

pub mod destination;
pub mod hostname;
pub mod pattern;
pub mod special;
