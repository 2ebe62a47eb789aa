//! What is published, as the real API server takes it and keeps it beside what others write.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::audit::{self, asked};
use crate::bench::{Bench, line_with, log, remove};
use crate::cluster::Cluster;
use crate::figures::figure;
use crate::node::{ask, tell};
use crate::pod::{leads, metric, name, next_of, of_name, redleader, said, says, signal, token};
use crate::release::{LONG, Release};
use crate::row::{Row, Stage};
use crate::wait::{boot_ms, eventually, let_time_pass, stays_true};

pub const ROWS: &[Row] = &[
    Row {
        name: "C71-seconds",
        shows: "the Lease of a ttl of 500 ms, 1500 ms and 90 s is taken by the API server, in whole seconds, rounded up",
        stage: Stage::Together,
        run: whole_seconds,
    },
    Row {
        name: "C3-C7-losses",
        shows: "a leadership that expired in a pause, and one that another took, are Events with reason and token",
        stage: Stage::Together,
        run: losses,
    },
    Row {
        name: "C25-twins",
        shows: "of two pods with one identity one leads, and the Lease's word of it is warned about",
        stage: Stage::Together,
        run: twins,
    },
];

/// Each ttl, as the Lease has to say it.
const TTLS: [(&str, &str, u64); 4] =
    [("half", "500ms", 1), ("more", "1500ms", 2), ("long", "90s", 90), ("longest", "90m", 5400)];

fn whole_seconds(cluster: &Cluster) {
    let bench = Bench::new(cluster, "c71", &[]);
    for (instance, ttl, _) in TTLS {
        let (ttl, lease) = (format!("ttl={ttl}"), format!("publish.lease={instance}"));
        // More than their default: a busy machine is no fault of what is shown here.
        let patience = if instance == "half" { "nodeTimeout=100ms" } else { "nodeTimeout=150ms" };
        let grace = "terminationGracePeriodSeconds=6000";
        bench.instance(instance, &["replicas=1", "app.port=8080", "mode=label", &ttl, &lease, patience, grace]);
    }
    // The nodes have known these locks for long, or their first leaders would come after 99 s and 99 min.
    for instance in ["long", "longest"] {
        known_for_long(&bench.release, &format!("{{redleader:c71/{instance}}}:redleader"));
        // It would look again when the quarantine is over that it was told of.
        let pod = bench.pod_of(instance).expect("the instance's pod");
        cluster.kubectl(&["delete", "pod", "-n", "c71", &name(&pod)]);
    }
    for (instance, ttl, seconds) in TTLS {
        let lease = eventually("the Lease is there", LONG, || bench.release.lease(instance));
        assert_eq!(lease["spec"]["leaseDurationSeconds"], seconds, "{ttl}: {lease}");
        for time in ["acquireTime", "renewTime"] {
            let time = lease["spec"][time].as_str().expect("it is set");
            let (_, digits) = time.split_once('.').unwrap_or_else(|| panic!("{time} has no fraction"));
            assert_eq!((digits.len(), digits.ends_with('Z')), (7, true), "six digits and a Z: {time}");
        }
        let codes: Vec<u64> = asked(&audit::log(cluster), "c71", instance).into_iter().map(|(_, code)| code).collect();
        let is_refused = |code: &u64| matches!(code, 400 | 401 | 403 | 422);
        assert!(!codes.is_empty() && !codes.iter().any(is_refused), "{ttl}: {codes:?}");
        figure("C71 ttl of the Lease", &format!("{ttl} is {seconds} s, {} requests, none refused", codes.len()));
        let table = cluster.kubectl(&["get", "lease", "-n", "c71", instance]);
        assert!(table.contains(bench.pod_of(instance).map(|pod| name(&pod)).unwrap_or_default().as_str()));
    }
    bench.remove();
}

/// Dates back since when nodes have known a lock (docs/protocol.md, rule 2), once a majority has met it.
fn known_for_long(release: &Release<'_>, state: &str) {
    let (password, nodes) = (release.password(), release.node_addresses());
    let has_met = |node: &&String| ask(node, &password, &format!("HEXISTS {state} born")).trim() == "1";
    let met = eventually("a majority has met the lock", LONG, || {
        let met: Vec<&String> = nodes.iter().filter(has_met).collect();
        (met.len() >= 2).then_some(met)
    });
    for node in met {
        assert_eq!(ask(node, &password, &format!("HSET {state} born 1")).trim(), "0", "the field was there");
    }
}

/// What the two rows below have in common.
const TTL: Duration = Duration::from_secs(5);

