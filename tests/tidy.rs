//! House rules that a machine can check.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Decisions without a clock, IO or chance: the core can be searched exhaustively because of it.
const PURE: [&str; 10] = [
    "src/redsync/tally.rs",
    "src/redsync/lease.rs",
    "src/redsync/reply.rs",
    "src/redsync/name.rs",
    "src/election/core",
    "src/election/evidence.rs",
    "src/election/timing.rs",
    "src/election/leadership.rs",
    "src/election/event.rs",
    "src/election/request.rs",
];

const IMPURE_WORDS: [&str; 10] =
    ["tokio", "hyper", "kube", "rand", "getrandom", "Instant", "SystemTime", "axum", "tracing", "prometheus"];

const IMPURE_PATHS: [&str; 9] =
    ["clock::now", "std::io", "std::net", "std::fs", "std::env", "std::thread", "std::process", "Mutex<", "async fn"];

/// Lines of code in one file, above which nobody reads it whole.
const LINES: usize = 450;

/// The only TLS provider is ring, through rustls: a second one makes rustls panic at the first dial.
const BANNED_PACKAGES: [&str; 6] = ["aws-lc-rs", "aws-lc-sys", "openssl", "openssl-sys", "native-tls", "boring"];

/// What may be linked into an Apache-2.0 binary without asking anyone.
const LICENCES: [&str; 13] = [
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "0BSD",
    "Unlicense",
    "BSL-1.0",
    "CC0-1.0",
    "Unicode-3.0",
];

#[test]
fn decisions_have_no_clock_no_io_and_no_chance() {
    for place in PURE {
        let files: Vec<PathBuf> = files_under("src", "rs").into_iter().filter(|file| is_in(file, place)).collect();
        assert!(!files.is_empty(), "{place} is gone: what is pure in its place?");
        for file in files {
            for (number, line) in code(&file) {
                let word = IMPURE_WORDS.iter().find(|word| has_word(&line, word));
                let path = IMPURE_PATHS.iter().find(|path| line.contains(*path));
                if let Some(found) = word.or(path) {
                    panic!("{}:{number}: {found} has no place among decisions", file.display());
                }
            }
        }
    }
}

#[test]
fn files_are_short_enough_to_be_read() {
    for file in files_under("src", "rs") {
        let count = code(&file).len();
        assert!(count <= LINES, "{}: {count} lines of code, more than {LINES}", file.display());
    }
}

#[test]
fn modules_are_named_for_what_they_hold() {
    let drawers = ["utils", "util", "helpers", "helper", "common", "types", "misc"];
    for file in files_under("src", "rs").into_iter().chain(files_under("tests", "rs")) {
        let mut names = file.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
        let drawer = names.find(|name| drawers.contains(&name.trim_end_matches(".rs")));
        assert!(drawer.is_none(), "{}: a drawer; name it for what it holds", file.display());
    }
}

#[test]
fn only_the_command_line_reads_the_environment() {
    for file in files_under("src", "rs").into_iter().filter(|file| !is_in(file, "src/cli")) {
        for (number, line) in code(&file) {
            let read = ["env::var", "env::vars", "env::args"].iter().any(|path| line.contains(path));
            assert!(!read, "{}:{number}: only src/cli reads environment and arguments", file.display());
        }
    }
}

/// `src/lib.rs` says for each rule of the protocol which file holds it, and that file says so too.
#[test]
fn the_file_of_each_rule_is_found_from_the_root() {
    let text = read("src/lib.rs");
    let rows = text.lines().skip_while(|line| *line != "//! | rules | in |").skip(2);
    let mut found = BTreeSet::new();
    for row in rows.map_while(|line| line.strip_prefix("//! | ")) {
        let (rules, place) = row.split_once(" | ").unwrap();
        let rules: Vec<u32> = rules.split(", ").map(|rule| rule.parse().unwrap()).collect();
        let files: Vec<&str> = place.split('`').skip(1).step_by(2).collect();
        assert!(!files.is_empty(), "{row}");
        for file in files {
            let code = Path::new("src").join(file);
            let quoted = if file.starts_with("docs/") { rules.iter().copied().collect() } else { rules_in(&code) };
            assert!(code.exists() || Path::new(file).exists(), "{file} is gone");
            let missing = rules.iter().find(|rule| !quoted.contains(rule));
            assert_eq!(missing, None, "{file} does not say that it holds the rule");
        }
        found.extend(rules);
    }
    assert_eq!(found, (1..=24).collect());
    let told = read("docs/protocol.md");
    let untold: Vec<u32> = found.into_iter().filter(|rule| !told.contains(&format!("\n| {rule} | "))).collect();
    assert!(untold.is_empty(), "docs/protocol.md does not say what rules {untold:?} are");
}

