//! The way to the API server: who a pod is, certificates of every kind, and proxies. On the real one.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::bench::{BarePod, Bench, line_with};
use crate::cluster::{Cluster, HOST, seconds_since, succeed};
use crate::figures::figure;
use crate::pod::{self, leads, said};
use crate::release::LONG;
use crate::row::{Row, Stage};
use crate::tunnel::Tunnel;
use crate::wait::{boot_ms, eventually};

pub const ROWS: &[Row] = &[
    Row {
        name: "C77-no-name",
        shows: "a pod that does not know who it is does not start, by the variable's name; a wrong name is told of",
        stage: Stage::Together,
        run: who_it_is,
    },
    Row {
        name: "C79-certificates",
        shows: "an API server's certificate for an address, a name, of an intermediate, or in a bundle works; others are named",
        stage: Stage::Together,
        run: certificates,
    },
    Row {
        name: "C81-proxies",
        shows: "proxies of the environment are not obeyed; the one of the setting is, and named when it is dead",
        stage: Stage::Together,
        run: proxies,
    },
];

/// A bare pod that publishes its label.
fn labelled(name: &str) -> BarePod<'_> {
    BarePod::new(name).env("REDLEADER_KUBE_LABEL", "on")
}

/// Waits until a pod's redleader leads; its token.
fn token(bench: &Bench<'_>, pod: &str) -> Value {
    let running = bench.running(pod);
    eventually("it leads", LONG, || said(&running).filter(leads))["token"].clone()
}

/// The reason of the line that says why nothing could be published.
fn fault(bench: &Bench<'_>, pod: &str) -> String {
    let line = eventually("it is logged", LONG, || line_with(&bench.log(pod), &["cannot publish; trying on"]));
    let line: Value = serde_json::from_str(&line).expect("a log line is JSON");
    line["reason"].as_str().expect("it has a reason").to_owned()
}

/// The sum of the samples of `redleader_NAME` that carry these labels.
fn metric(bench: &Bench<'_>, pod: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    pod::metric(&bench.pod(pod).expect("the pod is there"), name, labels)
}

fn who_it_is(cluster: &Cluster) {
    let bench = Bench::new(cluster, "c77", &["publish.label=true", "publish.condition=true"]);
    let gated = BarePod::new("no-name-gate").env("REDLEADER_KUBE_CONDITION", "on");
    let refused = [
        (labelled("no-name").without("POD_NAME"), "--kube-label: needs --pod-name, or POD_NAME"),
        (labelled("no-namespace").without("POD_NAMESPACE"), "--kube-label: needs --pod-namespace, or POD_NAMESPACE"),
        (labelled("no-uid").without("POD_UID"), "--kube-label: needs --pod-uid, or POD_UID"),
        (gated.without("POD_NAME"), "--kube-condition: needs --pod-name, or POD_NAME"),
    ];
    let (wrong, others) = (labelled("wrong").env("POD_NAME", "nobody"), labelled("others").env("POD_NAME", "wrong"));
    bench.start(&wrong);
    bench.start(&others);
    for (pod, told) in refused {
        let pod = BarePod { restarts: false, ..pod };
        bench.start(&pod);
        let code = eventually("it ends", LONG, || {
            bench.pod(pod.name)?["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"].as_u64()
        });
        assert_eq!(code, 64, "{}: {}", pod.name, bench.log(pod.name));
        let line = eventually(told, LONG, || line_with(&bench.log(pod.name), &[told]));
        figure("C77 a pod that does not know who it is", &format!("{}: ends with {code}: {}", pod.name, line.trim()));
    }
    for (pod, named, code) in [("wrong", "pods/nobody: 404", "404"), ("others", "metadata.uid", "422")] {
        let token = token(&bench, pod);
        let reason = fault(&bench, pod);
        assert!(reason.contains(named), "{reason}");
        eventually("it is counted", LONG, || {
            (metric(&bench, pod, "publish_errors_total", &[("target", "label"), ("code", code)]) > 0.0).then_some(())
        });
        assert_eq!(metric(&bench, pod, "publish_pending", &[("target", "label")]), 1.0);
        assert_eq!(said(&bench.running(pod)).expect("it answers")["token"], token, "leadership is not affected");
        figure("C77 a pod of another name", &format!("{pod}: leads; {reason}"));
    }
    // The pod whose name the other has was not touched by it.
    assert_eq!(bench.release.role("wrong"), None);
    bench.remove();
}

