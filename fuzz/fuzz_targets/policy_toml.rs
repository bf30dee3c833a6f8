//! A config file: it loads, or each mistake has its place.
#![no_main]

use libfuzzer_sys::fuzz_target;
use policy::file::{Document, load};
use policy::{LocalAddresses, Timestamp};

fuzz_target!(|bytes: &[u8]| {
    let Ok(document) = Document::new("fuzz.toml", bytes) else { return };
    if let Err(mistakes) = load(&[document], Timestamp::from_secs(1_800_000_000), &LocalAddresses::default()) {
        assert!(!mistakes.is_empty());
        assert!(mistakes.iter().all(|mistake| mistake.line > 0));
    }
});
