//! One node: its connections, and exactly one reply for every ask (protocol rules 14 to 16).
//!
//! A node is one task that owns all its state and takes what comes in turn: asks, answers, the end of a connection or
//! a dial, its timer. It has no policy: it resends nothing and tries nothing twice, save the whole script for one that
//! the server did not know, or where EVALSHA is not to be had.

mod connection;
mod credentials;
mod dial;
mod erase;
mod greet;
mod plain;
pub mod probe;
mod resolver;
mod subscription;
mod tls;
mod wire;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisResult, Value};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tracing::debug;

use crate::clock::{self, BootTimer, Moment, millis};
use crate::redsync::error::{self, Failure};
use crate::redsync::reply::{AttemptId, Input, Kind, NodeEvent, NodeIndex, Op, Outcome, What};
use crate::redsync::script::{self, Scripts};
use crate::redsync::url::NodeUrl;

pub(crate) use connection::Pending;
use connection::{AbortOnDrop, Connection, Dialled, Event, InFlight, Lane};
pub use credentials::Password;
use dial::{Budget, Reached};
pub use erase::erase;
use resolver::Resolver;
pub use tls::TlsFiles;

/// How a node is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSettings {
    /// Where it is.
    pub url: NodeUrl,
    /// The ACL user, if the URL names none.
    pub username: Option<String>,
    /// The password, if the URL has none.
    pub password: Password,
    /// For `rediss://`.
    pub tls: TlsFiles,
    /// From an ask to its reply.
    pub node_timeout: Duration,
    /// Name, TCP, TLS, AUTH and the first questions together.
    pub connect_timeout: Duration,
    /// A connection that is down is dialled again at each round, and at the latest after this (the renew period).
    pub redial: Duration,
}

impl NodeSettings {
    /// A node with defaults: no credentials but the URL's, the system's certificates, a second for an answer or a
    /// connect, and an attempt to connect every 5 s while it is away and nobody asks.
    #[must_use]
    pub const fn new(url: NodeUrl) -> Self {
        Self {
            url,
            username: None,
            password: Password::None,
            tls: TlsFiles { ca: None, cert: None, key: None },
            node_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            redial: Duration::from_secs(5),
        }
    }
}

/// Told how long each command took, from its write to its answer or the end of its patience. Connects count when they
/// succeed.
pub type Observer = Arc<dyn Fn(NodeIndex, Op, Duration) + Send + Sync>;

/// Releases that may wait for their turn. A node that has that many open is hung, and the oldest is the least use.
const RELEASES: usize = 4;

/// One node's task.
pub(crate) struct Node {
    index: NodeIndex,
    name: String,
    settings: Arc<NodeSettings>,
    scripts: Arc<Scripts>,
    asks: mpsc::Receiver<Pending>,
    inputs: mpsc::Sender<Input>,
    live: watch::Receiver<Option<AttemptId>>,
    observer: Observer,
    timer: BootTimer,
    tasks: JoinSet<Event>,
    connections: u64,
    current: Option<Connection>,
    /// The connection whose request timed out, until it is closed.
    retired: Option<Connection>,
    /// `None` while a dial has it.
    resolver: Option<Resolver>,
    dialled_at: Moment,
    /// The one round that waits for the connection, or for the round before it.
    round: Option<Pending>,
    releases: VecDeque<Pending>,
    /// Steps of plain locks, in their order.
    plain: VecDeque<Pending>,
    /// Nobody can ask any more.
    is_leaving: bool,
    reached: watch::Sender<Option<Reached>>,
    /// The latest failure, for whoever logs it.
    said: watch::Sender<Option<Failure>>,
    _subscription: Option<AbortOnDrop>,
}

/// What a node shares with the others.
pub(crate) struct Shared {
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) inputs: mpsc::Sender<Input>,
    pub(crate) live: watch::Receiver<Option<AttemptId>>,
    pub(crate) observer: Observer,
    pub(crate) said: watch::Sender<Option<Failure>>,
    /// Woken by releases; `None` if nobody wants to know.
    pub(crate) woken: Option<Arc<Notify>>,
}

impl Node {
    /// A node's task, not yet running. Must be called inside a tokio runtime.
    pub(crate) fn new(
        index: NodeIndex,
        settings: NodeSettings,
        shared: Shared,
        asks: mpsc::Receiver<Pending>,
    ) -> io::Result<Self> {
        let settings = Arc::new(settings);
        let (reached, watcher) = watch::channel(None);
        let subscription = shared.woken.map(|woken| {
            let channel = shared.scripts.channel();
            let task = tokio::spawn(subscription::run(settings.clone(), channel, watcher, woken));
            AbortOnDrop(task.abort_handle())
        });
        Ok(Self {
            index,
            name: settings.url.name(),
            settings,
            scripts: shared.scripts,
            asks,
            inputs: shared.inputs,
            live: shared.live,
            observer: shared.observer,
            timer: BootTimer::new()?,
            tasks: JoinSet::new(),
            connections: 0,
            current: None,
            retired: None,
            resolver: Some(Resolver::default()),
            dialled_at: Moment::default(),
            round: None,
            releases: VecDeque::new(),
            plain: VecDeque::new(),
            is_leaving: false,
            reached,
            said: shared.said,
            _subscription: subscription,
        })
    }

