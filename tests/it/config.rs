//! Configuration of the real binary: what is refused before any node is asked, and every way to give a password.

use std::process::Command;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::support::{
    Certificates, Flavour, HttpConnection, Output, Port, Process, Replica, ReplicaOptions, Server, ServerOptions,
    Servers, TempDir, binary, eventually, run,
};

const SOON: Duration = Duration::from_secs(10);

/// `redleader WORDS` with variables; it ends by itself.
fn redleader(words: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(binary());
    command.args(words).envs(env.iter().copied());
    run("redleader", command, SOON)
}

/// It ends within a second, with 64, and one line for each of `faults`, which begins with what is at fault.
#[track_caller]
fn assert_refused(words: &[&str], env: &[(&str, &str)], faults: &[&str]) {
    let output = redleader(words, env);
    let what = format!("{words:?} {env:?}: {output:?}");
    assert_eq!(output.code, 64, "{what}");
    assert!(output.took < Duration::from_secs(1), "{what}");
    assert_eq!(output.stdout, "", "{what}");
    let lines: Vec<&str> = output.stderr.lines().collect();
    assert_eq!(lines.len(), faults.len(), "{what}");
    for (line, fault) in lines.iter().zip(faults) {
        assert!(line.starts_with(fault), "{what}");
    }
    assert!(!output.stderr.contains("panicked") && !output.stderr.contains("RUST_BACKTRACE"), "{what}");
}

const GOOD: [&str; 7] = ["run", "--lock", "job", "--redis", "redis://127.0.0.1:1", "--listen", "127.0.0.1:0"];

fn good_and<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&GOOD[..], more].concat()
}

#[test]
fn c13_numbers_that_cannot_be_safe_end_within_a_second() {
    let huge = "1000000000000000000";
    let huge_seconds = "1000000000000000000s";
    for (flags, fault) in [
        (&["--renew-every", "8s"][..], "--renew-every"),
        (&["--renew-every", "7s", "--grace", "1s"], "--renew-every"),
        (&["--grace", "8s"], "--grace"),
        (&["--quarantine", "1s"], "--quarantine"),
        (&["--clock-margin", "60%"], "--clock-margin"),
        (&["--ttl", "1ms"], "--ttl"),
    ] {
        assert_refused(&good_and(flags), &[], &[fault]);
    }
    // Two relations are broken at once, and both are told.
    assert_refused(&good_and(&["--node-timeout", "4s"]), &[], &["--renew-every", "--renew-every"]);
    for flag in ["--ttl", "--renew-every", "--node-timeout", "--grace", "--quarantine", "--connect-timeout"] {
        let variable = format!("REDLEADER_{}", flag.trim_start_matches('-').replace('-', "_").to_uppercase());
        for value in ["0", "0s", "-5s", huge, huge_seconds, "", "8 parsecs", "10^18"] {
            let is_zero = value == "0s";
            let words = good_and(&[flag, value]);
            if !is_zero {
                assert_refused(&words, &[], &[flag]);
                assert_refused(&GOOD, &[(&variable, value)], &[flag]);
                continue;
            }
            // Zero is a duration: what is wrong with it is its relation to the others, and that is named, too.
            for output in [redleader(&words, &[]), redleader(&GOOD, &[(&variable, value)])] {
                assert_eq!(output.code, 64, "{output:?}");
                assert!(output.took < Duration::from_secs(1) && output.stderr.contains(flag), "{output:?}");
            }
        }
    }
    for (flag, value) in [("--clock-margin", "10"), ("--clock-margin", ""), ("--max-failed-extends", "-1")] {
        assert_refused(&good_and(&[flag, value]), &[], &[flag]);
    }
    let directory = TempDir::new();
    for content in ["", "\n# nothing\n"] {
        let file = directory.write("nodes", content);
        let words = ["run", "--lock", "job", "--redis-file", file.to_str().unwrap()];
        assert_refused(&words, &[], &["--redis: is required"]);
    }
}

