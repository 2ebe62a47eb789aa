//! What the chart renders, and what it refuses, with the API server's own word on every object.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::cluster::{Cluster, cache, package};
use crate::figures::figure;
use crate::pod::name;
use crate::release::{chart, dry_run, render};
use crate::row::{Row, Stage};

pub const ROWS: &[Row] = &[
    Row {
        name: "K9-served",
        shows: "every mode with everything on is served by the API server, from the oldest to the newest Kubernetes",
        stage: Stage::Together,
        run: every_object_is_served,
    },
    Row {
        name: "K9-refused",
        shows: "what cannot work is refused when it is rendered, with what to do",
        stage: Stage::Together,
        run: what_cannot_work_is_refused,
    },
    Row {
        name: "K9-values",
        shows: "names, numbers and nulls come out of the chart as they went in",
        stage: Stage::Together,
        run: values_come_out_as_they_went_in,
    },
    Row {
        name: "K9-sum",
        shows: "a pod's termination covers drain, the app's end and the election's, for every value",
        stage: Stage::Together,
        run: ends_in_time,
    },
    Row {
        name: "K9-monitoring",
        shows: "the kinds of Prometheus' operator take what the chart renders for them, with strict fields",
        stage: Stage::Together,
        run: monitoring_is_served,
    },
];

const APP: &str = "app.image=example/app:1,app.port=8080";
const WRAP: &str = "wrap.enabled=true,app.image=example/app:1,app.command={/bin/worker}";

/// All that needs no kind of object that the cluster does not know.
const EVERYTHING: &str = "networkPolicy.enabled=true,publish.label=true,publish.condition=true,publish.lease=a-lease,\
                          publish.events=true,publish.deletionCost=true,nodes.persistence.enabled=true";

fn rendered(cluster: &Cluster, words: &[&str]) -> String {
    render(cluster, &chart(), words).unwrap_or_else(|why| panic!("{words:?}: {why}"))
}

fn every_object_is_served(cluster: &Cluster) {
    cluster.namespace("k9");
    let mut kinds = BTreeSet::new();
    for version in ["1.29.0", "1.34.4"] {
        for mode in ["readiness", "label", "gate"] {
            for app in [APP, WRAP] {
                let mode = format!("mode={mode}");
                let words =
                    ["r", "-n", "k9", "--kube-version", version, "--set", &mode, "--set", app, "--set", EVERYTHING];
                let objects = dry_run(cluster, "k9", &rendered(cluster, &words), &[]);
                let objects = objects.unwrap_or_else(|why| panic!("{words:?}: {why}"));
                kinds.extend(objects.iter().map(|object| object["kind"].as_str().unwrap_or_default().to_owned()));
            }
        }
    }
    for kind in ["Deployment", "StatefulSet", "Service", "Role", "NetworkPolicy", "PodDisruptionBudget", "Job"] {
        assert!(kinds.contains(kind), "{kind} is not among {kinds:?}");
    }
    let old = render(cluster, &chart(), &["r", "--kube-version", "1.28.9"]).expect_err("1.28 has no native sidecars");
    assert!(old.contains("kubeVersion"), "{old}");
    let own = package().join("tests/fixtures/own-chart");
    let manifest = render(cluster, &own, &["own", "-n", "k9"]).expect("a chart of one's own");
    let objects = dry_run(cluster, "k9", &manifest, &[]).expect("its objects are served");
    let pod = find(&objects, "Deployment");
    assert_eq!(pod["spec"]["template"]["spec"]["initContainers"][0]["restartPolicy"], "Always");
    figure("K9 served kinds", &kinds.into_iter().collect::<Vec<_>>().join(" "));
}

