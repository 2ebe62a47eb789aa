//! What is asked of a node and what it answers: the values that pass between the core and the client.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::redsync::name::Owner;

/// A node's place in the configured list.
pub type NodeIndex = usize;

/// The fencing token of a leadership; below 2^53.
pub type Token = u64;

/// Which attempt an ask and its reply belong to; looks belong to attempt 0.
pub type AttemptId = u64;

/// The first 12 hex digits of a server's `run_id`: which run of a server answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub u64);

/// Quorum of `nodes` configured nodes, never of the reachable ones.
#[must_use]
pub const fn quorum(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// One question to one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    /// The attempt or leadership that asks; 0 for looks and surveys.
    pub attempt: AttemptId,
    /// The round that it is part of, so that a late reply is told from the current one's.
    pub round: u64,
    /// What is asked.
    pub what: What,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// Who holds, for how long (a standby's).
    Look {
        /// How long a node that may have forgotten has no vote.
        quarantine: Duration,
    },
    /// As a look, writing nothing.
    Observe {
        /// As for a look.
        quarantine: Duration,
    },
    /// Grant the lock.
    Acquire(Claim),
    /// Keep the lock, and put it back where it is missing.
    Extend(Claim),
    /// Give the lock up, and burn the attempt's token.
    Release {
        /// The attempt's owner value.
        owner: Owner,
        /// The largest token asked for.
        token: Token,
        /// Whether a leadership ended, or an attempt.
        ended: Ended,
    },
    /// How many wait on the channel, and with which list of nodes the holder works.
    Survey,
    /// A step of the plain lock, which has one key and no state.
    Plain(Plain),
}

/// What the plain lock asks of one key; go-redsync's locks are the same on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Plain {
    /// The lock's key, verbatim.
    pub key: Arc<str>,
    /// The holder's value.
    pub value: Owner,
    /// What is asked of the key.
    pub step: Step,
}

/// A step of the plain lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Set the key if it is missing.
    Acquire {
        /// The key's expiry.
        ttl: Duration,
    },
    /// Give the key its whole expiry again if it has our value.
    Extend {
        /// The key's expiry.
        ttl: Duration,
        /// Whether to set a key that is missing.
        or_create: bool,
    },
    /// Delete the key if it has our value.
    Release,
    /// Whether the key has our value.
    Compare,
}

/// What an acquire or extend asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The attempt's owner value.
    pub owner: Owner,
    /// The key's expiry.
    pub ttl: Duration,
    /// The fencing token.
    pub token: Token,
    /// How long a node that may have forgotten has no vote.
    pub quarantine: Duration,
}

/// How what is released came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// The attempt never won.
    Aborted,
    /// The leadership is over.
    Released,
}

/// The operation of an ask, as a metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Dial, TLS, AUTH, SELECT, INFO.
    Connect,
    /// A look, an observation or a survey.
    Look,
    /// An acquire.
    Acquire,
    /// An extend.
    Extend,
    /// A release.
    Release,
}

impl Op {
    /// Every operation.
    pub const ALL: [Self; 5] = [Self::Connect, Self::Look, Self::Acquire, Self::Extend, Self::Release];

    /// The label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Look => "look",
            Self::Acquire => "acquire",
            Self::Extend => "extend",
            Self::Release => "release",
        }
    }
}

impl What {
    /// The operation, for metrics.
    #[must_use]
    pub const fn op(&self) -> Op {
        match self {
            Self::Look { .. } | Self::Observe { .. } | Self::Survey => Op::Look,
            Self::Acquire(_) => Op::Acquire,
            Self::Extend(_) => Op::Extend,
            Self::Release { .. } => Op::Release,
            Self::Plain(plain) => plain.step.op(),
        }
    }
}

impl Step {
    const fn op(self) -> Op {
        match self {
            Self::Acquire { .. } => Op::Acquire,
            Self::Extend { .. } => Op::Extend,
            Self::Release => Op::Release,
            Self::Compare => Op::Look,
        }
    }
}

/// One node's reply to one ask. There is exactly one for every ask, late or failed as it may be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reply {
    /// The ask's attempt.
    pub attempt: AttemptId,
    /// The ask's round.
    pub round: u64,
    /// Who answered.
    pub node: NodeIndex,
    /// The ask's operation.
    pub op: Op,
    /// Read before the request was written (or, if it never was, when it was given up).
    pub sent: Moment,
    /// Read after the reply was parsed.
    pub received: Moment,
    /// What it said.
    pub outcome: Outcome,
}

