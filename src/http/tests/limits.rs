//! What is refused, cut off and not waited for.

use tokio::net::TcpSocket;

use super::*;

#[tokio::test]
async fn what_is_not_served_is_refused() {
    let server = Server::public(standby(), SECOND, Limits::REAL);
    for path in ["/no", "/readyz/", "//", "/resign", "/drain", "/leader/streams", "/%"] {
        for method in ["GET", "HEAD", "POST"] {
            assert_eq!(server.ask(method, path).await.status, 404, "{method} {path}");
        }
    }
    for path in PATHS.into_iter().chain(["/leader/stream"]) {
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
            let answer = server.ask(method, path).await;
            assert_eq!(answer.status, 405, "{method} {path}");
            assert!(answer.head.contains("allow: get,head"));
        }
    }
    for body in ["content-length: 4\r\n\r\nbody", "transfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"] {
        let answer = exchange(server.connect().await, &format!("GET /readyz HTTP/1.1\r\nhost: x\r\n{body}")).await;
        assert_eq!(answer.status, 413, "{body}");
    }
    // A body that is announced and never comes is not waited for.
    let huge = "GET /readyz HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 999999999\r\n\r\n";
    assert_eq!(exchange(server.connect().await, huge).await.status, 413);

    let filler = |bytes: usize| format!("GET /livez HTTP/1.1\r\nconnection: close\r\nx: {}\r\n\r\n", "x".repeat(bytes));
    assert_eq!(exchange(server.connect().await, &filler(7 * 1024)).await.status, 200);
    assert_eq!(exchange(server.connect().await, &filler(8 * 1024)).await.status, 431);
    let many = format!("GET /livez HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(65));
    assert_eq!(exchange(server.connect().await, &many).await.status, 431);
    let mut http2 = server.connect().await;
    http2.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    eventually("HTTP/2 is turned away", async || is_closed(&mut http2).await).await;
    assert_eq!(server.status("/livez").await, 200);
}

#[tokio::test]
async fn half_a_request_is_cut_off_and_an_idle_connection_is_not() {
    let limits = Limits { head: Duration::from_millis(200), ..Limits::REAL };
    let server = Server::public(standby(), 60 * SECOND, limits);
    let mut idle = server.connect().await;
    assert_eq!(ask_on(&mut idle, "/livez").await.status, 200);
    let mut half = server.connect().await;
    let mut second_half = server.connect().await;
    assert_eq!(ask_on(&mut second_half, "/livez").await.status, 200);
    let begun = clock::now();
    half.write_all(b"GET /livez HT").await.unwrap();
    second_half.write_all(b"GET /livez HTTP/1.1\r\nho").await.unwrap();
    assert!(is_closed(&mut half).await);
    assert!(is_closed(&mut second_half).await);
    assert!(clock::now().since(begun) >= limits.head);
    assert_eq!(ask_on(&mut idle, "/livez").await.status, 200);
}

#[tokio::test]
async fn the_longest_idle_connection_is_closed_for_a_new_one() {
    // The clients are in this process too.
    raise_open_files(CONNECTIONS as u64 + 1024).unwrap();
    let server = Server::public(standby(), 60 * SECOND, Limits::REAL);
    let mut stream = server.connect().await;
    stream.write_all(b"GET /leader/stream HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    read_until(&mut stream, "}\n\n").await;
    let mut connections = Vec::new();
    for _ in 1..CONNECTIONS {
        let mut connection = server.connect().await;
        // An answer shows that it has been accepted.
        assert_eq!(ask_on(&mut connection, "/livez").await.status, 200);
        connections.push(connection);
    }
    // The first is used again, which leaves the second as the longest idle; the stream is in use.
    assert_eq!(ask_on(&mut connections[0], "/livez").await.status, 200);
    let mut extra = server.connect().await;
    assert_eq!(ask_on(&mut extra, "/livez").await.status, 200);
    assert!(is_closed(&mut connections[1]).await);
    assert_eq!(ask_on(&mut connections[0], "/livez").await.status, 200);
    assert_eq!(ask_on(&mut connections[2], "/livez").await.status, 200);
    server.publisher.publish(leading_for(SECOND));
    assert!(read_until(&mut stream, "}\n\n").await.contains(r#""leading":true"#));
}

// Case C117: an idle or half-open connection kept the server from ending.
#[tokio::test]
async fn the_end_waits_for_no_client() {
    let server = Server::public(standby(), 60 * SECOND, Limits::REAL);
    let mut idle = server.connect().await;
    assert_eq!(ask_on(&mut idle, "/readyz").await.status, 503);
    let silent = server.connect().await;
    let mut half = server.connect().await;
    half.write_all(b"GET /rea").await.unwrap();
    let mut http2 = server.connect().await;
    http2.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    assert_eq!(ask_on(&mut idle, "/readyz").await.status, 503);
    let took = server.end().await;
    assert!(took < SECOND / 2, "{took:?}");
    assert!(is_closed(&mut idle).await);
    drop((silent, half, http2));
}

#[tokio::test]
async fn the_end_gives_a_stream_and_a_slow_reader_a_second_and_no_more() {
    let server = Server::public(standby(), 60 * SECOND, Limits::REAL);
    let mut stream = server.connect().await;
    stream.write_all(b"GET /leader/stream HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    read_until(&mut stream, "\n\n").await;
    let _slow = slow_reader(&server).await;
    let took = server.end().await;
    assert!(took < 2 * SECOND, "{took:?}");
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_cut_off_and_delays_nobody() {
    let limits = Limits { head: SECOND / 10, stall: SECOND, ..Limits::REAL };
    let server = Server::public(standby(), 60 * SECOND, limits);
    let mut slow = slow_reader(&server).await;
    assert_eq!(server.status("/readyz").await, 503);
    let cut_off = async { while slow.write_all(b"x").await.is_ok() {} };
    timeout(PATIENCE, cut_off).await.expect("the slow reader is cut off");
}

/// Asks for more than the sockets hold, and reads none of it.
async fn slow_reader(server: &Server) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut slow = socket.connect(server.address.unwrap()).await.unwrap();
    let request = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(10);
    // The server stops reading once its answers are not taken, and then nothing more can be written.
    let flood = async { while slow.write_all(request.as_bytes()).await.is_ok() {} };
    assert!(timeout(Duration::from_millis(250), flood).await.is_err());
    slow
}
