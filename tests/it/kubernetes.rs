//! What is published in Kubernetes, of leaderships that begin and end: on a fake API server.

use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::support::{
    FakeKubernetes, Replica, ReplicaOptions, Servers, boot_ms, eventually, figure, lease_path, let_time_pass, pod_path,
    stays_true,
};

const SOON: Duration = Duration::from_secs(20);
/// Patient with a loaded machine.
const TIMING: [&str; 4] = ["--ttl", "3s", "--node-timeout", "600ms"];
const ALL: [&str; 6] =
    ["--kube-label", "--kube-condition", "--kube-events", "--kube-deletion-cost", "--kube-lease", "web"];

const COST: &str = "controller.kubernetes.io/pod-deletion-cost";

fn start(kubernetes: &FakeKubernetes, nodes: &Servers, lock: &str, pod: &str, flags: &[&str]) -> Replica {
    kubernetes.add_pod(pod);
    kubernetes.replica(lock, pod, &nodes.urls(), &[&TIMING, flags].concat()).start()
}

fn annotation(kubernetes: &FakeKubernetes, pod: &str, name: &str) -> Json {
    kubernetes.pod(pod)["metadata"]["annotations"][name].clone()
}

fn is_published(replica: &Replica) -> bool {
    replica.metric("publish_pending", &[]) == 0.0
}

/// The reasons and notes of all Events on a pod, in the order of their making.
fn events(kubernetes: &FakeKubernetes, pod: &str) -> Vec<(String, String)> {
    let events = kubernetes.events().into_iter().filter(|event| event["regarding"]["name"] == pod);
    let text = |event: &Json, field: &str| event[field].as_str().unwrap_or_default().to_owned();
    events.map(|event| (text(&event, "reason"), text(&event, "note"))).collect()
}

#[test]
fn all_is_published_and_a_steady_state_sends_nothing_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(3));
    let a = start(&kubernetes, &nodes, "steady", "a", &ALL);
    let token = a.wait_elected(1, SOON).number("token").unwrap();
    let b = start(&kubernetes, &nodes, "steady", "b", &ALL);
    eventually("all of it is published", SOON, || (is_published(&a) && is_published(&b)).then_some(()));
    eventually("both have been told of their rights", SOON, || {
        let told = |replica: &Replica| !replica.logged("the service account may do all that is needed").is_empty();
        (told(&a) && told(&b)).then_some(())
    });

    let of_a = kubernetes.pod("a");
    assert_eq!((kubernetes.role("a").as_str(), kubernetes.role("b").as_str()), ("leader", "standby"));
    assert_eq!(of_a["metadata"]["labels"]["app"], "web", "another label is gone: {of_a}");
    assert_eq!(annotation(&kubernetes, "a", "redleader.dev/token"), token.to_string());
    assert_eq!(annotation(&kubernetes, "a", COST), "1000");
    assert_eq!(annotation(&kubernetes, "b", COST), Json::Null);
    let condition = kubernetes.condition("a", "redleader.dev/leader");
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("True"), &json!("Elected")), "{condition}");
    assert_eq!(condition["message"], format!("leads with token {token}"));
    assert_eq!(kubernetes.condition("b", "redleader.dev/leader")["status"], "False");
    assert_eq!(kubernetes.condition("a", "Ready")["status"], "True", "the kubelet's condition is the kubelet's");
    let lease = kubernetes.lease("web");
    assert_eq!(lease["spec"]["holderIdentity"], "a", "{lease}");
    assert_eq!(lease["spec"]["leaseTransitions"], 0);
    assert_eq!(lease["metadata"]["annotations"]["redleader.dev/lock"], "steady");
    for time in ["acquireTime", "renewTime"] {
        let time = lease["spec"][time].as_str().unwrap();
        let (_, digits) = time.split_once('.').unwrap();
        assert_eq!((digits.len(), digits.ends_with('Z')), (7, true), "six digits and a Z: {time}");
    }
    let told = ("LeaderElected".to_owned(), format!("leads lock steady with token {token}"));
    assert_eq!(events(&kubernetes, "a"), [told]);

    let before = kubernetes.count();
    let quiet = Duration::from_secs(6);
    stays_true("it leads", quiet, || a.leads());
    let asked = kubernetes.asked_from(before);
    assert!(asked.is_empty(), "a steady state of {quiet:?} sent: {asked:?}");
    figure("requests to the Kubernetes API in a steady state (fake)", &format!("0 in {} s", quiet.as_secs()));

    let before = kubernetes.count();
    assert_eq!(a.command(&["resign", "--for", "60s"]).code, 0);
    let next = b.wait_elected(1, SOON).number("token").unwrap();
    eventually("the hand-over is published", SOON, || {
        let is_done = is_published(&a) && is_published(&b) && kubernetes.role("a") == "standby";
        (is_done && kubernetes.role("b") == "leader" && kubernetes.lease("web")["spec"]["holderIdentity"] == "b")
            .then_some(())
    });
    let sent = kubernetes.asked_from(before).len();
    figure("requests to the Kubernetes API for one hand-over, all publishers on (fake)", &sent.to_string());
    assert!(sent <= 20, "{:?}", kubernetes.asked_from(before));
    assert_eq!(annotation(&kubernetes, "a", COST), Json::Null);
    assert_eq!(annotation(&kubernetes, "b", COST), "1000");
    let condition = kubernetes.condition("a", "redleader.dev/leader");
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("Resign")), "{condition}");
    assert_eq!(kubernetes.lease("web")["spec"]["leaseTransitions"], 1);
    let told = events(&kubernetes, "a");
    let expected = format!("stopped leading lock steady: resign, token {token}");
    assert_eq!(told.last(), Some(&("LeaderSteppedDown".to_owned(), expected)), "{told:?}");
    assert_eq!(
        events(&kubernetes, "b"),
        [("LeaderElected".to_owned(), format!("leads lock steady with token {next}"))]
    );
}

