//! One publisher's loop: the latest state, sent until it is confirmed, and again when somebody has changed it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::clock::{self, Moment};
use crate::kubernetes::PodName;
use crate::kubernetes::api::{Api, Content, LIMIT};
use crate::kubernetes::failure::Failure;
use crate::kubernetes::intent::Intent;
use crate::kubernetes::pause::{chance, rest};
use crate::kubernetes::pod::{self, Pod};
use crate::kubernetes::target::{Code, Target};
use crate::metrics::PublisherMetrics;

/// What every publisher works with.
#[derive(Clone, Debug)]
pub(super) struct Desk {
    pub(super) api: Arc<Api>,
    pub(super) pod: PodName,
    /// What is to be told. Closed when the election has ended.
    pub(super) intents: watch::Receiver<Intent>,
    /// The own pod as last seen.
    pub(super) pods: watch::Receiver<Option<Pod>>,
}

impl Desk {
    /// Where the own pod is.
    pub(super) fn pod_path(&self) -> String {
        pod::path(&self.pod.namespace, &self.pod.name)
    }

    /// Changes fields of the own pod, and of no other of its name. Gives the version from which on it is so.
    pub(super) async fn patch_metadata(&self, mut metadata: Value) -> Result<Option<u64>, Failure> {
        // The uid makes the server refuse it on another pod.
        metadata["uid"] = json!(self.pod.uid);
        let pod: Pod = self.api.patch(&self.pod_path(), Content::Merge, &json!({"metadata": metadata})).await?;
        Ok(pod.metadata.version())
    }
}

/// One thing that is published.
pub(super) trait Publish: Send + Sync {
    /// What it can be, as far as it is compared.
    type State: Clone + PartialEq + Send + Sync;

    /// What it shall be.
    fn wanted(&self, intent: &Intent) -> Self::State;

    /// Whether it can be like that without anybody having sent it.
    fn is_so_from_the_start(&self, _wanted: &Self::State) -> bool {
        false
    }

    /// Makes it so. Gives the version of the pod from which on it is seen there, if it is seen there.
    fn send(&self, desk: &Desk, wanted: &Self::State) -> impl Future<Output = Result<Option<u64>, Failure>> + Send;

    /// It is so, and no earlier request can make it otherwise any more.
    fn has_settled(&self, _state: &Self::State) {}

    /// What it is on the own pod; `None`: it is not to be seen there.
    fn seen(&self, _pod: &Pod) -> Option<Self::State> {
        None
    }
}

/// Keeps it published until the election has ended and its end is told.
pub(super) async fn keep<P: Publish>(publish: P, mut desk: Desk, metrics: PublisherMetrics) {
    let mut told = Telling::new(metrics);
    let (mut published, mut version) = (None, None);
    let mut doubt: Option<Moment> = None;
    loop {
        let wanted = publish.wanted(&desk.intents.borrow_and_update());
        if published.is_none() && publish.is_so_from_the_start(&wanted) {
            published = Some(wanted.clone());
        }
        if published.as_ref() == Some(&wanted) {
            told.is_as_wanted();
            if doubt.is_none() {
                publish.has_settled(&wanted);
            }
            tokio::select! {
                // What was asked for before, and never answered, may have been done after what was confirmed.
                () = rest(doubt.map_or(LIMIT, |until| until.since(clock::now()))), if doubt.is_some() => {
                    published = None;
                    doubt = None;
                }
                changed = desk.intents.changed() => if changed.is_err() {
                    return;
                },
                Ok(()) = desk.pods.changed() => {
                    let pod = desk.pods.borrow_and_update();
                    // What was under way before our own change has nothing to say of it.
                    if let Some(pod) = pod.as_ref().filter(|pod| pod.metadata.version() >= version)
                        && let Some(seen) = publish.seen(pod)
                    {
                        published = Some(seen);
                    }
                }
            }
            continue;
        }
        told.is_pending();
        // Until it is confirmed, nobody knows what it is.
        published = None;
        let attempt = async {
            let sent = publish.send(&desk, &wanted).await;
            match &sent {
                Ok(_) => told.has_succeeded(),
                Err(failure) => rest(told.has_failed(failure)).await,
            }
            sent
        };
        let mut intents = desk.intents.clone();
        let sent = tokio::select! {
            sent = attempt => Some(sent),
            // The old state is not worth waiting for.
            () = until(&mut intents, |intent| publish.wanted(intent) != wanted) => None
        };
        match sent {
            Some(Ok(since)) => {
                published = Some(wanted);
                version = since;
            }
            Some(Err(failure)) if failure.code.is_an_answer() => {}
            Some(Err(_)) | None => doubt = Some(clock::now() + LIMIT),
        }
    }
}

