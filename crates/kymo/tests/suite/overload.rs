//! More samples than can be written: `--overload` and `--max-memory`. The output is a pipe that the test empties slowly, so that the
//! recorder's buffers are full for most of the time whatever the machine is.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::copied::built;
use crate::tools::{Need, Running, kymo, require, run, text};

/// Pages that a program touches, each of which is a sample with 8 KiB of stack, and the recorder's memory: a fifth of that, and where nothing may
/// be lost a half: a third of it must be enough for what comes until the target stands still.
const SMALL: (u64, &str) = (3000, "6M");
const LARGE: (u64, &str) = (12_000, "48M");
const BASE: u64 = 0x7000_0000_0000;

/// Takes what comes at some 60 MB/s at most.
fn read_slowly(mut from: impl Read, to: &Path) {
    let mut file = fs::File::create(to).expect("the folder is writable");
    let mut piece = vec![0; 64 << 10];
    loop {
        match from.read(&mut piece).expect("a pipe") {
            0 => return,
            bytes => file.write_all(&piece[..bytes]).expect("the folder is writable"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn recorder(overload: &str, most: &str, rest: &[&str]) -> Child {
    let options =
        ["record", "-e", "page-faults:u", "-c", "1", "-d", "--call-graph", "dwarf,8192", "--raw-stacks"];
    let memory = ["-m", "64", "--max-memory", most, "--overload", overload, "-o", "-"];
    let mut command = kymo().command(options.iter().chain(&memory).chain(rest));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("kymo starts")
}

/// Lets the recording run to its end; what kymo said.
fn finish(mut recorder: Child, file: &Path) -> String {
    read_slowly(recorder.stdout.take().expect("a pipe"), file);
    let said = recorder.wait_with_output().expect("kymo ends");
    let words = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success(), "{words}");
    words
}

/// How often each page is a sample.
fn pages(file: &Path, count: u64) -> BTreeMap<u64, u32> {
    let said = kymo().succeed(["script", "-F", "addr", "-i", text(file)]);
    let mut pages = BTreeMap::new();
    for word in said.stdout.split_whitespace() {
        let addr = u64::from_str_radix(word, 16).unwrap_or(0);
        if (BASE..BASE + count * 4096).contains(&addr) {
            *pages.entry((addr - BASE) / 4096).or_default() += 1;
        }
    }
    pages
}

fn account(file: &Path) -> Value {
    kymo().succeed(["report", "-q", "-i", text(file), "--loss", "-", "--json"]).json()
}

fn pauses(account: &Value) -> Vec<&Value> {
    let intervals = account["intervals"].as_array().expect("a list");
    intervals.iter().filter(|interval| interval["kind"] == "pause").collect()
}

fn program(test: &str) -> Option<&'static str> {
    require(test, &[Need::Root, Need::Program("cc")]).map(|()| built("pages.c", &[]))
}

/// Recordings beside this one have drains of the same priority on the same CPUs, which may come between: one attempt of three must be
/// complete, and all must be consistent.
fn one_is_complete(test: &str, record: impl Fn(&str, &Path) -> String) {
    let Some(program) = program(test) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    for attempt in 1..=3 {
        let file = folder.path().join(format!("{attempt}.data"));
        let words = record(program, &file);
        let (count, _) = LARGE;
        let (pages, account) = (pages(&file, count), account(&file));
        assert!(pages.values().all(|&times| times == 1), "{test}");
        let lost = account["lost_samples"].as_u64().expect("a number");
        assert!(lost >= count - pages.len() as u64, "{test}: {lost}: {words}");
        assert!(words.contains("paused the target"), "{test}: {words}");
        let pauses = pauses(&account);
        assert!(!pauses.is_empty(), "{test}: {account}");
        let number = |value: &Value| value.as_u64().expect("a number");
        let lasted = |pause: &&Value| number(&pause["end_ns"]) - number(&pause["start_ns"]);
        assert_eq!(number(&account["paused_ns"]), pauses.iter().map(lasted).sum::<u64>(), "{account}");
        if words.contains("lost 0 samples") {
            assert_eq!(pages.len() as u64, count, "{test}");
            return;
        }
        assert!(attempt < 3, "{test}: {words}");
    }
}

/// Checks that a command which makes twice as much data as there is memory, and faster than it is taken away, is recorded without a
/// loss when it may be paused: every page of it and of its child once. The pauses are in the recording.
#[test]
fn a_paused_command_loses_nothing() {
    let test = "a_paused_command_loses_nothing";
    one_is_complete(test, |program, file| {
        let (count, most) = LARGE;
        let mut recorder = recorder("pause", most, &["--", program, &count.to_string()]);
        recorder.stdin.take().expect("a pipe").write_all(b"g").expect("the command reads it");
        finish(recorder, file)
    });
}

/// Checks the same of a process that ran before, which is paused by signals with the child that it makes, and goes on afterwards.
#[test]
fn a_paused_process_loses_nothing() {
    let test = "a_paused_process_loses_nothing";
    one_is_complete(test, |program, file| {
        let folder = tempfile::tempdir().expect("a folder");
        let (count, most) = LARGE;
        let mut target = Running::start(Command::new(program).arg(count.to_string()));
        let fifo = |name: &str| {
            let path = folder.path().join(name);
            assert_eq!(run(Command::new("mkfifo").arg(&path)).code, Some(0));
            path
        };
        let (control, acks) = (fifo("control"), fifo("acks"));
        let channel = format!("fifo:{},{}", control.display(), acks.display());
        let recorder = recorder("pause", most, &["--control", &channel, "-p", &target.pid()]);
        let mut commands = fs::OpenOptions::new().read(true).write(true).open(&control).expect("the fifo");
        commands.write_all(b"ping\n").expect("a fifo takes a word");
        let mut answer = [0; 4];
        fs::File::open(acks).and_then(|mut acks| acks.read_exact(&mut answer)).expect("kymo records");
        target.tell("g");
        let words = finish(recorder, file);
        assert_eq!(target.end().1, Some(0));
        words
    });
}

/// Checks that without pauses no sample is seen twice, that what is missing is counted, and that the counts are in the recording; with
/// and without priority over the target.
#[test]
fn what_does_not_fit_is_counted() {
    let test = "what_does_not_fit_is_counted";
    let Some(program) = program(test) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (count, most) = SMALL;
    for overload in ["slow", "drop"] {
        let mut recorder = recorder(overload, most, &["--", program, &count.to_string()]);
        recorder.stdin.take().expect("a pipe").write_all(b"g").expect("the command reads it");
        let file = folder.path().join(format!("{overload}.data"));
        let words = finish(recorder, &file);
        let pages = pages(&file, count);
        assert!(pages.values().all(|&times| times == 1), "{overload}");
        let account = account(&file);
        let lost = account["lost_samples"].as_u64().expect("a number");
        let missing = count - pages.len() as u64;
        // Pages of the program's own, at other addresses, may be lost, too.
        assert!(
            lost >= missing && (lost > 0) != words.contains("lost 0 samples"),
            "{overload}: {lost} of {missing}: {words}"
        );
        assert!(pauses(&account).is_empty(), "{overload}");
    }
}

/// Regression: with the least memory that is accepted, drains keep half of the buffers, so most were never free again and a target that was
/// paused stood still for ever. The recording ends, and what was lost is counted.
#[test]
fn the_least_memory() {
    let test = "the_least_memory";
    let Some(program) = program(test) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("least.data");
    let name = text(&file);
    let refused = kymo()
        .run(format!("record --overload=pause --max-memory 1K -e page-faults -o {name} -- true").split(' '));
    let words = refused.stderr;
    let needed = words.split_once(" need ").and_then(|(_, rest)| rest.split(' ').next());
    let needed = needed.unwrap_or_else(|| panic!("no size: {words}"));
    let (count, _) = SMALL;
    let mut recorder = recorder("pause", needed, &["--", program, &count.to_string()]);
    recorder.stdin.take().expect("a pipe").write_all(b"g").expect("the command reads it");
    let words = finish(recorder, &file);
    assert!(words.contains("paused the target"), "{words}");
    let pages = pages(&file, count);
    let lost = account(&file)["lost_samples"].as_u64().expect("a number");
    assert!(lost >= count - pages.len() as u64, "{lost}: {words}");
}

/// Checks that what cannot be is refused with the reason: pausing whole CPUs, and memory that does not hold two buffers for each ring.
#[test]
fn refusals() {
    let said = kymo().run(["record", "--overload=pause", "-a", "--", "true"]).ends(1);
    said.says("--overload=pause cannot stop everything");
    kymo().run(["record", "--overload", "hope", "--", "true"]).ends(129).says("expected slow, drop or pause");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("perf.data");
    let said =
        kymo().run(format!("record --max-memory 1K -e cpu-clock -o {} -- true", text(&file)).split(' '));
    if said.stderr.contains("not permitted") {
        return crate::tools::skip("overload::refusals", "events are not permitted");
    }
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    said.says("--max-memory allows 1024");
}
