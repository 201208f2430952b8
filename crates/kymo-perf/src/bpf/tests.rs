//! Tests of following on the kernel that runs, with programs whose every thread leaves marks: page
//! faults at known addresses.
use super::*;
use crate::ring::{Keeps, Ring};
use crate::sys::{ANY, Descriptor, EventTarget, Kernel, Perf, Real, attr_zeroed, online_cpus};
use crate::tracefs::Tracefs;
use kymo_core::ring::Reader;
use kymo_testing::skip;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// Where the followed program's pages are, and a stranger's.
const OURS: u64 = 0x1000_0000_0000;
const STRANGERS: u64 = 0x2000_0000_0000;
/// How many pages each toucher touches (storm.c).
const PAGES: u64 = 4;
const PAGE_FAULTS: u64 = 2;

const fn way(attachment: Attachment, as_before: bool, entries: Option<u32>) -> FollowOptions {
    let (keep_ended, no_sharing) = (as_before, as_before);
    let preallocate = matches!(attachment, Attachment::Tracepoint);
    FollowOptions { attachment: Some(attachment), keep_ended, preallocate, no_sharing, entries, python: None }
}

/// All ways of following the same processes; the last as before Linux 5.17.
const WAYS: [FollowOptions; 3] = [
    way(Attachment::Raw, false, None),
    way(Attachment::Tracepoint, false, None),
    way(Attachment::Tracepoint, true, Some(5_000)),
];

/// Says loudly why a test cannot run here; `None` then.
fn possible(test: &str) -> Option<()> {
    let reason = match Follower::available() {
        Err(reason) => reason.to_string(),
        Ok(()) if storm_program().is_none() => "no C compiler for fixtures/programs/storm.c".to_owned(),
        Ok(()) => return Some(()),
    };
    skip(test, reason);
    None
}

/// storm.c, built once.
fn storm_program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<(tempfile::TempDir, PathBuf)>> = OnceLock::new();
    let built = PROGRAM.get_or_init(|| {
        let dir = tempfile::tempdir().ok()?;
        let program = dir.path().join("storm");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/programs/storm.c");
        let built = Command::new("cc").args(["-O2", "-pthread", source, "-o"]).arg(&program).status().ok()?;
        built.success().then_some((dir, program))
    });
    built.as_ref().map(|(_, program)| program.as_path())
}

fn own_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// A running storm.
struct Storm {
    child: Child,
    log: tempfile::NamedTempFile,
}

