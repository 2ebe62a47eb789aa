//! C119: what is in flight when a replica is asked to leave brings no key back.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Proxy, ReplicaOptions, Rng, Servers, boot_ms, eventually, figure, let_time_pass, percentile};

const SOON: Duration = Duration::from_secs(20);
/// Of requests, and of replies: a round takes twice that, and a node timeout is longer.
const DELAY: Duration = Duration::from_millis(300);
const TTL: Duration = Duration::from_secs(4);
const SETTINGS: [&str; 4] = ["--ttl", "4s", "--node-timeout", "1s"];
const RUNS: usize = 300;
const SIDE_BY_SIDE: usize = 30;

/// What all runs share.
struct Scene {
    nodes: Servers,
    proxies: Vec<Proxy>,
    /// Runs in which the one that left had held the lock.
    held: AtomicUsize,
    /// Runs in which an acquire, or an extend, was under way.
    in_flight: AtomicUsize,
    gaps: Mutex<Vec<f64>>,
}

#[test]
fn c119_no_key_is_left_behind_whatever_was_in_flight() {
    let nodes = Servers::start(3);
    let proxies: Vec<Proxy> = nodes.iter().map(|node| Proxy::start(&node.address())).collect();
    for proxy in &proxies {
        proxy.delay(DELAY);
    }
    let (held, in_flight, gaps) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let scene = Scene { nodes, proxies, held, in_flight, gaps };
    let seed = Rng::seeded("c119_no_key_is_left_behind_whatever_was_in_flight").next_u64();
    let runs = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for slot in 0..SIDE_BY_SIDE {
            let (scene, runs) = (&scene, &runs);
            scope.spawn(move || {
                let mut rng = Rng::new(seed ^ slot as u64);
                let lock = format!("c119-{slot}");
                // The nodes know the lock before the first run, so that no run waits for a quarantine.
                let first = ReplicaOptions::new(&lock, "first", &scene.nodes.urls()).args(SETTINGS).start();
                first.wait_elected(1, SOON);
                first.term();
                assert_eq!(first.wait_exit(SOON), 0);
                for run in 0..RUNS / SIDE_BY_SIDE {
                    leave_once(scene, &lock, run, &mut rng);
                    runs.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    let gaps = scene.gaps.lock().unwrap().clone();
    let (held, in_flight) = (scene.held.load(Ordering::SeqCst), scene.in_flight.load(Ordering::SeqCst));
    let p = |rank| percentile(&gaps, rank).unwrap_or(f64::NAN);
    figure(
        "C119",
        &format!(
            "{} runs, the lock was held in {held}, a round was in flight in {in_flight}; from exit to the next leader \
             p50 {} ms, p99 {} ms",
            runs.load(Ordering::SeqCst),
            p(50),
            p(99)
        ),
    );
    assert_eq!(runs.load(Ordering::SeqCst), RUNS);
    assert!(held >= RUNS / 5 && in_flight >= RUNS / 5, "too few runs met what they are for");
}

fn leave_once(scene: &Scene, lock: &str, run: usize, rng: &mut Rng) {
    let urls: Vec<String> = scene.proxies.iter().map(Proxy::url).collect();
    let who = format!("a{run}");
    // Every second one has a child that has to stop first.
    let a = ReplicaOptions::new(lock, &who, &urls).args(SETTINGS);
    let a = if run.is_multiple_of(2) { a.child(["sleep", "600"]) } else { a }.start();
    // Greeting, look and acquire take 600 ms each, and from then on an extend a second is in flight for 600 ms.
    let at = rng.duration(Duration::from_millis(1000), Duration::from_millis(6000));
    let_time_pass("a random phase of look, acquire or extend", at - Duration::from_millis(400));
    let holds = || scene.nodes.values(lock).iter().flatten().any(|value| value.starts_with(&format!("{who}:")));
    // Where the lock is held already the other waits for it; else it would win before the one that is to leave.
    let waits = holds();
    let options = || ReplicaOptions::new(lock, &format!("b{run}"), &scene.nodes.urls()).args(SETTINGS);
    let early = waits.then(|| options().start());
    let_time_pass("the rest of the phase", Duration::from_millis(400));
    let is_in_flight = scene.proxies[0].seen().iter().rev().take(400).any(|seen| {
        let is_ours = seen.args.get(5).is_some_and(|owner| owner.starts_with(format!("{who}:").as_bytes()));
        is_ours && seen.args.len() == 12 && boot_ms() - seen.boot_ms < 600
    });
    scene.held.fetch_add(usize::from(holds()), Ordering::SeqCst);
    scene.in_flight.fetch_add(usize::from(is_in_flight), Ordering::SeqCst);
    a.term();
    let b = early.unwrap_or_else(|| options().start());
    assert_eq!(a.wait_exit(SOON), 0, "{lock}: {who} ends as asked");
    let left = boot_ms();
    assert!(!holds(), "{lock}: a key of {who} is there after its exit: {:?}", scene.nodes.values(lock));
    let elected = b.wait_elected(1, SOON).number("boot_ms").expect("an election has its time");
    let gap = elected.saturating_sub(left);
    scene.gaps.lock().unwrap().push(gap as f64);
    // The retry is the next look, at most ttl/2 and a fifth away; the rest is for a busy machine.
    let retry = TTL * 6 / 10;
    assert!(gap <= retry.as_millis() as u64 + 1000, "{lock}: b leads {gap} ms after the exit of {who}");
    eventually("2 s have passed", SOON, || (boot_ms() >= left + 2000).then_some(()));
    assert!(!holds(), "{lock}: a key of {who} came back: {:?}", scene.nodes.values(lock));
    b.term();
    assert_eq!(b.wait_exit(SOON), 0);
    eventually("nothing is left", SOON, || scene.nodes.values(lock).iter().all(Option::is_none).then_some(()));
}
