//! `kymo report --loss` and the lines about losses in `--header`, on recordings of perf and of kymo.

use std::path::Path;

use serde_json::Value;

use crate::tools::{Need, Said, kymo, perf, require, text};

fn account(file: &str, jobs: &str) -> Said {
    kymo().succeed(["report", "-q", "-i", file, "--loss", "-", "--json", "-j", jobs])
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

fn sum(items: &Value, key: &str) -> u64 {
    items.as_array().expect("a list").iter().map(|item| number(&item[key])).sum()
}

/// The numbers that `perf report --stats` prints before each event's name and after it, as (section, type, count).
fn stats(file: &str) -> Vec<(String, String, u64)> {
    let said = perf().succeed(["report", "--stats", "-i", file]).stdout;
    let mut section = String::new();
    let mut found = Vec::new();
    for line in said.lines() {
        if let Some(name) = line.strip_suffix("stats:") {
            section = name.trim().to_string();
        } else if let Some((kind, count)) = line.split_once(" events:") {
            let count = count.split_whitespace().next().and_then(|c| c.parse().ok()).expect("a count");
            found.push((section.clone(), kind.trim().to_string(), count));
        }
    }
    found
}

/// Checks that of a recording in which perf lost most samples, kymo reads what perf reads: LOST records, samples kept
/// and lost by event; and that the account holds together and is the same whatever number of threads read it.
#[test]
fn perf_s_losses_are_those_that_perf_counts() {
    let needs = [Need::Perf, Need::Root, Need::Tracepoints];
    let Some(()) = require("perf_s_losses_are_those_that_perf_counts", &needs) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    for (name, options) in [("plain", &[][..]), ("packed", &["-z"][..]), ("threads", &["--threads"][..])] {
        let path = folder.path().join(name);
        let file = text(&path);
        let record = ["record", "-a", "-e", "sched:sched_switch", "-c", "1", "--call-graph", "dwarf,8192"];
        let rest = ["-m", "2", "-o", file, "--", "perf", "bench", "sched", "pipe", "-l", "3000"];
        perf().succeed(record.iter().chain(options).chain(&rest));
        let said = account(file, "1");
        let (account_of_one, json) = (&said.stdout, said.json());
        assert_eq!(*account_of_one, account(file, "3").stdout, "{name}");
        let stats = stats(file);
        let by = |section: &str, kind: &str| {
            stats.iter().find(|(s, k, _)| s == section && k == kind).map_or(0, |(_, _, count)| *count)
        };
        assert_eq!(number(&json["lost_chunks"]), by("Aggregated", "LOST"), "{name}");
        assert_eq!(number(&json["samples"]), by("Aggregated", "SAMPLE"), "{name}");
        let events = json["events"].as_array().expect("a list");
        assert!(
            by(events[0]["name"].as_str().expect("a name"), "SAMPLE") > 0,
            "{name}: perf names the event alike"
        );
        for event in events {
            let section = event["name"].as_str().expect("a name");
            assert_eq!(number(&event["samples"]), by(section, "SAMPLE"), "{name}: {section}");
            assert_eq!(number(&event["lost_samples"]), by(section, "LOST_SAMPLES"), "{name}: {section}");
        }
        for key in ["samples", "lost_records", "lost_chunks"] {
            assert_eq!(number(&json[key]), sum(&json["rings"], key), "{name}: {key}");
        }
        let rings = json["rings"].as_array().expect("a list");
        let most = rings.iter().map(|r| number(&r["lost_ns"])).max().expect("a ring");
        let (any, elapsed) = (number(&json["any_lost_ns"]), number(&json["elapsed_ns"]));
        assert!(
            most <= any && any <= elapsed && any <= sum(&json["rings"], "lost_ns"),
            "{name}: {account_of_one:.900}"
        );
        for ring in rings {
            let of_ring = |i: &&Value| i["kind"] == "loss" && i["ring"] == ring["ring"];
            let intervals = json["intervals"].as_array().expect("a list").iter().filter(of_ring);
            let length: u64 = intervals.map(|i| number(&i["end_ns"]) - number(&i["start_ns"])).sum();
            assert_eq!(length, number(&ring["lost_ns"]), "{name}: {}", ring["ring"]);
        }
        let header = kymo().succeed(["report", "-i", file, "--header-only"]).stdout;
        let lost = format!("# lost : {} of ", json["lost"]);
        assert!(json["lost"] == 0 || header.contains(&lost), "{name}: {header}");
        let table = kymo().succeed(["report", "-q", "-i", file, "--loss", "-"]).stdout;
        assert!(table.contains("CPU 0") && table.contains("sched:sched_switch"), "{name}: {table}");
        for (end, begin) in
            [("svg", "<svg "), ("html", "<!doctype html>"), ("json", "{\n\"schema\""), ("txt", "  ")]
        {
            let picture = folder.path().join(format!("{name}.{end}"));
            let picture = text(&picture);
            let said = kymo().succeed(["report", "-i", file, "--loss", picture]);
            let text = std::fs::read_to_string(picture).expect("the picture");
            assert!(said.stdout.is_empty() && text.starts_with(begin), "{name}: {text:.100}");
            assert!(text.contains("CPU 0"), "{name}: {end}");
        }
    }
}

/// Checks that small recordings of all kinds lost nothing, say so, and count the samples that the report counts; and
/// that `--loss` refuses what it cannot do instead of ignoring it.
#[test]
fn recordings_without_losses() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings");
    for name in ["plain.data", "pipe.data", "threads.dir", "compressed.data", "group.data", "switch.data"] {
        let path = folder.join(name);
        let file = text(&path);
        let json = account(file, "0").json();
        assert_eq!((&json["schema"], &json["lost"]), (&"kymo-loss".into(), &0.into()), "{name}");
        let records = number(&json["samples"]);
        assert!(records > 0 && sum(&json["rings"], "samples") == records, "{name}");
        let header = kymo().succeed(["report", "-i", file, "--header-only"]).stdout;
        assert!(header.contains(&format!("# lost : 0 of {records} samples")), "{name}: {header}");
    }
    let file = folder.join("plain.data");
    let file = text(&file);
    for options in [&["--loss", "x.png"][..], &["--loss", "-", "-C", "0"], &["--loss", "-", "--stats"]] {
        let said = kymo().run([&["report", "-i", file], options].concat());
        assert_eq!((said.code, said.stdout.as_str()), (Some(129), ""), "{}: {}", said.command, said.stderr);
    }
}

