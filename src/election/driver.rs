//! The only loop: feeds the core with replies, wake-ups, requests and the time, and carries out what it decides.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{Notify, mpsc};
use tracing::{debug, error, info, warn};

use crate::clock::{self, BootTimer, Moment, millis};
use crate::election::core::{Action, Core};
use crate::election::event::{AcquireOutcome, Event, ExtendOutcome, ReleaseOutcome};
use crate::election::leadership::Leadership;
use crate::election::request::Request;
use crate::election::watch::Publisher;
use crate::metrics::Metrics;
use crate::redsync::client::{Client, Inbox};
use crate::redsync::name::{Identity, LockName, Nonce, Owner};
use crate::redsync::reply::{Input, Kind, NodeIndex, Outcome, Token};

/// Why the election ended without being asked to.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ElectionError {
    /// Every node has answered, and so many can never vote that a quorum is out of reach.
    #[error("no quorum can ever vote as configured (--redis): {0}")]
    Refused(String),
    /// The system gave no timer or no random numbers.
    #[error("the system refuses what an election needs: {0}")]
    System(#[from] io::Error),
    /// A part that the election needs has ended.
    #[error("the {0} ended while the election was running")]
    Lost(&'static str),
}

/// The loop and all that it drives.
#[derive(Debug)]
pub struct Driver {
    /// Decides.
    pub core: Core,
    /// Asks nodes.
    pub client: Client,
    /// What nodes say.
    pub inbox: Inbox,
    /// What the rest of the process asks for.
    pub requests: mpsc::Receiver<Request>,
    /// What everyone else gets to see.
    pub publisher: Publisher,
    /// Counts.
    pub metrics: Metrics,
    /// Log fields.
    pub names: Names,
    /// The loop turns at least this often, so that a hung one is told from an idle one.
    pub tick: Duration,
}

/// What log lines name.
#[derive(Clone, Debug)]
pub struct Names {
    /// The lock.
    pub lock: LockName,
    /// This replica.
    pub identity: Identity,
    /// The nodes, in the configured order.
    pub nodes: Vec<String>,
}

impl Driver {
    /// Runs until [`Request::Shutdown`] has been carried out.
    ///
    /// # Errors
    /// When no quorum can ever vote as configured, or a part is lost.
    pub async fn run(mut self) -> Result<(), ElectionError> {
        let timer = BootTimer::new()?;
        let woken: Arc<Notify> = Arc::clone(&self.inbox.woken);
        loop {
            let now = clock::now();
            self.publisher.tick(now);
            self.carry_out(now)?;
            if self.core.is_finished() {
                return Ok(());
            }
            if let Some(hopeless) = self.core.refused() {
                return Err(self.refusal(&hopeless));
            }
            let idle = now + self.tick;
            let wake_at = self.core.poll_timeout().map_or(idle, |at| at.min(idle));
            timer.arm(wake_at)?;
            tokio::select! {
                biased;
                input = self.inbox.inputs.recv() => match input.ok_or(ElectionError::Lost("node client"))? {
                    Input::Reply(reply) => {
                        self.note_error(reply.node, &reply.outcome);
                        self.core.handle_reply(clock::now(), reply);
                    }
                    Input::Node(event) => self.core.handle_node(clock::now(), &event),
                },
                request = self.requests.recv() => {
                    let request = request.ok_or(ElectionError::Lost("request channel"))?;
                    #[cfg(feature = "mutant-panic")]
                    assert!(request != Request::Drain, "planted: the tests want a panic in the middle of an election");
                    self.core.handle_request(clock::now(), &request);
                }
                () = woken.notified() => self.core.handle_wake(clock::now()),
                fired = timer.fired() => {
                    fired?;
                    let now = clock::now();
                    self.metrics.loop_lag(now.since(wake_at));
                    self.core.handle_timeout(now);
                }
            }
        }
    }

    /// Publishes first: belief ends before the first byte of a release is written (rule 13).
    fn carry_out(&mut self, now: Moment) -> Result<(), ElectionError> {
        if self.core.wants_nonce() {
            self.core.supply(nonce()?);
        }
        let leadership = self.core.leadership();
        self.client.set_live(self.core.live_attempt());
        let mut actions = Vec::new();
        while let Some(action) = self.core.poll_action() {
            actions.push(action);
        }
        let told = if actions.is_empty() { None } else { Some(leadership.clone()) };
        let disbelieved = self.publisher.publish(leadership);
        for action in actions {
            match action {
                Action::Ask(node, ask) => self.client.ask(node, ask),
                Action::Tell(mut event) => {
                    // The core decides it a moment before any reader can know.
                    if let Event::SteppedDown { at, .. } = &mut event {
                        *at = disbelieved.max(*at);
                    }
                    self.metrics.event(&event);
                    self.publisher.note(&event, now);
                    if let Some(leadership) = &told {
                        self.log(now, leadership, &event);
                    }
                }
            }
        }
        Ok(())
    }

    fn note_error(&self, node: NodeIndex, outcome: &Outcome) {
        if let Outcome::Failed(kind) = outcome {
            self.metrics.node_error(node, *kind);
        }
    }

    fn refusal(&self, hopeless: &[(NodeIndex, Kind)]) -> ElectionError {
        let mut text = String::new();
        for (node, kind) in hopeless {
            let separator = if text.is_empty() { "" } else { "; " };
            // Writing to a String cannot fail.
            let _ = write!(text, "{separator}{}: {} ({})", self.names.nodes[*node], kind.as_str(), kind.advice());
        }
        error!(lock = %self.names.lock, reason = %text, "refused");
        ElectionError::Refused(text)
    }

    fn log(&self, now: Moment, leadership: &Leadership, event: &Event) {
        let Names { lock, identity, nodes } = &self.names;
        match event {
            Event::Elected { token, at, deadline, gap } => info!(
                %lock, %identity, token, boot_ms = at.as_millis(), valid_for_ms = millis(deadline.since(*at)),
                gap_ms = gap.map(millis), "elected"
            ),
            Event::SteppingDown { token, reason, deadline } => info!(
                %lock, %identity, token, reason = reason.as_str(), boot_ms = now.as_millis(),
                valid_for_ms = millis(deadline.since(now)), "stepping down"
            ),
            Event::SteppedDown { token, reason, at } => {
                info!(%lock, %identity, token, reason = reason.as_str(), boot_ms = at.as_millis(), "stepped down");
            }
            Event::HolderChanged { owner, token } => log_holder(lock, owner.as_ref(), *token),
            Event::Acquire { outcome, took } => log_attempt(lock, *outcome, *took, now),
            Event::Extend { outcome: ExtendOutcome::Ok, took, .. } => {
                debug!(%lock, op = "extend", reason = "ok", elapsed_ms = fine_millis(*took), "extended");
            }
            Event::Extend { outcome, took, .. } => {
                let valid_for_ms = millis(leadership.valid_for(now));
                let reason = outcome.as_str();
                warn!(%lock, op = "extend", reason, elapsed_ms = fine_millis(*took), valid_for_ms, "extend failed");
            }
            Event::Release { outcome: ReleaseOutcome::Ok, took } => {
                debug!(%lock, op = "release", reason = "ok", elapsed_ms = fine_millis(*took), "released");
            }
            Event::Release { outcome, took } => {
                let reason = outcome.as_str();
                debug!(%lock, op = "release", reason, elapsed_ms = fine_millis(*took), "released in part");
            }
            Event::Node { node, error: Some(kind) } => {
                let reason = match self.client.said(*node, *kind) {
                    Some(said) => format!("{}: {said}", kind.advice()),
                    None => kind.advice().to_owned(),
                };
                warn!(node = nodes[*node], kind = kind.as_str(), reason, "node has no vote");
            }
            Event::Node { node, error: None } => info!(node = nodes[*node], "node answers"),
            Event::NodeLost { node, owner } => {
                let holder = owner.as_ref().map(Owner::as_str);
                let reason = if holder.is_some() { "held by other" } else { "a later leadership has been here" };
                warn!(%lock, node = nodes[*node], reason, holder, "lost on a node");
            }
            Event::NodeRefilled { node } => {
                let reason = "the key was deleted or evicted";
                warn!(%lock, node = nodes[*node], reason, "refilled on a node");
            }
            Event::NodeQuarantined { node, left } => {
                let reason = "new to this lock or restarted: it may have forgotten a grant";
                info!(%lock, node = nodes[*node], reason, elapsed_ms = 0, left_ms = millis(*left), "node in quarantine");
            }
            Event::ClockStepped { node } => {
                warn!(node = nodes[*node], kind = Kind::Clock.as_str(), reason = Kind::Clock.advice(), "clock stepped");
            }
            Event::NoExpiry { node, owner } => {
                let reason = "the lock's key has no expiry: a person or a foreign program set it; delete it by hand";
                warn!(%lock, node = nodes[*node], reason, holder = owner.as_str(), "key without expiry");
            }
            Event::Quarantine { used } => {
                let reason = "a longer ttl was seen for this lock";
                warn!(%lock, reason, quarantine_ms = millis(*used), "quarantine grew");
            }
            Event::ListMismatch { differs: true, by } => {
                let reason = "the holder works with another list of nodes: see --redis of all replicas";
                warn!(%lock, reason, by, "lists differ");
            }
            Event::ListMismatch { differs: false, .. } => info!(%lock, "lists agree"),
        }
    }
}

fn log_attempt(lock: &LockName, outcome: AcquireOutcome, took: Duration, now: Moment) {
    let (reason, boot_ms) = (outcome.as_str(), now.as_millis());
    debug!(%lock, op = "acquire", reason, boot_ms, elapsed_ms = fine_millis(took), "attempt ended");
}

fn log_holder(lock: &LockName, owner: Option<&Owner>, token: Option<Token>) {
    match owner.map(|owner| owner.identity().unwrap_or("foreign")) {
        Some(holder) => info!(%lock, holder, token, "holder changed"),
        None => info!(%lock, "nobody holds"),
    }
}

fn nonce() -> io::Result<Nonce> {
    let mut nonce = Nonce::default();
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}

/// Milliseconds to the microsecond: a round on a near network is shorter than one.
fn fine_millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}
