//! Every path of HTTP and of control, in every state, and the limits on all of them, with the real binary.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::Value as Json;

use crate::support::{
    HttpConnection, Mode, Output, Port, Process, Proxy, Replica, ReplicaOptions, Server, Servers, TempDir, binary,
    boot_ms, eventually, figure, run, stays_true,
};

const SOON: Duration = Duration::from_secs(10);
const TTL: Duration = Duration::from_secs(1);

fn options<S: AsRef<str>>(identity: &str, urls: &[S]) -> ReplicaOptions {
    ReplicaOptions::new("job", identity, urls).args(["--ttl", "1s", "--node-timeout", "200ms"])
}

/// What each path answers in one state.
struct Expected<'a> {
    state: &'a str,
    ready: (u16, &'a str),
    healthy: u16,
    started: u16,
    leading: bool,
    holder: Option<&'a str>,
}

/// Every path answers as the state wants it, by GET and by HEAD.
#[track_caller]
fn assert_answers(replica: &Replica, expected: &Expected<'_>) {
    let body = |path: &str, status: u16| {
        let response = replica.get(path).unwrap();
        assert_eq!(response.status, status, "{path} in {}: {}", expected.state, response.body);
        assert_eq!(response.header("cache-control"), Some("no-store"), "{path}");
        response.body
    };
    let ready = body("/readyz", expected.ready.0);
    assert!(ready.starts_with(&format!("{}: ", expected.state)) && ready.contains(expected.ready.1), "{ready}");
    assert_eq!(ready.lines().count(), 1);
    body("/healthz", expected.healthy);
    body("/startupz", expected.started);
    body("/livez", 200);
    let leader: Json = serde_json::from_str(&body("/leader", 200)).unwrap();
    assert_eq!(leader["state"], expected.state);
    assert_eq!(leader["leading"], expected.leading);
    assert_eq!(leader["holder"].as_str(), expected.holder, "{leader}");
    assert!(ready.starts_with(leader["state"].as_str().unwrap()) && leader["reason"].is_string());
    for (field, only_while_leading) in [("since", true), ("validUntilBootMs", true), ("token", false)] {
        assert!(leader.get(field).is_some(), "{field} is always there: {leader}");
        assert!(!only_while_leading || leader[field].is_null() != expected.leading, "{field}: {leader}");
    }
    assert_eq!(leader["validForMs"].as_u64() > Some(0), expected.leading, "{leader}");
    let name: Json = serde_json::from_str(&body("/", 200)).unwrap();
    assert_eq!(name, serde_json::json!({"name": expected.holder.unwrap_or_default()}));
    let page = replica.connect().unwrap().request("GET", "/", "Accept: text/html,*/*;q=0.8\r\n").unwrap();
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(
        page.body.contains(expected.holder.unwrap_or("nobody")) && page.body.contains("<h1>Lock job</h1>"),
        "{page:?}"
    );
    assert!(page.header("content-security-policy").is_some_and(|policy| policy.starts_with("default-src 'none'")));
    body("/routez", 200);
    let metrics = body("/metrics", 200);
    for state in ["starting", "standby", "campaigning", "leader", "stepping-down", "draining"] {
        let sample = format!("redleader_state{{lock=\"job\",state=\"{state}\"}} {}", u8::from(state == expected.state));
        assert!(metrics.contains(&sample), "{sample}");
    }
    assert!(metrics.contains(&format!("redleader_is_leader{{lock=\"job\"}} {}", u8::from(expected.leading))));
    assert_eq!(first_event(replica)["state"], expected.state);
    for path in ["/readyz", "/healthz", "/startupz", "/livez", "/leader", "/", "/routez", "/metrics"] {
        let mut connection = replica.connect().unwrap();
        let head = connection.request("HEAD", path, "").unwrap();
        let got = connection.get(path).unwrap();
        assert_eq!((head.status, head.header("content-type")), (got.status, got.header("content-type")), "{path}");
        assert!(head.header("content-length").is_some_and(|length| length != "0"), "{path}: {head:?}");
    }
    for (method, path, status) in [
        ("GET", "/nowhere", 404),
        ("HEAD", "/nowhere", 404),
        ("GET", "/leader/", 404),
        ("POST", "/resign", 404),
        ("POST", "/resign?for=30s", 404),
        ("POST", "/drain", 404),
        ("GET", "/drain", 404),
        ("POST", "/readyz", 405),
        ("DELETE", "/leader", 405),
    ] {
        let response = replica.connect().unwrap().request(method, path, "").unwrap();
        assert_eq!(response.status, status, "{method} {path} in {}", expected.state);
    }
}

