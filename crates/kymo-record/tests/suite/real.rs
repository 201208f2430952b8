//! Whole sessions on the kernel that runs; skipped where events may not be opened.
use crate::common::{each_record, each_sample, open, options, raise, stop_sign};
use kymo_data::abi;
use kymo_perf::sys::{self, EventTarget, Kernel, Perf, attr_zeroed};
use kymo_perf::workload::Exit;
use kymo_record::{
    Accounted, CallGraph, Delay, LiveRecorder, Output, RecordError, RecordingPlan, Session, Summary,
    TargetSpec,
};
use kymo_testing::skip;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Whether this machine lets this user sample its own tasks.
pub(crate) fn permitted(test: &str) -> bool {
    let mut attr = attr_zeroed();
    attr.type_ = Perf::SOFTWARE;
    attr.set_exclude_kernel(1);
    attr.set_disabled(1);
    match sys::Real.open(&attr, &EventTarget::new(0, sys::ANY)) {
        Ok(event) => {
            sys::Real.close(vec![event]);
            true
        }
        Err(error) => {
            skip(test, format!("perf events are not permitted: {error}"));
            false
        }
    }
}

pub(crate) fn command(script: &str) -> TargetSpec {
    let command = ["sh", "-c", script].map(OsString::from).to_vec();
    TargetSpec { command, ..TargetSpec::default() }
}

fn record(options: kymo_record::Options) -> Summary {
    let session = Session::start(RecordingPlan::resolve(options).unwrap()).unwrap();
    session.run(None).unwrap()
}

pub(crate) const BUSY: &str = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done";

fn samples_in(path: &Path) -> u64 {
    let mut samples = 0;
    each_sample(&open(path), |_| samples += 1);
    samples
}

/// Checks that a command's samples, names and mappings are in the file, that the count of samples
/// is what the summary says, and that the exit status comes back.
#[test]
fn a_command() {
    if !permitted("real::a_command") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("perf.data");
    let summary = record(options("cpu-clock", command(&format!("{BUSY}; exit 3")), &path));
    assert_eq!(summary.exit, Some(Exit::Code(3)));
    assert_eq!(summary.account.samples, samples_in(&path));
    assert!(summary.account.samples > 0);
    let recording = open(&path);
    assert_eq!(recording.features.cmdline, ["test"]);
    assert_eq!(recording.features.event_desc.len(), 1);
    let mut kinds = std::collections::HashMap::new();
    each_record(&recording, |kind, _| *kinds.entry(kind).or_insert(0) += 1);
    for kind in [abi::PERF_RECORD_COMM, abi::PERF_RECORD_MMAP2, abi::PERF_RECORD_EXIT] {
        assert!(kinds.contains_key(&kind), "{kind}: {kinds:?}");
    }
    // perf before 5.19 opens no file that has one.
    assert!(!kinds.contains_key(&abi::PERF_RECORD_FINISHED_INIT), "{kinds:?}");
}

