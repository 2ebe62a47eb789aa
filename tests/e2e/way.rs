//! The way of a release's pods to the API server, with weather on it: what a slow, throttling or refusing server says.
//!
//! It ends TLS with the API server's own certificate, so that a pod cannot tell it from the server, and asks the real
//! one in the pod's name. It is at the API server's address, at another port.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use futures_util::StreamExt as _;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::cluster::{Cluster, HOST};
use crate::wait::be_slow;

/// What happens to every request, and to what an open watch says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// It is answered.
    Fair,
    /// It is answered so much later than the server has.
    Slow(Duration),
    /// It reaches the server after so long, if its sender still waits.
    Stalled(Duration),
    /// It is answered by this status, with so many seconds of `Retry-After`.
    Answered(u16, u32),
    /// Nobody listens, and open connections end.
    Refused,
}

/// A way that is open until drop.
pub struct Way {
    port: u16,
    weather: watch::Sender<Weather>,
    waiting: Arc<Mutex<BTreeMap<IpAddr, Waiting>>>,
}

/// Requests of one pod that wait for their answer.
#[derive(Clone, Copy, Default)]
struct Waiting {
    now: usize,
    most: usize,
    ever: usize,
}

impl Way {
    /// Opens it at this port, in fair weather.
    pub fn open(cluster: &Cluster, port: u16) -> Self {
        let (weather, seen) = watch::channel(Weather::Fair);
        let waiting = Arc::new(Mutex::new(BTreeMap::new()));
        let pki = cluster.root().join("pki");
        let gate = Gate { weather: seen, waiting: Arc::clone(&waiting), server: connector(&pki) };
        let (acceptor, address) = (acceptor(&pki), SocketAddr::new(HOST.parse().expect("an address"), port));
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(serve(address, acceptor, gate));
        };
        std::thread::Builder::new().name("way".to_owned()).spawn(run).expect("a thread");
        Self { port, weather, waiting }
    }

    /// Values of the chart by which all pods of a release go this way.
    pub fn values(&self) -> [String; 4] {
        let variable = |n: u32, name: &str, value: &str| {
            [format!("extraEnv[{n}].name=KUBERNETES_SERVICE_{name}"), format!("extraEnv[{n}].value={value}")]
        };
        // Without the zero Helm makes a number of it, which no variable can be.
        let ([a, b], [c, d]) = (variable(0, "HOST", HOST), variable(1, "PORT", &format!("0{}", self.port)));
        [a, b, c, d]
    }

    /// From now on.
    pub fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    /// Of one pod: how many requests waited for an answer at the same time, at most, and how many there were.
    pub fn asked_by(&self, address: &str) -> (usize, usize) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Waiting { most, ever, .. } =
            waiting.get(&address.parse().expect("an address")).copied().unwrap_or_default();
        (most, ever)
    }
}

/// What every connection knows.
#[derive(Clone)]
struct Gate {
    weather: watch::Receiver<Weather>,
    waiting: Arc<Mutex<BTreeMap<IpAddr, Waiting>>>,
    server: TlsConnector,
}

async fn serve(address: SocketAddr, acceptor: TlsAcceptor, gate: Gate) {
    let mut weather = gate.weather.clone();
    while weather.wait_for(|weather| *weather != Weather::Refused).await.is_ok() {
        let listener = TcpListener::bind(address).await.expect("nobody else has the port");
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                changed = weather.wait_for(|weather| *weather == Weather::Refused) => match changed {
                    Ok(_) => break,
                    Err(_) => return,
                },
                Ok((stream, from)) = listener.accept() => {
                    connections.spawn(connection(stream, from.ip(), acceptor.clone(), gate.clone()));
                }
            }
        }
    }
}

async fn connection(stream: TcpStream, from: IpAddr, acceptor: TlsAcceptor, gate: Gate) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let service = hyper::service::service_fn(move |request| {
        let gate = gate.clone();
        async move {
            let _place = Place::take(&gate, from);
            gate.answer(request).await
        }
    });
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

impl Gate {
    fn now(&self) -> Weather {
        *self.weather.borrow()
    }

    async fn answer(&self, request: Request<Incoming>) -> io::Result<Response<Body>> {
        match self.now() {
            Weather::Answered(status, seconds) => {
                return Response::builder()
                    .status(status)
                    .header("retry-after", seconds)
                    .body(Body::empty())
                    .map_err(io::Error::other);
            }
            // If its sender gives up meanwhile, hyper drops all of this.
            Weather::Stalled(time) => be_slow(time).await,
            Weather::Fair | Weather::Slow(_) | Weather::Refused => {}
        }
        let stream = TcpStream::connect((HOST, 6443)).await?;
        let stream = self.server.connect(ServerName::try_from(HOST).map_err(io::Error::other)?, stream).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        tokio::spawn(connection);
        let (head, body) = sender.send_request(request).await.map_err(io::Error::other)?.into_parts();
        self.wait().await;
        let gate = self.clone();
        let parts = Body::new(body).into_data_stream().then(move |part| {
            let gate = gate.clone();
            async move {
                gate.wait().await;
                part
            }
        });
        Ok(Response::from_parts(head, Body::from_stream(parts)))
    }

    async fn wait(&self) {
        match self.now() {
            Weather::Slow(time) | Weather::Stalled(time) => be_slow(time).await,
            Weather::Fair | Weather::Answered(..) | Weather::Refused => {}
        }
    }
}

/// A request's place among those that wait.
struct Place<'a>(&'a Gate, IpAddr);

impl<'a> Place<'a> {
    fn take(gate: &'a Gate, from: IpAddr) -> Self {
        let mut waiting = gate.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let of = waiting.entry(from).or_default();
        of.now += 1;
        of.ever += 1;
        of.most = of.most.max(of.now);
        drop(waiting);
        Self(gate, from)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.entry(self.1).or_default().now -= 1;
    }
}

fn acceptor(pki: &Path) -> TlsAcceptor {
    let chain = CertificateDer::pem_file_iter(pki.join("api.crt")).expect("the API server's certificate");
    let key = PrivateKeyDer::from_pem_file(pki.join("api.key")).expect("its key");
    let config = ServerConfig::builder_with_provider(ring::default_provider().into());
    let config = config.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
    let config = config.with_single_cert(chain.map(|one| one.expect("a certificate")).collect(), key);
    TlsAcceptor::from(Arc::new(config.expect("they belong together")))
}

fn connector(pki: &Path) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(pki.join("ca.crt")).expect("the authority")).expect("a certificate");
    let config = ClientConfig::builder_with_provider(ring::default_provider().into());
    let config = config.with_safe_default_protocol_versions().expect("versions").with_root_certificates(roots);
    TlsConnector::from(Arc::new(config.with_no_client_auth()))
}