/// The first event of `/leader/stream`.
fn first_event(replica: &Replica) -> Json {
    Stream::open(replica).next()
}

/// `/leader/stream`, read event by event.
struct Stream(HttpConnection);

impl Stream {
    fn open(replica: &Replica) -> Self {
        let mut connection = replica.connect().unwrap();
        connection.send(b"GET /leader/stream HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let mut head = Vec::new();
        while let Some(line) = connection.line().ok().filter(|line| !line.is_empty()) {
            head.push(line);
        }
        assert!(head[0].contains("200") && head.iter().any(|line| line.contains("text/event-stream")), "{head:?}");
        Self(connection)
    }

    fn next(&mut self) -> Json {
        loop {
            // Chunk sizes, comments and empty lines stand between the events.
            let line = self.0.line().unwrap();
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).unwrap();
            }
        }
    }
}

#[test]
fn every_path_answers_as_said_in_each_state() {
    let mut servers = Servers::start(3);
    servers.iter_mut().for_each(Server::kill);
    let a = options("a", &servers.urls()).args(["--handover-delay", "2s"]).start();
    eventually("it has tried", SOON, || (a.logged("node has no vote").len() == 3).then_some(()));
    let starting = Expected {
        state: "starting",
        ready: (503, "0 of 3 nodes can vote, 2 required"),
        healthy: 503,
        started: 503,
        leading: false,
        holder: None,
    };
    assert_answers(&a, &starting);
    servers.iter_mut().for_each(|server| server.start_again(crate::support::Data::Lost));
    eventually("the quarantine is told", SOON, || a.readyz().1.contains("in quarantine for").then_some(()));
    a.wait_elected(1, SOON);
    let all_well =
        |state, ready, leading, holder| Expected { state, ready, healthy: 200, started: 200, leading, holder };
    assert_answers(&a, &all_well("leader", (200, "leading with token"), true, Some("a")));
    let b = options("b", &servers.urls()).start();
    eventually("b knows", SOON, || (b.leader_json()["holder"] == "a").then_some(()));
    assert_answers(&b, &all_well("standby", (503, "held by a"), false, Some("a")));
    assert_eq!(b.leader_json()["token"], a.leader_json()["token"], "a standby tells the holder's token");

    let drained = b.command(&["drain"]);
    assert_eq!(drained.code, 0, "{drained:?}");
    eventually("b drains", SOON, || (b.leader_json()["state"] == "draining").then_some(()));
    assert_answers(&b, &all_well("draining", (503, "held by a"), false, Some("a")));
    assert_eq!(a.command(&["drain"]).code, 0);
    eventually("a drains", SOON, || (a.leader_json()["state"] == "draining").then_some(()));
    assert_answers(&a, &all_well("draining", (200, "leading with token"), true, Some("a")));

    // The hand-over delay is long enough to look at everything in it.
    let asked = boot_ms();
    assert_eq!(a.command(&["resign", "--for", "1m"]).code, 0);
    eventually("a steps down", SOON, || (a.leader_json()["state"] == "stepping-down").then_some(()));
    assert_answers(&a, &all_well("stepping-down", (503, "resign"), false, None));
    let down = a.wait_for_message("stepped down", 1, SOON);
    assert!(down.number("boot_ms").unwrap() >= asked + 2000, "not before the hand-over delay: {:?}", down.json);
    eventually("a has no holder to tell", SOON, || (a.leader_json()["state"] == "draining").then_some(()));
    assert_eq!(a.readyz().0, 503);
}

