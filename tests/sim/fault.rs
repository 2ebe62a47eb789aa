//! What goes wrong, and how it ends: trouble and calm take turns.

use redleader::election::event::StepDown;
use redleader::election::request::Request;
use redleader::redsync::name::Owner;
use redleader::redsync::reply::{Kind, RunId, quorum};

use crate::candidate::Feed;
use crate::event::Event;
use crate::node::{Lock, State};
use crate::plant::Plant;
use crate::profile::{Flavour, RATE, Whose, micros};
use crate::world::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Crash,
    Pause,
    Resign,
    Drain,
    Shutdown,
    Unhealthy,
    Restart,
    RestartEmpty,
    RestartOlder,
    Hang,
    FlushAll,
    DeleteLock,
    DeleteState,
    OutOfMemory,
    ReadOnly,
    StepBack,
    Cut,
    CutCandidate,
    CutServer,
    Reset,
    Foreign,
    Unreadable,
    Rates,
    Snapshot,
    FlushScripts,
    StepAllBack,
    Readdress,
}

const FAULTS: [Fault; 27] = [
    Fault::Crash,
    Fault::Pause,
    Fault::Resign,
    Fault::Drain,
    Fault::Shutdown,
    Fault::Unhealthy,
    Fault::Restart,
    Fault::RestartEmpty,
    Fault::RestartOlder,
    Fault::Hang,
    Fault::FlushAll,
    Fault::DeleteLock,
    Fault::DeleteState,
    Fault::OutOfMemory,
    Fault::ReadOnly,
    Fault::StepBack,
    Fault::Cut,
    Fault::CutCandidate,
    Fault::CutServer,
    Fault::Reset,
    Fault::Foreign,
    Fault::Unreadable,
    Fault::Rates,
    Fault::Snapshot,
    Fault::FlushScripts,
    Fault::StepAllBack,
    Fault::Readdress,
];

/// The faults of a world's flavour, as bits.
pub fn usual(flavour: Flavour) -> u64 {
    use Fault::{
        Crash, Cut, CutCandidate, DeleteLock, DeleteState, FlushAll, OutOfMemory, Pause, Rates, Reset, Resign,
        RestartEmpty, RestartOlder, Shutdown, Snapshot, StepAllBack,
    };
    let chosen: &[Fault] = match flavour {
        Flavour::Everything => return u64::MAX,
        Flavour::Contention => {
            &[Crash, Pause, Resign, Shutdown, Cut, CutCandidate, Reset, Rates, DeleteLock, StepAllBack]
        }
        Flavour::Rush => &[Crash, Pause, Resign, Rates, Shutdown],
        Flavour::Forgetting => &[
            Crash,
            Pause,
            Resign,
            Cut,
            DeleteLock,
            DeleteState,
            FlushAll,
            RestartEmpty,
            RestartOlder,
            Snapshot,
            Rates,
            OutOfMemory,
        ],
    };
    let bit = |fault: &Fault| FAULTS.iter().position(|other| other == fault).map_or(0, |number| 1 << number);
    chosen.iter().map(bit).fold(0, |all, bit: u64| all | bit)
}

/// Which kinds there are, as bits of a number.
pub const KINDS: usize = FAULTS.len();

/// The kinds of these bits.
pub fn names(bits: u64) -> Vec<&'static str> {
    let is_in = |number: &usize| bits & (1 << number) != 0;
    (0..KINDS).filter(is_in).map(|number| FAULTS[number].name()).collect()
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::Pause => "pause",
            Self::Resign => "resign",
            Self::Drain => "drain",
            Self::Shutdown => "shutdown",
            Self::Unhealthy => "app unhealthy",
            Self::Restart => "restart",
            Self::RestartEmpty => "restart empty",
            Self::RestartOlder => "restart from an older snapshot",
            Self::Hang => "hang",
            Self::FlushAll => "flushall",
            Self::DeleteLock => "lock key deleted",
            Self::DeleteState => "state key deleted",
            Self::OutOfMemory => "out of memory",
            Self::ReadOnly => "writes refused",
            Self::StepBack => "clock stepped back",
            Self::Cut => "path cut",
            Self::CutCandidate => "candidate cut off",
            Self::CutServer => "server cut off",
            Self::Reset => "connection reset",
            Self::Foreign => "foreign key",
            Self::Unreadable => "state unreadable",
            Self::Rates => "rates changed",
            Self::Snapshot => "snapshot",
            Self::FlushScripts => "script flush",
            Self::StepAllBack => "all clocks stepped back",
            Self::Readdress => "DNS changed",
        }
    }

    /// Of a candidate, which are left alone in a calm.
    fn is_candidates(self) -> bool {
        use Fault::{Crash, CutCandidate, Drain, Pause, Resign, Shutdown, Unhealthy};
        matches!(self, Crash | Pause | Resign | Drain | Shutdown | Unhealthy | CutCandidate)
    }
}

