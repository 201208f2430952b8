//! Options of `record` that perf has, too: what they put into a recording, as perf reads it.

use std::path::{Path, PathBuf};

use crate::scenario::fresh_folder;
use crate::tools::{Need, Said, Tool, kymo, perf, require, text};

/// Records `sh` counting a little, with these options.
fn recorded(tool: &Tool, test: &str, options: &[&str]) -> (PathBuf, Said) {
    let file = fresh_folder(&format!("record-options-{test}-{}", tool.name)).join("perf.data");
    let command = ["sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; (:)"];
    let said = tool.run([&["record", "-o", text(&file)], options, &["--"], &command].concat());
    (file, said)
}

/// What perf says that the events of a recording are.
fn events(file: &Path) -> String {
    perf().succeed(["evlist", "-v", "-i", text(file)]).stdout
}

/// Checks that each option puts into the events what it puts there with perf.
#[test]
fn events_are_perfs() {
    const TEST: &str = "record_options::events_are_perfs";
    let Some(()) = require(TEST, &[Need::Perf, Need::Root]) else { return };
    let cases: [(&str, &[&str]); 17] = [
        ("WEIGHT", &["-W"]),
        ("PHYS_ADDR", &["--phys-data"]),
        ("DATA_PAGE_SIZE", &["--data-page-size"]),
        ("CODE_PAGE_SIZE", &["--code-page-size"]),
        ("IDENTIFIER", &["--sample-identifier"]),
        ("REGS_INTR", &["-I"]),
        ("sample_regs_intr: 0x101", &["--intr-regs=ax,ip"]),
        ("REGS_USER", &["--user-regs"]),
        ("sample_regs_user: 0x101", &["--user-regs=AX,IP", "--call-graph", "fp"]),
        ("exclude_kernel: 1", &["--all-user"]),
        ("exclude_user: 1", &["--all-kernel"]),
        ("exclude_callchain_kernel: 1", &["--user-callchains", "-g"]),
        ("exclude_callchain_user: 1", &["--kernel-callchains", "-g"]),
        ("namespaces: 1", &["--namespaces"]),
        ("cgroup: 1", &["--all-cgroups"]),
        ("|CGROUP", &["--all-cgroups"]),
        ("{ wakeup_events, wakeup_watermark }: 1", &["--no-buffering"]),
    ];
    for (expected, options) in cases {
        let options = [&["-e", "cpu-clock"], options].concat();
        for tool in [perf(), kymo()] {
            let (file, said) = recorded(&tool, "events", &options);
            said.ends(0);
            let events = events(&file);
            // perf 6.1 prints the watermark only where there is one.
            let unbuffered = expected.contains("wakeup") && tool.name == "perf";
            assert!(unbuffered || events.contains(expected), "{} {options:?}: {events}", tool.name);
        }
    }
}

/// Checks that registers are those of the samples: the instruction pointer is the sample's, as with perf.
#[test]
fn registers_are_the_samples() {
    const TEST: &str = "record_options::registers_are_the_samples";
    let Some(()) = require(TEST, &[Need::Perf]) else { return };
    let (file, said) =
        recorded(&kymo(), "registers", &["-e", "cpu-clock:u", "-Iax,ip", "--user-regs=ip", "-z9"]);
    said.ends(0);
    let printed = perf().succeed(["script", "-F", "ip,iregs,uregs", "-i", text(&file)]).stdout;
    let registers: Vec<&str> = printed.lines().filter(|line| line.contains("IP:")).collect();
    assert!(!registers.is_empty(), "{printed}");
    for line in registers {
        let ips: Vec<&str> = line.split_whitespace().filter(|word| word.starts_with("IP:")).collect();
        assert!(ips.len() == 2 && ips[0] == ips[1], "{line}");
        assert!(line.contains("AX:"), "{line}");
    }
}

/// Checks that a filter belongs to the tracepoint before it, that several hold together, and that perf's own hits are the
/// same kind.
#[test]
fn filters() {
    const TEST: &str = "record_options::filters";
    let Some(()) = require(TEST, &[Need::Perf, Need::Root, Need::Tracepoints]) else { return };
    let options = [
        "-a",
        "-e",
        "sched:sched_process_fork",
        "-e",
        "sched:sched_process_exit",
        "--filter",
        "pid > 1",
        "--filter",
        "comm == \"sh\"",
        "--exclude-perf",
    ];
    for tool in [perf(), kymo()] {
        let (file, said) = recorded(&tool, "filters", &options);
        said.ends(0);
        let printed = kymo().succeed(["script", "-i", text(&file)]).stdout;
        let of = |event: &str| printed.lines().filter(|line| line.contains(event)).collect::<Vec<_>>();
        let ended = of("sched_process_exit:");
        assert!(
            !ended.is_empty() && ended.iter().all(|line| line.contains("comm=sh ")),
            "{}: {printed}",
            tool.name
        );
        assert!(!of("sched_process_fork:").is_empty(), "{}: {printed}", tool.name);
    }
}

