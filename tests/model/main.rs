//! The smallest case, searched exhaustively: three nodes, two candidates, messages that are held back and arrive late or
//! never, a node that restarts empty, a leader that resigns. The decisions are the product's core, and a node is the
//! simulator's function of the scripts.
//!
//! `make model` runs it optimised; a plain `cargo test` searches a smaller world.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "a test may panic and print, and nothing here is anyone's API"
)]

#[path = "../sim/clock.rs"]
#[allow(dead_code, reason = "clocks are neither stepped nor halted here")]
mod clock;
#[path = "../it/support/figures.rs"]
#[allow(dead_code, reason = "shared with the integration tests")]
mod figures;
#[path = "../sim/node.rs"]
mod node;
#[path = "../sim/plant.rs"]
#[allow(dead_code, reason = "only the scripts' bugs are of use here")]
mod plant;
mod search;
mod world;
