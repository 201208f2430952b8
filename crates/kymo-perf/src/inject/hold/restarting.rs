//! Waits until threads that were let go have made the `restart_syscall` that goes on with their
//! calls.
//!
//! A filter of system calls that another thread puts on for all threads before they do would end
//! the program: a filter lists the calls that the program makes, and no program makes this one by
//! itself. On a busy machine a thread may get no CPU for a long time when it is let go.
use crate::proc;
use crate::sys::ptrace::Traced;
use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_micros(20);
/// Who looks has a high priority, and may have the CPU that they wait for.
const MOST_PAUSE: Duration = Duration::from_millis(4);

/// Threads that may not have made the call yet.
#[derive(Debug, Default)]
pub(super) struct Restarting(Vec<Thread>);

#[derive(Debug)]
struct Thread {
    tid: i32,
    /// How often it had been given a CPU when it stood; `None` if the kernel does not say.
    turns: Option<u64>,
    /// It was given one since, at the last look.
    ran: bool,
}

impl Thread {
    /// Whether it has made the call: it waits in it, or ran on for longer than the way there takes.
    fn has_restarted(&mut self) -> bool {
        if proc::state(self.tid, self.tid) != Some('R') {
            return true;
        }
        let had_ran = self.ran;
        self.ran = self.turns.is_some() && proc::turns(self.tid, self.tid) > self.turns;
        had_ran
    }
}

impl Restarting {
    /// Lets a thread go that stands before the call.
    pub(super) fn let_go(&mut self, traced: Traced) {
        let tid = traced.tid();
        let thread = Thread { tid, turns: proc::turns(tid, tid), ran: false };
        // One that is gone need not go on.
        if traced.release(0).is_ok() {
            self.0.push(thread);
        }
    }

    /// Waits until all have made the call, but no longer than `limit`.
    pub(super) fn wait(&mut self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut pause = FIRST_PAUSE;
        loop {
            self.0.retain_mut(|thread| !thread.has_restarted());
            if self.0.is_empty() || Instant::now() >= until {
                return;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(MOST_PAUSE);
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use crate::inject::hold::{HeldThreads, PatchSites};
    use crate::inject::target::TargetProcess;
    use crate::proc;
    use crate::sys::{move_thread, pin_to};
    use rustix::process::{Pid, PidfdFlags, pidfd_open, setpriority_process};
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Checks that a thread which gets a CPU late is back in the call that its stop has interrupted
    /// when it counts as let go: until then a filter of all threads would end the program.
    #[test]
    fn threads_without_a_cpu_are_back_in_their_calls() {
        let permitted = rustix::thread::sched_getaffinity(None).unwrap();
        let cpu = (0..).find(|&cpu| permitted.is_set(cpu)).unwrap() as u32;
        let over = AtomicBool::new(false);
        let mut program = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = program.id() as i32;
        let id = Pid::from_raw(pid).unwrap();
        move_thread(pid, &[cpu]).unwrap();
        setpriority_process(Some(id), 10).unwrap();
        while proc::waiting_call(pid, pid).map(|call| call.number) != Some(libc::SYS_clock_nanosleep) {
            std::thread::yield_now();
        }
        let busy = || {
            pin_to(cpu).unwrap();
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        let states: Vec<Option<i64>> = std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(busy);
            }
            let round = |_| {
                let process = pidfd_open(id, PidfdFlags::empty()).ok()?;
                let target = TargetProcess::look(pid).ok()?;
                HeldThreads::all(&target, &process, &PatchSites::default()).held.ok()?.release();
                proc::waiting_call(pid, pid).map(|call| call.number)
            };
            let states = (0..20).map(round).collect();
            over.store(true, Ordering::Relaxed);
            states
        });
        program.kill().unwrap();
        program.wait().unwrap();
        assert_eq!(states, [Some(libc::SYS_restart_syscall); 20]);
    }
}
