//! Protocol rules 14 to 16, with real sockets, through a proxy that holds one message and lets it go later.

use std::time::Duration;

use redleader::clock;
use redleader::redsync::reply::{Ended, Kind, NodeEvent, Outcome, Verdict};

use crate::asker::{Asker, acquire, extend, look, release, settings};
use crate::support::{
    Answer, Direction, Fake, Flavour, Mode, Proxy, Seen, Server, ServerOptions, eventually, let_time_pass, stays_true,
};

const T: u64 = 1_795_988_714_504_742;
const SOON: Duration = Duration::from_secs(3);
/// What [`settings`] say.
const NODE_TIMEOUT: Duration = Duration::from_millis(300);
const REDIAL: Duration = Duration::from_millis(500);
/// What a loaded machine may add to a time-out.
const LATE: Duration = Duration::from_millis(200);

struct Path {
    server: Server,
    proxy: Proxy,
    asker: Asker,
}

/// One node behind a proxy, past the quarantine, and with all scripts known to the server.
fn path() -> Path {
    let server = Server::start(Flavour::Redis70, ServerOptions::new());
    let proxy = Proxy::start(&server.address());
    let mut asker = Asker::connected("job", settings(&proxy.url()));
    eventually("the quarantine ends", SOON, || (!asker.answer(look()).quarantined).then_some(()));
    assert_eq!(asker.verdict(acquire("warm:1", T - 9)), Verdict::Granted);
    assert_eq!(asker.verdict(extend("warm:1", T - 9)), Verdict::Extended);
    assert!(asker.deleted(release("warm:1", T - 9, Ended::Released)));
    proxy.clear();
    Path { server, proxy, asker }
}

impl Path {
    /// Commands seen that name this owner.
    fn naming(&self, owner: &str) -> Vec<Seen> {
        self.proxy.seen().into_iter().filter(|seen| seen.has(owner)).collect()
    }

    fn exists(&self) -> bool {
        self.server.cli(&["EXISTS", "job"]).int() == Some(1)
    }

    /// Connections that the server has, the harness's own apart.
    fn clients(&self) -> usize {
        let list = self.server.cli(&["CLIENT", "LIST", "TYPE", "normal"]).text();
        list.lines().filter(|line| !line.contains("cmd=client")).count()
    }
}

#[test]
fn an_acquire_that_arrives_after_its_own_release_is_refused() {
    let mut p = path();
    let hold = p.proxy.hold(Direction::Request, b"late:1");
    p.asker.set_live(Some(5));
    let round = p.asker.send(5, acquire("late:1", T));
    assert_eq!(hold.caught(SOON), 1);
    assert_eq!(p.asker.reply(round).outcome, Outcome::Failed(Kind::Timeout));
    p.asker.set_live(None);
    let_time_pass("the connection that carried it is closed", NODE_TIMEOUT + LATE);
    let round = p.asker.send(5, release("late:1", T, Ended::Aborted));
    assert!(matches!(p.asker.reply(round).outcome, Outcome::Released { deleted: false, .. }));
    let monitor = p.server.monitor();
    hold.release();
    eventually("the late acquire is executed", SOON, || {
        monitor.requests().iter().any(|line| line.args.contains(&"late:1".to_owned())).then_some(())
    });
    stays_true("no key of a dead attempt", Duration::from_millis(100), || !p.exists());
    assert_eq!(p.server.cli(&["HGET", "{job}:redleader", "token"]).text(), T.to_string());
}

#[test]
fn a_release_goes_where_its_acquire_went_and_both_are_in_flight_together() {
    let mut p = path();
    let hold = p.proxy.hold(Direction::Reply, b"own:1");
    p.asker.set_live(Some(5));
    let acquired = p.asker.send(5, acquire("own:1", T));
    let connection = hold.caught(SOON);
    p.asker.set_live(None);
    let released = p.asker.send(5, release("own:1", T, Ended::Aborted));
    eventually("the release is executed behind the acquire", SOON, || (!p.exists()).then_some(()));
    let seen = p.naming("own:1");
    assert_eq!(seen.iter().map(|seen| seen.connection).collect::<Vec<_>>(), [connection; 2]);
    hold.release();
    assert!(matches!(p.asker.reply(acquired).outcome, Outcome::Answer(_)));
    assert!(matches!(p.asker.reply(released).outcome, Outcome::Released { deleted: true, .. }));
}

