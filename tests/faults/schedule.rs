//! What happens in one run, drawn from its seed alone; only who leads at a time is not the seed's.

use std::time::Duration;

use crate::kind::{Kind, OfCandidate, OfNode, OfPath};
use crate::support::{Flavour, Rng};

/// One schedule.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// What it was drawn from.
    pub seed: u64,
    /// Of the lock. All else follows from it, [`Self::node_timeout`] excepted.
    pub ttl: Duration,
    /// What each node is.
    pub nodes: Vec<Node>,
    /// For each candidate, whether its paths to the nodes can be disturbed.
    pub candidates: Vec<bool>,
    /// In the order of their time.
    pub faults: Vec<Fault>,
}

/// What a node is.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// Which server.
    pub flavour: Flavour,
    /// Whether it keeps an append-only file.
    pub has_aof: bool,
    /// How many microseconds its clock is ahead, and by how many millionths it is fast; `None` without a clock of its own.
    pub clock: Option<(i64, i64)>,
}

/// One fault.
#[derive(Clone, Debug)]
pub struct Fault {
    /// What.
    pub kind: Kind,
    /// When, in milliseconds after the first election.
    pub at: u64,
    /// For how long, in milliseconds; 0 for what has no length.
    pub lasts: u64,
    /// Which candidate.
    pub seat: usize,
    /// Whether it is the leader's rather, if there is one.
    pub leader: bool,
    /// Which nodes.
    pub nodes: Vec<usize>,
    /// How much of it: microseconds of a clock, milliseconds of a delay; or which variant.
    pub amount: u64,
}

impl Schedule {
    /// Draws one.
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let ttl = Duration::from_millis(*rng.pick(&[500, 500, 500, 600, 700, 1000]));
        let count = if rng.one_in(3) { 5 } else { 3 };
        let nodes = draw_nodes(&mut rng, count, ttl);
        let mut candidates: Vec<bool> = (0..3 + rng.index(3)).map(|_| !rng.one_in(3)).collect();
        candidates[0] = true;
        let schedule = Self { seed, ttl, nodes, candidates, faults: Vec::new() };
        let occupied = vec![Vec::new(); count];
        Draft { rng, schedule, occupied, nudged: 0, went_back: false }.fill()
    }

    /// A fifth of the ttl: patience with a loaded machine, where not speed is tested but safety.
    pub fn node_timeout(&self) -> Duration {
        self.ttl / 5
    }

    /// How long a node that may have forgotten has no vote: the default.
    pub fn quarantine(&self) -> Duration {
        self.ttl * 11 / 10
    }

    /// What an election takes that nothing disturbs: two rounds and a jitter.
    pub fn find(&self) -> Duration {
        self.node_timeout() * 2 + Duration::from_millis(1)
    }

    /// For how long after its end a fault can be why nobody leads: until a key that nobody extends is gone, until the
    /// nodes may vote again, and until then somebody has dialled, looked and asked.
    pub fn aftermath(&self) -> Duration {
        self.ttl + self.quarantine() + self.ttl
    }

    /// How many votes are a quorum.
    pub fn quorum(&self) -> usize {
        self.nodes.len() / 2 + 1
    }
}

fn draw_nodes(rng: &mut Rng, count: usize, ttl: Duration) -> Vec<Node> {
    let others = [Flavour::Redis62, Flavour::Valkey9];
    let flavour = |rng: &mut Rng| if rng.one_in(4) { *rng.pick(&others) } else { Flavour::Redis70 };
    let draw = |_| Node { flavour: flavour(rng), has_aof: rng.one_in(3), clock: None };
    let mut nodes: Vec<Node> = (0..count).map(draw).collect();
    if rng.one_in(2) {
        // Assumption: the nodes' clocks agree within the quarantine. One node has a clock of its own, whose offset and
        // steps together stay below half of a quarantine, but for one that goes forward, which the median leaves out.
        let ahead = rng.between(0, micros(ttl) * 3 / 10).cast_signed() - micros(ttl / 10).cast_signed();
        // Assumption: rates differ by less than the margin, which is ten times as much.
        let fast = rng.between(0, 20_001).cast_signed() - 10_000;
        nodes[rng.index(count)].clock = Some((ahead, fast));
    }
    nodes
}

/// A schedule that is being drawn.
struct Draft {
    rng: Rng,
    schedule: Schedule,
    /// When each node has a fault that lasts, in milliseconds.
    occupied: Vec<Vec<(u64, u64)>>,
    /// How far the clock has been nudged, in microseconds.
    nudged: u64,
    went_back: bool,
}

