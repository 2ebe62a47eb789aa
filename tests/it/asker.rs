//! The client under test, on a runtime of its own: a test asks, and takes replies and events as they come.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use redleader::redsync::client::Client;
use redleader::redsync::name::{LockName, Owner};
use redleader::redsync::node::{NodeSettings, Password, TlsFiles};
use redleader::redsync::reply::{
    Answer, Ask, AttemptId, Claim, Ended, Input, Kind, NodeEvent, NodeIndex, Outcome, Reply, Token, Verdict, What,
};
use redleader::redsync::url::NodeUrl;

/// Far above every timeout that is asserted.
const PATIENCE: Duration = Duration::from_secs(10);

/// A node as the tests reach it: 300 ms per ask, 1 s per connect, dialled again after 500 ms.
pub fn settings(url: &str) -> NodeSettings {
    NodeSettings {
        url: NodeUrl::parse(url).unwrap(),
        username: None,
        password: Password::None,
        tls: TlsFiles::default(),
        node_timeout: Duration::from_millis(300),
        connect_timeout: Duration::from_secs(1),
        redial: Duration::from_millis(500),
    }
}

/// What an acquire or extend asks for, with the tests' ttl of 500 ms and quarantine of 200 ms.
pub fn claim(owner: &str, token: Token) -> Claim {
    Claim { owner: Owner::found(owner), ttl: Duration::from_millis(500), token, quarantine: Duration::from_millis(200) }
}

pub fn acquire(owner: &str, token: Token) -> What {
    What::Acquire(claim(owner, token))
}

pub fn extend(owner: &str, token: Token) -> What {
    What::Extend(claim(owner, token))
}

pub fn release(owner: &str, token: Token, ended: Ended) -> What {
    What::Release { owner: Owner::found(owner), token, ended }
}

pub fn look() -> What {
    What::Look { quarantine: Duration::from_millis(200) }
}

pub fn observe() -> What {
    What::Observe { quarantine: Duration::from_millis(200) }
}

enum Order {
    Ask(NodeIndex, Ask),
    Live(Option<AttemptId>),
}

/// The client, and what came out of it and was not taken yet.
pub struct Asker {
    orders: tokio::sync::mpsc::UnboundedSender<Order>,
    inputs: Receiver<Input>,
    replies: Vec<Reply>,
    events: Vec<NodeEvent>,
    rounds: u64,
    wakes: Arc<AtomicU64>,
}

impl Asker {
    pub fn start(lock: &str, nodes: Vec<NodeSettings>) -> Self {
        let lock = LockName::parse(lock).unwrap();
        let (orders, mut to_do) = tokio::sync::mpsc::unbounded_channel();
        let (out, inputs) = std::sync::mpsc::channel();
        let wakes = Arc::new(AtomicU64::new(0));
        let woken = Arc::clone(&wakes);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let (client, mut inbox) = Client::start(nodes, &lock, &(Arc::new(|_, _, _| {}) as _), true).unwrap();
                loop {
                    tokio::select! {
                        order = to_do.recv() => match order {
                            Some(Order::Ask(node, ask)) => client.ask(node, ask),
                            Some(Order::Live(attempt)) => client.set_live(attempt),
                            None => return,
                        },
                        Some(input) = inbox.inputs.recv() => drop(out.send(input)),
                        () = inbox.woken.notified() => { woken.fetch_add(1, Ordering::SeqCst); }
                    }
                }
            });
            // A look-up that hangs must not hold the test.
            runtime.shutdown_background();
        });
        Self { orders, inputs, replies: Vec::new(), events: Vec::new(), rounds: 0, wakes }
    }

    /// One node, and its first event is that it is up.
    pub fn connected(lock: &str, settings: NodeSettings) -> Self {
        let mut asker = Self::start(lock, vec![settings]);
        let event = asker.event();
        assert!(matches!(event, NodeEvent::Up { .. }), "{event:?}");
        asker
    }

    /// Sends without waiting; gives the round to wait for.
    pub fn send(&mut self, attempt: AttemptId, what: What) -> u64 {
        self.rounds += 1;
        self.orders.send(Order::Ask(0, Ask { attempt, round: self.rounds, what })).ok().unwrap();
        self.rounds
    }

    pub fn set_live(&self, attempt: Option<AttemptId>) {
        self.orders.send(Order::Live(attempt)).ok().unwrap();
    }

    /// The reply to a round.
    #[track_caller]
    pub fn reply(&mut self, round: u64) -> Reply {
        loop {
            if let Some(at) = self.replies.iter().position(|reply| reply.round == round) {
                return self.replies.remove(at);
            }
            assert!(self.take(PATIENCE), "no reply to round {round}");
        }
    }

    /// The next event of the node.
    #[track_caller]
    pub fn event(&mut self) -> NodeEvent {
        loop {
            if !self.events.is_empty() {
                return self.events.remove(0);
            }
            assert!(self.take(PATIENCE), "no event");
        }
    }

    /// The kind of the next event, which must be that the node is down.
    #[track_caller]
    pub fn down(&mut self) -> Kind {
        let event = self.event();
        let NodeEvent::Down { kind, .. } = event else { panic!("{event:?}") };
        kind
    }

    /// Waits until the node is up, whatever is told of it before.
    #[track_caller]
    pub fn wait_up(&mut self) {
        while !matches!(self.event(), NodeEvent::Up { .. }) {}
    }

    /// Asks and waits, as an attempt that is under way.
    #[track_caller]
    pub fn ask(&mut self, what: What) -> Outcome {
        self.set_live(Some(1));
        let round = self.send(1, what);
        self.reply(round).outcome
    }

    /// As [`Self::ask`], for what a script answers in full.
    #[track_caller]
    pub fn answer(&mut self, what: What) -> Answer {
        match self.ask(what) {
            Outcome::Answer(answer) => answer,
            other @ (Outcome::Released { .. }
            | Outcome::Survey { .. }
            | Outcome::Plain { .. }
            | Outcome::Unsent
            | Outcome::Failed(_)) => {
                panic!("{other:?}")
            }
        }
    }

    #[track_caller]
    pub fn verdict(&mut self, what: What) -> Verdict {
        self.answer(what).verdict
    }

    #[track_caller]
    pub fn failure(&mut self, what: What) -> Kind {
        match self.ask(what) {
            Outcome::Failed(kind) => kind,
            other @ (Outcome::Released { .. }
            | Outcome::Survey { .. }
            | Outcome::Plain { .. }
            | Outcome::Unsent
            | Outcome::Answer(_)) => {
                panic!("{other:?}")
            }
        }
    }

    /// Whether the key was deleted.
    #[track_caller]
    pub fn deleted(&mut self, what: What) -> bool {
        match self.ask(what) {
            Outcome::Released { deleted, .. } => deleted,
            other @ (Outcome::Answer(_)
            | Outcome::Survey { .. }
            | Outcome::Plain { .. }
            | Outcome::Unsent
            | Outcome::Failed(_)) => {
                panic!("{other:?}")
            }
        }
    }

    /// How often it was woken.
    pub fn wakes(&self) -> u64 {
        self.wakes.load(Ordering::SeqCst)
    }

    fn take(&mut self, patience: Duration) -> bool {
        match self.inputs.recv_timeout(patience) {
            Ok(Input::Reply(reply)) => self.replies.push(reply),
            Ok(Input::Node(event)) => self.events.push(event),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return false,
        }
        true
    }
}
