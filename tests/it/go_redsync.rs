//! With the real go-redsync on the same key: whoever holds excludes the other (S0).

use std::time::Duration;

use serde_json::Value as Json;

use crate::support::{Judge, Peer, Replica, ReplicaOptions, Servers, Term, Track, eventually, figure, stays_true};

const SOON: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_millis(800);
const THREE_TTL: Duration = Duration::from_millis(3 * 800 + 100);

#[test]
fn s0_redleader_excludes_go_redsync_while_it_extends_on_3_nodes() {
    redleader_excludes_go_redsync(3);
}

#[test]
fn s0_redleader_excludes_go_redsync_while_it_extends_on_5_nodes() {
    redleader_excludes_go_redsync(5);
}

#[test]
fn s0_go_redsync_excludes_redleader_while_it_extends_on_3_nodes() {
    go_redsync_excludes_redleader(3);
}

#[test]
fn s0_go_redsync_excludes_redleader_while_it_extends_on_5_nodes() {
    go_redsync_excludes_redleader(5);
}

#[test]
fn s0_the_key_of_a_killed_one_is_taken_by_the_other_after_its_ttl() {
    for nodes in [3, 5] {
        let (servers, lock) = (Servers::start(nodes), "s0-killed");
        let replica = candidate(&servers, lock, "first");
        replica.wait_elected(1, SOON);
        let mut tracks = Vec::new();

        // redleader dies, go-redsync waits.
        let waiter = go("wait", &servers, lock);
        waiter.wait_for("waiting", 1, SOON);
        replica.kill9();
        let (earliest, _) = servers.free_between(lock);
        let locked = waiter.wait_for("locked", 1, SOON);
        assert!(at(&locked) >= earliest / 1000, "go-redsync locked {} ms early", earliest / 1000 - at(&locked));
        assert_eq!(waiter.wait_exit(SOON), 0);
        tracks.extend([replica.track(), track("go-1", &waiter, None)]);

        // go-redsync dies, redleader waits.
        let holder = go("hold", &servers, lock);
        let value = value(&holder.wait_for("locked", 1, SOON));
        let replica = candidate(&servers, lock, "second");
        eventually("it sees a foreign holder", SOON, || {
            (replica.leader_json()["holderKind"] == "foreign").then_some(())
        });
        let dead = holder.kill9();
        assert!(servers.holding(lock, &value) > nodes / 2, "the key of the dead one is not there");
        let (earliest, _) = servers.free_between(lock);
        let elected = replica.wait_elected(1, SOON).number("boot_ms").unwrap();
        assert!(elected >= earliest / 1000, "elected {} ms before the key was gone", earliest / 1000 - elected);
        tracks.extend([replica.track(), track("go-2", &holder, Some(dead))]);
        judge(&format!("S0 killed ones, {nodes} nodes"), &tracks, 3);
    }
}

fn redleader_excludes_go_redsync(nodes: usize) {
    let (servers, lock) = (Servers::start(nodes), "s0-ours");
    let replica = candidate(&servers, lock, "ours");
    replica.wait_elected(1, SOON);
    let monitor = servers[0].monitor();
    let waiter = go("wait", &servers, lock);
    waiter.wait_for("waiting", 1, SOON);
    let extended = || replica.metric("extend_attempts_total", &[("outcome", "ok")]);
    let before = extended();
    stays_true("redleader leads and go-redsync waits", THREE_TTL, || {
        let owners = servers.values(lock);
        let ours = |owner: &Option<String>| owner.as_ref().is_some_and(|owner| owner.starts_with("ours:"));
        replica.leads() && owners.iter().all(ours) && waiter.events_of("locked").is_empty()
    });
    // Three ttl at four extends each, less what a busy machine delays.
    assert!(extended() - before >= 8.0, "{} extends in three ttl", extended() - before);
    let tries = monitor.requests().iter().filter(|line| line.name == "SET" && line.args[0] == lock).count();
    assert!(tries >= 3, "go-redsync tried {tries} times only");

    replica.term();
    let locked = waiter.wait_for("locked", 1, SOON);
    let ended = replica.wait_for_message("stepped down", 1, SOON);
    assert!(ended.number("boot_ms").unwrap() <= at(&locked), "{} {locked}", ended.json);
    assert_eq!(replica.wait_exit(SOON), 0);
    assert_eq!(waiter.wait_exit(SOON), 0);
    judge(&format!("S0 redleader first, {nodes} nodes"), &[replica.track(), track("go", &waiter, None)], 1);
}

