//! `kymo report --json`, `--folded`, `--flamegraph`, `--html` on recordings that perf made.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::tools::{Need, Said, kymo, ready, run, skip, text};

/// Every recording of `fixtures/recordings`, by name.
pub(crate) fn recordings() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings");
    let mut found: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("the folder can be listed").path())
        .filter(|path| path.extension().is_some_and(|e| e == "data" || e == "dir"))
        .collect();
    found.sort();
    assert!(found.len() > 5, "{} has only {} recordings", folder.display(), found.len());
    found
}

fn report(file: &Path, what: &[&str]) -> Said {
    let input = ["report", "-q", "-i", file.to_str().expect("a plain name")];
    kymo().succeed(input.into_iter().chain(what.iter().copied()))
}

fn sum(items: &Value, key: &str) -> u64 {
    items.as_array().expect("a list").iter().map(|item| item[key].as_u64().expect("a number")).sum()
}

/// Checks that in every recording the call tree, the functions, the threads and the folded stacks add up to the same
/// samples as the events, and that indices and parents hold what the format's document promises.
#[test]
fn every_export_counts_the_same_samples() {
    for file in recordings() {
        let name = file.display();
        let json: Value =
            serde_json::from_str(&report(&file, &["--json"]).stdout).expect("the report is JSON");
        assert_eq!((&json["schema"], &json["schema_version"]), (&"kymo-report".into(), &1.into()), "{name}");
        assert_eq!(json["lost"], 0, "{name}");
        let functions = json["functions"].as_array().expect("a list").len() as u64;
        for event in json["events"].as_array().expect("a list") {
            let (stacks, rows) = (&event["stacks"], &event["functions"]);
            for (key, total) in [("self_samples", "samples"), ("self_period", "period")] {
                assert_eq!(event[total], sum(stacks, key), "{name}: stacks, {key}");
                assert_eq!(event[total], sum(rows, key), "{name}: functions, {key}");
            }
            for (id, stack) in stacks.as_array().expect("a list").iter().enumerate() {
                assert_eq!(stack["id"], id, "{name}");
                assert!(stack["function"].as_u64().expect("a number") < functions, "{name}: {stack}");
                match stack["parent"].as_u64() {
                    Some(parent) => assert!(parent < id as u64, "{name}: {stack}"),
                    None => {
                        let head = &json["functions"][stack["function"].as_u64().expect("a number") as usize];
                        assert_eq!(head["kind"], "comm", "{name}: {stack}");
                    }
                }
            }
        }
        let samples = sum(&json["events"], "samples");
        assert!(samples > 0, "{name}");
        assert_eq!(sum(&json["threads"], "samples"), samples, "{name}: threads");
        let folded: u64 = report(&file, &["--folded"])
            .stdout
            .lines()
            .map(|line| line.rsplit_once(' ').expect("a count").1.parse::<u64>().expect("a number"))
            .sum();
        assert_eq!(folded, samples, "{name}: folded stacks");
    }
}

/// Checks that all exports of every recording are the same bytes when they are made again, by several workers each time.
#[test]
fn exports_are_the_same_every_time() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for file in recordings() {
        let make = |round: &str| -> Vec<Vec<u8>> {
            let html = folder.path().join(format!("{round}.html"));
            let svg = folder.path().join(format!("{round}.svg"));
            let (html, svg) = (html.to_str().expect("a plain name"), svg.to_str().expect("a plain name"));
            let json = report(&file, &["--json", "--html", html, "--flamegraph", svg]).stdout;
            vec![
                json.into_bytes(),
                std::fs::read(html).expect("a page"),
                std::fs::read(svg).expect("a picture"),
            ]
        };
        let (first, second) = (make("first"), make("second"));
        for (what, (a, b)) in ["--json", "--html", "--flamegraph"].iter().zip(first.iter().zip(&second)) {
            assert!(!a.is_empty() && a == b, "{what} of {} differs from run to run", file.display());
        }
    }
}

/// Checks that a page that cannot be written is an error that names the file.
#[test]
fn page_that_cannot_be_written() {
    let file = &recordings()[0];
    let input =
        ["report", "-q", "-i", file.to_str().expect("a plain name"), "--html", "/no/such/folder/page.html"];
    let said = kymo().run(input);
    assert!(said.code.is_some_and(|code| code != 0));
    said.says("/no/such/folder/page.html");
}

/// The formats of `kymo export`.
const FORMATS: [&str; 8] =
    ["pprof", "firefox", "speedscope", "perfetto", "otlp", "chrome", "callgrind", "folded"];

