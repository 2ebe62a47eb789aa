//! README against the program, both ways: what it says is there is, and what is there it says.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use clap::{Arg, CommandFactory};
use redleader::clock::Moment;
use redleader::command::Exit;
use redleader::election::event::StepDown;
use redleader::election::leadership::{Belief, Leadership, NodeView, State, Vote};
use redleader::election::timing::{Timing, Wish};
use redleader::metrics::{DEFINITIONS, Metrics};
use redleader::redsync::reply::Kind;
use std::time::Duration;

const README: &str = include_str!("../README.md");

#[test]
fn every_flag_of_run_is_in_the_table_as_it_is() {
    let command = redleader::cli::Cli::command();
    let run = command.find_subcommand("run").unwrap();
    let is_flag = |arg: &&Arg| !arg.is_positional() && !matches!(arg.get_id().as_str(), "help" | "version");
    let arguments = run.get_arguments().filter(is_flag);
    let real: BTreeMap<String, [String; 2]> = arguments
        .filter(|arg| !arg.is_hide_set())
        .map(|arg| {
            let variable = arg.get_env().unwrap().to_string_lossy().into_owned();
            (format!("--{}", arg.get_long().unwrap()), [variable, default(arg)])
        })
        .collect();
    assert_eq!(told("| flag | environment | default | meaning |"), real);
}

#[test]
fn every_metric_is_in_the_table_as_it_is() {
    let types = types();
    let real: BTreeMap<String, [String; 2]> =
        DEFINITIONS.iter().map(|of| (of.name.to_owned(), [types[of.name].clone(), of.labels.join(", ")])).collect();
    assert_eq!(told("| name | type | labels | meaning |"), real);
    // What the program shows on top is said to be there.
    let extra = types.keys().find(|name| !real.contains_key(*name) && !name.starts_with("process_"));
    assert_eq!(extra, None);
}

#[test]
fn every_command_is_in_the_table() {
    let command = redleader::cli::Cli::command();
    let real: Vec<String> = command
        .get_subcommands()
        .filter(|of| !of.is_hide_set())
        .map(|of| format!("redleader {}", of.get_name()))
        .collect();
    let told: Vec<String> = table("| command | does |").into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(told, real);
}

#[test]
fn every_exit_code_is_in_the_table() {
    let ours = [Exit::Well, Exit::NotWell, Exit::Refused, Exit::Failed].map(|exit| exit.code().to_string());
    // Those of a wrapper, which the integration tests see.
    let real: Vec<String> = ours.into_iter().chain(["75", "126", "127", "else"].map(str::to_owned)).collect();
    let told: Vec<String> = table("| code | means |").into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(told, real);
}

#[test]
fn every_state_and_vote_is_named() {
    let words = State::ALL.map(State::as_str).into_iter();
    let votes = [Vote::Held, Vote::Granted, Vote::Free, Vote::Quarantined, Vote::Void, Vote::Unknown];
    for word in words.chain(votes.map(Vote::as_str)) {
        assert!(README.contains(&format!("`{word}`")), "{word}");
    }
}

/// Commands in unit files and images are ones that the program takes.
#[test]
fn commands_in_unit_files_and_images_are_understood() {
    let page = std::fs::read_to_string("docs/wrapper.md").unwrap();
    let unit = page.lines().filter_map(|line| line.strip_prefix("ExecStart=")).map(str::to_owned);
    let image = page
        .lines()
        .filter_map(|line| line.strip_prefix("ENTRYPOINT "))
        .map(|words| serde_json::from_str::<Vec<String>>(words).unwrap().join(" "));
    let commands: Vec<String> = unit.chain(image).collect();
    assert_eq!(commands.len(), 2);
    for command in commands {
        let parsed = redleader::cli::Cli::command().try_get_matches_from(command.split_whitespace());
        let run = parsed.unwrap_or_else(|error| panic!("{command}: {error}"));
        let program = run.subcommand_matches("run").unwrap().get_raw("command").unwrap().count();
        assert_eq!(program, 2, "{command}");
    }
}

#[test]
fn every_link_to_a_file_leads_somewhere() {
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { document.clone() } else { document.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}", document.display());
            let headings = std::fs::read_to_string(&target).unwrap_or_default();
            let is_there = headings.lines().any(|line| line.starts_with('#') && anchor(line) == heading);
            assert!(heading.is_empty() || is_there, "{}: {link}", document.display());
        }
    }
}

#[test]
fn every_page_is_linked_from_the_readme() {
    for document in documents() {
        let path = document.display().to_string();
        assert!(path == "README.md" || README.contains(&format!("]({path})")), "{path}");
    }
}

/// What the examples of docs/tuning.md say follows from a ttl.
#[test]
fn the_choices_of_a_ttl_are_as_the_program_fills_them_in() {
    let text = std::fs::read_to_string("docs/tuning.md").unwrap();
    let rows = table_of(&text, "| ttl | renew | node timeout | grace | valid | quarantine | for |");
    assert!(rows.len() >= 3);
    for row in rows {
        let told: Vec<Duration> = row[..6].iter().map(|cell| duration(cell)).collect();
        let timing = Timing::new(&Wish::with_ttl(told[0])).unwrap();
        let real = [timing.renew(), timing.node_timeout(), timing.grace(), timing.validity(), timing.quarantine()];
        assert_eq!(told[1..], real, "ttl {}", row[0]);
    }
}

