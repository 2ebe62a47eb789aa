//! What is wrong, out of what the nodes said: refusals and warnings. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use crate::clock::{micros, millis};
use crate::command::doctor::Examined;
use crate::command::doctor::clock::Clock;
use crate::command::doctor::finding::{Finding, Problem};
use crate::command::doctor::page::{signed_percent, signed_seconds};
use crate::config::Target;
use crate::election::timing::{Percent, Short, Timing};
use crate::redsync::error::Failure;
use crate::redsync::name::LockName;
use crate::redsync::node::NodeSettings;
use crate::redsync::node::probe::{Facts, Properties};
use crate::redsync::reply::{Answer, Kind, Verdict, quorum};
use crate::redsync::script::fingerprint;

/// A clock that is this far off is worth a look whatever the quarantine is.
const OFFSET_MOST: Duration = Duration::from_millis(500);

/// Everything that is wrong, node by node, then with the set.
pub(super) fn judge(target: &Target, nodes: &[Examined]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (node, settings) in nodes.iter().zip(&target.nodes) {
        let mut judge = Judge { node: &node.name, target, settings, findings: Vec::new() };
        match &node.facts {
            Err(failure) => judge.void(failure.kind, failure.text.clone()),
            Ok(facts) => judge.look_at(facts, node.may_subscribe),
        }
        if let Some(clock) = &node.clock {
            judge.clock(clock);
        }
        findings.append(&mut judge.findings);
    }
    same_server(nodes, &mut findings);
    set(nodes, &mut findings);
    findings
}

/// One node's judge.
struct Judge<'a> {
    node: &'a str,
    target: &'a Target,
    settings: &'a NodeSettings,
    findings: Vec<Finding>,
}

