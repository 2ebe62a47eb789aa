//! The invariants. Each is looked at whenever anything changes that it speaks of.

use std::time::Duration;

use redleader::clock::Moment;
use redleader::election::event::{AcquireOutcome, Event as Told, StepDown};
use redleader::election::leadership::Leadership;
use redleader::redsync::name::Owner;
use redleader::redsync::reply::{Outcome, RunId, Token, Verdict, What, quorum};

use crate::candidate::{Backing, Published};
use crate::event::{Event, Letter};
use crate::node::Lock;
use crate::profile::{RATE, micros};
use crate::world::World;

/// Timers of a core within one ttl: a look, an attempt and their repetitions are a few dozen.
const TIMERS: u64 = 400;
/// Asks of a core within one ttl, for each node.
const ASKS: u64 = 120;

impl World {
    /// I1: at most one believes at any true instant. A belief lasts from the publication of a win until it is withdrawn
    /// or its deadline has passed on its owner's clock, so it is enough to look around at each win.
    pub fn check_published(&mut self, slot: usize, leadership: &Leadership) {
        let now = self.clock_now(slot);
        let old = self.candidates[slot].published;
        let new = leadership.belief.as_ref().map(|belief| Published {
            token: belief.token,
            deadline: belief.deadline,
            is_stepping_down: belief.stepping_down.is_some(),
        });
        self.candidates[slot].published = new;
        let Some(belief) = new else { return };
        if now >= belief.deadline {
            self.fail(&format!("candidate {slot}: a belief is published after its deadline"));
        }
        match old.filter(|old| old.token == belief.token) {
            Some(old) => {
                if now >= old.deadline {
                    self.fail(&format!("candidate {slot}: a belief that had ended came back"));
                }
                if old.is_stepping_down && !belief.is_stepping_down {
                    self.fail(&format!("candidate {slot}: a step-down was taken back"));
                }
            }
            None => self.check_alone(slot, belief.token),
        }
        self.check_leases(slot, leadership);
    }

    fn check_alone(&mut self, slot: usize, token: Token) {
        for other in (0..self.candidates.len()).filter(|other| *other != slot) {
            let theirs = self.clock_now(other);
            if let Some(belief) = self.candidates[other].published.filter(|belief| theirs < belief.deadline) {
                let left = belief.deadline.since(theirs);
                self.fail(&format!(
                    "candidate {slot} leads with token {token} while candidate {other} believes with token {} for \
                     another {left:?}",
                    belief.token
                ));
            }
        }
        if self.now < self.redsync_until {
            self.fail(&format!("candidate {slot} leads while a contender that speaks Redsync believes"));
        }
        if self.last_leader.is_some_and(|last| last != slot) {
            self.count("hand-overs");
        }
        self.last_leader = Some(slot);
    }

    /// An unknown reply never counts: every lease is backed by a grant that was asked for, delivered and not
    /// quarantined, and counts from before that ask was written. The deadline is the quorum-th largest.
    fn check_leases(&mut self, slot: usize, leadership: &Leadership) {
        let now = self.clock_now(slot);
        let candidate = &self.candidates[slot];
        let (Some(belief), Some(body)) = (&leadership.belief, &candidate.body) else { return };
        let validity = body.validity;
        let mut leases: Vec<(Moment, RunId)> = Vec::new();
        for (node, view) in leadership.nodes.iter().enumerate() {
            let Some(lease) = view.lease.filter(|lease| *lease > now) else { continue };
            let is_base = |base: &&Backing| base.token == belief.token && base.sent + validity == lease;
            let Some(backing) = body.backed[node].iter().find(is_base) else {
                let text = format!("candidate {slot}: the lease of node {node} until {lease:?} rests on nothing");
                return self.fail(&text);
            };
            leases.push((lease, backing.run));
        }
        leases.sort_unstable_by(|a, b| b.cmp(a));
        let mut runs = Vec::new();
        leases.retain(|(_, run)| {
            let is_new = !runs.contains(run);
            runs.push(*run);
            is_new
        });
        let quorum = quorum(candidate.list.len());
        if leases.get(quorum - 1).is_none_or(|(lease, _)| belief.deadline > *lease) {
            self.fail(&format!("candidate {slot}: the deadline {:?} is not a quorum's: {leases:?}", belief.deadline));
        }
    }

