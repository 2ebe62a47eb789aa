//! A real Prometheus scrapes three replicas through a hand-over and a crash, and its answers are held against the logs.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value as Json;

use crate::support::{
    Judge, Prometheus, Replica, ReplicaOptions, Servers, TempDir, boot_ms, eventually, figure, let_time_pass,
};

const SOON: Duration = Duration::from_secs(15);
const SCRAPE: Duration = Duration::from_millis(200);

/// Who holds the lock: the instance that says that it leads, and the name that all agree on.
fn holder(prometheus: &Prometheus) -> Option<(String, String)> {
    let leading = prometheus.query("redleader_is_leader{lock=\"job\"} == 1");
    let names = prometheus.query("count by (holder) (redleader_holder_info{lock=\"job\"})");
    match (leading.as_slice(), names.as_slice()) {
        ([(leader, _)], [(name, _)]) => {
            let text = |json: &Json| json.as_str().unwrap().to_owned();
            Some((text(&leader["instance"]), text(&name["holder"])))
        }
        _ => None,
    }
}

/// A quantile as Prometheus computes it, out of what the replicas say at the end: the bucket that it lies in.
fn bucket_of_p99(metrics: &[BTreeMap<String, f64>], node: &str) -> (f64, f64) {
    let mut buckets: Vec<(f64, f64)> = Vec::new();
    for replica in metrics {
        for (sample, count) in replica {
            let is_ours = sample.starts_with("redleader_node_command_duration_seconds_bucket{")
                && sample.contains(&format!("node=\"{node}\""))
                && sample.contains("op=\"extend\"");
            if !is_ours {
                continue;
            }
            let le = sample.split("le=\"").nth(1).unwrap().split('"').next().unwrap();
            let le = if le == "+Inf" { f64::INFINITY } else { le.parse().unwrap() };
            match buckets.iter_mut().find(|(bound, _)| *bound == le) {
                Some((_, sum)) => *sum += count,
                None => buckets.push((le, *count)),
            }
        }
    }
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    let rank = buckets.last().unwrap().1 * 0.99;
    let at = buckets.iter().position(|(_, count)| *count >= rank).unwrap();
    (if at == 0 { 0.0 } else { buckets[at - 1].0 }, buckets[at].0)
}

#[test]
fn the_metrics_are_as_promtool_wants_them() {
    let servers = Servers::start(3);
    let replica = ReplicaOptions::new("job", "a", &servers.urls()).args(["--ttl", "1s"]).start();
    replica.wait_elected(1, SOON);
    let directory = TempDir::new();
    let file = directory.write("metrics", &replica.get("/metrics").unwrap().body);
    let mut command = Command::new("sh");
    command.args(["-c", "promtool check metrics <\"$0\""]).arg(&file).stdin(Stdio::null());
    let checked = crate::support::run("promtool", command, SOON);
    assert_eq!((checked.code, checked.stderr.as_str()), (0, ""), "{checked:?}");
}

#[test]
fn queries_give_what_the_logs_say_through_a_hand_over_and_a_crash() {
    let servers = Servers::start(3);
    let start = |identity: &str| {
        // The quarantine is long enough for Prometheus to be up before anything is extended.
        let args = ["--ttl", "4s", "--renew-every", "400ms", "--quarantine", "6s"];
        ReplicaOptions::new("job", identity, &servers.urls()).args(args).start()
    };
    let replicas = [start("a"), start("b"), start("c")];
    let targets = replicas.each_ref().map(|replica| format!("'{}'", replica.address())).join(", ");
    let job = format!("- job_name: redleader\n  static_configs:\n  - targets: [{targets}]\n");
    let prometheus = Prometheus::start(SCRAPE, &job, &[]);
    let leader = |but: &[u32]| {
        let leads = |replica: &&Replica| !but.contains(&replica.pid()) && replica.leads();
        eventually("one leads", SOON, || replicas.iter().find(leads))
    };
    let agrees = |replica: &Replica| {
        let expected = Some((replica.address(), replica.identity().to_owned()));
        eventually("Prometheus knows who holds the lock", SOON, || (holder(&prometheus) == expected).then_some(()));
    };
    eventually("Prometheus scrapes all three", SOON, || (prometheus.value("sum(up)") == Some(3.0)).then_some(()));
    assert!(replicas.iter().all(|replica| replica.logged("elected").is_empty()), "it has seen every counter at 0");
    let first = leader(&[]);
    agrees(first);
    assert_eq!(prometheus.value("max(redleader_fencing_token)"), first.leader_json()["token"].as_f64());
    let watched_from = boot_ms();

    // A hand-over on request, and then a crash: the first takes milliseconds, the second what is left of the ttl.
    assert_eq!(first.command(&["resign", "--for", "1m"]).code, 0);
    first.wait_for_message("stepped down", 1, SOON);
    let second = leader(&[first.pid()]);
    agrees(second);
    let of_second = second.metrics();
    let dead = second.kill9();
    let third = leader(&[first.pid(), second.pid()]);
    let back = third.wait_elected(1, SOON).number("boot_ms").unwrap();
    agrees(third);
    let_time_pass("extends are rated over some scrapes", SCRAPE * 10);

    let window = boot_ms() - watched_from;
    let step = SCRAPE.as_millis();
    let without = format!(
        "sum_over_time((1 - clamp_max(sum(redleader_is_leader{{lock=\"job\"}}), 1))[{window}ms:{step}ms]) * {}",
        SCRAPE.as_secs_f64()
    );
    let measured = prometheus.value(&without).unwrap();
    let hand_over = {
        let down = first.logged("stepped down")[0].number("boot_ms").unwrap();
        second.logged("elected")[0].number("boot_ms").unwrap() - down
    };
    let crash = back - dead;
    let real = (hand_over + crash) as f64 / 1000.0;
    figure(
        "H2, seconds without a leader",
        &format!("Prometheus {measured:.1} s, logs {real:.3} s (hand-over {hand_over} ms, crash {crash} ms)"),
    );
    assert!(real >= 3.0, "a crash leaves the ttl of 4 s less what had passed of it: {real}");
    // Each of the two gaps begins and ends between two scrapes, and a scrape of a loaded machine comes late.
    assert!((measured - real).abs() <= 3.0 * SCRAPE.as_secs_f64(), "Prometheus says {measured} s, the logs {real} s");

    let by_node = prometheus.query(
        "histogram_quantile(0.99, sum by (node, le) (rate(\
         redleader_node_command_duration_seconds_bucket{op=\"extend\"}[1m])))",
    );
    let mut nodes: Vec<&str> = by_node.iter().map(|(labels, _)| labels["node"].as_str().unwrap()).collect();
    nodes.sort_unstable();
    let mut addresses = servers.addresses();
    addresses.sort();
    assert_eq!(nodes, addresses);
    let at_the_end = [first.metrics(), of_second, third.metrics()];
    for (labels, p99) in &by_node {
        let node = labels["node"].as_str().unwrap();
        let (low, high) = bucket_of_p99(&at_the_end, node);
        figure("H2, extend latency p99 by node", &format!("{:.2} ms, within {low} and {high} s", p99 * 1000.0));
        // Prometheus saw some extends fewer than there were at the end: one bucket either way may come of it.
        assert!(*p99 >= low / 2.6 && *p99 <= (high * 2.6).min(10.0), "{node}: {p99} is not near {low} to {high}");
    }
    Judge::check_replicas(&replicas).assert_clean("H2, three replicas that Prometheus scrapes");
}
