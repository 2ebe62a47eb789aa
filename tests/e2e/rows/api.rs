//! Without the API server: the election does not notice.

use std::time::Duration;

use crate::caller::{Caller, call};
use crate::cluster::{Cluster, seconds_since};
use crate::figures::figure;
use crate::pod::{failed_extends, leads_by, next_of, of_name, redleader, resign, says};
use crate::release::{LONG, PUBLISHED, Release};
use crate::row::{Row, Stage};
use crate::support::scale;
use crate::wait::{boot_ms, eventually, stays_true};

pub const ROWS: &[Row] = &[Row {
    name: "K3-stopped",
    shows: "an API server that is stopped costs no leadership and no extend, the Service goes on, and what it missed is \
                right within 10 s of its return",
    stage: Stage::Api,
    run: stopped,
}];

/// How long the API server is away.
pub fn away() -> Duration {
    Duration::from_secs(scale().pick(60, 300))
}

fn stopped(cluster: &Cluster) {
    let (release, leader) = Release::up(cluster, "k3", &PUBLISHED, 3);
    release.until_right(&leader);
    let service = release.service();
    eventually("the leader answers the Service", LONG, || (call(&service).as_ref() == Some(&leader)).then_some(()));
    let pods = release.pods();
    let pod = of_name(&pods, &leader);
    let token = says(pod).expect("it leads")["token"].clone();
    let failed = failed_extends(pod);
    let caller = Caller::start(&service);
    let outage = Outage::begin(cluster);
    stays_true("one leadership while the API server is away", away(), || leads_by(pod, &token));
    let seen = caller.finish();
    assert_eq!(failed_extends(pod), failed, "an extend failed");
    assert_eq!(seen.names(), std::slice::from_ref(&leader), "the Service goes on");
    figure(
        "K3 API server stopped",
        &format!("{} s, one leadership, longest silence {} ms", away().as_secs(), seen.gap()),
    );
    resign(redleader(&leader), STAND_BACK);
    let next = next_of(&pods, &[&leader]);
    drop(outage);
    eventually("the API server is back", LONG, || cluster.get("/api/v1/nodes"));
    let back = boot_ms();
    release.until_right(&next);
    tell("API server stopped, leadership moved", back);
    release.uninstall();
}

/// The API server is stopped for as long as this lives, and started again whatever happens.
struct Outage<'a>(&'a Cluster);

impl<'a> Outage<'a> {
    fn begin(cluster: &'a Cluster) -> Self {
        cluster.part("stop", "apiserver");
        Self(cluster)
    }
}

impl Drop for Outage<'_> {
    fn drop(&mut self) {
        self.0.part("start", "apiserver");
    }
}

/// How long one stands back that resigned: longer than anybody takes to win.
pub const STAND_BACK: &str = "20s";

pub fn tell(what: &str, back: u64) {
    let took = seconds_since(back);
    figure(&format!("K3 {what}"), &format!("label, condition and Lease right {took:.1} s after it"));
    assert!(took <= 10.0, "{took} s");
}
