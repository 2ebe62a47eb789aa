//! Whatever a node, a person or a client of HTTP may send, at random. The fuzz targets in `fuzz/` use the same entries.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any};
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use proptest::{prop_oneof, string::string_regex};
use redleader::redsync::reply::{Ended, Outcome, What};

use crate::asker::{Asker, acquire, claim, extend, look, observe, release, settings};
use crate::support::{Answer, Fake, Flavour, Server, ServerOptions, Value, binary, figure, run, scale};

#[path = "../../fuzz/entries.rs"]
#[allow(dead_code, reason = "some of it is only for the fuzz targets")]
mod entries;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fails with the shortest input that fails.
fn all<S: Strategy>(name: &str, cases: u32, strategy: &S, check: impl Fn(S::Value))
where
    S::Value: Clone + std::panic::UnwindSafe,
{
    let cases = scale().pick(cases, cases * 100);
    let config = Config { cases, failure_persistence: None, max_shrink_time: 30_000, ..Config::default() };
    let checked = |input| {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(input)));
        result.map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            TestCaseError::fail(
                text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default(),
            )
        })
    };
    if let Err(error) = TestRunner::new(config).run(strategy, checked) {
        panic!("{name}: {error}");
    }
    figure("from outside", &format!("{name}: {cases} random inputs"));
}

/// What a field of an answer may hold.
fn bulk() -> impl Strategy<Value = Value> + Clone {
    let number = prop_oneof![
        Just("0".to_owned()),
        Just("-1".to_owned()),
        Just("9007199254740991".to_owned()),
        Just("9007199254740992".to_owned()),
        Just("18446744073709551616".to_owned()),
        (1..2_000_000_000_000_000_u64).prop_map(|number| number.to_string()),
        any::<String>(),
    ];
    let word = select(vec![
        "granted",
        "held",
        "quarantined",
        "outdated",
        "extended",
        "refilled",
        "lost-over",
        "lost-owner",
        "seen",
        "free",
        "newer",
        "deleted",
        "absent",
        "x:1",
        "",
        "0123456789ab",
        "0123456789AB",
        "0123456789a",
        "1795988714504742",
    ]);
    let text =
        prop_oneof![2 => word.prop_map(|word| word.as_bytes().to_vec()), 1 => number.prop_map(String::into_bytes)];
    text.prop_map(|bytes| Value::Bulk(Some(bytes)))
}

/// A value that holds no others.
fn leaf() -> impl Strategy<Value = Value> + Clone {
    let errors = select(vec![
        "ERR x",
        "OOM command not allowed",
        "NOSCRIPT No matching script",
        "READONLY You can't write",
        "MOVED 1 x:1",
        "WRONGTYPE x",
        "REDLEADER BADSTATE x",
        "ERR Error running script (call to f_0): @user_script:1: -OOM x",
        "",
    ]);
    prop_oneof![
        8 => bulk(),
        1 => any::<i64>().prop_map(Value::Int),
        1 => any::<bool>().prop_map(|is_one| Value::Int(i64::from(is_one))),
        1 => errors.prop_map(|text| Value::Error(text.to_owned())),
        1 => string_regex("[ -~]{0,8}").unwrap().prop_map(Value::Simple),
        1 => Just(Value::Bulk(None)),
        1 => Just(Value::Array(None)),
    ]
}

