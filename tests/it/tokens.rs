//! Fencing tokens strictly increase, whatever ends the leaderships, whatever the nodes forget, whichever replies are
//! lost.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::candidates::{Candidates, End, Led, PATIENCE, Plan};
use crate::support::{Data, Flavour, Mode, Proxy, Rng, Servers, boot_ms, eventually, figure, scale};

const TTL: Duration = Duration::from_millis(500);
/// Sets of nodes side by side, each with a lock and candidates of its own.
const LANES: usize = 5;

#[test]
fn tokens_increase_over_hundreds_of_leaderships_redis_7_0() {
    increase(Flavour::Redis70, 3, scale().pick(500, 20_000), LANES);
}

#[test]
fn tokens_increase_over_hundreds_of_leaderships_five_nodes() {
    increase(Flavour::Redis70, 5, scale().pick(100, 2000), 2);
}

#[test]
fn tokens_increase_over_hundreds_of_leaderships_redis_6_2() {
    increase(Flavour::Redis62, 3, scale().pick(100, 2000), 2);
}

#[test]
fn tokens_increase_over_hundreds_of_leaderships_valkey_9() {
    increase(Flavour::Valkey9, 3, scale().pick(100, 2000), 2);
}

fn increase(flavour: Flavour, nodes: usize, leaderships: usize, lanes: usize) {
    let name = format!("E7 {}, {nodes} nodes", flavour.as_str());
    let base = Rng::seeded(&name).next_u64();
    let began = boot_ms();
    let sums = Mutex::new((0, 0, BTreeMap::new(), 0));
    std::thread::scope(|scope| {
        for lane in 0..lanes {
            let (name, sums) = (format!("{name} lane {lane}"), &sums);
            scope.spawn(move || {
                let mut run = Run::start(flavour, nodes, &format!("tokens-{lane}"), base.wrapping_add(lane as u64));
                let (led, handovers) = run.lead(&name, leaderships.div_ceil(lanes));
                let mut sums = sums.lock().unwrap();
                sums.0 += led;
                sums.1 += handovers;
                for (what, count) in run.done {
                    *sums.2.entry(what).or_insert(0) += count;
                }
                sums.3 += run.lost;
            });
        }
    });
    let (led, handovers, done, lost) = sums.into_inner().unwrap();
    let took = (boot_ms() - began) / 1000;
    figure(
        &name,
        &format!(
            "{led} leaderships in {took} s, hand-overs {handovers}, tokens strictly increase; {lost} replies lost; \
             {done:?}"
        ),
    );
    assert!(led >= leaderships, "{name}: {led} leaderships");
    assert!(lost > 0, "{name}: no reply was lost");
    for what in Act::ALL.map(Act::as_str) {
        assert!(done.get(what).is_some_and(|count| *count > 0), "{name}: never happened: {what}");
    }
}

/// What ends a leadership, or happens just before it ends.
#[derive(Clone, Copy, Debug)]
enum Act {
    Resign,
    Term,
    Kill,
    RestartOne,
    RestartMost,
    RestartAll,
    LoseReplies,
}

impl Act {
    const ALL: [Self; 7] = [
        Self::Resign,
        Self::Term,
        Self::Kill,
        Self::RestartOne,
        Self::RestartMost,
        Self::RestartAll,
        Self::LoseReplies,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Resign => "resigned",
            Self::Term => "replica ended",
            Self::Kill => "replica killed",
            Self::RestartOne => "one node restarted empty",
            Self::RestartMost => "most nodes restarted empty",
            Self::RestartAll => "all nodes restarted empty",
            Self::LoseReplies => "replies lost",
        }
    }

    /// Most are quick, so that there can be hundreds; those that cost a ttl or a quarantine are rare.
    fn pick(rng: &mut Rng) -> Self {
        match rng.index(100) {
            0..4 => Self::Kill,
            4..14 => Self::Term,
            14..19 => Self::RestartOne,
            19..22 => Self::RestartMost,
            22..25 => Self::RestartAll,
            25..45 => Self::LoseReplies,
            _ => Self::Resign,
        }
    }
}

/// One lock on some nodes, with a path to each node that all candidates share.
struct Run {
    rng: Rng,
    servers: Servers,
    paths: Vec<Proxy>,
    candidates: Candidates,
    done: BTreeMap<&'static str, usize>,
    lost: usize,
}

