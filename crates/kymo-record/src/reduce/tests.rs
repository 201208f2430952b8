//! Recordings that keep their stacks, played again through the reducer: what comes out must be what
//! unwinding them afterwards gives, or begin with it.
//!
//! The same program never takes the same samples twice, so each is recorded once, with
//! `--raw-stacks`. Its records are dealt to rings as the CPUs wrote them, the rings are drained at
//! random moments, and the reducer's output is written as a recording again.
use super::{ACCOUNT_EVERY, Reducer};
use crate::account::Unwound;
use crate::channel::{Next, channel};
use crate::opening::event_set;
use crate::output::Output;
use crate::plan::RecordingPlan;
use crate::pool::BufferPool;
use crate::ring_scan::{DrainRequest, LogicalClock, ScanInterval};
use crate::session::Session;
use crate::shared::Message;
use crate::{CallGraph, Options, Rate, TargetSpec};
use kymo_data::{Attr, EventSpec, Features, FileWriter, Mark, Recording, SampleId, UnwindCounts, abi, build};
use kymo_perf::machine::Machine;
use kymo_perf::selector;
use kymo_profile::load::{LoadOptions, load};
use kymo_symbols::unwind::Stop;
use kymo_testing::skip;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

const RING_BYTES: usize = 512 << 10;

fn open(path: &Path) -> Recording {
    Recording::open(Arc::new(File::open(path).unwrap()), Vec::new()).unwrap()
}

/// Records a command with its stacks. `None`, said, where that is not permitted.
fn record(test: &str, path: &Path, command: Vec<OsString>) -> Option<()> {
    let events = selector::resolve(&selector::parse("cpu-clock").unwrap(), &Machine::here()).unwrap();
    let targets = TargetSpec { command, ..TargetSpec::default() };
    let options = Options {
        rate: Rate::Frequency(2000),
        call_graph: CallGraph::Dwarf { stack_bytes: 8192 },
        sample_cpu: true,
        raw_stacks: true,
        build_ids: false,
        ..Options::new(events, targets, Output::File(path.to_owned()))
    };
    let summary = match Session::start(RecordingPlan::resolve(options).unwrap()) {
        Ok(session) => session.run(None).unwrap(),
        Err(error) => {
            skip(test, format!("perf events are not permitted: {error}"));
            return None;
        }
    };
    if summary.account.samples < 20 {
        skip(test, "fewer than 20 samples: the machine is too busy");
        return None;
    }
    Some(())
}

/// A record with what places it: its time, its CPU (`None`: made up at the start).
struct Placed {
    time: u64,
    cpu: Option<u32>,
    bytes: Vec<u8>,
}

fn placed(recording: &Recording) -> Vec<Placed> {
    let mut reader = recording.records();
    let mut out = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        if record.header.kind == abi::PERF_RECORD_FINISHED_ROUND {
            continue;
        }
        let layout = &recording.events.list[0].layout;
        let (time, cpu) = if record.header.kind == abi::PERF_RECORD_SAMPLE {
            let sample = layout.parse_record(&record).unwrap();
            (sample.time, sample.cpu)
        } else {
            let id = recording.events.sample_id(&record);
            (id.time, id.cpu)
        };
        let time = time.unwrap_or(0);
        let bytes = [&record.header.to_bytes(), record.body].concat();
        out.push(Placed { time, cpu: cpu.filter(|_| time != 0), bytes });
    }
    out
}