/// An answer of a script with anything in its fields, or anything at all.
fn answers() -> impl Strategy<Value = Vec<u8>> {
    let nested = leaf().prop_recursive(3, 24, 6, |inner| vec(inner, 0..6).prop_map(|items| Value::Array(Some(items))));
    let almost = (vec(bulk(), 9..10), any::<bool>()).prop_map(|(mut fields, is_quarantined)| {
        fields.push(Value::Int(i64::from(is_quarantined)));
        Value::Array(Some(fields))
    });
    let valid =
        (select(vec!["granted", "extended", "seen", "free"]), 0..10_usize, leaf()).prop_map(|(word, at, other)| {
            let bulk = |text: &str| Value::Bulk(Some(text.as_bytes().to_vec()));
            let mut fields: Vec<Value> =
                [word, "a:1", "7", "500", "7", "6", "500", "1795988714504742", "0123456789ab"].map(bulk).into();
            fields.push(Value::Int(0));
            fields[at] = other;
            Value::Array(Some(fields))
        });
    let whole = prop_oneof![leaf(), nested, almost, valid].prop_map(|value| value.encode());
    let cut = (whole.clone(), any::<proptest::sample::Index>(), any::<u8>()).prop_map(|(mut bytes, at, byte)| {
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes
    });
    let deep = (0..20_000_usize).prop_map(|depth| "*1\r\n".repeat(depth).into_bytes());
    let large = (0..200_usize).prop_map(|kib| Value::Bulk(Some(vec![b'x'; kib * 1024])).encode());
    let lengths =
        select(vec!["$99999999999\r\n", "*4294967295\r\n", "$-2\r\n", "*-9\r\n", ":\r\n", "%1\r\n", "$1\r\nxx\r\n"]);
    prop_oneof![
        10 => whole,
        6 => cut,
        4 => vec(any::<u8>(), 0..64),
        1 => deep,
        1 => large,
        1 => lengths.prop_map(|text| text.as_bytes().to_vec()),
    ]
}

#[test]
fn whatever_a_node_answers_is_read_or_refused() {
    all("answers of a node", 4_000, &answers(), |bytes| entries::reply(&bytes));
}

