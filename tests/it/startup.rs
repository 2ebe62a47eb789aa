//! Start-up against nodes that cannot vote: one clear line for each, and the exit code or the degraded state that the
//! surfaces promise (64 only when every node has answered and a quorum can never vote).

use std::time::Duration;

use crate::support::{
    Answer, Call, Data, Fake, Flavour, Judge, LogLine, Mode, OverlapMeter, Proxy, Replica, ReplicaOptions, Server,
    ServerOptions, Servers, Track, eventually, let_time_pass, stays_true,
};

const SOON: Duration = Duration::from_secs(10);
const TTL: Duration = Duration::from_secs(1);
const LOCK: &str = "job";
const STATE: &str = "{job}:redleader";

/// A short ttl, with a node timeout that a loaded machine keeps, so that no fault is taken for a timeout.
const TIMING: [&str; 4] = ["--ttl", "1s", "--node-timeout", "200ms"];

fn options<S: AsRef<str>>(identity: &str, nodes: &[S]) -> ReplicaOptions {
    ReplicaOptions::new(LOCK, identity, nodes).args(TIMING)
}

/// The lines that tell that a node has no vote.
fn told(replica: &Replica) -> Vec<LogLine> {
    let mut lines = replica.logged("node has no vote");
    // On a machine that hardly gets on, an ask may time out before the first dial says what is wrong.
    lines.retain(|line| line.text("kind") != "timeout");
    lines
}

/// It says for each node, once, that it has no vote and why, and stays: not ready with the reason, and alive.
#[track_caller]
fn assert_degraded(replica: &Replica, nodes: &[String], kind: &str, says: &str) {
    eventually("each node is told of", SOON, || (told(replica).len() >= nodes.len()).then_some(()));
    let (status, reason) = replica.readyz();
    assert_eq!(status, 503);
    assert!(reason.contains(&format!(": {kind} (")) && reason.lines().count() == 1, "{reason}");
    stays_true("it is alive and not ready", TTL * 2, || {
        let live = replica.get("/livez").is_ok_and(|response| response.status == 200);
        live && replica.readyz().0 == 503
    });
    let (lines, all) = (told(replica), replica.logged("node has no vote"));
    for node in nodes {
        let count = |lines: &[LogLine]| lines.iter().filter(|line| line.text("node") == node.as_str()).count();
        // Once, and again after a timeout only, which is news of its own on a machine that hardly gets on.
        let timeouts = count(&all) - count(&lines);
        assert!((1..=1 + timeouts).contains(&count(&lines)), "one line for {node}: {lines:?}");
    }
    for line in &lines {
        assert!(nodes.iter().any(|node| node.as_str() == line.text("node")), "{:?}", line.json);
        assert_eq!(line.text("kind"), kind, "{:?}", line.json);
        assert_eq!(line.text("level"), "WARN");
        assert!(line.text("reason").contains(says), "{says:?} in {:?}", line.json);
    }
}

/// It ends with 64 and says why in one line to people and one in the log.
#[track_caller]
fn assert_refused(options: ReplicaOptions, says: &[&str]) {
    let replica = options.start();
    assert_eq!(replica.wait_exit(SOON), 64);
    let lines: Vec<String> = replica.process().stderr().into_iter().map(|line| line.text).collect();
    let plain: Vec<&String> = lines.iter().filter(|line| !line.starts_with('{')).collect();
    let [line] = plain.as_slice() else { panic!("one line for people, not {plain:?}") };
    for part in says {
        assert!(line.contains(part), "{part:?} in {line}");
    }
    let errors: Vec<LogLine> = replica.log().into_iter().filter(|line| line.text("level") == "ERROR").collect();
    let [error] = errors.as_slice() else { panic!("one error in the log, not {errors:?}") };
    assert!(line.contains(error.text("reason")), "{line} has {:?}", error.json);
    assert!(replica.logged("elected").is_empty());
}

