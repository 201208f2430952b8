//! What probes inside a program do besides counting: conditions, one in N, callers, and recordings of each hit.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::copied::{Program, ROOMY};
use crate::probe_lifetimes::Probing;
use crate::tools::{Need, Running, kymo, perf, ready, require, signal, text};

/// Root: where /proc/sys/kernel/yama/ptrace_scope is 1, others cannot enter what runs already.
fn program_of(test: &str, source: &str) -> Option<Program> {
    require(test, &[Need::X86, Need::Program("cc"), Need::Root]).map(|()| Program::of(source, &[]))
}

/// The program, executed, that waits for a byte before it makes its calls, and again when all is done.
pub(crate) fn waiting(program: &Path, arguments: &[&str]) -> Running {
    let running = Running::start(Command::new(program).arg("-w").args(arguments));
    // Its libraries are there when it reads its input.
    let read = if cfg!(target_arch = "x86_64") { "0 0x0 " } else { "63 0x0 " };
    let call = format!("/proc/{}/syscall", running.pid());
    while !std::fs::read_to_string(&call).is_ok_and(|call| call.starts_with(read)) {
        std::thread::yield_now();
    }
    running
}

/// Lets it make its calls; what it says it counted.
fn work(running: &mut Running) -> String {
    running.tell("x");
    running.line()
}

/// How calls of functions are seen inside a program: the engine, and how the program is built. The
/// last one cannot load the agent.
const WAYS: [(&str, &[&str]); 3] = [("shadow", &[]), ("inproc", &[ROOMY]), ("inproc", &[ROOMY, "-static"])];

/// The same for events that the program writes.
const EVENT_WAYS: [(&str, &[&str]); 2] = [("shadow", &[]), ("inproc", &[ROOMY])];
/// What programs are compiled with that load the agent, and that cannot.
const DEPLOYMENTS: [&[&str]; 2] = [&[], &["-static", ROOMY]];

/// Runs `kymo probe` on the program from before its calls until they are done; its JSON.
fn probe(engine: &str, program: &Path, calls: &str, arguments: &[&str]) -> Value {
    let mut running = waiting(program, &[calls, "2"]);
    let mut probing =
        kymo().start(["probe", "--engine", engine, "--json", "-p", &running.pid()].iter().chain(arguments));
    let mut words = BufReader::new(probing.stderr.take().expect("its words")).lines().map_while(Result::ok);
    let said: Vec<String> = words.by_ref().take_while(|line| !line.contains("patched while")).collect();
    if probing.try_wait().expect("kymo").is_none() {
        work(&mut running);
        signal(&probing, Signal::INT);
    }
    let output = probing.wait_with_output().expect("kymo's end");
    assert_eq!(running.end().1, Some(0));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said:?}"))
}

fn of<'a>(document: &'a Value, name: &str) -> &'a Value {
    let probes = document["probes"].as_array().expect("a list");
    let probe = probes.iter().find(|probe| probe["name"] == name).unwrap_or_else(|| panic!("{document}"));
    assert_eq!(probe["engine"], "inproc");
    probe
}

