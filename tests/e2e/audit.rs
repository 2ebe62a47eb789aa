//! What was asked of the API server, by its own audit log.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::release::Release;

/// The audit log so far.
pub fn log(cluster: &Cluster) -> String {
    std::fs::read_to_string(cluster.root().join("audit.log")).expect("the API server writes it")
}

/// Every request of a service account, by its audit log: what, and how it was answered.
pub fn asked(log: &str, namespace: &str, account: &str) -> Vec<(String, u64)> {
    let requests = audited(log, namespace, account);
    requests.iter().map(|line| (what(line), line["responseStatus"]["code"].as_u64().unwrap_or_default())).collect()
}

/// The lines of the audit log about a service account.
pub fn audited(log: &str, namespace: &str, account: &str) -> Vec<Value> {
    let user = format!("system:serviceaccount:{namespace}:{account}");
    let lines = log.lines().filter(|line| line.contains(&user)).filter_map(|line| serde_json::from_str(line).ok());
    // A watch is told at its beginning and at its end.
    let is_again = |line: &Value| line["verb"] == "watch" && line["stage"] == "ResponseComplete";
    lines.filter(|line: &Value| line["user"]["username"] == user.as_str() && !is_again(line)).collect()
}

/// `patch pods/status`, of a line of the audit log.
pub fn what(line: &Value) -> String {
    let object = &line["objectRef"];
    let what = format!("{} {}", word(&line["verb"]), word(&object["resource"]));
    if object["subresource"].is_null() { what } else { format!("{what}/{}", word(&object["subresource"])) }
}

/// A text; empty if it is none.
pub fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Requests that a release's policy denied its account, by the audit log. A change whose own conditions do not hold any
/// more has the same status, and is none of them.
pub fn denied(release: &Release<'_>, query: &str) -> Vec<String> {
    let words = [&format!("ValidatingAdmissionPolicy 'redleader-{0}.{0}'", release.name), "denied request", query];
    log(release.cluster)
        .lines()
        .filter(|line| words.iter().all(|word| line.contains(*word)))
        .map(str::to_owned)
        .collect()
}
