//! What the nodes of a release are told and asked past redleader.

use crate::cluster::{feed, succeed};

/// What a node answers; one command a line.
pub fn ask(node: &str, password: &str, commands: &str) -> String {
    let mut command = std::process::Command::new("redis-cli");
    command.args(["-h", node]).env("REDISCLI_AUTH", password);
    succeed("redis-cli", feed(&mut command, commands))
}

/// Says this to a node, which has to agree; one command a line.
pub fn tell(node: &str, password: &str, commands: &str) {
    let said = ask(node, password, commands);
    assert!(said.lines().all(|line| line == "OK"), "{said}");
}