/// The numbers that follow the word: `rule 9`, `rules 8, 11 and 14 to 16`.
fn rules_in(file: &Path) -> BTreeSet<u32> {
    let text = read(&file.to_string_lossy());
    let mut rules = BTreeSet::new();
    for (at, _) in text.match_indices("ule") {
        let after = text[at + 3..].strip_prefix('s').unwrap_or(&text[at + 3..]);
        let (mut last, mut is_range) = (0, false);
        for word in after.split([' ', ',']).filter(|word| !word.is_empty()).take(8) {
            let number = word.trim_matches(|c: char| !c.is_ascii_digit());
            match (word, number.parse::<u32>()) {
                ("and", _) => {}
                ("to", _) => is_range = true,
                (_, Ok(number)) => {
                    rules.extend(if is_range { last..=number } else { number..=number });
                    (last, is_range) = (number, false);
                }
                (_, Err(_)) => break,
            }
        }
    }
    rules
}

#[test]
fn tests_sleep_in_one_place() {
    // The witness is no test: its rhythm is its work.
    let allowed = ["tests/it/support/wait.rs", "tests/tidy.rs", "tests/witness/witness.rs"].map(Path::new);
    for file in files_under("tests", "rs").into_iter().filter(|file| !allowed.contains(&file.as_path())) {
        for (number, line) in lines_without_comments(&file) {
            assert!(!line.contains("sleep("), "{}:{number}: wait by `eventually`", file.display());
        }
    }
}

/// What users of the lock as a library build on: `mutex.rs` and what is under it.
fn lock_library() -> Vec<PathBuf> {
    files_under("src", "rs").into_iter().filter(|file| is_in(file, "src/redsync/mutex")).collect()
}

#[test]
fn errors_of_the_lock_library_may_grow() {
    let mut count = 0;
    for file in lock_library() {
        let lines = code(&file);
        for (at, (number, line)) in lines.iter().enumerate() {
            if line.starts_with("pub enum ") {
                let attribute = at.checked_sub(1).map(|before| lines[before].1.as_str());
                assert_eq!(attribute, Some("#[non_exhaustive]"), "{}:{number}: {line}", file.display());
                count += 1;
            }
        }
    }
    assert!(count >= 3, "{count} public enums: the errors of set-up and lock, and the loss of a holder");
}

#[test]
fn the_lock_library_shows_no_types_of_redis_or_tokio() {
    let foreign = ["oneshot", "mpsc", "watch", "JoinHandle", "Handle", "Notify", "Cmd", "RedisError", "Pipeline"];
    for file in lock_library() {
        for (number, line) in code(&file).into_iter().filter(|(_, line)| line.starts_with("pub ")) {
            let named = foreign.iter().find(|name| has_word(&line, name));
            let shown = line.contains("tokio::") || line.contains("redis::") || named.is_some();
            assert!(!shown, "{}:{number}: {line}", file.display());
        }
    }
}

/// A column of this name is the last one, and holds links to tests: `[module::test](../tests/it/module.rs)`.
const TEST_COLUMN: &str = "test";

/// What is wrong with the tables of a document that have a column of tests, and how many rows they have.
fn untested_rows(document: &str, text: &str, exists: impl Fn(&Path, &str) -> bool) -> (usize, Vec<String>) {
    let (mut rows, mut faults, mut columns) = (0, Vec::new(), None);
    for line in text.lines() {
        let cells: Vec<&str> = match line.strip_prefix('|').and_then(|line| line.strip_suffix('|')) {
            Some(line) => line.split('|').map(str::trim).collect(),
            None => {
                columns = None;
                continue;
            }
        };
        let Some(count) = columns else {
            columns = Some(if cells.last() == Some(&TEST_COLUMN) { cells.len() } else { 0 });
            continue;
        };
        if count == 0 || cells.iter().all(|cell| cell.chars().all(|letter| letter == '-')) {
            continue;
        }
        rows += 1;
        let fault = cells[0];
        if cells.len() != count || cells.iter().any(|cell| cell.is_empty()) {
            faults.push(format!("{document}: {fault}: {} cells of {count}, or an empty one", cells.len()));
            continue;
        }
        for link in cells[count - 1].split("<br>") {
            let parts = link.strip_prefix('[').and_then(|link| link.strip_suffix(')')?.split_once("](../"));
            match parts {
                Some((name, file)) if exists(Path::new(file), name) => {}
                Some((name, file)) => faults.push(format!("{document}: {fault}: there is no test {name} in {file}")),
                None => faults.push(format!("{document}: {fault}: no link to a test: {link}")),
            }
        }
    }
    (rows, faults)
}

