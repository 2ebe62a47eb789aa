//! S5: every error of Redsync, by what three real nodes hold when they are asked.

use redleader::redsync::{Mutex, MutexError, Options, Redsync};

use crate::locker::{connected, ms, row, wait};
use crate::support::{Proxy, Servers};

/// What a node is before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has our value.
    Ours,
    /// It has somebody else's.
    Theirs,
    /// It has no key.
    Absent,
    /// It refuses to write: too few replicas.
    Refuses,
    /// It has a key of another type.
    List,
}

use State::{Absent, List, Ours, Refuses, Theirs};

fn prepare(servers: &Servers, states: [State; 3]) {
    for (server, state) in servers.iter().zip(states) {
        server.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
        server.cli(&["DEL", "job"]);
        match state {
            Ours => drop(server.cli(&["SET", "job", "ours", "PX", "8000"])),
            Theirs => drop(server.cli(&["SET", "job", "theirs"])),
            Absent => {}
            Refuses => drop(server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"])),
            List => drop(server.cli(&["RPUSH", "job", "x"])),
        }
    }
}

fn ours(redsync: &Redsync) -> Mutex {
    let options = Options::new().value("ours").value_fn(|| Ok::<_, std::convert::Infallible>("ours".to_owned()));
    redsync.mutex("job").with(options.tries(2).retry_delay(ms(1)).timeout_factor(0.5))
}

#[test]
fn every_outcome_of_a_lock() {
    let servers = Servers::start(3);
    let redsync = connected(&servers);
    for (states, expected) in [
        ([Absent, Absent, Absent], "ok"),
        ([Absent, Absent, Theirs], "ok"),
        ([Absent, Absent, Refuses], "ok"),
        ([Absent, Theirs, Refuses], "no quorum of 2: 0/1//2noreplicas"),
        ([Absent, Theirs, Theirs], "taken 12"),
        ([Absent, List, List], "taken 12"),
        ([Theirs, Theirs, Refuses], "taken 01"),
        ([Absent, Refuses, Refuses], "nodes 1noreplicas 2noreplicas"),
        ([Refuses, Refuses, Refuses], "nodes 0noreplicas 1noreplicas 2noreplicas"),
    ] {
        prepare(&servers, states);
        let mut mutex = ours(&redsync);
        assert_eq!(row(wait(mutex.lock()), &redsync), expected, "{states:?}");
        if expected != "ok" {
            assert_eq!(servers.holding("job", "ours"), 0, "cleaned up: {states:?}");
            assert_eq!(mutex.until(), None);
        }
    }
}

#[test]
fn every_outcome_of_an_unlock() {
    let servers = Servers::start(3);
    let redsync = connected(&servers);
    for (states, expected) in [
        ([Ours, Ours, Ours], "ok"),
        ([Ours, Ours, Refuses], "ok"),
        ([Ours, Absent, Absent], "expired 12"),
        ([Absent, Absent, Absent], "expired 012"),
        ([Theirs, Theirs, Ours], "taken 01"),
        ([Theirs, Absent, Ours], "no quorum of 2: 2/0/1/"),
        ([Ours, Theirs, List], "no quorum of 2: 0/1//2wrongtype"),
        ([Refuses, List, Ours], "nodes 0noreplicas 1wrongtype"),
    ] {
        prepare(&servers, states);
        // The servers that refuse hold our value, so that they have something to refuse.
        for (server, _) in servers.iter().zip(states).filter(|(_, state)| *state == Refuses) {
            server.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
            server.cli(&["SET", "job", "ours"]);
            server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        }
        assert_eq!(row(wait(ours(&redsync).unlock()), &redsync), expected, "{states:?}");
        for (server, state) in servers.iter().zip(states) {
            let left = server.cli(&["EXISTS", "job"]).int();
            let expected = matches!(state, Theirs | List | Refuses);
            assert_eq!(left, Some(i64::from(expected)), "what is ours is deleted, and nothing else: {states:?}");
        }
    }
}

#[test]
fn every_outcome_of_an_extend() {
    let servers = Servers::start(3);
    let redsync = connected(&servers);
    for (states, expected) in [
        ([Ours, Ours, Ours], "ok"),
        ([Ours, Ours, Theirs], "ok"),
        ([Ours, Ours, List], "ok"),
        ([Ours, Absent, Absent], "expired 12"),
        ([Ours, Theirs, Theirs], "taken 12"),
        ([Ours, Theirs, Absent], "no quorum of 2: 0/1/2/"),
        ([Ours, Absent, List], "no quorum of 2: 0//1/2wrongtype"),
        ([Ours, List, List], "nodes 1wrongtype 2wrongtype"),
    ] {
        prepare(&servers, states);
        servers[0].cli(&["PEXPIRE", "job", "1000"]);
        let mut mutex = ours(&redsync);
        assert_eq!(row(wait(mutex.extend()), &redsync), expected, "{states:?}");
        assert_eq!(mutex.until().is_some(), expected == "ok", "until is as it was");
        let life = servers[0].cli(&["PTTL", "job"]).int().unwrap();
        assert!(life > 1000, "a node that extended keeps its new expiry: {life}");
    }
}

#[test]
fn every_outcome_of_valid() {
    let servers = Servers::start(3);
    let redsync = connected(&servers);
    for (states, expected) in [
        ([Ours, Ours, Ours], "ok"),
        ([Ours, Ours, List], "ok"),
        ([Ours, Theirs, Theirs], "taken 12"),
        ([Ours, Absent, Absent], "expired 12"),
        ([Ours, Theirs, Absent], "no quorum of 2: 0/1/2/"),
        ([Ours, List, List], "nodes 1wrongtype 2wrongtype"),
    ] {
        prepare(&servers, states);
        assert_eq!(row(wait(ours(&redsync).valid()), &redsync), expected, "{states:?}");
    }
}

/// A quorum that answers after what it granted is over.
#[test]
fn a_quorum_that_comes_too_late_is_none() {
    let servers = Servers::start(3);
    let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(&server.address())).collect();
    let redsync = Redsync::new(proxies.iter().map(Proxy::url)).unwrap();
    let options = Options::new().value("ours").expiry(ms(60)).timeout_factor(20.0).tries(1);
    let mut mutex = redsync.mutex("job").with(options);
    wait(mutex.try_lock()).ok();
    for proxy in &proxies {
        proxy.delay(ms(100));
    }
    for server in servers.iter() {
        server.cli(&["DEL", "job"]);
    }
    assert_eq!(row(wait(mutex.lock()), &redsync), "late 012");
    assert_eq!(servers.values("job"), [None, None, None]);
    for server in servers.iter() {
        server.cli(&["SET", "job", mutex.value().unwrap_or("ours"), "PX", "8000"]);
    }
    let before = mutex.until();
    assert_eq!(row(wait(mutex.extend()), &redsync), "late 012");
    assert_eq!(mutex.until(), before);
}

#[test]
fn faults_of_nodes_are_told_by_their_kind() {
    let mut servers = Servers::start(3);
    let redsync = connected(&servers);
    servers[0].kill();
    servers[1].stop();
    let mut mutex = ours(&redsync);
    assert_eq!(row(wait(mutex.try_lock()), &redsync), "nodes 0connect 1timeout");
    servers[1].cont();
    for way in ["-set", "-eval"] {
        servers[1].cli(&["ACL", "SETUSER", "u", "reset", "on", ">p", "~*", "+@all", way]);
        let url = servers[1].url().replace("redis://", "redis://u:p@");
        let single = Redsync::new([url]).unwrap();
        let result = wait(single.mutex("other").with(Options::new().timeout_factor(0.5)).try_lock());
        let error = result.unwrap_err();
        assert!(matches!(&error, MutexError::Nodes { .. }), "{error:?}");
        assert_eq!(error.failed()[0].kind.as_str(), "noperm", "{way}");
        assert!(!format!("{error} {error:?}").contains("u:p"), "{error:?}");
    }
}
