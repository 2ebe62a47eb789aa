//! Every refusal and warning of `doctor`, each made real on servers; what no real server shows is a fake.

use std::process::Command;
use std::time::Duration;

use serde_json::Value as Json;

use crate::support::{
    Answer, Call, Certificates, Fake, Flavour, Output, ReplicaOptions, Server, ServerOptions, ShiftedClock, binary,
    eventually, resp, run,
};

const SOON: Duration = Duration::from_secs(10);
const RUN: &str = "0123456789abcdef0123456789abcdef01234567";
const LOCK: &str = "job";
const STATE: &str = "{job}:redleader";

/// `doctor` on these nodes, without watching clocks unless the arguments say so.
pub(crate) fn doctor<S: AsRef<str>>(nodes: &[S], args: &[&str]) -> Output {
    doctor_in(nodes, args, &[])
}

fn doctor_in<S: AsRef<str>>(nodes: &[S], args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(binary());
    command.args(["doctor", "--lock", LOCK]);
    for node in nodes {
        command.args(["--redis", node.as_ref()]);
    }
    if !args.contains(&"--for") {
        command.args(["--for", "0s"]);
    }
    command.args(args).envs(env.iter().copied());
    run("doctor", command, Duration::from_secs(60))
}

/// What `doctor --output json` found, its code, and the same page as text.
pub(crate) struct Found {
    pub(crate) code: i32,
    pub(crate) json: Json,
    pub(crate) text: String,
}

impl Found {
    pub(crate) fn on<S: AsRef<str>>(nodes: &[S], args: &[&str]) -> Self {
        Self::with(nodes, args, &[])
    }

