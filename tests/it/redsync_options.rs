//! S5: every option of Redsync v4 shows its effect on real nodes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex as StdMutex};

use redleader::redsync::{Options, Redsync};

use crate::locker::{lives, ms, requests, row, three, timed, wait};
use crate::support::{Flavour, MonitorLine, Server, ServerOptions};

fn sets(lines: &[MonitorLine]) -> Vec<u64> {
    lines.iter().filter(|line| line.name == "SET").map(|line| line.server_us).collect()
}

fn gaps_ms(times: &[u64]) -> Vec<u64> {
    times.windows(2).map(|pair| (pair[1] - pair[0]) / 1000).collect()
}

#[test]
fn expiry_is_the_key_s_life_at_lock_and_extend() {
    let (servers, redsync) = three();
    let mut mutex = redsync.mutex("job").with(Options::new().expiry(ms(60_000)));
    wait(mutex.lock()).unwrap();
    assert!(lives(&servers, "job").iter().all(|life| (50_000..=60_000).contains(life)));
    for server in servers.iter() {
        server.cli(&["PEXPIRE", "job", "5000"]);
    }
    let before = mutex.until().unwrap();
    wait(mutex.extend()).unwrap();
    assert!(lives(&servers, "job").iter().all(|life| (50_000..=60_000).contains(life)));
    assert!(mutex.until().unwrap() > before);
}

#[test]
fn tries_are_counted_and_none_is_none() {
    let (servers, redsync) = three();
    for server in servers.iter() {
        server.cli(&["SET", "job", "theirs"]);
    }
    let monitor = servers[0].monitor();
    for (tries, expected) in [(1, "taken 012"), (3, "taken 012"), (0, "no tries")] {
        monitor.clear();
        let mut mutex = redsync.mutex("job").with(Options::new().tries(tries).retry_delay(ms(1)));
        assert_eq!(row(wait(mutex.lock()), &redsync), expected);
        let requests = requests(&monitor, "EVAL", tries as usize);
        let names: Vec<&str> = requests.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["SET", "EVAL"].repeat(tries as usize), "each try, and its clean-up");
    }
    // One try, whatever the option says.
    monitor.clear();
    assert_eq!(row(wait(redsync.mutex("job").try_lock()), &redsync), "taken 012");
    assert_eq!(sets(&requests(&monitor, "EVAL", 1)).len(), 1);
}

#[test]
fn retry_delays_are_as_the_delay_and_the_function_say() {
    let (servers, redsync) = three();
    servers[0].cli(&["SET", "job", "theirs"]);
    servers[1].cli(&["SET", "job", "theirs"]);
    let monitor = servers[2].monitor();
    let options = Options::new().tries(4);
    wait(redsync.mutex("job").with(options.clone().retry_delay(ms(120))).lock()).unwrap_err();
    let fixed = gaps_ms(&sets(&requests(&monitor, "EVAL", 4)));
    assert!(fixed.len() == 3 && fixed.iter().all(|gap| *gap >= 120), "{fixed:?}");
    monitor.clear();
    let asked = Arc::new(StdMutex::new(Vec::new()));
    let numbers = asked.clone();
    let by_number = options.retry_delay_fn(move |retry| {
        numbers.lock().unwrap().push(retry);
        ms(u64::from(retry) * 60)
    });
    wait(redsync.mutex("job").with(by_number).lock()).unwrap_err();
    let growing = gaps_ms(&sets(&requests(&monitor, "EVAL", 4)));
    assert_eq!(*asked.lock().unwrap(), [1, 2, 3]);
    assert!(growing.len() == 3 && growing.iter().zip([60, 120, 180]).all(|(gap, least)| *gap >= least), "{growing:?}");
}

#[test]
fn drift_factor_ends_the_trust_earlier() {
    let (servers, redsync) = three();
    for (factor, trusted) in [(0.0, 8000), (0.01, 7920), (0.5, 4000)] {
        let mut mutex = redsync.mutex("job").with(Options::new().drift_factor(factor));
        wait(mutex.lock()).unwrap();
        let left = u64::try_from(mutex.valid_for().as_millis()).unwrap();
        assert!(left <= trusted && left + 1000 >= trusted, "{left} of {trusted}");
        assert!(lives(&servers, "job").iter().all(|life| *life > 7000), "the key's life is what it was");
        wait(mutex.unlock()).unwrap();
    }
    // All of it: no lock can be trusted.
    let all = Options::new().drift_factor(1.0).tries(1);
    assert_eq!(row(wait(redsync.mutex("job").with(all).lock()), &redsync), "late 012");
    assert_eq!(servers.values("job"), [None, None, None]);
}

#[test]
fn timeout_factor_bounds_a_try_and_fail_fast_does_not_wait_for_the_slowest() {
    let (servers, redsync) = three();
    servers[2].stop();
    let options = Options::new().expiry(ms(10_000)).timeout_factor(0.08);
    let mut slow = redsync.mutex("slow").with(options.clone());
    let (result, took) = timed(slow.lock());
    result.unwrap();
    assert!((800..4000).contains(&took), "{took} ms for a timeout of 800");
    let mut shorter = redsync.mutex("shorter").with(options.clone().timeout_factor(0.01));
    let (result, took) = timed(shorter.lock());
    result.unwrap();
    assert!((100..500).contains(&took), "{took} ms for a timeout of 100");
    let mut fast = redsync.mutex("fast").with(options.timeout_factor(0.5).fail_fast(true));
    for (what, result) in [
        ("lock", timed(fast.lock())),
        ("extend", timed(fast.extend())),
        ("valid", timed(fast.valid())),
        ("unlock", timed(fast.unlock())),
    ] {
        let (result, took) = result;
        result.unwrap();
        assert!(took < 700, "{what}: {took} ms beside a hung node");
    }
    // A quorum of refusals is enough, too: try and clean-up.
    servers[0].cli(&["SET", "fast", "theirs"]);
    servers[1].cli(&["SET", "fast", "theirs"]);
    let (result, took) = timed(fast.try_lock());
    servers[2].cont();
    assert_eq!(row(result, &redsync), "taken 01");
    assert!(took < 2900, "{took} ms");
}

