//! Every metric. Counters are counted as events come; everything that time changes is computed at the scrape.
//!
//! A gauge that somebody sets when leadership changes keeps its value when that somebody hangs. So gauges are set from
//! the [`Leadership`] and the time of the scrape, under the lock that also gathers them: no scrape sees half a change.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::{Error, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, TextEncoder};

use crate::clock::Moment;
use crate::election::event::{AcquireOutcome, Event, ExtendOutcome, ReleaseOutcome, StepDown};
use crate::election::leadership::{Belief, Leadership, NodeView, State};
use crate::kubernetes::{Code, Target};
use crate::redsync::reply::{Kind, NodeIndex, Op};
use crate::wall;

mod definition;

pub use definition::{DEFINITIONS, Definition};

/// What `/metrics` is served as.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The `holder` label of a holder that is not redleader, whose name would be a secret or an endless set of labels.
const FOREIGN: &str = "foreign";

const DURATIONS: &[f64] =
    &[0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const RATIOS: &[f64] = &[0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
const GAPS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 300.0];

/// The metrics of one replica. Cheap to clone; all clones count into the same series.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    lock: String,
    identity: String,
    nodes: Vec<String>,
    registry: Registry,
    counts: Counts,
    /// Locked for the whole of a scrape.
    scrape: Mutex<Gauges>,
    lag: Mutex<Lag>,
}

impl Metrics {
    /// The metrics of the replica `identity` of `lock`, with every counter at 0. `nodes` are the nodes' names, in the
    /// configured order.
    ///
    /// # Errors
    /// When the definitions contradict each other, which the tests rule out.
    pub fn new(lock: &str, identity: &str, nodes: &[String]) -> Result<Self, Error> {
        let registry = Registry::new();
        let counts = Counts::new(&registry)?;
        counts.start_at_zero(lock, nodes);
        let gauges = Gauges::new(&registry)?;
        registry.register(Box::new(ProcessCollector::for_self()))?;
        Ok(Self(Arc::new(Inner {
            lock: lock.to_owned(),
            identity: identity.to_owned(),
            nodes: nodes.to_vec(),
            registry,
            counts,
            scrape: Mutex::new(gauges),
            lag: Mutex::new(Lag::default()),
        })))
    }

    /// Counts an answer of a node, of whichever kind.
    pub fn node_command(&self, node: NodeIndex, op: Op, took: Duration) {
        if let Some(node) = self.0.nodes.get(node) {
            self.0.counts.node_command.with_label_values(&[node.as_str(), op.as_str()]).observe(took.as_secs_f64());
        }
    }

    /// Counts an answer of a node that is no vote, or a connection that failed.
    pub fn node_error(&self, node: NodeIndex, kind: Kind) {
        if let Some(node) = self.0.nodes.get(node) {
            self.0.counts.node_errors.with_label_values(&[node.as_str(), kind.as_str()]).inc();
        }
    }

    /// The metrics of one publisher, with nothing published yet.
    #[must_use]
    pub fn publisher(&self, target: Target) -> PublisherMetrics {
        let metrics = PublisherMetrics { metrics: self.clone(), target };
        metrics.pending(true);
        metrics
    }

    /// Notes how late the election's loop was.
    pub fn loop_lag(&self, lag: Duration) {
        let mut worst = self.0.lag.lock().unwrap_or_else(PoisonError::into_inner);
        worst.current = worst.current.max(lag);
    }

    /// Counts a leadership file that could not be written.
    pub fn leadership_file_error(&self) {
        self.0.counts.leadership_file_errors.with_label_values(&[self.0.lock.as_str()]).inc();
    }

    /// Counts what the core tells.
    pub fn event(&self, event: &Event) {
        let (counts, lock) = (&self.0.counts, self.0.lock.as_str());
        let transition = |which: Transition| counts.transitions.with_label_values(&[lock, which.as_str()]).inc();
        match event {
            Event::Elected { gap, .. } => {
                transition(Transition::Elected);
                if let Some(gap) = gap {
                    counts.failover_gap.with_label_values(&[lock]).observe(gap.as_secs_f64());
                }
            }
            Event::SteppedDown { reason, .. } => {
                transition(Transition::SteppedDown);
                counts.stepdowns.with_label_values(&[lock, reason.as_str()]).inc();
            }
            Event::HolderChanged { .. } => transition(Transition::HolderChanged),
            Event::Acquire { outcome, took } => {
                let labels = [lock, outcome.as_str()];
                counts.acquire_attempts.with_label_values(&labels).inc();
                counts.acquire_duration.with_label_values(&labels).observe(took.as_secs_f64());
            }
            Event::Extend { outcome, took, margin_left } => {
                let labels = [lock, outcome.as_str()];
                counts.extend_attempts.with_label_values(&labels).inc();
                counts.extend_duration.with_label_values(&labels).observe(took.as_secs_f64());
                if let Some(thousandths) = margin_left {
                    counts.extend_margin.with_label_values(&[lock]).observe(f64::from(*thousandths) / 1000.0);
                }
            }
            Event::Release { outcome, .. } => {
                counts.release_attempts.with_label_values(&[lock, outcome.as_str()]).inc();
            }
            // Shown by gauges, counted by `node_error`, or for the log only.
            Event::SteppingDown { .. }
            | Event::Node { .. }
            | Event::NodeLost { .. }
            | Event::NodeRefilled { .. }
            | Event::NodeQuarantined { .. }
            | Event::ClockStepped { .. }
            | Event::NoExpiry { .. }
            | Event::Quarantine { .. }
            | Event::ListMismatch { .. } => {}
        }
    }

