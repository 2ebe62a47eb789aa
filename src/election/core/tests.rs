//! The rules as tables. Three nodes, ttl 1 s: validity 900 ms, renew 250 ms, node timeout 50 ms, grace 125 ms,
//! quarantine 1,100 ms. Times are milliseconds; every reply takes 2 ms unless a row says otherwise.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use super::*;
use crate::election::event::{ExtendOutcome, ReleaseOutcome};
use crate::election::leadership::State;
use crate::election::timing::Wish;
use crate::redsync::name::Owner;
use crate::redsync::reply::{Claim, RunId};

mod health;

const TIME_0: u64 = 1_700_000_000_000_000;
const RIVAL: &str = "rival:0123456789012345678901";

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A core, its clock, and what it asked and told so far.
#[derive(Clone)]
struct Bench {
    core: Core,
    now: Moment,
    asks: Vec<(NodeIndex, Ask)>,
    events: Vec<Event>,
    /// By node: which run answers, and how far its wall clock is stepped.
    runs: Vec<u64>,
    step_us: Vec<i64>,
}

impl Bench {
    fn new(guarded: bool) -> Self {
        Self::with(3, guarded, &Wish::with_ttl(ms(1000)))
    }

    fn with(nodes: usize, guarded: bool, wish: &Wish) -> Self {
        Self::with_app(nodes, guarded, wish, None)
    }

    fn with_app(nodes: usize, guarded: bool, wish: &Wish, app_grace: Option<Duration>) -> Self {
        let setting = Setting {
            identity: Identity::parse("me").unwrap(),
            nodes: (0..nodes).map(|node| format!("n{node}:1")).collect(),
            list: "a,b,c".into(),
            timing: Timing::new(wish).unwrap(),
            guarded,
            app_grace,
            seed: 1,
        };
        let now = Moment::from_micros(10_000_000);
        let mut core = Core::new(setting, now);
        core.supply([1; 16]);
        let runs = (1..).take(nodes).collect();
        let mut bench = Self { core, now, asks: vec![], events: vec![], runs, step_us: vec![0; nodes] };
        bench.core.handle_timeout(now);
        bench.collect();
        bench
    }

    fn collect(&mut self) {
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Ask(node, ask) => self.asks.push((node, ask)),
                Action::Tell(event) => self.events.push(event),
            }
        }
        if self.core.wants_nonce() {
            self.core.supply([2; 16]);
        }
    }

    /// The latest ask to `node`.
    fn last(&self, node: NodeIndex) -> Ask {
        let ask = self.asks.iter().rev().find(|(at, ask)| *at == node && ask.what != What::Survey);
        ask.expect("the node was asked").1.clone()
    }

    /// The latest acquire or extend to `node`.
    fn last_claim(&self, node: NodeIndex) -> Ask {
        let is_claim = |ask: &Ask| matches!(ask.what, What::Acquire(_) | What::Extend(_));
        let ask = self.asks.iter().rev().find(|(at, ask)| *at == node && is_claim(ask));
        ask.expect("the node was asked for the lock").1.clone()
    }

    fn claim(&self, node: NodeIndex) -> Claim {
        match self.last_claim(node).what {
            What::Acquire(claim) | What::Extend(claim) => claim,
            other => panic!("no acquire or extend but {other:?}"),
        }
    }

    fn sleep(&mut self, time: Duration) {
        let end = self.now + time;
        let mut turns = 0;
        while let Some(at) = self.core.poll_timeout().filter(|at| *at <= end) {
            turns += 1;
            assert!(turns < 1000, "the core spins: {:?}", self.core);
            self.now = self.now.max(at);
            self.core.handle_timeout(self.now);
            self.collect();
        }
        self.now = end;
    }

    fn answer(&self, node: NodeIndex, verdict: Verdict) -> Answer {
        let local = self.now.as_micros() - 1000;
        Answer {
            verdict,
            owner: None,
            owner_token: None,
            left: Some(Duration::ZERO),
            token: 0,
            over: 0,
            ttl: Duration::ZERO,
            time_us: (TIME_0 + local).checked_add_signed(self.step_us[node]).unwrap(),
            run: RunId(self.runs[node]),
            quarantined: false,
        }
    }

    fn reply_to(&mut self, node: NodeIndex, ask: &Ask, outcome: Outcome, sent: Moment) {
        let op = ask.what.op();
        let reply = Reply { attempt: ask.attempt, round: ask.round, node, op, sent, received: self.now, outcome };
        self.core.handle_reply(self.now, reply);
        self.collect();
    }

    /// `node` answers its latest ask, which was sent 2 ms ago.
    fn says(&mut self, node: NodeIndex, verdict: Verdict, change: impl FnOnce(&mut Answer)) {
        let mut answer = self.answer(node, verdict);
        let is_grant = matches!(verdict, Verdict::Granted | Verdict::Extended | Verdict::Refilled);
        let ask = if is_grant { self.last_claim(node) } else { self.last(node) };
        if is_grant {
            answer.token = self.claim(node).token;
        }
        change(&mut answer);
        self.reply_to(node, &ask, Outcome::Answer(answer), self.now - ms(2));
    }

    fn fails(&mut self, node: NodeIndex, kind: Kind) {
        self.reply_to(node, &self.last(node), Outcome::Failed(kind), self.now - ms(2));
    }

    fn trip(&mut self) {
        self.now = self.now + ms(2);
    }

    fn all(&mut self, verdict: Verdict) {
        self.trip();
        let asks: Vec<Ask> = (0..self.runs.len()).map(|node| self.last(node)).collect();
        for (node, ask) in asks.iter().enumerate() {
            let mut answer = self.answer(node, verdict);
            if let What::Acquire(claim) = &ask.what {
                answer.token = claim.token;
            }
            self.reply_to(node, ask, Outcome::Answer(answer), self.now - ms(2));
        }
    }

    fn lead(mut self) -> Self {
        self.all(Verdict::Free);
        self.all(Verdict::Granted);
        assert_eq!(self.state(), State::Leader);
        self
    }

    fn state(&self) -> State {
        self.core.leadership().state(self.now)
    }

    fn deadline_in(&self) -> Option<u64> {
        self.core.leadership().belief(self.now).map(|b| u64::try_from(b.deadline.since(self.now).as_millis()).unwrap())
    }

    fn ended(&self) -> Option<StepDown> {
        self.events
            .iter()
            .find_map(|event| if let Event::SteppedDown { reason, .. } = event { Some(*reason) } else { None })
    }

    fn released(&self) -> Vec<(NodeIndex, Ended)> {
        let release = |(node, ask): &(NodeIndex, Ask)| match ask.what {
            What::Release { ended, .. } => Some((*node, ended)),
            _ => None,
        };
        self.asks.iter().filter_map(release).collect()
    }

    fn outcomes(&self) -> Vec<AcquireOutcome> {
        let outcome = |event: &Event| if let Event::Acquire { outcome, .. } = event { Some(*outcome) } else { None };
        self.events.iter().filter_map(outcome).collect()
    }
}

