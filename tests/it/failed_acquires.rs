//! C1: an acquire that fails, in whichever way, is never a success.
//!
//! Between each contender and a majority of its nodes stands a fake that passes everything on to a real node, so that
//! an acquire takes effect, and spoils the answer. While another leads it also lies to the contender's looks, for a
//! candidate that sees a leader does not ask at all.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::middleman::{Middleman, Spoiler, Way};
use crate::support::{OverlapMeter, Replica, ReplicaOptions, Servers, eventually, figure};
use crate::witness::Witness;

const SOON: Duration = Duration::from_secs(20);
const TTL: &str = "1s";

/// A replica that has one node as it is, and two by way of a spoiler.
struct Contender {
    way: Way,
    replica: Replica,
    middlemen: [Middleman; 2],
}

impl Contender {
    fn start(way: Way, nodes: &Servers, witness: &Witness) -> Self {
        let middlemen = [0, 1].map(|node| Middleman::start(way, &nodes[node].address()));
        for middleman in &middlemen {
            middleman.spoiler.lies.store(true, Ordering::SeqCst);
        }
        let urls = [middlemen[0].url(), middlemen[1].url(), nodes[2].url()];
        let words = witness.words();
        let options = ReplicaOptions::new("c1", way.name(), &urls).args(["--ttl", TTL]);
        let replica = options.child(words.iter().map(String::as_str)).start();
        Self { way, replica, middlemen }
    }

    fn least(&self, count: impl Fn(&Spoiler) -> &AtomicUsize) -> usize {
        let counts = self.middlemen.iter().map(|middleman| count(&middleman.spoiler).load(Ordering::SeqCst));
        counts.min().unwrap_or(0)
    }
}

#[test]
fn c1_a_failed_acquire_is_never_a_success() {
    let nodes = Servers::start(3);
    let witness = Witness::new();
    let words = witness.words();
    let leader = ReplicaOptions::new("c1", "leader", &nodes.urls()).args(["--ttl", TTL]);
    let leader = leader.child(words.iter().map(String::as_str)).start();
    leader.wait_elected(1, SOON);
    let contenders = Way::ALL.map(|way| Contender::start(way, &nodes, &witness));
    let meter = OverlapMeter::of(contenders.iter().map(|contender| &contender.replica));
    for contender in &contenders {
        let name = contender.way.name();
        eventually(&format!("50 acquires end by {name} on both nodes"), Duration::from_secs(60), || {
            (contender.least(|spoiler| &spoiler.spoilt) >= 50).then_some(())
        });
    }
    assert!(leader.leads());
    assert_eq!(leader.logged("elected").len(), 1, "the leader led all the time");

    // With nobody in the way the acquires are granted, and only their answers are spoilt.
    for middleman in contenders.iter().flat_map(|contender| &contender.middlemen) {
        middleman.spoiler.lies.store(false, Ordering::SeqCst);
    }
    leader.term();
    assert_eq!(leader.wait_exit(SOON), 0);
    for contender in &contenders {
        let name = contender.way.name();
        eventually(&format!("a grant ends by {name}"), Duration::from_secs(60), || {
            (contender.least(|spoiler| &spoiler.grants) >= 1).then_some(())
        });
    }
    let (proofs, ready) = meter.finish();
    assert_eq!((proofs, ready), (0, 0), "a contender was ready");
    let lines = witness.lines();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.identity == "leader"), "a contender's child was started");
    for contender in &contenders {
        let (name, replica) = (contender.way.name(), &contender.replica);
        assert!(replica.is_running(), "{name} has ended");
        assert_eq!(replica.logged("elected").len(), 0, "{name} took a failure for a success");
        assert_eq!(replica.metric("acquire_attempts_total", &[("outcome", "won")]), 0.0, "{name}");
        let spoilt = contender.least(|spoiler| &spoiler.spoilt);
        figure("C1", &format!("{name}: {spoilt} acquires, {} of them granted", contender.least(|s| &s.grants)));
    }

    // That they could have led: with nothing spoilt, one does.
    for middleman in contenders.iter().flat_map(|contender| &contender.middlemen) {
        middleman.spoiler.spoils.store(false, Ordering::SeqCst);
    }
    eventually("one of them leads once nothing is spoilt", SOON, || {
        contenders.iter().any(|contender| contender.replica.leads()).then_some(())
    });
    for contender in &contenders {
        contender.replica.term();
    }
    for contender in &contenders {
        assert_eq!(contender.replica.wait_exit(SOON), 0);
    }
    // A release that a loaded machine did not get through in time leaves its key, for the ttl at most.
    eventually("no grant that nobody heard of outlives its ttl", SOON, || {
        (nodes.values("c1") == [None, None, None]).then_some(())
    });
}
