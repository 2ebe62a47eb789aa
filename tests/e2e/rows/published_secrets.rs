//! Passwords of every kind from a Secret of the cluster, and nothing that anyone can read has one.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::bench::{Bench, line_with};
use crate::cluster::Cluster;
use crate::figures::figure;
use crate::node::tell;
use crate::pod::{self, get, name, said};
use crate::release::{LONG, chart, render};
use crate::row::{Row, Stage};
use crate::wait::{eventually, stays_true};

pub const ROWS: &[Row] = &[Row {
    name: "C67-C109-secrets",
    shows: "every password of a Secret authenticates, and is in no log, object, endpoint, command line or environment",
    stage: Stage::Together,
    run: secrets,
}];

/// Passwords that others stumbled over.
fn passwords() -> Vec<String> {
    let short = ["xxx#", "p@ss/w:rd", "abc%de", "abcde%", "%2F", "RanDoMStRIng=", "a+b c", "pä$$"];
    let mut all: Vec<String> = short.map(str::to_owned).into();
    all.push(format!("S3cr3tT0ken-{}", "0123456789abcdef".repeat(12)).chars().take(200).collect());
    all.push(r##"S3cr3t#@/%=: "'$ü€\`+&?T0ken"##.to_owned());
    all
}

/// One that the nodes do not know.
const WRONG: &str = "N0t/the#One%20";

/// Everything that is told, at the most of words.
const TOLD: [&str; 8] = [
    "replicas=1",
    "app.port=8080",
    "mode=label",
    "logLevel=trace",
    "publish.condition=true",
    "publish.events=true",
    "publish.deletionCost=true",
    "redis.existingSecretKey=secret",
];

/// Under the wrapper: the process of the app is redleader's child.
const WRAPPED: [&str; 2] = ["wrap.enabled=true", "app.command={/web}"];

fn secrets(cluster: &Cluster) {
    let bench = Bench::new(cluster, "c67", &[]);
    let own = bench.release.password();
    let passwords = passwords();
    let nodes = eventually("all nodes have an address", LONG, || {
        let has_address = |node: &Value| node["status"]["podIP"].is_string();
        (bench.release.pods_of("node").iter().filter(|node| has_address(node)).count() == 3)
            .then(|| bench.release.node_addresses())
    });
    for node in &nodes {
        eventually("the node answers", LONG, || TcpStream::connect((node.as_str(), 6379)).ok());
        tell(node, &own, &users(&passwords));
    }
    for (number, password) in passwords.iter().chain([&WRONG.to_owned()]).enumerate() {
        let instance = format!("p{number}");
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": instance, "namespace": "c67"},
            "stringData": {"secret": password},
        });
        cluster.apply(&secret.to_string());
        bench.instance(&instance, &strings(&values(&instance, number)));
    }
    // The chart's own password, and with it the Job that waits for a leader, and all else that `helm install` makes.
    bench.instance("own", &[&TOLD[..7], &["publish.lease=own", "redis.existingSecret=c67-nodes"]].concat());
    for number in 0..passwords.len() {
        leads(&bench, &format!("p{number}"));
    }
    leads(&bench, "own");
    figure("C67 passwords of a Secret", &format!("{} of {} authenticate and lead", passwords.len(), passwords.len()));
    refused(&bench, &format!("p{}", passwords.len()));
    let mut all = passwords;
    all.extend([WRONG.to_owned(), own]);
    told_to_nobody(&bench, &all);
    bench.remove();
}

fn strings(values: &[String]) -> Vec<&str> {
    values.iter().map(String::as_str).collect()
}

fn values(instance: &str, number: usize) -> Vec<String> {
    let mut values: Vec<String> = TOLD.map(str::to_owned).into();
    values.extend([
        format!("redis.existingSecret={instance}"),
        format!("redis.username=user{}", number),
        format!("publish.lease={instance}"),
    ]);
    // Every second one.
    values.extend(WRAPPED.iter().filter(|_| number % 2 == 1).map(|value| (*value).to_owned()));
    values
}

/// A user for each password. Bytes are told as numbers, so that no layer of quoting has a part in it.
fn users(passwords: &[String]) -> String {
    let user = |(number, password): (usize, &String)| {
        let bytes: String = format!(">{password}").bytes().map(|byte| format!("\\x{byte:02x}")).collect();
        format!("ACL SETUSER user{number} reset on \"{bytes}\" ~* &* +@all\n")
    };
    passwords.iter().enumerate().map(user).collect()
}

fn leads(bench: &Bench<'_>, instance: &str) {
    eventually(&format!("{instance} leads"), LONG, || said(&bench.pod_of(instance)?).filter(pod::leads));
}

/// With a wrong password a replica says so and never leads.
fn refused(bench: &Bench<'_>, instance: &str) {
    let pod = eventually("it answers", LONG, || bench.pod_of(instance).filter(|pod| said(pod).is_some()));
    let ready = |pod: &Value| get(pod, "/readyz").map(|(status, text)| (status, text.contains("auth")));
    eventually("it says why", LONG, || (ready(&pod) == Some((503, true))).then_some(()));
    stays_true("it does not lead", Duration::from_secs(3), || said(&pod).is_none_or(|said| said["leading"] == false));
}