fn held_by_rival(left: u64) -> impl Fn(&mut Answer) {
    move |answer| {
        answer.owner = Some(Owner::found(RIVAL));
        answer.owner_token = Some(5);
        answer.token = 5;
        answer.left = Some(ms(left));
    }
}

#[test]
fn the_core_is_a_value_and_the_same_inputs_give_the_same_core() {
    fn is_value<T: Clone + Eq + Hash>(_: &T) {}
    let hash = |core: &Core| {
        let mut hasher = DefaultHasher::new();
        core.hash(&mut hasher);
        hasher.finish()
    };
    let (one, other) = (Bench::new(false).lead(), Bench::new(false).lead());
    is_value(&one.core);
    assert_eq!(one.core, other.core);
    assert_eq!(hash(&one.core), hash(&other.core));
}

#[test]
fn rule_9_which_replies_count() {
    type Change = fn(&mut Bench, &mut Answer);
    let rows: [(&str, Change, bool); 9] = [
        ("granted with the attempt's token", |_, _| {}, true),
        ("granted with a smaller token", |_, answer| answer.token -= 1, false),
        ("granted in quarantine", |_, answer| answer.quarantined = true, false),
        ("another run than before: it may have forgotten", |_, answer| answer.run = RunId(77), false),
        ("the same run as another node's", |_, answer| answer.run = RunId(1), false),
        ("a clock that stepped forward", |_, answer| answer.time_us += 200_000, false),
        ("a clock that stepped back", |_, answer| answer.time_us -= 200_000, false),
        ("a clock that moved within the margin", |_, answer| answer.time_us += 90_000, true),
        ("a verdict that is no grant", |_, answer| answer.verdict = Verdict::Extended, false),
    ];
    for (row, change, counts) in rows {
        let mut bench = Bench::new(false);
        bench.all(Verdict::Free);
        bench.trip();
        bench.says(0, Verdict::Granted, |_| {});
        let mut changed = bench.answer(1, Verdict::Granted);
        changed.token = bench.claim(1).token;
        change(&mut bench, &mut changed);
        bench.reply_to(1, &bench.last(1), Outcome::Answer(changed), bench.now - ms(2));
        assert_eq!(bench.state() == State::Leader, counts, "{row}");
    }
}

#[test]
fn rule_10_the_deadline_counts_from_before_the_send_and_never_comes_back() {
    let mut bench = Bench::new(false).lead();
    assert_eq!(bench.deadline_in(), Some(898));
    bench.sleep(ms(300));
    let before = bench.deadline_in();
    assert_eq!(before, Some(598));
    for (node, sent_ago, deadline_in) in [(0, 10, 598), (1, 20, 880), (2, 5, 890), (2, 50, 890)] {
        let mut answer = bench.answer(node, Verdict::Extended);
        answer.token = bench.claim(node).token;
        bench.reply_to(node, &bench.last(node), Outcome::Answer(answer), bench.now - ms(sent_ago));
        assert_eq!(bench.deadline_in(), Some(deadline_in), "node {node} sent {sent_ago} ms ago");
    }
}

#[test]
fn rule_11_a_win_needs_half_of_the_validity() {
    for (sent_ago, outcome) in [(2, AcquireOutcome::Won), (449, AcquireOutcome::Won), (451, AcquireOutcome::Late)] {
        let mut bench = Bench::new(false);
        bench.all(Verdict::Free);
        bench.trip();
        for node in [0, 1] {
            let mut answer = bench.answer(node, Verdict::Granted);
            answer.token = bench.claim(node).token;
            bench.reply_to(node, &bench.last_claim(node), Outcome::Answer(answer), bench.now - ms(sent_ago));
        }
        assert_eq!(bench.outcomes(), [outcome], "sent {sent_ago} ms ago");
    }
}

