//! All nodes together: asks go out to one node each, and every reply comes back through one inbox. No policy.

use std::io;
use std::sync::Arc;

use tokio::sync::{Notify, mpsc, watch};
use tracing::warn;

use crate::clock::{self, Moment};
use crate::redsync::error::Failure;
use crate::redsync::name::LockName;
use crate::redsync::node::{Node, NodeSettings, Observer, Pending, Shared};
use crate::redsync::reply::{Ask, AttemptId, Input, Kind, NodeIndex, Outcome, Plain, What};
use crate::redsync::script::Scripts;

/// Asks that may wait for a node's task to take them. It takes them at once, whatever its server does.
const ASKS: usize = 8;

/// The same for plain locks, which share their nodes.
const PLAIN_ASKS: usize = 1024;

/// Inputs per node that may wait for the core: every open ask has its reply's place, and there is room for events.
const INPUTS: usize = 64;

/// The asking end. The nodes' tasks end when it is dropped, with whatever is still in flight.
#[derive(Debug)]
pub struct Client {
    nodes: Vec<Asker>,
    inputs: mpsc::Sender<Input>,
    live: watch::Sender<Option<AttemptId>>,
}

#[derive(Debug)]
struct Asker {
    asks: mpsc::Sender<Pending>,
    node_timeout: std::time::Duration,
    said: watch::Receiver<Option<Failure>>,
}

/// The hearing end.
#[derive(Debug)]
pub struct Inbox {
    /// Replies, one for every ask, and what the connections do.
    pub inputs: mpsc::Receiver<Input>,
    /// Set by a release on any node; it stays set until somebody waits for it.
    pub woken: Arc<Notify>,
}

impl Client {
    /// Starts a task for each node, which dials at once. Must be called inside a tokio runtime. `subscribe`: whether to
    /// listen for releases.
    ///
    /// # Errors
    /// When the process may open no more files.
    pub fn start(
        nodes: Vec<NodeSettings>,
        lock: &LockName,
        observer: &Observer,
        subscribe: bool,
    ) -> io::Result<(Self, Inbox)> {
        let scripts = Scripts::new(lock, nodes.iter().map(|node| &node.url));
        Self::launch(nodes, scripts, observer, subscribe, ASKS)
    }

    /// As [`Self::start`], for plain locks of any name.
    ///
    /// # Errors
    /// When the process may open no more files.
    pub(crate) fn start_plain(nodes: Vec<NodeSettings>) -> io::Result<(Self, Inbox)> {
        let observer: Observer = Arc::new(|_, _, _| {});
        Self::launch(nodes, Scripts::plain(), &observer, false, PLAIN_ASKS)
    }

    fn launch(
        nodes: Vec<NodeSettings>,
        scripts: Scripts,
        observer: &Observer,
        subscribe: bool,
        room: usize,
    ) -> io::Result<(Self, Inbox)> {
        let scripts = Arc::new(scripts);
        let (inputs, receiver) = mpsc::channel(INPUTS * nodes.len().max(1));
        let (live, watcher) = watch::channel(None);
        let woken = Arc::new(Notify::new());
        let mut askers = Vec::with_capacity(nodes.len());
        for (index, settings) in nodes.into_iter().enumerate() {
            let (asks, waiting) = mpsc::channel(room);
            let (said, heard) = watch::channel(None);
            askers.push(Asker { asks, node_timeout: settings.node_timeout, said: heard });
            let shared = Shared {
                scripts: scripts.clone(),
                inputs: inputs.clone(),
                live: watcher.clone(),
                observer: observer.clone(),
                said,
                woken: subscribe.then(|| woken.clone()),
            };
            tokio::spawn(Node::new(index, settings, shared, waiting)?.run());
        }
        Ok((Self { nodes: askers, inputs, live }, Inbox { inputs: receiver, woken }))
    }

    /// Asks one node; its one reply comes through the inbox, within the node timeout. Never blocks. The inbox must be
    /// read: an ask for whose reply there is no room is dropped.
    pub fn ask(&self, node: NodeIndex, ask: Ask) {
        let Some(asker) = self.nodes.get(node) else { return };
        self.hand_over(node, ask, clock::now() + asker.node_timeout, &self.inputs);
    }

    /// Asks one node for a step of a plain lock; its one reply comes through `replies`, which must have room for it, by
    /// `deadline`. Never blocks.
    pub(crate) fn ask_plain(&self, node: NodeIndex, plain: Plain, deadline: Moment, replies: &mpsc::Sender<Input>) {
        self.hand_over(node, Ask { attempt: 0, round: 0, what: What::Plain(plain) }, deadline, replies);
    }

    fn hand_over(&self, node: NodeIndex, ask: Ask, deadline: Moment, replies: &mpsc::Sender<Input>) {
        let Some(asker) = self.nodes.get(node) else { return };
        let Ok(place) = replies.clone().try_reserve_owned() else {
            warn!(node, "an ask is dropped: nobody reads the replies");
            return;
        };
        let pending = Pending { ask, deadline, place };
        if let Err(mpsc::error::TrySendError::Full(pending) | mpsc::error::TrySendError::Closed(pending)) =
            asker.asks.try_send(pending)
        {
            pending.give_up(node, Outcome::Failed(Kind::Timeout));
        }
    }

    /// The words of the latest failure of this kind, if it was the node's latest: which right is missing, which type
    /// is in the way. They hold no secret.
    #[must_use]
    pub fn said(&self, node: NodeIndex, kind: Kind) -> Option<String> {
        let said = self.nodes.get(node)?.said.borrow();
        said.as_ref().filter(|failure| failure.kind == kind).map(|failure| failure.text.clone())
    }

    /// Says which attempt or leadership is under way. Acquires and extends of any other that are not written yet never
    /// are, and are answered as timed out (protocol rule 16): so it is said before the first ask of an attempt, and
    /// before its release.
    pub fn set_live(&self, attempt: Option<AttemptId>) {
        self.live.send_replace(attempt);
    }
}