#[test]
fn a_campaign_is_told_while_it_lasts() {
    let servers = Servers::start(3);
    let paths: Vec<Proxy> = servers.addresses().iter().map(|address| Proxy::start(address)).collect();
    let urls: Vec<String> = paths.iter().map(Proxy::url).collect();
    let replica = options("a", &urls).start();
    eventually("it listens", SOON, || replica.connect().ok());
    let mut stream = Stream::open(&replica);
    paths.iter().for_each(|path| path.delay(Duration::from_millis(30)));
    let mut states = Vec::new();
    let mut campaign = None;
    while states.last() != Some(&"leader".to_owned()) {
        let event = stream.next();
        if event["state"] == "campaigning" {
            campaign = Some(event.clone());
        }
        states.push(event["state"].as_str().unwrap().to_owned());
        assert_eq!(event["leading"], event["state"] == "leader");
    }
    let campaign = campaign.unwrap_or_else(|| panic!("no campaign in {states:?}"));
    assert!(campaign["reason"].as_str().unwrap().starts_with("campaigning: "), "{campaign}");
    // The deadline ends what the stream says too, without a word from any node.
    paths.iter().for_each(|path| path.set(Mode::Blackhole));
    let until = replica.leader_json()["validUntilBootMs"].as_u64().unwrap();
    let mut event = stream.next();
    while event["leading"] == true {
        event = stream.next();
    }
    assert!(boot_ms() <= until + 500, "told {} ms after the deadline that was last known", boot_ms() - until);
}

