//! Clocks that run fast or slow and can be stepped. True time is in microseconds since the world began.

/// One clock, as a straight line from its last change on.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    since: u64,
    base: u64,
    /// Parts per million faster than true time.
    ppm: i64,
}

const MILLION: i64 = 1_000_000;

impl Clock {
    pub fn new(base: u64, ppm: i64) -> Self {
        Self { since: 0, base, ppm }
    }

    /// What it shows at the true time `at`.
    pub fn read(&self, at: u64) -> u64 {
        let passed = i64::try_from(at - self.since).expect("a short history");
        self.base + ((passed * (MILLION + self.ppm)) / MILLION).unsigned_abs()
    }

    /// The first true time at which it shows `shown` or more, if nothing changes it before.
    pub fn when(&self, shown: u64) -> u64 {
        let Some(ahead) = shown.checked_sub(self.base) else { return self.since };
        let Some(ahead) = i64::try_from(ahead).ok().filter(|ahead| *ahead < i64::MAX / MILLION) else {
            return u64::MAX;
        };
        let rate = MILLION + self.ppm;
        self.since + ((ahead * MILLION + rate - 1) / rate).unsigned_abs()
    }

    pub fn set_rate(&mut self, at: u64, ppm: i64) {
        *self = Self { since: at, base: self.read(at), ppm };
    }

    /// It stands still until its rate is set again.
    pub fn halt(&mut self, at: u64) {
        self.set_rate(at, -MILLION + 1);
    }

    pub fn step(&mut self, at: u64, by: i64) {
        *self = Self { since: at, base: self.read(at).saturating_add_signed(by), ppm: self.ppm };
    }

    /// How far it is ahead of a perfect one that showed `start` when the world began.
    pub fn offset(&self, at: u64, start: u64) -> i64 {
        i64::try_from(self.read(at)).expect("a date") - i64::try_from(start + at).expect("a date")
    }
}

#[test]
fn a_clock_shows_at_the_first_moment_what_it_was_asked_for() {
    for ppm in [-50_000, -3, 0, 7, 50_000] {
        let mut clock = Clock::new(1_000, ppm);
        clock.set_rate(12_345, -ppm / 2);
        for shown in [20_000, 99_999, 123_457] {
            let at = clock.when(shown);
            assert!(clock.read(at) >= shown && clock.read(at - 1) < shown, "{ppm} {shown}");
        }
    }
}
