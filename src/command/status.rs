//! `status`: who leads, and what each node says, for a person or a script.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::clock;
use crate::command::ask::Asker;
use crate::command::observe::{Observation, Seen, seconds};
use crate::command::{Exit, Said, control};
use crate::config::{Output, StatusConfig};
use crate::election::leadership::Vote;
use crate::http::ControlAddress;

/// Asks every node, and the redleader beside us if one answers.
pub async fn status(config: StatusConfig) -> Said {
    let said = if config.watch { watch(config).await } else { once(config).await };
    said.unwrap_or_else(|error| Said { text: format!("cannot ask the nodes: {error}"), exit: Exit::Failed })
}

async fn once(config: StatusConfig) -> io::Result<Said> {
    let StatusConfig { target, control, output, watch: _ } = config;
    let lock = target.lock.clone();
    let mut asker = Asker::start(target)?;
    let (seen, replica) = tokio::join!(asker.observe(None), replica(control.as_ref()));
    Ok(page(lock.as_str(), &seen?, replica, output))
}

/// A person sees changes as they come, and nodes hardly feel it.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Shows it again and again; ends when nobody reads it any more.
async fn watch(config: StatusConfig) -> io::Result<Said> {
    let StatusConfig { target, control, output, watch: _ } = config;
    let lock = target.lock.clone();
    let mut asker = Asker::start(target)?;
    loop {
        let next = clock::now() + WATCH_EVERY;
        let (seen, replica) = tokio::join!(asker.observe(None), replica(control.as_ref()));
        let said = page(lock.as_str(), &seen?, replica, output);
        let mut out = io::stdout();
        let clear = if out.is_terminal() { "\x1b[H\x1b[2J" } else { "" };
        let gap = if output == Output::Text && !out.is_terminal() { "\n" } else { "" };
        if write!(out, "{clear}{}\n{gap}", said.text.trim_end()).and_then(|()| out.flush()).is_err() {
            return Ok(Said { text: String::new(), exit: said.exit });
        }
        asker.pause(next).await?;
    }
}

/// What the redleader beside us says, if one answers.
async fn replica(control: Option<&ControlAddress>) -> Option<serde_json::Value> {
    control::leader(control?).await.ok()
}

fn page(lock: &str, seen: &Observation, replica: Option<serde_json::Value>, output: Output) -> Said {
    let text = match output {
        Output::Text => text(lock, seen, replica.as_ref()),
        Output::Json => json(lock, seen, replica),
    };
    Said { text, exit: if seen.is_well() { Exit::Well } else { Exit::NotWell } }
}

/// Since when the holder leads, as text: what the replica beside us knows of itself, else what the token tells.
fn since(seen: &Observation, replica: Option<&serde_json::Value>) -> Option<String> {
    let held = seen.holder()?;
    let field = |name| replica.and_then(|replica| replica.get(name)).and_then(serde_json::Value::as_str);
    if field("identity").is_some() && field("identity") == held.identity() && field("since").is_some() {
        return field("since").map(str::to_owned);
    }
    let since = Duration::from_micros(seen.since_us()?);
    Some(humantime::format_rfc3339_millis(SystemTime::UNIX_EPOCH + since).to_string())
}

/// What a terminal has at least.
const WIDTH: usize = 80;
/// Room for a node's name beside its numbers.
const NAME_WIDTH: usize = 38;

fn text(lock: &str, seen: &Observation, replica: Option<&serde_json::Value>) -> String {
    let mut out = String::new();
    label(&mut out, "lock", lock);
    label(&mut out, "leader", &seen.summary());
    if let Some(since) = since(seen, replica) {
        label(&mut out, "since", &since);
    }
    let quorum = format!("{} of {} nodes answer, {} required", seen.reachable(), seen.nodes.len(), seen.quorum());
    label(&mut out, "quorum", &quorum);
    if let Some(reason) = replica.and_then(|replica| replica.get("reason")).and_then(serde_json::Value::as_str) {
        let identity = replica.and_then(|replica| replica.get("identity")).and_then(serde_json::Value::as_str);
        label(&mut out, "here", &format!("{}: {reason}", identity.unwrap_or("?")));
    }
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(out, "\n{:NAME_WIDTH$} {:<12} {:>10} {:>10}", "NODE", "VOTE", "LEFT", "LATENCY");
    for node in &seen.nodes {
        line(&mut out, node);
    }
    out
}

pub(super) fn label(out: &mut String, name: &str, value: &str) {
    wrap(out, &format!("{name:<8}"), "        ", value);
}

fn line(out: &mut String, node: &Seen) {
    let has_time = matches!(node.vote, Vote::Held | Vote::Granted | Vote::Quarantined);
    let left = node.left.filter(|_| has_time).map_or_else(|| "-".to_owned(), seconds);
    let latency = node.latency.map_or_else(|| "-".to_owned(), |took| format!("{:.1} ms", took.as_secs_f64() * 1000.0));
    if node.node.chars().count() > NAME_WIDTH {
        let _ = writeln!(out, "{}", node.node);
        let _ = write!(out, "{:NAME_WIDTH$}", "");
    } else {
        let _ = write!(out, "{:NAME_WIDTH$}", node.node);
    }
    let _ = writeln!(out, " {:<12} {left:>10} {latency:>10}", node.vote.as_str());
    if let Some(owner) = &node.owner {
        wrap(out, "  ", "  ", &format!("for {}", owner.identity().unwrap_or("a holder that is not redleader")));
    }
    if let Some(advice) = node.advice() {
        wrap(out, "  ", "  ", &advice);
    }
}

