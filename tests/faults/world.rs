//! The nodes, the paths and the candidates of one run.

use std::path::PathBuf;
use std::time::Duration;

use crate::schedule::Schedule;
use crate::support::{
    Data, OverlapMeter, Process, Proxy, Replica, ReplicaOptions, Server, ServerOptions, ShiftedClock, eventually,
};

/// Far above what a start, a quarantine and an election take on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Everything that runs.
pub struct World {
    /// The lock's name.
    pub lock: String,
    /// The nodes.
    pub servers: Vec<Server>,
    /// Their clocks.
    pub clocks: Vec<Option<Clock>>,
    /// The candidates.
    pub seats: Vec<Seat>,
    /// Every process that ever was a candidate.
    pub processes: Vec<Replica>,
    /// Those of them that were asked to end.
    pub ended: Vec<usize>,
    /// Those of them that were killed.
    pub killed: Vec<usize>,
    /// Sub-commands that run beside them.
    pub commands: Vec<Process>,
    program: PathBuf,
    args: Vec<String>,
    meter: OverlapMeter,
}

/// The clock of one node.
pub struct Clock {
    shim: ShiftedClock,
    ahead: i64,
    fast: i64,
}

impl Clock {
    /// Steps it by so many microseconds.
    pub fn step(&mut self, by: i64) {
        self.ahead += by;
        self.shim.set(self.ahead, self.fast);
    }
}

/// The place of one candidate.
pub struct Seat {
    /// Its paths to the nodes; none if it speaks to them directly.
    pub paths: Vec<Proxy>,
    /// Which process has it.
    pub process: usize,
    /// Whether that runs.
    pub state: State,
    /// Whether its paths are disturbed.
    pub is_cut: bool,
    urls: Vec<String>,
    read: usize,
    token: Option<u64>,
}

/// What a fault made of a candidate's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs.
    Runs,
    /// It is stopped.
    Paused,
    /// It has ended, or is about to.
    Gone,
}

impl World {
    /// Starts the nodes, then the candidates.
    pub fn start(schedule: &Schedule, program: PathBuf, lock: String) -> Self {
        let clock = |(ahead, fast)| Clock { shim: ShiftedClock::new(ahead, fast), ahead, fast };
        let clocks: Vec<Option<Clock>> = schedule.nodes.iter().map(|node| node.clock.map(clock)).collect();
        let servers = std::thread::scope(|scope| {
            let start = |(node, clock): (&crate::schedule::Node, &Option<Clock>)| {
                let mut options = ServerOptions::new();
                if node.has_aof {
                    options = options.args(["--appendonly", "yes"]);
                }
                if let Some(clock) = clock {
                    options = options.clock(&clock.shim);
                }
                let flavour = node.flavour;
                scope.spawn(move || Server::start(flavour, options))
            };
            let starting: Vec<_> = schedule.nodes.iter().zip(&clocks).map(start).collect();
            starting.into_iter().map(|server| server.join().expect("a server starts")).collect::<Vec<_>>()
        });
        let flag = |name: &str, value: Duration| [name.to_owned(), format!("{}ms", value.as_millis())];
        let args = [
            flag("--ttl", schedule.ttl),
            flag("--node-timeout", schedule.node_timeout()),
            // A quarter of the ttl: so it is by default for every ttl that is not as short as in a test.
            flag("--connect-timeout", schedule.ttl / 4),
        ];
        let mut world = Self {
            lock,
            servers,
            clocks,
            seats: Vec::new(),
            processes: Vec::new(),
            ended: Vec::new(),
            killed: Vec::new(),
            commands: Vec::new(),
            program,
            args: args.into_iter().flatten().collect(),
            meter: OverlapMeter::start(&[]),
        };
        for (index, has_paths) in schedule.candidates.iter().enumerate() {
            world.seat(index, *has_paths);
        }
        world
    }

    fn seat(&mut self, index: usize, has_paths: bool) {
        let proxy = |server: &Server| Proxy::start(&server.address());
        let paths: Vec<Proxy> = if has_paths { self.servers.iter().map(proxy).collect() } else { Vec::new() };
        let through: Vec<String> = paths.iter().map(Proxy::url).collect();
        let urls = if has_paths { through } else { self.servers.iter().map(Server::url).collect() };
        let seat = Seat { paths, process: 0, state: State::Gone, is_cut: false, urls, read: 0, token: None };
        self.seats.push(seat);
        self.fill(index);
    }

    /// Starts a process for a place that has none.
    pub fn fill(&mut self, index: usize) {
        let seat = &mut self.seats[index];
        let identity = format!("{}{}", ["a", "b", "c", "d", "e"][index], self.processes.len());
        let options = ReplicaOptions::new(&self.lock, &identity, &seat.urls).binary(self.program.clone());
        let replica = options.args(self.args.iter().map(String::as_str)).start();
        self.meter.watch(&replica.address());
        (seat.process, seat.state, seat.read, seat.token) = (self.processes.len(), State::Runs, 0, None);
        self.processes.push(replica);
    }

    /// The process at a place.
    pub fn at(&self, seat: usize) -> &Replica {
        &self.processes[self.seats[seat].process]
    }

    /// Who leads, by what was logged: the one with the largest token, if several say so.
    pub fn leader(&mut self) -> Option<usize> {
        for seat in &mut self.seats {
            for line in self.processes[seat.process].log_from(seat.read) {
                seat.read += 1;
                match line.message() {
                    "elected" => seat.token = line.number("token"),
                    "stepped down" => seat.token = None,
                    _ => {}
                }
            }
        }
        let leads = |(_, seat): &(usize, &Seat)| seat.token.is_some() && seat.state != State::Gone;
        self.seats.iter().enumerate().filter(leads).max_by_key(|(_, seat)| seat.token).map(|(index, _)| index)
    }

    /// Waits until somebody leads.
    pub fn wait_leader(&mut self) {
        let what = format!("{}: somebody is elected", self.lock);
        eventually(&what, PATIENCE, || self.leader());
    }

    /// Waits until every node holds the leader's key.
    pub fn wait_held_everywhere(&mut self) {
        eventually(&format!("{}: every node holds the leader's key", self.lock), PATIENCE, || {
            let seat = self.leader()?;
            let owner = format!("{}:", self.at(seat).identity());
            let holds = |server: &Server| server.cli(&["GET", &self.lock]).text().starts_with(&owner);
            self.servers.iter().all(holds).then_some(())
        });
    }

    /// Starts these nodes at their addresses, all at once.
    pub fn start_nodes(&mut self, nodes: &[usize], data: Data) {
        std::thread::scope(|scope| {
            for (index, server) in self.servers.iter_mut().enumerate() {
                if nodes.contains(&index) {
                    scope.spawn(move || server.start_again(data));
                }
            }
        });
    }

    /// Ends everything: what the witness saw of each process, and the processes for their logs.
    pub fn end(self) -> (OverlapMeter, Vec<Replica>) {
        for process in &self.processes {
            process.kill9();
        }
        (self.meter, self.processes)
    }
}