#[test]
fn urls_and_names_that_are_none_are_refused_one_line_each() {
    for (url, says) in [
        ("127.0.0.1:6379", "--redis: URL 1 must begin with redis://"),
        ("http://127.0.0.1", "--redis: URL 1 must begin with redis://"),
        ("redis://", "--redis: URL 1 has no valid host"),
        ("redis://h:0", "--redis: URL 1 has no valid port"),
        ("redis://h/x", "--redis: URL 1 has a path that is no database number"),
        ("redis://h,,redis://i", "--redis: URL 2 is empty"),
        ("redis://h,redis://H", "--redis: h:6379 is named more than once"),
        ("redis://h,redis://h/1", "--redis: h:6379 is named more than once"),
        ("redis://u:p@h", "--redis: URL 1 has a password, and every process can read the command line"),
    ] {
        assert_refused(&["run", "--lock", "job", "--redis", url], &[], &[says]);
    }
    assert_refused(&["run"], &[], &["--lock: is required", "--redis: is required"]);
    assert_refused(&[&GOOD[..5], &["--listen", "nowhere"]].concat(), &[], &["--listen: must be ADDRESS:PORT"]);
    assert_refused(&good_and(&["--control", "0.0.0.0:1"]), &[], &["--control: must be on loopback"]);
    let taken = Port::claim();
    let _listener = std::net::TcpListener::bind(taken.address()).unwrap();
    let output = redleader(&["run", "--lock", "job", "--redis", "redis://h", "--listen", &taken.address()], &[]);
    assert_eq!(output.code, 64, "{output:?}");
    assert!(output.stderr.contains(&format!("cannot listen on --listen {}", taken.address())), "{output:?}");
}

const PASSWORDS: [&str; 8] = ["xxx#", "p@ss/w:rd", "abc%de", "abcde%", "%2F", "RanDoMStRIng=", "a+b c", "p\u{e4}$$"];

/// Asks a node through the real binary: 0 if it answers.
fn quorum(env: &[(&str, &str)], more: &[&str]) -> Output {
    let words = [&["wait", "--for", "quorum", "--lock", "job", "--timeout", "2s"][..], more].concat();
    redleader(&words, env)
}

#[test]
fn c67_every_password_authenticates_in_every_form() {
    let certificates = Certificates::generate();
    let plain = Server::start(Flavour::Redis70, ServerOptions::new());
    let tls = Server::start(Flavour::Redis70, ServerOptions::new().tls(&certificates));
    let mut clients = [plain.client().unwrap(), tls.client().unwrap()];
    let long = "x".repeat(200);
    let directory = TempDir::new();
    let ca = certificates.ca();
    for password in PASSWORDS.into_iter().chain([long.as_str()]) {
        for client in &mut clients {
            client.call(&["CONFIG", "SET", "requirepass", password]).unwrap();
        }
        let encoded = utf8_percent_encode(password, NON_ALPHANUMERIC).to_string();
        let file = directory.write("password", &format!("{password}\n"));
        for url in [plain.url(), tls.url()] {
            let more = ["--redis-ca-file", ca.to_str().unwrap()];
            let with_password = url.replace("://", &format!("://:{encoded}@"));
            let list = directory.write("nodes", &with_password);
            let from_file = ["--redis-password-file", file.to_str().unwrap(), "--redis", &url];
            for output in [
                quorum(&[("REDLEADER_REDIS", &with_password)], &more),
                quorum(&[], &[&more[..], &["--redis-file", list.to_str().unwrap()]].concat()),
                quorum(&[("REDLEADER_REDIS", &url), ("REDLEADER_REDIS_PASSWORD", password)], &more),
                quorum(&[], &[&more[..], &from_file].concat()),
            ] {
                assert_eq!(output.code, 0, "{password:?} at {url}: {output:?}");
            }
        }
    }
    let mut command = Command::new(binary());
    command.args(["wait", "--for", "quorum", "--lock", "job", "--timeout", "50ms", "--redis", &plain.url()]);
    command.env("REDLEADER_REDIS_PASSWORD", "wrong");
    let wrong = run("wait", command, SOON);
    assert_eq!(wrong.code, 1, "the test can fail: {wrong:?}");
}

#[test]
fn c67_a_raw_special_character_is_refused_without_the_secret() {
    for (password, advice) in [("S3cr3t#", "%23"), ("S3cr3t%", "%25"), ("S3cr3t%zz", "%25"), ("S3cr3t@x", "%40")] {
        let url = format!("redis://:{password}@127.0.0.1:1");
        for (words, env) in [
            (&["run", "--lock", "job"][..], vec![("REDLEADER_REDIS", url.as_str())]),
            (&["run", "--lock", "job", "--redis", &url], vec![]),
            (&["status", "--lock", "job"], vec![("REDLEADER_REDIS", url.as_str())]),
        ] {
            let output = redleader(words, &env);
            assert_eq!((output.code, output.stdout.as_str()), (64, ""), "{output:?}");
            let text = &output.stderr;
            assert!(text.contains(advice) && text.contains("--redis-password-file"), "{text}");
            assert!(!text.contains("S3cr3t"), "{text}");
        }
    }
}

