//! One node of three is lost, in every way that a node can be: nobody notices but the one who looks at its metrics.

use std::time::Duration;

use crate::candidates::{Candidates, PATIENCE, Plan};
use crate::support::{
    Data, Flavour, Mode, Monitor, Proxy, Replica, Server, ServerOptions, boot_ms, eventually, figure, percentile,
    resp::Client,
};

/// Long beside a loaded machine's stalls, since a missed extend must be told from a late one.
const TTL: Duration = Duration::from_secs(2);
/// What happens to the third node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Killed,
    Hung,
    Blackholed,
    Refusing,
    Loading,
    OutOfMemory,
    WrongPassword,
}

impl Fault {
    fn as_str(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Hung => "hung",
            Self::Blackholed => "blackholed",
            Self::Refusing => "refusing",
            Self::Loading => "loading",
            Self::OutOfMemory => "out-of-memory",
            Self::WrongPassword => "wrong-password",
        }
    }

    /// What the leader says of the node meanwhile; nothing, where an extend goes on as before.
    fn kind(self) -> Option<&'static str> {
        match self {
            Self::Killed | Self::Refusing => Some("connect"),
            Self::Hung | Self::Blackholed => Some("timeout"),
            Self::Loading => Some("loading"),
            Self::OutOfMemory => None,
            Self::WrongPassword => Some("auth"),
        }
    }
}

/// The third node, and the path that all take to it.
struct Third {
    server: Server,
    proxy: Proxy,
    /// Opened before the fault, so that it outlives a new password.
    client: Client,
}

impl Third {
    fn start(flavour: Flavour, fault: Fault) -> Self {
        let options = ServerOptions::new();
        let server = match fault {
            Fault::Loading => Self::slow_to_load(flavour, options),
            Fault::Killed
            | Fault::Hung
            | Fault::Blackholed
            | Fault::Refusing
            | Fault::OutOfMemory
            | Fault::WrongPassword => Server::start(flavour, options),
        };
        let proxy = Proxy::start(&server.address());
        let client = server.client().expect("it runs");
        Self { server, proxy, client }
    }

    /// A server with so much data that it loads for longer than the rounds that are watched meanwhile, and that answers
    /// clients every few keys.
    fn slow_to_load(flavour: Flavour, options: ServerOptions) -> Server {
        let (options, populate) = match flavour {
            Flavour::Redis70 | Flavour::Valkey9 => {
                let often = ["--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024"];
                (options.args(often), &["DEBUG", "POPULATE", "2500"][..])
            }
            // It answers every 2 MiB, and nothing can be set about that.
            Flavour::Redis62 => {
                let large = ["--key-load-delay", "20000", "--rdbcompression", "no", "--rdbchecksum", "no"];
                (options.args(large), &["DEBUG", "POPULATE", "150", "key", "700000"][..])
            }
        };
        let server = Server::start(flavour, options);
        assert_eq!(server.cli(populate).text(), "OK");
        server
    }

    fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Killed => self.server.kill(),
            Fault::Hung => self.server.stop(),
            Fault::Blackholed => self.proxy.set(Mode::Blackhole),
            Fault::Refusing => self.proxy.set(Mode::Refuse),
            Fault::Loading => {
                self.ok(&["SAVE"]);
                self.server.restart(Data::Kept);
            }
            Fault::OutOfMemory => {
                self.ok(&["CONFIG", "SET", "maxmemory", "1"]);
                let refused = self.server.cli(&["SET", "one-more", "key"]);
                assert!(refused.text().starts_with("OOM"), "memory is not short: {}", refused.text());
            }
            Fault::WrongPassword => {
                self.ok(&["CONFIG", "SET", "requirepass", "another"]);
                for kind in ["normal", "pubsub"] {
                    let killed = self.client.call(&["CLIENT", "KILL", "TYPE", kind]).expect("it runs");
                    assert!(killed.int().is_some(), "CLIENT KILL: {}", killed.text());
                }
            }
        }
    }

    /// Ends the fault, or waits for its end.
    fn heal(&mut self, fault: Fault) {
        match fault {
            Fault::Killed => self.server.start_again(Data::Lost),
            Fault::Hung => self.server.cont(),
            Fault::Blackholed | Fault::Refusing => self.proxy.set(Mode::Pass),
            Fault::Loading => eventually("the node has loaded its data", PATIENCE, || {
                (self.server.cli(&["PING"]).text() == "PONG").then_some(())
            }),
            Fault::OutOfMemory => self.ok(&["CONFIG", "SET", "maxmemory", "0"]),
            Fault::WrongPassword => self.ok(&["CONFIG", "SET", "requirepass", ""]),
        }
    }

    fn ok(&mut self, args: &[&str]) {
        let answer = self.client.call(args).expect("it runs");
        assert_eq!(answer.text(), "OK", "{args:?}");
    }
}

