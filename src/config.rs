//! The configuration: flags and variables, parsed and checked, with all faults reported at once.

mod app;
mod kubernetes;
mod nodes;
mod value;
mod work;

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use tracing::level_filters::LevelFilter;

use crate::app_ready::AppReady;
use crate::cli::{
    CompletionsArgs, DemoArgs, DoctorArgs, DrainArgs, EndpointArgs, Environment, IdentityArgs, InstallArgs, LockArgs,
    LogArgs, PodArgs, RedisArgs, ResignArgs, RunArgs, StatusArgs, TimingArgs, WaitArgs,
};
use crate::config::nodes::NodeList;
pub use crate::config::value::{Listen, Output, WaitFor, Why};
pub use crate::config::work::Work;
use crate::election::timing::{Timing, TimingError, Wish};
use crate::http::ControlAddress;
use crate::kubernetes::Settings;
use crate::log::{LogFormat, LogSettings};
use crate::redsync::name::{Identity, LockName};
use crate::redsync::node::NodeSettings;
use crate::redsync::url::NodeUrl;

/// All that `run` needs to know. Taken apart once, where the parts are built.
#[derive(Clone, Debug)]
pub struct Config {
    /// The lock.
    pub lock: LockName,
    /// The nodes, in the order given.
    pub nodes: Vec<NodeSettings>,
    /// Who we are, for people.
    pub identity: Identity,
    /// How the app's health is a condition of leadership, if it is one.
    pub app_ready: Option<AppReady>,
    /// Where the report of `/leader` is kept in a file, if anywhere.
    pub leadership_file: Option<PathBuf>,
    /// What is published in Kubernetes; `None`: nothing.
    pub kubernetes: Option<Settings>,
    /// Where probes, leader and metrics are served.
    pub listen: Listen,
    /// Where resign and drain are taken; `None`: nowhere.
    pub control: Option<ControlAddress>,
    /// The numbers.
    pub timing: Timing,
    /// What runs while we lead.
    pub work: Work,
    /// What is logged, and how.
    pub log: LogSettings,
    /// What works and is not wise: one line each, for the log at start.
    pub warnings: Vec<String>,
}

/// The pod we run in, as far as known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: Option<String>,
    /// Its namespace.
    pub namespace: Option<String>,
    /// Its uid.
    pub uid: Option<String>,
}

/// What `status` and `wait` look at.
#[derive(Clone, Debug)]
pub struct Target {
    /// The lock.
    pub lock: LockName,
    /// The nodes, in the order given.
    pub nodes: Vec<NodeSettings>,
    /// The numbers.
    pub timing: Timing,
}

/// All that `status` needs to know.
#[derive(Clone, Debug)]
pub struct StatusConfig {
    /// What it looks at.
    pub target: Target,
    /// Where the redleader beside us takes control; `None`: nowhere, or not known where.
    pub control: Option<ControlAddress>,
    /// The form of the answer.
    pub output: Output,
    /// Whether it is shown again and again.
    pub watch: bool,
}

/// All that `doctor` needs to know.
#[derive(Clone, Debug)]
pub struct DoctorConfig {
    /// What it looks at.
    pub target: Target,
    /// The list of nodes that is planned.
    pub next: Option<Vec<NodeUrl>>,
    /// What is published in Kubernetes; `None`: nothing.
    pub kubernetes: Option<Settings>,
    /// How long clocks are watched.
    pub measure: Duration,
    /// The form of the answer.
    pub output: Output,
}

/// All that `install` needs to know.
#[derive(Clone, Debug)]
pub struct InstallConfig {
    /// Where the copy goes.
    pub directory: PathBuf,
}

/// All that `completions` needs to know.
#[derive(Clone, Debug)]
pub struct CompletionsConfig {
    /// What is printed.
    pub what: Completion,
}

/// What `completions` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// For bash.
    Bash,
    /// For zsh.
    Zsh,
    /// For fish.
    Fish,
    /// The manual page.
    Man,
}

