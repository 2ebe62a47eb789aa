//! Nodes that forget what they granted cannot make a second leader, whatever else goes wrong beside it; and without the
//! quarantine they do, so the test can fail.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::candidates::{Candidates, End, PATIENCE, Plan};
use crate::support::{
    Data, Flavour, Mode, Overlap, Proxy, Report, Rng, Servers, binary, boot_ms, figure, let_time_pass, mutant_binary,
    scale,
};

const TTL: Duration = Duration::from_millis(500);
/// Faults in one schedule.
const FAULTS: usize = 14;
/// Between two of them, half of the time: faults seldom come alone.
const TOGETHER: (Duration, Duration) = (Duration::ZERO, Duration::from_millis(30));
/// Between two of them, else: from a fraction of a renewal to nearly a lease.
const APART: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(400));
/// How long a path stays cut: from less than a node timeout to more than the ttl.
const CUT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(700));

/// Sets of nodes of each kind, and schedules that they share.
struct Share {
    flavour: Flavour,
    nodes: usize,
    lanes: usize,
    schedules: usize,
    next: AtomicUsize,
    product: Sum,
    mutant: Sum,
}

impl Share {
    fn new(flavour: Flavour, nodes: usize, lanes: usize, schedules: usize) -> Self {
        let next = AtomicUsize::new(0);
        Self { flavour, nodes, lanes, schedules, next, product: Sum::default(), mutant: Sum::default() }
    }

    /// The same random schedules with the product and with the one that has no quarantine.
    fn run(&self, base: u64, is_witnessed: bool) {
        let mut lane = Lane::start(self.flavour, self.nodes, is_witnessed);
        loop {
            let index = self.next.fetch_add(1, Ordering::SeqCst);
            if index >= self.schedules {
                return;
            }
            let seed = base.wrapping_add(index as u64);
            self.product.add(seed, lane.run(seed, &binary(), "product", true));
            self.mutant.add(seed, lane.run(seed, &mutant_binary(), "mutant", false));
        }
    }

    fn judge(self) {
        let name = format!("E6 {}, {} nodes", self.flavour.as_str(), self.nodes);
        let (schedules, product, mutant) = (self.schedules, self.product.take(), self.mutant.take());
        figure(&name, &format!("{schedules} schedules: {product}"));
        figure(&format!("{name} without the quarantine"), &format!("{schedules} schedules: {mutant}"));
        assert!(product.overlaps.is_empty(), "{name}: two leaders: {:#?}", product.overlaps);
        assert!(product.handovers > 0, "{name}: no hand-over, so the run proves nothing");
        assert_eq!(product.stale_tokens, 0, "{name}: a token did not grow");
        assert_eq!(product.witnessed, 0, "{name}: /readyz of two was 200 at once");
        assert!(product.ready > 0, "{name}: the witness never saw anyone ready");
        let least = schedules.div_ceil(20);
        let found = mutant.overlapping;
        assert!(found >= least, "{name}: the mutant overlapped in {found} schedules, and {least} are the least");
    }
}

#[test]
fn forgetful_nodes_make_no_second_leader_and_without_the_quarantine_they_do() {
    let base = Rng::seeded("E6").next_u64();
    let shares = [
        Share::new(Flavour::Redis70, 3, 5, scale().pick(200, 5000)),
        Share::new(Flavour::Redis70, 5, 1, scale().pick(32, 800)),
        Share::new(Flavour::Redis62, 3, 1, scale().pick(32, 800)),
        Share::new(Flavour::Valkey9, 3, 1, scale().pick(32, 800)),
    ];
    std::thread::scope(|scope| {
        for share in &shares {
            for lane in 0..share.lanes {
                scope.spawn(move || share.run(base, lane == 0));
            }
        }
    });
    shares.into_iter().for_each(Share::judge);
}

/// What all schedules of one program came to.
#[derive(Default)]
struct Sum(Mutex<Totals>);

#[derive(Debug, Default)]
struct Totals {
    leaderships: usize,
    handovers: usize,
    without_handover: usize,
    overlapping: usize,
    overlaps: Vec<(u64, Overlap)>,
    longest_overlap: u64,
    stale_tokens: usize,
    faults: BTreeMap<&'static str, usize>,
    witnessed: usize,
    ready: usize,
}