impl Storm {
    fn start(role: &str, base: u64, count: u32) -> Storm {
        let log = tempfile::NamedTempFile::new().unwrap();
        let child = Command::new(storm_program().unwrap())
            .arg(role)
            .arg(log.path())
            .args([format!("{base:x}"), count.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Storm { child, log }
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits for the program's word that it runs.
    fn running(&mut self) {
        self.child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    }

    fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"g").unwrap();
    }

    /// The same, but which processes touched: those whose thread of the same id did.
    fn processes(self, touchers: usize) -> BTreeSet<i32> {
        let slot = |page: u64| page >> 16 & 0xff;
        // Slots 0, 2 and 3 are touched by first threads; 0 and 2 by the same process.
        let pages = self.touched(touchers);
        pages
            .into_iter()
            .filter(|&(_, page)| matches!(slot(page), 0 | 2 | 3))
            .map(|(tid, _)| tid as i32)
            .collect()
    }

    /// Ends its input, waits, and returns what its threads touched: (thread, address), every page
    /// of it. So many must have done so.
    fn touched(mut self, touchers: usize) -> BTreeSet<(u32, u64)> {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
        let text = std::fs::read_to_string(self.log.path()).unwrap();
        // Not the pages: when ids are used again meanwhile, some are the same.
        assert_eq!(text.lines().count(), touchers, "{text}");
        let mut pages = BTreeSet::new();
        for line in text.lines() {
            let (tid, page) = line.split_once(' ').unwrap();
            let (tid, page) = (tid.parse().unwrap(), u64::from_str_radix(page, 16).unwrap());
            pages.extend((0..PAGES).map(|i| (tid, page + 4096 * i)));
        }
        pages
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One event on every CPU with rings, and what was seen.
struct Watch {
    events: Vec<(Descriptor, Ring)>,
}

impl Watch {
    fn open(config: u64, period: u64, follower: &Follower) -> Watch {
        let mut attr = attr_zeroed();
        (attr.type_, attr.config) = (Perf::SOFTWARE, config);
        attr.__bindgen_anon_1.sample_period = period;
        attr.sample_type = Perf::SAMPLE_TID | Perf::SAMPLE_ADDR;
        attr.set_disabled(1);
        attr.set_exclude_kernel(1);
        let open = |cpu| {
            let event = Real.open(&attr, &EventTarget::new(ANY, cpu as i32)).unwrap();
            Real.set_bpf(&event, follower.program().unwrap()).unwrap();
            let ring = Real.map(&event, 1024, Keeps::Oldest).unwrap();
            Real.switch(&event, true).unwrap();
            (event, ring)
        };
        Watch { events: online_cpus().into_iter().map(open).collect() }
    }

    /// Every sample: (process, thread, address), as often as it came.
    fn samples(self) -> BTreeMap<(u32, u32, u64), u64> {
        let mut found = BTreeMap::new();
        for (event, ring) in self.events {
            Real.switch(&event, false).unwrap();
            let mut reader = Reader::new(ring.area());
            let span = reader.begin().unwrap();
            let mut bytes = vec![0; span.len_bytes()];
            span.copy_to(&mut bytes);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
                let (kind, size) = (word(0), usize::from(rest[6]) | usize::from(rest[7]) << 8);
                assert_eq!(kind, 9, "only samples, none lost");
                let address = u64::from_le_bytes(rest[16..24].try_into().unwrap());
                *found.entry((word(8), word(12), address & !4095)).or_insert(0) += 1;
                rest = &rest[size..];
            }
            Real.close(vec![event]);
        }
        found
    }

    /// The pages of ours that were touched: (thread, page).
    fn pages(self) -> BTreeSet<(u32, u64)> {
        pages_of(&self.samples(), OURS)
    }
}

/// The pages that were touched at and behind an address: (thread, page).
fn pages_of(samples: &BTreeMap<(u32, u32, u64), u64>, base: u64) -> BTreeSet<(u32, u64)> {
    let inside = |&(_, tid, page): &(u32, u32, u64)| (page >> 40 == base >> 40).then_some((tid, page));
    samples.keys().filter_map(inside).collect()
}

/// Checks that every program in every variant passes this kernel's verifier and can be attached,
/// with few descriptors, fewer when all events have the program.
#[test]
fn verified() {
    let Some(()) = possible("verified") else { return };
    let me = std::process::id() as i32;
    for options in WAYS {
        for (who, most) in [
            (Follow::Processes(&[me]), 5),
            (Follow::Command(me), 6),
            (Follow::Threads { ids: &[me], children: true }, 6),
            (Follow::Threads { ids: &[me], children: false }, 6),
        ] {
            let mut follower =
                Follower::start_with(who, &options).unwrap_or_else(|e| panic!("{options:?} {who:?}: {e}"));
            let now = !matches!(who, Follow::Command(_));
            assert!(follower.followed().unwrap().contains(&(me as u32, now)), "{options:?} {who:?}");
            assert_eq!(follower.ever().is_some(), !options.no_sharing);
            assert!(follower.ever().is_none_or(|ever| ever.contains(me) && !ever.contains(1)));
            let most = most + usize::from(options.no_sharing);
            assert!(follower.descriptors() <= most);
            follower.bound();
            assert!(follower.program().is_none());
            assert!(follower.descriptors() < most);
            assert_eq!(follower.missed(), 0);
        }
    }
}

/// Checks that of two programs that compute, only the followed one is sampled.
#[test]
fn one_of_two() {
    let Some(()) = possible("one_of_two") else { return };
    let (ours, stranger) = (Storm::start("loop", OURS, 0), Storm::start("loop", STRANGERS, 0));
    let follower = Follower::start(Follow::Processes(&[ours.pid()])).unwrap();
    let watch = Watch::open(Perf::SW_CPU_CLOCK, 100_000, &follower);
    // Until both have had some CPU time, by the kernel's account: user time in ticks is the 12th
    // field behind the name.
    let used = |pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields = stat.rsplit(") ").next().unwrap();
        fields.split(' ').nth(11).unwrap().parse::<u64>().unwrap()
    };
    let both = || used(ours.pid()).min(used(stranger.pid()));
    let before = used(ours.pid()).max(used(stranger.pid()));
    while both() < before + 5 {
        std::thread::yield_now();
    }
    let samples = watch.samples();
    assert!(!samples.is_empty());
    assert!(samples.keys().all(|&(pid, tid, _)| pid == ours.pid() as u32 && tid == pid), "{samples:?}");
}

/// Two programs that wait to fork, execute and make threads without pause: one that is followed, by
/// its process or by its thread, and a stranger.
fn bursts(threads: bool, options: &FollowOptions) -> (Storm, Storm, Follower) {
    let (ours, stranger) = (Storm::start("burst", OURS, 50), Storm::start("burst", STRANGERS, 50));
    let pid = [ours.pid()];
    let who = if threads { Follow::Threads { ids: &pid, children: true } } else { Follow::Processes(&pid) };
    let follower = Follower::start_with(who, options).unwrap();
    (ours, stranger, follower)
}

/// Checks that of a process that forks, executes (from a thread that is not the first) and makes
/// threads without pause nobody is missing and nobody is left in the map, in every way of
/// following, while a stranger doing the same leaves no sample.
#[test]
fn nobody_is_missing() {
    let Some(()) = possible("nobody_is_missing") else { return };
    for options in WAYS {
        for threads in [false, true] {
            let (mut ours, mut stranger, follower) = bursts(threads, &options);
            let watch = Watch::open(PAGE_FAULTS, 1, &follower);
            stranger.go();
            ours.go();
            let (touched, _) = (ours.touched(50 * 4), stranger.touched(50 * 4));
            let samples = watch.samples();
            let seen = pages_of(&samples, OURS);
            let missing: Vec<_> = touched.difference(&seen).collect();
            assert!(missing.is_empty(), "{options:?} {threads}: {missing:x?}");
            assert_eq!(seen.len(), touched.len());
            assert!(pages_of(&samples, STRANGERS).is_empty());
            assert_eq!(follower.missed(), 0);
            if !options.keep_ended {
                assert_eq!(follower.followed().unwrap(), [], "{options:?} {threads}");
            }
        }
    }
}

/// Checks that of a process that forks, executes and makes threads without pause every process's
/// bit is set, and still is when all have ended, while no bit is set for a stranger that does the
/// same: by process and by thread.
#[test]
fn who_was_ever_followed() {
    let Some(()) = possible("who_was_ever_followed") else { return };
    for options in WAYS.iter().filter(|options| !options.no_sharing) {
        for threads in [false, true] {
            let (mut ours, mut stranger, follower) = bursts(threads, options);
            let (pid, other) = (ours.pid(), stranger.pid());
            let ever = follower.ever().expect("this kernel can, as its programs could be loaded");
            assert!(ever.contains(pid) && !ever.contains(other));
            stranger.go();
            ours.go();
            let (touched, others) = (ours.processes(50 * 4), stranger.processes(50 * 4));
            drop(follower);
            let missing: Vec<_> = touched.iter().filter(|&&id| !ever.contains(id)).collect();
            assert!(missing.is_empty(), "{options:?} {threads}: {missing:?}");
            assert_eq!(touched.len(), 50 * 2, "each child, and each child's child");
            // Ids may have been used again meanwhile, by ours after a stranger.
            assert!(others.difference(&touched).all(|&id| !ever.contains(id)), "{options:?} {threads}");
        }
    }
}

/// Checks that with thread keys the bit is that of the thread's process, and that what the thread
/// makes is in only where it is followed.
#[test]
fn ever_followed_are_processes() {
    let Some(()) = possible("ever_followed_are_processes") else { return };
    let me = std::process::id() as i32;
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let tid = own_thread();
        for children in [true, false] {
            let follower = Follower::start(Follow::Threads { ids: &[tid], children }).unwrap();
            let ever = follower.ever().expect("this kernel can");
            let mut child = Command::new("true").spawn().unwrap();
            child.wait().unwrap();
            let inner = std::thread::spawn(own_thread).join().unwrap();
            send.send((ever, child.id() as i32, tid, inner, children)).unwrap();
        }
    });
    for (ever, child, tid, inner, children) in receive {
        assert!(ever.contains(me));
        assert_eq!(ever.contains(child), children);
        assert!(!ever.contains(tid) && !ever.contains(inner), "threads are no processes");
    }
}

