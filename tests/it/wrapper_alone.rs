//! What a child adds to a hand-over, and what the wrapper costs.

use std::time::Duration;

use crate::support::{Replica, ReplicaOptions, Servers, boot_ms, eventually, figure, percentile, scale};
use crate::witness::children;

const SOON: Duration = Duration::from_secs(20);

/// How long a child takes to stop, in milliseconds.
const CHILD_MS: u64 = 300;

#[test]
fn w3_a_hand_over_takes_what_the_child_takes_and_what_it_takes_without_one() {
    let nodes = Servers::start(3);
    let at_once = handovers(&nodes, "w3-at-once", None);
    let slow = format!("trap 'sleep 0.{CHILD_MS}; exit 0' TERM; while :; do sleep 600 & wait $!; done");
    let slow = handovers(&nodes, "w3-slow", Some(&slow));
    let p50 = |samples: &[f64]| percentile(samples, 50).unwrap();
    let more = p50(&slow) - p50(&at_once);
    figure(
        "W3",
        &format!(
            "{} hand-overs each, from TERM to the next leader: without a child p50 {} ms, with one that needs {CHILD_MS} ms \
             p50 {} ms: {more} ms more",
            slow.len(),
            p50(&at_once),
            p50(&slow)
        ),
    );
    assert!(
        slow.iter().all(|took| *took >= CHILD_MS as f64),
        "the lock was released before the child was gone: {slow:?}"
    );
    assert!((CHILD_MS as f64 * 0.9..CHILD_MS as f64 + 150.0).contains(&more), "{more} ms more: {slow:?}, {at_once:?}");
}

fn handovers(nodes: &Servers, lock: &str, script: Option<&str>) -> Vec<f64> {
    let start = |name: usize| {
        let options = ReplicaOptions::new(lock, &format!("r{name}"), &nodes.urls()).args([
            "--ttl",
            "2s",
            "--node-timeout",
            "400ms",
        ]);
        match script {
            Some(script) => options.child(["sh", "-c", script]).start(),
            None => options.start(),
        }
    };
    let mut leader = start(0);
    leader.wait_elected(1, SOON);
    let mut took = Vec::new();
    for run in 1..=scale().pick(10, 100) {
        let next = start(run);
        eventually("the next one waits", SOON, || (next.leader_json()["holder"] == leader.identity()).then_some(()));
        if script.is_some() {
            leader.wait_for_message("program started", 1, SOON);
            // Its shell has set its trap when it has a child of its own.
            let shell = u32::try_from(leader.logged("program started")[0].number("pid").unwrap()).unwrap();
            eventually("the child is ready", SOON, || (!children(shell).is_empty()).then_some(()));
        }
        let asked = boot_ms();
        leader.term();
        let elected = next.wait_elected(1, SOON).number("boot_ms").unwrap();
        took.push(elected.saturating_sub(asked) as f64);
        assert_eq!(leader.wait_exit(SOON), 0);
        leader = next;
    }
    leader.term();
    assert_eq!(leader.wait_exit(SOON), 0);
    took
}

#[test]
fn w5_a_standby_costs_no_process_but_itself() {
    let nodes = Servers::start(3);
    let start = |who: &str, has_child: bool| {
        let options = ReplicaOptions::new("w5", who, &nodes.urls()).args(["--ttl", "2s", "--node-timeout", "400ms"]);
        if has_child { options.child(["sleep", "600"]).start() } else { options.start() }
    };
    let leader = start("leader", true);
    leader.wait_for_message("program started", 1, SOON);
    let mut figures = Vec::new();
    for (who, has_child) in [("sidecar", false), ("wrapper", true)] {
        let standby = start(who, has_child);
        eventually("it waits", SOON, || (standby.leader_json()["holder"] == "leader").then_some(()));
        let ready = standby.logged("started")[0].read_boot_ms - standby.started_at();
        assert_eq!(children(standby.pid()), [], "{who}: a standby has a process of its own");
        figures.push(format!("standby {who} {} KiB, up after {ready} ms", rss_kib(standby.pid())));
        standby.term();
        assert_eq!(standby.wait_exit(SOON), 0);
    }
    let below = children(leader.pid());
    assert_eq!(below.len(), 1, "one guardian: {below:?}");
    figures.push(format!("leading wrapper {} KiB, its guardian {} KiB", rss_kib(leader.pid()), rss_kib(below[0].0)));
    let child = child_start_ms(&leader);
    figures.push(format!("child started {child} ms after the election"));
    figure("W5", &figures.join("; "));
    leader.term();
    assert_eq!(leader.wait_exit(SOON), 0);
}

fn child_start_ms(leader: &Replica) -> u64 {
    let elected = leader.logged("elected")[0].number("boot_ms").unwrap();
    leader.logged("program started")[0].number("boot_ms").unwrap() - elected
}

/// Memory that a process has for itself and is in RAM.
fn rss_kib(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("every process has it");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}
