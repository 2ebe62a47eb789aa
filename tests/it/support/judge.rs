//! Who led when, and whether two ever did.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::figures::figure;
use super::http::HttpConnection;
use super::process::lock;
use super::replica::Replica;
use super::wait::{boot_micros, pause};

/// One leadership, in milliseconds of boot time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// The replica's identity.
    pub who: String,
    /// Its fencing token; 0 if there is none.
    pub token: u64,
    /// When it was elected.
    pub start: u64,
    /// When its belief ended, or its process did; `None` while it lasts.
    pub end: Option<u64>,
}

/// All leaderships of one process.
#[derive(Clone, Debug)]
pub struct Track {
    /// Which process.
    pub who: String,
    /// In the order of its log.
    pub terms: Vec<Term>,
}

/// Two leaderships at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The one that began first.
    pub first: Term,
    /// The one that began while the first lasted.
    pub second: Term,
    /// For how long both lasted; `None` if both still do.
    pub millis: Option<u64>,
}

/// Judges tracks.
#[derive(Clone, Copy, Debug)]
pub struct Judge;

impl Judge {
    /// The verdict over these processes, which must be all that contended.
    pub fn check(tracks: &[Track]) -> Report {
        let mut terms: Vec<Term> = tracks.iter().flat_map(|track| track.terms.iter().cloned()).collect();
        terms.sort_by_key(|term| (term.start, term.end.unwrap_or(u64::MAX)));
        let mut overlaps = Vec::new();
        for (index, first) in terms.iter().enumerate() {
            for second in &terms[index + 1..] {
                let first_end = first.end.unwrap_or(u64::MAX);
                let end = first_end.min(second.end.unwrap_or(u64::MAX));
                // Touching is no overlap, and a leadership without length is at no instant beside another.
                if second.start < first_end && second.start < end {
                    let millis = (end != u64::MAX).then(|| end - second.start);
                    overlaps.push(Overlap { first: first.clone(), second: second.clone(), millis });
                }
            }
        }
        let pairs = || terms.windows(2);
        let handovers = pairs().filter(|pair| pair[0].who != pair[1].who).count();
        let tokens_increase = pairs().all(|pair| pair[0].token < pair[1].token);
        let gap = |pair: &[Term]| pair[0].end.map(|end| pair[1].start.saturating_sub(end));
        let longest_gap = pairs().filter_map(gap).max();
        Report { handovers, overlaps, tokens_increase, longest_gap, terms }
    }

    /// The verdict over these replicas.
    pub fn check_replicas<'a>(replicas: impl IntoIterator<Item = &'a Replica>) -> Report {
        let tracks: Vec<Track> = replicas.into_iter().map(Replica::track).collect();
        Self::check(&tracks)
    }
}

/// What the judge found.
#[derive(Clone, Debug)]
pub struct Report {
    /// How often a leadership was followed by one of another replica.
    pub handovers: usize,
    /// Every pair that overlapped.
    pub overlaps: Vec<Overlap>,
    /// True if each leadership's token is larger than the one's before it.
    pub tokens_increase: bool,
    /// The longest time, in milliseconds, between the end of one and the start of the next.
    pub longest_gap: Option<u64>,
    /// All leaderships by their start.
    pub terms: Vec<Term>,
}

impl Report {
    /// Prints the verdict as a figure.
    pub fn print(&self, name: &str) {
        figure(name, &self.to_string());
    }

    /// Prints the verdict, and panics if two led at once, a token did not grow, or nothing was handed over: a run
    /// that changed no leader proves nothing.
    #[track_caller]
    pub fn assert_clean(&self, name: &str) {
        self.print(name);
        assert!(self.overlaps.is_empty(), "{name}: two leaders: {:#?}", self.overlaps);
        assert!(self.tokens_increase, "{name}: a token did not grow: {:#?}", self.terms);
        assert!(self.handovers > 0, "{name}: no hand-over, so the run proves nothing: {:#?}", self.terms);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gap = self.longest_gap.map_or("none".to_owned(), |gap| format!("{gap} ms"));
        let tokens = if self.tokens_increase { "increase" } else { "DO NOT INCREASE" };
        let (terms, handovers, overlaps) = (self.terms.len(), self.handovers, self.overlaps.len());
        write!(
            f,
            "leaderships {terms}, hand-overs {handovers}, overlaps {overlaps}, tokens {tokens}, longest gap {gap}"
        )
    }
}

/// The second witness: polls `/readyz` of every replica on connections that stay open.
///
/// Two answers of 200 one after the other are no proof, since a hand-over may lie between them. It is one when a
/// replica answers 200, another answers 200 to a question asked after that, and the first answers 200 to its next
/// question, asked after the other's answer.
#[derive(Debug)]
pub struct OverlapMeter {
    ended: Arc<AtomicBool>,
    samples: Vec<Arc<Mutex<Vec<Sample>>>>,
    threads: Vec<JoinHandle<()>>,
}

/// One answer of `/readyz`; microseconds of boot time.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Just before it was asked.
    pub asked: u64,
    /// Just after it was answered, or given up.
    pub answered: u64,
    /// True if it was 200.
    pub ready: bool,
}

impl OverlapMeter {
    /// From an answer to the next question, in microseconds.
    pub const LONGEST_PAUSE_US: u64 = 20_000;