/// Checks conditions on arguments and on what a function returns, and one in N, by the engine inside the program: as exact as the kernel's.
#[test]
fn only_some_hits() {
    const TEST: &str = "probe_inside::only_some_hits";
    let Some(()) = require(TEST, &[Need::X86, Need::Program("cc"), Need::Root]) else { return };
    for (engine, flags) in WAYS {
        let program = Program::of("probed.c", flags);
        let hits = |options: &[&str], condition: &str, name: &str| {
            let found = probe(engine, &program.path, "100", &[options, &["--if", condition, name]].concat());
            (of(&found, name)["hits"].clone(), of(&found, name)["latencies"]["count"].clone())
        };
        assert_eq!(hits(&[], "arg1 >= 90", "probed_outer").0, 20, "{engine} {flags:?}");
        let either = "arg1:s32 < 10 && arg1:u8 != 3 || $rdi == 50";
        assert_eq!(hits(&[], either, "probed_outer").0, 20, "{engine} {flags:?}");
        let both = (20.into(), 20.into());
        assert_eq!(hits(&["--ret"], either, "probed_outer"), both, "{engine} {flags:?}");
        assert_eq!(hits(&[], "ret:s32 > 5", "probed_deep"), (11.into(), 6.into()), "{engine} {flags:?}");
        // Neither 0 nor another number of calls at a power of two.
        for every in [7, 8] {
            let options = ["--ret", "--every", &every.to_string(), "probed_outer"];
            let some = probe(engine, &program.path, "1000", &options);
            let timed = of(&some, "probed_outer")["latencies"]["count"].as_u64().expect("a count");
            // On each CPU by itself, and each began at 0.
            let cpus = std::thread::available_parallelism().map_or(64, usize::from) as u64;
            let all = 2000 / every;
            assert!(timed <= all && timed + cpus >= all, "{engine} {flags:?} {every}: {some}");
            assert_eq!(of(&some, "probed_outer")["hits"], 2000, "{engine} {flags:?}");
        }
    }
}

/// Records with `kymo record` or `kymo probe` (its words up to the file) from before the program's calls until they are done; what it said, and what the
/// program counted.
pub(crate) fn record(program: &Path, calls: &str, functions: usize, arguments: &[&str]) -> (String, String) {
    let mut running = waiting(program, &[calls, "2"]);
    let file = arguments[arguments.iter().position(|word| *word == "-o").expect("a file") + 1];
    _ = std::fs::remove_file(file);
    let mut recording = kymo()
        .command(arguments.iter().copied().chain(["-p", &running.pid()]))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kymo");
    // The file is made when it is known what can be patched; it is patched for the recording then.
    let counted = loop {
        if recording.try_wait().expect("kymo").is_some() {
            break String::new();
        }
        if Path::new(file).exists() && patched(&running.pid(), program) >= functions {
            break work(&mut running);
        }
        std::thread::yield_now();
    };
    signal(&recording, Signal::INT);
    let said = std::io::read_to_string(recording.stderr.take().expect("its words")).expect("text");
    recording.wait().expect("its end");
    assert_eq!(running.end().1, Some(0));
    (said, counted)
}

/// At how many functions the program's text is not the file's any more.
fn patched(pid: &str, program: &Path) -> usize {
    use std::os::unix::fs::FileExt as _;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let code = maps.lines().find(|line| line.contains("r-xp") && line.ends_with(text(program)));
    let Some(line) = code else { return 0 };
    let mut words = line.split(['-', ' ']);
    let mut number = || u64::from_str_radix(words.next().unwrap_or_default(), 16).unwrap_or(0);
    let (start, end) = (number(), number());
    let offset = line.split(' ').nth(2).and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0);
    let mut now = vec![0; (end - start) as usize];
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("its memory");
    if memory.read_exact_at(&mut now, start).is_err() {
        return 0;
    }
    let file = std::fs::read(program).expect("the program");
    let file = &file[offset as usize..];
    // Functions begin at multiples of 16, and what is changed are five bytes.
    now.chunks(16).zip(file.chunks(16)).filter(|(now, file)| now != file).count()
}

