//! The reader's half: a watch of a value that expires by itself, and the pulse of the loop behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use crate::clock::{self, Moment};
use crate::election::leadership::Leadership;

/// Reads leadership. Cheap to clone; it gives no way to change anything.
#[derive(Clone, Debug)]
pub struct Watch {
    value: watch::Receiver<Arc<Leadership>>,
    pulse: Arc<AtomicU64>,
}

/// The driver's half.
#[derive(Debug)]
pub struct Publisher {
    value: watch::Sender<Arc<Leadership>>,
    pulse: Arc<AtomicU64>,
}

/// A watch that says `first` until something is published.
#[must_use]
pub fn channel(first: Leadership) -> (Publisher, Watch) {
    let (sender, receiver) = watch::channel(Arc::new(first));
    let pulse = Arc::new(AtomicU64::new(clock::now().as_micros()));
    (Publisher { value: sender, pulse: Arc::clone(&pulse) }, Watch { value: receiver, pulse })
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

    /// When the loop last turned.
    #[must_use]
    pub fn last_tick(&self) -> Moment {
        Moment::from_micros(self.pulse.load(Ordering::Acquire))
    }
}

impl Publisher {
    /// Publishes `leadership` if it differs from what was published last.
    pub fn publish(&self, leadership: Leadership) {
        self.value.send_if_modified(|current| {
            let differs = **current != leadership;
            if differs {
                *current = Arc::new(leadership);
            }
            differs
        });
    }

    /// Notes that the loop turns.
    pub fn tick(&self, now: Moment) {
        self.pulse.store(now.as_micros(), Ordering::Release);
    }
}
