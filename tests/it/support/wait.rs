//! Time: the boot clock, and the only place in the tests that sleeps.

use std::time::Duration;

use redleader::clock;

/// Between two looks at a condition at least: short beside every bound that a test asserts.
const BETWEEN_LOOKS: Duration = Duration::from_millis(3);
/// And at most, where a look is a command of its own.
const BETWEEN_LOOKS_MOST: Duration = Duration::from_millis(200);

/// Milliseconds since the machine started, on the clock that the product logs.
pub fn boot_ms() -> u64 {
    clock::now().as_millis()
}

/// Microseconds since the machine started.
pub fn boot_micros() -> u64 {
    clock::now().as_micros()
}

/// Looks until `look` gives something, and panics with `what` if that takes longer than `deadline`.
#[track_caller]
pub fn eventually<T>(what: &str, deadline: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let began = clock::now();
    loop {
        let looked = clock::now();
        if let Some(found) = look() {
            return found;
        }
        let waited = clock::now().since(began);
        assert!(waited < deadline, "waited {} ms in vain: {what}", waited.as_millis());
        pause_after(clock::now().since(looked));
    }
}

/// Looks for as long as `duration`, and panics with `what` as soon as `holds` is false.
#[track_caller]
pub fn stays_true(what: &str, duration: Duration, mut holds: impl FnMut() -> bool) {
    let began = clock::now();
    loop {
        let passed = clock::now().since(began);
        assert!(holds(), "no longer true after {} ms: {what}", passed.as_millis());
        if passed >= duration {
            return;
        }
        pause_after(clock::now().since(began).saturating_sub(passed));
    }
}

/// Waits for the next look: four times as long as one takes, so that to look is not what keeps the machine busy.
fn pause_after(look: Duration) {
    pause((look * 4).clamp(BETWEEN_LOOKS, BETWEEN_LOOKS_MOST));
}

/// Lets real time pass because the passing of time is what is tested (an expiry, a pause of a process).
/// Never for a condition: that is [`eventually`].
pub fn let_time_pass(_why: &str, duration: Duration) {
    pause(duration);
}

/// The one sleep.
pub(super) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// The same on a runtime: the time that a slow server takes.
#[expect(clippy::disallowed_methods, reason = "a slow server is slow, and nothing waits for a condition here")]
pub async fn be_slow(duration: Duration) {
    tokio::time::sleep(duration).await;
}
