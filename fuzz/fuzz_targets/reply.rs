//! Bytes that a node sends for an answer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| redleader_fuzz::reply(bytes));
