//! Two releases beside each other.

use std::time::Duration;

use crate::caller::{Caller, call};
use crate::cluster::{Cluster, IMAGE, LAST, succeed};
use crate::figures::figure;
use crate::release::{LONG, Release};
use crate::row::{Row, Stage, not_run};
use crate::wait::{eventually, let_time_pass};
use crate::witness::Witness;

pub const ROWS: &[Row] = &[Row {
    name: "K10-two-releases",
    shows: "a rollout from the last release to this one, and back, has one leader throughout",
    stage: Stage::Together,
    run: there_and_back,
}];

/// Pod by pod in mode label, so that both releases stand for one lock for most of the time.
fn there_and_back(cluster: &Cluster) {
    if !cluster.has_last_release() {
        not_run("with the history of the last release: git fetch --unshallow");
    }
    let releases = [LAST, IMAGE].map(|image| version(cluster, image));
    assert_ne!(releases[0], releases[1], "two releases have two versions");
    let mut release = Release::new(cluster, "k10", &["mode=label", "app.port=8080", &tag(LAST)]);
    let witness = Witness::start(cluster, &release.name, "redleader");
    release.install();
    release.settle(3);
    let service = release.service();
    eventually("the leader answers the Service", LONG, || call(&service));
    let caller = Caller::start(&service);
    let_time_pass("calls before the rollout", Duration::from_secs(1));
    let mut mixed = 0;
    for image in [IMAGE, LAST] {
        succeed("helm upgrade", release.upgrade(&[&tag(image)], &["--no-hooks"]));
        eventually("all pods are of the other release", LONG, || {
            let pods = release.pods();
            // What a pod is to run: of what it runs, the runtime may tell another name of the same image.
            let new = pods.iter().filter(|pod| pod["spec"].to_string().contains(image)).count();
            mixed += usize::from(new > 0 && new < pods.len());
            (new == 3 && pods.len() == 3).then_some(())
        });
        release.settle(3);
    }
    let_time_pass("calls after the rollouts", Duration::from_secs(1));
    let seen = caller.finish();
    assert!(mixed > 0, "the two releases were never beside each other");
    figure(
        "K10 two releases",
        &format!(
            "{} to {} and back: {mixed} looks found both, nobody answered for {:.1} s, two for {} ms",
            releases[0],
            releases[1],
            Duration::from_millis(seen.gap()).as_secs_f64(),
            seen.overlap()
        ),
    );
    assert_eq!(seen.overlap(), 0, "ms of overlap: {:?}", seen.names());
    release.uninstall();
    witness.finish().assert_clean("K10 two releases by the logs");
}

/// What an image's program says of itself.
fn version(cluster: &Cluster, image: &str) -> String {
    let tag = image.split_once(':').expect("it has a tag").1;
    let pod = format!("version-{tag}");
    let run = ["run", &pod, "--image", image, "--image-pull-policy=Never", "--restart=Never", "--", "--version"];
    cluster.kubectl(&run);
    let said = eventually("it says its version", LONG, || {
        let output = cluster.try_kubectl(&["logs", &pod]);
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        (output.status.success() && !said.is_empty()).then_some(said)
    });
    cluster.kubectl(&["delete", "pod", &pod, "--wait=false"]);
    said
}

fn tag(image: &str) -> String {
    format!("image.tag={}", image.split_once(':').expect("it has a tag").1)
}
