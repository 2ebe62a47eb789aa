//! The five scripts: what is sent for an ask, and what is read out of a reply (protocol rules 1 to 7).
//!
//! A script is one atomic step on one node. What a reply means for a leadership is no business of this file: it only
//! refuses every shape that a script of ours cannot have answered.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, Value};

use crate::redsync::error;
use crate::redsync::name::{LockName, Owner};
use crate::redsync::reply::{Answer, Claim, Ended, Kind, Outcome, RunId, Token, Verdict, What};
use crate::redsync::url::NodeUrl;

/// A script's text and its SHA-1.
#[derive(Debug)]
struct Script {
    text: &'static str,
    sha: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, sha: redis::Script::new(text).get_hash().to_owned() }
    }
}

macro_rules! script {
    ($($part:expr),+) => {
        LazyLock::new(|| Script::new(concat!($($part),+)))
    };
}

static ACQUIRE: LazyLock<Script> = script!(include_str!("prelude.lua"), include_str!("acquire.lua"));
static EXTEND: LazyLock<Script> = script!(include_str!("prelude.lua"), include_str!("extend.lua"));
static RELEASE: LazyLock<Script> = script!(include_str!("prelude.lua"), include_str!("release.lua"));
static LOOK: LazyLock<Script> = script!("local WRITES = true\n", include_str!("prelude.lua"), include_str!("look.lua"));
static OBSERVE: LazyLock<Script> =
    script!("local WRITES = false\n", include_str!("prelude.lua"), include_str!("look.lua"));

/// Asked once per connection: whether scripts are to be had, and whether one may call INFO. It names the lock's keys,
/// so that a missing right to them, or a cluster's redirection, shows at once.
const PROBE: &str = "local info = redis.pcall('INFO', 'server')\n\
                     return type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''";

/// Asked by `doctor`: which commands of the scripts the user may not run here. Each is tried in a form that changes
/// nothing: with arguments that are refused, and a DEL only where there is nothing to delete.
const RIGHTS: &str = "\
local lock, state, said = KEYS[1], KEYS[2], {}
local function try(name, ...)
  local reply = redis.pcall(name, ...)
  if type(reply) == 'table' and reply.err then said[#said + 1] = string.lower(name) .. ' ' .. reply.err end
  return reply
end
local held = try('GET', lock)
try('TIME')
try('PTTL', lock)
try('HMGET', state, 'v')
try('SET', lock, '', 'NX', 'XX')
try('PEXPIRE', lock, '')
try('HSET', state, 'v', '1', 'v')
if held == false then try('DEL', lock) end
return said";

/// The planted fault of the test binary: every vote counts at once. The only place that knows it.
const QUARANTINE_IS_OFF: bool = cfg!(feature = "mutant-no-quarantine");

/// Tokens are below 2^53, so that a script's arithmetic is exact.
const TOKEN_LIMIT: Token = 1 << 53;

/// What one replica says to the nodes about one lock: its keys, and the list of nodes that it works with.
#[derive(Clone, Debug)]
pub struct Scripts {
    /// The lock's key and its state's; none for plain locks, which name their key in each step.
    keys: Vec<String>,
    channel: String,
    nodes: usize,
    list: String,
}

/// One run of a script, to be sent by its SHA-1 or whole.
#[derive(Clone, Debug)]
pub struct Call {
    script: &'static Script,
    keys: Vec<String>,
    args: Vec<String>,
}

impl Scripts {
    /// What is said about `lock` by a replica whose list of nodes is `urls`.
    #[must_use]
    pub fn new<'a>(lock: &LockName, urls: impl ExactSizeIterator<Item = &'a NodeUrl>) -> Self {
        let keys = vec![lock.as_str().to_owned(), lock.state_key()];
        Self { keys, channel: lock.channel(), nodes: urls.len(), list: fingerprint(urls) }
    }

    /// For nodes that are asked for steps of plain locks only.
    #[must_use]
    pub const fn plain() -> Self {
        Self { keys: Vec::new(), channel: String::new(), nodes: 0, list: String::new() }
    }

    /// The fingerprint of the list of nodes (protocol rule 23).
    #[must_use]
    pub fn list(&self) -> &str {
        &self.list
    }

    /// The channel that a release is told on.
    #[must_use]
    pub fn channel(&self) -> String {
        self.channel.clone()
    }

    /// The script call for an ask; `None` for a survey and a plain step, which are none of these scripts. `run_id` is the one that the connection
    /// knows if scripts may not call INFO, else empty.
    #[must_use]
    pub fn call(&self, what: &What, run_id: &str) -> Option<Call> {
        let args = match what {
            What::Look { quarantine } | What::Observe { quarantine } => {
                vec![quarantine_ms(*quarantine), run_id.to_owned()]
            }
            What::Acquire(claim) | What::Extend(claim) => self.claim(claim, run_id),
            What::Release { owner, token, ended } => {
                let ended = match ended {
                    Ended::Aborted => "aborted",
                    Ended::Released => "released",
                };
                vec![owner.as_str().to_owned(), token.to_string(), ended.to_owned()]
            }
            What::Survey | What::Plain(_) => return None,
        };
        Some(Call { script: script_of(what)?, keys: self.keys.clone(), args })
    }

    /// The commands of a survey: the holder's list, and the channel's subscribers where that may be asked.
    #[must_use]
    pub fn survey(&self, with_subscribers: bool) -> redis::Pipeline {
        let mut pipe = redis::pipe();
        pipe.cmd("HMGET").arg(self.keys.get(1)).arg("list");
        if with_subscribers {
            pipe.cmd("PUBSUB").arg("NUMSUB").arg(self.channel());
        }
        pipe
    }

    /// Asks whether scripts run, and which run_id INFO gives inside.
    #[must_use]
    pub fn probe(&self) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(PROBE).arg(self.keys.len()).arg(&self.keys);
        cmd
    }

    /// Asks which commands of the scripts the user may not run; an error text for each that gives one.
    #[must_use]
    pub fn rights(&self) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(RIGHTS).arg(self.keys.len()).arg(&self.keys);
        cmd
    }

    /// The lock's key, and its state's; none for plain locks.
    #[must_use]
    pub fn keys(&self) -> &[String] {
        &self.keys
    }

    fn claim(&self, claim: &Claim, run_id: &str) -> Vec<String> {
        vec![
            claim.owner.as_str().to_owned(),
            claim.ttl.as_millis().to_string(),
            claim.token.to_string(),
            quarantine_ms(claim.quarantine),
            run_id.to_owned(),
            self.nodes.to_string(),
            self.list.clone(),
        ]
    }
}

