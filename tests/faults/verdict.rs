//! Whether what happened in one run is right: who led when, who said that they were ready, and why nobody led.

use crate::support::{OverlapMeter, Report, Sample, Term, Track};

/// A fault, and for how long it can be why nobody leads; milliseconds of boot time.
#[derive(Clone, Debug)]
pub struct Window {
    /// From its start.
    pub from: u64,
    /// To the end of its aftermath.
    pub to: u64,
    /// What it can explain.
    pub scope: Scope,
}

/// What a fault can be the reason of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Nothing: nobody may lose anything by it.
    Nothing,
    /// That these nodes have no vote: why nobody leads only if, with others, too few are left for a quorum.
    Nodes(Vec<usize>),
    /// That this candidate cannot lead: why nobody does only if none is left that can.
    Candidate(usize),
    /// That nobody leads.
    All,
}

/// Two moments, in milliseconds of boot time.
pub type Span = (u64, u64);

/// The parts of `run` in which somebody has to lead: no fault, and no set of faults, is a reason why nobody should.
pub fn required(run: Span, windows: &[Window], nodes: usize, candidates: usize) -> Vec<Span> {
    let inside = windows.iter().flat_map(|window| [window.from, window.to]).filter(|at| run.0 < *at && *at < run.1);
    let mut edges: Vec<u64> = inside.chain([run.0, run.1]).collect();
    edges.sort_unstable();
    let spans = edges.windows(2).map(|pair| (pair[0], pair[1])).filter(|span| span.0 < span.1);
    let spans = spans.filter(|span| !is_excused(*span, windows, nodes, candidates));
    spans.fold(Vec::new(), |mut joined: Vec<Span>, span| {
        match joined.last_mut() {
            Some(last) if last.1 == span.0 => last.1 = span.1,
            Some(_) | None => joined.push(span),
        }
        joined
    })
}

fn is_excused(span: Span, windows: &[Window], nodes: usize, candidates: usize) -> bool {
    let (mut voiceless, mut unfit) = (vec![false; nodes], vec![false; candidates]);
    for window in windows.iter().filter(|window| window.from <= span.0 && span.1 <= window.to) {
        match &window.scope {
            Scope::Nothing => {}
            Scope::All => return true,
            Scope::Candidate(one) => unfit[*one] = true,
            Scope::Nodes(some) => some.iter().for_each(|node| voiceless[*node] = true),
        }
    }
    voiceless.iter().filter(|is| !**is).count() < nodes / 2 + 1 || !unfit.contains(&false)
}

/// The parts of the spans in which nobody led.
pub fn leaderless(spans: &[Span], terms: &[Term]) -> Vec<Span> {
    let mut ends: Vec<Span> = terms.iter().map(|term| (term.start, term.end.unwrap_or(u64::MAX))).collect();
    ends.sort_unstable();
    let mut gaps = Vec::new();
    for (from, to) in spans {
        let mut at = *from;
        for (start, end) in &ends {
            if *start > at && at < *to {
                gaps.push((at, *start.min(to)));
            }
            at = at.max(*end);
        }
        if at < *to {
            gaps.push((at, *to));
        }
    }
    gaps
}

/// The longest of them, if there is one.
pub fn longest(spans: &[Span]) -> Option<Span> {
    spans.iter().copied().max_by_key(|(from, to)| to - from)
}

/// Answers of 200 that this process gave at no instant of a leadership of its own: when asked and answered, in
/// microseconds of boot time.
pub fn wrongly_ready(samples: &[Sample], track: &Track) -> Vec<Span> {
    // Logs tell whole milliseconds, rounded down.
    let covers = |sample: &Sample| {
        let meets = |term: &Term| {
            term.start * 1000 <= sample.answered && term.end.is_none_or(|end| sample.asked < (end + 1) * 1000)
        };
        track.terms.iter().any(meets)
    };
    let wrong = samples.iter().filter(|sample| sample.ready && !covers(sample));
    wrong.map(|sample| (sample.asked, sample.answered)).collect()
}

/// When the machine was late, in milliseconds: an answer of a process that runs, or the witness's next question, came by
/// more than `patience` microseconds later than it should.
pub fn late(samples: &[Vec<Sample>], patience: u64) -> Vec<Span> {
    let pairs = samples.iter().flat_map(|samples| samples.windows(2));
    let waits = pairs.flat_map(|pair| {
        let asks_again = pair[0].answered + OverlapMeter::LONGEST_PAUSE_US;
        [(pair[0].asked, pair[0].answered), (asks_again.min(pair[1].asked), pair[1].asked)]
    });
    let mut late: Vec<Span> = waits.filter(|(from, to)| to - from > patience).collect();
    late.sort_unstable();
    let whole = late.into_iter().map(|(from, to)| (from / 1000, to / 1000 + 1));
    whole.fold(Vec::new(), |mut joined: Vec<Span>, span| {
        match joined.last_mut() {
            Some(last) if span.0 <= last.1 => last.1 = last.1.max(span.1),
            Some(_) | None => joined.push(span),
        }
        joined
    })
}

