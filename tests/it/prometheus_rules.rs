//! The chart's alerts: each fires on its fault, and none does on what happens in a healthy cluster.
//!
//! A story is a world of pods, told as the samples that a Prometheus takes of each every 15 seconds; `promtool test
//! rules` evaluates the rules over it. Then the rules are spoilt, one at a time, and a story has to notice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use crate::support::{Output, TempDir, figure, run};

const RULES: &str = include_str!("../../charts/redleader/files/rules.yaml");
/// Between two moments at which a sample can be taken, in seconds.
const STEP: u64 = 5;
/// Between two scrapes of a pod, and between two evaluations.
const SCRAPE: u64 = 15;
const MINUTE: u64 = 60;
const SOON: Duration = Duration::from_secs(60);
const NODES: [&str; 3] = ["redis-0:6379", "redis-1:6379", "redis-2:6379"];
const VALID_FOR: u64 = 8;

/// What one scrape finds of one series.
#[derive(Clone, Copy, PartialEq)]
enum Sample {
    Is(f64),
    /// Prometheus looked and the series was gone: it marks that.
    Stale,
    /// Prometheus did not look.
    Missing,
}

/// One pod, and when it led.
#[derive(Clone)]
struct Pod {
    name: &'static str,
    terms: Vec<(u64, u64)>,
    alive: (u64, u64),
    /// Its end leaves no mark: the series just ends.
    unmarked: bool,
    /// When it is scraped, after each evaluation: no two pods are scraped at once.
    phase: u64,
}

fn pod(name: &'static str, terms: &[(u64, u64)]) -> Pod {
    Pod { name, terms: terms.to_vec(), alive: (0, u64::MAX), unmarked: false, phase: 0 }
}

impl Pod {
    fn alive(mut self, from: u64, to: u64) -> Self {
        self.alive = (from, to);
        self
    }

    fn unmarked(mut self) -> Self {
        self.unmarked = true;
        self
    }

    fn term(&self, at: u64) -> Option<(u64, u64)> {
        self.terms.iter().copied().find(|(from, to)| (*from..*to).contains(&at))
    }

    fn sample(&self, at: u64, value: Option<f64>) -> Sample {
        match value {
            _ if at % SCRAPE != self.phase => Sample::Missing,
            _ if at < self.alive.0 => Sample::Missing,
            _ if at >= self.alive.1 && self.unmarked => Sample::Missing,
            Some(value) if at < self.alive.1 => Sample::Is(value),
            Some(_) | None => Sample::Stale,
        }
    }
}

/// Samples of all series, for some minutes.
#[derive(Clone)]
struct Story {
    steps: u64,
    series: BTreeMap<String, Vec<Sample>>,
}

impl Story {
    /// `pods` of one lock in `namespace` on three healthy nodes.
    fn of(minutes: u64, namespace: &str, pods: &[Pod]) -> Self {
        let mut story = Self { steps: minutes * MINUTE / STEP, series: BTreeMap::new() };
        // The first one late, so that its last sample is old when a successor's is taken.
        let phases = [2 * STEP, 0, STEP].into_iter().cycle();
        for (pod, phase) in pods.iter().zip(phases) {
            story.add_pod(namespace, &Pod { phase, ..pod.clone() }, pods);
        }
        story
    }

    /// The same with the series of `other`.
    fn and(mut self, other: Self) -> Self {
        self.series.extend(other.series);
        self
    }

