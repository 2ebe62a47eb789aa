//! How a leadership with a child ends: the order of what happens, and the bound on how long it takes.

use std::time::Duration;

use rustix::process::Signal;

use crate::support::{
    Mode, Proxy, ReplicaOptions, Servers, TempDir, binary, boot_ms, eventually, figure, let_time_pass, mutant_binary,
};
use crate::witness::{Witness, children, deadline_ms, exists, guardian, interleaved, signal};

const SOON: Duration = Duration::from_secs(20);

#[test]
fn c17_the_child_is_dead_before_the_next_attempt_begins() {
    let nodes = Servers::start(3);
    let proxies: Vec<Proxy> = nodes.iter().map(|node| Proxy::start(&node.address())).collect();
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let witness = Witness::new();
    // It needs longer to stop than there is: KILL ends it.
    let script = format!("trap '' TERM; {} & wait; wait", witness.command());
    let settings = ["--ttl", "3s", "--grace", "1s", "--node-timeout", "200ms", "--log-level", "debug"];
    let replica = ReplicaOptions::new("c17", "a", &urls).args(settings).child(["sh", "-c", &script]).start();
    let token = replica.wait_elected(1, SOON).number("token").unwrap();
    witness.wait_written(0, SOON);
    proxies.iter().for_each(|proxy| proxy.set(Mode::Blackhole));
    replica.wait_for_message("stepping down", 1, SOON);
    // The network is back at once: nothing but the order keeps it from trying again.
    proxies.iter().for_each(|proxy| proxy.set(Mode::Pass));
    let pid = witness.lines().last().unwrap().pid;
    let mut answers = Vec::new();
    while exists(pid) {
        answers.push(replica.readyz().0);
    }
    assert!(
        !answers.is_empty() && answers.iter().all(|status| *status == 503),
        "ready while the child dies: {answers:?}"
    );
    let next = replica.wait_elected(2, SOON);
    let log: Vec<String> = replica.log().iter().map(|line| line.message().to_owned()).collect();
    let from = log.iter().position(|message| message == "stepping down").unwrap();
    let at = |what: &str| {
        from + log[from..].iter().position(|message| message == what).unwrap_or_else(|| panic!("{what}: {log:?}"))
    };
    let order = [
        at("stepping down"),
        at("program ended"),
        at("work stopped"),
        at("stepped down"),
        at("attempt ended"),
        at("elected"),
    ];
    assert!(order.is_sorted(), "{order:?} of {log:?}");
    let deadline = deadline_ms(&replica, token).unwrap();
    let last = witness.lines().iter().rfind(|line| line.token == token).unwrap().at_us / 1000;
    assert!(last < deadline);
    figure(
        "C17",
        &format!(
            "last line {} ms before the deadline, {} answers of 503 meanwhile, elected again {} ms after the deadline",
            deadline - last,
            answers.len(),
            next.number("boot_ms").unwrap() as i64 - deadline as i64
        ),
    );
    replica.term();
    assert_eq!(replica.wait_exit(SOON), 0);
}

#[test]
fn c3_a_child_is_another_after_a_loss_during_a_pause() {
    let nodes = Servers::start(3);
    let witness = Witness::new();
    let words = witness.words();
    let options = |who: &str| {
        let options =
            ReplicaOptions::new("c3-child", who, &nodes.urls()).args(["--ttl", "1s", "--node-timeout", "200ms"]);
        options.child(words.iter().map(String::as_str))
    };
    let a = options("a").start();
    let first = a.wait_elected(1, SOON).number("token").unwrap();
    witness.wait_written(0, SOON);
    let b = options("b").start();
    eventually("b sees a lead", SOON, || (b.leader_json()["holder"] == "a").then_some(()));
    a.stop();
    let stopped = boot_ms();
    let second = witness.wait_written(first, SOON);
    assert_eq!(second.identity, "b");
    let_time_pass("the other leads for half a second", Duration::from_millis(500));
    b.term();
    assert_eq!(b.wait_exit(SOON), 0);
    let_time_pass("a pause of ttl + 2 s", Duration::from_millis((stopped + 3000).saturating_sub(boot_ms())));
    a.cont();
    let third = witness.wait_written(second.token, SOON);
    assert_eq!(third.identity, "a");
    let lines = witness.lines();
    assert_eq!(interleaved(&lines), []);
    let writer = |token| lines.iter().find(|line| line.token == token).unwrap().pid;
    assert_ne!(writer(first), writer(third.token), "the child of the first leadership goes on");
    assert!(!exists(writer(first)));
    a.term();
    assert_eq!(a.wait_exit(SOON), 0);
}

