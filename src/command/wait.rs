//! `wait`: until there is a leader, or a quorum of nodes that answer. For init containers, hooks and scripts.

use std::io::{self, Write as _};
use std::time::Duration;

use serde::Serialize;

use crate::clock;
use crate::command::ask::Asker;
use crate::command::observe::Observation;
use crate::command::status::Quorum;
use crate::command::{Exit, Said};
use crate::config::{Output, WaitConfig, WaitFor};

/// A person who starts an app waits no longer than this after the fact, and nodes hardly feel it.
const PERIOD_MOST: Duration = Duration::from_millis(500);

/// Waits. What it waits for is told on stderr whenever it changes.
pub async fn wait(config: WaitConfig) -> Said {
    match wait_until(config).await {
        Ok(said) => said,
        Err(error) => Said { text: format!("cannot wait for nodes: {error}"), exit: Exit::Failed },
    }
}

async fn wait_until(config: WaitConfig) -> io::Result<Said> {
    let WaitConfig { target, what, timeout, output } = config;
    let (lock, period) = (target.lock.clone(), target.timing.renew().min(PERIOD_MOST));
    let deadline = clock::now() + timeout;
    let mut asker = Asker::start(target)?;
    // The first look has all the time that it needs, so that no timeout is too short to look once.
    let mut seen = asker.observe(None).await?;
    let mut told = String::new();
    while !is_met(what, &seen) && clock::now() < deadline {
        let reason = reason(&seen);
        if reason != told {
            // With nobody to read it, it is still worth waiting.
            let _ = writeln!(io::stderr(), "waiting for {}: {reason}", word(what));
            told = reason;
        }
        asker.pause((clock::now() + period).min(deadline)).await?;
        if clock::now() < deadline {
            seen = asker.observe(Some(deadline)).await?;
        }
    }
    let text = match output {
        Output::Text => text(what, timeout, &seen),
        Output::Json => json(lock.as_str(), what, &seen),
    };
    Ok(Said { text, exit: if is_met(what, &seen) { Exit::Well } else { Exit::NotWell } })
}

fn is_met(what: WaitFor, seen: &Observation) -> bool {
    match what {
        WaitFor::Leader => seen.holder().is_some(),
        WaitFor::Quorum => seen.reachable() >= seen.quorum(),
    }
}

fn word(what: WaitFor) -> &'static str {
    match what {
        WaitFor::Leader => "leader",
        WaitFor::Quorum => "quorum",
    }
}

/// Why it is not so yet, without numbers that change by themselves.
fn reason(seen: &Observation) -> String {
    let faults = seen.nodes.iter().filter(|node| node.error.is_some());
    let faults = faults.filter_map(|node| node.advice().map(|advice| format!("; {}: {advice}", node.node)));
    format!("{}{}", seen.summary(), faults.collect::<String>())
}

fn text(what: WaitFor, timeout: Duration, seen: &Observation) -> String {
    if !is_met(what, seen) {
        let timeout = humantime::format_duration(timeout);
        return format!("no {} within {timeout}: {}", word(what), reason(seen));
    }
    match what {
        WaitFor::Leader => format!("leader: {}", seen.summary()),
        WaitFor::Quorum => {
            format!("quorum: {} of {} nodes answer, {} required", seen.reachable(), seen.nodes.len(), seen.quorum())
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Waited<'a> {
    schema: u32,
    lock: &'a str,
    r#for: &'static str,
    met: bool,
    holder: Option<String>,
    holder_kind: Option<&'static str>,
    token: Option<u64>,
    quorum: Quorum,
}

fn json(lock: &str, what: WaitFor, seen: &Observation) -> String {
    let held = seen.holder();
    let waited = Waited {
        schema: 1,
        lock,
        r#for: word(what),
        met: is_met(what, seen),
        holder: held.as_ref().and_then(|held| held.identity()).map(str::to_owned),
        holder_kind: held.as_ref().map(|held| held.kind()),
        token: held.as_ref().and_then(|held| held.token),
        quorum: Quorum::of(seen),
    };
    serde_json::to_string(&waited).expect("maps with text keys and numbers always have a JSON form")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::observe::tests::observation;

    #[test]
    fn a_leader_holds_a_quorum_and_a_quorum_answers() {
        for (short, leader, quorum) in [
            ("a6200 a6100 x", true, true),
            ("f6200 f6100 -", true, true),
            ("a6200 - -", false, true),
            ("q10 q10 q10", false, true),
            ("a6200 x x", false, false),
            ("a6200 = =", false, false),
        ] {
            let seen = observation(short);
            assert_eq!(is_met(WaitFor::Leader, &seen), leader, "{short}");
            assert_eq!(is_met(WaitFor::Quorum, &seen), quorum, "{short}");
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        let seen = observation("a6200 x x");
        let text = text(WaitFor::Leader, Duration::from_secs(60), &seen);
        assert!(
            text.starts_with("no leader within 1m: nobody: 1 of 3 nodes answer, 2 required; redis-1:6379: connect:")
        );
        let found: serde_json::Value = serde_json::from_str(&json("job", WaitFor::Quorum, &seen)).unwrap();
        assert_eq!(
            found,
            serde_json::json!({"schema": 1, "lock": "job", "for": "quorum", "met": false, "holder": null,
                "holderKind": null, "token": null, "quorum": {"required": 2, "reachable": 1}})
        );
    }
}
