//! Answers that are no votes: the one place that tells what an error of a server or a connection is.
//!
//! The table is closed. What it does not know is [`Kind::Unknown`], and never a vote.

use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerError, Value};
use thiserror::Error;

use crate::redsync::reply::Kind;

/// Why a connection could not be made or went away. The text never holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {text}", kind.as_str())]
pub struct Failure {
    /// The row of the table.
    pub kind: Kind,
    /// What was said, for the log.
    pub text: String,
}

impl Failure {
    pub(crate) fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    pub(crate) fn from_server(error: &ServerError) -> Self {
        let text = text(error);
        Self { kind: classify(&text), text }
    }

    pub(crate) fn from_io(error: &io::Error) -> Self {
        Self { kind: classify_io(error), text: error.to_string() }
    }

    pub(crate) fn from_client(error: &RedisError) -> Self {
        Self { kind: classify_client(error), text: error.to_string() }
    }
}

/// A server's error as it was on the wire, without what some repeat: a command's arguments, where AUTH has the
/// password, and the name of the user who may not do something.
pub(crate) fn text(error: &ServerError) -> String {
    without_credentials(&format!("{} {}", error.code(), error.details().unwrap_or_default()))
}

fn without_credentials(text: &str) -> String {
    let text = text.split(", with args").next().unwrap_or_default().trim_end();
    match text.split_once("User ").and_then(|(before, rest)| Some((before, rest.split_once(" has no permissions")?))) {
        Some((before, (_name, after))) => format!("{before}the user has no permissions{after}"),
        None => text.to_owned(),
    }
}

/// Error codes, as they stand first in an error or, before 7.0, inside the text of a script's error.
const CODES: [(&str, Kind); 18] = [
    ("NOAUTH", Kind::Auth),
    ("WRONGPASS", Kind::Auth),
    ("DENIED", Kind::Auth),
    ("NOPERM", Kind::Noperm),
    ("READONLY", Kind::Readonly),
    ("LOADING", Kind::Loading),
    ("MASTERDOWN", Kind::Masterdown),
    ("MISCONF", Kind::Misconf),
    ("OOM", Kind::Oom),
    ("NOREPLICAS", Kind::Noreplicas),
    ("BUSY", Kind::Busy),
    ("CLUSTERDOWN", Kind::Clusterdown),
    ("MOVED", Kind::Moved),
    ("ASK", Kind::Moved),
    ("CROSSSLOT", Kind::Moved),
    ("TRYAGAIN", Kind::Moved),
    ("WRONGTYPE", Kind::Wrongtype),
    ("NOSCRIPT", Kind::Unknown),
];

/// What servers say in a sentence where they have no code for it.
const SENTENCES: [(&str, Kind); 14] = [
    ("max number of clients", Kind::Maxclients),
    ("invalid password", Kind::Auth),
    ("AUTH <password> called without", Kind::Auth),
    ("Client sent AUTH, but no password is set", Kind::Auth),
    ("wrong number of arguments for 'auth'", Kind::Auth),
    ("The user executing the script can't", Kind::Noperm),
    ("ACL failure in script", Kind::Noperm),
    ("has no permissions to", Kind::Noperm),
    ("attempted to access a non local key", Kind::Moved),
    ("SELECT is not allowed in cluster mode", Kind::Moved),
    ("unknown command", Kind::Unsupported),
    ("Unknown Redis command called from", Kind::Unsupported),
    ("unsupported command", Kind::Unsupported),
    ("This instance has cluster support disabled", Kind::Unsupported),
];

/// The row of a server's error, given as it was on the wire without the leading `-`.
#[must_use]
pub fn classify(text: &str) -> Kind {
    let code = text.split(' ').next().unwrap_or_default();
    if code == "REDLEADER" {
        return if text.starts_with("REDLEADER NORUN") { Kind::NoRunId } else { Kind::BadState };
    }
    if let Some(kind) = kind_of_code(code) {
        return kind;
    }
    if code != "ERR" {
        return Kind::Unknown;
    }
    if let Some((_, kind)) = SENTENCES.iter().find(|(sentence, _)| text.contains(sentence)) {
        return *kind;
    }
    // 5.x and 6.x wrap whatever goes wrong in a script: `ERR Error running script (call to f_…): @user_script:3: -OOM …`.
    let wrapped = text.strip_prefix("ERR Error running script").unwrap_or_default();
    wrapped.split(' ').find_map(|word| kind_of_code(word.trim_start_matches('-'))).unwrap_or(Kind::Unknown)
}

