//! The world: true time, servers, wires between them and the candidates, and the queue of what happens next.

use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use redleader::clock::Moment;
use redleader::election::core::{Core, Setting};
use redleader::election::request::Request;
use redleader::redsync::name::{Identity, Owner};
use redleader::redsync::reply::{Kind, NodeIndex, RunId, Token};

use crate::candidate::{Body, Candidate, Feed, Ticks};
use crate::chance::Chance;
use crate::client::Client;
use crate::clock::Clock;
use crate::event::{Due, Event, Whom};
use crate::node::{Lock, NodeState, State};
use crate::plant::Plant;
use crate::profile::{Profile, Whose, micros};
use crate::trace::Trace;
use crate::wire::{Link, Wire};

/// What all nodes' clocks showed when the world began, as near as they agree.
const DATE: u64 = 1_700_000_000_000_000;
/// Rates that differ by more than the margin.
const BEYOND: i64 = 150_000;
/// What the replicas' boot clocks showed, about.
const BOOT: u64 = 5_000_000_000;

pub struct World {
    pub now: u64,
    pub profile: Profile,
    queue: BinaryHeap<Due>,
    planned: u64,
    pub net: Chance,
    pub fate: Chance,
    pub nonces: Chance,
    pub servers: Vec<Server>,
    pub wires: Vec<Wire>,
    pub links: Vec<Vec<Link>>,
    pub candidates: Vec<Candidate>,
    pub healthy: Vec<usize>,
    pub is_calm: bool,
    /// Nothing at all goes wrong in this calm.
    pub is_still: bool,
    pub calm_since: Option<u64>,
    pub calm_leader: Option<(usize, Token)>,
    pub last_leader: Option<usize>,
    pub last_token: Token,
    /// The largest that anybody has asked for or burnt.
    pub high_token: Token,
    pub has_lost_data: bool,
    pub has_stepped: bool,
    /// What all nodes' clocks would have shown when the world began, if they had been right.
    pub date: u64,
    pub runs: u64,
    pub steps: u64,
    pub counts: BTreeMap<(&'static str, &'static str), u64>,
    pub mosts: BTreeMap<&'static str, u64>,
    pub trace: Trace,
    pub failure: Option<String>,
    pub planted: Option<Plant>,
    /// Until when a contender believes that speaks plain Redsync.
    pub redsync_until: u64,
    /// Of the whole history, so that two can be compared.
    pub digest: u64,
}

pub struct Server {
    pub state: NodeState,
    pub clock: Clock,
    pub is_up: bool,
    /// Nothing answers, not even with a reset.
    pub is_dark: bool,
    pub epoch: u32,
    pub is_hung: bool,
    pub waiting: Vec<Event>,
    pub snapshot: (Option<Lock>, State),
    /// All of it, as it once was.
    pub older: Option<NodeState>,
    pub knows_scripts: u8,
    pub released: VecDeque<Owner>,
    /// Whom it has granted the lock last, and until when in true time nobody else may have it, unless it forgets.
    pub owed: Option<(Owner, u64)>,
}

impl Server {
    /// What it knew is gone, or an older one is back.
    pub fn forget(&mut self, (lock, state): (Option<Lock>, State)) {
        (self.state.lock, self.state.state) = (lock, state);
        self.released.clear();
        self.owed = None;
    }

    fn new(run: RunId, clock: Clock) -> Self {
        Self {
            state: NodeState::new(run),
            clock,
            is_up: true,
            is_dark: false,
            epoch: 0,
            is_hung: false,
            waiting: Vec::new(),
            snapshot: (None, State::default()),
            older: None,
            knows_scripts: 0,
            released: VecDeque::new(),
            owed: None,
        }
    }
}

