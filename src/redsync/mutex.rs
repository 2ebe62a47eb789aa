//! Locks over a quorum of independent Redis nodes, as Redsync has them: on the wire the same as go-redsync v4, so that
//! Go and Rust programs exclude each other.
//!
//! A complete program; the nodes are its arguments:
//!
//! ```no_run
//! use redleader::redsync::{Options, Redsync};
//!
//! # async fn work() {}
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let redsync = Redsync::new(std::env::args().skip(1))?;
//!
//!     // Waits for its turn, and is extended in the background until it is released.
//!     let holder = redsync.try_lock("nightly-report", Options::new().tries(100)).await?;
//!     tokio::select! {
//!         () = work() => println!("done"),
//!         loss = holder.lost() => println!("stopped: {loss}"),
//!     }
//!     holder.release_lock().await?;
//!     Ok(())
//! }
//! ```
//!
//! # Which one
//! [`Redsync::try_lock`] gives a [`LockHolder`], which is right for work of any length. [`Redsync::mutex`] gives a
//! [`Mutex`], the bare lock of Redsync: its key goes after its expiry unless it is extended by hand, and **stays until
//! then if the `Mutex` is dropped or its task panics**.
//!
//! # What it promises
//! A quorum is `n / 2 + 1` of the nodes in the list; every program must have the same list. While [`Mutex::until`] or
//! [`LockHolder::until`] has not passed, a quorum of nodes blocks everybody else, under the conditions of Redlock: no
//! node forgets a key before its expiry (a node that lost its memory must stay away for an expiry), and clocks run alike
//! within the drift factor. There is no fencing token and no continuity over a restart of nodes: the elections of this
//! crate have both, at the price of a second key.
//!
//! Time is the boot clock, which goes on while a machine is suspended: after a suspend a lock is known to be over.
//!
//! # What differs from go-redsync
//! * A future that is dropped cleans up behind itself: what it had set is deleted by the locks' own thread, in order on
//!   the connection that set it. No cancelled context can keep a release from being sent.
//! * Every step has a timeout: a try and its clean-up the [`Options::timeout_factor`], all others the node's.
//! * [`MutexError`] tells *taken* from *expired*, and both from nodes that fail; every row names its nodes.
//! * Two addresses of one server are one vote.
//! * `unlock` clears [`Mutex::until`], and steps without a value are refused without asking anybody.
//! * A value that may still be under way to a node, because it did not answer a clean-up, is not used for the next try.
//!
//! # What it needs
//! Redis 5 or later, or Valkey; of a user's rights `SET`, `GET`, `DEL`, `PEXPIRE`, `EVAL` and `INFO` on the lock's key,
//! which is its name and nothing else. Nodes are reached by one connection each, on a thread that all locks of one
//! [`Redsync`] share. It works under any executor: no part of it needs the caller's runtime.

mod attempt;
mod error;
mod holder;
mod nodes;
mod options;
mod votes;

use std::fmt;
use std::future::{Future, pending};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock::{self, Moment};
use crate::redsync::node::NodeSettings;
use crate::redsync::reply::{NodeIndex, Step};
use crate::redsync::url::NodeUrl;

use attempt::Lock;
pub use error::{MutexError, NodeError, SetupError};
pub use holder::{LockHolder, Loss};
use nodes::Nodes;
pub use options::Options;

/// The nodes that locks are taken on. Cheap to clone; clones share the connections.
#[derive(Clone, Debug)]
pub struct Redsync {
    nodes: Arc<Nodes>,
}

