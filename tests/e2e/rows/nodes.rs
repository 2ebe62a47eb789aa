//! The chart's own nodes, all gone, and rolled.

use std::time::Duration;

use crate::cluster::{Cluster, seconds_since};
use crate::figures::figure;
use crate::pod::{leads, name};
use crate::release::{LONG, Release};
use crate::row::{Row, Stage};
use crate::wait::{boot_ms, eventually, stays_true};

pub const ROWS: &[Row] = &[
    Row {
        name: "K4-all-nodes-down",
        shows: "without nodes nobody is Ready and no container restarts; one leads within a quarantine of their return",
        stage: Stage::Together,
        run: all_down,
    },
    Row {
        name: "K4-nodes-rolled",
        shows: "a rolling restart of the chart's own nodes costs no leadership",
        stage: Stage::Together,
        run: rolled,
    },
];

fn scale(release: &Release<'_>, count: u32) {
    let set = format!("statefulset/{}-nodes", release.name);
    release.cluster.kubectl(&["scale", "-n", &release.name, &set, &format!("--replicas={count}")]);
}

fn all_down(cluster: &Cluster) {
    let (release, _) = Release::up(cluster, "k4-down", &["app.port=8080"], 3);
    let restarts = release.restarts();
    scale(&release, 0);
    eventually("nobody is Ready", LONG, || (release.leader().is_none() && release.ready().is_empty()).then_some(()));
    stays_true("nobody is Ready and nothing restarts", Duration::from_secs(20), || {
        release.ready().is_empty() && release.restarts() == restarts
    });
    scale(&release, 3);
    eventually("the nodes are Ready", LONG, || (release.nodes_ready() == 3).then_some(()));
    let began = boot_ms();
    eventually("somebody leads", LONG, || release.leader());
    let took = seconds_since(began);
    // The quarantine begins with the first look at the new node, which a node's Ready pod precedes by less than ttl/4.
    figure("K4 all nodes down", &format!("a leader {took:.1} s after the nodes were Ready; no restart"));
    assert!(took <= 8.8 + 2.0 + 1.0, "{took} s");
    assert_eq!(release.restarts(), restarts);
    release.uninstall();
}

fn rolled(cluster: &Cluster) {
    let (release, leader) = Release::up(cluster, "k4-roll", &["app.port=8080"], 3);
    let token = release.leader_json(&leader).expect("it leads")["token"].clone();
    let before: Vec<String> = uids(&release);
    let began = boot_ms();
    release.cluster.kubectl(&["rollout", "restart", "-n", &release.name, "statefulset/k4-roll-nodes"]);
    stays_until_rolled(&release, &before, &leader);
    figure("K4 roll of the nodes", &format!("{:.0} s, the same leadership throughout", seconds_since(began)));
    assert_eq!(release.leader_json(&leader).expect("it leads")["token"], token, "one leadership");
    release.uninstall();
}

fn uids(release: &Release<'_>) -> Vec<String> {
    release.pods_of("node").iter().map(|pod| format!("{} {}", name(pod), pod["metadata"]["uid"])).collect()
}

/// The leader leads at every look until each node is another pod, and Ready.
fn stays_until_rolled(release: &Release<'_>, before: &[String], leader: &str) {
    eventually("all nodes are new", LONG, || {
        let said = release.leader_json(leader);
        assert!(said.as_ref().is_some_and(leads), "{said:?}");
        let now = uids(release);
        (now.len() == 3 && release.nodes_ready() == 3 && now.iter().all(|uid| !before.contains(uid))).then_some(())
    });
}