#[test]
fn a_connection_that_timed_out_takes_the_release_and_is_closed_one_node_timeout_later() {
    let mut p = path();
    let before = p.clients();
    let hold = p.proxy.hold(Direction::Reply, b"slow:1");
    p.asker.set_live(Some(5));
    let round = p.asker.send(5, acquire("slow:1", T));
    let old = hold.caught(SOON);
    let reply = p.asker.reply(round);
    assert_eq!(reply.outcome, Outcome::Failed(Kind::Timeout));
    let waited = reply.received.since(reply.sent);
    assert!(waited >= NODE_TIMEOUT - Duration::from_millis(5) && waited < NODE_TIMEOUT + LATE, "{waited:?}");
    // A new one is dialled meanwhile, and takes the rounds.
    assert_eq!(p.asker.down(), Kind::Timeout);
    assert!(matches!(p.asker.event(), NodeEvent::Up { .. }));
    p.proxy.clear();
    assert_eq!(p.asker.verdict(look()), Verdict::Seen);
    assert!(p.proxy.seen().iter().all(|seen| seen.connection != old));
    // The release goes behind its acquire, and whole: there is no time to hear NOSCRIPT.
    let round = p.asker.send(5, release("slow:1", T, Ended::Aborted));
    eventually("the release is executed", SOON, || (!p.exists()).then_some(()));
    let seen = p.naming("slow:1");
    assert_eq!(seen.iter().map(|seen| (seen.connection, seen.name.as_str())).collect::<Vec<_>>(), [(old, "EVAL")]);
    assert!(p.clients() > before, "closed too early");
    eventually("the old connection is closed", SOON, || (p.clients() == before).then_some(()));
    let closed_after = clock::now().since(reply.received);
    assert!(closed_after >= NODE_TIMEOUT - Duration::from_millis(5) && closed_after < NODE_TIMEOUT + LATE);
    assert_eq!(p.asker.reply(round).outcome, Outcome::Failed(Kind::Timeout), "its answer was held");
    hold.release();
}

#[test]
fn a_release_whose_connection_is_gone_takes_the_new_one() {
    let mut p = path();
    p.asker.set_live(Some(5));
    let round = p.asker.send(5, acquire("gone:1", T));
    assert!(matches!(p.asker.reply(round).outcome, Outcome::Answer(_)));
    p.proxy.reset();
    assert_eq!(p.asker.down(), Kind::Connect);
    let round = p.asker.send(5, release("gone:1", T, Ended::Aborted));
    assert!(matches!(p.asker.reply(round).outcome, Outcome::Released { deleted: true, .. }));
}

#[test]
fn at_most_one_round_and_one_release_are_in_flight_and_the_newest_round_waits() {
    let mut p = path();
    let hold = p.proxy.hold(Direction::Reply, b"free");
    let first = p.asker.send(0, look());
    hold.caught(SOON);
    let second = p.asker.send(0, look());
    let third = p.asker.send(0, look());
    let replaced = p.asker.reply(second);
    assert_eq!(replaced.outcome, Outcome::Unsent);
    assert_eq!(replaced.sent, replaced.received, "it was never written");
    assert_eq!(p.proxy.count("EVALSHA"), 1);
    let releases: Vec<u64> = (0..3).map(|n| p.asker.send(5, release("x:1", T + n, Ended::Aborted))).collect();
    eventually("one release is written", SOON, || (p.proxy.count("EVALSHA") == 2).then_some(()));
    stays_true("one round and one release", Duration::from_millis(50), || p.proxy.count("EVALSHA") == 2);
    hold.release();
    for round in [first, third] {
        assert!(matches!(p.asker.reply(round).outcome, Outcome::Answer(_)));
    }
    for round in releases {
        assert!(matches!(p.asker.reply(round).outcome, Outcome::Released { .. }));
    }
    assert_eq!(p.proxy.count("EVALSHA"), 5);
}

#[test]
fn every_release_that_cannot_be_written_is_answered_and_only_a_few_wait() {
    let mut p = path();
    p.proxy.set(Mode::Blackhole);
    let rounds: Vec<u64> = (0..9).map(|n| p.asker.send(5, release("x:1", T + n, Ended::Aborted))).collect();
    for round in rounds {
        assert_eq!(p.asker.reply(round).outcome, Outcome::Failed(Kind::Timeout));
    }
}

#[test]
fn a_script_that_the_server_has_forgotten_is_sent_whole_within_the_same_timeout() {
    let mut p = path();
    p.server.cli(&["SCRIPT", "FLUSH"]);
    assert_eq!(p.asker.verdict(acquire("a:1", T)), Verdict::Granted);
    assert_eq!(p.asker.verdict(extend("a:1", T)), Verdict::Extended);
    assert!(p.asker.deleted(release("a:1", T, Ended::Released)));
    let names: Vec<String> = p.naming("a:1").into_iter().map(|seen| seen.name).collect();
    assert_eq!(names, ["EVALSHA", "EVAL"].repeat(3));
    assert_eq!(p.proxy.count("SCRIPT"), 0);
}

