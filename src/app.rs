//! The wiring: builds the parts of `run`, watches over them, and ends them in order.
//!
//! Two threads with a runtime each: the election and its nodes on one, HTTP and signals on the other, so that a scrape
//! cannot delay an extend, and `/livez` can see an election that hangs. The first part to end ends the process.

use std::io;
use std::panic;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{error, info, warn};

use crate::clock;
use crate::config::{Config, Listen};
use crate::election::core::{Core, Setting};
use crate::election::driver::{Driver, ElectionError, Names};
use crate::election::request::Request;
use crate::election::timing::Timing;
use crate::election::watch::{self as leadership_watch, Publisher};
use crate::http::{self, BindError, ControlAddress, Endpoints, Listener, Replica};
use crate::metrics::Metrics;
use crate::redsync::client::Client;
use crate::redsync::node::{NodeSettings, Observer};

/// Requests that may wait for the election: it takes them at once, unless it hangs.
const REQUESTS: usize = 16;

/// Descriptors that are not HTTP's: three connections and a few files a node, runtimes, logs.
const OTHER_FILES: u64 = 256;

/// What a hung election is given beyond its own bounds before the process ends without it.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Why `run` ended without being asked to.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// An address that cannot be served.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The election cannot work as configured, or has ended.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// The system refuses a thread, a runtime, a signal or a socket.
    #[error("the system refuses what {0} needs: {1}")]
    System(&'static str, io::Error),
    /// Metrics that cannot be registered.
    #[error("metrics cannot be registered: {0}")]
    Metrics(#[from] prometheus::Error),
    /// A part ended, or did not end when it was asked to.
    #[error("{0}")]
    Lost(&'static str),
}

impl RunError {
    /// The exit code: 64 for what the user can mend, 70 for what broke.
    #[must_use]
    pub const fn code(&self) -> u8 {
        match self {
            Self::Bind(_) | Self::Election(ElectionError::Refused(_)) => 64,
            Self::Election(_) | Self::System(..) | Self::Metrics(_) | Self::Lost(_) => 70,
        }
    }
}

/// Runs a candidate until SIGTERM or SIGINT.
///
/// # Errors
/// When an address cannot be bound, no quorum can ever vote as configured, or a part ends by itself.
pub fn run(config: Config) -> Result<(), RunError> {
    let Config { lock, nodes, identity, pod: _, listen, control, timing, log: _, warnings } = config;
    end_on_panic();
    for warning in &warnings {
        warn!(%lock, reason = %warning, "configuration");
    }
    if let Err(why) = http::raise_open_files(OTHER_FILES) {
        warn!(reason = %why, "open files are limited: many connections could starve the election of descriptors");
    }
    let listeners = Listeners::bind(listen, control.as_ref())?;
    let names = Names {
        lock: lock.clone(),
        identity: identity.clone(),
        nodes: nodes.iter().map(|node| node.url.name()).collect(),
    };
    let metrics = Metrics::new(lock.as_str(), identity.as_str(), &names.nodes)?;
    let (requests, taken) = mpsc::channel(REQUESTS);
    let setting = Setting {
        identity: identity.clone(),
        nodes: names.nodes.clone(),
        list: crate::redsync::script::fingerprint(nodes.iter().map(|node| &node.url)),
        timing: timing.clone(),
        guarded: false,
        seed: seed().map_err(|why| RunError::System("the election", why))?,
    };
    let core = Core::new(setting, clock::now());
    let (publisher, watch) = leadership_watch::channel(core.leadership());
    let replica = Replica::new(lock, identity).map_err(|why| RunError::System("the status page", why))?;
    let endpoints =
        Endpoints { watch, metrics: metrics.clone(), replica, ttl: timing.ttl(), requests: requests.clone() };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|why| RunError::System("the endpoints", why))?;
    // Before the election: a candidate that a signal ends at once could leave a key behind.
    let signals = runtime.block_on(async { Signals::listen() }).map_err(|why| RunError::System("signals", why))?;
    info!(lock = %names.lock, identity = %names.identity, nodes = %names.nodes.join(","), "started");
    let election = Election { core, nodes, taken, publisher, metrics, names, tick: timing.ttl() / 4 };
    let ended = runtime.block_on(supervise(election.start()?, signals, listeners, endpoints, requests, &timing));
    // A look-up of a name that hangs in a thread of its own is not waited for.
    runtime.shutdown_background();
    ended
}

/// What asks the process to stop.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From here on these signals are ours. Must be called inside a tokio runtime.
    fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }
}

