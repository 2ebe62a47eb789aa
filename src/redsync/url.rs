//! Where a node is, as `--redis` says it, and the secrets that go with it.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use thiserror::Error;
use url::{Host, Url};

/// A text that no log, error or metric may show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps a text from being shown.
    #[must_use]
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// The text, for the wire only.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// One node's address, database and credentials.
///
/// `redis://[user[:password]@]host[:port][/db]`, `rediss://` for TLS, and `unix:///path[?db=N]` or `redis+unix://` for
/// a socket. User and password are percent-decoded once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeUrl {
    pub(crate) endpoint: Endpoint,
    pub(crate) db: u32,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Secret>,
}

/// What is dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// A host, with or without TLS.
    Tcp {
        /// Lower case; an IPv6 address without brackets.
        host: String,
        port: u16,
        tls: bool,
    },
    /// A socket's path.
    Unix(PathBuf),
}

/// Why a text is no [`NodeUrl`]. No variant holds any part of the text, for it may hold a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NodeUrlError {
    /// Another scheme, or none.
    #[error("must begin with redis://, rediss:// or unix://")]
    Scheme,
    /// A character of the password that means something else in a URL.
    #[error(
        "has a raw `{0}` in it: percent-encode it in the user name and the password (`{encoded}`), or use \
         --redis-password-file",
        encoded = encoded(*.0)
    )]
    Raw(char),
    /// `::1:7001` may be an address with or without a port.
    #[error("is an ambiguous IPv6 address: write it in brackets, as in redis://[::1]:6379")]
    Ipv6,
    /// A link-local address with a zone.
    #[error("has an IPv6 zone (`%eth0`), which a URL cannot carry everywhere: use a global address or a host name")]
    Zone,
    /// No host, or one that is none.
    #[error("has no valid host: use a name or an address, IPv6 in brackets")]
    Host,
    /// No number from 1 to 65535.
    #[error(
        "has no valid port: use a number from 1 to 65535; if the password has a `/`, `?` or `:`, percent-encode it or \
         use --redis-password-file"
    )]
    Port,
    /// What follows the host is no database.
    #[error("has a path that is no database number: use /0, /1 and so on, or leave it out")]
    Database,
    /// A parameter that is not known.
    #[error("has parameters: only unix:// takes one, ?db=N")]
    Parameters,
    /// A socket without an absolute path, with a user or host, or with a control character in its path.
    #[error("must name a socket by its absolute path alone, without control characters, as in unix:///run/redis.sock")]
    Socket,
    /// The user or password is not UTF-8 once decoded.
    #[error(
        "has a user name or password that is not UTF-8 once decoded: write a raw `%` as `%25`, or use \
         --redis-password-file"
    )]
    NotUtf8,
}

const DEFAULT_PORT: u16 = 6379;

impl NodeUrl {
    /// Reads a URL.
    ///
    /// # Errors
    /// What is wrong with it and what to write instead, without showing any of it.
    pub fn parse(text: &str) -> Result<Self, NodeUrlError> {
        let (scheme, rest) = text.split_once(':').ok_or(NodeUrlError::Scheme)?;
        match scheme.to_ascii_lowercase().as_str() {
            "redis" => Self::parse_tcp(text, rest, false),
            "rediss" => Self::parse_tcp(text, rest, true),
            "unix" | "redis+unix" => Self::parse_unix(rest),
            _ => Err(NodeUrlError::Scheme),
        }
    }

    fn parse_tcp(text: &str, rest: &str, tls: bool) -> Result<Self, NodeUrlError> {
        check_raw(rest.strip_prefix("//").ok_or(NodeUrlError::Scheme)?)?;
        let url = Url::parse(text).map_err(|error| {
            if error == url::ParseError::InvalidPort { NodeUrlError::Port } else { NodeUrlError::Host }
        })?;
        let host = match url.host().ok_or(NodeUrlError::Host)? {
            Host::Domain(name) if is_host_name(name) => name.to_ascii_lowercase(),
            Host::Domain(_) => return Err(NodeUrlError::Host),
            Host::Ipv4(address) => address.to_string(),
            Host::Ipv6(address) => address.to_string(),
        };
        let port = url.port().unwrap_or(DEFAULT_PORT);
        if port == 0 {
            return Err(NodeUrlError::Port);
        }
        if url.query().is_some() {
            return Err(NodeUrlError::Parameters);
        }
        let db = match url.path().trim_start_matches('/') {
            "" => 0,
            number => parse_db(number)?,
        };
        let username = Some(decode(url.username())?).filter(|name| !name.is_empty());
        let password = url.password().map(decode).transpose()?.map(Secret);
        Ok(Self { endpoint: Endpoint::Tcp { host, port, tls }, db, username, password })
    }

