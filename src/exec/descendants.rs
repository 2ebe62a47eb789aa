//! Every process that a process has brought into being, found in /proc, signalled and reaped.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group,
    pidfd_open, pidfd_send_signal, wait, waitid,
};

/// One process, as /proc shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) pid: Pid,
    parent: i32,
    group: i32,
    pub(super) is_zombie: bool,
}

/// All descendants of this process, as far as /proc shows them. What forks while it is read may be missing.
pub(super) fn of_self() -> Vec<Entry> {
    // Told by the kernel, where it is built to tell; else by a look at every process of the machine.
    told_below(getpid()).unwrap_or_else(|| below(getpid().as_raw_nonzero().get(), &table()))
}

/// Direct children of this process that have ended and that nobody has reaped.
pub(super) fn own_zombies() -> Vec<Pid> {
    let own = getpid().as_raw_nonzero().get();
    table().iter().filter(|entry| entry.is_zombie && entry.parent == own).map(|entry| entry.pid).collect()
}

/// Sends `signal` to the process group and to every descendant of this process that is outside of it. `is_held`: the
/// group's first process is a child that was not reaped, so that its number can be nobody else's.
pub(super) fn signal_all(group: Option<Pid>, is_held: bool, signal: Signal) {
    // Before /proc is read: the kernel signals a group as a whole, no fork in it escapes.
    let number = group.map(|group| group.as_raw_nonzero().get());
    if is_held {
        signal_group(group, signal);
    }
    let all = of_self();
    if !is_held && all.iter().any(|entry| Some(entry.group) == number) {
        signal_group(group, signal);
    }
    for entry in all.iter().filter(|entry| !entry.is_zombie && Some(entry.group) != number) {
        signal_one(entry, signal);
    }
}

fn signal_group(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        // Who is gone needs no signal, and who may not be signalled has changed its user: it is told of elsewhere.
        let _ = kill_process_group(group, signal);
    }
}

/// By a descriptor, and only if that is still the child of the same parent: a number could be another's by now.
fn signal_one(entry: &Entry, signal: Signal) {
    match pidfd_open(entry.pid, PidfdFlags::empty()) {
        Ok(process) => {
            if read_entry(entry.pid).is_some_and(|now| now.parent == entry.parent) {
                let _ = pidfd_send_signal(process, signal);
            }
        }
        // Kernels before 5.3, and sandboxes that hide the call.
        Err(Errno::NOSYS | Errno::PERM) => {
            let _ = kill_process(entry.pid, signal);
        }
        Err(_) => {}
    }
}

/// Takes the next child that has ended, whoever's it was.
pub(super) fn reap() -> Option<(Pid, WaitStatus)> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(reaped) => return reaped,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// Takes one child that has ended.
pub(super) fn reap_one(pid: Pid) {
    let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
}

/// Whether this process has a child, dead or alive.
pub(super) fn has_children() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::All, options), Err(Errno::CHILD))
}

/// The same by /proc/PID/task/TID/children: as much work as there are descendants, on a machine with any number of
/// processes. `None`: this kernel does not tell.
fn told_below(root: Pid) -> Option<Vec<Entry>> {
    let mut found: Vec<Entry> = Vec::new();
    let mut parents = told_children(root)?;
    while let Some(pid) = parents.pop() {
        if found.iter().any(|entry| entry.pid == pid) {
            continue;
        }
        // Who is gone by now has no children: they have become those of a subreaper, and are found the next time.
        parents.extend(told_children(pid).unwrap_or_default());
        found.extend(read_entry(pid));
    }
    Some(found)
}

/// Children belong to the thread that started them.
fn told_children(pid: Pid) -> Option<Vec<Pid>> {
    let mut children = Vec::new();
    for thread in fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).ok()? {
        let Ok(thread) = thread else { continue };
        match fs::read_to_string(thread.path().join("children")) {
            Ok(text) => children.extend(text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?))),
            // A thread that has ended since; but where no thread has the file the kernel does not tell.
            Err(why) if why.kind() == io::ErrorKind::NotFound && thread.path().exists() => return None,
            Err(_) => {}
        }
    }
    Some(children)
}

fn table() -> Vec<Entry> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.filter_map(|process| process.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(Pid::from_raw).filter_map(read_entry).collect()
}

fn read_entry(pid: Pid) -> Option<Entry> {
    let text = read_stat(pid).ok()?;
    parse(pid, &text)
}

fn read_stat(pid: Pid) -> io::Result<String> {
    // The name of a program need not be UTF-8.
    let bytes = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// `PID (NAME) STATE PARENT GROUP …`, where NAME may hold anything, brackets and blanks too.
fn parse(pid: Pid, text: &str) -> Option<Entry> {
    let (_, rest) = text.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    let state = words.next()?;
    let parent = words.next()?.parse().ok()?;
    let group = words.next()?.parse().ok()?;
    Some(Entry { pid, parent, group, is_zombie: matches!(state, "Z" | "X") })
}

fn below(root: i32, table: &[Entry]) -> Vec<Entry> {
    let mut found: Vec<Entry> = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        // A number that is used again while the table is read must not make a ring of it.
        let children = table.iter().filter(|entry| entry.parent == parent);
        let new: Vec<Entry> =
            children.filter(|child| found.iter().all(|entry| entry.pid != child.pid)).copied().collect();
        parents.extend(new.iter().map(|entry| entry.pid.as_raw_nonzero().get()));
        found.extend(new);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(pid: i32, parent: i32) -> Entry {
        Entry { pid: Pid::from_raw(pid).unwrap(), parent, group: pid, is_zombie: false }
    }

    #[test]
    fn a_name_may_hold_anything() {
        let pid = Pid::from_raw(7).unwrap();
        let parsed = parse(pid, "7 (a) S 1 (b) Z 3 5 5 0").unwrap();
        assert_eq!(parsed, Entry { pid, parent: 3, group: 5, is_zombie: true });
        assert_eq!(parse(pid, "7 (a"), None);
        assert_eq!(parse(pid, ""), None);
    }

    #[test]
    fn both_ways_find_the_same() {
        use std::os::unix::process::CommandExt as _;
        let mut command = std::process::Command::new("sh");
        let mut child = command.args(["-c", "sleep 60 & wait"]).process_group(0).spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        let own = getpid().as_raw_nonzero().get();
        let is_below = |all: Vec<Entry>| all.iter().any(|entry| entry.parent == pid.as_raw_nonzero().get());
        let is_there = |all: &[Entry]| all.iter().any(|entry| entry.pid == pid && entry.parent == own);
        // The shell needs a moment to start its own child.
        while !is_below(below(own, &table())) {}
        assert!(is_there(&below(own, &table())));
        if let Some(told) = told_below(getpid()) {
            assert!(is_there(&told) && is_below(told));
        }
        signal_group(Some(pid), Signal::KILL);
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_a_ring_ends() {
        let table = [entry(2, 1), entry(3, 2), entry(4, 3), entry(5, 9), entry(9, 5), entry(1, 4)];
        let found = |root| below(root, &table).iter().map(|entry| entry.pid.as_raw_nonzero().get()).collect::<Vec<_>>();
        assert_eq!(found(2), [3, 4, 1, 2]);
        assert_eq!(found(9), [5, 9]);
        assert_eq!(found(7), [0; 0]);
    }
}
