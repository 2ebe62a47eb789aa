//! The wrapper's end of a guardian: starts it, gives it orders, hears its reports, and takes its place when it dies.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tracing::error;

use super::channel::Channel;
use super::descendants;
use super::ladder::{Ladder, Rungs};
use super::message::{Order, Report, Setup};
use super::program::Program;
use crate::cli::{Environment, GUARD};
use crate::clock::{self, BootTimer, Moment};

/// How often what a dead guardian left behind is killed again, until nothing is left.
const AGAIN: Duration = Duration::from_millis(5);

/// The child's group, for whoever ends this process in a hurry; 0: there is none.
static GROUP: AtomicI32 = AtomicI32::new(0);

/// Kills the child's group, if there is one: the last act of a process that must not go on. The guardian does the rest.
pub fn kill_group_at_once() {
    if let Some(group) = Pid::from_raw(GROUP.swap(0, Ordering::SeqCst)) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// A program with its guardian. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Guarded {
    guardian: Child,
    channel: Channel,
    timer: BootTimer,
    rungs: Rungs,
    /// It was told to stop, and to kill then.
    stop: Option<Moment>,
    /// When the orders were given that the guardian has not taken yet.
    unheard: VecDeque<Moment>,
    /// The guardian ended without a word, or hangs: it is on us to kill what it left.
    is_lost: bool,
    is_gone: bool,
}

impl Guarded {
    /// Starts a guardian, which starts the program with this standard input.
    pub(super) fn start(
        program: &Program,
        stdin: BorrowedFd<'_>,
        environment: &Environment,
        setup: &Setup,
    ) -> io::Result<Self> {
        let (channel, theirs) = Channel::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("redleader").arg(GUARD).arg("--").arg(&program.path).args(&program.args);
        // A group of its own, so that a terminal's Ctrl-C reaches the wrapper alone.
        command.process_group(0).stdin(Stdio::from(File::from(theirs)));
        environment.apply(&mut command);
        let guardian = command.spawn()?;
        // The command holds the other end until here.
        drop(command);
        let timer = BootTimer::new()?;
        let guarded = Self {
            guardian,
            channel,
            timer,
            rungs: setup.times.into(),
            stop: None,
            unheard: VecDeque::new(),
            is_lost: false,
            is_gone: false,
        };
        guarded.channel.send_with(setup, stdin)?;
        Ok(guarded)
    }

    /// Tells new times.
    pub(super) fn until(&mut self, rungs: Rungs) {
        self.rungs = rungs;
        self.order(Order::Until(rungs.into()));
    }

    /// The times as last told.
    pub(super) const fn rungs(&self) -> Rungs {
        self.rungs
    }

    /// From when on a guardian that has said nothing is taken for hung: it did not kill in time, or takes no orders.
    pub(super) fn hung_at(&self, ladder: &Ladder) -> Moment {
        let kill_at = self.stop.map_or(self.rungs.kill_at, |stop| stop.min(self.rungs.kill_at));
        let heard_by = self.unheard.front().map(|given| *given + ladder.hearing());
        (kill_at + ladder.slack()).min(heard_by.unwrap_or(kill_at + ladder.slack()))
    }

    /// Sends `signal` to all of it now, and KILL at `kill_at` at the latest.
    pub(super) fn stop(&mut self, signal: Signal, kill_at: Moment) {
        self.stop = Some(kill_at);
        self.order(Order::Stop { signal: signal.as_raw(), kill_at: kill_at.as_micros() });
    }

    /// Passes a signal on to the program.
    pub(super) fn forward(&mut self, signal: Signal) {
        self.order(Order::Forward(signal.as_raw()));
    }

    /// The guardian did not do in time what it is for: from here on its work is ours.
    pub(super) fn give_up_on_guardian(&mut self) {
        if !self.is_lost && !self.is_gone {
            error!(pid = self.guardian.id(), "the guardian is late: killing it and what it guards");
            self.is_lost = true;
        }
    }

    /// The next report; `None`: the guardian is lost, and [`Guarded::finish_alone`] has to do its work. May be dropped
    /// while it waits.
    pub(super) async fn report(&mut self) -> Option<Report> {
        if self.is_lost {
            return None;
        }
        match self.channel.receive().await {
            Ok(Some(report)) => {
                self.note(&report);
                return Some(report);
            }
            Ok(None) => error!(pid = self.guardian.id(), "the guardian is gone: killing what it left"),
            Err(why) => error!(pid = self.guardian.id(), reason = %why, "the guardian cannot be understood"),
        }
        self.is_lost = true;
        None
    }

    fn note(&mut self, report: &Report) {
        match report {
            Report::Heard => drop(self.unheard.pop_front()),
            Report::Started(group) => GROUP.store(*group, Ordering::SeqCst),
            Report::Failed(_) | Report::Gone => {
                self.is_gone = true;
                GROUP.store(0, Ordering::SeqCst);
                // It ends by itself after this. If it takes its time it is reaped with the orphans.
                let _ = self.guardian.try_wait();
            }
            // Its number may soon be another's, and whatever is left of its group is the guardian's.
            Report::Ended(_) => GROUP.store(0, Ordering::SeqCst),
            Report::Late => {}
        }
    }

    /// Kills guardian and descendants until none is left. As a subreaper we inherit whom the guardian leaves behind.
    pub(super) async fn finish_alone(&mut self) -> io::Result<()> {
        kill_group_at_once();
        let _ = self.guardian.kill();
        let mut quiet = 0;
        // Twice: what forks while /proc is read may be missed once.
        while quiet < 2 {
            // What a guardian leaves is ours, and found, only when it is dead. Others are reaped with the orphans.
            let is_dead = !matches!(self.guardian.try_wait(), Ok(None));
            let is_quiet = descendants::of_self().iter().all(|entry| entry.is_zombie);
            quiet = if is_dead && is_quiet { quiet + 1 } else { 0 };
            if !is_quiet {
                descendants::signal_all(None, false, Signal::KILL);
            }
            self.timer.arm(clock::now() + AGAIN)?;
            self.timer.fired().await?;
        }
        self.is_gone = true;
        Ok(())
    }

    fn order(&mut self, order: Order) {
        if self.is_lost || self.is_gone {
            return;
        }
        // A packet that finds no room is missed as one that is not taken.
        let _ = self.channel.send(&order);
        self.unheard.push_back(clock::now());
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if !self.is_gone {
            // The end of the channel tells the guardian to kill the rest.
            kill_group_at_once();
        }
    }
}
