//! docs/wrapper.md where it says that it works: the page's unit under the real systemd, the page's image as a container.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::{
    Flavour, Process, Server, ServerOptions, TempDir, binary, boot_ms, cache, eventually, figure, let_time_pass, run,
};
use crate::witness::{children, exists, signal};

const PAGE: &str = include_str!("../../docs/wrapper.md");
const PASSWORD: &str = "S3cr3tT0ken";
/// As the page has it, nothing is set: a ttl of 8 s, and a quarantine or a failed machine takes one.
const SOON: Duration = Duration::from_secs(60);

/// The block of the page in this language.
fn block(language: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("```{language}\n")).expect("the page has such a block");
    rest.split_once("```").expect("a block ends").0
}

/// What is put in the place of the page's nodes: unix sockets, since each machine has a network of its own.
struct Nodes(Vec<Server>);

impl Nodes {
    fn start(password: Option<&str>) -> Self {
        let options = || password.map_or_else(ServerOptions::new, |password| ServerOptions::new().password(password));
        Self((0..3).map(|_| Server::start(Flavour::Redis70, options())).collect())
    }

    /// The page's text with these nodes.
    fn in_place(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (index, server) in self.0.iter().enumerate() {
            let written = format!("://node-{}:6379", index + 1);
            let at = text.find(&written).expect("the page names three nodes");
            let from = text[..at].rfind("redis").expect("a scheme");
            text.replace_range(from..at + written.len(), &server.unix_url());
        }
        text
    }
}

/// The job's file, which all machines share.
struct Job(TempDir);

/// One of its lines.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    token: u64,
    machine: String,
    argument: String,
    first: String,
}

impl Job {
    fn new() -> Self {
        Self(TempDir::new())
    }

    /// The program: ten lines a second, each with token, machine, argument, and the name of the first process.
    fn write(&self, at: &Path) {
        let script = format!(
            "#!/bin/sh\nread machine </proc/sys/kernel/hostname\nread first </proc/1/comm\n\
             while :; do echo \"$REDLEADER_TOKEN $machine $1 $first\" >>{}; sleep 0.1; done\n",
            self.0.join("lines").display()
        );
        std::fs::write(at, script).unwrap();
        std::fs::set_permissions(at, PermissionsExt::from_mode(0o755)).unwrap();
    }

    fn lines(&self) -> Vec<Line> {
        let text = std::fs::read_to_string(self.0.join("lines")).unwrap_or_default();
        let line = |text: &str| {
            let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
            let [token, machine, argument, first] = words.try_into().expect("a line of the job");
            Line { token: token.parse().expect("a token"), machine, argument, first }
        };
        text.lines().map(line).collect()
    }

    /// Waits until one with a larger token has worked for a second, and gives its token and machine.
    #[track_caller]
    fn works(&self, after: u64) -> (u64, String) {
        eventually("the next one works", SOON, || {
            let lines = self.lines();
            let ten = lines.len().checked_sub(10).map(|from| &lines[from..])?;
            let last = ten.last().filter(|last| last.token > after && ten[0].token == last.token)?;
            Some((last.token, last.machine.clone()))
        })
    }

    /// One at a time, in so many turns, each with a token of its own.
    #[track_caller]
    fn check(&self, name: &str, turns: usize, first: &str) {
        let lines = self.lines();
        assert!(lines.iter().all(|line| line.argument == "--verbose" && line.first == first), "{lines:?}");
        assert!(lines.windows(2).all(|pair| pair[0].token <= pair[1].token), "two worked at a time: {lines:?}");
        let mut seen: Vec<(u64, &str)> = lines.iter().map(|line| (line.token, line.machine.as_str())).collect();
        seen.dedup();
        assert_eq!(seen.len(), turns, "{seen:?}");
        figure(name, &format!("{} lines of work, {} hand-overs, never two at a time", lines.len(), turns - 1));
    }
}