fn script(file: &str, fields: &str) -> Vec<String> {
    let said = kymo().succeed(["script", "-i", file, "-F", fields]).stdout;
    said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Checks that the program's own events are in the recording as the kernel's would be: each hit once, with its thread, its arguments and what was returned, entries before
/// returns; that perf shows the same; and that nothing is lost unsaid.
#[test]
fn recordings() {
    const TEST: &str = "probe_inside::recordings";
    let Some(()) = require(TEST, &[Need::X86, Need::Program("cc"), Need::Root]) else { return };
    for (engine, flags) in EVENT_WAYS.into_iter().chain([("inproc", DEPLOYMENTS[1])]) {
        recorded(TEST, engine, &Program::of("probed.c", flags));
    }
}

fn recorded(test: &str, engine: &str, program: &Program) {
    let name = &program.beside("probed.data");
    let events = "probe:probed_inner,probe:probed_deep,probe:probed_deep%return";
    let (said, counted) =
        record(&program.path, "2000", 2, &["record", "--engine", engine, "-e", events, "-o", name]);
    assert!(said.contains("3 events of 2 functions are written by the program itself"), "{said}");
    assert!(said.contains("(4022 samples)") && said.contains("lost 0 samples"), "{counted}{said}");
    let lines = script(name, "comm,tid,time,event,ip,trace");
    let of = |event: &str| -> Vec<&String> { lines.iter().filter(|line| line.contains(event)).collect() };
    let (inner, deep) = (of("probe:probed:probed_inner:"), of("probe:probed:probed_deep:"));
    let back = of("probe:probed:probed_deep%return:");
    assert_eq!((inner.len(), deep.len(), back.len()), (4000, 11, 11), "{}", lines[0]);
    // Each of two threads calls it with 0 to 1999.
    for n in [0, 7, 1999] {
        let argument = format!(" arg1={n:#x} ");
        assert_eq!(inner.iter().filter(|line| line.contains(&argument)).count(), 2, "{}", inner[0]);
    }
    let values = |lines: &[&String], word: &str| -> Vec<u64> {
        let digits = |line: &&String| Some(line.split(word).nth(1)?.split(' ').next()?.to_owned());
        let value = |line: &&String| u64::from_str_radix(digits(line)?.strip_prefix("0x")?, 16).ok();
        lines.iter().map(|line| value(line).unwrap_or_else(|| panic!("{line}"))).collect()
    };
    assert_eq!(values(&deep, "arg1="), (0..11).rev().collect::<Vec<u64>>());
    assert_eq!(values(&back, "ret="), (1..12).collect::<Vec<u64>>());
    // Threads that begin while others still make their first calls are named as well: the kernel tells of threads before the program writes events.
    let odd: Vec<&String> = lines.iter().filter(|line| !line.starts_with("probed ")).collect();
    assert!(
        odd.is_empty(),
        "{} of {}, first {:?}, last {:?}",
        odd.len(),
        lines.len(),
        odd.first(),
        odd.last()
    );
    if ready(test, &[Need::Perf]) {
        let said = perf().run(["script", "-i", name, "-F", "event,trace"]);
        let own: Vec<&str> = said.stdout.lines().filter(|line| line.contains("probed_inner")).collect();
        assert_eq!(own.len(), 4000, "{}", said.stderr);
        assert!(said.stdout.contains("arg1=0x7cf arg2="), "{}", own[0]);
    }
}

/// Checks that the program's events and the kernel's have one clock, to a microsecond: what is called before a system call is before it, what is called behind it is behind,
/// and a new thread is known when it calls something.
#[test]
fn times() {
    const TEST: &str = "probe_inside::times";
    let needs = [Need::X86, Need::Program("cc"), Need::Root, Need::Tracepoints];
    let Some(()) = require(TEST, &needs) else { return };
    DEPLOYMENTS.into_iter().for_each(|flags| times_in(&Program::of("stamped.c", flags)));
}

fn times_in(program: &Program) {
    let name = &program.beside("probed.data");
    let events = "probe:stamped_before,probe:stamped_after,probe:stamped_first,syscalls:sys_enter_getppid";
    let (said, _) =
        record(&program.path, "500", 3, &["record", "--engine", "inproc", "-e", events, "-o", name]);
    let lines = script(name, "comm,time,event");
    let odd = lines.iter().find(|line| !line.starts_with("stamped "));
    assert!(odd.is_none(), "{odd:?}");
    let times = |event: &str| -> Vec<u64> {
        let of = lines.iter().filter(|line| line.contains(event));
        let time = |line: &String| line.split(' ').nth(1)?.replace([':', '.'], "").parse().ok();
        of.map(|line| time(line).unwrap_or_else(|| panic!("{line}"))).collect()
    };
    let (before, kernels, after) = (times("stamped_before"), times("getppid"), times("stamped_after"));
    let counts = [before.len(), kernels.len(), after.len(), times("stamped_first").len()];
    assert_eq!(counts, [500; 4], "{said}");
    for ((before, kernels), after) in before.iter().zip(&kernels).zip(&after) {
        assert!(*before <= kernels + 1 && *kernels <= after + 1, "{before} {kernels} {after}");
    }
}

/// Checks `kymo probe -o` with conditions and one in N: exactly those hits.
#[test]
fn recordings_of_some() {
    const TEST: &str = "probe_inside::recordings_of_some";
    let Some(()) = require(TEST, &[Need::X86, Need::Program("cc"), Need::Root]) else { return };
    DEPLOYMENTS.into_iter().for_each(|flags| some_recorded(&Program::of("probed.c", flags)));
}

fn some_recorded(program: &Program) {
    let name = &program.beside("probed.data");
    let condition = ["probe", "--if", "arg1:s32 >= 90 && arg1:s32 < 95", "probed_inner", "-o", name];
    let (said, _) = record(&program.path, "100", 1, &condition);
    assert!(said.contains("(10 samples)"), "{said}");
    let lines = script(name, "trace");
    assert!(lines.iter().all(|line| (90..95).any(|n| line.contains(&format!(" arg1={n:#x} ")))), "{lines:?}");
    let (said, _) =
        record(&program.path, "1000", 1, &["probe", "--every", "100", "probed_inner", "-o", name]);
    let samples = said.split(" samples)").next().and_then(|text| text.rsplit('(').next()?.parse().ok());
    let samples: u64 = samples.unwrap_or_else(|| panic!("{said}"));
    let cpus = std::thread::available_parallelism().map_or(64, usize::from) as u64;
    assert!(samples <= 20 && samples + cpus >= 20, "{said}");
}

/// Checks that hits which do not fit into small rings are counted: those that are recorded and those that are said to be lost are all.
#[test]
fn losses() {
    const TEST: &str = "probe_inside::losses";
    let Some(()) = require(TEST, &[Need::X86, Need::Program("cc"), Need::Root]) else { return };
    DEPLOYMENTS.into_iter().for_each(|flags| losses_in(&Program::of("probed.c", flags)));
}

fn losses_in(program: &Program) {
    let name = &program.beside("probed.data");
    let words = ["record", "--engine", "inproc", "-m", "4K", "-e", "probe:probed_inner", "-o", name];
    let (said, _) = record(&program.path, "300000", 1, &words);
    let number = |before: &str| -> u64 {
        let text = said.split(before).nth(1).unwrap_or_else(|| panic!("{before} in {said}"));
        text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{said}"))
    };
    let lost = number("lost ");
    let samples =
        said.split(" samples)").next().and_then(|text| text.rsplit('(').next()?.parse::<u64>().ok());
    assert_eq!(samples.unwrap_or_else(|| panic!("{said}")) + lost, 600_000, "{said}");
    assert!(lost > 0, "rings of 40 events took 600,000 at once: {said}");
}

/// Checks that callers are told by the program, exactly, and by the names of the functions that they are in.
#[test]
fn callers() {
    const TEST: &str = "probe_inside::callers";
    let Some(()) = require(TEST, &[Need::X86, Need::Program("cc"), Need::Root]) else { return };
    for ((engine, flags), timed) in WAYS.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let program = Program::of("probed.c", flags);
        let options = if timed { &["-g", "--ret"][..] } else { &["-g"] };
        let names = &["probed_inner", "probed_deep"];
        let found = probe(engine, &program.path, "1000", &[options, names].concat());
        let callers = of(&found, "probed_inner")["callers"].as_array().expect("a list");
        let told =
            |caller: &Value| (caller["name"].as_str().expect("a name").to_owned(), caller["hits"].as_u64());
        let told: Vec<(String, Option<u64>)> = callers.iter().map(told).collect();
        let hits: u64 = told.iter().filter_map(|(_, hits)| *hits).sum();
        assert_eq!(hits, 2000, "{engine} {flags:?} {options:?}: {told:?}");
        assert!(told.iter().all(|(name, _)| name.starts_with("probed_outer+")), "{told:?}");
        let deep = of(&found, "probed_deep")["callers"].to_string();
        assert!(deep.contains("probed_deep+") && deep.contains("\"hits\":10"), "{deep}");
        let latencies = &of(&found, "probed_inner")["latencies"]["count"];
        assert_eq!(latencies.as_u64(), timed.then_some(2000), "{engine} {flags:?}: {found}");
    }
}