    /// The body of `/metrics`, as of `now`. `last_tick`: when the election's loop last turned.
    #[must_use]
    pub fn render(&self, leadership: &Leadership, now: Moment, last_tick: Moment) -> String {
        let gauges = self.0.scrape.lock().unwrap_or_else(PoisonError::into_inner);
        gauges.set_lock(&self.0, leadership, now);
        for node in &leadership.nodes {
            gauges.set_node(node, now);
        }
        gauges.loop_age.with_label_values(NO_LABELS).set(now.since(last_tick).as_secs_f64());
        let lag = self.0.lag.lock().unwrap_or_else(PoisonError::into_inner).worst(now);
        gauges.loop_lag.with_label_values(NO_LABELS).set(lag.as_secs_f64());
        let families = self.0.registry.gather();
        drop(gauges);
        // Only an inconsistent family could fail to encode; a scrape is no reason to end a leader.
        TextEncoder::new().encode_to_string(&families).unwrap_or_else(|error| format!("# {error}\n"))
    }
}

const NO_LABELS: &[&str] = &[];

/// The metrics of one publisher.
#[derive(Clone, Debug)]
pub struct PublisherMetrics {
    metrics: Metrics,
    target: Target,
}

impl PublisherMetrics {
    /// What it publishes.
    #[must_use]
    pub const fn target(&self) -> Target {
        self.target
    }

    /// Notes whether what is published differs from what is so.
    pub fn pending(&self, pending: bool) {
        self.metrics.0.counts.publish_pending.with_label_values(&[self.target.as_str()]).set(one_if(pending));
    }

    /// Counts a request that failed.
    pub fn failed(&self, code: Code) {
        self.metrics.0.counts.publish_errors.with_label_values(&[self.target.as_str(), code.as_str()]).inc();
    }
}

/// What `transitions_total` counts.
#[derive(Clone, Copy)]
enum Transition {
    Elected,
    SteppedDown,
    HolderChanged,
}

impl Transition {
    const ALL: [Self; 3] = [Self::Elected, Self::SteppedDown, Self::HolderChanged];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Elected => "elected",
            Self::SteppedDown => "stepped-down",
            Self::HolderChanged => "holder-changed",
        }
    }
}

/// The largest lag of this minute and of the one before, so that two scrapers do not take it from each other.
#[derive(Debug, Default)]
struct Lag {
    current: Duration,
    previous: Duration,
    began: Moment,
}

impl Lag {
    const WINDOW: Duration = Duration::from_secs(60);

    fn worst(&mut self, now: Moment) -> Duration {
        let worst = self.current.max(self.previous);
        if now.since(self.began) >= Self::WINDOW {
            self.previous = std::mem::take(&mut self.current);
            self.began = now;
        }
        worst
    }
}

/// What is counted as it happens.
#[derive(Debug)]
struct Counts {
    transitions: IntCounterVec,
    stepdowns: IntCounterVec,
    acquire_attempts: IntCounterVec,
    extend_attempts: IntCounterVec,
    release_attempts: IntCounterVec,
    acquire_duration: HistogramVec,
    extend_duration: HistogramVec,
    extend_margin: HistogramVec,
    failover_gap: HistogramVec,
    node_command: HistogramVec,
    node_errors: IntCounterVec,
    leadership_file_errors: IntCounterVec,
    publish_errors: IntCounterVec,
    /// A publisher knows best, and nothing of it changes with time alone.
    publish_pending: GaugeVec,
}

