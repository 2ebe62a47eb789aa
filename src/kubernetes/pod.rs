//! The own pod as others see it, and the watch that tells when somebody has changed what we published.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::debug;

use crate::kubernetes::PodName;
use crate::kubernetes::api::Api;
use crate::kubernetes::failure::Failure;
use crate::kubernetes::pause::{chance, rest};
use crate::kubernetes::target::Code;
use crate::redsync::reply::Token;

/// The label of every pod that takes part: [`LEADER`] or [`STANDBY`].
pub(super) const ROLE: &str = "redleader.dev/role";
/// The value of [`ROLE`] on the leader's pod.
pub(super) const LEADER: &str = "leader";
/// The value of [`ROLE`] on all others.
pub(super) const STANDBY: &str = "standby";
/// The annotation with the token of the pod's last leadership.
pub(super) const TOKEN: &str = "redleader.dev/token";
/// The type of the condition.
pub(super) const CONDITION: &str = "redleader.dev/leader";
/// The annotation that says which pods of a ReplicaSet go first when it shrinks.
pub(super) const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Where the pod is.
pub(super) fn path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

/// As much of a pod as we look at.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Pod {
    #[serde(default)]
    pub(super) metadata: Metadata,
    #[serde(default)]
    status: Status,
}

/// As much of an object's metadata as we look at.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) owner_references: Vec<Owner>,
}

/// What owns an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Owner {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) controller: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<PodCondition>,
}

/// A condition of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodCondition {
    #[serde(rename = "type")]
    kind: String,
    pub(super) status: String,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) last_transition_time: Option<String>,
}

impl Metadata {
    /// Versions of one object grow. `None`: a server that writes them otherwise, so that it is of no use for comparing and
    /// counts as older than whatever we changed.
    pub(super) fn version(&self) -> Option<u64> {
        self.resource_version.parse().ok()
    }

    pub(super) fn is_leader(&self) -> bool {
        self.labels.get(ROLE).is_some_and(|role| role == LEADER)
    }

    /// The token of the pod's last leadership, as it is annotated.
    pub(super) fn token(&self) -> Option<Token> {
        self.annotations.get(TOKEN)?.parse().ok()
    }
}

impl Pod {
    /// The metadata that makes the server refuse a change of a pod that is not as it was read: a conflict.
    pub(super) fn as_it_is(&self) -> Value {
        json!({"uid": self.metadata.uid, "resourceVersion": self.metadata.resource_version})
    }

    /// Our condition.
    pub(super) fn condition(&self) -> Option<&PodCondition> {
        self.status.conditions.iter().find(|condition| condition.kind == CONDITION)
    }
}

/// How long one watch is asked to last: then another begins with the pod as it is, which is the slow resync. A watch
/// that has died without a word is noticed by that time at the latest, and earlier if another request times out.
const PERIOD: Duration = Duration::from_secs(600);
/// A server may end a watch a little late.
const LATE: Duration = Duration::from_secs(10);
/// After a watch that ended by itself; after each one that failed it is twice as long.
const PAUSE_LEAST: Duration = Duration::from_secs(1);
/// The longest: without a watch, publishing works as well, and only what others change is noticed late.
const PAUSE_MOST: Duration = Duration::from_secs(8);
/// The same where a right is missing.
const PAUSE_FOR_A_PERSON: Duration = Duration::from_secs(300);

/// Watches the own pod, for ever.
pub(super) async fn observe(api: Arc<Api>, name: PodName, pods: watch::Sender<Option<Pod>>) {
    let mut pause = PAUSE_LEAST;
    let mut renewals = api.renewals();
    loop {
        renewals.mark_unchanged();
        tokio::select! {
            ended = observe_once(&api, &name, &pods) => match ended {
                Ok(()) => pause = PAUSE_LEAST,
                Err(failure) => {
                    debug!(reason = %failure, "the watch of the own pod has ended");
                    let most = if failure.code == Code::Forbidden { PAUSE_FOR_A_PERSON } else { PAUSE_MOST };
                    pause = (pause * 2).min(most);
                }
            },
            // Its connection may be as dead as the one that was given up.
            _ = renewals.changed() => {}
        }
        rest(pause.mul_f64(0.5 + chance() / 2.0)).await;
    }
}

/// One watch, from the pod as it is until the server ends it.
async fn observe_once(api: &Api, name: &PodName, pods: &watch::Sender<Option<Pod>>) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Event {
        #[serde(rename = "type")]
        kind: String,
        object: serde_json::Value,
    }
    // Together they would come at one moment; apart they come as a trickle.
    let period = PERIOD.mul_f64(0.75 + chance() / 2.0);
    let path = format!(
        "/api/v1/namespaces/{}/pods?watch=true&fieldSelector=metadata.name%3D{}&timeoutSeconds={}",
        name.namespace,
        name.name,
        period.as_secs()
    );
    let mut lines = api.watch(&path).await?;
    let watched = async {
        while let Some(line) = lines.next().await? {
            let event: Event = serde_json::from_slice(&line)
                .map_err(|why| Failure::new(Code::Other, format!("watch {path}: not an event: {why}")))?;
            match event.kind.as_str() {
                "ADDED" | "MODIFIED" => {
                    let pod: Pod = serde_json::from_value(event.object)
                        .map_err(|why| Failure::new(Code::Other, format!("watch {path}: not a pod: {why}")))?;
                    // Another pod of our name is none of our business.
                    if pod.metadata.uid == name.uid {
                        pods.send_replace(Some(pod));
                    }
                }
                // What went before is gone from the server's memory: begin anew.
                "ERROR" => return Err(Failure::new(Code::Other, format!("watch {path}: {}", event.object))),
                // A pod that is gone has nothing to be compared with.
                _ => {}
            }
        }
        Ok(())
    };
    match tokio::time::timeout(period + LATE, watched).await {
        Ok(ended) => ended,
        Err(_) => Err(Failure::timeout(&format!("watch {path}"), period + LATE)),
    }
}
