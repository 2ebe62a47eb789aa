//! The first words on a connection: who we are, and what the server is (docs/servers.md).
//!
//! AUTH, SELECT, INFO twice and one probing EVAL go out in one write and cost one round trip. They are written and read
//! here and not by the client library, whose own set-up calls every error a wrong password, and which drops what a
//! server says before it is asked ("max number of clients reached").

use redis::{Cmd, Value};
use tokio::io::AsyncWriteExt;

use crate::redsync::error::{self, Failure};
use crate::redsync::node::NodeSettings;
use crate::redsync::node::credentials::Credentials;
use crate::redsync::node::wire::Wire;
use crate::redsync::reply::{Kind, RunId};
use crate::redsync::script::Scripts;

/// What a server said of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// Which run of it this is.
    pub(super) run: RunId,
    /// What scripts are told: the run_id, or nothing where they may ask INFO themselves.
    pub(super) told_run: String,
    /// 16 hex digits of `master_replid`.
    pub(super) replid: u64,
    /// It has a memory limit and a policy that may evict the lock's keys.
    pub(super) evicts: bool,
}

/// Credentials alone, for a connection that only listens.
pub(super) async fn log_in(wire: &mut Wire, settings: &NodeSettings) -> Result<(), Failure> {
    let credentials = Credentials::read(settings).await?;
    let mut talk = Talk::default();
    talk.log_in(&credentials);
    let replies = talk.exchange(wire).await.map_err(|failure| credentials.hide(failure))?;
    replies.iter().try_for_each(|reply| accept("AUTH", reply)).map_err(|failure| credentials.hide(failure))
}

/// Logs in and deletes keys.
pub(super) async fn delete(wire: &mut Wire, settings: &NodeSettings, keys: [&str; 2]) -> Result<(), Failure> {
    let credentials = Credentials::read(settings).await?;
    let mut talk = Talk::default();
    talk.log_in(&credentials);
    if settings.url.db != 0 {
        talk.say("SELECT", command("SELECT", &[&settings.url.db.to_string()]));
    }
    talk.say("DEL", command("DEL", &keys));
    let replies = talk.exchange(wire).await.map_err(|failure| credentials.hide(failure))?;
    let refused = replies.iter().find_map(|reply| {
        let Value::ServerError(error) = reply else { return None };
        Some(credentials.hide(Failure::from_server(error)))
    });
    refused.map_or(Ok(()), Err)
}

/// Says who we are and asks what the server is. What cannot be a vote as it is comes back as a failure.
pub(super) async fn greet(wire: &mut Wire, settings: &NodeSettings, scripts: &Scripts) -> Result<Server, Failure> {
    let credentials = Credentials::read(settings).await?;
    let introduction = introduce(wire, settings, scripts, &credentials);
    introduction.await.map_err(|failure| credentials.hide(failure))
}

async fn introduce(
    wire: &mut Wire,
    settings: &NodeSettings,
    scripts: &Scripts,
    credentials: &Credentials,
) -> Result<Server, Failure> {
    let mut talk = Talk::default();
    talk.log_in(credentials);
    if settings.url.db != 0 {
        talk.say("SELECT", command("SELECT", &[&settings.url.db.to_string()]));
    }
    let settled = talk.names.len();
    talk.say("INFO", command("INFO", &[]));
    talk.say("INFO", command("INFO", &["server"]));
    talk.say("EVAL", scripts.probe());
    let names = talk.names.clone();
    let replies = talk.exchange(wire).await?;
    for (name, reply) in names.iter().zip(&replies).take(settled) {
        accept(name, reply)?;
    }
    let [info, again, probe] = &replies[settled..] else {
        return Err(Failure::new(Kind::Protocol, "the server left commands unanswered"));
    };
    let info = Info(info_text(info)?);
    let again = Info(info_text(again)?);
    check_server(wire, &info).await?;
    let run_id = run_id_of(&info, &again)?;
    let told_run = match text("EVAL", probe)? {
        "" => run_id.to_owned(),
        same if same == run_id => String::new(),
        _ => return Err(spread()),
    };
    let run = leading_hex(run_id, 12).ok_or_else(|| Failure::new(Kind::NoRunId, "INFO gives a run_id that is none"))?;
    Ok(Server {
        run: RunId(run),
        told_run,
        replid: info.get("master_replid").and_then(|id| leading_hex(id, 16)).unwrap_or(0),
        evicts: info.get("maxmemory").is_some_and(|limit| limit != "0")
            && info.get("maxmemory_policy").is_some_and(|policy| policy != "noeviction"),
    })
}

/// Refuses what is no independent primary that runs our scripts.
async fn check_server(wire: &mut Wire, info: &Info<'_>) -> Result<(), Failure> {
    if let Some(role) = info.get("role").filter(|role| *role != "master") {
        return Err(Failure::new(Kind::Readonly, format!("its role is {role}")));
    }
    if let Some(version) = info.get("redis_version")
        && version.split('.').next().and_then(|major| major.parse().ok()).is_some_and(|major: u32| major < 5)
    {
        return Err(Failure::new(Kind::Unsupported, format!("its version is {version}")));
    }
    if info.get("cluster_enabled") == Some("1") {
        let mut talk = Talk::default();
        talk.say("CLUSTER INFO", command("CLUSTER", &["INFO"]));
        let replies = talk.exchange(wire).await?;
        let cluster = Info(info_text(&replies[0])?);
        // One shard that serves every slot is as good as a server without a cluster.
        if let Some(size) = cluster.get("cluster_size").filter(|size| !matches!(*size, "0" | "1")) {
            return Err(Failure::new(Kind::Moved, format!("it is one of {size} shards of a cluster")));
        }
    }
    Ok(())
}

