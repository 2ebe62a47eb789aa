//! What is done over and over on a thread of its own, until somebody asks what came of it.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::wait::let_time_pass;

/// Looks until it is finished, or dropped by a row that panics.
pub struct Repeated<S> {
    /// The thread looks for as long as somebody holds this.
    wanted: Arc<()>,
    thread: JoinHandle<S>,
}

impl<S: Default + Send + 'static> Repeated<S> {
    /// Looks from now on, and lets so much time pass after each look.
    pub fn start(between: Duration, mut look: impl FnMut(&mut S) + Send + 'static) -> Self {
        let wanted = Arc::new(());
        let still = Arc::downgrade(&wanted);
        let thread = std::thread::spawn(move || {
            let mut seen = S::default();
            while still.strong_count() > 0 {
                look(&mut seen);
                let_time_pass("looks are spread over time", between);
            }
            seen
        });
        Self { wanted, thread }
    }

    /// Ends; what all the looks have made of it.
    #[track_caller]
    pub fn finish(self) -> S {
        drop(self.wanted);
        self.thread.join().expect("no look panics")
    }
}
