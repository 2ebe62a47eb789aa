//! Asks the replicas' own endpoints all the time, at their pods' addresses, and notes every answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use crate::caller::get_within;
use crate::pod::{endpoints, name};
use crate::wait::{boot_ms, let_time_pass};

/// Between two questions to one pod.
const BETWEEN: Duration = Duration::from_millis(20);

/// No machine is so busy that it takes longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// One question, and what was answered.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// When it was asked, in milliseconds of the boot clock.
    pub asked: u64,
    /// When the answer was there.
    pub came: u64,
    /// Its status; 0 without an answer.
    pub status: u16,
}

/// Asks one path of one pod until it is told to end.
pub struct Poller {
    pod: String,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Reply>>,
}

impl Poller {
    /// Begins.
    pub fn start(pod: &Value, path: &'static str) -> Self {
        let address = endpoints(pod);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut replies = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let asked = boot_ms();
                let status = get_within(&address, PATIENCE, path).map_or(0, |(status, _)| status);
                replies.push(Reply { asked, came: boot_ms(), status });
                let_time_pass("questions are spread over time", BETWEEN);
            }
            replies
        });
        Self { pod: name(pod), stop, thread }
    }

    /// Ends; the pod's name and what it answered.
    pub fn finish(self) -> (String, Vec<Reply>) {
        self.stop.store(true, Ordering::Relaxed);
        (self.pod, self.thread.join().expect("a poller does not panic"))
    }
}
