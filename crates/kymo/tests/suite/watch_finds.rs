//! Programs with a bug that nothing but a watchpoint shows, each found with one `kymo watch`.
//! docs/reference/places.md and docs/tasks/who-writes.md have what it prints.

use std::process::Command;

use serde_json::Value;

use crate::programs;
use crate::tools::{Running, kymo, skip};
use crate::watch::{Armed, alone, filtered, hits, objects};

/// A program that said "ready" and waits for a byte.
fn waiting(source: &str) -> Running {
    let mut program = Running::start(&mut Command::new(programs::build(source, &[])));
    assert_eq!(program.line(), "ready\n");
    program
}

/// Lets it go on; what it prints to its end.
fn finish(mut program: Running) -> String {
    program.tell("g");
    program.end().0
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
    let program = waiting("stale.c");
    let armed = Armed::start(&["account->balance"], &program.pid());
    let as_they_were = filtered(TEST, &armed.header);
    assert!(finish(program).contains("balance 57"), "the bug is there");
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
    let program = crate::copied::built("neighbour.c", &[]);
    let said = kymo().succeed(["watch", "--json", "channels[3].limit", "--", program]);
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
    let shop = crate::copied::built("shop.c", &["-O1", "-fno-omit-frame-pointer"]);
    let said = kymo().succeed(["watch", "--json", "settings.open", "--", shop, "1"]);
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
    let program = waiting("wrongflag.c");
    let armed = Armed::start(&["--if", "new==0", "workers[42].running"], &program.pid());
    let as_they_were = filtered(TEST, &armed.header);
    assert!(finish(program).contains("worker 42 did 11 of 20 rounds"), "the bug is there");
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
