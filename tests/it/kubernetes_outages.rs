//! A Kubernetes API that is slow, away, cut off or hostile: leadership goes on, and the truth is told afterwards. On a
//! fake API server.

use std::time::Duration;

use crate::support::{
    FakeKubernetes, Judge, Replica, Servers, Weather, boot_ms, eventually, figure, let_time_pass, percentile,
    stays_true,
};

const SOON: Duration = Duration::from_secs(20);
/// After an outage: one limit, the longest pause, and what a loaded machine adds.
const AFTERWARDS: Duration = Duration::from_secs(20);
const TIMING: [&str; 4] = ["--ttl", "3s", "--node-timeout", "600ms"];
const ALL: [&str; 6] =
    ["--kube-label", "--kube-condition", "--kube-events", "--kube-deletion-cost", "--kube-lease", "web"];

fn start(kubernetes: &FakeKubernetes, nodes: &Servers, lock: &str, pod: &str, flags: &[&str]) -> Replica {
    kubernetes.add_pod(pod);
    kubernetes.replica(lock, pod, &nodes.urls(), &[&TIMING, flags].concat()).start()
}

fn is_published(replica: &Replica) -> bool {
    replica.metric("publish_pending", &[]) == 0.0
}

fn routez(replica: &Replica) -> u16 {
    replica.get("/routez").map_or(0, |response| response.status)
}

/// Distances between the extends of a leader, as the server saw them.
fn rhythm(monitor: &crate::support::Monitor) -> Vec<f64> {
    let requests = monitor.requests();
    let extends: Vec<u64> =
        requests.iter().filter(|line| line.name.starts_with("EVAL")).map(|line| line.server_us).collect();
    extends.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1000.0).collect()
}

#[test]
fn c89_leadership_does_not_feel_an_api_that_hangs_throttles_or_is_gone_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let a = start(&kubernetes, &nodes, "c89", "a", &ALL);
    a.wait_elected(1, SOON);
    eventually("all of it is published", SOON, || is_published(&a).then_some(()));
    let monitor = nodes[0].monitor();
    let before = kubernetes.count();
    // Somebody changes what is published, so that there is something to send all the time.
    kubernetes.set_weather(Weather::Status(429, Some(60)));
    for weather in [Weather::Status(429, Some(60)), Weather::Hang, Weather::Reset, Weather::Status(500, None)] {
        kubernetes.edit(&crate::support::pod_path("a"), |pod| {
            pod["metadata"]["labels"] = serde_json::json!({"app": "web"});
            pod["metadata"]["annotations"] = serde_json::json!({});
        });
        kubernetes.set_weather(weather);
        let held = Duration::from_secs(5);
        stays_true(&format!("it leads under {weather:?}"), held, || a.leads());
    }
    let distances = rhythm(&monitor);
    let p99 = percentile(&distances, 99).unwrap();
    figure("extends every 750 ms under an API that hangs, throttles, resets (fake)", &format!("p99 {p99:.0} ms"));
    assert!(p99 < 750.0 * 5.0, "{distances:?}");
    assert_eq!(a.logged("elected").len(), 1);
    // Only the latest state is kept: two publishers of which each has one request at a time, and the watch.
    let sent = kubernetes.asked_from(before).len();
    figure("requests in 20 s of outages, two publishers with something to tell (fake)", &sent.to_string());
    assert!(sent < 60, "{sent} requests");
    assert_eq!(a.metric("publish_pending", &[("target", "label")]), 1.0);
    assert!(a.metric("publish_errors_total", &[("target", "label")]) > 0.0);

    kubernetes.set_weather(Weather::Fair);
    let back = boot_ms();
    eventually("all is right afterwards", AFTERWARDS, || {
        (is_published(&a) && kubernetes.role("a") == "leader").then_some(())
    });
    figure("from the API's return to the right label (fake)", &format!("{} ms", boot_ms() - back));
}

