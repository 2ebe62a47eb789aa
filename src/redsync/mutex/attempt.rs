//! Locking: tries with pauses between them, a clean-up behind each that failed, and behind a caller who went away.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock::{self, BootTimer, Moment};
use crate::redsync::reply::{Input, NodeIndex, Outcome, Reply, Step};

use super::error::MutexError;
use super::nodes::{Nodes, Question};
use super::options::Options;

/// What is locked, and how. One for all calls of a mutex.
#[derive(Clone, Debug)]
pub(super) struct Lock {
    pub(super) nodes: Arc<Nodes>,
    pub(super) order: Arc<[NodeIndex]>,
    pub(super) name: Arc<str>,
    pub(super) options: Options,
}

/// A lock that was taken for a caller. Unless he takes it over, it is given up.
pub(super) struct Grant {
    lock: Lock,
    value: String,
    until: Moment,
    is_taken_over: bool,
}

impl Grant {
    /// The value and the deadline. From here on the caller answers for the key.
    pub(super) fn take_over(mut self) -> (String, Moment) {
        self.is_taken_over = true;
        (std::mem::take(&mut self.value), self.until)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if !self.is_taken_over {
            self.lock.send_release(&self.value);
        }
    }
}

impl Lock {
    /// Tries until it is locked, the tries are used up, or the caller is gone, which ends `caller`.
    pub(super) async fn acquire(
        self,
        tries: u32,
        mut value: String,
        mut caller: oneshot::Receiver<()>,
    ) -> Result<Grant, MutexError> {
        let timer = BootTimer::new().map_err(|source| self.system(source))?;
        let mut last = None;
        for attempt in 0..tries {
            if attempt > 0 {
                let delay = self.options.delay.before(attempt);
                timer.arm(clock::now() + delay).map_err(|source| self.system(source))?;
                tokio::select! {
                    biased;
                    _ = &mut caller => return Err(self.cancelled(&[])),
                    fired = timer.fired() => fired.map_err(|source| self.system(source))?,
                }
            }
            let question = self.question(&value, self.acquire_step(), self.options.timeout());
            let votes = tokio::select! {
                biased;
                _ = &mut caller => {
                    return Err(self.cancel(&value, &timer).await);
                }
                votes = self.nodes.ask(&question, self.options.is_fail_fast) => votes,
            };
            if votes.is_granted()
                && let Some(until) = votes.until().map(|until| until - self.options.drift())
                && clock::now() < until
            {
                return Ok(Grant { lock: self, value, until, is_taken_over: false });
            }
            last = Some(votes);
            if self.clean_up(&value).await && attempt + 1 < tries {
                value = self.draw_value()?;
            }
        }
        Err(match last {
            Some(votes) => votes.into_error(&self.name, self.nodes.names()),
            None => MutexError::NoTries { lock: self.name.to_string() },
        })
    }

    /// Releases on every node and waits, as long as a try. True if a node has not answered, so that the value may be
    /// set or deleted there later.
    async fn clean_up(&self, value: &str) -> bool {
        let question = self.question(value, Step::Release, self.options.timeout());
        self.nodes.ask(&question, self.options.is_fail_fast).await.has_unknown()
    }

    /// Cleans up behind a caller who does not want the lock any more, and waits no longer than a try for it; what could
    /// not be sent until then is sent later.
    async fn cancel(&self, value: &str, timer: &BootTimer) -> MutexError {
        let mut open = self.nodes.names().to_vec();
        let mut replies = self.nodes.send(&self.question(value, Step::Release, self.options.expiry));
        if let Err(source) = timer.arm(clock::now() + self.options.timeout()) {
            return self.system(source);
        }
        loop {
            tokio::select! {
                biased;
                input = replies.recv() => match input {
                    Some(Input::Reply(Reply { node, outcome: Outcome::Plain { .. }, .. })) => {
                        open.retain(|name| *name != self.nodes.names()[node]);
                    }
                    Some(Input::Reply(_) | Input::Node(_)) => {}
                    None => break,
                },
                _ = timer.fired() => break,
            }
        }
        self.cancelled(&open)
    }

    /// Releases on every node without waiting. It is of use for as long as the key can be there.
    pub(super) fn send_release(&self, value: &str) {
        drop(self.nodes.send(&self.question(value, Step::Release, self.options.expiry)));
    }

    pub(super) fn draw_value(&self) -> Result<String, MutexError> {
        self.options.draw_value().map_err(|source| MutexError::Value { lock: self.name.to_string(), source })
    }

    pub(super) fn question<'a>(&'a self, value: &'a str, step: Step, timeout: Duration) -> Question<'a> {
        Question { order: &self.order, key: &self.name, value, step, timeout }
    }

    pub(super) fn system(&self, source: io::Error) -> MutexError {
        MutexError::System { lock: self.name.to_string(), source }
    }

    pub(super) fn cancelled(&self, nodes: &[String]) -> MutexError {
        MutexError::Cancelled { lock: self.name.to_string(), nodes: nodes.into() }
    }

    const fn acquire_step(&self) -> Step {
        Step::Acquire { ttl: self.options.expiry }
    }

    pub(super) const fn extend_step(&self) -> Step {
        Step::Extend { ttl: self.options.expiry, or_create: self.options.creates_on_extend }
    }
}
