//! Without the API server: the election does not notice.

use std::time::Duration;

use serde_json::Value;

use crate::caller::Caller;
use crate::cluster::{Cluster, seconds_since, succeed};
use crate::figures::{figure, setting};
use crate::release::{LONG, Release, condition, name, process, said};
use crate::row::{Row, Stage};
use crate::wait::{boot_ms, eventually, let_time_pass, stays_true};

pub const ROWS: &[Row] = &[
    Row {
        name: "K3-stopped",
        shows: "an API server that is stopped costs no leadership and no extend, and the Service goes on",
        stage: Stage::Api,
        run: stopped,
    },
    Row {
        name: "K3-published",
        shows: "what the API server missed or refused is right within 10 s of its return",
        stage: Stage::ApiAlone,
        run: published_again,
    },
    Row {
        name: "K3-cut",
        shows: "a leader that alone is cut from the API server: its successor clears its label",
        stage: Stage::Together,
        run: cut_alone,
    },
];

/// How long the API server is away.
fn away() -> Duration {
    Duration::from_secs(if setting("SCALE").as_deref() == Some("soak") { 300 } else { 60 })
}

fn stopped(cluster: &Cluster) {
    let release = Release::new(cluster, "k3", &["app.port=8080"]);
    release.install();
    let leader = release.settle(3);
    eventually("the leader answers the Service", LONG, || {
        (crate::caller::call(&release.service()).as_ref() == Some(&leader)).then_some(())
    });
    let pod = release.pods().into_iter().find(|pod| name(pod) == leader).expect("the leader's pod");
    let token = said(&pod).expect("it leads")["token"].clone();
    let failed = failed_extends(&pod);
    let caller = Caller::start(&release.service());
    cluster.part("stop", "apiserver");
    stays_true("one leadership while the API server is away", away(), || {
        said(&pod).is_some_and(|said| said["leading"] == true && said["token"] == token)
    });
    cluster.part("start", "apiserver");
    eventually("the API server is back", LONG, || cluster.get("/readyz?verbose=0").or(cluster.get("/api/v1/nodes")));
    let seen = caller.finish();
    assert_eq!(failed_extends(&pod), failed, "an extend failed");
    assert_eq!(seen.names(), [leader], "the Service goes on");
    figure(
        "K3 API server stopped",
        &format!("{} s, one leadership, longest silence {} ms", away().as_secs(), seen.gap()),
    );
    release.uninstall();
}

/// All that can be published, in mode label.
const PUBLISHED: [&str; 5] =
    ["mode=label", "app.port=8080", "publish.condition=true", "publish.events=true", "publish.lease=who-leads"];

/// The leadership moves while the API server is away, and again while it refuses all that the replicas ask.
fn published_again(cluster: &Cluster) {
    let release = Release::new(cluster, "k3-label", &PUBLISHED);
    release.install();
    let first = release.settle(3);
    eventually("all that is published is right", LONG, || is_right(&release, &first));

    let pods = release.pods();
    cluster.part("stop", "apiserver");
    resign(&first);
    let second =
        eventually("another leads, by the pods' own word", LONG, || leading(&pods).filter(|pod| *pod != first));
    cluster.part("start", "apiserver");
    eventually("the API server is back", LONG, || cluster.get("/api/v1/nodes"));
    let back = boot_ms();
    eventually("all that is published is right again", LONG, || is_right(&release, &second));
    tell("API server stopped, leadership moved", back);

    cluster.apply(&REFUSE.replace("NAMESPACE", "k3-label"));
    // The configuration is taken up within a moment, which a request of ours cannot see.
    let_time_pass("the API server refuses", Duration::from_secs(3));
    resign(&second);
    let third = eventually("another leads", LONG, || leading(&pods).filter(|pod| *pod != second));
    stays_true("one leadership under 429", Duration::from_secs(10), || leading(&pods).as_ref() == Some(&third));
    cluster.kubectl(&["delete", "flowschema,prioritylevelconfiguration", "refuse"]);
    let back = boot_ms();
    eventually("all that is published is right again", LONG, || is_right(&release, &third));
    tell("API server answered 429, leadership moved", back);
    release.uninstall();
}

