//! Protocol rules 1 to 7, on each kind of server.

use std::time::Duration;

use redleader::redsync::name::Owner;
use redleader::redsync::reply::{Ended, Kind, Outcome, RunId, Verdict, What};

use crate::asker::{Asker, acquire, claim, extend, look, observe, release, settings};
use crate::support::{Data, Flavour, Server, ServerOptions, eventually};

const LOCK: &str = "job";
const STATE: &str = "{job}:redleader";
/// A token as the nodes' clocks give it: of 16 digits, which Lua prints wrongly by itself.
const T: u64 = 1_795_988_714_504_742;
const SOON: Duration = Duration::from_secs(3);

struct Bench {
    server: Server,
    asker: Asker,
}

/// Runs a test on each kind of server, past the first quarantine of the lock unless it wants to see that.
fn on_every_server(options: ServerOptions, test: impl Fn(&mut Bench)) {
    for flavour in Flavour::ALL {
        println!("{}", flavour.as_str());
        let server = Server::start(flavour, options.clone());
        let asker = Asker::connected(LOCK, settings(&server.url()));
        test(&mut Bench { server, asker });
    }
}

impl Bench {
    fn wait_for_vote(&mut self) {
        eventually("the quarantine ends", SOON, || (!self.asker.answer(look()).quarantined).then_some(()));
    }

    fn state(&self, field: &str) -> String {
        self.server.cli(&["HGET", STATE, field]).text()
    }

    fn key(&self) -> String {
        self.server.cli(&["GET", LOCK]).text()
    }

    fn left(&self) -> i64 {
        self.server.cli(&["PTTL", LOCK]).int().unwrap()
    }
}

#[test]
fn rule_1_a_reply_says_all() {
    on_every_server(ServerOptions::new(), |b| {
        b.wait_for_vote();
        let answer = b.asker.answer(acquire("a:1", T));
        let info = b.server.cli(&["INFO", "server"]).text();
        let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap();
        let time = b.server.cli(&["TIME"]);
        let seconds: u64 = time.list()[0].text().parse().unwrap();
        assert_eq!(answer.verdict, Verdict::Granted);
        assert_eq!((answer.owner, answer.owner_token), (Some(Owner::found("a:1")), Some(T)));
        assert_eq!((answer.token, answer.over), (T, 0));
        assert_eq!((answer.left, answer.ttl), (Some(Duration::from_millis(500)), Duration::from_millis(500)));
        assert_eq!(answer.run, RunId(u64::from_str_radix(&run[..12], 16).unwrap()));
        assert!(answer.time_us / 1_000_000 + 1 >= seconds && !answer.quarantined);
        assert_eq!(b.state("token"), T.to_string());
        assert_eq!((b.state("v"), b.state("n"), b.state("list").len()), ("1".to_owned(), "1".to_owned(), 8));
        // What another owner's look says of it; and a state that names another owner lends it no token.
        assert_eq!(b.asker.answer(look()).owner_token, Some(T));
        b.server.cli(&["HSET", STATE, "owner", "x:1"]);
        assert_eq!(b.asker.answer(look()).owner_token, None);
    });
}

#[test]
fn rule_1_the_holders_token_is_its_own_where_another_attempt_was_burnt() {
    on_every_server(ServerOptions::new(), |b| {
        b.wait_for_vote();
        b.asker.answer(acquire("a:1", T));
        b.asker.ask(release("b:1", T + 9, Ended::Aborted));
        let answer = b.asker.answer(extend("a:1", T));
        assert_eq!((answer.owner_token, answer.token), (Some(T), T + 9));
    });
}

