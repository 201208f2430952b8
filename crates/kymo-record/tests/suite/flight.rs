//! Whole flight recorders: on rings that the test fills, and on the kernel's.
use crate::common::{each_record, each_sample, open, options, raise, stop_sign};
use crate::pipeline::Shared;
use crate::real::{BUSY, command, permitted};
use kymo_data::{Recording, abi, build};
use kymo_perf::ring::Keeps;
use kymo_perf::sys::page_size;
use kymo_record::{
    CallGraph, Coverage, LastSnapshot, Limits, RecordingPlan, Session, SwitchRule, TargetSpec,
};
use kymo_testing::with_waiting_threads;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Ends a session also when the test fails: whoever joins it would wait for ever.
struct Ends<'a>(&'a OwnedFd);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        raise(self.0);
    }
}

/// The kernel's side of a ring that keeps the newest, written through its file.
struct Downward {
    file: File,
    size: u64,
    head: u64,
}

impl Downward {
    fn new(file: File, pages: usize) -> Downward {
        Downward { file, size: (pages * page_size()) as u64, head: 0 }
    }

    fn push(&mut self, record: &[u8]) {
        self.head = self.head.wrapping_sub(record.len() as u64);
        let at = self.head & (self.size - 1);
        let (low, high) = record.split_at(record.len().min((self.size - at) as usize));
        let data = page_size() as u64;
        self.file.write_all_at(low, data + at).unwrap();
        self.file.write_all_at(high, data).unwrap();
        self.file.write_all_at(&self.head.to_le_bytes(), 1024).unwrap();
    }
}

/// A sample with IDENTIFIER, IP, TID, TIME and PERIOD: 48 bytes.
fn sample(id: u64, ring: u64, time: u64) -> Vec<u8> {
    let body = [id, ring << 32 | time, 0, time, 1];
    let header = u64::from(abi::PERF_RECORD_SAMPLE) | 48 << 48;
    std::iter::once(header).chain(body).flat_map(u64::to_le_bytes).collect()
}

/// Ring and time of a sample.
type RingTime = (u64, u64);

/// The samples in the file's order; and the names in records, with the count of samples before
/// them.
fn content(recording: &Recording) -> (Vec<RingTime>, Vec<(usize, String)>) {
    let (mut samples, mut names) = (Vec::new(), Vec::new());
    each_record(recording, |kind, body| match kind {
        abi::PERF_RECORD_SAMPLE => {
            let ip = u64::from_le_bytes(body[8..16].try_into().unwrap());
            samples.push((ip >> 32, ip & 0xffff_ffff));
        }
        abi::PERF_RECORD_COMM => {
            let name = String::from_utf8_lossy(&body[8..]).into_owned();
            names.push((samples.len(), name.split('\0').next().unwrap_or("").to_owned()));
        }
        _ => {}
    });
    (samples, names)
}

/// Checks that each snapshot has the newest records of each ring that fit, in order of time over
/// all rings, and each name where it belongs, also after the ring went around many times; that
/// nothing counts as lost; and what the last file is.
#[test]
fn snapshots_of_what_rings_hold() {
    for last in [LastSnapshot::Plain, LastSnapshot::Dated, LastSnapshot::Not] {
        snapshots(last, last == LastSnapshot::Dated);
    }
}

