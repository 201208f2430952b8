//! Unwinds the stack of a stopped thread, to decide whether its process can be entered there.
use crate::process_modules::modules_of_processes;
use kymo_perf::inject::{Registers, Unwind, UnwoundStack};
use kymo_perf::proc::Mappings;
use kymo_symbols::unwind::{
    AddressSpace, Convention, MappedFile, Seen, Stop, UnwindModules, Unwinder, UserRegs,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// More than threads have that are not in an endless recursion.
const MOST_FRAMES: usize = 4096;

/// Walks stacks of one process. It reads files only while it is prepared: later the process's
/// threads stand still, and one of them may serve the file system that a file is in.
pub struct Callers {
    modules: UnwindModules,
    /// No more files are opened.
    closed: Arc<AtomicBool>,
    space: AddressSpace,
    unwinder: Unwinder,
}

impl std::fmt::Debug for Callers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Callers").field("modules", &self.modules).finish_non_exhaustive()
    }
}

impl Default for Callers {
    fn default() -> Self {
        let closed = Arc::<AtomicBool>::default();
        let is_closed = Arc::clone(&closed);
        // Relaxed: one thread prepares and walks.
        let modules = modules_of_processes(move || is_closed.load(Ordering::Relaxed));
        Callers { modules, closed, space: AddressSpace::new(), unwinder: Unwinder::new(Convention::Return) }
    }
}

/// The code of a process, by the text of its list of mappings; its files are opened and read now.
pub(crate) fn space_of(modules: &UnwindModules, pid: i32, maps: &[u8]) -> AddressSpace {
    let mut space = AddressSpace::new();
    for mapping in Mappings::new(maps).filter(|mapping| mapping.prot & 4 != 0) {
        let file = MappedFile {
            path: mapping.path.strip_suffix(b" (deleted)").unwrap_or(mapping.path),
            build_id: &[],
            file_id: (mapping.major, mapping.minor, mapping.inode),
            seen: Some(Seen { pid, start: mapping.start, end: mapping.end }),
        };
        let module = modules.module_of(&file);
        if let Some(module) = &module {
            module.read_now();
        }
        space.map(mapping.start, mapping.end, mapping.offset, module);
    }
    space
}

impl Unwind for Callers {
    fn prepare(&mut self, pid: i32, maps: &[u8]) {
        self.closed.store(false, Ordering::Relaxed);
        self.space = space_of(&self.modules, pid, maps);
        self.closed.store(true, Ordering::Relaxed);
    }

    fn walk(&mut self, registers: &Registers, stack: &[u8]) -> UnwoundStack {
        let r = registers;
        let by_dwarf = [
            r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
            r.r14, r.r15,
        ];
        let mut regs = UserRegs::new(r.rip, r.rsp, r.rbp);
        by_dwarf.iter().enumerate().for_each(|(number, value)| regs.set(number, Some(*value)));
        let guessed = self.unwinder.stats().guessed_frames;
        let mut addresses = Vec::new();
        let stop = self.unwinder.unwind(&self.space, &regs, stack, MOST_FRAMES, &mut addresses);
        // A frame pointer is believed where samples are counted, but not where a lock may be held.
        let guessed = self.unwinder.stats().guessed_frames != guessed;
        let last = addresses.last().and_then(|last| self.space.find(last.wrapping_sub(1)));
        let in_file = last.is_some_and(|mapping| mapping.module.is_some());
        if guessed {
            addresses.truncate(1);
        }
        UnwoundStack { addresses, complete: stop == Stop::Root && !guessed && in_file }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kymo_perf::sys::ptrace::{PtraceStop, Traced};
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    /// Checks on a program of Debian that waits in `read`: its stack is walked to the function that
    /// it has begun in, and none of its files is opened again when it stands still.
    #[test]
    fn a_waiting_program() {
        const TEST: &str = "callers::a_waiting_program";
        if !cfg!(target_arch = "x86_64") {
            return kymo_testing::skip(TEST, "stacks are walked on x86-64 only");
        }
        let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = cat.id() as i32;
        while !std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap().starts_with("0 ") {
            std::thread::yield_now();
        }
        let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap();
        let mut callers = Callers::default();
        callers.prepare(pid, &maps);
        // One's own child may be traced everywhere.
        let mut traced = Traced::seize(pid).unwrap();
        traced.interrupt().unwrap();
        assert_eq!(traced.wait(Duration::from_secs(20)).unwrap(), PtraceStop::Interrupted);
        let registers = traced.registers().unwrap();
        let mut stack = vec![0; 256 << 10];
        let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
        let bytes = memory.read_at(&mut stack, registers.rsp).unwrap();
        let walk = callers.walk(&registers, &stack[..bytes]);
        drop(traced);
        assert!(walk.complete && walk.addresses.len() >= 3, "{walk:x?}");
        assert_eq!(walk.addresses[0], registers.rip);
        // Cut off, it does not reach the end.
        assert!(!callers.walk(&registers, &stack[..64]).complete);
        cat.kill().unwrap();
        cat.wait().unwrap();
    }
}
