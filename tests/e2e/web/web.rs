//! A small app: whoever asks it for anything is told its name, and that is all it knows.
//!
//! `web` serves port 8080. `web worker` serves nobody, and says once in a hundred milliseconds that it works: for what a
//! standby must not run. Both end at SIGTERM, as the first process of a container has to by its own doing.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

const SIGTERM: i32 = 15;

unsafe extern "C" {
    fn signal(number: i32, handler: extern "C" fn(i32)) -> usize;
    fn _exit(code: i32) -> !;
}

extern "C" fn end(_: i32) {
    // SAFETY: ends the process, and is one of the few calls that are allowed in a signal handler.
    unsafe { _exit(0) }
}

fn main() {
    // SAFETY: the handler does nothing but end the process.
    unsafe { signal(SIGTERM, end) };
    let name = std::env::var("HOSTNAME").unwrap_or_default();
    if std::env::args().nth(1).as_deref() == Some("worker") {
        loop {
            println!("{{\"works\":\"{name}\",\"boot_ms\":{}}}", boot_ms());
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }
    let listener = TcpListener::bind(("0.0.0.0", 8080)).expect("the port is ours");
    for connection in listener.incoming().flatten() {
        let name = name.clone();
        std::thread::spawn(move || answer(connection, &name));
    }
}

fn answer(mut connection: TcpStream, name: &str) {
    let _ = connection.set_read_timeout(Some(Duration::from_secs(1)));
    let _ = connection.read(&mut [0; 4096]);
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\n";
    let _ = write!(connection, "{head}Content-Length: {}\r\n\r\n{name}", name.len());
}

/// Milliseconds since the machine started, with suspends: the kernel's first number of `/proc/uptime`, to a hundredth.
fn boot_ms() -> u64 {
    let text = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text.split(' ').next().and_then(|text| text.parse::<f64>().ok()).unwrap_or_default();
    (seconds * 1000.0) as u64
}
