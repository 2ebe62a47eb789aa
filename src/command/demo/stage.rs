//! What a person sees: lines, and on a terminal a countdown that stays in its place.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use super::DemoError;

const BOLD: &str = "\x1b[1m";
const GREEN: &str = "\x1b[32m";
const DIM: &str = "\x1b[2m";
const RESET: &str = "\x1b[0m";
/// To the first column, and the line empty.
const AGAIN: &str = "\r\x1b[2K";

/// Standard output.
pub(super) struct Stage {
    is_terminal: bool,
    is_coloured: bool,
    has_countdown: bool,
    /// The whole seconds that were told last, where a countdown is a line for each.
    told: Option<u64>,
    chapter: u32,
}

impl Stage {
    /// `plain`: no colour and no cursor movement, terminal or not.
    pub(super) fn new(plain: bool) -> Self {
        let is_terminal = io::stdout().is_terminal() && !plain;
        Self { is_terminal, is_coloured: is_terminal, has_countdown: false, told: None, chapter: 0 }
    }

    /// A line before the first chapter.
    pub(super) fn title(&mut self, text: impl Display) -> Result<(), DemoError> {
        self.line(BOLD, text)
    }

    /// The next chapter's heading.
    pub(super) fn chapter(&mut self, text: &str) -> Result<(), DemoError> {
        self.chapter += 1;
        self.line("", "")?;
        let number = self.chapter;
        self.line(BOLD, format_args!("{number}. {text}"))
    }

    /// A fact.
    pub(super) fn say(&mut self, text: impl Display) -> Result<(), DemoError> {
        self.line("", format_args!("   {text}"))
    }

    /// The fact that a chapter is about.
    pub(super) fn point(&mut self, text: impl Display) -> Result<(), DemoError> {
        self.line(GREEN, format_args!("   {text}"))
    }

    /// How long something still takes: in place on a terminal, else one line for each second.
    pub(super) fn countdown(&mut self, what: &str, left: Duration) -> Result<(), DemoError> {
        let text = format!("   {what}: {:.1} s more", left.as_secs_f64());
        if self.is_terminal {
            self.has_countdown = true;
            return write(format_args!("{AGAIN}{DIM}{text}{RESET}"));
        }
        let second = left.as_secs();
        if self.told.replace(second) == Some(second) {
            return Ok(());
        }
        write(format_args!("{text}\n"))
    }

    /// Takes a countdown away.
    pub(super) fn clear(&mut self) {
        self.told = None;
        if std::mem::take(&mut self.has_countdown) {
            // Whoever does not read does not mind what is left on the line.
            let _ = write(AGAIN);
        }
    }

    fn line(&mut self, colour: &str, text: impl Display) -> Result<(), DemoError> {
        self.clear();
        if self.is_coloured && !colour.is_empty() {
            return write(format_args!("{colour}{text}{RESET}\n"));
        }
        write(format_args!("{text}\n"))
    }
}

fn write(text: impl Display) -> Result<(), DemoError> {
    let mut out = io::stdout().lock();
    write!(out, "{text}").and_then(|()| out.flush()).map_err(DemoError::Unread)
}
