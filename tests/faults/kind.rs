//! What goes wrong.

/// One kind of fault, by what it befalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A candidate's process.
    Candidate(OfCandidate),
    /// One node, or several.
    Node(OfNode),
    /// A candidate's paths to some nodes.
    Path(OfPath),
}

/// What befalls a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfCandidate {
    /// A candidate gets kill -9, and another takes its place later.
    Killed,
    /// A candidate gets SIGTERM, and another takes its place later.
    Ended,
    /// A candidate is asked to resign.
    Resigned,
    /// A candidate is stopped for less than the ttl.
    PausedShort,
    /// A candidate is stopped for longer than the ttl.
    PausedLong,
}

/// What befalls nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfNode {
    /// A node gets kill -9 and comes back empty.
    RestartedEmpty,
    /// A node gets kill -9 and comes back with its append-only file.
    RestartedWithAof,
    /// A node gets kill -9 and comes back, empty, after more than a ttl.
    Down,
    /// As many nodes as a quorum come back empty.
    MostRestartedEmpty,
    /// A node is stopped for less than the ttl.
    HungShort,
    /// A node is stopped for longer than the ttl.
    HungLong,
    /// `SCRIPT FLUSH`.
    ScriptsFlushed,
    /// `CONFIG SET maxmemory`, and nothing is evicted.
    OutOfMemory,
    /// `CONFIG SET maxmemory`, and the key is evicted.
    Evicted,
    /// `CLIENT KILL` of every connection.
    ClientsKilled,
    /// A right that is needed is taken away.
    RightsTaken,
    /// FLUSHALL on one node.
    Flushed,
    /// FLUSHALL on as many nodes as a quorum.
    MostFlushed,
    /// The key, or the state beside it, is deleted.
    KeyDeleted,
    /// A node's clock goes forward beyond the key.
    ClockForward,
    /// A node's clock goes forward by less than the margin.
    ClockNudged,
    /// A node's clock goes back.
    ClockBack,
}

/// What befalls paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfPath {
    /// Everything is late.
    Delayed,
    /// Everything is swallowed.
    Blackhole,
    /// Requests arrive, replies do not.
    RepliesDropped,
    /// Nothing passes, and everything arrives when it is over.
    Stalled,
    /// Connections are refused.
    Refused,
    /// Connections are reset.
    Reset,
    /// The node's half of the connections is closed.
    HalfClosed,
    /// A reply ends in its middle.
    Truncated,
    /// One request is held, and released later.
    RequestHeld,
    /// One reply is held, and released later.
    ReplyHeld,
}

impl Kind {
    /// How often each is drawn, relative to the others. What makes nodes forget is drawn most: it is what a lock of this
    /// kind has to fear, and without the quarantine it shows. [`OfNode::ClockForward`] has a place of its own.
    pub const ALL: [(Self, u64); 32] = [
        (Self::Candidate(OfCandidate::Killed), 3),
        (Self::Candidate(OfCandidate::Ended), 3),
        (Self::Candidate(OfCandidate::Resigned), 3),
        (Self::Candidate(OfCandidate::PausedShort), 2),
        (Self::Candidate(OfCandidate::PausedLong), 4),
        (Self::Node(OfNode::RestartedEmpty), 2),
        (Self::Node(OfNode::RestartedWithAof), 2),
        (Self::Node(OfNode::Down), 1),
        (Self::Node(OfNode::MostRestartedEmpty), 4),
        (Self::Node(OfNode::HungShort), 1),
        (Self::Node(OfNode::HungLong), 1),
        (Self::Node(OfNode::ScriptsFlushed), 1),
        (Self::Node(OfNode::OutOfMemory), 1),
        (Self::Node(OfNode::Evicted), 1),
        (Self::Node(OfNode::ClientsKilled), 1),
        (Self::Node(OfNode::RightsTaken), 1),
        (Self::Node(OfNode::Flushed), 1),
        (Self::Node(OfNode::MostFlushed), 6),
        (Self::Node(OfNode::KeyDeleted), 1),
        (Self::Node(OfNode::ClockForward), 0),
        (Self::Node(OfNode::ClockNudged), 2),
        (Self::Node(OfNode::ClockBack), 2),
        (Self::Path(OfPath::Delayed), 1),
        (Self::Path(OfPath::Blackhole), 3),
        (Self::Path(OfPath::RepliesDropped), 2),
        (Self::Path(OfPath::Stalled), 2),
        (Self::Path(OfPath::Refused), 1),
        (Self::Path(OfPath::Reset), 1),
        (Self::Path(OfPath::HalfClosed), 1),
        (Self::Path(OfPath::Truncated), 1),
        (Self::Path(OfPath::RequestHeld), 2),
        (Self::Path(OfPath::ReplyHeld), 3),
    ];

    /// For the timeline and the counts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Candidate(of) => of.as_str(),
            Self::Node(of) => of.as_str(),
            Self::Path(of) => of.as_str(),
        }
    }
}

impl OfCandidate {
    fn as_str(self) -> &'static str {
        match self {
            Self::Killed => "candidate killed",
            Self::Ended => "candidate ended",
            Self::Resigned => "candidate resigned",
            Self::PausedShort => "candidate paused, short",
            Self::PausedLong => "candidate paused, long",
        }
    }
}

impl OfNode {
    fn as_str(self) -> &'static str {
        match self {
            Self::RestartedEmpty => "node restarted empty",
            Self::RestartedWithAof => "node restarted with its file",
            Self::Down => "node down for long",
            Self::MostRestartedEmpty => "most nodes restarted empty",
            Self::HungShort => "node hung, short",
            Self::HungLong => "node hung, long",
            Self::ScriptsFlushed => "scripts flushed",
            Self::OutOfMemory => "out of memory",
            Self::Evicted => "key evicted",
            Self::ClientsKilled => "clients killed",
            Self::RightsTaken => "rights taken",
            Self::Flushed => "node flushed",
            Self::MostFlushed => "most nodes flushed",
            Self::KeyDeleted => "key deleted",
            Self::ClockForward => "clock forward",
            Self::ClockNudged => "clock nudged",
            Self::ClockBack => "clock back",
        }
    }

    /// Whether it befalls as many nodes as a quorum at once.
    pub fn befalls_most(self) -> bool {
        matches!(self, Self::MostRestartedEmpty | Self::MostFlushed)
    }

    /// Whether it needs a node with a clock of its own.
    pub fn moves_a_clock(self) -> bool {
        matches!(self, Self::ClockForward | Self::ClockNudged | Self::ClockBack)
    }
}

impl OfPath {
    fn as_str(self) -> &'static str {
        match self {
            Self::Delayed => "path delayed",
            Self::Blackhole => "path swallows",
            Self::RepliesDropped => "path drops replies",
            Self::Stalled => "path stalled",
            Self::Refused => "path refuses",
            Self::Reset => "path reset",
            Self::HalfClosed => "path half closed",
            Self::Truncated => "reply truncated",
            Self::RequestHeld => "request held",
            Self::ReplyHeld => "reply held",
        }
    }
}
