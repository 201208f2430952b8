//! The programs against the kernel's verifier, records against damage, and sums against what
//! threads of this process measure of their own waits.
use super::*;
use crate::bpf::follow::{Follow, FollowOptions};
use kymo_testing::skip;
use std::time::{Duration, Instant};

fn tracer(test: &str, follower: Option<&Follower>, tracepoints: bool) -> Option<FutexTracer> {
    match FutexTracer::start(follower, &FutexOptions { tracepoints, ..FutexOptions::default() }) {
        Ok(tracer) => Some(tracer),
        Err(error @ BpfError::Load { .. }) => panic!("{error:?}"),
        Err(error) => {
            skip(test, error.to_string());
            None
        }
    }
}

/// Checks that the kernel accepts the programs, at the function and at the tracepoints.
#[test]
fn programs_load() {
    for tracepoints in [false, true] {
        let Some(tracer) = tracer("bpf::futex::programs_load", None, tracepoints) else { return };
        assert!(!tracepoints || tracer.uses_tracepoints());
    }
}

/// Checks that waits for a lock of this process are added up: how many, how long, and by whom they
/// were ended, with both ways to attach.
#[test]
fn waits_are_added_up() {
    for tracepoints in [false, true] {
        let own = [std::process::id() as i32];
        let follower = Follower::start_with(Follow::Processes(&own), &FollowOptions::default());
        let follower = match follower {
            Ok(follower) => follower,
            Err(error) => return skip("bpf::futex::waits_are_added_up", error.to_string()),
        };
        let Some(tracer) = tracer("bpf::futex::waits_are_added_up", Some(&follower), tracepoints) else {
            return;
        };
        // The standard library's lock is a futex at its address.
        let lock = Box::new(std::sync::Mutex::new(()));
        let address = std::ptr::from_ref(&*lock).addr() as u64;
        let mut measured = Duration::ZERO;
        for _ in 0..5 {
            let held = lock.lock();
            measured += std::thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    let began = Instant::now();
                    drop(lock.lock());
                    began.elapsed()
                });
                while tracer.sums().iter().all(|sums| sums.address != address || sums.waiting == 0) {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(20));
                drop(held);
                waiter.join().expect("it waits, and ends")
            });
        }
        let (sums, waits, _) = tracer.end();
        let of = sums.iter().find(|sums| sums.address == address).expect("the lock's");
        assert_eq!((of.pid, of.waits.count, of.wakes, of.timeouts), (own[0], 5, 5, 0), "{of:?}");
        assert_eq!((of.most_waiting, of.waiting), (1, 0));
        assert!(of.waits.total_ns >= 5 * 20_000_000, "{of:?}");
        assert!(Duration::from_nanos(of.waits.total_ns) <= measured, "{of:?}, measured {measured:?}");
        assert_eq!(of.waits.buckets.iter().sum::<u64>(), 5);
        assert!(waits.iter().all(|wait| wait.address != address));
        assert!(tracer.end().0.iter().any(|sums| sums.address == address), "the sums stay");
    }
}

/// Checks that a thread that waits before and after the tracer is in the sums, and among the waits
/// that have not ended.
#[test]
fn unfinished_waits() {
    let own = [std::process::id() as i32];
    let follower = match Follower::start_with(Follow::Processes(&own), &FollowOptions::default()) {
        Ok(follower) => follower,
        Err(error) => return skip("bpf::futex::unfinished_waits", error.to_string()),
    };
    let Some(tracer) = tracer("bpf::futex::unfinished_waits", Some(&follower), false) else { return };
    let private = PRIVATE as u32;
    assert!(tracer.enter(own[0], 1 << 22, private, 0x1234));
    assert!(!tracer.enter(own[0], 1 << 22, private, 0x1234), "it is known");
    std::thread::sleep(Duration::from_millis(5));
    let (sums, waits, _) = tracer.end();
    let of = sums.iter().find(|sums| sums.address == 0x1234).expect("its sums");
    assert_eq!((of.waits.count, of.waiting, of.most_waiting), (1, 1, 1));
    let wait = waits.iter().find(|wait| wait.address == 0x1234).expect("the wait");
    assert_eq!((wait.kind, wait.tid, wait.wait_ns), (FutexKind::Unfinished, 1 << 22, of.waits.total_ns));
    assert!(wait.wait_ns >= 5_000_000);
}

/// Checks that nothing of a wait counts that began before the recording, unless it is entered.
#[test]
fn waits_before_the_recording() {
    let own = [std::process::id() as i32];
    let follower = match Follower::start_with(Follow::Processes(&own), &FollowOptions::default()) {
        Ok(follower) => follower,
        Err(error) => return skip("bpf::futex::waits_before_the_recording", error.to_string()),
    };
    let Some(tracer) = tracer("bpf::futex::waits_before_the_recording", Some(&follower), false) else {
        return;
    };
    let lock = Box::new(std::sync::Mutex::new(()));
    let address = std::ptr::from_ref(&*lock).addr() as u64;
    let of_lock = |sums: &FutexSums| sums.address == address;
    let held = lock.lock();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| drop(lock.lock()));
        while !tracer.sums().iter().any(of_lock) {
            std::thread::yield_now();
        }
        tracer.begin();
        assert!(!tracer.sums().iter().any(of_lock), "forgotten");
        drop(held);
        waiter.join().expect("it waits, and ends");
    });
    let (sums, waits, _) = tracer.end();
    assert!(!sums.iter().any(of_lock), "{sums:?}");
    assert!(waits.iter().all(|wait| wait.address != address));
}

/// Checks that records and sums are read as they are written, and that other kinds and cut bytes
/// are none.
#[test]
fn records() {
    let record = FutexRecord {
        kind: FutexKind::Wait,
        operation: 128,
        tid: 7,
        pid: 6,
        address: 0x7fff_0000_1230,
        wait_ns: 100,
        told_ns: 1100,
        count: 9,
        result: -110,
        waker: 5,
    };
    let mut raw = record.to_raw();
    assert_eq!((raw.len() + 4) % 8, 0);
    assert_eq!(FutexRecord::parse(&raw), Some(record));
    assert_eq!(FutexRecord::parse(&raw[..67]), None);
    raw[record::at::KIND as usize] = 4;
    assert_eq!(FutexRecord::parse(&raw), None);
    let mut sums = FutexSums { pid: 6, address: 0x1230, operation: 128, ..FutexSums::default() };
    [10, 1000, 1_000_000_000].into_iter().for_each(|ns| sums.waits.add(ns));
    (sums.timeouts, sums.wakes, sums.most_waiting, sums.untold) = (1, 2, 3, (4, 5));
    let raw = sums.to_raw();
    assert_eq!((raw.len() + 4) % 8, 0);
    assert_eq!(FutexSums::parse(&raw), Some(sums));
    assert_eq!(FutexSums::parse(&raw[..raw.len() - 5]), None);
    assert!(FutexSums::FORMAT.contains(&format!("buckets[{BUCKETS}];\toffset:112;\tsize:{}", 8 * BUCKETS)));
}
