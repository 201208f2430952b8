//! Which threads run a handler now, known without thread-local storage, which a signal handler may not be the first to use.
use std::sync::atomic::{AtomicI32, Ordering};

const PLACES: usize = 4096;
/// How far from its place a thread may sit.
const REACH: usize = 32;

/// Numbers of threads, each near the place of its number; 0: empty.
static INSIDE: [AtomicI32; PLACES] = [const { AtomicI32::new(0) }; PLACES];

fn places(thread: i32) -> impl Iterator<Item = &'static AtomicI32> {
    (0..REACH).map(move |step| &INSIDE[(thread as usize).wrapping_add(step) % PLACES])
}

/// Whether this thread, whose number it is, runs a handler now.
pub(super) fn is_inside(thread: i32) -> bool {
    // Relaxed: only this thread writes its number and takes it away.
    places(thread).any(|place| place.load(Ordering::Relaxed) == thread)
}

/// A handler's stay. Without a free place nearby it is not noted: then what the handler accesses is told to it, too.
#[derive(Debug)]
pub(super) struct Inside(Option<&'static AtomicI32>);

impl Inside {
    pub(super) fn enter(thread: i32) -> Inside {
        // Relaxed: as above.
        let take = |place: &&AtomicI32| {
            place.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        Inside(places(thread).find(take))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that threads are inside from entering to leaving, also where many have the same place, and that one too many is not noted.
    #[test]
    fn threads_are_inside_while_they_stay() {
        let numbers: Vec<i32> = (0..=REACH as i32).map(|n| 7_000_001 + n * PLACES as i32).collect();
        let mut stays: Vec<Inside> = numbers.iter().map(|&number| Inside::enter(number)).collect();
        assert!(numbers[..REACH].iter().all(|&number| is_inside(number)));
        assert!(!is_inside(numbers[REACH]), "there is no place for it");
        drop(stays.swap_remove(3));
        assert!(!is_inside(numbers[3]));
        let _late = Inside::enter(numbers[REACH]);
        assert!(is_inside(numbers[REACH]));
    }
}
