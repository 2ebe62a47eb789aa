//! A gate that flips all the time, beside another writer of the same pods' status.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::{line_with, log, remove};
use crate::cluster::{Cluster, seconds_since};
use crate::figures::figure;
use crate::pod::{
    LEADER, ROLE, condition, condition_of, leading, name, of_name, redleader, resign, role, tells, token,
};
use crate::release::{LONG, Release};
use crate::row::{Row, Stage};
use crate::support::scale;
use crate::wait::{boot_ms, eventually, let_time_pass};

pub const ROWS: &[Row] = &[Row {
    name: "C87-two-writers",
    shows: "a gate that flips hundreds of times beside another writer: both survive, Ready follows, and Events are few",
    stage: Stage::Together,
    run: two_writers,
}];

/// How often leadership changes hands; each time the gate of both pods flips.
fn hand_overs() -> usize {
    scale().pick(120, 250)
}

/// The documented number of Events that one replica may make at once; after that, one a minute.
const EVENTS_AT_ONCE: u64 = 10;
/// A condition of another controller.
const OTHER: &str = "example.com/other";

fn two_writers(cluster: &Cluster) {
    let values = [
        "fullnameOverride=web",
        "app.port=8080",
        "mode=gate",
        "replicas=2",
        "ttl=4s",
        "grace=500ms",
        "handoverDelay=100ms",
        "publish.label=true",
        "publish.events=true",
    ];
    let release = Release::new(cluster, "team-a", &values);
    let began = boot_ms();
    release.install();
    release.settle(2);
    eventually("the gate of both is right", LONG, || gates_are_right(&release));
    let stop = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_beside(&release, &stop));
        let flipped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| flip(&release)));
        stop.store(true, Ordering::Relaxed);
        let written = writer.join().expect("the other writer finds what it wrote");
        flipped.unwrap_or_else(|why| std::panic::resume_unwind(why));
        written
    });
    figure("C87 the other writer", &format!("{written} writes of a condition, each found again, none lost"));
    eventually("Ready follows the gate", LONG, || ready_is_right(&release));
    few_events(&release, (boot_ms() - began) / 1000);
    put_right(&release);
    eventually("Ready follows the gate", LONG, || ready_is_right(&release));
    role_is_only_there(&release);
    remove(&release);
}

/// Moves the leadership, and waits each time until both pods' conditions and labels say so.
fn flip(release: &Release<'_>) {
    let began = boot_ms();
    let pods = release.pods();
    let processes = pods.iter().map(|pod| (name(pod), redleader(&name(pod))));
    let processes: BTreeMap<String, u32> = processes.collect();
    let mut seen = 0;
    for _ in 0..hand_overs() {
        let leader = eventually("one leads", LONG, || leading(&pods).map(name));
        let before = token(of_name(&pods, &leader));
        resign(processes[&leader], "200ms");
        let next = eventually("there is another leadership", LONG, || {
            leading(&pods).map(name).filter(|next| token(of_name(&pods, next)) != before)
        });
        eventually("the gates say so", LONG, || {
            let said = gates_name(release, &next).is_some();
            seen += usize::from(said);
            // One that has lost it meanwhile is told of no more.
            (said || name(leading(&pods)?) != next).then_some(())
        });
    }
    let text = format!("{seen} of {} hand-overs seen in both gates, in {:.0} s", hand_overs(), seconds_since(began));
    figure("C87 gate", &text);
    assert!(2 * seen > hand_overs(), "{text}");
}

/// Condition and label of each pod say what its redleader says; the pods.
fn gates_are_right(release: &Release<'_>) -> Option<Vec<Value>> {
    let leader = release.leader()?;
    let pods = gates_name(release, &leader)?;
    // It may have changed hands meanwhile.
    (release.leader()? == leader).then_some(pods)
}

/// Condition and label of each pod say that this one leads; the pods.
fn gates_name(release: &Release<'_>, leader: &str) -> Option<Vec<Value>> {
    let pods = release.pods();
    (pods.len() == 2 && pods.iter().all(|pod| tells(pod, leader))).then_some(pods)
}

/// Ready is what the gate says.
fn ready_is_right(release: &Release<'_>) -> Option<()> {
    let follows = |pod: &Value| condition(pod, "Ready") == condition(pod, LEADER);
    gates_are_right(release)?.iter().all(follows).then_some(())
}

/// Another controller: it merges its condition, or writes the whole status of the version that it has read, in turn.
/// Nobody else writes this condition, so whatever it has written last is there. Gives how often it wrote.
fn write_beside(release: &Release<'_>, stop: &AtomicBool) -> u64 {
    let mut written = 0;
    let paths: Vec<String> = release.pods().iter().map(|pod| release.pod_path(&name(pod))).collect();
    while !stop.load(Ordering::Relaxed) {
        for path in &paths {
            written += 1;
            let message = written.to_string();
            if written % 4 < 2 {
                merge_other(release, path, &message)
            } else {
                replace_other(release, path, &message)
            }
            let pod = release.cluster.get(path).expect("the pod is there");
            assert_eq!(other(&pod), Some(message.as_str()), "another's condition is lost: {}", pod["status"]);
        }
        let_time_pass("another controller has other work too", Duration::from_millis(50));
    }
    written
}

