//! Clocks as `doctor` measures them, against servers whose wall clock is moved.

use std::process::Command;
use std::time::Duration;

use serde_json::Value as Json;

use crate::doctor::{Found, doctor, name, server};
use crate::support::{Flavour, Process, Server, ServerOptions, ShiftedClock, binary, eventually, figure};

const SOON: Duration = Duration::from_secs(10);
const LOCK: &str = "job";

/// Three servers, the last with a clock of its own.
fn clocked(clock: &ShiftedClock) -> (Vec<Server>, Vec<String>) {
    let shifted = Server::start(Flavour::Redis70, ServerOptions::new().clock(clock).args(["--appendonly", "yes"]));
    let servers = vec![server(&[]), server(&[]), shifted];
    let urls = servers.iter().map(Server::url).collect();
    (servers, urls)
}

#[test]
fn a_clock_that_is_off_is_measured_warned_about_and_refused() {
    let clock = ShiftedClock::new(0, 0);
    let (servers, urls) = clocked(&clock);
    let shifted = name(&servers[2]);
    for (offset, severity, problem, words) in [
        (700_000_i32, "warning", "clock-offset", "from the nodes' median, more than 500ms"),
        (-700_000, "warning", "clock-offset", "its clock is -"),
        (10_000_000, "refused", "clock", "from the nodes' median, more than 4.4s"),
        (-10_000_000, "refused", "clock", "its clock is -"),
    ] {
        clock.set(i64::from(offset), 0);
        let found = eventually("the server has the new clock", SOON, || {
            let found = Found::on(&urls, &["--for", "300ms"]);
            let measured = found.json["nodes"][2]["clockOffsetMs"].as_f64().unwrap();
            ((measured - f64::from(offset) / 1000.0).abs() < 100.0).then_some(found)
        });
        let node = &found.json["nodes"][2];
        let (measured, error) = (node["clockOffsetMs"].as_f64().unwrap(), node["clockOffsetErrorMs"].as_f64().unwrap());
        figure(
            "doctor: clock offset",
            &format!("{} ms set, {measured:.3} ms measured, +/- {error:.3} ms", offset / 1000),
        );
        found.assert(severity, problem, &[&shifted], words);
        assert!(found.text.contains(if offset > 0 { " +" } else { " -" }), "{}", found.text);
    }
    // 500 ms is for long quarantines: an eighth of a short one is less.
    clock.set(100_000, 0);
    let found = Found::on(&urls, &["--for", "300ms", "--ttl", "500ms"]);
    found.assert("warning", "clock-offset", &[&shifted], "more than 68.75ms");
}

#[test]
fn a_clock_that_is_2_percent_fast_is_measured_and_warned_about() {
    let clock = ShiftedClock::new(-250_000, 20_000);
    let (servers, urls) = clocked(&clock);
    // As long as it is by default, which the last of the bounds is for.
    let output = doctor(&urls, &["--for", "30s", "--output", "json"]);
    let json: Json = serde_json::from_str(&output.stdout).unwrap();
    for (index, expected) in [(0, 0.0), (1, 0.0), (2, 2.0)] {
        let node = &json["nodes"][index];
        let rate = node["clockRatePercent"].as_f64().unwrap();
        let error = node["clockRateErrorPercent"].as_f64().unwrap();
        figure("doctor: clock rate", &format!("{expected} % set, {rate:.4} % measured over 30 s, +/- {error:.4} %"));
        assert!((rate - expected).abs() < 0.02 + error, "{node}");
        assert!(error < 0.2, "{node}");
    }
    let found = Found::on(&urls, &["--for", "2s", "--clock-margin", "4%"]);
    let words = "beside ours, more than 1.00 % (margin/4)";
    let finding = found.assert("warning", "clock-rate", &[&name(&servers[2])], words);
    assert_eq!(finding["remedy"], "check the machine's clock, or raise --clock-margin everywhere");
    // Within a quarter of the default margin it is shown, and no fault.
    let found = Found::on(&urls, &["--for", "1s"]);
    found.assert_none("clock-rate");
}

#[test]
fn a_clock_that_steps_while_it_is_watched_is_told() {
    let clock = ShiftedClock::new(0, 0);
    let (servers, urls) = clocked(&clock);
    let mut command = Command::new(binary());
    command.args(["doctor", "--lock", LOCK, "--redis", &urls.join(","), "--for", "2s", "--output", "json"]);
    let monitor = servers[2].monitor();
    let process = Process::start("doctor", command);
    eventually("its clock is watched", SOON, || {
        (monitor.requests().iter().filter(|line| line.name == "TIME").count() > 3).then_some(())
    });
    clock.step_to(Duration::from_secs(3));
    assert_eq!(process.wait_exit(SOON), 1);
    let line = eventually("its page is read", SOON, || process.stdout().first().cloned());
    let page: Json = serde_json::from_str(&line.text).unwrap();
    let finding = page["findings"].as_array().unwrap().iter().find(|finding| finding["problem"] == "clock-step");
    let finding = finding.unwrap_or_else(|| panic!("{page}"));
    assert_eq!((&finding["severity"], &finding["nodes"][0]), (&"warning".into(), &name(&servers[2]).into()));
    let step = page["nodes"][2]["clockStepMs"].as_f64().unwrap();
    assert!((2900.0..3100.0).contains(&step), "{step}");
    assert!(page["nodes"][0]["clockStepMs"].is_null());
}