/// Watches over election and endpoints, and ends them in order.
async fn supervise(
    mut election: oneshot::Receiver<Result<(), ElectionError>>,
    mut signals: Signals,
    listeners: Listeners,
    endpoints: Endpoints,
    requests: mpsc::Sender<Request>,
    timing: &Timing,
) -> Result<(), RunError> {
    let (stop, stopped) = watch::channel(false);
    let mut serving = listeners.serve(&endpoints, &stopped);
    let asked = tokio::select! {
        ended = &mut election => return Err(lost(ended)),
        Some(ended) = serving.join_next() => {
            let why = ended.map_or_else(io::Error::other, |ended| ended.err().unwrap_or_else(|| io::Error::other("ended")));
            return Err(RunError::System("HTTP", why));
        }
        _ = signals.terminate.recv() => "SIGTERM",
        _ = signals.interrupt.recv() => "SIGINT",
    };
    info!(reason = asked, "stopping");
    let sent = requests.send(Request::Shutdown).await;
    let bound = timing.stop_timeout() + timing.handover_delay() + timing.ttl() + timing.node_timeout() * 2 + LAST_WAIT;
    let ended = match sent {
        Ok(()) => tokio::time::timeout(bound, election).await,
        Err(_) => Ok(election.await),
    };
    // The endpoints tell the end of leadership to the last, and end within a second.
    let _ = stop.send(true);
    while serving.join_next().await.is_some() {}
    match ended {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(ended) => Err(lost(ended)),
        Err(_) => Err(RunError::Lost("the election did not end in time when it was asked to")),
    }
}

/// An election that ended though nobody asked it to.
fn lost(ended: Result<Result<(), ElectionError>, oneshot::error::RecvError>) -> RunError {
    match ended {
        Ok(Err(why)) => why.into(),
        Ok(Ok(())) => RunError::Lost("the election ended though nobody asked it to"),
        Err(_) => RunError::Lost("the election's thread ended"),
    }
}

/// What the election's thread is built from.
struct Election {
    core: Core,
    nodes: Vec<NodeSettings>,
    taken: mpsc::Receiver<Request>,
    publisher: Publisher,
    metrics: Metrics,
    names: Names,
    tick: Duration,
}

impl Election {
    fn start(self) -> Result<oneshot::Receiver<Result<(), ElectionError>>, RunError> {
        let (sender, receiver) = oneshot::channel();
        thread::Builder::new()
            .name("election".into())
            .spawn(move || {
                // Nobody listens any more only if the process ends.
                let _ = sender.send(self.run());
            })
            .map_err(|why| RunError::System("the election's thread", why))?;
        Ok(receiver)
    }

    fn run(self) -> Result<(), ElectionError> {
        let Self { core, nodes, taken, publisher, metrics, names, tick } = self;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ended = runtime.block_on(async {
            let counted = metrics.clone();
            let observer: Observer = Arc::new(move |node, op, took| counted.node_command(node, op, took));
            let (client, inbox) = Client::start(nodes, &names.lock, &observer, true)?;
            Driver { core, client, inbox, requests: taken, publisher, metrics, names, tick }.run().await
        });
        runtime.shutdown_background();
        ended
    }
}

/// What is served where.
struct Listeners {
    public: Option<Listener>,
    control: Option<Listener>,
}

impl Listeners {
    fn bind(listen: Listen, control: Option<&ControlAddress>) -> Result<Self, BindError> {
        let public = match listen {
            Listen::Off => None,
            Listen::At(address) => Some(http::bind_tcp(address)?),
        };
        let control = control.map(http::bind_control).transpose()?;
        Ok(Self { public, control })
    }

    fn serve(self, endpoints: &Endpoints, stopped: &watch::Receiver<bool>) -> tokio::task::JoinSet<io::Result<()>> {
        let mut serving = tokio::task::JoinSet::new();
        let until = |mut stopped: watch::Receiver<bool>| async move {
            // The sender is dropped only when the process ends.
            let _ = stopped.wait_for(|stopped| *stopped).await;
        };
        if let Some(listener) = self.public {
            serving.spawn(http::serve(listener, http::public(endpoints.clone()), until(stopped.clone())));
        }
        if let Some(listener) = self.control {
            serving.spawn(http::serve(listener, http::control(endpoints.clone()), until(stopped.clone())));
        }
        serving
    }
}

/// A panic anywhere is the end of the process, with code 70: a part that is gone must not be outlived by the rest.
fn end_on_panic() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        report(info);
        error!(reason = %info, "panicked");
        #[expect(clippy::exit, reason = "a panicked process must not go on, whichever thread it was")]
        std::process::exit(70);
    }));
}

fn seed() -> io::Result<u64> {
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(io::Error::other)?;
    Ok(u64::from_le_bytes(seed))
}