#[test]
fn value_extends_and_unlocks_a_lock_of_somebody_else_and_a_lock_replaces_it() {
    let (servers, redsync) = three();
    let mut owner = redsync.mutex("job");
    wait(owner.lock()).unwrap();
    let value = owner.value().unwrap().to_owned();
    let mut heir = redsync.mutex("job").with(Options::new().value(&value));
    assert_eq!((heir.value(), heir.until()), (Some(value.as_str()), None));
    wait(heir.valid()).unwrap();
    wait(heir.extend()).unwrap();
    assert!(heir.until().is_some());
    wait(heir.unlock()).unwrap();
    assert_eq!(servers.values("job"), [None, None, None]);
    wait(heir.lock()).unwrap();
    assert_ne!(heir.value(), Some(value.as_str()));
    assert_eq!(servers.holding("job", heir.value().unwrap()), 3);
    let mut stranger = redsync.mutex("job").with(Options::new().value("wrong"));
    assert_eq!(row(wait(stranger.unlock()), &redsync), "taken 012");
    assert_eq!(servers.holding("job", heir.value().unwrap()), 3);
}

#[test]
fn the_value_function_is_called_once_a_lock_and_its_error_asks_nobody() {
    let (servers, redsync) = three();
    let calls = Arc::new(AtomicU32::new(0));
    let counter = calls.clone();
    let options = Options::new().tries(3).retry_delay(ms(1)).value_fn(move || {
        let call = counter.fetch_add(1, Ordering::SeqCst);
        Ok::<_, std::convert::Infallible>(format!("value-{call}"))
    });
    let mut mutex = redsync.mutex("job").with(options.timeout_factor(0.5));
    wait(mutex.lock()).unwrap();
    assert_eq!(servers.holding("job", "value-0"), 3);
    wait(mutex.lock()).unwrap_err();
    assert_eq!(calls.load(Ordering::SeqCst), 2, "not once a try");
    assert_eq!(mutex.value(), Some("value-0"), "a lock that failed leaves it as it was");
    wait(mutex.unlock()).unwrap();
    let monitor = servers[0].monitor();
    for (function, text) in [(Err("no entropy"), "value: no entropy"), (Ok(String::new()), "value: it is empty")] {
        let mut refused = redsync.mutex("job").with(Options::new().value_fn(move || function.clone()));
        assert_eq!(row(wait(refused.lock()), &redsync), text);
    }
    assert!(monitor.requests().is_empty());
}

/// Three databases of one server stand for the nodes, so that one clock says who was asked first; they are one vote, and
/// no lock is had.
#[test]
fn shuffle_asks_the_nodes_in_an_order_of_its_own() {
    let server = Server::start(Flavour::Redis70, ServerOptions::new());
    let redsync = Redsync::new([0, 1, 2].map(|db| format!("{}/{db}", server.url()))).unwrap();
    for (is_shuffled, rounds) in [(false, 20_usize), (true, 60)] {
        let monitor = server.monitor();
        let mut first = [0; 3];
        for round in 1..=rounds {
            let options = Options::new().shuffle(is_shuffled).timeout_factor(0.5).tries(1);
            wait(redsync.mutex(format!("job-{is_shuffled}-{round}")).with(options).lock()).unwrap_err();
            let lines = requests(&monitor, "SET", 3 * round);
            let sets: Vec<&MonitorLine> = lines.iter().filter(|line| line.name == "SET").collect();
            first[sets[3 * (round - 1)].db] += 1;
        }
        println!("shuffle {is_shuffled}: each node was asked first {first:?} times");
        // All are asked at once, and the network has its say: a clear difference, no certainty.
        if is_shuffled {
            assert!(first.iter().all(|count| *count >= rounds / 10), "{first:?}");
        } else {
            assert!(first[0] * 10 >= rounds * 8, "{first:?}");
        }
    }
}

#[test]
fn set_nx_on_extend_puts_the_key_back_where_it_is_missing() {
    let (servers, redsync) = three();
    for (creates, expected) in [(false, "expired 01"), (true, "ok")] {
        let mut mutex = redsync.mutex("job").with(Options::new().set_nx_on_extend(creates));
        wait(mutex.lock()).unwrap();
        servers[0].cli(&["DEL", "job"]);
        servers[1].cli(&["DEL", "job"]);
        assert_eq!(row(wait(mutex.extend()), &redsync), expected);
        assert_eq!(servers.holding("job", mutex.value().unwrap()), if creates { 3 } else { 1 });
        // Never over somebody else.
        servers[0].cli(&["SET", "job", "theirs"]);
        servers[1].cli(&["SET", "job", "theirs"]);
        assert_eq!(row(wait(mutex.extend()), &redsync), "taken 01");
        for server in servers.iter() {
            server.cli(&["DEL", "job"]);
        }
    }
}