/// Checks what is said of filters that cannot be: the place of the fault, events that have none, and one before any event.
#[test]
fn wrong_filters() {
    const TEST: &str = "record_options::wrong_filters";
    let Some(()) = require(TEST, &[Need::Root, Need::Tracepoints]) else { return };
    let exit = "sched:sched_process_exit";
    let said = recorded(&kymo(), "wrong", &["-e", exit, "--filter", "pid > 1 && prioo == 3"]).1.ends(1);
    said.says("sched:sched_process_exit has no field `prioo`\n  pid > 1 && prioo == 3\n             ^^^^^\n  did you mean `prio`?");
    let said = recorded(&kymo(), "wrong", &["-e", "cpu-clock", "--filter", "pid > 1"]).1.ends(129);
    said.says("--filter is for tracepoints, and cpu-clock is none");
    let said = recorded(&kymo(), "wrong", &["--filter", "pid > 1", "-e", exit]).1.ends(129);
    said.says("--filter belongs to the tracepoint before it");
}

/// Checks that what runs already is listed as far as is asked.
#[test]
fn what_is_listed() {
    const TEST: &str = "record_options::what_is_listed";
    let Some(()) = require(TEST, &[Need::Perf, Need::Root]) else { return };
    let listed = |kinds: &str| {
        let (file, said) = recorded(&kymo(), "synth", &["-a", "--namespaces", "--synth", kinds]);
        said.ends(0);
        let options = ["--show-task-events", "--show-mmap-events", "--show-namespace-events"];
        let printed = perf().succeed([&["script", "-i", text(&file)], &options[..]].concat()).stdout;
        let own = format!(" {}/{}", std::process::id(), std::process::id());
        let of = |kind: &str| printed.lines().any(|line| line.contains(kind) && line.contains(&own));
        (
            of("PERF_RECORD_COMM") || printed.contains(&format!(":{}/", std::process::id())),
            of("PERF_RECORD_MMAP2"),
            of("PERF_RECORD_NAMESPACES"),
        )
    };
    assert_eq!(listed("all"), (true, true, true));
    assert_eq!(listed("task"), (true, false, true));
    assert_eq!(listed("no"), (false, false, false));
}

/// Checks that a file can have the time in its name.
#[test]
fn time_in_the_name() {
    let (file, said) = recorded(&kymo(), "time", &["-e", "cpu-clock:u", "--timestamp-filename"]);
    said.ends(0).says("<time>");
    assert!(!file.exists());
    let folder = file.parent().expect("a folder");
    let names =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    assert!(names.len() == 1 && names[0].starts_with("perf.data.2"), "{names:?}");
    kymo().succeed(["report", "-i", text(&folder.join(&names[0]))]);
}

/// Checks that a cgroup is recorded by its name, that it must exist, and that there is one for all events.
#[test]
fn cgroups() {
    const TEST: &str = "record_options::cgroups";
    let Some(()) = require(TEST, &[Need::Root]) else { return };
    let (_, said) = recorded(&kymo(), "cgroups", &["-e", "cpu-clock", "-G", "nosuch"]);
    said.ends(1).says("nosuch");
    let (_, said) = recorded(&kymo(), "cgroups", &["-e", "cpu-clock,cs", "-G", "a,b"]);
    said.ends(129).says("--all-cgroups");
    let (_, said) = recorded(&kymo(), "cgroups", &["-e", "cpu-clock", "-p", "1", "-G", "/"]);
    said.ends(1).says("-G records what is in a cgroup on each CPU");
}

