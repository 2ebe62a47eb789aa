//! The harness: servers, proxies, fakes, replicas, peers, and the judge that says who led when.
//!
//! Everything lives in a directory of its own, is killed by its guard, and dies with the test process.

#![allow(dead_code, unused_imports, reason = "a tool box: what a test needs is here before the test is")]

mod certs;
mod clock;
mod fake;
mod figures;
mod http;
mod judge;
mod monitor;
mod peer;
mod ports;
mod process;
mod proxy;
mod replica;
pub mod resp;
mod rng;
mod server;
mod temp;
mod wait;

pub use certs::Certificates;
pub use clock::ShiftedClock;
pub use fake::{Answer, Call, Fake};
pub use figures::{figure, percentile, setting};
pub use http::{HttpConnection, Response, get};
pub use judge::{Judge, Overlap, OverlapMeter, Report, Term, Track};
pub use monitor::{Monitor, MonitorLine};
pub use peer::Peer;
pub use ports::Port;
pub use process::{Line, Output, Process, run};
pub use proxy::{Direction, Hold, Mode, Proxy, Seen};
pub use replica::{LogLine, Replica, ReplicaOptions, binary, mutant_binary};
pub use resp::Value;
pub use rng::{Rng, Scale, scale};
pub use server::{Data, Flavour, Server, ServerOptions, Servers};
pub use temp::TempDir;
pub use wait::{boot_micros, boot_ms, eventually, let_time_pass, stays_true};
