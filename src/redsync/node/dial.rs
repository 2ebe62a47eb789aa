//! From a URL to a stream: name, TCP or unix socket, TLS. All within one time limit.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::task::spawn_blocking;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::clock::{self, Moment};
use crate::redsync::error::Failure;
use crate::redsync::node::resolver::Resolver;
use crate::redsync::node::tls::{self, TlsFiles};
use crate::redsync::node::wire::Wire;
use crate::redsync::reply::Kind;
use crate::redsync::url::{Endpoint, NodeUrl};

/// The part of a connect's time after which a name's families are asked for one by one.
const PATIENCE: u32 = 4;

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

    fn left(self) -> Duration {
        self.0.since(clock::now())
    }

    /// As [`Self::wait`], with one of so many equal shares of the time that is left.
    async fn share<T>(
        self,
        shares: u32,
        kind: Kind,
        what: &str,
        step: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::time::timeout(self.left() / shares.max(1), step)
            .await
            .unwrap_or_else(|_| Err(Failure::new(kind, format!("{what} is not done within the connect timeout"))))
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
            let look_up = resolver.resolve(host, *port, budget.left() / PATIENCE);
            let addresses = budget.wait(Kind::Dns, "the name's look-up", look_up).await?;
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
