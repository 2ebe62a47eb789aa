//! What the tests of the lock as a library share: nodes, a plain executor, and values to put into keys.

use std::process::Command;
use std::sync::OnceLock;
use std::task::Poll;
use std::time::Duration;

use redleader::redsync::{MutexError, Options, Redsync};

use crate::support::{Monitor, MonitorLine, Server, Servers, boot_ms, eventually, run};

/// Far above every bound that a test asserts.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// An example's program, built if that has not been done.
pub fn example(name: &str) -> Command {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet", "--examples"]);
        let output = run("cargo build --examples", cargo, ms(300_000));
        assert_eq!(output.code, 0, "{}", output.stderr);
    });
    // This test is target/PROFILE/deps/it-HASH.
    let test = std::env::current_exe().unwrap();
    Command::new(test.parent().unwrap().parent().unwrap().join("examples").join(name))
}

/// Three servers and locks on them.
pub fn three() -> (Servers, Redsync) {
    let servers = Servers::start(3);
    let redsync = connected(&servers);
    (servers, redsync)
}

/// Locks on these servers, with every connection up: the first try needs no dial.
pub fn connected(servers: &[Server]) -> Redsync {
    let redsync = Redsync::new(servers.iter().map(Server::url)).unwrap();
    let mut probe = redsync.mutex("is-it-up").with(Options::new().timeout_factor(1.0));
    wait(probe.try_lock()).unwrap();
    wait(probe.unlock()).unwrap();
    redsync
}

/// Runs a future to its end on this thread. The executor has neither timers nor sockets: the lock must not need them.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// The result and the milliseconds that it took.
pub fn timed<T>(future: impl Future<Output = T>) -> (T, u64) {
    let began = boot_ms();
    let result = wait(future);
    (result, boot_ms() - began)
}

/// Polls once, does something, and drops. True if the future was ready at once.
pub fn poll_once<T>(future: impl Future<Output = T>, then: impl FnOnce()) -> bool {
    wait(async {
        let mut future = std::pin::pin!(future);
        let polled = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        then();
        polled.is_ready()
    })
}

/// The server's requests, once there are as many of this name: what it executed is told a little later.
#[track_caller]
pub fn requests(monitor: &Monitor, name: &str, count: usize) -> Vec<MonitorLine> {
    eventually(&format!("the server tells {count} of {name}"), PATIENCE, || {
        let lines = monitor.requests();
        (lines.iter().filter(|line| line.name == name).count() >= count).then_some(lines)
    })
}

/// Milliseconds that the key lives on each server; −2 where it is missing.
pub fn lives(servers: &[Server], key: &str) -> Vec<i64> {
    servers.iter().map(|server| server.cli(&["PTTL", key]).int().unwrap()).collect()
}

/// The kind of an error, with the nodes that it names by their place in the list: granted, taken, expired, failed.
pub fn row(result: Result<(), MutexError>, redsync: &Redsync) -> String {
    let places = |nodes: &[String]| {
        let mut places: Vec<usize> =
            nodes.iter().map(|node| redsync.nodes().iter().position(|name| name == node).unwrap()).collect();
        places.sort_unstable();
        places.into_iter().map(|place| place.to_string()).collect::<String>()
    };
    let Err(error) = result else { return "ok".to_owned() };
    let mut failed: Vec<String> =
        error.failed().iter().map(|fault| places(std::slice::from_ref(&fault.node)) + fault.kind.as_str()).collect();
    failed.sort();
    let failed = failed.join(" ");
    let text = error.to_string();
    assert!(text.contains(error.lock()) && !error.lock().is_empty(), "{text}");
    match error {
        MutexError::Taken { nodes, .. } => format!("taken {}", places(&nodes)),
        MutexError::Expired { nodes, .. } => format!("expired {}", places(&nodes)),
        MutexError::Late { nodes, .. } => format!("late {}", places(&nodes)),
        MutexError::Nodes { .. } => format!("nodes {failed}"),
        MutexError::NoQuorum { granted, taken, expired, required, .. } => {
            format!("no quorum of {required}: {}/{}/{}/{failed}", places(&granted), places(&taken), places(&expired))
        }
        MutexError::Cancelled { nodes, .. } => format!("cancelled {}", places(&nodes)),
        MutexError::NotLocked { .. } => "not locked".to_owned(),
        MutexError::NoTries { .. } => "no tries".to_owned(),
        MutexError::Value { source, .. } => format!("value: {source}"),
        MutexError::System { .. } | _ => panic!("{text}"),
    }
}
