//! perf and kymo on the same file: who recorded it must not matter to who reads it.
//!
//! Every scenario is recorded once by perf and once by kymo, and each file is then read by both tools. Per-symbol sample
//! counts must be equal exactly, as must the shares of callees and callers, and the printed samples line by line.

use crate::scenario::{Recording, Scenario, record};
use crate::table::{by_name, differences, drop_parameters, name_threads, sections};
use crate::tools::{Need, Said, Tool, kymo, names_of_perf, perf, ready, text};
use crate::tree;

/// How many differing rows one failure prints.
const SHOWN: usize = 12;

/// One way to print a report.
pub(crate) struct View {
    name: &'static str,
    flags: &'static [&'static str],
    /// For perf's `-w`: it sizes the column of thread names by the names that threads had last and cuts the earlier ones.
    /// 16 bytes hold any name; 0 leaves a column before it as it is.
    widths: &'static str,
    /// For `-g`.
    graph: &'static str,
}

pub(crate) const COUNTS: View = View {
    name: "counts",
    flags: &["--no-children", "-F", "sample,comm,dso,sym"],
    widths: "0,16",
    graph: "none",
};
const CHILDREN: View = View {
    name: "children",
    flags: &["--children", "-F", "overhead_children,overhead,sample,comm,dso,sym"],
    widths: "0,0,0,16",
    graph: "none",
};
const CALLERS: View = View {
    name: "callers",
    flags: &["--no-children", "-F", "overhead,comm,dso,sym"],
    widths: "0,16",
    graph: "graph,0.5,callee",
};
const CALLEES: View = View {
    name: "callees",
    flags: &["--children", "-F", "overhead_children,overhead,comm,dso,sym"],
    widths: "0,0,16",
    graph: "graph,0.5,caller",
};

/// Compares both tools on one recording in all respects; returns what differs.
///
/// Without inline frames: perf 6.1 shows them in unwound stacks only, kymo (as newer perfs) in all call chains.
fn disagreements(recording: &Recording) -> Vec<String> {
    let mut all = compare_tables(recording, &COUNTS);
    all.extend(compare_heads(recording));
    if uses_unwinder(recording) {
        // How far a stack can be unwound is the unwinder's own matter, and perf's gives up earlier: counts are what must agree.
        return all;
    }
    if has_call_chains(recording) {
        all.extend(compare_trees(recording, &CALLERS));
        // Of a stream, perf learns too late that there are call chains: its column of children says N/A.
        if !recording.is_stream() {
            all.extend(compare_tables(recording, &CHILDREN));
            all.extend(compare_trees(recording, &CALLEES));
        }
    }
    all.extend(compare_scripts(recording));
    all
}

/// perf says itself what a file's samples hold.
fn samples_hold(recording: &Recording, what: &str) -> bool {
    let file = text(&recording.path);
    perf().succeed(["evlist", "-v", "-i", file]).stdout.contains(what)
}

fn has_call_chains(recording: &Recording) -> bool {
    samples_hold(recording, "CALLCHAIN")
}

fn uses_unwinder(recording: &Recording) -> bool {
    samples_hold(recording, "STACK_USER")
}

/// Values per row of the table, by the installed perf and by kymo.
fn compare_tables(recording: &Recording, view: &View) -> Vec<String> {
    tables_of(&perf(), recording, view)
}

/// Values per row of the table, by this perf and by kymo.
pub(crate) fn tables_of(perf: &Tool, recording: &Recording, view: &View) -> Vec<String> {
    let (theirs, ours) = match reports(perf, recording, view, view.graph) {
        Ok(both) => both,
        Err(said) => return vec![said],
    };
    let what = view.name;
    let mut expected = by_name(&sections(&theirs.stdout), 3);
    let got = by_name(&sections(&ours.stdout), 3);
    drop_parameters(&mut expected, &got);
    name_threads(&mut expected, &got);
    if expected.is_empty() {
        return vec![format!("{what}: perf itself shows no samples: {}\n{}", theirs.command, theirs.stderr)];
    }
    let mut lines = differences(("perf", &expected), ("kymo", &got), SHOWN);
    if !lines.is_empty() {
        lines.insert(0, format!("{what}: of {} rows: {}", expected.len(), ours.command));
    }
    lines
}

/// What perf and kymo report of a recording in a view with this graph; the error says how kymo failed.
fn reports(perf: &Tool, recording: &Recording, view: &View, graph: &str) -> Result<(Said, Said), String> {
    let input = ["report", "-i", text(&recording.path), "--stdio", "--no-inline"];
    let arguments =
        [&input[..], recording.ungrouped(), view.flags, &["-g", graph], of_interest(recording)].concat();
    let theirs = perf.succeed([&arguments[..], &["-w", view.widths]].concat());
    let ours = kymo().run([&arguments[..], names_of_perf(&kymo())].concat());
    let Said { command, code, stderr, .. } = &ours;
    if *code != Some(0) {
        return Err(format!("{}: {command} ended with {code:?}: {}", view.name, stderr.trim()));
    }
    Ok((theirs, ours))
}

