//! What can be found, what it costs, and what to do about it: a closed table.

use crate::redsync::reply::Kind;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// It works, and is not as it should be.
    Warning,
    /// A node's vote is void, or the whole must not be used like this.
    Refused,
}

impl Severity {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Refused => "refused",
        }
    }
}

/// What can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// The node has no vote, and why.
    Void(Kind),
    /// Memory is full.
    Memory,
    /// The quarantine in use is too short for the holder's ttl.
    Quarantine,
    /// The planned list is not next to this one.
    Next,
    /// A policy that may evict the lock's keys.
    Eviction,
    /// Replicas that may be promoted without the latest grants.
    Replicas,
    /// The clock stepped.
    ClockStep,
    /// The clock is off.
    ClockOffset,
    /// The clock runs at another rate.
    ClockRate,
    /// Nothing survives a restart.
    AppendOnly,
    /// One or two nodes.
    FewNodes,
    /// An even number of nodes.
    EvenNodes,
    /// All of them fail together.
    OneHost,
    /// Releases are not heard.
    Channel,
    /// Scripts may not ask INFO.
    ScriptInfo,
    /// EVALSHA is not to be had.
    Evalsha,
    /// A lock key without an expiry.
    NoExpiry,
    /// A lock key of somebody else.
    Foreign,
    /// The holder has another list.
    List,
    /// The holder has another ttl.
    Ttl,
    /// The node has no vote yet.
    Quarantined,
    /// The Kubernetes API cannot be asked.
    Kubernetes,
    /// The service account lacks rights.
    Rights,
}

impl Problem {
    /// The word for scripts.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Void(kind) => kind.as_str(),
            Self::Memory => "oom",
            Self::Quarantine => "quarantine-short",
            Self::Next => "next",
            Self::Eviction => "eviction",
            Self::Replicas => "replicas",
            Self::ClockStep => "clock-step",
            Self::ClockOffset => "clock-offset",
            Self::ClockRate => "clock-rate",
            Self::AppendOnly => "appendonly",
            Self::FewNodes => "few-nodes",
            Self::EvenNodes => "even-nodes",
            Self::OneHost => "one-host",
            Self::Channel => "channel",
            Self::ScriptInfo => "script-info",
            Self::Evalsha => "evalsha",
            Self::NoExpiry => "no-expiry",
            Self::Foreign => "foreign",
            Self::List => "list",
            Self::Ttl => "ttl",
            Self::Quarantined => "quarantined",
            Self::Kubernetes => "kubernetes",
            Self::Rights => "rights",
        }
    }

    pub(super) const fn severity(self) -> Severity {
        match self {
            Self::Void(_) | Self::Quarantine | Self::Next => Severity::Refused,
            Self::Memory
            | Self::Eviction
            | Self::Replicas
            | Self::ClockStep
            | Self::ClockOffset
            | Self::ClockRate
            | Self::AppendOnly
            | Self::FewNodes
            | Self::EvenNodes
            | Self::OneHost
            | Self::Channel
            | Self::ScriptInfo
            | Self::Evalsha
            | Self::NoExpiry
            | Self::Foreign
            | Self::List
            | Self::Ttl
            | Self::Quarantined
            | Self::Kubernetes
            | Self::Rights => Severity::Warning,
        }
    }

    /// What it can cost.
    pub(super) const fn cost(self) -> &'static str {
        match self {
            Self::Void(Kind::SameNode) => "two votes for one server could make two leaders, so it has one",
            Self::Void(Kind::Clock) => "tokens could go back if all nodes lost their data, so its vote is void",
            Self::Void(_) => "its vote is void, and one failure less is tolerated",
            Self::Memory => "a new leader gets no vote there; the present one can go on",
            Self::Quarantine => "two can lead after a restart of nodes",
            Self::Next => "two can lead while both lists are in use",
            Self::Eviction => "the lock can be evicted, and its vote is lost until the next renewal",
            Self::Replicas => "a promoted replica has no vote for one quarantine",
            Self::ClockStep => "a key may end early or late, so its vote is void for one quarantine",
            Self::ClockOffset => "beyond half a quarantine its vote is void",
            Self::ClockRate => "beyond the clock margin two can lead",
            Self::AppendOnly => "safe, but a restart costs its vote for one quarantine",
            Self::FewNodes => "one node down, and nobody leads",
            Self::EvenNodes => "one node more than needed can fail the quorum",
            Self::OneHost => "they fail together, and then nobody leads",
            Self::Channel => "a hand-over waits for timers: up to ttl/2 in place of milliseconds",
            Self::ScriptInfo => "safe, but a restart is noticed only with the connection",
            Self::Evalsha => "safe, but each request carries a whole script",
            Self::NoExpiry => "it never ends by itself, so its vote is void",
            Self::Foreign => "excluded with Redsync's guarantee only, not after an empty restart",
            Self::List => "two can lead if the lists differ by more than one node",
            Self::Ttl => "the quarantine grows to the larger ttl",
            Self::Quarantined => "its vote does not count yet: it may have forgotten a grant",
            Self::Kubernetes | Self::Rights => "leadership goes on, and Kubernetes is not told of it",
        }
    }

    /// What to do.
    pub(super) const fn remedy(self) -> &'static str {
        match self {
            Self::Void(kind) => mend(kind),
            Self::Memory => "raise maxmemory, or use the server for locks only",
            Self::Quarantine => "raise --quarantine on every replica first",
            Self::Next => "change one node at a time, or stop all replicas for one quarantine",
            Self::Eviction => "set maxmemory-policy noeviction, or use the server for locks only",
            Self::Replicas => "set min-replicas-to-write 1, or detach the replicas: a lock needs none",
            Self::ClockStep => "let NTP slew and not step there",
            Self::ClockOffset => "check NTP there",
            Self::ClockRate => "check the machine's clock, or raise --clock-margin everywhere",
            Self::AppendOnly => "set appendonly yes (everysec is enough)",
            Self::FewNodes | Self::EvenNodes => "use 3 nodes to tolerate 1 failure, 5 to tolerate 2",
            Self::OneHost => "spread the nodes over machines",
            Self::Channel => "allow the lock's channel, with PUBLISH and SUBSCRIBE",
            Self::ScriptInfo => "let scripts call INFO, or reach the server without the proxy",
            Self::Evalsha => "allow EVALSHA, or reach the server without the proxy",
            Self::NoExpiry => "find who wrote it, then DEL it, or choose another --lock",
            Self::Foreign => "let every contender be redleader, or choose another --lock",
            Self::List => "give every replica the same --redis, in the same spelling",
            Self::Ttl => "give every replica the same --ttl",
            Self::Quarantined => "wait, and restart nodes one at a time",
            Self::Kubernetes => "check the API server, the service account and --kube-proxy",
            Self::Rights => "grant them in its Role",
        }
    }
}

