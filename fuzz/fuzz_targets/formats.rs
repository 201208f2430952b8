//! Any bytes as the print format of a tracepoint and the raw bytes of a sample: the text before the first zero byte, and what follows it.
#![no_main]

#[path = "../../crates/kymo-data/tests/suite/exhaust.rs"]
#[expect(dead_code, reason = "of the same file, `reader` uses the rest")]
mod exhaust;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| exhaust::print_format(bytes));