#[test]
fn c87_what_others_write_survives_and_what_they_change_of_ours_is_put_right_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let a = start(&kubernetes, &nodes, "c87", "a", &ALL);
    a.wait_elected(1, SOON);
    eventually("all of it is published", SOON, || is_published(&a).then_some(()));
    let mut worst = 0;
    let mut put_right = |what: &str, edit: &dyn Fn(&mut Json), is_right: &dyn Fn() -> bool| {
        assert!(is_right(), "{what}");
        let began = boot_ms();
        kubernetes.edit(&pod_path("a"), edit);
        eventually(what, SOON, || is_right().then_some(()));
        worst = worst.max(boot_ms() - began);
    };
    let is_leader = || kubernetes.role("a") == "leader";
    let labels = |pod: &mut Json| pod["metadata"]["labels"] = json!({"app": "web"});
    put_right("a removed label is back", &labels, &is_leader);
    let role = |pod: &mut Json| pod["metadata"]["labels"]["redleader.dev/role"] = json!("standby");
    put_right("a changed label is right", &role, &is_leader);
    let annotations = |pod: &mut Json| pod["metadata"]["annotations"] = json!({});
    put_right("removed annotations are back", &annotations, &|| {
        annotation(&kubernetes, "a", COST) == "1000"
            && annotation(&kubernetes, "a", "redleader.dev/token") != Json::Null
    });
    let conditions = |pod: &mut Json| pod["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    put_right("a lost condition is back", &conditions, &|| {
        kubernetes.condition("a", "redleader.dev/leader")["status"] == "True"
    });
    figure("what others changed of ours was put right within (fake)", &format!("{worst} ms"));

    // Another writer of conditions, while ours flips.
    for flip in 1..=10 {
        kubernetes.edit(&pod_path("a"), |pod| {
            let other = json!({"type": "other", "status": "True", "message": flip.to_string()});
            let all = pod["status"]["conditions"].as_array_mut().unwrap();
            all.retain(|condition| condition["type"] != "other");
            all.push(other);
        });
        assert_eq!(a.command(&["resign", "--for", "100ms"]).code, 0);
        a.wait_elected(flip + 1, SOON);
    }
    eventually("the last flip is published", SOON, || {
        let is_true = kubernetes.condition("a", "redleader.dev/leader")["status"] == "True";
        (is_published(&a) && is_true && is_leader()).then_some(())
    });
    assert_eq!(kubernetes.condition("a", "other")["message"], "10");
    assert_eq!(kubernetes.condition("a", "Ready")["status"], "True");
    // 22 transitions within less than a minute: 10 at once, and one a minute.
    let told = events(&kubernetes, "a").len();
    assert!((10..=12).contains(&told), "{told} events of 21 transitions");
    figure("Events of 21 transitions within a minute (fake)", &told.to_string());
}

