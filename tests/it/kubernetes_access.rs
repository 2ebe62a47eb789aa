//! The way to the Kubernetes API: who we are, rights, tokens, certificates, addresses and proxies. On a fake API server.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use serde_json::Value as Json;

use crate::support::{
    Certificates, FakeKubernetes, Output, Replica, ReplicaOptions, Servers, Tunnel, Weather, eventually, pod_path, run,
    stays_true,
};

const SOON: Duration = Duration::from_secs(20);
const TIMING: [&str; 4] = ["--ttl", "3s", "--node-timeout", "600ms"];

fn start(kubernetes: &FakeKubernetes, nodes: &Servers, lock: &str, pod: &str, flags: &[&str]) -> Replica {
    kubernetes.add_pod(pod);
    kubernetes.replica(lock, pod, &nodes.urls(), &[&TIMING, flags].concat()).start()
}

fn is_published(replica: &Replica) -> bool {
    replica.metric("publish_pending", &[]) == 0.0
}

fn redleader(words: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(crate::support::binary());
    command.args(words).envs(env.iter().copied());
    for variable in ["POD_NAME", "POD_NAMESPACE", "POD_UID", "KUBERNETES_SERVICE_HOST"] {
        if env.iter().all(|(name, _)| *name != variable) {
            command.env_remove(variable);
        }
    }
    run("redleader", command, SOON)
}

#[test]
fn c77_a_publisher_without_its_pod_is_refused_by_name() {
    let run = |flag: &str, env: &[(&str, &str)]| {
        redleader(&["run", "--lock", "c77", "--redis", "redis://127.0.0.1:1", "--listen", "off", flag], env)
    };
    for flag in ["--kube-label", "--kube-condition", "--kube-events", "--kube-deletion-cost", "--kube-lease=web"] {
        let output = run(flag, &[("POD_NAME", "a")]);
        let name = flag.split('=').next().unwrap();
        assert_eq!(output.code, 64, "{output:?}");
        for needed in ["--pod-namespace, or POD_NAMESPACE", "--pod-uid, or POD_UID"] {
            assert!(output.stderr.contains(&format!("{name}: needs {needed}")), "{output:?}");
        }
        assert!(!output.stderr.contains("needs --pod-name,"), "{output:?}");
    }
    let pod = [("POD_NAME", "a"), ("POD_NAMESPACE", "n"), ("POD_UID", "u")];
    let output = run("--kube-label", &pod);
    assert_eq!(output.code, 64, "outside of a pod: {output:?}");
    assert!(output.stderr.contains("--kube-*") && output.stderr.contains("KUBERNETES_SERVICE_HOST"), "{output:?}");
    for (flag, told) in [
        ("--kube-label=perhaps", "--kube-label: must be one of: on, off, true, false"),
        ("--kube-lease=Web", "--kube-lease: must be a DNS name"),
        ("--kube-proxy=http://u:S3cr3t@p", "--kube-proxy: must be http://HOST:PORT, without user, password or path"),
    ] {
        let output = run(flag, &pod);
        assert_eq!(output.code, 64, "{output:?}");
        assert!(output.stderr.contains(told) && !output.stderr.contains("S3cr3t"), "{output:?}");
    }
}

#[test]
fn c77_a_pod_of_another_name_is_told_of_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let a = kubernetes.replica("c77", "wrong", &nodes.urls(), &[&TIMING[..], &["--kube-label"]].concat()).start();
    a.wait_elected(1, SOON);
    let line = a.wait_for_message("cannot publish; trying on", 1, SOON);
    assert!(line.text("reason").contains("pods/wrong: 404"), "{line:?}");
    assert_eq!(a.metric("publish_pending", &[("target", "label")]), 1.0);
    assert!(a.metric("publish_errors_total", &[("target", "label"), ("code", "404")]) > 0.0);
    assert!(a.leads());
}

