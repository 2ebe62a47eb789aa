//! The election's decisions, pure: replies, wake-ups, requests and the time go in, asks and events come out.
//!
//! The core reads no clock, does no IO and has no randomness of its own, so that it can be searched exhaustively: it is
//! `Clone + Eq + Hash`. A failed node is data, not an error. The caller's loop is: hand in one input, [`Core::supply`]
//! a nonce if one [is wanted](Core::wants_nonce), publish [`Core::leadership`], carry out every [`Core::poll_action`],
//! sleep until [`Core::poll_timeout`] and call [`Core::handle_timeout`].
//!
//! | file | rules of the protocol |
//! |---|---|
//! | `standby` | look, sleep, back off, wake up (17, 20) |
//! | `attempt` | ask, win, raise the token, plurality, abort (8, 11, 14, 18, 19) |
//! | `leading` | extend, refill, step down, end once, release (10, 12, 13) |
//! | `health` | app health as a condition |
//! | `view` | [`Leadership`](super::leadership::Leadership) for everyone else |

mod attempt;
mod health;
mod leading;
mod standby;
mod view;

#[cfg(test)]
#[expect(clippy::wildcard_enum_match_arm, reason = "a test picks out what it is about")]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Moment;
use crate::election::event::{AcquireOutcome, Event, StepDown};
use crate::election::evidence::{Evidence, Noted, Trouble, lower_median};
use crate::election::leadership::Holder;
use crate::election::request::Request;
use crate::election::timing::Timing;
use crate::redsync::name::{Identity, Nonce};
use crate::redsync::reply::{
    Answer, Ask, AttemptId, Ended, Kind, NodeEvent, NodeIndex, Outcome, Reply, Token, Verdict, What, quorum,
};

use crate::redsync::tally::Tally;

use attempt::Attempt;
use health::AppHealth;
use leading::{Leading, Releasing};
use standby::Look;

/// A survey goes with every so-many-th look: often enough to follow a fleet that grows, too seldom to cost anything.
const SURVEY_EVERY: u64 = 10;
/// And with this one of the first: those that start together know of each other before their first leader can die.
const EARLY_SURVEY: u64 = 1;

/// How far apart candidates look that have waited for the same instant, on the average (rule 20): about as long as the
/// first one needs to look and to be granted a quorum on a near network, so that few others have begun by then. It
/// costs the fleet no more than this, however many they are, since the first of them is expected after it. A tenth of it
/// lets a third of a hundred candidates ask at once, and the machines are busy with their asks for longer.
const CROWD_SPACING: Duration = Duration::from_micros(250);
/// The spread of a few: beyond the accuracy of timers.
const CROWD_LEAST: Duration = Duration::from_micros(300);
/// The spread of very many, and of a number that is no longer true: whoever comes last has not lost much.
const CROWD_MOST: Duration = Duration::from_millis(50);

/// What the core is built from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Setting {
    /// Who this replica is.
    pub identity: Identity,
    /// The nodes' names, in the configured order; how many there are sets the quorum.
    pub nodes: Vec<String>,
    /// The fingerprint of our list of nodes.
    pub list: String,
    /// All durations.
    pub timing: Timing,
    /// Work depends on leadership that is reported by [`Request::WorkStopped`].
    pub guarded: bool,
    /// App health is a condition of leadership, told by [`Request::Health`]: it counts as sick until then, and a sick one
    /// leads only where nobody else has held the lock for this long. `None`: it is none.
    pub app_grace: Option<Duration>,
    /// Seeds the jitter.
    pub seed: u64,
}

/// What the caller is to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Action {
    /// Ask this node that. There must be exactly one reply.
    Ask(NodeIndex, Ask),
    /// Log and count this.
    Tell(Event),
}

/// One replica's part in the election of one lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Core {
    identity: Identity,
    names: Vec<String>,
    list: String,
    timing: Timing,
    guarded: bool,
    quorum: usize,
    nodes: Vec<Evidence>,
    jitter: Jitter,
    nonce: Option<Nonce>,
    phase: Phase,
    releasing: Option<Releasing>,
    rounds: u64,
    attempts: AttemptId,
    /// The largest token seen anywhere.
    seen: Token,
    /// The longest time that anybody may keep a key, as far as was seen.
    longest: Duration,
    looks: u64,
    subscribers: u64,
    /// A release was told since the round began.
    woken: bool,
    /// Rounds in a row that were not decided for anybody.
    undecided: u32,
    /// The pause after a lost attempt: a connection that comes up does not cut it short, for the attempt's own
    /// clean-up may have made it.
    pauses_until: Moment,
    /// A look has been decided.
    started: bool,
    draining: bool,
    shutdown: bool,
    app: AppHealth,
    barred_until: Moment,
    /// Guarded work that has not been reported as stopped.
    work: Option<Token>,
    holder: Option<Holder>,
    /// The ballots of the last round that ended without a win.
    standing: Tally,
    other_valid: Option<Moment>,
    last_step_down: Option<StepDown>,
    list_mismatch: bool,
    actions: VecDeque<Action>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Waiting {
        look_at: Moment,
    },
    Looking(Look),
    Asking(Attempt),
    Leading(Leading),
    /// Told to stop: only a release may be left.
    Stopping,
}

