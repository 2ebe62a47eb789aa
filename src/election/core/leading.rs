//! Leading: extend and refill all nodes, step down in order, end once, release (rules 10, 12 and 13).

use super::{Core, Phase, release_of};
use crate::clock::Moment;
use crate::election::event::{Event, ExtendOutcome, ReleaseOutcome, StepDown};
use crate::election::evidence::Trouble;
use crate::election::timing::Timing;
use crate::redsync::lease::Leases;
use crate::redsync::reply::{Answer, AttemptId, Claim, Ended, NodeIndex, Outcome, Reply, RunId, Token, Verdict, What};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Leading {
    pub(super) attempt: AttemptId,
    pub(super) claim: Claim,
    pub(super) since: Moment,
    pub(super) leases: Leases,
    /// The quorum-th largest lease as of the last input.
    pub(super) deadline: Moment,
    pub(super) extended_at: Moment,
    pub(super) stopping: Option<Stopping>,
    /// When it makes way for others, if the app is sick.
    pub(super) yields_at: Option<Moment>,
    next_extend: Moment,
    round: Option<Extending>,
    failed_rounds: u32,
}

/// Work was told to stop.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stopping {
    pub(super) reason: StepDown,
    /// Voluntary: extends go on until then, while the work stops.
    extends_until: Option<Moment>,
    /// Not before then is the lock released, so that whoever polls readiness has seen it.
    told_until: Option<Moment>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Extending {
    round: u64,
    started: Moment,
    confirmed: Vec<RunId>,
    lost: usize,
    is_told: bool,
}

/// A release whose replies are not all in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Releasing {
    attempt: AttemptId,
    round: u64,
    started: Moment,
    asked: usize,
    pending: usize,
    answered: usize,
}

impl Releasing {
    /// Every ask ends within a node timeout; twice that is a bound that only a hung client could meet.
    pub(super) fn gives_up(&self, timing: &Timing) -> Moment {
        self.started + timing.node_timeout() * 2
    }
}

impl Leading {
    /// When work has to have been told to stop.
    pub(super) fn work_until(&self, timing: &Timing) -> Moment {
        self.deadline - timing.grace()
    }

    pub(super) fn next_step(&self, timing: &Timing) -> Moment {
        let round = self.round.as_ref().map_or(self.next_extend, |round| round.started + timing.node_timeout());
        match &self.stopping {
            None => self.yields_at.into_iter().fold(round.min(self.work_until(timing)).min(self.deadline), Moment::min),
            Some(stopping) => {
                let extends = stopping.extends_until.map(|until| until.min(round).min(self.work_until(timing)));
                [stopping.told_until, extends].into_iter().flatten().fold(self.deadline, Moment::min)
            }
        }
    }

    fn is_extending(&self) -> bool {
        self.stopping.as_ref().is_none_or(|stopping| stopping.extends_until.is_some())
    }
}

impl Core {
    pub(super) fn start_leading(
        &mut self,
        now: Moment,
        attempt: AttemptId,
        claim: Claim,
        leases: Leases,
        deadline: Moment,
    ) {
        let sent = deadline - self.timing.validity();
        let token = claim.token;
        assert!(deadline > now && deadline <= now + self.timing.ttl(), "a win's deadline lies within one ttl");
        self.work = self.guarded.then_some(token);
        self.seen = self.seen.max(token);
        self.undecided = 0;
        self.holder = None;
        let gap = self.other_valid.map(|valid| now.since(valid));
        self.phase = Phase::Leading(Leading {
            attempt,
            claim,
            since: now,
            leases,
            deadline,
            extended_at: sent,
            stopping: None,
            yields_at: self.app.yields_at(now),
            next_extend: sent + self.timing.renew(),
            round: None,
            failed_rounds: 0,
        });
        self.tell(Event::Elected { token, at: now, deadline, gap });
    }

    /// Rule 12, before anything else: a leadership whose deadline has passed is over, whoever asks.
    pub(super) fn expire(&mut self, now: Moment) {
        if let Phase::Leading(leading) = &self.phase
            && now >= leading.deadline
        {
            let reason = leading.stopping.as_ref().map_or(StepDown::Expired, |stopping| stopping.reason);
            self.end_leadership(now, reason);
        }
    }

    pub(super) fn handle_extend(&mut self, now: Moment, reply: &Reply) {
        let Outcome::Answer(answer) = &reply.outcome else { return };
        let counts = self.counts(reply, answer);
        let (node, validity) = (reply.node, self.timing.validity());
        let Phase::Leading(leading) = &mut self.phase else { return };
        if !leading.is_extending() {
            return;
        }
        match answer.verdict {
            Verdict::Granted | Verdict::Extended | Verdict::Refilled => {
                self.nodes[node].told_key = None;
                let is_refill = answer.verdict == Verdict::Refilled
                    && leading.leases.run(node) == Some(answer.run)
                    && leading.leases.until(node).is_some_and(|until| now < until);
                let is_ours = answer.verdict != Verdict::Granted || answer.token == leading.claim.token;
                if counts && is_ours {
                    leading.leases.count(node, answer.run, reply.sent + validity);
                    self.confirm(now, reply, answer.run);
                }
                if is_refill {
                    self.tell(Event::NodeRefilled { node });
                }
            }
            Verdict::LostOver | Verdict::LostOwner => self.lose(now, reply, answer),
            Verdict::Held
            | Verdict::Quarantined
            | Verdict::Outdated
            | Verdict::Seen
            | Verdict::Free
            | Verdict::Newer => {}
        }
        self.move_deadline(now);
    }

