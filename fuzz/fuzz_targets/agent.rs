//! What kymo does with any bytes, counts and lists that the agent in a hostile program says.
#![no_main]

libfuzzer_sys::fuzz_target!(|said: &[u8]| kymo_perf::inject::exercise(said));
