//! `/` for a person: what `/leader` says, drawn by the server. With scripts it is drawn again at each event of
//! `/leader/stream`; without them the browser asks again by itself.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::report::{HolderKind, Node, Report};
use crate::clock::Moment;
use crate::election::history::{Change, Past};
use crate::wall;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Words of the page, for whoever sees it for the first time.
const WORDS: [(&str, &str); 7] = [
    (
        "Leader",
        "The one replica that may do the work now. It believes so until its lease has run down, unless a quorum of nodes extends it.",
    ),
    ("Fencing token", "The number of a leadership. It only grows: what the leader writes to can refuse a smaller one."),
    ("granted", "The node's vote is this replica's."),
    ("held", "The node's vote is another's."),
    ("free", "The node would vote for whoever asks."),
    (
        "quarantined",
        "The node is new to the lock or was restarted, and has no vote until whatever it may have forgotten has run out.",
    ),
    ("void, unknown", "The node's answer is no vote, or there was none; the column of errors says why."),
];

/// What only the page shows.
#[derive(Debug)]
pub(super) struct Frame {
    /// The lock's ttl: the length of the bar.
    pub(super) ttl: Duration,
    /// The last changes.
    pub(super) past: Vec<Past>,
    /// The time of the page.
    pub(super) now: Moment,
    /// What this answer's style and script are known by.
    pub(super) nonce: String,
}

/// A nonce for one answer.
///
/// # Errors
/// When the system gives no random numbers.
pub(super) fn nonce() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(STANDARD.encode(bytes))
}

/// What the page may load: its own style and script by this answer's nonce, this replica's endpoints, and nothing else.
pub(super) fn policy(nonce: &str) -> String {
    format!(
        "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )
}

/// The page. Every text of it that comes from a configuration or from a node is escaped.
pub(super) fn page(report: &Report, frame: &Frame) -> String {
    let (lock, nonce) = (escape(&report.lock), &frame.nonce);
    let mut text = String::with_capacity(16 * 1024);
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>\n\
         <title>Lock {lock}</title>\n<style nonce=\"{nonce}\">\n{STYLE}</style></head>\n<body><main>\n\
         <h1>Lock {lock}</h1>\n\
         <p class=\"faint\">Of the replicas of this workload one leads at a time. This is what one of them, {}, knows.</p>\n\
         <p class=\"faint\" id=\"live\">Renewed every 5 seconds</p>\n",
        escape(&report.identity)
    );
    write_status(&mut text, report, frame);
    text.push_str(
        "<h2 id=\"more\">More</h2>\n<nav aria-label=\"More\"><a href=\"leader\">As JSON</a><a href=\"metrics\">Metrics</a>\
         <a href=\"readyz\">Ready?</a><a href=\"healthz\">Healthy?</a></nav>\n\
         <details><summary>What the words mean</summary>\n<dl>\n",
    );
    for (word, meaning) in WORDS {
        let _ = writeln!(text, "<dt>{word}</dt><dd>{meaning}</dd>");
    }
    text.push_str(
        "</dl>\n<p>More is in the project's documents: docs/observability.md for alerts and dashboards, docs/runbooks \
         for what to do.</p></details>\n</main>\n<p id=\"said\" role=\"status\"></p>\n",
    );
    let _ = write!(text, "<script nonce=\"{nonce}\">\n{SCRIPT}</script>\n</body></html>\n");
    text
}

/// What changes: the part that the script asks for again.
fn write_status(text: &mut String, report: &Report, frame: &Frame) {
    let who = match (&report.holder, report.holder_kind) {
        (Some(holder), _) => escape(holder),
        (None, Some(HolderKind::Foreign)) => "a program that is not redleader".to_owned(),
        (None, Some(HolderKind::Redleader) | None) => "nobody".to_owned(),
    };
    let verb = if report.holder_kind == Some(HolderKind::Foreign) { "holds the lock" } else { "leads" };
    let class = if who == "nobody" { "bad" } else { "good" };
    let at = stamp(frame.now, frame.now);
    let number = report.token.map(|token| token.to_string()).unwrap_or_default();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "<div id=\"status\" data-who=\"{who} {number}\" data-at=\"{}\">\n\
         <p class=\"who\"><strong class=\"{class}\">{who}</strong> {verb}</p>",
        plain_time(&at)
    );
    if let Some(token) = report.token {
        let _ = writeln!(text, "<p>Fencing token {token}</p>");
    }
    if let Some(since) = &report.since {
        let _ = writeln!(text, "<p>Since {}</p>", time(since));
    }
    if report.leading {
        let (left, whole) = (report.valid_for_ms, frame.ttl.as_millis());
        let _ = writeln!(
            text,
            "<p><label for=\"lease\">Lease</label>: <span id=\"left\">{:.1} s</span> left unless it is extended</p>\n\
             <progress id=\"lease\" max=\"{whole}\" value=\"{left}\"></progress>",
            left as f64 / 1000.0
        );
    }
    let _ = writeln!(text, "<h2>This replica</h2>\n<p>{}: {}</p>", escape(&report.identity), escape(&report.reason));
    let _ = writeln!(
        text,
        "<h2>Nodes</h2>\n<p>{} of {} answer, {} are required</p>\n<table>\n<thead><tr><th scope=\"col\">Node</th>\
         <th scope=\"col\">Vote</th><th scope=\"col\">Lease</th><th scope=\"col\">Latency</th>\
         <th scope=\"col\">Error</th></tr></thead>\n<tbody>",
        report.quorum.reachable,
        report.nodes.len(),
        report.quorum.required
    );
    report.nodes.iter().for_each(|node| write_node(text, node));
    text.push_str("</tbody></table>\n<h2>Last changes</h2>\n");
    write_past(text, &report.identity, frame);
    let _ = writeln!(text, "<p class=\"faint\">As of {}</p>\n</div>", time(&at));
}

