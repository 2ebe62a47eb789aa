//! The nodes behind all locks of a program: one thread of their own, and rounds of one question to each.
//!
//! The thread is there so that a lock does not depend on its caller: it works under every executor, an extend is in
//! time while the caller's threads are busy, and what a dropped future leaves behind is cleaned up without it.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::clock;
use crate::redsync::client::Client;
use crate::redsync::name::Owner;
use crate::redsync::node::NodeSettings;
use crate::redsync::reply::{Input, NodeIndex, Plain, Step};

use super::error::SetupError;
use super::votes::Votes;

/// All nodes. When the last lock is gone, the thread ends as soon as nothing is left to clean up.
#[derive(Debug)]
pub(super) struct Nodes {
    client: Client,
    runtime: Handle,
    names: Vec<String>,
    node_timeout: Duration,
}

/// One question to every node, in this order.
pub(super) struct Question<'a> {
    pub(super) order: &'a [NodeIndex],
    pub(super) key: &'a Arc<str>,
    pub(super) value: &'a str,
    pub(super) step: Step,
    /// For each node's answer.
    pub(super) timeout: Duration,
}

impl Nodes {
    /// Starts the thread, which dials all nodes at once.
    pub(super) fn start(settings: Vec<NodeSettings>) -> Result<Arc<Self>, SetupError> {
        let names: Vec<String> = settings.iter().map(|node| node.url.name()).collect();
        if let Some((_, name)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            return Err(SetupError::Twice(name.clone()));
        }
        let node_timeout = settings.iter().map(|node| node.node_timeout).max().ok_or(SetupError::NoNodes)?;
        let (client, runtime) = spawn(settings)?;
        Ok(Arc::new(Self { client, runtime, names, node_timeout }))
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// How long an answer is waited for where no option says it.
    pub(super) const fn node_timeout(&self) -> Duration {
        self.node_timeout
    }

    /// Runs something on the thread.
    pub(super) fn spawn<T: Send + 'static>(&self, job: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(job)
    }

    /// Asks all nodes and counts until every one has answered or failed, or, if `is_hasty`, a quorum says the same.
    pub(super) async fn ask(&self, question: &Question<'_>, is_hasty: bool) -> Votes {
        let mut votes = Votes::new(self.names.len(), question.step);
        let mut replies = self.send(question);
        while let Some(input) = replies.recv().await {
            if let Input::Reply(reply) = input {
                votes.count(&reply);
            }
            if is_hasty && votes.is_decided() {
                break;
            }
        }
        votes
    }

    /// Asks all nodes without waiting for an answer. The answers end when each node has given one.
    pub(super) fn send(&self, question: &Question<'_>) -> mpsc::Receiver<Input> {
        let (sender, replies) = mpsc::channel(self.names.len());
        let deadline = clock::now() + question.timeout;
        let plain = Plain { key: question.key.clone(), value: Owner::found(question.value), step: question.step };
        for node in question.order {
            self.client.ask_plain(*node, plain.clone(), deadline, &sender);
        }
        replies
    }
}

/// The thread ends when the client and all nodes' tasks have: then nobody can write into the inbox any more.
fn spawn(settings: Vec<NodeSettings>) -> io::Result<(Client, Handle)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let (started, client) = std::sync::mpsc::sync_channel(1);
    thread::Builder::new().name("redsync".into()).spawn(move || {
        runtime.block_on(async {
            match Client::start_plain(settings) {
                Ok((client, mut inbox)) => {
                    // The starter waits for it.
                    let _ = started.send(Ok(client));
                    while inbox.inputs.recv().await.is_some() {}
                }
                Err(error) => drop(started.send(Err(error))),
            }
        });
        // A look-up of a name that hangs is not waited for.
        runtime.shutdown_background();
    })?;
    // Within what a thread needs to start: nothing is dialled yet.
    let client = client.recv().map_err(|_| io::Error::other("the thread ended at its start"))??;
    Ok((client, handle))
}
