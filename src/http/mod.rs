//! The replica over HTTP: probes, who leads, metrics; and on a socket of its own, control.
//!
//! Every answer is computed at the time of its request from the watch, whose value has a deadline: an election that
//! hangs cannot keep an endpoint saying that this replica leads.

use std::fmt::Display;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use serde::Serialize;
use tokio::sync::{Semaphore, mpsc};

use crate::clock::Moment;
use crate::election::leadership::Leadership;
use crate::election::request::Request;
use crate::election::watch::Watch;
use crate::kubernetes::Routing;
use crate::metrics::{self, Metrics};

mod connection;
pub mod control;
mod listener;
mod page;
mod probe;
pub mod report;
mod serve;
mod stream;

pub use control::{ControlAddress, bind_control, control};
pub use listener::{BindError, Listener, bind_tcp};
pub use report::{Replica, Report};
pub use serve::{CONNECTIONS, raise_open_files, serve};

/// What the endpoints answer from.
#[derive(Clone, Debug)]
pub struct Endpoints {
    /// Whether this replica leads, and all that it knows.
    pub watch: Watch,
    /// What `/metrics` shows.
    pub metrics: Metrics,
    /// Which replica of which lock this is.
    pub replica: Replica,
    /// The lock's ttl, on which `/healthz` and `/livez` are measured.
    pub ttl: Duration,
    /// Where control sends what it is asked to do.
    pub requests: mpsc::Sender<Request>,
    /// Whether the pod may be labelled as the leader; `None`: no label is published.
    pub routing: Option<Routing>,
}

/// The paths that anybody may ask, for `--listen`.
pub fn public(endpoints: Endpoints) -> Router {
    let streams = Arc::new(Semaphore::new(stream::STREAMS));
    let watch = endpoints.watch.clone();
    let replica = endpoints.replica.clone();
    Router::new()
        .route("/readyz", read(probe::ready))
        .route("/healthz", read(probe::healthy))
        .route("/livez", read(probe::live))
        .route("/startupz", read(probe::started))
        .route("/metrics", read(scrape))
        .route("/leader", read(leader))
        .route("/leader/stream", get(move || ready(stream::answer(&watch, &replica, &streams))))
        .route("/routez", read(probe::routed))
        .route(
            "/",
            get(|State(endpoints): State<Arc<Endpoints>>, headers: HeaderMap| ready(front(&endpoints, &headers))),
        )
        .fallback(|| ready(line(StatusCode::NOT_FOUND, "no such path")))
        .with_state(Arc::new(endpoints))
}

/// A path that is read. GET and HEAD work, every other method is answered 405.
fn read(answer: fn(&Endpoints) -> Response) -> MethodRouter<Arc<Endpoints>> {
    get(move |State(endpoints): State<Arc<Endpoints>>| ready(answer(&endpoints)))
}

/// The leadership, and a time to hold it against that is not before it was read.
fn look(endpoints: &Endpoints) -> (Arc<Leadership>, Moment) {
    (endpoints.watch.leadership(), endpoints.watch.now())
}

fn leader(endpoints: &Endpoints) -> Response {
    let (leadership, now) = look(endpoints);
    json(&Report::of(&endpoints.replica, &leadership, now))
}

/// For a browser a page; for everyone else who leads, by name, as the leader-elector sidecar of old answered, so that an
/// app can compare it with its own.
fn front(endpoints: &Endpoints, headers: &HeaderMap) -> Response {
    #[derive(Serialize)]
    struct Name {
        name: String,
    }
    let (leadership, now) = look(endpoints);
    let report = Report::of(&endpoints.replica, &leadership, now);
    let wants_page =
        headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).is_some_and(|a| a.contains("text/html"));
    if !wants_page {
        return json(&Name { name: report.holder.unwrap_or_default() });
    }
    let nonce = match page::nonce() {
        Ok(nonce) => nonce,
        Err(why) => return line(StatusCode::SERVICE_UNAVAILABLE, format_args!("no random numbers: {why}")),
    };
    let policy = HeaderValue::try_from(page::policy(&nonce)).expect("a nonce is base64");
    let frame = page::Frame { ttl: endpoints.ttl, past: endpoints.watch.latest(), now, nonce };
    let mut response = respond(StatusCode::OK, "text/html; charset=utf-8", Body::from(page::page(&report, &frame)));
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    response
}

fn scrape(endpoints: &Endpoints) -> Response {
    let (leadership, now) = look(endpoints);
    let text = endpoints.metrics.render(&leadership, now, endpoints.watch.last_tick());
    respond(StatusCode::OK, metrics::CONTENT_TYPE, Body::from(text))
}

/// An answer of one line.
fn line(status: StatusCode, text: impl Display) -> Response {
    respond(status, "text/plain; charset=utf-8", Body::from(format!("{text}\n")))
}

fn json(value: &impl Serialize) -> Response {
    let mut text = serde_json::to_string(value).expect("a struct of texts and numbers is always JSON");
    text.push('\n');
    respond(StatusCode::OK, "application/json", Body::from(text))
}

/// No answer may be kept by a cache: each is true for its moment only.
fn respond(status: StatusCode, content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests;
