//! One attempt: from its first acquire to its win or abort (rules 8, 11, 14, 18, 19).

use std::time::Duration;

use super::standby::Pace;
use super::{Core, Phase, release_of};
use crate::clock::Moment;
use crate::election::event::{AcquireOutcome, Event};
use crate::election::evidence::lower_median;
use crate::election::timing::Timing;
use crate::redsync::lease::Leases;
use crate::redsync::name::Owner;
use crate::redsync::reply::{AttemptId, Claim, Ended, NodeIndex, Outcome, Reply, Token, Verdict, What};
use crate::redsync::tally::{Ballot, Standing, Tally};

/// Asking again with a larger token: each time can only be caused by another attempt's, so a few are enough.
const RAISES: u8 = 4;
/// Asking the rest again after a split vote: losers clean up within a round trip, or are gone.
const REASKS: u8 = 3;
/// The shortest wait before the rest are asked again: on loopback a round trip is shorter than a scheduler's turn.
const REASK_AFTER: Duration = Duration::from_millis(1);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    pub(super) id: AttemptId,
    claim: Claim,
    began: Moment,
    /// When all nodes were last asked: the node timeout of the round counts from here.
    asked_all: Moment,
    pace: Pace,
    tally: Tally,
    leases: Leases,
    /// Asks without an answer, by node. One that failed stays: it may take effect late.
    outstanding: Vec<u8>,
    /// The round that each node was last asked in.
    asked: Vec<u64>,
    raises: u8,
    reasks: u8,
    reask_at: Option<Moment>,
}

impl Attempt {
    /// When something is due though no reply comes.
    pub(super) fn next_step(&self, quorum: usize, timing: &Timing) -> Moment {
        let settles = self.settles(quorum, timing);
        self.reask_at.map_or(settles, |at| at.min(self.ends(timing)))
    }

    /// When the round's node timeout has passed: a plurality never asks beyond it.
    fn ends(&self, timing: &Timing) -> Moment {
        self.asked_all + timing.node_timeout()
    }

    /// When the round is lost though not all have answered (rule 19). It is not, as long as votes on their way can win
    /// it and nobody waits for our giving way: a node that is several times farther than the others would never be
    /// heard, however often it is asked, and where another one is void its vote decides.
    fn settles(&self, quorum: usize, timing: &Timing) -> Moment {
        let can_win = self.tally.granted() + self.tally.pending() >= quorum;
        let gives_way = self.tally.is_contested() && !(self.reasks >= REASKS && self.is_strongest());
        if can_win && !gives_way && self.tally.outdated() == 0 { self.ends(timing) } else { self.pace.settles(timing) }
    }

    /// Whether no other owner stands stronger; with nobody else in the way there is no plurality to speak of.
    fn is_strongest(&self) -> bool {
        let (token, owner) = (Some(self.claim.token), self.claim.owner.clone());
        let ours = Standing { nodes: self.tally.granted(), token, owner };
        ours.nodes > 0 && self.tally.strongest().is_some_and(|other| ours > other)
    }

    /// Rule 14: a node without an ask outstanding that answered that it has nothing of ours needs no release.
    fn needs_release(&self, node: NodeIndex) -> bool {
        let has_nothing =
            matches!(self.tally.ballot(node), Ballot::Held { .. } | Ballot::Quarantined { .. } | Ballot::Outdated);
        self.outstanding[node] > 0 || !has_nothing
    }
}

impl Core {
    pub(super) fn start_attempt(&mut self, now: Moment) {
        let Some(nonce) = self.nonce.take() else { return };
        self.attempts += 1;
        let nodes = self.nodes.len();
        let claim = Claim {
            owner: Owner::new(&self.identity, nonce),
            ttl: self.timing.ttl(),
            token: self.next_token(now),
            quarantine: self.quarantine(),
        };
        self.phase = Phase::Asking(Attempt {
            id: self.attempts,
            claim,
            began: now,
            asked_all: now,
            pace: Pace::new(now, self.quorum),
            tally: Tally::new(nodes, self.quorum),
            leases: Leases::new(nodes),
            outstanding: vec![0; nodes],
            asked: vec![0; nodes],
            raises: 0,
            reasks: 0,
            reask_at: None,
        });
        self.ask_acquire(0..nodes);
    }

