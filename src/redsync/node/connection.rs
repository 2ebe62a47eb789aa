//! One connection, and what is in flight on it: at most one round and one release (protocol rule 16), or plain steps of
//! any number of locks.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisResult, Value};
use tokio::sync::mpsc::OwnedPermit;
use tokio::task::{AbortHandle, JoinSet};

use crate::clock::{self, Moment};
use crate::redsync::error::Failure;
use crate::redsync::node::Observer;
use crate::redsync::node::greet::Server;
use crate::redsync::node::wire::{Allowance, Wire};
use crate::redsync::plain;
use crate::redsync::reply::{Ask, AttemptId, Input, Kind, NodeIndex, Op, Outcome, Reply, RunId, What};
use crate::redsync::script::{Call, Scripts};

/// An ask that has no reply yet, and the place that is kept for the reply.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) ask: Ask,
    pub(crate) deadline: Moment,
    pub(crate) place: OwnedPermit<Input>,
}

impl Pending {
    /// Gives the one reply.
    pub(crate) fn reply(self, node: NodeIndex, sent: Moment, received: Moment, outcome: Outcome) {
        let Ask { attempt, round, what } = self.ask;
        let reply = Reply { attempt, round, node, op: what.op(), sent, received, outcome };
        self.place.send(Input::Reply(reply));
    }

    /// Whether it belongs to an attempt or a leadership that is over, so that it must not be written any more.
    pub(super) fn is_over(&self, live: Option<AttemptId>) -> bool {
        match self.ask.what {
            What::Acquire(_) | What::Extend(_) => live != Some(self.ask.attempt),
            What::Look { .. } | What::Observe { .. } | What::Release { .. } | What::Survey | What::Plain(_) => false,
        }
    }

    /// Gives up an ask that was never written.
    pub(crate) fn give_up(self, node: NodeIndex, outcome: Outcome) {
        let now = clock::now();
        self.reply(node, now, now, outcome);
    }
}

/// Which of those that may be in flight together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Looks, acquires, extends, surveys.
    Round,
    /// Releases.
    Release,
    /// Steps of plain locks.
    Plain,
}

impl Lane {
    /// How many may be in flight.
    const fn limit(self) -> usize {
        match self {
            Self::Round | Self::Release => 1,
            Self::Plain => PLAIN_IN_FLIGHT,
        }
    }

    /// The lane of an ask.
    pub(super) const fn of(what: &What) -> Self {
        match what {
            What::Look { .. } | What::Observe { .. } | What::Acquire(_) | What::Extend(_) | What::Survey => Self::Round,
            What::Release { .. } => Self::Release,
            What::Plain(_) => Self::Plain,
        }
    }
}

/// Plain steps that may be in flight on one connection; more wait for their turn.
const PLAIN_IN_FLIGHT: usize = 1024;

/// What the tasks of a node report to it.
pub(super) enum Event {
    /// A request on a connection was answered, or failed.
    Answered { connection: u64, serial: u64, result: RedisResult<Value> },
    /// The connection has ended.
    Closed { connection: u64 },
    /// A dial has ended.
    Dialled(Box<Dialled>),
}

/// How a dial ended.
pub(super) struct Dialled {
    pub(super) resolver: super::resolver::Resolver,
    pub(super) result: Result<(Wire, super::dial::Reached, Server), Failure>,
}

/// A request that has been written.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) pending: Pending,
    pub(super) sent: Moment,
    /// What to send if the server does not know the script.
    pub(super) whole: Option<Call>,
    pub(super) lane: Lane,
    serial: u64,
    /// Once nobody waits for it any more, the client library swallows a late reply in its turn.
    _task: AbortOnDrop,
}

