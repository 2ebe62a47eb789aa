//! What a round's replies add up to: who has how many nodes, when the lock can be free, who wins a split vote.

use crate::clock::Moment;
use crate::redsync::name::Owner;
use crate::redsync::reply::{NodeIndex, RunId, Token};

/// What one node's latest reply of a round means.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ballot {
    /// It has not answered yet.
    #[default]
    Pending,
    /// It granted what was asked for, and its vote counts.
    Granted(RunId),
    /// It would grant the lock, and its vote would count.
    Free(RunId),
    /// Another owner has it.
    Held {
        /// The other owner.
        owner: Owner,
        /// Its token, where the state names the same owner.
        token: Option<Token>,
        /// Until when it has the node, unless it extends.
        until: Moment,
    },
    /// It may have forgotten a grant until then.
    Quarantined {
        /// The quarantine's end.
        until: Moment,
    },
    /// It knows a token that is not smaller than ours.
    Outdated,
    /// It answered, and its vote cannot count.
    Void,
    /// No answer that is known, or a key without an expiry: nothing can be said of it.
    Unknown,
}

/// The ballots of a round, one a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tally {
    ballots: Vec<Ballot>,
    quorum: usize,
}

impl Tally {
    /// A round in which nobody has answered.
    #[must_use]
    pub fn new(nodes: usize, quorum: usize) -> Self {
        Self { ballots: vec![Ballot::Pending; nodes], quorum }
    }

    /// Notes `node`'s reply.
    pub fn cast(&mut self, node: NodeIndex, ballot: Ballot) {
        self.ballots[node] = ballot;
    }

    /// `node`'s ballot.
    #[must_use]
    pub fn ballot(&self, node: NodeIndex) -> &Ballot {
        &self.ballots[node]
    }

    /// How many nodes have not answered.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.ballots.iter().filter(|ballot| **ballot == Ballot::Pending).count()
    }

    /// How many nodes gave an answer, whatever it said.
    #[must_use]
    pub fn answered(&self) -> usize {
        self.ballots.iter().filter(|ballot| !matches!(ballot, Ballot::Pending | Ballot::Unknown)).count()
    }

    /// How many nodes have a vote now, or will have one by waiting.
    #[must_use]
    pub fn voting(&self) -> usize {
        self.ballots.iter().filter(|ballot| !matches!(ballot, Ballot::Pending | Ballot::Unknown | Ballot::Void)).count()
    }

    /// Distinct servers that granted.
    #[must_use]
    pub fn granted(&self) -> usize {
        self.distinct(|ballot| if let Ballot::Granted(run) = ballot { Some(*run) } else { None })
    }

    /// Distinct servers that would grant.
    #[must_use]
    pub fn free(&self) -> usize {
        self.distinct(|ballot| if let Ballot::Free(run) = ballot { Some(*run) } else { None })
    }

    /// Nodes that know a token that is not smaller.
    #[must_use]
    pub fn outdated(&self) -> usize {
        self.ballots.iter().filter(|ballot| **ballot == Ballot::Outdated).count()
    }

    /// Nodes in quarantine.
    #[must_use]
    pub fn quarantined(&self) -> usize {
        self.ballots.iter().filter(|ballot| matches!(ballot, Ballot::Quarantined { .. })).count()
    }

    /// The other owner of most nodes: how many it has, the largest token known of it, and its value. Rule 19's order:
    /// most nodes, then the larger token where known, then the owner's value.
    #[must_use]
    pub fn strongest(&self) -> Option<Standing> {
        let mut standings: Vec<Standing> = Vec::new();
        for ballot in &self.ballots {
            let Ballot::Held { owner, token, .. } = ballot else { continue };
            match standings.iter_mut().find(|standing| standing.owner == *owner) {
                Some(standing) => {
                    standing.nodes += 1;
                    standing.token = standing.token.max(*token);
                }
                None => standings.push(Standing { nodes: 1, token: *token, owner: owner.clone() }),
            }
        }
        standings.into_iter().max()
    }

    /// The other owner that has a quorum, and until when it keeps it unless it extends.
    #[must_use]
    pub fn holder(&self) -> Option<(Standing, Moment)> {
        let strongest = self.strongest().filter(|standing| standing.nodes >= self.quorum)?;
        let mut ends: Vec<Moment> = self.ballots.iter().filter_map(|b| b.held_until_by(&strongest.owner)).collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let until = ends[self.quorum - 1];
        Some((strongest, until))
    }

    /// Whether any other owner has any node.
    #[must_use]
    pub fn is_contested(&self) -> bool {
        self.ballots.iter().any(|ballot| matches!(ballot, Ballot::Held { .. }))
    }

    /// When a quorum can be free: the quorum-th smallest of the distinct servers' ends (rule 20). `None`: too little is known.
    #[must_use]
    pub fn free_at(&self, now: Moment) -> Option<Moment> {
        let is_first = |(at, ballot): &(usize, &Ballot)| {
            let run = ballot.run();
            run.is_none() || self.ballots[..*at].iter().all(|before| before.run() != run)
        };
        let distinct = self.ballots.iter().enumerate().filter(is_first);
        let mut ends: Vec<Moment> = distinct.filter_map(|(_, ballot)| ballot.free_at(now)).collect();
        ends.sort_unstable();
        ends.get(self.quorum - 1).copied()
    }

    fn distinct(&self, run_of: impl Fn(&Ballot) -> Option<RunId>) -> usize {
        let mut runs: Vec<RunId> = self.ballots.iter().filter_map(run_of).collect();
        runs.sort_unstable();
        runs.dedup();
        runs.len()
    }
}