/// What remains: the whole tree stands still, as in a machine that is suspended, and goes on at once.
#[test]
fn c27_a_tree_that_stood_still_writes_one_late_line_at_most() {
    let nodes = Servers::start(1);
    let mut late = Vec::new();
    for run in 0..5 {
        let witness = Witness::new();
        let words = witness.words();
        let settings = ["--ttl", "1s", "--grace", "300ms", "--node-timeout", "100ms", "--log-level", "debug"];
        let options = ReplicaOptions::new(&format!("c27-{run}"), "a", &nodes.urls()).args(settings);
        let replica = options.child(words.iter().map(String::as_str)).start();
        let token = replica.wait_elected(1, SOON).number("token").unwrap();
        let pid = witness.wait_written(0, SOON).pid;
        let tree = [replica.pid(), guardian(&replica), pid];
        tree.iter().for_each(|pid| signal(*pid, Signal::STOP));
        let_time_pass("three ttl", Duration::from_secs(3));
        tree.iter().rev().for_each(|pid| signal(*pid, Signal::CONT));
        let thawed = boot_ms();
        eventually("the child is dead", SOON, || (!exists(pid)).then_some(()));
        let dead = boot_ms() - thawed;
        let deadline = deadline_ms(&replica, token).unwrap();
        let lines = witness.lines();
        let after = lines.iter().filter(|line| line.token == token && line.at_us / 1000 >= deadline).count();
        assert!(after <= 1, "{after} lines after the deadline");
        late.push((after, dead));
        replica.term();
        assert_eq!(replica.wait_exit(SOON), 0);
    }
    figure(
        "C27 the whole tree stopped for 3 ttl",
        &format!("late lines, and ms from the thaw to the child's death: {late:?}"),
    );
}

