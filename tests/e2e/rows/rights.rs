//! What the replicas ask of the API server, by its own audit log: how much, and whether the chart grants exactly that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::audit::{self, asked, word};
use crate::bench::Bench;
use crate::cluster::Cluster;
use crate::figures::figure;
use crate::pod::{self, name, redleader, said, signal};
use crate::release::{LONG, PUBLISHED, Release, still_wrong};
use crate::row::{Row, Stage};
use crate::support::scale;
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
    let bench = Bench::new(cluster, "k6", &[]);
    let combinations: Vec<String> = (0..16).map(|bits| format!("c{bits}")).collect();
    for (bits, combination) in combinations.iter().enumerate() {
        let lease = format!("publish.lease={combination}");
        let published = ["publish.label=true", "publish.condition=true", "publish.events=true", lease.as_str()];
        let chosen = published.into_iter().enumerate().filter(|(bit, _)| bits & (1 << bit) != 0);
        let chosen: Vec<&str> = chosen.map(|(_, value)| value).collect();
        bench.instance(combination, &[&["replicas=2", "app.image="], &chosen[..]].concat());
    }
    let leaders: Vec<Value> = combinations.iter().map(|of| leader(&bench, of, "")).collect();
    // Leaders that stand still for longer than the ttl are displaced, and there is a predecessor to be cleared.
    leaders.iter().for_each(|pod| signal(redleader(&name(pod)), Signal::STOP));
    for (combination, before) in combinations.iter().zip(&leaders) {
        leader(&bench, combination, &name(before));
    }
    leaders.iter().for_each(|pod| signal(redleader(&name(pod)), Signal::CONT));
    // What is published is told within seconds; only what is still wrong after that is a fault.
    let faults = still_wrong(|| {
        let (log, bound) = (audit::log(cluster), Bound::read(cluster));
        combinations.iter().flat_map(|account| wrong(&log, &bound, account)).collect()
    });
    let bound = Bound::read(cluster);
    for (bits, combination) in combinations.iter().enumerate() {
        let pods = bench.pods_of(combination);
        assert_eq!(have_token(&pods), bits != 0, "{combination}: a token where something is published, and only there");
        assert_eq!(bound.granted(combination).is_empty(), bits == 0, "{combination}: rights likewise");
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    figure(
        "K6 rights",
        "16 combinations: nothing refused, no right idle, no Role and no token where nothing is published",
    );
    bench.remove();
}

fn leader(bench: &Bench<'_>, instance: &str, not: &str) -> Value {
    eventually(&format!("{instance} has a leader"), LONG, || {
        let leads = |pod: &Value| name(pod) != not && said(pod).is_some_and(|said| pod::leads(&said));
        bench.pods_of(instance).into_iter().find(leads)
    })
}

fn wrong(log: &str, bound: &Bound, account: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let requests = asked(log, "k6", account);
    for (what, code) in requests.iter().filter(|(_, code)| matches!(code, 401 | 403)) {
        wrong.push(format!("{account}: {what} was answered with {code}"));
    }
    let used: Asked = requests.into_iter().map(|(what, _)| what).collect();
    for right in bound.granted(account).difference(&used) {
        wrong.push(format!("{account}: the right to {right} was never used, but {used:?}"));
    }
    wrong
}

/// All roles of the namespace, and who is bound to them, and to others everywhere.
struct Bound {
    everywhere: Vec<Value>,
    bindings: Vec<Value>,
    roles: Vec<Value>,
}

impl Bound {
    fn read(cluster: &Cluster) -> Self {
        let read = |path: &str| {
            let list = cluster.get(&format!("/apis/rbac.authorization.k8s.io/v1/{path}"));
            all(&list.expect("the API server tells it")["items"])
        };
        Self {
            everywhere: read("clusterrolebindings"),
            bindings: read("namespaces/k6/rolebindings"),
            roles: read("namespaces/k6/roles"),
        }
    }

    /// All that an account may do, by whatever role of whatever name.
    fn granted(&self, account: &str) -> Asked {
        let is_ours = |binding: &&Value| {
            all(&binding["subjects"]).iter().any(|of| of["name"] == account && of["namespace"] == "k6")
        };
        assert!(!self.everywhere.iter().any(|binding| is_ours(&binding)), "{account} has a right everywhere");
        let mut granted = Asked::new();
        for binding in self.bindings.iter().filter(is_ours) {
            assert_eq!(binding["roleRef"]["kind"], "Role", "{binding}");
            let role = self.roles.iter().find(|role| role["metadata"]["name"] == binding["roleRef"]["name"]);
            for rule in all(&role.expect("the role that is bound")["rules"]) {
                for resource in all(&rule["resources"]) {
                    let verbs = all(&rule["verbs"]);
                    granted.extend(verbs.iter().map(|verb| format!("{} {}", word(verb), word(&resource))));
                }
            }
        }
        granted
    }
}

fn all(list: &Value) -> Vec<Value> {
    list.as_array().cloned().unwrap_or_default()
}

/// Whether a token is mounted in any of these pods.
fn have_token(pods: &[Value]) -> bool {
    assert!(!pods.is_empty(), "there are pods");
    pods.iter().any(|pod| pod["spec"]["volumes"].to_string().contains("serviceAccountToken"))
}

/// How long the steady state is watched: the own pod's watch begins anew every 8 to 13 minutes.
fn watched() -> Duration {
    Duration::from_secs(scale().pick(60, 30 * 60))
}

fn requests(cluster: &Cluster) {
    let (release, leader) = Release::up(cluster, "k5", &PUBLISHED, 3);
    let (quiet, _) = Release::up(cluster, "k5-quiet", &["app.port=8080"], 3);
    release.until_right(&leader);
    let_time_pass("what else publishers tell", Duration::from_secs(5));
    let before = asked(&audit::log(cluster), "k5", "k5").len();
    let_time_pass("a steady state", watched());
    let steady = asked(&audit::log(cluster), "k5", "k5").len() - before;
    let next = release.hand_over(&leader);
    release.until_right(&next);
    let_time_pass("what else publishers tell", Duration::from_secs(5));
    let transition = &asked(&audit::log(cluster), "k5", "k5")[before + steady..];
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
    let none = asked(&audit::log(cluster), "k5-quiet", "k5-quiet").len();
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
