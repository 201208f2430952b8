//! Programs with a bug that nothing but a watchpoint shows, each found with one `kymo watch`.
//! docs/reference/places.md and docs/tasks/who-writes.md have what it prints.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::programs;
use crate::tools::{kymo, skip};
use crate::watch::{Armed, alone, filtered, hits, objects};

/// A program that said "ready" and waits for a byte.
struct Ready {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Ready {
    fn start(program: &Path) -> Ready {
        let child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        Ready { child, out }
    }

    /// Lets it go on; what it prints to its end.
    fn finish(mut self) -> String {
        self.child.stdin.take().expect("a pipe").write_all(b"g").expect("a byte");
        let lines: Vec<String> =
            std::io::Read::by_ref(&mut self.out).lines().map(|line| line.expect("UTF-8")).collect();
        lines.join("\n")
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Function, line and new value of hits, and whether values were read at the hit.
fn told(objects: &[Value], place: u64) -> Vec<(String, u64, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    hits(objects, place)
        .iter()
        .map(|hit| {
            let site = &hit["site"];
            (text(&site["function"]), site["line"].as_u64().unwrap_or(0), text(&hit["new"]))
        })
        .collect()
}

/// The line of a program's source with this text.
fn line_of(source: &str, text: &str) -> u64 {
    let source = std::fs::read_to_string(programs::sources().join(source)).expect("the source");
    source.lines().position(|line| line.contains(text)).expect("the line") as u64 + 1
}

fn lossless(objects: &[Value], test: &str) -> bool {
    let summary = objects.last().expect("a summary");
    let whole = summary["lost"] == 0;
    if !whole {
        skip(test, format!("accesses were lost: {summary}"));
    }
    whole
}

/// Checks that a write through a pointer to freed memory is found at the object that has the memory now.
#[test]
fn a_write_after_free_is_found() {
    const TEST: &str = "a_write_after_free_is_found";
    let Some(_alone) = alone(TEST) else { return };
    let ready = Ready::start(&programs::build("stale.c", &[]));
    let armed = Armed::start(&["account->balance"], &ready.child.id().to_string());
    let as_they_were = filtered(TEST, &armed.header);
    assert!(ready.finish().contains("balance 57"), "the bug is there");
    let (objects, stderr, code) = armed.end();
    assert_eq!(code, Some(0), "{stderr}");
    if !as_they_were || !lossless(&objects, TEST) {
        return;
    }
    let found = told(&objects, 0);
    let strangers: Vec<_> = found.iter().filter(|(function, ..)| function != "deposit").collect();
    assert_eq!((found.len(), strangers.len()), (11, 1), "{found:?}");
    assert_eq!(
        (strangers[0].0.as_str(), strangers[0].1),
        ("timer_tick", line_of("stale.c", "last_seen = now"))
    );
    assert_eq!(hits(&objects, 0)[5]["comm"], "timer");
}

/// Checks that the write behind the end of an array is found at the field that it hits.
#[test]
fn a_write_onto_a_neighbour_is_found() {
    const TEST: &str = "a_write_onto_a_neighbour_is_found";
    let Some(_alone) = alone(TEST) else { return };
    let program = programs::build("neighbour.c", &[]);
    let said = kymo().run(["watch", "--json", "channels[3].limit", "--", program.to_str().expect("UTF-8")]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let objects = objects(&said);
    if !lossless(&objects, TEST) {
        return;
    }
    let found: Vec<(String, u64)> =
        told(&objects, 0).into_iter().map(|(function, line, _)| (function, line)).collect();
    let expected = [
        ("configure".to_owned(), line_of("neighbour.c", "->limit = limit")),
        ("add_sample".to_owned(), line_of("neighbour.c", "used++] = sample")),
    ];
    assert_eq!(found, expected);
}

/// Checks that the book's command finds the write that closes its shop (docs/tasks/who-writes.md).
#[test]
fn the_write_that_closes_the_shop_is_found() {
    const TEST: &str = "the_write_that_closes_the_shop_is_found";
    let Some(_alone) = alone(TEST) else { return };
    let shop = programs::build("shop.c", &["-O1", "-fno-omit-frame-pointer"]);
    let words = ["watch", "--json", "settings.open", "--", shop.to_str().expect("UTF-8"), "1"];
    let said = kymo().run(words);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let objects = objects(&said);
    if !lossless(&objects, TEST) {
        return;
    }
    let line = line_of("shop.c", "settings.log_name[n] = name[n]");
    let closing = told(&objects, 0).into_iter().filter(|(.., new)| new == "0").collect::<Vec<_>>();
    assert!(!closing.is_empty(), "{objects:?}");
    for (function, at, _) in closing {
        assert_eq!((function.as_str(), at), ("rotate_log", line));
    }
}

/// Checks that among 500 threads the one that clears another one's flag is named.
#[test]
fn the_thread_that_clears_a_foreign_flag_is_found() {
    const TEST: &str = "the_thread_that_clears_a_foreign_flag_is_found";
    let Some(_alone) = alone(TEST) else { return };
    let ready = Ready::start(&programs::build("wrongflag.c", &[]));
    let armed = Armed::start(&["--if", "new==0", "workers[42].running"], &ready.child.id().to_string());
    let as_they_were = filtered(TEST, &armed.header);
    assert!(ready.finish().contains("worker 42 did 11 of 20 rounds"), "the bug is there");
    let (objects, stderr, code) = armed.end();
    assert_eq!(code, Some(0), "{stderr}");
    if !as_they_were || !lossless(&objects, TEST) {
        return;
    }
    let names: Vec<&str> = hits(&objects, 0).iter().filter_map(|hit| hit["comm"].as_str()).collect();
    assert_eq!(names, ["worker-317", "worker-42"]);
    let line = line_of("wrongflag.c", ".running = 0;");
    assert!(
        told(&objects, 0).iter().all(|(function, at, _)| function == "retire" && *at == line),
        "{objects:?}"
    );
}
