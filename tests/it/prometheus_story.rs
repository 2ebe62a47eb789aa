//! A real Prometheus scrapes two releases through elections, hand-overs, a crash, a lost node, quarantines and a
//! partition; then every query of every dashboard, recording rule and alert is put to it, and has to return data.
//!
//! With `REDLEADER_PICTURES=DIR` what the panels would show is written to DIR, for the pictures of
//! docs/observability.md.

use std::collections::BTreeSet;
use std::time::Duration;

use redleader::clock;
use redleader::wall;
use serde_json::{Value as Json, json};

use crate::dashboards::{Dashboard, RULES, TARGET_LABELS, dashboards, queries, rule_expressions};
use crate::support::{
    Data, Flavour, Judge, Mode, Prometheus, Proxy, Replica, ReplicaOptions, Series, Server, ServerOptions, Servers,
    ShiftedClock, eventually, figure, let_time_pass, setting,
};

const SOON: Duration = Duration::from_secs(30);
const SCRAPE: Duration = Duration::from_millis(500);

/// What returns nothing, and why the story has no such fault. What is declared here and returns something fails too.
const DECLARED: [(&str, &str); 5] = [
    ("RedleaderTwoLeaders", "two leaders are what must never be"),
    ("RedleaderExtendMarginLow", "a tenth of all extends would have to be late for minutes"),
    ("RedleaderPublishFailing", "nothing is published to Kubernetes"),
    ("RedleaderLeaderNotReady", "kube-state-metrics is not scraped"),
    ("RedleaderListMismatch", "all replicas have the same list"),
];

/// Three replicas of one release behind proxies, and one replica of another release with nodes of its own.
struct World {
    servers: Vec<Server>,
    proxies: Vec<Proxy>,
    replicas: Vec<Replica>,
    _others: Servers,
    other: Replica,
    _clock: ShiftedClock,
}

impl World {
    fn start() -> Self {
        // Two per cent fast: within the margin, and beyond what is healthy.
        let clock = ShiftedClock::new(0, 20_000);
        let plain = || Server::start(Flavour::Redis70, ServerOptions::new());
        let fast = Server::start(Flavour::Redis70, ServerOptions::new().clock(&clock));
        let servers = vec![fast, plain(), plain()];
        let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(&server.address())).collect();
        let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
        let args = ["--ttl", "3s", "--renew-every", "500ms", "--node-timeout", "300ms", "--quarantine", "6s"];
        let start = |identity: &str, urls: &[String]| ReplicaOptions::new("job", identity, urls).args(args).start();
        let replicas = ["app-0", "app-1", "app-2"].iter().map(|identity| start(identity, &urls)).collect();
        let others = Servers::start(3);
        let other = start("app-0", &others.urls());
        Self { servers, proxies, replicas, _others: others, other, _clock: clock }
    }

    fn scraped(&self) -> Prometheus {
        let target = |namespace: &str, replica: &Replica| {
            let (address, pod) = (replica.address(), replica.identity());
            format!("  - targets: ['{address}']\n    labels: {{namespace: {namespace}, pod: {pod}}}\n")
        };
        let targets: String = self.replicas.iter().map(|replica| target("prod", replica)).collect();
        let configuration = format!(
            "- job_name: app\n  honor_labels: false\n  static_configs:\n{targets}{}rule_files: [rules.yaml]\n",
            target("test", &self.other)
        );
        Prometheus::start(SCRAPE, &configuration, &[("rules.yaml", &RULES.replace("interval: 15s", "interval: 1s"))])
    }

    fn leader(&self) -> &Replica {
        eventually("one leads", SOON, || self.replicas.iter().find(|replica| replica.is_running() && replica.leads()))
    }
}

fn now() -> f64 {
    let now = clock::now();
    wall::seconds_of(now, now)
}

