//! `redleader demo`, run for real: what it tells, what it leaves behind, and what it says when it cannot go on.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::{Process, Servers, TempDir, binary, eventually, figure, run};

const LIMIT: Duration = Duration::from_secs(120);
const SOON: Duration = Duration::from_secs(20);

#[test]
fn h4_the_demo_tells_what_happens_and_leaves_nothing() {
    let output = run("demo", demo(&[]), LIMIT);
    let text = words(&output.stdout);
    assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    assert!(output.took < Duration::from_secs(60), "{} s", output.took.as_secs());
    assert!(output.stdout.is_ascii() && !output.stdout.contains('\x1b'), "no terminal, no colours");
    assert_eq!(output.stderr, "");

    // A new lock's quarantine, with its reason, counted down.
    assert!(text.contains("may have forgotten a grant"), "{text}");
    let left = numbers_after(&text, "quarantine: ");
    assert!(left.len() >= 4 && left[0] > left[1], "two quarantines were counted down: {left:?}");

    // Elected, a graceful hand-over in ms, a crash in s, in this order, each by another replica than the one before.
    let leaders = leaders(&text);
    assert_eq!(leaders.len(), 3, "{text}");
    assert!(leaders.windows(2).all(|pair| pair[0] != pair[1]), "{leaders:?}");
    let hand_over = number_before(&text, " ms after").or_else(|| text.contains("less than 1 ms after").then_some(0.5));
    let crash = number_before(&text, " s after the kill").expect("the crash is timed");
    let lease = numbers_after(&text, "It could have led for ")[0];
    assert!(crash + 0.1 >= lease, "led {crash} s after the kill of one that could have led for {lease} s");

    // A node lost and back, with the same leader.
    let last = leaders.last().expect("there are three");
    assert!(text.contains(&format!("{last} leads on, and has extended its lease 3 times without that node")), "{text}");
    assert!(text.contains(&format!("All three nodes vote for {last} again")), "{text}");

    // All tokens, in order, and by whom.
    let tokens: Vec<(u64, String)> = output.stdout.lines().filter_map(token_line).collect();
    assert!(tokens.is_sorted_by(|earlier, later| earlier.0 < later.0), "{tokens:?}");
    assert_eq!(tokens.iter().map(|(_, name)| name.clone()).collect::<Vec<_>>(), leaders);

    assert_eq!(left_behind(&output.stdout), Vec::<String>::new());
    let hand_over = hand_over.expect("the hand-over is timed");
    let total = output.took.as_secs_f64();
    figure("demo", &format!("{total:.1} s; hand-over {hand_over} ms, crash fail-over {crash} s at a ttl of 2 s"));
}

#[test]
fn h4_the_demo_on_given_nodes_leaves_no_key_and_shows_no_secret() {
    let servers = Servers::start(3);
    for server in servers.iter() {
        assert_eq!(server.cli(&["CONFIG", "SET", "requirepass", "S3cr3t-demo"]).text(), "OK");
    }
    let mut command = demo(&["--ttl", "1s"]);
    command.env("REDLEADER_REDIS", servers.urls().join(",")).env("REDLEADER_REDIS_PASSWORD", "S3cr3t-demo");
    command.env("REDLEADER_LOCK", "of somebody else").env("REDLEADER_RENEW_EVERY", "not for the demo");
    let output = run("demo", command, LIMIT);
    let text = words(&output.stdout);
    assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    assert!(text.contains("3 of 3 answer, as given with --redis"), "{text}");
    assert!(text.contains("not this demonstration's to kill"), "{text}");
    assert!(!format!("{}{}", output.stdout, output.stderr).contains("S3cr3t"));
    for server in servers.iter() {
        let mut client = server.client().unwrap();
        client.call(&["AUTH", "S3cr3t-demo"]).unwrap();
        assert_eq!(client.call(&["DBSIZE"]).unwrap().int(), Some(0), "keys are left on {}", server.address());
    }
    assert_eq!(left_behind(&output.stdout), Vec::<String>::new());
}

