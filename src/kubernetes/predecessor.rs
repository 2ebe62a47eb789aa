//! What the displaced leader's pod still says: it may be cut off, and then nobody else can take it back.
//!
//! The owner value that we displaced names the pod, as long as identities are pod names. What is taken back is only what
//! carries a smaller token than ours, on a pod that is still as it was read: a pod that has come to lead since, or
//! another pod of the same name, is left alone.

use serde_json::{Value, json};
use tracing::info;

use crate::kubernetes::Settings;
use crate::kubernetes::api::Content;
use crate::kubernetes::condition;
use crate::kubernetes::deletion_cost::LEADERS_COST;
use crate::kubernetes::failure::Failure;
use crate::kubernetes::intent::Intent;
use crate::kubernetes::pod::{self, DELETION_COST, LEADER, Pod, ROLE, STANDBY, TOKEN};
use crate::kubernetes::publisher::{Desk, Publish};
use crate::kubernetes::target::Code;
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
        let names = lead.displaced.iter().filter(|name| is_pod_name(name) && **name != self.own);
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
            match desk.api.patch(&path, Content::Steps, &self.steps(&now, token)).await {
                Ok(pod) => {
                    info!(holder = name, token, "the displaced leader's label is cleared");
                    now = pod;
                }
                // A step that is not so any more: the pod has changed since it was read, and is to be read again.
                // Else it is forbidden, and asking again does not help.
                Err(failure) if failure.code == Code::Unprocessable => {
                    let is_as_it_was = match desk.api.find::<Pod>(&path).await? {
                        Some(pod) => pod.metadata.resource_version == now.metadata.resource_version,
                        None => return Ok(()),
                    };
                    failed = Some(if is_as_it_was { failure } else { Failure { code: Code::Conflict, ..failure } });
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

    /// Steps that the server takes only together, and only if the pod still says what was read.
    fn steps(&self, pod: &Pod, token: Token) -> Value {
        let (role, annotated) = (pointer("labels", ROLE), pointer("annotations", TOKEN));
        let mut steps = vec![
            json!({"op": "test", "path": "/metadata/uid", "value": pod.metadata.uid}),
            json!({"op": "test", "path": role, "value": LEADER}),
            json!({"op": "test", "path": annotated, "value": token.to_string()}),
            json!({"op": "replace", "path": role, "value": STANDBY}),
        ];
        let cost = pod.metadata.annotations.get(DELETION_COST);
        if self.deletion_cost && cost.is_some_and(|cost| cost == LEADERS_COST) {
            let path = pointer("annotations", DELETION_COST);
            steps.push(json!({"op": "test", "path": path, "value": LEADERS_COST}));
            steps.push(json!({"op": "remove", "path": path}));
        }
        Value::Array(steps)
    }
}

fn pointer(map: &str, key: &str) -> String {
    format!("/metadata/{map}/{}", key.replace('/', "~1"))
}

/// An identity may be anything that a person calls a replica; not all of that is safe in a path.
fn is_pod_name(identity: &str) -> bool {
    let is_part = |part: &str| {
        let is_end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        is_end(part.as_bytes().first()) && is_end(part.as_bytes().last()) && part.bytes().all(is_pod_name_byte)
    };
    identity.split('.').all(is_part)
}

fn is_pod_name_byte(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_a_pod_is_looked_for() {
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
        ] {
            assert_eq!(is_pod_name(name), expected, "{name}");
        }
    }
}
