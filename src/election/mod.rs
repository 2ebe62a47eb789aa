//! The election: a pure core, the loop around it, and the reader's half.
//!
//! Read `leadership` for what comes out, `timing` for the numbers, `core` for the decisions, `driver` for the loop.

pub mod leadership;
pub mod watch;
pub mod event;
pub mod request;
pub mod timing;
pub mod core;
mod evidence;
pub mod driver;
