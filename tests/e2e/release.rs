//! A release of the chart, and what is done to it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::{Cluster, IMAGE, NODE, WEB, feed, package, succeed};
use crate::pod::{self, address, condition, name, said, says, signal, wait_for_process};
use crate::wait::{boot_ms, eventually, let_time_pass};

/// More than the slowest start of pods on a busy machine.
pub const LONG: Duration = Duration::from_secs(120);

/// All that can be published, in mode label.
pub const PUBLISHED: [&str; 5] =
    ["mode=label", "app.port=8080", "publish.condition=true", "publish.events=true", "publish.lease=who-leads"];

/// A release that is installed, or about to be.
pub struct Release<'a> {
    /// Where.
    pub cluster: &'a Cluster,
    /// The namespace, which is the release's name as well.
    pub name: String,
    /// Values, as `--set` takes them.
    pub values: Vec<String>,
}

impl<'a> Release<'a> {
    /// A release with these values over those that every release here has, in a new namespace of its name.
    pub fn new(cluster: &'a Cluster, name: &str, values: &[&str]) -> Self {
        cluster.namespace(name);
        let mut all: Vec<String> = [
            format!("image.repository={}", IMAGE.split_once(':').expect("it has a tag").0),
            format!("image.tag={}", IMAGE.split_once(':').expect("it has a tag").1),
            "image.pullPolicy=Never".into(),
            format!("nodes.image={NODE}"),
            "nodes.command=redis-server".into(),
            format!("app.image={WEB}"),
            "app.imagePullPolicy=Never".into(),
            format!("fullnameOverride={name}"),
        ]
        .into();
        all.extend(values.iter().map(|value| (*value).to_owned()));
        Self { cluster, name: name.to_owned(), values: all }
    }

    /// The same, installed and settled; who leads.
    #[track_caller]
    pub fn up(cluster: &'a Cluster, name: &str, values: &[&str], replicas: usize) -> (Self, String) {
        let release = Self::new(cluster, name, values);
        release.install();
        let leader = release.settle(replicas);
        (release, leader)
    }

    /// `helm install`, without any wait of Helm's own but for hooks.
    pub fn install(&self) -> String {
        succeed("helm install", self.put("install", &[]))
    }

    /// `helm upgrade` with more values; they stay for the next one.
    pub fn upgrade(&mut self, values: &[&str], flags: &[&str]) -> Output {
        self.values.extend(values.iter().map(|value| (*value).to_owned()));
        self.put("upgrade", flags)
    }

    /// `helm uninstall`.
    pub fn uninstall(&self) -> String {
        self.helm(&["uninstall"])
    }

    /// A command of helm about this release, which has to succeed: what it says.
    #[track_caller]
    pub fn helm(&self, words: &[&str]) -> String {
        let mut command = self.cluster.command("helm");
        let output = command.args(words).args([&self.name, "-n", &self.name]).output();
        succeed(&format!("helm {}", words.join(" ")), output.expect("helm is in the cache"))
    }

    fn put(&self, what: &str, flags: &[&str]) -> Output {
        let mut command = self.cluster.command("helm");
        command.args([what, &self.name]).arg(chart()).args(["-n", &self.name]).args(flags);
        for value in &self.values {
            command.args(["--set", value]);
        }
        command.output().expect("helm is in the cache")
    }

    /// The pods of the replicas that are not on their way out.
    pub fn pods(&self) -> Vec<Value> {
        self.all_pods().into_iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect()
    }

    /// The pods of the replicas.
    pub fn all_pods(&self) -> Vec<Value> {
        self.pods_of("replica")
    }

    /// The pods of a component: replica, or node.
    pub fn pods_of(&self, component: &str) -> Vec<Value> {
        self.cluster.list(&self.pods_path(component))
    }

    /// Where the API has them.
    pub fn pods_path(&self, component: &str) -> String {
        let selector = format!("labelSelector=app.kubernetes.io%2Fcomponent%3D{component}");
        format!("/api/v1/namespaces/{}/pods?{selector}", self.name)
    }

