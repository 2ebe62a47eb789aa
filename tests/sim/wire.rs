//! Between candidates and servers: connections, what travels on them, and what a server does with it.

use redleader::redsync::name::Owner;
use redleader::redsync::reply::{Ended, Kind, NodeIndex, Outcome, Token, What};

use crate::candidate::Candidate;
use crate::client::{Sent, WireId};
use crate::event::{Event, Letter, Whom};
use crate::node::apply;
use crate::profile::{Profile, micros};
use crate::world::World;

/// One connection. What is sent on it arrives in order, or from some point on not at all.
pub struct Wire {
    pub server: usize,
    pub epoch: u32,
    up_last: u64,
    down_last: u64,
    is_up_dead: bool,
    is_down_dead: bool,
}

/// What is wrong between one candidate and one server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    pub cut_up: bool,
    pub cut_down: bool,
    pub trip: u64,
}

enum Way {
    Up,
    Down,
}

impl World {
    pub fn send(&mut self, slot: usize, node: NodeIndex, sent: Sent) {
        let from = self.whom(slot);
        let Sent { wire, lane, serial, what, is_short } = sent;
        let letter = Letter { from, node, wire, lane, serial, what, is_short };
        if let Some(at) = self.travel(slot, wire, Way::Up) {
            self.plan(at, Event::Arrive(Box::new(letter)));
        } else if self.trace.is_on() {
            self.note(&format!("candidate {slot}: lost on its way: {:?}", letter.what));
        }
    }

    /// When what is sent now arrives, if it does.
    fn travel(&mut self, slot: usize, wire: WireId, way: Way) -> Option<u64> {
        let server = self.wires[wire].server;
        let link = self.links[slot][server];
        let is_trouble = self.is_trouble_at(server);
        let (node_timeout, late) = (micros(self.profile.node_timeout), self.profile.late_most);
        let is_cut = match way {
            Way::Up => link.cut_up,
            Way::Down => link.cut_down,
        };
        let mut delay = self.net.between(link.trip / 2, link.trip);
        let mut is_lost = false;
        if is_cut {
            is_lost = self.net.permille(700);
            delay += self.net.between(0, late);
        } else if is_trouble {
            let roll = self.net.between(0, 999);
            let Profile { lost, late: lates, slow, .. } = self.profile;
            if roll < lost {
                is_lost = true;
            } else if roll < lost + lates {
                delay += self.net.between(0, late);
            } else if roll < lost + lates + slow {
                delay += self.net.between(0, 2 * node_timeout);
            }
        }
        let now = self.now;
        let wire = &mut self.wires[wire];
        let (is_dead, last) = match way {
            Way::Up => (&mut wire.is_up_dead, &mut wire.up_last),
            Way::Down => (&mut wire.is_down_dead, &mut wire.down_last),
        };
        *is_dead |= is_lost;
        if *is_dead {
            return None;
        }
        *last = (now + delay).max(*last + 1);
        Some(*last)
    }

    pub fn arrive(&mut self, letter: Letter) {
        let Wire { server, epoch, .. } = self.wires[letter.wire];
        let (slot, node) = (letter.from.slot, letter.node);
        let there = &mut self.servers[server];
        if there.is_hung && there.epoch == epoch && there.is_up {
            there.waiting.push(Event::Arrive(Box::new(letter)));
            return;
        }
        if !there.is_up || there.epoch != epoch {
            let is_silent = there.is_dark || self.links[slot][server].cut_down;
            if !is_silent {
                let at = self.now + self.links[slot][server].trip;
                self.plan(at, Event::Closed(letter.from, node, letter.wire));
            }
            return;
        }
        let script = script_bit(&letter.what);
        if letter.is_short && there.knows_scripts & script == 0 {
            return self.send_back(letter, None);
        }
        there.knows_scripts |= script;
        self.steps += 1;
        let awaited = self.is_alive(letter.from)
            && self.candidates[slot]
                .body
                .as_ref()
                .is_some_and(|body| body.clients[node].awaits(letter.wire, letter.lane, letter.serial));
        if !awaited {
            self.count("late effects");
        }
        let time = self.node_time(server);
        let list = std::mem::take(&mut self.candidates[slot].list_text);
        let before = self.servers[server].state.lock.clone();
        let (mut outcome, published) = apply(&mut self.servers[server].state, time, &list, &letter.what);
        self.candidates[slot].list_text = list;
        if let Outcome::Survey { subscribers, .. } = &mut outcome {
            let listens = |candidate: &&Candidate| candidate.body.is_some() && candidate.list.contains(&server);
            *subscribers = Some(self.candidates.iter().filter(listens).count() as u64);
        }
        if self.trace.is_on() {
            let late = if awaited { "" } else { " (late)" };
            self.note(&format!("server {server} is asked by candidate {slot}{late}: {:?}: {outcome:?}", letter.what));
        }
        self.check_applied(server, &letter, &outcome);
        self.check_others_key(server, &letter, before);
        if published {
            self.publish_wake(server);
        }
        self.send_back(letter, Some(outcome));
    }

