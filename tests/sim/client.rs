//! What `src/redsync/node.rs` does between a core and one node: one reply for every ask, at most one round and one
//! release in flight on a connection, and rules 15 and 16. It is told the time, and hands out what is to be done.

use std::collections::VecDeque;
use std::time::Duration;

use redleader::clock::Moment;
use redleader::redsync::reply::{Ask, AttemptId, Input, Kind, NodeEvent, NodeIndex, Outcome, Reply, RunId, What};

/// Where a connection's bytes go: an index into the world's wires.
pub type WireId = usize;

const RELEASES: usize = 4;

/// One candidate's way to one node.
#[derive(Debug)]
pub struct Client {
    node: NodeIndex,
    node_timeout: Duration,
    redial: Duration,
    current: Option<Connection>,
    retired: Option<Connection>,
    is_dialling: bool,
    dialled_at: Moment,
    round: Option<Pending>,
    releases: VecDeque<Pending>,
    live: Option<AttemptId>,
    pub effects: Vec<Effect>,
}

#[derive(Debug)]
pub enum Effect {
    Tell(Input),
    Send(Sent),
    Dial,
}

/// A request that is written.
#[derive(Debug)]
pub struct Sent {
    pub wire: WireId,
    pub lane: Lane,
    pub serial: u64,
    pub what: What,
    /// By its SHA-1, so that the server may not know it.
    pub is_short: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    Round,
    Release,
}

#[derive(Debug)]
struct Pending {
    ask: Ask,
    deadline: Moment,
}

#[derive(Debug)]
struct InFlight {
    pending: Pending,
    sent: Moment,
    serial: u64,
    is_short: bool,
}

#[derive(Debug)]
struct Connection {
    wire: WireId,
    round: Option<InFlight>,
    release: Option<InFlight>,
    carried: Option<AttemptId>,
    closes_at: Option<Moment>,
    serial: u64,
}

impl Client {
    pub fn new(node: NodeIndex, node_timeout: Duration, redial: Duration) -> Self {
        Self {
            node,
            node_timeout,
            redial,
            current: None,
            retired: None,
            is_dialling: false,
            dialled_at: Moment::default(),
            round: None,
            releases: VecDeque::new(),
            live: None,
            effects: Vec::new(),
        }
    }

    pub fn start(&mut self, now: Moment) {
        self.dial(now);
    }

    pub fn set_live(&mut self, live: Option<AttemptId>) {
        self.live = live;
    }

    /// Asks that have no reply yet.
    pub fn open(&self) -> usize {
        let in_flight = |connection: &Option<Connection>| {
            connection.as_ref().map_or(0, |c| usize::from(c.round.is_some()) + usize::from(c.release.is_some()))
        };
        usize::from(self.round.is_some()) + self.releases.len() + in_flight(&self.current) + in_flight(&self.retired)
    }

