//! What `doctor` prints: a page for a terminal of 80 columns, or one JSON object. Pure.

use std::fmt::Write as _;

use serde::Serialize;

use crate::clock;
use crate::command::doctor::finding::{Finding, Severity};
use crate::command::doctor::{Examined, Report};
use crate::command::status::{label, wrap};
use crate::election::timing::{Percent, Short, Timing};
use crate::redsync::node::probe::Properties;
use crate::redsync::reply::quorum;

/// Room for a node's name beside its numbers.
const NAME_WIDTH: usize = 29;
const WIDTH: usize = 80;

pub(super) fn text(report: &Report<'_>) -> String {
    let mut out = String::new();
    label(&mut out, "lock", report.target.lock.as_str());
    let count = report.nodes.len();
    let (required, tolerated) = (quorum(count), count - quorum(count));
    label(&mut out, "quorum", &format!("{required} of {count} nodes; {tolerated} may fail"));
    for (name, line) in timing(&report.target.timing) {
        label(&mut out, name, &line);
    }
    if let Some(change) = &report.change {
        let verdict = if change.is_safe() { "safe, one roll of all replicas" } else { "refused" };
        label(&mut out, "next", &format!("{change}: {} in all ({verdict})", change.nodes));
    }
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(out, "\n{:NAME_WIDTH$} {:<14} {:>9} {:>11} {:>11}", "NODE", "SERVER", "LATENCY", "CLOCK", "RATE");
    for node in &report.nodes {
        line(&mut out, node);
    }
    if report.nodes.iter().all(|node| node.clock.is_none_or(|clock| clock.rate.is_none())) {
        wrap(&mut out, "", "", "Rates were not measured: that takes a longer --for (default 30s).");
    }
    let _ = writeln!(out);
    for finding in &report.findings {
        tell(&mut out, finding, count);
    }
    let of = |severity| report.findings.iter().filter(|finding| finding.severity == severity).count();
    let (refused, warnings) = (of(Severity::Refused), of(Severity::Warning));
    let _ = match (refused, warnings) {
        (0, 0) => writeln!(out, "All well."),
        (0, 1) => writeln!(out, "It works, with 1 warning."),
        (0, _) => writeln!(out, "It works, with {warnings} warnings."),
        (_, _) => writeln!(out, "Not fit as it is: {refused} refused, {warnings} warned about."),
    };
    out
}

/// The relations of protocol rule 21 with their numbers. A configuration that breaks one does not come this far.
fn timing(timing: &Timing) -> Vec<(&'static str, String)> {
    let (ttl, margin) = (Short(timing.ttl()), Percent(timing.margin_permille()));
    let (renew, node, grace) = (Short(timing.renew()), Short(timing.node_timeout()), Short(timing.grace()));
    let sum = Short(timing.renew() + timing.node_timeout() * 2);
    let limit = Short(timing.validity().saturating_sub(timing.grace()));
    let least = timing.ttl() * (1000 + timing.margin_permille()) / 1000;
    let validity = Short(timing.validity());
    vec![
        ("lease", format!("ttl {ttl} x (1 - {margin}) = {validity}; work stops {grace} (grace) before its end")),
        ("renew", format!("{renew} + 2 x {node} (node timeout) = {sum} < {validity} - {grace} = {limit}")),
        (
            "forget",
            format!("quarantine {} >= ttl {ttl} x (1 + {margin}) = {}", Short(timing.quarantine()), Short(least)),
        ),
    ]
}

fn line(out: &mut String, node: &Examined) {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let info = node.facts.as_ref().ok().and_then(|facts| facts.info.as_ref().ok());
    let server = or_dash(info.and_then(server));
    let latency = or_dash(node.clock.map(|clock| millis(clock.round_trip)));
    let offset = or_dash(node.clock.map(|clock| signed_seconds(clock.beside_others)));
    let rate = or_dash(node.clock.and_then(|clock| clock.rate).map(|(rate, _)| signed_percent(rate)));
    if node.name.chars().count() > NAME_WIDTH {
        let _ = writeln!(out, "{}", node.name);
        let _ = write!(out, "{:NAME_WIDTH$}", "");
    } else {
        let _ = write!(out, "{:NAME_WIDTH$}", node.name);
    }
    let _ = writeln!(out, " {server:<14} {latency:>9} {offset:>11} {rate:>11}");
}