#[test]
fn c69_ipv6_literals_connect() {
    let certificates = Certificates::generate();
    let plain = Server::start(Flavour::Redis70, ServerOptions::new().ipv6());
    let tls = Server::start(Flavour::Redis70, ServerOptions::new().ipv6().tls(&certificates));
    for server in [&plain, &tls] {
        server.cli(&["ACL", "SETUSER", "u", "on", ">p#", "~*", "&*", "+@all"]);
    }
    let label = format!("[::1]:{}", plain.port());
    let ca = certificates.ca();
    for url in [
        format!("redis://{label}"),
        format!("redis://[0000:0000:0000:0000:0000:0000:0000:0001]:{}", plain.port()),
        format!("redis://u:p%23@{label}/0"),
        format!("rediss://u:p%23@[::1]:{}/0", tls.port()),
        format!("rediss://[0:0:0:0:0:0:0:1]:{}/2", tls.port()),
    ] {
        let port = Port::claim();
        let mut command = Command::new(binary());
        command.args(["run", "--lock", "job", "--ttl", "1s", "--node-timeout", "200ms", "--listen", &port.address()]);
        command.arg("--redis-ca-file").arg(&ca).env("REDLEADER_REDIS", &url);
        let process = Process::start("run", command);
        eventually("it leads", SOON, || {
            let mut http = HttpConnection::connect(&port.address(), SOON).ok()?;
            (http.get("/readyz").ok()?.status == 200).then_some(())
        });
        let metrics = HttpConnection::connect(&port.address(), SOON).unwrap().get("/metrics").unwrap().body;
        let ending = if url.ends_with("/2") { "/2" } else { "" };
        let server = if url.starts_with("rediss") { &tls } else { &plain };
        let sample = format!("redleader_node_up{{node=\"[::1]:{}{ending}\"}} 1", server.port());
        assert!(metrics.contains(&sample), "{sample} for {url} in {metrics}");
        drop(process);
        for server in [&plain, &tls] {
            server.cli(&["FLUSHALL"]);
        }
    }
}

#[test]
fn c69_a_zone_is_clear() {
    for url in ["redis://[fe80::1%25eth0]:7001", "redis://[fe80::1%eth0]:7001"] {
        assert_refused(&["run", "--lock", "job", "--redis", url], &[], &["--redis: URL 1 has an IPv6 zone"]);
    }
}

#[test]
fn c69_an_address_without_brackets_is_refused_with_a_hint() {
    for url in ["redis://::1:7001", "redis://::1"] {
        let says = "--redis: URL 1 is an ambiguous IPv6 address: write it in brackets, as in redis://[::1]:6379";
        assert_refused(&["run", "--lock", "job", "--redis", url], &[], &[says]);
    }
}

/// Two secrets that are in every place that takes one. Both look different when they are percent-encoded.
const SECRET: &str = "C4nary#s3cret%2Fx";
const USER: &str = "C4nary-us3r";

/// Collects all that a secret might have come out with.
#[derive(Default)]
struct Outputs(Vec<(String, String)>);

impl Outputs {
    fn add(&mut self, place: impl Into<String>, text: impl Into<String>) {
        self.0.push((place.into(), text.into()));
    }

    fn add_output(&mut self, place: &str, output: &Output) {
        self.add(format!("{place}, stdout"), output.stdout.clone());
        self.add(format!("{place}, stderr"), output.stderr.clone());
    }

    fn add_command_line(&mut self, pid: u32) {
        let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
        assert!(text.contains("redleader"), "{text}");
        self.add(format!("command line of {pid}"), text);
    }

    fn add_replica(&mut self, what: &str, replica: &Replica) {
        for path in ["/readyz", "/healthz", "/livez", "/startupz", "/metrics", "/leader", "/", "/nowhere"] {
            let response = replica.get(path).unwrap();
            self.add(format!("{what}, {path}"), format!("{:?} {}", response.headers, response.body));
        }
        self.add_command_line(replica.pid());
    }

    fn add_log(&mut self, what: &str, replica: &Replica) {
        let lines = replica.process().stderr();
        assert!(lines.iter().any(|line| line.text.contains("\"DEBUG\"")), "the log is at its most talkative");
        for line in lines {
            self.add(format!("{what}, log"), line.text);
        }
    }

