//! Leadership as the rest of the process sees it: a value with a deadline, never a bool.

use std::fmt::Write as _;
use std::time::Duration;

use crate::clock::Moment;
use crate::election::event::StepDown;
use crate::redsync::name::Owner;
use crate::redsync::reply::{Kind, Token};

/// What a replica is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// No look has been decided yet.
    Starting,
    /// It waits until the lock can be free.
    Standby,
    /// It asks for the lock.
    Campaigning,
    /// It holds the lock validly.
    Leader,
    /// It has told that it stops, and still holds the lock.
    SteppingDown,
    /// It takes no part any more, and keeps what it has until released.
    Draining,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 6] =
        [Self::Starting, Self::Standby, Self::Campaigning, Self::Leader, Self::SteppingDown, Self::Draining];

    /// The label and the word in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Standby => "standby",
            Self::Campaigning => "campaigning",
            Self::Leader => "leader",
            Self::SteppingDown => "stepping-down",
            Self::Draining => "draining",
        }
    }
}

/// A belief to lead, and its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Belief {
    /// The fencing token.
    pub token: Token,
    /// When it was won.
    pub since: Moment,
    /// Until when work may go on: `grace` before the deadline.
    pub work_until: Moment,
    /// Until when this replica may believe that it leads.
    pub deadline: Moment,
    /// When the last extend was confirmed by a quorum, or the win.
    pub extended_at: Moment,
    /// Set from the moment that work is told to stop.
    pub stepping_down: Option<StepDown>,
}

impl Belief {
    /// Why work has to stop, or has had to; `None` while this replica leads by it.
    #[must_use]
    pub fn over(&self, now: Moment) -> Option<StepDown> {
        let by_time = if now < self.deadline { StepDown::RenewTimeout } else { StepDown::Expired };
        self.stepping_down.or_else(|| (self.work_until <= now).then_some(by_time))
    }
}

/// Who else was last seen to hold the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The owner value in the key.
    pub owner: Owner,
    /// Its token, where a node's state names the same owner.
    pub token: Option<Token>,
    /// Until when the key was seen to last.
    pub until: Moment,
}

/// A node's vote, as last known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vote {
    /// It holds the lock for another.
    Held,
    /// It has granted the lock to us.
    Granted,
    /// It would grant the lock.
    Free,
    /// It may have forgotten a grant.
    Quarantined,
    /// It answers, and its vote cannot count.
    Void,
    /// It has not answered.
    Unknown,
}

impl Vote {
    /// The word in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Granted => "granted",
            Self::Free => "free",
            Self::Quarantined => "quarantined",
            Self::Void => "void",
            Self::Unknown => "unknown",
        }
    }
}

/// One node, as last known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeView {
    /// `host:port` or the socket's path.
    pub name: String,
    /// Its last answer was an answer.
    pub up: bool,
    /// Its vote.
    pub vote: Vote,
    /// Until when it surely blocks everyone else.
    pub lease: Option<Moment>,
    /// Until when it has no vote, since it may have forgotten a grant.
    pub quarantined_until: Option<Moment>,
    /// How long its last answer took.
    pub latency: Option<Duration>,
    /// Why its last answer was no vote.
    pub error: Option<Kind>,
    /// Its wall clock less our boot clock less the same of the median node, in microseconds.
    pub clock_offset_us: Option<i64>,
    /// How fast its clock runs beside ours, in parts per million above or below; measured over at least 30 s.
    pub clock_rate_ppm: Option<i64>,
    /// It has a memory limit with a policy that may evict the lock's keys.
    pub evicts: bool,
    /// It holds a lock key that never expires: a person's, or a foreign program's.
    pub no_expiry: bool,
}

/// All that a replica knows of the lock, at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leadership {
    /// What the replica does; ask [`Leadership::state`] with the time.
    pub phase: State,
    /// It takes no part any more.
    pub draining: bool,
    /// Its belief to lead, if any; ask [`Leadership::is_leading`] with the time.
    pub belief: Option<Belief>,
    /// The leadership whose guarded work has not been reported as stopped: no new attempt is made before.
    pub work: Option<Token>,
    /// Who else was last seen to hold.
    pub holder: Option<Holder>,
    /// Why the last leadership of this replica ended.
    pub last_step_down: Option<StepDown>,
    /// The quarantine in use.
    pub quarantine: Duration,
    /// Votes needed.
    pub quorum: usize,
    /// When a quorum last answered.
    pub quorum_seen: Option<Moment>,
    /// The holder works with another list of nodes.
    pub list_mismatch: bool,
    /// Whether the app is healthy; `None` where that is no condition of leadership.
    pub app_healthy: Option<bool>,
    /// The nodes, in the configured order.
    pub nodes: Vec<NodeView>,
}

impl Leadership {
    /// Whether this replica leads now, and work may go on.
    #[must_use]
    pub fn is_leading(&self, now: Moment) -> bool {
        self.belief.as_ref().is_some_and(|belief| belief.over(now).is_none())
    }

    /// The belief while it lasts, work told to stop or not.
    #[must_use]
    pub fn belief(&self, now: Moment) -> Option<&Belief> {
        self.belief.as_ref().filter(|b| now < b.deadline)
    }

