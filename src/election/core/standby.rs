//! Looking, and sleeping until the lock can be free (rules 17 and 20).

use std::time::Duration;

use super::{Core, EARLY_SURVEY, Phase, SURVEY_EVERY};
use crate::clock::Moment;
use crate::election::event::Event;
use crate::election::evidence::Trouble;
use crate::election::leadership::Holder;
use crate::election::timing::Timing;
use crate::redsync::reply::{Answer, NodeIndex, Outcome, Reply, Verdict, What};
use crate::redsync::tally::{Ballot, Tally};

/// The shortest sleep before a look: a key with less than a millisecond left is told as 0, and must not be a spin.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// One round of looks, or the part of an attempt's round that both have: who has answered, and how fast.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Look {
    pub(super) round: u64,
    pub(super) pace: Pace,
    pub(super) tally: Tally,
}

/// When a round that nothing decided is over (rule 19).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pace {
    pub(super) started: Moment,
    quorum: usize,
    trips: Vec<Duration>,
}

impl Pace {
    pub(super) fn new(started: Moment, quorum: usize) -> Self {
        Self { started, quorum, trips: Vec::new() }
    }

    /// The rest are asked again: their answers are waited for from `now` on.
    pub(super) fn restart(&mut self, now: Moment) {
        self.started = now;
    }

    pub(super) fn note(&mut self, reply: &Reply) {
        if matches!(reply.outcome, Outcome::Answer(_)) {
            self.trips.push(reply.received.since(reply.sent));
        }
    }

    /// The median round trip of those that answered; of two the longer, for one fast answer says nothing of the rest.
    pub(super) fn median(&self) -> Option<Duration> {
        let mut trips = self.trips.clone();
        trips.sort_unstable();
        trips.get(trips.len() / 2).copied()
    }

    /// After the node timeout; or, once a quorum has answered, after two median round trips. On loopback these are
    /// shorter than a scheduler's turn, and a vote on its way would be thrown away.
    pub(super) fn settles(&self, timing: &Timing) -> Moment {
        match self.median() {
            Some(median) if self.trips.len() >= self.quorum => {
                (self.started + (median * 2).max(SHORTEST_SLEEP)).min(self.ends(timing))
            }
            _ => self.ends(timing),
        }
    }

    /// After this nothing is waited for.
    pub(super) fn ends(&self, timing: &Timing) -> Moment {
        self.started + timing.node_timeout()
    }
}

impl Look {
    /// When it is over though not all have answered. A node that is several times farther than the others is waited for
    /// where only its vote can make a quorum before long: nobody would ever hear it, however often it is asked.
    pub(super) fn settles(&self, quorum: usize, timing: &Timing) -> Moment {
        let ends = self.pace.ends(timing);
        let needs_the_rest = self.tally.free() + self.tally.pending() >= quorum;
        let is_free_soon = self.tally.free_at(self.pace.started).is_some_and(|free_at| free_at <= ends);
        if needs_the_rest && !is_free_soon { ends } else { self.pace.settles(timing) }
    }
}

impl Core {
    pub(super) fn start_look(&mut self, now: Moment) {
        let round = self.next_round();
        self.woken = false;
        let nodes = self.nodes.len();
        let quarantine = self.quarantine();
        for node in 0..nodes {
            self.ask(node, 0, round, What::Look { quarantine });
        }
        self.phase =
            Phase::Looking(Look { round, pace: Pace::new(now, self.quorum), tally: Tally::new(nodes, self.quorum) });
    }

    pub(super) fn handle_look(&mut self, now: Moment, reply: &Reply) {
        let ballot = match &reply.outcome {
            Outcome::Answer(answer) => self.read_look(reply, answer),
            Outcome::Released { .. }
            | Outcome::Survey { .. }
            | Outcome::Plain { .. }
            | Outcome::Unsent
            | Outcome::Failed(_) => Ballot::Unknown,
        };
        if let Phase::Looking(look) = &mut self.phase {
            look.pace.note(reply);
            look.tally.cast(reply.node, ballot);
            self.decide_look(now);
        }
    }

    /// What a look's answer means for an attempt.
    fn read_look(&mut self, reply: &Reply, answer: &Answer) -> Ballot {
        if self.void_by_others(reply.node).is_some() {
            return Ballot::Void;
        }
        match answer.verdict {
            Verdict::Free if answer.quarantined => {
                Ballot::Quarantined { until: reply.received + answer.left.unwrap_or_default() }
            }
            Verdict::Free if self.counts(reply, answer) => {
                self.nodes[reply.node].told_key = None;
                Ballot::Free(answer.run)
            }
            Verdict::Free => match self.nodes[reply.node].doubtful_until(self.quarantine()) {
                Some(until) => Ballot::Quarantined { until },
                None => Ballot::Void,
            },
            Verdict::Seen | Verdict::Held => self.read_holder(reply, answer),
            Verdict::Granted
            | Verdict::Quarantined
            | Verdict::Outdated
            | Verdict::Extended
            | Verdict::Refilled
            | Verdict::LostOver
            | Verdict::LostOwner
            | Verdict::Newer => Ballot::Void,
        }
    }