impl Judge<'_> {
    fn find(&mut self, problem: Problem, what: impl Into<String>) {
        self.findings.push(Finding::at(self.node, problem, what));
    }

    /// Its vote is void; of each kind the first word is the best.
    fn void(&mut self, kind: Kind, what: impl Into<String>) {
        if self.findings.iter().all(|finding| finding.problem != Problem::Void(kind)) {
            self.find(Problem::Void(kind), what);
        }
    }

    fn look_at(&mut self, facts: &Facts, may_subscribe: bool) {
        match &facts.info {
            Ok(info) => self.server(info, facts),
            Err(failure) => self.failed(failure, facts),
        }
        if facts.is_spread {
            self.void(Kind::NoRunId, "INFO gives different run_ids on one connection: a proxy spreads commands");
        }
        if let Err(failure) = &facts.scripts {
            self.failed(failure, facts);
        }
        if !facts.denied.is_empty() {
            self.rights(facts, &format!("user {} may not use {}", facts.user, facts.denied.join(", ")));
        }
        match &facts.seen {
            Ok(seen) => self.lock(seen, facts),
            Err(failure) if failure.kind == Kind::Wrongtype => self.wrong_type(facts),
            // Where scripts are not to be had at all, that is the fault.
            Err(failure) if facts.scripts.is_ok() => self.failed(failure, facts),
            Err(_) => {}
        }
        for refusal in &facts.refusals {
            if refusal.kind == Kind::Oom {
                self.find(Problem::Memory, "its memory is full: it refuses writes");
            } else {
                self.void(refusal.kind, refusal.text.clone());
            }
        }
        if let Ok(info) = &facts.info {
            self.settings(info, facts);
        }
        // Where scripts are not to be had at all, that is the fault.
        if facts.scripts.is_ok() && !facts.may_name_scripts {
            self.find(Problem::Evalsha, "EVALSHA is denied or unknown: every script is sent whole");
        }
        if facts.scripts.is_ok() && !(facts.may_publish && may_subscribe) {
            let channel = self.target.lock.channel();
            self.find(Problem::Channel, format!("user {} may not use the channel {channel}", facts.user));
        }
    }

    fn failed(&mut self, failure: &Failure, facts: &Facts) {
        if failure.kind == Kind::Noperm {
            return self.rights(facts, &format!("user {}: {}", facts.user, failure.text));
        }
        self.void(failure.kind, failure.text.clone());
    }

    fn rights(&mut self, facts: &Facts, what: &str) {
        self.void(Kind::Noperm, what);
        let acl = acl(&facts.user, self.target, self.settings, facts);
        let is_it = |finding: &&mut Finding| finding.problem == Problem::Void(Kind::Noperm);
        if let Some(finding) = self.findings.iter_mut().find(is_it) {
            finding.acl = Some(acl);
        }
    }

    /// What the server is.
    fn server(&mut self, info: &Properties, facts: &Facts) {
        let role = info.text("role");
        if !role.is_empty() && role != "master" {
            let of = format!("{}:{}", info.text("master_host"), info.text("master_port"));
            let of = if of == ":" { String::new() } else { format!(" of {of}") };
            self.void(Kind::Readonly, format!("its role is {role}{of}: not a primary"));
        }
        let version = info.text("redis_version");
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if major.is_some_and(|major| major < 5) {
            self.void(Kind::Unsupported, format!("its version is {version}"));
        }
        if info.text("run_id").is_empty() {
            self.void(Kind::NoRunId, "INFO gives no run_id");
        }
        if let Some(shards) = facts.cluster.as_ref().map(|cluster| cluster.number("cluster_size"))
            && shards > 1
        {
            self.void(Kind::Moved, format!("it is one of {shards} shards of a cluster"));
        }
    }

    /// What works and is not as it should be.
    fn settings(&mut self, info: &Properties, facts: &Facts) {
        let (limit, policy) = (info.number("maxmemory"), info.text("maxmemory_policy"));
        if limit > 0 && !policy.is_empty() && policy != "noeviction" {
            self.find(Problem::Eviction, format!("maxmemory-policy is {policy}, with a limit set"));
        }
        // A replica's own count is not of the ones that could take its place here.
        let replicas = info.number("connected_slaves");
        // INFO has the count of good replicas only where a least number of them is set.
        if replicas > 0 && info.text("role") == "master" && info.text("min_slaves_good_slaves").is_empty() {
            let s = if replicas == 1 { "" } else { "s" };
            self.find(Problem::Replicas, format!("{replicas} replica{s} attached without min-replicas-to-write"));
        }
        if info.text("aof_enabled") == "0" {
            self.find(Problem::AppendOnly, "appendonly is no");
        }
        if facts.scripts.as_ref().is_ok_and(|may_ask_info| !may_ask_info) && !info.text("run_id").is_empty() {
            self.find(Problem::ScriptInfo, "INFO is denied in scripts, and answered outside of them");
        }
    }

    fn wrong_type(&mut self, facts: &Facts) {
        let [lock, state] = &facts.types;
        let is_state = facts.state.as_ref().is_err_and(|failure| failure.kind == Kind::Wrongtype);
        let (key, found) = match is_state {
            true => (self.target.lock.state_key(), state),
            false => (self.target.lock.as_str().to_owned(), lock),
        };
        let found = found.as_ref().map_or_else(|| "another type".to_owned(), |found| format!("type {found}"));
        self.void(Kind::Wrongtype, format!("the key {key} exists with {found}"));
    }

    /// What the lock is there.
    fn lock(&mut self, seen: &Answer, facts: &Facts) {
        let no_state = Properties::default();
        let state = facts.state.as_ref().unwrap_or(&no_state);
        if seen.verdict == Verdict::Newer {
            let (key, v) = (self.target.lock.state_key(), state.text("v"));
            return self.void(Kind::NewerState, format!("{key} was written in version {v}, this one reads 1"));
        }
        let is_held = seen.verdict == Verdict::Seen;
        if is_held && seen.left.is_none() {
            self.find(Problem::NoExpiry, format!("the lock key {} has no expiry", self.target.lock));
        }
        let holder = seen.owner.as_ref().filter(|_| is_held);
        let identity = holder.and_then(|holder| holder.identity());
        if holder.is_some() && identity.is_none() {
            self.find(Problem::Foreign, format!("the lock key {} is held by a foreign owner", self.target.lock));
        }
        self.holder(seen.ttl, identity, state);
        if seen.quarantined {
            let left = quarantine_left(&self.target.timing, seen, state, facts);
            self.find(
                Problem::Quarantined,
                match left {
                    Some(left) => format!("in quarantine for {} more", Short(left)),
                    None => format!("new to this lock: in quarantine for {} from the first look", {
                        Short(self.target.timing.quarantine())
                    }),
                },
            );
        }
    }

    /// Whether the last holder worked with our numbers and our list.
    fn holder(&mut self, ttl: Duration, identity: Option<&str>, state: &Properties) {
        let timing = &self.target.timing;
        let who = identity.unwrap_or("the last holder");
        let least = ttl * (1000 + timing.margin_permille()) / 1000;
        if timing.quarantine() < least {
            self.find(
                Problem::Quarantine,
                format!(
                    "--quarantine {} is below {} = (1 + {}) x the ttl {} of {who}",
                    Short(timing.quarantine()),
                    Short(least),
                    Percent(timing.margin_permille()),
                    Short(ttl)
                ),
            );
        } else if identity.is_some() && !ttl.is_zero() && ttl != timing.ttl() {
            self.find(Problem::Ttl, format!("{who} has ttl {}, here it is {}", Short(ttl), Short(timing.ttl())));
        }
        let theirs = state.text("list");
        let ours = fingerprint(self.target.nodes.iter().map(|node| &node.url));
        if identity.is_some() && !theirs.is_empty() && theirs != ours {
            let set = |list: &str| list.split(',').map(str::to_owned).collect::<BTreeSet<_>>();
            let (theirs, ours) = (set(theirs), set(&ours));
            let (more, less) = (theirs.difference(&ours).count(), ours.difference(&theirs).count());
            let is_safe = if more + less <= 1 { "as a roll may" } else { "more than one roll may" };
            self.find(
                Problem::List,
                format!("{who} has another list: {more} not named here, {less} missing there: {is_safe}"),
            );
        }
    }

    fn clock(&mut self, clock: &Clock) {
        let quarantine = self.target.timing.quarantine();
        let (off, error) = (clock.beside_others, clock.offset_error());
        let is_beyond = |limit: Duration| off.unsigned_abs() > micros(limit) + error.unsigned_abs();
        let most = OFFSET_MOST.min(quarantine / 8);
        let what = |limit: Duration| {
            format!("its clock is {} from the nodes' median, more than {}", signed_seconds(off), Short(limit))
        };
        if is_beyond(quarantine / 2) {
            self.find(Problem::Void(Kind::Clock), what(quarantine / 2));
        } else if is_beyond(most) {
            self.find(Problem::ClockOffset, what(most));
        }
        if clock.stepped != 0 {
            self.find(Problem::ClockStep, format!("its clock stepped by {} meanwhile", signed_seconds(clock.stepped)));
        }
        // A quarter of the margin, in millionths.
        let limit = i64::from(self.target.timing.margin_permille()) * 1000 / 4;
        if let Some((rate, error)) = clock.rate
            && rate.abs() > limit + error
        {
            let (rate, limit) = (signed_percent(rate), signed_percent(limit));
            let limit = limit.trim_start_matches('+');
            self.find(Problem::ClockRate, format!("its clock runs {rate} beside ours, more than {limit} (margin/4)"));
        }
    }
}

