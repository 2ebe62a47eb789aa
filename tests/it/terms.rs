//! C17, C21, C47, C49: the beginning and the end of terms, and that no fault of one is carried into the next.

use std::time::Duration;

use crate::support::{
    Data, Flavour, Judge, LogLine, Mode, Proxy, Replica, ReplicaOptions, Server, ServerOptions, Servers, boot_ms,
    eventually, figure, let_time_pass, stays_true,
};

const SOON: Duration = Duration::from_secs(20);

fn at(line: &LogLine) -> u64 {
    line.number("boot_ms").unwrap_or(line.read_boot_ms)
}

/// Cut off past its deadline, and reconnected within 100 ms of it: it has to lose first.
#[test]
fn c17_what_is_lost_is_told_before_it_is_asked_for_again() {
    let servers = Servers::start(3);
    let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(&server.address())).collect();
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let args = ["--ttl", "1s", "--node-timeout", "100ms", "--log-level", "debug"];
    let a = ReplicaOptions::new("c17", "a", &urls).args(args).start();
    a.wait_elected(1, SOON);
    for term in 1..=5 {
        let token = a.wait_elected(term, SOON).number("token").unwrap();
        let before = a.metric("transitions_total", &[("event", "elected")]);
        proxies.iter().for_each(|proxy| proxy.set(Mode::Blackhole));
        let told = a.wait_for_message("stepping down", term, SOON);
        assert_eq!(told.text("reason"), "renew-timeout");
        assert_eq!(a.readyz().0, 503, "ready while it steps down");
        proxies.iter().for_each(|proxy| proxy.clear());
        let end = a.wait_for_message("stepped down", term, SOON);
        proxies.iter().for_each(|proxy| proxy.set(Mode::Pass));
        let opened = boot_ms();
        assert!(opened.saturating_sub(at(&end)) < 500, "opened {} ms later", opened.saturating_sub(at(&end)));
        let again = a.wait_elected(term + 1, SOON);
        assert!(at(&told) <= at(&end) && at(&end) < at(&again));
        assert!(again.number("token").unwrap() > token, "the old leadership goes on");
        assert_eq!(a.metric("transitions_total", &[("event", "elected")]), before + 1.0);
        // Twelve words are an acquire's or an extend's; the last of the old owner's was before the loss was told.
        let asks = proxies.iter().flat_map(Proxy::seen).filter(|seen| seen.args.len() == 12);
        let first = asks.map(|seen| seen.boot_ms).min().expect("it has asked for the lock again");
        assert!(first >= at(&end), "asked {} ms before the loss was told", at(&end) - first);
    }
    assert_eq!(a.metric("stepdowns_total", &[("reason", "renew-timeout")]), 5.0);
}

#[test]
fn c21_a_lock_that_has_expired_is_led_at_once_and_one_that_has_not_when_it_does() {
    let servers = Servers::start(3);
    let start = |who: &str| ReplicaOptions::new("c21", who, &servers.urls()).args(["--ttl", "2s"]).start();
    let all: Vec<Replica> = ["a", "b", "c"].into_iter().map(start).collect();
    eventually("somebody leads", SOON, || all.iter().any(Replica::leads).then_some(()));
    for expired in [true, false] {
        let running: Vec<Replica> = if expired { Vec::new() } else { vec![start("left")] };
        running.iter().for_each(|replica| drop(replica.wait_elected(1, SOON)));
        for replica in all.iter().chain(&running) {
            replica.kill9();
        }
        let free_at = if expired {
            eventually("the keys are gone", SOON, || servers.values("c21").iter().all(Option::is_none).then(boot_ms))
        } else {
            servers.free_between("c21").1 / 1000
        };
        let late = start("late");
        let won = at(&late.wait_elected(1, SOON));
        let after = won.saturating_sub(free_at.max(late.started_at()));
        let what = if expired { "after its start, all keys gone" } else { "after what was left of the keys" };
        figure("C21", &format!("a single candidate leads {after} ms {what}; ttl 2 s"));
        assert!(after < 1000, "{after} ms {what}");
        assert!(won + 1 >= free_at, "before the keys had run out");
        late.term();
        assert_eq!(late.wait_exit(SOON), 0);
    }
}

/// Its data takes it two seconds and more to read, during which it answers clients.
fn slow_to_load() -> Server {
    let often = ["--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024"];
    let server = Server::start(Flavour::Redis70, ServerOptions::new().args(often));
    assert_eq!(server.cli(&["DEBUG", "POPULATE", "1500"]).text(), "OK");
    server
}

fn is_loading(server: &Server) -> bool {
    server.try_cli(&["PING"]).is_ok_and(|answer| answer.text().starts_with("LOADING"))
}