    #[track_caller]
    fn with<S: AsRef<str>>(nodes: &[S], args: &[&str], env: &[(&str, &str)]) -> Self {
        let output = doctor_in(nodes, &[args, &["--output", "json"]].concat(), env);
        let json = serde_json::from_str(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {} {}", output.stdout, output.stderr));
        let page = doctor_in(nodes, args, env);
        for line in page.stdout.lines() {
            assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
        }
        assert_eq!(page.code, output.code, "{}", page.stdout);
        Self { code: output.code, json, text: page.stdout }
    }

    fn problems(&self) -> Vec<&str> {
        self.json["findings"].as_array().unwrap().iter().map(|finding| finding["problem"].as_str().unwrap()).collect()
    }

    fn finding(&self, problem: &str) -> Option<&Json> {
        self.json["findings"].as_array().unwrap().iter().find(|finding| finding["problem"] == problem)
    }

    /// The finding is there, with this severity, about these nodes, in these words; the page says the same.
    #[track_caller]
    pub(crate) fn assert(&self, severity: &str, problem: &str, nodes: &[&str], words: &str) -> &Json {
        let finding = self.finding(problem).unwrap_or_else(|| panic!("no {problem} in {}", self.json));
        assert_eq!(finding["severity"], severity, "{finding}");
        assert_eq!(finding["nodes"], serde_json::json!(nodes), "{finding}");
        let what = finding["what"].as_str().unwrap();
        assert!(what.contains(words), "{words:?} in {finding}");
        for part in ["cost", "remedy"] {
            assert!(finding[part].as_str().unwrap().len() > 10, "{finding}");
        }
        let page = self.text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(page.contains(words), "{words:?} in {}", self.text);
        let code = if severity == "refused" { 64 } else { 1 };
        assert!(self.code == code || self.code == 64, "{} for {finding}", self.code);
        finding
    }

    #[track_caller]
    pub(crate) fn assert_none(&self, problem: &str) {
        assert!(self.finding(problem).is_none(), "{}", self.json);
    }
}

pub(crate) fn server(args: &[&str]) -> Server {
    Server::start(Flavour::Redis70, ServerOptions::new().args(["--appendonly", "yes"].iter().chain(args).copied()))
}

pub(crate) fn name(server: &Server) -> String {
    server.address()
}

/// Three nodes at addresses of their own, one of each kind, that have known the lock for a quarantine.
fn healthy() -> Vec<(Server, String)> {
    let mut nodes = Vec::new();
    for (flavour, address) in Flavour::ALL.into_iter().zip(["127.0.0.1", "127.0.0.2", "127.0.0.3"]) {
        let mut addresses = vec!["127.0.0.1", address];
        addresses.dedup();
        let options = ServerOptions::new().args(["--appendonly", "yes", "--bind"]).args(addresses);
        let server = Server::start(flavour, options);
        let url = format!("redis://{address}:{}", server.port());
        nodes.push((server, url));
    }
    nodes
}

#[test]
fn a_healthy_set_of_three_gives_a_clean_page_and_0() {
    let nodes = healthy();
    let urls: Vec<&String> = nodes.iter().map(|(_, url)| url).collect();
    let replica = ReplicaOptions::new(LOCK, "a", &urls).args(["--ttl", "1s"]).start();
    replica.wait_elected(1, SOON);
    eventually("all quarantines are over", SOON, || (doctor(&urls, &["--ttl", "1s"]).code == 0).then_some(()));
    let found = Found::on(&urls, &["--ttl", "1s", "--for", "1s"]);
    assert_eq!((found.code, found.problems()), (0, vec![]), "{}", found.text);
    assert_eq!((&found.json["well"], &found.json["refused"]), (&true.into(), &false.into()));
    assert!(found.text.ends_with("\nAll well.\n"), "{}", found.text);
    for part in [
        "lock    job\n",
        "quorum  2 of 3 nodes; 1 may fail\n",
        "lease   ttl 1s x (1 - 10%) = 900ms; work stops 125ms (grace) before its end\n",
        "renew   250ms + 2 x 50ms (node timeout) = 350ms < 900ms - 125ms = 775ms\n",
        "forget  quarantine 1.1s >= ttl 1s x (1 + 10%) = 1.1s\n",
        " redis 7.0.15 ",
        " redis 6.2.",
        " valkey 9.1.",
    ] {
        assert!(found.text.contains(part), "{part:?} in\n{}", found.text);
    }
    assert!(!found.text.contains("REFUSED") && !found.text.contains("WARNING"), "{}", found.text);
    for node in found.json["nodes"].as_array().unwrap() {
        assert!(node["clockOffsetMs"].as_f64().unwrap().abs() < 100.0, "{node}");
        assert!(node["clockRatePercent"].as_f64().unwrap().abs() < 2.5, "{node}");
    }
    println!("{}", found.text);
}

#[test]
fn nothing_is_written_and_nobody_is_woken() {
    let server = server(&[]);
    server.cli(&["SET", LOCK, "a-lock-of-somebody", "PX", "60000"]);
    server.cli(&["HSET", STATE, "token", "7", "owner", "x:1", "ttl", "500", "v", "1"]);
    let dump = || [LOCK, STATE].map(|key| server.cli(&["DUMP", key]));
    let changes = || {
        let info = server.cli(&["INFO", "persistence"]).text();
        info.lines().find(|line| line.starts_with("rdb_changes_since_last_save")).unwrap().to_owned()
    };
    let (before, changed) = (dump(), changes());
    let monitor = server.monitor();
    Found::on(&[server.url()], &["--for", "300ms"]);
    server.cli(&["DEL", LOCK]);
    let after_deletion = changes();
    Found::on(&[server.url()], &[]);
    assert_eq!(changes(), after_deletion, "nor with a free lock, where a DEL is tried");
    eventually("the monitor has seen it all", SOON, || {
        monitor.requests().iter().any(|line| line.name == "TIME").then_some(())
    });
    for line in monitor.lines() {
        assert!(line.name != "PUBLISH", "{line:?}");
    }
    server.cli(&["SET", LOCK, "a-lock-of-somebody", "PX", "60000"]);
    assert_eq!(dump()[1], before[1]);
    assert_ne!(changed, after_deletion, "the count counts");
}

#[test]
fn a_replica_is_no_node_and_shares_its_data() {
    let (primary, replica, other) = (server(&[]), server(&[]), server(&[]));
    replica.cli(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    eventually("the replica is attached", SOON, || {
        primary.cli(&["INFO", "replication"]).text().contains("state=online").then_some(())
    });
    let urls = [primary.url(), replica.url(), other.url()];
    let found = Found::on(&urls, &[]);
    let role = format!("its role is slave of 127.0.0.1:{}: not a primary", primary.port());
    let finding = found.assert("refused", "readonly", &[&name(&replica)], &role);
    assert_eq!(finding["remedy"], "name the primary in --redis");
    let shares = format!("it shares its data with {} (equal master_replid)", name(&primary));
    found.assert("refused", "same-node", &[&name(&replica)], &shares);
    found.assert("warning", "replicas", &[&name(&primary)], "1 replica attached without min-replicas-to-write");
    primary.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let found = Found::on(&urls, &[]);
    found.assert_none("replicas");
    found.assert_none("noreplicas");
    primary.cli(&["CONFIG", "SET", "min-replicas-to-write", "2"]);
    let found = Found::on(&urls, &[]);
    found.assert("refused", "noreplicas", &[&name(&primary)], "NOREPLICAS");
}

#[test]
fn one_server_at_two_addresses_is_one_node() {
    let (one, two) = (server(&["--bind", "127.0.0.1", "127.0.0.2"]), server(&[]));
    let again = format!("127.0.0.2:{}", one.port());
    let found = Found::on(&[one.url(), two.url(), format!("redis://{again}")], &[]);
    let what = format!("it is the same server as {} (equal run_id)", name(&one));
    found.assert("refused", "same-node", &[&again], &what);
    assert_eq!(found.code, 64);
}

/// C65
#[test]
fn c65_a_shard_of_a_cluster_is_refused_and_a_whole_one_is_not() {
    let nodes: Vec<Server> = (0..2).map(|_| server(&["--cluster-enabled", "yes"])).collect();
    nodes[0].cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "8191"]);
    let url = [nodes[0].url()];
    // The lock's key lies in a slot that nobody serves, or does not: both are told without that accident.
    let half = Found::on(&url, &[]);
    half.assert("refused", "clusterdown", &[&name(&nodes[0])], "CLUSTERDOWN");
    nodes[0].cli(&["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"]);
    eventually("one shard serves all", SOON, || {
        nodes[0].cli(&["CLUSTER", "INFO"]).text().contains("cluster_state:ok").then_some(())
    });
    let whole = Found::on(&url, &[]);
    assert!(whole.code == 1, "{}", whole.text);
    nodes[0].cli(&["CLUSTER", "DELSLOTSRANGE", "0", "8191"]);
    nodes[1].cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "8191"]);
    nodes[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &nodes[1].port().to_string()]);
    eventually("two shards know of each other", Duration::from_secs(30), || {
        nodes.iter().all(|node| node.cli(&["CLUSTER", "INFO"]).text().contains("cluster_size:2")).then_some(())
    });
    let found = Found::on(&nodes.iter().map(Server::url).collect::<Vec<_>>(), &[]);
    let names: Vec<String> = nodes.iter().map(name).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let finding = found.assert("refused", "moved", &names, "it is one of 2 shards of a cluster");
    assert_eq!(finding["remedy"], "name a standalone server: shards of a cluster are no independent nodes");
}

