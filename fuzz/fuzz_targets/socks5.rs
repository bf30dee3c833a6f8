//! Each message of SOCKS5: it takes no more than is there, and its own bytes alone say the same.
#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use proxy::socks5::wire::{Malformed, Read, credentials, greeting, request};

fn check<T: Debug + PartialEq>(bytes: &[u8], read: impl Fn(&[u8]) -> Result<Option<Read<T>>, Malformed>) {
    if let Ok(Some(message)) = read(bytes) {
        assert_eq!(read(&bytes[..message.length]), Ok(Some(message)));
    }
}

fuzz_target!(|bytes: &[u8]| {
    check(bytes, greeting);
    check(bytes, request);
    if let Ok(Some(read)) = credentials(bytes) {
        assert!(read.length <= bytes.len());
    }
});
