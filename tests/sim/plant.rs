//! Bugs to plant, so that the invariants are known to notice: every way that is known to get the protocol wrong.
//!
//! Those of the scripts and of the world are planted here. Those of the core are in no source of the product: they are
//! in `planted.patch`, which `tests/sim/mutants` applies to a copy. What the promise takes for granted is here too: it is
//! shown to break when that does not hold.

/// Each is a way that somebody could have built it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plant {
    NoQuarantine,
    LooksWriteNoMarker,
    FutureMarkerIsWaitedFor,
    LongKeyIsNotCapped,
    RegrantKeepsExpiry,
    RegrantKeepsToken,
    RefillRefusedByLargerToken,
    LateExtendRefills,
    ReleaseBurnsNothing,
    NoUntil,
    UntilForgottenByStep,
    ReleaseOfAnyOwner,
    ExtendOfAnyOwner,
    OwnQuarantine,
    ExtendedInQuarantine,
    RefilledInQuarantine,
    TokenOfOneNode,
    TokenWithoutClocks,
    TokenOfUpperMedian,
    DeadGrants,
    SameNodeTwice,
    CleanUpSkipsOlderAsk,
    NoCleanUp,
    DeadlineFromReply,
    DeadlineComesBack,
    SplitSleeps,
    UnknownIsVote,
    QuorumOfReachable,
    OtherLists,
    LongerLists,
    MonotonicClock,
    StepForward,
    RatesBeyond,
    FrozenMachine,
    OlderProcess,
    RedsyncBeside,
}

/// Where a bug sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Script,
    Core,
    /// What reads the clock and speaks to the nodes.
    Driver,
    /// What the promise takes for granted.
    World,
}

impl Plant {
    pub const ALL: [Self; 31] = [
        Self::NoQuarantine,
        Self::OwnQuarantine,
        Self::ExtendedInQuarantine,
        Self::RefilledInQuarantine,
        Self::LooksWriteNoMarker,
        Self::FutureMarkerIsWaitedFor,
        Self::LongKeyIsNotCapped,
        Self::TokenOfOneNode,
        Self::TokenWithoutClocks,
        Self::TokenOfUpperMedian,
        Self::RegrantKeepsExpiry,
        Self::RegrantKeepsToken,
        Self::RefillRefusedByLargerToken,
        Self::UnknownIsVote,
        Self::QuorumOfReachable,
        Self::LateExtendRefills,
        Self::ReleaseBurnsNothing,
        Self::DeadGrants,
        Self::NoUntil,
        Self::UntilForgottenByStep,
        Self::SameNodeTwice,
        Self::CleanUpSkipsOlderAsk,
        Self::NoCleanUp,
        Self::DeadlineFromReply,
        Self::DeadlineComesBack,
        Self::ReleaseOfAnyOwner,
        Self::ExtendOfAnyOwner,
        Self::OtherLists,
        Self::LongerLists,
        Self::SplitSleeps,
        Self::MonotonicClock,
    ];

    /// What is not promised.
    pub const LIMITS: [Self; 5] =
        [Self::StepForward, Self::RatesBeyond, Self::FrozenMachine, Self::OlderProcess, Self::RedsyncBeside];

    pub fn place(self) -> Place {
        match self {
            Self::NoQuarantine
            | Self::LooksWriteNoMarker
            | Self::FutureMarkerIsWaitedFor
            | Self::LongKeyIsNotCapped
            | Self::RegrantKeepsExpiry
            | Self::RegrantKeepsToken
            | Self::RefillRefusedByLargerToken
            | Self::LateExtendRefills
            | Self::ReleaseBurnsNothing
            | Self::NoUntil
            | Self::UntilForgottenByStep
            | Self::ReleaseOfAnyOwner
            | Self::ExtendOfAnyOwner => Place::Script,
            Self::OwnQuarantine
            | Self::ExtendedInQuarantine
            | Self::RefilledInQuarantine
            | Self::TokenOfOneNode
            | Self::TokenWithoutClocks
            | Self::TokenOfUpperMedian
            | Self::DeadGrants
            | Self::SameNodeTwice
            | Self::CleanUpSkipsOlderAsk
            | Self::NoCleanUp
            | Self::DeadlineFromReply
            | Self::DeadlineComesBack
            | Self::SplitSleeps
            | Self::UnknownIsVote
            | Self::QuorumOfReachable => Place::Core,
            Self::MonotonicClock => Place::Driver,
            Self::OtherLists
            | Self::LongerLists
            | Self::StepForward
            | Self::RatesBeyond
            | Self::FrozenMachine
            | Self::OlderProcess
            | Self::RedsyncBeside => Place::World,
        }
    }

    /// What is wrong in it.
    pub fn text(self) -> &'static str {
        match self {
            Self::NoQuarantine => "no quarantine",
            Self::OwnQuarantine => "quarantine of the requester's own ttl beside a longer one",
            Self::ExtendedInQuarantine => "`extended` counts in quarantine",
            Self::RefilledInQuarantine => "`refilled` counts in quarantine",
            Self::LooksWriteNoMarker => "looks never write the marker",
            Self::FutureMarkerIsWaitedFor => "`born` in the future waits for it",
            Self::LongKeyIsNotCapped => "a key after a clock step back is not capped",
            Self::TokenOfOneNode => "token = seen + 1 from one node",
            Self::TokenWithoutClocks => "seen + 1 without clocks, all nodes restart empty",
            Self::TokenOfUpperMedian => "median of whatever answered, upper one",
            Self::RegrantKeepsExpiry => "a re-grant does not renew the expiry",
            Self::RegrantKeepsToken => "a re-grant does not store the larger token",
            Self::RefillRefusedByLargerToken => "refill refused wherever a larger token was asked for",
            Self::UnknownIsVote => "unknown reply as a vote",
            Self::QuorumOfReachable => "quorum of the reachable",
            Self::LateExtendRefills => "a late extend refills after the release",
            Self::ReleaseBurnsNothing => "a late acquire is granted after its own release",
            Self::DeadGrants => "grants of a dead attempt stay in the vector",
            Self::NoUntil => "one key lost silently with a bare quorum, no `until`",
            Self::UntilForgottenByStep => "an `until` that a clock step back has made too late is forgotten",
            Self::SameNodeTwice => "the same node listed twice, not noticed",
            Self::CleanUpSkipsOlderAsk => "clean-up skips a node whose older ask was refused",
            Self::NoCleanUp => "aborted attempts are not cleaned up",
            Self::DeadlineFromReply => "deadline counted from the reply",
            Self::DeadlineComesBack => "the deadline may come back after it passed",
            Self::ReleaseOfAnyOwner => "release without owner check",
            Self::ExtendOfAnyOwner => "extend without owner check",
            Self::OtherLists => "lists ABC and ABD together",
            Self::SplitSleeps => "a split vote sleeps by time left",
            Self::LongerLists => "lists ABC and ABCDE together",
            Self::StepForward => "a node's clock is stepped forward by more than its key",
            Self::RatesBeyond => "clock rates differ by more than the margin",
            Self::FrozenMachine => "a machine is frozen together with its clock",
            Self::OlderProcess => "an older copy of a server is back at its address, and nobody sees the change",
            Self::RedsyncBeside => "go-redsync beside us, and a node restarts empty",
            Self::MonotonicClock => "monotonic instead of boot clock, over a suspend",
        }
    }
}

/// Plants a bug in the core. `false`: this core can have none.
pub fn plant_core(_plant: Plant) -> bool {
    false
}