/// What a reply said.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// An acquire's, extend's, look's or observation's answer.
    Answer(Answer),
    /// A release's answer: whether the key was ours and is gone, and the node's TIME in microseconds.
    Released {
        /// The key was there, was ours, and is deleted.
        deleted: bool,
        /// The node's TIME, in microseconds.
        time_us: u64,
    },
    /// A survey's answer.
    Survey {
        /// Subscribers of the lock's channel, where NUMSUB is allowed.
        subscribers: Option<u64>,
        /// The fingerprint of the holder's list of nodes, where the state has one.
        list: Option<String>,
    },
    /// A plain step's answer.
    Plain {
        /// What the key was found to be.
        found: Found,
        /// The run of the server that answered, as of the connect.
        run: RunId,
    },
    /// It was never carried out: a newer ask took its place, or its attempt was over. That says nothing of the node.
    Unsent,
    /// No answer that counts, and why. Whether the request took effect is unknown.
    Failed(Kind),
}

/// What a plain step found at its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    /// Our value: what was asked for is done.
    Ours,
    /// Nothing: it has expired, or was never set.
    Absent,
    /// Somebody else's value; for an acquire any value.
    Other,
}

/// What a script answers (protocol rule 1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// What became of the ask.
    pub verdict: Verdict,
    /// Who owns the lock, as the key or (where the key is missing) the state says.
    pub owner: Option<Owner>,
    /// The owner's token, if the state names the same owner.
    pub owner_token: Option<Token>,
    /// How long until that can change; `None`: the key has no expiry.
    pub left: Option<Duration>,
    /// The largest token granted or burnt on the node.
    pub token: Token,
    /// Every leadership with a token up to this is over.
    pub over: Token,
    /// The ttl of the last grant or extend; zero if there was none.
    pub ttl: Duration,
    /// The node's TIME, in microseconds.
    pub time_us: u64,
    /// The run of the server that answered.
    pub run: RunId,
    /// The node may have forgotten a grant: its vote does not count.
    pub quarantined: bool,
}

/// What became of an ask (protocol rules 1 to 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// acquire: ours.
    Granted,
    /// acquire: another's.
    Held,
    /// acquire: the node may have forgotten a grant.
    Quarantined,
    /// acquire: the token is not larger than the node's.
    Outdated,
    /// extend: still ours.
    Extended,
    /// extend: was missing, is ours again.
    Refilled,
    /// extend: missing, and a later leadership has been here.
    LostOver,
    /// extend: another's.
    LostOwner,
    /// look, observe: somebody holds.
    Seen,
    /// look, observe: nobody holds.
    Free,
    /// any: the state was written by a later version.
    Newer,
}

/// Why an answer is not a vote: the closed table of `surfaces`, one word each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// No answer within the node timeout.
    Timeout,
    /// The host's name gives no address.
    Dns,
    /// Refused, reset, closed, unreachable.
    Connect,
    /// The certificate, or the other side speaks no TLS.
    Tls,
    /// NOAUTH, WRONGPASS.
    Auth,
    /// An ACL right is missing.
    Noperm,
    /// A replica.
    Readonly,
    /// The server is reading its data.
    Loading,
    /// A replica without its master.
    Masterdown,
    /// The server cannot persist and refuses writes.
    Misconf,
    /// Memory is full.
    Oom,
    /// Too few replicas for `min-replicas-to-write`.
    Noreplicas,
    /// A script runs for too long.
    Busy,
    /// A cluster that does not serve.
    Clusterdown,
    /// A shard of a cluster: not an independent node.
    Moved,
    /// The key is somebody else's data.
    Wrongtype,
    /// Too many connections.
    Maxclients,
    /// Too old, or scripts are not to be had.
    Unsupported,
    /// The state was written by a later version.
    NewerState,
    /// The state cannot be read.
    BadState,
    /// The server does not say which run of it answers.
    NoRunId,
    /// Another address of the list is the same server.
    SameNode,
    /// The node's clock stepped, or is far from the others'.
    Clock,
    /// An answer that is no answer to what was asked.
    Protocol,
    /// Anything else.
    Unknown,
}