/// Whether the file, which a test's path is named after, has this test, and it is not ignored.
fn has_test(file: &Path, name: &str) -> bool {
    let Ok(text) = std::fs::read_to_string(file) else { return false };
    let (module, test) = (name.split("::").next().unwrap_or_default(), name.rsplit("::").next().unwrap_or_default());
    let is_named_after =
        file.components().any(|part| part.as_os_str().to_string_lossy().trim_end_matches(".rs") == module);
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let at = lines.iter().position(|line| line.starts_with(&format!("fn {test}(")));
    let attributes =
        at.map(|at| lines[..at].iter().rev().take_while(|line| line.starts_with("#[")).collect::<Vec<_>>());
    let is_test = attributes.is_some_and(|all| all.contains(&&"#[test]") && !all.iter().any(|a| a.contains("ignore")));
    is_named_after && is_test
}

#[test]
fn every_row_of_the_failure_modes_and_of_the_servers_names_a_test_that_exists() {
    for (document, least) in [("docs/failure-modes.md", 30), ("docs/servers.md", 20)] {
        let (rows, faults) = untested_rows(document, &read(document), has_test);
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        assert!(rows >= least, "{document}: {rows} rows; where are the others?");
    }
}

#[test]
fn a_row_without_a_test_or_with_one_that_is_gone_is_found() {
    let exists = |file: &Path, name: &str| file == Path::new("tests/it/a.rs") && name == "a::b";
    let table =
        |cell: &str| format!("| fault | test |\n|---|---|\n| power | {cell} |\n\n| no | tests |\n|---|---|\n| x | |\n");
    let faults = |cell: &str| untested_rows("doc", &table(cell), exists);
    assert_eq!(faults("[a::b](../tests/it/a.rs)"), (1, vec![]));
    for wrong in ["", "a::b", "[a::c](../tests/it/a.rs)", "[a::b](../tests/it/b.rs)", "[a::b](../tests/it/a.rs)<br>"] {
        assert_eq!(faults(wrong).1.len(), 1, "{wrong}");
    }
    assert!(has_test(Path::new("tests/tidy.rs"), "tidy::a_row_without_a_test_or_with_one_that_is_gone_is_found"));
    assert!(
        !has_test(Path::new("tests/tidy.rs"), "tidy::has_test") && !has_test(Path::new("tests/tidy.rs"), "it::read")
    );
}

#[test]
fn the_version_is_the_top_of_the_changelog() {
    let changelog = read("CHANGELOG.md");
    let versions = changelog.lines().filter_map(|line| line.strip_prefix("## "));
    let version = |title: &str| {
        let word = title.split_whitespace().next().unwrap_or_default();
        word.trim_matches(['[', ']']).trim_start_matches('v').to_owned()
    };
    let top = versions.map(version).find(|version| version.starts_with(|first: char| first.is_ascii_digit()));
    assert_eq!(top.as_deref(), Some(env!("CARGO_PKG_VERSION")), "CHANGELOG.md and Cargo.toml");
}

#[test]
fn no_planted_fault_is_ever_released() {
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let default = manifest.get("features").and_then(|features| features.get("default"));
    let empty = default.is_none_or(|default| default.as_array().is_some_and(Vec::is_empty));
    assert!(empty, "Cargo.toml: default features are on in a release");
    for file in files_under("src", "rs") {
        assert!(!read(&file.to_string_lossy()).contains("planted::"), "{}: a bug of tests/sim", file.display());
    }
    for file in ["Makefile", "Dockerfile", ".ci/run"] {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let builds = |line: &str| line.contains("cargo") && line.contains("mutant") || line.contains("--all-features");
        assert!(!text.lines().any(builds), "{file} builds a planted fault");
    }
}

#[test]
fn there_is_one_tls_provider() {
    let lock: toml::Table = read("Cargo.lock").parse().unwrap();
    for package in lock["package"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        assert!(!BANNED_PACKAGES.contains(&name), "Cargo.lock: {name} came in with a dependency's features");
    }
}

#[test]
fn dependencies_have_licences_that_ask_for_nothing() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-gnu"]);
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut refused = BTreeMap::new();
    for package in metadata["packages"].as_array().unwrap() {
        let licence = package["license"].as_str().unwrap_or("none");
        if !is_allowed(licence) {
            refused.insert(package["name"].as_str().unwrap(), licence);
        }
    }
    assert!(refused.is_empty(), "licences to be looked at: {refused:?}");
}

#[test]
fn a_licence_with_a_choice_needs_one_allowed_and_one_without_needs_all() {
    for good in ["MIT", "MIT OR GPL-3.0", "GPL-3.0/MIT", "(MIT OR Apache-2.0) AND Unicode-3.0", "MIT AND BSD-3-Clause"]
    {
        assert!(is_allowed(good), "{good}");
    }
    for bad in ["none", "GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 OR AGPL-3.0) AND MIT", "MPL-2.0"] {
        assert!(!is_allowed(bad), "{bad}");
    }
}

