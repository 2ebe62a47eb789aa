//! The list of nodes and what their connections need, out of flags and files.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use crate::cli::RedisArgs;
use crate::config::value::Why;
use crate::config::{Faults, given};
use crate::election::timing::Timing;
use crate::redsync::node::{NodeSettings, Password, TlsFiles};
use crate::redsync::reply::quorum;
use crate::redsync::url::{NodeUrl, Secret};

const FLAG: &str = "--redis";
const FILE_FLAG: &str = "--redis-file";
/// Every node is asked in every round, and a quorum of more than this is no safer in practice.
const NODES_MOST: usize = 15;
/// Room for some hundred URLs; what is larger is not such a file.
const LIST_BYTES_MOST: u64 = 64 * 1024;

/// The nodes as configured, before their timeouts are known.
pub(super) struct NodeList {
    urls: Vec<NodeUrl>,
    username: Option<String>,
    password: Password,
    tls: TlsFiles,
}

impl NodeList {
    /// Reads flags and files. What is faulty is noted in `faults` and left out.
    pub(super) fn read(args: &RedisArgs, is_required: bool, faults: &mut Faults) -> Self {
        let mut urls = urls_of_flag(args, faults);
        urls.extend(urls_of_file(args, faults));
        check_list(FLAG, &urls, faults);
        if urls.is_empty() && is_required && faults.is_silent_about(&[FLAG, FILE_FLAG]) {
            faults.note(FLAG, Why::Required { variable: "REDLEADER_REDIS" });
        }
        let username = given("--redis-username", args.redis_username.as_deref(), faults).map(str::to_owned);
        Self { urls, username, password: password(args, faults), tls: tls_files(args, faults) }
    }

    /// What a person should know about the list.
    pub(super) fn warnings(&self) -> Vec<String> {
        let nodes = self.urls.len();
        if nodes == 0 || nodes >= 3 && nodes % 2 == 1 {
            return Vec::new();
        }
        let tolerated = |nodes: usize| nodes - quorum(nodes);
        let (odd, failures) = (nodes | 1, tolerated(nodes));
        let better = if odd == nodes { odd + 2 } else { odd };
        vec![format!(
            "--redis names {nodes} node{}: a quorum is {}, so {failures} failure{} tolerated; {better} nodes would \
             tolerate {}",
            if nodes == 1 { "" } else { "s" },
            quorum(nodes),
            if failures == 1 { " is" } else { "s are" },
            tolerated(better),
        )]
    }

    /// The settings of every node.
    pub(super) fn into_settings(self, timing: &Timing) -> Vec<NodeSettings> {
        let Self { urls, username, password, tls } = self;
        urls.into_iter()
            .map(|url| NodeSettings {
                url,
                username: username.clone(),
                password: password.clone(),
                tls: tls.clone(),
                node_timeout: timing.node_timeout(),
                connect_timeout: timing.connect_timeout(),
                // Protocol rule 16: a connection that is down is dialled again at the latest this long after.
                redial: timing.renew(),
            })
            .collect()
    }
}

/// The planned list of nodes; `None` if none is given.
pub(super) fn next(values: &[String], faults: &mut Faults) -> Option<Vec<NodeUrl>> {
    const FLAG: &str = "--next";
    if values.is_empty() {
        return None;
    }
    let mut urls = Vec::new();
    for (text, position) in values.iter().flat_map(|value| value.split(',')).zip(1..) {
        let Some(url) = parse_url(FLAG, "URL", position, text, faults) else { continue };
        if url.has_password() {
            faults.note(FLAG, Why::PasswordOnArgv { position });
        }
        urls.push(url);
    }
    check_list(FLAG, &urls, faults);
    Some(urls)
}

fn urls_of_flag(args: &RedisArgs, faults: &mut Faults) -> Vec<NodeUrl> {
    let mut urls = Vec::new();
    let items = args.redis.iter().flat_map(|value| value.split(','));
    for (text, position) in items.zip(1..) {
        let Some(url) = parse_url(FLAG, "URL", position, text, faults) else { continue };
        if args.redis_is_on_argv && url.has_password() {
            faults.note(FLAG, Why::PasswordOnArgv { position });
        }
        urls.push(url);
    }
    urls
}

