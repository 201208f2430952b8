//! Options of `report` that choose, divide and name rows: the same lines as perf's, for the same recording.

use std::path::PathBuf;
use std::sync::OnceLock;

use crate::perf_verbs::newest_perf;
use crate::programs::build;
use crate::scenario::{FORKS, fresh_folder, record};
use crate::tools::{Need, Tool, kymo, names_of_perf, perf, ready, skip, text};

/// A recording of user space by perf, in which all names are of files.
fn recording() -> &'static PathBuf {
    static RECORDING: OnceLock<PathBuf> = OnceLock::new();
    RECORDING.get_or_init(|| {
        record(&perf(), "report-options", &["-e", "cpu-clock:u", "-F", "5000", "-g"], FORKS).path
    })
}

/// The rows of a table, without call graphs and without the space between fields. The widths of columns are compared by
/// the tests of tables, and perf sizes that of thread names by the names that they had last.
fn rows(tool: &Tool, file: &str, arguments: &[&str]) -> Vec<String> {
    let words = ["report", "-i", file, "--stdio", "--no-inline"];
    let said = tool.succeed([&words, arguments, names_of_perf(tool)].concat());
    // Call graphs have their own tests, and objdump judges the names of jump stubs. What resolves
    // them has no name in perf 6.1. An address alone is of a call graph, too.
    let is_row = |line: &&str| {
        let line = line.trim_start();
        let begins = line.starts_with(|c: char| c.is_ascii_digit() || c == 'n') && !line.starts_with("0x");
        begins && !line.contains("plt") && !line.contains(" 0x0000")
    };
    let lines = said.stdout.lines().filter(is_row);
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// The same, where tools order equal ones differently.
fn sorted(tool: &Tool, file: &str, arguments: &[&str]) -> Vec<String> {
    let mut rows = rows(tool, file, arguments);
    rows.sort();
    rows
}

fn same(theirs: Vec<String>, ours: Vec<String>, arguments: &[&str]) {
    assert!(!theirs.is_empty(), "perf shows no rows for {arguments:?}");
    let first = theirs.iter().zip(&ours).find(|(a, b)| a != b);
    let (their, our) = (theirs.len(), ours.len());
    assert!(theirs == ours, "{arguments:?}: {their} rows, kymo {our}; the first that differ: {first:?}");
}

/// Checks sort keys, filters and shares against the installed perf.
#[test]
fn rows_are_those_of_perf() {
    if !ready("report_options::rows_are_those_of_perf", &[Need::Perf]) {
        return;
    }
    const FLAT: [&str; 3] = ["--no-children", "-g", "none"];
    let file = text(recording());
    for options in [
        &["-s", "period,dso"][..],
        &["-s", "overhead,dso"],
        &["-s", "sample,dso"],
        &["-s", "dso", "--show-cpu-utilization"],
        &["-s", "sym", "-d", "libc.so.6", "--percentage", "relative"],
        &["-s", "dso", "--time", "50%/2"],
        &["-s", "dso", "--time", "0%-40%,50%-90%"],
        &["--hierarchy", "-s", "dso,sym"],
        &["--hierarchy", "-s", "dso,sym", "-n", "--percent-limit", "3"],
    ] {
        let arguments = [options, &FLAT].concat();
        same(rows(&perf(), file, &arguments), rows(&kymo(), file, &arguments), &arguments);
    }
    // By a program with frame pointers: in others it is chance whether a chain has `main` in it.
    let program = build("spin.c", &["-fno-omit-frame-pointer"]);
    let events = ["-e", "cpu-clock:u", "-F", "5000", "-g"];
    let chains = record(&perf(), "report-options-chains", &events, &[text(&program)]).path;
    for options in [&["-s", "parent", "-p", "main|sort"][..], &["-s", "parent,dso", "-p", "main", "-x"]] {
        let arguments = [options, &FLAT].concat();
        let file = text(&chains);
        same(rows(&perf(), file, &arguments), rows(&kymo(), file, &arguments), &arguments);
    }
}

/// Checks graphs with shares of the branch above, and stacks as lines, line by line against perf.
#[test]
fn graphs_are_those_of_perf() {
    if !ready("report_options::graphs_are_those_of_perf", &[Need::Perf]) {
        return;
    }
    let program = build("call_mix.c", &["-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"]);
    let events = ["-e", "cpu-clock:u", "-F", "999", "-g"];
    let chains = record(&perf(), "report-options-graphs", &events, &[text(&program)]).path;
    // With 30 per cent a branch is left out, which `[...]` stands for.
    let fractal = ["fractal,0.5,caller", "fractal,10,callee", "fractal,30,callee"];
    for graph in fractal.into_iter().chain(["folded,0.5,caller", "folded,5,callee"]) {
        let arguments = ["report", "--stdio", "--no-children", "--no-inline", "-s", "dso,sym", "-g", graph];
        let lines = |tool: &Tool| -> Vec<String> {
            let file = ["-i", text(&chains)];
            let said = tool.succeed([&arguments[..], names_of_perf(tool), &file].concat()).stdout;
            let lines = said.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
            // perf 6.1 says of what `[...]` stands for that it is inlined, in some runs.
            lines.map(|line| line.trim_end().replace("[...] (inlined)", "[...]")).collect()
        };
        let (mut theirs, mut ours) = (lines(&perf()), lines(&kymo()));
        assert!(theirs.len() > 4, "{graph}: {theirs:?}");
        // Stacks with equal counts come in any order.
        if graph.starts_with("folded") {
            theirs.sort_unstable();
            ours.sort_unstable();
        }
        assert_eq!(ours, theirs, "{graph}");
    }
}

/// Checks sort keys that the newest perf prints better than older ones.
#[test]
fn rows_are_those_of_the_newest_perf() {
    let Some(newest) = newest_perf("report_options::rows_are_those_of_the_newest_perf") else { return };
    if !ready("report_options::rows_are_those_of_the_newest_perf", &[Need::Perf]) {
        return;
    }
    for options in [
        &["-s", "time,dso"][..],
        &["-s", "time,dso", "--time-quantum", "10ms"],
        &["-s", "+cpu"],
        &["-s", "dso", "--hide-unresolved"],
        &["--symbol-filter=str"],
    ] {
        let file = text(recording());
        let arguments = [options, &["--no-children", "-g", "none"]].concat();
        same(sorted(&newest, file, &arguments), sorted(&kymo(), file, &arguments), &arguments);
    }
}

/// Checks that a dump of all records has the lines of the newest perf: bytes, samples with their
/// chains, and what the kernel tells of tasks and mappings.
#[test]
fn dumped_records_are_those_of_the_newest_perf() {
    const TEST: &str = "report_options::dumped_records_are_those_of_the_newest_perf";
    let Some(newest) = newest_perf(TEST) else { return };
    if !ready(TEST, &[Need::Perf]) {
        return;
    }
    // What the recorder itself writes has a line here, and details in perf.
    const KERNEL: [&str; 6] = ["SAMPLE(", "MMAP2 ", "COMM", "EXIT(", "FORK(", "FINISHED_ROUND"];
    let dumped = |tool: &Tool| {
        let said = tool.succeed(["report", "-D", "-i", text(recording())]);
        let is_shared = |line: &&str| {
            let kind = line.split_once(": PERF_RECORD_").map(|(_, rest)| rest);
            match kind {
                Some(rest) => KERNEL.iter().any(|kind| rest.starts_with(kind)),
                None => ["0x", ".  ", ". ...", "... FP", ".....", " ... thread"]
                    .iter()
                    .any(|s| line.starts_with(s)),
            }
        };
        let mut lines: Vec<String> =
            said.stdout.lines().filter(is_shared).map(|l| l.trim_end().to_owned()).collect();
        // Records of one moment have no order.
        lines.sort();
        lines
    };
    same(dumped(&newest), dumped(&kymo()), &["-D"]);
}

/// A shell that computes alone, with one of its children, and with two at once.
const IN_TURNS: &str = "count() { i=0; while [ $i -lt 40000 ]; do i=$((i + 1)); done; }
    count; (count) & wait; (count) & (count) & wait; count";

/// Checks the shares of the time that the whole took against perf's, for recordings of both tools,
/// with call chains and without, and that one number of threads has as many samples alone.
#[test]
fn shares_of_the_time_that_the_whole_took() {
    const TEST: &str = "report_options::shares_of_the_time_that_the_whole_took";
    let Some(newest) = newest_perf(TEST) else { return };
    if !ready(TEST, &[Need::Perf]) {
        return;
    }
    let folder = fresh_folder("report-latency");
    let file = folder.join("perf.data");
    let file = text(&file);
    for (recorder, scope, has_tree) in
        [(&newest, &[][..], false), (&newest, &["-g"], true), (&kymo(), &["--scope", "inherit"], true)]
    {
        let options = ["record", "--latency", "-e", "cpu-clock:u", "-o", file];
        recorder.succeed([&options, scope, &["--", "sh", "-c", IN_TURNS]].concat());
        let flat: &[&str] = if has_tree { &["-g", "none"] } else { &[] };
        for words in [
            &["-s", "parallelism"][..],
            &["-s", "latency,parallelism"],
            &["-s", "sym"],
            &["-s", "comm,sym", "--latency"],
            &["-F", "latency,comm,parallelism", "--percentage", "relative", "--parallelism=1"],
            &["-s", "comm", "--parallelism=1-2,7"],
            &["--hierarchy", "-s", "latency,parallelism,comm"],
        ] {
            // perf adds what a thread count's callers have to each of them, more than once.
            let words = [words, &["--no-children"], flat].concat();
            same(sorted(&newest, file, &words), sorted(&kymo(), file, &words), &words);
        }
        let of = |part: &[&str]| {
            let words =
                ["report", "-q", "-i", file, "--no-children", "-g", "none", "-t", ",", "-F", "sample"];
            let rows = kymo().succeed([&words[..], &["-s", "parallelism"], part].concat()).stdout;
            let row =
                |line: &str| line.split_once(',').map(|(n, of)| (n.trim().to_owned(), of.trim().to_owned()));
            rows.lines().filter(|line| !line.starts_with('#')).filter_map(row).collect::<Vec<_>>()
        };
        let all = of(&[]);
        let part: Vec<_> = all.iter().filter(|(_, threads)| threads == "2").cloned().collect();
        if part.is_empty() {
            skip(TEST, "a busy machine never ran two of the program's threads at once");
            continue;
        }
        assert!(part.len() < all.len(), "{all:?}");
        assert_eq!(of(&["--parallelism", "2"]), part);
    }
}

/// Checks that nobody is told how many threads ran by a recording without context switches, and
/// that a recording of the whole machine, or of a cgroup, never has more threads than CPUs.
#[test]
fn threads_that_ran() {
    let folder = fresh_folder("report-threads");
    let file = folder.join("perf.data");
    let file = text(&file);
    let command = ["--", "sh", "-c", IN_TURNS];
    kymo().succeed([&["record", "-e", "cpu-clock:u", "-o", file][..], &command].concat());
    for words in [&["--latency"][..], &["-s", "parallelism"], &["--parallelism=1"]] {
        let said = kymo().run([&["report", "-i", file], words].concat()).ends(129);
        said.says("no context switches").says("kymo record --latency");
    }
    let cpus = kymo_perf::sys::online_cpus().len();
    let scopes: &[&[&str]] = match rustix::process::geteuid().is_root() {
        true => &[&[], &["-a"]],
        false => &[&[]],
    };
    for scope in scopes {
        let options = ["record", "--latency", "-e", "cpu-clock:u", "-o", file];
        let said = kymo().succeed([&options, *scope, &command].concat()).stderr;
        let words = ["report", "-q", "-i", file, "--no-children", "-g", "none", "-F", "parallelism"];
        let counts: Vec<usize> =
            (kymo().succeed(words).stdout.lines()).filter_map(|line| line.trim().parse().ok()).collect();
        // On a busy machine all CPUs run something whenever one is sampled.
        let least = if scope.is_empty() { 1 } else { cpus };
        assert!(counts.iter().any(|count| *count <= least), "{scope:?}: {counts:?}: {said}");
        assert!(counts.iter().all(|count| *count <= cpus), "{scope:?}: {counts:?}: {said}");
    }
}

/// Checks source lines where there is debug information, and what stands for them elsewhere.
#[test]
fn source_lines() {
    let Some(newest) = newest_perf("report_options::source_lines") else { return };
    if !ready("report_options::source_lines", &[Need::Perf, Need::Program("gcc")]) {
        return;
    }
    let folder = fresh_folder("report-lines");
    let (source, program, data) = (folder.join("lines.c"), folder.join("lines"), folder.join("perf.data"));
    let code =
        "int main(void)\n{\n\tvolatile long n = 0;\n\twhile (n < 200000000)\n\t\tn++;\n\treturn 0;\n}\n";
    std::fs::write(&source, code).expect("written");
    let gcc = Tool { name: "gcc", path: PathBuf::from("gcc") };
    gcc.succeed(["-g", "-O1", "-o", text(&program), text(&source)]);
    perf().succeed(["record", "-q", "-e", "cpu-clock:u", "-o", text(&data), "--", text(&program)]);
    let arguments = ["-s", "srcline", "--percent-limit", "1"];
    let (theirs, ours) = (rows(&newest, text(&data), &arguments), rows(&kymo(), text(&data), &arguments));
    assert_eq!(theirs, ours);
    assert!(ours.iter().any(|row| row.contains("lines.c:")), "{ours:?}");
}

/// Checks the outputs of tracepoints as rows.
#[test]
fn traces() {
    let Some(newest) = newest_perf("report_options::traces") else { return };
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/recordings/tracepoint.data");
    let arguments = ["-s", "trace", "--no-children", "-g", "none"];
    same(sorted(&newest, file, &arguments), sorted(&kymo(), file, &arguments), &arguments);
}

/// Checks that stacks are cut below the functions whose callees are ignored.
#[test]
fn ignored_callees() {
    if !ready("report_options::ignored_callees", &[Need::Perf]) {
        return;
    }
    let file = text(recording());
    // Not jump stubs, which perf names as their neighbours.
    for pattern in ["main", "^_dl_[^@]*$|^dl_[^@]*$", "no such function"] {
        let arguments = ["--ignore-callees", pattern, "-F", "sample,dso,sym", "--no-children"];
        same(sorted(&perf(), file, &arguments), sorted(&kymo(), file, &arguments), &arguments);
    }
}

/// Checks the tree of tasks and their mappings: the same lines as perf's, which lists them by a hash of their ids.
#[test]
fn tasks_and_mappings() {
    if !ready("report_options::tasks_and_mappings", &[Need::Perf]) {
        return;
    }
    for what in ["--tasks", "--mmaps"] {
        let lines = |tool: &Tool| {
            let said = tool.succeed(["report", "-i", text(recording()), what]);
            let mut lines: Vec<String> = said.stdout.lines().map(|line| line.trim_end().to_owned()).collect();
            lines.sort();
            lines
        };
        let (theirs, ours) = (lines(&perf()), lines(&kymo()));
        let first = theirs.iter().zip(&ours).find(|(a, b)| a != b);
        assert!(theirs == ours, "{what}: {} lines, kymo {}: {first:?}", theirs.len(), ours.len());
    }
}

/// Checks that the header has every line of perf's, but for what kymo does not read (BPF programs, memory blocks).
#[test]
fn header() {
    let Some(newest) = newest_perf("report_options::header") else { return };
    if !ready("report_options::header", &[Need::Perf]) {
        return;
    }
    for options in [&["--header-only"][..], &["--header-only", "-I"]] {
        let lines = |tool: &Tool| -> Vec<String> {
            let said = tool.succeed([&["report", "-i", text(recording())], options].concat());
            said.stdout.lines().map(str::to_owned).collect()
        };
        let ours = lines(&kymo());
        let unread = ["bpf_prog_info", "sub_prog", "btf info", "memory nodes", "#    "];
        for line in lines(&newest).iter().filter(|line| !unread.iter().any(|part| line.contains(part))) {
            assert!(ours.contains(line), "{options:?}: no line {line:?} in\n{}", ours.join("\n"));
        }
    }
}

/// Checks that the header of a recording in a pipe has what that of a file has, and a date.
#[test]
fn header_of_a_pipe() {
    let script = r#""$0" record -o - -e cpu-clock:u -- true | "$0" report --header-only -I -i -"#;
    let shell = Tool { name: "sh", path: "sh".into() };
    let piped = shell.succeed(["-c", script, text(&kymo().path)]);
    for line in ["# captured on    : ", "# hostname : ", "# nrcpus online : ", "# cmdline : ", "# sibling"] {
        piped.prints(line);
    }
}

/// Checks options that have another form than perf's, or no effect, and that beginnings of names are enough.
#[test]
fn other_forms() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/recordings/callgraph.data");
    let folder = tempfile::tempdir().expect("a folder");
    let folded = folder.path().join("stacks.txt");
    kymo().succeed(["report", "-q", "-i", file, "--folded", text(&folded)]);
    let said = kymo().succeed(["report", "-q", "-i", file, "--folded"]).stdout;
    assert_eq!(std::fs::read_to_string(folded).expect("a file"), said);
    kymo().succeed(["report", "-i", file, "-M", "intel"]).says("disassembles nothing");
    kymo().succeed(["report", "-i", file, "--group"]).says("one by one");
    kymo().succeed(["report", "-i", file, "--task"]).prints("swapper");
    kymo().run(["report", "-i", file, "-s", "dso_from"]).ends(129).says("branch stacks");
    kymo().run(["report", "-i", file, "-p", "("]).ends(129);
    kymo().run(["report", "-i", file, "--time", "5%/0"]).ends(129).says("10%/2");
    kymo().run(["report", "-i", file, "--time-quantum", "0ms"]).ends(129).says("100ms");
}