/// `redis 7.0.15`, `valkey 9.1.2`.
fn server(info: &Properties) -> Option<String> {
    let (name, version) = match (info.text("valkey_version"), info.text("redis_version")) {
        ("", version) => ("redis", version),
        (version, _) => ("valkey", version),
    };
    // What a server says of itself is shown, and must not break the page.
    let is_version = !version.is_empty() && version.len() <= 12 && version.bytes().all(|b| b.is_ascii_graphic());
    is_version.then(|| format!("{name} {version}"))
}

fn tell(out: &mut String, finding: &Finding, count: usize) {
    let wide = match finding.nodes.len() {
        0 => String::new(),
        all if all == count && count > 1 => "all nodes: ".to_owned(),
        _ => format!("{}: ", finding.nodes.join(", ")),
    };
    let word = match finding.severity {
        Severity::Refused => "REFUSED  ",
        Severity::Warning => "WARNING  ",
    };
    let line = format!("{wide}{}; {}; {}.", printable(&finding.what), finding.cost, finding.remedy);
    wrap(out, word, "  ", &line);
    if let Some(acl) = &finding.acl {
        shell(out, acl);
    }
    let _ = writeln!(out);
}

/// A command to be copied into a shell: lines that end in a backslash go on.
fn shell(out: &mut String, words: &[String]) {
    let mut line = "    redis-cli".to_owned();
    for word in words {
        let word = if word.bytes().all(|b| b.is_ascii_alphanumeric() || b"+:._-/".contains(&b)) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        };
        if line.chars().count() + word.chars().count() + 3 > WIDTH {
            let _ = writeln!(out, "{line} \\");
            "     ".clone_into(&mut line);
        }
        line.push(' ');
        line.push_str(&word);
    }
    let _ = writeln!(out, "{line}");
}

/// A server's words, without what would move a terminal's cursor.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A rate for people: `+2.00 %`.
pub(super) fn signed_percent(millionths: i64) -> String {
    let hundredths = (millionths.unsigned_abs() + 50) / 100;
    let sign = if millionths < 0 && hundredths > 0 { '-' } else { '+' };
    format!("{sign}{}.{:02} %", hundredths / 100, hundredths % 100)
}

/// A difference of clocks for people: `+0.4 ms`, `-10.000 s`.
pub(super) fn signed_seconds(micros: i64) -> String {
    let sign = if micros <= -100 { '-' } else { '+' };
    let micros = micros.unsigned_abs();
    if micros < 1_000_000 {
        return format!("{sign}{}.{} ms", micros / 1000, micros % 1000 / 100);
    }
    let millis = micros / 1000;
    format!("{sign}{}.{:03} s", millis / 1000, millis % 1000)
}

fn millis(micros: u64) -> String {
    format!("{}.{} ms", micros / 1000, micros % 1000 / 100)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Page<'a> {
    schema: u32,
    lock: &'a str,
    well: bool,
    refused: bool,
    quorum: Quorum,
    timing: Numbers,
    measured_ms: u64,
    next: Option<Next<'a>>,
    nodes: Vec<Node<'a>>,
    findings: Vec<Told<'a>>,
}