/// Checks that every recording can be written in every format, to a file and to stdout alike, and
/// that it is the same bytes every time.
#[test]
fn every_format_is_the_same_every_time() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("out");
    for file in recordings() {
        let name = file.display().to_string();
        for format in FORMATS {
            let mut made = Vec::new();
            for jobs in ["1", "4"] {
                let words =
                    ["export", "-q", "--to", format, "-j", jobs, "-o", out.to_str().expect("plain"), &name];
                kymo().succeed(words);
                made.push(std::fs::read(&out).expect("it was written"));
            }
            assert!(!made[0].is_empty() && made[0] == made[1], "{format} of {name} differs from run to run");
        }
        let said = kymo().succeed(["export", "-q", "--to", "folded", &name]);
        assert_eq!(said.stdout.as_bytes(), std::fs::read(&out).expect("the folded stacks"), "{name}");
        assert_eq!(said.stdout, report(&file, &["--folded"]).stdout, "{name}");
    }
}

/// Checks that filters choose the samples that are written.
#[test]
fn parts_of_a_recording_are_exported() {
    let file = recordings().into_iter().find(|file| file.ends_with("forkexec.data")).expect("a fixture");
    let name = file.to_str().expect("a plain name");
    let json: Value = serde_json::from_str(&report(&file, &["--json"]).stdout).expect("JSON");
    let thread = &json["threads"][0];
    let tid = thread["tid"].to_string();
    let said = kymo().succeed(["export", "-q", "--to", "folded", "--tid", &tid, name]);
    let count = |line: &str| line.rsplit_once(' ').expect("a count").1.parse::<u64>().expect("a number");
    assert_eq!(said.stdout.lines().map(count).sum::<u64>(), thread["samples"]);
}

/// Checks what is said of formats that do not exist, of recordings that would be overwritten, of
/// folders that do not exist, and of wall time that was not recorded.
#[test]
fn exports_that_cannot_be_made() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let copy = folder.path().join("copy.data");
    let file = recordings().into_iter().find(|file| file.ends_with("plain.data")).expect("a fixture");
    std::fs::copy(&file, &copy).expect("it can be copied");
    let (name, copy) = (file.to_str().expect("plain"), copy.to_str().expect("plain"));
    let cases = [
        (vec!["--to", "gecko", name], "pprof"),
        (vec!["--to", "pprof", "-o", copy, name], "it is a recording, which is not overwritten"),
        (vec!["--to", "pprof", "-o", "/no/such/folder/x", name], "/no/such/folder/x"),
        (vec!["--to", "pprof", "--wall", "-o", "/dev/null", name], "record with `kymo record --wall`"),
        (vec![name], "--to"),
    ];
    for (words, expected) in cases {
        let said = kymo().run(["export"].into_iter().chain(words));
        assert!(said.code.is_some_and(|code| code != 0), "{expected}");
        said.says(expected);
    }
}

/// Checks that an export of pprof, and folded stacks, come back as recordings with the same table,
/// which only their owner may read, and that other files are refused.
#[test]
fn profiles_of_other_tools_become_recordings() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a plain name").to_owned();
    let file = recordings().into_iter().find(|file| file.ends_with("callgraph.data")).expect("a fixture");
    for format in ["pprof", "folded"] {
        let (profile, again) = (path("profile"), path("again.data"));
        kymo().succeed(["export", "-q", "--to", format, "-o", &profile, file.to_str().expect("plain")]);
        kymo().succeed(["import", format, &profile, "-o", &again]);
        let mode = std::fs::metadata(&again).expect("a recording").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let folded = |file: &Path| -> Vec<String> {
            let mut lines: Vec<String> =
                report(file, &["--folded"]).stdout.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(folded(Path::new(&again)), folded(&file), "{format}");
    }
    std::fs::write(path("none"), "no profile").expect("a file");
    let said = kymo().run(["import", "pprof", &path("none"), "-o", &path("x.data")]);
    assert!(said.code.is_some_and(|code| code != 0) && !folder.path().join("x.data").exists());
    said.says("no profile of pprof");
    kymo().run(["import", "folded", &path("none"), "-o", &path("x.data")]).says("1 of 1 lines have no count");
}