impl Draft {
    /// Bursts of faults, in which one meets the traces of others. In the calm after the last somebody has to lead.
    fn fill(mut self) -> Schedule {
        let ttl = millis(self.schedule.ttl);
        let bursts = if ttl < 800 { 2 } else { 1 };
        let mut at = 0;
        for burst in 0..bursts {
            if burst > 0 {
                at = self.end() + self.rng.between(0, millis(self.schedule.aftermath()) * 5 / 4);
            }
            for _ in 0..4 + self.rng.index(5) {
                // Half of them come nearly together, since faults seldom come alone.
                at += if self.rng.one_in(2) { self.rng.between(0, 30) } else { self.rng.between(30, ttl / 2) };
                let fault = self.fault(at);
                self.schedule.faults.extend(fault);
            }
        }
        if self.rng.one_in(5) {
            let fault = self.clock_forward();
            self.schedule.faults.extend(fault);
        }
        self.schedule
    }

    /// When the last fault so far is over.
    fn end(&self) -> u64 {
        self.schedule.faults.iter().map(|fault| fault.at + fault.lasts).max().unwrap_or(0)
    }

    /// Something that can happen then; `None` if all nodes are busy.
    fn fault(&mut self, at: u64) -> Option<Fault> {
        (0..20).find_map(|_| {
            let kind = self.kind();
            let lasts = self.lasts(kind);
            let nodes = self.nodes(kind, at, lasts)?;
            let amount = self.amount(kind)?;
            let seat = self.rng.index(self.schedule.candidates.len());
            Some(Fault { kind, at, lasts, seat, leader: !self.rng.one_in(3), nodes, amount })
        })
    }

    fn kind(&mut self) -> Kind {
        let total = Kind::ALL.iter().map(|(_, weight)| weight).sum();
        let mut drawn = self.rng.between(0, total);
        let chosen = Kind::ALL.iter().find(|(_, weight)| {
            let is_it = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            is_it
        });
        chosen.expect("what is drawn is below the sum").0
    }

    fn lasts(&mut self, kind: Kind) -> u64 {
        let ttl = millis(self.schedule.ttl);
        let short = (ttl / 20, ttl * 9 / 10);
        let long = (ttl * 11 / 10, ttl * 2);
        let either = (ttl / 25, ttl * 3 / 2);
        let (least, most) = match kind {
            Kind::Candidate(of) => match of {
                OfCandidate::Killed | OfCandidate::Ended => (0, ttl),
                OfCandidate::Resigned => either,
                OfCandidate::PausedShort => short,
                OfCandidate::PausedLong => long,
            },
            Kind::Node(of) => match of {
                OfNode::RestartedEmpty | OfNode::RestartedWithAof | OfNode::MostRestartedEmpty => (0, ttl / 2),
                OfNode::HungShort => short,
                OfNode::HungLong | OfNode::Down => long,
                OfNode::OutOfMemory | OfNode::RightsTaken => either,
                OfNode::ScriptsFlushed
                | OfNode::Evicted
                | OfNode::ClientsKilled
                | OfNode::Flushed
                | OfNode::MostFlushed
                | OfNode::KeyDeleted
                | OfNode::ClockForward
                | OfNode::ClockNudged
                | OfNode::ClockBack => return 0,
            },
            Kind::Path(of) => match of {
                OfPath::Delayed | OfPath::Blackhole | OfPath::RepliesDropped | OfPath::Stalled | OfPath::Refused => {
                    either
                }
                OfPath::RequestHeld | OfPath::ReplyHeld => (ttl / 10, ttl * 2),
                OfPath::Reset | OfPath::HalfClosed | OfPath::Truncated => return 0,
            },
        };
        self.rng.between(least, most)
    }

    /// Which nodes it befalls: none of those that are down or hung then.
    fn nodes(&mut self, kind: Kind, at: u64, lasts: u64) -> Option<Vec<usize>> {
        let all = self.schedule.nodes.len();
        let first = self.rng.index(all);
        let mut nodes: Vec<usize> = (first..first + all).map(|node| node % all).collect();
        let of = match kind {
            Kind::Candidate(_) => return Some(Vec::new()),
            Kind::Path(_) if self.rng.one_in(2) => return Some(nodes),
            Kind::Path(_) => {
                nodes.truncate(1 + self.rng.index(self.schedule.quorum()));
                return Some(nodes);
            }
            Kind::Node(of) => of,
        };
        let count = if of.befalls_most() { self.schedule.quorum() } else { 1 };
        // Assumption: no address is served by an older process. A node restarts at its address only after its process
        // is dead, so nothing else may befall it until then; a start takes a moment, too.
        let until = at + lasts + 100;
        nodes.retain(|node| self.occupied[*node].iter().all(|(from, to)| until < *from || *to < at));
        nodes.retain(|node| {
            let Node { has_aof, clock, .. } = self.schedule.nodes[*node];
            (has_aof || of != OfNode::RestartedWithAof) && (clock.is_some() || !of.moves_a_clock())
        });
        if nodes.len() < count {
            return None;
        }
        nodes.truncate(count);
        nodes.iter().for_each(|node| self.occupied[*node].push((at, until)));
        Some(nodes)
    }

