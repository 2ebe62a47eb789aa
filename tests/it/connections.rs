//! C53: nodes that are out of connections, and how many ours hold.

use std::time::Duration;

use crate::support::{
    Replica, ReplicaOptions, Server, Servers, eventually, figure, let_time_pass, resp::Client, scale,
};

const SOON: Duration = Duration::from_secs(30);
const LOCK: &str = "c53";
const CANDIDATES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Connections over TCP that a server has: all of ours, none of the harness.
fn clients(server: &mut Client) -> usize {
    let list = server.call(&["CLIENT", "LIST"]).expect("it runs").text();
    list.lines().filter(|line| line.contains(" laddr=127.0.0.1:")).count()
}

fn open_files(replica: &Replica) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", replica.pid())).expect("it runs").count()
}

/// Connections that there ever were.
fn ever(server: &Server) -> u64 {
    let info = server.cli(&["INFO", "stats"]).text();
    let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:")).expect("INFO has it");
    line.trim().parse().expect("a number")
}

/// Everyone is up, and knows the leader; gives the connections of each node.
fn rest(replicas: &[Replica], harness: &mut [Client]) -> Vec<usize> {
    eventually("everyone is connected and knows one leader", SOON, || {
        let leader = replicas.iter().find(|replica| replica.leads())?.identity();
        let knows = |replica: &Replica| replica.leader_json()["holder"] == leader;
        let is_up = |replica: &Replica| replica.metric("node_up", &[]) == 3.0;
        let counts: Vec<usize> = harness.iter_mut().map(clients).collect();
        let listen = counts.iter().all(|count| *count == 2 * replicas.len());
        (listen && replicas.iter().all(|replica| knows(replica) && is_up(replica))).then_some(counts)
    })
}

fn start(servers: &Servers) -> Vec<Replica> {
    let args = ["--ttl", "2s", "--connect-timeout", "500ms"];
    CANDIDATES.iter().map(|who| ReplicaOptions::new(LOCK, who, &servers.urls()).args(args).start()).collect()
}

#[test]
fn c53_a_thousand_reconnects_leave_two_connections_for_each_replica_and_node() {
    let reconnects = scale().pick(1000, 10_000);
    let servers = Servers::start(3);
    let mut harness: Vec<Client> = servers.iter().map(|server| server.client().expect("it runs")).collect();
    let replicas = start(&servers);
    let counts = rest(&replicas, &mut harness);
    assert_eq!(counts, [10, 10, 10], "two connections of five candidates");
    let files: Vec<usize> = replicas.iter().map(open_files).collect();
    let before: u64 = servers.iter().map(ever).sum();
    let made = || servers.iter().map(ever).sum::<u64>() - before;
    let mut most = 0;
    while made() < reconnects {
        for client in &mut harness {
            for kind in ["normal", "pubsub"] {
                client.call(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]).expect("it runs");
            }
        }
        let_time_pass("some of them are back before the next are ended", Duration::from_millis(150));
        most = most.max(harness.iter_mut().map(clients).max().expect("three nodes"));
    }
    let after = rest(&replicas, &mut harness);
    let late: Vec<usize> = replicas.iter().map(open_files).collect();
    figure(
        "C53",
        &format!(
            "{} reconnects; connections of five candidates to a node: {counts:?} before, {most} at most, {after:?} after; \
             files {files:?}, {late:?}",
            made()
        ),
    );
    assert_eq!(after, counts);
    // Three for one node timeout.
    assert!(most <= 3 * CANDIDATES.len(), "{most} connections to one node");
    for ((replica, before), after) in replicas.iter().zip(&files).zip(&late) {
        assert!(*after <= before + 4, "{}: {before} open files before, {after} after", replica.identity());
    }
}

#[test]
fn c53_a_node_without_connections_left_is_a_failed_vote_with_its_reason() {
    let servers = Servers::start(3);
    let mut harness: Vec<Client> = servers.iter().map(|server| server.client().expect("it runs")).collect();
    let replicas = start(&servers);
    rest(&replicas, &mut harness);
    let leader = replicas.iter().find(|replica| replica.leads()).expect("one leads").identity().to_owned();
    // Strangers hold all the connections that two nodes allow, and ours are cut.
    let mut strangers: Vec<Client> = Vec::new();
    for (server, client) in servers[..2].iter().zip(&mut harness) {
        let mut here: Vec<Client> =
            (0..8).map(|_| Client::tcp(&server.address(), SOON).expect("there is room")).collect();
        client.call(&["CONFIG", "SET", "maxclients", "9"]).expect("it runs");
        let theirs: Vec<String> =
            here.iter_mut().map(|stranger| stranger.call(&["CLIENT", "ID"]).expect("it runs").text()).collect();
        strangers.append(&mut here);
        for kind in ["normal", "pubsub"] {
            let list = client.call(&["CLIENT", "LIST", "TYPE", kind]).expect("it runs").text();
            let id = |line: &str| line.split(' ').next().and_then(|word| word.strip_prefix("id=")).map(str::to_owned);
            let all = list.lines().filter(|line| line.contains(" laddr=127.0.0.1:")).filter_map(id);
            for ours in all.filter(|id| !theirs.contains(id)) {
                client.call(&["CLIENT", "KILL", "ID", &ours]).expect("it runs");
            }
        }
    }
    for replica in &replicas {
        for server in &servers[..2] {
            let node = server.address();
            let line = replica.wait_for_log("that the node is full", SOON, |line| {
                line.message() == "node has no vote" && line.text("node") == node && line.text("kind") == "maxclients"
            });
            assert!(line.text("reason").contains("raise maxclients"), "{:?}", line.json);
        }
    }
    let lost = replicas.iter().find(|replica| replica.identity() == leader).expect("it is one of them");
    assert_eq!(lost.wait_for_message("stepped down", 1, SOON).text("reason"), "renew-timeout");
    assert!(!replicas.iter().any(Replica::leads), "one node of three is no quorum");
    let alive = |replica: &Replica| replica.get("/livez").is_ok_and(|response| response.status == 200);
    assert!(replicas.iter().all(alive));
    drop(strangers);
    eventually("somebody leads again", SOON, || replicas.iter().any(Replica::leads).then_some(()));
    for client in &mut harness {
        client.call(&["CONFIG", "SET", "maxclients", "1000"]).expect("it runs");
    }
    rest(&replicas, &mut harness);
}
