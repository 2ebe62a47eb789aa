//! A command line, one word a line.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    redleader_fuzz::config(text.lines().map(std::ffi::OsString::from).collect());
});
