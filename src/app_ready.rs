//! App health as a condition of leadership: asks the app again and again, and tells the election when that changes.
//!
//! It runs beside the endpoints and not on the election's thread, and each question has a time limit, so that an app that
//! hangs costs its replica the leadership and nothing else.

mod check;
mod command;
mod http;

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{debug, info, warn};

use crate::cli::Environment;
use crate::election::request::Request;

use check::Checker;
pub use check::{Check, CheckError, Failure};

/// How the app is asked, and what its answers mean.
#[derive(Clone, Debug)]
pub struct AppReady {
    /// What is asked.
    pub check: Check,
    /// How often; also how long an answer may take.
    pub every: Duration,
    /// Failures in a row after which the app counts as sick.
    pub failures: u32,
    /// For how long nobody must have led before a sick one does.
    pub grace: Duration,
}

/// Asks until the election has ended. One success makes the app healthy; so many failures in a row make it sick.
pub async fn watch(ready: AppReady, requests: mpsc::Sender<Request>) {
    let AppReady { check, every, failures: most, grace: _ } = ready;
    // A command that asks finds no flag of ours in its environment, and no secret.
    let mut checker = Checker::new(check, Environment::without_ours());
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failures = 0_u32;
    // The election takes an app that has not answered for a sick one.
    let mut told = None;
    loop {
        ticks.tick().await;
        let outcome = timeout(every, checker.check()).await.unwrap_or(Err(Failure::Timeout));
        let verdict = match &outcome {
            Ok(()) => {
                failures = 0;
                Some(true)
            }
            Err(failure) => {
                failures = failures.saturating_add(1);
                debug!(reason = %failure, failures, "app check failed");
                (failures >= most).then_some(false)
            }
        };
        if verdict.is_none() || verdict == told {
            continue;
        }
        match outcome {
            Ok(()) => info!("app healthy"),
            Err(failure) => warn!(reason = %failure, failures, "app not healthy"),
        }
        told = verdict;
        if requests.send(Request::Health(told == Some(true))).await.is_err() {
            return;
        }
    }
}