impl Call {
    /// The short form, which a server that has not seen the script answers with NOSCRIPT.
    #[must_use]
    pub fn by_sha(&self) -> Cmd {
        self.command("EVALSHA", &self.script.sha)
    }

    /// The whole script.
    #[must_use]
    pub fn whole(&self) -> Cmd {
        self.command("EVAL", self.script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut cmd = redis::cmd(name);
        cmd.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.args);
        cmd
    }
}

/// A part of a second is rounded up: a longer quarantine is safe.
fn quarantine_ms(quarantine: Duration) -> String {
    if QUARANTINE_IS_OFF {
        return "0".to_owned();
    }
    quarantine.as_nanos().div_ceil(1_000_000).to_string()
}

/// Sorted 8-digit hashes of `host:port/db`, joined by commas, so that two lists can be compared node by node.
#[must_use]
pub fn fingerprint<'a>(urls: impl Iterator<Item = &'a NodeUrl>) -> String {
    let mut hashes: Vec<String> = urls.map(|url| format!("{:08x}", fnv1a(&url.fingerprint_source()))).collect();
    hashes.sort_unstable();
    hashes.join(",")
}

/// FNV-1a with 32 bits: it must stay the same for ever, which no hasher of std promises.
fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn script_of(what: &What) -> Option<&'static Script> {
    match what {
        What::Look { .. } => Some(&LOOK),
        What::Observe { .. } => Some(&OBSERVE),
        What::Acquire(_) => Some(&ACQUIRE),
        What::Extend(_) => Some(&EXTEND),
        What::Release { .. } => Some(&RELEASE),
        What::Survey | What::Plain(_) => None,
    }
}

/// A server's error for the log, with the command that the user may not run: servers before 7.2 only say in which line
/// of a script it stands. Anything else that a server says may be long, and is no error text.
#[must_use]
pub(crate) fn said(what: &What, reply: &Value) -> String {
    let Value::ServerError(error) = reply else { return "an answer that no script gives".to_owned() };
    let text = error::text(error);
    let denied = script_of(what).filter(|_| error::classify(&text) == Kind::Noperm);
    match denied.and_then(|script| command_at(script.text, &text)) {
        Some(command) => format!("{text} ({command})"),
        None => text,
    }
}