impl Core {
    /// A candidate that takes its first look at `now`.
    #[must_use]
    pub fn new(setting: Setting, now: Moment) -> Self {
        let Setting { identity, nodes: names, list, timing, guarded, app_grace, seed } = setting;
        Self {
            identity,
            list,
            guarded,
            quorum: quorum(names.len()),
            standing: Tally::new(names.len(), quorum(names.len())),
            nodes: vec![Evidence::default(); names.len()],
            names,
            timing,
            jitter: Jitter(seed),
            nonce: None,
            phase: Phase::Waiting { look_at: now },
            releasing: None,
            rounds: 0,
            attempts: 0,
            seen: 0,
            longest: Duration::ZERO,
            looks: 0,
            subscribers: 0,
            woken: false,
            undecided: 0,
            pauses_until: Moment::default(),
            started: false,
            draining: false,
            shutdown: false,
            app: AppHealth::new(app_grace),
            barred_until: Moment::default(),
            work: None,
            holder: None,
            other_valid: None,
            last_step_down: None,
            list_mismatch: false,
            actions: VecDeque::new(),
        }
    }

    /// Whether the next attempt has no nonce yet.
    #[must_use]
    pub fn wants_nonce(&self) -> bool {
        self.nonce.is_none()
    }

    /// Hands in the next attempt's nonce, from the system's generator.
    pub fn supply(&mut self, nonce: Nonce) {
        self.nonce = Some(nonce);
    }

    /// Takes a reply.
    pub fn handle_reply(&mut self, now: Moment, reply: Reply) {
        self.expire(now);
        match &reply.outcome {
            Outcome::Answer(answer) => self.learn(&reply, answer),
            Outcome::Failed(kind) => self.set_silent(reply.node, *kind),
            Outcome::Released { .. } => self.set_answered(reply.node, false),
            Outcome::Survey { subscribers, list } => self.survey(*subscribers, list.as_deref()),
            Outcome::Plain { .. } | Outcome::Unsent => {}
        }
        self.handle_release_reply(now, &reply);
        if let Outcome::Answer(answer) = &reply.outcome {
            self.check_superseded(now, answer);
        }
        match &mut self.phase {
            Phase::Looking(look) if reply.attempt == 0 && reply.round == look.round => self.handle_look(now, &reply),
            Phase::Asking(attempt) if reply.attempt == attempt.id => self.handle_acquire(now, &reply),
            Phase::Leading(leading) if reply.attempt == leading.attempt => self.handle_extend(now, &reply),
            Phase::Waiting { .. } | Phase::Looking(_) | Phase::Asking(_) | Phase::Leading(_) | Phase::Stopping => {}
        }
        self.advance(now);
    }

    /// Takes what a connection tells.
    pub fn handle_node(&mut self, now: Moment, event: &NodeEvent) {
        self.expire(now);
        match *event {
            NodeEvent::Up { node, run: _, replid, evicts } => {
                self.nodes[node].replid = Some(replid);
                self.nodes[node].evicts = evicts;
                let came_back = self.reachable() < self.quorum;
                if let Phase::Waiting { look_at } = self.phase
                    && came_back
                {
                    let soon = (now + self.crowd_jitter()).max(self.pauses_until);
                    self.phase = Phase::Waiting { look_at: look_at.min(soon) };
                }
            }
            NodeEvent::Down { node, kind } => self.set_silent(node, kind),
        }
        self.advance(now);
    }

    /// A release was told on the lock's channel: look at once, or as soon as the round under way has ended.
    pub fn handle_wake(&mut self, now: Moment) {
        self.expire(now);
        self.woken = true;
        // While we stand back it may be our own release that is told.
        if now >= self.barred_until {
            self.app.note_taken();
        }
        // It is still the one that was told last: who looks and finds it again has nothing to tell.
        if let Some(holder) = self.holder.as_mut().filter(|holder| now < holder.until) {
            holder.until = now;
            self.other_valid = Some(now);
        }
        if let Phase::Waiting { look_at } = self.phase {
            self.woken = false;
            let soon = now + self.crowd_jitter();
            self.phase = Phase::Waiting { look_at: look_at.min(soon) };
        }
        self.advance(now);
    }

