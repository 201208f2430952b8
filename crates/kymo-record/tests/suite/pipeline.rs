//! Rings that the test fills itself, through the whole pipeline into a file: nothing may be
//! missing, doubled or out of order, and what did not fit must be counted.
use crate::common::{each_record, open, options, raise, stop_sign};
use kymo_core::ring::Writer;
use kymo_data::abi;
use kymo_perf::ring::{Keeps, Ring};
use kymo_perf::sys::{Binding, Descriptor, EventTarget, Fake, Kernel, perf_event_attr};
use kymo_record::{Options, RecordingPlan, Session, Summary, TargetSpec};
use kymo_testing::with_waiting_threads;
use proptest::prelude::*;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// A scripted kernel that keeps a copy of each descriptor that was mapped, so that the test can
/// write into the rings.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    fake: Fake,
    mapped: Mutex<Vec<(OwnedFd, usize, Keeps)>>,
    ids: Mutex<Vec<u64>>,
}

impl Shared {
    pub(crate) fn new() -> Shared {
        Shared(Arc::new(Inner { fake: Fake::new(), mapped: Mutex::default(), ids: Mutex::default() }))
    }

    /// The rings as their producer sees them.
    fn rings(&self) -> Vec<Ring> {
        self.rings_that(Keeps::Oldest)
    }

    /// Those of one kind.
    pub(crate) fn rings_that(&self, keeps: Keeps) -> Vec<Ring> {
        let files = self.files(keeps);
        files.iter().map(|(file, pages)| Ring::map(file.as_fd(), *pages).unwrap()).collect()
    }

    /// Their files and pages.
    pub(crate) fn files(&self, keeps: Keeps) -> Vec<(File, usize)> {
        let mapped = self.0.mapped.lock().unwrap();
        let found = mapped.iter().filter(|(.., kind)| *kind == keeps);
        found.map(|(fd, pages, _)| (fd.try_clone().unwrap().into(), *pages)).collect()
    }

    /// The ids of all descriptors, event by event.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.0.ids.lock().unwrap().clone()
    }
}

impl Kernel for Shared {
    fn open(&self, attr: &perf_event_attr, place: &EventTarget<'_>) -> io::Result<Descriptor> {
        self.0.fake.open(attr, place)
    }
    fn close(&self, events: Vec<Descriptor>) {
        self.0.fake.close(events);
    }
    fn replace(&self, old: &Descriptor, new: Descriptor) -> io::Result<()> {
        self.0.fake.replace(old, new)
    }
    fn switch(&self, event: &Descriptor, on: bool) -> io::Result<()> {
        self.0.fake.switch(event, on)
    }
    fn switch_own(&self, on: bool) -> io::Result<()> {
        self.0.fake.switch_own(on)
    }
    fn set_output(&self, event: &Descriptor, output: &Descriptor) -> io::Result<()> {
        self.0.fake.set_output(event, output)
    }
    fn set_filter(&self, event: &Descriptor, filter: &str) -> io::Result<()> {
        self.0.fake.set_filter(event, filter)
    }
    fn set_bpf(&self, event: &Descriptor, program: BorrowedFd<'_>) -> io::Result<()> {
        self.0.fake.set_bpf(event, program)
    }
    fn id(&self, event: &Descriptor) -> io::Result<u64> {
        let id = self.0.fake.id(event)?;
        self.0.ids.lock().unwrap().push(id);
        Ok(id)
    }
    fn read(&self, event: &Descriptor, words: &mut [u64]) -> io::Result<usize> {
        self.0.fake.read(event, words)
    }
    fn pause_output(&self, event: &Descriptor, paused: bool) -> io::Result<()> {
        self.0.fake.pause_output(event, paused)
    }
    fn map(&self, event: &Descriptor, data_pages: usize, keeps: Keeps) -> io::Result<Ring> {
        let ring = self.0.fake.map(event, data_pages, keeps)?;
        let file = self.0.fake.poll_fd(event).expect("a file behind it").try_clone_to_owned()?;
        self.0.mapped.lock().unwrap().push((file, data_pages, keeps));
        Ok(ring)
    }
    fn poll_fd<'a>(&self, event: &'a Descriptor) -> Option<BorrowedFd<'a>> {
        self.0.fake.poll_fd(event)
    }
    fn descriptor_limit(&self) -> Option<u64> {
        self.0.fake.descriptor_limit()
    }
    fn raise_descriptors(&self, wanted: u64) -> Option<u64> {
        self.0.fake.raise_descriptors(wanted)
    }
    fn last_cpus(&self, tasks: &[i32]) -> Vec<Option<u32>> {
        self.0.fake.last_cpus(tasks)
    }
    fn bind(&self, cpu: u32) -> io::Result<Binding> {
        self.0.fake.bind(cpu)
    }
    fn unbind(&self, before: &Binding) {
        self.0.fake.unbind(before);
    }
}

/// A sample with IP, TID, TIME and PERIOD, padded with `extra` words of a made-up callchain.
fn sample(ring: u64, serial: u64, extra: usize) -> Vec<u8> {
    let mut body = vec![ring << 32 | serial, 0, serial + 1, 1, extra as u64];
    body.extend((0..extra as u64).map(|word| serial ^ word));
    let mut out =
        (u64::from(abi::PERF_RECORD_SAMPLE) | (8 + 8 * body.len() as u64) << 48).to_le_bytes().to_vec();
    out.extend(body.iter().flat_map(|word| word.to_le_bytes()));
    out
}

/// What a run of the pipeline with these pushes came to: per ring the accepted serial numbers, how
/// many were refused, and the summary.
struct Run {
    accepted: Vec<Vec<u64>>,
    refused: u64,
    pending: u64,
    summary: Summary,
}