/// Checks that of a program that goes on calling while it is read there are no more calls by
/// callers or by times than hits, and that there are some, by each engine.
#[test]
fn never_more_callers_or_times_than_hits() {
    const TEST: &str = "probe_inside::never_more_callers_or_times_than_hits";
    let Some(()) = require(TEST, &[Need::X86, Need::Program("cc"), Need::Root]) else { return };
    for (engine, flags) in WAYS.into_iter().chain([("kernel", &[][..])]) {
        let program = Program::of("many.c", flags);
        let mut running = Running::start(Command::new(&program.path).args(["threads", "2"]));
        let (pid, options) = (running.pid(), ["--json", "--engine", engine, "-g", "--ret", "many_*"]);
        let probing = Probing::by(&mut kymo().command([&["probe", "-p", &pid], &options[..]].concat()));
        std::thread::sleep(Duration::from_millis(200));
        let (found, said) = probing.end();
        let (mut all, mut all_timed) = (0, 0);
        for probe in found["probes"].as_array().expect("a list") {
            let callers = probe["callers"].as_array().expect("a list");
            let told: u64 = callers.iter().filter_map(|caller| caller["hits"].as_u64()).sum();
            let timed = probe["latencies"]["count"].as_u64().expect("calls");
            let hits = probe["hits"].as_u64().expect("hits");
            assert!(told <= hits && timed <= hits, "{engine} {flags:?}: {timed} of {hits}: {probe}");
            (all, all_timed) = (all + told, all_timed + timed);
        }
        assert!(all > 0 && all_timed > 0, "{engine} {flags:?}: {said}{found}");
        running.child.kill().expect("it runs");
        running.end();
    }
}

