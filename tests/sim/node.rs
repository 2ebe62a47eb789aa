//! A node: what the five scripts of `src/redsync/*.lua` do to its two keys, as one function.

use redleader::redsync::name::Owner;
use redleader::redsync::reply::{Answer, Claim, Ended, Kind, Outcome, RunId, Token, Verdict, What};
use std::time::Duration;

use super::plant::Plant;

/// One server's data, and what it refuses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeState {
    pub run: RunId,
    pub lock: Option<Lock>,
    pub state: State,
    /// Commands that need memory are refused, or all writes.
    pub refuses: Option<Kind>,
    /// A bug of its scripts.
    pub planted: Option<Plant>,
}

/// The lock's key. `expires`: node time in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lock {
    pub owner: Owner,
    pub expires: Option<u64>,
}

/// The lock's state; times are node times in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    pub run: Option<RunId>,
    pub born: Option<u64>,
    pub token: Token,
    pub grant: Option<Token>,
    pub owner: Option<Owner>,
    pub ttl: u64,
    pub until: u64,
    pub over: Token,
    pub list: Option<String>,
    /// The token is no number.
    pub unreadable: bool,
}

impl NodeState {
    pub fn new(run: RunId) -> Self {
        Self { run, lock: None, state: State::default(), refuses: None, planted: None }
    }

    /// The lock's owner at this node time, in milliseconds. Redis lets a key live through its last millisecond.
    pub fn owner(&self, now: u64) -> Option<&Owner> {
        self.lock.as_ref().filter(|lock| lock.expires.is_none_or(|at| now <= at)).map(|lock| &lock.owner)
    }
}

/// One run of a script.
struct Run<'a> {
    node: &'a mut NodeState,
    now: u64,
    time_us: u64,
    /// Left of the quarantine.
    quarantine: u64,
    wrote: bool,
}

/// What the caller is told, and whether a release is published.
pub type Applied = (Outcome, bool);

/// One request at the node time `time_us`, whole or not at all, as a script is. `list`: the caller's list of nodes.
pub fn apply(node: &mut NodeState, time_us: u64, list: &str, what: &What) -> Applied {
    let now = time_us / 1000;
    if node.owner(now).is_none() {
        node.lock = None;
    }
    let mut run = Run { node, now, time_us, quarantine: 0, wrote: false };
    let answer = match what {
        What::Look { quarantine } => {
            run.look(millis_up(*quarantine), run.node.planted != Some(Plant::LooksWriteNoMarker))
        }
        What::Observe { quarantine } => run.look(millis_up(*quarantine), false),
        What::Acquire(claim) => run.acquire(claim, list),
        What::Extend(claim) => run.extend(claim, list),
        What::Release { owner, token, ended } => return run.release(owner, *token, *ended),
        What::Survey => {
            return (Outcome::Survey { subscribers: Some(3), list: run.node.state.list.clone() }, false);
        }
        What::Plain(_) => unreachable!("the core asks for no step of a plain lock"),
    };
    (answer.map_or_else(Outcome::Failed, Outcome::Answer), false)
}

