//! C55: connections that are reset in every phase of their life, and a leader that goes on working.

use std::time::Duration;

use crate::support::{Judge, Proxy, ReplicaOptions, Rng, Servers, boot_ms, eventually, figure, let_time_pass};

const SOON: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(2);
const RESETS: usize = 500;

#[test]
fn c55_resets_in_every_phase_stop_no_extends() {
    let mut rng = Rng::seeded("c55_resets_in_every_phase_stop_no_extends");
    let nodes = Servers::start(3);
    let proxies: Vec<Proxy> = nodes.iter().map(|node| Proxy::start(&node.address())).collect();
    // A database of its own: one more word between the greeting and the first script.
    let urls: Vec<String> = proxies.iter().map(|proxy| format!("{}/1", proxy.url())).collect();
    let start = |who: &str| ReplicaOptions::new("c55", who, &urls).args(["--ttl", "2s"]).start();
    let leader = start("a");
    leader.wait_elected(1, SOON);
    let standby = start("b");
    eventually("b sees a lead", SOON, || (standby.leader_json()["holder"] == "a").then_some(()));
    let extends = || leader.metric("extend_attempts_total", &[("outcome", "ok")]);
    let connections = || proxies.iter().map(Proxy::connections).sum::<u64>();
    let (before, mut seen, mut at) = (connections(), extends(), boot_ms());
    let mut longest = 0;
    for n in 0..RESETS {
        match n % 10 {
            0 => proxies.iter().for_each(Proxy::reset),
            1 => rng.pick(&proxies).half_close(),
            2 => rng.pick(&proxies).truncate_next_reply(5),
            _ => rng.pick(&proxies).reset(),
        }
        let_time_pass("a random phase of greeting, look and extend", rng.duration(Duration::ZERO, TTL / 80));
        let now = extends();
        if now > seen {
            longest = longest.max(boot_ms() - at);
            (seen, at) = (now, boot_ms());
        }
        assert!(leader.leads(), "the leader does not lead any more after {n} resets");
        let silence = Duration::from_millis(boot_ms() - at);
        assert!(silence < TTL, "ready, and no extend for {} ms", silence.as_millis());
    }
    let replaced = connections() - before;
    let renewed = extends();
    // The rhythm is 500 ms; the bound has room for a busy machine.
    eventually("it extends again in its rhythm", TTL * 3 / 4, || (extends() >= renewed + 1.0).then_some(()));
    eventually("everything is up again", SOON, || {
        let is_up = leader.metric("node_up", &[]) == 3.0 && standby.metric("node_up", &[]) == 3.0;
        (is_up && standby.leader_json()["holder"] == "a").then_some(())
    });
    let report = Judge::check_replicas([&leader, &standby]);
    figure(
        "C55",
        &format!("{RESETS} resets, {replaced} new connections, longest between extends {longest} ms; {report}"),
    );
    assert!(replaced > 100, "{replaced} connections were replaced");
    assert_eq!(report.terms.len(), 1, "a reset changed the leader: {:#?}", report.terms);
}
