//! Asks the replicas' own endpoints all the time, at their pods' addresses, and notes every answer.

use std::time::Duration;

use serde_json::Value;

use crate::caller::get_within;
use crate::pod::{LATE, endpoints, name};
use crate::repeated::Repeated;
use crate::wait::boot_ms;

/// Between two questions to one pod.
const BETWEEN: Duration = Duration::from_millis(20);

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
    replies: Repeated<Vec<Reply>>,
}

impl Poller {
    /// Begins.
    pub fn start(pod: &Value, path: &'static str) -> Self {
        let address = endpoints(pod);
        let replies = Repeated::start(BETWEEN, move |replies: &mut Vec<Reply>| {
            let asked = boot_ms();
            let status = get_within(&address, LATE, path).map_or(0, |(status, _)| status);
            replies.push(Reply { asked, came: boot_ms(), status });
        });
        Self { pod: name(pod), replies }
    }

    /// Ends; the pod's name and what it answered.
    pub fn finish(self) -> (String, Vec<Reply>) {
        (self.pod, self.replies.finish())
    }
}
