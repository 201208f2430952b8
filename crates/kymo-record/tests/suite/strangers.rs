//! What a recording holds of programs that nobody asked for, where events are open on every CPU: nothing.
use crate::common::{each_record, open, options};
use crate::skip::skip;
use kymo_data::abi;
use kymo_record::{Plan, Scope, Session, TargetSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// How often the command executes its program.
const TIMES: usize = 40;

/// A shell that executes a program again and again until it is dropped, and writes a line to `count` each time.
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
    std::fs::copy(from, &to).ok()?;
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

/// Checks that a recording of a command that forks and executes a lot has the forks, names, mappings and exits of all its processes, and not a
/// word about another program that does the same meanwhile, nor about anybody else.
#[test]
fn only_ours() {
    let test = "strangers::only_ours";
    let directory = tempfile::tempdir().unwrap();
    let [ours, outsider] = ["ours", "outsider"].map(|name| copy_of_true(directory.path().join(name)));
    let (Some(ours), Some(outsider)) = (ours, outsider) else {
        return skip(test, "there is no program `true`");
    };
    let (path, count) = (directory.path().join("perf.data"), directory.path().join("count"));
    // Goes on until the stranger has been there, too.
    let script = format!(
        "lines() {{ wc -l < {count}; }}; before=$(lines)
        i=0; while [ $i -lt {TIMES} ]; do {ours}; i=$((i+1)); done
        while [ $(lines) -lt $((before + 3)) ]; do :; done",
        count = count.display(),
        ours = ours.display()
    );
    std::fs::write(&count, "").unwrap();
    let command = ["sh", "-c", &script].map(OsString::from).to_vec();
    let mut options = options("cpu-clock", TargetSpec { command, ..TargetSpec::default() }, &path);
    options.scope = Some(Scope::Filtered);
    let plan = match Plan::resolve(options) {
        Ok(plan) => plan,
        Err(error) => return skip(test, &error.to_string()),
    };
    let stranger = Stranger::start(&outsider, &count);
    let summary = Session::start(plan).unwrap().run(None).unwrap();
    drop(stranger);
    assert_eq!(
        summary.account.ring_full + summary.account.queue_full,
        0,
        "nothing is missing for want of room"
    );

    let mut makers = Vec::new();
    let mut named: BTreeMap<i32, BTreeSet<u32>> = BTreeMap::new();
    let (mut names, mut mapped) = (BTreeMap::new(), BTreeMap::<i32, BTreeSet<String>>::new());
    each_record(&open(&path), |kind, body| {
        let outsider = body.windows(8).any(|bytes| bytes == b"outsider");
        assert!(!outsider, "a record of kind {kind} names the stranger");
        match kind {
            abi::PERF_RECORD_FORK => makers.push((i32_at(body, 0), i32_at(body, 4))),
            abi::PERF_RECORD_COMM => {
                names.insert(i32_at(body, 0), text(body, 8).to_owned());
            }
            abi::PERF_RECORD_MMAP2 if i32_at(body, 0) > 0 => {
                mapped.entry(i32_at(body, 0)).or_default().insert(text(body, 64).to_owned());
            }
            abi::PERF_RECORD_EXIT | abi::PERF_RECORD_MMAP | abi::PERF_RECORD_MMAP2 => {}
            _ => return,
        }
        named.entry(i32_at(body, 0)).or_default().insert(kind);
    });

    // All that was made, back to who was not made meanwhile: the command.
    let mut family: BTreeSet<i32> = makers.iter().map(|&(child, _)| child).collect();
    let roots: BTreeSet<i32> =
        makers.iter().map(|&(_, maker)| maker).filter(|pid| !family.contains(pid)).collect();
    assert_eq!(roots.len(), 1, "{roots:?}");
    family.extend(roots);
    let others: Vec<_> = named.iter().filter(|&(&pid, _)| pid >= 0 && !family.contains(&pid)).collect();
    assert!(others.is_empty(), "{others:?}");

    let executed: Vec<i32> = names.iter().filter(|(_, name)| *name == "ours").map(|(&pid, _)| pid).collect();
    assert_eq!(executed.len(), TIMES);
    for pid in executed {
        assert!(named[&pid].contains(&abi::PERF_RECORD_FORK) && named[&pid].contains(&abi::PERF_RECORD_EXIT));
        assert!(mapped[&pid].contains(ours.to_str().unwrap()), "{:?}", mapped[&pid]);
        assert!(mapped[&pid].iter().any(|name| name.contains("libc")), "{:?}", mapped[&pid]);
    }
    assert!(
        family.iter().all(|pid| named.get(pid).is_some_and(|kinds| kinds.contains(&abi::PERF_RECORD_EXIT)))
    );
}
