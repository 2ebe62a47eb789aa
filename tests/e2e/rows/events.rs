//! Every mode through everything that happens to pods. How long nobody answers, and for how long two do, is measured
//! through the Service by a caller outside of the pods.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::caller::{Caller, Seen, call};
use crate::cluster::{Cluster, WEB, WEB_2, succeed};
use crate::figures::figure;
use crate::pod::{condition, name, process};
use crate::release::{LONG, Release};
use crate::row::{Row, Stage};
use crate::wait::{boot_ms, eventually, let_time_pass};
use crate::witness::Witness;

pub const ROWS: &[Row] = &[
    Row {
        name: "K2-readiness",
        shows: "mode readiness through every event: it ends, nobody answers beside the leader",
        stage: Stage::Together,
        run: |cluster| all_events(cluster, &READINESS),
    },
    Row {
        name: "K2-label",
        shows: "mode label through every event: it ends, nobody answers beside the leader, and Helm's own wait ends",
        stage: Stage::Together,
        run: |cluster| all_events(cluster, &LABEL),
    },
    Row {
        name: "K2-gate",
        shows: "mode gate through every event: it ends, nobody answers beside the leader",
        stage: Stage::Together,
        run: |cluster| all_events(cluster, &GATE),
    },
    Row {
        name: "K2-wrap",
        shows: "the wrapper through every event: it ends, nobody answers beside the leader",
        stage: Stage::Together,
        run: |cluster| all_events(cluster, &WRAP),
    },
    Row {
        name: "K2-node-lost",
        shows: "a node of the cluster dies with the leader of every mode on it: it ends, and another answers",
        stage: Stage::Node,
        run: node_lost,
    },
];

/// A mode as a user chooses it.
#[derive(Clone, Copy)]
pub struct Mode {
    name: &'static str,
    values: &'static [&'static str],
    /// The container that redleader runs in, and where it is there.
    container: &'static str,
    binary: &'static str,
    /// Whether all replicas are Ready, so that Helm's own wait ends.
    helm_waits: bool,
}

const READINESS: Mode = Mode {
    name: "readiness",
    values: &["app.port=8080"],
    container: "redleader",
    binary: "/redleader",
    helm_waits: false,
};

const LABEL: Mode = Mode { name: "label", values: &["mode=label", "app.port=8080"], helm_waits: true, ..READINESS };
const GATE: Mode = Mode { name: "gate", values: &["mode=gate", "app.port=8080"], ..READINESS };
const WRAP: Mode = Mode {
    name: "wrap",
    values: &["wrap.enabled=true", "app.port=8080", "app.command={/web}"],
    container: "app",
    binary: "/run/redleader/bin/redleader",
    helm_waits: false,
};

