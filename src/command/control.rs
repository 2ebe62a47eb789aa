//! Speaks to the redleader beside us over its control address: `resign`, `drain`, and what it says of itself.

use std::io;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use crate::command::{Exit, Said};
use crate::config::{DrainConfig, ResignConfig};
use crate::http::ControlAddress;

/// Why the redleader beside us did not do what it was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Nobody listens there.
    #[error("no redleader answers at {at}: is it running in this pod? (--control): {why}")]
    Nobody {
        /// The control address.
        at: ControlAddress,
        /// What the system says.
        why: io::Error,
    },
    /// Whoever listens takes too long.
    #[error("the redleader at {at} does not answer within {} s (--control)", LIMIT.as_secs())]
    Timeout {
        /// The control address.
        at: ControlAddress,
    },
    /// The connection was closed without an answer, as it is for a peer of another uid.
    #[error("the redleader at {at} hung up: control is for its own user and root (--control)")]
    HungUp {
        /// The control address.
        at: ControlAddress,
    },
    /// Something else listens there.
    #[error("what answers at {at} is not redleader (--control)")]
    NotRedleader {
        /// The control address.
        at: ControlAddress,
    },
    /// It was understood, and not done.
    #[error("the redleader at {at} refused with status {status}: {body}")]
    Refused {
        /// The control address.
        at: ControlAddress,
        /// The HTTP status.
        status: u16,
        /// The first line of the answer.
        body: String,
    },
}

/// A redleader that is alive answers in a millisecond; this is for a machine that hardly gets on.
const LIMIT: Duration = Duration::from_secs(5);
/// Far more than `/leader` with the largest list of nodes.
const ANSWER_BYTES_MOST: u64 = 256 * 1024;

/// Asks the redleader beside us to give up leadership.
pub async fn resign(config: ResignConfig) -> Said {
    let ResignConfig { control, stand_back } = config;
    let asked = ask(&control, "POST", &format!("/resign?for={}ms", stand_back.as_millis())).await;
    said(asked, "asked it to resign")
}

/// Asks the redleader beside us to make no new attempt.
pub async fn drain(config: DrainConfig) -> Said {
    let DrainConfig { control } = config;
    said(ask(&control, "POST", "/drain").await, "asked it to drain")
}

/// What the redleader beside us says of itself: the JSON of `GET /leader`.
///
/// # Errors
/// When none answers, or with something else.
pub async fn leader(control: &ControlAddress) -> Result<serde_json::Value, ControlError> {
    let body = ask(control, "GET", "/leader").await?;
    serde_json::from_str(&body).map_err(|_| ControlError::NotRedleader { at: control.clone() })
}

fn said(asked: Result<String, ControlError>, done: &str) -> Said {
    match asked {
        Ok(body) if body.trim().is_empty() => Said { text: done.to_owned(), exit: Exit::Well },
        Ok(body) => Said { text: body.trim_end().to_owned(), exit: Exit::Well },
        Err(error) => Said { text: error.to_string(), exit: Exit::Refused },
    }
}

async fn ask(control: &ControlAddress, method: &str, path: &str) -> Result<String, ControlError> {
    let at = || control.clone();
    let answer = match tokio::time::timeout(LIMIT, exchange(control, method, path)).await {
        Err(_) => return Err(ControlError::Timeout { at: at() }),
        Ok(answer) => answer?,
    };
    let (status, body) = match parse(&answer) {
        Some(parsed) => parsed,
        None if answer.is_empty() => return Err(ControlError::HungUp { at: at() }),
        None => return Err(ControlError::NotRedleader { at: at() }),
    };
    if (200..300).contains(&status) {
        return Ok(body.to_owned());
    }
    let body = body.lines().next().unwrap_or_default().to_owned();
    Err(ControlError::Refused { at: at(), status, body })
}