/// All that `wait` needs to know.
#[derive(Clone, Debug)]
pub struct WaitConfig {
    /// What it looks at.
    pub target: Target,
    /// What it waits for.
    pub what: WaitFor,
    /// How long at most.
    pub timeout: Duration,
    /// The form of the answer.
    pub output: Output,
}

/// All that `resign` needs to know.
#[derive(Clone, Debug)]
pub struct ResignConfig {
    /// Where the redleader beside us takes control.
    pub control: ControlAddress,
    /// For how long it is to make no new attempt.
    pub stand_back: Duration,
}

/// All that `drain` needs to know.
#[derive(Clone, Debug)]
pub struct DrainConfig {
    /// Where the redleader beside us takes control.
    pub control: ControlAddress,
}

/// All that `demo` needs to know.
#[derive(Clone, Debug)]
pub struct DemoConfig {
    /// The nodes; none: it starts its own.
    pub nodes: Vec<NodeSettings>,
    /// The numbers of the demonstration's lock.
    pub timing: Timing,
    /// What its replicas find in their environment: the same nodes.
    pub environment: Environment,
    /// Whether it does without colours and cursor, terminal or not.
    pub plain: bool,
}

/// Why a configuration is refused: every fault, one a line, each naming its flag.
#[derive(Debug, Error)]
#[error("{}", lines(.0))]
pub struct ConfigError(Vec<Fault>);

