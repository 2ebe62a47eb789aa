//! C5: a leader that won with a bare majority of five nodes takes the rest as soon as it can.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::support::{
    Data, Mode, Monitor, OverlapMeter, Proxy, Replica, ReplicaOptions, Server, Servers, eventually, figure,
    let_time_pass, stays_true,
};

const SOON: Duration = Duration::from_secs(10);
const TTL: [&str; 2] = ["--ttl", "2s"];
const RENEW: Duration = Duration::from_millis(500);

/// Five nodes that have known the lock for a quarantine, so that their votes count; the last two behind proxies that
/// refused while `a` won with the other three.
struct Scene {
    nodes: Servers,
    proxies: Vec<Proxy>,
    leader: Replica,
    owner: String,
}

impl Scene {
    fn start(lock: &str) -> Self {
        let nodes = Servers::start(5);
        let first = ReplicaOptions::new(lock, "first", &nodes.urls()).args(TTL).start();
        first.wait_elected(1, SOON);
        first.term();
        assert_eq!(first.wait_exit(SOON), 0);
        let proxies: Vec<Proxy> = nodes[3..].iter().map(|node| Proxy::start(&node.address())).collect();
        for proxy in &proxies {
            proxy.set(Mode::Refuse);
        }
        let mut urls = nodes.urls();
        urls.truncate(3);
        urls.extend(proxies.iter().map(Proxy::url));
        let leader = ReplicaOptions::new(lock, "a", &urls).args(TTL).start();
        leader.wait_elected(1, SOON);
        let owner = nodes.values(lock)[0].clone().expect("the first node holds the lock");
        assert_eq!(nodes.holding(lock, &owner), 3, "a bare majority");
        Self { nodes, proxies, leader, owner }
    }

    fn unblock(&self) {
        for proxy in &self.proxies {
            proxy.set(Mode::Pass);
        }
    }
}

/// Rounds of extends that a node was asked in.
fn rounds(monitor: &Monitor) -> usize {
    monitor.requests().iter().filter(|line| line.name == "EVALSHA" && line.args.len() == 11).count()
}

/// Wakes every standby of a lock every 50 ms, so that it looks that often.
struct Urging(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Urging {
    fn start(node: &Server, lock: &str) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (stop, channel) = (Arc::clone(&ended), format!("redleader:{lock}"));
        let mut client = node.client().expect("a running server");
        let urge = move || {
            while !stop.load(Ordering::SeqCst) {
                let _ = client.call(&["PUBLISH", &channel, "1"]);
                let_time_pass("the rival's retry", Duration::from_millis(50));
            }
        };
        Self(ended, Some(std::thread::spawn(urge)))
    }
}

impl Drop for Urging {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
        let _ = self.1.take().map(JoinHandle::join);
    }
}

#[test]
fn c5_a_bare_majority_is_widened_within_two_extends() {
    let scene = Scene::start("c5");
    let monitor = scene.nodes[0].monitor();
    scene.unblock();
    eventually("all five nodes hold the key", SOON, || (scene.nodes.holding("c5", &scene.owner) == 5).then_some(()));
    let rounds = rounds(&monitor);
    figure("C5", &format!("all five nodes held the key after {rounds} extends"));
    assert!((1..=2).contains(&rounds), "widened after {rounds} extends");
    assert_eq!(scene.leader.logged("elected").len(), 1);
}

#[test]
fn c5_an_empty_node_makes_no_second_leader() {
    let mut scene = Scene::start("c5-empty");
    scene.unblock();
    eventually("all five nodes hold the key", SOON, || {
        (scene.nodes.holding("c5-empty", &scene.owner) == 5).then_some(())
    });
    let rival = ReplicaOptions::new("c5-empty", "b", &scene.nodes.urls()).args(TTL).start();
    eventually("the rival sees the leader", SOON, || (rival.leader_json()["holder"] == "a").then_some(()));
    let urging = Urging::start(&scene.nodes[0], "c5-empty");
    let meter = OverlapMeter::of([&scene.leader, &rival]);
    let monitor = scene.nodes[0].monitor();
    scene.nodes[2].restart(Data::Lost);
    let is_steady = || rival.logged("elected").is_empty() && scene.leader.leads();
    stays_true("the leader leads and the rival does not", RENEW * 12, is_steady);
    drop(urging);
    let looks = monitor.requests().iter().filter(|line| line.name == "EVALSHA" && line.args.len() == 6).count();
    figure("C5", &format!("the rival looked {looks} times in {} ms", (RENEW * 12).as_millis()));
    assert!(looks >= 40, "the rival looked {looks} times only");
    let (proofs, ready) = meter.finish();
    assert!(proofs == 0 && ready > 0, "{proofs} proofs of two leaders in {ready} answers");
    assert_eq!(scene.nodes.holding("c5-empty", &scene.owner), 5, "the empty node was taken again");
    for word in ["stepping down", "stepped down"] {
        assert!(scene.leader.logged(word).is_empty(), "the leader flapped");
    }
}

#[test]
fn c5_a_foreign_value_is_never_overwritten() {
    let scene = Scene::start("c5-foreign");
    assert_eq!(scene.nodes[4].cli(&["SET", "c5-foreign", "another", "PX", "60000"]).text(), "OK");
    let monitor = scene.nodes[4].monitor();
    scene.unblock();
    eventually("the leader has asked for the node four times", SOON, || (rounds(&monitor) >= 4).then_some(()));
    assert_eq!(scene.nodes[4].cli(&["GET", "c5-foreign"]).text(), "another");
    let left = scene.nodes[4].cli(&["PTTL", "c5-foreign"]).int();
    assert!(left.is_some_and(|left| (50_000..60_000).contains(&left)), "its expiry was changed: {left:?}");
    assert_eq!(scene.nodes.holding("c5-foreign", &scene.owner), 4);
    assert!(scene.leader.leads());
    scene.nodes[4].cli(&["DEL", "c5-foreign"]);
    eventually("what is free is taken", SOON, || (scene.nodes.holding("c5-foreign", &scene.owner) == 5).then_some(()));
    assert_eq!(scene.leader.logged("elected").len(), 1);
}
