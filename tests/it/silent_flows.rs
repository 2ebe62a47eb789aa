//! C33, C35, C37, C39: connections on which packets vanish, and ways that are slow.

use std::collections::BTreeSet;
use std::time::Duration;

use redleader::redsync::reply::{Kind, Outcome};

use crate::asker::{Asker, look, settings};
use crate::support::{
    Certificates, Data, Direction, Flavour, Hold, Mode, Network, Proxy, Replica, ReplicaOptions, Server, ServerOptions,
    Servers, boot_ms, eventually, figure, let_time_pass, stays_true,
};

const SOON: Duration = Duration::from_secs(20);

/// Three servers that are machines on another network, and a leader there.
struct PowerCut {
    network: Network,
    servers: Vec<Server>,
    leader: Replica,
}

impl PowerCut {
    /// The defaults of a ttl of 6 s: renewed, and dialled again, every 1.5 s; as long to connect; 300 ms for a node. The
    /// field's 60 s of silence stand for "longer than every time limit of ours, and shorter than the quarter of an hour
    /// for which a kernel sends again"; 7 s are that, too.
    const SETTINGS: [&'static str; 2] = ["--ttl", "6s"];
    const RETRY: Duration = Duration::from_millis(1500);
    const SILENCE: Duration = Duration::from_secs(7);

    fn start() -> Self {
        let network = Network::start();
        let bind = network.ours();
        let options = || ServerOptions::new().args(["--bind", "127.0.0.1", &bind, "--protected-mode", "no"]);
        let servers: Vec<Server> = (0..3).map(|_| Server::start(Flavour::Redis70, options())).collect();
        let urls: Vec<String> = servers.iter().map(|server| format!("redis://{bind}:{}", server.port())).collect();
        let leader = ReplicaOptions::new("c33", "a", &urls).args(Self::SETTINGS).network(&network).start();
        leader.wait_elected(1, SOON);
        let scene = Self { network, servers, leader };
        scene.wait_up(&[0, 1, 2], SOON);
        scene
    }

    fn node(&self, server: usize) -> String {
        format!("{}:{}", self.network.ours(), self.servers[server].port())
    }

    fn is_up(&self, server: usize) -> bool {
        self.leader.metric("node_up", &[("node", &self.node(server))]) == 1.0
    }

    fn wait_up(&self, servers: &[usize], deadline: Duration) {
        eventually("the nodes are up", deadline, || servers.iter().all(|server| self.is_up(*server)).then_some(()));
    }

    /// Local ports of the open connections to a server, by the replica's own kernel.
    fn ports(&self, server: usize) -> BTreeSet<u16> {
        let all = self.network.connections(self.servers[server].port());
        all.into_iter().filter(|(_, state)| state == "01").map(|(port, _)| port).collect()
    }

    /// Cuts the power of these, gives it back after a while with servers that were started anew, and checks what the
    /// replica made of it.
    fn cut(&mut self, nodes: &[usize]) {
        let before: Vec<_> = nodes.iter().map(|node| self.ports(*node)).collect();
        let cut_at = boot_ms();
        for node in nodes {
            self.network.drop_port(self.servers[*node].port());
        }
        for node in nodes {
            let address = self.node(*node);
            let line = self.leader.wait_for_log("that the command has timed out", SOON, |line| {
                let says = line.message() == "node has no vote" && line.text("node") == address;
                says && line.read_boot_ms >= cut_at
            });
            assert_eq!(line.text("kind"), "timeout", "{:?}", line.json);
            let after = line.read_boot_ms - cut_at;
            // The next extend is 1.5 s away at most, and a node may take 300 ms.
            assert!(after < 5 * 1800, "told after {after} ms");
        }
        eventually("the dead connections are closed", Self::SILENCE, || {
            // One that only listens is given up when the node is reached again: until then nothing hangs on it.
            let is_gone = |(node, ports): (&usize, &BTreeSet<u16>)| self.ports(*node).intersection(ports).count() <= 1;
            nodes.iter().zip(&before).all(is_gone).then_some(())
        });
        let silent = Duration::from_millis(boot_ms() - cut_at);
        let_time_pass("longer than every time limit", Self::SILENCE.saturating_sub(silent));
        for node in nodes {
            assert!(!self.is_up(*node));
            self.servers[*node].restart(Data::Lost);
            self.network.pass_port(self.servers[*node].port());
        }
        let passes = boot_ms();
        self.wait_up(nodes, SOON);
        let took = boot_ms() - passes;
        eventually("the connections that only listen are new, too", SOON, || {
            nodes.iter().zip(&before).all(|(node, ports)| self.ports(*node).is_disjoint(ports)).then_some(())
        });
        figure("C33", &format!("{} of 3 nodes without power for 7 s; up again {took} ms after it", nodes.len()));
        assert!(u128::from(took) <= (Self::RETRY * 2).as_millis(), "{took} ms; two retry periods are 3,000 ms");
        for (node, ports) in nodes.iter().zip(&before) {
            let new = self.ports(*node);
            assert!(!new.is_empty() && new.is_disjoint(ports), "{ports:?} before, {new:?} after");
        }
    }
}

#[test]
fn c33_a_node_whose_power_is_cut_is_dialled_anew_and_comes_back_as_root() {
    let mut scene = PowerCut::start();
    scene.cut(&[2]);
    assert_eq!(scene.leader.logged("elected").len(), 1);
    assert!(scene.leader.leads(), "one node of three was not felt");
    scene.cut(&[0, 1]);
    let end = scene.leader.wait_for_message("stepped down", 1, SOON);
    assert_eq!(end.text("reason"), "renew-timeout");
    scene.leader.wait_elected(2, SOON);
}

#[test]
fn c35_a_connection_is_made_though_it_takes_longer_than_a_command_may() {
    const ONE_WAY: Duration = Duration::from_millis(350);
    let certificates = Certificates::generate();
    let options = || ServerOptions::new().tls(&certificates).password("S3cr3t");
    let servers: Vec<Server> = (0..3).map(|_| Server::start(Flavour::Redis70, options())).collect();
    let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(&server.address())).collect();
    proxies.iter().for_each(|proxy| proxy.delay(ONE_WAY));
    let port = |proxy: &Proxy| proxy.address().rsplit(':').next().unwrap().to_owned();
    let urls: Vec<String> = proxies.iter().map(|proxy| format!("rediss://localhost:{}", port(proxy))).collect();
    let ca = certificates.ca();
    let limits = ["--ttl", "6s", "--node-timeout", "500ms", "--connect-timeout", "5s"];
    let replica = ReplicaOptions::new("c35", "a", &urls).args(limits).args(["--log-level", "debug"]);
    let replica = replica.args(["--redis-ca-file", ca.to_str().unwrap()]).env("REDLEADER_REDIS_PASSWORD", "S3cr3t");
    let replica = replica.start();
    for proxy in &proxies {
        let node = format!("localhost:{}", port(proxy));
        let line = replica.wait_for_log("that the node is connected", SOON, |line| {
            line.message() == "connected" && line.text("node") == node
        });
        let took = line.number("elapsed_ms").unwrap();
        figure("C35", &format!("connected after {took} ms; a command may take 500 ms"));
        // One round trip for TLS, one for AUTH and the first questions.
        assert!(took >= 4 * 350, "{took} ms");
    }
    // A command is bounded by its own limit: nothing is answered in time, until the way is quicker.
    replica.wait_for_log("that an ask has timed out", SOON, |line| line.text("kind") == "timeout");
    assert!(replica.logged("elected").is_empty());
    proxies.iter().for_each(|proxy| proxy.delay(Duration::from_millis(50)));
    replica.wait_elected(1, SOON);
}

