#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gputop_fuzz::incident(data));
