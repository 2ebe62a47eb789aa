//! Pauses before another try, with chance in them.

use std::time::Duration;

/// Waits, because trying again at once would only add to what is wrong.
#[expect(
    clippy::disallowed_methods,
    reason = "there is no condition to wait for, and a machine that slept may try late"
)]
pub(super) async fn rest(pause: Duration) {
    tokio::time::sleep(pause).await;
}

/// From 0 to 1.
pub(super) fn chance() -> f64 {
    let mut byte = [0];
    // Without chance the pauses are merely equal.
    let _ = getrandom::fill(&mut byte);
    f64::from(byte[0]) / 255.0
}
