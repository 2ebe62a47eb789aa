//! No process of a leadership outlives it, whatever happens to wrapper, guardian and child.

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::{
    Mode, Process, Proxy, Replica, ReplicaOptions, Servers, boot_ms, eventually, figure, let_time_pass, run,
};
use crate::witness::{SILENCE, Witness, children, deadline_ms, exists, guardian, interleaved, signal};

const SOON: Duration = Duration::from_secs(20);
/// A grace that a loaded machine can keep.
const SETTINGS: [&str; 8] = ["--ttl", "2s", "--grace", "600ms", "--node-timeout", "300ms", "--log-level", "debug"];

/// How the witness is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// As the child itself.
    Child,
    /// By a shell that waits for it.
    Shell,
    /// Forked twice, in a session of its own.
    Daemon,
}

impl Form {
    const ALL: [Self; 3] = [Self::Child, Self::Shell, Self::Daemon];

    fn script(self, witness: &Witness) -> String {
        let command = witness.command();
        match self {
            Self::Child => format!("exec {command}"),
            Self::Shell => format!("{command} & wait"),
            Self::Daemon => format!("(setsid sh -c '{command} & exit 0' &) ; exec sleep 600"),
        }
    }
}

struct Scene {
    witness: Witness,
    replica: Replica,
    token: u64,
}

impl Scene {
    /// A leader whose witness writes.
    fn start(nodes: &[String], lock: &str, args: &[&str], script: impl Fn(&Witness) -> String) -> Self {
        let witness = Witness::new();
        let options = ReplicaOptions::new(lock, "a", nodes).args(SETTINGS).args(args.iter().copied());
        let replica = options.child(["sh", "-c", &script(&witness)]).start();
        let token = replica.wait_elected(1, SOON).number("token").unwrap();
        witness.wait_written(0, SOON);
        Self { witness, replica, token }
    }

    /// Waits until the witness is silent, and gives when it wrote last, and the deadline.
    #[track_caller]
    fn end(&self, name: &str) -> (u64, u64) {
        let last = self.witness.wait_silent(SOON);
        let deadline = deadline_ms(&self.replica, self.token).expect("the guardian was told a deadline");
        let at = last.at_us / 1000;
        assert!(at < deadline, "{name}: the last line is {} ms after the deadline", at - deadline);
        let pids: Vec<u32> = self.witness.lines().iter().map(|line| line.pid).collect();
        eventually(&format!("{name}: the witness is dead"), SOON, || {
            pids.iter().all(|pid| !exists(*pid)).then_some(())
        });
        (at, deadline)
    }
}

#[test]
fn c129_a_wrapper_that_is_killed_leaves_nothing_behind() {
    let nodes = Servers::start(1);
    std::thread::scope(|scope| {
        for form in Form::ALL {
            let nodes = nodes.urls();
            scope.spawn(move || {
                let name = format!("W2 wrapper killed with -9, {form:?}");
                let scene = Scene::start(&nodes, &format!("w2-kill-{form:?}"), &[], |witness| form.script(witness));
                let keeper = guardian(&scene.replica);
                let killed = scene.replica.kill9();
                let (last, deadline) = scene.end(&name);
                eventually("the guardian ends too", SOON, || (!exists(keeper)).then_some(()));
                let after = last.saturating_sub(killed);
                figure(
                    &name,
                    &format!("last line {after} ms after the kill, {} ms before the deadline", deadline - last),
                );
            });
        }
    });
}

#[test]
fn c129_a_wrapper_that_is_stopped_does_not_keep_its_child_alive() {
    let nodes = Servers::start(1);
    std::thread::scope(|scope| {
        for form in Form::ALL {
            let nodes = nodes.urls();
            scope.spawn(move || {
                let name = format!("W2 wrapper stopped, {form:?}");
                let scene = Scene::start(&nodes, &format!("w2-stop-{form:?}"), &[], |witness| form.script(witness));
                scene.replica.stop();
                let stopped = boot_ms();
                let (last, deadline) = scene.end(&name);
                figure(
                    &name,
                    &format!(
                        "last line {} ms after the stop, {} ms before the deadline",
                        last - stopped,
                        deadline - last
                    ),
                );
                scene.replica.cont();
                // It goes on as a standby, and leads again with a new child.
                scene.witness.wait_written(scene.token, SOON);
                scene.replica.term();
                assert_eq!(scene.replica.wait_exit(SOON), 0);
            });
        }
    });
}