impl World {
    pub fn new(seed: u64, trace: Trace) -> Self {
        let mut chance = Chance::new(seed);
        let profile = Profile::draw(&mut chance.fork());
        let mut world = Self::of(profile, &mut chance, trace);
        world.digest = seed;
        world.note(&format!("seed {seed}: {:?}", world.profile));
        for slot in 0..world.candidates.len() {
            let at = world.fate.between(0, micros(world.profile.longest()));
            world.plan(at, Event::Start(slot));
        }
        world.start_trouble();
        world.plan_fault();
        world.discipline();
        world
    }

    /// A world in which nothing happens yet.
    pub fn of(profile: Profile, chance: &mut Chance, trace: Trace) -> Self {
        let (net, fate, nonces, mut setup) = (chance.fork(), chance.fork(), chance.fork(), chance.fork());
        let tenth = i64::try_from(micros(profile.quarantine) / 10).expect("short");
        let servers = (0..profile.servers)
            .map(|server| {
                let ppm = profile.rate(&mut setup, Whose::Node);
                let base = DATE.saturating_add_signed(setup.signed(-tenth, tenth));
                let ahead = if server == 0 && profile.has_wild_clock { 50 * tenth.unsigned_abs() } else { 0 };
                Server::new(RunId(server as u64 + 1), Clock::new(base + ahead, ppm))
            })
            .collect();
        let candidates = (0..profile.candidates)
            .map(|_| {
                let ppm = profile.rate(&mut setup, Whose::Candidate);
                let clock = Clock::new(BOOT + setup.between(0, 1_000_000_000), ppm);
                Candidate::new(clock, setup.permille(300))
            })
            .collect();
        let links = (0..profile.candidates)
            .map(|_| {
                let mut link = |server| {
                    let far = if server == profile.servers - 1 { profile.far } else { 1 };
                    Link { trip: far * setup.between(profile.trip / 3, profile.trip), ..Link::default() }
                };
                (0..profile.servers).map(&mut link).collect()
            })
            .collect();
        Self {
            now: 0,
            queue: BinaryHeap::new(),
            planned: 0,
            net,
            fate,
            nonces,
            runs: profile.servers as u64,
            servers,
            wires: Vec::new(),
            links,
            candidates,
            healthy: Vec::new(),
            is_calm: false,
            is_still: false,
            calm_since: None,
            calm_leader: None,
            last_leader: None,
            last_token: 0,
            high_token: 0,
            has_lost_data: false,
            has_stepped: false,
            date: DATE,
            steps: 0,
            counts: BTreeMap::new(),
            mosts: BTreeMap::new(),
            trace,
            failure: None,
            planted: None,
            redsync_until: 0,
            digest: 0,
            profile,
        }
    }

    /// Plants a bug in every server's scripts, or in what is taken for granted.
    pub fn plant(&mut self, plant: Plant) {
        self.servers.iter_mut().for_each(|server| server.state.planted = Some(plant));
        self.planted = Some(plant);
        match plant {
            Plant::OtherLists => self.use_lists(vec![vec![0, 1, 2], vec![0, 1, 3]]),
            Plant::LongerLists => self.use_lists(vec![vec![0, 1, 2], vec![0, 1, 2, 3, 4]]),
            Plant::RatesBeyond => {
                self.servers.iter_mut().for_each(|server| server.clock.set_rate(0, BEYOND));
                self.candidates.iter_mut().for_each(|candidate| candidate.clock.set_rate(0, -BEYOND));
            }
            Plant::RedsyncBeside => {
                self.profile.lists.truncate(1);
                self.plan(0, Event::Redsync);
            }
            _ => {}
        }
    }

    fn use_lists(&mut self, lists: Vec<Vec<usize>>) {
        let count = lists.iter().flatten().max().expect("a list of nodes") + 1;
        self.profile.lists = lists;
        while self.servers.len() < count {
            let number = self.servers.len() as u64;
            self.servers.push(Server::new(RunId(1000 + number), Clock::new(DATE, 0)));
            self.links.iter_mut().for_each(|links| links.push(links[0]));
        }
        self.profile.servers = self.servers.len();
    }