fn losses(cluster: &Cluster) {
    let values = ["mode=label", "app.port=8080", "publish.events=true", "replicas=2", "ttl=5s"];
    let (release, paused) = Release::up(cluster, "c3", &values, 2);
    let pods = release.pods();
    let first = token(of_name(&pods, &paused)).expect("it leads");
    signal(redleader(&paused), Signal::STOP);
    let_time_pass("the leadership expires while its process stands still", TTL + Duration::from_secs(2));
    let other = next_of(&pods, &[&paused]);
    signal(redleader(&paused), Signal::CONT);
    let expired = event(
        &release,
        of_name(&pods, &paused),
        &format!("stopped leading lock redleader:c3/c3: expired, token {first}"),
    );
    assert_eq!((&expired["type"], &expired["reason"]), (&json!("Warning"), &json!("LeaderSteppedDown")));
    let second = token(of_name(&pods, &other)).expect("it leads");
    assert_ne!(first, second, "two leaderships, two tokens");
    event(&release, of_name(&pods, &other), &format!("leads lock redleader:c3/c3 with token {second}"));
    assert_eq!(metric(of_name(&pods, &paused), "stepdowns_total", &[("reason", "expired")]), 1.0);
    figure("C3 leader stopped for 7 s, ttl 5 s", &format!("its Event, Warning: {}", expired["note"]));
    assert_eq!(release.restarts(), 0);
    taken_by_another(&release, of_name(&pods, &other), &second);
    remove(&release);
}

fn taken_by_another(release: &Release<'_>, leader: &Value, token: &Value) {
    let (password, nodes) = (release.password(), release.node_addresses());
    let deadline = said(leader).expect("it leads")["validUntilBootMs"].as_u64().expect("it leads");
    let began = boot_ms();
    for node in &nodes[..2] {
        tell(node, &password, "SET redleader:c3/c3 somebody-else PX 3000\n");
    }
    let set = boot_ms();
    eventually("leadership ends", LONG, || said(leader).filter(|said| said["leading"] == false));
    let ended = boot_ms();
    let note = format!("stopped leading lock redleader:c3/c3: lost, token {token}");
    let lost = event(release, leader, &note);
    assert_eq!((&lost["type"], &lost["reason"]), (&json!("Warning"), &json!("LeaderSteppedDown")));
    let said = log(release, &name(leader));
    let line = line_with(&said, &["lost on a node", "held by other"]).unwrap_or_else(|| panic!("{said}"));
    let line: Value = serde_json::from_str(&line).expect("a log line is JSON");
    assert!(
        line["holder"] == "somebody-else" && line["node"].as_str().is_some_and(|node| node.contains(":6379")),
        "{line}"
    );
    let text = format!(
        "ended {} ms after it, {} ms before its deadline as it was; log: {} on {} by {}; Event: {}",
        ended - set,
        deadline.saturating_sub(ended),
        line["reason"],
        line["node"],
        line["holder"],
        lost["note"]
    );
    figure("C7 a majority in another's hands, ttl 5 s", &text);
    // The next extend comes after ttl/4 at most, and an answer within a node timeout.
    assert!(ended - began < 3000 && ended < deadline, "at once, and not at the deadline");
    eventually("one leads again", LONG, || release.leader());
}

/// The Event on this pod with this note.
fn event(release: &Release<'_>, pod: &Value, note: &str) -> Value {
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", release.name);
    eventually(note, LONG, || {
        let uid = &pod["metadata"]["uid"];
        let mut events = release.cluster.list(&path).into_iter();
        events.find(|event| event["note"] == note && event["regarding"]["uid"] == *uid)
    })
}

/// Two pods with one name for themselves.
fn twins(cluster: &Cluster) {
    let identity = ["extraEnv[0].name=REDLEADER_IDENTITY", "extraEnv[0].value=twin"];
    let values = ["mode=label", "app.port=8080", "publish.lease=twins", "replicas=2", "ttl=5s"];
    let (release, first) = Release::up(cluster, "c25", &[&values[..], &identity].concat(), 2);
    let pods = release.pods();
    let uid = |wanted: &str| of_name(&pods, wanted)["metadata"]["uid"].as_str().expect("every pod has one");
    let shows = |pod: &str| {
        let lease = release.lease("twins")?;
        let is_so = lease["metadata"]["annotations"]["redleader.dev/pod-uid"] == uid(pod);
        (is_so && lease["spec"]["holderIdentity"] == "twin").then_some(())
    };
    eventually("the Lease names it", LONG, || shows(&first));
    stays_true("only one of them leads", TTL, || {
        pods.iter().filter(|pod| says(pod).is_some_and(|said| leads(&said))).count() == 1
    });
    signal(redleader(&first), Signal::STOP);
    let second = next_of(&pods, &[&first]);
    eventually("the Lease names the other", LONG, || shows(&second));
    let warning =
        eventually("it is warned about", LONG, || line_with(&log(&release, &second), &["identities are not unique"]));
    signal(redleader(&first), Signal::CONT);
    let line: Value = serde_json::from_str(&warning).expect("a log line is JSON");
    assert_eq!(line["level"], "WARN", "{line}");
    eventually("the first knows that it does not lead", LONG, || {
        said(of_name(&pods, &first)).filter(|said| said["leading"] == false && said["holder"] == "twin")
    });
    stays_true("only one of them leads", TTL, || {
        let is_leader = |pod: &&Value| says(pod).is_some_and(|said| leads(&said));
        pods.iter().filter(is_leader).map(name).eq([second.clone()])
    });
    assert!(shows(&second).is_some(), "the first does not write over it");
    figure("C25 two pods with one identity", &format!("one leads; {}: {}", line["message"], line["reason"]));
    remove(&release);
}
