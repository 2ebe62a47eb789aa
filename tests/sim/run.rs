//! Many histories, or one that is told.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use redleader::clock;

use crate::fault::{KINDS, names};
use crate::figures::{figure, setting};
use crate::plant::{Place, Plant, plant_core};
use crate::rush::slow_rush;
use crate::trace::Trace;
use crate::world::World;

/// Steps of one history: a core's input, or a node's operation.
const STEPS: u64 = 10_000;
/// Lines that tell of a failure.
const LINES: usize = 120;
/// Enough to see a pattern; the rest would say the same.
const FAILURES: usize = 20;

/// What many histories add up to.
#[derive(Default)]
pub struct Sum {
    pub seeds: u64,
    pub steps: u64,
    virtual_s: u64,
    counts: BTreeMap<(&'static str, &'static str), u64>,
    mosts: BTreeMap<&'static str, (u64, u64)>,
    pub failures: Vec<Failure>,
}

/// A history that broke a promise.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub step: u64,
    pub text: String,
}

/// Which histories.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    pub first: u64,
    pub seeds: u64,
    /// For this long, instead of a number of seeds.
    pub seconds: Option<u64>,
    /// Enough of them.
    pub failures: usize,
}

pub fn number(name: &str) -> Option<u64> {
    setting(name).map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number, not {value}")))
}

/// The quick look of a plain `cargo test`, `SCALE=ci` or `SCALE=soak`.
fn seeds() -> u64 {
    match setting("SCALE").as_deref() {
        None => 100,
        Some("ci") => 4_000,
        Some("soak") => 200_000,
        Some(other) => panic!("SCALE is ci or soak, not {other}"),
    }
}

fn steps() -> u64 {
    number("STEPS").unwrap_or(STEPS)
}

/// One history of so many steps at most, with those kinds of faults only whose bits are set.
fn history(seed: u64, plant: Option<Plant>, trace: Trace, faults: u64, steps: u64) -> (World, Option<Failure>) {
    let mut world = World::new(seed, trace);
    world.profile.faults &= faults;
    if let Some(plant) = plant {
        world.plant(plant);
    }
    let result = catch_unwind(AssertUnwindSafe(|| world.run(steps)));
    let text = match result {
        Ok(()) => world.failure.clone(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Some(format!("panic: {}", text.unwrap_or_default()))
        }
    };
    let step = world.steps;
    let failure = text.map(|text| Failure { seed, step, text });
    (world, failure)
}

/// All histories of a range, on all processors.
pub fn histories(range: Range, plant: Option<Plant>) -> Sum {
    let began = clock::now();
    let next = AtomicU64::new(range.first);
    let sum = Mutex::new(Sum::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let spent = clock::now().since(began).as_secs();
                    let is_over = range.seconds.map_or(seed >= range.first + range.seeds, |seconds| spent >= seconds);
                    if is_over || sum.lock().unwrap().failures.len() >= range.failures {
                        return;
                    }
                    let (world, failure) = history(seed, plant, Trace::default(), u64::MAX, steps());
                    sum.lock().unwrap().add(seed, &world, failure);
                }
            });
        }
    });
    sum.into_inner().unwrap()
}

impl Sum {
    fn add(&mut self, seed: u64, world: &World, failure: Option<Failure>) {
        self.seeds += 1;
        self.steps += world.steps;
        self.virtual_s += world.now / 1_000_000;
        for (what, count) in &world.counts {
            *self.counts.entry(*what).or_default() += count;
        }
        for (what, most) in &world.mosts {
            let found = self.mosts.entry(what).or_default();
            *found = (*found).max((*most, seed));
        }
        self.failures.extend(failure);
    }

    fn count(&self, what: &str) -> u64 {
        self.counts.iter().filter(|((name, _), _)| *name == what).map(|(_, count)| count).sum()
    }

    fn print(&self, spent: f64) {
        for ((what, which), count) in &self.counts {
            println!("{count:>10}  {what} {which}");
        }
        for (what, (most, seed)) in &self.mosts {
            println!("{most:>10}  at most: {what} (seed {seed})");
        }
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let rate = self.steps as f64 / spent.max(0.001);
        figure(
            "simulation",
            &format!(
                "{} steps over {} seeds ({} s of virtual time) in {spent:.0} s, {rate:.0} steps/s: {} elections, {} \
             hand-overs, {} faults, {} late effects, {} violations",
                self.steps,
                self.seeds,
                self.virtual_s,
                self.count("elections"),
                self.count("hand-overs"),
                self.count("faults"),
                self.count("late effects"),
                self.failures.len()
            ),
        );
    }

    /// Nothing is shown by a world in which nothing happens.
    fn check_that_things_happened(&self) {
        for (what, each) in [
            ("elections", 10),
            ("hand-overs", 5),
            ("faults", 50),
            ("late effects", 50),
            ("calms judged", 1),
            ("pauses", 1),
            ("keys refilled", 1),
            ("nodes lost", 1),
            ("quarantines seen", 5),
            ("asked the rest again", 1),
        ] {
            let count = self.count(what);
            assert!(count >= each * self.seeds, "only {count} {what} in {} seeds", self.seeds);
        }
        assert!(self.count("raised the token") > 0, "no token was raised");
    }
}

