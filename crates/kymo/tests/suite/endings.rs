//! Recordings that end badly: kymo is killed, the disk is full, files may not be larger, or the
//! file is cut. What was recorded before is read by the verb that it was recorded for, which says
//! what is missing and ends with status 2.
//!
//! `KYMO_KILLS` says how many kills; 300, or 5,000 with `KYMO_SOAK`. `KYMO_SEED` repeats the
//! moments.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kymo_data::abi::PERF_RECORD_SAMPLE;
use kymo_data::{Recording, Sample};
use kymo_symbols::SymbolOptions;
use kymo_symbols::build_id_cache::build_id_of;
use rustix::process::Signal;

use crate::faults::Dice;
use crate::programs::build;
use crate::scenario::fresh_folder;
use crate::tools::{Need, Running, kymo, perf, ready, run, signal, skip, text};
use crate::watch;

/// A verb that writes a recording, and the question that the recording is made for.
struct Verb {
    name: &'static str,
    /// PID and FILE stand for the program and the recording.
    arguments: &'static [&'static str],
    /// Names of events that have samples.
    events: &'static [&'static str],
    question: &'static [&'static str],
    /// Words of the answer.
    answer: &'static str,
}

/// Those that may run beside others.
const SHARED: [Verb; 10] = [
    Verb {
        name: "record",
        arguments: &["record", "-q", "-F", "1999", "-e", "cpu-clock/name=named/", "-p", "PID", "-o", "FILE"],
        events: &["named"],
        question: &["report", "--stdio", "-i", "FILE"],
        answer: "computes",
    },
    Verb {
        name: "record -z",
        arguments: &["record", "-q", "-z", "-g", "-F", "1999", "-e", "cpu-clock", "-p", "PID", "-o", "FILE"],
        events: &["cpu-clock"],
        question: &["report", "--stdio", "-i", "FILE"],
        answer: "computes",
    },
    Verb {
        name: "record -a",
        arguments: &["record", "-q", "-a", "-F", "999", "-e", "cpu-clock", "-o", "FILE"],
        events: &["cpu-clock"],
        question: &["report", "--stdio", "--sort", "comm", "-i", "FILE"],
        answer: "of event 'cpu-clock'",
    },
    Verb {
        name: "record --wall",
        arguments: &["record", "-q", "--wall", "-p", "PID", "-o", "FILE"],
        events: &["offcpu-time"],
        question: &["report", "--wall", "-i", "FILE"],
        answer: "lock",
    },
    Verb {
        name: "record --wall -z",
        arguments: &["record", "-q", "-z", "--wall", "-p", "PID", "-o", "FILE"],
        events: &["offcpu-time"],
        question: &["report", "--wall", "-i", "FILE"],
        answer: "lock",
    },
    // Its standard output is the file.
    Verb {
        name: "record -o -",
        arguments: &["record", "-q", "-F", "1999", "-e", "cpu-clock/name=named/", "-p", "PID", "-o", "-"],
        events: &["named"],
        question: &["report", "--stdio", "-i", "FILE"],
        answer: "computes",
    },
    // Earlier files have times behind their names.
    Verb {
        name: "record --switch-output",
        arguments: &[
            "record",
            "-q",
            "-F",
            "1999",
            "-e",
            "cpu-clock",
            "--switch-output=20K",
            "-p",
            "PID",
            "-o",
            "FILE",
        ],
        events: &["cpu-clock"],
        question: &["report", "--stdio", "-i", "FILE"],
        answer: "computes",
    },
    Verb {
        name: "locks",
        arguments: &["locks", "-q", "-p", "PID", "-o", "FILE"],
        events: &["lock-wait"],
        question: &["locks", "-i", "FILE"],
        answer: "contends",
    },
    Verb {
        name: "stat record",
        arguments: &["stat", "record", "-I", "10", "-e", "task-clock", "-p", "PID", "-o", "FILE"],
        events: &[],
        question: &["stat", "report", "-i", "FILE"],
        answer: "task-clock",
    },
    Verb {
        name: "sched",
        arguments: &["record", "-q", "-a", "-e", "sched:sched_switch", "-o", "FILE"],
        events: &["sched:sched_switch"],
        question: &["sched", "latency", "-i", "FILE"],
        answer: "endings",
    },
];

