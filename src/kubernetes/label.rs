//! The label `redleader.dev/role`, and beside it the token of the pod's last leadership.

use serde_json::json;

use crate::kubernetes::Routing;
use crate::kubernetes::failure::Failure;
use crate::kubernetes::intent::Intent;
use crate::kubernetes::pod::{LEADER, Pod, ROLE, STANDBY, TOKEN};
use crate::kubernetes::publisher::{Desk, Publish};
use crate::redsync::reply::Token;

/// What the pod says of its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It leads, with this token.
    Leader(Option<Token>),
    /// It does not.
    Standby,
    /// Something that we never say: a person's word, or nothing.
    Other,
}

pub(super) struct Label {
    routing: Routing,
}

impl Label {
    pub(super) const fn new(routing: Routing) -> Self {
        Self { routing }
    }
}

impl Publish for Label {
    type State = Role;

    fn wanted(&self, intent: &Intent) -> Role {
        intent.lead.as_ref().map_or(Role::Standby, |lead| Role::Leader(Some(lead.token)))
    }

    async fn send(&self, desk: &Desk, wanted: &Role) -> Result<Option<u64>, Failure> {
        // A standby keeps its last token, by which a successor knows that it is older.
        let mut metadata = json!({"labels": {ROLE: STANDBY}});
        if let Role::Leader(Some(token)) = wanted {
            metadata["labels"][ROLE] = json!(LEADER);
            metadata["annotations"] = json!({TOKEN: token.to_string()});
            // From the first byte on: the answer may be lost, and the label be there.
            self.routing.set(true);
        }
        desk.patch_metadata(metadata).await
    }

    fn has_settled(&self, state: &Role) {
        self.routing.set(*state != Role::Standby);
    }

    fn seen(&self, pod: &Pod) -> Option<Role> {
        let metadata = &pod.metadata;
        if metadata.is_leader() {
            self.routing.set(true);
        }
        Some(match metadata.labels.get(ROLE).map(String::as_str) {
            Some(LEADER) => Role::Leader(metadata.token()),
            Some(STANDBY) => Role::Standby,
            Some(_) | None => Role::Other,
        })
    }
}
