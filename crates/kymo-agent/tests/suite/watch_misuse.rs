//! Watches in odd places: too many, wrong ranges, in handlers, in children, beside other users of
//! SIGTRAP.
#![allow(unsafe_code)]
use crate::misuse::alone as alone_in_process;
use crate::watch::{alone, slots, try_watch};
use kymo_agent::watch::{Error, Guard, Kind, release_slots, stop, watch};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Checks that one watch more than there are slots is refused in words, changes nothing for the
/// others, and is granted when one has ended.
#[test]
fn one_watch_too_many() {
    const TEST: &str = "watch_misuse::one_watch_too_many";
    let _alone = alone();
    let most = slots(TEST);
    if most == 0 {
        return kymo_testing::skip(TEST, "no watchpoint to be had here");
    }
    let places: Vec<AtomicU64> = (0..=most).map(|_| AtomicU64::new(0)).collect();
    let start = |at: usize| watch(std::ptr::from_ref(&places[at]).addr(), 8, Kind::WRITE, |_| ());
    let mut guards: Vec<Guard> = (0..most).map(|at| start(at).expect("there are as many")).collect();
    let refused = start(most).expect_err("one too many");
    assert!(matches!(refused, Error::NoSlot { slots, ours } if (slots, ours) == (most, most)), "{refused:?}");
    let words = format!(
        "all {most} watchpoints that a thread can have are in use, {most} of them by this process; stop one"
    );
    assert!(refused.to_string().starts_with(&words), "{refused}");
    places.iter().for_each(|place| place.store(1, Ordering::Relaxed));
    assert!(guards.iter().all(|guard| guard.hits() == 1));
    drop(guards.swap_remove(0));
    guards.push(start(most).expect("one has ended"));
    places[most].store(2, Ordering::Relaxed);
    assert_eq!(guards.last().map(Guard::hits), Some(1));
}

/// Checks that ranges that no slot holds are refused in words, before a slot is taken.
#[test]
fn wrong_ranges() {
    let _alone = alone();
    let words = |address: usize, len, kind| match watch(address, len, kind, |_| ()) {
        Ok(_) => panic!("{address:#x} {len} {kind}"),
        Err(error) => error.to_string(),
    };
    assert_eq!(
        words(0x10_000, 3, Kind::WRITE),
        "3 bytes cannot be watched; give 1, 2, 4 or 8, or several watches"
    );
    assert_eq!(
        words(0x10_000, 16, Kind::READ_WRITE),
        "16 bytes cannot be watched; give 1, 2, 4 or 8, or several watches"
    );
    let unaligned = words(0x10_004, 8, Kind::WRITE);
    assert!(unaligned.contains("must be a multiple of 8; watch fewer bytes, or from 0x10000"), "{unaligned}");
    for kernel in [usize::MAX - 7, 1 << 63] {
        assert!(words(kernel, 8, Kind::WRITE).contains("not an address of this program"), "{kernel:#x}");
    }
    assert!(words(0, 8, Kind::WRITE).contains("not an address of this program"));
    if cfg!(target_arch = "x86_64") {
        assert!(words(0x10_000, 8, Kind::READ).contains("watch for reads and writes"));
    }
    let both = Kind::from_bits(6).expect("a kind");
    assert!(matches!(watch(0x10_000, 8, both, |_| ()), Err(Error::Unsupported { .. })));
    // Beyond what programs can have, and still in the lower half: only the kernel knows.
    let refused = watch(0x3fff_ffff_ffff_fff8, 8, Kind::WRITE, |_| ());
    assert!(
        matches!(refused, Err(Error::NotOurs { .. } | Error::NoSlot { .. } | Error::System { .. })),
        "{refused:?}"
    );
    let before = slots("watch_misuse::wrong_ranges");
    assert_eq!(slots("watch_misuse::wrong_ranges"), before, "nothing is left taken");
}