#[derive(Serialize)]
struct Quorum {
    required: usize,
    nodes: usize,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Numbers {
    ttl_ms: u64,
    clock_margin_percent: f64,
    lease_ms: u64,
    renew_every_ms: u64,
    node_timeout_ms: u64,
    grace_ms: u64,
    quarantine_ms: u64,
}

#[derive(Serialize)]
struct Next<'a> {
    safe: bool,
    added: &'a [String],
    removed: &'a [String],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Node<'a> {
    node: &'a str,
    up: bool,
    server: Option<String>,
    user: Option<&'a str>,
    latency_ms: Option<f64>,
    clock_offset_ms: Option<f64>,
    clock_offset_error_ms: Option<f64>,
    clock_rate_percent: Option<f64>,
    clock_rate_error_percent: Option<f64>,
    clock_step_ms: Option<f64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Told<'a> {
    severity: &'static str,
    problem: &'static str,
    nodes: &'a [String],
    what: &'a str,
    cost: &'static str,
    remedy: &'a str,
    acl: Option<&'a [String]>,
}

pub(super) fn json(report: &Report<'_>) -> String {
    let timing = &report.target.timing;
    let page = Page {
        schema: 1,
        lock: report.target.lock.as_str(),
        well: report.findings.is_empty(),
        refused: report.findings.iter().any(|finding| finding.severity == Severity::Refused),
        quorum: Quorum { required: quorum(report.nodes.len()), nodes: report.nodes.len() },
        timing: Numbers {
            ttl_ms: clock::millis(timing.ttl()),
            clock_margin_percent: f64::from(timing.margin_permille()) / 10.0,
            lease_ms: clock::millis(timing.validity()),
            renew_every_ms: clock::millis(timing.renew()),
            node_timeout_ms: clock::millis(timing.node_timeout()),
            grace_ms: clock::millis(timing.grace()),
            quarantine_ms: clock::millis(timing.quarantine()),
        },
        measured_ms: clock::millis(report.measured),
        next: report.change.as_ref().map(|change| Next {
            safe: change.is_safe(),
            added: &change.added,
            removed: &change.removed,
        }),
        nodes: report.nodes.iter().map(node).collect(),
        findings: report.findings.iter().map(told).collect(),
    };
    serde_json::to_string(&page).expect("structs with text keys always have a JSON form")
}

fn node(node: &Examined) -> Node<'_> {
    let facts = node.facts.as_ref().ok();
    let clock = node.clock;
    let thousandth = |millionths: i64, unit: f64| exact(millionths) / unit;
    Node {
        node: &node.name,
        up: facts.is_some(),
        server: facts.and_then(|facts| facts.info.as_ref().ok()).and_then(server),
        user: facts.map(|facts| facts.user.as_str()),
        latency_ms: clock.map(|clock| exact(i64::try_from(clock.round_trip).unwrap_or(i64::MAX)) / 1000.0),
        clock_offset_ms: clock.map(|clock| thousandth(clock.beside_others, 1000.0)),
        clock_offset_error_ms: clock.map(|clock| thousandth(clock.offset_error(), 1000.0)),
        clock_rate_percent: clock.and_then(|clock| clock.rate).map(|(rate, _)| thousandth(rate, 10_000.0)),
        clock_rate_error_percent: clock.and_then(|clock| clock.rate).map(|(_, error)| thousandth(error, 10_000.0)),
        clock_step_ms: clock.filter(|clock| clock.stepped != 0).map(|clock| thousandth(clock.stepped, 1000.0)),
    }
}

/// For people and graphs: what a float loses of so many microseconds is none of their business.
#[expect(clippy::cast_precision_loss, reason = "rounded for display")]
fn exact(number: i64) -> f64 {
    number as f64
}

fn told(finding: &Finding) -> Told<'_> {
    Told {
        severity: finding.severity.as_str(),
        problem: finding.problem.as_str(),
        nodes: &finding.nodes,
        what: &finding.what,
        cost: finding.cost,
        remedy: &finding.remedy,
        acl: finding.acl.as_deref(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_told_in_the_unit_that_suits_them() {
        for (micros, expected) in [
            (0, "+0.0 ms"),
            (-450, "-0.4 ms"),
            (700_123, "+700.1 ms"),
            (10_000_400, "+10.000 s"),
            (-1_500_000, "-1.500 s"),
        ] {
            assert_eq!(signed_seconds(micros), expected);
        }
    }

    #[test]
    fn a_command_to_copy_fits_and_stays_whole() {
        let words = ["ACL", "SETUSER", "o'neil", "~{a b}:redleader", "+pubsub|numsub"].map(str::to_owned);
        let mut many = words.to_vec();
        many.extend((0..30).map(|number| format!("+command{number}")));
        let mut out = String::new();
        shell(&mut out, &many);
        assert!(
            out.starts_with("    redis-cli ACL SETUSER 'o'\\''neil' '~{a b}:redleader' '+pubsub|numsub' "),
            "{out}"
        );
        assert!(out.lines().all(|line| line.chars().count() <= WIDTH), "{out}");
        let lines: Vec<&str> = out.lines().collect();
        assert!(lines[..lines.len() - 1].iter().all(|line| line.ends_with('\\')), "{out}");
    }
}