/// Whether a call of EVALSHA was refused as such, before any script ran: a proxy or a server that lacks the command, or
/// a user who may not use it. EVAL may be had all the same.
pub(crate) fn is_evalsha_refused(reply: &Value) -> bool {
    let Value::ServerError(error) = reply else { return false };
    let text = text(error);
    let kind = classify(&text);
    // Where a command that a script calls is missing, the script has run.
    let is_missing = kind == Kind::Unsupported && !text.contains("called from");
    is_missing || kind == Kind::Noperm && text.to_ascii_lowercase().contains("'evalsha")
}

fn kind_of_code(word: &str) -> Option<Kind> {
    CODES.iter().find(|(code, _)| *code == word).map(|(_, kind)| *kind)
}

/// The row of an error that the client library gives for a request.
pub(crate) fn classify_client(error: &RedisError) -> Kind {
    if let Some(code) = error.code() {
        return classify(&format!("{code} {}", error.detail().unwrap_or_default()));
    }
    if matches!(error.kind(), ErrorKind::Parse | ErrorKind::UnexpectedReturnType) {
        return Kind::Protocol;
    }
    if !error.is_io_error() {
        return Kind::Unknown;
    }
    std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>())
        .and_then(|source| source.downcast_ref::<io::Error>())
        .map_or(Kind::Connect, classify_io)
}

