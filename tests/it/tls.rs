//! Ways to the nodes, with the real binary: TLS, unix sockets, IPv6, users, and a password that is rotated.

use std::path::Path;
use std::time::Duration;

use crate::support::{
    Certificates, Data, Flavour, Replica, ReplicaOptions, Server, ServerOptions, Servers, TempDir, eventually,
    stays_true,
};

const SOON: Duration = Duration::from_secs(10);
const TTL: Duration = Duration::from_secs(1);

fn options<S: AsRef<str>>(urls: &[S]) -> ReplicaOptions {
    ReplicaOptions::new("job", "a", urls).args(["--ttl", "1s", "--node-timeout", "200ms"])
}

fn servers(count: usize, options: impl Fn() -> ServerOptions) -> Vec<Server> {
    (0..count).map(|_| Server::start(Flavour::Redis70, options())).collect()
}

fn urls(servers: &[Server]) -> Vec<String> {
    servers.iter().map(Server::url).collect()
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// It leads, and the extends that keep it leading work too.
#[track_caller]
fn assert_leads(replica: &Replica) {
    let elected = replica.wait_elected(1, SOON);
    stays_true("it leads on", TTL * 2, || replica.leads());
    assert_eq!(replica.leader_json()["token"].as_u64(), elected.number("token"));
}

/// Every node is told of with this kind, and nobody leads.
#[track_caller]
fn assert_all_fail(replica: &Replica, count: usize, kind: &str, says: &str) {
    let lines = eventually("every node is told of", SOON, || {
        let lines = replica.logged("node has no vote");
        // An ask that waits for the first dial may time out before the dial says more.
        let lines: Vec<_> = lines.into_iter().filter(|line| line.text("kind") != "timeout").collect();
        (lines.len() >= count).then_some(lines)
    });
    for line in &lines {
        assert_eq!(line.text("kind"), kind, "{:?}", line.json);
        assert!(line.text("reason").contains(says), "{says:?} in {:?}", line.json);
    }
    let (status, reason) = replica.readyz();
    assert_eq!(status, 503);
    assert!(reason.contains(&format!(": {kind} (")), "{reason}");
    assert!(replica.is_running());
}

#[test]
fn a_private_authority_and_a_client_certificate() {
    let certificates = Certificates::generate();
    let servers = servers(3, || ServerOptions::new().tls(&certificates).args(["--tls-auth-clients", "yes"]));
    let (ca, cert, key) = (certificates.ca(), certificates.client_cert(), certificates.client_key());
    let with_ca = || options(&urls(&servers)).args(["--redis-ca-file", path(&ca)]);
    let replica = with_ca().args(["--redis-cert-file", path(&cert), "--redis-key-file", path(&key)]).start();
    assert_leads(&replica);
    // Hand-over is told over a second encrypted connection.
    let channels = servers[0].cli(&["PUBSUB", "NUMSUB", "redleader:job"]);
    assert_eq!(channels.list()[1].int(), Some(1), "{channels:?}");
    replica.term();
    assert_eq!(replica.wait_exit(SOON), 0);

    let nobody = with_ca().start();
    eventually("every node is told of", SOON, || (nobody.logged("node has no vote").len() >= 3).then_some(()));
    stays_true("without a certificate nobody gets in", TTL, || !nobody.leads());
}

#[test]
fn another_authority_is_not_trusted() {
    let (certificates, others) = (Certificates::generate(), Certificates::generate());
    let servers = servers(3, || ServerOptions::new().tls(&certificates));
    let replica = options(&urls(&servers)).args(["--redis-ca-file", path(&others.ca())]).start();
    assert_all_fail(&replica, 3, "tls", "--redis-ca-file: invalid peer certificate");
    replica.term();
    assert_eq!(replica.wait_exit(SOON), 0);
    let replica = options(&urls(&servers)).start();
    assert_all_fail(&replica, 3, "tls", "invalid peer certificate");
    replica.term();
    assert_eq!(replica.wait_exit(SOON), 0);
    // The certificate is for names, and this is none of them.
    let by_other_name: Vec<String> =
        servers.iter().map(|server| format!("rediss://127.0.0.2:{}", server.port())).collect();
    let replica = options(&by_other_name).args(["--redis-ca-file", path(&certificates.ca())]).start();
    eventually("it is told of", SOON, || replica.logged("node has no vote").first().cloned());
    stays_true("nobody leads", TTL, || !replica.leads());
}

/// Every node is told of within the connect timeout of 500 ms: as the dial measured it, and on the test's own clock.
#[track_caller]
fn assert_told_in_time(replica: &Replica, hint: &str) {
    const SLACK: u64 = 250;
    let dials = replica.logged("no connection");
    assert!(dials.len() >= 3, "{dials:?}");
    for line in &dials {
        let elapsed = line.number("elapsed_ms").unwrap();
        assert!(elapsed < 500 + SLACK, "the connect timeout is 500 ms, and it took {elapsed} ms");
        assert!(line.text("text").contains(hint), "{hint:?} in {:?}", line.json);
    }
    for line in &dials[..3] {
        let after = line.read_boot_ms - replica.started_at();
        // The start of the process is in it, beside other tests.
        assert!(after < 500 + 4 * SLACK, "told {after} ms after the start");
    }
}

/// C141
#[test]
fn c141_either_scheme_at_the_wrong_port_is_told_within_the_connect_timeout_with_a_hint_at_it() {
    let in_time = ["--connect-timeout", "500ms", "--log-level", "debug"];
    let plain = Servers::start(3);
    let encrypted: Vec<String> = plain.urls().iter().map(|url| url.replace("redis://", "rediss://")).collect();
    let replica = options(&encrypted).args(in_time).start();
    assert_all_fail(&replica, 3, "tls", "check rediss:// against the server");
    assert_told_in_time(&replica, "does the server speak TLS there?");
    replica.term();
    assert_eq!(replica.wait_exit(SOON), 0);

    // The other way round: redis:// to an encrypted port.
    let certificates = Certificates::generate();
    let servers = servers(3, || ServerOptions::new().tls(&certificates));
    let urls: Vec<String> = servers.iter().map(|server| format!("redis://{}", server.address())).collect();
    let replica = options(&urls).args(in_time).start();
    assert_all_fail(&replica, 3, "connect", "check the address, the scheme");
    assert_told_in_time(&replica, "rediss://");
    replica.term();
    assert_eq!(replica.wait_exit(SOON), 0);
}

/// C141
#[test]
fn c141_either_scheme_at_one_wrong_port_of_three_does_not_prevent_a_leader() {
    let certificates = Certificates::generate();
    let plain = Servers::start(2);
    let tls = servers(2, || ServerOptions::new().tls(&certificates));
    let (plain_by_tls, tls_by_plain) =
        (format!("rediss://{}", plain[0].address()), format!("redis://{}", tls[0].address()));
    let ca = certificates.ca();
    for (urls, node, kind) in [
        ([tls[0].url(), tls[1].url(), plain_by_tls], plain[0].address(), "tls"),
        ([plain[0].url(), plain[1].url(), tls_by_plain], tls[0].address(), "connect"),
    ] {
        let replica = options(&urls).args(["--redis-ca-file", path(&ca)]).start();
        assert_leads(&replica);
        let lines = replica.logged("node has no vote");
        let lines: Vec<_> = lines.iter().filter(|line| line.text("kind") != "timeout").collect();
        let [line] = lines.as_slice() else { panic!("one line, not {lines:?}") };
        assert_eq!((line.text("node"), line.text("kind")), (node.as_str(), kind));
        replica.term();
        assert_eq!(replica.wait_exit(SOON), 0);
    }
}

#[test]
fn unix_sockets_ipv6_and_a_database_of_each() {
    let servers = servers(3, || ServerOptions::new().ipv6());
    let nodes = [
        format!("{}?db=3", servers[0].unix_url()),
        format!("redis://[::1]:{}/4", servers[1].port()),
        format!("redis://localhost:{}/5", servers[2].port()),
    ];
    let replica = options(&nodes).start();
    assert_leads(&replica);
    for (server, database) in servers.iter().zip(["3", "4", "5"]) {
        let mut client = server.client().unwrap();
        client.call(&["SELECT", database]).unwrap();
        let value = client.call(&["GET", "job"]).unwrap().text();
        assert!(value.starts_with("a:"), "database {database} of {} has {value:?}", server.address());
    }
    let names: Vec<String> = replica.leader_json()["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["node"].as_str().unwrap().to_owned())
        .collect();
    let socket = format!("{}/3", servers[0].socket().display());
    assert_eq!(names, [socket, format!("[::1]:{}/4", servers[1].port()), format!("localhost:{}/5", servers[2].port())]);
}

#[test]
fn a_user_of_the_url_goes_before_the_one_of_the_flags() {
    let servers = Servers::start(3);
    for server in servers.iter() {
        server.cli(&["ACL", "SETUSER", "default", "resetpass", ">nobody-knows"]);
    }
    // The default user has a password now; the harness knows no other way in.
    let servers_without: Vec<String> = servers.urls();
    let replica = options(&servers_without).start();
    assert_all_fail(&replica, 3, "auth", "NOAUTH");
    replica.term();
    replica.wait_exit(SOON);
    for server in servers.iter() {
        let mut client = server.client().unwrap();
        client.call(&["AUTH", "default", "nobody-knows"]).unwrap();
        for (user, password) in [("of-url", ">p1"), ("of-flags", ">p2")] {
            client.call(&["ACL", "SETUSER", user, "on", password, "~*", "&*", "+@all"]).unwrap();
        }
    }
    let mut mixed = servers.urls();
    mixed[0] = mixed[0].replace("://", "://of-url:p1@");
    let none: [&str; 0] = [];
    let replica = options(&none)
        .env("REDLEADER_REDIS", &mixed.join(","))
        .args(["--redis-username", "of-flags"])
        .env("REDLEADER_REDIS_PASSWORD", "p2")
        .start();
    assert_leads(&replica);
    for (server, user) in servers.iter().zip(["of-url", "of-flags", "of-flags"]) {
        let mut client = server.client().unwrap();
        client.call(&["AUTH", "default", "nobody-knows"]).unwrap();
        let clients = client.call(&["CLIENT", "LIST"]).unwrap().text();
        let count = clients.lines().filter(|line| line.contains(&format!("user={user} "))).count();
        assert!((1..=2).contains(&count), "{user}: {clients}");
    }
}

#[test]
fn a_rotated_password_is_read_at_each_connect_and_costs_no_leadership() {
    let servers = Servers::start(3);
    let mut clients: Vec<_> = servers.iter().map(|server| server.client().unwrap()).collect();
    let rotate = |clients: &mut Vec<crate::support::resp::Client>, password: &str| {
        for client in clients {
            client.call(&["CONFIG", "SET", "requirepass", password]).unwrap();
        }
    };
    rotate(&mut clients, "old");
    let directory = TempDir::new();
    let file = directory.write("password", "old\n");
    let replica = options(&servers.urls()).args(["--redis-password-file", path(&file)]).start();
    assert_leads(&replica);
    for password in ["new", "newer"] {
        directory.write("password", password);
        rotate(&mut clients, password);
        let before: f64 = replica.metric("extend_attempts_total", &[("outcome", "ok")]);
        for client in &mut clients {
            client.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
            client.call(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
        }
        stays_true("leadership is kept", TTL * 2, || replica.leads());
        let after = replica.metric("extend_attempts_total", &[("outcome", "ok")]);
        assert!(after > before, "it extends: {before} and then {after}");
    }
    assert_eq!(replica.logged("elected").len(), 1);
    assert!(replica.metric("node_up", &[]) == 3.0);
}

/// A user's password that is mounted as Kubernetes does it: the file is a link, which is replaced as a whole.
struct Mounted(TempDir);

impl Mounted {
    fn new(password: &str) -> Self {
        let mounted = Self(TempDir::new());
        mounted.swap(password);
        mounted
    }

    fn file(&self) -> std::path::PathBuf {
        self.0.join("password")
    }

    fn swap(&self, password: &str) {
        let content = self.0.write(&format!("of-{password}"), password);
        let link = self.0.join("next");
        std::os::unix::fs::symlink(content, &link).unwrap();
        std::fs::rename(link, self.file()).unwrap();
    }
}

fn acl(server: &Server, words: &[&str]) {
    let said = server.cli(&[&["ACL", "SETUSER", "u"], words].concat());
    assert_eq!(said.text(), "OK", "{words:?}");
}

/// Ends every connection of the user, as a failover or a proxy may.
fn kick(server: &Server) {
    server.cli(&["CLIENT", "KILL", "USER", "u"]);
}

fn connections(server: &Server) -> usize {
    server.cli(&["CLIENT", "LIST"]).text().lines().filter(|line| line.contains("user=u ")).count()
}

/// C113
#[test]
fn c113_credentials_that_are_rotated_node_by_node_cost_no_leadership() {
    let servers = Servers::start(3);
    let mounted = Mounted::new("first");
    servers.iter().for_each(|server| acl(server, &["on", ">first", "~*", "&*", "+@all"]));
    let file = mounted.file();
    let user = ["--redis-username", "u", "--redis-password-file", path(&file), "--log-level", "debug"];
    let replica = options(&servers.urls()).args(user).start();
    let token = replica.wait_elected(1, SOON).number("token");
    // The new password is allowed everywhere, the file is swapped, and the old one is taken away node by node.
    servers.iter().for_each(|server| acl(server, &[">second"]));
    mounted.swap("second");
    for server in servers.iter() {
        acl(server, &["<first"]);
        kick(server);
        eventually("it is back with the new password", SOON, || (connections(server) == 2).then_some(()));
        stays_true("leadership is kept", TTL, || replica.leads());
    }
    let refused = |replica: &Replica| {
        replica.logged("node has no vote").into_iter().filter(|line| line.text("kind") == "auth").collect::<Vec<_>>()
    };
    assert!(refused(&replica).is_empty(), "a node was asked with the old password: {:?}", refused(&replica));
    // A file that comes too late: the node is without its vote until then, and the others keep the leadership.
    acl(&servers[0], &["resetpass", ">third"]);
    kick(&servers[0]);
    let line = eventually("the wrong password is told", SOON, || refused(&replica).first().cloned());
    assert_eq!(line.text("node"), servers[0].address());
    for word in ["WRONGPASS", "--redis-password-file"] {
        assert!(line.text("reason").contains(word), "{word} in {:?}", line.json);
    }
    let tries = || replica.logged("no connection").iter().filter(|line| line.text("kind") == "auth").count();
    eventually("it is dialled again and again", SOON, || (tries() >= 4).then_some(()));
    let (tried, told) = (tries(), refused(&replica).len());
    assert!(told == 1, "{told} warnings for {tried} refused dials");
    assert!(replica.leads());
    acl(&servers[1], &[">third"]);
    acl(&servers[2], &[">third"]);
    mounted.swap("third");
    eventually("it is back", SOON, || (connections(&servers[0]) == 2).then_some(()));
    assert_eq!(replica.leader_json()["token"].as_u64(), token, "one leadership over all of it");
    assert_eq!(replica.logged("elected").len(), 1);
}

#[test]
fn a_rotated_certificate_is_read_at_each_connect() {
    let certificates = Certificates::generate();
    let mut servers = servers(1, || ServerOptions::new().tls(&certificates).args(["--tls-auth-clients", "yes"]));
    let directory = TempDir::new();
    let copy = |name: &str, from: &Path| {
        std::fs::copy(from, directory.join(name)).unwrap();
    };
    // An authority, certificate and key that the server does not know.
    let others = Certificates::generate();
    copy("ca", &others.ca());
    copy("cert", &others.client_cert());
    copy("key", &others.client_key());
    let [ca, cert, key] = ["ca", "cert", "key"].map(|name| directory.join(name));
    let files = ["--redis-ca-file", path(&ca), "--redis-cert-file", path(&cert), "--redis-key-file", path(&key)];
    let replica = options(&urls(&servers)).args(files).start();
    assert_all_fail(&replica, 1, "tls", "invalid peer certificate");
    copy("ca", &certificates.ca());
    copy("cert", &certificates.client_cert());
    copy("key", &certificates.client_key());
    replica.wait_elected(1, SOON);
    servers[0].restart(Data::Lost);
    replica.wait_elected(2, SOON);
}
