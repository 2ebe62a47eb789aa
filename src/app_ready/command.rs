//! A check that is a program: no shell, a process group of its own, and no secret of ours.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;

use super::check::Failure;
use crate::cli::Environment;

/// Runs it to its end. Dropped before that, it kills the program with all that it started.
pub(super) async fn run(words: &[String], environment: &Environment) -> Result<(), Failure> {
    let Some((program, rest)) = words.split_first() else { return Ok(()) };
    let mut command = Command::new(program);
    environment.apply(command.as_std_mut());
    // What it prints could be a secret, and is nobody's to bound.
    command.args(rest).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.process_group(0).kill_on_drop(true);
    let mut child = command.spawn().map_err(Failure::Run)?;
    let _group = Group(child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
    let status = child.wait().await.map_err(Failure::Run)?;
    if status.success() { Ok(()) } else { Err(Failure::Exit(status)) }
}

/// A process group, killed on drop: also what a program leaves behind when it ends by itself.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // An error says that there is none any more.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