/// The row of a socket's error. The reply that is too large, and whatever breaks the framing, is `InvalidData`; so is
/// what TLS 1.3 servers say after the handshake about a missing certificate.
pub(crate) fn classify_io(error: &io::Error) -> Kind {
    if error.get_ref().is_some_and(|inner| inner.is::<tokio_rustls::rustls::Error>()) {
        Kind::Tls
    } else if error.kind() == io::ErrorKind::InvalidData {
        Kind::Protocol
    } else if error.kind() == io::ErrorKind::TimedOut {
        Kind::Timeout
    } else {
        Kind::Connect
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The literal texts of Redis 5.0, 6.2 and 7.0, and of Valkey.
    #[test]
    fn the_table_reads_what_servers_write() {
        let wrap = |inner: &str| {
            format!("ERR Error running script (call to f_0123456789abcdef0123456789abcdef01234567): {inner}")
        };
        for (text, kind) in [
            ("NOAUTH Authentication required.".to_owned(), Kind::Auth),
            ("WRONGPASS invalid username-password pair or user is disabled.".to_owned(), Kind::Auth),
            ("ERR invalid password".to_owned(), Kind::Auth),
            ("ERR Client sent AUTH, but no password is set".to_owned(), Kind::Auth),
            (
                "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
                 configuration is correct?"
                    .to_owned(),
                Kind::Auth,
            ),
            ("ERR wrong number of arguments for 'auth' command".to_owned(), Kind::Auth),
            ("DENIED Redis is running in protected mode because protected mode is enabled".to_owned(), Kind::Auth),
            ("ERR max number of clients reached".to_owned(), Kind::Maxclients),
            ("ERR max number of clients + cluster connections reached".to_owned(), Kind::Maxclients),
            ("NOPERM this user has no permissions to run the 'evalsha' command".to_owned(), Kind::Noperm),
            ("NOPERM User u has no permissions to access one of the keys used as arguments".to_owned(), Kind::Noperm),
            (
                wrap("@user_script:3: @user_script: 3: The user executing the script can't run this command or subcommand"),
                Kind::Noperm,
            ),
            (
                "ERR The user executing the script can't run this command or subcommand script: f_01, on @user_script:3."
                    .to_owned(),
                Kind::Noperm,
            ),
            ("ERR ACL failure in script: User u has no permissions to run the 'time' command".to_owned(), Kind::Noperm),
            ("READONLY You can't write against a read only replica.".to_owned(), Kind::Readonly),
            (wrap("@user_script:9: -READONLY You can't write against a read only replica."), Kind::Readonly),
            ("LOADING Redis is loading the dataset in memory".to_owned(), Kind::Loading),
            (
                "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.".to_owned(),
                Kind::Masterdown,
            ),
            ("MISCONF Redis is configured to save RDB snapshots, but ...".to_owned(), Kind::Misconf),
            (wrap("@user_script: 1: -MISCONF Errors writing to the AOF file: No space left on device"), Kind::Misconf),
            (
                "OOM command not allowed when used memory > 'maxmemory'. script: f_01, on @user_script:1.".to_owned(),
                Kind::Oom,
            ),
            (wrap("@user_script:1: -OOM command not allowed when used memory > 'maxmemory'."), Kind::Oom),
            ("NOREPLICAS Not enough good replicas to write.".to_owned(), Kind::Noreplicas),
            (wrap("@user_script:1: -NOREPLICAS Not enough good replicas to write."), Kind::Noreplicas),
            ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.".to_owned(), Kind::Busy),
            ("CLUSTERDOWN Hash slot not served".to_owned(), Kind::Clusterdown),
            ("MOVED 3999 127.0.0.1:6381".to_owned(), Kind::Moved),
            ("ASK 3999 127.0.0.1:6381".to_owned(), Kind::Moved),
            (wrap("@user_script:1: Script attempted to access a non local key in a cluster node"), Kind::Moved),
            ("WRONGTYPE Operation against a key holding the wrong kind of value".to_owned(), Kind::Wrongtype),
            (
                wrap("@user_script:2: WRONGTYPE Operation against a key holding the wrong kind of value"),
                Kind::Wrongtype,
            ),
            ("ERR unknown command `EVALSHA`, with args beginning with: `01`".to_owned(), Kind::Unsupported),
            ("ERR unknown command 'EVAL', with args beginning with: ".to_owned(), Kind::Unsupported),
            (wrap("@user_script:1: Unknown Redis command called from Lua script"), Kind::Unsupported),
            ("REDLEADER BADSTATE field token of {job}:redleader is no number below 2^53".to_owned(), Kind::BadState),
            ("REDLEADER NORUN no run_id to be had".to_owned(), Kind::NoRunId),
            ("ERR DB index is out of range".to_owned(), Kind::Unknown),
            ("ERR Error compiling script (new function): user_script:1: OOM".to_owned(), Kind::Unknown),
            ("SOMETHING new".to_owned(), Kind::Unknown),
            (String::new(), Kind::Unknown),
        ] {
            assert_eq!(classify(&text), kind, "{text}");
        }
    }

    #[test]
    fn what_a_server_repeats_of_ours_is_left_out() {
        for (text, expected) in [
            ("ERR unknown command 'AUTH', with args beginning with: 'S3cr3t'", "ERR unknown command 'AUTH'"),
            (
                "NOPERM User S3cr3t has no permissions to run the 'info' command",
                "NOPERM the user has no permissions to run the 'info' command",
            ),
            (
                "ERR ACL failure in script: User S3cr3t has no permissions to access the 'k' key",
                "ERR ACL failure in script: the user has no permissions to access the 'k' key",
            ),
            ("NOPERM this user has no permissions to run 'info'", "NOPERM this user has no permissions to run 'info'"),
            ("OOM", "OOM"),
        ] {
            assert_eq!(without_credentials(text), expected);
        }
    }

    #[test]
    fn socket_errors_are_read_through_the_client_library() {
        for (kind, row) in [
            (io::ErrorKind::InvalidData, Kind::Protocol),
            (io::ErrorKind::ConnectionReset, Kind::Connect),
            (io::ErrorKind::UnexpectedEof, Kind::Connect),
            (io::ErrorKind::TimedOut, Kind::Timeout),
        ] {
            let error = RedisError::from(io::Error::new(kind, "x"));
            assert_eq!(classify_client(&error), row, "{error:?}");
        }
    }
}
