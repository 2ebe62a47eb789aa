//! A fake before a real node: everything is passed on and takes effect there, and the answers to acquires are spoilt.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use crate::support::resp::{Client, Value};
use crate::support::{Answer, Call, Fake, Proxy};

const PATIENCE: Duration = Duration::from_secs(20);

/// How an acquire's answer is spoilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Reset,
    HalfReply,
    Timeout,
    Loading,
    Error,
    Nil,
    Array,
    Zero,
    LargeBulk,
}

impl Way {
    /// Every one.
    pub const ALL: [Self; 9] = [
        Self::Reset,
        Self::HalfReply,
        Self::Timeout,
        Self::Loading,
        Self::Error,
        Self::Nil,
        Self::Array,
        Self::Zero,
        Self::LargeBulk,
    ];

    /// For identities and figures.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::HalfReply => "half-reply",
            Self::Timeout => "timeout",
            Self::Loading => "loading",
            Self::Error => "error",
            Self::Nil => "nil",
            Self::Array => "array",
            Self::Zero => "zero",
            Self::LargeBulk => "large-bulk",
        }
    }
}

/// What the fake does, and has done.
pub struct Spoiler {
    way: Way,
    upstream: String,
    /// Looks are told that nobody has the node.
    pub lies: AtomicBool,
    /// Answers to acquires are spoilt.
    pub spoils: AtomicBool,
    /// Answers that were spoilt.
    pub spoilt: AtomicUsize,
    /// Spoilt answers that would have been grants.
    pub grants: AtomicUsize,
    /// Connections that have swallowed an answer: they never give another, as a hung server would not.
    silent: Mutex<BTreeSet<u64>>,
    upstreams: Mutex<BTreeMap<u64, Client>>,
    proxy: OnceLock<Weak<Proxy>>,
}

/// The fake, behind a proxy that can reset its connections.
pub struct Middleman {
    /// What it does.
    pub spoiler: Arc<Spoiler>,
    proxy: Arc<Proxy>,
    _fake: Fake,
}

impl Middleman {
    /// Stands before `upstream` (`host:port`), spoils, and does not lie.
    pub fn start(way: Way, upstream: &str) -> Self {
        let spoiler = Arc::new(Spoiler {
            way,
            upstream: upstream.to_owned(),
            lies: AtomicBool::new(false),
            spoils: AtomicBool::new(true),
            spoilt: AtomicUsize::new(0),
            grants: AtomicUsize::new(0),
            silent: Mutex::new(BTreeSet::new()),
            upstreams: Mutex::new(BTreeMap::new()),
            proxy: OnceLock::new(),
        });
        let script = Arc::clone(&spoiler);
        let fake = Fake::start(move |call| script.answer(call));
        let proxy = Arc::new(Proxy::start(&fake.address()));
        spoiler.proxy.set(Arc::downgrade(&proxy)).expect("set once");
        Self { spoiler, proxy, _fake: fake }
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        self.proxy.url()
    }
}

impl Spoiler {
    fn answer(&self, call: &Call) -> Answer {
        let reply = self.pass_on(call);
        let Some(reply) = reply else { return Answer::Close };
        // The number of words tells the scripts apart: seven a look, eight a release, twelve an acquire; an extend
        // has twelve too, and a contender that never leads sends none.
        let is_script = matches!(call.name.as_str(), "EVALSHA" | "EVAL");
        let answer = match call.args.len() {
            12 if is_script && !reply.is_error() && self.spoils.load(Ordering::SeqCst) => {
                self.spoilt.fetch_add(1, Ordering::SeqCst);
                let is_grant = reply.list().first().is_some_and(|verdict| verdict.text() == "granted");
                self.grants.fetch_add(usize::from(is_grant), Ordering::SeqCst);
                self.spoil(call.connection, &reply)
            }
            7 if is_script && self.lies.load(Ordering::SeqCst) => Answer::value(&free_instead(reply)),
            _ => Answer::value(&reply),
        };
        if lock(&self.silent).contains(&call.connection) { Answer::Silence } else { answer }
    }

    fn pass_on(&self, call: &Call) -> Option<Value> {
        let words: Vec<String> = (0..call.args.len()).map(|n| call.word(n)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let open = lock(&self.upstreams).remove(&call.connection);
        let mut client = open.or_else(|| Client::tcp(&self.upstream, PATIENCE).ok())?;
        let reply = client.call(&words).ok()?;
        lock(&self.upstreams).insert(call.connection, client);
        Some(reply)
    }

    fn spoil(&self, connection: u64, reply: &Value) -> Answer {
        match self.way {
            Way::Reset => {
                let proxy = self.proxy.get().and_then(Weak::upgrade);
                proxy.inspect(|proxy| proxy.reset());
                Answer::Close
            }
            Way::HalfReply => {
                let bytes = reply.encode();
                Answer::BytesThenClose(bytes[..bytes.len() / 2].to_vec())
            }
            Way::Timeout => {
                lock(&self.silent).insert(connection);
                Answer::Silence
            }
            Way::Loading => Answer::error("LOADING Redis is loading the dataset in memory"),
            Way::Error => Answer::error("ERR something went wrong"),
            Way::Nil => Answer::nil(),
            Way::Array => Answer::value(&Value::Array(Some(vec![Value::Simple("OK".to_owned()), Value::Int(1)]))),
            Way::Zero => Answer::int(0),
            Way::LargeBulk => Answer::bulk(&"x".repeat(1024 * 1024)),
        }
    }
}

/// A look's answer that says that nobody has the node.
fn free_instead(reply: Value) -> Value {
    let Value::Array(Some(mut fields)) = reply else { return reply };
    if fields.len() == 10 {
        let text = |text: &str| Value::Bulk(Some(text.as_bytes().to_vec()));
        (fields[0], fields[1], fields[2], fields[3]) = (text("free"), text(""), text(""), text("0"));
    }
    Value::Array(Some(fields))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