#[test]
fn c129_a_guardian_that_is_killed_or_stopped_is_replaced_by_the_wrapper() {
    let nodes = Servers::start(1);
    std::thread::scope(|scope| {
        for form in Form::ALL {
            for by in [Signal::KILL, Signal::STOP] {
                let nodes = nodes.urls();
                scope.spawn(move || {
                    let what = if by == Signal::KILL { "killed with -9" } else { "stopped" };
                    let name = format!("W2 guardian {what}, {form:?}");
                    let lock = format!("w2-guard-{}-{form:?}", by.as_raw());
                    let mut nodes = nodes;
                    let proxy = Proxy::start(nodes[0].trim_start_matches("redis://"));
                    nodes[0] = proxy.url();
                    let scene = Scene::start(&nodes, &lock, &["--on-exit", "release"], |witness| form.script(witness));
                    let keeper = guardian(&scene.replica);
                    signal(keeper, by);
                    let done = boot_ms();
                    if by == Signal::STOP {
                        // It is missed only when there is something for it to do.
                        proxy.set(Mode::Blackhole);
                    }
                    let (last, deadline) = scene.end(&name);
                    eventually("nothing is left of the guardian", SOON, || (!exists(keeper)).then_some(()));
                    let after = last.saturating_sub(done);
                    figure(
                        &name,
                        &format!("last line {after} ms after it, {} ms before the deadline", deadline - last),
                    );
                    proxy.set(Mode::Pass);
                    scene.replica.term();
                    assert_eq!(scene.replica.wait_exit(SOON), 0);
                });
            }
        }
    });
}

#[test]
fn c125_a_child_that_ignores_its_signal_is_dead_before_another_may_lead() {
    let nodes = Servers::start(3);
    std::thread::scope(|scope| {
        for (name, traps) in [("obeys", ""), ("ignores TERM", "trap '' TERM INT HUP;")] {
            let nodes = &nodes;
            scope.spawn(move || {
                let lock = format!("c125-{name}").replace(' ', "-");
                let proxies: Vec<Proxy> = nodes.iter().map(|node| Proxy::start(&node.address())).collect();
                let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
                let scene = Scene::start(&urls, &lock, &[], |witness| format!("{traps} {} & wait; wait", witness.command()));
                let words = scene.witness.words();
                let b = ReplicaOptions::new(&lock, "b", &nodes.urls()).args(SETTINGS);
                let b = b.child(words.iter().map(String::as_str)).start();
                eventually("b sees a lead", SOON, || (b.leader_json()["holder"] == "a").then_some(()));
                proxies.iter().for_each(|proxy| proxy.set(Mode::Blackhole));
                let cut = boot_ms();
                let first = scene.witness.wait_written(scene.token, SOON);
                let lines = scene.witness.lines();
                assert_eq!(interleaved(&lines), [], "{name}");
                let last = lines.iter().rfind(|line| line.token == scene.token).unwrap().at_us / 1000;
                let deadline = deadline_ms(&scene.replica, scene.token).unwrap();
                assert!(last < deadline, "{name}: {} ms after the deadline", last - deadline);
                let gap = first.at_us / 1000 - last;
                figure(
                    &format!("C125 child {name}"),
                    &format!("last line {} ms after the cut, {} ms before the deadline; the next one's first line {gap} ms later", last - cut, deadline - last),
                );
                b.term();
                assert_eq!(b.wait_exit(SOON), 0);
            });
        }
    });
}