/// Checks that mappings and names of a task on one CPU are recorded while another is sampled, and
/// that no sample is of a CPU that was not asked for.
#[test]
fn tasks_of_other_cpus_are_tracked() {
    if require("record_options::tasks_of_other_cpus_are_tracked", &[Need::Root, Need::Program("taskset")])
        .is_none()
    {
        return;
    }
    let file = fresh_folder("record-options-other-cpus").join("perf.data");
    let online = kymo_perf::sys::online_cpus();
    let [sampled, other] = [online[0], online[online.len() - 1]].map(|cpu| cpu.to_string());
    let command = ["taskset", "-c", &other, "sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"];
    let options = ["-C", &sampled, "-e", "cpu-clock", "-F", "999", "-o", text(&file), "--"];
    kymo().succeed([&["record"], &options[..], &command].concat());
    let on_other = |what| kymo().run(["script", "-i", text(&file), what, "-C", &other]).stdout;
    assert!(on_other("--show-mmap-events").contains("PERF_RECORD_MMAP2"));
    assert!(on_other("--show-task-events").contains("PERF_RECORD_COMM exec: sh"));
    let said = kymo().run(["script", "-i", text(&file), "-F", "cpu"]);
    let wrong = |line: &&str| line.trim() != format!("[{sampled:0>3}]");
    assert_eq!(said.stdout.lines().find(wrong), None);
    assert!(kymo().succeed(["report", "-i", text(&file), "--header-only"]).stdout.contains("lost : 0 of"));
}

/// Checks that options which kymo does not have end with what it has instead, and that others are taken.
#[test]
fn refused_and_accepted() {
    let said = recorded(&kymo(), "refused", &["--off-cpu"]).1.ends(129);
    said.says("kymo record: --off-cpu is not in kymo: `kymo record --wall`");
    let said = recorded(&kymo(), "refused", &["-I?"]).1.ends(129);
    said.says("available registers: ");
    let accepted =
        ["-r", "5", "--threads", "--aio=2", "--affinity", "node", "-N", "-T", "--buildid-all", "-g", "-g"];
    recorded(&kymo(), "accepted", &[&["-e", "cpu-clock:u"], &accepted[..]].concat()).1.ends(0);
}

/// Checks that kymo, called by the name of perf, says the lines that scripts look for as perf
/// does.
#[test]
fn called_by_the_name_of_perf() {
    let folder = fresh_folder("record-options-name");
    let name = folder.join("perf");
    std::os::unix::fs::symlink(kymo().path, &name).expect("a link");
    let called = Tool { name: "perf", path: name };
    let data = folder.join("perf.data");
    let said = called.succeed(["record", "-e", "cpu-clock:u", "-o", text(&data), "--", "true"]);
    said.says("[ perf record: Woken up ").says("[ perf record: Captured and wrote ");
}

/// Checks that the hottest functions are printed at the end without a terminal, too, and not with `-q`.
#[test]
fn the_hottest_functions() {
    let (_, said) = recorded(&kymo(), "hottest", &["-e", "cpu-clock:u", "-F", "5000"]);
    let said = said.ends(0);
    // Their callers follow, as many at most, where the time is not in the program's own functions.
    let first = said.stderr.split("called by these functions").next().unwrap_or_default();
    let shares = first.lines().filter(|line| line.trim_start().contains("%  "));
    assert!((1..=5).contains(&shares.count()), "{}", said.stderr);
    said.says("  more: kymo report -i ");
    let (_, quiet) = recorded(&kymo(), "hottest", &["-q", "-e", "cpu-clock:u", "-F", "5000"]);
    assert_eq!(quiet.ends(0).stderr, "");
}

/// Checks that a program that mostly waits is said to do so, with the next command, and that `-q`
/// and a chosen event leave the sentence out.
#[test]
fn a_program_that_waits_is_told_so() {
    let data = fresh_folder("record-options-waits").join("perf.data");
    let record = |options: &[&str]| {
        let options = [&["record", "-o", text(&data)], options, &["--", "sleep", "1"]].concat();
        kymo().succeed(options).stderr
    };
    let words = record(&[]);
    assert!(words.contains("most of the time it waited") && words.contains("kymo record --wall"), "{words}");
    for options in [&["-q"][..], &["-e", "cpu-clock:u"]] {
        let words = record(options);
        assert!(!words.contains("most of the time it waited"), "{words}");
    }
}

/// Checks that words in the place of numbers are refused in words.
#[test]
fn words_for_numbers() {
    for (option, verb) in [("-c", "record"), ("--jobs", "record"), ("-t", "stat"), ("-I", "stat")] {
        let said = kymo().run([verb, option, "abc", "--", "true"]).ends(129);
        said.says("'abc'").says("expected a number");
    }
}