/// Those that enter the program, or take registers: one at a time.
const ALONE: [Verb; 7] = [
    Verb {
        name: "record -e mem:",
        arguments: &["record", "-q", "-c", "1", "-e", "mem:counter:w", "-p", "PID", "-o", "FILE"],
        events: &["mem:counter:w"],
        question: &["report", "--stdio", "-i", "FILE"],
        answer: "probed",
    },
    Verb {
        name: "watch",
        arguments: &["watch", "-q", "-p", "PID", "-o", "FILE", "counter"],
        events: &["mem:counter/8:w"],
        question: &["report", "--stdio", "-i", "FILE"],
        answer: "probed",
    },
    Verb {
        name: "probe",
        arguments: &["probe", "-q", "-p", "PID", "-o", "FILE", "probed"],
        events: &["probe:endings:probed"],
        question: &["report", "--stdio", "-i", "FILE"],
        answer: "probed",
    },
    Verb {
        name: "probe --engine kernel",
        arguments: &["probe", "-q", "--engine", "kernel", "-p", "PID", "-o", "FILE", "probed"],
        events: &["probe:endings:probed"],
        question: &["report", "--stdio", "-i", "FILE"],
        answer: "probed",
    },
    Verb {
        name: "record -e probe:",
        arguments: &["record", "-q", "--engine", "kernel", "-e", "probe:probed", "-p", "PID", "-o", "FILE"],
        events: &["probe:endings:probed"],
        question: &["script", "-F", "event,comm", "-i", "FILE"],
        answer: "probe:endings:probed",
    },
    Verb {
        name: "record --request",
        arguments: &["record", "-q", "--wall", "--request", "probed", "-p", "PID", "-o", "FILE"],
        events: &["offcpu-time", "probe:endings:probed%return"],
        question: &["report", "--wall", "--request", "probed", "-i", "FILE"],
        answer: "probed",
    },
    Verb {
        name: "locks --holds",
        arguments: &["locks", "-q", "--holds", "-p", "PID", "-o", "FILE"],
        events: &["lock-wait"],
        question: &["locks", "-i", "FILE"],
        answer: "contends",
    },
];

impl Verb {
    fn of(name: &str) -> &'static Verb {
        SHARED.iter().chain(&ALONE).find(|verb| verb.name == name).expect("a verb of the list")
    }

    /// Whether the answer is among the samples: of waits if those of each thread are there, of
    /// which one may have run alone at first.
    fn is_in(&self, recording: &Recording, samples: &BTreeMap<&str, u64>) -> bool {
        let each = self.events.iter().all(|event| samples[event] >= 5);
        each && (self.answer != "lock" || threads(recording, "offcpu-time").iter().all(|&count| count >= 5))
    }

    fn is_pipe(&self) -> bool {
        self.arguments.ends_with(&["-"])
    }

    fn command(&self, pid: &str, file: &Path) -> Command {
        let mut command = kymo().command(filled(self.arguments, pid, file));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        if self.is_pipe() {
            command.stdout(File::create(file).expect("a folder of ours"));
        }
        command
    }

    /// Asks the question; it is answered, with the status and the words of a recording that ended
    /// badly.
    fn ask(&self, file: &Path, missing: &str, what: &str) {
        let said = kymo().run(filled(self.question, "", file)).ends(2);
        assert!(
            said.stdout.contains(self.answer),
            "{what}: {}\n{}{}",
            said.command,
            said.stdout,
            said.stderr
        );
        said.says(missing);
    }
}

fn filled<'a>(words: &'a [&'a str], pid: &'a str, file: &'a Path) -> Vec<&'a str> {
    let fill = |word: &&'a str| match *word {
        "PID" => pid,
        "FILE" => text(file),
        word => word,
    };
    words.iter().map(fill).collect()
}

/// The program that is observed.
fn program() -> Running {
    let mut program = Running::start(&mut Command::new(build("endings.c", &["-g", "-pthread"])));
    assert_eq!(program.line(), "ready\n");
    program
}

