//! S1, S2: the lock as a user of the Go library tries it first; and what is left behind by those who go away.

use std::sync::{Arc, Mutex as StdMutex};
use std::thread;

use redleader::redsync::mutex::SetupError;
use redleader::redsync::{MutexError, Options, Redsync};
use rustix::process::Signal;

use crate::locker::{PATIENCE, connected, example, lives, ms, poll_once, row, three, timed, wait};
use crate::support::{
    Data, Direction, Mode, Process, Proxy, Servers, boot_ms, eventually, let_time_pass, run, stays_true,
};

fn list(servers: &Servers) -> String {
    servers.urls().join(",")
}

#[test]
fn s1_the_key_is_the_name_the_value_16_random_bytes_and_the_expiry_8_s() {
    let (servers, redsync) = three();
    for (name, options, expiry) in [
        ("my-global-mutex", Options::new(), 8000_u64),
        ("{tag}: any name, ü", Options::new().expiry(ms(60_000)), 60_000),
        ("short", Options::new().expiry(ms(1500)), 1500),
    ] {
        let mut mutex = redsync.mutex(name).with(options);
        assert_eq!((mutex.name(), mutex.value(), mutex.until()), (name, None, None));
        let before = boot_ms();
        wait(mutex.lock()).unwrap();
        let (after, value) = (boot_ms(), mutex.value().unwrap().to_owned());
        assert_eq!(value.len(), 24);
        use base64::Engine as _;
        assert_eq!(base64::engine::general_purpose::STANDARD.decode(&value).unwrap().len(), 16);
        assert_eq!(servers.values(name), [(); 3].map(|()| Some(value.clone())));
        let read = boot_ms();
        for life in lives(&servers, name) {
            let life = u64::try_from(life).unwrap();
            assert!(life <= expiry && life + (boot_ms() - before) + 2 >= expiry, "{life} of {expiry}");
            assert!(mutex.until().unwrap().as_millis() <= boot_ms() + life, "trusted for longer than the key lives");
        }
        // start + expiry·(1 − drift)
        let until = mutex.until().unwrap().as_millis();
        let trusted = expiry - expiry / 100;
        assert!((before + trusted - 1..=after + trusted).contains(&until), "{until} at {before}..{after}, read {read}");
        assert!(mutex.valid_for() <= ms(trusted) && mutex.valid_for() > ms(0));
        wait(mutex.valid()).unwrap();
        wait(mutex.unlock()).unwrap();
        assert_eq!(servers.values(name), [None, None, None]);
        assert_eq!((mutex.until(), mutex.value()), (None, Some(value.as_str())));
        wait(mutex.lock()).unwrap();
        assert_ne!(mutex.value(), Some(value.as_str()), "a value is used once");
        wait(mutex.unlock()).unwrap();
    }
    for server in servers.iter() {
        assert_eq!(server.cli(&["DBSIZE"]).int(), Some(0), "no other key was ever left");
    }
}

#[test]
fn s2_a_second_task_waits_and_takes_over_after_the_first_unlocks() {
    let (_servers, redsync) = three();
    let order = Arc::new(StdMutex::new(Vec::new()));
    let mut first = redsync.mutex("job");
    wait(first.lock()).unwrap();
    let waiter = thread::spawn({
        let (redsync, order) = (redsync.clone(), order.clone());
        move || {
            let mut second = redsync.mutex("job").with(Options::new().tries(1000));
            wait(second.lock()).unwrap();
            order.lock().unwrap().push("second locked");
            wait(second.unlock()).unwrap();
        }
    });
    stays_true("the second waits", ms(600), || order.lock().unwrap().is_empty());
    order.lock().unwrap().push("first unlocks");
    wait(first.unlock()).unwrap();
    waiter.join().unwrap();
    assert_eq!(*order.lock().unwrap(), ["first unlocks", "second locked"]);
}

#[test]
fn s2_unlock_without_a_lock_says_so_and_asks_nobody() {
    let (servers, redsync) = three();
    let monitor = servers[0].monitor();
    let mut mutex = redsync.mutex("job").with(Options::new().set_nx_on_extend(true));
    assert_eq!(row(wait(mutex.unlock()), &redsync), "not locked");
    assert_eq!(row(wait(mutex.extend()), &redsync), "not locked");
    assert_eq!(row(wait(mutex.valid()), &redsync), "not locked");
    assert!(monitor.requests().is_empty(), "{:?}", monitor.requests());
    // Unlocked twice is no success either.
    wait(mutex.lock()).unwrap();
    wait(mutex.unlock()).unwrap();
    assert_eq!(row(wait(mutex.unlock()), &redsync), "expired 012");
}

