//! `helm install` from nothing, and what it leaves: one leader, one Ready pod, a Service that answers only from it.

use std::time::Duration;

use serde_json::Value;

use crate::caller::{Caller, get};
use crate::cluster::{Cluster, seconds_since};
use crate::figures::figure;
use crate::release::{LONG, Release, name, said};
use crate::row::{Row, Stage};
use crate::wait::{boot_ms, eventually, let_time_pass};

pub const ROWS: &[Row] = &[Row {
    name: "K1-install",
    shows: "one helm install from nothing gives one Ready pod that the Service answers from, and uninstall leaves nothing",
    stage: Stage::Together,
    run: from_nothing,
}];

/// All that can be published, beside mode readiness.
const PUBLISHED: [&str; 5] =
    ["app.port=8080", "publish.label=true", "publish.condition=true", "publish.events=true", "publish.lease=who-leads"];

fn from_nothing(cluster: &Cluster) {
    let release = Release::new(cluster, "k1", &PUBLISHED);
    let began = boot_ms();
    let notes = release.install();
    figure(
        "K1 helm install",
        &format!("ended with a leader after {:.1} s, three nodes of its own", seconds_since(began)),
    );
    assert!(notes.contains("in mode readiness"), "{notes}");
    let leader = release.settle(3);
    eventually("the leader alone is Ready", LONG, || (release.ready() == [leader.clone()]).then_some(()));
    let caller = Caller::start(&release.service());
    let_time_pass("many calls of the Service", Duration::from_secs(3));
    let seen = caller.finish();
    assert_eq!(seen.names(), std::slice::from_ref(&leader), "only the leader answers");
    assert!(seen.answers.len() > 20, "{} calls in 3 s", seen.answers.len());
    figure("K1 Service", &format!("{} calls, all answered by the leader", seen.answers.len()));
    for pod in release.pods() {
        let said = eventually("every pod says who leads", LONG, || said(&pod));
        assert_eq!(said["holder"], leader.as_str(), "{said}");
        assert_eq!(said["lock"], "redleader:k1/k1", "namespace and name are in it");
        footprint(&release, &pod);
    }
    eventually("all that is published is right", LONG, || crate::rows::api::is_right(&release, &leader));
    agree(&release, &leader);
    helm_test(&release);
    release.uninstall();
    leaves_nothing(&release);
}

/// What people and Prometheus see of the leader is one story.
fn agree(release: &Release<'_>, leader: &str) {
    let lease = release.cluster.kubectl(&["get", "lease", "-n", &release.name, "who-leads"]);
    assert!(lease.contains(leader), "{lease}");
    let told = eventually("the Event is there", LONG, || {
        let told = release.cluster.kubectl(&["describe", "pod", "-n", &release.name, leader]);
        told.contains("LeaderElected").then_some(told)
    });
    assert!(told.contains("redleader.dev/leader") && told.contains("redleader.dev/role=leader"), "{told}");
    for pod in release.pods() {
        let address = format!("{}:9797", pod["status"]["podIP"].as_str().expect("it runs"));
        let (_, metrics) = eventually("metrics", LONG, || get(&address, "/metrics"));
        let leads = metrics.lines().find(|line| line.starts_with("redleader_is_leader{")).unwrap_or_default();
        assert!(leads.ends_with(if name(&pod) == leader { " 1" } else { " 0" }), "{leads}");
        assert!(metrics.contains(&format!("holder=\"{leader}\"")), "the holder's name is in the metrics");
    }
}

/// What a replica costs, as the kubelet says, and how soon it led.
fn footprint(release: &Release<'_>, pod: &Value) {
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    let path = format!("/api/v1/nodes/{node}/proxy/metrics/resource");
    let (_, text) = release.cluster.request("GET", &path, "", "").expect("the kubelet's word");
    let labels = format!("{{container=\"redleader\",namespace=\"{}\",pod=\"{}\"}} ", release.name, name(pod));
    let value = |metric: &str| -> Option<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(labels.as_str()))?;
        line.split(' ').next()?.parse().ok()
    };
    let memory = value("container_memory_working_set_bytes").map(|bytes| format!("{:.1} MiB", bytes / 1_048_576.0));
    let started = value("container_start_time_seconds").unwrap_or_default();
    let since = said(pod).and_then(|said| said["since"].as_str().map(str::to_owned)).unwrap_or_default();
    #[expect(clippy::disallowed_methods, reason = "the kubelet tells a start in wall time")]
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let memory = memory.unwrap_or_else(|| "not told yet".to_owned());
    figure(
        "K8 a replica",
        &format!("{memory} of memory {:.0} s after its start; leading since {since:?}", now - started),
    );
}

fn helm_test(release: &Release<'_>) {
    let mut command = release.cluster.command("helm");
    let output = command.args(["test", &release.name, "-n", &release.name]).output().expect("helm");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("Succeeded"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

/// Every kind that a namespace can hold, save what the cluster itself puts in or keeps for a while.
fn leaves_nothing(release: &Release<'_>) {
    let kinds = release.cluster.kubectl(&["api-resources", "--verbs=list", "--namespaced", "-o", "name"]);
    let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    let own = ["configmap/kube-root-ca.crt", "serviceaccount/default"];
    eventually("nothing is left", LONG, || {
        let arguments = ["get", &kinds.join(","), "-n", &release.name, "-o", "name", "--ignore-not-found"];
        let said = release.cluster.kubectl(&arguments);
        let left: Vec<&str> = said.lines().filter(|line| !own.contains(line)).collect();
        left.is_empty().then_some(())
    });
    figure("K1 helm uninstall", "nothing is left in the namespace");
}