/// Checks that a recording which was unwound on the way tells how that went, in the words of the recorder's last lines, in `--header` and in
/// JSON, packed, as a stream and in a file; and that one which kept the stacks tells nothing of it.
#[test]
fn how_unwinding_went_is_in_the_recording() {
    let test = "losses::how_unwinding_went_is_in_the_recording";
    let Some(()) = require(test, &[Need::Program("cc")]) else { return };
    let program = crate::copied::built("deep.c", &["-fomit-frame-pointer"]);
    let folder = tempfile::tempdir().expect("a folder");
    // So few bytes of stack that some walks end early.
    for (name, options) in
        [("plain", &["--call-graph", "dwarf,1024"][..]), ("packed", &["--call-graph", "dwarf,1024", "-z"])]
    {
        let path = folder.path().join(name);
        let file = text(&path);
        let record =
            [&["record", "-F", "4000", "-e", "cpu-clock", "-o", file], options, &["--", program, "40"]];
        let said = kymo().succeed(record.concat());
        let json = account(file, "2").json();
        let unwound = &json["unwound"];
        let stacks = number(&unwound["stacks"]);
        let line = format!("unwound {stacks} stacks, ");
        assert!(stacks > 0 && said.stderr.contains(&line), "{name}: {line:?} in {}", said.stderr);
        assert_eq!(sum(&unwound["ended"], "stacks"), stacks, "{name}");
        let header = kymo().succeed(["report", "-i", file, "--header-only"]).stdout;
        let line = format!("# unwound : {stacks} stacks while recording, ");
        assert!(header.contains(&line), "{name}: {header}");
        for cause in unwound["ended"].as_array().expect("a list").iter().skip(1) {
            let words = format!("{} {}", cause["stacks"], cause["cause"].as_str().expect("words"));
            let is_told =
                header.lines().any(|line| line.starts_with("# cut short : ") && line.contains(&words));
            assert_eq!(cause["stacks"] != 0, is_told, "{name}: {words}: {header}");
            assert!(cause["stacks"] == 0 || said.stderr.contains(&words), "{name}: {words}: {}", said.stderr);
        }
    }
    let path = folder.path().join("raw");
    let file = text(&path);
    kymo().succeed(
        format!("record -e cpu-clock --call-graph dwarf,1024 --raw-stacks -o {file} {program} 5").split(' '),
    );
    let json = account(file, "1").json();
    assert_eq!(json["unwound"], Value::Null);
}
