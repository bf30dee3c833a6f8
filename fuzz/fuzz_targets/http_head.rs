//! The head of a request: read whole or byte by byte it says the same, and what follows it is left.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proxy::http::head::HeadReader;

fuzz_target!(|bytes: &[u8]| {
    let mut reader = HeadReader::default();
    let whole = reader.feed(bytes);
    let mut slow = HeadReader::default();
    let slowly = bytes.iter().find_map(|byte| slow.feed(&[*byte]).transpose()).transpose();
    match (whole, slowly) {
        (Ok(Some(head)), Ok(Some(same))) => {
            assert_eq!(head.raw(), same.raw());
            assert_eq!([head.raw(), &reader.take_rest()].concat(), bytes);
        }
        (whole, slowly) => assert_eq!(whole.map(|head| head.is_some()), slowly.map(|head| head.is_some())),
    }
});
