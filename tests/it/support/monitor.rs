//! What a server executes, by its own word.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::process::lock;
use super::resp::Client;
use super::wait::boot_ms;

/// One line of MONITOR.
#[derive(Clone, Debug)]
pub struct MonitorLine {
    /// When we read it, in boot time.
    pub boot_ms: u64,
    /// When the server read it, by its own wall clock, in microseconds: for the order and distance of lines only.
    pub server_us: u64,
    /// The database that its sender had selected.
    pub db: usize,
    /// Who sent it: `lua`, `unix:…` or `address:port`.
    pub source: String,
    /// The command's name in capitals.
    pub name: String,
    /// Its arguments, in the server's escaping.
    pub args: Vec<String>,
}

impl MonitorLine {
    /// Ran inside a script: no request of its own.
    pub fn is_script(&self) -> bool {
        self.source == "lua"
    }
}

/// A running MONITOR; ends on drop.
pub struct Monitor {
    lines: Arc<Mutex<Vec<MonitorLine>>>,
    close: Box<dyn Fn() + Send>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    pub(super) fn start(mut client: Client) -> Self {
        let answer = client.call(&["MONITOR"]).expect("the server answers MONITOR");
        assert_eq!(answer.text(), "OK", "MONITOR is not allowed");
        client.wait_forever().expect("an open socket");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let close = Box::new(client.closer());
        let thread = std::thread::spawn(move || {
            while let Ok(value) = client.read() {
                lock(&sink).extend(parse(&value.text()));
            }
        });
        Self { lines, close, thread: Some(thread) }
    }

    /// Everything since the start or the last [`Self::clear`], our own harness's commands included (`unix:` sources).
    pub fn lines(&self) -> Vec<MonitorLine> {
        lock(&self.lines).clone()
    }

    /// Requests that came over TCP: what scripts ran and what the harness asked over its unix socket is left out.
    pub fn requests(&self) -> Vec<MonitorLine> {
        self.lines().into_iter().filter(|line| !line.is_script() && !line.source.starts_with("unix:")).collect()
    }

    /// Forgets what was seen.
    pub fn clear(&self) {
        lock(&self.lines).clear();
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        (self.close)();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// `1700000000.123456 [0 127.0.0.1:5000] "SET" "k" "v"`
fn parse(line: &str) -> Option<MonitorLine> {
    let (stamp, rest) = line.split_once(" [")?;
    let (seconds, micros) = stamp.split_once('.')?;
    let server_us = seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?;
    let (from, rest) = rest.split_once("] ")?;
    let (db, source) = from.split_once(' ')?;
    let db = db.parse().ok()?;
    let mut words = words(rest).into_iter();
    let name = words.next()?.to_ascii_uppercase();
    Some(MonitorLine { boot_ms: boot_ms(), server_us, db, source: source.to_owned(), name, args: words.collect() })
}

fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut escaped = false;
    for letter in text.chars() {
        match (&mut word, letter) {
            (None, '"') => word = Some(String::new()),
            (None, _) => {}
            (Some(open), _) if escaped => {
                if letter != '"' {
                    open.push('\\');
                }
                open.push(letter);
                escaped = false;
            }
            (Some(_), '\\') => escaped = true,
            (Some(_), '"') => words.extend(word.take()),
            (Some(open), _) => open.push(letter),
        }
    }
    words
}