/// Gives the time from which on all were scraped.
fn live_through(world: &mut World, prometheus: &Prometheus) -> f64 {
    let seen = |what: &str, query: &str| {
        eventually(what, SOON, || (!prometheus.query(query).is_empty()).then_some(()));
    };
    eventually("all are scraped", SOON, || (prometheus.value("sum(up)") == Some(4.0)).then_some(()));
    let from = now();
    world.leader();
    for _ in 0..5 {
        let leader = world.leader();
        seen(
            "the leader is scraped",
            &format!("redleader_is_leader{{namespace='prod', pod='{}'}} == 1", leader.identity()),
        );
        assert_eq!(leader.command(&["resign", "--for", "400ms"]).code, 0);
        eventually("another leads", SOON, || {
            (!leader.leads() && world.replicas.iter().any(Replica::leads)).then_some(())
        });
    }

    // A node that may evict is seen when a connection is made.
    world.servers[1].cli(&["CONFIG", "SET", "maxmemory", "100mb"]);
    world.servers[1].cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    world.proxies[1].reset();
    seen("a node may evict", "redleader_node_eviction_policy_bad == 1");

    world.servers[2].kill();
    seen("a node is down", "sum(redleader_node_up{namespace='prod'} == bool 0) == 3");
    world.servers[2].start_again(Data::Lost);
    seen("a node is in quarantine", "max(redleader_node_quarantined{namespace='prod'} * redleader_node_up) == 1");
    seen(
        "it has its vote back",
        "max(redleader_node_quarantined{namespace='prod'}) == 0 and min(redleader_node_up) == 1",
    );

    // A majority cut off: nobody can lead.
    for proxy in &world.proxies[1..] {
        proxy.set(Mode::Refuse);
    }
    seen(
        "nobody leads",
        "sum(redleader_is_leader{namespace='prod'}) == 0 unless on () redleader_holder_info{namespace='prod'}",
    );
    for proxy in &world.proxies[1..] {
        proxy.set(Mode::Pass);
    }
    let leader = world.leader();
    let scraped = format!("redleader_is_leader{{namespace='prod', pod='{}'}} == 1", leader.identity());
    seen("the leader is scraped", &scraped);
    leader.kill9();
    seen("the crash is over", "sum(redleader_is_leader{namespace='prod'} and on (pod) up == 1) == 1");
    seen("a clock's rate is known", "redleader_node_clock_rate_ratio{namespace='prod'} > 1.01");
    let_time_pass("the end of the story is scraped, and rules are evaluated over it", SCRAPE * 4);
    from
}

/// As Grafana would put it, for a name space.
fn filled(query: &str, namespace: &str) -> String {
    let variables = [
        ("$__rate_interval", "5s"),
        ("$__range", "60s"),
        ("$job", "app"),
        ("$namespace", namespace),
        ("$lock", "job"),
        ("$pod", ".*"),
        ("$node_timeout", "0.3"),
    ];
    variables.iter().fold(query.to_owned(), |query, (name, value)| query.replace(name, value))
}

fn has_data(series: &[Series]) -> bool {
    series.iter().any(|series| series.points.iter().any(|(_, value)| value.is_finite()))
}

/// The values that the series of a panel ever had.
fn values_of(series: &[Series]) -> BTreeSet<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "states are small whole numbers")]
    series.iter().flat_map(|series| series.points.iter().map(|(_, value)| *value as i64)).collect()
}

fn draw(told: &Prometheus, dashboards: &[Dashboard], from: f64, to: f64) -> Json {
    let panels = dashboards.iter().flat_map(|dashboard| {
        dashboard.panels.iter().filter(|panel| panel.kind != "row").map(|panel| {
            let targets: Vec<Json> = panel
                .targets
                .iter()
                .map(|target| {
                    let series = told.query_range(&filled(&target.expr, "prod"), from, to, 0.5);
                    let series: Vec<Json> =
                        series.iter().map(|series| json!({"labels": series.labels, "points": series.points})).collect();
                    json!({"legend": target.legend_format, "series": series})
                })
                .collect();
            let unit = panel.field_config.as_ref().map(|config| config.defaults.unit.clone());
            json!({"dashboard": dashboard.title, "title": panel.title, "kind": panel.kind, "unit": unit,
                "description": panel.description, "targets": targets})
        })
    });
    json!({"from": from, "to": to, "panels": panels.collect::<Vec<_>>()})
}

