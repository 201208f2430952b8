//! Any bytes as a program: its symbols, lines and inlined functions, places for probes, libraries and unwind tables.
//!
//! They are asked for by path, as a user's file is, so each input lies in a file in memory first.
#![no_main]

use std::io::Write;
use std::path::Path;

#[path = "../../crates/kymo-symbols/tests/suite/symbols/exhaust.rs"]
mod exhaust;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let path = format!("/dev/shm/kymo-fuzz-{}", std::process::id());
    let mut file = std::fs::File::create(&path).expect("a file in memory");
    file.write_all(bytes).expect("room in memory");
    exhaust::exercise(Path::new(&path), bytes);
});