#[test]
fn absent_nodes_are_waited_for() {
    let mut servers = Servers::start(3);
    servers.iter_mut().for_each(Server::kill);
    let replica = options("a", &servers.urls()).start();
    assert_degraded(&replica, &servers.addresses(), "connect", "refused");
    assert!(replica.readyz().1.starts_with("starting: 0 of 3 nodes can vote, 2 required"), "{:?}", replica.readyz());
    servers.iter_mut().for_each(|server| server.start_again(Data::Lost));
    replica.wait_elected(1, SOON);
    let absent = options("b", &["redis://no-such-host.invalid"]).start();
    assert_degraded(&absent, &["no-such-host.invalid:6379".to_owned()], "dns", "check the name in --redis");
    absent.term();
    assert_eq!(absent.wait_exit(SOON), 0);
}

#[test]
fn a_replica_is_no_node_until_it_is_promoted() {
    let (servers, primary) = (Servers::start(3), Servers::start(1));
    for server in servers.iter() {
        server.cli(&["REPLICAOF", "127.0.0.1", &primary[0].port().to_string()]);
    }
    let replica = options("a", &servers.urls()).start();
    assert_degraded(&replica, &servers.addresses(), "readonly", "name the primary: its role is slave");
    for server in servers.iter() {
        server.cli(&["REPLICAOF", "NO", "ONE"]);
        // Three copies of one server have its replication id in common until they are restarted; that is another test.
        server.cli(&["DEBUG", "CHANGE-REPL-ID"]);
    }
    replica.wait_elected(1, SOON);
}

#[test]
fn a_node_without_connections_left_is_waited_for() {
    let servers = Servers::start(3);
    let mut clients: Vec<_> = servers.iter().map(|server| server.client().unwrap()).collect();
    for client in &mut clients {
        client.call(&["CONFIG", "SET", "maxclients", "1"]).unwrap();
    }
    let replica = options("a", &servers.urls()).start();
    assert_degraded(&replica, &servers.addresses(), "maxclients", "raise maxclients");
    for client in &mut clients {
        client.call(&["CONFIG", "SET", "maxclients", "100"]).unwrap();
    }
    replica.wait_elected(1, SOON);
}

#[test]
fn a_node_without_memory_left_is_waited_for() {
    let servers = Servers::start(3);
    let limit =
        |bytes: &str| servers.iter().for_each(|server| drop(server.cli(&["CONFIG", "SET", "maxmemory", bytes])));
    limit("1");
    let replica = options("a", &servers.urls()).start();
    assert_degraded(&replica, &servers.addresses(), "oom", "raise maxmemory");
    limit("0");
    replica.wait_elected(1, SOON);
}

#[test]
fn c41_a_wrong_password_is_told_within_the_connect_timeout() {
    let servers = Servers::start(3);
    let mut clients: Vec<_> = servers.iter().map(|server| server.client().unwrap()).collect();
    for client in &mut clients {
        client.call(&["CONFIG", "SET", "requirepass", "right"]).unwrap();
    }
    let replica = options("a", &servers.urls())
        .env("REDLEADER_REDIS_PASSWORD", "wrong")
        .args(["--connect-timeout", "1s", "--log-level", "debug"])
        .start();
    assert_degraded(&replica, &servers.addresses(), "auth", "--redis-password-file: WRONGPASS");
    for line in told(&replica) {
        assert!(line.read_boot_ms - replica.started_at() < 1000, "within the connect timeout: {:?}", line.json);
    }
    let tried = replica.logged("no connection").len();
    assert!(told(&replica).len() <= tried, "not more often than it is tried, {tried} times");
    for client in &mut clients {
        client.call(&["CONFIG", "SET", "requirepass", "wrong"]).unwrap();
    }
    replica.wait_elected(1, SOON);
}

#[test]
fn c41_one_wrong_password_of_three_still_leads() {
    let servers = Servers::start(3);
    servers[1].client().unwrap().call(&["CONFIG", "SET", "requirepass", "right"]).unwrap();
    let replica = options("a", &servers.urls()).start();
    replica.wait_elected(1, SOON);
    let lines = told(&replica);
    let [line] = lines.as_slice() else { panic!("one line, not {lines:?}") };
    assert_eq!((line.text("node"), line.text("kind")), (servers[1].address().as_str(), "auth"));
    assert!(line.text("reason").contains("NOAUTH"), "{:?}", line.json);
    stays_true("it leads", TTL * 2, || replica.leads());
}

