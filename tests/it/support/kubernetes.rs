//! A fake of the Kubernetes API server: it stores objects, watches, patches, and has every kind of bad day. Tests that
//! use it say fake in their names. The real one is asked by the end-to-end tests.
//!
//! Replicas reach it the way pods reach the real one: through TLS at `KUBERNETES_SERVICE_HOST`, with the files that
//! are mounted into every pod, which each replica sees in a mount namespace of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value as Json, json};
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::certs::Certificates;
use super::ports::Port;
use super::process::{lock, without_forks};
use super::replica::{ReplicaOptions, binary};
use super::temp::TempDir;
use super::wait::{be_slow, boot_ms};

/// What the API server does to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// What it should.
    Fair,
    /// What it should, and answers after this time. It does it even if nobody waits for the answer any more.
    Slow(Duration),
    /// What it should, but only after this time, whether anybody still waits for it or not.
    Late(Duration),
    /// It takes the request, and neither acts nor answers.
    Hang,
    /// This status, with `Retry-After` in seconds.
    Status(u16, Option<u32>),
    /// The connection ends without an answer.
    Reset,
}

/// One request that it was sent.
#[derive(Clone, Debug)]
pub struct Asked {
    /// When it came, in boot time.
    pub at: u64,
    /// `GET` and so on; `WATCH` for a watch.
    pub method: String,
    /// The path, without its query.
    pub path: String,
    /// The body; `Null` without one.
    pub body: Json,
    /// The pod whose token it came with.
    pub pod: String,
    /// That token, without the pod's name in it.
    pub token: String,
    /// How it was answered; 0 if it was not.
    pub status: u16,
}

#[derive(Debug)]
struct State {
    objects: BTreeMap<String, Json>,
    version: u64,
    asked: Vec<Asked>,
    weather: Weather,
    /// `VERB RESOURCE` that is not granted, such as `patch pods/status`.
    denied: Vec<String>,
    /// Pods whose requests get no further.
    cut_off: Vec<String>,
    /// What good tokens begin with; the pod's name follows.
    token: String,
    /// Connections so far, and how many of them are dead without a word.
    connections: u64,
    frozen: u64,
}

/// The fake. Ends on drop.
#[derive(Debug)]
pub struct FakeKubernetes {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
    files: TempDir,
    _port: Port,
    _stop: oneshot::Sender<()>,
}

/// The service account's files in a pod.
const MOUNTED: &str = "/var/run/secrets/kubernetes.io";

impl FakeKubernetes {
    /// On 127.0.0.1, with a certificate for `localhost` and its addresses.
    pub fn start() -> Self {
        let certs = Certificates::generate();
        Self::start_with(&certs, (certs.server_cert(), certs.server_key()), false)
    }

    /// With a certificate of the test's own, on `::1` if it is told to.
    pub fn start_with(certs: &Certificates, served: (PathBuf, PathBuf), ipv6: bool) -> Self {
        let port = Port::claim();
        let ip = if ipv6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
        let address = SocketAddr::new(ip, port.number());
        let files = TempDir::new();
        let token = "first-t0ken".to_owned();
        std::fs::copy(certs.ca(), files.join("ca.crt")).unwrap();
        let state = Arc::new(Mutex::new(State {
            objects: BTreeMap::new(),
            version: 100,
            asked: Vec::new(),
            weather: Weather::Fair,
            denied: Vec::new(),
            cut_off: Vec::new(),
            token,
            connections: 0,
            frozen: 0,
        }));
        let (changed, _) = watch::channel(0);
        let (stop, stopped) = oneshot::channel();
        let fake = Handler { state: Arc::clone(&state), changed: changed.clone() };
        serve(address, acceptor(&served), fake, stopped);
        Self { address, state, changed, files, _port: port, _stop: stop }
    }

