//! The harness: servers, proxies, fakes, replicas, peers, and the judge that says who led when.
//!
//! Everything lives in a directory of its own, is killed by its guard, and dies with the test process.

#![allow(dead_code, unused_imports, reason = "a tool box: what a test needs is here before the test is")]

mod browser;
mod certs;
mod clock;
mod fake;
pub mod figures;
mod http;
mod judge;
mod kubernetes;
mod metrics;
mod monitor;
mod network;
mod peer;
mod ports;
mod postgres;
mod process;
mod prometheus;
mod proxy;
mod replica;
pub mod resp;
mod rng;
mod server;
mod temp;
pub mod tunnel;
pub mod wait;

pub use browser::{Browser, Page, View};
pub use certs::Certificates;
pub use clock::ShiftedClock;
pub use fake::{Answer, Call, Fake};
pub use figures::{figure, percentile, setting};
pub use http::{HttpConnection, Response, get};
pub use judge::{Judge, Overlap, OverlapMeter, Report, Sample, Term, Track, proofs};
pub use kubernetes::{Asked, FakeKubernetes, Weather, lease_path, pod_path};
pub use metrics::{samples, sum};
pub use monitor::{Monitor, MonitorLine};
pub use network::Network;
pub use peer::Peer;
pub use ports::Port;
pub use postgres::Postgres;
pub use process::{Line, Output, Process, run};
pub use prometheus::{Prometheus, Series};
pub use proxy::{Direction, Hold, Imitation, Mode, Proxy, Seen};
pub use replica::{LogLine, Replica, ReplicaOptions, binary, mutant_binary, terms};
pub use resp::Value;
pub use rng::{Rng, Scale, scale};
pub use server::{Data, Flavour, Server, ServerOptions, Servers, cache};
pub use temp::TempDir;
pub use tunnel::Tunnel;
pub use wait::{boot_micros, boot_ms, eventually, let_time_pass, stays_true};
