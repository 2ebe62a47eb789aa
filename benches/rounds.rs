//! Rounds of the real binary beside go-redsync's, on the same nodes in the same run; and the memory of a replica.
//!
//! `make bench` runs it on the release build; `REDLEADER_BIN` names another. What the election takes in other ways
//! (hand-over, crash, a hundred candidates, the cost of waiting) is measured by the tests whose module ends in `_alone`.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench may panic and print, and nothing here is anyone's API"
)]

#[path = "../tests/it/support/mod.rs"]
mod support;

use std::time::Duration;

use serde_json::Value as Json;
use support::{
    Flavour, HttpConnection, Peer, Port, Replica, ReplicaOptions, Servers, eventually, figure, percentile, scale,
};

const SOON: Duration = Duration::from_secs(30);

fn main() {
    // `cargo bench` passes arguments for the standard harness, which this is not.
    for nodes in [3, 5] {
        let servers = Servers::of(Flavour::Redis70, nodes);
        rounds(&servers, scale().pick(300, 5000));
    }
    memory(&Servers::of(Flavour::Redis70, 3));
}

/// Acquires and extends: ours by the log's `elapsed_ms`, go-redsync's by its own clock.
fn rounds(servers: &Servers, rounds: usize) {
    let control = Port::claim();
    let options = ReplicaOptions::new("bench", "bench", &servers.urls());
    // Extended far more often than anybody would, for many samples in a short time.
    let timing = ["--ttl", "2s", "--renew-every", "10ms", "--node-timeout", "10ms", "--log-level", "debug"];
    let replica = options.args(timing).args(["--control", &control.address()]).start();
    let mut token = leads_after(&replica, 0);
    for _ in 0..rounds {
        let mut connection = HttpConnection::connect(&control.address(), SOON).unwrap();
        let answer = connection.request("POST", "/resign?for=0s", "Connection: close\r\n").unwrap();
        assert_eq!(answer.status, 202, "{}", answer.body);
        token = leads_after(&replica, token);
    }
    eventually("there are as many extends", SOON, || (elapsed(&replica, "extend", "ok").len() >= rounds).then_some(()));
    // An acquire follows the look of a moment before, an extend a rest: a rested processor is slower to wake, so that
    // go-redsync is given the same rest before its extends.
    for (op, outcome, rest) in [("acquire", "won", "0s"), ("extend", "ok", "10ms")] {
        let count = rounds.to_string();
        let go = Peer::start("bench", "bench-go", &servers.addresses(), &["-rounds", &count, "-pause", rest]);
        let go = go.wait_for("bench", 1, Duration::from_secs(300));
        let ours = elapsed(&replica, op, outcome);
        let theirs = |p: u32| go[format!("{op}_p{p}_us")].as_f64().unwrap() / 1000.0;
        let p = |p: u32| percentile(&ours, p).unwrap();
        figure(
            &format!("{op}, {} nodes", servers.len()),
            &format!(
                "redleader p50 {:.3} ms, p99 {:.3} ms ({} rounds); go-redsync p50 {:.3} ms, p99 {:.3} ms ({rounds} \
                 rounds); ratio of p50 {:.2}, of p99 {:.2}",
                p(50),
                p(99),
                ours.len(),
                theirs(50),
                theirs(99),
                p(50) / theirs(50),
                p(99) / theirs(99),
            ),
        );
    }
}

/// Waits until it leads with a larger token than this; that token.
fn leads_after(replica: &Replica, token: u64) -> u64 {
    let mut connection = None;
    eventually("it leads again", SOON, || {
        let mut open = connection.take().or_else(|| replica.connect().ok())?;
        let answer: Json = serde_json::from_str(&open.get("/leader").ok()?.body).ok()?;
        connection = Some(open);
        answer["token"].as_u64().filter(|found| answer["leading"] == true && *found > token)
    })
}

/// How long each round of this kind took, in milliseconds.
fn elapsed(replica: &Replica, op: &str, outcome: &str) -> Vec<f64> {
    let is_it = |line: &support::LogLine| line.text("op") == op && line.text("reason") == outcome;
    replica.log().iter().filter(|line| is_it(line)).filter_map(|line| line.field("elapsed_ms").as_f64()).collect()
}

/// A leader and a standby at rest, with the default timing.
fn memory(servers: &Servers) {
    let leader = ReplicaOptions::new("memory", "leader", &servers.urls()).start();
    leader.wait_elected(1, SOON);
    let standby = ReplicaOptions::new("memory", "standby", &servers.urls()).start();
    eventually("the standby knows the leader", SOON, || (standby.leader_json()["holder"] == "leader").then_some(()));
    for replica in [&leader, &standby] {
        let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", replica.pid())).unwrap();
        let kib = |name: &str| {
            let line = rollup.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap()
        };
        let (resident, anonymous) = (kib("Rss:"), kib("Anonymous:"));
        figure(
            &format!("memory of a {}", replica.identity()),
            &format!("{resident} KiB resident, {anonymous} KiB of it anonymous"),
        );
    }
}
