//! Child processes: their lines, their signals, their end.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::wait::{boot_ms, eventually};

/// One line of a child's output.
#[derive(Clone, Debug)]
pub struct Line {
    /// When it was read, in boot time.
    pub boot_ms: u64,
    /// The line without its end.
    pub text: String,
}

/// A running child. Killed and reaped on drop; killed by the kernel when the test process dies.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: u32,
    child: Mutex<Child>,
    ended: Mutex<Option<(ExitStatus, u64)>>,
    stdout: Arc<Mutex<Vec<Line>>>,
    stderr: Arc<Mutex<Vec<Line>>>,
}

impl Process {
    /// Starts `command` and collects its lines.
    pub fn start(name: &str, command: Command) -> Self {
        let mut child = spawn(command).unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let stdout = collect(child.stdout.take());
        let stderr = collect(child.stderr.take());
        Self {
            name: name.to_owned(),
            pid: child.id(),
            child: Mutex::new(child),
            ended: Mutex::new(None),
            stdout,
            stderr,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its lines on standard output so far.
    pub fn stdout(&self) -> Vec<Line> {
        lock(&self.stdout).clone()
    }

    /// Its lines on standard error so far.
    pub fn stderr(&self) -> Vec<Line> {
        lock(&self.stderr).clone()
    }

    /// Its lines on standard error from `index` on.
    pub fn stderr_from(&self, index: usize) -> Vec<Line> {
        lock(&self.stderr).get(index..).unwrap_or_default().to_vec()
    }

    /// Sends a signal. Nothing happens if it has ended.
    pub fn signal(&self, signal: Signal) {
        let mut child = lock(&self.child);
        // Only a child that is not reaped yet is sure to be the owner of its id.
        if matches!(child.try_wait(), Ok(None)) {
            let pid = Pid::from_raw(i32::try_from(self.pid).expect("process ids are small")).expect("not zero");
            let _ = kill_process(pid, signal);
        }
        drop(child);
    }

    /// Kills it with -9, reaps it, and gives the boot time at which it was surely dead.
    pub fn kill(&self) -> u64 {
        let mut child = lock(&self.child);
        let _ = child.kill();
        let status = child.wait();
        drop(child);
        let now = boot_ms();
        if let Ok(status) = status {
            lock(&self.ended).get_or_insert((status, now));
        }
        now
    }

    /// How it ended and when that was seen, or `None` while it runs.
    pub fn ended(&self) -> Option<(ExitStatus, u64)> {
        if let Ok(Some(status)) = lock(&self.child).try_wait() {
            lock(&self.ended).get_or_insert((status, boot_ms()));
        }
        *lock(&self.ended)
    }

    /// Waits for its end and gives its exit code; 128 + n for a signal. Whatever it said has been read then.
    #[track_caller]
    pub fn wait_exit(&self, deadline: Duration) -> i32 {
        let (status, _) = eventually(&format!("{} ends", self.name), deadline, || self.ended());
        // The last lines are in the pipe still. A child that it left behind may hold the other end, so not for ever.
        let ended = boot_ms();
        eventually("its last lines are read", deadline, || {
            let is_read = [&self.stdout, &self.stderr].iter().all(|lines| Arc::strong_count(lines) == 1);
            (is_read || boot_ms() > ended + 1000).then_some(())
        });
        code(status)
    }

    /// Closes its standard input, if that is a pipe.
    pub fn close_stdin(&self) {
        drop(lock(&self.child).stdin.take());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            for (stream, lines) in [("out", &self.stdout), ("err", &self.stderr)] {
                let lines = lock(lines);
                for line in lines.iter().skip(lines.len().saturating_sub(200)) {
                    println!("[{} {stream} @{}] {}", self.name, line.boot_ms, line.text);
                }
            }
        }
    }
}

/// What a command that ends by itself said.
#[derive(Clone, Debug)]
pub struct Output {
    /// Exit code; 128 + n for a signal.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// From start to end.
    pub took: Duration,
}

/// Runs a command to its end, at most for `deadline`.
#[track_caller]
pub fn run(name: &str, command: Command, deadline: Duration) -> Output {
    let began = boot_ms();
    let process = Process::start(name, command);
    let code = process.wait_exit(deadline);
    let took = Duration::from_millis(process.ended().map_or(0, |(_, at)| at - began));
    let text = |lines: &Mutex<Vec<Line>>| lock(lines).iter().map(|line| format!("{}\n", line.text)).collect::<String>();
    // The pipes end with the process: the readers are the last owners of the lines but us.
    for lines in [&process.stdout, &process.stderr] {
        eventually(&format!("{name}'s output ends"), deadline, || (Arc::strong_count(lines) == 1).then_some(()));
    }
    Output { code, stdout: text(&process.stdout), stderr: text(&process.stderr), took }
}

/// Starts `command` so that it is killed when the test process dies.
///
/// The kernel's death signal is tied to the *thread* that started the child, so one thread that never ends starts
/// them all. `setpriv` sets it, then becomes the command: same process id, no unsafe code.
fn spawn(command: Command) -> std::io::Result<Child> {
    type Job = (Command, Sender<std::io::Result<Child>>);
    static STARTER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (sender, jobs) = channel::<Job>();
        let run = move || {
            for (mut command, answer) in jobs {
                let child = without_forks(|| command.spawn());
                let _ = answer.send(child);
            }
        };
        std::thread::Builder::new().name("starter".to_owned()).spawn(run).expect("one more thread can be started");
        Mutex::new(sender)
    });
    let (answer, result) = channel();
    lock(starter).send((guarded(&command), answer)).expect("the starter never ends");
    result.recv().expect("the starter answers every job")
}

/// Runs `job` while no child is between fork and exec: in that moment it holds a copy of every socket of ours, so that
/// a listener which is closed then still listens.
pub(super) fn without_forks<T>(job: impl FnOnce() -> T) -> T {
    static FORKS: Mutex<()> = Mutex::new(());
    let _forks = lock(&FORKS);
    job()
}

fn guarded(command: &Command) -> Command {
    let mut guarded = Command::new("setpriv");
    guarded.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => guarded.env(name, value),
            None => guarded.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        guarded.current_dir(directory);
    }
    guarded.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    guarded
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> Arc<Mutex<Vec<Line>>> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    if let Some(pipe) = pipe {
        let sink = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n') {
                let Ok(line) = line else { break };
                let text = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
                lock(&sink).push(Line { boot_ms: boot_ms(), text });
            }
        });
    }
    lines
}

fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// A test that panicked must not hide its message behind a poisoned lock.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
