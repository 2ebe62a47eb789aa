//! An election within a Rust program: its own exclusion and the sidecar's, its end in time, and what is left behind.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redleader::clock;
use redleader::election::timing::Wish;
use redleader::election::{Elector, ElectorError};

use crate::support::{
    Judge, Mode, Proxy, ReplicaOptions, Servers, Term, Track, boot_ms, eventually, figure, stays_true,
};

const SOON: Duration = Duration::from_secs(30);
const TTL: Duration = Duration::from_secs(1);

fn start(lock: &str, who: &str, nodes: &[String]) -> Elector {
    let node_timeout = Some(Duration::from_millis(150));
    let wish = Wish { stop_timeout: Duration::from_secs(2), node_timeout, ..Wish::with_ttl(TTL) };
    Elector::builder(lock, nodes).identity(who).timing(wish).start().unwrap()
}

/// Runs on a runtime of its own, as a user's program would.
fn on_a_runtime<F: Future>(job: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(SOON * 2, job).await.expect("it ends") })
}

/// When which work ran.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<Term>>>);

impl Diary {
    /// From now until it is dropped.
    fn begin(&self, who: &str, token: u64) -> Entry {
        let term = Term { who: who.to_owned(), token, start: boot_ms(), end: None };
        self.0.lock().unwrap().push(term);
        Entry { diary: self.clone(), token }
    }

    fn terms(&self) -> Vec<Term> {
        self.0.lock().unwrap().clone()
    }

    fn running(&self) -> Option<Term> {
        self.terms().into_iter().find(|term| term.end.is_none())
    }

    fn track(&self, who: &str) -> Track {
        Track { who: who.to_owned(), terms: self.terms() }
    }
}

struct Entry {
    diary: Diary,
    token: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut terms = self.diary.0.lock().unwrap();
        terms.iter_mut().rfind(|term| term.token == self.token).unwrap().end = Some(boot_ms());
    }
}

async fn work(diary: Diary, who: &'static str, token: u64) {
    let _entry = diary.begin(who, token);
    pending().await
}

#[test]
fn two_electors_and_a_sidecar_never_work_at_one_time() {
    let nodes = Servers::start(3);
    let diaries = [Diary::default(), Diary::default()];
    let electors = ["e0", "e1"].map(|who| Arc::new(start("mixed", who, &nodes.urls())));
    let threads: Vec<_> = [(0, "e0"), (1, "e1")]
        .map(|(at, who)| {
            let (elector, diary) = (Arc::clone(&electors[at]), diaries[at].clone());
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(elector.lead(|token| work(diary.clone(), who, token)))
            })
        })
        .into();
    let sidecar = ReplicaOptions::new("mixed", "sidecar", &nodes.urls()).args(["--ttl", "1s"]).start();
    let leader = || {
        let works = diaries.iter().position(|diary| diary.running().is_some());
        works.or_else(|| sidecar.leads().then_some(2))
    };
    let mut led = [0; 3];
    for _ in 0..12 {
        let who = eventually("somebody leads", SOON, leader);
        led[who] += 1;
        match who {
            2 => assert_eq!(sidecar.command(&["resign", "--for", "500ms"]).code, 0),
            at => on_a_runtime(electors[at].resign(Duration::from_millis(500))).unwrap(),
        }
        eventually("it no longer does", SOON, || (leader() != Some(who)).then_some(()));
    }
    for elector in &electors {
        on_a_runtime(elector.shutdown()).unwrap();
    }
    for thread in threads {
        assert!(matches!(thread.join().unwrap(), Err(ElectorError::Ended)));
    }
    figure("Elector", &format!("12 hand-overs among two electors and a sidecar, which led {led:?} times"));
    assert!(led[0] + led[1] > 0 && led[2] > 0, "{led:?}");
    let tracks = [diaries[0].track("e0"), diaries[1].track("e1"), sidecar.track()];
    Judge::check(&tracks).assert_clean("Elector");
}

#[test]
fn work_is_dropped_before_the_deadline_of_an_elector_that_is_cut_off_and_runs_again_afterwards() {
    let nodes = Servers::start(3);
    let proxies: Vec<Proxy> = nodes.iter().map(|node| Proxy::start(&node.address())).collect();
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let (elector, diary) = (start("cut", "e", &urls), Diary::default());
    let watch = elector.watch();
    std::thread::scope(|scope| {
        scope.spawn(|| on_a_runtime(elector.lead(|token| work(diary.clone(), "e", token))));
        eventually("it works", SOON, || diary.running());
        for proxy in &proxies {
            proxy.set(Mode::Blackhole);
        }
        let mut deadline = 0;
        eventually("the work is dropped", SOON, || {
            if let Some(belief) = &watch.leadership().belief {
                deadline = belief.deadline.as_millis();
            }
            diary.running().is_none().then_some(())
        });
        let end = diary.terms()[0].end.unwrap();
        figure(
            "Elector",
            &format!("cut off: the work was dropped {} ms before the deadline", deadline as i64 - end as i64),
        );
        assert!(end < deadline, "dropped at {end}, and the deadline was {deadline}");
        for proxy in &proxies {
            proxy.set(Mode::Pass);
        }
        let again = eventually("it works again", SOON, || diary.running());
        assert!(again.token > diary.terms()[0].token);
        on_a_runtime(elector.shutdown()).unwrap();
    });
    assert!(diary.running().is_none());
}

