//! What the simulator and the model take a node for, against real servers: the same operations on both, and after each
//! one the same reply, the same keys and the same state.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy};
use proptest::prop_oneof;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use redleader::redsync::name::{LockName, Owner};
use redleader::redsync::reply::{Answer, Claim, Ended, Kind, Outcome, RunId, What};
use redleader::redsync::script::{self, Scripts};

use crate::asker::settings;
use crate::support::resp::{self, Client};
use crate::support::{Data, Flavour, Rng, Server, ServerOptions, Value, figure, let_time_pass, scale, setting};

#[path = "../sim/node.rs"]
mod node;
#[path = "../sim/plant.rs"]
#[allow(dead_code, reason = "only the scripts' bugs are of use here")]
mod plant;

use node::{Lock, NodeState, State, apply};
use plant::{Place, Plant};

const LOCK: &str = "job";
const STATE: &str = "{job}:redleader";
/// Servers and this function read their clocks at slightly different moments.
const TOLERANCE_MS: u64 = 2;
const LONGEST: usize = 60;
const OWNERS: [&str; 3] = ["a:1", "b:1", "c:1"];
const TTLS: [u64; 4] = [4, 15, 60, 5_000];
const QUARANTINES: [u64; 4] = [1, 5, 40, 6_000];
/// What has to be among the answers.
const ANSWERS: [&str; 14] = [
    "Granted",
    "Held",
    "Quarantined",
    "Outdated",
    "Extended",
    "Refilled",
    "LostOver",
    "LostOwner",
    "Seen",
    "Free",
    "Deleted",
    "Absent",
    "bad-state",
    "oom",
];
const DATE: u64 = 1_795_988_714_504_742;

/// After an operation: the two keys, and the time.
const PROBE: &str = "local time = redis.call('TIME') \
    return { redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), redis.call('HGETALL', KEYS[2]), \
             time[1], time[2] }";

#[derive(Clone, Debug)]
enum Step {
    Ask(What),
    Other(Act),
}

/// What others do.
#[derive(Clone, Copy, Debug)]
enum Act {
    Wait {
        ms: u64,
    },
    DeleteLock,
    DeleteState,
    FlushAll,
    FlushScripts,
    /// As go-redsync does: set where it is missing, and delete what is its own.
    ForeignSet {
        ttl: u64,
    },
    ForeignDelete,
    /// A person's: whatever is there, and without an expiry.
    Overwrite,
    /// What a clock that went back leaves behind: a key, a grant and a marker of the future.
    LongKey,
    LongGrant,
    LongMarker,
    Unreadable,
    FillMemory,
    FreeMemory,
    Restart {
        data: Data,
    },
}

fn token() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1..8_u64, 1 => (0..3_u64).prop_map(|more| DATE + more), 1 => Just((1 << 53) - 1)]
}

fn millis<const N: usize>(items: [u64; N]) -> impl Strategy<Value = Duration> {
    proptest::sample::select(items.to_vec()).prop_map(Duration::from_millis)
}

fn owner() -> impl Strategy<Value = Owner> {
    proptest::sample::select(OWNERS.to_vec()).prop_map(Owner::found)
}

