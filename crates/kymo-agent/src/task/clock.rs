//! The CPU time of a thread, for the price of looking at a clock that needs no system call.
//!
//! While a thread keeps its CPU, its CPU time passes as time does. So the kernel is asked for the
//! CPU time once, and after that a ruler (`CLOCK_MONOTONIC`, which user code reads by itself) tells
//! how much was added, until there was a break:
//!
//! ```text
//!   CPU time asked    now() now()  now()       CPU taken away      now(): asked again   now() ...
//!   ------|-------------|-----|------|-------------|      |-----------|---------------------|--->
//!         '--- + ruler -'                          the flag is gone   '------- + ruler -----'
//! ```
//!
//! - K1: it never goes back.
//! - K2: after each question it shows what the kernel says, or stands until the kernel's clock has
//!   come up to what it showed: errors do not add up, so the totals are the thread's CPU time.
//! - K3: it asks at least once for each [`KEPT_NS`] of ruler, because a thread that keeps its CPU
//!   still loses time to interrupts, and a virtual CPU to its hypervisor, which takes it away
//!   unseen.
//! - K4: where breaks cannot be seen, it also asks when [`BLIND_NS`] have passed since it was
//!   looked at: no single break that is missed is longer.
use std::cell::Cell;

/// How long an answer is continued by the ruler.
pub(super) const KEPT_NS: u64 = 1_000_000;
/// The same since the last look, where breaks cannot be seen.
pub(super) const BLIND_NS: u64 = 10_000;
/// How often a question that was itself broken is asked again.
const TRIES: usize = 4;

/// What a [`ThreadClock`] looks at, all of the calling thread.
pub(super) trait Clocks {
    /// Time, cheaply.
    fn ruler_ns(&self) -> u64;
    /// CPU time, dearly.
    fn cpu_ns(&self) -> u64;
    /// Begins to watch for a break.
    fn mark(&self);
    /// Whether there was none since; `None` if that cannot be seen.
    fn undisturbed(&self) -> Option<bool>;
}

#[derive(Clone, Copy, Debug)]
pub(super) struct System;

impl Clocks for System {
    fn ruler_ns(&self) -> u64 {
        crate::sys::clock::monotonic_ns()
    }

    fn cpu_ns(&self) -> u64 {
        crate::sys::clock::own_cpu_ns()
    }

    fn mark(&self) {
        crate::sys::rseq::mark();
    }

    fn undisturbed(&self) -> Option<bool> {
        crate::sys::rseq::undisturbed()
    }
}

#[derive(Debug)]
pub(super) struct ThreadClock {
    answer_ns: Cell<u64>,
    asked_at_ns: Cell<u64>,
    looked_at_ns: Cell<u64>,
    shown_ns: Cell<u64>,
}

impl ThreadClock {
    /// Has to ask first.
    pub(super) const fn new() -> ThreadClock {
        ThreadClock {
            answer_ns: Cell::new(0),
            asked_at_ns: Cell::new(0),
            looked_at_ns: Cell::new(0),
            shown_ns: Cell::new(0),
        }
    }

    /// Nanoseconds of CPU time of this thread.
    pub(super) fn now_ns(&self, clocks: &impl Clocks) -> u64 {
        // The ruler before the flag: if the CPU is taken away between them, the flag tells.
        let ruler = clocks.ruler_ns();
        let since = |then: &Cell<u64>| ruler.checked_sub(then.get()).unwrap_or(u64::MAX);
        let elapsed = since(&self.asked_at_ns);
        let trusted =
            elapsed < KEPT_NS && clocks.undisturbed().unwrap_or_else(|| since(&self.looked_at_ns) < BLIND_NS);
        let now = if trusted {
            self.looked_at_ns.set(ruler);
            self.answer_ns.get() + elapsed
        } else {
            self.ask(clocks)
        };
        let now = now.max(self.shown_ns.get());
        self.shown_ns.set(now);
        now
    }

