//! One candidate: the product's core, the clients beside it, and the loop around both (`src/election/driver.rs`).

use std::collections::VecDeque;
use std::time::Duration;

use redleader::clock::Moment;
use redleader::election::core::{Action, Core};
use redleader::election::event::{AcquireOutcome, Event as Told};
use redleader::election::request::Request;
use redleader::redsync::name::Owner;
use redleader::redsync::reply::{Ask, AttemptId, Input, Kind, NodeIndex, Op, Outcome, Reply, RunId, Token, What};

use crate::client::{Client, Effect};
use crate::clock::Clock;
use crate::event::{Event, Whom};
use crate::world::World;

/// More than what a late request can belong to.
const CLEANED: usize = 500;

pub struct Candidate {
    pub life: u32,
    pub clock: Clock,
    /// The servers that it is told of, in its order.
    pub list: Vec<usize>,
    pub list_text: String,
    /// Where its nodes' names lead to at the moment, which DNS may have wrong.
    pub targets: Vec<usize>,
    /// Cut off from everything for a whole calm.
    pub is_sick: bool,
    /// When it was told to stop.
    pub stopping_since: Option<u64>,
    pub body: Option<Body>,
    /// What a reader of the watch gets to see.
    pub published: Option<Published>,
    pub is_paused: bool,
    pub deferred: Vec<Event>,
    pub is_draining: bool,
    pub is_healthy: bool,
    pub is_guarded: bool,
    pub work: Option<Token>,
    pub is_work_ending: bool,
}

impl Candidate {
    pub fn new(clock: Clock, is_guarded: bool) -> Self {
        Self {
            life: 0,
            clock,
            list: Vec::new(),
            list_text: String::new(),
            targets: Vec::new(),
            is_sick: false,
            stopping_since: None,
            body: None,
            published: None,
            is_paused: false,
            deferred: Vec::new(),
            is_draining: false,
            is_healthy: true,
            is_guarded,
            work: None,
            is_work_ending: false,
        }
    }
}

/// What is lost when the process ends.
pub struct Body {
    pub core: Core,
    pub clients: Vec<Client>,
    pub inbox: VecDeque<Input>,
    /// When the core's and each client's timer is set for, so that it is set once.
    pub core_timer: Option<u64>,
    pub client_timers: Vec<Option<u64>>,
    /// For the check of leases, by node.
    pub backed: Vec<VecDeque<Backing>>,
    pub ticks: Ticks,
    /// The attempt that was last asked for, and its token.
    pub acquired: (AttemptId, Token),
    pub attempt: Option<Owner>,
    /// Its asks without an answer, by node.
    pub unanswered: Vec<u32>,
    /// The last releases that were asked for.
    pub cleaned: VecDeque<(NodeIndex, Owner)>,
    pub quarantine: Duration,
    pub ttl: Duration,
    pub validity: Duration,
    pub connect_timeout: Duration,
}

impl Body {
    /// Only an answer says that an ask takes effect no more.
    fn note_answer(&mut self, reply: &Reply) {
        let is_answer = matches!(reply.outcome, Outcome::Answer(_)) && reply.op == Op::Acquire;
        if is_answer && reply.attempt == self.acquired.0 {
            self.unanswered[reply.node] = self.unanswered[reply.node].saturating_sub(1);
        }
    }
}

/// What a lease may rest on: an ask that was granted: its token, its send, and by whom.
#[derive(Clone, Copy, Debug)]
pub struct Backing {
    pub token: Token,
    pub sent: Moment,
    pub run: RunId,
}

/// How often the core was woken within one ttl.
#[derive(Default)]
pub struct Ticks {
    pub since: Moment,
    pub timers: u64,
    pub asks: u64,
}

/// A belief as published.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    pub token: Token,
    pub deadline: Moment,
    pub is_stepping_down: bool,
}

pub enum Feed {
    Input(Input),
    Wake,
    Request(Request),
    Timeout,
}

impl World {
    pub fn whom(&self, slot: usize) -> Whom {
        Whom { slot, life: self.candidates[slot].life }
    }

    pub fn is_alive(&self, whom: Whom) -> bool {
        let candidate = &self.candidates[whom.slot];
        candidate.life == whom.life && candidate.body.is_some()
    }

    pub fn clock_now(&self, slot: usize) -> Moment {
        Moment::from_micros(self.candidates[slot].clock.read(self.now))
    }

    /// One turn of the driver's loop, and as many more as that gives rise to.
    pub fn feed(&mut self, slot: usize, feed: Feed) {
        let mut next = Some(feed);
        while let Some(feed) = next {
            let now = self.clock_now(slot);
            let Some(body) = &mut self.candidates[slot].body else { return };
            self.steps += 1;
            if let Feed::Input(Input::Reply(reply)) = &feed {
                body.note_answer(reply);
            }
            match feed {
                Feed::Input(Input::Reply(reply)) => body.core.handle_reply(now, reply),
                Feed::Input(Input::Node(event)) => body.core.handle_node(now, &event),
                Feed::Wake => body.core.handle_wake(now),
                Feed::Request(request) => body.core.handle_request(now, &request),
                Feed::Timeout => {
                    body.ticks.timers += 1;
                    body.core.handle_timeout(now);
                }
            }
            self.carry_out(slot);
            if self.candidates[slot].is_paused {
                return;
            }
            next = self.candidates[slot].body.as_mut().and_then(|body| body.inbox.pop_front()).map(Feed::Input);
        }
        self.set_timers(slot);
    }