/// Waits for an intent that `is_it`; for ever once there can be no more.
pub(super) async fn until(intents: &mut watch::Receiver<Intent>, is_it: impl Fn(&Intent) -> bool) {
    while intents.changed().await.is_ok() {
        if is_it(&intents.borrow_and_update()) {
            return;
        }
    }
    std::future::pending().await
}

/// The first pause after a failure.
const PAUSE_LEAST: Duration = Duration::from_millis(200);
/// The longest, where waiting may help: within two of them and a request, an API server that is back is told the truth.
const PAUSE_MOST: Duration = Duration::from_secs(4);
/// The longest, where only a person can help.
const PAUSE_FOR_A_PERSON: Duration = Duration::from_secs(30);

/// Counts, logs, and says how long to wait.
pub(super) struct Telling {
    metrics: PublisherMetrics,
    failures: u32,
    last: Option<Code>,
}

impl Telling {
    pub(super) const fn new(metrics: PublisherMetrics) -> Self {
        Self { metrics, failures: 0, last: None }
    }

    pub(super) fn is_as_wanted(&self) {
        self.metrics.pending(false);
    }

    pub(super) fn is_pending(&self) {
        self.metrics.pending(true);
    }

    pub(super) fn has_succeeded(&mut self) {
        if self.last.take().is_some() {
            info!(kind = self.target().as_str(), "published again");
        }
        self.failures = 0;
    }

    /// Gives the pause before the next try. A fault is worth a warning when it is new, not each time.
    pub(super) fn has_failed(&mut self, failure: &Failure) -> Duration {
        self.metrics.failed(failure.code);
        let kind = self.target().as_str();
        // A conflict is what reading and writing anew is for, unless it does not end.
        let is_worth_it = failure.code != Code::Conflict || self.failures == CONFLICTS;
        if self.last != Some(failure.code) && is_worth_it {
            warn!(kind, reason = %failure, "cannot publish; trying on");
            self.last = Some(failure.code);
        } else {
            debug!(kind, reason = %failure, "cannot publish; trying on");
        }
        self.failures = self.failures.saturating_add(1);
        pause(failure, self.failures)
    }

    fn target(&self) -> Target {
        self.metrics.target()
    }
}

/// Conflicts in a row that are nothing unusual.
const CONFLICTS: u32 = 5;

fn pause(failure: &Failure, failures: u32) -> Duration {
    let most = if failure.code.needs_a_person() { PAUSE_FOR_A_PERSON } else { PAUSE_MOST };
    let doubled = PAUSE_LEAST.saturating_mul(1 << failures.saturating_sub(1).min(16));
    let asked = failure.retry_after.unwrap_or_default();
    let pause = doubled.max(asked).min(most);
    // Replicas that lost the server together must not come back to it together.
    pause.mul_f64(0.75 + chance() / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_the_server_may_ask_for_more() {
        let of = |code, failures, asked: Option<u64>| {
            let failure = Failure { retry_after: asked.map(Duration::from_secs), ..Failure::new(code, "") };
            pause(&failure, failures)
        };
        for (code, failures, asked, most) in [
            (Code::Connect, 1, None, 200),
            (Code::Connect, 2, None, 400),
            (Code::Server, 5, None, 3200),
            (Code::Timeout, 6, None, 4000),
            (Code::Timeout, u32::MAX, None, 4000),
            (Code::TooMany, 1, Some(2), 2000),
            (Code::TooMany, 1, Some(60), 4000),
            (Code::Forbidden, 1, None, 200),
            (Code::Forbidden, 20, None, 30_000),
        ] {
            let found = of(code, failures, asked).as_millis();
            assert!((most * 3 / 4..=most).contains(&found), "{code:?} {failures} {asked:?}: {found}");
        }
    }
}
