//! What is to be told: leadership as the publishers see it, which changes only when there is something to tell.

use std::time::SystemTime;

use tokio::sync::watch;

use crate::clock::{BootTimer, Moment};
use crate::election::event::StepDown;
use crate::election::leadership::Leadership;
use crate::election::watch::Watch;
use crate::redsync::name::Identity;
use crate::redsync::reply::Token;
use crate::wall;

/// What is to be told, as of its moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Intent {
    /// Our leadership, while it lasts.
    pub(super) lead: Option<Lead>,
    /// How the last one that has ended did.
    pub(super) ended: Option<Ended>,
}

/// A leadership of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lead {
    pub(super) token: Token,
    /// When it began, in wall time, for people.
    pub(super) since: SystemTime,
    /// The identities of the last other holders that were seen, the latest first.
    pub(super) displaced: Vec<String>,
}

/// The end of a leadership of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) token: Token,
    pub(super) reason: StepDown,
}

/// Tells `intents` what `watch` says, until the election has ended.
pub(super) async fn follow(mut watch: Watch, timer: BootTimer, identity: Identity, intents: watch::Sender<Intent>) {
    let mut follower = Follower { identity, intent: Intent::default(), others: Vec::new() };
    loop {
        let (leadership, now) = (watch.leadership(), watch.now());
        let intent = follower.look(&leadership, now);
        intents.send_if_modified(|known| {
            let differs = *known != intent;
            known.clone_from(&intent);
            differs
        });
        // An election that hangs publishes nothing when its time is over.
        let end = leadership.belief.as_ref().filter(|_| intent.lead.is_some()).map(|belief| belief.work_until);
        let is_open = match watch.turned(&timer, end).await {
            Ok(is_open) => is_open,
            // What is published is told nevertheless.
            Err(_) => watch.changed().await,
        };
        if !is_open {
            // Whatever was published last, nobody leads any more.
            intents.send_modify(|intent| intent.end(StepDown::Shutdown));
            return;
        }
    }
}

impl Intent {
    fn end(&mut self, reason: StepDown) {
        if let Some(lead) = self.lead.take() {
            self.ended = Some(Ended { token: lead.token, reason });
        }
    }
}

/// Makes an intent out of leadership as it changes.
struct Follower {
    identity: Identity,
    intent: Intent,
    /// Who else was seen to hold, the latest first.
    others: Vec<String>,
}

/// Holders that are kept in mind: a successor may fall before it has cleared what its predecessor left.
const OTHERS: usize = 4;

impl Follower {
    fn look(&mut self, leadership: &Leadership, now: Moment) -> Intent {
        if let Some(holder) = &leadership.holder
            && let Some(identity) = holder.owner.identity()
            && identity != self.identity.as_str()
        {
            self.others.retain(|known| known != identity);
            self.others.insert(0, identity.to_owned());
            self.others.truncate(OTHERS);
        }
        let belief = leadership.belief.as_ref();
        match belief.filter(|_| leadership.is_leading(now)) {
            Some(belief) if self.intent.lead.as_ref().is_none_or(|lead| lead.token != belief.token) => {
                let since = wall::time_of(belief.since, now);
                let lead = Lead { token: belief.token, since, displaced: self.others.clone() };
                // Two leaderships in a row, with nothing seen between them, are two all the same.
                self.intent.end(leadership.last_step_down.unwrap_or(StepDown::Expired));
                self.intent.lead = Some(lead);
            }
            Some(_) => {}
            None => {
                let reason = belief.and_then(|belief| belief.over(now)).or(leadership.last_step_down);
                self.intent.end(reason.unwrap_or(StepDown::Expired));
            }
        }
        self.intent.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::election::leadership::{Belief, Holder, State, Vote};
    use crate::redsync::name::Owner;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Moment {
        Moment::from_micros(seconds * 1_000_000)
    }

    fn standby(holder: &str) -> Leadership {
        let owner = Owner::new(&Identity::parse(holder).unwrap(), [7; 16]);
        let holder = Some(Holder { owner, token: None, until: at(1000) });
        Leadership { holder, ..Leadership::standby(&[], Vote::Unknown) }
    }

    fn leading(token: Token, until: Moment) -> Leadership {
        let belief = Belief {
            token,
            since: at(1),
            work_until: until,
            deadline: until + SECOND,
            extended_at: at(1),
            stepping_down: None,
        };
        Leadership { phase: State::Leader, belief: Some(belief), holder: None, ..standby("x") }
    }

    fn follower() -> Follower {
        Follower { identity: Identity::parse("me").unwrap(), intent: Intent::default(), others: Vec::new() }
    }

    fn lead_of(intent: &Intent) -> Option<(Token, String)> {
        intent.lead.as_ref().map(|lead| (lead.token, lead.displaced.join(" ")))
    }

    #[test]
    fn a_leadership_displaces_the_others_that_were_seen() {
        let mut follower = follower();
        assert_eq!(follower.look(&standby("a"), at(1)), Intent::default());
        follower.look(&standby("b"), at(2));
        // Our own earlier run is nobody else.
        follower.look(&standby("me"), at(3));
        assert_eq!(lead_of(&follower.look(&leading(7, at(10)), at(4))), Some((7, "b a".to_owned())));
        // An extend changes nothing.
        let first = follower.intent.clone();
        assert_eq!(follower.look(&leading(7, at(20)), at(5)), first);
    }

    #[test]
    fn belief_ends_by_time_and_by_word() {
        let mut follower = follower();
        follower.look(&leading(7, at(10)), at(4));
        let ended = |reason| Intent { lead: None, ended: Some(Ended { token: 7, reason }) };
        assert_eq!(follower.look(&leading(7, at(10)), at(10)), ended(StepDown::RenewTimeout));
        let mut follower = self::follower();
        follower.look(&leading(7, at(10)), at(4));
        assert_eq!(follower.look(&leading(7, at(10)), at(12)), ended(StepDown::Expired));
        let mut follower = self::follower();
        follower.look(&leading(7, at(10)), at(4));
        let mut resigning = leading(7, at(10));
        resigning.belief.as_mut().unwrap().stepping_down = Some(StepDown::Resign);
        assert_eq!(follower.look(&resigning, at(5)), ended(StepDown::Resign));
    }

    #[test]
    fn two_leaderships_with_nothing_seen_between_are_two() {
        let mut follower = follower();
        follower.look(&leading(7, at(10)), at(4));
        let again = Leadership { last_step_down: Some(StepDown::Lost), ..leading(9, at(20)) };
        let intent = follower.look(&again, at(12));
        assert_eq!(lead_of(&intent), Some((9, String::new())));
        assert_eq!(intent.ended, Some(Ended { token: 7, reason: StepDown::Lost }));
    }
}