#[test]
fn requests_are_limited() {
    let servers = Servers::start(1);
    let replica = options("a", &servers.urls()).start();
    replica.wait_elected(1, SOON);
    let ask = |method: &str, path: &str, headers: &str| replica.connect().unwrap().request(method, path, headers);
    assert_eq!(ask("GET", "/leader", "content-length: 5\r\n").unwrap().status, 413);
    assert_eq!(ask("POST", "/leader", "transfer-encoding: chunked\r\n").unwrap().status, 413);
    let long = format!("x: {}\r\n", "y".repeat(9 * 1024));
    assert_eq!(ask("GET", "/leader", &long).unwrap().status, 431);
    assert_eq!(ask("GET", &format!("/{}", "y".repeat(9 * 1024)), "").unwrap().status / 100, 4);
    let many: String = (0..70).map(|n| format!("x{n}: y\r\n")).collect();
    assert_eq!(ask("GET", "/leader", &many).unwrap().status, 431);
    let some: String = (0..40).map(|n| format!("x{n}: {}\r\n", "y".repeat(100))).collect();
    assert_eq!(ask("GET", "/leader", &some).unwrap().status, 200);

    let mut half = replica.connect().unwrap();
    half.send(b"GET /leader HTTP/1.1\r\nhost: ").unwrap();
    let (began, mut streams) = (boot_ms(), Vec::new());
    for _ in 0..64 {
        streams.push(Stream::open(&replica));
    }
    assert_eq!(ask("GET", "/leader/stream", "").unwrap().status, 503, "the 65th stream");
    drop(streams.pop());
    eventually("a closed stream makes room", SOON, || {
        let mut connection = replica.connect().unwrap();
        connection.send(b"GET /leader/stream HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        connection.line().unwrap().contains("200").then_some(())
    });
    // Five seconds are for the head, looked at once a second.
    let ended = half.line();
    let took = boot_ms() - began;
    assert!(ended.is_err() || ended.is_ok_and(|line| line.contains("408")), "half a request gets no answer");
    assert!((4500..9000).contains(&took), "half a request was open for {took} ms");
    assert!(replica.leads());
}

#[test]
fn a_thousand_idle_connections_do_not_disturb_the_election() {
    let servers = Servers::start(3);
    let replica = options("a", &servers.urls()).args(["--log-level", "debug"]).start();
    let elected = replica.wait_elected(1, SOON);
    let idle: Vec<TcpStream> = (0..1100).map(|_| TcpStream::connect(replica.address()).unwrap()).collect();
    let ok = || replica.metric("extend_attempts_total", &[("outcome", "ok")]);
    let (first, began) = (ok(), boot_ms());
    stays_true("it leads, and new connections are answered", TTL * 4, || replica.leads());
    let (count, took) = (ok() - first, boot_ms() - began);
    let text = format!("{count} extends in {took} ms beside {} connections, one is due every 250 ms", idle.len());
    figure("H1, a thousand idle connections", &text);
    assert!(count >= (took / 250) as f64 * 0.8, "{count} extends in {took} ms");
    let open = std::fs::read_dir(format!("/proc/{}/fd", replica.pid())).unwrap().count();
    assert!(open < 1024 + 100, "{open} open files: the longest idle connections are closed for new ones");
    let mut closed = 0;
    for connection in &idle {
        connection.set_nonblocking(true).unwrap();
        closed += usize::from(matches!((&mut &*connection).read(&mut [0; 1]), Ok(0)));
    }
    assert!(closed >= 1100 - 1024, "{closed} connections were closed");
    assert!(replica.metric("extend_attempts_total", &[("outcome", "no-quorum")]) == 0.0);
    assert_eq!(replica.leader_json()["token"].as_u64(), elected.number("token"), "the same leadership");
    replica.term();
    let (asked, code) = (boot_ms(), replica.wait_exit(SOON));
    assert_eq!(code, 0);
    assert!(boot_ms() - asked < 3000, "the end waits for no idle connection");
}

/// Five ways to keep a connection open.
fn stubborn(replica: &Replica) -> Vec<TcpStream> {
    let requests: [&[u8]; 5] = [
        b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n",
        b"",
        b"GET /rea",
        // A slow reader: it asks for far more than the sockets' buffers hold, and reads nothing.
        &b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(400),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ];
    let open = |request: &&[u8]| {
        let mut stream = TcpStream::connect(replica.address()).unwrap();
        stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        // The slow reader's requests may not all be taken.
        let _ = stream.write_all(request);
        stream
    };
    requests.iter().map(open).collect()
}

#[test]
fn c117_open_connections_delay_neither_release_nor_exit() {
    let servers = Servers::start(3);
    for with_connections in [false, true] {
        servers.iter().for_each(|server| drop(server.cli(&["DEL", "job"])));
        let a = options("a", &servers.urls()).start();
        a.wait_elected(1, SOON);
        let b = options("b", &servers.urls()).start();
        eventually("b waits", SOON, || (b.leader_json()["holder"] == "a").then_some(()));
        let open = if with_connections { stubborn(&a) } else { Vec::new() };
        a.term();
        let asked = boot_ms();
        assert_eq!(a.wait_exit(SOON), 0);
        let ended = boot_ms() - asked;
        let down = a.logged("stepped down")[0].number("boot_ms").unwrap().saturating_sub(asked);
        let next = b.wait_elected(1, SOON).number("boot_ms").unwrap().saturating_sub(asked);
        let text = format!("stepped down {down} ms, next leader {next} ms, ended {ended} ms after SIGTERM");
        figure(&format!("C117, {} open connections", open.len()), &text);
        // Answers under way have one second; a release that waited for them would take as long.
        assert!(next < 800, "the next leader waited {next} ms");
        assert!(ended < 3000, "the process ended after {ended} ms");
        b.kill9();
        drop(open);
        servers.iter().for_each(|server| drop(server.cli(&["FLUSHALL"])));
    }
}

#[test]
fn c117_an_old_connection_is_told_503_while_stopping() {
    let servers = Servers::start(3);
    let replica = ReplicaOptions::new("job", "a", &servers.urls())
        .args(["--ttl", "3s", "--node-timeout", "500ms", "--quarantine", "3300ms"])
        .start();
    replica.wait_elected(1, SOON);
    let mut old = replica.connect().unwrap();
    assert_eq!(old.get("/readyz").unwrap().status, 200);
    // The release waits for an answer of the node that hangs, and meanwhile the process can be asked.
    servers[2].stop();
    replica.term();
    let mut seen = Vec::new();
    while let Ok(response) = old.get("/readyz") {
        if seen.last() != Some(&response.status) {
            seen.push(response.status);
        }
    }
    assert!(seen == [200, 503] || seen == [503], "200 until SIGTERM is taken, then 503 to the end: {seen:?}");
    assert_eq!(replica.wait_exit(SOON), 0);
    servers[2].cont();
}

fn redleader(words: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(words);
    run(words[0], command, SOON)
}

/// `status` of the nodes and of the replica beside it.
fn status(servers: &Servers, control: &str, more: &[&str]) -> Output {
    let urls = servers.urls().join(",");
    let words = ["status", "--lock", "job", "--redis", &urls, "--ttl", "1s", "--control", control];
    redleader(&[&words[..], more].concat())
}

fn wait(servers: &Servers, more: &[&str]) -> Output {
    let urls = servers.urls().join(",");
    redleader(&[&["wait", "--lock", "job", "--redis", &urls, "--ttl", "1s"][..], more].concat())
}

#[test]
fn status_and_wait_end_with_the_code_of_what_they_saw() {
    let mut servers = Servers::start(3);
    let nobody = wait(&servers, &["--timeout", "300ms"]);
    assert_eq!(nobody.code, 1, "{nobody:?}");
    assert!(nobody.stdout.starts_with("no leader within 300ms: nobody"), "{nobody:?}");
    assert_eq!(wait(&servers, &["--for", "quorum"]).code, 0);
    let before = status(&servers, "off", &[]);
    assert_eq!(before.code, 1, "{before:?}");

    let waiting = Process::start("wait", {
        let mut command = Command::new(binary());
        command.args([
            "wait",
            "--lock",
            "job",
            "--ttl",
            "1s",
            "--output",
            "json",
            "--redis",
            &servers.urls().join(","),
        ]);
        command
    });
    let replica = options("a", &servers.urls()).start();
    replica.wait_elected(1, SOON);
    assert_eq!(waiting.wait_exit(SOON), 0);
    let line = eventually("its answer is read", SOON, || waiting.stdout().into_iter().next());
    let said: Json = serde_json::from_str(&line.text).unwrap();
    assert_eq!((&said["for"], &said["met"], &said["holder"]), (&"leader".into(), &true.into(), &"a".into()));

    let well = status(&servers, &replica.control(), &["--output", "json"]);
    assert_eq!(well.code, 0, "{well:?}");
    let said: Json = serde_json::from_str(&well.stdout).unwrap();
    let token = replica.leader_json()["token"].clone();
    assert_eq!((&said["schema"], &said["lock"], &said["holder"]), (&1.into(), &"job".into(), &"a".into()));
    assert_eq!((&said["holderKind"], &said["token"]), (&"redleader".into(), &token));
    assert_eq!(said["quorum"], serde_json::json!({"required": 2, "reachable": 3}));
    for node in said["nodes"].as_array().unwrap() {
        assert_eq!((&node["vote"], &node["up"], &node["error"]), (&"held".into(), &true.into(), &Json::Null));
    }
    assert_eq!((&said["replica"]["identity"], &said["replica"]["leading"]), (&"a".into(), &true.into()));
    // What the replica says of itself is /leader.
    let fields = |json: &Json| json.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(&said["replica"]), fields(&replica.leader_json()));
    let text = status(&servers, &replica.control(), &[]);
    assert_eq!(text.code, 0);
    assert!(text.stdout.contains("leader  a, token") && text.stdout.contains("here    a: leader"), "{text:?}");

    servers[0].kill();
    let degraded = status(&servers, &replica.control(), &[]);
    assert_eq!(degraded.code, 1, "a leader, and not all well: {degraded:?}");
    assert!(
        degraded.stdout.contains("leader  a, token") && degraded.stdout.contains("connect: refused"),
        "{degraded:?}"
    );
    servers[1].kill();
    assert_eq!(wait(&servers, &["--for", "quorum", "--timeout", "200ms"]).code, 1);
    for refused in [
        wait(&servers, &["--for", "godot"]),
        wait(&servers, &["--timeout", "5"]),
        status(&servers, "off", &["--output", "xml"]),
    ] {
        assert_eq!(refused.code, 64, "{refused:?}");
    }
}

