//! Three releases of perf and kymo: each kind of recording, recorded by one and read by the other.
//!
//! `ci/perfs.sh` unpacks the perfs of three Debian releases beside each other, and `KYMO_PERFS` names the folder
//! (`target/perfs` if it is not set). Usually the kinds of `QUICK` are recorded with each; with `KYMO_SOAK=1`, all.
//! `KYMO_MATRIX_KIND` chooses those whose names have a part.

mod defects;
mod forms;
mod kinds;

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use self::defects::{COMPLAINTS, MISCOUNTS, ROWS, TRACES};
use self::forms::recordings;
use self::kinds::{By, KINDS, Kind, QUICK};
use crate::interop::{COUNTS, tables_of};
use crate::scenario::Recording;
use crate::tools::{Need, Tool, kymo, ready, skip};

/// What `ci/perfs.sh` unpacked under this name, if it did.
pub(crate) fn unpacked(name: &str) -> PathBuf {
    let folder = std::env::var_os("KYMO_PERFS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/perfs"), PathBuf::from);
    folder.join(name)
}

/// The perf of a Debian release, if it was unpacked.
pub(crate) fn perf_of(suite: &str) -> Option<Tool> {
    let path = unpacked(suite).join("perf");
    path.is_file().then_some(Tool { name: "perf", path })
}

/// What perf says on stderr about a file beside what [`COMPLAINTS`] explains, and how it ended.
fn complaints(perf: &Tool, recording: &Recording) -> Vec<String> {
    let file = recording.path.to_str().expect("a plain name");
    let mut all = Vec::new();
    for arguments in [
        // perf can hang on a group's table with children: see `interop::complaints`.
        &[&["report", "--stdio", "--no-inline", "-i", file], recording.ungrouped()].concat()[..],
        &["report", "--stdio", "--no-inline", "--no-children", "-i", file],
        &["script", "--no-inline", "-i", file],
        &["report", "--header-only", "-i", file],
    ] {
        let said = perf.run(arguments);
        let explained = |line: &&str| COMPLAINTS.iter().any(|complaint| line.contains(complaint.part));
        let lines: Vec<&str> =
            said.stderr.lines().filter(|line| !line.trim().is_empty() && !explained(line)).take(4).collect();
        if said.code != Some(0) || !lines.is_empty() {
            all.push(format!("{} ended with {:?} and said: {}", said.command, said.code, lines.join(" / ")));
        }
    }
    all
}

/// What kymo says about a file: nothing, if it is whole.
fn own_complaints(recording: &Recording) -> Vec<String> {
    let file = recording.path.to_str().expect("a plain name");
    let said = kymo().run(["script", "--no-inline", "-i", file]);
    match said.stderr.trim() {
        "" if said.code == Some(0) => Vec::new(),
        words => vec![format!("{} ended with {:?} and said: {words}", said.command, said.code)],
    }
}

/// The first line in which the printed values of tracepoints and probes differ, beside what [`TRACES`] explains.
fn traces(perf: &Tool, recording: &Recording) -> Vec<String> {
    let file = recording.path.to_str().expect("a plain name");
    let lines = |tool: &Tool| -> Vec<String> {
        let said = tool.succeed(["script", "-i", file, "-F", "tid,time,event,trace"]).stdout;
        let plain = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let explained = |line: &str| {
            let defect = TRACES.iter().find(|defect| line.contains(defect.part));
            defect.and_then(|defect| line.rfind(defect.from)).map_or(line.len(), |at| at)
        };
        said.lines()
            .map(plain)
            .filter(|line| !line.is_empty())
            .map(|line| line[..explained(&line)].to_owned())
            .collect()
    };
    let (theirs, ours) = (lines(perf), lines(&kymo()));
    if theirs.len() != ours.len() {
        return vec![format!("traces: perf has {} lines, kymo {}", theirs.len(), ours.len())];
    }
    let mut differing = theirs.iter().zip(&ours).filter(|(a, b)| a != b);
    let first = differing.next().map(|(a, b)| format!("traces: perf `{a}`, kymo `{b}`"));
    let more = differing.count();
    first.into_iter().map(|line| format!("{line}, and {more} more of {}", ours.len())).collect()
}