/// A small generator, so that a failure can be repeated.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// What drains that look at their rings now and then would send.
fn messages(mut records: Vec<Placed>, rings: usize, pool: &BufferPool, dice: &mut Dice) -> Vec<Message> {
    let mut out = Vec::new();
    let start = records.iter().filter(|r| r.cpu.is_none()).flat_map(|r| r.bytes.clone()).collect();
    out.push(Message::Synthesized(start));
    records.retain(|record| record.cpu.is_some());
    records.sort_by_key(|record| record.time);
    let ticks = LogicalClock::default();
    let mut waiting: Vec<Vec<u8>> = vec![Vec::new(); rings];
    let scan = |ring: usize, waiting: &mut Vec<Vec<u8>>, out: &mut Vec<Message>| {
        let bytes = std::mem::take(&mut waiting[ring]);
        let scan = ScanInterval { before: ticks.tick(), after: ticks.tick() };
        if bytes.is_empty() {
            out.push(Message::Empty { ring, round: 0, scan });
            return;
        }
        let len = bytes.len();
        let mut buffer = pool.take().unwrap_or_else(|| vec![0; RING_BYTES]);
        buffer[..len].copy_from_slice(&bytes);
        out.push(Message::Full { ring, buffer, len, round: 0, scan, emptied: true, starved: false });
    };
    for record in records {
        let ring = record.cpu.unwrap_or(0) as usize % rings;
        if waiting[ring].len() + record.bytes.len() > RING_BYTES / 2 {
            scan(ring, &mut waiting, &mut out);
        }
        waiting[ring].extend(record.bytes);
        if dice.below(12) == 0 {
            scan(dice.below(rings as u64) as usize, &mut waiting, &mut out);
        }
    }
    (0..rings).for_each(|ring| scan(ring, &mut waiting, &mut out));
    out
}

/// Plays the records of a raw recording through the reducer into another file.
fn play(raw: &Path, path: &Path, seed: u64) -> Unwound {
    let recording = open(raw);
    let spec = |attr| EventSpec { attr, ids: vec![1], name: "cpu-clock".into() };
    let attr = recording.events.list[0].attr.clone();
    let events = Arc::new(event_set(&[spec(attr.clone())]));
    let rings = 4;
    let pool = BufferPool::new(1024, RING_BYTES, 0, 0).unwrap();
    let messages = messages(placed(&recording), rings, &pool, &mut Dice(seed));
    let fulls = messages.iter().filter(|message| matches!(message, Message::Full { .. })).count();
    let requests: Vec<DrainRequest> = (0..rings).map(|_| DrainRequest::new().unwrap()).collect();
    let one_way = || {
        // One more than there are: the account at the end.
        let (mut senders, messages) = channel([messages.len() + 1]).unwrap();
        (senders.remove(0), messages)
    };
    let ((mut send, receive), (reduced_send, mut written)) = (one_way(), one_way());
    messages.into_iter().for_each(|message| send.send(message).unwrap());
    drop(send);
    let reducer = Reducer::new(events, requests.iter().collect(), &pool, Options::UNWIND_BYTES, reduced_send);
    // In a thread of its own: it runs before all ordinary threads, and this one soon waits for
    // such.
    let unwound = std::thread::scope(|scope| scope.spawn(|| reducer.run(receive)).join().unwrap());
    let writer = FileWriter::create(File::create(path).unwrap(), &[spec(attr.unwound().unwrap())]).unwrap();
    let mut seen = 0;
    while let Next::Item(message) = written.take() {
        match message {
            Message::Synthesized(records) | Message::Note(records) => writer.append(&records).unwrap(),
            Message::Full { buffer, len, .. } => {
                seen += 1;
                writer.append(&buffer[..len]).unwrap();
            }
            Message::Empty { .. } => {}
        }
    }
    writer.append(&build::finished_round()).unwrap();
    assert_eq!(seen, fulls, "every message arrives once");
    writer.finish(&Features::default()).unwrap();
    unwound
}

/// What the recording says of its unwinding.
fn told(path: &Path) -> (usize, UnwindCounts) {
    let (recording, mut sum, mut marks) = (open(path), UnwindCounts::default(), 0);
    let mut reader = recording.records();
    while let Some(record) = reader.next_record().unwrap() {
        if let Some(Mark::Unwound(counts)) = Mark::parse(&record) {
            sum.add(&counts);
            marks += 1;
        }
    }
    (marks, sum)
}

/// A sample as a report sees it: time, thread, CPU, name, address, chain.
type Seen = (u64, i32, u32, String, u64, Vec<u64>);

fn samples(path: &Path) -> Vec<Seen> {
    let options = LoadOptions { callchains: true, columns: true, ..LoadOptions::default() };
    let loaded = load(&open(path), &options, &|_, _, _| {}).unwrap();
    let columns = loaded.columns.expect("columns were asked for");
    let seen = (0..columns.len()).map(|row| {
        let (row, thread) = (columns.row(row), columns.thread(row));
        let chain = loaded.chains.get(row.stack);
        let words = loaded.chains.raw(chain).words().collect();
        let comm = loaded.timeline.comm(thread.comm).into_owned();
        (row.time_ns, thread.tid, row.cpu, comm, chain.ip, words)
    });
    let mut seen: Vec<Seen> = seen.collect();
    seen.sort();
    seen
}

