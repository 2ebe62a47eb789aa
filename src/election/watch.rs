//! The reader's half: a watch of a value that expires by itself, and the pulse of the loop behind it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use crate::clock::{self, BootTimer, Moment};
use crate::election::event::Event;
use crate::election::history::{History, Past};
use crate::election::leadership::Leadership;

/// Reads leadership. Cheap to clone; it gives no way to change anything.
#[derive(Clone, Debug)]
pub struct Watch {
    value: watch::Receiver<Arc<Leadership>>,
    pulse: Arc<AtomicU64>,
    history: History,
}

/// The driver's half.
#[derive(Debug)]
pub struct Publisher {
    value: watch::Sender<Arc<Leadership>>,
    pulse: Arc<AtomicU64>,
    history: History,
}

/// A watch that says `first` until something is published.
#[must_use]
pub fn channel(first: Leadership) -> (Publisher, Watch) {
    let (sender, receiver) = watch::channel(Arc::new(first));
    let pulse = Arc::new(AtomicU64::new(clock::now().as_micros()));
    let history = History::default();
    (
        Publisher { value: sender, pulse: Arc::clone(&pulse), history: history.clone() },
        Watch { value: receiver, pulse, history },
    )
}

impl Watch {
    /// The boot clock: what the value's moments are to be held against.
    #[must_use]
    pub fn now(&self) -> Moment {
        clock::now()
    }

    /// The value as last published. Its deadline holds even if the loop that published it hangs.
    #[must_use]
    pub fn leadership(&self) -> Arc<Leadership> {
        Arc::clone(&self.value.borrow())
    }

    /// Whether this replica leads at this very moment.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        self.leadership().is_leading(clock::now())
    }

    /// Waits until another value is published. `false`: the election has ended, and nothing more will come.
    pub async fn changed(&mut self) -> bool {
        self.value.changed().await.is_ok()
    }

    /// As [`Watch::changed`], or until `turn`: the moment at which time alone changes what is to be told, if one does.
    ///
    /// # Errors
    /// When the timer cannot be set, or the runtime has ended.
    pub async fn turned(&mut self, timer: &BootTimer, turn: Option<Moment>) -> io::Result<bool> {
        if let Some(turn) = turn {
            timer.arm(turn)?;
        }
        tokio::select! {
            more = self.changed() => Ok(more),
            fired = timer.fired(), if turn.is_some() => fired.map(|()| true),
        }
    }

    /// The last changes, the latest first.
    #[must_use]
    pub fn latest(&self) -> Vec<Past> {
        self.history.latest()
    }

    /// When the loop last turned.
    #[must_use]
    pub fn last_tick(&self) -> Moment {
        Moment::from_micros(self.pulse.load(Ordering::Acquire))
    }
}

impl Publisher {
    /// Publishes `leadership` if it differs from what was published last. Gives the moment by which every reader has
    /// stopped to believe the earlier value: now, or its deadline if that came first.
    pub fn publish(&self, leadership: Leadership) -> Moment {
        let mut deadline = None;
        self.value.send_if_modified(|current| {
            deadline = current.belief.as_ref().map(|belief| belief.deadline);
            let differs = **current != leadership;
            if differs {
                *current = Arc::new(leadership);
            }
            differs
        });
        let now = clock::now();
        deadline.map_or(now, |deadline| deadline.min(now))
    }

    /// Notes what an event changes, for people who come later.
    pub fn note(&self, event: &Event, now: Moment) {
        self.history.note(event, now);
    }

    /// Notes that the loop turns.
    pub fn tick(&self, now: Moment) {
        self.pulse.store(now.as_micros(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::election::leadership::{Belief, Vote};

    fn leadership(deadline: Option<Moment>) -> Leadership {
        let belief = |deadline| Belief {
            token: 1,
            since: clock::now(),
            work_until: deadline,
            deadline,
            extended_at: clock::now(),
            stepping_down: None,
        };
        Leadership { belief: deadline.map(belief), ..Leadership::standby(&[], Vote::Unknown) }
    }

    #[test]
    fn belief_ends_when_it_is_taken_back_and_never_after_its_deadline() {
        let ends_in = |deadline: Moment| {
            let (publisher, _watch) = channel(leadership(Some(deadline)));
            publisher.publish(leadership(None))
        };
        let before = clock::now();
        let ended = ends_in(before + Duration::from_secs(60));
        assert!(before <= ended && ended <= clock::now());
        assert_eq!(ends_in(before), before);
    }
}
