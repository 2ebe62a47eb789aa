//! How a lock is taken: every option of Redsync v4, with its default.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;

use crate::clock::millis;

/// How a [`Mutex`](crate::redsync::Mutex) or a [`LockHolder`](crate::redsync::LockHolder) locks.
///
/// ```
/// use std::time::Duration;
/// use redleader::redsync::Options;
///
/// let options = Options::new()
///     .expiry(Duration::from_secs(60))
///     .tries(100)
///     .retry_delay(Duration::from_millis(100));
/// ```
#[derive(Clone)]
pub struct Options {
    pub(super) expiry: Duration,
    pub(super) tries: u32,
    pub(super) delay: Delay,
    pub(super) drift_factor: f64,
    pub(super) timeout_factor: f64,
    pub(super) value: Option<String>,
    pub(super) value_function: ValueFunction,
    pub(super) is_fail_fast: bool,
    pub(super) is_shuffled: bool,
    pub(super) creates_on_extend: bool,
}

type ValueFunction = Arc<dyn Fn() -> Result<String, Box<dyn Error + Send + Sync>> + Send + Sync>;

/// How long to wait before a retry.
#[derive(Clone)]
pub(super) enum Delay {
    /// Whole milliseconds by chance, from 50 to 249.
    Chance,
    Fixed(Duration),
    Function(Arc<dyn Fn(u32) -> Duration + Send + Sync>),
}

/// The key's expiry that Redsync's users expect.
const EXPIRY: Duration = Duration::from_secs(8);

/// The shortest expiry that the wire can say.
const SHORTEST: Duration = Duration::from_millis(1);

impl Default for Options {
    fn default() -> Self {
        Self {
            expiry: EXPIRY,
            tries: 32,
            delay: Delay::Chance,
            drift_factor: 0.01,
            timeout_factor: 0.05,
            value: None,
            value_function: Arc::new(random_value),
            is_fail_fast: false,
            is_shuffled: false,
            creates_on_extend: false,
        }
    }
}

impl Options {
    /// The defaults of Redsync v4.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How long the key lives unless it is extended (`WithExpiry`; default 8 s). Parts of a millisecond are cut off;
    /// the least is 1 ms.
    #[must_use]
    pub fn expiry(mut self, expiry: Duration) -> Self {
        self.expiry = Duration::from_millis(millis(expiry)).max(SHORTEST);
        self
    }

    /// How often to try (`WithTries`; default 32). With the default delay, 32 tries last from 1.5 to 7.8 s: too short
    /// to outwait a holder that crashed right after it locked. `u32::MAX` is as good as for ever; 0 is refused with
    /// [`MutexError::NoTries`](crate::redsync::MutexError::NoTries).
    #[must_use]
    pub const fn tries(mut self, tries: u32) -> Self {
        self.tries = tries;
        self
    }

    /// The same pause before each retry (`WithRetryDelay`). Default: by chance from 50 to 249 ms, so that waiters do
    /// not split the vote again and again.
    #[must_use]
    pub fn retry_delay(mut self, delay: Duration) -> Self {
        self.delay = Delay::Fixed(delay);
        self
    }

    /// The pause before each retry, from the retry's number, which begins at 1 (`WithRetryDelayFunc`). It is called on
    /// the lock's own thread and must not block.
    #[must_use]
    pub fn retry_delay_fn(mut self, delay: impl Fn(u32) -> Duration + Send + Sync + 'static) -> Self {
        self.delay = Delay::Function(Arc::new(delay));
        self
    }

    /// The part of the expiry by which clocks may run apart while it lasts, from 0 to 1 (`WithDriftFactor`; default
    /// 0.01): so much earlier ends the trust in a lock. What is no number counts as the default.
    #[must_use]
    pub fn drift_factor(mut self, factor: f64) -> Self {
        self.drift_factor = if factor.is_nan() { Self::default().drift_factor } else { factor.clamp(0.0, 1.0) };
        self
    }

    /// The part of the expiry that a try may take, and its clean-up again (`WithTimeoutFactor`; default 0.05: 400 ms
    /// at 8 s), at least 0. Extend, unlock and valid have the node's own timeout. What is no number counts as the
    /// default.
    #[must_use]
    pub fn timeout_factor(mut self, factor: f64) -> Self {
        self.timeout_factor = if factor.is_nan() { Self::default().timeout_factor } else { factor.max(0.0) };
        self
    }

