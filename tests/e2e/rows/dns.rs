//! Names of nodes at DNS servers with faults: ndots:5, five search domains, and the image's own resolver.

use std::fs::File;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Cluster, HOST, IMAGE, NODE};
use crate::figures::figure;
use crate::pod::{condition, leads, metrics, said};
use crate::release::LONG;
use crate::row::{Row, Stage};
use crate::support::sum;
use crate::wait::{boot_ms, eventually, stays_true};

pub const ROWS: &[Row] = &[Row {
    name: "C139-names",
    shows: "with ndots:5 and a DNS server that fails in five ways the image resolves every name in time, and goes on leading",
    stage: Stage::Together,
    run: names,
}];

/// A way in which a DNS server fails: what it is called, what its server does before it answers, and its answer.
struct Fault {
    name: &'static str,
    does: &'static str,
    a: &'static str,
    aaaa: &'static str,
    /// The longest that a name may take.
    within: Duration,
}

const PLAIN: &str = r#"answer "{{ .Name }} 5 IN A NODES""#;
const NOWHERE: &str = r#"answer "{{ .Name }} 5 IN AAAA 2001:db8::7""#;
const CHAIN: &str = r#"answer "{{ .Name }} 5 IN CNAME one.chain.example."
    answer "one.chain.example. 5 IN CNAME two.chain.example."
    answer "two.chain.example. 5 IN CNAME three.chain.example.""#;
const CHAIN_TO_A: &str = r#"answer "{{ .Name }} 5 IN CNAME one.chain.example."
    answer "one.chain.example. 5 IN CNAME two.chain.example."
    answer "two.chain.example. 5 IN CNAME three.chain.example."
    answer "three.chain.example. 5 IN A NODES""#;

/// The ttl is the default one.
const RENEW: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const SECOND: Duration = Duration::from_secs(1);

/// Each does what it does to the names of the search list as well, which every server says do not exist.
const FAULTS: [Fault; 6] = [
    Fault {
        name: "aaaa-servfail",
        does: "template IN AAAA . {\n    rcode SERVFAIL\n  }",
        a: PLAIN,
        aaaa: "",
        within: SECOND,
    },
    Fault { name: "aaaa-late", does: "late AAAA 3s", a: PLAIN, aaaa: "", within: CONNECT_TIMEOUT },
    // At each name of the search list; where no pod has a way by IPv6, its quick answer must not be the one that counts.
    Fault { name: "a-late", does: "late A 150ms", a: PLAIN, aaaa: NOWHERE, within: CONNECT_TIMEOUT },
    Fault { name: "truncated", does: "truncated", a: PLAIN, aaaa: "", within: SECOND },
    Fault { name: "nxdomain", does: "", a: PLAIN, aaaa: "", within: SECOND },
    Fault { name: "cname-chain", does: "", a: CHAIN_TO_A, aaaa: CHAIN, within: SECOND },
];

/// A name of one label, one that ends in `svc`, and one that is none of the cluster's.
const NAMED: [&str; 3] = ["near:7005", "middle.c139.svc:7006", "far.partner.example:7007"];

