//! C3 and C7: a leadership that was lost is told, and is never told as one with the next.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value as Json;

use crate::support::{
    HttpConnection, Judge, Replica, ReplicaOptions, Servers, boot_ms, eventually, figure, let_time_pass,
};

const SOON: Duration = Duration::from_secs(10);

/// Whether it leads, and with which token.
type Told = (bool, Option<u64>);

/// What `/leader/stream` tells, in order.
struct Stream(Arc<Mutex<Vec<Told>>>);

impl Stream {
    fn open(replica: &Replica) -> Self {
        let mut connection = HttpConnection::connect(&replica.address(), Duration::from_secs(30)).expect("it listens");
        connection.send(b"GET /leader/stream HTTP/1.1\r\nHost: test\r\n\r\n").expect("an open connection");
        let told = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&told);
        std::thread::spawn(move || {
            while let Ok(line) = connection.line() {
                let Some(data) = line.strip_prefix("data: ") else { continue };
                let report: Json = serde_json::from_str(data).expect("an event is JSON");
                let told = (report["leading"] == true, report["token"].as_u64());
                sink.lock().unwrap_or_else(PoisonError::into_inner).push(told);
            }
        });
        Self(told)
    }

    fn told(&self) -> Vec<Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[test]
fn c3_a_loss_during_a_pause_is_told_before_leading_again() {
    let nodes = Servers::start(3);
    // Patient with a loaded machine: a release that times out leaves its key until the ttl.
    let args = ["--ttl", "1s", "--node-timeout", "200ms"];
    let options = |who: &str| ReplicaOptions::new("c3", who, &nodes.urls()).args(args);
    let a = options("a").start();
    let first = a.wait_elected(1, SOON).number("token");
    let stream = Stream::open(&a);
    eventually("the stream tells of the first leadership", SOON, || {
        stream.told().contains(&(true, first)).then_some(())
    });
    let b = options("b").start();
    eventually("b sees a lead", SOON, || (b.leader_json()["holder"] == "a").then_some(()));

    a.stop();
    let stopped = boot_ms();
    b.wait_elected(1, SOON);
    let_time_pass("the other leads for half a second", Duration::from_millis(500));
    b.term();
    assert_eq!(b.wait_exit(SOON), 0);
    assert_eq!(nodes.values("c3"), [None, None, None], "the key is free when the paused one goes on");
    let pause = Duration::from_millis(3000).saturating_sub(Duration::from_millis(boot_ms() - stopped));
    let_time_pass("a pause of ttl + 2 s", pause);
    a.cont();

    let second = eventually("it leads again", SOON, || {
        let report = a.leader_json();
        let counted = a.metric("stepdowns_total", &[("reason", "expired")]);
        if report["leading"] != true {
            return None;
        }
        assert_ne!(report["token"].as_u64(), first, "the old leadership goes on");
        assert_eq!(counted, 1.0, "leads again before the loss is counted");
        Some(report["token"].as_u64())
    });
    assert!(second > first);
    let words: Vec<(String, Option<u64>)> = a
        .log()
        .iter()
        .filter(|line| ["elected", "stepping down", "stepped down"].contains(&line.message()))
        .map(|line| (line.message().to_owned(), line.number("token")))
        .collect();
    let expected = [("elected", first), ("stepped down", first), ("elected", second)];
    assert_eq!(words, expected.map(|(word, token)| (word.to_owned(), token)));
    let loss = &a.logged("stepped down")[0];
    assert_eq!(loss.text("reason"), "expired");
    let end = loss.number("boot_ms").expect("a loss has its time");
    assert!(end <= stopped + 900, "belief ended {} ms after the pause began", end - stopped);

    eventually("the stream tells of the second leadership", SOON, || {
        stream.told().contains(&(true, second)).then_some(())
    });
    let told = stream.told();
    let old = told.iter().rposition(|event| *event == (true, first)).expect("told above");
    let new = told.iter().position(|event| *event == (true, second)).expect("told above");
    assert!(old < new && told[old..new].iter().any(|(leading, _)| !leading), "told as one: {told:?}");
    Judge::check_replicas([&a, &b]).assert_clean("C3");
}

/// A leader whose key is overwritten with `foreign` on two of three nodes.
fn overtaken(lock: &str, foreign: &str) -> (Servers, Replica, u64) {
    let nodes = Servers::start(3);
    let leader = ReplicaOptions::new(lock, "a", &nodes.urls()).args(["--ttl", "4s"]).start();
    leader.wait_elected(1, SOON);
    let extends = || leader.metric("extend_attempts_total", &[("outcome", "ok")]);
    eventually("it extends", SOON, || (extends() >= 1.0).then_some(()));
    let at = boot_ms();
    for node in &nodes[..2] {
        assert_eq!(node.cli(&["SET", lock, foreign, "PX", "60000"]).text(), "OK");
    }
    (nodes, leader, at)
}

#[test]
fn c7_a_majority_in_foreign_hands_ends_leadership_at_once() {
    let (nodes, leader, at) = overtaken("c7", "aW50cnVkZXI=");
    let lost = leader.wait_for_message("stepped down", 1, SOON);
    let took = lost.number("boot_ms").expect("a loss has its time") - at;
    figure("C7", &format!("leadership ended {took} ms after the key was taken; ttl 4 s, renewed every second"));
    assert_eq!(lost.text("reason"), "lost");
    // The next extend is at most 1 s away, and the deadline at least 2.6 s, the grace 0.5 s before it.
    assert!(took < 2000, "ended at its deadline, after {took} ms");
    assert!(leader.logged("stepping down").is_empty(), "there was nothing left to step down from");
    assert_eq!(leader.readyz().0, 503);
    assert_eq!(leader.metric("stepdowns_total", &[("reason", "lost")]), 1.0);
    assert_eq!(leader.metric("stepdowns_total", &[]), 1.0, "no other reason");
    assert_eq!(leader.metric("extend_attempts_total", &[("outcome", "lost")]), 1.0, "the first that failed");
    assert_eq!(leader.metric("extend_attempts_total", &[("outcome", "no-quorum")]), 0.0);
    assert_eq!(leader.metric("is_leader", &[]), 0.0);
    let values = nodes.values("c7");
    assert_eq!(values[..2], [Some("aW50cnVkZXI=".to_owned()), Some("aW50cnVkZXI=".to_owned())], "overwritten");
    eventually("what it still held is released", SOON, || nodes.values("c7")[2].is_none().then_some(()));
}

#[test]
fn c7_the_log_names_node_reason_and_foreign_owner() {
    let (nodes, leader, _) = overtaken("c7-log", "worker-7:c29tZXRoaW5n");
    leader.wait_for_message("stepped down", 1, SOON);
    let lines = leader.logged("lost on a node");
    let mut named: Vec<&str> = lines.iter().map(|line| line.text("node")).collect();
    named.sort_unstable();
    let mut expected = nodes.addresses()[..2].to_vec();
    expected.sort_unstable();
    assert_eq!(named, expected);
    for line in &lines {
        assert_eq!((line.text("reason"), line.text("holder")), ("held by other", "worker-7:c29tZXRoaW5n"));
        assert_eq!((line.text("lock"), line.text("level")), ("c7-log", "WARN"));
    }
}
