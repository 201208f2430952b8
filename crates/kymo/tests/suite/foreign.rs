//! Recordings of other machines, other boots, guests and files that were rebuilt: what cannot be
//! right has no name, and a sentence says why.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tools::{Need, Said, kymo, require, run, text};

/// A program with a function of this name that takes nearly all of its time, without a build id.
fn build(folder: &Path, function: &str) -> PathBuf {
    let (source, program) = (folder.join("spin.c"), folder.join("spin"));
    let code = format!(
        "volatile unsigned long x;\n\
         __attribute__((noinline)) void {function}(void) {{ for (long i = 0; i < 150000000; i++) x += i; }}\n\
         int main(void) {{ {function}(); return 0; }}\n"
    );
    std::fs::write(&source, code).expect("a source");
    compile(&["-O1", "-Wl,--build-id=none", "-o", text(&program), text(&source)]);
    program
}

fn compile(arguments: &[&str]) {
    run(Command::new("cc").args(arguments)).ends(0);
}

/// A recording of a command without build ids.
fn record(folder: &Path, command: &[&str]) -> PathBuf {
    let data = folder.join("perf.data");
    kymo().succeed(["record", "-q", "-B", "-o", text(&data), "--"].iter().chain(command));
    data
}

/// The recording with another text of the same length in place of one of the machine's facts.
fn patched(data: &Path, from: &str, to: &str) -> PathBuf {
    assert_eq!(from.len(), to.len(), "the length stays");
    let mut bytes = std::fs::read(data).expect("a recording");
    // After the upper bytes of its length, and ended by a zero.
    let fact = [&[0_u8; 3][..], from.as_bytes(), &[0]].concat();
    let places = bytes.windows(fact.len()).enumerate().filter(|(_, there)| *there == fact);
    let places: Vec<usize> = places.map(|(at, _)| at + 3).collect();
    assert!(!places.is_empty(), "{from} is not in the recording");
    for at in places {
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    let copy = data.with_file_name("patched.data");
    std::fs::write(&copy, bytes).expect("a copy");
    copy
}

/// A text that differs in its first letter.
fn other(of: &str) -> String {
    let first = if of.starts_with('9') { "8" } else { "9" };
    format!("{first}{}", &of[1..])
}

fn uname(option: &str) -> String {
    run(Command::new("uname").arg(option)).ends(0).stdout.trim().to_owned()
}

/// What verbs and exports show of a recording.
fn shown(data: &Path, options: &[&str]) -> Vec<Said> {
    let folder = data.parent().expect("a folder");
    let data = text(data);
    let mut all = Vec::new();
    for verb in [
        &["report", "-i", data, "-g", "none"][..],
        &["report", "-i", data, "--json"],
        &["script", "-i", data],
        &["query", data, "top 9"],
    ] {
        all.push(kymo().run([verb, options].concat()));
    }
    for format in ["speedscope", "chrome", "callgrind"] {
        let file = folder.join(format);
        let export = ["export", "-q", "-f", "--to", format, "-o", text(&file), data];
        let mut said = kymo().run([&export[..], options].concat());
        said.stdout =
            std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", said.stderr));
        all.push(said);
    }
    all
}

/// Checks that a recording of another kernel, without its build id, gets no name of the running
/// kernel in any verb, and that a sentence says what to do; the user's own list is used.
#[test]
fn other_kernels_give_no_names() {
    if require("foreign::other_kernels_give_no_names", &[Need::Root]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let copying = ["dd", "if=/dev/zero", "of=/dev/null", "bs=1M", "count=4000", "status=none"];
    let data = record(folder.path(), &copying);
    let kernel_rows = |data: &Path, options: &[&str]| -> Vec<String> {
        let arguments = ["report", "-i", text(data), "-g", "none", "--no-children", "-s", "sym"];
        let said = kymo().succeed(arguments.iter().chain(options));
        let rows = said.stdout.lines().filter_map(|line| line.split_once("[k] "));
        rows.map(|(_, name)| name.trim().to_owned()).collect()
    };
    let names: Vec<String> =
        kernel_rows(&data, &[]).into_iter().filter(|name| !name.starts_with("0x")).collect();
    assert!(!names.is_empty(), "the kernel clears pages, and has names");
    let release = uname("-r");
    let foreign = patched(&data, &release, &other(&release));
    for said in shown(&foreign, &[]) {
        let found = names.iter().find(|name| said.stdout.contains(name.as_str()));
        assert_eq!(found, None, "{}", said.command);
    }
    let said = kymo().succeed(["report", "-i", text(&foreign)]);
    said.says("another kernel").says(&other(&release)).says("--kallsyms");
    let rows = kernel_rows(&foreign, &[]);
    assert!(!rows.is_empty() && rows.iter().all(|row| row.starts_with("0x")), "{rows:?}");
    let given = kernel_rows(&foreign, &["--kallsyms", "/proc/kallsyms"]);
    assert!(names.iter().all(|name| given.contains(name)), "{given:?}");
}

/// Checks that files of this machine name nothing of another machine's recording that has no build
/// ids, in any verb, and that their build ids are none of the recording; --symfs vouches for them.
#[test]
fn files_of_this_machine_do_not_name_those_of_others() {
    if require("foreign::files_of_this_machine", &[Need::Program("cc")]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = build(folder.path(), "hottest_of_all");
    let data = record(folder.path(), &[text(&program)]);
    for said in shown(&data, &[]) {
        said.prints("hottest_of_all");
    }
    let host = uname("-n");
    let foreign = patched(&data, &host, &other(&host));
    for said in shown(&foreign, &[]) {
        assert!(!said.stdout.contains("hottest_of_all"), "{}", said.command);
    }
    let said = kymo().succeed(["report", "-i", text(&foreign)]);
    said.says("another machine").says("--symfs DIR");
    for said in shown(&foreign, &["--symfs", "/"]) {
        said.prints("hottest_of_all");
    }
    let annotated = kymo().run(["annotate", "-i", text(&foreign), "hottest_of_all"]);
    assert!(!annotated.stdout.contains("hottest_of_all"), "{}", annotated.stdout);
    // The recording has no build id at all, of either machine.
    let injected = folder.path().join("injected.data");
    for data in [&data, &foreign] {
        let listed = kymo().succeed(["buildid-list", "-i", text(data)]).stdout;
        assert!(listed.lines().count() > 1 && listed.lines().all(|line| line.starts_with(' ')), "{listed}");
        kymo().run(["archive", text(data)]).ends(1).says("can be packed");
        kymo().succeed(["inject", "-b", "-i", text(data), "-o", text(&injected)]);
        let listed = kymo().succeed(["buildid-list", "-i", text(&injected)]).stdout;
        let has_id = listed.lines().any(|line| !line.starts_with(' ') && line.contains("/libc.so"));
        assert_eq!(has_id, data != &foreign, "{listed}");
    }
}

/// Checks that a program without a build id that was rebuilt after the recording gives none of its
/// new names, where old ones are wanted: in no verb, and with a sentence.
#[test]
fn rebuilt_programs_give_no_names() {
    if require("foreign::rebuilt_programs_give_no_names", &[Need::Program("cc")]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = build(folder.path(), "first_version");
    let data = record(folder.path(), &[text(&program)]);
    for said in shown(&data, &[]) {
        said.prints("first_version");
    }
    kymo().succeed(["annotate", "-i", text(&data), "first_version"]);
    build(folder.path(), "second_version");
    for said in shown(&data, &[]) {
        assert!(!said.stdout.contains("second_version"), "{}", said.command);
    }
    kymo().succeed(["report", "-i", text(&data)]).says("after the recording").says("--symfs /");
    kymo().run(["annotate", "-i", text(&data), "second_version"]).ends(1);
    for said in shown(&data, &["--symfs", "/"]) {
        said.prints("second_version");
    }
}

/// The recording with this CPU mode in each sample's header.
fn with_mode(data: &Path, mode: u8) -> PathBuf {
    let mut bytes = std::fs::read(data).expect("a recording");
    let word = |bytes: &[u8], at: usize| {
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize
    };
    let (mut at, size) = (word(&bytes, 40), word(&bytes, 48));
    let end = at + size;
    let mut samples = 0;
    while at < end {
        if bytes[at] == 9 && bytes[at + 1..at + 4] == [0, 0, 0] {
            bytes[at + 4] = bytes[at + 4] & !7 | mode;
            samples += 1;
        }
        at += usize::from(u16::from_le_bytes([bytes[at + 6], bytes[at + 7]]));
    }
    assert!(samples > 10, "{samples} samples");
    let copy = data.with_file_name("guest.data");
    std::fs::write(&copy, bytes).expect("a copy");
    copy
}

/// Checks that samples of a guest's kernel and programs, and of a hypervisor, are addresses in
/// modules of their own, and are named neither by this kernel nor by the process's files.
#[test]
fn guests_are_not_named_by_the_host() {
    if require("foreign::guests_are_not_named_by_the_host", &[Need::Program("cc")]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = build(folder.path(), "hottest_of_all");
    let data = folder.path().join("perf.data");
    // Without call chains, whose marks would tell another mode.
    let options = ["record", "-q", "--call-graph", "none", "-o", text(&data), "--", text(&program)];
    kymo().succeed(options);
    for (mode, module, letter) in
        [(4, "[guest.kernel]", 'g'), (5, "[guest.user]", 'u'), (3, "[hypervisor]", 'H')]
    {
        let guest = with_mode(&data, mode);
        for said in shown(&guest, &[]) {
            assert!(!said.stdout.contains("hottest_of_all"), "{}", said.command);
        }
        let rows = kymo().succeed(["report", "-i", text(&guest), "-s", "dso,sym"]).stdout;
        let rows: Vec<&str> = rows.lines().filter(|line| line.contains('%')).collect();
        let is_address = |row: &&str| row.contains(module) && row.contains(&format!("[{letter}] 0x"));
        assert!(!rows.is_empty() && rows.iter().all(is_address), "{rows:?}");
        kymo().succeed(["script", "-i", text(&guest)]).prints(module);
    }
}

/// Checks that `report` has no tables of events without samples, as perf since 6.1, unless they are
/// asked for; and that one remains where all are empty.
#[test]
fn events_without_samples_have_no_tables() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("perf.data");
    let tables = |events: &[&str], options: &[&str]| {
        let mut record = vec!["record", "-q", "-o", text(&data)];
        record.extend(events.iter().flat_map(|event| ["-e", event]));
        record.extend(["--", "sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"]);
        kymo().succeed(&record);
        let said = kymo().succeed(["report", "-i", text(&data)].iter().chain(options));
        said.stdout.matches("# Samples: ").count()
    };
    let one_empty = ["cpu-clock", "emulation-faults"];
    assert_eq!(tables(&one_empty, &[]), 1);
    assert_eq!(tables(&one_empty, &["--no-skip-empty"]), 2);
    assert_eq!(tables(&one_empty, &["--no-skip-empty", "--skip-empty"]), 1);
    assert_eq!(tables(&["alignment-faults", "emulation-faults"], &[]), 1);
}

/// Checks that a process that gets the number of one that has ended is another process in exports
/// and in the list of tasks: each has its own name and its own samples.
#[test]
fn process_numbers_that_are_used_again() {
    const TEST: &str = "foreign::process_numbers_that_are_used_again";
    if require(TEST, &[Need::Root, Need::Program("cc")]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("again.c"), folder.path().join("again"));
    std::fs::write(&source, include_str!("foreign/again.c")).expect("a source");
    compile(&["-O1", "-o", text(&program), text(&source)]);
    let data = folder.path().join("perf.data");
    let said = kymo().run(["record", "-q", "-o", text(&data), "--", text(&program)]);
    if said.code == Some(77) {
        return kymo_testing::skip(TEST, "the kernel does not give out process numbers by choice");
    }
    let pid = said.ends(0).stdout.trim().to_owned();
    let exported = |format: &str| {
        let file = folder.path().join(format);
        kymo().succeed(["export", "-q", "--to", format, "-o", text(&file), text(&data)]);
        std::fs::read(&file).expect("an export")
    };
    let speedscope: serde_json::Value = serde_json::from_slice(&exported("speedscope")).expect("JSON");
    let names: Vec<&str> = speedscope["profiles"]
        .as_array()
        .expect("profiles")
        .iter()
        .filter_map(|p| p["name"].as_str())
        .collect();
    for name in ["again-1", "again-2", "again-3"] {
        let of_name = names.iter().filter(|of| **of == format!("{name} {pid}")).count();
        assert_eq!(of_name, 1, "{name} {pid} in {names:?}");
    }
    let chrome: serde_json::Value = serde_json::from_slice(&exported("chrome")).expect("JSON");
    let facts = chrome["traceEvents"].as_array().expect("events").iter();
    let processes: Vec<(i64, &str)> = facts
        .filter(|event| event["name"] == "process_name")
        .filter_map(|event| Some((event["pid"].as_i64()?, event["args"]["name"].as_str()?)))
        .filter(|(_, name)| name.starts_with("again-"))
        .collect();
    let mut pids: Vec<i64> = processes.iter().map(|process| process.0).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!((processes.len(), pids.len()), (3, 3), "{processes:?}");
    let firefox = folder.path().join("firefox");
    exported("firefox");
    let unpacked = run(Command::new("gzip").args(["-dc", text(&firefox)])).ends(0).stdout;
    let firefox: serde_json::Value = serde_json::from_str(&unpacked).expect("JSON");
    let mut threads: Vec<(&str, &str)> = firefox["threads"]
        .as_array()
        .expect("threads")
        .iter()
        .filter_map(|thread| Some((thread["pid"].as_str()?, thread["name"].as_str()?)))
        .filter(|(_, name)| name.starts_with("again-"))
        .collect();
    threads.sort_unstable();
    let (second, third) = (format!("{pid}.1"), format!("{pid}.2"));
    assert_eq!(threads, [(&*pid, "again-1"), (&*second, "again-2"), (&*third, "again-3")]);
    let tasks = kymo().succeed(["report", "-i", text(&data), "--tasks"]).stdout;
    for name in ["again-1", "again-2", "again-3"] {
        let lines = tasks.lines().filter(|line| line.ends_with(name)).count();
        assert_eq!(lines, 1, "{name} in {tasks}");
    }
}

/// Checks that an exported symbol without a size does not reach over a function that the unwind
/// tables know, in a stripped program.
#[test]
fn symbols_without_size_end_at_the_next_function() {
    const TEST: &str = "foreign::symbols_without_size_end_at_the_next_function";
    if require(TEST, &[Need::X86, Need::Program("cc"), Need::Program("strip")]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("first.c"), folder.path().join("first"));
    let code = "__asm__(\".text\\n.globl asm_first\\n.type asm_first, @function\\nasm_first: nop\\n ret\\n.skip 65536, 0x90\\n\");\n\
        void asm_first(void);\n\
        volatile unsigned long x;\n\
        __attribute__((noinline)) static void hot(void) { for (long i = 0; i < 150000000; i++) x += i; }\n\
        int main(void) { asm_first(); hot(); return 0; }\n";
    std::fs::write(&source, code).expect("a source");
    compile(&["-O1", "-fno-toplevel-reorder", "-rdynamic", "-o", text(&program), text(&source)]);
    run(Command::new("strip").arg(&program)).ends(0);
    let data = record(folder.path(), &[text(&program)]);
    let rows =
        kymo().succeed(["report", "-i", text(&data), "-g", "none", "--no-children", "-s", "sym"]).stdout;
    let hottest = rows.lines().find(|line| line.contains('%')).expect("a row");
    assert!(hottest.contains("[.] 0x"), "{rows}");
    assert!(!rows.contains("asm_first"), "{rows}");
}