fn record(path: &Path, pushes: &[(usize, usize)], change: impl FnOnce(&mut Options)) -> Run {
    // Three threads: three rings that no drain thread is pinned for.
    with_waiting_threads(3, |tids| {
        let kernel = Shared::new();
        let targets = TargetSpec { tids, per_thread: true, ..TargetSpec::default() };
        let mut options = options("cpu-clock", targets, path);
        options.call_graph = kymo_record::CallGraph::FramePointers;
        options.ring_pages = Some(1);
        change(&mut options);
        let session =
            Session::start_on(Arc::new(kernel.clone()), RecordingPlan::resolve(options).unwrap()).unwrap();
        let stop = stop_sign();
        let rings = kernel.rings();
        let mut writers: Vec<Writer<'_>> = rings.iter().map(|ring| Writer::new(ring.area())).collect();
        let mut accepted = vec![Vec::new(); 3];
        let summary = std::thread::scope(|scope| {
            let running = scope.spawn(|| session.run(Some(stop.as_fd())).unwrap());
            for (serial, &(ring, extra)) in pushes.iter().enumerate() {
                let bytes = sample(ring as u64, serial as u64, extra);
                // The trailer of a LOST record: TID, TIME.
                if writers[ring].push(&bytes, 7, &[0; 16]).is_ok() {
                    accepted[ring].push(serial as u64);
                }
            }
            raise(&stop);
            running.join().unwrap()
        });
        let (refused, pending) =
            writers.iter().fold((0, 0), |sum, w| (sum.0 + w.lost(), sum.1 + w.pending_lost()));
        Run { accepted, refused, pending, summary }
    })
}

/// Checks the file against what the rings accepted.
fn check(path: &Path, run: &Run) {
    let mut found = vec![Vec::new(); 3];
    let recording = open(path);
    each_record(&recording, |kind, body| {
        if kind == abi::PERF_RECORD_SAMPLE {
            let ip = u64::from_le_bytes(body[..8].try_into().unwrap());
            found[(ip >> 32) as usize].push(ip & 0xffff_ffff);
        }
    });
    assert_eq!(found, run.accepted, "each accepted record once and in order");
    let account = run.summary.account;
    assert_eq!(account.samples, run.accepted.iter().map(|ring| ring.len() as u64).sum::<u64>());
    assert_eq!(
        account.ring_full + account.queue_full,
        run.refused - run.pending,
        "every loss that was told is counted"
    );
    assert_eq!(account.corrupt_bytes + account.unwritten_bytes, 0);
    assert!(run.summary.write_error.is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Checks that the file holds exactly what the rings accepted, ring by ring in order,
    /// compressed or not, while records are pushed as fast as they can be into rings of one page.
    #[test]
    fn every_byte_arrives(pushes in prop::collection::vec((0..3usize, 0..60usize), 0..600), compress in any::<bool>()) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("perf.data");
        let run = record(&path, &pushes, |options| options.compress = compress.then_some(1));
        check(&path, &run);
    }
}

/// Checks that far more than all buffers hold goes through, in order.
#[test]
fn a_long_run() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("perf.data");
    let pushes: Vec<(usize, usize)> = (0..60_000).map(|i| (i % 3, i % 40)).collect();
    let run = record(&path, &pushes, |_| {});
    check(&path, &run);
}

/// Checks that a producer which lies about its head or its records makes neither a crash nor a file
/// that does not open.
#[test]
fn a_hostile_ring() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("perf.data");
    let summary = with_waiting_threads(3, |tids| {
        let kernel = Shared::new();
        let targets = TargetSpec { tids, per_thread: true, ..TargetSpec::default() };
        let mut options = options("cpu-clock", targets, &path);
        options.ring_pages = Some(1);
        let session =
            Session::start_on(Arc::new(kernel.clone()), RecordingPlan::resolve(options).unwrap()).unwrap();
        let stop = stop_sign();
        let rings = kernel.rings();
        // A record of size 0 within the ring's bounds, and after it one that is never reached.
        let mut garbage = vec![0xff; 64];
        garbage[6..8].copy_from_slice(&[0, 0]);
        Writer::new(rings[0].area()).push(&garbage, 0, &[]).unwrap();
        Writer::new(rings[1].area()).push(&sample(1, 5, 0), 0, &[]).unwrap();
        raise(&stop);
        session.run(Some(stop.as_fd())).unwrap()
    });
    assert_eq!(summary.account.samples, 1);
    assert_eq!(summary.account.corrupt_bytes, 64);
    let mut kinds = Vec::new();
    each_record(&open(&path), |kind, _| kinds.push(kind));
    assert!(kinds.contains(&abi::PERF_RECORD_SAMPLE));
}

/// Checks that rings are unmapped before their events are closed when a session is dropped without
/// running, that it leaves no file, and that a plan with a ring size that is refused says so.
#[test]
fn a_session_that_does_not_run() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("perf.data");
    with_waiting_threads(3, |tids| {
        let targets = TargetSpec { tids: tids.clone(), per_thread: true, ..TargetSpec::default() };
        let plan = RecordingPlan::resolve(options("cpu-clock", targets.clone(), &path)).unwrap();
        drop(Session::start_on(Arc::new(Fake::new()), plan).unwrap());
        let mut large = options("cpu-clock", targets, &path);
        large.ring_pages = Some(64);
        let plan = RecordingPlan::resolve(large).unwrap();
        let error = Session::start_on(Arc::new(Fake::new().map_limit_pages(8)), plan).err().expect("refused");
        assert!(error.to_string().starts_with("failed to map the ring of 64 pages of cpu-clock"), "{error}");
    });
    assert!(!path.exists(), "a recording that has not begun has no file");
}
