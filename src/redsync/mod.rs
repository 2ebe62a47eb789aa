//! The nodes' side: one lock over a quorum of independent Redis nodes.

pub mod name;
pub mod reply;
