//! perf's small verbs: `evlist`, `buildid-list`, `buildid-cache`, `archive`, `inject`, `version`, `check`, `list -j`, and
//! the answer to verbs that kymo does not have.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::exports::recordings;
use crate::matrix::perf_of;
use crate::tools::{Need, Tool, find, kymo, perf, ready, skip, text};

/// The newest perf that was unpacked: its form is kymo's.
pub(crate) fn newest_perf(test: &str) -> Option<Tool> {
    let perf = perf_of("sid");
    if perf.is_none() {
        skip(test, "no perf of Debian sid here (make setup)");
    }
    perf
}

/// A shell that computes for some hundredths of a second.
const COUNT: &str = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done";

/// Lines of stdout, without perf's tips.
fn lines(tool: &Tool, arguments: &[&str]) -> Vec<String> {
    let said = tool.succeed(arguments);
    said.stdout.lines().filter(|line| !line.starts_with("# Tip:")).map(str::to_owned).collect()
}

/// Checks that events and build ids of every recording are listed as perf lists them, line by line.
#[test]
fn lists_are_those_of_perf() {
    let Some(perf) = newest_perf("perf_verbs::lists_are_those_of_perf") else { return };
    for file in recordings() {
        let file = text(&file);
        for verb in [
            &["evlist"][..],
            &["evlist", "-F"],
            &["evlist", "-v"],
            &["evlist", "-g"],
            &["evlist", "--trace-fields"],
            &["buildid-list"],
            &["buildid-list", "-H"],
        ] {
            // kymo lists the files of callers, too, which it unwinds from the stacks; perf those of the samples.
            if verb.contains(&"-H") && file.ends_with("dwarf.data") {
                continue;
            }
            // Of a stream, perf lists the events before it has read what they are called, and of one with tracepoints
            // it lists no files.
            if file.contains("/pipe") && (verb[0] == "evlist" || file.contains("tracepoint")) {
                continue;
            }
            let arguments = [verb, &["-i", file]].concat();
            let (own, mut of_perf) = (lines(&kymo(), &arguments), lines(&perf, &arguments));
            // Where the recording has no build id, perf prints that of this machine's file.
            let blank = " ".repeat(40);
            let unrecorded = |line: &String| verb[0] == "buildid-list" && line.starts_with(&blank);
            for (_, line) in own.iter().zip(&mut of_perf).filter(|(own, _)| unrecorded(own)) {
                line.replace_range(..blank.len(), &blank);
            }
            assert_eq!(own, of_perf, "{arguments:?}");
        }
    }
}

/// Checks that a file's build id is printed, and that of the running kernel.
#[test]
fn build_ids_of_files() {
    if !ready("perf_verbs::build_ids_of_files", &[Need::Perf]) {
        return;
    }
    for arguments in [["buildid-list", "-i", "/bin/sh"], ["buildid-list", "-k", "-f"]] {
        assert_eq!(lines(&kymo(), &arguments), lines(&perf(), &arguments), "{arguments:?}");
    }
}

/// Checks that copies of stacks, of both tools, become the call chains that they had, and that the
/// copy has no stacks.
#[test]
fn copies_of_stacks_become_call_chains() {
    const TEST: &str = "perf_verbs::copies_of_stacks_become_call_chains";
    let Some(newest) = newest_perf(TEST) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (data, copy) = (folder.path().join("perf.data"), folder.path().join("copy.data"));
    let record = ["record", "--call-graph", "dwarf", "-F", "999", "-e", "cpu-clock", "-o", text(&data)];
    let command = ["--", "sh", "-c", COUNT];
    for recorder in [&newest, &kymo()] {
        let raw: &[&str] = if recorder.name == "kymo" { &["--raw-stacks"] } else { &[] };
        recorder.succeed([&record, raw, &command].concat());
        kymo().succeed(["inject", "--convert-callchain", "-i", text(&data), "-o", text(&copy)]);
        let folded =
            |file| kymo().succeed(["report", "-q", "--no-inline", "-i", text(file), "--folded"]).stdout;
        let expected = folded(&data);
        assert!(expected.lines().any(|stack| stack.matches(';').count() > 3), "{expected}");
        assert_eq!(folded(&copy), expected, "{}", recorder.name);
        let events = newest.succeed(["evlist", "-v", "-i", text(&copy)]).stdout;
        assert!(!events.contains("STACK_USER") && !events.contains("REGS_USER"), "{events}");
        let samples = |file| lines(&newest, &["script", "-i", text(file), "-F", "tid,time,event"]);
        assert_eq!(samples(&copy), samples(&data));
    }
}