    /// What it means that another has a node. A key without an expiry is an unreachable vote (rule 3).
    pub(super) fn read_holder(&mut self, reply: &Reply, answer: &Answer) -> Ballot {
        let Some(owner) = answer.owner.clone() else { return Ballot::Void };
        match answer.left {
            Some(left) => {
                self.nodes[reply.node].told_key = None;
                Ballot::Held { owner, token: answer.owner_token, until: reply.received + left }
            }
            None => {
                self.nodes[reply.node].no_expiry = true;
                self.tell_trouble(reply.node, Trouble::NoExpiry(owner));
                Ballot::Unknown
            }
        }
    }

    /// Starts an attempt as soon as a quorum could vote, or sleeps once the round is over (rule 17).
    pub(super) fn decide_look(&mut self, now: Moment) {
        let Phase::Looking(look) = &self.phase else { return };
        let is_free = look.tally.free() >= self.quorum;
        if is_free {
            self.app.note_vacant(now);
        }
        if is_free && self.may_campaign(now) && self.nonce.is_some() {
            self.started = true;
            self.note_holder(now, None);
            return self.start_attempt(now);
        }
        let is_over = look.tally.pending() == 0 || look.settles(self.quorum, &self.timing) <= now;
        if is_free || is_over {
            self.started |= look.tally.voting() >= self.quorum;
            let tally = look.tally.clone();
            self.sleep(now, &tally, false);
        }
    }

    /// Sleeps after a round: until the lock can be free, or by backing off (rule 20). `lost`: an attempt was made.
    pub(super) fn sleep(&mut self, now: Moment, tally: &Tally, lost: bool) {
        let holder = tally.holder();
        let is_free = tally.free() >= self.quorum;
        if holder.is_some() {
            self.app.note_taken();
        }
        if holder.is_some() || is_free {
            self.note_holder(
                now,
                holder.clone().map(|(standing, until)| Holder { owner: standing.owner, token: standing.token, until }),
            );
        }
        let ttl = self.timing.ttl();
        let mut look_at = now + self.jitter.between(ttl * 2 / 5, ttl * 3 / 5);
        let is_settled = holder.is_some() || !(lost || tally.is_contested());
        match tally.free_at(now) {
            Some(free_at) if is_settled => {
                self.undecided = 0;
                // Others have computed the same expiry. A wait of our own (`barred_until`) is nobody else's.
                let soon = free_at.max(now + SHORTEST_SLEEP) + self.crowd_jitter();
                look_at = look_at.min(soon.max(self.barred_until));
            }
            free_at => {
                look_at = look_at.min(now + self.back_off());
                if lost {
                    self.pauses_until = look_at;
                } else if let Some(free_at) = free_at {
                    // A look that met a key in its last millisecond has seen no split: what blocks it is about to end.
                    look_at = look_at.min(free_at.max(now + SHORTEST_SLEEP) + self.crowd_jitter());
                }
            }
        }
        if self.woken {
            self.woken = false;
            look_at = now + self.crowd_jitter();
        }
        if is_free && !self.may_campaign(now) {
            // Nothing to wait for but our own bar: the routine look will do where it has no end.
            let fit_at = self.app.fit_at(now).filter(|_| !self.draining && self.work.is_none());
            let unbarred = fit_at.map_or(now + ttl / 2, |fit_at| fit_at.max(self.barred_until));
            look_at = look_at.max(unbarred.min(now + ttl / 2));
        }
        self.survey_now_and_then();
        self.standing = tally.clone();
        self.phase = Phase::Waiting { look_at };
    }

    /// Uniform in `[min(50 ms, ttl/40), min(250 ms, ttl/8)]`, doubled with every undecided round up to `ttl/4`.
    fn back_off(&mut self) -> Duration {
        let ttl = self.timing.ttl();
        let factor = 1_u32 << self.undecided.min(16);
        let low = (ttl / 40).min(Duration::from_millis(50)).saturating_mul(factor).min(ttl / 8);
        let high = (ttl / 8).min(Duration::from_millis(250)).saturating_mul(factor).min(ttl / 4);
        self.undecided = self.undecided.saturating_add(1);
        self.jitter.between(low, high)
    }

    pub(super) fn note_holder(&mut self, now: Moment, holder: Option<Holder>) {
        if let Some(holder) = &holder {
            self.other_valid = Some(now.min(holder.until));
        }
        let owner = |holder: &Option<Holder>| holder.as_ref().map(|holder| holder.owner.clone());
        if owner(&holder) != owner(&self.holder) {
            let token = holder.as_ref().and_then(|holder| holder.token);
            self.tell(Event::HolderChanged { owner: owner(&holder), token });
        }
        self.holder = holder;
    }

    /// Asks one node how many wait and what the holder's list is, with the first two and every tenth look.
    fn survey_now_and_then(&mut self) {
        let turn = self.looks;
        self.looks += 1;
        if !turn.is_multiple_of(SURVEY_EVERY) && turn != EARLY_SURVEY {
            return;
        }
        let up: Vec<NodeIndex> = (0..self.nodes.len()).filter(|node| self.nodes[*node].failed.is_none()).collect();
        let pick = usize::try_from(turn / SURVEY_EVERY + turn % SURVEY_EVERY).unwrap_or(0);
        if let Some(node) = up.get(pick % up.len().max(1)) {
            let round = self.next_round();
            self.ask(*node, 0, round, What::Survey);
        }
    }
}
