//! How a node is reached, and what each fault of it is called.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use redleader::redsync::node::{NodeSettings, Password, TlsFiles};
use redleader::redsync::reply::{Kind, NodeEvent, Outcome, RunId, Verdict};
use redleader::redsync::url::{NodeUrl, Secret};

use crate::asker::{Asker, acquire, look, settings};
use crate::support::{
    Answer, Call, Certificates, Data, Fake, Flavour, Proxy, Server, ServerOptions, TempDir, eventually, resp,
    stays_true,
};

const SOON: Duration = Duration::from_secs(3);
const RUN: &str = "0123456789abcdef0123456789abcdef01234567";

/// How the first dial ends.
fn first_event(settings: NodeSettings) -> NodeEvent {
    Asker::start("job", vec![settings]).event()
}

#[track_caller]
fn assert_down(settings: NodeSettings, expected: Kind) {
    let event = first_event(settings);
    assert_eq!(event, NodeEvent::Down { node: 0, kind: expected });
}

#[track_caller]
fn assert_up(settings: NodeSettings) {
    let event = first_event(settings);
    assert!(matches!(event, NodeEvent::Up { .. }), "{event:?}");
}

fn with_password(url: &str, username: Option<&str>, password: Password) -> NodeSettings {
    NodeSettings { username: username.map(str::to_owned), password, ..settings(url) }
}

/// A server that is well, save for what `script` says.
fn fake(script: impl Fn(&Call) -> Option<Answer> + Send + Sync + 'static) -> Fake {
    Fake::start(move |call| {
        script(call).unwrap_or_else(|| match call.name.as_str() {
            "INFO" => Answer::info("7.0.15", RUN, "master"),
            "EVAL" if call.args.len() == 5 => Answer::bulk(RUN),
            _ => Answer::ok(),
        })
    })
}

#[test]
fn what_info_says_comes_with_the_connection() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour, ServerOptions::new());
        let field = |section: &str, name: &str| {
            let text = server.cli(&["INFO", section]).text();
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap().to_owned()
        };
        let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let expected = |evicts| NodeEvent::Up {
            node: 0,
            run: RunId(hex(&field("server", "run_id")[..12])),
            replid: hex(&field("replication", "master_replid")[..16]),
            evicts,
        };
        assert_eq!(first_event(settings(&server.url())), expected(false));
        server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
        assert_eq!(first_event(settings(&server.url())), expected(false), "no limit, no eviction");
        server.cli(&["CONFIG", "SET", "maxmemory", "100mb"]);
        assert_eq!(first_event(settings(&server.url())), expected(true));
    }
}

#[test]
fn a_database_a_socket_and_an_ipv6_address_are_reached() {
    let server = Server::start(Flavour::Redis70, ServerOptions::new().ipv6());
    let socket = server.socket();
    for (url, db) in [
        (format!("{}/3", server.url()), "3"),
        (format!("unix://{}?db=4", socket.display()), "4"),
        (format!("redis://[::1]:{}/5", server.port()), "5"),
        (format!("redis://localhost:{}/6", server.port()), "6"),
    ] {
        let mut asker = Asker::connected("job", settings(&url));
        eventually("the quarantine ends", SOON, || (!asker.answer(look()).quarantined).then_some(()));
        assert_eq!(asker.verdict(acquire("a:1", 7)), Verdict::Granted, "{url}");
        let mut client = server.client().unwrap();
        client.call(&["SELECT", db]).unwrap();
        assert_eq!(client.call(&["GET", "job"]).unwrap().text(), "a:1", "{url}");
    }
    assert_down(settings(&format!("{}/999", server.url())), Kind::Unknown);
}

/// C67
#[test]
fn c67_every_password_authenticates_encoded_and_from_a_file_and_raw() {
    let long = "x".repeat(200);
    for password in
        ["xxx#", "p@ss/w:rd", "abc%de", "abcde%", "%2F", "RanDoMStRIng=", "a+b c", "p\u{e4}$$", "in\"ner\n", &long]
    {
        let server = Server::start(Flavour::Redis70, ServerOptions::new());
        server.cli(&["CONFIG", "SET", "requirepass", password]);
        let encoded = utf8_percent_encode(password, NON_ALPHANUMERIC).to_string();
        assert_up(settings(&server.url().replace("redis://", &format!("redis://:{encoded}@"))));
        assert_up(settings(&server.url().replace("redis://", &format!("redis://default:{encoded}@"))));
        assert_up(with_password(&server.url(), None, Password::Value(Secret::new(password))));
        assert_up(with_password(&server.url(), Some("default"), Password::Value(Secret::new(password))));
        let directory = TempDir::new();
        let file = directory.write("password", &format!("{password}\n"));
        assert_up(with_password(&server.url(), None, Password::File(file)));
        assert_down(settings(&server.url()), Kind::Auth);
        let wrong = Password::Value(Secret::new(format!("{password}x")));
        assert_down(with_password(&server.url(), None, wrong), Kind::Auth);
    }
}

