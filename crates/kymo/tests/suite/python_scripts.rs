//! `script -s`: the functions of a Python script get what perf gives them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::programs::build;
use crate::scenario::record;
use crate::tools::{Need, Said, Tool, kymo, names_of_perf, perf, ready, run, skip, text};

/// Where Debian's linux-perf has its scripts.
const SCRIPTS: &str = "/usr/lib/perf-core/scripts/python";

/// Prints all that its functions get, but for what differs from release to release of perf, for
/// `binding` (kymo does not know it), the end of the kernel's mapping, and files of inlined code.
const SHOW: &str = r#"
import os, sys
from perf_trace_context import *
sys.path.append(os.environ["PERF_EXEC_PATH"] + "/scripts/python/Perf-Trace-Util/lib/Perf/Trace")
import Core
from Core import *
LEFT_OUT = {"attr", "binding", "map_pgoff", "id", "stream_id", "ins_lat", "iregs", "uregs", "dso_map_end"}
def show(value):
    if isinstance(value, dict):
        return "{%s}" % ", ".join("%s: %s" % (k, show(value[k])) for k in sorted(value) if k not in LEFT_OUT)
    if isinstance(value, (list, tuple)):
        return "[%s]" % ", ".join(map(show, value))
    return repr(value)
def trace_begin():
    print("begin", sys.argv[1:], __name__, os.path.basename(sys.argv[0]))
def process_event(sample):
    file, line = perf_sample_srcline(perf_script_context)
    print(show(sample), type(sample["attr"]), line)
def sched__sched_switch(name, context, cpu, s, ns, pid, comm, chain, prev_comm, prev_pid, prev_prio,
                        prev_state, next_comm, next_pid, next_prio, sample):
    print(name, common_pc(context), common_flags(context), cpu, s, ns, pid, comm, show(chain), prev_comm,
          prev_pid, prev_prio, prev_state, next_comm, next_pid, next_prio, show(sample))
def sched__sched_waking(name, context, cpu, s, ns, pid, comm, chain, waking_comm, waking_pid, prio, target_cpu):
    print(name, cpu, s, ns, pid, comm, waking_comm, waking_pid, prio, target_cpu)
def trace_unhandled(name, context, fields, sample):
    print(name, show(fields), show(sample))
def context_switch(*values):
    print("switch", values)
def trace_end():
    print("symbol", sorted(symbolic_fields), flag_str("sched__sched_switch", "prev_state", 3))
    print("end")
"#;

/// Whether perf runs scripts in Python here; a loud skip where it does not.
fn perf_runs_python(test: &str) -> bool {
    if !ready(test, &[Need::Perf, Need::Root, Need::Program("python3")]) {
        return false;
    }
    let built = perf().run(["version", "--build-options"]).stdout;
    let line = built.lines().find(|line| line.contains("libpython:"));
    let runs = line.is_some_and(|line| line.contains("[ on"));
    if !runs {
        skip(test, "perf was built without libpython");
    }
    runs
}

/// Tracepoints and samples of a shell with children, switches among them, with call chains.
fn recording() -> &'static PathBuf {
    static RECORDING: OnceLock<PathBuf> = OnceLock::new();
    RECORDING.get_or_init(|| {
        let flags = "-g --switch-events -e cpu-clock -e sched:sched_switch -e sched:sched_waking \
                     -e sched:sched_process_exec -e timer:hrtimer_start -e raw_syscalls:sys_enter \
                     -e raw_syscalls:sys_exit";
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let program =
            ["sh", "-c", "ls / | sort; ls /nonexistent; sleep 0.01; find /etc -name '*.conf' | wc -l"];
        record(&perf(), "python-scripts", &flags, &program).path
    })
}

fn scripted(tool: &Tool, recording: &Path, script: &Path, arguments: &[&str]) -> Said {
    let options = ["script", "--no-inline", "-i", text(recording), "-s", text(script)];
    tool.succeed([&options[..1], names_of_perf(tool), &options[1..], arguments].concat())
}

/// Whether two lines differ only in that a function of theirs ends more than 512 KiB later.
fn same_but_for_padding(their: &str, our: &str) -> bool {
    let parts = |line: &str| line.split("{end: ").map(str::to_owned).collect::<Vec<_>>();
    let (theirs, ours) = (parts(their), parts(our));
    let same = |(their, our): (&String, &String)| {
        let end = |part: &str| {
            part.split_once(',').and_then(|(end, rest)| Some((end.parse::<u64>().ok()?, rest.to_owned())))
        };
        their == our
            || end(their)
                .zip(end(our))
                .is_some_and(|((their, named), (our, ours))| named == ours && their > our + (512 << 10))
    };
    theirs.len() == ours.len() && theirs.iter().zip(&ours).all(same)
}

/// Compares what a script printed, but for names of jump stubs, which are objdump's to judge, and
/// for the ends of functions before padding of the kernel, which for perf reach over it.
fn same_lines(theirs: &Said, ours: &Said) {
    let (theirs, ours): (Vec<&str>, Vec<&str>) =
        (theirs.stdout.lines().collect(), ours.stdout.lines().collect());
    let same = |(their, our): &(&&str, &&str)| {
        their == our || their.contains("plt") || our.contains("plt") || same_but_for_padding(their, our)
    };
    let first = theirs.iter().zip(&ours).find(|pair| !same(pair));
    assert!(first.is_none(), "the first lines that differ:\n{first:#?}");
    assert_eq!(theirs.len(), ours.len());
}

