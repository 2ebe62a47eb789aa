use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::clock;
use crate::election::leadership::{Holder, Vote};
use crate::redsync::name::{Identity, Owner};

const SECOND: Duration = Duration::from_secs(1);

fn standby() -> Leadership {
    Leadership { app_healthy: Some(true), ..Leadership::standby(&["a:1", "b:1", "c:1"], Vote::Free) }
}

fn leading(now: Moment) -> Leadership {
    let belief = Belief {
        token: 9_007_199_254_740_991,
        since: now - 100 * SECOND,
        work_until: now + SECOND,
        deadline: now + 2 * SECOND,
        extended_at: now - SECOND,
        stepping_down: None,
    };
    Leadership { phase: State::Leader, belief: Some(belief), ..standby() }
}

fn metrics() -> Metrics {
    let nodes = ["a:1", "b:1", "c:1"].map(str::to_owned);
    Metrics::new("job", "pod-1", &nodes).unwrap()
}

/// Every sample, by its name and labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(series, value)| (series.to_owned(), value.parse().unwrap()))
        .collect()
}

#[test]
fn the_list_of_definitions_is_what_is_served() {
    let now = clock::now();
    let metrics = metrics();
    let mut leadership = leading(now);
    leadership.nodes[0].clock_offset_us = Some(1);
    leadership.nodes[0].clock_rate_ppm = Some(1);
    let text = metrics.render(&leadership, now, now);
    let served: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split(' ').next())
        .filter(|name| !name.starts_with("process_"))
        .collect();
    let defined: BTreeSet<&str> = DEFINITIONS.iter().map(|definition| definition.name).collect();
    assert_eq!(served, defined);
    assert_eq!(defined.len(), DEFINITIONS.len());
    assert!(text.contains("process_cpu_seconds_total"));
    assert!(!text.contains("NaN"));
}

#[test]
fn no_label_is_one_that_kubernetes_puts_on_a_target() {
    for definition in DEFINITIONS {
        for label in definition.labels {
            assert!(!["namespace", "pod", "instance", "job"].contains(label), "{definition:?}");
        }
    }
}

