//! `doctor`: asks every node all that matters for a lock, and says what is wrong, what it can cost, and what to do.
//!
//! Nothing is written on the nodes. What is judged, and by which numbers, is in `judge`.

mod change;
mod clock;
mod finding;
mod judge;
mod page;

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::clock::{BootTimer, now};
use crate::command::doctor::change::Change;
use crate::command::doctor::clock::Clock;
use crate::command::doctor::finding::{Finding, Problem, Severity, merge};
use crate::command::{Exit, Said};
use crate::config::{DoctorConfig, Output, Target};
use crate::kubernetes::{Api, Settings};
use crate::redsync::error::Failure;
use crate::redsync::node::NodeSettings;
use crate::redsync::node::probe::{ClockLine, Facts, Reading, probe};
use crate::redsync::reply::Kind;
use crate::redsync::script::Scripts;

/// One node, examined.
struct Examined {
    name: String,
    facts: Result<Facts, Failure>,
    /// `None`: not measured, or the node says nothing.
    clock: Option<Clock>,
    /// Whether releases can be heard there.
    may_subscribe: bool,
}

/// All that the page tells.
struct Report<'a> {
    target: &'a Target,
    nodes: Vec<Examined>,
    measured: Duration,
    change: Option<Change>,
    findings: Vec<Finding>,
}

/// Examines all nodes, and the change of the list if one is planned.
pub async fn doctor(config: DoctorConfig) -> Said {
    let DoctorConfig { target, next, kubernetes, measure, output } = config;
    if !measure.is_zero() && io::stderr().is_terminal() {
        // For whoever would think that it hangs; with nobody to read it, it is still worth measuring.
        let _ = writeln!(io::stderr(), "measuring the nodes' clocks for {}", humantime::format_duration(measure));
    }
    let mut nodes = match examine_all(&target, measure).await {
        Ok(nodes) => nodes,
        Err(error) => return Said { text: format!("cannot measure clocks: {error}"), exit: Exit::Failed },
    };
    clock::compare(nodes.iter_mut().filter_map(|node| node.clock.as_mut()).collect());
    let change = next.map(|next| Change::new(&target.nodes, &next));
    let mut findings = judge::judge(&target, &nodes);
    findings.extend(change.as_ref().and_then(|change| change.finding(target.timing.quarantine())));
    if let Some(settings) = kubernetes {
        findings.extend(publishing(&settings).await);
    }
    let findings = merge(findings);
    let exit = match findings.iter().map(|finding| finding.severity).max() {
        None => Exit::Well,
        Some(Severity::Warning) => Exit::NotWell,
        Some(Severity::Refused) => Exit::Unfit,
    };
    let report = Report { target: &target, nodes, measured: measure, change, findings };
    let text = match output {
        Output::Text => page::text(&report),
        Output::Json => page::json(&report),
    };
    Said { text, exit }
}

/// What would keep leadership from being published, as far as the API server tells.
async fn publishing(settings: &Settings) -> Option<Finding> {
    let api = match Api::connect(settings.proxy.as_ref()) {
        Ok(api) => api,
        Err(why) => return Some(Finding::of_all(Problem::Kubernetes, why.to_string())),
    };
    match settings.missing_rights(&api).await {
        Ok(None) => None,
        Ok(Some(missing)) => Some(Finding::of_all(Problem::Rights, missing)),
        Err(failure) => Some(Finding::of_all(Problem::Kubernetes, format!("the Kubernetes API: {failure}"))),
    }
}

/// All nodes at once, in the order given.
async fn examine_all(target: &Target, measure: Duration) -> io::Result<Vec<Examined>> {
    let scripts = Arc::new(Scripts::new(&target.lock, target.nodes.iter().map(|node| &node.url)));
    let step = target.timing.ttl() * target.timing.margin_permille() / 1000;
    let mut tasks = JoinSet::new();
    for (index, settings) in target.nodes.iter().cloned().enumerate() {
        let (scripts, quarantine) = (scripts.clone(), target.timing.quarantine());
        tasks.spawn(async move { Ok((index, examine(settings, &scripts, quarantine, measure, step).await?)) });
    }
    let mut examined = Vec::new();
    while let Some(done) = tasks.join_next().await {
        examined.push(done.map_err(io::Error::other).and_then(|done: io::Result<_>| done)?);
    }
    examined.sort_by_key(|(index, _)| *index);
    Ok(examined.into_iter().map(|(_, examined)| examined).collect())
}

async fn examine(
    settings: NodeSettings,
    scripts: &Scripts,
    quarantine: Duration,
    measure: Duration,
    step: Duration,
) -> io::Result<Examined> {
    let name = settings.url.name();
    let (facts, mut line) = match probe(&settings, scripts, quarantine).await {
        Ok(probed) => probed,
        Err(failure) => return Ok(Examined { name, facts: Err(failure), clock: None, may_subscribe: true }),
    };
    // A connection that breaks while it is watched is as good as none.
    let readings = match read_clock(&mut line, measure).await? {
        Ok(readings) => readings,
        Err(failure) => return Ok(Examined { name, facts: Err(failure), clock: None, may_subscribe: true }),
    };
    let clock = Clock::measure(&readings, step);
    Ok(match line.may_subscribe().await {
        Ok(may_subscribe) => Examined { name, facts: Ok(facts), clock, may_subscribe },
        Err(failure) => Examined { name, facts: Err(failure), clock, may_subscribe: true },
    })
}

/// Readings of one node's clock: so many that a step shows, and a slow answer is one of many.
const READINGS: u32 = 60;
/// More often would only measure the machine that is asked.
const PERIOD_LEAST: Duration = Duration::from_millis(20);

async fn read_clock(line: &mut ClockLine, measure: Duration) -> io::Result<Result<Vec<Reading>, Failure>> {
    let timer = BootTimer::new()?;
    let (began, period) = (now(), (measure / READINGS).max(PERIOD_LEAST));
    let mut readings: Vec<Reading> = Vec::new();
    loop {
        match line.read().await {
            Ok(reading) => readings.push(reading),
            // A user that may do all that the lock needs may ask TIME too; the missing right is a finding of its own.
            Err(failure) if matches!(failure.kind, Kind::Noperm | Kind::Unsupported) => return Ok(Ok(readings)),
            Err(failure) => return Ok(Err(failure)),
        }
        let next = began + period * u32::try_from(readings.len()).unwrap_or(u32::MAX);
        if next > began + measure {
            return Ok(Ok(readings));
        }
        timer.arm(next)?;
        timer.fired().await?;
    }
}
