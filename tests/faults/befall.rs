//! How each fault begins, and how it ends.

use std::time::Duration;

use crate::kind::{OfCandidate, OfNode, OfPath};
use crate::schedule::Fault;
use crate::support::{Data, Direction, Hold, Mode, Proxy, Server};
use crate::world::{State, World};

/// How a fault ends.
pub enum Undo {
    /// By itself.
    Nothing,
    /// Another process takes the place.
    Fill(usize),
    /// The process at the place goes on.
    Continue(usize),
    /// The nodes start again.
    Start(Vec<usize>, Data),
    /// The node goes on.
    ContinueNode(usize),
    /// The node is told something.
    Tell(usize, &'static [&'static str]),
    /// The node's clock is stepped by so many microseconds.
    StepClock(usize, i64),
    /// The place's paths to these nodes are mended.
    Mend(usize, Vec<usize>),
    /// The messages are let go.
    Release(Vec<Hold>),
}

/// Ends a fault; false if it turns out never to have happened.
pub fn end(world: &mut World, undo: Undo) -> bool {
    match undo {
        Undo::Nothing => {}
        Undo::Fill(seat) => world.fill(seat),
        Undo::Continue(seat) => {
            world.at(seat).cont();
            world.seats[seat].state = State::Runs;
        }
        Undo::Start(nodes, data) => world.start_nodes(&nodes, data),
        Undo::ContinueNode(node) => world.servers[node].cont(),
        Undo::Tell(node, words) => tell(&world.servers[node], words),
        Undo::StepClock(node, by) => step(world, node, by),
        Undo::Mend(seat, nodes) => {
            world.seats[seat].is_cut = false;
            on_paths(&world.seats[seat].paths, &nodes, |path| {
                path.delay(Duration::ZERO);
                path.set(Mode::Pass);
            });
        }
        Undo::Release(holds) => {
            let caught = holds.iter().any(Hold::is_caught);
            holds.into_iter().for_each(Hold::release);
            return caught;
        }
    }
    true
}

/// To a candidate's process.
pub fn befall_candidate(world: &mut World, fault: &Fault, of: OfCandidate, seat: usize) -> Undo {
    let process = world.seats[seat].process;
    let replica = &world.processes[process];
    match of {
        OfCandidate::Killed => {
            replica.kill9();
            world.killed.push(process);
            world.seats[seat].state = State::Gone;
            Undo::Fill(seat)
        }
        OfCandidate::Ended => {
            replica.term();
            world.ended.push(process);
            world.seats[seat].state = State::Gone;
            Undo::Fill(seat)
        }
        OfCandidate::Resigned => {
            let resign = replica.begin(&["resign", "--for", &format!("{}ms", fault.lasts)]);
            world.commands.push(resign);
            Undo::Nothing
        }
        OfCandidate::PausedShort | OfCandidate::PausedLong => {
            replica.stop();
            world.seats[seat].state = State::Paused;
            Undo::Continue(seat)
        }
    }
}