/// Something that happens to a release with this leader. If it kills its redleader: by when that was dead.
type Event = fn(&Mode, &mut Release<'_>, &str) -> Option<u64>;

const EVENTS: [(&str, Event); 7] = [
    ("resign", resign),
    ("delete of the leader's pod", delete),
    ("kill -9 of redleader", |_, release, leader| Some(release.kill(leader, "redleader"))),
    ("kill -9 of the app", kill_app),
    ("eviction of the leader", evict),
    ("rollout of a new image", roll),
    ("scale 3 to 1 to 3", scale),
];

fn all_events(cluster: &Cluster, mode: &Mode) {
    let mut release = Release::new(cluster, &format!("k2-{}", mode.name), mode.values);
    let mut witness = Witness::start(cluster, &release.name, mode.container);
    release.install();
    release.settle(3);
    let mut faults = Vec::new();
    for (event, happen) in EVENTS {
        let seen = one_event(mode, &mut release, &mut witness, happen);
        let (gap, overlap) = (Duration::from_millis(seen.gap()), seen.overlap());
        let names = seen.names().len();
        let row = format!("nobody answered for {:.1} s, two for {overlap} ms, {names} answered", gap.as_secs_f64());
        figure(&format!("K2 {} x {event}", mode.name), &row);
        if overlap > 0 {
            faults.push(format!("{event}: {overlap} ms of overlap: {:?}", seen.names()));
        }
        note(event, mode, gap);
        if gap > most(mode, event) {
            faults.push(format!("{event}: nobody answered for {gap:?}, more than {:?}", most(mode, event)));
        }
    }
    release.uninstall();
    witness.finish().assert_clean(&format!("K2 {} by the logs", mode.name));
    assert!(faults.is_empty(), "{}: {}", mode.name, faults.join("\n"));
}

/// The most that nobody may answer: where the lock is given back, less than the ttl of 8 s that it would have left; after
/// a kill the ttl, a standby's next look, and the start of a process; and where new pods have to start, a minute.
fn most(mode: &Mode, event: &str) -> Duration {
    Duration::from_secs(match event {
        "kill -9 of redleader" => 15,
        "rollout of a new image" if mode.name != LABEL.name => 60,
        _ => 8,
    })
}

/// Seconds in which nobody answered, by event and mode.
static GAPS: Mutex<BTreeMap<(&str, &str), f64>> = Mutex::new(BTreeMap::new());

fn note(event: &'static str, mode: &Mode, gap: Duration) {
    GAPS.lock().unwrap_or_else(PoisonError::into_inner).insert((event, mode.name), gap.as_secs_f64());
}

/// The table of docs/kubernetes.md, once every mode has been through every event.
fn table() {
    let gaps = GAPS.lock().unwrap_or_else(PoisonError::into_inner);
    let modes = [READINESS.name, LABEL.name, GATE.name, WRAP.name];
    let is_known = |event: &&str| modes.iter().any(|mode| gaps.contains_key(&(*event, mode)));
    for event in EVENTS.iter().map(|(event, _)| *event).chain([NODE_LOST]).filter(is_known) {
        let cells: Vec<String> = modes
            .iter()
            .map(|mode| gaps.get(&(event, mode)).map_or_else(|| "?".to_owned(), |gap| format!("{gap:.1}")))
            .collect();
        figure("K2 table", &format!("| {event} | {} |", cells.join(" | ")));
    }
}

fn one_event(mode: &Mode, release: &mut Release<'_>, witness: &mut Witness, happen: Event) -> Seen {
    let before = answering(release);
    let caller = Caller::start(&release.service());
    let_time_pass("calls before it happens", Duration::from_millis(500));
    if let Some(dead) = happen(mode, release, &before) {
        witness.killed(&before, dead);
    }
    release.settle(3);
    answering(release);
    let_time_pass("calls after it is over", Duration::from_secs(1));
    caller.finish()
}

/// Waits until whoever leads is whom the Service answers from.
fn answering(release: &Release<'_>) -> String {
    let address = release.service();
    eventually("the leader answers the Service", LONG, || {
        let leader = release.leader()?;
        (call(&address).as_ref() == Some(&leader)).then_some(leader)
    })
}

fn resign(mode: &Mode, release: &mut Release<'_>, leader: &str) -> Option<u64> {
    // Long enough for the hand-over, short enough for the next event.
    let said = release.exec(leader, mode.container, &[mode.binary, "resign", "--for", "5s"]);
    succeed("resign", said);
    release.next_leader(&[leader]);
    None
}

fn delete(_: &Mode, release: &mut Release<'_>, leader: &str) -> Option<u64> {
    release.cluster.kubectl(&["delete", "pod", "-n", &release.name, leader, "--wait=false"]);
    release.next_leader(&[leader]);
    None
}

/// As `kubectl drain` takes a pod away: where a PodDisruptionBudget forbids it, it is asked again.
fn evict(_: &Mode, release: &mut Release<'_>, leader: &str) -> Option<u64> {
    eventually("the eviction is allowed", LONG, || (release.evict(leader) == 201).then_some(()));
    release.next_leader(&[leader]);
    None
}

fn kill_app(mode: &Mode, release: &mut Release<'_>, leader: &str) -> Option<u64> {
    let old = process(leader, "web");
    release.kill(leader, "web");
    // Under the wrapper the next one may run elsewhere.
    let is_new = || mode.container == "app" || process(leader, "web").is_some_and(|pid| Some(pid) != old);
    eventually("the app runs again", LONG, || is_new().then_some(()));
    None
}

fn roll(mode: &Mode, release: &mut Release<'_>, _: &str) -> Option<u64> {
    let old: Vec<String> = release.pods().iter().map(name).collect();
    let image = if release.values.iter().any(|value| value.ends_with(WEB_2)) { WEB } else { WEB_2 };
    let flags: &[&str] = if mode.helm_waits { &["--wait"] } else { &[] };
    succeed("helm upgrade", release.upgrade(&[&format!("app.image={image}")], flags));
    eventually("all pods are new", LONG, || release.pods().iter().all(|pod| !old.contains(&name(pod))).then_some(()));
    None
}

fn scale(_: &Mode, release: &mut Release<'_>, _: &str) -> Option<u64> {
    for count in [1, 3] {
        release.scale(count);
        release.settle(count);
        answering(release);
    }
    None
}

/// The last event, which takes all modes at once.
const NODE_LOST: &str = "loss of the leader's node";

/// The node that is lost, and the one that stays with all that the releases need.
const LOST: &str = "node2";
const STAYS: &str = "nodes.nodeSelector.kubernetes\\.io/hostname=node1";

/// One replica on each node of the cluster.
const APART: &str = "affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=\
                     kubernetes.io/hostname";
const APART_FROM: &str = "affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector.\
                          matchLabels.app\\.kubernetes\\.io/component=replica";

/// For how long a mode whose Service lets go of a lost pod at once may keep callers waiting: five times the ttl.
const LABEL_MOST: Duration = Duration::from_secs(40);

/// A mode's release, with its leader on the node that is to be lost.
struct Doomed<'a> {
    mode: Mode,
    release: Release<'a>,
    witness: Witness,
}

