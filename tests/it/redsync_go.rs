//! S4: real go-redsync and ours exclude each other, and read each other's keys alike.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use redleader::redsync::{Options, Redsync};

use crate::locker::{ms, row, wait};
use crate::support::{Flavour, Peer, Rng, Server, ServerOptions, Servers, boot_ms, figure, let_time_pass, stays_true};

/// Each of two Go processes and two threads of ours locks so often.
const LOCKS: usize = 250;
const LOCK: &str = "contended";
const TTL: u64 = 8000;

/// Our contender; gives the largest count inside.
fn contend(redsync: &Redsync, servers: &Servers, counter: &Server, done: &AtomicUsize, seed: &str) -> i64 {
    let mut counter = counter.client().unwrap();
    let mut nodes: Vec<_> = servers.iter().map(|server| server.client().unwrap()).collect();
    let rng = Arc::new(std::sync::Mutex::new(Rng::seeded(seed)));
    let draw = rng.clone();
    let delay = move |_| draw.lock().unwrap().duration(ms(1), ms(11));
    let mut mutex = redsync.mutex(LOCK).with(Options::new().tries(u32::MAX).retry_delay_fn(delay));
    let mut most = 0;
    for _ in 0..LOCKS {
        wait(mutex.lock()).unwrap();
        most = most.max(counter.call(&["INCR", "inside"]).unwrap().int().unwrap());
        let (mut held, mut shortest) = (0, i64::MAX);
        for node in &mut nodes {
            if node.call(&["GET", LOCK]).unwrap().text() == mutex.value().unwrap() {
                held += 1;
                shortest = shortest.min(node.call(&["PTTL", LOCK]).unwrap().int().unwrap());
            }
        }
        agree(held, shortest, i64::try_from(mutex.valid_for().as_millis()).unwrap());
        counter.call(&["RPUSH", "order", "rust"]).unwrap();
        counter.call(&["DECR", "inside"]).unwrap();
        let unlocked = wait(mutex.unlock());
        assert_eq!(row(unlocked, redsync), "ok");
        done.fetch_add(1, Ordering::SeqCst);
        let pause = rng.lock().unwrap().duration(ms(1), ms(11));
        let_time_pass("the others have their turn", pause);
    }
    most
}

/// What the keys say, and for how long the library says that it may be believed.
#[track_caller]
fn agree(held: i64, pttl_ms: i64, left_ms: i64) {
    assert!(held >= 2, "the value is on {held} nodes");
    // The drift is a hundredth of the expiry; between the two readings lies what a loaded machine needs.
    let between = pttl_ms - left_ms;
    assert!((0..=80 + 1000).contains(&between), "the key lives for {pttl_ms} ms, and the library says {left_ms}");
}

#[test]
fn s4_two_of_go_and_two_of_ours_exclude_each_other_over_1000_rounds() {
    let (servers, counter) = (Servers::start(3), Server::start(Flavour::Redis70, ServerOptions::new()));
    let began = boot_ms();
    let (locks, ttl) = (LOCKS.to_string(), format!("{TTL}ms"));
    let address = counter.address();
    let args = ["-ttl", &ttl, "-hold", "0s", "-retry", "10ms", "-locks", &locks, "-counter", &address, "-for", "5m"];
    let peers = [(); 2].map(|()| Peer::start("contend", LOCK, &servers.addresses(), &args));
    let done = AtomicUsize::new(0);
    let most = thread::scope(|scope| {
        let ours = [0, 1].map(|number| {
            let (servers, counter, done) = (&servers, &counter, &done);
            scope.spawn(move || {
                let redsync = Redsync::new(servers.urls()).unwrap();
                contend(&redsync, servers, counter, done, &format!("contender {number}"))
            })
        });
        ours.map(|thread| thread.join().unwrap())
    });
    for peer in &peers {
        assert_eq!(peer.wait_exit(ms(120_000)), 0);
        let locked = peer.events_of("locked");
        let unlocked = peer.events_of("unlocked");
        assert_eq!((locked.len(), unlocked.len()), (LOCKS, LOCKS));
        assert!(peer.events_of("refused").is_empty(), "{:?}", peer.events_of("refused"));
        assert!(unlocked.iter().all(|event| event["ok"] == true), "go's unlock: {unlocked:?}");
        for event in &locked {
            let number = |name: &str| event[name].as_i64().unwrap();
            assert_eq!(number("inside"), 1, "Go was not alone inside");
            agree(number("held"), number("pttl_ms"), number("left_ms"));
        }
    }
    assert_eq!(most, [1, 1], "we were not alone inside");
    assert_eq!(done.load(Ordering::SeqCst), 2 * LOCKS);
    // They did meet: the lock went from one to the other again and again.
    let order: Vec<String> = counter.cli(&["LRANGE", "order", "0", "-1"]).list().iter().map(|who| who.text()).collect();
    assert_eq!(order.len(), 4 * LOCKS);
    let changes = order.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes > 100, "{changes} changes between Go and Rust");
    figure(
        "S4 go-redsync beside ours",
        &format!("1000 rounds in {} ms, {changes} from Go to Rust or back, never two inside", boot_ms() - began),
    );
}

#[test]
fn s4_each_sees_the_other_s_lock_and_waits_for_its_release() {
    let servers = Servers::start(3);
    let redsync = Redsync::new(servers.urls()).unwrap();
    let options = Options::new().timeout_factor(0.5);
    let go = Peer::start("hold", LOCK, &servers.addresses(), &["-ttl", "8s"]);
    let value = go.wait_for("locked", 1, ms(10_000))["value"].as_str().unwrap().to_owned();
    let mut mutex = redsync.mutex(LOCK).with(options.clone());
    assert_eq!(row(wait(mutex.try_lock()), &redsync), "taken 012");
    assert_eq!(servers.holding(LOCK, &value), 3, "our clean-up leaves it alone");
    // With its value, the lock is ours to extend; then Go unlocks what we extended.
    let mut heir = redsync.mutex(LOCK).with(options.clone().value(&value).expiry(ms(20_000)));
    wait(heir.valid()).unwrap();
    wait(heir.extend()).unwrap();
    assert!(servers[0].cli(&["PTTL", LOCK]).int().unwrap() > 10_000);
    go.finish();
    assert_eq!(go.wait_for("unlocked", 1, ms(10_000))["ok"], true);
    wait(mutex.with(options.tries(100)).lock()).unwrap();
    // The other way round.
    let go = Peer::start("wait", LOCK, &servers.addresses(), &["-ttl", "8s"]);
    go.wait_for("waiting", 1, ms(10_000));
    stays_true("Go waits", ms(700), || go.events_of("locked").is_empty());
    for server in servers.iter() {
        server.cli(&["DEL", LOCK]);
    }
    go.wait_for("locked", 1, ms(10_000));
}
