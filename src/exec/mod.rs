//! Work that runs only while this replica leads: a child program, and hooks before and after it.
//!
//! A program under the wrapper must not outlive the leadership that it was started for, whatever happens to the wrapper:
//! it may hang, be stopped, or be killed with -9. So the wrapper does not start it by itself. It starts a *guardian*,
//! which is a hidden sub-command of this binary, and that one starts the program.
//!
//! ```text
//! redleader run -- CMD            redleader-guard                    CMD
//!   wrapper ──── Order ────►  guardian ── its group, descendants ──► child ─► grandchildren
//!           ◄─── Report ────      owns the deadline, on a boot-clock timer
//! ```
//!
//! * The guardian gets every new deadline. If none comes in time, or the wrapper is gone, it kills the child's group
//!   and every descendant, and it ends when nothing is left of them.
//! * Guardian and wrapper are subreapers: no descendant escapes by forking twice, whichever of the two dies.
//! * The child dies with the guardian, by the kernel's parent death signal ([`crate::command::tied`]).
//! * [`Ladder`] has the times: stop signal, KILL, and all dead before the deadline.
//!
//! What remains: if wrapper, guardian and child are stopped all at once and go on together later, the child may act
//! before the guardian's timer is served. Only the fencing token stops that.

mod channel;
mod descendants;
mod forward;
mod guarded;
pub mod guardian;
mod ladder;
mod message;
mod orphans;
mod program;
mod wrapper;

use std::time::Duration;

use rustix::process::Signal;

pub use forward::FORWARDED;
pub use guarded::kill_group_at_once;
pub use ladder::{Ladder, Rungs};
pub use program::{CommandError, Program};
pub use wrapper::{Plan, Wrapper};

/// What happens when the child ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExit {
    /// Release the lock, and exit with the child's code.
    Exit,
    /// Keep the lock, and start it again after a pause.
    Restart,
    /// Release the lock, and campaign again after a pause.
    Release,
}

/// What happens when leadership is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLost {
    /// Stop the child, and stay a standby.
    Stop,
    /// The same, with this signal in place of the stop signal.
    Signal(Signal),
    /// Stop the child, and exit with code 75.
    Exit,
}

/// Pauses that double: between starts of a child that ends, and between leaderships that end at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Backoff(Duration);

impl Backoff {
    const FIRST: Duration = Duration::from_secs(1);
    const LAST: Duration = Duration::from_secs(60);

    const fn new() -> Self {
        Self(Self::FIRST)
    }

    /// The pause after work that ran for so long. Work that ran longer than it would pause begins anew.
    fn after(&mut self, ran: Duration) -> Duration {
        if ran >= self.0 {
            self.0 = Self::FIRST;
        }
        let pause = self.0;
        self.0 = (pause * 2).min(Self::LAST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute_and_begin_anew_after_a_longer_run() {
        let mut backoff = Backoff::new();
        let pauses: Vec<u64> = (0..8).map(|_| backoff.after(Duration::from_millis(50)).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(backoff.after(Duration::from_secs(61)).as_secs(), 1);
        assert_eq!(backoff.after(Duration::ZERO).as_secs(), 2);
    }
}