/// Checks that processes which had one number after the other are threads of their own, each with
/// its name and its samples: in the JSON report, the list of tasks, and formats with threads.
#[test]
fn processes_of_one_number_stay_apart() {
    const TEST: &str = "exports::processes_of_one_number_stay_apart";
    if !ready(TEST, &[Need::Root, Need::Program("cc"), Need::Program("unshare")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, out) = (folder.path().join("perf.data"), folder.path().join("out"));
    let program = crate::programs::build("pidreuse.c", &[]);
    // A namespace of process numbers that recorder and program share: the counter of this machine
    // stays as it is.
    let mut command = std::process::Command::new("unshare");
    command.args(["-m", "-p", "-f", "--mount-proc"]).arg(&kymo().path);
    command.args(["record", "-q", "-e", "cpu-clock:u", "-o", text(&file), "--"]).arg(&program);
    let said = run(command.args(["--host", "4"]));
    let (Some(0), [number, .., last]) = (said.code, &said.stdout.lines().collect::<Vec<_>>()[..]) else {
        return skip(TEST, "process numbers cannot be set here");
    };
    assert_eq!(number, last, "{}", said.stdout);
    let json: Value = serde_json::from_str(&report(&file, &["--json"]).stdout).expect("JSON");
    let pid: Option<u64> = number.parse().ok();
    let samples_of = |wanted: &str| -> Vec<u64> {
        let threads = json["threads"].as_array().expect("a list").iter();
        let named = threads.filter(|thread| thread["comm"] == wanted && thread["pid"].as_u64() == pid);
        named.map(|thread| thread["samples"].as_u64().expect("a number")).collect()
    };
    let (even, odd) = (samples_of("even"), samples_of("odd"));
    assert_eq!((even.len(), odd.len()), (2, 2), "{}", json["threads"]);
    let tasks = kymo().succeed(["report", "--tasks", "-i", text(&file)]).stdout;
    assert_eq!(tasks.lines().filter(|line| line.ends_with(" even")).count(), 2, "{tasks}");
    kymo().succeed(["export", "-q", "--to", "speedscope", "-o", text(&out), text(&file)]);
    let profiles: Value = serde_json::from_slice(&std::fs::read(&out).expect("a file")).expect("JSON");
    let tracks = |name: &str| {
        let profiles = profiles["profiles"].as_array().expect("a list").iter();
        profiles.filter(|profile| profile["name"] == format!("{name} {number}")).count()
    };
    assert_eq!((tracks("even"), tracks("odd")), (2, 2));
    kymo().succeed(["export", "-q", "--to", "chrome", "-o", text(&out), text(&file)]);
    let trace: Value = serde_json::from_slice(&std::fs::read(&out).expect("a file")).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("a list").iter();
    let names = events.filter(|event| event["name"] == "process_name");
    let processes: std::collections::BTreeSet<String> = names
        .filter(|event| event["args"]["name"] != "pidreuse")
        .map(|event| event["pid"].to_string())
        .collect();
    assert_eq!(processes.len(), 4, "{processes:?}");
}

/// Checks that folded stacks of any count are a small recording with the same weights, that what is
/// left out of them is said, and that comparisons are refused.
#[test]
fn counts_of_folded_stacks_are_weights() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (stacks, file) = (folder.path().join("stacks.txt"), folder.path().join("stacks.data"));
    let import = ["import", "folded", text(&stacks), "-o", text(&file)];
    let lines = "postgres;main;wait 48123456\npostgres;main;timer 10000055264\n";
    std::fs::write(&stacks, format!("{lines}no count\n")).expect("a file");
    kymo().succeed(import).says("left out 1 lines without a count, the first is line 3");
    assert!(std::fs::metadata(&file).expect("a recording").len() < 1 << 20);
    let mut found: Vec<String> = report(&file, &["--folded"]).stdout.lines().map(str::to_owned).collect();
    found.sort();
    let mut expected: Vec<&str> = lines.lines().collect();
    expected.sort_unstable();
    assert_eq!(found, expected);
    kymo().succeed(["query", text(&file), "top 1"]).prints("# samples: 10048178720 events in 2 stacks");
    report(&file, &["--no-children", "-g", "none", "-s", "sym"]).prints(" 99.52%  [.] timer");
    std::fs::write(&stacks, "main;a;c 7 1\nmain;b 0 2\n").expect("a file");
    kymo().run(import).ends(1).says("every line has two counts");
}

/// Checks that an import of a profile without samples says so, and so do those that read it.
#[test]
fn an_import_without_samples_says_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (stacks, file) = (folder.path().join("stacks.txt"), folder.path().join("stacks.data"));
    std::fs::write(&stacks, "").expect("a file");
    kymo().succeed(["import", "folded", text(&stacks), "-o", text(&file)]).says("the profile has no samples");
    kymo().run(["report", "-i", text(&file)]).prints("the imported profile has no samples");
}

/// Checks that neither an import nor an injection replaces a file of the user that is no recording.
#[test]
fn files_of_the_user_are_not_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let (stacks, notes) = (folder.path().join("stacks.txt"), folder.path().join("notes.txt"));
    std::fs::write(&stacks, "app;main;work 3\n").expect("a file");
    std::fs::write(&notes, "of the user\n").expect("a file");
    let recording = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/recordings/plain.data");
    kymo().run(["import", "folded", text(&stacks), "-o", text(&notes)]).ends(1).says(text(&notes));
    kymo().run(["inject", "-b", "-i", recording, "-o", text(&notes)]).ends(1).says(text(&notes));
    assert_eq!(std::fs::read_to_string(&notes).expect("it is there"), "of the user\n");
    let again = folder.path().join("again.data");
    kymo().succeed(["import", "folded", text(&stacks), "-o", text(&again)]);
    kymo().succeed(["inject", "-b", "-i", recording, "-o", text(&again)]);
}
