use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};

use super::connection::Activity;
use super::report::HolderKind;
use super::serve::{Limits, Peer, attend_on, serve_within};
use super::*;
use crate::clock;
use crate::election::event::StepDown;
use crate::election::leadership::{Belief, Holder, State as Phase, Vote};
use crate::election::watch::{Publisher, channel};
use crate::redsync::name::{Identity, LockName, Owner};
use crate::redsync::reply::Kind;

mod control;
mod limits;

const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(10);
const PATHS: [&str; 8] = ["/readyz", "/healthz", "/livez", "/startupz", "/routez", "/metrics", "/leader", "/"];

/// A server on a socket of its own, and the election's side of it.
struct Server {
    address: Option<SocketAddr>,
    publisher: Publisher,
    requests: mpsc::Receiver<Request>,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<io::Result<()>>,
}

impl Server {
    fn public(first: Leadership, ttl: Duration, limits: Limits) -> Self {
        Self::start(first, ttl, limits, public, bind_tcp("127.0.0.1:0".parse().unwrap()).unwrap())
    }

    fn control(first: Leadership, address: &ControlAddress) -> Self {
        Self::start(first, 8 * SECOND, Limits::REAL, control, bind_control(address).unwrap())
    }

    fn start(
        first: Leadership,
        ttl: Duration,
        limits: Limits,
        router: fn(Endpoints) -> Router,
        listener: Listener,
    ) -> Self {
        let (publisher, watch) = channel(first);
        let (requests, received) = mpsc::channel(1);
        let identity = Identity::parse("pod-1").unwrap();
        let metrics = Metrics::new("job", identity.as_str(), &["a:1", "b:1", "c:1"].map(str::to_owned)).unwrap();
        let replica = Replica::new(LockName::parse("job").unwrap(), identity).unwrap();
        let router = router(Endpoints { watch, metrics, replica, ttl, requests, routing: None });
        let address = listener.local_addr();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async {
            let _ = stopped.await;
        };
        let ended = tokio::spawn(serve_within(limits, listener, router, shutdown));
        Self { address, publisher, requests: received, stop, ended }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address.unwrap()).await.unwrap()
    }

    /// One request on a connection of its own.
    async fn ask(&self, method: &str, path: &str) -> Answer {
        exchange(self.connect().await, &format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
            .await
    }

    async fn status(&self, path: &str) -> u16 {
        self.ask("GET", path).await.status
    }

    /// How long the end took.
    async fn end(self) -> Duration {
        let asked = clock::now();
        self.stop.send(()).unwrap();
        timeout(PATIENCE, self.ended).await.expect("the server ends").unwrap().unwrap();
        clock::now().since(asked)
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

/// Sends `text` and reads to the end of the connection.
async fn exchange(mut socket: impl AsyncRead + AsyncWrite + Unpin, text: &str) -> Answer {
    socket.write_all(text.as_bytes()).await.unwrap();
    let mut all = Vec::new();
    timeout(PATIENCE, socket.read_to_end(&mut all)).await.expect("the connection is closed").unwrap();
    let all = String::from_utf8(all).unwrap();
    let (head, body) = all.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {all:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

/// Sends a request and reads one answer with a content-length, on a connection that stays.
async fn ask_on(socket: &mut (impl AsyncRead + AsyncWrite + Unpin), path: &str) -> Answer {
    socket.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
    let head = read_until(socket, "\r\n\r\n").await.to_ascii_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head.split("content-length: ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    timeout(PATIENCE, socket.read_exact(&mut body)).await.unwrap().unwrap();
    Answer { status, head, body: String::from_utf8(body).unwrap() }
}

async fn read_until(socket: &mut (impl AsyncRead + Unpin), end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        let byte = timeout(PATIENCE, socket.read_u8()).await.expect("more is sent").unwrap();
        text.push(char::from(byte));
    }
    text
}

/// Whether the server closes the connection, without an answer.
async fn is_closed(socket: &mut TcpStream) -> bool {
    match timeout(PATIENCE, socket.read(&mut [0; 64])).await {
        Ok(Ok(0) | Err(_)) => true,
        Ok(Ok(_)) | Err(_) => false,
    }
}

async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let mut tick = interval(Duration::from_millis(5));
    let end = clock::now() + PATIENCE;
    while !is_so().await {
        assert!(clock::now() < end, "{what}");
        tick.tick().await;
    }
}

fn standby() -> Leadership {
    let mut leadership = Leadership::standby(&["a:1", "b:1", "c:1"], Vote::Held);
    leadership.nodes.iter_mut().for_each(|node| node.latency = Some(Duration::from_micros(1250)));
    Leadership { quarantine: Duration::from_millis(8800), quorum_seen: Some(clock::now()), ..leadership }
}

fn leading_for(left: Duration) -> Leadership {
    let now = clock::now();
    let belief = Belief {
        token: 42,
        since: now - 5 * SECOND,
        work_until: now + left,
        deadline: now + left + left,
        extended_at: now,
        stepping_down: None,
    };
    Leadership { phase: Phase::Leader, belief: Some(belief), ..standby() }
}

fn held_by(owner: Owner) -> Leadership {
    Leadership { holder: Some(Holder { owner, token: Some(41), until: clock::now() + 60 * SECOND }), ..standby() }
}

fn pod_2() -> Owner {
    Owner::new(&Identity::parse("pod-2").unwrap(), [3; 16])
}

fn unreachable_nodes() -> Leadership {
    let mut leadership = standby();
    leadership.quorum_seen = None;
    for node in &mut leadership.nodes[1..] {
        (node.up, node.vote, node.error) = (false, Vote::Unknown, Some(Kind::Connect));
    }
    leadership
}

#[tokio::test]
async fn each_path_answers_for_each_state() {
    let stepping_down = {
        let mut leadership = leading_for(60 * SECOND);
        leadership.belief.as_mut().unwrap().stepping_down = Some(StepDown::Resign);
        leadership
    };
    let draining = Leadership { draining: true, ..leading_for(60 * SECOND) };
    let starting = Leadership { phase: Phase::Starting, quorum_seen: None, ..standby() };
    let campaigning = Leadership { phase: Phase::Campaigning, ..standby() };
    let drained = Leadership { draining: true, ..standby() };
    let states = [
        (starting, 503, 503, 503, "", "starting: "),
        (standby(), 503, 200, 200, "", "standby: no holder is known"),
        (held_by(pod_2()), 503, 200, 200, "pod-2", "standby: held by pod-2"),
        (held_by(Owner::found("s3cr3t")), 503, 200, 200, "", "standby: held by a holder that is not redleader"),
        (campaigning, 503, 200, 200, "", "campaigning: "),
        (leading_for(60 * SECOND), 200, 200, 200, "pod-1", "leader: leading with token 42"),
        (stepping_down, 503, 200, 200, "", "stepping-down: resign"),
        (draining, 200, 200, 200, "pod-1", "draining: leading with token 42"),
        (drained, 503, 200, 200, "", "draining: "),
        (unreachable_nodes(), 503, 503, 503, "", "standby: 1 of 3 nodes can vote, 2 required; b:1: connect"),
    ];
    let server = Server::public(standby(), 60 * SECOND, Limits::REAL);
    for (leadership, ready, healthy, started, name, reason) in states {
        server.publisher.publish(leadership);
        let answer = server.ask("GET", "/readyz").await;
        assert_eq!(answer.status, ready, "{reason}");
        assert!(answer.body.starts_with(reason), "{reason} {answer:?}");
        assert_eq!(answer.body.lines().count(), 1);
        assert!(answer.head.contains("cache-control: no-store"));
        assert_eq!(server.status("/healthz").await, healthy, "{reason}");
        assert_eq!(server.status("/startupz").await, started, "{reason}");
        assert_eq!(server.status("/livez").await, 200, "{reason}");
        assert_eq!(server.ask("GET", "/").await.body, format!("{{\"name\":\"{name}\"}}\n"));
        let scraped = server.ask("GET", "/metrics").await;
        assert!(scraped.head.contains("content-type: text/plain; version=0.0.4"));
        assert!(scraped.body.contains(&format!("redleader_is_leader{{lock=\"job\"}} {}\n", u8::from(ready == 200))));
        let report: Report = serde_json::from_str(&server.ask("GET", "/leader").await.body).unwrap();
        assert_eq!((report.leading, report.holder.unwrap_or_default().as_str()), (ready == 200, name), "{reason}");
        assert!(report.reason.starts_with(reason));
        for path in PATHS {
            let (get, head) = (server.ask("GET", path).await, server.ask("HEAD", path).await);
            assert_eq!((head.status, head.body.as_str()), (get.status, ""), "{path}");
            assert!(!get.body.contains("s3cr3t"), "{path}");
        }
    }
    server.end().await;
}

#[tokio::test]
async fn the_report_has_every_field_always() {
    const FIELDS: [&str; 16] = [
        "bootId",
        "holder",
        "holderKind",
        "identity",
        "leading",
        "lock",
        "nodes",
        "quarantineMs",
        "quorum",
        "reason",
        "schema",
        "since",
        "state",
        "token",
        "validForMs",
        "validUntilBootMs",
    ];
    let mut with_leases = leading_for(60 * SECOND);
    with_leases.nodes[0].lease = Some(clock::now() + 60 * SECOND);
    let server = Server::public(standby(), SECOND, Limits::REAL);
    for leadership in [standby(), with_leases, held_by(Owner::found("s3cr3t")), unreachable_nodes()] {
        server.publisher.publish(leadership);
        let value: serde_json::Value = serde_json::from_str(&server.ask("GET", "/leader").await.body).unwrap();
        let mut fields: Vec<&String> = value.as_object().unwrap().keys().collect();
        fields.sort();
        assert_eq!(fields, FIELDS);
        for node in value["nodes"].as_array().unwrap() {
            assert_eq!(node.as_object().unwrap().len(), 7, "{node}");
        }
    }

    let ask = async || serde_json::from_str::<Report>(&server.ask("GET", "/leader").await.body).unwrap();
    let report = ask().await;
    assert_eq!((report.holder, report.holder_kind, report.token), (None, None, None));
    assert_eq!((report.valid_for_ms, report.valid_until_boot_ms, report.since), (0, None, None));
    assert_eq!((report.quorum.required, report.quorum.reachable), (2, 1));
    assert_eq!((report.schema, report.lock.as_str(), report.identity.as_str()), (1, "job", "pod-1"));
    assert_eq!((report.nodes[1].vote.as_str(), report.nodes[1].error.as_deref()), ("unknown", Some("connect")));
    assert_eq!((report.nodes[0].latency_ms, report.quarantine_ms), (Some(1.25), 8800));
    assert_eq!(report.boot_id.len(), 36);

    server.publisher.publish(held_by(Owner::found("s3cr3t")));
    let report = ask().await;
    assert_eq!((report.holder, report.holder_kind, report.token), (None, Some(HolderKind::Foreign), Some(41)));

    let leadership = leading_for(60 * SECOND);
    let deadline = leadership.belief.as_ref().unwrap().deadline;
    server.publisher.publish(leadership);
    let report = ask().await;
    assert_eq!((report.holder_kind, report.token), (Some(HolderKind::Redleader), Some(42)));
    assert_eq!(report.valid_until_boot_ms, Some(deadline.as_millis()));
    assert!((110_000..=120_000).contains(&report.valid_for_ms), "{}", report.valid_for_ms);
    let since = humantime::parse_rfc3339(&report.since.unwrap()).unwrap();
    let now = clock::now();
    let expected = crate::wall::time_of(now - 5 * SECOND, now);
    let apart = since.duration_since(expected).unwrap_or_else(|error| error.duration());
    assert!(apart < SECOND, "{apart:?}");
}

// Case C99: the election hung, and health said that all was well.
#[tokio::test]
async fn a_hung_election_is_seen_by_every_endpoint() {
    let ttl = Duration::from_millis(300);
    let server = Server::public(leading_for(ttl), ttl, Limits::REAL);
    server.publisher.tick(clock::now());
    assert_eq!([server.status("/readyz").await, server.status("/livez").await], [200, 200]);
    let mut stream = server.connect().await;
    stream.write_all(b"GET /leader/stream HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert!(read_until(&mut stream, "}\n\n").await.contains(r#""leading":true"#));

    // Nothing is published and nothing ticks from here on.
    let scraped = async || server.ask("GET", "/metrics").await.body;
    eventually("readiness ends by itself", async || server.status("/readyz").await == 503).await;
    // Case C103: gauges kept their last value after a loss.
    let text = scraped().await;
    assert!(text.contains("redleader_is_leader{lock=\"job\"} 0\n"));
    assert!(!text.contains("redleader_lease_expiry_timestamp_seconds{"));
    assert!(!text.contains("redleader_leader_since_timestamp_seconds{"));
    assert!(read_until(&mut stream, "}\n\n").await.contains(r#""leading":false"#));
    eventually("liveness ends", async || server.status("/livez").await == 503).await;
    eventually("health ends", async || server.status("/healthz").await == 503).await;
    assert_eq!(server.status("/startupz").await, 200);
    server.publisher.tick(clock::now());
    assert_eq!(server.status("/livez").await, 200);
}

#[tokio::test]
async fn a_stream_tells_changes_and_there_are_64_at_most() {
    let server = Server::public(standby(), 60 * SECOND, Limits::REAL);
    server.publisher.publish(held_by(pod_2()));
    let open = async || {
        let mut stream = server.connect().await;
        stream.write_all(b"GET /leader/stream HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let first = read_until(&mut stream, "\n\n").await;
        (stream, first)
    };
    let (mut stream, head) = open().await;
    assert!(head.contains("content-type: text/event-stream"), "{head}");
    assert!(head.contains(r#""holder":"pod-2""#), "{head}");
    server.publisher.publish(leading_for(60 * SECOND));
    // What was published before the stream began is not told twice.
    assert!(read_until(&mut stream, "\n\n").await.contains(r#""holder":"pod-1""#));

    let mut others = Vec::new();
    for _ in 1..stream::STREAMS {
        others.push(open().await.0);
    }
    assert_eq!(server.status("/leader/stream").await, 503);
    drop(others.pop());
    eventually("a closed stream leaves room", async || {
        let mut stream = server.connect().await;
        stream.write_all(b"GET /leader/stream HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        read_until(&mut stream, "\r\n").await.contains("200")
    })
    .await;
    assert_eq!(server.ask("HEAD", "/livez").await.status, 200);

    drop(server.publisher);
    // The last chunk of a body that has ended.
    assert!(read_until(&mut stream, "0\r\n\r\n").await.len() < 64);
}
