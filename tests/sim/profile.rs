//! What one seed's world is made of.

use std::time::Duration;

use redleader::election::timing::{Timing, Wish};

use crate::chance::Chance;

/// How much clock rates may differ, in thousandths: the product's default.
const MARGIN: u32 = 100;
/// A clock's largest error of rate: two that err oppositely stay just within the margin.
pub const RATE: i64 = 52_000;

/// The numbers of one world. Permille are chances of a message or a turn while there is trouble.
#[derive(Clone, Debug)]
pub struct Profile {
    pub candidates: usize,
    pub lists: Vec<Vec<usize>>,
    pub servers: usize,
    pub ttls: Vec<Duration>,
    pub quarantine: Duration,
    pub node_timeout: Duration,
    /// The largest one-way delay of a message that nothing is wrong with, in microseconds.
    pub trip: u64,
    /// How many times farther one of the nodes is.
    pub far: u64,
    pub lost: u64,
    pub late: u64,
    pub slow: u64,
    pub wake_lost: u64,
    /// How late a message can be.
    pub late_most: u64,
    /// Microseconds between faults, on average.
    pub fault_every: u64,
    pub stall: u64,
    /// Clocks of nodes are stepped back by more than a part of the quarantine.
    pub has_big_steps: bool,
    pub has_rates: bool,
    /// Candidates' clocks are as slow, and nodes' as fast, as is allowed.
    pub has_worst_rates: bool,
    /// How often a late release of somebody's attempt meets another's acquire.
    pub burns: u64,
    /// How often a winner is stopped, or ends, before it can extend.
    pub ambushes: u64,
    /// One node's clock is far ahead, for ever.
    pub has_wild_clock: bool,
    /// Faults that happen here, by number.
    pub faults: u64,
    pub flavour: Flavour,
}

/// What a world is mostly about, so that rare meetings become frequent ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Anything.
    Everything,
    /// Candidates come, go and stop while nodes keep their data.
    Contention,
    /// Leaders resign at once, and everyone wants to follow.
    Rush,
    /// One node less than all is the rule, and nodes forget.
    Forgetting,
}

impl Profile {
    pub fn draw(chance: &mut Chance) -> Self {
        let nodes = chance.pick(&[3, 3, 5]);
        let (lists, servers) = lists(chance, nodes);
        let ttl = Duration::from_millis(chance.pick(&[100, 400, 1000, 1000, 2000, 8000]));
        let ttls = match chance.between(0, 3) {
            0 => vec![ttl, ttl * 2],
            1 => vec![ttl, ttl * 3 / 2, ttl * 3],
            _ => vec![ttl],
        };
        let longest = ttls.iter().copied().max().expect("a ttl");
        let node_timeout = ttl / chance.pick(&[20, 20, 10, 40]);
        let ttl_us = micros(longest);
        let trip = chance.between(50, micros(node_timeout) / 6);
        let quiet = chance.permille(150);
        let flavour = chance.pick(&[Flavour::Everything, Flavour::Contention, Flavour::Rush, Flavour::Forgetting]);
        Self {
            candidates: match flavour {
                Flavour::Contention | Flavour::Rush => chance.pick(&[3, 4, 5]),
                Flavour::Everything | Flavour::Forgetting => chance.pick(&[2, 2, 3, 3, 4, 5]),
            },
            servers,
            quarantine: whole_millis(longest * (1000 + MARGIN) / 1000) * chance.pick(&[1, 1, 1, 2]),
            ttls,
            trip,
            far: chance.pick(&[1, 1, (micros(node_timeout) * 3 / 10 / trip).max(1)]),
            node_timeout,
            lost: if quiet { 0 } else { chance.pick(&[0, 5, 30, 100]) },
            late: if quiet { 0 } else { chance.pick(&[0, 5, 30, 100]) },
            slow: chance.pick(&[0, 20, 100, 300]),
            wake_lost: chance.pick(&[0, 100, 1000]),
            late_most: ttl_us * chance.pick(&[1, 1, 2]),
            fault_every: ttl_us
                / match flavour {
                    Flavour::Everything => chance.pick(&[1, 2, 4, 8]),
                    Flavour::Contention | Flavour::Forgetting => chance.pick(&[2, 4, 8, 12]),
                    Flavour::Rush => chance.pick(&[8, 20, 40]),
                },
            stall: chance.pick(&[0, 1, 5, 20]),
            has_big_steps: chance.permille(250),
            has_rates: chance.permille(700),
            has_worst_rates: chance.permille(300),
            burns: chance.pick(&[0, 0, 50, 300]),
            ambushes: chance.pick(&[0, 0, 50, 300]),
            has_wild_clock: lists.len() == 1 && chance.permille(250),
            // Not every world has every fault, so that each is also seen without the noise of the others.
            faults: crate::fault::usual(flavour)
                & match chance.between(0, 2) {
                    0 => u64::MAX,
                    1 => chance.next() | chance.next(),
                    _ => chance.next(),
                },
            flavour,
            lists,
        }
    }

    /// What a candidate that starts now works with.
    pub fn timing(&self, chance: &mut Chance, has_own_quarantine: bool) -> Timing {
        loop {
            let ttl = chance.pick(&self.ttls);
            let wish = Wish {
                ttl,
                margin_permille: MARGIN,
                renew: chance.pick(&[None, None, Some(ttl / 6), Some(ttl / 3)]),
                node_timeout: Some(self.node_timeout),
                grace: chance.pick(&[None, None, Some(ttl / 50), Some(ttl / 3)]),
                quarantine: (!has_own_quarantine).then_some(self.quarantine),
                connect_timeout: Some(ttl / 2),
                stop_timeout: ttl * chance.pick(&[1, 2]),
                handover_delay: ttl / 4 * chance.pick(if self.faults == 0 { &[0, 0] } else { &[0, 1] }),
                max_failed_extends: chance.pick(&[0, 0, 0, 1, 3]),
            };
            if let Ok(timing) = Timing::new(&wish) {
                return timing;
            }
        }
    }

    pub fn longest(&self) -> Duration {
        self.ttls.iter().copied().max().expect("a ttl")
    }
}

/// Whose clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    Node,
    Candidate,
}

impl Profile {
    /// An error of a clock's rate: the extremes are where it matters.
    pub fn rate(&self, chance: &mut Chance, whose: Whose) -> i64 {
        match (self.has_rates, self.has_worst_rates, whose) {
            (false, ..) => 0,
            (true, true, Whose::Node) => RATE,
            (true, true, Whose::Candidate) => -RATE,
            (true, false, _) => match chance.between(0, 3) {
                0 => RATE,
                1 => -RATE,
                _ => chance.signed(-RATE, RATE),
            },
        }
    }
}

/// One list for all, or two that differ by one node.
fn lists(chance: &mut Chance, nodes: usize) -> (Vec<Vec<usize>>, usize) {
    let all: Vec<usize> = (0..nodes).collect();
    match chance.between(0, 5) {
        0 => (vec![all, (0..=nodes).collect()], nodes + 1),
        1 => (vec![all, (0..nodes - 1).collect()], nodes),
        _ => (vec![all], nodes),
    }
}

pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("durations here are short")
}

fn whole_millis(duration: Duration) -> Duration {
    Duration::from_millis(micros(duration).div_ceil(1000))
}