impl World {
    fn ttl_us(&self) -> u64 {
        micros(self.profile.longest())
    }

    pub fn start_trouble(&mut self) {
        self.is_calm = false;
        self.is_still = false;
        self.calm_since = None;
        for slot in 0..self.candidates.len() {
            if std::mem::take(&mut self.candidates[slot].is_sick) {
                self.links[slot].iter_mut().for_each(|link| (link.cut_up, link.cut_down) = (false, false));
            }
        }
        self.note("trouble begins");
        let ttl = self.ttl_us();
        let longest = match self.profile.flavour {
            Flavour::Everything => 15,
            Flavour::Contention | Flavour::Rush => 60,
            Flavour::Forgetting => 30,
        };
        let lasts = self.fate.between(ttl, longest * ttl);
        self.plan(self.now + lasts, Event::Calm);
        if self.profile.flavour == Flavour::Forgetting {
            self.choose_healthy();
            for server in 0..self.servers.len() {
                if !self.healthy.contains(&server) && self.servers[server].is_up {
                    self.server_down(server, true);
                    let at = self.now + self.fate.between(lasts / 2, lasts);
                    self.plan(at, Event::ServerUp(server, self.servers[server].epoch));
                }
            }
        }
    }

    /// Faults go on for ever: in a calm for the servers that it leaves out.
    pub fn plan_fault(&mut self) {
        let wait = self.fate.between(1, 2 * self.profile.fault_every);
        self.plan(self.now + wait, Event::Fault);
    }

    /// From here on a majority is healthy, for whoever asks.
    pub fn start_calm(&mut self) {
        self.is_calm = true;
        self.calm_since = Some(self.now);
        self.choose_healthy();
        let healthy = self.healthy.clone();
        if self.fate.permille(300) {
            self.step_all_back();
        }
        self.note(&format!("calm begins: servers {healthy:?} are healthy"));
        for server in healthy {
            self.accept(server);
            self.thaw(server);
            let offset = self.servers[server].clock.offset(self.now, self.date).unsigned_abs();
            let is_off = offset > micros(self.profile.quarantine) / 8;
            if is_off && self.servers[server].is_up {
                self.server_down(server, false);
            }
            if !self.servers[server].is_up {
                let epoch = self.servers[server].epoch;
                self.server_up(server, epoch);
            }
            self.remove_strays(server);
            for slot in 0..self.candidates.len() {
                self.links[slot][server].cut_up = false;
                self.links[slot][server].cut_down = false;
            }
        }
        self.is_still = self.fate.permille(500);
        for server in 0..self.servers.len() {
            if self.is_still && !self.healthy.contains(&server) {
                self.void(server);
            }
        }
        self.choose_sick();
        for slot in 0..self.candidates.len() {
            self.resume(slot);
            if self.candidates[slot].targets != self.candidates[slot].list {
                let list = self.candidates[slot].list.clone();
                self.candidates[slot].targets = list;
                for server in 0..self.servers.len() {
                    self.reset(slot, server);
                }
            }
            if self.candidates[slot].body.is_some() && !self.candidates[slot].is_healthy {
                self.candidates[slot].is_healthy = true;
                self.feed(slot, Feed::Request(Request::Health(true)));
            }
        }
        let takes_part = |c: &crate::candidate::Candidate| {
            c.body.is_some() && !c.is_draining && !c.is_sick && c.stopping_since.is_none()
        };
        if !self.candidates.iter().any(takes_part) {
            let slot = self.candidates.iter().position(|c| !c.is_sick).expect("not all are sick");
            self.end(slot);
            self.start(slot);
        }
        self.plan(self.now + self.calm_bound(), Event::Judge);
    }