impl Run<'_> {
    fn look(&mut self, quarantine: u64, writes: bool) -> Result<Answer, Kind> {
        let holder = self.holder();
        self.recall()?;
        self.look_at_marker(quarantine, writes)?;
        let wait = self.quarantine;
        if let Some(holder) = holder {
            let left = self.time_left(&holder, writes)?.map(|left| left.max(wait));
            return Ok(self.answer(Verdict::Seen, Some(holder), left));
        }
        if let Some(owed) = self.owed_to_another(None, writes)? {
            let owner = self.node.state.owner.clone();
            return Ok(self.answer(Verdict::Seen, owner, Some(owed.max(wait))));
        }
        Ok(self.answer(Verdict::Free, None, Some(wait)))
    }

    fn acquire(&mut self, claim: &Claim, list: &str) -> Result<Answer, Kind> {
        let (ttl, token, owner) = (millis_up(claim.ttl), claim.token, &claim.owner);
        let holder = self.holder();
        self.recall()?;
        self.look_at_marker(millis_up(claim.quarantine), true)?;
        if self.quarantine > 0 {
            let left = self.quarantine;
            return Ok(self.answer(Verdict::Quarantined, holder, Some(left)));
        }
        if let Some(holder) = holder {
            if holder != *owner {
                let left = self.time_left(&holder, true)?;
                return Ok(self.answer(Verdict::Held, Some(holder), left));
            }
            if !self.has(Plant::RegrantKeepsExpiry) {
                self.set_expiry(ttl)?;
                self.may_grow()?;
                (self.node.state.until, self.node.state.ttl) = (self.now + ttl, ttl);
            }
            if self.has(Plant::RegrantKeepsToken) {
                let mut answer = self.answer(Verdict::Granted, Some(owner.clone()), Some(ttl));
                answer.token = answer.token.max(token);
                return Ok(answer);
            }
            let state = &mut self.node.state;
            if token > state.token {
                state.token = token;
                if state.owner.as_ref() == Some(owner) {
                    state.grant = Some(token);
                }
            }
            return Ok(self.answer(Verdict::Granted, Some(owner.clone()), Some(ttl)));
        }
        if let Some(owed) = self.owed_to_another(Some(owner), true)? {
            let owner = self.node.state.owner.clone();
            return Ok(self.answer(Verdict::Held, owner, Some(owed)));
        }
        if token <= self.node.state.token {
            return Ok(self.answer(Verdict::Outdated, None, Some(0)));
        }
        self.may_grow()?;
        self.node.state.token = token;
        self.write_state(claim, list);
        self.node.lock = Some(Lock { owner: owner.clone(), expires: Some(self.now + ttl) });
        Ok(self.answer(Verdict::Granted, Some(owner.clone()), Some(ttl)))
    }

    fn extend(&mut self, claim: &Claim, list: &str) -> Result<Answer, Kind> {
        let (ttl, token, owner) = (millis_up(claim.ttl), claim.token, &claim.owner);
        let holder = self.holder();
        if holder.as_ref() == Some(owner) || holder.is_some() && self.has(Plant::ExtendOfAnyOwner) {
            self.set_expiry(ttl)?;
        }
        self.recall()?;
        self.look_at_marker(millis_up(claim.quarantine), true)?;
        let verdict = match holder {
            Some(holder) if holder != *owner && !self.has(Plant::ExtendOfAnyOwner) => {
                let left = self.time_left(&holder, true)?;
                return Ok(self.answer(Verdict::LostOwner, Some(holder), left));
            }
            Some(_) => Verdict::Extended,
            None => {
                let last = self.node.state.owner.clone();
                let over = match self.node.planted {
                    Some(Plant::LateExtendRefills) => 0,
                    Some(Plant::RefillRefusedByLargerToken) => self.node.state.token.max(token) - 1,
                    Some(_) | None => self.node.state.over,
                };
                let refused = self.has(Plant::RefillRefusedByLargerToken) && self.node.state.token > token;
                if refused || token <= over && !self.has(Plant::RefillRefusedByLargerToken) {
                    return Ok(self.answer(Verdict::LostOver, last, Some(0)));
                }
                if let Some(owed) = self.owed_to_another(Some(owner), true)? {
                    return Ok(self.answer(Verdict::LostOwner, last, Some(owed)));
                }
                self.may_grow()?;
                self.node.lock = Some(Lock { owner: owner.clone(), expires: Some(self.now + ttl) });
                Verdict::Refilled
            }
        };
        self.may_grow()?;
        let state = &mut self.node.state;
        state.over = state.over.max(token - 1);
        state.token = state.token.max(token);
        self.write_state(claim, list);
        Ok(self.answer(verdict, Some(owner.clone()), Some(ttl)))
    }

    fn release(mut self, owner: &Owner, token: Token, ended: Ended) -> Applied {
        let is_any = self.has(Plant::ReleaseOfAnyOwner);
        let mine = self.holder().is_some_and(|holder| is_any || holder == *owner);
        if mine {
            if let Err(kind) = self.may_write() {
                return (Outcome::Failed(kind), false);
            }
            self.node.lock = None;
            self.wrote = true;
        }
        if self.may_grow().is_ok() {
            let state = &mut self.node.state;
            let burns = self.node.planted != Some(Plant::ReleaseBurnsNothing);
            if !state.unreadable && burns {
                state.token = state.token.max(token);
            }
            if burns && ended == Ended::Released {
                state.over = state.over.max(token);
            }
            if state.owner.as_ref() == Some(owner) {
                state.until = 0;
            }
        }
        (Outcome::Released { deleted: mine, time_us: self.time_us }, mine && ended == Ended::Released)
    }

    fn has(&self, plant: Plant) -> bool {
        self.node.planted == Some(plant)
    }

    fn holder(&self) -> Option<Owner> {
        self.node.owner(self.now).cloned()
    }

    fn recall(&self) -> Result<(), Kind> {
        if self.node.state.unreadable { Err(Kind::BadState) } else { Ok(()) }
    }

    fn look_at_marker(&mut self, length: u64, writes: bool) -> Result<(), Kind> {
        let is_future_fine = self.has(Plant::FutureMarkerIsWaitedFor);
        let is_same = self.node.state.run == Some(self.node.run);
        let known = self.node.state.born.filter(|born| is_same && (*born <= self.now || is_future_fine));
        let born = known.unwrap_or(self.now);
        if known.is_none() && writes {
            self.may_grow()?;
            self.node.state.run = Some(self.node.run);
            self.node.state.born = Some(born);
        }
        self.quarantine = (born + length).saturating_sub(self.now);
        if self.has(Plant::NoQuarantine) {
            self.quarantine = 0;
        }
        Ok(())
    }

    /// `None`: no expiry.
    fn time_left(&mut self, owner: &Owner, writes: bool) -> Result<Option<u64>, Kind> {
        let Some(expires) = self.node.lock.as_ref().and_then(|lock| lock.expires) else { return Ok(None) };
        let mut left = expires - self.now;
        let ttl = self.node.state.ttl;
        if self.node.state.owner.as_ref() == Some(owner)
            && ttl > 0
            && left > ttl
            && !self.has(Plant::LongKeyIsNotCapped)
        {
            left = ttl;
            if writes {
                self.set_expiry(left)?;
                self.may_grow()?;
                self.node.state.until = self.now + left;
            }
        }
        Ok(Some(left))
    }

    fn owed_to_another(&mut self, asker: Option<&Owner>, writes: bool) -> Result<Option<u64>, Kind> {
        let (now, state) = (self.now, &self.node.state);
        let is_other = state.owner.is_some() && state.owner.as_ref() != asker;
        if !is_other || state.until < now || self.has(Plant::NoUntil) {
            return Ok(None);
        }
        if state.until > now + state.ttl {
            if self.has(Plant::UntilForgottenByStep) {
                return Ok(None);
            }
            if writes {
                self.may_grow()?;
                self.node.state.until = now + self.node.state.ttl;
            }
        }
        Ok(Some((self.node.state.until - now).min(self.node.state.ttl)))
    }

    fn write_state(&mut self, claim: &Claim, list: &str) {
        let (ttl, until) = (millis_up(claim.ttl), self.now + millis_up(claim.ttl));
        let state = &mut self.node.state;
        state.grant = Some(claim.token);
        state.owner = Some(claim.owner.clone());
        (state.ttl, state.until) = (ttl, until);
        if state.list.as_deref() != Some(list) {
            state.list = Some(list.to_owned());
        }
    }

    fn set_expiry(&mut self, ttl: u64) -> Result<(), Kind> {
        self.may_write()?;
        if let Some(lock) = &mut self.node.lock {
            lock.expires = Some(self.now + ttl);
        }
        self.wrote = true;
        Ok(())
    }

    fn may_write(&self) -> Result<(), Kind> {
        match self.node.refuses {
            Some(Kind::Oom) | None => Ok(()),
            Some(kind) => Err(kind),
        }
    }

    /// Before a command that needs memory. A script that has written may go on writing.
    fn may_grow(&mut self) -> Result<(), Kind> {
        match self.node.refuses {
            Some(Kind::Oom) if self.wrote => {}
            None => {}
            Some(kind) => return Err(kind),
        }
        self.wrote = true;
        Ok(())
    }

    fn answer(&self, verdict: Verdict, owner: Option<Owner>, left: Option<u64>) -> Answer {
        let state = &self.node.state;
        Answer {
            verdict,
            owner_token: state.grant.filter(|_| owner.is_some() && owner == state.owner),
            owner,
            left: left.map(Duration::from_millis),
            token: state.token,
            over: state.over,
            ttl: Duration::from_millis(state.ttl),
            time_us: self.time_us,
            run: self.node.run,
            quarantined: self.quarantine > 0,
        }
    }
}

fn millis_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).expect("a duration of a lock")
}
