//! What a node's address leads to changes: to a promoted replica, to an older process, to a server that is a node
//! already. One leadership lasts over it, or ends by the rules, and nobody else leads meanwhile.

use std::time::Duration;

use crate::support::{
    Flavour, Judge, Proxy, Replica, ReplicaOptions, Server, ServerOptions, Servers, eventually, figure, stays_true,
};

const SOON: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(2);
const LOCK: &str = "addresses";

/// A leader and a standby that reach three servers at addresses that can be led elsewhere.
struct Scene {
    servers: Servers,
    names: Vec<Proxy>,
    a: Replica,
    b: Replica,
}

impl Scene {
    fn start() -> Self {
        let servers = Servers::start(3);
        let names: Vec<Proxy> = servers.iter().map(|server| Proxy::start(&server.address())).collect();
        let urls: Vec<String> = names.iter().map(Proxy::url).collect();
        let start = |who: &str| ReplicaOptions::new(LOCK, who, &urls).args(["--ttl", "2s"]).start();
        let a = start("a");
        a.wait_elected(1, SOON);
        let b = start("b");
        let scene = Self { servers, names, a, b };
        eventually("b knows who leads", SOON, || (scene.b.leader_json()["holder"] == "a").then_some(()));
        scene.wait_vote(0, "granted");
        scene
    }

    fn vote(&self, node: usize) -> String {
        self.a.leader_json()["nodes"][node]["vote"].as_str().unwrap_or_default().to_owned()
    }

    fn quarantine_ms(&self, node: usize) -> u64 {
        self.a.leader_json()["nodes"][node]["quarantineMs"].as_u64().unwrap_or(0)
    }

    fn wait_vote(&self, node: usize, vote: &str) {
        eventually(&format!("the vote of node {node} is {vote}"), SOON, || (self.vote(node) == vote).then_some(()));
    }

    /// Leads a name elsewhere: the leader counts no vote there until a quarantine has passed, and is not disturbed.
    fn lead_elsewhere(&self, node: usize, to: &str) {
        let token = self.a.leader_json()["token"].clone();
        self.names[node].redirect(to);
        eventually("its vote does not count", SOON, || (self.quarantine_ms(node) > 0).then_some(()));
        eventually("its vote counts again", SOON, || {
            assert!(self.a.leads(), "one node of three is not felt");
            (self.quarantine_ms(node) == 0 && self.vote(node) == "granted").then_some(())
        });
        assert_eq!(self.a.leader_json()["token"], token);
        assert!(self.b.logged("elected").is_empty());
    }

    /// The leader leaves, the other follows, and no two led at once.
    fn hand_over(&self, name: &str) {
        self.a.term();
        self.b.wait_elected(1, SOON);
        Judge::check_replicas([&self.a, &self.b]).assert_clean(name);
    }
}

#[test]
fn a_replica_that_is_promoted_at_a_nodes_address_waits_a_quarantine() {
    let scene = Scene::start();
    let primary = &scene.servers[0];
    primary.cli(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    let replica = Server::start(Flavour::Redis70, ServerOptions::new());
    replica.cli(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    eventually("it has the primary's data", SOON, || (!replica.cli(&["GET", LOCK]).is_nil()).then_some(()));
    primary.stop();
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    scene.lead_elsewhere(0, &replica.address());
    // The first time was when the nodes were new to the lock.
    let name = scene.names[0].address();
    let told = scene.a.logged("node in quarantine").iter().filter(|line| line.text("node") == name).count();
    assert_eq!(told, 2);
    figure("a promoted replica", "its vote was void for a quarantine, and one leadership lasted over it");
    scene.hand_over("a promoted replica");
    primary.cont();
}

#[test]
fn an_older_process_back_at_a_nodes_address_has_no_vote_where_the_change_was_seen() {
    let scene = Scene::start();
    let newer = Server::start(Flavour::Redis70, ServerOptions::new());
    scene.lead_elsewhere(0, &newer.address());
    // The older one never saw the newer one's grants, and its marker is old enough: only who saw both knows better.
    scene.lead_elsewhere(0, &scene.servers[0].address());
    scene.hand_over("an older process back at its address");
}

#[test]
fn a_name_that_comes_to_mean_another_node_gives_no_second_vote() {
    let scene = Scene::start();
    let token = scene.a.leader_json()["token"].clone();
    scene.names[0].redirect(&scene.servers[1].address());
    let line = scene.a.wait_for_log("that two names are one server", SOON, |line| line.text("kind") == "same-node");
    // The name that was led elsewhere, and not the one whose vote it would cost.
    assert_eq!(line.text("node"), scene.names[0].address(), "{:?}", line.json);
    stays_true("it leads by the two servers that are left", TTL * 2, || scene.a.leads());
    assert_eq!(scene.a.leader_json()["token"], token);
    scene.servers[2].stop();
    scene.a.wait_for_message("stepped down", 1, SOON);
    stays_true("one server at two names is no quorum", TTL * 2, || !scene.a.leads() && !scene.b.leads());
    scene.servers[2].cont();
    eventually("somebody leads", SOON, || [&scene.a, &scene.b].into_iter().any(Replica::leads).then_some(()));
    let report = Judge::check_replicas([&scene.a, &scene.b]);
    assert!(report.overlaps.is_empty() && report.tokens_increase, "{report}");
    figure("two names for one server", &report.to_string());
}
