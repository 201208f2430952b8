//! Options of `script`, and `data convert`: the same text as perf's, for the same recording.

use std::path::PathBuf;
use std::sync::OnceLock;

use crate::exports::recordings;
use crate::perf_verbs::newest_perf;
use crate::scenario::{FORKS, record};
use crate::tools::{Need, Tool, kymo, names_of_perf, perf, ready, text};

/// Samples of user space without call chains, switches among them; made by perf.
fn recording() -> &'static PathBuf {
    static RECORDING: OnceLock<PathBuf> = OnceLock::new();
    RECORDING.get_or_init(|| {
        let flags = ["-e", "cpu-clock:u", "-F", "2000", "--switch-events", "--namespaces"];
        record(&perf(), "script-options", &flags, FORKS).path
    })
}

/// Lines without the space between fields, whose width differs from release to release; and without
/// jump stubs, which objdump judges.
fn lines(tool: &Tool, arguments: &[&str]) -> Vec<String> {
    let words = ["script", "--no-inline", "-i", text(recording())];
    let said = tool.succeed([&words, names_of_perf(tool), arguments].concat());
    let kept = said.stdout.lines().filter(|line| !line.contains("plt"));
    kept.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Checks fields, filters, times and records other than samples, line by line.
#[test]
fn lines_are_those_of_perf() {
    let Some(newest) = newest_perf("script_options::lines_are_those_of_perf") else { return };
    if !ready("script_options::lines_are_those_of_perf", &[Need::Perf]) {
        return;
    }
    for arguments in [
        &["-F", "-comm,-period"][..],
        &["-F", "+pid"],
        &["-F", "+misc"],
        &["-F", "ip,sym,srcline", "-S", "malloc,_int_malloc,__strlen_evex"],
        &["-F", "sw:comm,tid,time,event"],
        &["--ns"],
        &["--reltime"],
        &["--deltatime", "--ns"],
        &["-c", "sort,wc"],
        &["-S", "malloc,free,_int_malloc"],
        &["--dsos", "libc.so.6"],
        &["--show-task-events", "--show-mmap-events"],
        &["--show-switch-events"],
        &["--show-namespace-events"],
        &["--show-task-events", "-F", "+misc", "--reltime"],
        &["--show-mmap-events", "-c", "sort"],
        // A half, which has samples whatever else runs.
        &["--time", "50%/2"],
    ] {
        let (theirs, ours) = (lines(&newest, arguments), lines(&kymo(), arguments));
        assert!(!theirs.is_empty(), "perf prints nothing for {arguments:?}");
        let first = theirs.iter().zip(&ours).find(|(a, b)| a != b);
        let (their, our) = (theirs.len(), ours.len());
        assert!(theirs == ours, "{arguments:?}: {their} lines, kymo {our}; the first that differ: {first:?}");
    }
}

/// Checks registers of samples beside perf's.
#[test]
fn registers_are_those_of_perf() {
    let test = "script_options::registers_are_those_of_perf";
    let Some(newest) = newest_perf(test) else { return };
    if !ready(test, &[Need::Perf, Need::X86]) {
        return;
    }
    let flags = ["-e", "cpu-clock:u", "-I", "--user-regs=ip,sp,ax"];
    let program = ["sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done"];
    let file = record(&perf(), "script-registers", &flags, &program).path;
    let arguments = ["script", "-i", text(&file), "-F", "comm,time,iregs,uregs"];
    let [theirs, ours] = [&newest, &kymo()].map(|tool| tool.succeed(arguments).stdout);
    let first = theirs.lines().zip(ours.lines()).find(|(a, b)| a.trim() != b.trim());
    assert!(first.is_none() && theirs.lines().count() == ours.lines().count(), "{first:?}");
    assert!(ours.contains("ABI:2 ") && ours.contains("SP:0x"), "{ours}");
}

/// Checks that JSON is perf's but for names of jump stubs, of a fresh recording and one with
/// tracepoints.
#[test]
fn json_is_that_of_perf() {
    let Some(newest) = newest_perf("script_options::json_is_that_of_perf") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (theirs, ours) = (folder.path().join("theirs.json"), folder.path().join("ours.json"));
    let own: Option<&PathBuf> =
        ready("script_options::json_is_that_of_perf, by perf", &[Need::Perf]).then(recording);
    // The kernel of the others was another one, whose names perf takes from the kernel of today.
    let user = |file: &PathBuf| file.ends_with("recordings/tracepoint.data");
    for file in own.into_iter().chain(&recordings()).filter(|file| own == Some(*file) || user(file)) {
        for result in [&theirs, &ours] {
            _ = std::fs::remove_file(result);
        }
        newest.succeed(["data", "convert", "--to-json", text(&theirs), "-i", text(file)]);
        kymo().succeed(["data", "convert", "--to-json", text(&ours), "-i", text(file)]).says("samples");
        let [theirs, ours] = [&theirs, &ours].map(|path| std::fs::read_to_string(path).expect("JSON"));
        serde_json::from_str::<serde_json::Value>(&ours).expect("JSON");
        let known = |line: &&str| !line.contains("\"symbol\"") && !line.contains("\"dso\"");
        let plain = |text: &str| -> Vec<String> {
            text.lines().filter(known).map(|line| line.trim_end_matches(',').to_owned()).collect()
        };
        let (theirs, ours) = (plain(&theirs), plain(&ours));
        let first = theirs.iter().zip(&ours).find(|(a, b)| a != b);
        assert!(theirs == ours, "{}: the first lines that differ: {first:?}", file.display());
    }
}

/// Checks that fields which were not recorded, or cannot be combined, are refused in words.
#[test]
fn refusals() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/recordings/callgraph.data");
    kymo().run(["script", "-i", file, "-F", "+cgroup"]).ends(1).says("--all-cgroups");
    kymo().run(["script", "-i", file, "-F", "+uregs"]).ends(1).says("--user-regs");
    kymo().run(["script", "-i", file, "-F", "+brstack"]).ends(129).says("branch stacks");
    kymo().run(["script", "-i", file, "-F", "comm,+ip"]).ends(129).says("or none of them");
    kymo().succeed(["script", "-i", file, "--header-only"]).prints("# cmdline : ");
}

/// Checks that an unknown option is no file name, and that a second file is refused.
#[test]
fn unknown_options_are_no_files() {
    for (words, wrong) in [
        (&["--no-such-option"][..], "--no-such-option"),
        (&["perf.data", "-l"], "-l"),
        (&["one.data", "other.data"], "other.data"),
    ] {
        let said = kymo().run([&["script"], words].concat());
        assert!(said.stderr.contains(&format!("unexpected argument '{wrong}'")), "{}", said.stderr);
        said.ends(129);
    }
}
