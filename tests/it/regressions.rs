//! What went wrong once, named for it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::middleman::{Middleman, Way};
use crate::support::{ReplicaOptions, Servers, eventually, figure, let_time_pass};

const SOON: Duration = Duration::from_secs(20);

/// A failed attempt is cleaned up on a new connection; its coming up must not be taken for a network that is back.
#[test]
fn a_candidate_whose_acquires_are_answered_with_nonsense_backs_off() {
    let nodes = Servers::start(3);
    for way in [Way::Zero, Way::Reset, Way::HalfReply, Way::Timeout, Way::Error] {
        let middlemen: Vec<Middleman> = nodes.iter().map(|node| Middleman::start(way, &node.address())).collect();
        let urls: Vec<String> = middlemen.iter().map(Middleman::url).collect();
        let replica = ReplicaOptions::new(way.name(), "a", &urls).args(["--ttl", "2s"]).start();
        let spoilt = || middlemen[0].spoiler.spoilt.load(Ordering::SeqCst);
        eventually("an acquire has failed", SOON, || (spoilt() > 0).then_some(()));
        let before = spoilt();
        let_time_pass("attempts come with growing pauses", Duration::from_secs(3));
        let count = spoilt() - before;
        figure("attempts in 3 s", &format!("{}: {count}", way.name()));
        // 50 ms, doubling to 250 to 500 ms: ten or twelve.
        assert!(count <= 20, "{}: {count} attempts in 3 s", way.name());
        assert!(replica.logged("elected").is_empty());
    }
}
