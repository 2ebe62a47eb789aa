//! The probes: for readiness, for liveness, and for a person who asks why.

use axum::http::StatusCode;
use axum::response::Response;

use super::{Endpoints, line, look};
use crate::kubernetes::Routing;

/// `/readyz`: 200 only while this replica leads at this very moment, else 503; the reason either way.
pub(super) fn ready(endpoints: &Endpoints) -> Response {
    let (leadership, now) = look(endpoints);
    line(good(leadership.is_leading(now)), leadership.reason(now))
}

/// `/healthz`: 200 while a quorum was reached within one ttl, leading or not.
pub(super) fn healthy(endpoints: &Endpoints) -> Response {
    let (leadership, now) = look(endpoints);
    let age = leadership.quorum_seen.map(|seen| now.since(seen));
    line(good(age.is_some_and(|age| age <= endpoints.ttl)), leadership.reason(now))
}

/// `/startupz`: 200 once a quorum was reached.
pub(super) fn started(endpoints: &Endpoints) -> Response {
    let (leadership, now) = look(endpoints);
    line(good(leadership.quorum_seen.is_some()), leadership.reason(now))
}

/// `/livez`: 200 while the election's loop turns. It never depends on Redis: no restart would bring a node back.
pub(super) fn live(endpoints: &Endpoints) -> Response {
    let age = endpoints.watch.now().since(endpoints.watch.last_tick());
    if age < 2 * endpoints.ttl {
        line(StatusCode::OK, "the election's loop turns")
    } else {
        let age = age.as_secs_f64();
        line(StatusCode::SERVICE_UNAVAILABLE, format_args!("the election's loop has not turned for {age:.1} s"))
    }
}

/// `/routez`: 503 while the pod may be labelled leader and this replica does not lead, else 200. Whoever routes by the
/// label is then right also while nobody can change it.
pub(super) fn routed(endpoints: &Endpoints) -> Response {
    let (leadership, now) = look(endpoints);
    let may_be_labelled = endpoints.routing.as_ref().map(Routing::may_be_labelled);
    let leads = leadership.is_leading(now);
    match may_be_labelled {
        None => line(StatusCode::OK, "no label is published: nothing is routed by one"),
        Some(_) if leads => line(StatusCode::OK, leadership.reason(now)),
        Some(false) => line(StatusCode::OK, "the pod is not labelled as the leader"),
        Some(true) => line(
            StatusCode::SERVICE_UNAVAILABLE,
            format_args!("the pod may be labelled as the leader; {}", leadership.reason(now)),
        ),
    }
}

fn good(yes: bool) -> StatusCode {
    if yes { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}
