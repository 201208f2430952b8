//! The time off the CPU, against what the kernel says of the same processes.
use crate::daemon::{Daemon, is_permitted};
use crate::fake_collector::{Behaviour, FakeCollector};
use crate::kills::{parquet_files, table};
use kymo_dataset::{Table, TableReader};
use kymo_profile::wall::{STACK, WAKEUP};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A program that has ended, as the kernel saw it.
struct Ran {
    name: &'static str,
    pid: u32,
    lifetime: Duration,
    /// What `/proc/PID/schedstat` calls time on a CPU.
    running: Duration,
}

impl Ran {
    /// Waits for a program's end, and asks the kernel for its account before it is reaped.
    fn of(name: &'static str, mut child: Child, begun: Instant) -> Ran {
        let pid = child.id();
        let id = Pid::from_raw(pid.cast_signed()).expect("a process");
        waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).expect("a child");
        let lifetime = begun.elapsed();
        let account = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("schedstat");
        let running = account.split(' ').next().and_then(|ns| ns.parse().ok()).expect("ns");
        assert!(child.wait().expect("a child").success(), "{name}");
        Ran { name, pid, lifetime, running: Duration::from_nanos(running) }
    }
}

/// Sleeps all the time.
fn sleeper() -> Ran {
    let begun = Instant::now();
    Ran::of("sleep", Command::new("sleep").arg("2").spawn().expect("sleep"), begun)
}

/// Waits for a pipe, then computes.
fn sorter() -> Ran {
    let begun = Instant::now();
    let mut command = Command::new("sort");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("sort");
    let mut pipe = child.stdin.take().expect("a pipe");
    for part in 0..10_u64 {
        let lines = (0..20_000_u64).map(|line| format!("{}\n", (line + part) * 2_654_435_761 % 1_000_003));
        pipe.write_all(lines.collect::<String>().as_bytes()).expect("sort reads");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(pipe);
    Ran::of("sort", child, begun)
}

/// Sleeps and computes in turn; none where there is no Python.
fn python() -> Option<Ran> {
    let begun = Instant::now();
    let script = "import time\nfor _ in range(20):\n  time.sleep(.05); sorted(range(200000), key=str)";
    let child = Command::new("python3").args(["-c", script]).spawn();
    child.ok().map(|child| Ran::of("python3", child, begun))
}

/// The waits of a process in a dataset.
#[derive(Debug, Default)]
struct Waits {
    all: Duration,
    /// By state, and who ended them.
    by_waker: BTreeMap<(String, Option<String>), Duration>,
}

impl Waits {
    /// What it waited for longest, whether idle or not, until somebody ended it, and who that was.
    fn longest(&self) -> (&str, Option<&str>) {
        let ended = self.by_waker.iter().filter(|((_, waker), _)| waker.is_some());
        let ((state, waker), _) = ended.max_by_key(|(_, time)| **time).expect("the process has waited");
        (state.strip_prefix("idle: ").unwrap_or(state), waker.as_deref())
    }
}

/// The time off the CPU of a process in a dataset.
fn off_cpu(dataset: &Path, pid: u32) -> Waits {
    let mut waits = Waits::default();
    for file in parquet_files(dataset) {
        if table(dataset, &file) != Table::Samples {
            continue;
        }
        let reader = TableReader::open(&file, Table::Samples).unwrap_or_else(|error| panic!("{error}"));
        let texts = |column| -> Vec<Option<String>> {
            let texts = reader.text(column).unwrap().into_iter();
            texts.map(|text| text.map(|text| text.as_utf8().unwrap().to_owned())).collect()
        };
        let rows = reader.int32("pid").unwrap().into_iter().zip(reader.int64("value").unwrap());
        let rows = rows.zip(texts("event")).zip(texts("state")).zip(texts("waker"));
        for ((((of, value), event), state), waker) in rows {
            // The time on a CPU is there once: in samples of the clock.
            let (event, state) = (event.expect("an event"), state.expect("a state"));
            let is_wait = event == "offcpu-time";
            assert_eq!((is_wait, event == "cpu-clock"), (state != "on-cpu", state == "on-cpu"), "{event}");
            assert!(is_wait || waker.is_none(), "{event}");
            if is_wait && of == Some(pid.cast_signed()) {
                let time = Duration::from_nanos(value.unwrap_or(0).cast_unsigned());
                waits.all += time;
                *waits.by_waker.entry((state, waker)).or_default() += time;
            }
        }
    }
    waits
}

/// Checks that the rows of a process off the CPU sum to its lifetime without the time that the
/// kernel says that it ran: for one that sleeps, one that waits for a pipe, and one that does both;
/// and that they say what for, and who ended it. A collector gets the same waits.
#[test]
fn waits_sum_to_what_the_kernel_says() {
    if !is_permitted("off_cpu::waits_sum_to_what_the_kernel_says") {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let dataset = state.path().join("dataset");
    let collector = FakeCollector::start(Behaviour::Takes, None);
    let endpoint = format!("http://{}", collector.address);
    let places = ["--off-cpu", "--dataset", dataset.to_str().unwrap(), "--otlp", &endpoint];
    let mut daemon = Daemon::start(state.path(), &places);
    daemon.wait_until("an interval", |health| health["intervals"].as_u64() >= Some(1));
    let programs = [Some(sleeper()), Some(sorter()), python()];
    let sent = daemon.health()["intervals"].as_u64();
    let health = daemon.wait_until("two more", |health| health["intervals"].as_u64() >= sent.map(|n| n + 2));
    assert!(daemon.terminate().success());
    let texts = collector.texts();
    for expected in ["cpu-clock", "offcpu-time", "thread.state", "pipe", "thread.waker", "a timer"] {
        let is_expected = |text: &String| text.strip_prefix("idle: ").unwrap_or(text) == expected;
        assert!(texts.iter().any(is_expected), "{expected}: {texts:?}");
    }
    let raw = texts.iter().find(|text| [WAKEUP, STACK].contains(&text.as_str()));
    assert_eq!(raw, None, "records that waits are made of");
    let this_thread = std::fs::read_to_string("/proc/thread-self/comm").expect("a name");
    for Ran { name, pid, lifetime, running } in programs.into_iter().flatten() {
        let waits = off_cpu(&dataset, pid);
        let (found, expected) = (waits.all, lifetime - running);
        let longest = if name == "sort" { ("pipe", this_thread.trim_end()) } else { ("timer", "a timer") };
        assert_eq!(waits.longest(), (longest.0, Some(longest.1)), "{name}: {waits:?}");
        println!("{name}: {found:?} off the CPU by the daemon, {expected:?} by schedstat");
        // This process starts the clock before the fork, and stops it after the end.
        let slack = Duration::from_millis(150) + expected / 20;
        assert!(
            found <= expected + slack && found + slack >= expected,
            "{name}: {found:?} of {expected:?}, {health}"
        );
    }
}
