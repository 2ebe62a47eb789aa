//! Servers and proxies that lack something, imitated in front of real servers by users that may not use it and by a
//! proxy that does not know it: how a lock goes on there, and what is said of it. No test here ran on the real thing.

use std::time::Duration;

use crate::doctor::Found;
use crate::support::{
    Flavour, Imitation, Judge, Proxy, Replica, ReplicaOptions, Server, ServerOptions, binary, boot_ms, eventually,
    figure, run, stays_true,
};

const SOON: Duration = Duration::from_secs(20);
const LOCK: &str = "job";
const TTL: u64 = 2000;
/// Patient with a busy machine: what is lacking is tested, and no speed.
const SETTINGS: [&str; 4] = ["--ttl", "2s", "--node-timeout", "450ms"];
/// Where a proxy that answers INFO by itself finds the text.
const INFO_TEXT: &str = "imitated:info";

/// What a server lacks, beside a real one.
#[derive(Clone, Copy, Debug, Default)]
struct Lack {
    flavour: Option<Flavour>,
    /// Rights that the user does not have.
    denied: &'static [&'static str],
    /// Commands that the proxy answers with an error.
    unknown: &'static [&'static str],
    /// Commands on which the proxy hangs up.
    closes: &'static [&'static str],
    /// The proxy answers INFO by itself, with these changes in the text: lines that begin so are these instead.
    info: Option<&'static [(&'static str, &'static str)]>,
}

/// Three servers, the proxies before them, and how one gets in.
struct Nodes {
    servers: Vec<Server>,
    proxies: Vec<Proxy>,
    urls: Vec<String>,
}

impl Nodes {
    fn start(lack: Lack) -> Self {
        Self::of(&[lack; 3])
    }

    fn of(lacks: &[Lack; 3]) -> Self {
        let flavour = |lack: &Lack| lack.flavour.unwrap_or(Flavour::Redis70);
        let options = || ServerOptions::new().args(["--appendonly", "yes"]);
        let servers: Vec<Server> = lacks.iter().map(|lack| Server::start(flavour(lack), options())).collect();
        let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(&server.address())).collect();
        for ((server, proxy), lack) in servers.iter().zip(&proxies).zip(lacks) {
            let all = ["ACL", "SETUSER", "u", "reset", "on", "nopass", "~*", "&*", "+@all"];
            let words = [&all[..], lack.denied].concat();
            assert_eq!(server.cli(&words).text(), "OK", "{words:?}");
            imitate(server, proxy, *lack);
        }
        let urls = proxies.iter().map(|proxy| proxy.url().replace("://", "://u@")).collect();
        Self { servers, proxies, urls }
    }

    fn candidate(&self, identity: &str) -> ReplicaOptions {
        ReplicaOptions::new(LOCK, identity, &self.urls).args(SETTINGS)
    }

    /// How often a command was sent, on whichever connection.
    fn sent(&self, name: &str) -> usize {
        self.proxies.iter().map(|proxy| proxy.count(name)).sum()
    }

    fn status(&self) -> (i32, String) {
        let mut command = std::process::Command::new(binary());
        command.args(["status", "--lock", LOCK, "--redis", &self.urls.join(","), "--control", "off"]).args(SETTINGS);
        let output = run("status", command, SOON);
        (output.code, output.stdout)
    }

    fn doctor(&self) -> Found {
        Found::on(&self.urls, &SETTINGS)
    }
}

fn imitate(server: &Server, proxy: &Proxy, lack: Lack) {
    if let Some(changes) = lack.info {
        let real = server.cli(&["INFO"]).text();
        let changed = |line: &str| {
            let change = changes.iter().find(|(begins, _)| line.starts_with(begins));
            change.map_or(line, |(_, instead)| instead).trim_end().to_owned()
        };
        let text: Vec<String> = real.lines().map(changed).filter(|line| !line.is_empty()).collect();
        assert_eq!(server.cli(&["SET", INFO_TEXT, &(text.join("\r\n") + "\r\n")]).text(), "OK");
    }
    proxy.imitate(move |words| {
        let name = String::from_utf8_lossy(&words[0]).to_ascii_uppercase();
        if lack.closes.contains(&name.as_str()) {
            Imitation::Close
        } else if lack.unknown.contains(&name.as_str()) {
            Imitation::Error(format!("ERR unknown command '{name}'"))
        } else if name == "INFO" && lack.info.is_some() {
            Imitation::Instead(vec!["GET".to_owned(), INFO_TEXT.to_owned()])
        } else {
            Imitation::Pass
        }
    });
}