impl Counts {
    fn new(registry: &Registry) -> Result<Self, Error> {
        Ok(Self {
            transitions: counter(registry, definition::TRANSITIONS)?,
            stepdowns: counter(registry, definition::STEPDOWNS)?,
            acquire_attempts: counter(registry, definition::ACQUIRE_ATTEMPTS)?,
            extend_attempts: counter(registry, definition::EXTEND_ATTEMPTS)?,
            release_attempts: counter(registry, definition::RELEASE_ATTEMPTS)?,
            acquire_duration: histogram(registry, definition::ACQUIRE_DURATION, DURATIONS)?,
            extend_duration: histogram(registry, definition::EXTEND_DURATION, DURATIONS)?,
            extend_margin: histogram(registry, definition::EXTEND_MARGIN, RATIOS)?,
            failover_gap: histogram(registry, definition::FAILOVER_GAP, GAPS)?,
            node_command: histogram(registry, definition::NODE_COMMAND, DURATIONS)?,
            node_errors: counter(registry, definition::NODE_ERRORS)?,
            leadership_file_errors: counter(registry, definition::LEADERSHIP_FILE_ERRORS)?,
            publish_errors: counter(registry, definition::PUBLISH_ERRORS)?,
            publish_pending: gauge(registry, definition::PUBLISH_PENDING)?,
        })
    }

    /// Makes every series that there can be, so that a first event is an increase from 0 and not from nothing.
    fn start_at_zero(&self, lock: &str, nodes: &[String]) {
        for event in Transition::ALL {
            self.transitions.with_label_values(&[lock, event.as_str()]);
        }
        for reason in StepDown::ALL {
            self.stepdowns.with_label_values(&[lock, reason.as_str()]);
        }
        for outcome in AcquireOutcome::ALL {
            self.acquire_attempts.with_label_values(&[lock, outcome.as_str()]);
            self.acquire_duration.with_label_values(&[lock, outcome.as_str()]);
        }
        for outcome in ExtendOutcome::ALL {
            self.extend_attempts.with_label_values(&[lock, outcome.as_str()]);
            self.extend_duration.with_label_values(&[lock, outcome.as_str()]);
        }
        for outcome in ReleaseOutcome::ALL {
            self.release_attempts.with_label_values(&[lock, outcome.as_str()]);
        }
        for target in Target::ALL {
            for code in Code::ALL {
                self.publish_errors.with_label_values(&[target.as_str(), code.as_str()]);
            }
            self.publish_pending.with_label_values(&[target.as_str()]);
        }
        self.extend_margin.with_label_values(&[lock]);
        self.failover_gap.with_label_values(&[lock]);
        self.leadership_file_errors.with_label_values(&[lock]);
        for node in nodes {
            for op in Op::ALL {
                self.node_command.with_label_values(&[node.as_str(), op.as_str()]);
            }
            for kind in Kind::ALL {
                self.node_errors.with_label_values(&[node.as_str(), kind.as_str()]);
            }
        }
    }
}

/// What is set at each scrape.
#[derive(Debug)]
struct Gauges {
    is_leader: GaugeVec,
    master_status: GaugeVec,
    state: GaugeVec,
    holder_info: GaugeVec,
    fencing_token: GaugeVec,
    lease_expiry: GaugeVec,
    leader_since: GaugeVec,
    last_extend: GaugeVec,
    node_up: GaugeVec,
    node_quarantined: GaugeVec,
    node_clock_offset: GaugeVec,
    node_clock_rate: GaugeVec,
    node_evicts: GaugeVec,
    quorum_required: GaugeVec,
    quorum_reachable: GaugeVec,
    list_mismatch: GaugeVec,
    quarantine: GaugeVec,
    app_healthy: GaugeVec,
    loop_age: GaugeVec,
    loop_lag: GaugeVec,
}

impl Gauges {
    fn new(registry: &Registry) -> Result<Self, Error> {
        gauge(registry, definition::BUILD_INFO)?.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        Ok(Self {
            is_leader: gauge(registry, definition::IS_LEADER)?,
            master_status: gauge(registry, definition::MASTER_STATUS)?,
            state: gauge(registry, definition::STATE)?,
            holder_info: gauge(registry, definition::HOLDER_INFO)?,
            fencing_token: gauge(registry, definition::FENCING_TOKEN)?,
            lease_expiry: gauge(registry, definition::LEASE_EXPIRY)?,
            leader_since: gauge(registry, definition::LEADER_SINCE)?,
            last_extend: gauge(registry, definition::LAST_EXTEND)?,
            node_up: gauge(registry, definition::NODE_UP)?,
            node_quarantined: gauge(registry, definition::NODE_QUARANTINED)?,
            node_clock_offset: gauge(registry, definition::NODE_CLOCK_OFFSET)?,
            node_clock_rate: gauge(registry, definition::NODE_CLOCK_RATE)?,
            node_evicts: gauge(registry, definition::NODE_EVICTS)?,
            quorum_required: gauge(registry, definition::QUORUM_REQUIRED)?,
            quorum_reachable: gauge(registry, definition::QUORUM_REACHABLE)?,
            list_mismatch: gauge(registry, definition::LIST_MISMATCH)?,
            quarantine: gauge(registry, definition::QUARANTINE)?,
            app_healthy: gauge(registry, definition::APP_HEALTHY)?,
            loop_age: gauge(registry, definition::LOOP_AGE)?,
            loop_lag: gauge(registry, definition::LOOP_LAG)?,
        })
    }

