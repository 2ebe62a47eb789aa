//! The command line: the only place that reads arguments and the environment.
//!
//! Every value is taken as raw text and parsed in [`crate::config`]: clap would echo a value that it refuses, and what
//! is refused may be a URL with its password.

mod environment;

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

pub use self::environment::Environment;

/// Elects one leader among replicas, over a quorum of independent Redis or Valkey nodes.
#[derive(Parser)]
#[command(name = "redleader", version, max_term_width = 110, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Take part in the election, tell who asks, and with CMD: run it only while this replica leads.
    ///
    /// Durations need a unit: 500ms, 8s, 1m30s.
    /// Every flag can be given in the environment instead, under the name shown with it.
    #[command(after_help = EXIT_CODES_OF_RUN)]
    Run(Box<RunArgs>),
    /// Show who leads, and what each node says.
    ///
    /// Asks the nodes without writing anything, and the redleader beside it if one answers.
    /// Ends with 0 only if a leader holds a quorum and every node is well, else with 1.
    #[command(after_help = EXIT_CODES)]
    Status(Box<StatusArgs>),
    /// Examine the nodes, and say what is wrong, what it can cost, and what to do.
    ///
    /// Asks everything that matters for a lock, and watches the nodes' clocks for a while; writes nothing.
    /// Ends with 0 only if all is well, with 1 if there are warnings, with 64 if a node or the whole must not be used
    /// like this.
    #[command(after_help = EXIT_CODES)]
    Doctor(Box<DoctorArgs>),
    /// Wait until there is a leader, or a quorum of nodes that answer.
    ///
    /// For init containers, hooks and scripts: ends with 0 as soon as it is so, with 1 when the time is over.
    #[command(after_help = EXIT_CODES)]
    Wait(Box<WaitArgs>),
    /// Ask the redleader beside us to give up leadership and to stand back for a while.
    Resign(ResignArgs),
    /// Ask the redleader beside us to make no new attempt, and to keep what it holds until it is stopped.
    Drain(DrainArgs),
    /// Copy this binary into a directory, for images that have nothing to copy with.
    Install(InstallArgs),
    /// Print what a shell needs to complete the command line, or the manual page.
    Completions(CompletionsArgs),
    /// Show on real nodes how a leader is elected, replaced and lost, in under a minute.
    ///
    /// Without --redis it starts three nodes of its own, which needs redis-server or valkey-server on the PATH.
    #[command(after_help = EXIT_CODES)]
    Demo(DemoArgs),
    /// Be the guardian of PROGRAM for the wrapper at the other end of the standard input.
    #[command(hide = true, name = GUARD)]
    Guard(GuardArgs),
    /// Become PROGRAM, and be killed when the process that starts this one ends.
    #[command(hide = true, name = TIED)]
    Tied(TiedArgs),
}

const EXIT_CODES: &str = "\
Exit codes:
  0   asked to stop, or all well
  1   it works, and not all is well (status, doctor, wait, demo)
  64  usage or configuration, refused
  70  a part of the process failed";

const EXIT_CODES_OF_RUN: &str = "\
Exit codes:
  0    asked to stop
  64   usage or configuration, refused
  70   a part of the process failed
  75   leadership was lost, with --on-lost exit
  126  CMD cannot be executed
  127  CMD was not found
  else CMD ended by itself: its code, 128 + n if it was signal n";

