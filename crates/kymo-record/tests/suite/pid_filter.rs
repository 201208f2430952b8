//! What a recording holds of programs that nobody asked for, where events are open on every CPU:
//! nothing.
use crate::common::{each_record, open, options, raise, stop_sign};
use kymo_data::abi;
use kymo_record::{RecordingPlan, Scope, Session, TargetSpec};
use kymo_testing::skip;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often the command executes its program.
const TIMES: usize = 40;

/// A shell that executes a program again and again until it is dropped, and writes a line to
/// `count` each time.
struct Stranger(Child);

impl Stranger {
    fn start(program: &Path, count: &Path) -> Stranger {
        let script = format!("while :; do {}; echo >> {}; done", program.display(), count.display());
        Stranger(Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A copy of `true`, so that its name tells whose it is.
fn copy_of_true(to: PathBuf) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let from = std::env::split_paths(&path).map(|folder| folder.join("true")).find(|file| file.is_file())?;
    kymo_testing::copy_program(&from, &to);
    Some(to)
}

fn i32_at(body: &[u8], at: usize) -> i32 {
    i32::from_le_bytes(body[at..at + 4].try_into().unwrap())
}

/// The text that begins there.
fn text(body: &[u8], at: usize) -> &str {
    let bytes = &body[at..];
    std::str::from_utf8(bytes.split(|&b| b == 0).next().unwrap()).unwrap()
}

/// Two programs that do nothing, and where a stranger counts.
struct Programs {
    directory: tempfile::TempDir,
    ours: PathBuf,
    outsider: PathBuf,
}

impl Programs {
    fn new(test: &str) -> Option<Programs> {
        let directory = tempfile::tempdir().unwrap();
        let [ours, outsider] = ["ours", "outsider"].map(|name| copy_of_true(directory.path().join(name)));
        let (Some(ours), Some(outsider)) = (ours, outsider) else {
            skip(test, "there is no program `true`");
            return None;
        };
        std::fs::write(directory.path().join("count"), "").unwrap();
        Some(Programs { directory, ours, outsider })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn stranger(&self) -> Stranger {
        Stranger::start(&self.outsider, &self.file("count"))
    }

    /// How to record in this scope; `None` where it cannot be had.
    fn plan(&self, test: &str, targets: TargetSpec) -> Option<RecordingPlan> {
        let mut options = options("cpu-clock", targets, &self.file("perf.data"));
        (options.scope, options.inherit) = (Some(Scope::Filtered), Some(true));
        match RecordingPlan::resolve(options) {
            Ok(plan) => Some(plan),
            Err(error) => {
                skip(test, error);
                None
            }
        }
    }
}

/// What a recording says about processes.
#[derive(Default)]
struct Said {
    /// (child, maker).
    forks: Vec<(i32, i32)>,
    /// Which kinds of records name a process.
    kinds: BTreeMap<i32, BTreeSet<u32>>,
    names: BTreeMap<i32, String>,
    mapped: BTreeMap<i32, BTreeSet<String>>,
}

impl Said {
    /// Of a recording in which no record may mention the outsider.
    fn read(path: &Path) -> Said {
        let mut said = Said::default();
        each_record(&open(path), |kind, body| {
            let outsider = body.windows(8).any(|bytes| bytes == b"outsider");
            assert!(!outsider, "a record of kind {kind} names the stranger");
            match kind {
                abi::PERF_RECORD_FORK => said.forks.push((i32_at(body, 0), i32_at(body, 4))),
                abi::PERF_RECORD_COMM => {
                    said.names.insert(i32_at(body, 0), text(body, 8).to_owned());
                }
                abi::PERF_RECORD_MMAP2 if i32_at(body, 0) > 0 => {
                    said.mapped.entry(i32_at(body, 0)).or_default().insert(text(body, 64).to_owned());
                }
                abi::PERF_RECORD_EXIT | abi::PERF_RECORD_MMAP | abi::PERF_RECORD_MMAP2 => {}
                _ => return,
            }
            said.kinds.entry(i32_at(body, 0)).or_default().insert(kind);
        });
        said
    }

    fn has(&self, pid: i32, kind: u32) -> bool {
        self.kinds.get(&pid).is_some_and(|kinds| kinds.contains(&kind))
    }

    /// All processes, which must be one family: the root, and what it and its children made.
    fn family(&self, root: Option<i32>) -> BTreeSet<i32> {
        let made = || self.forks.iter().filter(|&&(child, _)| Some(child) != root);
        let mut family: BTreeSet<i32> = made().map(|&(child, _)| child).collect();
        let roots: BTreeSet<i32> =
            made().map(|&(_, maker)| maker).filter(|pid| !family.contains(pid)).collect();
        assert_eq!(roots.len(), 1, "{roots:?}");
        assert!(root.is_none_or(|root| roots.contains(&root)), "{root:?} {roots:?}");
        family.extend(roots);
        let others: Vec<_> =
            self.kinds.iter().filter(|&(&pid, _)| pid >= 0 && !family.contains(&pid)).collect();
        // Of a running process, the child that was made when it was followed already, but before
        // the events were on.
        let early = |pid| root.is_some() && !self.has(pid, abi::PERF_RECORD_FORK);
        assert!(others.len() <= 1 && others.iter().all(|&(&pid, _)| early(pid)), "{others:?}");
        family
    }

    /// How many have executed `program` and are there from their fork to their exit; those must
    /// have all that belongs to it. `goes_on`: but for the first and the last one of a program that
    /// ran before and goes on, because events begin and end on one CPU after the other.
    fn whole(&self, program: &Path, goes_on: bool) -> usize {
        let name = program.file_name().unwrap().to_str().unwrap();
        let whole = |&&pid: &&i32| {
            self.names[&pid] == name
                && self.has(pid, abi::PERF_RECORD_FORK)
                && self.has(pid, abi::PERF_RECORD_EXIT)
        };
        let pids: Vec<&i32> = self.names.keys().filter(whole).collect();
        let (nothing, last) = (BTreeSet::new(), self.forks.len() - 1);
        for pid in &pids {
            let mapped = self.mapped.get(pid).unwrap_or(&nothing);
            let has_all =
                mapped.contains(program.to_str().unwrap()) && mapped.iter().any(|name| name.contains("libc"));
            let at = self.forks.iter().position(|(child, _)| child == *pid).unwrap();
            let is_cut = goes_on && (at == 0 || at == last);
            assert!(has_all || is_cut, "{pid}, fork {at} of {last}: {mapped:?}");
        }
        pids.len()
    }
}

/// Checks that a recording of a command that forks and executes a lot has the forks, names,
/// mappings and exits of all its processes, and not a word about another program that does the same
/// meanwhile, nor about anybody else.
#[test]
fn only_ours() {
    let test = "pid_filter::only_ours";
    let Some(programs) = Programs::new(test) else { return };
    // Goes on until the stranger has been there, too.
    let script = format!(
        "lines() {{ wc -l < {count}; }}; before=$(lines)
        i=0; while [ $i -lt {TIMES} ]; do {ours}; i=$((i+1)); done
        while [ $(lines) -lt $((before + 3)) ]; do :; done",
        count = programs.file("count").display(),
        ours = programs.ours.display()
    );
    let command = ["sh", "-c", &script].map(OsString::from).to_vec();
    let Some(plan) = programs.plan(test, TargetSpec { command, ..TargetSpec::default() }) else { return };
    let stranger = programs.stranger();
    let summary = Session::start(plan).unwrap().run(None).unwrap();
    drop(stranger);
    let account = &summary.account;
    assert_eq!(account.ring_full + account.queue_full, 0, "nothing is missing for want of room");
    let said = Said::read(&programs.file("perf.data"));
    let family = said.family(None);
    assert_eq!(said.whole(&programs.ours, false), TIMES);
    assert!(family.iter().all(|&pid| said.has(pid, abi::PERF_RECORD_EXIT)));
}

/// Checks the same for a process that runs already, named as a process and as a thread: from some
/// moment on all its children are there, and nobody else's.
#[test]
fn only_those_of_a_running_process() {
    let test = "pid_filter::only_those_of_a_running_process";
    let Some(programs) = Programs::new(test) else { return };
    let _stranger = programs.stranger();
    let target = Stranger::start(&programs.ours, &programs.file("ours.count"));
    let pid = target.0.id() as i32;
    for by_thread in [false, true] {
        let ids = vec![pid];
        let targets = if by_thread {
            TargetSpec { tids: ids, ..TargetSpec::default() }
        } else {
            TargetSpec { pids: ids, ..TargetSpec::default() }
        };
        let Some(plan) = programs.plan(test, targets) else { return };
        let (stop, path) = (stop_sign(), programs.file("perf.data"));
        // That of the round before would be taken for this one's.
        let _ = std::fs::remove_file(&path);
        let session = Session::start(plan).unwrap();
        // Until the recording tells of some children; should it never, the end of this wait makes
        // the test fail below.
        let (name, deadline) =
            (programs.ours.as_os_str().as_bytes(), Instant::now() + Duration::from_secs(600));
        let enough = || {
            let bytes = std::fs::read(&path).unwrap_or_default();
            bytes.windows(name.len()).filter(|window| window == &name).count() > 4 * TIMES
        };
        let summary = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !enough() && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(2)); // looks seldom, for the sake of who is waited for
                }
                raise(&stop);
            });
            session.run(Some(stop.as_fd())).unwrap()
        });
        let account = &summary.account;
        assert_eq!(account.ring_full + account.queue_full, 0, "nothing is missing for want of room");
        let said = Said::read(&path);
        let family = said.family(Some(pid));
        assert!(said.whole(&programs.ours, true) > TIMES / 2);
        assert!(family.len() > TIMES / 2);
    }
}
