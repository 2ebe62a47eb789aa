//! Real servers: started, hung, killed, and started again at the same address.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::certs::Certificates;
use super::clock::ShiftedClock;
use super::figures::setting;
use super::monitor::Monitor;
use super::ports::Port;
use super::process::Process;
use super::resp::{Client, Value};
use super::temp::TempDir;
use super::wait::{boot_micros, eventually};

/// For one command of the harness: far above what a loaded machine needs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Redis 7.0, the distribution's.
    Redis70,
    /// Redis 6.2.
    Redis62,
    /// Valkey 9.
    Valkey9,
}

impl Flavour {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Redis70, Self::Redis62, Self::Valkey9];

    /// For names of figures.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Redis70 => "redis-7.0",
            Self::Redis62 => "redis-6.2",
            Self::Valkey9 => "valkey-9",
        }
    }

    fn program(self) -> PathBuf {
        let program = match self {
            Self::Redis70 => return PathBuf::from("redis-server"),
            Self::Redis62 => cache().join("redis-6.2/redis-server"),
            Self::Valkey9 => cache().join("valkey-9/valkey-server"),
        };
        assert!(program.exists(), "{} is missing: run tests/setup", program.display());
        program
    }
}

/// Where `tests/setup` puts what it fetches and builds.
pub fn cache() -> PathBuf {
    let home = || setting("HOME").map(|home| Path::new(&home).join(".cache/redleader"));
    setting("REDLEADER_CACHE").map(PathBuf::from).or_else(home).expect("HOME or REDLEADER_CACHE is set")
}

/// How a server is started.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    password: Option<String>,
    tls: Option<Certificates>,
    ipv6: bool,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

impl ServerOptions {
    /// No password, no TLS, nothing persistent.
    pub fn new() -> Self {
        Self::default()
    }

    /// With `requirepass`.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// TLS on its port in place of plain TCP; the harness's own commands keep to the unix socket.
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        self.tls = Some(certificates.clone());
        self
    }

    /// Listens on `::1` too.
    pub fn ipv6(mut self) -> Self {
        self.ipv6 = true;
        self
    }

    /// With a wall clock of its own, which `clock` moves.
    pub fn clock(mut self, clock: &ShiftedClock) -> Self {
        self.env.extend(clock.env());
        self
    }

    /// Further arguments, as on the command line: `.args(["--maxmemory", "2mb"])`.
    pub fn args<'a>(mut self, args: impl IntoIterator<Item = &'a str>) -> Self {
        self.args.extend(args.into_iter().map(str::to_owned));
        self
    }
}

/// What a restarted server remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// What it had on disk: the append-only file, or what `SAVE` wrote.
    Kept,
    /// Nothing.
    Lost,
}

/// One server. Killed on drop.
#[derive(Debug)]
pub struct Server {
    flavour: Flavour,
    options: ServerOptions,
    directory: TempDir,
    port: Port,
    process: Option<Process>,
}

impl Server {
    /// Starts one on a free port and waits until it answers.
    pub fn start(flavour: Flavour, options: ServerOptions) -> Self {
        for _ in 0..5 {
            let (directory, port) = (TempDir::new(), Port::claim());
            let mut server = Self { flavour, options: options.clone(), directory, port, process: None };
            if server.launch() {
                return server;
            }
        }
        panic!("{} did not start five times, on five ports", flavour.as_str());
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.port.address()
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `redis://127.0.0.1:PORT`, or `rediss://localhost:PORT`; never with the password.
    pub fn url(&self) -> String {
        match &self.options.tls {
            None => format!("redis://{}", self.address()),
            Some(_) => format!("rediss://localhost:{}", self.port()),
        }
    }

    /// `unix://PATH` of its unix socket.
    pub fn unix_url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Its unix socket, which every server has beside its port.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("s")
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// Kills it with -9.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }

    /// Hangs it: connections are accepted by the kernel, nothing answers.
    pub fn stop(&self) {
        self.process().signal(Signal::STOP);
    }

    /// Wakes it.
    pub fn cont(&self) {
        self.process().signal(Signal::CONT);
    }

    /// Kills it if it runs, and starts it at the same address.
    pub fn restart(&mut self, data: Data) {
        self.kill();
        self.start_again(data);
    }

    /// Starts it after [`Self::kill`].
    pub fn start_again(&mut self, data: Data) {
        if data == Data::Lost {
            let _ = std::fs::remove_file(self.directory.join("dump.rdb"));
            let _ = std::fs::remove_dir_all(self.directory.join("appendonlydir"));
            let _ = std::fs::remove_file(self.directory.join("appendonly.aof"));
        }
        assert!(self.launch(), "{} does not start again on port {}", self.flavour.as_str(), self.port());
    }

    /// Sends a command over the unix socket; errors of the server are values.
    #[track_caller]
    pub fn cli(&self, args: &[&str]) -> Value {
        match self.try_cli(args) {
            Ok(value) => value,
            Err(error) => panic!("{args:?} to the server on port {}: {error}", self.port()),
        }
    }

    /// As [`Self::cli`], for servers that may be gone.
    pub fn try_cli(&self, args: &[&str]) -> std::io::Result<Value> {
        self.client()?.call(args)
    }

    /// A connection over the unix socket, authenticated.
    pub fn client(&self) -> std::io::Result<Client> {
        let mut client = Client::unix(&self.socket(), PATIENCE)?;
        if let Some(password) = &self.options.password {
            client.call(&["AUTH", password])?;
        }
        Ok(client)
    }

    /// Watches what it executes.
    pub fn monitor(&self) -> Monitor {
        Monitor::start(self.client().expect("a running server"))
    }

    /// When this key will be gone, in microseconds of boot time: surely not before the first, surely by the second. The
    /// server counts in whole milliseconds, and a key is gone when its last one is over.
    pub fn free_between(&self, key: &str) -> (u64, u64) {
        let before = boot_micros();
        let left = self.cli(&["PTTL", key]).int().expect("PTTL answers a number");
        let after = boot_micros();
        assert!(left != -1, "{key} has no expiry on the server on port {}", self.port());
        let Ok(left) = u64::try_from(left) else { return (0, after) };
        (before + left * 1000, after + left * 1000 + 1000)
    }

    /// Its own log, for messages.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("the test killed this server and did not start it again")
    }