    /// How long after trouble a leader must be there: what is late has come, the last key has run out, the last
    /// quarantine is over (on the slowest clock), a dial that hung has ended, and then the election itself.
    pub fn calm_bound(&self) -> u64 {
        let used = self.candidates.iter().filter_map(|candidate| candidate.body.as_ref()).map(|body| body.quarantine);
        let quarantine = micros(used.max().unwrap_or_default().max(self.profile.quarantine));
        let ttl = self.ttl_us();
        self.profile.late_most + (ttl + quarantine) * 11 / 10 + ttl / 2 + ttl
    }

    /// A person deletes foreign keys; and a key whose state was deleted before all clocks went back, for nobody else
    /// knows how long it was meant to last.
    fn remove_strays(&mut self, server: usize) {
        let state = &mut self.servers[server].state;
        let owner = state.state.owner.clone();
        let is_stray = |lock: &Lock| lock.owner.identity().is_none() || owner.as_ref() != Some(&lock.owner);
        if self.has_stepped {
            state.lock.take_if(|lock| is_stray(lock));
        } else {
            state.lock.take_if(|lock| lock.owner.identity().is_none());
        }
    }

    /// A node that answers and has no vote, for the whole of a calm.
    fn void(&mut self, server: usize) {
        let epoch = self.servers[server].epoch;
        self.server_up(server, epoch);
        self.thaw(server);
        for slot in 0..self.candidates.len() {
            (self.links[slot][server].cut_up, self.links[slot][server].cut_down) = (false, false);
        }
        let owner = Owner::found("person");
        let state = &mut self.servers[server].state;
        match self.fate.between(0, 3) {
            0 => state.refuses = Some(Kind::Oom),
            1 => state.lock = Some(Lock { owner: owner.clone(), expires: None }),
            2 => state.state.unreadable = true,
            _ => {}
        }
        let at = self.now + self.calm_bound() + 2 * self.ttl_us();
        self.plan(at, Event::Unblock(server, owner));
        self.plan(at, Event::Accept(server));
    }

    /// Some are cut off, one way or both, for as long as the calm lasts; at least one is not.
    fn choose_sick(&mut self) {
        let well = self.fate.index(self.candidates.len());
        for slot in 0..self.candidates.len() {
            let is_sick = slot != well && self.fate.permille(200);
            self.candidates[slot].is_sick = is_sick;
            let ways = self.fate.between(1, 3);
            for link in self.links[slot].iter_mut().filter(|_| is_sick) {
                (link.cut_up, link.cut_down) = (ways & 1 != 0, ways & 2 != 0);
            }
        }
    }

    fn choose_healthy(&mut self) {
        let mut healthy: Vec<usize> = (0..self.servers.len()).collect();
        let suffices = |healthy: &[usize], lists: &[Vec<usize>]| {
            lists.iter().all(|list| list.iter().filter(|s| healthy.contains(s)).count() >= quorum(list.len()))
        };
        for round in 0..=self.fate.between(0, 3) {
            let mut fewer = healthy.clone();
            // A node whose clock is wild has no vote.
            let is_wild = round == 0 && self.profile.has_wild_clock;
            fewer.remove(if is_wild { 0 } else { self.fate.index(fewer.len()) });
            if suffices(&fewer, &self.profile.lists) {
                healthy = fewer;
            }
        }
        self.healthy = healthy;
    }

