//! Orphans that became ours: reaped, as the first process of a container has to.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use rustix::process::Pid;
use tokio::signal::unix::{SignalKind, signal};

use super::descendants;
use crate::clock::{self, BootTimer};

/// A dead child that somebody here waits for is reaped at once. Who is still there after this is nobody's.
const PATIENCE: Duration = Duration::from_millis(300);

/// Reaps children that nobody waits for, for ever. A `waitpid` for any child would take those of others away.
pub(super) async fn reap() -> io::Result<()> {
    let mut ended = signal(SignalKind::child())?;
    let timer = BootTimer::new()?;
    let mut waiting: HashSet<Pid> = HashSet::new();
    while ended.recv().await.is_some() {
        loop {
            timer.arm(clock::now() + PATIENCE)?;
            timer.fired().await?;
            let seen: HashSet<Pid> = descendants::own_zombies().into_iter().collect();
            seen.intersection(&waiting).copied().for_each(descendants::reap_one);
            waiting = seen.difference(&waiting).copied().collect();
            if waiting.is_empty() {
                break;
            }
        }
    }
    Ok(())
}
