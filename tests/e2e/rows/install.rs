//! `helm install` from nothing, and what it leaves: one leader, one Ready pod, a Service that answers only from it.

use std::time::Duration;

use serde_json::Value;

use crate::caller::Caller;
use crate::cluster::{Cluster, seconds_since};
use crate::figures::figure;
use crate::pod::{metrics, name, said};
use crate::release::{LONG, Release};
use crate::row::{Row, Stage};
use crate::rows::published_secrets::is_passing;
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
    two_that_answer_are_seen(&release);
    for pod in release.pods() {
        let said = eventually("every pod says who leads", LONG, || said(&pod));
        assert_eq!(said["holder"], leader.as_str(), "{said}");
        assert_eq!(said["lock"], "redleader:k1/k1", "namespace and name are in it");
        let memory =
            eventually("the kubelet tells it", LONG, || kubelet(&release, &pod, "container_memory_working_set_bytes"));
        figure("K8 memory of a replica", &format!("{:.1} MiB, as the kubelet reports it", memory / 1_048_576.0));
    }
    from_start_to_leadership(&release, "new nodes, with their quarantine");
    release.until_right(&leader);
    agree(&release, &leader);
    helm_test(&release);
    all_start_again(&release);
    from_start_to_leadership(&release, "nodes that know the lock");
    release.uninstall();
    leaves_nothing(&release);
}

/// What people and Prometheus see of the leader is one story.
fn agree(release: &Release<'_>, leader: &str) {
    let lease = release.cluster.kubectl(&["get", "lease", "-n", &release.name, "who-leads"]);
    assert!(lease.contains(leader), "{lease}");
    let lease = release.lease("who-leads").expect("the Lease");
    assert_eq!(lease["metadata"]["annotations"]["redleader.dev/lock"], "redleader:k1/k1", "{lease}");
    let log = release.cluster.kubectl(&["logs", "-n", &release.name, leader, "-c", "redleader"]);
    assert!(log.contains("redleader:k1/k1"), "the log names the lock: {log}");
    let told = eventually("the Event is there", LONG, || {
        let told = release.cluster.kubectl(&["describe", "pod", "-n", &release.name, leader]);
        told.contains("LeaderElected").then_some(told)
    });
    assert!(told.contains("redleader.dev/leader") && told.contains("redleader.dev/role=leader"), "{told}");
    for pod in release.pods() {
        let metrics = eventually("metrics", LONG, || metrics(&pod));
        let leads = metrics.iter().filter(|(sample, _)| sample.starts_with("redleader_is_leader{"));
        let leads: Vec<f64> = leads.map(|(_, value)| *value).collect();
        assert_eq!(leads, [if name(&pod) == leader { 1.0 } else { 0.0 }], "{}", name(&pod));
        let names_it = |sample: &String| sample.contains(&format!("holder=\"{leader}\""));
        assert!(metrics.keys().any(names_it), "the holder's name is in the metrics");
    }
}

/// Whether a caller can see what it is to see: of a Service that reaches every replica, two answer in turn.
fn two_that_answer_are_seen(release: &Release<'_>) {
    let manifest = "{apiVersion: v1, kind: Service, metadata: {name: everyone, namespace: NAME}, spec: {\
                    publishNotReadyAddresses: true, ports: [{port: 8080}], selector: \
                    {app.kubernetes.io/instance: NAME, app.kubernetes.io/component: replica}}}";
    release.cluster.apply(&manifest.replace("NAME", &release.name));
    let address = release.service_named("everyone");
    let caller = Caller::start(&address);
    let_time_pass("many calls of the Service", Duration::from_secs(2));
    let seen = caller.finish();
    figure("K1 a Service of all replicas", &format!("{} ms of overlap seen, as it has to be", seen.overlap()));
    assert!(seen.overlap() > 0, "two that answer in turn are not seen: {:?}", seen.names());
    release.cluster.kubectl(&["delete", "service", "-n", &release.name, "everyone"]);
}

/// What the kubelet tells of a replica's container.
fn kubelet(release: &Release<'_>, pod: &Value, metric: &str) -> Option<f64> {
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    let path = format!("/api/v1/nodes/{node}/proxy/metrics/resource");
    let (_, text) = release.cluster.request("GET", &path, "")?;
    let labels = format!("{{container=\"redleader\",namespace=\"{}\",pod=\"{}\"}} ", release.name, name(pod));
    let line = text.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(labels.as_str()))?;
    line.split(' ').next()?.parse().ok()
}

/// From the start of the leader's container, as the kubelet tells it, to its leadership, as it tells itself.
fn from_start_to_leadership(release: &Release<'_>, of: &str) {
    let pod = eventually("one leads", LONG, || release.leading());
    let started = eventually("the kubelet tells it", LONG, || kubelet(release, &pod, "container_start_time_seconds"));
    let since = said(&pod).and_then(|said| said["since"].as_str().map(humantime::parse_rfc3339));
    let since = since.expect("a leader says since when").expect("RFC 3339");
    let since = since.duration_since(std::time::UNIX_EPOCH).expect("it is after 1970").as_secs_f64();
    figure("K8 container start to leadership", &format!("{:.2} s with {of}", since - started));
}

fn all_start_again(release: &Release<'_>) {
    for count in [0, 3] {
        release.scale(count);
        eventually("all have come or gone", LONG, || (release.all_pods().len() == count).then_some(()));
    }
    release.settle(3);
}

fn helm_test(release: &Release<'_>) {
    let said = release.helm(&["test"]);
    assert!(said.contains("Succeeded"), "{said}");
}

/// Every kind that a namespace can hold, save what the cluster itself puts in or keeps for a while.
fn leaves_nothing(release: &Release<'_>) {
    let kinds = release.cluster.kubectl(&["api-resources", "--verbs=list", "--namespaced", "-o", "name"]);
    let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events") && !is_passing(kind)).collect();
    let own = ["configmap/kube-root-ca.crt", "serviceaccount/default"];
    eventually("nothing is left", LONG, || {
        let arguments = ["get", &kinds.join(","), "-n", &release.name, "-o", "name", "--ignore-not-found"];
        let said = release.cluster.kubectl(&arguments);
        let left: Vec<&str> = said.lines().filter(|line| !own.contains(line)).collect();
        left.is_empty().then_some(())
    });
    figure("K1 helm uninstall", "nothing is left in the namespace");
}