/// Call graphs: every branch with its share. Where perf divides what kymo has whole, the parts must
/// add up.
///
/// perf orders callees by the symbol's start or, without a symbol, by the address in memory. Mixed,
/// that is no order: beside an unresolved callee, perf can have the same function twice. So it can
/// with the row of an unresolved address.
fn compare_trees(recording: &Recording, view: &View) -> Vec<String> {
    let (theirs, ours) = match reports(&perf(), recording, view, view.graph) {
        Ok(both) => both,
        Err(said) => return vec![said],
    };
    let (expected, got) = (tree::branches(&theirs.stdout), tree::branches(&ours.stdout));
    let mut lines = differences(("perf", &expected), ("kymo", &got), SHOWN);
    if lines.is_empty() {
        return lines;
    }
    match reports(&perf(), recording, view, &view.graph.replace("0.5", "0")) {
        Ok((theirs, ours)) => {
            let [expected, got] = tree::sums([&theirs.stdout, &ours.stdout]);
            if differences(("perf", &expected), ("kymo", &got), SHOWN).is_empty() {
                return Vec::new();
            }
        }
        Err(said) => lines.push(said),
    }
    lines.insert(0, format!("{}: of {} branches: {}", view.name, expected.len(), ours.command));
    lines
}

/// The comment lines above the tables: number of samples, events, periods.
fn compare_heads(recording: &Recording) -> Vec<String> {
    let file = text(&recording.path);
    let arguments =
        [&["report", "-i", file, "--stdio", "--no-children", "-g", "none"], recording.ungrouped()].concat();
    let heads = |text: &str| -> Vec<String> {
        let kept = |line: &&str| line.starts_with("# Samples:") || line.starts_with("# Event count");
        // With --no-group, perf says "events" even where it shows one.
        text.lines().filter(kept).map(|line| line.replace(" of events '", " of event '")).collect()
    };
    let (theirs, ours) = (heads(&perf().succeed(&arguments).stdout), heads(&kymo().run(&arguments).stdout));
    if theirs == ours { Vec::new() } else { vec![format!("heads: perf {theirs:?}, kymo {ours:?}")] }
}

/// `script`, line by line; lines that are there in another order are said to be so.
fn compare_scripts(recording: &Recording) -> Vec<String> {
    let file = text(&recording.path);
    let theirs = perf().succeed(["script", "-i", file, "--no-inline"]);
    let ours = kymo().run(["script", "-i", file, "--no-inline", "--no-entry-names"]);
    if ours.code != Some(0) {
        return vec![format!("script: {} ended with {:?}: {}", ours.command, ours.code, ours.stderr.trim())];
    }
    let (mut expected, mut got) = (samples(recording, &theirs.stdout), samples(recording, &ours.stdout));
    let Some(first) = first_difference(&expected, &got) else { return Vec::new() };
    let at = |lines: &[&str]| lines.get(first).copied().unwrap_or("(end)").to_owned();
    let mut said = vec![
        format!(
            "script: line {} differs: {} ({} lines, perf {})",
            first + 1,
            ours.command,
            got.len(),
            expected.len()
        ),
        format!("  perf: {}", at(&expected)),
        format!("  kymo: {}", at(&got)),
    ];
    expected.sort_unstable();
    got.sort_unstable();
    if expected == got {
        said.push("  the same lines in another order".to_owned());
    }
    said
}

/// What to look at in a recording of the whole machine: the threads that the scenario is about, in kernel and user space.
/// Compilers that run meanwhile have files in which perf's own report and script name an address differently, and so have
/// other recorders and what they start, which is called `perf` until it is executed.
const OF_INTEREST: &str = "sched-messaging,sched-pipe,swapper";

fn of_interest(recording: &Recording) -> &'static [&'static str] {
    if recording.is_of_the_machine() { &["--comms", OF_INTEREST] } else { &[] }
}

/// The lines of `script`, without the empty ones between samples.
fn samples<'a>(recording: &Recording, text: &'a str) -> Vec<&'a str> {
    let mut kept = true;
    let mut all = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if !line.starts_with('\t') && recording.is_of_the_machine() {
            kept = OF_INTEREST.split(',').any(|name| line.trim_start().starts_with(name));
        }
        if kept {
            all.push(before_fields(line));
        }
    }
    all
}

