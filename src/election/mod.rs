//! The election: a pure core, the loop around it, and the reader's half.

pub mod event;
pub mod leadership;
pub mod request;
pub mod watch;