/// What one run came to.
#[derive(Debug)]
pub struct Verdict {
    /// By the logs.
    pub report: Report,
    /// How often the second witness saw two ready at once.
    pub witnessed: usize,
    /// How many answers were 200.
    pub ready: usize,
    /// When the machine was late.
    pub late: Vec<Span>,
    /// For how many milliseconds somebody had to lead.
    pub required: u64,
    /// The longest part of them in which nobody did.
    pub unexplained: Option<Span>,
    /// How many answers of 200 were given by a process that did not lead.
    pub wrongly_ready: usize,
    /// What else is wrong, in words.
    pub faults: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(from: u64, to: u64, scope: Scope) -> Window {
        Window { from, to, scope }
    }

    fn term(start: u64, end: Option<u64>) -> Term {
        Term { who: "a".to_owned(), token: 1, start, end }
    }

    #[test]
    fn somebody_has_to_lead_wherever_no_fault_excuses_it() {
        let windows = [window(10, 20, Scope::All), window(30, 40, Scope::Nothing)];
        assert_eq!(required((0, 50), &windows, 3, 3), [(0, 10), (20, 50)]);
    }

    #[test]
    fn one_voiceless_node_of_three_is_no_excuse_and_two_at_once_are() {
        let nodes = |from, to, node| window(from, to, Scope::Nodes(vec![node]));
        assert_eq!(required((0, 50), &[nodes(10, 30, 0)], 3, 3), [(0, 50)]);
        assert_eq!(required((0, 50), &[nodes(10, 30, 0), nodes(20, 40, 0)], 3, 3), [(0, 50)]);
        assert_eq!(required((0, 50), &[nodes(10, 30, 0), nodes(20, 40, 1)], 3, 3), [(0, 20), (30, 50)]);
        assert_eq!(required((0, 50), &[nodes(10, 30, 0), nodes(20, 40, 1)], 5, 3), [(0, 50)]);
    }

    #[test]
    fn candidates_that_cannot_lead_are_an_excuse_when_none_is_left() {
        let one = |from, to, seat| window(from, to, Scope::Candidate(seat));
        let two = [one(10, 40, 0), one(20, 30, 1)];
        assert_eq!(required((0, 50), &two, 3, 3), [(0, 50)]);
        assert_eq!(required((0, 50), &two, 3, 2), [(0, 20), (30, 50)]);
    }

    #[test]
    fn a_gap_is_what_no_leadership_covers() {
        let terms = [term(5, Some(10)), term(12, Some(40)), term(20, Some(30)), term(45, None)];
        assert_eq!(leaderless(&[(0, 50)], &terms), [(0, 5), (10, 12), (40, 45)]);
        assert_eq!(leaderless(&[(6, 9), (41, 43)], &terms), [(41, 43)]);
        assert_eq!(leaderless(&[(0, 50)], &[]), [(0, 50)]);
        assert_eq!(longest(&[(0, 5), (10, 12)]), Some((0, 5)));
    }

    #[test]
    fn a_late_machine_shows_in_late_answers_and_late_questions() {
        let sample = |asked, answered| Sample { asked, answered, ready: true };
        let in_time = vec![sample(0, 1_000), sample(15_000, 16_000), sample(30_000, 31_000)];
        assert_eq!(late(std::slice::from_ref(&in_time), 50_000), []);
        let answer = vec![sample(0, 60_000), sample(70_000, 70_500)];
        let question = vec![sample(0, 1_000), sample(100_000, 101_000)];
        assert_eq!(late(&[in_time.clone(), answer.clone()], 50_000), [(0, 61)]);
        assert_eq!(late(&[in_time, answer, question], 50_000), [(0, 101)]);
    }

    #[test]
    fn an_answer_of_200_outside_of_every_leadership_is_wrong() {
        let track = Track { who: "a#1".to_owned(), terms: vec![term(5, Some(10)), term(20, None)] };
        let wrong = |asked, answered, ready| wrongly_ready(&[Sample { asked, answered, ready }], &track).len();
        assert_eq!(wrong(4_000, 4_999, true), 1);
        assert_eq!(wrong(4_000, 5_000, true), 0);
        assert_eq!(wrong(10_999, 11_500, true), 0);
        assert_eq!(wrong(11_000, 11_500, true), 1);
        assert_eq!(wrong(11_000, 11_500, false), 0);
        assert_eq!(wrong(30_000, 30_500, true), 0);
    }
}