#[test]
fn rule_12_a_leadership_ends_once_and_no_reply_revives_it() {
    let mut bench = Bench::new(false).lead();
    bench.sleep(ms(300));
    let late = bench.clone();
    bench.now = bench.now + ms(700); // Stopped by a signal: no timer ran.
    assert!(!bench.core.leadership().is_leading(bench.now), "a reader asks before the core has been woken");
    bench.says(0, Verdict::Extended, |_| {});
    bench.says(1, Verdict::Extended, |_| {});
    assert_eq!((bench.ended(), bench.deadline_in()), (Some(StepDown::Expired), None));
    assert_eq!(bench.released().len(), 3);
    let stepped_down = |event: &&Event| matches!(event, Event::SteppedDown { .. });
    assert_eq!(bench.events.iter().filter(stepped_down).count(), 1);

    let mut bench = late;
    bench.says(0, Verdict::Extended, |answer| answer.over = answer.token);
    assert_eq!(bench.ended(), Some(StepDown::Superseded));
}

#[test]
fn rule_13_a_round_without_a_quorum_is_repeated_when_its_node_timeout_has_passed() {
    let mut bench = Bench::new(false).lead();
    bench.sleep(ms(248));
    let extends = |bench: &Bench| {
        bench.asks.iter().filter(|(node, ask)| *node == 0 && ask.what.op() == crate::redsync::reply::Op::Extend).count()
    };
    assert_eq!(extends(&bench), 1, "renewal counts from the send of the win");
    bench.says(0, Verdict::Extended, |_| {});
    bench.sleep(ms(48));
    assert_eq!(extends(&bench), 1);
    bench.sleep(ms(3));
    assert_eq!(extends(&bench), 2);
    bench.trip();
    bench.says(0, Verdict::Extended, |_| {});
    bench.says(1, Verdict::Refilled, |_| {});
    bench.sleep(ms(240));
    assert_eq!(extends(&bench), 2);
    bench.sleep(ms(15));
    assert_eq!(extends(&bench), 3);
    let outcomes: Vec<_> = bench
        .events
        .iter()
        .filter_map(|event| if let Event::Extend { outcome, .. } = event { Some(*outcome) } else { None })
        .collect();
    assert_eq!(outcomes, [ExtendOutcome::NoQuorum, ExtendOutcome::Ok]);
}

#[test]
fn an_extend_fails_at_the_deadline_less_grace_and_the_lock_is_released_at_the_deadline() {
    for (guarded, stops, released_after) in [(false, None, 898), (true, None, 898), (true, Some(800), 800)] {
        let mut bench = Bench::new(guarded).lead();
        let token = bench.claim(0).token;
        bench.sleep(ms(772));
        assert_eq!(bench.state(), State::Leader);
        bench.sleep(ms(2));
        assert_eq!(bench.state(), State::SteppingDown);
        let extends = bench.asks.len();
        if let Some(at) = stops {
            bench.sleep(ms(at - 774));
            bench.core.handle_request(bench.now, &Request::WorkStopped(token));
            bench.collect();
        } else {
            bench.sleep(ms(123));
            assert_eq!(bench.asks.len(), extends, "never another extend");
            assert_eq!(bench.ended(), None);
            bench.sleep(ms(2));
        }
        assert_eq!(bench.ended(), Some(StepDown::RenewTimeout), "guarded {guarded}");
        let at = bench
            .events
            .iter()
            .find_map(|event| if let Event::SteppedDown { at, .. } = event { Some(*at) } else { None });
        assert_eq!(at.unwrap().since(Moment::from_micros(10_004_000)), ms(released_after));
    }
}

#[test]
fn lost_on_a_majority_ends_at_once_and_on_a_minority_changes_nothing() {
    let mut bench = Bench::new(false).lead();
    bench.sleep(ms(250));
    bench.says(0, Verdict::LostOwner, held_by_rival(500));
    assert_eq!(bench.state(), State::Leader);
    bench.says(1, Verdict::Extended, |_| {});
    assert_eq!(bench.state(), State::Leader);
    bench.says(2, Verdict::LostOwner, held_by_rival(500));
    assert_eq!(bench.ended(), Some(StepDown::Lost));
}

#[test]
fn rule_9_a_reply_sent_before_the_nodes_loss_does_not_count() {
    let mut bench = Bench::new(false).lead();
    bench.sleep(ms(250));
    let early = bench.last(0);
    bench.says(0, Verdict::LostOwner, held_by_rival(500));
    bench.trip();
    let mut answer = bench.answer(0, Verdict::Extended);
    answer.token = bench.claim(0).token;
    bench.reply_to(0, &early, Outcome::Answer(answer), bench.now - ms(4));
    bench.says(1, Verdict::LostOwner, held_by_rival(500));
    assert_eq!(bench.ended(), Some(StepDown::Lost));
}

