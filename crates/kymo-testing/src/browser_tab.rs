//! A page in a browser without a screen, driven as its user does: over Chromium's devtools protocol
//! (<https://chromedevtools.github.io/devtools-protocol/>), which it speaks on two pipes, a message
//! up to each NUL.
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What takes longer has failed.
const ANSWER_TIME: Duration = Duration::from_secs(120);
/// Between two looks at the page.
const POLL: Duration = Duration::from_millis(25);

/// A page that is open.
#[derive(Debug)]
pub struct BrowserTab {
    browser: Child,
    to: File,
    from: Receiver<Value>,
    session: Option<String>,
    next: u64,
    complaints: Vec<String>,
    _folder: TempDir,
}

impl BrowserTab {
    /// Starts the browser and opens a page, in a window of this size.
    pub(crate) fn open(browser: &Path, address: &str, (width, height): (u32, u32)) -> BrowserTab {
        let folder = tempfile::tempdir().expect("a folder");
        let [to, from] = ["to", "from"].map(|name| folder.path().join(name));
        for pipe in [&to, &from] {
            rustix::fs::mknodat(rustix::fs::CWD, pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)
                .expect("a pipe");
        }
        // Both ways at once: opening waits for nobody.
        let open = |path: &Path| File::options().read(true).write(true).open(path).expect("the pipe opens");
        let (writing, reading) = (open(&to), open(&from));
        let child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<\"$KYMO_TO\" 4>\"$KYMO_FROM\"", "sh"])
            .arg(browser)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--enable-precise-memory-info", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", folder.path().display()))
            .env("KYMO_TO", &to)
            .env("KYMO_FROM", &from)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the browser starts");
        let (sender, received) = channel();
        std::thread::spawn(move || {
            let messages = BufReader::new(reading).split(0);
            let messages = messages.map_while(Result::ok);
            for message in messages.filter_map(|message| serde_json::from_slice(&message).ok()) {
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut tab = BrowserTab {
            browser: child,
            to: writing,
            from: received,
            session: None,
            next: 0,
            complaints: Vec::new(),
            _folder: folder,
        };
        let target = tab.call("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let session = tab.call("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        tab.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Performance"] {
            tab.call(&format!("{domain}.enable"), json!({}));
        }
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        tab.call("Emulation.setDeviceMetricsOverride", size);
        tab.call("Page.navigate", json!({ "url": address }));
        tab.wait_for("document.getElementById('selfcheck')?.textContent.length > 0");
        tab
    }

    /// Calls a method of the protocol; its result.
    ///
    /// # Panics
    /// When the browser says no, or nothing.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let mut message = json!({"id": self.next, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect("the browser reads");
        let until = Instant::now() + ANSWER_TIME;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.from.recv_timeout(left) {
                Ok(answer) if answer["id"] == self.next => {
                    assert!(answer["error"].is_null(), "{method}: {answer}");
                    return answer["result"].clone();
                }
                Ok(event) => self.note(&event),
                Err(RecvTimeoutError::Timeout) => panic!("{method}: no answer from the browser"),
                Err(RecvTimeoutError::Disconnected) => panic!("{method}: the browser has ended"),
            }
        }
    }

    /// Keeps what the browser complains of.
    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        let is_complaint = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Log.entryAdded") => params["entry"]["level"] == "error",
            Some("Runtime.consoleAPICalled") => params["type"] == "error" || params["type"] == "warning",
            _ => false,
        };
        if is_complaint {
            self.complaints.push(params.to_string());
        }
    }

    /// What the page complained of until now: exceptions, errors on its console, what its policy
    /// forbade.
    pub fn complaints(&mut self) -> &[String] {
        self.evaluate("0");
        &self.complaints
    }

    /// The value of an expression in the page. A promise is waited for.
    ///
    /// # Panics
    /// When it throws.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    ///
    /// # Panics
    /// When it does not become true in two minutes.
    pub fn wait_for(&mut self, expression: &str) {
        let until = Instant::now() + ANSWER_TIME;
        while self.evaluate(&format!("Boolean({expression})")) != true {
            assert!(Instant::now() < until, "never true: {expression}; {:?}", self.complaints);
            std::thread::sleep(POLL);
        }
    }

    /// What the page says that it computed, once that has this property: an expression over
    /// `check`.
    pub fn check(&mut self, property: &str) -> Value {
        let text = "document.getElementById('selfcheck').textContent";
        let read = format!("JSON.parse({text})");
        // Empty until the page has its profile.
        self.wait_for(&format!("{text} && (check => {property})({read})"));
        self.evaluate(&read)
    }

    /// Where the first element of a selector is: left, top, width and height.
    ///
    /// # Panics
    /// If there is none.
    pub fn place(&mut self, selector: &str) -> [f64; 4] {
        let found = self.evaluate(&format!(
            "(r => [r.x, r.y, r.width, r.height])(document.querySelector({}).getBoundingClientRect())",
            json!(selector)
        ));
        [0, 1, 2, 3].map(|at| found[at].as_f64().expect("a number"))
    }

    fn mouse(&mut self, kind: &str, (x, y): (f64, f64), clicks: u32) {
        let buttons = u32::from(kind != "mouseReleased");
        let params =
            json!({"type": kind, "x": x, "y": y, "button": "left", "buttons": buttons, "clickCount": clicks});
        self.call("Input.dispatchMouseEvent", params);
    }

    /// Presses the mouse at one place of an element and lets it go at another; both as parts of its
    /// width and height.
    pub fn drag(&mut self, selector: &str, from: (f64, f64), to: (f64, f64)) {
        let [x, y, width, height] = self.place(selector);
        let at = |part: f64| {
            let between = |from: f64, to: f64| from + (to - from) * part;
            (x + width * between(from.0, to.0), y + height * between(from.1, to.1))
        };
        self.mouse("mousePressed", at(0.0), 1);
        (1..=8).for_each(|step| self.mouse("mouseMoved", at(f64::from(step) / 8.0), 1));
        self.mouse("mouseReleased", at(1.0), 1);
    }

    /// Clicks at a place of an element, given as parts of its width and height.
    pub fn click(&mut self, selector: &str, (x, y): (f64, f64)) {
        self.evaluate(&format!(
            "document.querySelector({}).scrollIntoView({{block: 'nearest'}})",
            json!(selector)
        ));
        let [left, top, width, height] = self.place(selector);
        let at = (left + width * x, top + height * y);
        self.mouse("mousePressed", at, 1);
        self.mouse("mouseReleased", at, 1);
    }

    /// Clicks into a field until it has the keyboard: the page may move while it draws.
    ///
    /// # Panics
    /// When it does not get it in two minutes.
    pub fn focus(&mut self, field: &str) {
        let is_there = format!("document.activeElement === document.querySelector({})", json!(field));
        let until = Instant::now() + ANSWER_TIME;
        self.click(field, (0.3, 0.5));
        while self.evaluate(&is_there) != true {
            assert!(Instant::now() < until, "{field} does not get the keyboard");
            std::thread::sleep(POLL);
            self.click(field, (0.3, 0.5));
        }
    }

    /// Presses a key, with Shift if asked for.
    pub fn press(&mut self, key: &str, shift: bool) {
        let text = if key.chars().count() == 1 {
            key
        } else if key == "Enter" {
            "\r"
        } else {
            ""
        };
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            _ => 0,
        };
        let modifiers = if shift { 8 } else { 0 };
        let down = json!({"type": "keyDown", "key": key, "text": text, "modifiers": modifiers, "windowsVirtualKeyCode": code});
        self.call("Input.dispatchKeyEvent", down);
        self.call("Input.dispatchKeyEvent", json!({"type": "keyUp", "key": key, "modifiers": modifiers}));
    }

    /// Goes to what was shown before, as the browser's own button does.
    pub fn back(&mut self) {
        self.evaluate("history.back()");
    }

    /// Chooses light or dark as the user's system does.
    pub fn prefer(&mut self, scheme: &str) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", features);
    }

    /// Bytes that the page's objects take, after garbage was collected.
    pub fn used_heap(&mut self) -> u64 {
        self.call("HeapProfiler.collectGarbage", json!({}));
        let usage = self.call("Runtime.getHeapUsage", json!({}));
        // Arrays of numbers have their memory outside of the heap.
        ["usedSize", "backingStorageSize"].iter().filter_map(|part| usage[part].as_f64()).sum::<f64>() as u64
    }

    /// Writes a picture of what is in sight, as PNG.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn screenshot(&mut self, file: &Path) {
        let shot = self.call("Page.captureScreenshot", json!({"format": "png"}));
        let picture = File::create(file).expect("a file");
        let mut decoder =
            Command::new("base64").arg("-d").stdin(Stdio::piped()).stdout(picture).spawn().expect("base64");
        let mut text = decoder.stdin.take().expect("a pipe");
        text.write_all(shot["data"].as_str().expect("a picture").as_bytes()).expect("it reads");
        drop(text);
        assert!(decoder.wait().expect("its end").success());
    }
}

impl Drop for BrowserTab {
    fn drop(&mut self) {
        _ = self.browser.kill();
        _ = self.browser.wait();
    }
}
