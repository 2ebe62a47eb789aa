//! A TCP proxy in front of one node, per path: each test says what the network does.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ports::Port;
use super::process::{lock, without_forks};
use super::resp;
use super::wait::{boot_micros, boot_ms, eventually};

/// What happens to everything that passes, open connections included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It passes.
    Pass,
    /// It is swallowed, both ways. A connection that lost bytes stays dead when the mode is changed: a real stream
    /// never loses its middle.
    Blackhole,
    /// Requests arrive and are executed, replies are swallowed. A connection that lost one never gives another.
    DropReplies,
    /// Nothing passes, and everything arrives late when the mode is changed: a partition that heals.
    Stall,
    /// Connections are refused, and the open ones are reset.
    Refuse,
}

/// What a proxy that knows the protocol makes of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Imitation {
    /// It passes.
    Pass,
    /// The client gets this error, in its turn among the replies; the server runs nothing of it.
    Error(String),
    /// The server gets this command in its place.
    Instead(Vec<String>),
    /// The connection ends.
    Close,
}

/// A command's words in, what becomes of it out.
type Judgement = dyn Fn(&[Vec<u8>]) -> Imitation + Send + Sync;

struct Filter(Box<Judgement>);

impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Filter")
    }
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Request,
    /// From the server to the client.
    Reply,
}

/// A message that was read from a connection.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Which connection carried it; the first is 1.
    pub connection: u64,
    /// When it was read, in boot time.
    pub boot_ms: u64,
    /// The command's name in capitals.
    pub name: String,
    /// All words of the command, the name included.
    pub args: Vec<Vec<u8>>,
}

impl Seen {
    /// True if one of its words is exactly this.
    pub fn has(&self, word: &str) -> bool {
        self.args.iter().any(|arg| arg == word.as_bytes())
    }
}

/// The proxy. All its connections are closed on drop.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    inner: Mutex<Inner>,
    changed: Condvar,
    count: AtomicU64,
}

#[derive(Debug)]
struct Inner {
    upstream: String,
    filter: Option<Arc<Filter>>,
    mode: Mode,
    delay: Duration,
    listening: bool,
    ended: bool,
    seen: Vec<Seen>,
    open: Vec<(u64, TcpStream, TcpStream)>,
    holds: Vec<Arc<HoldState>>,
    truncate: Option<usize>,
}

impl Proxy {
    /// A proxy in front of `upstream` (`host:port`) that passes everything.
    pub fn start(upstream: &str) -> Self {
        let port = Port::claim();
        let inner = Inner {
            upstream: upstream.to_owned(),
            filter: None,
            mode: Mode::Pass,
            delay: Duration::ZERO,
            listening: false,
            ended: false,
            seen: Vec::new(),
            open: Vec::new(),
            holds: Vec::new(),
            truncate: None,
        };
        let state = Arc::new(State { inner: Mutex::new(inner), changed: Condvar::new(), count: AtomicU64::new(0) });
        let (address, acceptor) = (port.address(), Arc::clone(&state));
        std::thread::spawn(move || accept(&address, &acceptor));
        let proxy = Self { port, state };
        proxy.wait_listening(true);
        proxy
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.port.address()
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Changes what happens, from this moment on. Returns when a refusing port is closed, or open again.
    pub fn set(&self, mode: Mode) {
        lock(&self.state.inner).mode = mode;
        self.state.changed.notify_all();
        self.wait_listening(mode != Mode::Refuse);
    }

    /// Imitates a proxy that knows the protocol, and not all of it: `filter` is asked of each command from now on.
    pub fn imitate(&self, filter: impl Fn(&[Vec<u8>]) -> Imitation + Send + Sync + 'static) {
        lock(&self.state.inner).filter = Some(Arc::new(Filter(Box::new(filter))));
    }

    /// New connections lead to this server (`host:port`), as after a change of DNS; the open ones are reset.
    pub fn redirect(&self, upstream: &str) {
        lock(&self.state.inner).upstream = upstream.to_owned();
        self.reset();
    }

    /// Everything that is read from now on passes this much later, in each direction.
    pub fn delay(&self, delay: Duration) {
        lock(&self.state.inner).delay = delay;
    }

    /// Resets every open connection (RST, not FIN).
    pub fn reset(&self) {
        for (_, client, server) in lock(&self.state.inner).open.drain(..) {
            reset(&client);
            reset(&server);
        }
    }

    /// Ends the server's half of every open connection: the client reads an end of file, and may still write.
    pub fn half_close(&self) {
        for (_, client, _) in &lock(&self.state.inner).open {
            let _ = client.shutdown(Shutdown::Write);
        }
    }

    /// Lets `bytes` more bytes of the next reply pass, then ends that connection.
    pub fn truncate_next_reply(&self, bytes: usize) {
        lock(&self.state.inner).truncate = Some(bytes);
    }

    /// Holds the next message in this direction that contains `pattern`, and everything behind it on its connection.
    /// The server's half stays open, as in a network that still carries the bytes, even if the client has left.
    pub fn hold(&self, direction: Direction, pattern: &[u8]) -> Hold {
        let hold = Arc::new(HoldState {
            direction,
            pattern: pattern.to_vec(),
            phase: Mutex::new(Phase::Armed),
            changed: Condvar::new(),
        });
        lock(&self.state.inner).holds.push(Arc::clone(&hold));
        Hold(hold)
    }

    /// Every command that was read, in order.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.state.inner).seen.clone()
    }

