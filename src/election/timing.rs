//! The numbers of an election, which cannot exist in a relation that is unsafe (protocol rule 21, docs/tuning.md).

use std::fmt;
use std::time::Duration;

use thiserror::Error;

/// What was asked for: durations as given, and `None` where the default follows from the ttl.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// `--ttl`: the key's expiry on the nodes, in whole milliseconds.
    pub ttl: Duration,
    /// `--clock-margin`: covers differences of clock rates, in thousandths.
    pub margin_permille: u32,
    /// `--renew-every`: how often each node's lease is extended; default ttl/4.
    pub renew: Option<Duration>,
    /// `--node-timeout`: how long one node may take to answer; default ttl/20.
    pub node_timeout: Option<Duration>,
    /// `--grace`: between "stop working" and the deadline; default ttl/8.
    pub grace: Option<Duration>,
    /// `--quarantine`: how long a node that may have forgotten has no vote; default ttl x (1 + margin).
    pub quarantine: Option<Duration>,
    /// `--connect-timeout`: name, TCP, TLS and AUTH together; default 1 s or ttl/4, whichever is longer.
    pub connect_timeout: Option<Duration>,
    /// `--stop-timeout`: how long the guarded work may take to stop in a voluntary step-down.
    pub stop_timeout: Duration,
    /// `--handover-delay`: between telling and releasing on resign; may be zero.
    pub handover_delay: Duration,
    /// `--max-failed-extends`: failed rounds after which to step down even if time is left; 0 is never.
    pub max_failed_extends: u32,
}

impl Wish {
    /// All defaults for a ttl: a margin of 10 %, 10 s to stop, no hand-over delay.
    #[must_use]
    pub const fn with_ttl(ttl: Duration) -> Self {
        Self {
            ttl,
            margin_permille: 100,
            renew: None,
            node_timeout: None,
            grace: None,
            quarantine: None,
            connect_timeout: None,
            stop_timeout: Duration::from_secs(10),
            handover_delay: Duration::ZERO,
            max_failed_extends: 0,
        }
    }
}

/// The numbers of an election, checked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    ttl: Duration,
    margin_permille: u32,
    renew: Duration,
    node_timeout: Duration,
    grace: Duration,
    quarantine: Duration,
    connect_timeout: Duration,
    stop_timeout: Duration,
    handover_delay: Duration,
    max_failed_extends: u32,
}

/// Why a [`Wish`] is refused. Each names the flags and the numbers.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TimingError {
    /// Below what can work at all.
    #[error("{flag} {} must be at least {}", Short(*.given), Short(*.least))]
    TooShort {
        /// The flag.
        flag: &'static str,
        /// What was given.
        given: Duration,
        /// The least that is allowed.
        least: Duration,
    },
    /// Above what anybody can mean.
    #[error("{flag} {} must be at most {}", Short(*.given), Short(*.most))]
    TooLong {
        /// The flag.
        flag: &'static str,
        /// What was given.
        given: Duration,
        /// The most that is allowed.
        most: Duration,
    },
    /// Redis counts expiries in milliseconds.
    #[error("{flag} {} must be in whole milliseconds", Short(*.given))]
    Fraction {
        /// The flag.
        flag: &'static str,
        /// What was given.
        given: Duration,
    },
    /// No margin would trust all clocks to run alike; more than half leaves too little to lead in.
    #[error("--clock-margin {} must be more than 0% and at most 50%", Percent(*.permille))]
    Margin {
        /// What was given, in thousandths.
        permille: u32,
    },
    /// One renewal and one repetition of it must fit in before the work has to stop (protocol rule 21).
    #[error(
        "--renew-every {} + 2 x --node-timeout {} must be less than --ttl {} x (1 - {}) - --grace {} = {}",
        Short(*.renew), Short(*.node_timeout), Short(*.ttl), Percent(*.margin_permille), Short(*.grace), Short(*.limit)
    )]
    RenewTooLate {
        /// `--renew-every`.
        renew: Duration,
        /// `--node-timeout`.
        node_timeout: Duration,
        /// `--ttl`.
        ttl: Duration,
        /// `--clock-margin`, in thousandths.
        margin_permille: u32,
        /// `--grace`.
        grace: Duration,
        /// What the sum must stay below.
        limit: Duration,
    },
    /// The work would have to stop before it began.
    #[error(
        "--grace {} must be less than --ttl {} x (1 - {}) = {}",
        Short(*.grace), Short(*.ttl), Percent(*.margin_permille), Short(*.validity)
    )]
    GraceTooLong {
        /// `--grace`.
        grace: Duration,
        /// `--ttl`.
        ttl: Duration,
        /// `--clock-margin`, in thousandths.
        margin_permille: u32,
        /// How long a lease is valid.
        validity: Duration,
    },
    /// At most one round is in flight on a connection (protocol rule 16).
    #[error(
        "--renew-every {} must be at least --node-timeout {}: a node answers one round before the next",
        Short(*.renew), Short(*.node_timeout)
    )]
    RenewTooOften {
        /// `--renew-every`.
        renew: Duration,
        /// `--node-timeout`.
        node_timeout: Duration,
    },
    /// A node could vote again while a grant that it has forgotten is still in use (protocol rule 21).
    #[error(
        "--quarantine {} must be at least --ttl {} x (1 + {}) = {}",
        Short(*.quarantine), Short(*.ttl), Percent(*.margin_permille), Short(*.least)
    )]
    QuarantineTooShort {
        /// `--quarantine`.
        quarantine: Duration,
        /// `--ttl`.
        ttl: Duration,
        /// `--clock-margin`, in thousandths.
        margin_permille: u32,
        /// The least that is safe.
        least: Duration,
    },
}

