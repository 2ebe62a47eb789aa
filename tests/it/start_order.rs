//! Nodes that come long after their contenders, as behind a mesh proxy that starts late, and that go at once again.

use std::time::Duration;

use crate::support::{
    Data, LogLine, Replica, ReplicaOptions, Server, Servers, boot_ms, eventually, figure, let_time_pass, stays_true,
};

const LONG: Duration = Duration::from_secs(30);
const NODE_TIMEOUT: Duration = Duration::from_millis(200);
/// A look each, ttl/2 and at most 20 % more, and then the quarantine of nodes that are new, ttl x 1.1.
const FIRST_LEADER: Duration = Duration::from_millis(2400 + 4400);
/// What an election may take to end when it is asked to: ttl, two node timeouts, and 2 s for what is told last.
const END: Duration = Duration::from_millis(4000 + 2 * 200 + 2000);
/// How long nothing is there.
const ALONE: Duration = Duration::from_secs(10);

fn replicas(servers: &Servers) -> Vec<Replica> {
    let node_timeout = format!("{}ms", NODE_TIMEOUT.as_millis());
    let start = |identity: &&str| {
        let options = ReplicaOptions::new("start-order", identity, &servers.urls());
        options.args(["--ttl", "4s", "--node-timeout", &node_timeout]).start()
    };
    ["a", "b", "c"].iter().map(start).collect()
}

fn is_well(replica: &Replica) -> bool {
    replica.is_running() && replica.get("/livez").is_ok_and(|response| response.status == 200)
}

/// Nobody ends, nobody leads, and everyone says that they are alive.
#[track_caller]
fn wait_without_nodes(replicas: &[Replica]) {
    let up = |replica: &Replica| replica.get("/livez").is_ok().then_some(());
    replicas.iter().for_each(|replica| eventually("it listens", LONG, || up(replica)));
    stays_true("all are alive and nobody leads", ALONE, || {
        replicas.iter().all(|replica| is_well(replica) && !replica.leads())
    });
}

/// SIGTERM, and how long the end took.
#[track_caller]
fn end(replica: &Replica) -> u64 {
    let asked = boot_ms();
    replica.term();
    assert_eq!(replica.wait_exit(END), 0);
    let (_, ended) = replica.process().ended().expect("it has ended");
    ended - asked
}

/// Opens the ports of so many; the first to lead, and how long after that.
#[track_caller]
fn open(servers: &mut Servers, count: usize, replicas: &[Replica]) -> (usize, u64) {
    servers.iter_mut().take(count).for_each(|server| server.start_again(Data::Lost));
    let opened = boot_ms();
    let elected = |replica: &Replica| replica.logged("elected").into_iter().next();
    let (leader, line): (usize, LogLine) = eventually("one leads", LONG, || {
        replicas.iter().enumerate().find_map(|(at, replica)| elected(replica).map(|line| (at, line)))
    });
    (leader, line.read_boot_ms.saturating_sub(opened))
}

#[track_caller]
fn assert_in_time(what: &str, took: u64, at_most: Duration) {
    figure(what, &format!("{took} ms, at most {} ms", at_most.as_millis()));
    assert!(u128::from(took) <= at_most.as_millis(), "{what}: {took} ms");
}

#[test]
fn c101_what_starts_long_before_its_nodes_leads_soon_after_them() {
    let mut servers = Servers::start(3);
    servers.iter_mut().for_each(Server::kill);
    let mut replicas = replicas(&servers);
    wait_without_nodes(&replicas);
    let leaving = replicas.pop().expect("three of them");
    assert_in_time("C101 SIGTERM before any node was there", end(&leaving), END);
    // The third stays away, and is not waited for.
    let (leader, took) = open(&mut servers, 2, &replicas);
    assert_in_time("C101 first leader after nodes that came late", took, FIRST_LEADER);
    servers.iter_mut().take(2).for_each(|server| server.stop());
    assert!(replicas[leader].leads(), "its lease is not over yet");
    assert_in_time("C101 SIGTERM of a leader whose nodes hang", end(&replicas[leader]), END);
}

#[test]
fn c101_nodes_that_go_a_second_after_the_start_are_waited_for() {
    let mut servers = Servers::start(3);
    let mut replicas = replicas(&servers);
    let connected = |replica: &Replica| replica.logged("node in quarantine").len() >= 3;
    eventually("all have met all nodes", LONG, || replicas.iter().all(connected).then_some(()));
    let since = boot_ms() - replicas[0].started_at();
    let left = Duration::from_secs(1).saturating_sub(Duration::from_millis(since));
    let_time_pass("the nodes go a second after the start", left);
    servers.iter_mut().for_each(Server::kill);
    wait_without_nodes(&replicas);
    let leaving = replicas.pop().expect("three of them");
    assert_in_time("C101 SIGTERM of a standby whose nodes are gone", end(&leaving), END);
    let (leader, took) = open(&mut servers, 3, &replicas);
    assert_in_time("C101 first leader after nodes that went and came", took, FIRST_LEADER);
    servers.iter_mut().for_each(Server::kill);
    assert!(replicas[leader].leads(), "its lease is not over yet");
    assert_in_time("C101 SIGTERM of a leader whose nodes are gone", end(&replicas[leader]), END);
}
