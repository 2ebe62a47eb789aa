//! When a replica's extends reach the nodes, by the nodes' own word.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use crate::figures::percentile;
use crate::pod::{address, name, redleader};
use crate::release::Release;
use crate::repeated::Repeated;
use crate::wait::boot_ms;

/// Between two looks at the queue.
const SAMPLED: Duration = Duration::from_millis(20);

/// MONITOR of every node of a release, and what the replica's election waits for.
pub struct Rhythm {
    /// The election's waits for a CPU, as [`Distances`] has them.
    queue: Repeated<Vec<(u64, f64)>>,
    nodes: Vec<(TcpStream, JoinHandle<Vec<u64>>)>,
}

impl Rhythm {
    /// Notes what this pod asks of the release's nodes from now on.
    pub fn of(release: &Release<'_>, pod: &Value) -> Self {
        let password = release.password();
        let from = format!(" {}:", address(pod));
        let redis = |node: &Value| format!("{}:6379", address(node));
        let nodes = release.pods_of("node").iter().map(|node| monitor(&redis(node), &password, from.clone())).collect();
        Self { queue: queue(&name(pod)), nodes }
    }

    /// Ends; the time from each extend to the next.
    pub fn finish(self) -> Distances {
        let extends = self.nodes.into_iter().map(|(stream, thread)| {
            let _ = stream.shutdown(Shutdown::Both);
            thread.join().expect("it does not panic")
        });
        let distances =
            |at: Vec<u64>| at.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1000.0).collect::<Vec<f64>>();
        Distances { nodes: extends.map(distances).collect(), waited: self.queue.finish() }
    }
}

/// Times between extends at each node, in milliseconds.
pub struct Distances {
    nodes: Vec<Vec<f64>>,
    /// The election's waits for a CPU: when, and how long in all until then, in milliseconds.
    waited: Vec<(u64, f64)>,
}

impl Distances {
    /// How many at a node.
    pub fn count(&self) -> usize {
        self.nodes.iter().map(Vec::len).max().unwrap_or_default()
    }

    /// The p-th percentile at the node where it is least: what delays the leader delays it at every node, and what
    /// delays one node is not of interest.
    #[track_caller]
    pub fn percentile(&self, p: u32) -> f64 {
        let all = self.nodes.iter().map(|node| percentile(node, p).expect("it extends"));
        all.min_by(f64::total_cmp).expect("there are nodes")
    }

    /// For how long the election was to run and no CPU was free, in the worst time of this length; in milliseconds.
    pub fn waited_within(&self, length: u64) -> f64 {
        let within = |from: &(u64, f64)| {
            let until = self.waited.iter().rev().find(|(at, _)| at.saturating_sub(from.0) <= length);
            until.map_or(0.0, |until| until.1 - from.1)
        };
        self.waited.iter().map(within).fold(0.0, f64::max)
    }
}

/// The thread of a replica's election in the kernel's queue for a CPU: when, and how long in all until then.
fn queue(pod: &str) -> Repeated<Vec<(u64, f64)>> {
    let pid = redleader(pod);
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten().map(|task| task.path());
    let is_election =
        |path: &PathBuf| std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name == "election\n");
    let election = threads.into_iter().find(is_election).expect("the election has a thread").join("schedstat");
    Repeated::start(SAMPLED, move |waited: &mut Vec<(u64, f64)>| {
        let stat = std::fs::read_to_string(&election).expect("it runs");
        let nanoseconds: f64 = stat.split(' ').nth(1).expect("three numbers").parse().expect("a number");
        waited.push((boot_ms(), nanoseconds / 1e6));
    })
}

/// Microseconds of the node's clock at which scripts were run for this source.
fn monitor(address: &str, password: &str, from: String) -> (TcpStream, JoinHandle<Vec<u64>>) {
    let mut stream = TcpStream::connect(address).unwrap_or_else(|why| panic!("{address}: {why}"));
    stream.write_all(format!("AUTH {password}\r\nMONITOR\r\n").as_bytes()).expect("the node reads");
    let mut reader = BufReader::new(stream.try_clone().expect("an open socket"));
    for _ in 0..2 {
        let mut line = String::new();
        reader.read_line(&mut line).expect("the node answers");
        assert_eq!(line.trim(), "+OK");
    }
    let thread = std::thread::spawn(move || {
        let lines = reader.lines().map_while(Result::ok);
        lines.filter(|line| line.contains(&from)).filter_map(|line| at(&line)).collect()
    });
    (stream, thread)
}

/// `+1700000000.123456 [0 10.88.0.20:5000] "EVALSHA" …`
fn at(line: &str) -> Option<u64> {
    let (stamp, rest) = line.strip_prefix('+')?.split_once(" [")?;
    let (seconds, micros) = stamp.split_once('.')?;
    let is_script = rest.split_once("] ")?.1.starts_with("\"EVALSHA\"");
    is_script.then_some(seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?)
}
