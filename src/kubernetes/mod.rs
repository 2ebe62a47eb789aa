//! Leadership told to Kubernetes: label, condition, Lease, Events, and what the predecessor left behind.
//!
//! All of it is told and none of it decides: the publishers hold a watch, run beside HTTP and not beside the election,
//! and an API server that is slow, away or hostile costs nobody leadership. Each publisher sends the latest state only,
//! under a time limit of its own, and tries again for ever; a state that has been confirmed is not sent again, so that a
//! steady state costs the API server nothing but one long watch of the own pod.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::Uri;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::warn;

use crate::clock::BootTimer;
use crate::election::watch::Watch;
use crate::metrics::Metrics;
use crate::redsync::name::{Identity, LockName};

mod api;
mod condition;
mod deletion_cost;
mod event;
mod failure;
mod intent;
mod label;
mod lease;
mod pause;
mod pod;
mod predecessor;
mod publisher;
pub mod rights;
mod target;

pub use api::{Api, ConnectError};
pub use failure::Failure;
pub use target::{Code, Target};

use condition::Condition;
use deletion_cost::DeletionCost;
use intent::Intent;
use label::Label;
use lease::LeaseMirror;
use pod::Pod;
use predecessor::Predecessor;
use publisher::{Desk, keep};

/// Whether a pod or a Lease can be called so: a DNS subdomain, which is safe in a path.
pub(crate) fn is_object_name(name: &str) -> bool {
    let is_end = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_part = |part: &str| {
        let bytes = part.as_bytes();
        bytes.first().is_some_and(is_end)
            && bytes.last().is_some_and(is_end)
            && bytes.iter().all(|byte| is_end(byte) || *byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_part)
}

/// What is published, and about which pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Our pod.
    pub pod: PodName,
    /// The label `redleader.dev/role` and the annotation `redleader.dev/token`.
    pub label: bool,
    /// The pod condition `redleader.dev/leader`.
    pub condition: bool,
    /// Events on the pod.
    pub events: bool,
    /// The annotation `controller.kubernetes.io/pod-deletion-cost`.
    pub deletion_cost: bool,
    /// The Lease that mirrors the lock; `None`: none.
    pub lease: Option<String>,
    /// The HTTP proxy on the way to the API server; `None`: none, whatever the environment says.
    pub proxy: Option<Uri>,
}

/// Which pod: another one may come to have the same name, never the same uid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodName {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its uid.
    pub uid: String,
}

/// Whose leadership is told.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The lock.
    pub lock: LockName,
    /// This replica.
    pub identity: Identity,
    /// The lock's ttl.
    pub ttl: Duration,
}

/// Whether traffic may come to this pod because of its label.
#[derive(Clone, Debug)]
pub struct Routing(Arc<AtomicBool>);

impl Routing {
    /// Nothing is known of the label yet: an earlier run of the container may have left one.
    fn unknown() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    fn set(&self, may_be_labelled: bool) {
        self.0.store(may_be_labelled, Ordering::Release);
    }

    /// Whether the pod is, or may be, labelled as the leader.
    #[must_use]
    pub fn may_be_labelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The publishers at work.
#[derive(Debug)]
pub struct Publishing {
    /// End by themselves once the election has ended and its end is told.
    publishers: JoinSet<()>,
    /// End with the process.
    others: JoinSet<()>,
    routing: Option<Routing>,
}

/// How long the end of leadership may take to be told after the lock has been released. It delays nobody's leadership:
/// only our own exit.
const LAST_WORDS: Duration = Duration::from_secs(2);

impl Publishing {
    /// Starts publishing what `watch` says. Must be called inside a tokio runtime, which must not be the election's.
    ///
    /// # Errors
    /// When this process is in no pod, or its service account's files cannot be read.
    pub fn start(settings: &Settings, subject: Subject, watch: Watch, metrics: &Metrics) -> Result<Self, ConnectError> {
        let api = Arc::new(Api::connect(settings.proxy.as_ref())?);
        let (intents, intent) = watch::channel(Intent::default());
        let (pods, pod) = watch::channel(None::<Pod>);
        let routing = settings.label.then(Routing::unknown);
        let desk = Desk { api: Arc::clone(&api), pod: settings.pod.clone(), intents: intent, pods: pod };
        let mut publishers = JoinSet::new();
        let timer = BootTimer::new().map_err(ConnectError::Timer)?;
        publishers.spawn(intent::follow(watch, timer, subject.identity.clone(), intents));
        let tell = |target| metrics.publisher(target);
        if let Some(routing) = &routing {
            publishers.spawn(keep(Label::new(routing.clone()), desk.clone(), tell(Target::Label)));
        }
        if settings.condition {
            publishers.spawn(keep(Condition::default(), desk.clone(), tell(Target::Condition)));
        }
        if settings.deletion_cost {
            publishers.spawn(keep(DeletionCost, desk.clone(), tell(Target::DeletionCost)));
        }
        if settings.label || settings.condition {
            publishers.spawn(keep(Predecessor::new(settings), desk.clone(), tell(Target::Predecessor)));
        }
        if let Some(name) = &settings.lease {
            let lease = LeaseMirror::new(name.clone(), subject.clone());
            publishers.spawn(keep(lease, desk.clone(), tell(Target::Lease)));
        }
        if settings.events {
            publishers.spawn(event::tell(subject, desk.clone(), tell(Target::Event)));
        }
        let mut others = JoinSet::new();
        if settings.label || settings.condition || settings.deletion_cost {
            others.spawn(pod::observe(Arc::clone(&api), settings.pod.clone(), pods));
        }
        others.spawn(rights::report(api, settings.clone()));
        Ok(Self { publishers, others, routing })
    }

    /// What `/routez` answers from; `None`: no label is published.
    #[must_use]
    pub fn routing(&self) -> Option<Routing> {
        self.routing.clone()
    }

    /// Waits until the end of leadership is told, for a bounded time. To be called when the election has ended: the lock
    /// is released by then, so that waiting delays no successor.
    pub async fn finish(mut self) {
        let all = async { while self.publishers.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_WORDS, all).await.is_err() {
            warn!(
                reason = "the API server did not answer in time; a successor clears the label and condition",
                "kubernetes was not told to the end"
            );
        }
        self.others.abort_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_an_object_is_looked_for() {
        for (name, expected) in [
            ("web-0", true),
            ("web-5d9c7b4b6-x2x7k", true),
            ("a.b", true),
            ("..", false),
            (".", false),
            ("a..b", false),
            ("-a", false),
            ("a-", false),
            ("Web", false),
            ("a_b", false),
            ("", false),
            (&"a".repeat(253), true),
            (&"a".repeat(254), false),
        ] {
            assert_eq!(is_object_name(name), expected, "{name}");
        }
    }
}
