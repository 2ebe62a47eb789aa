//! Who takes part: servers that the demonstration starts, or nodes that it was given, and replicas.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::DemoError;
use super::diary::{self, Diary};
use crate::cli::{self, Environment};
use crate::clock::{self, Moment};
use crate::config::{DemoConfig, Target};
use crate::election::timing::Timing;
use crate::http::ControlAddress;
use crate::redsync::name::LockName;
use crate::redsync::node::{NodeSettings, Password, erase};
use crate::redsync::url::{NodeUrl, Secret};

/// Nodes of its own: the fewest that can lose one.
const NODES: usize = 3;
/// In order of what a machine is likelier to have.
const SERVERS: [&str; 2] = ["redis-server", "valkey-server"];
/// Below the range that the kernel takes outgoing ports from: a client that dials the port of a dead server in that
/// range can be connected to itself.
const PORTS: std::ops::Range<u16> = 30_100..32_700;
/// A process that was killed is gone in no time; this is for a machine that hardly gets on.
const END_LIMIT: Duration = Duration::from_secs(10);

/// All processes and nodes of the demonstration.
pub(super) struct Cast {
    began: Moment,
    program: PathBuf,
    pub(super) lock: LockName,
    pub(super) timing: Timing,
    environment: Environment,
    diary: Arc<watch::Sender<Diary>>,
    /// By the index that they have in the diary.
    parts: Vec<Part>,
    pub(super) nodes: Vec<NodeSettings>,
    /// The servers of our own, node by node; none where the nodes were given.
    own: Vec<OwnNode>,
    server: Option<Server>,
    /// Given nodes that may have keys of ours, and whether each answered when the replicas were started.
    written: Vec<(NodeSettings, bool)>,
}

struct Part {
    child: Child,
    control: Option<ControlAddress>,
}

struct OwnNode {
    port: u16,
    actor: usize,
}

/// The server program.
#[derive(Clone)]
struct Server {
    program: &'static str,
    version: String,
    password: Secret,
}

impl Cast {
    /// Nobody yet.
    pub(super) fn new(config: &DemoConfig) -> Result<Self, DemoError> {
        let chance = random_hex().map_err(DemoError::system("random numbers"))?;
        Ok(Self {
            began: clock::now(),
            program: std::env::current_exe().map_err(DemoError::system("the path of this binary"))?,
            lock: LockName::parse(&format!("redleader-demo-{}", &chance[..8])).expect("letters, digits and hyphens"),
            timing: config.timing.clone(),
            environment: config.environment.clone(),
            diary: Arc::new(watch::Sender::default()),
            parts: Vec::new(),
            nodes: config.nodes.clone(),
            own: Vec::new(),
            server: None,
            written: Vec::new(),
        })
    }

    /// How long ago the demonstration began.
    pub(super) fn age(&self) -> Duration {
        clock::now().since(self.began)
    }

    /// What the replicas say.
    pub(super) fn diary(&self) -> watch::Receiver<Diary> {
        self.diary.subscribe()
    }

    /// What `status` and `wait` would look at.
    pub(super) fn target(&self) -> Target {
        Target { lock: self.lock.clone(), nodes: self.nodes.clone(), timing: self.timing.clone() }
    }

    /// Whether the nodes are servers of our own.
    pub(super) fn has_own_nodes(&self) -> bool {
        !self.own.is_empty()
    }

    /// Starts servers, if no nodes were given. Gives the program's name and version.
    pub(super) async fn start_nodes(&mut self) -> Result<Option<String>, DemoError> {
        if !self.nodes.is_empty() {
            return Ok(None);
        }
        let server = Server::find().await?;
        let said = format!("{} {}", server.program, server.version);
        let settings = |port: u16| NodeSettings {
            url: NodeUrl::parse(&format!("redis://127.0.0.1:{port}")).expect("an address and a port"),
            username: None,
            password: Password::Value(server.password.clone()),
            tls: Default::default(),
            node_timeout: self.timing.node_timeout(),
            connect_timeout: self.timing.connect_timeout(),
            redial: self.timing.renew(),
        };
        let ports = free_ports(NODES).map_err(DemoError::system("free ports for three nodes"))?;
        self.nodes = ports.iter().copied().map(settings).collect();
        let urls: Vec<String> = ports.iter().map(|port| format!("redis://127.0.0.1:{port}")).collect();
        self.environment.set("REDLEADER_REDIS", urls.join(","));
        self.environment.set("REDLEADER_REDIS_PASSWORD", server.password.expose());
        self.server = Some(server);
        for port in ports {
            let actor = self.start_server(port).await?;
            self.own.push(OwnNode { port, actor });
        }
        Ok(Some(said))
    }

