//! A pod: what its object says of it, what its redleader says at its own address, where the API server has no part in
//! it, and its processes.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::caller::{PATIENCE, get_within};
use crate::cluster::succeed;
use crate::release::LONG;
use crate::support::{samples, sum};
use crate::wait::eventually;

/// The label that says whether a pod leads.
pub const ROLE: &str = "redleader.dev/role";
/// The condition that says it.
pub const LEADER: &str = "redleader.dev/leader";

/// No machine is so busy that a pod that lives answers later.
pub const LATE: Duration = Duration::from_secs(5);

/// An object's name.
pub fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// The pod of this name.
pub fn of_name<'a>(pods: &'a [Value], wanted: &str) -> &'a Value {
    pods.iter().find(|pod| name(pod) == wanted).expect("it is one of them")
}

/// A condition.
pub fn condition_of<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// Its status.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a str> {
    condition_of(object, kind)?["status"].as_str()
}

/// The names of those that are Ready.
pub fn ready(pods: &[Value]) -> Vec<String> {
    pods.iter().filter(|pod| condition(pod, "Ready") == Some("True")).map(name).collect()
}

/// The role that its label gives it.
pub fn role(pod: &Value) -> Option<&str> {
    pod["metadata"]["labels"][ROLE].as_str()
}

/// Whether label and condition say of it what is so while this one leads.
pub fn tells(pod: &Value, leader: &str) -> bool {
    let (is_role, is_status) = if name(pod) == leader { ("leader", "True") } else { ("standby", "False") };
    role(pod) == Some(is_role) && condition(pod, LEADER) == Some(is_status)
}

/// Its address, which it has once it runs.
pub fn address(pod: &Value) -> &str {
    pod["status"]["podIP"].as_str().expect("it runs")
}

/// Where its redleader answers.
pub fn endpoints(pod: &Value) -> String {
    format!("{}:9797", address(pod))
}

/// GET of one of redleader's endpoints; None if there is no answer in time.
pub fn get(pod: &Value, path: &str) -> Option<(u16, String)> {
    get_within(&endpoints(pod), PATIENCE, path)
}

/// What redleader says in this pod; None without an answer, or an address.
pub fn said(pod: &Value) -> Option<Value> {
    leader_json(pod, PATIENCE)
}

/// The same of a pod that lives: one answer that is late on a busy machine is an answer.
pub fn says(pod: &Value) -> Option<Value> {
    leader_json(pod, LATE)
}

fn leader_json(pod: &Value, patience: Duration) -> Option<Value> {
    let address = pod["status"]["podIP"].is_string().then(|| endpoints(pod))?;
    serde_json::from_str(&get_within(&address, patience, "/leader")?.1).ok()
}

/// Whether it leads, by what it said.
pub fn leads(said: &Value) -> bool {
    said["leading"] == true
}

/// The token that it says.
pub fn token(pod: &Value) -> Option<Value> {
    said(pod).map(|said| said["token"].clone())
}

/// Whether it leads by this token.
pub fn leads_by(pod: &Value, token: &Value) -> bool {
    says(pod).is_some_and(|said| leads(&said) && said["token"] == *token)
}

/// The one that leads by its own word.
pub fn leading(pods: &[Value]) -> Option<&Value> {
    pods.iter().find(|pod| said(pod).is_some_and(|said| leads(&said)))
}

/// Waits for a leader that is not one of these.
#[track_caller]
pub fn next_of(pods: &[Value], not: &[&str]) -> String {
    eventually("another leads", LONG, || leading(pods).map(name).filter(|pod| !not.contains(&pod.as_str())))
}

/// What it counts and measures: each sample of its metrics.
pub fn metrics(pod: &Value) -> Option<BTreeMap<String, f64>> {
    get(pod, "/metrics").map(|(_, text)| samples(&text))
}

/// The sum of its samples of `redleader_NAME` that carry these labels.
pub fn metric(pod: &Value, name: &str, labels: &[(&str, &str)]) -> f64 {
    sum(&metrics(pod).expect("metrics"), name, labels)
}

/// Whether what its label says is not known to be right: 1 or 0.
pub fn pending(pod: &Value) -> f64 {
    metric(pod, "publish_pending", &[("target", "label")])
}

/// Rounds of extends without a quorum, by their outcome.
pub fn failed_extends(pod: &Value) -> BTreeMap<String, f64> {
    let mut samples = metrics(pod).expect("metrics");
    samples.retain(|sample, _| sample.starts_with("redleader_extend_attempts_total") && !sample.contains("\"ok\""));
    samples
}

/// The process of a pod whose program has this name, the oldest of them: every container's environment names its pod.
pub fn process(pod: &str, program: &str) -> Option<u32> {
    let wanted = format!("HOSTNAME={pod}");
    let is_program = |first: &[u8]| first.rsplit(|byte| *byte == b'/').next() == Some(program.as_bytes());
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|text| text.parse::<u32>().ok()) else { continue };
        let path = entry.path();
        let read = |file: &str| std::fs::read(path.join(file)).unwrap_or_default();
        let command = read("cmdline");
        if command.split(|byte| *byte == 0).next().is_some_and(is_program)
            && read("environ").split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
        {
            // The field that is the 20th after the name, which is in brackets.
            let stat = String::from_utf8_lossy(&read("stat")).into_owned();
            let started = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19)?.parse::<u64>().ok());
            found.extend(started.map(|started| (started, pid)));
        }
    }
    found.into_iter().min().map(|(_, pid)| pid)
}

/// Waits for it.
#[track_caller]
pub fn wait_for_process(pod: &str, program: &str) -> u32 {
    eventually("the process is there", LONG, || process(pod, program))
}

/// The process of a pod's redleader, which runs.
#[track_caller]
pub fn redleader(pod: &str) -> u32 {
    process(pod, "redleader").expect("the pod's redleader")
}

/// Sends a signal to a process that is there.
#[track_caller]
pub fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("process ids are small")).expect("not zero");
    kill_process(pid, signal).expect("the process is there");
}

/// Asks a redleader to resign, by its control socket: without the API server, and faster than by it.
pub fn resign(pid: u32, stand_back: &str) {
    let exe = format!("/proc/{pid}/exe");
    let mut command = Command::new("nsenter");
    command.args(["-t", &pid.to_string(), "-n", &exe, "resign", "--for", stand_back]);
    succeed("resign", command.output().expect("nsenter is there"));
}
