//! Leader election over a quorum of independent Redis nodes.

pub mod clock;
pub mod election;
pub mod redsync;
