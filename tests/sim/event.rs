//! What happens in the world, and when.

use std::cmp::Ordering;

use redleader::redsync::name::Owner;
use redleader::redsync::reply::{Ask, Kind, NodeIndex, Outcome, Token, What};

use crate::client::{Lane, WireId};

/// A candidate's place, and which of its lives is meant: what is due to an earlier one is nobody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whom {
    pub slot: usize,
    pub life: u32,
}

/// A request on its way.
#[derive(Clone, Debug)]
pub struct Letter {
    pub from: Whom,
    pub node: NodeIndex,
    pub wire: WireId,
    pub lane: Lane,
    pub serial: u64,
    pub what: What,
    pub is_short: bool,
}

#[derive(Debug)]
pub enum Event {
    /// The core's timer, if it is still set for that time.
    Core(Whom, u64),
    /// A client's timer, likewise.
    Client(Whom, NodeIndex, u64),
    Arrive(Box<Letter>),
    Answer(Box<Letter>, Option<Outcome>),
    /// The server's end of a connection is gone.
    Closed(Whom, NodeIndex, WireId),
    Dialled(Whom, NodeIndex, Option<Kind>),
    Wake(Whom),
    WorkStopped(Whom, Token),
    /// The driver was stopped between a decision and what follows from it.
    Asks(Whom, Vec<(NodeIndex, Ask)>),
    Resume(Whom),
    Start(usize),
    Fault,
    ServerUp(usize, u32),
    Thaw(usize),
    Accept(usize),
    Heal {
        slot: usize,
        server: usize,
    },
    /// A foreign key without an expiry is deleted by hand.
    Unblock(usize, Owner),
    Healthy(Whom),
    /// It is stopped for that long.
    Ambush(Whom, u64),
    Crash(Whom),
    /// An attempt of this owner was given up a while ago.
    NothingLeft(Whom, Owner),
    Discipline,
    /// A contender that speaks plain Redsync looks whether it can lead.
    Redsync,
    StepForward(usize),
    Burn(usize, Token),
    Calm,
    Judge,
    Trouble,
}

/// An event and its time; the earliest is the greatest, and of equal ones the one that was planned first.
#[derive(Debug)]
pub struct Due {
    pub at: u64,
    pub number: u64,
    pub event: Event,
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}
