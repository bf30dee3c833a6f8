//! A ClientHello: read whole or byte by byte it says the same, and no byte is lost.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proxy::tcp::client_hello::{HelloReader, Progress};

fuzz_target!(|bytes: &[u8]| {
    let mut whole = HelloReader::default();
    let said = whole.feed(bytes);
    let (raw, behind) = whole.into_parts();
    assert_eq!([raw, behind].concat(), bytes);
    let mut slow = HelloReader::default();
    let said_slowly = bytes.iter().map(|byte| slow.feed(&[*byte])).find(|said| *said != Progress::NeedMore);
    assert_eq!(said_slowly.unwrap_or(Progress::NeedMore), said);
});