    /// Rule 18: larger than all seen, and by the nodes' clocks larger than what nodes that forgot may have granted.
    fn next_token(&self, now: Moment) -> Token {
        let ttl = self.timing.ttl();
        let times: Vec<u64> =
            self.servers().filter_map(|node| node.time(now)).filter(|(_, age)| *age <= ttl).map(|(us, _)| us).collect();
        let by_clocks = if times.len() >= self.quorum { lower_median(times).unwrap_or(0) } else { 0 };
        by_clocks.max(self.seen + 1)
    }

    fn ask_acquire(&mut self, nodes: impl IntoIterator<Item = NodeIndex>) {
        let round = self.next_round();
        let Phase::Asking(attempt) = &mut self.phase else { return };
        let (id, claim) = (attempt.id, attempt.claim.clone());
        let nodes: Vec<NodeIndex> = nodes.into_iter().collect();
        for node in &nodes {
            attempt.outstanding[*node] += 1;
            attempt.asked[*node] = round;
            attempt.tally.cast(*node, Ballot::Pending);
        }
        for node in nodes {
            self.ask(node, id, round, What::Acquire(claim.clone()));
        }
    }

    pub(super) fn handle_acquire(&mut self, now: Moment, reply: &Reply) {
        let ballot = self.read_acquire(reply);
        let Phase::Asking(attempt) = &mut self.phase else { return };
        let validity = self.timing.validity();
        attempt.pace.note(reply);
        if matches!(reply.outcome, Outcome::Answer(_)) {
            attempt.outstanding[reply.node] = attempt.outstanding[reply.node].saturating_sub(1);
        }
        if let Ballot::Granted(run) = ballot {
            attempt.leases.count(reply.node, run, reply.sent + validity);
        }
        let is_granted = matches!(ballot, Ballot::Granted(_));
        // A node that has been asked again since has not answered that yet, whatever it said or failed to say before.
        let is_stale = reply.round != attempt.asked[reply.node] && !is_granted;
        // A node that granted once keeps its vote whatever a later failed ask says; only its own word takes it back.
        let keeps = ballot == Ballot::Unknown && matches!(attempt.tally.ballot(reply.node), Ballot::Granted(_));
        if !(is_stale || keeps) {
            attempt.tally.cast(reply.node, ballot);
        }
        self.decide_attempt(now);
    }

    fn read_acquire(&mut self, reply: &Reply) -> Ballot {
        let Outcome::Answer(answer) = &reply.outcome else { return Ballot::Unknown };
        let Phase::Asking(attempt) = &self.phase else { return Ballot::Unknown };
        match answer.verdict {
            Verdict::Granted if answer.token == attempt.claim.token && self.counts(reply, answer) => {
                Ballot::Granted(answer.run)
            }
            Verdict::Held => self.read_holder(reply, answer),
            Verdict::Quarantined => Ballot::Quarantined { until: reply.received + answer.left.unwrap_or_default() },
            Verdict::Outdated => Ballot::Outdated,
            Verdict::Granted
            | Verdict::Extended
            | Verdict::Refilled
            | Verdict::LostOver
            | Verdict::LostOwner
            | Verdict::Seen
            | Verdict::Free
            | Verdict::Newer => Ballot::Void,
        }
    }

    /// Rules 11 and 19: decided by the first reply that decides it, or when the round is over.
    pub(super) fn decide_attempt(&mut self, now: Moment) {
        let Phase::Asking(attempt) = &self.phase else { return };
        let (granted, pending) = (attempt.tally.granted(), attempt.tally.pending());
        if granted >= self.quorum {
            return self.win_or_abort(now);
        }
        if let Some(at) = attempt.reask_at {
            if at <= now {
                self.reask(now);
            }
            return;
        }
        if attempt.tally.holder().is_some() {
            return self.abort(now, AcquireOutcome::Held);
        }
        let is_over = pending == 0 || attempt.settles(self.quorum, &self.timing) <= now;
        let can_win = granted + pending >= self.quorum;
        let outdated = attempt.tally.outdated();
        if outdated > 0 && granted + pending + outdated >= self.quorum && (is_over || !can_win) {
            return self.raise(now);
        }
        if is_over {
            self.settle_split(now);
        }
    }

