//! What all runs came to.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use crate::MEANINGFUL;
use crate::kind::Kind;
use crate::run::Run;
use crate::schedule::Schedule;
use crate::support::{figure, setting};

/// For how many milliseconds of a schedule somebody has to lead at least, on average; a machine that is always late
/// proves nothing.
const LEAST_REQUIRED: u64 = 100;

/// The sum of all runs, which come side by side.
#[derive(Default)]
pub struct Totals(Mutex<Sums>);

#[derive(Default)]
struct Sums {
    schedules: usize,
    elections: usize,
    handovers: usize,
    overlaps: usize,
    witnessed: usize,
    ready: usize,
    wrong: usize,
    longest_gap: u64,
    longest_unexplained: u64,
    required: u64,
    late: usize,
    late_for: u64,
    faults: BTreeMap<&'static str, usize>,
    worlds: BTreeMap<String, usize>,
    failed: Vec<u64>,
    doubtful: Vec<u64>,
}

impl Totals {
    /// Adds a run, and tells all of it if something is wrong. A time without a leader beside other runs can be a busy
    /// machine's; one in a run that was `alone` cannot.
    pub fn add(&self, run: &Run, alone: bool) {
        let (final_ones, unexplained) = (run.complaints(), run.unexplained());
        let is_doubtful = final_ones.is_empty() && unexplained.is_some() && !alone;
        let complaints: Vec<String> = final_ones.into_iter().chain(unexplained).collect();
        let verdict = &run.verdict;
        let mut sums = self.0.lock().unwrap();
        sums.schedules += 1;
        sums.elections += verdict.report.terms.len();
        sums.handovers += verdict.report.handovers;
        sums.overlaps += verdict.report.overlaps.len();
        sums.witnessed += verdict.witnessed;
        sums.ready += verdict.ready;
        sums.wrong += verdict.wrongly_ready;
        sums.longest_gap = sums.longest_gap.max(verdict.report.longest_gap.unwrap_or(0));
        let unexplained = verdict.unexplained.map_or(0, |(from, to)| to - from);
        sums.longest_unexplained = sums.longest_unexplained.max(unexplained);
        sums.required += verdict.required;
        sums.late += verdict.late.len();
        sums.late_for += verdict.late.iter().map(|(from, to)| to - from).sum::<u64>();
        for kind in run.events.iter().filter_map(|event| event.kind) {
            *sums.faults.entry(kind.as_str()).or_default() += 1;
        }
        for part in parts(&run.schedule) {
            *sums.worlds.entry(part).or_default() += 1;
        }
        let seed = run.schedule.seed;
        if is_doubtful {
            sums.doubtful.push(seed);
        } else if !complaints.is_empty() {
            sums.failed.push(seed);
        }
        drop(sums);
        // One schedule that is run alone is run to be read.
        if !complaints.is_empty() || setting("SEED").is_some() {
            let verdict = if complaints.is_empty() { "clean".to_owned() } else { complaints.join("\n") };
            println!("{verdict}\nSEED={seed} make faults runs it alone.\n{}\n{}", run.timeline(), keep(run));
        }
    }

    /// Adds a run that could not be finished.
    pub fn panicked(&self, seed: u64, panic: &str) {
        self.0.lock().unwrap().failed.push(seed);
        println!("SEED={seed} make faults runs it alone: {panic}");
    }

    /// Those in which nothing is wrong but a time without a leader.
    pub fn doubtful(&self) -> Vec<u64> {
        self.0.lock().unwrap().doubtful.clone()
    }

    /// Prints the sum, and panics if anything is wrong, or if too little happened to prove anything.
    pub fn judge(self, schedules: usize) {
        let sums = self.0.into_inner().unwrap();
        figure(
            "faults",
            &format!(
                "{} schedules, {} elections, {} hand-overs; overlaps {} by the logs, {} by the witness; of {} answers \
                 of 200 wrong {}; longest time without a leader {} ms, without a reason {} ms, in {} s in which \
                 somebody had to lead; the machine was late {} times, {} ms in all; run once \
                 more alone for a time without a leader: {}",
                sums.schedules,
                sums.elections,
                sums.handovers,
                sums.overlaps,
                sums.witnessed,
                sums.ready,
                sums.wrong,
                sums.longest_gap,
                sums.longest_unexplained,
                sums.required / 1000,
                sums.late,
                sums.late_for,
                sums.doubtful.len()
            ),
        );
        let count = |kind: Kind| sums.faults.get(kind.as_str()).copied().unwrap_or(0);
        let counts: Vec<String> =
            Kind::ALL.iter().map(|(kind, _)| format!("{} {}", kind.as_str(), count(*kind))).collect();
        figure("faults, of each kind", &counts.join(", "));
        figure("faults, worlds", &format!("{:?}", sums.worlds));
        assert!(sums.failed.is_empty(), "failed: {:?}; each is told above", sums.failed);
        let doubtful = sums.doubtful.len();
        assert!(doubtful <= schedules.div_ceil(50), "in {doubtful} schedules nobody led and no fault was the reason");
        assert!(sums.handovers > 0, "no hand-over, so the run proves nothing");
        assert!(sums.ready > 0, "the witness never saw anyone ready");
        let required = sums.required / schedules.max(1) as u64;
        assert!(
            required >= LEAST_REQUIRED,
            "somebody had to lead for {required} ms in a schedule only: is all excused?"
        );
        if schedules >= MEANINGFUL {
            let never: Vec<&str> =
                Kind::ALL.iter().filter(|(kind, _)| count(*kind) == 0).map(|(kind, _)| kind.as_str()).collect();
            assert!(never.is_empty(), "never happened: {never:?}");
        }
    }
}

/// What a schedule was run with.
fn parts(schedule: &Schedule) -> impl Iterator<Item = String> {
    let Schedule { ttl, nodes, candidates, .. } = schedule;
    let sizes = [
        format!("ttl {} ms", ttl.as_millis()),
        format!("of {} nodes", nodes.len()),
        format!("of {} candidates", candidates.len()),
    ];
    let clocks = nodes.iter().filter(|node| node.clock.is_some()).map(|_| "own clock".to_owned());
    let flavours = nodes.iter().map(|node| node.flavour.as_str().to_owned());
    sizes.into_iter().chain(flavours).chain(clocks)
}

/// Keeps the logs in a file and says where.
fn keep(run: &Run) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("faults-{}.log", run.schedule.seed));
    match std::fs::write(&path, run.logs()) {
        Ok(()) => format!("the logs are in {}", path.display()),
        Err(error) => format!("the logs cannot be kept in {}: {error}", path.display()),
    }
}
