//! What Kubernetes enforces for a release: the admission policy, the disruption budgets, and a right to one Lease.

use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::audit::{self, asked, denied};
use crate::cluster::{ADMIN, Cluster, seconds_since};
use crate::figures::figure;
use crate::pod::{LEADER, ROLE, condition, name, signal, wait_for_process};
use crate::release::{LONG, Release};
use crate::row::{Row, Stage};
use crate::wait::{boot_ms, eventually};

pub const ROWS: &[Row] = &[
    Row {
        name: "K9-policy",
        shows: "the admission policy refuses nothing that redleader does, and all else that its account could do to pods",
        stage: Stage::Together,
        run: admission_policy,
    },
    Row {
        name: "K9-budget",
        shows: "a budget lets one Ready pod go at a time and never keeps an unready one; where one is Ready there is none",
        stage: Stage::Together,
        run: budgets,
    },
    Row {
        name: "K9-lease",
        shows: "the account may get and patch the Lease of the rendered name and no other, whatever the names",
        stage: Stage::Together,
        run: one_lease,
    },
];

/// All that can be published, under the policy.
const PUBLISHED: [&str; 8] = [
    "admissionPolicy.enabled=true",
    "app.port=8080",
    "publish.label=true",
    "publish.condition=true",
    "publish.events=true",
    "publish.deletionCost=true",
    "publish.lease=who-leads",
    "podAnnotations.example=kept",
];

fn admission_policy(cluster: &Cluster) {
    thread::scope(|scope| {
        scope.spawn(|| {
            let release = under_policy(cluster, "k9-policy", &["mode=label", "ttl=4s"]);
            nothing_else(&release);
            release.uninstall();
        });
        scope.spawn(|| under_policy(cluster, "k9-gate", &["mode=gate", "ttl=6s"]).uninstall());
    });
    for kind in ["validatingadmissionpolicies", "validatingadmissionpolicybindings"] {
        let left = cluster.list(&format!("/apis/admissionregistration.k8s.io/v1/{kind}"));
        let left: Vec<String> = left.iter().map(name).filter(|name| name.contains("-k9-")).collect();
        assert!(left.is_empty(), "uninstall leaves {left:?} in the cluster");
    }
}

/// A release goes through elections, and the policy refuses nothing of it.
fn under_policy<'a>(cluster: &'a Cluster, name: &str, mode: &[&str]) -> Release<'a> {
    let (release, first) = Release::up(cluster, name, &[&PUBLISHED, mode].concat(), 3);
    is_active(&release, &first);
    eventually("all that is published is right", LONG, || all_is_right(&release, &first));
    let second = release.hand_over(&first);
    eventually("all that is published is right", LONG, || all_is_right(&release, &second));
    // A leader that stands still for longer than the ttl is displaced, and cannot take back what it said.
    signal(wait_for_process(&second, "redleader"), Signal::STOP);
    let third = release.next_leader(&[&second]);
    let began = boot_ms();
    eventually("the successor clears what it said", LONG, || all_is_right(&release, &third));
    figure(
        &format!("{name} successor"),
        &format!("all of its predecessor cleared after {:.1} s", seconds_since(began)),
    );
    signal(wait_for_process(&second, "redleader"), Signal::CONT);
    let requests = asked(&audit::log(cluster), name, name);
    let without_right: Vec<_> = requests.iter().filter(|(_, code)| matches!(code, 401 | 403)).collect();
    assert!(without_right.is_empty(), "{name}: {without_right:?}");
    assert_eq!(denied(&release, "?timeout="), [""; 0], "what redleader asks for");
    let changes = requests.iter().filter(|(what, _)| what.starts_with("patch pods")).count();
    figure(&format!("{name} requests"), &format!("{changes} changes of pods in 3 leaderships, none refused"));
    assert!(changes >= 9, "{requests:?}");
    release
}

