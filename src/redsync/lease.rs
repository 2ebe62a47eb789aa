//! The lease vector: until when each node surely blocks everyone else, and the deadline that follows (rule 10).

use crate::clock::Moment;
use crate::redsync::reply::{NodeIndex, RunId};

/// One lease a node, of one attempt or leadership.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leases {
    leases: Vec<Option<(Moment, RunId)>>,
}

impl Leases {
    /// No lease on any of `nodes` nodes.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        Self { leases: vec![None; nodes] }
    }

    /// A reply of `node`'s run `run` counted: the lease never gets shorter by it.
    pub fn count(&mut self, node: NodeIndex, run: RunId, until: Moment) {
        let until = self.until(node).map_or(until, |old| old.max(until));
        self.leases[node] = Some((until, run));
    }

    /// `node` said that the lock is lost there.
    pub fn clear(&mut self, node: NodeIndex) {
        self.leases[node] = None;
    }

    /// Until when `node` surely blocks everyone else.
    #[must_use]
    pub fn until(&self, node: NodeIndex) -> Option<Moment> {
        self.leases[node].map(|(until, _)| until)
    }

    /// The run of `node` that gave its lease.
    #[must_use]
    pub fn run(&self, node: NodeIndex) -> Option<RunId> {
        self.leases[node].map(|(_, run)| run)
    }

    /// The `quorum`-th largest lease over distinct runs: two addresses of one server are one vote.
    #[must_use]
    pub fn deadline(&self, quorum: usize) -> Option<Moment> {
        let mut leases: Vec<(Moment, RunId)> = self.leases.iter().flatten().copied().collect();
        leases.sort_unstable_by(|a, b| b.cmp(a));
        let mut runs = Vec::with_capacity(leases.len());
        leases.retain(|(_, run)| {
            !runs.contains(run) && {
                runs.push(*run);
                true
            }
        });
        leases.get(quorum - 1).map(|(until, _)| *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_micros(ms * 1000)
    }

    #[test]
    fn the_deadline_is_the_quorum_th_largest_lease_of_distinct_runs() {
        // leases (ms, run) of the nodes; quorum; deadline
        for (leases, quorum, deadline) in [
            (vec![], 1, None),
            (vec![(10, 1)], 1, Some(10)),
            (vec![(10, 1)], 2, None),
            (vec![(10, 1), (30, 2), (20, 3)], 2, Some(20)),
            (vec![(10, 1), (30, 1), (20, 3)], 2, Some(20)),
            (vec![(10, 1), (30, 2), (20, 2)], 2, Some(10)),
            (vec![(10, 1), (30, 1), (20, 1)], 2, None),
            (vec![(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)], 3, Some(3)),
            (vec![(1, 1), (5, 2), (5, 3), (4, 4), (5, 5)], 3, Some(5)),
        ] {
            let mut vector = Leases::new(5);
            for (node, (until, run)) in leases.iter().enumerate() {
                vector.count(node, RunId(*run), at(*until));
            }
            assert_eq!(vector.deadline(quorum), deadline.map(at), "{leases:?}");
        }
    }

    #[test]
    fn a_lease_never_gets_shorter_but_by_a_loss() {
        let mut vector = Leases::new(1);
        vector.count(0, RunId(1), at(20));
        vector.count(0, RunId(1), at(10));
        assert_eq!(vector.until(0), Some(at(20)));
        vector.clear(0);
        assert_eq!(vector.deadline(1), None);
        vector.count(0, RunId(1), at(10));
        assert_eq!(vector.deadline(1), Some(at(10)));
    }
}