    #[cold]
    fn ask(&self, clocks: &impl Clocks) -> u64 {
        for _ in 0..TRIES {
            clocks.mark();
            let before = clocks.ruler_ns();
            self.answer_ns.set(clocks.cpu_ns());
            let after = clocks.ruler_ns();
            self.asked_at_ns.set(after);
            self.looked_at_ns.set(after);
            if clocks.undisturbed().unwrap_or_else(|| after.saturating_sub(before) < BLIND_NS) {
                break;
            }
        }
        self.answer_ns.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A thread that is told when it runs and when it does not.
    #[derive(Debug, Default)]
    struct Thread {
        ruler: Cell<u64>,
        cpu: Cell<u64>,
        mark: Cell<bool>,
        blind: bool,
        asked: Cell<usize>,
    }

    impl Thread {
        fn works(&self, ns: u64) {
            self.ruler.set(self.ruler.get() + ns);
            self.cpu.set(self.cpu.get() + ns);
        }

        fn loses_its_cpu(&self, ns: u64) {
            self.ruler.set(self.ruler.get() + ns);
            self.mark.set(false);
        }
    }

    impl Clocks for Thread {
        fn ruler_ns(&self) -> u64 {
            self.ruler.get()
        }

        fn cpu_ns(&self) -> u64 {
            self.asked.set(self.asked.get() + 1);
            self.cpu.get()
        }

        fn mark(&self) {
            self.mark.set(true);
        }

        fn undisturbed(&self) -> Option<bool> {
            (!self.blind).then_some(self.mark.get())
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Works(u64),
        LosesItsCpu(u64),
        IsInterrupted(u64),
        Looks,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let ns = || prop_oneof![1..20u64, 1..20_000u64, 1..3_000_000u64];
        let step = prop_oneof![
            4 => ns().prop_map(Step::Works),
            1 => ns().prop_map(Step::LosesItsCpu),
            1 => (1..500u64).prop_map(Step::IsInterrupted),
            6 => Just(Step::Looks),
        ];
        proptest::collection::vec(step, 1..300)
    }

    proptest! {
        /// Checks against the kernel's clock, over random work and breaks: with visible breaks it
        /// is exact but for interrupts since the last question; without, it is ahead by less than
        /// the breaks that it can miss, never goes back, and catches up.
        #[test]
        fn it_follows_the_kernels_clock(steps in steps(), blind: bool) {
            let thread = Thread { blind, ..Thread::default() };
            let clock = ThreadClock::new();
            clock.now_ns(&thread);
            let (mut shown, mut interrupted, mut missed) = (0, 0, 0);
            for step in steps {
                match step {
                    Step::Works(ns) => thread.works(ns),
                    Step::LosesItsCpu(ns) => {
                        thread.loses_its_cpu(ns);
                        missed += if blind { ns.min(BLIND_NS) } else { 0 };
                    }
                    // The CPU does something else, but the thread keeps it.
                    Step::IsInterrupted(ns) => {
                        thread.ruler.set(thread.ruler.get() + ns);
                        interrupted += ns;
                    }
                    Step::Looks => {
                        let asked = thread.asked.get();
                        let now = clock.now_ns(&thread);
                        prop_assert!(now >= shown, "K1: {now} after {shown}");
                        prop_assert!(now >= thread.cpu.get(), "behind: {now}, the kernel {}", thread.cpu.get());
                        let ahead = now - thread.cpu.get();
                        prop_assert!(ahead <= interrupted + missed, "{ahead} ahead, {interrupted} and {missed} explain");
                        prop_assert!(ahead <= KEPT_NS + BLIND_NS, "K2: errors added up to {ahead}");
                        if thread.asked.get() == asked {
                            prop_assert!(clock.answer_ns.get() + KEPT_NS > now.min(shown), "K3");
                        }
                        shown = now;
                    }
                }
            }
            thread.works(4 * (KEPT_NS + BLIND_NS));
            prop_assert_eq!(clock.now_ns(&thread), thread.cpu.get(), "K2: it comes together again");
        }
    }

    /// Checks that a thread that keeps its CPU asks the kernel once in a while only.
    #[test]
    fn an_undisturbed_thread_seldom_asks() {
        let thread = Thread::default();
        let clock = ThreadClock::new();
        for _ in 0..10_000 {
            thread.works(500);
            clock.now_ns(&thread);
        }
        assert!((2..=6).contains(&thread.asked.get()), "{} questions in 5 ms", thread.asked.get());
    }

    /// Checks that a break within the question itself is noticed, too.
    #[test]
    fn a_broken_question_is_asked_again() {
        struct Unlucky(Thread, Cell<usize>);
        impl Clocks for Unlucky {
            fn ruler_ns(&self) -> u64 {
                self.0.ruler_ns()
            }
            fn cpu_ns(&self) -> u64 {
                let cpu = self.0.cpu_ns();
                if self.1.get() > 0 {
                    self.1.set(self.1.get() - 1);
                    self.0.loses_its_cpu(1_000_000);
                }
                cpu
            }
            fn mark(&self) {
                self.0.mark();
            }
            fn undisturbed(&self) -> Option<bool> {
                self.0.undisturbed()
            }
        }
        for breaks in 0..10 {
            let thread = Unlucky(Thread::default(), Cell::new(breaks));
            thread.0.works(123);
            let clock = ThreadClock::new();
            clock.now_ns(&thread);
            thread.0.works(77);
            assert_eq!(clock.now_ns(&thread), 200, "{breaks} breaks");
        }
    }

    /// Checks the real clocks: the time that a thread works is counted, the time that it sleeps is
    /// not, and the sum is the kernel's.
    #[test]
    fn the_real_clock_counts_work_and_not_sleep() {
        let clock = ThreadClock::new();
        for _ in 0..50 {
            let before = System.cpu_ns();
            let shown = clock.now_ns(&System);
            let after = System.cpu_ns();
            assert!(shown + 20_000 >= before, "{before} <= {shown}");
            assert!(shown <= after + KEPT_NS, "{shown} <= {after}");
            crate::sys::clock::nap();
            std::hint::black_box((0..20_000u64).map(std::hint::black_box).sum::<u64>());
        }
    }
}