    pub fn fault(&mut self) {
        self.plan_fault();
        let number = self.draw_fault();
        let fault = FAULTS[number];
        let (mut slot, mut server) = (self.fate.index(self.candidates.len()), self.fate.index(self.servers.len()));
        // What happens to a leader and to what it holds matters most.
        if let (Some(leader), true) =
            (self.last_leader, self.fate.permille(if fault == Fault::Resign { 900 } else { 400 }))
        {
            slot = leader;
        }
        if self.is_calm && self.profile.servers > self.healthy.len() {
            while self.healthy.contains(&server) {
                server = (server + 1) % self.profile.servers;
            }
        }
        let is_allowed = self.is_trouble()
            || !self.is_still
                && !fault.is_candidates()
                && !matches!(fault, Fault::StepAllBack | Fault::Readdress)
                && self.is_trouble_at(server);
        if !is_allowed {
            return;
        }
        *self.counts.entry(("faults", fault.name())).or_default() += 1;
        self.note(&format!("{} (candidate {slot}, server {server})", fault.name()));
        if fault.is_candidates() { self.hit_candidate(fault, slot) } else { self.hit_server(fault, slot, server) }
    }

    /// One of the faults that this world has.
    fn draw_fault(&mut self) -> usize {
        let shown = match self.planted {
            Some(Plant::StepForward) => Some(Fault::StepBack),
            Some(Plant::OlderProcess) => Some(self.fate.pick(&[Fault::Snapshot, Fault::RestartOlder])),
            Some(Plant::RedsyncBeside) => Some(Fault::RestartEmpty),
            Some(Plant::FrozenMachine) => Some(Fault::Pause),
            Some(_) | None => None,
        };
        // What shows a limit happens in every world.
        if let Some(number) = shown.and_then(|fault| FAULTS.iter().position(|other| *other == fault))
            && self.fate.permille(200)
        {
            return number;
        }
        for _ in 0..20 {
            let number = self.fate.index(FAULTS.len());
            if self.profile.faults & (1 << number) != 0 {
                return number;
            }
        }
        0
    }

    fn hit_candidate(&mut self, fault: Fault, slot: usize) {
        let ttl = self.ttl_us();
        if self.candidates[slot].body.is_none() || self.candidates[slot].is_paused {
            return;
        }
        let whom = self.whom(slot);
        match fault {
            Fault::Crash => self.end(slot),
            Fault::Pause => {
                let longest = self.fate.pick(&[ttl / 20, ttl, 3 * ttl]);
                let time = self.fate.between(1, longest);
                self.pause(slot, time);
            }
            Fault::Resign => {
                let longest = self.fate.pick(&[1, ttl / 40, ttl]);
                let stand_back = std::time::Duration::from_micros(self.fate.between(0, longest));
                self.feed(slot, Feed::Request(Request::Resign { reason: StepDown::Resign, stand_back }));
            }
            Fault::Drain => {
                self.candidates[slot].is_draining = true;
                self.feed(slot, Feed::Request(Request::Drain));
            }
            Fault::Shutdown => {
                self.candidates[slot].stopping_since.get_or_insert(self.now);
                self.feed(slot, Feed::Request(Request::Shutdown));
            }
            Fault::Unhealthy => {
                self.candidates[slot].is_healthy = false;
                self.feed(slot, Feed::Request(Request::Health(false)));
                let at = self.now + self.fate.between(1, 2 * ttl);
                self.plan(at, Event::Healthy(whom));
            }
            Fault::CutCandidate => {
                for server in 0..self.servers.len() {
                    self.cut(slot, server);
                }
            }
            Fault::Restart
            | Fault::RestartEmpty
            | Fault::RestartOlder
            | Fault::Hang
            | Fault::FlushAll
            | Fault::DeleteLock
            | Fault::DeleteState
            | Fault::OutOfMemory
            | Fault::ReadOnly
            | Fault::StepBack
            | Fault::Cut
            | Fault::CutServer
            | Fault::Reset
            | Fault::Foreign
            | Fault::Unreadable
            | Fault::Rates
            | Fault::Snapshot
            | Fault::FlushScripts
            | Fault::StepAllBack
            | Fault::Readdress => unreachable!("a server's"),
        }
    }

