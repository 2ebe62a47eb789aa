//! A node's name, looked up.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::pin::pin;
use std::time::Duration;
use std::{io, mem};

use dns_lookup::{AddrFamily, AddrInfoHints, SockType, getaddrinfo};
use futures_util::FutureExt as _;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use crate::redsync::error::Failure;
use crate::redsync::reply::Kind;

/// One node's name. `getaddrinfo` cannot be cancelled: a look-up that outlives its connect is waited for by the next one,
/// so that a dead DNS server holds three threads per node and not some per attempt.
///
/// It asks for both families at once, knows which of the addresses are reachable, and waits for the slower answer at each
/// name of the search list. A DNS server that sits on the questions of one family (AAAA, usually) must not cost the vote:
/// after a while each family is asked for by itself.
#[derive(Debug)]
pub(super) struct Resolver {
    both: LookUp,
    v4: LookUp,
    v6: LookUp,
}

impl Default for Resolver {
    fn default() -> Self {
        Self {
            both: LookUp::new(None),
            v4: LookUp::new(Some(AddrFamily::Inet)),
            v6: LookUp::new(Some(AddrFamily::Inet6)),
        }
    }
}

impl Resolver {
    /// The addresses of both families, or after `patience` those of IPv4, or after twice that those of IPv6.
    pub(super) async fn resolve(
        &mut self,
        host: &str,
        port: u16,
        patience: Duration,
    ) -> Result<Vec<SocketAddr>, Failure> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let found = self.first(host, port, patience).await?;
        for look_up in [&mut self.both, &mut self.v4, &mut self.v6] {
            look_up.is_late = true;
        }
        Ok(found)
    }

    async fn first(&mut self, host: &str, port: u16, patience: Duration) -> Result<Vec<SocketAddr>, Failure> {
        let mut both = pin!(self.both.ask(host, port));
        if let Ok(found) = timeout(patience, &mut both).await {
            return found;
        }
        // Where only IPv4 gets through, a quick AAAA must not be taken for all that there is.
        let mut v4 = pin!(self.v4.ask(host, port).fuse());
        let without_v6 = async {
            tokio::select! {
                biased;
                found = &mut both => found,
                Ok(found) = &mut v4 => Ok(found),
            }
        };
        if let Ok(found) = timeout(patience, without_v6).await {
            return found;
        }
        tokio::select! {
            biased;
            found = &mut both => found,
            Ok(found) = &mut v4 => Ok(found),
            Ok(found) = self.v6.ask(host, port) => Ok(found),
        }
    }
}

/// A question of one kind, which may be under way.
#[derive(Debug)]
struct LookUp {
    family: Option<AddrFamily>,
    running: Option<JoinHandle<io::Result<Vec<SocketAddr>>>>,
    /// Another one has been quicker. What this one finds may be old by the time of the next connect.
    is_late: bool,
}

impl LookUp {
    const fn new(family: Option<AddrFamily>) -> Self {
        Self { family, running: None, is_late: false }
    }

    async fn ask(&mut self, host: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
        let is_late = mem::take(&mut self.is_late);
        if let Some(found) = self.running.take_if(|running| running.is_finished())
            && let Ok(Ok(found)) = found.await
            && !is_late
            && !found.is_empty()
        {
            return Ok(found);
        }
        // What failed since the last connect is asked for again.
        let (name, family) = (host.to_owned(), self.family);
        let running = self.running.get_or_insert_with(|| spawn_blocking(move || look_up(&name, port, family)));
        let found = running.await;
        self.running = None;
        match found {
            Ok(Ok(addresses)) if addresses.is_empty() => Err(Failure::new(Kind::Dns, "the name has no address")),
            Ok(Ok(addresses)) => Ok(addresses),
            Ok(Err(error)) => Err(Failure::new(Kind::Dns, error.to_string())),
            Err(error) => Err(Failure::new(Kind::Dns, error.to_string())),
        }
    }
}

fn look_up(name: &str, port: u16, family: Option<AddrFamily>) -> io::Result<Vec<SocketAddr>> {
    let Some(family) = family else { return Ok((name, port).to_socket_addrs()?.collect()) };
    let hints = AddrInfoHints { address: family.into(), socktype: SockType::Stream.into(), ..AddrInfoHints::default() };
    let with_port = |mut address: SocketAddr| {
        address.set_port(port);
        address
    };
    getaddrinfo(Some(name), None, Some(hints))?.map(|found| Ok(with_port(found?.sockaddr))).collect()
}