/// Checks that a recording leaves copies of the programs that were sampled in the folder that was
/// named, and with `-N`, `-B` or without a folder none.
#[test]
fn a_recording_fills_the_named_cache() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("perf.data");
    let cache = folder.path().join("cache");
    let named = ["--buildid-dir", text(&cache)];
    let record = |before: &[&str], options: &[&str]| {
        let command = ["--", "sh", "-c", COUNT];
        let verb = ["record", "-e", "cpu-clock:u", "-F", "999", "-o", text(&data)];
        kymo().succeed([before, &verb, options, &command].concat()).stderr
    };
    for (before, options) in [(&named[..], "-N"), (&named, "-B"), (&[], "--buildid-all")] {
        record(before, &[options]);
        assert!(!cache.exists(), "{before:?} {options}");
    }
    record(&named, &[]);
    let id = lines(&kymo(), &["buildid-list", "-i", "/bin/sh"]).remove(0);
    let copy = cache.join(".build-id").join(&id[..2]).join(&id[2..]).join("elf");
    assert_eq!(std::fs::read(copy).expect("the copy"), std::fs::read("/bin/sh").expect("sh"));
    let of_all = lines(&kymo(), &[&named[..], &["buildid-cache", "-l"]].concat());
    let hit = lines(&kymo(), &["buildid-list", "-H", "-i", text(&data)]);
    assert!(of_all.len() <= hit.len(), "{of_all:?} beside {hit:?}");
    // A command without a sample of its own.
    let verb = [
        "record",
        "-e",
        "page-faults",
        "-c",
        "1000000",
        "--buildid-all",
        "-o",
        text(&data),
        "--",
        "sleep",
        "0",
    ];
    kymo().succeed([&named[..], &verb].concat());
    let id = lines(&kymo(), &["buildid-list", "-i", "/bin/sleep"]).remove(0);
    let listed = lines(&kymo(), &[&named[..], &["buildid-cache", "-l"]].concat());
    assert!(listed.iter().any(|line| line.starts_with(&id)), "{listed:?}");
}

/// Checks the cache: a file that is added is listed by both tools and found by its link, is there once however often it is
/// added, and is gone after it was removed or purged.
#[test]
fn build_id_cache() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("cache");
    let cache = ["--buildid-dir", text(&cache)];
    let run =
        |tool: &Tool, arguments: &[&str]| lines(tool, &[&cache[..], &["buildid-cache"], arguments].concat());
    let id = lines(&kymo(), &["buildid-list", "-i", "/bin/ls"]).remove(0);
    for away in [["-r", "/bin/ls"], ["-p", "/bin/ls"], ["-P", "-f"]] {
        run(&kymo(), &["-a", "/bin/ls"]);
        run(&kymo(), &["-a", "/bin/ls", "-u", "/bin/ls"]);
        let listed = run(&kymo(), &["-l"]);
        assert!(listed.len() == 1 && listed[0].starts_with(&format!("{id} /")), "{listed:?}");
        let link = Path::new(cache[1]).join(".build-id").join(&id[..2]).join(&id[2..]);
        assert_eq!(std::fs::read(link.join("elf")).expect("the copy"), std::fs::read("/bin/ls").expect("ls"));
        if ready("perf_verbs::build_id_cache, by perf", &[Need::Perf]) {
            assert_eq!(run(&perf(), &["-l"]), listed);
        }
        run(&kymo(), &away);
        assert_eq!(run(&kymo(), &["-l"]), [""; 0], "{away:?}");
    }
    kymo()
        .run([&cache[..], &["buildid-cache", "-a", "/etc/passwd"]].concat())
        .ends(1)
        .says("has no build id");
    kymo().run([&cache[..], &["buildid-cache"]].concat()).ends(129).says("name what to do");
}

