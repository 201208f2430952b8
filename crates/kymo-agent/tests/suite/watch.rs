//! Watches: every access is told, once, to the thread that did it, with the right values.
use kymo_agent::watch::{Error, Guard, Hit, Kind, watch};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};

/// The processor's slots are few, and the tests of one process share them.
static ALONE: Mutex<()> = Mutex::new(());

pub(crate) fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The watch, or the reason to skip the test.
pub(crate) fn try_watch<T>(
    test: &str,
    place: &T,
    kind: Kind,
    handler: impl Fn(&Hit) + Send + Sync + 'static,
) -> Option<Guard> {
    match watch(std::ptr::from_ref(place).addr(), size_of::<T>(), kind, handler) {
        Ok(guard) => Some(guard),
        Err(error @ (Error::NoSlot { slots: 0, .. } | Error::Held { .. } | Error::System { .. })) => {
            kymo_testing::skip(test, error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Hits as handlers see them, without a lock or an allocation.
#[derive(Default)]
pub(crate) struct Seen {
    count: AtomicUsize,
    old: [AtomicU64; 8],
    new: [AtomicU64; 8],
    thread: AtomicI32,
    ip: AtomicUsize,
    asynchronous: AtomicBool,
}

impl Seen {
    pub(crate) fn take(&self, hit: &Hit) {
        let at = self.count.fetch_add(1, Ordering::SeqCst);
        if at < self.old.len() {
            self.old[at].store(hit.old.expect("data"), Ordering::SeqCst);
            self.new[at].store(hit.new.expect("data"), Ordering::SeqCst);
        }
        self.thread.store(hit.thread, Ordering::SeqCst);
        self.ip.store(hit.ip, Ordering::SeqCst);
        self.asynchronous.fetch_or(!hit.synchronous, Ordering::SeqCst);
    }

    fn values(&self) -> Vec<(u64, u64)> {
        let count = self.count();
        let value = |at: usize| (self.old[at].load(Ordering::SeqCst), self.new[at].load(Ordering::SeqCst));
        (0..count.min(self.old.len())).map(value).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

/// Checks that a hit tells the values before and after, the thread and the place, at once, and that
/// nothing is told after the drop.
#[test]
fn a_hit_tells_what_happened() {
    let _alone = alone();
    let (place, seen) = (Box::new(AtomicU64::new(7)), Arc::new(Seen::default()));
    let told = Arc::clone(&seen);
    let Some(guard) =
        try_watch("watch::a_hit_tells_what_happened", &*place, Kind::WRITE, move |hit| told.take(hit))
    else {
        return;
    };
    place.store(8, Ordering::Relaxed);
    assert_eq!(seen.count(), 1, "told before the next instruction");
    place.store(u64::MAX, Ordering::Relaxed);
    assert_eq!(place.load(Ordering::Relaxed), u64::MAX, "a read is no write");
    assert_eq!(seen.values(), [(7, 8), (8, u64::MAX)]);
    assert_eq!(seen.thread.load(Ordering::SeqCst), crate::process::own_thread());
    assert_ne!(seen.ip.load(Ordering::SeqCst), 0);
    assert!(!seen.asynchronous.load(Ordering::SeqCst));
    assert_eq!(guard.stop(), 2);
    place.store(9, Ordering::Relaxed);
    assert_eq!(seen.count(), 2);
    assert_eq!(Arc::strong_count(&seen), 1, "the handler is gone");
}

/// Checks that one, two, four and eight bytes are watched, each to its own ends, and values have as
/// many bytes.
#[test]
fn lengths() {
    let _alone = alone();
    fn check<T>(first: u64, values: [u64; 2], place: &T, write: impl Fn(&T, u64)) {
        let seen = Arc::new(Seen::default());
        let told = Arc::clone(&seen);
        let Some(guard) = try_watch("watch::lengths", place, Kind::WRITE, move |hit| told.take(hit)) else {
            return;
        };
        write(place, values[0]);
        write(place, values[1]);
        assert_eq!(guard.stop(), 2);
        assert_eq!(seen.values(), [(first, values[0]), (values[0], values[1])]);
    }
    let bytes: [AtomicU8; 8] = std::array::from_fn(|n| AtomicU8::new(n as u8));
    check(3, [200, 255], &bytes[3], |place, value| {
        place.store(value as u8, Ordering::Relaxed);
        // The neighbours.
        bytes[2].store(1, Ordering::Relaxed);
        bytes[4].store(1, Ordering::Relaxed);
    });
    check(5, [0, 65_535], &AtomicU16::new(5), |place, value| place.store(value as u16, Ordering::Relaxed));
    check(9, [10, 0xffff_fff0], &AtomicI32::new(9), |place, value| {
        place.store(value as i32, Ordering::Relaxed)
    });
}

/// Checks that reads are seen by a watch for reads and writes, and an instruction by one for
/// instructions.
#[test]
fn reads_and_instructions() {
    const TEST: &str = "watch::reads_and_instructions";
    let _alone = alone();
    let (place, seen) = (AtomicU64::new(1), Arc::new(Seen::default()));
    let told = Arc::clone(&seen);
    let Some(guard) = try_watch(TEST, &place, Kind::READ_WRITE, move |hit| told.take(hit)) else { return };
    assert_eq!(place.load(Ordering::Relaxed), 1);
    place.store(2, Ordering::Relaxed);
    assert_eq!((guard.stop(), seen.values()), (2, vec![(1, 1), (1, 2)]));

    #[inline(never)]
    extern "C" fn called(n: u64) -> u64 {
        std::hint::black_box(n) + 1
    }
    let at = called as extern "C" fn(u64) -> u64 as usize;
    let ip = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&ip);
    let guard = watch(at, 0, Kind::EXECUTE, move |hit| {
        assert!(hit.old.is_none() && hit.new.is_none());
        told.store(hit.ip, Ordering::Relaxed);
    })
    .expect("data worked");
    let sum: u64 = (0..5).map(|n| std::hint::black_box(called as extern "C" fn(u64) -> u64)(n)).sum();
    assert_eq!((sum, guard.stop(), ip.load(Ordering::Relaxed)), (15, 5, at));
}

/// Checks that every write of eight threads is told to the thread that did it: of threads that were
/// there before the watch, of threads that came later, and of their children.
#[test]
fn every_write_of_every_thread() {
    const TEST: &str = "watch::every_write_of_every_thread";
    const WRITES: u64 = 1_000;
    let _alone = alone();
    let place = Arc::new(AtomicU64::new(0));
    let (ready, go) = (Arc::new(Barrier::new(5)), Arc::new(Barrier::new(5)));
    let by_thread: Arc<[AtomicU64; 8]> = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
    let own: Arc<[AtomicI32; 8]> = Arc::new(std::array::from_fn(|_| AtomicI32::new(0)));
    let work = |number: usize| {
        let (place, own) = (Arc::clone(&place), Arc::clone(&own));
        move || {
            own[number].store(crate::process::own_thread(), Ordering::SeqCst);
            for _ in 0..WRITES {
                place.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let earlier: Vec<_> = (0..4)
        .map(|number| {
            let (work, ready, go) = (work(number), Arc::clone(&ready), Arc::clone(&go));
            std::thread::spawn(move || {
                ready.wait();
                go.wait();
                work();
            })
        })
        .collect();
    ready.wait();
    let strange = Arc::new(AtomicU64::new(0));
    let told = (Arc::clone(&by_thread), Arc::clone(&own), Arc::clone(&strange));
    let guard = try_watch(TEST, &*place, Kind::WRITE, move |hit| {
        match told.1.iter().position(|thread| thread.load(Ordering::SeqCst) == hit.thread) {
            Some(at) => told.0[at].fetch_add(1, Ordering::SeqCst),
            None => told.2.fetch_add(1, Ordering::SeqCst),
        };
        if !hit.synchronous || hit.new.is_none() {
            told.2.fetch_add(1, Ordering::SeqCst);
        }
    });
    go.wait();
    let (grandchildren, later) = ([work(6), work(7)], [work(4), work(5)]);
    let later = std::thread::spawn(move || {
        let threads = later.map(std::thread::spawn);
        let nested =
            std::thread::spawn(move || grandchildren.map(std::thread::spawn).map(|t| t.join().is_ok()));
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        nested.join().expect("no panic")
    });
    earlier.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert_eq!(later.join().expect("no panic"), [true, true]);
    let Some(guard) = guard else { return };
    assert_eq!(guard.stop(), 8 * WRITES);
    assert_eq!(by_thread.each_ref().map(|count| count.load(Ordering::SeqCst)), [WRITES; 8]);
    assert_eq!(strange.load(Ordering::SeqCst), 0);
}

/// Checks that the values of one thread's writes form a chain without a gap, whatever the number of
/// writes.
#[test]
fn values_form_a_chain() {
    let _alone = alone();
    let (place, breaks) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
    let (expected, told) = (AtomicU64::new(0), Arc::clone(&breaks));
    let handler = move |hit: &Hit| {
        let before = expected.swap(hit.new.unwrap_or(0), Ordering::Relaxed);
        if hit.old != Some(before) || hit.new != Some(before + 3) {
            told.fetch_add(1, Ordering::Relaxed);
        }
    };
    let Some(guard) = try_watch("watch::values_form_a_chain", &place, Kind::WRITE, handler) else { return };
    for value in 1..=5_000 {
        place.store(3 * value, Ordering::Relaxed);
    }
    assert_eq!((guard.stop(), breaks.load(Ordering::Relaxed)), (5_000, 0));
}

/// Checks that two watches of the same bytes are both told, though the kernel sends one signal, and
/// end each for itself.
#[test]
fn two_watches_of_the_same_bytes() {
    const TEST: &str = "watch::two_watches_of_the_same_bytes";
    let _alone = alone();
    let place = AtomicU64::new(0);
    let Some(first) = try_watch(TEST, &place, Kind::WRITE, |_| ()) else { return };
    let Some(second) = try_watch(TEST, &place, Kind::WRITE, |_| ()) else { return };
    place.store(1, Ordering::Relaxed);
    assert_eq!((first.hits(), second.hits()), (1, 1));
    assert_eq!(first.stop(), 1);
    place.store(2, Ordering::Relaxed);
    assert_eq!(second.stop(), 2);
}

/// Checks that threads that all start and stop watches at the same time get a slot or a refusal,
/// that those with a slot are told their own writes exactly, and that all slots are free in the
/// end. Regression: another thread cleared a watch that was just being stopped, so its hits were
/// those of the next watch in its slot; and a signal under way counted for that one.
#[test]
fn watches_come_and_go_in_many_threads() {
    const TEST: &str = "watch::watches_come_and_go_in_many_threads";
    let _alone = alone();
    let place = AtomicU64::new(0);
    let Some(guard) = try_watch(TEST, &place, Kind::WRITE, |_| ()) else { return };
    drop(guard);
    let (watched, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    // Threads that are being made meanwhile are another test's.
    let all_there = Barrier::new(32);
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                all_there.wait();
                for round in 1..=20 {
                    let (place, writes) = (AtomicU64::new(0), round % 5);
                    match watch(std::ptr::from_ref(&place).addr(), 8, Kind::WRITE, |_| ()) {
                        Ok(guard) => {
                            (0..writes).for_each(|value| place.store(value, Ordering::Relaxed));
                            assert_eq!(guard.stop(), writes);
                            watched.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(Error::NoSlot { slots, ours }) => {
                            assert!(ours <= slots && slots > 0, "{ours} of {slots}");
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    assert_eq!(watched.load(Ordering::Relaxed) + refused.load(Ordering::Relaxed), 32 * 20);
    assert!(watched.load(Ordering::Relaxed) > 0);
    // As many as there are, again.
    let slots = slots(TEST);
    assert!(slots > 0);
    assert_eq!(crate::watch::slots(TEST), slots);
}

/// How many watches there can be, by trying.
pub(crate) fn slots(test: &str) -> usize {
    let places = [const { AtomicU64::new(0) }; 32];
    let mut guards = Vec::new();
    for place in &places {
        match watch(std::ptr::from_ref(place).addr(), 8, Kind::WRITE, |_| ()) {
            Ok(guard) => guards.push(guard),
            Err(Error::NoSlot { .. }) => break,
            Err(error) => kymo_testing::skip(test, error),
        }
    }
    guards.len()
}

/// Checks that a watch that starts while other threads make threads reaches all that are there when
/// it has started, but for one that is being made just then and not seen to be: that is rare (none
/// in 12,000 starts, measured).
#[test]
fn threads_made_while_a_watch_starts() {
    const TEST: &str = "watch::threads_made_while_a_watch_starts";
    let _alone = alone();
    let place = Arc::new(AtomicU64::new(0));
    let end = Arc::new(AtomicBool::new(false));
    let written = Arc::new(AtomicU64::new(0));
    let makers: Vec<_> = (0..2)
        .map(|_| {
            let (place, end, written) = (Arc::clone(&place), Arc::clone(&end), Arc::clone(&written));
            std::thread::spawn(move || {
                while !end.load(Ordering::Relaxed) {
                    let (place, written) = (Arc::clone(&place), Arc::clone(&written));
                    let write = move || {
                        place.fetch_add(1, Ordering::Relaxed);
                        written.fetch_add(1, Ordering::SeqCst);
                    };
                    std::thread::spawn(write).join().expect("no panic");
                }
            })
        })
        .collect();
    let (mut starts, mut short) = (0, 0);
    for _ in 0..200 {
        let Some(guard) = try_watch(TEST, &*place, Kind::WRITE, |_| ()) else { break };
        let before = written.load(Ordering::SeqCst);
        while written.load(Ordering::SeqCst) < before + 4 {
            std::thread::yield_now();
        }
        let after = written.load(Ordering::SeqCst);
        // Those that wrote just before it started, and counted that just after, may be missing: one
        // of each maker.
        let hits = guard.stop();
        short += u64::from(hits + 2 < after - before);
        starts += 1;
    }
    end.store(true, Ordering::Relaxed);
    makers.into_iter().for_each(|maker| maker.join().expect("no panic"));
    assert!(short <= 1, "{short} of 200");
    assert!(starts == 0 || written.load(Ordering::SeqCst) >= 4 * starts);
}