/// Arguments of `run`.
#[derive(Args)]
pub struct RunArgs {
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
    /// The nodes.
    #[command(flatten)]
    pub redis: RedisArgs,
    /// The numbers.
    #[command(flatten)]
    pub timing: TimingArgs,
    /// Who we are.
    #[command(flatten)]
    pub identity: IdentityArgs,
    /// The app that leadership is for.
    #[command(flatten)]
    pub app: AppArgs,
    /// Our pod.
    #[command(flatten)]
    pub pod: PodArgs,
    /// What is published in Kubernetes.
    #[command(flatten)]
    pub kubernetes: KubernetesArgs,
    /// Where we listen.
    #[command(flatten)]
    pub endpoints: EndpointArgs,
    /// What runs while we lead.
    #[command(flatten)]
    pub work: WorkArgs,
    /// What is logged.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Arguments of `status`.
#[derive(Args)]
#[command(mut_args = hide_what_only_run_uses)]
pub struct StatusArgs {
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
    /// The nodes.
    #[command(flatten)]
    pub redis: RedisArgs,
    /// The numbers.
    #[command(flatten)]
    pub timing: TimingArgs,
    /// Where a redleader listens.
    #[command(flatten)]
    pub endpoints: EndpointArgs,
    /// The form of the answer.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Show it again every second, until it is stopped; in JSON, one line each.
    #[arg(long)]
    pub watch: bool,
}

/// Arguments of `doctor`.
#[derive(Args)]
#[command(mut_args = hide_what_doctor_does_not_tell)]
pub struct DoctorArgs {
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
    /// The nodes.
    #[command(flatten)]
    pub redis: RedisArgs,
    /// The numbers.
    #[command(flatten)]
    pub timing: TimingArgs,
    /// Our pod.
    #[command(flatten)]
    pub pod: PodArgs,
    /// What is published in Kubernetes.
    #[command(flatten)]
    pub kubernetes: KubernetesArgs,
    /// The list of nodes that is planned: whether replicas with it may run beside replicas with --redis.
    ///
    /// Its nodes are not asked; examine them by naming them in --redis.
    #[arg(long, value_name = "URL[,URL]")]
    pub next: Vec<String>,
    /// How long to watch the nodes' clocks: rates are exact only over 30s or more; 0s for a quick look.
    #[arg(long = "for", value_name = "DURATION", default_value = "30s", allow_hyphen_values = true)]
    pub measure: String,
    /// The form of the answer.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Arguments of `install`.
#[derive(Args)]
pub struct InstallArgs {
    /// The directory: the copy is DIR/redleader, and takes the place of what is there.
    #[arg(value_name = "DIR")]
    pub directory: std::path::PathBuf,
}

/// Arguments of `completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// For what: bash, zsh, fish, or man for the manual page.
    #[arg(value_name = "SHELL")]
    pub shell: String,
}

/// Arguments of `wait`.
#[derive(Args)]
#[command(mut_args = hide_what_only_run_uses)]
pub struct WaitArgs {
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
    /// The nodes.
    #[command(flatten)]
    pub redis: RedisArgs,
    /// The numbers.
    #[command(flatten)]
    pub timing: TimingArgs,
    /// What to wait for: leader (one holds a quorum of the nodes), quorum (so many nodes answer).
    #[arg(long = "for", value_name = "WHAT", default_value = "leader")]
    pub what: String,
    /// How long to wait at most.
    #[arg(long, value_name = "DURATION", default_value = "60s", allow_hyphen_values = true)]
    pub timeout: String,
    /// The form of the answer.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Arguments of `resign`.
#[derive(Args)]
pub struct ResignArgs {
    /// For how long it makes no new attempt.
    #[arg(long = "for", value_name = "DURATION", default_value = "30s", allow_hyphen_values = true)]
    pub stand_back: String,
    /// Where a redleader listens.
    #[command(flatten)]
    pub endpoints: EndpointArgs,
}

/// Arguments of `drain`.
#[derive(Args)]
pub struct DrainArgs {
    /// Where a redleader listens.
    #[command(flatten)]
    pub endpoints: EndpointArgs,
}

/// Arguments of `demo`.
#[derive(Args)]
pub struct DemoArgs {
    /// The nodes, where it shall not start its own.
    #[command(flatten)]
    pub redis: RedisArgs,
    /// The ttl of the demonstration's lock: how long a crashed leader blocks the others.
    #[arg(long, value_name = "DURATION", default_value = "2s", allow_hyphen_values = true)]
    pub ttl: String,
    /// Whether NO_COLOR is set, or the terminal cannot do more than lines.
    #[arg(skip)]
    pub plain: bool,
}

/// Arguments of the hidden sub-command that guards a child.
#[derive(Args)]
pub struct GuardArgs {
    /// The program and its arguments.
    #[arg(required = true, last = true)]
    pub program: Vec<OsString>,
}

/// Arguments of the hidden sub-command that ties a process to its parent.
#[derive(Args)]
pub struct TiedArgs {
    /// The process id of the parent.
    pub parent: u32,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub program: Vec<OsString>,
}

/// Which lock.
#[derive(Args)]
#[command(next_help_heading = "Lock")]
pub struct LockArgs {
    /// The lock's name, which is the key on the nodes: 1 to 512 bytes without control characters (required).
    #[arg(long, value_name = "NAME", env = "REDLEADER_LOCK", hide_env_values = true)]
    pub lock: Option<String>,
}

/// Which nodes, and what they want to see.
#[derive(Args)]
#[command(next_help_heading = "Nodes")]
pub struct RedisArgs {
    /// A node: redis://, rediss:// (TLS) or unix://; repeated or with commas (required, here or in --redis-file).
    ///
    /// A comma within a URL is written %2C. A password is refused here, where every process can read it:
    /// give it in the environment, in --redis-file or in --redis-password-file.
    #[arg(long, value_name = "URL[,URL]", env = "REDLEADER_REDIS", hide_env_values = true)]
    pub redis: Vec<String>,
    /// A file with more of them, one URL a line; lines that are empty or begin with # do not count.
    #[arg(long, value_name = "PATH", env = "REDLEADER_REDIS_FILE", hide_env_values = true)]
    pub redis_file: Option<String>,
    /// The user for URLs that name none.
    #[arg(long, value_name = "USER", env = "REDLEADER_REDIS_USERNAME", hide_env_values = true)]
    pub redis_username: Option<String>,
    /// A file with the password for URLs that have none, read at each connect.
    ///
    /// The password itself can be given in REDLEADER_REDIS_PASSWORD, and never as an argument.
    #[arg(long, value_name = "PATH", env = "REDLEADER_REDIS_PASSWORD_FILE", hide_env_values = true)]
    pub redis_password_file: Option<String>,
    /// A file with the authorities that rediss:// trusts, in PEM (default: those of the system).
    #[arg(long, value_name = "PATH", env = "REDLEADER_REDIS_CA_FILE", hide_env_values = true)]
    pub redis_ca_file: Option<String>,
    /// A file with our certificate for rediss://, in PEM; needs --redis-key-file.
    #[arg(long, value_name = "PATH", env = "REDLEADER_REDIS_CERT_FILE", hide_env_values = true)]
    pub redis_cert_file: Option<String>,
    /// A file with the key of --redis-cert-file, in PEM.
    #[arg(long, value_name = "PATH", env = "REDLEADER_REDIS_KEY_FILE", hide_env_values = true)]
    pub redis_key_file: Option<String>,
    /// REDLEADER_REDIS_PASSWORD, raw.
    #[arg(skip)]
    pub password: Option<OsString>,
    /// Whether --redis came from the command line, where it must have no password.
    #[arg(skip)]
    pub redis_is_on_argv: bool,
}

/// The numbers of an election.
#[derive(Args)]
#[command(next_help_heading = "Timing (a part of the lock: the same for all its replicas)")]
pub struct TimingArgs {
    /// When a key expires on the nodes: how long a crashed leader blocks the others; at least 100ms.
    #[arg(long, value_name = "DURATION", default_value = "8s")]
    #[arg(env = "REDLEADER_TTL", hide_env_values = true, allow_hyphen_values = true)]
    pub ttl: String,
    /// How much the rates of clocks may differ, in %, at most 50%.
    #[arg(long, value_name = "PERCENT", default_value = "10%")]
    #[arg(env = "REDLEADER_CLOCK_MARGIN", hide_env_values = true, allow_hyphen_values = true)]
    pub clock_margin: String,
    /// How often the leader extends its lease on every node (default: ttl/4).
    #[arg(long, value_name = "DURATION")]
    #[arg(env = "REDLEADER_RENEW_EVERY", hide_env_values = true, allow_hyphen_values = true)]
    pub renew_every: Option<String>,
    /// How long one node may take to answer (default: ttl/20).
    #[arg(long, value_name = "DURATION")]
    #[arg(env = "REDLEADER_NODE_TIMEOUT", hide_env_values = true, allow_hyphen_values = true)]
    pub node_timeout: Option<String>,
    /// How long before the deadline the work has to stop when renewals fail (default: ttl/8).
    #[arg(long, value_name = "DURATION")]
    #[arg(env = "REDLEADER_GRACE", hide_env_values = true, allow_hyphen_values = true)]
    pub grace: Option<String>,
    /// How long a node that is new to the lock, or was restarted, has no vote (default: ttl x (1 + clock margin)).
    #[arg(long, value_name = "DURATION")]
    #[arg(env = "REDLEADER_QUARANTINE", hide_env_values = true, allow_hyphen_values = true)]
    pub quarantine: Option<String>,
    /// How long name, TCP, TLS and AUTH may take together (default: 1s or ttl/4, the longer).
    #[arg(long, value_name = "DURATION")]
    #[arg(env = "REDLEADER_CONNECT_TIMEOUT", hide_env_values = true, allow_hyphen_values = true)]
    pub connect_timeout: Option<String>,
    /// Step down after so many failed rounds of extends even if time is left; 0 is never.
    #[arg(long, value_name = "N", default_value = "0")]
    #[arg(env = "REDLEADER_MAX_FAILED_EXTENDS", hide_env_values = true, allow_hyphen_values = true)]
    pub max_failed_extends: String,
    /// On resign, or when the app is sick, how long leadership is kept after telling that it ends, so that all who poll have seen it.
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    #[arg(env = "REDLEADER_HANDOVER_DELAY", hide_env_values = true, allow_hyphen_values = true)]
    pub handover_delay: String,
    /// How long the guarded work may take to stop when we step down by our own will.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    #[arg(env = "REDLEADER_STOP_TIMEOUT", hide_env_values = true, allow_hyphen_values = true)]
    pub stop_timeout: String,
}

/// Who we are.
#[derive(Args)]
#[command(next_help_heading = "Identity")]
pub struct IdentityArgs {
    /// Who we are, for people: letters, digits, `.`, `_`, `-` (default: the pod's name, else HOST-PID).
    #[arg(long, value_name = "ID", env = "REDLEADER_IDENTITY", hide_env_values = true)]
    pub identity: Option<String>,
}

/// Our pod.
#[derive(Args)]
#[command(next_help_heading = "Kubernetes")]
pub struct PodArgs {
    /// Our pod's name (default: POD_NAME).
    #[arg(long, value_name = "NAME", env = "REDLEADER_POD_NAME", hide_env_values = true)]
    pub pod_name: Option<String>,
    /// Our pod's namespace (default: POD_NAMESPACE).
    #[arg(long, value_name = "NAME", env = "REDLEADER_POD_NAMESPACE", hide_env_values = true)]
    pub pod_namespace: Option<String>,
    /// Our pod's uid (default: POD_UID).
    #[arg(long, value_name = "UID", env = "REDLEADER_POD_UID", hide_env_values = true)]
    pub pod_uid: Option<String>,
}

/// The app that leadership is for.
#[derive(Args)]
#[command(next_help_heading = "App")]
pub struct AppArgs {
    /// Take part only while the app is healthy: http://… (200 to 299), file:PATH (is there) or exec:COMMAND (ends with 0).
    ///
    /// A command is run without a shell, and gets nothing of our environment that begins with REDLEADER_.
    /// An app that only runs on the leader cannot be asked before it leads: ask for what it needs instead.
    #[arg(long, value_name = "CHECK", env = "REDLEADER_APP_READY", hide_env_values = true)]
    pub app_ready: Option<String>,
    /// How often the app is asked, and how long its answer may take.
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    #[arg(env = "REDLEADER_APP_READY_EVERY", hide_env_values = true, allow_hyphen_values = true)]
    pub app_ready_every: String,
    /// After so many failed checks in a row the leader steps down.
    #[arg(long, value_name = "N", default_value = "3")]
    #[arg(env = "REDLEADER_APP_READY_FAILURES", hide_env_values = true, allow_hyphen_values = true)]
    pub app_ready_failures: String,
    /// If nobody has led for this long, all apps are sick, and one with a sick app leads; at least the ttl.
    ///
    /// Such a leader makes way after each of these times, so that one whose app has recovered can win.
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    #[arg(env = "REDLEADER_APP_GRACE", hide_env_values = true, allow_hyphen_values = true)]
    pub app_grace: String,
    /// Keep the JSON of /leader in this file: replaced as a whole at each change and each extend, removed at the end.
    ///
    /// A reader has to compare validUntilBootMs with CLOCK_BOOTTIME: the file may have been left behind by a crash.
    #[arg(long, value_name = "PATH", env = "REDLEADER_LEADERSHIP_FILE", hide_env_values = true)]
    pub leadership_file: Option<String>,
}

/// What is published in Kubernetes.
#[derive(Args)]
#[command(next_help_heading = "Kubernetes")]
pub struct KubernetesArgs {
    /// Publish the label redleader.dev/role (leader or standby) and the annotation redleader.dev/token on our pod.
    ///
    /// This and all below need --pod-name, --pod-namespace, --pod-uid, and rights: docs/kubernetes-publishing.md.
    #[arg(long, value_name = "on|off", env = "REDLEADER_KUBE_LABEL", hide_env_values = true)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on", default_value = "off")]
    pub kube_label: String,
    /// Publish the pod condition redleader.dev/leader, for readinessGates.
    #[arg(long, value_name = "on|off", env = "REDLEADER_KUBE_CONDITION", hide_env_values = true)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on", default_value = "off")]
    pub kube_condition: String,
    /// Tell beginnings and ends of leadership as Events on our pod.
    #[arg(long, value_name = "on|off", env = "REDLEADER_KUBE_EVENTS", hide_env_values = true)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on", default_value = "off")]
    pub kube_events: String,
    /// Publish the deletion cost 1000 on the leader's pod, so that it is the last to go when a ReplicaSet shrinks.
    #[arg(long, value_name = "on|off", env = "REDLEADER_KUBE_DELETION_COST", hide_env_values = true)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on", default_value = "off")]
    pub kube_deletion_cost: String,
    /// Mirror the lock in the Lease of this name, which is made when it is not there (default: off).
    #[arg(long, value_name = "NAME", env = "REDLEADER_KUBE_LEASE", hide_env_values = true)]
    pub kube_lease: Option<String>,
    /// The way to the Kubernetes API: an HTTP proxy, without user or password (default: off).
    ///
    /// HTTPS_PROXY and its like in the environment are never obeyed.
    #[arg(long, value_name = "URL", env = "REDLEADER_KUBE_PROXY", hide_env_values = true)]
    pub kube_proxy: Option<String>,
}

/// Where a redleader listens.
#[derive(Args)]
#[command(next_help_heading = "Endpoints")]
pub struct EndpointArgs {
    /// Where probes, leader and metrics are served.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9797")]
    #[arg(help = "Where probes, leader and metrics are served, e.g. [::]:9797 for IPv6 as well, or off")]
    #[arg(env = "REDLEADER_LISTEN", hide_env_values = true)]
    pub listen: String,
    /// Where resign and drain are taken: @NAME (abstract unix socket), unix:PATH, 127.0.0.1:PORT or off
    /// (default: @redleader-PORT, the port of --listen).
    #[arg(long, value_name = "ADDRESS", env = "REDLEADER_CONTROL", hide_env_values = true)]
    pub control: Option<String>,
}

/// What runs while we lead.
#[derive(Args)]
#[command(next_help_heading = "Work")]
pub struct WorkArgs {
    /// A program that runs only while this replica leads, with its arguments; no shell is between.
    #[arg(last = true, value_name = "CMD", num_args = 0..)]
    pub command: Vec<OsString>,
    /// When CMD ends by itself: exit (release the lock, and end with its code), restart (keep the lock, and start it
    /// again after 1s, 2s, 4s and so on up to 1m), release (release the lock, and campaign again after such a pause).
    #[arg(long, value_name = "POLICY", default_value = "exit", env = "REDLEADER_ON_EXIT", hide_env_values = true)]
    pub on_exit: String,
    /// When leadership is lost: stop (CMD; then wait to be elected again), signal=SIG (the same, with SIG in place of
    /// the stop signal), exit (stop CMD, and end with code 75).
    #[arg(long, value_name = "POLICY", default_value = "stop", env = "REDLEADER_ON_LOST", hide_env_values = true)]
    pub on_lost: String,
    /// What CMD and its group get when they are to stop; KILL follows in time.
    #[arg(long, value_name = "SIGNAL", default_value = "TERM", env = "REDLEADER_STOP_SIGNAL", hide_env_values = true)]
    pub stop_signal: String,
    /// A command that runs when this replica is elected, before CMD starts; if it fails, we step down.
    ///
    /// It is split into words as a shell splits them, and run without a shell.
    #[arg(long, value_name = "COMMAND", env = "REDLEADER_ON_ELECTED", hide_env_values = true)]
    pub on_elected: Option<String>,
    /// A command that runs after CMD has stopped, before the lock is released.
    #[arg(long, value_name = "COMMAND", env = "REDLEADER_ON_STEPPED_DOWN", hide_env_values = true)]
    pub on_stepped_down: Option<String>,
    /// How long each of these commands may take (default: grace/2).
    #[arg(long, value_name = "DURATION")]
    #[arg(env = "REDLEADER_HOOK_TIMEOUT", hide_env_values = true, allow_hyphen_values = true)]
    pub hook_timeout: Option<String>,
    /// The PATH that commands are looked for in.
    #[arg(skip)]
    pub search_path: Option<OsString>,
}

/// What is logged.
#[derive(Args)]
#[command(next_help_heading = "Log")]
pub struct LogArgs {
    /// How much is logged: error, warn, info, debug, trace.
    #[arg(long, value_name = "LEVEL", default_value = "info", env = "REDLEADER_LOG_LEVEL", hide_env_values = true)]
    pub log_level: String,
    /// How: text, json, or auto (json unless stderr is a terminal).
    #[arg(long, value_name = "FORMAT", default_value = "auto", env = "REDLEADER_LOG_FORMAT", hide_env_values = true)]
    pub log_format: String,
}

/// The form of an answer.
#[derive(Args)]
pub struct OutputArgs {
    /// How to say it: text, json.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub output: String,
}

/// The hidden sub-command that ties a process to the life of the one that started it.
pub const TIED: &str = "tied";
/// The hidden sub-command that guards a child.
pub const GUARD: &str = "guard";

/// Where the downward API of Kubernetes is told to put what a pod is called.
const POD_VARIABLES: [&str; 3] = ["POD_NAME", "POD_NAMESPACE", "POD_UID"];
/// The password itself, for URLs that have none: the only variable without a flag.
const PASSWORD_VARIABLE: &str = "REDLEADER_REDIS_PASSWORD";

/// Why there are no arguments to work with: what to print, and how to end.
#[derive(Debug)]
pub struct Stop {
    /// What to print.
    pub text: String,
    /// 0 for `--help` and `--version`, which print to stdout; 64 for faults, which print to stderr.
    pub code: u8,
}

/// Reads the arguments and the environment of this process.
///
/// # Errors
/// When there is nothing to run: help was asked for, or an argument is not known. What is not known is not echoed
/// unless it has the form of a flag.
pub fn parse() -> Result<Cli, Stop> {
    parse_from(std::env::args_os())
}

pub(crate) fn parse_from(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, Stop> {
    let matches = Cli::command().try_get_matches_from(arguments).map_err(stop)?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(stop)?;
    if let Some((_, matches)) = matches.subcommand() {
        read_what_clap_cannot(&mut cli.command, matches);
    }
    Ok(cli)
}

fn read_what_clap_cannot(command: &mut Command, matches: &ArgMatches) {
    let redis = match command {
        Command::Run(args) => {
            args.pod.read_variables();
            args.work.search_path = std::env::var_os("PATH");
            &mut args.redis
        }
        Command::Status(args) => &mut args.redis,
        Command::Doctor(args) => {
            args.pod.read_variables();
            &mut args.redis
        }
        Command::Wait(args) => &mut args.redis,
        Command::Demo(args) => {
            let is_given = |name| std::env::var_os(name).filter(|value| !value.is_empty());
            args.plain = is_given("NO_COLOR").is_some() || is_given("TERM").is_some_and(|terminal| terminal == "dumb");
            &mut args.redis
        }
        Command::Resign(_) | Command::Drain(_) | Command::Install(_) | Command::Completions(_) | Command::Tied(_) => {
            return;
        }
        Command::Guard(_) => return,
    };
    redis.password = std::env::var_os(PASSWORD_VARIABLE);
    redis.redis_is_on_argv = matches.value_source("redis") == Some(ValueSource::CommandLine);
}

impl PodArgs {
    /// What no flag says, from where manifests put it.
    fn read_variables(&mut self) {
        for (value, variable) in
            [&mut self.pod_name, &mut self.pod_namespace, &mut self.pod_uid].into_iter().zip(POD_VARIABLES)
        {
            if value.is_none() {
                // An empty variable is what a manifest without a value leaves behind: as good as none.
                *value = std::env::var_os(variable).and_then(|v| v.into_string().ok()).filter(|v| !v.is_empty());
            }
        }
    }
}

/// Numbers that the other commands check as `run` does, so that one environment suits all of them.
fn hide_what_only_run_uses(arg: clap::Arg) -> clap::Arg {
    let only_run = ["renew_every", "grace", "max_failed_extends", "handover_delay", "stop_timeout"];
    let hide = only_run.contains(&arg.get_id().as_str());
    if hide { arg.hide(true) } else { arg }
}

/// As [`hide_what_only_run_uses`], for the command that tells the relations of the others.
fn hide_what_doctor_does_not_tell(arg: clap::Arg) -> clap::Arg {
    let not_told = ["max_failed_extends", "handover_delay", "stop_timeout"];
    let hide = not_told.contains(&arg.get_id().as_str());
    if hide { arg.hide(true) } else { arg }
}

const EXIT_USAGE: u8 = 64;

fn stop(mut error: clap::Error) -> Stop {
    let code = if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) { 0 } else { EXIT_USAGE };
    // It repeats what was given, and would have it taken for a part of CMD.
    error.remove(ContextKind::Suggested);
    for kind in [ContextKind::InvalidArg, ContextKind::InvalidValue, ContextKind::InvalidSubcommand] {
        if let Some(ContextValue::String(given)) = error.get(kind)
            && !may_be_echoed(kind, given)
        {
            error.insert(kind, ContextValue::String(NOT_SHOWN.to_owned()));
        }
    }
    Stop { text: error.render().to_string(), code }
}

const NOT_SHOWN: &str = "(not shown: it may hold a secret)";

/// What has the form of a flag or sub-command is worth showing to who mistyped it; anything else may be a URL.
fn may_be_echoed(kind: ContextKind, given: &str) -> bool {
    let is_flag = given.starts_with("--");
    // clap's own notation for a flag with its value, such as `--ttl <DURATION>`.
    let name = given.split(' ').next().unwrap_or_default().trim_start_matches("--");
    (is_flag || kind == ContextKind::InvalidSubcommand) && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "S3cr3t";

    fn parse_words(words: &str) -> Result<Cli, Stop> {
        parse_from(std::iter::once("redleader").chain(words.split_whitespace()).map(OsString::from))
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_of_run_has_its_variable_and_hides_its_value() {
        let command = Cli::command();
        let run = command.find_subcommand("run").unwrap();
        let is_own = |arg: &clap::Arg| matches!(arg.get_id().as_str(), "help" | "version");
        for arg in run.get_arguments().filter(|arg| !is_own(arg) && !arg.is_positional()) {
            let flag = arg.get_long().unwrap();
            let variable = format!("REDLEADER_{}", flag.replace('-', "_").to_uppercase());
            assert_eq!(arg.get_env().unwrap().to_str(), Some(variable.as_str()), "{flag}");
            assert!(arg.is_hide_env_values_set(), "{flag}");
            assert!(arg.get_help().is_some(), "{flag}");
        }
    }

    #[test]
    fn what_is_mistyped_is_named_and_what_may_be_secret_is_not() {
        for (words, shown) in [
            ("", "Usage"),
            ("run --redsi=redis://:S3cr3t@h", "--redsi"),
            ("run --redis redis://a redis://:S3cr3t@b", NOT_SHOWN),
            ("run --redis://:S3cr3t@b", NOT_SHOWN),
            ("run -redis://:S3cr3t@b", NOT_SHOWN),
            ("run redis://:S3cr3t@b", NOT_SHOWN),
            ("redis://:S3cr3t@b", NOT_SHOWN),
            ("stats", "stats"),
            ("run --ttl 1s --ttl S3cr3t", "--ttl"),
            ("run --redis", "--redis"),
            ("status --wach", "--wach"),
        ] {
            let stop = parse_words(words).err().unwrap();
            assert_eq!(stop.code, 64, "{words}");
            assert!(stop.text.contains(shown), "{words}: {}", stop.text);
            assert!(!stop.text.contains(SECRET), "{words}: {}", stop.text);
        }
    }

    #[test]
    fn help_and_version_are_no_faults() {
        for words in [
            "--help",
            "run --help",
            "status --help",
            "wait --help",
            "doctor --help",
            "resign -h",
            "demo --help",
            "--version",
        ] {
            assert_eq!(parse_words(words).err().unwrap().code, 0, "{words}");
        }
        let help = parse_words("run --help").err().unwrap().text;
        for default in ["8s", "10%", "ttl/4", "ttl/20", "ttl/8", "1s or ttl/4", "10s", "0.0.0.0:9797", "info", "auto"] {
            assert!(help.contains(&format!("default: {default}")), "{default} in {help}");
        }
        let help = parse_words("status --help").err().unwrap().text;
        assert!(!help.contains("--stop-timeout"), "{help}");
        // Its relations are what doctor tells, and so are its numbers to try.
        let help = parse_words("doctor --help").err().unwrap().text;
        assert!(
            help.contains("--renew-every") && help.contains("--grace") && !help.contains("--stop-timeout"),
            "{help}"
        );
    }

    #[test]
    fn a_url_given_as_an_argument_is_known_to_be_one() {
        for (words, expected) in [("run --redis redis://a", true), ("run --lock l", false)] {
            let Command::Run(args) = parse_words(words).ok().unwrap().command else { panic!("{words}") };
            assert_eq!(args.redis.redis_is_on_argv, expected);
        }
    }

    #[test]
    fn a_negative_duration_reaches_the_parser_that_names_its_flag() {
        let Command::Run(args) = parse_words("run --ttl -5s").ok().unwrap().command else { panic!() };
        assert_eq!(args.timing.ttl, "-5s");
    }
}
