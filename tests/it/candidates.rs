//! The candidates of one lock: who leads by their own logs, and every process that ever was one, for the judge.

use std::path::PathBuf;
use std::time::Duration;

use crate::support::{Judge, OverlapMeter, Replica, ReplicaOptions, Report, Server, Track, binary, eventually};

/// Far above what a start, a quarantine and an election take on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How candidates are started.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The lock.
    pub lock: String,
    /// Which program.
    pub binary: PathBuf,
    /// `--ttl`; everything else follows from it, unless it is set.
    pub ttl: Duration,
    node_timeout: Option<Duration>,
    connect_timeout: Option<Duration>,
}

impl Plan {
    /// The product, for `lock` with this ttl.
    pub fn new(lock: &str, ttl: Duration) -> Self {
        Self { lock: lock.to_owned(), binary: binary(), ttl, node_timeout: None, connect_timeout: None }
    }

    /// Another program.
    pub fn binary(mut self, path: PathBuf) -> Self {
        self.binary = path;
        self
    }

    /// `--connect-timeout` a quarter of the ttl: so it is by default for every ttl that is not as short as in a test.
    pub fn quick_to_connect(mut self) -> Self {
        self.connect_timeout = Some(self.ttl / 4);
        self
    }

    /// `--node-timeout` a fifth of the ttl: patience with a loaded machine, where not speed is tested but safety.
    pub fn patient(mut self) -> Self {
        self.node_timeout = Some(self.ttl / 5);
        self
    }

    /// How often a leader extends: the default.
    pub fn renew(&self) -> Duration {
        self.ttl / 4
    }

    /// How long a node may take.
    pub fn node_timeout(&self) -> Duration {
        self.node_timeout.unwrap_or(self.ttl / 20)
    }

    /// For how long a lease counts: the ttl less the default margin.
    pub fn validity(&self) -> Duration {
        self.ttl * 9 / 10
    }

    /// How long a node that may have forgotten has no vote: the default.
    pub fn quarantine(&self) -> Duration {
        self.ttl * 11 / 10
    }

    fn start(&self, identity: &str, urls: &[String]) -> Replica {
        let flags = [
            ("--ttl", Some(self.ttl)),
            ("--node-timeout", self.node_timeout),
            ("--connect-timeout", self.connect_timeout),
        ];
        let mut options = ReplicaOptions::new(&self.lock, identity, urls).binary(self.binary.clone());
        for (flag, value) in flags {
            if let Some(value) = value {
                options = options.args([flag, &format!("{}ms", value.as_millis())]);
            }
        }
        options.start()
    }
}

/// A leadership that lasts, by the log of the one that leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Led {
    /// Which candidate.
    pub seat: usize,
    /// Its token.
    pub token: u64,
    /// When it was elected, in boot time.
    pub elected: u64,
}

/// How a candidate's process ends before another takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// SIGTERM, and it is waited for.
    Term,
    /// kill -9.
    Kill,
}

/// All candidates of one lock.
pub struct Candidates {
    plan: Plan,
    seats: Vec<Seat>,
    gone: Vec<Replica>,
    meter: Option<OverlapMeter>,
}

struct Seat {
    urls: Vec<String>,
    replica: Replica,
    /// How many lines of its log were read.
    read: usize,
    leads: Option<(u64, u64)>,
}

impl Candidates {
    /// Starts one for each list of URLs in `paths`; they are called `a`, `b` and so on.
    pub fn start(plan: Plan, paths: &[Vec<String>]) -> Self {
        let seat = |(index, urls): (usize, &Vec<String>)| Seat {
            replica: plan.start(&name(index), urls),
            urls: urls.clone(),
            read: 0,
            leads: None,
        };
        let seats = paths.iter().enumerate().map(seat).collect();
        Self { plan, seats, gone: Vec::new(), meter: None }
    }

    /// Polls `/readyz` of all of them from here on, also of those that take a place later.
    pub fn witness(&mut self) {
        self.meter = Some(OverlapMeter::of(self.seats.iter().map(|seat| &seat.replica)));
    }

    /// The process at a place.
    pub fn replica(&self, seat: usize) -> &Replica {
        &self.seats[seat].replica
    }