impl Ballot {
    fn held_until_by(&self, by: &Owner) -> Option<Moment> {
        if let Self::Held { owner, until, .. } = self { (owner == by).then_some(*until) } else { None }
    }

    /// The server that has granted, or would.
    fn run(&self) -> Option<RunId> {
        match self {
            Self::Granted(run) | Self::Free(run) => Some(*run),
            Self::Pending
            | Self::Held { .. }
            | Self::Quarantined { .. }
            | Self::Outdated
            | Self::Void
            | Self::Unknown => None,
        }
    }

    fn free_at(&self, now: Moment) -> Option<Moment> {
        match self {
            Self::Granted(_) | Self::Free(_) | Self::Outdated => Some(now),
            Self::Held { until, .. } | Self::Quarantined { until } => Some(*until),
            Self::Pending | Self::Void | Self::Unknown => None,
        }
    }
}

/// How strong an owner stands in a split vote; greater is stronger. An unknown token loses ties.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Standing {
    /// Nodes it has.
    pub nodes: usize,
    /// Its token, where known.
    pub token: Option<Token>,
    /// Its value.
    pub owner: Owner,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_micros(ms * 1000)
    }

    fn held(owner: &str, token: Option<Token>, until: u64) -> Ballot {
        Ballot::Held { owner: Owner::found(owner), token, until: at(until) }
    }

    fn tally(ballots: Vec<Ballot>) -> Tally {
        Tally { quorum: ballots.len() / 2 + 1, ballots }
    }

    #[test]
    fn one_server_at_two_addresses_is_one_vote() {
        let granted = |run| Ballot::Granted(RunId(run));
        for (ballots, votes) in [
            (vec![granted(1), granted(2), Ballot::Pending], 2),
            (vec![granted(1), granted(1), Ballot::Pending], 1),
            (vec![granted(1), granted(1), granted(2)], 2),
            (vec![Ballot::Free(RunId(1)), Ballot::Void, Ballot::Unknown], 0),
        ] {
            assert_eq!(tally(ballots.clone()).granted(), votes, "{ballots:?}");
        }
    }

    #[test]
    fn a_split_vote_goes_to_most_nodes_then_the_larger_known_token_then_the_owner() {
        for (ballots, strongest) in [
            (vec![held("a", Some(1), 9), held("b", Some(9), 9), held("a", None, 9)], ("a", 2, Some(1))),
            (vec![held("a", Some(1), 9), held("b", Some(2), 9), Ballot::Pending], ("b", 1, Some(2))),
            (vec![held("a", Some(1), 9), held("z", None, 9), Ballot::Pending], ("a", 1, Some(1))),
            (vec![held("a", Some(2), 9), held("b", Some(2), 9), Ballot::Unknown], ("b", 1, Some(2))),
        ] {
            let found = tally(ballots.clone()).strongest().unwrap();
            assert_eq!((found.owner.as_str(), found.nodes, found.token), strongest, "{ballots:?}");
        }
    }

    #[test]
    fn the_lock_can_be_free_at_the_quorum_th_smallest_end() {
        let quarantined = |until| Ballot::Quarantined { until: at(until) };
        for (ballots, free_at) in [
            (vec![held("a", None, 50), held("a", None, 70), held("a", None, 90)], Some(70)),
            (vec![held("a", None, 50), Ballot::Unknown, held("a", None, 90)], Some(90)),
            (vec![held("a", None, 50), Ballot::Unknown, Ballot::Void], None),
            (vec![Ballot::Free(RunId(1)), quarantined(30), quarantined(40)], Some(30)),
            (vec![Ballot::Free(RunId(1)), Ballot::Free(RunId(2)), quarantined(40)], Some(5)),
            (vec![Ballot::Free(RunId(1)), Ballot::Free(RunId(1)), held("a", None, 70)], Some(70)),
        ] {
            assert_eq!(tally(ballots.clone()).free_at(at(5)), free_at.map(at), "{ballots:?}");
        }
    }

    #[test]
    fn a_holder_has_a_quorum_until_its_quorum_th_last_key_ends() {
        let (standing, until) =
            tally(vec![held("a", None, 50), held("a", Some(3), 70), held("b", None, 90)]).holder().unwrap();
        assert_eq!((standing.nodes, standing.token, until), (2, Some(3), at(50)));
        assert_eq!(tally(vec![held("a", None, 50), held("b", None, 70), Ballot::Pending]).holder(), None);
    }
}
