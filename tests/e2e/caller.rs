//! Who calls the Service all the time, from outside, and notes who answers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::repeated::Repeated;
use crate::wait::boot_ms;

/// Between two calls: short beside every gap that is worth a figure.
const BETWEEN: Duration = Duration::from_millis(20);
/// What takes longer is no answer.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// Nobody is elected, resigns and is elected again within less: a replica that resigned stands back for much longer.
const AGAIN_MILLIS: u64 = 3000;

/// Between two answers, a call that failed took at least this.
const LATE_MILLIS: u64 = 400;

/// One call that was answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// When it was asked, in milliseconds of the boot clock.
    pub asked: u64,
    /// When the answer was there.
    pub came: u64,
    /// Who answered.
    pub name: String,
}

/// Calls until it is asked for what it has noted.
pub struct Caller {
    answers: Repeated<Vec<Answer>>,
    began: u64,
}

/// What a caller has seen.
pub struct Seen {
    /// All answers, in the order in which they were asked for.
    pub answers: Vec<Answer>,
    /// When the calls began.
    pub began: u64,
    /// When they ended.
    pub ended: u64,
}

impl Caller {
    /// Calls this address from now on.
    pub fn start(address: &str) -> Self {
        let address = address.to_owned();
        let answers = Repeated::start(BETWEEN, move |answers: &mut Vec<Answer>| {
            let asked = boot_ms();
            if let Some(name) = call(&address) {
                answers.push(Answer { asked, came: boot_ms(), name });
            }
        });
        Self { answers, began: boot_ms() }
    }

    /// Ends the calls.
    pub fn finish(self) -> Seen {
        let answers = self.answers.finish();
        Seen { answers, began: self.began, ended: boot_ms() }
    }
}

impl Seen {
    /// The longest time in which nobody answered, in milliseconds.
    pub fn gap(&self) -> u64 {
        let starts = std::iter::once(self.began).chain(self.answers.iter().map(|answer| answer.came));
        let ends = self.answers.iter().map(|answer| answer.asked).chain(std::iter::once(self.ended));
        starts.zip(ends).map(|(start, end)| end.saturating_sub(start)).max().unwrap_or_default()
    }

    /// For how long two answered in turn, in milliseconds: from the first word of a successor to the last question that
    /// one before it still answered. Whoever comes back after a while leads again, and is no overlap.
    pub fn overlap(&self) -> u64 {
        let runs: Vec<&[Answer]> = self.answers.chunk_by(|one, next| one.name == next.name).collect();
        let mut longest = 0;
        for (at, run) in runs.iter().enumerate() {
            let Some(next) = runs.get(at + 1) else { break };
            let (left, taken) = (run[run.len() - 1].asked, next[0].came);
            let back = runs[at + 2..].iter().filter(|later| later[0].name == run[0].name);
            for later in back.filter(|later| later[0].asked.saturating_sub(left) < AGAIN_MILLIS) {
                longest = longest.max(later[later.len() - 1].asked.saturating_sub(taken));
            }
        }
        longest
    }

    /// For how long in all callers waited in vain, in milliseconds: the silence, and calls that met no answer later on.
    pub fn calls_failed(&self) -> u64 {
        let between = self.answers.windows(2).map(|pair| pair[1].asked.saturating_sub(pair[0].came));
        between.filter(|gap| *gap > LATE_MILLIS).sum()
    }

    /// Who answered, each once, in order.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.answers.iter().map(|answer| answer.name.clone()).collect();
        names.dedup();
        names
    }
}

/// One call on a connection of its own, as a Service balances connections.
pub fn call(address: &str) -> Option<String> {
    get(address, "/").map(|(_, name)| name).filter(|name| !name.is_empty())
}

/// GET: status and body; None if there is no answer in time.
pub fn get(address: &str, path: &str) -> Option<(u16, String)> {
    get_within(address, PATIENCE, path)
}

/// GET of whoever may be late: what takes longer than this is no answer.
pub fn get_within(address: &str, patience: Duration, path: &str) -> Option<(u16, String)> {
    exchange(address, patience, &format!("GET {path} HTTP/1.0\r\n\r\n"))
}

/// One request on a connection of its own; HTTP/1.0, so that the answer has no parts and ends with the connection.
pub fn exchange(address: &str, patience: Duration, request: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address.parse().ok()?, patience).ok()?;
    stream.set_read_timeout(Some(patience)).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}
