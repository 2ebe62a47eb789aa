//! C55: connections that are reset in every phase of their life, and a leader that goes on working.

use std::time::Duration;

use crate::support::{
    Direction, Judge, Proxy, ReplicaOptions, Rng, Servers, boot_ms, eventually, figure, let_time_pass,
};

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

/// Before and after AUTH, between SELECT and the first question, in each of the questions, and in an extend, both ways.
#[test]
fn c55_a_reset_at_each_word_of_a_greeting_and_of_an_extend_is_replaced() {
    let nodes = Servers::start(3);
    for node in nodes.iter() {
        assert_eq!(node.cli(&["ACL", "SETUSER", "u", "on", "nopass", "~*", "&*", "+@all"]).text(), "OK");
    }
    let proxy = Proxy::start(&nodes[0].address());
    let with_login = |url: String| format!("{}/1", url.replace("://", "://u@"));
    let urls = [with_login(proxy.url()), with_login(nodes[1].url()), with_login(nodes[2].url())];
    let leader = ReplicaOptions::new("c55-words", "a", &urls).args(["--ttl", "2s"]).start();
    leader.wait_elected(1, SOON);
    let node = format!("{}/1", proxy.address());
    let is_up = || leader.metric("node_up", &[("node", &node)]) == 1.0;
    let extends = || leader.metric("extend_attempts_total", &[("outcome", "ok")]);
    let (request, reply) = (Direction::Request, Direction::Reply);
    for (direction, word) in [
        (request, "AUTH"),
        (reply, "OK"),
        (request, "SELECT"),
        (request, "INFO"),
        (reply, "run_id"),
        (request, "EVAL"),
        (request, "EVALSHA"),
        (reply, "extended"),
    ] {
        eventually("the node is up", SOON, || is_up().then_some(()));
        let (before, met) = (proxy.connections(), extends());
        let hold = proxy.hold(direction, word.as_bytes());
        // What is asked of a node that is connected comes by itself; a greeting only where a connection has ended.
        if !matches!(word, "EVALSHA" | "extended") {
            proxy.reset();
        }
        hold.caught(SOON);
        proxy.reset();
        hold.release();
        eventually("the connection is replaced", SOON, || {
            assert!(leader.leads(), "one node is not felt, reset at {word}");
            (proxy.connections() > before && is_up()).then_some(())
        });
        eventually("it extends", TTL, || (extends() > met).then_some(()));
    }
    assert_eq!(leader.logged("elected").len(), 1);
}
