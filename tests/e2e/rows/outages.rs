//! An API server that is slow, throttles, hangs or refuses, and connections to it that have died without a word.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::audit::{self, audited, what};
use crate::cluster::{Cluster, seconds_since};
use crate::figures::figure;
use crate::pod::{
    address, failed_extends, leads_by, metric, name, next_of, of_name, pending, redleader, resign, role, token,
};
use crate::poller::Poller;
use crate::release::{LONG, PUBLISHED, Release};
use crate::rhythm::{Distances, Rhythm};
use crate::row::{Row, Stage};
use crate::rows::api::{STAND_BACK, tell};
use crate::wait::{boot_ms, eventually, stays_true};
use crate::wall::Wall;
use crate::way::{Way, Weather};

pub const ROWS: &[Row] = &[
    Row {
        name: "K3-slow",
        shows: "an API server whose answers take 4 s costs no extend and no leadership, and is told all within 10 s of its recovery",
        stage: Stage::Together,
        run: slow,
    },
    Row {
        name: "K3-weather",
        shows: "calls that stall, 429, 409, 500 and refused connections for 20 ttl do not reach the extends; then only the latest is told",
        stage: Stage::Together,
        run: weather,
    },
    Row {
        name: "K3-dead-flow",
        shows: "connections to the API server that died without a word are replaced, and the label is right within 30 s",
        stage: Stage::Together,
        run: dead_flow,
    },
];

/// A short ttl, and what a busy machine needs for an answer.
const TIMING: [&str; 2] = ["ttl=3s", "nodeTimeout=600ms"];
const TTL: Duration = Duration::from_secs(3);
/// From an extend to the next: ttl/4.
const INTERVAL_MILLIS: u64 = 750;
/// How long the steady state is watched, and the slow one: 26 extends at each node.
const WATCHED: Duration = Duration::from_secs(20);
/// An answer takes so long, of the 5 s that a publisher waits for it.
const SLOW: Duration = Duration::from_secs(4);

fn by_way<'a>(cluster: &'a Cluster, name: &str, way: &Way) -> Release<'a> {
    let mut release = Release::new(cluster, name, &[&PUBLISHED[..], &TIMING].concat());
    release.values.extend(way.values());
    release
}

fn slow(cluster: &Cluster) {
    let way = Way::open(cluster, 7443);
    let release = by_way(cluster, "k3-slow", &way);
    release.install();
    let leader = release.settle(3);
    release.until_right(&leader);
    let pods = release.pods();
    let pod = of_name(&pods, &leader);
    let steady = Extends::of(&release, pod);
    way.set(Weather::Slow(SLOW));
    let names: Vec<String> = pods.iter().map(name).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    // Somebody takes the labels away, so that there is something to tell.
    unlabel(&release, &all);
    let slow = Extends::of(&release, pod);
    assert_eq!(slow.token, steady.token, "one leadership");
    slow.judge(&steady, "answers of the API server after 4 s");
    eventually("the label is put right by a slow API server too", LONG, || {
        (release.role(&leader).as_deref() == Some("leader")).then_some(())
    });
    resign(redleader(&leader), STAND_BACK);
    let next = next_of(&pods, &[&leader]);
    unlabel(&release, &all);
    way.set(Weather::Fair);
    let back = boot_ms();
    release.until_right(&next);
    tell("API server slow, leadership moved", back);
    release.uninstall();
}

fn unlabel(release: &Release<'_>, pods: &[&str]) {
    release.cluster.kubectl(&[&["label", "-n", &release.name, "pods"], pods, &["redleader.dev/role-"]].concat());
}

/// What a leader's extends were like for a while.
struct Extends {
    token: Value,
    count: f64,
    mean: f64,
    distances: Distances,
}

impl Extends {
    fn of(release: &Release<'_>, pod: &Value) -> Self {
        let rhythm = Rhythm::of(release, pod);
        let token = token(pod).expect("it leads");
        let before = Counts::of(pod);
        stays_true("one leadership", WATCHED, || leads_by(pod, &token));
        let after = Counts::of(pod);
        assert_eq!(after.failed, before.failed, "an extend failed");
        let distances = rhythm.finish();
        let count = after.count - before.count;
        let mean = (after.sum - before.sum) / count * 1000.0;
        Self { token, count, mean, distances }
    }

    fn judge(&self, steady: &Self, what: &str) {
        let text = |of: &Self| format!("{} extends of {:.1} ms, {}", of.count, of.mean, tell_interval(&of.distances));
        figure(&format!("K3 {what}"), &format!("{}; before it {}", text(self), text(steady)));
        judge_interval(&self.distances);
        assert!((self.count - steady.count).abs() <= 2.0, "as many extends");
        assert!(self.mean < steady.mean + 50.0, "as quick extends");
    }
}

/// What may be added to the interval of extends.
const ADDED_MOST: f64 = 50.0;

