//! Wall time, for people to read: in JSON, in metrics. Nothing about leadership is ever decided by it.

use std::time::SystemTime;

use crate::clock::{self, Moment};

/// What the wall clock said at `moment`, as far as it can be told `now`: the wall clock's present time, less the boot
/// time that has passed since. A wall clock that was set in between therefore moves all such times together.
#[must_use]
pub fn time_of(moment: Moment, now: Moment) -> SystemTime {
    #[expect(clippy::disallowed_methods, reason = "the one reading of the wall clock, for people")]
    let present = SystemTime::now();
    // A wall clock near 1970 cannot go back as far as a boot clock can.
    present.checked_sub(now.since(moment)).unwrap_or(SystemTime::UNIX_EPOCH) + moment.since(now)
}

/// What the wall clock says now.
#[must_use]
pub fn now() -> SystemTime {
    let present = clock::now();
    time_of(present, present)
}

/// As [`time_of`], in seconds since 1970, as metrics have it.
#[must_use]
pub fn seconds_of(moment: Moment, now: Moment) -> f64 {
    time_of(moment, now).duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