    fn win_or_abort(&mut self, now: Moment) {
        let Phase::Asking(attempt) = &self.phase else { return };
        let validity = self.timing.validity();
        match attempt.leases.deadline(self.quorum) {
            Some(deadline) if deadline.since(now) >= validity / 2 => {
                let (claim, id, leases) = (attempt.claim.clone(), attempt.id, attempt.leases.clone());
                let took = now.since(attempt.began);
                self.tell(Event::Acquire { outcome: AcquireOutcome::Won, took });
                self.start_leading(now, id, claim, leases, deadline);
            }
            _ => self.abort(now, AcquireOutcome::Late),
        }
    }

    /// `outdated`: raise the token and ask all nodes again (rule 18).
    fn raise(&mut self, now: Moment) {
        let token = self.next_token(now);
        let (nodes, quorum) = (self.nodes.len(), self.quorum);
        let Phase::Asking(attempt) = &mut self.phase else { return };
        if attempt.raises >= RAISES {
            return self.abort(now, AcquireOutcome::Outdated);
        }
        attempt.raises += 1;
        attempt.claim.token = token;
        attempt.asked_all = now;
        attempt.pace = Pace::new(now, quorum);
        attempt.tally = Tally::new(nodes, quorum);
        attempt.leases = Leases::new(nodes);
        self.ask_acquire(0..nodes);
    }

    /// A lost round: the owner of most nodes keeps its votes and asks the rest again, everyone else aborts (rule 19).
    fn settle_split(&mut self, now: Moment) {
        let Phase::Asking(attempt) = &mut self.phase else { return };
        let (ends, is_strongest) = (attempt.ends(&self.timing), attempt.is_strongest());
        if is_strongest && attempt.reasks < REASKS && now < ends {
            let trip = attempt.pace.median().unwrap_or_default().max(REASK_AFTER);
            attempt.reask_at = Some((now + trip * (1 << attempt.reasks)).min(ends));
            attempt.reasks += 1;
            return;
        }
        if attempt.tally.pending() > 0 && attempt.settles(self.quorum, &self.timing) > now {
            return; // The last time that the rest was asked: what is still to come may win it.
        }
        let (tally, quorum) = (&attempt.tally, self.quorum);
        let outcome = if tally.is_contested() {
            AcquireOutcome::Split
        } else if tally.answered() < quorum {
            AcquireOutcome::NoQuorum
        } else if tally.quarantined() > 0 {
            AcquireOutcome::Quarantined
        } else {
            AcquireOutcome::NoQuorum
        };
        self.abort(now, outcome);
    }

    fn reask(&mut self, now: Moment) {
        let Phase::Asking(attempt) = &mut self.phase else { return };
        attempt.reask_at = None;
        if now >= attempt.ends(&self.timing) {
            return self.settle_split(now);
        }
        let rest: Vec<NodeIndex> = (0..self.nodes.len())
            .filter(|node| !matches!(attempt.tally.ballot(*node), Ballot::Granted(_) | Ballot::Pending))
            .collect();
        // The rest's answers are waited for from here on; the node timeout still counts from the round's start.
        attempt.pace.restart(now);
        self.ask_acquire(rest);
    }

    /// Ends the attempt, cleans up after it, and sleeps.
    pub(super) fn abort(&mut self, now: Moment, outcome: AcquireOutcome) {
        let Phase::Asking(attempt) = &self.phase else { return };
        let attempt = attempt.clone();
        self.tell(Event::Acquire { outcome, took: now.since(attempt.began) });
        let nodes: Vec<NodeIndex> = (0..self.nodes.len()).filter(|node| attempt.needs_release(*node)).collect();
        self.start_release(now, attempt.id, &nodes, release_of(&attempt.claim, Ended::Aborted));
        self.sleep(now, &attempt.tally, true);
    }
}