/// Checks that a recording with injected build ids holds the same samples, in file and pipe form, and that perf finds the
/// build ids in it.
#[test]
fn inject() {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("copy.data");
    for file in recordings() {
        let before = kymo().succeed(["report", "--stdio", "-q", "-i", text(&file)]).stdout;
        for options in [&["-b"][..], &["--buildid-all", "-B"], &["--mmap2-buildid-all"]] {
            kymo().succeed([&["inject", "-i", text(&file), "-o", text(&copy)], options].concat());
            let after = kymo().succeed(["report", "--stdio", "-q", "-i", text(&copy)]).stdout;
            assert_eq!(before, after, "{} {options:?}", file.display());
            let piped =
                kymo().command([&["inject", "-i", text(&file)], options].concat()).output().expect("runs");
            std::fs::write(&copy, piped.stdout).expect("written");
            let after = kymo().succeed(["report", "--stdio", "-q", "-i", text(&copy)]).stdout;
            assert_eq!(before, after, "{} {options:?} as pipe", file.display());
        }
    }
    if !ready("perf_verbs::inject, by perf", &[Need::Perf]) {
        return;
    }
    let fresh = folder.path().join("fresh.data");
    kymo().succeed(["record", "-q", "-e", "task-clock:u", "-B", "-o", text(&fresh), "--", "sh", "-c", COUNT]);
    for options in ["-b", "--mmap2-buildid-all"] {
        kymo().succeed(["inject", "-i", text(&fresh), "-o", text(&copy), options]);
        let listed = perf().succeed(["buildid-list", "-i", text(&copy), "-H"]).stdout;
        assert!(listed.lines().any(|line| !line.starts_with(' ')), "{options}: {listed}");
    }
}

/// Checks that an archive has each file that samples are in, under the link of its build id.
#[test]
fn archive() {
    if ["tar", "bzip2"].iter().any(|program| find(program).is_none()) {
        return skip("perf_verbs::archive", "tar or bzip2 is not installed");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (data, cache) = (folder.path().join("perf.data"), folder.path().join("cache"));
    kymo().succeed(["record", "-q", "-e", "task-clock:u", "-o", text(&data), "--", "sh", "-c", COUNT]);
    kymo().succeed(["--buildid-dir", text(&cache), "archive", text(&data)]).prints("tar xvf");
    let packed = folder.path().join("perf.data.tar.bz2");
    let tar = Tool { name: "tar", path: PathBuf::from("tar") };
    let names = tar.succeed(["tjf", text(&packed)]).stdout;
    let shell = std::fs::canonicalize("/bin/sh").expect("a shell");
    let id = lines(&kymo(), &["buildid-list", "-i", "/bin/sh"]).remove(0);
    for name in [format!("{}/{id}/elf", &text(&shell)[1..]), format!(".build-id/{}/{}", &id[..2], &id[2..])] {
        assert!(names.lines().any(|line| line == name), "no {name}:\n{names}");
    }
}

/// Checks that a verb of perf that kymo lacks is answered with what does its work, and a slip with the nearest verb.
#[test]
fn verbs_that_are_not_there() {
    kymo().run(["trace"]).ends(129).says("kymo record -e");
    kymo().run(["sched", "record"]).ends(129).says("kymo record -a -e");
    kymo().run(["repot"]).ends(129).says("report");
    kymo().succeed(["help", "evlist"]).prints("--trace-fields");
    kymo().succeed(["--no-pager", "version"]).prints("kymo version ");
}

/// Checks that features are told by perf's names, to people and by the exit code.
#[test]
fn features() {
    kymo().succeed(["version", "--build-options"]).prints("zstd: [ on  ]");
    assert_eq!(kymo().succeed(["check", "feature", "-q", "dwarf,zstd"]).stdout, "");
    kymo().run(["check", "feature", "libpython"]).ends(1).prints("[ OFF ]");
    kymo().run(["check", "feature", "nonsense"]).ends(129).says("nonsense");
}

/// Checks that a function of the kernel is found where perf finds it.
#[test]
fn kernel_functions() {
    if !ready("perf_verbs::kernel_functions", &[Need::Perf, Need::Root]) {
        return;
    }
    let arguments = ["kallsyms", "schedule", "no_such_function"];
    assert_eq!(lines(&kymo(), &arguments), lines(&perf(), &arguments));
}

/// Checks that events are listed with the keys of `perf list -j`, on stdout and in a file.
#[test]
fn events_as_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("list.json");
    let said = kymo().command(["list", "-j", "software"]).stderr(Stdio::null()).output().expect("runs");
    kymo().succeed(["list", "-j", "-o", text(&file), "software"]);
    let list: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    assert_eq!(list, serde_json::from_slice::<Value>(&std::fs::read(&file).expect("a file")).expect("JSON"));
    let names: Vec<&str> =
        list.as_array().expect("a list").iter().filter_map(|e| e["EventName"].as_str()).collect();
    assert!(names.contains(&"page-faults"), "{names:?}");
    assert!(list.as_array().expect("a list").iter().all(|event| event["EventType"] == "Software event"));
}