impl Sum {
    fn add(&self, seed: u64, outcome: Outcome) {
        let mut totals = self.0.lock().unwrap();
        let Outcome { report, faults, witnessed } = outcome;
        totals.leaderships += report.terms.len();
        totals.handovers += report.handovers;
        totals.without_handover += usize::from(report.handovers == 0);
        totals.overlapping += usize::from(!report.overlaps.is_empty());
        totals.stale_tokens += usize::from(!report.tokens_increase);
        let longest = report.overlaps.iter().filter_map(|overlap| overlap.millis).max().unwrap_or(0);
        totals.longest_overlap = totals.longest_overlap.max(longest);
        totals.overlaps.extend(report.overlaps.into_iter().map(|overlap| (seed, overlap)));
        for fault in faults {
            *totals.faults.entry(fault).or_default() += 1;
        }
        if let Some((overlaps, ready)) = witnessed {
            totals.witnessed += overlaps;
            totals.ready += ready;
        }
    }

    fn take(self) -> Totals {
        self.0.into_inner().unwrap()
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "leaderships {}, hand-overs {} (none in {}), overlaps {} in {} schedules (longest {} ms), faults {:?}",
            self.leaderships,
            self.handovers,
            self.without_handover,
            self.overlaps.len(),
            self.overlapping,
            self.longest_overlap,
            self.faults
        )
    }
}

struct Outcome {
    report: Report,
    faults: Vec<&'static str>,
    witnessed: Option<(usize, usize)>,
}

/// Some nodes, and a path from each of three candidates to each of them.
struct Lane {
    servers: Servers,
    paths: Vec<Vec<Proxy>>,
    is_witnessed: bool,
}

impl Lane {
    fn start(flavour: Flavour, nodes: usize, is_witnessed: bool) -> Self {
        let servers = Servers::of(flavour, nodes);
        let paths = || servers.addresses().iter().map(|address| Proxy::start(address)).collect();
        let paths = (0..3).map(|_| paths()).collect();
        Self { servers, paths, is_witnessed }
    }

    /// One schedule, with a lock of its own.
    fn run(&mut self, seed: u64, program: &Path, kind: &str, is_product: bool) -> Outcome {
        let urls: Vec<Vec<String>> = self.paths.iter().map(|paths| paths.iter().map(Proxy::url).collect()).collect();
        let plan = Plan::new(&format!("forgetful-{kind}-{seed}"), TTL).binary(PathBuf::from(program));
        let plan = plan.quick_to_connect().patient();
        let mut candidates = Candidates::start(plan.clone(), &urls);
        if self.is_witnessed {
            candidates.witness();
        }
        candidates.wait_leader(0, PATIENCE);
        let mut schedule = Schedule { rng: Rng::new(seed), lock: plan.lock, cuts: Vec::new(), faults: Vec::new() };
        for _ in 0..FAULTS {
            schedule.wait(self);
            schedule.strike(self, &mut candidates);
        }
        schedule.heal(self, u64::MAX);
        // Whatever happened, the election goes on: someone leads once the nodes may vote again.
        let last = candidates.leader().map_or(0, |led| led.token);
        if candidates.leader().is_none() {
            candidates.wait_leader(last, PATIENCE);
        }
        let outcome =
            Outcome { report: candidates.report(), faults: schedule.faults, witnessed: candidates.witnessed() };
        if is_product && !outcome.report.overlaps.is_empty() {
            println!("seed {seed}: {:#?}", outcome.report.overlaps);
            candidates.print_logs();
        }
        outcome
    }

    fn cut(&self, candidate: usize, node: usize, mode: Mode) {
        self.paths[candidate][node].set(mode);
    }
}

/// What happens, drawn from a seed. Times and choices are the seed's; who leads at a time is not.
struct Schedule {
    rng: Rng,
    lock: String,
    /// Candidate, node, and until when the path is cut.
    cuts: Vec<(usize, usize, u64)>,
    faults: Vec<&'static str>,
}

impl Schedule {
    /// Lets time pass until the next fault, and mends paths whose time has come.
    fn wait(&mut self, lane: &Lane) {
        let (least, most) = if self.rng.one_in(2) { TOGETHER } else { APART };
        let wait = self.rng.duration(least, most);
        let until = boot_ms() + u64::try_from(wait.as_millis()).unwrap();
        loop {
            let now = boot_ms();
            self.heal(lane, now);
            if now >= until {
                return;
            }
            let next = self.cuts.iter().map(|(.., at)| *at).chain([until]).min().unwrap_or(until);
            let_time_pass(
                "until the next fault of the schedule",
                Duration::from_millis(next.saturating_sub(now).max(1)),
            );
        }
    }