/// The command that a script calls in the line that an error names: `@user_script:26`, or `@user_script: 26` before 7.0.
fn command_at<'a>(script: &'a str, error: &str) -> Option<&'a str> {
    let (_, place) = error.rsplit_once("@user_script:")?;
    let number = place.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse::<usize>().ok()?;
    let (_, call) = script.lines().nth(number.checked_sub(1)?)?.split_once("call('")?;
    call.split('\'').next()
}

/// What the reply to an ask says. Whatever no script of ours answers is [`Kind::Protocol`].
#[must_use]
pub fn outcome(what: &What, reply: &Value) -> Outcome {
    if let Value::ServerError(error) = reply {
        return Outcome::Failed(error::classify(&error::text(error)));
    }
    let read = match what {
        What::Look { .. } | What::Observe { .. } | What::Acquire(_) | What::Extend(_) => {
            read_answer(what, reply).map(Outcome::Answer)
        }
        What::Release { .. } => read_released(reply),
        What::Survey => read_survey(reply),
        What::Plain(_) => Err(Kind::Protocol),
    };
    read.unwrap_or_else(Outcome::Failed)
}

fn read_answer(what: &What, reply: &Value) -> Result<Answer, Kind> {
    let Value::Array(fields) = reply else { return Err(Kind::Protocol) };
    let [verdict, owner, owner_token, left, token, over, ttl, time_us, run, quarantined] = fields.as_slice() else {
        return Err(Kind::Protocol);
    };
    let verdict = read_verdict(what, text(verdict)?)?;
    let owner = lossy_text(owner)?;
    let run = text(run)?;
    let is_run = run.len() == 12 && run.bytes().all(|byte| byte.is_ascii_hexdigit());
    let run = u64::from_str_radix(run, 16).ok().filter(|_| is_run).ok_or(Kind::Protocol)?;
    let left = match text(left)? {
        "-1" => None,
        millis => Some(Duration::from_millis(number(millis)?)),
    };
    let Value::Int(quarantined @ (0 | 1)) = quarantined else { return Err(Kind::Protocol) };
    Ok(Answer {
        verdict,
        owner: (!owner.is_empty()).then(|| Owner::found(&owner)),
        owner_token: match text(owner_token)? {
            "" => None,
            token => Some(read_token(token)?),
        },
        left,
        token: read_token(text(token)?)?,
        over: read_token(text(over)?)?,
        ttl: Duration::from_millis(number(text(ttl)?)?),
        time_us: read_time(text(time_us)?)?,
        run: RunId(run),
        quarantined: *quarantined == 1 && !QUARANTINE_IS_OFF,
    })
}

/// A verdict that the ask's script can give.
fn read_verdict(what: &What, word: &str) -> Result<Verdict, Kind> {
    Ok(match (what, word) {
        (_, "newer") => Verdict::Newer,
        (What::Acquire(_), "granted") => Verdict::Granted,
        (What::Acquire(_), "held") => Verdict::Held,
        (What::Acquire(_), "quarantined") => Verdict::Quarantined,
        (What::Acquire(_), "outdated") => Verdict::Outdated,
        (What::Extend(_), "extended") => Verdict::Extended,
        (What::Extend(_), "refilled") => Verdict::Refilled,
        (What::Extend(_), "lost-over") => Verdict::LostOver,
        (What::Extend(_), "lost-owner") => Verdict::LostOwner,
        (What::Look { .. } | What::Observe { .. }, "seen") => Verdict::Seen,
        (What::Look { .. } | What::Observe { .. }, "free") => Verdict::Free,
        _ => return Err(Kind::Protocol),
    })
}

fn read_released(reply: &Value) -> Result<Outcome, Kind> {
    let Value::Array(fields) = reply else { return Err(Kind::Protocol) };
    let [verdict, time_us] = fields.as_slice() else { return Err(Kind::Protocol) };
    let deleted = match text(verdict)? {
        "deleted" => true,
        "absent" => false,
        _ => return Err(Kind::Protocol),
    };
    Ok(Outcome::Released { deleted, time_us: read_time(text(time_us)?)? })
}

