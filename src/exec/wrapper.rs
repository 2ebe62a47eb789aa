//! The wrapper: work begins with each leadership, is told when it ends, and is over before the election may go on.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use rustix::process::{Signal, getpid, set_child_subreaper};
use tokio::sync::mpsc;
use tracing::level_filters::LevelFilter;
use tracing::{debug, error, info, warn};

use super::guarded::Guarded;
use super::ladder::{Ladder, Rungs};
use super::message::{Report, Setup, Status};
use super::program::Program;
use super::{Backoff, OnExit, OnLost, forward, orphans};
use crate::cli::Environment;
use crate::clock::{self, BootTimer, Moment, micros, millis};
use crate::election::event::StepDown;
use crate::election::request::Request;
use crate::election::watch::Watch;
use crate::redsync::reply::Token;

/// The exit code of `--on-lost exit`.
const LOST: u8 = 75;

/// What a shell makes of a program that cannot be run.
const CANNOT_RUN: Status = Status::Code(126);

/// A replica whose child has ended for good takes no part any more in the moments that are left to it.
const FOR_GOOD: Duration = Duration::from_hours(1);

/// What is run while this replica leads, and how it is ended.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The child.
    pub child: Option<Program>,
    /// Runs before the child starts.
    pub on_elected: Option<Program>,
    /// Runs after the child has stopped.
    pub on_stepped_down: Option<Program>,
    /// All times.
    pub ladder: Ladder,
    /// When the child ends by itself.
    pub on_exit: OnExit,
    /// When leadership is lost.
    pub on_lost: OnLost,
    /// What the child gets when it is to stop.
    pub stop_signal: Signal,
    /// What the programs find in their environment, but for the token.
    pub environment: Environment,
    /// The guardian's log is like ours.
    pub log_level: LevelFilter,
    /// JSON, or text.
    pub is_log_json: bool,
}

/// Runs the plan beside an election whose work it is.
#[derive(Debug)]
pub struct Wrapper {
    plan: Plan,
    watch: Watch,
    /// Nothing new is published any more: the election has ended.
    is_over: bool,
    requests: mpsc::Sender<Request>,
    signals: mpsc::Receiver<Signal>,
    timer: BootTimer,
    restarts: Backoff,
    hooks: Backoff,
}

/// What the election says of one leadership, now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Leading { work_until: Moment, deadline: Moment },
    SteppingDown { reason: StepDown, deadline: Moment },
    Over { reason: StepDown },
}

impl Standing {
    /// Until when something of it may run.
    const fn deadline(self) -> Option<Moment> {
        match self {
            Self::Leading { deadline, .. } | Self::SteppingDown { deadline, .. } => Some(deadline),
            Self::Over { .. } => None,
        }
    }
}

/// Which program of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Elected,
    Child,
    SteppedDown,
}

impl Job {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Elected => "--on-elected",
            Self::Child => "child",
            Self::SteppedDown => "--on-stepped-down",
        }
    }
}

/// How a program ended.
#[derive(Clone, Copy, Debug)]
struct End {
    /// Unknown if its guardian died with it.
    status: Option<Status>,
    /// It was told to end.
    is_told: bool,
    ran: Duration,
}

impl End {
    /// Why a hook has not done what it is for.
    fn fault(&self) -> Option<&'static str> {
        if self.is_told {
            return Some("it took too long");
        }
        (self.status != Some(Status::Code(0))).then_some("it failed")
    }
}