    fn heal(&mut self, lane: &Lane, now: u64) {
        self.cuts.retain(|(candidate, node, until)| {
            let is_cut = *until > now;
            if !is_cut {
                lane.cut(*candidate, *node, Mode::Pass);
            }
            is_cut
        });
    }

    fn strike(&mut self, lane: &mut Lane, candidates: &mut Candidates) {
        let nodes = lane.servers.len();
        let most = nodes / 2 + 1;
        let victim = self.rng.index(lane.paths.len());
        let leader = candidates.leader().map_or(victim, |led| led.seat);
        let fault = match self.rng.index(11) {
            0 => {
                self.restart_empty(lane, 1);
                "one node restarts empty"
            }
            1 => {
                self.restart_empty(lane, most);
                "most nodes restart empty"
            }
            2 => {
                self.flush(lane, 1);
                "FLUSHALL on one node"
            }
            3 | 4 => {
                self.flush(lane, most);
                "FLUSHALL on most nodes"
            }
            5 => {
                lane.servers[self.rng.index(nodes)].cli(&["DEL", &self.lock]);
                "key deleted"
            }
            6 => {
                evict(lane, self.rng.index(nodes));
                "key evicted"
            }
            7 => {
                self.cut(lane, leader, nodes);
                "leader cut off"
            }
            8 => {
                let count = 1 + self.rng.index(most);
                self.cut(lane, victim, count);
                "some paths cut"
            }
            9 => {
                candidates.replace(victim, End::Kill);
                "a candidate killed"
            }
            _ => {
                candidates.replace(leader, End::Term);
                "the leader ended"
            }
        };
        self.faults.push(fault);
    }

    /// `count` of `nodes` nodes from a random one on.
    fn nodes(&mut self, count: usize, nodes: usize) -> Vec<usize> {
        let first = self.rng.index(nodes);
        (0..count).map(|offset| (first + offset) % nodes).collect()
    }

    fn restart_empty(&mut self, lane: &mut Lane, count: usize) {
        let nodes = self.nodes(count, lane.servers.len());
        std::thread::scope(|scope| {
            for (index, server) in lane.servers.iter_mut().enumerate() {
                if nodes.contains(&index) {
                    scope.spawn(|| server.restart(Data::Lost));
                }
            }
        });
    }

    fn flush(&mut self, lane: &Lane, count: usize) {
        for node in self.nodes(count, lane.servers.len()) {
            lane.servers[node].cli(&["FLUSHALL"]);
        }
    }

    /// Cuts `count` of a candidate's paths for one random time. A request may be lost, or only its reply.
    fn cut(&mut self, lane: &Lane, candidate: usize, count: usize) {
        let until = boot_ms() + u64::try_from(self.rng.duration(CUT.0, CUT.1).as_millis()).unwrap();
        let mode = *self.rng.pick(&[Mode::Blackhole, Mode::DropReplies, Mode::Stall]);
        for node in self.nodes(count, lane.servers.len()) {
            lane.cut(candidate, node, mode);
            self.cuts.retain(|(other, at, _)| (*other, *at) != (candidate, node));
            self.cuts.push((candidate, node, until));
        }
    }
}

/// Memory runs short for a moment, and the server throws out what has an expiry: the key, not the state.
fn evict(lane: &Lane, node: usize) {
    let mut client = lane.servers[node].client().expect("the node runs");
    for [name, value] in [["maxmemory-policy", "volatile-ttl"], ["maxmemory", "1"], ["maxmemory", "0"]] {
        let answer = client.call(&["CONFIG", "SET", name, value]).expect("the node answers");
        assert_eq!(answer.text(), "OK", "CONFIG SET {name} {value}");
    }
}

#[test]
fn a_node_that_runs_short_of_memory_evicts_the_key_and_keeps_the_rest() {
    for flavour in Flavour::ALL {
        let lane = Lane::start(flavour, 3, false);
        let server = &lane.servers[0];
        server.cli(&["SET", "key", "owner", "PX", "60000"]);
        server.cli(&["HSET", "{key}:redleader", "token", "1"]);
        evict(&lane, 0);
        assert!(server.cli(&["GET", "key"]).is_nil(), "{}", flavour.as_str());
        assert_eq!(server.cli(&["HGET", "{key}:redleader", "token"]).text(), "1", "{}", flavour.as_str());
    }
}