/// Checks that CPU time is held against the kernel's account for every kind of target: a command
/// from its start and from a delay on, a process, a thread, and CPUs.
#[test]
fn cpu_time_of_each_kind() {
    if !permitted("real::cpu_time_of_each_kind") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("perf.data");
    let busy = || std::process::Command::new("sh").args(["-c", &format!("{BUSY}; {BUSY}")]).spawn().unwrap();
    let own = |targets: TargetSpec| TargetSpec { command: Vec::new(), ..targets };
    let delayed = |delay| kymo_record::Options {
        delay: Some(delay),
        ..options("cpu-clock", command(&format!("sleep 0.2; {BUSY}")), &path)
    };
    let of =
        |options: kymo_record::Options| record(options).cpu_time.map(|time| (time.whose, time.used_ns > 0));
    let delay = Delay::After(Duration::from_millis(50));
    assert_eq!(of(options("cpu-clock", command(BUSY), &path)), Some((Accounted::Command, true)));
    assert_eq!(of(delayed(delay)), Some((Accounted::Command, true)));
    for is_thread in [false, true] {
        let mut child = busy();
        let ids = vec![child.id() as i32];
        let targets = match is_thread {
            true => TargetSpec { tids: ids, ..TargetSpec::default() },
            false => TargetSpec { pids: ids, ..TargetSpec::default() },
        };
        let session =
            Session::start(RecordingPlan::resolve(options("cpu-clock", own(targets), &path)).unwrap());
        let stop = stop_sign();
        raise(&stop);
        let time = session.unwrap().run(Some(stop.as_fd())).unwrap().cpu_time.unwrap();
        let whose = if is_thread { Accounted::Threads } else { Accounted::Processes };
        assert_eq!(time.whose, whose);
        child.wait().unwrap();
    }
    let mut system = options("cpu-clock", command(BUSY), &path);
    system.targets.all = true;
    if let Ok(plan) = RecordingPlan::resolve(system)
        && let Ok(session) = Session::start(plan)
    {
        let time = session.run(None).unwrap().cpu_time.unwrap();
        assert_eq!((time.whose, time.used_ns > 0), (Accounted::Cpus, true));
    }
}

/// Checks that samples of several events, of call chains and of stack copies can be told apart and
/// are whole, compressed too.
#[test]
fn several_events() {
    if !permitted("real::several_events") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for (name, call_graph, compress, raw_stacks) in [
        ("none", CallGraph::None, None, false),
        ("fp", CallGraph::FramePointers, Some(1), false),
        ("raw", CallGraph::Dwarf { stack_bytes: 1024 }, Some(3), true),
        ("unwound", CallGraph::Dwarf { stack_bytes: 1024 }, None, false),
        ("packed", CallGraph::Dwarf { stack_bytes: 1024 }, Some(3), false),
    ] {
        let path = directory.path().join(name);
        let mut options = options("cpu-clock,page-faults", command(BUSY), &path);
        (options.call_graph, options.compress, options.raw_stacks) = (call_graph, compress, raw_stacks);
        let summary = record(options);
        let mut ids = std::collections::HashSet::new();
        let (mut stacks, mut chains) = (0, 0);
        each_sample(&open(&path), |sample| {
            ids.insert(sample.id);
            stacks += u64::from(sample.user_stack.is_some_and(|stack| !stack.is_empty()));
            let user = |chain: kymo_data::Words<'_>| chain.iter().any(|word| word == -512_i64 as u64);
            chains += u64::from(sample.callchain.is_some_and(user));
        });
        assert!(ids.len() >= 2, "{name}: both events sampled");
        assert_eq!(samples_in(&path), summary.account.samples, "{name}");
        assert_eq!(stacks > 0, name == "raw", "{name}");
        assert_eq!(chains > 0, matches!(name, "fp" | "unwound" | "packed"), "{name}");
        let unwound = summary.unwound.map(|unwound| unwound.stats.samples);
        assert_eq!(unwound, matches!(name, "unwound" | "packed").then_some(chains), "{name}");
    }
}

/// Checks that a process which runs already is listed with its name and mappings, and that its end
/// ends the recording.
#[test]
fn a_process_that_runs() {
    if !permitted("real::a_process_that_runs") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("perf.data");
    let mut child = std::process::Command::new("sh")
        .args(["-c", &format!("echo; read line; {BUSY}")])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // spawn() returns in the middle of the exec, before the program is mapped; its first line comes
    // after that.
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let targets = TargetSpec { pids: vec![child.id() as i32], ..TargetSpec::default() };
    let session =
        Session::start(RecordingPlan::resolve(options("cpu-clock", targets, &path)).unwrap()).unwrap();
    let file = path.clone();
    let reaper = std::thread::spawn(move || {
        // It may end when it has been listed; should it never be, the check below fails.
        let (name, deadline) = (b"/bin/", Instant::now() + Duration::from_secs(600));
        let listed = || std::fs::read(&file).is_ok_and(|bytes| bytes.windows(5).any(|window| window == name));
        while !listed() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2)); // looks seldom, for the sake of who is waited for
        }
        drop(child.stdin.take());
        child.wait()
    });
    let summary = session.run(None).unwrap();
    reaper.join().unwrap().unwrap();
    assert_eq!(summary.exit, None);
    let mut text = Vec::new();
    each_record(&open(&path), |kind, body| {
        if kind == abi::PERF_RECORD_MMAP2 {
            text.extend_from_slice(body);
        }
    });
    assert!(String::from_utf8_lossy(&text).contains("/bin/"), "the shell's program is among the mappings");
}