#[test]
fn rule_2_a_node_that_is_new_to_the_lock_or_has_forgotten_has_no_vote_for_a_quarantine() {
    on_every_server(ServerOptions::new(), |b| {
        // observe writes nothing; the acquire writes the marker, refuses, and says how long.
        assert!(b.asker.answer(observe()).quarantined);
        assert_eq!(b.server.cli(&["EXISTS", STATE]).int(), Some(0));
        let answer = b.asker.answer(acquire("a:1", T));
        assert_eq!((answer.verdict, answer.quarantined), (Verdict::Quarantined, true));
        assert!(answer.left.unwrap() <= Duration::from_millis(200), "{answer:?}");
        assert!(b.asker.answer(look()).quarantined);
        assert_eq!(b.asker.answer(look()).verdict, Verdict::Free);
        b.wait_for_vote();
        // FLUSHALL: the leader occupies what it cannot count, and after a quarantine it counts.
        b.server.cli(&["FLUSHALL"]);
        assert_eq!(b.asker.verdict(acquire("f:1", T + 60)), Verdict::Quarantined);
        let answer = b.asker.answer(extend("f:0", T + 55));
        assert_eq!((answer.verdict, answer.quarantined), (Verdict::Refilled, true));
        let answer = b.asker.answer(extend("f:0", T + 55));
        assert_eq!((answer.verdict, answer.quarantined), (Verdict::Extended, true));
        eventually("it votes", SOON, || (!b.asker.answer(extend("f:0", T + 55)).quarantined).then_some(()));
        // Another run, with its data or without.
        b.server.restart(Data::Lost);
        let answer = eventually("it is back", SOON, || match b.asker.ask(observe()) {
            Outcome::Answer(answer) => Some(answer),
            Outcome::Released { .. }
            | Outcome::Survey { .. }
            | Outcome::Plain { .. }
            | Outcome::Unsent
            | Outcome::Failed(_) => None,
        });
        assert!(answer.quarantined);
        assert_eq!(b.server.cli(&["EXISTS", STATE]).int(), Some(0));
        b.wait_for_vote();
        b.server.cli(&["HSET", STATE, "run", "0123456789abcdef"]);
        assert!(b.asker.answer(extend("f:0", T + 55)).quarantined, "another run's marker");
        b.wait_for_vote();
        b.server.cli(&["HSET", STATE, "born", "99999999999999"]);
        assert!(b.asker.answer(look()).quarantined, "a marker from the future");
        b.wait_for_vote();
        b.server.cli(&["HSET", STATE, "born", "x"]);
        assert!(b.asker.answer(look()).quarantined, "an unreadable marker");
    });
}

#[test]
fn rule_2_where_scripts_may_not_call_info_the_connections_own_run_id_is_used() {
    // INFO is allowed outside of scripts only where a proxy denies it: a stand-in is an argument that is not empty.
    on_every_server(ServerOptions::new(), |b| {
        b.wait_for_vote();
        let info = b.server.cli(&["INFO", "server"]).text();
        let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap().to_owned();
        let scripts = redleader::redsync::script::Scripts::new(
            &redleader::redsync::name::LockName::parse(LOCK).unwrap(),
            [settings(&b.server.url()).url].iter(),
        );
        b.server.cli(&["ACL", "SETUSER", "u", "on", ">p", "~*", "&*", "+@all", "-info"]);
        let mut client = crate::support::resp::Client::tcp(&b.server.address(), SOON).unwrap();
        client.call(&["AUTH", "u", "p"]).unwrap();
        let mut say = |run: &str| {
            let call = scripts.call(&acquire("a:1", T), run).unwrap();
            client.send(&call.whole().get_packed_command()).unwrap();
            client.read().unwrap()
        };
        assert_eq!(say(&run).list()[0].text(), "granted");
        assert!(say("").text().starts_with("REDLEADER NORUN"));
    });
}

