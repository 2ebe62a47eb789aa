//! `/leader/stream`: the report once, and again whenever it changes, as server-sent events.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::FutureExt as _;
use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::report::{Replica, Report};
use super::{line, respond};
use crate::clock::BootTimer;
use crate::election::watch::Watch;

/// Streams that may be open at a time: each holds a timer and a connection for as long as its client likes.
pub(super) const STREAMS: usize = 64;

/// How often a comment is sent when nothing changes, so that a client that is gone is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) fn answer(watch: &Watch, replica: &Replica, streams: &Arc<Semaphore>) -> Response {
    let Ok(permit) = Arc::clone(streams).try_acquire_owned() else {
        return line(
            StatusCode::SERVICE_UNAVAILABLE,
            format_args!("{STREAMS} streams are open already: ask /leader instead"),
        );
    };
    let feed = match Feed::new(watch.clone(), replica.clone(), permit) {
        Ok(feed) => feed,
        Err(error) => return line(StatusCode::SERVICE_UNAVAILABLE, format_args!("cannot start a timer: {error}")),
    };
    let events = stream::unfold(feed, async |mut feed| {
        let text = feed.next().await?;
        Some((Ok::<_, Infallible>(text), feed))
    });
    respond(StatusCode::OK, "text/event-stream", Body::from_stream(events))
}

struct Feed {
    watch: Watch,
    replica: Replica,
    timer: BootTimer,
    started: bool,
    _permit: OwnedSemaphorePermit,
}

impl Feed {
    fn new(watch: Watch, replica: Replica, permit: OwnedSemaphorePermit) -> io::Result<Self> {
        Ok(Self { watch, replica, timer: BootTimer::new()?, started: false, _permit: permit })
    }

    /// The next event, or `None` when the election has ended.
    async fn next(&mut self) -> Option<String> {
        if !self.started {
            self.started = true;
            // What has been published so far is in the first event, and is no change after it.
            let _ = self.watch.changed().now_or_never();
            return Some(self.event());
        }
        let turn = self.watch.leadership().next_turn(self.watch.now());
        match tokio::time::timeout(KEEP_ALIVE, self.watch.turned(&self.timer, turn)).await {
            Ok(Ok(true)) => Some(self.event()),
            Ok(Ok(false) | Err(_)) => None,
            Err(_) => Some(":\n\n".to_owned()),
        }
    }

    fn event(&self) -> String {
        let leadership = self.watch.leadership();
        let report = Report::of(&self.replica, &leadership, self.watch.now());
        let json = serde_json::to_string(&report).expect("a struct of texts and numbers is always JSON");
        format!("data: {json}\n\n")
    }
}
