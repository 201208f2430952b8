//! `kymo view`: the page in a browser, whose selections the server counts.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Stdio};

use kymo_testing::Browser;
use serde_json::Value;

use crate::programs::build;
use crate::tools::{Need, kymo, ready, text};

/// A running `kymo view`.
pub(crate) struct Viewed {
    child: Child,
    pub(crate) address: String,
    folder: tempfile::TempDir,
}

impl Viewed {
    /// Of a recording, with these options.
    pub(crate) fn of(file: &str, options: &[&str]) -> Viewed {
        let viewed = Viewed::by(&[&["view", "--no-open", "-q", file], options].concat());
        assert!(viewed.address.starts_with("http://127.0.0.1:"), "{}", viewed.address);
        viewed
    }

    /// By these words.
    fn by(words: &[&str]) -> Viewed {
        let mut child = kymo().command(words).stdout(Stdio::piped()).spawn().expect("kymo starts");
        let mut address = String::new();
        let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
        said.read_line(&mut address).expect("an address");
        let address = address.trim_end().to_owned();
        Viewed { child, address, folder: tempfile::tempdir().expect("a folder") }
    }

    /// What the page says that it computed, with these words behind the address.
    fn check(&self, browser: &Browser, hash: &str) -> Value {
        let user = tempfile::tempdir_in(&self.folder).expect("a folder");
        let document = browser.document(&format!("{}#{hash}", self.address), user.path());
        let check: Value = serde_json::from_str(&Browser::self_check(&document)).expect("JSON");
        assert!(check["error"].is_null(), "{check:#}");
        check
    }

    /// Ends it as Ctrl-C does; the status.
    fn end(mut self) -> Option<i32> {
        crate::tools::signal(&self.child, rustix::process::Signal::INT);
        self.child.wait().expect("its end").code()
    }
}