/// What a survey may not ask is left out of its answer: it is for comfort only.
fn read_survey(reply: &Value) -> Result<Outcome, Kind> {
    let Value::Array(replies) = reply else { return Err(Kind::Protocol) };
    let (list, subscribers) = match replies.as_slice() {
        [list] => (list, None),
        [list, subscribers] => (list, Some(subscribers)),
        _ => return Err(Kind::Protocol),
    };
    let list = permitted(list)?.map(read_list).transpose()?.flatten();
    let subscribers = subscribers.map(permitted).transpose()?.flatten().map(read_count).transpose()?;
    Ok(Outcome::Survey { subscribers, list })
}

/// The one field of an HMGET.
fn read_list(reply: &Value) -> Result<Option<String>, Kind> {
    let Value::Array(fields) = reply else { return Err(Kind::Protocol) };
    let [list] = fields.as_slice() else { return Err(Kind::Protocol) };
    if *list == Value::Nil { Ok(None) } else { lossy_text(list).map(Some) }
}

/// The one channel of a NUMSUB.
fn read_count(reply: &Value) -> Result<u64, Kind> {
    let Value::Array(fields) = reply else { return Err(Kind::Protocol) };
    let [_, Value::Int(count)] = fields.as_slice() else { return Err(Kind::Protocol) };
    u64::try_from(*count).map_err(|_| Kind::Protocol)
}

/// `None` for what the user may not ask, or the server does not know.
fn permitted(reply: &Value) -> Result<Option<&Value>, Kind> {
    let Value::ServerError(error) = reply else { return Ok(Some(reply)) };
    let kind = error::classify(&error::text(error));
    if matches!(kind, Kind::Noperm | Kind::Unsupported) { Ok(None) } else { Err(kind) }
}

fn text(value: &Value) -> Result<&str, Kind> {
    let Value::BulkString(bytes) = value else { return Err(Kind::Protocol) };
    std::str::from_utf8(bytes).map_err(|_| Kind::Protocol)
}

/// A foreign owner value may be any bytes.
fn lossy_text(value: &Value) -> Result<String, Kind> {
    let Value::BulkString(bytes) = value else { return Err(Kind::Protocol) };
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

fn number(text: &str) -> Result<u64, Kind> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number).ok_or(Kind::Protocol)
}

/// A clock that counts more microseconds than a script can, which is until the year 2255, is none; and with fewer no
/// difference of two clocks overflows.
fn read_time(text: &str) -> Result<u64, Kind> {
    number(text).ok().filter(|time| *time < TOKEN_LIMIT).ok_or(Kind::Protocol)
}

