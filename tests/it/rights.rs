//! The ACL line of README is all that a node's user needs, on each kind of server.

use std::process::Command;
use std::time::Duration;

use crate::support::{Flavour, ReplicaOptions, Servers, binary, run};

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