/// A line of `script` without what follows a tracepoint's name: perf prints a tracepoint's fields by its own format, kymo all
/// of them by name.
///
/// The address of a user frame is left out: perf 6.1 prints it as in the file, kymo and newer perf as it was sampled. The symbol
/// and its offset say the same. So is the name of a jump stub, which perf 6.1 has wrong, takes for
/// `_init`, or has not at all; objdump judges those.
fn before_fields(line: &str) -> &str {
    let line = line.trim_end();
    if line.starts_with('\t')
        && let Some((address, rest)) = line.trim_start().split_once(' ')
        && u64::from_str_radix(address, 16).is_ok_and(|address| address < 1 << 63)
    {
        return match rest.rfind(" (") {
            Some(module)
                if ["[unknown]", ".plt+0x", "_init+0x"].iter().any(|stub| rest.starts_with(stub))
                    || rest.contains("@plt+0x") =>
            {
                &rest[module..]
            }
            _ => rest,
        };
    }
    let stub = ["@plt+0x", ".plt+0x", "[unknown] ("].iter().find_map(|stub| line.find(stub));
    if let Some(stub) = stub.or_else(|| Some(line.find(" _init+0x")? + 1)) {
        return line[..stub].rsplit_once(' ').map_or(line, |(head, _)| head);
    }
    match line.find(" sched:sched_") {
        Some(name) => line[name + 1..].find(": ").map_or(line, |end| &line[..name + 1 + end]),
        None => line,
    }
}

fn first_difference(left: &[&str], right: &[&str]) -> Option<usize> {
    let common = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    (common < left.len().max(right.len())).then_some(common)
}

/// perf must read kymo's file without a word on stderr.
///
/// The rows with children of a group's events are asked for event by event: where call chains have addresses of no module,
/// perf 6.1 to 7.2 can link a row into the lists of two other rows, and then follows such a list for ever.
fn complaints(recording: &Recording) -> Vec<String> {
    let file = text(&recording.path);
    let mut all = Vec::new();
    for arguments in [
        &[&["report", "--stdio", "-i", file], recording.ungrouped()].concat()[..],
        &["report", "--stdio", "--no-children", "-g", "none", "-i", file],
        &["report", "--stats", "-i", file],
        &["script", "-i", file],
        &["report", "--header-only", "-i", file],
    ] {
        let said = perf().run(arguments);
        if said.code != Some(0) || !said.stderr.trim().is_empty() {
            all.push(format!("{} ended with {:?} and said: {}", said.command, said.code, said.stderr.trim()));
        }
    }
    all
}

fn judge(recording: &Recording, found: &[String]) {
    assert!(
        found.is_empty(),
        "recorded by: {}\nkept in: {}\n{}",
        recording.command,
        recording.path.display(),
        found.join("\n")
    );
}

/// perf must be silent about a recording of kymo's, and both tools must read the same.
fn judge_as_kymos(recording: &Recording) {
    judge(recording, &[complaints(recording), disagreements(recording)].concat());
}

/// Records a scenario with perf; both tools must read the same.
fn perf_records(scenario: &str) {
    let scenario = Scenario::named(scenario);
    if !ready(&format!("interop::by_perf::{}", scenario.name), &[&[Need::Perf], scenario.needs].concat()) {
        return;
    }
    let recording = scenario.record(&perf());
    judge(&recording, &disagreements(&recording));
}

/// Records a scenario with kymo; perf must be silent about it, and both tools must read the same.
fn kymo_records(scenario: &str) {
    let scenario = Scenario::named(scenario);
    if !ready(&format!("interop::by_kymo::{}", scenario.name), &[&[Need::Perf], scenario.needs].concat()) {
        return;
    }
    let recording = scenario.record(&kymo());
    judge_as_kymos(&recording);
}

/// Checks call chains as kymo takes them where nobody says how: perf must be silent about them, and read the same samples, counts with
/// children and scripts.
#[test]
fn whole_call_chains() {
    if !ready("interop::whole_call_chains", &[Need::Perf]) {
        return;
    }
    let target = &["sh", "-c", "ls -lR /usr/lib | sort | tail -n 1"];
    let recording = record(&kymo(), "whole", &["-F", "999", "-e", "cpu-clock"], target);
    let mut found = complaints(&recording);
    found.extend(compare_tables(&recording, &COUNTS));
    found.extend(compare_tables(&recording, &CHILDREN));
    found.extend(compare_scripts(&recording));
    judge(&recording, &found);
}

