//! What the displaced leader's pod still says: it may be cut off, and then nobody else can take it back.
//!
//! The owner value that we displaced names the pod, as long as identities are pod names. What is taken back is only what
//! carries a smaller token than ours, on a pod that is still as it was read: a pod that has come to lead since, or
//! another pod of the same name, is left alone.

use serde_json::{Value, json};
use tracing::info;

use crate::kubernetes::api::Content;
use crate::kubernetes::condition;
use crate::kubernetes::deletion_cost::LEADERS_COST;
use crate::kubernetes::failure::Failure;
use crate::kubernetes::intent::Intent;
use crate::kubernetes::pod::{self, DELETION_COST, Pod, ROLE, STANDBY};
use crate::kubernetes::publisher::{Desk, Publish};
use crate::kubernetes::{Settings, is_object_name};
use crate::redsync::reply::Token;

/// Pods that we displaced, and the token that we did it with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Displaced {
    names: Vec<String>,
    successor: Token,
}

pub(super) struct Predecessor {
    label: bool,
    condition: bool,
    deletion_cost: bool,
    own: String,
}

impl Predecessor {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            label: settings.label,
            condition: settings.condition,
            deletion_cost: settings.label && settings.deletion_cost,
            own: settings.pod.name.clone(),
        }
    }
}

impl Publish for Predecessor {
    /// `None`: nobody was displaced.
    type State = Option<Displaced>;

    fn wanted(&self, intent: &Intent) -> Option<Displaced> {
        let lead = intent.lead.as_ref()?;
        let names = lead.displaced.iter().filter(|name| is_object_name(name) && **name != self.own);
        let names: Vec<String> = names.cloned().collect();
        (!names.is_empty()).then_some(Displaced { names, successor: lead.token })
    }

    fn is_so_from_the_start(&self, wanted: &Option<Displaced>) -> bool {
        wanted.is_none()
    }

    async fn send(&self, desk: &Desk, wanted: &Option<Displaced>) -> Result<Option<u64>, Failure> {
        let Some(Displaced { names, successor }) = wanted else { return Ok(None) };
        let mut failed = None;
        for name in names {
            if let Err(failure) = self.clear(desk, name, *successor).await {
                failed = Some(failure);
            }
        }
        failed.map_or(Ok(None), Err)
    }
}

impl Predecessor {
    /// Takes back what this pod says of a leadership that is older than ours.
    async fn clear(&self, desk: &Desk, name: &str, successor: Token) -> Result<(), Failure> {
        let path = pod::path(&desk.pod.namespace, name);
        // A pod that is gone says nothing.
        let Some(pod) = desk.api.find::<Pod>(&path).await? else { return Ok(()) };
        let is_older = |token: Option<Token>| token.filter(|token| *token < successor);
        let (mut now, mut failed) = (pod, None);
        if self.label
            && now.metadata.is_leader()
            && let Some(token) = is_older(now.metadata.token())
        {
            match desk.api.patch(&path, Content::Merge, &self.lowered(&now)).await {
                Ok(pod) => {
                    info!(holder = name, token, "the displaced leader's label is cleared");
                    now = pod;
                }
                Err(failure) => failed = Some(failure),
            }
        }
        if self.condition
            && let Some(token) = is_older(now.condition().and_then(condition::token_of))
        {
            condition::clear(desk, &path, &now, token, successor).await?;
            info!(holder = name, token, "the displaced leader's condition is cleared");
        }
        failed.map_or(Ok(()), Err)
    }

    /// Its role taken back, which the server does only to a pod that is as it was read.
    fn lowered(&self, pod: &Pod) -> Value {
        let mut metadata = pod.as_it_is();
        metadata["labels"] = json!({ROLE: STANDBY});
        let cost = pod.metadata.annotations.get(DELETION_COST);
        if self.deletion_cost && cost.is_some_and(|cost| cost == LEADERS_COST) {
            metadata["annotations"] = json!({DELETION_COST: null});
        }
        json!({"metadata": metadata})
    }
}