/// The least ttl (protocol rule 21): below it round trips and timers are no longer small beside it.
const TTL_LEAST: Duration = Duration::from_millis(100);
/// A crashed leader blocks everyone for one ttl: a day of that is a slip of the unit, and sums cannot overflow.
const DAY: Duration = Duration::from_hours(24);
/// The ttl of a predecessor may have been raised far above ours; a week covers every ttl with every margin.
const WEEK: Duration = Duration::from_hours(24 * 7);
/// Below it a timeout or period is a slip of the unit: no node on a network answers in time.
const MOMENT_LEAST: Duration = Duration::from_millis(1);
/// The least default of the connect timeout: TLS and DNS take their time however short the ttl is.
const CONNECT_DEFAULT_LEAST: Duration = Duration::from_secs(1);
const MARGIN_MOST_PERMILLE: u32 = 500;

impl Timing {
    /// Fills in the defaults and checks every number and every relation.
    ///
    /// # Errors
    /// Every fault at once. Relations are checked once the numbers in them are sane by themselves.
    pub fn new(wish: &Wish) -> Result<Self, Vec<TimingError>> {
        let mut faults = Vec::new();
        check_range("--ttl", wish.ttl, TTL_LEAST, DAY, &mut faults);
        check_whole_millis("--ttl", wish.ttl, &mut faults);
        if wish.margin_permille == 0 || wish.margin_permille > MARGIN_MOST_PERMILLE {
            faults.push(TimingError::Margin { permille: wish.margin_permille });
        }
        for (flag, given, most) in [
            ("--renew-every", wish.renew, DAY),
            ("--node-timeout", wish.node_timeout, DAY),
            ("--grace", wish.grace, DAY),
            ("--quarantine", wish.quarantine, WEEK),
            ("--connect-timeout", wish.connect_timeout, DAY),
            ("--stop-timeout", Some(wish.stop_timeout), DAY),
        ] {
            if let Some(given) = given {
                check_range(flag, given, MOMENT_LEAST, most, &mut faults);
            }
        }
        check_range("--handover-delay", wish.handover_delay, Duration::ZERO, DAY, &mut faults);
        if let Some(quarantine) = wish.quarantine {
            check_whole_millis("--quarantine", quarantine, &mut faults);
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let timing = Self::filled_in(wish);
        timing.check_relations(&mut faults);
        if faults.is_empty() { Ok(timing) } else { Err(faults) }
    }

    fn filled_in(wish: &Wish) -> Self {
        let ttl = wish.ttl;
        Self {
            ttl,
            margin_permille: wish.margin_permille,
            renew: wish.renew.unwrap_or(ttl / 4),
            node_timeout: wish.node_timeout.unwrap_or(ttl / 20),
            grace: wish.grace.unwrap_or(ttl / 8),
            quarantine: wish.quarantine.unwrap_or_else(|| least_quarantine(ttl, wish.margin_permille)),
            connect_timeout: wish.connect_timeout.unwrap_or_else(|| CONNECT_DEFAULT_LEAST.max(ttl / 4)),
            stop_timeout: wish.stop_timeout,
            handover_delay: wish.handover_delay,
            max_failed_extends: wish.max_failed_extends,
        }
    }

    fn check_relations(&self, faults: &mut Vec<TimingError>) {
        let Self { ttl, margin_permille, renew, node_timeout, grace, quarantine, .. } = *self;
        let validity = self.validity();
        match validity.checked_sub(grace).filter(|limit| !limit.is_zero()) {
            None => faults.push(TimingError::GraceTooLong { grace, ttl, margin_permille, validity }),
            Some(limit) if renew + 2 * node_timeout >= limit => {
                faults.push(TimingError::RenewTooLate { renew, node_timeout, ttl, margin_permille, grace, limit });
            }
            Some(_) => {}
        }
        if renew < node_timeout {
            faults.push(TimingError::RenewTooOften { renew, node_timeout });
        }
        let least = least_quarantine(ttl, margin_permille);
        if quarantine < least {
            faults.push(TimingError::QuarantineTooShort { quarantine, ttl, margin_permille, least });
        }
    }

    /// The key's expiry on the nodes, in whole milliseconds.
    #[must_use]
    pub const fn ttl(&self) -> Duration {
        self.ttl
    }

    /// How much clock rates may differ, in thousandths.
    #[must_use]
    pub const fn margin_permille(&self) -> u32 {
        self.margin_permille
    }

    /// How often each node's lease is extended.
    #[must_use]
    pub const fn renew(&self) -> Duration {
        self.renew
    }

    /// How long one node may take to answer.
    #[must_use]
    pub const fn node_timeout(&self) -> Duration {
        self.node_timeout
    }

    /// How long before the deadline the work has to stop.
    #[must_use]
    pub const fn grace(&self) -> Duration {
        self.grace
    }

    /// How long a node that may have forgotten a grant has no vote, in whole milliseconds.
    #[must_use]
    pub const fn quarantine(&self) -> Duration {
        self.quarantine
    }

    /// How long name, TCP, TLS and AUTH may take together.
    #[must_use]
    pub const fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// How long the guarded work may take to stop in a voluntary step-down.
    #[must_use]
    pub const fn stop_timeout(&self) -> Duration {
        self.stop_timeout
    }

    /// How long extends go on between telling and releasing on resign; zero is not at all.
    #[must_use]
    pub const fn handover_delay(&self) -> Duration {
        self.handover_delay
    }

    /// Failed rounds after which to step down even if time is left; 0 is never.
    #[must_use]
    pub const fn max_failed_extends(&self) -> u32 {
        self.max_failed_extends
    }

    /// How long a node's grant blocks everyone else on our clock, from before it was asked: ttl x (1 - margin).
    #[must_use]
    pub fn validity(&self) -> Duration {
        self.ttl * (1000 - self.margin_permille) / 1000
    }
}

/// ttl x (1 + margin), rounded up to what Redis counts in.
fn least_quarantine(ttl: Duration, margin_permille: u32) -> Duration {
    let millis = ttl.as_millis() * u128::from(1000 + margin_permille);
    Duration::from_millis(u64::try_from(millis.div_ceil(1000)).unwrap_or(u64::MAX))
}

fn check_range(flag: &'static str, given: Duration, least: Duration, most: Duration, faults: &mut Vec<TimingError>) {
    if given < least {
        faults.push(TimingError::TooShort { flag, given, least });
    } else if given > most {
        faults.push(TimingError::TooLong { flag, given, most });
    }
}

fn check_whole_millis(flag: &'static str, given: Duration, faults: &mut Vec<TimingError>) {
    if !given.subsec_nanos().is_multiple_of(1_000_000) {
        faults.push(TimingError::Fraction { flag, given });
    }
}

/// A duration as a person writes it in a flag: `6.2s`, `400ms`, `24h`.
pub(crate) struct Short(pub(crate) Duration);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let duration = self.0;
        let (whole, unit, in_unit) = match duration.as_nanos() {
            0 => return f.write_str("0s"),
            1..1_000 => (duration.as_nanos(), "ns", 1),
            1_000..1_000_000 => (duration.as_nanos(), "us", 1_000),
            1_000_000..1_000_000_000 => (duration.as_nanos(), "ms", 1_000_000),
            nanos if nanos >= 7_200_000_000_000 && nanos.is_multiple_of(3_600_000_000_000) => {
                (nanos, "h", 3_600_000_000_000)
            }
            nanos => (nanos, "s", 1_000_000_000),
        };
        let fraction = format!("{:09}", (whole % in_unit) * (1_000_000_000 / in_unit.min(1_000_000_000)));
        match fraction.trim_end_matches('0') {
            "" => write!(f, "{}{unit}", whole / in_unit),
            digits => write!(f, "{}.{digits}{unit}", whole / in_unit),
        }
    }
}