/// A policy takes effect a moment after it is there. What the API server's own check of its types says is nothing.
fn is_active(release: &Release<'_>, pod: &str) {
    let who = impersonated(release);
    eventually("the policy is in force", LONG, || attempt(release, &who, pod, "", &label("example", "x")).err());
    let path =
        format!("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/redleader-{0}.{0}", release.name);
    let warnings = eventually("the policy's types are checked", LONG, || {
        let policy = release.cluster.get(&path)?;
        let is_checked = policy["status"]["observedGeneration"] == policy["metadata"]["generation"];
        is_checked.then(|| policy["status"]["typeChecking"]["expressionWarnings"].clone())
    });
    assert!(warnings.is_null(), "{warnings}");
}

/// Label, condition, Lease, and the cost of deletion.
fn all_is_right(release: &Release<'_>, leader: &str) -> Option<()> {
    let cost = |pod: &Value| pod["metadata"]["annotations"][COST].as_str().map(str::to_owned);
    let costs_are_right =
        release.pods().iter().all(|pod| cost(pod).as_deref() == (name(pod) == leader).then_some("1000"));
    release.is_right(leader).filter(|()| costs_are_right)
}

const TOKEN: &str = "redleader.dev/token";
const COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The policy's clauses, by their messages.
const LABELS: &str = "may change no label but redleader.dev/role";
const ANNOTATIONS: &str = "may change no annotation but";
const ROLE_ALONE: &str = "may change nothing of a pod but its role";
const STATUS: &str = "may change nothing of a pod's status but";
const CONDITIONS: &str = "may change no condition but";
const OTHERS: &str = "may only take the role away from another pod of its own";

/// Whose pod is changed, by which subresource, how, and the clause that refuses it; "" is none.
type Trial<'a> = (&'a str, &'static str, Value, &'static str);

fn label(key: &str, value: impl Into<Value>) -> Value {
    json!({"metadata": {"labels": {key: value.into()}}})
}

fn annotation(key: &str, value: impl Into<Value>) -> Value {
    json!({"metadata": {"annotations": {key: value.into()}}})
}

fn status_of(kind: &str, status: &str) -> Value {
    json!({"status": {"conditions": [{"type": kind, "status": status}]}})
}

