//! What wrapper and guardian say to each other: one packet each, over a pair of sockets that both ends inherit from
//! nobody.

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::ladder::Rungs;
use crate::clock::Moment;

/// The first packet, with the program's standard input in it: what the guardian has to know before it starts anything.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    pub(super) times: Times,
    /// What left-overs of a child that ended get, and how many microseconds before KILL.
    pub(super) stop_signal: i32,
    pub(super) stop_timeout_us: u64,
    /// What the child gets when no deadline came in time.
    pub(super) lost_signal: i32,
    pub(super) log_level: String,
    pub(super) is_log_json: bool,
}

/// [`Rungs`] on the wire: boot time in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Times {
    stop_at: u64,
    kill_at: u64,
}

impl From<Rungs> for Times {
    fn from(Rungs { stop_at, kill_at }: Rungs) -> Self {
        Self { stop_at: stop_at.as_micros(), kill_at: kill_at.as_micros() }
    }
}

impl From<Times> for Rungs {
    fn from(Times { stop_at, kill_at }: Times) -> Self {
        Self { stop_at: Moment::from_micros(stop_at), kill_at: Moment::from_micros(kill_at) }
    }
}

/// What the guardian is told.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// The deadline has moved.
    Until(Times),
    /// Stop it with this signal now, and kill it then at the latest (boot time in microseconds).
    Stop { signal: i32, kill_at: u64 },
    /// Pass this signal on to the child.
    Forward(i32),
}

/// What the guardian tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Report {
    /// An order was taken: whoever hangs says so no more.
    Heard,
    /// The child runs, and leads a process group of this number.
    Started(i32),
    /// It could not be started.
    Failed(String),
    /// The child ended.
    Ended(Status),
    /// No deadline came in time: the child was told to stop.
    Late,
    /// Nothing is left of it.
    Gone,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Status {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Status {
    /// The code that a shell would give: 128 + n for a signal.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Code(code) => u8::try_from(code).unwrap_or(u8::MAX),
            Self::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }
}

/// A signal by its number, as it came over the wire.
pub(super) fn signal_of(number: i32) -> Signal {
    // Only named signals are sent. One that is not known stops what it was meant for.
    Signal::from_named_raw(number).unwrap_or(Signal::TERM)
}
