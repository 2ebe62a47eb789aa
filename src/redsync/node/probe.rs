//! All that a person wants to know of one node, over one connection and without writing anything.
//!
//! Where a candidate's connection ends at the first fault, a probe goes on: a person mends all of them in one go.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use redis::Value;

use crate::clock::{self, Moment};
use crate::redsync::error::{self, Failure};
use crate::redsync::node::NodeSettings;
use crate::redsync::node::credentials::Credentials;
use crate::redsync::node::dial::{self, Budget, Reached};
use crate::redsync::node::greet::{Info, Talk, accept, command, info_text, text};
use crate::redsync::node::resolver::Resolver;
use crate::redsync::node::wire::Wire;
use crate::redsync::reply::{Answer, Kind, Outcome, What};
use crate::redsync::script::{self, Scripts};

/// What a node said when it was asked everything.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The address that was reached; `None` for a unix socket.
    pub address: Option<IpAddr>,
    /// Who we are to the server.
    pub user: String,
    /// What INFO says, or why it says nothing.
    pub info: Result<Properties, Failure>,
    /// Two INFOs on this connection came from different servers.
    pub is_spread: bool,
    /// Whether scripts run, and if so, whether they may ask INFO.
    pub scripts: Result<bool, Failure>,
    /// What the lock is, as an observation: nothing was written.
    pub seen: Result<Answer, Failure>,
    /// The fields of the lock's state, or why they cannot be read.
    pub state: Result<Properties, Failure>,
    /// The types of the lock's key and of its state's, where they may be asked for: `none`, `string`, `hash`…
    pub types: [Option<String>; 2],
    /// EVALSHA is there and allowed; else every script is sent whole.
    pub may_name_scripts: bool,
    /// Commands and subscriptions that the user may not use.
    pub denied: Vec<String>,
    /// What else keeps the scripts from writing: memory, replicas, a disk.
    pub refusals: Vec<Failure>,
    /// Whether releases can be told on the lock's channel, as far as the server lets us know.
    pub may_publish: bool,
    /// What CLUSTER INFO says, on a server with a cluster.
    pub cluster: Option<Properties>,
}

/// Names with their values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties(BTreeMap<String, String>);

impl Properties {
    fn of_info(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        Self(lines.map(|(name, value)| (name.to_owned(), value.trim_end().to_owned())).collect())
    }

    /// The value; empty where there is none.
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// The value as a whole number; 0 where there is none.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }
}

/// One reading of a node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Before the question was written.
    pub sent: Moment,
    /// After the answer was read.
    pub received: Moment,
    /// The node's TIME, in microseconds.
    pub time_us: u64,
}

/// The connection of a probe, for what is asked over some time, and at last.
pub struct ClockLine {
    wire: Wire,
    patience: Duration,
    channel: String,
}

/// The fields of a state, in the order in which they are asked for.
const STATE: [&str; 10] = ["run", "born", "token", "owner", "ttl", "until", "over", "n", "list", "v"];

/// Dials a node and asks it everything. `quarantine`: the one in use, for the observation.
///
/// # Errors
/// When it cannot be reached, or does not let us in.
pub async fn probe(
    settings: &NodeSettings,
    scripts: &Scripts,
    quarantine: Duration,
) -> Result<(Facts, ClockLine), Failure> {
    let budget = Budget::new(settings.connect_timeout);
    let (mut wire, reached) = dial::dial(&settings.url, &settings.tls, &mut Resolver::default(), budget).await?;
    let credentials = Credentials::read(settings).await?;
    let asked = budget.wait(Kind::Timeout, "the server's first answer", log_in(&mut wire, settings, &credentials));
    asked.await.map_err(|failure| credentials.hide(failure))?;
    // Some fifteen questions in two round trips, on a node that may be far away or busy.
    let budget = Budget::new(settings.connect_timeout);
    let asked = ask_all(&mut wire, settings, scripts, quarantine);
    let asked = budget.wait(Kind::Timeout, "the answer to all questions", asked).await;
    let mut facts = asked.map_err(|failure| credentials.hide(failure))?;
    facts.address = match reached {
        Reached::Tcp(address) => Some(address.ip()),
        Reached::Unix => None,
    };
    let line = ClockLine { wire, patience: settings.node_timeout, channel: scripts.channel() };
    Ok((facts, line))
}