#[test]
fn work_that_panics_or_is_dropped_or_ends_gives_the_lock_to_another_at_once() {
    let nodes = Servers::start(3);
    let (first, second) = (start("ends", "first", &nodes.urls()), start("ends", "second", &nodes.urls()));
    // Nobody calls `lead` of it for a while, and who has no work leads as well: it must not win again.
    let stays_away = |elector: &Elector| {
        eventually("it has stepped down by itself", SOON, || (!elector.is_leading()).then_some(()));
        on_a_runtime(elector.resign(Duration::from_secs(2))).unwrap();
    };
    // Who stands back is not in the other's way.
    let leads = |elector: &Elector, diary: &Diary| {
        let who = diary.clone();
        on_a_runtime(async {
            tokio::select! {
                never = elector.lead(|token| work(who.clone(), "x", token)) => never.unwrap(),
                () = async { while diary.terms().is_empty() { tokio::task::yield_now().await } } => {}
            }
        });
        stays_away(elector);
        diary.terms()[0].clone()
    };
    // The call is dropped while its work runs, and the other one leads.
    on_a_runtime(second.resign(Duration::from_secs(2))).unwrap();
    let dropped = leads(&first, &Diary::default());
    let began = boot_ms();
    let next = leads(&second, &Diary::default());
    assert!(next.token > dropped.token);
    figure("Elector", &format!("a dropped call: the next leads {} ms after", next.start.saturating_sub(began)));

    // The work panics.
    let panicked = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            on_a_runtime(first.lead(|token| async move {
                assert!(token == 0, "planted: token {token}");
            }))
        });
        thread.join().is_err()
    });
    assert!(panicked, "the panic reaches the caller");
    stays_away(&first);
    let after = leads(&second, &Diary::default());
    assert!(after.token > next.token);

    // The work ends by itself.
    let done = on_a_runtime(first.lead(|token| async move { token })).unwrap();
    assert!(done > after.token);
    stays_away(&first);
    let last = leads(&second, &Diary::default());
    assert!(last.token > done);
    on_a_runtime(async {
        first.shutdown().await.unwrap();
        second.shutdown().await.unwrap();
        second.shutdown().await.unwrap();
        assert!(matches!(first.lead(|_| pending::<()>()).await, Err(ElectorError::Ended)));
        assert!(matches!(first.resign(Duration::ZERO).await, Err(ElectorError::Ended)));
    });
    assert!(nodes.values("ends").iter().all(Option::is_none), "nothing is left: {:?}", nodes.values("ends"));
}

#[test]
fn an_elector_that_is_dropped_releases_and_one_that_nobody_leads_with_can_be_watched() {
    let nodes = Servers::start(3);
    let elector = start("dropped", "e", &nodes.urls());
    let watch = elector.watch();
    eventually("it leads without work", SOON, || elector.is_leading().then_some(()));
    let token = watch.leadership().belief.as_ref().unwrap().token;
    // Nobody's work is waited for.
    on_a_runtime(elector.resign(Duration::from_millis(10))).unwrap();
    eventually("it leads again", SOON, || {
        watch.leadership().belief.as_ref().filter(|belief| belief.token > token && elector.is_leading()).map(|_| ())
    });
    assert!(elector.metrics().contains("redleader_is_leader{lock=\"dropped\"} 1\n"));
    let began = boot_ms();
    drop(elector);
    eventually("the keys are gone", SOON, || nodes.values("dropped").iter().all(Option::is_none).then_some(()));
    let took = boot_ms() - began;
    figure("Elector", &format!("dropped while leading: released after {took} ms"));
    assert!(!watch.is_leading());
    stays_true("nothing comes back", TTL, || nodes.values("dropped").iter().all(Option::is_none));
    assert!(clock::now().as_millis() >= began);
}

#[test]
fn what_cannot_be_an_election_is_refused_with_its_reason() {
    let good = ["redis://a", "redis://b", "redis://c"];
    let refuse = |builder: redleader::election::ElectorBuilder| builder.start().unwrap_err().to_string();
    for (said, told) in [
        (refuse(Elector::builder("", good)), "the lock "),
        (refuse(Elector::builder("l", good).identity("no spaces")), "the identity "),
        (refuse(Elector::builder("l", [""; 0])), "no nodes are given"),
        (refuse(Elector::builder("l", ["redis://a", "http://:S3cr3t@b"])), "node 2 of the list "),
        (refuse(Elector::builder("l", ["redis://a", "redis://A:6379"])), "the node a:6379 is in the list twice"),
        (refuse(Elector::builder("l", good).timing(Wish::with_ttl(Duration::from_millis(1)))), "--ttl 1ms must be"),
    ] {
        assert!(said.starts_with(told) && !said.contains("S3cr3t"), "{said}");
    }
}
