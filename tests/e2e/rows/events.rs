//! Every mode through everything that happens to pods. How long nobody answers, and for how long two do, is measured
//! through the Service by a caller outside of the pods.

use std::time::Duration;

use crate::caller::{Caller, Seen};
use crate::cluster::{Cluster, WEB, WEB_2, succeed};
use crate::figures::figure;
use crate::release::{LONG, Release, name};
use crate::row::{Row, Stage};
use crate::wait::{eventually, let_time_pass};

pub const ROWS: &[Row] = &[
    Row {
        name: "K2-readiness",
        shows: "mode readiness through every event: it ends, nobody answers beside the leader",
        stage: Stage::Together,
        run: |cluster| all_events(cluster, &READINESS),
    },
    Row {
        name: "K2-label",
        shows: "mode label through every event: it ends, nobody answers beside the leader, and Helm's own wait ends",
        stage: Stage::Together,
        run: |cluster| all_events(cluster, &LABEL),
    },
    Row {
        name: "K2-gate",
        shows: "mode gate through every event: it ends, nobody answers beside the leader",
        stage: Stage::Together,
        run: |cluster| all_events(cluster, &GATE),
    },
    Row {
        name: "K2-wrap",
        shows: "the wrapper through every event: it ends, nobody answers beside the leader",
        stage: Stage::Together,
        run: |cluster| all_events(cluster, &WRAP),
    },
    Row {
        name: "K2-node-lost",
        shows: "a node of the cluster dies with the leader of every mode on it: it ends, and another answers",
        stage: Stage::Node,
        run: node_lost,
    },
];

/// A mode as a user chooses it.
pub struct Mode {
    name: &'static str,
    values: &'static [&'static str],
    /// The container that redleader runs in, and where it is there.
    container: &'static str,
    binary: &'static str,
    /// Whether all replicas are Ready, so that Helm's own wait ends.
    helm_waits: bool,
}

const READINESS: Mode = Mode {
    name: "readiness",
    values: &["app.port=8080"],
    container: "redleader",
    binary: "/redleader",
    helm_waits: false,
};

const LABEL: Mode = Mode { name: "label", values: &["mode=label", "app.port=8080"], helm_waits: true, ..READINESS };
const GATE: Mode = Mode { name: "gate", values: &["mode=gate", "app.port=8080"], ..READINESS };
const WRAP: Mode = Mode {
    name: "wrap",
    values: &["wrap.enabled=true", "app.port=8080", "app.command={/web}"],
    container: "app",
    binary: "/run/redleader/bin/redleader",
    helm_waits: false,
};