fn judge_interval(found: &Distances) {
    let interval = INTERVAL_MILLIS as f64;
    let (p50, p99) = (found.percentile(50), found.percentile(99));
    assert!(p50 < interval + ADDED_MOST, "p50 {p50} ms");
    // What the kernel itself made the election wait for is not the API server's doing.
    let most = interval + ADDED_MOST + found.waited_within(INTERVAL_MILLIS);
    assert!(p99 < most, "p99 {p99} ms, at most {most} ms");
}

fn tell_interval(found: &Distances) -> String {
    let (p50, p99, waited) = (found.percentile(50), found.percentile(99), found.waited_within(INTERVAL_MILLIS));
    format!("every {p50:.0} ms, p99 {p99:.0} ms of {} (at most {waited:.0} ms without a CPU)", found.count())
}

/// What the leader counts of its extends.
struct Counts {
    count: f64,
    sum: f64,
    failed: BTreeMap<String, f64>,
}

impl Counts {
    fn of(pod: &Value) -> Self {
        Self {
            count: metric(pod, "extend_duration_seconds_count", &[]),
            sum: metric(pod, "extend_duration_seconds_sum", &[]),
            failed: failed_extends(pod),
        }
    }
}

/// Each weather, and for how many ttl.
const WEATHERS: [(Weather, u32); 5] = [
    (Weather::Stalled(Duration::from_secs(30)), 8),
    (Weather::Answered(429, 60), 4),
    (Weather::Answered(409, 0), 2),
    (Weather::Answered(500, 0), 2),
    (Weather::Refused, 4),
];

fn weather(cluster: &Cluster) {
    let way = Way::open(cluster, 7444);
    let release = by_way(cluster, "k3-weather", &way);
    release.install();
    let first = release.settle(3);
    release.until_right(&first);
    let pods = release.pods();
    let steady = Extends::of(&release, of_name(&pods, &first));
    let version = cluster.get(&release.pods_path("replica")).expect("pods")["metadata"]["resourceVersion"].clone();
    way.set(WEATHERS[0].0);
    let before = audited(&audit::log(cluster), &release.name, &release.name).len();
    resign(redleader(&first), STAND_BACK);
    let second = next_of(&pods, &[&first]);
    resign(redleader(&second), STAND_BACK);
    let leader = next_of(&pods, &[&first, &second]);

    lead_through(&release, &way, (of_name(&pods, &first), of_name(&pods, &leader)), &steady);
    judge_queue(&way, &pods);
    let reached = audited(&audit::log(cluster), &release.name, &release.name).split_off(before);
    assert!(!reached.iter().any(is_write), "the way is closed: {:?}", reached.iter().map(what).collect::<Vec<_>>());

    way.set(Weather::Fair);
    let back = boot_ms();
    release.until_right(&leader);
    tell("API server stalled, throttled and refused", back);
    stays_true("nothing old is told after it", OLD, || release.is_right(&leader).is_some());
    judge_told(&release, [&first, &second, &leader], &version, before);
    release.uninstall();
}

/// What a leader and one that has led are like in each weather.
fn lead_through(release: &Release<'_>, way: &Way, (stepped_down, pod): (&Value, &Value), steady: &Extends) {
    let routez = Poller::start(stepped_down, "/routez");
    let (began, ready) = (boot_ms(), Poller::start(pod, "/readyz"));
    let (rhythm, counts) = (Rhythm::of(release, pod), Counts::of(pod));
    let token = token(pod).expect("it leads");
    for (weather, ttls) in WEATHERS {
        way.set(weather);
        stays_true(&format!("it leads under {weather:?}"), TTL * ttls, || leads_by(pod, &token));
        assert_eq!(pending(pod), 1.0, "{weather:?}");
    }
    let led = seconds_since(began);
    assert!(led >= (TTL * 20).as_secs_f64());
    let (distances, after) = (rhythm.finish(), Counts::of(pod));
    assert_eq!(after.failed, counts.failed, "an extend failed");
    let (_, replies) = routez.finish();
    assert!(replies.iter().all(|reply| reply.status == 503), "it is labelled and does not lead: {replies:?}");
    let (_, replies) = ready.finish();
    assert!(replies.iter().all(|reply| reply.status == 200), "{replies:?}");
    let (now, before) = (tell_interval(&distances), tell_interval(&steady.distances));
    let text =
        format!("{led:.0} s of one leadership, extends {now}; before it {before}; {} times ready", replies.len());
    figure("K3 calls that stall, 429, 409, 500, refused connections", &text);
    judge_interval(&distances);
}

/// Label, condition, deletion cost, Lease, Event, predecessor, and the watch: what one replica can ask at a time.
const AT_A_TIME: usize = 7;

