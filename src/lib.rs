//! Leader election over a quorum of independent Redis or Valkey nodes.
//!
//! # Promise and limits
//!
//! At any instant at most one replica believes that it leads, and each belief ends by itself at a deadline that the
//! replica computes from its own boot clock, whatever else hangs. This holds for replicas that are all redleader with
//! the same list of nodes (or lists that differ by one node), while
//! * clocks of nodes and replicas run at rates that differ by less than the clock margin allows,
//! * no node's wall clock is stepped forward while its vote counts,
//! * no address is served by an older process or a second copy of a node's data, and
//! * no machine is frozen or copied together with its clock.
//!
//! Nodes may restart, forget and be flushed at will: a node that may have forgotten a grant has no vote for as long as
//! that grant can last. What nobody can promise from outside is that a paused process does not act late; the fencing
//! token of each leadership, larger than all before it, is for whatever the leader writes to. Beside a contender that
//! speaks plain Redsync the promise is Redsync's. `docs/protocol.md` has the rules, by number, and the argument.
//!
//! # A first program
//!
//! The binary elects a leader beside an app; a Rust program can also take a lock by itself. This is the whole of
//! `examples/basic_lock.rs`. [`Redsync::try_lock`](redsync::Redsync::try_lock) is for work that may outlast the key's
//! expiry, and [`redsync::mutex`] says which lock is for what, and what it promises.
//!
#![doc = concat!("```no_run\n", include_str!("../examples/basic_lock.rs"), "```")]
//!
//! For an election with its promise, and a token for what the leader writes, there is
//! [`election::Elector`]: it runs a piece of work on whichever replica leads.
//!
//! For other programs are [`redsync::Redsync`], [`redsync::Mutex`], [`redsync::LockHolder`], [`redsync::Options`] and
//! [`redsync::MutexError`], with what their signatures name: they follow semantic versioning, and show no type of the
//! crates beneath. So do [`election::Elector`], its builder and its error, with [`election::timing::Wish`]. All other modules are parts of the binary, public for its tests, and may change in any release.
//!
//! # Overview
//!
//! ```text
//! arguments, environment
//!        │
//!       cli ──► config ──► app, which builds and ends all parts
//!                           │
//!    redsync::client ──Reply──► election::core ──► Leadership ──► watch ─┬► http ──► /readyz /leader /metrics
//!          ▲                      (pure)                                      │
//!          └────────Ask─────── election::driver ◄──────Request────────────────┘ control, signals
//! ```
//!
//! The seam between decisions and IO is a value, not a trait. Whoever wants to know who leads holds a watch of a value
//! with a deadline in it, and compares that deadline with the clock at the time of each question.
//!
//! # Words
//!
//! Code, logs, metrics and documents use one word for each thing.
//!
//! | word | is |
//! |---|---|
//! | node | one independent server with one vote |
//! | quorum | more than half of the nodes that are configured, whether they can be reached or not |
//! | lock | what is held: a key on every node, named as the user names it |
//! | owner | the key's value: the identity of whoever asked, and a nonce that is new in each attempt |
//! | identity | who a replica is, for people |
//! | candidate, standby, leader | a replica that takes part, that does not hold the lock, that holds it validly |
//! | round | one operation sent to all nodes, with its replies |
//! | vote | a node's grant, as far as it counts |
//! | ttl | how long a key lasts on a node if nobody extends it |
//! | lease | until when one node surely blocks everyone else |
//! | deadline | until when a replica may believe that it leads: the quorum-th largest lease |
//! | token | the number of a leadership, which only grows |
//! | step down | to stop leading; to *resign* is to do so on request |
//! | attempt | all that is asked under one owner value, until it wins or is given up |
//! | marker | a node's note of which run of the server has known a lock, and since when |
//! | quarantine | the time in which a node's vote does not count because the marker is too young |
//! | look | a standby's question: who holds, and for how long? |
//! | grace | the last part of a leadership, kept for the work to end in |
//!
//! # Where to read what
//!
//! In this order; each module's own documentation says more.
//!
//! | file | holds |
//! |---|---|
//! | `clock`, `wall` | the boot clock that leadership is measured on; wall time, for people |
//! | `redsync/name`, `redsync/url` | what locks, replicas and nodes may be called; secrets |
//! | `redsync/reply` | the values between the core and the nodes; kinds of answers that are no votes |
//! | `redsync/tally`, `redsync/lease` | pure: what replies add up to; leases and the deadline |
//! | `redsync/script`, `redsync/*.lua` | what a node does in one atomic step |
//! | `redsync/error` | which kind an error of a server or a connection is |
//! | `redsync/node`, `redsync/node/*` | one node: dialling, TLS, first words, its connections, wake-ups |
//! | `redsync/client` | all nodes together |
//! | `redsync/mutex`, `redsync/mutex/*`, `redsync/plain`, `redsync/plain_*` | Redsync itself, for Rust programs; its steps |
//! | `election/leadership`, `election/event`, `election/request` | what comes out of an election, what may be asked of it |
//! | `election/timing` | the numbers, checked against each other |
//! | `election/evidence` | what is known of one node, and whether its reply counts |
//! | `election/core/*` | pure: the decisions of a standby, an attempt and a leader |
//! | `election/history` | the last changes, for people |
//! | `election/driver`, `election/watch`, `election/thread` | the only loop; the reader's half; the thread it runs on |
//! | `election/elector`, `election/elector/*` | an election within a Rust program |
//! | `kubernetes/*` | leadership told to Kubernetes: label, condition, Lease, Events; rights |
//! | `metrics`, `metrics/definition` | every metric |
//! | `http/*` | probes, report, stream, control; the server and its limits |
//! | `app_ready`, `app_ready/*` | the app's health as a condition of leadership; its three kinds of checks |
//! | `leadership_file` | the report in a file |
//! | `exec/*` | work that runs only while we lead: the wrapper's policy, the guardian, the ladder |
//! | `command/*` | `status`, `doctor`, `wait`, `resign`, `drain`, `demo`, `install`, `completions`; a process tied to its parent |
//! | `cli`, `cli/*`, `config`, `config/*` | flags and variables; parsing and checking, all faults at once |
//! | `log`, `app`, `main` | the log's form; the wiring; exit codes |
//! | `tests/it`, `tests/tidy`, `tests/readme` | the real binary on real servers; house rules; README against the program |
//! | `tests/faults` | the real binary on real servers under random faults, drawn from seeds |
//!
//! The rules of the protocol, which code and `docs/protocol.md` quote by number:
//!
//! | rules | in |
//! |---|---|
//! | 1 | `redsync/reply.rs`, `redsync/prelude.lua` |
//! | 2, 3 | `redsync/prelude.lua` |
//! | 4 | `redsync/prelude.lua`, `redsync/acquire.lua` |
//! | 5 | `redsync/extend.lua` |
//! | 6 | `redsync/release.lua` |
//! | 7 | `redsync/look.lua` |
//! | 8, 11, 14, 18, 19 | `election/core/attempt.rs` |
//! | 9 | `election/evidence.rs` |
//! | 10 | `redsync/lease.rs` |
//! | 12 | `election/core/leading.rs` |
//! | 13 | `election/core/leading.rs`, `election/driver.rs` |
//! | 15 | `redsync/node.rs` |
//! | 16 | `redsync/node.rs`, `redsync/node/connection.rs` |
//! | 17, 20 | `election/core/standby.rs` |
//! | 21 | `election/timing.rs` |
//! | 23 | `redsync/script.rs`, `command/doctor/change.rs` |
//! | 22, 24 | no code: what whoever changes a ttl or restarts nodes keeps to, in `docs/tuning.md` |
//!
//! ARCHITECTURE.md has the invariants, and how to add a flag, a metric or a kind.

pub mod clock;
pub mod wall;
pub mod redsync;
pub mod election;
pub mod kubernetes;
pub mod metrics;
pub mod http;
pub mod app_ready;
pub mod leadership_file;
pub mod exec;
pub mod command;
pub mod cli;
pub mod config;
pub mod log;
pub mod app;