/// Something that people or programs can read: what it is, and its text.
type Heard = (String, String);

fn told_to_nobody(bench: &Bench<'_>, secrets: &[String]) {
    let mut heard = Vec::new();
    let pods = bench.release.pods();
    for pod in &pods {
        heard.extend(logs(bench, pod));
        heard.extend(endpoints(pod));
    }
    heard.extend(processes(&pods));
    heard.extend(pages(bench));
    heard.extend(objects(bench));
    heard.extend(rendered(bench));
    heard.extend(files(bench));
    let searched: Vec<&String> = secrets.iter().filter(|secret| secret.as_str() != "%2F").collect();
    let hits = find(&heard, &searched);
    assert!(hits.is_empty(), "{}", hits.join("\n"));
    let mut kinds: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (what, text) in &heard {
        let count = kinds.entry(what.split(' ').next().unwrap_or_default()).or_default();
        *count = (count.0 + 1, count.1 + text.len());
    }
    let kinds: Vec<String> =
        kinds.iter().map(|(kind, (count, bytes))| format!("{count} {kind} ({} kB)", bytes / 1000)).collect();
    for kind in ["log", "endpoint", "cmdline", "environ", "object", "chart", "page", "file"] {
        assert!(kinds.iter().any(|line| line.contains(kind)), "nothing of {kind} was read: {kinds:?}");
    }
    let text = format!(
        "0 hits of {} passwords, each plain, quoted, percent-encoded and base64, in {}",
        searched.len(),
        kinds.join(", ")
    );
    figure("C109 secrets", &text);
    may_have_it(bench, &searched);
}

/// The same search finds each password where it has to be: in its Secret, and the nodes' own in what they say of
/// themselves to whoever has it.
fn may_have_it(bench: &Bench<'_>, secrets: &[&String]) {
    let cluster = bench.release.cluster;
    let all = cluster.kubectl(&["get", "secrets", "-n", "c67", "-o", "json"]);
    let kept = [("secrets".to_owned(), all)];
    for secret in secrets {
        assert!(!find(&kept, &[secret]).is_empty(), "the search does not find {secret} in its Secret");
    }
    let own = bench.release.password();
    let words = ["exec", "-n", "c67", "c67-nodes-0", "--", "redis-cli", "--no-auth-warning", "-a", &own];
    let said = cluster.kubectl(&[&words[..], &["CONFIG", "GET", "requirepass"]].concat());
    assert!(!find(&[("node".to_owned(), said)], &[&own]).is_empty(), "the node has its password");
    let hits = find(&processes(&bench.release.pods_of("node")), secrets);
    assert!(hits.is_empty(), "{}", hits.join("\n"));
    let text =
        "the Secrets, and requirepass of the chart's own nodes in their memory; not their /proc, nor anything else";
    figure("C109 who has it", text);
}

/// Where these secrets are, in whatever form.
fn find(heard: &[Heard], secrets: &[&String]) -> Vec<String> {
    let forms: Vec<(String, String)> =
        secrets.iter().flat_map(|secret| forms(secret).into_iter().map(|form| ((*secret).clone(), form))).collect();
    let mut hits = Vec::new();
    for (what, text) in heard {
        let found = forms.iter().filter(|(_, form)| text.contains(form.as_str()));
        hits.extend(found.map(|(secret, form)| format!("{what} has {secret} as {form}")));
    }
    hits
}

/// What a URL leaves as it is.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

fn forms(secret: &str) -> Vec<String> {
    let quoted = json!(secret).to_string();
    let encoded = utf8_percent_encode(secret, UNRESERVED).to_string();
    let whole = utf8_percent_encode(secret, NON_ALPHANUMERIC).to_string();
    let escape = |c: char| if c.is_ascii() { c.to_string() } else { format!("\\u{:04x}", u32::from(c)) };
    let ascii: String = quoted.trim_matches('"').chars().map(escape).collect();
    let mut forms = vec![secret.to_owned(), quoted.trim_matches('"').to_owned(), ascii];
    forms.extend([encoded.replace("%20", "+"), lower(&encoded), encoded, lower(&whole), whole]);
    forms.extend([STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD].map(|engine| engine.encode(secret)));
    forms.sort();
    forms.dedup();
    forms
}

/// The digits of what is encoded in lower case, and nothing else.
fn lower(encoded: &str) -> String {
    let mut parts = encoded.split('%');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| format!("{all}%{}{}", part[..2].to_lowercase(), &part[2..]))
}

fn logs(bench: &Bench<'_>, pod: &Value) -> Vec<Heard> {
    let pod = name(pod);
    let arguments = ["logs", "-n", "c67", &pod, "--all-containers", "--prefix"];
    let text = bench.release.cluster.kubectl(&arguments);
    assert!(line_with(&text, &["\"DEBUG\""]).is_some(), "{pod} does not log all: {text}");
    vec![(format!("log of {pod}"), text)]
}

