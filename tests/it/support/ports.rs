//! Ports that no other test takes, not even while their server is down.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

use super::process::without_forks;
use super::rng::Rng;

/// Below the range that the kernel takes outgoing ports from: there, a client that dials a dead server's port can be
/// given that very port and be connected to itself.
const RANGE: (u64, u64) = (12_000, 30_000);

/// A port on the loopback addresses, claimed until drop.
///
/// The claim is an abstract unix socket with the port's number in its name: the kernel grants it to one process of
/// the machine, and takes it back when that process ends, however it ends.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claim: UnixListener,
}

impl Port {
    /// Claims a free one.
    pub fn claim() -> Self {
        static CHANCE: Mutex<Option<Rng>> = Mutex::new(None);
        for _ in 0..1000 {
            let draw = {
                let mut chance = CHANCE.lock().unwrap_or_else(PoisonError::into_inner);
                let seed = || Rng::new(super::boot_micros() ^ (u64::from(std::process::id()) << 32));
                chance.get_or_insert_with(seed).between(RANGE.0, RANGE.1)
            };
            let number = u16::try_from(draw).expect("the range ends below 65,536");
            let name = SocketAddr::from_abstract_name(format!("redleader-test-port-{number}")).expect("a short name");
            let Ok(claim) = UnixListener::bind_addr(&name) else { continue };
            if without_forks(|| TcpListener::bind(("127.0.0.1", number)).is_ok()) {
                return Self { number, _claim: claim };
            }
        }
        panic!("no free port between {} and {}", RANGE.0, RANGE.1);
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.number)
    }
}