    /// Kills a server of our own; gives the node's name.
    pub(super) async fn kill_node(&mut self, node: usize) -> Result<String, DemoError> {
        let actor = self.own[node].actor;
        self.kill(actor).await?;
        Ok(self.nodes[node].url.name())
    }

    /// Starts it again, empty, at the same address.
    pub(super) async fn start_node_again(&mut self, node: usize) -> Result<(), DemoError> {
        self.own[node].actor = self.start_server(self.own[node].port).await?;
        Ok(())
    }

    /// Starts a replica: `run` of this binary, with its nodes by the environment, where no other user can read them.
    pub(super) fn start_replica(&mut self, name: &str) -> Result<usize, DemoError> {
        let control = ControlAddress::Abstract(format!("{}-{}", self.lock, self.parts.len()));
        let ttl = format!("{}ms", self.timing.ttl().as_millis());
        let args = ["run", "--lock", self.lock.as_str(), "--identity", name, "--ttl", &ttl, "--listen", "off"];
        let args = args.into_iter().chain(["--log-level", "info", "--log-format", "json"]).map(OsString::from);
        let args = args.chain(["--control".into(), control.to_string().into()]);
        let mut command = self.tied(self.program.as_os_str().to_owned(), args);
        self.environment.apply(command.as_std_mut());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(DemoError::system(format!("replica {name}")))?;
        let output = child.stderr.take().expect("stderr is a pipe");
        Ok(self.add(Part { child, control: Some(control) }, name.to_owned(), output))
    }

    /// Where a replica takes control.
    pub(super) fn control(&self, actor: usize) -> &ControlAddress {
        self.parts[actor].control.as_ref().expect("only replicas are asked")
    }

    /// Sends SIGTERM.
    pub(super) fn ask_to_stop(&mut self, actor: usize) -> Result<(), DemoError> {
        self.diary.send_modify(|diary| diary.let_end(actor));
        let pid = self.parts[actor].child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        match pid {
            Some(pid) => {
                kill_process(pid, Signal::TERM).map_err(|why| DemoError::system("SIGTERM to a replica")(why.into()))
            }
            None => Ok(()),
        }
    }

    /// Kills with -9, and waits until the process is dead. Gives the moment of the kill.
    pub(super) async fn kill(&mut self, actor: usize) -> Result<Moment, DemoError> {
        self.diary.send_modify(|diary| diary.let_end(actor));
        let child = &mut self.parts[actor].child;
        child.start_kill().map_err(DemoError::system("kill -9"))?;
        let killed = clock::now();
        self.wait_end(actor, END_LIMIT).await?;
        Ok(killed)
    }

    /// Waits until a process has ended, and gives its exit status.
    pub(super) async fn wait_end(&mut self, actor: usize, limit: Duration) -> Result<ExitStatus, DemoError> {
        match tokio::time::timeout(limit, self.parts[actor].child.wait()).await {
            Ok(ended) => ended.map_err(DemoError::system("the end of a process")),
            Err(_) => Err(DemoError::InVain { what: "a process ends".to_owned(), limit, reason: String::new() }),
        }
    }