fn of_the_own_pod(own: &str) -> Vec<Trial<'_>> {
    vec![
        (own, "", label(ROLE, "leader"), ""),
        (own, "", label(ROLE, Value::Null), ""),
        (own, "", annotation(TOKEN, "1"), ""),
        (own, "", annotation(COST, "1000"), ""),
        (own, "/status", status_of(LEADER, "True"), ""),
        (own, "", label("example", "x"), LABELS),
        (own, "", label("app.kubernetes.io/component", "x"), LABELS),
        (own, "", label("app.kubernetes.io/component", Value::Null), LABELS),
        (own, "/status", label("example", "x"), LABELS),
        (own, "", annotation("example.com/x", "x"), ANNOTATIONS),
        (own, "", annotation("example", "x"), ANNOTATIONS),
        (own, "", annotation("example", Value::Null), ANNOTATIONS),
        (own, "/status", annotation("example", "x"), ANNOTATIONS),
        (own, "", json!({"spec": {"containers": [{"name": "app", "image": "localhost/web:2"}]}}), ROLE_ALONE),
        (own, "", json!({"spec": {"activeDeadlineSeconds": 1}}), ROLE_ALONE),
        (own, "", json!({"metadata": {"finalizers": ["example.com/x"]}}), ROLE_ALONE),
        (own, "", json!({"metadata": {"ownerReferences": null}}), ROLE_ALONE),
        (own, "/status", json!({"status": {"phase": "Failed"}}), STATUS),
        (own, "/status", json!({"status": {"message": "x"}}), STATUS),
        (own, "/status", json!({"status": {"startTime": null}}), STATUS),
        (own, "/status", address("10.88.0.250"), STATUS),
        (own, "/status", status_of("Ready", "Unknown"), CONDITIONS),
        (own, "/status", status_of("example.com/x", "True"), CONDITIONS),
        (own, "/status", json!({"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}), CONDITIONS),
    ]
}

fn address(of: &str) -> Value {
    json!({"status": {"podIP": of, "podIPs": [{"ip": of}, {"$patch": "replace"}]}})
}

fn of_other_pods<'a>(leader: &'a str, standby: &'a str, foreign: &'a str) -> Vec<Trial<'a>> {
    vec![
        // What a successor does.
        (leader, "", label(ROLE, "standby"), ""),
        (leader, "", annotation(COST, Value::Null), ""),
        (leader, "/status", status_of(LEADER, "False"), ""),
        (leader, "", label(ROLE, Value::Null), OTHERS),
        (leader, "", label(ROLE, "x"), OTHERS),
        (leader, "", annotation(TOKEN, "1"), OTHERS),
        (leader, "", annotation(TOKEN, Value::Null), OTHERS),
        (leader, "", annotation(COST, "-1"), OTHERS),
        (leader, "", label("example", "x"), LABELS),
        (leader, "", annotation("example", "x"), ANNOTATIONS),
        (leader, "", json!({"spec": {"activeDeadlineSeconds": 1}}), ROLE_ALONE),
        (leader, "/status", status_of("Ready", "False"), CONDITIONS),
        (leader, "/status", address("10.88.0.250"), STATUS),
        (standby, "", label(ROLE, "leader"), OTHERS),
        (standby, "", label(ROLE, Value::Null), OTHERS),
        (standby, "", annotation(COST, "1000"), OTHERS),
        (standby, "/status", status_of(LEADER, "True"), OTHERS),
        (standby, "", label("example", "x"), LABELS),
        // Of another account, however alike they are.
        (foreign, "", label(ROLE, "standby"), OTHERS),
        (foreign, "", annotation(TOKEN, "2"), OTHERS),
        (foreign, "/status", status_of(LEADER, "False"), OTHERS),
        (foreign, "", label("example", "x"), LABELS),
    ]
}

/// All that the account's rights reach, tried with the token of one of its pods.
fn nothing_else(release: &Release<'_>) {
    let (leader, standbys) = leader_and_standbys(release);
    let foreign = format!("{}-nodes-0", release.name);
    release.cluster.kubectl(&["label", "pod", "-n", &release.name, &foreign, &format!("{ROLE}=leader")]);
    release.cluster.kubectl(&["annotate", "pod", "-n", &release.name, &foreign, &format!("{TOKEN}=1")]);
    let [own, other] = standbys.as_slice() else { panic!("{standbys:?}") };
    let token = bound_token(release, own);
    let trials = [of_the_own_pod(own), of_other_pods(&leader, other, &foreign)].concat();
    for trial in &trials {
        holds(release, &token, trial);
    }
    // Without the pod's name in it, no pod is the own one; a role can be taken away all the same.
    let unbound = create_token(release, &[]);
    for who in [unbound, impersonated(release)] {
        holds(release, &who, &(&leader, "", label(ROLE, "standby"), ""));
        holds(release, &who, &(own, "", label(ROLE, "leader"), OTHERS));
    }
    // It is about this account only.
    holds(release, ADMIN, &(own, "", label("example", "x"), ""));
    assert!(!denied(release, "?dryRun=").is_empty(), "the audit log tells what is denied");
    let refused: Vec<&Trial<'_>> = trials.iter().filter(|(.., clause)| !clause.is_empty()).collect();
    release.cluster.kubectl(&[
        "delete",
        "validatingadmissionpolicybinding",
        &format!("redleader-{0}.{0}", release.name),
    ]);
    eventually("the policy is out of force", LONG, || {
        attempt(release, &token, refused[0].0, refused[0].1, &refused[0].2).ok()
    });
    for (pod, part, patch, _) in &refused {
        let taken = attempt(release, &token, pod, part, patch);
        taken.unwrap_or_else(|why| panic!("{patch} is refused by something else: {why}"));
    }
    let counts = format!("{} of {} trials refused, by all 6 clauses; none without it", refused.len(), trials.len());
    figure("K9 admission policy", &counts);
}

