//! A hundred candidates of one lock (E8).

use std::time::Duration;

use crate::support::{
    Flavour, Judge, LogLine, Replica, ReplicaOptions, Servers, boot_micros, eventually, figure, let_time_pass,
    percentile, scale,
};

const CANDIDATES: usize = 100;
const SPLIT_MS: f64 = 20.0;
const SOON: Duration = Duration::from_secs(30);

/// One way from a dead leader to the next, as the candidates' logs tell it.
struct Election {
    /// From the first ask of any candidate to the win, in milliseconds.
    lasted: f64,
    attempts: usize,
    splits: usize,
}

#[test]
fn e8_a_hundred_candidates_one_leader_each_time_and_no_long_split_vote() {
    let (lock, mut name) = ("e8", 0);
    let servers = Servers::of(Flavour::Redis70, 3);
    let mut running: Vec<Replica> = (0..CANDIDATES).map(|_| candidate(&servers, lock, &mut name)).collect();
    let mut gone: Vec<Replica> = Vec::new();
    let deaths = scale().pick(20, 500);
    let mut killed_at = Vec::new();
    let mut requests = Vec::new();
    let mut leader = wait_leader(&servers, lock, &running, "");
    for _ in 0..deaths {
        eventually("all listen, on all nodes", SOON, || {
            servers.listening(lock).iter().all(|listening| *listening == CANDIDATES).then_some(())
        });
        let dead = running.swap_remove(leader);
        let before = asked(&servers);
        killed_at.push(dead.kill9());
        let free_at = servers.free_between(lock).1;
        let election = Duration::from_micros(free_at.saturating_sub(boot_micros())) + Duration::from_millis(30);
        let_time_pass("nobody asks anything of two busy processors while a hundred elect", election);
        leader = wait_leader(&servers, lock, &running, dead.identity());
        requests.push((asked(&servers) - before) as f64 / (running.len() * servers.len()) as f64);
        gone.push(dead);
        running.push(candidate(&servers, lock, &mut name));
    }
    let report = Judge::check_replicas(gone.iter().chain(&running));
    report.assert_clean(&format!("E8 overlap, {CANDIDATES} candidates, {deaths} deaths"));
    assert!(report.handovers >= deaths, "{} hand-overs", report.handovers);
    let attempts: Vec<LogLine> =
        gone.iter().chain(&running).flat_map(|replica| replica.logged("attempt ended")).collect();
    let starts = report.terms.iter().map(|term| term.start);
    let wins: Vec<u64> = killed_at.iter().map(|at| starts.clone().find(|start| start >= at).unwrap()).collect();
    let elections: Vec<Election> =
        killed_at.iter().zip(&wins).map(|(killed, won)| Election::read(&attempts, *killed, *won)).collect();
    let lasted: Vec<f64> = elections.iter().map(|election| election.lasted).collect();
    let p = |samples: &[f64], p: u32| percentile(samples, p).unwrap();
    let sum = |count: fn(&Election) -> usize| elections.iter().map(count).sum::<usize>();
    figure(
        &format!("E8 {CANDIDATES} candidates, {deaths} deaths of the leader"),
        &format!(
            "from the first ask to the win p50 {:.1} ms, longest {:.1} ms; {} attempts, {} of them split; \
             requests per candidate and node: p50 {:.1} for each death (with the 2 s until the key is gone), most {:.1}",
            p(&lasted, 50),
            p(&lasted, 100),
            sum(|e| e.attempts),
            sum(|e| e.splits),
            p(&requests, 50),
            p(&requests, 100),
        ),
    );
    assert!(p(&lasted, 100) <= SPLIT_MS, "a split vote lasted longer than {SPLIT_MS} ms: {lasted:?}");
}

impl Election {
    fn read(attempts: &[LogLine], killed: u64, won: u64) -> Self {
        let began =
            |line: &LogLine| line.number("boot_ms").unwrap() as f64 - line.field("elapsed_ms").as_f64().unwrap();
        let of_this: Vec<&LogLine> =
            attempts.iter().filter(|line| began(line) > killed as f64 && began(line) <= won as f64).collect();
        let first = of_this.iter().map(|line| began(line)).fold(f64::INFINITY, f64::min);
        let splits = of_this.iter().filter(|line| line.text("reason") == "split").count();
        Self { lasted: won as f64 - first, attempts: of_this.len(), splits }
    }
}

fn candidate(servers: &Servers, lock: &str, name: &mut u32) -> Replica {
    *name += 1;
    let options = ReplicaOptions::new(lock, &format!("candidate-{name}"), &servers.urls());
    options.args(["--ttl", "2s", "--log-level", "debug"]).start()
}

/// Waits until a quorum of nodes names another owner than `last`, and this one says that it leads; its place. The nodes
/// are asked, since a hundred logs that are read all the time would be more work than the election.
fn wait_leader(servers: &Servers, lock: &str, running: &[Replica], last: &str) -> usize {
    let quorum = servers.len() / 2 + 1;
    eventually("another leads", SOON, || {
        let values: Vec<String> = servers.values(lock).into_iter().flatten().collect();
        let owner = values.iter().find(|value| values.iter().filter(|other| other == value).count() >= quorum)?;
        let (identity, _) = owner.rsplit_once(':')?;
        let place = running.iter().position(|replica| replica.identity() == identity)?;
        (identity != last && running[place].leads()).then_some(place)
    })
}

/// How many requests of candidates the nodes have carried out: whole scripts, and questions for subscribers.
fn asked(servers: &Servers) -> u64 {
    let calls = |info: &str, command: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let of_one =
        |info: String| ["evalsha", "eval", "pubsub|numsub"].iter().map(|command| calls(&info, command)).sum::<u64>();
    servers.iter().map(|server| of_one(server.cli(&["INFO", "commandstats"]).text())).sum()
}