fn snapshots(last: LastSnapshot, compress: bool) {
    const PAGES: usize = 2;
    let fit = (PAGES * page_size() / 48) as u64;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("perf.data");
    with_waiting_threads(3, |tids| {
        let kernel = Shared::new();
        let targets = TargetSpec { tids: tids.clone(), per_thread: true, ..TargetSpec::default() };
        let mut options = options("cpu-clock", targets, &path);
        (options.overwrite, options.last_snapshot, options.ring_pages) = (true, last, Some(PAGES));
        options.compress = compress.then_some(1);
        let (requests, say) = (stop_sign(), channel::<(PathBuf, Option<Coverage>)>());
        let (said, heard) = say;
        let session = Session::start_on(Arc::new(kernel.clone()), RecordingPlan::resolve(options).unwrap())
            .unwrap()
            .limit(Limits { max_bytes: None, switch: Some(SwitchRule::default()) })
            .on_switch(requests.try_clone().unwrap(), move |file: &Path, coverage| {
                said.send((file.to_owned(), coverage.cloned())).unwrap();
            });
        let attr = |index: usize| {
            kymo_data::Attr::parse(&kymo_perf::sys::attr_bytes(&session.plan().open.events[index].attr))
                .unwrap()
        };
        let tracker = attr(1);
        let stop = stop_sign();
        let mut rings: Vec<Downward> =
            kernel.files(Keeps::Newest).into_iter().map(|(file, pages)| Downward::new(file, pages)).collect();
        let sides = kernel.rings_that(Keeps::Oldest);
        assert_eq!((rings.len(), sides.len()), (3, 3));
        let ids = kernel.ids();
        let mut side = kymo_core::ring::Writer::new(sides[0].area());
        let mut name = |time: u64, name: &str| {
            let id = kymo_data::SampleId { time: Some(time), id: Some(ids[3]), ..Default::default() };
            side.push(&build::comm(&tracker, &id, tids[0], tids[0], name.as_bytes(), false), 0, &[]).unwrap();
        };
        let expected = |to: u64| -> Vec<RingTime> {
            let all = (1..=to).map(|time| (time % 3, time));
            all.filter(|&(ring, time)| time + 3 * fit > to - (to + 3 - ring) % 3).collect()
        };
        let summary = std::thread::scope(|scope| {
            let running = scope.spawn(|| session.run(Some(stop.as_fd())).unwrap());
            let ends = Ends(&stop);
            let mut time = 0;
            let mut fill = |to: u64| {
                while time < to {
                    time += 1;
                    rings[(time % 3) as usize].push(&sample(ids[(time % 3) as usize], time % 3, time));
                }
            };
            for to in [30, 3000, 3100] {
                name(to - 20, &format!("before {to}"));
                fill(to);
                name(to, &format!("at {to}"));
                raise(&requests);
                let (file, coverage) = heard.recv_timeout(Duration::from_secs(60)).expect("a snapshot");
                let (samples, names) = content(&open(&file));
                let expected = expected(to);
                assert_eq!(samples, expected, "{to}");
                let coverage = coverage.expect("it is a snapshot");
                assert_eq!(coverage.span_ns(), Some((expected[0].1, to)));
                assert_eq!(coverage.rings.iter().any(|ring| ring.overwritten), to > 30);
                // The names of threads that were there, then those of this one.
                let place = |wanted: &str| names.iter().find(|(_, name)| name == wanted).map(|(at, _)| *at);
                let after = |time: u64| expected.iter().filter(|&&(_, other)| other <= time).count();
                assert_eq!(place(&format!("at {to}")), Some(after(to)), "{names:?}");
                let before = place(&format!("before {to}")).expect("its name");
                assert!([after(to - 20), after(to - 21)].contains(&before), "{before}: {names:?}");
                // Long before the oldest sample: the last name that it had then, and none before
                // that.
                let long_before = [place("before 30").is_some(), place("at 30") == Some(0)];
                assert_eq!(long_before, if to == 30 { [true, false] } else { [false, true] }, "{names:?}");
            }
            fill(3200);
            drop(ends);
            running.join().unwrap()
        });
        let end = expected(3200).len() as u64;
        let earlier: u64 = [30, 3000, 3100].map(|to| expected(to).len() as u64).iter().sum();
        assert_eq!(summary.account.samples, earlier + if last == LastSnapshot::Not { 0 } else { end });
        assert!(summary.account.is_clean() && summary.write_error.is_none(), "{summary:?}");
        let dated = heard.try_recv().ok();
        assert_eq!(
            (dated.is_some(), path.exists()),
            (last == LastSnapshot::Dated, last == LastSnapshot::Plain)
        );
        if let Some(file) = dated.map(|(file, _)| file).or(path.exists().then(|| path.clone())) {
            assert_eq!(content(&open(&file)).0, expected(3200));
        }
    });
}