#[test]
fn c149_missing_rights_are_named_in_one_line_and_by_doctor_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    for right in ["patch pods", "patch pods/status", "create leases", "create events"] {
        kubernetes.deny(right);
    }
    let flags = ["--kube-label", "--kube-condition", "--kube-events", "--kube-lease", "web"];
    let a = start(&kubernetes, &nodes, "c149", "a", &flags);
    a.wait_elected(1, SOON);
    let line = a.wait_for_log("the missing rights", SOON, |line| line.message().starts_with("rights are missing"));
    let missing = "the service account may not, in namespace team-a: patch pods (--kube-label), patch pods/status \
                   (--kube-condition), create leases.coordination.k8s.io (--kube-lease), create events.events.k8s.io \
                   (--kube-events)";
    assert_eq!(line.text("reason"), missing);
    eventually("each is counted", SOON, || {
        let denied = |target| a.metric("publish_errors_total", &[("target", target), ("code", "403")]) > 0.0;
        ["label", "condition", "lease", "event"].into_iter().all(denied).then_some(())
    });
    assert!(a.leads());

    let doctor = |flags: &[&str]| {
        let mut command = Command::new(kubernetes.pod_shell("a"));
        let [host, port] = kubernetes.host_and_port();
        let who = ["--pod-name", "a", "--pod-namespace", "team-a", "--pod-uid", "uid-of-a"];
        command.args(["doctor", "--lock", "c149", "--for", "0s", "--ttl", "3s", "--node-timeout", "600ms"]);
        command.args(["--output", "json"]).args(who).args(flags);
        command.args(nodes.urls().iter().flat_map(|url| ["--redis", url]));
        command.env("KUBERNETES_SERVICE_HOST", host).env("KUBERNETES_SERVICE_PORT", port);
        let output = run("doctor", command, SOON);
        let json: Json = serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        json["findings"].as_array().unwrap().clone()
    };
    let of = |findings: &[Json], problem: &str| findings.iter().find(|finding| finding["problem"] == problem).cloned();
    let findings = doctor(&flags);
    let rights = of(&findings, "rights").unwrap_or_else(|| panic!("{findings:?}"));
    assert_eq!(rights["what"], missing);
    kubernetes.allow_all();
    let findings = doctor(&flags);
    assert!(of(&findings, "rights").is_none() && of(&findings, "kubernetes").is_none(), "{findings:?}");
    kubernetes.set_weather(Weather::Reset);
    let findings = doctor(&flags);
    assert!(of(&findings, "kubernetes").is_some(), "{findings:?}");
    kubernetes.set_weather(Weather::Fair);
    eventually("all of it is published once it may be", Duration::from_secs(60), || is_published(&a).then_some(()));
}

/// Each of the 16 combinations, through a hand-over: nothing is asked that its Role does not grant, and nothing is
/// granted that is not asked.
#[test]
fn c149_each_combination_uses_the_rights_that_it_needs_and_no_other_fake() {
    let nodes = Servers::start(1);
    let mut running = Vec::new();
    for combination in 0..16_u8 {
        let kubernetes = FakeKubernetes::start();
        let is_on = |bit: u8| combination & (1 << bit) != 0;
        let mut flags: Vec<&str> = Vec::new();
        let mut rights: BTreeSet<&str> = BTreeSet::new();
        for (bit, on, needed) in [
            (0, &["--kube-label"][..], &["get pods", "watch pods", "patch pods"][..]),
            (1, &["--kube-condition"], &["get pods", "watch pods", "patch pods/status"]),
            (2, &["--kube-lease", "web"], &["get leases", "patch leases", "create leases"]),
            (3, &["--kube-events"], &["create events"]),
        ] {
            if is_on(bit) {
                flags.extend(on);
                rights.extend(needed);
            }
        }
        // What the owner of a Lease is looked up by is asked for only where it is granted.
        if !rights.contains("get pods") {
            kubernetes.deny("get pods");
        }
        kubernetes.deny("get replicasets");
        let lock = format!("c149-{combination}");
        let [a, b] = ["a", "b"].map(|pod| start(&kubernetes, &nodes, &lock, pod, &flags));
        running.push((kubernetes, rights, flags, [a, b]));
    }
    for (kubernetes, rights, flags, [a, b]) in &running {
        let leader = eventually("one leads, and the other knows it", SOON, || {
            let pair = [(a, b), (b, a)].into_iter().find(|(leader, _)| leader.leads());
            pair.filter(|(leader, other)| other.leader_json()["holder"] == leader.identity() && is_published(leader))
        });
        assert_eq!(leader.0.command(&["resign", "--for", "60s"]).code, 0);
        leader.1.wait_elected(1, SOON);
        eventually("the hand-over is published", SOON, || (is_published(a) && is_published(b)).then_some(()));
        let used = kubernetes.used_rights(&["a", "b"]);
        let used: BTreeSet<&str> = used.iter().map(String::as_str).collect();
        assert_eq!(used, *rights, "{flags:?}");
        let denied = kubernetes.asked_from(0).into_iter().filter(|asked| asked.status == 403).count();
        assert_eq!(denied, 0, "{flags:?}");
    }
    assert_eq!(running[0].0.count(), 0, "nothing is asked where nothing is published");
}

#[test]
fn a_rotated_token_is_read_again_at_once_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let a = start(&kubernetes, &nodes, "rotated", "a", &["--kube-label"]);
    a.wait_elected(1, SOON);
    eventually("it is published", SOON, || is_published(&a).then_some(()));
    kubernetes.rotate_token("second-t0ken", true);
    assert_eq!(a.command(&["resign", "--for", "60s"]).code, 0);
    eventually("the label is right", SOON, || (kubernetes.role("a") == "standby").then_some(()));
    let refused = a.metric("publish_errors_total", &[("code", "401")]);
    assert!((1.0..=3.0).contains(&refused), "{refused}");
    assert!(kubernetes.asked_from(0).iter().any(|asked| asked.token == "second-t0ken"));
}

