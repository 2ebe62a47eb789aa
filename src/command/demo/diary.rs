//! What the replicas have written in their logs, as far as the story needs it.

use std::sync::Arc;

use serde_json::Value as Json;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::sync::watch;

use super::DemoError;
use crate::redsync::reply::Token;

/// A log line of ours has some hundred bytes; what is longer is cut into pieces that mean nothing.
const LINE_MOST: u64 = 16 * 1024;

/// Every process of the demonstration that writes, in the order of their starts.
#[derive(Debug, Default)]
pub(super) struct Diary(Vec<Actor>);

/// One process.
#[derive(Debug, Default)]
pub(super) struct Actor {
    pub(super) name: String,
    /// It has said that it has started.
    pub(super) has_started: bool,
    /// Token and boot time in milliseconds of each leadership's begin.
    pub(super) elected: Vec<(Token, u64)>,
    /// Token and boot time in milliseconds of each leadership's end.
    pub(super) stepped_down: Vec<(Token, u64)>,
    last: String,
    has_ended: bool,
    may_end: bool,
}

/// A leadership's begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Election {
    pub(super) actor: usize,
    pub(super) name: String,
    pub(super) token: Token,
    /// In boot time.
    pub(super) at_ms: u64,
}

impl Diary {
    /// A new process; gives its index.
    pub(super) fn open(&mut self, name: String) -> usize {
        self.0.push(Actor { name, ..Actor::default() });
        self.0.len() - 1
    }

    pub(super) fn actor(&self, actor: usize) -> &Actor {
        &self.0[actor]
    }

    /// From here on it is no surprise that this process ends.
    pub(super) fn let_end(&mut self, actor: usize) {
        self.0[actor].may_end = true;
    }

    /// Every leadership so far, in the order in which they began.
    pub(super) fn elections(&self) -> Vec<Election> {
        let of_actor = |(actor, said): (usize, &Actor)| {
            let name = said.name.clone();
            said.elected.clone().into_iter().map(move |(token, at_ms)| Election {
                actor,
                name: name.clone(),
                token,
                at_ms,
            })
        };
        let mut elections: Vec<Election> = self.0.iter().enumerate().flat_map(of_actor).collect();
        elections.sort_by_key(|election| election.at_ms);
        elections
    }

    /// The first process that ended by itself.
    pub(super) fn gone(&self) -> Option<DemoError> {
        let gone = self.0.iter().find(|actor| actor.has_ended && !actor.may_end)?;
        let last = if gone.last.is_empty() { "none".to_owned() } else { gone.last.clone() };
        Some(DemoError::Gone { name: gone.name.clone(), last })
    }

    fn note(&mut self, actor: usize, line: &str) {
        let actor = &mut self.0[actor];
        line.trim_end().clone_into(&mut actor.last);
        let Ok(said) = serde_json::from_str::<Json>(line) else { return };
        let number = |field: &str| said[field].as_u64();
        match said["message"].as_str() {
            Some("started") => actor.has_started = true,
            Some("elected") => actor.elected.extend(number("token").zip(number("boot_ms"))),
            Some("stepped down") => actor.stepped_down.extend(number("token").zip(number("boot_ms"))),
            Some(_) | None => {}
        }
    }
}

/// Writes down what a process says, until it says no more.
pub(super) async fn keep(diary: Arc<watch::Sender<Diary>>, actor: usize, output: impl AsyncRead + Unpin) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut output).take(LINE_MOST).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => break,
            Ok(_) => diary.send_modify(|diary| diary.note(actor, &String::from_utf8_lossy(&line))),
        }
    }
    diary.send_modify(|diary| diary.0[actor].has_ended = true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_taken_from_log_lines_and_nothing_else() {
        let mut diary = Diary::default();
        let (a, b) = (diary.open("a".to_owned()), diary.open("b".to_owned()));
        diary.note(b, r#"{"message":"elected","token":7,"boot_ms":900}"#);
        diary.note(a, r#"{"message":"elected","token":5,"boot_ms":100}"#);
        diary.note(a, r#"{"message":"stepped down","token":5,"boot_ms":800}"#);
        diary.note(a, r#"{"message":"elected","token":"9","boot_ms":950}"#);
        diary.note(a, "elected {\n");
        let order: Vec<_> = diary.elections().into_iter().map(|e| (e.name, e.token, e.at_ms)).collect();
        assert_eq!(order, [("a".to_owned(), 5, 100), ("b".to_owned(), 7, 900)]);
        assert_eq!(diary.actor(a).stepped_down, [(5, 800)]);
    }

    #[test]
    fn whoever_ends_unasked_is_named_with_its_last_words() {
        let mut diary = Diary::default();
        let (a, b) = (diary.open("a".to_owned()), diary.open("b".to_owned()));
        diary.let_end(a);
        diary.0[a].has_ended = true;
        assert!(diary.gone().is_none());
        diary.note(b, "out of luck\n");
        diary.0[b].has_ended = true;
        assert_eq!(diary.gone().unwrap().to_string(), "b ended though nobody asked it to; its last words: out of luck");
    }
}
