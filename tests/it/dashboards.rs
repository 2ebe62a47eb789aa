//! The chart's dashboards and rules, as files: what Grafana's linter asks, and whether all that they name exists.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use redleader::metrics::DEFINITIONS;
use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::prometheus_rules::alerts;
use crate::support::figure;

pub(crate) const OVERVIEW: &str = include_str!("../../charts/redleader/files/dashboards/overview.json");
pub(crate) const FLEET: &str = include_str!("../../charts/redleader/files/dashboards/fleet.json");
pub(crate) const RULES: &str = include_str!("../../charts/redleader/files/rules.yaml");

/// Labels that a scrape puts on every series. Ours must not be called so (case C107).
pub(crate) const TARGET_LABELS: [&str; 4] = ["job", "namespace", "pod", "instance"];

/// Grafana's classic model, as far as the dashboards use it. A field that is not here is a mistake of typing, or one
/// that nobody has looked up.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Dashboard {
    annotations: Annotations,
    description: String,
    editable: bool,
    #[serde(rename = "fiscalYearStartMonth")]
    _fiscal_year_start_month: u8,
    graph_tooltip: u8,
    id: Option<u64>,
    links: Vec<Link>,
    pub(crate) panels: Vec<Panel>,
    refresh: String,
    schema_version: u16,
    tags: Vec<String>,
    templating: Templating,
    time: Time,
    #[serde(rename = "timepicker")]
    _timepicker: Map<String, Json>,
    timezone: String,
    pub(crate) title: String,
    uid: String,
    #[serde(rename = "version")]
    _version: u64,
    #[serde(rename = "weekStart")]
    _week_start: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Annotations {
    list: Vec<Annotation>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Annotation {
    datasource: Source,
    #[serde(rename = "enable")]
    _enable: bool,
    #[serde(rename = "iconColor")]
    _icon_color: String,
    name: String,
    built_in: Option<u8>,
    #[serde(rename = "hide")]
    _hide: Option<bool>,
    #[serde(rename = "type")]
    _kind: Option<String>,
    expr: Option<String>,
    #[serde(rename = "step")]
    _step: Option<String>,
    #[serde(rename = "tagKeys")]
    _tag_keys: Option<String>,
    #[serde(rename = "textFormat")]
    _text_format: Option<String>,
    title_format: Option<String>,
    use_value_for_time: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Source {
    #[serde(rename = "type")]
    kind: String,
    uid: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Link {
    #[serde(rename = "asDropdown")]
    _as_dropdown: bool,
    #[serde(rename = "icon")]
    _icon: String,
    include_vars: bool,
    keep_time: bool,
    #[serde(rename = "tags")]
    _tags: Vec<String>,
    #[serde(rename = "targetBlank")]
    _target_blank: bool,
    title: String,
    #[serde(rename = "tooltip")]
    _tooltip: String,
    #[serde(rename = "type")]
    kind: String,
    url: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Panel {
    pub(crate) id: u64,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) title: String,
    grid_pos: Grid,
    #[serde(rename = "collapsed")]
    _collapsed: Option<bool>,
    panels: Option<Vec<Json>>,
    datasource: Option<Source>,
    pub(crate) description: Option<String>,
    pub(crate) field_config: Option<FieldConfig>,
    options: Option<Map<String, Json>>,
    #[serde(default)]
    pub(crate) targets: Vec<Target>,
    #[serde(default)]
    transformations: Vec<Transformation>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Grid {
    h: u16,
    w: u16,
    x: u16,
    y: u16,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FieldConfig {
    pub(crate) defaults: Defaults,
    overrides: Vec<Override>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Defaults {
    #[serde(rename = "color")]
    _color: Map<String, Json>,
    pub(crate) unit: String,
    mappings: Vec<Mapping>,
    thresholds: Thresholds,
    custom: Option<Map<String, Json>>,
    decimals: Option<u8>,
    #[serde(rename = "min")]
    _min: Option<f64>,
    #[serde(rename = "max")]
    _max: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mapping {
    #[serde(rename = "type")]
    kind: String,
    options: BTreeMap<String, Map<String, Json>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Thresholds {
    mode: String,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    #[serde(rename = "color")]
    _color: String,
    value: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Override {
    matcher: Map<String, Json>,
    properties: Vec<Property>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Property {
    id: String,
    value: Json,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Target {
    datasource: Source,
    #[serde(rename = "editorMode")]
    _editor_mode: String,
    pub(crate) expr: String,
    pub(crate) legend_format: String,
    ref_id: String,
    range: Option<bool>,
    instant: Option<bool>,
    format: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Transformation {
    id: String,
    options: Map<String, Json>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Templating {
    list: Vec<Variable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Variable {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    label: String,
    description: String,
    query: Json,
    #[serde(rename = "current")]
    _current: Map<String, Json>,
    #[serde(rename = "options")]
    _options: Vec<Json>,
    #[serde(rename = "hide")]
    _hide: u8,
    #[serde(rename = "skipUrlSync")]
    _skip_url_sync: bool,
    datasource: Option<Source>,
    definition: Option<String>,
    all_value: Option<String>,
    include_all: Option<bool>,
    multi: Option<bool>,
    #[serde(rename = "refresh")]
    _refresh: Option<u8>,
    #[serde(rename = "regex")]
    _regex: Option<String>,
    #[serde(rename = "sort")]
    _sort: Option<u8>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Time {
    from: String,
    to: String,
}

pub(crate) fn dashboards() -> [Dashboard; 2] {
    [OVERVIEW, FLEET].map(|text| serde_json::from_str(text).unwrap_or_else(|error| panic!("a dashboard: {error}")))
}

/// Each query of a dashboard, with the place where it stands.
pub(crate) fn queries(dashboard: &Dashboard) -> Vec<(String, String)> {
    let panels = dashboard.panels.iter().flat_map(|panel| {
        panel
            .targets
            .iter()
            .map(|target| (format!("{}: {} {}", dashboard.title, panel.title, target.ref_id), target.expr.clone()))
    });
    let annotations = dashboard.annotations.list.iter();
    let annotations = annotations
        .filter_map(|annotation| Some((format!("{}: {}", dashboard.title, annotation.name), annotation.expr.clone()?)));
    panels.chain(annotations).collect()
}

const KINDS: [&str; 6] = ["stat", "state-timeline", "timeseries", "heatmap", "piechart", "table"];
const UNITS: [&str; 5] = ["none", "short", "s", "percentunit", "dateTimeFromNow"];

fn check_panel(panel: &Panel, place: &str) {
    assert!(KINDS.contains(&panel.kind.as_str()), "{place}: {}", panel.kind);
    assert!(panel.description.as_ref().is_some_and(|text| text.ends_with('.')), "{place}: no description");
    let config = panel.field_config.as_ref().unwrap_or_else(|| panic!("{place}: no fieldConfig"));
    assert!(UNITS.contains(&config.defaults.unit.as_str()), "{place}: unit {}", config.defaults.unit);
    assert!(config.defaults.decimals.is_none_or(|decimals| decimals <= 3), "{place}");
    let thresholds = &config.defaults.thresholds;
    assert_eq!((thresholds.mode.as_str(), thresholds.steps[0].value), ("absolute", None), "{place}: thresholds");
    for mapping in &config.defaults.mappings {
        assert_eq!(mapping.kind, "value", "{place}");
        assert!(mapping.options.values().all(|option| option.contains_key("text")), "{place}");
    }
    let names: Vec<&str> = panel.targets.iter().map(|target| target.legend_format.as_str()).collect();
    let rename = panel.transformations.iter().find_map(|step| step.options.get("renameByName"));
    for one in &config.overrides {
        let (by, name) = (one.matcher["id"].as_str().unwrap(), one.matcher["options"].as_str().unwrap());
        let is_column = rename.is_some_and(|rename| rename.as_object().unwrap().values().any(|column| column == name));
        assert!(by == "byName" && (names.contains(&name) || is_column), "{place}: no field {name}");
        assert!(one.properties.iter().all(|property| !property.id.is_empty() && !property.value.is_null()), "{place}");
    }
    assert!(panel.options.as_ref().is_some_and(|options| !options.is_empty()), "{place}: no options");
    if panel.kind == "state-timeline" || panel.kind == "timeseries" {
        let custom = config.defaults.custom.as_ref().unwrap_or_else(|| panic!("{place}: no custom"));
        assert_eq!(custom["spanNulls"], false, "{place}: a gap must be seen");
    }
    assert!(!panel.targets.is_empty(), "{place}: no query");
    for target in &panel.targets {
        assert!(!target.legend_format.is_empty(), "{place}: no legend");
        assert_eq!((target.datasource.kind.as_str(), target.datasource.uid.as_str()), ("prometheus", "${datasource}"));
        assert_eq!(target.range.unwrap_or(false), !target.instant.unwrap_or(false), "{place}: range or instant");
        let format = match panel.kind.as_str() {
            "heatmap" => Some("heatmap"),
            "table" => Some("table"),
            _ => None,
        };
        assert_eq!(target.format.as_deref(), format, "{place}: format");
    }
    assert!(panel.transformations.iter().all(|step| ["merge", "organize"].contains(&step.id.as_str())), "{place}");
}

fn check_variables(dashboard: &Dashboard) -> BTreeSet<String> {
    let variables = &dashboard.templating.list;
    assert_eq!((variables[0].name.as_str(), variables[0].kind.as_str()), ("datasource", "datasource"));
    assert_eq!(variables[0].query, "prometheus");
    for variable in variables {
        assert!(!variable.label.is_empty() && !variable.description.is_empty(), "{}", variable.name);
        if variable.kind == "query" {
            assert_eq!(variable.datasource.as_ref().unwrap().uid, "${datasource}", "{}", variable.name);
            assert_eq!((variable.include_all, variable.multi), (Some(true), Some(true)), "{}", variable.name);
            // A scrape without this label is not left out.
            assert_eq!(variable.all_value.as_deref(), Some(".*"), "{}", variable.name);
            let definition = variable.definition.as_deref().unwrap();
            assert_eq!(variable.query["query"], definition);
            assert!(definition.ends_with(&format!("{})", variable.name)), "{definition}");
        }
    }
    variables.iter().map(|variable| variable.name.clone()).collect()
}

#[test]
fn the_dashboards_are_as_grafana_wants_them() {
    let boards = dashboards();
    for dashboard in &boards {
        check_dashboard(dashboard);
        let (panels, queries) = (dashboard.panels.len(), queries(dashboard).len());
        figure("O3, panels checked", &format!("{}: {panels}, queries {queries}", dashboard.title));
    }
    assert_ne!(boards[0].uid, boards[1].uid);
}

#[test]
fn a_dashboard_with_a_mistake_is_refused() {
    let mistakes = [
        ("no unit", "\"unit\": \"dateTimeFromNow\"", "\"unit\": \"\""),
        ("a name space is not asked for", ", namespace=~\\\"$namespace\\\"", ""),
        ("a fixed window", "[$__rate_interval]", "[5m]"),
        ("no legend", "\"legendFormat\": \"{{pod}}\"", "\"legendFormat\": \"\""),
        ("a pod by name", "pod=~\\\"$pod\\\"", "pod=~\\\"app-0\\\""),
        ("a data source by name", "\"uid\": \"${datasource}\"", "\"uid\": \"P1809F7CD0C75ACF3\""),
        ("no title", "\"title\": \"Holder\"", "\"title\": \"\""),
        ("no description", "\"description\": \"When the present leadership began.\"", "\"description\": \"\""),
        ("a field that Grafana does not know", "\"graphTooltip\"", "\"graphToolTip\""),
        ("another schema", "\"schemaVersion\": 39", "\"schemaVersion\": 16"),
        ("a variable that is not there", "$node_timeout", "$nodetimeout"),
        ("a gap that is hidden", "\"spanNulls\": false", "\"spanNulls\": true"),
    ];
    for (what, right, wrong) in mistakes {
        let spoilt = OVERVIEW.replacen(right, wrong, 1);
        assert_ne!(spoilt, OVERVIEW, "{what}: nothing was spoilt");
        let judged = std::panic::catch_unwind(|| match serde_json::from_str::<Dashboard>(&spoilt) {
            Ok(dashboard) => check_dashboard(&dashboard),
            Err(error) => panic!("{error}"),
        });
        assert!(judged.is_err(), "{what} is not noticed");
    }
    figure("O3, mistakes that are refused", &mistakes.len().to_string());
}

fn check_dashboard(dashboard: &Dashboard) {
    let title = &dashboard.title;
    assert_eq!((dashboard.schema_version, dashboard.id, dashboard.editable), (39, None, true), "{title}");
    assert!(dashboard.uid.starts_with("redleader-"), "{title}: uid");
    assert!(dashboard.description.ends_with('.') && dashboard.tags == ["redleader"], "{title}");
    assert_eq!((dashboard.timezone.as_str(), dashboard.refresh.as_str()), ("browser", "30s"), "{title}");
    assert_eq!((dashboard.time.from.as_str(), dashboard.time.to.as_str()), ("now-1h", "now"), "{title}");
    assert_eq!(dashboard.graph_tooltip, 1, "{title}: one cross-hair over all panels");
    let variables = check_variables(dashboard);
    for needed in ["datasource", "job", "namespace", "lock"] {
        assert!(variables.contains(needed), "{title}: no variable {needed}");
    }
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in &dashboard.panels {
        let place = format!("{title}: {}", panel.title);
        assert!(ids.insert(panel.id), "{place}: its id is another's");
        assert!(!panel.title.is_empty(), "{place}: no title");
        let Grid { h, w, x, y } = panel.grid_pos;
        for cell in (y..y + h).flat_map(|row| (x..x + w).map(move |column| (row, column))) {
            assert!(cell.1 < 24 && cells.insert(cell), "{place}: lies over another, or outside");
        }
        if panel.kind == "row" {
            assert_eq!(panel.panels.as_ref().map(Vec::len), Some(0), "{place}");
            continue;
        }
        assert_eq!(panel.datasource.as_ref().unwrap().uid, "${datasource}", "{place}");
        check_panel(panel, &place);
    }
    for annotation in dashboard.annotations.list.iter().filter(|annotation| annotation.built_in.is_none()) {
        assert_eq!(annotation.datasource.uid, "${datasource}");
        assert_eq!(annotation.datasource.kind, "prometheus");
        assert!(annotation.title_format.is_some() && annotation.use_value_for_time.as_deref() == Some("on"));
    }
    for link in &dashboard.links {
        assert!(link.include_vars && link.keep_time && link.kind == "link" && !link.title.is_empty(), "{title}");
        assert!(link.url.starts_with("/d/redleader-"), "{title}: {}", link.url);
    }
    for (place, query) in queries(dashboard) {
        check_query(&place, &query, &variables);
    }
}

/// What Grafana's linter asks of a query.
fn check_query(place: &str, query: &str, variables: &BTreeSet<String>) {
    for selector in selectors(query) {
        for matcher in ["job=~\"$job\"", "namespace=~\"$namespace\""] {
            assert!(selector.matchers.contains(matcher), "{place}: {} without {matcher}", selector.metric);
        }
        for (label, value) in selector.pairs() {
            let is_variable = value.starts_with('$');
            assert!(is_variable || closed_value(&label, &value), "{place}: {label} {value} is hard-coded");
        }
    }
    for (at, _) in query.match_indices('[') {
        let window = &query[at + 1..at + query[at..].find(']').unwrap()];
        let is_fixed = ["1h"].contains(&window);
        assert!(["$__rate_interval", "$__range"].contains(&window) || is_fixed, "{place}: a window of {window}");
        assert!(!is_fixed || place.contains("Locks, worst first"), "{place}: a window of {window}");
    }
    for word in query.split(|letter: char| !letter.is_alphanumeric() && !"_$".contains(letter)) {
        if let Some(name) = word.strip_prefix('$') {
            let is_known = variables.contains(name) || name.starts_with("__");
            assert!(is_known, "{place}: ${name} is no variable");
        }
    }
}

/// Values of labels that are words of the program, and may stand in a query.
fn closed_value(label: &str, value: &str) -> bool {
    use redleader::redsync::reply::Op;
    match label {
        "op" => Op::ALL.iter().any(|op| op.as_str() == value),
        "outcome" => value == "ok",
        "event" => value == "elected",
        _ => false,
    }
}

struct Selector {
    metric: String,
    matchers: String,
}

impl Selector {
    fn pairs(&self) -> Vec<(String, String)> {
        let split = |pair: &str| {
            let (label, value) = pair.split_once('=').unwrap();
            (label.trim().trim_end_matches('!').to_owned(), value.trim_start_matches('~').trim_matches('"').to_owned())
        };
        self.matchers.split(", ").filter(|pair| !pair.is_empty()).map(split).collect()
    }
}

/// The metrics that a query names, with what stands in the braces behind each.
fn selectors(query: &str) -> Vec<Selector> {
    let is_name = |letter: char| letter.is_alphanumeric() || "_:".contains(letter);
    let mut found = Vec::new();
    let mut rest = query;
    while let Some(at) = rest.find(is_name) {
        let name_end = rest[at..].find(|letter| !is_name(letter)).map_or(rest.len(), |end| at + end);
        let (name, after) = (&rest[at..name_end], &rest[name_end..]);
        let matchers = after.strip_prefix('{').and_then(|after| after.split_once('}')).map(|(inside, _)| inside);
        if name.contains("redleader_") {
            found.push(Selector { metric: name.to_owned(), matchers: matchers.unwrap_or_default().to_owned() });
        }
        rest = match matchers {
            Some(inside) => &after[inside.len() + 2..],
            None => after,
        };
    }
    found
}

/// Labels by which a query groups or joins.
fn grouping(query: &str) -> BTreeSet<String> {
    let mut labels = BTreeSet::new();
    for keyword in ["by (", "without (", "on (", "ignoring ("] {
        for (at, _) in query.match_indices(keyword) {
            let inside = &query[at + keyword.len()..];
            let inside = &inside[..inside.find(')').unwrap()];
            labels.extend(inside.split(", ").filter(|label| !label.is_empty()).map(str::to_owned));
        }
    }
    labels
}

/// The expressions of the rules file, without a parser of YAML: each stands indented under `expr: |`.
pub(crate) fn rule_expressions() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let (mut name, mut lines) = (String::new(), RULES.lines().peekable());
    while let Some(line) = lines.next() {
        let text = line.trim();
        for key in ["- record: ", "- alert: "] {
            if let Some(given) = text.strip_prefix(key) {
                given.clone_into(&mut name);
            }
        }
        if text == "expr: |" {
            let mut expression = Vec::new();
            while let Some(part) = lines.next_if(|line| line.starts_with("          ")) {
                expression.push(part.trim());
            }
            found.push((name.clone(), expression.join(" ")));
        }
    }
    found
}

#[test]
fn every_metric_and_label_that_is_asked_for_exists() {
    let labels: BTreeMap<&str, BTreeSet<&str>> =
        DEFINITIONS.iter().map(|of| (of.name, of.labels.iter().copied().collect())).collect();
    let all: BTreeSet<&str> = labels.values().flatten().copied().chain(TARGET_LABELS).chain(["le", "holder"]).collect();
    let rules = rule_expressions();
    let records: BTreeSet<&str> =
        rules.iter().map(|(name, _)| name.as_str()).filter(|name| name.contains(':')).collect();
    let mut asked: Vec<(String, String)> = dashboards().iter().flat_map(queries).collect();
    asked.extend(rules.clone());
    let mut used = BTreeSet::new();
    for (place, query) in &asked {
        for selector in selectors(query) {
            let name = selector.metric.as_str();
            let base = ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
            let known = labels.get(name).or_else(|| labels.get(base?));
            assert!(known.is_some() || records.contains(name), "{place}: {name} is no metric of the program");
            used.insert(base.filter(|base| labels.contains_key(base)).unwrap_or(name).to_owned());
            for (label, _) in selector.pairs() {
                let is_own = known.is_some_and(|known| known.contains(label.as_str()));
                let fits = is_own || TARGET_LABELS.contains(&label.as_str()) || label == "le";
                assert!(fits, "{place}: {name} has no label {label}");
            }
        }
        for label in grouping(query) {
            assert!(all.contains(label.as_str()), "{place}: no label {label}");
        }
    }
    let unused: Vec<&str> = labels.keys().copied().filter(|name| !used.contains(*name)).collect();
    figure("O3, metrics that neither a panel nor a rule asks for", &format!("{} of {}", unused.len(), labels.len()));
    assert!(unused.len() < labels.len() / 3, "{unused:?}");
}

// Case C107: label names collide with those of Kubernetes targets.
#[test]
fn c107_no_metric_has_a_label_that_a_scrape_sets() {
    for of in DEFINITIONS {
        let collides = of.labels.iter().find(|label| TARGET_LABELS.contains(label) || **label == "le");
        assert_eq!(collides, None, "{}", of.name);
    }
}

#[test]
fn each_alert_has_a_page_and_each_page_an_alert() {
    let pages: BTreeSet<String> = std::fs::read_dir("docs/runbooks")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_stem().is_some_and(|stem| stem != "README"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(pages, alerts());
    for alert in alerts() {
        assert!(RULES.contains(&format!("runbook_url: docs/runbooks/{alert}.md")), "{alert}: no link to its page");
        let page = std::fs::read_to_string(Path::new("docs/runbooks").join(format!("{alert}.md"))).unwrap();
        assert!(page.starts_with(&format!("# {alert}\n")), "{alert}: another title");
        let start = RULES.find(&format!("- alert: {alert}\n")).unwrap();
        let severity = RULES[start..].split("severity: ").nth(1).unwrap().lines().next().unwrap();
        assert!(page.contains(&format!("Severity: {severity}.")), "{alert}: its page has another severity");
        for (at, _) in page.match_indices("](") {
            let target = &page[at + 2..at + page[at..].find(')').unwrap()];
            assert!(Path::new("docs/runbooks").join(target).exists(), "{alert}: {target} is not there");
        }
    }
    let annotations = ["summary: ", "description: ", "runbook_url: ", "severity: "];
    for annotation in annotations {
        assert_eq!(RULES.matches(annotation).count(), alerts().len(), "{annotation}");
    }
}