fn other(pod: &Value) -> Option<&str> {
    condition_of(pod, OTHER)?["message"].as_str()
}

fn merge_other(release: &Release<'_>, path: &str, message: &str) {
    patch_status(release, path, &json!({"type": OTHER, "status": "True", "message": message}));
}

/// Merges one condition into a pod's status; gives the pod as it has become.
fn patch_status(release: &Release<'_>, path: &str, condition: &Value) -> Value {
    release.cluster.patch(&format!("{path}/status"), &json!({"status": {"conditions": [condition]}}))
}

fn replace_other(release: &Release<'_>, path: &str, message: &str) {
    eventually("nobody was faster", LONG, || {
        let mut pod = release.cluster.get(path)?;
        let conditions = pod["status"]["conditions"].as_array_mut()?;
        conditions.retain(|condition| condition["type"] != OTHER);
        conditions.push(json!({"type": OTHER, "status": "True", "message": message}));
        let (status, answer) = release.cluster.request("PUT", &format!("{path}/status"), &pod.to_string())?;
        assert!(matches!(status, 200 | 409), "{answer}");
        (status == 200).then_some(())
    });
}

/// No more Events than are documented, each in the pod's namespace and about it.
fn few_events(release: &Release<'_>, seconds: u64) {
    let pods = release.pods();
    let all = release.cluster.list("/apis/events.k8s.io/v1/events");
    let old = release.cluster.list("/api/v1/namespaces/team-a/events");
    let mut counts = Vec::new();
    for pod in &pods {
        let uid = &pod["metadata"]["uid"];
        let about = |event: &&Value| {
            event["reportingController"] == "redleader.dev/redleader" && event["regarding"]["name"] == name(pod)
        };
        let events: Vec<&Value> = all.iter().filter(about).collect();
        for event in &events {
            assert_eq!(event["metadata"]["namespace"], "team-a", "{event}");
            let regarding = &event["regarding"];
            assert_eq!((&regarding["kind"], &regarding["uid"]), (&json!("Pod"), uid), "{event}");
        }
        let involved = old.iter().filter(|event| event["involvedObject"]["uid"] == *uid).filter(|event| {
            event["involvedObject"]["kind"] == "Pod" && event["reportingComponent"] == "redleader.dev/redleader"
        });
        assert_eq!(involved.count(), events.len(), "the same Events in the API of old");
        counts.push(events.len() as u64);
        let told = release.cluster.kubectl(&["describe", "pod", "-n", "team-a", &name(pod)]);
        assert!(told.contains("LeaderElected") && told.contains("LeaderSteppedDown"), "{told}");
        // That the other has changed its own pod meanwhile is no fault.
        let fault = line_with(&log(release, &name(pod)), &["cannot publish", "422"]);
        assert_eq!(fault, None);
    }
    let most = EVENTS_AT_ONCE + seconds / 60;
    let text = format!(
        "{} transitions of two replicas in {seconds} s: {counts:?} Events, at most {most} each are documented",
        2 * hand_overs()
    );
    figure("C83 Events of a flapping leadership", &text);
    assert!(counts.iter().all(|count| (EVENTS_AT_ONCE..=most).contains(count)), "{counts:?}");
}

/// Whatever somebody makes of our condition and label is put right.
fn put_right(release: &Release<'_>) {
    let leader = release.leader().expect("one leads");
    let path = release.pod_path(&leader);
    let label = |value: Value| release.cluster.patch(&path, &json!({"metadata": {"labels": {ROLE: value}}}));
    let edits: [(&str, &dyn Fn() -> Value); 4] = [
        ("condition deleted", &|| patch_status(release, &path, &json!({"$patch": "delete", "type": LEADER}))),
        ("condition False", &|| patch_status(release, &path, &json!({"type": LEADER, "status": "False"}))),
        ("label deleted", &|| label(Value::Null)),
        ("label standby", &|| label(json!("standby"))),
    ];
    for (what, edit) in edits {
        let edited = edit();
        let is_so = condition(&edited, LEADER) == Some("True") && role(&edited) == Some("leader");
        assert!(!is_so, "{what}: the edit did nothing");
        let began = boot_ms();
        eventually(what, LONG, || gates_are_right(release));
        figure("C87 put right", &format!("{what}: {} ms", boot_ms() - began));
    }
}

/// The rights are the namespace's, and no other's.
fn role_is_only_there(release: &Release<'_>) {
    for kind in ["roles", "rolebindings"] {
        let all = release.cluster.list(&format!("/apis/rbac.authorization.k8s.io/v1/{kind}"));
        let ours: Vec<&Value> = all.iter().filter(|object| name(object) == "web").collect();
        assert!(ours.iter().all(|object| object["metadata"]["namespace"] == "team-a") && ours.len() == 1, "{ours:?}");
    }
    let all = release.cluster.list("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings");
    let account = |binding: &Value| binding["subjects"].to_string().contains("\"team-a\"");
    assert!(!all.iter().any(account), "a right beyond the namespace");
}
