//! The real image: in a pod that is allowed nothing, and built twice.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Cluster, HOST, IMAGE, package, seconds_since, succeed};
use crate::figures::figure;
use crate::pod::condition;
use crate::release::{LONG, dry_run};
use crate::row::{Row, Stage};
use crate::wait::{boot_ms, eventually, let_time_pass};

/// The most that the image may hold, in bytes.
const SIZE_MOST: u64 = 8_000_000;

pub const ROWS: &[Row] = &[
    Row {
        name: "K8-image",
        shows: "the image is small, and runs with a read-only root, no capability, any user id, and 16 MiB of memory",
        stage: Stage::Together,
        run: allowed_nothing,
    },
    Row {
        name: "K8-reproducible",
        shows: "the same sources in two directories, compiled anew at two times, give the same image to the last byte",
        stage: Stage::Build,
        run: reproducible,
    },
];

/// A pod with the image and nothing else. Its nodes are not there: that is no reason to end.
const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: bare, namespace: k8}
spec:
  automountServiceAccountToken: false
  securityContext: {runAsNonRoot: true, runAsUser: 1000900123, runAsGroup: 0, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: redleader
      image: IMAGE
      imagePullPolicy: Never
      args: [run, --lock, bare, --redis, "redis://HOST:1,redis://HOST:2,redis://HOST:3"]
      securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
      resources: {limits: {memory: 16Mi, cpu: 500m}}
      livenessProbe: {httpGet: {path: /livez, port: 9797}, periodSeconds: 1, failureThreshold: 3}
"#;

fn allowed_nothing(cluster: &Cluster) {
    let size = std::fs::metadata(cluster.root().join("redleader.tar")).expect("the archive is there").len();
    figure("K8 image", &format!("{size} bytes as an archive"));
    assert!(size <= SIZE_MOST, "{size} bytes, more than {SIZE_MOST}");
    cluster.namespace("k8");
    let pod = POD.replace("IMAGE", IMAGE).replace("HOST", HOST);
    let anyone = pod.replace("readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}", "");
    let why = dry_run(cluster, "k8", &anyone, &[]).expect_err("restricted is not enforced");
    assert!(why.contains("violates PodSecurity"), "{why}");
    cluster.apply(&pod);
    let path = "/api/v1/namespaces/k8/pods/bare";
    eventually("the pod runs", LONG, || cluster.get(path).filter(|pod| condition(pod, "Ready") == Some("True")));
    let said = eventually("it answers", LONG, || cluster.get(&format!("{path}:9797/proxy/leader")));
    assert_eq!(said["leading"], false, "{said}");
    let_time_pass("probes of a pod with little memory", Duration::from_secs(5));
    let pod = cluster.get(path).expect("the pod is there");
    let restarts = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
    assert_eq!(restarts(&pod), Some(0), "{}", pod["status"]);
    let refused = cluster.try_kubectl(&["exec", "-n", "k8", "bare", "--", "/bin/sh", "-c", "true"]);
    assert!(!refused.status.success(), "there is a shell in the image");
    let version = cluster.kubectl(&["exec", "-n", "k8", "bare", "--", "/redleader", "--version"]);
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    cluster.kubectl(&["delete", "pod", "-n", "k8", "bare", "--grace-period=5"]);
}

fn reproducible(cluster: &Cluster) {
    let began = boot_ms();
    let copy = cluster.root().join("elsewhere/of/the/same/source");
    std::fs::create_dir_all(&copy).expect("the cluster's directory is ours");
    // Without their times, so that every file is younger than the one that it is a copy of.
    let parts = ["Dockerfile", ".dockerignore", "Cargo.toml", "Cargo.lock", "src", "examples", "benches", "tests"];
    let mut command = Command::new("cp");
    command.arg("-r").args(parts.map(|part| package().join(part))).arg(&copy);
    succeed("cp", command.output().expect("cp is there"));
    let (one, other) = (built(cluster, package(), "one"), built(cluster, &copy, "other"));
    // The names of configuration and layer are the digests of what is in them.
    assert_eq!(one, other);
    figure("K8 built twice", &format!("{:.0} s, both times {}", seconds_since(began), one.trim()));
}

/// Compiles all of it anew; the archive's manifest.
fn built(cluster: &Cluster, source: &Path, name: &str) -> String {
    let archive = cluster.root().join(name).with_extension("tar");
    let mut command = Command::new(package().join("tests/e2e/build-image"));
    command.arg(&archive).arg(IMAGE).env("SOURCE", source).env("FRESH", "1");
    succeed("build-image", command.output().expect("the script is there"));
    let mut tar = Command::new("tar");
    tar.arg("-xOf").arg(&archive).arg("manifest.json");
    succeed("tar", tar.output().expect("tar is there"))
}
