//! Many want a lock that has just become free: how long until one has it (rule 19)?

use std::time::Duration;

use redleader::election::event::StepDown;
use redleader::election::request::Request;

use crate::candidate::Feed;
use crate::chance::Chance;
use crate::event::Event;
use crate::profile::{Flavour, Profile};
use crate::trace::Trace;
use crate::world::World;

/// How the lock becomes free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Free {
    /// Its leader resigns, and everyone is woken.
    Released,
    /// Its leader crashed, and everyone has computed the expiry.
    Expired,
}

fn world(seed: u64, candidates: usize, nodes: usize, trip: u64) -> World {
    let ttl = Duration::from_secs(8);
    let profile = Profile {
        candidates,
        lists: vec![(0..nodes).collect()],
        servers: nodes,
        ttls: vec![ttl],
        quarantine: ttl * 11 / 10,
        node_timeout: ttl / 20,
        trip,
        far: 1,
        lost: 0,
        late: 0,
        slow: 0,
        wake_lost: 0,
        late_most: 0,
        fault_every: 1_000_000,
        stall: 0,
        has_big_steps: false,
        has_rates: false,
        has_worst_rates: false,
        burns: 0,
        ambushes: 0,
        has_wild_clock: false,
        faults: 0,
        flavour: Flavour::Rush,
    };
    let mut world = World::of(profile, &mut Chance::new(seed), Trace::default());
    world.is_calm = true;
    world.healthy = (0..nodes).collect();
    for slot in 0..candidates {
        world.candidates[slot].is_guarded = false;
        world.plan(0, Event::Start(slot));
    }
    world
}

/// From the moment that a quorum of keys is gone.
fn times(free: Free, candidates: usize, nodes: usize, trip: u64) -> Vec<u64> {
    let mut times = Vec::new();
    for seed in 0..20 {
        let mut world = world(seed, candidates, nodes, trip);
        let mut elections = 0;
        for _ in 0..25 {
            let far = world.now + 100_000_000;
            let leads = world.run_until(far, |world| elected(world) > elections);
            assert!(leads, "seed {seed}: {:?}", world.failure);
            elections = elected(&world);
            // Everyone knows of the leader before it goes.
            let settled = world.now + world.fate.between(4_000_000, 8_000_000);
            world.run_until(settled, |_| false);
            let leader = world.last_leader.expect("a leader");
            let began = match free {
                Free::Released => {
                    let stand_back = Duration::from_secs(1);
                    world.feed(leader, Feed::Request(Request::Resign { reason: StepDown::Resign, stand_back }));
                    world.now
                }
                Free::Expired => {
                    world.end(leader);
                    // What it has written still arrives.
                    let arrived = world.now + 2 * trip;
                    world.run_until(arrived, |_| false);
                    let mut ends: Vec<u64> = (0..nodes).map(|server| expiry(&world, server)).collect();
                    ends.sort_unstable();
                    ends[nodes / 2]
                }
            };
            let far = world.now + 100_000_000;
            assert!(world.run_until(far, |world| elected(world) > elections), "seed {seed}: {:?}", world.failure);
            times.push(world.now.saturating_sub(began));
            elections = elected(&world) - 1;
        }
    }
    times.sort_unstable();
    times
}

fn elected(world: &World) -> u64 {
    world.counts.iter().filter(|((what, _), _)| *what == "elections").map(|(_, count)| count).sum()
}

fn expiry(world: &World, server: usize) -> u64 {
    let expires = world.servers[server].state.lock.as_ref().and_then(|lock| lock.expires);
    expires.map_or(world.now, |at| world.servers[server].clock.when((at + 1) * 1000))
}

/// What a free lock took to find its leader, and how that is too long.
fn rush(free: Free, candidates: usize, nodes: usize, trip: u64) -> (String, Option<String>) {
    let times = times(free, candidates, nodes, trip);
    let at = |permille: usize| times[(times.len() - 1) * permille / 1000];
    let text = format!(
        "{free:?}, {candidates} candidates, {nodes} nodes, one way up to {trip} us: leader after ms p50 {} p90 {} p99 {} \
         most {}",
        millis(at(500)),
        millis(at(900)),
        millis(at(990)),
        millis(at(1000))
    );
    // A few round trips, and what a key's last millisecond and the jitter cost; at most one back-off.
    let is_slow = at(990) > 3_000 + 15 * trip || at(1000) > 250_000 + 15 * trip;
    (text.clone(), is_slow.then_some(text))
}

/// The hardest of these, for a bug that only many together show.
pub fn slow_rush() -> Option<String> {
    [(10, 4, 10_000), (10, 5, 10_000), (10, 4, 1000)]
        .into_iter()
        .flat_map(|hard| [(Free::Released, hard), (Free::Expired, hard)])
        .find_map(|(free, (candidates, nodes, trip))| rush(free, candidates, nodes, trip).1)
}

#[test]
fn a_free_lock_finds_its_leader() {
    for free in [Free::Released, Free::Expired] {
        for (candidates, nodes) in [(2, 3), (5, 3), (5, 5), (10, 4), (10, 5)] {
            for trip in [60, 250, 1000, 10_000] {
                let (text, slow) = rush(free, candidates, nodes, trip);
                println!("{text}");
                assert_eq!(slow, None);
            }
        }
    }
}

fn millis(micros: u64) -> String {
    format!("{}.{}", micros / 1000, micros % 1000 / 100)
}