    /// Goes on for about that many steps, or until something is wrong.
    pub fn run(&mut self, steps: u64) {
        while self.steps < steps && self.failure.is_none() {
            let due = self.queue.pop().expect("faults go on for ever");
            debug_assert!(due.at >= self.now, "time does not go back");
            self.now = due.at;
            self.digest = (self.digest ^ due.at ^ (due.number << 32)).wrapping_mul(0x0000_0100_0000_01b3);
            self.dispatch(due.event);
        }
    }

    /// Goes on until something is so, or until then.
    pub fn run_until(&mut self, at: u64, mut is_so: impl FnMut(&Self) -> bool) -> bool {
        while self.failure.is_none() && !is_so(self) {
            if self.queue.peek().is_none_or(|due| due.at > at) {
                self.now = at;
                return false;
            }
            let Some(due) = self.queue.pop() else { return false };
            self.now = due.at;
            self.dispatch(due.event);
        }
        self.failure.is_none()
    }

    pub fn plan(&mut self, at: u64, event: Event) {
        self.planned += 1;
        self.queue.push(Due { at, number: self.planned, event });
    }

    fn dispatch(&mut self, event: Event) {
        if let Some(slot) = self.for_whom(&event) {
            let Some(whom) = slot else { return };
            if self.candidates[whom.slot].is_paused && !matches!(event, Event::Resume(_)) {
                self.candidates[whom.slot].deferred.push(event);
                return;
            }
        }
        match event {
            Event::Core(whom, set) => self.core_timer(whom.slot, set),
            Event::Client(whom, node, set) => self.client_timer(whom.slot, node, set),
            Event::Arrive(letter) => self.arrive(*letter),
            Event::Answer(letter, outcome) => self.answer(&letter, outcome),
            Event::Closed(whom, node, wire) => {
                self.with_client(whom.slot, node, |client, now| client.close(now, wire, Kind::Connect));
            }
            Event::Dialled(whom, node, failed) => self.dialled(whom, node, failed),
            Event::Wake(whom) => self.feed(whom.slot, Feed::Wake),
            Event::WorkStopped(whom, token) => self.work_stopped(whom.slot, token),
            Event::Asks(whom, asks) => {
                self.ask_all(whom.slot, asks);
                self.read_inbox(whom.slot);
            }
            Event::Resume(whom) => self.resume(whom.slot),
            Event::Start(slot) => self.start(slot),
            Event::Healthy(whom) => {
                self.candidates[whom.slot].is_healthy = true;
                self.feed(whom.slot, Feed::Request(Request::Health(true)));
            }
            Event::Ambush(whom, time) => self.pause(whom.slot, time),
            Event::Crash(whom) => self.end(whom.slot),
            Event::NothingLeft(whom, owner) => self.check_nothing_left(whom.slot, &owner),
            Event::Fault => self.fault(),
            Event::ServerUp(server, epoch) => self.server_up(server, epoch),
            Event::Thaw(server) => self.thaw(server),
            Event::Accept(server) => self.accept(server),
            Event::Heal { slot, server } => {
                if !self.candidates[slot].is_sick {
                    self.links[slot][server].cut_up = false;
                    self.links[slot][server].cut_down = false;
                }
            }
            Event::Unblock(server, owner) => {
                let lock = &mut self.servers[server].state.lock;
                lock.take_if(|lock| lock.owner == owner);
            }
            Event::Discipline => self.discipline(),
            Event::Redsync => self.contend_as_redsync(),
            Event::StepForward(server) => self.step_forward(server),
            Event::Burn(server, token) => self.burn(server, token),
            Event::Calm => self.start_calm(),
            Event::Judge => self.judge_calm(),
            Event::Trouble => {
                self.judge_end_of_calm();
                self.start_trouble();
            }
        }
    }