    /// What the replica does, as of now.
    #[must_use]
    pub fn state(&self, now: Moment) -> State {
        match self.belief(now) {
            Some(_) if self.draining && self.is_leading(now) => State::Draining,
            Some(_) if self.is_leading(now) => State::Leader,
            Some(_) => State::SteppingDown,
            None if self.draining => State::Draining,
            None if self.belief.is_some() => State::Standby,
            None => self.phase,
        }
    }

    /// How long this replica may still believe that it leads; zero unless it leads.
    #[must_use]
    pub fn valid_for(&self, now: Moment) -> Duration {
        match &self.belief {
            Some(belief) if self.is_leading(now) => belief.deadline.since(now),
            _ => Duration::ZERO,
        }
    }

    /// The other holder, as long as its key is known to last.
    #[must_use]
    pub fn holder(&self, now: Moment) -> Option<&Holder> {
        self.holder.as_ref().filter(|holder| now < holder.until)
    }

    /// Nodes that answered when last asked.
    #[must_use]
    pub fn reachable(&self) -> usize {
        self.nodes.iter().filter(|node| node.up).count()
    }

    /// How long until enough nodes leave quarantine for a quorum, if too many are in it.
    #[must_use]
    pub fn quarantine_left(&self, now: Moment) -> Option<Duration> {
        let mut waits: Vec<Duration> = self
            .nodes
            .iter()
            .filter(|node| node.up && node.error.is_none())
            .map(|node| node.quarantined_until.map_or(Duration::ZERO, |until| until.since(now)))
            .collect();
        waits.sort_unstable();
        waits.get(self.quorum - 1).copied().filter(|left| !left.is_zero())
    }

    /// When time alone changes what is reported, if it does: a hung election must not keep a reader believing.
    #[must_use]
    pub fn next_turn(&self, now: Moment) -> Option<Moment> {
        let belief = self.belief.as_ref();
        let turns = [
            belief.map(|belief| belief.work_until),
            belief.map(|belief| belief.deadline),
            self.holder.as_ref().map(|holder| holder.until),
        ];
        turns.into_iter().flatten().filter(|turn| now < *turn).min()
    }

    /// What the replica does and why, in one line: the body of `/readyz`.
    #[must_use]
    pub fn reason(&self, now: Moment) -> String {
        let state = self.state(now).as_str();
        let is_sick = self.app_healthy == Some(false);
        if let Some(belief) = self.belief(now) {
            return match belief.stepping_down {
                None if self.is_leading(now) && is_sick => format!(
                    "{state}: leading with token {} though the app is not healthy, since nobody else did",
                    belief.token
                ),
                None if self.is_leading(now) => format!("{state}: leading with token {}", belief.token),
                None => format!("{state}: {}", StepDown::RenewTimeout.as_str()),
                Some(reason) => format!("{state}: {}", reason.as_str()),
            };
        }
        let sick = if is_sick { "the app is not healthy; " } else { "" };
        format!("{state}: {sick}{}", self.standing(now))
    }

    /// Why a replica that does not lead does not, its app aside.
    fn standing(&self, now: Moment) -> String {
        if self.able() < self.quorum {
            return self.unable();
        }
        if let Some(left) = self.quarantine_left(now) {
            return format!(
                "nodes in quarantine for {:.1} s more (they are new to this lock or were restarted, and may \
                 have forgotten a grant)",
                left.as_secs_f64()
            );
        }
        match self.holder(now) {
            Some(holder) => match holder.owner.identity() {
                Some(identity) => format!("held by {identity}"),
                None => "held by a holder that is not redleader".to_owned(),
            },
            None => "no holder is known".to_owned(),
        }
    }

    /// Nodes that have a vote, or will have one by waiting.
    fn able(&self) -> usize {
        self.nodes.iter().filter(|node| node.up && node.error.is_none() && !node.no_expiry).count()
    }

    fn unable(&self) -> String {
        let (able, all) = (self.able(), self.nodes.len());
        let mut text = format!("{able} of {all} nodes can vote, {} required", self.quorum);
        for node in &self.nodes {
            if let Some(kind) = node.error {
                // Writing to a String cannot fail.
                let _ = write!(text, "; {}: {} ({})", node.name, kind.as_str(), kind.advice());
            } else if node.no_expiry {
                let _ = write!(text, "; {}: the lock's key has no expiry (delete it by hand)", node.name);
            }
        }
        text
    }
}

#[cfg(test)]
impl Leadership {
    /// A standby that knows of no holder, whose nodes have all answered with this vote: what tests of readers begin with.
    pub(crate) fn standby(nodes: &[&str], vote: Vote) -> Self {
        let node = |name: &&str| NodeView {
            name: (*name).to_owned(),
            up: true,
            vote,
            lease: None,
            quarantined_until: None,
            latency: None,
            error: None,
            clock_offset_us: None,
            clock_rate_ppm: None,
            evicts: false,
            no_expiry: false,
        };
        Self {
            phase: State::Standby,
            draining: false,
            belief: None,
            work: None,
            holder: None,
            last_step_down: None,
            quarantine: Duration::from_secs(9),
            quorum: nodes.len() / 2 + 1,
            quorum_seen: None,
            list_mismatch: false,
            app_healthy: None,
            nodes: nodes.iter().map(node).collect(),
        }
    }
}