impl<'a> Doomed<'a> {
    fn new(cluster: &'a Cluster, mode: Mode) -> Self {
        let mut values = mode.values.to_vec();
        values.extend([STAYS, "replicas=2", APART, APART_FROM]);
        let release = Release::new(cluster, &format!("k2-lost-{}", mode.name), &values);
        let witness = Witness::start(cluster, &release.name, mode.container);
        release.install();
        Self { mode, release, witness }
    }

    /// If the one on the node that stays leads, it makes way for the other.
    fn move_leader(&self) {
        self.release.settle(2);
        eventually("the leader is on the node", LONG, || {
            let leader = self.release.leading()?;
            if leader["spec"]["nodeName"] == LOST {
                return Some(());
            }
            // One that has lost it meanwhile has nothing to make way from.
            self.release.exec(&name(&leader), self.mode.container, &[self.mode.binary, "resign", "--for", "10s"]);
            None
        });
        answering(&self.release);
    }

    fn pods_on(&self, node: &str) -> Vec<String> {
        self.release.pods().iter().filter(|pod| pod["spec"]["nodeName"] == node).map(name).collect()
    }
}

/// Every mode has its leader on one node of the cluster, and that node loses its power.
fn node_lost(cluster: &Cluster) {
    let mut all: Vec<Doomed<'_>> =
        [READINESS, LABEL, GATE, WRAP].into_iter().map(|mode| Doomed::new(cluster, mode)).collect();
    thread::scope(|scope| {
        all.iter().for_each(|doomed| drop(scope.spawn(|| doomed.move_leader())));
    });
    let_time_pass("those that made way stand for election again", Duration::from_secs(10));
    let lost: Vec<Vec<String>> = all.iter().map(|doomed| doomed.pods_on(LOST)).collect();
    let callers: Vec<Caller> = all.iter().map(|doomed| Caller::start(&doomed.release.service())).collect();
    cluster.part("lose", LOST);
    let dead = boot_ms();
    for (doomed, pods) in all.iter_mut().zip(&lost) {
        pods.iter().for_each(|pod| doomed.witness.killed(pod, dead));
    }
    // The API server takes a while to notice; the pods that stay do not.
    let after: Vec<String> = all
        .iter()
        .zip(&lost)
        .map(|(doomed, pods)| {
            let words: Vec<&str> = pods.iter().map(String::as_str).collect();
            doomed.release.next_leader(&words)
        })
        .collect();
    eventually("Kubernetes notices", LONG, || {
        let node = cluster.get(&format!("/api/v1/nodes/{LOST}"))?;
        (condition(&node, "Ready") == Some("Unknown")).then_some(())
    });
    for (doomed, leader) in all.iter().zip(&after) {
        let service = doomed.release.service();
        eventually("the Service has the next alone", LONG, || {
            let answers = (0..10).map(|_| call(&service));
            answers.into_iter().all(|name| name.as_ref() == Some(leader)).then_some(())
        });
    }
    for ((doomed, caller), leader) in all.into_iter().zip(callers).zip(after) {
        judge_loss(doomed, caller.finish(), &leader);
    }
    table();
}

fn judge_loss(doomed: Doomed<'_>, seen: Seen, leader: &str) {
    let mode = doomed.mode.name;
    let (gap, waited) = (Duration::from_millis(seen.gap()), Duration::from_millis(seen.calls_failed()));
    let text = format!(
        "nobody answered for {:.1} s, two for {} ms, callers waited in vain for {:.1} s in all",
        gap.as_secs_f64(),
        seen.overlap(),
        waited.as_secs_f64()
    );
    figure(&format!("K2 {mode} x {NODE_LOST}"), &text);
    note(NODE_LOST, &doomed.mode, gap);
    assert_eq!(seen.overlap(), 0, "ms of overlap in {mode}: {:?}", seen.names());
    assert_eq!(seen.names().last().map(String::as_str), Some(leader), "{mode}");
    assert!(mode != LABEL.name || waited < LABEL_MOST, "{mode}: callers waited for {waited:?}");
    doomed.witness.finish().assert_clean(&format!("K2 {mode} with its leader's node lost, by the logs"));
    doomed.release.uninstall();
}