#[test]
fn c41_wrong_passwords_everywhere_are_503_and_alive() {
    let servers: Vec<Server> =
        (0..3).map(|_| Server::start(Flavour::Redis70, ServerOptions::new().password("right"))).collect();
    let addresses: Vec<String> = servers.iter().map(Server::address).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let replica = options("a", &urls).start();
    assert_degraded(&replica, &addresses, "auth", "the password or user is wrong");
    assert!(replica.is_running());
}

#[test]
fn a_wrong_type_at_the_lock_or_its_state_is_left_alone_and_named() {
    for (key, kind_of_data) in [(LOCK, "hash"), (STATE, "list")] {
        let servers = Servers::start(3);
        for server in servers.iter() {
            match kind_of_data {
                "hash" => server.cli(&["HSET", key, "f", "v"]),
                _ => server.cli(&["RPUSH", key, "v"]),
            };
        }
        let replica = options("a", &servers.urls()).start();
        let says = format!("WRONGTYPE the key {key} holds a {kind_of_data}");
        assert_degraded(&replica, &servers.addresses(), "wrongtype", &says);
        for server in servers.iter() {
            assert_eq!(server.cli(&["TYPE", key]).text(), kind_of_data);
            server.cli(&["DEL", key]);
        }
        replica.wait_elected(1, SOON);
    }
}

/// C51, with the two foreign keys that it tells of, and the third node free.
struct Foreign {
    servers: Servers,
    replica: Replica,
}

impl Foreign {
    fn start() -> Self {
        let servers = Servers::start(3);
        servers[0].cli(&["HSET", LOCK, "f", "v"]);
        servers[1].cli(&["SET", LOCK, "data"]);
        let replica = options("a", &servers.urls()).start();
        Self { servers, replica }
    }
}

#[test]
fn c51_a_foreign_key_is_left_alone() {
    let Foreign { servers, replica } = Foreign::start();
    stays_true("nobody leads", TTL * 3, || !replica.leads());
    replica.term();
    assert_eq!(replica.wait_exit(SOON), 0);
    assert_eq!(servers[0].cli(&["HGETALL", LOCK]).list().len(), 2);
    assert_eq!(servers[1].cli(&["GET", LOCK]).text(), "data");
    assert_eq!(servers[1].cli(&["PTTL", LOCK]).int(), Some(-1));
    assert!(servers[2].cli(&["GET", LOCK]).is_nil(), "nothing is left behind where there was nothing");
}

#[test]
fn c51_the_log_says_what_is_in_the_way() {
    let Foreign { servers, replica } = Foreign::start();
    let line = replica.wait_for_message("node has no vote", 1, SOON);
    assert_eq!(line.text("node"), servers[0].address());
    assert!(line.text("reason").contains("holds a hash"), "{:?}", line.json);
    let line = replica.wait_for_message("key without expiry", 1, SOON);
    assert_eq!(line.text("node"), servers[1].address());
    assert!(line.text("reason").contains("has no expiry"), "{:?}", line.json);
    let_time_pass("a line for every look would be one for every back-off", TTL * 3);
    assert_eq!(replica.logged("key without expiry").len(), 1, "it is told once");
    let (status, reason) = replica.readyz();
    assert_eq!(status, 503);
    assert!(reason.contains("1 of 3 nodes can vote") && reason.contains("wrongtype"), "{reason}");
    assert!(reason.contains("the lock's key has no expiry"), "{reason}");
}

#[test]
fn one_server_at_two_addresses_has_one_vote() {
    let servers = Servers::start(2);
    let path = Proxy::start(&servers[0].address());
    let replica = options("a", &[servers[0].url(), path.url(), servers[1].url()]).start();
    replica.wait_elected(1, SOON);
    let lines = told(&replica);
    let [line] = lines.as_slice() else { panic!("one line, not {lines:?}") };
    assert_eq!((line.text("node"), line.text("kind")), (path.address().as_str(), "same-node"));
    // Two votes are all that there are: with the second server gone, the two addresses of the first are no quorum.
    servers[1].stop();
    replica.wait_for_message("stepped down", 1, SOON);
    stays_true("one server is no quorum", TTL * 2, || !replica.leads());
}

