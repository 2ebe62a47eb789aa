//! Who holds the lock, and which nodes can vote, out of what the nodes say to somebody who takes no part. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::election::leadership::Vote;
use crate::redsync::name::Owner;
use crate::redsync::reply::{Answer, Kind, Outcome, Reply, RunId, Token, Verdict, quorum};

/// What all nodes say, each in its last reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The nodes, in the configured order.
    pub nodes: Vec<Seen>,
}

/// What one node says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The node's name.
    pub node: String,
    /// Whom it holds the lock for, whether its vote counts or not.
    pub owner: Option<Owner>,
    /// The owner's token, where known.
    pub token: Option<Token>,
    /// Its vote, as somebody who takes no part sees it.
    pub vote: Vote,
    /// How long until its vote can change; `None`: it holds a key without an expiry, or says nothing.
    pub left: Option<Duration>,
    /// The node's TIME, in microseconds.
    pub time_us: Option<u64>,
    /// How long it took to answer.
    pub latency: Option<Duration>,
    /// Why its answer is no vote.
    pub error: Option<Kind>,
}

/// Who holds a quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The owner.
    pub owner: Owner,
    /// Its token, where known.
    pub token: Option<Token>,
    /// How long until a quorum holds no more, if nothing is extended.
    pub left: Duration,
}

impl Held {
    /// Its identity, or `None` for a holder that is not redleader.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        self.owner.identity()
    }

    /// What it is, as in `holderKind`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        if self.identity().is_some() { "redleader" } else { "foreign" }
    }

    /// Who it is, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        self.identity().unwrap_or("a holder that is not redleader")
    }
}

impl Observation {
    /// What `replies` say, in the order of the nodes' names. A node without one has not answered.
    #[must_use]
    pub fn new(names: &[String], replies: &[Option<Reply>]) -> Self {
        let mut runs: BTreeMap<RunId, usize> = BTreeMap::new();
        let mut nodes = Vec::with_capacity(names.len());
        for (index, (name, reply)) in names.iter().zip(replies).enumerate() {
            let mut seen = Seen::new(name, reply.as_ref());
            // One server under two addresses has one vote (protocol rule 10).
            if let Some(Outcome::Answer(answer)) = reply.as_ref().map(|reply| &reply.outcome)
                && *runs.entry(answer.run).or_insert(index) != index
            {
                seen = Seen { vote: Vote::Void, error: Some(Kind::SameNode), ..seen };
            }
            nodes.push(seen);
        }
        Self { nodes }
    }

    /// Votes needed.
    #[must_use]
    pub fn quorum(&self) -> usize {
        quorum(self.nodes.len())
    }

    /// Nodes that answer.
    #[must_use]
    pub fn reachable(&self) -> usize {
        self.nodes.iter().filter(|node| node.error.is_none()).count()
    }

    /// Who holds a quorum of votes that count.
    #[must_use]
    pub fn holder(&self) -> Option<Held> {
        let mut owners: BTreeMap<&Owner, Vec<(Duration, Option<Token>)>> = BTreeMap::new();
        for node in self.nodes.iter().filter(|node| node.vote == Vote::Held) {
            if let (Some(owner), Some(left)) = (&node.owner, node.left) {
                owners.entry(owner).or_default().push((left, node.token));
            }
        }
        let (owner, mut votes) = owners.into_iter().find(|(_, votes)| votes.len() >= self.quorum())?;
        votes.sort_unstable_by_key(|(left, _)| std::cmp::Reverse(*left));
        let token = votes.iter().filter_map(|(_, token)| *token).max();
        Some(Held { owner: owner.clone(), token, left: votes[self.quorum() - 1].0 })
    }

    /// Since when the holder has its token, in microseconds since 1970 on the nodes' clocks. A token is the nodes' time
    /// of its attempt (protocol rule 18), unless larger ones were known; then, and without a token, nothing is known.
    #[must_use]
    pub fn since_us(&self) -> Option<u64> {
        /// 2020: a token below it was counted up and is no time.
        const TIMES_FROM: u64 = 1_577_836_800_000_000;
        let token = self.holder()?.token?;
        let mut times: Vec<u64> = self.nodes.iter().filter_map(|node| node.time_us).collect();
        times.sort_unstable();
        let now = times.get(times.len().checked_sub(1)? / 2)?;
        (TIMES_FROM..=*now).contains(&token).then_some(token)
    }

