#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| readpath::inside::nfs_replies(bytes));
