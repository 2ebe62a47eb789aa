//! Bugs that a driver can have, planted in a copy of the product and shown with its real processes and real servers: the
//! judge and the meter notice them. `tests/sim/mutants` builds that copy; docs/protocol.md has the list.

use std::path::PathBuf;
use std::time::Duration;

use crate::support::{
    Flavour, Replica, ReplicaOptions, Servers, TempDir, boot_ms, eventually, figure, let_time_pass, setting,
};

const SOON: Duration = Duration::from_secs(20);
/// What is planted shows only if the timing is right, so it is tried more than once.
const TRIES: usize = 12;

/// `REDLEADER_PLANTED_BIN`, which `make test` builds and sets.
fn planted_binary() -> PathBuf {
    setting("REDLEADER_PLANTED_BIN").map(PathBuf::from).expect("REDLEADER_PLANTED_BIN: run the tests by make test")
}

fn planted(bug: &str, identity: &str, nodes: &[String], args: &[&str]) -> ReplicaOptions {
    ReplicaOptions::new("planted", identity, nodes)
        .args(args.iter().copied())
        .binary(planted_binary())
        .env("REDLEADER_PLANT", bug)
}

/// The same scene with the bug and without: found with it within a few tries, never without it.
fn show(bug: &str, what: &str, scene: impl Fn(&str) -> bool) {
    let found = (1..=TRIES).find(|_| scene(bug));
    let wrongly = (0..3).filter(|_| scene("none")).count();
    figure(
        "planted in the driver",
        &format!("{what}: found at try {found:?}, and {wrongly} times of 3 without the bug"),
    );
    assert!(found.is_some(), "{what}: not found in {TRIES} tries");
    assert_eq!(wrongly, 0, "{what}: found where it was not planted");
}

#[test]
fn an_error_that_is_taken_for_a_vote_makes_two_leaders() {
    show("UnknownIsVote", "unknown reply as a vote", |bug| {
        let servers = Servers::of(Flavour::Redis70, 3);
        let args = ["--ttl", "2s"];
        // The nodes get to know the lock, and both replicas the nodes.
        let first = planted("none", "first", &servers.urls(), &args).start();
        first.wait_elected(1, SOON);
        let others: Vec<Replica> = ["a", "b"].map(|who| planted(bug, who, &servers.urls(), &args).start()).into();
        for other in &others {
            eventually("it knows who leads", SOON, || (other.leader_json()["holder"] == "first").then_some(()));
        }
        // A majority refuses every grant from here on.
        for server in servers.iter().skip(1) {
            server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        }
        first.kill9();
        let elected = || others.iter().any(|other| !other.logged("elected").is_empty());
        let began = boot_ms();
        while boot_ms() < began + 5_000 && !elected() {
            let_time_pass("the lock is free, and one node of three grants it", Duration::from_millis(50));
        }
        elected()
    });
}

#[test]
fn a_clock_that_stands_still_while_the_machine_sleeps_makes_two_leaders() {
    show("MonotonicClock", "monotonic instead of boot clock, over a suspend", |bug| {
        let servers = Servers::of(Flavour::Redis70, 3);
        let directory = TempDir::new();
        let slept = directory.join("slept");
        let args = ["--ttl", "2s"];
        let sleeper = planted(bug, "sleeper", &servers.urls(), &args).env("REDLEADER_SLEPT", slept.to_str().unwrap());
        let sleeper = sleeper.start();
        sleeper.wait_elected(1, SOON);
        let other = planted("none", "other", &servers.urls(), &args).start();
        eventually("it is up", SOON, || (other.readyz().0 != 0).then_some(()));
        let began = boot_ms();
        sleeper.stop();
        other.wait_elected(1, SOON);
        std::fs::write(&slept, ((boot_ms() - began) * 1000).to_string()).unwrap();
        let mut question = sleeper.connect().unwrap();
        question.send(b"GET /readyz HTTP/1.1\r\nHost: replica\r\n\r\n").unwrap();
        sleeper.cont();
        question.read_response(false).unwrap().status == 200 && other.leads()
    });
}
