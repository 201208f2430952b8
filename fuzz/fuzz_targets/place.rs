//! Any bytes as a program with symbols and debug information, asked for every kind of place; the first bytes are what its memory holds.
//!
//! Small programs to start from: `cc -g -o corpus/place/c FILE`, see the README.
#![no_main]

#[path = "../../crates/kymo-symbols/tests/suite/place/exhaust.rs"]
mod exhaust;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let salt = bytes.iter().take(8).fold(0u64, |salt, &byte| salt << 8 | u64::from(byte));
    exhaust::exercise(bytes, salt);
});