    /// Whether a leader holds a quorum and every node has it.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.holder().is_some_and(|held| {
            self.nodes.iter().all(|node| node.vote == Vote::Held && node.owner.as_ref() == Some(&held.owner))
        })
    }

    /// Who leads, or why nobody does, in one line.
    #[must_use]
    pub fn summary(&self) -> String {
        if let Some(held) = self.holder() {
            let mut line = held.name().to_owned();
            if let Some(token) = held.token {
                // Writing to a String cannot fail.
                let _ = write!(line, ", token {token}");
            }
            let _ = write!(line, ", {} left", seconds(held.left));
            return line;
        }
        let count = |vote: Vote| self.nodes.iter().filter(|node| node.vote == vote).count();
        let (all, quorum) = (self.nodes.len(), self.quorum());
        if self.reachable() < quorum {
            return format!("nobody: {} of {all} nodes answer, {quorum} required", self.reachable());
        }
        let quarantined = count(Vote::Quarantined);
        if self.reachable() - quarantined < quorum {
            return format!("nobody: {quarantined} of {all} nodes in quarantine, {quorum} must be out of it");
        }
        if count(Vote::Held) > 0 {
            return format!("nobody: {} of {all} nodes held, {quorum} votes of one owner required", count(Vote::Held));
        }
        "nobody: the lock is free".to_owned()
    }
}

impl Seen {
    fn new(name: &str, reply: Option<&Reply>) -> Self {
        let unknown = |error| Self {
            node: name.to_owned(),
            owner: None,
            token: None,
            vote: Vote::Unknown,
            left: None,
            time_us: None,
            latency: None,
            error: Some(error),
        };
        let Some(reply) = reply else { return unknown(Kind::Timeout) };
        let answer = match &reply.outcome {
            Outcome::Answer(answer) => answer,
            Outcome::Failed(kind) => return unknown(*kind),
            Outcome::Released { .. } | Outcome::Survey { .. } | Outcome::Plain { .. } | Outcome::Unsent => {
                return unknown(Kind::Protocol);
            }
        };
        let (vote, error) = vote(answer);
        Self {
            node: name.to_owned(),
            owner: answer.owner.clone().filter(|_| answer.verdict == Verdict::Seen),
            token: answer.owner_token,
            vote,
            left: answer.left,
            time_us: Some(answer.time_us),
            latency: Some(reply.received.since(reply.sent)),
            error,
        }
    }

    /// What a person should know of this node, and do.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        if let Some(kind) = self.error {
            return Some(format!("{}: {}", kind.as_str(), kind.advice()));
        }
        match self.vote {
            Vote::Quarantined => Some("new to this lock or restarted: it may have forgotten a grant".to_owned()),
            Vote::Void => Some("the key has no expiry, so nobody can tell until when: who wrote it?".to_owned()),
            Vote::Held | Vote::Granted | Vote::Free | Vote::Unknown => None,
        }
    }
}

fn vote(answer: &Answer) -> (Vote, Option<Kind>) {
    match answer.verdict {
        Verdict::Newer => (Vote::Void, Some(Kind::NewerState)),
        // A node in quarantine blocks nobody who could not win without it: it has no vote for the holder either.
        Verdict::Seen | Verdict::Free if answer.quarantined => (Vote::Quarantined, None),
        Verdict::Seen if answer.left.is_none() => (Vote::Void, None),
        Verdict::Seen => (Vote::Held, None),
        Verdict::Free => (Vote::Free, None),
        Verdict::Granted
        | Verdict::Held
        | Verdict::Quarantined
        | Verdict::Outdated
        | Verdict::Extended
        | Verdict::Refilled
        | Verdict::LostOver
        | Verdict::LostOwner => (Vote::Void, Some(Kind::Protocol)),
    }
}