    #[track_caller]
    fn assert_free_of_secrets(&self) {
        let encoded = |text| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        // The heart of the secret too, in case that only its special characters were changed on the way.
        for secret in [SECRET, &encoded(SECRET), "C4nary#s3cret/x", "s3cret", USER, &encoded(USER), "us3r"] {
            for (place, text) in &self.0 {
                assert!(!text.contains(secret), "{secret:?} in {place}: {text}");
            }
        }
        println!("looked for the secrets in {} texts", self.0.len());
    }
}

/// A password in the URLs, a user and a password beside them: by file and by variable in turn.
fn everywhere(options: ReplicaOptions, urls: &[String], password_file: Option<&str>) -> ReplicaOptions {
    let encoded = utf8_percent_encode(SECRET, NON_ALPHANUMERIC).to_string();
    let user = utf8_percent_encode(USER, NON_ALPHANUMERIC).to_string();
    let mut list: Vec<String> = urls.to_vec();
    // The others take their credentials from the flags.
    list[0] = list[0].replace("://", &format!("://{user}:{encoded}@"));
    let options = options.env("REDLEADER_REDIS", &list.join(",")).env("REDLEADER_REDIS_USERNAME", USER);
    match password_file {
        Some(path) => options.env("REDLEADER_REDIS_PASSWORD_FILE", path),
        None => options.env("REDLEADER_REDIS_PASSWORD", SECRET),
    }
}

fn command_everywhere(words: &[&str], urls: &[String]) -> Command {
    let encoded = utf8_percent_encode(SECRET, NON_ALPHANUMERIC).to_string();
    let mut command = Command::new(binary());
    let url = urls[0].replace("://", &format!("://{USER}:{encoded}@"));
    command.args(words).env("REDLEADER_REDIS", [&url, &urls[1], &urls[2]].map(String::as_str).join(","));
    command
        .env("REDLEADER_LOCK", "job")
        .env("REDLEADER_TTL", "1s")
        .env("REDLEADER_REDIS_USERNAME", USER)
        .env("REDLEADER_REDIS_PASSWORD", SECRET);
    command
}

/// The user of the canary on every server, with whatever rights and passwords are given.
fn set_user(servers: &Servers, words: &[&str]) {
    for server in servers.iter() {
        assert_eq!(server.cli(&[&["ACL", "SETUSER", USER], words].concat()).text(), "OK");
    }
}

fn talkative(identity: &str) -> ReplicaOptions {
    let none: [&str; 0] = [];
    let args = ["--ttl", "1s", "--node-timeout", "200ms", "--log-level", "trace"];
    ReplicaOptions::new("job", identity, &none).args(args)
}

fn wait_for_kind(replica: &Replica, kind: &str) {
    eventually(&format!("{kind} is told"), SOON, || {
        replica.logged("node has no vote").iter().any(|line| line.text("kind") == kind).then_some(())
    });
}

#[test]
fn a_secret_in_every_input_appears_nowhere_while_all_is_well() {
    let mut outputs = Outputs::default();
    let servers = Servers::start(3);
    set_user(&servers, &["on", &format!(">{SECRET}"), "~*", "&*", "+@all"]);
    let directory = TempDir::new();
    let file = directory.write("password", SECRET);
    let urls = servers.urls();
    let leader = everywhere(talkative("a"), &urls, Some(file.to_str().unwrap())).start();
    leader.wait_elected(1, SOON);
    let standby = everywhere(talkative("b"), &urls, None).start();
    eventually("b follows", SOON, || (standby.leader_json()["holder"] == "a").then_some(()));
    for words in [
        &["status", "--control", &leader.control()][..],
        &["status", "--output", "json", "--control", &leader.control()],
        &["wait"],
        &["wait", "--for", "quorum", "--output", "json"],
        &["resign", "--control", &standby.control()],
        &["drain", "--control", &standby.control()],
    ] {
        let output = run("redleader", command_everywhere(words, &urls), SOON);
        assert_eq!(output.code, 0, "{words:?}: {output:?}");
        outputs.add_output(&words.join(" "), &output);
    }
    let doctor = run("doctor", command_everywhere(&["doctor", "--for", "100ms"], &urls), SOON);
    assert!(doctor.code <= 1 && !doctor.stdout.is_empty(), "{doctor:?}");
    outputs.add_output("doctor", &doctor);
    outputs.add_replica("a leader", &leader);
    outputs.add_replica("a standby", &standby);
    // A right is taken away from both while they run.
    set_user(&servers, &["-eval", "-evalsha"]);
    wait_for_kind(&leader, "noperm");
    outputs.add_replica("a leader without its right", &leader);
    for replica in [&leader, &standby] {
        replica.term();
        replica.wait_exit(SOON);
        outputs.add_log(replica.identity(), replica);
    }
    outputs.assert_free_of_secrets();
}