#[test]
fn c47_nodes_that_load_their_data_have_no_vote_and_give_back_nothing_that_has_run_out() {
    const TTL: u64 = 2000;
    let mut servers = [slow_to_load(), slow_to_load(), Server::start(Flavour::Redis70, ServerOptions::new())];
    let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(&server.address())).collect();
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let start = |who: &str| ReplicaOptions::new("c47", who, &urls).args(["--ttl", "2s"]).start();
    let a = start("a");
    let token = a.wait_elected(1, SOON).number("token");
    let vote = |node: usize| a.leader_json()["nodes"][node]["vote"].as_str().unwrap_or_default().to_owned();
    eventually("all nodes hold the key", SOON, || (0..3).all(|node| vote(node) == "granted").then_some(()));

    // One: the leader leads on, and asks no more often than it does anyway.
    assert_eq!(servers[0].cli(&["SAVE"]).text(), "OK");
    servers[0].restart(Data::Kept);
    assert!(is_loading(&servers[0]), "it has loaded already");
    let (asked, from) = (proxies[0].seen().len(), boot_ms());
    eventually("it has loaded", SOON, || {
        assert!(a.leads(), "one node that loads is not felt");
        (!is_loading(&servers[0])).then_some(())
    });
    let (asked, passed) = (proxies[0].seen().len() - asked, boot_ms() - from);
    let line = a.wait_for_log("that the node loads", SOON, |line| line.text("kind") == "loading");
    assert!(line.text("reason").contains("LOADING"), "{:?}", line.json);
    figure("C47", &format!("{asked} commands in {passed} ms to a node that loads its data, renewed every 500 ms"));
    // Two dials of four commands for each renewal would be many.
    assert!(asked as u64 <= 8 * (passed / 500 + 2), "{asked} commands in {passed} ms are a tight loop");
    eventually("its vote is back", SOON, || (vote(0) == "granted").then_some(()));
    assert_eq!(a.leader_json()["token"].as_u64(), token);

    // Two, and the leader dies: what they have on disk ends when it would have ended.
    for server in &servers[..2] {
        assert_eq!(server.cli(&["SAVE"]).text(), "OK");
    }
    let b = start("b");
    eventually("b knows who leads", SOON, || (b.leader_json()["holder"] == "a").then_some(()));
    let dead = a.kill9();
    servers[..2].iter_mut().for_each(|server| server.restart(Data::Kept));
    b.wait_for_log("that a node loads", SOON, |line| line.text("kind") == "loading");
    assert!(b.is_running() && b.readyz().0 == 503);
    eventually("both have loaded", SOON, || (!servers[..2].iter().any(is_loading)).then_some(()));
    let loaded = boot_ms();
    let left = |server: &Server| server.cli(&["PTTL", "c47"]).int().expect("PTTL answers a number");
    let most = servers[..2].iter().map(left).max().unwrap();
    let allowed = i64::try_from((dead + TTL).saturating_sub(loaded)).unwrap();
    assert!(most <= allowed.max(-2), "a restored key has {most} ms left, and {allowed} ms were left");
    let won = at(&b.wait_elected(1, SOON));
    let late = won.saturating_sub(loaded);
    figure("C47", &format!("two nodes loaded; the next leads {late} ms after they have, one quarantine is 2,200 ms"));
    assert!(late <= 2200 + 2 * 500 + 1000, "{late} ms");
    Judge::check_replicas([&a, &b]).assert_clean("C47");
}

/// Watches the expiry of a term's keys for as long as twenty ttl, and gives the least that was left on any node.
fn least_left(servers: &Servers, lock: &str, watched: Duration) -> i64 {
    let mut clients: Vec<_> = servers.iter().map(|server| server.client().expect("it runs")).collect();
    let mut least = i64::MAX;
    stays_true("the keys are renewed", watched, || {
        let left = clients.iter_mut().map(|client| client.call(&["PTTL", lock]).expect("it runs").int().unwrap());
        least = least.min(left.min().unwrap());
        let_time_pass("between two looks", Duration::from_millis(10));
        true
    });
    least
}

/// ttl 1 s, renewed every 250 ms, 100 ms for a node; what a busy machine may add.
const C49: [&str; 6] = ["--ttl", "1s", "--node-timeout", "100ms", "--connect-timeout", "250ms"];
const C49_WATCHED: Duration = Duration::from_secs(20);
const C49_LEAST: i64 = 1000 - 250 - 2 * 100;
const C49_SLACK: i64 = 150;

#[test]
fn c49_a_term_after_a_lost_one_is_renewed_as_ever() {
    let mut servers = Servers::start(3);
    let a = ReplicaOptions::new("c49", "a", &servers.urls()).args(C49).start();
    a.wait_elected(1, SOON);
    servers.iter_mut().for_each(Server::kill);
    a.wait_for_message("stepped down", 1, SOON);
    servers.iter_mut().for_each(|server| server.start_again(Data::Lost));
    a.wait_elected(2, SOON);
    eventually("all nodes hold the key", SOON, || servers.values("c49").iter().all(Option::is_some).then_some(()));
    let least = least_left(&servers, "c49", C49_WATCHED);
    figure("C49", &format!("second term: at least {least} ms were left of 1,000, {C49_LEAST} by the formula"));
    assert!(least >= C49_LEAST - C49_SLACK, "{least} ms");
    assert_eq!(a.logged("elected").len(), 2);
}

#[test]
fn c49_a_term_with_one_failed_round_is_renewed_as_ever() {
    let servers = Servers::start(3);
    let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(&server.address())).collect();
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let a = ReplicaOptions::new("c49-once", "a", &urls).args(C49).start();
    a.wait_elected(1, SOON);
    let failed = || a.metric("extend_attempts_total", &[("outcome", "no-quorum")]);
    proxies.iter().for_each(|proxy| proxy.set(Mode::DropReplies));
    eventually("a round has failed", SOON, || (failed() >= 1.0).then_some(()));
    proxies.iter().for_each(|proxy| proxy.set(Mode::Pass));
    let extends = || a.metric("extend_attempts_total", &[("outcome", "ok")]);
    let before = extends();
    eventually("the next has not", SOON, || (extends() > before).then_some(()));
    let least = least_left(&servers, "c49-once", C49_WATCHED);
    figure("C49", &format!("after a failed round: at least {least} ms were left of 1,000, {C49_LEAST} by the formula"));
    assert!(least >= C49_LEAST - C49_SLACK, "{least} ms");
    assert_eq!(a.logged("elected").len(), 1);
}