#[test]
fn c37_a_standby_whose_subscriptions_are_silent_takes_over_by_looking() {
    const TTL: u64 = 2000;
    let servers = Servers::start(3);
    let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(&server.address())).collect();
    let start = |who: &str, urls: &[String]| {
        ReplicaOptions::new("c37", who, urls).args(["--ttl", "2s", "--node-timeout", "450ms"]).start()
    };
    let leader = start("a", &servers.urls());
    leader.wait_elected(1, SOON);
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let standby = start("b", &urls);
    eventually("b listens and knows who leads", SOON, || {
        let listens = servers.listening("c37").iter().all(|count| *count == 2);
        (listens && standby.leader_json()["holder"] == "a").then_some(())
    });
    // Whatever is told to a subscriber is lost on its way, and so is all that comes behind it.
    let lost: Vec<Hold> = proxies.iter().map(|proxy| proxy.hold(Direction::Reply, b"redleader:c37")).collect();
    leader.term();
    let released = leader.wait_for_message("stepped down", 1, SOON).number("boot_ms").unwrap();
    let won = standby.wait_elected(1, SOON).number("boot_ms").unwrap();
    assert!(lost.iter().all(Hold::is_caught), "a message got through");
    let gap = won.saturating_sub(released);
    figure("C37", &format!("the standby leads {gap} ms after a release that it never heard of; ttl 2 s"));
    // It looks every ttl/2, give or take a fifth.
    assert!(gap <= TTL * 6 / 10 + 1000, "{gap} ms");
}

#[test]
fn c39_a_second_connection_times_out_exactly_as_the_first() {
    const NODE_TIMEOUT: Duration = Duration::from_millis(300);
    const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
    let server = Server::start(Flavour::Redis70, ServerOptions::new());
    let proxy = Proxy::start(&server.address());
    let mut asker = Asker::connected("c39", settings(&proxy.url()));
    let mut measured = Vec::new();
    for connection in ["first", "second", "third"] {
        assert!(matches!(asker.ask(look()), Outcome::Answer(_)));
        proxy.set(Mode::Blackhole);
        let round = asker.send(0, look());
        let reply = asker.reply(round);
        assert_eq!(reply.outcome, Outcome::Failed(Kind::Timeout));
        let command = reply.received.since(reply.sent);
        // The dial that follows gets no answer either.
        assert_eq!(asker.down(), Kind::Timeout);
        let dialling = boot_ms();
        assert_eq!(asker.down(), Kind::Timeout);
        let dial = Duration::from_millis(boot_ms() - dialling);
        measured.push((command, dial));
        figure(
            "C39",
            &format!("{connection} connection: a command times out after {command:?}, a dial after {dial:?}"),
        );
        proxy.set(Mode::Pass);
        asker.wait_up();
        // The connection that is used next is one that was made after a reset.
        proxy.reset();
        asker.wait_up();
    }
    let late = Duration::from_millis(200);
    for (command, dial) in measured {
        assert!(command >= NODE_TIMEOUT - Duration::from_millis(5) && command < NODE_TIMEOUT + late, "{command:?}");
        assert!(dial >= CONNECT_TIMEOUT - Duration::from_millis(50) && dial < CONNECT_TIMEOUT + late, "{dial:?}");
    }
    assert!(matches!(asker.ask(look()), Outcome::Answer(_)));
    stays_true("one connection for asks, one for the wake-up", Duration::from_millis(100), || proxy.open().len() <= 2);
}