#[test]
fn resign_and_drain_work_on_each_kind_of_control_socket() {
    let directory = TempDir::new();
    let socket = format!("unix:{}", directory.join("control").display());
    let loopback = Port::claim();
    for control in ["@redleader-endpoints-test".to_owned(), socket, loopback.address()] {
        let servers = Servers::start(3);
        let replica = options("a", &servers.urls()).args(["--control", &control]).start();
        replica.wait_elected(1, SOON);
        let resigned = redleader(&["resign", "--for", "1500ms", "--control", &control]);
        assert_eq!(resigned.code, 0, "{resigned:?}");
        assert_eq!(resigned.stdout, "stepping down; no new attempt is made for 1s 500ms\n");
        let down = replica.wait_for_message("stepped down", 1, SOON).number("boot_ms").unwrap();
        let again = replica.wait_elected(2, SOON).number("boot_ms").unwrap();
        assert!(again - down >= 1400, "stood back for {} ms though there is nobody else", again - down);
        let drained = redleader(&["drain", "--control", &control]);
        assert_eq!(drained.code, 0, "{drained:?}");
        assert!(drained.stdout.starts_with("draining: leadership is kept"), "{drained:?}");
        stays_true("it keeps what it has", TTL * 2, || replica.leads());
        assert_eq!(redleader(&["resign", "--control", &control]).code, 0);
        replica.wait_for_message("stepped down", 2, SOON);
        stays_true("and takes part no more", TTL * 2, || !replica.leads());
        replica.term();
        assert_eq!(replica.wait_exit(SOON), 0);
        let nobody = redleader(&["resign", "--control", &control]);
        assert_eq!(nobody.code, 64, "{nobody:?}");
        assert!(nobody.stderr.starts_with(&format!("no redleader answers at {control}")), "{nobody:?}");
    }
    assert!(!directory.join("control").exists(), "the socket's file goes with its process");
    let off = redleader(&["resign", "--control", "off"]);
    assert_eq!(off.code, 64, "{off:?}");
}