/// The name that the API server has within the cluster, and another.
const NAME: &str = "kubernetes.default.svc";
const CHAINED: &str = "chained.kubernetes.default.svc";
/// Where the API server with the other certificates listens, at its address.
const PORT: &str = "6444";

fn certificates(cluster: &Cluster) {
    let bench = Bench::new(cluster, "c79", &["publish.label=true"]);
    let pki = cluster.root().join("pki");
    make_certificates(&pki);
    // By an address, a client asks for no name and finds the first certificate.
    let arguments = format!(
        "--secure-port={PORT} --tls-cert-file=pki/by-ip.crt --tls-private-key-file=pki/by-ip.key \
         --tls-sni-cert-key=pki/by-name.crt,pki/by-name.key --tls-sni-cert-key=pki/chained.crt,pki/chained.key"
    );
    std::fs::write(cluster.root().join("apiserver-other.arguments"), arguments).expect("the directory is ours");
    let began = boot_ms();
    cluster.part("start", "apiserver-other");
    for authority in ["leaf", "bundle", "stranger"] {
        let file = format!("--from-file=ca.crt={}", pki.join(format!("{authority}.ca")).display());
        cluster.kubectl(&["create", "configmap", "-n", "c79", authority, &file]);
    }
    eventually("the other API server is ready", LONG, || {
        let server = format!("--server=https://{HOST}:{PORT}");
        let output = cluster.try_kubectl(&["get", "--raw", "/readyz", &server]);
        output.status.success().then_some(())
    });
    figure("C79 one more API server", &format!("ready after {:.1} s", seconds_since(began)));
    let pods = [
        ("address-only", HOST, "kube-root-ca.crt", true),
        ("name-only", NAME, "kube-root-ca.crt", true),
        ("intermediate", CHAINED, "kube-root-ca.crt", true),
        ("bundle-of-two", HOST, "bundle", true),
        ("leaf-as-authority", HOST, "leaf", false),
        ("wrong-authority", HOST, "stranger", false),
        ("wrong-name", "wrong.example", "kube-root-ca.crt", false),
    ];
    for (name, host, authority, _) in pods {
        let pod = labelled(name).env("KUBERNETES_SERVICE_HOST", host).env("KUBERNETES_SERVICE_PORT", PORT);
        bench.start(&BarePod { authority, hosts: &[NAME, CHAINED, "wrong.example"], ..pod });
    }
    let tokens: Vec<Value> = pods.iter().map(|(name, ..)| token(&bench, name)).collect();
    for (name, host, _, works) in pods {
        judge(&bench, name, host, works);
    }
    for ((name, ..), token) in pods.iter().zip(tokens) {
        let said = said(&bench.running(name)).expect("it answers");
        assert!(leads(&said) && said["token"] == token, "{name}: one leadership: {said}");
    }
    figure("C79 leadership", &format!("{} of {} pods led throughout, each one leadership", pods.len(), pods.len()));
    cluster.part("stop", "apiserver-other");
    bench.remove();
}

/// The label is there, or one line says why it is not.
fn judge(bench: &Bench<'_>, pod: &str, host: &str, works: bool) {
    if works {
        eventually("the label is there", LONG, || bench.release.role(pod).filter(|role| role == "leader"));
        let errors = metric(bench, pod, "publish_errors_total", &[]);
        figure("C79 certificate", &format!("{pod}: the label is there by {host}, {errors} errors"));
        return;
    }
    let reason = fault(bench, pod);
    assert!(reason.contains("certificate"), "{pod}: {reason}");
    assert!(metric(bench, pod, "publish_errors_total", &[("target", "label"), ("code", "tls")]) > 0.0);
    assert_eq!(bench.release.role(pod), None);
    let lines = bench.log(pod).lines().filter(|line| line.contains("cannot publish; trying on")).count();
    assert_eq!(lines, 1, "{pod}: it is told of once, however often it is tried");
    figure("C79 certificate", &format!("{pod}: one line: {reason}"));
}