/// How long until its vote counts; `None` if no replica has looked since it started, so that it has not begun.
fn quarantine_left(timing: &Timing, seen: &Answer, state: &Properties, facts: &Facts) -> Option<Duration> {
    let run = facts.info.as_ref().map(|info| info.text("run_id")).unwrap_or_default();
    let (born, now) = (state.number("born"), seen.time_us / 1000);
    if state.text("run") != run || born == 0 || born > now {
        return None;
    }
    let over = born + millis(timing.quarantine());
    // Tenths, so that what ends together is told together.
    Some(Duration::from_millis(over.saturating_sub(now).div_ceil(100) * 100))
}

/// One server at two addresses, or a primary and its replica.
fn same_server(nodes: &[Examined], findings: &mut Vec<Finding>) {
    let of = |node: &Examined, name: &str| {
        let info = node.facts.as_ref().ok().and_then(|facts| facts.info.as_ref().ok());
        info.map(|info| info.text(name).to_owned()).filter(|id| !id.is_empty())
    };
    for (index, node) in nodes.iter().enumerate() {
        for earlier in &nodes[..index] {
            let is_same = |name| of(node, name).is_some_and(|id| of(earlier, name) == Some(id));
            let what = if is_same("run_id") {
                format!("it is the same server as {} (equal run_id)", earlier.name)
            } else if is_same("master_replid") {
                format!("it shares its data with {} (equal master_replid)", earlier.name)
            } else {
                continue;
            };
            findings.push(Finding::at(&node.name, Problem::Void(Kind::SameNode), what));
            break;
        }
    }
}

