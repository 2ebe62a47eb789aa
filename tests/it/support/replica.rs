//! The real binary as a replica: started, watched through its log and its HTTP, stopped in every way.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value as Json;

use super::clock::ShiftedClock;
use super::figures::setting;
use super::http::{HttpConnection, Response, get};
use super::judge::{Term, Track};
use super::metrics::{samples, sum};
use super::network::Network;
use super::ports::Port;
use super::process::{Line, Output, Process, lock, run};
use super::wait::{boot_ms, eventually};

/// The product's binary: `REDLEADER_BIN`, else the one that cargo built for the tests.
pub fn binary() -> PathBuf {
    let built = option_env!("CARGO_BIN_EXE_redleader").map(PathBuf::from);
    setting("REDLEADER_BIN").map(PathBuf::from).or(built).expect("a binary: REDLEADER_BIN, or cargo's own")
}

/// The binary with a planted fault: `REDLEADER_MUTANT_BIN`, which `make test` builds and sets.
pub fn mutant_binary() -> PathBuf {
    setting("REDLEADER_MUTANT_BIN").map(PathBuf::from).expect("REDLEADER_MUTANT_BIN: run the tests by make test")
}

/// How a replica is started.
#[derive(Clone, Debug)]
pub struct ReplicaOptions {
    lock: String,
    identity: String,
    nodes: Vec<String>,
    host: String,
    binary: Option<PathBuf>,
    args: Vec<String>,
    env: Vec<(String, String)>,
    child: Vec<String>,
}

impl ReplicaOptions {
    /// `run --lock LOCK --identity IDENTITY --redis NODES… --listen 127.0.0.1:PORT --log-format json`.
    pub fn new<S: AsRef<str>>(lock: &str, identity: &str, nodes: &[S]) -> Self {
        Self {
            lock: lock.to_owned(),
            identity: identity.to_owned(),
            nodes: nodes.iter().map(|node| node.as_ref().to_owned()).collect(),
            host: "127.0.0.1".to_owned(),
            binary: None,
            args: Vec::new(),
            env: Vec::new(),
            child: Vec::new(),
        }
    }

    /// Further arguments of `run`: `.args(["--ttl", "500ms"])`.
    pub fn args<'a>(mut self, args: impl IntoIterator<Item = &'a str>) -> Self {
        self.args.extend(args.into_iter().map(str::to_owned));
        self
    }

    /// A variable of its environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Another binary than [`binary`].
    pub fn binary(mut self, path: PathBuf) -> Self {
        self.binary = Some(path);
        self
    }

    /// In a network of its own, where it listens.
    pub fn network(mut self, network: &Network) -> Self {
        self.host = network.theirs();
        let program = self.binary.take().unwrap_or_else(binary);
        self.env.extend(network.env(&program));
        self.binary = Some(Network::program());
        self
    }

    /// With clocks of its own, which `clock` moves. Its boot clock is the machine's: it is read past the C library.
    pub fn clock(mut self, clock: &ShiftedClock) -> Self {
        self.env.extend(clock.env());
        self
    }

    /// What comes after `--`.
    pub fn child<'a>(mut self, words: impl IntoIterator<Item = &'a str>) -> Self {
        self.child.extend(words.into_iter().map(str::to_owned));
        self
    }

    /// Starts it; returns at once.
    pub fn start(self) -> Replica {
        Replica::start(self)
    }
}

/// One line of the log.
#[derive(Clone, Debug)]
pub struct LogLine {
    /// When we read it, in boot time.
    pub read_boot_ms: u64,
    /// The whole line.
    pub json: Json,
}

impl LogLine {
    /// A line as it was read.
    pub fn parse(line: &Line) -> Self {
        let json = serde_json::from_str(&line.text).unwrap_or_else(|_| Json::String(line.text.clone()));
        Self { read_boot_ms: line.boot_ms, json }
    }

