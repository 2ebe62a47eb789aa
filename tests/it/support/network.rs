//! A network of one replica's own, in which packets can vanish without a word. Needs root.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::ports::Port;
use super::process::{Process, run};
use super::wait::eventually;

const PATIENCE: Duration = Duration::from_secs(10);

/// A network namespace with one link to ours. It lives as long as the process that holds it: nothing is left behind,
/// however the test ends.
#[derive(Debug)]
pub struct Network {
    holder: Process,
    /// Makes names and addresses of this one different from every other's.
    number: Port,
}

impl Network {
    /// A new one, whose link is up.
    pub fn start() -> Self {
        let mut holder = Command::new("unshare");
        holder.args(["--net", "sleep", "infinity"]);
        let network = Self { holder: Process::start("network", holder), number: Port::claim() };
        let pid = network.holder.pid().to_string();
        let own = std::fs::read_link("/proc/self/ns/net").expect("a process has a network");
        eventually("the network is another than ours", PATIENCE, || {
            std::fs::read_link(format!("/proc/{pid}/ns/net")).ok().filter(|its| *its != own)
        });
        let (near, far) = (network.link(), "far");
        network.ip(&["link", "add", &near, "type", "veth", "peer", "name", far, "netns", &pid]);
        network.ip(&["addr", "add", &format!("{}/30", network.ours()), "dev", &near]);
        network.ip(&["link", "set", &near, "up"]);
        network.inside("ip", &["addr", "add", &format!("{}/30", network.theirs()), "dev", far]);
        network.inside("ip", &["link", "set", far, "up"]);
        network
    }

    /// Our address, as it is seen from inside.
    pub fn ours(&self) -> String {
        self.address(1)
    }

    /// The address inside.
    pub fn theirs(&self) -> String {
        self.address(2)
    }

    /// From now on no packet of this port of ours passes, either way: its machine has lost its power.
    pub fn drop_port(&self, port: u16) {
        self.rules("-A", port);
    }

    /// They pass again.
    pub fn pass_port(&self, port: u16) {
        self.rules("-D", port);
    }

    /// TCP connections from inside to this port of ours: the local port of each, and its state as the kernel writes it.
    pub fn connections(&self, port: u16) -> Vec<(u16, String)> {
        let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", self.holder.pid())).expect("it runs");
        let number = |address: &str| u16::from_str_radix(address.rsplit(':').next().unwrap_or_default(), 16);
        let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.filter(|row| row.len() > 3 && number(row[2]) == Ok(port))
            .filter_map(|row| Some((number(row[1]).ok()?, row[3].to_owned())))
            .collect()
    }

    /// What starts a program inside, with [`Self::env`].
    pub(super) fn program() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support/in-network")
    }

    pub(super) fn env(&self, program: &Path) -> [(String, String); 2] {
        let program = program.to_str().expect("a path of our own is text").to_owned();
        [("NETWORK_OF".to_owned(), self.holder.pid().to_string()), ("PROGRAM".to_owned(), program)]
    }

    fn rules(&self, what: &str, port: u16) {
        let port = port.to_string();
        self.inside("iptables", &[what, "INPUT", "-p", "tcp", "--sport", &port, "-j", "DROP"]);
        self.inside("iptables", &[what, "OUTPUT", "-p", "tcp", "--dport", &port, "-j", "DROP"]);
    }

    /// 198.18.0.0/15 is for measurements between networks, and no network of anyone's.
    fn address(&self, host: u32) -> String {
        let base = u32::from_be_bytes([198, 18, 0, 0]);
        std::net::Ipv4Addr::from(base + u32::from(self.number.number()) * 4 + host).to_string()
    }

    fn link(&self) -> String {
        format!("rl{}", self.number.number())
    }

    #[track_caller]
    fn ip(&self, args: &[&str]) {
        succeed("ip", Command::new("ip").args(args));
    }

    #[track_caller]
    fn inside(&self, program: &str, args: &[&str]) {
        let network = format!("--net=/proc/{}/ns/net", self.holder.pid());
        succeed(program, Command::new("nsenter").args([&network, "--", program]).args(args));
    }
}

#[track_caller]
fn succeed(name: &str, command: &mut Command) {
    let command = std::mem::replace(command, Command::new(name));
    let output = run(name, command, PATIENCE);
    assert_eq!(output.code, 0, "{name}: {}", output.stderr);
}