/// Checks every value that functions get, their types, and the names of flags, against perf's.
#[test]
fn values_are_those_of_perf() {
    if !perf_runs_python("python_scripts::values_are_those_of_perf") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("show.py");
    std::fs::write(&script, SHOW).expect("a script");
    let [theirs, ours] = [perf(), kymo()].map(|tool| scripted(&tool, recording(), &script, &["a", "--b"]));
    same_lines(&theirs, &ours);
    let ours: Vec<&str> = ours.stdout.lines().collect();
    let names = "symbol ['timer__hrtimer_start'] S | D";
    for word in ["sched__sched_switch", "raw_syscalls__sys_enter", "switch (", "cpu-clock", names, "end"] {
        assert!(ours.iter().any(|line| line.contains(word)), "no line has {word:?}");
    }
}

/// Checks symbols of the kernel's BPF programs, which run at each call of a probed function.
#[test]
fn symbols_of_bpf_programs_are_those_of_perf() {
    let test = "python_scripts::symbols_of_bpf_programs_are_those_of_perf";
    if !perf_runs_python(test) || !ready(test, &[Need::Root, Need::Uprobes, Need::Program("cc")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("show.py");
    std::fs::write(&script, SHOW).expect("a script");
    let program = build("probed.c", &["-DOF_python_scripts"]);
    let probe =
        [env!("CARGO_BIN_EXE_kymo"), "probe", "-q", "--engine", "kernel", "probed_inner", "probed_outer"];
    let command = [&probe[..], &["--", text(&program), "20000"]].concat();
    let flags = ["-g", "-e", "cpu-clock", "-F", "4000"];
    let file = record(&perf(), "bpf-symbols", &flags, &command).path;
    let [theirs, ours] = [perf(), kymo()].map(|tool| scripted(&tool, &file, &script, &[]));
    same_lines(&theirs, &ours);
    assert!(ours.stdout.contains("name: 'bpf_prog_"), "no sample met a BPF program");
}

/// Checks that scripts of perf's own package print the same with kymo.
#[test]
fn scripts_of_perf() {
    if !perf_runs_python("python_scripts::scripts_of_perf") {
        return;
    }
    let mut compared = 0;
    for name in ["failed-syscalls-by-pid", "syscall-counts", "syscall-counts-by-pid", "futex-contention"] {
        let script = Path::new(SCRIPTS).join(name).with_extension("py");
        if !script.is_file() {
            skip("python_scripts::scripts_of_perf", format!("no {} here", script.display()));
            continue;
        }
        let [theirs, ours] = [perf(), kymo()].map(|tool| scripted(&tool, recording(), &script, &[]).stdout);
        assert!(theirs.lines().count() > 3 || name == "futex-contention", "{name}: {theirs}");
        assert_eq!(theirs, ours, "{name}");
        compared += 1;
    }
    eprintln!("{compared} scripts print the same");
}

/// A recording of another machine, which needs neither perf nor root.
const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/recordings/tracepoint.data");

fn with_fixture(source: &str) -> Said {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("own.py");
    std::fs::write(&script, source).expect("a script");
    let mut command: Command = kymo().command(["script", "-i", FIXTURE, "-s", text(&script), "word"]);
    // As where perf is not installed.
    run(command.env("PERF_EXEC_PATH", "/nonexistent"))
}

/// Checks how scripts end: with their own status, at an error of theirs, and before the last event.
#[test]
fn ends_of_scripts() {
    if !ready("python_scripts::ends_of_scripts", &[Need::Program("python3")]) {
        return;
    }
    let end = "import sys\ndef trace_unhandled(*all): sys.exit(7)\ndef trace_end(): print('not reached')\n";
    assert_eq!(with_fixture(end).ends(7).stdout, "");
    with_fixture("def trace_unhandled(*all):\n  raise ValueError('in vain')\n")
        .ends(1)
        .says("ValueError: in vain");
    with_fixture("def trace_begin(:\n").ends(1).says("SyntaxError");
    let helpers = "from Core import *\nfrom Util import *\nimport sys\n\
                   def trace_end(): print(strerror(-2), trace_flag_str(0x11), nsecs(1, 2), sys.argv[1:])\n";
    with_fixture(helpers).ends(0).prints("ENOENT IRQS_OFF | SOFTIRQ 1000000002 ['word']");
    with_fixture("perf_db_export_mode = True\n").ends(1).says("perf_db_export_mode");
    let (missing, perl) = ("/nonexistent/a.py", "/nonexistent/a.pl");
    kymo().run(["script", "-i", FIXTURE, "-s", missing]).ends(129).says("No such file");
    kymo().run(["script", "-i", FIXTURE, "-s", perl]).ends(129).says("runs Perl");
    kymo().run(["script", FIXTURE, "more"]).ends(129).says("unexpected argument 'more'");
}
