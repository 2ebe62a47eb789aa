//! Events on the own pod, of the API group `events.k8s.io/v1`: leadership's beginnings and ends, for `kubectl describe`.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use serde::de::IgnoredAny;

use crate::clock::{self, Moment};
use crate::election::event::StepDown;
use crate::kubernetes::failure::Failure;
use crate::kubernetes::intent::Intent;
use crate::kubernetes::pause::rest;
use crate::kubernetes::publisher::{Desk, Telling, until};
use crate::kubernetes::target::Code;
use crate::kubernetes::{PodName, Subject};
use crate::metrics::PublisherMetrics;
use crate::redsync::reply::Token;
use crate::wall;

/// Who reports, in the form that the API asks for.
const REPORTER: &str = "redleader.dev/redleader";

/// Events that may be told at once.
const BURST: u32 = 10;
/// After a burst, one event may be told in this time: 60 an hour at most.
const PER_EVENT: Duration = Duration::from_secs(60);
/// Events that wait to be told; of more, the oldest are only counted.
const WAITING: usize = 10;

/// Tells each transition, until the election has ended and its end is told.
pub(super) async fn tell(subject: Subject, mut desk: Desk, metrics: PublisherMetrics) {
    let mut told = Telling::new(metrics);
    let mut diary = Diary::new(clock::now());
    let mut known = Intent::default();
    let mut pause = Duration::ZERO;
    loop {
        let intent = desk.intents.borrow_and_update().clone();
        diary.note(&known, &intent, clock::now());
        known = intent;
        let Some(next) = diary.next().cloned() else {
            told.is_as_wanted();
            if desk.intents.changed().await.is_err() {
                return;
            }
            continue;
        };
        told.is_pending();
        let mut intents = desk.intents.clone();
        let attempt = async {
            rest(pause).await;
            create(&desk, &next.form(&subject, &desk.pod)).await
        };
        tokio::select! {
            sent = attempt => match sent {
                Ok(()) => {
                    diary.told();
                    told.has_succeeded();
                    pause = Duration::ZERO;
                }
                Err(failure) => pause = told.has_failed(&failure),
            },
            // Told in its order; what is sent again has the same name, so that it is told once.
            () = until(&mut intents, |_| true) => {}
        }
    }
}

async fn create(desk: &Desk, event: &Event) -> Result<(), Failure> {
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", desk.pod.namespace);
    match desk.api.create::<IgnoredAny>(&path, event).await {
        // An earlier try of the same event was done, and only its answer was lost.
        Ok(_) | Err(Failure { code: Code::Conflict, .. }) => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Elected,
    SteppedDown(StepDown),
}

/// One event that is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    what: What,
    token: Token,
    at: SystemTime,
    /// Events before this one that nobody was told of.
    left_out: u32,
}

impl Entry {
    fn form(&self, subject: &Subject, pod: &PodName) -> Event {
        let Self { what, token, at, left_out } = self;
        let Subject { lock, .. } = subject;
        let (reason, action, mut note) = match what {
            What::Elected => ("LeaderElected", "Elect", format!("leads lock {lock} with token {token}")),
            What::SteppedDown(why) => {
                let note = format!("stopped leading lock {lock}: {}, token {token}", why.as_str());
                ("LeaderSteppedDown", "StepDown", note)
            }
        };
        if *left_out > 0 {
            note.push_str(&format!(" ({left_out} events before this one were left out)"));
        }
        let is_warning = matches!(what, What::SteppedDown(why) if is_fault(*why));
        let time = Timestamp::try_from(*at).unwrap_or(Timestamp::UNIX_EPOCH);
        Event {
            metadata: ObjectMeta {
                name: Some(self.name(&pod.name, time)),
                namespace: Some(pod.namespace.clone()),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(time)),
            reporting_controller: Some(REPORTER.to_owned()),
            reporting_instance: Some(pod.name.chars().take(128).collect()),
            action: Some(action.to_owned()),
            reason: Some(reason.to_owned()),
            type_: Some(if is_warning { "Warning" } else { "Normal" }.to_owned()),
            note: Some(note.chars().take(1024).collect()),
            regarding: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(pod.name.clone()),
                namespace: Some(pod.namespace.clone()),
                uid: Some(pod.uid.clone()),
                ..ObjectReference::default()
            }),
            ..Event::default()
        }
    }

    /// The same for each try, so that none is told twice.
    fn name(&self, pod: &str, at: Timestamp) -> String {
        let what = match self.what {
            What::Elected => 'e',
            What::SteppedDown(_) => 's',
        };
        // With the ending below 253 characters, whatever the pod is called.
        let pod: String = pod.chars().take(200).collect();
        format!("{}.{what}{:x}.{:x}", pod.trim_end_matches(['.', '-']), self.token, at.as_microsecond())
    }
}

/// Leadership was lost, or given up because something beside it does not work.
const fn is_fault(why: StepDown) -> bool {
    !why.is_voluntary() || matches!(why, StepDown::AppUnhealthy | StepDown::HookFailed)
}

/// Events that wait, within the limits of what a namespace may be told.
struct Diary {
    waiting: VecDeque<Entry>,
    left_out: u32,
    allowance: u32,
    refilled: Moment,
}

impl Diary {
    const fn new(now: Moment) -> Self {
        Self { waiting: VecDeque::new(), left_out: 0, allowance: BURST, refilled: now }
    }