#[test]
fn s2_after_a_panic_the_key_of_a_mutex_stays_until_its_expiry_and_a_holder_s_goes() {
    let (servers, redsync) = three();
    let options = Options::new().expiry(ms(2000));
    let (panicking, of_thread) = (redsync.clone(), options.clone());
    let task = thread::spawn(move || {
        let mut mutex = panicking.mutex("bare").with(of_thread.clone());
        wait(mutex.lock()).unwrap();
        let _held = wait(panicking.try_lock("held", of_thread.expiry(ms(60_000)))).unwrap();
        panic!("as the test wants it");
    });
    task.join().unwrap_err();
    let value = servers.values("bare");
    assert!(value.iter().all(Option::is_some), "{value:?}");
    assert_eq!(row(wait(redsync.mutex("bare").with(options).try_lock()), &redsync), "taken 012");
    eventually("the holder's key is deleted", ms(5000), || {
        (servers.values("held") == [None, None, None]).then_some(())
    });
    let mut next = redsync.mutex("bare").with(Options::new().tries(1000).retry_delay(ms(5)));
    wait(next.lock()).unwrap();
    // A quorum is enough to lock: on the last node the key may have a moment left.
    let ours = servers.values("bare").iter().filter(|held| held.as_deref() == next.value()).count();
    assert!(ours >= 2, "expired, and free");
}

#[test]
fn s2_after_sigint_without_release_the_key_stays_until_its_expiry_and_then_is_free() {
    let servers = Servers::start(3);
    let mut command = example("basic_lock");
    command.args([&list(&servers), "60"]);
    let process = Process::start("basic_lock", command);
    eventually("it has locked", PATIENCE, || {
        process.stdout().iter().any(|l| l.text.starts_with("locked")).then_some(())
    });
    process.signal(Signal::INT);
    assert_eq!(process.wait_exit(PATIENCE), 130);
    let lives = lives(&servers, "my-global-mutex");
    assert!(lives.iter().all(|life| (1..=8000).contains(life)), "{lives:?}");
    let redsync = connected(&servers);
    let began = boot_ms();
    let mut next = redsync.mutex("my-global-mutex").with(Options::new().tries(1000));
    wait(next.lock()).unwrap();
    let waited = boot_ms() - began;
    let shortest = *lives.iter().min().unwrap();
    assert!(waited + 300 >= u64::try_from(shortest).unwrap(), "free after {waited} ms, with {shortest} ms to live");
}

#[test]
fn the_example_of_a_basic_lock_runs() {
    let servers = Servers::start(3);
    let mut command = example("basic_lock");
    command.arg(list(&servers));
    let output = run("basic_lock", command, PATIENCE);
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert!(output.stdout.starts_with("locked, valid for ") && output.stdout.ends_with("unlocked\n"), "{output:?}");
    assert_eq!(servers.values("my-global-mutex"), [None, None, None]);
}

/// Two tasks of 10 s, a key that lives for 8: the plain mutex lets the second start too early, and says so at the end.
#[test]
fn s3_a_plain_mutex_does_not_outlive_its_expiry_and_both_unlocks_say_why_they_fail() {
    let (_servers, redsync) = three();
    let began = boot_ms();
    let task = |redsync: Redsync| {
        thread::spawn(move || {
            let mut mutex = redsync.mutex("task").with(Options::new().tries(100));
            wait(mutex.lock()).unwrap();
            let at = boot_ms();
            let_time_pass("the task's work", ms(10_000));
            (at, row(wait(mutex.unlock()), &redsync))
        })
    };
    let tasks = [task(redsync.clone()), task(redsync)].map(|task| task.join().unwrap());
    let (first, second) = if tasks[0].0 < tasks[1].0 { (&tasks[0], &tasks[1]) } else { (&tasks[1], &tasks[0]) };
    let gap = second.0 - first.0;
    println!("S3 plain: the second starts {gap} ms after the first; unlocks: {} / {}", first.1, second.1);
    assert!(first.0 - began < 1000);
    // The expiry, a retry of at most 249 ms, and a loaded machine.
    assert!((7990..9500).contains(&gap), "{gap}");
    assert_eq!(first.1, "taken 012");
    assert_eq!(second.1, "expired 012");
}