impl Kind {
    /// Every kind, in the order of the table.
    pub const ALL: [Self; 25] = [
        Self::Timeout,
        Self::Dns,
        Self::Connect,
        Self::Tls,
        Self::Auth,
        Self::Noperm,
        Self::Readonly,
        Self::Loading,
        Self::Masterdown,
        Self::Misconf,
        Self::Oom,
        Self::Noreplicas,
        Self::Busy,
        Self::Clusterdown,
        Self::Moved,
        Self::Wrongtype,
        Self::Maxclients,
        Self::Unsupported,
        Self::NewerState,
        Self::BadState,
        Self::NoRunId,
        Self::SameNode,
        Self::Clock,
        Self::Protocol,
        Self::Unknown,
    ];

    /// The label and log field.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Dns => "dns",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Auth => "auth",
            Self::Noperm => "noperm",
            Self::Readonly => "readonly",
            Self::Loading => "loading",
            Self::Masterdown => "masterdown",
            Self::Misconf => "misconf",
            Self::Oom => "oom",
            Self::Noreplicas => "noreplicas",
            Self::Busy => "busy",
            Self::Clusterdown => "clusterdown",
            Self::Moved => "moved",
            Self::Wrongtype => "wrongtype",
            Self::Maxclients => "maxclients",
            Self::Unsupported => "unsupported",
            Self::NewerState => "newer-state",
            Self::BadState => "bad-state",
            Self::NoRunId => "no-run-id",
            Self::SameNode => "same-node",
            Self::Clock => "clock",
            Self::Protocol => "protocol",
            Self::Unknown => "unknown",
        }
    }

    /// What a person should know and do.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Timeout => "no answer within the node timeout",
            Self::Dns => "the host's name gives no address: check the name in --redis",
            Self::Connect => "refused, closed or unreachable: check the address, the scheme and that the server runs",
            Self::Tls => "TLS failed: check rediss:// against the server, its certificate and --redis-ca-file",
            Self::Auth => "the password or user is wrong: check --redis-username and --redis-password-file",
            Self::Noperm => "the user lacks a right: see the ACL line in the README",
            Self::Readonly => "this is a replica: name the primary",
            Self::Loading => "the server is still reading its data",
            Self::Masterdown => "this is a replica without its primary: name the primary",
            Self::Misconf => "the server cannot persist and refuses writes: see its log",
            Self::Oom => "the server's memory is full: raise maxmemory or use it for locks only",
            Self::Noreplicas => "too few replicas for min-replicas-to-write",
            Self::Busy => "a script of somebody runs for too long",
            Self::Clusterdown => "a cluster that does not serve: cluster shards are no independent nodes",
            Self::Moved => "a shard of a cluster is no independent node: name standalone servers",
            Self::Wrongtype => "the key holds somebody else's data: choose another --lock",
            Self::Maxclients => "the server has too many connections: raise maxclients",
            Self::Unsupported => "the server is older than 5.0, or EVAL is not to be had",
            Self::NewerState => "the state was written by a later redleader: upgrade this one",
            Self::BadState => "the lock's state key cannot be read: see the README on repairing it",
            Self::NoRunId => "INFO gives no run_id, or a proxy spreads commands over servers",
            Self::SameNode => "two addresses of --redis are the same server",
            Self::Clock => "the node's clock stepped, or is far from the others': check NTP there",
            Self::Protocol => "not an answer that Redis gives",
            Self::Unknown => "an answer that is not known, and so no vote",
        }
    }

    /// Whether waiting cannot mend it: the node can never vote as it is configured.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Moved | Self::SameNode | Self::Unsupported | Self::NewerState)
    }

    /// Whether the node can be read and not written: it answers looks and deletes keys, and grants nothing.
    #[must_use]
    pub const fn refuses_writes(self) -> bool {
        matches!(self, Self::Oom | Self::Misconf | Self::Noreplicas | Self::Noperm)
    }
}

/// What a node's connection tells beside replies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NodeEvent {
    /// A connection is up, and this is what INFO said.
    Up {
        /// Which node.
        node: NodeIndex,
        /// The run of the server.
        run: RunId,
        /// The server's `master_replid`, 16 hex digits of it; equal at two addresses: one is the other's replica.
        replid: u64,
        /// A memory limit with a policy that may evict the lock's keys.
        evicts: bool,
    },
    /// No connection, and why.
    Down {
        /// Which node.
        node: NodeIndex,
        /// Why.
        kind: Kind,
    },
}

/// All that comes from the nodes to the core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// A reply to an ask.
    Reply(Reply),
    /// A connection came or went.
    Node(NodeEvent),
}
