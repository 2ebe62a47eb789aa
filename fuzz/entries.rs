//! What comes from outside, as functions of what came: none of them may panic, hang, or answer what it must not.
//!
//! The property tests of `tests/it/outside.rs` and the fuzz targets beside this file call the same ones.

use std::ffi::OsString;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::Parser as _;
use redleader::cli::{Cli, Command};
use redleader::clock::Moment;
use redleader::config::{
    CompletionsConfig, Config, ConfigError, DemoConfig, DoctorConfig, DrainConfig, InstallConfig, ResignConfig,
    StatusConfig, WaitConfig,
};
use redleader::election::core::{Core, Setting};
use redleader::election::timing::{Timing, Wish};
use redleader::election::watch::{Publisher, channel};
use redleader::http::{Endpoints, Replica, bind_tcp, control, public, serve};
use redleader::metrics::Metrics;
use redleader::redsync::name::{Identity, LockName, Owner};
use redleader::redsync::reply::{Claim, Ended, Outcome, Verdict, What};
use redleader::redsync::script;
use redleader::redsync::url::NodeUrl;

/// In whatever is made up: no error may repeat it.
pub const SECRET: &str = "S3cr3t";

const TOKEN_LIMIT: u64 = 1 << 53;

/// One of every ask.
pub fn asks() -> [What; 6] {
    let quarantine = Duration::from_millis(1100);
    let owner = Owner::found("a:1");
    let claim = Claim { owner: owner.clone(), ttl: Duration::from_secs(1), token: 7, quarantine };
    [
        What::Look { quarantine },
        What::Observe { quarantine },
        What::Acquire(claim.clone()),
        What::Extend(claim),
        What::Release { owner, token: 7, ended: Ended::Released },
        What::Survey,
    ]
}

/// The bytes that a node sends for an answer, for every ask. What is no whole answer is none.
pub fn reply(bytes: &[u8]) {
    let Ok(value) = redis::parse_redis_value(bytes) else { return };
    for what in asks() {
        check_outcome(&what, &script::outcome(&what, &value));
    }
}

/// What may never come out of an answer, whatever was in it.
pub fn check_outcome(what: &What, outcome: &Outcome) {
    match (what, outcome) {
        (What::Look { .. } | What::Observe { .. } | What::Acquire(_) | What::Extend(_), Outcome::Answer(answer)) => {
            let is_its_own = match answer.verdict {
                Verdict::Granted | Verdict::Held | Verdict::Quarantined | Verdict::Outdated => {
                    matches!(what, What::Acquire(_))
                }
                Verdict::Extended | Verdict::Refilled | Verdict::LostOver | Verdict::LostOwner => {
                    matches!(what, What::Extend(_))
                }
                Verdict::Seen | Verdict::Free => matches!(what, What::Look { .. } | What::Observe { .. }),
                Verdict::Newer => true,
            };
            assert!(is_its_own, "{what:?} is answered {answer:?}");
            let tokens = [answer.token, answer.over, answer.owner_token.unwrap_or(0), answer.time_us];
            assert!(tokens.iter().all(|number| *number < TOKEN_LIMIT), "{answer:?}");
        }
        (What::Release { .. }, Outcome::Released { .. })
        | (What::Survey, Outcome::Survey { .. })
        | (_, Outcome::Failed(_)) => {}
        (what, outcome) => panic!("{what:?} is answered {outcome:?}"),
    }
}

/// A node's URL. What is shown of it holds no password, and what is refused shows nothing.
pub fn url(text: &str) {
    match NodeUrl::parse(text) {
        Ok(url) => {
            let shown = format!("{} {} {url:?}", url.name(), url.fingerprint_source());
            // A socket has a path, and no password.
            let has_password = !url.name().starts_with('/') && text.contains(&format!(":{SECRET}@"));
            let is_shown = has_password && text.matches(SECRET).count() == 1 && shown.contains(SECRET);
            assert!(!is_shown, "{shown}");
            assert!(!url.name().is_empty() && !url.name().contains(char::is_control), "{:?}", url.name());
        }
        Err(error) => assert!(!error.to_string().contains(SECRET), "{error}"),
    }
}

/// A command line, without the program's name. Every fault of a value names its flag, and none repeats a secret.
pub fn config(words: Vec<OsString>) {
    let words = std::iter::once(OsString::from("redleader")).chain(words);
    let Ok(cli) = Cli::try_parse_from(words) else { return };
    let refused = match &cli.command {
        Command::Run(args) => Config::from_args(args).err(),
        Command::Status(args) => StatusConfig::from_args(args).err(),
        Command::Doctor(args) => DoctorConfig::from_args(args).err(),
        Command::Wait(args) => WaitConfig::from_args(args).err(),
        Command::Resign(args) => ResignConfig::from_args(args).err(),
        Command::Drain(args) => DrainConfig::from_args(args).err(),
        Command::Demo(args) => DemoConfig::from_args(args).err(),
        Command::Install(args) => InstallConfig::from_args(args).err(),
        Command::Completions(args) => CompletionsConfig::from_args(args).err(),
        Command::Tied(_) | Command::Guard(_) => None,
    };
    if let Some(error) = refused {
        check_refusal(&error);
    }
}