/// Checks that a handler may stop its watch, that it is not told what it accesses itself, and that
/// it cannot start a watch.
#[test]
fn in_a_handler() {
    const TEST: &str = "watch_misuse::in_a_handler";
    let _alone = alone();
    let (place, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (own, told) = (Arc::clone(&place), Arc::clone(&refused));
    let handler = move |hit: &kymo_agent::watch::Hit| {
        own.fetch_add(100, Ordering::Relaxed);
        if matches!(stop(0x77), Err(Error::Unknown { number: 0x77 })) {
            told.fetch_add(1, Ordering::Relaxed);
        }
        if hit.new == Some(103) {
            hit.stop();
            hit.stop();
        }
    };
    let Some(guard) = try_watch(TEST, &*place, Kind::WRITE, handler) else { return };
    for _ in 0..5 {
        place.fetch_add(3, Ordering::Relaxed);
    }
    // 3, then 103 + 3 and no more: 3 -> 103 by the handler -> 106 -> 206 ...
    assert_eq!(guard.hits(), 5);
    place.store(100, Ordering::Relaxed);
    assert_eq!(guard.hits(), 6);
    place.store(103, Ordering::Relaxed);
    assert_eq!(place.load(Ordering::Relaxed), 203);
    place.store(1, Ordering::Relaxed);
    assert_eq!((place.load(Ordering::Relaxed), guard.stop()), (1, 7));
    assert_eq!(refused.load(Ordering::Relaxed), 7);

    let place = AtomicU64::new(0);
    let answer = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&answer);
    let guard = watch(std::ptr::from_ref(&place).addr(), 8, Kind::WRITE, move |hit| {
        let refused = matches!(watch(hit.address, 8, Kind::WRITE, |_| ()), Err(Error::InHandler));
        told.store(1 + u64::from(refused), Ordering::Relaxed);
    })
    .expect("one was granted above");
    place.store(1, Ordering::Relaxed);
    assert_eq!((answer.load(Ordering::Relaxed), guard.stop()), (2, 1));
}

/// Checks that a watch that was stopped by its handler does not keep its slot, and that a stopped
/// number is unknown.
#[test]
fn what_a_handler_stopped_is_free() {
    const TEST: &str = "watch_misuse::what_a_handler_stopped_is_free";
    let _alone = alone();
    let before = slots(TEST);
    let places = [const { AtomicU64::new(0) }; 40];
    for place in &places {
        let Some(guard) = try_watch(TEST, place, Kind::WRITE, |hit| hit.stop()) else { return };
        let number = guard.into_number();
        place.store(1, Ordering::Relaxed);
        place.store(2, Ordering::Relaxed);
        assert!(matches!(stop(number), Ok(()) | Err(Error::Unknown { .. })));
        let refused = stop(number).expect_err("ended");
        assert!(refused.to_string().contains("it was stopped before"), "{refused}");
    }
    for place in &places {
        let Some(guard) = try_watch(TEST, place, Kind::WRITE, |hit| hit.stop()) else { return };
        let _nobody_stops_it = guard.into_number();
        place.store(3, Ordering::Relaxed);
    }
    assert_eq!(slots(TEST), before);
}

/// Checks that slots that are given back are closed, and opened again by the next watch.
#[test]
fn slots_are_given_back() {
    const TEST: &str = "watch_misuse::slots_are_given_back";
    let _alone = alone();
    let place = AtomicU64::new(0);
    let Some(guard) = try_watch(TEST, &place, Kind::WRITE, |_| ()) else { return };
    release_slots();
    place.store(1, Ordering::Relaxed);
    assert_eq!(guard.stop(), 1, "the one in use stays");
    assert_eq!(release_slots(), 1);
    assert_eq!(release_slots(), 0);
    let Some(guard) = try_watch(TEST, &place, Kind::WRITE, |_| ()) else { return };
    place.store(2, Ordering::Relaxed);
    assert_eq!(guard.stop(), 1);
}

static FOREIGN: AtomicI32 = AtomicI32::new(0);

extern "C" fn foreign(signal: i32) {
    FOREIGN.fetch_add(signal, Ordering::SeqCst);
}

fn raise() {
    // SAFETY: a signal to this thread.
    unsafe { libc::raise(libc::SIGTRAP) };
}

/// Checks that who handled SIGTRAP before gets what is not ours, a breakpoint instruction included,
/// also if he came after the first watch; and that without such a handler it ends the process, as
/// always.
#[test]
fn signals_of_others() {
    const TEST: &str = "watch_misuse::signals_of_others";
    if !alone_in_process(TEST) {
        return;
    }
    let place = AtomicU64::new(0);
    let Some(guard) = try_watch(TEST, &place, Kind::WRITE, |_| ()) else { return };
    crate::process::ends_by(libc::SIGTRAP, raise);
    drop(guard);
    // SAFETY: a handler that only counts.
    unsafe { libc::signal(libc::SIGTRAP, foreign as extern "C" fn(i32) as usize) };
    let Some(guard) = try_watch(TEST, &place, Kind::WRITE, |_| ()) else { return };
    raise();
    assert_eq!(FOREIGN.load(Ordering::SeqCst), libc::SIGTRAP);
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: a breakpoint instruction, which the handler takes.
        unsafe { std::arch::asm!("int3") };
        assert_eq!(FOREIGN.load(Ordering::SeqCst), 2 * libc::SIGTRAP);
    }
    let before = FOREIGN.load(Ordering::SeqCst);
    place.store(1, Ordering::Relaxed);
    assert_eq!((guard.stop(), FOREIGN.load(Ordering::SeqCst)), (1, before), "ours are not handed on");
}