impl ClockLine {
    /// Reads the node's clock.
    ///
    /// # Errors
    /// When no TIME comes within the node timeout; the connection is of no use then.
    pub async fn read(&mut self) -> Result<Reading, Failure> {
        let budget = Budget::new(self.patience);
        let sent = clock::now();
        let mut talk = Talk::default();
        talk.say("TIME", command("TIME", &[]));
        let replies = budget.wait(Kind::Timeout, "TIME", talk.exchange(&mut self.wire)).await?;
        let received = clock::now();
        let no_time = || Failure::new(Kind::Protocol, "TIME is answered with no time");
        if let Some(Value::ServerError(error)) = replies.first() {
            return Err(Failure::from_server(error));
        }
        let Some(Value::Array(parts)) = replies.first() else { return Err(no_time()) };
        let [seconds, micros] = parts.as_slice() else { return Err(no_time()) };
        let (seconds, micros) = number(seconds).zip(number(micros)).ok_or_else(no_time)?;
        let time_us = seconds.checked_mul(1_000_000).and_then(|seconds| seconds.checked_add(micros));
        Ok(Reading { sent, received, time_us: time_us.ok_or_else(no_time)? })
    }
}

impl ClockLine {
    /// Whether releases can be heard on the lock's channel. A connection that listens is of no other use.
    ///
    /// # Errors
    /// When no answer comes within the node timeout.
    pub async fn may_subscribe(mut self) -> Result<bool, Failure> {
        let mut talk = Talk::default();
        talk.say("SUBSCRIBE", command("SUBSCRIBE", &[&self.channel]));
        let budget = Budget::new(self.patience);
        let replies = budget.wait(Kind::Timeout, "SUBSCRIBE", talk.exchange(&mut self.wire)).await?;
        Ok(!replies.first().is_some_and(is_not_to_be_had))
    }
}

async fn log_in(wire: &mut Wire, settings: &NodeSettings, credentials: &Credentials) -> Result<(), Failure> {
    let mut talk = Talk::default();
    talk.log_in(credentials);
    if settings.url.db != 0 {
        talk.say("SELECT", command("SELECT", &[&settings.url.db.to_string()]));
    }
    let names = talk.names.clone();
    let replies = talk.exchange(wire).await?;
    names.iter().zip(&replies).try_for_each(|(name, reply)| accept(name, reply))
}

async fn ask_all(
    wire: &mut Wire,
    settings: &NodeSettings,
    scripts: &Scripts,
    quarantine: Duration,
) -> Result<Facts, Failure> {
    let mut talk = Talk::default();
    talk.say("INFO", command("INFO", &[]));
    talk.say("INFO", command("INFO", &["server"]));
    talk.say("EVAL", scripts.probe());
    talk.say("ACL", command("ACL", &["WHOAMI"]));
    let replies = talk.exchange(wire).await?;
    let [info, again, eval, whoami] = replies.as_slice() else { return Err(unanswered()) };
    // A server without a password, or without users, lets nobody in who is told from others.
    if let Value::ServerError(error) = info {
        let failure = Failure::from_server(error);
        if matches!(failure.kind, Kind::Auth | Kind::Maxclients) {
            return Err(failure);
        }
    }
    let info = info_text(info).map(Properties::of_info);
    let run_id = info.as_ref().map(|info| info.text("run_id").to_owned()).unwrap_or_default();
    let again = info_text(again).ok().and_then(|text| Info(text).get("run_id")).unwrap_or_default();
    let inside = text("EVAL", eval).map(str::to_owned);
    let is_spread = !run_id.is_empty()
        && (again != run_id || inside.as_ref().is_ok_and(|inside| !inside.is_empty() && *inside != run_id));
    let named = settings.url.username.clone().or_else(|| settings.username.clone());
    let user = text("ACL", whoami).map(str::to_owned).ok().or(named).unwrap_or_else(|| "default".to_owned());
    let told_run = if inside.as_ref().is_ok_and(String::is_empty) { run_id.as_str() } else { "" };
    let has_cluster = info.as_ref().is_ok_and(|info| info.text("cluster_enabled") == "1");
    let second = Second { scripts, quarantine, told_run, user: &user, has_cluster };
    let mut facts = second.ask(wire).await?;
    facts.info = info;
    facts.is_spread = is_spread;
    facts.scripts = inside.map(|inside| !inside.is_empty());
    facts.user = user;
    Ok(facts)
}

/// The second round of questions, which follows from the answers to the first.
struct Second<'a> {
    scripts: &'a Scripts,
    quarantine: Duration,
    told_run: &'a str,
    user: &'a str,
    has_cluster: bool,
}

