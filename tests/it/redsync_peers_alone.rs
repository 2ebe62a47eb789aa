//! S7: beside the crates rslock and redlock, in one run on the same nodes: with all well, and with one node hung.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use redleader::redsync::{Options, Redsync};

use crate::locker::{ms, three, wait};
use crate::support::{Servers, boot_micros, figure, percentile};

const TTL: u64 = 8000;
const ROUNDS: usize = 200;
/// With a node hung, a library may not come back before this.
const PATIENCE: Duration = Duration::from_secs(4);

/// Milliseconds of each acquire and release; fewer than asked for if one failed or the time was up.
type Samples = Vec<(f64, f64)>;

fn millis(began: u64) -> f64 {
    (boot_micros() - began) as f64 / 1000.0
}

fn ours(redsync: &Redsync, is_fail_fast: bool, rounds: usize) -> Samples {
    let mut mutex = redsync.mutex("ours").with(Options::new().fail_fast(is_fail_fast).expiry(ms(TTL)).tries(1));
    let mut samples = Vec::new();
    for _ in 0..rounds {
        let began = boot_micros();
        if wait(mutex.lock()).is_err() {
            break;
        }
        let acquired = millis(began);
        let began = boot_micros();
        if wait(mutex.unlock()).is_err() {
            break;
        }
        samples.push((acquired, millis(began)));
    }
    samples
}

fn rslock(manager: &rslock::LockManager, runtime: &tokio::runtime::Runtime, rounds: usize) -> Samples {
    let mut samples = Vec::new();
    let run = async {
        for _ in 0..rounds {
            let began = boot_micros();
            let Ok(lock) = manager.lock("rslock", ms(TTL)).await else { break };
            let acquired = millis(began);
            let began = boot_micros();
            manager.unlock(&lock).await;
            samples.push((acquired, millis(began)));
        }
    };
    let _ = runtime.block_on(async { tokio::time::timeout(PATIENCE, run).await });
    samples
}

/// It blocks, and knows no timeout: on a thread that is left behind if it does not come back.
fn redlock(servers: &Servers, rounds: usize) -> Samples {
    let (sender, receiver) = channel();
    let urls = servers.urls();
    thread::spawn(move || {
        let manager = redlock::RedLock::new(urls.iter().map(String::as_str).collect());
        for _ in 0..rounds {
            let began = boot_micros();
            let Ok(Some(lock)) = manager.lock(b"redlock", usize::try_from(TTL).unwrap()) else { return };
            let acquired = millis(began);
            let began = boot_micros();
            manager.unlock(&lock);
            if sender.send((acquired, millis(began))).is_err() {
                return;
            }
        }
    });
    let began = boot_micros();
    let mut samples = Vec::new();
    let left = |began| PATIENCE.saturating_sub(Duration::from_micros(boot_micros() - began));
    while let Ok(sample) = receiver.recv_timeout(left(began)) {
        samples.push(sample);
    }
    samples
}

fn report(what: &str, samples: &Samples, rounds: usize) {
    let steps: (Vec<f64>, Vec<f64>) = samples.iter().copied().unzip();
    let p = |step: &[f64], p| percentile(step, p).map_or("-".to_owned(), |ms| format!("{ms:.2}"));
    figure(
        &format!("S7 {what}"),
        &format!(
            "{} of {rounds} rounds; acquire p50 {} p99 {} ms, release p50 {} p99 {} ms",
            samples.len(),
            p(&steps.0, 50),
            p(&steps.0, 99),
            p(&steps.1, 50),
            p(&steps.1, 99)
        ),
    );
}

#[test]
fn s7_beside_rslock_and_redlock() {
    let (servers, redsync) = three();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let manager = rslock::LockManager::new(servers.urls());
    rslock(&manager, &runtime, 5);
    let well = ours(&redsync, false, ROUNDS);
    report("redsync, all nodes", &well, ROUNDS);
    report("redsync fail-fast, all nodes", &ours(&redsync, true, ROUNDS), ROUNDS);
    report("rslock, all nodes", &rslock(&manager, &runtime, ROUNDS), ROUNDS);
    report("redlock, all nodes", &redlock(&servers, ROUNDS), ROUNDS);
    servers[2].stop();
    let hung = 3;
    let slow = ours(&redsync, false, hung);
    report("redsync, one node hung", &slow, hung);
    let fast = ours(&redsync, true, ROUNDS);
    report("redsync fail-fast, one node hung", &fast, ROUNDS);
    report("rslock, one node hung", &rslock(&manager, &runtime, hung), hung);
    report("redlock, one node hung", &redlock(&servers, hung), hung);
    servers[2].cont();
    assert_eq!((well.len(), slow.len(), fast.len()), (ROUNDS, hung, ROUNDS), "ours never fails for one node");
    // By the timers: 400 ms for a try, 1 s for a release; and none of them where a quorum is enough.
    let p99 = |samples: &Samples| {
        let sums: Vec<f64> = samples.iter().map(|(acquire, release)| acquire + release).collect();
        percentile(&sums, 99).unwrap()
    };
    assert!(p99(&slow) >= 400.0 && p99(&slow) < 2.0 * 1400.0, "{slow:?}");
    assert!(p99(&fast) < 400.0, "{}", p99(&fast));
}