/// How releases are told there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandOver {
    Told,
    ByTimers,
}

/// Somebody is elected, extends, and hands over; `status` and `doctor` say what there is to say, and refuse nothing.
fn works(name: &str, lack: Lack, hand_over: HandOver, findings: &[&str]) -> Nodes {
    let nodes = Nodes::start(lack);
    let a = nodes.candidate("a").start();
    let first = a.wait_elected(1, SOON).number("token");
    let extends = |replica: &Replica| replica.metric("extend_attempts_total", &[("outcome", "ok")]);
    eventually("it extends", SOON, || (extends(&a) >= 2.0).then_some(()));
    let b = nodes.candidate("b").start();
    eventually("b knows who leads", SOON, || (b.leader_json()["holder"] == "a").then_some(()));
    // A node that a busy machine lets answer late is told as such.
    let page = eventually("status says that all is well", SOON, || {
        let (code, page) = nodes.status();
        (code == 0).then_some(page)
    });
    assert!(page.contains("leader  a, token "), "{page}");
    let found = nodes.doctor();
    let said: Vec<&str> =
        found.json["findings"].as_array().unwrap().iter().filter_map(|finding| finding["problem"].as_str()).collect();
    for problem in findings {
        assert!(said.contains(problem), "{problem} in {said:?}");
    }
    assert_eq!(found.code, 1, "warnings and no refusal: {}", found.text);
    if hand_over == HandOver::Told {
        eventually("b listens", SOON, || {
            let heard = |server: &Server| server.cli(&["PUBSUB", "NUMSUB", "redleader:job"]).list()[1].int();
            nodes.servers.iter().all(|server| heard(server) == Some(2)).then_some(())
        });
    }
    a.term();
    let released = a.wait_for_message("stepped down", 1, SOON).number("boot_ms").unwrap();
    let won = b.wait_elected(1, SOON);
    let gap = won.number("boot_ms").unwrap().saturating_sub(released);
    let bound = match hand_over {
        // Milliseconds as a rule, and the next look is 800 ms away at the least.
        HandOver::Told => 700,
        // Two rounds of a node timeout at most each, and what a busy machine adds.
        HandOver::ByTimers => TTL * 6 / 10 + 2 * 450 + 200,
    };
    assert!(gap <= bound, "{name}: {gap} ms without a leader, {bound} at most");
    assert!(won.number("token") > first);
    eventually("b extends", SOON, || (extends(&b) >= 2.0).then_some(()));
    b.term();
    assert_eq!((a.wait_exit(SOON), b.wait_exit(SOON)), (0, 0));
    Judge::check_replicas([&a, &b]).assert_clean(&format!("imitated: {name}"));
    figure(
        &format!("imitated: {name}"),
        &format!("elected, extended, handed over ({hand_over:?}) in {gap} ms; status 0; doctor: {}", said.join(" ")),
    );
    // What proxies are known not to know is never sent.
    for never in ["SCRIPT", "HELLO", "CLIENT", "CONFIG"] {
        let by_us = nodes.proxies.iter().flat_map(Proxy::seen).filter(|seen| seen.name == never).count();
        assert_eq!(by_us, 0, "{never} was sent");
    }
    nodes
}