    /// How many commands of this name were read.
    pub fn count(&self, name: &str) -> usize {
        lock(&self.state.inner).seen.iter().filter(|seen| seen.name == name).count()
    }

    /// Forgets the commands seen.
    pub fn clear(&self) {
        lock(&self.state.inner).seen.clear();
    }

    /// How many connections there ever were.
    pub fn connections(&self) -> u64 {
        self.state.count.load(Ordering::SeqCst)
    }

    /// The ids of the open ones.
    pub fn open(&self) -> Vec<u64> {
        lock(&self.state.inner).open.iter().map(|(id, ..)| *id).collect()
    }

    fn wait_listening(&self, listening: bool) {
        let port = self.port.number();
        eventually(&format!("the proxy on {port} listens: {listening}"), Duration::from_secs(5), || {
            (lock(&self.state.inner).listening == listening).then_some(())
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut inner = lock(&self.state.inner);
        inner.ended = true;
        for (_, client, server) in inner.open.drain(..) {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
        for hold in inner.holds.drain(..) {
            *lock(&hold.phase) = Phase::Let;
            hold.changed.notify_all();
        }
        drop(inner);
        self.state.changed.notify_all();
    }
}

/// A message that is held, or will be.
#[derive(Debug)]
pub struct Hold(Arc<HoldState>);

#[derive(Debug)]
struct HoldState {
    direction: Direction,
    pattern: Vec<u8>,
    phase: Mutex<Phase>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Armed,
    Caught(u64),
    Let,
}

impl Hold {
    /// Waits until a message is held and gives its connection.
    #[track_caller]
    pub fn caught(&self, deadline: Duration) -> u64 {
        let what = format!("a message with {:?} comes by", String::from_utf8_lossy(&self.0.pattern));
        eventually(&what, deadline, || match *lock(&self.0.phase) {
            Phase::Caught(connection) => Some(connection),
            Phase::Armed | Phase::Let => None,
        })
    }

    /// True while a message is held.
    pub fn is_caught(&self) -> bool {
        matches!(*lock(&self.0.phase), Phase::Caught(_))
    }

    /// Lets it go; nothing is held from now on, if nothing was caught.
    pub fn release(self) {
        *lock(&self.0.phase) = Phase::Let;
        self.0.changed.notify_all();
    }
}

/// Accepts until the end; closes the listener while the mode is to refuse.
fn accept(address: &str, state: &Arc<State>) {
    let mut listener: Option<TcpListener> = None;
    loop {
        let (mode, ended) = {
            let inner = lock(&state.inner);
            (inner.mode, inner.ended)
        };
        if ended {
            return;
        }
        if mode == Mode::Refuse {
            without_forks(|| drop(listener.take()));
            let mut inner = lock(&state.inner);
            inner.listening = false;
            for (_, client, server) in inner.open.drain(..) {
                reset(&client);
                reset(&server);
            }
            let _ = state.changed.wait_timeout(inner, Duration::from_millis(20));
            continue;
        }
        let Some(open) = &listener else {
            listener = TcpListener::bind(address).and_then(|new| new.set_nonblocking(true).map(|()| new)).ok();
            lock(&state.inner).listening = listener.is_some();
            continue;
        };
        // A connection wakes it at once; only a change of the mode waits for the tick, and there may be many proxies.
        let tick = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        let _ = poll(&mut [PollFd::new(open, PollFlags::IN)], Some(&tick));
        while let Ok((client, _)) = open.accept() {
            let state = Arc::clone(state);
            std::thread::spawn(move || serve(client, &state));
        }
    }
}

fn serve(client: TcpStream, state: &Arc<State>) {
    let id = state.count.fetch_add(1, Ordering::SeqCst) + 1;
    let _ = client.set_nonblocking(false);
    let _ = client.set_nodelay(true);
    let upstream = lock(&state.inner).upstream.clone();
    let Ok(server) = TcpStream::connect(upstream) else {
        reset(&client);
        return;
    };
    let _ = server.set_nodelay(true);
    let clones = (client.try_clone(), server.try_clone(), client.try_clone(), server.try_clone());
    let (Ok(client2), Ok(server2), Ok(client3), Ok(server3)) = clones else { return };
    let mut inner = lock(&state.inner);
    if inner.mode == Mode::Refuse || inner.ended {
        drop(inner);
        reset(&client);
        return;
    }
    inner.open.push((id, client3, server3));
    drop(inner);
    let requests = Arc::clone(state);
    let request_pump = std::thread::spawn(move || pump(id, Direction::Request, client, server, &requests));
    pump(id, Direction::Reply, server2, client2, state);
    let _ = request_pump.join();
    lock(&state.inner).open.retain(|(open, ..)| *open != id);
}

/// Reads messages from one side; a second thread writes each when it is due.
fn pump(id: u64, direction: Direction, mut from: TcpStream, to: TcpStream, state: &Arc<State>) {
    let (sender, due) = std::sync::mpsc::channel::<(u64, Vec<u8>)>();
    let writing = Arc::clone(state);
    let writer = std::thread::spawn(move || write_when_due(id, direction, &due, to, &writing));
    let mut splitter = Splitter::default();
    let mut chunk = vec![0; 64 * 1024];
    while let Ok(count) = from.read(&mut chunk) {
        if count == 0 {
            break;
        }
        for (mut raw, args) in splitter.push(&chunk[..count]) {
            let mut inner = lock(&state.inner);
            let filter = inner.filter.clone().filter(|_| direction == Direction::Request && !args.is_empty());
            let imitation = filter.map_or(Imitation::Pass, |filter| filter.0(&args));
            let due = boot_micros() + u64::try_from(inner.delay.as_micros()).expect("a short delay");
            if direction == Direction::Request && !args.is_empty() {
                let name = String::from_utf8_lossy(&args[0]).to_ascii_uppercase();
                inner.seen.push(Seen { connection: id, boot_ms: boot_ms(), name, args });
            }
            drop(inner);
            match imitation {
                Imitation::Pass => {}
                Imitation::Error(text) => {
                    raw = resp::command(&["EVAL", "return redis.error_reply(ARGV[1])", "0", &text]);
                }
                Imitation::Instead(words) => {
                    raw = resp::command(&words.iter().map(String::as_str).collect::<Vec<_>>());
                }
                Imitation::Close => {
                    let _ = from.shutdown(Shutdown::Both);
                    break;
                }
            }
            let _ = sender.send((due, raw));
        }
    }
    drop(sender);
    let _ = writer.join();
}

fn write_when_due(
    id: u64,
    direction: Direction,
    due: &std::sync::mpsc::Receiver<(u64, Vec<u8>)>,
    mut to: TcpStream,
    state: &Arc<State>,
) {
    let mut dead = false;
    for (at, raw) in due {
        wait_until_due(at, state);
        dead |= swallows(direction, state);
        if dead {
            continue;
        }
        wait_while_held(id, direction, &raw, state);
        let truncate = match direction {
            Direction::Reply => lock(&state.inner).truncate.take(),
            Direction::Request => None,
        };
        if let Some(bytes) = truncate {
            let _ = to.write_all(&raw[..bytes.min(raw.len())]);
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
        if to.write_all(&raw).is_err() {
            return;
        }
    }
    // A dead connection tells nobody that the other side has left.
    if !dead && !swallows(direction, state) {
        let end = if direction == Direction::Reply { Shutdown::Both } else { Shutdown::Write };
        let _ = to.shutdown(end);
    }
}

fn wait_until_due(at: u64, state: &State) {
    let mut inner = lock(&state.inner);
    loop {
        let now = boot_micros();
        let stalled = inner.mode == Mode::Stall;
        if inner.ended || (now >= at && !stalled) {
            return;
        }
        let left = if stalled { Duration::from_millis(50) } else { Duration::from_micros(at - now) };
        inner = state.changed.wait_timeout(inner, left).map_or_else(|error| error.into_inner().0, |(inner, _)| inner);
    }
}

fn swallows(direction: Direction, state: &State) -> bool {
    match lock(&state.inner).mode {
        Mode::Blackhole => true,
        Mode::DropReplies => direction == Direction::Reply,
        Mode::Pass | Mode::Stall | Mode::Refuse => false,
    }
}

fn wait_while_held(id: u64, direction: Direction, raw: &[u8], state: &State) {
    let hold = {
        let mut inner = lock(&state.inner);
        let contains = |hold: &Arc<HoldState>| {
            hold.direction == direction
                && *lock(&hold.phase) == Phase::Armed
                && raw.windows(hold.pattern.len().max(1)).any(|window| window == hold.pattern)
        };
        let found = inner.holds.iter().position(contains);
        let hold = found.map(|index| Arc::clone(&inner.holds[index]));
        if let Some(hold) = &hold {
            *lock(&hold.phase) = Phase::Caught(id);
        }
        inner.holds.retain(|hold| *lock(&hold.phase) != Phase::Let);
        hold
    };
    let Some(hold) = hold else { return };
    let mut phase = lock(&hold.phase);
    while *phase != Phase::Let {
        phase = hold.changed.wait(phase).unwrap_or_else(std::sync::PoisonError::into_inner);
    }
}

fn reset(stream: &TcpStream) {
    // Sends RST at once, whoever else holds a clone; a shutdown would send FIN first.
    let _ = rustix::net::connect_unspec(stream);
}

/// Cuts a stream into messages; into whatever comes, once it is not the protocol (TLS).
#[derive(Debug, Default)]
struct Splitter {
    buffer: Vec<u8>,
    raw: bool,
}

impl Splitter {
    fn push(&mut self, bytes: &[u8]) -> VecDeque<(Vec<u8>, Vec<Vec<u8>>)> {
        self.buffer.extend_from_slice(bytes);
        let mut messages = VecDeque::new();
        while !self.raw && !self.buffer.is_empty() {
            match resp::parse(&self.buffer) {
                Ok(Some((value, taken))) => {
                    let raw = self.buffer.drain(..taken).collect();
                    messages.push_back((raw, words(&value)));
                }
                Ok(None) => break,
                Err(resp::NotResp) => self.raw = true,
            }
        }
        if self.raw && !self.buffer.is_empty() {
            messages.push_back((std::mem::take(&mut self.buffer), Vec::new()));
        }
        messages
    }
}

pub(super) fn words(value: &resp::Value) -> Vec<Vec<u8>> {
    let bytes = |item: &resp::Value| {
        if let resp::Value::Bulk(Some(bytes)) = item { bytes.clone() } else { item.text().into_bytes() }
    };
    value.list().iter().map(bytes).collect()
}