/// Two answers with different run_ids come from a proxy that spreads commands over servers.
fn run_id_of<'a>(info: &Info<'a>, again: &Info<'_>) -> Result<&'a str, Failure> {
    let run_id = info.get("run_id").filter(|id| !id.is_empty());
    let run_id = run_id.ok_or_else(|| Failure::new(Kind::NoRunId, "INFO gives no run_id"))?;
    if again.get("run_id") == Some(run_id) { Ok(run_id) } else { Err(spread()) }
}

fn spread() -> Failure {
    Failure::new(Kind::NoRunId, "INFO gives different run_ids on one connection: a proxy spreads commands")
}

/// `key:value` lines.
pub(super) struct Info<'a>(pub(super) &'a str);

impl<'a> Info<'a> {
    pub(super) fn get(&self, key: &str) -> Option<&'a str> {
        self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim_end)
    }
}

pub(super) fn info_text(reply: &Value) -> Result<&str, Failure> {
    text("INFO", reply).map_err(|failure| {
        // Renamed away: there is no run_id to be had.
        let kind = if failure.kind == Kind::Unsupported { Kind::NoRunId } else { failure.kind };
        Failure::new(kind, failure.text)
    })
}

pub(super) fn text<'a>(name: &str, reply: &'a Value) -> Result<&'a str, Failure> {
    let no_text = || Failure::new(Kind::Protocol, format!("{name} is not answered with a text"));
    if let Value::ServerError(error) = reply {
        return Err(Failure::from_server(error));
    }
    let Value::BulkString(bytes) = reply else { return Err(no_text()) };
    std::str::from_utf8(bytes).map_err(|_| no_text())
}

pub(super) fn leading_hex(text: &str, digits: usize) -> Option<u64> {
    let head = text.get(..digits)?;
    let is_hex = head.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(head, 16).ok().filter(|_| is_hex)
}

pub(super) fn accept(name: &str, reply: &Value) -> Result<(), Failure> {
    if let Value::ServerError(error) = reply {
        return Err(Failure::from_server(error));
    }
    let is_ok = *reply == Value::Okay;
    is_ok.then_some(()).ok_or_else(|| Failure::new(Kind::Protocol, format!("{name} is not answered with OK")))
}

pub(super) fn command(name: &str, args: &[&str]) -> Cmd {
    let mut cmd = redis::cmd(name);
    for arg in args {
        cmd.arg(arg);
    }
    cmd
}

/// Commands that go out together.
#[derive(Default)]
pub(super) struct Talk {
    pub(super) names: Vec<&'static str>,
    bytes: Vec<u8>,
}

impl Talk {
    pub(super) fn log_in(&mut self, credentials: &Credentials) {
        if let Some(args) = credentials.auth() {
            self.say("AUTH", command("AUTH", &args));
        }
    }

    pub(super) fn say(&mut self, name: &'static str, cmd: Cmd) {
        self.names.push(name);
        self.bytes.extend(cmd.get_packed_command());
    }

    /// One reply for each command. A write that fails is no matter if the server has said why it hangs up.
    pub(super) async fn exchange(self, wire: &mut Wire) -> Result<Vec<Value>, Failure> {
        let written = wire.write_all(&self.bytes).await.and(wire.flush().await);
        let allowance = wire.allowance();
        let mut decoder = Default::default();
        let mut replies = Vec::with_capacity(self.names.len());
        for at in 0..self.names.len() {
            let read = redis::parse_redis_value_async(&mut decoder, wire).await;
            allowance.renew();
            match read {
                Ok(reply) => replies.push(reply),
                Err(error) => {
                    // What the server said first is the reason: a full server answers once and hangs up.
                    if let Some(Value::ServerError(error)) = replies.first() {
                        return Err(Failure::from_server(error));
                    }
                    if wire.wants_tls() {
                        return Err(Failure::new(Kind::Tls, "the server wants TLS: use rediss://"));
                    }
                    let said = written.err().map_or_else(|| error.to_string(), |error| error.to_string());
                    let kind = error::classify_client(&error);
                    // Who speaks TLS already, and is told that a certificate is missing, needs no such hint.
                    let is_silent = replies.is_empty() && kind != Kind::Tls;
                    let hint = if is_silent { " (if the server speaks TLS, use rediss://)" } else { "" };
                    // All that was left unanswered: a proxy that hangs up on one of them does not say on which.
                    let mut after: Vec<&str> = self.names[at..].to_vec();
                    after.dedup();
                    return Err(Failure::new(kind, format!("after {}: {said}{hint}", after.join(", "))));
                }
            }
        }
        Ok(replies)
    }
}