    /// All processes that run.
    pub fn replicas(&self) -> impl Iterator<Item = &Replica> {
        self.seats.iter().map(|seat| &seat.replica)
    }

    /// Who leads now, by what was logged; the one with the largest token, if several say so.
    pub fn leader(&mut self) -> Option<Led> {
        for seat in &mut self.seats {
            seat.follow_log();
        }
        let led = |(seat, at): (usize, &Seat)| at.leads.map(|(token, elected)| Led { seat, token, elected });
        self.seats.iter().enumerate().filter_map(led).max_by_key(|led| led.token)
    }

    /// Waits for a leader whose token is larger than `after`.
    #[track_caller]
    pub fn wait_leader(&mut self, after: u64, deadline: Duration) -> Led {
        let what = format!("{}: someone is elected after token {after}", self.plan.lock);
        eventually(&what, deadline, || self.leader().filter(|led| led.token > after))
    }

    /// Waits until all these nodes hold the leader's key, and gives its value: at the instant of the election some may
    /// still hold that of a candidate that has lost.
    #[track_caller]
    pub fn wait_owner<'a>(&self, led: Led, nodes: impl Iterator<Item = &'a Server> + Clone) -> String {
        let prefix = format!("{}:", name(led.seat));
        eventually(&format!("{}: all nodes hold the leader's key", self.plan.lock), PATIENCE, || {
            let mut values = nodes.clone().map(|node| node.cli(&["GET", &self.plan.lock]).text());
            let first = values.next()?;
            (first.starts_with(&prefix) && values.all(|value| value == first)).then_some(first)
        })
    }

    /// Ends the process at a place and starts another there, with the same identity.
    #[track_caller]
    pub fn replace(&mut self, seat: usize, end: End) {
        let old = &self.seats[seat].replica;
        match end {
            End::Term => {
                old.term();
                let code = old.wait_exit(PATIENCE);
                // A process that has just begun to start is ended by the signal itself.
                let was_young = code == 143 && old.logged("started").is_empty();
                assert!(code == 0 || was_young, "{} was asked to stop, and ended with {code}", old.identity());
            }
            End::Kill => {
                old.kill9();
            }
        }
        let place = &mut self.seats[seat];
        let new = self.plan.start(&name(seat), &place.urls);
        if let Some(meter) = &mut self.meter {
            meter.watch(&new.address());
        }
        self.gone.push(std::mem::replace(&mut place.replica, new));
        (place.read, place.leads) = (0, None);
    }

    /// The verdict over every process that there ever was.
    pub fn report(&self) -> Report {
        let tracks: Vec<Track> = self.gone.iter().chain(self.replicas()).map(Replica::track).collect();
        Judge::check(&tracks)
    }

    /// Prints the verdict and panics if it is not clean, or if the second witness saw two ready at once.
    #[track_caller]
    pub fn assert_clean(&mut self, name: &str) {
        self.report().assert_clean(name);
        if let Some((overlaps, ready)) = self.witnessed() {
            assert_eq!(overlaps, 0, "{name}: /readyz of two was 200 at once");
            assert!(ready > 0, "{name}: the witness never saw anyone ready");
        }
    }

    /// What the second witness saw: two ready at once, and answers of 200. It ends.
    pub fn witnessed(&mut self) -> Option<(usize, usize)> {
        self.meter.take().map(OverlapMeter::finish)
    }

    /// Every log, for a failure that is found after the fact.
    pub fn print_logs(&self) {
        for replica in self.gone.iter().chain(self.replicas()) {
            for line in replica.process().stderr() {
                println!("[{}#{} @{}] {}", replica.identity(), replica.pid(), line.boot_ms, line.text);
            }
        }
    }
}

impl Seat {
    fn follow_log(&mut self) {
        for line in self.replica.log_from(self.read) {
            self.read += 1;
            match line.message() {
                "elected" => self.leads = line.number("token").zip(line.number("boot_ms")),
                "stepped down" => self.leads = None,
                _ => {}
            }
        }
    }
}

fn name(index: usize) -> String {
    ["a", "b", "c", "d", "e"][index].to_owned()
}
