//! The examples of docs/fencing.md: a leader is stopped between its decision and its write, another one writes, and
//! what the first one writes when it goes on is refused.

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::locker::example;
use crate::support::{
    Flavour, Port, Postgres, Process, Server, ServerOptions, Servers, boot_ms, eventually, figure, get,
};

const SOON: Duration = Duration::from_secs(60);
/// How long a leader thinks, in seconds: long enough to be stopped in.
const THINK: &str = "0.5";

fn token_of(line: &str) -> u64 {
    line.split_whitespace().find_map(|word| word.parse().ok()).unwrap_or_else(|| panic!("no token: {line}"))
}

fn said(process: &Process, words: &str) -> Vec<u64> {
    let lines = process.stdout().into_iter().map(|line| line.text);
    lines.filter(|line| line.starts_with(words)).map(|line| token_of(&line)).collect()
}

/// Runs the story with two copies of a program, and gives the tokens of the old and the new leader. `writer` starts one
/// under an identity; `state` is balance and token of the data.
fn late_write_is_refused(name: &str, writer: impl Fn(&str) -> Command, state: impl Fn() -> (i64, u64)) {
    let a = Process::start("a", writer("a"));
    eventually("a has written", SOON, || (!said(&a, "written").is_empty()).then_some(()));
    let b = Process::start("b", writer("b"));
    // It has decided to write, and has not written.
    let count = said(&a, "thinking").len();
    eventually("a thinks again", SOON, || (said(&a, "thinking").len() > count).then_some(()));
    a.signal(Signal::STOP);
    let (written, stopped) = (said(&a, "written").len(), boot_ms());
    let old = *said(&a, "thinking").last().unwrap();
    eventually("b has written", SOON, || (!said(&b, "written").is_empty()).then_some(()));
    let new = said(&b, "written")[0];
    assert!(new > old, "{new} after {old}");
    // b thinks no more, so that what is counted from here on is a's.
    b.signal(Signal::STOP);
    let before = state();
    a.signal(Signal::CONT);
    let refused = eventually("a's late write is refused", SOON, || said(&a, "refused").first().copied());
    let late = boot_ms() - stopped;
    assert_eq!(refused, old);
    assert_eq!(said(&a, "written").iter().filter(|token| **token == old).count(), written, "none was accepted");
    // a may lead again, with a larger token; what it may not is write with the old one.
    let after = state();
    assert!(after.1 >= before.1, "{before:?} {after:?}");
    if after.1 == before.1 {
        assert_eq!(after.0, before.0, "nothing was changed");
    }
    figure(
        &format!("fencing, {name}"),
        &format!("token {old} wrote {late} ms late, after token {new} had written, and was refused"),
    );
    b.signal(Signal::CONT);
    for process in [&a, &b] {
        process.signal(Signal::INT);
        assert_eq!(process.wait_exit(SOON), 0);
    }
}

#[test]
fn a_late_write_to_postgres_is_refused() {
    let (nodes, database) = (Servers::start(3), Postgres::start());
    let writer = |who: &str| {
        let mut command = example("fencing_postgres");
        command.args([&nodes.urls().join(","), who, &database.connection(), THINK]);
        command
    };
    let state = || {
        let row = database.query("SELECT balance, token FROM account WHERE name = 'main'");
        let (balance, token) = row.split_once('|').unwrap();
        (balance.parse().unwrap(), token.parse().unwrap())
    };
    late_write_is_refused("PostgreSQL", writer, state);
}

#[test]
fn a_late_write_to_redis_is_refused() {
    let (nodes, data) = (Servers::start(3), Server::start(Flavour::Redis70, ServerOptions::new()));
    let writer = |who: &str| {
        let mut command = example("fencing_redis");
        command.args([&nodes.urls().join(","), who, &data.url(), THINK]);
        command
    };
    let state = || {
        let read = |key: &str| data.cli(&["GET", key]).text();
        (read("{account}").parse().unwrap_or(0), read("{account}:token").parse().unwrap_or(0))
    };
    late_write_is_refused("Redis", writer, state);
}

#[test]
fn a_late_write_over_http_is_refused() {
    let (nodes, port) = (Servers::start(3), Port::claim());
    let mut serve = example("fencing_http");
    serve.args(["serve", &port.address()]);
    let service = Process::start("service", serve);
    eventually("it serves", SOON, || service.stdout().iter().any(|line| line.text == "serving").then_some(()));
    let writer = |who: &str| {
        let mut command = example("fencing_http");
        command.args(["write", &nodes.urls().join(","), who, &format!("http://{}/account", port.address()), THINK]);
        command
    };
    let state = || {
        let body = get(&port.address(), "/account").unwrap().body;
        let (balance, token) = body.trim().split_once(' ').unwrap();
        (balance.parse().unwrap(), token.parse().unwrap())
    };
    late_write_is_refused("HTTP", writer, state);
}

#[test]
fn the_example_of_an_elector_hands_over() {
    let nodes = Servers::start(3);
    let start = |who: &str| {
        let mut command = example("elector");
        command.args([&nodes.urls().join(","), who, "1"]);
        Process::start(who, command)
    };
    let a = start("a");
    eventually("a works", SOON, || (!said(&a, "working").is_empty()).then_some(()));
    let b = start("b");
    eventually("b takes part", SOON, || (!b.stdout().is_empty()).then_some(()));
    a.signal(Signal::INT);
    assert_eq!(a.wait_exit(SOON), 0);
    assert_eq!(said(&a, "stopped"), said(&a, "leading"));
    eventually("b works", SOON, || (!said(&b, "working").is_empty()).then_some(()));
    assert!(said(&b, "leading") > said(&a, "leading"));
    b.signal(Signal::INT);
    assert_eq!(b.wait_exit(SOON), 0);
}
