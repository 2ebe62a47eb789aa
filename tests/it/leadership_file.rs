//! The leadership file: always whole, stale by its own word, and never worth a leadership.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value as Json;

use crate::support::{Replica, ReplicaOptions, Servers, TempDir, boot_ms, eventually, figure, run, stays_true};

/// The node timeout is long, so that a busy machine costs no leadership.
const CALM: [&str; 4] = ["--ttl", "2s", "--node-timeout", "300ms"];
const SOON: Duration = Duration::from_secs(30);

fn replica(nodes: &Servers, lock: &str, who: &str, path: &Path, settings: &[&str]) -> Replica {
    let path = path.to_str().unwrap();
    ReplicaOptions::new(lock, who, &nodes.urls())
        .args(settings.iter().copied())
        .args(["--leadership-file", path])
        .start()
}

fn read(path: &Path) -> Option<Json> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(serde_json::from_str(&text).unwrap_or_else(|error| panic!("torn: {error}: {text:?}")))
}

/// What a reader that does it right makes of the file.
fn says_leading(file: &Json, now: u64) -> bool {
    file["leading"] == true && file["validUntilBootMs"].as_u64().is_some_and(|until| now < until)
}

#[test]
fn a_reader_never_sees_half_a_version() {
    let (nodes, directory) = (Servers::start(3), TempDir::new());
    let path = directory.join("leader.json");
    let fast = ["--ttl", "2s", "--renew-every", "20ms", "--node-timeout", "20ms"];
    let a = replica(&nodes, "whole", "a", &path, &fast);
    let first = eventually("the file is there", SOON, || read(&path));
    assert_eq!((&first["lock"], &first["identity"]), (&Json::from("whole"), &Json::from("a")));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
    let mut versions = BTreeSet::new();
    let (mut reads, began) = (0_u64, boot_ms());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Beside the extends: changes of leadership.
            while !is_over.load(Ordering::SeqCst) {
                let _ = a.command(&["resign", "--for", "10ms"]);
                eventually("it leads again", SOON, || (a.leads() || is_over.load(Ordering::SeqCst)).then_some(()));
            }
        });
        while versions.len() < 1000 && boot_ms() < began + 90_000 {
            let text = std::fs::read_to_string(&path).expect("it is replaced and never away");
            let json: Json = serde_json::from_str(&text).unwrap_or_else(|error| panic!("torn: {error}: {text:?}"));
            assert!(text.ends_with("}\n") && json["schema"] == 1 && json["nodes"].as_array().unwrap().len() == 3);
            assert_eq!(json["leading"] == true, json["validUntilBootMs"].is_u64());
            versions.insert(text);
            reads += 1;
        }
        is_over.store(true, Ordering::SeqCst);
    });
    figure(
        "leadership file",
        &format!("{} versions in {reads} reads, none torn, in {} ms", versions.len(), boot_ms() - began),
    );
    assert!(versions.len() >= 1000);
    let left = std::fs::read_dir(directory.path()).unwrap().count();
    assert!(left <= 2, "{left} files: at most one that is being written, beside the one that is read");
    a.term();
    assert_eq!(a.wait_exit(SOON), 0);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "removed at the end, and nothing left");
}

#[test]
fn what_a_killed_process_leaves_behind_says_itself_that_it_is_over() {
    let (nodes, directory) = (Servers::start(3), TempDir::new());
    let (path, other) = (directory.join("a.json"), directory.join("b.json"));
    let a = replica(&nodes, "stale", "a", &path, &CALM);
    a.wait_elected(1, SOON);
    let b = replica(&nodes, "stale", "b", &other, &CALM);
    eventually("the file says so", SOON, || read(&path).filter(|file| says_leading(file, boot_ms())));
    eventually("the other's says who", SOON, || read(&other).filter(|file| file["holder"] == "a"));
    // It is fresh at each extend.
    let until = |file: &Json| file["validUntilBootMs"].as_u64().unwrap_or(0);
    let first = until(&read(&path).unwrap());
    eventually("it is extended", SOON, || (until(&read(&path).unwrap()) > first).then_some(()));
    let killed = a.kill9();
    let left = read(&path).expect("it is left behind");
    assert!(left["leading"] == true);
    let won = b.wait_elected(1, SOON).number("boot_ms").unwrap();
    assert!(until(&left) <= won, "a reader would have believed until {} and b won at {won}", until(&left));
    assert!(!says_leading(&left, won));
    figure(
        "leadership file",
        &format!(
            "kill -9: its own end came {} ms after, {} ms before the next leader",
            until(&left).saturating_sub(killed),
            won - until(&left)
        ),
    );
    eventually("the new leader's file says so", SOON, || read(&other).filter(|file| says_leading(file, boot_ms())));
}