#[test]
fn the_latest_state_wins_under_hangs_of_ten_seconds_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let a = start(&kubernetes, &nodes, "latest", "a", &ALL[..2]);
    a.wait_elected(1, SOON);
    eventually("all of it is published", SOON, || is_published(&a).then_some(()));
    // Everything is done at once, and nobody hears of it in time.
    kubernetes.set_weather(Weather::Slow(Duration::from_secs(10)));
    let before = kubernetes.count();
    for n in 2..=6 {
        assert_eq!(a.command(&["resign", "--for", "100ms"]).code, 0);
        a.wait_elected(n, SOON);
    }
    let token = a.logged("elected").last().unwrap().number("token").unwrap();
    // Each state is sent once at the change, whatever hangs; none of the old ones is sent again.
    let labels: Vec<_> = kubernetes
        .asked_from(before)
        .into_iter()
        .filter(|asked| asked.method == "PATCH" && !asked.path.ends_with("/status"))
        .collect();
    assert!(labels.len() <= 11, "{labels:?}");
    kubernetes.set_weather(Weather::Fair);
    eventually("the latest state is published", AFTERWARDS, || is_published(&a).then_some(()));
    let (annotated, message) = (token.to_string(), format!("leads with token {token}"));
    let is_right = || {
        kubernetes.role("a") == "leader"
            && kubernetes.pod("a")["metadata"]["annotations"]["redleader.dev/token"] == annotated
            && kubernetes.condition("a", "redleader.dev/leader")["message"] == message
    };
    stays_true("nothing old comes after it", Duration::from_secs(2), is_right);
}

#[test]
fn c75_a_leader_that_is_cut_off_is_cleared_by_its_successor_and_routes_nothing_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let a = start(&kubernetes, &nodes, "c75", "a", &ALL);
    a.wait_elected(1, SOON);
    let b = start(&kubernetes, &nodes, "c75", "b", &ALL);
    eventually("b knows a", SOON, || (b.leader_json()["holder"] == "a").then_some(()));
    eventually("all of it is published", SOON, || (is_published(&a) && is_published(&b)).then_some(()));
    assert_eq!((routez(&a), routez(&b)), (200, 200));

    kubernetes.cut_off("a");
    assert_eq!(a.command(&["resign", "--for", "60s"]).code, 0);
    b.wait_elected(1, SOON);
    assert_eq!(routez(&a), 503, "its pod may still be labelled");
    eventually("the successor clears its label", SOON, || {
        (kubernetes.role("a") == "standby" && kubernetes.role("b") == "leader").then_some(())
    });
    assert_eq!(a.metric("publish_pending", &[("target", "label")]), 1.0);
    eventually("it tries on", SOON, || {
        (a.metric("publish_errors_total", &[("target", "label"), ("code", "timeout")]) >= 2.0).then_some(())
    });
    assert_eq!((routez(&a), routez(&b)), (503, 200));

    kubernetes.reconnect();
    eventually("it is right by its own word", AFTERWARDS, || (is_published(&a) && routez(&a) == 200).then_some(()));
    let condition = kubernetes.condition("a", "redleader.dev/leader");
    assert_eq!((condition["status"].as_str(), condition["reason"].as_str()), (Some("False"), Some("Resign")));
    assert_eq!(kubernetes.role("b"), "leader");
    Judge::check_replicas([&a, &b]).assert_clean("a leader that is cut off from the API (fake)");
}

#[test]
fn c75_a_step_down_under_twenty_errors_in_a_row_is_told_in_the_end_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let a = start(&kubernetes, &nodes, "c75-errors", "a", &ALL[..1]);
    a.wait_elected(1, SOON);
    eventually("it is published", SOON, || is_published(&a).then_some(()));
    for (n, status) in [(1, 409), (2, 429), (3, 500), (4, 503)] {
        kubernetes.set_weather(Weather::Status(status, None));
        assert_eq!(a.command(&["resign", "--for", "1500ms"]).code, 0);
        let code = if status >= 500 { "5xx".to_owned() } else { status.to_string() };
        let failures = || a.metric("publish_errors_total", &[("target", "label"), ("code", &code)]);
        let known = failures();
        eventually("it fails again and again", SOON, || (failures() >= known + 4.0).then_some(()));
        kubernetes.set_weather(Weather::Fair);
        a.wait_elected(n + 1, SOON);
        eventually("it is told", AFTERWARDS, || (is_published(&a) && kubernetes.role("a") == "leader").then_some(()));
    }
}

/// Without the right to watch, nobody tells that a request which was given up has been done after all.
#[test]
fn a_label_that_lands_late_routes_nothing_and_is_put_right_without_a_watch_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    kubernetes.deny("watch pods");
    let a = start(&kubernetes, &nodes, "late", "a", &ALL[..1]);
    a.wait_elected(1, SOON);
    eventually("it is published", SOON, || is_published(&a).then_some(()));
    assert_eq!(a.command(&["resign", "--for", "1s"]).code, 0);
    eventually("it is published", SOON, || (kubernetes.role("a") == "standby").then_some(()));
    kubernetes.set_weather(Weather::Late(Duration::from_secs(3)));
    let before = kubernetes.count();
    a.wait_elected(2, SOON);
    eventually("the label is asked for", SOON, || {
        kubernetes.asked_from(before).iter().any(|asked| asked.method == "PATCH").then_some(())
    });
    kubernetes.set_weather(Weather::Fair);
    assert_eq!(a.command(&["resign", "--for", "60s"]).code, 0);
    // The label of the leadership that is over comes now.
    eventually("the old label lands", SOON, || (kubernetes.role("a") == "leader").then_some(()));
    eventually("it is put right", SOON, || {
        let is_labelled = kubernetes.role("a") == "leader";
        assert!(!is_labelled || routez(&a) == 503 || kubernetes.role("a") != "leader", "a standby is routed to");
        (!is_labelled && routez(&a) == 200).then_some(())
    });
}

