//! Restarts system calls that a ptrace stop interrupted, so that the program does not notice.
use crate::sys::ptrace::Registers;

/// `ERESTARTNOHAND` of the kernel, negative: make the call again when the thread goes on, unless a
/// signal's handler runs then; in that case the call has failed with EINTR.
pub(super) const REPEAT_UNLESS_HANDLED: i64 = -514;
/// `ERESTART_RESTARTBLOCK`: make `restart_syscall` instead, which waits for what is left of the
/// time.
const RESTART_BLOCK: i64 = -516;

/// Whether it was in a system call that ends with EINTR when the thread is stopped, although no
/// signal's handler has run. The kernel repeats most calls; of the others these two must not be
/// repeated: what they do goes on, or is done.
pub(super) fn was_interrupted_spuriously(registers: &Registers) -> bool {
    let in_call = registers.orig_rax as i64 >= 0 && registers.cs == 0x33;
    let never = [libc::SYS_close, libc::SYS_connect];
    in_call
        && registers.rax as i64 == -i64::from(libc::EINTR)
        && !never.contains(&(registers.orig_rax as libc::c_long))
}

/// Whether the kernel would make `restart_syscall` in the place of the call that the thread was in.
/// A filter of system calls that lists the call need not list that one, which no program makes by
/// itself: such a thread makes its own call again, and waits for all of its time.
pub(super) fn restarts_by_another_call(registers: &Registers) -> bool {
    registers.orig_rax as i64 >= 0 && registers.cs == 0x33 && registers.rax as i64 == RESTART_BLOCK
}

/// Registers with which the thread itself makes the system call again that the kernel would have
/// repeated.
///
/// `has_signals`: a handler is about to run, and a call that the kernel repeats only without one
/// fails with EINTR. A call that had waited for a part of its time waits for all of it again:
/// returning from a signal's frame makes the kernel forget what was left, and a call that ends too
/// early would be an error that no program expects.
pub(super) fn restarted(mut registers: Registers, has_signals: bool) -> Registers {
    if (registers.orig_rax as i64) < 0 {
        return registers;
    }
    match registers.rax as i64 {
        REPEAT_UNLESS_HANDLED if has_signals => registers.rax = -i64::from(libc::EINTR) as u64,
        -514..=-512 | RESTART_BLOCK => {
            registers.rax = registers.orig_rax;
            // The instruction has two bytes.
            registers.rip = registers.rip.wrapping_sub(2);
        }
        _ => {}
    }
    registers
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::sys::ptrace::no_registers;

    fn registers(call: libc::c_long, result: i64) -> Registers {
        let mut registers = no_registers();
        (registers.orig_rax, registers.rax, registers.cs) = (call as u64, result as u64, 0x33);
        registers.rip = 0x1000;
        registers
    }

    /// Checks which results of system calls are not the program's to see.
    #[test]
    fn ended_calls() {
        assert!(was_interrupted_spuriously(&registers(libc::SYS_epoll_wait, -4)));
        assert!(was_interrupted_spuriously(&registers(libc::SYS_semop, -4)));
        assert!(!was_interrupted_spuriously(&registers(libc::SYS_epoll_wait, 1)));
        assert!(!was_interrupted_spuriously(&registers(libc::SYS_close, -4)));
        assert!(!was_interrupted_spuriously(&registers(-1, -4)));
        assert!(restarts_by_another_call(&registers(libc::SYS_clock_nanosleep, -516)));
        assert!(!restarts_by_another_call(&registers(libc::SYS_read, -512)));
        assert!(!restarts_by_another_call(&registers(-1, -516)));
    }

    /// Checks that calls which the kernel repeats are repeated, those that it repeats only without
    /// a handler fail with EINTR when there is one, and others are left alone.
    #[test]
    fn repeated_calls() {
        let after = |call: libc::c_long, result: i64, has_signals: bool| {
            let registers = restarted(registers(call, result), has_signals);
            (registers.rax as i64, registers.rip)
        };
        for repeated in [-512, -513, -514, -516] {
            assert_eq!(after(libc::SYS_poll, repeated, false), (libc::SYS_poll, 0xffe));
        }
        assert_eq!(after(libc::SYS_epoll_wait, -514, true), (-4, 0x1000));
        assert_eq!(after(libc::SYS_read, -512, true), (libc::SYS_read, 0xffe));
        assert_eq!(after(libc::SYS_poll, -4, false), (-4, 0x1000));
        assert_eq!(after(-1, -512, false), (-512, 0x1000));
    }
}
