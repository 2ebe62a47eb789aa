//! What each open connection is doing, so that the one that is needed least can be closed for a new one.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::AbortHandle;

use crate::clock::{self, Moment};

/// The open connections.
#[derive(Debug, Default)]
pub(super) struct Connections(Vec<Connection>);

#[derive(Debug)]
struct Connection {
    activity: Activity,
    task: AbortHandle,
}

impl Connections {
    pub(super) fn add(&mut self, activity: Activity, task: AbortHandle) {
        self.0.push(Connection { activity, task });
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets those that have ended.
    pub(super) fn forget_ended(&mut self) {
        self.0.retain(|connection| !connection.task.is_finished());
    }

    /// Closes the one that has been idle for the longest; if all are being answered, the one that has taken nothing of
    /// its answer for the longest.
    pub(super) fn close_longest_idle(&mut self) {
        let idle = self.0.iter().enumerate().min_by_key(|(_, connection)| connection.activity.usefulness());
        if let Some((index, _)) = idle {
            self.0.swap_remove(index).task.abort();
        }
    }

    /// Closes those that have sent half a request for `head`, and those that have taken nothing of an answer for
    /// `stall`.
    pub(super) fn close_stuck(&self, now: Moment, head: Duration, stall: Duration) {
        for connection in self.0.iter().filter(|connection| connection.activity.is_stuck(now, head, stall)) {
            connection.task.abort();
        }
    }

    /// Closes those that no answer is owed to.
    pub(super) fn close_unanswered(&self) {
        for connection in self.0.iter().filter(|connection| !connection.activity.is_owed()) {
            connection.task.abort();
        }
    }
}

/// What one connection is doing.
#[derive(Clone, Debug)]
pub(super) struct Activity(Arc<Mutex<Doing>>);

#[derive(Debug)]
struct Doing {
    phase: Phase,
    /// When bytes last passed, or an answer ended.
    moved: Moment,
    /// Since when the client has taken nothing that is ready for it.
    blocked: Option<Moment>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Between requests.
    Idle,
    /// Part of a request has come.
    Head { since: Moment },
    /// A request is being answered.
    Busy,
}

impl Activity {
    /// That of a connection that has just been accepted.
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Doing { phase: Phase::Idle, moved: clock::now(), blocked: None })))
    }

    /// A request has come whole. The answer's body is to keep what is returned, until all of it has been taken.
    pub(super) fn answering(&self) -> Answering {
        self.lock().phase = Phase::Busy;
        Answering(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Doing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn received(&self) {
        let (mut doing, now) = (self.lock(), clock::now());
        doing.moved = now;
        match doing.phase {
            Phase::Idle => doing.phase = Phase::Head { since: now },
            Phase::Head { .. } | Phase::Busy => {}
        }
    }

    fn sent(&self, taken: bool) {
        let (mut doing, now) = (self.lock(), clock::now());
        if taken {
            doing.moved = now;
            doing.blocked = None;
        } else {
            doing.blocked.get_or_insert(now);
        }
    }

    fn usefulness(&self) -> (bool, Moment) {
        (self.is_owed(), self.lock().moved)
    }

    fn is_owed(&self) -> bool {
        let doing = self.lock();
        match doing.phase {
            Phase::Busy => true,
            Phase::Idle | Phase::Head { .. } => doing.blocked.is_some(),
        }
    }

    fn is_stuck(&self, now: Moment, head: Duration, stall: Duration) -> bool {
        let doing = self.lock();
        let half = match doing.phase {
            Phase::Head { since } => now.since(since) >= head,
            Phase::Idle | Phase::Busy => false,
        };
        half || doing.blocked.is_some_and(|since| now.since(since) >= stall)
    }
}

/// Held for as long as a request is being answered.
#[derive(Debug)]
pub(super) struct Answering(Activity);

impl Drop for Answering {
    fn drop(&mut self) {
        let mut doing = self.0.lock();
        doing.phase = Phase::Idle;
        doing.moved = clock::now();
    }
}

/// The body of an answer that is under way.
#[derive(Debug)]
pub(super) struct Answer<B> {
    pub(super) body: B,
    pub(super) _answering: Answering,
}

impl<B: Body + Unpin> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A socket whose traffic is noted.
#[derive(Debug)]
pub(super) struct Noted<S> {
    pub(super) socket: S,
    pub(super) activity: Activity,
}

impl<S: AsyncRead + Unpin> AsyncRead for Noted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.socket).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.activity.received();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Noted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.activity.sent(polled.is_ready());
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.activity.sent(polled.is_ready());
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