fn urls_of_file(args: &RedisArgs, faults: &mut Faults) -> Vec<NodeUrl> {
    let Some(path) = given(FILE_FLAG, args.redis_file.as_deref(), faults) else { return Vec::new() };
    let list = match read_list(Path::new(path)) {
        Ok(list) => list,
        Err(why) => {
            faults.note(FILE_FLAG, why);
            return Vec::new();
        }
    };
    let lines = list.lines().map(str::trim).zip(1..);
    lines
        .filter(|(line, _)| !line.is_empty() && !line.starts_with('#'))
        .filter_map(|(line, position)| parse_url(FILE_FLAG, "line", position, line, faults))
        .collect()
}

fn read_list(path: &Path) -> Result<String, Why> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(Why::File)?;
    file.take(LIST_BYTES_MOST + 1).read_to_end(&mut bytes).map_err(Why::File)?;
    if bytes.len() as u64 > LIST_BYTES_MOST {
        return Err(Why::LargeFile { limit: LIST_BYTES_MOST });
    }
    String::from_utf8(bytes).map_err(|_| Why::NotText)
}

fn parse_url(
    flag: &'static str,
    place: &'static str,
    position: usize,
    text: &str,
    faults: &mut Faults,
) -> Option<NodeUrl> {
    let text = text.trim();
    if text.is_empty() {
        faults.note(flag, Why::EmptyUrl { place, position });
        return None;
    }
    NodeUrl::parse(text).map_err(|why| faults.note(flag, Why::Url { place, position, why })).ok()
}

fn check_list(flag: &'static str, urls: &[NodeUrl], faults: &mut Faults) {
    let mut servers = BTreeSet::new();
    for url in urls {
        let node = server(url);
        if !servers.insert(node.clone()) {
            faults.note(flag, Why::SameNode { node });
        }
    }
    if urls.len() > NODES_MOST {
        faults.note(flag, Why::TooManyNodes { count: urls.len(), most: NODES_MOST });
    }
}

/// A node's name without its database: two databases of one server are lost together.
fn server(url: &NodeUrl) -> String {
    let source = url.fingerprint_source();
    source.rsplit_once('/').map_or(source.as_str(), |(server, _)| server).to_owned()
}

fn password(args: &RedisArgs, faults: &mut Faults) -> Password {
    const FLAG: &str = "--redis-password-file";
    const VARIABLE: &str = "REDLEADER_REDIS_PASSWORD";
    let file = readable(FLAG, args.redis_password_file.as_deref(), faults);
    let Some(value) = &args.password else { return file.map_or(Password::None, Password::File) };
    match value.to_str() {
        None => faults.note(VARIABLE, Why::NotText),
        Some("") => faults.note(VARIABLE, Why::Empty),
        Some(_) if args.redis_password_file.is_some() => faults.note(VARIABLE, Why::Together(FLAG)),
        Some(value) => return Password::Value(Secret::new(value)),
    }
    Password::None
}

fn tls_files(args: &RedisArgs, faults: &mut Faults) -> TlsFiles {
    const CERT: &str = "--redis-cert-file";
    const KEY: &str = "--redis-key-file";
    match (&args.redis_cert_file, &args.redis_key_file) {
        (Some(_), None) => faults.note(CERT, Why::Needs(KEY)),
        (None, Some(_)) => faults.note(KEY, Why::Needs(CERT)),
        (Some(_), Some(_)) | (None, None) => {}
    }
    TlsFiles {
        ca: readable("--redis-ca-file", args.redis_ca_file.as_deref(), faults),
        cert: readable(CERT, args.redis_cert_file.as_deref(), faults),
        key: readable(KEY, args.redis_key_file.as_deref(), faults),
    }
}

/// A file that is read later, at each connect, and must be there from the start.
fn readable(flag: &'static str, path: Option<&str>, faults: &mut Faults) -> Option<PathBuf> {
    let path = PathBuf::from(given(flag, path, faults)?);
    let checked = rustix::fs::access(&path, Access::READ_OK).map_err(std::io::Error::from);
    let checked = checked.and_then(|()| match path.is_dir() {
        true => Err(std::io::ErrorKind::IsADirectory.into()),
        false => Ok(()),
    });
    checked.map_err(|error| faults.note(flag, Why::File(error))).ok()?;
    Some(path)
}