    fn hit_server(&mut self, fault: Fault, slot: usize, server: usize) {
        let ttl = self.ttl_us();
        let until = self.now + self.fate.between(1, 2 * ttl);
        let there = &mut self.servers[server];
        match fault {
            Fault::Restart | Fault::RestartEmpty | Fault::RestartOlder => self.restart(fault, server),
            Fault::Hang if there.is_up => {
                there.is_hung = true;
                self.plan(until, Event::Thaw(server));
            }
            Fault::FlushAll => {
                there.forget((None, State::default()));
                self.has_lost_data = true;
            }
            Fault::DeleteLock => self.delete_lock(server),
            Fault::DeleteState => {
                there.forget((there.state.lock.clone(), State::default()));
                self.has_lost_data = true;
            }
            Fault::OutOfMemory | Fault::ReadOnly => {
                there.state.refuses = Some(if fault == Fault::ReadOnly { Kind::Misconf } else { Kind::Oom });
                self.plan(until, Event::Accept(server));
            }
            Fault::Unreadable => {
                there.state.state.unreadable = true;
                self.plan(until, Event::Accept(server));
            }
            Fault::StepBack => self.step_back(server),
            Fault::StepAllBack => self.step_all_back(),
            Fault::Readdress => self.readdress(slot, server),
            Fault::Cut => self.cut(slot, server),
            Fault::CutServer => {
                for slot in 0..self.candidates.len() {
                    self.cut(slot, server);
                }
            }
            Fault::Reset => self.reset(slot, server),
            Fault::Foreign => self.set_foreign(server),
            Fault::Rates => self.change_rates(slot, server),
            Fault::Snapshot => {
                there.snapshot = (there.state.lock.clone(), there.state.state.clone());
                there.older = Some(there.state.clone());
            }
            Fault::FlushScripts => there.knows_scripts = 0,
            Fault::Hang => {}
            Fault::Crash
            | Fault::Pause
            | Fault::Resign
            | Fault::Drain
            | Fault::Shutdown
            | Fault::Unhealthy
            | Fault::CutCandidate => unreachable!("a candidate's"),
        }
    }

    /// Of one node, or of several at once.
    fn delete_lock(&mut self, server: usize) {
        let others = self.fate.pick(&[0, 0, 500, 1000]);
        for other in 0..self.servers.len() {
            if self.is_trouble_at(other) && (other == server || self.fate.permille(others)) {
                self.servers[other].state.lock = None;
            }
        }
        if self.is_trouble() && self.fate.permille(200) {
            self.step_all_back();
        }
    }

    fn restart(&mut self, fault: Fault, server: usize) {
        if !self.servers[server].is_up {
            return;
        }
        if self.planted == Some(Plant::OlderProcess) && fault == Fault::RestartOlder {
            return self.bring_older_back(server);
        }
        let is_dark = self.fate.permille(300);
        self.server_down(server, is_dark);
        let there = &mut self.servers[server];
        if fault != Fault::Restart {
            let is_empty = fault == Fault::RestartEmpty;
            let kept = if is_empty { (None, State::default()) } else { there.snapshot.clone() };
            there.forget(kept);
            self.has_lost_data = true;
        }
        let (epoch, longest) = (self.servers[server].epoch, self.ttl_us() * self.fate.pick(&[1, 10, 40]) / 20);
        let at = self.now + self.fate.between(1, longest);
        self.plan(at, Event::ServerUp(server, epoch));
    }

    /// The address leads to a copy that was made a while ago, in the midst of its run.
    fn bring_older_back(&mut self, server: usize) {
        let there = &mut self.servers[server];
        let Some(older) = there.older.clone() else { return };
        there.state = older;
        there.released.clear();
        there.owed = None;
        for slot in 0..self.candidates.len() {
            self.reset(slot, server);
        }
    }

    fn server_down(&mut self, server: usize, is_dark: bool) {
        let there = &mut self.servers[server];
        there.is_up = false;
        there.is_dark = is_dark;
        there.is_hung = false;
        there.waiting.clear();
        there.owed = None;
        there.epoch += 1;
        there.knows_scripts = 0;
        if !is_dark {
            for slot in 0..self.candidates.len() {
                self.reset(slot, server);
            }
        }
    }

