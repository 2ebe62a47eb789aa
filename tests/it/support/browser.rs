//! A real browser, driven by the Chrome DevTools protocol.

use std::cell::RefCell;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value as Json, json};
use tungstenite::{Message, WebSocket};

use super::process::Process;
use super::server::cache;
use super::temp::TempDir;
use super::wait::{boot_ms, eventually};

/// A loaded machine starts a browser slowly.
const PATIENCE: Duration = Duration::from_secs(60);

/// Chromium without a window, killed on drop.
#[derive(Debug)]
pub struct Browser {
    _process: Process,
    _directory: TempDir,
    link: RefCell<Link>,
}

#[derive(Debug)]
struct Link {
    socket: WebSocket<TcpStream>,
    last_id: u64,
    /// What the pages told without being asked.
    events: Vec<Json>,
}

/// How a page is looked at.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Width and height in pixels.
    pub size: (u32, u32),
    /// The person prefers dark.
    pub dark: bool,
    /// Scripts run.
    pub scripts: bool,
}

impl Browser {
    /// Starts one with a fresh profile.
    pub fn start() -> Self {
        let directory = TempDir::new();
        let mut command = Command::new("chromium");
        command.args(["--headless=new", "--remote-debugging-port=0", "--no-first-run", "--disable-gpu"]);
        // The sandbox needs rights that a container does not give; the pages are our own.
        command.args([
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--disable-background-networking",
        ]);
        command.arg(format!("--user-data-dir={}", directory.path().display())).arg("about:blank");
        command.env("HOME", directory.path()).env("TMPDIR", directory.path());
        let process = Process::start("chromium", command);
        let url = eventually("the browser tells its address", PATIENCE, || {
            let lines = process.stderr();
            lines.iter().find_map(|line| line.text.strip_prefix("DevTools listening on ").map(str::to_owned))
        });
        let host = url.trim_start_matches("ws://").split('/').next().expect("a host").to_owned();
        let stream = TcpStream::connect(host).expect("the browser listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout that is not zero");
        let (socket, _) = tungstenite::client(&url, stream).expect("the browser speaks its protocol");
        let link = Link { socket, last_id: 0, events: Vec::new() };
        Self { _process: process, _directory: directory, link: RefCell::new(link) }
    }

    /// Opens an empty page.
    pub fn page(&self, view: View) -> Page<'_> {
        let target = self.call("", "Target.createTarget", &json!({"url": "about:blank"}));
        let attached =
            self.call("", "Target.attachToTarget", &json!({"targetId": target["targetId"], "flatten": true}));
        let page = Page { browser: self, session: attached["sessionId"].as_str().expect("a session").to_owned() };
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            page.call(domain, &json!({}));
        }
        let (width, height) = view.size;
        page.call(
            "Emulation.setDeviceMetricsOverride",
            &json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}),
        );
        let scheme = if view.dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        page.call("Emulation.setEmulatedMedia", &features);
        page.call("Emulation.setScriptExecutionDisabled", &json!({"value": !view.scripts}));
        page
    }

    #[track_caller]
    fn call(&self, session: &str, method: &str, params: &Json) -> Json {
        let mut link = self.link.borrow_mut();
        link.last_id += 1;
        let id = link.last_id;
        let mut message = json!({"id": id, "method": method, "params": params});
        if !session.is_empty() {
            message["sessionId"] = session.into();
        }
        link.socket.send(Message::text(message.to_string())).expect("the browser lives");
        let began = boot_ms();
        loop {
            let answer = link.socket.read().unwrap_or_else(|error| panic!("{method}: {error}"));
            let Message::Text(text) = answer else { continue };
            let answer: Json = serde_json::from_str(&text).expect("the browser speaks JSON");
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{method} {params}: {answer}");
                return answer["result"].clone();
            }
            link.events.push(answer);
            assert!(boot_ms() < began + 60_000, "{method} is not answered");
        }
    }
}

/// One page of a browser.
#[derive(Debug)]
pub struct Page<'a> {
    browser: &'a Browser,
    session: String,
}

impl Page<'_> {
    #[track_caller]
    fn call(&self, method: &str, params: &Json) -> Json {
        self.browser.call(&self.session, method, params)
    }

    /// Goes to an address and waits until it is loaded.
    #[track_caller]
    pub fn go(&self, url: &str) {
        let gone = self.call("Page.navigate", &json!({"url": url}));
        assert!(gone["errorText"].is_null(), "{url}: {gone}");
        eventually(&format!("{url} is loaded"), PATIENCE, || {
            let state = self.evaluate("location.href + ' ' + document.readyState");
            state.as_str().is_some_and(|state| state.starts_with(url) && state.ends_with(" complete")).then_some(())
        });
    }

    /// The value of an expression of JavaScript, awaited if it is a promise.
    #[track_caller]
    pub fn evaluate(&self, expression: &str) -> Json {
        let asked = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", &asked);
        assert!(answer["exceptionDetails"].is_null(), "{expression:.200}: {answer}");
        answer["result"]["value"].clone()
    }

    /// The text of the first element that a selector finds; empty if there is none.
    #[track_caller]
    pub fn text(&self, selector: &str) -> String {
        let found = self.evaluate(&format!("document.querySelector({selector:?})?.textContent ?? ''"));
        found.as_str().unwrap_or_default().to_owned()
    }

    /// The whole page as a PNG.
    #[track_caller]
    pub fn screenshot(&self) -> Vec<u8> {
        let shot = self.call("Page.captureScreenshot", &json!({"format": "png", "captureBeyondViewport": true}));
        STANDARD.decode(shot["data"].as_str().expect("a picture")).expect("base64")
    }

    /// What the page complained of: errors and warnings of the console, exceptions, refused resources.
    pub fn complaints(&self) -> Vec<String> {
        // Whatever it has said by now comes before the answer to this.
        self.evaluate("1");
        let link = self.browser.link.borrow();
        let is_bad = |event: &&Json| match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => event["params"]["type"] != "log",
            Some("Log.entryAdded") => event["params"]["entry"]["level"] != "verbose",
            _ => false,
        };
        let ours = link.events.iter().filter(|event| event["sessionId"] == *self.session);
        ours.filter(is_bad).map(|event| event["params"].to_string()).collect()
    }

    /// What axe-core finds wrong for people who cannot see, or not well: rule, and where.
    #[track_caller]
    pub fn inaccessible(&self) -> Vec<String> {
        let path = axe();
        let source = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}: run tests/setup", path.display()));
        self.evaluate(&format!("{source}; 1"));
        let found = self.evaluate(
            "axe.run(document, {resultTypes: ['violations']}).then(({violations, passes}) => \
             ({violations: violations.map(v => v.id + ': ' + v.nodes.map(n => n.html).join(' ')), \
             passes: passes.length}))",
        );
        assert!(found["passes"].as_u64() > Some(10), "hardly a rule applied: {found}");
        found["violations"].as_array().expect("a list").iter().map(|one| one.to_string()).collect()
    }
}

fn axe() -> PathBuf {
    cache().join(Path::new("axe-core/axe.min.js"))
}