fn what_cannot_work_is_refused(cluster: &Cluster) {
    let cases: &[(&[&str], &str)] = &[
        (&["pdb.enabled=true", APP], "use mode label"),
        (&["mode=gate", "pdb.enabled=true", APP], "use mode label"),
        (&["strategy.type=RollingUpdate", APP], "use Recreate"),
        (&["ttl=5s", APP], "raise ttl above 5.5s"),
        (&["mode=gate", "ttl=5s", APP], "raise ttl above 5.5s"),
        (&["stopTimeout=25s", APP], "raise it to 41"),
        (&["ttl=30s", APP], "raise it to 50"),
        (&["wrap.enabled=true", "app.image=a"], "needs app.command"),
        (&["app.port=80"], "app.image is missing"),
        (&["redis.addresses={a:1,b:1,A:1}"], "names a node twice"),
        (&["redis.addresses={redis://:secret@a:1}"], "has a password in it"),
        (&["redis.addresses={REDIS://:secret@a:1}"], "has a password in it"),
        (&["redis.addresses={default:secret@a:1}"], "has a password in it"),
        (&["redis.addresses={a:1}", "nodes.enabled=true"], "set nodes.enabled to false"),
        (&["nodes.enabled=false"], "list them in redis.addresses"),
        (&["monitoring.podMonitor.enabled=true", "monitoring.serviceMonitor.enabled=true"], "enable one of them"),
        (&["ttl=8"], "want string"),
        (&["ttl=8x"], "does not match pattern"),
        (&["mod=label"], "'mod' not allowed"),
        (&["nodes.cuont=5"], "'cuont' not allowed"),
        (&["mode=auto"], "must be one of"),
    ];
    for (values, expected) in cases {
        let mut words = vec!["r"];
        values.iter().for_each(|value| words.extend(["--set", value]));
        let why = render(cluster, &chart(), &words).expect_err(&values.join(","));
        assert!(why.contains(expected), "{values:?}: {why}");
        assert!(!why.contains("secret@"), "{values:?} shows a password: {why}");
    }
    // The neighbours of what is refused, which are not.
    for values in [
        &["mode=label", "pdb.enabled=true", APP][..],
        &["strategy.type=Recreate", APP],
        &["mode=label", "ttl=5s", APP],
        &["ttl=5s", "grace=500ms", APP],
        &["ttl=6s", APP],
        &["stopTimeout=25s", "terminationGracePeriodSeconds=41", APP],
        &[WRAP, "pdb.enabled=true", "ttl=5s"],
        &["redis.addresses={a:1}"],
    ] {
        let mut words = vec!["r"];
        values.iter().for_each(|value| words.extend(["--set", value]));
        rendered(cluster, &words);
    }
    figure("K9 refusals", &format!("{} kinds of values, each with what to do", cases.len()));
}

fn values_come_out_as_they_went_in(cluster: &Cluster) {
    cluster.namespace("k9-values");
    let objects = |words: &[&str]| {
        let words = [words, &["-n", "k9-values"]].concat();
        dry_run(cluster, "k9-values", &rendered(cluster, &words), &[]).unwrap_or_else(|why| panic!("{words:?}: {why}"))
    };
    // Two releases, and two namespaces, have four locks.
    let mut locks = BTreeSet::new();
    for (release, namespace) in [("one", "a"), ("two", "a"), ("one", "b"), ("two", "b")] {
        let text = rendered(cluster, &[release, "-n", namespace, "--set", APP]);
        let at = text.find("redleader:").filter(|at| text[*at..].contains('/')).expect("a lock");
        locks.insert(text[at..].lines().next().unwrap_or_default().to_owned());
        assert!(text.contains(&format!("\"redleader:{namespace}/{release}-redleader\"")), "{locks:?}");
    }
    // A tag that is a number, by each way that a value can come.
    for way in [["--set", "image.tag=20161216"], ["--set-json", r#"{"image":{"tag":20161216}}"#]] {
        let text = rendered(cluster, &["r", way[0], way[1], "--set", APP]);
        assert!(text.contains("\"redleader:20161216\""), "{way:?}");
    }
    let big = ["r", "--set", "maxFailedExtends=8388608,terminationGracePeriodSeconds=1500000", "--set", APP];
    let pod = find(&objects(&big), "Deployment")["spec"]["template"]["spec"].clone();
    assert_eq!(pod["terminationGracePeriodSeconds"], 1_500_000);
    assert_eq!(variable(&pod["initContainers"][0], "REDLEADER_MAX_FAILED_EXTENDS"), "8388608");
    // Ids that a platform gives by itself are left out by null.
    let json = json!({"nodes": {"podSecurityContext": null, "securityContext": null}, "podSecurityContext": null,
        "securityContext": null, "app": {"image": "a", "securityContext": null}});
    let text = rendered(cluster, &["r", "--set-json", &json.to_string()]);
    assert!(!text.contains("securityContext") && !text.contains("runAsUser"), "{text}");
    // A name may look like a number, or like something else that YAML knows. That of a Service begins with a letter.
    cluster.kubectl(&["create", "namespace", "1000000"]);
    for (name, full) in [("20161216", "true"), ("on", ""), ("1e5", "null")] {
        let (everything, account) = (
            format!("{EVERYTHING},admissionPolicy.enabled=true"),
            format!("serviceAccount.name={name},fullnameOverride={full}"),
        );
        let words = [name, "-n", "1000000", "--set", "mode=label", "--set", APP, "--set", &everything];
        let words = [&words[..], &["--set-string", &account]].concat();
        let objects = dry_run(cluster, "1000000", &rendered(cluster, &words), &[]);
        let pod = find(&objects.unwrap_or_else(|why| panic!("{words:?}: {why}")), "Deployment");
        assert_eq!(pod["metadata"]["labels"]["app.kubernetes.io/instance"], name);
    }
    cluster.kubectl(&["delete", "namespace", "1000000", "--wait=false"]);
    // Long names stay apart, and Role, environment and account agree.
    let long = "a-release-with-a-name-that-is-as-long-as-names-may-be";
    let all = objects(&[long, "--set", "publish.lease=some.lease,publish.label=true", "--set", APP]);
    let role = find(&all, "Role");
    let lease = &role["rules"].as_array().expect("rules").iter().find(|rule| !rule["resourceNames"].is_null());
    assert_eq!(lease.expect("a rule for one Lease")["resourceNames"], json!(["some.lease"]));
    let deployment = find(&all, "Deployment");
    let sidecar = &deployment["spec"]["template"]["spec"]["initContainers"][0];
    assert_eq!(variable(sidecar, "REDLEADER_KUBE_LEASE"), "some.lease");
    let account = &find(&all, "RoleBinding")["subjects"][0]["name"];
    assert_eq!(account, &deployment["spec"]["template"]["spec"]["serviceAccountName"]);
    let names: Vec<String> = all.iter().map(name).collect();
    assert!(names.iter().all(|name| name.len() <= 63), "{names:?}");
    // Nothing published: no Role, and no token.
    let none = objects(&["r", "--set", APP]);
    assert!(none.iter().all(|object| object["kind"] != "Role"), "a Role that nobody needs");
    let pod = find(&none, "Deployment")["spec"]["template"]["spec"].clone();
    assert!(
        pod["automountServiceAccountToken"] == false && !pod["volumes"].to_string().contains("serviceAccountToken")
    );
}

/// Milliseconds of a duration as the program reads it: 1m30s.
fn milliseconds(duration: &str) -> u64 {
    let (mut sum, mut rest) = (0, duration);
    while !rest.is_empty() {
        let digits = rest.find(|it: char| !it.is_ascii_digit()).expect("a unit follows");
        let unit = rest[digits..].find(|it: char| it.is_ascii_digit()).map_or(rest.len(), |at| digits + at);
        let factor = match &rest[digits..unit] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            other => panic!("{other} in {duration}"),
        };
        sum += rest[..digits].parse::<u64>().expect("digits") * factor;
        rest = &rest[unit..];
    }
    sum
}