/// One for the address only, one for the name only, one of an intermediate, and what else pods take for the authority.
fn make_certificates(pki: &Path) {
    let ca = ("ca.crt", "ca.key");
    let of = |subject: &str| format!("basicConstraints=CA:FALSE\nsubjectAltName={subject}\n");
    issue(pki, "by-ip", &of(&format!("IP:{HOST}")), ca);
    issue(pki, "by-name", &of(&format!("DNS:{NAME}")), ca);
    issue(pki, "between", "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\n", ca);
    issue(pki, "chained", &of(&format!("DNS:{CHAINED}")), ("between.crt", "between.key"));
    let stranger = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "stranger.key", "-out", "stranger.ca"];
    openssl(pki, &[&stranger[..], &["-subj", "/CN=stranger", "-days", "30"]].concat());
    let read = |name: &str| std::fs::read(pki.join(name)).expect("it was made");
    let write = |name: &str, bytes: Vec<u8>| std::fs::write(pki.join(name), bytes).expect("the directory is ours");
    write("chained.crt", [read("chained.crt"), read("between.crt")].concat());
    write("bundle.ca", [read("stranger.ca"), read("ca.crt")].concat());
    write("leaf.ca", read("by-ip.crt"));
}

fn issue(pki: &Path, name: &str, extensions: &str, (ca, ca_key): (&str, &str)) {
    let file = |ending: &str| format!("{name}.{ending}");
    let (key, request, certificate, text) = (file("key"), file("csr"), file("crt"), file("ext"));
    std::fs::write(pki.join(&text), extensions).expect("the directory is ours");
    let subject = format!("/CN={name}");
    openssl(pki, &["req", "-newkey", "rsa:2048", "-nodes", "-keyout", &key, "-out", &request, "-subj", &subject]);
    let sign = ["x509", "-req", "-in", &request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-out", &certificate];
    openssl(pki, &[&sign[..], &["-days", "30", "-extfile", &text]].concat());
}

fn openssl(directory: &Path, arguments: &[&str]) {
    let output = Command::new("openssl").args(arguments).current_dir(directory).output();
    succeed("openssl", output.expect("openssl is there"));
}

/// Nobody listens there.
const DEAD: &str = "http://127.0.0.1:9";

fn proxies(cluster: &Cluster) {
    let bench = Bench::new(cluster, "c81", &["publish.label=true"]);
    let tunnel = Tunnel::start(HOST);
    let with_environment = |pod: BarePod<'static>| {
        let names = ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"].map(str::to_owned);
        let lower = names.clone().map(|name| name.to_lowercase());
        let pod = names.iter().chain(&lower).fold(pod, |pod, name| pod.env(name, DEAD));
        let not = "10.96.0.0/12,127.0.0.0/8,.svc";
        pod.env("NO_PROXY", not).env("no_proxy", not)
    };
    bench.start(&with_environment(labelled("direct")));
    bench.start(&with_environment(labelled("dead").env("REDLEADER_KUBE_PROXY", DEAD)));
    bench.start(&with_environment(labelled("through").env("REDLEADER_KUBE_PROXY", &tunnel.url)));
    let pods = ["direct", "dead", "through"];
    // Nodes are reached without a proxy, or none of them would lead.
    let tokens = pods.map(|pod| token(&bench, pod));
    for pod in ["direct", "through"] {
        eventually("the label is there", LONG, || bench.release.role(pod).filter(|role| role == "leader"));
        assert_eq!(metric(&bench, pod, "publish_errors_total", &[]), 0.0, "{pod}");
    }
    assert!(tunnel.served() > 0, "the setting is obeyed");
    let reason = fault(&bench, "dead");
    assert!(reason.contains(&format!("through the proxy {DEAD}")), "{reason}");
    assert_eq!(bench.release.role("dead"), None);
    for (pod, token) in pods.into_iter().zip(tokens) {
        let said = said(&bench.running(pod)).expect("it answers");
        assert!(leads(&said) && said["token"] == token, "{pod}: one leadership: {said}");
    }
    figure("C81 proxies of the environment, dead", "the label is there, without an error");
    figure("C81 proxy of the setting", &format!("{} connections through it; a dead one: {reason}", tunnel.served()));
    bench.remove();
}