#[test]
fn c91_a_connection_that_died_without_a_word_is_replaced_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let a = start(&kubernetes, &nodes, "c91", "a", &ALL[..1]);
    a.wait_elected(1, SOON);
    eventually("it is published", SOON, || is_published(&a).then_some(()));
    kubernetes.freeze_connections();
    let began = boot_ms();
    assert_eq!(a.command(&["resign", "--for", "60s"]).code, 0);
    eventually("the label is right", SOON, || (kubernetes.role("a") == "standby").then_some(()));
    figure("from a step-down on a dead connection to the right label (fake)", &format!("{} ms", boot_ms() - began));
    // The watch was on such a connection, too.
    let edit = |pod: &mut serde_json::Value| pod["metadata"]["labels"]["redleader.dev/role"] = "leader".into();
    kubernetes.edit(&crate::support::pod_path("a"), edit);
    eventually("what others change is seen again", SOON, || (kubernetes.role("a") == "standby").then_some(()));
}

#[test]
fn an_api_that_hangs_delays_no_release_and_no_exit_beyond_its_bound_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    // A pause in an attempt is up to ttl/2: release and win must not need to wait for it.
    let a = start(&kubernetes, &nodes, "exit", "a", &ALL);
    a.wait_elected(1, SOON);
    let b = start(&kubernetes, &nodes, "exit", "b", &[]);
    eventually("b knows a", SOON, || (b.leader_json()["holder"] == "a").then_some(()));
    eventually("all of it is published", SOON, || is_published(&a).then_some(()));
    kubernetes.set_weather(Weather::Hang);
    let began = boot_ms();
    a.term();
    let stepped = a.wait_for_message("stepped down", 1, SOON).number("boot_ms").unwrap();
    let won = b.wait_elected(1, SOON).number("boot_ms").unwrap();
    assert_eq!(a.wait_exit(SOON), 0);
    let exited = boot_ms() - began;
    let (gap, down) = (won.saturating_sub(stepped), stepped.saturating_sub(began));
    figure(
        "SIGTERM under an API that hangs (fake)",
        &format!("stepped down after {down} ms, the next leader {gap} ms later, exit after {exited} ms"),
    );
    // LAST_WORDS is 2 s; releases are not measured by it.
    assert!((2000..10_000).contains(&exited), "{exited} ms");
    assert!(won < began + exited, "the next leader had to wait for our exit");
    a.wait_for_message("kubernetes was not told to the end", 1, SOON);
}

#[test]
fn routez_is_503_while_a_standby_may_be_labelled_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let leader = start(&kubernetes, &nodes, "routez", "leader", &[]);
    leader.wait_elected(1, SOON);
    assert_eq!(routez(&leader), 200, "nothing is published");
    kubernetes.set_weather(Weather::Hang);
    let a = start(&kubernetes, &nodes, "routez", "a", &ALL[..1]);
    eventually("it knows the leader", SOON, || (a.leader_json()["holder"] == "leader").then_some(()));
    // An earlier run of its container may have left the label.
    stays_true("it says 503", Duration::from_secs(1), || routez(&a) == 503);
    let body = a.get("/routez").unwrap().body;
    assert_eq!(body, "the pod may be labelled as the leader; standby: held by leader\n");
    kubernetes.set_weather(Weather::Fair);
    eventually("it is known not to be labelled", AFTERWARDS, || (routez(&a) == 200).then_some(()));
    assert_eq!(kubernetes.role("a"), "standby");
    kubernetes.edit(&crate::support::pod_path("a"), |pod| {
        pod["metadata"]["labels"]["redleader.dev/role"] = "leader".into();
    });
    eventually("a label by another's hand is put right", SOON, || {
        (kubernetes.role("a") == "standby" && routez(&a) == 200).then_some(())
    });
    leader.term();
    a.wait_elected(1, SOON);
    assert_eq!(routez(&a), 200);
    let_time_pass("a moment of leading", Duration::from_millis(100));
    assert_eq!(routez(&a), 200);
}
