//! R1, the part outside the core: a release that is told while a round is under way is not lost.

use std::time::Duration;

use crate::support::*;

const SOON: Duration = Duration::from_secs(10);

/// The standby's look is held on its way back until the leader has released and the wake-up has come: its answers then
/// say that the lock is held for almost a ttl. Only the wake-up tells better.
#[test]
fn a_wake_up_that_comes_during_a_round_makes_the_next_look_immediate() {
    let servers = Servers::start(3);
    let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(&server.address())).collect();
    let args = ["--ttl", "3s", "--node-timeout", "500ms"];
    let leader = ReplicaOptions::new("job", "leader", &servers.urls()).args(args).start();
    let elected = leader.wait_elected(1, SOON);
    let through: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let standby = ReplicaOptions::new("job", "standby", &through).args(args).start();
    standby.wait_for_log("it knows the holder", SOON, |line| line.message() == "holder changed");
    let holds: Vec<Hold> = proxies.iter().map(|proxy| proxy.hold(Direction::Reply, b"seen")).collect();
    for hold in &holds {
        hold.caught(SOON);
    }
    let told: usize = proxies.iter().map(|proxy| proxy.count("EVALSHA")).sum();
    leader.term();
    let stepped_down = leader.wait_for_message("stepped down", 1, SOON);
    assert_eq!(leader.wait_exit(SOON), 0);
    let still: usize = proxies.iter().map(|proxy| proxy.count("EVALSHA")).sum();
    assert_eq!(still, told, "the round is still under way");
    for hold in holds {
        hold.release();
    }
    let won = standby.wait_elected(1, SOON);
    let boot_ms = |line: &LogLine| line.number("boot_ms").unwrap();
    let gap = boot_ms(&won) - boot_ms(&stepped_down);
    figure(
        "wake-up during a round",
        &format!("the standby leads {gap} ms after the release; its routine look is 1,200 ms or more away"),
    );
    assert!(gap < 600, "by the wake-up, not by the routine look after at least 1,200 ms: {gap} ms");
    assert!(won.number("token") > elected.number("token"));
}