/// A duration for people: `6.2 s`.
pub(super) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::clock::Moment;
    use crate::redsync::name::Identity;
    use crate::redsync::reply::Op;

    /// An observation in short: `a6200` held for replica a, `f6200` for a foreign holder, `a!` without an expiry,
    /// `-` free, `q500` in quarantine, `qa500` in quarantine and held, `=` the same server as the first, `x` silent,
    /// `n` a newer state.
    pub(in crate::command) fn observation(short: &str) -> Observation {
        let words: Vec<&str> = short.split_whitespace().collect();
        let names: Vec<String> = (0..words.len()).map(|index| format!("redis-{index}:6379")).collect();
        let replies: Vec<Option<Reply>> = words.iter().enumerate().map(|(node, word)| reply(node, word)).collect();
        Observation::new(&names, &replies)
    }

    fn owner(letter: &str) -> Owner {
        match letter {
            "f" => Owner::found("c29tZSByYW5kb20gdmFsdWU="),
            letter => Owner::new(&Identity::parse(&format!("pod-{letter}")).unwrap(), [7; 16]),
        }
    }

    fn reply(node: usize, word: &str) -> Option<Reply> {
        let digits = word.trim_start_matches(|c: char| !c.is_ascii_digit());
        let letters = word.strip_suffix(digits).unwrap();
        let left = if letters.ends_with('!') { None } else { Some(Duration::from_millis(digits.parse().unwrap_or(0))) };
        let who = letters.trim_matches(['q', '!', '=', '-']);
        let outcome = match who {
            "x" => Outcome::Failed(Kind::Connect),
            who => Outcome::Answer(Answer {
                verdict: match who {
                    "n" => Verdict::Newer,
                    "" => Verdict::Free,
                    _ => Verdict::Seen,
                },
                owner: (!who.is_empty()).then(|| owner(who)),
                owner_token: (who == "a").then_some(41 + node as u64),
                left,
                token: 50,
                over: 0,
                ttl: Duration::from_secs(8),
                time_us: 0,
                run: RunId(if letters.contains('=') { 0 } else { node as u64 }),
                quarantined: letters.contains('q'),
            }),
        };
        let sent = Moment::from_micros(1_000_000);
        let received = sent + Duration::from_micros(412);
        Some(Reply { attempt: 0, round: 1, node, op: Op::Look, sent, received, outcome })
    }

    #[test]
    fn a_holder_has_a_quorum_of_the_configured_nodes() {
        for (short, holder, is_well, summary) in [
            ("a6200 a6100 a6300", Some(("pod-a", Some(43), 6200)), true, "pod-a, token 43, 6.2 s left"),
            ("a6200 a6100 x", Some(("pod-a", Some(42), 6100)), false, "pod-a, token 42, 6.1 s left"),
            ("a6200 a6100 b100", Some(("pod-a", Some(42), 6100)), false, "pod-a, token 42, 6.1 s left"),
            ("a6200 a6100 -", Some(("pod-a", Some(42), 6100)), false, "pod-a, token 42, 6.1 s left"),
            ("a6200 a6100 qa500", Some(("pod-a", Some(42), 6100)), false, "pod-a, token 42, 6.1 s left"),
            (
                "f10 f20 f30",
                Some(("a holder that is not redleader", None, 20)),
                true,
                "a holder that is not redleader, 0.0 s left",
            ),
            ("a6200 x x", None, false, "nobody: 1 of 3 nodes answer, 2 required"),
            ("a6200 = x", None, false, "nobody: 1 of 3 nodes answer, 2 required"),
            ("a6200 a=6200 -", None, false, "nobody: 1 of 3 nodes held, 2 votes of one owner required"),
            ("a6200 b6200 -", None, false, "nobody: 2 of 3 nodes held, 2 votes of one owner required"),
            ("a! a! a6200", None, false, "nobody: 1 of 3 nodes held, 2 votes of one owner required"),
            ("q500 q500 -", None, false, "nobody: 2 of 3 nodes in quarantine, 2 must be out of it"),
            ("qa500 qa500 a6200", None, false, "nobody: 2 of 3 nodes in quarantine, 2 must be out of it"),
            ("- - -", None, false, "nobody: the lock is free"),
            ("n n -", None, false, "nobody: 1 of 3 nodes answer, 2 required"),
            ("a6200 a6200 - -", None, false, "nobody: 2 of 4 nodes held, 3 votes of one owner required"),
        ] {
            let seen = observation(short);
            let held = seen.holder();
            let found = held.as_ref().map(|held| (held.name(), held.token, held.left.as_millis()));
            assert_eq!(found, holder, "{short}");
            assert_eq!(seen.is_well(), is_well, "{short}");
            assert_eq!(seen.summary(), summary, "{short}");
        }
    }

    #[test]
    fn every_node_that_has_no_vote_comes_with_advice() {
        let seen = observation("a6200 q500 a! = x n -");
        let advice: Vec<String> = seen.nodes.iter().map(|node| node.advice().unwrap_or_default()).collect();
        assert_eq!(advice[0], "");
        assert_eq!(advice[1], "new to this lock or restarted: it may have forgotten a grant");
        assert_eq!(advice[2], "the key has no expiry, so nobody can tell until when: who wrote it?");
        assert_eq!(advice[3], "same-node: two addresses of --redis are the same server");
        assert_eq!(advice[4], format!("connect: {}", Kind::Connect.advice()));
        assert_eq!(advice[5], format!("newer-state: {}", Kind::NewerState.advice()));
        assert_eq!(advice[6], "");
    }
}