// Case C107: label names collide with those of Kubernetes targets.
#[test]
fn c107_every_query_returns_data_of_a_prometheus_that_saw_the_story() {
    let mut world = World::start();
    let prometheus = world.scraped();
    let from = live_through(&mut world, &prometheus);
    let to = now();
    let boards = dashboards();
    let mut asked: Vec<(String, String)> = boards.iter().flat_map(queries).collect();
    asked.extend(rule_expressions());
    let mut wrong = Vec::new();
    let mut told = BTreeSet::new();
    for (place, query) in &asked {
        let declared = DECLARED.iter().find(|(name, _)| place == name || query.contains(name));
        let series = prometheus.query_range(&filled(query, "prod"), from, to, 0.5);
        match declared {
            None if !has_data(&series) => wrong.push(format!("{place} returns nothing: {query}")),
            Some((_, why)) if has_data(&series) => wrong.push(format!("{place} returns data, though {why}")),
            None => {}
            Some((name, _)) => {
                told.insert(*name);
            }
        }
        // The other release: no fault, so dashboards only, and nothing of the first one in them.
        let of_faults = ["> 0", "redleader_failover_gap_seconds"];
        let is_fault = declared.is_some() || of_faults.iter().any(|part| query.contains(part));
        if place.contains(": ") && !is_fault {
            let series = prometheus.query_range(&filled(query, "test"), from, to, 0.5);
            if !has_data(&series) {
                wrong.push(format!("{place} returns nothing for the other release"));
            }
            let foreign =
                series.iter().any(|series| series.labels["namespace"].as_str().is_some_and(|name| name != "test"));
            assert!(!foreign, "{place}: {series:?}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(told.len(), DECLARED.len(), "declared, and in no query: {told:?}");
    figure(
        "O1, queries put to Prometheus",
        &format!("{} over a story of {:.0} s, {} declared to have no data", asked.len(), to - from, DECLARED.len()),
    );
    check_what_it_says(&prometheus, from, to);
    check_how_many_series(&prometheus);
    for label in TARGET_LABELS {
        assert!(prometheus.query(&format!("{{exported_{label}!=\"\"}}")).is_empty(), "{label} is a label of ours");
    }
    if let Some(directory) = setting("REDLEADER_PICTURES") {
        let path = std::path::Path::new(&directory).join("panels.json");
        std::fs::write(&path, draw(&prometheus, &boards, from, to).to_string()).unwrap();
    }
    Judge::check_replicas(&world.replicas).assert_clean("O1, a story that Prometheus saw");
}

/// What a scrape costs, however much has happened.
fn check_how_many_series(prometheus: &Prometheus) {
    let most = prometheus.query("max by (pod) (max_over_time(scrape_samples_scraped{namespace='prod'}[5m]))");
    // A scrape that failed has no samples.
    let growth = prometheus.query(
        "max by (pod) (max_over_time(scrape_samples_scraped{namespace='prod'}[5m])) \
         - min by (pod) (min_over_time((scrape_samples_scraped{namespace='prod'} > 0)[5m:500ms]))",
    );
    assert_eq!((most.len(), growth.len()), (3, 3));
    let counts = |of: &[(Json, f64)]| of.iter().map(|(_, count)| count.to_string()).collect::<Vec<_>>().join(", ");
    figure(
        "O5, series of a replica with 3 nodes",
        &format!("{} at most; of these come and go {}", counts(&most), counts(&growth)),
    );
    // What comes and goes: holder, token, expiry, since and last extend; offset and rate of each clock.
    assert!(most.iter().all(|(_, count)| *count <= 800.0), "{most:?}");
    assert!(growth.iter().all(|(_, count)| *count <= 11.0), "{growth:?}");
}

/// Not only data: the data of this story.
fn check_what_it_says(prometheus: &Prometheus, from: f64, to: f64) {
    let panel = |title: &str| {
        let boards = dashboards();
        let mut panels = boards.iter().flat_map(|board| &board.panels);
        let panel = panels
            .find(|panel| panel.kind != "row" && panel.title == title)
            .unwrap_or_else(|| panic!("no panel {title}"));
        prometheus.query_range(&filled(&panel.targets[0].expr, "prod"), from, to, 0.5)
    };
    let leaders = values_of(&panel("Leaders of each lock"));
    assert!(leaders.contains(&0) && leaders.contains(&1), "{leaders:?}");
    assert_eq!(values_of(&panel("Nodes")), BTreeSet::from([0, 1, 2]), "down, up and in quarantine");
    let holders = panel("Holder");
    assert_eq!(holders.len(), 3, "a row for each pod");
    let reasons: BTreeSet<String> = panel("Step-downs by reason")
        .iter()
        .filter(|series| series.points.iter().any(|(_, value)| *value > 0.0))
        .map(|series| series.labels["reason"].as_str().unwrap().to_owned())
        .collect();
    assert!(reasons.contains("resign") && reasons.contains("renew-timeout"), "{reasons:?}");
    let alerts = prometheus.query(&format!("group by (alertname) (count_over_time(ALERTS[{}s]))", (to - from).ceil()));
    let mut names: Vec<&str> = alerts.iter().map(|(labels, _)| labels["alertname"].as_str().unwrap()).collect();
    names.sort_unstable();
    figure("O1, alerts that became pending or fired", &names.join(", "));
    for expected in ["RedleaderNoLeader", "RedleaderNodeDown", "RedleaderQuorumAtRisk", "RedleaderFlapping"] {
        assert!(names.contains(&expected), "{expected}: {names:?}");
    }
}