    pub fn server_up(&mut self, server: usize, epoch: u32) {
        if self.servers[server].is_up || self.servers[server].epoch != epoch {
            return;
        }
        self.runs += 1;
        let small = i64::try_from(micros(self.profile.quarantine) / 10).expect("short");
        let offset = self.servers[server].clock.offset(self.now, self.date);
        let wanted = self.fate.signed(-small, small);
        let there = &mut self.servers[server];
        there.state.run = RunId(self.runs);
        there.is_up = true;
        there.is_dark = false;
        // While it is down its clock may be set, either way: nothing that it knew counts any more.
        if !(server == 0 && self.profile.has_wild_clock) {
            there.clock.step(self.now, wanted - offset);
        }
        self.note(&format!("server {server} is up, run {}", self.runs));
    }

    pub fn thaw(&mut self, server: usize) {
        let there = &mut self.servers[server];
        there.is_hung = false;
        for (at, event) in (self.now + 1..).zip(std::mem::take(&mut self.servers[server].waiting)) {
            self.plan(at, event);
        }
    }

    /// Whatever it refused is over, and a person has removed what could not be read.
    pub fn accept(&mut self, server: usize) {
        let there = &mut self.servers[server];
        there.state.refuses = None;
        if there.state.state.unreadable {
            there.forget((there.state.lock.clone(), State::default()));
            self.has_lost_data = true;
        }
    }

    fn step_back(&mut self, server: usize) {
        if self.planted == Some(Plant::StepForward) {
            return self.plan_step_forward(server);
        }
        let most = if self.profile.has_big_steps { 3 * self.ttl_us() } else { micros(self.profile.quarantine) / 10 };
        let limit = i64::try_from(most).expect("short");
        let by = self.fate.signed(-limit, -1);
        let there = &mut self.servers[server];
        if self.profile.has_big_steps || there.clock.offset(self.now, self.date) + by >= -limit {
            there.clock.step(self.now, by);
        }
    }

    /// The leader is left with a bare quorum, and then one node of that quorum has its clock stepped.
    fn plan_step_forward(&mut self, server: usize) {
        let (Some(leader), ttl) = (self.last_leader, self.ttl_us()) else { return };
        let servers = self.profile.lists[0].len();
        for other in 1..servers.div_ceil(2) {
            let link = &mut self.links[leader][(server + other) % servers];
            (link.cut_up, link.cut_down) = (true, true);
            let heals = Event::Heal { slot: leader, server: (server + other) % servers };
            self.plan(self.now + 3 * ttl, heals);
        }
        self.plan(self.now + ttl * 12 / 10, Event::StepForward(server));
    }

    /// Nobody but the leader has seen what the clock showed before.
    pub fn step_forward(&mut self, server: usize) {
        let by = i64::try_from(2 * self.ttl_us()).expect("short");
        self.servers[server].clock.step(self.now, by);
        self.note(&format!("server {server}: clock stepped forward"));
        let leader = self.last_leader;
        for slot in (0..self.candidates.len()).filter(|slot| Some(*slot) != leader) {
            self.end(slot);
        }
    }

    /// Whoever tells all of them the time was wrong.
    fn step_all_back(&mut self) {
        if !self.profile.has_big_steps {
            return;
        }
        let by = self.fate.signed(-20 * i64::try_from(self.ttl_us()).expect("short"), -1);
        self.date = self.date.saturating_add_signed(by);
        self.has_stepped = true;
        for server in &mut self.servers {
            server.clock.step(self.now, by);
        }
    }

    fn change_rates(&mut self, slot: usize, server: usize) {
        if self.planted == Some(Plant::RatesBeyond) {
            return;
        }
        let ppm = self.profile.rate(&mut self.fate, Whose::Node);
        self.servers[server].clock.set_rate(self.now, ppm);
        let ppm = self.profile.rate(&mut self.fate, Whose::Candidate);
        self.candidates[slot].clock.set_rate(self.now, ppm);
        self.reset_timers(slot);
    }