    /// Notes what lies between two intents.
    fn note(&mut self, before: &Intent, after: &Intent, now: Moment) {
        let same = |token| after.lead.as_ref().is_some_and(|lead| lead.token == token);
        if let Some(lead) = before.lead.as_ref().filter(|lead| !same(lead.token)) {
            let ended = after.ended.as_ref().filter(|ended| ended.token == lead.token);
            let why = ended.map_or(StepDown::Expired, |ended| ended.reason);
            self.add(What::SteppedDown(why), lead.token, wall::now(), now);
        }
        let is_new = |token| before.lead.as_ref().is_none_or(|lead| lead.token != token);
        if let Some(lead) = after.lead.as_ref().filter(|lead| is_new(lead.token)) {
            self.add(What::Elected, lead.token, lead.since, now);
        }
    }

    fn add(&mut self, what: What, token: Token, at: SystemTime, now: Moment) {
        while self.allowance < BURST && now.since(self.refilled) >= PER_EVENT {
            self.allowance += 1;
            self.refilled = self.refilled + PER_EVENT;
        }
        if self.allowance == BURST {
            self.refilled = now;
        }
        if self.allowance == 0 {
            self.left_out += 1;
            return;
        }
        self.allowance -= 1;
        self.waiting.push_back(Entry { what, token, at, left_out: std::mem::take(&mut self.left_out) });
        if self.waiting.len() > WAITING
            && let Some(oldest) = self.waiting.pop_front()
            && let Some(next) = self.waiting.front_mut()
        {
            next.left_out += oldest.left_out + 1;
        }
    }

    fn next(&self) -> Option<&Entry> {
        self.waiting.front()
    }

    fn told(&mut self) {
        self.waiting.pop_front();
    }
}

/// `renew-timeout` as `RenewTimeout`, as reasons are written in Kubernetes.
pub(super) fn camel(word: &str) -> String {
    let part = |part: &str| part.chars().take(1).map(|c| c.to_ascii_uppercase()).chain(part.chars().skip(1)).collect();
    word.split('-').map(part).collect::<Vec<String>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::intent::{Ended, Lead};
    use crate::redsync::name::{Identity, LockName};

    fn leading(token: Token) -> Intent {
        Intent { lead: Some(Lead { token, since: SystemTime::UNIX_EPOCH, displaced: Vec::new() }), ended: None }
    }

    fn ended(token: Token, reason: StepDown) -> Intent {
        Intent { lead: None, ended: Some(Ended { token, reason }) }
    }

    fn told(diary: &mut Diary) -> Vec<(What, Token, u32)> {
        diary.waiting.drain(..).map(|entry| (entry.what, entry.token, entry.left_out)).collect()
    }

    #[test]
    fn each_transition_is_one_event_also_if_two_come_at_once() {
        let now = clock::now();
        let mut diary = Diary::new(now);
        diary.note(&Intent::default(), &leading(1), now);
        diary.note(&leading(1), &leading(1), now);
        let again = Intent { ended: ended(1, StepDown::Lost).ended, ..leading(2) };
        diary.note(&leading(1), &again, now);
        diary.note(&again, &ended(2, StepDown::Resign), now);
        let expected = [
            (What::Elected, 1, 0),
            (What::SteppedDown(StepDown::Lost), 1, 0),
            (What::Elected, 2, 0),
            (What::SteppedDown(StepDown::Resign), 2, 0),
        ];
        assert_eq!(told(&mut diary), expected);
    }

    #[test]
    fn a_flapping_leadership_is_told_in_few_events_that_count_the_rest() {
        let (start, mut diary) = (clock::now(), Diary::new(clock::now()));
        let mut count = 0;
        for token in 1..=100 {
            let now = start + Duration::from_secs(token);
            diary.note(&Intent::default(), &leading(token), now);
            diary.note(&leading(token), &ended(token, StepDown::Lost), now);
            count += told(&mut diary).iter().map(|(_, _, left_out)| 1 + left_out).sum::<u32>();
        }
        // 10 at once and one a minute; the last ones are not counted yet.
        assert_eq!(count + diary.left_out, 200);
        assert!((150..=189).contains(&diary.left_out) || diary.left_out < 150, "{}", diary.left_out);
        let now = start + Duration::from_secs(3600);
        diary.note(&Intent::default(), &leading(999), now);
        assert_eq!(told(&mut diary)[0].0, What::Elected);
        assert_eq!(diary.left_out, 0);
    }

    #[test]
    fn what_waits_too_long_is_counted() {
        let now = clock::now();
        let mut diary = Diary::new(now);
        for token in 1..=30 {
            diary.note(&Intent::default(), &leading(token), now + Duration::from_secs(token * 61));
        }
        let told = told(&mut diary);
        assert_eq!((told.len(), told[0].1, told[0].2), (10, 21, 20));
    }

    #[test]
    fn an_event_has_all_that_the_api_asks_for() {
        let subject = Subject {
            lock: LockName::parse("job").unwrap(),
            identity: Identity::parse("web-0").unwrap(),
            ttl: Duration::from_secs(8),
        };
        let pod = PodName { name: "w".repeat(253), namespace: "team-a".to_owned(), uid: "u-1".to_owned() };
        let entry = Entry {
            what: What::SteppedDown(StepDown::RenewTimeout),
            token: 17,
            at: SystemTime::UNIX_EPOCH,
            left_out: 3,
        };
        let json = serde_json::to_value(entry.form(&subject, &pod)).unwrap();
        assert_eq!(json["eventTime"], "1970-01-01T00:00:00.000000Z");
        assert_eq!(json["type"], "Warning");
        assert_eq!(json["metadata"]["namespace"], "team-a");
        assert_eq!(json["regarding"]["uid"], "u-1");
        assert_eq!(
            json["note"],
            "stopped leading lock job: renew-timeout, token 17 (3 events before this one were left out)"
        );
        assert!(json["metadata"]["name"].as_str().unwrap().len() <= 253);
        assert_eq!(json["reportingInstance"].as_str().unwrap().len(), 128);
        assert_eq!(camel("max-failed-extends"), "MaxFailedExtends");
    }
}
