//! What a round of one step adds up to.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::redsync::lease::Leases;
use crate::redsync::reply::{Found, Kind, NodeIndex, Outcome, Reply, Step, quorum};
use crate::redsync::tally::{Ballot, Tally};

use super::error::{MutexError, NodeError};

/// The answers of one round, node by node.
#[derive(Debug)]
pub(super) struct Votes {
    nodes: usize,
    ttl: Duration,
    granted: Vec<NodeIndex>,
    taken: Vec<NodeIndex>,
    expired: Vec<NodeIndex>,
    failed: Vec<(NodeIndex, Kind)>,
    tally: Tally,
    leases: Leases,
}

impl Votes {
    pub(super) fn new(nodes: usize, step: Step) -> Self {
        let ttl = match step {
            Step::Acquire { ttl } | Step::Extend { ttl, .. } => ttl,
            Step::Release | Step::Compare => Duration::ZERO,
        };
        Self {
            nodes,
            ttl,
            granted: Vec::new(),
            taken: Vec::new(),
            expired: Vec::new(),
            failed: Vec::new(),
            tally: Tally::new(nodes, quorum(nodes)),
            leases: Leases::new(nodes),
        }
    }

    pub(super) fn count(&mut self, reply: &Reply) {
        let node = reply.node;
        match reply.outcome {
            Outcome::Plain { found: Found::Ours, run } => {
                self.granted.push(node);
                self.tally.cast(node, Ballot::Granted(run));
                self.leases.count(node, run, reply.sent + self.ttl);
            }
            Outcome::Plain { found: Found::Other, .. } => self.taken.push(node),
            Outcome::Plain { found: Found::Absent, .. } => self.expired.push(node),
            Outcome::Failed(kind) => self.failed.push((node, kind)),
            Outcome::Unsent => self.failed.push((node, Kind::Timeout)),
            Outcome::Answer(_) | Outcome::Released { .. } | Outcome::Survey { .. } => {
                self.failed.push((node, Kind::Protocol));
            }
        }
    }

    /// A quorum of different servers granted.
    pub(super) fn is_granted(&self) -> bool {
        self.tally.granted() >= quorum(self.nodes)
    }

    /// More answers cannot change the result.
    pub(super) fn is_decided(&self) -> bool {
        self.is_granted() || self.taken.len() >= quorum(self.nodes)
    }

    /// A quorum can no longer be had by asking again, for that many nodes have said that the key is not ours.
    pub(super) fn is_lost(&self) -> bool {
        self.taken.len() + self.expired.len() > self.nodes - quorum(self.nodes)
    }

    /// Not all nodes have answered: what was asked of the others may still be carried out.
    pub(super) fn has_unknown(&self) -> bool {
        self.granted.len() + self.taken.len() + self.expired.len() < self.nodes
    }

    /// Until when a quorum surely blocks everyone else, by clocks that run alike: counted for each node from before its
    /// request was written, so never later than its own count.
    pub(super) fn until(&self) -> Option<Moment> {
        self.leases.deadline(quorum(self.nodes))
    }

    /// Why there is no quorum.
    pub(super) fn into_error(self, lock: &Arc<str>, names: &[String]) -> MutexError {
        let quorum = quorum(self.nodes);
        let named = |nodes: &[NodeIndex]| nodes.iter().map(|node| names[*node].clone()).collect::<Box<_>>();
        let failed = || self.failed.iter().map(|(node, kind)| NodeError { node: names[*node].clone(), kind: *kind });
        let lock = lock.to_string();
        if self.taken.len() >= quorum {
            MutexError::Taken { lock, nodes: named(&self.taken) }
        } else if self.expired.len() >= quorum {
            MutexError::Expired { lock, nodes: named(&self.expired) }
        } else if self.is_granted() {
            MutexError::Late { lock, nodes: named(&self.granted) }
        } else if self.failed.len() > self.nodes - quorum {
            MutexError::Nodes { lock, failed: failed().collect() }
        } else {
            MutexError::NoQuorum {
                lock,
                required: quorum,
                granted: named(&self.granted),
                taken: named(&self.taken),
                expired: named(&self.expired),
                failed: failed().collect(),
            }
        }
    }
}