    pub fn judge_event(&mut self, slot: usize, event: &Told) {
        if self.trace.is_on() {
            self.note(&format!("candidate {slot} tells {event:?}"));
        }
        match event {
            Told::Elected { token, at, deadline, .. } => {
                self.count("elections");
                if at >= deadline {
                    self.fail(&format!("candidate {slot}: elected after its deadline"));
                }
                if *token <= self.last_token && self.are_tokens_promised() {
                    self.fail(&format!("candidate {slot}: token {token} after token {}", self.last_token));
                }
                self.last_token = self.last_token.max(*token);
                self.note_leader_back();
            }
            Told::SteppedDown { reason, at, .. } => {
                self.count(match reason {
                    StepDown::Shutdown => "ends: shutdown",
                    StepDown::Resign => "ends: resign",
                    StepDown::RenewTimeout => "ends: renew-timeout",
                    StepDown::Lost => "ends: lost",
                    StepDown::Expired => "ends: expired",
                    StepDown::Superseded => "ends: superseded",
                    StepDown::MaxFailedExtends => "ends: max-failed-extends",
                    StepDown::AppUnhealthy => "ends: app-unhealthy",
                    StepDown::ChildExited | StepDown::HookFailed => "ends: other",
                });
                if *at > self.clock_now(slot) {
                    self.fail(&format!("candidate {slot}: stepped down in the future"));
                }
            }
            Told::Acquire { outcome, took } => {
                self.count_outcome(outcome.as_str());
                if *outcome != AcquireOutcome::Won {
                    self.look_after(slot, *took);
                }
            }
            Told::NodeRefilled { .. } => self.count("keys refilled"),
            Told::NodeLost { .. } => self.count("nodes lost"),
            Told::NodeQuarantined { .. } => self.count("quarantines seen"),
            Told::ClockStepped { .. } => self.count("clock steps seen"),
            Told::SteppingDown { .. }
            | Told::HolderChanged { .. }
            | Told::Extend { .. }
            | Told::Release { .. }
            | Told::Node { .. }
            | Told::NoExpiry { .. }
            | Told::Quarantine { .. }
            | Told::ListMismatch { .. } => {}
        }
    }

    /// I5: an attempt that was made and given up with nothing wrong leaves nothing behind.
    fn look_after(&mut self, slot: usize, took: Duration) {
        let Some(since) = self.calm_since else { return };
        // What went wrong before may still be on the wires.
        let is_clean =
            self.now.saturating_sub(2 * micros(took)) > since + self.profile.late_most + micros(self.profile.longest());
        let owner = self.candidates[slot].body.as_ref().and_then(|body| body.attempt.clone());
        if let (true, false, Some(owner)) = (is_clean, self.candidates[slot].is_sick, owner) {
            let whom = self.whom(slot);
            self.plan(self.now + 3 * micros(self.profile.node_timeout), Event::NothingLeft(whom, owner));
        }
    }

    pub fn check_nothing_left(&mut self, slot: usize, owner: &Owner) {
        self.count("clean-ups checked");
        for server in self.healthy.clone() {
            let at = self.node_time(server) / 1000;
            if self.is_calm && self.servers[server].state.owner(at) == Some(owner) {
                self.fail(&format!("candidate {slot} has left {owner} on server {server}"));
            }
        }
    }

    fn count_outcome(&mut self, outcome: &'static str) {
        *self.counts.entry(("attempts", outcome)).or_default() += 1;
    }

    /// The promise about tokens needs nodes' clocks that agree where a quorum lost its data.
    fn are_tokens_promised(&self) -> bool {
        !(self.profile.has_big_steps && self.has_lost_data)
    }

    /// A token follows what is known of tokens, or a clock that is not alone: one that is far ahead would use up years.
    pub fn check_proposal(&mut self, slot: usize, token: Token) {
        let mut clocks: Vec<u64> = (0..self.servers.len()).map(|server| self.node_time(server)).collect();
        clocks.sort_unstable();
        // A clock is read a while before, and carried forward on another one.
        let latest = clocks[clocks.len() - 2] + micros(self.profile.longest()) / 4;
        if token > latest.max(self.high_token + 16) && !self.profile.has_big_steps {
            self.fail(&format!("candidate {slot}: token {token} from one clock alone, others show {latest} at most"));
        }
        self.high_token = self.high_token.max(token);
    }

