//! Wall time, for people to read: in JSON, in metrics. Nothing about leadership is ever decided by it.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use crate::clock::Moment;

/// What the wall clock said at `moment`, as far as it can be told `now`: the wall clock's present time, less the boot
/// time that has passed since. A wall clock that was set in between therefore moves all such times together.
#[must_use]
pub fn time_of(moment: Moment, now: Moment) -> SystemTime {
    let present = clock_gettime(ClockId::Realtime);
    let present = SystemTime::UNIX_EPOCH
        + Duration::new(
            u64::try_from(present.tv_sec).unwrap_or(0),
            // Always below a second.
            u32::try_from(present.tv_nsec).unwrap_or(0),
        );
    // A wall clock near 1970 cannot go back as far as a boot clock can.
    present.checked_sub(now.since(moment)).unwrap_or(SystemTime::UNIX_EPOCH) + moment.since(now)
}

/// The same in seconds since 1970, as metrics have it.
#[must_use]
pub fn seconds_of(moment: Moment, now: Moment) -> f64 {
    time_of(moment, now).duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