    /// Ends all that runs, at once, and deletes what was written on nodes of others.
    pub(super) async fn end(&mut self) -> Result<(), DemoError> {
        let mut ended = Ok(());
        // Last come, first gone: replicas before the servers that they speak to.
        for actor in (0..self.parts.len()).rev() {
            if !matches!(self.parts[actor].child.try_wait(), Ok(Some(_))) {
                ended = ended.and(self.kill(actor).await.map(drop));
            }
        }
        for (node, answered) in std::mem::take(&mut self.written) {
            let what = format!("the key {} may be left on {}", self.lock.state_key(), node.url.name());
            let erased = erase(&node, &self.lock).await;
            // A node that was not there all along has nothing of ours.
            if answered {
                ended = ended.and(erased.map_err(io::Error::other).map_err(DemoError::system(what)));
            }
        }
        ended
    }

    /// From here on there may be keys of ours on given nodes. `answering`: which of them answer.
    pub(super) fn will_write(&mut self, answering: impl Iterator<Item = bool>) {
        if self.own.is_empty() {
            self.written = self.nodes.iter().cloned().zip(answering).collect();
        }
    }

    fn add(&mut self, part: Part, name: String, output: impl tokio::io::AsyncRead + Unpin + Send + 'static) -> usize {
        self.parts.push(part);
        let mut actor = 0;
        self.diary.send_modify(|diary| actor = diary.open(name));
        tokio::spawn(diary::keep(self.diary.clone(), actor, output));
        actor
    }

    async fn start_server(&mut self, port: u16) -> Result<usize, DemoError> {
        let server = self.server.clone().expect("a server was found before the first node");
        let name = format!("the {} on port {port}", server.program);
        let mut command = self.tied(server.program.into(), ["-".into()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(DemoError::system(name.clone()))?;
        // By its standard input: the password is in no argument and in no file. Without files to keep, it leaves none.
        let settings = format!(
            "bind 127.0.0.1\nport {port}\nrequirepass {}\nsave \"\"\nappendonly no\ndir /\ndaemonize no\n",
            server.password.expose()
        );
        let mut input = child.stdin.take().expect("stdin is a pipe");
        input.write_all(settings.as_bytes()).await.map_err(DemoError::system(name.clone()))?;
        drop(input);
        let output = child.stdout.take().expect("stdout is a pipe");
        Ok(self.add(Part { child, control: None }, name, output))
    }

    /// In a process group of its own, so that a terminal's Ctrl-C reaches this process alone, which then ends the
    /// others in order.
    fn tied(&self, program: OsString, args: impl IntoIterator<Item = OsString>) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(cli::TIED).arg(std::process::id().to_string()).arg(program).args(args);
        command.process_group(0).kill_on_drop(true);
        command
    }
}

impl Server {
    async fn find() -> Result<Self, DemoError> {
        let password = Secret::new(random_hex().map_err(DemoError::system("random numbers"))?);
        for program in SERVERS {
            let asked = Command::new(program).arg("--version").kill_on_drop(true).output();
            let asked = tokio::time::timeout(END_LIMIT, asked).await;
            match asked {
                Ok(Ok(output)) => {
                    let text = String::from_utf8_lossy(&output.stdout);
                    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
                    let version = version.unwrap_or("of an unknown version").to_owned();
                    return Ok(Self { program, version, password });
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(Err(why)) => return Err(DemoError::system(program)(why)),
                Err(_) => {
                    let what = format!("{program} --version");
                    return Err(DemoError::InVain { what, limit: END_LIMIT, reason: String::new() });
                }
            }
        }
        Err(DemoError::NoServer)
    }
}

/// Ports of the loopback address that nobody listens on, from a random one on, so that two demonstrations seldom meet.
fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let mut chance = [0; 2];
    getrandom::fill(&mut chance).map_err(io::Error::other)?;
    let all = PORTS.len();
    let start = usize::from(u16::from_ne_bytes(chance)) % all;
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let ports: Vec<u16> = PORTS.cycle().skip(start).take(all).filter(is_free).take(count).collect();
    if ports.len() == count { Ok(ports) } else { Err(io::ErrorKind::AddrInUse.into()) }
}

fn random_hex() -> io::Result<String> {
    let mut chance = [0; 16];
    getrandom::fill(&mut chance).map_err(io::Error::other)?;
    Ok(chance.iter().map(|byte| format!("{byte:02x}")).collect())
}