    /// Adds a pod without a word of ours on it.
    pub fn add_pod(&self, name: &str) {
        let uid = format!("uid-of-{name}");
        let pod = json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "team-a", "uid": uid, "labels": {"app": "web"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        self.put(&pod_path(name), pod);
    }

    /// Stores an object at its path.
    pub fn put(&self, path: &str, mut object: Json) {
        let mut state = lock(&self.state);
        state.store(path, &mut object);
        drop(state);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Changes an object as another person would.
    pub fn edit(&self, path: &str, edit: impl FnOnce(&mut Json)) {
        let mut object = self.object(path);
        edit(&mut object);
        self.put(path, object);
    }

    /// Removes an object.
    pub fn remove(&self, path: &str) {
        lock(&self.state).objects.remove(path);
    }

    /// The object at a path; `Null` if there is none.
    pub fn object(&self, path: &str) -> Json {
        lock(&self.state).objects.get(path).cloned().unwrap_or(Json::Null)
    }

    /// A pod.
    pub fn pod(&self, name: &str) -> Json {
        self.object(&pod_path(name))
    }

    /// A pod's role label; empty if it has none.
    pub fn role(&self, name: &str) -> String {
        self.pod(name)["metadata"]["labels"]["redleader.dev/role"].as_str().unwrap_or_default().to_owned()
    }

    /// A pod's condition of this type.
    pub fn condition(&self, name: &str, kind: &str) -> Json {
        let pod = self.pod(name);
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or(Json::Null)
    }

    /// A Lease.
    pub fn lease(&self, name: &str) -> Json {
        self.object(&lease_path(name))
    }

    /// All Events, in the order of their names.
    pub fn events(&self) -> Vec<Json> {
        let state = lock(&self.state);
        let events = state.objects.iter().filter(|(path, _)| path.contains("/events/"));
        let mut events: Vec<Json> = events.map(|(_, event)| event.clone()).collect();
        events.sort_by_key(|event| event["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse::<u64>().ok()));
        events
    }

    /// `VERB RESOURCE` of every request of a pod, as a Role says it; questions about rights apart.
    pub fn used_rights(&self, pods: &[&str]) -> BTreeSet<String> {
        let asked = self.asked_from(0).into_iter().filter(|asked| pods.contains(&asked.pod.as_str()));
        asked.filter(|asked| !asked.path.contains("selfsubjectaccessreviews")).map(|asked| right_of(&asked)).collect()
    }

    /// What happens to requests from now on.
    pub fn set_weather(&self, weather: Weather) {
        lock(&self.state).weather = weather;
        self.changed.send_modify(|count| *count += 1);
    }

    /// Takes a right away, such as `patch pods/status`.
    pub fn deny(&self, right: &str) {
        lock(&self.state).denied.push(right.to_owned());
    }

    /// Gives all rights again.
    pub fn allow_all(&self) {
        lock(&self.state).denied.clear();
    }

    /// From now on only this token is good. The pods' files have it if `is_mounted`.
    pub fn rotate_token(&self, token: &str, is_mounted: bool) {
        lock(&self.state).token = token.to_owned();
        let pods = std::fs::read_dir(self.files.path()).unwrap().map(|entry| entry.unwrap());
        for pod in pods.filter(|entry| is_mounted && entry.path().is_dir()) {
            std::fs::write(pod.path().join("token"), format!("{token}.{}", pod.file_name().display())).unwrap();
        }
    }

    /// Writes one of the files that are mounted into a pod.
    pub fn mount(&self, pod: &str, name: &str, content: &[u8]) {
        std::fs::write(self.files.join(pod).join(name), content).unwrap();
    }

    /// Removes one of them.
    pub fn unmount(&self, pod: &str, name: &str) {
        std::fs::remove_file(self.files.join(pod).join(name)).unwrap();
    }

    /// Requests from the `index`-th on.
    pub fn asked_from(&self, index: usize) -> Vec<Asked> {
        lock(&self.state).asked.iter().skip(index).cloned().collect()
    }

    /// How many requests there were.
    pub fn count(&self) -> usize {
        lock(&self.state).asked.len()
    }

    /// Lets all connections that there are die without a word, as a firewall does. New ones work.
    pub fn freeze_connections(&self) {
        let mut state = lock(&self.state);
        state.frozen = state.connections;
    }

    /// Cuts a pod off: its requests hang, and it hears of nothing.
    pub fn cut_off(&self, pod: &str) {
        lock(&self.state).cut_off.push(pod.to_owned());
    }

    /// Lets all through again.
    pub fn reconnect(&self) {
        lock(&self.state).cut_off.clear();
        self.changed.send_modify(|count| *count += 1);
    }

    /// A replica in the pod of this name, with `args`: told who it is, and with the files of a pod.
    pub fn replica<S: AsRef<str>>(&self, lock: &str, pod: &str, nodes: &[S], args: &[&str]) -> ReplicaOptions {
        let uid = format!("uid-of-{pod}");
        let who = ["--pod-name", pod, "--pod-namespace", "team-a", "--pod-uid", &uid];
        self.in_pod(pod, ReplicaOptions::new(lock, pod, nodes).args(who).args(args.iter().copied()))
    }

    /// The same for a replica that is told nothing of its pod.
    pub fn in_pod(&self, pod: &str, options: ReplicaOptions) -> ReplicaOptions {
        let [host, port] = self.host_and_port();
        options.binary(self.pod_shell(pod)).env("KUBERNETES_SERVICE_HOST", &host).env("KUBERNETES_SERVICE_PORT", &port)
    }

    /// `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT` of every pod.
    pub fn host_and_port(&self) -> [String; 2] {
        [self.address.ip().to_string(), self.address.port().to_string()]
    }

    /// A program that becomes the product's binary where the files of a pod are mounted.
    pub fn pod_shell(&self, pod: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let directory = self.files.join(pod);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::copy(self.files.join("ca.crt"), directory.join("ca.crt")).unwrap();
        let token = format!("{}.{pod}", lock(&self.state).token);
        for (name, content) in [("token", token.as_str()), ("namespace", "team-a")] {
            self.mount(pod, name, content.as_bytes());
        }
        // Without root, a user namespace is needed for it.
        let unshare = if rustix::process::getuid().is_root() { "unshare" } else { "unshare --map-root-user" };
        let inside = format!(
            "mount -t tmpfs none /var/run && mkdir -p {MOUNTED} && ln -s {} {MOUNTED}/serviceaccount && exec {} \"$@\"",
            directory.display(),
            binary().display()
        );
        let script = format!("#!/bin/sh\nexec {unshare} --mount -- sh -c '{inside}' sh \"$@\"\n");
        // A file that a child between fork and exec holds open for writing cannot be started.
        without_forks(|| {
            let path = self.files.write(&format!("{pod}.sh"), &script);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        })
    }
}

/// Where a pod is.
pub fn pod_path(name: &str) -> String {
    format!("/api/v1/namespaces/team-a/pods/{name}")
}

/// Where a Lease is.
pub fn lease_path(name: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/team-a/leases/{name}")
}

fn acceptor((cert, key): &(PathBuf, PathBuf)) -> TlsAcceptor {
    let chain: Vec<_> = CertificateDer::pem_file_iter(cert).unwrap().map(Result::unwrap).collect();
    let config = ServerConfig::builder_with_provider(tokio_rustls::rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap())
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// Serves until `stopped`, on a thread and a runtime of its own.
fn serve(address: SocketAddr, acceptor: TlsAcceptor, handler: Handler, stopped: oneshot::Receiver<()>) {
    let listener = std::net::TcpListener::bind(address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let accept = async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let (acceptor, handler) = (acceptor.clone(), handler.clone());
                tokio::spawn(async move {
                    // A client that does not like our certificate is what some tests want.
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let number = {
                        let mut state = lock(&handler.state);
                        state.connections += 1;
                        state.connections
                    };
                    let service = hyper::service::service_fn(move |request| {
                        let handler = handler.clone();
                        async move { handler.handle(request, number).await }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        };
        runtime.block_on(async {
            tokio::select! {
                () = accept => {}
                _ = stopped => {}
            }
        });
        runtime.shutdown_background();
    };
    std::thread::Builder::new().name("kubernetes".to_owned()).spawn(run).unwrap();
}

#[derive(Clone)]
struct Handler {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
}

/// A status, and the object that goes with it.
type Answer = (u16, Json);

impl Handler {
    /// An error ends the connection.
    async fn handle(&self, request: Request<Incoming>, connection: u64) -> Result<Response<Body>, std::io::Error> {
        let (parts, body) = request.into_parts();
        let bytes = to_bytes(Body::new(body), 1 << 20).await.map_err(std::io::Error::other)?;
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let is_watch = query.contains("watch=true");
        let header =
            |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        let bearer = header("authorization").trim_start_matches("Bearer ").to_owned();
        let (token, pod) = bearer.split_once('.').unwrap_or((&bearer, ""));
        let asked = Asked {
            at: boot_ms(),
            method: if is_watch { "WATCH".to_owned() } else { parts.method.to_string() },
            path: parts.uri.path().to_owned(),
            body: serde_json::from_slice(&bytes).unwrap_or(Json::Null),
            pod: pod.to_owned(),
            token: token.to_owned(),
            status: 0,
        };
        let (index, weather) = {
            let mut state = lock(&self.state);
            state.asked.push(asked.clone());
            let is_cut_off = state.cut_off.contains(&asked.pod) || connection <= state.frozen;
            (state.asked.len() - 1, if is_cut_off { Weather::Hang } else { state.weather })
        };
        match weather {
            Weather::Hang => std::future::pending().await,
            Weather::Reset => return Err(std::io::ErrorKind::ConnectionReset.into()),
            Weather::Status(status, retry_after) => {
                lock(&self.state).asked[index].status = status;
                return Ok(answer((status, failure(status, "a bad day")), retry_after));
            }
            Weather::Fair | Weather::Slow(_) | Weather::Late(_) => {}
        }
        if is_watch && self.refused(&asked).is_none() {
            lock(&self.state).asked[index].status = 200;
            let name =
                query.split("metadata.name%3D").nth(1).and_then(|rest| rest.split('&').next()).unwrap_or_default();
            return Ok(self.watch(format!("{}/{name}", asked.path), asked.pod, connection));
        }
        let content = header("content-type");
        let done = if let Weather::Late(delay) = weather {
            let (handler, method) = (self.clone(), parts.method);
            let late = tokio::spawn(async move {
                be_slow(delay).await;
                handler.act(&method, &content, &asked)
            });
            late.await.unwrap()
        } else {
            self.act(&parts.method, &content, &asked)
        };
        lock(&self.state).asked[index].status = done.0;
        if let Weather::Slow(delay) = weather {
            be_slow(delay).await;
        }
        Ok(answer(done, None))
    }

    fn refused(&self, asked: &Asked) -> Option<Answer> {
        let state = lock(&self.state);
        if asked.token != state.token {
            return Some((401, failure(401, "Unauthorized")));
        }
        let right = right_of(asked);
        let is_denied = state.denied.contains(&right);
        is_denied.then(|| (403, failure(403, &format!("system:serviceaccount:team-a:web cannot {right}"))))
    }

    fn act(&self, method: &Method, content: &str, asked: &Asked) -> Answer {
        if let Some(refused) = self.refused(asked) {
            return refused;
        }
        let mut state = lock(&self.state);
        let path = asked.path.as_str();
        if path.ends_with("/selfsubjectaccessreviews") {
            let of =
                |name: &str| asked.body["spec"]["resourceAttributes"][name].as_str().unwrap_or_default().to_owned();
            let slash = if of("subresource").is_empty() { "" } else { "/" };
            let right = format!("{} {}{slash}{}", of("verb"), of("resource"), of("subresource"));
            let mut review = asked.body.clone();
            review["status"] = json!({"allowed": !state.denied.contains(&right)});
            return (201, review);
        }
        let (object, is_status) = match path.strip_suffix("/status") {
            Some(object) => (object, true),
            None => (path, false),
        };
        let done = match *method {
            Method::GET => state.objects.get(object).map(|found| (200, found.clone())),
            Method::PATCH => state.patch(object, is_status, content, &asked.body),
            Method::POST => Some(state.create(path, &asked.body)),
            _ => Some((405, failure(405, "the fake knows no such method"))),
        };
        drop(state);
        if *method != Method::GET {
            self.changed.send_modify(|count| *count += 1);
        }
        done.unwrap_or_else(|| (404, failure(404, &format!("{object} not found"))))
    }

    /// The object as it is, and as it becomes; a server that has been asked nothing of it says nothing.
    fn watch(&self, path: String, pod: String, connection: u64) -> Response<Body> {
        let (state, changes) = (Arc::clone(&self.state), self.changed.subscribe());
        let first = (state, changes, path, String::new());
        let lines = futures_util::stream::unfold(first, move |(state, mut changes, path, last)| {
            let pod = pod.clone();
            async move {
                loop {
                    changes.borrow_and_update();
                    let (object, is_mute) = {
                        let state = lock(&state);
                        let is_mute = matches!(state.weather, Weather::Hang | Weather::Reset)
                            || state.cut_off.contains(&pod)
                            || connection <= state.frozen;
                        (state.objects.get(&path).cloned(), is_mute)
                    };
                    if let Some(object) = object.filter(|_| !is_mute) {
                        let version = object["metadata"]["resourceVersion"].to_string();
                        if version != last {
                            let kind = if last.is_empty() { "ADDED" } else { "MODIFIED" };
                            let line = format!("{}\n", json!({"type": kind, "object": object}));
                            return Some((Ok::<_, Infallible>(line), (state, changes, path, version)));
                        }
                    }
                    changes.changed().await.ok()?;
                }
            }
        });
        Response::new(Body::from_stream(lines))
    }
}

impl State {
    fn store(&mut self, path: &str, object: &mut Json) {
        let before = self.objects.get(path).cloned().unwrap_or(Json::Null);
        object["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
        // What changes nothing is no new version.
        if *object == before {
            return;
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path.to_owned(), object.clone());
    }

    fn create(&mut self, path: &str, body: &Json) -> Answer {
        let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap_or_default());
        if self.objects.contains_key(&path) {
            return (409, failure(409, "already exists"));
        }
        if let Some(why) = invalid(body) {
            return (422, failure(422, why));
        }
        let mut object = body.clone();
        self.store(&path, &mut object);
        (201, object)
    }

    fn patch(&mut self, path: &str, is_status: bool, content: &str, patch: &Json) -> Option<Answer> {
        let before = self.objects.get(path)?.clone();
        // As a real one has it: a version is compared first, and a uid is a field that nobody may change.
        for (field, code) in [("resourceVersion", 409), ("uid", 422)] {
            let (is, wanted) = (&before["metadata"][field], &patch["metadata"][field]);
            if !wanted.is_null() && is != wanted {
                return Some((code, failure(code, &format!("{field} {wanted} is not {is}"))));
            }
        }
        let mut after = before.clone();
        merge(&mut after, patch, content == "application/strategic-merge-patch+json");
        // Each way in changes its own half.
        if is_status {
            after["metadata"] = before["metadata"].clone();
        } else {
            after["status"] = before["status"].clone();
        }
        if before["status"].is_null() {
            after.as_object_mut()?.remove("status");
        }
        if let Some(why) = invalid(&after) {
            return Some((422, failure(422, why)));
        }
        self.store(path, &mut after);
        Some((200, after))
    }
}

/// Rules of the real server that a publisher could break.
fn invalid(object: &Json) -> Option<&'static str> {
    let is_empty = |value: &Json| value.as_str().is_none_or(str::is_empty);
    if object["kind"] == "Lease" && object["spec"]["leaseDurationSeconds"].as_i64().is_none_or(|seconds| seconds < 1) {
        return Some("spec.leaseDurationSeconds: must be greater than 0");
    }
    if object["kind"] == "Event" {
        let needed = ["eventTime", "reportingController", "reportingInstance", "action", "reason", "type"];
        let is_of_pod = object["regarding"]["namespace"] == object["metadata"]["namespace"];
        if needed.iter().any(|field| is_empty(&object[*field])) || !is_of_pod {
            return Some("a field is required, or the namespace is not the pod's");
        }
    }
    None
}

fn merge(target: &mut Json, patch: &Json, by_type: bool) {
    let Some(fields) = patch.as_object() else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in fields {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(name);
        } else if let Some(items) = value.as_array().filter(|_| by_type && name == "conditions") {
            let mut all = target[name].as_array().cloned().unwrap_or_default();
            for item in items {
                match all.iter_mut().find(|known| known["type"] == item["type"]) {
                    Some(known) => merge(known, item, by_type),
                    None => all.push(item.clone()),
                }
            }
            target[name] = Json::Array(all);
        } else {
            merge(&mut target[name], value, by_type);
        }
    }
}

/// `VERB RESOURCE` as a Role says it.
fn right_of(asked: &Asked) -> String {
    let parts: Vec<&str> = asked.path.split('/').collect();
    let after = parts.iter().position(|part| *part == "namespaces").map_or(parts.len() - 1, |at| at + 2);
    let resource = parts.get(after).copied().unwrap_or_default();
    let sub = parts.get(after + 2).map(|sub| format!("/{sub}")).unwrap_or_default();
    let verb = match asked.method.as_str() {
        "POST" => "create",
        "PATCH" => "patch",
        "WATCH" => "watch",
        _ => "get",
    };
    format!("{verb} {resource}{sub}")
}

fn failure(status: u16, message: &str) -> Json {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "message": message})
}

fn answer((status, object): Answer, retry_after: Option<u32>) -> Response<Body> {
    let mut response = Response::builder().status(StatusCode::from_u16(status).unwrap());
    response = response.header("content-type", "application/json");
    if let Some(seconds) = retry_after {
        response = response.header("retry-after", seconds.to_string());
    }
    response.body(Body::from(object.to_string())).unwrap()
}
