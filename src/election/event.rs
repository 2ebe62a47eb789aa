//! What happened, as the core tells it: the source of every log line and counter about the lock.

use std::time::Duration;

use crate::clock::Moment;
use crate::redsync::name::Owner;
use crate::redsync::reply::{Kind, NodeIndex, Token};

/// Why a replica stopped leading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepDown {
    /// The process was asked to stop.
    Shutdown,
    /// A person asked for it.
    Resign,
    /// No quorum confirmed an extend in time.
    RenewTimeout,
    /// So many nodes hold another's key, or have seen a later leadership, that the deadline is past.
    Lost,
    /// The deadline passed while nobody looked: the process was stopped, or the machine slept.
    Expired,
    /// A node knows that this leadership is over: a later one has been extended.
    Superseded,
    /// `--max-failed-extends` rounds failed.
    MaxFailedExtends,
    /// The app beside it is not healthy.
    AppUnhealthy,
    /// The child ended by itself.
    ChildExited,
    /// A hook failed.
    HookFailed,
}

impl StepDown {
    /// Every reason.
    pub const ALL: [Self; 10] = [
        Self::Shutdown,
        Self::Resign,
        Self::RenewTimeout,
        Self::Lost,
        Self::Expired,
        Self::Superseded,
        Self::MaxFailedExtends,
        Self::AppUnhealthy,
        Self::ChildExited,
        Self::HookFailed,
    ];

    /// Whether extends may go on while the work stops: nobody but ourselves wants this leadership to end.
    #[must_use]
    pub const fn is_voluntary(self) -> bool {
        match self {
            Self::Shutdown | Self::Resign | Self::AppUnhealthy | Self::ChildExited | Self::HookFailed => true,
            Self::RenewTimeout | Self::Lost | Self::Expired | Self::Superseded | Self::MaxFailedExtends => false,
        }
    }

    /// The label and log field.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Shutdown => "shutdown",
            Self::Resign => "resign",
            Self::RenewTimeout => "renew-timeout",
            Self::Lost => "lost",
            Self::Expired => "expired",
            Self::Superseded => "superseded",
            Self::MaxFailedExtends => "max-failed-extends",
            Self::AppUnhealthy => "app-unhealthy",
            Self::ChildExited => "child-exited",
            Self::HookFailed => "hook-failed",
        }
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AcquireOutcome {
    /// It won.
    Won,
    /// One other owner has a quorum.
    Held,
    /// Several owners have some nodes each.
    Split,
    /// Too many nodes are in quarantine.
    Quarantined,
    /// Too many nodes know a larger token.
    Outdated,
    /// A quorum granted it with less than half of the ttl left.
    Late,
    /// Too few nodes answered.
    NoQuorum,
    /// It was given up on request.
    Cancelled,
}

impl AcquireOutcome {
    /// Every outcome.
    pub const ALL: [Self; 8] = [
        Self::Won,
        Self::Held,
        Self::Split,
        Self::Quarantined,
        Self::Outdated,
        Self::Late,
        Self::NoQuorum,
        Self::Cancelled,
    ];

    /// The label and log field.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Won => "won",
            Self::Held => "held",
            Self::Split => "split",
            Self::Quarantined => "quarantined",
            Self::Outdated => "outdated",
            Self::Late => "late",
            Self::NoQuorum => "no-quorum",
            Self::Cancelled => "cancelled",
        }
    }
}

/// How a round of extends ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtendOutcome {
    /// A quorum confirmed it.
    Ok,
    /// None did within the node timeout.
    NoQuorum,
    /// So many nodes said `lost` that no quorum could.
    Lost,
}

impl ExtendOutcome {
    /// Every outcome.
    pub const ALL: [Self; 3] = [Self::Ok, Self::NoQuorum, Self::Lost];

    /// The label and log field.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NoQuorum => "no-quorum",
            Self::Lost => "lost",
        }
    }
}

/// How a release ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleaseOutcome {
    /// Every node answered.
    Ok,
    /// Some did.
    Partial,
    /// None did.
    Failed,
}

impl ReleaseOutcome {
    /// Every outcome.
    pub const ALL: [Self; 3] = [Self::Ok, Self::Partial, Self::Failed];

    /// The label and log field.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Partial => "partial",
            Self::Failed => "failed",
        }
    }
}

/// Something worth a log line or a count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Leadership began. `gap`: since another was last seen to hold validly.
    Elected {
        /// The leadership's fencing token.
        token: Token,
        /// The moment of the win.
        at: Moment,
        /// Until when it may be believed as it stands.
        deadline: Moment,
        /// Since another was last seen to hold validly, if one ever was.
        gap: Option<Duration>,
    },
    /// Readiness is withdrawn; the work is to stop, and the lock is still held.
    SteppingDown {
        /// The leadership's fencing token.
        token: Token,
        /// Why.
        reason: StepDown,
        /// By when the work must be over.
        deadline: Moment,
    },
    /// Leadership is over. `at` is never after the deadline.
    SteppedDown {
        /// The leadership's fencing token.
        token: Token,
        /// Why.
        reason: StepDown,
        /// When belief ended.
        at: Moment,
    },
    /// Another than before is seen to hold, or nobody.
    HolderChanged {
        /// The holder's owner value.
        owner: Option<Owner>,
        /// Its token, where known.
        token: Option<Token>,
    },
    /// An attempt ended.
    Acquire {
        /// How.
        outcome: AcquireOutcome,
        /// From its first ask.
        took: Duration,
    },
    /// A round of extends ended.
    Extend {
        /// How.
        outcome: ExtendOutcome,
        /// From its send.
        took: Duration,
        /// How much of the validity was left when the quorum's reply came, in thousandths.
        margin_left: Option<u16>,
    },
    /// A release ended.
    Release {
        /// How.
        outcome: ReleaseOutcome,
        /// From its send.
        took: Duration,
    },
    /// A node's answers are votes no more (`Some`), or again (`None`).
    Node {
        /// Which node.
        node: NodeIndex,
        /// Why not.
        error: Option<Kind>,
    },
    /// A node holds another's key, or knows of a later leadership, while we lead.
    NodeLost {
        /// Which node.
        node: NodeIndex,
        /// Whose key it holds, where it said.
        owner: Option<Owner>,
    },
    /// A node had lost our key before its time and has it again.
    NodeRefilled {
        /// Which node.
        node: NodeIndex,
    },
    /// A node has no vote for this long, since it may have forgotten a grant.
    NodeQuarantined {
        /// Which node.
        node: NodeIndex,
        /// For how long.
        left: Duration,
    },
    /// A node's wall clock was stepped.
    ClockStepped {
        /// Which node.
        node: NodeIndex,
    },
    /// A node holds a lock key that never expires: a person's, or a foreign program's.
    NoExpiry {
        /// Which node.
        node: NodeIndex,
        /// The key's value.
        owner: Owner,
    },
    /// The quarantine in use grew, since a longer ttl was seen.
    Quarantine {
        /// The one in use.
        used: Duration,
    },
    /// Whether the holder works with another list of nodes than ours.
    ListMismatch {
        /// It does.
        differs: bool,
        /// Nodes in one list and not in the other.
        by: usize,
    },
}