#[test]
fn h4_a_list_that_cannot_form_a_quorum_is_said_to_be_one() {
    let servers = Servers::start(1);
    let there = servers[0].url();
    let twice = format!("redis://localhost:{}", servers[0].port());
    for (list, faults) in [
        (format!("{there},redis://127.0.0.1:1,redis://127.0.0.1:2"), ["127.0.0.1:1: connect", "127.0.0.1:2: connect"]),
        (format!("{there},{twice},redis://127.0.0.1:1"), ["same-node: two addresses", "127.0.0.1:1: connect"]),
    ] {
        let output = run("demo", demo(&["--redis", &list]), LIMIT);
        assert_eq!(output.code, 1, "{}{}", output.stdout, output.stderr);
        let text = words(&output.stdout);
        assert!(text.contains("cannot form a quorum: 1 of 3 can vote, 2 required"), "{text}");
        assert!(faults.iter().all(|fault| text.contains(fault)), "{text}");
        assert!(servers[0].cli(&["DBSIZE"]).int() == Some(0));
    }
}

#[test]
fn h4_without_a_server_program_it_says_how_to_get_one() {
    let empty = TempDir::new();
    // By `env`, since whatever runs the demo is looked up on the PATH as well.
    let mut command = Command::new("env");
    command.arg(format!("PATH={}", empty.path().display())).arg(binary()).arg("demo");
    let output = run("demo", command, LIMIT);
    assert_eq!(output.code, 1, "{}{}", output.stdout, output.stderr);
    assert!(output.stdout.contains("apt-get install redis-server") && output.stdout.contains("--redis"));
}

#[test]
fn h4_however_the_demo_is_ended_nothing_is_left() {
    // What Ctrl-C and a closed terminal send, what a panic comes to, and what no process can see coming.
    for (signal, code) in
        [(Signal::INT, 1), (Signal::TERM, 1), (Signal::HUP, 1), (Signal::ABORT, 134), (Signal::KILL, 137)]
    {
        let process = Process::start("demo", demo(&[]));
        let said = || process.stdout().into_iter().map(|line| line.text + "\n").collect::<String>();
        eventually("the demo has started its replicas", SOON, || said().contains("quarantine: ").then_some(()));
        let parts = children(process.pid());
        assert_eq!(parts.len(), 6, "three nodes and three replicas: {parts:?}");
        process.signal(signal);
        assert_eq!(process.wait_exit(SOON), code, "{signal:?}: {}", said());
        let running = || parts.iter().filter(|pid| is_running(**pid)).count();
        eventually("all that it started has ended", SOON, || (running() == 0).then_some(()));
        eventually("nothing is left", SOON, || left_behind(&said()).is_empty().then_some(()));
    }
}

fn demo(args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.arg("demo").args(args);
    command
}

/// The text in one line, with single spaces.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Every `X leads, …`.
fn leaders(text: &str) -> Vec<String> {
    let before = text.match_indices(" leads, ").filter_map(|(at, _)| text[..at].rsplit(' ').next());
    before.map(str::to_owned).collect()
}

fn numbers_after(text: &str, mark: &str) -> Vec<f64> {
    text.split(mark).skip(1).filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect()
}

fn number_before(text: &str, mark: &str) -> Option<f64> {
    text.split(mark).next().filter(|before| before.len() < text.len())?.rsplit(' ').next()?.parse().ok()
}

fn token_line(line: &str) -> Option<(u64, String)> {
    let mut words = line.split_whitespace();
    let (token, name) = (words.next()?.parse().ok()?, words.next()?.to_owned());
    words.next().is_none().then_some((token, name))
}

/// Processes and abstract sockets that carry the demonstration's lock or one of its ports, and new files in the
/// directories where files are left.
fn left_behind(said: &str) -> Vec<String> {
    let lock = said.split_whitespace().find(|word| word.starts_with("redleader-demo-"));
    let lock = lock.expect("the demo names its lock").to_owned();
    // Nodes that were given have no business here, and their ports are below.
    let ports: BTreeSet<&str> = said
        .split(|letter: char| letter.is_whitespace() || letter == ',')
        .filter_map(|word| word.strip_prefix("127.0.0.1:"))
        .filter(|port| port.parse().is_ok_and(|port: u16| (30_100..32_700).contains(&port)))
        .collect();
    let mut left = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(words) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&words).replace('\0', " ");
        let is_node = line.contains("-server") && ports.iter().any(|port| line.contains(&format!("127.0.0.1:{port}")));
        if line.contains(&lock) || is_node {
            left.push(line);
        }
    }
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    left.extend(sockets.lines().filter(|line| line.contains(&lock)).map(str::to_owned));
    for directory in [std::env::temp_dir(), ".".into(), "/".into()] {
        let files = std::fs::read_dir(directory).unwrap().flatten().map(|file| file.path().display().to_string());
        left.extend(files.filter(|file| file.contains("redleader-demo") || file.ends_with("/dump.rdb")));
    }
    left
}

/// The children of a process. Its single thread started them all.
fn children(pid: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
