//! Why a lock was not had, kept or given up, and on which nodes.

use std::error::Error;
use std::fmt;
use std::io;

use thiserror::Error;

use crate::redsync::reply::Kind;

/// Why [`Redsync::new`](crate::redsync::Redsync::new) refuses.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SetupError {
    /// Without nodes there is no quorum.
    #[error("no nodes are given: name one, three or five independent Redis servers")]
    NoNodes,
    /// An address that is none. Its text is not shown, for it may hold a password.
    #[error("node {number} of the list {source}")]
    Url {
        /// Which of the list, from 1.
        number: usize,
        /// What is wrong with it.
        source: crate::redsync::url::NodeUrlError,
    },
    /// The same node twice would have two votes.
    #[error("the node {0} is in the list twice: name each server once")]
    Twice(String),
    /// The system refuses a thread, a timer or a socket.
    #[error("the system refuses what the lock's thread needs: {0}")]
    System(#[from] io::Error),
}

/// Why a [`Mutex`](crate::redsync::Mutex) is not locked, extended, unlocked or valid.
///
/// Each row that comes from nodes names them. Where several reasons hold, the first of this list is given; the rest of
/// the answers is in [`MutexError::NoQuorum`] only.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MutexError {
    /// A quorum has somebody else's value: `ErrTaken` of go-redsync.
    #[error("the lock `{lock}` is taken on {}", list(.nodes))]
    #[non_exhaustive]
    Taken {
        /// The lock's name.
        lock: String,
        /// Who said so.
        nodes: Box<[String]>,
    },
    /// A quorum does not have the key any more: it expired, was deleted, or was never set. `ErrLockAlreadyExpired` of
    /// go-redsync for an unlock; there an extend cannot tell it from *taken*.
    #[error("the lock `{lock}` has expired on {}", list(.nodes))]
    #[non_exhaustive]
    Expired {
        /// The lock's name.
        lock: String,
        /// Who said so.
        nodes: Box<[String]>,
    },
    /// A quorum granted, and too late: what was granted was over, but for the drift, when the last answer came.
    #[error("the quorum of {} for the lock `{lock}` came too late to count: raise the expiry", list(.nodes))]
    #[non_exhaustive]
    Late {
        /// The lock's name.
        lock: String,
        /// Who granted.
        nodes: Box<[String]>,
    },
    /// So many nodes failed that the others are no quorum, whatever they say.
    #[error("too many nodes failed for the lock `{lock}`: {}", list(.failed))]
    #[non_exhaustive]
    Nodes {
        /// The lock's name.
        lock: String,
        /// Which, and how.
        failed: Box<[NodeError]>,
    },
    /// No answer reached a quorum: a split vote, or some of everything.
    #[error("no quorum for the lock `{lock}`: {} of {required} granted{}", .granted.len(), rest(.taken, .expired, .failed))]
    #[non_exhaustive]
    NoQuorum {
        /// The lock's name.
        lock: String,
        /// How many would be a quorum.
        required: usize,
        /// Who granted. After a lock, that has been cleaned up.
        granted: Box<[String]>,
        /// Who has somebody else's value.
        taken: Box<[String]>,
        /// Who does not have the key any more.
        expired: Box<[String]>,
        /// Who failed, and how.
        failed: Box<[NodeError]>,
    },
    /// It was cancelled, and cleaned up behind itself.
    #[error("locking `{lock}` was cancelled{}", asked(.nodes))]
    #[non_exhaustive]
    Cancelled {
        /// The lock's name.
        lock: String,
        /// Who had been asked and had not been cleaned up when that was.
        nodes: Box<[String]>,
    },
    /// There is no value to extend, unlock or look for: lock it first, or give the value by `Options::value`.
    #[error("the lock `{lock}` was not locked here and has no value: lock it first")]
    #[non_exhaustive]
    NotLocked {
        /// The lock's name.
        lock: String,
    },
    /// Zero tries: nothing was asked.
    #[error("the lock `{lock}` is given no try: set at least one")]
    #[non_exhaustive]
    NoTries {
        /// The lock's name.
        lock: String,
    },
    /// The value function failed, or gave an empty value; nothing was asked.
    #[error("no value for the lock `{lock}`: {source}")]
    #[non_exhaustive]
    Value {
        /// The lock's name.
        lock: String,
        /// What it said.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The system refuses a timer.
    #[error("the system refuses a timer for the lock `{lock}`: {source}")]
    #[non_exhaustive]
    System {
        /// The lock's name.
        lock: String,
        /// What it said.
        source: io::Error,
    },
}

impl MutexError {
    /// The lock's name.
    #[must_use]
    pub fn lock(&self) -> &str {
        match self {
            Self::Taken { lock, .. }
            | Self::Expired { lock, .. }
            | Self::Late { lock, .. }
            | Self::Nodes { lock, .. }
            | Self::NoQuorum { lock, .. }
            | Self::Cancelled { lock, .. }
            | Self::NotLocked { lock }
            | Self::NoTries { lock }
            | Self::Value { lock, .. }
            | Self::System { lock, .. } => lock,
        }
    }

    /// The nodes that failed, with their reasons; none for the rows that are about answers alone.
    #[must_use]
    pub fn failed(&self) -> &[NodeError] {
        match self {
            Self::Nodes { failed, .. } | Self::NoQuorum { failed, .. } => failed,
            Self::Taken { .. }
            | Self::Expired { .. }
            | Self::Late { .. }
            | Self::Cancelled { .. }
            | Self::NotLocked { .. }
            | Self::NoTries { .. }
            | Self::Value { .. }
            | Self::System { .. } => &[],
        }
    }
}

/// What one node did instead of answering.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{node} ({})", kind.as_str())]
#[non_exhaustive]
pub struct NodeError {
    /// `host:port` or the socket's path, then `/N` for a database other than 0. Never a password.
    pub node: String,
    /// What went wrong there, out of a closed table.
    pub kind: Kind,
}

fn list(items: &[impl fmt::Display]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn rest(taken: &[String], expired: &[String], failed: &[NodeError]) -> String {
    let mut text = String::new();
    for (what, nodes) in [("taken on", list(taken)), ("expired on", list(expired)), ("failed:", list(failed))] {
        if !nodes.is_empty() {
            text.push_str(&format!("; {what} {nodes}"));
        }
    }
    text
}

fn asked(nodes: &[String]) -> String {
    if nodes.is_empty() { String::new() } else { format!("; being cleaned up on {}", list(nodes)) }
}
