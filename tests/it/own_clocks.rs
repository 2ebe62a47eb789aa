//! C27 and C31: what happens to a replica's own clocks. Its monotonic clock stands still while the machine sleeps, and
//! its wall clock may say anything.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use redleader::clock;

use crate::support::{
    Certificates, Flavour, HttpConnection, Judge, Mode, Process, Proxy, ReplicaOptions, Server, ServerOptions, Servers,
    ShiftedClock, boot_ms, eventually, figure, let_time_pass, setting, stays_true,
};
use crate::witness::{Witness, deadline_ms, exists, guardian, interleaved};

const SOON: Duration = Duration::from_secs(15);
const READYZ: &[u8] = b"GET /readyz HTTP/1.1\r\nHost: replica\r\n\r\n";

/// The tool of the next test: in a process of its own, with the clocks moved, how far each clock gets in a second of
/// boot time.
#[test]
#[expect(clippy::disallowed_methods, reason = "the clock that stands still is what is looked at")]
fn a_process_with_clocks_of_its_own() {
    let Some(_) = setting("CLOCK_SHIM") else { return };
    let (boot, monotonic) = (clock::now(), Instant::now());
    println!("begins");
    eventually("a second of boot time", SOON, || (clock::now().since(boot) >= Duration::from_secs(1)).then_some(()));
    println!("monotonic {}", monotonic.elapsed().as_millis());
}

/// How much of a second the monotonic clock of a process counts whose clocks are moved as soon as it has begun.
fn counted_of_a_second(moved: impl Fn(&ShiftedClock)) -> u64 {
    let clocks = ShiftedClock::new(0, 0);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["own_clocks::a_process_with_clocks_of_its_own", "--exact", "--nocapture"]).envs(clocks.env());
    let process = Process::start("clocks", command);
    let said =
        |what: &str| process.stdout().into_iter().find_map(|line| line.text.strip_prefix(what).map(str::to_owned));
    eventually("it has begun", SOON, || said("begins"));
    moved(&clocks);
    eventually("its second is over", SOON, || said("monotonic ")).parse().unwrap()
}

#[test]
fn the_monotonic_clock_stands_still_and_the_boot_clock_runs_on() {
    let passed = counted_of_a_second(|clocks| clocks.stood_still(Duration::from_millis(600)));
    assert!((350..=450).contains(&passed), "{passed} ms of a second in which the clock stood still for 600 ms");
    let passed = counted_of_a_second(ShiftedClock::stand_still);
    assert!(passed < 500, "{passed} ms of a second in which the clock stood still");
}

#[test]
fn c27_a_leader_that_wakes_from_a_suspend_says_at_once_that_it_leads_no_more() {
    const TTL: Duration = Duration::from_secs(1);
    let servers = Servers::start(3);
    let clocks = ShiftedClock::new(0, 0);
    let args = ["--ttl", "1s", "--node-timeout", "200ms"];
    let a = ReplicaOptions::new("c27", "a", &servers.urls()).args(args).clock(&clocks).start();
    let token = a.wait_elected(1, SOON).number("token");
    let b = ReplicaOptions::new("c27", "b", &servers.urls()).args(args).start();
    eventually("b knows who leads", SOON, || (b.leader_json()["holder"] == "a").then_some(()));
    let mut open = a.connect().expect("it answers");
    assert_eq!(open.get("/readyz").expect("it answers").status, 200);

    // The whole machine sleeps: the process stands still, and so does the clock that counts no suspended time.
    a.stop();
    let asleep = boot_ms();
    let other = b.wait_elected(1, SOON);
    assert!(other.number("token") > token);
    let_time_pass("three ttl", (TTL * 3).saturating_sub(Duration::from_millis(boot_ms() - asleep)));
    open.send(READYZ).expect("the connection is open");
    let mut new = HttpConnection::connect(&a.address(), SOON).expect("it listens");
    new.send(READYZ).expect("the connection is open");
    let slept = Duration::from_millis(boot_ms() - asleep);
    clocks.stood_still(slept);
    a.cont();
    for connection in [&mut open, &mut new] {
        let first = connection.read_response(false).expect("it answers");
        assert_eq!(first.status, 503, "the first answer after the sleep: {}", first.body);
    }
    stays_true("it does not lead, asked every few milliseconds", TTL * 2, || a.readyz().0 == 503);
    let end = a.wait_for_message("stepped down", 1, SOON);
    assert_eq!((end.text("reason"), end.number("token")), ("expired", token));
    let believed = end.number("boot_ms").unwrap() - asleep;
    figure("C27", &format!("asleep for {} ms, believed for {believed} ms of them; ttl 1 s", slept.as_millis()));
    assert!(believed <= 900, "it believed for {believed} ms, and its lease counts for 900 ms");
    b.term();
    a.wait_elected(2, SOON);
    Judge::check_replicas([&a, &b]).assert_clean("C27");
}

/// Whether a process has the library that moves its clocks.
fn has_moved_clocks(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default().contains("clock_shim.so")
}

