//! What is given as a node's URL.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| redleader_fuzz::url(text));
