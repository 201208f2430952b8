//! The options of perf: each works in kymo, is accepted, or is refused with what kymo has instead.

use std::collections::BTreeSet;
use std::path::Path;

use crate::matrix::perf_of;
use crate::tools::{Tool, kymo, skip};

/// The releases of Debian whose perfs are unpacked beside each other.
const SUITES: [&str; 3] = ["bookworm", "trixie", "sid"];

/// The options of a verb that some version of perf has, as the file of them says.
fn listed(verb: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/perf_options/{verb}.txt"));
    let text = std::fs::read_to_string(path).expect("a list of options");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// The options that a perf prints for a verb's `-h`: long names, and letters that have none.
fn of_perf(perf: &Tool, verb: &[&str]) -> BTreeSet<String> {
    let said = perf.run([verb, &["-h"]].concat());
    let text = said.stdout + &said.stderr;
    let option = |line: &str| {
        let indent = line.len() - line.trim_start().len();
        let word = line.split_whitespace().find(|word| !(word.starts_with('-') && word.ends_with(',')))?;
        let name = word.strip_prefix("--").map(str::to_owned);
        let name = name.or_else(|| (word.starts_with('-') && word.len() == 2).then(|| word.to_owned()));
        name.filter(|_| indent == 4 || indent == 8)
            .map(|name| name.split(['[', '=']).next().unwrap_or("").to_owned())
    };
    text.lines().filter_map(option).collect()
}

/// The options of kymo's verb: those of its page, and perf's that the page says are accepted or refused.
fn of_kymo(verb: &str) -> BTreeSet<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let done = kymo().run(["man", "--markdown", folder.path().to_str().expect("a plain name")]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let page = std::fs::read_to_string(folder.path().join(format!("{verb}.md"))).expect("the verb's page");
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let words = cells.flat_map(|cell| cell.split([' ', ',', '[', '=', '.']));
    let options = words.filter(|word| word.starts_with('-'));
    options.map(|word| word.strip_prefix("--").unwrap_or(word).to_owned()).collect()
}

/// Checks that kymo has an answer to every option that some perf has.
fn answered(verb: &str) {
    let missing: Vec<String> = listed(verb).difference(&of_kymo(verb)).cloned().collect();
    assert!(
        missing.is_empty(),
        "kymo {verb} has no answer to perf's {missing:?}: let them work, or add them to its table"
    );
}

/// Checks that the list has every option of the perfs that are here.
fn up_to_date(verb: &str) {
    let test = format!("perf_options::{verb}");
    let listed = listed(verb);
    for suite in SUITES {
        let Some(perf) = perf_of(suite) else {
            skip(&test, format!("perf of {suite} is not unpacked (make setup)"));
            continue;
        };
        let there = of_perf(&perf, &[verb]);
        assert!(there.len() > 30, "{suite}: {there:?}");
        let new: Vec<&String> = there.difference(&listed).collect();
        let file = format!("crates/kymo/tests/perf_options/{verb}.txt");
        assert!(
            new.is_empty(),
            "perf {verb} of {suite} has {new:?}: add them to {file}, with an answer in kymo"
        );
    }
}

/// Checks `record` against the perfs of three releases.
#[test]
fn record() {
    answered("record");
    up_to_date("record");
}

/// Checks `annotate` against the perfs of three releases.
#[test]
fn annotate() {
    answered("annotate");
    up_to_date("annotate");
}

/// Checks `stat` against the perfs of three releases.
#[test]
fn stat() {
    answered("stat");
    up_to_date("stat");
}

/// Checks the views of `sched` against the perfs of three releases: each option is on the page of
/// `kymo sched`.
#[test]
fn sched() {
    let own = of_kymo("sched");
    for suite in SUITES {
        let Some(perf) = perf_of(suite) else {
            skip("perf_options::sched", format!("perf of {suite} is not unpacked (make setup)"));
            continue;
        };
        for view in ["latency", "timehist", "map"] {
            let there = of_perf(&perf, &["sched", view]);
            assert!(there.len() >= 3, "{suite}: {there:?}");
            let missing: Vec<&String> = there.difference(&own).collect();
            assert!(
                missing.is_empty(),
                "perf sched {view} of {suite} has {missing:?}: kymo sched has no answer"
            );
        }
    }
}
