//! The nodes' side: one lock over a quorum of independent Redis nodes.
//!
//! What a quorum of grants is worth: a node that has granted the lock to an owner grants it to nobody else before the
//! ttl, less the clock margin, has passed since it was asked, and two quorums share a node. So until the quorum-th
//! largest of these leases nobody else can have a quorum.
//!
//! Its limits: clocks must run at nearly the same rate, a node must not forget a grant while its vote counts (a node
//! that may have is in quarantine, which the scripts see to), and an owner that is paused does not notice by itself
//! that its time is over. A contender that speaks plain Redsync uses the same key and knows no quarantine: beside it
//! the guarantee is Redsync's, which an empty restart of a node can break.
//!
//! Read `name` and `reply` for the values, `tally` and `lease` for the pure rules, `script` for what a node does in one
//! step, `node` for one connection, `client` for all of them, and `mutex` for the lock as a library.

pub mod name;
pub mod url;
pub mod reply;
pub mod tally;
pub mod lease;
mod plain;
pub mod script;
pub mod error;
pub mod node;
pub mod client;
pub mod mutex;

pub use mutex::{LockHolder, Mutex, MutexError, Options, Redsync};
