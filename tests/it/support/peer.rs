//! The other contender: a Go program with the real go-redsync.

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value as Json;

use super::process::Process;
use super::server::cache;
use super::wait::eventually;

/// A running peer. It speaks JSON lines; ends when its standard input is closed. Killed on drop.
#[derive(Debug)]
pub struct Peer(Process);

impl Peer {
    /// `go-redsync MODE LOCK ADDRESSES… ARGS…`; `tests/go-redsync/main.go` says what each mode does.
    pub fn start<S: AsRef<str>>(mode: &str, lock: &str, addresses: &[S], args: &[&str]) -> Self {
        let program = cache().join("go-redsync/peer");
        assert!(program.exists(), "{} is missing: run tests/setup", program.display());
        let mut command = Command::new(program);
        command.arg(mode).args(args).arg(lock).args(addresses.iter().map(AsRef::as_ref));
        Self(Process::start(&format!("go-redsync {mode}"), command))
    }

    /// Its lines so far.
    pub fn events(&self) -> Vec<Json> {
        self.0.stdout().iter().filter_map(|line| serde_json::from_str(&line.text).ok()).collect()
    }

    /// The lines of one kind.
    pub fn events_of(&self, kind: &str) -> Vec<Json> {
        self.events().into_iter().filter(|event| event["event"] == kind).collect()
    }

    /// Waits for the n-th line (from 1) of this kind.
    #[track_caller]
    pub fn wait_for(&self, kind: &str, n: usize, deadline: Duration) -> Json {
        eventually(&format!("the Go peer says {kind:?} {n} times"), deadline, || {
            self.events_of(kind).into_iter().nth(n - 1)
        })
    }

    /// Asks it to unlock and end.
    pub fn finish(&self) {
        self.0.close_stdin();
    }

    /// Kills it with -9; its key stays.
    pub fn kill9(&self) -> u64 {
        self.0.kill()
    }

    /// SIGSTOP.
    pub fn stop(&self) {
        self.0.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn cont(&self) {
        self.0.signal(Signal::CONT);
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait_exit(&self, deadline: Duration) -> i32 {
        self.0.wait_exit(deadline)
    }
}
