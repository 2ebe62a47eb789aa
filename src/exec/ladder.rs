//! The times at which work is told to stop, is killed, and is surely dead, computed from the deadline.

use std::fmt;
use std::time::Duration;

use crate::clock::Moment;
use crate::election::event::StepDown;
use crate::election::timing::{Short, Timing};

/// When a process is told to stop, and when it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rungs {
    /// It gets the stop signal.
    pub stop_at: Moment,
    /// It, its group and all its descendants get KILL.
    pub kill_at: Moment,
}

/// The ladder: from "stop" to "all dead", before the deadline.
///
/// In an involuntary step-down the grace is all the time there is. Its first half is for the child to stop by itself.
/// After KILL nothing runs a line of its own any more, so the rest is there for a machine that is late, and half of it
/// for `--on-stepped-down`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ladder {
    grace: Duration,
    stop_timeout: Duration,
    hook_timeout: Duration,
    /// From the stop signal's time to the lock's release and the end of the process, beyond work and hook.
    rest: Duration,
    #[cfg(feature = "mutant-late-kill")]
    late: Duration,
}

impl Ladder {
    /// The ladder of these numbers; a hook has half of the grace unless it was given another time.
    #[must_use]
    pub fn new(timing: &Timing, hook_timeout: Option<Duration>) -> Self {
        Self {
            grace: timing.grace(),
            stop_timeout: timing.stop_timeout(),
            hook_timeout: hook_timeout.unwrap_or(timing.grace() / 2),
            rest: timing.node_timeout() * 2 + Duration::from_secs(1),
            #[cfg(feature = "mutant-late-kill")]
            late: timing.ttl(),
        }
    }

    /// The child's times.
    #[must_use]
    pub fn child(&self, deadline: Moment) -> Rungs {
        #[cfg(feature = "mutant-late-kill")]
        return Rungs { stop_at: deadline + self.late, kill_at: deadline + self.late * 2 };
        #[cfg(not(feature = "mutant-late-kill"))]
        Rungs { stop_at: deadline - self.grace, kill_at: deadline - self.grace / 2 }
    }

    /// The times of `--on-elected`, which began at `began`: the child's, or sooner.
    #[must_use]
    pub fn elected(&self, deadline: Moment, began: Moment) -> Rungs {
        let Rungs { stop_at, kill_at } = self.child(deadline);
        let limit = began + self.hook_timeout;
        Rungs { stop_at: stop_at.min(limit), kill_at: kill_at.min(limit) }
    }

    /// The times of `--on-stepped-down`, which began at `began`: the child is dead by then, so it has nearly all that
    /// is left.
    #[must_use]
    pub fn stepped_down(&self, deadline: Moment, began: Moment) -> Rungs {
        let end = (deadline - self.grace / 4).min(began + self.hook_timeout);
        Rungs { stop_at: end, kill_at: end }
    }

    /// Planted for the tests: on a loss the child is stopped only after the deadline, as other wrappers do it.
    #[must_use]
    pub const fn is_late(&self, reason: StepDown) -> bool {
        cfg!(feature = "mutant-late-kill") && !reason.is_voluntary()
    }

    /// How long after a process should have been killed the guardian is taken for hung.
    #[must_use]
    pub fn slack(&self) -> Duration {
        self.grace / 8
    }

    /// How long a guardian may leave an order untaken before it is taken for hung. Longer than a busy machine needs: a
    /// child is killed for it, and what has to be dead in time is seen to without it.
    #[must_use]
    pub fn hearing(&self) -> Duration {
        self.grace.max(Duration::from_secs(1))
    }

    /// How long work may take to stop when this replica steps down by its own will, as long as extends succeed.
    #[must_use]
    pub const fn stop_timeout(&self) -> Duration {
        self.stop_timeout
    }

    /// How long a hook may take.
    #[must_use]
    pub const fn hook_timeout(&self) -> Duration {
        self.hook_timeout
    }

    /// From SIGTERM to the end of the process at most: what a terminationGracePeriodSeconds has to exceed.
    #[must_use]
    pub fn shutdown_most(&self) -> Duration {
        self.stop_timeout + self.slack() + self.hook_timeout + self.rest
    }
}

impl fmt::Display for Ladder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { grace, stop_timeout, hook_timeout, .. } = *self;
        write!(
            f,
            "on loss: stop signal {} before the deadline, KILL {} before it; when asked to stop: KILL after {}; hooks: \
             at most {}; from SIGTERM to the end at most {}",
            Short(grace),
            Short(grace / 2),
            Short(stop_timeout),
            Short(hook_timeout),
            Short(self.shutdown_most())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::timing::Wish;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn ladder(hook_timeout: Option<Duration>) -> Ladder {
        Ladder::new(&Timing::new(&Wish::with_ttl(ms(8000))).unwrap(), hook_timeout)
    }

    #[test]
    fn everything_is_dead_before_the_deadline() {
        let deadline = Moment::from_micros(100_000_000);
        for hook_timeout in [None, Some(ms(1)), Some(ms(60_000))] {
            let ladder = ladder(hook_timeout);
            let child = ladder.child(deadline);
            assert_eq!((deadline.since(child.stop_at), deadline.since(child.kill_at)), (ms(1000), ms(500)));
            assert!(child.kill_at + ladder.slack() < deadline);
            for began in [child.stop_at - ms(5000), child.stop_at, child.kill_at, deadline] {
                let elected = ladder.elected(deadline, began);
                assert!(elected.stop_at <= child.stop_at && elected.kill_at <= child.kill_at);
                let after = ladder.stepped_down(deadline, began);
                assert!(after.kill_at + ladder.slack() <= deadline, "{after:?}");
            }
        }
    }

    #[test]
    fn a_hook_has_its_time_and_no_more() {
        let deadline = Moment::from_micros(100_000_000);
        let began = deadline - ms(6000);
        assert_eq!(ladder(None).elected(deadline, began).kill_at, began + ms(500));
        assert_eq!(ladder(Some(ms(2000))).elected(deadline, began).kill_at, began + ms(2000));
        assert_eq!(ladder(Some(ms(2000))).stepped_down(deadline, deadline - ms(500)).kill_at, deadline - ms(250));
    }

    #[test]
    fn the_numbers_are_told_in_one_line() {
        assert_eq!(
            ladder(None).to_string(),
            "on loss: stop signal 1s before the deadline, KILL 500ms before it; when asked to stop: KILL after 10s; \
             hooks: at most 500ms; from SIGTERM to the end at most 12.425s"
        );
    }
}
