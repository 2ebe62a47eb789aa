//! What the chart renders, and what it refuses, with the API server's own word on every object.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::cluster::{Cluster, package};
use crate::figures::figure;
use crate::release::{chart, dry_run, name, render};
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
                let objects = dry_run(cluster, "k9", &rendered(cluster, &words));
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
    let objects = dry_run(cluster, "k9", &manifest).expect("its objects are served");
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
        (&["stopTimeout=25s", APP], "raise it to 37"),
        (&["ttl=30s", APP], "raise it to 46"),
        (&["wrap.enabled=true", "app.image=a"], "needs app.command"),
        (&["app.port=80"], "app.image is missing"),
        (&["redis.addresses={a:1,b:1,A:1}"], "names a node twice"),
        (&["redis.addresses={redis://:secret@a:1}"], "has a password in it"),
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
        &["stopTimeout=25s", "terminationGracePeriodSeconds=37", APP],
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
        dry_run(cluster, "k9-values", &rendered(cluster, &words)).unwrap_or_else(|why| panic!("{words:?}: {why}"))
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

/// The object of a kind.
fn find(objects: &[Value], kind: &str) -> Value {
    let found = objects.iter().find(|object| object["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind} among {:?}", objects.iter().map(name).collect::<Vec<_>>())).clone()
}

fn variable(container: &Value, name: &str) -> String {
    let variables = container["env"].as_array().cloned().unwrap_or_default();
    let found = variables.iter().find(|variable| variable["name"] == name);
    found.and_then(|variable| variable["value"].as_str()).unwrap_or_default().to_owned()
}