/// Something that happens, and what is true once it is over.
type Event = fn(&Mode, &mut Release<'_>, &str);

const EVENTS: [(&str, Event); 7] = [
    ("resign", resign),
    ("delete of the leader's pod", delete),
    ("kill -9 of redleader", |_, release, leader| release.kill(leader, "redleader")),
    ("kill -9 of the app", |_, release, leader| release.kill(leader, "web")),
    ("eviction of the leader", evict),
    ("rollout of a new image", roll),
    ("scale 3 to 1 to 3", scale),
];

fn all_events(cluster: &Cluster, mode: &Mode) {
    let mut release = Release::new(cluster, &format!("k2-{}", mode.name), mode.values);
    release.install();
    release.settle(3);
    let mut faults = Vec::new();
    for (event, happen) in EVENTS {
        let seen = one_event(mode, &mut release, happen);
        let (gap, overlap) = (Duration::from_millis(seen.gap()), seen.overlap());
        let names = seen.names().len();
        let row = format!("nobody answered for {:.1} s, two for {overlap} ms, {names} answered", gap.as_secs_f64());
        figure(&format!("K2 {} x {event}", mode.name), &row);
        if overlap > 0 {
            faults.push(format!("{event}: {overlap} ms of overlap: {:?}", seen.names()));
        }
        if gap > Duration::from_secs(60) {
            faults.push(format!("{event}: nobody answered for {gap:?}"));
        }
    }
    assert!(faults.is_empty(), "{}: {}", mode.name, faults.join("\n"));
    release.uninstall();
}

fn one_event(mode: &Mode, release: &mut Release<'_>, happen: Event) -> Seen {
    let before = answering(release);
    let caller = Caller::start(&release.service());
    let_time_pass("calls before it happens", Duration::from_millis(500));
    happen(mode, release, &before);
    release.settle(3);
    answering(release);
    let_time_pass("calls after it is over", Duration::from_secs(1));
    caller.finish()
}

/// Waits until whoever leads is whom the Service answers from.
fn answering(release: &Release<'_>) -> String {
    let address = release.service();
    eventually("the leader answers the Service", LONG, || {
        let leader = release.leader()?;
        (crate::caller::call(&address).as_ref() == Some(&leader)).then_some(leader)
    })
}

fn resign(mode: &Mode, release: &mut Release<'_>, leader: &str) {
    // Long enough for the hand-over, short enough for the next event.
    let said = release.exec(leader, mode.container, &[mode.binary, "resign", "--for", "5s"]);
    succeed("resign", said);
    release.next_leader(&[leader]);
}

fn delete(_: &Mode, release: &mut Release<'_>, leader: &str) {
    release.cluster.kubectl(&["delete", "pod", "-n", &release.name, leader, "--wait=false"]);
    release.next_leader(&[leader]);
}

/// As `kubectl drain` takes a pod away: where a PodDisruptionBudget forbids it, it is asked again.
fn evict(_: &Mode, release: &mut Release<'_>, leader: &str) {
    let body = format!(
        r#"{{"apiVersion":"policy/v1","kind":"Eviction","metadata":{{"name":"{leader}","namespace":"{}"}}}}"#,
        release.name
    );
    let path = format!("/api/v1/namespaces/{}/pods/{leader}/eviction", release.name);
    eventually("the eviction is allowed", LONG, || {
        release.cluster.request("POST", &path, "", &body).filter(|(status, _)| *status == 201)
    });
    release.next_leader(&[leader]);
}

fn roll(mode: &Mode, release: &mut Release<'_>, _: &str) {
    let old: Vec<String> = release.pods().iter().map(name).collect();
    let image = if release.values.iter().any(|value| value.ends_with(WEB_2)) { WEB } else { WEB_2 };
    let flags: &[&str] = if mode.helm_waits { &["--wait"] } else { &[] };
    succeed("helm upgrade", release.upgrade(&[&format!("app.image={image}")], flags));
    eventually("all pods are new", LONG, || release.pods().iter().all(|pod| !old.contains(&name(pod))).then_some(()));
}

fn scale(_: &Mode, release: &mut Release<'_>, _: &str) {
    let deployment = format!("deployment/{}", release.name);
    for count in [1, 3] {
        let replicas = format!("--replicas={count}");
        release.cluster.kubectl(&["scale", "-n", &release.name, &deployment, &replicas]);
        release.settle(count);
        answering(release);
    }
}

/// The node that is lost, and the one that stays with all that the releases need.
const LOST: &str = "node2";
const STAYS: &str = "nodes.nodeSelector.kubernetes\\.io/hostname=node1";

/// Every mode has its leader on one node of the cluster, and that node loses its power.
fn node_lost(cluster: &Cluster) {
    let modes = [READINESS, LABEL, GATE, WRAP];
    let releases: Vec<Release<'_>> = modes
        .iter()
        .map(|mode| {
            let mut values = mode.values.to_vec();
            values.push(STAYS);
            let release = Release::new(cluster, &format!("k2-lost-{}", mode.name), &values);
            release.install();
            release
        })
        .collect();
    for (mode, release) in modes.iter().zip(&releases) {
        release.settle(3);
        move_leader_to(mode, release, LOST);
    }
    let callers: Vec<Caller> = releases.iter().map(|release| Caller::start(&release.service())).collect();
    cluster.part("lose", LOST);
    let mut after = Vec::new();
    for release in &releases {
        // The API server takes a while to notice; the pods that stay do not.
        after.push(eventually("another leads", LONG, || {
            let on_node = |pod: &serde_json::Value| pod["spec"]["nodeName"] == LOST;
            release.leading().filter(|pod| !on_node(pod)).map(|pod| name(&pod))
        }));
    }
    // As long as Kubernetes takes to notice, and a little more.
    let_time_pass("the lost node is noticed", Duration::from_secs(60));
    for ((mode, caller), leader) in modes.iter().zip(callers).zip(after) {
        let seen = caller.finish();
        let whole = Duration::from_millis(seen.calls_failed());
        let text = format!(
            "nobody answered for {:.1} s, two for {} ms, calls failed for {:.1} s in all",
            Duration::from_millis(seen.gap()).as_secs_f64(),
            seen.overlap(),
            whole.as_secs_f64()
        );
        figure(&format!("K2 {} x loss of the leader's node", mode.name), &text);
        assert_eq!(seen.overlap(), 0, "ms of overlap in {}: {:?}", mode.name, seen.names());
        assert_eq!(seen.names().last(), Some(&leader), "{}", mode.name);
    }
}

fn move_leader_to(mode: &Mode, release: &Release<'_>, node: &str) {
    eventually("the leader is on the node", LONG, || {
        let leader = release.leading()?;
        if leader["spec"]["nodeName"] == node {
            return Some(());
        }
        let said = release.exec(&name(&leader), mode.container, &[mode.binary, "resign", "--for", "10s"]);
        succeed("resign", said);
        release.next_leader(&[&name(&leader)]);
        None
    });
    answering(release);
}
