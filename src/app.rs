//! The wiring: builds the parts of `run`, watches over them, and ends them in order.
//!
//! Two threads with a runtime each: the election and its nodes on one, HTTP and signals on the other, so that a scrape
//! cannot delay an extend, and `/livez` can see an election that hangs. The first part to end ends the process.

use std::ffi::OsString;
use std::future::ready;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::panic;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{error, info, warn};

use crate::app_ready::{self, AppReady};
use crate::cli::Environment;
use crate::config::{Config, Listen, Work};
use crate::election::driver::{ElectionError, Names};
use crate::election::request::Request;
use crate::election::thread::{Election, Rules, seed};
use crate::election::timing::Timing;
use crate::exec::{CommandError, Ladder, Plan, Program, Wrapper, kill_group_at_once};
use crate::http::{self, BindError, ControlAddress, Endpoints, Listener, Replica};
use crate::kubernetes::{ConnectError, Publishing, Subject};
use crate::leadership_file::LeadershipFile;
use crate::log::LogSettings;
use crate::metrics::Metrics;

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
    /// The Kubernetes API cannot be asked from here.
    #[error(transparent)]
    Kubernetes(#[from] ConnectError),
    /// The system refuses a thread, a runtime, a signal or a socket.
    #[error("the system refuses what {0} needs: {1}")]
    System(&'static str, io::Error),
    /// Metrics that cannot be registered.
    #[error("metrics cannot be registered: {0}")]
    Metrics(#[from] prometheus::Error),
    /// CMD or a hook cannot be run.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A part ended, or did not end when it was asked to.
    #[error("{0}")]
    Lost(&'static str),
}

impl RunError {
    /// The exit code: 64 for what the user can mend, 126 or 127 for a command that cannot be run, 70 for what broke.
    #[must_use]
    pub const fn code(&self) -> u8 {
        match self {
            Self::Bind(_) | Self::Election(ElectionError::Refused(_)) | Self::Kubernetes(_) => 64,
            Self::Command(why) => why.code(),
            Self::Election(_) | Self::System(..) | Self::Metrics(_) | Self::Lost(_) => 70,
        }
    }
}

/// Runs a candidate until SIGTERM or SIGINT, or until its work is done for good. Gives the exit code.
///
/// # Errors
/// When an address cannot be bound, no quorum can ever vote as configured, or a part ends by itself.
pub fn run(config: Config) -> Result<u8, RunError> {
    let Config { lock, nodes, identity, kubernetes, app_ready, .. } = &config;
    let Config { leadership_file, listen, control, timing, work, log, warnings, .. } = &config;
    end_on_panic();
    // Before anybody campaigns: a program that cannot run must not cost a leadership.
    let programs = Programs::find(work)?;
    for warning in warnings {
        warn!(%lock, reason = %warning, "configuration");
    }
    if let Err(why) = http::raise_open_files(OTHER_FILES) {
        warn!(reason = %why, "open files are limited: many connections could starve the election of descriptors");
    }
    let listeners = Listeners::bind(*listen, control.as_ref())?;
    let names = Names {
        lock: lock.clone(),
        identity: identity.clone(),
        nodes: nodes.iter().map(|node| node.url.name()).collect(),
    };
    let metrics = Metrics::new(lock.as_str(), identity.as_str(), &names.nodes)?;
    let rules = Rules {
        timing: timing.clone(),
        guarded: programs.is_any(),
        app_grace: app_ready.as_ref().map(|ready| ready.grace),
        seed: seed().map_err(|why| RunError::System("the election", why))?,
    };
    let (election, watch, requests) = Election::new(names.clone(), nodes.clone(), rules, metrics.clone());
    let replica =
        Replica::new(lock.clone(), identity.clone()).map_err(|why| RunError::System("the status page", why))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|why| RunError::System("the endpoints", why))?;
    let inside = runtime.enter();
    let subject = Subject { lock: lock.clone(), identity: identity.clone(), ttl: timing.ttl() };
    let publish = |settings: &_| Publishing::start(settings, subject, watch.clone(), &metrics);
    let publishing = kubernetes.as_ref().map(publish).transpose()?;
    let routing = publishing.as_ref().and_then(Publishing::routing);
    let endpoints =
        Endpoints { watch, metrics: metrics.clone(), replica, ttl: timing.ttl(), requests: requests.clone(), routing };
    // Before the election: a candidate that a signal ends at once could leave a key behind.
    let signals = Signals::listen().map_err(|why| RunError::System("signals", why))?;
    info!(lock = %names.lock, identity = %names.identity, nodes = %names.nodes.join(","), "started");
    let plan = programs.is_any().then(|| programs.plan(work, timing, environment(&names, listeners.url()), *log));
    let patience = patience(timing, plan.as_ref());
    let work = plan.map(|plan| {
        info!(lock = %names.lock, ladder = %plan.ladder, "work is guarded");
        Wrapper::new(plan, endpoints.watch.clone(), requests.clone())
    });
    let work = work.transpose().map_err(|why| RunError::System("the wrapper", why))?;
    let beside = Beside::start(publishing, app_ready.clone(), leadership_file.clone(), &endpoints);
    drop(inside);
    let election = election.start(ready(())).map_err(|why| RunError::System("the election's thread", why))?;
    let parts = Parts { election, work, beside, listeners, endpoints, requests };
    let ended = runtime.block_on(supervise(parts, signals, patience));
    // Nothing of the child may outlive a process that ends for a fault.
    kill_group_at_once();
    // A look-up of a name that hangs in a thread of its own is not waited for.
    runtime.shutdown_background();
    ended
}

/// How long an ordered shutdown may take before the process ends without it.
fn patience(timing: &Timing, plan: Option<&Plan>) -> Duration {
    let hook = plan.map_or(Duration::ZERO, |plan| plan.ladder.hook_timeout());
    timing.stop_timeout() + timing.handover_delay() + hook + timing.ttl() + timing.node_timeout() * 2 + LAST_WAIT
}

/// What a child finds in its environment, but for the token, which each leadership has of its own.
fn environment(names: &Names, url: Option<String>) -> Environment {
    let mut environment = Environment::without_ours();
    environment.set("REDLEADER_LOCK", names.lock.as_str());
    environment.set("REDLEADER_IDENTITY", names.identity.as_str());
    if let Some(url) = url {
        environment.set("REDLEADER_URL", url);
    }
    environment
}

/// The programs that run while this replica leads, found.
struct Programs {
    child: Option<Program>,
    on_elected: Option<Program>,
    on_stepped_down: Option<Program>,
}

impl Programs {
    fn find(work: &Work) -> Result<Self, CommandError> {
        let find = |what, words: &[OsString]| match words {
            [] => Ok(None),
            words => Program::find(what, words, work.search_path.as_deref()).map(Some),
        };
        Ok(Self {
            child: find("CMD", &work.command)?,
            on_elected: find("--on-elected", &work.on_elected)?,
            on_stepped_down: find("--on-stepped-down", &work.on_stepped_down)?,
        })
    }

    const fn is_any(&self) -> bool {
        self.child.is_some() || self.on_elected.is_some() || self.on_stepped_down.is_some()
    }

    fn plan(self, work: &Work, timing: &Timing, environment: Environment, log: LogSettings) -> Plan {
        Plan {
            child: self.child,
            on_elected: self.on_elected,
            on_stepped_down: self.on_stepped_down,
            ladder: Ladder::new(timing, work.hook_timeout),
            on_exit: work.on_exit,
            on_lost: work.on_lost,
            stop_signal: work.stop_signal,
            environment,
            log_level: log.level,
            is_log_json: log.is_json(),
        }
    }
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

/// What runs until the process ends.
struct Parts {
    election: oneshot::Receiver<Result<(), ElectionError>>,
    work: Option<Wrapper>,
    beside: Beside,
    listeners: Listeners,
    endpoints: Endpoints,
    requests: mpsc::Sender<Request>,
}

/// Watches over all parts, and ends them in order: first the work, then the election, and last who tells of it.
async fn supervise(parts: Parts, mut signals: Signals, patience: Duration) -> Result<u8, RunError> {
    let Parts { mut election, work, beside, listeners, endpoints, requests } = parts;
    let (stop, stopped) = watch::channel(false);
    let mut serving = listeners.serve(&endpoints, &stopped);
    let mut code = work.is_none().then_some(0);
    let mut work = std::pin::pin!(finish(work));
    let asked = tokio::select! {
        ended = &mut election => return Err(lost(ended)),
        Some(ended) = serving.join_next() => {
            let why = ended.map_or_else(io::Error::other, |ended| ended.err().unwrap_or_else(|| io::Error::other("ended")));
            return Err(RunError::System("HTTP", why));
        }
        ended = &mut work, if code.is_none() => {
            code = Some(ended?);
            "the work has ended"
        }
        _ = signals.terminate.recv() => "SIGTERM",
        _ = signals.interrupt.recv() => "SIGINT",
    };
    info!(reason = asked, "stopping");
    let election = async {
        // If it takes no request any more it has ended, which is told by its end.
        let _ = requests.send(Request::Shutdown).await;
        election.await
    };
    let work = async {
        match code {
            Some(code) => Ok(code),
            None => work.await,
        }
    };
    let ended = tokio::time::timeout(patience, async { tokio::join!(election, work) }).await;
    // The lock is released by now, so that this delays nobody but us.
    beside.finish().await;
    // The endpoints tell the end of leadership to the last, and end within a second.
    let _ = stop.send(true);
    while serving.join_next().await.is_some() {}
    match ended {
        Ok((Ok(Ok(())), code)) => code,
        Ok((ended, _)) => Err(lost(ended)),
        Err(_) => Err(RunError::Lost("the election or its work did not end in time when it was asked to")),
    }
}

async fn finish(work: Option<Wrapper>) -> Result<u8, RunError> {
    match work {
        Some(work) => work.run().await.map_err(|why| RunError::System("the wrapper", why)),
        None => Ok(0),
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

/// What asks the app, and what tells of it: nothing here can end the process or hold it up.
struct Beside {
    publishing: Option<Publishing>,
    file: Option<LeadershipFile>,
}

impl Beside {
    /// Must be called inside a tokio runtime.
    fn start(
        publishing: Option<Publishing>,
        app_ready: Option<AppReady>,
        leadership_file: Option<PathBuf>,
        endpoints: &Endpoints,
    ) -> Self {
        if let Some(app_ready) = app_ready {
            tokio::spawn(app_ready::watch(app_ready, endpoints.requests.clone()));
        }
        let Endpoints { watch, metrics, replica, .. } = endpoints;
        let file =
            leadership_file.map(|path| LeadershipFile::start(path, watch.clone(), replica.clone(), metrics.clone()));
        Self { publishing, file }
    }

    /// Tells the last of it, in bounded time.
    async fn finish(self) {
        if let Some(publishing) = self.publishing {
            publishing.finish().await;
        }
        if let Some(file) = self.file {
            file.finish().await;
        }
    }
}

/// What is served where.
struct Listeners {
    public: Option<Listener>,
    control: Option<Listener>,
}

impl Listeners {
    /// Where a process of this machine reaches what is public.
    fn url(&self) -> Option<String> {
        let mut address = self.public.as_ref()?.local_addr()?;
        if address.ip().is_unspecified() {
            address.set_ip(if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
        }
        Some(format!("http://{address}"))
    }

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

/// A panic anywhere is the end of the process, with code 70: a part that is gone must not be outlived by the rest, nor
/// by the child, which is killed first.
fn end_on_panic() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        kill_group_at_once();
        report(info);
        error!(reason = %info, "panicked");
        #[expect(clippy::exit, reason = "a panicked process must not go on, whichever thread it was")]
        std::process::exit(70);
    }));
}