    /// A field, wherever the formatter puts it; `Null` if it is not there.
    pub fn field(&self, name: &str) -> &Json {
        let places = [&self.json[name], &self.json["fields"][name], &self.json["span"][name]];
        places.into_iter().find(|value| !value.is_null()).unwrap_or(&Json::Null)
    }

    /// A text field; empty if it is not there.
    pub fn text(&self, name: &str) -> &str {
        self.field(name).as_str().unwrap_or_default()
    }

    /// A number, also if it was logged as text.
    pub fn number(&self, name: &str) -> Option<u64> {
        let field = self.field(name);
        field.as_u64().or_else(|| field.as_str()?.parse().ok())
    }

    /// The message.
    pub fn message(&self) -> &str {
        self.text("message")
    }
}

/// A running replica. Killed on drop; its log is printed if the test panics.
#[derive(Debug)]
pub struct Replica {
    identity: String,
    host: String,
    port: Port,
    process: Process,
    binary: PathBuf,
    stopped_at: Mutex<Option<u64>>,
    started_at: u64,
}

impl Replica {
    fn start(options: ReplicaOptions) -> Self {
        let port = Port::claim();
        let binary = options.binary.unwrap_or_else(binary);
        let mut command = Command::new(&binary);
        command.args(["run", "--lock", &options.lock, "--identity", &options.identity]);
        for node in &options.nodes {
            command.args(["--redis", node]);
        }
        let listen = format!("{}:{}", options.host, port.number());
        command.args(["--listen", &listen, "--log-format", "json"]).args(&options.args);
        if !options.child.is_empty() {
            command.arg("--").args(&options.child);
        }
        command.envs(options.env);
        let started_at = boot_ms();
        let process = Process::start(&options.identity, command);
        Self {
            identity: options.identity,
            host: options.host,
            port,
            process,
            binary,
            stopped_at: Mutex::new(None),
            started_at,
        }
    }