    fn parse_unix(rest: &str) -> Result<Self, NodeUrlError> {
        let path = rest.strip_prefix("//").unwrap_or(rest);
        let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        let db = match query {
            None => 0,
            Some(query) => parse_db(query.strip_prefix("db=").ok_or(NodeUrlError::Parameters)?)?,
        };
        if !path.starts_with('/') {
            return Err(NodeUrlError::Socket);
        }
        let path = decode(path)?;
        // The path is the node's name in logs and labels, where a line is a line.
        if path.contains(char::is_control) {
            return Err(NodeUrlError::Socket);
        }
        let path = PathBuf::from(path);
        Ok(Self { endpoint: Endpoint::Unix(path), db, username: None, password: None })
    }

    /// What the node is called in logs and labels: `host:port` in lower case, IPv6 in brackets, or the socket's path;
    /// then `/N` for another database than 0.
    #[must_use]
    pub fn name(&self) -> String {
        let place = self.place();
        if self.db == 0 { place } else { format!("{place}/{}", self.db) }
    }

    /// `host:port/db`: what two replicas must write alike to mean the same node (protocol rule 23).
    #[must_use]
    pub fn fingerprint_source(&self) -> String {
        format!("{}/{}", self.place(), self.db)
    }

    /// Whether the URL itself holds a password, which must not come from argv.
    #[must_use]
    pub fn has_password(&self) -> bool {
        self.password.is_some()
    }

    /// Whether another database than 0 is meant, which takes a SELECT.
    pub(crate) fn has_database(&self) -> bool {
        self.db != 0
    }

    fn place(&self) -> String {
        match &self.endpoint {
            Endpoint::Tcp { host, port, .. } if host.parse::<Ipv6Addr>().is_ok() => format!("[{host}]:{port}"),
            Endpoint::Tcp { host, port, .. } => format!("{host}:{port}"),
            Endpoint::Unix(path) => Path::display(path).to_string(),
        }
    }
}

/// What a URL parser would accept or report as something else, although the writer meant a character of the password,
/// or an address without brackets.
fn check_raw(rest: &str) -> Result<(), NodeUrlError> {
    if rest.contains('#') {
        return Err(NodeUrlError::Raw('#'));
    }
    let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if tail.contains('@') {
        return Err(NodeUrlError::Raw(if tail.starts_with('?') { '?' } else { '/' }));
    }
    let (user, host) = authority.rsplit_once('@').map_or(("", authority), |(user, host)| (user, host));
    if user.contains('@') {
        return Err(NodeUrlError::Raw('@'));
    }
    if host.contains('%') {
        return Err(if host.starts_with('[') { NodeUrlError::Zone } else { NodeUrlError::Host });
    }
    if !is_percent_encoded(rest) {
        return Err(NodeUrlError::Raw('%'));
    }
    if !host.starts_with('[') && host.matches(':').count() > 1 {
        return Err(NodeUrlError::Ipv6);
    }
    Ok(())
}

/// Whether every `%` begins an escape.
fn is_percent_encoded(text: &str) -> bool {
    text.split('%').skip(1).all(|rest| {
        let mut bytes = rest.bytes();
        let mut is_hex = || bytes.next().is_some_and(|byte| byte.is_ascii_hexdigit());
        is_hex() && is_hex()
    })
}

fn is_host_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}

fn parse_db(number: &str) -> Result<u32, NodeUrlError> {
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse().ok().filter(|_| is_number).ok_or(NodeUrlError::Database)
}

fn decode(text: &str) -> Result<String, NodeUrlError> {
    percent_decode_str(text).decode_utf8().map(Into::into).map_err(|_| NodeUrlError::NotUtf8)
}