#[test]
fn c27_a_child_is_dead_before_the_deadline_although_the_monotonic_clock_stands_still() {
    const SETTINGS: [&str; 8] = ["--ttl", "2s", "--grace", "600ms", "--node-timeout", "300ms", "--log-level", "debug"];
    let nodes = Servers::start(3);
    std::thread::scope(|scope| {
        for wrapper_stops in [false, true] {
            let nodes = &nodes;
            scope.spawn(move || {
                let name = if wrapper_stops { "C27 clock and wrapper stand still" } else { "C27 clock stands still" };
                let lock = format!("c27-clock-{wrapper_stops}");
                let proxies: Vec<Proxy> = nodes.iter().map(|node| Proxy::start(&node.address())).collect();
                let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
                let (witness, clocks) = (Witness::new(), ShiftedClock::new(0, 0));
                let words = witness.words();
                let options = |who, urls: &[String]| {
                    let options = ReplicaOptions::new(&lock, who, urls).args(SETTINGS);
                    options.child(words.iter().map(String::as_str))
                };
                let a = options("a", &urls).clock(&clocks).start();
                let token = a.wait_elected(1, SOON).number("token").unwrap();
                let child = witness.wait_written(0, SOON).pid;
                let b = options("b", &nodes.urls()).start();
                eventually("b sees a lead", SOON, || (b.leader_json()["holder"] == "a").then_some(()));
                assert!(has_moved_clocks(a.pid()) && has_moved_clocks(guardian(&a)), "{name}: their clocks are real");

                clocks.stand_still();
                proxies.iter().for_each(|proxy| proxy.set(Mode::Blackhole));
                if wrapper_stops {
                    a.stop();
                }
                let cut = boot_ms();
                let first = witness.wait_written(token, SOON);
                assert_eq!(first.identity, "b", "{name}");
                assert!(b.leads() && !exists(child), "{name}");
                let lines = witness.lines();
                assert_eq!(interleaved(&lines), [], "{name}");
                let last = lines.iter().rfind(|line| line.token == token).unwrap().at_us / 1000;
                let deadline = deadline_ms(&a, token).unwrap();
                assert!(last < deadline, "{name}: {} ms after the deadline", last - deadline);
                assert!(deadline < first.at_us / 1000, "{name}: another wrote before the deadline");
                figure(
                    name,
                    &format!("last line {} ms after the cut, {} ms before the deadline", last - cut, deadline - last),
                );
                if wrapper_stops {
                    a.cont();
                }
                clocks.set(0, 0);
                proxies.iter().for_each(|proxy| proxy.set(Mode::Pass));
                for replica in [&a, &b] {
                    replica.term();
                    assert_eq!(replica.wait_exit(SOON), 0, "{name}");
                }
            });
        }
    });
}

/// Ids of the connections that a node has of its clients.
fn connections(server: &Server) -> BTreeSet<String> {
    let list = server.cli(&["CLIENT", "LIST"]).text();
    let ours = list.lines().filter(|line| !line.contains("cmd=client"));
    ours.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

#[test]
fn c31_a_replica_whose_wall_clock_is_set_leads_on_as_if_nothing_had_happened() {
    const SECOND: i64 = 1_000_000;
    const HOUR: i64 = 3600 * SECOND;
    let certificates = Certificates::generate();
    let servers: Vec<Server> =
        (0..3).map(|_| Server::start(Flavour::Redis70, ServerOptions::new().tls(&certificates))).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let clocks = ShiftedClock::new(0, 0);
    let ca = certificates.ca();
    // Patient with a busy machine: a request that times out costs a connection.
    let args = ["--ttl", "2s", "--node-timeout", "450ms", "--redis-ca-file", ca.to_str().unwrap()];
    let start = |who: &str| ReplicaOptions::new("c31", who, &urls).args(args);
    let a = start("a").clock(&clocks).start();
    let token = a.wait_elected(1, SOON).number("token");
    let b = start("b").start();
    eventually("b knows who leads", SOON, || (b.leader_json()["holder"] == "a").then_some(()));
    let before: Vec<_> = eventually("everyone is connected twice to each node", SOON, || {
        let all: Vec<_> = servers.iter().map(connections).collect();
        all.iter().all(|ids| ids.len() == 4).then_some(all)
    });
    let expiry = || a.metric("lease_expiry_timestamp_seconds", &[]);
    let extends = || a.metric("extend_attempts_total", &[("outcome", "ok")]);
    let real = expiry();
    let back_to_1970 = -(real as i64 - 86_400) * SECOND;
    for (what, offset) in [
        ("an hour ahead", HOUR),
        ("an hour back", -HOUR),
        ("ten years ahead", 10 * 365 * 24 * HOUR),
        ("back to 1970", back_to_1970),
    ] {
        clocks.set(offset, 0);
        eventually("it has the new wall clock", SOON, || {
            let moved = expiry() - real;
            ((moved - offset as f64 / 1e6).abs() < 60.0).then_some(())
        });
        let (from, at) = (extends(), boot_ms());
        stays_true("it leads", Duration::from_millis(1600), || a.leads());
        let (count, passed) = (extends() - from, boot_ms() - at);
        figure("C31", &format!("{what}: {count} extends in {passed} ms, one each 500 ms"));
        // None that is not due; one that is may come late on a busy machine.
        assert!(count >= 1.0 && count <= passed as f64 / 500.0 + 1.5, "{what}: {count} extends in {passed} ms");
        assert!(a.leader_json()["since"].is_string(), "{what}: {}", a.leader_json());
    }
    let after: Vec<_> = servers.iter().map(connections).collect();
    assert_eq!(after, before, "connections were made anew");
    assert_eq!(a.leader_json()["token"].as_u64(), token);
    assert!(a.logged("stepped down").is_empty() && b.logged("elected").is_empty());
    assert_eq!(a.metric("extend_attempts_total", &[("outcome", "no-quorum")]), 0.0);
}
