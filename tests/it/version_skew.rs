//! R2, version skew: what released versions say to nodes and leave on them, as `tests/fixtures/wire-*.toml` keeps it,
//! beside today's scripts; and replicas of two versions that contend for one lock.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use redleader::redsync::name::{LockName, Owner};
use redleader::redsync::reply::{Claim, Ended, What};
use redleader::redsync::script::Scripts;
use redleader::redsync::url::NodeUrl;
use serde::Deserialize;

use crate::asker::{acquire, extend, look, observe, release};
use crate::support::{
    Flavour, Judge, OverlapMeter, Replica, ReplicaOptions, Server, ServerOptions, Servers, TempDir, Value, binary,
    eventually, figure, resp, run, setting,
};

const SOON: Duration = Duration::from_secs(10);
const LOCK: &str = "job";
const RUN: &str = "fedcba9876543210fedcba9876543210fedcba98";

/// The forms of one version.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fixture {
    version: String,
    keys: Vec<String>,
    channel: String,
    nodes: Vec<String>,
    list: String,
    scripts: BTreeMap<String, Script>,
    replies: BTreeMap<String, Vec<String>>,
    state: BTreeMap<String, String>,
    examples: BTreeMap<String, Example>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Script {
    argv: Vec<String>,
    verdicts: BTreeSet<String>,
    reply: String,
}

/// A state, and the lock's key if there is one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    key: Option<String>,
    left: Option<u64>,
    state: BTreeMap<String, String>,
}

/// Runs a test with the forms of each version.
fn each(test: impl Fn(&Fixture)) {
    let files = std::fs::read_dir("tests/fixtures").unwrap().map(|entry| entry.unwrap().path());
    let mut count = 0;
    for path in files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("wire-")) {
        let fixture: Fixture = toml::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert!(path.ends_with(format!("wire-{}.toml", fixture.version)), "{}", path.display());
        println!("the forms of {}", fixture.version);
        test(&fixture);
        count += 1;
    }
    assert!(count > 0, "the first version has its forms there");
}

fn scripts(fixture: &Fixture) -> Scripts {
    let nodes: Vec<NodeUrl> = fixture.nodes.iter().map(|url| NodeUrl::parse(url).unwrap()).collect();
    Scripts::new(&LockName::parse(LOCK).unwrap(), nodes.iter())
}

/// Which script an ask is.
fn script_of(what: &What) -> &'static str {
    match what {
        What::Look { .. } => "look",
        What::Observe { .. } => "observe",
        What::Acquire(_) => "acquire",
        What::Extend(_) => "extend",
        What::Release { .. } => "release",
        What::Survey | What::Plain(_) => panic!("no script of the election"),
    }
}

/// A server of its own, asked with today's scripts. What it answers is held against the forms.
struct Bench<'a> {
    fixture: &'a Fixture,
    server: Server,
    client: resp::Client,
    scripts: Scripts,
    seen: BTreeMap<&'static str, BTreeSet<String>>,
}

impl<'a> Bench<'a> {
    fn start(fixture: &'a Fixture, flavour: Flavour) -> Self {
        let server = Server::start(flavour, ServerOptions::new());
        let client = server.client().unwrap();
        Self { fixture, server, client, scripts: scripts(fixture), seen: BTreeMap::new() }
    }

    /// The fields of the reply by their names in the fixture.
    #[track_caller]
    fn ask(&mut self, what: &What) -> BTreeMap<String, String> {
        let name = script_of(what);
        let call = self.scripts.call(what, "").unwrap().whole();
        self.client.send(&call.get_packed_command()).unwrap();
        let reply = self.client.read().unwrap();
        let script = &self.fixture.scripts[name];
        let fields = &self.fixture.replies[&script.reply];
        assert_eq!(reply.list().len(), fields.len(), "{name}: {reply:?}");
        let mut named = BTreeMap::new();
        for (value, field) in reply.list().iter().zip(fields) {
            let (field, form) = field.split_once(": ").unwrap();
            assert!(has_form(value, form), "{name}: {field} is {value:?}, and {form} is expected");
            named.insert(field.to_owned(), value.text());
        }
        let verdict = named["verdict"].clone();
        assert!(script.verdicts.contains(&verdict), "{name} answers {verdict}");
        self.seen.entry(name).or_default().insert(verdict);
        named
    }