#[test]
fn a_password_for_a_server_without_and_a_missing_file_are_auth_faults() {
    let server = Server::start(Flavour::Redis70, ServerOptions::new());
    assert_down(with_password(&server.url(), None, Password::Value(Secret::new("p"))), Kind::Auth);
    assert_down(with_password(&server.url(), Some("nobody"), Password::None), Kind::Auth);
    assert_down(with_password(&server.url(), None, Password::File("/nowhere".into())), Kind::Auth);
}

#[test]
fn a_rotated_password_is_read_at_the_next_connect() {
    let server = Server::start(Flavour::Redis70, ServerOptions::new().password("old"));
    let directory = TempDir::new();
    let file = directory.write("password", "old\n");
    let mut asker = Asker::connected("job", with_password(&server.url(), None, Password::File(file)));
    directory.write("password", "new");
    let mut client = server.client().unwrap();
    client.call(&["CONFIG", "SET", "requirepass", "new"]).unwrap();
    client.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    assert_eq!(asker.down(), Kind::Connect);
    assert!(matches!(asker.event(), NodeEvent::Up { .. }));
}

#[test]
fn tls_with_a_private_ca_and_a_client_certificate() {
    let certificates = Certificates::generate();
    let server = Server::start(
        Flavour::Redis70,
        ServerOptions::new().tls(&certificates).ipv6().args(["--tls-auth-clients", "yes"]),
    );
    let ca = TlsFiles { ca: Some(certificates.ca()), cert: None, key: None };
    let both = TlsFiles { cert: Some(certificates.client_cert()), key: Some(certificates.client_key()), ..ca.clone() };
    let with = |url: &str, tls: &TlsFiles| NodeSettings { tls: tls.clone(), ..settings(url) };
    for host in ["localhost", "127.0.0.1", "[::1]"] {
        let mut asker = Asker::connected("job", with(&format!("rediss://{host}:{}", server.port()), &both));
        assert!(matches!(asker.ask(look()), Outcome::Answer(_)));
    }
    let url = server.url();
    for (tls, why) in [
        (TlsFiles::default(), "the system does not know the CA"),
        (TlsFiles { cert: Some(certificates.client_cert()), ..ca.clone() }, "a certificate without its key"),
        (TlsFiles { ca: Some("/nowhere".into()), cert: None, key: None }, "no such file"),
        (TlsFiles { ca: Some(certificates.server_key()), cert: None, key: None }, "no certificate"),
    ] {
        let event = first_event(with(&url, &tls));
        assert_eq!(event, NodeEvent::Down { node: 0, kind: Kind::Tls }, "{why}");
    }
    // With TLS 1.3 the server says only after the handshake that it wants a certificate.
    let event = first_event(with(&url, &ca));
    assert_eq!(event, NodeEvent::Down { node: 0, kind: Kind::Tls });
    // The wrong scheme, both ways. A server with TLS may send an alert, or hang up at once.
    let event = first_event(settings(&url.replace("rediss://", "redis://")));
    assert!(matches!(event, NodeEvent::Down { kind: Kind::Tls | Kind::Connect, .. }), "{event:?}");
    let alert = fake(|call| (call.name == "INFO").then(|| Answer::BytesThenClose(b"\x15\x03\x01\0\x02\x02F".to_vec())));
    assert_down(settings(&alert.url()), Kind::Tls);
    let plain = Server::start(Flavour::Redis70, ServerOptions::new());
    assert_down(with(&plain.url().replace("redis://", "rediss://"), &ca), Kind::Tls);
}

#[test]
fn names_and_addresses_that_are_not_there() {
    assert_down(settings("redis://no-such-host.invalid:6379"), Kind::Dns);
    assert_down(settings("redis://127.0.0.1:1"), Kind::Connect);
    assert_down(settings("unix:///nowhere/s"), Kind::Connect);
}