/// The limit of `redleader drain`, and what an election is given beyond its own bounds (src/command/control.rs, src/app.rs).
const DRAIN_MILLIS: u64 = 5000;
const LAST_WAIT_MILLIS: u64 = 2000;

/// By what is rendered: the longest that a pod may take to end, and what Kubernetes gives it.
fn end_of(cluster: &Cluster, words: &[&str]) -> Result<(u64, u64), String> {
    let text = render(cluster, &chart(), words)?;
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let millis = |name: &str| {
        let at = lines.iter().position(|line| line.strip_prefix("- name: REDLEADER_") == Some(name))?;
        Some(milliseconds(lines[at + 1].strip_prefix("value: ")?.trim_matches('"')))
    };
    let hook = lines.iter().filter_map(|line| line.strip_prefix("command: [")).any(|line| line.ends_with(", drain]"));
    assert!(hook, "no drain before the end: {text}");
    let ttl = millis("TTL").expect("always given");
    let work = millis("STOP_TIMEOUT").expect("always given").max(millis("HANDOVER_DELAY").expect("always given"));
    let needed = DRAIN_MILLIS + work + ttl + 2 * millis("NODE_TIMEOUT").unwrap_or(ttl / 20) + LAST_WAIT_MILLIS;
    let given = lines.iter().find_map(|line| line.strip_prefix("terminationGracePeriodSeconds: "));
    Ok((needed, given.and_then(|given| given.parse::<u64>().ok()).expect("a number") * 1000))
}

