//! What is told while the election itself is in trouble: hung, stopped, its nodes talking nonsense.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{
    Answer, Call, Fake, OverlapMeter, Process, Replica, ReplicaOptions, Server, Servers, boot_ms, eventually, figure,
    let_time_pass, resp::Value, stays_true,
};

const SOON: Duration = Duration::from_secs(10);
const TTL: Duration = Duration::from_secs(1);

fn options<S: AsRef<str>>(identity: &str, urls: &[S]) -> ReplicaOptions {
    ReplicaOptions::new("job", identity, urls).args(["--ttl", "1s", "--node-timeout", "200ms"])
}

/// The thread of this name in the process.
fn thread_of(pid: u32, name: &str) -> String {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut threads = threads.map(|thread| thread.unwrap().path());
    let found =
        threads.find(|path| std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name));
    found.expect("the thread is there").file_name().unwrap().to_str().unwrap().to_owned()
}

/// Hangs one thread of a process: a tracer that follows it alone keeps it at its next wait for events.
fn hang(thread: &str) -> Process {
    let mut command = Command::new("strace");
    command.args(["-q", "-p", thread, "-o", "/dev/null", "-e", "trace=epoll_wait,epoll_pwait,epoll_pwait2"]);
    command.args(["-e", "inject=epoll_wait,epoll_pwait,epoll_pwait2:delay_enter=60s"]);
    let tracer = Process::start("strace", command);
    eventually("the tracer holds the thread", SOON, || {
        assert!(tracer.ended().is_none(), "{:?}", tracer.stderr());
        let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
        let traced = status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"));
        let stopped = status.lines().any(|line| line.starts_with("State:") && line.contains("tracing stop"));
        (traced && stopped).then_some(())
    });
    tracer
}

#[test]
fn c99_a_hung_loop_is_neither_alive_nor_ready_as_root() {
    let servers = Servers::start(3);
    let replica = options("a", &servers.urls()).start();
    replica.wait_elected(1, SOON);
    let other = options("b", &servers.urls()).start();
    let meter = OverlapMeter::of([&replica, &other]);
    let mut kept_open = replica.connect().unwrap();
    let tracer = hang(&thread_of(replica.pid(), "election"));
    let hung = boot_ms();
    // Nothing is extended any more, so the deadline stands.
    let until = replica.leader_json()["validUntilBootMs"].as_u64().expect("it leads still");
    let mut ended = 0;
    eventually("the deadline is denied by the endpoint", SOON, || {
        let before = boot_ms();
        if kept_open.get("/readyz").unwrap().status == 200 {
            assert!(before < until, "ready {} ms after the deadline", before - until);
            return None;
        }
        ended = before;
        Some(())
    });
    assert_eq!(replica.metric("is_leader", &[]).to_string(), "0");
    assert_eq!(replica.leader_json()["leading"], false);
    other.wait_elected(1, SOON);
    let dead = eventually("alive is denied", SOON, || {
        let before = boot_ms();
        (replica.get("/livez").unwrap().status == 503).then_some(before)
    });
    let text = format!("not ready after {} ms, not alive after {} ms; ttl 1000 ms", ended - hung, dead - hung);
    figure("C99, a hung loop", &text);
    // The loop ticks every ttl/4 at least, so its last tick was at most that long before.
    assert!((1700..=3000).contains(&(dead - hung)), "alive was denied {} ms after the hang", dead - hung);
    assert!(replica.metric("loop_tick_age_seconds", &[]) >= 2.0);
    assert!(replica.get("/livez").unwrap().body.contains("has not turned for"));
    stays_true("the other leads, and the hung one is not ready", TTL, || other.leads() && !replica.leads());
    // Let go, it finds that its time is over and goes on as a standby.
    tracer.kill();
    eventually("it is alive again", SOON, || (replica.get("/livez").unwrap().status == 200).then_some(()));
    let down = replica.wait_for_message("stepped down", 1, SOON);
    assert!(down.number("boot_ms").unwrap() <= until + 1, "{:?}", down.json);
    let (overlaps, _) = meter.finish();
    assert_eq!(overlaps, 0, "two were ready at once");
}

/// What metrics must say at any scrape that says that it does not lead.
#[track_caller]
fn assert_metrics_of_a_loser(replica: &Replica) {
    let metrics = replica.metrics();
    let value = |name: &str| metrics.get(&format!("redleader_{name}{{lock=\"job\"}}")).copied();
    assert_eq!(value("is_leader"), Some(0.0));
    assert_eq!(metrics.get("leader_election_master_status{name=\"job\"}"), Some(&0.0));
    for gone in ["lease_expiry_timestamp_seconds", "leader_since_timestamp_seconds", "last_extend_timestamp_seconds"] {
        assert_eq!(value(gone), None, "{gone}");
    }
    assert_eq!(metrics.get("redleader_state{lock=\"job\",state=\"leader\"}"), Some(&0.0));
    let ours = format!("holder=\"{}\"", replica.identity());
    assert!(!metrics.keys().any(|sample| sample.starts_with("redleader_holder_info") && sample.contains(&ours)));
}