/// Checks that arguments by their names in the source, texts and what is returned are in the program's own events.
#[test]
fn arguments() {
    const TEST: &str = "probe_inside::arguments";
    let Some(()) = require(TEST, &[Need::X86, Need::Program("cc"), Need::Root]) else { return };
    EVENT_WAYS.into_iter().for_each(|(engine, flags)| arguments_by(engine, &Program::of("probed.c", flags)));
}

fn arguments_by(engine: &str, program: &Program) {
    let name = &program.beside("probed.data");
    let event = "probe:'probed_outer(x, name:string, ret)'";
    let (said, _) = record(&program.path, "100", 1, &["record", "--engine", engine, "-e", event, "-o", name]);
    assert!(said.contains("(400 samples)"), "{said}");
    let lines = script(name, "event,trace");
    let entries: Vec<&String> = lines.iter().filter(|line| line.contains("probed_outer:")).collect();
    assert_eq!(entries.len(), 200, "{}", lines[0]);
    for n in [0, 42, 99] {
        let found: Vec<_> = entries.iter().filter(|line| line.contains(&format!(" x={n} "))).collect();
        assert_eq!(found.len(), 2, "{n}: {}", entries[0]);
    }
    assert!(
        lines.iter().any(|line| line.contains("probed_outer%return:") && line.contains("ret=")),
        "{lines:?}"
    );
    eprintln!("{}", entries[0]);
}

