//! What happens, in order, and what is told of it.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use tokio::sync::watch;

use super::DemoError;
use super::cast::Cast;
use super::diary::{Diary, Election};
use super::stage::Stage;
use crate::clock::{self, BootTimer, Moment};
use crate::command::ask::Asker;
use crate::command::control;
use crate::command::observe::Observation;
use crate::config::DemoConfig;
use crate::http::Report;

const REPLICAS: [&str; 3] = ["a", "b", "c"];
/// Beyond what timers say, for a machine that hardly gets on.
const SLACK: Duration = Duration::from_secs(10);
/// Between two questions to a replica: a person sees no jump in a countdown.
const PERIOD: Duration = Duration::from_millis(50);
/// The node that is lost.
const LOST: usize = 1;
/// As many extends without a node show that it is not missed.
const EXTENDS: u32 = 3;

/// The demonstration as it goes on.
pub(super) struct Story<'a> {
    cast: &'a mut Cast,
    stage: &'a mut Stage,
    diary: watch::Receiver<Diary>,
    /// Every leadership that has been told, the present one last.
    told: Vec<Election>,
    ttl: Duration,
    quarantine: Duration,
    renew: Duration,
    /// The present replicas, by their index in the diary.
    present: Vec<usize>,
}

impl<'a> Story<'a> {
    pub(super) fn new(config: &DemoConfig, cast: &'a mut Cast, stage: &'a mut Stage) -> Self {
        let timing = &config.timing;
        Self {
            diary: cast.diary(),
            cast,
            stage,
            told: Vec::new(),
            ttl: timing.ttl(),
            quarantine: timing.quarantine(),
            renew: timing.renew(),
            present: Vec::new(),
        }
    }

    /// All of it.
    pub(super) async fn tell(mut self) -> Result<(), DemoError> {
        let version = env!("CARGO_PKG_VERSION");
        self.stage
            .title(format_args!("redleader {version}: one leader among three replicas, over independent nodes"))?;
        self.nodes().await?;
        self.new_lock().await?;
        self.hand_over().await?;
        self.crash().await?;
        if self.cast.has_own_nodes() {
            self.lose_a_node().await?;
            self.node_is_back().await?;
        } else {
            self.stage.chapter("A lost node: not shown")?;
            self.stage.say("These nodes were given with --redis, and are not this demonstration's to kill.")?;
        }
        self.tokens()?;
        self.all_stop().await
    }

    async fn nodes(&mut self) -> Result<(), DemoError> {
        let server = self.cast.start_nodes().await?;
        let mut asker = Asker::start(self.cast.target()).map_err(DemoError::system("asking the nodes"))?;
        let deadline = clock::now() + SLACK;
        let seen = loop {
            let seen = asker.observe(Some(deadline)).await.map_err(DemoError::system("asking the nodes"))?;
            // Servers that were started this moment are waited for; given ones are what they are.
            if server.is_none() || seen.reachable() == seen.nodes.len() || clock::now() >= deadline {
                break seen;
            }
            self.check()?;
            asker.pause(clock::now() + PERIOD).await.map_err(DemoError::system("a timer"))?;
        };
        if seen.reachable() < seen.quorum() || server.is_some() && seen.reachable() < seen.nodes.len() {
            return Err(no_quorum(&seen));
        }
        let names: Vec<&str> = seen.nodes.iter().map(|node| node.node.as_str()).collect();
        self.stage.chapter("Nodes")?;
        match server {
            Some(server) => self.stage.say(format_args!("{} answer ({server}, started empty).", names.join(", ")))?,
            None => {
                let (some, all) = (seen.reachable(), names.len());
                self.stage.say(format_args!("{some} of {all} answer, as given with --redis: {}.", names.join(", ")))?;
            }
        }
        for node in seen.nodes.iter().filter(|node| node.error.is_some()) {
            self.stage.say(format_args!("{} has no vote: {}.", node.node, node.advice().unwrap_or_default()))?;
        }
        self.cast.will_write(seen.nodes.iter().map(|node| node.error.is_none()));
        Ok(())
    }