    /// The release of an attempt of somebody who is no more comes late.
    pub fn burn(&mut self, server: usize, token: Token) {
        if !self.servers[server].is_up || self.servers[server].is_hung {
            return;
        }
        let owner = Owner::found(&format!("gone:{:022}", self.net.next() >> 1));
        let time = self.node_time(server);
        let what = What::Release { owner, token, ended: Ended::Aborted };
        let _ = apply(&mut self.servers[server].state, time, "", &what);
        self.count("late releases of others");
        self.high_token = self.high_token.max(token);
        self.note(&format!("server {server} burns token {token} for somebody"));
    }

    fn send_back(&mut self, letter: Letter, outcome: Option<Outcome>) {
        if let Some(at) = self.travel(letter.from.slot, letter.wire, Way::Down) {
            self.plan(at, Event::Answer(Box::new(letter), outcome));
        }
    }

    pub fn answer(&mut self, letter: &Letter, outcome: Option<Outcome>) {
        if let Some(outcome) = &outcome {
            self.note_backing(letter, outcome);
        }
        let Letter { wire, lane, serial, .. } = *letter;
        self.with_client(letter.from.slot, letter.node, |client, now| {
            client.answered(now, wire, lane, serial, outcome);
        });
    }

    fn publish_wake(&mut self, server: usize) {
        for slot in 0..self.candidates.len() {
            let candidate = &self.candidates[slot];
            let is_lost = self.links[slot][server].cut_down
                || self.is_trouble_at(server) && self.net.permille(self.profile.wake_lost);
            if candidate.body.is_some() && candidate.list.contains(&server) && !is_lost {
                let at = self.now + self.net.between(0, 2 * self.links[slot][server].trip);
                let whom = self.whom(slot);
                self.plan(at, Event::Wake(whom));
            }
        }
    }

    pub fn dial(&mut self, slot: usize, node: NodeIndex) {
        let whom = self.whom(slot);
        let server = self.candidates[slot].targets[node];
        let (link, there) = (self.links[slot][server], &self.servers[server]);
        let timeout = self.candidates[slot].body.as_ref().map_or(0, |body| micros(body.connect_timeout));
        let is_silent = link.cut_up || link.cut_down || there.is_hung || there.is_dark;
        let (takes, failed) = match (is_silent, there.is_up) {
            (true, _) => (timeout, Some(Kind::Timeout)),
            (false, false) => (2 * link.trip, Some(Kind::Connect)),
            (false, true) => (4 * link.trip, None),
        };
        self.plan(self.now + takes, Event::Dialled(whom, node, failed));
    }

    pub fn dialled(&mut self, whom: Whom, node: NodeIndex, failed: Option<Kind>) {
        let server = self.candidates[whom.slot].targets[node];
        let there = &self.servers[server];
        let result = match failed {
            Some(kind) => Err(kind),
            None if !there.is_up => Err(Kind::Connect),
            None => {
                self.wires.push(Wire {
                    server,
                    epoch: there.epoch,
                    up_last: self.now,
                    down_last: self.now,
                    is_up_dead: false,
                    is_down_dead: false,
                });
                let replid = (server as u64) << 32 | u64::from(there.epoch);
                Ok((self.wires.len() - 1, there.state.run, replid))
            }
        };
        self.with_client(whom.slot, node, |client, now| client.dialled(now, result));
    }
}

/// A server learns each script by itself.
fn script_bit(what: &What) -> u8 {
    match what {
        What::Look { .. } => 1,
        What::Observe { .. } => 2,
        What::Acquire(_) => 4,
        What::Extend(_) => 8,
        What::Release { .. } => 16,
        What::Survey | What::Plain(_) => 0,
    }
}