/// When extends of the lock were executed on a node, in boot time.
fn extends(monitor: &Monitor, lock: &str) -> Vec<u64> {
    let is_extend = |name: &str, args: &[String]| name == "PEXPIRE" && args.first().is_some_and(|key| key == lock);
    let lines = monitor.lines().into_iter().filter(|line| line.is_script() && is_extend(&line.name, &line.args));
    lines.map(|line| line.boot_ms).collect()
}

fn wait_extends(monitor: &Monitor, lock: &str, since: u64, count: usize) -> Vec<u64> {
    eventually(&format!("{count} extends of {lock}"), PATIENCE, || {
        let times: Vec<u64> = extends(monitor, lock).into_iter().filter(|at| *at >= since).collect();
        (times.len() >= count).then_some(times)
    })
}

/// The median round of the leader's extends that had a quorum, in seconds, between two readings of its histogram.
fn median_round(before: &[(f64, f64)], after: &[(f64, f64)]) -> f64 {
    let counts: Vec<(f64, f64)> = after.iter().zip(before).map(|(new, old)| (new.0, new.1 - old.1)).collect();
    let half = counts.last().expect("a histogram has buckets").1 / 2.0;
    assert!(half > 0.0, "no extend was counted");
    let mut low = (0.0, 0.0);
    for (bound, count) in counts {
        if count >= half {
            return low.0 + (bound - low.0) * (half - low.1) / (count - low.1);
        }
        low = (bound, count);
    }
    unreachable!("the last bucket holds all")
}

/// The buckets of extends that had a quorum: upper bound and count so far.
fn rounds(leader: &Replica) -> Vec<(f64, f64)> {
    let bucket = |(sample, count): (String, f64)| {
        let is_ok = sample.starts_with("redleader_extend_duration_seconds_bucket{") && sample.contains("\"ok\"");
        let bound = sample.split_once("le=\"")?.1.split_once('"')?.0.parse().ok()?;
        is_ok.then_some((bound, count))
    };
    let mut buckets: Vec<(f64, f64)> = leader.metrics().into_iter().filter_map(bucket).collect();
    buckets.retain(|(bound, _)| bound.is_finite());
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert!(!buckets.is_empty(), "the leader's metrics have no extends");
    buckets
}

fn median_interval(times: &[u64]) -> f64 {
    let intervals: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
    percentile(&intervals, 50).expect("more than one extend was seen")
}

