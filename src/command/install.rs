//! `install DIR`: puts a copy of this binary into a directory, for images that have nothing to copy with.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use crate::command::{Exit, Said};
use crate::config::InstallConfig;

/// What the copy is called.
const NAME: &str = "redleader";

/// Ourselves, as the kernel has us open: also when the file has been replaced since we started.
const OURSELVES: &str = "/proc/self/exe";

/// Copies this binary to `DIR/redleader`, in one step for whoever looks: a copy that breaks off leaves nothing there.
#[must_use]
pub fn install(config: &InstallConfig) -> Said {
    let InstallConfig { directory } = config;
    let target = directory.join(NAME);
    match copy(directory, &target) {
        Ok(()) => Said { text: format!("installed {}", target.display()), exit: Exit::Well },
        Err(why) => {
            let hint = if why.kind() == io::ErrorKind::NotFound {
                ": does the directory exist?"
            } else if matches!(why.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) {
                ": may this user write there?"
            } else {
                ""
            };
            Said { text: format!("cannot install into {}: {why}{hint}", directory.display()), exit: Exit::Refused }
        }
    }
}

fn copy(directory: &Path, target: &Path) -> io::Result<()> {
    // In the same directory, since a rename does not leave its file system; two that install together do not meet.
    let scratch = directory.join(format!(".{NAME}.{}", std::process::id()));
    let copied = write(&scratch).and_then(|()| fs::rename(&scratch, target));
    if copied.is_err() {
        // It may not even be there.
        let _ = fs::remove_file(&scratch);
    }
    copied
}

fn write(scratch: &Path) -> io::Result<()> {
    let mut from = File::open(OURSELVES)?;
    let mut to = OpenOptions::new().write(true).create_new(true).mode(0o755).open(scratch)?;
    io::copy(&mut from, &mut to)?;
    // Whatever the umask took away: the app that runs it may be another user.
    to.set_permissions(fs::Permissions::from_mode(0o755))?;
    to.sync_all()
}