#[test]
fn what_cannot_vote_as_it_is_is_told_at_the_connect() {
    let replica = Server::start(Flavour::Redis70, ServerOptions::new().args(["--replicaof", "127.0.0.1", "1"]));
    assert_down(settings(&replica.url()), Kind::Readonly);
    let no_eval = Server::start(Flavour::Redis70, ServerOptions::new().args(["--rename-command", "EVAL", ""]));
    assert_down(settings(&no_eval.url()), Kind::Unsupported);
    let no_info = Server::start(Flavour::Redis70, ServerOptions::new().args(["--rename-command", "INFO", ""]));
    assert_down(settings(&no_info.url()), Kind::NoRunId);
    let cluster = Server::start(Flavour::Redis70, ServerOptions::new().args(["--cluster-enabled", "yes"]));
    assert_down(settings(&cluster.url()), Kind::Clusterdown);
    // One shard that serves all slots is an independent server.
    cluster.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    eventually("the cluster serves", SOON, || {
        cluster.cli(&["CLUSTER", "INFO"]).text().contains("cluster_state:ok").then_some(())
    });
    assert_up(settings(&cluster.url()));
    let other = Server::start(Flavour::Redis70, ServerOptions::new().args(["--cluster-enabled", "yes"]));
    cluster.cli(&["CLUSTER", "DELSLOTSRANGE", "8192", "16383"]);
    other.cli(&["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"]);
    cluster.cli(&["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string()]);
    eventually("the cluster has two shards", Duration::from_secs(10), || {
        cluster.cli(&["CLUSTER", "INFO"]).text().contains("cluster_size:2").then_some(())
    });
    assert_down(settings(&cluster.url()), Kind::Moved);
}

#[test]
fn a_missing_right_is_told_at_the_connect() {
    let server = Server::start(Flavour::Redis70, ServerOptions::new());
    for missing in ["-eval", "-info", "~other"] {
        server.cli(&["ACL", "SETUSER", "u", "reset", "on", ">p", "+@all"]);
        let keys = if missing == "~other" { "~other" } else { "~*" };
        server.cli(&["ACL", "SETUSER", "u", keys, "+@all"]);
        if missing.starts_with('-') {
            server.cli(&["ACL", "SETUSER", "u", missing]);
        }
        assert_down(with_password(&server.url(), Some("u"), Password::Value(Secret::new("p"))), Kind::Noperm);
    }
}

#[test]
fn a_full_server_is_no_wrong_password() {
    let server = Server::start(Flavour::Redis70, ServerOptions::new().password("p"));
    server.cli(&["CONFIG", "SET", "maxclients", "1"]);
    let _held = server.client();
    for _ in 0..20 {
        assert_down(with_password(&server.url(), None, Password::Value(Secret::new("p"))), Kind::Maxclients);
    }
}

#[test]
fn a_loading_server_is_no_vote_and_comes_back() {
    let mut server = Server::start(Flavour::Redis70, ServerOptions::new());
    server.cli(&["DEBUG", "POPULATE", "2000"]);
    server.cli(&["SAVE"]);
    let options =
        ServerOptions::new().args(["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"]);
    let mut slow = Server::start(Flavour::Redis70, options);
    std::fs::copy(server.directory().join("dump.rdb"), slow.directory().join("dump.rdb")).unwrap();
    slow.restart(Data::Kept);
    let mut asker = Asker::start("job", vec![settings(&slow.url())]);
    assert_eq!(asker.down(), Kind::Loading);
    assert_eq!(asker.failure(look()), Kind::Loading);
    eventually("it has loaded", Duration::from_secs(15), || {
        matches!(asker.ask(look()), Outcome::Answer(_)).then_some(())
    });
    server.kill();
}

#[test]
fn nothing_is_sent_that_a_proxy_may_not_know() {
    let server = Server::start(Flavour::Redis70, ServerOptions::new());
    let proxy = Proxy::start(&server.address());
    let mut asker = Asker::connected("job", settings(&proxy.url()));
    asker.ask(look());
    asker.ask(acquire("a:1", 7));
    eventually("it listens", SOON, || (proxy.count("SUBSCRIBE") == 1).then_some(()));
    let mut names: Vec<String> = proxy.seen().into_iter().map(|seen| seen.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names, ["EVAL", "EVALSHA", "INFO", "SUBSCRIBE"]);
    assert_eq!(proxy.open().len(), 2, "one connection for asks, one for the wake-up");
}

#[test]
fn the_wake_up_comes_back_with_the_connection_and_is_left_out_where_it_is_denied() {
    let server = Server::start(Flavour::Redis70, ServerOptions::new());
    let listens = || server.cli(&["PUBSUB", "NUMSUB", "redleader:job"]).list()[1].int() == Some(1);
    let mut asker = Asker::connected("job", settings(&server.url()));
    eventually("it listens", SOON, || listens().then_some(()));
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    eventually("it listens again", SOON, || listens().then_some(()));
    assert!(matches!(asker.ask(look()), Outcome::Answer(_)), "the node was never down");
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert_eq!(asker.down(), Kind::Connect);
    assert!(matches!(asker.event(), NodeEvent::Up { .. }));
    eventually("it listens on the new one", SOON, || listens().then_some(()));
    server.cli(&["PUBLISH", "redleader:job", "x"]);
    eventually("it wakes", SOON, || (asker.wakes() == 1).then_some(()));
    // A flood costs the subscription its connection, and no memory; it listens again after the usual pause.
    let flood = "for _ = 1, 1000 do redis.call('PUBLISH', 'redleader:job', string.rep('x', 1000)) end";
    server.cli(&["EVAL", flood, "0"]);
    eventually("it listens again", SOON, || listens().then_some(()));
    server.cli(&["ACL", "SETUSER", "u", "on", ">p", "~*", "resetchannels", "+@all"]);
    let url = server.url().replace("redis://", "redis://u:p@");
    let mut denied = Asker::connected("other", settings(&url));
    stays_true("asked once only", Duration::from_millis(1200), || server.cli(&["ACL", "LOG"]).list().len() <= 1);
    let count = server.cli(&["ACL", "LOG"]).list()[0].list()[1].text();
    assert_eq!(count, "1");
    assert!(matches!(denied.ask(look()), Outcome::Answer(_)));
}

#[test]
fn fake_servers_that_are_too_old_or_spread_or_nameless_are_refused() {
    let old = fake(|call| (call.name == "INFO").then(|| Answer::info("4.0.14", RUN, "master")));
    assert_down(settings(&old.url()), Kind::Unsupported);
    let spread = fake(|call| {
        (call.name == "INFO" && call.args.len() == 2).then(|| Answer::info("7.0.15", &RUN.replace('0', "f"), "master"))
    });
    assert_down(settings(&spread.url()), Kind::NoRunId);
    let inside = fake(|call| (call.name == "EVAL").then(|| Answer::bulk(&RUN.replace('0', "f"))));
    assert_down(settings(&inside.url()), Kind::NoRunId);
    let nameless = fake(|call| (call.name == "INFO").then(|| Answer::bulk("redis_version:7.0.15\r\nrole:master\r\n")));
    assert_down(settings(&nameless.url()), Kind::NoRunId);
    let well = fake(|_| None);
    assert_up(settings(&well.url()));
}

#[test]
fn a_fake_proxy_that_denies_info_in_scripts_gets_the_run_id_with_each_script() {
    let fake = fake(|call| (call.name == "EVAL" && call.args.len() == 5).then(|| Answer::bulk("")));
    let mut asker = Asker::connected("job", settings(&fake.url()));
    asker.ask(look());
    let call = fake.calls().into_iter().find(|call| call.name == "EVALSHA").unwrap();
    assert_eq!((call.word(5).as_str(), call.word(6).as_str()), ("200", RUN));
}

/// C1, C123
#[test]
fn c1_whatever_a_fake_server_answers_to_a_script_it_is_no_vote_and_nothing_breaks() {
    let deep = b"*1\r\n".repeat(10_000);
    let huge = [b"$1000000\r\n".to_vec(), vec![b'x'; 1_000_000], b"\r\n".to_vec()].concat();
    let answers: Vec<(Vec<u8>, &[Kind])> = vec![
        (b"$-1\r\n".to_vec(), &[Kind::Protocol]),
        (b"*-1\r\n".to_vec(), &[Kind::Protocol]),
        (b":0\r\n".to_vec(), &[Kind::Protocol]),
        (b"+OK\r\n".to_vec(), &[Kind::Protocol]),
        (b"*0\r\n".to_vec(), &[Kind::Protocol]),
        (b"*10\r\n:1\r\n:2\r\n:3\r\n:4\r\n:5\r\n:6\r\n:7\r\n:8\r\n:9\r\n:1\r\n".to_vec(), &[Kind::Protocol]),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), &[Kind::Protocol]),
        (b"\x15\x03\x01\x00\x02\x02\x46".to_vec(), &[Kind::Protocol, Kind::Timeout]),
        (b"-LOADING Redis is loading\r\n".to_vec(), &[Kind::Loading]),
        (b"-ERR what\r\n".to_vec(), &[Kind::Unknown]),
        (b"-\r\n".to_vec(), &[Kind::Unknown]),
        (b":99999999999999999999999\r\n".to_vec(), &[Kind::Protocol]),
        (b"$99999999999999999999999\r\n".to_vec(), &[Kind::Protocol]),
        (b"$-5\r\n".to_vec(), &[Kind::Protocol]),
        (b"*-5\r\n".to_vec(), &[Kind::Protocol]),
        (b"*2000000000\r\n".to_vec(), &[Kind::Timeout]),
        (b"*9223372036854775807\r\n:1\r\n".to_vec(), &[Kind::Timeout, Kind::Protocol]),
        (b"%9223372036854775807\r\n".to_vec(), &[Kind::Timeout, Kind::Protocol]),
        (b"|-1\r\n:1\r\n".to_vec(), &[Kind::Timeout, Kind::Protocol]),
        (b"~9000000000\r\n".to_vec(), &[Kind::Timeout, Kind::Protocol]),
        (b"=-1\r\n".to_vec(), &[Kind::Timeout, Kind::Protocol]),
        (b"!-1\r\n".to_vec(), &[Kind::Timeout, Kind::Protocol]),
        (b">0\r\n".to_vec(), &[Kind::Timeout, Kind::Protocol]),
        (b"$5\r\nab".to_vec(), &[Kind::Timeout]),
        (deep, &[Kind::Protocol, Kind::Timeout]),
        (huge, &[Kind::Protocol]),
    ];
    for (bytes, kinds) in answers {
        let head = String::from_utf8_lossy(&bytes[..bytes.len().min(30)]).into_owned();
        let fake = fake(move |call| (call.name == "EVALSHA").then(|| Answer::Bytes(bytes.clone())));
        let mut asker = Asker::connected("job", settings(&fake.url()));
        let kind = asker.failure(acquire("a:1", 7));
        assert!(kinds.contains(&kind), "{head:?}: {kind:?}");
        // It is asked again, and never stuck.
        let again = asker.failure(acquire("a:1", 7));
        assert!(kinds.contains(&again), "{head:?}, asked again: {again:?}");
    }
    let half = fake(|call| (call.name == "EVALSHA").then(|| Answer::BytesThenClose(b"*10\r\n$7\r\ngra".to_vec())));
    let kind = Asker::connected("job", settings(&half.url())).failure(acquire("a:1", 7));
    assert!(matches!(kind, Kind::Connect | Kind::Protocol), "{kind:?}");
    let closes = fake(|call| (call.name == "EVALSHA").then_some(Answer::Close));
    assert_eq!(Asker::connected("job", settings(&closes.url())).failure(acquire("a:1", 7)), Kind::Connect);
}

