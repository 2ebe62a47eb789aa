//! What runs while this replica leads.

use std::ffi::OsString;
use std::time::Duration;

use rustix::process::Signal;

use super::{Faults, Why, duration};
use crate::cli::WorkArgs;
use crate::exec::{OnExit, OnLost};

/// What runs while this replica leads: words as given, not looked up yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The child and its arguments; empty: there is none.
    pub command: Vec<OsString>,
    /// The hook before the child; empty: there is none.
    pub on_elected: Vec<OsString>,
    /// The hook after the child; empty: there is none.
    pub on_stepped_down: Vec<OsString>,
    /// How long a hook may take; `None`: half of the grace.
    pub hook_timeout: Option<Duration>,
    /// When the child ends by itself.
    pub on_exit: OnExit,
    /// When leadership is lost.
    pub on_lost: OnLost,
    /// What the child gets when it is to stop.
    pub stop_signal: Signal,
    /// Where programs are looked for.
    pub search_path: Option<OsString>,
}

/// What a hook may take at most: no hook lasts longer than the validity that is left, and none of those is longer.
const HOOK_MOST: Duration = Duration::from_hours(24);

/// Signals that may stop a program.
const SIGNALS: [(&str, Signal); 9] = [
    ("TERM", Signal::TERM),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("HUP", Signal::HUP),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("WINCH", Signal::WINCH),
    ("PWR", Signal::POWER),
    ("KILL", Signal::KILL),
];

impl Work {
    pub(super) fn read(args: &WorkArgs, faults: &mut Faults) -> Option<Self> {
        let hook_timeout = duration("--hook-timeout", args.hook_timeout.as_deref(), faults);
        if hook_timeout.is_some_and(|timeout| timeout < Duration::from_millis(1)) {
            faults.note("--hook-timeout", Why::TooSmall("1ms"));
        }
        if hook_timeout.is_some_and(|timeout| timeout > HOOK_MOST) {
            faults.note("--hook-timeout", Why::TooLarge);
        }
        let on_exit = faults.keep("--on-exit", on_exit(&args.on_exit));
        let on_lost = faults.keep("--on-lost", on_lost(&args.on_lost));
        let stop_signal = faults.keep("--stop-signal", signal(&args.stop_signal));
        let on_elected = faults.keep("--on-elected", words(args.on_elected.as_deref()));
        let on_stepped_down = faults.keep("--on-stepped-down", words(args.on_stepped_down.as_deref()));
        Some(Self {
            command: args.command.clone(),
            on_elected: on_elected?,
            on_stepped_down: on_stepped_down?,
            hook_timeout,
            on_exit: on_exit?,
            on_lost: on_lost?,
            stop_signal: stop_signal?,
            search_path: args.search_path.clone(),
        })
    }
}

fn on_exit(text: &str) -> Result<OnExit, Why> {
    match text {
        "exit" => Ok(OnExit::Exit),
        "restart" => Ok(OnExit::Restart),
        "release" => Ok(OnExit::Release),
        _ => Err(Why::OneOf("exit, restart, release")),
    }
}

fn on_lost(text: &str) -> Result<OnLost, Why> {
    match (text, text.strip_prefix("signal=")) {
        ("stop", _) => Ok(OnLost::Stop),
        ("exit", _) => Ok(OnLost::Exit),
        (_, Some(name)) => signal(name).map(OnLost::Signal),
        _ => Err(Why::OneOf("stop, signal=SIG, exit")),
    }
}

/// By its name, with or without SIG before it.
fn signal(name: &str) -> Result<Signal, Why> {
    let name = name.strip_prefix("SIG").unwrap_or(name);
    let found = SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal);
    found.ok_or(Why::OneOf("TERM, INT, QUIT, HUP, USR1, USR2, WINCH, PWR, KILL"))
}

/// Split as a shell splits, with its quotes and without its expansions.
fn words(text: Option<&str>) -> Result<Vec<OsString>, Why> {
    let Some(text) = text else { return Ok(Vec::new()) };
    match shlex::split(text) {
        None => Err(Why::OpenQuote),
        Some(words) if words.is_empty() => Err(Why::Empty),
        Some(words) => Ok(words.into_iter().map(OsString::from).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names() {
        assert_eq!(signal("TERM").unwrap(), Signal::TERM);
        assert_eq!(signal("SIGQUIT").unwrap(), Signal::QUIT);
        for bad in ["", "9", "term", "STOP", "SIGSIGTERM"] {
            assert!(signal(bad).is_err(), "{bad}");
        }
        assert_eq!(on_lost("signal=USR1").unwrap(), OnLost::Signal(Signal::USR1));
        assert!(on_lost("signal=").is_err());
        assert!(on_lost("USR1").is_err());
    }

    #[test]
    fn a_command_is_split_as_a_shell_splits_it() {
        assert_eq!(words(None).unwrap(), [""; 0]);
        assert_eq!(words(Some("notify --to 'the team' \"a b\"")).unwrap(), ["notify", "--to", "the team", "a b"]);
        assert_eq!(words(Some("sh -c 'echo $HOME'")).unwrap(), ["sh", "-c", "echo $HOME"]);
        assert_eq!(words(Some("it's")).unwrap_err().to_string(), "has a quote that is not closed");
        assert_eq!(words(Some("  ")).unwrap_err().to_string(), "is empty");
    }
}
