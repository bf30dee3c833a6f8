//! A DNS message of a client, and the same bytes as an upstream's answer.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    dns::fuzzing::question(bytes);
    dns::fuzzing::answer(bytes);
});