#[test]
fn rule_14_release_goes_to_every_node_that_may_have_a_grant() {
    type Say = fn(&mut Bench, NodeIndex);
    let held: Say = |bench, node| bench.says(node, Verdict::Held, held_by_rival(500));
    let rows: [(&str, Say, bool); 5] = [
        ("held", held, false),
        (
            "quarantined",
            |bench, node| bench.says(node, Verdict::Quarantined, |answer| answer.left = Some(ms(300))),
            false,
        ),
        ("granted", |bench, node| bench.says(node, Verdict::Granted, |_| {}), true),
        ("an error, whichever", |bench, node| bench.fails(node, Kind::Oom), true),
        ("no answer", |_, _| {}, true),
    ];
    for (row, say, is_released) in rows {
        let mut bench = Bench::with(5, false, &Wish::with_ttl(ms(1000)));
        bench.all(Verdict::Free);
        bench.trip();
        say(&mut bench, 4);
        for node in 0..3 {
            held(&mut bench, node);
        }
        assert_eq!(bench.outcomes(), [AcquireOutcome::Held], "{row}");
        let released = bench.released();
        assert_eq!(released.contains(&(4, Ended::Aborted)), is_released, "{row}");
        assert!(released.contains(&(3, Ended::Aborted)), "{row}: a node with an ask outstanding");
        assert!(!released.contains(&(0, Ended::Aborted)), "{row}: a node that is held");
    }
}

#[test]
fn rule_17_an_attempt_starts_only_if_a_quorum_could_vote() {
    type Say = fn(&mut Bench, NodeIndex);
    let free: Say = |bench, node| bench.says(node, Verdict::Free, |_| {});
    let held: Say = |bench, node| bench.says(node, Verdict::Seen, held_by_rival(500));
    let quarantined: Say = |bench, node| {
        bench.says(node, Verdict::Free, |answer| {
            answer.quarantined = true;
            answer.left = Some(ms(300));
        });
    };
    let down: Say = |bench, node| bench.fails(node, Kind::Timeout);
    let same: Say = |bench, node| bench.says(node, Verdict::Free, |answer| answer.run = RunId(1));
    for (row, says, starts) in [
        ("all free", [free, free, free], true),
        ("a quorum free", [free, down, free], true),
        ("one free, one down", [free, down, held], false),
        ("one free, one in quarantine", [free, quarantined, down], false),
        ("the same server twice", [free, same, down], false),
        ("all held", [held, held, held], false),
    ] {
        let mut bench = Bench::new(false);
        bench.trip();
        for (node, say) in says.iter().enumerate() {
            say(&mut bench, node);
        }
        assert_eq!(bench.core.live_attempt().is_some(), starts, "{row}");
    }
}

#[test]
fn rule_18_tokens_are_above_all_seen_and_follow_the_median_clock() {
    let token = |seen: u64, steps: [i64; 3]| {
        let mut bench = Bench::new(false);
        bench.step_us = steps.to_vec();
        bench.trip();
        for node in 0..3 {
            if bench.core.live_attempt().is_none() {
                bench.says(node, Verdict::Free, |answer| answer.token = seen);
            }
        }
        bench.claim(0).token
    };
    let clock = TIME_0 + 10_001_000;
    assert_eq!(token(0, [0, 0, 0]), clock);
    assert_eq!(token(0, [0, 300_000, 0]), clock, "the lower median of two");
    assert_eq!(token(0, [-300_000, 0, 0]), clock - 300_000, "the lower median of two");
    // Two names of one server, whose clock is far ahead, are one reading.
    let mut bench = Bench::new(false);
    (bench.runs, bench.step_us) = (vec![1, 1, 3], vec![500_000, 500_000, 0]);
    bench.all(Verdict::Free);
    assert_eq!(bench.claim(0).token, clock, "the lower median of two servers");
    assert_eq!(token(clock + 77, [0, 0, 0]), clock + 78, "above all seen");
}

#[test]
fn a_server_that_a_second_name_leads_to_is_still_a_clock_though_the_first_name_is_silent_for_long() {
    let mut bench = Bench::new(false);
    bench.runs = vec![1, 2, 1];
    bench.trip();
    bench.says(0, Verdict::Free, |_| {});
    bench.sleep(ms(1500));
    bench.fails(0, Kind::Timeout);
    let asked = bench.asks.len();
    while bench.asks.len() == asked {
        bench.sleep(ms(1));
    }
    bench.trip();
    for node in [1, 2] {
        bench.says(node, Verdict::Free, |_| {});
    }
    let clock = TIME_0 + bench.now.as_micros() - 1000;
    assert_eq!(bench.claim(1).token, clock, "by the clocks of two servers, not the smallest of all tokens");
}

#[test]
fn rule_18_outdated_raises_the_token_and_asks_all_again_four_times() {
    let mut bench = Bench::new(false);
    bench.all(Verdict::Free);
    let mut tokens = vec![bench.claim(0).token];
    for _ in 0..5 {
        bench.trip();
        let above = bench.claim(0).token + 1000;
        bench.says(0, Verdict::Outdated, |answer| answer.token = above);
        bench.says(1, Verdict::Outdated, |answer| answer.token = above);
        if bench.core.live_attempt().is_some() {
            assert!(bench.claim(2).token > above);
            tokens.push(bench.claim(2).token);
        }
    }
    assert_eq!(tokens.len(), 5);
    assert_eq!(bench.outcomes(), [AcquireOutcome::Outdated]);
    assert_eq!(bench.released(), [(2, Ended::Aborted)], "rule 14: outdated nodes have nothing of ours");
}