    async fn new_lock(&mut self) -> Result<(), DemoError> {
        self.stage.chapter("A new lock")?;
        for name in REPLICAS {
            let actor = self.cast.start_replica(name)?;
            self.present.push(actor);
        }
        let began = clock::now();
        let present = self.present.clone();
        let all = |diary: &Diary| present.iter().all(|actor| diary.actor(*actor).has_started).then_some(());
        self.until("all replicas start", SLACK, all).await?;
        let (lock, ttl) = (self.cast.lock.clone(), seconds(self.ttl));
        self.stage
            .say(format_args!("The replicas {} run `redleader run`, each a process of this", REPLICAS.join(", ")))?;
        self.stage.say(format_args!("very binary, for the lock {lock} with a ttl of {ttl}."))?;
        let mut has_reason = false;
        let deadline = clock::now() + self.quarantine + SLACK;
        let leader = loop {
            if let Some(leader) = self.next_leader()? {
                break leader;
            }
            let report = self.report(present[0]).await;
            let left = report.as_ref().and_then(quarantine_left);
            if let (Some(report), Some(left)) = (&report, left) {
                if !std::mem::replace(&mut has_reason, true) {
                    self.stage.say("Nobody may lead yet. One of them says of itself:")?;
                    self.stage.say(format_args!("\"{}\"", report.reason))?;
                }
                self.stage.countdown("quarantine", left)?;
            }
            if clock::now() >= deadline {
                return Err(in_vain("a replica is elected", self.quarantine + SLACK, report.as_ref()));
            }
            self.pause().await?;
        };
        self.stage.chapter("A leader")?;
        let took = seconds(Moment::from_micros(leader.at_ms * 1000).since(began));
        self.stage
            .point(format_args!("{} leads, {took} after the start. Its token is {}.", leader.name, leader.token))?;
        self.others_stand_by(&leader).await?;
        Ok(())
    }

    async fn hand_over(&mut self) -> Result<(), DemoError> {
        self.stage.chapter("A graceful hand-over")?;
        let old = self.leader();
        self.cast.ask_to_stop(old.actor)?;
        let has_ended = |diary: &Diary| {
            diary.actor(old.actor).stepped_down.iter().find(|(token, _)| *token == old.token).map(|(_, at)| *at)
        };
        let ended_at = self.until(format!("{} steps down", old.name), SLACK, has_ended).await?;
        let new = self.wait_for_leader(self.ttl + SLACK).await?;
        let status = self.cast.wait_end(old.actor, SLACK).await?;
        if !status.success() {
            return Err(DemoError::BadEnd { name: old.name, status: status.to_string() });
        }
        let Some(gap) = new.at_ms.checked_sub(ended_at) else {
            return Err(DemoError::Broken(format!("{} led before {} had stepped down", new.name, old.name)));
        };
        let gap = if gap == 0 { "less than 1 ms".to_owned() } else { format!("{gap} ms") };
        self.stage.say(format_args!("{} was asked to stop (SIGTERM): it stepped down, released the lock", old.name))?;
        self.stage.say("and ended with code 0.")?;
        self.stage.point(format_args!("{} leads, {gap} after {} stepped down.", new.name, old.name))?;
        self.start_again(&old.name).await
    }

    async fn crash(&mut self) -> Result<(), DemoError> {
        self.stage.chapter("A crash")?;
        let old = self.leader();
        let report = self.report(old.actor).await;
        let Some(deadline_ms) = report.as_ref().and_then(|report| report.valid_until_boot_ms) else {
            return Err(in_vain(format!("{} tells until when it leads", old.name), PERIOD, report.as_ref()));
        };
        let killed = self.cast.kill(old.actor).await?;
        let lease = Moment::from_micros(deadline_ms * 1000).since(killed);
        self.stage.say(format_args!("{} was killed (kill -9), and could release nothing.", old.name))?;
        self.stage.say(format_args!("It could have led for {} more: until then nobody else may.", seconds(lease)))?;
        let new = self.wait_for_leader(self.ttl * 2 + SLACK).await?;
        if new.at_ms < deadline_ms {
            return Err(DemoError::Broken(format!("{} led before the lease of {} had run out", new.name, old.name)));
        }
        let took = seconds(Moment::from_micros(new.at_ms * 1000).since(killed));
        self.stage.point(format_args!("{} leads, {took} after the kill.", new.name))?;
        self.start_again(&old.name).await
    }

    async fn lose_a_node(&mut self) -> Result<(), DemoError> {
        self.stage.chapter("A lost node")?;
        let leader = self.leader();
        let node = self.cast.kill_node(LOST).await?;
        self.stage.say(format_args!("{node} was killed: two of three nodes are left."))?;
        let (mut extends, mut valid_until) = (0, u64::MAX);
        let limit = self.renew * (EXTENDS + 1) * 2 + SLACK;
        let what = format!("{} extends its lease without {node}", leader.name);
        self.reported(leader.actor, &what, limit, |report| {
            let until = report.valid_until_boot_ms.filter(|_| !report.nodes[LOST].up)?;
            extends += u32::from(until > valid_until);
            valid_until = until;
            (extends >= EXTENDS).then_some(())
        })
        .await?;
        self.still_leads(&leader)?;
        self.stage.point(format_args!(
            "{} leads on, and has extended its lease {extends} times without that node.",
            leader.name
        ))
    }