#[test]
fn rule_3_a_key_without_expiry_is_told_and_a_key_that_outlives_its_ttl_is_cut() {
    on_every_server(ServerOptions::new(), |b| {
        b.wait_for_vote();
        b.server.cli(&["SET", LOCK, "someone"]);
        let answer = b.asker.answer(look());
        assert_eq!((answer.verdict, answer.left, answer.owner_token), (Verdict::Seen, None, None));
        assert_eq!(answer.owner, Some(Owner::found("someone")));
        assert_eq!(b.asker.answer(acquire("a:1", T)).left, None);
        assert_eq!(b.asker.verdict(extend("a:1", T)), Verdict::LostOwner);
        assert_eq!((b.key().as_str(), b.left()), ("someone", -1), "a foreign key was touched");
        // A foreign owner value of any size and any bytes.
        b.server.cli(&["SET", LOCK, &"x".repeat(1_000_000), "PX", "60000"]);
        let answer = b.asker.answer(look());
        assert_eq!(answer.owner.unwrap().as_str().len(), 512);
        assert!(b.left() > 50_000, "a foreign key was cut");
        b.server.cli(&["DEL", LOCK]);
        // Ours, after a step back of the node's clock.
        b.asker.answer(acquire("a:1", T));
        b.server.cli(&["PEXPIRE", LOCK, "60000"]);
        assert_eq!(b.asker.answer(observe()).left, Some(Duration::from_millis(500)));
        assert!(b.left() > 50_000, "observe has written");
        assert_eq!(b.asker.answer(look()).left, Some(Duration::from_millis(500)));
        assert!(b.left() <= 500);
    });
}

#[test]
fn rule_4_acquire() {
    on_every_server(ServerOptions::new(), |b| {
        b.wait_for_vote();
        assert_eq!(b.asker.verdict(acquire("a:1", T)), Verdict::Granted);
        let answer = b.asker.answer(acquire("b:1", T + 5));
        assert_eq!((answer.verdict, answer.owner), (Verdict::Held, Some(Owner::found("a:1"))));
        assert_eq!(b.state("token"), T.to_string(), "a refused ask has left its token");
        // Asked again: renewed; a larger token is stored, a smaller one is not.
        b.server.cli(&["PEXPIRE", LOCK, "100"]);
        assert_eq!(b.asker.answer(acquire("a:1", T)).token, T);
        assert!(b.left() > 400);
        let answer = b.asker.answer(acquire("a:1", T + 7));
        assert_eq!((answer.token, answer.owner_token), (T + 7, Some(T + 7)));
        assert_eq!(b.state("token"), (T + 7).to_string());
        assert_eq!(b.asker.answer(acquire("a:1", T + 1)).token, T + 7);
        // Deleted or evicted: others wait for its owner's time, but never past what it asked for.
        b.server.cli(&["DEL", LOCK]);
        let answer = b.asker.answer(acquire("b:1", T + 9));
        assert_eq!((answer.verdict, answer.owner), (Verdict::Held, Some(Owner::found("a:1"))));
        assert!(answer.left.is_some_and(|left| left > Duration::ZERO && left <= Duration::from_millis(500)));
        // A time from before a step back: how much of it has passed is not known, so the owner is owed all of it, once.
        b.server.cli(&["HSET", STATE, "until", "9999999999999"]);
        let owed = Some(Duration::from_millis(500));
        let answer = b.asker.answer(observe());
        assert_eq!((answer.verdict, answer.left), (Verdict::Seen, owed));
        assert_eq!(b.state("until"), "9999999999999", "observe has written");
        let answer = b.asker.answer(acquire("b:1", T + 9));
        assert_eq!((answer.verdict, answer.left), (Verdict::Held, owed), "while its owner may still lead");
        eventually("it is owed no longer than that", SOON, || {
            (b.asker.verdict(acquire("b:1", T + 9)) == Verdict::Granted).then_some(())
        });
        b.asker.ask(release("b:1", T + 9, Ended::Released));
        assert_eq!(b.asker.verdict(acquire("d:1", T + 9)), Verdict::Outdated);
        assert_eq!(b.asker.answer(acquire("d:1", T + 8)).token, T + 9);
        assert_eq!(b.asker.verdict(acquire("d:1", T + 10)), Verdict::Granted);
    });
}

