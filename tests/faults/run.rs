//! One schedule with real processes, and what is to be said of it.

use std::path::PathBuf;
use std::time::Duration;

use crate::befall::{Undo, befall_candidate, befall_nodes, befall_path, end};
use crate::kind::{Kind, OfNode};
use crate::schedule::{Fault, Schedule, millis};
use crate::support::{Judge, Replica, Sample, Track, boot_ms, let_time_pass, proofs};
use crate::verdict::{Scope, Span, Verdict, Window, late, leaderless, longest, required, wrongly_ready};
use crate::world::{PATIENCE, Seat, State, World};

/// How long somebody has to lead at the end.
const CALM: Duration = Duration::from_millis(300);

/// What happened, and what is to be said of it.
pub struct Run {
    /// What was meant to happen.
    pub schedule: Schedule,
    /// What happened, in the order of its beginning.
    pub events: Vec<Event>,
    /// What is to be said of it.
    pub verdict: Verdict,
    /// Every process.
    pub processes: Vec<Replica>,
    began: u64,
}

/// A fault that happened; milliseconds of boot time.
#[derive(Debug)]
pub struct Event {
    /// Its kind; `None` is the start.
    pub kind: Option<Kind>,
    from: u64,
    to: u64,
    scope: Scope,
    text: String,
}

impl Run {
    /// Runs it.
    pub fn of(schedule: Schedule, program: PathBuf, lock: String) -> Self {
        let mut world = World::start(&schedule, program, lock);
        let began = boot_ms();
        world.wait_leader();
        let started = Event { kind: None, from: began, to: began, scope: Scope::All, text: "start".to_owned() };
        let mut events = vec![started];
        play(&schedule, &mut world, &mut events);
        let aftermath = millis(schedule.aftermath());
        let until = events.iter().map(|event| event.to + aftermath).max().unwrap_or(0);
        let left = Duration::from_millis(until.saturating_sub(boot_ms())) + CALM;
        let_time_pass("somebody leads again, and goes on", left);
        let span = (began, boot_ms());
        let mut faults = odd_ends(&world);
        let (meter, processes) = world.end();
        let samples = meter.samples();
        let tracks: Vec<Track> = processes.iter().map(Replica::track).collect();
        let wrong: Vec<(&Track, Vec<Span>)> =
            samples.iter().zip(&tracks).map(|(samples, track)| (track, wrongly_ready(samples, track))).collect();
        let told = wrong.iter().filter(|(_, wrong)| !wrong.is_empty());
        faults.extend(told.map(|(track, wrong)| format!("{} was ready and did not lead: {wrong:?} µs", track.who)));
        let report = Judge::check(&tracks);
        let window = |event: &Event| Window { from: event.from, to: event.to + aftermath, scope: event.scope.clone() };
        let late = late_machine(&samples, &schedule, &events);
        let too_late = |(from, to): &Span| Window { from: *from, to: *to + aftermath, scope: Scope::All };
        let windows: Vec<Window> = events.iter().map(window).chain(late.iter().map(too_late)).collect();
        let required = required(span, &windows, schedule.nodes.len(), schedule.candidates.len());
        let verdict = Verdict {
            witnessed: proofs(&samples),
            ready: samples.iter().flatten().filter(|sample| sample.ready).count(),
            unexplained: longest(&leaderless(&required, &report.terms)),
            late,
            required: required.iter().map(|(from, to)| to - from).sum(),
            report,
            wrongly_ready: wrong.iter().map(|(_, wrong)| wrong.len()).sum(),
            faults,
        };
        Self { schedule, events, verdict, processes, began }
    }

    /// What of it must not be, whatever else the machine does; in words.
    pub fn complaints(&self) -> Vec<String> {
        let Verdict { report, witnessed, faults, .. } = &self.verdict;
        let mut complaints = faults.clone();
        if !report.overlaps.is_empty() {
            complaints.push(format!("two leaders: {:?}", report.overlaps));
        }
        if !report.tokens_increase {
            complaints.push("a token did not grow".to_owned());
        }
        if *witnessed > 0 {
            complaints.push(format!("/readyz of two was 200 at once, {witnessed} times"));
        }
        complaints
    }

    /// A time without a leader that no fault explains, longer than an election takes; in words.
    pub fn unexplained(&self) -> Option<String> {
        let (from, to) = self.verdict.unexplained.filter(|(from, to)| to - from > millis(self.schedule.find()))?;
        let (from, to, took) = (from - self.began, to - self.began, to - from);
        Some(format!("nobody led from {from} to {to}, {took} ms, and no fault is the reason"))
    }

    /// The timeline: what it was run with, faults, leaderships.
    pub fn timeline(&self) -> String {
        let Schedule { seed, ttl, nodes, candidates, .. } = &self.schedule;
        let mut lines = vec![
            format!("SEED={seed} ttl {} ms, paths that can be disturbed: {candidates:?}", ttl.as_millis()),
            format!("nodes {nodes:?}"),
        ];
        let mut told: Vec<(u64, String)> = Vec::new();
        for event in &self.events {
            let (from, to) = (event.from - self.began, event.to - self.began);
            let name = event.kind.map_or("", Kind::as_str);
            told.push((from, format!("{from:>6} to {to:>6}  {name} {}", event.text)));
        }
        for term in &self.verdict.report.terms {
            let from = term.start.saturating_sub(self.began);
            let to = term.end.map_or_else(String::new, |end| end.saturating_sub(self.began).to_string());
            told.push((from, format!("{from:>6} to {to:>6}  {} leads, token {}", term.who, term.token)));
        }
        for (from, to) in &self.verdict.late {
            let (from, to) = (from.saturating_sub(self.began), to.saturating_sub(self.began));
            told.push((from, format!("{from:>6} to {to:>6}  the machine is late")));
        }
        told.sort();
        lines.extend(told.into_iter().map(|(_, line)| line));
        lines.join("\n")
    }

