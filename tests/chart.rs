//! The charts against themselves: README against the values, the schema against the values, versions.
//!
//! `UPDATE=1 cargo test --test chart` writes the table of README anew.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

const VALUES: &str = "charts/redleader/values.yaml";
const README: &str = "charts/redleader/README.md";
const BEGIN: &str = "by UPDATE=1 cargo test --test chart -->\n";
const END: &str = "<!-- end of values -->";

/// Objects whose content is the cluster's to define: one value each, whatever is in them.
const WHOLE: [&str; 8] = [
    "resources",
    "securityContext",
    "podSecurityContext",
    "nodes.resources",
    "nodes.securityContext",
    "nodes.podSecurityContext",
    "app.securityContext",
    "app.resources",
];

/// One value as the file has it.
#[derive(Debug)]
struct Entry {
    path: String,
    default: String,
    meaning: String,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every value with its comment; the lines of an object that is one value are its default.
fn entries() -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut parents: Vec<(usize, String)> = Vec::new();
    let mut meaning = String::new();
    let text = read(VALUES);
    let mut lines = text.lines().skip_while(|line| !line.is_empty()).peekable();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        if let Some(comment) = line.trim().strip_prefix("# ") {
            let space = if meaning.is_empty() { "" } else { " " };
            let _ = write!(meaning, "{space}{comment}");
            continue;
        }
        let Some((key, value)) = line.trim().split_once(':') else { continue };
        parents.retain(|(depth, _)| *depth < indent);
        let mut path: Vec<&str> = parents.iter().map(|(_, name)| name.as_str()).collect();
        path.push(key);
        let path = path.join(".");
        let deeper = |next: &&str| next.len() - next.trim_start().len() > indent && !next.trim().is_empty();
        if value.is_empty() && !WHOLE.contains(&path.as_str()) {
            assert!(meaning.is_empty(), "{path}: a comment belongs to a value, not to a group");
            parents.push((indent, key.to_owned()));
            continue;
        }
        let mut default = value.trim().to_owned();
        while value.is_empty()
            && let Some(next) = lines.next_if(deeper)
        {
            let space = if default.is_empty() { "" } else { ", " };
            let _ = write!(default, "{space}{}", next.trim());
        }
        entries.push(Entry { path, default, meaning: std::mem::take(&mut meaning) });
    }
    entries
}

#[test]
fn readme_has_the_table_of_values_as_they_are() {
    let mut table = String::from("| value | default | meaning |\n|---|---|---|\n");
    for Entry { path, default, meaning } in entries() {
        assert!(!meaning.is_empty(), "{path}: no comment says what it means");
        let default = if default == "\"\"" { String::new() } else { format!("`{default}`") };
        let _ = writeln!(table, "| `{path}` | {default} | {} |", meaning.replace('|', "\\|"));
    }
    let readme = read(README);
    let (before, rest) = readme.split_once(BEGIN).expect("README says where the table begins");
    let (told, after) = rest.split_once(END).expect("README says where the table ends");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(README, format!("{before}{BEGIN}\n{table}\n{END}{after}")).unwrap();
    } else {
        assert_eq!(told.trim(), table.trim(), "{README}: UPDATE=1 cargo test --test chart writes it anew");
    }
}

#[test]
fn the_schema_knows_every_value_and_no_other() {
    let schema: Value = serde_json::from_str(&read("charts/redleader/values.schema.json")).unwrap();
    let mut known = BTreeSet::new();
    walk(&schema, "", &mut known);
    // What Helm itself puts into the values of every chart with a dependency.
    known.retain(|path| path != "global" && path != "redleader-lib");
    let real: BTreeSet<String> = entries().into_iter().map(|entry| entry.path).collect();
    assert_eq!(known, real);
}

/// The paths of the schema's values; what has no closed list of keys is one value.
fn walk(schema: &Value, path: &str, known: &mut BTreeSet<String>) {
    let join = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    let is_group = schema["additionalProperties"] == false && schema["type"] == "object";
    if let Some(properties) = schema["properties"].as_object().filter(|_| is_group) {
        for (key, inner) in properties {
            walk(inner, &join(key), known);
        }
    } else {
        assert_ne!(path, "", "the schema has to be strict");
        known.insert(path.to_owned());
    }
}

#[test]
fn charts_and_program_have_one_version() {
    let version = env!("CARGO_PKG_VERSION");
    for chart in ["charts/redleader/Chart.yaml", "charts/redleader-lib/Chart.yaml"] {
        let text = read(chart);
        for key in ["version", "appVersion"] {
            let line = format!("{key}: {version}");
            assert!(text.lines().any(|found| found == line), "{chart}: {line}");
        }
    }
    assert!(read("charts/redleader-lib/templates/_names.tpl").contains(&format!("-}}}}{version}{{{{-")));
    assert!(read("Dockerfile").contains(&format!("ARG VERSION={version}\n")));
}