#[test]
fn c79_certificates_of_every_kind_work_or_are_named_fake() {
    let nodes = Servers::start(1);
    let certs = Certificates::generate();
    let other = Certificates::generate();
    let ip = certs.issue("ip-only", Some("subjectAltName=IP:127.0.0.1\n"), None);
    let dns = certs.issue("dns-only", Some("subjectAltName=DNS:localhost\n"), None);
    let read = |path: &std::path::Path| std::fs::read(path).unwrap();
    let bundle = [read(&other.ca()), read(&certs.ca())].concat();
    for (name, served, host, ca, works) in [
        ("ip", &ip, "127.0.0.1", read(&certs.ca()), true),
        ("dns", &dns, "localhost", read(&certs.ca()), true),
        ("bundle", &ip, "127.0.0.1", bundle, true),
        ("wrong-name", &dns, "127.0.0.1", read(&certs.ca()), false),
        ("wrong-ca", &ip, "127.0.0.1", read(&other.ca()), false),
        ("leaf-as-ca", &ip, "127.0.0.1", read(&ip.0), false),
    ] {
        let kubernetes = FakeKubernetes::start_with(&certs, served.clone(), false);
        kubernetes.add_pod(name);
        let lock = format!("c79-{name}");
        let options = kubernetes.replica(&lock, name, &nodes.urls(), &[&TIMING[..], &["--kube-label"]].concat());
        kubernetes.mount(name, "ca.crt", &ca);
        let a = options.env("KUBERNETES_SERVICE_HOST", host).start();
        a.wait_elected(1, SOON);
        if works {
            eventually("it is published", SOON, || (kubernetes.role(name) == "leader").then_some(()));
            continue;
        }
        let line = a.wait_for_message("cannot publish; trying on", 1, SOON);
        println!("{name}: {}", line.text("reason"));
        assert!(line.text("reason").contains("certificate"), "{name}: {line:?}");
        assert!(a.metric("publish_errors_total", &[("target", "label"), ("code", "tls")]) > 0.0, "{name}");
        assert!(a.leads(), "{name}");
    }
}

#[test]
fn an_api_server_on_ipv6_is_reached_fake() {
    let (certs, nodes) = (Certificates::generate(), Servers::start(1));
    let kubernetes = FakeKubernetes::start_with(&certs, (certs.server_cert(), certs.server_key()), true);
    let a = start(&kubernetes, &nodes, "ipv6", "a", &["--kube-label"]);
    a.wait_elected(1, SOON);
    eventually("it is published", SOON, || (kubernetes.role("a") == "leader").then_some(()));
    assert_eq!(kubernetes.host_and_port()[0], "::1");
}

#[test]
fn c81_a_proxy_of_the_environment_is_not_obeyed_and_one_of_the_flag_is_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    let environment = ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy"];
    let with_environment = |options: ReplicaOptions| {
        let options = environment.into_iter().fold(options, |options, name| options.env(name, "http://127.0.0.1:9"));
        options.env("NO_PROXY", "10.96.0.0/12,127.0.0.0/8,.svc").env("no_proxy", "")
    };
    let replica = |lock: &str, pod: &str, flags: &[&str]| {
        kubernetes.add_pod(pod);
        let args = [&TIMING[..], &["--kube-label"], flags].concat();
        let replica = with_environment(kubernetes.replica(lock, pod, &nodes.urls(), &args)).start();
        replica.wait_elected(1, SOON);
        replica
    };
    let _direct = replica("c81-direct", "direct", &[]);
    eventually("it goes there directly", SOON, || (kubernetes.role("direct") == "leader").then_some(()));

    let dead = replica("c81-dead", "dead", &["--kube-proxy", "http://127.0.0.1:9"]);
    let line = dead.wait_for_message("cannot publish; trying on", 1, SOON);
    assert!(line.text("reason").contains("through the proxy http://127.0.0.1:9"), "{line:?}");
    stays_true("it leads", Duration::from_secs(2), || dead.leads());

    let tunnel = Tunnel::start("127.0.0.1");
    let _through = replica("c81-through", "through", &["--kube-proxy", &tunnel.url]);
    eventually("it goes through", SOON, || (kubernetes.role("through") == "leader").then_some(()));
    assert!(kubernetes.asked_from(0).iter().any(|asked| asked.path == pod_path("through")));
    assert!(tunnel.served() > 0);
}

#[test]
fn a_pod_without_its_token_is_refused_and_says_so_fake() {
    let (kubernetes, nodes) = (FakeKubernetes::start(), Servers::start(1));
    kubernetes.add_pod("a");
    let options = kubernetes.replica("no-token", "a", &nodes.urls(), &[&TIMING[..], &["--kube-label"]].concat());
    kubernetes.unmount("a", "token");
    let a = options.start();
    assert_eq!(a.wait_exit(SOON), 64);
    let told: Vec<String> = a.process().stderr().iter().map(|line| line.text.clone()).collect();
    assert!(told.iter().any(|line| line.contains("serviceaccount/token")), "{told:?}");
}
