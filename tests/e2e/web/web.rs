//! A small app: whoever asks it for anything is told its name, and that is all it knows.
//!
//! It serves port 8080, and ends at SIGTERM, as the first process of a container has to by its own doing.

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