impl Redsync {
    /// Independent nodes by their addresses: `redis://[user[:password]@]host[:port][/db]`, `rediss://` for TLS, or
    /// `unix:///path`. They are dialled at once, and again whenever they are needed; one that is down is no error here.
    ///
    /// # Errors
    /// An empty list, an address that is none or is there twice, or no thread to be had.
    pub fn new(nodes: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, SetupError> {
        let read = |(at, url): (usize, _)| {
            let url: &dyn AsRef<str> = &url;
            NodeUrl::parse(url.as_ref()).map_err(|source| SetupError::Url { number: at + 1, source })
        };
        let urls: Vec<NodeUrl> = nodes.into_iter().enumerate().map(read).collect::<Result<_, _>>()?;
        Self::with_nodes(urls.into_iter().map(NodeSettings::new).collect())
    }

    /// Independent nodes with all settings: certificates, a password from a file, timeouts.
    ///
    /// # Errors
    /// As [`Redsync::new`].
    pub fn with_nodes(nodes: Vec<NodeSettings>) -> Result<Self, SetupError> {
        Ok(Self { nodes: Nodes::start(nodes)? })
    }

    /// A mutex whose key is `name`, verbatim, with the default options; [`Mutex::with`] sets others. Nothing is asked
    /// of the nodes yet.
    #[must_use]
    pub fn mutex(&self, name: impl Into<Arc<str>>) -> Mutex {
        let order = (0..self.nodes.names().len()).collect();
        let lock = Lock { nodes: self.nodes.clone(), order, name: name.into(), options: Options::new() };
        Mutex { lock, value: None, until: None }
    }

    /// Locks `name`, waiting as [`Mutex::lock`] does, by the tries and delays of `options`, and keeps it extended until
    /// it is released or lost.
    ///
    /// # Errors
    /// As [`Mutex::lock`].
    pub async fn try_lock(&self, name: impl Into<Arc<str>>, options: Options) -> Result<LockHolder, MutexError> {
        let mut mutex = self.mutex(name).with(options);
        mutex.lock().await?;
        LockHolder::keep(mutex)
    }

    /// The nodes' names in the order of the list: `host:port` or the socket's path.
    #[must_use]
    pub fn nodes(&self) -> &[String] {
        self.nodes.names()
    }
}

/// One lock, by its name. Locking it twice blocks like a stranger; a drop does not unlock.
pub struct Mutex {
    lock: Lock,
    value: Option<String>,
    until: Option<Moment>,
}

impl Mutex {
    /// The same mutex with these options in place of all that it had; a value that they name becomes its value.
    #[must_use]
    pub fn with(mut self, options: Options) -> Self {
        let mut order: Vec<NodeIndex> = (0..self.lock.nodes.names().len()).collect();
        if options.is_shuffled {
            shuffle(&mut order);
        }
        self.lock.order = order.into();
        self.value = options.value.clone();
        self.lock.options = options;
        self
    }

    /// The key, verbatim.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.lock.name
    }

    /// The value in the key: of the last lock that succeeded, else the one of [`Options::value`]. Unlocking keeps it.
    #[must_use]
    pub fn value(&self) -> Option<&str> {
        self.value.as_deref()
    }

    /// Until when the last lock or extend can be trusted, on the boot clock: the expiry less the drift, counted from
    /// before the requests were written. `None` before a lock and after an unlock.
    #[must_use]
    pub const fn until(&self) -> Option<Moment> {
        self.until
    }

