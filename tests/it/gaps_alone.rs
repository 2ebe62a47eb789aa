//! How long nobody leads, beside the formulae of docs/failure-modes.md.

use std::time::Duration;

use crate::support::{
    Mode, Proxy, Replica, ReplicaOptions, Server, Servers, boot_ms, eventually, figure, let_time_pass, stays_true,
};

const SOON: Duration = Duration::from_secs(10);
const LOCK: &str = "job";
/// With the defaults that follow from it: grace 125 ms, node timeout 50 ms, renewed every 250 ms, a margin of 10 %.
const TTL: u64 = 1000;
/// Two rounds, and the jitter of one that waits.
const FIND: u64 = 2 * 50 + 1;
/// What the machine may add by scheduling two processes and three servers late.
const SLACK: u64 = 150;

/// A leader whose paths to the nodes can be cut, and a standby that knows of it.
struct Pair {
    paths: Vec<Proxy>,
    leader: Replica,
    standby: Replica,
}

/// Ends the leader's leadership in one way at several moments of its renewals; `fault` says from when on nobody leads.
/// `user` is whom the standby is to the nodes.
fn measure(what: &str, formula: &str, bound: u64, user: &str, fault: impl Fn(&Pair) -> u64) {
    let servers = Servers::start(3);
    for server in servers.iter() {
        server.cli(&["ACL", "SETUSER", "deaf", "on", "nopass", "~*", "resetchannels", "+@all"]);
    }
    let urls: Vec<String> = servers.urls().iter().map(|url| url.replace("://", &format!("://{user}"))).collect();
    let mut gaps = Vec::new();
    for run in 0..3 {
        let paths: Vec<Proxy> = servers.addresses().iter().map(|address| Proxy::start(address)).collect();
        let through: Vec<String> = paths.iter().map(Proxy::url).collect();
        let start = |identity: &str, urls: &[String]| {
            ReplicaOptions::new(LOCK, identity, urls).args(["--ttl", &format!("{TTL}ms")]).start()
        };
        let leader = start("leader", &through);
        leader.wait_elected(1, SOON);
        let standby = start("standby", &urls);
        eventually("the standby knows who leads", SOON, || (standby.leader_json()["holder"] == "leader").then_some(()));
        let_time_pass("another moment between two renewals", Duration::from_millis(run * 89));
        assert!(leader.leads());
        let pair = Pair { paths, leader, standby };
        let nobody_from = fault(&pair);
        let won = pair.standby.wait_elected(1, SOON).number("boot_ms").unwrap();
        gaps.push(won.saturating_sub(nobody_from));
        // The next pair begins with a free lock.
        pair.standby.term();
        assert_eq!(pair.standby.wait_exit(SOON), 0);
        pair.leader.kill9();
    }
    figure(&format!("gap, {what}"), &format!("{gaps:?} ms; {formula} = {bound} ms, ttl {TTL} ms"));
    for gap in gaps {
        assert!(gap <= bound + SLACK, "nobody led for {gap} ms, and {formula} is {bound} ms");
    }
}

#[test]
fn after_a_crash_nobody_leads_for_one_ttl_at_most() {
    measure("killed", "ttl + find", TTL + FIND, "", |pair| pair.leader.kill9());
}

#[test]
fn after_a_stop_nobody_leads_for_one_ttl_at_most() {
    measure("stopped", "ttl + find", TTL + FIND, "", |pair| {
        pair.leader.stop();
        boot_ms()
    });
}

#[test]
fn a_leader_that_is_cut_off_leaves_little_more_than_grace_and_margin() {
    let bound = 125 + TTL / 10 + 50 + FIND;
    measure("cut off", "grace + margin x ttl + node timeout + find", bound, "", |pair| {
        for path in &pair.paths {
            path.set(Mode::Blackhole);
        }
        let line = pair.leader.wait_for_message("stepping down", 1, SOON);
        assert_eq!(line.text("reason"), "renew-timeout");
        assert!(!pair.leader.leads());
        line.number("boot_ms").unwrap()
    });
}

#[test]
fn after_a_release_that_nobody_hears_the_next_look_finds_it() {
    let bound = TTL * 6 / 10 + FIND;
    measure("released, and the channel not permitted", "0.6 x ttl + find", bound, "deaf@", |pair| {
        pair.leader.term();
        pair.leader.wait_for_message("stepped down", 1, SOON).number("boot_ms").unwrap()
    });
}

#[test]
fn after_a_release_that_is_heard_somebody_leads_at_once() {
    measure("released", "find", FIND, "", |pair| {
        pair.leader.term();
        pair.leader.wait_for_message("stepped down", 1, SOON).number("boot_ms").unwrap()
    });
}

/// docs/tuning.md: for how long all nodes may be silent at once.
#[test]
fn a_silence_of_all_nodes_within_the_formula_costs_no_leadership() {
    // valid - grace - renew - 2 x node timeout, less what new connections take.
    let silence = Duration::from_millis(TTL * 9 / 10 - 125 - 250 - 2 * 50 - 25);
    let servers = Servers::start(3);
    let leader = ReplicaOptions::new(LOCK, "leader", &servers.urls()).args(["--ttl", &format!("{TTL}ms")]).start();
    let token = leader.wait_elected(1, SOON).number("token");
    for run in 0..4 {
        let_time_pass("another moment between two renewals", Duration::from_millis(run * 67));
        servers.iter().for_each(Server::stop);
        stays_true("it leads while the nodes are silent", silence, || leader.leads());
        servers.iter().for_each(Server::cont);
        stays_true("and afterwards", Duration::from_millis(TTL), || leader.leads());
    }
    assert_eq!(leader.leader_json()["token"].as_u64(), token);
    let failed = leader.metric("extend_attempts_total", &[("outcome", "no-quorum")]);
    assert!(failed > 0.0, "the silences were noticed");
    figure(
        "silence",
        &format!(
            "4 of {} ms each at a ttl of {TTL} ms cost no leadership, {failed} rounds failed",
            silence.as_millis()
        ),
    );
}