    /// Who it is.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// `127.0.0.1:PORT` of its HTTP; another host in a network of its own.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port.number())
    }

    /// `@redleader-PORT`, its control socket by default.
    pub fn control(&self) -> String {
        format!("@redleader-{}", self.port.number())
    }

    /// When it was started, in boot time.
    pub fn started_at(&self) -> u64 {
        self.started_at
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The process itself, for its raw lines.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// GET.
    pub fn get(&self, path: &str) -> std::io::Result<Response> {
        get(&self.address(), path)
    }

    /// A connection to its HTTP that stays open.
    pub fn connect(&self) -> std::io::Result<HttpConnection> {
        HttpConnection::connect(&self.address(), Duration::from_secs(5))
    }

    /// Status and body of `/readyz`; status 0 if nobody answers.
    pub fn readyz(&self) -> (u16, String) {
        self.get("/readyz").map_or((0, String::new()), |response| (response.status, response.body))
    }

    /// True while `/readyz` is 200.
    pub fn leads(&self) -> bool {
        self.readyz().0 == 200
    }

    /// `/leader`; `Null` if nobody answers.
    pub fn leader_json(&self) -> Json {
        self.get("/leader").ok().and_then(|response| serde_json::from_str(&response.body).ok()).unwrap_or(Json::Null)
    }

    /// `/metrics`: each sample as it is printed (`name{label="value"}`), with its value.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        samples(&self.get("/metrics").map(|response| response.body).unwrap_or_default())
    }

    /// The sum of all samples of `redleader_NAME` that carry these labels.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        sum(&self.metrics(), name, labels)
    }

    /// Its log so far.
    pub fn log(&self) -> Vec<LogLine> {
        self.process.stderr().iter().map(LogLine::parse).collect()
    }

    /// Its log from the `index`-th line on.
    pub fn log_from(&self, index: usize) -> Vec<LogLine> {
        self.process.stderr_from(index).iter().map(LogLine::parse).collect()
    }

    /// The log lines with exactly this message.
    pub fn logged(&self, message: &str) -> Vec<LogLine> {
        self.log().into_iter().filter(|line| line.message() == message).collect()
    }

    /// Waits for a log line that `is_it` accepts, from the start of the log.
    #[track_caller]
    pub fn wait_for_log(&self, what: &str, deadline: Duration, is_it: impl Fn(&LogLine) -> bool) -> LogLine {
        let mut read = 0;
        eventually(&format!("{} logs {what}", self.identity), deadline, || {
            let lines = self.process.stderr_from(read);
            read += lines.len();
            lines.iter().map(LogLine::parse).find(&is_it)
        })
    }

    /// Waits for the n-th line (from 1) with exactly this message.
    #[track_caller]
    pub fn wait_for_message(&self, message: &str, n: usize, deadline: Duration) -> LogLine {
        let what = format!("{} logs {message:?} for the {n}. time", self.identity);
        eventually(&what, deadline, || self.logged(message).into_iter().nth(n - 1))
    }

    /// Waits for its n-th election.
    #[track_caller]
    pub fn wait_elected(&self, n: usize, deadline: Duration) -> LogLine {
        self.wait_for_message("elected", n, deadline)
    }

    /// SIGTERM.
    pub fn term(&self) {
        self.process.signal(Signal::TERM);
    }

    /// kill -9; gives the boot time at which it was dead.
    pub fn kill9(&self) -> u64 {
        self.process.kill()
    }

    /// SIGSTOP.
    pub fn stop(&self) {
        self.process.signal(Signal::STOP);
        *lock(&self.stopped_at) = Some(boot_ms());
    }

    /// SIGCONT.
    pub fn cont(&self) {
        *lock(&self.stopped_at) = None;
        self.process.signal(Signal::CONT);
    }

    /// Waits for its end; the exit code, 128 + n for a signal.
    #[track_caller]
    pub fn wait_exit(&self, deadline: Duration) -> i32 {
        self.process.wait_exit(deadline)
    }

    /// True until it has ended.
    pub fn is_running(&self) -> bool {
        self.process.ended().is_none()
    }

    /// Runs another sub-command of the same binary against its control socket: `resign`, `drain`, `status`.
    #[track_caller]
    pub fn command(&self, args: &[&str]) -> Output {
        run(args.first().copied().unwrap_or("redleader"), self.control_command(args), Duration::from_secs(30))
    }

    /// As [`Self::command`], and returns while it runs.
    pub fn begin(&self, args: &[&str]) -> Process {
        Process::start(args.first().copied().unwrap_or("redleader"), self.control_command(args))
    }

    fn control_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(args).args(["--control", &self.control()]);
        command
    }

    /// Its leaderships so far, for the judge.
    pub fn track(&self) -> Track {
        let ended = self.process.ended().map(|(_, at)| at);
        let log = self.log();
        // A stopped process believes nothing that anyone could see, so a kill ends its belief where the stop did.
        let end = match (ended, *lock(&self.stopped_at)) {
            (Some(dead), Some(stopped)) => Some(dead.min(stopped)),
            (dead, _) => dead,
        };
        let terms = terms(&self.identity, &log, end);
        Track { who: format!("{}#{}", self.identity, self.pid()), terms }
    }
}

/// The leaderships that a log tells of. One that it tells no end of ended with the process.
pub fn terms(who: &str, log: &[LogLine], ended: Option<u64>) -> Vec<Term> {
    let mut terms: Vec<Term> = Vec::new();
    for line in log {
        let at = line.number("boot_ms").unwrap_or(line.read_boot_ms);
        let token = line.number("token").unwrap_or(0);
        match line.message() {
            "elected" => terms.push(Term { who: who.to_owned(), token, start: at, end: None }),
            "stepped down" => {
                if let Some(term) = terms.iter_mut().rfind(|term| term.token == token && term.end.is_none()) {
                    term.end = Some(at);
                }
            }
            _ => {}
        }
    }
    for term in terms.iter_mut().filter(|term| term.end.is_none()) {
        term.end = ended.map(|end| end.max(term.start));
    }
    terms
}