#[test]
fn rule_5_extend() {
    on_every_server(ServerOptions::new(), |b| {
        b.wait_for_vote();
        b.asker.answer(acquire("a:1", T));
        b.server.cli(&["PEXPIRE", LOCK, "100"]);
        let answer = b.asker.answer(extend("a:1", T));
        assert_eq!((answer.verdict, answer.over), (Verdict::Extended, T - 1));
        assert!(b.left() > 400);
        assert_eq!(b.state("over"), (T - 1).to_string());
        b.server.cli(&["DEL", LOCK]);
        assert_eq!(b.asker.verdict(extend("a:1", T)), Verdict::Refilled);
        assert_eq!(b.key(), "a:1");
        // Missing, and another's time is not over.
        b.server.cli(&["DEL", LOCK]);
        let answer = b.asker.answer(extend("z:1", T + 1));
        assert_eq!((answer.verdict, answer.owner), (Verdict::LostOwner, Some(Owner::found("a:1"))));
        assert_eq!(b.asker.verdict(extend("a:1", T)), Verdict::Refilled);
        // Another's.
        let answer = b.asker.answer(extend("z:1", T + 1));
        assert_eq!((answer.verdict, answer.owner), (Verdict::LostOwner, Some(Owner::found("a:1"))));
        assert!(b.asker.deleted(release("a:1", T, Ended::Released)));
        let answer = b.asker.answer(extend("a:1", T));
        assert_eq!((answer.verdict, answer.over), (Verdict::LostOver, T));
        assert_eq!(b.server.cli(&["EXISTS", LOCK]).int(), Some(0), "a late extend has brought the key back");
        // A refill where a larger token was asked for and burnt.
        b.asker.ask(release("c:1", T + 20, Ended::Aborted));
        let answer = b.asker.answer(extend("e:1", T + 10));
        assert_eq!((answer.verdict, answer.token), (Verdict::Refilled, T + 20));
    });
}

#[test]
fn rule_6_release() {
    on_every_server(ServerOptions::new(), |b| {
        b.wait_for_vote();
        b.asker.answer(acquire("a:1", T));
        assert!(b.asker.deleted(release("a:1", T, Ended::Released)));
        assert_eq!((b.state("over"), b.state("until")), (T.to_string(), "0".to_owned()));
        assert_eq!(b.asker.verdict(acquire("a:1", T)), Verdict::Outdated, "a late acquire after its own release");
        // Aborted before it ever arrived: burnt all the same, and nobody's leadership is over.
        assert!(!b.asker.deleted(release("c:1", T + 20, Ended::Aborted)));
        assert_eq!(b.state("over"), T.to_string());
        let answer = b.asker.answer(acquire("c:1", T + 20));
        assert_eq!((answer.verdict, answer.token), (Verdict::Outdated, T + 20));
        assert_eq!(b.asker.verdict(acquire("d:1", T + 21)), Verdict::Granted);
        assert!(!b.asker.deleted(release("a:1", T, Ended::Released)), "another attempt's key");
        assert_eq!(b.key(), "d:1");
        assert!(b.asker.deleted(release("d:1", T + 21, Ended::Aborted)));
        // An unreadable state keeps no key.
        assert_eq!(b.asker.verdict(acquire("g:1", (1 << 53) - 1)), Verdict::Granted);
        assert_eq!(b.state("token"), "9007199254740991");
        b.server.cli(&["HSET", STATE, "token", "9007199254740993"]);
        assert!(b.asker.deleted(release("g:1", (1 << 53) - 1, Ended::Released)));
        b.server.cli(&["DEL", STATE]);
        b.server.cli(&["SET", LOCK, "h:1"]);
        b.server.cli(&["SET", STATE, "text"]);
        assert!(b.asker.deleted(release("h:1", T, Ended::Released)), "a state of another type");
    });
}