    /// A pod of the release's namespace.
    pub fn pod(&self, pod: &str) -> Option<Value> {
        self.cluster.get(&self.pod_path(pod))
    }

    /// Where the API has it.
    pub fn pod_path(&self, pod: &str) -> String {
        format!("/api/v1/namespaces/{}/pods/{pod}", self.name)
    }

    /// The role that the label of a pod gives it.
    pub fn role(&self, pod: &str) -> Option<String> {
        pod::role(&self.pod(pod)?).map(str::to_owned)
    }

    /// A Lease of the release's namespace.
    pub fn lease(&self, lease: &str) -> Option<Value> {
        self.cluster.get(&format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/{lease}", self.name))
    }

    /// The names of the pods that are Ready.
    pub fn ready(&self) -> Vec<String> {
        pod::ready(&self.pods())
    }

    /// What redleader says in a pod; None if it does not answer.
    pub fn leader_json(&self, pod: &str) -> Option<Value> {
        says(&self.pod(pod)?)
    }

    /// The pod that leads by its own word.
    pub fn leading(&self) -> Option<Value> {
        pod::leading(&self.pods()).cloned()
    }

    /// Its name.
    pub fn leader(&self) -> Option<String> {
        self.leading().as_ref().map(name)
    }

    /// Waits for a leader that is not one of these.
    #[track_caller]
    pub fn next_leader(&self, not: &[&str]) -> String {
        eventually("a leader", LONG, || self.leader().filter(|pod| !not.contains(&pod.as_str())))
    }

    /// Has this leader resign, by the API server; waits for the next.
    #[track_caller]
    pub fn hand_over(&self, leader: &str) -> String {
        succeed("resign", self.exec(leader, "redleader", &["/redleader", "resign", "--for", "5s"]));
        self.next_leader(&[leader])
    }

    /// Waits until there are so many pods and one of them leads, and every one has said something.
    #[track_caller]
    pub fn settle(&self, replicas: usize) -> String {
        eventually("all pods run and one leads", LONG, || {
            let pods = self.pods();
            let running = pods.iter().filter(|pod| condition(pod, "Initialized") == Some("True"));
            let started = running.filter(|pod| said(pod).is_some()).count();
            (pods.len() == replicas && started == replicas).then(|| pod::leading(&pods).map(name)).flatten()
        })
    }

    /// Whether labels, conditions and Lease, of a release that has [`PUBLISHED`], say of every pod what is so.
    pub fn is_right(&self, leader: &str) -> Option<()> {
        let (pods, lease) = (self.pods(), self.lease("who-leads")?);
        let is_told = pods.iter().all(|pod| pod::tells(pod, leader));
        (is_told && lease["spec"]["holderIdentity"] == leader).then_some(())
    }

    /// Waits until they do.
    #[track_caller]
    pub fn until_right(&self, leader: &str) {
        eventually("all that is published is right", LONG, || self.is_right(leader));
    }

    /// The password of its nodes.
    pub fn password(&self) -> String {
        let path = format!("/api/v1/namespaces/{0}/secrets/{0}-nodes", self.name);
        let secret = self.cluster.get(&path).unwrap_or_else(|| panic!("{path} is not there"));
        let password = STANDARD.decode(secret["data"]["password"].as_str().expect("a password")).expect("base64");
        String::from_utf8(password).expect("it is text")
    }

    /// The addresses of the pods of its nodes.
    pub fn node_addresses(&self) -> Vec<String> {
        self.pods_of("node").iter().map(|node| address(node).to_owned()).collect()
    }

    /// How many of them are Ready.
    pub fn nodes_ready(&self) -> u64 {
        let path = format!("/apis/apps/v1/namespaces/{0}/statefulsets/{0}-nodes", self.name);
        self.cluster.get(&path).and_then(|set| set["status"]["readyReplicas"].as_u64()).unwrap_or(0)
    }

    /// The address of the release's Service, as every pod and node of the cluster calls it.
    pub fn service(&self) -> String {
        self.service_named(&self.name)
    }

    /// The address of a Service in the release's namespace.
    pub fn service_named(&self, name: &str) -> String {
        let path = format!("/api/v1/namespaces/{}/services/{name}", self.name);
        let service = self.cluster.get(&path).unwrap_or_else(|| panic!("{path} is not there"));
        format!("{}:{}", service["spec"]["clusterIP"].as_str().unwrap(), service["spec"]["ports"][0]["port"])
    }

    /// Runs a command in a pod's container.
    pub fn exec(&self, pod: &str, container: &str, arguments: &[&str]) -> Output {
        let words = ["exec", "-n", &self.name, pod, "-c", container, "--"];
        self.cluster.try_kubectl(&[&words, arguments].concat())
    }

    /// Kills the process of a pod's container that runs this program; when it was dead, on the boot clock.
    #[track_caller]
    pub fn kill(&self, pod: &str, program: &str) -> u64 {
        let pid = wait_for_process(pod, program);
        signal(pid, Signal::KILL);
        let is_dead = || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            (status.is_empty() || status.contains("State:\tZ")).then(boot_ms)
        };
        eventually("a killed process is dead", LONG, is_dead)
    }

