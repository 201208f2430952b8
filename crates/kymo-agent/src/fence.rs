//! The cheap reader's barrier for grace periods (`kymo_core::epoch`): an order for the compiler,
//! while the writer has the kernel order all threads of the process.
#![allow(unsafe_code)]
use kymo_core::epoch::Fence;
use std::sync::atomic::{Ordering, compiler_fence};

const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: two numbers; it touches no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// For a [`Domain`](kymo_core::epoch::Domain) or [`Registry`](kymo_core::probe::Registry) whose
/// readers are threads of this process. A reader's half is free, a writer's costs about a
/// microsecond.
#[derive(Debug, Clone, Copy)]
pub struct Membarrier(());

impl Membarrier {
    /// Tells the kernel that this process will ask. `None` where the kernel cannot (before Linux
    /// 4.14) or may not: then [`Symmetric`](kymo_core::epoch::Symmetric) is right. In a forked
    /// child it stays registered.
    pub fn register() -> Option<Membarrier> {
        (membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED)).then_some(Membarrier(()))
    }
}

impl Fence for Membarrier {
    #[inline]
    fn light(&self) {
        // SeqCst: pairs with `heavy`, which makes every running thread execute a fence of the
        // processor; one that does not run has executed one when it was switched out.
        compiler_fence(Ordering::SeqCst);
    }

    fn heavy(&self) {
        // Registered, so it cannot fail; a memory that was freed too early must not be the way in
        // which a future kernel's refusal shows.
        assert!(membarrier(PRIVATE_EXPEDITED), "the kernel no longer orders threads");
    }
}

#[cfg(test)]
mod tests {
    use super::Membarrier;
    use kymo_core::epoch::{Domain, TaskId};
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    /// Checks with threads that readers whose half is free are waited for: none has in its hands
    /// what was freed after a grace period. (A barrier that is missing shows here by luck only:
    /// processors seldom delay a store for so long. What it rests on is the kernel's promise.)
    #[test]
    fn readers_are_seen() {
        const ROUNDS: u64 = 2_000;
        let Some(fence) = Membarrier::register() else {
            return kymo_testing::skip("fence::readers_are_seen", "no membarrier here");
        };
        let domain = Domain::new(fence);
        let (current, freed, running) = (AtomicU64::new(1), AtomicU64::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for task in 0..2 {
                let (domain, current, freed, running) = (&domain, &current, &freed, &running);
                scope.spawn(move || {
                    let reader = domain.join(TaskId(task));
                    running.fetch_add(1, Ordering::SeqCst);
                    loop {
                        let section = reader.enter();
                        let mine = current.load(Ordering::Relaxed);
                        std::hint::spin_loop();
                        assert!(freed.load(Ordering::Acquire) < mine, "it was freed in my hands");
                        drop(section);
                        if mine > ROUNDS {
                            break;
                        }
                    }
                });
            }
            while running.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            for round in 1..=ROUNDS {
                current.store(round + 1, Ordering::Relaxed);
                domain.synchronize(TaskId(9)).expect("this thread reads nothing");
                freed.store(round, Ordering::Release);
            }
        });
    }
}