impl Run {
    fn start(flavour: Flavour, nodes: usize, lock: &str, seed: u64) -> Self {
        let servers = Servers::of(flavour, nodes);
        let paths: Vec<Proxy> = servers.addresses().iter().map(|address| Proxy::start(address)).collect();
        let urls: Vec<String> = paths.iter().map(Proxy::url).collect();
        let plan = Plan::new(lock, TTL).quick_to_connect().patient();
        let candidates = Candidates::start(plan, &[urls.clone(), urls.clone(), urls]);
        Self { rng: Rng::new(seed), servers, paths, candidates, done: BTreeMap::new(), lost: 0 }
    }

    /// Lets `count` leaderships begin and end; how many there were, and hand-overs.
    fn lead(&mut self, name: &str, count: usize) -> (usize, usize) {
        let mut last = 0;
        // Each act at least once, then by chance.
        let mut first = Act::ALL.into_iter();
        for _ in 1..count {
            let led = self.candidates.wait_leader(last, PATIENCE);
            last = led.token;
            let act = first.next().unwrap_or_else(|| Act::pick(&mut self.rng));
            self.end(led, act);
            *self.done.entry(act.as_str()).or_default() += 1;
        }
        self.candidates.wait_leader(last, PATIENCE);
        let report = self.candidates.report();
        if !report.overlaps.is_empty() || !report.tokens_increase {
            self.candidates.print_logs();
        }
        assert!(report.overlaps.is_empty(), "{name}: two leaders: {:#?}", report.overlaps);
        let mut pairs = report.terms.windows(2);
        let stale = pairs.find(|pair| pair[0].token >= pair[1].token);
        assert!(stale.is_none(), "{name}: a token did not grow: {stale:?}");
        assert!(report.handovers > 0, "{name}: no hand-over, so the run proves nothing");
        (report.terms.len(), report.handovers)
    }

    fn end(&mut self, led: Led, act: Act) {
        match act {
            Act::Resign => self.resign(led),
            Act::Term => self.candidates.replace(led.seat, End::Term),
            Act::Kill => self.candidates.replace(led.seat, End::Kill),
            Act::RestartOne => self.restart_and_resign(led, 1),
            Act::RestartMost => self.restart_and_resign(led, self.servers.len() / 2 + 1),
            Act::RestartAll => self.restart_and_resign(led, self.servers.len()),
            Act::LoseReplies => self.lose_replies(led),
        }
    }

    /// It may have lost its leadership a moment ago: that is an end, too.
    fn resign(&mut self, led: Led) {
        let output = self.candidates.replica(led.seat).command(&["resign", "--for", "0s"]);
        assert!([0, 1].contains(&output.code), "resign: {}", output.stderr);
    }

    fn restart_and_resign(&mut self, led: Led, count: usize) {
        let nodes = self.servers.len();
        let first = self.rng.index(nodes);
        std::thread::scope(|scope| {
            for (index, server) in self.servers.iter_mut().enumerate() {
                if (index + nodes - first) % nodes < count {
                    scope.spawn(|| server.restart(Data::Lost));
                }
            }
        });
        self.resign(led);
    }

    /// The leader resigns, and what some nodes say to the campaign that follows is lost.
    fn lose_replies(&mut self, led: Led) {
        let nodes = self.servers.len();
        let count = 1 + self.rng.index(nodes / 2 + 1);
        let first = self.rng.index(nodes);
        let chosen: Vec<usize> = (0..count).map(|offset| (first + offset) % nodes).collect();
        for path in &chosen {
            self.paths[*path].clear();
            self.paths[*path].set(Mode::DropReplies);
        }
        self.resign(led);
        let scripts = |path: &Proxy| path.count("EVALSHA") + path.count("EVAL");
        // The release, and whatever is asked before the path is mended again.
        let lost = eventually("requests whose replies are lost", PATIENCE, || {
            let lost: usize = chosen.iter().map(|path| scripts(&self.paths[*path])).sum();
            (lost > 2 * count).then_some(lost)
        });
        self.lost += lost;
        for path in &chosen {
            self.paths[*path].set(Mode::Pass);
        }
    }
}
