//! What the rest of the process may ask of the election, through one bounded channel.

use std::time::Duration;

use crate::election::event::StepDown;
use crate::redsync::reply::Token;

/// A request to the election.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// The work that this leadership guarded has stopped.
    WorkStopped(Token),
    /// Step down in order, and stand back for a while.
    Resign {
        /// Why.
        reason: StepDown,
        /// For how long no new attempt is made.
        stand_back: Duration,
    },
    /// Take no part any more, and keep what is held.
    Drain,
    /// Whether the app beside it is healthy.
    Health(bool),
    /// Step down in order, clean up, and end.
    Shutdown,
}