    /// The deadline follows the lease vector, both ways; past it, the leadership is over.
    fn move_deadline(&mut self, now: Moment) {
        let quorum = self.quorum;
        let Phase::Leading(leading) = &mut self.phase else { return };
        match leading.leases.deadline(quorum).filter(|deadline| *deadline > now) {
            Some(deadline) => {
                assert!(deadline <= now + self.timing.ttl(), "a deadline lies within one ttl");
                leading.deadline = deadline;
            }
            None => {
                let reason = leading.stopping.as_ref().map_or(StepDown::Lost, |stopping| stopping.reason);
                self.end_leadership(now, reason);
            }
        }
    }

    fn confirm(&mut self, now: Moment, reply: &Reply, run: RunId) {
        let (quorum, validity) = (self.quorum, self.timing.validity());
        let Phase::Leading(leading) = &mut self.phase else { return };
        let Some(round) = leading.round.as_mut().filter(|round| round.round == reply.round) else { return };
        if !round.confirmed.contains(&run) {
            round.confirmed.push(run);
        }
        if round.confirmed.len() < quorum || round.is_told {
            return;
        }
        round.is_told = true;
        let took = now.since(round.started);
        // The round is over for timers; the replies that are still to come are absorbed by attempt, not by round.
        leading.next_extend = round.started + self.timing.renew();
        leading.round = None;
        leading.failed_rounds = 0;
        leading.extended_at = now;
        let left = leading.deadline.since(now).as_micros() * 1000 / validity.as_micros().max(1);
        let margin_left = Some(u16::try_from(left.min(1000)).unwrap_or(1000));
        self.tell(Event::Extend { outcome: ExtendOutcome::Ok, took, margin_left });
    }

    fn lose(&mut self, now: Moment, reply: &Reply, answer: &Answer) {
        let (nodes, quorum) = (self.nodes.len(), self.quorum);
        self.nodes[reply.node].note_lost(reply.received);
        let Phase::Leading(leading) = &mut self.phase else { return };
        leading.leases.clear(reply.node);
        let mut lost_round = None;
        if let Some(round) = leading.round.as_mut().filter(|round| round.round == reply.round) {
            round.lost += 1;
            if nodes - round.lost < quorum && !round.is_told {
                round.is_told = true;
                lost_round = Some(now.since(round.started));
            }
        }
        self.tell_trouble(reply.node, Trouble::Lost(answer.owner.clone()));
        if let Some(took) = lost_round {
            self.tell(Event::Extend { outcome: ExtendOutcome::Lost, took, margin_left: None });
        }
    }

    /// Rule 12: a node that knows of a later leadership ends ours, whatever else it says.
    pub(super) fn check_superseded(&mut self, now: Moment, answer: &Answer) {
        if let Phase::Leading(leading) = &self.phase
            && answer.over >= leading.claim.token
        {
            self.end_leadership(now, StepDown::Superseded);
        }
    }

    pub(super) fn advance_leading(&mut self, now: Moment) {
        let Phase::Leading(leading) = &mut self.phase else { return };
        if let Some(stopping) = &mut leading.stopping {
            if stopping.extends_until.is_some_and(|until| until <= now || leading.deadline - self.timing.grace() <= now)
            {
                // The work had its time: from here on the deadline ends it.
                stopping.extends_until = None;
            }
            stopping.told_until = stopping.told_until.filter(|until| now < *until);
            let (reason, is_told) = (stopping.reason, stopping.told_until.is_none());
            if reason.is_voluntary() && self.work.is_none() && is_told {
                return self.end_leadership(now, reason);
            }
        } else if leading.work_until(&self.timing) <= now {
            return self.step_down(now, StepDown::RenewTimeout);
        } else if leading.yields_at.is_some_and(|at| at <= now) {
            self.step_down(now, StepDown::AppUnhealthy);
            return self.advance_leading(now);
        }
        self.advance_extend(now);
    }

    fn advance_extend(&mut self, now: Moment) {
        let Phase::Leading(leading) = &mut self.phase else { return };
        if !leading.is_extending() {
            return;
        }
        if let Some(round) = &leading.round {
            if now < round.started + self.timing.node_timeout() {
                return;
            }
            let (is_told, took) = (round.is_told, now.since(round.started));
            leading.round = None;
            leading.next_extend = now;
            leading.failed_rounds += 1;
            let failed = leading.failed_rounds;
            if !is_told {
                self.tell(Event::Extend { outcome: ExtendOutcome::NoQuorum, took, margin_left: None });
            }
            if (1..=failed).contains(&self.timing.max_failed_extends()) {
                return self.step_down(now, StepDown::MaxFailedExtends);
            }
        }
        self.start_extend(now);
    }

