//! `helm upgrade` of a release that runs: the list of nodes, Helm's own wait, and numbers as a user gives them.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::{Cluster, HOST, IMAGE, seconds_since, succeed};
use crate::figures::figure;
use crate::pod::{leading, leads, name, ready, redleader, said};
use crate::release::{LONG, Release};
use crate::row::{Row, Stage};
use crate::wait::{boot_ms, eventually, let_time_pass};

pub const ROWS: &[Row] = &[
    Row {
        name: "K9-list",
        shows: "the list of nodes changes by one node while replicas run and costs no leadership; by more is refused",
        stage: Stage::Together,
        run: list_of_nodes,
    },
    Row {
        name: "K9-wait",
        shows: "Helm's waits and rollout status end in the modes in which they are said to, and never in the others",
        stage: Stage::Together,
        run: waits,
    },
    Row {
        name: "K9-numbers",
        shows: "pods start with large numbers, whether they come by --set, --set-json or a file of values",
        stage: Stage::Together,
        run: numbers,
    },
];

fn list_of_nodes(cluster: &Cluster) {
    thread::scope(|scope| {
        scope.spawn(|| own_nodes(cluster));
        scope.spawn(|| given_nodes(cluster));
    });
}

/// The chart's own nodes, with replicas that lead, and with none.
fn own_nodes(cluster: &Cluster) {
    let (mut release, leader) = Release::up(cluster, "k9-list", &["mode=label", "app.port=8080", "ttl=4s"], 3);
    let token = release.leader_json(&leader).expect("it leads")["token"].clone();
    let (kept, nodes) = (release.password(), nodes_of(&release));
    assert_eq!(kept.len(), 32, "of characters");
    refused(&mut release, &["nodes.count=5"], &["changes by 2 (+k9-list-node-3:6379/0 +k9-list-node-4:6379/0)", STEPS]);
    refused(&mut release, &["nodes.count=1"], &["changes by 2 (-k9-list-node-1:6379/0 -k9-list-node-2:6379/0)", STEPS]);
    let stopped = ["nodes.count=5", "allReplicasStopped=true"];
    refused(
        &mut release,
        &stopped,
        &["changes by 2", "the Deployment has 3, and 0 more that are ending; scale it to 0"],
    );
    assert_eq!(release.leader_json(&leader).expect("it leads")["token"], token, "a refusal costs nothing");

    let began = boot_ms();
    let watched = Release { cluster, name: release.name.clone(), values: Vec::new() };
    let until = thread::scope(|scope| {
        let until = scope.spawn(|| leads_until_it_ends(&watched, &leader, &token));
        taken(&mut release, &["nodes.count=4", "allReplicasStopped=false"]);
        until.join().expect("one leadership until its pod ends")
    });
    rolled_out(&release);
    let took = seconds_since(began);
    figure(
        "K9 one node more",
        &format!("one leadership until its pod ended after {until:.1} s, rolled out in {took:.1} s"),
    );
    let now = nodes_of(&release);
    assert!(now.len() == 4 && nodes.iter().all(|(node, uid)| now.get(node) == Some(uid)), "{now:?}, but {nodes:?}");
    let next = release.settle(3);
    let said = release.leader_json(&next).expect("it leads");
    assert!(said["token"].as_u64() > token.as_u64(), "{said}");

    // It keeps a pod for as long as an app could take to end: no replica any more, and it could lead.
    finalizers(&release, &next, json!(["example.com/ends"]));
    release.scale(0);
    eventually("one is ending", LONG, || (release.pods_of("replica").len() == 1).then_some(()));
    refused(
        &mut release,
        &["nodes.count=2", "allReplicasStopped=true"],
        &["changes by 2", "and 1 more that are ending"],
    );
    finalizers(&release, &next, Value::Null);
    eventually("all replicas are gone", LONG, || release.pods_of("replica").is_empty().then_some(()));
    let_time_pass("one quarantine: ttl x 1.1", Duration::from_millis(4400));
    taken(&mut release, &["nodes.count=2", "allReplicasStopped=true"]);
    let third = release.settle(3);
    let last = release.leader_json(&third).expect("it leads");
    assert!(last["token"].as_u64() > said["token"].as_u64(), "{last}");
    assert_eq!(release.password(), kept, "an upgrade keeps the password");
    release.uninstall();
}

fn finalizers(release: &Release<'_>, pod: &str, list: Value) {
    release.cluster.patch(&release.pod_path(pod), &json!({"metadata": {"finalizers": list}}));
}

