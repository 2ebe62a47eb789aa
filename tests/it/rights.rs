//! The ACL line of README is all that a node's user needs, on each kind of server.

use std::process::Command;
use std::time::Duration;

use crate::support::{Flavour, Judge, Monitor, ReplicaOptions, Servers, binary, eventually, run};

const README: &str = include_str!("../../README.md");
const SOON: Duration = Duration::from_secs(20);

#[test]
fn the_acl_line_of_the_readme_is_enough_and_the_acl_log_stays_empty() {
    let line = README.lines().find(|line| line.starts_with("ACL SETUSER ")).expect("README has the line");
    let words: Vec<&str> = line.split(' ').map(|word| if word == ">PASSWORD" { ">S3cr3t" } else { word }).collect();
    for flavour in Flavour::ALL {
        let servers = Servers::of(flavour, 3);
        for server in servers.iter() {
            assert_eq!(server.cli(&words).text(), "OK", "{}", flavour.as_str());
        }
        // Another database, so that SELECT is among what is tried.
        let urls: Vec<String> = servers.urls().iter().map(|url| format!("{url}/1")).collect();
        let start = |identity: &str| {
            let replica = ReplicaOptions::new("my-job", identity, &urls).args(["--ttl", "2s"]);
            replica.args(["--redis-username", "redleader"]).env("REDLEADER_REDIS_PASSWORD", "S3cr3t").start()
        };
        let first = start("a");
        first.wait_elected(1, SOON);
        let second = start("b");
        second.wait_for_message("holder changed", 1, SOON);
        let mut command = Command::new(binary());
        command.args([
            "status",
            "--lock",
            "my-job",
            "--redis",
            &urls.join(","),
            "--redis-username",
            "redleader",
            "--ttl",
            "2s",
        ]);
        command.env("REDLEADER_REDIS_PASSWORD", "S3cr3t");
        let status = run("status", command, SOON);
        assert_eq!(status.code, 0, "{}{}", status.stdout, status.stderr);
        first.term();
        let (down, up) = (first.wait_for_message("stepped down", 1, SOON), second.wait_elected(1, SOON));
        let gap = up.number("boot_ms").unwrap() - down.number("boot_ms").unwrap();
        // By the wake-up, which the channel's right is for: by timers it would take 800 ms at the least.
        assert!(gap < 800, "{}: {gap} ms", flavour.as_str());
        second.term();
        assert_eq!((first.wait_exit(SOON), second.wait_exit(SOON)), (0, 0));
        for server in servers.iter() {
            assert_eq!(server.cli(&["ACL", "LOG"]).list(), [], "{}", flavour.as_str());
        }
    }
}

/// C57: a lock whose name has a tag of its own keeps everything under one pattern.
#[test]
fn c57_a_whole_life_touches_no_key_outside_of_the_documented_pattern() {
    const LOCK: &str = "{leader:prod}:job";
    let servers = Servers::start(3);
    let grant = ["~{leader:prod}:*", "resetchannels", "&redleader:{leader:prod}:job", "+@all"];
    for server in servers.iter() {
        let words = [&["ACL", "SETUSER", "app", "reset", "on", ">S3cr3t"], &grant[..]].concat();
        assert_eq!(server.cli(&words).text(), "OK");
    }
    let monitors: Vec<Monitor> = servers.iter().map(|server| server.monitor()).collect();
    let start = |identity: &str| {
        let replica = ReplicaOptions::new(LOCK, identity, &servers.urls()).args(["--ttl", "1s"]);
        replica.args(["--redis-username", "app"]).env("REDLEADER_REDIS_PASSWORD", "S3cr3t").start()
    };
    let (first, second) = (start("a"), start("b"));
    let all = [&first, &second];
    let leader = || all.into_iter().find(|replica| replica.leads());
    let extends = |at_least: f64| {
        eventually("somebody leads and extends", SOON, || {
            leader().filter(|replica| replica.metric("extend_attempts_total", &[("outcome", "ok")]) >= at_least)
        })
    };
    // Resign, a key that is deleted, keys in foreign hands, and the end of both.
    let resigns = extends(2.0);
    resigns.command(&["resign", "--for", "1s"]);
    resigns.wait_for_message("stepped down", 1, SOON);
    let refills = extends(1.0);
    servers[0].cli(&["DEL", LOCK]);
    eventually("the key is back", SOON, || servers.values(LOCK)[0].is_some().then_some(()));
    let before = refills.logged("stepped down").len();
    for server in &servers[..2] {
        server.cli(&["SET", LOCK, "stranger", "PX", "1500"]);
    }
    refills.wait_for_message("stepped down", before + 1, SOON);
    extends(1.0);
    for replica in all {
        replica.term();
        assert_eq!(replica.wait_exit(SOON), 0);
    }
    Judge::check_replicas(all).assert_clean("C57");
    for (server, monitor) in servers.iter().zip(&monitors) {
        assert_eq!(server.cli(&["ACL", "LOG"]).list(), []);
        let lines = monitor.lines();
        let scripts = lines.iter().filter(|line| line.is_script() && !matches!(line.name.as_str(), "TIME" | "INFO"));
        let mut touched: Vec<&str> = scripts.map(|line| line.args[0].as_str()).collect();
        touched.sort_unstable();
        touched.dedup();
        let expected = ["redleader:{leader:prod}:job", LOCK, "{leader:prod}:job:redleader:tagged"];
        assert!(touched.iter().all(|key| expected.contains(key)) && touched.len() == 3, "{touched:?}");
    }
}
