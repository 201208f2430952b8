//! Reaps seized threads that end while other threads are still being seized.
//!
//! A program that executes another one lets nobody seize a thread, and waits until all others of it
//! are gone; those that are seized are not as long as nobody has taken note, and who is to take
//! note waits in the call that seizes. So another thread of ours does, as soon as seizing takes
//! long.
use crate::sys::ptrace::note_end;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long seizing takes at most when nobody stands in the way, and how often it is looked from
/// then on whether somebody does.
const UNHINDERED: Duration = Duration::from_millis(20);

/// Who takes the notes.
pub(super) struct Reaper(Arc<Watched>);

#[derive(Default)]
struct Watched {
    seizing: Mutex<Seizing>,
    over: Condvar,
}

#[derive(Default)]
struct Seizing {
    seized: Vec<i32>,
    /// Somebody is being seized now.
    goes_on: bool,
    over: bool,
}

impl Reaper {
    /// Begins; until it is dropped.
    pub(super) fn watch(pid: i32) -> Reaper {
        let watched = Arc::<Watched>::default();
        let inside = Arc::clone(&watched);
        // Without it there is no more to be lost than time.
        _ = std::thread::Builder::new().name("ends".into()).spawn(move || inside.take_notes(pid));
        Reaper(watched)
    }

    /// Whether somebody is being seized from now on.
    pub(super) fn are_needed(&self, needed: bool) {
        self.0.seizing().goes_on = needed;
    }

    /// One more is seized.
    pub(super) fn also(&self, tid: i32) {
        self.0.seizing().seized.push(tid);
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.0.seizing().over = true;
        self.0.over.notify_all();
    }
}

impl Watched {
    fn seizing(&self) -> MutexGuard<'_, Seizing> {
        self.seizing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_notes(&self, pid: i32) {
        let mut seizing = self.seizing();
        while !seizing.over {
            let waited = self.over.wait_timeout(seizing, UNHINDERED);
            seizing = waited.unwrap_or_else(PoisonError::into_inner).0;
            if seizing.goes_on && !seizing.over {
                // Of the first thread's end, which is the process's, nobody waits for our notes,
                // and its parent may be us.
                seizing.seized.retain(|tid| *tid == pid || !note_end(*tid));
            }
        }
    }
}