fn go_redsync_excludes_redleader(nodes: usize) {
    let (servers, lock) = (Servers::start(nodes), "s0-theirs");
    // The nodes know the lock, so that no quarantine keeps redleader away in place of go-redsync.
    let teacher = candidate(&servers, lock, "teacher");
    teacher.wait_elected(1, SOON);
    teacher.term();
    assert_eq!(teacher.wait_exit(SOON), 0);

    let holder = Peer::start("hold", lock, &servers.addresses(), &["-ttl", "800ms", "-extend", "200ms"]);
    let value = value(&holder.wait_for("locked", 1, SOON));
    let replica = candidate(&servers, lock, "theirs");
    eventually("it sees a foreign holder", SOON, || (replica.leader_json()["holderKind"] == "foreign").then_some(()));
    stays_true("go-redsync holds and redleader waits", THREE_TTL, || {
        let holds = servers.holding(lock, &value) == nodes;
        holds && !replica.leads() && replica.logged("elected").is_empty() && holder.events_of("lost").is_empty()
    });
    let (status, reason) = replica.readyz();
    assert_eq!(status, 503);
    assert!(reason.contains("held by a holder that is not redleader"), "{reason}");

    holder.finish();
    let elected = replica.wait_elected(1, SOON);
    let unlocked = holder.wait_for("unlocked", 1, SOON);
    assert_eq!(unlocked["ok"], true, "redleader took what was held: {unlocked}");
    assert!(at(&unlocked) <= elected.number("boot_ms").unwrap(), "{unlocked} {}", elected.json);
    let tracks = [teacher.track(), track("go", &holder, None), replica.track()];
    judge(&format!("S0 go-redsync first, {nodes} nodes"), &tracks, 2);
}

/// No two at once, and as many hand-overs as the test made. Go-redsync has no tokens to compare.
fn judge(name: &str, tracks: &[Track], handovers: usize) {
    let report = Judge::check(tracks);
    figure(name, &format!("hand-overs {}, overlaps {}", report.handovers, report.overlaps.len()));
    assert!(report.overlaps.is_empty(), "{name}: both held: {:#?}", report.overlaps);
    assert_eq!(report.handovers, handovers, "{name}: {:#?}", report.terms);
}

fn candidate(servers: &Servers, lock: &str, identity: &str) -> Replica {
    ReplicaOptions::new(lock, identity, &servers.urls()).args(["--ttl", &format!("{}ms", TTL.as_millis())]).start()
}

fn go(mode: &str, servers: &Servers, lock: &str) -> Peer {
    Peer::start(mode, lock, &servers.addresses(), &["-ttl", &format!("{}ms", TTL.as_millis())])
}

/// What go-redsync held, from its lock to its unlock or its death.
fn track(who: &str, peer: &Peer, dead: Option<u64>) -> Track {
    let ends: Vec<u64> = peer.events_of("unlocked").iter().map(at).collect();
    let locked = peer.events_of("locked");
    let term = |(index, event): (usize, &Json)| {
        let end = ends.get(index).copied().or(dead);
        Term { who: who.to_owned(), token: 0, start: at(event), end }
    };
    Track { who: who.to_owned(), terms: locked.iter().enumerate().map(term).collect() }
}

fn at(event: &Json) -> u64 {
    event["boot_ms"].as_u64().unwrap_or_else(|| panic!("no boot_ms in {event}"))
}

fn value(event: &Json) -> String {
    event["value"].as_str().unwrap_or_else(|| panic!("no value in {event}")).to_owned()
}