fn check_refusal(error: &ConfigError) {
    assert!(!error.faults().is_empty());
    for fault in error.faults() {
        let text = fault.to_string();
        let names_it = ["--", "REDLEADER_", "DIRECTORY", "SHELL", "WHAT"].iter().any(|name| text.contains(name));
        assert!(names_it, "names no flag: {text}");
        assert!(!text.contains(SECRET), "shows a secret: {text}");
        assert!(!text.contains('\n'), "more than a line: {text:?}");
    }
}

/// The real accept loops, in this process: for the probes, and for control.
pub struct HttpServer {
    addresses: [SocketAddr; 2],
    panics: Arc<AtomicUsize>,
    _publisher: Publisher,
}

const HTTP_THREAD: &str = "http-from-outside";
const PATIENCE: Duration = Duration::from_secs(30);

impl HttpServer {
    /// On free ports, until the process ends.
    pub fn start() -> Self {
        let panics = Arc::new(AtomicUsize::new(0));
        let (counted, usual) = (Arc::clone(&panics), std::panic::take_hook());
        // A task's panic ends a connection, which looks like any other end of one.
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name() == Some(HTTP_THREAD) {
                counted.fetch_add(1, Ordering::SeqCst);
            }
            usual(info);
        }));
        let identity = Identity::parse("pod-1").expect("a valid identity");
        let nodes = ["a:1", "b:1", "c:1"].map(str::to_owned);
        let ttl = Duration::from_secs(8);
        let setting = Setting {
            identity: identity.clone(),
            nodes: nodes.to_vec(),
            list: String::new(),
            timing: Timing::new(&Wish::with_ttl(ttl)).expect("the defaults fit"),
            guarded: false,
            app_grace: None,
            seed: 1,
        };
        let (publisher, watch) = channel(Core::new(setting, Moment::default()).leadership());
        let metrics = Metrics::new("job", identity.as_str(), &nodes).expect("a valid registry");
        let replica = Replica::new(LockName::parse("job").expect("a valid name"), identity).expect("random numbers");
        let (requests, mut asked) = tokio::sync::mpsc::channel(8);
        let endpoints = Endpoints { watch, metrics, replica, ttl, requests, routing: None };
        let listeners = [0, 1].map(|_| bind_tcp(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port"));
        let addresses = [0, 1].map(|at: usize| listeners[at].local_addr().expect("a TCP socket"));
        let spawned = std::thread::Builder::new().name(HTTP_THREAD.to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let [one, other] = listeners;
            runtime.block_on(async move {
                let (ours, theirs) = (endpoints.clone(), endpoints);
                tokio::join!(
                    serve(one, public(ours), std::future::pending()),
                    serve(other, control(theirs), std::future::pending()),
                    async { while asked.recv().await.is_some() {} }
                )
            })
        });
        spawned.expect("a thread");
        Self { addresses, panics, _publisher: publisher }
    }

    /// Sends these bytes and nothing more, to both: there is an HTTP answer or the connection ends, and nothing panics.
    pub fn feed(&self, bytes: &[u8]) {
        for address in self.addresses {
            let answer = exchange(address, bytes);
            let is_http = answer.starts_with(b"HTTP/1.") || answer.is_empty();
            assert!(is_http, "{:?} is answered {:?}", String::from_utf8_lossy(bytes), String::from_utf8_lossy(&answer));
        }
        assert_eq!(self.panics.load(Ordering::SeqCst), 0, "{:?}", String::from_utf8_lossy(bytes));
    }

    /// Whether it still answers.
    pub fn is_alive(&self) -> bool {
        let request = b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        exchange(self.addresses[0], request).starts_with(b"HTTP/1.1 ")
    }
}

/// All that comes back until the end of the connection. A reset is an end.
fn exchange(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(address).expect("it accepts");
    socket.set_read_timeout(Some(PATIENCE)).expect("a valid time limit");
    socket.set_write_timeout(Some(PATIENCE)).expect("a valid time limit");
    // It may have answered and closed before all is sent.
    let _ = socket.write_all(bytes);
    let _ = socket.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    match socket.read_to_end(&mut answer) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            panic!("no end after {PATIENCE:?}: {:?}", String::from_utf8_lossy(bytes))
        }
        _ => answer,
    }
}
