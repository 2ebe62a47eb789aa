//! A lock that keeps itself: extended until it is released or lost.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use crate::clock::{self, BootTimer, Moment};

use super::Mutex;
use super::attempt::Lock;
use super::error::MutexError;
use super::votes::Votes;

/// A lock that is extended every second, or every third of its expiry if that is less, until it is released.
///
/// The extends run on the locks' own thread: work that keeps its caller's threads busy does not delay them. Dropping
/// the holder releases the lock as well as can be: the release is sent in the background, and a process that ends at
/// once leaves the key to its expiry. [`LockHolder::release_lock`] waits for it.
///
/// Whoever works under it should stop when [`LockHolder::lost`] resolves.
#[must_use = "dropping it releases the lock"]
pub struct LockHolder {
    name: Arc<str>,
    value: String,
    orders: Option<oneshot::Sender<Order>>,
    trust: watch::Receiver<Trust>,
}

/// The end of a holder: how the release went is told to whom asked for it.
type Order = oneshot::Sender<Result<(), MutexError>>;

/// Whether the lock can be trusted.
#[derive(Clone, Copy, Debug)]
enum Trust {
    Until(Moment),
    Lost(Loss),
}

/// Why a held lock can no longer be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// So many nodes have somebody else's value, or none, that no extend can be had any more.
    Gone,
    /// No quorum could be extended until the deadline; the nodes fail or cannot be reached.
    Deadline,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "the nodes say that the lock is not ours any more",
            Self::Deadline => "no quorum could be extended in time",
        })
    }
}

/// The longest time between two extends.
const PERIOD: Duration = Duration::from_secs(1);

impl LockHolder {
    /// Takes over a mutex that has just been locked.
    pub(super) fn keep(mutex: Mutex) -> Result<Self, MutexError> {
        let (Some(value), Some(until)) = (mutex.value.clone(), mutex.until) else {
            return Err(MutexError::NotLocked { lock: mutex.name().to_owned() });
        };
        let (publisher, trust) = watch::channel(Trust::Until(until));
        let (orders, order) = oneshot::channel();
        let name = mutex.lock.name.clone();
        let keeper = Keeper { lock: mutex.lock, value: value.clone(), until, publisher };
        let nodes = keeper.lock.nodes.clone();
        nodes.spawn(keeper.run(order));
        Ok(Self { name, value, orders: Some(orders), trust })
    }

    /// The lock's name, which is its key.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value in the key.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Until when the lock can be trusted if no further extend succeeds, on the boot clock; `None` once it is lost.
    #[must_use]
    pub fn until(&self) -> Option<Moment> {
        match *self.trust.borrow() {
            Trust::Until(until) if clock::now() < until => Some(until),
            Trust::Until(_) | Trust::Lost(_) => None,
        }
    }

    /// Whether the lock can no longer be trusted. Reads the clock, so it is right even after a suspend.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.until().is_none()
    }

    /// Resolves when the lock can no longer be trusted, and at once if it is lost already. Never resolves while it is
    /// held; resolves with [`Loss::Deadline`] after the holder is gone. The future does not borrow the holder, so that
    /// it can be given to a task.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + 'static {
        let mut trust = self.trust.clone();
        async move {
            match trust.wait_for(|trust| matches!(trust, Trust::Lost(_))).await.map(|trust| *trust) {
                Ok(Trust::Lost(loss)) => loss,
                Ok(Trust::Until(_)) | Err(_) => Loss::Deadline,
            }
        }
    }

    /// Stops the extends, deletes the key where it is ours, and waits for the answers.
    ///
    /// # Errors
    /// As [`Mutex::unlock`]: [`MutexError::Taken`] and [`MutexError::Expired`] say that the lock was lost before.
    /// [`MutexError::Nodes`] and [`MutexError::NoQuorum`] say that the key stays on some nodes until its expiry.
    pub async fn release_lock(mut self) -> Result<(), MutexError> {
        let (sender, done) = oneshot::channel();
        let gone = || MutexError::Cancelled { lock: self.name.to_string(), nodes: Box::default() };
        let order = self.orders.take().ok_or_else(gone)?;
        order.send(sender).map_err(|_| gone())?;
        done.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl fmt::Debug for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockHolder").field("name", &self.name).field("until", &self.until()).finish_non_exhaustive()
    }
}

/// The task behind a holder. It alone asks for the lock, so that no extend is under way when it releases.
struct Keeper {
    lock: Lock,
    value: String,
    until: Moment,
    publisher: watch::Sender<Trust>,
}

impl Keeper {
    async fn run(mut self, mut order: oneshot::Receiver<Order>) {
        let ended = {
            let lost = self.extend_until_lost();
            tokio::select! {
                biased;
                ended = &mut order => Some(ended),
                loss = lost => {
                    self.publisher.send_replace(Trust::Lost(loss));
                    None
                }
            }
        };
        // Lost, the key is left alone until the work under it has ended: it may still hold others off.
        let ended = match ended {
            Some(ended) => ended,
            None => order.await,
        };
        match ended {
            Ok(asker) => {
                // He may be gone by now; the key is, too.
                let _ = asker.send(self.lock.unlock(&self.value).await);
            }
            Err(_) => self.lock.send_release(&self.value),
        }
    }

    async fn extend_until_lost(&mut self) -> Loss {
        let Ok(timer) = BootTimer::new() else { return Loss::Deadline };
        let period = PERIOD.min(self.lock.options.expiry / 3);
        let mut next = clock::now() + period;
        loop {
            if timer.arm(next.min(self.until)).is_err() || timer.fired().await.is_err() {
                return Loss::Deadline;
            }
            let now = clock::now();
            if now >= self.until {
                return Loss::Deadline;
            }
            if now < next {
                continue;
            }
            next = now + period;
            // Until the next one is due, and never beyond the deadline.
            if timer.arm(next.min(self.until)).is_err() {
                return Loss::Deadline;
            }
            let question = self.lock.question(&self.value, self.lock.extend_step(), period);
            let votes = tokio::select! {
                biased;
                votes = self.lock.nodes.ask(&question, true) => votes,
                _ = timer.fired() => continue,
            };
            if let Some(loss) = self.take(&votes) {
                return loss;
            }
        }
    }

    fn take(&mut self, votes: &Votes) -> Option<Loss> {
        let until = votes.until().map(|until| until - self.lock.options.drift());
        if votes.is_granted()
            && let Some(until) = until
        {
            self.until = self.until.max(until);
            self.publisher.send_replace(Trust::Until(self.until));
            None
        } else {
            votes.is_lost().then_some(Loss::Gone)
        }
    }
}