fn names(cluster: &Cluster) {
    cluster.namespace("c139");
    let nodes = nodes(cluster);
    let _dns = Dns::start(cluster, &nodes);
    for (at, fault) in FAULTS.iter().enumerate() {
        replica(cluster, fault, &name_server(cluster, fault.name, PORT + at), &nodes);
    }
    let tokens: Vec<Value> = FAULTS.iter().map(|fault| token(cluster, fault)).collect();
    for fault in &FAULTS {
        resolved(cluster, fault, 1);
    }
    let (began, extends) = (boot_ms(), FAULTS.map(|fault| extends(cluster, &fault)));
    for node in NAMED {
        let port = node.rsplit_once(':').expect("it has a port").1;
        // Every name is asked for again, while the nodes with addresses keep the leadership.
        let kill = ["redis-cli", "-p", port, "CLIENT", "KILL", "TYPE", "normal"];
        cluster.kubectl(&[&["exec", "-n", "c139", "nodes", "--"][..], &kill].concat());
    }
    for fault in &FAULTS {
        resolved(cluster, fault, 2);
    }
    stays_true("each leads by the same token", RENEW * 2, || {
        FAULTS.iter().zip(&tokens).all(|(fault, token)| &self::token(cluster, fault) == token)
    });
    for ((fault, token), before) in FAULTS.iter().zip(tokens).zip(extends) {
        assert_eq!(self::token(cluster, fault), token, "{}: one leadership", fault.name);
        let (good, bad) = self::extends(cluster, fault);
        let periods = (boot_ms() - began) / u64::try_from(RENEW.as_millis()).expect("a small number");
        assert_eq!(bad, 0.0, "{}: extends that failed", fault.name);
        let more = good - before.0;
        assert!(more + 1.0 >= periods as f64, "{}: {more} extends in {periods} periods", fault.name);
    }
    cluster.kubectl(&["delete", "namespace", "c139", "--wait=false"]);
}

/// Where the first fault's server listens; the others follow.
const PORT: usize = 5301;

/// One server for each fault, on the address that every pod reaches the machine by.
struct Dns(Child);

impl Dns {
    fn start(cluster: &Cluster, nodes: &str) -> Self {
        let file = cluster.root().join("Corefile.c139");
        let blocks: Vec<String> = FAULTS.iter().enumerate().map(|(at, fault)| block(fault, PORT + at, nodes)).collect();
        std::fs::write(&file, blocks.concat()).expect("the cluster's directory is ours");
        let log = File::create(cluster.root().join("log/dns-c139.log")).expect("the cluster's directory is ours");
        let mut command = cluster.command("coredns");
        command.arg("-conf").arg(&file).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a file")).stderr(log);
        Self(command.spawn().expect("coredns is in the cache"))
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Three names are there, and have no IPv6 address; everything else is not there.
fn block(fault: &Fault, port: usize, nodes: &str) -> String {
    let there = r"match ^(near|middle)[.]c139[.]svc[.]cluster[.]local[.]$
    match ^far[.]partner[.]example[.]$";
    let Fault { does, a, aaaa, .. } = fault;
    let a = a.replace("NODES", nodes);
    let authority = r#"authority ". 5 IN SOA dns. dns. 1 60 60 60 5""#;
    format!(
        ".:{port} {{
  bind {HOST}
  {does}
  template IN A . {{
    {there}
    {a}
    fallthrough
  }}
  template IN AAAA . {{
    {there}
    {aaaa}
    {authority}
    fallthrough
  }}
  template IN ANY . {{
    rcode NXDOMAIN
    {authority}
  }}
}}
"
    )
}

/// Seven nodes in a pod, and its address. Those of the first four are used, which are a majority.
fn nodes(cluster: &Cluster) -> String {
    cluster.apply(&NODES.replace("IMAGE", NODE));
    let path = "/api/v1/namespaces/c139/pods/nodes";
    eventually("the nodes run", LONG, || {
        let pod = cluster.get(path).filter(|pod| condition(pod, "Ready") == Some("True"))?;
        Some(pod["status"]["podIP"].as_str()?.to_owned())
    })
}