fn read_token(text: &str) -> Result<Token, Kind> {
    number(text).ok().filter(|token| *token < TOKEN_LIMIT).ok_or(Kind::BadState)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redsync::name::Identity;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn reply(fields: [&str; 9], quarantined: Value) -> Value {
        Value::Array(fields.into_iter().map(bulk).chain([quarantined]).collect())
    }

    fn claim() -> Claim {
        Claim {
            owner: Owner::new(&Identity::parse("a").unwrap(), [1; 16]),
            ttl: Duration::from_secs(8),
            token: 7,
            quarantine: Duration::from_micros(8_800_001),
        }
    }

    const LOOK_OF_1S: What = What::Look { quarantine: Duration::from_secs(1) };
    const FIELDS: [&str; 9] = ["granted", "a:1", "7", "500", "7", "6", "500", "1795988714504742", "0123456789ab"];

    fn with(at: usize, field: &'static str) -> [&'static str; 9] {
        let mut fields = FIELDS;
        fields[at] = field;
        fields
    }

    #[test]
    fn a_full_answer_is_read() {
        let expected = Answer {
            verdict: Verdict::Granted,
            owner: Some(Owner::found("a:1")),
            owner_token: Some(7),
            left: Some(Duration::from_millis(500)),
            token: 7,
            over: 6,
            ttl: Duration::from_millis(500),
            time_us: 1_795_988_714_504_742,
            run: RunId(0x0123_4567_89ab),
            quarantined: false,
        };
        let read = outcome(&What::Acquire(claim()), &reply(FIELDS, Value::Int(0)));
        assert_eq!(read, Outcome::Answer(expected));
    }

    #[test]
    fn whatever_no_script_answers_is_no_vote() {
        let acquire = What::Acquire(claim());
        let release = What::Release { owner: claim().owner, token: 7, ended: Ended::Aborted };
        let int = |n| Value::Int(n);
        for (what, value, kind) in [
            (&acquire, Value::Nil, Kind::Protocol),
            (&acquire, int(0), Kind::Protocol),
            (&acquire, Value::Okay, Kind::Protocol),
            (&acquire, bulk("granted"), Kind::Protocol),
            (&acquire, Value::Array(vec![]), Kind::Protocol),
            (&acquire, Value::Array(vec![bulk("granted"); 10]), Kind::Protocol),
            (&acquire, reply(FIELDS, bulk("0")), Kind::Protocol),
            (&acquire, reply(FIELDS, int(2)), Kind::Protocol),
            (&acquire, reply(with(0, "GRANTED"), int(0)), Kind::Protocol),
            (&acquire, reply(with(0, "extended"), int(0)), Kind::Protocol),
            (&LOOK_OF_1S, reply(FIELDS, int(0)), Kind::Protocol),
            (&acquire, reply(with(3, "-2"), int(0)), Kind::Protocol),
            (&acquire, reply(with(3, "+5"), int(0)), Kind::Protocol),
            (&acquire, reply(with(3, "99999999999999999999999"), int(0)), Kind::Protocol),
            (&acquire, reply(with(7, "9007199254740992"), int(0)), Kind::Protocol),
            (&acquire, reply(with(8, "0123"), int(0)), Kind::Protocol),
            (&acquire, reply(with(8, "+123456789ab"), int(0)), Kind::Protocol),
            (&acquire, reply(with(4, "1e3"), int(0)), Kind::BadState),
            (&acquire, reply(with(4, "9007199254740992"), int(0)), Kind::BadState),
            (&acquire, reply(with(5, "-1"), int(0)), Kind::BadState),
            (&release, reply(FIELDS, int(0)), Kind::Protocol),
            (&release, Value::Array(vec![bulk("gone"), bulk("1")]), Kind::Protocol),
            (&release, Value::Array(vec![bulk("deleted"), int(1)]), Kind::Protocol),
            (&What::Survey, Value::Array(vec![]), Kind::Protocol),
            (&What::Survey, int(3), Kind::Protocol),
        ] {
            assert_eq!(outcome(what, &value), Outcome::Failed(kind), "{what:?} {value:?}");
        }
    }

    #[test]
    fn no_expiry_no_owner_and_the_largest_token_are_read() {
        let mut fields = with(3, "-1");
        (fields[0], fields[1], fields[2], fields[4]) = ("free", "", "", "9007199254740991");
        let Outcome::Answer(answer) = outcome(&LOOK_OF_1S, &reply(fields, Value::Int(1))) else { panic!() };
        assert_eq!((answer.left, answer.owner, answer.owner_token), (None, None, None));
        assert_eq!(answer.token, TOKEN_LIMIT - 1);
        assert_eq!(answer.quarantined, !QUARANTINE_IS_OFF);
    }

    #[test]
    fn commands_carry_what_the_surfaces_say() {
        let urls = [NodeUrl::parse("redis://b:2").unwrap(), NodeUrl::parse("redis://a:1").unwrap()];
        let scripts = Scripts::new(&LockName::parse("job").unwrap(), urls.iter());
        let call = scripts.call(&What::Acquire(claim()), "").unwrap();
        let args: Vec<String> = call.by_sha().args_iter().map(arg).collect();
        assert_eq!(args[0..5], ["EVALSHA", &call.script.sha, "2", "job", "{job}:redleader"]);
        let quarantine = if QUARANTINE_IS_OFF { "0" } else { "8801" };
        assert_eq!(args[5..], [claim().owner.as_str(), "8000", "7", quarantine, "", "2", scripts.list()]);
        let hashes: Vec<&str> = scripts.list().split(',').collect();
        assert!(hashes.is_sorted() && hashes.len() == 2 && hashes.iter().all(|hash| hash.len() == 8));
        assert_eq!(fnv1a("a"), 0xe40c_292c);
    }

    fn arg(arg: redis::Arg<&[u8]>) -> String {
        let redis::Arg::Simple(bytes) = arg else { panic!("a cursor") };
        String::from_utf8(bytes.to_vec()).unwrap()
    }
}
