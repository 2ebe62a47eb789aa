//! A process that dies with the one that started it, however that one ends.
//!
//! The kernel's parent death signal is a process's own to set, and what runs between fork and exec cannot be written
//! without unsafe code. So our own binary is started first: it sets the signal and then becomes the program, under the
//! same process id.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::cli::TiedArgs;

/// Becomes the program, to be killed when the thread that started this process ends. Returns only if that fails.
#[must_use]
pub fn become_program(args: &TiedArgs) -> io::Error {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    // Whoever died before the signal was set can no longer send it.
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    if parent != Some(args.parent) {
        return io::Error::other("the process that wanted it is gone");
    }
    let Some((program, rest)) = args.program.split_first() else {
        return io::Error::other("no program is named");
    };
    let error = Command::new(program).args(rest).exec();
    io::Error::new(error.kind(), format!("{}: {error}", program.display()))
}

/// How a process ends that could not become the program: as a shell ends, 127 if it was not found, else 126.
#[must_use]
pub fn code(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}
