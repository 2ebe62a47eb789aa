//! Asks all nodes, taking no part: nothing is written on them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{self, BootTimer, Moment};
use crate::command::observe::Observation;
use crate::config::Target;
use crate::redsync::client::{Client, Inbox};
use crate::redsync::reply::{Ask, Input, Kind, NodeEvent, NodeIndex, Op, Outcome, Reply, What};

/// Connections to all nodes, for as many observations as wanted.
pub struct Asker {
    client: Client,
    inbox: Inbox,
    timer: BootTimer,
    names: Vec<String>,
    quarantine: Duration,
    patience: Duration,
    round: u64,
    nodes: Vec<Node>,
}

/// What is known of a node.
#[derive(Clone, Default)]
struct Node {
    /// Whether it is connected; `None` while the first dial is under way.
    is_up: Option<bool>,
    /// The last reply.
    reply: Option<Reply>,
    /// Whether that reply is this round's last word.
    is_settled: bool,
}

impl Asker {
    /// Dials all nodes. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// When the process may open no more files.
    pub fn start(target: Target) -> io::Result<Self> {
        let Target { lock, nodes, timing } = target;
        let names: Vec<String> = nodes.iter().map(|node| node.url.name()).collect();
        let (client, inbox) = Client::start(nodes, &lock, &(Arc::new(|_, _, _| {}) as _), false)?;
        Ok(Self {
            client,
            inbox,
            timer: BootTimer::new()?,
            nodes: vec![Node::default(); names.len()],
            names,
            quarantine: timing.quarantine(),
            patience: timing.connect_timeout() + timing.node_timeout(),
            round: 0,
        })
    }

    /// What all nodes say. Waits for the slowest, for as long as a connect and an answer may take, until `limit` at
    /// most.
    ///
    /// # Errors
    /// None that a valid timer can give; the kernel's word is passed on.
    pub async fn observe(&mut self, limit: Option<Moment>) -> io::Result<Observation> {
        self.round += 1;
        for node in 0..self.nodes.len() {
            self.nodes[node].is_settled = false;
            self.ask(node);
        }
        let patience = clock::now() + self.patience;
        self.hear_until(limit.map_or(patience, |limit| limit.min(patience)), true).await?;
        let replies: Vec<Option<Reply>> = self.nodes.iter().map(|node| node.reply.clone()).collect();
        Ok(Observation::new(&self.names, &replies))
    }

    /// Lets time pass until `moment`.
    ///
    /// # Errors
    /// None that a valid timer can give; the kernel's word is passed on.
    pub async fn pause(&mut self, moment: Moment) -> io::Result<()> {
        self.hear_until(moment, false).await
    }

    /// Takes what the nodes say until `moment`, or until nothing more is expected.
    async fn hear_until(&mut self, moment: Moment, only_while_unsettled: bool) -> io::Result<()> {
        self.timer.arm(moment)?;
        while !(only_while_unsettled && self.nodes.iter().all(|node| node.is_settled)) {
            tokio::select! {
                biased;
                Some(input) = self.inbox.inputs.recv() => self.handle_input(input),
                fired = self.timer.fired() => return fired,
            }
        }
        Ok(())
    }

    fn handle_input(&mut self, input: Input) {
        match input {
            Input::Reply(reply) if reply.round == self.round => {
                let node = &mut self.nodes[reply.node];
                // Given up while the first dial is under way: the dial may last longer than one request.
                node.is_settled = node.is_up.is_some() || matches!(reply.outcome, Outcome::Answer(_));
                node.reply = Some(reply);
            }
            Input::Reply(_) => {}
            Input::Node(NodeEvent::Up { node, .. }) => {
                let was_asked_too_early = self.nodes[node].is_up.is_none() && self.nodes[node].reply.is_some();
                self.nodes[node].is_up = Some(true);
                if was_asked_too_early && !self.nodes[node].is_settled {
                    self.ask(node);
                }
            }
            Input::Node(NodeEvent::Down { node, kind }) => {
                let is_first_word = self.nodes[node].is_up.is_none();
                self.nodes[node].is_up = Some(false);
                if is_first_word {
                    self.nodes[node].reply = Some(self.failed(node, kind));
                    self.nodes[node].is_settled = true;
                }
            }
        }
    }

    fn ask(&self, node: NodeIndex) {
        let what = What::Observe { quarantine: self.quarantine };
        self.client.ask(node, Ask { attempt: 0, round: self.round, what });
    }

    /// A dial's failure in the form of a reply.
    fn failed(&self, node: NodeIndex, kind: Kind) -> Reply {
        let now = clock::now();
        let outcome = Outcome::Failed(kind);
        Reply { attempt: 0, round: self.round, node, op: Op::Connect, sent: now, received: now, outcome }
    }
}
