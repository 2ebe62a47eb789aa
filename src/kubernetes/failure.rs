//! One failure of the API server or of the way to it.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode, header::RETRY_AFTER};
use serde::Deserialize;
use thiserror::Error;
use tokio_rustls::rustls;

use crate::kubernetes::target::Code;

/// Why a request to the API server came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct Failure {
    /// Its kind.
    pub code: Code,
    /// What there is to tell of it, in one line. It names the object and holds no credential.
    pub text: String,
    /// For how long the server asks to be left alone.
    pub(super) retry_after: Option<Duration>,
}

/// Characters of an error that are worth a log line.
const TEXT_MOST: usize = 300;

impl Failure {
    /// A failure of our own finding.
    pub(super) fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), retry_after: None }
    }

    /// No answer within the limit.
    pub(super) fn timeout(request: &str, limit: Duration) -> Self {
        Self::new(Code::Timeout, format!("{request}: no answer from the API server within {} s", limit.as_secs()))
    }

    /// An answer that is no success.
    pub(super) fn of_answer(request: &str, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Status {
            message: String,
        }
        let message = serde_json::from_slice::<Status>(body).map(|status| status.message).unwrap_or_default();
        let reason = if message.is_empty() { status.canonical_reason().unwrap_or_default() } else { &message };
        let retry_after = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        Self {
            code: Code::of_status(status.as_u16()),
            text: one_line(&format!("{request}: {}: {reason}", status.as_u16())),
            retry_after: retry_after.map(Duration::from_secs),
        }
    }

    /// A connection that could not be made, or broke. `by`: the proxy on the way, if there is one.
    pub(super) fn of_connection(request: &str, by: Option<&str>, error: &(dyn StdError + 'static)) -> Self {
        let (code, chain) = look_into(error);
        let proxy = by.map(|proxy| format!(" through the proxy {proxy}")).unwrap_or_default();
        Self::new(code, one_line(&format!("{request}{proxy}: {chain}")))
    }
}

/// What is at the bottom of an error, and all that its parts say.
fn look_into(error: &(dyn StdError + 'static)) -> (Code, String) {
    let (mut code, mut texts) = (Code::Connect, Vec::<String>::new());
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        // Many wrappers say what they wrap.
        if texts.last().is_none_or(|last| !last.contains(&text)) {
            texts.push(text);
        }
        if error.is::<rustls::Error>() {
            code = Code::Tls;
        }
        // An io::Error hides the error that it was made of from `source`.
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    (code, texts.join(": "))
}

fn one_line(text: &str) -> String {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TEXT_MOST).collect();
    line.truncate(line.trim_end().len());
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_tells_what_the_server_says_of_it() {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, "60".parse().unwrap());
        let body = br#"{"kind":"Status","message":"pods \"a\" is forbidden:\n no"}"#;
        let failure = Failure::of_answer("patch pods/a", StatusCode::FORBIDDEN, &headers, body);
        assert_eq!(failure.code, Code::Forbidden);
        assert_eq!(failure.to_string(), "patch pods/a: 403: pods \"a\" is forbidden:  no");
        assert_eq!(failure.retry_after, Some(Duration::from_secs(60)));
        let failure = Failure::of_answer("get pods/a", StatusCode::BAD_GATEWAY, &HeaderMap::new(), b"<html>");
        assert_eq!(failure.to_string(), "get pods/a: 502: Bad Gateway");
        let long = format!("{{\"message\":\"{}\"}}", "x".repeat(5000));
        let failure = Failure::of_answer("get", StatusCode::CONFLICT, &HeaderMap::new(), long.as_bytes());
        assert_eq!(failure.text.len(), TEXT_MOST);
    }

    #[test]
    fn a_fault_of_tls_is_found_under_what_wraps_it() {
        let tls = io::Error::other(rustls::Error::DecryptError);
        let failure = Failure::of_connection("get", None, &io::Error::other(tls));
        assert_eq!(failure.code, Code::Tls);
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let failure = Failure::of_connection("get", Some("http://p:1"), &refused);
        assert_eq!(failure.code, Code::Connect);
        assert_eq!(failure.text, "get through the proxy http://p:1: connection refused");
    }
}