/// Checks that threads that are made and end all the time while following begins have followed
/// successors, that the first thread's exit is not taken for the process's, and that the last
/// thread's is.
#[test]
fn chains_of_threads() {
    let Some(()) = possible("chains_of_threads") else { return };
    for options in WAYS {
        let mut ours = Storm::start("chains", OURS, 0);
        ours.running();
        let follower = Follower::start_with(Follow::Processes(&[ours.pid()]), &options).unwrap();
        let watch = Watch::open(PAGE_FAULTS, 1, &follower);
        let touched = ours.touched(8);
        assert_eq!(watch.pages(), touched, "{options:?}");
        assert_eq!(follower.followed().unwrap().is_empty(), !options.keep_ended);
    }
}

/// Checks that a command is sampled from its exec on and not before.
#[test]
fn from_exec() {
    let Some(()) = possible("from_exec") else { return };
    for options in WAYS {
        let mut ours = Storm::start("hold", OURS, 0);
        // Its own start is an exec, which a spawn does not wait for.
        ours.running();
        let follower = Follower::start_with(Follow::Command(ours.pid()), &options).unwrap();
        let watch = Watch::open(PAGE_FAULTS, 1, &follower);
        ours.go();
        let touched = ours.touched(2);
        let pages = watch.pages();
        let (slot_0, slot_1): (BTreeSet<_>, _) =
            touched.into_iter().partition(|&(_, page)| page < OURS + 0x1_0000);
        assert!(pages.is_disjoint(&slot_0), "{options:?}");
        assert_eq!(pages, slot_1, "{options:?}");
    }
}

