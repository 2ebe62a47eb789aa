//! Chance that can be repeated, and how much of it.

use std::time::Duration;

use super::figures::setting;

#[path = "../../sim/chance.rs"]
#[allow(dead_code, reason = "shared with the simulator")]
mod chance;

use chance::Chance;

/// The simulator's chance, in ranges that leave out their end.
#[derive(Clone, Debug)]
pub struct Rng(Chance);

impl Rng {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(Chance::new(seed))
    }

    /// From the environment's `SEED`, else from the boot clock; prints it, so that a failure can be repeated.
    pub fn seeded(test: &str) -> Self {
        let seed = setting("SEED").and_then(|text| text.parse().ok()).unwrap_or_else(super::boot_micros);
        println!("{test}: SEED={seed}");
        Self::new(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next()
    }

    /// Uniform in `low..high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low < high, "an empty range");
        self.0.between(low, high - 1)
    }

    /// An index below `count`.
    pub fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.between(0, count as u64)).expect("an index below a usize fits one")
    }

    /// Uniform in `[low, high)`.
    pub fn duration(&mut self, low: Duration, high: Duration) -> Duration {
        Duration::from_micros(self.between(micros(low), micros(high)))
    }

    /// True once in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.between(0, n) == 0
    }

    /// One of the items.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("durations in tests are short")
}

/// How long the tests may take: `SCALE=ci` (the default) or `SCALE=soak`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Every change: minutes.
    Ci,
    /// A night.
    Soak,
}

impl Scale {
    /// The first for CI, the second for a soak.
    pub fn pick<T>(self, ci: T, soak: T) -> T {
        match self {
            Self::Ci => ci,
            Self::Soak => soak,
        }
    }
}

/// What `SCALE` says.
pub fn scale() -> Scale {
    match setting("SCALE").as_deref() {
        None | Some("ci") => Scale::Ci,
        Some("soak") => Scale::Soak,
        Some(other) => panic!("SCALE is ci or soak, not {other}"),
    }
}