#[test]
fn rule_19_the_strongest_keeps_its_votes_and_everyone_else_aborts() {
    // What the other has beside our one grant: its token. Five nodes, one of them down.
    for (row, theirs, keeps) in [
        ("as many nodes and a smaller token", vec![(1, 4)], true),
        ("as many nodes and a larger token", vec![(1, u64::MAX >> 12)], false),
        ("more nodes", vec![(1, 4), (2, 4)], false),
        ("two others with one each", vec![(1, 3), (2, 3)], false),
    ] {
        let mut bench = Bench::with(5, false, &Wish::with_ttl(ms(1000)));
        bench.all(Verdict::Free);
        bench.trip();
        bench.says(0, Verdict::Granted, |_| {});
        for (node, token) in &theirs {
            bench.says(*node, Verdict::Held, |answer| {
                answer.owner = Some(Owner::found(RIVAL));
                answer.owner_token = Some(*token);
                answer.left = Some(ms(900));
            });
        }
        for node in theirs.len() + 1..5 {
            bench.fails(node, Kind::Connect);
        }
        bench.sleep(ms(3));
        assert_eq!(bench.core.live_attempt().is_some(), keeps, "{row}");
        assert_eq!(bench.released().is_empty(), keeps, "{row}");
    }
}

#[test]
fn rule_19_a_far_node_is_heard_where_its_vote_decides() {
    // The first node answers at once, the second is in quarantine, the third is ten times farther.
    let mut bench = Bench::new(false);
    let quarantined = |answer: &mut Answer| {
        answer.quarantined = true;
        answer.left = Some(ms(1000));
    };
    bench.trip();
    bench.says(0, Verdict::Free, |_| {});
    bench.says(1, Verdict::Free, quarantined);
    bench.sleep(ms(20));
    bench.says(2, Verdict::Free, |_| {});
    assert_eq!(bench.state(), State::Campaigning, "the look has waited for it");
    bench.trip();
    bench.says(0, Verdict::Granted, |_| {});
    bench.says(1, Verdict::Quarantined, |answer| answer.left = Some(ms(1000)));
    bench.sleep(ms(20));
    bench.says(2, Verdict::Granted, |_| {});
    assert_eq!(bench.state(), State::Leader, "the attempt has waited for it: {:?}", bench.outcomes());
    // One that does not answer is waited for until the node timeout, and a round that it cannot win not at all.
    let mut bench = Bench::new(false);
    bench.all(Verdict::Free);
    bench.trip();
    bench.says(0, Verdict::Granted, |_| {});
    bench.says(1, Verdict::Quarantined, |answer| answer.left = Some(ms(1000)));
    bench.sleep(ms(47));
    assert_eq!(bench.state(), State::Campaigning);
    bench.sleep(ms(2));
    assert_eq!(bench.outcomes(), [AcquireOutcome::Quarantined]);
    let mut bench = Bench::new(false);
    bench.trip();
    bench.says(0, Verdict::Free, quarantined);
    bench.says(1, Verdict::Free, quarantined);
    bench.sleep(ms(3));
    assert!(bench.core.poll_timeout().unwrap().since(bench.now) > ms(300), "it sleeps");
}

#[test]
fn a_node_that_does_not_answer_makes_no_other_node_the_same_as_itself() {
    let mut bench = Bench::new(false);
    // The first name led to the second node's server for a while, and leads nowhere now.
    bench.runs = vec![2, 2, 3];
    bench.all(Verdict::Free);
    bench.all(Verdict::Granted);
    assert_eq!(bench.state(), State::Leader);
    bench.sleep(ms(250));
    bench.fails(0, Kind::Connect);
    bench.says(1, Verdict::Extended, |_| {});
    bench.says(2, Verdict::Extended, |_| {});
    let leadership = bench.core.leadership();
    assert_eq!(leadership.nodes[1].error, None);
    assert_eq!(bench.deadline_in(), Some(898), "both votes count");
}

#[test]
fn a_name_that_comes_to_mean_another_nodes_server_costs_that_node_no_vote() {
    let mut bench = Bench::new(false).lead();
    bench.sleep(ms(250));
    // The first name is led to the second node's server.
    bench.runs[0] = bench.runs[1];
    for node in 0..3 {
        bench.says(node, Verdict::Extended, |_| {});
    }
    let leadership = bench.core.leadership();
    let errors: Vec<Option<Kind>> = leadership.nodes.iter().map(|node| node.error).collect();
    assert_eq!(errors, [Some(Kind::SameNode), None, None]);
    assert_eq!(bench.deadline_in(), Some(898), "the votes of two servers");
}

/// Not promised: a machine that is frozen or copied together with its clock has no way to know, until somebody tells.
#[test]
fn a_leader_whose_clock_stood_still_too_believes_until_the_first_reply() {
    let mut bench = Bench::new(false).lead();
    bench.sleep(ms(250));
    // Another has led and left meanwhile, for hours perhaps: here no time has passed.
    assert_eq!(bench.state(), State::Leader);
    let token = bench.claim(0).token;
    bench.says(0, Verdict::LostOver, |answer| {
        answer.over = token;
        answer.token = token + 1;
    });
    assert_eq!(bench.ended(), Some(StepDown::Superseded));
    assert_ne!(bench.state(), State::Leader);
}