fn ask() -> impl Strategy<Value = What> {
    let claim = || {
        let claim = (owner(), millis(TTLS), token(), millis(QUARANTINES));
        claim.prop_map(|(owner, ttl, token, quarantine)| Claim { owner, ttl, token, quarantine })
    };
    let ended = proptest::sample::select(vec![Ended::Aborted, Ended::Released]);
    prop_oneof![
        8 => millis(QUARANTINES).prop_map(|quarantine| What::Look { quarantine }),
        3 => millis(QUARANTINES).prop_map(|quarantine| What::Observe { quarantine }),
        24 => claim().prop_map(What::Acquire),
        16 => claim().prop_map(What::Extend),
        10 => (owner(), token(), ended).prop_map(|(owner, token, ended)| What::Release { owner, token, ended }),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        10 => (1..20_u64).prop_map(|ms| Act::Wait { ms }),
        3 => Just(Act::DeleteLock),
        1 => Just(Act::DeleteState),
        1 => Just(Act::FlushAll),
        1 => Just(Act::FlushScripts),
        2 => proptest::sample::select(TTLS.to_vec()).prop_map(|ttl| Act::ForeignSet { ttl }),
        1 => Just(Act::ForeignDelete),
        1 => Just(Act::Overwrite),
        2 => Just(Act::LongKey),
        2 => Just(Act::LongGrant),
        1 => Just(Act::LongMarker),
        1 => Just(Act::Unreadable),
        1 => Just(Act::FillMemory),
        2 => Just(Act::FreeMemory),
        1 => prop_oneof![Just(Data::Lost), Just(Data::Kept)].prop_map(|data| Act::Restart { data }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![2 => ask().prop_map(Step::Ask), 1 => act().prop_map(Step::Other)]
}

/// What was found in the two keys.
struct Seen {
    /// Microseconds; `before`: before the operation.
    time: u64,
    before: u64,
    lock: Option<Lock>,
    fields: Vec<(String, String)>,
}

impl Seen {
    fn read(before: &Value, probe: &Value) -> Self {
        let [owner, left, fields, seconds, rest] = probe.list() else { panic!("{probe:?}") };
        let micros = |pair: [&Value; 2]| {
            let [seconds, micros] = pair.map(|value| value.text().parse::<u64>().unwrap());
            seconds * 1_000_000 + micros
        };
        let (time, before) = (micros([seconds, rest]), micros([&before.list()[0], &before.list()[1]]));
        let expires = u64::try_from(left.int().unwrap()).ok().map(|left| time / 1000 + left);
        let lock = (!owner.is_nil()).then(|| Lock { owner: Owner::found(&owner.text()), expires });
        let mut fields: Vec<_> = fields.list().chunks(2).map(|pair| (pair[0].text(), pair[1].text())).collect();
        fields.sort_unstable();
        Self { time, before, lock, fields }
    }
}

/// One server and what is thought of it.
struct Twins {
    server: Server,
    client: Client,
    scripts: Scripts,
    node: NodeState,
    run: String,
    steps: u64,
    /// What was answered, and how often, so that a dull history is noticed.
    answered: BTreeMap<String, u64>,
    /// How often a key's last millisecond was the question, which the two clocks may answer differently.
    doubts: u64,
    /// How often it took its server more than a millisecond.
    slow: u64,
    /// Histories with a difference that was none when they were played again.
    flukes: u32,
}

impl Twins {
    fn start(flavour: Flavour) -> Self {
        let server = Server::start(flavour, ServerOptions::new());
        let lock = LockName::parse(LOCK).unwrap();
        let scripts = Scripts::new(&lock, [settings("redis://a:1").url, settings("redis://b:1").url].iter());
        let client = server.client().unwrap();
        let mut twins = Self {
            server,
            client,
            scripts,
            node: NodeState::new(RunId(0)),
            run: String::new(),
            steps: 0,
            answered: BTreeMap::new(),
            doubts: 0,
            slow: 0,
            flukes: 0,
        };
        twins.learn_run();
        twins
    }

    fn learn_run(&mut self) {
        self.client = self.server.client().unwrap();
        let info = self.cli(&["INFO", "server"]).text();
        self.run = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap().to_owned();
        self.node.run = RunId(u64::from_str_radix(&self.run[..12], 16).unwrap());
    }

    fn cli(&mut self, args: &[&str]) -> Value {
        self.client.call(args).unwrap()
    }

    fn begin(&mut self) {
        self.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        self.cli(&["FLUSHALL"]);
        self.node = NodeState::new(self.node.run);
    }

    /// The time that the server's scripts see, in microseconds.
    fn time(&mut self) -> u64 {
        let time = self.cli(&["TIME"]);
        let part = |at: usize| time.list()[at].text().parse::<u64>().unwrap();
        part(0) * 1_000_000 + part(1)
    }

    /// A history from its beginning.
    fn play(&mut self, steps: &[Step], plant: Option<Plant>) -> Result<(), String> {
        self.begin();
        self.node.planted = plant;
        steps.iter().try_for_each(|step| self.step(step))
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        self.steps += 1;
        match step {
            Step::Ask(what) => self.ask(what),
            Step::Other(act) => {
                self.act(*act);
                // It took its time, so that its key's end is the server's word.
                let (_, seen) = self.send(&resp::command(&["PING"]));
                compare_keys(&self.node, &seen, None)?;
                self.go_on(self.node.clone(), seen)
            }
        }
    }

    /// A script, on both, and what is there right after it.
    fn ask(&mut self, what: &What) -> Result<(), String> {
        let call = self.scripts.call(what, "").unwrap();
        let (mut reply, mut seen) = self.send(&call.by_sha().get_packed_command());
        if reply.text().starts_with("NOSCRIPT") {
            (reply, seen) = self.send(&call.whole().get_packed_command());
        }
        let real = script::outcome(what, &redis::parse_redis_value(&reply.encode()).unwrap());
        *self.answered.entry(word(&real)).or_default() += 1;
        let time = match &real {
            Outcome::Answer(answer) => answer.time_us,
            Outcome::Released { time_us, .. } => *time_us,
            Outcome::Survey { .. } | Outcome::Plain { .. } | Outcome::Unsent | Outcome::Failed(_) => seen.time,
        };
        // A server that was kept waiting in the midst of it counts from when it began.
        let tolerance = TOLERANCE_MS + (seen.time - seen.before) / 1000;
        self.slow += u64::from(tolerance > TOLERANCE_MS);
        let mut likely = self.node.clone();
        let (ours, _) = apply(&mut likely, time, self.scripts.list(), what);
        let difference = match is_same(&ours, &real, tolerance) {
            true => match compare_keys(&likely, &seen, Some(tolerance)) {
                Ok(()) => return self.go_on(likely, seen),
                Err(text) => text,
            },
            false => format!("{what:?} is answered\n  {real:?}\nand not\n  {ours:?}"),
        };
        // In the last millisecond of a key its server may have looked at it a little earlier or later.
        if !expires_at_about(&self.node, time / 1000, tolerance) {
            return Err(difference);
        }
        let mut other = self.node.clone();
        let is_there = other.owner(time / 1000).is_some();
        other.lock = if is_there { None } else { other.lock.map(|lock| lasting(lock, time)) };
        let (ours, _) = apply(&mut other, time, self.scripts.list(), what);
        if !is_same(&ours, &real, tolerance) || compare_keys(&other, &seen, Some(tolerance)).is_err() {
            return Err(difference);
        }
        self.doubts += 1;
        self.go_on(other, seen)
    }

    /// A command, and the keys after it, in one write.
    fn send(&mut self, command: &[u8]) -> (Value, Seen) {
        let probe = resp::command(&["EVAL", PROBE, "2", LOCK, STATE]);
        self.client.send(&[&resp::command(&["TIME"]), command, &probe].concat()).unwrap();
        let mut read = || self.client.read().unwrap();
        let (before, reply, probe) = (read(), read(), read());
        (reply, Seen::read(&before, &probe))
    }

    /// The two clocks' difference must not add up, and a key that one of the two has seen end has ended.
    fn go_on(&mut self, mut node: NodeState, seen: Seen) -> Result<(), String> {
        node.lock = seen.lock.clone();
        let (ours, real) = (self.fields(&node, &seen.fields), seen.fields);
        self.node = node;
        if ours == real { Ok(()) } else { Err(format!("the lock's state is\n  {real:?}\nand not\n  {ours:?}")) }
    }

    /// What others do to the keys and to the server.
    fn act(&mut self, act: Act) {
        let is_full = self.node.refuses.is_some();
        match act {
            Act::Wait { ms } => let_time_pass("keys and quarantines run out", Duration::from_millis(ms)),
            Act::DeleteLock => {
                self.node.lock = None;
                self.cli(&["DEL", LOCK]);
            }
            Act::DeleteState => {
                self.node.state = State::default();
                self.cli(&["DEL", STATE]);
            }
            Act::FlushAll => {
                (self.node.state, self.node.lock) = (State::default(), None);
                self.cli(&["FLUSHALL"]);
            }
            Act::FlushScripts => {
                self.cli(&["SCRIPT", "FLUSH"]);
            }
            Act::ForeignSet { ttl } if !is_full => {
                let now = self.time() / 1000;
                if self.cli(&["SET", LOCK, "foreign", "NX", "PX", &ttl.to_string()]).text() == "OK" {
                    self.node.lock = Some(Lock { owner: Owner::found("foreign"), expires: Some(now + ttl) });
                }
            }
            Act::ForeignDelete => {
                if self.cli(&["GET", LOCK]).text() == "foreign" {
                    self.node.lock = None;
                    self.cli(&["DEL", LOCK]);
                }
            }
            Act::Overwrite if !is_full => {
                self.node.lock = Some(Lock { owner: Owner::found("by hand"), expires: None });
                self.cli(&["SET", LOCK, "by hand"]);
            }
            Act::LongKey | Act::LongGrant | Act::LongMarker | Act::Unreadable if !is_full => self.spoil(act),
            Act::FillMemory => {
                self.node.refuses = Some(Kind::Oom);
                self.cli(&["CONFIG", "SET", "maxmemory", "1"]);
            }
            Act::FreeMemory => {
                self.node.refuses = None;
                self.cli(&["CONFIG", "SET", "maxmemory", "0"]);
            }
            Act::Restart { data } => self.restart(data),
            Act::ForeignSet { .. } | Act::Overwrite => {}
            Act::LongKey | Act::LongGrant | Act::LongMarker | Act::Unreadable => {}
        }
    }

    fn spoil(&mut self, act: Act) {
        let later = self.time() / 1000 + 70_000;
        let (field, value) = match act {
            Act::LongKey => {
                let is_set = self.cli(&["PEXPIRE", LOCK, "70000"]).int() == Some(1);
                if let Some(lock) = self.node.lock.as_mut().filter(|_| is_set) {
                    lock.expires = Some(later);
                }
                return;
            }
            Act::LongGrant if self.node.state.owner.is_some() => {
                self.node.state.until = later;
                ("until", later.to_string())
            }
            Act::LongMarker if self.node.state.run.is_some() => {
                self.node.state.born = Some(later);
                ("born", later.to_string())
            }
            Act::Unreadable => {
                self.node.state.unreadable = true;
                ("token", "nonsense".to_owned())
            }
            Act::LongGrant
            | Act::LongMarker
            | Act::Wait { .. }
            | Act::DeleteLock
            | Act::DeleteState
            | Act::FlushAll
            | Act::FlushScripts
            | Act::ForeignSet { .. }
            | Act::ForeignDelete
            | Act::Overwrite
            | Act::FillMemory
            | Act::FreeMemory
            | Act::Restart { .. } => return,
        };
        self.cli(&["HSET", STATE, field, &value]);
    }

    fn restart(&mut self, data: Data) {
        match data {
            Data::Kept => assert!(!self.cli(&["SAVE"]).is_error()),
            Data::Lost => (self.node.state, self.node.lock) = (State::default(), None),
        }
        self.server.restart(data);
        self.node.refuses = None;
        self.learn_run();
    }

    /// The state as the server would keep it. A field that was never written reads as one that is 0.
    fn fields(&self, node: &NodeState, real: &[(String, String)]) -> Vec<(String, String)> {
        let state = &node.state;
        let is_there = |field: &str| real.iter().any(|(name, _)| name == field);
        let mut fields = Vec::new();
        let mut put = |field: &str, value: Option<String>| {
            fields.extend(value.map(|value| (field.to_owned(), value)));
        };
        let count = |field: &str, value: u64| (value > 0 || is_there(field)).then(|| value.to_string());
        put("run", state.run.map(|_| self.full_run(state.run, real)));
        put("born", state.born.map(|born| born.to_string()));
        put("token", if state.unreadable { Some("nonsense".to_owned()) } else { count("token", state.token) });
        put("grant", state.grant.map(|grant| grant.to_string()));
        put("owner", state.owner.as_ref().map(|owner| owner.as_str().to_owned()));
        put("ttl", count("ttl", state.ttl));
        put("until", count("until", state.until));
        put("over", count("over", state.over));
        put("list", state.list.clone());
        put("n", state.list.as_ref().map(|_| "2".to_owned()));
        put("v", (state.run.is_some() || state.owner.is_some()).then(|| "1".to_owned()));
        fields.sort_unstable();
        fields
    }

    /// The state keeps all of a run's 40 digits, of which replies carry 12.
    fn full_run(&self, run: Option<RunId>, real: &[(String, String)]) -> String {
        if run == Some(self.node.run) {
            return self.run.clone();
        }
        let stored = real.iter().find(|(name, _)| name == "run").map(|(_, value)| value.clone()).unwrap_or_default();
        let digits = u64::from_str_radix(stored.get(..12).unwrap_or(""), 16).ok();
        if digits.map(RunId) == run { stored } else { format!("{run:?}") }
    }
}

fn expires_at_about(node: &NodeState, now: u64, tolerance: u64) -> bool {
    let expires = node.lock.as_ref().and_then(|lock| lock.expires);
    expires.is_some_and(|at| at.abs_diff(now) <= tolerance)
}

/// The lock's key, and its end within so many milliseconds if that is known.
fn compare_keys(node: &NodeState, seen: &Seen, tolerance: Option<u64>) -> Result<(), String> {
    let (now, ours, real) = (seen.time / 1000, &node.lock, &seen.lock);
    let is_close = match (ours, real) {
        (Some(ours), Some(real)) => {
            let is_end_close = match (ours.expires, real.expires) {
                (Some(ours), Some(real)) => tolerance.is_none_or(|most| ours.abs_diff(real) <= most),
                (ours, real) => ours == real,
            };
            ours.owner == real.owner && is_end_close
        }
        (None, None) => true,
        (None, Some(_)) => false,
        (Some(ours), None) => ours.expires.is_some_and(|at| tolerance.is_none_or(|most| at <= now + most)),
    };
    if is_close { Ok(()) } else { Err(format!("at {now} the lock's key is\n  {real:?}\nand not\n  {ours:?}")) }
}

/// A key whose last millisecond is not over for its server.
fn lasting(lock: Lock, time_us: u64) -> Lock {
    Lock { expires: lock.expires.map(|at| at.max(time_us / 1000)), ..lock }
}

fn word(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Answer(answer) => format!("{:?}", answer.verdict),
        Outcome::Released { deleted, .. } => (if *deleted { "Deleted" } else { "Absent" }).to_owned(),
        Outcome::Failed(kind) => kind.as_str().to_owned(),
        Outcome::Survey { .. } | Outcome::Plain { .. } | Outcome::Unsent => format!("{outcome:?}"),
    }
}

fn is_same(ours: &Outcome, real: &Outcome, tolerance: u64) -> bool {
    match (ours, real) {
        (Outcome::Answer(ours), Outcome::Answer(real)) => {
            let is_left_same = match (ours.left, real.left) {
                (Some(ours), Some(real)) => ours.abs_diff(real) <= Duration::from_millis(tolerance),
                (ours, real) => ours == real,
            };
            let with_left = |answer: &Answer| Answer { left: real.left, ..answer.clone() };
            is_left_same && with_left(ours) == *real
        }
        (
            Outcome::Answer(_)
            | Outcome::Released { .. }
            | Outcome::Survey { .. }
            | Outcome::Plain { .. }
            | Outcome::Unsent
            | Outcome::Failed(_),
            _,
        ) => ours == real,
    }
}

/// Random histories on one server; the shortest that shows a difference, if there is one.
fn differences(twins: Twins, sequences: u32, seed: u64, plant: Option<Plant>) -> (Twins, Option<(Vec<Step>, String)>) {
    let config = Config {
        cases: sequences,
        failure_persistence: None,
        max_shrink_iters: 3_000,
        max_shrink_time: if plant.is_some() { 4_000 } else { 20_000 },
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let shared = std::cell::RefCell::new(twins);
    let result = runner.run(&vec(step(), 1..LONGEST), |steps| {
        let mut twins = shared.borrow_mut();
        let Err(text) = twins.play(&steps, plant) else { return Ok(()) };
        // On a busy machine a server is stopped between its two looks at a clock. What is a difference stays one.
        if (0..2).any(|_| twins.play(&steps, plant).is_ok()) {
            twins.flukes += 1;
            return Ok(());
        }
        Err(TestCaseError::fail(text))
    });
    let found = match result {
        Ok(()) => None,
        Err(TestError::Fail(reason, steps)) => Some((steps, reason.message().to_owned())),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    };
    (shared.into_inner(), found)
}

fn seed() -> u64 {
    setting("SEED").and_then(|text| text.parse().ok()).unwrap_or_else(|| Rng::seeded("scripts as simulated").next_u64())
}

fn compare(flavour: Flavour) {
    let (twins, found) = differences(Twins::start(flavour), scale().pick(150, 6_000), seed(), None);
    if let Some((steps, text)) = found {
        panic!("{}: after {steps:#?}\n{text}", flavour.as_str());
    }
    let Twins { steps, doubts, slow, flukes, answered, .. } = twins;
    println!("{answered:?}");
    for answer in ANSWERS {
        let count = answered.get(answer).copied().unwrap_or(0);
        assert!(count >= 8, "{answer} was answered {count} times in {steps} operations");
    }
    figure(
        "scripts as simulated",
        &format!(
            "{}: {steps} operations, 0 differences in replies, keys and state (ttls within {TOLERANCE_MS} ms; {doubts} in \
             a key's last millisecond; {slow} took longer than a millisecond, and their ttls are known that much less; {flukes} histories \
             differed once and not again)",
            flavour.as_str()
        ),
    );
    assert!(steps >= scale().pick(3_400, 100_000), "only {steps} operations");
    assert!(flukes <= scale().pick(5, 200), "{flukes} histories differed once and not again");
    assert!(doubts * 50 < steps, "{doubts} operations of {steps} were decided by nothing");
}

#[test]
fn a_node_is_what_it_is_simulated_as_redis_6_2() {
    compare(Flavour::Redis62);
}

#[test]
fn a_node_is_what_it_is_simulated_as_redis_7_0() {
    compare(Flavour::Redis70);
}

#[test]
fn a_node_is_what_it_is_simulated_as_valkey_9() {
    compare(Flavour::Valkey9);
}

/// Every bug of a script that the simulator can plant is a difference that is found and made short.
#[test]
fn a_node_with_a_planted_bug_is_told_from_a_real_one() {
    let mut twins = Twins::start(Flavour::Redis70);
    for plant in Plant::ALL.into_iter().filter(|plant| plant.place() == Place::Script) {
        let (used, found) = differences(twins, scale().pick(400, 2_000), 7, Some(plant));
        let (steps, text) = found.unwrap_or_else(|| panic!("{plant:?} makes no difference"));
        println!("{plant:?}: {} operations: {steps:?}: {text}", steps.len());
        // What depends on the time of day is shortened as far as luck goes.
        let is_timeless = matches!(plant, Plant::NoQuarantine | Plant::LooksWriteNoMarker);
        assert!(!is_timeless || steps.len() <= 3, "{plant:?} is shown by {} operations at best", steps.len());
        twins = used;
    }
}