    async fn node_is_back(&mut self) -> Result<(), DemoError> {
        self.stage.chapter("The node is back")?;
        let leader = self.leader();
        let node = self.cast.nodes[LOST].url.name();
        self.cast.start_node_again(LOST).await?;
        self.has_key(&leader).await?;
        self.stage.say(format_args!("{node} was started again, empty, and has the lock's key again."))?;
        self.stage.say("Its vote does not count before its quarantine is over: it may have forgotten a grant.")?;
        let deadline = clock::now() + self.quarantine + self.renew * 4 + SLACK;
        loop {
            let report = self.report(leader.actor).await;
            let votes = |report: &Report| report.nodes.iter().all(|node| node.vote == "granted" && node.lease_ms > 0);
            if report.as_ref().is_some_and(votes) {
                break;
            }
            let seen = report.as_ref().map(|report| &report.nodes[LOST]);
            if let Some(left) = seen.map(|node| node.quarantine_ms).filter(|left| *left > 0) {
                self.stage.countdown("quarantine", Duration::from_millis(left))?;
            }
            if clock::now() >= deadline {
                return Err(in_vain(format!("{node} has a vote again"), self.quarantine + SLACK, report.as_ref()));
            }
            self.check()?;
            self.pause().await?;
        }
        self.still_leads(&leader)?;
        self.stage.point(format_args!("All three nodes vote for {} again. It has led all the time.", leader.name))
    }

    /// Looks at the node itself until it has the leader's key.
    async fn has_key(&mut self, leader: &Election) -> Result<(), DemoError> {
        let asking = || DemoError::system("asking the nodes");
        let limit = self.renew * 4 + SLACK;
        let deadline = clock::now() + limit;
        let mut asker = Asker::start(self.cast.target()).map_err(asking())?;
        loop {
            let seen = asker.observe(Some(deadline)).await.map_err(asking())?;
            let holder = seen.nodes[LOST].owner.as_ref().and_then(|owner| owner.identity());
            if holder == Some(leader.name.as_str()) {
                return Ok(());
            }
            if clock::now() >= deadline {
                let what = format!("{} gives the key back to a node that came back", leader.name);
                return Err(in_vain(what, limit, self.report(leader.actor).await.as_ref()));
            }
            self.check()?;
            asker.pause(clock::now() + PERIOD).await.map_err(asking())?;
        }
    }

    fn tokens(&mut self) -> Result<(), DemoError> {
        self.stage.chapter("The tokens, in order")?;
        let (told, seen) = (self.told.clone(), self.diary.borrow().elections());
        if told != seen {
            return Err(DemoError::Unsteady("leadership changed though nothing was done to the leader".to_owned()));
        }
        for election in &told {
            self.stage.say(format_args!("{}  {}", election.token, election.name))?;
        }
        if !told.is_sorted_by(|earlier, later| earlier.token < later.token) {
            return Err(DemoError::Broken("a fencing token is not larger than the one before".to_owned()));
        }
        self.stage.point("Each is larger than all before it, so that whatever the leader writes to can refuse")?;
        self.stage.point("a leader of the past that wakes up late.")
    }

    async fn all_stop(&mut self) -> Result<(), DemoError> {
        self.stage.chapter("The end")?;
        let present = self.present.clone();
        // Standbys first, or each would be elected in its turn.
        let leader = self.leader().actor;
        let order = present.iter().copied().filter(|actor| *actor != leader).chain([leader]);
        for actor in order {
            let name = self.diary.borrow().actor(actor).name.clone();
            self.cast.ask_to_stop(actor)?;
            let status = self.cast.wait_end(actor, SLACK).await?;
            if !status.success() {
                return Err(DemoError::BadEnd { name, status: status.to_string() });
            }
        }
        self.stage.say("All replicas were asked to stop, and ended with code 0.")
    }

    /// The others say whom they see.
    async fn others_stand_by(&mut self, leader: &Election) -> Result<(), DemoError> {
        let others: Vec<usize> = self.present.iter().copied().filter(|actor| *actor != leader.actor).collect();
        let mut names = Vec::new();
        for actor in others {
            let name = self.diary.borrow().actor(actor).name.clone();
            let what = format!("{name} sees that {} leads", leader.name);
            let holder = Some(leader.name.as_str());
            self.reported(actor, &what, self.ttl + SLACK, |report| {
                (!report.leading && report.holder.as_deref() == holder).then_some(())
            })
            .await?;
            names.push(name);
        }
        self.stage.say(format_args!("{} stand by, and say that {} holds the lock.", names.join(" and "), leader.name))
    }

    async fn start_again(&mut self, name: &str) -> Result<(), DemoError> {
        let leader = self.leader();
        let actor = self.cast.start_replica(name)?;
        let gone = self.present.iter().position(|actor| self.diary.borrow().actor(*actor).name == name);
        self.present[gone.expect("whoever is started again was there")] = actor;
        let what = format!("{name} is started again and sees that {} leads", leader.name);
        self.reported(actor, &what, self.ttl + SLACK, |report| {
            (!report.leading && report.holder.as_ref() == Some(&leader.name)).then_some(())
        })
        .await?;
        self.stage.say(format_args!("{name} was started again, and stands by."))
    }

