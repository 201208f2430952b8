//! Answers and their formats.

use std::process::{Command, Stdio};

use kymo_dataset::{CompactOptions, DatasetFile, DatasetFolder, compact_in_place};
use serde_json::{Value, json};

use super::{START_NS, ask, dataset, files, kymo_sql, run};

fn rows(words: &[&str]) -> Value {
    let target = dataset();
    let mut words = words.to_vec();
    words.push("--json");
    let text = ask(&words, &target.path().join("profiles"));
    let mut answer: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&answer["schema"], &answer["schema_version"]), (&json!("kymo-sql"), &json!(1)));
    answer["rows"].take()
}

/// Checks the sums of functions against what was written: rows of both hosts are added up once,
/// though each host has written the stacks and the names, too.
#[test]
fn top_functions_are_the_sums_that_were_written() {
    let found = rows(&["--query", "top-functions"]);
    let expected = json!([
        { "function": "[db]", "module": "db", "self_value": 12_000_000, "self_samples": 4, "self_percent": 50.0 },
        { "function": "parse", "module": "web", "self_value": 12_000_000, "self_samples": 4, "self_percent": 50.0 },
    ]);
    assert_eq!(found, expected);
}

/// Checks that rows count once while a compaction in place replaces files: after the merged files are
/// there and before the others are gone, and when a daemon puts some of them again.
#[test]
fn files_that_are_replaced_do_not_count() {
    let target = dataset();
    let profiles = target.path().join("profiles");
    let queries = ["top-functions", "hosts", "units", "waiting", "flame-graph"];
    let answers = || queries.map(|query| ask(&["--query", query, "--csv"], &profiles));
    let count = || ask(&["SELECT COUNT(*) AS rows FROM samples", "--csv"], &profiles);
    let (before, rows) = (answers(), count());
    let folder = DatasetFolder::open(&profiles).expect("a dataset");
    let old: Vec<DatasetFile> = ["a", "b"].iter().flat_map(|host| files(host, 0, START_NS)).collect();
    compact_in_place(&folder, &CompactOptions::default()).expect("compacted");
    assert_eq!((answers(), count()), (before.clone(), rows.clone()));
    old.iter().for_each(|file| folder.put(file).expect("put"));
    assert_eq!((answers(), count()), (before, rows));
}

/// Checks who waits for whom: the waits that were written, with who ended them.
#[test]
fn waits_name_who_ended_them() {
    let expected = json!([{
        "service": "db", "command": "db", "state": "lock", "waits_in": "[db]", "waker": "web",
        "waited": 20_000_000, "waits": 4, "waited_percent": 100.0,
    }]);
    assert_eq!(rows(&["--query", "waiting"]), expected);
}

/// Checks that parameters choose a service and days.
#[test]
fn parameters_choose_what_counts() {
    let words = ["--query", "top-functions", "--param", "service=web", "--param", "first_day=2026-11-27"];
    let found = rows(&words);
    assert_eq!(found.as_array().expect("rows").len(), 1);
    assert_eq!(found[0]["self_value"], json!(8_000_000));
}

/// Checks that every query that comes with kymo has an answer here.
#[test]
fn every_query_answers() {
    let target = dataset();
    let profiles = target.path().join("profiles");
    let list = run(&mut kymo_sql(["--list"])).stdout;
    let names: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names.len(), 12);
    for name in names {
        let csv = ask(&["--query", name, "--csv"], &profiles);
        assert!(csv.lines().count() > 1, "{name} has no rows: {csv}");
    }
}

/// Checks the columns and rows of the text and CSV, with a NULL in each.
#[test]
fn text_and_csv_are_tables() {
    let target = dataset();
    let profiles = target.path().join("profiles");
    let query = "SELECT command, SUM(value) AS ns, MAX(tid) AS tid, 0.5 AS half FROM samples \
                 GROUP BY command ORDER BY command";
    let text = ask(&[query], &profiles);
    assert_eq!(
        text,
        "# command        ns  tid  half\n  db       32000000    -  0.50\n  web      12000000    -  0.50\n"
    );
    assert_eq!(
        ask(&[query, "--csv"], &profiles),
        "command,ns,tid,half\ndb,32000000,,0.5\nweb,12000000,,0.5\n"
    );
}

/// Checks that a query of a file is read, and that several datasets count together.
#[test]
fn datasets_count_together() {
    let (one, two) = (dataset(), dataset());
    let file = one.path().join("query.sql");
    std::fs::write(&file, "-- All of it.\nSELECT COUNT(*) AS n FROM samples;\n").expect("a file");
    let mut command = kymo_sql(["--csv", "--file"]);
    command.arg(&file).arg(one.path().join("profiles")).arg(two.path().join("profiles"));
    let ran = run(&mut command);
    assert_eq!((ran.status, &*ran.stdout), (Some(0), "n\n24\n"), "{}", ran.stderr);
}

/// Checks that an answer without rows is a table, an object and a header.
#[test]
fn answers_may_have_no_rows() {
    let target = dataset();
    let profiles = target.path().join("profiles");
    let query = "SELECT pid FROM samples WHERE pid > 1000";
    assert_eq!(ask(&[query], &profiles), "# pid\n");
    assert_eq!(ask(&[query, "--csv"], &profiles), "pid\n");
    let answer: Value = serde_json::from_str(&ask(&[query, "--json"], &profiles)).expect("JSON");
    assert_eq!(answer["rows"], json!([]));
    assert_eq!(answer["columns"], json!([{ "name": "pid", "type": "integer" }]));
}

/// Checks that a long query shows on a terminal how many files it has read, and takes that away
/// before the answer; without a terminal nothing is shown.
#[test]
fn long_queries_show_their_progress() {
    let sql = "SELECT COUNT(*) AS rows_of_all, SUM(s.value % g.value) AS work FROM samples s, \
               generate_series(1, 30000000) g";
    let target = dataset();
    let words = ["--csv", "--jobs", "1", sql];
    let silent = ask(&words, &target.path().join("profiles"));
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--log-out", "/dev/null", "--command"]);
    command.arg(format!("$KYMO_SQL --csv --jobs 1 \"$QUERY\" {}", target.path().join("profiles").display()));
    command.env("KYMO_SQL", env!("CARGO_BIN_EXE_kymo-sql")).env("QUERY", sql).env("TERM", "xterm");
    command.stdin(Stdio::null());
    let stdout = match command.output() {
        Ok(output) => String::from_utf8(output.stdout).expect("UTF-8"),
        Err(error) => {
            eprintln!("SKIPPED answers::long_queries_show_their_progress: script: {error}");
            return;
        }
    };
    let (progress, answer) = stdout.rsplit_once("\u{1b}[2K").expect("a line that is taken away");
    assert!(progress.contains(" files, "), "{progress}");
    assert_eq!(answer.trim_start_matches(['\r', '\n']).replace('\r', ""), silent);
}
