//! What a server refuses to every client at once, made real, as `doctor` tells of it.

use std::time::Duration;

use crate::doctor::{Found, name, server};
use crate::support::{Flavour, Server, ServerOptions, eventually};

const SOON: Duration = Duration::from_secs(10);
const LOCK: &str = "job";

/// One of each kind, with these arguments on top.
fn one_of_each<'a>(args: &'a [&'a str]) -> impl Iterator<Item = Server> + 'a {
    Flavour::ALL.into_iter().map(move |flavour| {
        println!("{}", flavour.as_str());
        Server::start(flavour, ServerOptions::new().args(["--appendonly", "yes"].iter().chain(args).copied()))
    })
}

/// The node is refused with this kind, in the server's own words, with what to do; the page says 64.
#[track_caller]
fn assert_refused(server: &Server, kind: &str, words: &str, remedy: &str) {
    let found = Found::on(&[server.url()], &[]);
    let finding = found.assert("refused", kind, &[&name(server)], words);
    assert_eq!(finding["remedy"], remedy);
    assert_eq!(found.code, 64, "{}", found.text);
}

#[test]
fn a_server_whose_connections_are_all_taken_is_refused() {
    for server in one_of_each(&[]) {
        let mut held = server.client().unwrap();
        held.call(&["CONFIG", "SET", "maxclients", "1"]).unwrap();
        let remedy = "raise maxclients there, or find who holds so many connections";
        assert_refused(&server, "maxclients", "max number of clients reached", remedy);
        held.call(&["CONFIG", "SET", "maxclients", "100"]).unwrap();
        Found::on(&[server.url()], &[]).assert_none("maxclients");
    }
}

#[test]
fn a_server_that_cannot_save_and_so_stops_writes_is_refused() {
    for server in one_of_each(&["--stop-writes-on-bgsave-error", "yes", "--dbfilename", "in-the-way"]) {
        // A snapshot is renamed to this name when it is whole, and cannot be.
        std::fs::create_dir(server.directory().join("in-the-way")).unwrap();
        assert_eq!(server.cli(&["CONFIG", "SET", "save", "3600 1000000"]).text(), "OK");
        Found::on(&[server.url()], &[]).assert_none("misconf");
        let said = server.cli(&["BGSAVE"]);
        assert!(!said.is_error(), "{said:?}");
        eventually("the save has failed", SOON, || {
            server.cli(&["INFO", "persistence"]).text().contains("rdb_last_bgsave_status:err").then_some(())
        });
        assert_refused(&server, "misconf", "MISCONF", "see its log: it cannot write to its disk");
    }
}

#[test]
fn a_server_that_runs_a_script_for_too_long_is_refused() {
    for server in one_of_each(&["--lua-time-limit", "20"]) {
        let mut busy = server.client().unwrap();
        busy.send(&crate::support::resp::command(&["EVAL", "while true do end", "0"])).unwrap();
        eventually("it is busy", SOON, || server.cli(&["GET", "x"]).text().starts_with("BUSY").then_some(()));
        assert_refused(&server, "busy", "BUSY", "find the script that runs for too long, or SCRIPT KILL");
        assert_eq!(server.cli(&["SCRIPT", "KILL"]).text(), "OK");
        eventually("it is idle", SOON, || server.cli(&["GET", "x"]).is_nil().then_some(()));
        Found::on(&[server.url()], &[]).assert_none("busy");
    }
}

#[test]
fn a_replica_that_has_lost_its_primary_is_refused_for_both() {
    for server in one_of_each(&["--replica-serve-stale-data", "no"]) {
        // Nobody listens on port 1.
        server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
        assert_refused(&server, "masterdown", "MASTERDOWN", "name the primary in --redis");
        assert_refused(&server, "readonly", "its role is slave of 127.0.0.1:1", "name the primary in --redis");
    }
}

/// A cluster of one shard that serves all slots is a node, until the lock's slot is on its way to another.
#[test]
fn a_slot_that_migrates_is_refused() {
    let nodes: Vec<Server> = (0..2).map(|_| server(&["--cluster-enabled", "yes"])).collect();
    nodes[0].cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    eventually("one shard serves all", SOON, || {
        nodes[0].cli(&["CLUSTER", "INFO"]).text().contains("cluster_state:ok").then_some(())
    });
    nodes[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &nodes[1].port().to_string()]);
    let to = nodes[1].cli(&["CLUSTER", "MYID"]).text();
    let slot = nodes[0].cli(&["CLUSTER", "KEYSLOT", LOCK]).text();
    Found::on(&[nodes[0].url()], &[]).assert_none("moved");
    eventually("the other is known", Duration::from_secs(30), || {
        (nodes[0].cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to]).text() == "OK").then_some(())
    });
    let remedy = "name a standalone server: shards of a cluster are no independent nodes";
    assert_refused(&nodes[0], "moved", &format!("ASK {slot} 127.0.0.1:{}", nodes[1].port()), remedy);
    // One of the lock's two keys is here, and the other is not.
    let before = nodes[0].cli(&["CLUSTER", "SETSLOT", &slot, "STABLE"]).text();
    nodes[0].cli(&["SET", LOCK, "a-lock-of-somebody", "PX", "60000"]);
    let again = nodes[0].cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to]).text();
    assert_eq!([before, again], ["OK", "OK"]);
    assert_refused(&nodes[0], "moved", "TRYAGAIN", remedy);
}
