//! A majority of the nodes is gone: the leader steps down in time and says so, nothing is restarted, and the election goes
//! on by itself when they come back.

use std::time::Duration;

use crate::candidates::{Candidates, Led, PATIENCE, Plan};
use crate::support::{
    Data, Flavour, HttpConnection, Mode, Monitor, Proxy, Replica, Servers, boot_ms, eventually, figure, let_time_pass,
};

const TTL: Duration = Duration::from_secs(1);
/// What the way back may take beside a quarter of the ttl.
const BACK: Duration = Duration::from_secs(1);

#[test]
fn a_lost_majority_ends_leadership_in_time_and_comes_back_redis_7_0() {
    goes_and_comes_back(Flavour::Redis70, 3);
}

#[test]
fn a_lost_majority_ends_leadership_in_time_and_comes_back_five_nodes() {
    goes_and_comes_back(Flavour::Redis70, 5);
}

#[test]
fn a_lost_majority_ends_leadership_in_time_and_comes_back_redis_6_2() {
    goes_and_comes_back(Flavour::Redis62, 3);
}

#[test]
fn a_lost_majority_ends_leadership_in_time_and_comes_back_valkey_9() {
    goes_and_comes_back(Flavour::Valkey9, 3);
}

fn goes_and_comes_back(flavour: Flavour, nodes: usize) {
    let name = format!("E4 {}, {nodes} nodes", flavour.as_str());
    let gone = nodes / 2..nodes;
    let mut servers = Servers::of(flavour, nodes);
    let proxies: Vec<Proxy> = servers.addresses().iter().map(|address| Proxy::start(address)).collect();
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let plan = Plan::new("majority-down", TTL);
    let mut candidates = Candidates::start(plan.clone(), &[urls.clone(), urls.clone(), urls]);
    candidates.witness();
    let pids: Vec<u32> = candidates.replicas().map(Replica::pid).collect();
    let first = candidates.wait_leader(0, PATIENCE);

    // A partition: the nodes remember.
    let monitors: Vec<Monitor> = gone.clone().map(|node| servers[node].monitor()).collect();
    wait_one_extend(&monitors, &plan);
    let cut = || gone.clone().for_each(|node| proxies[node].set(Mode::Blackhole));
    steps_down_in_time(&name, "partition", &mut candidates, first, &plan, &monitors, cut);
    stays_down(&candidates, &plan);
    let healed = boot_ms();
    gone.clone().for_each(|node| proxies[node].set(Mode::Pass));
    let second = candidates.wait_leader(first.token, PATIENCE);
    let took = second.elected - healed;
    figure(&name, &format!("a leader {took} ms after the partition"));
    let most = (plan.ttl / 4 + BACK).as_millis();
    assert!(u128::from(took) <= most, "{name}: a leader {took} ms after the partition, {most} ms are the most");

    // A restart: they remember nothing.
    wait_one_extend(&monitors, &plan);
    let kill = || gone.clone().for_each(|node| servers[node].kill());
    steps_down_in_time(&name, "kill", &mut candidates, second, &plan, &monitors, kill);
    stays_down(&candidates, &plan);
    let returning = boot_ms();
    gone.clone().for_each(|node| servers[node].start_again(Data::Lost));
    let back = boot_ms();
    eventually("someone says that a quarantine is what it waits for", PATIENCE, || {
        candidates.replicas().any(|replica| replica.readyz().1.contains("quarantine")).then_some(())
    });
    let third = candidates.wait_leader(second.token, PATIENCE);
    let quarantine = u64::try_from(plan.quarantine().as_millis()).unwrap();
    figure(&name, &format!("a leader {} ms after an empty restart (quarantine {quarantine} ms)", third.elected - back));
    assert!(third.elected >= returning + quarantine, "{name}: elected before the quarantine was over");
    let most = quarantine + u64::try_from((plan.ttl / 4 + BACK).as_millis()).unwrap();
    assert!(third.elected <= back + most, "{name}: elected {} ms after the restart", third.elected - back);

    // Nobody was restarted; and the run has a hand-over, so that the judge has something to judge.
    assert_eq!(candidates.replicas().map(Replica::pid).collect::<Vec<_>>(), pids);
    assert!(candidates.replicas().all(Replica::is_running), "{name}: a process ended");
    candidates.replica(third.seat).term();
    candidates.wait_leader(third.token, PATIENCE);
    candidates.assert_clean(&name);
}

