//! App health as a condition of leadership: who is sick makes way for the healthy, and leads when nobody else does.
//!
//! Replicas do not talk to each other, so what a sick one knows of the others is what the lock tells: a healthy one would
//! take a lock that is free. Where nobody does for the app grace, all are sick, and a sick leader is better than none.
//! Such a leader is *degraded*: after each app grace it makes way once, so that one which has recovered can win.

use std::time::Duration;

use super::{Core, Phase};
use crate::clock::Moment;
use crate::election::event::StepDown;

/// What is known of the app.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AppHealth {
    /// For how long a lock must have been free before a sick one takes it; `None`: it never does.
    grace: Option<Duration>,
    is_healthy: bool,
    /// From when on a sick one may campaign, if nobody is seen to hold the lock until then.
    fit_at: Option<Moment>,
    /// Leaderships in a row that the app was too sick to keep.
    relapses: u32,
}

impl AppHealth {
    /// An app that is a condition counts as sick until it is said to be healthy.
    pub(super) const fn new(grace: Option<Duration>) -> Self {
        Self { grace, is_healthy: grace.is_none(), fit_at: None, relapses: 0 }
    }

    pub(super) fn is_fit(&self, now: Moment) -> bool {
        self.is_healthy || self.fit_at.is_some_and(|fit_at| fit_at <= now)
    }

    /// When it may campaign, as far as the app is concerned; `None` while there is no telling.
    pub(super) fn fit_at(&self, now: Moment) -> Option<Moment> {
        if self.is_healthy { Some(now) } else { self.fit_at }
    }

    /// What everyone gets to see; `None` where the app is no condition.
    pub(super) fn view(&self) -> Option<bool> {
        self.grace.map(|_| self.is_healthy)
    }

    /// A quorum would grant the lock to whoever asks.
    pub(super) fn note_vacant(&mut self, now: Moment) {
        if let Some(grace) = self.grace {
            self.fit_at.get_or_insert(now + grace);
        }
    }

    /// Somebody holds the lock, or has just released it: there is one that is well enough to lead.
    pub(super) const fn note_taken(&mut self) {
        self.fit_at = None;
    }

    /// When a leadership that begins now makes way for others, because the app is sick.
    pub(super) fn yields_at(&self, now: Moment) -> Option<Moment> {
        self.grace.filter(|_| !self.is_healthy).map(|grace| now + grace)
    }
}

impl Core {
    pub(super) fn handle_health(&mut self, now: Moment, healthy: bool) {
        if healthy == self.app.is_healthy {
            return;
        }
        self.app.is_healthy = healthy;
        self.app.fit_at = None;
        if !healthy {
            self.cancel_attempt(now);
            return self.step_down(now, StepDown::AppUnhealthy);
        }
        match &mut self.phase {
            Phase::Leading(leading) => leading.yields_at = None,
            Phase::Waiting { look_at } => *look_at = (*look_at).min(now.max(self.barred_until)),
            Phase::Looking(_) | Phase::Asking(_) | Phase::Stopping => {}
        }
    }

    /// For how long it stands back that has stepped down because of its app: long enough for any healthy one to win, also
    /// without the lock's channel. An app that fails again as soon as it leads stands back for twice as long each time.
    pub(super) fn stand_back_for_app(&mut self, now: Moment, since: Moment, is_degraded: bool) {
        let pause = self.timing.ttl() * 3 / 4;
        let grace = self.app.grace.unwrap_or_default();
        if is_degraded {
            // Nobody else led when it began; if nobody does after the pause either, it goes on.
            self.app.fit_at = Some(now);
            self.barred_until = self.barred_until.max(now + pause);
            return;
        }
        if now.since(since) >= grace {
            self.app.relapses = 0;
        }
        let pause = pause.saturating_mul(1 << self.app.relapses.min(16)).min(grace.max(pause));
        self.app.relapses = self.app.relapses.saturating_add(1);
        self.barred_until = self.barred_until.max(now + pause);
    }
}
