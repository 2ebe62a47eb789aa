//! What the replicas ask of the API server, by its own audit log: how much, and whether the chart grants exactly that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::audit::{asked, word};
use crate::cluster::{Cluster, IMAGE, feed, succeed};
use crate::figures::{figure, setting};
use crate::pod::{self, name, redleader, said, signal};
use crate::release::{LONG, PUBLISHED, Release, chart, render};
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
    leaders.iter().for_each(|pod| signal(redleader(&name(pod)), Signal::STOP));
    for (combination, before) in combinations.iter().zip(&leaders) {
        leader(cluster, combination, &name(before));
    }
    leaders.iter().for_each(|pod| signal(redleader(&name(pod)), Signal::CONT));
    let mut faults = Vec::new();
    for combination in &combinations {
        eventually_no_fault(cluster, combination, &mut faults);
    }
    for (bits, combination) in combinations.iter().enumerate() {
        let of = format!("labelSelector=app.kubernetes.io%2Finstance%3D{combination}");
        let pods = cluster.list(&format!("/api/v1/namespaces/k6/pods?{of}"));
        assert_eq!(have_token(&pods), bits != 0, "{combination}: a token where something is published, and only there");
        assert_eq!(granted(cluster, combination).is_empty(), bits == 0, "{combination}: rights likewise");
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    figure(
        "K6 rights",
        "16 combinations: nothing refused, no right idle, no Role and no token where nothing is published",
    );
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
        let leads = |pod: &Value| name(pod) != not && said(pod).is_some_and(|said| pod::leads(&said));
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

/// All that an account may do, by whatever role of whatever name.
fn granted(cluster: &Cluster, account: &str) -> Asked {
    let all = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let of = "/apis/rbac.authorization.k8s.io/v1";
    let is_ours =
        |binding: &Value| all(&binding["subjects"]).iter().any(|of| of["name"] == account && of["namespace"] == "k6");
    let everywhere = cluster.get(&format!("{of}/clusterrolebindings")).expect("the API server tells it");
    assert!(!all(&everywhere["items"]).iter().any(is_ours), "{account} has a right everywhere");
    let bindings = cluster.get(&format!("{of}/namespaces/k6/rolebindings")).expect("the API server tells it");
    let mut granted = Asked::new();
    for binding in all(&bindings["items"]).iter().filter(|binding| is_ours(binding)) {
        assert_eq!(binding["roleRef"]["kind"], "Role", "{binding}");
        let path = format!("{of}/namespaces/k6/roles/{}", word(&binding["roleRef"]["name"]));
        for rule in all(&cluster.get(&path).expect("the role that is bound")["rules"]) {
            for resource in all(&rule["resources"]) {
                granted.extend(all(&rule["verbs"]).iter().map(|verb| format!("{} {}", word(verb), word(&resource))));
            }
        }
    }
    granted
}

/// Whether a token is mounted in any of these pods.
fn have_token(pods: &[Value]) -> bool {
    assert!(!pods.is_empty(), "there are pods");
    pods.iter().any(|pod| pod["spec"]["volumes"].to_string().contains("serviceAccountToken"))
}

/// How long the steady state is watched: the own pod's watch begins anew every 8 to 13 minutes.
fn watched() -> Duration {
    Duration::from_secs(if setting("SCALE").as_deref() == Some("soak") { 30 * 60 } else { 60 })
}

fn requests(cluster: &Cluster) {
    let release = Release::new(cluster, "k5", &PUBLISHED);
    release.install();
    let leader = release.settle(3);
    let quiet = Release::new(cluster, "k5-quiet", &["app.port=8080"]);
    quiet.install();
    quiet.settle(3);
    release.until_right(&leader);
    let_time_pass("what else publishers tell", Duration::from_secs(5));
    let before = asked(cluster, "k5", "k5").len();
    let_time_pass("a steady state", watched());
    let steady = asked(cluster, "k5", "k5").len() - before;
    let next = release.hand_over(&leader);
    release.until_right(&next);
    let_time_pass("what else publishers tell", Duration::from_secs(5));
    let transition = &asked(cluster, "k5", "k5")[before + steady..];
    let mut counts = BTreeMap::new();
    transition.iter().for_each(|(what, _)| *counts.entry(what.clone()).or_insert(0) += 1);
    let counts: Vec<String> = counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
    let hours = watched().as_secs_f64() / 3600.0;
    let hourly = steady as f64 / hours;
    figure(
        "K5 steady state",
        &format!("{steady} requests of 3 replicas in {} s, {hourly:.0} an hour, everything on", watched().as_secs()),
    );
    figure("K5 hand-over", &format!("{} requests: {}", transition.len(), counts.join(", ")));
    let none = asked(cluster, "k5-quiet", "k5-quiet").len();
    figure("K5 mode readiness, nothing published", &format!("{none} requests since its start, no token mounted"));
    // A watch that begins anew is the only thing that time brings, and each does at most every 7.5 minutes.
    let most = (3.0 * hours * 60.0 / 7.5).ceil();
    assert!(steady as f64 <= most, "{steady} requests in a steady state, more than {most}");
    assert!(transition.len() <= 22, "a hand-over costs more than twice what it did: {}", transition.len());
    assert_eq!(none, 0);
    assert!(!have_token(&quiet.pods()), "a token is mounted for nothing");
    release.uninstall();
    quiet.uninstall();
}