    /// What the driver does after each input, in its order.
    fn carry_out(&mut self, slot: usize) {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&self.nonces.next().to_le_bytes());
        let Some(body) = &mut self.candidates[slot].body else { return };
        if body.core.wants_nonce() {
            body.core.supply(nonce);
        }
        let leadership = body.core.leadership();
        let live = body.core.live_attempt();
        body.clients.iter_mut().for_each(|client| client.set_live(live));
        let (mut asks, mut told) = (Vec::new(), Vec::new());
        while let Some(action) = body.core.poll_action() {
            match action {
                Action::Ask(node, ask) => asks.push((node, ask)),
                Action::Tell(event) => told.push(event),
            }
        }
        body.ticks.asks += asks.len() as u64;
        body.quarantine = leadership.quarantine;
        let (is_finished, refused, nodes) = (body.core.is_finished(), body.core.refused(), body.clients.len());
        if asks.len() > 2 * nodes + 1 || told.len() > 3 * nodes + 8 {
            self.fail(&format!("candidate {slot}: {} asks and {} events at one turn", asks.len(), told.len()));
        }
        if let Some(refused) = refused {
            // Only where two names lead to one server from the start.
            if refused.iter().any(|(_, kind)| *kind != Kind::SameNode) {
                self.fail(&format!("candidate {slot}: refuses to go on: {refused:?}"));
            }
            self.count("refusals");
            return self.end(slot);
        }
        self.check_clean_up(slot, &asks, &told);
        self.check_told(slot, &told);
        self.check_published(slot, &leadership);
        self.note_work(slot);
        if self.is_trouble() && told.iter().any(|event| matches!(event, Told::Elected { .. })) {
            self.ambush(slot);
        }
        if !asks.is_empty() && self.is_trouble() && self.profile.stall > 0 && self.net.permille(self.profile.stall) {
            let whom = self.whom(slot);
            let time = self.net.between(1, 3 * crate::profile::micros(self.profile.longest()));
            self.pause(slot, time);
            self.candidates[slot].deferred.push(Event::Asks(whom, asks));
        } else {
            self.ask_all(slot, asks);
        }
        if is_finished {
            self.end(slot);
        }
    }

    /// A winner is stopped, or ends, before it can extend.
    fn ambush(&mut self, slot: usize) {
        if !self.net.permille(self.profile.ambushes) {
            return;
        }
        let ttl = crate::profile::micros(self.profile.longest());
        let whom = self.whom(slot);
        let time = self.net.between(ttl / 2, 2 * ttl);
        let event = if self.net.permille(500) { Event::Ambush(whom, time) } else { Event::Crash(whom) };
        self.plan(self.now + 1, event);
    }

    pub fn ask_all(&mut self, slot: usize, asks: Vec<(NodeIndex, Ask)>) {
        let now = self.clock_now(slot);
        self.note_acquires(slot, &asks);
        let Some(body) = &mut self.candidates[slot].body else { return };
        for (node, ask) in asks {
            if let What::Release { owner, .. } = &ask.what {
                body.cleaned.push_front((node, owner.clone()));
                body.cleaned.truncate(CLEANED);
            }
            body.clients[node].ask(now, ask);
        }
        for node in 0..body.clients.len() {
            self.turn(slot, node);
        }
    }

    fn note_acquires(&mut self, slot: usize, asks: &[(NodeIndex, Ask)]) {
        let asked = asks.iter().find_map(|(_, ask)| match &ask.what {
            What::Acquire(claim) => Some((claim.owner.clone(), (ask.attempt, claim.token))),
            What::Extend(_)
            | What::Look { .. }
            | What::Observe { .. }
            | What::Release { .. }
            | What::Survey
            | What::Plain(_) => None,
        });
        let Some((owner, asked)) = asked else { return };
        let Some(body) = &mut self.candidates[slot].body else { return };
        let before = std::mem::replace(&mut body.acquired, asked);
        body.attempt = Some(owner);
        if before.0 != asked.0 {
            body.unanswered = vec![0; body.clients.len()];
        }
        for (node, _) in asks.iter().filter(|(_, ask)| matches!(ask.what, What::Acquire(_))) {
            body.unanswered[*node] += 1;
        }
        self.check_proposal(slot, asked.1);
        let (is_trouble, most) = (self.is_trouble(), crate::profile::micros(self.profile.quarantine) * 8 / 10);
        if is_trouble && self.net.permille(self.profile.burns) {
            let server = self.net.index(self.servers.len());
            let (at, token) =
                (self.now + self.net.between(0, 2 * self.profile.trip), asked.1 + self.net.between(0, most));
            self.plan(at, Event::Burn(server, token));
        }
        if before.0 == asked.0 {
            self.count(if before.1 == asked.1 { "asked the rest again" } else { "raised the token" });
        }
    }

    /// One turn of a node's task.
    pub fn turn(&mut self, slot: usize, node: NodeIndex) {
        let now = self.clock_now(slot);
        let Some(body) = &mut self.candidates[slot].body else { return };
        body.clients[node].turn(now);
        for effect in std::mem::take(&mut body.clients[node].effects) {
            match effect {
                Effect::Tell(input) => {
                    if let Some(body) = &mut self.candidates[slot].body {
                        body.inbox.push_back(input);
                    }
                }
                Effect::Send(sent) => self.send(slot, node, sent),
                Effect::Dial => self.dial(slot, node),
            }
        }
    }

    /// Something came for a client: its turn, and then the core's for all that it tells.
    pub fn with_client(&mut self, slot: usize, node: NodeIndex, act: impl FnOnce(&mut Client, Moment)) {
        let now = self.clock_now(slot);
        let Some(body) = &mut self.candidates[slot].body else { return };
        act(&mut body.clients[node], now);
        self.turn(slot, node);
        self.read_inbox(slot);
    }

    pub fn read_inbox(&mut self, slot: usize) {
        let input = self.candidates[slot].body.as_mut().and_then(|body| body.inbox.pop_front());
        match input {
            Some(input) => self.feed(slot, Feed::Input(input)),
            None => self.set_timers(slot),
        }
    }

    /// Sets what is due earlier than what is set. A timer that fires too early does no harm.
    pub fn set_timers(&mut self, slot: usize) {
        let whom = self.whom(slot);
        let (clock, now) = (self.candidates[slot].clock, self.now);
        let Some(body) = &mut self.candidates[slot].body else { return };
        let mut due = Vec::new();
        let mut set = |timer: &mut Option<u64>, wanted: Option<Moment>, event: &dyn Fn(u64) -> Event| {
            let Some(at) = wanted.map(|moment| clock.when(moment.as_micros()).max(now)) else { return };
            if timer.is_none_or(|set| at < set) {
                *timer = Some(at);
                due.push((at, event(at)));
            }
        };
        set(&mut body.core_timer, body.core.poll_timeout(), &|at| Event::Core(whom, at));
        for (node, (timer, client)) in body.client_timers.iter_mut().zip(&body.clients).enumerate() {
            set(timer, client.next_turn(), &|at| Event::Client(whom, node, at));
        }
        for (at, event) in due {
            let late = self.net.between(0, 120);
            self.plan(at + late, event);
        }
    }

    /// After its clock's rate changed.
    pub fn reset_timers(&mut self, slot: usize) {
        if let Some(body) = &mut self.candidates[slot].body {
            body.core_timer = None;
            body.client_timers.iter_mut().for_each(|timer| *timer = None);
        }
        self.set_timers(slot);
    }

    /// The guarded work: it begins when leadership is seen, and is told to stop when that ends or is about to.
    fn note_work(&mut self, slot: usize) {
        let candidate = &mut self.candidates[slot];
        if !candidate.is_guarded {
            return;
        }
        match (candidate.published, candidate.work) {
            (Some(belief), work) if work != Some(belief.token) => {
                candidate.work = Some(belief.token);
                candidate.is_work_ending = false;
            }
            (Some(_) | None, _) => {}
        }
        let stops = candidate.published.is_none_or(|belief| belief.is_stepping_down);
        if let (true, Some(token), false) = (stops, candidate.work, candidate.is_work_ending) {
            candidate.is_work_ending = true;
            let whom = self.whom(slot);
            let most = crate::profile::micros(self.profile.longest()) / 2;
            let takes = self.net.between(0, most);
            self.plan(self.now + takes, Event::WorkStopped(whom, token));
        }
    }

    /// Rule 14: whatever may still take effect is released.
    fn check_clean_up(&mut self, slot: usize, asks: &[(NodeIndex, Ask)], told: &[Told]) {
        let is_lost = |event: &Told| matches!(event, Told::Acquire { outcome, .. } if *outcome != AcquireOutcome::Won);
        let Some(body) = self.candidates[slot].body.as_ref().filter(|_| told.iter().any(is_lost)) else { return };
        let is_released =
            |node: NodeIndex| asks.iter().any(|(at, ask)| *at == node && matches!(ask.what, What::Release { .. }));
        let forgotten = (0..body.clients.len()).find(|node| body.unanswered[*node] > 0 && !is_released(*node));
        if let Some(node) = forgotten {
            self.fail(&format!(
                "candidate {slot} gives up an attempt that node {node} has not answered, and cleans up nothing there"
            ));
        }
    }

    fn check_told(&mut self, slot: usize, told: &[Told]) {
        for event in told {
            self.judge_event(slot, event);
        }
    }
}
