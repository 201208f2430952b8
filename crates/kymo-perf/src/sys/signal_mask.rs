//! Times in which a thread takes no signals.
//!
//! # Safety
//! `pthread_sigmask(3)` changes the calling thread's mask only, from and to sets of this module.
#![allow(unsafe_code, reason = "a mask of signals")]
use std::marker::PhantomData;

/// The calling thread takes no signals as long as this lives. A signal that comes meanwhile waits,
/// unless another thread takes it. What is forked meanwhile inherits the mask.
#[derive(Debug)]
pub struct BlockedSignals {
    before: libc::sigset_t,
    /// The mask is the thread's: it is put back where it was taken.
    stays: PhantomData<*const ()>,
}

impl BlockedSignals {
    /// Blocks all signals.
    #[expect(clippy::new_without_default, reason = "it acts on the thread")]
    pub fn new() -> BlockedSignals {
        // SAFETY: all zero bytes are an empty set of signals.
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
        // SAFETY: a set of ours.
        unsafe { libc::sigfillset(&mut all) };
        // SAFETY: sets of ours; `drop` puts the mask back.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) };
        BlockedSignals { before, stays: PhantomData }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the mask that this thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}
