//! The guardian: a process of its own between wrapper and child, which owns the deadline.
//!
//! It has one thread, so that the child's parent death signal cannot come while it lives. It knows nothing of locks: it
//! is told times, and keeps them.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitStatus, getpid, set_child_subreaper};
use rustix::thread::set_name;
use tokio::signal::unix::{Signal as Arrivals, SignalKind, signal};
use tracing::{error, warn};

use super::channel::Channel;
use super::descendants;
use super::forward::FORWARDED;
use super::ladder::Rungs;
use super::message::{Order, Report, Setup, Status, signal_of};
use crate::cli::{GuardArgs, TIED};
use crate::clock::{self, BootTimer, Moment};
use crate::log::{self, LogFormat, LogSettings};

/// How often what does not die at once is killed again: a process that was forked in between is found then.
const AGAIN: Duration = Duration::from_millis(5);
/// The same after [`SOON`], for what cannot die because the kernel holds it.
const LATER: Duration = Duration::from_millis(200);
const SOON: Duration = Duration::from_secs(1);

/// What is being done about the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// It got the stop signal, and is killed then at the latest.
    Stopping {
        kill_at: Moment,
    },
    Killing {
        since: Moment,
    },
}

/// Is the guardian until nothing is left of the child. Returns only if it cannot be one.
#[must_use]
pub fn guard(args: &GuardArgs) -> io::Error {
    match be_guardian(args) {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

fn be_guardian(args: &GuardArgs) -> io::Result<Infallible> {
    // So that it is told from the wrapper in a list of processes.
    set_name(c"redleader-guard")?;
    set_child_subreaper(Some(getpid()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut ended = signal(SignalKind::child())?;
        // Whoever signals everything of a name, or of a control group, means the wrapper, which knows what to do.
        let _ignored = ignore()?;
        let channel = Channel::new(io::stdin().as_fd().try_clone_to_owned()?)?;
        let Some((setup, stdin)) = channel.receive_with::<Setup>().await? else {
            return Err(io::Error::other("the wrapper is gone"));
        };
        let format = if setup.is_log_json { LogFormat::Json } else { LogFormat::Text };
        let level = setup.log_level.parse().map_err(io::Error::other)?;
        log::start(LogSettings { level, format }).map_err(io::Error::other)?;
        let mut guard = Guard::start(args, setup, stdin, channel)?;
        guard.watch(&mut ended).await?;
        // Its end is noticed by the end of the channel.
        #[expect(clippy::exit, reason = "the guardian has nobody to return to")]
        std::process::exit(0);
    })
}

fn ignore() -> io::Result<Vec<Arrivals>> {
    let all = FORWARDED.into_iter().chain([Signal::TERM, Signal::INT]);
    all.map(|ignored| signal(SignalKind::from_raw(ignored.as_raw()))).collect()
}

struct Guard {
    channel: Channel,
    timer: BootTimer,
    setup: Setup,
    /// The child, which leads a group of the same number.
    child: Pid,
    is_reaped: bool,
    rungs: Rungs,
    phase: Phase,
    /// Nobody is there any more to give or take a word.
    is_alone: bool,
}

impl Guard {
    fn start(args: &GuardArgs, setup: Setup, stdin: OwnedFd, channel: Channel) -> io::Result<Self> {
        let rungs = Rungs::from(setup.times);
        let timer = BootTimer::new()?;
        let started =
            if clock::now() < rungs.stop_at { spawn(args, stdin) } else { Err(io::ErrorKind::TimedOut.into()) };
        let child = match started {
            Ok(child) => child,
            Err(why) => {
                channel.send(&Report::Failed(why.to_string()))?;
                return Err(why);
            }
        };
        let told = channel.send(&Report::Started(child.as_raw_nonzero().get()));
        let is_alone = told.is_err();
        Ok(Self { channel, timer, setup, child, is_reaped: false, rungs, phase: Phase::Running, is_alone })
    }

    /// Until nothing is left.
    async fn watch(&mut self, ended: &mut Arrivals) -> io::Result<()> {
        loop {
            self.reap();
            if self.is_reaped && !descendants::has_children() {
                self.tell(&Report::Gone);
                return Ok(());
            }
            self.climb(clock::now());
            self.timer.arm(self.wakes_at(clock::now()))?;
            tokio::select! {
                biased;
                _ = ended.recv() => {}
                order = self.channel.receive::<Order>(), if !self.is_alone => match order? {
                    Some(order) => self.obey(order),
                    None => self.is_alone = true,
                },
                fired = self.timer.fired() => fired?,
            }
        }
    }

    fn reap(&mut self) {
        while let Some((pid, status)) = descendants::reap() {
            if pid != self.child {
                continue;
            }
            self.is_reaped = true;
            self.tell(&Report::Ended(status_of(status)));
            if self.phase == Phase::Running && descendants::has_children() {
                // What it left behind in the background is no work that anybody asked for.
                self.stop(self.setup.stop_signal, clock::now() + Duration::from_micros(self.setup.stop_timeout_us));
            }
        }
    }

    fn obey(&mut self, order: Order) {
        self.tell(&Report::Heard);
        match order {
            Order::Until(times) => self.rungs = times.into(),
            Order::Stop { signal, kill_at } => self.stop(signal, Moment::from_micros(kill_at)),
            Order::Forward(signal) if !self.is_reaped => {
                let _ = rustix::process::kill_process(self.child, signal_of(signal));
            }
            Order::Forward(_) => {}
        }
    }

    fn stop(&mut self, signal: i32, kill_at: Moment) {
        match &mut self.phase {
            Phase::Running => {
                descendants::signal_all(Some(self.child), !self.is_reaped, signal_of(signal));
                self.phase = Phase::Stopping { kill_at };
            }
            Phase::Stopping { kill_at: current } => *current = kill_at.min(*current),
            Phase::Killing { .. } => {}
        }
    }

    /// Does what is due: the one place that looks at the times.
    fn climb(&mut self, now: Moment) {
        if self.is_alone && !matches!(self.phase, Phase::Killing { .. }) {
            warn!(pid = self.child.as_raw_nonzero().get(), "the wrapper is gone: killing what it started");
            self.phase = Phase::Killing { since: now };
        }
        if self.phase == Phase::Running && self.rungs.stop_at <= now {
            warn!(boot_ms = now.as_millis(), "no more time was given: stopping what runs");
            self.tell(&Report::Late);
            if self.rungs.kill_at <= now {
                self.phase = Phase::Killing { since: now };
            } else {
                self.stop(self.setup.lost_signal, self.rungs.kill_at);
            }
        }
        if let Phase::Stopping { kill_at } = self.phase
            && kill_at.min(self.rungs.kill_at) <= now
        {
            self.phase = Phase::Killing { since: now };
        }
        if let Phase::Killing { .. } = self.phase {
            descendants::signal_all(Some(self.child), !self.is_reaped, Signal::KILL);
        }
    }

    fn wakes_at(&self, now: Moment) -> Moment {
        match self.phase {
            Phase::Running => self.rungs.stop_at,
            Phase::Stopping { kill_at } => kill_at.min(self.rungs.kill_at),
            Phase::Killing { since } if now < since + SOON => now + AGAIN,
            Phase::Killing { .. } => now + LATER,
        }
    }

    fn tell(&mut self, report: &Report) {
        if !self.is_alone && self.channel.send(report).is_err() {
            self.is_alone = true;
        }
    }
}

/// Starts the program through our own binary, which ties it to this process before it becomes the program. Its group is
/// made before it runs, so that no signal for the group can go anywhere else.
fn spawn(args: &GuardArgs, stdin: OwnedFd) -> io::Result<Pid> {
    let parent = OsString::from(std::process::id().to_string());
    let words = [OsString::from(TIED), parent].into_iter().chain(args.program.iter().cloned());
    let mut command = Command::new("/proc/self/exe");
    command.args(words).process_group(0).stdin(Stdio::from(File::from(stdin)));
    let child = command.spawn().inspect_err(|why| error!(reason = %why, "the child cannot be started"))?;
    // It is reaped with all others.
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| io::Error::other("a process without a number"))
}

fn status_of(status: WaitStatus) -> Status {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Status::Code(code),
        (None, Some(signal)) => Status::Signal(signal),
        (None, None) => Status::Code(i32::from(u8::MAX)),
    }
}
