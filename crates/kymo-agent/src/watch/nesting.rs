//! Which threads run a handler now, or hand a signal on, known without thread-local storage, which
//! a signal handler may not be the first to use.
use std::sync::atomic::{AtomicI32, Ordering};

const PLACES: usize = 4096;
/// How far from its place a thread may sit.
const REACH: usize = 32;

/// Numbers of threads, each near the place of its number; 0: empty.
pub(super) struct Threads([AtomicI32; PLACES]);

/// Threads that run a handler.
pub(super) static INSIDE: Threads = Threads::new();
/// Threads that hand a signal on to who handled SIGTRAP before.
pub(super) static HANDING_ON: Threads = Threads::new();

impl Threads {
    const fn new() -> Threads {
        Threads([const { AtomicI32::new(0) }; PLACES])
    }

    fn places(&self, thread: i32) -> impl Iterator<Item = &AtomicI32> {
        (0..REACH).map(move |step| &self.0[(thread as usize).wrapping_add(step) % PLACES])
    }

    /// Whether this thread, whose number it is, is among them.
    pub(super) fn has(&self, thread: i32) -> bool {
        // Relaxed: only this thread writes its number and takes it away.
        self.places(thread).any(|place| place.load(Ordering::Relaxed) == thread)
    }

    /// Notes this thread until the stay ends. Without a free place nearby it is not noted: then
    /// what a handler accesses is told to it, too.
    pub(super) fn enter(&self, thread: i32) -> Stay<'_> {
        // Relaxed: as above.
        let take = |place: &&AtomicI32| {
            place.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        Stay(self.places(thread).find(take))
    }
}

#[derive(Debug)]
pub(super) struct Stay<'a>(Option<&'a AtomicI32>);

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that threads are inside from entering to leaving, also where many have the same
    /// place, and that one too many is not noted.
    #[test]
    fn threads_are_inside_while_they_stay() {
        static THREADS: Threads = Threads::new();
        let numbers: Vec<i32> = (0..=REACH as i32).map(|n| 7_000_001 + n * PLACES as i32).collect();
        let mut stays: Vec<Stay<'_>> = numbers.iter().map(|&number| THREADS.enter(number)).collect();
        assert!(numbers[..REACH].iter().all(|&number| THREADS.has(number)));
        assert!(!THREADS.has(numbers[REACH]), "there is no place for it");
        drop(stays.swap_remove(3));
        assert!(!THREADS.has(numbers[3]));
        let _late = THREADS.enter(numbers[REACH]);
        assert!(THREADS.has(numbers[REACH]));
    }
}