/// A leader that alone is cut from the API server: its successor says what it cannot.
fn cut_alone(cluster: &Cluster) {
    let release = Release::new(cluster, "k3-cut", &PUBLISHED);
    release.install();
    let cut = release.settle(3);
    eventually("all that is published is right", LONG, || is_right(&release, &cut));
    let pods = release.pods();
    let address = pods.iter().find(|pod| name(pod) == cut).and_then(|pod| pod["status"]["podIP"].as_str()).unwrap();
    let wall = ["INPUT", "-s", address, "-p", "tcp", "--dport", "6443", "-j", "DROP"];
    iptables("-I", &wall);
    let caller = Caller::start(&release.service());
    let began = boot_ms();
    resign(&cut);
    let next = eventually("another leads", LONG, || leading(&pods).filter(|pod| *pod != cut));
    let cleared = || (label(&release, &cut) == "standby" && label(&release, &next) == "leader").then_some(());
    eventually("the successor clears the label", LONG, cleared);
    figure(
        "K3 leader cut from the API server alone",
        &format!("label cleared {:.1} s after resign", seconds_since(began)),
    );
    eventually("the successor answers", LONG, || {
        (crate::caller::call(&release.service()).as_ref() == Some(&next)).then_some(())
    });
    iptables("-D", &wall);
    let seen = caller.finish();
    assert_eq!(seen.overlap(), 0, "ms of overlap: {:?}", seen.names());
    eventually("all that is published is right again", LONG, || is_right(&release, &next));
    release.uninstall();
}

/// The API server's own way to refuse: no seat for these accounts.
const REFUSE: &str = r#"
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: refuse}
spec:
  type: Limited
  limited: {nominalConcurrencyShares: 0, lendablePercent: 0, borrowingLimitPercent: 0, limitResponse: {type: Reject}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: refuse}
spec:
  priorityLevelConfiguration: {name: refuse}
  matchingPrecedence: 2
  rules:
    - subjects: [{kind: Group, group: {name: "system:serviceaccounts:NAMESPACE"}}]
      resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], namespaces: ["*"], clusterScope: true}]
"#;

fn tell(what: &str, back: u64) {
    let took = seconds_since(back);
    figure(&format!("K3 {what}"), &format!("label, condition and Lease right {took:.1} s after it"));
    assert!(took <= 10.0, "{took} s");
}

/// The pod that leads, asked at the pods' own addresses.
fn leading(pods: &[Value]) -> Option<String> {
    pods.iter().find(|pod| said(pod).is_some_and(|said| said["leading"] == true)).map(name)
}

fn label(release: &Release<'_>, pod: &str) -> String {
    let pod = release.pods().into_iter().find(|known| name(known) == pod).unwrap_or_default();
    pod["metadata"]["labels"]["redleader.dev/role"].as_str().unwrap_or_default().to_owned()
}

/// Labels, conditions and Lease say of every pod what is so.
pub fn is_right(release: &Release<'_>, leader: &str) -> Option<()> {
    let pods = release.pods();
    let pod_is_right = |pod: &Value| {
        let leads = name(pod) == leader;
        let role = pod["metadata"]["labels"]["redleader.dev/role"].as_str();
        role == Some(if leads { "leader" } else { "standby" })
            && condition(pod, "redleader.dev/leader") == Some(if leads { "True" } else { "False" })
    };
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/who-leads", release.name);
    let lease = release.cluster.get(&path)?;
    (pods.iter().all(pod_is_right) && lease["spec"]["holderIdentity"] == leader).then_some(())
}

/// Asks a pod's redleader to resign, by its control socket, without the API server.
fn resign(pod: &str) {
    let pid = process(pod, "redleader").expect("the leader's process");
    let exe = format!("/proc/{pid}/exe");
    let mut command = std::process::Command::new("nsenter");
    command.args(["-t", &pid.to_string(), "-n", &exe, "resign", "--for", "20s"]);
    succeed("resign", command.output().expect("nsenter is there"));
}

fn iptables(what: &str, rule: &[&str]) {
    let output = std::process::Command::new("iptables").args(["-w", what]).args(rule).output();
    succeed("iptables", output.expect("iptables is there"));
}

/// Rounds of extends without a quorum, as the pod counts them.
fn failed_extends(pod: &Value) -> String {
    let address = format!("{}:9797", pod["status"]["podIP"].as_str().expect("it runs"));
    let (_, metrics) = crate::caller::get(&address, "/metrics").expect("metrics");
    let wanted = |line: &&str| line.starts_with("redleader_extend_attempts_total") && !line.contains("\"ok\"");
    metrics.lines().filter(wanted).collect::<Vec<_>>().join("\n")
}