fn encoded(raw: char) -> String {
    format!("%{:02X}", u32::from(raw))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_stable() {
        for (text, name, fingerprint) in [
            ("redis://Redis-A", "redis-a:6379", "redis-a:6379/0"),
            ("redis://redis_a.ns.svc:7001/", "redis_a.ns.svc:7001", "redis_a.ns.svc:7001/0"),
            ("rediss://10.0.0.1:7001/3", "10.0.0.1:7001/3", "10.0.0.1:7001/3"),
            ("redis://[::1]:7001", "[::1]:7001", "[::1]:7001/0"),
            ("redis://[0:0:0:0:0:0:0:1]:7001", "[::1]:7001", "[::1]:7001/0"),
            ("rediss://u:p%23@[::1]:7001/0", "[::1]:7001", "[::1]:7001/0"),
            ("unix:///run/redis.sock", "/run/redis.sock", "/run/redis.sock/0"),
            ("redis+unix:///run/a%20b.sock?db=2", "/run/a b.sock/2", "/run/a b.sock/2"),
            ("unix:/run/redis.sock", "/run/redis.sock", "/run/redis.sock/0"),
        ] {
            let url = NodeUrl::parse(text).unwrap();
            assert_eq!((url.name().as_str(), url.fingerprint_source().as_str()), (name, fingerprint), "{text}");
        }
    }

    #[test]
    fn credentials_are_decoded_exactly_once() {
        for (text, username, password) in [
            ("redis://h", None, None),
            ("redis://:pw@h", None, Some("pw")),
            ("redis://u@h", Some("u"), None),
            ("redis://u:xxx%23@h", Some("u"), Some("xxx#")),
            ("redis://u:p%40ss%2Fw%3Ard@h", Some("u"), Some("p@ss/w:rd")),
            ("redis://u:abc%25de@h", Some("u"), Some("abc%de")),
            ("redis://u:%252F@h", Some("u"), Some("%2F")),
            ("redis://u:RanDoMStRIng=@h", Some("u"), Some("RanDoMStRIng=")),
            ("redis://u:a+b%20c@h", Some("u"), Some("a+b c")),
            ("redis://u:p\u{e4}$$@h", Some("u"), Some("p\u{e4}$$")),
            ("redis://u:p%C3%A4$$@h", Some("u"), Some("p\u{e4}$$")),
            ("redis://a%3Ab:p@h", Some("a:b"), Some("p")),
        ] {
            let url = NodeUrl::parse(text).unwrap();
            assert_eq!(url.username.as_deref(), username, "{text}");
            assert_eq!(url.password.as_ref().map(Secret::expose), password, "{text}");
            assert_eq!(url.has_password(), password.is_some());
        }
        let long = "x".repeat(200);
        assert_eq!(NodeUrl::parse(&format!("redis://u:{long}@h")).unwrap().password, Some(Secret(long)));
    }

    #[test]
    fn what_is_wrong_is_said_with_what_to_write() {
        for (text, error) in [
            ("", NodeUrlError::Scheme),
            ("h:6379", NodeUrlError::Scheme),
            ("http://h", NodeUrlError::Scheme),
            ("redis:h", NodeUrlError::Scheme),
            ("redis://", NodeUrlError::Host),
            ("redis://:6379", NodeUrlError::Host),
            ("redis://h%41:1", NodeUrlError::Host),
            ("redis://h h", NodeUrlError::Host),
            ("redis://u:xxx#@h", NodeUrlError::Raw('#')),
            // An escape like any other; what it stands for is no text.
            ("redis://u:abc%de@h", NodeUrlError::NotUtf8),
            ("redis://u:abcde%@h", NodeUrlError::Raw('%')),
            ("redis://u:abc%zz@h", NodeUrlError::Raw('%')),
            ("redis://u:p@ss@h", NodeUrlError::Raw('@')),
            ("redis://u:p/ss@h", NodeUrlError::Raw('/')),
            ("redis://u:p?ss@h", NodeUrlError::Raw('?')),
            ("redis://::1:7001", NodeUrlError::Ipv6),
            ("redis://u:p@::1", NodeUrlError::Ipv6),
            ("redis://[fe80::1%25eth0]:7001", NodeUrlError::Zone),
            ("redis://[fe80::1%eth0]:7001", NodeUrlError::Zone),
            ("redis://[::g]:7001", NodeUrlError::Host),
            ("redis://h:0", NodeUrlError::Port),
            ("redis://h:65536", NodeUrlError::Port),
            ("redis://h:port", NodeUrlError::Port),
            ("redis://h/zero", NodeUrlError::Database),
            ("redis://h/+1", NodeUrlError::Database),
            ("redis://h/1/2", NodeUrlError::Database),
            ("redis://h?protocol=3", NodeUrlError::Parameters),
            ("unix://run/redis.sock", NodeUrlError::Socket),
            ("unix:/%127.0.0.1", NodeUrlError::Socket),
            ("unix:///run/redis.sock?user=u", NodeUrlError::Parameters),
            ("unix:///run/redis.sock?db=x", NodeUrlError::Database),
        ] {
            assert_eq!(NodeUrl::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn errors_and_debug_output_hold_no_secret() {
        for text in [
            "redis://u:S3cr3t#@h",
            "redis://u:S3cr3t%@h",
            "redis://u:S3cr3t@x@h",
            "redis://u:S3cr3t/x@h",
            "redis://u:S3cr3t@h:port",
            "redis://u:S3cr3t%DE@h",
            "S3cr3t",
        ] {
            let error = NodeUrl::parse(text).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("S3cr3t"), "{error}");
        }
        let url = NodeUrl::parse("redis://u:S3cr3t@h").unwrap();
        assert!(!format!("{url:?} {}", url.name()).contains("S3cr3t"));
        let advice = NodeUrl::parse("redis://u:a#b@h").unwrap_err().to_string();
        assert!(advice.contains("%23") && advice.contains("--redis-password-file"), "{advice}");
    }
}
