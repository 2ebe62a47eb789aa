//! What a replica says of itself and the lock, as JSON: `/leader`, its stream, and whatever reads them back.

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::clock::{Moment, millis};
use crate::election::leadership::{Holder, Leadership, NodeView};
use crate::redsync::name::{Identity, LockName};
use crate::redsync::reply::Token;
use crate::wall;

/// The number of this form of the report. Fields may be added under the same number, never taken away.
pub const SCHEMA: u32 = 1;

/// Which replica of which lock reports.
#[derive(Clone, Debug)]
pub struct Replica {
    lock: LockName,
    identity: Identity,
    boot_id: Arc<str>,
}

impl Replica {
    /// The replica `identity` of `lock`, on this machine since its present boot.
    ///
    /// # Errors
    /// When the kernel does not tell the boot's id.
    pub fn new(lock: LockName, identity: Identity) -> io::Result<Self> {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Ok(Self { lock, identity, boot_id: boot_id.trim().into() })
    }
}

/// The report. Every field is always there; no owner value and no URL ever is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The lock's name.
    pub lock: String,
    /// Who reports.
    pub identity: String,
    /// What it does now: a word of [`crate::election::leadership::State`].
    pub state: String,
    /// Whether it leads now.
    pub leading: bool,
    /// What it does and why, in one line: as `/readyz` says it.
    pub reason: String,
    /// Who holds the lock, if that is a redleader: the reporter itself only while it leads.
    pub holder: Option<String>,
    /// What sort of program the holder is, if there is one.
    pub holder_kind: Option<HolderKind>,
    /// The fencing token: the reporter's while it leads, else the holder's where it is known.
    pub token: Option<Token>,
    /// When the reporter's leadership began, in wall time to the millisecond, while it leads.
    pub since: Option<String>,
    /// For how many milliseconds the reporter may still believe that it leads; 0 unless it leads.
    pub valid_for_ms: u64,
    /// The end of that, in milliseconds of boot time, which a program on the same machine can compare with its clock.
    pub valid_until_boot_ms: Option<u64>,
    /// The boot that boot times count from.
    pub boot_id: String,
    /// The quarantine in use, in milliseconds.
    pub quarantine_ms: u64,
    /// Nodes needed and nodes there.
    pub quorum: Quorum,
    /// The nodes, in the configured order.
    pub nodes: Vec<Node>,
}

/// What sort of program a holder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HolderKind {
    /// One of ours.
    Redleader,
    /// Another that uses the same key, such as a Redsync client.
    Foreign,
}

/// Nodes needed and nodes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Quorum {
    /// Nodes whose votes are needed.
    pub required: usize,
    /// Nodes that answered when last asked.
    pub reachable: usize,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Its name: `host:port` or its socket's path.
    pub node: String,
    /// Its last answer was an answer.
    pub up: bool,
    /// Its vote: a word of [`crate::election::leadership::Vote`].
    pub vote: String,
    /// For how many milliseconds it surely blocks everyone but the reporter; 0 if it does not.
    pub lease_ms: u64,
    /// For how many milliseconds it still has no vote because it may have forgotten a grant; 0 if it has one.
    pub quarantine_ms: u64,
    /// How long its last answer took, in milliseconds.
    pub latency_ms: Option<f64>,
    /// Why its last answer was no vote: a word of [`crate::redsync::reply::Kind`].
    pub error: Option<String>,
}

impl Report {
    /// The report of `replica` as of `now`.
    #[must_use]
    pub fn of(replica: &Replica, leadership: &Leadership, now: Moment) -> Self {
        let ours = leadership.belief.as_ref().filter(|_| leadership.is_leading(now));
        let other = leadership.holder(now).filter(|_| ours.is_none());
        let (holder, holder_kind) = match (ours, other) {
            (Some(_), _) => (Some(replica.identity.to_string()), Some(HolderKind::Redleader)),
            (None, Some(other)) => describe(other),
            (None, None) => (None, None),
        };
        let since = |moment| humantime::format_rfc3339_millis(wall::time_of(moment, now)).to_string();
        Self {
            schema: SCHEMA,
            lock: replica.lock.to_string(),
            identity: replica.identity.to_string(),
            state: leadership.state(now).as_str().to_owned(),
            leading: ours.is_some(),
            reason: leadership.reason(now),
            holder,
            holder_kind,
            token: ours.map(|belief| belief.token).or_else(|| other.and_then(|other| other.token)),
            since: ours.map(|belief| since(belief.since)),
            valid_for_ms: millis(leadership.valid_for(now)),
            valid_until_boot_ms: ours.map(|belief| belief.deadline.as_millis()),
            boot_id: replica.boot_id.to_string(),
            quarantine_ms: millis(leadership.quarantine),
            quorum: Quorum { required: leadership.quorum, reachable: leadership.reachable() },
            nodes: leadership.nodes.iter().map(|node| Node::of(node, now)).collect(),
        }
    }
}

impl Node {
    fn of(view: &NodeView, now: Moment) -> Self {
        let left = |until: Option<Moment>| until.map_or(0, |until| millis(until.since(now)));
        Self {
            node: view.name.clone(),
            up: view.up,
            vote: view.vote.as_str().to_owned(),
            lease_ms: left(view.lease),
            quarantine_ms: left(view.quarantined_until),
            latency_ms: view.latency.map(|latency| latency.as_micros() as f64 / 1000.0),
            error: view.error.map(|kind| kind.as_str().to_owned()),
        }
    }
}

fn describe(holder: &Holder) -> (Option<String>, Option<HolderKind>) {
    match holder.owner.identity() {
        Some(identity) => (Some(identity.to_owned()), Some(HolderKind::Redleader)),
        None => (None, Some(HolderKind::Foreign)),
    }
}