    /// Starts the process; false if it ended at once, as it does when the port was taken by a stranger.
    fn launch(&mut self) -> bool {
        let _ = std::fs::remove_file(self.socket());
        let process = Process::start(self.flavour.as_str(), self.command());
        self.process = Some(process);
        let process = self.process();
        eventually("the server answers on its socket", Duration::from_secs(20), || {
            if process.ended().is_some() {
                println!("{} ended at its start: {}", self.flavour.as_str(), self.log());
                return Some(false);
            }
            // LOADING and NOAUTH are answers, too.
            let listens = std::net::TcpStream::connect(self.address()).is_ok();
            (listens && self.try_cli(&["PING"]).is_ok()).then_some(true)
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.flavour.program());
        let port = self.port().to_string();
        let (plain, encrypted) = if self.options.tls.is_some() { ("0", port.as_str()) } else { (port.as_str(), "0") };
        command.args(["--port", plain, "--bind", "127.0.0.1"]);
        if self.options.ipv6 {
            command.arg("::1");
        }
        command.arg("--unixsocket").arg(self.socket()).arg("--dir").arg(self.directory.path());
        command.arg("--logfile").arg(self.directory.join("log"));
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        match self.flavour {
            Flavour::Redis62 => {}
            Flavour::Redis70 | Flavour::Valkey9 => {
                command.args(["--enable-debug-command", "yes"]);
            }
        }
        if let Some(password) = &self.options.password {
            command.args(["--requirepass", password]);
        }
        if let Some(tls) = &self.options.tls {
            command.args(["--tls-port", encrypted, "--tls-auth-clients", "optional"]);
            command.arg("--tls-cert-file").arg(tls.server_cert()).arg("--tls-key-file").arg(tls.server_key());
            command.arg("--tls-ca-cert-file").arg(tls.ca());
        }
        command.args(&self.options.args).envs(self.options.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Several servers.
#[derive(Debug)]
pub struct Servers(Vec<Server>);

impl Servers {
    /// `count` plain Redis 7.0 servers.
    pub fn start(count: usize) -> Self {
        Self::of(Flavour::Redis70, count)
    }

    /// `count` plain servers of one flavour.
    pub fn of(flavour: Flavour, count: usize) -> Self {
        Self((0..count).map(|_| Server::start(flavour, ServerOptions::new())).collect())
    }

    /// Their URLs.
    pub fn urls(&self) -> Vec<String> {
        self.0.iter().map(Server::url).collect()
    }

    /// Their addresses.
    pub fn addresses(&self) -> Vec<String> {
        self.0.iter().map(Server::address).collect()
    }

    /// How many of them hold exactly this value at the key.
    pub fn holding(&self, key: &str, value: &str) -> usize {
        self.0.iter().filter(|server| server.try_cli(&["GET", key]).is_ok_and(|held| held.text() == value)).count()
    }

    /// When a quorum of them will have let this key expire, in microseconds of boot time: surely not before the first,
    /// surely by the second. A key that is missing is free already.
    pub fn free_between(&self, key: &str) -> (u64, u64) {
        let mut ends: Vec<(u64, u64)> = self.0.iter().map(|server| server.free_between(key)).collect();
        let quorum = ends.len() / 2;
        let mut nth = |pick: fn(&(u64, u64)) -> u64| {
            ends.sort_unstable_by_key(pick);
            pick(&ends[quorum])
        };
        (nth(|end| end.0), nth(|end| end.1))
    }

    /// How many connections of each wait for a release of this lock: every replica that runs has one.
    pub fn listening(&self, lock: &str) -> Vec<usize> {
        let channel = format!("redleader:{lock}");
        let count = |answer: Value| answer.list().get(1).and_then(Value::int).and_then(|count| count.try_into().ok());
        self.0.iter().map(|server| count(server.cli(&["PUBSUB", "NUMSUB", &channel])).unwrap_or(0)).collect()
    }

    /// The value at the key on each, `None` where it is missing or nobody answers.
    pub fn values(&self, key: &str) -> Vec<Option<String>> {
        let value = |server: &Server| server.try_cli(&["GET", key]).ok().filter(|held| !held.is_nil());
        self.0.iter().map(|server| value(server).map(|held| held.text())).collect()
    }
}

impl std::ops::Deref for Servers {
    type Target = [Server];
    fn deref(&self) -> &[Server] {
        &self.0
    }
}

impl std::ops::DerefMut for Servers {
    fn deref_mut(&mut self) -> &mut [Server] {
        &mut self.0
    }
}