/// C63
#[test]
fn c63_renamed_commands_are_told_and_config_is_not_needed() {
    let without = |command: &str| server(&["--rename-command", command, ""]);
    let (config, eval, info) = (without("CONFIG"), without("EVAL"), without("INFO"));
    let found = Found::on(&[config.url(), eval.url(), info.url()], &[]);
    found.assert("refused", "unsupported", &[&name(&eval)], "unknown command");
    found.assert("refused", "no-run-id", &[&name(&info)], "unknown command");
    for finding in found.json["findings"].as_array().unwrap() {
        let refuses = finding["severity"] == "refused" && finding["nodes"].to_string().contains(&name(&config));
        assert!(!refuses, "{finding}");
    }
}

/// C63
#[test]
fn c63_without_eval_on_a_minority_one_leads_and_on_a_majority_the_start_is_refused() {
    let without = || server(&["--rename-command", "EVAL", "", "--rename-command", "EVALSHA", ""]);
    let (first, second) = (without(), without());
    let (well, config) = (server(&[]), server(&["--rename-command", "CONFIG", ""]));
    let replica = ReplicaOptions::new(LOCK, "a", &[first.url(), well.url(), config.url()]);
    let replica = replica.args(["--ttl", "500ms"]).start();
    replica.wait_elected(1, SOON);
    let node = name(&first);
    replica.wait_for_log("the node without EVAL and why", SOON, |line| {
        line.text("node") == node && line.text("kind") == "unsupported"
    });
    let replica = ReplicaOptions::new(LOCK, "b", &[first.url(), second.url(), well.url()]);
    let replica = replica.args(["--ttl", "500ms"]).start();
    assert_eq!(replica.wait_exit(SOON), 64);
    let last = replica.process().stderr().pop().unwrap().text;
    assert!(last.contains(&node) && last.contains("EVAL"), "{last}");
    assert!(replica.logged("elected").is_empty(), "a term that nobody could extend");
}

/// C51
#[test]
fn c51_what_is_in_the_way_of_the_lock_is_named_with_its_type() {
    let (hash, text, state) = (server(&[]), server(&[]), server(&[]));
    hash.cli(&["HSET", LOCK, "f", "v"]);
    text.cli(&["SET", LOCK, "data"]);
    state.cli(&["RPUSH", STATE, "x"]);
    let found = Found::on(&[hash.url(), text.url(), state.url()], &[]);
    let first = found.assert("refused", "wrongtype", &[&name(&hash)], "the key job exists with type hash");
    assert_eq!(first["remedy"], "choose another --lock, or find who wrote the key");
    let other = format!("the key {STATE} exists with type list");
    assert!(found.json.to_string().contains(&other), "{}", found.json);
    found.assert("warning", "no-expiry", &[&name(&text)], "the lock key job has no expiry");
    found.assert("warning", "foreign", &[&name(&text)], "the lock key job is held by a foreign owner");
    assert_eq!(hash.cli(&["HGET", LOCK, "f"]).text(), "v");
    assert_eq!(text.cli(&["GET", LOCK]).text(), "data");
}

#[test]
fn a_token_that_cannot_be_read_and_a_newer_state_are_refused() {
    let (token, large, newer) = (server(&[]), server(&[]), server(&[]));
    token.cli(&["HSET", STATE, "token", "1e15", "v", "1"]);
    large.cli(&["HSET", STATE, "token", "9007199254740992", "v", "1"]);
    newer.cli(&["HSET", STATE, "token", "7", "v", "2"]);
    let found = Found::on(&[token.url(), large.url(), newer.url()], &[]);
    let bad = [name(&token), name(&large)];
    for node in &bad {
        let finding =
            found.json["findings"].as_array().unwrap().iter().find(|finding| {
                finding["problem"] == "bad-state" && finding["nodes"].to_string().contains(node.as_str())
            });
        let what = finding.unwrap_or_else(|| panic!("{node} in {}", found.json))["what"].as_str().unwrap();
        assert!(what.contains("field token of {job}:redleader is no number below 2^53"), "{what}");
    }
    found.assert("refused", "newer-state", &[&name(&newer)], "was written in version 2, this one reads 1");
}

