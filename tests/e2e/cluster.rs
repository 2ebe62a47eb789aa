//! The control plane, its nodes and images, and the way to its API.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use crate::caller::exchange;
use crate::figures::{figure, setting};
use crate::release::LONG;
use crate::support::Process;
use crate::wait::{boot_ms, eventually};

/// The image under test, as it is called in the cluster.
pub const IMAGE: &str = "localhost/redleader:test";
/// The image of the last release.
pub const LAST: &str = "localhost/redleader:last";
/// The small app, which knows nothing of leadership.
pub const WEB: &str = "localhost/web:1";
/// The same under another name: a rollout of a new image.
pub const WEB_2: &str = "localhost/web:2";
/// The address of this machine in the cluster's network, where the API server listens and everything beside it.
pub const HOST: &str = "10.88.0.1";
/// A redis-server of this machine with a shell, for the chart's own nodes.
pub const NODE: &str = "localhost/node:1";

/// Who asks: one header, `Authorization: Bearer TOKEN` or `Impersonate-User: NAME`. One that says nothing of it is the
/// admin's.
pub const ADMIN: &str = "Accept: */*";

/// A cluster that runs.
pub struct Cluster {
    root: PathBuf,
    /// `kubectl proxy`: the API as plain HTTP.
    proxy: Process,
    port: u16,
    has_last: bool,
}

impl Cluster {
    /// Starts it and puts the images in. What this thread starts from now on is in the cluster's network.
    pub fn up() -> Self {
        let began = boot_ms();
        script("cluster", &["up"]);
        let root = PathBuf::from(setting("CLUSTER_DIR").unwrap_or_else(|| "/tmp/redleader-e2e".into()));
        figure("cluster", &format!("two nodes Ready after {:.1} s", seconds_since(began)));
        images(&root);
        let has_last = last_release(&root);
        let space = Path::new("/run/netns").join(root.file_name().expect("the cluster's directory has a name"));
        enter(&space).unwrap_or_else(|why| panic!("{}: {why}", space.display()));
        let (proxy, port) = proxy(&root);
        Self { root, proxy, port, has_last }
    }

    /// Ends it; nothing is left.
    pub fn down(&self) {
        self.proxy.kill();
        script("cluster", &["down"]);
    }

    /// Ends a part of the control plane or of a node, or starts it again: `stop apiserver`.
    pub fn part(&self, what: &str, part: &str) {
        script("cluster", &[what, part]);
    }

    /// Whether there is an image of the last release.
    pub fn has_last_release(&self) -> bool {
        self.has_last
    }

    /// The directory with logs and configuration.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A command that finds this cluster and its tools.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(tool(program));
        command.env("KUBECACHEDIR", self.root.join("kubectl"));
        command.env("KUBECONFIG", self.root.join("admin.kubeconfig")).env("HELM_CACHE_HOME", self.root.join("helm"));
        command.env("HELM_CONFIG_HOME", self.root.join("helm")).env("HELM_DATA_HOME", self.root.join("helm"));
        command
    }

    /// Runs kubectl; its output, whatever the end.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Output {
        self.command("kubectl").args(arguments).output().expect("kubectl is in the cache")
    }

    /// Runs kubectl, which has to succeed.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        succeed(&arguments.join(" "), self.try_kubectl(arguments))
    }

    /// `kubectl apply` of a manifest.
    pub fn apply(&self, manifest: &str) -> String {
        let mut command = self.command("kubectl");
        succeed("apply", feed(command.args(["apply", "-f", "-"]), manifest))
    }

    /// GET of a path of the API; None if there is no such object, or no API.
    pub fn get(&self, path: &str) -> Option<Value> {
        let (status, body) = self.request("GET", path, "")?;
        (status == 200).then(|| serde_json::from_str(&body).ok()).flatten()
    }

    /// The items of a list of the API.
    pub fn list(&self, path: &str) -> Vec<Value> {
        self.get(path).and_then(|list| list["items"].as_array().cloned()).unwrap_or_default()
    }

    /// Any request: status and body; None if nobody answers.
    pub fn request(&self, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        self.send(ADMIN, method, path, "application/json", body)
    }

    /// Merges this into an object; gives the object as it has become.
    #[track_caller]
    pub fn patch(&self, path: &str, patch: &Value) -> Value {
        self.patch_as(ADMIN, path, patch).unwrap_or_else(|why| panic!("{path}: {why}"))
    }

    /// The same as somebody else, if the API server takes it; else why not.
    #[track_caller]
    pub fn patch_as(&self, who: &str, path: &str, patch: &Value) -> Result<Value, String> {
        let kind = "application/strategic-merge-patch+json";
        let (status, body) = self.send(who, "PATCH", path, kind, &patch.to_string()).expect("the API server answers");
        if status == 200 { Ok(serde_json::from_str(&body).expect("an object")) } else { Err(body) }
    }

    fn send(&self, who: &str, method: &str, path: &str, kind: &str, body: &str) -> Option<(u16, String)> {
        let head = format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\n{who}\r\nContent-Type: {kind}\r\n");
        let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        exchange(&format!("127.0.0.1:{}", self.port), Duration::from_secs(20), &request)
    }

    /// Makes a namespace that enforces Pod Security `restricted`.
    pub fn namespace(&self, name: &str) {
        self.apply(&format!(
            "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {name}\n  labels: \
             {{pod-security.kubernetes.io/enforce: restricted, pod-security.kubernetes.io/warn: restricted}}\n"
        ));
        // The volumes of every pod with a token need it, and it comes a moment later.
        eventually("the namespace has its authority", LONG, || {
            self.get(&format!("/api/v1/namespaces/{name}/configmaps/kube-root-ca.crt"))
        });
    }
}

