//! A leader that alone is cut from the API server: nobody but it notices, and nobody is routed to it.

use std::time::Duration;

use serde_json::Value;

use crate::caller::{Caller, call};
use crate::cluster::{Cluster, seconds_since};
use crate::figures::figure;
use crate::pod::{
    LEADER, address, condition_of, get, leading, name, next_of, of_name, pending, redleader, resign, role,
};
use crate::poller::{Poller, Reply};
use crate::release::{LONG, PUBLISHED, Release};
use crate::row::{Row, Stage};
use crate::rows::api::{STAND_BACK, tell};
use crate::support::scale;
use crate::wait::{boot_ms, eventually, stays_true};
use crate::wall::Wall;

pub const ROWS: &[Row] = &[
    Row {
        name: "K3-cut",
        shows: "a leader that alone is cut from the API server: its successor clears its label, and it is not routed to",
        stage: Stage::Together,
        run: cut_alone,
    },
    Row {
        name: "K3-leaving",
        shows: "the end of a leader that is cut from the API server delays no release, and its exit by no more than its bound",
        stage: Stage::Together,
        run: leave_while_cut,
    },
];

/// How long it stays cut.
fn cut_for() -> Duration {
    Duration::from_secs(scale().pick(15, 300))
}

fn cut_alone(cluster: &Cluster) {
    let (release, cut) = Release::up(cluster, "k3-cut", &PUBLISHED, 3);
    release.until_right(&cut);
    let pods = release.pods();
    let cut_pod = of_name(&pods, &cut);
    eventually("everybody may be routed to by its label", LONG, || {
        pods.iter().all(|pod| routez(pod) == Some(200)).then_some(())
    });
    let wall = Wall::around(address(cut_pod));
    let pollers: Vec<Poller> = pods.iter().map(|pod| Poller::start(pod, "/routez")).collect();
    let service = release.service();
    let (caller, began) = (Caller::start(&service), boot_ms());
    resign(redleader(&cut), STAND_BACK);
    let mut routed = Routed::default();
    let next = eventually("another leads", LONG, || {
        routed.look(&release);
        leading(&pods).map(name).filter(|pod| *pod != cut)
    });
    eventually("the successor clears the label", LONG, || {
        routed.look(&release);
        let is_so = |pod: &str, role: &str| release.role(pod).as_deref() == Some(role);
        (is_so(&cut, "standby") && is_so(&next, "leader")).then_some(())
    });
    let cleared = seconds_since(began);
    figure("K3 leader cut from the API server alone", &format!("label cleared {cleared:.1} s after resign"));
    eventually("the successor answers", LONG, || {
        routed.look(&release);
        (call(&service).as_ref() == Some(&next)).then_some(())
    });
    stays_true("it says that what is published is not known", cut_for(), || {
        routed.look(&release);
        pending(cut_pod) == 1.0
    });
    let back = boot_ms();
    drop(wall);
    eventually("it is right by its own word", LONG, || {
        routed.look(&release);
        let told = pending(cut_pod) == 0.0 && routez(cut_pod) == Some(200);
        (told && reason(&release, &cut) == "Resign").then_some(())
    });
    tell("leader cut alone, by its own word", back);
    let seen = caller.finish();
    assert_eq!(seen.overlap(), 0, "ms of overlap: {:?}", seen.names());
    routed.judge();
    let polled: Vec<(String, Vec<Reply>)> = pollers.into_iter().map(Poller::finish).collect();
    judge_routez(&release, (&cut, &next), &polled, back);
    release.until_right(&next);
    release.uninstall();
}

/// Who is routed to at a look: labelled as the leader by the API server, and ready by its own word.
#[derive(Default)]
struct Routed {
    looks: usize,
    none: usize,
}

impl Routed {
    fn look(&mut self, release: &Release<'_>) {
        let labelled =
            || -> Vec<Value> { release.pods().into_iter().filter(|pod| role(pod) == Some("leader")).collect() };
        // Two that are routed to both before and after each other are so at the same time.
        let before = labelled();
        let once: Vec<&Value> = before.iter().filter(|pod| routez(pod) == Some(200)).collect();
        let twice: Vec<String> = once.iter().filter(|pod| routez(pod) == Some(200)).map(|pod| name(pod)).collect();
        let after: Vec<String> = labelled().iter().map(name).collect();
        let both: Vec<&String> = twice.iter().filter(|pod| after.contains(pod)).collect();
        assert!(both.len() <= 1, "routed to at a time: {both:?}");
        self.looks += 1;
        self.none += usize::from(both.is_empty());
    }