    #[track_caller]
    fn assert_verdict(&mut self, what: &What, verdict: &str) {
        let reply = self.ask(what);
        assert_eq!(reply["verdict"], verdict, "{what:?}: {reply:?}");
    }

    /// Puts an example there as if the fixture's version had left it.
    fn write(&self, name: &str) -> &'a Example {
        let example = &self.fixture.examples[name];
        self.server.cli(&["FLUSHALL"]);
        let time = self.server.cli(&["TIME"]);
        let now = time.list()[0].int().unwrap() * 1000 + time.list()[1].int().unwrap() / 1000;
        let info = self.server.cli(&["INFO", "server"]).text();
        let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap();
        let mut words = vec!["HSET".to_owned(), self.fixture.keys[1].clone()];
        for (field, value) in &example.state {
            let value = match (value.strip_prefix("NOW"), value.as_str()) {
                (Some(offset), _) => (now + offset.parse::<i64>().unwrap()).to_string(),
                (None, "RUN") => run.to_owned(),
                (None, "LIST") => self.fixture.list.clone(),
                (None, other) => other.to_owned(),
            };
            words.extend([field.clone(), value]);
        }
        self.server.cli(&words.iter().map(String::as_str).collect::<Vec<_>>());
        if let (Some(key), Some(left)) = (&example.key, example.left) {
            self.server.cli(&["SET", &self.fixture.keys[0], key, "PX", &left.to_string()]);
        }
        example
    }

    fn state(&self) -> BTreeMap<String, Value> {
        let all = self.server.cli(&["HGETALL", &self.fixture.keys[1]]);
        all.list().chunks(2).map(|pair| (pair[0].text(), pair[1].clone())).collect()
    }
}

/// Whether a value has one of the forms that the fixture explains.
fn has_form(value: &Value, form: &str) -> bool {
    if form == "bit" {
        return matches!(value, Value::Int(0 | 1));
    }
    let Value::Bulk(Some(bytes)) = value else { return false };
    let text = String::from_utf8_lossy(bytes);
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_hex = |text: &str, length| text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match form {
        "digits" => is_digits(&text),
        "digits-" => is_digits(&text) || text == "-1",
        "digits?" => is_digits(&text) || text.is_empty(),
        "hex12" => is_hex(&text, 12),
        "hex40" => is_hex(&text, 40),
        "hashes" => text.split(',').all(|hash| is_hex(hash, 8)),
        "owner" => text.split_once(':').is_some_and(|(identity, nonce)| !identity.is_empty() && !nonce.is_empty()),
        "owner?" => true,
        "word" => text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'),
        exactly => text == exactly,
    }
}

/// Also C65: whatever a script touches is declared as a key.
#[test]
fn what_is_sent_has_the_released_form() {
    each(|fixture| {
        let scripts = scripts(fixture);
        assert_eq!((scripts.keys(), scripts.channel()), (&fixture.keys[..], fixture.channel.clone()));
        assert_eq!(scripts.list(), fixture.list);
        let count = fixture.nodes.len().to_string();
        let list = fixture.list.as_str();
        let asks = [acquire("a:1", 7), extend("a:1", 7), release("a:1", 7, Ended::Released), look(), observe()];
        for what in asks.iter().chain([&release("a:1", 7, Ended::Aborted)]) {
            let name = script_of(what);
            let packed = scripts.call(what, RUN).unwrap().whole().get_packed_command();
            let (command, _) = resp::parse(&packed).unwrap().unwrap();
            let words: Vec<String> = command.list().iter().map(Value::text).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let aborted = matches!(what, What::Release { ended: Ended::Aborted, .. });
            let argv = fixture.scripts[name].argv.iter().map(|argument| match argument.as_str() {
                "owner" => "a:1",
                "ttl" => "500",
                "token" => "7",
                "quarantine" => "200",
                "run_id" => RUN,
                "n" => count.as_str(),
                "list" => list,
                "outcome" if aborted => "aborted",
                "outcome" => "released",
                other => panic!("{other} of {name}"),
            });
            let keys = fixture.keys.iter().map(String::as_str);
            let expected: Vec<&str> = ["2"].into_iter().chain(keys).chain(argv).collect();
            assert_eq!((words[0], &words[2..]), ("EVAL", &expected[..]), "{name}");
        }
    });
}

