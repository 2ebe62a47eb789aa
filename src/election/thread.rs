//! The thread that an election runs on, with its nodes: a runtime of their own, so that nothing else delays an extend.

use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};

use crate::clock;
use crate::election::core::{Core, Setting};
use crate::election::driver::{Driver, ElectionError, Names};
use crate::election::request::Request;
use crate::election::timing::Timing;
use crate::election::watch::{self, Publisher, Watch};
use crate::metrics::Metrics;
use crate::redsync::client::Client;
use crate::redsync::node::{NodeSettings, Observer};
use crate::redsync::script::fingerprint;

/// What the thread is built from.
#[derive(Debug)]
pub struct Election {
    /// Decides.
    core: Core,
    /// How each node is reached, in the core's order.
    nodes: Vec<NodeSettings>,
    /// What the rest of the process asks for.
    taken: mpsc::Receiver<Request>,
    /// What everyone else gets to see.
    publisher: Publisher,
    /// Counts.
    metrics: Metrics,
    /// Log fields.
    names: Names,
    /// The loop turns at least this often.
    pub(super) tick: Duration,
}

/// Requests that may wait for the election: it takes them at once, unless it hangs.
const REQUESTS: usize = 16;

/// What an election is made of, beside its names and nodes.
#[derive(Debug)]
pub struct Rules {
    /// The numbers.
    pub timing: Timing,
    /// Work has to be told to stop, and has to say that it has.
    pub guarded: bool,
    /// For how long nobody must have led before a replica with a sick app does; `None`: it is not asked for its app.
    pub app_grace: Option<Duration>,
    /// Of the jitter.
    pub seed: u64,
}

impl Election {
    /// Puts it together; what is seen of it, and how it is asked for something.
    #[must_use]
    pub fn new(
        names: Names,
        nodes: Vec<NodeSettings>,
        rules: Rules,
        metrics: Metrics,
    ) -> (Self, Watch, mpsc::Sender<Request>) {
        let Rules { timing, guarded, app_grace, seed } = rules;
        // Within a quarter of the ttl whatever depends on the time alone is told.
        let tick = timing.ttl() / 4;
        let list = fingerprint(nodes.iter().map(|node| &node.url));
        let (identity, known) = (names.identity.clone(), names.nodes.clone());
        let setting = Setting { identity, nodes: known, list, timing, guarded, app_grace, seed };
        let core = Core::new(setting, clock::now());
        let (requests, taken) = mpsc::channel(REQUESTS);
        let (publisher, watch) = watch::channel(core.leadership());
        (Self { core, nodes, taken, publisher, metrics, names, tick }, watch, requests)
    }

    /// Starts the thread; how the election ended comes through the channel. `beside` runs on the same thread until then.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start(
        self,
        beside: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<oneshot::Receiver<Result<(), ElectionError>>> {
        let (sender, receiver) = oneshot::channel();
        thread::Builder::new().name("election".into()).spawn(move || {
            // Nobody listens any more only if the process ends.
            let _ = sender.send(self.run(beside));
        })?;
        Ok(receiver)
    }

    fn run(self, beside: impl Future<Output = ()> + Send + 'static) -> Result<(), ElectionError> {
        let Self { core, nodes, taken, publisher, metrics, names, tick } = self;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let ended = runtime.block_on(async {
            tokio::spawn(beside);
            let counted = metrics.clone();
            let observer: Observer = Arc::new(move |node, op, took| counted.node_command(node, op, took));
            let (client, inbox) = Client::start(nodes, &names.lock, &observer, true)?;
            Driver { core, client, inbox, requests: taken, publisher, metrics, names, tick }.run().await
        });
        // A look-up of a name that hangs in a thread of its own is not waited for.
        runtime.shutdown_background();
        ended
    }
}

/// A seed for the jitter, from the system's generator.
///
/// # Errors
/// When there is none.
pub fn seed() -> io::Result<u64> {
    getrandom::u64().map_err(io::Error::other)
}