/// One fault of a configuration.
#[derive(Debug, Error)]
pub enum Fault {
    /// The value of a flag or variable.
    #[error("{flag}: {why}")]
    Value {
        /// The flag or variable.
        flag: &'static str,
        /// What is wrong with its value.
        why: Why,
    },
    /// Numbers that are unsafe, by themselves or together.
    #[error(transparent)]
    Timing(#[from] TimingError),
}

fn lines(faults: &[Fault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl ConfigError {
    /// The faults.
    #[must_use]
    pub fn faults(&self) -> &[Fault] {
        &self.0
    }
}

impl Config {
    /// Parses and checks the arguments of `run`. Files are read here, nodes are not asked.
    ///
    /// # Errors
    /// Every fault that can be seen without a node.
    pub fn from_args(args: &RunArgs) -> Result<Self, ConfigError> {
        let mut faults = Faults::default();
        let lock = lock(&args.lock, &mut faults);
        let nodes = NodeList::read(&args.redis, true, &mut faults);
        let timing = timing(&args.timing, &mut faults);
        let pod = pod(&args.pod, &mut faults);
        let kubernetes = kubernetes::settings(&args.kubernetes, &pod, &mut faults);
        let identity = identity(&args.identity, &pod, &mut faults);
        let app_ready = app::ready(&args.app, timing.as_ref(), &mut faults);
        let leadership_file = app::file(&args.app, &mut faults);
        let listen = faults.keep("--listen", value::listen(&args.endpoints.listen));
        let control = control(&args.endpoints, Some(std::process::id()), &mut faults);
        let work = Work::read(&args.work, &mut faults);
        let log = log(&args.log, &mut faults);
        let warnings = nodes.warnings();
        let build = || {
            let timing = timing?;
            let nodes = nodes.into_settings(&timing);
            let (lock, identity, listen, work, log) = (lock?, identity?, listen?, work?, log?);
            Some(Self {
                lock,
                nodes,
                identity,
                kubernetes,
                app_ready,
                leadership_file,
                listen,
                control,
                timing,
                work,
                log,
                warnings,
            })
        };
        faults.finish(build())
    }
}

impl StatusConfig {
    /// Parses and checks the arguments of `status`.
    ///
    /// # Errors
    /// Every fault that can be seen without a node.
    pub fn from_args(args: &StatusArgs) -> Result<Self, ConfigError> {
        let mut faults = Faults::default();
        let target = target(&args.lock, &args.redis, &args.timing, &mut faults);
        let control = control(&args.endpoints, None, &mut faults);
        let output = faults.keep("--output", value::output(&args.output.output));
        let watch = args.watch;
        let build = || Some(Self { target: target?, control, output: output?, watch });
        faults.finish(build())
    }
}

impl DoctorConfig {
    /// Parses and checks the arguments of `doctor`. A relation of the numbers that is unsafe is refused here, with the
    /// numbers.
    ///
    /// # Errors
    /// Every fault that can be seen without a node.
    pub fn from_args(args: &DoctorArgs) -> Result<Self, ConfigError> {
        let mut faults = Faults::default();
        let target = target(&args.lock, &args.redis, &args.timing, &mut faults);
        let next = nodes::next(&args.next, &mut faults);
        let pod = pod(&args.pod, &mut faults);
        let kubernetes = kubernetes::settings(&args.kubernetes, &pod, &mut faults);
        let measure = duration("--for", Some(&args.measure), &mut faults);
        if measure.is_some_and(|measure| measure > MEASURE_MOST) {
            faults.note("--for", Why::TooLarge);
        }
        let output = faults.keep("--output", value::output(&args.output.output));
        let build = || Some(Self { target: target?, next, kubernetes, measure: measure?, output: output? });
        faults.finish(build())
    }
}

impl InstallConfig {
    /// Checks the arguments of `install`.
    ///
    /// # Errors
    /// When the directory is empty.
    pub fn from_args(args: &InstallArgs) -> Result<Self, ConfigError> {
        let mut faults = Faults::default();
        if args.directory.as_os_str().is_empty() {
            faults.note("DIR", Why::Empty);
        }
        faults.finish(Some(Self { directory: args.directory.clone() }))
    }
}

impl CompletionsConfig {
    /// Checks the arguments of `completions`.
    ///
    /// # Errors
    /// When the shell is not known.
    pub fn from_args(args: &CompletionsArgs) -> Result<Self, ConfigError> {
        let mut faults = Faults::default();
        let what = match args.shell.as_str() {
            "bash" => Ok(Completion::Bash),
            "zsh" => Ok(Completion::Zsh),
            "fish" => Ok(Completion::Fish),
            "man" => Ok(Completion::Man),
            _ => Err(Why::OneOf("bash, zsh, fish, man")),
        };
        let what = faults.keep("SHELL", what);
        faults.finish(what.map(|what| Self { what }))
    }
}

impl WaitConfig {
    /// Parses and checks the arguments of `wait`.
    ///
    /// # Errors
    /// Every fault that can be seen without a node.
    pub fn from_args(args: &WaitArgs) -> Result<Self, ConfigError> {
        let mut faults = Faults::default();
        let target = target(&args.lock, &args.redis, &args.timing, &mut faults);
        let what = faults.keep("--for", value::wait_for(&args.what));
        let timeout = duration("--timeout", Some(&args.timeout), &mut faults);
        let output = faults.keep("--output", value::output(&args.output.output));
        let build = || Some(Self { target: target?, what: what?, timeout: timeout?, output: output? });
        faults.finish(build())
    }
}

impl ResignConfig {
    /// Parses and checks the arguments of `resign`.
    ///
    /// # Errors
    /// Every fault.
    pub fn from_args(args: &ResignArgs) -> Result<Self, ConfigError> {
        let mut faults = Faults::default();
        let control = required_control(&args.endpoints, &mut faults);
        let stand_back = duration("--for", Some(&args.stand_back), &mut faults);
        if stand_back.is_some_and(|stand_back| stand_back > STAND_BACK_MOST) {
            faults.note("--for", Why::TooLarge);
        }
        let build = || Some(Self { control: control?, stand_back: stand_back? });
        faults.finish(build())
    }
}

impl DrainConfig {
    /// Parses and checks the arguments of `drain`.
    ///
    /// # Errors
    /// Every fault.
    pub fn from_args(args: &DrainArgs) -> Result<Self, ConfigError> {
        let mut faults = Faults::default();
        let control = required_control(&args.endpoints, &mut faults);
        let build = || Some(Self { control: control? });
        faults.finish(build())
    }
}

impl DemoConfig {
    /// Parses and checks the arguments of `demo`.
    ///
    /// # Errors
    /// Every fault that can be seen without a node.
    pub fn from_args(args: &DemoArgs) -> Result<Self, ConfigError> {
        let mut faults = Faults::default();
        let nodes = NodeList::read(&args.redis, false, &mut faults);
        let ttl = duration("--ttl", Some(&args.ttl), &mut faults);
        let timing = ttl.and_then(|ttl| faults.keep_all(Timing::new(&Wish::with_ttl(ttl))));
        let build = || {
            let timing = timing?;
            let environment = Environment::of_nodes(&args.redis);
            Some(Self { nodes: nodes.into_settings(&timing), timing, environment, plain: args.plain })
        };
        faults.finish(build())
    }
}

/// What drifts slower than an hour shows is no matter for a lock.
const MEASURE_MOST: Duration = Duration::from_hours(1);

/// A replica that stands back for longer is better scaled away.
const STAND_BACK_MOST: Duration = Duration::from_hours(24);

/// Collects faults while parsing goes on, so that a person mends all of them in one go.
#[derive(Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn note(&mut self, flag: &'static str, why: Why) {
        self.0.push(Fault::Value { flag, why });
    }

    /// The value, or `None` and its fault noted.
    fn keep<T>(&mut self, flag: &'static str, parsed: Result<T, impl Into<Why>>) -> Option<T> {
        parsed.map_err(|why| self.note(flag, why.into())).ok()
    }

    fn keep_all<T>(&mut self, checked: Result<T, Vec<TimingError>>) -> Option<T> {
        checked.map_err(|faults| self.0.extend(faults.into_iter().map(Fault::Timing))).ok()
    }

    fn is_silent_about(&self, flags: &[&str]) -> bool {
        !self.0.iter().any(|fault| matches!(fault, Fault::Value { flag, .. } if flags.contains(flag)))
    }

    /// What was built, if nothing was noted on the way.
    fn finish<T>(self, built: Option<T>) -> Result<T, ConfigError> {
        built.filter(|_| self.0.is_empty()).ok_or(ConfigError(self.0))
    }
}

/// A value that may be left out, and must not be empty.
fn given<'a>(flag: &'static str, text: Option<&'a str>, faults: &mut Faults) -> Option<&'a str> {
    let text = text?;
    if text.is_empty() {
        faults.note(flag, Why::Empty);
        return None;
    }
    Some(text)
}

fn duration(flag: &'static str, text: Option<&str>, faults: &mut Faults) -> Option<Duration> {
    faults.keep(flag, value::duration(text?))
}

fn lock(args: &LockArgs, faults: &mut Faults) -> Option<LockName> {
    const FLAG: &str = "--lock";
    let Some(name) = &args.lock else {
        faults.note(FLAG, Why::Required { variable: "REDLEADER_LOCK" });
        return None;
    };
    let name = given(FLAG, Some(name), faults)?;
    faults.keep(FLAG, LockName::parse(name))
}

fn target(lock_args: &LockArgs, redis: &RedisArgs, numbers: &TimingArgs, faults: &mut Faults) -> Option<Target> {
    let lock = lock(lock_args, faults);
    let nodes = NodeList::read(redis, true, faults);
    let timing = timing(numbers, faults)?;
    Some(Target { lock: lock?, nodes: nodes.into_settings(&timing), timing })
}

fn timing(args: &TimingArgs, faults: &mut Faults) -> Option<Timing> {
    let before = faults.0.len();
    let mut parse = |flag, text: Option<&str>| duration(flag, text, faults);
    let ttl = parse("--ttl", Some(&args.ttl));
    let renew = parse("--renew-every", args.renew_every.as_deref());
    let node_timeout = parse("--node-timeout", args.node_timeout.as_deref());
    let grace = parse("--grace", args.grace.as_deref());
    let quarantine = parse("--quarantine", args.quarantine.as_deref());
    let connect_timeout = parse("--connect-timeout", args.connect_timeout.as_deref());
    let stop_timeout = parse("--stop-timeout", Some(&args.stop_timeout));
    let handover_delay = parse("--handover-delay", Some(&args.handover_delay));
    let margin_permille = faults.keep("--clock-margin", value::permille(&args.clock_margin));
    let max_failed_extends = faults.keep("--max-failed-extends", value::count(&args.max_failed_extends));
    // A number that could not be read would be judged by its default.
    if faults.0.len() > before {
        return None;
    }
    faults.keep_all(Timing::new(&Wish {
        ttl: ttl?,
        margin_permille: margin_permille?,
        renew,
        node_timeout,
        grace,
        quarantine,
        connect_timeout,
        stop_timeout: stop_timeout?,
        handover_delay: handover_delay?,
        max_failed_extends: max_failed_extends?,
    }))
}

fn pod(args: &PodArgs, faults: &mut Faults) -> Pod {
    let mut parse = |flag, text: &Option<String>| faults.keep(flag, value::pod_name(text.as_deref()?));
    Pod {
        name: parse("--pod-name", &args.pod_name),
        namespace: parse("--pod-namespace", &args.pod_namespace),
        uid: parse("--pod-uid", &args.pod_uid),
    }
}

fn identity(args: &IdentityArgs, pod: &Pod, faults: &mut Faults) -> Option<Identity> {
    let identity = match (&args.identity, &pod.name) {
        (Some(identity), _) => given("--identity", Some(identity), faults)?.to_owned(),
        (None, Some(name)) => name.clone(),
        (None, None) => default_identity(),
    };
    faults.keep("--identity", Identity::parse(&identity))
}

/// Who a process is that nobody has named.
pub(crate) fn default_identity() -> String {
    host_identity(&rustix::system::uname().nodename().to_string_lossy(), std::process::id())
}

/// Two processes of one host are two replicas, so the host's name is not enough.
fn host_identity(host: &str, pid: u32) -> String {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    // A host's name has at most 64 bytes on Linux, so the length needs no care.
    let host: String = host.chars().map(|c| if is_allowed(c) { c } else { '-' }).collect();
    format!("{host}-{pid}")
}

/// Where control is taken; `None`: it is off, faulty, or nobody knows where. By default it follows from the port of
/// `--listen`, and where that has none from `number`.
fn control(args: &EndpointArgs, number: Option<u32>, faults: &mut Faults) -> Option<ControlAddress> {
    if let Some(text) = &args.control {
        return faults.keep("--control", value::control(text)).flatten();
    }
    let port = match value::listen(&args.listen) {
        Ok(Listen::At(address)) if address.port() != 0 => Some(address.port().into()),
        Ok(Listen::At(_) | Listen::Off) | Err(_) => None,
    };
    port.or(number).map(|number| ControlAddress::Abstract(format!("redleader-{number}")))
}

/// Where the redleader beside us takes control, for a command that is nothing without it.
fn required_control(args: &EndpointArgs, faults: &mut Faults) -> Option<ControlAddress> {
    if args.control.is_none() {
        faults.keep("--listen", value::listen(&args.listen))?;
    }
    let control = control(args, None, faults);
    if faults.is_silent_about(&["--control"]) && control.is_none() {
        faults.note("--control", Why::NoControlKnown);
    }
    control
}

fn log(args: &LogArgs, faults: &mut Faults) -> Option<LogSettings> {
    let level = match args.log_level.as_str() {
        "error" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => Err(Why::OneOf("error, warn, info, debug, trace")),
    };
    let format = match args.log_format.as_str() {
        "auto" => Ok(LogFormat::Auto),
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(Why::OneOf("auto, text, json")),
    };
    let (level, format) = (faults.keep("--log-level", level), faults.keep("--log-format", format));
    Some(LogSettings { level: level?, format: format? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parse_from};

    const GOOD: &str = "--lock job --redis redis://a,redis://b,redis://c";

    /// `words` come after flags that are in order, and a repeated flag that may not be repeated is not among them.
    fn run(words: &str) -> Result<Config, ConfigError> {
        let words = format!("redleader run {words}");
        let cli = parse_from(words.split_whitespace().map(|word| word.replace("EMPTY", "").into()));
        let Command::Run(args) = cli.map_err(|stop| panic!("{}", stop.text)).unwrap().command else { panic!() };
        Config::from_args(&args)
    }

    fn faults(words: &str) -> Vec<String> {
        run(words).err().map(|error| error.to_string()).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        let config = run(GOOD).unwrap();
        assert_eq!(config.lock.as_str(), "job");
        assert_eq!(config.nodes.len(), 3);
        assert_eq!(config.timing, Timing::new(&Wish::with_ttl(Duration::from_secs(8))).unwrap());
        assert_eq!(config.listen, Listen::At("0.0.0.0:9797".parse().unwrap()));
        assert_eq!(config.control, Some(ControlAddress::Abstract("redleader-9797".to_owned())));
        assert_eq!(config.log, LogSettings { level: LevelFilter::INFO, format: LogFormat::Auto });
        assert_eq!(config.warnings, [""; 0]);
        assert!(config.identity.as_str().ends_with(&format!("-{}", std::process::id())));
    }

    #[test]
    fn each_fault_is_one_line_that_names_its_flag() {
        let no_unit = "has no unit: write it like 500ms, 8s or 1m30s";
        let no_duration = "is no duration: write it like 500ms, 8s or 1m30s";
        for (words, expected) in [
            ("--ttl EMPTY", "--ttl: is empty".to_owned()),
            ("--ttl 8", format!("--ttl: {no_unit}")),
            ("--ttl 0", format!("--ttl: {no_unit}")),
            ("--ttl 0s", "--ttl 0s must be at least 100ms".to_owned()),
            ("--ttl -5s", "--ttl: must not be negative".to_owned()),
            ("--ttl 1000000000000000000", "--ttl: is too large".to_owned()),
            ("--ttl 10^18", format!("--ttl: {no_duration}")),
            ("--renew-every 100h", "--renew-every 100h must be at most 24h".to_owned()),
            ("--node-timeout S3cr3t", format!("--node-timeout: {no_duration}")),
            ("--grace 1e+06", format!("--grace: {no_duration}")),
            ("--quarantine 8s", "--quarantine 8s must be at least --ttl 8s x (1 + 10%) = 8.8s".to_owned()),
            ("--connect-timeout 0s", "--connect-timeout 0s must be at least 1ms".to_owned()),
            ("--handover-delay -1s", "--handover-delay: must not be negative".to_owned()),
            ("--stop-timeout EMPTY", "--stop-timeout: is empty".to_owned()),
            ("--clock-margin 10", "--clock-margin: needs the unit %: write it like 10% or 12.5%".to_owned()),
            ("--clock-margin 60%", "--clock-margin 60% must be more than 0% and at most 50%".to_owned()),
            ("--max-failed-extends many", "--max-failed-extends: must be a whole number, at least 0".to_owned()),
            ("--identity a:b", "--identity: may contain letters, digits, `.`, `_` and `-` only".to_owned()),
            ("--identity EMPTY", "--identity: is empty".to_owned()),
            ("--listen 9797", "--listen: must be ADDRESS:PORT, such as 0.0.0.0:9797 or [::]:9797, or off".to_owned()),
            (
                "--control 0.0.0.0:1",
                "--control: must be on loopback, such as 127.0.0.1:9798: whoever reaches it can depose the leader"
                    .to_owned(),
            ),
            ("--log-level loud", "--log-level: must be one of: error, warn, info, debug, trace".to_owned()),
            ("--log-format xml", "--log-format: must be one of: auto, text, json".to_owned()),
            (
                "--redis-file /nowhere/S3cr3t",
                "--redis-file: the file cannot be read: No such file or directory (os error 2)".to_owned(),
            ),
            (
                "--redis-password-file /nowhere/S3cr3t",
                "--redis-password-file: the file cannot be read: No such file or directory (os error 2)".to_owned(),
            ),
            ("--redis-ca-file /", "--redis-ca-file: the file cannot be read: is a directory".to_owned()),
            ("--redis-cert-file /dev/null", "--redis-cert-file: needs --redis-key-file".to_owned()),
            ("--redis-key-file /dev/null", "--redis-key-file: needs --redis-cert-file".to_owned()),
            ("--redis redis://A:6379/1", "--redis: a:6379 is named more than once: each node has one vote".to_owned()),
            ("--redis http://S3cr3t", "--redis: URL 4 must begin with redis://, rediss:// or unix://".to_owned()),
            ("--redis redis://d,", "--redis: URL 5 is empty".to_owned()),
            (
                "--redis redis://:S3cr3t@d",
                "--redis: URL 4 has a password, and every process can read the command line: put it into \
                 REDLEADER_REDIS, --redis-file or --redis-password-file"
                    .to_owned(),
            ),
            (
                "--pod-name a/b",
                "--pod-name: must have 1 to 253 characters out of a-z, A-Z, 0-9, `.` and `-`".to_owned(),
            ),
        ] {
            assert_eq!(faults(&format!("{GOOD} {words}")), [expected], "{words}");
        }
    }

    #[test]
    fn all_faults_are_told_at_once_and_hold_no_secret() {
        let words = "--ttl S3cr3t --clock-margin S3cr3t --identity S3cr3t: --listen S3cr3t --control S3cr3t \
                     --redis redis://:S3cr3t#@h --redis redis://u:S3cr3t@h --redis-password-file S3cr3t \
                     --log-level S3cr3t --log-format S3cr3t --max-failed-extends S3cr3t --pod-uid S3cr3t_";
        let told = faults(words);
        let flags: Vec<&str> = told.iter().filter_map(|line| line.split(':').next()).collect();
        for flag in [
            "--lock",
            "--redis",
            "--redis-password-file",
            "--ttl",
            "--clock-margin",
            "--max-failed-extends",
            "--pod-uid",
            "--identity",
            "--listen",
            "--control",
            "--log-level",
            "--log-format",
        ] {
            assert!(flags.contains(&flag), "{flag}: {told:?}");
        }
        assert!(!told.join("\n").contains("S3cr3t"), "{told:?}");
        let debug = format!("{:?}", run(words).err().unwrap());
        assert!(!debug.contains("S3cr3t"), "{debug}");
    }

    #[test]
    fn nothing_but_the_lock_and_the_nodes_is_required() {
        assert_eq!(
            faults(""),
            [
                "--lock: is required, here or as REDLEADER_LOCK in the environment",
                "--redis: is required, here or as REDLEADER_REDIS in the environment"
            ]
        );
    }

    #[test]
    fn an_even_or_small_list_of_nodes_is_told_of() {
        let warning = |nodes: usize| {
            let urls: Vec<String> = (0..nodes).map(|n| format!("redis://n{n}")).collect();
            run(&format!("--lock l --redis {}", urls.join(","))).unwrap().warnings.join("; ")
        };
        assert_eq!(
            warning(1),
            "--redis names 1 node: a quorum is 1, so 0 failures are tolerated; 3 nodes would tolerate 1"
        );
        assert_eq!(
            warning(2),
            "--redis names 2 nodes: a quorum is 2, so 0 failures are tolerated; 3 nodes would tolerate 1"
        );
        assert_eq!(
            warning(4),
            "--redis names 4 nodes: a quorum is 3, so 1 failure is tolerated; 5 nodes would tolerate 2"
        );
        assert_eq!((warning(3), warning(5)), (String::new(), String::new()));
        let urls: Vec<String> = (0..16).map(|n| format!("redis://n{n}")).collect();
        assert_eq!(
            faults(&format!("--lock l --redis {}", urls.join(","))),
            ["--redis: names 16 nodes, and at most 15 make sense: 3 tolerate 1 failure, 5 tolerate 2"]
        );
    }

    #[test]
    fn a_file_may_hold_urls_with_passwords() {
        let path = std::env::temp_dir().join(format!("redleader-config-{}", std::process::id()));
        std::fs::write(&path, "# nodes\n\n redis://:S3cr3t%2C@a\nredis://b\nhttp://S3cr3t\n").unwrap();
        let words = format!("--lock l --redis redis://c --redis-file {}", path.display());
        assert_eq!(faults(&words), ["--redis-file: line 5 must begin with redis://, rediss:// or unix://"]);
        std::fs::write(&path, "redis://:S3cr3t%2C@a\r\nredis://b").unwrap();
        let config = run(&words).unwrap();
        let names: Vec<String> = config.nodes.iter().map(|node| node.url.name()).collect();
        assert_eq!(names, ["c:6379", "a:6379", "b:6379"]);
        assert!(config.nodes[1].url.has_password());
        assert!(!format!("{config:?}").contains("S3cr3t"));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn identity_and_control_follow_from_what_is_known() {
        assert_eq!(run(&format!("{GOOD} --pod-name app-0")).unwrap().identity.as_str(), "app-0");
        assert_eq!(run(&format!("{GOOD} --pod-name app-0 --identity me")).unwrap().identity.as_str(), "me");
        assert_eq!(host_identity("my host_1", 7), "my-host_1-7");
        let pid = format!("@redleader-{}", std::process::id());
        for (words, control) in [
            ("--listen 127.0.0.1:8080", "@redleader-8080"),
            ("--listen off", pid.as_str()),
            ("--listen 127.0.0.1:0", pid.as_str()),
            ("--listen off --control @me", "@me"),
            ("--control off", "off"),
        ] {
            let found = run(&format!("{GOOD} {words}")).unwrap().control;
            assert_eq!(found.map_or("off".to_owned(), |control| control.to_string()), control, "{words}");
        }
    }

    #[test]
    fn other_commands_name_their_faults_too() {
        let told = |words: &str| {
            let cli = parse_from(words.split_whitespace().map(Into::into));
            let error = match cli.map_err(|stop| panic!("{}", stop.text)).unwrap().command {
                Command::Status(args) => StatusConfig::from_args(&args).err(),
                Command::Wait(args) => WaitConfig::from_args(&args).err(),
                Command::Resign(args) => ResignConfig::from_args(&args).err(),
                Command::Drain(args) => DrainConfig::from_args(&args).err(),
                Command::Demo(args) => DemoConfig::from_args(&args).err(),
                Command::Doctor(args) => DoctorConfig::from_args(&args).err(),
                Command::Install(args) => InstallConfig::from_args(&args).err(),
                Command::Completions(args) => CompletionsConfig::from_args(&args).err(),
                Command::Run(_) | Command::Tied(_) | Command::Guard(_) => panic!(),
            };
            error.map(|error| error.to_string()).unwrap_or_default()
        };
        let nobody = "--control: must say where the redleader beside us takes control: it is off, or --listen has no \
                      port to follow from";
        for (words, expected) in [
            (format!("redleader status {GOOD}"), ""),
            (format!("redleader status {GOOD} --listen off"), ""),
            (format!("redleader status {GOOD} --output yaml"), "--output: must be one of: text, json"),
            (format!("redleader doctor {GOOD}"), ""),
            (format!("redleader doctor {GOOD} --for 2h"), "--for: is too large"),
            (
                format!("redleader doctor {GOOD} --next redis://a,redis://a"),
                "--next: a:6379 is named more than once: each node has one vote",
            ),
            (
                format!("redleader doctor {GOOD} --next redis://:pw@a"),
                "--next: URL 1 has a password, and every process can read the command line: put it into REDLEADER_REDIS, --redis-file or --redis-password-file",
            ),
            ("redleader completions csh".to_owned(), "SHELL: must be one of: bash, zsh, fish, man"),
            ("redleader install /tmp".to_owned(), ""),
            (format!("redleader wait {GOOD} --for nobody"), "--for: must be one of: leader, quorum"),
            (format!("redleader wait {GOOD} --timeout 5"), "--timeout: has no unit: write it like 500ms, 8s or 1m30s"),
            ("redleader resign".to_owned(), ""),
            ("redleader resign --for -1s".to_owned(), "--for: must not be negative"),
            ("redleader resign --for 25h".to_owned(), "--for: is too large"),
            ("redleader drain --control off".to_owned(), nobody),
            ("redleader drain --listen off".to_owned(), nobody),
            ("redleader drain --control @x --listen off".to_owned(), ""),
            ("redleader demo".to_owned(), ""),
            ("redleader demo --ttl 1ms".to_owned(), "--ttl 1ms must be at least 100ms"),
        ] {
            assert_eq!(told(&words), expected, "{words}");
        }
    }
}
