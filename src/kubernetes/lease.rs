//! The Lease of `coordination.k8s.io/v1` that mirrors the lock, so that `kubectl get lease` shows who leads.
//!
//! It is a picture and not the lock: it is written when leadership begins and ends, and nobody decides by it. Nothing is
//! sent in between, so `renewTime` is the time of the last transition.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use tracing::warn;

use crate::kubernetes::Subject;
use crate::kubernetes::api::Content;
use crate::kubernetes::failure::Failure;
use crate::kubernetes::intent::{Intent, Lead};
use crate::kubernetes::pod::{Owner, Pod, TOKEN};
use crate::kubernetes::publisher::{Desk, Publish};
use crate::kubernetes::rights::{self, Right};
use crate::kubernetes::target::Code;
use crate::redsync::reply::Token;
use crate::wall;

/// The annotation that says which lock a Lease mirrors. One without it is somebody else's, perhaps a lock of its own.
const LOCK: &str = "redleader.dev/lock";
/// The annotation with the uid of the pod that wrote it last: two pods may have one identity.
const POD_UID: &str = "redleader.dev/pod-uid";

/// Where the Lease is.
pub(super) struct LeaseMirror {
    name: String,
    subject: Subject,
}

/// What the Lease shall say of us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// We lead.
    ByUs(Lead),
    /// We do not, so it must not name us.
    NotByUs,
}

impl LeaseMirror {
    pub(super) const fn new(name: String, subject: Subject) -> Self {
        Self { name, subject }
    }

    fn path(desk: &Desk) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", desk.pod.namespace)
    }
}

impl Publish for LeaseMirror {
    type State = Held;

    fn wanted(&self, intent: &Intent) -> Held {
        intent.lead.clone().map_or(Held::NotByUs, Held::ByUs)
    }

    async fn send(&self, desk: &Desk, wanted: &Held) -> Result<Option<u64>, Failure> {
        let path = format!("{}/{}", Self::path(desk), self.name);
        let lease = match (desk.api.find::<Lease>(&path).await?, wanted) {
            (Some(lease), _) => lease,
            (None, Held::ByUs(lead)) => return self.create(desk, lead).await.map(|()| None),
            (None, Held::NotByUs) => return Ok(None),
        };
        let known = self.read(&lease)?;
        let spec = match wanted {
            Held::ByUs(lead) => self.take(desk, &known, lead),
            Held::NotByUs => self.give_up(desk, &known),
        };
        let Some(patch) = spec else { return Ok(None) };
        // The version makes the server refuse it if somebody was faster.
        desk.api.patch::<Lease>(&path, Content::Merge, &patch).await?;
        Ok(None)
    }
}

/// What a Lease of ours says.
struct Known {
    version: Option<String>,
    holder: String,
    transitions: i32,
    token: Token,
    pod_uid: Option<String>,
}

impl LeaseMirror {
    fn read(&self, lease: &Lease) -> Result<Known, Failure> {
        let annotation = |name: &str| lease.metadata.annotations.as_ref().and_then(|all| all.get(name));
        if annotation(LOCK).map(String::as_str) != Some(self.subject.lock.as_str()) {
            let whose =
                annotation(LOCK).map_or("is not redleader's".to_owned(), |lock| format!("mirrors the lock {lock}"));
            let text =
                format!("--kube-lease: the Lease {} exists and {whose}: choose another name, or delete it", self.name);
            return Err(Failure::new(Code::Other, text));
        }
        let spec = lease.spec.clone().unwrap_or_default();
        Ok(Known {
            version: lease.metadata.resource_version.clone(),
            holder: spec.holder_identity.unwrap_or_default(),
            transitions: spec.lease_transitions.unwrap_or(0),
            token: annotation(TOKEN).and_then(|token| token.parse().ok()).unwrap_or(0),
            pod_uid: annotation(POD_UID).cloned(),
        })
    }

    /// The patch that makes it ours; `None`: it is, or a later leader was faster.
    fn take(&self, desk: &Desk, known: &Known, lead: &Lead) -> Option<serde_json::Value> {
        let (identity, uid) = (self.subject.identity.as_str(), desk.pod.uid.as_str());
        let is_ours = known.holder == identity && known.pod_uid.as_deref() == Some(uid);
        if known.token > lead.token || known.token == lead.token && is_ours {
            return None;
        }
        if known.holder == identity && !is_ours {
            let holder = &known.holder;
            warn!(
                holder,
                reason = "the Lease names a pod with our identity and another uid",
                "identities are not unique"
            );
        }
        let spec = self.spec(lead, known.transitions.saturating_add(1));
        Some(json!({"metadata": self.metadata(desk, lead, known.version.clone(), None), "spec": spec}))
    }