/// What the nodes are together.
fn set(nodes: &[Examined], findings: &mut Vec<Finding>) {
    let count = nodes.len();
    let tolerated = count - quorum(count);
    if count < 3 {
        let s = if count == 1 { "" } else { "s" };
        findings.push(Finding::of_all(Problem::FewNodes, format!("{count} node{s}: no failure is tolerated")));
    } else if count.is_multiple_of(2) {
        let s = if tolerated == 1 { "" } else { "s" };
        let what = format!("{count} nodes tolerate {tolerated} failure{s}, as {} would", count - 1);
        findings.push(Finding::of_all(Problem::EvenNodes, what));
    }
    let addresses: Option<Vec<Option<IpAddr>>> =
        nodes.iter().map(|node| node.facts.as_ref().ok().map(|facts| facts.address)).collect();
    if let Some(addresses) = addresses.filter(|addresses| addresses.len() > 1)
        && addresses.iter().all(|address| *address == addresses[0])
    {
        let place = addresses[0].map_or_else(|| "this host".to_owned(), |address| address.to_string());
        findings.push(Finding::of_all(Problem::OneHost, format!("all nodes are on one host, {place}")));
    }
}

/// The rights that the lock needs, as the words of one command. They add to what the user has.
fn acl(user: &str, target: &Target, settings: &NodeSettings, facts: &Facts) -> Vec<String> {
    const COMMANDS: [&str; 13] = [
        "eval",
        "evalsha",
        "info",
        "time",
        "get",
        "set",
        "del",
        "pexpire",
        "pttl",
        "hmget",
        "hset",
        "publish",
        "subscribe",
    ];
    let lock: &LockName = &target.lock;
    let no_info = Properties::default();
    let info = facts.info.as_ref().unwrap_or(&no_info);
    let mut words: Vec<String> = ["ACL", "SETUSER", user].map(str::to_owned).to_vec();
    words.push(format!("~{}", pattern(lock.as_str())));
    words.push(format!("~{}", pattern(&lock.state_key())));
    // Users have had channels since 6.2, where they begin with all of them, and none can be added to those.
    let version = info.text("redis_version");
    if version.starts_with("6.2.") || version.is_empty() {
        words.push("resetchannels".to_owned());
    }
    if !version.starts_with("6.0.") {
        words.push(format!("&{}", pattern(&lock.channel())));
    }
    words.extend(COMMANDS.map(|name| format!("+{name}")));
    words.push("+pubsub|numsub".to_owned());
    if settings.url.has_database() {
        words.push("+select".to_owned());
    }
    if info.text("cluster_enabled") == "1" {
        words.push("+cluster|info".to_owned());
    }
    words
}

/// A name as a pattern that matches it alone.
fn pattern(name: &str) -> String {
    let mut pattern = String::with_capacity(name.len());
    for c in name.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_told_in_hundredths_of_a_percent() {
        for (millionths, expected) in
            [(0, "+0.00 %"), (20_000, "+2.00 %"), (-12_345, "-1.23 %"), (49, "+0.00 %"), (-49, "+0.00 %")]
        {
            assert_eq!(signed_percent(millionths), expected);
        }
    }

    #[test]
    fn a_pattern_matches_its_name_alone() {
        assert_eq!(pattern(r"a*b?[c]\d{e}"), r"a\*b\?\[c\]\\d{e}");
    }
}