/// To nodes.
pub fn befall_nodes(world: &mut World, fault: &Fault, of: OfNode) -> Undo {
    let node = fault.nodes[0];
    let server = &world.servers[node];
    match of {
        OfNode::RestartedEmpty | OfNode::Down | OfNode::MostRestartedEmpty | OfNode::RestartedWithAof => {
            fault.nodes.iter().for_each(|node| world.servers[*node].kill());
            let data = if of == OfNode::RestartedWithAof { Data::Kept } else { Data::Lost };
            return Undo::Start(fault.nodes.clone(), data);
        }
        OfNode::HungShort | OfNode::HungLong => {
            server.stop();
            return Undo::ContinueNode(node);
        }
        OfNode::ScriptsFlushed => tell(server, &["SCRIPT", "FLUSH"]),
        OfNode::OutOfMemory => {
            tell(server, &["CONFIG", "SET", "maxmemory", "1"]);
            return Undo::Tell(node, &["CONFIG", "SET", "maxmemory", "0"]);
        }
        OfNode::Evicted => {
            for [name, value] in EVICTION {
                tell(server, &["CONFIG", "SET", name, value]);
            }
        }
        OfNode::ClientsKilled => {
            // Subscriptions are of another type.
            for kind in ["normal", "pubsub"] {
                tell(server, &["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
            }
        }
        OfNode::RightsTaken => {
            let without: &[&str] = match fault.amount % 4 {
                0 => &["-eval", "-evalsha"],
                1 => &["-info"],
                2 => &["resetchannels"],
                _ => &["resetkeys", "~other"],
            };
            tell(server, &[&["ACL", "SETUSER", "default"], without].concat());
            return Undo::Tell(node, &["ACL", "SETUSER", "default", "on", "nopass", "~*", "&*", "+@all"]);
        }
        OfNode::Flushed | OfNode::MostFlushed => {
            fault.nodes.iter().for_each(|node| tell(&world.servers[*node], &["FLUSHALL"]));
        }
        OfNode::KeyDeleted => {
            let state = format!("{{{}}}:redleader", world.lock);
            tell(server, &["DEL", if fault.amount.is_multiple_of(2) { &world.lock } else { &state }]);
        }
        OfNode::ClockForward => {
            world.wait_held_everywhere();
            step(world, node, fault.amount.cast_signed());
            return Undo::StepClock(node, -fault.amount.cast_signed());
        }
        OfNode::ClockNudged => step(world, node, fault.amount.cast_signed()),
        OfNode::ClockBack => step(world, node, -fault.amount.cast_signed()),
    }
    Undo::Nothing
}

/// Memory runs short for a moment, and the server throws out what has an expiry: the key, not the state.
const EVICTION: [[&str; 2]; 4] =
    [["maxmemory-policy", "volatile-ttl"], ["maxmemory", "1"], ["maxmemory", "0"], ["maxmemory-policy", "noeviction"]];

/// To a candidate's paths.
pub fn befall_path(world: &mut World, fault: &Fault, of: OfPath, seat: usize) -> Undo {
    let lock = world.lock.clone();
    let seat_of = &mut world.seats[seat];
    let on = |act: &(dyn Fn(&Proxy) + Sync)| on_paths(&seat_of.paths, &fault.nodes, act);
    let hold = |direction, pattern: &str| {
        let hold = |node: &usize| seat_of.paths[*node].hold(direction, pattern.as_bytes());
        Undo::Release(fault.nodes.iter().map(hold).collect())
    };
    match of {
        OfPath::Delayed => on(&|path| path.delay(Duration::from_millis(fault.amount))),
        OfPath::Blackhole => on(&|path| path.set(Mode::Blackhole)),
        OfPath::RepliesDropped => on(&|path| path.set(Mode::DropReplies)),
        OfPath::Stalled => on(&|path| path.set(Mode::Stall)),
        OfPath::Refused => on(&|path| path.set(Mode::Refuse)),
        OfPath::Reset => {
            on(&Proxy::reset);
            return Undo::Nothing;
        }
        OfPath::HalfClosed => {
            on(&Proxy::half_close);
            return Undo::Nothing;
        }
        OfPath::Truncated => {
            on(&|path| path.truncate_next_reply(usize::try_from(fault.amount % 40).expect("small")));
            return Undo::Nothing;
        }
        OfPath::RequestHeld => return hold(Direction::Request, &lock),
        // One of a certain kind, or whichever comes next.
        OfPath::ReplyHeld => {
            let patterns = ["extended", "granted", "\r\n"];
            return hold(Direction::Reply, patterns[usize::try_from(fault.amount % 3).expect("small")]);
        }
    }
    seat_of.is_cut = true;
    Undo::Mend(seat, fault.nodes.clone())
}

/// All at once, since a proxy that refuses says so only when its port is closed.
fn on_paths(paths: &[Proxy], nodes: &[usize], act: impl Fn(&Proxy) + Sync) {
    std::thread::scope(|scope| {
        for node in nodes {
            scope.spawn(|| act(&paths[*node]));
        }
    });
}

fn tell(server: &Server, words: &[&str]) {
    let answer = server.cli(words);
    assert!(!answer.is_error(), "{words:?}: {}", answer.text());
}

fn step(world: &mut World, node: usize, by: i64) {
    world.clocks[node].as_mut().expect("only a node with a clock of its own is drawn").step(by);
}
