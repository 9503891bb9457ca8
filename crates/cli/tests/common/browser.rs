//! Chromium without a window, told what to do through a pipe (DevTools protocol): enough to open a
//! page, to move the pointer, to look, and to see what is asked of the network.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

/// Longest wait for an answer: a loaded machine starts a browser slowly.
const PATIENCE: Duration = Duration::from_mins(2);

/// A browser with one page.
pub struct Browser {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    session: String,
    last: u64,
    /// Every address that the page asked for, the page's own first.
    pub requested: Vec<String>,
    _profile: tempfile::TempDir,
}

/// Where it is. Says so where it is missing.
pub fn chromium() -> Option<&'static str> {
    let found = ["/usr/bin/chromium", "/usr/bin/chromium-browser"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    if found.is_none() {
        braid_testkit::skip("opening the page needs the Debian package chromium");
    }
    found
}

impl Browser {
    /// Starts it; no name is resolved and nothing is fetched but files.
    pub fn start(program: &str) -> Self {
        let profile = tempfile::tempdir().expect("a directory");
        // The protocol is spoken on descriptors 3 and 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null", program])
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--remote-debugging-pipe", "--no-first-run", "--disable-background-networking"])
            .args(["--disable-component-update", "--disable-sync", "--window-size=1300,1000"])
            .args(["--host-resolver-rules=MAP * ~NOTFOUND", "--disable-default-apps"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromium starts");
        let input = child.stdin.take().expect("a pipe");
        let messages = listen(child.stdout.take().expect("a pipe"));
        let session = String::new();
        let (last, requested) = (0, Vec::new());
        let mut browser =
            Self { child, input, messages, session, last, requested, _profile: profile };
        let made = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attached = browser
            .call("Target.attachToTarget", &json!({"targetId": made["targetId"], "flatten": true}));
        browser.session = attached["sessionId"].as_str().expect("a session").into();
        for domain in ["Page.enable", "Network.enable", "Log.enable", "Runtime.enable"] {
            browser.call(domain, &json!({}));
        }
        browser
    }
    /// Opens a file, and waits until it is loaded.
    pub fn open(&mut self, file: &Path) {
        self.requested.clear();
        self.call("Page.navigate", &json!({"url": format!("file://{}", file.display())}));
        while self.message()["method"] != "Page.loadEventFired" {}
    }
    /// Gives the page this width.
    pub fn resize(&mut self, width: u32) {
        let size = json!({"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", &size);
    }
    /// Shows the page as on this medium (empty: a screen), in a light or a dark room.
    pub fn media(&mut self, media: &str, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", &json!({"media": media, "features": features}));
    }
    /// The value of an expression in the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let wanted = json!({"expression": expression, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", &wanted);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }
    /// Moves the pointer over the middle of the element that the expression gives.
    pub fn point_at(&mut self, element: &str) {
        let middle = self.value(&format!(
            "(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect(); \
             return [b.x + b.width / 2, b.y + b.height / 2]; }})({element})"
        ));
        let place = json!({"type": "mouseMoved", "x": middle[0], "y": middle[1]});
        self.call("Input.dispatchMouseEvent", &place);
    }
    /// Calls a method of the protocol.
    fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": parameters});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.input.write_all(format!("{message}\0").as_bytes()).expect("chromium listens");
        loop {
            let answer = self.message();
            if answer["id"] == self.last {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }
    fn message(&mut self) -> Value {
        let message = self.messages.recv_timeout(PATIENCE).expect("chromium answers");
        if message["method"] == "Network.requestWillBeSent" {
            let address = message["params"]["request"]["url"].as_str().unwrap_or_default();
            self.requested.push(address.to_owned());
        }
        message
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn listen(output: ChildStdout) -> Receiver<Value> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for message in BufReader::new(output).split(0) {
            let Ok(message) = message else { return };
            let value = serde_json::from_slice(&message).unwrap_or_default();
            if sender.send(value).is_err() {
                return;
            }
        }
    });
    receiver
}
