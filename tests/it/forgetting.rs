//! C43 and C45: nodes that forget scripts or have no memory left.

use std::time::Duration;

use crate::support::{Data, Judge, Monitor, Replica, ReplicaOptions, Servers, eventually, figure, stays_true};

const SOON: Duration = Duration::from_secs(10);
const TTL: Duration = Duration::from_secs(2);

fn replica(lock: &str, who: &str, nodes: &Servers) -> Replica {
    ReplicaOptions::new(lock, who, &nodes.urls()).args(["--ttl", "2s"]).start()
}

fn extends(replica: &Replica, outcome: &str) -> f64 {
    replica.metric("extend_attempts_total", &[("outcome", outcome)])
}

/// The commands that carried an extend, in order.
fn carriers(monitor: &Monitor) -> Vec<String> {
    let is_extend = |args: &[String]| args.len() == 11;
    monitor.requests().into_iter().filter(|line| is_extend(&line.args)).map(|line| line.name).collect()
}

#[test]
fn c43_a_forgotten_script_costs_no_round() {
    let nodes = Servers::start(3);
    let leader = replica("c43", "a", &nodes);
    leader.wait_elected(1, SOON);
    eventually("it extends", SOON, || (extends(&leader, "ok") >= 1.0).then_some(()));
    let monitors: Vec<Monitor> = nodes.iter().map(|node| node.monitor()).collect();
    for node in nodes.iter() {
        assert_eq!(node.cli(&["SCRIPT", "FLUSH"]).text(), "OK");
    }
    let before = extends(&leader, "ok");
    eventually("it extends twice more", SOON, || (extends(&leader, "ok") >= before + 2.0).then_some(()));
    for monitor in &monitors {
        eventually("the node has seen two rounds", SOON, || (carriers(monitor).len() >= 3).then_some(()));
        let seen = carriers(monitor);
        assert_eq!(seen[..3], ["EVALSHA", "EVAL", "EVALSHA"], "the script whole, at once, and once");
        assert!(monitor.requests().iter().all(|line| line.name != "SCRIPT"), "SCRIPT is never sent");
    }
    assert_eq!((extends(&leader, "no-quorum"), extends(&leader, "lost")), (0.0, 0.0));
    assert_eq!(leader.metric("node_errors_total", &[]), 0.0);
    assert!(leader.leads());
    assert_eq!(leader.logged("elected").len(), 1);
    assert!(leader.logged("node has no vote").is_empty());
}

#[test]
fn c43_flushed_scripts_and_restarts_lose_no_leadership() {
    let mut nodes = Servers::start(3);
    let leader = replica("c43-restarts", "a", &nodes);
    leader.wait_elected(1, SOON);
    let standby = replica("c43-restarts", "b", &nodes);
    eventually("b sees a lead", SOON, || (standby.leader_json()["holder"] == "a").then_some(()));
    for node in nodes.iter() {
        node.cli(&["SCRIPT", "FLUSH"]);
    }
    for index in 0..nodes.len() {
        nodes[index].restart(Data::Lost);
        stays_true("the leader leads on", TTL * 2, || leader.leads());
    }
    let owner = nodes.values("c43-restarts")[0].clone().expect("the first node holds the lock");
    assert_eq!(nodes.holding("c43-restarts", &owner), 3);
    let report = Judge::check_replicas([&leader, &standby]);
    figure("C43", &format!("three restarts: {report}"));
    assert_eq!(report.terms.len(), 1, "a leadership was lost: {:#?}", report.terms);
    assert!(leader.logged("stepping down").is_empty());
}

/// Two of three nodes take no more data.
fn fill(nodes: &Servers) {
    for node in &nodes[..2] {
        assert_eq!(node.cli(&["CONFIG", "SET", "maxmemory", "1"]).text(), "OK");
        assert!(node.cli(&["SET", "anything", "x"]).text().starts_with("OOM"), "there is memory left");
    }
}

#[test]
fn c45_the_leader_goes_on_where_memory_is_short() {
    let nodes = Servers::start(3);
    let leader = replica("c45", "a", &nodes);
    leader.wait_elected(1, SOON);
    fill(&nodes);
    let before = extends(&leader, "ok");
    stays_true("the leader leads on", TTL * 3, || leader.leads());
    let rounds = extends(&leader, "ok") - before;
    figure("C45", &format!("{rounds} extends in {} s with two nodes out of memory", (TTL * 3).as_secs()));
    // One every 500 ms, and a busy machine is late once or twice.
    assert!(rounds >= 10.0, "{rounds} extends only");
    assert_eq!((extends(&leader, "no-quorum"), extends(&leader, "lost")), (0.0, 0.0));
    assert_eq!(leader.metric("node_errors_total", &[("kind", "oom")]), 0.0);
    leader.term();
    assert_eq!(leader.wait_exit(SOON), 0);
    assert_eq!(nodes.values("c45"), [None, None, None], "the release left a key");
}

#[test]
fn c45_a_new_acquire_is_refused_with_the_reason() {
    let nodes = Servers::start(3);
    let leader = replica("c45-new", "a", &nodes);
    leader.wait_elected(1, SOON);
    let standby = replica("c45-new", "b", &nodes);
    eventually("b sees a lead", SOON, || (standby.leader_json()["holder"] == "a").then_some(()));
    fill(&nodes);
    leader.term();
    assert_eq!(leader.wait_exit(SOON), 0);
    let errors = |node: &str| standby.metric("node_errors_total", &[("node", node), ("kind", "oom")]);
    let attempts = || standby.metric("acquire_attempts_total", &[]);
    eventually("it has tried", SOON, || (attempts() >= 3.0).then_some(()));
    for address in &nodes.addresses()[..2] {
        assert!(errors(address) >= 1.0, "{address} is out of memory, and that is not counted");
        let is_told = |line: &crate::support::LogLine| line.text("node") == address && line.text("kind") == "oom";
        assert!(standby.logged("node has no vote").iter().any(is_told), "{address}: no reason in the log");
    }
    eventually("the reason is told to who asks for readiness", SOON, || {
        let (status, body) = standby.readyz();
        assert_eq!(status, 503);
        nodes.addresses()[..2].iter().all(|address| body.contains(&format!("{address}: oom"))).then_some(())
    });
    assert!(standby.logged("elected").is_empty());
    for node in &nodes[..2] {
        node.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    }
    standby.wait_elected(1, SOON);
}