#[test]
fn rule_6_a_release_and_nothing_else_wakes() {
    on_every_server(ServerOptions::new(), |b| {
        b.wait_for_vote();
        eventually("it listens", SOON, || {
            let listeners = b.server.cli(&["PUBSUB", "NUMSUB", "redleader:job"]);
            (listeners.list()[1].int() == Some(1)).then_some(())
        });
        let survey = b.asker.ask(What::Survey);
        assert!(matches!(survey, Outcome::Survey { subscribers: Some(1), list: None }), "{survey:?}");
        b.asker.answer(acquire("a:1", T));
        b.asker.deleted(release("a:1", T, Ended::Aborted));
        b.asker.deleted(release("a:1", T, Ended::Released));
        b.asker.answer(acquire("a:2", T + 1));
        assert_eq!(b.asker.wakes(), 0);
        b.asker.deleted(release("a:2", T + 1, Ended::Released));
        eventually("it wakes", SOON, || (b.asker.wakes() == 1).then_some(()));
        let survey = b.asker.ask(What::Survey);
        assert!(matches!(survey, Outcome::Survey { list: Some(list), .. } if list.len() == 8));
    });
}

#[test]
fn rule_7_look() {
    on_every_server(ServerOptions::new(), |b| {
        assert_eq!(b.asker.answer(look()).verdict, Verdict::Free);
        assert!(b.asker.answer(look()).left.unwrap() > Duration::ZERO, "free, and not for a quarantine");
        b.wait_for_vote();
        assert_eq!(b.asker.answer(look()).left, Some(Duration::ZERO));
        b.asker.answer(acquire("a:1", T));
        let answer = b.asker.answer(look());
        assert_eq!((answer.verdict, answer.owner), (Verdict::Seen, Some(Owner::found("a:1"))));
        assert!(answer.left.is_some_and(|left| left > Duration::from_millis(300)));
        b.server.cli(&["DEL", LOCK]);
        let answer = b.asker.answer(look());
        assert_eq!((answer.verdict, answer.owner), (Verdict::Seen, Some(Owner::found("a:1"))), "owed to its owner");
        // A holder in quarantine: free only after both.
        b.asker.answer(extend("a:1", T));
        let long = Duration::from_secs(60);
        let left = b.asker.answer(What::Observe { quarantine: long }).left.unwrap();
        assert!(left > Duration::from_secs(50), "{left:?}");
    });
}

#[test]
fn a_state_that_cannot_be_read_is_an_error_and_never_zero() {
    on_every_server(ServerOptions::new(), |b| {
        b.wait_for_vote();
        for (field, value) in [
            ("token", "9007199254740992"),
            ("token", "1e3"),
            ("token", "nan"),
            ("over", "-1"),
            ("ttl", "x"),
            ("until", "0x10"),
            ("v", ""),
        ] {
            b.server.cli(&["HSET", STATE, field, value]);
            for what in [acquire("a:1", T), extend("a:1", T), look(), observe()] {
                assert_eq!(b.asker.failure(what), Kind::BadState, "{field} {value}");
            }
            assert_eq!(b.server.cli(&["EXISTS", LOCK]).int(), Some(0));
            b.server.cli(&["HDEL", STATE, field]);
        }
        b.server.cli(&["HSET", STATE, "v", "2"]);
        for what in [acquire("a:1", T), extend("a:1", T), look(), observe()] {
            assert_eq!(b.asker.verdict(what), Verdict::Newer);
        }
    });
}

#[test]
fn what_holds_anothers_data_is_left_alone() {
    on_every_server(ServerOptions::new(), |b| {
        b.server.cli(&["SET", STATE, "x"]);
        assert_eq!(b.asker.failure(acquire("h:1", T)), Kind::Wrongtype);
        assert_eq!(b.server.cli(&["EXISTS", LOCK]).int(), Some(0));
        b.server.cli(&["DEL", STATE]);
        b.server.cli(&["HSET", LOCK, "f", "v"]);
        for what in [acquire("a:1", T), extend("a:1", T), look(), release("a:1", T, Ended::Released)] {
            assert_eq!(b.asker.failure(what), Kind::Wrongtype);
        }
        assert_eq!(b.server.cli(&["HGET", LOCK, "f"]).text(), "v");
    });
}