#[test]
fn a_directory_that_goes_away_costs_a_warning_and_no_leadership() {
    let (nodes, directory) = (Servers::start(3), TempDir::new());
    let (inner, away) = (directory.join("inner"), directory.join("away"));
    std::fs::create_dir(&inner).unwrap();
    let path = inner.join("leader.json");
    let a = replica(&nodes, "away", "a", &path, &CALM);
    a.wait_elected(1, SOON);
    eventually("the file says so", SOON, || read(&path).filter(|file| says_leading(file, boot_ms())));
    std::fs::rename(&inner, &away).unwrap();
    costs_no_leadership(&a);
    std::fs::create_dir(&inner).unwrap();
    a.wait_for_message("leadership file written again", 1, SOON);
    eventually("the file is fresh", SOON, || read(&path).filter(|file| says_leading(file, boot_ms())));
    assert_eq!(a.logged("stepped down").len(), 0);
}

fn costs_no_leadership(a: &Replica) {
    let failed = || a.metric("leadership_file_errors_total", &[]);
    let before = failed();
    eventually("writes fail", SOON, || (failed() >= before + 3.0).then_some(()));
    stays_true("it leads on", Duration::from_secs(2), || a.leads());
    assert_eq!(a.logged("leadership file cannot be written").len(), 1, "one warning for all of them");
}

/// A file system of a few kilobytes, gone on drop.
struct Tiny(PathBuf);

impl Tiny {
    fn mount(path: PathBuf) -> Self {
        std::fs::create_dir(&path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=16k", "tiny"]).arg(&path);
        let mounted = run("mount", mount, SOON);
        assert_eq!(mounted.code, 0, "{}", mounted.stderr);
        Self(path)
    }

    fn fill(&self) {
        // It ends with an error, which is what is wanted.
        let _ = std::fs::write(self.0.join("filler"), vec![b'x'; 64 * 1024]);
    }

    fn clear(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        let mut umount = Command::new("umount");
        umount.arg("--lazy").arg(&self.0);
        let _ = run("umount", umount, SOON);
    }
}

#[test]
fn a_full_disk_costs_a_warning_and_no_leadership_and_an_old_version_is_removed_when_it_is_wrong_as_root() {
    let (nodes, directory) = (Servers::start(3), TempDir::new());
    let disk = Tiny::mount(directory.join("disk"));
    let path = disk.0.join("leader.json");
    let a = replica(&nodes, "full", "a", &path, &CALM);
    a.wait_elected(1, SOON);
    eventually("the file says so", SOON, || read(&path).filter(|file| says_leading(file, boot_ms())));
    disk.fill();
    costs_no_leadership(&a);
    let stale = read(&path).expect("the last version that could be written");
    assert!(stale["leading"] == true && !says_leading(&stale, boot_ms()), "it has ended by its own word: {stale}");
    disk.clear();
    a.wait_for_message("leadership file written again", 1, SOON);
    eventually("the file is fresh", SOON, || read(&path).filter(|file| says_leading(file, boot_ms())));
    disk.fill();
    assert_eq!(a.command(&["resign", "--for", "30s"]).code, 0);
    eventually("no file says what is no longer so", SOON, || {
        read(&path).is_none_or(|file| file["leading"] == false).then_some(())
    });
    a.term();
    assert_eq!(a.wait_exit(SOON), 0);
}
