//! C23: restarts, resets and pauses for hours (seconds in CI), and nothing grows.

use std::time::Duration;

use crate::support::{
    Data, Judge, Mode, OverlapMeter, Proxy, Replica, ReplicaOptions, Rng, Scale, Servers, boot_ms, eventually, figure,
    let_time_pass, scale,
};

const SOON: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(1);
const CANDIDATES: [&str; 4] = ["a", "b", "c", "d"];

/// Two connections for each of three nodes, two listeners, two for signals, and what the meter and the harness hold.
const SOCKETS: usize = 14;

struct World {
    nodes: Servers,
    /// One for each candidate and node.
    proxies: Vec<Vec<Proxy>>,
    candidates: Vec<Replica>,
}

/// What must not grow, of one process.
#[derive(Clone, Copy, Debug)]
struct Size {
    anonymous_kib: u64,
    files: usize,
    sockets: usize,
    threads: u64,
}

impl World {
    fn start() -> Self {
        let nodes = Servers::start(3);
        let proxies_of = |_| nodes.iter().map(|node| Proxy::start(&node.address())).collect::<Vec<_>>();
        let proxies: Vec<Vec<Proxy>> = CANDIDATES.map(proxies_of).into_iter().collect();
        let start = |(who, proxies): (&&str, &Vec<Proxy>)| {
            let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
            ReplicaOptions::new("c23", who, &urls).args(["--ttl", "1s"]).start()
        };
        let candidates = CANDIDATES.iter().zip(&proxies).map(start).collect();
        Self { nodes, proxies, candidates }
    }

    fn leader(&self) -> Option<&Replica> {
        self.candidates.iter().find(|candidate| candidate.leads())
    }

    /// One fault, and its end. Every pause but the leader's long one is below the ttl.
    fn disturb(&mut self, rng: &mut Rng) {
        let (node, who) = (rng.index(self.nodes.len()), rng.index(CANDIDATES.len()));
        let pause = rng.duration(TTL / 20, TTL * 9 / 10);
        match rng.between(0, 11) {
            0 => self.nodes[node].restart(Data::Lost),
            1 => {
                self.nodes[node].stop();
                let_time_pass("a node hangs", pause);
                self.nodes[node].cont();
            }
            2 => {
                let candidate = if rng.one_in(2) { self.leader() } else { None }.unwrap_or(&self.candidates[who]);
                candidate.stop();
                let_time_pass("a candidate is paused for less than a ttl", pause);
                candidate.cont();
            }
            3 => self.proxies.iter().for_each(|proxies| proxies[node].reset()),
            4 => self.proxies[who].iter().for_each(Proxy::reset),
            5 => self.proxies[who][node].half_close(),
            6 => {
                // Subscriptions are of another type.
                for kind in ["normal", "pubsub"] {
                    self.nodes[node].cli(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
                }
            }
            7 => self.with_mode(who, rng.index(2) + 1, *rng.pick(&[Mode::DropReplies, Mode::Blackhole]), pause),
            8 => self.with_mode(who, rng.index(3) + 1, *rng.pick(&[Mode::Stall, Mode::Refuse]), pause),
            9 => {
                if let Some(leader) = self.leader() {
                    leader.stop();
                    let_time_pass("a leader is paused beyond its deadline", TTL * 2);
                    leader.cont();
                }
            }
            _ => {
                // A leader that is asked to resign: hand-overs, however kind the faults are.
                if let Some(leader) = self.leader() {
                    leader.command(&["resign", "--for", "1s"]);
                }
            }
        }
    }

    fn with_mode(&self, who: usize, nodes: usize, mode: Mode, pause: Duration) {
        for proxy in &self.proxies[who][..nodes] {
            proxy.set(mode);
        }
        let_time_pass("a path is disturbed", pause);
        for proxy in &self.proxies[who] {
            proxy.set(Mode::Pass);
        }
    }

    /// Waits until all is quiet, everyone knows the leader and every node holds its key, and measures then.
    fn rest(&self) -> Vec<Size> {
        eventually("everyone knows the one leader", SOON, || {
            let leader = self.leader()?.identity().to_owned();
            let knows = |candidate: &Replica| candidate.leader_json()["holder"] == leader.as_str();
            let holds = |value: &Option<String>| value.as_ref().is_some_and(|v| v.starts_with(&format!("{leader}:")));
            let are_up = |candidate: &Replica| candidate.metric("node_up", &[]) == 3.0;
            let is_quiet = self.candidates.iter().all(|candidate| knows(candidate) && are_up(candidate));
            (is_quiet && self.nodes.values("c23").iter().all(holds)).then_some(())
        });
        // Counted at the replica: behind a path that swallowed bytes the proxy keeps the server's half for ever.
        eventually("connections that are given up are closed", SOON, || {
            self.candidates.iter().all(|candidate| size(candidate).sockets <= SOCKETS).then_some(())
        });
        self.candidates.iter().map(size).collect()
    }
}

fn size(replica: &Replica) -> Size {
    let proc = format!("/proc/{}", replica.pid());
    let status = std::fs::read_to_string(format!("{proc}/status")).expect("it runs");
    let number = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("the kernel's own lines");
        line.split_whitespace().find_map(|word| word.parse().ok()).expect("a number")
    };
    let files: Vec<_> = std::fs::read_dir(format!("{proc}/fd")).expect("it runs").flatten().collect();
    // One that is closed while we look has no target any more.
    let is_socket = |target: &std::path::PathBuf| target.to_string_lossy().starts_with("socket:");
    Size {
        anonymous_kib: number("RssAnon:"),
        files: files.len(),
        sockets: files.iter().filter_map(|file| std::fs::read_link(file.path()).ok()).filter(is_socket).count(),
        threads: number("Threads:"),
    }
}

