//! The pod condition `redleader.dev/leader`, for `readinessGates` and for `kubectl describe pod`.
//!
//! `Ready` is the kubelet's, which computes it from its probes and from conditions such as this one.

use std::sync::{Mutex, PoisonError};

use humantime::format_rfc3339_seconds;
use serde_json::{Value, json};

use crate::kubernetes::api::Content;
use crate::kubernetes::event::camel;
use crate::kubernetes::failure::Failure;
use crate::kubernetes::intent::Intent;
use crate::kubernetes::pod::{CONDITION, Pod, PodCondition};
use crate::kubernetes::publisher::{Desk, Publish};
use crate::redsync::reply::Token;
use crate::wall;

/// What the condition says, except since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    status: String,
    reason: String,
    message: String,
}

#[derive(Default)]
pub(super) struct Condition {
    /// What we set last, and since when it is so.
    last: Mutex<Option<(String, String)>>,
}

impl Condition {
    /// Since when the condition has this status: it is no transition if another reason is given for the same.
    fn since(&self, desk: &Desk, status: &str) -> String {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((last, since)) = last.as_ref()
            && last == status
        {
            return since.clone();
        }
        let pod = desk.pods.borrow();
        let known = pod.as_ref().filter(|_| last.is_none()).and_then(Pod::condition);
        let known = known.filter(|known| known.status == status).and_then(|known| known.last_transition_time.clone());
        known.unwrap_or_else(now)
    }
}

fn now() -> String {
    format_rfc3339_seconds(wall::now()).to_string()
}

impl Publish for Condition {
    type State = Said;

    fn wanted(&self, intent: &Intent) -> Said {
        let (status, reason, message) = match (&intent.lead, &intent.ended) {
            (Some(lead), _) => ("True", "Elected".to_owned(), message_of_leader(lead.token)),
            (None, Some(ended)) => {
                let reason = ended.reason.as_str();
                ("False", camel(reason), format!("stepped down ({reason}) from leading with token {}", ended.token))
            }
            (None, None) => ("False", "Standby".to_owned(), "has not led since it started".to_owned()),
        };
        Said { status: status.to_owned(), reason, message }
    }

    async fn send(&self, desk: &Desk, wanted: &Said) -> Result<Option<u64>, Failure> {
        let since = self.since(desk, &wanted.status);
        let pod = set(desk, &desk.pod_path(), &json!({"uid": desk.pod.uid}), wanted, &since).await?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((wanted.status.clone(), since));
        Ok(pod.metadata.version())
    }

    fn seen(&self, pod: &Pod) -> Option<Said> {
        // One that is not there differs from whatever is wanted.
        let PodCondition { status, reason, message, .. } = pod.condition().cloned().unwrap_or_default();
        Some(Said { status, reason, message })
    }
}

/// Sets the condition and no other: the list is merged by type, and the kubelet's conditions stay as they are.
/// `metadata`: which pod, in which state, it must be.
async fn set(desk: &Desk, path: &str, metadata: &Value, said: &Said, since: &str) -> Result<Pod, Failure> {
    let Said { status, reason, message } = said;
    let condition = json!({
        "type": CONDITION, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
    });
    let patch = json!({"metadata": metadata, "status": {"conditions": [condition]}});
    desk.api.patch(&format!("{path}/status"), Content::Strategic, &patch).await
}

/// Clears the condition of a pod whose leadership is over, if the pod is as it was read.
pub(super) async fn clear(desk: &Desk, path: &str, pod: &Pod, token: Token, successor: Token) -> Result<(), Failure> {
    let said = Said {
        status: "False".to_owned(),
        reason: "Displaced".to_owned(),
        message: format!("was displaced from leading with token {token} by one with token {successor}"),
    };
    set(desk, path, &pod.as_it_is(), &said, &now()).await.map(drop)
}

const LEADS: &str = "leads with token ";

fn message_of_leader(token: Token) -> String {
    format!("{LEADS}{token}")
}

/// The token of a condition that is true, as its message tells it.
pub(super) fn token_of(condition: &PodCondition) -> Option<Token> {
    condition.message.strip_prefix(LEADS).filter(|_| condition.status == "True")?.parse().ok()
}
