//! From a URL to a stream: name, TCP or unix socket, TLS. All within one time limit.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::clock::{self, Moment};
use crate::redsync::error::Failure;
use crate::redsync::node::tls::{self, TlsFiles};
use crate::redsync::node::wire::Wire;
use crate::redsync::reply::Kind;
use crate::redsync::url::{Endpoint, NodeUrl};

/// Until when a connect must be done, whatever it is doing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget(Moment);

impl Budget {
    pub(super) fn new(limit: Duration) -> Self {
        Self(clock::now() + limit)
    }

    /// Waits for `step` while there is time; what is said if there is not is the step's own.
    pub(super) async fn wait<T>(
        self,
        kind: Kind,
        what: &str,
        step: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        self.share(1, kind, what, step).await
    }

    /// As [`Self::wait`], with one of so many equal shares of the time that is left.
    async fn share<T>(
        self,
        shares: u32,
        kind: Kind,
        what: &str,
        step: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let left = self.0.since(clock::now()) / shares.max(1);
        tokio::time::timeout(left, step)
            .await
            .unwrap_or_else(|_| Err(Failure::new(kind, format!("{what} is not done within the connect timeout"))))
    }
}

/// One node's name, looked up. `getaddrinfo` cannot be cancelled: a look-up that outlives its connect is waited for by
/// the next one, so that a dead DNS server holds one thread per node and not one per attempt.
#[derive(Debug, Default)]
pub(super) struct Resolver(Option<JoinHandle<io::Result<Vec<SocketAddr>>>>);

impl Resolver {
    async fn resolve(&mut self, host: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let name = host.to_owned();
        let lookup =
            self.0.get_or_insert_with(|| spawn_blocking(move || Ok((name, port).to_socket_addrs()?.collect())));
        let found = lookup.await;
        self.0 = None;
        match found {
            Ok(Ok(addresses)) if addresses.is_empty() => Err(Failure::new(Kind::Dns, "the name has no address")),
            Ok(Ok(addresses)) => Ok(addresses),
            Ok(Err(error)) => Err(Failure::new(Kind::Dns, error.to_string())),
            Err(error) => Err(Failure::new(Kind::Dns, error.to_string())),
        }
    }
}

/// Where a dial got through to, so that a second connection goes to the same server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    /// One of the name's addresses.
    Tcp(SocketAddr),
    /// The socket.
    Unix,
}

/// Dials a node.
pub(super) async fn dial(
    url: &NodeUrl,
    files: &TlsFiles,
    resolver: &mut Resolver,
    budget: Budget,
) -> Result<(Wire, Reached), Failure> {
    match &url.endpoint {
        Endpoint::Unix(path) => Ok((connect_unix(path, budget).await?, Reached::Unix)),
        Endpoint::Tcp { host, port, tls } => {
            let addresses = budget.wait(Kind::Dns, "the name's look-up", resolver.resolve(host, *port)).await?;
            let (stream, address) = connect_tcp(&addresses, budget).await?;
            Ok((secure(stream, host, *tls, files, budget).await?, Reached::Tcp(address)))
        }
    }
}

/// Dials what an earlier dial has reached.
pub(super) async fn dial_again(
    url: &NodeUrl,
    files: &TlsFiles,
    reached: &Reached,
    budget: Budget,
) -> Result<Wire, Failure> {
    match (&url.endpoint, reached) {
        (Endpoint::Tcp { host, tls, .. }, Reached::Tcp(address)) => {
            let (stream, _) = connect_tcp(&[*address], budget).await?;
            secure(stream, host, *tls, files, budget).await
        }
        (Endpoint::Unix(path), Reached::Tcp(_) | Reached::Unix) => connect_unix(path, budget).await,
        (Endpoint::Tcp { .. }, Reached::Unix) => Err(Failure::new(Kind::Connect, "no address is known")),
    }
}

async fn connect_unix(path: &Path, budget: Budget) -> Result<Wire, Failure> {
    let connect = async { UnixStream::connect(path).await.map_err(|error| Failure::from_io(&error)) };
    Ok(Wire::new(budget.wait(Kind::Timeout, "the connection", connect).await?))
}

/// In turn, and each with its share of the time: the first may be an address that swallows packets.
async fn connect_tcp(addresses: &[SocketAddr], budget: Budget) -> Result<(TcpStream, SocketAddr), Failure> {
    let mut failure = Failure::new(Kind::Dns, "the name has no address");
    for (at, address) in addresses.iter().enumerate() {
        let connect = async { TcpStream::connect(address).await.map_err(|error| Failure::from_io(&error)) };
        let shares = u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
        match budget.share(shares, Kind::Timeout, "the connection", connect).await {
            Ok(stream) => {
                // A release is written behind an unanswered acquire, and must not wait for its acknowledgement.
                stream.set_nodelay(true).map_err(|error| Failure::from_io(&error))?;
                return Ok((stream, *address));
            }
            Err(error) => failure = Failure::new(error.kind, format!("{address}: {}", error.text)),
        }
    }
    Err(failure)
}

async fn secure(
    stream: TcpStream,
    host: &str,
    with_tls: bool,
    files: &TlsFiles,
    budget: Budget,
) -> Result<Wire, Failure> {
    if !with_tls {
        return Ok(Wire::new(stream));
    }
    let handshake = async {
        let files = files.clone();
        let config = spawn_blocking(move || tls::config(&files))
            .await
            .map_err(|error| Failure::new(Kind::Tls, error.to_string()))??;
        let name = ServerName::try_from(host.to_owned()).map_err(|error| Failure::new(Kind::Tls, error.to_string()))?;
        TlsConnector::from(config)
            .connect(name, stream)
            .await
            .map_err(|error| Failure::new(Kind::Tls, format!("{error}: does the server speak TLS there?")))
    };
    // A plain server waits for the rest of what it takes for a command: a time-out here is a matter of the scheme.
    Ok(Wire::new(budget.wait(Kind::Tls, "the TLS handshake (does the server speak TLS there?)", handshake).await?))
}
