//! One state of the world, and what can happen next.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use redleader::clock::Moment;
use redleader::election::core::{Action as Told, Core, Setting};
use redleader::election::event::{Event, StepDown};
use redleader::election::request::Request;
use redleader::election::timing::{Timing, Wish};
use redleader::redsync::name::Identity;
use redleader::redsync::reply::{Ask, Kind, NodeIndex, Outcome, Reply, RunId, Token, What};

use crate::clock::Clock;
use crate::node::{NodeState, State as LockState, apply};
use crate::plant::Plant;

pub const CANDIDATES: usize = 2;
pub const NODES: usize = 3;
const TTL: Duration = Duration::from_secs(1);
/// Two clocks that err oppositely stay just within the margin of 10 %.
const RATE: i64 = 52_000;
const DATE: u64 = 1_700_000_000_000_000;
const LIST: &str = "00000001,00000002,00000003";

/// How far the search goes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Microseconds.
    pub horizon: u64,
    /// Messages that are held back in one history.
    pub held: u8,
    pub restarts: u8,
    pub resigns: u8,
}

/// All that there is at one instant. What does not change is shared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub now: u64,
    pub candidates: [Arc<Candidate>; CANDIDATES],
    pub nodes: [Arc<NodeState>; NODES],
    pub held: Vec<Held>,
    pub holds: u8,
    pub restarts: u8,
    pub resigns: u8,
    pub last_token: Token,
    pub wins: u8,
    /// What no state may show.
    pub broken: Option<&'static str>,
}

/// A core, and the client beside it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    pub core: Core,
    pub belief: Option<(Token, Moment)>,
    /// Asked, and not on their way yet.
    pub asked: VecDeque<(NodeIndex, Ask)>,
    /// On their way, without an answer yet.
    pub open: Vec<Open>,
    nonces: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Open {
    pub node: NodeIndex,
    pub ask: Ask,
    pub sent: Moment,
}

/// A message that is held back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    pub from: usize,
    pub open: Open,
    /// The reply, if it is the reply that is late.
    pub reply: Option<Outcome>,
}

/// What becomes of a candidate's next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It arrives, and so does its reply.
    Arrives,
    /// It is on its way for as long as it likes, or for ever.
    RequestHeld,
    /// It takes effect, and its reply is on its way for as long as it likes.
    ReplyHeld,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Send(usize, Fate),
    /// A message that was held back arrives.
    Arrive(usize),
    /// A timer fires; if it is not due yet, time has gone on until it is, since nothing is on its way but what is held
    /// back.
    Timer(usize),
    RestartEmpty(NodeIndex),
    Resign(usize),
}

/// What is the same in all states.
#[derive(Clone, Debug)]
pub struct Case {
    pub bounds: Bounds,
    pub plant: Option<Plant>,
    timing: Timing,
    node_clocks: [Clock; NODES],
    clocks: [Clock; CANDIDATES],
}

impl Case {
    pub fn new(bounds: Bounds, plant: Option<Plant>) -> Self {
        let timing = Timing::new(&Wish {
            renew: Some(TTL * 2 / 5),
            node_timeout: Some(TTL / 10),
            grace: Some(TTL / 100),
            ..Wish::with_ttl(TTL)
        });
        Self {
            bounds,
            plant,
            timing: timing.unwrap(),
            node_clocks: [0, 3_000, 7_000].map(|offset| Clock::new(DATE + offset, RATE)),
            clocks: [5_000_000_000, 9_000_000_000].map(|boot| Clock::new(boot, -RATE)),
        }
    }

    /// The nodes have known the lock for long, nobody holds it, and both candidates start.
    pub fn begin(&self) -> World {
        let node = |number: usize| {
            let mut node = NodeState::new(RunId(number as u64 + 1));
            node.state = LockState { run: Some(node.run), born: Some(1), ..LockState::default() };
            node.planted = self.plant;
            Arc::new(node)
        };
        let candidate = |slot: usize| {
            let setting = Setting {
                identity: Identity::parse(["a", "b"][slot]).unwrap(),
                nodes: (0..NODES).map(|node| node.to_string()).collect(),
                list: LIST.to_owned(),
                timing: self.timing.clone(),
                guarded: false,
                app_grace: None,
                seed: slot as u64,
            };
            let core = Core::new(setting, Moment::from_micros(self.clocks[slot].read(0)));
            let mut candidate =
                Candidate { core, belief: None, asked: VecDeque::new(), open: Vec::new(), nonces: slot as u8 };
            candidate.give_nonce();
            Arc::new(candidate)
        };
        World {
            now: 0,
            candidates: [candidate(0), candidate(1)],
            nodes: [node(0), node(1), node(2)],
            held: Vec::new(),
            holds: 0,
            restarts: 0,
            resigns: 0,
            last_token: 0,
            wins: 0,
            broken: None,
        }
    }