#[test]
fn one_server_at_all_addresses_is_refused() {
    let servers = Servers::start(1);
    let (path, localhost) = (Proxy::start(&servers[0].address()), format!("redis://localhost:{}", servers[0].port()));
    let says = ["no quorum can ever vote as configured (--redis)", "same-node", &path.address()];
    assert_refused(options("a", &[servers[0].url(), path.url(), localhost.clone()]), &says);
    assert_refused(options("a", &[servers[0].url(), servers[0].unix_url(), localhost]), &says[..2]);
}

#[test]
fn the_shards_of_a_cluster_are_refused() {
    let cluster = || ServerOptions::new().args(["--cluster-enabled", "yes"]);
    let shards: Vec<Server> = (0..3).map(|_| Server::start(Flavour::Redis70, cluster())).collect();
    let urls: Vec<String> = shards.iter().map(Server::url).collect();
    let addresses: Vec<String> = shards.iter().map(Server::address).collect();
    let lonely = options("a", &urls).start();
    assert_degraded(&lonely, &addresses, "clusterdown", "cluster shards are no independent nodes");
    lonely.kill9();
    for (shard, slots) in shards.iter().zip([("0", "5460"), ("5461", "10922"), ("10923", "16383")]) {
        shard.cli(&["CLUSTER", "ADDSLOTSRANGE", slots.0, slots.1]);
        shards[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &shard.port().to_string()]);
    }
    for shard in &shards {
        eventually("the cluster serves with three shards", Duration::from_secs(30), || {
            let info = shard.cli(&["CLUSTER", "INFO"]).text();
            (info.contains("cluster_state:ok") && info.contains("cluster_size:3")).then_some(())
        });
    }
    let moved = shards.iter().filter(|shard| shard.cli(&["GET", LOCK]).text().starts_with("MOVED")).count();
    assert_eq!(moved, 2, "the lock's key is in one shard");
    let says = ["moved", "name standalone servers", &addresses[0], &addresses[1], &addresses[2]];
    assert_refused(options("a", &urls), &says);
    // One of three does not hinder two that are well.
    let servers = Servers::start(2);
    let replica = options("a", &[servers[0].url(), urls[0].clone(), servers[1].url()]).start();
    replica.wait_elected(1, SOON);
    assert_eq!(told(&replica).iter().map(|line| line.text("kind").to_owned()).collect::<Vec<_>>(), ["moved"]);
}

#[test]
fn servers_without_eval_are_refused() {
    let options_of = || ServerOptions::new().args(["--rename-command", "EVAL", ""]);
    let servers: Vec<Server> = (0..3).map(|_| Server::start(Flavour::Redis70, options_of())).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    assert_refused(options("a", &urls), &["unsupported", "EVAL is not to be had", &servers[0].address()]);
}

#[test]
fn a_newer_state_is_refused_once_every_node_has_answered() {
    let mut servers = Servers::start(3);
    for server in servers.iter() {
        server.cli(&["HSET", STATE, "v", "2"]);
    }
    let urls = servers.urls();
    assert_refused(options("a", &urls), &["newer-state", "upgrade this one"]);
    // A node that is away may be the one that makes a quorum: it is waited for, and then all have answered.
    servers[2].kill();
    let replica = options("a", &urls).start();
    eventually("two nodes are of no use", SOON, || {
        let lines = told(&replica);
        (lines.iter().filter(|line| line.text("kind") == "newer-state").count() == 2).then_some(())
    });
    stays_true("it waits for the third", TTL * 2, || replica.is_running() && replica.readyz().0 == 503);
    servers[2].start_again(Data::Lost);
    assert_eq!(replica.wait_exit(SOON), 64);
    for server in servers.iter() {
        assert!(server.cli(&["GET", LOCK]).is_nil());
    }
}

/// Answers the greeting as a server of this version, and whatever else with OK.
fn fake(version: &'static str, run: char) -> Fake {
    let run = run.to_string().repeat(40);
    Fake::start(move |call: &Call| match call.name.as_str() {
        "INFO" => Answer::info(version, &run, "master"),
        "EVAL" => Answer::bulk(&run),
        _ => Answer::ok(),
    })
}

