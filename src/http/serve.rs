//! The server: an accept loop with a limit on everything, whose end waits for nobody.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::io;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, StatusCode};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::connection::{Activity, Answer, Connections, Noted};
use super::line;
use super::listener::{Listener, Socket};
use crate::clock;

/// Connections that may be open at a time.
pub const CONNECTIONS: usize = 1024;

/// Bytes of a request's head at most. It is also the least that hyper takes.
const HEAD_BYTES: usize = 8 * 1024;

/// Header fields at most: a browser sends twenty.
const HEAD_FIELDS: usize = 64;

/// How long to wait for a connection to end when the process may open no more files.
const NO_FILES_PAUSE: Duration = Duration::from_millis(100);

/// What may be tried in tests with less patience.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) connections: usize,
    /// To send a request's head.
    pub(super) head: Duration,
    /// To take something of an answer.
    pub(super) stall: Duration,
    /// For answers under way when the server ends.
    pub(super) end: Duration,
}

impl Limits {
    pub(super) const REAL: Self = Self {
        connections: CONNECTIONS,
        head: Duration::from_secs(5),
        stall: Duration::from_secs(10),
        end: Duration::from_secs(1),
    };
}

/// Serves `router` until `shutdown`, and at most a second longer: answers under way are finished, and whoever is idle,
/// has sent half a request or does not take its answer is cut off. Must be called inside a tokio runtime.
///
/// On a unix socket every request of another user than ours and root is answered 403.
///
/// # Errors
/// When the socket cannot be registered with the runtime.
pub async fn serve(listener: Listener, router: Router, shutdown: impl Future<Output = ()>) -> io::Result<()> {
    serve_within(Limits::REAL, listener, router, shutdown).await
}

/// Makes room for [`CONNECTIONS`] beside `others` open files, as far as the hard limit allows. The election dials with
/// the same supply of files that clients of HTTP use up. A child inherits the new limit, which is therefore not made
/// larger than needed.
///
/// # Errors
/// When the kernel refuses, which no limit below the hard one is a reason for.
pub fn raise_open_files(others: u64) -> io::Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = CONNECTIONS as u64 + others;
    let wanted = maximum.map_or(wanted, |maximum| wanted.min(maximum));
    if current.is_some_and(|current| current < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })?;
    }
    Ok(())
}

pub(super) async fn serve_within(
    limits: Limits,
    listener: Listener,
    router: Router,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    // The file goes when this function ends, whichever way it does.
    let Listener { socket, file: _file } = listener;
    let socket = Accepting::new(socket)?;
    let (ending, ended) = watch::channel(());
    let mut tasks = JoinSet::new();
    let mut connections = Connections::default();
    let mut rounds = interval(limits.head / 5);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(_) = tasks.join_next() => connections.forget_ended(),
            _ = rounds.tick() => connections.close_stuck(clock::now(), limits.head, limits.stall),
            accepted = socket.accept() => match accepted {
                Ok(accepted) => {
                    if connections.len() >= limits.connections {
                        connections.close_longest_idle();
                    }
                    let activity = Activity::new();
                    let attended = attend(accepted, router.clone(), activity.clone(), ended.clone());
                    connections.add(activity, tasks.spawn(attended));
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection: closing the longest idle one");
                    connections.close_longest_idle();
                    let one_ends = async {
                        if tasks.join_next().await.is_none() {
                            pending::<()>().await;
                        }
                    };
                    // Whether one ended or not, accepting is tried again.
                    let _ = timeout(NO_FILES_PAUSE, one_ends).await;
                    connections.forget_ended();
                }
            },
        }
    }
    drop(socket);
    connections.close_unanswered();
    // There is always a receiver: `ended`.
    let _ = ending.send(());
    let all_end = async { while tasks.join_next().await.is_some() {} };
    // What is left is cut off as `tasks` is dropped.
    let _ = timeout(limits.end, all_end).await;
    Ok(())
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}

enum Accepting {
    Tcp(TcpListener),
    Unix(UnixListener),
}

enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Accepting {
    fn new(socket: Socket) -> io::Result<Self> {
        match socket {
            Socket::Tcp(listener) => TcpListener::from_std(listener).map(Self::Tcp),
            Socket::Unix(listener) => UnixListener::from_std(listener).map(Self::Unix),
        }
    }

    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| Accepted::Tcp(stream)),
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| Accepted::Unix(stream)),
        }
    }
}

/// Whether the one who connects may ask anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// Anybody on TCP; on a unix socket our own user and root.
    Allowed,
    /// Another user on a unix socket.
    Another,
}

async fn attend(accepted: Accepted, router: Router, activity: Activity, ended: watch::Receiver<()>) {
    match accepted {
        Accepted::Tcp(socket) => {
            // Answers are small and written whole. An old kernel's refusal costs a delay, and nothing else.
            let _ = socket.set_nodelay(true);
            attend_on(socket, Peer::Allowed, router, activity, ended).await;
        }
        Accepted::Unix(socket) => {
            let ours = |uid| uid == 0 || uid == geteuid().as_raw();
            let allowed = socket.peer_cred().is_ok_and(|peer| ours(peer.uid()));
            let peer = if allowed { Peer::Allowed } else { Peer::Another };
            attend_on(socket, peer, router, activity, ended).await;
        }
    }
}

/// Serves one connection. hyper's own timeout for a request's head also runs while a connection is idle, and would
/// close one between two scrapes of Prometheus; so [`Connections::close_stuck`] does that work.
pub(super) async fn attend_on<S: AsyncRead + AsyncWrite + Unpin>(
    socket: S,
    peer: Peer,
    router: Router,
    activity: Activity,
    mut ended: watch::Receiver<()>,
) {
    let io = TokioIo::new(Noted { socket, activity: activity.clone() });
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        let answering = activity.answering();
        let router = router.clone();
        async move {
            let response = match refusal(peer, &request) {
                Some((status, text)) => {
                    let mut response = line(status, text);
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                    response
                }
                None => router.call(request).await?,
            };
            Ok::<_, Infallible>(response.map(|body| Answer { body, _answering: answering }))
        }
    });
    let connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEAD_FIELDS)
        .serve_connection(io, service);
    let mut connection = pin!(connection);
    // How a client's connection ended is the client's affair.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = ended.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

fn refusal(peer: Peer, request: &Request<Incoming>) -> Option<(StatusCode, &'static str)> {
    if peer == Peer::Another {
        return Some((StatusCode::FORBIDDEN, "only root and the user that this replica runs as may control it"));
    }
    if !request.body().is_end_stream() {
        return Some((StatusCode::PAYLOAD_TOO_LARGE, "no path takes a request body"));
    }
    None
}
