//! A leader that stands still for longer than its leadership lasts: another leads meanwhile, and the first thing that
//! it says when it goes on is that it does not lead.

use std::time::Duration;

use crate::candidates::{Candidates, PATIENCE, Plan};
use crate::support::{
    Direction, Flavour, HttpConnection, MonitorLine, Proxy, Servers, boot_ms, eventually, figure, let_time_pass,
    stays_true,
};

const TTL: Duration = Duration::from_secs(1);
const READYZ: &[u8] = b"GET /readyz HTTP/1.1\r\nHost: replica\r\n\r\n";

#[test]
fn a_stopped_leader_wakes_as_none_redis_7_0() {
    stops_and_goes_on(Flavour::Redis70, 3);
}

#[test]
fn a_stopped_leader_wakes_as_none_five_nodes() {
    stops_and_goes_on(Flavour::Redis70, 5);
}

#[test]
fn a_stopped_leader_wakes_as_none_redis_6_2() {
    stops_and_goes_on(Flavour::Redis62, 3);
}

#[test]
fn a_stopped_leader_wakes_as_none_valkey_9() {
    stops_and_goes_on(Flavour::Valkey9, 3);
}

fn stops_and_goes_on(flavour: Flavour, nodes: usize) {
    let name = format!("E5 {}, {nodes} nodes", flavour.as_str());
    let servers = Servers::of(flavour, nodes);
    // One path of every candidate passes a proxy, so that an extend can be held there.
    let proxies: Vec<Proxy> = (0..3).map(|_| Proxy::start(&servers[0].address())).collect();
    let path = |proxy: &Proxy| [vec![proxy.url()], servers.urls()[1..].to_vec()].concat();
    let paths: Vec<Vec<String>> = proxies.iter().map(path).collect();
    let plan = Plan::new("stopped-leader", TTL).quick_to_connect();
    let ttl = TTL.as_millis().to_string();
    let mut candidates = Candidates::start(plan.clone(), &paths);
    candidates.witness();
    let led = candidates.wait_leader(0, PATIENCE);
    let owner = candidates.wait_owner(led, servers.iter());
    let mut open = candidates.replica(led.seat).connect().expect("it answers");
    assert_eq!(open.get("/readyz").expect("it answers").status, 200);

    // Its next extend is on its way when it stops.
    let hold = proxies[led.seat].hold(Direction::Request, owner.as_bytes());
    hold.caught(PATIENCE);
    let stopped = boot_ms();
    candidates.replica(led.seat).stop();
    let other = candidates.wait_leader(led.token, PATIENCE);
    assert_ne!(other.seat, led.seat, "{name}: a stopped process was elected");
    assert!(other.token > led.token, "{name}: the token did not grow");
    let left = stopped + u64::try_from((TTL * 3).as_millis()).unwrap();
    let_time_pass("three ttl", Duration::from_millis(left.saturating_sub(boot_ms())));
    let others = candidates.wait_owner(other, servers.iter());

    // Both questions are there before it wakes: what it says to them is the first that it says.
    let mut new = HttpConnection::connect(&candidates.replica(led.seat).address(), PATIENCE).expect("it listens");
    open.send(READYZ).expect("the connection is open");
    new.send(READYZ).expect("the connection is open");
    let monitors: Vec<_> = servers.iter().map(|server| server.monitor()).collect();
    candidates.replica(led.seat).cont();
    for (connection, which) in [(&mut open, "open"), (&mut new, "new")] {
        let first = connection.read_response(false).expect("it answers");
        assert_eq!(first.status, 503, "{name}: the first answer on the {which} connection: {}", first.body);
    }
    // The extend arrives at last, long after its leadership.
    let late =
        proxies[led.seat].seen().into_iter().rfind(|seen| seen.has(&owner) && seen.has(&ttl)).expect("it was held");
    hold.release();
    eventually("the late extend is executed", PATIENCE, || {
        // A release carries the owner too, but no ttl.
        let ran = |line: &MonitorLine| !line.is_script() && line.args.contains(&owner) && line.args.contains(&ttl);
        monitors[0].lines().iter().any(ran).then_some(())
    });
    stays_true(&format!("{name}: all nodes hold the other's key"), TTL * 2, || {
        let_time_pass("between two looks", TTL / 20);
        servers.holding(&plan.lock, &others) == nodes
    });
    for (node, monitor) in monitors.iter().enumerate() {
        let touched = |name: &str| name == "DEL" || name == "SET";
        let lines = monitor.lines();
        let wrong = lines.iter().find(|line| line.is_script() && touched(&line.name) && line.args[0] == plan.lock);
        assert!(wrong.is_none(), "{name}: the key was touched on node {node}: {wrong:?}");
    }
    let replica = candidates.replica(led.seat);
    let end = replica.wait_for_message("stepped down", 1, PATIENCE);
    assert_eq!(end.number("token"), Some(led.token));
    assert_eq!(candidates.leader().map(|leader| leader.token), Some(other.token), "{name}: leadership changed again");
    figure(
        &name,
        &format!(
            "another led {} ms after the stop; stopped for {} ms; tokens grew by {}; late extend {} ms old",
            other.elected - stopped,
            left - stopped,
            other.token - led.token,
            boot_ms() - late.boot_ms
        ),
    );
    candidates.replica(other.seat).term();
    candidates.wait_leader(other.token, PATIENCE);
    candidates.assert_clean(&name);
}