#[test]
fn fake_servers_that_are_too_old_are_refused() {
    let fakes = [fake("4.0.14", 'a'), fake("3.2.0", 'b'), fake("2.8.24", 'c')];
    let urls: Vec<String> = fakes.iter().map(Fake::url).collect();
    assert_refused(options("a", &urls), &["unsupported", "the server is older than 5.0", &fakes[0].address()]);
}

/// What a user of ours must be allowed: the ACL line of README.
fn rights() -> Vec<&'static str> {
    let line = include_str!("../../README.md").lines().find(|line| line.starts_with("ACL SETUSER "));
    line.expect("README has the line").split(' ').filter(|word| word.starts_with('+')).collect()
}

/// Makes the user `u` with the rights but one.
fn allow(server: &Server, without: &str) {
    let user = ["ACL", "SETUSER", "u", "reset", "resetchannels", "on", ">p"];
    let keys = ["~job", "~{job}:redleader", "&redleader:job"];
    let rights: Vec<&str> = rights().into_iter().filter(|right| *right != without).collect();
    let said = server.cli(&[&user[..], &keys, &rights].concat());
    assert_eq!(said.text(), "OK");
}

fn acl_options(identity: &str, servers: &Servers) -> ReplicaOptions {
    options(identity, &servers.urls()).args(["--redis-username", "u"]).env("REDLEADER_REDIS_PASSWORD", "p")
}

#[test]
fn the_rights_of_the_readme_are_enough_and_each_missing_one_is_named() {
    let servers = Servers::start(3);
    servers.iter().for_each(|server| allow(server, ""));
    let replica = acl_options("a", &servers).start();
    replica.wait_elected(1, SOON);
    let waiting = acl_options("b", &servers).start();
    eventually("b knows who leads", SOON, || (waiting.leader_json()["holder"] == "a").then_some(()));
    replica.term();
    assert_eq!(replica.wait_exit(SOON), 0);
    waiting.wait_elected(1, SOON);
    let_time_pass("it extends", TTL);
    for server in servers.iter() {
        let refused = server.cli(&["ACL", "LOG"]);
        assert!(refused.list().is_empty(), "nothing is tried that is not allowed: {refused:?}");
    }
    waiting.term();
    assert_eq!(waiting.wait_exit(SOON), 0);

    for (without, named) in [
        ("+eval", "'eval'"),
        ("+info", "'info'"),
        ("+time", "(TIME)"),
        ("+get", "(GET)"),
        ("+hmget", "(HMGET)"),
        ("+hset", "(HSET)"),
    ] {
        for server in servers.iter() {
            server.cli(&["DEL", STATE]);
            allow(server, without);
        }
        let replica = acl_options("a", &servers).start();
        assert_degraded(&replica, &servers.addresses(), "noperm", named);
        assert!(told(&replica)[0].text("reason").contains("see the ACL line in the README"));
    }
}

#[test]
fn a_missing_right_is_named_before_7_0_and_on_valkey() {
    for (flavour, named) in [(Flavour::Redis62, "(TIME)"), (Flavour::Valkey9, "'time'")] {
        let servers = Servers::of(flavour, 1);
        allow(&servers[0], "+time");
        let replica = acl_options("a", &servers).start();
        assert_degraded(&replica, &servers.addresses(), "noperm", named);
        allow(&servers[0], "+get");
        let replica = acl_options("a", &servers).start();
        let named = if flavour == Flavour::Redis62 { "(GET)" } else { "'get'" };
        assert_degraded(&replica, &servers.addresses(), "noperm", named);
    }
}

