//! The closed lists of the contract with users, compared with the program both ways. A change here is a [CHANGE].

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use crate::support::{Output, ReplicaOptions, Servers, binary, run};

const SOON: Duration = Duration::from_secs(10);

fn redleader(words: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(words);
    run("redleader", command, SOON)
}

fn help(words: &[&str]) -> String {
    let output = redleader(&[words, &["--help"]].concat());
    assert_eq!(output.code, 0, "{output:?}");
    output.stdout
}

/// Flag by flag: its variable and its default, as the long help shows them.
fn flags(command: &str) -> BTreeMap<String, (String, String)> {
    let help = help(&[command]);
    let mut flags: BTreeMap<String, (String, String)> = BTreeMap::new();
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    let mut current = None;
    for line in help.lines() {
        let word = line.trim_start().split([' ', '[']).next().unwrap_or_default();
        if line.starts_with("      --") {
            current = Some(word.to_owned());
        }
        if let Some(flag) = &current {
            let text = texts.entry(flag.clone()).or_default();
            text.push(' ');
            text.push_str(line.trim());
        }
    }
    for (flag, text) in texts {
        let between = |open: &str, close: char| {
            let (_, rest) = text.split_once(open)?;
            rest.split(close).next().map(str::to_owned)
        };
        let default = between("[default: ", ']').or_else(|| between("(default: ", ')')).unwrap_or_default();
        flags.insert(flag, (between("[env: ", ']').unwrap_or_default(), default));
    }
    flags
}

fn set<'a>(words: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    words.into_iter().map(str::to_owned).collect()
}