const STEPS: &str = "add or remove one node at each upgrade, or scale to 0, wait until the pods are gone and for one \
                     quarantine more, and upgrade with allReplicasStopped=true";
const ROLLS: &str = "a rollout is not over";

/// A list of a user's own, in all the ways in which it can change.
fn given_nodes(cluster: &Cluster) {
    let mut release =
        Release::new(cluster, "k9-given", &["wait.enabled=false", "redis.addresses={a,b,c}", "replicas=1"]);
    release.install();
    refused(&mut release, &["redis.addresses={a,b,c,d,e}"], &["changes by 2 (+d:6379/0 +e:6379/0)", STEPS]);
    refused(&mut release, &["redis.addresses={a}"], &["changes by 2 (-b:6379/0 -c:6379/0)", STEPS]);
    refused(&mut release, &["redis.addresses={a,b,d}"], &["changes by 2 (-c:6379/0 +d:6379/0)", STEPS]);
    refused(&mut release, &["redis.addresses={a,b,c:6380}"], &["changes by 2 (-c:6379/0 +c:6380/0)", STEPS]);
    // The same nodes in other words.
    taken(&mut release, &["redis.addresses={redis://C:6379/0,b:6379,a}"]);
    rolled_out(&release);
    // While a rollout stands still, pods with the list before it run.
    release.cluster.kubectl(&["rollout", "pause", "-n", "k9-given", "deployment/k9-given"]);
    taken(&mut release, &["redis.addresses={a,b,c,d}"]);
    refused(&mut release, &["redis.addresses={a,b,c,d,e}"], &["changes by 2 (+d:6379/0 +e:6379/0)", ROLLS]);
    taken(&mut release, &["redis.addresses={a,b,c}"]);
    refused(&mut release, &["redis.addresses={a,b}"], &["changes by 2 (-c:6379/0 -d:6379/0)", ROLLS]);
    release.cluster.kubectl(&["rollout", "resume", "-n", "k9-given", "deployment/k9-given"]);
    rolled_out(&release);
    taken(&mut release, &["redis.addresses={a,b}"]);
    rolled_out(&release);
    taken(&mut release, &["redis.addresses={a,b,c}"]);
    release.uninstall();
    figure("K9 list of nodes", "changes by more than one are refused by helm upgrade, by one or none taken");
}

#[track_caller]
fn refused(release: &mut Release<'_>, values: &[&str], words: &[&str]) {
    let output = release.upgrade(values, &[]);
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{values:?} is taken");
    assert!(words.iter().all(|word| why.contains(word)), "{values:?}: {why}");
}

#[track_caller]
fn taken(release: &mut Release<'_>, values: &[&str]) {
    let output = release.upgrade(values, &[]);
    succeed(&format!("{values:?}"), output);
}

/// Whoever leads does so with one token until its pod is told to end: for how long, in seconds.
fn leads_until_it_ends(release: &Release<'_>, leader: &str, token: &Value) -> f64 {
    let began = boot_ms();
    eventually("the rollout reaches the leader", LONG, || {
        let said = release.leader_json(leader);
        let leads = said.as_ref().is_some_and(|said| leads(said) && said["token"] == *token);
        // Looked at afterwards: it may have been told to end between the two.
        let ends = release.pod(leader).is_none_or(|pod| !pod["metadata"]["deletionTimestamp"].is_null());
        assert!(leads || ends, "its leadership has ended before its pod: {said:?}");
        ends.then_some(())
    });
    seconds_since(began)
}

#[track_caller]
fn rolled_out(release: &Release<'_>) {
    let path = format!("/apis/apps/v1/namespaces/{0}/deployments/{0}", release.name);
    eventually("the rollout is over", LONG, || {
        let deployment = release.cluster.get(&path)?;
        let status = &deployment["status"];
        let is_seen = status["observedGeneration"] == deployment["metadata"]["generation"];
        let is_new = status["updatedReplicas"] == deployment["spec"]["replicas"];
        // Those that are ending are no replicas any more, and may still lead.
        let are_all = release.pods_of("replica").len() as u64 == deployment["spec"]["replicas"].as_u64()?;
        (is_seen && is_new && are_all && status["replicas"] == status["updatedReplicas"]).then_some(())
    });
}

/// The nodes' pods, by name and uid.
fn nodes_of(release: &Release<'_>) -> BTreeMap<String, String> {
    let nodes = release.pods_of("node");
    nodes.iter().map(|pod| (name(pod), pod["metadata"]["uid"].to_string())).collect()
}

