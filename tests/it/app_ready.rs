//! App health as a condition of leadership, with every kind of check.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::process::Signal;

use crate::support::{
    Flavour, Judge, Replica, ReplicaOptions, Server, ServerOptions, Servers, TempDir, boot_ms, eventually, figure,
    stays_true,
};

const SOON: Duration = Duration::from_secs(30);
const TTL: Duration = Duration::from_secs(2);
const GRACE: Duration = Duration::from_secs(4);
const EVERY: Duration = Duration::from_millis(100);
const FAILURES: u32 = 2;
/// The node timeout is long, so that a busy machine costs no leadership that is not meant to end.
const SETTINGS: [&str; 10] = [
    "--ttl",
    "2s",
    "--node-timeout",
    "300ms",
    "--app-ready-every",
    "100ms",
    "--app-ready-failures",
    "2",
    "--app-grace",
    "4s",
];

/// How late a machine that is busy with other tests may be.
const FACTOR: u32 = 5;

fn replica(nodes: &Servers, lock: &str, who: &str, check: &str) -> Replica {
    ReplicaOptions::new(lock, who, &nodes.urls()).args(SETTINGS).args(["--app-ready", check]).start()
}

/// An app whose health is a file.
struct FileApp(PathBuf);

impl FileApp {
    fn new(directory: &TempDir, name: &str, is_healthy: bool) -> Self {
        let app = Self(directory.join(name));
        app.set(is_healthy);
        app
    }