#[test]
fn c127_no_signal_orphans_the_child() {
    const SIGNALS: [(&str, Signal); 9] = [
        ("TERM", Signal::TERM),
        ("INT", Signal::INT),
        ("QUIT", Signal::QUIT),
        ("HUP", Signal::HUP),
        ("ABRT", Signal::ABORT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
        ("PIPE", Signal::PIPE),
        ("ALRM", Signal::ALARM),
    ];
    let nodes = Servers::start(1);
    std::thread::scope(|scope| {
        for (name, sent) in SIGNALS {
            let nodes = &nodes;
            scope.spawn(move || {
                let lock = format!("c127-{name}");
                let scene = Scene::start(&nodes.urls(), &lock, &[], |witness| Form::Child.script(witness));
                signal(scene.replica.pid(), sent);
                if name == "PIPE" {
                    let before = scene.witness.lines().len();
                    eventually("nothing happens", SOON, || (scene.witness.lines().len() > before + 5).then_some(()));
                    assert!(scene.replica.leads(), "{name}");
                    scene.replica.term();
                }
                scene.replica.wait_exit(SOON);
                let last = scene.end(name).0;
                assert_eq!(nodes.values(&lock), [None], "{name}: it is released");
                let stepped_down = scene.replica.logged("stepped down")[0].number("boot_ms").unwrap();
                assert!(last <= stepped_down, "{name}: a line {} ms after the end", last - stepped_down);
            });
        }
    });
}

#[test]
fn c127_a_terminal_that_is_closed_ends_the_child() {
    let nodes = Servers::start(1);
    let witness = Witness::new();
    let [program, file] = witness.words();
    let inside = format!(
        "{} run --lock c127-tty --redis {} --listen off --ttl 2s --identity tty -- {program} {file}",
        crate::support::binary().display(),
        nodes.urls()[0]
    );
    let mut command = Command::new("script");
    command.args(["--quiet", "--command", &inside, "/dev/null"]);
    let terminal = Process::start("script", command);
    let written = witness.wait_written(0, SOON);
    // The terminal goes away with whoever holds its other end: the kernel sends HUP.
    terminal.kill();
    let last = witness.wait_silent(SOON);
    eventually("the witness is dead", SOON, || (!exists(written.pid)).then_some(()));
    figure("C127 a closed terminal", &format!("{} lines", witness.lines().len()));
    assert!(last.token == written.token);
    eventually("the lock is released", SOON, || (nodes.values("c127-tty") == [None]).then_some(()));
}

#[test]
fn c131_a_loss_at_the_moment_of_the_start_hits_nobody_else() {
    let runs = crate::support::scale().pick(200, 1000);
    let nodes = Servers::start(1);
    let witness = Witness::new();
    // The bystander is another child of the script that starts the wrapper: it shares the wrapper's group.
    let seen = witness.path("bystander");
    let script = format!(
        "(while :; do echo alive > {}; sleep 0.05; done) & exec {} run --lock c131 --redis {} --listen off --control @c131-{} \
         --identity c131 --ttl 1s --log-format json -- sh -c 'sleep 600 & sleep 600'",
        seen.display(),
        crate::support::binary().display(),
        nodes.urls()[0],
        std::process::id(),
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    let process = Process::start("c131", command);
    let mut lost = 0;
    let mut rng = crate::support::Rng::seeded("c131");
    while lost < runs {
        // A resign comes in at a random moment of the first milliseconds of each leadership.
        let elected = process.stderr().iter().filter(|line| line.text.contains("\"elected\"")).count();
        if elected > lost {
            let_time_pass("0 to 3 ms after the start", rng.duration(Duration::ZERO, Duration::from_millis(3)));
            let mut resign = Command::new(crate::support::binary());
            resign.args(["resign", "--for", "0s", "--control", &format!("@c131-{}", std::process::id())]);
            assert_eq!(run("resign", resign, SOON).code, 0);
            lost += 1;
            eventually("it is elected again", SOON, || {
                let now = process.stderr().iter().filter(|line| line.text.contains("\"elected\"")).count();
                (now > lost).then_some(())
            });
        }
    }
    let _ = std::fs::remove_file(&seen);
    eventually("the bystander lives", SOON, || seen.exists().then_some(()));
    process.signal(Signal::TERM);
    assert_eq!(process.wait_exit(SOON), 0);
    figure("C131", &format!("{lost} leaderships lost within 3 ms of the start"));
}

#[test]
fn c133_as_the_first_process_it_reaps_and_ends_orphans_as_root() {
    let nodes = Servers::start(1);
    let witness = Witness::new();
    let [program, file] = witness.words();
    // 50 orphans that end at once, and 50 that stay.
    let script = format!("for i in $(seq 50); do (sleep 0.2 &) ; (setsid sleep 600 &) ; done; {program} {file}");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child=KILL"]);
    command.arg(crate::support::binary()).args([
        "run",
        "--lock",
        "c133",
        "--redis",
        &nodes.urls()[0],
        "--listen",
        "off",
    ]);
    command.args(["--identity", "c133", "--ttl", "2s", "--log-format", "json", "--", "sh", "-c", &script]);
    let process = Process::start("c133", command);
    witness.wait_written(0, SOON);
    let first = eventually("the first process of the namespace runs", SOON, || {
        children(process.pid()).first().map(|(pid, _)| *pid)
    });
    let_time_pass("the short orphans end, and a zombie may be a second old", Duration::from_millis(1500));
    let zombies = || {
        let mut command = Command::new("nsenter");
        command.args(["--target", &first.to_string(), "--pid", "--mount", "ps", "-eo", "stat="]);
        let output = run("ps", command, SOON).stdout;
        (output.lines().filter(|line| line.starts_with('Z')).count(), output.lines().count())
    };
    let (dead, all) = zombies();
    assert!(all > 50, "50 orphans live: {all}");
    assert_eq!(dead, 0, "zombies of {all}");
    let began = boot_ms();
    signal(first, Signal::TERM);
    assert_eq!(process.wait_exit(SOON), 0);
    figure("C133", &format!("{all} processes, no zombie; all ended {} ms after TERM", boot_ms() - began));
}

#[test]
fn c135_what_ignores_every_polite_signal_is_killed_with_its_group() {
    let nodes = Servers::start(1);
    let name = "C135";
    let script =
        |witness: &Witness| format!("sh -c \"trap '' TERM INT HUP; {} & wait; wait\"; true", witness.command());
    let scene = Scene::start(&nodes.urls(), "c135", &["--stop-timeout", "700ms"], script);
    let began = boot_ms();
    scene.replica.term();
    assert_eq!(scene.replica.wait_exit(SOON), 0);
    let (last, _) = scene.end(name);
    let took = last - began;
    figure(name, &format!("last line {took} ms after TERM, stop timeout 700 ms"));
    assert!(took <= 700 + 500, "it wrote {took} ms after TERM");
}

#[test]
fn c137_left_overs_of_a_child_that_forks_away_are_killed_and_told() {
    let nodes = Servers::start(1);
    for form in ["& exit 0", "& true"] {
        let witness = Witness::new();
        let [program, file] = witness.words();
        let script = format!("setsid {program} {file} >/dev/null 2>&1 {form}; sleep 0.3; exit 4");
        let script = if form == "& exit 0" { format!("{program} {file} {form}") } else { script };
        let replica =
            ReplicaOptions::new("c137", "a", &nodes.urls()).args(SETTINGS).child(["sh", "-c", &script]).start();
        let code = replica.wait_exit(SOON);
        assert_eq!(code, if form == "& exit 0" { 0 } else { 4 });
        let line = &replica.logged("program ended")[0];
        assert!(line.number("elapsed_ms").is_some() && line.number("code") == Some(u64::try_from(code).unwrap()));
        assert_eq!(replica.logged("stepped down")[0].text("reason"), "child-exited");
        assert_eq!(nodes.values("c137"), [None]);
        let lines = witness.lines().len();
        let_time_pass("a witness that lives would write", SILENCE);
        assert_eq!(witness.lines().len(), lines, "a left-over writes after the end");
    }
}

#[test]
fn c137_a_child_that_fails_at_once_makes_no_hot_loop() {
    let nodes = Servers::start(1);
    let options = ReplicaOptions::new("c137-loop", "a", &nodes.urls()).args(SETTINGS).args(["--on-exit", "release"]);
    let replica = options.child(["sh", "-c", "sleep 0.05; exit 9"]).start();
    replica.wait_elected(1, SOON);
    let began = boot_ms();
    replica.wait_elected(3, SOON);
    let took = boot_ms() - began;
    assert!(took >= 3000, "three leaderships within {took} ms: pauses of 1 s and 2 s are between them");
    figure("C137", &format!("a child that fails in 50 ms: third leadership {took} ms after the first"));
    replica.term();
    assert_eq!(replica.wait_exit(SOON), 0);
}