/// Records a command and compares, for several ways to drain.
fn agrees(test: &str, command: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let raw = folder.path().join("raw.data");
    let words = command.iter().map(OsString::from).collect();
    if record(test, &raw, words).is_none() {
        return;
    }
    let expected = samples(&raw);
    for seed in 1..4 {
        let path = folder.path().join("reduced.data");
        let unwound = play(&raw, &path, seed);
        let found = samples(&path);
        assert_eq!(found.len(), expected.len(), "{test}, seed {seed}: samples");
        for (found, expected) in found.iter().zip(&expected) {
            let (of, frames) = (|seen: &Seen| (seen.0, seen.1, seen.2, seen.3.clone(), seen.4), &found.5);
            assert_eq!(of(found), of(expected), "{test}, seed {seed}");
            // What is known of a thread completes chains that the stack's bytes end too early for.
            assert!(frames.starts_with(&expected.5), "{test}, seed {seed}: {frames:x?}, {:x?}", expected.5);
        }
        assert_eq!(unwound.early_buffers, 0, "{test}");
        let (marks, told) = told(&path);
        assert_eq!(told, unwound.counts(), "{test}, seed {seed}: the recording tells what came of it");
        let most = 1 + told.stacks / ACCOUNT_EVERY;
        assert!(marks as u64 <= most && told.stacks > 0, "{test}: {marks} marks for {} stacks", told.stacks);
        assert!(unwound.stats.stopped(Stop::Root) > 0, "{test}: {unwound}");
        if seed == 1 {
            eprintln!("{test}: {unwound}");
        }
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/programs").join(name)
}

/// Builds a program into a folder; `None`, said, without a compiler.
fn built(test: &str, folder: &Path, name: &str, flags: &[&str]) -> Option<String> {
    let (stem, kind) = name.rsplit_once('.').unwrap();
    let program = folder.join(stem);
    let (compiler, usual): (_, &[&str]) = match kind {
        "c" => ("cc", &["-O2", "-pthread", "-fomit-frame-pointer"]),
        "cc" => ("c++", &["-O2", "-pthread", "-fomit-frame-pointer"]),
        _ => ("rustc", &["--edition", "2021", "-O"]),
    };
    let mut command = Command::new(compiler);
    command.args(usual).args(flags).arg(source(name)).arg("-o").arg(&program).current_dir(folder);
    if kind != "rs" {
        command.args(["-ldl", "-lm"]);
    }
    match command.stderr(Stdio::piped()).output() {
        Ok(output) if output.status.success() => Some(program.to_str().unwrap().to_owned()),
        Ok(output) => panic!("{command:?}:\n{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            skip(test, format!("{compiler}: {error}"));
            None
        }
    }
}

fn agrees_built(test: &str, name: &str, arguments: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    if let Some(program) = built(test, folder.path(), name, &[]) {
        agrees(test, &[&[program.as_str()], arguments].concat());
    }
}

/// Checks recursion, callbacks, alloca, realigned stacks, tail calls and signal handlers of C.
#[test]
fn c() {
    agrees_built("reduce::c", "deep.c", &["60"]);
}

/// Checks C++ that throws.
#[test]
fn cpp() {
    agrees_built("reduce::cpp", "exceptions.cc", &["300"]);
}

/// Checks Rust with threads and caught panics.
#[test]
fn rust() {
    agrees_built("reduce::rust", "hot.rs", &["40"]);
}

/// Checks threads that are born and end on several CPUs.
#[test]
fn threads() {
    agrees_built("reduce::threads", "threads.c", &["4", "30"]);
}

/// Checks processes that fork, and programs that are replaced by others.
#[test]
fn processes() {
    agrees_built("reduce::processes", "forkexec.c", &["6"]);
}

/// Checks one process id for several programs.
#[test]
fn one_id_for_several_programs() {
    let test = "reduce::one_id_for_several_programs";
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = built(test, folder.path(), "pidreuse.c", &[]) else { return };
    match Command::new(&program).arg("1").stdout(Stdio::null()).status() {
        Ok(status) if status.success() => agrees(test, &[&program, "4"]),
        other => skip(test, format!("the program may not do it: {other:?}")),
    }
}

/// Checks libraries that take each other's addresses while the program runs.
#[test]
fn libraries_that_come_and_go() {
    let test = "reduce::libraries_that_come_and_go";
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = built(test, folder.path(), "dlopen.c", &[]) else { return };
    let Some(plug) = built(test, folder.path(), "plug.c", &["-shared", "-fPIC"]) else { return };
    let copies: Vec<String> = (0..6)
        .map(|copy| {
            let path = folder.path().join(format!("plug{copy}.so"));
            std::fs::copy(&plug, &path).unwrap();
            path.to_str().unwrap().to_owned()
        })
        .collect();
    let mut command = vec![program.as_str()];
    command.extend(copies.iter().map(String::as_str));
    agrees(test, &command);
}

/// Checks the deep stacks of an interpreter, which end where the recorded bytes end.
#[test]
fn interpreter() {
    let test = "reduce::interpreter";
    match Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output() {
        Ok(output) if output.status.success() => {
            let python = String::from_utf8_lossy(&output.stdout);
            agrees(test, &[python.trim(), source("snake.py").to_str().unwrap()]);
        }
        _ => skip(test, "no python3 here"),
    }
}

/// Checks shells and what they start: many short processes.
#[test]
fn crowd() {
    agrees("reduce::crowd", &["sh", source("crowd.sh").to_str().unwrap()]);
}

/// Regression: buffers without samples that stood behind one with samples, which waited for a look
/// at another ring, were not counted. They were all that there are, so the look never came, and the
/// recording never ended.
#[test]
fn buffers_without_samples_are_not_all_held_back() {
    let attr = Attr {
        sample_type: abi::PERF_SAMPLE_IDENTIFIER | abi::PERF_SAMPLE_TIME,
        flags: abi::ATTR_FLAG_SAMPLE_ID_ALL,
        ..Attr::default()
    };
    let spec = EventSpec { attr: attr.clone(), ids: vec![7], name: "clock".into() };
    // Small ones do not hold the names, so the buffers stay large.
    const BUFFERS: usize = 8;
    let pool = BufferPool::new(BUFFERS, 512, BUFFERS, 0).unwrap();
    let id = SampleId { time: Some(5), id: Some(7), ..SampleId::default() };
    let names = build::comm(&attr, &id, 1, 1, &[b'n'; 100], false);
    let sample = build::record(
        abi::PERF_RECORD_SAMPLE,
        0,
        &[[7, 0, 0, 0, 0, 0, 0, 0], [5, 0, 0, 0, 0, 0, 0, 0]].concat(),
    );
    let ticks = LogicalClock::default();
    let full = |records: &[u8]| {
        let mut buffer = pool.take().unwrap();
        buffer[..records.len()].copy_from_slice(records);
        let scan = ScanInterval { before: ticks.tick(), after: ticks.tick() };
        let len = records.len();
        Message::Full { ring: 0, buffer, len, round: 0, scan, emptied: false, starved: false }
    };
    let requests: Vec<DrainRequest> = (0..2).map(|_| DrainRequest::new().unwrap()).collect();
    let (mut senders, receive) = channel([2 * BUFFERS]).unwrap();
    let (mut reduced, mut written) = channel([2 * BUFFERS]).unwrap();
    let reducer = Reducer::new(
        Arc::new(event_set(&[spec])),
        requests.iter().collect(),
        &pool,
        Options::UNWIND_BYTES,
        reduced.remove(0),
    );
    senders[0].send(Message::Synthesized(Vec::new())).unwrap();
    senders[0].send(full(&sample)).unwrap();
    (1..BUFFERS).for_each(|_| senders[0].send(full(&names)).unwrap());
    std::thread::scope(|scope| {
        let reducer = scope.spawn(|| reducer.run(receive));
        // The sample goes on before the other ring was looked at, and what stands behind it.
        let mut came = 0;
        for _ in 0..1000 {
            while let Next::Item(message) = written.take() {
                came += usize::from(matches!(message, Message::Full { .. }));
            }
            if came == BUFFERS {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        drop(senders);
        assert_eq!(came, BUFFERS, "they are handed on");
        assert_eq!(reducer.join().unwrap().early_buffers, 1);
    });
}
