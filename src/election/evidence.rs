//! What a candidate knows of one node, and whether the node's reply counts as a vote (rule 9).

use std::time::Duration;

use crate::clock::{Moment, micros};
use crate::redsync::name::Owner;
use crate::redsync::reply::{Answer, Kind, Reply, RunId};

/// Rates are told only when measured over at least this long: shorter, the round trip's uncertainty is all one sees.
const RATE_AFTER: Duration = Duration::from_secs(30);

/// What is known of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Evidence {
    /// Why its latest word was no answer; cleared by an answer.
    pub(super) failed: Option<Kind>,
    /// Its latest word was no answer, or it has none any more: what is known of the server behind its name is old.
    pub(super) is_silent: bool,
    /// Its state was written by a later version.
    pub(super) newer: bool,
    /// The error that was last told of it.
    pub(super) told: Option<Kind>,
    /// Its key has no expiry, so that nobody can tell until when its vote is another's.
    pub(super) no_expiry: bool,
    /// The last trouble with its key that was told, until that is over.
    pub(super) told_key: Option<Trouble>,
    /// When it last answered.
    pub(super) answered: Option<Moment>,
    /// How long its last answer took.
    pub(super) latency: Option<Duration>,
    /// It has a memory limit with a policy that may evict the lock's keys.
    pub(super) evicts: bool,
    /// Its `master_replid`; equal at two addresses: one is the other's replica.
    pub(super) replid: Option<u64>,
    /// Until when it says that it has no vote.
    pub(super) quarantined_until: Option<Moment>,
    run: Option<Run>,
    noted: Moment,
    lost: Option<Moment>,
}

/// What stands in a leader's or a candidate's way at a node's key; each is told once, however often it is met.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Trouble {
    /// The node holds another's value, or knows of a later leadership.
    Lost(Option<Owner>),
    /// This owner's key has no expiry.
    NoExpiry(Owner),
}

/// One run of a server, as seen from here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    id: RunId,
    /// First seen then, and whether another run was seen before it.
    since: Moment,
    follows_another: bool,
    /// The node's TIME less our clock lies in this interval, in microseconds.
    clock: (i64, i64),
    /// The interval when the run, or the time since its last step, was new: what the rate is measured from.
    first_clock: (Moment, (i64, i64)),
    stepped: Option<Moment>,
    /// The latest TIME, and when it was received.
    time: (u64, Moment),
}

/// What a note found worth telling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    Nothing,
    ClockStepped,
}

impl Evidence {
    /// Takes what an answer tells of the server and its clock. A step is two intervals of one run that are disjoint by
    /// more than `step`.
    pub(super) fn note(&mut self, reply: &Reply, answer: &Answer, step: Duration) -> Noted {
        if reply.sent < self.noted {
            return Noted::Nothing; // An older reply that came late knows nothing better.
        }
        self.noted = reply.sent;
        let (sent, received) = (signed(reply.sent.as_micros()), signed(reply.received.as_micros()));
        let time = signed(answer.time_us);
        let clock = (time - received, time - sent);
        let latest = (answer.time_us, reply.received);
        match &mut self.run {
            Some(run) if run.id == answer.run => {
                run.time = latest;
                let step = i64::try_from(step.as_micros()).unwrap_or(i64::MAX);
                let stepped = clock.0 - run.clock.1 > step || run.clock.0 - clock.1 > step;
                let both = (run.clock.0.max(clock.0), run.clock.1.min(clock.1));
                run.clock = if both.0 <= both.1 { both } else { clock };
                if stepped {
                    run.stepped = Some(reply.received);
                    run.first_clock = (reply.received, clock);
                    return Noted::ClockStepped;
                }
            }
            other => {
                let follows_another = other.is_some();
                *other = Some(Run {
                    id: answer.run,
                    since: reply.received,
                    follows_another,
                    clock,
                    first_clock: (reply.received, clock),
                    stepped: None,
                    time: latest,
                });
            }
        }
        Noted::Nothing
    }

    /// The node said `lost`: replies to what was sent before this do not count any more.
    pub(super) fn note_lost(&mut self, at: Moment) {
        self.lost = Some(at);
    }

    /// Until when the node's replies do not count, by what our own clock has seen: its run is young, or its clock
    /// stepped. The only run that was ever seen of a node is not young.
    pub(super) fn doubtful_until(&self, quarantine: Duration) -> Option<Moment> {
        let run = self.run.as_ref()?;
        self.changed_at().max(run.stepped).map(|since| since + quarantine)
    }

    /// Since when the name leads to another run than before; `None` if it has led to one only.
    pub(super) fn changed_at(&self) -> Option<Moment> {
        self.run.as_ref().filter(|run| run.follows_another).map(|run| run.since)
    }

    /// Whether `reply` was sent after the node's last `lost`.
    pub(super) fn is_after_loss(&self, reply: &Reply) -> bool {
        self.lost.is_none_or(|lost| reply.sent > lost)
    }

    /// The run that answered last.
    pub(super) fn run(&self) -> Option<RunId> {
        self.run.as_ref().map(|run| run.id)
    }

    /// The node's TIME carried forward to `now` on our clock, and how old the reading is.
    pub(super) fn time(&self, now: Moment) -> Option<(u64, Duration)> {
        let (time_us, at) = self.run.as_ref()?.time;
        let age = now.since(at);
        Some((time_us.saturating_add(micros(age)), age))
    }

    /// The node's TIME less our clock: the middle of what is known, and its half width, in microseconds.
    pub(super) fn clock(&self) -> Option<(i64, i64)> {
        let (low, high) = self.run.as_ref()?.clock;
        Some(((low + high) / 2, (high - low) / 2))
    }

    /// How much faster than ours the node's clock runs, in parts per million.
    pub(super) fn clock_rate_ppm(&self) -> Option<i64> {
        let run = self.run.as_ref()?;
        let (at, first) = run.first_clock;
        let over = run.time.1.since(at);
        if over < RATE_AFTER {
            return None;
        }
        let drift = (run.clock.0 + run.clock.1) / 2 - (first.0 + first.1) / 2;
        Some(drift.saturating_mul(1_000_000) / signed(micros(over)).max(1))
    }
}

fn signed(micros: u64) -> i64 {
    i64::try_from(micros).unwrap_or(i64::MAX)
}

/// The lower median.
pub(super) fn lower_median<T: Ord + Copy>(mut values: Vec<T>) -> Option<T> {
    values.sort_unstable();
    let middle = values.len().checked_sub(1)? / 2;
    values.get(middle).copied()
}
