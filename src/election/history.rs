//! The last changes of leadership, for people who come after them. Counters say how many there were, the log says all.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::Moment;
use crate::election::event::{Event, StepDown};
use crate::redsync::name::Owner;
use crate::redsync::reply::Token;

/// How many are kept: a screen of a phone, and a few hundred bytes however long the process lives.
pub const KEPT: usize = 10;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// When it was.
    pub at: Moment,
    /// What it was.
    pub change: Change,
}

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// This replica began to lead.
    Elected(Token),
    /// This replica ceased to lead.
    SteppedDown(Token, StepDown),
    /// Another is seen to hold, or nobody.
    Holder(Option<Owner>, Option<Token>),
}

/// The last [`KEPT`] changes. Cheap to clone; all clones are one history.
#[derive(Clone, Debug, Default)]
pub struct History(Arc<Mutex<VecDeque<Past>>>);

impl History {
    /// Notes what an event changes, if anything.
    pub fn note(&self, event: &Event, now: Moment) {
        let (at, change) = match event {
            Event::Elected { token, at, .. } => (*at, Change::Elected(*token)),
            Event::SteppedDown { token, reason, at } => (*at, Change::SteppedDown(*token, *reason)),
            Event::HolderChanged { owner, token } => (now, Change::Holder(owner.clone(), *token)),
            Event::SteppingDown { .. }
            | Event::Acquire { .. }
            | Event::Extend { .. }
            | Event::Release { .. }
            | Event::Node { .. }
            | Event::NodeLost { .. }
            | Event::NodeRefilled { .. }
            | Event::NodeQuarantined { .. }
            | Event::ClockStepped { .. }
            | Event::NoExpiry { .. }
            | Event::Quarantine { .. }
            | Event::ListMismatch { .. } => return,
        };
        let mut past = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if past.len() == KEPT {
            past.pop_back();
        }
        past.push_front(Past { at, change });
    }

    /// The changes, the last one first.
    #[must_use]
    pub fn latest(&self) -> Vec<Past> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_kept_and_the_latest_is_first() {
        let history = History::default();
        for token in 1..=10_000 {
            let at = Moment::from_micros(token);
            history.note(&Event::Elected { token, at, deadline: at, gap: None }, at);
        }
        history.note(&Event::ListMismatch { differs: false, by: 0 }, Moment::from_micros(1));
        let latest = history.latest();
        assert_eq!(latest.len(), KEPT);
        assert_eq!((&latest[0].change, &latest[KEPT - 1].change), (&Change::Elected(10_000), &Change::Elected(9991)));
    }
}
