//! `status` and `wait` on real servers, with a real leader.

use std::process::Command;
use std::time::Duration;

use serde_json::Value as Json;

use crate::support::{Data, Output, Process, ReplicaOptions, Servers, binary, eventually, run};

const SOON: Duration = Duration::from_secs(10);
const LOCK: &str = "job";

fn command<S: AsRef<str>>(name: &str, nodes: &[S], args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args([name, "--lock", LOCK]);
    if !args.contains(&"--ttl") {
        command.args(["--ttl", "1s"]);
    }
    for node in nodes {
        command.args(["--redis", node.as_ref()]);
    }
    command.args(args);
    command
}

fn status<S: AsRef<str>>(nodes: &[S], args: &[&str]) -> Output {
    run("status", command("status", nodes, args), SOON)
}

fn json<S: AsRef<str>>(nodes: &[S], args: &[&str]) -> Json {
    let output = status(nodes, &[args, &["--output", "json"]].concat());
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", output.stdout))
}

#[test]
fn who_leads_since_when_and_what_each_node_says() {
    let mut servers = Servers::start(3);
    let urls = servers.urls();
    let replica = ReplicaOptions::new(LOCK, "pod-a", &urls).args(["--ttl", "1s"]).start();
    let elected = replica.wait_elected(1, SOON);
    let token = elected.number("token").unwrap();
    eventually("every node holds it", SOON, || (status(&urls, &["--control", "off"]).code == 0).then_some(()));
    let page = status(&urls, &["--control", "off"]);
    for line in page.stdout.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    println!("{}", page.stdout);
    assert!(page.stdout.contains(&format!("leader  pod-a, token {token}, ")), "{}", page.stdout);
    assert!(page.stdout.contains("\nsince   20"), "{}", page.stdout);
    assert!(page.stdout.contains("quorum  3 of 3 nodes answer, 2 required\n"), "{}", page.stdout);
    for address in servers.addresses() {
        assert!(page.stdout.contains(&format!("{address:38} held")), "{}", page.stdout);
    }
    let seen = json(&urls, &["--control", "off"]);
    assert_eq!((&seen["holder"], &seen["token"], &seen["replica"]), (&"pod-a".into(), &token.into(), &Json::Null));
    // Nobody but the token tells, and it is the nodes' time of the attempt.
    let since = humantime::parse_rfc3339(seen["since"].as_str().unwrap()).unwrap();
    let since = since.duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(since.as_millis(), u128::from(token / 1000));
    for node in seen["nodes"].as_array().unwrap() {
        assert_eq!((&node["vote"], &node["up"], &node["error"]), (&"held".into(), &true.into(), &Json::Null));
        assert!((1..=1000).contains(&node["leaseMs"].as_u64().unwrap()), "{node}");
        assert!(node["latencyMs"].as_f64().unwrap() > 0.0, "{node}");
    }
    // The replica beside us knows better than its token.
    let beside = json(&urls, &["--control", &replica.control()]);
    assert_eq!(beside["replica"]["identity"], "pod-a");
    assert_eq!(beside["since"], beside["replica"]["since"]);
    let page = status(&urls, &["--control", &replica.control()]);
    assert!(page.stdout.contains("\nhere    pod-a: "), "{}", page.stdout);
    servers[1].kill();
    let page = status(&urls, &["--control", "off"]);
    assert_eq!(page.code, 1, "{}", page.stdout);
    assert!(page.stdout.contains("leader  pod-a") && page.stdout.contains("2 of 3 nodes answer"), "{}", page.stdout);
    assert!(page.stdout.contains("  connect: refused"), "{}", page.stdout);
    servers[1].start_again(Data::Lost);
    let page = eventually("the node is back", SOON, || {
        let page = status(&urls, &["--control", "off", "--quarantine", "1h"]);
        page.stdout.contains("quarantined").then_some(page)
    });
    assert!(page.stdout.contains("it may have forgotten a grant"), "{}", page.stdout);
    assert_eq!(page.code, 1);
}

#[test]
fn it_is_watched_line_by_line() {
    let servers = Servers::start(1);
    let urls = servers.urls();
    let watch =
        Process::start("status", command("status", &urls, &["--control", "off", "--watch", "--output", "json"]));
    let free = eventually("it is told twice", SOON, || watch.stdout().get(1).cloned());
    assert_eq!(serde_json::from_str::<Json>(&free.text).unwrap()["holder"], Json::Null);
    let replica = ReplicaOptions::new(LOCK, "pod-a", &urls).args(["--ttl", "1s"]).start();
    replica.wait_elected(1, SOON);
    eventually("the leader is told", SOON, || {
        let lines = watch.stdout();
        let last: Json = serde_json::from_str(&lines.last()?.text).ok()?;
        (last["holder"] == "pod-a").then_some(())
    });
    let text = Process::start("status", command("status", &urls, &["--control", "off", "--watch"]));
    eventually("the page is told twice", SOON, || {
        (text.stdout().iter().filter(|line| line.text.starts_with("leader  pod-a")).count() == 2).then_some(())
    });
}

#[test]
fn a_foreign_holder_is_shown_as_one_and_not_its_value() {
    let servers = Servers::start(3);
    for server in servers.iter() {
        server.cli(&["SET", LOCK, "c29tZSByYW5kb20gdmFsdWU=", "PX", "60000"]);
        server.cli(&["HSET", "{job}:redleader", "run", "x", "born", "1", "v", "1"]);
    }
    // A node that is new to the lock has no vote for anyone, so the markers are made old by a replica's look.
    let replica = ReplicaOptions::new(LOCK, "pod-b", &servers.urls()).args(["--ttl", "500ms"]).start();
    let seen = eventually("it is seen", SOON, || {
        let seen = json(&servers.urls(), &["--control", "off", "--ttl", "500ms"]);
        (seen["holderKind"] == "foreign").then_some(seen)
    });
    assert_eq!((&seen["holder"], &seen["since"]), (&Json::Null, &Json::Null));
    let page = status(&servers.urls(), &["--control", "off"]);
    assert!(!page.stdout.contains("c29t"), "{}", page.stdout);
    drop(replica);
}

#[test]
fn wait_ends_with_a_leader_a_quorum_or_the_time() {
    let mut servers = Servers::start(3);
    let urls = servers.urls();
    let wait = |args: &[&str]| run("wait", command("wait", &urls, args), SOON);
    let said = wait(&["--for", "quorum", "--output", "json"]);
    assert_eq!(said.code, 0, "{}", said.stdout);
    assert_eq!(serde_json::from_str::<Json>(&said.stdout).unwrap()["met"], true);
    let said = wait(&["--timeout", "300ms"]);
    assert_eq!(said.code, 1);
    assert!(said.stdout.starts_with("no leader within 300ms: nobody: "), "{}", said.stdout);
    let waiting = Process::start("wait", command("wait", &urls, &["--timeout", "20s"]));
    let replica = ReplicaOptions::new(LOCK, "pod-a", &urls).args(["--ttl", "1s"]).start();
    replica.wait_elected(1, SOON);
    assert_eq!(waiting.wait_exit(SOON), 0);
    assert!(waiting.stdout()[0].text.starts_with("leader: pod-a, token "), "{:?}", waiting.stdout());
    servers[0].kill();
    servers[1].kill();
    let said = wait(&["--for", "quorum", "--timeout", "300ms", "--output", "json"]);
    assert_eq!(said.code, 1);
    let seen: Json = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!((&seen["met"], &seen["quorum"]["reachable"]), (&false.into(), &1.into()));
}
