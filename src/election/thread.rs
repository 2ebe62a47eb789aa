//! The thread that an election runs on, with its nodes: a runtime of their own, so that nothing else delays an extend.

use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};

use crate::election::core::Core;
use crate::election::driver::{Driver, ElectionError, Names};
use crate::election::request::Request;
use crate::election::watch::Publisher;
use crate::metrics::Metrics;
use crate::redsync::client::Client;
use crate::redsync::node::{NodeSettings, Observer};

/// What the thread is built from.
#[derive(Debug)]
pub struct Election {
    /// Decides.
    pub core: Core,
    /// How each node is reached, in the core's order.
    pub nodes: Vec<NodeSettings>,
    /// What the rest of the process asks for.
    pub taken: mpsc::Receiver<Request>,
    /// What everyone else gets to see.
    pub publisher: Publisher,
    /// Counts.
    pub metrics: Metrics,
    /// Log fields.
    pub names: Names,
    /// The loop turns at least this often.
    pub tick: Duration,
}

impl Election {
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