/// A control group for one machine; what it has made there goes with it.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Self {
        let mounts = std::fs::read_to_string("/proc/mounts").expect("/proc is mounted");
        let mount = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|words| words[2] == "cgroup2");
        let path = Path::new(mount.expect("control groups of version 2 are mounted")[1]);
        let path = path.join(format!("redleader-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap_or_else(|error| panic!("cannot create {}: {error}", path.display()));
        Self(path)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What was killed with the machine takes a moment to be gone.
        for _ in 0..100 {
            let mut command = Command::new("find");
            command.arg(&self.0).args(["-depth", "-type", "d", "-exec", "rmdir", "{}", ";"]);
            let _ = run("find", command, SOON);
            if !self.0.exists() {
                return;
            }
            let_time_pass("its processes end", Duration::from_millis(50));
        }
    }
}

/// A machine of its own with the real systemd, which runs what is installed in its files.
struct Machine {
    name: String,
    process: Process,
    _files: TempDir,
    _group: Group,
}

impl Machine {
    fn boot(name: &str, unit: &str, job: &Job) -> Self {
        let (files, group) = (TempDir::new(), Group::new(name));
        let (system, programs) = (files.join("etc/systemd/system"), files.join("usr/local/bin"));
        let wanted = system.join("multi-user.target.wants");
        for directory in [&wanted, &programs, &files.join("etc/redleader")] {
            std::fs::create_dir_all(directory).unwrap();
        }
        files.write("etc/hostname", &format!("{name}\n"));
        files.write("etc/redleader/password", PASSWORD);
        files.write("etc/systemd/system/my-job.service", unit);
        // What `systemctl enable` makes of the unit's [Install].
        symlink("../my-job.service", wanted.join("my-job.service")).unwrap();
        std::fs::copy(binary(), programs.join("redleader")).unwrap();
        job.write(&programs.join("my-job"));
        let mut command = Command::new("sh");
        let script = "echo $$ >\"$1/cgroup.procs\" && shift && exec unshare --mount --pid --fork --kill-child --cgroup \
                      --uts --ipc --net \"$@\"";
        command.args(["-c", script, "sh"]).arg(&group.0).arg(support("in-machine")).arg(files.path());
        Self { name: name.to_owned(), process: Process::start(name, command), _files: files, _group: group }
    }

    /// What `systemctl` says on that machine.
    #[track_caller]
    fn systemctl(&self, args: &[&str]) -> String {
        let first = first_process(&self.process).to_string();
        let mut command = Command::new("nsenter");
        command.args(["--target", &first, "--mount", "--pid", "--cgroup", "--net", "systemctl"]).args(args);
        let output = run("systemctl", command, SOON);
        assert_eq!(output.code, 0, "{} {args:?}: {}", self.name, output.stderr);
        output.stdout.trim().to_owned()
    }

    fn property(&self, name: &str) -> String {
        self.systemctl(&["show", "--value", "--property", name, "my-job"])
    }
}

/// A script beside the harness.
fn support(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support").join(name)
}

/// The first process of the namespace that an `unshare` has made.
#[track_caller]
fn first_process(unshare: &Process) -> u32 {
    eventually("it has a first process", SOON, || children(unshare.pid()).first().map(|(pid, _)| *pid))
}

#[test]
fn the_unit_of_the_page_makes_a_singleton_of_two_machines_with_systemd_as_root() {
    let (nodes, job) = (Nodes::start(Some(PASSWORD)), Job::new());
    let unit = nodes.in_place(block("ini")).replace("rediss://", "redis://");
    let machines = ["m1", "m2"].map(|name| Machine::boot(name, &unit, &job));
    let named = |name: &str| machines.iter().find(|machine| machine.name == name).expect("one of the two");
    let (token, first) = job.works(0);
    eventually("both run, one as a standby", SOON, || {
        machines.iter().all(|machine| machine.property("ActiveState") == "active").then_some(())
    });

    for (name, value) in [("KillMode", "mixed"), ("OOMPolicy", "stop"), ("TimeoutStopUSec", "30s")] {
        assert_eq!(named(&first).property(name), value, "systemd has taken the page's {name}");
    }

    // The wrapper alone is killed: nothing of the job is left, and systemd starts it again. Either may win then.
    named(&first).systemctl(&["kill", "--kill-whom=main", "--signal=KILL", "my-job"]);
    let (token, second) = job.works(token);
    eventually("it is started again", SOON, || (named(&first).property("NRestarts") == "1").then_some(()));
    eventually("it is active again", SOON, || (named(&first).property("ActiveState") == "active").then_some(()));

    let asked = boot_ms();
    named(&second).systemctl(&["stop", "my-job"]);
    let stopped = boot_ms() - asked;
    assert_ne!(job.works(token).1, second);
    assert_eq!(
        (named(&second).property("ActiveState"), named(&second).property("Result")),
        ("inactive".into(), "success".into())
    );
    figure("W7 systemd", &format!("systemctl stop took {stopped} ms"));
    job.check("W7 systemd", 3, "systemd");
}

