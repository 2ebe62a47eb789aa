//! The annotation `controller.kubernetes.io/pod-deletion-cost`: a ReplicaSet that shrinks deletes the leader last.

use serde_json::json;

use crate::kubernetes::failure::Failure;
use crate::kubernetes::intent::Intent;
use crate::kubernetes::pod::{DELETION_COST, Pod};
use crate::kubernetes::publisher::{Desk, Publish};

/// Above the 0 of every pod without it, and below what a person would set to keep a pod at any price.
pub(super) const LEADERS_COST: &str = "1000";

pub(super) struct DeletionCost;

impl Publish for DeletionCost {
    type State = Option<String>;

    fn wanted(&self, intent: &Intent) -> Option<String> {
        intent.lead.as_ref().map(|_| LEADERS_COST.to_owned())
    }

    async fn send(&self, desk: &Desk, wanted: &Option<String>) -> Result<Option<u64>, Failure> {
        desk.patch_metadata(json!({"annotations": {DELETION_COST: wanted}})).await
    }

    fn seen(&self, pod: &Pod) -> Option<Option<String>> {
        Some(pod.metadata.annotations.get(DELETION_COST).cloned())
    }
}