async fn exchange(control: &ControlAddress, method: &str, path: &str) -> Result<Vec<u8>, ControlError> {
    let nobody = |why| ControlError::Nobody { at: control.clone(), why };
    // HTTP/1.0 leaves one form of answer: a head, then the body up to the end of the connection.
    let request = format!("{method} {path} HTTP/1.0\r\nHost: redleader\r\nContent-Length: 0\r\n\r\n");
    let answer = match control {
        // tokio takes a path that begins with a zero byte for a name in the abstract namespace.
        ControlAddress::Abstract(name) => {
            talk(UnixStream::connect(format!("\0{name}")).await.map_err(nobody)?, &request).await
        }
        ControlAddress::Path(path) => talk(UnixStream::connect(path).await.map_err(nobody)?, &request).await,
        ControlAddress::Loopback(address) => talk(TcpStream::connect(address).await.map_err(nobody)?, &request).await,
    };
    // Whoever closes without reading resets the connection: that is a hang-up, not an absence.
    answer.map_err(|_| ControlError::HungUp { at: control.clone() })
}

async fn talk(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> io::Result<Vec<u8>> {
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MOST).read_to_end(&mut answer).await?;
    Ok(answer)
}

/// The status and the body of an HTTP answer.
fn parse(answer: &[u8]) -> Option<(u16, &str)> {
    let (head, body) = std::str::from_utf8(answer).ok()?.split_once("\r\n\r\n")?;
    let (version, rest) = head.split_once(' ')?;
    let status = rest.get(..3)?.parse().ok()?;
    version.starts_with("HTTP/1.").then_some((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_from_noise() {
        for (answer, expected) in [
            (&b"HTTP/1.0 200 OK\r\n\r\n{}"[..], Some((200, "{}"))),
            (b"HTTP/1.1 404 Not Found\r\nA: b\r\n\r\n", Some((404, ""))),
            (b"HTTP/1.1 503\r\n\r\nno\r\n\r\n", Some((503, "no\r\n\r\n"))),
            (b"-ERR unknown command\r\n\r\n", None),
            (b"HTTP/1.1 \r\n\r\n", None),
            (b"HTTP/1.1 2xx OK\r\n\r\n", None),
            (b"\xff\xff\r\n\r\n", None),
            (b"", None),
        ] {
            assert_eq!(parse(answer), expected);
        }
    }

    async fn ask_of(router: axum::Router, method: &str, path: &str) -> Result<String, ControlError> {
        let name = format!("redleader-test-{}-{}", std::process::id(), path.replace('/', "-"));
        let listener = tokio::net::UnixListener::bind(format!("\0{name}")).unwrap();
        tokio::spawn(async { axum::serve(listener, router).await });
        ask(&ControlAddress::Abstract(name), method, path).await
    }

    #[tokio::test]
    async fn a_real_server_understands_and_is_understood() {
        use axum::http::StatusCode;
        use axum::routing::{get, post};
        let router = axum::Router::new()
            .route("/leader", get(|| async { "{\"leading\":true}" }))
            .route("/drain", post(|| async { StatusCode::ACCEPTED }))
            .route("/resign", post(|| async { (StatusCode::CONFLICT, "does not lead\nat all") }));
        assert_eq!(ask_of(router.clone(), "GET", "/leader").await.unwrap(), "{\"leading\":true}");
        assert_eq!(ask_of(router.clone(), "POST", "/drain").await.unwrap(), "");
        let error = ask_of(router, "POST", "/resign").await.unwrap_err().to_string();
        assert!(error.ends_with("refused with status 409: does not lead"), "{error}");
    }

    #[tokio::test]
    async fn an_absent_or_foreign_listener_is_named() {
        let nobody = ControlAddress::Abstract("redleader-nobody".to_owned());
        let error = leader(&nobody).await.unwrap_err().to_string();
        assert!(
            error.starts_with("no redleader answers at @redleader-nobody: is it running in this pod? (--control)"),
            "{error}"
        );

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = ControlAddress::Loopback(listener.local_addr().unwrap());
        let hang_up = async { drop(listener.accept().await.unwrap()) };
        let (error, ()) = tokio::join!(leader(&at), hang_up);
        assert!(matches!(error, Err(ControlError::HungUp { .. })), "{error:?}");
        let foreign = async { listener.accept().await.unwrap().0.write_all(b"220 mail\r\n").await.unwrap() };
        let (error, ()) = tokio::join!(leader(&at), foreign);
        // Closed with our request unread, the kernel may drop what was written.
        assert!(matches!(error, Err(ControlError::NotRedleader { .. } | ControlError::HungUp { .. })), "{error:?}");
    }
}