/// A task that has no use without its owner.
#[derive(Debug)]
pub(super) struct AbortOnDrop(pub(super) AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An open connection.
pub(super) struct Connection {
    pub(super) id: u64,
    /// What has been written and has no answer yet, in that order.
    pub(super) flights: Vec<InFlight>,
    /// The attempt whose acquire was last written here.
    pub(super) carried: Option<AttemptId>,
    /// A request has timed out here: it takes the release and nothing else, and is closed at this moment (rule 16).
    pub(super) closes_at: Option<Moment>,
    /// A plain step has timed out here: if nothing is heard until then, the server hangs. The connection is in use for
    /// as long, so that a clean-up goes the way of its acquire, behind it.
    pub(super) quiet_until: Option<Moment>,
    /// Which run of the server it leads to.
    pub(super) run: RunId,
    /// The server has hung up, and what was in flight is about to be told why.
    pub(super) ended: bool,
    /// NUMSUB is allowed, as far as is known.
    pub(super) may_count_subscribers: bool,
    /// EVALSHA is there and allowed, as far as is known; else every script is sent whole.
    pub(super) may_name_scripts: bool,
    pipe: MultiplexedConnection,
    allowance: Allowance,
    told_run: String,
    serial: u64,
    _driver: AbortOnDrop,
}

impl Connection {
    /// Hands the stream to the client library, which is told to add nothing of its own.
    pub(super) async fn open(id: u64, wire: Wire, server: &Server, tasks: &mut JoinSet<Event>) -> RedisResult<Self> {
        let allowance = wire.allowance();
        let info = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let (pipe, driver) = MultiplexedConnection::new_with_config(&info, wire, config).await?;
        // The library would notice the end of the connection at the next request only; its driver's end is at once.
        let driver = tasks.spawn(async move {
            driver.await;
            Event::Closed { connection: id }
        });
        Ok(Self {
            id,
            flights: Vec::new(),
            carried: None,
            closes_at: None,
            quiet_until: None,
            run: server.run,
            ended: false,
            may_count_subscribers: true,
            may_name_scripts: true,
            pipe,
            allowance,
            told_run: server.told_run.clone(),
            serial: 0,
            _driver: AbortOnDrop(driver),
        })
    }

    /// Whether an ask can be written.
    pub(super) fn is_free(&self, lane: Lane) -> bool {
        !self.ended && self.flights.iter().filter(|flight| flight.lane == lane).count() < lane.limit()
    }

    /// Whether there is nothing more to hear.
    pub(super) fn is_over(&self) -> bool {
        self.ended && self.flights.is_empty()
    }

    /// Writes an ask. Its lane must be free.
    pub(super) fn send(&mut self, pending: Pending, scripts: &Scripts, tasks: &mut JoinSet<Event>) {
        if matches!(pending.ask.what, What::Acquire(_)) {
            self.carried = Some(pending.ask.attempt);
        }
        if let What::Plain(step) = &pending.ask.what {
            let request = Request::One(plain::command(step));
            return self.write(pending, request, None, tasks);
        }
        let Some(call) = scripts.call(&pending.ask.what, &self.told_run) else {
            let request = Request::Many(scripts.survey(self.may_count_subscribers));
            return self.write(pending, request, None, tasks);
        };
        if self.closes_at.is_some() || !self.may_name_scripts {
            // There is no time left to hear that the server does not know the script, or it is known to know none.
            self.write(pending, Request::One(call.whole()), None, tasks);
        } else {
            self.write(pending, Request::One(call.by_sha()), Some(call), tasks);
        }
    }

    /// Writes the whole script for an ask whose short form the server did not know or did not take.
    pub(super) fn send_whole(&mut self, pending: Pending, call: &Call, tasks: &mut JoinSet<Event>) {
        self.write(pending, Request::One(call.whole()), None, tasks);
    }

    fn write(&mut self, pending: Pending, request: Request, whole: Option<Call>, tasks: &mut JoinSet<Event>) {
        self.serial += 1;
        let (connection, serial) = (self.id, self.serial);
        let mut pipe = self.pipe.clone();
        // Before the write, and nothing in between: a vote's lease counts from here (rule 10).
        let sent = clock::now();
        let task = tasks.spawn(async move {
            let result = match request {
                Request::One(cmd) => pipe.send_packed_command(&cmd).await,
                Request::Many(cmds) => {
                    let count = cmds.len();
                    pipe.send_packed_commands(&cmds, 0, count).await.map(Value::Array)
                }
            };
            Event::Answered { connection, serial, result }
        });
        let lane = Lane::of(&pending.ask.what);
        self.flights.push(InFlight { pending, sent, whole, lane, serial, _task: AbortOnDrop(task) });
    }

    /// Takes what was in flight when its answer came; `None` if nobody waits for it any more.
    pub(super) fn answered(&mut self, serial: u64) -> Option<InFlight> {
        self.allowance.renew();
        self.quiet_until = None;
        let at = self.flights.iter().position(|flight| flight.serial == serial)?;
        Some(self.flights.remove(at))
    }

    /// Answers what has timed out here, and says what it was.
    ///
    /// A plain step that times out is no end of its connection: other locks use it, too. `patience` is how long it may
    /// be quiet from there on.
    pub(super) fn expire(
        &mut self,
        now: Moment,
        node: NodeIndex,
        observer: &Observer,
        patience: Duration,
    ) -> Option<Op> {
        let mut expired = None;
        for InFlight { pending, sent, lane, .. } in self.flights.extract_if(.., |f| f.pending.deadline <= now) {
            let op = pending.ask.what.op();
            observer(node, op, now.since(sent));
            pending.reply(node, sent, now, Outcome::Failed(Kind::Timeout));
            match lane {
                Lane::Round | Lane::Release => expired = Some(op),
                Lane::Plain => _ = self.quiet_until.get_or_insert(now + patience),
            }
        }
        expired
    }

    /// When something here must be given up.
    pub(super) fn next_deadline(&self) -> Option<Moment> {
        let flights = self.flights.iter().map(|flight| flight.pending.deadline);
        flights.chain(self.closes_at).chain(self.quiet_until).min()
    }
}

enum Request {
    One(Cmd),
    Many(Pipeline),
}