/// What Helm's waits make of a way to run replicas.
struct Way {
    name: &'static str,
    values: &'static [&'static str],
    /// `--wait` and `kubectl rollout status`.
    ends: bool,
    /// `--wait=legacy`.
    legacy_ends: bool,
}

const RECREATE: &str = "strategy.type=Recreate";

/// As docs/kubernetes.md has it.
const WAYS: [Way; 8] = [
    Way { name: "k9-readiness", values: &["app.port=8080"], ends: false, legacy_ends: true },
    Way { name: "k9-gated", values: &["app.port=8080", "mode=gate"], ends: false, legacy_ends: true },
    Way { name: "k9-readiness-r", values: &["app.port=8080", RECREATE], ends: false, legacy_ends: false },
    Way { name: "k9-gated-r", values: &["app.port=8080", "mode=gate", RECREATE], ends: false, legacy_ends: false },
    Way { name: "k9-label", values: &["app.port=8080", "mode=label"], ends: true, legacy_ends: true },
    Way { name: "k9-label-r", values: &["app.port=8080", "mode=label", RECREATE], ends: true, legacy_ends: true },
    Way { name: "k9-wrap", values: &["wrap.enabled=true", "app.command={/web}"], ends: true, legacy_ends: true },
    Way {
        name: "k9-wrap-port",
        values: &["wrap.enabled=true", "app.command={/web}", "app.port=8080"],
        ends: false,
        legacy_ends: true,
    },
];

fn waits(cluster: &Cluster) {
    thread::scope(|scope| {
        for way in &WAYS {
            scope.spawn(move || if way.ends { all_end(cluster, way) } else { some_never_end(cluster, way) });
        }
    });
    let names = |ends: bool| WAYS.iter().filter(|way| way.ends == ends).map(|way| way.name).collect::<Vec<_>>();
    figure("K9 waits", &format!("all end: {:?}; --wait and rollout status never end: {:?}", names(true), names(false)));
}

fn prepared<'a>(cluster: &'a Cluster, way: &Way) -> Release<'a> {
    let few = ["replicas=2", "nodes.count=1", "ttl=6s"];
    Release::new(cluster, way.name, &[&few, way.values].concat())
}

fn all_end(cluster: &Cluster, way: &Way) {
    let mut release = prepared(cluster, way);
    let output = release.upgrade(&[], &["--install", "--wait", "--timeout", "120s"]);
    succeed(&format!("{} --install --wait", way.name), output);
    assert!(release.leader().is_some(), "{}: the hook has waited for a leader", way.name);
    let output = release.upgrade(&["podAnnotations.turn=2nd"], &["--wait", "--timeout", "120s"]);
    succeed(&format!("{} --wait", way.name), output);
    let output = release.upgrade(&["podAnnotations.turn=3rd"], &["--wait=legacy", "--timeout", "120s"]);
    succeed(&format!("{} --wait=legacy", way.name), output);
    taken(&mut release, &["podAnnotations.turn=4th"]);
    succeed("rollout status", status(&release, "120s"));
    release.uninstall();
}

/// What never ends is given a little time once there is nothing left that could change.
fn some_never_end(cluster: &Cluster, way: &Way) {
    let mut release = prepared(cluster, way);
    let output = release.upgrade(&[], &["--install", "--wait", "--timeout", "15s"]);
    times_out(&format!("{} --install --wait", way.name), &output);
    one_is_ready(&release);
    // What has timed out can be upgraded all the same, and that ends.
    taken(&mut release, &["podAnnotations.turn=2nd"]);
    one_is_ready(&release);
    let output = release.upgrade(&[], &["--wait", "--timeout", "6s"]);
    times_out(&format!("{} --wait", way.name), &output);
    one_is_ready(&release);
    let what = format!("{} --wait=legacy", way.name);
    if way.legacy_ends {
        succeed(&what, release.upgrade(&[], &["--wait=legacy", "--timeout", "120s"]));
    } else {
        times_out(&what, &release.upgrade(&[], &["--wait=legacy", "--timeout", "6s"]));
    }
    one_is_ready(&release);
    times_out(&format!("{} rollout status", way.name), &status(&release, "4s"));
    one_is_ready(&release);
    taken(&mut release, &["podAnnotations.turn=3rd"]);
    release.uninstall();
    if way.legacy_ends {
        install_waits(&release);
    }
}

