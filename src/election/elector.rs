//! An election within a Rust program: started, watched, and leading a piece of work.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use redleader::election::timing::Wish;
//! use redleader::election::{Elector, ElectorError};
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), ElectorError> {
//!     let nodes = ["redis://redis-a:6379", "redis://redis-b:6379", "redis://redis-c:6379"];
//!     let elector = Elector::builder("nightly-report", nodes)
//!         .identity("worker-1")
//!         .timing(Wish::with_ttl(Duration::from_secs(8)))
//!         .start()?;
//!
//!     // Runs on the leader only, again at each election, and is dropped when the leadership ends.
//!     let done = elector.lead(|token| report(token)).await?;
//!     println!("{done}");
//!     elector.shutdown().await
//! }
//!
//! /// Passes the token to whatever it writes to, which refuses a smaller one than it has seen.
//! async fn report(token: u64) -> String {
//!     format!("written under token {token}")
//! }
//! ```
//!
//! The promise is the one of the whole program: at any instant at most one replica believes that it leads, under the
//! bounds that the crate's documentation names. Its limit is the same, too. Work is stopped by dropping it, at an
//! `.await`: what blocks its thread, or was handed to another task, thread or server, goes on, and may take effect after
//! somebody else has begun to lead. So a late write is refused by its *token* and by nothing else; `docs/fencing.md` and
//! the examples `fencing_*` show how.

mod term;
mod warden;

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::clock::BootTimer;
use crate::election::driver::{ElectionError, Names};
use crate::election::event::StepDown;
use crate::election::request::Request;
use crate::election::thread::{Election, Rules, seed};
use crate::election::timing::{Timing, TimingError, Wish};
use crate::election::watch::Watch;
use crate::metrics::Metrics;
use crate::redsync::name::{Identity, LockName, NameError};
use crate::redsync::node::NodeSettings;
use crate::redsync::reply::Token;
use crate::redsync::url::{NodeUrl, NodeUrlError};

use term::Terms;

/// Why there is no election, or none any more.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ElectorError {
    /// A name that no lock may have.
    #[error("the lock {0}")]
    Lock(NameError),
    /// A name that no replica may have.
    #[error("the identity {0}")]
    Identity(NameError),
    /// Without nodes there is no quorum.
    #[error("no nodes are given: name one, three or five independent Redis servers")]
    NoNodes,
    /// An address that is none. Its text is not shown, for it may hold a password.
    #[error("node {number} of the list {source}")]
    Url {
        /// Which of the list, from 1.
        number: usize,
        /// What is wrong with it.
        source: NodeUrlError,
    },
    /// The same node twice would have two votes.
    #[error("the node {0} is in the list twice: name each server once")]
    Twice(String),
    /// Numbers that are unsafe, by themselves or together; they are called as the flags of `redleader run`.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Timing(Vec<TimingError>),
    /// The system refuses a thread, a timer or random numbers.
    #[error("the system refuses what an election needs: {0}")]
    System(#[from] io::Error),
    /// Metrics that cannot be made.
    #[error("metrics cannot be made: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The election ended without being asked to.
    #[error(transparent)]
    Election(Arc<ElectionError>),
    /// It has been shut down.
    #[error("the elector was shut down")]
    Ended,
}

/// What an [`Elector`] is started from.
#[derive(Debug)]
pub struct ElectorBuilder {
    lock: String,
    nodes: Vec<Result<NodeSettings, NodeUrlError>>,
    identity: Option<String>,
    wish: Wish,
}

impl ElectorBuilder {
    /// Who this replica is, for people: 1 to 253 letters, digits, `.`, `_` and `-`. By default the host's name and the
    /// process id.
    #[must_use]
    pub fn identity(mut self, identity: &str) -> Self {
        self.identity = Some(identity.to_owned());
        self
    }

    /// The numbers, which are a part of the lock: the same in all replicas. By default a ttl of 8 s.
    #[must_use]
    pub fn timing(mut self, wish: Wish) -> Self {
        self.wish = wish;
        self
    }

    /// The nodes with certificates, or with a password from a file, in place of what was given. Their times follow from
    /// the timing.
    #[must_use]
    pub fn node_settings(mut self, nodes: Vec<NodeSettings>) -> Self {
        self.nodes = nodes.into_iter().map(Ok).collect();
        self
    }

    /// Starts the election, on a thread of its own, and takes part in it from here on.
    ///
    /// # Errors
    /// What is wrong with the lock, the identity, the nodes or the numbers; or a thread that is not to be had. A node
    /// that cannot be reached is no error.
    pub fn start(self) -> Result<Elector, ElectorError> {
        let lock = LockName::parse(&self.lock).map_err(ElectorError::Lock)?;
        let identity = self.identity.unwrap_or_else(crate::config::default_identity);
        let identity = Identity::parse(&identity).map_err(ElectorError::Identity)?;
        let timing = Timing::new(&self.wish).map_err(ElectorError::Timing)?;
        let nodes = nodes(self.nodes, &timing)?;
        let names = Names { lock, identity, nodes: nodes.iter().map(|node| node.url.name()).collect() };
        let metrics = Metrics::new(names.lock.as_str(), names.identity.as_str(), &names.nodes)?;
        let rules = Rules { timing: timing.clone(), guarded: true, app_grace: None, seed: seed()? };
        let (election, watch, requests) = Election::new(names, nodes, rules, metrics.clone());
        let terms = Arc::new(Terms::default());
        let warden = warden::watch_over(Arc::clone(&terms), watch.clone(), requests.clone(), election.tick);
        let end = Mutex::new(End::Running(election.start(warden)?));
        Ok(Elector { terms, requests, watch, metrics, end })
    }
}

fn nodes(given: Vec<Result<NodeSettings, NodeUrlError>>, timing: &Timing) -> Result<Vec<NodeSettings>, ElectorError> {
    let mut nodes: Vec<NodeSettings> = Vec::new();
    for (node, number) in given.into_iter().zip(1..) {
        let mut node = node.map_err(|source| ElectorError::Url { number, source })?;
        if nodes.iter().any(|other| other.url.name() == node.url.name()) {
            return Err(ElectorError::Twice(node.url.name()));
        }
        node.node_timeout = timing.node_timeout();
        node.connect_timeout = timing.connect_timeout();
        node.redial = timing.renew();
        nodes.push(node);
    }
    if nodes.is_empty() { Err(ElectorError::NoNodes) } else { Ok(nodes) }
}

/// One replica's part in an election, within this program.
///
/// It takes part from its start until it is shut down or dropped, whether anybody calls [`Elector::lead`] or only
/// watches. Dropped, it releases what it holds and ends by itself, within about a node timeout; a program that ends at
/// once calls [`Elector::shutdown`] before, or the others wait until the ttl has run out.
pub struct Elector {
    terms: Arc<Terms>,
    requests: mpsc::Sender<Request>,
    watch: Watch,
    metrics: Metrics,
    end: Mutex<End>,
}

/// How the election's thread ended, once it has.
enum End {
    Running(oneshot::Receiver<Result<(), ElectionError>>),
    Ended(Result<(), Arc<ElectionError>>),
}

impl Elector {
    /// What it takes to start one: the lock's name, which is the key on the nodes, and the addresses of independent
    /// nodes: `redis://[user[:password]@]host[:port][/db]`, `rediss://` for TLS, or `unix:///path`.
    pub fn builder(lock: &str, nodes: impl IntoIterator<Item = impl AsRef<str>>) -> ElectorBuilder {
        let read = |url: &dyn AsRef<str>| NodeUrl::parse(url.as_ref()).map(NodeSettings::new);
        let nodes = nodes.into_iter().map(|url| read(&url)).collect();
        ElectorBuilder { lock: lock.to_owned(), nodes, identity: None, wish: Wish::with_ttl(Duration::from_secs(8)) }
    }

    /// All that this replica knows, for whoever wants to follow it. Its value has a deadline, which holds even if the
    /// election hangs.
    #[must_use]
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Whether this replica leads at this very moment. What it decides on that may be late: see the module's limits.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        self.watch.is_leading()
    }

    /// Its metrics in the Prometheus text format, as of now.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.metrics.render(&self.watch.leadership(), self.watch.now(), self.watch.last_tick())
    }

    /// Runs `work` each time that this replica is elected, until once it ends by itself; gives what it ended with.
    ///
    /// The future is dropped, at its next `.await`, as soon as the leadership ends or has only the grace left, so that
    /// nothing of it runs any more at the deadline; only then is the lock released. At the next election `work` is called
    /// anew, with a larger token. When it ends by itself, panics, or this call is dropped, the leadership is given up, and
    /// this replica stands back for a quarter of the ttl.
    ///
    /// At most one call has the leadership; others wait for the next. Needs a tokio runtime with IO enabled, and one
    /// whose threads are not blocked: what cannot be polled cannot be dropped either.
    ///
    /// # Errors
    /// [`ElectorError::Ended`] after a shutdown, and [`ElectorError::Election`] if the election ended by itself.
    pub async fn lead<W, F>(&self, mut work: W) -> Result<F::Output, ElectorError>
    where
        W: FnMut(Token) -> F,
        F: Future,
    {
        let timer = BootTimer::new()?;
        let mut watch = self.watch.clone();
        loop {
            // Dropped after the work, however that ends: it tells that nothing runs any more.
            let term = self.next_term(&mut watch).await?;
            let work = pin!(work(term.token()));
            tokio::select! {
                biased;
                () = term.is_over(&mut watch, &timer) => {}
                output = work => return Ok(output),
            }
        }
    }

    async fn next_term(&self, watch: &mut Watch) -> Result<term::Term, ElectorError> {
        loop {
            let leadership = watch.leadership();
            let belief = leadership.belief.as_ref().filter(|_| leadership.is_leading(watch.now()));
            if let Some(term) = belief.and_then(|belief| Terms::claim(&self.terms, belief.token)) {
                return Ok(term);
            }
            if !watch.changed().await {
                return Err(self.ended().await.err().unwrap_or(ElectorError::Ended));
            }
        }
    }

    /// Steps down in order if it leads: work is dropped, and then the lock is released. No attempt is made for
    /// `stand_back`.
    ///
    /// # Errors
    /// As [`Elector::lead`].
    pub async fn resign(&self, stand_back: Duration) -> Result<(), ElectorError> {
        let sent = self.requests.send(Request::Resign { reason: StepDown::Resign, stand_back }).await;
        if sent.is_ok() {
            return Ok(());
        }
        Err(self.ended().await.err().unwrap_or(ElectorError::Ended))
    }

    /// Steps down in order if it leads, cleans up on the nodes, and takes no part any more. Ends when that is done:
    /// within the stop timeout, two node timeouts and what the work takes to be dropped.
    ///
    /// # Errors
    /// [`ElectorError::Election`] if the election had ended by itself. It may be called again.
    pub async fn shutdown(&self) -> Result<(), ElectorError> {
        // If nobody takes it, the election has ended.
        let _ = self.requests.send(Request::Shutdown).await;
        self.ended().await
    }

    async fn ended(&self) -> Result<(), ElectorError> {
        let mut end = self.end.lock().await;
        if let End::Running(ended) = &mut *end {
            let ended = ended.await.unwrap_or(Err(ElectionError::Lost("election's thread")));
            *end = End::Ended(ended.map_err(Arc::new));
        }
        match &*end {
            End::Ended(Err(why)) => Err(ElectorError::Election(Arc::clone(why))),
            End::Ended(Ok(())) | End::Running(_) => Ok(()),
        }
    }
}

impl Drop for Elector {
    fn drop(&mut self) {
        self.terms.shut_down();
    }
}

impl fmt::Debug for Elector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elector").field("watch", &self.watch).finish_non_exhaustive()
    }
}
