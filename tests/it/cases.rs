//! `tests/cases.toml` against the tests that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use crate::support::run;

const CASES: &str = include_str!("../cases.toml");

/// The cases that the lock, the election, their surfaces, the wrapper and the charts answer for.
const REQUIRED: [&str; 75] = [
    "C1", "C3", "C5", "C7", "C9", "C11", "C13", "C15", "C17", "C19", "C21", "C23", "C25", "C27", "C29", "C31", "C33",
    "C35", "C37", "C39", "C41", "C43", "C45", "C47", "C49", "C51", "C53", "C55", "C57", "C59", "C61", "C63", "C65",
    "C67", "C69", "C99", "C103", "C105", "C107", "C109", "C113", "C115", "C117", "C119", "C121", "C123", "C125",
    "C127", "C129", "C131", "C133", "C135", "C137", "C141", "C143", "C71", "C73", "C75", "C77", "C79", "C81", "C83",
    "C85", "C87", "C89", "C91", "C93", "C95", "C97", "C101", "C111", "C139", "C145", "C147", "C149",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cases {
    case: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    id: String,
    severity: Severity,
    title: String,
    clauses: Vec<Clause>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Clause {
    right: String,
    #[serde(default)]
    tests: Vec<String>,
    /// Rows of `make e2e`, which are no tests of this binary.
    #[serde(default)]
    rows: Vec<String>,
    part: Option<Part>,
}

#[derive(Deserialize)]
enum Severity {
    S1,
    S2,
    S3,
    S4,
}

/// A part of the product whose clauses are shown by tests of its own.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Part {
    Kubernetes,
}

fn cases() -> Vec<Case> {
    toml::from_str::<Cases>(CASES).unwrap_or_else(|error| panic!("tests/cases.toml: {error}")).case
}

/// The names of this binary's tests, of the ignored ones only if asked.
fn tests(ignored: bool) -> BTreeSet<String> {
    let mut command = Command::new(std::env::current_exe().expect("a running test has a path"));
    command.args(["--list", "--format", "terse"]);
    if ignored {
        command.arg("--ignored");
    }
    let output = run("--list", command, Duration::from_secs(30));
    assert_eq!(output.code, 0, "--list: {}", output.stderr);
    output.stdout.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

#[test]
fn every_clause_is_shown_by_a_test_that_exists_and_runs() {
    let (existing, ignored) = (tests(false), tests(true));
    let mut faults = Vec::new();
    for case in cases() {
        for clause in &case.clauses {
            for test in &clause.tests {
                if ignored.contains(test) {
                    faults.push(format!("{}: {test} is ignored ({})", case.id, clause.right));
                } else if !existing.contains(test) {
                    faults.push(format!("{}: {test} does not exist ({})", case.id, clause.right));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} clauses are shown by no test:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn every_row_that_is_named_is_a_row_of_e2e() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/rows");
    let files = std::fs::read_dir(directory).expect("the rows are there").flatten();
    let text: String = files.map(|file| std::fs::read_to_string(file.path()).expect("a source file")).collect();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for case in cases() {
        for row in case.clauses.iter().flat_map(|clause| &clause.rows) {
            assert!(text.contains(&format!("Row {{ name: \"{row}\"")), "{}: {row} is no row", case.id);
        }
    }
}

#[test]
fn every_case_is_there_once_and_every_clause_says_where_it_is_shown() {
    let mut seen = BTreeMap::new();
    for case in cases() {
        assert!(!case.title.is_empty() && !case.clauses.is_empty(), "{}: a title and clauses are needed", case.id);
        for clause in &case.clauses {
            let shown = [!clause.tests.is_empty(), !clause.rows.is_empty(), clause.part.is_some()];
            let places = shown.into_iter().filter(|is_shown| *is_shown).count();
            assert_eq!(places, 1, "{}: {:?} names tests, rows, or the part that has them", case.id, clause.right);
        }
        if matches!(case.severity, Severity::S1) {
            let shown = case.clauses.iter().any(|clause| !(clause.tests.is_empty() && clause.rows.is_empty()));
            assert!(shown, "{}: one of two leaders has no test here", case.id);
        }
        *seen.entry(case.id).or_insert(0) += 1;
    }
    for id in REQUIRED {
        assert_eq!(seen.get(id), Some(&1), "{id} is in tests/cases.toml once");
    }
}
