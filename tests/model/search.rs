//! The search, and what it says.

use redleader::clock;
use stateright::{Checker, Model, Property};

use crate::figures::{figure, setting};
use crate::plant::Plant;
use crate::world::{Bounds, Case, Step, World};

const HOLDS: &str = "one believer, tokens strictly increase, no belief after its deadline";

const LEADS: &str = "somebody leads";
const FORGETS: &str = "a node has forgotten and somebody leads";
const AGAIN: &str = "there has been a second leadership";

impl Model for Case {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![self.begin()]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        self.steps(world, steps);
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        Some(self.take(world, step))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(HOLDS, |_, world: &World| world.broken.is_none()),
            // A search in which nothing happens shows nothing.
            Property::sometimes(LEADS, |_, world: &World| world.wins > 0),
            Property::sometimes(FORGETS, |case: &Case, world: &World| {
                world.restarts > 0 && (0..2).any(|slot| case.is_believing(world, slot))
            }),
            Property::sometimes(AGAIN, |_, world: &World| world.wins > 1),
        ]
    }
}

/// What was found: distinct states, and how something broke.
struct Found {
    states: usize,
    broken: Option<(&'static str, Vec<Step>)>,
    seen: Vec<&'static str>,
}

/// Every state within the bounds, or all until something breaks.
fn search(name: &str, bounds: Bounds, plant: Option<Plant>) -> Found {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let began = clock::now();
    // It keeps fingerprints of the states, of 64 bits, and not the states.
    let checker = Case::new(bounds, plant).checker().threads(threads).spawn_dfs().join();
    let states = checker.unique_state_count();
    let mut discoveries = checker.discoveries();
    let broken = discoveries.remove(HOLDS).map(|path| {
        let what = path.last_state().broken.expect("what the property is about");
        (what, path.into_actions())
    });
    let end = if broken.is_some() { "until it broke" } else { "complete within these bounds" };
    figure(
        "model",
        &format!(
            "{name}: {states} distinct states, {} transitions, depth {}, in {:.0} s; {end}: 3 nodes, 2 candidates, {} ms, {} \
         messages held back for as long as one likes, {} empty restarts, {} resignations",
            checker.state_count() - 1,
            checker.max_depth(),
            clock::now().since(began).as_secs_f64(),
            bounds.horizon / 1000,
            bounds.held,
            bounds.restarts,
            bounds.resigns
        ),
    );
    Found { states, broken, seen: discoveries.into_keys().collect() }
}

/// How two candidates begin, with more messages held back; a longer time, with renewals and what runs out; and a leader
/// that resigns.
fn cases() -> [(&'static str, Bounds); 3] {
    let bounds = |horizon: u64, held, restarts, resigns| Bounds { horizon: horizon * 1000, held, restarts, resigns };
    let [begins, goes_on, resigns] = match setting("SCALE").as_deref() {
        None => [bounds(150, 1, 1, 0), bounds(1_300, 0, 1, 0), bounds(300, 1, 0, 1)],
        Some("ci") => [bounds(250, 2, 1, 0), bounds(2_000, 1, 1, 0), bounds(300, 1, 1, 1)],
        Some("soak") => [bounds(400, 2, 1, 0), bounds(5_000, 1, 1, 0), bounds(450, 1, 1, 1)],
        Some(other) => panic!("SCALE is ci or soak, not {other}"),
    };
    [("first elections", begins), ("a long leadership", goes_on), ("a leader resigns", resigns)]
}

#[test]
fn the_smallest_case_holds_the_promise() {
    let mut states = 0;
    for (name, bounds) in cases() {
        let found = search(name, bounds, None);
        assert_eq!(found.broken, None, "{name}");
        let mut wanted = vec![LEADS];
        wanted.extend((bounds.restarts > 0).then_some(FORGETS));
        wanted.extend((bounds.resigns > 0).then_some(AGAIN));
        for what in wanted {
            assert!(found.seen.contains(&what), "{name}: there is no state in which {what}");
        }
        states += found.states;
    }
    if setting("SCALE").is_some() {
        figure("model", &format!("{states} distinct states in all, and nothing broken in any"));
        assert!(states >= 5_000_000, "only {states} states");
    }
}

#[test]
fn without_quarantine_it_finds_two_believers() {
    let bounds = Bounds { horizon: 250_000, held: 1, restarts: 1, resigns: 0 };
    let (what, steps) = search("without quarantine", bounds, Some(Plant::NoQuarantine)).broken.expect("it can fail");
    println!("{what} falls after: {steps:?}");
    assert_eq!(what, "one believer");
}
