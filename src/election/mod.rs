//! The election: a pure core, the loop around it, and the reader's half.
//!
//! Read `leadership` for what comes out, `timing` for the numbers, `core` for the decisions, `driver` for the loop,
//! and `elector` for an election within a Rust program.

pub mod leadership;
pub mod watch;
pub mod event;
pub mod history;
pub mod request;
pub mod timing;
pub mod core;
mod evidence;
pub mod driver;
pub mod thread;
mod elector;

pub use elector::{Elector, ElectorBuilder, ElectorError};
