//! What waiting costs the nodes (E9).

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::{
    Monitor, MonitorLine, Peer, Replica, ReplicaOptions, Servers, eventually, figure, let_time_pass, scale,
};

const SOON: Duration = Duration::from_secs(30);
const MOST_PER_SECOND_AND_NODE: f64 = 0.3;

#[test]
fn e9_a_standby_at_rest_asks_less_than_0_3_times_a_second_and_node_beside_go_redsync() {
    let (lock, other, standbys) = ("e9", "e9-go", 2);
    let servers = Servers::start(3);
    let candidate = |identity: &str| ReplicaOptions::new(lock, identity, &servers.urls()).start();
    let holder = Peer::start("hold", other, &servers.addresses(), &["-extend", "2s"]);
    let held = holder.wait_for("locked", 1, SOON)["value"].as_str().unwrap().to_owned();
    let waiter = Peer::start("wait", other, &servers.addresses(), &[]);
    waiter.wait_for("waiting", 1, SOON);
    let leader = candidate("the-leader");
    leader.wait_elected(1, SOON);
    let waiting: Vec<Replica> = (0..standbys).map(|index| candidate(&format!("standby-{index}"))).collect();
    for replica in &waiting {
        eventually("it knows the leader", SOON, || (replica.leader_json()["holder"] == "the-leader").then_some(()));
    }
    // Two surveys come with a candidate's first two looks, the second after ttl/2 + 20 % at the latest.
    let_time_pass("the standbys come to rest", Duration::from_secs(5));
    let seconds = scale().pick(30, 300);
    let monitors: Vec<Monitor> = servers.iter().map(|server| server.monitor()).collect();
    let_time_pass("requests are counted", Duration::from_secs(seconds));
    let lines: Vec<Vec<MonitorLine>> = monitors.iter().map(Monitor::requests).collect();
    assert!(leader.leads() && leader.logged("elected").len() == 1, "it was no rest");
    assert!(waiter.events_of("locked").is_empty(), "go-redsync did not wait");

    // A leader asks in its own name, so its connections are known; every other one that is not go-redsync's is a
    // standby's.
    let names = |line: &MonitorLine, word: &str| line.args.iter().any(|argument| argument.contains(word));
    let (mut ours, mut theirs, mut extends) = (0, 0, 0);
    for lines in &lines {
        let of_go: BTreeSet<&str> =
            lines.iter().filter(|line| names(line, other)).map(|line| line.source.as_str()).collect();
        let of_leader: BTreeSet<&str> =
            lines.iter().filter(|line| names(line, "the-leader:")).map(|line| line.source.as_str()).collect();
        extends += lines.iter().filter(|line| names(line, "the-leader:")).count();
        ours += lines
            .iter()
            .filter(|line| !of_go.contains(line.source.as_str()) && !of_leader.contains(line.source.as_str()))
            .count();
        theirs += lines.iter().filter(|line| names(line, other) && !names(line, &held)).count();
    }
    let per = |count: usize, contenders: usize| count as f64 / (seconds as f64 * (servers.len() * contenders) as f64);
    let (ours, theirs) = (per(ours, standbys), per(theirs, 1));
    figure(
        "E9 a standby's requests per second and node, ttl 8 s",
        &format!(
            "{ours:.3} over {seconds} s ({standbys} standbys); go-redsync's waiting Lock {theirs:.2}; ratio {:.3}",
            ours / theirs
        ),
    );
    assert!(extends > 0 && ours > 0.0 && theirs > 0.0, "the count is blind: {extends}, {ours}, {theirs}");
    assert!(ours < MOST_PER_SECOND_AND_NODE, "{ours} requests per second and node");
    holder.finish();
}