#[test]
fn s3_with_a_holder_the_second_starts_only_after_the_first_ended() {
    let servers = Servers::start(3);
    let mut command = example("held_task");
    command.arg(list(&servers));
    let output = run("held_task", command, ms(40_000));
    assert_eq!(output.code, 0, "{}", output.stderr);
    println!("S3 holder:\n{}", output.stdout);
    let number = |line: &str| line.split(' ').rev().nth(1).unwrap().parse::<u64>().unwrap();
    let lines: Vec<&str> = output.stdout.lines().collect();
    let [start, end, start2, end2] = lines.as_slice() else { panic!("{lines:?}") };
    for (line, word) in [(start, "starts"), (end, "ends"), (start2, "starts"), (end2, "ends")] {
        assert!(line.contains(word), "{lines:?}");
    }
    assert!(number(end) - number(start) >= 10_000 && number(end2) - number(start2) >= 10_000);
    assert!(number(start2) >= number(end), "the second started {} ms early", number(end) - number(start2));
    assert_eq!(servers.values("held-task"), [None, None, None]);
}

/// At whatever point a future is dropped: the keys go, though nobody waits for it, on a node that was slow, too.
#[test]
fn a_dropped_lock_leaves_no_key_behind() {
    let servers = Servers::start(3);
    let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(&server.address())).collect();
    let redsync = Redsync::new(proxies.iter().map(Proxy::url)).unwrap();
    let options = Options::new().expiry(ms(30_000)).timeout_factor(0.1);
    let mut mutex = redsync.mutex("warm").with(options.clone());
    wait(mutex.lock()).unwrap();
    wait(mutex.unlock()).unwrap();
    let clean = |what: &str| {
        eventually(what, ms(5000), || (servers.values("job") == [None, None, None]).then_some(()));
    };
    // Dropped after the first poll: the requests may be anywhere.
    for _ in 0..50 {
        let mut mutex = redsync.mutex("job").with(options.clone());
        if poll_once(mutex.lock(), || {}) {
            wait(mutex.unlock()).unwrap();
        }
    }
    clean("dropped at once");
    stays_true("nothing comes late", ms(200), || servers.values("job") == [None, None, None]);
    // Dropped when it is locked and nobody has heard of it yet.
    let mut mutex = redsync.mutex("job").with(options.clone());
    let is_ready = poll_once(mutex.lock(), || {
        eventually("it is locked", ms(5000), || servers.values("job").iter().all(Option::is_some).then_some(()));
        stays_true("the attempt has ended", ms(100), || servers.values("job").iter().all(Option::is_some));
    });
    if is_ready {
        wait(mutex.unlock()).unwrap();
    }
    clean("dropped when it was locked");
    // Dropped while one node is behind a partition that heals, and the other two have granted.
    proxies[2].set(Mode::Stall);
    let abandoned = thread::spawn({
        let (redsync, options) = (redsync.clone(), options.clone());
        move || {
            let mut mutex = redsync.mutex("job").with(options);
            wait(async {
                tokio::select! {
                    biased;
                    _ = mutex.lock() => panic!("it waits for all nodes"),
                    () = has_key() => {}
                }
            });
        }
    });
    // The key is there, and its owner has gone away: the release follows at once on the two.
    eventually("two nodes are clean again", ms(5000), || (abandoned.is_finished()).then_some(()));
    abandoned.join().unwrap();
    eventually("the two nodes are clean", ms(2000), || {
        servers[..2].iter().all(|server| server.cli(&["EXISTS", "job"]).int() == Some(0)).then_some(())
    });
    proxies[2].set(Mode::Pass);
    eventually("the third has executed both", ms(5000), || {
        (proxies[2].seen().iter().filter(|seen| seen.name == "SET" && seen.has("job")).count() > 0).then_some(())
    });
    clean("the acquire that came late was followed by its release");
    stays_true("nothing comes late", ms(300), || servers.values("job") == [None, None, None]);
}

