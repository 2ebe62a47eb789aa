//! docs/wrapper.md, as a person pastes it.

use std::process::Command;
use std::time::Duration;

use crate::support::{Port, TempDir, binary, figure, run};

const PAGE: &str = include_str!("../../docs/wrapper.md");

/// Servers of a page that failed half-way.
struct Servers(Vec<u16>);

impl Drop for Servers {
    fn drop(&mut self) {
        for port in &self.0 {
            let mut command = Command::new("redis-cli");
            command.args(["-p", &port.to_string(), "shutdown", "nosave"]);
            let _ = run("redis-cli", command, Duration::from_secs(10));
        }
    }
}

#[test]
fn the_page_works_when_it_is_pasted() {
    let (_, rest) = PAGE.split_once("```sh\n").expect("the page has a script");
    let (script, _) = rest.split_once("```").expect("a script ends");
    let claims: Vec<Port> = (0..3).map(|_| Port::claim()).collect();
    let ports: Vec<u16> = claims.iter().map(Port::number).collect();
    let mut script = script.to_owned();
    for (written, free) in ["7001", "7002", "7003"].iter().zip(&ports) {
        assert!(script.contains(written), "the page has other ports");
        script = script.replace(written, &free.to_string());
    }
    let _servers = Servers(ports.clone());
    let directory = TempDir::new();
    std::os::unix::fs::symlink(binary(), directory.join("redleader")).unwrap();
    let mut command = Command::new("sh");
    // The page's own path comes first; a person has the program there.
    let with_path = format!("PATH={}:$PATH; set -e; {script}", directory.path().display());
    command.args(["-c", &with_path]).current_dir(directory.path());
    let output = run("the page", command, Duration::from_secs(60));
    assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    let lines: Vec<&str> = output.stdout.lines().filter(|line| line.contains(" works, token ")).collect();
    assert!(lines.last().is_some_and(|line| line.starts_with("b works")), "the first was stopped: {lines:?}");
    let turns = lines.windows(2).filter(|pair| pair[0][..1] != pair[1][..1]).count();
    assert!(turns <= 1, "the two took turns: {lines:?}");
    figure("W7", &format!("the page as pasted: {} lines of work, {turns} hand-over", lines.len()));
}