    pub fn is_believing(&self, world: &World, slot: usize) -> bool {
        let now = self.now(world, slot);
        world.candidates[slot].belief.is_some_and(|(_, deadline)| now < deadline)
    }

    /// What can happen next.
    pub fn steps(&self, world: &World, steps: &mut Vec<Step>) {
        if world.broken.is_some() {
            return;
        }
        for slot in 0..CANDIDATES {
            if let Some((_, ask)) = world.candidates[slot].asked.front() {
                steps.push(Step::Send(slot, Fate::Arrives));
                if world.holds < self.bounds.held && !matches!(ask.what, What::Survey) {
                    steps.push(Step::Send(slot, Fate::RequestHeld));
                    steps.push(Step::Send(slot, Fate::ReplyHeld));
                }
            }
        }
        steps.extend((0..world.held.len()).map(Step::Arrive));
        if world.restarts < self.bounds.restarts {
            steps.extend((0..NODES).map(Step::RestartEmpty));
        }
        for slot in (0..CANDIDATES).filter(|_| world.resigns < self.bounds.resigns) {
            if self.is_believing(world, slot) {
                steps.push(Step::Resign(slot));
            }
        }
        let is_quiet = world.candidates.iter().all(|candidate| candidate.asked.is_empty());
        let timers = [0, 1].map(|slot| self.timer(world, slot));
        let next = timers.into_iter().flatten().min();
        for (slot, timer) in timers.into_iter().enumerate() {
            let may_fire = |at: u64| at <= world.now || is_quiet && Some(at) == next && at <= self.bounds.horizon;
            if timer.is_some_and(may_fire) {
                steps.push(Step::Timer(slot));
            }
        }
    }

    pub fn take(&self, before: &World, step: Step) -> World {
        let mut world = before.clone();
        match step {
            Step::Send(slot, fate) => self.send(&mut world, slot, fate),
            Step::Arrive(index) => {
                let held = world.held.remove(index);
                let outcome = held.reply.unwrap_or_else(|| self.apply(&mut world, held.from, &held.open));
                self.answer(&mut world, held.from, &held.open, outcome);
            }
            Step::Timer(slot) => self.fire(&mut world, slot),
            Step::RestartEmpty(node) => {
                world.restarts += 1;
                let server = Arc::make_mut(&mut world.nodes[node]);
                *server = NodeState { planted: self.plant, ..NodeState::new(RunId(server.run.0 + NODES as u64)) };
                // What was on its way to it was on a connection that is no more.
                world.held.retain(|held| held.open.node != node || held.reply.is_some());
            }
            Step::Resign(slot) => {
                world.resigns += 1;
                let request = Request::Resign { reason: StepDown::Resign, stand_back: TTL / 10 };
                self.turn(&mut world, slot, |core, now| core.handle_request(now, &request));
            }
        }
        world
    }

    fn now(&self, world: &World, slot: usize) -> Moment {
        Moment::from_micros(self.clocks[slot].read(world.now))
    }

    fn send(&self, world: &mut World, slot: usize, fate: Fate) {
        let sent = self.now(world, slot);
        let candidate = Arc::make_mut(&mut world.candidates[slot]);
        let (node, ask) = candidate.asked.pop_front().expect("a step that was offered");
        let open = Open { node, ask, sent };
        candidate.open.push(open.clone());
        let reply = match fate {
            Fate::Arrives => {
                let outcome = self.apply(world, slot, &open);
                return self.answer(world, slot, &open, outcome);
            }
            Fate::RequestHeld => None,
            Fate::ReplyHeld => Some(self.apply(world, slot, &open)),
        };
        world.holds += 1;
        world.held.push(Held { from: slot, open, reply });
    }