impl Second<'_> {
    async fn ask(&self, wire: &mut Wire) -> Result<Facts, Failure> {
        let [lock, state] = self.scripts.keys() else { return Err(unanswered()) };
        let channel = self.scripts.channel();
        let what = What::Observe { quarantine: self.quarantine };
        let call = self.scripts.call(&what, self.told_run).expect("an observation is a script");
        let mut talk = Talk::default();
        talk.say("EVAL", call.whole());
        talk.say("EVAL", self.scripts.rights());
        // No script has this hash: NOSCRIPT says that the command may be used.
        talk.say("EVALSHA", command("EVALSHA", &["0000000000000000000000000000000000000000", "0"]));
        let mut fields = command("HMGET", &[state]);
        fields.arg(&STATE);
        talk.say("HMGET", fields);
        talk.say("TYPE", command("TYPE", &[lock]));
        talk.say("TYPE", command("TYPE", &[state]));
        // What cannot be tried without doing it; only who may administer the server is told.
        talk.say("ACL", command("ACL", &["DRYRUN", self.user, "DEL", lock]));
        talk.say("ACL", command("ACL", &["DRYRUN", self.user, "PUBLISH", &channel, "0"]));
        if self.has_cluster {
            talk.say("CLUSTER", command("CLUSTER", &["INFO"]));
        }
        let replies = talk.exchange(wire).await?;
        let [seen, rights, by_sha, fields, lock_type, state_type, may_delete, may_publish, rest @ ..] =
            replies.as_slice()
        else {
            return Err(unanswered());
        };
        let (mut denied, refusals) = read_rights(rights);
        denied.extend(is_denied(fields).then(|| "hmget".to_owned()));
        denied.extend(is_dry_run_denied(may_delete).then(|| "del".to_owned()));
        denied.sort_unstable();
        denied.dedup();
        Ok(Facts {
            address: None,
            user: String::new(),
            info: Err(unanswered()),
            is_spread: false,
            scripts: Err(unanswered()),
            seen: read_seen(&what, seen),
            state: read_state(fields),
            types: [lock_type, state_type].map(read_type),
            may_name_scripts: !error::is_evalsha_refused(by_sha),
            denied,
            refusals,
            may_publish: !is_dry_run_denied(may_publish),
            cluster: rest.first().and_then(|cluster| text("CLUSTER INFO", cluster).ok()).map(Properties::of_info),
        })
    }
}

fn unanswered() -> Failure {
    Failure::new(Kind::Protocol, "the server left commands unanswered")
}

fn read_seen(what: &What, reply: &Value) -> Result<Answer, Failure> {
    if let Value::ServerError(error) = reply {
        return Err(Failure::from_server(error));
    }
    match script::outcome(what, reply) {
        Outcome::Answer(answer) => Ok(answer),
        Outcome::Failed(kind) => Err(Failure::new(kind, kind.advice())),
        Outcome::Released { .. } | Outcome::Survey { .. } | Outcome::Plain { .. } | Outcome::Unsent => {
            Err(unanswered())
        }
    }
}

/// Commands that are denied, and what else keeps scripts from writing.
fn read_rights(reply: &Value) -> (Vec<String>, Vec<Failure>) {
    let (mut denied, mut refusals) = (Vec::new(), Vec::new());
    // A server that refuses the script as a whole says the same of the observation.
    let Value::Array(said) = reply else { return (denied, refusals) };
    for line in said {
        let Value::BulkString(line) = line else { continue };
        let line = String::from_utf8_lossy(line);
        let Some((name, text)) = line.split_once(' ') else { continue };
        // Inside a script, errors look as they do in a script's error before 7.0.
        let kind = error::classify(&format!("ERR Error running script: {text}"));
        // Arguments that are refused are what the question is made of, and what a key holds is told elsewhere.
        let keeps_from_writing =
            matches!(kind, Kind::Readonly | Kind::Misconf | Kind::Oom | Kind::Noreplicas | Kind::Unsupported);
        if kind == Kind::Noperm {
            denied.push(name.to_owned());
        } else if keeps_from_writing && refusals.iter().all(|known: &Failure| known.kind != kind) {
            refusals.push(Failure::new(kind, format!("{name}: {}", text.trim_start_matches('-'))));
        }
    }
    (denied, refusals)
}

fn read_state(reply: &Value) -> Result<Properties, Failure> {
    if let Value::ServerError(error) = reply {
        return Err(Failure::from_server(error));
    }
    let Value::Array(values) = reply else {
        return Err(Failure::new(Kind::Protocol, "HMGET is answered with no fields"));
    };
    let text = |value: &Value| {
        let Value::BulkString(bytes) = value else { return None };
        Some(String::from_utf8_lossy(bytes).into_owned())
    };
    let fields = STATE.iter().zip(values).filter_map(|(name, value)| Some(((*name).to_owned(), text(value)?)));
    Ok(Properties(fields.collect()))
}

fn read_type(reply: &Value) -> Option<String> {
    if let Value::SimpleString(name) = reply { Some(name.clone()) } else { None }
}

fn number(value: &Value) -> Option<u64> {
    let Value::BulkString(digits) = value else { return None };
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn is_denied(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error::classify(&error::text(error)) == Kind::Noperm)
}

fn is_not_to_be_had(reply: &Value) -> bool {
    let kind = |error| error::classify(&error::text(error));
    matches!(reply, Value::ServerError(error) if matches!(kind(error), Kind::Noperm | Kind::Unsupported))
}

/// DRYRUN says OK, or what is missing; an error where it may not be asked.
fn is_dry_run_denied(reply: &Value) -> bool {
    matches!(reply, Value::BulkString(text) if text.windows(14).any(|part| part == b"no permissions"))
}