#[test]
fn counters_start_at_zero_and_count_events() {
    let (metrics, now) = (metrics(), clock::now());
    let first = samples(&metrics.render(&standby(), now, now));
    for series in [
        r#"redleader_transitions_total{event="holder-changed",lock="job"}"#,
        r#"redleader_stepdowns_total{lock="job",reason="hook-failed"}"#,
        r#"redleader_acquire_attempts_total{lock="job",outcome="no-quorum"}"#,
        r#"redleader_extend_attempts_total{lock="job",outcome="lost"}"#,
        r#"redleader_release_attempts_total{lock="job",outcome="partial"}"#,
        r#"redleader_node_errors_total{kind="no-run-id",node="c:1"}"#,
        r#"redleader_node_command_duration_seconds_count{node="a:1",op="connect"}"#,
        r#"redleader_failover_gap_seconds_count{lock="job"}"#,
    ] {
        assert_eq!(first.get(series), Some(&0.0), "{series}");
    }

    let at = now;
    let took = Duration::from_millis(2);
    let owner = Owner::found("x");
    let events = [
        Event::Elected { token: 1, at, deadline: at, gap: Some(SECOND) },
        Event::SteppingDown { token: 1, reason: StepDown::Resign, deadline: at },
        Event::SteppedDown { token: 1, reason: StepDown::Resign, at },
        Event::HolderChanged { owner: None, token: None },
        Event::Acquire { outcome: AcquireOutcome::Won, took },
        Event::Extend { outcome: ExtendOutcome::Ok, took, margin_left: Some(950) },
        Event::Release { outcome: ReleaseOutcome::Ok, took },
        Event::NoExpiry { node: 0, owner },
    ];
    for event in &events {
        metrics.event(event);
    }
    metrics.node_error(1, Kind::Oom);
    metrics.node_command(1, Op::Look, took);
    metrics.node_command(17, Op::Look, took);
    let after = samples(&metrics.render(&standby(), now, now));
    for (series, value) in [
        (r#"redleader_transitions_total{event="elected",lock="job"}"#, 1.0),
        (r#"redleader_transitions_total{event="stepped-down",lock="job"}"#, 1.0),
        (r#"redleader_transitions_total{event="holder-changed",lock="job"}"#, 1.0),
        (r#"redleader_stepdowns_total{lock="job",reason="resign"}"#, 1.0),
        (r#"redleader_acquire_attempts_total{lock="job",outcome="won"}"#, 1.0),
        (r#"redleader_acquire_duration_seconds_bucket{lock="job",outcome="won",le="0.0025"}"#, 1.0),
        (r#"redleader_extend_attempts_total{lock="job",outcome="ok"}"#, 1.0),
        (r#"redleader_extend_margin_ratio_bucket{lock="job",le="0.9"}"#, 0.0),
        (r#"redleader_extend_margin_ratio_sum{lock="job"}"#, 0.95),
        (r#"redleader_release_attempts_total{lock="job",outcome="ok"}"#, 1.0),
        (r#"redleader_failover_gap_seconds_sum{lock="job"}"#, 1.0),
        (r#"redleader_node_errors_total{kind="oom",node="b:1"}"#, 1.0),
        (r#"redleader_node_command_duration_seconds_count{node="b:1",op="look"}"#, 1.0),
    ] {
        assert_eq!(after.get(series), Some(&value), "{series}");
    }
    assert_eq!(first.len(), after.len(), "no series came late");
}

// Case C103: gauges kept their last value after a loss.
#[test]
fn gauges_fall_at_the_first_scrape_after_a_loss_that_nobody_published() {
    let (metrics, now) = (metrics(), clock::now());
    let leadership = leading(now);
    let before = samples(&metrics.render(&leadership, now, now));
    assert_eq!(before[r#"redleader_is_leader{lock="job"}"#], 1.0);
    assert_eq!(before[r#"leader_election_master_status{name="job"}"#], 1.0);
    assert_eq!(before[r#"redleader_state{lock="job",state="leader"}"#], 1.0);
    assert_eq!(before[r#"redleader_holder_info{holder="pod-1",lock="job"}"#], 1.0);
    assert_eq!(before[r#"redleader_fencing_token{lock="job"}"#], 9_007_199_254_740_991.0);
    let wall = wall::seconds_of(now, now);
    for (name, offset) in [("lease_expiry", 2.0), ("leader_since", -100.0), ("last_extend", -1.0)] {
        let value = before[&format!(r#"redleader_{name}_timestamp_seconds{{lock="job"}}"#)];
        assert!((value - wall - offset).abs() < 0.5, "{name} {value} {wall}");
    }

    for (late, state) in [(SECOND, "stepping-down"), (2 * SECOND, "standby"), (60 * SECOND, "standby")] {
        let now = now + late;
        let after = samples(&metrics.render(&leadership, now, now - 3 * SECOND));
        assert_eq!(after[r#"redleader_is_leader{lock="job"}"#], 0.0);
        assert_eq!(after[r#"leader_election_master_status{name="job"}"#], 0.0);
        assert_eq!(after[r#"redleader_state{lock="job",state="leader"}"#], 0.0);
        assert_eq!(after[&format!(r#"redleader_state{{lock="job",state="{state}"}}"#)], 1.0);
        assert_eq!(after["redleader_loop_tick_age_seconds"], 3.0);
        for gone in ["holder_info", "fencing_token", "lease_expiry", "leader_since", "last_extend"] {
            assert!(!after.keys().any(|series| series.starts_with(&format!("redleader_{gone}"))), "{gone}");
        }
    }
}

#[test]
fn one_holder_is_shown_and_a_foreign_one_has_no_name() {
    let (metrics, now) = (metrics(), clock::now());
    let holders = |leadership: &Leadership| -> Vec<String> {
        let text = samples(&metrics.render(leadership, now, now));
        text.into_keys().filter(|series| series.starts_with("redleader_holder_info")).collect()
    };
    let held_by =
        |owner: Owner| Leadership { holder: Some(Holder { owner, token: Some(7), until: now + SECOND }), ..standby() };
    let pod = Owner::new(&Identity::parse("pod-2").unwrap(), [1; 16]);
    assert_eq!(holders(&held_by(pod)), [r#"redleader_holder_info{holder="pod-2",lock="job"}"#]);
    let foreign = Owner::found("s3cr3t");
    assert_eq!(holders(&held_by(foreign)), [r#"redleader_holder_info{holder="foreign",lock="job"}"#]);
    assert_eq!(holders(&leading(now)), [r#"redleader_holder_info{holder="pod-1",lock="job"}"#]);
    assert!(holders(&standby()).is_empty());
}

#[test]
fn nodes_are_shown_as_they_are() {
    let (metrics, now) = (metrics(), clock::now());
    let mut leadership = standby();
    leadership.nodes[1].up = false;
    leadership.nodes[1].evicts = true;
    leadership.nodes[1].quarantined_until = Some(now + SECOND);
    leadership.nodes[1].clock_offset_us = Some(-1_500_000);
    leadership.nodes[1].clock_rate_ppm = Some(-500);
    let shown = samples(&metrics.render(&leadership, now, now));
    for (name, value) in [
        ("node_up", 0.0),
        ("node_quarantined", 1.0),
        ("node_eviction_policy_bad", 1.0),
        ("node_clock_offset_seconds", -1.5),
        ("node_clock_rate_ratio", 0.9995),
    ] {
        assert_eq!(shown[&format!(r#"redleader_{name}{{node="b:1"}}"#)], value, "{name}");
    }
    assert_eq!(shown[r#"redleader_quorum_reachable{lock="job"}"#], 2.0);
    assert_eq!(shown[r#"redleader_quorum_required{lock="job"}"#], 2.0);
    assert_eq!(shown[r#"redleader_quarantine_seconds{lock="job"}"#], 9.0);
    assert!(!shown.contains_key(r#"redleader_node_clock_offset_seconds{node="a:1"}"#));
    // Time alone ends a quarantine.
    let later = now + SECOND;
    let shown = samples(&metrics.render(&leadership, later, later));
    assert_eq!(shown[r#"redleader_node_quarantined{node="b:1"}"#], 0.0);
}

#[test]
fn a_lag_is_seen_by_every_scraper_for_a_minute_and_then_forgotten() {
    let (metrics, now) = (metrics(), Moment::from_micros(3_600_000_000));
    let lag = |late: u32| {
        let now = now + SECOND * late;
        samples(&metrics.render(&standby(), now, now))["redleader_event_loop_lag_seconds"]
    };
    assert_eq!(lag(0), 0.0);
    metrics.loop_lag(SECOND);
    metrics.loop_lag(SECOND / 2);
    assert_eq!([lag(1), lag(1), lag(61), lag(90), lag(121), lag(122)], [1.0, 1.0, 1.0, 1.0, 1.0, 0.0]);
}

/// A replica with `count` nodes, after so many transitions between itself and holders of ever new names.
fn after(transitions: u64, count: usize) -> BTreeMap<String, f64> {
    let nodes: Vec<String> = (0..count).map(|index| format!("redis-{index}:6379")).collect();
    let metrics = Metrics::new("job", "pod-1", &nodes).unwrap();
    let now = clock::now();
    let mut leadership = leading(now);
    let node = leadership.nodes[0].clone();
    leadership.nodes = nodes.iter().map(|name| NodeView { name: name.clone(), ..node.clone() }).collect();
    for node in &mut leadership.nodes {
        (node.clock_offset_us, node.clock_rate_ppm) = (Some(1), Some(1));
    }
    for number in 0..transitions {
        let at = now + Duration::from_millis(number);
        let reason = StepDown::ALL[usize::try_from(number).unwrap() % StepDown::ALL.len()];
        let kind = Kind::ALL[usize::try_from(number).unwrap() % Kind::ALL.len()];
        let owner = Owner::new(&Identity::parse(&format!("pod-{number}")).unwrap(), [7; 16]);
        metrics.event(&Event::Elected { token: number, at, deadline: at, gap: Some(SECOND) });
        metrics.event(&Event::SteppedDown { token: number, reason, at });
        metrics.event(&Event::HolderChanged { owner: Some(owner.clone()), token: Some(number) });
        metrics.node_error(usize::try_from(number).unwrap() % count, kind);
        if number % 100 == 0 {
            let holder = Some(Holder { owner, token: Some(number), until: now + 1000 * SECOND });
            let held = Leadership { belief: None, phase: State::Standby, holder, ..leadership.clone() };
            assert!(metrics.render(&held, now, now).contains("redleader_holder_info"));
        }
    }
    samples(&metrics.render(&leadership, now, now))
}

#[test]
fn the_number_of_series_depends_on_the_nodes_and_on_nothing_that_happens() {
    let mut counts = Vec::new();
    for nodes in [3, 5, 7] {
        let (before, later) = (after(0, nodes), after(10_000, nodes));
        let names = |of: &BTreeMap<String, f64>| of.keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(names(&before), names(&later), "{nodes} nodes");
        counts.push(later.len());
    }
    println!("series of a replica with 3, 5 and 7 nodes: {counts:?}");
    assert_eq!(counts[1] - counts[0], counts[2] - counts[1], "each node adds the same number");
    assert!(counts[2] < 1300, "{counts:?}");
}

#[test]
fn every_value_of_a_label_is_a_word_of_a_closed_set_or_a_configured_name() {
    let mut words: BTreeSet<String> = ["job", "pod-1", env!("CARGO_PKG_VERSION"), "+Inf"].map(str::to_owned).into();
    words.extend((0..3).map(|index| format!("redis-{index}:6379")));
    words.extend(Target::ALL.map(|word| word.as_str().to_owned()));
    words.extend(Code::ALL.map(|word| word.as_str().to_owned()));
    words.extend(State::ALL.map(|word| word.as_str().to_owned()));
    words.extend(StepDown::ALL.map(|word| word.as_str().to_owned()));
    words.extend(AcquireOutcome::ALL.map(|word| word.as_str().to_owned()));
    words.extend(ExtendOutcome::ALL.map(|word| word.as_str().to_owned()));
    words.extend(ReleaseOutcome::ALL.map(|word| word.as_str().to_owned()));
    words.extend(Transition::ALL.map(|word| word.as_str().to_owned()));
    words.extend(Op::ALL.map(|word| word.as_str().to_owned()));
    words.extend(Kind::ALL.map(|word| word.as_str().to_owned()));
    for sample in after(1000, 3).keys() {
        for (at, _) in sample.match_indices("=\"") {
            let value = sample[at + 2..].split('"').next().unwrap();
            let is_bound = sample[..at].ends_with("le") && value.parse::<f64>().is_ok();
            assert!(is_bound || words.contains(value), "{sample}");
        }
    }
}
