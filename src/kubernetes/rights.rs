//! What the service account must be allowed to do, asked of the API server itself.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use tracing::{debug, info, warn};

use crate::kubernetes::Settings;
use crate::kubernetes::api::Api;
use crate::kubernetes::failure::Failure;
use crate::kubernetes::pause::rest;

/// One right that a publisher needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    /// One object only; empty: any of them.
    name: String,
}

impl Right {
    /// To read pods.
    pub(super) const GET_PODS: Self = Self::of("get", "", "pods");
    /// To read the ReplicaSet of the own pod.
    pub(super) const GET_REPLICASETS: Self = Self::of("get", "apps", "replicasets");

    const fn of(verb: &'static str, group: &'static str, resource: &'static str) -> Self {
        Self { verb, group, resource, subresource: "", name: String::new() }
    }

    /// As it is said in one line: `patch pods/status`, `get leases.coordination.k8s.io`.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{} {}", self.verb, self.resource);
        for (separator, part) in [(".", self.group), ("/", self.subresource)] {
            if !part.is_empty() {
                text.push_str(separator);
                text.push_str(part);
            }
        }
        text
    }
}

impl Settings {
    /// What is needed, with the flag that needs it first.
    #[must_use]
    pub fn rights(&self) -> Vec<(Right, &'static str)> {
        let mut rights: Vec<(Right, &'static str)> = Vec::new();
        let mut need = |right: Right, flag| {
            if rights.iter().all(|(known, _)| *known != right) {
                rights.push((right, flag));
            }
        };
        let pods = |verb| Right::of(verb, "", "pods");
        let status = Right { subresource: "status", ..pods("patch") };
        if self.label {
            for verb in ["get", "watch", "patch"] {
                need(pods(verb), "--kube-label");
            }
        }
        if self.condition {
            need(pods("get"), "--kube-condition");
            need(pods("watch"), "--kube-condition");
            need(status, "--kube-condition");
        }
        if self.deletion_cost {
            need(pods("watch"), "--kube-deletion-cost");
            need(pods("patch"), "--kube-deletion-cost");
        }
        if let Some(name) = &self.lease {
            let leases = |verb| Right::of(verb, "coordination.k8s.io", "leases");
            need(Right { name: name.clone(), ..leases("get") }, "--kube-lease");
            need(Right { name: name.clone(), ..leases("patch") }, "--kube-lease");
            // Before it is there, an object has no name that a right could be limited to.
            need(leases("create"), "--kube-lease");
        }
        if self.events {
            need(Right::of("create", "events.k8s.io", "events"), "--kube-events");
        }
        rights
    }

    /// Those of [`Settings::rights`] that are missing: one line, or `None`.
    ///
    /// # Errors
    /// When the API server does not answer the question.
    pub async fn missing_rights(&self, api: &Api) -> Result<Option<String>, Failure> {
        let mut missing = Vec::new();
        for (right, flag) in self.rights() {
            if !is_granted(api, &self.pod.namespace, &right).await? {
                missing.push(format!("{} ({flag})", right.text()));
            }
        }
        let namespace = &self.pod.namespace;
        Ok((!missing.is_empty())
            .then(|| format!("the service account may not, in namespace {namespace}: {}", missing.join(", "))))
    }
}

/// Whether we may. Everyone may ask that of himself.
pub(super) async fn is_granted(api: &Api, namespace: &str, right: &Right) -> Result<bool, Failure> {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                namespace: some(namespace),
                verb: some(right.verb),
                group: some(right.group),
                resource: some(right.resource),
                subresource: some(right.subresource),
                name: some(&right.name),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let answer: SelfSubjectAccessReview = api.create(path, &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Between two tries to ask; the publishers find out by themselves meanwhile.
const PAUSE: Duration = Duration::from_secs(10);

/// Says once what is missing.
pub(super) async fn report(api: Arc<Api>, settings: Settings) {
    loop {
        match settings.missing_rights(&api).await {
            Ok(None) => return info!("the service account may do all that is needed"),
            Ok(Some(missing)) => {
                return warn!(reason = %missing, "rights are missing: grant them in the Role; trying on meanwhile");
            }
            Err(failure) => debug!(reason = %failure, "cannot ask for our rights"),
        }
        rest(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::PodName;

    #[test]
    fn each_publisher_needs_its_rights_and_no_more() {
        let none = Settings {
            pod: PodName { name: "p".to_owned(), namespace: "n".to_owned(), uid: "u".to_owned() },
            label: false,
            condition: false,
            events: false,
            deletion_cost: false,
            lease: None,
            proxy: None,
        };
        let lease = Some("l".to_owned());
        for (settings, expected) in [
            (none.clone(), ""),
            (Settings { label: true, ..none.clone() }, "get pods, watch pods, patch pods"),
            (Settings { condition: true, ..none.clone() }, "get pods, watch pods, patch pods/status"),
            (Settings { deletion_cost: true, ..none.clone() }, "watch pods, patch pods"),
            (
                Settings { lease: lease.clone(), ..none.clone() },
                "get leases.coordination.k8s.io, patch leases.coordination.k8s.io, create leases.coordination.k8s.io",
            ),
            (Settings { events: true, ..none.clone() }, "create events.events.k8s.io"),
            (
                Settings { label: true, condition: true, deletion_cost: true, ..none.clone() },
                "get pods, watch pods, patch pods, patch pods/status",
            ),
        ] {
            let told: Vec<String> = settings.rights().iter().map(|(right, _)| right.text()).collect();
            assert_eq!(told.join(", "), expected);
        }
    }
}