/// Processor time that a process has used, in ticks of 10 ms.
fn ticks(replica: &Replica) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", replica.pid())).expect("it runs");
    let after_name = stat.rsplit_once(") ").expect("the kernel's own form").1;
    after_name.split(' ').skip(11).take(2).map(|word| word.parse::<u64>().expect("a number")).sum()
}

#[test]
fn c23_restarts_resets_and_pauses_for_hours() {
    let lasts = scale().pick(Duration::from_secs(36), Duration::from_hours(8));
    let mut rng = Rng::seeded("c23_restarts_resets_and_pauses_for_hours");
    let mut world = World::start();
    eventually("the first leader", SOON, || world.leader().map(|_| ()));
    // The meter keeps every answer, so that it sees the beginning of a night only.
    let mut meter = Some(OverlapMeter::of(&world.candidates));
    let began = boot_ms();
    let passed = || Duration::from_millis(boot_ms() - began);
    let mut faults = 0;
    let mut early = None;
    while passed() < lasts {
        world.disturb(&mut rng);
        faults += 1;
        let_time_pass("faults do not come one on the other", rng.duration(Duration::from_millis(20), TTL / 2));
        if early.is_none() && passed() > lasts.min(Duration::from_secs(60)) / 3 {
            early = Some(world.rest());
        }
        if let Some(meter) = meter.take_if(|_| passed() > Duration::from_secs(30)) {
            let (proofs, ready) = meter.finish();
            assert!(proofs == 0 && ready > 0, "{proofs} proofs of two leaders in {ready} answers");
        }
        for candidate in &world.candidates {
            assert!(candidate.is_running(), "{} has ended", candidate.identity());
        }
    }
    let (early, late) = (early.expect("a third of the time has passed"), world.rest());
    let at_rest: Vec<u64> = world.candidates.iter().map(ticks).collect();
    let_time_pass("a measure of rest", Duration::from_secs(2));
    let used = world.candidates.iter().zip(&at_rest).map(|(candidate, before)| ticks(candidate) - before);
    let busiest = used.max().unwrap_or(0) * 10;
    let report = Judge::check_replicas(&world.candidates);
    let lines: usize = world.candidates.iter().map(|candidate| candidate.process().stderr().len()).sum();
    figure("C23", &format!("{faults} faults in {} s, {lines} log lines; {report}", lasts.as_secs()));
    figure("C23", &format!("busiest replica at rest: {busiest} ms of processor time in 2 s"));
    report.assert_clean("C23");
    for ((who, early), late) in CANDIDATES.iter().zip(&early).zip(&late) {
        figure("C23", &format!("{who}: {early:?} early, {late:?} late"));
        assert!(late.files <= early.files + 4, "{who}: open files grew: {early:?}, {late:?}");
        assert!(late.sockets <= early.sockets + 2, "{who}: connections grew: {early:?}, {late:?}");
        assert!(late.threads <= early.threads + 4, "{who}: threads grew: {early:?}, {late:?}");
        let grown = late.anonymous_kib.saturating_sub(early.anonymous_kib);
        assert!(grown <= scale().pick(2048, 4096), "{who}: memory grew by {grown} KiB: {early:?}, {late:?}");
    }
    assert!(busiest <= 200, "a replica is busy while nothing happens");
    // A fault is told by a few lines of each replica and node, and not by one for each look or extend.
    assert!(scale() == Scale::Soak || lines < faults * 60, "{lines} log lines for {faults} faults");
}