#[test]
fn a_sentence_has_a_line_of_its_own() {
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        let mut is_code = false;
        for (line, number) in text.lines().zip(1..) {
            is_code ^= line.starts_with("```");
            let is_prose = !is_code && !line.starts_with('|') && !line.starts_with("```");
            let ends_within = line.match_indices(". ").any(|(at, _)| {
                let before = line[..at].rsplit([' ', '(']).next().unwrap_or_default();
                // A list's number is no sentence.
                before.parse::<u32>().is_err() && line[at + 2..].starts_with(char::is_uppercase)
            });
            assert!(!(is_prose && ends_within), "{}:{number}: {line}", document.display());
        }
    }
}

#[test]
fn every_file_is_on_the_map_and_the_map_names_no_other() {
    let library = std::fs::read_to_string("src/lib.rs").unwrap();
    let rows = library.lines().filter_map(|line| line.strip_prefix("//! | `")?.split(" |").next());
    let places: Vec<&str> = rows.flat_map(|cell| cell.split('`')).filter(|part| part.len() > 2).collect();
    let mut open = vec![std::path::PathBuf::from("src")];
    let mut files = Vec::new();
    while let Some(directory) = open.pop() {
        for path in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                open.push(path);
            } else {
                files.push(path.strip_prefix("src").unwrap().to_string_lossy().into_owned());
            }
        }
    }
    let is_at = |file: &str, place: &str| match place.split_once('*') {
        Some((directory, ending)) => file.starts_with(directory) && file.ends_with(ending),
        None => file.strip_suffix(".rs") == Some(place),
    };
    for file in &files {
        // A module's head stands for its files; tests stand beside what they test.
        let is_head = matches!(file.as_str(), "lib.rs" | "redsync/mod.rs" | "election/mod.rs");
        let is_test = file.contains("tests");
        assert!(is_head || is_test || places.iter().any(|place| is_at(file, place)), "src/{file} is not on the map");
    }
    for place in places {
        let is_there = files.iter().any(|file| is_at(file, place)) || std::path::Path::new(place).exists();
        assert!(
            is_there || std::path::Path::new(&format!("{place}.rs")).exists(),
            "{place} is on the map and not there"
        );
    }
}

/// What the table says of a default: clap's own, or what the help says of one that is computed.
fn default(arg: &Arg) -> String {
    if let Some(default) = arg.get_default_values().first() {
        return default.to_string_lossy().into_owned();
    }
    let help = arg.get_help().unwrap().to_string();
    if help.contains("(required") {
        return "required".to_owned();
    }
    match help.split_once("(default: ") {
        Some((_, rest)) => {
            rest.strip_suffix(')').unwrap_or_else(|| panic!("{help}: the default comes last")).to_owned()
        }
        None => "none".to_owned(),
    }
}

/// Everything that is written for people.
fn documents() -> Vec<std::path::PathBuf> {
    let mut all: Vec<std::path::PathBuf> = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(Into::into).into();
    let pages = std::fs::read_dir("docs").unwrap().map(|entry| entry.unwrap().path());
    all.extend(pages.filter(|path| path.extension().is_some_and(|of| of == "md")));
    all
}

/// What a heading is linked by.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// `1.8s`, `250ms`.
fn duration(text: &str) -> Duration {
    let (number, in_seconds) = match text.strip_suffix("ms") {
        Some(number) => (number, 0.001),
        None => (text.strip_suffix('s').unwrap(), 1.0),
    };
    // Whole microseconds: a tenth of a millisecond is exact.
    Duration::from_micros((number.parse::<f64>().unwrap() * in_seconds * 1e6).round() as u64)
}

/// Of a table whose last column is a meaning, which nothing may lack: the second and third cell, by the first.
fn told(header: &str) -> BTreeMap<String, [String; 2]> {
    table(header)
        .into_iter()
        .map(|row| {
            assert!(!row[3].is_empty(), "{}: no meaning", row[0]);
            (row[0].clone(), [row[1].clone(), row[2].clone()])
        })
        .collect()
}

/// The rows under a header, without the code marks around a first, second or third cell.
fn table(header: &str) -> Vec<Vec<String>> {
    table_of(README, header)
}

fn table_of(text: &str, header: &str) -> Vec<Vec<String>> {
    let mut lines = text.lines().skip_while(|line| *line != header);
    assert!(lines.next().is_some(), "no table {header}");
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let row = row.strip_prefix('|').and_then(|row| row.strip_suffix('|')).unwrap();
        row.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect()
    })
    .collect()
}

/// The type of every metric, as `/metrics` of a leader says it.
fn types() -> BTreeMap<String, String> {
    let now = Moment::from_micros(1_000_000_000);
    let node = NodeView {
        name: "a:6379".to_owned(),
        up: true,
        vote: Vote::Granted,
        lease: Some(now + Duration::from_secs(1)),
        quarantined_until: None,
        latency: None,
        error: None::<Kind>,
        clock_offset_us: Some(1),
        clock_rate_ppm: Some(1),
        evicts: false,
        no_expiry: false,
    };
    let until = now + Duration::from_secs(5);
    let belief = Belief {
        token: 7,
        since: now,
        work_until: until,
        deadline: until,
        extended_at: now,
        stepping_down: None::<StepDown>,
    };
    let leadership = Leadership {
        phase: State::Leader,
        draining: false,
        belief: Some(belief),
        work: None,
        holder: None,
        last_step_down: None,
        quarantine: Duration::from_secs(8),
        quorum: 1,
        quorum_seen: Some(now),
        list_mismatch: false,
        app_healthy: Some(true),
        nodes: vec![node],
    };
    let metrics = Metrics::new("job", "a", &["a:6379".to_owned()]).unwrap();
    let text = metrics.render(&leadership, now, now);
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect()
}