#[test]
fn c103_gauges_are_right_at_the_first_scrape_after_a_loss() {
    let servers = Servers::start(3);
    let replica = options("a", &servers.urls()).start();
    replica.wait_elected(1, SOON);
    assert_eq!(replica.metric("is_leader", &[]).to_string(), "1");
    assert!(replica.metric("lease_expiry_timestamp_seconds", &[]) > 1e9);
    assert!(replica.metric("leader_since_timestamp_seconds", &[]) > 1e9);
    assert!(
        replica.metrics().contains_key("redleader_holder_info{lock=\"job\",holder=\"a\"}")
            || replica.metrics().contains_key("redleader_holder_info{holder=\"a\",lock=\"job\"}")
    );

    // No quorum any more: scrape until the first one that says so.
    servers[0].stop();
    servers[1].stop();
    eventually("the loss shows", SOON, || (replica.metric("is_leader", &[]) == 0.0).then_some(()));
    assert_metrics_of_a_loser(&replica);
    assert!(replica.logged("stepping down").len() == 1);
    let_time_pass("100 ms after the loss", Duration::from_millis(100));
    assert_metrics_of_a_loser(&replica);
    stays_true("and it stays so", TTL * 2, || replica.metric("is_leader", &[]) == 0.0);
    assert_metrics_of_a_loser(&replica);

    // The whole process is stopped while it leads, beyond its deadline: the first scrape of its life after that.
    servers.iter().for_each(Server::cont);
    replica.wait_elected(2, SOON);
    let mut kept_open = replica.connect().unwrap();
    assert_eq!(kept_open.get("/readyz").unwrap().status, 200);
    replica.stop();
    let_time_pass("the deadline passes while the process stands still", TTL * 3 / 2);
    kept_open.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    replica.cont();
    let body = kept_open.read_response(false).unwrap().body;
    let since_lost = body.contains("redleader_is_leader{lock=\"job\"} 0");
    assert!(since_lost, "the first answer after the pause: {body}");
    assert!(!body.lines().any(|line| line.starts_with("redleader_lease_expiry_timestamp_seconds{")), "{body}");
    assert!(!body.lines().any(|line| line.starts_with("redleader_leader_since_timestamp_seconds{")), "{body}");
}

fn texts(items: &[&str]) -> Value {
    Value::Array(Some(items.iter().map(|item| Value::Bulk(Some(item.as_bytes().to_vec()))).collect()))
}

/// Ten fields as every script but release answers them, with one of them replaced.
fn answer(verdict: &str, owner: &str, token: &str, run: &str, replaced: Option<(usize, &str)>) -> Answer {
    let time = (u128::from(boot_ms()) * 1000 + 1_700_000_000_000_000).to_string();
    let grant = if owner.is_empty() { "" } else { token };
    let text = |text: &str| Value::Bulk(Some(text.as_bytes().to_vec()));
    let mut items = [verdict, owner, grant, "0", token, "0", "1000", &time, &run[..12]].map(text).to_vec();
    items.push(Value::Int(0));
    if let Some((index, field)) = replaced {
        items[index] = text(field);
    }
    Answer::value(&Value::Array(Some(items)))
}

/// What a fake says to a script, if its run_id is this.
type Say = Box<dyn Fn(&str) -> Answer + Send + Sync>;

/// What no server says to a script.
fn nonsense() -> Vec<(&'static str, Say)> {
    let bytes = |bytes: Vec<u8>| -> Say { Box::new(move |_| Answer::Bytes(bytes.clone())) };
    let field = |index: usize, text: &'static str| -> Say {
        Box::new(move |run| answer("free", "", "7", run, Some((index, text))))
    };
    let max = "18446744073709551616";
    vec![
        ("an integer", bytes(b":1\r\n".to_vec())),
        ("nil", bytes(b"$-1\r\n".to_vec())),
        ("a nil array", bytes(b"*-1\r\n".to_vec())),
        ("a megabyte", bytes([&b"$1048576\r\n"[..], &[b'x'; 1_048_576], b"\r\n"].concat())),
        ("a length beyond all memory", bytes(b"$9223372036854775807\r\nx".to_vec())),
        ("a negative length", bytes(b"$-7\r\n".to_vec())),
        ("an array beyond all memory", bytes(b"*2147483647\r\n".to_vec())),
        ("arrays in arrays", bytes([b"*1\r\n".repeat(20_000), b":1\r\n".to_vec()].concat())),
        ("no protocol at all", bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec())),
        ("a push that nobody asked for", bytes(b">2\r\n+message\r\n+x\r\n".to_vec())),
        ("a map", bytes(b"%1\r\n+a\r\n+b\r\n".to_vec())),
        ("too few fields", Box::new(|_| Answer::value(&texts(&["free"])))),
        ("an unknown verdict", field(0, "granted-for-ever")),
        ("a time left beyond all numbers", field(3, max)),
        ("a time left of centuries", field(3, "9223372036854775807")),
        ("a negative time left", field(3, "-9223372036854775808")),
        ("a token beyond all numbers", field(4, max)),
        ("a ttl of centuries", field(6, "9223372036854775807")),
        ("a clock beyond all numbers", field(7, max)),
        ("a clock at the end of time", field(7, "18446744073709551615")),
        ("a clock before all time", field(7, "-1")),
        ("a run that is none", field(8, "zzzzzzzzzzzz")),
        ("a quarantine that is none", field(9, "maybe")),
    ]
}