    /// `Some(None)`: for a candidate that is no more.
    fn for_whom(&self, event: &Event) -> Option<Option<Whom>> {
        let whom = match event {
            Event::Core(whom, _)
            | Event::Client(whom, ..)
            | Event::Closed(whom, ..)
            | Event::Dialled(whom, ..)
            | Event::Wake(whom)
            | Event::WorkStopped(whom, _)
            | Event::Asks(whom, _)
            | Event::Healthy(whom)
            | Event::Ambush(whom, _)
            | Event::Crash(whom)
            | Event::NothingLeft(whom, _)
            | Event::Resume(whom) => *whom,
            Event::Answer(letter, _) => letter.from,
            Event::Arrive(_)
            | Event::Start(_)
            | Event::Fault
            | Event::ServerUp(..)
            | Event::Thaw(_)
            | Event::Accept(_)
            | Event::Heal { .. }
            | Event::Unblock(..)
            | Event::Discipline
            | Event::Redsync
            | Event::StepForward(_)
            | Event::Burn(..)
            | Event::Calm
            | Event::Judge
            | Event::Trouble => return None,
        };
        Some(self.is_alive(whom).then_some(whom))
    }

    fn core_timer(&mut self, slot: usize, set: u64) {
        let Some(body) = &mut self.candidates[slot].body else { return };
        if body.core_timer.take_if(|at| *at == set).is_some() {
            self.feed(slot, Feed::Timeout);
            self.check_pace(slot);
        }
    }

    fn client_timer(&mut self, slot: usize, node: NodeIndex, set: u64) {
        let Some(body) = &mut self.candidates[slot].body else { return };
        if body.client_timers[node].take_if(|at| *at == set).is_some() {
            self.with_client(slot, node, |_, _| {});
        }
    }

    fn work_stopped(&mut self, slot: usize, token: Token) {
        if self.candidates[slot].work == Some(token) {
            self.candidates[slot].work = None;
        }
        self.feed(slot, Feed::Request(Request::WorkStopped(token)));
    }

    /// A process begins: a core without memory, and clients without connections.
    pub fn start(&mut self, slot: usize) {
        if self.candidates[slot].body.is_some() {
            return;
        }
        let timing = self.profile.timing(&mut self.fate, self.planted == Some(Plant::OwnQuarantine));
        let mut list = self.profile.lists[self.fate.index(self.profile.lists.len())].clone();
        let turned = self.fate.index(list.len());
        list.rotate_left(turned);
        let mut sorted = list.clone();
        sorted.sort_unstable();
        let list_text = sorted.iter().map(|server| format!("{server:08x}")).collect::<Vec<_>>().join(",");
        let candidate = &mut self.candidates[slot];
        candidate.life += 1;
        let now = Moment::from_micros(candidate.clock.read(self.now));
        let setting = Setting {
            identity: Identity::parse(&format!("c{slot}")).expect("an identity"),
            nodes: list.iter().map(|server| format!("s{server}:1")).collect(),
            list: list_text.clone(),
            timing: timing.clone(),
            guarded: candidate.is_guarded,
            app_grace: candidate.is_guarded.then(|| timing.ttl()),
            seed: self.fate.next(),
        };
        let clients: Vec<Client> =
            (0..list.len()).map(|node| Client::new(node, timing.node_timeout(), timing.renew())).collect();
        candidate.body = Some(Body {
            core: Core::new(setting, now),
            inbox: VecDeque::new(),
            core_timer: None,
            client_timers: vec![None; clients.len()],
            backed: vec![VecDeque::new(); clients.len()],
            ticks: Ticks { since: now, ..Ticks::default() },
            acquired: (0, 0),
            attempt: None,
            unanswered: vec![0; clients.len()],
            cleaned: VecDeque::new(),
            quarantine: timing.quarantine(),
            ttl: timing.ttl(),
            validity: timing.validity(),
            connect_timeout: timing.connect_timeout(),
            clients,
        });
        candidate.is_draining = false;
        candidate.is_healthy = true;
        candidate.work = None;
        candidate.targets.clone_from(&list);
        candidate.stopping_since = None;
        candidate.list = list;
        candidate.list_text = list_text;
        let (nodes, list) = (candidate.list.len(), candidate.list.clone());
        self.count("starts");
        self.note(&format!("candidate {slot} starts: servers {list:?}, {timing:?}"));
        for node in 0..nodes {
            self.with_client(slot, node, Client::start);
        }
        self.feed(slot, Feed::Timeout);
        self.feed(slot, Feed::Request(Request::Health(true)));
    }

