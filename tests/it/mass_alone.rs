//! C19: fifty candidates of one lock on five nodes, killed, stopped and asked to leave at random, while one node after
//! the other is bounced.

use std::time::Duration;

use crate::support::{
    Data, Judge, Replica, ReplicaOptions, Rng, Server, Servers, Track, boot_ms, eventually, figure, let_time_pass,
    scale,
};

const SOON: Duration = Duration::from_secs(60);
const LOCK: &str = "c19";
const CANDIDATES: usize = 50;
const TTL: Duration = Duration::from_secs(1);
/// The field's bound: a ttl and five retry periods, which are a look each.
const LONGEST_MS: u64 = 1000 + 5 * 600;
const BOUNCE_EVERY_MS: u64 = 3000;

struct Mass {
    servers: Servers,
    running: Vec<Replica>,
    gone: Vec<Track>,
    started: usize,
    /// Candidates that are stopped, and until when.
    stopped: Vec<(usize, u64)>,
    bounced_at: u64,
    bounces: usize,
    kills: usize,
}

impl Mass {
    fn start() -> Self {
        let mut mass = Self {
            servers: Servers::start(5),
            running: Vec::new(),
            gone: Vec::new(),
            started: 0,
            stopped: Vec::new(),
            bounced_at: boot_ms(),
            bounces: 0,
            kills: 0,
        };
        for _ in 0..CANDIDATES {
            let new = mass.candidate();
            mass.running.push(new);
        }
        mass
    }

    /// Patient with a machine on which fifty start and stop.
    fn candidate(&mut self) -> Replica {
        self.started += 1;
        let who = format!("c-{}", self.started);
        let args = ["--ttl", "1s", "--node-timeout", "150ms"];
        ReplicaOptions::new(LOCK, &who, &self.servers.urls()).args(args).start()
    }

    fn leader(&self) -> Option<usize> {
        let value = self.servers.values(LOCK).into_iter().flatten().next()?;
        let who = value.split(':').next().unwrap_or_default().to_owned();
        self.running.iter().position(|replica| replica.identity() == who)
    }

    /// One candidate is ended or stopped; the leader half of the time.
    fn disturb(&mut self, rng: &mut Rng) {
        let leader = self.leader().filter(|_| rng.one_in(2));
        let victim = leader.unwrap_or_else(|| rng.index(self.running.len()));
        if self.stopped.iter().any(|(stopped, _)| *stopped == victim) {
            return;
        }
        let what = rng.between(0, 3);
        let who = self.running[victim].identity();
        println!(
            "{} {who}: {}, leader: {}",
            boot_ms(),
            ["kill -9", "stop", "SIGTERM"][what as usize],
            leader.is_some()
        );
        match what {
            0 => {
                self.running[victim].kill9();
                self.kills += 1;
                self.replace(victim);
            }
            1 => {
                self.running[victim].stop();
                let pause = rng.between(100, 2500);
                self.stopped.push((victim, boot_ms() + pause));
            }
            _ => {
                self.running[victim].term();
                self.running[victim].wait_exit(SOON);
                self.replace(victim);
            }
        }
    }

    fn replace(&mut self, victim: usize) {
        let new = self.candidate();
        let old = std::mem::replace(&mut self.running[victim], new);
        self.gone.push(old.track());
    }

    /// Wakes who has been stopped for long enough, and bounces a node when it is time.
    fn go_on(&mut self, rng: &mut Rng) {
        let now = boot_ms();
        let (due, still): (Vec<_>, Vec<_>) = self.stopped.drain(..).partition(|(_, until)| *until <= now);
        self.stopped = still;
        for (victim, _) in due {
            println!("{now} {}: goes on", self.running[victim].identity());
            self.running[victim].cont();
        }
        if now >= self.bounced_at + BOUNCE_EVERY_MS {
            let data = if rng.one_in(2) { Data::Lost } else { Data::Kept };
            let node = rng.index(self.servers.len());
            self.servers[node].restart(data);
            println!("{now} to {}: node {node} bounced, data {data:?}", boot_ms());
            (self.bounced_at, self.bounces) = (boot_ms(), self.bounces + 1);
        }
    }
}

#[test]
fn c19_fifty_candidates_never_have_two_leaders_nor_none_for_long() {
    let lasts = scale().pick(Duration::from_secs(15), Duration::from_mins(30));
    let mut rng = Rng::seeded("c19_fifty_candidates_never_have_two_leaders_nor_none_for_long");
    let mut mass = Mass::start();
    eventually("the first leader", SOON, || mass.leader());
    let until = boot_ms() + u64::try_from(lasts.as_millis()).unwrap();
    let mut faults = 0;
    while boot_ms() < until {
        mass.disturb(&mut rng);
        faults += 1;
        mass.go_on(&mut rng);
        let_time_pass("faults come one after the other", rng.duration(TTL / 20, TTL / 3));
    }
    for (victim, _) in mass.stopped.drain(..) {
        mass.running[victim].cont();
    }
    eventually("somebody leads in the end", SOON, || mass.running.iter().find(|replica| replica.leads()).map(|_| ()));
    let tracks: Vec<Track> = mass.gone.iter().cloned().chain(mass.running.iter().map(Replica::track)).collect();
    let report = Judge::check(&tracks);
    let (started, kills, bounces) = (mass.started, mass.kills, mass.bounces);
    figure(
        "C19",
        &format!(
            "{started} candidates, {faults} faults, {kills} killed, {bounces} nodes bounced in {} s",
            lasts.as_secs()
        ),
    );
    report.assert_clean("C19");
    let longest = report.longest_gap.expect("there were hand-overs");
    assert!(longest <= LONGEST_MS, "nobody led for {longest} ms, {LONGEST_MS} ms at most: {:#?}", report.terms);
    assert!(mass.servers.iter().all(|server: &Server| server.try_cli(&["PING"]).is_ok()));
}
