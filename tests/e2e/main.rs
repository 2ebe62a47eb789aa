//! A real Kubernetes of two nodes, the real image, and the chart as a user installs it: `make e2e`.
//!
//! Each row installs releases of its own in a namespace of its own, which enforces Pod Security `restricted`, and takes
//! them away. Rows of one stage run beside each other, since most of their time is waiting; those that take something
//! away from the whole cluster have a stage to themselves.
//!
//! * `cluster`: the control plane, its nodes and images, and the way to its API;
//! * `release`: a release of the chart, and what is done to it;
//! * `pod`: what a pod says, and what its object says of it;
//! * `node`: what its nodes are told and asked;
//! * `bench`: nodes of a release without replicas, and what a row starts beside them;
//! * `repeated`: what is looked at all the time;
//! * `caller`: who calls the Service all the time, and notes who answers;
//! * `audit`: what was asked of the API server;
//! * `witness`: who led by the replicas' own logs;
//! * `poller`: who asks a replica's endpoints all the time;
//! * `rhythm`: when extends reach the nodes;
//! * `wall` and `way`: what stands between pods and the API server;
//! * `row`: what a row is, and how rows are run;
//! * `rows`: what is shown.
//!
//! `e2e` runs all rows, but those that compile everything at SCALE=soak alone; `e2e WORD…` those with such a word in
//! their names; `e2e --list` names them. KEEP=1 leaves the cluster as it is, for a look at it by hand.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may panic and print, and nothing here is anyone's API"
)]

mod audit;
mod bench;
mod caller;
mod cluster;
mod node;
mod pod;
mod poller;
mod release;
mod repeated;
mod rhythm;
mod row;
mod rows;
#[path = "../it/support/mod.rs"]
mod support;
mod wall;
mod way;
mod witness;

use std::process::ExitCode;

use support::{figures, tunnel, wait};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let rows = rows::all();
    if words.iter().any(|word| word == "--list") {
        for row in &rows {
            println!("{}: {}", row.name, row.shows);
        }
        return ExitCode::SUCCESS;
    }
    row::run(rows, &words)
}
