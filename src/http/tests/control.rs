//! Control, and the sockets that it listens on.

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::PathBuf;

use tokio::net::UnixStream;

use super::*;
use crate::http::control::ControlAddressError;

async fn post(address: &ControlAddress, path: &str, header: &str) -> Answer {
    let text = format!("POST {path} HTTP/1.1\r\nhost: x\r\n{header}connection: close\r\n\r\n");
    match address {
        ControlAddress::Path(path) => exchange(UnixStream::connect(path).await.unwrap(), &text).await,
        ControlAddress::Loopback(address) => exchange(TcpStream::connect(address).await.unwrap(), &text).await,
        ControlAddress::Abstract(name) => {
            use std::os::linux::net::SocketAddrExt as _;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
            let socket = std::os::unix::net::UnixStream::connect_addr(&address).unwrap();
            socket.set_nonblocking(true).unwrap();
            exchange(UnixStream::from_std(socket).unwrap(), &text).await
        }
    }
}

fn unique(name: &str) -> String {
    format!("redleader-{name}-{}-{}", std::process::id(), clock::now().as_micros())
}

#[tokio::test]
async fn control_passes_requests_on() {
    let address = ControlAddress::Abstract(unique("control"));
    let mut server = Server::control(leading_for(60 * SECOND), &address);
    let resign = |seconds: u64| Request::Resign { reason: StepDown::Resign, stand_back: Duration::from_secs(seconds) };
    for (path, says, request) in [
        ("/resign?for=30s", "stepping down; no new attempt is made for 30s", resign(30)),
        ("/resign?for=1m30s", "stepping down; no new attempt is made for 1m 30s", resign(90)),
        ("/resign", "stepping down; no new attempt is made for 8s", resign(8)),
        ("/drain", "draining: leadership is kept", Request::Drain),
    ] {
        let answer = post(&address, path, "content-length: 0\r\n").await;
        assert_eq!(answer.status, 202, "{path} {answer:?}");
        assert!(answer.body.starts_with(says) && answer.body.ends_with('\n'), "{path} {answer:?}");
        assert_eq!(server.requests.try_recv(), Ok(request), "{path}");
    }
    for (path, names) in [
        ("/resign?for=30", "`for`"),
        ("/resign?for=", "`for`"),
        ("/resign?for=-1s", "`for`"),
        ("/resign?for=25h", "24h"),
        ("/resign?for=1s&for=2s", "`for`"),
        ("/resign?fro=30s", "`fro`"),
        ("/drain?for=30s", "`for`"),
    ] {
        let answer = post(&address, path, "").await;
        assert_eq!(answer.status, 400, "{path}");
        assert!(answer.body.contains(names), "{path} {answer:?}");
    }
    assert_eq!(post(&address, "/drain", "origin: http://evil\r\n").await.status, 403);
    assert_eq!(post(&address, "/readyz", "").await.status, 404);
    assert_eq!(post(&address, "/leader", "").await.status, 405);
    assert!(server.requests.try_recv().is_err());

    assert_eq!(post(&address, "/drain", "").await.status, 202);
    let full = post(&address, "/drain", "").await;
    assert_eq!(full.status, 503);
    server.requests.close();
    while server.requests.try_recv().is_ok() {}
    assert!(post(&address, "/drain", "").await.body.contains("ended"));

    // A standby says what it does, too.
    server.publisher.publish(standby());
    server.end().await;
}

#[tokio::test]
async fn another_user_may_control_nothing() {
    let (client, socket) = tokio::io::duplex(4096);
    let (_ending, ended) = tokio::sync::watch::channel(());
    let router = Router::new().fallback(|| ready(line(StatusCode::ACCEPTED, "done")));
    let request = "POST /drain HTTP/1.1\r\nhost: x\r\n\r\n";
    let serving = attend_on(socket, Peer::Another, router, Activity::new(), ended);
    let (answer, ()) = tokio::join!(exchange(client, request), serving);
    assert_eq!(answer.status, 403, "{answer:?}");
}

#[tokio::test]
async fn a_socket_file_is_private_replaced_when_stale_and_removed() {
    let path = PathBuf::from(format!("/tmp/{}", unique("socket")));
    // What a process that was killed leaves behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let address = ControlAddress::Path(path.clone());
    let mut server = Server::control(standby(), &address);
    let found = std::fs::symlink_metadata(&path).unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    assert!(matches!(bind_control(&address), Err(BindError::InUse(_))));
    let answer = post(&address, "/resign?for=5s", "").await;
    assert_eq!((answer.status, answer.body.as_str()), (202, "not leading; no new attempt is made for 5s\n"));
    assert!(server.requests.try_recv().is_ok());
    server.end().await;
    assert!(!path.exists());

    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(bind_control(&address), Err(BindError::NotASocket(_))));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let first = bind_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = first.local_addr().unwrap();
    let error = bind_tcp(address).unwrap_err().to_string();
    assert!(error.contains("--listen") && error.contains(&address.to_string()), "{error}");
    let error = bind_control(&ControlAddress::Loopback(address)).unwrap_err().to_string();
    assert!(error.contains("--control") && error.contains(&address.to_string()), "{error}");
}

#[test]
fn control_addresses_are_local_read_and_written() {
    for text in ["@redleader-9797", "unix:/run/redleader.sock", "127.0.0.1:9798", "[::1]:9798"] {
        assert_eq!(ControlAddress::parse(text).unwrap().to_string(), text);
    }
    assert_eq!(ControlAddress::parse("unix:///run/r.sock").unwrap().to_string(), "unix:/run/r.sock");
    let of_length = |bytes: usize| format!("@{}", "x".repeat(bytes));
    assert!(ControlAddress::parse(&of_length(107)).is_ok());
    let long = of_length(108);
    for text in ["", "@", "unix:", "unix:r.sock", "localhost:1", "127.0.0.1", "127.0.0.1:0", long.as_str()] {
        assert_eq!(ControlAddress::parse(text), Err(ControlAddressError::Form), "{text}");
    }
    for text in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1"] {
        assert_eq!(ControlAddress::parse(text), Err(ControlAddressError::NotLoopback), "{text}");
    }
}