#[test]
fn what_a_node_answers_and_keeps_has_the_released_form() {
    each(|fixture| {
        for flavour in Flavour::ALL {
            let mut bench = Bench::start(fixture, flavour);
            bench.assert_verdict(&observe(), "free");
            bench.assert_verdict(&acquire("a:1", 7), "quarantined");
            eventually("the quarantine ends", SOON, || (bench.ask(&look())["quarantined"] == "0").then_some(()));
            bench.assert_verdict(&look(), "free");
            bench.assert_verdict(&acquire("a:1", 7), "granted");
            bench.assert_verdict(&acquire("b:1", 8), "held");
            bench.assert_verdict(&extend("a:1", 7), "extended");
            let state = bench.state();
            for (field, form) in &fixture.state {
                let value = state.get(field).unwrap_or_else(|| panic!("no {field} in {state:?}"));
                assert!(has_form(value, form), "{field} is {value:?}, and {form} is expected");
            }
            assert_eq!(bench.server.cli(&["DBSIZE"]).int(), Some(2), "the two keys, and no other");
            assert_eq!(bench.server.cli(&["GET", &fixture.keys[0]]).text(), "a:1");
            let left = bench.server.cli(&["PTTL", &fixture.keys[0]]).int().unwrap();
            assert!((1..=500).contains(&left) && bench.server.cli(&["PTTL", &fixture.keys[1]]).int() == Some(-1));
            bench.assert_verdict(&look(), "seen");
            bench.assert_verdict(&observe(), "seen");
            bench.assert_verdict(&extend("b:1", 8), "lost-owner");
            bench.server.cli(&["DEL", &fixture.keys[0]]);
            bench.assert_verdict(&extend("a:1", 7), "refilled");
            bench.assert_verdict(&release("a:1", 7, Ended::Released), "deleted");
            bench.assert_verdict(&release("a:1", 7, Ended::Aborted), "absent");
            bench.assert_verdict(&extend("a:1", 7), "lost-over");
            bench.assert_verdict(&acquire("b:1", 7), "outdated");
            bench.server.cli(&["HSET", &fixture.keys[1], "v", "2"]);
            for what in [acquire("a:2", 9), extend("a:2", 9), look(), observe()] {
                bench.assert_verdict(&what, "newer");
            }
            for (name, script) in &fixture.scripts {
                assert_eq!(bench.seen[name.as_str()], script.verdicts, "every verdict of {name} is met");
            }
        }
    });
}

#[test]
fn a_state_that_a_released_version_left_is_understood() {
    each(|fixture| {
        for flavour in Flavour::ALL {
            let mut bench = Bench::start(fixture, flavour);
            let example = bench.write("held");
            let number = |field: &str| example.state[field].parse::<u64>().unwrap();
            let (token, over, owner) = (number("token"), number("over"), example.state["owner"].as_str());
            let claim = |owner: &str, token| Claim {
                owner: Owner::found(owner),
                ttl: Duration::from_secs(8),
                token,
                quarantine: Duration::from_millis(8800),
            };
            // It is read in full, also by those who write nothing.
            for what in [observe(), look()] {
                let reply = bench.ask(&what);
                let told = ["verdict", "owner", "owner_token", "token", "over", "ttl", "quarantined"];
                let (token, over) = (token.to_string(), over.to_string());
                assert_eq!(
                    told.map(|field| reply[field].as_str()),
                    ["seen", owner, &token, &token, &over, "8000", "0"]
                );
                let left: u64 = reply["left"].parse().unwrap();
                assert!(left > 0 && left <= example.left.unwrap(), "{reply:?}");
            }
            // Its holder is not pushed aside, may extend and release, and its token is never used again.
            bench.assert_verdict(&What::Acquire(claim("b:1", token + 1)), "held");
            bench.assert_verdict(&What::Extend(claim(owner, token)), "extended");
            bench.assert_verdict(&release(owner, token, Ended::Released), "deleted");
            bench.assert_verdict(&What::Acquire(claim("b:1", token)), "outdated");
            bench.assert_verdict(&What::Acquire(claim("b:1", token + 1)), "granted");
            // Where its key is missing and its time is not over, others wait and it refills.
            bench.write("evicted");
            bench.assert_verdict(&What::Acquire(claim("b:1", token + 1)), "held");
            bench.assert_verdict(&What::Extend(claim(owner, token)), "refilled");
            // Released: a late extend brings nothing back, and the next one leads with a larger token.
            bench.write("released");
            bench.assert_verdict(&What::Extend(claim(owner, token)), "lost-over");
            bench.assert_verdict(&What::Acquire(claim("b:1", token)), "outdated");
            bench.assert_verdict(&What::Acquire(claim("b:1", token + 1)), "granted");
            // Another run of the server: no vote, and the token is known all the same.
            bench.write("forgotten");
            let reply = bench.ask(&What::Acquire(claim("b:1", token + 1)));
            assert_eq!((reply["verdict"].as_str(), reply["quarantined"].as_str()), ("quarantined", "1"));
            assert_eq!(reply["token"], token.to_string());
        }
    });
}