/// Nobody is elected where no node has what a vote needs, and it is said why; where one of three lacks it, one leads.
fn has_no_vote(name: &str, lack: Lack, kind: &str, says: &str, refused: &str) {
    let nodes = Nodes::start(lack);
    let a = nodes.candidate("a").start();
    for proxy in &nodes.proxies {
        let node = proxy.address();
        let line = a.wait_for_log("why the node has no vote", SOON, |line| {
            line.message() == "node has no vote" && line.text("node") == node && line.text("kind") == kind
        });
        assert!(line.text("reason").contains(says), "{says:?} in {:?}", line.json);
    }
    stays_true("nobody leads, and it is alive", Duration::from_millis(TTL), || {
        a.readyz().0 == 503 && a.get("/livez").is_ok_and(|response| response.status == 200)
    });
    assert!(a.readyz().1.contains(kind), "{:?}", a.readyz());
    let found = nodes.doctor();
    let names: Vec<String> = nodes.proxies.iter().map(Proxy::address).collect();
    found.assert("refused", refused, &names.iter().map(String::as_str).collect::<Vec<_>>(), "");
    assert_eq!(found.code, 64, "{}", found.text);
    assert_eq!(nodes.status().0, 1, "{}", nodes.status().1);
    a.term();
    assert_eq!(a.wait_exit(SOON), 0);

    let nodes = Nodes::of(&[lack, Lack::default(), Lack::default()]);
    let b = nodes.candidate("b").start();
    b.wait_elected(1, SOON);
    stays_true("one of three is not felt", Duration::from_millis(TTL / 2), || b.leads());
    figure(
        &format!("imitated: {name}"),
        &format!("no vote, kind {kind}; status 1; doctor 64: {refused}; one of three is not felt"),
    );
}

#[test]
fn imitated_without_client_nothing_is_missing() {
    let nodes = works("a user without +client", Lack { denied: &["-client"], ..Lack::default() }, HandOver::Told, &[]);
    for server in &nodes.servers {
        assert_eq!(server.cli(&["ACL", "LOG"]).list(), [], "nothing is tried that is not allowed");
    }
}

#[test]
fn imitated_without_evalsha_scripts_are_sent_whole() {
    let lack = Lack { denied: &["-evalsha"], ..Lack::default() };
    let nodes = works("a user without +evalsha", lack, HandOver::Told, &["evalsha"]);
    // Tried once on each connection: those of two candidates, and those of `status` and `doctor`.
    assert!(nodes.sent("EVALSHA") <= 6 * nodes.servers.len(), "{} were sent", nodes.sent("EVALSHA"));
}

#[test]
fn imitated_where_evalsha_is_unknown_scripts_are_sent_whole() {
    let lack = Lack { unknown: &["EVALSHA"], ..Lack::default() };
    works("a proxy that does not know EVALSHA", lack, HandOver::Told, &["evalsha"]);
}

#[test]
fn imitated_without_the_channel_a_hand_over_waits_for_timers() {
    let lack = Lack { denied: &["resetchannels"], ..Lack::default() };
    works("a user without channels", lack, HandOver::ByTimers, &["channel"]);
}

#[test]
fn imitated_where_subscribe_is_unknown_a_hand_over_waits_for_timers() {
    let lack = Lack { unknown: &["SUBSCRIBE", "PUBSUB"], ..Lack::default() };
    let nodes = works("a proxy that does not know SUBSCRIBE", lack, HandOver::ByTimers, &["channel"]);
    assert!(nodes.sent("SUBSCRIBE") <= 6 * nodes.servers.len(), "{} were sent", nodes.sent("SUBSCRIBE"));
}

#[test]
fn imitated_where_scripts_may_not_call_info_the_connection_tells_them() {
    let lack = Lack { denied: &["-info"], info: Some(&[]), ..Lack::default() };
    works("INFO denied in scripts", lack, HandOver::Told, &["script-info"]);
}

#[test]
fn imitated_keydb_is_as_redis_6_2() {
    let lack = Lack {
        flavour: Some(Flavour::Redis62),
        info: Some(&[("redis_version:", "redis_version:6.3.4")]),
        ..Lack::default()
    };
    works("KeyDB 6.3.4, by a 6.2 that says so", lack, HandOver::Told, &[]);
}

#[test]
fn imitated_managed_service_that_lacks_all_that_can_be_lacked_works_by_timers() {
    let lack = Lack {
        denied: &["-info", "-config", "-client", "-@admin", "resetchannels"],
        unknown: &["EVALSHA", "CONFIG", "CLIENT", "SCRIPT", "HELLO", "SUBSCRIBE", "PUBSUB", "ACL"],
        info: Some(&[]),
        ..Lack::default()
    };
    works("a managed service without all of them", lack, HandOver::ByTimers, &["evalsha", "script-info", "channel"]);
}