impl Wrapper {
    /// Listens for signals from here on. Must be called inside a tokio runtime, on the thread that runs it.
    ///
    /// # Errors
    /// When the system refuses a signal or a timer, or to make this process a subreaper.
    pub fn new(plan: Plan, watch: Watch, requests: mpsc::Sender<Request>) -> io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        let signals = forward::listen()?;
        let timer = BootTimer::new()?;
        tokio::spawn(async {
            if let Err(why) = orphans::reap().await {
                error!(reason = %why, "orphans are reaped no more");
            }
        });
        let (restarts, hooks) = (Backoff::new(), Backoff::new());
        Ok(Self { plan, watch, is_over: false, requests, signals, timer, restarts, hooks })
    }

    /// Runs until the election has ended, or the process is to end: gives the exit code. No work is left then.
    ///
    /// # Errors
    /// When the system refuses a timer.
    pub async fn run(mut self) -> io::Result<u8> {
        while let Some(token) = self.next_leadership().await {
            let code = self.lead(token).await?;
            if let Some(code) = code {
                return Ok(code);
            }
        }
        Ok(0)
    }

    /// Waits for work to do. `None`: there will be none.
    async fn next_leadership(&mut self) -> Option<Token> {
        loop {
            if self.is_over {
                return None;
            }
            if let Some(token) = self.watch.leadership().work {
                return Some(token);
            }
            tokio::select! {
                changed = self.watch.changed() => self.is_over = !changed,
                Some(signal) = self.signals.recv() => {
                    debug!(signal = signal.as_raw(), "no child to pass a signal on to");
                }
            }
        }
    }

    /// One leadership from its start to the report that its work has stopped.
    async fn lead(&mut self, token: Token) -> io::Result<Option<u8>> {
        let mut code = None;
        let is_elected = self.on_elected(token).await?;
        if is_elected == Some(true) {
            code = self.work(token).await?;
        }
        self.wait_for_step_down(token).await?;
        let reason = match self.standing(token, clock::now()) {
            Standing::SteppingDown { reason, .. } | Standing::Over { reason } => reason,
            Standing::Leading { .. } => StepDown::Expired,
        };
        if is_elected.is_some() {
            self.on_stepped_down(token).await?;
        }
        info!(token, reason = reason.as_str(), boot_ms = clock::now().as_millis(), "work stopped");
        self.ask(Request::WorkStopped(token)).await;
        while self.watch.leadership().work == Some(token) && !self.is_over {
            self.is_over = !self.watch.changed().await;
        }
        if code.is_none() && !reason.is_voluntary() && self.plan.on_lost == OnLost::Exit {
            code = Some(LOST);
        }
        Ok(code)
    }

    /// Whether work may begin; `None`: the hook was not even begun.
    async fn on_elected(&mut self, token: Token) -> io::Result<Option<bool>> {
        if !self.is_leading(token) {
            return Ok(None);
        }
        let Some(hook) = self.plan.on_elected.clone() else { return Ok(Some(true)) };
        let end = self.carry(token, Job::Elected, &hook).await?;
        let is_leading = self.is_leading(token);
        let Some(reason) = end.fault() else {
            self.hooks = Backoff::new();
            return Ok(Some(is_leading));
        };
        if is_leading {
            let stand_back = self.hooks.after(end.ran);
            warn!(token, reason, stand_back_ms = millis(stand_back), "--on-elected: stepping down");
            self.ask(Request::Resign { reason: StepDown::HookFailed, stand_back }).await;
        }
        Ok(Some(false))
    }

    async fn on_stepped_down(&mut self, token: Token) -> io::Result<()> {
        let Some(hook) = self.plan.on_stepped_down.clone() else { return Ok(()) };
        let now = clock::now();
        let kill_at = |deadline| self.rungs(Job::SteppedDown, deadline, now).kill_at;
        if self.standing(token, now).deadline().is_none_or(|deadline| kill_at(deadline) <= now) {
            warn!(token, "--on-stepped-down: not run, no time is left before the deadline");
            return Ok(());
        }
        let end = self.carry(token, Job::SteppedDown, &hook).await?;
        if let Some(reason) = end.fault() {
            warn!(token, reason, "--on-stepped-down failed");
        }
        Ok(())
    }

    /// Runs the child until it is over. The code: the process ends with it.
    async fn work(&mut self, token: Token) -> io::Result<Option<u8>> {
        let Some(child) = self.plan.child.clone() else { return Ok(None) };
        loop {
            if !self.is_leading(token) {
                return Ok(None);
            }
            let end = self.carry(token, Job::Child, &child).await?;
            if end.is_told {
                return Ok(None);
            }
            let code = end.status.unwrap_or(Status::Signal(Signal::KILL.as_raw())).code();
            match self.plan.on_exit {
                OnExit::Exit => {
                    self.ask(Request::Resign { reason: StepDown::ChildExited, stand_back: FOR_GOOD }).await;
                    return Ok(Some(code));
                }
                OnExit::Release => {
                    let stand_back = self.restarts.after(end.ran);
                    info!(token, stand_back_ms = millis(stand_back), "the child ended: releasing the lock");
                    self.ask(Request::Resign { reason: StepDown::ChildExited, stand_back }).await;
                    return Ok(None);
                }
                OnExit::Restart => {
                    let pause = self.restarts.after(end.ran);
                    info!(token, pause_ms = millis(pause), "the child ended: it is started again");
                    self.pause(token, pause).await?;
                }
            }
        }
    }

    /// Runs one program to its end, which comes by itself, by the leadership's end, or by its own limit.
    async fn carry(&mut self, token: Token, job: Job, program: &Program) -> io::Result<End> {
        let began = clock::now();
        let mut end = End { status: None, is_told: false, ran: Duration::ZERO };
        let Some(deadline) = self.standing(token, began).deadline() else {
            return Ok(End { is_told: true, ..end });
        };
        log_deadline(token, deadline);
        let setup = self.setup(self.rungs(job, deadline, began));
        let mut environment = self.plan.environment.clone();
        environment.set("REDLEADER_TOKEN", token.to_string());
        // A hook must not read what is the child's.
        let (stdin, nothing) = (io::stdin(), File::open("/dev/null")?);
        let stdin = if job == Job::Child { stdin.as_fd() } else { nothing.as_fd() };
        let mut guarded = match Guarded::start(program, stdin, &environment, &setup) {
            Ok(guarded) => guarded,
            Err(why) => {
                error!(token, program = job.as_str(), reason = %why, "cannot be started");
                return Ok(End { status: Some(CANNOT_RUN), ..end });
            }
        };
        let mut killed_by: Option<Moment> = None;
        loop {
            let wake_at = self.steer(token, job, began, &mut guarded, &mut killed_by);
            end.is_told |= killed_by.is_some() && end.status.is_none();
            self.timer.arm(wake_at)?;
            tokio::select! {
                biased;
                report = guarded.report() => match report {
                    Some(Report::Gone) => break,
                    Some(report) => self.hear(token, job, began, &report, &mut end).await,
                    None => {
                        guarded.finish_alone().await?;
                        break;
                    }
                },
                changed = self.watch.changed(), if !self.is_over => self.is_over = !changed,
                Some(signal) = self.signals.recv() => guarded.forward(signal),
                fired = self.timer.fired() => {
                    fired?;
                    // Only where no report is waiting to be read: after a pause of ours it is not the guardian that hung.
                    if guarded.hung_at(&self.plan.ladder) <= clock::now() {
                        guarded.give_up_on_guardian();
                    }
                }
            }
        }
        end.ran = clock::now().since(began);
        debug!(token, program = job.as_str(), elapsed_ms = millis(end.ran), "nothing is left of it");
        Ok(end)
    }

    /// Tells the guardian what follows from the leadership; gives the time at which to look again.
    fn steer(
        &self,
        token: Token,
        job: Job,
        began: Moment,
        guarded: &mut Guarded,
        killed_by: &mut Option<Moment>,
    ) -> Moment {
        let now = clock::now();
        let ladder = &self.plan.ladder;
        let standing = self.standing(token, now);
        let next = match standing {
            Standing::Leading { work_until, .. } => work_until,
            Standing::SteppingDown { deadline, .. } => deadline,
            Standing::Over { .. } => now + ladder.slack().max(Duration::from_millis(1)),
        };
        if let Some(deadline) = standing.deadline() {
            let rungs = self.rungs(job, deadline, began);
            if guarded.rungs() != rungs {
                // Before it is told: what is in force is never later than what was logged.
                log_deadline(token, deadline);
                guarded.until(rungs);
            }
        }
        let kill_at = match standing {
            Standing::Leading { .. } => None,
            Standing::SteppingDown { .. } if job == Job::SteppedDown => None,
            Standing::SteppingDown { reason, .. } | Standing::Over { reason } if ladder.is_late(reason) => None,
            Standing::SteppingDown { reason, .. } => Some((reason, now + ladder.stop_timeout())),
            Standing::Over { reason } => Some((reason, now)),
        };
        if let Some((reason, kill_at)) = kill_at
            && killed_by.is_none_or(|before| kill_at < before && matches!(standing, Standing::Over { .. }))
        {
            let signal = self.signal(reason);
            info!(token, program = job.as_str(), reason = reason.as_str(), signal = signal.as_raw(), "stopping it");
            guarded.stop(signal, kill_at);
            *killed_by = Some(kill_at);
        }
        // What is past has to be looked at once more, and not in a busy loop.
        next.min(guarded.hung_at(ladder)).max(now + Duration::from_millis(1))
    }

    async fn hear(&mut self, token: Token, job: Job, began: Moment, report: &Report, end: &mut End) {
        let elapsed_ms = millis(clock::now().since(began));
        let program = job.as_str();
        match report {
            Report::Started(pid) => {
                info!(token, program, pid, boot_ms = clock::now().as_millis(), "program started");
            }
            Report::Failed(why) => {
                error!(token, program, reason = why, "cannot be started");
                end.status.get_or_insert(CANNOT_RUN);
            }
            Report::Ended(status) => {
                end.status = Some(*status);
                let (code, is_told) = (status.code(), end.is_told);
                info!(token, program, code, elapsed_ms, is_told, "program ended");
            }
            Report::Late => {
                end.is_told |= end.status.is_none();
                // Extends may have come in after all. The work stops nevertheless, so the leadership has to.
                if job == Job::Child && self.is_leading(token) {
                    let stand_back = Duration::ZERO;
                    self.ask(Request::Resign { reason: StepDown::RenewTimeout, stand_back }).await;
                }
            }
            Report::Heard | Report::Gone => {}
        }
    }

    fn setup(&self, rungs: Rungs) -> Setup {
        let plan = &self.plan;
        Setup {
            times: rungs.into(),
            stop_signal: plan.stop_signal.as_raw(),
            stop_timeout_us: micros(plan.ladder.stop_timeout()),
            lost_signal: self.signal(StepDown::RenewTimeout).as_raw(),
            log_level: plan.log_level.to_string(),
            is_log_json: plan.is_log_json,
        }
    }

    fn rungs(&self, job: Job, deadline: Moment, began: Moment) -> Rungs {
        match job {
            Job::Elected => self.plan.ladder.elected(deadline, began),
            Job::Child => self.plan.ladder.child(deadline),
            Job::SteppedDown => self.plan.ladder.stepped_down(deadline, began),
        }
    }

    fn signal(&self, reason: StepDown) -> Signal {
        match self.plan.on_lost {
            OnLost::Signal(signal) if !reason.is_voluntary() => signal,
            OnLost::Signal(_) | OnLost::Stop | OnLost::Exit => self.plan.stop_signal,
        }
    }

    fn standing(&self, token: Token, now: Moment) -> Standing {
        let leadership = self.watch.leadership();
        let Some(belief) = leadership.belief.as_ref().filter(|belief| belief.token == token) else {
            return Standing::Over { reason: leadership.last_step_down.unwrap_or(StepDown::Expired) };
        };
        let (work_until, deadline) = (belief.work_until, belief.deadline);
        match belief.over(now) {
            None => Standing::Leading { work_until, deadline },
            Some(reason) if deadline <= now => Standing::Over { reason },
            Some(reason) => Standing::SteppingDown { reason, deadline },
        }
    }

    fn is_leading(&self, token: Token) -> bool {
        matches!(self.standing(token, clock::now()), Standing::Leading { .. })
    }

    /// Waits as long as this replica leads.
    async fn wait_for_step_down(&mut self, token: Token) -> io::Result<()> {
        self.pause(token, Duration::MAX).await
    }

    /// Waits for a while, or until this replica does not lead any more.
    async fn pause(&mut self, token: Token, pause: Duration) -> io::Result<()> {
        let until = clock::now() + pause;
        loop {
            let now = clock::now();
            let Standing::Leading { work_until, .. } = self.standing(token, now) else { return Ok(()) };
            if until <= now {
                return Ok(());
            }
            self.timer.arm(until.min(work_until))?;
            tokio::select! {
                biased;
                changed = self.watch.changed(), if !self.is_over => self.is_over = !changed,
                Some(signal) = self.signals.recv() => {
                    debug!(signal = signal.as_raw(), "no child to pass a signal on to");
                }
                fired = self.timer.fired() => fired?,
            }
        }
    }

    /// The election takes requests at once. If it has ended there is nobody left to ask.
    async fn ask(&self, request: Request) {
        let _ = self.requests.send(request).await;
    }
}

fn log_deadline(token: Token, deadline: Moment) {
    debug!(token, deadline_ms = deadline.as_millis(), "the guardian is told the deadline");
}
