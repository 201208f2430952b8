//! Options of `stat` that perf has, too.

use crate::matrix::perf_of;
use crate::tools::{Need, Said, kymo, perf, require, skip};

const SPIN: [&str; 3] = ["sh", "-c", "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done"];

fn stat(options: &[&str]) -> Said {
    kymo().run([&["stat"], options, &["--"], &SPIN].concat())
}

/// The fields of each line of CSV.
fn fields(said: &Said) -> Vec<Vec<String>> {
    let lines = said.stderr.lines().filter(|line| line.contains(','));
    lines.map(|line| line.split(',').map(|field| field.trim().to_owned()).collect()).collect()
}

/// Checks the times that the tool measures itself, beside perf's: unit and name, and that they are the command's.
#[test]
fn times_of_the_tool() {
    const TEST: &str = "stat_options::times_of_the_tool";
    let Some(()) = require(TEST, &[Need::Perf]) else { return };
    let options = ["-x,", "-e", "duration_time,user_time,system_time,task-clock"];
    let ours = fields(&stat(&options).ends(0));
    let theirs = fields(&perf().succeed([&["stat"], &options[..], &["--"], &SPIN].concat()));
    let named =
        |rows: &[Vec<String>]| rows.iter().map(|row| (row[1].clone(), row[2].clone())).collect::<Vec<_>>();
    assert_eq!(named(&ours), named(&theirs));
    let value = |row: usize| ours[row][0].parse::<f64>().unwrap_or(0.0);
    let (wall, cpu, clock) = (value(0), value(1) + value(2), value(3) * 1e6);
    assert!(wall > 0.0 && cpu > 0.0 && cpu <= wall * 1.5 + 2e7, "{ours:?}");
    assert!((cpu - clock).abs() < 2e7 + 0.2 * clock, "{ours:?}");
    let said = kymo().run(["record", "-e", "duration_time", "--", "true"]).ends(129);
    said.says("duration_time is measured by `kymo stat`");
}

/// Checks that sums over caches and clusters are called as perf calls them.
#[test]
fn caches_and_clusters() {
    const TEST: &str = "stat_options::caches_and_clusters";
    let Some(()) = require(TEST, &[Need::Root]) else { return };
    let Some(perf) = perf_of("sid") else { return skip(TEST, "perf of sid is not unpacked (make setup)") };
    for option in ["--per-cache", "--per-cluster", "--per-cache=L2"] {
        let options = ["stat", "-a", "-x,", option, "-e", "context-switches", "--", "sleep", "0.05"];
        let place = |said: Said| fields(&said).iter().map(|row| row[..2].join(" ")).collect::<Vec<_>>();
        assert_eq!(place(kymo().succeed(options)), place(perf.succeed(options)), "{option}");
    }
}

/// Checks that filters are those of the tracepoint before them.
#[test]
fn filters() {
    const TEST: &str = "stat_options::filters";
    let Some(()) = require(TEST, &[Need::Root, Need::Tracepoints]) else { return };
    let event = "sched:sched_process_exec";
    let options = ["-a", "-x,", "-e", event, "-e", event, "--filter", "filename ~ \"*nosuch*\""];
    let rows = fields(&stat(&options).ends(0));
    assert!(rows[0][0] != "0" && rows[1][0] == "0", "{rows:?}");
    stat(&["-e", event, "--filter", "nosuch == 1"]).ends(1).says("has no field `nosuch`");
}

/// Checks the marks of a summary in CSV, a quiet run, and that a table of metrics has no counts.
#[test]
fn forms() {
    let intervals = ["-I", "50", "--interval-count", "2", "--summary", "-x,", "-e", "task-clock:u"];
    let summary = |more: &[&str]| {
        let said = kymo().run([&["stat"], &intervals[..], more, &["sleep", "1"]].concat()).ends(0);
        fields(&said).last().expect("a line").clone()
    };
    assert_eq!(summary(&[])[0], "summary");
    assert_ne!(summary(&["--no-csv-summary"])[0], "summary");
    let quiet = stat(&["--quiet", "-e", "task-clock:u"]).ends(0);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
    let metrics = stat(&["--metric-only", "-e", "task-clock:u,page-faults:u"]).ends(0);
    assert!(!metrics.stderr.contains("task-clock"), "{}", metrics.stderr);
    metrics.says("seconds time elapsed");
}