/// Of each kind of server that has users: every right that is taken away is missed by name, and the line that is
/// printed gives exactly what is needed.
#[test]
fn a_missing_right_is_named_and_the_line_that_is_printed_sets_it() {
    const RIGHTS: [&str; 9] = ["eval", "get", "set", "del", "pexpire", "pttl", "hmget", "hset", "time"];
    for flavour in Flavour::ALL {
        let server = Server::start(flavour, ServerOptions::new().args(["--appendonly", "yes"]));
        let url = [format!("redis://app@{}", server.address())];
        let env = [("REDLEADER_REDIS_PASSWORD", "S3cr3tT0ken")];
        let set = |words: &[&str]| {
            let all = [&["ACL", "SETUSER", "app", "reset", "on", ">S3cr3tT0ken"], words].concat();
            assert_eq!(server.cli(&all).text(), "OK", "{words:?}");
        };
        set(&[]);
        let found = Found::with(&url, &[], &env);
        let finding = found.assert("refused", "noperm", &[&name(&server)], "app");
        let line: Vec<String> =
            finding["acl"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect();
        assert_eq!(line[..3], ["ACL", "SETUSER", "app"]);
        let shown = "    redis-cli ACL SETUSER app '~job' '~{job}:redleader' ";
        assert!(found.text.contains(shown), "{}", found.text);
        assert_eq!(server.cli(&line.iter().map(String::as_str).collect::<Vec<_>>()).text(), "OK", "{line:?}");
        let granted = Found::with(&url, &[], &env);
        granted.assert_none("noperm");
        granted.assert_none("channel");
        assert!(granted.json["nodes"][0]["latencyMs"].is_number(), "its clock may be read: {}", granted.json);
        assert_eq!(granted.code, 1, "{}", granted.text);
        let leads = ReplicaOptions::new(LOCK, "a", &url).env(env[0].0, env[0].1).args(["--ttl", "500ms"]).start();
        leads.wait_elected(1, SOON);
        leads.term();
        assert_eq!(leads.wait_exit(SOON), 0);
        let rights: Vec<&str> = line[3..].iter().map(String::as_str).collect();
        for right in RIGHTS {
            set(&[&rights[..], &[&format!("-{right}")]].concat());
            let found = Found::with(&url, &[], &env);
            let finding = found.assert("refused", "noperm", &[&name(&server)], right);
            let acl = finding["acl"].as_array().unwrap();
            assert!(acl.contains(&format!("+{right}").into()), "{finding}");
        }
        set(&[&rights[..], &["-info"]].concat());
        Found::with(&url, &[], &env).assert("refused", "noperm", &[&name(&server)], "'info'");
        set(&[&rights[..], &["-evalsha"]].concat());
        let found = Found::with(&url, &[], &env);
        found.assert("warning", "evalsha", &[&name(&server)], "every script is sent whole");
        found.assert_none("noperm");
        let no_keys: Vec<&str> = rights.iter().copied().filter(|right| *right != "~{job}:redleader").collect();
        set(&no_keys);
        Found::with(&url, &[], &env).assert("refused", "noperm", &[&name(&server)], "app");
        for taken in [&["-subscribe"][..], &["resetchannels"]] {
            set(&[&rights[..], taken].concat());
            let found = Found::with(&url, &[], &env);
            found.assert("warning", "channel", &[&name(&server)], "user app may not use the channel redleader:job");
            assert_eq!(found.code, 1, "{}", found.text);
        }
    }
}

#[test]
fn a_user_without_publish_is_told_where_the_server_lets_us_know() {
    let server = server(&[]);
    server.cli(&["ACL", "SETUSER", "app", "reset", "on", "nopass", "~*", "&*", "+@all", "-publish"]);
    let found = Found::on(&[format!("redis://app@{}", server.address())], &[]);
    found.assert("warning", "channel", &[&name(&server)], "redleader:job");
}

#[test]
fn what_works_and_is_not_as_it_should_be_is_warned_about() {
    let evicts = server(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let forgets = Server::start(Flavour::Redis70, ServerOptions::new());
    let full = server(&["--maxmemory", "1mb"]);
    let found = Found::on(&[evicts.url(), forgets.url(), full.url()], &[]);
    let finding =
        found.assert("warning", "eviction", &[&name(&evicts)], "maxmemory-policy is allkeys-lru, with a limit set");
    assert_eq!(finding["remedy"], "set maxmemory-policy noeviction, or use the server for locks only");
    found.assert("warning", "appendonly", &[&name(&forgets)], "appendonly is no");
    found.assert("warning", "oom", &[&name(&full)], "its memory is full: it refuses writes");
    found.assert("warning", "one-host", &[], "all nodes are on one host, 127.0.0.1");
    assert_eq!(found.code, 1, "{}", found.text);
    evicts.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    Found::on(&[evicts.url()], &[]).assert_none("eviction");
}

/// C11
#[test]
fn c11_an_even_number_of_nodes_and_too_few_are_warned_about() {
    let servers: Vec<Server> = (0..4).map(|_| server(&[])).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    for (count, problem, words) in [
        (1, "few-nodes", "1 node: no failure is tolerated"),
        (2, "few-nodes", "2 nodes: no failure is tolerated"),
        (4, "even-nodes", "4 nodes tolerate 1 failure, as 3 would"),
    ] {
        let found = Found::on(&urls[..count], &[]);
        let finding = found.assert("warning", problem, &[], words);
        assert_eq!(finding["remedy"], "use 3 nodes to tolerate 1 failure, 5 to tolerate 2");
    }
    let found = Found::on(&urls[..3], &[]);
    found.assert_none("few-nodes");
    found.assert_none("even-nodes");
}

#[test]
fn a_quarantine_is_told_with_what_is_left_of_it() {
    let server = server(&[]);
    let url = [server.url()];
    Found::on(&url, &[]).assert(
        "warning",
        "quarantined",
        &[&name(&server)],
        "new to this lock: in quarantine for 8.8s from the first look",
    );
    let replica = ReplicaOptions::new(LOCK, "a", &url).args(["--ttl", "8s"]).start();
    eventually("the marker is written", SOON, || (!server.cli(&["HGET", STATE, "born"]).is_nil()).then_some(()));
    let found = Found::on(&url, &[]);
    let finding = found.assert("warning", "quarantined", &[&name(&server)], "in quarantine for ");
    let what = finding["what"].as_str().unwrap();
    let left: f64 = what.trim_start_matches("in quarantine for ").trim_end_matches("s more").parse().expect(what);
    assert!((1.0..=8.8).contains(&left), "{what}");
    drop(replica);
}

#[test]
fn a_holder_with_another_list_or_ttl_is_told_and_a_short_quarantine_refused() {
    let servers: Vec<Server> = (0..3).map(|_| server(&[])).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let replica = ReplicaOptions::new(LOCK, "a", &urls).args(["--ttl", "1s"]).start();
    replica.wait_elected(1, SOON);
    let names: Vec<String> = servers.iter().map(name).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    eventually("all hold it", SOON, || servers.iter().all(|server| !server.cli(&["GET", LOCK]).is_nil()).then_some(()));
    let found = Found::on(&urls, &["--ttl", "2s"]);
    found.assert("warning", "ttl", &names, "a has ttl 1s, here it is 2s");
    found.assert_none("list");
    let found = Found::on(&urls, &["--ttl", "500ms"]);
    let what = "--quarantine 550ms is below 1.1s = (1 + 10%) x the ttl 1s of a";
    let finding = found.assert("refused", "quarantine-short", &names, what);
    assert_eq!(finding["remedy"], "raise --quarantine on every replica first");
    Found::on(&urls, &["--ttl", "500ms", "--quarantine", "1100ms"]).assert_none("quarantine-short");
    let found = Found::on(&urls[..2], &["--ttl", "1s"]);
    let what = "a has another list: 1 not named here, 0 missing there: as a roll may";
    found.assert("warning", "list", &names[..2], what);
    // The same server by another spelling is another list.
    let spelt = [urls[0].clone(), urls[1].clone(), format!("redis://localhost:{}", servers[2].port())];
    let found = Found::on(&spelt, &["--ttl", "1s"]);
    let what = "a has another list: 1 not named here, 1 missing there: more than one roll may";
    let spelt = format!("localhost:{}", servers[2].port());
    found.assert("warning", "list", &[names[0], names[1], &spelt], what);
}

#[test]
fn a_foreign_holder_is_told() {
    let server = server(&[]);
    server.cli(&["SET", LOCK, "c29tZSByYW5kb20gdmFsdWU=", "PX", "60000"]);
    let found = Found::on(&[server.url()], &[]);
    found.assert("warning", "foreign", &[&name(&server)], "the lock key job is held by a foreign owner");
    found.assert_none("no-expiry");
    assert!(!found.json.to_string().contains("c29tZ") && !found.text.contains("c29tZ"), "an owner value is shown");
}

#[test]
fn a_change_of_the_list_is_judged() {
    let servers: Vec<Server> = (0..3).map(|_| server(&[])).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let next = |nodes: &[&str]| Found::on(&urls, &["--next", &nodes.join(",")]);
    let [a, b, c] = [0, 1, 2].map(|index| urls[index].as_str());
    for (nodes, words) in [
        (vec![a, b, c], "is the same list"),
        (vec![c, b, a, "redis://d"], "adds d:6379/0"),
        (vec![a, b], "removes 127.0.0.1:"),
    ] {
        let found = next(&nodes);
        found.assert_none("next");
        assert_eq!((found.code, &found.json["next"]["safe"]), (1, &true.into()), "{}", found.text);
        assert!(found.text.contains(&format!("next    {words}")), "{}", found.text);
    }
    let found = next(&[a, b, "redis://d"]);
    let finding = found.assert("refused", "next", &[], "--next is not a neighbour: it adds d:6379/0 and removes ");
    let remedy = finding["remedy"].as_str().unwrap();
    assert!(remedy.starts_with("add d:6379/0 in one roll of all replicas, and remove 127.0.0.1:"), "{remedy}");
    assert!(remedy.ends_with("in the next; or stop all for 8.8s"), "{remedy}");
    let found = next(&[a, b, c, "redis://d", "redis://e"]);
    found.assert("refused", "next", &[], "it adds d:6379/0, e:6379/0");
    assert_eq!(found.code, 64);
}

#[test]
fn relations_of_the_numbers_are_refused_with_the_numbers() {
    let output = doctor(&["redis://127.0.0.1:1"], &["--renew-every", "6s"]);
    assert_eq!(output.code, 64);
    let words =
        "--renew-every 6s + 2 x --node-timeout 400ms must be less than --ttl 8s x (1 - 10%) - --grace 1s = 6.2s";
    assert!(output.stderr.contains(words), "{}", output.stderr);
    let output = doctor(&["redis://127.0.0.1:1"], &["--quarantine", "8s"]);
    assert_eq!(output.code, 64);
    let words = "--quarantine 8s must be at least --ttl 8s x (1 + 10%) = 8.8s";
    assert!(output.stderr.contains(words), "{}", output.stderr);
}

#[test]
fn nodes_that_do_not_answer_are_refused_with_what_to_do() {
    let (well, locked, hung, gone) = (server(&[]), server(&[]), server(&[]), server(&[]));
    let gone_url = gone.url();
    let gone_name = name(&gone);
    drop(gone);
    locked.cli(&["CONFIG", "SET", "requirepass", "pw"]);
    hung.stop();
    let urls = [well.url(), locked.url(), hung.url(), gone_url, "redis://no-such-host.invalid".to_owned()];
    let found = Found::on(&urls, &["--connect-timeout", "500ms"]);
    hung.cont();
    found.assert("refused", "auth", &[&name(&locked)], "NOAUTH");
    found.assert("refused", "timeout", &[&name(&hung)], "is not done within the connect timeout");
    found.assert("refused", "connect", &[&gone_name], "refused");
    let dns = found.json["findings"].as_array().unwrap().iter().any(|finding| {
        (finding["problem"] == "dns" || finding["problem"] == "timeout")
            && finding["nodes"].to_string().contains("no-such-host.invalid:6379")
    });
    assert!(dns, "{}", found.text);
    assert_eq!(found.code, 64);
    assert!(found.json["nodes"][0]["up"] == true && found.json["nodes"][3]["up"] == false, "{}", found.json);
}

/// C141, C143
#[test]
fn c141_c143_a_scheme_and_a_certificate_that_do_not_fit_are_told_in_one_line() {
    let certificates = Certificates::generate();
    let tls = Server::start(Flavour::Redis70, ServerOptions::new().tls(&certificates).args(["--appendonly", "yes"]));
    let plain = server(&[]);
    let encrypted_to_plain = format!("rediss://{}", plain.address());
    let plain_to_encrypted = format!("redis://{}", tls.address());
    let ca = certificates.ca();
    let args = ["--redis-ca-file", ca.to_str().unwrap(), "--connect-timeout", "700ms"];
    let found = Found::on(&[tls.url(), encrypted_to_plain.clone(), plain_to_encrypted.clone()], &args);
    let tls_names = [plain.address(), tls.address()];
    for (node, words) in tls_names.iter().zip(["does the server speak TLS there?", "rediss://"]) {
        let finding =
            found.json["findings"].as_array().unwrap().iter().find(|finding| {
                finding["severity"] == "refused" && finding["nodes"].to_string().contains(node.as_str())
            });
        let what = finding.unwrap_or_else(|| panic!("{node} in {}", found.json))["what"].as_str().unwrap();
        assert!(what.contains(words), "{what}");
    }
    assert_eq!(found.json["nodes"][0]["up"], true, "the one that fits is well: {}", found.text);
    let took = doctor(&[encrypted_to_plain], &args).took;
    assert!(took < Duration::from_millis(700 * 5), "{took:?}: bounded by the connect timeout");
    // A private CA that is not given; a name that the certificate does not have.
    let stranger = Certificates::generate();
    let found = Found::on(&[tls.url()], &["--redis-ca-file", stranger.ca().to_str().unwrap()]);
    let node = format!("localhost:{}", tls.port());
    found.assert("refused", "tls", &[&node], "certificate");
    let by_ip = format!("127.0.0.2:{}", tls.port());
    tls.cli(&["CONFIG", "SET", "bind", "127.0.0.1 127.0.0.2"]);
    let found = Found::on(&[format!("rediss://{by_ip}")], &["--redis-ca-file", ca.to_str().unwrap()]);
    found.assert("refused", "tls", &[&by_ip], "certificate");
}

/// C141, C143
#[test]
fn c141_c143_one_node_that_cannot_be_reached_by_tls_does_not_prevent_a_leader() {
    let certificates = Certificates::generate();
    let tls = || Server::start(Flavour::Redis70, ServerOptions::new().tls(&certificates));
    let (one, two) = (tls(), tls());
    let plain = server(&[]);
    let ca = certificates.ca();
    let urls = [one.url(), two.url(), format!("rediss://{}", plain.address())];
    let args = ["--ttl", "1s", "--redis-ca-file", ca.to_str().unwrap()];
    let replica = ReplicaOptions::new(LOCK, "a", &urls).args(args).start();
    replica.wait_elected(1, SOON);
    let node = name(&plain);
    replica.wait_for_log("the node and the kind", SOON, |line| line.text("node") == node && line.text("kind") == "tls");
}

/// C143
#[test]
fn c143_certificates_that_fit_work_and_each_other_is_told_with_its_reason_and_node() {
    const DNS: &str = "subjectAltName=DNS:localhost\n";
    const IP: &str = "subjectAltName=IP:127.0.0.1\n";
    let certificates = Certificates::generate();
    let year = 365 * 24 * 3600 * 1_000_000;
    let (past, future) = (ShiftedClock::new(-year, 0), ShiftedClock::new(year, 0));
    let ca = certificates.ca();
    let ca = ca.to_str().unwrap();
    let (client_cert, client_key) = (certificates.client_cert(), certificates.client_key());
    let client = ["--redis-cert-file", client_cert.to_str().unwrap(), "--redis-key-file", client_key.to_str().unwrap()];
    for (what, extensions, clock, host, args, reason) in [
        ("DNS name", Some(DNS), None, "localhost", &[][..], None),
        ("IP address", Some(IP), None, "127.0.0.1", &[], None),
        ("client certificate", Some(DNS), None, "localhost", &client, None),
        ("client without one", Some(DNS), None, "localhost", &[], Some("CertificateRequired")),
        ("DNS name, by address", Some(DNS), None, "127.0.0.1", &[], Some("certificate not valid for name")),
        (
            "CN only",
            Some("keyUsage=digitalSignature\n"),
            None,
            "localhost",
            &[],
            Some("certificate not valid for name"),
        ),
        ("expired", Some(DNS), Some(&past), "localhost", &[], Some("expired")),
        ("not yet valid", Some(DNS), Some(&future), "localhost", &[], Some("not valid yet")),
        ("X.509 v1", None, None, "localhost", &[], Some("UnsupportedCertVersion")),
    ] {
        let (cert, key) = certificates.issue(&what.replace([' ', ',', '.'], "-"), extensions, clock);
        let needs_client = what.starts_with("client");
        let server = Server::start(
            Flavour::Redis70,
            ServerOptions::new().tls(&certificates).args([
                "--appendonly",
                "yes",
                "--tls-cert-file",
                cert.to_str().unwrap(),
                "--tls-key-file",
                key.to_str().unwrap(),
                "--tls-auth-clients",
                if needs_client { "yes" } else { "no" },
            ]),
        );
        let node = format!("{host}:{}", server.port());
        let found = Found::on(&[format!("rediss://{node}")], &[args, &["--redis-ca-file", ca]].concat());
        match reason {
            None => {
                assert_eq!((found.code, &found.json["nodes"][0]["up"]), (1, &true.into()), "{what}: {}", found.text)
            }
            Some(reason) => {
                let finding = found.assert("refused", "tls", &[&node], "");
                let said = finding["what"].as_str().unwrap().to_lowercase();
                println!("{what}: {said}");
                assert!(said.contains(&reason.to_lowercase()), "{what}: {said}");
            }
        }
    }
}

/// C109
#[test]
fn c109_no_page_ever_shows_a_password() {
    const SECRET: &str = "S3cr3tT0ken/%";
    const ENCODED: &str = "S3cr3tT0ken%2F%25";
    let right = Server::start(Flavour::Redis70, ServerOptions::new().password(SECRET));
    let wrong = Server::start(Flavour::Redis70, ServerOptions::new().password("another"));
    let repeats = Fake::start(|call| match call.name.as_str() {
        "AUTH" => Answer::error(&format!("ERR unknown command 'AUTH', with args beginning with: '{}'", call.word(1))),
        _ => Answer::error("NOAUTH"),
    });
    let url = |address: String| format!("redis://:{ENCODED}@{address}");
    let good = [url(right.address()), url(wrong.address()), url(repeats.address()), url("127.0.0.1:1".to_owned())];
    let tls = format!("rediss://:{ENCODED}@{}", right.address());
    let lists = [good.join(","), tls, format!("redis://:{ENCODED}#@host"), format!("redis://:{SECRET}@host")];
    for list in lists {
        for command in ["doctor", "status", "wait"] {
            for output in ["text", "json"] {
                let mut process = Command::new(binary());
                process.args([command, "--lock", LOCK, "--output", output, "--connect-timeout", "500ms"]);
                match command {
                    "doctor" => process.args(["--for", "0s"]),
                    "wait" => process.args(["--timeout", "100ms"]),
                    _ => process.args(["--control", "off"]),
                };
                process.env("REDLEADER_REDIS", &list);
                let said = run(command, process, SOON);
                for text in [&said.stdout, &said.stderr] {
                    assert!(!text.contains("S3cr3tT0ken"), "{command} {output}: {text}");
                }
                assert_ne!(said.code, 0, "{command} {output}: {}", said.stdout);
            }
        }
    }
    let on_argv = doctor(&[url(right.address())], &[]);
    assert_eq!(on_argv.code, 64);
    assert!(on_argv.stderr.contains("has a password") && !on_argv.stderr.contains("S3cr3t"), "{}", on_argv.stderr);
    let on_argv = doctor(&["redis://a"], &["--next", &url(right.address())]);
    assert!(on_argv.stderr.contains("--next: URL 1 has a password") && !on_argv.stderr.contains("S3cr3t"));
}

/// A fake that is well, save for what `script` says.
fn fake(script: impl Fn(&Call) -> Option<Answer> + Send + Sync + 'static) -> Fake {
    Fake::start(move |call| {
        script(call).unwrap_or_else(|| match call.name.as_str() {
            "INFO" => Answer::info("7.0.15", RUN, "master"),
            "EVAL" if call.args.len() == 5 && call.word(1).contains("run_id") => Answer::bulk(RUN),
            "EVAL" if call.args.len() == 5 => Answer::value(&resp::Value::Array(Some(vec![]))),
            "EVAL" => {
                let fields = ["free", "", "", "0", "0", "0", "0", "1795988714504742", &RUN[..12]];
                let bulk = |text: &&str| resp::Value::Bulk(Some(text.as_bytes().to_vec()));
                let all = fields.iter().map(bulk).chain([resp::Value::Int(0)]).collect();
                Answer::value(&resp::Value::Array(Some(all)))
            }
            "EVALSHA" => Answer::error("NOSCRIPT No matching script."),
            "HMGET" => Answer::value(&resp::Value::Array(Some(vec![resp::Value::Bulk(None); 10]))),
            "TYPE" => Answer::Bytes(b"+none\r\n".to_vec()),
            "ACL" => Answer::error("ERR unknown command"),
            "SUBSCRIBE" | "UNSUBSCRIBE" => Answer::value(&resp::Value::Array(Some(vec![]))),
            "TIME" => {
                let bulk = |text: &str| resp::Value::Bulk(Some(text.as_bytes().to_vec()));
                Answer::value(&resp::Value::Array(Some(vec![bulk("1795988714"), bulk("504742")])))
            }
            _ => Answer::ok(),
        })
    })
}

#[test]
fn a_fake_that_is_well_is_well() {
    let fakes = [fake(|_| None), fake(|_| None)];
    let found = Found::on(&[fakes[0].url()], &[]);
    assert_eq!(found.problems(), ["few-nodes"], "{}", found.text);
}

#[test]
fn a_fake_older_than_5_0_is_refused() {
    let old = fake(|call| (call.name == "INFO").then(|| Answer::info("4.0.14", RUN, "master")));
    let found = Found::on(&[old.url()], &[]);
    let finding = found.assert("refused", "unsupported", &[&old.address()], "its version is 4.0.14");
    assert_eq!(finding["remedy"], "use Redis 5.0 or newer, or Valkey, with EVAL");
}

#[test]
fn a_fake_proxy_that_spreads_commands_is_refused() {
    let spreads = fake(|call| {
        let run = if call.args.len() > 1 { "f123456789abcdef0123456789abcdef01234567" } else { RUN };
        (call.name == "INFO").then(|| Answer::info("7.0.15", run, "master"))
    });
    let found = Found::on(&[spreads.url()], &[]);
    let what = "INFO gives different run_ids on one connection: a proxy spreads commands";
    found.assert("refused", "no-run-id", &[&spreads.address()], what);
    let inside = fake(|call| {
        let is_probe = call.name == "EVAL" && call.args.len() == 5 && call.word(1).contains("run_id");
        is_probe.then(|| Answer::bulk("f123456789abcdef0123456789abcdef01234567"))
    });
    Found::on(&[inside.url()], &[]).assert("refused", "no-run-id", &[&inside.address()], what);
}

#[test]
fn a_fake_that_denies_info_in_scripts_is_warned_about() {
    let denies = fake(|call| {
        let is_probe = call.name == "EVAL" && call.args.len() == 5 && call.word(1).contains("run_id");
        is_probe.then(|| Answer::bulk(""))
    });
    let found = Found::on(&[denies.url()], &[]);
    let what = "INFO is denied in scripts, and answered outside of them";
    found.assert("warning", "script-info", &[&denies.address()], what);
    assert_eq!(found.code, 1);
    // The run_id that the connection knows goes with the observation.
    let observed = denies.calls().into_iter().find(|call| call.name == "EVAL" && call.args.len() > 5).unwrap();
    assert_eq!(observed.word(observed.args.len() - 1), RUN);
}

#[test]
fn a_fake_without_a_run_id_and_one_that_is_loading_are_refused() {
    let nameless = fake(|call| (call.name == "INFO").then(|| Answer::bulk("redis_version:7.0.15\r\nrole:master\r\n")));
    Found::on(&[nameless.url()], &[]).assert("refused", "no-run-id", &[&nameless.address()], "INFO gives no run_id");
    let loads = fake(|call| {
        let is_refused = matches!(call.name.as_str(), "EVAL" | "HMGET" | "TYPE" | "SUBSCRIBE");
        is_refused.then(|| Answer::error("LOADING Redis is loading the dataset in memory"))
    });
    let found = Found::on(&[loads.url()], &[]);
    let finding = found.assert("refused", "loading", &[&loads.address()], "LOADING");
    assert_eq!(finding["remedy"], "wait until it has read its data");
}