    /// The present leader, as last told.
    fn leader(&self) -> Election {
        self.told.last().cloned().expect("the first chapter ends with a leader")
    }

    fn still_leads(&self, leader: &Election) -> Result<(), DemoError> {
        let diary = self.diary.borrow();
        if diary.elections().last() != Some(leader) || !diary.actor(leader.actor).stepped_down.is_empty() {
            return Err(DemoError::Unsteady(format!("{} lost leadership with a quorum of nodes left", leader.name)));
        }
        Ok(())
    }

    async fn wait_for_leader(&mut self, limit: Duration) -> Result<Election, DemoError> {
        let known = self.told.len();
        let has_more = |diary: &Diary| (diary.elections().len() > known).then_some(());
        self.until("another replica is elected", limit, has_more).await?;
        self.next_leader()?.ok_or_else(|| in_vain("another replica is elected", limit, None))
    }

    /// The first leadership that has not been told, which is told from here on.
    fn next_leader(&mut self) -> Result<Option<Election>, DemoError> {
        self.check()?;
        let next = self.diary.borrow().elections().get(self.told.len()).cloned();
        self.told.extend(next.clone());
        Ok(next)
    }

    /// Waits until the diary has it.
    async fn until<T>(
        &mut self,
        what: impl Into<String>,
        limit: Duration,
        find: impl Fn(&Diary) -> Option<T>,
    ) -> Result<T, DemoError> {
        let deadline = clock::now() + limit;
        loop {
            {
                let diary = self.diary.borrow_and_update();
                if let Some(found) = find(&diary) {
                    return Ok(found);
                }
                if let Some(gone) = diary.gone() {
                    return Err(gone);
                }
            }
            let left = deadline.since(clock::now());
            if tokio::time::timeout(left, self.diary.changed()).await.is_err() {
                let report = match self.present.first() {
                    Some(actor) => self.report(*actor).await,
                    None => None,
                };
                return Err(in_vain(what, limit, report.as_ref()));
            }
        }
    }

    /// Asks a replica again and again until its report has it.
    async fn reported<T>(
        &mut self,
        actor: usize,
        what: &str,
        limit: Duration,
        mut find: impl FnMut(&Report) -> Option<T>,
    ) -> Result<T, DemoError> {
        let deadline = clock::now() + limit;
        loop {
            let report = self.report(actor).await;
            if let Some(found) = report.as_ref().and_then(&mut find) {
                return Ok(found);
            }
            if clock::now() >= deadline {
                return Err(in_vain(what, limit, report.as_ref()));
            }
            self.check()?;
            self.pause().await?;
        }
    }

    /// What a replica says of itself now, if it answers.
    async fn report(&self, actor: usize) -> Option<Report> {
        let said = control::leader(self.cast.control(actor)).await.ok()?;
        serde_json::from_value(said).ok()
    }

    /// Whether all that should run still runs.
    fn check(&self) -> Result<(), DemoError> {
        self.diary.borrow().gone().map_or(Ok(()), Err)
    }

    async fn pause(&self) -> Result<(), DemoError> {
        let pause = async {
            let timer = BootTimer::new()?;
            timer.arm(clock::now() + PERIOD)?;
            timer.fired().await
        };
        pause.await.map_err(|why: io::Error| DemoError::system("a timer")(why))
    }
}

fn no_quorum(seen: &Observation) -> DemoError {
    let mut faults = String::new();
    for node in &seen.nodes {
        if let (Some(_), Some(advice)) = (node.error, node.advice()) {
            // Writing to a String cannot fail.
            let _ = write!(faults, "\n  {}: {advice}", node.node);
        }
    }
    DemoError::NoQuorum { reachable: seen.reachable(), all: seen.nodes.len(), required: seen.quorum(), faults }
}

fn in_vain(what: impl Into<String>, limit: Duration, report: Option<&Report>) -> DemoError {
    let reason = report.map(|report| format!("; {} says: {}", report.identity, report.reason)).unwrap_or_default();
    DemoError::InVain { what: what.into(), limit, reason }
}

/// How long until enough nodes leave quarantine for a quorum, by a replica's own report.
fn quarantine_left(report: &Report) -> Option<Duration> {
    let able = report.nodes.iter().filter(|node| node.up && node.error.is_none());
    let mut left: Vec<u64> = able.map(|node| node.quarantine_ms).collect();
    left.sort_unstable();
    left.get(report.quorum.required - 1).filter(|left| **left > 0).map(|left| Duration::from_millis(*left))
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
