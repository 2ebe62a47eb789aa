//! C15: one round of extends that is swallowed costs nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{
    Direction, Hold, Judge, Mode, Proxy, Replica, ReplicaOptions, Rng, Servers, boot_ms, eventually, figure,
    let_time_pass,
};

const SOON: Duration = Duration::from_secs(20);
/// The field's ttl of 10 s by five, every ratio kept; the default of the connect timeout has a least that is not.
const TTL: Duration = Duration::from_secs(2);
const SETTINGS: [&str; 4] = ["--ttl", "2s", "--connect-timeout", "500ms"];
const RUNS: usize = 200;
const SIDE_BY_SIDE: usize = 20;

/// A leader that has two of its three nodes by way of proxies.
struct Scene {
    leader: Replica,
    proxies: [Proxy; 2],
}

impl Scene {
    fn start(lock: &str, nodes: &Servers) -> Self {
        let proxies = [0, 1].map(|node| Proxy::start(&nodes[node].address()));
        let urls = [proxies[0].url(), proxies[1].url(), nodes[2].url()];
        let leader = ReplicaOptions::new(lock, lock, &urls).args(SETTINGS).start();
        Self { leader, proxies }
    }

    fn extends(&self, outcome: &str) -> f64 {
        self.leader.metric("extend_attempts_total", &[("outcome", outcome)])
    }

    /// Waits until so many new log lines say `what`; `from` is where the log was read up to.
    fn wait_for_lines(&self, what: &str, count: usize, from: usize) {
        eventually(&format!("{what}, {count} times"), SOON, || {
            let lines = self.leader.process().stderr_from(from);
            (lines.iter().filter(|line| line.text.contains(what)).count() >= count).then_some(())
        });
    }

    /// Swallows exactly one round: from now until 50 ms after one has met its node timeout. Gives how long it took from
    /// the clean network until all nodes answered again.
    fn swallow_a_round(&self) -> u64 {
        let from = self.leader.process().stderr().len();
        for proxy in &self.proxies {
            proxy.set(Mode::DropReplies);
        }
        self.wait_for_lines("extend failed", 1, from);
        let_time_pass("no reply for 50 ms more than the node timeout", Duration::from_millis(50));
        for proxy in &self.proxies {
            proxy.set(Mode::Pass);
        }
        let clean = boot_ms();
        self.wait_for_lines("node answers", 2, from);
        boot_ms() - clean
    }
}

#[test]
fn c15_a_swallowed_round_costs_nothing() {
    let nodes = Servers::start(3);
    let scenes: Vec<Scene> = (0..SIDE_BY_SIDE).map(|n| Scene::start(&format!("c15-{n}"), &nodes)).collect();
    for scene in &scenes {
        scene.leader.wait_elected(1, SOON);
    }
    let longest = AtomicU64::new(0);
    let seed = Rng::seeded("c15_a_swallowed_round_costs_nothing").next_u64();
    std::thread::scope(|scope| {
        for (n, scene) in scenes.iter().enumerate() {
            let longest = &longest;
            scope.spawn(move || {
                let mut rng = Rng::new(seed ^ n as u64);
                for _ in 0..RUNS / SIDE_BY_SIDE {
                    let_time_pass("a random phase", rng.duration(Duration::ZERO, TTL / 4));
                    longest.fetch_max(scene.swallow_a_round(), Ordering::SeqCst);
                }
            });
        }
    });
    let report = Judge::check_replicas(scenes.iter().map(|scene| &scene.leader));
    let transitions: usize = scenes.iter().map(|scene| scene.leader.logged("stepping down").len()).sum();
    let failed: f64 = scenes.iter().map(|scene| scene.extends("no-quorum")).sum();
    figure(
        "C15",
        &format!(
            "{RUNS} swallowed rounds ({failed} failed, with those after them), {transitions} transitions, {} \
             leaderships of {SIDE_BY_SIDE} locks, at most {} ms from a clean network to all nodes answering",
            report.terms.len(),
            longest.load(Ordering::SeqCst)
        ),
    );
    assert!(failed >= RUNS as f64, "fewer rounds failed than were swallowed");
    assert_eq!((transitions, report.terms.len()), (0, SIDE_BY_SIDE), "a swallowed round changed a leader");
    for scene in &scenes {
        assert_eq!(scene.leader.metric("stepdowns_total", &[]), 0.0);
        assert!(scene.leader.leads());
    }
}

/// The first round and two more are swallowed: the third of them that comes through is in time, so two fit.
#[test]
fn c15_two_more_rounds_fit_before_the_deadline() {
    let nodes = Servers::start(3);
    let scene = Scene::start("c15-fit", &nodes);
    scene.leader.wait_elected(1, SOON);
    let monitor = nodes[0].monitor();
    eventually("it extends", SOON, || (scene.extends("ok") >= 1.0).then_some(()));
    let before = scene.extends("ok");
    let hold = |proxy: &Proxy| -> Vec<Hold> { (0..3).map(|_| proxy.hold(Direction::Reply, b"extended")).collect() };
    let holds: Vec<Hold> = scene.proxies.iter().flat_map(hold).collect();
    for hold in &holds {
        hold.caught(SOON);
    }
    // What comes after the three holds passes: the fourth round, three node timeouts after the first.
    eventually("it extends again", SOON, || (scene.extends("ok") > before).then_some(()));
    let asked: Vec<u64> = monitor
        .requests()
        .iter()
        .filter(|line| line.name == "EVALSHA" && line.args.len() == 11)
        .map(|line| line.boot_ms)
        .collect();
    let first = asked.iter().position(|at| asked.iter().filter(|other| (*at..at + 450).contains(other)).count() >= 4);
    let first = first.unwrap_or_else(|| panic!("no four rounds close together: {asked:?}"));
    // The extend before the swallowed one set the deadline: ttl less 10 %, from when it was sent.
    let stall_ends = asked[first] + 150;
    let deadline = asked[first - 1] + 1800;
    let fitting = asked.iter().filter(|at| (stall_ends..deadline - 250).contains(*at)).count();
    figure("C15", &format!("{fitting} attempts between the end of the stall and the deadline less grace"));
    assert!(fitting >= 2, "{fitting} attempts fit: {asked:?}, stall over at {stall_ends}, deadline {deadline}");
    assert_eq!(scene.extends("no-quorum"), 3.0);
    assert!(scene.leader.leads() && scene.leader.logged("stepping down").is_empty());
}