macro_rules! scenarios {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Recordings made by perf.
        mod by_perf {
            $($(#[$doc])* #[test] fn $name() { super::perf_records(stringify!($name)); })*
        }
        /// The same recordings made by kymo.
        mod by_kymo {
            $($(#[$doc])* #[test] fn $name() { super::kymo_records(stringify!($name)); })*
        }
        /// Checks that no scenario is left without its tests.
        #[test]
        fn every_scenario_is_tested() {
            let tested = [$(stringify!($name)),*];
            let all: Vec<&str> = crate::scenario::SCENARIOS.iter().map(|scenario| scenario.name).collect();
            assert_eq!(tested[..], all[..]);
        }
    };
}

scenarios! {
    /// Checks a program with several threads.
    threads,
    /// Checks forks, execs and exits, with comm and mappings changing.
    fork_exec,
    /// Checks objects that are mapped while the program runs.
    dlopen,
    /// Checks two tracepoints with their raw fields.
    tracepoint_raw,
    /// Checks stacks that are unwound: by perf at report time, by kymo while recording.
    dwarf,
    /// Checks a group whose leader reads its members.
    group,
    /// Checks several events in one file.
    several_events,
    /// Checks records that are compressed.
    compressed,
    /// Checks stacks of 8 KiB inside compressed records.
    compressed_dwarf,
    /// Checks the whole system, tasks that existed before included.
    system_wide,
    /// Checks every context switch of the whole system.
    system_wide_switches,
    /// Checks an event that counts in user space only.
    user_only,
    /// Checks samples without call chains.
    no_call_chains,
    /// Checks samples with data addresses.
    data_addresses,
    /// Checks one event per thread instead of one per CPU.
    per_thread,
    /// Checks events that children do not inherit.
    not_inherited,
    /// Checks a file that holds context switches as records.
    switch_events,
    /// Checks another clock.
    monotonic_clock,
    /// Checks names that a just-in-time compiler left in /tmp/perf-PID.map.
    perf_map,
}

/// Checks that perf reads stacks that kymo kept as they are without a word, and unwinds them as kymo does.
#[test]
fn raw_stacks_by_kymo() {
    if !ready("interop::raw_stacks_by_kymo", &[Need::Perf, Need::Program("python3")]) {
        return;
    }
    let flags = "-F 199 --call-graph dwarf,4096 --raw-stacks -e cpu-clock:u";
    let recording = Scenario { name: "raw_stacks", flags, ..*Scenario::named("dwarf") }.record(&kymo());
    assert!(uses_unwinder(&recording));
    judge_as_kymos(&recording);
}

/// Checks that a pipe-mode stream by perf is read as perf reads it.
#[test]
fn pipe_by_perf() {
    if ready("interop::pipe_by_perf", &[Need::Perf]) {
        let recording = Scenario::named("fork_exec").record_pipe(&perf());
        judge(&recording, &disagreements(&recording));
    }
}

/// Checks that perf reads kymo's pipe-mode stream without a word, and as kymo does.
#[test]
fn pipe_by_kymo() {
    if ready("interop::pipe_by_kymo", &[Need::Perf]) {
        let recording = Scenario::named("fork_exec").record_pipe(&kymo());
        judge_as_kymos(&recording);
    }
}

/// Checks that the folder which `perf record --threads` writes is read as perf reads it.
fn folder_by_perf(name: &str, packed: &[&str]) {
    if ready(&format!("interop::{name}_by_perf"), &[Need::Perf]) {
        let flags = [&["--threads"], packed, &["-F", "999", "-g", "-e", "cpu-clock"]].concat();
        let recording = crate::scenario::record(&perf(), name, &flags, Scenario::named("fork_exec").target);
        assert!(recording.path.is_dir(), "perf writes a folder with --threads");
        judge(&recording, &disagreements(&recording));
    }
}

/// Checks a folder of plain files.
#[test]
fn threads_folder_by_perf() {
    folder_by_perf("threads_folder", &[]);
}

/// Checks a folder of compressed files.
#[test]
fn compressed_threads_folder_by_perf() {
    folder_by_perf("compressed_threads_folder", &["-z"]);
}

/// Checks that a recording is right beside a recorder of the machine that asks for build ids: the kernel marks mappings for
/// all events then, and perf crashed on what kymo wrote.
#[test]
fn beside_a_recorder_with_build_ids() {
    if !ready("interop::beside_a_recorder_with_build_ids", &[Need::Perf, Need::Root]) {
        return;
    }
    let folder = crate::scenario::fresh_folder("kymo-beside-build-ids");
    let (others, path) = (folder.join("others.data"), folder.join("perf.data"));
    // The recorder with build ids starts second: the kernel asks the newest events first.
    let mut arguments = vec!["record", "-q", "-c", "1", "-e", "page-faults", "-o"];
    arguments.extend([path.to_str().expect("a plain name"), "--"]);
    arguments.extend(["perf", "record", "-q", "-a", "-e", "dummy", "--buildid-mmap", "-o"]);
    arguments.extend([others.to_str().expect("a plain name"), "--", "sh", "-c", "ls / | sort"]);
    let said = crate::scenario::run_alone(&mut kymo().command(&arguments)).ends(0);
    let recording = Recording { path, command: said.command.replace(" -a ", " ") };
    judge_as_kymos(&recording);
}