/// Roles as Kubernetes knows them, once they are right.
fn leader_and_standbys(release: &Release<'_>) -> (String, Vec<String>) {
    eventually("all that is published is right", LONG, || {
        let leader = release.leader()?;
        all_is_right(release, &leader)?;
        let standbys = release.pods().iter().map(name).filter(|pod| *pod != leader).collect();
        Some((leader, standbys))
    })
}

/// The API server's word on a change, which is not made: why not, if it refuses.
fn attempt(release: &Release<'_>, who: &str, pod: &str, part: &str, patch: &Value) -> Result<(), String> {
    let path = format!("{}{part}?dryRun=All", release.pod_path(pod));
    release.cluster.patch_as(who, &path, patch).map(drop)
}

fn holds(release: &Release<'_>, who: &str, (pod, part, patch, clause): &Trial<'_>) {
    match attempt(release, who, pod, part, patch) {
        Ok(()) => assert!(clause.is_empty(), "{pod} {part} {patch} is taken"),
        Err(why) => assert!(!clause.is_empty() && why.contains(clause), "{pod} {part} {patch}: {why}"),
    }
}

fn impersonated(release: &Release<'_>) -> String {
    format!("Impersonate-User: system:serviceaccount:{0}:{0}", release.name)
}

/// A token as the kubelet gives it to this pod.
fn bound_token(release: &Release<'_>, pod: &str) -> String {
    create_token(release, &["--bound-object-kind=Pod", "--bound-object-name", pod])
}

fn create_token(release: &Release<'_>, bound: &[&str]) -> String {
    let words = ["create", "token", "-n", &release.name, &release.name];
    format!("Authorization: Bearer {}", release.cluster.kubectl(&[&words, bound].concat()).trim())
}

fn budgets(cluster: &Cluster) {
    thread::scope(|scope| {
        scope.spawn(|| one_at_a_time(cluster));
        scope.spawn(|| no_budget(cluster, "k9-unready", "readiness"));
        scope.spawn(|| no_budget(cluster, "k9-ungated", "gate"));
    });
}

/// Two replicas of mode label: while one is not Ready the other one stays, and the one that is not may always go.
fn one_at_a_time(cluster: &Cluster) {
    let (release, leader) =
        Release::up(cluster, "k9-budget", &["mode=label", "app.port=8080", "replicas=2", "ttl=4s"], 2);
    allows(&release, 1);
    let standby = release.pods().iter().map(name).find(|pod| *pod != leader).expect("two replicas");
    signal(wait_for_process(&standby, "redleader"), Signal::STOP);
    eventually("the standby is not Ready", LONG, || (release.ready() == [leader.clone()]).then_some(()));
    allows(&release, 0);
    assert_eq!(release.evict(&leader), 429, "the only Ready pod");
    assert_eq!(release.evict(&standby), 201, "a pod that is not Ready anyway");
    signal(wait_for_process(&standby, "redleader"), Signal::CONT);
    let began = boot_ms();
    allows(&release, 1);
    assert_eq!(release.evict(&leader), 201, "the leader");
    release.next_leader(&[&leader]);
    figure(
        "K9 budget of mode label",
        &format!(
            "1 disruption allowed of 2 Ready, 0 of 1 Ready, the unready evicted all the same; leader evicted and \
             another elected {:.1} s later",
            seconds_since(began)
        ),
    );
    release.uninstall();
}