#[test]
fn c115_everything_hangs_and_the_shutdown_keeps_its_bound_as_root() {
    let nodes = Servers::start(3);
    let hook = "sh -c 'trap \"\" TERM; sleep 600'";
    let settings = ["--ttl", "2s", "--node-timeout", "300ms", "--stop-timeout", "700ms", "--hook-timeout", "300ms"];
    // Two more nodes have names, and nobody answers a question for a name.
    let directory = TempDir::new();
    let resolver = directory.write("resolv.conf", "nameserver 192.0.2.1\noptions timeout:30 attempts:5\n");
    let names = ["redis://node-4.example:6379", "redis://node-5.example:6379"].map(str::to_owned);
    let mount = format!("mount --bind {} /etc/resolv.conf && exec {} \"$@\"", resolver.display(), binary().display());
    let script = format!("#!/bin/sh\nexec unshare --mount sh -c '{mount}' redleader \"$@\"\n");
    let inside = directory.write("redleader", &script);
    std::fs::set_permissions(&inside, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let urls = [nodes.urls(), names.to_vec()].concat();
    let options = ReplicaOptions::new("c115", "a", &urls).args(settings).args(["--on-stepped-down", hook]);
    let options = options.binary(inside);
    let replica = options.child(["sh", "-c", "trap '' TERM INT HUP; sleep 600 & wait; wait"]).start();
    let shell = replica.wait_for_message("program started", 1, SOON).number("pid").unwrap();
    let shell = u32::try_from(shell).unwrap();
    eventually("it ignores signals by now", SOON, || (!children(shell).is_empty()).then_some(()));
    // An idle connection is open, half a request was sent, and a stream is read by nobody.
    let mut idle = replica.connect().unwrap();
    assert_eq!(idle.get("/readyz").unwrap().status, 200);
    let mut half = replica.connect().unwrap();
    half.send(b"GET /readyz HTTP/1.1\r\nHost:").unwrap();
    let mut stream = replica.connect().unwrap();
    stream.send(b"GET /leader/stream HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    replica.term();
    let asked = boot_ms();
    let status = eventually("it is not ready", SOON, || {
        idle.get("/readyz").ok().map(|said| said.status).filter(|status| *status != 200)
    });
    let told = boot_ms() - asked;
    assert_eq!(status, 503);
    eventually("the keys are gone", SOON, || (nodes.values("c115") == [None, None, None]).then_some(()));
    let gone = boot_ms() - asked;
    assert_eq!(replica.wait_exit(SOON), 0);
    let ended = boot_ms() - asked;
    let ladder = replica.logged("work is guarded")[0].text("ladder").to_owned();
    let bound = ladder.rsplit(' ').next().unwrap().trim_end_matches('s').parse::<f64>().unwrap() * 1000.0;
    figure(
        "C115, C117, C121",
        &format!("503 after {told} ms, keys gone after {gone} ms, ended after {ended} ms; printed bound {bound} ms"),
    );
    assert!(told <= 500, "ready for {told} ms after SIGTERM");
    assert!(gone >= 700, "the child had its time");
    assert!((ended as f64) <= bound, "{ended} ms, and {bound} ms were promised: {ladder}");
}

#[test]
fn c123_a_panic_kills_the_child_first() {
    let nodes = Servers::start(1);
    let witness = Witness::new();
    // The mutant panics in the thread of the election when it is asked to drain.
    let options = ReplicaOptions::new("c123", "a", &nodes.urls()).args(["--ttl", "2s"]).binary(mutant_binary());
    let replica = options.child(["sh", "-c", &format!("{} & wait", witness.command())]).start();
    let line = witness.wait_written(0, SOON);
    let keeper = guardian(&replica);
    let _ = replica.command(&["drain"]);
    assert_eq!(replica.wait_exit(SOON), 70);
    let ended = boot_ms();
    assert!(replica.log().iter().any(|line| line.message() == "panicked"), "{:?}", replica.log());
    let last = witness.wait_silent(SOON);
    eventually("child and guardian are gone", SOON, || (!exists(line.pid) && !exists(keeper)).then_some(()));
    assert!(last.at_us / 1000 <= ended, "a line {} ms after the end", last.at_us / 1000 - ended);
    figure("C123", &format!("last line {} ms before the end of the process, code 70", ended - last.at_us / 1000));
}

/// The start of the child, the wait between two children and the step-down are moments too.
#[test]
fn asked_to_stop_at_any_moment_it_ends_with_0_and_leaves_nothing() {
    let nodes = Servers::start(1);
    let runs = crate::support::scale().pick(60, 1000);
    let seed = crate::support::Rng::seeded("asked_to_stop_at_any_moment").next_u64();
    let took = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for slot in 0..6_u64 {
            let (nodes, took) = (&nodes, &took);
            scope.spawn(move || {
                let mut rng = crate::support::Rng::new(seed ^ slot);
                let lock = format!("any-moment-{slot}");
                let teach = ReplicaOptions::new(&lock, "first", &nodes.urls())
                    .args(["--ttl", "1s", "--node-timeout", "200ms"])
                    .start();
                teach.wait_elected(1, SOON);
                teach.term();
                assert_eq!(teach.wait_exit(SOON), 0);
                for run in 0..runs / 6 {
                    let script = *rng.pick(&["exec sleep 600", "sleep 0.02; exit 1", "trap '' TERM; sleep 600"]);
                    let policy = *rng.pick(&["restart", "release"]);
                    let hooks =
                        ["--on-elected", "sleep 0.05", "--on-stepped-down", "sleep 0.05", "--hook-timeout", "2s"];
                    let settings =
                        ["--ttl", "1s", "--node-timeout", "200ms", "--stop-timeout", "200ms", "--on-exit", policy];
                    let options =
                        ReplicaOptions::new(&lock, &format!("r{run}"), &nodes.urls()).args(settings).args(hooks);
                    let replica = options.child(["sh", "-c", script]).start();
                    replica.wait_for_message("work is guarded", 1, SOON);
                    let_time_pass("a random moment", rng.duration(Duration::ZERO, Duration::from_millis(400)));
                    let below = children(replica.pid());
                    replica.term();
                    let asked = boot_ms();
                    assert_eq!(replica.wait_exit(SOON), 0, "{script}, {policy}");
                    took.lock().unwrap().push((boot_ms() - asked) as f64);
                    assert_eq!(nodes.values(&lock), [None], "{script}, {policy}");
                    for (pid, name) in below {
                        eventually(&format!("{name} is gone"), SOON, || (!exists(pid)).then_some(()));
                    }
                }
            });
        }
    });
    let took = took.into_inner().unwrap();
    let p = |rank| crate::support::percentile(&took, rank).unwrap();
    figure(
        "W6 asked to stop at any moment",
        &format!("{} runs, from TERM to the end p50 {} ms, longest {} ms", took.len(), p(50), p(100)),
    );
}

#[test]
fn without_the_binary_on_disk_a_running_wrapper_still_starts_its_child() {
    let nodes = Servers::start(1);
    let (directory, witness) = (TempDir::new(), Witness::new());
    let copy = directory.join("redleader");
    std::fs::copy(binary(), &copy).unwrap();
    let words = witness.words();
    let options = ReplicaOptions::new("replaced", "a", &nodes.urls()).args(["--ttl", "1s"]).binary(copy.clone());
    let replica = options.child(words.iter().map(String::as_str)).start();
    replica.wait_for_message("work is guarded", 1, SOON);
    std::fs::remove_file(&copy).unwrap();
    witness.wait_written(0, SOON);
    replica.term();
    assert_eq!(replica.wait_exit(SOON), 0);
}
