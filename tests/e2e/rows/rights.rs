//! What the replicas ask of the API server, by its own audit log: how much, and whether the chart grants exactly that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Cluster, IMAGE, feed, succeed};
use crate::figures::figure;
use crate::release::{LONG, Release, chart, name, process, render, said};
use crate::row::{Row, Stage};
use crate::wait::{eventually, let_time_pass};

pub const ROWS: &[Row] = &[
    Row {
        name: "K6-rights",
        shows: "of each of the 16 combinations of label, condition, Lease and Events nothing is refused and no right is idle",
        stage: Stage::Together,
        run: exactly_the_rights,
    },
    Row {
        name: "K5-requests",
        shows: "nothing is asked of the API server in a steady state, and little at a transition",
        stage: Stage::Together,
        run: requests,
    },
];

/// A verb and what it was done to: `patch pods/status`.
type Asked = BTreeSet<String>;

/// Every request of a service account, by its audit log: what, and how it was answered.
pub fn asked(cluster: &Cluster, namespace: &str, account: &str) -> Vec<(String, u64)> {
    let user = format!("system:serviceaccount:{namespace}:{account}");
    let log = std::fs::read_to_string(cluster.root().join("audit.log")).unwrap_or_default();
    let lines = log.lines().filter(|line| line.contains(&user)).filter_map(|line| serde_json::from_str(line).ok());
    let ours = lines.filter(|line: &Value| line["user"]["username"] == user.as_str());
    ours.map(|line| {
        let object = &line["objectRef"];
        let mut what = format!("{} {}", word(&line["verb"]), word(&object["resource"]));
        if !object["subresource"].is_null() {
            what = format!("{what}/{}", word(&object["subresource"]));
        }
        (what, line["responseStatus"]["code"].as_u64().unwrap_or_default())
    })
    .collect()
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn exactly_the_rights(cluster: &Cluster) {
    let nodes = Release::new(cluster, "k6", &["replicas=0"]);
    nodes.install();
    let combinations: Vec<String> = (0..16).map(|bits| format!("c{bits}")).collect();
    for (bits, combination) in combinations.iter().enumerate() {
        let manifest = render(cluster, &chart(), &words(combination, bits)).expect("the chart renders");
        let mut command = cluster.command("kubectl");
        succeed("apply", feed(command.args(["apply", "-n", "k6", "-f", "-"]), &manifest));
    }
    let leaders: Vec<Value> = combinations.iter().map(|of| leader(cluster, of, "")).collect();
    // Leaders that stand still for longer than the ttl are displaced, and there is a predecessor to be cleared.
    signal(&leaders, "-STOP");
    for (combination, before) in combinations.iter().zip(&leaders) {
        leader(cluster, combination, &name(before));
    }
    signal(&leaders, "-CONT");
    let mut faults = Vec::new();
    for combination in &combinations {
        eventually_no_fault(cluster, combination, &mut faults);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    figure(
        "K6 rights",
        "16 combinations: nothing refused, no right idle, no Role and no token where nothing is published",
    );
}

fn signal(pods: &[Value], signal: &str) {
    for pod in pods {
        let pid = process(&name(pod), "redleader").expect("the leader's process");
        let output = std::process::Command::new("kill").args([signal, &pid.to_string()]).output();
        succeed("kill", output.expect("kill is there"));
    }
}

/// The values of a combination: one bit for each thing that is published.
fn words(combination: &str, bits: usize) -> Vec<String> {
    let (repository, tag) = IMAGE.split_once(':').expect("it has a tag");
    let published = ["publish.label=true", "publish.condition=true", "publish.events=true"];
    let mut values = vec![
        format!("image.repository={repository}"),
        format!("image.tag={tag}"),
        "image.pullPolicy=Never".into(),
        "redis.addresses={k6-node-0,k6-node-1,k6-node-2}".into(),
        "redis.existingSecret=k6-nodes".into(),
        "replicas=2".into(),
        format!("fullnameOverride={combination}"),
    ];
    let chosen = published.iter().enumerate().filter(|(bit, _)| bits & (1 << bit) != 0);
    values.extend(chosen.map(|(_, value)| (*value).to_owned()));
    if bits & 8 != 0 {
        values.push(format!("publish.lease={combination}"));
    }
    let mut words: Vec<String> = [combination, "-n", "k6", "--no-hooks"].map(str::to_owned).into();
    for value in values {
        words.extend(["--set".into(), value]);
    }
    words
}

fn leader(cluster: &Cluster, instance: &str, not: &str) -> Value {
    let path = format!("/api/v1/namespaces/k6/pods?labelSelector=app.kubernetes.io%2Finstance%3D{instance}");
    eventually(&format!("{instance} has a leader"), LONG, || {
        let leads = |pod: &Value| name(pod) != not && said(pod).is_some_and(|said| said["leading"] == true);
        cluster.list(&path).into_iter().find(leads)
    })
}

/// What is published is told within seconds; only what is still wrong after that is a fault.
fn eventually_no_fault(cluster: &Cluster, account: &str, faults: &mut Vec<String>) {
    let mut last = Vec::new();
    for _ in 0..60 {
        last = wrong(cluster, account);
        if last.is_empty() {
            return;
        }
        let_time_pass("publishers catch up", Duration::from_millis(500));
    }
    faults.extend(last);
}

fn wrong(cluster: &Cluster, account: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let requests = asked(cluster, "k6", account);
    for (what, code) in requests.iter().filter(|(_, code)| matches!(code, 401 | 403)) {
        wrong.push(format!("{account}: {what} was answered with {code}"));
    }
    let used: Asked = requests.into_iter().map(|(what, _)| what).collect();
    for right in granted(cluster, account).difference(&used) {
        wrong.push(format!("{account}: the right to {right} was never used, but {used:?}"));
    }
    wrong
}

fn granted(cluster: &Cluster, role: &str) -> Asked {
    let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/k6/roles/{role}");
    let Some(role) = cluster.get(&path) else { return Asked::new() };
    let all = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut granted = Asked::new();
    for rule in all(&role["rules"]) {
        for resource in all(&rule["resources"]) {
            granted.extend(all(&rule["verbs"]).iter().map(|verb| format!("{} {}", word(verb), word(&resource))));
        }
    }
    granted
}

/// How long the steady state is watched.
const WATCHED: Duration = Duration::from_secs(60);

fn requests(cluster: &Cluster) {
    let everything =
        ["app.port=8080", "mode=label", "publish.condition=true", "publish.events=true", "publish.lease=k5"];
    let release = Release::new(cluster, "k5", &everything);
    release.install();
    let leader = release.settle(3);
    let quiet = Release::new(cluster, "k5-quiet", &["app.port=8080"]);
    quiet.install();
    quiet.settle(3);
    let_time_pass("publishers have told the start", Duration::from_secs(5));
    let before = asked(cluster, "k5", "k5").len();
    let_time_pass("a steady state", WATCHED);
    let steady = asked(cluster, "k5", "k5").len() - before;
    let output = release.exec(&leader, "redleader", &["/redleader", "resign", "--for", "5s"]);
    succeed("resign", output);
    release.next_leader(&[&leader]);
    let_time_pass("publishers have told the transition", Duration::from_secs(5));
    let transition = &asked(cluster, "k5", "k5")[before + steady..];
    let mut counts = BTreeMap::new();
    transition.iter().for_each(|(what, _)| *counts.entry(what.clone()).or_insert(0) += 1);
    let counts: Vec<String> = counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
    figure("K5 steady state", &format!("{steady} requests of 3 replicas in {} s, everything on", WATCHED.as_secs()));
    figure("K5 hand-over", &format!("{} requests: {}", transition.len(), counts.join(", ")));
    let none = asked(cluster, "k5-quiet", "k5-quiet").len();
    figure("K5 mode readiness, nothing published", &format!("{none} requests since its start, no token mounted"));
    // A watch that ends and begins again is the only thing that time brings.
    assert!(steady <= 3, "{steady} requests in a steady state");
    assert_eq!(none, 0);
    release.uninstall();
    quiet.uninstall();
}
