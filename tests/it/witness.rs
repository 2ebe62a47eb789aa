//! The witness as a child of the wrapper: its file, its lines, and what the lines of several say together.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Replica, TempDir, boot_micros, eventually};

/// Twice the witness's rhythm and more: whoever has not written for so long does not write.
pub const SILENCE: Duration = Duration::from_millis(250);

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// When it was written, in boot time.
    pub at_us: u64,
    /// The token that its writer was given.
    pub token: u64,
    /// Whose child its writer was.
    pub identity: String,
    /// Its writer.
    pub pid: u32,
}

/// The file that witnesses of one lock write to.
pub struct Witness {
    directory: TempDir,
}

impl Witness {
    pub fn new() -> Self {
        Self { directory: TempDir::new() }
    }

    /// The program. `cargo build --examples` makes it.
    pub fn program() -> PathBuf {
        let own = std::env::current_exe().expect("a running test has a path");
        let built = own.parent().and_then(Path::parent).expect("target/PROFILE/deps").join("examples/witness");
        assert!(built.exists(), "{} is missing: cargo build --example witness", built.display());
        built
    }

    /// The program and its file, for a shell.
    pub fn command(&self) -> String {
        format!("{} {}", Self::program().display(), self.file().display())
    }

    /// The program and its file, as words.
    pub fn words(&self) -> [String; 2] {
        [Self::program().display().to_string(), self.file().display().to_string()]
    }

    /// Where a script finds room for files of its own.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn file(&self) -> PathBuf {
        self.directory.join("lines")
    }

    /// All lines so far, in the order in which they were written.
    pub fn lines(&self) -> Vec<Written> {
        let text = std::fs::read_to_string(self.file()).unwrap_or_default();
        text.lines().map(|line| parse(line).unwrap_or_else(|| panic!("not a witness's line: {line:?}"))).collect()
    }

    /// Waits until one with a token larger than `after` has written, and gives its last line.
    #[track_caller]
    pub fn wait_written(&self, after: u64, deadline: Duration) -> Written {
        let what = format!("a witness with a token after {after} writes");
        eventually(&what, deadline, || self.lines().pop().filter(|line| line.token > after))
    }

    /// Waits until nobody has written for [`SILENCE`], and gives the last line.
    #[track_caller]
    pub fn wait_silent(&self, deadline: Duration) -> Written {
        eventually("the witness is silent", deadline, || {
            let last = self.lines().pop()?;
            let silence = u64::try_from(SILENCE.as_micros()).expect("short");
            (boot_micros().saturating_sub(last.at_us) > silence).then_some(last)
        })
    }
}

fn parse(line: &str) -> Option<Written> {
    let mut words = line.split(' ');
    let at_us = words.next()?.parse().ok()?;
    let token = words.next()?.parse().ok()?;
    let identity = words.next()?.to_owned();
    let pid = words.next()?.parse().ok()?;
    Some(Written { at_us, token, identity, pid })
}

/// Each line of an owner that was written after one of its successor.
pub fn interleaved(lines: &[Written]) -> Vec<Written> {
    let mut largest = 0;
    let mut late = Vec::new();
    for line in lines {
        if line.token < largest {
            late.push(line.clone());
        }
        largest = largest.max(line.token);
    }
    late
}

/// The last deadline that a replica's guardian was told for a token, in milliseconds of boot time. Needs the level debug.
pub fn deadline_ms(replica: &Replica, token: u64) -> Option<u64> {
    let lines = replica.logged("the guardian is told the deadline");
    lines
        .iter()
        .filter(|line| line.number("token") == Some(token))
        .filter_map(|line| line.number("deadline_ms"))
        .next_back()
}

/// Sends a signal to any process by its number.
pub fn signal(pid: u32, signal: Signal) {
    let _ = kill_process(to_pid(pid), signal);
}

/// True while a process of this number lives; a zombie does nothing any more.
pub fn exists(pid: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let text = String::from_utf8_lossy(&stat).into_owned();
    text.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The direct children of a process, with their names.
pub fn children(parent: u32) -> Vec<(u32, String)> {
    let processes = std::fs::read_dir("/proc").expect("/proc is mounted");
    let pids = processes.filter_map(|process| process.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let child = |pid: u32| {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let text = String::from_utf8_lossy(&stat).into_owned();
        let (head, rest) = text.rsplit_once(") ")?;
        let is_child = rest.split(' ').nth(1)?.parse() == Ok(parent);
        is_child.then(|| (pid, head.split_once('(').map_or(String::new(), |(_, name)| name.to_owned())))
    };
    pids.filter_map(child).collect()
}

/// The guardian of a replica's child.
#[track_caller]
pub fn guardian(replica: &Replica) -> u32 {
    let is_guardian = |(pid, name): (u32, String)| (name == "redleader-guard").then_some(pid);
    eventually("a guardian runs", Duration::from_secs(10), || children(replica.pid()).into_iter().find_map(is_guardian))
}

fn to_pid(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).expect("process ids are small")).expect("not zero")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_after_one_of_the_successor_is_found() {
        let line = |token| Written { at_us: 1, token, identity: "a".to_owned(), pid: 1 };
        assert_eq!(interleaved(&[line(1), line(1), line(2), line(5)]), []);
        assert_eq!(interleaved(&[line(1), line(2), line(1), line(2), line(1)]), [line(1), line(1)]);
    }
}
