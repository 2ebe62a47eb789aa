//! Real processes under random faults, drawn from seeds; and the same seeds without the quarantine, so that the judge is
//! seen to find what it looks for.
//!
//! * `kind`: what goes wrong;
//! * `schedule`: what happens in one run, with the assumptions of the promise that it keeps;
//! * `world`, `befall`, `run`: nodes, paths, candidates, and the faults that befall them;
//! * `verdict`: two leaders, tokens, wrong readiness, and times without a leader that no fault explains;
//! * `totals`: what all runs came to.
//!
//! `BASE` repeats a whole run, `SEED` one schedule, and `SCHEDULES` says how many.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may panic and print, and nothing here is anyone's API"
)]

mod befall;
mod kind;
mod run;
mod schedule;
#[path = "../it/support/mod.rs"]
mod support;
mod totals;
mod verdict;
mod world;

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use run::Run;
use schedule::Schedule;
use support::{Rng, binary, boot_micros, figure, mutant_binary, scale, setting};
use totals::Totals;

/// Schedules at a time.
const LANES: usize = 8;
/// So many schedules have everything in them that can happen; fewer are run to be read.
pub const MEANINGFUL: usize = 100;

#[test]
fn no_fault_makes_two_leaders_and_every_time_without_one_has_a_reason() {
    let seeds = seeds();
    let totals = Totals::default();
    let add = |seed, alone| match attempt(seed, &binary(), "product") {
        Ok(run) => totals.add(&run, alone),
        Err(panic) => totals.panicked(seed, &panic),
    };
    side_by_side(&seeds, |_, seed| {
        add(seed, seeds.len() == 1);
        true
    });
    totals.doubtful().into_iter().for_each(|seed| add(seed, true));
    totals.judge(seeds.len());
}

/// The same seeds, from the first on, until one shows two leaders.
#[test]
fn without_the_quarantine_the_same_seeds_make_two_leaders() {
    let seeds = seeds();
    let overlaps = std::sync::Mutex::new(Vec::new());
    let tried = AtomicUsize::new(0);
    side_by_side(&seeds, |index, seed| {
        let run = attempt(seed, &mutant_binary(), "mutant");
        tried.fetch_add(1, Ordering::SeqCst);
        let found = run.ok().and_then(|run| run.verdict.report.overlaps.first().cloned());
        let is_found = found.is_some();
        overlaps.lock().unwrap().extend(found.map(|overlap| (index, seed, overlap)));
        !is_found
    });
    let mut found = overlaps.into_inner().unwrap();
    found.sort_by_key(|(index, ..)| *index);
    let tried = tried.into_inner();
    let Some((index, seed, overlap)) = found.first() else {
        assert!(tried < MEANINGFUL, "without the quarantine {tried} schedules made no two leaders: nothing is proved");
        figure("faults without the quarantine", &format!("{tried} schedules made no two leaders: too few to tell"));
        return;
    };
    let lasted = overlap.millis.map_or_else(|| "to the end".to_owned(), |millis| format!("{millis} ms"));
    figure(
        "faults without the quarantine",
        &format!(
            "two leaders in {} of the first {tried} schedules of the same seeds; the first is number {}, SEED={seed}, \
             for {lasted}",
            found.len(),
            index + 1
        ),
    );
}

/// `SEED` alone, or as many as the scale asks for, from `BASE` on.
fn seeds() -> Vec<u64> {
    static BASE: OnceLock<u64> = OnceLock::new();
    let number = |name: &str| {
        let parse = |text: String| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}"));
        setting(name).map(parse)
    };
    let count = number("SCHEDULES");
    if let Some(seed) = number("SEED") {
        return (0..count.unwrap_or(1)).map(|_| seed).collect();
    }
    let base = *BASE.get_or_init(|| {
        let base = number("BASE").unwrap_or_else(|| boot_micros() % 1_000_000_000);
        println!("all seeds are drawn from BASE={base}");
        base
    });
    let mut rng = Rng::new(base);
    (0..count.unwrap_or_else(|| scale().pick(200, 10_000))).map(|_| rng.next_u64() >> 16).collect()
}

/// Some at a time, in their order, until one says that it is enough.
fn side_by_side(seeds: &[u64], each: impl Fn(usize, u64) -> bool + Sync) {
    let (next, enough) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..LANES.min(seeds.len()) {
            scope.spawn(|| {
                while !enough.load(Ordering::SeqCst) {
                    let index = next.fetch_add(1, Ordering::SeqCst);
                    let Some(seed) = seeds.get(index) else { return };
                    if !each(index, *seed) {
                        enough.store(true, Ordering::SeqCst);
                    }
                }
            });
        }
    });
}

/// Runs a schedule; the text of the panic, if the harness could not go on.
fn attempt(seed: u64, program: &Path, kind: &str) -> Result<Run, String> {
    let run = || Run::of(Schedule::draw(seed), program.to_owned(), format!("faults-{kind}-{seed}"));
    std::panic::catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
    })
}