#[test]
fn rule_19_an_answer_to_an_earlier_ask_says_nothing_of_the_one_that_is_under_way() {
    let mut bench = Bench::new(false);
    bench.all(Verdict::Free);
    bench.trip();
    let early = bench.last_claim(2);
    let above = bench.claim(0).token + 1000;
    bench.says(0, Verdict::Outdated, |answer| answer.token = above);
    bench.says(1, Verdict::Outdated, |answer| answer.token = above);
    let raised = bench.claim(2).token;
    assert!(raised > above, "the token was raised, and all were asked again");
    // The third node's answer to the first ask is late, or there is none; it has been asked again since.
    for outcome in
        [Outcome::Answer(bench.answer(2, Verdict::Outdated)), Outcome::Failed(Kind::Timeout), Outcome::Unsent]
    {
        let mut bench = bench.clone();
        bench.reply_to(2, &early, outcome.clone(), bench.now);
        assert_eq!(bench.claim(2).token, raised, "{outcome:?} raises nothing again");
        bench.says(0, Verdict::Granted, |_| {});
        bench.fails(1, Kind::Connect);
        assert_eq!(bench.state(), State::Campaigning, "{outcome:?} is no answer to the second ask");
        bench.says(2, Verdict::Granted, |_| {});
        assert_eq!(bench.state(), State::Leader, "{outcome:?}");
    }
}

#[test]
fn rule_19_two_fast_answers_do_not_throw_away_a_vote_that_is_on_its_way() {
    let mut bench = Bench::new(false);
    bench.all(Verdict::Free);
    let began = bench.now;
    let micros = Duration::from_micros;
    let mut granted = bench.answer(0, Verdict::Granted);
    granted.token = bench.claim(0).token;
    let mut held = bench.answer(1, Verdict::Held);
    held_by_rival(1000)(&mut held);
    held.owner_token = Some(u64::MAX >> 12);
    // The rival is stronger, so the attempt is lost as soon as the round is over.
    for (node, answer, after) in [(0, granted.clone(), 40), (1, held, 60)] {
        bench.now = began + micros(after);
        bench.reply_to(node, &bench.last_claim(node), Outcome::Answer(answer), began);
    }
    bench.sleep(micros(200));
    granted.run = RunId(3);
    bench.reply_to(2, &bench.last_claim(2), Outcome::Answer(granted), began);
    assert_eq!(bench.state(), State::Leader, "{:?}", bench.outcomes());
}

#[test]
fn rule_20_a_key_in_its_last_millisecond_is_no_split_to_back_off_from() {
    let mut bench = Bench::new(false);
    bench.trip();
    bench.says(0, Verdict::Free, |_| {});
    bench.says(1, Verdict::Seen, held_by_rival(0));
    bench.fails(2, Kind::Timeout);
    let wait = bench.core.poll_timeout().unwrap().since(bench.now);
    assert!((ms(1)..=ms(2)).contains(&wait), "looks again as soon as the key can be gone, not after {wait:?}");
}

#[test]
fn rule_20_a_standby_sleeps_until_the_lock_can_be_free_and_a_release_wakes_it() {
    let mut bench = Bench::new(false);
    bench.trip();
    for (node, left) in [(0, 150), (1, 100), (2, 200)] {
        bench.says(node, Verdict::Seen, held_by_rival(left));
    }
    let looks = bench.asks.iter().filter(|(_, ask)| matches!(ask.what, What::Look { .. })).count();
    let wait = bench.core.poll_timeout().unwrap().since(bench.now);
    assert!((ms(150)..=ms(151)).contains(&wait), "the quorum-th smallest and a jitter of at most 0.3 ms, not {wait:?}");
    bench.core.handle_wake(bench.now);
    let wait = bench.core.poll_timeout().unwrap().since(bench.now);
    assert!(wait <= ms(1), "a release wakes, not after {wait:?}");
    bench.sleep(ms(1));
    let more = bench.asks.iter().filter(|(_, ask)| matches!(ask.what, What::Look { .. })).count();
    assert_eq!(more, looks + 3);
}

#[test]
fn rule_20_a_wake_up_during_a_round_is_not_lost() {
    let mut bench = Bench::new(false);
    bench.core.handle_wake(bench.now);
    bench.trip();
    for node in 0..3 {
        bench.says(node, Verdict::Seen, held_by_rival(800));
    }
    let wait = bench.core.poll_timeout().unwrap().since(bench.now);
    assert!(wait <= ms(1), "looks again at once, not after {wait:?}");
}

#[test]
fn rule_20_a_key_without_an_expiry_is_an_unreachable_vote() {
    let mut bench = Bench::new(false);
    bench.trip();
    for node in 0..3 {
        bench.says(node, Verdict::Seen, |answer| {
            answer.owner = Some(Owner::found("somebody"));
            answer.left = None;
        });
    }
    let wait = bench.core.poll_timeout().unwrap().since(bench.now);
    assert!(wait >= ms(25), "backs off, and does not look again after {wait:?}");
    bench.sleep(wait);
    bench.trip();
    for node in 0..3 {
        bench.says(node, Verdict::Seen, |answer| {
            answer.owner = Some(Owner::found("somebody"));
            answer.left = None;
        });
    }
    // Each node is told of once, not with every look.
    assert_eq!(bench.events.iter().filter(|event| matches!(event, Event::NoExpiry { .. })).count(), 3);
}

