//! A planned change of the list of nodes (protocol rule 23). Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::command::doctor::finding::{Finding, Problem};
use crate::election::timing::Short;
use crate::redsync::node::NodeSettings;
use crate::redsync::url::NodeUrl;

/// What would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) added: Vec<String>,
    pub(super) removed: Vec<String>,
    pub(super) nodes: usize,
}

impl Change {
    pub(super) fn new(now: &[NodeSettings], next: &[NodeUrl]) -> Self {
        // As replicas compare them: `host:port/db`, as it is written.
        let now: BTreeSet<String> = now.iter().map(|node| node.url.fingerprint_source()).collect();
        let next: BTreeSet<String> = next.iter().map(NodeUrl::fingerprint_source).collect();
        let less = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect();
        Self { added: less(&next, &now), removed: less(&now, &next), nodes: next.len() }
    }

    /// Whether both lists may be in use together.
    pub(super) fn is_safe(&self) -> bool {
        self.added.len() + self.removed.len() <= 1
    }

    /// What is wrong with it, if anything.
    pub(super) fn finding(&self, quarantine: Duration) -> Option<Finding> {
        if self.is_safe() {
            return None;
        }
        let mut finding = Finding::of_all(Problem::Next, format!("--next is not a neighbour: it {self}"));
        finding.remedy = if self.added.len() == 1 && self.removed.len() == 1 {
            format!(
                "add {} in one roll of all replicas, and remove {} in the next; or stop all for {}",
                self.added[0],
                self.removed[0],
                Short(quarantine)
            )
        } else {
            let quarantine = Short(quarantine);
            format!("add or remove one node in each roll of all replicas, or stop all of them for {quarantine}")
        };
        Some(finding)
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<String> = [("adds", &self.added), ("removes", &self.removed)]
            .into_iter()
            .filter(|(_, nodes)| !nodes.is_empty())
            .map(|(verb, nodes)| format!("{verb} {}", nodes.join(", ")))
            .collect();
        if parts.is_empty() { f.write_str("is the same list") } else { f.write_str(&parts.join(" and ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(now: &str, next: &str) -> Change {
        let set = |list: &str| list.split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>();
        let (now, next) = (set(now), set(next));
        let less = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect();
        Change { added: less(&next, &now), removed: less(&now, &next), nodes: next.len() }
    }

    #[test]
    fn lists_may_differ_by_one_added_or_removed_node() {
        for (now, next, is_safe, said) in [
            ("a b c", "a b c", true, "is the same list"),
            ("a b c", "a b c d", true, "adds d"),
            ("a b c", "a b", true, "removes c"),
            ("a b c", "a b d", false, "adds d and removes c"),
            ("a b c", "a b c d e", false, "adds d, e"),
            ("a b c d e", "a b c", false, "removes d, e"),
        ] {
            let change = change(now, next);
            assert_eq!((change.is_safe(), change.to_string().as_str()), (is_safe, said), "{now} to {next}");
            assert_eq!(change.finding(Duration::from_secs(8)).is_none(), is_safe);
        }
        let remedy = change("a b c", "a b d").finding(Duration::from_millis(8800)).unwrap().remedy;
        assert_eq!(remedy, "add d in one roll of all replicas, and remove c in the next; or stop all for 8.8s");
    }
}