fn judge_queue(way: &Way, pods: &[Value]) {
    let asked: Vec<(usize, usize)> = pods.iter().map(|pod| way.asked_by(address(pod))).collect();
    let (most, ever) = (asked.iter().map(|of| of.0).max(), asked.iter().map(|of| of.1).sum::<usize>());
    let text = format!("at most {} of one replica at a time, {ever} of all three so far", most.unwrap_or_default());
    figure("K3 calls that stall, 429, 409, 500, refused connections: requests that wait", &text);
    assert!(most.is_some_and(|most| (1..=AT_A_TIME).contains(&most)), "{asked:?}");
}

/// So long a request whose answer never came could still be carried out.
const OLD: Duration = Duration::from_secs(6);
/// What is told once after it, and once more if it could be overtaken by an earlier request that nobody answered.
const TOLD_MOST: usize = 2;

/// By the whole history of the pods nothing but the latest was told, and by the audit log once or twice.
fn judge_told(release: &Release<'_>, [first, second, leader]: [&String; 3], version: &Value, before: usize) {
    let roles = history(release, version);
    let of = |pod: &String| roles.iter().filter(|(of, _)| of == pod).map(|(_, role)| role.as_str()).collect::<Vec<_>>();
    assert!(of(first).ends_with(&["standby"]) && !of(first).contains(&""), "{roles:?}");
    assert!(!of(second).contains(&"leader"), "it led and stepped down meanwhile: {roles:?}");
    assert!(of(leader).ends_with(&["leader"]), "{roles:?}");
    let lines = audited(&audit::log(release.cluster), &release.name, &release.name);
    let mut told = BTreeMap::new();
    for line in &lines[before..] {
        let pod = &line["user"]["extra"]["authentication.kubernetes.io/pod-name"][0];
        // What a successor takes back of its predecessors is its own affair.
        let is_own = line["objectRef"]["resource"] != "pods" || line["objectRef"]["name"] == *pod;
        if is_write(line) && is_own {
            *told.entry((pod.as_str().unwrap_or_default().to_owned(), what(line))).or_insert(0) += 1;
        }
    }
    let states = told.iter().filter(|((_, what), _)| what.as_str() != "create events");
    let most = states.map(|(_, count)| *count).max().expect("something is told");
    let writes: usize = told.values().sum();
    figure("K3 after it", &format!("{writes} writes of 3 replicas, each state at most {most} times"));
    assert!(most <= TOLD_MOST, "{told:?}");
}

fn is_write(line: &Value) -> bool {
    matches!(line["verb"].as_str(), Some("patch" | "create"))
}

/// Every role that the API server has had of any pod since this version, in order.
fn history(release: &Release<'_>, version: &Value) -> Vec<(String, String)> {
    let version = version.as_str().expect("a list has one");
    let path = format!("{}&watch=1&timeoutSeconds=1&resourceVersion={version}", release.pods_path("replica"));
    let (status, lines) = release.cluster.request("GET", &path, "").expect("the API server answers");
    assert_eq!(status, 200, "{lines}");
    let events = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let role_of = |event: &Value| role(&event["object"]).unwrap_or_default().to_owned();
    events.map(|event| (name(&event["object"]), role_of(&event))).collect()
}

/// Connections of all replicas die at the moment at which the leadership moves.
fn dead_flow(cluster: &Cluster) {
    let (release, first) = Release::up(cluster, "k3-dead-flow", &PUBLISHED, 3);
    release.until_right(&first);
    let pods = release.pods();
    let walls: Vec<(Wall, usize)> = pods.iter().map(|pod| Wall::across_open_flows(address(pod))).collect();
    let flows: Vec<usize> = walls.iter().map(|(_, flows)| *flows).collect();
    assert!(flows.iter().all(|flows| *flows > 0), "every replica watches its pod: {flows:?}");
    resign(redleader(&first), STAND_BACK);
    let next = next_of(&pods, &[&first]);
    let won = boot_ms();
    eventually("its label is right", LONG, || (release.role(&next).as_deref() == Some("leader")).then_some(()));
    let labelled = seconds_since(won);
    release.until_right(&next);
    let all = seconds_since(won);
    let timeouts = metric(of_name(&pods, &next), "publish_errors_total", &[("code", "timeout")]);
    let text = format!("label right {labelled:.1} s and all {all:.1} s after the win, {timeouts} requests timed out");
    figure("K3 flows to the API server died without a word", &text);
    assert!(all < 30.0, "{all} s");
    assert!(timeouts >= 1.0, "no request was made on a dead connection");

    // Whoever has nothing to tell begins its watch anew within 13 minutes, and no earlier.
    unlabel(&release, &[&first, &next]);
    let began = boot_ms();
    eventually("the watch lives on another connection", LONG, || release.is_right(&next));
    figure("K3 the watch after that", &format!("a label taken away is put right in {:.1} s", seconds_since(began)));
    drop(walls);
    release.uninstall();
}