    /// As NTP does: a node's clock that is off goes faster or slower until it is right.
    pub fn discipline(&mut self) {
        self.plan(self.now + self.ttl_us() / 4, Event::Discipline);
        if self.planted == Some(Plant::RatesBeyond) {
            return;
        }
        let limit = i64::try_from(micros(self.profile.quarantine) / 10).expect("short");
        for server in usize::from(self.profile.has_wild_clock)..self.servers.len() {
            let offset = self.servers[server].clock.offset(self.now, self.date);
            if offset.abs() < limit / 4 && self.profile.has_worst_rates {
                let ppm = self.profile.rate(&mut self.fate, Whose::Node);
                self.servers[server].clock.set_rate(self.now, ppm);
            } else if offset.abs() > limit {
                self.servers[server].clock.set_rate(self.now, -offset.signum() * RATE);
            }
        }
    }

    fn cut(&mut self, slot: usize, server: usize) {
        let ways = self.fate.between(1, 3);
        let link = &mut self.links[slot][server];
        link.cut_up |= ways & 1 != 0;
        link.cut_down |= ways & 2 != 0;
        let lasts = self.fate.between(1, 3 * self.ttl_us());
        self.plan(self.now + lasts, Event::Heal { slot, server });
    }

    /// A node's name leads to another node's server. (To a server that is in nobody's list would be another list.)
    fn readdress(&mut self, slot: usize, server: usize) {
        if self.candidates[slot].body.is_none() {
            return;
        }
        let node = self.fate.index(self.candidates[slot].targets.len());
        let old = self.candidates[slot].targets[node];
        if !self.candidates[slot].list.contains(&server) {
            return;
        }
        let is_back = self.fate.permille(500);
        self.candidates[slot].targets[node] = if is_back { self.candidates[slot].list[node] } else { server };
        self.reset(slot, old);
    }

    fn reset(&mut self, slot: usize, server: usize) {
        let whom = self.whom(slot);
        let Some(body) = &self.candidates[slot].body else { return };
        let mut closed = Vec::new();
        for (node, client) in body.clients.iter().enumerate() {
            closed.extend(client.wires().filter(|wire| self.wires[*wire].server == server).map(|wire| (node, wire)));
        }
        for (node, wire) in closed {
            let at = self.now + self.links[slot][server].trip;
            self.plan(at, Event::Closed(whom, node, wire));
        }
    }

    /// Takes the lock as go-redsync does where a quorum of keys is missing, and asks about nothing else.
    pub fn contend_as_redsync(&mut self) {
        let ttl = self.ttl_us();
        self.plan(self.now + ttl / 16, Event::Redsync);
        let is_free = |server: &usize| {
            let there = &self.servers[*server];
            let is_reached = there.is_up && !there.is_hung && there.state.refuses.is_none();
            is_reached && there.state.owner(self.node_time(*server) / 1000).is_none()
        };
        let list = self.profile.lists[0].clone();
        let free: Vec<usize> = list.iter().copied().filter(is_free).collect();
        if self.now < self.redsync_until || free.len() < quorum(list.len()) {
            return;
        }
        let owner = Owner::found(&format!("redsync{}", self.now));
        for server in free {
            let expires = Some(self.node_time(server) / 1000 + ttl / 1000);
            self.servers[server].state.lock = Some(Lock { owner: owner.clone(), expires });
        }
        // Less its allowance for drift.
        self.redsync_until = self.now + ttl * 99 / 100;
        self.note("a contender that speaks Redsync leads");
        for slot in 0..self.candidates.len() {
            let now = self.clock_now(slot);
            if self.candidates[slot].published.is_some_and(|belief| now < belief.deadline) {
                self.fail(&format!("a contender that speaks Redsync leads while candidate {slot} believes"));
            }
        }
    }

    /// go-redsync, or a person: a key that is nobody's of ours, where there is none.
    fn set_foreign(&mut self, server: usize) {
        let now = self.node_time(server) / 1000;
        let has_expiry = self.fate.permille(700);
        let ttl = self.fate.between(1, micros(self.profile.longest()) / 1000);
        let owner = Owner::found(&format!("foreign{}", self.fate.next()));
        let there = &mut self.servers[server].state;
        if there.owner(now).is_some() {
            return;
        }
        there.lock = Some(Lock { owner: owner.clone(), expires: has_expiry.then_some(now + ttl) });
        if !has_expiry {
            let at = self.now + self.fate.between(1, 2 * self.ttl_us());
            self.plan(at, Event::Unblock(server, owner));
        }
    }
}
