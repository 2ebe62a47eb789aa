//! The wrapper's contract: exit codes and signals, the child's environment, policies, hooks.

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::{
    Flavour, Replica, ReplicaOptions, Server, ServerOptions, Servers, TempDir, binary, boot_ms, eventually, figure,
    run, stays_true,
};
use crate::witness::{children, exists, guardian};

const SOON: Duration = Duration::from_secs(20);
const SETTINGS: [&str; 4] = ["--ttl", "2s", "--node-timeout", "400ms"];

/// A node that knows the lock already would save a quarantine; one node is enough where no node is lost.
fn options(nodes: &Servers, lock: &str) -> ReplicaOptions {
    ReplicaOptions::new(lock, "a", &nodes.urls()).args(SETTINGS)
}

fn sh(options: ReplicaOptions, script: &str) -> ReplicaOptions {
    options.child(["sh", "-c", script])
}

#[track_caller]
fn started(replica: &Replica) -> u32 {
    let line = replica.wait_for_message("program started", 1, SOON);
    u32::try_from(line.number("pid").expect("it has a process id")).unwrap()
}

/// What is done to it, and how it ends.
enum Act {
    Nothing,
    Send(Signal),
}

/// What, flags, the script, what is done to the wrapper, the exit code.
type Row = (&'static str, &'static [&'static str], &'static str, Act, i32);

const TABLE: [Row; 24] = [
    ("the child's code", &[], "exit 3", Act::Nothing, 3),
    ("the child's zero", &[], "exit 0", Act::Nothing, 0),
    ("the largest code", &[], "exit 255", Act::Nothing, 255),
    ("the child's signal", &[], "kill -9 $$", Act::Nothing, 137),
    ("the child's own TERM", &[], "kill -TERM $$", Act::Nothing, 143),
    ("asked to stop: TERM", &[], "exec sleep 60", Act::Send(Signal::TERM), 0),
    ("asked to stop: INT", &[], "exec sleep 60", Act::Send(Signal::INT), 0),
    (
        "asked to stop, ends with a code",
        &[],
        "trap 'exit 9' TERM; while :; do sleep 0.05; done",
        Act::Send(Signal::TERM),
        0,
    ),
    (
        "asked to stop, ignores it",
        &["--stop-timeout", "300ms"],
        "trap '' TERM; exec sleep 60",
        Act::Send(Signal::TERM),
        0,
    ),
    (
        "another stop signal",
        &["--stop-signal", "USR1"],
        "trap 'exit 9' USR1; trap '' TERM; while :; do sleep 0.05; done",
        Act::Send(Signal::TERM),
        0,
    ),
    ("HUP is the child's", &[], "trap 'exit 11' HUP; while :; do sleep 0.05; done", Act::Send(Signal::HUP), 11),
    ("QUIT is the child's", &[], "trap 'exit 12' QUIT; while :; do sleep 0.05; done", Act::Send(Signal::QUIT), 12),
    ("USR1 is the child's", &[], "trap 'exit 13' USR1; while :; do sleep 0.05; done", Act::Send(Signal::USR1), 13),
    ("USR2 is the child's", &[], "trap 'exit 14' USR2; while :; do sleep 0.05; done", Act::Send(Signal::USR2), 14),
    ("ALRM is the child's", &[], "trap 'exit 15' ALRM; while :; do sleep 0.05; done", Act::Send(Signal::ALARM), 15),
    ("ABRT is the child's", &[], "trap 'exit 16' ABRT; while :; do sleep 0.05; done", Act::Send(Signal::ABORT), 16),
    (
        "VTALRM is the child's",
        &[],
        "trap 'exit 17' VTALRM; while :; do sleep 0.05; done",
        Act::Send(Signal::VTALARM),
        17,
    ),
    ("PROF is the child's", &[], "trap 'exit 18' PROF; while :; do sleep 0.05; done", Act::Send(Signal::PROF), 18),
    ("WINCH is the child's", &[], "trap 'exit 19' WINCH; while :; do sleep 0.05; done", Act::Send(Signal::WINCH), 19),
    ("CONT is the child's", &[], "trap 'exit 20' CONT; while :; do sleep 0.05; done", Act::Send(Signal::CONT), 20),
    ("TSTP is the child's", &[], "trap 'exit 21' TSTP; while :; do sleep 0.05; done", Act::Send(Signal::TSTP), 21),
    ("IO is the child's", &[], "trap 'exit 22' IO; while :; do sleep 0.05; done", Act::Send(Signal::IO), 22),
    ("PWR is the child's", &[], "trap 'exit 23' PWR; while :; do sleep 0.05; done", Act::Send(Signal::POWER), 23),
    ("HUP kills a child without a handler", &[], "exec sleep 60", Act::Send(Signal::HUP), 129),
];

#[test]
fn every_exit_code_and_signal_is_as_the_table_says() {
    let nodes = Servers::start(1);
    std::thread::scope(|scope| {
        for (index, (name, args, script, act, code)) in TABLE.iter().enumerate() {
            let nodes = &nodes;
            scope.spawn(move || {
                let options = options(nodes, &format!("w4-{index}")).args(args.iter().copied());
                let ready = TempDir::new();
                let marked = format!("touch {}; {script}", ready.join("ready").display());
                // A trap that is set after the mark could be too late.
                let script = match script.rsplit_once("; while") {
                    Some((traps, _)) => {
                        format!("{traps}; touch {}; while :; do sleep 0.05; done", ready.join("ready").display())
                    }
                    None => marked,
                };
                let replica = sh(options, &script).start();
                started(&replica);
                eventually("the child has set its traps", SOON, || ready.join("ready").exists().then_some(()));
                if let Act::Send(signal) = act {
                    crate::witness::signal(replica.pid(), *signal);
                }
                assert_eq!(replica.wait_exit(SOON), *code, "{name}");
                assert_eq!(nodes.values(&format!("w4-{index}")), [None], "{name}: the lock is released");
            });
        }
    });
    figure("W4", &format!("{} exit codes and signals as in the table", TABLE.len()));
}

#[test]
fn a_program_that_cannot_run_is_refused_before_any_campaign() {
    let nodes = Servers::start(1);
    let directory = TempDir::new();
    let plain = directory.write("plain", "no program\n").display().to_string();
    let folder = directory.path().display().to_string();
    for (words, code, said) in [
        (&["no-such-program"][..], 127, "CMD no-such-program: not found"),
        (&["/no/such/program", "x"], 127, "CMD /no/such/program: not found"),
        (&[plain.as_str()], 126, "is no program that may be executed"),
        (&[folder.as_str()], 126, "is no program that may be executed"),
        (&[""], 127, "not found"),
    ] {
        let replica = options(&nodes, "w4-lookup").child(words.iter().copied()).start();
        assert_eq!(replica.wait_exit(SOON), code, "{words:?}");
        let text: String = replica.process().stderr().iter().map(|line| line.text.clone() + "\n").collect();
        assert!(text.contains(said), "{words:?}: {text}");
        assert!(replica.logged("elected").is_empty(), "{words:?}");
    }
    for flag in ["--on-elected", "--on-stepped-down"] {
        let replica = options(&nodes, "w4-lookup").args([flag, "no-such-hook now"]).start();
        assert_eq!(replica.wait_exit(SOON), 127, "{flag}");
        let text: String = replica.process().stderr().iter().map(|line| line.text.clone()).collect();
        assert!(text.contains(&format!("{flag} no-such-hook: not found")), "{text}");
    }
    // A script that names no interpreter is the shell's, as it is for a shell.
    let script = directory.write("script", "exit 5\n");
    let mut command = Command::new("chmod");
    command.arg("755").arg(&script);
    assert_eq!(run("chmod", command, SOON).code, 0);
    let replica = options(&nodes, "w4-lookup").child([script.to_str().unwrap()]).start();
    assert_eq!(replica.wait_exit(SOON), 5);
    // One whose interpreter is missing is found out when it is started.
    let odd = directory.write("odd", "#!/no/such/interpreter\n");
    let mut command = Command::new("chmod");
    command.arg("755").arg(&odd);
    assert_eq!(run("chmod", command, SOON).code, 0);
    let replica = options(&nodes, "w4-lookup").child([odd.to_str().unwrap()]).start();
    assert_eq!(replica.wait_exit(SOON), 127);
}

#[test]
fn flags_that_say_nothing_are_refused_with_their_names() {
    for (args, said) in [
        (["--on-exit", "again"], "--on-exit: must be one of: exit, restart, release"),
        (["--on-lost", "kill"], "--on-lost: must be one of: stop, signal=SIG, exit"),
        (["--on-lost", "signal=9"], "--on-lost: must be one of: TERM, INT, QUIT"),
        (["--stop-signal", "STOP"], "--stop-signal: must be one of: TERM, INT, QUIT"),
        (["--hook-timeout", "5"], "--hook-timeout: has no unit"),
        (["--hook-timeout", "0s"], "--hook-timeout: must be at least 1ms"),
        (["--on-elected", "it's"], "--on-elected: has a quote that is not closed"),
        (["--on-stepped-down", " "], "--on-stepped-down: is empty"),
    ] {
        let mut command = Command::new(binary());
        command.args(["run", "--lock", "x", "--redis", "redis://127.0.0.1:1"]).args(args).args(["--", "true"]);
        let output = run("redleader", command, SOON);
        assert_eq!(output.code, 64, "{args:?}: {}", output.stderr);
        assert!(output.stderr.contains(said), "{args:?}: {}", output.stderr);
    }
}

#[test]
fn c109_a_child_and_its_guardian_find_four_variables_of_ours_and_no_secret() {
    const SECRET: &str = "S3cr3tT0ken";
    let node = Server::start(Flavour::Redis70, ServerOptions::new().password(SECRET));
    let directory = TempDir::new();
    let (seen, stdin) = (directory.join("seen"), directory.join("stdin"));
    let script = format!("env > {}; readlink /proc/self/fd/0 > {}; exec sleep 60", seen.display(), stdin.display());
    let options = ReplicaOptions::new("w4-env", "a", &[node.url()]).args(SETTINGS);
    let replica = sh(options, &script)
        .env("REDLEADER_REDIS_PASSWORD", SECRET)
        .env("REDLEADER_LOG_LEVEL", "trace")
        .env("REDLEADER_SOMETHING_NEW", SECRET)
        .env("APP_SETTING", "kept")
        .start();
    let pid = started(&replica);
    let text = eventually("the child has told", SOON, || {
        std::fs::read_to_string(&stdin).ok().filter(|text| !text.is_empty())?;
        std::fs::read_to_string(&seen).ok()
    });
    let mut ours: Vec<&str> = text.lines().filter(|line| line.starts_with("REDLEADER_")).collect();
    ours.sort_unstable();
    let token = replica.wait_elected(1, SOON).number("token").unwrap();
    let expected = [
        "REDLEADER_IDENTITY=a".to_owned(),
        "REDLEADER_LOCK=w4-env".to_owned(),
        format!("REDLEADER_TOKEN={token}"),
        format!("REDLEADER_URL=http://{}", replica.address()),
    ];
    assert_eq!(ours, expected);
    assert!(text.contains("APP_SETTING=kept"));
    for process in [pid, guardian(&replica)] {
        for file in ["environ", "cmdline"] {
            let bytes = std::fs::read(format!("/proc/{process}/{file}")).unwrap();
            assert!(!String::from_utf8_lossy(&bytes).contains(SECRET), "{process}/{file}");
        }
    }
    let log: String = replica.process().stderr().iter().map(|line| line.text.clone() + "\n").collect();
    assert!(!log.contains(SECRET), "{log}");
    // Its standard input is the wrapper's, and no socket of ours.
    let own = std::fs::read_link(format!("/proc/{}/fd/0", replica.pid())).unwrap();
    assert_eq!(std::fs::read_to_string(&stdin).unwrap().trim(), own.to_str().unwrap());
    let name = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    eventually("the script has come to its last command", SOON, || (name().trim() == "sleep").then_some(()));
    // What the tests were started with is passed through; nothing is added.
    let open = |pid: u32| -> Vec<String> {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
    };
    let link = |pid: u32, fd: &str| std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok();
    for fd in open(pid) {
        assert_eq!(link(pid, &fd), link(replica.pid(), &fd), "descriptor {fd} is not the wrapper's own");
        assert!(!link(pid, &fd).unwrap().to_string_lossy().starts_with("socket:"), "descriptor {fd} is a socket");
    }
    replica.term();
    assert_eq!(replica.wait_exit(SOON), 0);
}

#[test]
fn a_child_starts_with_default_signals_and_leads_a_group_of_its_own() {
    let nodes = Servers::start(1);
    let directory = TempDir::new();
    let seen = directory.join("status");
    let script = format!("exec cat /proc/self/status /proc/self/stat > {}", seen.display());
    let replica = sh(options(&nodes, "w4-signals"), &script).start();
    assert_eq!(replica.wait_exit(SOON), 0);
    let text = std::fs::read_to_string(&seen).unwrap();
    let mask = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    for name in ["SigBlk:", "SigIgn:"] {
        // Those without a name were as they are before us, and are the C library's own.
        assert_eq!(u64::from_str_radix(&mask(name), 16).unwrap() & 0x7fff_ffff, 0, "{name}: {text}");
    }
    let stat: Vec<&str> = text.lines().last().unwrap().split(' ').collect();
    assert_eq!(stat[0], stat[4], "it leads its group");
}

#[test]
fn on_exit_restart_keeps_the_lock_and_doubles_its_pauses() {
    let nodes = Servers::start(1);
    let replica = sh(options(&nodes, "w4-restart").args(["--on-exit", "restart"]), "sleep 0.05; exit 7").start();
    let ends: Vec<u64> = (1..=3).map(|n| replica.wait_for_message("program ended", n, SOON).read_boot_ms).collect();
    let pauses: Vec<u64> = replica
        .logged("the child ended: it is started again")
        .iter()
        .filter_map(|line| line.number("pause_ms"))
        .collect();
    assert_eq!(pauses[..2], [1000, 2000]);
    assert!(ends[1] - ends[0] >= 1000 && ends[2] - ends[1] >= 2000, "{ends:?}");
    assert_eq!(replica.logged("elected").len(), 1, "one leadership");
    assert!(replica.leads());
    replica.term();
    assert_eq!(replica.wait_exit(SOON), 0, "asked to stop while no child runs");
}

#[test]
fn on_exit_release_lets_another_lead_and_stands_back() {
    let nodes = Servers::start(1);
    let args = ["--on-exit", "release"];
    let a = sh(options(&nodes, "w4-release").args(args), "exit 7").start();
    let first = a.wait_for_message("stepped down", 1, SOON);
    assert_eq!(first.text("reason"), "child-exited");
    let second = a.wait_elected(2, SOON).number("boot_ms").unwrap();
    let ended = first.number("boot_ms").unwrap();
    assert!(second - ended >= 1000, "{} ms between two leaderships of a child that ends at once", second - ended);
    assert!(a.is_running());
    a.term();
    assert_eq!(a.wait_exit(SOON), 0);
}

#[test]
fn on_lost_exit_ends_with_75_when_the_child_is_dead_and_signal_sends_its_own() {
    let mut nodes = Servers::start(1);
    let directory = TempDir::new();
    let told = directory.join("told");
    let script = format!(
        "trap 'echo usr1 >> {0}; exit 0' USR1; trap 'echo term >> {0}; exit 0' TERM; while :; do sleep 0.02; done",
        told.display()
    );
    let exits = sh(options(&nodes, "w4-lost-exit").args(["--on-lost", "exit"]), "trap '' TERM; exec sleep 60").start();
    let signals = sh(options(&nodes, "w4-lost-signal").args(["--on-lost", "signal=USR1"]), &script).start();
    let pid = started(&exits);
    started(&signals);
    nodes[0].kill();
    assert_eq!(exits.wait_exit(SOON), 75);
    assert!(!exists(pid), "the child is dead when the wrapper ends");
    signals.wait_for_message("stepped down", 1, SOON);
    eventually("the child was told", SOON, || std::fs::read_to_string(&told).ok().filter(|text| text == "usr1\n"));
    assert!(signals.is_running(), "it stays a standby");
    signals.term();
    assert_eq!(signals.wait_exit(SOON), 0);
}

#[test]
fn on_lost_stop_starts_the_child_again_when_elected_again() {
    let mut nodes = Servers::start(1);
    let replica = sh(options(&nodes, "w4-lost-stop"), "exec sleep 60").start();
    let first = started(&replica);
    nodes[0].kill();
    let lost = replica.wait_for_message("stepped down", 1, SOON);
    assert_eq!(lost.text("reason"), "renew-timeout");
    eventually("the child is gone", SOON, || (!exists(first)).then_some(()));
    nodes[0].start_again(crate::support::Data::Lost);
    let second = replica.wait_for_message("program started", 2, Duration::from_secs(30)).number("pid").unwrap();
    assert_ne!(u64::from(first), second);
    assert!(replica.leads());
    replica.term();
    assert_eq!(replica.wait_exit(SOON), 0);
}

fn hook(directory: &TempDir, name: &str) -> String {
    format!("sh -c 'echo {name} $REDLEADER_TOKEN $REDLEADER_LOCK >> {}'", directory.join("told").display())
}

fn told(directory: &TempDir) -> Vec<String> {
    let text = std::fs::read_to_string(directory.join("told")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn hooks_run_around_the_child_and_also_without_one() {
    let nodes = Servers::start(1);
    for (lock, has_child) in [("w4-hooks", true), ("w4-hooks-sidecar", false)] {
        let directory = TempDir::new();
        let child = format!(
            "echo child $REDLEADER_TOKEN $REDLEADER_LOCK >> {}; exec sleep 60",
            directory.join("told").display()
        );
        let (before, after) = (hook(&directory, "elected"), hook(&directory, "stepped-down"));
        let hooks = ["--on-elected", &before, "--on-stepped-down", &after, "--hook-timeout", "5s"];
        let options = options(&nodes, lock).args(hooks);
        let replica = if has_child { sh(options, &child) } else { options }.start();
        let token = replica.wait_elected(1, SOON).number("token").unwrap();
        let line = |what: &str| format!("{what} {token} {lock}");
        let mut expected = vec![line("elected")];
        if has_child {
            expected.push(line("child"));
        }
        eventually("it is told", SOON, || (told(&directory) == expected).then_some(()));
        let keys = nodes.values(lock);
        assert!(keys[0].is_some());
        replica.term();
        assert_eq!(replica.wait_exit(SOON), 0);
        expected.push(line("stepped-down"));
        assert_eq!(told(&directory), expected, "{lock}");
        let ended = replica.logged("program ended");
        let stepped_down = &replica.logged("stepped down")[0];
        assert!(
            ended.iter().all(|line| line.read_boot_ms <= stepped_down.read_boot_ms),
            "the hook ends before the release"
        );
    }
}

#[test]
fn a_hook_that_fails_or_hangs_costs_the_leadership_before_a_child_starts() {
    let nodes = Servers::start(1);
    for (lock, command, why) in [
        ("w4-hook-fails", "false", "it failed"),
        ("w4-hook-hangs", "sh -c 'trap \"\" TERM; sleep 60'", "it took too long"),
    ] {
        let options = options(&nodes, lock).args(["--on-elected", command, "--hook-timeout", "200ms"]);
        let replica = options.child(["sh", "-c", "exit 3"]).start();
        let began = boot_ms();
        let line = replica.wait_for_message("stepped down", 1, SOON);
        assert_eq!(line.text("reason"), "hook-failed");
        assert_eq!(replica.logged("--on-elected: stepping down")[0].text("reason"), why);
        assert!(
            replica.logged("program started").iter().all(|line| line.text("program") != "child"),
            "{lock}: a child started"
        );
        eventually("nothing is left of the hook", SOON, || children(replica.pid()).is_empty().then_some(()));
        // It stands back, so that a healthy one may try.
        let second = replica.wait_elected(2, SOON);
        assert!(second.number("boot_ms").unwrap() - line.number("boot_ms").unwrap() >= 1000);
        figure("W4 hooks", &format!("{lock}: stepped down after {} ms", line.read_boot_ms - began));
        replica.term();
        assert_eq!(replica.wait_exit(SOON), 0);
    }
}

#[test]
fn the_hook_after_a_loss_has_the_time_that_is_left_and_no_more() {
    let mut nodes = Servers::start(1);
    let directory = TempDir::new();
    let after = format!(
        "sh -c 'echo begun >> {0}; trap \"\" TERM; sleep 60; echo late >> {0}'",
        directory.join("told").display()
    );
    let settings = ["--ttl", "2s", "--grace", "600ms", "--node-timeout", "300ms", "--log-level", "debug"];
    let options = ReplicaOptions::new("w4-late-hook", "a", &nodes.urls()).args(settings);
    let options = options.args(["--on-stepped-down", &after, "--hook-timeout", "30s"]);
    let replica = sh(options, "exec sleep 60").start();
    started(&replica);
    nodes[0].kill();
    let line = replica.wait_for_log("the end of the hook", SOON, |line| {
        line.message() == "program ended" && line.text("program") == "--on-stepped-down"
    });
    let token = replica.logged("elected")[0].number("token").unwrap();
    let deadline = crate::witness::deadline_ms(&replica, token).unwrap();
    let left = deadline.saturating_sub(line.read_boot_ms);
    figure("W4 hook after a loss", &format!("killed {left} ms before the deadline"));
    assert!(line.read_boot_ms <= deadline, "the hook outlived the deadline by {} ms", line.read_boot_ms - deadline);
    assert_eq!(told(&directory), ["begun"]);
    stays_true("it writes nothing later", Duration::from_millis(300), || told(&directory) == ["begun"]);
    replica.term();
    assert_eq!(replica.wait_exit(SOON), 0);
}