    /// Every process's log, with the milliseconds since the beginning.
    pub fn logs(&self) -> String {
        let mut lines: Vec<(u64, String)> = Vec::new();
        for process in &self.processes {
            for line in process.process().stderr() {
                let at = line.boot_ms.saturating_sub(self.began);
                lines.push((at, format!("{at:>6} {} {}", process.identity(), line.text)));
            }
        }
        lines.sort_by_key(|(at, _)| *at);
        lines.into_iter().map(|(_, line)| line + "\n").collect()
    }
}

/// Lets the faults begin and end at their times.
fn play(schedule: &Schedule, world: &mut World, events: &mut Vec<Event>) {
    let edges = schedule.faults.iter().enumerate();
    let mut edges: Vec<(u64, usize, bool)> =
        edges.flat_map(|(index, fault)| [(fault.at, index, true), (fault.at + fault.lasts, index, false)]).collect();
    // What is over ends before what begins then; what has no length ends after it began.
    edges.sort_by_key(|(at, index, begins)| (*at, *begins && schedule.faults[*index].lasts > 0, !begins));
    let began = boot_ms();
    let mut running: Vec<Option<(usize, Undo)>> = schedule.faults.iter().map(|_| None).collect();
    for (at, index, begins) in edges {
        let left = (began + at).saturating_sub(boot_ms());
        let_time_pass("until the next edge of the schedule", Duration::from_millis(left));
        if begins {
            let from = boot_ms();
            let fault = &schedule.faults[index];
            let Some((undo, scope, text)) = begin(world, fault) else { continue };
            running[index] = Some((events.len(), undo));
            events.push(Event { kind: Some(fault.kind), from, to: boot_ms(), scope, text });
        } else if let Some((event, undo)) = running[index].take() {
            if !end(world, undo) {
                events[event].text.push_str(": none came by");
                events[event].kind = None;
            }
            events[event].to = boot_ms();
        }
    }
}

/// Begins a fault: how it ends, what it can be the reason of, and whom it befell. `None` if nobody is there whom it could
/// befall.
fn begin(world: &mut World, fault: &Fault) -> Option<(Undo, Scope, String)> {
    let leader = world.leader();
    // What befalls a candidate while another leads is that candidate's affair.
    let scope = |seat: usize, of_leader: Scope| match leader {
        Some(leader) if leader != seat => Scope::Candidate(seat),
        Some(_) | None => of_leader,
    };
    match fault.kind {
        Kind::Candidate(of) => {
            let seat = choose(world, fault, leader, |seat| seat.state == State::Runs)?;
            let text = world.at(seat).identity().to_owned();
            Some((befall_candidate(world, fault, of, seat), scope(seat, Scope::All), text))
        }
        Kind::Node(of) => {
            // A script that a node has lost is sent again, and a clock within the margin is right.
            let is_harmless = matches!(of, OfNode::ScriptsFlushed | OfNode::ClockNudged);
            let scope = if is_harmless { Scope::Nothing } else { Scope::Nodes(fault.nodes.clone()) };
            Some((befall_nodes(world, fault, of), scope, format!("{:?}", fault.nodes)))
        }
        Kind::Path(of) => {
            let seat = choose(world, fault, leader, |seat| !seat.paths.is_empty() && !seat.is_cut)?;
            let text = format!("{} to {:?}, {}", world.at(seat).identity(), fault.nodes, fault.amount);
            Some((befall_path(world, fault, of, seat), scope(seat, Scope::Nodes(fault.nodes.clone())), text))
        }
    }
}

/// The place that a fault befalls: the leader's if it is meant, else the one that was drawn, else the next that can be.
fn choose(world: &World, fault: &Fault, leader: Option<usize>, can_be: impl Fn(&Seat) -> bool) -> Option<usize> {
    let leader = leader.filter(|_| fault.leader);
    let count = world.seats.len();
    leader
        .into_iter()
        .chain((0..count).map(|next| (fault.seat + next) % count))
        .find(|seat| can_be(&world.seats[*seat]))
}

/// When the machine was late by more than nodes and candidates bear, but for candidates that were stopped.
fn late_machine(samples: &[Vec<Sample>], schedule: &Schedule, events: &[Event]) -> Vec<Span> {
    let patience = millis(schedule.node_timeout()) * 1000 / 2;
    let stops = |event: &Event| matches!(event.kind, Some(Kind::Candidate(_)));
    let mut late = late(samples, patience);
    late.retain(|(from, to)| !events.iter().any(|event| stops(event) && event.from <= *to && *from <= event.to + 1));
    late
}

/// Candidates that did not end as they should, or ended though nobody asked them to.
fn odd_ends(world: &World) -> Vec<String> {
    let mut odd = Vec::new();
    for (index, process) in world.processes.iter().enumerate() {
        let who = process.identity();
        if world.ended.contains(&index) {
            let code = process.wait_exit(PATIENCE);
            // A process that has just begun to start is ended by the signal itself.
            let was_young = code == 143 && process.logged("started").is_empty();
            if code != 0 && !was_young {
                odd.push(format!("{who} was asked to end, and ended with {code}"));
            }
        } else if !world.killed.contains(&index) && !process.is_running() {
            odd.push(format!("{who} has ended by itself"));
        }
    }
    odd
}