#[test]
fn sub_commands() {
    let help = help(&[]);
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let names = commands.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let found = set(names.map(|line| line.split_whitespace().next().unwrap()));
    assert_eq!(found, set(["run", "status", "doctor", "wait", "resign", "drain", "demo", "install", "completions"]));
    assert_eq!(redleader(&["--version"]).stdout, format!("redleader {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(redleader(&["help"]).code, 64);
}

const NODES: [(&str, &str); 8] = [
    ("--lock", ""),
    ("--redis", ""),
    ("--redis-file", ""),
    ("--redis-username", ""),
    ("--redis-password-file", ""),
    ("--redis-ca-file", "those of the system"),
    ("--redis-cert-file", ""),
    ("--redis-key-file", ""),
];

/// Those that every command takes which looks at nodes; the others are checked by all, and told of by `run`.
const TIMING: [(&str, &str); 5] = [
    ("--ttl", "8s"),
    ("--clock-margin", "10%"),
    ("--node-timeout", "ttl/20"),
    ("--quarantine", "ttl x (1 + clock margin"),
    ("--connect-timeout", "1s or ttl/4, the longer"),
];

const ENDPOINTS: [(&str, &str); 2] =
    [("--listen", "0.0.0.0:9797"), ("--control", "@redleader-PORT, the port of --listen")];

/// Those of everything that is published in Kubernetes: `doctor` looks at the rights that they need.
const KUBERNETES: [(&str, &str); 9] = [
    ("--pod-name", "POD_NAME"),
    ("--pod-namespace", "POD_NAMESPACE"),
    ("--pod-uid", "POD_UID"),
    ("--kube-label", "off"),
    ("--kube-condition", "off"),
    ("--kube-events", "off"),
    ("--kube-deletion-cost", "off"),
    ("--kube-lease", "off"),
    ("--kube-proxy", "off"),
];

const RUN: [(&str, &str); 8] = [
    ("--renew-every", "ttl/4"),
    ("--grace", "ttl/8"),
    ("--max-failed-extends", "0"),
    ("--handover-delay", "0s"),
    ("--stop-timeout", "10s"),
    ("--identity", "the pod's name, else HOST-PID"),
    ("--log-level", "info"),
    ("--log-format", "auto"),
];

const APP: [(&str, &str); 5] = [
    ("--app-ready", ""),
    ("--app-ready-every", "1s"),
    ("--app-ready-failures", "3"),
    ("--app-grace", "1m"),
    ("--leadership-file", ""),
];

const WORK: [(&str, &str); 6] = [
    ("--on-exit", "exit"),
    ("--on-lost", "stop"),
    ("--stop-signal", "TERM"),
    ("--on-elected", ""),
    ("--on-stepped-down", ""),
    ("--hook-timeout", "grace/2"),
];

#[test]
fn flags_variables_and_defaults() {
    let of = |lists: &[&[(&'static str, &'static str)]]| -> Vec<(&str, &str)> { lists.concat() };
    for (command, expected, without_variable) in [
        ("run", of(&[&NODES, &TIMING, &ENDPOINTS, &RUN, &WORK, &APP, &KUBERNETES]), &[][..]),
        (
            "status",
            of(&[&NODES, &TIMING, &ENDPOINTS, &[("--output", "text"), ("--watch", "")]]),
            &["--output", "--watch"],
        ),
        (
            "doctor",
            // It judges the leader's timing, too.
            of(&[&NODES, &TIMING, &RUN[..2], &KUBERNETES, &[("--next", ""), ("--for", "30s"), ("--output", "text")]]),
            &["--next", "--for", "--output"],
        ),
        (
            "wait",
            of(&[&NODES, &TIMING, &[("--for", "leader"), ("--timeout", "60s"), ("--output", "text")]]),
            &["--for", "--timeout", "--output"],
        ),
        ("resign", of(&[&ENDPOINTS, &[("--for", "30s")]]), &["--for"]),
        ("drain", of(&[&ENDPOINTS]), &[]),
        ("demo", of(&[&NODES[1..], &[("--ttl", "2s")]]), &["--ttl"]),
        ("install", of(&[]), &[]),
        ("completions", of(&[]), &[]),
    ] {
        let mut found = flags(command);
        for (flag, default) in expected {
            let (variable, shown) = found.remove(flag).unwrap_or_else(|| panic!("{command} has no {flag}"));
            assert_eq!(shown, default, "{command} {flag}");
            let name = format!("REDLEADER_{}", flag.trim_start_matches('-').replace('-', "_").to_uppercase());
            let expected = if without_variable.contains(&flag) { String::new() } else { name };
            assert_eq!(variable, expected, "{command} {flag}");
        }
        assert!(found.is_empty(), "{command} has flags that are not in the list: {found:?}");
    }
}

/// Name, labels and kind of every metric of ours.
const METRICS: [(&str, &[&str], &str); 39] = [
    ("leader_election_master_status", &["name"], "gauge"),
    ("redleader_acquire_attempts_total", &["lock", "outcome"], "counter"),
    ("redleader_acquire_duration_seconds", &["lock", "outcome"], "histogram"),
    ("redleader_app_healthy", &["lock"], "gauge"),
    ("redleader_build_info", &["version"], "gauge"),
    ("redleader_event_loop_lag_seconds", &[], "gauge"),
    ("redleader_extend_attempts_total", &["lock", "outcome"], "counter"),
    ("redleader_extend_duration_seconds", &["lock", "outcome"], "histogram"),
    ("redleader_extend_margin_ratio", &["lock"], "histogram"),
    ("redleader_failover_gap_seconds", &["lock"], "histogram"),
    ("redleader_fencing_token", &["lock"], "gauge"),
    ("redleader_holder_info", &["lock", "holder"], "gauge"),
    ("redleader_is_leader", &["lock"], "gauge"),
    ("redleader_last_extend_timestamp_seconds", &["lock"], "gauge"),
    ("redleader_leader_since_timestamp_seconds", &["lock"], "gauge"),
    ("redleader_leadership_file_errors_total", &["lock"], "counter"),
    ("redleader_lease_expiry_timestamp_seconds", &["lock"], "gauge"),
    ("redleader_list_mismatch", &["lock"], "gauge"),
    ("redleader_loop_tick_age_seconds", &[], "gauge"),
    ("redleader_node_clock_offset_seconds", &["node"], "gauge"),
    ("redleader_node_command_duration_seconds", &["node", "op"], "histogram"),
    ("redleader_node_errors_total", &["node", "kind"], "counter"),
    ("redleader_node_eviction_policy_bad", &["node"], "gauge"),
    ("redleader_node_quarantined", &["node"], "gauge"),
    ("redleader_node_up", &["node"], "gauge"),
    ("redleader_publish_errors_total", &["target", "code"], "counter"),
    ("redleader_publish_pending", &["target"], "gauge"),
    ("redleader_quarantine_seconds", &["lock"], "gauge"),
    ("redleader_quorum_reachable", &["lock"], "gauge"),
    ("redleader_quorum_required", &["lock"], "gauge"),
    ("redleader_release_attempts_total", &["lock", "outcome"], "counter"),
    ("redleader_state", &["lock", "state"], "gauge"),
    ("redleader_stepdowns_total", &["lock", "reason"], "counter"),
    ("redleader_transitions_total", &["lock", "event"], "counter"),
    ("process_cpu_seconds_total", &[], "counter"),
    ("process_open_fds", &[], "gauge"),
    ("process_resident_memory_bytes", &[], "gauge"),
    ("process_start_time_seconds", &[], "gauge"),
    ("process_threads", &[], "gauge"),
];

/// Come with the process metrics of the client library, or only after 30 seconds.
const METRICS_TOO: [&str; 3] = ["process_max_fds", "process_virtual_memory_bytes", "redleader_node_clock_rate_ratio"];

const KINDS: &str = "timeout dns connect tls auth noperm readonly loading masterdown misconf oom noreplicas busy \
                     clusterdown moved wrongtype maxclients unsupported newer-state bad-state no-run-id same-node clock \
                     protocol unknown";

const TARGETS: &str = "label condition lease event deletion-cost predecessor";

/// The values that a label of a metric may have; all of them are there from the start.
const VALUES: [(&str, &str, &str); 12] = [
    ("redleader_state", "state", "starting standby campaigning leader stepping-down draining"),
    (
        "redleader_stepdowns_total",
        "reason",
        "shutdown resign renew-timeout lost expired superseded max-failed-extends app-unhealthy child-exited hook-failed",
    ),
    ("redleader_transitions_total", "event", "elected stepped-down holder-changed"),
    ("redleader_acquire_attempts_total", "outcome", "won held split quarantined outdated late no-quorum cancelled"),
    ("redleader_extend_attempts_total", "outcome", "ok no-quorum lost"),
    ("redleader_release_attempts_total", "outcome", "ok partial failed"),
    ("redleader_node_errors_total", "kind", KINDS),
    ("redleader_node_command_duration_seconds_count", "op", "connect look acquire extend release"),
    ("redleader_holder_info", "holder", "a"),
    ("redleader_publish_errors_total", "target", TARGETS),
    ("redleader_publish_pending", "target", TARGETS),
    ("redleader_publish_errors_total", "code", "400 401 403 404 409 422 429 5xx timeout connect tls other"),
];

const DURATIONS: &str = "0.00025 0.0005 0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 +Inf";

const BUCKETS: [(&str, &str); 5] = [
    ("redleader_acquire_duration_seconds", DURATIONS),
    ("redleader_extend_duration_seconds", DURATIONS),
    ("redleader_node_command_duration_seconds", DURATIONS),
    ("redleader_extend_margin_ratio", "0.05 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 +Inf"),
    (
        "redleader_failover_gap_seconds",
        "0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 25 50 100 250 300 +Inf",
    ),
];

/// One sample: name, and labels with their values.
fn sample(line: &str) -> (String, BTreeMap<String, String>) {
    let (series, _) = line.rsplit_once(' ').unwrap();
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let labels = labels.trim_end_matches('}').split("\",").filter(|label| !label.is_empty());
    let label = |text: &str| {
        let (name, value) = text.split_once("=\"").unwrap();
        (name.to_owned(), value.trim_end_matches('"').to_owned())
    };
    (name.to_owned(), labels.map(label).collect())
}

#[test]
fn metrics_their_labels_and_the_values_of_their_labels() {
    let servers = Servers::start(3);
    // With an app that is a condition, so that its gauge is there.
    let replica = ReplicaOptions::new("job", "a", &servers.urls())
        .args(["--ttl", "1s", "--node-timeout", "200ms", "--app-ready", "file:/"])
        .start();
    replica.wait_elected(1, SOON);
    let text = replica.get("/metrics").unwrap().body;
    let kinds: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).map(sample).collect();
    let of = |name: &str| -> Vec<&BTreeMap<String, String>> {
        samples.iter().filter(|(found, _)| found == name).map(|(_, labels)| labels).collect()
    };

    for (name, labels, kind) in METRICS {
        assert_eq!(kinds.get(name), Some(&kind), "{name}");
        let base = if kind == "histogram" { format!("{name}_count") } else { name.to_owned() };
        let series = of(&base).into_iter().next().unwrap_or_else(|| panic!("{name} has no series"));
        assert_eq!(series.keys().cloned().collect::<BTreeSet<_>>(), set(labels.iter().copied()), "{name}");
        assert!(text.contains(&format!("# HELP {name} ")), "{name}");
    }
    let listed: BTreeSet<&str> = METRICS.iter().map(|(name, ..)| *name).chain(METRICS_TOO).collect();
    let others: Vec<&&str> = kinds.keys().filter(|name| !listed.contains(**name)).collect();
    assert!(others.is_empty(), "metrics that are not in the list: {others:?}");

    for (name, label, values) in VALUES {
        let found: BTreeSet<String> = of(name).into_iter().map(|labels| labels[label].clone()).collect();
        assert_eq!(found, set(values.split_whitespace()), "{label} of {name}");
    }
    let nodes: BTreeSet<String> = of("redleader_node_up").into_iter().map(|labels| labels["node"].clone()).collect();
    assert_eq!(nodes, servers.addresses().into_iter().collect(), "nodes are named as they were given");
    for (name, buckets) in BUCKETS {
        let found: BTreeSet<String> =
            of(&format!("{name}_bucket")).into_iter().map(|labels| labels["le"].clone()).collect();
        assert_eq!(found, set(buckets.split_whitespace()), "{name}");
    }
    for (name, labels) in &samples {
        for label in labels.keys() {
            // Prometheus would rename them: a target has labels of these names.
            assert!(!["namespace", "pod", "instance", "job"].contains(&label.as_str()), "{name} has {label}");
        }
    }
    // In every state that a leader of fifteen seconds can have, the counters of what did not happen are there, and 0.
    assert_eq!(replica.metric("stepdowns_total", &[]).to_string(), "0");
}

const REPORT: &str = "schema lock identity state leading reason holder holderKind token since validForMs \
                      validUntilBootMs bootId quarantineMs quorum nodes";
const REPORT_NODE: &str = "node up vote leaseMs quarantineMs latencyMs error";
const STATUS: &str = "schema lock holder holderKind token since quorum nodes replica";

#[test]
fn fields_of_json() {
    let servers = Servers::start(3);
    let replica =
        ReplicaOptions::new("job", "a", &servers.urls()).args(["--ttl", "1s", "--node-timeout", "200ms"]).start();
    let fields = |json: &serde_json::Value| json.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let check = |report: &serde_json::Value| {
        assert_eq!(fields(report), set(REPORT.split_whitespace()));
        assert_eq!(fields(&report["quorum"]), set(["required", "reachable"]));
        for node in report["nodes"].as_array().unwrap() {
            assert_eq!(fields(node), set(REPORT_NODE.split_whitespace()));
        }
    };
    crate::support::eventually("it answers", SOON, || replica.connect().ok());
    check(&replica.leader_json());
    replica.wait_elected(1, SOON);
    let report = replica.leader_json();
    check(&report);
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(report["bootId"].as_str(), Some(boot.trim()));
    let urls = servers.urls().join(",");
    let control = replica.control();
    let status = redleader(&[
        "status",
        "--lock",
        "job",
        "--redis",
        &urls,
        "--ttl",
        "1s",
        "--output",
        "json",
        "--control",
        &control,
    ]);
    let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!(fields(&status), set(STATUS.split_whitespace()));
    check(&status["replica"]);
    for node in status["nodes"].as_array().unwrap() {
        assert_eq!(fields(node), set(REPORT_NODE.split_whitespace()));
    }
    // An owner value has a nonce that only nodes and its replica know.
    let owner = servers[0].cli(&["GET", "job"]).text();
    let nonce = owner.split_once(':').unwrap().1;
    assert_eq!(nonce.len(), 22);
    assert!(!report.to_string().contains(nonce) && !status.to_string().contains(nonce));
}

#[test]
fn exit_codes() {
    for (command, expected) in [("run", &[0, 64, 70, 75, 126, 127][..]), ("status", &[0, 1, 64, 70])] {
        let help = help(&[command]);
        let (_, codes) = help.split_once("Exit codes:\n").unwrap();
        let codes = codes.lines().filter_map(|line| line.split_whitespace().next()?.parse::<u8>().ok());
        assert_eq!(codes.collect::<Vec<_>>(), expected, "{command}");
    }
    // 0, 1 and 64 are shown with what they are for; 70 is for what breaks. Without room for files either a part says so,
    // or a crate panics, and a panic ends the process like any other part that is gone.
    for (files, says) in [("6", "redleader: the system refuses what"), ("8", "panicked")] {
        let mut command = Command::new("sh");
        let script = "ulimit -n \"$1\"; exec \"$0\" run --lock job --redis redis://127.0.0.1:1 --listen 127.0.0.1:0";
        command.args(["-c", script]).arg(binary()).arg(files);
        let broken = run("a process without room for files", command, SOON);
        assert_eq!(broken.code, 70, "{broken:?}");
        assert!(broken.stderr.contains(says), "{broken:?}");
    }
}
