//! Bytes on a connection to the probes, and to control.
#![no_main]

use std::sync::LazyLock;

use redleader_fuzz::HttpServer;

static SERVER: LazyLock<HttpServer> = LazyLock::new(HttpServer::start);

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| SERVER.feed(bytes));
