//! Who does the work of which leadership: at most one call of each.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::clock::BootTimer;
use crate::election::watch::Watch;
use crate::redsync::reply::Token;

/// What the calls that lead and the warden share.
#[derive(Debug, Default)]
pub(super) struct Terms {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    /// The leadership whose work is going on.
    pub(super) claimed: Option<Token>,
    /// The last one whose work has ended, or that had none and has been given back.
    pub(super) over: Option<Token>,
    pub(super) is_shut_down: bool,
}

impl Terms {
    /// The work of the leadership `token`, for whoever asks first.
    pub(super) fn claim(this: &Arc<Self>, token: Token) -> Option<Term> {
        let mut state = this.lock();
        if state.claimed.is_some() || state.over >= Some(token) {
            return None;
        }
        state.claimed = Some(token);
        drop(state);
        Some(Term { terms: Arc::clone(this), token })
    }

    /// Nobody will ask any more.
    pub(super) fn shut_down(&self) {
        self.lock().is_shut_down = true;
        self.changed.notify_one();
    }

    /// The state; and, if nobody works for the leadership `ended` any more, that nobody ever will.
    pub(super) fn look(&self, ended: Option<Token>) -> State {
        let mut state = self.lock();
        if ended.is_some() && state.claimed != ended {
            state.over = state.over.max(ended);
        }
        *state
    }

    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Nothing that is done under the lock can panic half-way.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The work of one leadership is going on. Dropped when nothing of it runs any more.
#[derive(Debug)]
pub(super) struct Term {
    terms: Arc<Terms>,
    token: Token,
}

impl Term {
    pub(super) const fn token(&self) -> Token {
        self.token
    }

    /// Waits until the work has to stop.
    pub(super) async fn is_over(&self, watch: &mut Watch, timer: &BootTimer) {
        loop {
            let leadership = watch.leadership();
            let is_leading = leadership.is_leading(watch.now());
            let belief = leadership.belief.as_ref().filter(|belief| is_leading && belief.token == self.token);
            let Some(belief) = belief else { return };
            if !matches!(watch.turned(timer, Some(belief.work_until)).await, Ok(true)) {
                return;
            }
        }
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        let mut state = self.terms.lock();
        state.claimed = None;
        state.over = state.over.max(Some(self.token));
        drop(state);
        self.terms.changed.notify_one();
    }
}
