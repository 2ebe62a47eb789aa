//! Nodes that are reached through a proxy in the same pod, which starts after redleader and ends before it.

use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Cluster, NODE, seconds_since};
use crate::figures::figure;
use crate::pod::{name, process, said, wait_for_process};
use crate::release::{LONG, Release};
use crate::row::{Row, Stage};
use crate::wait::{boot_ms, eventually, stays_true};

pub const ROWS: &[Row] = &[Row {
    name: "C101-proxy",
    shows: "behind a proxy that starts 10 s after it and ends before it, redleader waits, leads in time, and ends in time",
    stage: Stage::Together,
    run: proxied,
}];

/// The chart's least in mode `readiness`, in whole seconds.
const TTL: Duration = Duration::from_secs(6);
/// A look, ttl/2 and at most 20 % more, and the quarantine of nodes that are new, ttl x 1.1.
const FIRST_LEADER: Duration = Duration::from_millis(3600 + 6600);
/// From SIGTERM, as the chart reckons it: ttl, two node timeouts, and 2 s; and before SIGTERM `drain` and its second.
const END: Duration = Duration::from_millis(6000 + 600 + 2000 + 1000);

/// An ordinary container, which starts after the sidecar, and has no port open for 10 s.
const PROXY: &str = "trap 'kill $(jobs -p); exit' TERM
sleep 20
for node in 0 1 2; do
  socat TCP-LISTEN:700$node,fork,reuseaddr TCP:c101-nodes-node-$node.c101-nodes:6379 &
done
wait";

const SECRET: &str = "
apiVersion: v1
kind: Secret
metadata: {name: nodes, namespace: NAMESPACE}
stringData: {password: of-the-nodes}
";

fn proxied(cluster: &Cluster) {
    let nodes = Release::new(cluster, "c101-nodes", &["replicas=0", "nodes.existingSecret=nodes"]);
    let release = release(cluster);
    for namespace in ["c101-nodes", "c101"] {
        cluster.apply(&SECRET.replace("NAMESPACE", namespace));
    }
    nodes.install();
    eventually("the nodes are Ready", LONG, || (nodes.nodes_ready() == 3).then_some(()));
    release.install();
    starts_late(&release);
    ends_first(&release);
    release.uninstall();
    nodes.uninstall();
}

fn release(cluster: &Cluster) -> Release<'_> {
    let script = PROXY.replace(',', "\\,");
    let command = format!("app.command={{sh,-c,{script}}}");
    let image = format!("app.image={NODE}");
    let values = [
        "ttl=6s",
        "wait.enabled=false",
        "redis.addresses={127.0.0.1:7000,127.0.0.1:7001,127.0.0.1:7002}",
        "redis.existingSecret=nodes",
        &image,
        &command,
        "app.securityContext.runAsUser=999",
    ];
    Release::new(cluster, "c101", &values)
}

/// Whether somebody listens on the ports of a pod's proxy.
fn is_open(pod: &Value) -> bool {
    let Some(address) = pod["status"]["podIP"].as_str() else { return false };
    (7000..7003).all(|port| {
        let address = format!("{address}:{port}").parse().expect("an address");
        std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok()
    })
}

fn starts_late(release: &Release<'_>) {
    let pods = eventually("redleader answers in every pod", LONG, || {
        let pods = release.pods();
        (pods.len() == 3 && pods.iter().all(|pod| said(pod).is_some())).then_some(pods)
    });
    assert!(!pods.iter().any(is_open), "a proxy is quicker than the test");
    let answered = boot_ms();
    eventually("a proxy is open", LONG, || {
        assert!(release.leader().is_none(), "nobody can lead yet");
        release.pods().iter().any(is_open).then_some(())
    });
    let opened = boot_ms();
    let alone = seconds_since(answered);
    let leader = eventually("somebody leads", LONG, || release.leader());
    let took = seconds_since(opened);
    figure(
        "C101 proxy",
        &format!("nothing was open for {alone:.1} s; {leader} leads {took:.1} s after the first proxy"),
    );
    assert!(took <= FIRST_LEADER.as_secs_f64(), "{took} s");
    assert_eq!(release.restarts(), 0);
}

/// The leader's pod is deleted: the proxy is gone when redleader is asked to end, and nothing can be reached.
fn ends_first(release: &Release<'_>) {
    let leader = release.settle(3);
    let pid = wait_for_process(&leader, "redleader");
    release.cluster.kubectl(&["delete", "pod", "-n", &release.name, &leader, "--wait=false"]);
    let deleted = boot_ms();
    let alive = std::path::PathBuf::from(format!("/proc/{pid}"));
    let proxies = || process(&leader, "socat").is_some();
    eventually("the proxy is gone", LONG, || {
        // Looked at first: it may end between the two.
        let is_alive = alive.exists();
        let is_beside = proxies();
        assert!(is_alive || !is_beside, "the sidecar ends after what is beside it");
        (!is_beside).then_some(())
    });
    let alone = boot_ms();
    eventually("redleader is gone", LONG, || (!alive.exists()).then_some(()));
    let (took, after) = (seconds_since(deleted), seconds_since(alone));
    figure("C101 end", &format!("{took:.1} s after the pod was deleted, {after:.1} s after the last proxy was gone"));
    assert!(after <= END.as_secs_f64(), "{after} s");
    let others = release.next_leader(&[&leader]);
    stays_true("the others are as they were", TTL, || release.restarts() == 0 && release.leader().is_some());
    assert!(release.pods().iter().any(|pod| name(pod) == others), "{others}");
}