#[test]
fn where_memory_is_full_what_is_held_stays_held_and_nothing_new_is() {
    on_every_server(ServerOptions::new(), |b| {
        b.wait_for_vote();
        b.asker.answer(acquire("d:1", T));
        b.server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        assert_eq!(b.asker.verdict(extend("d:1", T)), Verdict::Extended);
        assert_eq!(b.asker.verdict(acquire("e:1", T + 50)), Verdict::Held);
        assert!(b.asker.deleted(release("d:1", T, Ended::Released)));
        assert_eq!(b.asker.failure(acquire("e:1", T + 50)), Kind::Oom);
        assert_eq!((b.server.cli(&["EXISTS", LOCK]).int(), b.state("token")), (Some(0), T.to_string()));
        b.server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        assert_eq!(b.asker.verdict(acquire("e:1", T + 51)), Verdict::Granted);
    });
}

#[test]
fn errors_inside_scripts_are_read_on_every_version() {
    on_every_server(ServerOptions::new(), |b| {
        b.wait_for_vote();
        b.server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        assert_eq!(b.asker.failure(acquire("a:1", T)), Kind::Noreplicas);
        b.server.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
        assert_eq!(b.asker.verdict(acquire("a:1", T)), Verdict::Granted);
        // A primary that becomes a replica under an open connection.
        b.server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
        assert_eq!(b.asker.failure(extend("a:1", T)), Kind::Readonly);
        b.server.cli(&["REPLICAOF", "NO", "ONE"]);
    });
}

#[test]
fn a_tagged_name_has_its_state_in_its_own_slot() {
    let server = Server::start(Flavour::Redis70, ServerOptions::new());
    let mut asker = Asker::connected("a{tag}b", settings(&server.url()));
    eventually("a vote", SOON, || (!asker.answer(look()).quarantined).then_some(()));
    let claim = claim("a:1", T);
    assert_eq!(asker.verdict(What::Acquire(claim)), Verdict::Granted);
    assert_eq!(server.cli(&["HGET", "a{tag}b:redleader:tagged", "owner"]).text(), "a:1");
}

#[test]
fn a_user_with_two_keys_and_one_channel_gets_through_and_the_acl_log_stays_empty() {
    on_every_server(ServerOptions::new(), |b| {
        let rights = ["~job", "~{job}:redleader", "resetchannels", "&redleader:job", "-@all"];
        let commands = [
            "+eval",
            "+evalsha",
            "+info",
            "+select",
            "+get",
            "+set",
            "+del",
            "+pexpire",
            "+pttl",
            "+time",
            "+hmget",
            "+hset",
            "+publish",
            "+subscribe",
            "+pubsub|numsub",
        ];
        let user = ["ACL", "SETUSER", "u", "on", ">p"];
        b.server.cli(&[&user[..], &rights, &commands].concat());
        let mut asker = Asker::connected(LOCK, settings(&b.server.url().replace("redis://", "redis://u:p@")));
        eventually("a vote", SOON, || (!asker.answer(look()).quarantined).then_some(()));
        assert_eq!(asker.verdict(acquire("a:1", T)), Verdict::Granted);
        assert_eq!(asker.verdict(extend("a:1", T)), Verdict::Extended);
        assert!(matches!(asker.ask(What::Survey), Outcome::Survey { subscribers: Some(_), list: Some(_) }));
        assert!(asker.deleted(release("a:1", T, Ended::Released)));
        assert_eq!(b.server.cli(&["ACL", "LOG"]).list(), []);
        // Without channel and NUMSUB: hand-over by timers, and the rest goes on.
        b.server.cli(&["ACL", "SETUSER", "u", "resetchannels", "-pubsub", "-publish"]);
        b.server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        eventually("it is back", SOON, || {
            let survey = asker.ask(What::Survey);
            matches!(survey, Outcome::Survey { subscribers: None, .. }).then_some(())
        });
        assert_eq!(asker.verdict(acquire("b:1", T + 5)), Verdict::Granted);
        assert!(asker.deleted(release("b:1", T + 5, Ended::Released)));
    });
}
