//! Control: what a person or a hook may ask this replica to do. It is served on a socket of its own, never on
//! `--listen`, and there only to the same user and to root.

use std::fmt;
use std::future::ready;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request as HttpRequest, State};
use axum::http::header::ORIGIN;
use axum::http::{StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{MethodRouter, post};
use thiserror::Error;
use tokio::sync::mpsc::error::TrySendError;

use super::listener::{BindError, Listener};
use super::{Endpoints, leader, line, look, read};
use crate::election::event::StepDown;
use crate::election::request::Request;

/// Where control listens: `--control`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ControlAddress {
    /// `@NAME`: an abstract unix socket, seen by whoever shares the network namespace.
    Abstract(String),
    /// `unix:PATH`: a socket file of mode 0600.
    Path(PathBuf),
    /// `IP:PORT`, an address of this machine only. Every user of the machine may connect.
    Loopback(SocketAddr),
}

/// Why a text is no [`ControlAddress`]. It holds no part of the text, which may be a secret in the wrong place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ControlAddressError {
    /// Nothing that is known, or a name that Linux has no room for.
    #[error(
        "must be @NAME, unix:/PATH, 127.0.0.1:PORT or off, where a path or name has at most {max} bytes",
        max = ControlAddress::MAX_NAME
    )]
    Form,
    /// An address that others can reach.
    #[error("must be on loopback, such as 127.0.0.1:9798: whoever reaches it can depose the leader")]
    NotLoopback,
}

impl ControlAddress {
    /// Bytes of a name or path at most: what the kernel has room for in the address of a unix socket, less its zero
    /// byte.
    pub const MAX_NAME: usize = 107;

    /// Reads `@NAME`, `unix:/PATH` (or `unix:///PATH`) or `IP:PORT`.
    ///
    /// # Errors
    /// When it is none of them, too long, or not a loopback address.
    pub fn parse(text: &str) -> Result<Self, ControlAddressError> {
        let is_name = |name: &str| !name.is_empty() && name.len() <= Self::MAX_NAME && !name.contains('\0');
        if let Some(name) = text.strip_prefix('@') {
            return is_name(name).then(|| Self::Abstract(name.to_owned())).ok_or(ControlAddressError::Form);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            let is_path = is_name(path) && path.starts_with('/');
            return is_path.then(|| Self::Path(path.into())).ok_or(ControlAddressError::Form);
        }
        match text.parse::<SocketAddr>() {
            // Nobody could know which port it is.
            Ok(address) if address.port() == 0 => Err(ControlAddressError::Form),
            Ok(address) if address.ip().is_loopback() => Ok(Self::Loopback(address)),
            Ok(_) => Err(ControlAddressError::NotLoopback),
            Err(_) => Err(ControlAddressError::Form),
        }
    }
}

impl fmt::Display for ControlAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Abstract(name) => write!(f, "@{name}"),
            Self::Path(path) => write!(f, "unix:{}", path.display()),
            Self::Loopback(address) => address.fmt(f),
        }
    }
}

/// Binds the control socket. A socket file that nobody listens on any more is replaced.
///
/// # Errors
/// When the address is in use or may not be used, or a file is in the way.
pub fn bind_control(address: &ControlAddress) -> Result<Listener, BindError> {
    match address {
        ControlAddress::Abstract(name) => Listener::abstract_name(name),
        ControlAddress::Path(path) => Listener::path(path),
        ControlAddress::Loopback(address) => Listener::tcp("--control", *address),
    }
}

/// The paths of control, for `--control` only.
pub fn control(endpoints: Endpoints) -> Router {
    Router::new()
        .route("/resign", act(resign))
        .route("/drain", act(drain))
        .route("/leader", read(leader))
        .fallback(|| ready(line(StatusCode::NOT_FOUND, "no such path")))
        .layer(middleware::from_fn(refuse_browsers))
        .with_state(Arc::new(endpoints))
}

/// For how long a resigned replica may be told to stand back. Longer is a drain.
const STAND_BACK_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A path that does something: POST only.
fn act(answer: fn(&Endpoints, &Uri) -> Response) -> MethodRouter<Arc<Endpoints>> {
    post(move |State(endpoints): State<Arc<Endpoints>>, uri: Uri| ready(answer(&endpoints, &uri)))
}

/// A page of any site can make the browser of a person on this machine post to a loopback port. It cannot keep the
/// browser from saying that a page did it.
async fn refuse_browsers(request: HttpRequest, next: Next) -> Response {
    if request.headers().contains_key(ORIGIN) {
        return line(StatusCode::FORBIDDEN, "control takes no requests of web pages");
    }
    next.run(request).await
}

fn resign(endpoints: &Endpoints, uri: &Uri) -> Response {
    let stand_back = match stand_back(uri.query().unwrap_or_default()) {
        // One ttl is long enough for every standby to see a free lock first.
        Ok(given) => given.unwrap_or(endpoints.ttl),
        Err(fault) => return line(StatusCode::BAD_REQUEST, fault),
    };
    let (leadership, now) = look(endpoints);
    let doing = if leadership.is_leading(now) { "stepping down" } else { "not leading" };
    let then = humantime::format_duration(stand_back);
    send(
        endpoints,
        Request::Resign { reason: StepDown::Resign, stand_back },
        &format!("{doing}; no new attempt is made for {then}"),
    )
}

fn drain(endpoints: &Endpoints, uri: &Uri) -> Response {
    if let Some((key, _)) = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).next() {
        return line(StatusCode::BAD_REQUEST, format_args!("drain has no parameter `{}`", key.escape_debug()));
    }
    let (leadership, now) = look(endpoints);
    let doing = if leadership.is_leading(now) {
        "draining: leadership is kept until it is resigned or lost, or the process is stopped; no new attempt is made"
    } else {
        "draining: no new attempt is made"
    };
    send(endpoints, Request::Drain, doing)
}

/// Reads `for=30s`. A parameter that is not known is refused, since it is one that was meant otherwise.
fn stand_back(query: &str) -> Result<Option<Duration>, String> {
    let mut found = None;
    for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
        if key != "for" {
            return Err(format!("resign has no parameter `{}`, only `for`", key.escape_debug()));
        }
        if found.is_some() {
            return Err("`for` is given twice".to_owned());
        }
        let duration = humantime::parse_duration(&value)
            .map_err(|error| format!("`for` must be a duration such as 30s or 1m30s: {error}"))?;
        if duration > STAND_BACK_MAX {
            return Err("`for` must be at most 24h: drain a replica that is to take no part any more".to_owned());
        }
        found = Some(duration);
    }
    Ok(found)
}

fn send(endpoints: &Endpoints, request: Request, doing: &str) -> Response {
    match endpoints.requests.try_send(request) {
        Ok(()) => line(StatusCode::ACCEPTED, doing),
        Err(TrySendError::Full(_)) => {
            line(StatusCode::SERVICE_UNAVAILABLE, "the election has too many requests waiting: try again")
        }
        Err(TrySendError::Closed(_)) => line(StatusCode::SERVICE_UNAVAILABLE, "the election has ended"),
    }
}