    /// Its open connections.
    pub fn wires(&self) -> impl Iterator<Item = WireId> + '_ {
        [&self.current, &self.retired].into_iter().flatten().map(|connection| connection.wire)
    }

    /// Whether somebody still waits for the answer to this request.
    pub fn awaits(&self, wire: WireId, lane: Lane, serial: u64) -> bool {
        let connection = [&self.current, &self.retired].into_iter().flatten().find(|c| c.wire == wire);
        connection.and_then(|c| c.lane_ref(lane)).is_some_and(|flight| flight.serial == serial)
    }

    /// When the ask goes out, if it is still awaited; for the check of leases.
    pub fn sent_at(&self, wire: WireId, lane: Lane, serial: u64) -> Option<Moment> {
        let connection = [&self.current, &self.retired].into_iter().flatten().find(|c| c.wire == wire)?;
        connection.lane_ref(lane).filter(|flight| flight.serial == serial).map(|flight| flight.sent)
    }

    pub fn ask(&mut self, now: Moment, ask: Ask) {
        let pending = Pending { ask, deadline: now + self.node_timeout };
        if matches!(pending.ask.what, What::Release { .. }) {
            if self.releases.len() == RELEASES
                && let Some(oldest) = self.releases.pop_front()
            {
                self.give_up(now, oldest, Kind::Timeout);
            }
            self.releases.push_back(pending);
        } else if let Some(older) = self.round.replace(pending) {
            self.reply(older, now, now, Outcome::Unsent);
        }
        if self.current.is_none() {
            self.dial(now);
        }
    }

    /// An answer came. `None`: the server does not know the script.
    pub fn answered(&mut self, now: Moment, wire: WireId, lane: Lane, serial: u64, outcome: Option<Outcome>) {
        let live = self.live;
        let Some(connection) = self.connection(wire) else { return };
        let Some(flight) = connection.lane(lane).take_if(|flight| flight.serial == serial) else { return };
        let InFlight { pending, sent, is_short, .. } = flight;
        let Some(outcome) = outcome else {
            if is_short && !is_over(&pending, live) {
                let sent = connection.write(now, lane, pending, false);
                self.effects.push(Effect::Send(sent));
            } else {
                self.reply(pending, sent, now, Outcome::Unsent);
            }
            return;
        };
        let failed = if let Outcome::Failed(kind) = outcome { Some(kind) } else { None };
        self.reply(pending, sent, now, outcome);
        if let Some(kind @ (Kind::Readonly | Kind::Protocol)) = failed {
            self.close(now, wire, kind);
        }
    }

    pub fn dialled(&mut self, now: Moment, result: Result<(WireId, RunId, u64), Kind>) {
        self.is_dialling = false;
        let node = self.node;
        match result {
            Ok((wire, run, replid)) => {
                self.current =
                    Some(Connection { wire, round: None, release: None, carried: None, closes_at: None, serial: 0 });
                self.effects.push(Effect::Tell(Input::Node(NodeEvent::Up { node, run, replid, evicts: false })));
            }
            Err(kind) => {
                if let Some(pending) = self.round.take() {
                    self.give_up(now, pending, kind);
                }
                let carried = self.retired.as_ref().and_then(|connection| connection.carried);
                for pending in std::mem::take(&mut self.releases) {
                    if carried == Some(pending.ask.attempt) {
                        self.releases.push_back(pending);
                    } else {
                        self.give_up(now, pending, kind);
                    }
                }
                self.effects.push(Effect::Tell(Input::Node(NodeEvent::Down { node, kind })));
            }
        }
    }

    /// A connection ended: the server closed it, or an answer on it says that it is of no use.
    pub fn close(&mut self, now: Moment, wire: WireId, kind: Kind) {
        let is_current = self.current.as_ref().is_some_and(|connection| connection.wire == wire);
        let slot = if is_current { &mut self.current } else { &mut self.retired };
        let Some(connection) = slot.take_if(|connection| connection.wire == wire) else { return };
        for InFlight { pending, sent, .. } in connection.round.into_iter().chain(connection.release) {
            self.reply(pending, sent, now, Outcome::Failed(kind));
        }
        if is_current {
            if self.round.is_some() || !self.releases.is_empty() {
                self.dial(now);
            }
            self.effects.push(Effect::Tell(Input::Node(NodeEvent::Down { node: self.node, kind })));
        }
    }

    /// What the node's task does at each turn: gives up what has had its time, writes what can be written.
    pub fn turn(&mut self, now: Moment) {
        self.expire(now);
        self.write(now);
    }

    /// When [`Client::turn`] is due though nothing comes.
    pub fn next_turn(&self) -> Option<Moment> {
        let waiting = self.round.iter().chain(&self.releases).map(|pending| pending.deadline);
        let open = [&self.current, &self.retired].into_iter().flatten().filter_map(Connection::next_deadline);
        let is_idle = self.current.is_none() && !self.is_dialling;
        let redial = is_idle.then_some(self.dialled_at + self.redial);
        waiting.chain(open).chain(redial).min()
    }

    fn expire(&mut self, now: Moment) {
        if let Some(pending) = self.round.take_if(|pending| pending.deadline <= now) {
            self.give_up(now, pending, Kind::Timeout);
        }
        while let Some(pending) = self.releases.pop_front_if(|pending| pending.deadline <= now) {
            self.give_up(now, pending, Kind::Timeout);
        }
        let due = |connection: &&Connection| connection.closes_at.is_some_and(|at| at <= now);
        if let Some(wire) = self.retired.as_ref().filter(due).map(|connection| connection.wire) {
            self.close(now, wire, Kind::Timeout);
        }
        let expired = self.retired.as_mut().map(|c| c.expired(now)).unwrap_or_default();
        for flight in expired {
            self.reply(flight.pending, flight.sent, now, Outcome::Failed(Kind::Timeout));
        }
        let expired = self.current.as_mut().map(|c| c.expired(now)).unwrap_or_default();
        let timed_out = !expired.is_empty();
        for flight in expired {
            self.reply(flight.pending, flight.sent, now, Outcome::Failed(Kind::Timeout));
        }
        if timed_out && let Some(mut connection) = self.current.take() {
            connection.closes_at = Some(now + self.node_timeout);
            if let Some(wire) = self.retired.as_ref().map(|older| older.wire) {
                self.close(now, wire, Kind::Timeout);
            }
            self.retired = Some(connection);
            self.dial(now);
            let down = NodeEvent::Down { node: self.node, kind: Kind::Timeout };
            self.effects.push(Effect::Tell(Input::Node(down)));
        }
        if self.current.is_none() && now >= self.dialled_at + self.redial {
            self.dial(now);
        }
    }

    fn write(&mut self, now: Moment) {
        let live = self.live;
        if let Some(pending) = self.round.take_if(|pending| is_over(pending, live)) {
            self.reply(pending, now, now, Outcome::Unsent);
        }
        for pending in std::mem::take(&mut self.releases) {
            let carried = Some(pending.ask.attempt);
            let is_carrier = |c: &Option<Connection>| c.as_ref().is_some_and(|c| c.carried == carried);
            let to_retired = is_carrier(&self.retired) && !is_carrier(&self.current);
            let slot = if to_retired { &mut self.retired } else { &mut self.current };
            match slot.as_mut().filter(|connection| connection.release.is_none()) {
                Some(connection) => {
                    let is_short = connection.closes_at.is_none();
                    let sent = connection.write(now, Lane::Release, pending, is_short);
                    self.effects.push(Effect::Send(sent));
                }
                None => self.releases.push_back(pending),
            }
        }
        if let Some(connection) = self.current.as_mut().filter(|connection| connection.round.is_none())
            && let Some(pending) = self.round.take()
        {
            let is_short = !matches!(pending.ask.what, What::Survey);
            let sent = connection.write(now, Lane::Round, pending, is_short);
            self.effects.push(Effect::Send(sent));
        }
    }

    fn dial(&mut self, now: Moment) {
        if !self.is_dialling {
            self.is_dialling = true;
            self.dialled_at = now;
            self.effects.push(Effect::Dial);
        }
    }

    fn give_up(&mut self, now: Moment, pending: Pending, kind: Kind) {
        self.reply(pending, now, now, Outcome::Failed(kind));
    }

    fn reply(&mut self, pending: Pending, sent: Moment, received: Moment, outcome: Outcome) {
        let Ask { attempt, round, what } = pending.ask;
        let reply = Reply { attempt, round, node: self.node, op: what.op(), sent, received, outcome };
        self.effects.push(Effect::Tell(Input::Reply(reply)));
    }

    fn connection(&mut self, wire: WireId) -> Option<&mut Connection> {
        self.current.iter_mut().chain(&mut self.retired).find(|connection| connection.wire == wire)
    }
}