    fn add_pod(&mut self, namespace: &str, pod: &Pod, pods: &[Pod]) {
        let target =
            format!("job=\"app\",namespace=\"{namespace}\",pod=\"{}\",instance=\"{}:9797\"", pod.name, pod.name);
        let lock = format!("{target},lock=\"job\"");
        let mut add = |name: &str, labels: &str, value: &dyn Fn(u64) -> Option<f64>| {
            let samples = (0..=self.steps).map(|step| pod.sample(step * STEP, value(step * STEP))).collect();
            self.series.insert(format!("{name}{{{labels}}}"), samples);
        };
        let leads = |at: u64| pod.term(at).is_some();
        add("redleader_is_leader", &lock, &|at| Some(f64::from(u8::from(leads(at)))));
        add("redleader_lease_expiry_timestamp_seconds", &lock, &|at| leads(at).then_some((at + VALID_FOR) as f64));
        add("redleader_leader_since_timestamp_seconds", &lock, &|at| pod.term(at).map(|(from, _)| from as f64));
        for holder in pods {
            // A key outlives a holder that was killed, and with it what the others know of him.
            let held = |at: u64| {
                let end = |to: u64| if to == holder.alive.1 { to.saturating_add(VALID_FOR) } else { to };
                holder.terms.iter().any(|(from, to)| (*from..end(*to)).contains(&at))
            };
            add("redleader_holder_info", &format!("{lock},holder=\"{}\"", holder.name), &|at| held(at).then_some(1.0));
        }
        let elected = |at: u64| pod.terms.iter().filter(|(from, _)| *from > 0 && *from <= at).count() as f64;
        add("redleader_transitions_total", &format!("{lock},event=\"elected\""), &|at| Some(elected(at)));
        add("redleader_quorum_required", &lock, &|_| Some(2.0));
        add("redleader_list_mismatch", &lock, &|_| Some(0.0));
        add("redleader_extend_margin_ratio_count", &lock, &|at| Some((at / 2) as f64));
        add("redleader_extend_margin_ratio_bucket", &format!("{lock},le=\"0.3\""), &|_| Some(0.0));
        for node in NODES {
            let node = format!("{target},node=\"{node}\"");
            add("redleader_node_up", &node, &|_| Some(1.0));
            add("redleader_node_quarantined", &node, &|_| Some(0.0));
            add("redleader_node_eviction_policy_bad", &node, &|_| Some(0.0));
            add("redleader_node_clock_rate_ratio", &node, &|_| Some(1.000_02));
        }
        let label = format!("{target},target=\"label\"");
        add("redleader_publish_pending", &label, &|_| Some(0.0));
        add("redleader_publish_errors_total", &format!("{label},code=\"403\""), &|_| Some(0.0));
        add("kube_pod_status_ready", &format!("{target},condition=\"true\""), &|_| Some(1.0));
    }

    /// The same, with what `found` says in place of each sample of the series that contain all `words`.
    fn but(mut self, words: &[&str], found: impl Fn(u64, Sample) -> Sample) -> Self {
        let mut touched = 0;
        for (name, samples) in &mut self.series {
            if words.iter().all(|word| name.contains(word)) {
                touched += 1;
                for (step, sample) in samples.iter_mut().enumerate().filter(|(_, sample)| **sample != Sample::Missing) {
                    *sample = found(step as u64 * STEP, *sample);
                }
            }
        }
        assert!(touched > 0, "{words:?} is no series");
        self
    }

    /// The same, with these values from `from` to `to` in the series that contain all `words`.
    fn between(self, from: u64, to: u64, words: &[&str], value: impl Fn(u64) -> f64) -> Self {
        self.but(words, |at, was| if (from..to).contains(&at) { Sample::Is(value(at)) } else { was })
    }

    /// Which alerts ever fire, as promtool judges it: its answer is "SUCCESS" if these do and no others.
    fn judge(&self, rules: &str, fires: &[&str]) -> Output {
        let directory = TempDir::new();
        let rules = directory.write("rules.yaml", rules);
        let mut text = format!("rule_files: [{}]\nevaluation_interval: {SCRAPE}s\n", rules.display());
        let _ = write!(text, "tests:\n- interval: {STEP}s\n  input_series:\n");
        for (name, samples) in &self.series {
            let _ = writeln!(text, "  - {{series: '{name}', values: '{}'}}", values(samples));
        }
        let end = self.steps * STEP;
        let _ = write!(
            text,
            "  promql_expr_test:\n  - expr: 'group by (alertname) (count_over_time(ALERTS{{alertstate=\"firing\"}}[{end}s]))'\n    \
             eval_time: {end}s\n    exp_samples:\n"
        );
        for alert in fires {
            let _ = writeln!(text, "    - {{labels: '{{alertname=\"{alert}\"}}', value: 1}}");
        }
        let mut command = Command::new("promtool");
        command.args(["test", "rules"]).arg(directory.write("story.yaml", &text));
        run("promtool", command, SOON)
    }
}

fn values(samples: &[Sample]) -> String {
    let texts = samples.iter().map(|sample| match sample {
        Sample::Is(value) => value.to_string(),
        Sample::Stale => "stale".to_owned(),
        Sample::Missing => "_".to_owned(),
    });
    texts.collect::<Vec<_>>().join(" ")
}

const EVER: u64 = u64::MAX;

/// A leader from the beginning on, and two standbys.
fn healthy(minutes: u64) -> Story {
    Story::of(minutes, "prod", &[pod("a", &[(0, EVER)]), pod("b", &[]), pod("c", &[])])
}

/// A killed leader: its key lasts for what is left of it, and then a standby wins.
fn killed(unmarked: bool) -> Story {
    let dead = pod("a", &[(0, 605)]).alive(0, 605);
    let dead = if unmarked { dead.unmarked() } else { dead };
    Story::of(30, "prod", &[dead, pod("b", &[(614, EVER)]), pod("c", &[])])
}