    fn judge(&self) {
        let Self { looks, none } = self;
        figure("K3 leader cut alone, routed to", &format!("never two in {looks} looks, nobody in {none}"));
        assert!(none < looks, "nobody was ever routed to");
    }
}

/// `/routez` of the pod that was cut until `back` is 503 from before its successor's win on, and everybody else's 200.
fn judge_routez(release: &Release<'_>, (cut, next): (&str, &str), polled: &[(String, Vec<Reply>)], back: u64) {
    let won = logged_at(release, next, "elected");
    for (pod, replies) in polled {
        if pod != cut {
            assert!(replies.iter().all(|reply| reply.status == 200), "{pod}: {replies:?}");
            continue;
        }
        let down = replies.iter().find(|reply| reply.status == 503).expect("it says 503");
        let while_cut = replies.iter().filter(|reply| reply.asked >= down.asked && reply.came <= back);
        let (mut count, mut last) = (0, 0);
        for reply in while_cut {
            assert_eq!(reply.status, 503, "{reply:?}, cut until {back}");
            (count, last) = (count + 1, reply.came);
        }
        assert!(down.came < won, "503 at {down:?}, the successor won at {won}");
        let (before, held) = (won - down.came, last - down.came);
        let text = format!("503 from {before} ms before the successor's win on, {count} answers in {held} ms");
        figure("K3 leader cut alone, its /routez", &text);
    }
}

/// The moment of the last log line with this message.
fn logged_at(release: &Release<'_>, pod: &str, message: &str) -> u64 {
    let log = release.cluster.kubectl(&["logs", "-n", &release.name, pod, "-c", "redleader"]);
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut of_message = lines.filter(|line| line["message"] == message);
    of_message.next_back().and_then(|line| line["boot_ms"].as_u64()).unwrap_or_else(|| panic!("{pod} logs {log}"))
}

/// From a leader's last word as the leader to the exit of its process there may be the last words to an API server that
/// does not hear, 2 s, and what a busy machine adds to it.
const EXIT_MOST: u64 = 5 * 2000;

fn leave_while_cut(cluster: &Cluster) {
    let (release, cut) = Release::up(cluster, "k3-leaving", &PUBLISHED, 3);
    release.until_right(&cut);
    let pods = release.pods();
    let pid = redleader(&cut);
    let wall = Wall::around(address(of_name(&pods, &cut)));
    let poller = Poller::start(of_name(&pods, &cut), "/readyz");
    release.cluster.kubectl(&["delete", "pod", "-n", &release.name, &cut, "--wait=false"]);
    let next = next_of(&pods, &[&cut]);
    eventually("its process ends", LONG, || (!std::path::Path::new(&format!("/proc/{pid}")).exists()).then_some(()));
    let exited = boot_ms();
    let (_, replies) = poller.finish();
    let led = replies.iter().filter(|reply| reply.status == 200).map(|reply| reply.came).max().expect("it led");
    let won = logged_at(&release, &next, "elected");
    let (gap, exit) = (won.saturating_sub(led), exited - led);
    figure(
        "K3 SIGTERM of a leader that is cut from the API server",
        &format!("the next leads {gap} ms after its last word as leader, its process ends {exit} ms after it"),
    );
    // A key that nobody releases is there for 6 s and more: what is left of the ttl after an extend.
    assert!(gap < 4000, "{gap} ms");
    assert!(exit < EXIT_MOST, "{exit} ms");
    drop(wall);
    release.settle(3);
    release.until_right(&next);
    release.uninstall();
}

fn routez(pod: &Value) -> Option<u16> {
    get(pod, "/routez").map(|(status, _)| status)
}

/// Why a pod does not lead, by its condition.
fn reason(release: &Release<'_>, pod: &str) -> String {
    let pod = release.pod(pod).expect("it is there");
    let condition = condition_of(&pod, LEADER).unwrap_or_else(|| panic!("{pod}"));
    condition["reason"].as_str().unwrap_or_default().to_owned()
}