#[test]
fn rule_21_the_quarantine_grows_with_the_longest_ttl_seen() {
    let foreign = |left: u64| {
        move |answer: &mut Answer| {
            answer.owner = Some(Owner::found("c29tZSByYW5kb20gdmFsdWU="));
            answer.left = Some(ms(left));
        }
    };
    let quarantine = |change: &dyn Fn(&mut Answer)| {
        let mut bench = Bench::new(false);
        bench.trip();
        bench.says(0, Verdict::Seen, change);
        bench.core.leadership().quarantine
    };
    assert_eq!(quarantine(&|answer| answer.ttl = ms(500)), ms(1100));
    assert_eq!(quarantine(&|answer| answer.ttl = ms(8000)), ms(8800));
    assert_eq!(quarantine(&foreign(4000)), ms(4400));
    assert_eq!(quarantine(&foreign(3_600_000)), ms(11_000), "a foreign key's at most 10 x ttl");
}

#[test]
fn a_voluntary_step_down_extends_while_the_work_stops_and_waits_for_the_handover() {
    let wish = Wish { handover_delay: ms(400), stop_timeout: ms(600), ..Wish::with_ttl(ms(1000)) };
    // reason, guarded, work stops after, the lock is released after
    for (reason, guarded, stops, ends) in [
        (StepDown::Resign, false, None, 400),
        (StepDown::Resign, true, Some(100), 400),
        (StepDown::Resign, true, Some(550), 550),
        (StepDown::Shutdown, false, None, 0),
        (StepDown::Shutdown, true, Some(550), 550),
    ] {
        let mut bench = Bench::with(3, guarded, &wish).lead();
        let (token, began) = (bench.claim(0).token, bench.now);
        let request = match reason {
            StepDown::Shutdown => Request::Shutdown,
            _ => Request::Resign { reason, stand_back: Duration::ZERO },
        };
        bench.core.handle_request(bench.now, &request);
        bench.collect();
        assert!(!bench.core.leadership().is_leading(bench.now), "readiness goes first");
        while bench.ended().is_none() && bench.now < began + ms(900) {
            if stops.is_some_and(|at| began + ms(at) == bench.now) {
                bench.core.handle_request(bench.now, &Request::WorkStopped(token));
                bench.collect();
            }
            for node in 0..3 {
                if matches!(bench.last(node).what, What::Extend(_)) && bench.ended().is_none() {
                    bench.says(node, Verdict::Extended, |_| {});
                }
            }
            if bench.ended().is_none() {
                bench.sleep(ms(1));
            }
        }
        assert_eq!((bench.ended(), bench.now.since(began)), (Some(reason), ms(ends)), "guarded {guarded}");
    }
}

#[test]
fn drain_keeps_what_is_held_and_takes_no_part_any_more() {
    let mut bench = Bench::new(false).lead();
    bench.core.handle_request(bench.now, &Request::Drain);
    assert_eq!(bench.state(), State::Draining);
    assert!(bench.core.leadership().is_leading(bench.now));
    let mut standby = Bench::new(false);
    standby.core.handle_request(standby.now, &Request::Drain);
    standby.all(Verdict::Free);
    assert_eq!(standby.core.live_attempt(), None);
    let wait = standby.core.poll_timeout().unwrap().since(standby.now);
    assert!(wait >= ms(400), "does not look again after {wait:?} for a lock that it does not want");
}

#[test]
fn shutdown_cleans_up_an_attempt_and_ends_when_the_nodes_have_answered() {
    let mut bench = Bench::new(false);
    bench.all(Verdict::Free);
    bench.core.handle_request(bench.now, &Request::Shutdown);
    bench.collect();
    assert_eq!(bench.released().len(), 3);
    for node in 0..3 {
        assert!(!bench.core.is_finished());
        let outcome =
            if node == 2 { Outcome::Failed(Kind::Timeout) } else { Outcome::Released { deleted: true, time_us: 1 } };
        bench.reply_to(node, &bench.last(node), outcome, bench.now);
    }
    assert!(bench.core.is_finished());
    let partial = |event: &&Event| matches!(event, Event::Release { outcome: ReleaseOutcome::Partial, .. });
    assert_eq!(bench.events.iter().filter(partial).count(), 1);
}

#[test]
fn nodes_that_can_never_vote_are_refused_only_when_all_have_answered() {
    for (row, kinds, refused) in [
        ("three shards of a cluster", [Some(Kind::Moved), Some(Kind::Moved), Some(Kind::Moved)], true),
        ("two shards, one down", [Some(Kind::Moved), Some(Kind::Moved), Some(Kind::Timeout)], false),
        ("two shards and a node", [Some(Kind::Moved), Some(Kind::Moved), None], true),
        ("one shard and two nodes", [Some(Kind::Moved), None, None], false),
        ("wrong passwords", [Some(Kind::Auth), Some(Kind::Auth), Some(Kind::Auth)], false),
    ] {
        let mut bench = Bench::new(false);
        bench.trip();
        for (node, kind) in kinds.into_iter().enumerate() {
            match kind {
                Some(kind) => bench.fails(node, kind),
                None => bench.says(node, Verdict::Seen, held_by_rival(500)),
            }
        }
        assert_eq!(bench.core.refused().is_some(), refused, "{row}");
    }
}

