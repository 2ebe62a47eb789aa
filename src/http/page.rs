//! `/` for a person: what `/leader` says, as a page without scripts that a browser renews by itself.

use std::fmt::Write as _;

use super::report::{Node, Report};

/// What the page may load: nothing. All of it is in the answer.
pub(super) const POLICY: &str = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// The page. Every text of it that comes from a configuration or from a node is escaped.
pub(super) fn page(report: &Report) -> String {
    let holder = report.holder.as_deref().unwrap_or("nobody that is known");
    let token = report.token.map_or_else(|| "none".to_owned(), |token| token.to_string());
    let rows = [
        ("Leader", holder.to_owned()),
        ("Fencing token", token),
        ("Leads since", report.since.clone().unwrap_or_else(|| "does not lead".to_owned())),
        ("Valid for", format!("{} ms", report.valid_for_ms)),
        ("This replica", report.identity.clone()),
        ("State", report.reason.clone()),
        ("Quorum", format!("{} nodes answer, {} are required", report.quorum.reachable, report.quorum.required)),
        ("Quarantine", format!("{} ms", report.quarantine_ms)),
    ];
    let mut text = String::from("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    text.push_str(
        "<meta name=\"viewport\" content=\"width=device-width\"><meta name=\"color-scheme\" content=\"light dark\">",
    );
    text.push_str("<meta http-equiv=\"refresh\" content=\"5\">");
    // Writing to a String cannot fail.
    let _ = write!(text, "<title>{0}</title></head><body>\n<h1>Lock {0}</h1>\n<table>\n", escape(&report.lock));
    for (name, value) in rows {
        let _ = writeln!(text, "<tr><th scope=\"row\">{name}</th><td>{}</td></tr>", escape(&value));
    }
    text.push_str("</table>\n<h2>Nodes</h2>\n<table>\n<tr><th>Node</th><th>Vote</th><th>Lease</th><th>Latency</th><th>Error</th></tr>\n");
    report.nodes.iter().for_each(|node| write_node(&mut text, node));
    text.push_str("</table>\n<p><a href=\"leader\">as JSON</a>, <a href=\"metrics\">metrics</a></p>\n</body></html>\n");
    text
}

fn write_node(text: &mut String, node: &Node) {
    let latency = node.latency_ms.map_or_else(|| "-".to_owned(), |latency| format!("{latency:.1} ms"));
    let error = node.error.as_deref().unwrap_or("-");
    let (name, vote) = (escape(&node.node), escape(&node.vote));
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "<tr><td>{name}</td><td>{vote}</td><td>{} ms</td><td>{latency}</td><td>{}</td></tr>",
        node.lease_ms,
        escape(error)
    );
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
}