#[test]
fn nothing_of_an_attempt_that_is_over_is_written() {
    let mut p = path();
    // The whole script for one that the server has forgotten.
    p.server.cli(&["SCRIPT", "FLUSH"]);
    let hold = p.proxy.hold(Direction::Reply, b"NOSCRIPT");
    p.asker.set_live(Some(5));
    let round = p.asker.send(5, acquire("over:1", T));
    hold.caught(SOON);
    p.asker.set_live(None);
    hold.release();
    assert_eq!(p.asker.reply(round).outcome, Outcome::Unsent);
    // One that waits behind a look.
    assert!(matches!(p.asker.ask(look()), Outcome::Answer(_)));
    let hold = p.proxy.hold(Direction::Reply, b"free");
    let first = p.asker.send(0, look());
    hold.caught(SOON);
    p.asker.set_live(Some(6));
    let round = p.asker.send(6, extend("over:2", T));
    p.asker.set_live(Some(7));
    let reply = p.asker.reply(round);
    assert_eq!((reply.outcome, reply.sent), (Outcome::Unsent, reply.received));
    hold.release();
    assert!(matches!(p.asker.reply(first).outcome, Outcome::Answer(_)));
    assert_eq!(p.asker.verdict(look()), Verdict::Free);
    let names: Vec<String> = p.naming("over:1").into_iter().map(|seen| seen.name).collect();
    assert_eq!(names, ["EVALSHA"]);
    assert!(p.naming("over:2").is_empty() && !p.exists());
}

#[test]
fn what_was_in_flight_on_a_lost_connection_is_unknown_and_is_not_sent_again() {
    let mut p = path();
    let hold = p.proxy.hold(Direction::Request, b"lost:1");
    p.asker.set_live(Some(5));
    let round = p.asker.send(5, acquire("lost:1", T));
    hold.caught(SOON);
    p.proxy.reset();
    let reply = p.asker.reply(round);
    assert_eq!(reply.outcome, Outcome::Failed(Kind::Connect));
    assert!(reply.received.since(reply.sent) < NODE_TIMEOUT, "it is noticed at once");
    assert_eq!(p.asker.down(), Kind::Connect);
    assert!(matches!(p.asker.event(), NodeEvent::Up { .. }));
    assert_eq!(p.asker.verdict(look()), Verdict::Free);
    assert_eq!(p.naming("lost:1").len(), 1);
    hold.release();
}

#[test]
fn a_node_that_is_down_is_dialled_at_each_round_and_once_per_renew_and_no_more() {
    let fake = Fake::start(|_| Answer::Close);
    let mut asker = Asker::start("job", vec![settings(&fake.url())]);
    let dials = || fake.calls().iter().filter(|call| call.name == "INFO").count();
    assert_eq!(asker.down(), Kind::Connect);
    let_time_pass("the pace of redials is what is tested", REDIAL * 4);
    let alone = dials();
    assert!((4..=6).contains(&alone), "{alone} dials in four periods");
    for _ in 0..5 {
        assert_eq!(asker.failure(look()), Kind::Connect);
    }
    let asked = dials() - alone;
    assert!((5..=7).contains(&asked), "{asked} dials for five rounds");
}

#[test]
fn asks_that_wait_for_a_connection_fail_as_soon_as_the_dial_does_or_when_their_time_is_over() {
    // Nothing comes back: the dial takes its second, the ask its node timeout.
    let fake = Fake::start(|_| Answer::Silence);
    let mut asker = Asker::start("job", vec![settings(&fake.url())]);
    let before = clock::now();
    assert_eq!(asker.failure(look()), Kind::Timeout);
    let waited = clock::now().since(before);
    assert!(waited >= NODE_TIMEOUT - Duration::from_millis(5) && waited < NODE_TIMEOUT + LATE, "{waited:?}");
    assert_eq!(asker.down(), Kind::Timeout);
    // Refused: at once.
    let p = path();
    p.proxy.set(Mode::Refuse);
    let mut asker = Asker::start("job", vec![settings(&p.proxy.url())]);
    let before = clock::now();
    assert_eq!(asker.failure(look()), Kind::Connect);
    assert!(clock::now().since(before) < NODE_TIMEOUT);
}