#[test]
fn c9_the_quorum_is_of_the_configured_nodes() {
    let servers = Servers::start(5);
    let paths: Vec<Proxy> = servers.addresses().iter().map(|address| Proxy::start(address)).collect();
    for path in &paths[2..] {
        path.set(Mode::Refuse);
    }
    let through: Vec<String> = paths.iter().map(Proxy::url).collect();
    let a = options("a", &through).start();
    eventually("a sees two nodes", SOON, || (a.metric("quorum_reachable", &[]) >= 2.0).then_some(()));
    stays_true("two of five are no quorum though the others never were there", TTL * 4, || !a.leads());
    assert!(a.metric("quorum_required", &[]) == 3.0);
    assert!(a.readyz().1.contains("2 of 5 nodes can vote, 3 required"), "{:?}", a.readyz());
    let b = options("b", &servers.urls()).start();
    b.wait_elected(1, SOON);
    assert!(b.metric("quorum_required", &[]) == 3.0);
    let meter = OverlapMeter::of([&a, &b]);
    stays_true("a does not lead beside b", TTL * 3, || !a.leads());
    for path in &paths {
        path.set(Mode::Pass);
    }
    b.term();
    assert_eq!(b.wait_exit(SOON), 0);
    a.wait_elected(1, SOON);
    let (overlaps, _) = meter.finish();
    assert_eq!(overlaps, 0);
    Judge::check_replicas([&a, &b]).assert_clean("C9, a quorum of the configured nodes");
}

#[test]
fn c11_an_even_number_of_nodes_is_warned_about() {
    for (count, failures, better) in [(2, "0 failures are", "3 nodes would tolerate 1"), (4, "1 failure is", "5 nodes")]
    {
        let servers = Servers::start(count);
        let replica = options("a", &servers.urls()).start();
        let line = replica.wait_for_message("configuration", 1, SOON);
        assert_eq!(line.text("level"), "WARN");
        let reason = line.text("reason");
        assert!(reason.contains(&format!("so {failures} tolerated")) && reason.contains(better), "{reason}");
    }
}

#[test]
fn c11_half_of_the_nodes_gone_is_no_leader_and_no_crash() {
    for count in [2, 4] {
        let mut servers = Servers::start(count);
        let replica = options("a", &servers.urls()).start();
        replica.wait_elected(1, SOON);
        servers.iter_mut().take(count / 2).for_each(Server::kill);
        replica.wait_for_message("stepped down", 1, SOON);
        stays_true("half is no quorum, and the process is well", TTL * 3, || {
            !replica.leads() && replica.get("/livez").is_ok_and(|response| response.status == 200)
        });
        let says = format!("{} of {count} nodes can vote, {} required", count / 2, count / 2 + 1);
        assert!(replica.readyz().1.contains(&says), "{:?}", replica.readyz());
        assert!(replica.is_running());
    }
}

/// The track of one of several with the same identity, told apart by its process.
fn track(replica: &Replica) -> Track {
    let mut track = replica.track();
    for term in &mut track.terms {
        term.who.clone_from(&track.who);
    }
    track
}

#[test]
fn c25_two_with_one_identity_are_two() {
    let servers = Servers::start(3);
    let twin = || options("twin", &servers.urls()).env("HOSTNAME", "twin").env("POD_NAME", "twin");
    let (a, b) = (twin().start(), twin().start());
    let meter = OverlapMeter::of([&a, &b]);
    let first = eventually("one of them leads", SOON, || [&a, &b].into_iter().find(|replica| replica.leads()));
    let second = if first.pid() == a.pid() { &b } else { &a };
    stays_true("only one does", TTL * 3, || !second.leads());
    first.term();
    assert_eq!(first.wait_exit(SOON), 0);
    second.wait_elected(1, SOON);
    let (overlaps, _) = meter.finish();
    assert_eq!(overlaps, 0);
    Judge::check(&[&a, &b].map(track)).assert_clean("C25, two with one identity");
}

#[test]
fn c25_a_restarted_replica_does_not_inherit_its_leadership() {
    let servers = Servers::start(3);
    let first = options("same", &servers.urls()).start();
    let before = first.wait_elected(1, SOON);
    stays_true("it extends", TTL, || first.leads());
    let dead = first.kill9();
    let left: i64 = servers.iter().map(|server| server.cli(&["PTTL", LOCK]).int().unwrap()).min().unwrap();
    let again = options("same", &servers.urls()).start();
    let after = again.wait_elected(1, SOON);
    assert!(after.number("token") > before.number("token"), "a new leadership, not the old one");
    let waited = i64::try_from(after.number("boot_ms").unwrap() - dead).unwrap();
    // A quorum's keys have to run out first; the harness read them some milliseconds after the kill.
    assert!(waited >= left - 100, "waited {waited} ms for keys with {left} ms left");
    Judge::check(&[&first, &again].map(track)).assert_clean("C25, restarted with its identity");
}