const NODES: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: nodes, namespace: c139}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: 0
  securityContext: {runAsNonRoot: true, runAsUser: 999, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: node
      image: IMAGE
      imagePullPolicy: Never
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
      command: [sh, -c]
      args:
        - |
          for port in 7001 7002 7003 7004 7005 7006 7007; do
            redis-server --port $port --save "" --protected-mode no &
          done
          wait
      readinessProbe: {tcpSocket: {port: 7007}, periodSeconds: 1}
"#;

/// A name server as pods know one: a Service of port 53. Its address.
fn name_server(cluster: &Cluster, name: &str, port: usize) -> String {
    let manifest = NAME_SERVER.replace("NAME", name).replace("PORT", &port.to_string()).replace("HOST", HOST);
    cluster.apply(&manifest);
    let service = cluster.get(&format!("/api/v1/namespaces/c139/services/{name}")).expect("the Service is there");
    service["spec"]["clusterIP"].as_str().expect("it has an address").to_owned()
}

const NAME_SERVER: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: NAME, namespace: c139}
spec:
  ports: [{name: udp, port: 53, protocol: UDP}, {name: tcp, port: 53, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: NAME, namespace: c139, labels: {kubernetes.io/service-name: NAME}}
addressType: IPv4
ports: [{name: udp, port: PORT, protocol: UDP}, {name: tcp, port: PORT, protocol: TCP}]
endpoints: [{addresses: [HOST], conditions: {ready: true}}]
"#;

fn replica(cluster: &Cluster, fault: &Fault, dns: &str, nodes: &str) {
    let addresses = (7001..7005).map(|port| format!("redis://{nodes}:{port}"));
    let urls: Vec<String> = addresses.chain(NAMED.map(|node| format!("redis://{node}"))).collect();
    let pod = REPLICA.replace("FAULT", fault.name).replace("IMAGE", IMAGE).replace("DNS", dns);
    cluster.apply(&pod.replace("URLS", &urls.join(",")));
}

const REPLICA: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: FAULT, namespace: c139}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
  dnsPolicy: None
  dnsConfig:
    nameservers: [DNS]
    searches: [c139.svc.cluster.local, svc.cluster.local, cluster.local, office.example, lan.example]
    options: [{name: ndots, value: "5"}]
  containers:
    - name: redleader
      image: IMAGE
      imagePullPolicy: Never
      args: [run, --lock, FAULT, --log-level, debug, --redis, "URLS"]
      securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
"#;

fn pod(cluster: &Cluster, fault: &Fault) -> Option<Value> {
    cluster.get(&format!("/api/v1/namespaces/c139/pods/{}", fault.name))
}

/// The token that it leads by.
#[track_caller]
fn token(cluster: &Cluster, fault: &Fault) -> Value {
    eventually(&format!("{} leads", fault.name), LONG, || {
        said(&pod(cluster, fault)?).filter(leads).map(|said| said["token"].clone())
    })
}

/// How many extends succeeded, and how many did not.
fn extends(cluster: &Cluster, fault: &Fault) -> (f64, f64) {
    let samples = eventually("metrics", LONG, || metrics(&pod(cluster, fault)?));
    let all = sum(&samples, "extend_attempts_total", &[]);
    let good = sum(&samples, "extend_attempts_total", &[("outcome", "ok")]);
    (good, all - good)
}

/// Each name has been looked up so often, each time at the first try and in time: a connect is a look-up, and the little
/// that comes after it.
fn resolved(cluster: &Cluster, fault: &Fault, times: usize) {
    let lines = eventually(&format!("{}: every name is connected to", fault.name), LONG, || {
        let path = format!("/api/v1/namespaces/c139/pods/{}/log", fault.name);
        let (_, log) = cluster.request("GET", &path, "")?;
        let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        NAMED.iter().all(|node| connects(&lines, node, "connected").len() >= times).then_some(lines)
    });
    let mut took = Vec::new();
    for node in NAMED {
        let connects = connects(&lines, node, "connected");
        let failed = self::connects(&lines, node, "no connection");
        let dns: Vec<&&Value> = failed.iter().filter(|line| line["kind"] == "dns").collect();
        assert!(dns.is_empty(), "{}: {dns:?}", fault.name);
        took.push(connects[times - 1]["elapsed_ms"].as_u64().expect("a number"));
    }
    figure(&format!("C139 {}", fault.name), &format!("short, svc and external name connected in {took:?} ms"));
    let within = u64::try_from(fault.within.as_millis()).expect("a small number");
    assert!(took.iter().all(|took| *took <= within), "{}: {took:?}, more than {within} ms", fault.name);
}

fn connects<'a>(lines: &'a [Value], node: &str, message: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["message"] == message && line["node"] == node).collect()
}