#[test]
fn control_refuses_what_it_does_not_know() {
    let servers = Servers::start(1);
    let control = Port::claim();
    let replica = options("a", &servers.urls()).args(["--control", &control.address()]).start();
    replica.wait_elected(1, SOON);
    let ask = |method: &str, path: &str, headers: &str| {
        HttpConnection::connect(&control.address(), SOON).unwrap().request(method, path, headers).unwrap().status
    };
    for (method, path, headers, status) in [
        ("GET", "/leader", "", 200),
        ("HEAD", "/leader", "", 200),
        ("GET", "/resign", "", 405),
        ("POST", "/resign?for=soon", "", 400),
        ("POST", "/resign?till=30s", "", 400),
        ("POST", "/resign?for=48h", "", 400),
        ("POST", "/drain?now=1", "", 400),
        ("POST", "/nowhere", "", 404),
        ("GET", "/readyz", "", 404),
        ("GET", "/metrics", "", 404),
        ("POST", "/drain", "content-length: 3\r\n", 413),
        ("POST", "/drain", "origin: http://example.com\r\n", 403),
    ] {
        assert_eq!(ask(method, path, headers), status, "{method} {path} {headers}");
    }
    assert!(replica.leads());
    assert_eq!(replica.leader_json()["state"], "leader", "none of them did anything");
}

#[test]
fn control_is_for_its_own_user_and_root_as_root() {
    let servers = Servers::start(1);
    let directory = TempDir::new();
    // Where another user can run it.
    let copy = directory.join("redleader");
    std::fs::copy(binary(), &copy).unwrap();
    for path in [directory.path(), &copy] {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let as_user = |uid: &str, words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", uid, "--regid", uid, "--clear-groups", "--"]).arg(&copy).args(words);
        run("another user's", command, SOON)
    };
    let socket = format!("unix:{}", directory.join("control").display());
    for (control, says) in [("@redleader-other-user", "status 403"), (&socket, "Permission denied")] {
        let replica = options("a", &servers.urls()).args(["--control", control]).start();
        replica.wait_elected(1, SOON);
        for words in [&["resign", "--control", control][..], &["drain", "--control", control]] {
            let refused = as_user("65534", words);
            assert_eq!(refused.code, 64, "{refused:?}");
            assert!(refused.stderr.contains(says), "{refused:?}");
        }
        assert_eq!(replica.leader_json()["state"], "leader", "nothing was done");
        assert_eq!(redleader(&["resign", "--control", control]).code, 0, "root may");
        replica.wait_for_message("stepped down", 1, SOON);
        servers[0].cli(&["FLUSHALL"]);
    }
    // A replica of another user: that user may, a third may not, root may.
    let port = Port::claim();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]).arg(&copy);
    command.args(["run", "--lock", "other", "--redis", &servers[0].url(), "--listen", &port.address()]);
    let _process = Process::start("another user's", command);
    eventually("it answers", SOON, || HttpConnection::connect(&port.address(), SOON).ok());
    let control = format!("@redleader-{}", port.number());
    assert_eq!(as_user("65534", &["drain", "--control", &control]).code, 0);
    assert_eq!(as_user("65533", &["drain", "--control", &control]).code, 64);
    assert_eq!(redleader(&["drain", "--control", &control]).code, 0);
}
