//! Steps of plain locks on a node: many locks share its connection, and everything goes down it in order.
//!
//! The order is what makes a clean-up right: a release that is asked for after an acquire is executed after it, however
//! late the server is, for both are in one stream. So steps are whole scripts (a NOSCRIPT would change the order), and
//! the connection is replaced only when it is broken or has been quiet for too long.

use std::collections::VecDeque;

use crate::clock::Moment;
use crate::redsync::error::Failure;
use crate::redsync::node::Node;
use crate::redsync::node::connection::{Connection, Lane, Pending};
use crate::redsync::reply::{Kind, Outcome, Plain, Step, What};

/// Steps that may wait for the connection. More of them say that the node is not there, and fail at once.
const WAITING: usize = 1024;

impl Node {
    pub(super) fn handle_plain(&mut self, pending: Pending) {
        // An acquire that was never written needs no clean-up, and must not be written after it.
        for older in self.take_plain(|older| is_cleaned_up_by(older, &pending)) {
            older.give_up(self.index, Outcome::Unsent);
        }
        if self.plain.len() < WAITING {
            self.plain.push_back(pending);
        } else {
            pending.give_up(self.index, Outcome::Failed(Kind::Timeout));
        }
    }

    pub(super) fn write_plain(&mut self) {
        let Some(connection) = &mut self.current else { return };
        while connection.is_free(Lane::Plain) {
            let Some(pending) = self.plain.pop_front() else { return };
            connection.send(pending, &self.scripts, &mut self.tasks);
        }
    }

    /// Gives up what has had its time before it was written, and a connection that has been quiet for too long.
    pub(super) async fn expire_plain(&mut self, now: Moment) {
        for pending in self.take_plain(|pending| pending.deadline <= now) {
            pending.give_up(self.index, Outcome::Failed(Kind::Timeout));
        }
        let is_quiet = |connection: &&Connection| connection.quiet_until.is_some_and(|moment| moment <= now);
        if let Some(id) = self.current.as_ref().filter(is_quiet).map(|connection| connection.id) {
            self.close(id, Failure::new(Kind::Timeout, "nothing was heard since a request timed out")).await;
        }
    }

    fn take_plain(&mut self, is_taken: impl Fn(&Pending) -> bool) -> VecDeque<Pending> {
        let (taken, kept) = std::mem::take(&mut self.plain).into_iter().partition(is_taken);
        self.plain = kept;
        taken
    }

    /// Whether anything of a plain lock waits for its answer.
    pub(super) fn has_plain(&self) -> bool {
        let open = [&self.current, &self.retired].into_iter().flatten().flat_map(|connection| &connection.flights);
        !self.plain.is_empty() || open.into_iter().any(|flight| flight.lane == Lane::Plain)
    }
}

fn is_cleaned_up_by(older: &Pending, newer: &Pending) -> bool {
    let (What::Plain(older), What::Plain(newer)) = (&older.ask.what, &newer.ask.what) else { return false };
    is_acquire(older) && newer.step == Step::Release && older.key == newer.key && older.value == newer.value
}

const fn is_acquire(plain: &Plain) -> bool {
    matches!(plain.step, Step::Acquire { .. })
}
