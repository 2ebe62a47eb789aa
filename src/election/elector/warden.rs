//! Tells the election what has become of the work: on the election's thread, so that it depends on no caller's runtime.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::term::Terms;
use crate::election::event::StepDown;
use crate::election::request::Request;
use crate::election::watch::Watch;

/// Runs until the election has ended. A leadership whose work is over is given up, and one that has no work is no reason
/// to wait for any.
pub(super) async fn watch_over(
    terms: Arc<Terms>,
    mut watch: Watch,
    requests: mpsc::Sender<Request>,
    stand_back: Duration,
) {
    let (mut resigned, mut stopped, mut is_shut_down) = (None, None, false);
    loop {
        let leadership = watch.leadership();
        let is_leading = leadership.is_leading(watch.now());
        let leading = leadership.belief.as_ref().filter(|_| is_leading).map(|belief| belief.token);
        let state = terms.look(leadership.work.filter(|work| leading != Some(*work)));
        let mut due = Vec::new();
        if state.is_shut_down && !is_shut_down {
            is_shut_down = true;
            due.push(Request::Shutdown);
        }
        if leading.is_some() && state.over == leading && resigned != leading {
            resigned = leading;
            due.push(Request::Resign { reason: StepDown::Resign, stand_back });
        }
        if leadership.work.is_some() && state.over == leadership.work && stopped != leadership.work {
            stopped = leadership.work;
            due.extend(leadership.work.map(Request::WorkStopped));
        }
        for request in due {
            if requests.send(request).await.is_err() {
                return;
            }
        }
        tokio::select! {
            more = watch.changed() => if !more { return },
            () = terms.changed() => {}
        }
    }
}