/// What to do about a node without a vote.
const fn mend(kind: Kind) -> &'static str {
    match kind {
        Kind::Timeout => "check that it runs and can be reached, or raise --connect-timeout",
        Kind::Dns => "check the host's name in --redis, and the DNS here",
        Kind::Connect => "check the address, the scheme (rediss:// for TLS), and that the server runs",
        Kind::Tls => "check the scheme against the server, its certificate, and --redis-ca-file",
        Kind::Auth => "check --redis-username and --redis-password-file",
        Kind::Noperm => "set its rights as the line below says",
        Kind::Readonly => "name the primary in --redis",
        Kind::Loading => "wait until it has read its data",
        Kind::Masterdown => "name the primary in --redis",
        Kind::Misconf => "see its log: it cannot write to its disk",
        Kind::Oom => "raise maxmemory, or use the server for locks only",
        Kind::Noreplicas => "attach replicas, or set min-replicas-to-write lower",
        Kind::Busy => "find the script that runs for too long, or SCRIPT KILL",
        Kind::Clusterdown => "name a standalone server: shards of a cluster are no independent nodes",
        Kind::Moved => "name a standalone server: shards of a cluster are no independent nodes",
        Kind::Wrongtype => "choose another --lock, or find who wrote the key",
        Kind::Maxclients => "raise maxclients there, or find who holds so many connections",
        Kind::Unsupported => "use Redis 5.0 or newer, or Valkey, with EVAL",
        Kind::NewerState => "upgrade this redleader",
        Kind::BadState => "DEL that key there: as after an empty restart, the node waits one quarantine",
        Kind::NoRunId => "allow INFO, and reach the server without a proxy that spreads commands",
        Kind::SameNode => "name each server once, by one address, and no replica of another",
        Kind::Clock => "set its clock right: check NTP there",
        Kind::Protocol => "name a Redis server: what answers there is none",
        Kind::Unknown => "see the server's log",
    }
}

/// One finding: what is wrong, where, what it can cost, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    pub(super) problem: Problem,
    /// Where; none: it is about the whole set.
    pub(super) nodes: Vec<String>,
    pub(super) what: String,
    pub(super) cost: &'static str,
    pub(super) remedy: String,
    /// The command that sets the rights, where rights are missing.
    pub(super) acl: Option<Vec<String>>,
}

impl Finding {
    /// About one node.
    pub(super) fn at(node: &str, problem: Problem, what: impl Into<String>) -> Self {
        Self { nodes: vec![node.to_owned()], ..Self::of_all(problem, what) }
    }

    /// About the whole set.
    pub(super) fn of_all(problem: Problem, what: impl Into<String>) -> Self {
        Self {
            severity: problem.severity(),
            problem,
            nodes: Vec::new(),
            what: what.into(),
            cost: problem.cost(),
            remedy: problem.remedy().to_owned(),
            acl: None,
        }
    }
}

/// What is the same on several nodes is told once; the worst comes first.
pub(super) fn merge(findings: Vec<Finding>) -> Vec<Finding> {
    let mut merged: Vec<Finding> = Vec::new();
    for finding in findings {
        let is_same = |known: &&mut Finding| {
            let alone = Finding { nodes: Vec::new(), ..(**known).clone() };
            !finding.nodes.is_empty() && alone == Finding { nodes: Vec::new(), ..finding.clone() }
        };
        match merged.iter_mut().find(is_same) {
            Some(known) => known.nodes.extend(finding.nodes),
            None => merged.push(finding),
        }
    }
    merged.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    merged
}