/// Resolves a little later, without a timer of the executor.
async fn has_key() {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    thread::spawn(move || {
        let_time_pass("two nodes grant", ms(150));
        let _ = sender.send(());
    });
    let _ = receiver.await;
}

#[test]
fn a_cancelled_lock_comes_back_when_the_nodes_are_clean() {
    let (servers, redsync) = three();
    servers[2].stop();
    let mut mutex = redsync.mutex("job").with(Options::new().timeout_factor(0.1));
    let (result, took) = timed(mutex.lock_unless(has_key()));
    servers[2].cont();
    // One node hangs: it is named, and the other two are clean already.
    assert_eq!(row(result, &redsync), "cancelled 2");
    assert!(took < 4000, "{took} ms");
    eventually("all are clean", ms(3000), || (servers.values("job") == [None, None, None]).then_some(()));
    // While it waits for its turn, no key of ours is anywhere.
    servers[0].cli(&["SET", "job", "theirs"]);
    servers[1].cli(&["SET", "job", "theirs"]);
    let mut waiting = redsync.mutex("job").with(Options::new().retry_delay(ms(30_000)));
    let (result, took) = timed(waiting.lock_unless(has_key()));
    assert_eq!((row(result, &redsync), waiting.value()), ("cancelled ".to_owned(), None));
    assert!(took < 2000, "{took} ms");
    assert_eq!(servers[2].cli(&["EXISTS", "job"]).int(), Some(0));
}

#[test]
fn a_late_acquire_and_its_release_are_executed_in_order() {
    let servers = Servers::start(3);
    let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(&server.address())).collect();
    let redsync = Redsync::new(proxies.iter().map(Proxy::url)).unwrap();
    let options = Options::new().expiry(ms(20_000)).timeout_factor(0.02);
    let mut mutex = redsync.mutex("job").with(options);
    wait(mutex.lock()).unwrap();
    wait(mutex.unlock()).unwrap();
    let held: Vec<_> = proxies.iter().map(|proxy| proxy.hold(Direction::Request, b"SET")).collect();
    assert_eq!(row(wait(mutex.try_lock()), &redsync), "nodes 0timeout 1timeout 2timeout");
    for hold in held {
        hold.release();
    }
    eventually("the acquires have arrived", ms(3000), || {
        proxies.iter().all(|proxy| proxy.seen().iter().filter(|seen| seen.name == "SET").count() == 2).then_some(())
    });
    eventually("and their releases behind them", ms(3000), || {
        (servers.values("job") == [None, None, None]).then_some(())
    });
    stays_true("nothing comes late", ms(300), || servers.values("job") == [None, None, None]);
}

#[test]
fn a_holder_says_when_it_is_lost_and_why() {
    let (servers, redsync) = three();
    let options = Options::new().expiry(ms(1500));
    // Taken by force on two nodes: the next extend finds it.
    let holder = wait(redsync.try_lock("job", options.clone())).unwrap();
    assert!(!holder.is_lost() && holder.name() == "job");
    assert_eq!(servers.holding("job", holder.value()), 3);
    for server in &servers[..2] {
        server.cli(&["SET", "job", "theirs"]);
    }
    let (loss, took) = timed(holder.lost());
    println!("lost after {took} ms: {loss}");
    assert_eq!(loss, redleader::redsync::mutex::Loss::Gone);
    assert!(took < 1500, "{took} ms");
    assert!(holder.is_lost() && holder.until().is_none());
    assert_eq!(row(wait(holder.release_lock()), &redsync), "taken 01");
    assert_eq!(servers[2].cli(&["EXISTS", "job"]).int(), Some(0));
    // Two nodes hang: it ends at the deadline, not later.
    for server in servers.iter() {
        server.cli(&["FLUSHALL"]);
    }
    let holder = wait(redsync.try_lock("job", options)).unwrap();
    let until = holder.until().unwrap().as_millis();
    servers[0].stop();
    servers[1].stop();
    let loss = wait(holder.lost());
    let at = boot_ms();
    servers[0].cont();
    servers[1].cont();
    assert_eq!(loss, redleader::redsync::mutex::Loss::Deadline);
    // The stop may have come after one extend.
    assert!(at >= until && at < until + 1500 + 500, "{at} for {until}");
}

