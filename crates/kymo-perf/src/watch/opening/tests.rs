//! Tests of watching, on the scripted kernel and on the one that runs.
use super::*;
use crate::sys::{Fake, Perf};
use crate::watch::BreakpointSlots;
use crate::watch::Range;
use kymo_core::breakpoint::{Kind, Slots};
use std::sync::atomic::{AtomicU64, Ordering};

fn schedule(count: u64) -> Schedule {
    let ranges: Vec<Range> =
        (0..count).map(|at| Range { address: 0x1000 * (at + 1), bytes: 4, kind: Kind::WRITE }).collect();
    let machine = BreakpointSlots { cpus: 2, slots: Slots::Shared(4), taken: 0, by_cpu: false };
    Schedule::plan(&ranges, &machine, true).unwrap()
}

/// Checks that by tasks each register is opened on each CPU, inherited and without the kernel's
/// accesses, and that turns are exchanged without leaving anything open.
#[test]
fn turns_by_tasks() {
    let fake = Arc::new(Fake::new());
    let options = WatchOptions { pids: vec![i32::MAX], scope: Some(Scope::Tasks), ..WatchOptions::default() };
    let mut watcher = Watcher::open(Arc::<Fake>::clone(&fake), options).unwrap();
    let schedule = schedule(6);
    let cpus = watcher.cpus.len();
    let mut nothing = |_: usize, _: &[u8]| {};
    watcher.arm(&schedule, 0, &mut nothing).unwrap();
    assert_eq!(watcher.descriptors(), cpus + 4 * cpus);
    watcher.arm(&schedule, 1, &mut nothing).unwrap();
    assert_eq!(watcher.descriptors(), cpus + 2 * cpus);
    let opened = fake.opened();
    let points: Vec<_> = opened.iter().filter(|one| one.attr.type_ == Perf::BREAKPOINT).collect();
    assert_eq!(points.len(), 6 * cpus);
    assert!(points.iter().all(|one| one.attr.inherit() == 1 && one.attr.exclude_kernel() == 1));
    watcher.disarm(&schedule, &mut nothing);
    let coverage = watcher.coverage(&schedule);
    assert!(coverage.iter().all(|armed| armed.armed_ns > 0 && armed.armed_ns <= armed.all_ns));
    drop(watcher);
    assert_eq!(fake.live(), Vec::<i32>::new());
}

static WATCHED: AtomicU64 = AtomicU64::new(0);

/// Checks on this kernel that each write by each thread is one sample with the value that it wrote,
/// and that nothing is lost or left.
#[test]
fn writes_of_this_process() {
    let options = WatchOptions {
        pids: vec![std::process::id() as i32],
        scope: Some(Scope::Filtered),
        ..WatchOptions::default()
    };
    let mut watcher = match Watcher::open(Arc::new(sys::Real), options) {
        Ok(watcher) => watcher,
        Err(error) => return kymo_testing::skip("writes_of_this_process", error),
    };
    let address = std::ptr::from_ref(&WATCHED).addr() as u64;
    let ranges = [Range { address, bytes: 8, kind: Kind::WRITE }];
    let (cpus, slots) = (watcher.cpus.len(), BreakpointSlots::slots_here());
    let machine = BreakpointSlots { cpus, slots, taken: 0, by_cpu: true };
    let schedule = Schedule::plan(&ranges, &machine, false).unwrap();
    if let Err(error) = watcher.arm(&schedule, 0, &mut |_, _| {}) {
        assert!(error.no_slot(), "{error}");
        return kymo_testing::skip("writes_of_this_process", error);
    }
    const WRITES: u64 = 100;
    std::thread::scope(|scope| {
        for thread in 1..=2 {
            scope.spawn(move || {
                // Relaxed: only that it is written counts.
                (0..WRITES).for_each(|at| WATCHED.store(thread << 32 | at, Ordering::Relaxed));
            });
        }
    });
    let mut found = Vec::new();
    let mut take = |_: usize, mut records: &[u8]| {
        while records.len() >= 8 {
            let size = usize::from(u16::from_le_bytes([records[6], records[7]]));
            if records[0] == 9 {
                // Eight words, the last of which has the length of the raw bytes in its lower half.
                let told = crate::bpf::WatchSample::parse(&records[8 + 7 * 8 + 4..size]).unwrap();
                assert_eq!(told.address, address);
                found.push(u64::from_le_bytes(told.word.unwrap()));
            }
            records = &records[size..];
        }
    };
    watcher.drain(&mut take);
    watcher.disarm(&schedule, &mut take);
    let counts = watcher.counts().unwrap();
    assert_eq!((counts.seen, counts.lost), (2 * WRITES, 0));
    assert_eq!(found.len() as u64, 2 * WRITES);
    // Both threads may write before either of them is told what is there.
    assert!(found.iter().all(|word| (1..=2).contains(&(word >> 32)) && word & 0xffff_ffff < WRITES));
    assert!(watcher.coverage(&schedule)[0].armed_ns > 0);
}