    fn amount(&mut self, kind: Kind) -> Option<u64> {
        let ttl = micros(self.schedule.ttl);
        if kind == Kind::Node(OfNode::ClockNudged) {
            // Assumption: no clock is stepped forward while its vote counts. What is less than the margin is no step;
            // all nudges of a schedule together are half of it, since one lease may see them all.
            let nudge = self.rng.between(ttl / 100, ttl * 25 / 1000);
            self.nudged += nudge;
            (self.nudged <= ttl / 20).then_some(nudge)
        } else if kind == Kind::Node(OfNode::ClockBack) {
            // Assumption: as above; so a clock that went back is never put right, which would be a step forward.
            let is_first = !std::mem::replace(&mut self.went_back, true);
            is_first.then(|| self.rng.between(ttl / 10, ttl * 3 / 10))
        } else if kind == Kind::Path(OfPath::Delayed) {
            Some(self.rng.between(2, millis(self.schedule.node_timeout()) * 3 / 2))
        } else {
            Some(self.rng.between(0, 1000))
        }
    }

    /// Assumption: a clock that is stepped forward beyond the key is one vote too many for a leader that has none to
    /// spare. So this comes when everything before it is over, while every node holds the leader's key, and nothing
    /// else happens until the vote is back.
    fn clock_forward(&mut self) -> Option<Fault> {
        let at = self.end() + millis(self.schedule.aftermath()) + 50;
        let lasts = millis(self.schedule.ttl) / 2;
        let kind = Kind::Node(OfNode::ClockForward);
        let nodes = self.nodes(kind, at, lasts)?;
        let ttl = micros(self.schedule.ttl);
        let amount = self.rng.between(ttl, ttl * 108 / 100);
        Some(Fault { kind, at, lasts, seat: 0, leader: false, nodes, amount })
    }
}

/// Whole milliseconds.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("durations in tests are short")
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("durations in tests are short")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedules() -> impl Iterator<Item = Schedule> {
        (0..2000).map(Schedule::draw)
    }

    fn amounts(schedule: &Schedule, of: OfNode) -> Vec<u64> {
        schedule.faults.iter().filter(|fault| fault.kind == Kind::Node(of)).map(|fault| fault.amount).collect()
    }

    #[test]
    fn a_seed_gives_one_schedule() {
        for schedule in schedules().take(50) {
            let again = Schedule::draw(schedule.seed);
            assert_eq!(format!("{schedule:?}"), format!("{again:?}"));
        }
    }

    #[test]
    fn clocks_keep_what_the_promise_assumes() {
        let mut forward = 0;
        for schedule in schedules() {
            let ttl = micros(schedule.ttl);
            let seed = schedule.seed;
            let back: u64 = amounts(&schedule, OfNode::ClockBack).iter().sum();
            let nudged: u64 = amounts(&schedule, OfNode::ClockNudged).iter().sum();
            let own: Vec<(i64, i64)> = schedule.nodes.iter().filter_map(|node| node.clock).collect();
            assert!(own.len() <= 1 && nudged <= ttl / 20, "{seed}");
            for (ahead, fast) in own {
                let drift = fast.unsigned_abs() * 20;
                let off = ahead.unsigned_abs() + back + nudged + drift;
                assert!(off < micros(schedule.quarantine()), "{seed}: {off} µs in 20 s");
                assert!(fast.abs() <= 10_000, "{seed}");
            }
            let Some(at) = schedule.faults.iter().position(|f| f.kind == Kind::Node(OfNode::ClockForward)) else {
                continue;
            };
            forward += 1;
            assert_eq!(at + 1, schedule.faults.len(), "{seed}: nothing comes after it");
            let before = schedule.faults[..at].iter().map(|fault| fault.at + fault.lasts).max().unwrap_or(0);
            assert!(schedule.faults[at].at > before + millis(schedule.aftermath()), "{seed}");
        }
        assert!(forward > 50, "{forward} schedules in which a clock goes forward");
    }

    #[test]
    fn no_node_has_two_faults_at_once() {
        for schedule in schedules() {
            let of_nodes = schedule.faults.iter().filter(|fault| matches!(fault.kind, Kind::Node(_)));
            let of_nodes: Vec<&Fault> = of_nodes.collect();
            for (index, fault) in of_nodes.iter().enumerate() {
                for later in &of_nodes[index + 1..] {
                    let same = fault.nodes.iter().any(|node| later.nodes.contains(node));
                    let apart = fault.at + fault.lasts < later.at;
                    assert!(!same || apart, "{}: {fault:?}, {later:?}", schedule.seed);
                }
            }
        }
    }
}
