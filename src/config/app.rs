//! The app that leadership is for: how its health is asked, and the file that it reads.

use std::path::PathBuf;
use std::time::Duration;

use super::{Faults, Why, duration, given, value};
use crate::app_ready::{AppReady, Check};
use crate::cli::AppArgs;
use crate::election::timing::Timing;

/// How the app is asked. Its numbers are checked even if it is not, so that a slip does not wait for the day it is.
pub(super) fn ready(args: &AppArgs, timing: Option<&Timing>, faults: &mut Faults) -> Option<AppReady> {
    let check = given("--app-ready", args.app_ready.as_deref(), faults);
    let check = check.and_then(|check| faults.keep("--app-ready", Check::parse(check)));
    let every = duration("--app-ready-every", Some(&args.app_ready_every), faults);
    let failures = faults.keep("--app-ready-failures", value::count(&args.app_ready_failures));
    let grace = duration("--app-grace", Some(&args.app_grace), faults);
    if every.is_some_and(|every| every < APP_READY_EVERY_LEAST) {
        faults.note("--app-ready-every", Why::TooSmall("10ms"));
    }
    if failures == Some(0) {
        faults.note("--app-ready-failures", Why::TooSmall("1"));
    }
    for (flag, given) in [("--app-ready-every", every), ("--app-grace", grace)] {
        if given.is_some_and(|given| given > APP_MOST) {
            faults.note(flag, Why::TooLarge);
        }
    }
    let check = check?;
    // Between two looks at the lock a shorter leadership of another could pass unseen.
    if timing.zip(grace).is_some_and(|(timing, grace)| grace < timing.ttl()) {
        faults.note("--app-grace", Why::TooSmall("the ttl"));
    }
    Some(AppReady { check, every: every?, failures: failures?, grace: grace? })
}

/// Below it a check is a load of its own, and a slip of the unit.
const APP_READY_EVERY_LEAST: Duration = Duration::from_millis(10);
/// A day: what is asked less often is no condition.
const APP_MOST: Duration = Duration::from_hours(24);

pub(super) fn file(args: &AppArgs, faults: &mut Faults) -> Option<PathBuf> {
    let path = PathBuf::from(given("--leadership-file", args.leadership_file.as_deref(), faults)?);
    if path.file_name().is_none() || path.is_dir() {
        faults.note("--leadership-file", Why::NoFile);
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parse_from};
    use crate::config::Config;

    fn run(words: &str) -> Result<Config, String> {
        let words = format!("redleader run --lock l --redis redis://a,redis://b,redis://c {words}");
        let cli = parse_from(words.split_whitespace().map(|word| word.replace("EMPTY", "").into()));
        let Command::Run(args) = cli.map_err(|stop| stop.text)?.command else { panic!("run") };
        Config::from_args(&args).map_err(|error| error.to_string())
    }

    #[test]
    fn the_app_is_no_condition_unless_it_is_named() {
        let config = run("").unwrap();
        assert!(config.app_ready.is_none() && config.leadership_file.is_none());
        let config = run("--app-ready file:/run/ready --leadership-file leader.json").unwrap();
        let ready = config.app_ready.unwrap();
        assert_eq!(ready.check, Check::File("/run/ready".into()));
        assert_eq!((ready.every, ready.failures), (Duration::from_secs(1), 3));
        assert_eq!(ready.grace, Duration::from_secs(60));
        assert_eq!(config.leadership_file, Some("leader.json".into()));
    }

    #[test]
    fn each_fault_names_its_flag() {
        for (words, expected) in [
            ("--app-ready EMPTY", "--app-ready: is empty"),
            ("--app-ready /run/ready", "--app-ready: must be an http:// URL, file:PATH or exec:COMMAND"),
            ("--app-ready file:a --app-grace 7s", "--app-grace: must be at least the ttl"),
            ("--app-ready-every 5ms", "--app-ready-every: must be at least 10ms"),
            ("--app-ready-every 25h", "--app-ready-every: is too large"),
            ("--app-grace 1", "--app-grace: has no unit: write it like 500ms, 8s or 1m30s"),
            ("--app-grace 25h", "--app-grace: is too large"),
            ("--app-ready-failures 0", "--app-ready-failures: must be at least 1"),
            ("--app-ready-failures many", "--app-ready-failures: must be a whole number, at least 0"),
            ("--leadership-file EMPTY", "--leadership-file: is empty"),
            ("--leadership-file /", "--leadership-file: names no file but a directory"),
            ("--leadership-file /tmp", "--leadership-file: names no file but a directory"),
        ] {
            assert_eq!(run(words).err().as_deref(), Some(expected), "{words}");
        }
    }
}