/// What a healthy cluster lives through, and which alerts fire nevertheless.
fn innocents() -> Vec<(&'static str, Story, &'static [&'static str])> {
    let gap = |from: u64, to: u64, words: &[&str], sample: Sample, story: Story| {
        story.but(words, move |at, was| if (from..to).contains(&at) { sample } else { was })
    };
    let rollout = [
        pod("a", &[(0, 300)]).alive(0, 301),
        pod("b", &[(300, 360)]).alive(0, 361),
        pod("c", &[(360, 420)]).alive(0, 421),
        pod("d", &[(420, EVER)]).alive(302, EVER),
        pod("e", &[]).alive(362, EVER),
        pod("f", &[]).alive(422, EVER),
    ];
    // A pod's own restart: another name for the same place, and its successor leads at once.
    let renamed =
        [pod("a", &[(0, 600)]).alive(0, 600).unmarked(), pod("a2", &[(601, EVER)]).alive(600, EVER), pod("b", &[])];
    vec![
        ("nothing", healthy(30), &[]),
        ("a killed leader", killed(false), &[]),
        ("a killed leader whose series just end", killed(true), &[]),
        ("failed scrapes of the leader", gap(600, 780, &["pod=\"a\""], Sample::Stale, healthy(30)), &[]),
        ("failed scrapes of all", gap(600, 690, &["redleader"], Sample::Stale, healthy(30)), &[]),
        (
            "a hand-over of 1 s",
            Story::of(30, "prod", &[pod("a", &[(0, 612)]), pod("b", &[(613, EVER)]), pod("c", &[])]),
            &[],
        ),
        ("a rollout", Story::of(30, "prod", &rollout), &[]),
        ("a restart under another name", Story::of(30, "prod", &renamed), &[]),
        (
            "two releases in two name spaces",
            healthy(30).and(Story::of(30, "test", &[pod("a", &[(0, EVER)]), pod("b", &[])])),
            &[],
        ),
        ("a restart of Prometheus", gap(600, 720, &["{"], Sample::Missing, healthy(30)), &[]),
        (
            "all targets gone",
            healthy(30).but(&["redleader"], |at, was| if at < 600 { was } else { Sample::Stale }),
            &["RedleaderNoLeader"],
        ),
    ]
}

/// Each alert's fault. What else is true of it fires too, and is said.
fn faults() -> Vec<(&'static str, Story, &'static [&'static str])> {
    let (from, to) = (10 * MINUTE, 25 * MINUTE);
    let one_node = ["node=\"redis-1:6379\""];
    let with = |name: &'static str| [name, one_node[0]];
    vec![
        ("RedleaderNoLeader", Story::of(30, "prod", &[pod("a", &[(0, from)]), pod("b", &[]), pod("c", &[])]), &[]),
        (
            "RedleaderTwoLeaders",
            Story::of(30, "prod", &[pod("a", &[(0, 635)]), pod("b", &[(605, EVER)]), pod("c", &[])]),
            &[],
        ),
        (
            "RedleaderFlapping",
            {
                let terms: Vec<(u64, u64)> = (0..10).map(|n| (n * 90, n * 90 + 45)).chain([(900, EVER)]).collect();
                let others: Vec<(u64, u64)> = (0..10).map(|n| (n * 90 + 45, n * 90 + 90)).collect();
                Story::of(30, "prod", &[pod("a", &terms), pod("b", &others)])
            },
            &[],
        ),
        ("RedleaderExtendMarginLow", healthy(30).between(0, EVER, &["ratio_bucket"], |at| (at / 6) as f64), &[]),
        (
            "RedleaderNodeDown",
            healthy(30).between(from, to, &["redleader_node_up", one_node[0], "pod=\"b\""], |_| 0.0),
            &[],
        ),
        (
            "RedleaderQuorumAtRisk",
            healthy(30).between(from, to, &with("redleader_node_quarantined"), |_| 1.0),
            &["RedleaderNodeQuarantined"],
        ),
        (
            "RedleaderNodeQuarantined",
            healthy(40).between(0, EVER, &with("redleader_node_quarantined"), |at| f64::from(u8::from(at % 45 < 15))),
            &[],
        ),
        (
            "RedleaderEvictionPolicyBad",
            healthy(30).between(from, to, &with("redleader_node_eviction_policy_bad"), |_| 1.0),
            &[],
        ),
        ("RedleaderPublishFailing", healthy(30).between(from, to, &["publish_pending", "pod=\"a\""], |_| 1.0), &[]),
        (
            "RedleaderPublishFailing",
            healthy(30).between(0, EVER, &["publish_errors", "pod=\"a\""], |at| (at / 30) as f64),
            &[],
        ),
        (
            "RedleaderLeaderNotReady",
            healthy(30).between(from, to, &["kube_pod_status_ready", "pod=\"a\""], |_| 0.0),
            &[],
        ),
        (
            "RedleaderClockRateSuspicious",
            healthy(30).between(from, to, &with("redleader_node_clock_rate_ratio"), |_| 0.97),
            &[],
        ),
        (
            "RedleaderListMismatch",
            healthy(30).between(from, to, &["redleader_list_mismatch", "pod=\"b\""], |_| 1.0),
            &[],
        ),
    ]
}

fn is_right(output: &Output) -> bool {
    output.code == 0 && output.stdout.contains("SUCCESS")
}

/// The names of the alerts in the rules file.
pub(crate) fn alerts() -> BTreeSet<String> {
    RULES.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).map(str::to_owned).collect()
}

/// The rules with another expression for one alert.
fn with_expression(alert: &str, expression: &str) -> String {
    let start = RULES.find(&format!("- alert: {alert}\n")).unwrap();
    let body = start + RULES[start..].find("expr: |\n").unwrap();
    let end =
        body + ["        for: ", "        labels:"].iter().filter_map(|key| RULES[body..].find(key)).min().unwrap();
    format!("{}expr: {expression}\n{}", &RULES[..body], &RULES[end..])
}

#[test]
fn the_rules_are_as_promtool_wants_them() {
    let directory = TempDir::new();
    let mut command = Command::new("promtool");
    command.args(["check", "rules", "--lint-fatal"]).arg(directory.write("rules.yaml", RULES));
    let checked = run("promtool", command, SOON);
    assert_eq!((checked.code, checked.stderr.as_str()), (0, ""), "{checked:?}");
}

// Case C105: alerts on a sum of leaders misfire.
#[test]
fn c105_no_alert_of_prometheus_fires_in_a_healthy_cluster() {
    for (what, story, fires) in innocents() {
        let output = story.judge(RULES, fires);
        assert!(is_right(&output), "{what}: {output:?}");
    }
    figure("O2, stories in which no alert fires", &innocents().len().to_string());
}

#[test]
fn c105_each_alert_of_prometheus_fires_on_its_fault() {
    let mut told = BTreeSet::new();
    for (alert, story, also) in faults() {
        let mut fires = also.to_vec();
        fires.push(alert);
        let output = story.judge(RULES, &fires);
        assert!(is_right(&output), "{alert}: {output:?}");
        let dead = with_expression(alert, "vector(0) > 1");
        assert!(!is_right(&story.judge(&dead, &fires)), "{alert}: an alert that never fires is not noticed");
        told.insert(alert.to_owned());
    }
    assert_eq!(told, alerts(), "each alert has a fault");
}

/// A spoilt rule, and the story that has to notice it.
#[test]
fn c105_the_stories_for_prometheus_notice_what_is_left_out_of_a_rule() {
    let expiry = " and redleader_lease_expiry_timestamp_seconds > time()";
    let evidence = {
        let from = RULES
            .find("          and\n            max by (namespace, lock) (\n              redleader_leader_since")
            .unwrap();
        let to = from + RULES[from..].find("        labels:").unwrap();
        &RULES[from..to]
    };
    let spoilt = [
        (RULES.replacen(expiry, "", 1), "a leader that is gone for good, unmarked"),
        (
            RULES.replace(
                "(time() - timestamp(redleader_holder_info{holder!=\"foreign\"}) < 90)",
                "(redleader_holder_info)",
            ),
            "a leader that is gone for good, unmarked",
        ),
        (RULES.replace("holder!=", "holder="), "failed scrapes of the leader"),
        (RULES.replace("[2m]))", "[10s]))"), "failed scrapes of all"),
        (RULES.replace("(last_over_time(redleader_is_leader[1h]))", "(redleader_is_leader)"), "all targets gone"),
        (RULES.replace(evidence, ""), "a hand-over of 1 s"),
        (RULES.replace("increase15m > 5", "increase15m > 2"), "a rollout"),
        (
            RULES.replace("by (namespace, lock)", "by (lock)").replace("on (namespace, lock)", "on (lock)"),
            "two releases in two name spaces",
        ),
    ];
    let gone = Story::of(14, "prod", &[pod("a", &[(0, 605)]).alive(0, 605).unmarked(), pod("b", &[]), pod("c", &[])]);
    let mut stories = innocents();
    stories.push(("a leader that is gone for good, unmarked", gone, &["RedleaderNoLeader"]));
    for (rules, name) in spoilt {
        assert_ne!(rules, RULES, "{name}: nothing was spoilt");
        let (_, story, fires) = stories.iter().find(|(what, _, _)| *what == name).unwrap();
        assert!(is_right(&story.judge(RULES, fires)), "{name}: {:?}", story.judge(RULES, fires));
        let output = story.judge(&rules, fires);
        assert!(!is_right(&output), "{name} does not notice: {output:?}");
    }
}
