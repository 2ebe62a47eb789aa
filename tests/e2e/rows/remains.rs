//! A leader that is dead and whose pod is still there, labelled as the leader: nobody waits for it to go away.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cluster::{Cluster, seconds_since};
use crate::figures::figure;
use crate::pod::{process, redleader, role, said, signal};
use crate::release::{LONG, PUBLISHED, Release};
use crate::row::{Row, Stage};
use crate::wait::{boot_ms, eventually};

pub const ROWS: &[Row] = &[Row {
    name: "K3-remains",
    shows: "a leader is killed and its pod stays, Terminating or Failed: the next leads within ttl and retry, and clears it",
    stage: Stage::Together,
    run: remains,
}];

const TTL: f64 = 4.0;
/// A standby that was refused asks again within so long; and what a busy machine adds.
const RETRY: f64 = TTL / 4.0 + 0.5;

fn remains(cluster: &Cluster) {
    let release = Release::new(cluster, "k3-remains", &[&PUBLISHED[..], &["ttl=4s", "nodeTimeout=600ms"]].concat());
    release.install();
    for (what, stay) in [("Terminating", terminate as Stay), ("Failed", fail as Stay)] {
        let dead = dies(&release, what, stay);
        let path = release.pod_path(&dead);
        cluster.patch(&path, &json!({"metadata": {"finalizers": null}}));
        release.cluster.kubectl(&["delete", "pod", "-n", &release.name, &dead, "--ignore-not-found"]);
        eventually("nothing remains of it", LONG, || release.cluster.get(&path).is_none().then_some(()));
    }
    release.uninstall();
}

/// Makes the pod at this path one that ends and stays.
type Stay = fn(&Release<'_>, &str);

fn terminate(release: &Release<'_>, path: &str) {
    release.cluster.request("DELETE", path, "").expect("the API server answers");
}

/// As an eviction by the kubelet does: it ends the containers, starts none again, and leaves the pod.
fn fail(release: &Release<'_>, path: &str) {
    release.cluster.patch(path, &json!({"spec": {"activeDeadlineSeconds": 1}}));
}

fn dies(release: &Release<'_>, what: &str, stay: Stay) -> String {
    let dead = release.settle(3);
    release.until_right(&dead);
    eventually("the Service has it", LONG, || is_endpoint(release, &dead).then_some(()));
    let path = release.pod_path(&dead);
    release.cluster.patch(&path, &json!({"metadata": {"finalizers": ["example.com/stays"]}}));
    let pid = redleader(&dead);
    // Killed sooner it would be started again, and later it would have stepped down: the app is ended before it is told.
    signal(pid, Signal::STOP);
    // What is stopped extends no more: for the others it is dead from here on.
    let killed = boot_ms();
    stay(release, &path);
    eventually("the kubelet ends the pod", LONG, || process(&dead, "web").is_none().then_some(()));
    signal(pid, Signal::KILL);
    let has_role = |wanted: &str| role(&release.cluster.get(&path).expect("it stays")) == Some(wanted);
    let mut unrouted = false;
    let mut gone = None;
    let mut look = |found: Option<String>| {
        let is_routed = is_endpoint(release, &dead);
        gone = if is_routed { None } else { gone.or(Some(seconds_since(killed))) };
        unrouted |= !is_routed && has_role("leader");
        found
    };
    // The one that is made in its place takes part as well.
    let next = eventually("another leads", LONG, || look(release.leader().filter(|pod| *pod != dead)));
    let led = seconds_since(killed);
    eventually("its label is cleared", LONG, || look(has_role("standby").then(String::new)).map(|_| ()));
    let cleared = seconds_since(killed);
    eventually("the Service has the next", LONG, || {
        assert!(!is_endpoint(release, &dead), "it is dead");
        is_endpoint(release, &next).then_some(())
    });
    let gone = gone.expect("it leaves the Service");
    let text = format!(
        "the next leads after {led:.1} s, the Service has the dead one for {gone:.1} s, its label cleared after {cleared:.1} s"
    );
    figure(&format!("K3 kill -9 of a leader whose pod stays, {what}"), &text);
    assert!(led <= TTL + RETRY, "{led} s");
    assert!(gone < led, "traffic to the dead one until {gone} s, another leads after {led} s");
    assert!(unrouted, "it was unready while it was labelled");
    judge(release, &path, what);
    dead
}

/// The pod is there, dead in the way that is to be shown, by the kill and by nothing gentler.
fn judge(release: &Release<'_>, path: &str, what: &str) {
    let pod = eventually("nothing runs in it", LONG, || {
        let pod = release.cluster.get(path).expect("it stays");
        let is_over = if what == "Failed" { pod["status"]["phase"] == "Failed" } else { said(&pod).is_none() };
        is_over.then_some(pod)
    });
    assert_eq!(pod["metadata"]["deletionTimestamp"].is_null(), what == "Failed", "{pod}");
    let killed = eventually("the kubelet tells of its end", LONG, || {
        let pod = release.cluster.get(path).expect("it stays");
        let mut containers = pod["status"]["initContainerStatuses"].as_array().into_iter().flatten();
        let ours = containers.find(|container| container["name"] == "redleader")?;
        (!ours["state"]["terminated"].is_null()).then(|| ours.clone())
    });
    assert_eq!(killed["state"]["terminated"]["exitCode"], 137, "{killed}");
    assert_eq!(killed["restartCount"], 0, "{killed}");
}

/// Whether the Service sends requests to this pod.
fn is_endpoint(release: &Release<'_>, pod: &str) -> bool {
    let path = format!(
        "/apis/discovery.k8s.io/v1/namespaces/{0}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{0}",
        release.name
    );
    let is_it = |endpoint: &Value| endpoint["targetRef"]["name"] == pod && endpoint["conditions"]["ready"] == true;
    let slices = release.cluster.list(&path);
    slices.iter().any(|slice| slice["endpoints"].as_array().is_some_and(|all| all.iter().any(is_it)))
}
