//! Sockets to listen on. They are bound before any thread starts, so that an address in use ends the process at once.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Connections that wait to be accepted: as many as may be open, so that a burst of them waits and is not refused.
const BACKLOG: i32 = 1024;

/// A bound socket. A socket file is removed when it is dropped.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: Socket,
    pub(super) file: Option<SocketFile>,
}

#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Why a socket could not be bound.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BindError {
    /// The kernel said no.
    #[error("cannot listen on {flag} {address}: {source}")]
    Io {
        /// The flag that names the address.
        flag: &'static str,
        /// The address.
        address: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another process listens on the socket file.
    #[error("--control unix:{}: another process listens there: stop it, or choose another path", .0.display())]
    InUse(PathBuf),
    /// A file of another sort is in the way.
    #[error("--control unix:{}: there is a file that is no socket: remove it, or choose another path", .0.display())]
    NotASocket(PathBuf),
}

/// Binds `--listen`.
///
/// # Errors
/// When the address is in use or may not be used.
pub fn bind_tcp(address: SocketAddr) -> Result<Listener, BindError> {
    Listener::tcp("--listen", address)
}

impl Listener {
    /// The address in use, with the port that the kernel chose if 0 was asked for; `None` for a unix socket.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Tcp(listener) => listener.local_addr().ok(),
            Socket::Unix(_) => None,
        }
    }

    pub(super) fn tcp(flag: &'static str, address: SocketAddr) -> Result<Self, BindError> {
        TcpListener::bind(address)
            .and_then(|listener| prepare(&listener, |on| listener.set_nonblocking(on)).map(|()| listener))
            .map(|listener| Self { socket: Socket::Tcp(listener), file: None })
            .map_err(|source| BindError::Io { flag, address: address.to_string(), source })
    }

    pub(super) fn abstract_name(name: &str) -> Result<Self, BindError> {
        UnixAddr::from_abstract_name(name)
            .and_then(|address| UnixListener::bind_addr(&address))
            .and_then(|listener| Self::unix(listener, None))
            .map_err(|source| BindError::Io { flag: "--control", address: format!("@{name}"), source })
    }

    pub(super) fn path(path: &Path) -> Result<Self, BindError> {
        let fault = |source| BindError::Io { flag: "--control", address: format!("unix:{}", path.display()), source };
        remove_stale(path)?;
        let listener = UnixListener::bind(path).map_err(fault)?;
        let file = SocketFile::new(path).map_err(fault)?;
        // Until this takes effect, the user of each connection is checked all the same.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(fault)?;
        Self::unix(listener, Some(file)).map_err(fault)
    }

    fn unix(listener: UnixListener, file: Option<SocketFile>) -> io::Result<Self> {
        prepare(&listener, |on| listener.set_nonblocking(on))?;
        Ok(Self { socket: Socket::Unix(listener), file })
    }
}

fn prepare(listener: impl AsFd, set_nonblocking: impl Fn(bool) -> io::Result<()>) -> io::Result<()> {
    set_nonblocking(true)?;
    // The standard library listens with a shorter queue, and listening again only changes its length.
    rustix::net::listen(listener, BACKLOG)?;
    Ok(())
}

/// Removes a socket file that a process left behind, and nothing else.
fn remove_stale(path: &Path) -> Result<(), BindError> {
    let fault = |source| BindError::Io { flag: "--control", address: format!("unix:{}", path.display()), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fault(error)),
        Ok(found) if !found.file_type().is_socket() => return Err(BindError::NotASocket(path.to_owned())),
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(fault),
        Err(error) => Err(fault(error)),
        Ok(_) => Err(BindError::InUse(path.to_owned())),
    }
}

/// A socket file of ours, until it is dropped.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        let found = fs::symlink_metadata(path)?;
        Ok(Self { path: path.to_owned(), device: found.dev(), inode: found.ino() })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have put its own there since.
        let ours =
            fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode));
        if ours {
            // Nothing is left to do about a failure: the file is stale, and is replaced at the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}
