//! Clocks that a test moves: a preloaded library under one process, `tests/clock-shim`.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::server::cache;
use super::temp::TempDir;

/// The clocks of the processes that were started with it.
#[derive(Debug)]
pub struct ShiftedClock {
    directory: TempDir,
}

impl ShiftedClock {
    /// A clock that is `offset_us` microseconds ahead and runs `rate_ppm` millionths fast.
    pub fn new(offset_us: i64, rate_ppm: i64) -> Self {
        let clock = Self { directory: TempDir::new() };
        clock.set(offset_us, rate_ppm);
        clock
    }

    /// Sets the wall clock anew; processes follow within a few milliseconds.
    pub fn set(&self, offset_us: i64, rate_ppm: i64) {
        self.write(&format!("{offset_us} {rate_ppm}\n"));
    }

    /// The monotonic clock has stood still for this long in all: a machine that was suspended.
    pub fn stood_still(&self, duration: Duration) {
        self.write(&format!("0 0 {}\n", duration.as_micros()));
    }

    /// From now on the monotonic clock stands still, until a clock is set.
    pub fn stand_still(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        self.write(&format!("0 0 0 {}\n", now.tv_sec * 1_000_000 + now.tv_nsec / 1000));
    }

    fn write(&self, text: &str) {
        // By rename, so that no process reads half of it.
        let next = self.directory.write("next", text);
        std::fs::rename(next, self.directory.join("clock")).expect("a directory of our own can be written to");
    }

    /// As [`Self::set`], by whole seconds.
    pub fn step_to(&self, ahead: Duration) {
        self.set(i64::try_from(ahead.as_micros()).expect("a test's step is small"), 0);
    }

    /// The variables of a process that follows it.
    pub fn env(&self) -> [(String, String); 2] {
        let library = cache().join("clock-shim/clock_shim.so");
        assert!(library.exists(), "{} is missing: run tests/setup", library.display());
        let text = |path: std::path::PathBuf| path.to_str().expect("a path of our own is text").to_owned();
        [("LD_PRELOAD".to_owned(), text(library)), ("CLOCK_SHIM".to_owned(), text(self.directory.join("clock")))]
    }
}
