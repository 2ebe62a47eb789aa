//! What everyone else gets to see.

use super::{Core, Phase};
use crate::clock::Moment;
use crate::election::leadership::{Belief, Leadership, NodeView, State, Vote};
use crate::redsync::reply::NodeIndex;
use crate::redsync::tally::Ballot;

impl Core {
    /// All that this replica knows of the lock.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        let mut answered: Vec<Option<Moment>> = self.nodes.iter().map(|node| node.answered).collect();
        answered.sort_unstable_by(|a, b| b.cmp(a));
        Leadership {
            phase: self.state(),
            draining: self.draining,
            belief: self.believes(),
            work: self.work,
            holder: self.holder.clone(),
            last_step_down: self.last_step_down,
            quarantine: self.quarantine(),
            quorum: self.quorum,
            quorum_seen: answered[self.quorum - 1],
            list_mismatch: self.list_mismatch,
            app_healthy: self.app.view(),
            nodes: (0..self.nodes.len()).map(|node| self.view_node(node)).collect(),
        }
    }

    fn state(&self) -> State {
        match &self.phase {
            Phase::Leading(leading) if leading.stopping.is_some() => State::SteppingDown,
            Phase::Leading(_) => State::Leader,
            Phase::Asking(_) => State::Campaigning,
            Phase::Waiting { .. } | Phase::Looking(_) | Phase::Stopping if self.started => State::Standby,
            Phase::Waiting { .. } | Phase::Looking(_) | Phase::Stopping => State::Starting,
        }
    }

    fn believes(&self) -> Option<Belief> {
        let Phase::Leading(leading) = &self.phase else { return None };
        Some(Belief {
            token: leading.claim.token,
            since: leading.since,
            work_until: leading.work_until(&self.timing),
            deadline: leading.deadline,
            extended_at: leading.extended_at,
            stepping_down: leading.stopping.as_ref().map(|stopping| stopping.reason),
        })
    }

    fn view_node(&self, node: NodeIndex) -> NodeView {
        let evidence = &self.nodes[node];
        let lease = match &self.phase {
            Phase::Leading(leading) => leading.leases.until(node),
            Phase::Waiting { .. } | Phase::Looking(_) | Phase::Asking(_) | Phase::Stopping => None,
        };
        NodeView {
            name: self.names[node].clone(),
            up: evidence.answered.is_some() && evidence.failed.is_none(),
            vote: self.view_vote(node, lease),
            lease,
            quarantined_until: evidence.quarantined_until.max(evidence.doubtful_until(self.quarantine())),
            latency: evidence.latency,
            error: self.error(node),
            clock_offset_us: self.clock_offset_us(node),
            clock_rate_ppm: evidence.clock_rate_ppm(),
            evicts: evidence.evicts,
            no_expiry: evidence.no_expiry,
        }
    }

    fn view_vote(&self, node: NodeIndex, lease: Option<Moment>) -> Vote {
        let evidence = &self.nodes[node];
        if evidence.answered.is_none() || evidence.failed.is_some() {
            return Vote::Unknown;
        }
        if self.error(node).is_some() || evidence.no_expiry {
            return Vote::Void;
        }
        if lease.is_some() {
            return Vote::Granted;
        }
        if evidence.quarantined_until.is_some() {
            return Vote::Quarantined;
        }
        match self.standing.ballot(node) {
            Ballot::Held { .. } => Vote::Held,
            Ballot::Granted(_) | Ballot::Free(_) | Ballot::Outdated => Vote::Free,
            Ballot::Quarantined { .. } => Vote::Quarantined,
            Ballot::Void => Vote::Void,
            Ballot::Pending | Ballot::Unknown => Vote::Unknown,
        }
    }
}