/// From nothing, without any wait of Helm's own.
fn install_waits(release: &Release<'_>) {
    eventually("all pods are gone", LONG, || {
        [release.pods_of("replica"), release.pods_of("node")].concat().is_empty().then_some(())
    });
    release.install();
    assert!(release.leader().is_some(), "{}: helm install has waited for a leader", release.name);
    release.uninstall();
}

/// It ends for want of time, and for nothing else.
#[track_caller]
fn times_out(what: &str, output: &std::process::Output) {
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{what} ends");
    assert!(why.contains("deadline exceeded") || why.contains("timed out"), "{what}: {why}");
}

#[track_caller]
fn one_is_ready(release: &Release<'_>) {
    eventually("two replicas, and the leader alone is Ready", LONG, || {
        let pods = release.pods();
        let leader = leading(&pods).map(name)?;
        (pods.len() == 2 && ready(&pods) == [leader]).then_some(())
    });
}

fn status(release: &Release<'_>, timeout: &str) -> std::process::Output {
    let (deployment, timeout) = (format!("deployment/{}", release.name), format!("--timeout={timeout}"));
    release.cluster.try_kubectl(&["rollout", "status", "-n", &release.name, &deployment, &timeout])
}

/// A number that YAML and Helm take for a float, as an image's tag.
const TAG: u64 = 20_161_216;

fn numbers(cluster: &Cluster) {
    let (image, _) = IMAGE.split_once(':').expect("it has a tag");
    let tagged = format!("{image}:{TAG}");
    on_every_node(cluster, &["tag", "--force", IMAGE, &tagged]);
    let values = json!({"image": {"tag": TAG}, "maxFailedExtends": 8_388_608, "ttl": "1500000ms",
        "terminationGracePeriodSeconds": 1_000_000});
    let file = cluster.root().join("k9-numbers.yaml");
    std::fs::write(
        &file,
        format!(
            "image: {{tag: {TAG}}}\nmaxFailedExtends: 8388608\nttl: 1500000ms\nterminationGracePeriodSeconds: 1000000\n"
        ),
    )
    .expect("the cluster's directory is ours");
    let set = format!("image.tag={TAG},maxFailedExtends=8388608,ttl=1500000ms,terminationGracePeriodSeconds=1000000");
    let (json, file) = (values.to_string(), file.to_string_lossy());
    thread::scope(|scope| {
        for (name, flags) in
            [("k9-set", ["--set", &set]), ("k9-set-json", ["--set-json", &json]), ("k9-file", ["--values", &file])]
        {
            scope.spawn(move || starts_with_numbers(cluster, name, &flags));
        }
    });
    on_every_node(cluster, &["rm", &tagged]);
    figure("K9 numbers", "ttl 1500000ms, 8388608, 1000000 s and tag 20161216 run as given, by three ways");
}

fn on_every_node(cluster: &Cluster, words: &[&str]) {
    for node in ["node1", "node2"] {
        let mut command = cluster.command("ctr");
        command.arg("-a").arg(cluster.root().join(node).join("c.sock")).args(["-n", "k8s.io", "image"]).args(words);
        succeed("ctr", command.output().expect("containerd is there"));
    }
}

fn starts_with_numbers(cluster: &Cluster, release: &str, flags: &[&str]) {
    // Nobody leads here for a while: the quarantine is longer than the ttl.
    let nobody = format!("redis.addresses={{{HOST}:1}}");
    let mut release = Release::new(cluster, release, &["wait.enabled=false", &nobody, "replicas=1"]);
    release.values.retain(|value| !value.starts_with("image.tag="));
    succeed("helm", release.upgrade(&[], &[&["--install"], flags].concat()));
    let pod = eventually("redleader answers", LONG, || release.pods().into_iter().find(|pod| said(pod).is_some()));
    assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 1_000_000);
    let image = pod["spec"]["initContainers"][0]["image"].as_str().or(pod["spec"]["containers"][0]["image"].as_str());
    assert!(image.is_some_and(|image| image.ends_with(":20161216")), "{image:?}");
    let pid = redleader(&name(&pod));
    let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("it runs");
    let has = |variable: &str| environment.split(|byte| *byte == 0).any(|known| known == variable.as_bytes());
    for variable in ["REDLEADER_TTL=1500000ms", "REDLEADER_MAX_FAILED_EXTENDS=8388608"] {
        assert!(has(variable), "{variable} is not in {}", String::from_utf8_lossy(&environment));
    }
    release.uninstall();
}
