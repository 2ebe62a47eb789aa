//! The forms of single values, and what is wrong with a text that has none of them.
//!
//! A text that is refused is never part of the message: it may be a secret that slipped into the wrong flag.

use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;

use crate::app_ready::CheckError;
use crate::http::control::{ControlAddress, ControlAddressError};
use crate::redsync::name::NameError;
use crate::redsync::url::NodeUrlError;

/// What is wrong with the value of a flag.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Why {
    /// It must be given.
    #[error("is required, here or as {variable} in the environment")]
    Required {
        /// The flag's variable.
        variable: &'static str,
    },
    /// It was given without anything in it.
    #[error("is empty")]
    Empty,
    /// It is no text.
    #[error("is not valid UTF-8")]
    NotText,
    /// A duration is a string with a unit.
    #[error("has no unit: write it like 500ms, 8s or 1m30s")]
    NoUnit,
    /// Time does not run backwards.
    #[error("must not be negative")]
    Negative,
    /// More than a day by far.
    #[error("is too large")]
    TooLarge,
    /// Below what can work.
    #[error("must be at least {0}")]
    TooSmall(&'static str),
    /// A path where no file can be.
    #[error("names no file but a directory")]
    NoFile,
    /// Not a check of an app.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// Words cannot be told apart.
    #[error("has a quote that is not closed")]
    OpenQuote,
    /// Anything else than a duration.
    #[error("is no duration: write it like 500ms, 8s or 1m30s")]
    NoDuration,
    /// A share without its sign could be read as a factor.
    #[error("needs the unit %: write it like 10% or 12.5%")]
    NoPercent,
    /// Anything else than a whole number.
    #[error("must be a whole number, at least 0")]
    NoCount,
    /// Out of a closed set.
    #[error("must be one of: {0}")]
    OneOf(&'static str),
    /// Not a place to listen.
    #[error("must be ADDRESS:PORT, such as 0.0.0.0:9797 or [::]:9797, or off")]
    NoListen,
    /// Not a place for control.
    #[error(transparent)]
    Control(#[from] ControlAddressError),
    /// A name that a lock or identity must not have.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A name that Kubernetes does not give.
    #[error("must have 1 to 253 characters out of a-z, A-Z, 0-9, `.` and `-`")]
    NoPodName,
    /// A name that no object of Kubernetes can have.
    #[error(
        "must be a DNS name: at most 253 characters out of a-z, 0-9, `-` and `.`, each part with a letter or digit at its ends"
    )]
    NoObjectName,
    /// Not a proxy that we go through.
    #[error("must be http://HOST:PORT, without user, password or path")]
    NoProxy,
    /// A URL that names no node.
    #[error("{place} {position} {why}")]
    Url {
        /// "URL" or "line".
        place: &'static str,
        /// Which one, from 1.
        position: usize,
        /// What is wrong with it.
        why: NodeUrlError,
    },
    /// Two commas in a row, or one at an end.
    #[error("{place} {position} is empty")]
    EmptyUrl {
        /// "URL" or "line".
        place: &'static str,
        /// Which one, from 1.
        position: usize,
    },
    /// Every process of the machine reads the arguments of every other.
    #[error(
        "URL {position} has a password, and every process can read the command line: put it into REDLEADER_REDIS, \
         --redis-file or --redis-password-file"
    )]
    PasswordOnArgv {
        /// Which one, from 1.
        position: usize,
    },
    /// One server would have two votes.
    #[error("{node} is named more than once: each node has one vote")]
    SameNode {
        /// The node.
        node: String,
    },
    /// A round trip to so many costs more than it can save.
    #[error("names {count} nodes, and at most {most} make sense: 3 tolerate 1 failure, 5 tolerate 2")]
    TooManyNodes {
        /// How many were given.
        count: usize,
        /// How many may be.
        most: usize,
    },
    /// A file that cannot be read.
    #[error("the file cannot be read: {0}")]
    File(std::io::Error),
    /// A file that is far larger than what it should hold.
    #[error("the file has more than {limit} bytes")]
    LargeFile {
        /// Bytes that are read at most.
        limit: u64,
    },
    /// Two flags of which one is useless.
    #[error("must not be given together with {0}")]
    Together(&'static str),
    /// Two flags of which one needs the other.
    #[error("needs {0}")]
    Needs(&'static str),
    /// Where there is nobody to ask.
    #[error("must say where the redleader beside us takes control: it is off, or --listen has no port to follow from")]
    NoControlKnown,
}

/// Where probes, leader and metrics are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// There; port 0 is any that is free.
    At(SocketAddr),
}

/// The form of a command's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Lines for people.
    Text,
    /// One JSON object.
    Json,
}

/// What `wait` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// A holder of a quorum of the nodes.
    Leader,
    /// A quorum of nodes that answer.
    Quorum,
}

/// More digits than any sane duration has, and few enough that no sum of units overflows.
const DIGITS_MOST: usize = 15;

pub(super) fn duration(text: &str) -> Result<Duration, Why> {
    let text = text.trim();
    if text.is_empty() {
        return Err(Why::Empty);
    }
    if text.starts_with('-') {
        return Err(Why::Negative);
    }
    if text.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > DIGITS_MOST) {
        return Err(Why::TooLarge);
    }
    if text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(Why::NoUnit);
    }
    humantime::parse_duration(text).map_err(|error| match error {
        humantime::DurationError::NumberOverflow => Why::TooLarge,
        humantime::DurationError::Empty => Why::Empty,
        humantime::DurationError::InvalidCharacter(_)
        | humantime::DurationError::NumberExpected(_)
        | humantime::DurationError::UnknownUnit { .. } => Why::NoDuration,
    })
}