    fn set_lock(&self, names: &Inner, leadership: &Leadership, now: Moment) {
        let lock = &[names.lock.as_str()];
        let leading = leadership.is_leading(now);
        self.is_leader.with_label_values(lock).set(one_if(leading));
        self.master_status.with_label_values(lock).set(one_if(leading));
        let present = leadership.state(now);
        for state in State::ALL {
            self.state.with_label_values(&[lock[0], state.as_str()]).set(one_if(state == present));
        }

        let belief = leadership.belief.as_ref().filter(|_| leading);
        let other = leadership.holder(now).filter(|_| !leading);
        self.holder_info.reset();
        let holder = match other {
            Some(other) => Some(other.owner.identity().unwrap_or(FOREIGN)),
            None => leading.then_some(names.identity.as_str()),
        };
        if let Some(holder) = holder {
            self.holder_info.with_label_values(&[lock[0], holder]).set(1.0);
        }
        let token = belief.map(|belief| belief.token).or_else(|| other.and_then(|other| other.token));
        // Exact: a token is below 2^53.
        set_or_remove(&self.fencing_token, lock, token.map(|token| token as f64));
        let at = |moment: fn(&Belief) -> Moment| belief.map(|belief| wall::seconds_of(moment(belief), now));
        set_or_remove(&self.lease_expiry, lock, at(|belief| belief.deadline));
        set_or_remove(&self.leader_since, lock, at(|belief| belief.since));
        set_or_remove(&self.last_extend, lock, at(|belief| belief.extended_at));

        set_or_remove(&self.app_healthy, lock, leadership.app_healthy.map(one_if));
        self.quorum_required.with_label_values(lock).set(leadership.quorum as f64);
        self.quorum_reachable.with_label_values(lock).set(leadership.reachable() as f64);
        self.list_mismatch.with_label_values(lock).set(one_if(leadership.list_mismatch));
        self.quarantine.with_label_values(lock).set(leadership.quarantine.as_secs_f64());
    }

    fn set_node(&self, node: &NodeView, now: Moment) {
        let name = &[node.name.as_str()];
        let quarantined = node.quarantined_until.is_some_and(|until| now < until);
        self.node_up.with_label_values(name).set(one_if(node.up));
        self.node_quarantined.with_label_values(name).set(one_if(quarantined));
        self.node_evicts.with_label_values(name).set(one_if(node.evicts));
        let offset = node.clock_offset_us.map(|micros| micros as f64 / 1e6);
        set_or_remove(&self.node_clock_offset, name, offset);
        let rate = node.clock_rate_ppm.map(|ppm| 1.0 + ppm as f64 / 1e6);
        set_or_remove(&self.node_clock_rate, name, rate);
    }
}

fn set_or_remove(gauge: &GaugeVec, labels: &[&str], value: Option<f64>) {
    match value {
        Some(value) => gauge.with_label_values(labels).set(value),
        None => {
            // An error says that there was none.
            let _ = gauge.remove_label_values(labels);
        }
    }
}

fn one_if(yes: bool) -> f64 {
    f64::from(u8::from(yes))
}

fn counter(registry: &Registry, of: Definition) -> Result<IntCounterVec, Error> {
    register(registry, IntCounterVec::new(Opts::new(of.name, of.help), of.labels)?)
}

fn gauge(registry: &Registry, of: Definition) -> Result<GaugeVec, Error> {
    register(registry, GaugeVec::new(Opts::new(of.name, of.help), of.labels)?)
}

fn histogram(registry: &Registry, of: Definition, buckets: &[f64]) -> Result<HistogramVec, Error> {
    let opts = HistogramOpts::new(of.name, of.help).buckets(buckets.to_vec());
    register(registry, HistogramVec::new(opts, of.labels)?)
}

fn register<M: Collector + Clone + 'static>(registry: &Registry, metric: M) -> Result<M, Error> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

#[cfg(test)]
mod tests;