/// The test: `count` extends before, as many during, and two after.
fn survives(flavour: Flavour, fault: Fault, count: usize) {
    let name = format!("E3 {} {}", flavour.as_str(), fault.as_str());
    let plan = Plan::new(&format!("one-down-{}", fault.as_str()), TTL).quick_to_connect();
    let lock = plan.lock.clone();
    let healthy = [Server::start(flavour, ServerOptions::new()), Server::start(flavour, ServerOptions::new())];
    let mut third = Third::start(flavour, fault);
    let urls = vec![healthy[0].url(), healthy[1].url(), third.proxy.url()];
    let monitors = healthy.each_ref().map(Server::monitor);
    let mut candidates = Candidates::start(plan.clone(), &[urls.clone(), urls.clone(), urls]);
    let led = candidates.wait_leader(0, PATIENCE);
    let owner = candidates.wait_owner(led, healthy.iter().chain([&third.server]));

    let at_start = rounds(candidates.replica(led.seat));
    let calm = wait_extends(&monitors[0], &lock, boot_ms(), count);
    let at_strike = rounds(candidates.replica(led.seat));
    let struck = boot_ms();
    third.strike(fault);
    let down = monitors.each_ref().map(|monitor| wait_extends(monitor, &lock, struck, count));
    let (before, during) =
        (median_round(&at_start, &at_strike), median_round(&at_strike, &rounds(candidates.replica(led.seat))));
    assert_node(candidates.replica(led.seat), fault);
    third.heal(fault);
    let healed = boot_ms();
    let held = eventually("the third node holds the key again", PATIENCE, || {
        (third.server.cli(&["GET", &lock]).text() == owner).then(boot_ms)
    });
    let needed = extends(&monitors[0], &lock).into_iter().filter(|at| (healed..held).contains(at)).count();

    let intervals = [median_interval(&calm), median_interval(&down[0])];
    let longest = |times: &[u64]| times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
    figure(
        &name,
        &format!(
            "an extend every {:.0} ms (without the fault {:.0} ms, longest {} ms), round p50 {:.2} ms (without the \
             fault {:.2} ms, ratio {:.1}), held again after {needed} extends, {} ms",
            intervals[1],
            intervals[0],
            longest(&down[0]),
            during * 1e3,
            before * 1e3,
            during / before,
            held - healed
        ),
    );
    let renew = plan.renew().as_millis() as f64;
    let slack = plan.node_timeout().as_millis() as f64 / 2.0;
    for times in &down {
        assert!((median_interval(times) - renew).abs() < slack, "{name}: extends lose their rhythm: {times:?}");
        assert!((longest(times) as f64) < renew * 2.0, "{name}: an extend is missing: {times:?}");
    }
    assert!(during < plan.node_timeout().as_secs_f64() / 2.0, "{name}: a round waits for the node: {during} s");
    assert!(needed <= 2, "{name}: {needed} extends before the node held the key again");
    eventually("the leader sees the node again", PATIENCE, || {
        (candidates.replica(led.seat).leader_json()["nodes"][2]["up"] == true).then_some(())
    });
    assert_one_leadership(&mut candidates, led.seat, &name);
}

/// The leader knows which node is ill, and how.
fn assert_node(leader: &Replica, fault: Fault) {
    let report = leader.leader_json();
    assert_eq!(report["leading"], true, "{report}");
    let node = &report["nodes"][2];
    assert_eq!(node["error"].as_str(), fault.kind(), "{report}");
    assert_eq!(node["up"], fault.kind().is_none(), "{report}");
}

/// One election in all, no step-down, no leadership of anyone else: by every log.
fn assert_one_leadership(candidates: &mut Candidates, seat: usize, name: &str) {
    assert!(candidates.replica(seat).leads(), "{name}: the leader is not ready");
    let report = candidates.report();
    assert_eq!(report.terms.len(), 1, "{name}: leadership changed: {:#?}", report.terms);
    assert_eq!(report.terms[0].end, None, "{name}: {:#?}", report.terms);
    for replica in candidates.replicas() {
        assert!(replica.logged("stepping down").is_empty(), "{name}: {} steps down", replica.identity());
    }
}

/// One test for each fault, on one kind of server.
macro_rules! on {
    ($module:ident, $flavour:expr, $count:expr) => {
        mod $module {
            use super::*;

            #[test]
            fn a_killed_node_is_not_felt() {
                survives($flavour, Fault::Killed, $count);
            }

            #[test]
            fn a_hung_node_is_not_felt() {
                survives($flavour, Fault::Hung, $count);
            }

            #[test]
            fn a_blackholed_node_is_not_felt() {
                survives($flavour, Fault::Blackholed, $count);
            }

            #[test]
            fn a_refusing_node_is_not_felt() {
                survives($flavour, Fault::Refusing, $count);
            }

            #[test]
            fn a_loading_node_is_not_felt() {
                survives($flavour, Fault::Loading, $count);
            }

            #[test]
            fn a_node_out_of_memory_is_not_felt() {
                survives($flavour, Fault::OutOfMemory, $count);
            }

            #[test]
            fn a_node_with_another_password_is_not_felt() {
                survives($flavour, Fault::WrongPassword, $count);
            }
        }
    };
}

on!(redis_7_0, Flavour::Redis70, 6);
on!(redis_6_2, Flavour::Redis62, 4);
on!(valkey_9, Flavour::Valkey9, 4);
