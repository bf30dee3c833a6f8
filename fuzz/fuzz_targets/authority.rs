//! `host:port` of a CONNECT: what parses prints as itself and parses again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use policy::Destination;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(destination) = Destination::from_authority(bytes) {
        let shown = destination.to_string();
        assert_eq!(Destination::from_authority(shown.as_bytes()), Ok(destination), "{shown}");
    }
});
