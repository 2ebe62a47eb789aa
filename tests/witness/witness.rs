//! Work that can be judged: a line ten times a second, with the boot clock and the token that it was given.
//!
//! `witness FILE` appends `BOOT_MICROS TOKEN IDENTITY PID`, each line by one write, so that the order of lines is the
//! order in which they were written.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a tool of the tests may panic, and has its settings from the environment"
)]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::thread::sleep;
use std::time::Duration;

use redleader::clock;

fn main() {
    let path = std::env::args_os().nth(1).expect("witness FILE");
    let told = |name| std::env::var(name).unwrap_or_else(|_| "none".to_owned());
    let (token, identity, pid) = (told("REDLEADER_TOKEN"), told("REDLEADER_IDENTITY"), std::process::id());
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    loop {
        let line = format!("{} {token} {identity} {pid}\n", clock::now().as_micros());
        file.write_all(line.as_bytes()).unwrap();
        sleep(Duration::from_millis(100));
    }
}
