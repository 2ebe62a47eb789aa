//! Walls between a pod and the API server, in the network of the cluster. Each is taken away on drop.

use std::process::{Command, Output};

use crate::cluster::succeed;

/// The API server's own port: rules that packets meet after the Service's address has been replaced name it.
const PORT: &str = "6443";

/// A wall that stands.
pub struct Wall(Vec<Vec<String>>);

impl Wall {
    /// Swallows all that this pod sends to the API server.
    pub fn around(address: &str) -> Self {
        Self::new(vec![words(&["INPUT", "-s", address, "-p", "tcp", "--dport", PORT, "-j", "DROP"])])
    }

    /// Swallows both ways of this pod's connections to the API server that are open now, and of no new one; how many.
    pub fn across_open_flows(address: &str) -> (Self, usize) {
        let ports = open_flows(address);
        let mut rules = Vec::new();
        for port in &ports {
            let there = ["INPUT", "-s", address, "-p", "tcp", "--sport", port, "--dport", PORT, "-j", "DROP"];
            let back = ["OUTPUT", "-d", address, "-p", "tcp", "--sport", PORT, "--dport", port, "-j", "DROP"];
            rules.extend([words(&there), words(&back)]);
        }
        (Self::new(rules), ports.len())
    }

    fn new(rules: Vec<Vec<String>>) -> Self {
        for rule in &rules {
            succeed("iptables", iptables("-I", rule));
        }
        Self(rules)
    }
}

impl Drop for Wall {
    fn drop(&mut self) {
        for rule in &self.0 {
            let _ = iptables("-D", rule);
        }
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn iptables(what: &str, rule: &[String]) -> Output {
    Command::new("iptables").args(["-w", what]).args(rule).output().expect("iptables is there")
}

/// The source ports of a pod's connections to the API server, as the kernel tracks them.
fn open_flows(address: &str) -> Vec<String> {
    let words = ["-L", "-p", "tcp", "-s", address, "--state", "ESTABLISHED"];
    let output = Command::new("conntrack").args(words).output().expect("conntrack is there");
    let said = succeed("conntrack", output);
    let to_api = said.lines().filter(|line| line.contains(&format!("sport={PORT} ")));
    to_api.filter_map(|line| line.split("sport=").nth(1)?.split(' ').next().map(str::to_owned)).collect()
}