    /// The time left until [`Mutex::until`]; zero if it has passed or is none.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        self.until.map_or(Duration::ZERO, |until| until.since(clock::now()))
    }

    /// Locks, waiting for its turn by the tries and delays of the options.
    ///
    /// Each try asks all nodes at once; without a quorum, or with one that came too late, all of them are cleaned up
    /// before the next. Dropping the future is safe at any point: what was set is deleted.
    ///
    /// # Errors
    /// Of the last try: [`MutexError::Taken`], [`MutexError::Nodes`], [`MutexError::NoQuorum`] or
    /// [`MutexError::Late`]. [`MutexError::NoTries`] and [`MutexError::Value`] before anything is asked.
    pub async fn lock(&mut self) -> Result<(), MutexError> {
        self.acquire(self.lock.options.tries, pending()).await
    }

    /// As [`Mutex::lock`], with one try.
    ///
    /// # Errors
    /// As [`Mutex::lock`].
    pub async fn try_lock(&mut self) -> Result<(), MutexError> {
        self.acquire(1, pending()).await
    }

    /// As [`Mutex::lock`], until `cancel` resolves: `LockContext` of go-redsync. In place of dropping the future, for
    /// those who want to know that the nodes are clean.
    ///
    /// # Errors
    /// As [`Mutex::lock`], and [`MutexError::Cancelled`], at the latest one try's timeout after `cancel`.
    pub async fn lock_unless(&mut self, cancel: impl Future<Output = ()>) -> Result<(), MutexError> {
        self.acquire(self.lock.options.tries, cancel).await
    }

    /// Deletes the key where it has our value. It is asked once, and a node that fails keeps the key until its expiry.
    ///
    /// # Errors
    /// Without a quorum that had our value: [`MutexError::Expired`], [`MutexError::Taken`], [`MutexError::Nodes`] or
    /// [`MutexError::NoQuorum`]; what was ours is deleted all the same. [`MutexError::NotLocked`] without a value.
    pub async fn unlock(&mut self) -> Result<(), MutexError> {
        let value = self.held()?;
        let unlocked = self.lock.unlock(value).await;
        if unlocked.is_ok() {
            self.until = None;
        }
        unlocked
    }

    /// Gives the key its whole expiry again where it has our value. It is asked once; the caller repeats it.
    ///
    /// # Errors
    /// Without a quorum: as [`Mutex::unlock`], and [`MutexError::Late`]. [`Mutex::until`] is then as it was, and nodes
    /// that did extend keep their new expiry.
    pub async fn extend(&mut self) -> Result<(), MutexError> {
        let value = self.held()?;
        let question = self.lock.question(value, self.lock.extend_step(), self.lock.nodes.node_timeout());
        let votes = self.lock.nodes.ask(&question, self.lock.options.is_fail_fast).await;
        let until = votes.until().map(|until| until - self.lock.options.drift());
        if votes.is_granted() && until.is_some_and(|until| clock::now() < until) {
            self.until = until;
            return Ok(());
        }
        Err(votes.into_error(&self.lock.name, self.lock.nodes.names()))
    }

    /// Whether a quorum has our value in the key right now. It says nothing of how long; that is [`Mutex::until`].
    ///
    /// # Errors
    /// Without a quorum, as [`Mutex::unlock`].
    pub async fn valid(&self) -> Result<(), MutexError> {
        let value = self.held()?;
        let question = self.lock.question(value, Step::Compare, self.lock.nodes.node_timeout());
        self.lock.settle(&question).await
    }

    fn held(&self) -> Result<&str, MutexError> {
        self.value().ok_or_else(|| MutexError::NotLocked { lock: self.name().to_owned() })
    }

    async fn acquire(&mut self, tries: u32, cancel: impl Future<Output = ()>) -> Result<(), MutexError> {
        if tries == 0 {
            return Err(MutexError::NoTries { lock: self.name().to_owned() });
        }
        let value = self.lock.draw_value()?;
        // Its end tells the attempt that nobody waits any more, however this future ends.
        let (presence, caller) = oneshot::channel();
        let mut attempt = self.lock.nodes.spawn(self.lock.clone().acquire(tries, value, caller));
        let ended = tokio::select! {
            biased;
            ended = &mut attempt => ended,
            () = cancel => {
                drop(presence);
                attempt.await
            }
        };
        match ended {
            Ok(grant) => {
                let (value, until) = grant?.take_over();
                (self.value, self.until) = (Some(value), Some(until));
                Ok(())
            }
            // Of a function among the options.
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            Err(_) => Err(self.lock.cancelled(self.lock.nodes.names())),
        }
    }
}

impl Lock {
    /// Deletes the key where it has this value.
    async fn unlock(&self, value: &str) -> Result<(), MutexError> {
        self.settle(&self.question(value, Step::Release, self.nodes.node_timeout())).await
    }

    async fn settle(&self, question: &nodes::Question<'_>) -> Result<(), MutexError> {
        let votes = self.nodes.ask(question, self.options.is_fail_fast).await;
        if votes.is_granted() { Ok(()) } else { Err(votes.into_error(&self.name, self.nodes.names())) }
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").field("name", &self.name()).field("until", &self.until).finish_non_exhaustive()
    }
}

fn shuffle(order: &mut [NodeIndex]) {
    for at in (1..order.len()).rev() {
        let other = usize::try_from(options::chance(at as u64 + 1)).unwrap_or(0);
        order.swap(at, other);
    }
}
