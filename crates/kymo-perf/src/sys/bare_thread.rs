//! A thread made without the standard library, as C programs make it.
//!
//! The standard library gives each thread a stack on which to report that the other one overflowed:
//! five system calls more, which a benchmark of thread creation must not pay where the program that
//! it is compared with does not.
//!
//! # Safety
//! Two C functions, with a box that is handed to the new thread, and a handle that is joined or
//! detached once.
#![allow(unsafe_code, reason = "pthread_create and pthread_join")]
use std::ffi::c_void;
use std::io;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A thread that was made without anything that the standard library adds. Detached if it is
/// dropped before it was joined.
#[derive(Debug)]
pub struct BareThread(libc::pthread_t);

impl BareThread {
    /// Starts a thread with the default stack. A panic of `body` ends the thread and is not told.
    ///
    /// # Errors
    /// EAGAIN: too many threads, or no memory for another stack.
    pub fn spawn<F: FnOnce() + Send + 'static>(body: F) -> io::Result<BareThread> {
        extern "C" fn start<F: FnOnce()>(body: *mut c_void) -> *mut c_void {
            // SAFETY: the box of spawn(), which this thread is the only one to have.
            let body = unsafe { Box::from_raw(body.cast::<F>()) };
            let _ = catch_unwind(AssertUnwindSafe(body));
            std::ptr::null_mut()
        }
        let body = Box::into_raw(Box::new(body));
        let mut thread = 0;
        // SAFETY: writes the handle, which is ours; the box goes to the thread.
        let errno = unsafe { libc::pthread_create(&mut thread, std::ptr::null(), start::<F>, body.cast()) };
        if errno != 0 {
            // SAFETY: no thread was made, so the box is still ours.
            drop(unsafe { Box::from_raw(body) });
            return Err(io::Error::from_raw_os_error(errno));
        }
        Ok(BareThread(thread))
    }

    /// Waits for its end.
    pub fn join(self) {
        let thread = ManuallyDrop::new(self);
        // SAFETY: neither joined nor detached before: both need the handle, and this is the last
        // one.
        unsafe { libc::pthread_join(thread.0, std::ptr::null_mut()) };
    }
}

impl Drop for BareThread {
    fn drop(&mut self) {
        // SAFETY: as in join().
        unsafe { libc::pthread_detach(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Checks that bodies run once, that join waits for them, and that a panic stays inside.
    #[test]
    fn bodies_run_once() {
        let ran = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = (0..8)
            .map(|number| {
                let ran = Arc::clone(&ran);
                let body = move || {
                    ran.fetch_add(1, Ordering::Relaxed);
                    if number == 3 {
                        std::panic::resume_unwind(Box::new(()));
                    }
                };
                BareThread::spawn(body).expect("a thread")
            })
            .collect();
        threads.into_iter().for_each(BareThread::join);
        assert_eq!(Arc::try_unwrap(ran).expect("nobody else has it").into_inner(), 8);
    }
}