/// Records a kind with `tool` and reads it with both; what is wrong.
fn disagreements(perf: &Tool, suite: &str, kind: &Kind, tool: &Tool) -> Vec<String> {
    let all = match recordings(perf, tool, suite, kind) {
        Ok(Some(all)) => all,
        // It was said why it cannot be recorded here.
        Ok(None) => return Vec::new(),
        Err(error) => return vec![error],
    };
    let mut found = Vec::new();
    let miscounts = MISCOUNTS.iter().any(|one| one.kind == kind.name && one.suites.contains(&suite));
    for recording in &all {
        if tool.name == "kymo" {
            found.extend(complaints(perf, recording));
        }
        found.extend(own_complaints(recording));
        // Of a stream, perf learns too late which fields it was asked for, and prints call chains, too.
        if kind.has_traces() && !recording.is_stream() {
            found.extend(traces(perf, recording));
        }
        if !miscounts {
            let lines = tables_of(perf, recording, &COUNTS);
            // The first line tells which command differs, the others how.
            if lines.len() == 1
                || lines.iter().skip(1).any(|line| !ROWS.iter().any(|row| line.contains(row.part)))
            {
                found.extend(lines);
            }
        }
    }
    if all.is_empty() {
        found.push("there is no file".to_owned());
    }
    let by = format!("{} {suite}, {}:", tool.name, kind.name);
    found.into_iter().map(|line| format!("{by} {line}")).collect()
}

/// Every chosen kind with this release, in both directions.
fn release(suite: &'static str) {
    let test = format!("matrix::{suite}");
    if !ready(&test, &[Need::Perf, Need::Root, Need::Tracepoints, Need::Program("python3")]) {
        return;
    }
    let Some(perf) = perf_of(suite) else {
        return skip(&test, format!("no perf of Debian {suite} here; `ci/perfs.sh target/perfs` unpacks it"));
    };
    let only = std::env::var("KYMO_MATRIX_KIND").ok();
    let everything = std::env::var_os("KYMO_SOAK").is_some() || only.is_some();
    let mut found = Vec::new();
    for kind in KINDS {
        let chosen = only.as_deref().is_none_or(|only| kind.name.contains(only));
        if !chosen || !everything && !QUICK.contains(&kind.name) {
            continue;
        }
        let recorders = [(kind.by != By::Kymo).then(|| perf.clone()), (kind.by != By::Perf).then(kymo)];
        for recorder in recorders.iter().flatten() {
            // A recorder that fails must not hide what the other kinds show.
            let lines = catch_unwind(|| disagreements(&perf, suite, kind, recorder)).unwrap_or_else(|_| {
                vec![format!("{} {suite}, {}: failed, see above", recorder.name, kind.name)]
            });
            let verdict = if lines.is_empty() { "agree" } else { "differ" };
            eprintln!("matrix: {suite}: {}, recorded by {}: {verdict}", kind.name, recorder.name);
            found.extend(lines);
        }
    }
    assert!(found.is_empty(), "{} findings:\n{}", found.len(), found.join("\n"));
}

/// Checks perf 6.1: what it records kymo reads as it does, what kymo records it reads without a word and as kymo does.
#[test]
fn bookworm() {
    release("bookworm");
}

/// Checks perf 6.12 in the same way.
#[test]
fn trixie() {
    release("trixie");
}

/// Checks perf 7 in the same way.
#[test]
fn sid() {
    release("sid");
}

/// Checks that the table has the kinds that it should have, each under a name of its own.
#[test]
fn kinds_are_many_and_distinct() {
    let names: std::collections::BTreeSet<&str> = KINDS.iter().map(|kind| kind.name).collect();
    assert_eq!(names.len(), KINDS.len());
    assert!(QUICK.iter().all(|quick| names.contains(quick)));
    assert!(KINDS.len() >= 70, "{}", KINDS.len());
}