    /// The process is no more, and nothing that it remembered.
    pub fn end(&mut self, slot: usize) {
        let candidate = &mut self.candidates[slot];
        if candidate.body.take().is_none() {
            return;
        }
        candidate.life += 1;
        candidate.published = None;
        candidate.is_paused = false;
        candidate.deferred.clear();
        candidate.work = None;
        let ttl = micros(self.profile.longest());
        let longest = self.fate.pick(&[ttl / 50, 2 * ttl]);
        let at = self.now + self.fate.between(1000, longest);
        self.plan(at, Event::Start(slot));
    }

    pub fn pause(&mut self, slot: usize, time: u64) {
        self.count("pauses");
        self.note(&format!("candidate {slot} is stopped for {} ms", time / 1000));
        self.candidates[slot].is_paused = true;
        if matches!(self.planted, Some(Plant::MonotonicClock | Plant::FrozenMachine)) {
            self.candidates[slot].clock.halt(self.now);
        }
        let whom = self.whom(slot);
        self.plan(self.now + time, Event::Resume(whom));
    }

    /// All that waited comes at once. Which of timers and replies is first is chance; replies keep their order.
    pub fn resume(&mut self, slot: usize) {
        if !self.candidates[slot].is_paused {
            return;
        }
        self.note(&format!("candidate {slot} goes on"));
        self.candidates[slot].is_paused = false;
        if matches!(self.planted, Some(Plant::MonotonicClock | Plant::FrozenMachine)) {
            self.candidates[slot].clock.set_rate(self.now, 0);
        }
        // What it is given to end in counts from now on.
        self.candidates[slot].stopping_since = self.candidates[slot].stopping_since.map(|_| self.now);
        let deferred = std::mem::take(&mut self.candidates[slot].deferred);
        let is_timer = |event: &Event| matches!(event, Event::Core(..) | Event::Client(..));
        let (asks, rest): (Vec<Event>, Vec<Event>) =
            deferred.into_iter().partition(|event| matches!(event, Event::Asks(..)));
        let (timers, rest): (Vec<Event>, Vec<Event>) = rest.into_iter().partition(is_timer);
        let (first, last) = if self.net.permille(500) { (timers, rest) } else { (rest, timers) };
        // The asks belong to a turn that is not over, and so does what is in the inbox.
        for event in asks {
            self.dispatch(event);
        }
        if !self.candidates[slot].is_paused {
            self.read_inbox(slot);
        }
        for event in first.into_iter().chain(last) {
            self.dispatch(event);
        }
        if !self.candidates[slot].is_paused {
            self.reset_timers(slot);
        }
    }

    pub fn node_time(&self, server: usize) -> u64 {
        self.servers[server].clock.read(self.now)
    }

    pub fn is_trouble(&self) -> bool {
        !self.is_calm
    }

    pub fn is_trouble_at(&self, server: usize) -> bool {
        !(self.is_calm && self.healthy.contains(&server))
    }

    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry((what, "")).or_default() += 1;
    }

    pub fn most(&mut self, what: &'static str, value: u64) {
        let most = self.mosts.entry(what).or_default();
        *most = (*most).max(value);
    }

    pub fn note(&mut self, text: &str) {
        self.trace.note(self.now, self.steps, text);
    }

    pub fn fail(&mut self, what: &str) {
        // A world that breaks what the promise takes for granted is asked for overlaps alone.
        if self.planted.is_some_and(|plant| Plant::LIMITS.contains(&plant)) && !what.contains("believes") {
            return;
        }
        self.note(&format!("VIOLATION: {what}"));
        if self.failure.is_none() {
            self.failure = Some(format!("at {} ms, step {}: {what}", self.now / 1000, self.steps));
        }
    }
}