fn opened(file: &Path) -> Recording {
    let source = File::open(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let opened = Recording::open(Arc::new(source), Vec::new());
    opened.unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// How many samples each event has.
fn samples(recording: &Recording) -> BTreeMap<&str, u64> {
    let list = &recording.events.list;
    let mut samples: BTreeMap<&str, u64> = list.iter().map(|event| (&*event.name, 0)).collect();
    let mut records = recording.records();
    while let Some(record) = records.next_record().expect("it is read") {
        if record.header.kind == PERF_RECORD_SAMPLE
            && let Some(event) = recording.events.event_of(&record)
        {
            *samples.entry(&list[event].name).or_default() += 1;
        }
    }
    samples
}

/// How many samples of an event those three threads have that have most of them.
fn threads(recording: &Recording, name: &str) -> [u64; 3] {
    let mut counts: BTreeMap<i32, u64> = BTreeMap::new();
    let mut records = recording.records();
    while let Some(record) = records.next_record().expect("it is read") {
        let Some(event) = recording.events.event_of(&record) else { continue };
        let event = &recording.events.list[event];
        let mut sample = Sample::default();
        let is_sample = record.header.kind == PERF_RECORD_SAMPLE && &*event.name == name;
        if is_sample && event.layout.parse_into(record.header.misc, record.body, &mut sample).is_ok() {
            *counts.entry(sample.tid.unwrap_or(0)).or_default() += 1;
        }
    }
    let mut counts: Vec<u64> = counts.into_values().collect();
    counts.sort_unstable_by(|one, other| other.cmp(one));
    [0, 1, 2].map(|thread| counts.get(thread).copied().unwrap_or(0))
}

/// How many bytes of records the header tells of, once there is a file; of a pipe, how many bytes
/// there are.
fn published(file: &Path) -> u64 {
    let read = |file: File| {
        let mut words = [[0; 8]; 7];
        file.read_exact_at(words.as_flattened_mut(), 0)?;
        // What a pipe begins with has 16 bytes.
        let is_pipe = u64::from_le_bytes(words[1]) == 16;
        Ok(if is_pipe { file.metadata()?.len() } else { u64::from_le_bytes(words[6]) })
    };
    File::open(file).and_then(read).unwrap_or(0)
}

/// The earlier files of a recording that is several.
fn earlier(file: &Path) -> Vec<PathBuf> {
    let prefix = format!("{}.", file.file_name().and_then(|name| name.to_str()).expect("UTF-8"));
    let entries = fs::read_dir(file.parent().expect("a folder")).expect("a folder").flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    named.map(|entry| entry.path()).collect()
}

/// Waits until so many publications were seen, or the child has ended; false if that takes too
/// long.
fn grows(child: &mut Child, file: &Path, times: u64) -> bool {
    let begun = Instant::now();
    let (mut last, mut seen) = (0, 0);
    while seen < times {
        let now = published(file);
        seen += u64::from(now > last);
        last = now;
        if begun.elapsed() > Duration::from_secs(20) || child.try_wait().expect("a child").is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Kills verbs at random moments, one after the other, and looks at what they leave.
fn killed(test: &str, verbs: &[Verb], kills: u64, mut dice: Dice) {
    let folder = fresh_folder(&format!("endings-{}", verbs[0].name.replace(' ', "")));
    let program = program();
    let (mut files, mut answered) = (0, BTreeMap::<&str, u64>::new());
    for number in 0..kills {
        let verb = &verbs[number as usize % verbs.len()];
        let round = number / verbs.len() as u64;
        let file = folder.join(format!("{number}.data"));
        let mut child = verb.command(&program.pid(), &file).spawn().expect("kymo starts");
        // Two in three at any moment of the start.
        let grown = round.is_multiple_of(3) && grows(&mut child, &file, 2 + dice.below(3));
        let pause = dice.below(if grown { 50 } else { 500 });
        std::thread::sleep(Duration::from_millis(pause));
        child.kill().and_then(|()| child.wait()).expect("a child");
        let what = format!("kill {number}: {}, grown: {grown}, then {pause} ms", verb.name);
        let earlier = earlier(&file);
        for file in &earlier {
            let recording = opened(file);
            assert!(samples(&recording).values().sum::<u64>() > 0, "{what}: {}", file.display());
            assert!(recording.problems.is_empty(), "{what}: {:?}", recording.problems);
            _ = fs::remove_file(file);
        }
        if !file.exists() || verb.is_pipe() && published(&file) == 0 {
            // Between two files there is none of this name.
            assert!(!grown || !earlier.is_empty(), "{what}");
            continue;
        }
        files += 1;
        let recording = opened(&file);
        let samples = samples(&recording);
        assert!(recording.problems.iter().any(|p| p.what.contains("did not finish")), "{what}");
        assert!(verb.events.iter().all(|event| samples.contains_key(event)), "{what}: {samples:?}");
        if grown && earlier.is_empty() {
            let asked = answered.entry(verb.name).or_default();
            if verb.is_in(&recording, &samples) && (*asked == 0 || *asked < round / 8) {
                *asked += 1;
                verb.ask(&file, "did not finish", &what);
                if ready(test, &[Need::Perf]) && !verb.is_pipe() {
                    perf().run(["evlist", "-i", text(&file)]).ends(0);
                }
            }
        }
        _ = fs::remove_file(&file);
    }
    eprintln!("{test}: {kills} kills, {files} files; answers: {answered:?}");
    if kills >= 10 * verbs.len() as u64 {
        assert_eq!(answered.len(), verbs.len(), "each verb's question is answered: {answered:?}");
    }
}

fn kills() -> u64 {
    let usual = if std::env::var_os("KYMO_SOAK").is_some() { 5_000 } else { 300 };
    std::env::var("KYMO_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(usual)
}

/// Checks that whatever a killed kymo leaves opens, has the names of its events, says that it was
/// not finished, and answers the question that it was made for, for every verb that writes a
/// recording.
#[test]
fn killed_recordings_answer() {
    const TEST: &str = "endings::killed_recordings_answer";
    if !ready(TEST, &[Need::Root, Need::Tracepoints, Need::X86, Need::Uprobes, Need::Program("cc")]) {
        return;
    }
    let Some(_alone) = watch::alone(TEST) else { return };
    let (first, second) = SHARED.split_at(SHARED.len() / 2);
    std::thread::scope(|scope| {
        for verbs in [first, second, &ALONE] {
            let dice = Dice::of(TEST);
            scope.spawn(move || killed(TEST, verbs, kills() / 3, dice));
        }
    });
}

/// Checks that a flight recorder which is killed leaves each snapshot that has its name whole.
#[test]
fn snapshots_of_a_killed_flight_recorder_are_whole() {
    const TEST: &str = "endings::snapshots_of_a_killed_flight_recorder_are_whole";
    if !ready(TEST, &[Need::Root, Need::Program("cc")]) {
        return;
    }
    let (program, folder) = (program(), fresh_folder("endings-flight"));
    let (mut dice, pid, mut snapshots) = (Dice::of(TEST), program.pid(), 0);
    for round in 0..kills() / 30 {
        let file = folder.join(format!("{round}.data"));
        let words = ["record", "-q", "--overwrite", "-F", "1999", "-e", "cpu-clock", "-p", &pid, "-o"];
        let mut child = kymo().command([&words[..], &[text(&file)]].concat()).spawn().expect("kymo starts");
        while !file.exists() {
            assert!(child.try_wait().expect("a child").is_none(), "it ended");
            std::thread::sleep(Duration::from_millis(1));
        }
        for _ in 0..1 + dice.below(4) {
            std::thread::sleep(Duration::from_millis(dice.below(100)));
            signal(&child, Signal::USR2);
        }
        std::thread::sleep(Duration::from_millis(dice.below(200)));
        child.kill().and_then(|()| child.wait()).expect("a child");
        for snapshot in earlier(&file) {
            snapshots += 1;
            kymo().succeed(["report", "--stdio", "-i", text(&snapshot)]);
        }
        // The next one, which is empty or half there; none between two.
        assert!(!file.exists() || opened(&file).lacks_its_end());
    }
    assert!(snapshots > 0, "of so many kills some come after a snapshot");
}

/// Checks that a recording has the build ids of files long before its end: in a file and in a pipe,
/// of verbs that sample and of one that follows accesses; and that they are there when the recorder
/// was killed and the program is gone. A pipe that is complete has them, too, and lacks nothing.
#[test]
fn killed_recordings_have_build_ids() {
    const TEST: &str = "endings::killed_recordings_have_build_ids";
    if !ready(TEST, &[Need::Root, Need::Tracepoints, Need::Program("cc")]) {
        return;
    }
    let Some(_alone) = watch::alone(TEST) else { return };
    let folder = fresh_folder("endings-ids");
    let original = build("endings.c", &["-g", "-pthread"]);
    let id = build_id_of(&original, &SymbolOptions::default()).expect("linked with a build id");
    let has_id = |file: &Path| kymo().run(["buildid-list", "-i", text(file)]).stdout.contains(&id);
    for name in ["record", "record -z", "record -o -", "watch"] {
        let (path, file) = (folder.join("vanishes"), folder.join("perf.data"));
        kymo_testing::copy_program(&original, &path);
        let mut program = Running::start(&mut Command::new(&path));
        assert_eq!(program.line(), "ready\n");
        let mut child = Verb::of(name).command(&program.pid(), &file).spawn().expect("kymo starts");
        let begun = Instant::now();
        while !(published(&file) > 0 && has_id(&file)) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{name}: no build id in a minute");
            assert!(child.try_wait().expect("a child").is_none(), "{name}: it ended");
        }
        child.kill().and_then(|()| child.wait()).expect("a child");
        fs::remove_file(&path).expect("it is there");
        drop(program);
        assert!(has_id(&file), "{name}");
        assert!(opened(&file).lacks_its_end(), "{name}");
        fs::remove_file(&file).expect("it is there");
    }
    let (path, file) = (folder.join("vanishes"), folder.join("whole.data"));
    kymo_testing::copy_program(&original, &path);
    let mut command = kymo().command(["record", "-q", "-e", "cpu-clock", "-o", "-", "--"]);
    command.arg(&path).stdin(Stdio::null()).stdout(File::create(&file).expect("a folder of ours"));
    assert!(command.status().expect("kymo runs").success());
    fs::remove_file(&path).expect("it is there");
    assert!(opened(&file).problems.is_empty());
    assert!(has_id(&file));
}

/// Checks that a recording which is read while it is made is not called damaged, and that it is
/// once its recorder was killed.
#[test]
fn a_recording_that_still_runs_is_no_damage() {
    const TEST: &str = "endings::a_recording_that_still_runs_is_no_damage";
    if !ready(TEST, &[Need::Root, Need::Program("cc")]) {
        return;
    }
    let (program, folder) = (program(), fresh_folder("endings-live"));
    let (file, verb) = (folder.join("live.data"), Verb::of("record"));
    let mut child = verb.command(&program.pid(), &file).spawn().expect("kymo starts");
    assert!(grows(&mut child, &file, 2));
    kymo().run(filled(verb.question, "", &file)).ends(0).says("it is still being recorded");
    child.kill().and_then(|()| child.wait()).expect("a child");
    verb.ask(&file, "did not finish", "killed");
}

/// Checks that a limit on the size of files ends recordings of waits, locks and accesses so that
/// they are read up to there: the error says that what came before is complete.
#[test]
fn a_file_size_limit_leaves_what_came_before() {
    const TEST: &str = "endings::a_file_size_limit_leaves_what_came_before";
    if !ready(TEST, &[Need::Root, Need::Tracepoints, Need::Program("cc")]) {
        return;
    }
    let Some(_alone) = watch::alone(TEST) else { return };
    let (program, folder) = (program(), fresh_folder("endings-limit"));
    for name in ["record --wall", "locks", "watch", "record -e mem:"] {
        let (verb, file) = (Verb::of(name), folder.join("limited.data"));
        // In half kilobytes. Of waits the names of all processes come first, as any may end one.
        let most = match name {
            "record --wall" => 2400,
            "locks" => 1000,
            _ => 200,
        };
        let mut limited = Command::new("sh");
        let script = format!("ulimit -f {most}; exec timeout -s INT 20 \"$@\"");
        limited.args(["-c", &script, "sh"]).arg(kymo().path());
        let duration: &[&str] = if name == "watch" { &["-d", "3"] } else { &[] };
        limited.args(&verb.arguments[..1]).args(duration);
        let said = run(limited.args(&filled(verb.arguments, &program.pid(), &file)[1..])).ends(1);
        said.says("failed to write").says("File too large");
        assert!(fs::metadata(&file).expect("the file").len() <= most * 512);
        let recording = opened(&file);
        let samples = samples(&recording);
        assert!(
            verb.events.iter().all(|event| samples[event] > 100),
            "{name}: {samples:?}, {} bytes of records: {}",
            recording.data_bytes(),
            said.stderr
        );
        verb.ask(&file, "could not write", name);
    }
}

/// Checks the same on a full disk.
#[test]
fn a_full_disk_leaves_what_came_before() {
    const TEST: &str = "endings::a_full_disk_leaves_what_came_before";
    if !ready(TEST, &[Need::Root, Need::Tracepoints, Need::Program("cc"), Need::Program("mount")]) {
        return;
    }
    let (program, folder) = (program(), fresh_folder("endings-full"));
    let mount = ["-t", "tmpfs", "-o", "size=300k", "none", text(&folder)];
    if run(Command::new("mount").args(mount)).code != Some(0) {
        return skip(TEST, "a tmpfs cannot be mounted here");
    }
    let copies = fresh_folder("endings-full-copies");
    let said = ["record --wall", "locks"].map(|name| {
        let file = folder.join("full.data");
        let said = run(&mut kymo().command(filled(Verb::of(name).arguments, &program.pid(), &file)));
        let copy = copies.join(name);
        fs::copy(&file, &copy).and_then(|_| fs::remove_file(&file)).expect("there is a file");
        (name, said, copy)
    });
    run(Command::new("umount").arg(&folder)).ends(0);
    for (name, said, copy) in said {
        said.ends(1).says("failed to write").says("No space left on device");
        Verb::of(name).ask(&copy, "could not write", name);
    }
}

/// Checks that every verb that takes a recording says what a file lacks that was cut, and ends with
/// status 2.
#[test]
fn every_verb_says_that_a_recording_is_cut() {
    let folder = fresh_folder("endings-cut");
    let whole = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings/callgraph.data");
    let (file, output) = (folder.join("cut.data"), folder.join("output"));
    let bytes = fs::read(whole).expect("a recording");
    fs::write(&file, &bytes[..3000]).expect("a folder of ours");
    let (file, output) = (text(&file), text(&output));
    for words in [
        &["report", "--stdio", "-i", file][..],
        &["report", "-q", "--stdio", "-i", file],
        &["report", "--header-only", "-i", file],
        &["report", "--tasks", "-i", file],
        &["report", "--stats", "-i", file],
        &["report", "--loss", "-", "-i", file],
        &["script", "-i", file],
        &["script", "--header-only", "-i", file],
        &["evlist", "-i", file],
        &["buildid-list", "-i", file],
        &["buildid-cache", "-M", file],
        &["inject", "-b", "-i", file, "-o", output],
        &["data", "convert", "-i", file, "--to-json", "-"],
        &["archive", "-i", file],
        &["annotate", "-i", file],
        &["query", file, "top"],
        &["export", "--to", "folded", "-i", file],
        &["view", "--bundle", output, file],
        &["sched", "latency", "-i", file],
        &["sched", "map", "-i", file],
        &["stat", "report", "-i", file],
    ] {
        let said = kymo().run(words).ends(2);
        said.says("it is cut off");
        assert_eq!(said.stderr.matches("it is cut off").count(), 1, "{}: {}", said.command, said.stderr);
        _ = fs::remove_file(output);
    }
}

/// Checks that a recording of kymo that was cut keeps the names of its events, and with them its
/// question.
#[test]
fn a_cut_recording_keeps_its_question() {
    const TEST: &str = "endings::a_cut_recording_keeps_its_question";
    if !ready(TEST, &[Need::Root, Need::Tracepoints, Need::Program("cc")]) {
        return;
    }
    let (mut program, folder) = (program(), fresh_folder("endings-cut-wall"));
    let (file, verb) = (folder.join("wall.data"), Verb::of("record --wall"));
    let mut child = verb.command(&program.pid(), &file).spawn().expect("kymo starts");
    assert!(grows(&mut child, &file, 10));
    program.end();
    assert_eq!(child.wait().expect("a child").code(), Some(0));
    kymo().succeed(filled(verb.question, "", &file));
    let bytes = fs::read(&file).expect("a recording");
    let data_at = u64::from_le_bytes(bytes[40..48].try_into().expect("8 bytes"));
    let half = (data_at + published(&file) * 3 / 4) as usize;
    fs::write(&file, &bytes[..half]).expect("a folder of ours");
    verb.ask(&file, "it is cut off", "cut");
}

/// Checks that `diff --run` does not blame a command for a recording that could not be written, and
/// does blame it for a status of its own.
#[test]
fn diff_run_tells_a_failed_recording_from_a_failed_command() {
    let folder = fresh_folder("endings-diff");
    let diff = |limit: &str, command: &str| {
        let script = format!(
            "ulimit -f {limit}; exec \"$0\" diff -q -n 1 -o \"$1\" --run '{command}' --run '{command}'"
        );
        run(Command::new("sh").args(["-c", &script]).arg(kymo().path()).arg(&folder)).ends(2)
    };
    let said = diff("2", "true");
    said.says("could not be recorded").says("File too large");
    assert!(!said.stderr.contains("its cost is not that"), "{}", said.stderr);
    diff("unlimited", "exit 1").says("its cost is not that of the whole work");
}

/// Checks that what root makes under sudo belongs to the caller, in the caller's folders, and
/// elsewhere to root.
#[test]
fn outputs_under_sudo_are_the_callers() {
    const TEST: &str = "endings::outputs_under_sudo_are_the_callers";
    const CALLER: u32 = 65_534;
    if !ready(TEST, &[Need::Root]) {
        return;
    }
    let (own, roots) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    std::os::unix::fs::chown(own.path(), Some(CALLER), Some(CALLER)).expect("we are root");
    let sudo = |words: &[&str]| {
        let mut command = kymo().command(words);
        let caller = CALLER.to_string();
        run(command.env("SUDO_UID", &caller).env("SUDO_GID", &caller)).ends(0)
    };
    for (folder, owner) in [(own.path(), CALLER), (roots.path(), 0)] {
        let path = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
        let (data, page, stat) = (path("perf.data"), path("page.html"), path("stat.txt"));
        let record = ["record", "-q", "-e", "page-faults", "-c", "1", "-o", &data, "--", "true"];
        sudo(&record);
        // The second run moves the first file away.
        sudo(&record);
        sudo(&["report", "-q", "-i", &data, "--html", &page]);
        for append in [&[][..], &["--append"]] {
            let words = [&["stat", "-e", "task-clock", "-o", &stat], append, &["--", "true"]].concat();
            sudo(&words);
        }
        for name in [&data, &page, &stat, &format!("{data}.old")] {
            let found = fs::metadata(name).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!((found.uid(), found.gid()), (owner, owner), "{name}");
        }
        assert_eq!(fs::metadata(&data).expect("a file").permissions().mode() & 0o777, 0o600);
    }
}

/// Checks that a user who may not read root's recording hears whose it is, and what to do.
#[test]
fn a_recording_of_root_is_named_as_such() {
    const TEST: &str = "endings::a_recording_of_root_is_named_as_such";
    if !ready(TEST, &[Need::Root, Need::Program("setpriv")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    let (binary, file): (PathBuf, PathBuf) = (folder.path().join("kymo"), folder.path().join("perf.data"));
    kymo_testing::copy_program(kymo().path(), &binary);
    fs::write(&file, "PERFILE2").expect("ours");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("ours");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&binary);
    let said = run(command.args(["report", "-i", text(&file)])).ends(1);
    said.says("it belongs to root: use sudo, or `sudo chown $USER");
}