/// Checks that a stop sign ends the recording of an endless command, which is told to end.
#[test]
fn told_to_stop() {
    if !permitted("real::told_to_stop") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("perf.data");
    let session = Session::start(
        RecordingPlan::resolve(options("cpu-clock", command("while :; do :; done"), &path)).unwrap(),
    )
    .unwrap();
    let stop = stop_sign();
    raise(&stop);
    let summary = session.run(Some(stop.as_fd())).unwrap();
    assert_eq!(summary.exit, Some(Exit::Signal(15)), "the recorder told it to end");
    each_record(&open(&path), |_, _| {});
}

/// Checks that a command that cannot be found is an error that names it, and that no file is
/// touched then.
#[test]
fn a_command_that_is_not_there() {
    if !permitted("real::a_command_that_is_not_there") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("perf.data");
    std::fs::write(&path, "PERFILE2 an older recording").unwrap();
    let targets = TargetSpec { command: vec!["no-such-program-here".into()], ..TargetSpec::default() };
    let error =
        Session::start(RecordingPlan::resolve(options("cpu-clock", targets, &path)).unwrap()).err().unwrap();
    assert!(matches!(error, RecordError::Command { .. }), "{error}");
    assert!(error.to_string().contains("no-such-program-here"));
    assert_eq!(std::fs::read(&path).unwrap(), b"PERFILE2 an older recording");
}

/// Checks that a disk that is full from the first byte on is a clear error.
#[test]
fn a_device_without_room() {
    if !permitted("real::a_device_without_room") {
        return;
    }
    let mut options = options("cpu-clock", command(":"), Path::new("/dev/full"));
    options.output = Output::File("/dev/full".into());
    let error = Session::start(RecordingPlan::resolve(options).unwrap()).err().unwrap();
    assert!(error.to_string().contains("No space left on device"), "{error}");
}

/// Checks that a recording that is divided into files in memory loses no sample between them, that
/// each file names its processes, and that the last one comes when the recording ends.
#[test]
fn files_in_memory() {
    if !permitted("real::files_in_memory") {
        return;
    }
    let targets = TargetSpec { pids: vec![std::process::id() as i32], ..TargetSpec::default() };
    let options = options("cpu-clock", targets, Path::new("unused"));
    let options = LiveRecorder::prepare_complete(options);
    let session = Session::start(RecordingPlan::resolve(options).unwrap()).unwrap();
    let (recorder, files) = LiveRecorder::start(session).unwrap();
    let mut of_files = Vec::new();
    let mut take = |file: std::fs::File| {
        let recording = kymo_data::Recording::open(std::sync::Arc::new(file), Vec::new()).unwrap();
        let (mut samples, mut names) = (0, 0);
        each_record(&recording, |kind, _| {
            samples += u64::from(kind == abi::PERF_RECORD_SAMPLE);
            names += u64::from(kind == abi::PERF_RECORD_COMM);
        });
        assert!(names > 0);
        of_files.push(samples);
    };
    for _ in 0..2 {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(100) {
            std::hint::spin_loop();
        }
        recorder.ask();
        take(files.recv().unwrap().file);
    }
    let summary = recorder.stop().unwrap();
    take(files.recv().unwrap().file);
    assert!(files.recv().is_err());
    assert_eq!(of_files.iter().sum::<u64>(), summary.account.samples);
    assert!(of_files[0] > 0 && of_files[1] > 0, "{of_files:?}");
}