const RUNS: [&str; 3] = [
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
    "cccccccccccccccccccccccccccccccccccccccc",
];

/// A fake that is well in all that is not a script, and answers each script as `say` wants.
fn fake(run: &'static str, say: impl Fn(&Call) -> Answer + Send + Sync + 'static) -> Fake {
    Fake::start(move |call| match call.name.as_str() {
        "INFO" => Answer::info("7.0.15", run, "master"),
        // The probe has the two keys and no arguments.
        "EVAL" if call.args.len() == 5 => Answer::bulk(run),
        "EVALSHA" | "EVAL" => say(call),
        "HMGET" => Answer::Bytes(b"*1\r\n$-1\r\n".to_vec()),
        "PUBSUB" => Answer::value(&Value::Array(Some(vec![Value::Bulk(Some(b"c".to_vec())), Value::Int(0)]))),
        _ => Answer::ok(),
    })
}

/// It is alive or has ended with a code that says so; it never panicked, and is never ready.
#[track_caller]
fn assert_survived_or_ended(what: &str, replica: &Replica) {
    if let Some((status, _)) = replica.process().ended() {
        assert_ne!(status.code(), Some(0), "{what}: it ended as if all were well");
    }
    assert!(replica.logged("panicked").is_empty(), "{what}");
    assert!(!replica.leads(), "{what}");
}

#[test]
fn c123_a_fake_with_broken_replies_is_survived_or_fatal() {
    let cases = nonsense();
    let count = cases.len();
    for (what, say) in cases {
        let say = Arc::new(say);
        let fakes = RUNS.map(|run| {
            let say = Arc::clone(&say);
            fake(run, move |_| say(run))
        });
        let replica = options("a", &fakes.each_ref().map(Fake::url)).start();
        let asked = |fake: &Fake| fake.calls().iter().filter(|call| call.name == "EVALSHA").count() >= 3;
        eventually(&format!("{what}: each is asked thrice, or it ends"), SOON, || {
            assert_survived_or_ended(what, &replica);
            (fakes.iter().all(asked) || !replica.is_running()).then_some(())
        });
        assert_survived_or_ended(what, &replica);
        if replica.is_running() {
            assert_eq!(replica.get("/livez").unwrap().status, 200, "{what}");
            replica.term();
            assert_eq!(replica.wait_exit(SOON), 0, "{what}");
        }
    }
    println!("{count} sorts of replies that no server gives");
}

/// Votes for whoever asks. An acquire and an extend look alike, but for the script: the acquire's comes first.
fn vote(run: &str, call: &Call, acquire: &Mutex<Option<String>>) -> Answer {
    // EVALSHA, the script, 2, the lock, its state, and the arguments: of a claim the owner first and the token third.
    match call.args.len() {
        12 => {
            let is_acquire = acquire.lock().unwrap().get_or_insert(call.word(1)) == &call.word(1);
            let verdict = if is_acquire { "granted" } else { "extended" };
            answer(verdict, &call.word(5), &call.word(7), run, None)
        }
        7 => answer("free", "", "7", run, None),
        _ => Answer::value(&texts(&["deleted", "1700000000000000"])),
    }
}

#[test]
fn c123_a_leader_of_fakes_that_begin_to_talk_nonsense_stops_by_its_deadline() {
    for (what, say) in nonsense().into_iter().step_by(4) {
        let (say, broken) = (Arc::new(say), Arc::new(AtomicBool::new(false)));
        let fakes = RUNS.map(|run| {
            let (say, broken, acquire) = (Arc::clone(&say), Arc::clone(&broken), Mutex::new(None));
            fake(run, move |call| if broken.load(Ordering::SeqCst) { say(run) } else { vote(run, call, &acquire) })
        });
        let replica = options("a", &fakes.each_ref().map(Fake::url)).start();
        replica.wait_elected(1, SOON);
        stays_true("fakes that vote keep it leading", TTL * 3 / 2, || replica.leads());
        broken.store(true, Ordering::SeqCst);
        let from = boot_ms();
        let until = eventually("it is not ready any more", SOON, || {
            let before = boot_ms();
            (!replica.leads()).then_some(before)
        });
        assert!(until - from <= 1000, "{what}: ready for {} ms, longer than any lease", until - from);
        stays_true("it is never ready again", TTL, || !replica.leads());
        assert_survived_or_ended(what, &replica);
    }
}