/// Breaks lines between words, so that they fit a terminal; a longer word stays whole.
pub(super) fn wrap(out: &mut String, first: &str, indent: &str, value: &str) {
    let mut line = first.to_owned();
    let mut is_empty = true;
    for word in value.split(' ') {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(out, "{line}");
            indent.clone_into(&mut line);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    let _ = writeln!(out, "{line}");
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    schema: u32,
    lock: &'a str,
    holder: Option<String>,
    holder_kind: Option<&'static str>,
    token: Option<u64>,
    since: Option<String>,
    quorum: Quorum,
    nodes: Vec<Node<'a>>,
    replica: Option<serde_json::Value>,
}

/// Votes, as in `/leader`.
#[derive(Serialize)]
pub(super) struct Quorum {
    required: usize,
    reachable: usize,
}

impl Quorum {
    pub(super) fn of(seen: &Observation) -> Self {
        Self { required: seen.quorum(), reachable: seen.reachable() }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Node<'a> {
    node: &'a str,
    up: bool,
    vote: &'static str,
    lease_ms: u64,
    quarantine_ms: u64,
    latency_ms: Option<f64>,
    error: Option<&'static str>,
}

fn json(lock: &str, seen: &Observation, replica: Option<serde_json::Value>) -> String {
    let held = seen.holder();
    let status = Status {
        schema: 1,
        lock,
        holder: held.as_ref().and_then(|held| held.identity()).map(str::to_owned),
        holder_kind: held.as_ref().map(|held| held.kind()),
        token: held.as_ref().and_then(|held| held.token),
        since: since(seen, replica.as_ref()),
        quorum: Quorum::of(seen),
        nodes: seen.nodes.iter().map(node).collect(),
        replica,
    };
    serde_json::to_string(&status).expect("maps with text keys and numbers always have a JSON form")
}

fn node(seen: &Seen) -> Node<'_> {
    let left = |vote: Vote| clock::millis(seen.left.filter(|_| seen.vote == vote).unwrap_or(Duration::ZERO));
    Node {
        node: &seen.node,
        up: seen.latency.is_some(),
        vote: seen.vote.as_str(),
        lease_ms: left(Vote::Held),
        quarantine_ms: left(Vote::Quarantined),
        latency_ms: seen.latency.map(|took| took.as_secs_f64() * 1000.0),
        error: seen.error.map(crate::redsync::reply::Kind::as_str),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::observe::tests::observation;

    #[test]
    fn a_person_sees_who_leads_and_what_each_node_says() {
        let seen = observation("a6200 q3100 x");
        let replica = serde_json::json!({"identity": "pod-b", "reason": "standby: no holder is known"});
        let found = text("job", &seen, Some(&replica));
        assert!(found.starts_with("lock    job\nleader  "), "{found}");
        for part in [
            "leader  nobody: 1 of 3 nodes in quarantine, 2 must be out of it\n",
            "quorum  2 of 3 nodes answer, 2 required\n",
            "here    pod-b: standby: no holder is known\n",
            "redis-0:6379                           held              6.2 s     0.4 ms\n  for pod-a\n",
            "redis-1:6379                           quarantined       3.1 s     0.4 ms\n  new to this lock",
            "redis-2:6379                           unknown               -          -\n  connect: refused",
        ] {
            assert!(found.contains(part), "{part:?} in\n{found}");
        }
    }

    #[test]
    fn every_line_fits_a_terminal() {
        let mut seen = observation("a6200 q3100 x n a! = f10");
        seen.nodes[0].node = "redis-0.redis-headless.production.svc.cluster.local:6379".to_owned();
        let replica = serde_json::json!({"identity": "pod-b", "reason": "word ".repeat(40)});
        for line in text("job", &seen, Some(&replica)).lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }

    #[test]
    fn a_script_gets_every_field_always() {
        let seen = observation("a6200 a6100 x q500");
        let found: serde_json::Value = serde_json::from_str(&json("job", &seen, None)).unwrap();
        assert_eq!(
            found,
            serde_json::json!({
                "schema": 1, "lock": "job", "holder": null, "holderKind": null, "token": null,
                "since": null,
                "quorum": {"required": 3, "reachable": 3},
                "nodes": [
                    {"node": "redis-0:6379", "up": true, "vote": "held", "leaseMs": 6200, "quarantineMs": 0,
                     "latencyMs": 0.412, "error": null},
                    {"node": "redis-1:6379", "up": true, "vote": "held", "leaseMs": 6100, "quarantineMs": 0,
                     "latencyMs": 0.412, "error": null},
                    {"node": "redis-2:6379", "up": false, "vote": "unknown", "leaseMs": 0, "quarantineMs": 0,
                     "latencyMs": null, "error": "connect"},
                    {"node": "redis-3:6379", "up": true, "vote": "quarantined", "leaseMs": 0, "quarantineMs": 500,
                     "latencyMs": 0.412, "error": null},
                ],
                "replica": null,
            })
        );
        let found: serde_json::Value = serde_json::from_str(&json("job", &observation("f9 f9 f9"), None)).unwrap();
        assert_eq!((&found["holder"], &found["holderKind"]), (&serde_json::Value::Null, &"foreign".into()));
    }
}
