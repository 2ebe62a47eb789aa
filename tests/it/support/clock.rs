//! Wall clocks that a test moves: a preloaded library under one server, `tests/clock-shim`.

use std::time::Duration;

use super::server::cache;
use super::temp::TempDir;

/// The wall clock of the servers that were started with it.
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

    /// Sets it anew; servers follow within a few milliseconds.
    pub fn set(&self, offset_us: i64, rate_ppm: i64) {
        // By rename, so that no server reads half of it.
        let next = self.directory.write("next", &format!("{offset_us} {rate_ppm}\n"));
        std::fs::rename(next, self.directory.join("clock")).expect("a directory of our own can be written to");
    }

    /// As [`Self::set`], by whole seconds.
    pub fn step_to(&self, ahead: Duration) {
        self.set(i64::try_from(ahead.as_micros()).expect("a test's step is small"), 0);
    }

    pub(super) fn env(&self) -> [(String, String); 2] {
        let library = cache().join("clock-shim/clock_shim.so");
        assert!(library.exists(), "{} is missing: run tests/setup", library.display());
        let text = |path: std::path::PathBuf| path.to_str().expect("a path of our own is text").to_owned();
        [("LD_PRELOAD".to_owned(), text(library)), ("CLOCK_SHIM".to_owned(), text(self.directory.join("clock")))]
    }
}