/// Checks that metrics that are asked for by name are called as perf calls them, alone and behind
/// the counts.
#[test]
fn metrics_by_name() {
    const TEST: &str = "stat_options::metrics_by_name";
    let Some(()) = require(TEST, &[Need::Perf]) else { return };
    let Some(perf) = perf_of("sid") else { return skip(TEST, "perf of sid is not unpacked (make setup)") };
    for name in ["cs_per_second", "migrations_per_second", "page_faults_per_second"] {
        let alone = ["stat", "-x;", "--metric-only", "-M", name, "--", "true"];
        let (ours, theirs) = (kymo().succeed(alone), perf.succeed(alone));
        let heading = |said: &Said| said.stderr.lines().next().map(str::to_owned);
        assert_eq!(heading(&ours), heading(&theirs));
        let value = ours.stderr.lines().nth(1).and_then(|line| line.strip_suffix(';'));
        value.and_then(|value| value.parse::<f64>().ok()).unwrap_or_else(|| panic!("{}", ours.stderr));
        let behind = ["stat", "-x,", "-M", name, "--", "true"];
        // Which of its two events perf counts first, with the metric after it, depends on the machine.
        let metric = |said: Said| {
            let row = fields(&said).into_iter().find(|row| row[6].ends_with(name));
            row.map(|row| row[6].clone())
        };
        let ours = metric(kymo().succeed(behind));
        assert!(ours.is_some(), "{name}");
        assert_eq!(ours, metric(perf.succeed(behind)));
    }
}

/// The lines of counts of a report, without the rates behind them, which perf prints for its own
/// recordings only from some release on.
fn counts(report: &str) -> Vec<String> {
    let of_event = |line: &&str| {
        line.contains("task-clock") && !line.contains("stats for") || line.contains("page-faults  ")
    };
    let plain = |line: &str| {
        line.split('#').next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    report.lines().filter(of_event).map(plain).collect()
}

/// Checks that recordings of counts, of both tools, are printed alike by both, whole and in
/// intervals, and that verbs for samples say what reads them.
#[test]
fn recorded_counts() {
    const TEST: &str = "stat_options::recorded_counts";
    let Some(()) = require(TEST, &[Need::Perf, Need::Root]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("counts.data");
    let file = file.to_str().expect("a plain path");
    for options in [&["-e", "task-clock,page-faults"][..], &["-e", "task-clock", "-a", "-A", "-I", "60"]] {
        for recorder in [kymo(), perf()] {
            let record = ["stat", "record", "-o", file];
            recorder.succeed([&record, options, &["--", "sleep", "0.1"]].concat());
            let (ours, theirs) = (
                kymo().succeed(["stat", "report", "-i", file]).stdout,
                perf().succeed(["stat", "report", "-i", file]).stderr,
            );
            assert!(!counts(&ours).is_empty(), "{ours}");
            assert_eq!(counts(&ours), counts(&theirs), "{options:?}");
            let lines = |tool: &crate::tools::Tool| {
                let said = tool.succeed(["script", "-i", file]).stdout;
                said.lines()
                    .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
                    .collect::<Vec<_>>()
            };
            assert_eq!(lines(&kymo()), lines(&perf()), "{options:?}");
        }
    }
    kymo().run(["report", "-i", file]).prints("`kymo stat report` prints them");
    kymo().run(["stat", "report", "-i", "/dev/null"]).ends(1).says("empty");
    kymo().run(["stat", "record", "-r", "2", "-o", file, "--", "true"]).ends(129).says("one run");
}

/// Checks that counts go through a pipe, beside a command that prints.
#[test]
fn counts_through_a_pipe() {
    let program = kymo();
    let path = program.path().to_str().expect("a plain path");
    let line = format!(
        "'{path}' stat record -e task-clock:u -o - -- echo hello 2>/dev/null | '{path}' stat report -i -"
    );
    let said = crate::tools::run(std::process::Command::new("sh").args(["-c", &line])).ends(0);
    said.prints("Performance counter stats for 'pipe'").prints("task-clock");
}

/// Checks that modes of the processor are those of all events, and that what kymo does not have is refused by name.
#[test]
fn modes_and_refusals() {
    let said =
        stat(&["-x,", "--all-user", "-S", "--affinity", "-v", "-v", "-e", "task-clock,page-faults"]).ends(0);
    said.says("task-clock");
    stat(&["-M", "ipc"]).ends(129).says("Cannot find metric or group `ipc'");
    stat(&["--topdown"]).ends(129).says("--topdown is not in kymo");
}