    fn start_extend(&mut self, now: Moment) {
        let quarantine = self.quarantine();
        let round = self.rounds + 1;
        let Phase::Leading(leading) = &mut self.phase else { return };
        if now < leading.next_extend {
            return;
        }
        leading.claim.quarantine = quarantine;
        leading.round = Some(Extending { round, started: now, confirmed: Vec::new(), lost: 0, is_told: false });
        let (attempt, claim) = (leading.attempt, leading.claim.clone());
        self.rounds = round;
        for node in 0..self.nodes.len() {
            self.ask(node, attempt, round, What::Extend(claim.clone()));
        }
    }

    /// Tells that work is to stop. What happens next depends on why (design, step-down order).
    pub(super) fn step_down(&mut self, now: Moment, reason: StepDown) {
        let is_voluntary = reason.is_voluntary();
        let handover = matches!(reason, StepDown::Resign | StepDown::AppUnhealthy);
        let Phase::Leading(leading) = &mut self.phase else { return };
        if let Some(stopping) = &mut leading.stopping {
            if reason == StepDown::Shutdown {
                // A process that is asked to stop leaves its Service by itself: nothing is to be waited for but work.
                stopping.told_until = None;
            }
            return;
        }
        leading.stopping = Some(Stopping {
            reason,
            extends_until: is_voluntary.then(|| now + self.timing.stop_timeout().max(self.timing.handover_delay())),
            told_until: handover.then(|| now + self.timing.handover_delay()),
        });
        let (token, deadline) = (leading.claim.token, leading.deadline);
        self.tell(Event::SteppingDown { token, reason, deadline });
    }

    pub(super) fn handle_work_stopped(&mut self, now: Moment, token: Token) {
        if self.work != Some(token) {
            return;
        }
        self.work = None;
        match &self.phase {
            Phase::Leading(Leading { stopping: Some(stopping), .. }) if !stopping.reason.is_voluntary() => {
                let reason = stopping.reason;
                self.end_leadership(now, reason);
            }
            Phase::Waiting { look_at } => {
                let look_at = (*look_at).min(now.max(self.barred_until));
                self.phase = Phase::Waiting { look_at };
            }
            Phase::Leading(_) | Phase::Looking(_) | Phase::Asking(_) | Phase::Stopping => {}
        }
    }

    /// The one end of a leadership: belief first, then the release.
    fn end_leadership(&mut self, now: Moment, reason: StepDown) {
        let Phase::Leading(leading) = &self.phase else { return };
        let (attempt, claim, at) = (leading.attempt, leading.claim.clone(), now.min(leading.deadline));
        let (since, is_degraded) = (leading.since, leading.yields_at.is_some());
        let is_shutdown = self.shutdown;
        if !reason.is_voluntary() {
            let stand_back = self.jitter.between(self.timing.ttl() / 8, self.timing.ttl() / 4);
            self.barred_until = self.barred_until.max(now + stand_back);
        }
        if reason == StepDown::AppUnhealthy {
            self.stand_back_for_app(now, since, is_degraded);
        }
        self.last_step_down = Some(reason);
        self.tell(Event::SteppedDown { token: claim.token, reason, at });
        let look_at = now + self.timing.ttl() / 40;
        self.phase = if is_shutdown { Phase::Stopping } else { Phase::Waiting { look_at } };
        let nodes: Vec<NodeIndex> = (0..self.nodes.len()).collect();
        self.start_release(now, attempt, &nodes, release_of(&claim, Ended::Released));
    }

    pub(super) fn start_release(&mut self, now: Moment, attempt: AttemptId, nodes: &[NodeIndex], what: What) {
        if nodes.is_empty() {
            return;
        }
        let round = self.next_round();
        // A release that is still under way is not counted further; its asks are the client's to end.
        self.releasing =
            Some(Releasing { attempt, round, started: now, asked: nodes.len(), pending: nodes.len(), answered: 0 });
        for node in nodes {
            self.ask(*node, attempt, round, what.clone());
        }
    }

    pub(super) fn handle_release_reply(&mut self, now: Moment, reply: &Reply) {
        let Some(release) = &mut self.releasing else { return };
        if release.attempt != reply.attempt || release.round != reply.round {
            return;
        }
        release.pending = release.pending.saturating_sub(1);
        release.answered += usize::from(matches!(reply.outcome, Outcome::Released { .. }));
        self.advance_release(now);
    }

    pub(super) fn advance_release(&mut self, now: Moment) {
        let Some(release) = &self.releasing else { return };
        if release.pending > 0 && now < release.gives_up(&self.timing) {
            return;
        }
        let outcome = match release.answered {
            0 => ReleaseOutcome::Failed,
            answered if answered < release.asked => ReleaseOutcome::Partial,
            _ => ReleaseOutcome::Ok,
        };
        let took = now.since(release.started);
        self.releasing = None;
        self.tell(Event::Release { outcome, took });
    }
}