/// One history as a timeline. `LINES` says how much of it.
fn tell(seed: u64, plant: Option<Plant>, faults: u64) -> Option<Failure> {
    let (world, failure) = history(seed, plant, Trace::on(), faults, steps());
    let lines = number("LINES").map_or(LINES, |lines| usize::try_from(lines).unwrap());
    println!("seed {seed}, its profile: {:?}", world.profile);
    println!("faults that it may have: {}", names(world.profile.faults).join(", "));
    for line in world.trace.last(lines) {
        println!("{line}");
    }
    println!("seed {seed}: digest {:016x} after {} steps", world.digest, world.steps);
    failure
}

/// Histories of at most so many seeds until this many have failed.
const PLANTED_SEEDS: u64 = 12_000;
const PLANTED_FAILURES: usize = 2;

#[test]
#[ignore = "tests/sim/mutants runs it on a copy of the core in which bugs can be planted"]
fn planted_bugs_are_found() {
    print_found("planted bug", &Plant::ALL);
}

/// The promise says what it takes for granted, and it is true that it has to.
#[test]
fn limits_of_the_promise_are_found() {
    if number("SEED").is_none() {
        print_found("what is not promised", &Plant::LIMITS);
    }
}

/// Plants each in turn, and prints what was found as a table.
fn print_found(what: &str, plants: &[Plant]) {
    std::panic::set_hook(Box::new(|_| {}));
    let only = setting("PLANT");
    let mut missed = Vec::new();
    println!("| {what} | sits in | falls | found after steps | shortest history that fails, its seed | how |");
    println!("|---|---|---|---|---|---|");
    for plant in plants.iter().copied().filter(|plant| only.as_ref().is_none_or(|only| *only == format!("{plant:?}"))) {
        let is_core = plant_core(plant);
        assert!(is_core || plant.place() != Place::Core, "this core has no planted bugs: run tests/sim/mutants");
        let (text, place) = (plant.text(), format!("{:?}", plant.place()).to_lowercase());
        if plant == Plant::SplitSleeps
            && let Some(slow) = slow_rush()
        {
            println!("| {text} | {place} | I3 | at once | many want a free lock | {slow} |");
            continue;
        }
        let range = Range { first: 1, seeds: PLANTED_SEEDS, seconds: None, failures: PLANTED_FAILURES };
        let sum = histories(range, Some(plant));
        match sum.failures.iter().min_by_key(|failure| failure.step) {
            Some(failure) => {
                let (Failure { seed, step, text: how }, _) = shortest(failure, Some(plant));
                let first = sum.steps / sum.failures.len() as u64;
                let falls = invariant(&how);
                let how: String = how.chars().take(110).collect();
                println!("| {text} | {place} | {falls} | {first} | {step} steps, seed {seed} | {how} |");
            }
            None => {
                println!("| {text} | {place} | | not in {} | | |", sum.steps);
                missed.push(text);
            }
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// The same seed with fewer and fewer kinds of faults, as long as it still fails, and no later.
fn shortest(failure: &Failure, plant: Option<Plant>) -> (Failure, u64) {
    let mut best = (failure.clone(), u64::MAX);
    for kind in 0..KINDS {
        let fewer = best.1 & !(1 << kind);
        let (_, found) = history(failure.seed, plant, Trace::default(), fewer, best.0.step + 1);
        if let Some(found) = found.filter(|found| found.step <= best.0.step) {
            best = (found, fewer);
        }
    }
    best
}

/// Which of the protocol's invariants a failure is of.
fn invariant(text: &str) -> &'static str {
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if has(&["again after its release"]) {
        "I4"
    } else if has(&["has left", "cleans up nothing", "nobody takes it away", "right after its release"]) {
        "I5"
    } else if has(&["no leader", "lost its leadership", "does not hold the lock"]) {
        "I3"
    } else if has(&["after token", "from one clock alone"])
        || text.contains("answers Granted") && text.contains("token")
    {
        "I2"
    } else {
        "I1"
    }
}

#[test]
fn histories_hold_the_promise() {
    if let Some(seed) = number("SEED") {
        let plant = setting("PLANT").map(|name| {
            let found = Plant::ALL.into_iter().find(|plant| format!("{plant:?}") == name);
            found.unwrap_or_else(|| panic!("there is no planted bug {name}"))
        });
        plant.map(plant_core);
        let failure = tell(seed, plant, number("FAULTS").unwrap_or(u64::MAX));
        assert!(failure.is_none(), "{failure:?}");
        return;
    }
    let range = Range {
        first: number("FIRST").unwrap_or(1),
        seeds: number("SEEDS").unwrap_or_else(seeds),
        seconds: number("SECONDS"),
        failures: FAILURES,
    };
    let began = clock::now();
    let sum = histories(range, None);
    sum.print(clock::now().since(began).as_secs_f64());
    let earliest = sum.failures.iter().min_by_key(|failure| failure.step).cloned();
    if let Some(failure) = earliest {
        for failure in &sum.failures {
            println!("SEED={}: at step {}: {}", failure.seed, failure.step, failure.text);
        }
        let (shortest, faults) = shortest(&failure, None);
        println!("the shortest history that still fails: {} steps", shortest.step);
        tell(shortest.seed, None, faults);
        let seed = failure.seed;
        panic!(
            "again: SEED={seed} FAULTS={faults} LINES=1000 cargo test --profile sim --test sim histories -- --nocapture"
        );
    }
    sum.check_that_things_happened();
}

#[test]
fn one_seed_is_one_history() {
    for seed in 1..20 {
        let (one, _) = history(seed, None, Trace::default(), u64::MAX, steps());
        let (other, _) = history(seed, None, Trace::on(), u64::MAX, steps());
        assert_eq!((one.digest, one.steps, one.now), (other.digest, other.steps, other.now), "seed {seed}");
    }
}
