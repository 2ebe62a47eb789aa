//! Replicas that are not alike: other lists of nodes, other ttls, another kind of contender. What is promised for them
//! holds, and what is not promised is shown as it is.

use std::time::Duration;

use redleader::redsync::{Options, Redsync};

use crate::doctor::Found;
use crate::locker::wait;
use crate::support::{Data, Judge, Mode, Proxy, Replica, ReplicaOptions, Server, Servers, boot_ms, eventually, figure};

const SOON: Duration = Duration::from_secs(20);
const LOCK: &str = "job";

fn at(line: &crate::support::LogLine) -> u64 {
    line.number("boot_ms").unwrap()
}

fn replica(servers: &Servers, who: &str, nodes: &[usize], ttl: &str) -> Replica {
    let urls: Vec<String> = nodes.iter().map(|node| servers[*node].url()).collect();
    ReplicaOptions::new(LOCK, who, &urls).args(["--ttl", ttl]).start()
}

#[test]
fn lists_that_change_by_one_node_in_each_roll_make_no_second_leader() {
    let servers = Servers::start(5);
    let rolls: [&[usize]; 7] = [&[0, 1, 2], &[0, 1, 2, 3], &[0, 1, 2, 3, 4], &[1, 2, 3, 4], &[1, 2, 3], &[1, 2], &[2]];
    let mut gone = Vec::new();
    let mut old = replica(&servers, "roll-0", rolls[0], "500ms");
    old.wait_elected(1, SOON);
    for (roll, nodes) in rolls.iter().enumerate().skip(1) {
        let new = replica(&servers, &format!("roll-{roll}"), nodes, "500ms");
        eventually("the new one knows who leads", SOON, || {
            let holder = new.leader_json()["holder"].as_str().map(str::to_owned);
            (holder.as_deref() == Some(old.identity())).then_some(())
        });
        // By turns asked to go, and killed.
        if roll % 2 == 0 {
            old.term();
            assert_eq!(old.wait_exit(SOON), 0);
        } else {
            old.kill9();
        }
        new.wait_elected(1, SOON);
        gone.push(std::mem::replace(&mut old, new));
    }
    let report = Judge::check_replicas(gone.iter().chain([&old]));
    report.assert_clean("lists that change by one node in each roll");
    assert_eq!(report.handovers, rolls.len() - 1);
}

/// Not promised: three nodes and three others with one in common have two quorums.
#[test]
fn lists_that_differ_by_more_make_two_leaders_and_are_told() {
    let servers = Servers::start(5);
    let (a, b) = (replica(&servers, "a", &[0, 1, 2], "500ms"), replica(&servers, "b", &[2, 3, 4], "500ms"));
    eventually("both lead", SOON, || (a.leads() && b.leads()).then_some(()));
    // A standby, whose list shares two nodes with one of them.
    let c = replica(&servers, "c", &[0, 1, 4], "500ms");
    eventually("the difference is told", SOON, || (c.metric("list_mismatch", &[]) == 1.0).then_some(()));
    let told = c.wait_for_message("lists differ", 1, SOON);
    assert_eq!((told.text("level"), told.number("by")), ("WARN", Some(2)));
    let report = Judge::check_replicas([&a, &b]);
    assert!(!report.overlaps.is_empty(), "two lists made one leader: is more promised than was thought? {report}");
    let urls = |nodes: &[usize]| nodes.iter().map(|node| servers[*node].url()).collect::<Vec<_>>();
    let found = Found::on(&urls(&[0, 1, 2]), &["--next", &urls(&[2, 3, 4]).join(",")]);
    found.assert("refused", "next", &[], "");
    figure("lists that differ by more (not promised)", &format!("{report}; told by a standby, refused by doctor"));
}

/// 8 s and 30 s in small: whoever has seen the longer ttl waits for it, also where all nodes have forgotten.
#[test]
fn a_shorter_ttl_beside_a_longer_one_waits_out_the_longer_quarantine() {
    const LONG: u64 = 3750;
    const QUARANTINE: u64 = LONG * 11 / 10;
    let mut servers = Servers::start(3);
    let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(&server.address())).collect();
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let a = ReplicaOptions::new(LOCK, "a", &urls).args(["--ttl", "3750ms"]).start();
    a.wait_elected(1, SOON);
    let b = replica(&servers, "b", &[0, 1, 2], "1s");
    let line = b.wait_for_message("quarantine grew", 1, SOON);
    assert_eq!(line.number("quarantine_ms"), Some(QUARANTINE));
    eventually("b knows who leads", SOON, || (b.leader_json()["holder"] == "a").then_some(()));
    assert_eq!(b.leader_json()["quarantineMs"], QUARANTINE);
    // The leader hears nothing of it and believes for as long as it may, and all nodes forget that it leads.
    proxies.iter().for_each(|proxy| proxy.set(Mode::Blackhole));
    servers.iter_mut().for_each(Server::kill);
    let forgot = boot_ms();
    servers.iter_mut().for_each(|server| server.start_again(Data::Lost));
    let won = at(&b.wait_elected(1, SOON));
    let end = at(&a.wait_for_message("stepped down", 1, SOON));
    figure(
        "ttls of 1 s and 3.75 s",
        &format!(
            "all nodes forgot: the other led {} ms later, the leader had believed for {} ms; quarantine {QUARANTINE} ms",
            won - forgot,
            end.saturating_sub(forgot)
        ),
    );
    assert!(won - forgot >= QUARANTINE - 50, "after {} ms", won - forgot);
    Judge::check_replicas([&a, &b]).assert_clean("ttls of 1 s and 3.75 s");
}

/// Not promised: a contender that speaks plain Redsync knows no quarantine, and nodes that have forgotten tell it
/// nothing.
#[test]
fn plain_redsync_beside_an_empty_restart_makes_two() {
    let mut servers = Servers::start(3);
    let a = replica(&servers, "a", &[0, 1, 2], "8s");
    a.wait_elected(1, SOON);
    servers[..2].iter_mut().for_each(|server| server.restart(Data::Lost));
    let plain = Redsync::new(servers.iter().map(Server::url)).unwrap();
    let mut mutex = plain.mutex(LOCK).with(Options::new().tries(20));
    wait(mutex.lock()).unwrap();
    let both = a.leads();
    let at_once = a.wait_for_message("stepped down", 1, SOON);
    figure(
        "plain Redsync and an empty restart (not promised)",
        &format!("both at once: {both}; the leader ended with {:?} at its next extend", at_once.text("reason")),
    );
    assert!(both, "nobody led twice: is more promised than was thought?");
    assert_eq!(at_once.text("reason"), "lost");
    // Without forgetting it is excluded.
    let mut second = plain.mutex(LOCK).with(Options::new().tries(1));
    wait(second.try_lock()).unwrap_err();
    wait(mutex.unlock()).unwrap();
}