/// Checks that a forked child is not watched and cannot watch, that it leaves the parent's watch
/// alone, and keeps no slot of it.
#[test]
fn a_forked_child_is_not_watched() {
    const TEST: &str = "watch_misuse::a_forked_child_is_not_watched";
    if !alone_in_process(TEST) {
        return;
    }
    let place = AtomicU64::new(0);
    let Some(guard) = try_watch(TEST, &place, Kind::WRITE, |_| ()) else { return };
    place.store(1, Ordering::Relaxed);
    crate::process::in_child(|| {
        place.store(2, Ordering::Relaxed);
        let refused = watch(std::ptr::from_ref(&place).addr(), 8, Kind::WRITE, |_| ());
        if !matches!(refused, Err(Error::Forked)) {
            return 2;
        }
        // As if the child dropped it.
        let number = 0x6b_796d << 40 | 1 << 8;
        if !matches!(stop(number), Err(Error::Forked)) {
            return 3;
        }
        if guard.hits() == 1 { 0 } else { 4 }
    });
    place.store(3, Ordering::Relaxed);
    assert_eq!(guard.stop(), 2, "once before and once after the fork");
}

/// Checks that accesses while SIGTRAP is blocked are told when it is not any more, once and marked.
#[test]
fn a_thread_that_blocks_the_signal() {
    const TEST: &str = "watch_misuse::a_thread_that_blocks_the_signal";
    let _alone = alone();
    let (place, marked) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
    let told = Arc::clone(&marked);
    let handler = move |hit: &kymo_agent::watch::Hit| {
        told.fetch_add(if hit.synchronous { 100 } else { 1 }, Ordering::Relaxed);
    };
    let Some(guard) = try_watch(TEST, &place, Kind::WRITE, handler) else { return };
    crate::process::blocking(libc::SIGTRAP, || {
        place.store(1, Ordering::Relaxed);
        place.store(2, Ordering::Relaxed);
        assert_eq!(marked.load(Ordering::Relaxed), 0);
    });
    assert_eq!((marked.load(Ordering::Relaxed), guard.stop()), (1, 1));
}

/// Checks that the end of the thread that started a watch, and of the threads that opened it, does
/// not end it for their children.
#[test]
fn threads_end_and_the_watch_goes_on() {
    const TEST: &str = "watch_misuse::threads_end_and_the_watch_goes_on";
    let _alone = alone();
    release_slots();
    let place = Arc::new(AtomicU64::new(0));
    let theirs = Arc::clone(&place);
    let started = std::thread::spawn(move || {
        let guard = try_watch(TEST, &*theirs, Kind::WRITE, |_| ());
        // A child of the thread that ends, alive after it.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let child = std::thread::spawn(move || {
            wait.recv().expect("a go");
            theirs.fetch_add(1, Ordering::Relaxed);
        });
        (guard, go, child)
    });
    let (guard, go, child) = started.join().expect("no panic");
    let Some(guard) = guard else { return };
    go.send(()).expect("it waits");
    child.join().expect("no panic");
    place.fetch_add(1, Ordering::Relaxed);
    assert_eq!(guard.stop(), 2);
    // And the slot can be aimed anew, with the events of threads that are gone.
    let Some(guard) = try_watch(TEST, &*place, Kind::WRITE, |_| ()) else { return };
    place.fetch_add(1, Ordering::Relaxed);
    assert_eq!(guard.stop(), 1);
}

/// Checks that a watch that starts when more threads are there than a process may have files open
/// by default reaches all of them.
#[test]
fn more_threads_than_files() {
    const TEST: &str = "watch_misuse::more_threads_than_files";
    const THREADS: u64 = 1_200;
    const WRITES: u64 = 5;
    // It takes so many descriptors, and raises the limit.
    if !alone_in_process(TEST) {
        return;
    }
    let place = Arc::new(AtomicU64::new(0));
    let go = Arc::new(std::sync::RwLock::new(()));
    let held = go.write().expect("nobody panics");
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (place, go) = (Arc::clone(&place), Arc::clone(&go));
            let run = move || {
                let _go = go.read();
                for _ in 0..WRITES {
                    place.fetch_add(1, Ordering::Relaxed);
                }
            };
            std::thread::Builder::new().stack_size(64 << 10).spawn(run).expect("a thread")
        })
        .collect();
    let guard = try_watch(TEST, &*place, Kind::WRITE, |_| ());
    drop(held);
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    if let Some(guard) = guard {
        assert_eq!(guard.stop(), THREADS * WRITES);
    }
}