fn endpoints(pod: &Value) -> Vec<Heard> {
    let paths = [
        "/",
        "/leader",
        "/readyz",
        "/healthz",
        "/livez",
        "/startupz",
        "/routez",
        "/metrics",
        "/nothing",
        "/leader/stream",
    ];
    let mut heard: Vec<Heard> = Vec::new();
    for path in paths {
        for accept in ["*/*", "text/html"] {
            let text = ask(&pod::endpoints(pod), path, accept);
            assert!(text.starts_with("HTTP/1."), "{path} of {}: {text:?}", name(pod));
            heard.push((format!("endpoint {path} of {}", name(pod)), text));
        }
    }
    heard
}

/// A whole answer with its head, or the beginning of one that does not end.
fn ask(address: &str, path: &str, accept: &str) -> String {
    let mut stream = eventually("it takes a connection", LONG, || TcpStream::connect(address).ok());
    stream.set_read_timeout(Some(Duration::from_millis(500))).expect("a time limit");
    write!(stream, "GET {path} HTTP/1.0\r\nAccept: {accept}\r\n\r\n").expect("it reads");
    let mut answer = Vec::new();
    let mut part = [0; 16_384];
    while let Ok(count @ 1..) = stream.read(&mut part) {
        answer.extend_from_slice(&part[..count]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// Command line and environment of every process of these pods, as the machine shows them. Each pod has a host name of
/// its own.
fn processes(pods: &[Value]) -> Vec<Heard> {
    let mut without: BTreeSet<String> = pods.iter().map(name).collect();
    let names = without.clone();
    let mut heard = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc is there").flatten() {
        let read = |file: &str| {
            let bytes = std::fs::read(entry.path().join(file)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let host = read("root/etc/hostname");
        if let Some(pod) = names.get(host.trim()) {
            without.remove(pod);
            let of = |file: &str| format!("{file} of {} in {pod}", read("comm").trim());
            heard.extend(["cmdline", "environ"].map(|file| (of(file), read(file))));
        }
    }
    assert!(without.is_empty(), "no process of {without:?} is found");
    heard
}

/// What the other commands say in a sidecar and under the wrapper.
fn pages(bench: &Bench<'_>) -> Vec<Heard> {
    let places = [
        ("p0", "redleader", "/redleader"),
        ("p9", "app", "/run/redleader/bin/redleader"),
        ("p10", "redleader", "/redleader"),
    ];
    let mut heard = Vec::new();
    for (instance, container, program) in places {
        let pod = name(&bench.pod_of(instance).expect("it is there"));
        for words in
            [&["status"][..], &["status", "--output", "json"], &["doctor", "--for", "0s"], &["wait", "--timeout", "2s"]]
        {
            let output = bench.release.exec(&pod, container, &[&[program], words].concat());
            let text =
                [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
            assert!(!text.is_empty(), "{words:?} in {pod} says nothing");
            heard.push((format!("page of {} in {pod}", words.join(" ")), text));
        }
    }
    heard
}

/// Kinds that another row brings to the cluster and takes away again.
pub fn is_passing(kind: &str) -> bool {
    kind.ends_with(".monitoring.coreos.com")
}

/// Every object of the namespace but Secrets.
fn objects(bench: &Bench<'_>) -> Vec<Heard> {
    let cluster = bench.release.cluster;
    let kinds = cluster.kubectl(&["api-resources", "--verbs=list", "--namespaced", "-o", "name"]);
    let kinds: Vec<&str> = kinds.lines().filter(|kind| *kind != "secrets" && !is_passing(kind)).collect();
    let list: Value =
        serde_json::from_str(&cluster.kubectl(&["get", &kinds.join(","), "-n", "c67", "-o", "json"])).expect("JSON");
    let items = list["items"].as_array().expect("a list");
    for kind in ["Pod", "Deployment", "StatefulSet", "ConfigMap", "Lease", "Event", "ReplicaSet"] {
        assert!(items.iter().any(|item| item["kind"] == kind), "no {kind} is there");
    }
    items.iter().map(|item| (format!("object {} {}", item["kind"], name(item)), item.to_string())).collect()
}

/// What the chart makes of a release with a Secret's name, with hooks: the Job that waits, and the test.
fn rendered(bench: &Bench<'_>) -> Vec<Heard> {
    let words = ["c67", "-n", "c67", "--set", "redis.addresses={a,b,c}", "--set", "redis.existingSecret=p9"];
    let text = render(bench.release.cluster, &chart(), &words).expect("the chart renders");
    assert!(text.contains("kind: Job") && text.contains("kind: Deployment"), "{text}");
    vec![("chart rendered".to_owned(), text), ("chart notes".to_owned(), bench.release.helm(&["get", "notes"]))]
}

/// The logs of the cluster itself, and who asked the API server for what.
fn files(bench: &Bench<'_>) -> Vec<Heard> {
    let root = bench.release.cluster.root();
    let logs = std::fs::read_dir(root.join("log")).expect("the cluster logs").flatten().map(|entry| entry.path());
    let read = |path: std::path::PathBuf| {
        let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap_or_default()).into_owned();
        (format!("file {}", path.display()), text)
    };
    logs.chain([root.join("audit.log")]).map(read).collect()
}