/// Checks that events of returns are written by the program only where what a call returns is known
/// and each call is looked at; otherwise it is said why not, and the program stays as it was.
#[test]
fn returns_that_are_not_known() {
    const TEST: &str = "probe_inside::returns_that_are_not_known";
    let Some(()) = require(TEST, &[Need::X86, Need::Program("cc"), Need::Root]) else { return };
    let program = Program::of("probed.c", &[ROOMY, "-DTAIL"]);
    const CHOSEN: &str = "where calls end, it is not known which of them";
    for (function, options, why) in [
        ("probed_tail", &[][..], "it may end by a jump to another function"),
        ("probed_inner", &["--every", "2"], CHOSEN),
        ("probed_inner", &["--if", "arg1 > 5"], CHOSEN),
    ] {
        let mut running = waiting(&program.path, &["10", "1"]);
        let (pid, file) = (running.pid(), program.beside("none.data"));
        let words = ["probe", "--engine", "inproc", "--ret", "-o", &file, function, "-p", &pid];
        let said = kymo().run([&words[..], options].concat());
        assert!(said.code.is_some_and(|code| code != 0), "{function} {options:?}: {}", said.stderr);
        said.says(why);
        assert_eq!(patched(&pid, &program.path), 0, "{function} {options:?}");
        running.end();
    }
}

/// Checks that a function which could not be probed has no count, neither 0 nor another one, and
/// that it is said why, in static and dynamic programs.
#[test]
fn what_is_not_probed_has_no_count() {
    const TEST: &str = "probe_inside::what_is_not_probed_has_no_count";
    let Some(()) = require(TEST, &[Need::X86, Need::Program("cc"), Need::Root]) else { return };
    for flags in [&[ROOMY, "-DTAIL"][..], &[ROOMY, "-DTAIL", "-static"]] {
        let program = Program::of("probed.c", flags);
        let words = ["probe", "--engine", "inproc", "--if", "ret:s32 >= 0", "probed_tail", "probed_inner"];
        let command = ["--", program.text(), "10"];
        let said = kymo().succeed([&words[..], &["--json"], &command].concat());
        let found = said.json();
        let of = |name: &str| {
            let mut probes = found["probes"].as_array().expect("a list").iter();
            probes.find(|probe| probe["name"] == name).unwrap_or_else(|| panic!("{found}")).clone()
        };
        let (tail, inner) = (of("probed_tail"), of("probed_inner"));
        for key in ["hits", "hits_per_second", "engine", "counted_by", "latencies"] {
            assert!(tail[key].is_null() && !inner[key].is_null(), "{flags:?} {key}: {tail}");
        }
        assert!(found["notes"].to_string().contains("probed_tail: it may end by a jump"), "{found}");
        let said = kymo().succeed([&words[..], &command].concat());
        let line = said.stdout.lines().find(|line| line.ends_with(":probed_tail")).expect("its line");
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((&cells[..2], cells[cells.len() - 2]), (&["-", "-"][..], "none"), "{}", said.stdout);
    }
}

/// Checks that the median which is printed is within an eighth of what the calls took, by each
/// engine, in the table's JSON. A call takes no less than it has measured inside, and no more than
/// was measured around it; so do the medians.
#[test]
fn a_median_is_within_an_eighth() {
    let Some(program) = program_of("probe_inside::a_median_is_within_an_eighth", "timed.c") else { return };
    for engine in ["inproc", "shadow", "kernel"] {
        let command = ["probe", "--json", "--ret", "--engine", engine, "takes", "--", program.text()];
        let said = kymo().succeed(command);
        let (truth, document) = said.stdout.split_once('\n').expect("what it took, then the document");
        let (inside, around) = truth.split_once(' ').expect("two medians");
        let document: Value = serde_json::from_str(document).expect("JSON");
        let latencies = &document["probes"][0]["latencies"];
        assert_eq!(latencies["count"].as_u64(), Some(301), "{engine}: {document}");
        let [inside, around] = [inside, around].map(|median| median.parse::<u64>().expect("ns"));
        let median = latencies["p50_ns"].as_u64().expect("ns");
        let bounds = inside - inside / 8..=around + around / 8;
        assert!(bounds.contains(&median), "{engine}: {median} for {inside} to {around}: {latencies}");
    }
}