impl Connection {
    fn lane(&mut self, lane: Lane) -> &mut Option<InFlight> {
        match lane {
            Lane::Round => &mut self.round,
            Lane::Release => &mut self.release,
        }
    }

    fn lane_ref(&self, lane: Lane) -> Option<&InFlight> {
        match lane {
            Lane::Round => self.round.as_ref(),
            Lane::Release => self.release.as_ref(),
        }
    }

    fn write(&mut self, now: Moment, lane: Lane, pending: Pending, is_short: bool) -> Sent {
        if matches!(pending.ask.what, What::Acquire(_)) {
            self.carried = Some(pending.ask.attempt);
        }
        self.serial += 1;
        let sent = Sent { wire: self.wire, lane, serial: self.serial, what: pending.ask.what.clone(), is_short };
        *self.lane(lane) = Some(InFlight { pending, sent: now, serial: sent.serial, is_short });
        sent
    }

    fn expired(&mut self, now: Moment) -> Vec<InFlight> {
        let is_due = |flight: &mut InFlight| flight.pending.deadline <= now;
        self.round.take_if(is_due).into_iter().chain(self.release.take_if(is_due)).collect()
    }

    fn next_deadline(&self) -> Option<Moment> {
        let flights = [&self.round, &self.release].into_iter().flatten().map(|flight| flight.pending.deadline);
        flights.chain(self.closes_at).min()
    }
}

fn is_over(pending: &Pending, live: Option<AttemptId>) -> bool {
    matches!(pending.ask.what, What::Acquire(_) | What::Extend(_)) && live != Some(pending.ask.attempt)
}