    /// I4 and I5: what was released is free at once, and is never held again.
    pub fn check_applied(&mut self, server: usize, letter: &Letter, outcome: &Outcome) {
        let at = self.node_time(server) / 1000;
        let state = &mut self.servers[server].state;
        if let (What::Release { owner, .. }, Outcome::Released { .. }) = (&letter.what, outcome) {
            if state.owner(at) == Some(owner) {
                return self.fail(&format!("server {server} holds {owner} right after its release"));
            }
            if state.refuses.is_none() && !state.state.unreadable {
                let owner = owner.clone();
                let released = &mut self.servers[server].released;
                if released.len() >= 32 {
                    released.pop_front();
                }
                released.push_back(owner);
            }
            let owed = &mut self.servers[server].owed;
            owed.take_if(|(owed, _)| owed == owner);
            return;
        }
        let taken = match (&letter.what, outcome) {
            (What::Acquire(claim), Outcome::Answer(answer)) if answer.verdict == Verdict::Granted => Some(claim),
            (What::Extend(claim), Outcome::Answer(answer)) if answer.verdict == Verdict::Refilled => Some(claim),
            _ => None,
        };
        self.check_vote(server, letter, outcome);
        if let Some(claim) = taken {
            self.check_cleaned(server, letter, &claim.owner);
        }
        if let Some(claim) = taken
            && self.servers[server].released.contains(&claim.owner)
        {
            self.fail(&format!("server {server} holds {} again after its release", claim.owner));
        }
    }

    /// A vote blocks everyone else for a whole ttl from when it was given, and the node has its token.
    fn check_vote(&mut self, server: usize, letter: &Letter, outcome: &Outcome) {
        let now = self.node_time(server) / 1000;
        let (What::Acquire(claim) | What::Extend(claim), Outcome::Answer(answer)) = (&letter.what, outcome) else {
            return;
        };
        if !matches!(answer.verdict, Verdict::Granted | Verdict::Extended | Verdict::Refilled) {
            return;
        }
        let state = &self.servers[server].state;
        let until = now + micros(claim.ttl) / 1000;
        let holds = state.lock.as_ref().is_some_and(|lock| lock.owner == claim.owner && lock.expires == Some(until));
        if !holds || state.state.until != until || state.state.token < answer.token.max(claim.token) {
            let state = format!("{:?} {:?}", state.lock, state.state);
            return self
                .fail(&format!("server {server} answers {:?} to {claim:?} at {now} with {state}", answer.verdict));
        }
        if answer.quarantined {
            return;
        }
        // The fastest clock that is allowed decides.
        let until = self.now + micros(claim.ttl) * 1_000_000 / (1_000_000 + RATE.unsigned_abs());
        let before = self.servers[server].owed.replace((claim.owner.clone(), until));
        if let Some((owner, until)) = before.filter(|(owner, until)| *owner != claim.owner && self.now < *until) {
            let left = until - self.now;
            self.fail(&format!("server {server} gives {} what it owes {owner} for another {left} us", claim.owner));
        }
    }

    /// Whatever takes effect after its attempt is over has been asked to be released.
    fn check_cleaned(&mut self, server: usize, letter: &Letter, owner: &Owner) {
        let Some(body) = self.candidates[letter.from.slot].body.as_ref().filter(|_| self.is_alive(letter.from)) else {
            return;
        };
        let is_live = body.core.live_attempt().is_some() && body.attempt.as_ref() == Some(owner);
        let is_asked = body.cleaned.iter().any(|(node, cleaned)| *node == letter.node && cleaned == owner);
        if !is_live && !is_asked && !self.candidates[letter.from.slot].is_paused {
            self.fail(&format!("server {server} is given {owner} after its attempt, and nobody takes it away"));
        }
    }

    /// A script takes nobody else's key away, and gives it no time.
    pub fn check_others_key(&mut self, server: usize, letter: &Letter, before: Option<Lock>) {
        let now = self.node_time(server) / 1000;
        let owner = match &letter.what {
            What::Acquire(claim) | What::Extend(claim) => Some(&claim.owner),
            What::Release { owner, .. } => Some(owner),
            What::Look { .. } | What::Observe { .. } | What::Survey | What::Plain(_) => None,
        };
        let Some(before) = before.filter(|lock| Some(&lock.owner) != owner) else { return };
        let after = self.servers[server].state.lock.as_ref();
        let is_alive = before.expires.is_none_or(|at| now <= at);
        let is_kept = after.is_some_and(|lock| lock.owner == before.owner && lock.expires <= before.expires);
        if is_alive && !is_kept {
            self.fail(&format!("server {server}: {before:?} was made {after:?} by {:?}", letter.what));
        }
    }