#[test]
fn a_secret_in_every_input_appears_nowhere_while_nothing_works() {
    let mut outputs = Outputs::default();
    let servers = Servers::start(3);
    set_user(&servers, &["on", ">other", "~*", "&*", "+@all"]);
    let plain = servers.urls();
    let encrypted: Vec<String> = plain.iter().map(|url| url.replace("redis://", "rediss://")).collect();
    let absent = ["redis://127.0.0.1:1", "redis://no-such-host.invalid", "rediss://127.0.0.1:2"].map(str::to_owned);
    for (urls, kind) in [(&plain[..], "auth"), (&encrypted[..], "tls"), (&absent[..], "connect")] {
        let replica = everywhere(talkative("c"), urls, None).start();
        wait_for_kind(&replica, kind);
        outputs.add_replica(kind, &replica);
        replica.term();
        replica.wait_exit(SOON);
        outputs.add_log(kind, &replica);
        let output = run("status", command_everywhere(&["status"], urls), SOON);
        assert_eq!(output.code, 1, "{output:?}");
        outputs.add_output(kind, &output);
        let output = run("doctor", command_everywhere(&["doctor", "--for", "100ms"], urls), SOON);
        assert_eq!(output.code, 64, "{output:?}");
        outputs.add_output(kind, &output);
    }
    // Its command line can be read while it waits in vain.
    let waiting = Process::start("wait", command_everywhere(&["wait", "--timeout", "1m"], &absent));
    eventually("it says what it waits for", SOON, || waiting.stderr().first().cloned());
    outputs.add_command_line(waiting.pid());
    waiting.stderr().into_iter().for_each(|line| outputs.add("wait in vain", line.text));
    // status ends by itself, after the connect timeout: long enough to be looked at.
    servers.iter().for_each(Server::stop);
    let asking = Process::start("status", command_everywhere(&["status"], &plain));
    let mut command_line = None;
    eventually("status runs", SOON, || {
        // Until exec has happened the command line is another's.
        let bytes = std::fs::read(format!("/proc/{}/cmdline", asking.pid())).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
        command_line = (text.ends_with("status ") && !text.starts_with("setpriv")).then_some(text);
        command_line.clone()
    });
    outputs.add("command line of status", command_line.unwrap());
    outputs.assert_free_of_secrets();
}

#[test]
fn a_secret_in_the_wrong_place_is_not_repeated() {
    let mut outputs = Outputs::default();
    let urls = ["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"].map(str::to_owned);
    for name in ["run", "status", "doctor", "wait", "resign", "drain", "demo"] {
        let output = run("help", command_everywhere(&[name, "--help"], &urls), SOON);
        assert_eq!(output.code, 0);
        outputs.add_output(&format!("{name} --help"), &output);
        let flags = output.stdout.lines().filter_map(|line| line.trim_start().split(' ').next());
        let flags: Vec<&str> = flags.filter(|word| word.starts_with("--") && *word != "--help").collect();
        assert!(!flags.is_empty(), "{output:?}");
        // A lock and a user may have any name; a file's path is told where the file cannot be read.
        let takes_any = |flag: &str| ["--lock", "--redis-username"].contains(&flag) || flag.ends_with("-file");
        for flag in flags.into_iter().filter(|flag| !takes_any(flag)) {
            for value in [SECRET, &format!("redis://{USER}:{SECRET}@h")] {
                let mut command = command_everywhere(&[name, flag, value], &urls);
                command.env_remove("REDLEADER_REDIS").env("REDLEADER_LISTEN", "off");
                let output = run("a secret in the wrong flag", command, SOON);
                assert_eq!(output.code, 64, "{name} {flag}: {output:?}");
                outputs.add_output(&format!("{name} {flag}"), &output);
            }
        }
    }
    let with_secret = |form: &str| form.replace("SECRET", SECRET);
    for url in ["redis://u:SECRET@h", "SECRET://h", "redis://h/SECRET", "SECRET", "redis://h?SECRET"].map(with_secret) {
        for name in ["run", "status", "wait"] {
            let output = redleader(&[name, "--lock", "job"], &[("REDLEADER_REDIS", &url)]);
            assert_eq!(output.code, 64, "{output:?}");
            outputs.add_output("a URL that is none", &output);
        }
    }
    outputs.assert_free_of_secrets();
}