#[track_caller]
fn allows(release: &Release<'_>, disruptions: u64) {
    let path = format!("/apis/policy/v1/namespaces/{0}/poddisruptionbudgets/{0}", release.name);
    eventually("the budget allows so many", LONG, || {
        let budget = release.cluster.get(&path)?;
        (budget["status"]["disruptionsAllowed"] == disruptions).then_some(())
    });
}

/// Where only the leader is Ready, nothing keeps it, and nothing keeps a standby.
fn no_budget(cluster: &Cluster, release: &str, mode: &str) {
    let mode = format!("mode={mode}");
    let release = Release::new(cluster, release, &[&mode, "app.port=8080", "replicas=2", "ttl=6s"]);
    release.install();
    let budgets = cluster.list(&format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets", release.name));
    let budgets: Vec<String> = budgets.iter().map(name).collect();
    assert_eq!(budgets, [format!("{}-nodes", release.name)], "the nodes' own alone");
    let leader = release.settle(2);
    eventually("the leader alone is Ready", LONG, || (release.ready() == [leader.clone()]).then_some(()));
    let standby = release.pods().into_iter().find(|pod| name(pod) != leader).expect("two replicas");
    assert_eq!(condition(&standby, "Ready"), Some("False"));
    assert_eq!(release.evict(&name(&standby)), 201, "a standby");
    assert_eq!(release.evict(&leader), 201, "the leader, at the first request");
    release.next_leader(&[&leader]);
    release.uninstall();
}

/// The longest name that a release can have.
const LONG_NAME: &str = "k9-a-release-with-a-name-as-long-as-names-may-be-here";

fn one_lease(cluster: &Cluster) {
    let long_lease = format!("{}.of-its-own", "lease-".repeat(16).trim_end_matches('-'));
    let leases = [("k9-lease", "who-leads"), ("k9-lease-2", "k9-lease"), (LONG_NAME, long_lease.as_str())];
    thread::scope(|scope| {
        for (name, lease) in leases {
            scope.spawn(move || its_lease(cluster, name, lease));
        }
    });
    figure("K9 one Lease", &format!("{} pairs of names, up to {} bytes", leases.len(), long_lease.len()));
}

fn its_lease(cluster: &Cluster, release: &str, lease: &str) {
    let published = format!("publish.lease={lease}");
    let values =
        [published.as_str(), "fullnameOverride=", "lock=a lock: of {its} own", "replicas=0", "redis.addresses={a:1}"];
    let release = Release::new(cluster, release, &values);
    release.install();
    let deployments = cluster.list(&format!("/apis/apps/v1/namespaces/{}/deployments", release.name));
    let pod = &deployments[0]["spec"]["template"]["spec"];
    let account = format!("system:serviceaccount:{}:{}", release.name, pod["serviceAccountName"].as_str().unwrap());
    let containers = [pod["initContainers"].as_array(), pod["containers"].as_array()];
    let mut variables = containers.into_iter().flatten().flatten().filter_map(|it| it["env"].as_array()).flatten();
    let told =
        variables.find(|variable| variable["name"] == "REDLEADER_KUBE_LEASE").expect("redleader is told its name");
    assert_eq!(told["value"], lease);
    let may = |verb: &str, name: &str| {
        let object = format!("leases.coordination.k8s.io{name}");
        let words = ["auth", "can-i", verb, &object, "-n", &release.name, "--as", &account];
        String::from_utf8_lossy(&cluster.try_kubectl(&words).stdout).trim() == "yes"
    };
    let (named, other) = (format!("/{lease}"), format!("/{lease}2"));
    for verb in ["get", "patch"] {
        assert!(may(verb, &named), "{verb} {lease}");
        assert!(!may(verb, &other), "{verb} {lease}2");
        assert!(!may(verb, ""), "{verb} of every Lease");
    }
    assert!(may("create", ""), "before it is there, a Lease has no name");
    for verb in ["list", "watch", "update", "delete"] {
        assert!(!may(verb, &named), "{verb} {lease} is not used");
    }
    release.uninstall();
}