impl Drop for Viewed {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Checks a recording of more samples than a page's timeline holds: the page has the sums of all,
/// and of ranges and threads those that `kymo query` finds among all samples.
#[test]
fn ranges_of_a_large_recording_are_exact() {
    const TEST: &str = "view::ranges_of_a_large_recording_are_exact";
    let Some(browser) = Browser::find(TEST) else { return };
    if !ready(TEST, &[Need::Root, Need::Tracepoints]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("perf.data");
    let file = text(&file);
    // Each call is a sample: far more than the timeline shows one by one.
    let load = "i=0; while [ $i -lt 60 ]; do i=$((i + 1)); dd if=/dev/zero of=/dev/null bs=1 count=6000 2>/dev/null; done";
    kymo().succeed([
        "record",
        "-q",
        "-o",
        file,
        "-c",
        "1",
        "-e",
        "raw_syscalls:sys_enter",
        "--",
        "sh",
        "-c",
        load,
    ]);
    let report = kymo().succeed(["report", "--json", "-i", file]).json();
    let samples = report["events"][0]["samples"].as_u64().expect("a count");
    assert!(samples > 400_000, "{samples} samples");
    let viewed = Viewed::of(file, &[]);
    let whole = viewed.check(&browser, "");
    assert_eq!((whole["samples"].as_u64(), &whole["exact"]), (Some(samples), &Value::Bool(false)));
    let (start, length) = (
        report["recording"]["start_ns"].as_u64().expect("ns"),
        report["recording"]["duration_ns"].as_u64().expect("ns"),
    );
    let (from, until) = (length / 3, length / 3 * 2);
    let tid = &report["threads"][1]["tid"];
    let range = format!("time={}..{}", seconds(start + from), seconds(start + until));
    // The page moves a range to the borders of its buckets, of which it has 200 at least.
    let near = samples / 20;
    for (hash, filter, allowed) in [
        (format!("thread=t{tid}"), format!("thread={tid}"), 0),
        (format!("range={from}-{until}"), range.clone(), near),
        (format!("thread=t{tid}&range={from}-{until}"), format!("thread={tid} and {range}"), near),
    ] {
        let check = viewed.check(&browser, &hash);
        assert_eq!(check["exact"], true, "{hash}: {check:#}");
        let found = check["samples"].as_u64().expect("a count");
        let top = kymo().succeed(["query", file, &format!("top where {filter}"), "--json"]).json();
        let expected = top["top"]["samples"].as_u64().expect("a count");
        assert!(found.abs_diff(expected) <= allowed, "{hash}: {found}, {expected} by query");
    }
    assert_eq!(viewed.end(), Some(0));
}

/// Checks a recording of wall time: what a thread's selection adds up to is the time of the thread
/// in the report, waits included.
#[test]
fn wall_time() {
    const TEST: &str = "view::wall_time";
    let Some(browser) = Browser::find(TEST) else { return };
    if !ready(TEST, &[Need::Root, Need::Tracepoints, Need::Program("cc")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("wall.data");
    let file = text(&file);
    let program = build("threads.c", &[]);
    kymo().succeed(["record", "--wall", "-q", "-o", file, "--", text(&program), "3", "40"]);
    let report = kymo().succeed(["report", "--wall", "--json", "-i", file]).json();
    let viewed = Viewed::of(file, &[]);
    let whole = viewed.check(&browser, "");
    assert_eq!(whole["event"], "wall-time", "{whole:#}");
    assert_eq!(whole["whole"], report["total_ns"], "{whole:#}");
    let of_thread = viewed.check(&browser, &format!("thread=t{}", report["threads"][0]["tid"]));
    assert_eq!(of_thread["exact"], true, "{of_thread:#}");
    assert_eq!(of_thread["whole"], report["threads"][0]["total_ns"], "{of_thread:#}");
    let samples = Viewed::of(file, &["--samples"]);
    assert_ne!(samples.check(&browser, "")["event"], "wall-time");
}

/// Checks that with --firefox the address is that of the Firefox Profiler, which is led to this
/// server, and that the server gives its page a profile of all samples, and no one else.
#[test]
fn firefox_profiler_is_served() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/recordings/plain.data");
    let viewed = Viewed::by(&["view", "--firefox", "--no-open", "-q", file]);
    let rest = viewed.address.strip_prefix("https://profiler.firefox.com/from-url/").expect("its address");
    let (from, _) = rest.split_once("/?symbolServer=").expect("a server of symbols");
    let from = from.replace("%3A", ":").replace("%2F", "/").replace("%2E", ".");
    let (port, path) = from
        .strip_prefix("http://127.0.0.1:")
        .and_then(|rest| rest.split_once('/'))
        .expect("the address of this server");
    let port: u16 = port.parse().expect("a port");
    let answer = get(port, &format!("/{path}"), "Origin: https://profiler.firefox.com\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let profile: Value = serde_json::from_str(body).expect("JSON");
    let threads = profile["threads"].as_array().expect("threads");
    let shown: u64 = threads.iter().filter_map(|thread| thread["samples"]["length"].as_u64()).sum();
    let events: Value =
        serde_json::from_str(&kymo().run(["query", file, "events", "--json", "-q"]).stdout).expect("JSON");
    let samples = events["events"].as_array().expect("events").iter();
    let samples: u64 = samples.filter_map(|event| event["samples"].as_u64()).sum();
    assert_eq!(shown, samples);
    let denied = get(port, &format!("/{path}"), "Origin: https://example.com\r\n");
    assert!(!denied.starts_with("HTTP/1.1 200"), "{denied}");
    assert_eq!(viewed.end(), Some(0));
}

/// The answer to a request, its head and its body.
fn get(port: u16, path: &str, lines: &str) -> String {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("a server");
    let head = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n{lines}\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Checks the words of what cannot be shown: no recording, and a port that is taken.
#[test]
fn refusals() {
    kymo().run(["view", "--no-open", "/dev/null"]).ends(1);
    let said = kymo().run(["view", "--no-open", "there-is-none"]).ends(1);
    said.says("failed to open there-is-none");
    assert_eq!(said.stdout, "", "there is an address of nothing");
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/recordings/plain.data");
    kymo().run(["view", "--no-open", "--port", &port, file]).ends(1).says("--port 0 takes a free one");
}