#[test]
fn what_is_counted_is_code_and_not_comments_or_tests() {
    let text = "//! doc\nuse a; // tokio\n/* tokio\ntokio */ fn f() {\n\"// tokio\"\n}\n\n#[cfg(test)]\nmod far;\n\
                mod near;\n#[cfg(test)]\nmod tests {\n    use tokio;\n}\n";
    let kept: Vec<String> = without_tests(strip_comments(text)).into_iter().map(|(_, line)| line).collect();
    assert_eq!(kept, ["use a;", "fn f() {", "\"// tokio\"", "}", "mod near;"]);
    assert!(has_word("use rand::x", "rand") && !has_word("operand", "rand") && !has_word("rand_seed", "rand"));
}

/// True if the file is `place`, or lies in the directory of that name, or is `place` with `.rs`; no test of it.
fn is_in(file: &Path, place: &str) -> bool {
    file == Path::new(place) || file.starts_with(place) || file == Path::new(&format!("{place}.rs"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The files with this ending under a directory of the package, relative to it, in order. Of `src`, no tests.
fn files_under(directory: &str, ending: &str) -> Vec<PathBuf> {
    let mut open = vec![PathBuf::from(directory)];
    let mut files = BTreeSet::new();
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == ending) {
                files.insert(path);
            }
        }
    }
    let is_test = |path: &PathBuf| {
        directory == "src"
            && path.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs")
    };
    files.into_iter().filter(|path| !is_test(path)).collect()
}

/// The numbered lines of a source file that are code: no comments, no blank lines, no test modules.
fn code(file: &Path) -> Vec<(usize, String)> {
    without_tests(lines_without_comments(file))
}

fn lines_without_comments(file: &Path) -> Vec<(usize, String)> {
    strip_comments(&read(&file.to_string_lossy()))
}

fn strip_comments(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut in_block = false;
    for (index, line) in text.lines().enumerate() {
        let (mut kept, mut in_text, mut rest) = (String::new(), false, line);
        while let Some(letter) = rest.chars().next() {
            let taken = match (in_block, in_text) {
                (true, _) if rest.starts_with("*/") => {
                    in_block = false;
                    2
                }
                (true, _) => letter.len_utf8(),
                (false, false) if rest.starts_with("//") => break,
                (false, false) if rest.starts_with("/*") => {
                    in_block = true;
                    2
                }
                (false, true) if rest.starts_with("\\\"") => {
                    kept.push_str("\\\"");
                    2
                }
                (false, _) => {
                    in_text ^= letter == '"' && !kept.ends_with('\'');
                    kept.push(letter);
                    letter.len_utf8()
                }
            };
            rest = &rest[taken..];
        }
        if !kept.trim().is_empty() {
            lines.push((index + 1, kept.trim().to_owned()));
        }
    }
    lines
}

/// Drops `#[cfg(test)]` with what it stands on: a module in another file, or the rest of this one.
fn without_tests(lines: Vec<(usize, String)>) -> Vec<(usize, String)> {
    let mut kept = Vec::new();
    let mut lines = lines.into_iter();
    while let Some((number, line)) = lines.next() {
        if line != "#[cfg(test)]" {
            kept.push((number, line));
            continue;
        }
        match lines.next() {
            Some((_, module)) if module.ends_with(';') => {}
            Some((_, module)) if module.starts_with("mod ") => break,
            Some(_) | None => {}
        }
    }
    kept
}

fn has_word(line: &str, word: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(is_part) && !line[at + word.len()..].starts_with(is_part))
}

/// Judges an SPDX expression. `AND` binds closer than `OR`; an old `/` is an `OR`.
fn is_allowed(licence: &str) -> bool {
    let spaced = licence.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let allowed = any_of(&words, &mut at);
    allowed && at == words.len()
}

fn any_of(words: &[&str], at: &mut usize) -> bool {
    let mut allowed = all_of(words, at);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        allowed |= all_of(words, at);
    }
    allowed
}

fn all_of(words: &[&str], at: &mut usize) -> bool {
    let mut allowed = one(words, at);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        allowed &= one(words, at);
    }
    allowed
}

fn one(words: &[&str], at: &mut usize) -> bool {
    let Some(&word) = words.get(*at) else { return false };
    *at += 1;
    if word == "(" {
        let allowed = any_of(words, at);
        *at += 1;
        return allowed;
    }
    if words.get(*at) == Some(&"WITH") {
        let with = format!("{word} WITH {}", words.get(*at + 1).copied().unwrap_or_default());
        *at += 2;
        return LICENCES.contains(&with.as_str());
    }
    LICENCES.contains(&word)
}
