//! Chance that can be repeated.

/// SplitMix64: the same on every machine.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another stream, so that a draw more in one place moves nothing elsewhere.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// Uniform in `low..=high`.
    pub fn signed(&mut self, low: i64, high: i64) -> i64 {
        low + i64::try_from(self.between(0, (high - low).unsigned_abs())).expect("a span that fits")
    }

    pub fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.between(0, count as u64 - 1)).expect("an index")
    }

    /// True with that many thousandths.
    pub fn permille(&mut self, permille: u64) -> bool {
        self.between(0, 999) < permille
    }

    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.index(items.len())]
    }
}
