//! Nodes and rights of a release without replicas, and whatever a row starts beside them.

use serde_json::{Value, json};

use crate::cluster::{Cluster, HOST, IMAGE, feed, succeed};
use crate::pod::condition;
use crate::release::{LONG, Release, chart, render};
use crate::wait::eventually;

/// A namespace with the nodes of a release.
pub struct Bench<'a> {
    /// The release, without replicas.
    pub release: Release<'a>,
}

impl<'a> Bench<'a> {
    /// Installs it; these values say which rights its account has.
    pub fn new(cluster: &'a Cluster, name: &str, values: &[&str]) -> Self {
        let release = Release::new(cluster, name, &[&["replicas=0"], values].concat());
        release.install();
        Self { release }
    }

    /// Another instance of the chart, which works with these nodes.
    pub fn instance(&self, name: &str, values: &[&str]) {
        let Release { cluster, name: namespace, .. } = &self.release;
        let own = ["replicas=", "fullnameOverride="];
        let mut all: Vec<String> =
            self.release.values.iter().filter(|value| !own.iter().any(|own| value.starts_with(own))).cloned().collect();
        let node = |number: u8| format!("{namespace}-node-{number}");
        all.push(format!("redis.addresses={{{},{},{}}}", node(0), node(1), node(2)));
        all.push(format!("redis.existingSecret={namespace}-nodes"));
        all.push(format!("fullnameOverride={name}"));
        all.extend(values.iter().map(|value| (*value).to_owned()));
        let mut words: Vec<String> = [name, "-n", namespace, "--no-hooks"].map(str::to_owned).into();
        for value in all {
            words.extend(["--set".into(), value]);
        }
        let manifest = render(cluster, &chart(), &words).expect("the chart renders");
        let mut command = cluster.command("kubectl");
        succeed("apply", feed(command.args(["apply", "-n", namespace, "-f", "-"]), &manifest));
    }

    /// The pods of an instance.
    pub fn pods_of(&self, instance: &str) -> Vec<Value> {
        let mut pods = self.release.pods();
        pods.retain(|pod| pod["metadata"]["labels"]["app.kubernetes.io/instance"] == instance);
        pods
    }

    /// The pod of an instance with one replica.
    pub fn pod_of(&self, instance: &str) -> Option<Value> {
        self.pods_of(instance).into_iter().next()
    }

    /// Starts a bare pod.
    pub fn start(&self, pod: &BarePod<'_>) {
        self.release.cluster.apply(&pod.manifest(&self.release.name).to_string());
    }

    /// A pod as it is.
    pub fn pod(&self, name: &str) -> Option<Value> {
        self.release.pod(name)
    }

    /// Waits until a pod is Ready.
    #[track_caller]
    pub fn running(&self, name: &str) -> Value {
        eventually("the pod runs", LONG, || self.pod(name).filter(|pod| condition(pod, "Ready") == Some("True")))
    }

    /// What the one container of a pod has logged.
    pub fn log(&self, pod: &str) -> String {
        log(&self.release, pod)
    }

    /// Takes all of it away.
    pub fn remove(&self) {
        remove(&self.release);
    }
}

/// What a pod's redleader has logged, if it has begun to.
pub fn log(release: &Release<'_>, pod: &str) -> String {
    let output = release.cluster.try_kubectl(&["logs", "-n", &release.name, pod, "-c", "redleader"]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The first line of a log with all of these words.
pub fn line_with(log: &str, words: &[&str]) -> Option<String> {
    log.lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
}

/// Takes a release away, and its namespace.
pub fn remove(release: &Release<'_>) {
    release.uninstall();
    release.cluster.kubectl(&["delete", "namespace", &release.name, "--wait=false"]);
}

/// One pod with the image and nothing of the chart, which runs for a lock of its own name.
pub struct BarePod<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its environment, beside lock, nodes and password.
    pub env: Vec<Value>,
    /// The ConfigMap that has the authority of the API server.
    pub authority: &'a str,
    /// Names of the cluster's first address, beside those of the DNS.
    pub hosts: &'a [&'a str],
    /// Whether it is started again when it ends.
    pub restarts: bool,
}

impl<'a> BarePod<'a> {
    /// One that knows its pod and has all that every pod gets.
    pub fn new(name: &'a str) -> Self {
        let field =
            |variable: &str, path: &str| json!({"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}});
        let env = vec![
            field("POD_NAME", "metadata.name"),
            field("POD_NAMESPACE", "metadata.namespace"),
            field("POD_UID", "metadata.uid"),
        ];
        Self { name, env, authority: "kube-root-ca.crt", hosts: &[], restarts: true }
    }

    /// With a variable, in place of the one of this name.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self = self.without(name);
        self.env.push(json!({"name": name, "value": value}));
        self
    }

    /// Without a variable.
    pub fn without(mut self, name: &str) -> Self {
        self.env.retain(|variable| variable["name"] != name);
        self
    }

    fn manifest(&self, bench: &str) -> Value {
        let nodes: Vec<String> = (0..3).map(|number| format!("redis://{bench}-node-{number}:6379")).collect();
        let mut env = vec![
            json!({"name": "REDLEADER_LOCK", "value": self.name}),
            json!({"name": "REDLEADER_REDIS", "value": nodes.join(",")}),
            json!({"name": "REDLEADER_REDIS_PASSWORD_FILE", "value": "/run/redis/password"}),
            json!({"name": "REDLEADER_TTL", "value": "3s"}),
            // More than the default: a busy machine is no fault of what is shown here.
            json!({"name": "REDLEADER_NODE_TIMEOUT", "value": "400ms"}),
        ];
        env.extend(self.env.iter().cloned());
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.name, "namespace": bench},
            "spec": {
                "restartPolicy": if self.restarts { "Always" } else { "Never" },
                "terminationGracePeriodSeconds": 10,
                "serviceAccountName": bench, "automountServiceAccountToken": false, "enableServiceLinks": false,
                "hostAliases": [{"ip": HOST, "hostnames": self.hosts}],
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [{
                    "name": "redleader", "image": IMAGE, "imagePullPolicy": "Never", "args": ["run"], "env": env,
                    "securityContext": {
                        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [
                        {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
                        {"name": "redis", "mountPath": "/run/redis"},
                    ],
                }],
                "volumes": [
                    {"name": "redis", "secret": {"secretName": format!("{bench}-nodes")}},
                    {"name": "token", "projected": {"sources": [
                        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                        {"configMap": {"name": self.authority, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                        {"downwardAPI": {"items": [
                            {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}},
                        ]}},
                    ]}},
                ],
            },
        })
    }
}
