//! The chart's NetworkPolicies, enforced by kube-router.

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Cluster, WEB, enter, succeed};
use crate::figures::figure;
use crate::pod::{self, condition, name};
use crate::release::{LONG, Release, still_wrong};
use crate::row::{Row, Stage};
use crate::wait::eventually;

pub const ROWS: &[Row] = &[Row {
    name: "K9-network",
    shows: "with the network policy a release works, and nobody else reaches its nodes",
    stage: Stage::Network,
    run: only_the_release,
}];

/// What is enforced is enforced on one node of the cluster.
const VALUES: [&str; 7] = [
    "networkPolicy.enabled=true",
    "mode=label",
    "app.port=8080",
    "replicas=2",
    "ttl=4s",
    "nodeSelector.kubernetes\\.io/hostname=node1",
    "nodes.nodeSelector.kubernetes\\.io/hostname=node1",
];

fn only_the_release(cluster: &Cluster) {
    let (mut release, leader) = Release::up(cluster, "k9-network", &VALUES, 2);
    others(&release);
    let node = address(&pod(&release, "k9-network-nodes-0"), 6379);
    for pod in ["stranger", "scraper", leader.as_str()] {
        assert!(reaches(&release, pod, &node), "{pod} is kept from a node before anybody enforces it");
    }
    cluster.part("start", "policies");
    eventually("the policy is in force", LONG, || (!reaches(&release, "stranger", &node)).then_some(()));
    let token = release.leader_json(&leader).expect("it leads")["token"].clone();
    holds(&release, true);
    assert_eq!(release.leader_json(&leader).expect("it leads")["token"], token, "one leadership");

    // An upgrade's errand reaches the nodes as well, or it would not end.
    let from = "networkPolicy.from[0].podSelector.matchLabels.may=scrape";
    succeed("helm upgrade", release.upgrade(&[from, "podAnnotations.turn=2nd"], &[]));
    eventually("all pods are new", LONG, || {
        let is_new = |pod: &Value| pod["metadata"]["annotations"]["turn"] == "2nd";
        (release.pods().len() == 2 && release.pods().iter().all(is_new)).then_some(())
    });
    let second = release.settle(2);
    holds(&release, false);
    release.hand_over(&second);
    release.uninstall();
    cluster.kubectl(&["delete", "pod", "-n", &release.name, "stranger", "scraper", "--wait=false"]);
    cluster.part("stop", "policies");
    figure(
        "K9 network policy",
        "elections, an upgrade and its errand go on; a stranger reaches the app alone, no node",
    );
}

/// Who reaches whom, until it is so for all; with `anyone` who may read metrics is not limited.
fn holds(release: &Release<'_>, anyone: bool) {
    let replicas = release.pods();
    let (one, other) = (name(&replicas[0]), &replicas[1]);
    let nodes: Vec<Value> = (0..3).map(|at| pod(release, &format!("{}-nodes-{at}", release.name))).collect();
    let mut table: Vec<(&str, String, bool)> = vec![
        ("stranger", address(other, 8080), true),
        ("stranger", address(other, 9797), anyone),
        ("scraper", address(other, 9797), true),
    ];
    let services = (0..3).map(|at| release.service_named(&format!("{}-node-{at}", release.name)));
    for node in nodes.iter().map(|node| address(node, 6379)).chain(services) {
        table.extend([("stranger", node.clone(), false), ("scraper", node.clone(), false), (one.as_str(), node, true)]);
    }
    // A node asks nobody.
    let first = name(&nodes[0]);
    table.extend([(first.as_str(), address(&nodes[1], 6379), false), (first.as_str(), address(other, 8080), false)]);
    let is_wrong = |(pod, to, may): &&(&str, String, bool)| reaches(release, pod, to) != *may;
    let wrong = still_wrong(|| table.iter().filter(is_wrong).collect());
    assert!(wrong.is_empty(), "from, to, and whether it should: {wrong:?}");
}

/// Two pods that are not the release's; one of them may read metrics where that is limited.
fn others(release: &Release<'_>) {
    for (pod, may) in [("stranger", "nothing"), ("scraper", "scrape")] {
        release.cluster.apply(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}, namespace: {}, labels: {{may: {may}}}}}\nspec:\n  \
             nodeName: node1\n  securityContext: {{runAsNonRoot: true, seccompProfile: {{type: RuntimeDefault}}}}\n  \
             containers:\n    - {{name: web, image: \"{WEB}\", imagePullPolicy: Never, securityContext: \
             {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}}}\n",
            release.name
        ));
        eventually("it is Ready", LONG, || {
            (condition(&self::pod(release, pod), "Ready") == Some("True")).then_some(())
        });
    }
}

fn pod(release: &Release<'_>, name: &str) -> Value {
    release.pod(name).unwrap_or_else(|| panic!("{name} is not there"))
}

fn address(pod: &Value, port: u16) -> String {
    format!("{}:{port}", pod::address(pod))
}

/// Whether a connection from within a pod is taken.
fn reaches(release: &Release<'_>, from: &str, to: &str) -> bool {
    let from: IpAddr = pod::address(&pod(release, from)).parse().expect("an address");
    let to: SocketAddr = to.parse().expect("an address");
    let spaces = release.cluster.root().join("node1/state/io.containerd.grpc.v1.cri/netns");
    let spaces = std::fs::read_dir(&spaces).unwrap_or_else(|why| panic!("{}: {why}", spaces.display()));
    let answers = spaces.flatten().find_map(|space| {
        // A thread of its own, which ends in that network. It is the pod's if the pod's address is there.
        let asks = move || {
            enter(&space.path()).ok()?;
            UdpSocket::bind((from, 0)).ok()?;
            Some(TcpStream::connect_timeout(&to, Duration::from_secs(1)).is_ok())
        };
        thread::spawn(asks).join().expect("it does not panic")
    });
    answers.expect("the pod's network is there")
}
