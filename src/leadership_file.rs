//! The report of `/leader` in a file, for programs that read files: always whole, and with its own end in it.
//!
//! Each version is written beside the file and renamed over it, so that a reader sees one version or the next. A reader
//! compares `validUntilBootMs` with CLOCK_BOOTTIME: what a process that was killed or hangs has left behind says by itself
//! when it ended. A file that cannot be written costs a warning and never the leadership.

use std::ffi::OsString;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::clock::BootTimer;
use crate::election::watch::Watch;
use crate::http::{Replica, Report};
use crate::metrics::Metrics;

/// Anybody may read who leads; it is no secret, as `/leader` is none.
const MODE: u32 = 0o644;

/// How soon a write that failed is tried again if nothing changes until then.
const RETRY: Duration = Duration::from_secs(1);

/// How long the end waits for the removal of the file: a file system that hangs must not hold up an exit.
const PATIENCE: Duration = Duration::from_secs(1);

/// A file that follows a watch.
#[derive(Debug)]
pub struct LeadershipFile {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl LeadershipFile {
    /// Writes the file at `path` now, and again at each change and each extend. Must be called inside a tokio runtime.
    #[must_use]
    pub fn start(path: PathBuf, watch: Watch, replica: Replica, metrics: Metrics) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(keep(Keeper { path, watch, replica, metrics, has_failed: false }, stopped));
        Self { stop, task }
    }

    /// Removes it: who finds no file knows that nobody leads here.
    pub async fn finish(self) {
        // An error says that the task has ended by itself, with the election.
        let _ = self.stop.send(());
        let _ = timeout(PATIENCE, self.task).await;
    }
}

struct Keeper {
    path: PathBuf,
    watch: Watch,
    replica: Replica,
    metrics: Metrics,
    has_failed: bool,
}

async fn keep(mut keeper: Keeper, mut stopped: oneshot::Receiver<()>) {
    let timer = BootTimer::new();
    loop {
        keeper.write().await;
        let now = keeper.watch.now();
        let retry = keeper.has_failed.then(|| now + RETRY);
        let turn = keeper.watch.leadership().next_turn(now).into_iter().chain(retry).min();
        let turned = async {
            if let Ok(timer) = &timer
                && let Ok(more) = keeper.watch.turned(timer, turn).await
            {
                return more;
            }
            // Without a timer what is published is written nevertheless.
            keeper.watch.changed().await
        };
        tokio::select! {
            // It is asked to stop, or whoever could ask is gone.
            _ = &mut stopped => break,
            more = turned => if !more { break },
        }
    }
    let path = keeper.path;
    // A thread of its own, as for the writes; there is nothing to be done if it fails.
    let _ = tokio::task::spawn_blocking(move || fs::remove_file(path)).await;
}

impl Keeper {
    async fn write(&mut self) {
        let report = Report::of(&self.replica, &self.watch.leadership(), self.watch.now());
        let mut json = serde_json::to_vec(&report).expect("a struct of texts and numbers is always JSON");
        json.push(b'\n');
        let path = self.path.clone();
        let written = tokio::task::spawn_blocking(move || replace(&path, &json, report.leading)).await;
        match written.unwrap_or_else(|gone| Err(io::Error::other(gone))) {
            Ok(()) if self.has_failed => {
                self.has_failed = false;
                info!(path = %self.path.display(), "leadership file written again");
            }
            Ok(()) => {}
            Err(why) => {
                self.metrics.leadership_file_error();
                if !self.has_failed {
                    self.has_failed = true;
                    warn!(path = %self.path.display(), reason = %why, "leadership file cannot be written");
                }
            }
        }
    }
}

/// Puts `content` in the place of the file at `path`. Where that fails and we do not lead, the file is removed: it may
/// still say that we do.
fn replace(path: &Path, content: &[u8], is_leading: bool) -> io::Result<()> {
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or_else(|| io::Error::other("it has no name"))?);
    name.push(format!(".{}", std::process::id()));
    let beside = path.with_file_name(name);
    let written = write_beside(&beside, content).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // Errors of these say no more than the first one.
        let _ = fs::remove_file(&beside);
        if !is_leading {
            let _ = fs::remove_file(path);
        }
    }
    written
}

fn write_beside(path: &Path, content: &[u8]) -> io::Result<()> {
    // What a process of the same id has left behind; and never through a link that somebody else has put there.
    match fs::remove_file(path) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)?;
    file.set_permissions(Permissions::from_mode(MODE))?;
    file.write_all(content)
}