#[test]
fn fake_servers_that_answer_the_greeting_with_anything_are_down_and_nothing_breaks() {
    for (bytes, kinds) in [
        (b"-DENIED Redis is running in protected mode\r\n".to_vec(), &[Kind::Auth][..]),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), &[Kind::Protocol]),
        (b"*1\r\n".repeat(10_000), &[Kind::Protocol, Kind::Timeout]),
        (b"*2000000000\r\n".to_vec(), &[Kind::Protocol, Kind::Timeout]),
        ([b"$9000000\r\n".to_vec(), vec![b'x'; 200_000]].concat(), &[Kind::Protocol]),
        (resp::Value::Int(1).encode(), &[Kind::Protocol]),
    ] {
        let head = String::from_utf8_lossy(&bytes[..bytes.len().min(30)]).into_owned();
        let fake = fake(move |call| (call.name == "INFO").then(|| Answer::Bytes(bytes.clone())));
        let event = first_event(settings(&fake.url()));
        assert!(matches!(&event, NodeEvent::Down { kind, .. } if kinds.contains(kind)), "{head:?}: {event:?}");
    }
}

#[test]
fn a_node_url_names_the_node_and_shows_no_secret() {
    let url = NodeUrl::parse("rediss://u:S3cr3tT0ken@Host:7001/2").unwrap();
    let settings = with_password("redis://h", Some("u"), Password::Value(Secret::new("S3cr3tT0ken")));
    assert_eq!(url.name(), "host:7001/2");
    assert!(!format!("{url:?} {settings:?}").contains("S3cr3tT0ken"));
}