    /// Polls these addresses, each every 10 to 20 ms.
    pub fn start(addresses: &[String]) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let mut meter = Self { ended, samples: Vec::new(), threads: Vec::new() };
        for address in addresses {
            meter.watch(address);
        }
        meter
    }

    /// Polls one more from here on.
    pub fn watch(&mut self, address: &str) {
        let samples = Arc::new(Mutex::new(Vec::new()));
        let every = Duration::from_millis(10 + (self.samples.len() as u64 * 3) % 10);
        self.samples.push(Arc::clone(&samples));
        let (ended, address) = (Arc::clone(&self.ended), address.to_owned());
        self.threads.push(std::thread::spawn(move || poll(&address, every, &samples, &ended)));
    }

    /// Polls these replicas.
    pub fn of<'a>(replicas: impl IntoIterator<Item = &'a Replica>) -> Self {
        let addresses: Vec<String> = replicas.into_iter().map(Replica::address).collect();
        Self::start(&addresses)
    }

    /// Ends it: how often two were proved ready at once, and how many answers were 200.
    pub fn finish(self) -> (usize, usize) {
        let all = self.samples();
        let ready = all.iter().flatten().filter(|sample| sample.ready).count();
        (proofs(&all), ready)
    }

    /// Ends it: all answers of each address, in the order in which they were watched.
    pub fn samples(mut self) -> Vec<Vec<Sample>> {
        self.end();
        self.samples.iter().map(|samples| lock(samples).clone()).collect()
    }

    fn end(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for OverlapMeter {
    fn drop(&mut self) {
        self.end();
    }
}

fn poll(address: &str, every: Duration, samples: &Mutex<Vec<Sample>>, ended: &AtomicBool) {
    let mut connection = None;
    while !ended.load(Ordering::SeqCst) {
        let timeout = Duration::from_millis(500);
        let open = connection.take().or_else(|| HttpConnection::connect(address, timeout).ok());
        let asked = boot_micros();
        let mut ready = false;
        if let Some(mut open) = open
            && let Ok(response) = open.get("/readyz")
        {
            ready = response.status == 200;
            connection = Some(open);
        }
        lock(samples).push(Sample { asked, answered: boot_micros(), ready });
        pause(every);
    }
}

/// How often two were proved ready at once.
pub fn proofs(all: &[Vec<Sample>]) -> usize {
    let mut count = 0;
    for (index, one) in all.iter().enumerate() {
        for pair in one.windows(2).filter(|pair| pair[0].ready && pair[1].ready) {
            let between = |sample: &&Sample| sample.asked >= pair[0].answered && sample.answered <= pair[1].asked;
            let others = all.iter().enumerate().filter(|(other, _)| *other != index);
            count += others.flat_map(|(_, samples)| samples).filter(|sample| sample.ready).filter(between).count();
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(who: &str, token: u64, start: u64, end: Option<u64>) -> Term {
        Term { who: who.to_owned(), token, start, end }
    }

    fn judge(terms: &[Term]) -> Report {
        let track = |term: &Term| Track { who: term.who.clone(), terms: vec![term.clone()] };
        Judge::check(&terms.iter().map(track).collect::<Vec<_>>())
    }

    #[test]
    fn a_planted_overlap_is_found() {
        let report = judge(&[term("a", 1, 100, Some(200)), term("b", 2, 199, Some(300))]);
        assert_eq!(report.overlaps.len(), 1);
        assert_eq!(report.overlaps[0].millis, Some(1));
    }

    #[test]
    fn a_planted_overlap_fails_the_run() {
        let report = judge(&[term("a", 1, 100, Some(200)), term("b", 2, 150, Some(300))]);
        assert!(std::panic::catch_unwind(|| report.assert_clean("planted")).is_err());
    }

    #[test]
    fn a_leadership_inside_another_is_an_overlap() {
        let report = judge(&[term("a", 1, 100, Some(400)), term("b", 2, 150, Some(160)), term("c", 3, 300, Some(500))]);
        assert_eq!(report.overlaps.len(), 2);
    }

    #[test]
    fn one_that_still_lasts_overlaps_with_every_later_one() {
        let report = judge(&[term("a", 1, 100, None), term("b", 2, 5000, None)]);
        assert_eq!(report.overlaps.len(), 1);
        assert_eq!(report.overlaps[0].millis, None);
    }

    #[test]
    fn two_of_one_replica_overlap_too() {
        assert_eq!(judge(&[term("a", 1, 100, Some(200)), term("a", 2, 150, Some(300))]).overlaps.len(), 1);
    }

    #[test]
    fn touching_intervals_are_no_overlap() {
        let report = judge(&[term("a", 1, 100, Some(200)), term("b", 2, 200, Some(300)), term("c", 3, 300, None)]);
        assert!(report.overlaps.is_empty());
        assert_eq!((report.handovers, report.longest_gap), (2, Some(0)));
        report.assert_clean("touching");
    }

    #[test]
    fn tokens_must_grow_and_the_longest_gap_is_told() {
        let report = judge(&[term("b", 5, 300, Some(400)), term("a", 5, 100, Some(150))]);
        assert!(!report.tokens_increase);
        assert_eq!(report.longest_gap, Some(150));
    }

    #[test]
    fn a_run_without_a_hand_over_fails() {
        let report = judge(&[term("a", 1, 100, Some(200)), term("a", 2, 300, None)]);
        assert_eq!(report.handovers, 0);
        assert!(std::panic::catch_unwind(|| report.assert_clean("one replica")).is_err());
    }

    fn sample(asked: u64, answered: u64, ready: bool) -> Sample {
        Sample { asked, answered, ready }
    }

    #[test]
    fn the_meter_proves_an_overlap_only_by_an_answer_between_two() {
        let first = vec![sample(0, 1, true), sample(20, 21, true)];
        assert_eq!(proofs(&[first.clone(), vec![sample(10, 11, true)]]), 1);
        assert_eq!(proofs(&[first.clone(), vec![sample(10, 22, true)]]), 0);
        let handed_over = vec![sample(0, 1, true), sample(20, 21, false)];
        assert_eq!(proofs(&[handed_over, vec![sample(10, 11, true)]]), 0);
    }
}
