//! A scripted server, for what no real server shows. Tests that use one say fake in their names.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::ports::Port;
use super::process::lock;
use super::proxy::words;
use super::resp::{self, Value};

/// One command that a client sent.
#[derive(Clone, Debug)]
pub struct Call {
    /// Which connection; the first is 1.
    pub connection: u64,
    /// The command's name in capitals.
    pub name: String,
    /// All words, the name included.
    pub args: Vec<Vec<u8>>,
}

impl Call {
    /// The n-th word as text; the name is 0.
    pub fn word(&self, n: usize) -> String {
        self.args.get(n).map(|arg| String::from_utf8_lossy(arg).into_owned()).unwrap_or_default()
    }
}

/// What the fake does.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Sends these bytes.
    Bytes(Vec<u8>),
    /// Sends these bytes, then ends the connection.
    BytesThenClose(Vec<u8>),
    /// Says nothing, and listens on.
    Silence,
    /// Ends the connection.
    Close,
}

impl Answer {
    /// `+OK`
    pub fn ok() -> Self {
        Self::Bytes(b"+OK\r\n".to_vec())
    }

    /// `-TEXT`
    pub fn error(text: &str) -> Self {
        Self::Bytes(Value::Error(text.to_owned()).encode())
    }

    /// Nil.
    pub fn nil() -> Self {
        Self::Bytes(b"$-1\r\n".to_vec())
    }

    /// `:NUMBER`
    pub fn int(number: i64) -> Self {
        Self::Bytes(Value::Int(number).encode())
    }

    /// A bulk string.
    pub fn bulk(text: &str) -> Self {
        Self::Bytes(Value::Bulk(Some(text.as_bytes().to_vec())).encode())
    }

    /// Any value.
    pub fn value(value: &Value) -> Self {
        Self::Bytes(value.encode())
    }

    /// What INFO says: enough of it to pass for a server of this version, run and role.
    pub fn info(version: &str, run_id: &str, role: &str) -> Self {
        let lines = [
            "# Server".to_owned(),
            format!("redis_version:{version}"),
            "redis_mode:standalone".to_owned(),
            format!("run_id:{run_id}"),
            "# Persistence".to_owned(),
            "loading:0".to_owned(),
            "# Replication".to_owned(),
            format!("role:{role}"),
            "connected_slaves:0".to_owned(),
            format!("master_replid:{}", run_id.chars().rev().collect::<String>()),
            "# Cluster".to_owned(),
            "cluster_enabled:0".to_owned(),
        ];
        Self::bulk(&(lines.join("\r\n") + "\r\n"))
    }
}

/// The fake. Its connections are closed on drop.
pub struct Fake {
    port: Port,
    ended: Arc<AtomicBool>,
    calls: Arc<Mutex<Vec<Call>>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

type Script = dyn Fn(&Call) -> Answer + Send + Sync;

impl Fake {
    /// A fake that answers each command as `script` says.
    pub fn start(script: impl Fn(&Call) -> Answer + Send + Sync + 'static) -> Self {
        let port = Port::claim();
        let listener = TcpListener::bind(port.address()).expect("a claimed port is free");
        let fake = Self {
            port,
            ended: Arc::new(AtomicBool::new(false)),
            calls: Arc::new(Mutex::new(Vec::new())),
            open: Arc::new(Mutex::new(Vec::new())),
        };
        let (ended, calls, open) = (Arc::clone(&fake.ended), Arc::clone(&fake.calls), Arc::clone(&fake.open));
        let script: Arc<Script> = Arc::new(script);
        std::thread::spawn(move || {
            let count = AtomicU64::new(0);
            for stream in listener.incoming() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                lock(&open).extend(stream.try_clone());
                let id = count.fetch_add(1, Ordering::SeqCst) + 1;
                let (calls, script) = (Arc::clone(&calls), Arc::clone(&script));
                std::thread::spawn(move || serve(id, stream, &calls, &*script));
            }
        });
        fake
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.port.address()
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Every command so far.
    pub fn calls(&self) -> Vec<Call> {
        lock(&self.calls).clone()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // Wakes the acceptor, which then sees the end.
        let _ = TcpStream::connect(self.address());
        for stream in lock(&self.open).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn serve(id: u64, mut stream: TcpStream, calls: &Mutex<Vec<Call>>, script: &Script) {
    let _ = stream.set_nodelay(true);
    let mut buffer = Vec::new();
    let mut chunk = [0; 16 * 1024];
    while let Ok(count) = stream.read(&mut chunk) {
        if count == 0 {
            return;
        }
        buffer.extend_from_slice(&chunk[..count]);
        while let Ok(Some((value, taken))) = resp::parse(&buffer) {
            buffer.drain(..taken);
            let args = words(&value);
            let name = args.first().map(|name| String::from_utf8_lossy(name).to_ascii_uppercase()).unwrap_or_default();
            let call = Call { connection: id, name, args };
            lock(calls).push(call.clone());
            let (bytes, close) = match script(&call) {
                Answer::Bytes(bytes) => (bytes, false),
                Answer::BytesThenClose(bytes) => (bytes, true),
                Answer::Silence => (Vec::new(), false),
                Answer::Close => (Vec::new(), true),
            };
            if stream.write_all(&bytes).is_err() || close {
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
        }
    }
}
