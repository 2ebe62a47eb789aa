//! The product's core in a seeded world: candidates and nodes with clocks of their own, a network that loses, delays
//! and reorders, crashes, restarts, data loss. One seed gives one history, to the byte.
//!
//! `SEED=n cargo test --profile sim --test sim -- --nocapture` tells one history.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::wildcard_enum_match_arm,
    clippy::too_many_lines,
    reason = "a test may panic and print, and nothing here is anyone's API"
)]

mod candidate;
mod chance;
mod check;
mod client;
mod clock;
mod event;
mod fault;
#[path = "../it/support/figures.rs"]
#[allow(dead_code, reason = "shared with the integration tests")]
mod figures;
mod node;
mod plant;
mod profile;
mod run;
mod rush;
mod trace;
mod wire;
mod world;