fn write_node(text: &mut String, node: &Node) {
    let latency = node.latency_ms.map_or_else(|| "-".to_owned(), |latency| format!("{latency:.1} ms"));
    let vote = match node.quarantine_ms {
        0 => node.vote.clone(),
        left => format!("{}, {:.1} s", node.vote, left as f64 / 1000.0),
    };
    let lease = match node.lease_ms {
        0 => "-".to_owned(),
        left => format!("{:.1} s", left as f64 / 1000.0),
    };
    let error = node.error.as_deref().unwrap_or("-");
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "<tr><th scope=\"row\">{}</th><td>{}</td><td>{lease}</td><td>{latency}</td><td{}>{}</td></tr>",
        escape(&node.node),
        escape(&vote),
        if node.error.is_some() { " class=\"bad\"" } else { "" },
        escape(error)
    );
}

fn write_past(text: &mut String, identity: &str, frame: &Frame) {
    if frame.past.is_empty() {
        text.push_str("<p>None since this replica started</p>\n");
        return;
    }
    text.push_str(
        "<table>\n<thead><tr><th scope=\"col\">Time</th><th scope=\"col\">Change</th></tr></thead>\n<tbody>\n",
    );
    for past in &frame.past {
        let numbered = |token: Option<u64>| token.map(|token| format!(" (token {token})")).unwrap_or_default();
        let change = match &past.change {
            Change::Elected(token) => format!("{identity} was elected{}", numbered(Some(*token))),
            Change::SteppedDown(token, reason) => {
                format!("{identity} stepped down: {}{}", reason.as_str(), numbered(Some(*token)))
            }
            Change::Holder(Some(owner), token) => match owner.identity() {
                Some(holder) => format!("{holder} holds the lock{}", numbered(*token)),
                None => "a program that is not redleader holds the lock".to_owned(),
            },
            Change::Holder(None, _) => "nobody holds the lock".to_owned(),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "<tr><td>{}</td><td class=\"name\">{}</td></tr>",
            time(&stamp(past.at, frame.now)),
            escape(&change)
        );
    }
    text.push_str("</tbody></table>\n");
}

/// The wall time of a moment, as RFC 3339 has it.
fn stamp(moment: Moment, now: Moment) -> String {
    humantime::format_rfc3339_millis(wall::time_of(moment, now)).to_string()
}

fn time(rfc3339: &str) -> String {
    format!("<time datetime=\"{}\">{}</time>", escape(rfc3339), plain_time(rfc3339))
}

/// An RFC 3339 time as people write it.
fn plain_time(rfc3339: &str) -> String {
    escape(rfc3339).replace('T', " ").replace('Z', " UTC")
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_name_is_markup() {
        assert_eq!(escape("<b a='1' c=\"2\">&</b>"), "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;&lt;/b&gt;");
    }

    #[test]
    fn each_answer_has_a_nonce_of_its_own_and_its_policy_names_it() {
        let (first, second) = (nonce().unwrap(), nonce().unwrap());
        assert_ne!(first, second);
        let policy = policy(&first);
        assert!(policy.starts_with("default-src 'none'; ") && policy.contains(&format!("script-src 'nonce-{first}'")));
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
    }

    #[test]
    fn style_and_script_cannot_end_early_and_load_nothing_from_elsewhere() {
        for text in [STYLE, SCRIPT] {
            let has = |part: &str| text.to_ascii_lowercase().contains(part);
            assert!(!has("</") && !has("<!--") && !has("http:") && !has("https:") && !has("url(") && !has("innerhtml"));
        }
    }
}
