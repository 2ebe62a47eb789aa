//! A real PostgreSQL: a cluster of its own, on a unix socket, as an unprivileged user.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::process::{Process, run};
use super::temp::TempDir;
use super::wait::eventually;

const PATIENCE: Duration = Duration::from_secs(120);

/// A running server. Stopped on drop.
#[derive(Debug)]
pub struct Postgres {
    directory: TempDir,
    process: Process,
}

impl Postgres {
    /// Makes a cluster, starts its server, and waits until it answers.
    pub fn start() -> Self {
        let directory = TempDir::new();
        let home = directory.join("home");
        std::fs::create_dir(&home).unwrap();
        if is_root() {
            let mut chown = Command::new("chown");
            chown.arg("postgres").arg(&home);
            assert_eq!(run("chown", chown, PATIENCE).code, 0);
        }
        let mut initdb = unprivileged("initdb");
        initdb.args(["--username", "postgres", "--auth", "trust", "--no-sync", "--pgdata"]).arg(home.join("data"));
        let made = run("initdb", initdb, PATIENCE);
        assert_eq!(made.code, 0, "{}{}", made.stdout, made.stderr);
        let mut server = unprivileged("postgres");
        server.args(["-c", "listen_addresses=", "-c", "fsync=off", "-k"]).arg(&home).arg("-D").arg(home.join("data"));
        let postgres = Self { directory, process: Process::start("postgres", server) };
        eventually("PostgreSQL answers", PATIENCE, || (postgres.try_query("SELECT 1")? == "1").then_some(()));
        postgres
    }

    /// How a client reaches it.
    pub fn connection(&self) -> String {
        format!("host={} user=postgres dbname=postgres", self.directory.join("home").display())
    }

    /// What `psql` prints of a query, without decoration.
    pub fn query(&self, sql: &str) -> String {
        self.try_query(sql).unwrap_or_else(|| panic!("{sql} failed"))
    }

    fn try_query(&self, sql: &str) -> Option<String> {
        let mut psql = Command::new(program("psql"));
        psql.args(["--no-psqlrc", "--tuples-only", "--no-align", "--command", sql]).arg(self.connection());
        let said = run("psql", psql, PATIENCE);
        (said.code == 0).then(|| said.stdout.trim().to_owned())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // At once and in order: it takes its shared memory with it, which a kill would leave behind.
        self.process.signal(Signal::INT);
        let gone = || self.process.ended().map(|_| ());
        if !std::thread::panicking() {
            eventually("PostgreSQL stops", PATIENCE, gone);
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// It refuses to run as root; the user that its package makes does.
fn unprivileged(name: &str) -> Command {
    if !is_root() {
        return Command::new(program(name));
    }
    let mut command = Command::new("setpriv");
    // A change of the user takes away the death signal that the harness has set.
    command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups", "--pdeathsig", "KILL", "--"]);
    command.arg(program(name)).current_dir("/");
    command
}

/// Where the distribution puts it: of several versions the newest.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions.map(|version| version.path().join("bin").join(name)).collect();
    found.retain(|path| path.exists());
    found.sort();
    found.pop().unwrap_or_else(|| panic!("{name} is missing: run tests/setup"))
}
