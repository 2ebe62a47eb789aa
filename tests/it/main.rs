//! Real servers, real sockets, the real binary: one test binary, so that it links once.
//!
//! Where a test belongs:
//! * `harness`: the harness itself, the judge of overlap first;
//! * `scripts`: protocol section 3, on each kind of server;
//! * `version_skew`: the forms of released versions, and replicas of two versions together;
//! * `rules_14_16`: clean-up and connections, through a proxy that holds a message;
//! * `redsync_*`: the lock as a library, also beside go-redsync and other crates;
//! * `wake_up`: a release that is told while a round is under way;
//! * `nodes`: how a node is reached, and what each fault of it is called;
//! * `failed_acquires`, `losses`, `widening`, `forgetting`, `leaving`, `resets`, `stalls_alone`, `soak_alone`: cases
//!   from the field, by what goes wrong in them;
//! * `regressions`: what went wrong once, named for it;
//! * `doctor`, `doctor_refusals`, `doctor_clocks`: what is found on a node, and what is said of it;
//! * `tools`: the sub-commands that speak to no node;
//! * `status`: what a person and a script see, `wait` included;
//! * `demo`: the demonstration, what it tells and what it leaves behind;
//! * `rights`: the ACL line of README on real servers;
//! * `one_node_down`, `majority_down_alone`, `stopped_leader`: what a fault does to a leadership;
//! * `forgetful_nodes`, `tokens`: random schedules of faults, judged by all logs;
//! * `candidates`: the tool of the modules above;
//! * `election_alone`, `crowd_alone`, `cost_alone`: how soon somebody leads, among three and among a hundred, and what
//!   waiting costs; beside go-redsync;
//! * `gaps_alone`: how long nobody leads, beside the formulae of docs/failure-modes.md;
//! * `go_redsync`: exclusion with the real go-redsync, both ways;
//! * `startup`: what start-up makes of nodes that cannot vote, and of lists and identities;
//! * `config`: what is refused before any node is asked, passwords in every form, and where secrets must not appear;
//! * `tls`: encrypted and other ways to the nodes, and secrets that are rotated;
//! * `endpoints`: every path of HTTP and control in every state, their limits, and the commands that use them;
//! * `readiness`: what is told while the election hangs, stands still or hears nonsense;
//! * `prometheus_scrapes`: a real Prometheus;
//! * `surfaces`: the closed lists of the contract with users;
//! * `cases`: `tests/cases.toml` against the tests that exist.
//!
//! A module whose name ends in `_alone` measures time: `make test` runs it with nothing beside it.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may panic and print, and nothing here is anyone's API"
)]

mod asker;
mod candidates;
mod middleman;
mod locker;
mod support;

mod cases;
mod config;
mod cost_alone;
mod crowd_alone;
mod demo;
mod election_alone;
mod doctor;
mod doctor_clocks;
mod doctor_refusals;
mod endpoints;
mod failed_acquires;
mod forgetful_nodes;
mod forgetting;
mod gaps_alone;
mod go_redsync;
mod harness;
mod leaving;
mod losses;
mod majority_down_alone;
mod nodes;
mod one_node_down;
mod regressions;
mod resets;
mod prometheus_scrapes;
mod readiness;
mod rights;
mod redsync_errors;
mod redsync_go;
mod redsync_mutex;
mod redsync_options;
mod redsync_peers_alone;
mod redsync_retries_alone;
mod rules_14_16;
mod scripts;
mod soak_alone;
mod stalls_alone;
mod startup;
mod status;
mod stopped_leader;
mod surfaces;
mod tls;
mod tokens;
mod tools;
mod version_skew;
mod wake_up;
mod widening;