/// The page's image, built with what builds images, in a store of its own.
struct Image {
    store: TempDir,
    root: PathBuf,
    entry: Vec<String>,
}

impl Image {
    fn build(job: &Job) -> Self {
        let (store, context) = (TempDir::new(), TempDir::new());
        context.write("Dockerfile", block("dockerfile"));
        std::fs::copy(binary(), context.join("redleader")).unwrap();
        job.write(&context.join("my-job"));
        let image = Self { store, root: PathBuf::new(), entry: Vec::new() };
        // Nothing is pulled: the base that the page names is a Debian that was made here.
        let base = cache().join("debian-slim.tar");
        assert!(base.exists(), "{} is missing: run tests/setup as root", base.display());
        let context = context.path().to_str().unwrap();
        let empty = image.buildah(&["from", "scratch"]);
        image.buildah(&["add", "--quiet", &empty, base.to_str().unwrap(), "/"]);
        image.buildah(&["config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin", &empty]);
        image.buildah(&["commit", "--quiet", "--rm", &empty, "docker.io/library/debian:stable-slim"]);
        image.buildah(&["bud", "--quiet", "--isolation", "chroot", "--pull-never", "--tag", "my-job", context]);
        let container = image.buildah(&["from", "--pull-never", "my-job"]);
        let root = PathBuf::from(image.buildah(&["mount", &container]));
        let entry = image.buildah(&[
            "inspect",
            "--format",
            "{{range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}",
            &container,
        ]);
        Self { root, entry: entry.lines().map(str::to_owned).collect(), ..image }
    }

    #[track_caller]
    fn buildah(&self, args: &[&str]) -> String {
        let mut command = Command::new("buildah");
        command.args(["--storage-driver", "vfs"]);
        command.arg("--root").arg(self.store.join("s")).arg("--runroot").arg(self.store.join("r")).args(args);
        let output = run("buildah", command, Duration::from_secs(120));
        assert_eq!(output.code, 0, "buildah {args:?}: {}", output.stderr);
        output.stdout.trim().to_owned()
    }

    /// A container with the page's environment.
    fn start(&self, name: &str, environment: &[String], shared: &[&Path]) -> Process {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--net"]);
        command.arg(support("in-container")).arg(&self.root).arg(name).args(shared).arg("--");
        command.args(["env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin"]).args(environment).args(&self.entry);
        Process::start(name, command)
    }
}

#[test]
fn the_image_of_the_page_makes_a_singleton_of_its_containers_as_root() {
    let (nodes, job) = (Nodes::start(None), Job::new());
    let image = Image::build(&job);
    let yaml = nodes.in_place(block("yaml"));
    let environment = yaml.lines().filter_map(|line| line.trim().strip_prefix("REDLEADER_"));
    let environment: Vec<String> =
        environment.map(|line| format!("REDLEADER_{}", line.replacen(": ", "=", 1))).collect();
    assert_eq!(environment.len(), 2, "{environment:?}");
    let shared: Vec<&Path> = nodes.0.iter().map(Server::directory).chain([job.0.path()]).collect();
    let containers = ["c1", "c2", "c3"].map(|name| (name, image.start(name, &environment, &shared)));
    let named = |name: &str| &containers.iter().find(|(its, _)| *its == name).expect("one of the three").1;

    // As `docker stop` does, and as `docker kill` does: TERM and KILL to the first process.
    let (token, first) = job.works(0);
    let asked = boot_ms();
    signal(first_process(named(&first)), Signal::TERM);
    assert_eq!(named(&first).wait_exit(SOON), 0);
    let stopped = boot_ms() - asked;
    let (token, second) = job.works(token);
    let gone = first_process(named(&second));
    signal(gone, Signal::KILL);
    let (_, third) = job.works(token);
    assert!(!exists(gone) && third != first && third != second);
    figure("W7 container", &format!("a container stopped {stopped} ms after TERM"));
    job.check("W7 container", 3, "redleader");
}
