#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gputop_fuzz::nvidia_smi(data));
