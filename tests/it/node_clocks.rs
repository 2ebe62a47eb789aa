//! C29: wall clocks of nodes that are stepped ahead or back, or stand still, under a leader and a standby that asks all
//! the time.

use std::time::Duration;

use crate::support::{
    Flavour, Judge, Replica, ReplicaOptions, Report, Server, ServerOptions, ShiftedClock, boot_ms, eventually, figure,
    let_time_pass, stays_true,
};

const SOON: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(2);
const RENEW: Duration = Duration::from_millis(500);
const QUARANTINE: Duration = Duration::from_millis(2200);
const HOUR: i64 = 3_600_000_000;
const LOCK: &str = "c29";

/// Three servers with clocks of their own, a leader and a standby.
struct Scene {
    clocks: Vec<ShiftedClock>,
    servers: Vec<Server>,
    a: Replica,
    b: Replica,
}

impl Scene {
    fn start() -> Self {
        let clocks: Vec<ShiftedClock> = (0..3).map(|_| ShiftedClock::new(0, 0)).collect();
        let start = |clock| Server::start(Flavour::Redis70, ServerOptions::new().clock(clock));
        let servers: Vec<Server> = clocks.iter().map(start).collect();
        let urls: Vec<String> = servers.iter().map(Server::url).collect();
        let start = |who: &str| ReplicaOptions::new(LOCK, who, &urls).args(["--ttl", "2s"]).start();
        let a = start("a");
        a.wait_elected(1, SOON);
        let b = start("b");
        eventually("b knows who leads", SOON, || (b.leader_json()["holder"] == "a").then_some(()));
        let_time_pass("an extend, and a look at every clock", TTL);
        Self { clocks, servers, a, b }
    }

    /// Steps these clocks, and waits until the servers have them.
    fn step(&self, nodes: &[usize], offset: i64) {
        for node in nodes {
            self.clocks[*node].set(offset, 0);
        }
        let told = |node: &usize| self.servers[*node].cli(&["TIME"]).list()[0].int().expect("seconds");
        let reference = (0..3).find(|node| !nodes.contains(node));
        eventually("the servers have the new clocks", SOON, || {
            let Some(reference) = reference else { return Some(()) };
            let ahead = |node: &usize| told(node) - told(&reference) - offset / 1_000_000;
            nodes.iter().all(|node| ahead(node).abs() <= 1).then_some(())
        });
    }

    fn pttl(&self, node: usize) -> i64 {
        self.servers[node].cli(&["PTTL", LOCK]).int().expect("PTTL answers a number")
    }

    fn told_of_a_step(&self, replica: &Replica, node: usize) {
        let address = self.servers[node].address();
        replica.wait_for_log("that the clock stepped", SOON, |line| {
            line.message() == "clock stepped" && line.text("node") == address
        });
    }

    fn report(&self) -> Report {
        Judge::check_replicas([&self.a, &self.b])
    }
}

#[test]
fn c29_one_clock_of_three_that_jumps_ahead_changes_nothing() {
    let scene = Scene::start();
    let token = scene.a.leader_json()["token"].as_u64();
    scene.step(&[0], HOUR);
    stays_true("a leads", QUARANTINE + TTL, || scene.a.leads());
    assert_eq!(scene.a.leader_json()["token"].as_u64(), token);
    scene.told_of_a_step(&scene.a, 0);
    eventually("all nodes hold the key again", SOON, || (0..3).all(|node| scene.pttl(node) > 0).then_some(()));
    assert!(scene.b.logged("elected").is_empty());
    figure("C29, one clock an hour ahead", &scene.report().to_string());
}

#[test]
fn c29_a_majority_of_clocks_that_jumps_ahead_ends_leadership_by_its_deadline() {
    let scene = Scene::start();
    let at = boot_ms();
    scene.step(&[0, 1], HOUR);
    let end = scene.a.wait_for_message("stepped down", 1, SOON);
    let after = end.number("boot_ms").unwrap().saturating_sub(at);
    // Their votes are void for a quarantine, which is longer than what is left of any lease.
    assert!(after <= 1800, "it led on for {after} ms, and a lease counts for 1,800 ms");
    let next = eventually("somebody leads again", SOON, || {
        [&scene.a, &scene.b].into_iter().find(|replica| replica.leads()).map(Replica::identity)
    });
    let report = scene.report();
    figure(
        "C29, two clocks an hour ahead",
        &format!("a led on for {after} ms, then {next} leads; {report}; with a bare quorum one renewal is the limit"),
    );
    // The standby has seen both clocks before, and knows as well as the leader that they were stepped.
    for overlap in &report.overlaps {
        let millis = overlap.millis.expect("one of them has ended");
        assert!(u128::from(millis) <= RENEW.as_millis(), "both led for {millis} ms: {overlap:?}");
    }
    assert!(report.tokens_increase, "{:#?}", report.terms);
}

#[test]
fn c29_the_key_of_a_dead_leader_outlives_no_step_back_by_more_than_its_ttl() {
    let scene = Scene::start();
    let dead = scene.a.kill9();
    scene.step(&[0, 1], -HOUR);
    let left: Vec<i64> = (0..3).map(|node| scene.pttl(node)).collect();
    assert!(left[..2].iter().any(|left| *left > 3_000_000), "no key was left an hour: {left:?}");
    let won = scene.b.wait_elected(1, SOON).number("boot_ms").unwrap();
    figure(
        "C29, two clocks an hour back",
        &format!("keys had {left:?} ms left; the next leads {} ms after the crash, ttl 2 s", won - dead),
    );
    // What is left of the ttl, the quarantine of clocks that stepped, a look and a round; an hour it is not.
    let bound = TTL + QUARANTINE + TTL;
    assert!(u128::from(won - dead) <= bound.as_millis(), "{} ms", won - dead);
    scene.told_of_a_step(&scene.b, 0);
    eventually("no key lives longer than a ttl", SOON, || (0..3).all(|node| scene.pttl(node) <= 2000).then_some(()));
    scene.report().assert_clean("C29, clocks an hour back");
}

/// A clock that stands still lets no key expire by itself.
#[test]
fn a_node_whose_clock_stands_still_keeps_nobody_from_leading() {
    let scene = Scene::start();
    scene.clocks[0].set(0, -1_000_000);
    let micros = || scene.servers[0].cli(&["TIME"]).list().iter().filter_map(|part| part.int()).collect::<Vec<_>>();
    eventually("its clock stands still", SOON, || {
        let before = micros();
        let_time_pass("a moment", Duration::from_millis(20));
        (micros() == before).then_some(())
    });
    stays_true("a leads", TTL * 2, || scene.a.leads());
    let dead = scene.a.kill9();
    let won = scene.b.wait_elected(1, SOON).number("boot_ms").unwrap();
    figure("a node's clock stands still", &format!("the next leads {} ms after the crash, ttl 2 s", won - dead));
    assert!(u128::from(won - dead) <= (TTL * 3).as_millis(), "{} ms", won - dead);
    scene.report().assert_clean("a clock that stands still");
}