/// Seconds since a moment of the boot clock.
pub fn seconds_since(began: u64) -> f64 {
    Duration::from_millis(boot_ms() - began).as_secs_f64()
}

/// The package's directory.
pub fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where the tools are.
fn tool(program: &str) -> PathBuf {
    let built = cache().join(program);
    if built.exists() { built } else { PathBuf::from(program) }
}

/// What `tests/e2e/setup` got.
pub fn cache() -> PathBuf {
    let home = setting("HOME").unwrap_or_else(|| "/root".into());
    setting("REDLEADER_KUBE").map_or_else(|| Path::new(&home).join(".cache/redleader/kube/bin"), PathBuf::from)
}

/// Runs one of the scripts beside this file, which has to succeed.
fn script(name: &str, arguments: &[&str]) -> String {
    let path = package().join("tests/e2e").join(name);
    let output = Command::new(&path).args(arguments).stdin(Stdio::null()).output();
    succeed(name, output.unwrap_or_else(|why| panic!("{}: {why}", path.display())))
}

/// What a command said, which has to have succeeded.
#[track_caller]
pub fn succeed(what: &str, output: Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{what}: {}\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr));
    said
}

/// Runs a command with this on its standard input.
pub fn feed(command: &mut Command, input: &str) -> Output {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("the command is there");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("the command reads");
    child.wait_with_output().expect("the command ends")
}

/// Moves this thread, and all that it starts, into the network of this file. Only root may.
pub fn enter(space: &Path) -> std::io::Result<()> {
    let space = std::fs::File::open(space)?;
    Ok(move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// In the network that this thread is in.
fn proxy(root: &Path) -> (Process, u16) {
    let mut command = Command::new(tool("kubectl"));
    command.args(["proxy", "--port=0", "--disable-filter=true"]).env("KUBECONFIG", root.join("admin.kubeconfig"));
    let proxy = Process::start("kubectl proxy", command);
    let line = eventually("kubectl proxy says its port", LONG, || proxy.stdout().into_iter().next()).text;
    let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok());
    (proxy, port.unwrap_or_else(|| panic!("kubectl proxy says {line:?}")))
}

/// Builds and imports every image.
fn images(root: &Path) {
    let began = boot_ms();
    let archive = root.join("redleader.tar");
    let archive = archive.to_string_lossy();
    script("build-image", &[&archive, IMAGE]);
    script("cluster", &["import", &archive]);
    figure("images", &format!("redleader's own in {:.1} s (quick if it is in the cache)", seconds_since(began)));
    let web = root.join("web");
    std::fs::create_dir_all(&web).expect("the cluster's directory is ours");
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition", "2024", "-O", "-C", "target-feature=+crt-static", "-C", "strip=symbols"]);
    rustc.args(["--target", &host(), "-o"]).arg(web.join("web")).arg(package().join("tests/e2e/web/web.rs"));
    succeed("rustc", rustc.output().expect("rustc is there"));
    for name in [WEB, WEB_2] {
        image(name, &web, "/web");
    }
    let node = root.join("node-image");
    node_root(&node);
    image(NODE, &node, "/bin/redis-server");
}

/// Builds and imports the image of the last release, if the history of this checkout has it.
fn last_release(root: &Path) -> bool {
    let output = Command::new(package().join("tests/last-release")).output().expect("the script is there");
    if output.status.code() == Some(77) {
        return false;
    }
    let source = succeed("last-release", output);
    let archive = root.join("last.tar");
    let mut build = Command::new(package().join("tests/e2e/build-image"));
    build.arg(&archive).arg(LAST).env("SOURCE", source.trim());
    succeed("build-image", build.output().expect("the script is there"));
    script("cluster", &["import", &archive.to_string_lossy()]);
    true
}

/// The target that this machine's compiler makes programs for.
fn host() -> String {
    let said = succeed("rustc", Command::new("rustc").arg("-vV").output().expect("rustc is there"));
    said.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc says it").to_owned()
}

fn image(name: &str, directory: &Path, entry: &str) {
    let mut command = Command::new(package().join("tests/e2e/cluster"));
    command.args(["image", name]).arg(directory).env("ENTRYPOINT", entry);
    succeed(name, command.output().expect("the script is there"));
}

/// A root with redis-server, a shell, what stands between a client and a server, and the libraries that they load.
fn node_root(root: &Path) {
    for program in ["redis-server", "redis-cli", "sh", "sleep", "socat"] {
        let path = succeed("which", Command::new("which").arg(program).output().expect("which is there"));
        let path = path.trim();
        let libraries = succeed("ldd", Command::new("ldd").arg(path).output().expect("ldd is there"));
        copy(Path::new(path), &root.join("bin").join(program));
        for word in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
            copy(Path::new(word), &root.join(word.trim_start_matches('/')));
        }
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.parent().expect("a file is in a directory")).expect("the cluster's directory is ours");
    std::fs::copy(from, to).unwrap_or_else(|why| panic!("{}: {why}", from.display()));
}