#[test]
fn c93_c75_the_label_of_a_dead_leader_is_cleared_by_its_successor_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let a = start(&kubernetes, &nodes, "c93", "a", &ALL);
    let token = a.wait_elected(1, SOON).number("token").unwrap();
    let b = start(&kubernetes, &nodes, "c93", "b", &ALL);
    eventually("b knows a", SOON, || (b.leader_json()["holder"] == "a").then_some(()));
    eventually("all of it is published", SOON, || (is_published(&a) && is_published(&b)).then_some(()));

    let killed = a.kill9();
    b.wait_elected(1, SOON);
    eventually("the dead leader's pod says nothing wrong", SOON, || {
        let is_cleared = kubernetes.condition("a", "redleader.dev/leader")["reason"] == "Displaced";
        (kubernetes.role("a") == "standby" && is_cleared).then_some(())
    });
    figure("from kill -9 of the leader to its label cleared, ttl 3 s (fake)", &format!("{} ms", boot_ms() - killed));
    assert_eq!(annotation(&kubernetes, "a", COST), Json::Null);
    assert_eq!(annotation(&kubernetes, "a", "redleader.dev/token"), token.to_string());
    assert_eq!(kubernetes.role("b"), "leader");
    assert_eq!(kubernetes.condition("a", "Ready")["status"], "True");
}

#[test]
fn only_a_pod_with_a_smaller_token_is_cleared_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let a = start(&kubernetes, &nodes, "smaller", "a", &ALL[..2]);
    a.wait_elected(1, SOON);
    let b = start(&kubernetes, &nodes, "smaller", "b", &ALL[..2]);
    eventually("b knows a", SOON, || (b.leader_json()["holder"] == "a").then_some(()));
    eventually("all of it is published", SOON, || (is_published(&a) && is_published(&b)).then_some(()));
    a.kill9();
    // Meanwhile its pod has come to carry the token of a later leadership.
    let later = 9_000_000_000_000_000_u64;
    kubernetes.edit(&pod_path("a"), |pod| {
        pod["metadata"]["annotations"]["redleader.dev/token"] = json!(later.to_string());
        pod["status"]["conditions"] = json!([
            {"type": "redleader.dev/leader", "status": "True", "message": format!("leads with token {later}")}
        ]);
    });
    b.wait_elected(1, SOON);
    eventually("b is done with its predecessor", SOON, || is_published(&b).then_some(()));
    let asked = kubernetes.asked_from(0);
    assert!(asked.iter().any(|asked| asked.pod == "b" && asked.method == "GET" && asked.path == pod_path("a")));
    let touched =
        asked.iter().any(|asked| asked.pod == "b" && asked.method == "PATCH" && asked.path.contains("pods/a"));
    assert!(!touched, "{asked:?}");
    assert_eq!(kubernetes.role("a"), "leader");
}

#[test]
fn another_pod_of_the_same_name_is_left_alone_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let a = start(&kubernetes, &nodes, "same-name", "a", &ALL[..1]);
    a.wait_elected(1, SOON);
    eventually("it is published", SOON, || (kubernetes.role("a") == "leader").then_some(()));
    kubernetes.edit(&pod_path("a"), |pod| {
        pod["metadata"]["uid"] = json!("another");
        pod["metadata"]["labels"] = json!({"redleader.dev/role": "leader"});
    });
    assert_eq!(a.command(&["resign", "--for", "60s"]).code, 0);
    eventually("it is refused", SOON, || {
        (a.metric("publish_errors_total", &[("target", "label"), ("code", "422")]) > 0.0).then_some(())
    });
    assert_eq!(kubernetes.role("a"), "leader");
    assert_eq!(a.metric("publish_pending", &[("target", "label")]), 1.0);
}

