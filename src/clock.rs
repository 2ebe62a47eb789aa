//! The one clock that leadership is measured on: CLOCK_BOOTTIME, which counts suspended time.
//!
//! `std::time::Instant` and every tokio timer stand still while a machine sleeps, so a replica that woke up would
//! believe in a lease that ran out long ago. Pure code takes a [`Moment`]; only the driver, the watch and the node
//! client's send stamp read the clock.

use std::io;
use std::ops::{Add, Sub};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// A point in boot time, in whole microseconds since the machine started. Comparable only on one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The moment that many microseconds after the machine started.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the machine started.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the machine started: `boot_ms` in logs, `validUntilBootMs` in JSON.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1000
    }

    /// How long ago `earlier` was; zero if it is still to come.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;
    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(micros(rhs)))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;
    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(micros(rhs)))
    }
}

/// Whole microseconds, as moments and the nodes' clocks are counted in; the most there is for what is longer.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Whole milliseconds, as logs, JSON and keys have them; the most there is for what is longer.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Reads the boot clock.
#[must_use]
pub fn now() -> Moment {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
    Moment(tv_sec.unsigned_abs() * 1_000_000 + tv_nsec.unsigned_abs() / 1000)
}

/// A timer on the boot clock. It fires at once on resume, and later than asked by tens of microseconds only.
#[derive(Debug)]
pub struct BootTimer(AsyncFd<OwnedFd>);

impl BootTimer {
    /// A timer that is not armed. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// When the process may open no more files.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
        #[expect(deprecated, reason = "an OwnedFd keeps its descriptor open, and the replacement is an unsafe fn")]
        Ok(Self(AsyncFd::new(timer)?))
    }

    /// Fires at `moment` (at once if that has passed) instead of whenever it was armed for.
    ///
    /// # Errors
    /// None that a valid timer can give; the kernel's word is passed on.
    pub fn arm(&self, moment: Moment) -> io::Result<()> {
        // A zero time would disarm the timer.
        let micros = moment.0.max(1);
        let value = Timespec {
            tv_sec: i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(micros % 1_000_000).unwrap_or(0) * 1000,
        };
        let once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: once, it_value: value };
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::ABSTIME, &spec)?;
        Ok(())
    }

    /// Waits until the timer has fired.
    ///
    /// # Errors
    /// When the runtime is shutting down.
    pub async fn fired(&self) -> io::Result<()> {
        loop {
            let mut guard = self.0.readable().await?;
            let mut expirations = [0_u8; 8];
            match rustix::io::read(self.0.get_ref(), &mut expirations) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::AGAIN) => guard.clear_ready(),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}