/// The last release (`REDLEADER_LAST_BIN`), and its version; or a copy of this build while there is none.
fn last_release(directory: &TempDir) -> (PathBuf, String) {
    let version = |path: &PathBuf| {
        let mut command = Command::new(path);
        command.arg("--version");
        let output = run("--version", command, SOON);
        assert_eq!(output.code, 0, "{output:?}");
        output.stdout.trim().to_owned()
    };
    match setting("REDLEADER_LAST_BIN").map(PathBuf::from) {
        Some(path) => {
            let text = format!("{} (REDLEADER_LAST_BIN) and {}", version(&path), version(&binary()));
            (path, text)
        }
        None => {
            let copy = directory.join("redleader");
            std::fs::copy(binary(), &copy).unwrap();
            let text = format!("{} and a copy of itself: there is no earlier release yet", version(&copy));
            (copy, text)
        }
    }
}

#[test]
fn a_replica_of_the_last_release_and_one_of_this_build_elect_and_exclude_each_other() {
    let directory = TempDir::new();
    let (last, versions) = last_release(&directory);
    let servers = Servers::start(3);
    let start = |identity: &str, binary: &PathBuf| {
        let options = ReplicaOptions::new(LOCK, identity, &servers.urls()).binary(binary.clone());
        options.args(["--ttl", "1s", "--node-timeout", "200ms"]).start()
    };
    let binaries = [last, binary()];
    let mut all: Vec<Replica> = vec![start("last-0", &binaries[0])];
    all[0].wait_elected(1, SOON);
    let mut meter = OverlapMeter::of(all.iter());
    let mut token = 0;
    // In turn one of each leads: it leaves by itself, and is killed, and each time the other takes over.
    for round in 1..=8 {
        let identity = format!("{}-{round}", ["last", "this"][round % 2]);
        let heir = start(&identity, &binaries[round % 2]);
        meter.watch(&heir.address());
        let leader = all.last().unwrap();
        let own = leader.leader_json()["token"].as_u64().unwrap();
        assert!(own > token, "{own} after {token}");
        token = own;
        // The one that waits reads the other's lock: who it is, and its token.
        eventually("the heir knows who leads", SOON, || {
            let said = heir.leader_json();
            let is_right = said["holder"] == leader.identity() && said["holderKind"] == "redleader";
            (is_right && said["token"] == token && said["leading"] == false).then_some(())
        });
        assert!(leader.leads() && !heir.leads());
        if round <= 4 {
            leader.term();
            assert_eq!(leader.wait_exit(SOON), 0);
        } else {
            leader.kill9();
        }
        heir.wait_elected(1, SOON);
        all.push(heir);
    }
    let (overlaps, ready) = meter.finish();
    assert_eq!(overlaps, 0);
    assert!(ready > 0);
    Judge::check_replicas(&all).assert_clean("R2 hand-overs between two versions");
    figure("R2 the two versions", &versions);
}