/// Thousandths as a person writes them in `--clock-margin`: `10%`, `12.5%`.
pub(crate) struct Percent(pub(crate) u32);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 10, self.0 % 10) {
            (whole, 0) => write!(f, "{whole}%"),
            (whole, tenth) => write!(f, "{whole}.{tenth}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn faults(wish: &Wish) -> Vec<String> {
        Timing::new(wish).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn defaults_follow_from_the_ttl() {
        let timing = Timing::new(&Wish::with_ttl(ms(8000))).unwrap();
        assert_eq!(timing.renew(), ms(2000));
        assert_eq!(timing.node_timeout(), ms(400));
        assert_eq!(timing.grace(), ms(1000));
        assert_eq!(timing.quarantine(), ms(8800));
        assert_eq!(timing.connect_timeout(), ms(2000));
        assert_eq!(timing.validity(), ms(7200));
        let timing = Timing::new(&Wish::with_ttl(ms(101))).unwrap();
        assert_eq!(timing.quarantine(), ms(112), "rounded up to what Redis counts in");
        assert_eq!(timing.connect_timeout(), ms(1000));
        assert_eq!(timing.validity(), Duration::from_micros(90_900));
    }

    #[test]
    fn every_ttl_in_range_is_safe_with_its_defaults() {
        for ttl in [ms(100), ms(101), ms(333), ms(8000), DAY] {
            for margin_permille in [1, 100, 125, 500] {
                assert_eq!(faults(&Wish { margin_permille, ..Wish::with_ttl(ttl) }), [""; 0], "{ttl:?}");
            }
        }
    }

    #[test]
    fn an_unsafe_wish_is_refused_with_the_flags_and_the_numbers() {
        let wish = || Wish::with_ttl(ms(8000));
        for (wish, expected) in [
            (Wish::with_ttl(ms(99)), "--ttl 99ms must be at least 100ms"),
            (Wish::with_ttl(Duration::ZERO), "--ttl 0s must be at least 100ms"),
            (Wish::with_ttl(ms(86_400_001)), "--ttl 86400.001s must be at most 24h"),
            (Wish::with_ttl(Duration::from_secs(u64::MAX)), "--ttl 18446744073709551615s must be at most 24h"),
            (Wish::with_ttl(Duration::from_micros(100_500)), "--ttl 100.5ms must be in whole milliseconds"),
            (Wish { margin_permille: 0, ..wish() }, "--clock-margin 0% must be more than 0% and at most 50%"),
            (Wish { margin_permille: 501, ..wish() }, "--clock-margin 50.1% must be more than 0% and at most 50%"),
            (Wish { renew: Some(Duration::ZERO), ..wish() }, "--renew-every 0s must be at least 1ms"),
            (Wish { node_timeout: Some(Duration::ZERO), ..wish() }, "--node-timeout 0s must be at least 1ms"),
            (Wish { grace: Some(Duration::ZERO), ..wish() }, "--grace 0s must be at least 1ms"),
            (Wish { connect_timeout: Some(Duration::ZERO), ..wish() }, "--connect-timeout 0s must be at least 1ms"),
            (Wish { stop_timeout: Duration::ZERO, ..wish() }, "--stop-timeout 0s must be at least 1ms"),
            (Wish { handover_delay: ms(90_000_000), ..wish() }, "--handover-delay 25h must be at most 24h"),
            (Wish { quarantine: Some(ms(604_800_001)), ..wish() }, "--quarantine 604800.001s must be at most 168h"),
            (
                Wish { renew: Some(ms(6000)), ..wish() },
                "--renew-every 6s + 2 x --node-timeout 400ms must be less than \
                 --ttl 8s x (1 - 10%) - --grace 1s = 6.2s",
            ),
            (
                Wish { renew: Some(ms(5400)), ..wish() },
                "--renew-every 5.4s + 2 x --node-timeout 400ms must be less than \
                 --ttl 8s x (1 - 10%) - --grace 1s = 6.2s",
            ),
            (
                Wish { node_timeout: Some(ms(2001)), ..wish() },
                "--renew-every 2s must be at least --node-timeout 2.001s: a node answers one round before the next",
            ),
            (Wish { grace: Some(ms(7200)), ..wish() }, "--grace 7.2s must be less than --ttl 8s x (1 - 10%) = 7.2s"),
            (
                Wish { quarantine: Some(ms(8799)), ..wish() },
                "--quarantine 8.799s must be at least --ttl 8s x (1 + 10%) = 8.8s",
            ),
        ] {
            assert_eq!(faults(&wish), [expected]);
        }
    }

    #[test]
    fn all_faults_are_told_at_once() {
        let wish = Wish {
            margin_permille: 900,
            renew: Some(Duration::ZERO),
            quarantine: Some(Duration::from_nanos(1)),
            ..Wish::with_ttl(ms(1))
        };
        assert_eq!(faults(&wish).len(), 5);
        let wish = Wish { grace: Some(ms(8000)), quarantine: Some(ms(1)), ..Wish::with_ttl(ms(8000)) };
        assert_eq!(faults(&wish).len(), 2);
    }
}
