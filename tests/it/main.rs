//! Real servers, real sockets, the real binary: one test binary, so that it links once.
//!
//! Where a test belongs:
//! * `harness`: the harness itself, the judge of overlap first;
//! * `scripts`: protocol rules 1 to 7, on each kind of server;
//! * `scripts_as_simulated`: what the simulator takes a node for, beside each kind of server;
//! * `version_skew`: the forms of released versions, and replicas of two versions together;
//! * `rules_14_16`: clean-up and connections, through a proxy that holds a message;
//! * `redsync_*`: the lock as a library, also beside go-redsync and other crates;
//! * `wake_up`: a release that is told while a round is under way;
//! * `nodes`: how a node is reached, and what each fault of it is called;
//! * `failed_acquires`, `losses`, `widening`, `forgetting`, `leaving`, `resets`, `stalls_alone`, `soak_alone`: cases
//!   from the field, by what goes wrong in them;
//! * `terms`, `connections`, `silent_flows`, `mass_alone`: more of them: how terms begin and end, how many connections
//!   are held, flows on which packets vanish, and fifty candidates at once;
//! * `own_clocks`, `node_clocks`: clocks of replicas and of nodes that are set, stepped or stand still;
//! * `addresses`: addresses of nodes that come to lead elsewhere;
//! * `unlike`: replicas with other lists, other ttls, or of another kind;
//! * `imitated`: servers and proxies that lack something, and how a lock goes on there;
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
//! * `app_ready`, `leadership_file`: the app's health as a condition, and the report in a file;
//! * `elector`, `fencing`: an election within a Rust program, and the examples of leaders whose late writes are refused;
//! * `witness`: the tool of the modules below: work that can be judged;
//! * `wrapped`, `outliving`, `wrapper_ends`, `wrapper_schedules`, `wrapper_page`, `wrapper_places`, `wrapper_alone`: a
//!   child's contract, what may outlive what, the order and the bound of an end, random schedules of faults, the page
//!   for people, pasted, under systemd and in a container, and what all that costs;
//! * `planted`: bugs that a driver can have, in a copy of the product;
//! * `outside`: whatever a node, a person or a client of HTTP may send, at random;
//! * `go_redsync`: exclusion with the real go-redsync, both ways;
//! * `start_order`: nodes that come long after their contenders, and that go at once again;
//! * `startup`: what start-up makes of nodes that cannot vote, and of lists and identities;
//! * `config`: what is refused before any node is asked, passwords in every form, and where secrets must not appear;
//! * `tls`: encrypted and other ways to the nodes, and secrets that are rotated;
//! * `endpoints`: every path of HTTP and control in every state, their limits, and the commands that use them;
//! * `readiness`: what is told while the election hangs, stands still or hears nonsense;
//! * `prometheus_scrapes`: a real Prometheus;
//! * `prometheus_rules`: the alerts, over stories told in samples;
//! * `prometheus_story`: every query of dashboards and rules, put to a Prometheus that saw faults;
//! * `page_chromium`: the status page in a real browser;
//! * `dashboards`: dashboards, rules and runbooks as files;
//! * `surfaces`: the closed lists of the contract with users;
//! * `kubernetes`, `kubernetes_outages`, `kubernetes_access`: what is published in Kubernetes, on a fake API server that
//!   pods reach as they reach the real one;
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
mod witness;
mod support;

mod addresses;
mod app_ready;
mod cases;
mod config;
mod connections;
mod cost_alone;
mod crowd_alone;
mod dashboards;
mod demo;
mod election_alone;
mod elector;
mod doctor;
mod doctor_clocks;
mod doctor_refusals;
mod endpoints;
mod failed_acquires;
mod fencing;
mod forgetful_nodes;
mod forgetting;
mod gaps_alone;
mod go_redsync;
mod harness;
mod imitated;
mod kubernetes;
mod kubernetes_access;
mod kubernetes_outages;
mod leadership_file;
mod leaving;
mod losses;
mod majority_down_alone;
mod mass_alone;
mod node_clocks;
mod nodes;
mod one_node_down;
mod own_clocks;
mod outliving;
mod outside;
mod regressions;
mod resets;
mod planted;
mod page_chromium;
mod prometheus_rules;
mod prometheus_scrapes;
mod prometheus_story;
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
mod scripts_as_simulated;
mod silent_flows;
mod soak_alone;
mod stalls_alone;
mod start_order;
mod startup;
mod status;
mod stopped_leader;
mod surfaces;
mod terms;
mod tls;
mod tokens;
mod tools;
mod unlike;
mod version_skew;
mod wake_up;
mod widening;
mod wrapped;
mod wrapper_alone;
mod wrapper_ends;
mod wrapper_page;
mod wrapper_places;
mod wrapper_schedules;
