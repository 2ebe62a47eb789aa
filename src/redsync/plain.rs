//! The plain lock on the wire: what is sent for a step, and what is read out of its reply.
//!
//! One key with the holder's value and an expiry, and nothing else, as go-redsync v4 has it: its holders and ours
//! exclude each other. The scripts are sent whole each time: a NOSCRIPT would let a later command overtake, and an
//! environment without SHA-1 needs no exception.

use redis::{Cmd, Value};

use crate::clock::millis;
use crate::redsync::error;
use crate::redsync::reply::{Found, Kind, Outcome, Plain, RunId, Step};

const EXTEND: &str = include_str!("plain_extend.lua");
const RELEASE: &str = include_str!("plain_release.lua");

/// The command of a step.
pub(super) fn command(plain: &Plain) -> Cmd {
    let (key, value) = (&*plain.key, plain.value.as_str());
    match plain.step {
        Step::Acquire { ttl } => {
            let mut cmd = redis::cmd("SET");
            cmd.arg(key).arg(value).arg("NX").arg("PX").arg(millis(ttl));
            cmd
        }
        Step::Extend { ttl, or_create } => {
            let mut cmd = script(EXTEND, key, value);
            cmd.arg(millis(ttl)).arg(u8::from(or_create));
            cmd
        }
        Step::Release => script(RELEASE, key, value),
        Step::Compare => {
            let mut cmd = redis::cmd("GET");
            cmd.arg(key);
            cmd
        }
    }
}

fn script(text: &str, key: &str, value: &str) -> Cmd {
    let mut cmd = redis::cmd("EVAL");
    cmd.arg(text).arg(1).arg(key).arg(value);
    cmd
}

/// What the reply to a step says. Whatever the step cannot be answered with is [`Kind::Protocol`], and no success.
pub(super) fn outcome(plain: &Plain, run: RunId, reply: &Value) -> Outcome {
    if let Value::ServerError(error) = reply {
        return Outcome::Failed(error::classify(&error::text(error)));
    }
    match found(plain, reply) {
        Some(found) => Outcome::Plain { found, run },
        None => Outcome::Failed(Kind::Protocol),
    }
}

fn found(plain: &Plain, reply: &Value) -> Option<Found> {
    match (plain.step, reply) {
        (Step::Acquire { .. }, Value::Okay) => Some(Found::Ours),
        (Step::Acquire { .. }, Value::Nil) => Some(Found::Other),
        (Step::Extend { .. } | Step::Release, Value::Int(1)) => Some(Found::Ours),
        (Step::Extend { .. } | Step::Release, Value::Int(0)) => Some(Found::Other),
        (Step::Extend { .. } | Step::Release, Value::Int(-1)) | (Step::Compare, Value::Nil) => Some(Found::Absent),
        (Step::Compare, Value::BulkString(bytes)) if bytes == plain.value.as_str().as_bytes() => Some(Found::Ours),
        (Step::Compare, Value::BulkString(_)) => Some(Found::Other),
        (Step::Acquire { .. } | Step::Extend { .. } | Step::Release | Step::Compare, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::redsync::name::Owner;

    #[test]
    fn only_the_answers_of_a_step_are_read() {
        let ttl = Duration::from_secs(8);
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let acquire = Step::Acquire { ttl };
        let extend = Step::Extend { ttl, or_create: false };
        for (step, reply, expected) in [
            (acquire, Value::Okay, Some(Found::Ours)),
            (acquire, Value::Nil, Some(Found::Other)),
            (acquire, Value::Int(1), None),
            (acquire, bulk("OK"), None),
            (extend, Value::Int(1), Some(Found::Ours)),
            (extend, Value::Int(0), Some(Found::Other)),
            (extend, Value::Int(-1), Some(Found::Absent)),
            (extend, Value::Int(2), None),
            (extend, Value::Nil, None),
            (Step::Release, Value::Int(1), Some(Found::Ours)),
            (Step::Release, Value::Okay, None),
            (Step::Compare, bulk("v"), Some(Found::Ours)),
            (Step::Compare, bulk("w"), Some(Found::Other)),
            (Step::Compare, Value::Nil, Some(Found::Absent)),
            (Step::Compare, Value::Int(1), None),
        ] {
            let plain = Plain { key: "k".into(), value: Owner::found("v"), step };
            let expected = match expected {
                Some(found) => Outcome::Plain { found, run: RunId(7) },
                None => Outcome::Failed(Kind::Protocol),
            };
            assert_eq!(outcome(&plain, RunId(7), &reply), expected, "{step:?} {reply:?}");
        }
    }
}