/// Checks that records about tasks which were lost long before the oldest sample of a snapshot are
/// no lost samples of it, that those which were lost within it are, and that the files tell the
/// same as the account.
#[test]
fn the_account_is_that_of_the_snapshots() {
    for (lost_at, within) in [(5, false), (2990, true)] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("perf.data");
        with_waiting_threads(1, |tids| {
            let kernel = Shared::new();
            let targets = TargetSpec { tids: tids.clone(), per_thread: true, ..TargetSpec::default() };
            let mut options = options("cpu-clock", targets, &path);
            (options.overwrite, options.ring_pages) = (true, Some(1));
            let session =
                Session::start_on(Arc::new(kernel.clone()), RecordingPlan::resolve(options).unwrap())
                    .unwrap();
            let tracker = kymo_perf::sys::attr_bytes(&session.plan().open.events[1].attr);
            let tracker = kymo_data::Attr::parse(&tracker).unwrap();
            let (ids, sides) = (kernel.ids(), kernel.rings_that(Keeps::Oldest));
            let id = kymo_data::SampleId { time: Some(lost_at), id: Some(ids[1]), ..Default::default() };
            let mut side = kymo_core::ring::Writer::new(sides[0].area());
            side.push(&build::lost(&tracker, &id, 900), 0, &[]).unwrap();
            let (file, pages) = kernel.files(Keeps::Newest).remove(0);
            let mut ring = Downward::new(file, pages);
            (1..=3000).for_each(|time| ring.push(&sample(ids[0], 0, time)));
            let stop = stop_sign();
            raise(&stop);
            let account = session.run(Some(stop.as_fd())).unwrap().account;
            let expected = if within { (900, 0) } else { (0, 900) };
            assert_eq!((account.lost(), account.tasks), expected, "{account}");
            assert!(!account.is_clean());
            let mut told = 0;
            each_record(&open(&path), |kind, body| {
                if kind == abi::PERF_RECORD_LOST_SAMPLES {
                    told += u64::from_le_bytes(body[..8].try_into().unwrap());
                }
            });
            assert_eq!(told, account.lost());
        });
    }
}

/// Checks that a ring which makes no sense, and one whose producer lies, cost what is in them and
/// nothing else.
#[test]
fn hostile_rings() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("perf.data");
    with_waiting_threads(3, |tids| {
        let kernel = Shared::new();
        let targets = TargetSpec { tids, per_thread: true, ..TargetSpec::default() };
        let mut options = options("cpu-clock", targets, &path);
        (options.overwrite, options.ring_pages) = (true, Some(1));
        let session =
            Session::start_on(Arc::new(kernel.clone()), RecordingPlan::resolve(options).unwrap()).unwrap();
        let mut files = kernel.files(Keeps::Newest);
        files[0].0.write_all_at(&4u64.to_le_bytes(), 1024).unwrap();
        files[1].0.write_all_at(&(1u64 << 40).to_le_bytes(), 1024).unwrap();
        let (file, pages) = files.remove(2);
        let mut ring = Downward::new(file, pages);
        ring.push(&sample(kernel.ids()[2], 2, 5));
        let stop = stop_sign();
        raise(&stop);
        let summary = session.run(Some(stop.as_fd())).unwrap();
        assert_eq!(content(&open(&path)).0, [(2, 5)]);
        assert_eq!((summary.account.samples, summary.account.corrupt_bytes), (1, 2 * page_size() as u64));
    });
}

/// Checks on the kernel that runs that the rings of a command hold its last samples, in order, with
/// nothing lost, with stacks and packed, too.
#[test]
fn the_end_of_a_command() {
    if !permitted("flight::the_end_of_a_command") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for (name, call_graph, compress) in [
        ("plain", CallGraph::None, None),
        ("packed", CallGraph::FramePointers, Some(1)),
        ("stacks", CallGraph::Dwarf { stack_bytes: 1024 }, None),
    ] {
        let path = directory.path().join(name);
        // Several times what two rings hold, on whichever CPU it runs.
        let mut options = options("cpu-clock", command(&format!("{BUSY}; {BUSY}; {BUSY}")), &path);
        (options.overwrite, options.ring_pages, options.compress) = (true, Some(2), compress);
        (options.call_graph, options.rate) = (call_graph, kymo_record::Rate::Frequency(5000));
        let summary = Session::start(RecordingPlan::resolve(options).unwrap()).unwrap().run(None).unwrap();
        let (mut times, mut stacks) = (Vec::new(), 0);
        each_sample(&open(&path), |sample| {
            times.extend(sample.time);
            stacks += usize::from(sample.user_stack.is_some_and(|stack| !stack.is_empty()));
        });
        assert!(!times.is_empty() && times.is_sorted(), "{name}");
        assert_eq!(stacks > 0, name == "stacks", "{name}");
        assert_eq!((summary.account.samples, summary.account.lost()), (times.len() as u64, 0), "{name}");
        let coverage = summary.coverage.expect("it is a snapshot");
        assert_eq!(coverage.samples(), times.len() as u64, "{name}");
        assert!(coverage.rings.iter().any(|ring| ring.overwritten), "{name}: {coverage}");
    }
}