    /// Runs until the client is gone, and what it had asked of plain locks has its answer.
    pub(crate) async fn run(mut self) {
        self.dial();
        loop {
            self.expire().await;
            self.write();
            if self.is_leaving && !self.has_plain() {
                return;
            }
            if let Err(error) = self.arm() {
                // Without its timer a node would hold asks for ever; the reader's end sees the channel close.
                tracing::error!(node = self.name, %error, "the node's timer fails");
                return;
            }
            tokio::select! {
                biased;
                Some(done) = self.tasks.join_next() => match done {
                    Ok(event) => self.handle_event(event).await,
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                pending = self.asks.recv(), if !self.is_leaving => match pending {
                    Some(pending) => self.handle_ask(pending),
                    None => self.is_leaving = true,
                },
                // The end of the client shows at the asks, once all of them are taken.
                Ok(()) = self.live.changed() => {}
                fired = self.timer.fired() => if fired.is_err() { return },
            }
        }
    }

    fn handle_ask(&mut self, pending: Pending) {
        match pending.ask.what {
            What::Look { .. } | What::Observe { .. } | What::Acquire(_) | What::Extend(_) | What::Survey => {
                if let Some(older) = self.round.replace(pending) {
                    older.give_up(self.index, Outcome::Unsent);
                }
            }
            What::Release { .. } => {
                if self.releases.len() == RELEASES
                    && let Some(oldest) = self.releases.pop_front()
                {
                    oldest.give_up(self.index, Outcome::Failed(Kind::Timeout));
                }
                self.releases.push_back(pending);
            }
            What::Plain(_) => self.handle_plain(pending),
        }
        if self.current.is_none() {
            self.dial();
        }
    }

    async fn handle_event(&mut self, event: Event) {
        match event {
            Event::Answered { connection, serial, result } => {
                self.handle_answer(connection, serial, result).await;
            }
            Event::Closed { connection: id } => {
                if let Some(connection) = self.connection(id) {
                    connection.ended = true;
                }
                self.close_if_over(id).await;
            }
            Event::Dialled(dialled) => self.handle_dialled(*dialled).await,
        }
    }

    async fn handle_answer(&mut self, id: u64, serial: u64, result: RedisResult<Value>) {
        let index = self.index;
        let Some(connection) = self.connection(id) else { return };
        let run = connection.run;
        let Some(flight) = connection.answered(serial) else { return };
        let InFlight { pending, sent, whole, .. } = flight;
        let reply = match result {
            Ok(reply) => reply,
            Err(error) => {
                let failure = Failure::from_client(&error);
                pending.reply(index, sent, clock::now(), Outcome::Failed(failure.kind));
                return self.close(id, failure).await;
            }
        };
        let takes_no_names = error::is_evalsha_refused(&reply);
        connection.may_name_scripts &= whole.is_none() || !takes_no_names;
        if let (Some(call), true) = (whole, takes_no_names || is_unknown_script(&reply)) {
            if !pending.is_over(*self.live.borrow()) {
                if let Some(connection) = connection_of(&mut self.current, &mut self.retired, id) {
                    connection.send_whole(pending, &call, &mut self.tasks);
                }
            } else {
                pending.reply(index, sent, clock::now(), Outcome::Unsent);
            }
            return;
        }
        let outcome = if let What::Plain(step) = &pending.ask.what {
            crate::redsync::plain::outcome(step, run, &reply)
        } else {
            script::outcome(&pending.ask.what, &reply)
        };
        let received = clock::now();
        let op = pending.ask.what.op();
        (self.observer)(index, op, received.since(sent));
        if let Outcome::Survey { subscribers: None, .. } = outcome
            && let Some(connection) = self.connection(id)
        {
            connection.may_count_subscribers = false;
        }
        let failed = match &outcome {
            Outcome::Failed(kind) => Some(Failure::new(*kind, script::said(&pending.ask.what, &reply))),
            Outcome::Answer(_)
            | Outcome::Released { .. }
            | Outcome::Survey { .. }
            | Outcome::Plain { .. }
            | Outcome::Unsent => None,
        };
        if let Some(failure) = &failed {
            self.said.send_replace(Some(failure.clone()));
        }
        pending.reply(index, sent, received, outcome);
        if let Some(failure) = failed {
            let (op, kind, elapsed_ms) = (op.as_str(), failure.kind.as_str(), millis(received.since(sent)));
            debug!(node = self.name, op, kind, elapsed_ms, text = failure.text, "no vote");
            if needs_new_connection(failure.kind) {
                return self.close(id, failure).await;
            }
        }
        self.close_if_over(id).await;
    }

    /// Begins a dial, unless one is under way.
    fn dial(&mut self) {
        let Some(mut resolver) = self.resolver.take() else { return };
        self.dialled_at = clock::now();
        let (settings, scripts) = (self.settings.clone(), self.scripts.clone());
        self.tasks.spawn(async move {
            let budget = Budget::new(settings.connect_timeout);
            let result = async {
                let (mut wire, reached) = dial::dial(&settings.url, &settings.tls, &mut resolver, budget).await?;
                let greeting = greet::greet(&mut wire, &settings, &scripts);
                let server = budget.wait(Kind::Timeout, "the server's first answer", greeting).await?;
                Ok((wire, reached, server))
            }
            .await;
            Event::Dialled(Box::new(Dialled { resolver, result }))
        });
    }

    async fn handle_dialled(&mut self, dialled: Dialled) {
        self.resolver = Some(dialled.resolver);
        let took = clock::now().since(self.dialled_at);
        let elapsed_ms = millis(took);
        let opened = match dialled.result {
            Ok((wire, reached, server)) => {
                self.connections += 1;
                let opened = Connection::open(self.connections, wire, &server, &mut self.tasks).await;
                opened.map(|connection| (connection, reached, server)).map_err(|error| Failure::from_client(&error))
            }
            Err(failure) => Err(failure),
        };
        match opened {
            Ok((connection, reached, server)) => {
                debug!(node = self.name, op = Op::Connect.as_str(), elapsed_ms, "connected");
                self.said.send_replace(None);
                (self.observer)(self.index, Op::Connect, took);
                self.current = Some(connection);
                self.reached.send_replace(Some(reached));
                let (node, run, replid, evicts) = (self.index, server.run, server.replid, server.evicts);
                self.tell(NodeEvent::Up { node, run, replid, evicts }).await;
            }
            Err(failure) => {
                self.said.send_replace(Some(failure.clone()));
                let (kind, text) = (failure.kind, failure.text);
                debug!(
                    node = self.name,
                    op = Op::Connect.as_str(),
                    kind = kind.as_str(),
                    elapsed_ms,
                    text,
                    "no connection"
                );
                // Those that have waited for it know as soon as can be; the next round dials again.
                self.fail_waiting(kind);
                self.tell(NodeEvent::Down { node: self.index, kind }).await;
            }
        }
    }

    /// Answers what waits for a connection. A release whose own connection is still open does not.
    fn fail_waiting(&mut self, kind: Kind) {
        for pending in self.round.take().into_iter().chain(std::mem::take(&mut self.plain)) {
            pending.give_up(self.index, Outcome::Failed(kind));
        }
        let carried = self.retired.as_ref().and_then(|connection| connection.carried);
        for pending in std::mem::take(&mut self.releases) {
            if carried == Some(pending.ask.attempt) {
                self.releases.push_back(pending);
            } else {
                pending.give_up(self.index, Outcome::Failed(kind));
            }
        }
    }

    /// Ends a connection that the server has ended. If something was in flight there, its own error tells more.
    async fn close_if_over(&mut self, id: u64) {
        if self.connection(id).is_some_and(|connection| connection.is_over()) {
            self.close(id, Failure::new(Kind::Connect, "the server has closed the connection")).await;
        }
    }

    /// Ends a connection at once. What was in flight on it is unknown, and is not sent again.
    async fn close(&mut self, id: u64, failure: Failure) {
        let is_current = self.current.as_ref().is_some_and(|connection| connection.id == id);
        let slot = if is_current { &mut self.current } else { &mut self.retired };
        let Some(mut connection) = slot.take_if(|connection| connection.id == id) else { return };
        debug!(node = self.name, kind = failure.kind.as_str(), text = failure.text, "connection closed");
        for InFlight { pending, sent, .. } in std::mem::take(&mut connection.flights) {
            pending.reply(self.index, sent, clock::now(), Outcome::Failed(failure.kind));
        }
        if is_current {
            self.said.send_replace(Some(failure.clone()));
            if self.round.is_some() || !self.releases.is_empty() || !self.plain.is_empty() {
                self.dial();
            }
            self.tell(NodeEvent::Down { node: self.index, kind: failure.kind }).await;
        }
    }

    /// Gives up whatever has had its time.
    async fn expire(&mut self) {
        let now = clock::now();
        let node = self.index;
        for pending in self.round.take_if(|pending| pending.deadline <= now).into_iter() {
            pending.give_up(node, Outcome::Failed(self.why_waiting()));
        }
        while let Some(pending) = self.releases.pop_front_if(|pending| pending.deadline <= now) {
            pending.give_up(node, Outcome::Failed(Kind::Timeout));
        }
        self.expire_plain(now).await;
        let is_due = |connection: &&Connection| connection.closes_at.is_some_and(|moment| moment <= now);
        if let Some(id) = self.retired.as_ref().filter(is_due).map(|connection| connection.id) {
            self.close(id, Failure::new(Kind::Timeout, "one node timeout after its request timed out")).await;
        }
        if let Some(connection) = &mut self.retired {
            connection.expire(now, node, &self.observer, self.settings.node_timeout);
        }
        let expired =
            self.current.as_mut().and_then(|c| c.expire(now, node, &self.observer, self.settings.node_timeout));
        if let (Some(op), Some(mut connection)) = (expired, self.current.take_if(|_| expired.is_some())) {
            let (op, kind) = (op.as_str(), Kind::Timeout.as_str());
            debug!(node = self.name, op, kind, "a request timed out: the connection is replaced");
            connection.closes_at = Some(now + self.settings.node_timeout);
            // Never more than one of them: an older one has had its chance.
            if let Some(id) = self.retired.as_ref().map(|older| older.id) {
                self.close(id, Failure::new(Kind::Timeout, "another request timed out meanwhile")).await;
            }
            self.retired = Some(connection);
            self.said.send_replace(Some(Failure::new(Kind::Timeout, "the request before was not answered")));
            self.dial();
            self.tell(NodeEvent::Down { node, kind: Kind::Timeout }).await;
        }
        if self.current.is_none() && now >= self.dialled_at + self.settings.redial {
            self.dial();
        }
    }

    /// Why a round was not written in time. While there is no connection it is what ended the last one or the last dial:
    /// that the next dial takes its time is no news.
    fn why_waiting(&self) -> Kind {
        let said = self.said.borrow();
        said.as_ref().filter(|_| self.current.is_none()).map_or(Kind::Timeout, |failure| failure.kind)
    }

    /// Writes what can be written.
    fn write(&mut self) {
        let live = *self.live.borrow_and_update();
        if let Some(pending) = self.round.take_if(|pending| pending.is_over(live)) {
            pending.give_up(self.index, Outcome::Unsent);
        }
        // Each release goes to the connection that carried its acquire, if that is open (rule 15); the newer one if
        // both did, for the older has lost its server's attention.
        for pending in std::mem::take(&mut self.releases) {
            let carried = Some(pending.ask.attempt);
            let is_carrier =
                |connection: &Option<Connection>| connection.as_ref().is_some_and(|c| c.carried == carried);
            let to_retired = is_carrier(&self.retired) && !is_carrier(&self.current);
            let slot = if to_retired { &mut self.retired } else { &mut self.current };
            match slot.as_mut().filter(|connection| connection.is_free(Lane::Release)) {
                Some(connection) => connection.send(pending, &self.scripts, &mut self.tasks),
                None => self.releases.push_back(pending),
            }
        }
        if let Some(connection) = self.current.as_mut().filter(|connection| connection.is_free(Lane::Round))
            && let Some(pending) = self.round.take()
        {
            connection.send(pending, &self.scripts, &mut self.tasks);
        }
        self.write_plain();
    }

    fn arm(&self) -> io::Result<()> {
        let waiting = self.round.iter().chain(&self.releases).chain(&self.plain).map(|pending| pending.deadline);
        let open = [&self.current, &self.retired].into_iter().flatten().filter_map(Connection::next_deadline);
        let is_idle = self.current.is_none() && self.resolver.is_some();
        let redial = is_idle.then_some(self.dialled_at + self.settings.redial);
        waiting.chain(open).chain(redial).min().map_or(Ok(()), |moment| self.timer.arm(moment))
    }

    /// The core is slower than its nodes only if it has stopped; then waiting for it is right.
    async fn tell(&self, event: NodeEvent) {
        // A closed channel shows at the next ask, and ends the task.
        let _ = self.inputs.send(Input::Node(event)).await;
    }

    fn connection(&mut self, id: u64) -> Option<&mut Connection> {
        connection_of(&mut self.current, &mut self.retired, id)
    }
}

fn connection_of<'a>(
    current: &'a mut Option<Connection>,
    retired: &'a mut Option<Connection>,
    id: u64,
) -> Option<&'a mut Connection> {
    current.iter_mut().chain(retired).find(|connection| connection.id == id)
}

fn is_unknown_script(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// After these the server is not, or may not be, what it was when the connection was made: it is asked anew.
fn needs_new_connection(kind: Kind) -> bool {
    matches!(kind, Kind::Protocol | Kind::Auth | Kind::Readonly | Kind::Masterdown | Kind::Moved | Kind::Unsupported)
}