    fn set(&self, is_healthy: bool) {
        if is_healthy {
            std::fs::write(&self.0, "").unwrap();
        } else {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn check(&self) -> String {
        format!("file:{}", self.0.display())
    }
}

fn healthy(replica: &Replica) -> f64 {
    replica.metric("app_healthy", &[])
}

fn boot(line: &crate::support::LogLine) -> u64 {
    line.number("boot_ms").expect("a leadership's end and start have their time")
}

#[test]
fn a_sick_app_never_leads_while_a_healthy_peer_is_there() {
    let (nodes, directory) = (Servers::start(3), TempDir::new());
    let apps = [("a", false), ("b", true), ("c", true)].map(|(who, is)| FileApp::new(&directory, who, is));
    let [a, b, c] = ["a", "b", "c"];
    let replicas: Vec<Replica> =
        [a, b, c].iter().zip(&apps).map(|(who, app)| replica(&nodes, "sick", who, &app.check())).collect();
    let [a, b, c] = replicas.as_slice() else { panic!() };
    let (first, second) = eventually("a healthy one leads", SOON, || match (b.leads(), c.leads()) {
        (true, _) => Some((b, c)),
        (_, true) => Some((c, b)),
        _ => None,
    });
    eventually("the sick one says why it does not", SOON, || {
        let (status, reason) = a.readyz();
        assert_eq!(status, 503);
        let told =
            a.leader_json()["reason"].as_str().unwrap_or_default().starts_with("standby: the app is not healthy");
        (told && reason.starts_with("standby: the app is not healthy; held by ")).then_some(())
    });
    assert_eq!(healthy(a).to_bits(), 0_f64.to_bits());
    assert_eq!(healthy(first).to_bits(), 1_f64.to_bits());
    let killed = first.kill9();
    let won = boot(&second.wait_elected(1, SOON));
    figure(
        "app health",
        &format!("kill -9, one healthy and one sick left: the healthy one leads after {} ms", won - killed),
    );
    assert_eq!(a.logged("elected").len(), 0);
    apps[0].set(true);
    eventually("the app has recovered", SOON, || (healthy(a) > 0.5).then_some(()));
    assert!(!a.readyz().1.contains("not healthy"));
    second.term();
    assert_eq!(second.wait_exit(SOON), 0);
    a.wait_elected(1, SOON);
    Judge::check_replicas([a, b, c]).assert_clean("app health, sick and healthy");
}

#[test]
fn when_all_are_sick_one_leads_after_the_grace_and_makes_way_for_one_that_recovers() {
    let (nodes, directory) = (Servers::start(3), TempDir::new());
    let apps = [("a", true), ("b", false)].map(|(who, is)| FileApp::new(&directory, who, is));
    let a = replica(&nodes, "all-sick", "a", &apps[0].check());
    let b = replica(&nodes, "all-sick", "b", &apps[1].check());
    a.wait_elected(1, SOON);
    let sick_at = boot_ms();
    apps[0].set(false);
    let down = a.wait_for_message("stepped down", 1, SOON);
    assert_eq!(down.text("reason"), "app-unhealthy");
    assert_eq!(a.logged("app not healthy").len(), 1);
    let noticed = boot(&down).saturating_sub(sick_at);
    assert!(noticed <= ((EVERY * (FAILURES + 1)).as_millis() * u128::from(FACTOR)) as u64, "{noticed} ms");
    // Who leads then is one that has waited for the grace; either may.
    let (degraded, other, turn, app) = eventually("a sick one leads", SOON, || {
        let again = a.logged("elected").len() == 2;
        if again {
            Some((&a, &b, 2, &apps[1]))
        } else {
            (b.logged("elected").len() == 1).then_some((&b, &a, 1, &apps[0]))
        }
    });
    let won = boot(&degraded.wait_elected(turn, SOON));
    let waited = won - boot(&down);
    figure(
        "all apps sick",
        &format!("noticed after {noticed} ms; nobody led for {waited} ms, with a grace of 4,000 ms"),
    );
    assert!(waited >= GRACE.as_millis() as u64, "{waited} ms");
    assert!(waited <= (GRACE + TTL).as_millis() as u64 * u64::from(FACTOR), "{waited} ms");
    eventually("it says that it is degraded", SOON, || {
        let (status, reason) = degraded.readyz();
        (status == 200 && reason.contains("though the app is not healthy")).then_some(())
    });
    app.set(true);
    let before = other.logged("elected").len();
    let next = boot(&other.wait_elected(before + 1, SOON));
    let degraded_for = next - won;
    figure("all apps sick", &format!("one that recovered led {degraded_for} ms after the degraded one had begun"));
    assert!(degraded_for >= GRACE.as_millis() as u64 && degraded_for <= (GRACE + TTL).as_millis() as u64 * 5);
    stays_true("the sick one stays away", TTL * 2, || !degraded.leads());
    Judge::check_replicas([&a, &b]).assert_clean("app health, all sick");
}

#[test]
fn an_app_that_flaps_leads_less_and_less_often_and_disturbs_no_healthy_leader() {
    let (nodes, directory) = (Servers::start(3), TempDir::new());
    let app = FileApp::new(&directory, "a", true);
    let a = replica(&nodes, "flapping", "a", &app.check());
    a.wait_elected(1, SOON);
    let began = boot_ms();
    // Well as long as it does not lead, sick as soon as it does: the worst that an app can do.
    let flap = |until: &dyn Fn() -> bool| {
        eventually("the flapping ends", SOON, || {
            app.set(!a.leads());
            until().then_some(())
        });
    };
    flap(&|| a.logged("elected").len() >= 4);
    let downs: Vec<u64> = a.logged("stepped down").iter().map(boot).collect();
    let ups: Vec<u64> = a.logged("elected").iter().skip(1).map(boot).collect();
    let aways: Vec<u64> = ups.iter().zip(&downs).map(|(up, down)| up - down).collect();
    figure("flapping app", &format!("3 relapses in {} ms, away for {aways:?} ms", boot_ms() - began));
    for (away, least) in aways.iter().zip([1500, 3000, 4000]) {
        assert!(*away >= least - 20, "{aways:?}");
    }
    let well = FileApp::new(&directory, "b", true);
    let b = replica(&nodes, "flapping", "b", &well.check());
    flap(&|| b.leads());
    let elected = a.logged("elected").len();
    let until = boot_ms() + 3000;
    flap(&|| boot_ms() > until);
    assert!(b.leads() && a.logged("elected").len() == elected && b.logged("stepped down").is_empty());
    Judge::check_replicas([&a, &b]).assert_clean("app health, flapping");
}

/// An app that answers over HTTP, as it is told to.
struct HttpApp {
    address: String,
    mode: Arc<AtomicU8>,
}

const OK: u8 = 0;
const NOT_READY: u8 = 1;
const MOVED: u8 = 2;
const HANGS: u8 = 3;
const ENDLESS: u8 = 4;
const NO_HTTP: u8 = 5;

impl HttpApp {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mode = Arc::new(AtomicU8::new(OK));
        let set = Arc::clone(&mode);
        std::thread::spawn(move || {
            let mut hung = Vec::new();
            for mut stream in listener.incoming().flatten() {
                let mode = set.load(Ordering::SeqCst);
                let mut head = [0; 1024];
                let read = stream.read(&mut head).unwrap_or(0);
                assert!(head[..read].starts_with(b"GET /ready?x=1 HTTP/1.1\r\n"), "{:?}", &head[..read]);
                let answer: &[u8] = match mode {
                    OK => b"HTTP/1.1 204 No Content\r\n\r\n",
                    NOT_READY => b"HTTP/1.1 503 Not Yet\r\nContent-Length: 0\r\n\r\n",
                    MOVED => b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
                    NO_HTTP => b"SSH-2.0-x\r\n",
                    HANGS => {
                        hung.push(stream);
                        continue;
                    }
                    _ => {
                        // More than anybody should read of it; the other side closes long before.
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
                        while stream.write_all(b"x-more: and more\r\n").is_ok() {}
                        continue;
                    }
                };
                let _ = stream.write_all(answer);
            }
        });
        Self { address, mode }
    }

    fn set(&self, mode: u8) {
        self.mode.store(mode, Ordering::SeqCst);
    }

    fn check(&self) -> String {
        format!("http://{}/ready?x=1", self.address)
    }
}

#[test]
fn an_app_that_hangs_or_says_no_over_http_costs_its_leadership_and_no_extend() {
    let nodes = Servers::start(3);
    let app = HttpApp::start();
    let a = replica(&nodes, "http-app", "a", &app.check());
    let mut terms = 0;
    for (mode, reason) in [
        (HANGS, "no answer within --app-ready-every"),
        (NOT_READY, "status 503"),
        (MOVED, "status 302"),
        (ENDLESS, "no answer in HTTP"),
        (NO_HTTP, "no answer in HTTP"),
    ] {
        app.set(OK);
        terms += 1;
        a.wait_elected(terms, SOON);
        let extended = a.metric("extend_attempts_total", &[("outcome", "ok")]);
        eventually("it extends", SOON, || {
            (a.metric("extend_attempts_total", &[("outcome", "ok")]) > extended).then_some(())
        });
        app.set(mode);
        assert_eq!(a.wait_for_message("stepped down", terms, SOON).text("reason"), "app-unhealthy");
        let told = a.wait_for_message("app not healthy", terms, SOON);
        assert!(told.text("reason").contains(reason), "{:?}", told.json);
    }
    assert_eq!(a.metric("extend_attempts_total", &[("outcome", "no-quorum")]).to_bits(), 0_f64.to_bits());
    assert_eq!(a.metric("stepdowns_total", &[("reason", "app-unhealthy")]) as usize, terms);
    let lag = a.metric("event_loop_lag_seconds", &[]);
    figure(
        "hung app",
        &format!("{terms} ways for an app to fail, largest delay of the election's loop {:.1} ms", lag * 1e3),
    );
    // Nobody listens any more, under a name that has to be looked up.
    let gone = ReplicaOptions::new("gone-app", "b", &nodes.urls()).args(SETTINGS);
    let gone = gone.args(["--app-ready", "http://localhost:1/"]).start();
    let told = gone.wait_for_message("app not healthy", 1, SOON);
    assert!(told.text("reason").contains("cannot connect"), "{:?}", told.json);
}

/// How many processes run with `word` among their arguments.
fn running(word: &str) -> usize {
    let is_it = |path: PathBuf| {
        std::fs::read(path.join("cmdline")).is_ok_and(|line| line.split(|b| *b == 0).any(|arg| arg == word.as_bytes()))
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| is_it(entry.path())).count()
}

#[test]
fn a_command_that_checks_gets_no_secret_and_is_killed_with_all_that_it_started() {
    let node = Server::start(Flavour::Redis70, ServerOptions::new().password("S3cr3tT0ken"));
    let (url, directory) = (format!("redis://{}", node.address()), TempDir::new());
    static MARK: OnceLock<String> = OnceLock::new();
    let mark = MARK.get_or_init(|| format!("98761.{}", std::process::id()));
    let script = format!(
        "env > {0}/env.new; mv {0}/env.new {0}/env; [ -e {0}/hang ] || exit 0; sleep {mark} & setsid true; sleep {mark}",
        directory.path().display()
    );
    let script = directory.write("check", &script);
    let check = format!("exec:/bin/sh {} 'two words'", script.display());
    let a = ReplicaOptions::new("exec-app", "a", &[url])
        .args(SETTINGS[..4].iter().copied())
        .args(["--app-ready", &check, "--app-ready-every", "1s", "--app-ready-failures", "2", "--app-grace", "30s"])
        .env("REDLEADER_REDIS_PASSWORD", "S3cr3tT0ken")
        .env("REDLEADER_LOG_LEVEL", "debug")
        .env("NOT_OURS", "here")
        .start();
    a.wait_elected(1, SOON);
    let seen = std::fs::read_to_string(directory.join("env")).unwrap();
    assert!(seen.contains("NOT_OURS=here"), "{seen}");
    assert!(!seen.contains("REDLEADER_") && !seen.contains("S3cr3t"), "{seen}");
    directory.write("hang", "");
    assert_eq!(a.wait_for_message("stepped down", 1, SOON).text("reason"), "app-unhealthy");
    // One check at a time, with its child; what was before it is gone.
    stays_true("no check is left behind", Duration::from_secs(3), || running(mark) <= 2);
    std::fs::remove_file(directory.join("hang")).unwrap();
    a.wait_elected(2, SOON);
    eventually("the last one is gone", SOON, || (running(mark) == 0).then_some(()));
    directory.write("hang", "");
    eventually("it hangs", SOON, || (running(mark) > 0).then_some(()));
    a.process().signal(Signal::TERM);
    assert_eq!(a.wait_exit(SOON), 0);
    eventually("nothing is left after the exit", SOON, || (running(mark) == 0).then_some(()));
}

#[test]
fn a_check_that_cannot_be_made_is_refused_or_told() {
    let nodes = Servers::start(1);
    for (check, told) in [
        ("https://app/ready", "--app-ready: can be asked over plain http only"),
        ("unix:/run/app", "--app-ready: can be asked over plain http only"),
        ("http://user:S3cr3t@app/", "--app-ready: must have no user and no password"),
        ("ready", "--app-ready: must be an http:// URL, file:PATH or exec:COMMAND"),
        ("exec:", "--app-ready: needs a command after exec:"),
    ] {
        let refused = ReplicaOptions::new("refused", "a", &nodes.urls()).args(["--app-ready", check]).start();
        assert_eq!(refused.wait_exit(SOON), 64, "{check}");
        let said: String = refused.process().stderr().iter().map(|line| line.text.clone()).collect();
        assert!(said.contains(told) && !said.contains("S3cr3t"), "{check}: {said}");
    }
    let program = Path::new("/nonexistent/check");
    let a = replica(&nodes, "refused", "a", &format!("exec:{}", program.display()));
    let told = a.wait_for_message("app not healthy", 1, SOON);
    assert!(told.text("reason").contains("cannot be run"), "{:?}", told.json);
}