fn ends_in_time(cluster: &Cluster) {
    let (mut held, mut refused) = (0, 0);
    let numbers = ["", "ttl=4s", "ttl=11s", "ttl=12s", "ttl=1m30s", "stopTimeout=0s", "stopTimeout=13s"];
    let more = ["stopTimeout=15s", "stopTimeout=2m", "handoverDelay=20s", "nodeTimeout=1s", "nodeTimeout=1s,ttl=11s"];
    for number in numbers.into_iter().chain(more) {
        for app in [APP, WRAP] {
            let words = ["r", "-s", "templates/deployment.yaml", "--set", "mode=label", "--set", app, "--set", number];
            let seconds = match end_of(cluster, &words) {
                Ok((needed, given)) => {
                    assert!(needed <= given, "{words:?}: {needed} ms do not fit into {given} ms");
                    held += 1;
                    needed.div_ceil(1000)
                }
                Err(why) => {
                    refused += 1;
                    let (_, after) = why.split_once(": raise it to ").unwrap_or_else(|| panic!("{words:?}: {why}"));
                    after.split(',').next().and_then(|word| word.parse().ok()).expect("it names the number")
                }
            };
            // The number that is needed is taken, and one less is not.
            let given = |seconds: u64| format!("terminationGracePeriodSeconds={seconds}");
            let (enough, short) = (given(seconds), given(seconds - 1));
            let (needed, given) = end_of(cluster, &[&words[..], &["--set", &enough]].concat()).expect("it is enough");
            assert!(needed <= given && given - needed < 1000, "{words:?}: {needed} of {given} ms");
            end_of(cluster, &[&words[..], &["--set", &short]].concat()).expect_err("a second less");
        }
    }
    assert!(held > 0 && refused > 0);
    figure(
        "K9 sum",
        &format!("{held} sets of values hold it by default, {refused} are refused with the number that does"),
    );
}

/// What the chart renders for an operator of Prometheus, against that operator's own kinds.
fn monitoring_is_served(cluster: &Cluster) {
    let kinds = cache().join("monitoring");
    for kind in ["podmonitors", "servicemonitors", "prometheusrules"] {
        // By the server, since the kinds are too large for the annotation of a client.
        let file = kinds.join(format!("{kind}.yaml"));
        cluster.kubectl(&["apply", "--server-side", "-f", &file.to_string_lossy()]);
        let name = format!("crd/{kind}.monitoring.coreos.com");
        cluster.kubectl(&["wait", "--for=condition=Established", &name, "--timeout=60s"]);
    }
    cluster.namespace("k9-monitoring");
    let mut rules = 0;
    for monitor in ["podMonitor", "serviceMonitor"] {
        let values = format!("monitoring.rules.enabled=true,monitoring.{monitor}.enabled=true");
        let labels =
            format!("monitoring.{monitor}.labels.release=prometheus,monitoring.rules.labels.release=prometheus");
        let words = ["r", "-n", "k9-monitoring", "--set", APP, "--set", &values, "--set", &labels];
        let manifest = rendered(cluster, &words);
        let objects = strictly(cluster, &manifest).unwrap_or_else(|why| panic!("{monitor}: {why}"));
        let kind = format!("{}{}", monitor[..1].to_uppercase(), &monitor[1..]);
        assert_eq!(find(&objects, &kind)["metadata"]["labels"]["release"], "prometheus");
        let groups = find(&objects, "PrometheusRule")["spec"]["groups"].as_array().cloned().unwrap_or_default();
        rules = groups.iter().filter_map(|group| group["rules"].as_array()).map(Vec::len).sum();
        // The controls: fields that do not exist.
        for (right, wrong) in [("path: /metrics", "paht: /metrics"), ("expr:", "exrp:")] {
            let why = strictly(cluster, &manifest.replacen(right, wrong, 1)).expect_err(wrong);
            assert!(why.contains(wrong.split(':').next().expect("it has one")), "{wrong}: {why}");
        }
    }
    assert!(rules > 0, "no rules");
    for kind in ["podmonitors", "servicemonitors", "prometheusrules"] {
        cluster.kubectl(&["delete", &format!("crd/{kind}.monitoring.coreos.com")]);
    }
    figure(
        "K9 monitoring",
        &format!("PodMonitor, ServiceMonitor and PrometheusRule with {rules} rules are taken strictly"),
    );
}

/// A dry run that takes no field which the server does not know.
fn strictly(cluster: &Cluster, manifest: &str) -> Result<Vec<Value>, String> {
    dry_run(cluster, "k9-monitoring", manifest, &["--validate=strict"])
}

/// The object of a kind.
fn find(objects: &[Value], kind: &str) -> Value {
    let found = objects.iter().find(|object| object["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind} among {:?}", objects.iter().map(name).collect::<Vec<_>>())).clone()
}

fn variable(container: &Value, name: &str) -> String {
    let found = container["env"].as_array().into_iter().flatten().find(|variable| variable["name"] == name);
    found.and_then(|variable| variable["value"].as_str()).unwrap_or_default().to_owned()
}
