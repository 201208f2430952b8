//! `kymo view`: the page in a browser, whose selections the server counts.

use std::io::{BufRead as _, BufReader};
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
        let words = [&["view", "--no-open", "-q", file], options].concat();
        let mut child = kymo().command(words).stdout(Stdio::piped()).spawn().expect("kymo starts");
        let mut address = String::new();
        let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
        said.read_line(&mut address).expect("an address");
        let address = address.trim_end().to_owned();
        assert!(address.starts_with("http://127.0.0.1:"), "{address}");
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