    /// What a delivered reply backs.
    pub fn note_backing(&mut self, letter: &Letter, outcome: &Outcome) {
        let (What::Acquire(claim) | What::Extend(claim), Outcome::Answer(answer)) = (&letter.what, outcome) else {
            return;
        };
        // A node that grants an older ask again answers with the larger token that it has stored: that is what it backs.
        let token = match answer.verdict {
            Verdict::Granted => answer.token,
            Verdict::Extended | Verdict::Refilled => claim.token,
            Verdict::Held
            | Verdict::Quarantined
            | Verdict::Outdated
            | Verdict::LostOver
            | Verdict::LostOwner
            | Verdict::Seen
            | Verdict::Free
            | Verdict::Newer => return,
        };
        let Some(body) = &mut self.candidates[letter.from.slot].body else { return };
        let Some(sent) = body.clients[letter.node].sent_at(letter.wire, letter.lane, letter.serial) else { return };
        if !answer.quarantined {
            let bases = &mut body.backed[letter.node];
            while bases.front().is_some_and(|base| base.sent + body.ttl < sent) {
                bases.pop_front();
            }
            bases.push_back(Backing { token, sent, run: answer.run });
        }
    }

    /// No spin, and nothing that piles up.
    pub fn check_pace(&mut self, slot: usize) {
        let now = self.clock_now(slot);
        let Some(body) = &mut self.candidates[slot].body else { return };
        let nodes = body.clients.len() as u64;
        let passed = now.since(body.ticks.since);
        if passed >= body.ttl {
            let (timers, asks) = (body.ticks.timers, body.ticks.asks / nodes);
            body.ticks.timers = 0;
            body.ticks.asks = 0;
            body.ticks.since = now;
            // A pause makes one window long, and nothing is done in it.
            self.most("timers in one ttl", timers);
            self.most("asks of one node in one ttl", asks);
            if timers > TIMERS || asks > ASKS {
                self.fail(&format!("candidate {slot}: {timers} timers, {asks} asks of each node in {passed:?}"));
            }
        }
        let ttl = micros(self.profile.longest());
        if self.candidates[slot].stopping_since.is_some_and(|since| self.now > since + 3 * ttl) {
            self.fail(&format!("candidate {slot} was told to stop and does not end"));
        }
        let Some(body) = &self.candidates[slot].body else { return };
        let open = body.clients.iter().map(crate::client::Client::open).max().unwrap_or_default();
        self.most("open asks of one node", open as u64);
        if open > 10 {
            self.fail(&format!("candidate {slot}: {open} open asks of one node"));
        }
    }

    /// A leader is back in time, and is alone.
    pub fn judge_calm(&mut self) {
        // Somebody may have learnt of a longer key meanwhile, and waits longer because of it.
        let ends = self.calm_since.unwrap_or_default() + self.calm_bound();
        if self.now < ends {
            return self.plan(ends, Event::Judge);
        }
        let ttl = micros(self.profile.longest());
        let leaders: Vec<(usize, Token)> = (0..self.candidates.len())
            .filter_map(|slot| {
                let now = self.clock_now(slot);
                let belief = self.candidates[slot].published?;
                (now < belief.deadline).then_some((slot, belief.token))
            })
            .collect();
        match leaders.as_slice() {
            [leader] => self.calm_leader = Some(*leader),
            // It was just ended by a node that kept a larger token of a time before all clocks went back.
            [] if !self.are_tokens_promised() => return self.plan(self.now + ttl, Event::Judge),
            [] => self.fail("no leader, though a majority has been healthy for long enough"),
            _ => self.fail(&format!("leaders {leaders:?}")),
        }
        self.count("calms judged");
        self.plan(self.now + 2 * ttl, Event::Trouble);
    }

    /// The leader of a calm keeps its lead, and has every healthy node.
    pub fn judge_end_of_calm(&mut self) {
        let Some((slot, token)) = self.calm_leader.take() else { return };
        let is_same = self.candidates[slot].published.is_some_and(|belief| belief.token == token);
        // A node that kept a larger token of a time before all clocks went back ends it, which is right.
        if !is_same && self.are_tokens_promised() {
            return self.fail(&format!("candidate {slot} lost its leadership {token} while nothing was wrong"));
        }
        for server in if is_same { self.healthy.clone() } else { Vec::new() } {
            if !self.candidates[slot].list.contains(&server) {
                continue;
            }
            let at = self.node_time(server) / 1000;
            let state = &self.servers[server].state;
            let holds = state.owner(at).is_some() && state.owner(at) == state.state.owner.as_ref();
            if !holds || state.state.grant != Some(token) {
                self.fail(&format!(
                    "server {server} does not hold the lock for candidate {slot}, token {token}, but {:?} {:?}",
                    state.lock, state.state
                ));
            }
        }
    }

    fn note_leader_back(&mut self) {
        if let Some(since) = self.calm_since {
            let ttl = micros(self.profile.longest());
            let spent = (self.now - since) * 100 / self.calm_bound().max(1);
            self.most("time to a leader in a calm, % of the bound", spent);
            self.most("time to a leader in a calm, % of ttl", (self.now - since) * 100 / ttl);
        }
    }
}