#[test]
fn c3_c7_a_loss_is_an_event_of_its_own_with_reason_and_token_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let a = start(&kubernetes, &nodes, "c3", "a", &["--kube-events"]);
    let first = a.wait_elected(1, SOON).number("token").unwrap();
    eventually("it is told", SOON, || (events(&kubernetes, "a").len() == 1).then_some(()));
    a.stop();
    let_time_pass("the leadership expires while its process stands still", Duration::from_millis(4000));
    a.cont();
    let second = a.wait_elected(2, SOON).number("token").unwrap();
    let told = eventually("all is told", SOON, || {
        let told = events(&kubernetes, "a");
        (told.len() == 3).then_some(told)
    });
    let reasons: Vec<&str> = told.iter().map(|(reason, _)| reason.as_str()).collect();
    assert_eq!(reasons, ["LeaderElected", "LeaderSteppedDown", "LeaderElected"], "{told:?}");
    assert_eq!(told[1].1, format!("stopped leading lock c3: expired, token {first}"));
    assert_eq!(told[2].1, format!("leads lock c3 with token {second}"));

    // C7: its key in another's hands.
    for node in nodes.iter() {
        node.cli(&["SET", "c3", "somebody", "PX", "1500"]);
    }
    let told = eventually("the loss is told", SOON, || events(&kubernetes, "a").into_iter().nth(3));
    assert_eq!(told, ("LeaderSteppedDown".to_owned(), format!("stopped leading lock c3: lost, token {second}")));
    let loss = kubernetes.events().into_iter().find(|event| event["note"] == told.1).unwrap();
    assert_eq!(loss["type"], "Warning");
}

#[test]
fn c83_an_event_is_in_the_pods_namespace_and_about_it_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let a = start(&kubernetes, &nodes, "c83", "a", &["--kube-events"]);
    a.wait_elected(1, SOON);
    let event = eventually("it is told", SOON, || kubernetes.events().into_iter().next());
    assert_eq!(event["metadata"]["namespace"], "team-a");
    let regarding = json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "namespace": "team-a", "uid": "uid-of-a"});
    assert_eq!(event["regarding"], regarding);
    assert_eq!(event["apiVersion"], "events.k8s.io/v1");
}

#[test]
fn c71_c73_a_lease_has_whole_seconds_and_the_locks_name_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let replicas: Vec<(Replica, &str, u64)> = [("500ms", 1), ("1500ms", 2)]
        .into_iter()
        .map(|(ttl, seconds)| {
            kubernetes.add_pod(ttl);
            let args = ["--ttl", ttl, "--node-timeout", "100ms", "--kube-lease", ttl];
            let lock = format!("c71-{ttl}");
            (kubernetes.replica(&lock, ttl, &nodes.urls(), &args).start(), ttl, seconds)
        })
        .collect();
    for (replica, ttl, seconds) in &replicas {
        replica.wait_elected(1, SOON);
        let lease =
            eventually("the Lease is there", SOON, || Some(kubernetes.lease(ttl)).filter(|lease| !lease.is_null()));
        assert_eq!(lease["spec"]["leaseDurationSeconds"], *seconds, "{lease}");
        assert_eq!(lease["metadata"]["annotations"]["redleader.dev/lock"], format!("c71-{ttl}"));
        assert_eq!(replica.metric("publish_errors_total", &[("code", "422")]), 0.0);
    }
}

#[test]
fn a_lease_of_somebody_else_is_left_alone_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let foreign = json!({"kind": "Lease", "metadata": {"name": "web"}, "spec": {"holderIdentity": "controller",
        "leaseDurationSeconds": 15}});
    kubernetes.put(&lease_path("web"), foreign);
    let before = kubernetes.lease("web");
    let a = start(&kubernetes, &nodes, "foreign", "a", &["--kube-lease", "web"]);
    a.wait_elected(1, SOON);
    let line = a.wait_for_message("cannot publish; trying on", 1, SOON);
    assert!(line.text("reason").contains("the Lease web exists and is not redleader's"), "{line:?}");
    assert_eq!(kubernetes.lease("web"), before);
    assert_eq!(a.metric("publish_pending", &[("target", "lease")]), 1.0);
    assert!(a.leads());
}

