//! `kymo query`: its answers are those of `kymo report`, in three forms; and what it says of a
//! question that has none.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::programs::build;
use crate::reference::keys;
use crate::scenario::fresh_folder;
use crate::tools::{Need, kymo, require, text};

fn recording() -> String {
    format!("{}/../../fixtures/recordings/callgraph.data", env!("CARGO_MANIFEST_DIR"))
}

fn ask(file: &str, query: &str) -> Value {
    kymo().succeed(["query", "--json", file, query]).json()
}

/// The functions of an event, with their four numbers.
fn functions(rows: &Value) -> BTreeSet<String> {
    let row = |row: &Value| {
        let keys = ["name", "module", "self_samples", "self_period", "total_samples", "total_period"];
        keys.map(|key| row[key].to_string()).join(" ")
    };
    rows.as_array().expect("a list").iter().map(row).collect()
}

/// Checks that functions and sums are those of the JSON report, also of a range of time.
#[test]
fn totals_are_those_of_the_report() {
    let file = recording();
    for (options, range) in [(&[][..], ""), (&["--time", "20%-60%"], " where time=20%..60%")] {
        let report = kymo().succeed([&["report", "--json", "-i", &file], options].concat()).json();
        let event = &report["events"][0];
        let answer = ask(&file, &format!("top 1000 by total{range}"));
        assert_eq!(functions(&answer["top"]["rows"]), functions(&event["functions"]));
        assert_eq!(answer["top"]["period"], event["period"]);
        assert_eq!(answer["top"]["samples"], event["samples"]);
        assert_eq!((&answer["event"], &answer["unit"]), (&event["name"], &event["unit"]));
        // The tree has the same sum, at its roots.
        let tree = ask(&file, &format!("tree 0%{range}"));
        let nodes = tree["tree"]["nodes"].as_array().expect("a list");
        let roots = nodes.iter().filter(|node| node["parent"].is_null());
        let sum: u64 = roots.filter_map(|node| node["total_period"].as_u64()).sum();
        assert_eq!(Some(sum), event["period"].as_u64());
    }
}

/// Checks the three forms of an answer.
#[test]
fn as_text_json_and_markdown() {
    let file = recording();
    let said = kymo().succeed(["query", "-q", &file, "top 1 modules"]).stdout;
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() == 4 && lines[0].starts_with("# cpu-clock: "), "{said}");
    assert!(lines[1].ends_with("  what") && lines[2].ends_with("  spin"), "{said}");
    assert_eq!(lines[3], "# and 1 more");
    let answer = ask(&file, "top 1 modules");
    assert_eq!((&answer["schema"], &answer["schema_version"]), (&"kymo-query".into(), &1.into()));
    assert_eq!(
        (&answer["query"], &answer["top"]["rows"][0]["name"]),
        (&"top 1 modules".into(), &"spin".into())
    );
    let said = kymo().succeed(["query", "-q", "--md", &file, "top modules"]).stdout;
    assert!(said.contains("\n| ---: | ---: | ---: | --- |\n") && said.contains("| spin |\n"), "{said}");
    assert!(said.contains("| \\[kernel.kallsyms\\] |\n"), "{said}");
}

/// Checks that a question without an answer is an error of usage that says what is wrong, where,
/// and what there is.
#[test]
fn questions_without_an_answer() {
    let file = recording();
    for (query, words) in [
        ("bottom", "'bottom' is no verb: the verbs are top, tree"),
        ("top where thraed=1", "'thraed' is no field: the fields are time, thread"),
        ("top where module=libm.so", "no module is called 'libm.so', which stands at character 18"),
        ("top where event=cycles", "there are cpu-clock"),
        ("waits", "the recording does not tell where threads waited: record with `kymo record --wall`"),
    ] {
        kymo().run(["query", &file, query]).ends(129).says(words);
    }
}

/// Checks the waits of a real recording: the states are those of `kymo report --wall`, two halves
/// are the whole, and docs/reference/formats/query-json.md lists every key of all answers.
#[test]
fn waits_are_those_of_the_report() {
    if require("query::waits", &[Need::Root, Need::Program("cc")]).is_none() {
        return;
    }
    let file = fresh_folder("query-waits").join("wall.data");
    let program = build("waits.c", &[]);
    let record =
        ["record", "-q", "--wall", "-e", "cpu-clock", "-o", text(&file), "--", text(&program), "chain"];
    kymo().succeed(record);
    let file = text(&file);
    let report = kymo().succeed(["report", "--wall", "--json", "-i", file]).json();
    let answer = ask(file, "waits 1000");
    let states = |answer: &Value| -> Vec<(String, u64)> {
        let list = answer["waits"]["states"].as_array().expect("a list");
        let state = |state: &Value| {
            (state["state"].as_str().unwrap_or("").to_owned(), state["time_ns"].as_u64().unwrap_or(0))
        };
        list.iter().map(state).collect()
    };
    let found = states(&answer);
    let expected = report["states"].as_object().expect("states");
    assert_eq!(found.len(), expected.len(), "{report:#}");
    for (state, time) in &found {
        assert_eq!(expected[state].as_u64(), Some(*time), "{state}");
    }
    assert_eq!(answer["waits"]["period"], report["total_ns"]);
    let halves = ["waits where time=..50%", "waits where time!=..50%"].map(|query| states(&ask(file, query)));
    let sum = |list: &[(String, u64)]| list.iter().map(|(_, time)| time).sum::<u64>();
    assert_eq!(halves.iter().map(|half| sum(half)).sum::<u64>(), sum(&found));
    let document = include_str!("../../../../docs/reference/formats/query-json.md");
    let listed: BTreeSet<String> = document
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned()))
        // Those of `annotate` are checked where there is code to show.
        .filter(|key| !key.starts_with("annotate"))
        .collect();
    let mut every = BTreeSet::new();
    for query in ["waits", "top", "tree 0%", "timeline 4 by thread", "events"] {
        keys(&ask(file, query), "", &mut every);
    }
    assert_eq!(every, listed);
}
