//! How a node's clock runs beside ours and beside the others', out of readings over some time. Pure.

use std::time::Duration;

use crate::clock::micros;
use crate::redsync::node::probe::Reading;

/// A node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    /// The node's TIME less our boot clock, and how far that may be wrong; both in microseconds.
    offset: (i64, i64),
    /// The offset less the lower median of all nodes', in microseconds; set by [`compare`].
    pub(super) beside_others: i64,
    /// How much faster than ours it runs, and how far that may be wrong; both in millionths.
    pub(super) rate: Option<(i64, i64)>,
    /// How far it stepped while it was watched, the largest step of all; 0: it did not.
    pub(super) stepped: i64,
    /// The quickest answer, in microseconds.
    pub(super) round_trip: u64,
}

/// A rate over less time than this says nothing: the round trips would be all that one sees.
const RATE_LEAST: Duration = Duration::from_millis(200);

impl Clock {
    /// What `readings`, in order, tell; `None` without any. A step is two neighbours that are disjoint by more than
    /// `step` (protocol rule 9).
    pub(super) fn measure(readings: &[Reading], step: Duration) -> Option<Self> {
        let step = i64::try_from(step.as_micros()).unwrap_or(i64::MAX);
        let mut stepped: i64 = 0;
        // The rate is that of the time since the last step.
        let mut since = 0;
        for (index, pair) in readings.windows(2).enumerate() {
            let (before, after) = (interval(&pair[0]), interval(&pair[1]));
            let gap = if after.0 > before.1 { after.0 - before.1 } else { (after.1 - before.0).min(0) };
            if gap.abs() > step {
                since = index + 1;
                stepped = if gap.abs() > stepped.abs() { gap } else { stepped };
            }
        }
        let steady = readings.get(since..)?;
        let share = steady.len().div_ceil(5);
        let last = quickest(steady.get(steady.len() - share..)?)?;
        let first = quickest(steady.get(..share)?)?;
        let (low, high) = interval(last);
        let round_trip = readings.iter().map(round_trip).min()?;
        let rate = rate(first, last);
        Some(Self { offset: (middle(low, high), (high - low) / 2), beside_others: 0, rate, stepped, round_trip })
    }

    /// How far [`Self::beside_others`] may be wrong by this node's answers, in microseconds.
    pub(super) fn offset_error(&self) -> i64 {
        self.offset.1
    }
}

/// Fills in how far each is from the lower median of all.
pub(super) fn compare(mut clocks: Vec<&mut Clock>) {
    let mut offsets: Vec<i64> = clocks.iter().map(|clock| clock.offset.0).collect();
    offsets.sort_unstable();
    let Some(median) = offsets.len().checked_sub(1).and_then(|last| offsets.get(last / 2)) else { return };
    for clock in &mut clocks {
        clock.beside_others = clock.offset.0 - median;
    }
}

fn rate(first: &Reading, last: &Reading) -> Option<(i64, i64)> {
    let (a, b) = (interval(first), interval(last));
    let over = last.sent.since(first.sent);
    if over < RATE_LEAST {
        return None;
    }
    let over = signed(micros(over));
    let per_million = |micros: i64| micros.saturating_mul(1_000_000) / over;
    let drift = middle(b.0, b.1) - middle(a.0, a.1);
    Some((per_million(drift), per_million((a.1 - a.0) / 2 + (b.1 - b.0) / 2)))
}

/// The node's TIME less our clock lies in here.
fn interval(reading: &Reading) -> (i64, i64) {
    let time = signed(reading.time_us);
    (time - signed(reading.received.as_micros()), time - signed(reading.sent.as_micros()))
}

fn middle(low: i64, high: i64) -> i64 {
    low + (high - low) / 2
}

fn quickest(readings: &[Reading]) -> Option<&Reading> {
    readings.iter().min_by_key(|reading| round_trip(reading))
}

fn round_trip(reading: &Reading) -> u64 {
    reading.received.as_micros().saturating_sub(reading.sent.as_micros())
}

fn signed(micros: u64) -> i64 {
    i64::try_from(micros).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Moment;

    const STEP: Duration = Duration::from_millis(800);

    /// 31 readings, one a second, of a clock that is `offset` ahead and runs `ppm` fast; every third answer is slow.
    fn readings(offset: i64, ppm: i64) -> Vec<Reading> {
        let reading = |at: i64| {
            let sent = 5_000_000 + at * 1_000_000;
            let (to, back) = if at % 3 == 1 { (40_000, 90_000) } else { (200, 300) };
            let time = 1_700_000_000_000_000 + sent + to + offset + at * ppm;
            let moment = |micros: i64| Moment::from_micros(micros.unsigned_abs());
            Reading { sent: moment(sent), received: moment(sent + to + back), time_us: time.unsigned_abs() }
        };
        (0..31).map(reading).collect()
    }

    #[test]
    fn offset_and_rate_are_those_of_the_quickest_answers() {
        let mut clocks: Vec<Clock> = [(0, 0), (700_000, 0), (-5, 20_000)]
            .map(|(offset, ppm)| Clock::measure(&readings(offset, ppm), STEP).unwrap())
            .to_vec();
        compare(clocks.iter_mut().collect());
        // The first and the 25th of the 31 are the quickest of their fifths: 24 s apart, 250 us uncertain each.
        assert_eq!(clocks[0].rate, Some((0, 20)));
        assert_eq!(clocks[2].rate, Some((20_000, 20)));
        assert_eq!((clocks[0].stepped, clocks[0].round_trip, clocks[0].offset_error()), (0, 500, 250));
        // By then the fast one has gained 480 ms, which is the median.
        assert_eq!([0, 1, 2].map(|index| clocks[index].beside_others), [-479_995, 220_005, 0]);
    }

    #[test]
    fn a_step_shows_its_size_and_the_rate_is_that_of_the_time_after_it() {
        let mut all = readings(0, 0);
        for reading in all.iter_mut().skip(10) {
            reading.time_us -= 3_000_000;
        }
        let clock = Clock::measure(&all, STEP).unwrap();
        assert!((-3_000_000..-2_800_000).contains(&clock.stepped), "{}", clock.stepped);
        assert_eq!(clock.rate, Some((0, 33)));
        assert_eq!(Clock::measure(&readings(0, 20_000), STEP).unwrap().stepped, 0, "fast is no step");
        assert_eq!(Clock::measure(&[], STEP), None);
        assert_eq!(Clock::measure(&readings(0, 0)[..1], STEP).unwrap().rate, None);
    }
}