/// So that the leases of the nodes that go are fresh and known.
fn wait_one_extend(monitors: &[Monitor], plan: &Plan) {
    monitors.iter().for_each(Monitor::clear);
    eventually("all that go see an extend", PATIENCE, || {
        monitors.iter().all(|monitor| last_extend(monitor, plan).is_some()).then_some(())
    });
}

fn last_extend(monitor: &Monitor, plan: &Plan) -> Option<u64> {
    let lines = monitor.lines();
    let is_extend = |name: &str, args: &[String]| name == "PEXPIRE" && args.first() == Some(&plan.lock);
    lines.iter().rfind(|line| line.is_script() && is_extend(&line.name, &line.args)).map(|line| line.boot_ms)
}

/// Cuts off, and asserts that belief ends before the deadline: by the log, by what the nodes saw, by `/readyz`.
fn steps_down_in_time(
    name: &str,
    how: &str,
    candidates: &mut Candidates,
    led: Led,
    plan: &Plan,
    monitors: &[Monitor],
    cut: impl FnOnce(),
) {
    let mut probe = candidates.replica(led.seat).connect().expect("the leader answers");
    assert_eq!(probe.get("/readyz").expect("the leader answers").status, 200);
    cut();
    let (mut last_ready, mut valid_until) = (boot_ms(), 0);
    let refused = eventually("the leader is not ready any more", PATIENCE, || {
        valid_until = valid_until.max(validity(&mut probe));
        let asked = boot_ms();
        let is_ready = probe.get("/readyz").expect("the leader answers").status == 200;
        last_ready = if is_ready { asked } else { last_ready };
        (!is_ready).then_some(asked)
    });
    let stepped = eventually("it has stepped down", PATIENCE, || {
        let lines = candidates.replica(led.seat).logged("stepped down");
        lines.into_iter().find(|line| line.number("token") == Some(led.token))
    });
    let at = stepped.number("boot_ms").expect("it says when");
    // The quorum-th largest lease is the deadline: the latest of the nodes' that went, for too few are left without it.
    let extended = monitors.iter().filter_map(|monitor| last_extend(monitor, plan)).max().expect("they were extended");
    let by_nodes = extended + u64::try_from(plan.validity().as_millis()).unwrap();
    let told = stepped.read_boot_ms;
    figure(
        name,
        &format!(
            "{how}: stepped down {} ms before the deadline that /leader named, {} ms before the nodes' keys end; not \
             ready {} ms before it",
            valid_until.saturating_sub(at),
            (extended + u64::try_from(plan.ttl.as_millis()).unwrap()).saturating_sub(told),
            valid_until.saturating_sub(refused)
        ),
    );
    assert!(valid_until > 0, "{name} {how}: /leader named no deadline");
    assert!(at <= valid_until, "{name} {how}: stepped down at {at}, after the deadline {valid_until}");
    assert!(at <= by_nodes, "{name} {how}: stepped down at {at}, and the last extend was at {extended}");
    assert!(last_ready < valid_until, "{name} {how}: ready when asked at {last_ready}, deadline {valid_until}");
    assert!(told <= extended + u64::try_from(plan.ttl.as_millis()).unwrap(), "{name} {how}: told too late");
}

/// The deadline that `/leader` names, in boot time; 0 if it does not lead.
fn validity(connection: &mut HttpConnection) -> u64 {
    let body = connection.get("/leader").expect("the leader answers").body;
    let json: serde_json::Value = serde_json::from_str(&body).expect("/leader is JSON");
    json["validUntilBootMs"].as_u64().unwrap_or(0)
}

/// For two ttl nobody is ready, everybody is alive.
fn stays_down(candidates: &Candidates, plan: &Plan) {
    for _ in 0..20 {
        for replica in candidates.replicas() {
            let (status, reason) = replica.readyz();
            assert_eq!(status, 503, "{}: {reason}", replica.identity());
            assert_eq!(replica.get("/livez").expect("it answers").status, 200);
        }
        let_time_pass("nothing may change as time passes", plan.ttl / 10);
    }
}