/// Checks that where only the named threads are wanted, what they make is not followed.
#[test]
fn threads_without_children() {
    let Some(()) = possible("threads_without_children") else { return };
    for options in WAYS {
        let mut ours = Storm::start("burst", OURS, 3);
        let who = Follow::Threads { ids: &[ours.pid()], children: false };
        let follower = Follower::start_with(who, &options).unwrap();
        let watch = Watch::open(PAGE_FAULTS, 1, &follower);
        ours.go();
        let pid = ours.pid() as u32;
        ours.touched(3 * 4);
        let samples = watch.samples();
        assert!(samples.keys().all(|&(_, tid, _)| tid == pid), "{options:?}: {samples:x?}");
    }
}

/// Checks that those who do not fit are counted: targets that are entered, and children.
#[test]
fn a_full_map() {
    let Some(()) = possible("a_full_map") else { return };
    for attachment in [Attachment::Raw, Attachment::Tracepoint] {
        let mut ours = Storm::start("burst", OURS, 20);
        let options =
            FollowOptions { attachment: Some(attachment), entries: Some(1), ..FollowOptions::default() };
        let mut follower = Follower::start_with(Follow::Processes(&[ours.pid()]), &options).unwrap();
        assert_eq!(follower.missed(), 0);
        ours.go();
        ours.touched(20 * 4);
        let missed = follower.missed();
        assert!(missed >= 20, "{missed} of 20 children and their children");
        let ids = [i32::MAX, i32::MAX - 1, i32::MAX - 2];
        follower.add(Follow::Processes(&ids)).unwrap();
        assert_eq!(follower.missed(), missed + 2, "one fits, because ours has ended");
        assert_eq!(follower.followed().unwrap().len(), 1);
    }
}

/// Checks that someone who counts the hits of the same tracepoints still sees them all.
#[test]
fn others_see_every_hit() {
    let Some(()) = possible("others_see_every_hit") else { return };
    let point = match Tracefs::here().find("task", "task_newtask") {
        Ok(point) => point,
        Err(reason) => return skip("others_see_every_hit", reason),
    };
    for options in WAYS {
        let me = std::process::id() as i32;
        let _follower = Follower::start_with(Follow::Processes(&[me]), &options).unwrap();
        let mut attr = attr_zeroed();
        (attr.type_, attr.config) = (Perf::TRACEPOINT, point.id);
        let event = Real.open(&attr, &EventTarget::new(0, ANY)).unwrap();
        for _ in 0..20 {
            std::thread::spawn(|| {}).join().unwrap();
        }
        let mut count = [0];
        Real.read(&event, &mut count).unwrap();
        Real.close(vec![event]);
        assert_eq!(count, [20], "{options:?}");
    }
}

/// Checks that an entry that outlived its owner is not taken for a stranger that gets the same id,
/// and that a followed one with the same id is followed.
#[test]
fn ids_used_again() {
    let Some(()) = possible("ids_used_again") else { return };
    let set_last = |id: i32| std::fs::write("/proc/sys/kernel/ns_last_pid", id.to_string()).is_ok();
    for options in WAYS {
        // An id whose owner has ended.
        let id = {
            let mut gone = Command::new("true").spawn().unwrap();
            gone.wait().unwrap();
            gone.id() as i32
        };
        let mut follower = Follower::start_with(Follow::Processes(&[id]), &options).unwrap();
        assert_eq!(follower.followed().unwrap(), [(id as u32, true)]);
        // Other processes may take the id first; they are strangers as well.
        let reused = (0..1000).any(|_| {
            let child = set_last(id - 1).then(|| Command::new("true").spawn().unwrap());
            child.is_some_and(|mut child| {
                child.wait().unwrap();
                child.id() as i32 == id
            })
        });
        if !reused {
            skip("ids_used_again", "ids cannot be chosen here");
            return;
        }
        assert_eq!(follower.followed().unwrap(), [], "{options:?}");
        follower.add(Follow::Processes(&[std::process::id() as i32])).unwrap();
        let mut child = Storm::start("loop", OURS, 0);
        assert!(follower.followed().unwrap().contains(&(child.pid() as u32, true)));
        child.child.kill().unwrap();
        child.child.wait().unwrap();
    }
}