    /// The node's part of a request, whoever waits for its reply.
    fn apply(&self, world: &mut World, slot: usize, open: &Open) -> Outcome {
        let time = self.node_clocks[open.node].read(world.now);
        let (outcome, is_published) = apply(Arc::make_mut(&mut world.nodes[open.node]), time, LIST, &open.ask.what);
        if is_published {
            for other in (0..CANDIDATES).filter(|other| *other != slot) {
                self.turn(world, other, |core, now| core.handle_wake(now));
            }
        }
        outcome
    }

    /// A reply that nobody waits for any more is dropped.
    fn answer(&self, world: &mut World, slot: usize, open: &Open, outcome: Outcome) {
        let candidate = Arc::make_mut(&mut world.candidates[slot]);
        let Some(at) = candidate.open.iter().position(|other| other == open) else { return };
        candidate.open.remove(at);
        let Ask { attempt, round, what } = &open.ask;
        let received = self.now(world, slot);
        let reply = Reply {
            attempt: *attempt,
            round: *round,
            node: open.node,
            op: what.op(),
            sent: open.sent,
            received,
            outcome,
        };
        self.turn(world, slot, |core, now| core.handle_reply(now, reply));
    }

    /// When a candidate's next timer is due.
    fn timer(&self, world: &World, slot: usize) -> Option<u64> {
        let candidate = &world.candidates[slot];
        let timeouts = candidate.open.iter().map(|open| open.sent + self.timing.node_timeout());
        let due = timeouts.chain(candidate.core.poll_timeout()).min()?;
        Some(self.clocks[slot].when(due.as_micros()).max(world.now))
    }

    fn fire(&self, world: &mut World, slot: usize) {
        world.now = self.timer(world, slot).expect("a step that was offered");
        let now = self.now(world, slot);
        let due = |open: &&Open| open.sent + self.timing.node_timeout() <= now;
        match world.candidates[slot].open.iter().find(due).cloned() {
            Some(open) => {
                // Its reply can do nothing any more.
                world.held.retain(|held| held.reply.is_none() || held.open != open || held.from != slot);
                self.answer(world, slot, &open, Outcome::Failed(Kind::Timeout));
            }
            None => self.turn(world, slot, Core::handle_timeout),
        }
    }

    /// One turn of the driver's loop, and what must hold after it.
    fn turn(&self, world: &mut World, slot: usize, input: impl FnOnce(&mut Core, Moment)) {
        let now = self.now(world, slot);
        let candidate = Arc::make_mut(&mut world.candidates[slot]);
        input(&mut candidate.core, now);
        candidate.give_nonce();
        let leadership = candidate.core.leadership();
        let before = candidate.belief;
        candidate.belief = leadership.belief.as_ref().map(|belief| (belief.token, belief.deadline));
        let mut elected = Vec::new();
        while let Some(action) = candidate.core.poll_action() {
            match action {
                Told::Ask(node, ask) => candidate.asked.push_back((node, ask)),
                Told::Tell(Event::Elected { token, .. }) => elected.push(token),
                Told::Tell(_) => {}
            }
        }
        // What is not sent yet when its attempt ends is never sent (rule 16).
        let live = candidate.core.live_attempt();
        candidate
            .asked
            .retain(|(_, ask)| !matches!(ask.what, What::Acquire(_) | What::Extend(_)) || live == Some(ask.attempt));
        match (before, candidate.belief) {
            (_, Some((_, deadline))) if now >= deadline => world.broken = Some("belief after its deadline"),
            (Some((old, ended)), Some((token, _))) if old == token && now >= ended => {
                world.broken = Some("a belief that had ended came back");
            }
            _ => {}
        }
        for token in elected {
            world.wins += 1;
            if token <= world.last_token {
                world.broken = Some("tokens strictly increase");
            }
            world.last_token = world.last_token.max(token);
        }
        if (0..CANDIDATES).filter(|slot| self.is_believing(world, *slot)).count() > 1 {
            world.broken = Some("one believer");
        }
    }
}

impl Candidate {
    fn give_nonce(&mut self) {
        if self.core.wants_nonce() {
            self.nonces += u8::try_from(CANDIDATES).expect("two");
            self.core.supply([self.nonces; 16]);
        }
    }
}
