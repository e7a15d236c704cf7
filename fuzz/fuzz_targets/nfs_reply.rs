#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| readpath_dst::simulation::decode_stream(bytes));