    /// `kubectl scale` of the replicas.
    pub fn scale(&self, count: usize) {
        let (deployment, replicas) = (format!("deployment/{}", self.name), format!("--replicas={count}"));
        self.cluster.kubectl(&["scale", "-n", &self.name, &deployment, &replicas]);
    }

    /// Asks once to evict a pod, as `kubectl drain` does: the status of the answer.
    pub fn evict(&self, pod: &str) -> u16 {
        let metadata = format!(r#"{{"name":"{pod}","namespace":"{}"}}"#, self.name);
        let body = format!(r#"{{"apiVersion":"policy/v1","kind":"Eviction","metadata":{metadata}}}"#);
        let path = format!("{}/eviction", self.pod_path(pod));
        self.cluster.request("POST", &path, &body).map_or(0, |(status, _)| status)
    }

    /// How often containers of the replicas were started again.
    pub fn restarts(&self) -> u64 {
        let count = |pod: &Value, kind: &str| -> u64 {
            let statuses = pod["status"][kind].as_array().into_iter().flatten();
            statuses.filter_map(|status| status["restartCount"].as_u64()).sum()
        };
        self.pods().iter().map(|pod| count(pod, "containerStatuses") + count(pod, "initContainerStatuses")).sum()
    }
}

/// The chart's directory.
pub fn chart() -> PathBuf {
    package().join("charts/redleader")
}

/// Looks at most 60 times, half a second after each other, until nothing is wrong; what is wrong at the last look.
pub fn still_wrong<T>(mut look: impl FnMut() -> Vec<T>) -> Vec<T> {
    let mut wrong = Vec::new();
    for _ in 0..60 {
        wrong = look();
        if wrong.is_empty() {
            break;
        }
        let_time_pass("what follows something else catches up", Duration::from_millis(500));
    }
    wrong
}

/// `helm template` of a chart: what it renders, or why it refuses.
pub fn render(cluster: &Cluster, chart: &Path, words: &[impl AsRef<OsStr>]) -> Result<String, String> {
    let output = cluster.command("helm").args(["template"]).args(words).arg(chart).output().expect("helm");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// What the API server makes of a manifest: every object as it would be, or why not. Flags are those of `kubectl apply`.
pub fn dry_run(cluster: &Cluster, namespace: &str, manifest: &str, flags: &[&str]) -> Result<Vec<Value>, String> {
    let mut command = cluster.command("kubectl");
    command.args(["apply", "--dry-run=server", "-n", namespace, "-o", "json", "-f", "-"]).args(flags);
    let output = feed(&mut command, manifest);
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let said: Value = serde_json::from_slice(&output.stdout).map_err(|why| why.to_string())?;
    Ok(said["items"].as_array().cloned().unwrap_or_else(|| vec![said.clone()]))
}