#[test]
fn a_lease_goes_away_with_the_workload_where_rights_allow_it_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let owned = |kind: &str, name: &str| json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": format!("uid-of-{name}"), "controller": true}]);
    let set =
        json!({"kind": "ReplicaSet", "metadata": {"name": "web-5d", "ownerReferences": owned("Deployment", "web")}});
    kubernetes.put("/apis/apps/v1/namespaces/team-a/replicasets/web-5d", set);
    for (pod, denied, owner) in [
        ("in-deployment", "", json!("web")),
        ("in-stateful-set", "", json!("db")),
        ("without-rights", "get replicasets", Json::Null),
        ("without-a-pod", "get pods", Json::Null),
        ("bare", "", Json::Null),
    ] {
        kubernetes.add_pod(pod);
        kubernetes.edit(&pod_path(pod), |object| match pod {
            "bare" => {}
            "in-stateful-set" => object["metadata"]["ownerReferences"] = owned("StatefulSet", "db"),
            _ => object["metadata"]["ownerReferences"] = owned("ReplicaSet", "web-5d"),
        });
        kubernetes.allow_all();
        kubernetes.deny(denied);
        let a = kubernetes.replica(pod, pod, &nodes.urls(), &[&TIMING[..], &["--kube-lease", pod]].concat()).start();
        let lease =
            eventually("the Lease is there", SOON, || Some(kubernetes.lease(pod)).filter(|lease| !lease.is_null()));
        assert_eq!(lease["metadata"]["ownerReferences"][0]["name"], owner, "{pod}: {lease}");
        let forbidden = kubernetes.asked_from(0).into_iter().filter(|asked| asked.status == 403).count();
        assert_eq!(forbidden, 0, "{pod}");
        drop(a);
    }
}

#[test]
fn c25_equal_identities_are_warned_of_where_the_lease_shows_them_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let args = |uid: &'static str| {
        ["--pod-name", "a", "--pod-namespace", "team-a", "--pod-uid", uid, "--kube-lease", "web", "--ttl", "3s"]
    };
    kubernetes.add_pod("a");
    let options = |uid| kubernetes.in_pod(uid, ReplicaOptions::new("c25", "host", &nodes.urls()).args(args(uid)));
    let a = options("uid-1").start();
    a.wait_elected(1, SOON);
    eventually("it is published", SOON, || is_published(&a).then_some(()));
    let b = options("uid-2").start();
    eventually("b sees a hold", SOON, || (b.leader_json()["holder"] == "host").then_some(()));
    assert!(!b.leads(), "the same identity is not the same owner");
    a.kill9();
    b.wait_elected(1, SOON);
    b.wait_for_message("identities are not unique", 1, SOON);
    eventually("the Lease names the other pod", SOON, || {
        (kubernetes.lease("web")["metadata"]["annotations"]["redleader.dev/pod-uid"] == "uid-2").then_some(())
    });
}

#[test]
fn c67_c109_no_secret_is_published_or_logged_fake() {
    let kubernetes = FakeKubernetes::start();
    let nodes: Vec<_> = (0..1)
        .map(|_| {
            let options = crate::support::ServerOptions::new().password("p@ss/w:rd#S3cr3t");
            crate::support::Server::start(crate::support::Flavour::Redis70, options)
        })
        .collect();
    let urls: Vec<String> = nodes.iter().map(|node| format!("redis://{}", node.address())).collect();
    kubernetes.add_pod("a");
    let args = [&TIMING[..], &ALL, &["--log-level", "trace"]].concat();
    let a = kubernetes.replica("c67", "a", &urls, &args).env("REDLEADER_REDIS_PASSWORD", "p@ss/w:rd#S3cr3t").start();
    a.wait_elected(1, SOON);
    eventually("all of it is published", SOON, || is_published(&a).then_some(()));
    a.term();
    assert_eq!(a.wait_exit(SOON), 0);
    let published: Vec<Json> = kubernetes.asked_from(0).into_iter().map(|asked| asked.body).collect();
    let log: Vec<Json> = a.log().into_iter().map(|line| line.json).collect();
    let told = format!("{published:?} {log:?}");
    assert!(published.len() > 5 && log.len() > 5);
    for secret in ["S3cr3t", "t0ken"] {
        assert!(!told.contains(secret), "{secret} in {told}");
    }
}

#[test]
fn the_end_is_told_on_sigterm_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let a = start(&kubernetes, &nodes, "end", "a", &ALL);
    a.wait_elected(1, SOON);
    eventually("all of it is published", SOON, || is_published(&a).then_some(()));
    let began = boot_ms();
    a.term();
    assert_eq!(a.wait_exit(SOON), 0);
    figure("from SIGTERM to exit, all publishers on (fake)", &format!("{} ms", boot_ms() - began));
    assert_eq!(kubernetes.role("a"), "standby");
    assert_eq!(kubernetes.lease("web")["spec"]["holderIdentity"], "");
    assert_eq!(kubernetes.condition("a", "redleader.dev/leader")["reason"], "Shutdown");
    assert_eq!(events(&kubernetes, "a").len(), 2);
    assert!(a.logged("kubernetes was not told to the end").is_empty());
}
