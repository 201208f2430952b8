//! Work in another thread, or in the calling one where the system permits no more threads.
use std::thread::{Builder, JoinHandle};

/// Work that was begun, or is done.
pub(crate) enum BackgroundTask<T> {
    /// Another thread does it.
    Running(JoinHandle<T>),
    /// There was no other thread.
    Done(T),
}

impl<T: Send + Default + 'static> BackgroundTask<T> {
    /// Begins the work in a thread of its own, or does it here where no thread can be made
    /// (`ulimit -u`, `pids.max`).
    pub(crate) fn begin(work: impl FnOnce() -> T + Clone + Send + 'static) -> BackgroundTask<T> {
        match Builder::new().spawn(work.clone()) {
            Ok(thread) => BackgroundTask::Running(thread),
            Err(error) => {
                tracing::debug!(%error, "no thread for work that can be done here");
                BackgroundTask::Done(work())
            }
        }
    }

    /// What came of it; nothing if it panicked.
    pub(crate) fn join(self) -> T {
        match self {
            BackgroundTask::Running(thread) => thread.join().unwrap_or_default(),
            BackgroundTask::Done(done) => done,
        }
    }
}