    /// The value of a lock that somebody else took, to extend, unlock or validate it from here (`WithValue`). Locking
    /// does not use it, and replaces it.
    #[must_use]
    pub fn value(mut self, value: impl Into<String>) -> Self {
        self.value = Some(value.into()).filter(|value| !value.is_empty());
        self
    }

    /// What makes the value, once per lock (`WithGenValueFunc`); default 16 random bytes as base64. Two locks must
    /// never have the same. It is called again within one lock only if a node did not answer a clean-up: a value that
    /// may still be under way to a node is never used again.
    #[must_use]
    pub fn value_fn<E: Into<Box<dyn Error + Send + Sync>>>(
        mut self,
        function: impl Fn() -> Result<String, E> + Send + Sync + 'static,
    ) -> Self {
        self.value_function = Arc::new(move || function().map_err(Into::into));
        self
    }

    /// Whether to come back as soon as a quorum has granted or refused, and not to wait for the slowest node
    /// (`WithFailFast`; default false). The other nodes are asked all the same, and cleaned up in order.
    #[must_use]
    pub const fn fail_fast(mut self, is_fail_fast: bool) -> Self {
        self.is_fail_fast = is_fail_fast;
        self
    }

    /// Whether to ask the nodes in an order of the mutex's own, drawn when it is made (`WithShufflePools`; default
    /// false). All are asked at once, so the effect is small.
    #[must_use]
    pub const fn shuffle(mut self, is_shuffled: bool) -> Self {
        self.is_shuffled = is_shuffled;
        self
    }

    /// Whether an extend sets the key where it is missing (`WithSetNXOnExtend`; default false): it repairs nodes that
    /// have forgotten it, and takes a lock that expired again, whoever had it in between.
    #[must_use]
    pub const fn set_nx_on_extend(mut self, creates: bool) -> Self {
        self.creates_on_extend = creates;
        self
    }

    pub(super) fn drift(&self) -> Duration {
        part(self.expiry, self.drift_factor)
    }

    pub(super) fn timeout(&self) -> Duration {
        part(self.expiry, self.timeout_factor)
    }

    /// A fresh value.
    pub(super) fn draw_value(&self) -> Result<String, Box<dyn Error + Send + Sync>> {
        let value = (self.value_function)()?;
        if value.is_empty() { Err("it is empty".into()) } else { Ok(value) }
    }
}

impl Delay {
    /// The pause before the `retry`-th retry, from 1.
    pub(super) fn before(&self, retry: u32) -> Duration {
        match self {
            Self::Chance => Duration::from_millis(50 + chance(200)),
            Self::Fixed(delay) => *delay,
            Self::Function(function) => function(retry),
        }
    }
}

/// As much as a `Duration` holds.
fn part(whole: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(whole.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

fn random_value() -> Result<String, Box<dyn Error + Send + Sync>> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(base64::engine::general_purpose::STANDARD.encode(bytes))
}

/// A number below `limit`. Without random bytes the waiters are in step, and no worse.
pub(super) fn chance(limit: u64) -> u64 {
    getrandom::u64().unwrap_or(0) % limit.max(1)
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("expiry", &self.expiry).field("tries", &self.tries).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_redsync_v4() {
        let options = Options::new();
        assert_eq!((options.expiry, options.tries), (Duration::from_secs(8), 32));
        assert_eq!((options.drift(), options.timeout()), (Duration::from_millis(80), Duration::from_millis(400)));
        assert!(!options.is_fail_fast && !options.is_shuffled && !options.creates_on_extend);
        let value = options.draw_value().unwrap();
        assert!(value.len() == 24 && value.ends_with("=="), "{value}");
        assert_ne!(value, options.draw_value().unwrap());
        for retry in 1..500 {
            let delay = options.delay.before(retry);
            assert!((Duration::from_millis(50)..Duration::from_millis(250)).contains(&delay), "{delay:?}");
        }
    }

    #[test]
    fn no_number_makes_a_lock_that_never_ends_or_panics() {
        for (factor, drift) in [(f64::NAN, 80), (-1.0, 0), (0.5, 4000), (7.0, 8000), (f64::INFINITY, 8000)] {
            assert_eq!(Options::new().drift_factor(factor).drift(), Duration::from_millis(drift), "{factor}");
        }
        assert_eq!(Options::new().timeout_factor(f64::INFINITY).timeout(), Duration::MAX);
        assert_eq!(Options::new().expiry(Duration::ZERO).expiry, Duration::from_millis(1));
        assert_eq!(Options::new().expiry(Duration::from_micros(1999)).expiry, Duration::from_millis(1));
    }
}
