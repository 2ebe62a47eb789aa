//! S1: when a waiter comes again, as the server sees it.

use redleader::redsync::Options;

use crate::locker::{ms, requests, three, wait};
use crate::support::{MonitorLine, figure};

#[test]
fn s1_retries_fall_between_50_and_250_ms() {
    let (servers, redsync) = three();
    servers[0].cli(&["SET", "job", "theirs"]);
    servers[1].cli(&["SET", "job", "theirs"]);
    let monitor = servers[2].monitor();
    wait(redsync.mutex("job").lock()).unwrap_err();
    let mut gaps = pauses(&requests(&monitor, "EVAL", 32));
    assert_eq!(gaps.len(), 31, "between the default tries");
    gaps.sort_unstable();
    let (least, median, most) = (gaps[0], gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    figure("S1 gaps between retries", &format!("{least} to {most} ms, median {median}"));
    // A loaded machine draws out a few.
    let in_time = gaps.iter().filter(|gap| **gap <= 250).count();
    assert!(least >= 50 && in_time >= 28 && most < 500, "{gaps:?}");
    assert!(gaps.iter().collect::<std::collections::BTreeSet<_>>().len() > 10, "by chance: {gaps:?}");
    // And as the delay says.
    monitor.clear();
    wait(redsync.mutex("job").with(Options::new().tries(10).retry_delay(ms(40))).lock()).unwrap_err();
    let gaps = pauses(&requests(&monitor, "EVAL", 10));
    assert!(gaps.len() == 9 && gaps.iter().all(|gap| (40..120).contains(gap)), "{gaps:?}");
}

/// From each clean-up to the next try, in milliseconds.
fn pauses(lines: &[MonitorLine]) -> Vec<u64> {
    let pairs = lines.windows(2).filter(|pair| pair[0].name == "EVAL" && pair[1].name == "SET");
    pairs.map(|pair| (pair[1].server_us - pair[0].server_us) / 1000).collect()
}