    /// The patch by which it names nobody; `None`: it does not name us.
    fn give_up(&self, desk: &Desk, known: &Known) -> Option<serde_json::Value> {
        let is_ours =
            known.holder == self.subject.identity.as_str() && known.pod_uid.as_deref() == Some(desk.pod.uid.as_str());
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            renew_time: Some(MicroTime(now())),
            ..LeaseSpec::default()
        };
        is_ours.then(|| json!({"metadata": {"resourceVersion": known.version}, "spec": spec}))
    }

    async fn create(&self, desk: &Desk, lead: &Lead) -> Result<(), Failure> {
        let owner = workload(desk).await?;
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(desk.pod.namespace.clone()),
                ..self.metadata(desk, lead, None, owner)
            },
            spec: Some(self.spec(lead, 0)),
        };
        desk.api.create::<Lease>(&Self::path(desk), &lease).await.map(|_| ())
    }

    fn metadata(&self, desk: &Desk, lead: &Lead, version: Option<String>, owner: Option<OwnerReference>) -> ObjectMeta {
        let annotations =
            [(LOCK, self.subject.lock.to_string()), (TOKEN, lead.token.to_string()), (POD_UID, desk.pod.uid.clone())];
        ObjectMeta {
            annotations: Some(annotations.map(|(name, value)| (name.to_owned(), value)).into()),
            resource_version: version,
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        }
    }

    fn spec(&self, lead: &Lead, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.subject.identity.to_string()),
            lease_duration_seconds: Some(whole_seconds(self.subject.ttl)),
            acquire_time: Some(MicroTime(Timestamp::try_from(lead.since).unwrap_or(Timestamp::UNIX_EPOCH))),
            renew_time: Some(MicroTime(now())),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }
}

fn now() -> Timestamp {
    Timestamp::try_from(wall::now()).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Rounded up: the API refuses 0, and a Lease that seems shorter than the lock would seem free too early.
fn whole_seconds(ttl: Duration) -> i32 {
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    i32::try_from(seconds).unwrap_or(i32::MAX).max(1)
}

/// What the Lease is to go away with: the workload of our pod, as far as our rights let us find it. A ReplicaSet goes
/// away with the next rollout but a few, so that its owner is the one.
async fn workload(desk: &Desk) -> Result<Option<OwnerReference>, Failure> {
    let namespace = &desk.pod.namespace;
    if !rights::is_granted(&desk.api, namespace, &Right::GET_PODS).await? {
        return Ok(None);
    }
    let Some(pod) = desk.api.find::<Pod>(&desk.pod_path()).await? else { return Ok(None) };
    let Some(owner) = controller(&pod) else { return Ok(None) };
    // What is not in a namespace, such as the node of a static pod, cannot own what is in one.
    if owner.kind == "Node" || pod.metadata.uid != desk.pod.uid {
        return Ok(None);
    }
    if owner.kind != "ReplicaSet" || !owner.api_version.starts_with("apps/") {
        return Ok(Some(reference(owner)));
    }
    if !rights::is_granted(&desk.api, namespace, &Right::GET_REPLICASETS).await? {
        return Ok(None);
    }
    let path = format!("/apis/apps/v1/namespaces/{namespace}/replicasets/{}", owner.name);
    let set = desk.api.find::<Pod>(&path).await?;
    Ok(Some(reference(set.as_ref().and_then(controller).unwrap_or(owner))))
}

fn controller(object: &Pod) -> Option<&Owner> {
    object.metadata.owner_references.iter().find(|owner| owner.controller)
}

fn reference(owner: &Owner) -> OwnerReference {
    OwnerReference {
        api_version: owner.api_version.clone(),
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
        // No controller of the Lease, and nothing that the workload's deletion would have to wait for.
        block_owner_deletion: None,
        controller: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_up_and_never_none() {
        for (millis, seconds) in [(100, 1), (500, 1), (1000, 1), (1500, 2), (8000, 8), (90_000, 90), (5_400_000, 5400)]
        {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds, "{millis} ms");
        }
    }

    #[test]
    fn micro_times_have_six_digits() {
        let spec = LeaseSpec { renew_time: Some(MicroTime(Timestamp::UNIX_EPOCH)), ..LeaseSpec::default() };
        assert_eq!(serde_json::to_value(spec).unwrap(), json!({"renewTime": "1970-01-01T00:00:00.000000Z"}));
    }
}