#[test]
fn a_holder_outlives_its_expiry_through_the_loss_of_a_node_and_a_drop_releases_it() {
    let (mut servers, redsync) = three();
    let holder = wait(redsync.try_lock("job", Options::new().expiry(ms(900)))).unwrap();
    let lost = holder.lost();
    servers[2].kill();
    stays_true("it is held for three expiries", ms(2700), || !holder.is_lost());
    assert!(!poll_once(lost, || {}), "it has not resolved");
    drop(holder);
    // Long before its expiry, that is.
    let holder = wait(redsync.try_lock("long", Options::new().expiry(ms(60_000)))).unwrap();
    assert_eq!(servers[..2].iter().filter(|server| server.cli(&["EXISTS", "long"]).int() == Some(1)).count(), 2);
    drop(holder);
    eventually("the key goes with the holder", ms(5000), || {
        servers[..2].iter().all(|server| server.cli(&["EXISTS", "job", "long"]).int() == Some(0)).then_some(())
    });
    servers[2].start_again(Data::Lost);
    // Connected again, the third is asked again.
    let mut mutex = redsync.mutex("job");
    eventually("all three are locked", PATIENCE, || {
        wait(mutex.lock()).unwrap();
        let held = servers.holding("job", mutex.value().unwrap());
        wait(mutex.unlock()).unwrap();
        (held == 3).then_some(())
    });
}

#[test]
fn when_the_last_lock_is_gone_its_keys_are_cleaned_up_and_its_connections_close() {
    let servers = Servers::start(3);
    let redsync = connected(&servers);
    let options = Options::new().expiry(ms(60_000));
    let holder = wait(redsync.try_lock("held", options.clone())).unwrap();
    let mut mutex = redsync.mutex("dropped").with(options);
    if poll_once(mutex.lock(), || {}) {
        wait(mutex.unlock()).unwrap();
    }
    drop((holder, mutex, redsync));
    // Only the harness's own connection is left, which is a unix socket's.
    let connections = |index: usize| {
        let clients = servers[index].cli(&["CLIENT", "LIST", "TYPE", "NORMAL"]).text();
        clients.lines().filter(|client| client.contains("addr=127.0.0.1:")).count()
    };
    eventually("the connections close", ms(5000), || (0..3).all(|index| connections(index) == 0).then_some(()));
    for server in servers.iter() {
        assert_eq!(server.cli(&["DBSIZE"]).int(), Some(0));
    }
}

/// Compiles only if tasks of every executor may hold them.
#[test]
fn locks_and_their_futures_go_to_other_threads() {
    fn is_send<T: Send>(_: &T) {}
    fn is_shared<T: Send + Sync + 'static>(_: &T) {}
    let (_servers, redsync) = three();
    let mut mutex = redsync.mutex("job");
    is_shared(&redsync);
    is_shared(&mutex);
    is_send(&mutex.lock());
    is_send(&mutex.unlock());
    is_send(&mutex.extend());
    is_send(&mutex.valid());
    is_send(&redsync.try_lock("held", Options::new()));
    let holder = wait(redsync.try_lock("held", Options::new())).unwrap();
    is_shared(&holder);
    fn is_lasting<T: Send + 'static>(_: &T) {}
    is_lasting(&holder.lost());
    is_send(&holder.release_lock());
}

#[test]
fn what_no_quorum_can_be_made_of_is_refused() {
    assert!(matches!(Redsync::new(Vec::<String>::new()), Err(SetupError::NoNodes)));
    assert!(matches!(Redsync::new(["redis://a", "x"]), Err(SetupError::Url { number: 2, .. })));
    let twice = Redsync::new(["redis://a", "redis://A:6379"]).unwrap_err();
    assert_eq!(twice.to_string(), "the node a:6379 is in the list twice: name each server once");
    // Under another name it is found by its run: one vote of three, though an extend is granted at both addresses.
    let servers = Servers::start(2);
    let redsync = Redsync::new([servers[0].url(), servers[0].unix_url(), servers[1].url()]).unwrap();
    let mut mutex = redsync.mutex("job").with(Options::new().value("v").timeout_factor(0.5));
    servers[0].cli(&["SET", "job", "v", "PX", "8000"]);
    servers[1].cli(&["SET", "job", "other"]);
    let result = wait(mutex.extend());
    assert!(matches!(result, Err(MutexError::NoQuorum { .. })), "{result:?}");
}