#[test]
fn imitated_without_info_there_is_no_vote() {
    let lack = Lack { denied: &["-info"], ..Lack::default() };
    has_no_vote("a user without +info", lack, "noperm", "see the ACL line in the README", "noperm");
}

#[test]
fn imitated_where_info_is_unknown_there_is_no_vote() {
    let lack = Lack { unknown: &["INFO"], ..Lack::default() };
    has_no_vote("a proxy that does not know INFO", lack, "no-run-id", "unknown command", "no-run-id");
}

#[test]
fn imitated_dragonfly_without_a_run_id_has_no_vote() {
    let lack = Lack {
        info: Some(&[("run_id:", ""), ("master_replid", ""), ("redis_version:", "redis_version:7.4.0")]),
        denied: &["-info"],
        ..Lack::default()
    };
    has_no_vote("Dragonfly, by an INFO without run_id", lack, "no-run-id", "INFO gives no run_id", "no-run-id");
}

/// C59
#[test]
fn c59_a_fake_proxy_that_does_not_know_script_is_no_hindrance() {
    let lack = Lack { unknown: &["SCRIPT"], ..Lack::default() };
    let nodes = works("a proxy that does not know SCRIPT", lack, HandOver::Told, &[]);
    assert_eq!(nodes.sent("SCRIPT"), 0);
    assert!(nodes.sent("EVALSHA") > nodes.sent("EVAL"), "whole scripts are the exception");
    // Whoever comes next to a server that has forgotten all scripts.
    let a = nodes.candidate("c").start();
    a.wait_elected(1, SOON);
    nodes.servers.iter().for_each(|server| drop(server.cli(&["SCRIPT", "FLUSH"])));
    let extends = || a.metric("extend_attempts_total", &[("outcome", "ok")]);
    let before = extends();
    eventually("it extends", SOON, || (extends() >= before + 2.0).then_some(()));
    assert_eq!(a.metric("extend_attempts_total", &[("outcome", "no-quorum")]), 0.0);
    assert_eq!(nodes.sent("SCRIPT"), 0);
}

/// C61
#[test]
fn c61_a_fake_proxy_that_hangs_up_on_what_is_never_sent_is_no_hindrance() {
    for command in [&["SCRIPT"], &["HELLO"], &["CLIENT"], &["SELECT"]] {
        let nodes = Nodes::start(Lack { closes: command, ..Lack::default() });
        let a = nodes.candidate("a").start();
        a.wait_elected(1, SOON);
        let extends = || a.metric("extend_attempts_total", &[("outcome", "ok")]);
        eventually("it extends", SOON, || (extends() >= 2.0).then_some(()));
        assert_eq!(nodes.sent(command[0]), 0, "{command:?} was sent");
    }
}

/// C61
#[test]
fn c61_a_fake_proxy_that_hangs_up_on_a_command_is_told_with_the_command_and_dialled_in_a_rhythm() {
    for (command, database) in [(&["INFO"], ""), (&["SELECT"], "/1")] {
        let mut nodes = Nodes::start(Lack { closes: command, ..Lack::default() });
        nodes.urls.iter_mut().for_each(|url| url.push_str(database));
        let a = nodes.candidate("a").args(["--log-level", "debug"]).start();
        let line = a.wait_for_log("why the node has no vote", SOON, |line| line.message() == "node has no vote");
        assert_eq!(line.text("kind"), "connect", "{:?}", line.json);
        // What was written together and has no answer is named together.
        let after = line.text("reason").split("after ").nth(1).unwrap_or_default();
        let unanswered = after.split(':').next().unwrap_or_default();
        assert!(unanswered.split(", ").any(|name| name == command[0]), "{:?}", line.json);
        let dials = || nodes.proxies[0].connections();
        // The pause between two rounds has grown to a quarter of the ttl by then.
        eventually("some rounds are over", SOON, || (dials() > 8).then_some(()));
        let (before, from) = (dials(), boot_ms());
        stays_true("nobody leads", Duration::from_millis(2 * TTL), || !a.leads());
        let (count, passed) = (dials() - before, boot_ms() - from);
        figure("C61", &format!("{count} dials in {passed} ms to a proxy that hangs up on {}", command[0]));
        assert!(count <= 2 * passed / (TTL / 4) + 2, "{count} dials in {passed} ms");
    }
}