/// Through the real client: one reply for every ask, within the node timeout, and a vote only where a script said so.
#[test]
fn whatever_a_fake_node_sends_every_ask_has_one_reply() {
    let server = Server::start(Flavour::Redis70, ServerOptions::new());
    let said = Arc::new(Mutex::new(Vec::new()));
    let says = Arc::clone(&said);
    // One for each of the client's, since one of them subscribes.
    let upstream = Mutex::new(BTreeMap::new());
    let fake = Fake::start(move |call| {
        if call.name == "EVALSHA" {
            return Answer::Bytes(lock(&says).clone());
        }
        let words: Vec<String> = (0..call.args.len()).map(|at| call.word(at)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut upstream = lock(&upstream);
        let client = upstream.entry(call.connection).or_insert_with(|| server.client().unwrap());
        client.call(&words).map_or(Answer::Close, |value| Answer::Bytes(value.encode()))
    });
    let mut settings = settings(&fake.url());
    settings.node_timeout = Duration::from_millis(40);
    settings.redial = Duration::from_millis(40);
    let asker = Mutex::new(Asker::connected("job", settings));
    let asks = select(vec![look(), observe(), acquire("a:1", 7), extend("a:1", 7), release("a:1", 7, Ended::Aborted)]);
    all("answers of a fake node through the client", 150, &(answers(), asks), |(bytes, what)| {
        lock(&said).clone_from(&bytes);
        let outcome = lock(&asker).ask(what.clone());
        assert_ne!(outcome, Outcome::Unsent);
        entries::check_outcome(&what, &outcome);
        let read = redis::parse_redis_value(&bytes).map(|value| redleader::redsync::script::outcome(&what, &value));
        // What is read here as no vote cannot be one there; the other way round a whole answer may come too late.
        let is_vote = |outcome: &Outcome| matches!(outcome, Outcome::Answer(_) | Outcome::Released { .. });
        assert!(!is_vote(&outcome) || read.is_ok_and(|read| read == outcome), "{outcome:?}");
    });
    // And a good answer is one, once the connection is.
    let claim = claim("a:1", 7);
    let fields = ["granted", "a:1", "7", "500", "7", "6", "500", "1795988714504742", "0123456789ab"];
    let fields = fields.iter().map(|text| Value::Bulk(Some(text.as_bytes().to_vec()))).chain([Value::Int(0)]);
    *lock(&said) = Value::Array(Some(fields.collect())).encode();
    crate::support::eventually("a good answer is read", Duration::from_secs(10), || {
        let outcome = lock(&asker).ask(What::Acquire(claim.clone()));
        let is_waiting = matches!(outcome, Outcome::Failed(_));
        assert!(is_waiting || matches!(outcome, Outcome::Answer(_)), "{outcome:?}");
        (!is_waiting).then_some(())
    });
}

fn urls() -> impl Strategy<Value = String> {
    let part =
        |parts: &[&'static str]| prop_oneof![3 => select(parts.to_vec()).prop_map(str::to_owned), 1 => any::<String>()];
    let scheme = part(&["redis", "rediss", "unix", "redis+unix", "REDIS", "http", ""]);
    let slashes = part(&["://", ":", ":/", ":///"]);
    let login = part(&["", "u:S3cr3t@", ":S3cr3t@", "u@", "u:%53@", "u:%@", "u:S3cr3t%zz@", "a@b:S3cr3t@"]);
    let host =
        part(&["h", "127.0.0.1", "[::1]", "[::1", "h_x", "-h", "H.example.", "xn--a", "/run/redis.sock", "1.2.3", ""]);
    let rest = part(&["", ":6379", ":0", ":65536", ":x", "/0", "/16", "/-1", "/x", "?db=1", "?a=b", "#x", "/1?db=2"]);
    prop_oneof![
        4 => (scheme, slashes, login, host, rest).prop_map(|(a, b, c, d, e)| [a, b, c, d, e].concat()),
        1 => any::<String>(),
    ]
}

#[test]
fn whatever_is_given_as_a_url_is_read_or_refused() {
    all("node URLs", 8_000, &urls(), |text| entries::url(&text));
}

const FLAGS: [&str; 33] = [
    "--lock",
    "--redis",
    "--redis-file",
    "--redis-username",
    "--redis-password-file",
    "--redis-ca-file",
    "--redis-cert-file",
    "--redis-key-file",
    "--ttl",
    "--clock-margin",
    "--renew-every",
    "--node-timeout",
    "--grace",
    "--quarantine",
    "--connect-timeout",
    "--max-failed-extends",
    "--handover-delay",
    "--stop-timeout",
    "--identity",
    "--pod-name",
    "--pod-namespace",
    "--pod-uid",
    "--listen",
    "--control",
    "--log-level",
    "--log-format",
    "--output",
    "--next",
    "--measure",
    "--timeout",
    "--stand-back",
    "--watch",
    "--no-such-flag",
];

fn values() -> impl Strategy<Value = String> {
    let known = vec![
        "",
        "0",
        "1",
        "8s",
        "100ms",
        "1ms",
        "-1s",
        "1000000000000000000s",
        "99999d",
        "10%",
        "0%",
        "100%",
        "1e9",
        "job",
        "a{b}c",
        "{}",
        "x:redleader",
        "127.0.0.1:0",
        ":8080",
        "0.0.0.0:99999",
        "unix:/tmp/x",
        "@abstract",
        "unix:",
        "json",
        "text",
        "auto",
        "debug",
        "/nonexistent",
        "/dev/null",
        "/dev/zero",
        "/",
        "S3cr3t",
        "bash",
        "leader",
    ];
    prop_oneof![3 => select(known).prop_map(str::to_owned), 1 => urls(), 1 => any::<String>()]
}

fn words() -> impl Strategy<Value = Vec<OsString>> {
    let commands =
        select(vec!["run", "status", "doctor", "wait", "resign", "drain", "completions", "demo", "install", "x"]);
    let flag = (select(FLAGS.to_vec()), values(), any::<bool>()).prop_map(|(flag, value, is_one)| {
        if is_one { vec![OsString::from(format!("{flag}={value}"))] } else { vec![flag.into(), value.into()] }
    });
    let raw = vec(any::<u8>(), 0..12).prop_map(|bytes| vec![OsString::from_vec(bytes)]);
    let flags = vec(prop_oneof![12 => flag, 1 => raw], 0..8);
    let good = ["--lock", "job", "--redis", "redis://u:S3cr3t@127.0.0.1:1"].map(OsString::from);
    (commands, any::<bool>(), flags).prop_map(move |(command, is_good, flags)| {
        let mut words = vec![OsString::from(command)];
        words.extend(good.iter().filter(|_| is_good).cloned());
        words.extend(flags.into_iter().flatten());
        words
    })
}

#[test]
fn whatever_is_given_as_arguments_is_taken_or_refused_by_name() {
    all("command lines", 4_000, &words(), entries::config);
}

/// The real program, with a level that is refused, so that it ends: whatever else there is in its environment.
#[test]
fn whatever_is_in_the_environment_the_program_says_what_is_wrong() {
    let names = FLAGS.map(|flag| format!("REDLEADER{}", flag.trim_start_matches('-').replace('-', "_").to_uppercase()));
    let variables =
        vec((select(names.map(|name| name.replacen("REDLEADER", "REDLEADER_", 1)).to_vec()), values()), 0..6);
    all("environments of the program", 60, &variables, |variables| {
        let mut command = Command::new(binary());
        command.args(["run", "--lock", "job", "--redis", "redis://127.0.0.1:1", "--log-level", "loud"]);
        command.envs(variables.iter().filter(|(_, value)| !value.contains('\0')).map(|(name, value)| (name, value)));
        let output = run("redleader", command, Duration::from_secs(20));
        assert_eq!(output.code, 64, "{variables:?}: {output:?}");
        assert!(output.stderr.lines().any(|line| line.starts_with("--log-level")), "{variables:?}: {output:?}");
        assert!(
            !output.stderr.contains("panicked") && !output.stderr.contains(entries::SECRET),
            "{variables:?}: {output:?}"
        );
    });
}

fn requests() -> impl Strategy<Value = Vec<u8>> {
    let part =
        |parts: &[&'static str]| prop_oneof![4 => select(parts.to_vec()).prop_map(str::to_owned), 1 => any::<String>()];
    let methods = part(&["GET", "HEAD", "POST", "PUT", "OPTIONS", "CONNECT", "TRACE", "get", "G\u{e9}T", ""]);
    let paths = part(&[
        "/",
        "/readyz",
        "/healthz",
        "/livez",
        "/startupz",
        "/metrics",
        "/leader",
        "/leader/stream",
        "/routez",
        "/resign",
        "/drain",
        "/status",
        "*",
        "http://x/readyz",
        "//",
        "/%00",
        "/../../etc/passwd",
        "/readyz?x=%ff",
        "",
    ]);
    let versions = part(&["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/1.1 ", ""]);
    let headers = part(&[
        "host: x",
        "connection: close",
        "connection: keep-alive",
        "content-length: 3",
        "content-length: -1",
        "content-length: 99999999999999999999",
        "transfer-encoding: chunked",
        "transfer-encoding: x",
        "expect: 100-continue",
        "upgrade: h2c",
        "accept: text/html",
        "accept: text/event-stream",
        ": x",
        "x",
        "x: \u{7f}",
        " folded",
    ]);
    let ends = select(vec!["\r\n", "\n", "\r", ""]);
    let bodies = part(&["", "abc", "3\r\nabc\r\n0\r\n\r\n", "ffffffffffffffff\r\n", "stand-back=1s", "{}"]);
    let one = (methods, paths, versions, vec(headers, 0..6), ends, bodies).prop_map(|(m, p, v, headers, end, body)| {
        let head: String = headers.iter().map(|header| format!("{header}{end}")).collect();
        format!("{m} {p} {v}{end}{head}{end}{body}").into_bytes()
    });
    let large =
        (1..40_usize).prop_map(|kib| [b"GET /", vec![b'x'; kib * 1024].as_slice(), b" HTTP/1.1\r\n\r\n"].concat());
    let many =
        (1..200_usize).prop_map(|count| format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(count)).into_bytes());
    prop_oneof![
        12 => one.clone(),
        3 => vec(one, 2..5).prop_map(|requests| requests.concat()),
        3 => vec(any::<u8>(), 0..200),
        1 => large,
        1 => many,
        1 => Just(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        1 => Just(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec()),
    ]
}

#[test]
fn whatever_is_sent_to_http_is_answered_or_ended() {
    let server = entries::HttpServer::start();
    all("requests of HTTP", 600, &requests(), |bytes| server.feed(&bytes));
    assert!(server.is_alive());
}