    /// Takes a request of the rest of the process.
    pub fn handle_request(&mut self, now: Moment, request: &Request) {
        self.expire(now);
        match *request {
            Request::WorkStopped(token) => self.handle_work_stopped(now, token),
            Request::Resign { reason, stand_back } => {
                self.barred_until = self.barred_until.max(now + stand_back);
                self.cancel_attempt(now);
                self.step_down(now, reason);
            }
            Request::Drain => {
                self.draining = true;
                self.cancel_attempt(now);
            }
            Request::Health(healthy) => self.handle_health(now, healthy),
            Request::Shutdown => {
                self.shutdown = true;
                self.cancel_attempt(now);
                match self.phase {
                    Phase::Leading(_) => self.step_down(now, StepDown::Shutdown),
                    Phase::Waiting { .. } | Phase::Looking(_) | Phase::Asking(_) | Phase::Stopping => {
                        self.phase = Phase::Stopping;
                    }
                }
            }
        }
        self.advance(now);
    }

    /// Does what is due. Calling it early or twice is harmless.
    pub fn handle_timeout(&mut self, now: Moment) {
        self.expire(now);
        self.advance(now);
    }

    /// When [`Core::handle_timeout`] is to be called at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Moment> {
        let phase = match &self.phase {
            Phase::Waiting { look_at } => Some(*look_at),
            Phase::Looking(look) => Some(look.settles(self.quorum, &self.timing)),
            Phase::Asking(attempt) => Some(attempt.next_step(self.quorum, &self.timing)),
            Phase::Leading(leading) => Some(leading.next_step(&self.timing)),
            Phase::Stopping => None,
        };
        let release = self.releasing.as_ref().map(|release| release.gives_up(&self.timing));
        phase.into_iter().chain(release).min()
    }

    /// The next thing to do, if any.
    #[must_use]
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The attempt or leadership whose asks may still be sent; those of every other are over.
    #[must_use]
    pub fn live_attempt(&self) -> Option<AttemptId> {
        match &self.phase {
            Phase::Asking(attempt) => Some(attempt.id),
            Phase::Leading(leading) => Some(leading.attempt),
            Phase::Waiting { .. } | Phase::Looking(_) | Phase::Stopping => None,
        }
    }

    /// Told to stop, and everything is cleaned up as far as it can be.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Stopping) && self.releasing.is_none()
    }

    /// Nodes that can never vote as configured, if so many that a quorum is out of reach; only before the first look
    /// is decided, and only when every node has answered.
    #[must_use]
    pub fn refused(&self) -> Option<Vec<(NodeIndex, Kind)>> {
        let hopeless: Vec<_> = (0..self.nodes.len())
            .filter_map(|node| self.error(node).filter(|kind| kind.is_final()).map(|kind| (node, kind)))
            .collect();
        let known = |node: NodeIndex| self.nodes[node].answered.is_some() || hopeless.iter().any(|(at, _)| *at == node);
        if self.started || !(0..self.nodes.len()).all(known) {
            return None;
        }
        (self.nodes.len() - hopeless.len() < self.quorum).then_some(hopeless)
    }

    /// One place that moves time on: what is due is done, until nothing is.
    fn advance(&mut self, now: Moment) {
        self.advance_release(now);
        match self.phase {
            Phase::Waiting { look_at } if look_at <= now => self.start_look(now),
            Phase::Looking(_) => self.decide_look(now),
            Phase::Asking(_) => self.decide_attempt(now),
            Phase::Leading(_) => self.advance_leading(now),
            Phase::Waiting { .. } | Phase::Stopping => {}
        }
    }

    /// Takes from an answer what every answer teaches, whichever attempt it belongs to.
    fn learn(&mut self, reply: &Reply, answer: &Answer) {
        let step = self.timing.ttl() - self.timing.validity();
        self.seen = self.seen.max(answer.token).max(answer.owner_token.unwrap_or(0));
        self.grow_quarantine(answer.ttl);
        if let (Some(owner), None, Some(left)) = (&answer.owner, answer.owner_token, answer.left)
            && owner.identity().is_none()
        {
            self.grow_quarantine(left.min(self.timing.ttl() * 10));
        }
        let (node, quarantine) = (reply.node, self.quarantine());
        let noted = self.nodes[node].note(reply, answer, step);
        let evidence = &mut self.nodes[node];
        evidence.answered = evidence.answered.max(Some(reply.received));
        evidence.latency = Some(reply.received.since(reply.sent));
        evidence.no_expiry &= answer.left.is_none();
        let was_quarantined = evidence.quarantined_until.is_some();
        evidence.quarantined_until = match (answer.quarantined, answer.verdict, answer.left) {
            (false, _, _) => None,
            (true, Verdict::Free | Verdict::Quarantined, Some(left)) => Some(reply.received + left),
            (true, _, _) => evidence.quarantined_until.or(Some(reply.received + quarantine)),
        };
        if let (false, Some(until)) = (was_quarantined, evidence.quarantined_until) {
            self.tell(Event::NodeQuarantined { node, left: until.since(reply.received) });
        }
        if noted == Noted::ClockStepped {
            self.tell(Event::ClockStepped { node });
        }
        self.nodes[node].newer = answer.verdict == Verdict::Newer;
        self.set_answered(node, answer.verdict != Verdict::Free);
    }

    fn grow_quarantine(&mut self, ttl: Duration) {
        let before = self.quarantine();
        self.longest = self.longest.max(ttl);
        let used = self.quarantine();
        if used > before {
            self.tell(Event::Quarantine { used });
        }
    }

    /// The quarantine in use (rule 21): never shorter than a key that anybody may hold.
    fn quarantine(&self) -> Duration {
        let micros = self.longest.as_micros() * u128::from(1000 + self.timing.margin_permille()) / 1000;
        // Whole milliseconds, rounded up: what Redis counts in.
        let longest = Duration::from_millis(u64::try_from(micros.div_ceil(1000)).unwrap_or(u64::MAX));
        self.timing.quarantine().max(longest)
    }

    /// Why `node`'s votes are void beside the others', however well it answers (docs/protocol.md, the same server twice).
    fn void_by_others(&self, node: NodeIndex) -> Option<Kind> {
        let this = &self.nodes[node];
        // A name that gives no answer may have led to this server when it gave its last.
        let is_same = |other: &Evidence| {
            let is_same_run = this.run().is_some() && this.run() == other.run();
            !other.is_silent && (is_same_run || this.replid.is_some() && this.replid == other.replid)
        };
        // A name that was led elsewhere comes after one that has always led there, so that the vote there is kept.
        let rank = |at: NodeIndex| (self.nodes[at].changed_at(), at);
        let is_ahead = |at: &NodeIndex| rank(*at) < rank(node);
        if (0..self.nodes.len()).filter(is_ahead).any(|at| is_same(&self.nodes[at])) {
            return Some(Kind::SameNode);
        }
        let offset = self.clock_offset_us(node)?.abs() - this.clock()?.1;
        let limit = i64::try_from(self.quarantine().as_micros() / 2).unwrap_or(i64::MAX);
        (offset > limit).then_some(Kind::Clock)
    }

    /// Why `node` has no vote, beside quarantine.
    fn error(&self, node: NodeIndex) -> Option<Kind> {
        let evidence = &self.nodes[node];
        let newer = evidence.newer.then_some(Kind::NewerState);
        evidence.failed.or(newer).or_else(|| self.void_by_others(node))
    }

    /// The node's clock less the median node's, in microseconds.
    fn clock_offset_us(&self, node: NodeIndex) -> Option<i64> {
        let median = lower_median(self.servers().filter_map(Evidence::clock).map(|(middle, _)| middle).collect())?;
        self.nodes[node].clock().map(|(middle, _)| middle - median)
    }

    /// What is known of each server once, at however many addresses it was met: by the one that answered last, for what
    /// another said of its clock may be too old to count.
    fn servers(&self) -> impl Iterator<Item = &Evidence> {
        let is_latest = |(at, node): &(usize, &Evidence)| {
            let is_later = |(other, evidence): (usize, &Evidence)| {
                evidence.run() == node.run()
                    && (evidence.answered > node.answered || evidence.answered == node.answered && other < *at)
            };
            node.run().is_none() || !self.nodes.iter().enumerate().any(is_later)
        };
        self.nodes.iter().enumerate().filter(is_latest).map(|(_, node)| node)
    }

    /// Whether an answer that would be a vote is one (rule 9).
    fn counts(&self, reply: &Reply, answer: &Answer) -> bool {
        let node = &self.nodes[reply.node];
        !answer.quarantined
            && self.void_by_others(reply.node).is_none()
            && node.run() == Some(answer.run)
            && node.doubtful_until(self.quarantine()).is_none_or(|until| until <= reply.received)
            && node.is_after_loss(reply)
    }

    /// An answer mends what was wrong. But neither a look that finds a node free nor a release writes anything new, so
    /// that after them a node that refuses writes is what it was: it would be told lost and back at each attempt.
    fn set_answered(&mut self, node: NodeIndex, wrote: bool) {
        let failed = self.nodes[node].failed.filter(|kind| !wrote && kind.refuses_writes());
        self.nodes[node].is_silent = false;
        self.set_failed(node, failed);
    }

    /// Tells what is in the way at a node's key, once: it may be met at every look or extend for days.
    fn tell_trouble(&mut self, node: NodeIndex, trouble: Trouble) {
        if self.nodes[node].told_key.as_ref() == Some(&trouble) {
            return;
        }
        self.nodes[node].told_key = Some(trouble.clone());
        self.tell(match trouble {
            Trouble::Lost(owner) => Event::NodeLost { node, owner },
            Trouble::NoExpiry(owner) => Event::NoExpiry { node, owner },
        });
    }

    /// Its latest word was no answer.
    fn set_silent(&mut self, node: NodeIndex, kind: Kind) {
        self.nodes[node].is_silent = true;
        self.set_failed(node, Some(kind));
    }

    fn set_failed(&mut self, node: NodeIndex, failed: Option<Kind>) {
        self.nodes[node].failed = failed;
        let error = self.error(node);
        if self.nodes[node].told != error {
            self.nodes[node].told = error;
            self.tell(Event::Node { node, error });
        }
    }

    /// Nodes whose latest word was an answer.
    fn reachable(&self) -> usize {
        self.nodes.iter().filter(|node| node.failed.is_none() && node.answered.is_some()).count()
    }

    fn survey(&mut self, subscribers: Option<u64>, list: Option<&str>) {
        if let Some(subscribers) = subscribers {
            self.subscribers = subscribers;
        }
        let Some(list) = list else { return };
        let by = differences(&self.list, list);
        if (by > 0) != self.list_mismatch {
            self.list_mismatch = by > 0;
            self.tell(Event::ListMismatch { differs: by > 0, by });
        }
    }

    /// Gives up the attempt under way, if there is one.
    fn cancel_attempt(&mut self, now: Moment) {
        if matches!(self.phase, Phase::Asking(_)) {
            self.abort(now, AcquireOutcome::Cancelled);
        }
    }

    /// Whether an attempt may start.
    fn may_campaign(&self, now: Moment) -> bool {
        !self.draining && !self.shutdown && self.app.is_fit(now) && self.work.is_none() && self.barred_until <= now
    }

    fn next_round(&mut self) -> u64 {
        self.rounds += 1;
        self.rounds
    }

    fn ask(&mut self, node: NodeIndex, attempt: AttemptId, round: u64, what: What) {
        self.actions.push_back(Action::Ask(node, Ask { attempt, round, what }));
    }

    fn tell(&mut self, event: Event) {
        self.actions.push_back(Action::Tell(event));
    }

    /// Spreads what many do at the same instant (rule 20).
    fn crowd_jitter(&mut self) -> Duration {
        let spread = CROWD_SPACING.saturating_mul(u32::try_from(self.subscribers).unwrap_or(u32::MAX));
        self.jitter.between(Duration::ZERO, spread.clamp(CROWD_LEAST, CROWD_MOST.min(self.timing.ttl() / 4)))
    }
}

/// How many nodes are in one list and not in the other.
fn differences(ours: &str, theirs: &str) -> usize {
    let only = |a: &str, b: &str| a.split(',').filter(|node| !b.split(',').any(|other| other == *node)).count();
    only(ours, theirs) + only(theirs, ours)
}

/// Pseudo-random numbers for jitter, seeded from outside.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Jitter(u64);

impl Jitter {
    /// A duration between `low` and `high`, both possible.
    fn between(&mut self, low: Duration, high: Duration) -> Duration {
        let span = u64::try_from(high.saturating_sub(low).as_micros()).unwrap_or(u64::MAX - 1);
        low + Duration::from_micros(self.next() % (span + 1))
    }

    /// SplitMix64: eight lines, and all that jitter needs.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

/// How a release came to be asked for, for the files beside this one.
fn release_of(claim: &crate::redsync::reply::Claim, ended: Ended) -> What {
    What::Release { owner: claim.owner.clone(), token: claim.token, ended }
}
