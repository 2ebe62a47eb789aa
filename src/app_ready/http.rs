//! A check that is a GET. Only the head of the answer is read.

use std::net::{SocketAddr, ToSocketAddrs as _};

use axum::body::Body;
use axum::http::header::{CONNECTION, HOST, USER_AGENT};
use axum::http::{HeaderValue, Request};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use url::{Host, Url};

use super::check::{Blocking, Failure};

/// More than any sane head of an answer has, and the most that is held of one.
const HEAD: usize = 16 * 1024;

pub(super) async fn get(url: &Url, blocking: &mut Blocking) -> Result<(), Failure> {
    let addresses = resolve(url, blocking).await?;
    let stream = TcpStream::connect(&*addresses).await.map_err(Failure::Connect)?;
    let (mut sender, connection) = http1::Builder::new().max_buf_size(HEAD).handshake(TokioIo::new(stream)).await?;
    let answer = sender.send_request(request(url));
    tokio::pin!(answer);
    // The connection is dropped with its answer's head: the body could have any length.
    let answer = tokio::select! {
        answer = &mut answer => answer?,
        _ended = connection => answer.await?,
    };
    if answer.status().is_success() { Ok(()) } else { Err(Failure::Status(answer.status())) }
}

async fn resolve(url: &Url, blocking: &mut Blocking) -> Result<Vec<SocketAddr>, Failure> {
    let port = url.port_or_known_default().unwrap_or(80);
    match url.host() {
        Some(Host::Ipv4(address)) => Ok(vec![(address, port).into()]),
        Some(Host::Ipv6(address)) => Ok(vec![(address, port).into()]),
        Some(Host::Domain(name)) => {
            let name = name.to_owned();
            let look_up = move || Ok((name.as_str(), port).to_socket_addrs()?.collect());
            blocking.ask(look_up).await.map_err(Failure::Name)
        }
        None => Ok(Vec::new()),
    }
}

fn request(url: &Url) -> Request<Body> {
    let mut target = url.path().to_owned();
    if let Some(query) = url.query() {
        target.push('?');
        target.push_str(query);
    }
    let host = match (url.host_str().unwrap_or_default(), url.port()) {
        (host, Some(port)) => format!("{host}:{port}"),
        (host, None) => host.to_owned(),
    };
    let mut request = Request::new(Body::empty());
    // What the parser of URLs let through is a path, and a host is one in a header.
    *request.uri_mut() = target.parse().unwrap_or_default();
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::try_from(host).unwrap_or(HeaderValue::from_static("localhost")));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("redleader/", env!("CARGO_PKG_VERSION"))));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    request
}