/// A share in thousandths, out of `10%` or `12.5%`.
pub(super) fn permille(text: &str) -> Result<u32, Why> {
    let text = text.trim();
    if text.is_empty() {
        return Err(Why::Empty);
    }
    if text.starts_with('-') {
        return Err(Why::Negative);
    }
    let number = text.strip_suffix('%').ok_or(Why::NoPercent)?.trim_end();
    let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(tenth) || tenth.len() > 1 {
        return Err(Why::NoPercent);
    }
    // Only digits are left, so what does not fit is too large.
    format!("{whole}{tenth}").parse().map_err(|_| Why::TooLarge)
}

pub(super) fn count(text: &str) -> Result<u32, Why> {
    match text.trim() {
        "" => Err(Why::Empty),
        text if text.starts_with('-') => Err(Why::Negative),
        text if !text.bytes().all(|b| b.is_ascii_digit()) => Err(Why::NoCount),
        text => text.parse().map_err(|_| Why::TooLarge),
    }
}

pub(super) fn listen(text: &str) -> Result<Listen, Why> {
    match text.trim() {
        "" => Err(Why::Empty),
        "off" => Ok(Listen::Off),
        text => text.parse().map(Listen::At).map_err(|_| Why::NoListen),
    }
}

/// `None` is off.
pub(super) fn control(text: &str) -> Result<Option<ControlAddress>, Why> {
    match text.trim() {
        "" => Err(Why::Empty),
        "off" => Ok(None),
        text => Ok(Some(ControlAddress::parse(text)?)),
    }
}

pub(super) fn pod_name(text: &str) -> Result<String, Why> {
    let is_name =
        (1..=253).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-'));
    if is_name { Ok(text.to_owned()) } else { Err(Why::NoPodName) }
}

pub(super) fn output(text: &str) -> Result<Output, Why> {
    match text {
        "text" => Ok(Output::Text),
        "json" => Ok(Output::Json),
        _ => Err(Why::OneOf("text, json")),
    }
}

pub(super) fn wait_for(text: &str) -> Result<WaitFor, Why> {
    match text {
        "leader" => Ok(WaitFor::Leader),
        "quorum" => Ok(WaitFor::Quorum),
        _ => Err(Why::OneOf("leader, quorum")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_and_everything_else_is_named() {
        let nineteen_digits = "1000000000000000000";
        let overflow = "18446744073709551615s 1000000000ns";
        for (text, expected) in [
            ("8s", Ok(8000)),
            ("400ms", Ok(400)),
            ("1m30s", Ok(90_000)),
            ("6.2s", Ok(6200)),
            (" 8s ", Ok(8000)),
            ("0s", Ok(0)),
            ("", Err("is empty")),
            ("  ", Err("is empty")),
            ("0", Err("has no unit: write it like 500ms, 8s or 1m30s")),
            ("8", Err("has no unit: write it like 500ms, 8s or 1m30s")),
            ("1.5", Err("has no unit: write it like 500ms, 8s or 1m30s")),
            ("-5s", Err("must not be negative")),
            (nineteen_digits, Err("is too large")),
            (&format!("{nineteen_digits}s"), Err("is too large")),
            (&format!("{nineteen_digits}{nineteen_digits}ms"), Err("is too large")),
            (overflow, Err("is too large")),
            ("999999999999999y", Err("is too large")),
            ("999999999999999weeks", Err("is too large")),
            ("10^18", Err("is no duration: write it like 500ms, 8s or 1m30s")),
            ("1e+06", Err("is no duration: write it like 500ms, 8s or 1m30s")),
            ("S3cr3t", Err("is no duration: write it like 500ms, 8s or 1m30s")),
            ("8 parsecs", Err("is no duration: write it like 500ms, 8s or 1m30s")),
        ] {
            let found = duration(text).map(|d| d.as_millis()).map_err(|why| why.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{text:?}");
        }
    }

    #[test]
    fn shares_have_their_sign() {
        for (text, expected) in [
            ("10%", Some(100)),
            ("12.5%", Some(125)),
            ("0%", Some(0)),
            ("10 %", Some(100)),
            ("10", None),
            ("0.1", None),
            ("", None),
            ("-1%", None),
            ("%", None),
            ("1.25%", None),
            ("99999999999%", None),
            ("ten%", None),
        ] {
            assert_eq!(permille(text).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn control_is_an_address_or_off() {
        assert_eq!(control(" @here ").unwrap(), Some(ControlAddress::Abstract("here".to_owned())));
        assert_eq!(control("off").unwrap(), None);
        assert_eq!(control("").unwrap_err().to_string(), "is empty");
        assert!(control("0.0.0.0:9798").unwrap_err().to_string().starts_with("must be on loopback"));
    }

    #[test]
    fn a_place_to_listen_is_an_address() {
        for (text, is_ok) in [
            ("0.0.0.0:9797", true),
            ("[::]:9797", true),
            ("127.0.0.1:0", true),
            ("off", true),
            ("", false),
            (":9797", false),
            ("9797", false),
            ("localhost:9797", false),
            ("0.0.0.0:99999", false),
        ] {
            assert_eq!(listen(text).is_ok(), is_ok, "{text:?}");
        }
    }

    #[test]
    fn counts_are_whole() {
        for (text, expected) in
            [("0", Some(0)), ("3", Some(3)), ("", None), ("-1", None), ("1.5", None), ("99999999999", None)]
        {
            assert_eq!(count(text).ok(), expected, "{text:?}");
        }
    }
}