#[test]
fn a_connection_made_by_the_clean_up_of_a_lost_attempt_does_not_cut_its_pause_short() {
    let mut bench = Bench::new(false);
    bench.all(Verdict::Free);
    bench.trip();
    for node in 0..3 {
        bench.fails(node, Kind::Protocol);
    }
    assert_eq!(bench.outcomes(), [AcquireOutcome::NoQuorum]);
    let wait = bench.core.poll_timeout().unwrap().since(bench.now);
    bench.core.handle_node(bench.now, &NodeEvent::Up { node: 0, run: RunId(1), replid: 1, evicts: false });
    bench.collect();
    assert!(wait >= ms(25) && bench.core.poll_timeout().unwrap() >= bench.now + wait.min(ms(25)));
    // A look that reached nobody is another matter: there a connection is news.
    let mut alone = Bench::new(false);
    alone.trip();
    for node in 0..3 {
        alone.fails(node, Kind::Connect);
    }
    alone.core.handle_node(alone.now, &NodeEvent::Up { node: 0, run: RunId(1), replid: 1, evicts: false });
    assert!(alone.core.poll_timeout().unwrap().since(alone.now) <= ms(1));
}

#[test]
fn a_wake_up_that_finds_the_same_holder_tells_no_change() {
    let mut bench = Bench::new(false);
    for _ in 0..3 {
        bench.trip();
        for node in 0..3 {
            bench.says(node, Verdict::Seen, held_by_rival(800));
        }
        bench.core.handle_wake(bench.now);
        assert!(bench.core.leadership().holder(bench.now).is_none(), "who released is not shown as the holder");
        bench.sleep(ms(1));
    }
    assert_eq!(bench.events.iter().filter(|event| matches!(event, Event::HolderChanged { .. })).count(), 1);
}

#[test]
fn a_node_that_refuses_writes_is_told_once_over_many_attempts() {
    let mut bench = Bench::new(false);
    for _ in 0..5 {
        bench.all(Verdict::Free);
        bench.trip();
        for node in 0..3 {
            bench.fails(node, Kind::Oom);
        }
        for (node, _) in bench.released().split_off(bench.released().len() - 3) {
            let release = bench.last(node);
            bench.reply_to(node, &release, Outcome::Released { deleted: false, time_us: 1 }, bench.now);
        }
        assert!(bench.core.leadership().nodes.iter().all(|node| node.error == Some(Kind::Oom)));
        bench.sleep(ms(500));
    }
    let told = |event: &&Event| matches!(event, Event::Node { .. });
    assert_eq!(bench.events.iter().filter(told).count(), 3);
    bench.all(Verdict::Free);
    bench.all(Verdict::Granted);
    assert_eq!(bench.events.iter().filter(told).count(), 6, "and once that it is over");
}

#[test]
fn what_is_in_the_way_at_a_key_is_told_once_until_it_is_over() {
    let no_expiry = |answer: &mut Answer| {
        answer.owner = Some(Owner::found("somebody"));
        answer.left = None;
    };
    let mut bench = Bench::new(false);
    for _ in 0..4 {
        bench.trip();
        for node in 0..3 {
            bench.says(node, Verdict::Seen, no_expiry);
        }
        bench.sleep(ms(400));
    }
    assert_eq!(bench.events.iter().filter(|event| matches!(event, Event::NoExpiry { .. })).count(), 3);
    let mut leader = Bench::new(false).lead();
    let lost = |bench: &Bench| bench.events.iter().filter(|event| matches!(event, Event::NodeLost { .. })).count();
    for (verdict, told) in
        [(Verdict::LostOwner, 1), (Verdict::LostOwner, 1), (Verdict::Refilled, 1), (Verdict::LostOwner, 2)]
    {
        leader.sleep(ms(250));
        leader.trip();
        leader.says(1, Verdict::Extended, |_| {});
        leader.says(2, Verdict::Extended, |_| {});
        leader.says(0, verdict, |answer| answer.owner = Some(Owner::found("somebody")));
        assert_eq!(lost(&leader), told);
    }
}

#[test]
fn rule_20_a_crowd_spreads_so_that_the_first_is_granted_before_many_have_asked() {
    for (subscribers, latest) in [(0, 300), (100, 25_000), (100_000, 50_000)] {
        let mut bench = Bench::new(false);
        bench.core.subscribers = subscribers;
        let mut waits: Vec<u64> = (0..2000).map(|_| bench.core.crowd_jitter().as_micros() as u64).collect();
        waits.sort_unstable();
        let (first, last) = (waits[0], waits[waits.len() - 1]);
        assert!(first <= latest / 20 && last <= latest, "{subscribers}: {first} to {last} us");
        assert!(last > latest * 9 / 10, "{subscribers}: the spread is used, {last} us");
    }
    // Of a hundred that have waited for the same instant, only a few look within a look's and an ask's time.
    let mut bench = Bench::new(false);
    bench.core.subscribers = 100;
    let mut early = 0;
    for _ in 0..100 {
        let waits: Vec<Duration> = (0..100).map(|_| bench.core.crowd_jitter()).collect();
        let first = *waits.iter().min().unwrap();
        early += waits.iter().filter(|wait| **wait <= first + Duration::from_micros(600)).count();
    }
    assert!((100..600).contains(&early), "{early} of 10,000 contend in a hundred elections");
}
