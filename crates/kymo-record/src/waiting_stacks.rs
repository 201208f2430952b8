//! Whole stacks of threads that wait, read from outside while they wait: nothing stops.
//!
//! ```text
//!  /proc/TID/syscall ---> call, stack pointer, place --.
//!  states_of_tasks -----> the other registers ---------+--> walk --> the call again: the same?
//!  /proc/PID/mem -------> the stack ------------------'             no: it has waited in between
//! ```
//!
//! Behind them it is looked at which files the threads wait for, and so whether for work.
//!
//! # Invariants
//! - **T1** No page is brought into memory, and no thread of the process is stopped.
//! - **T2** A stack counts only if the thread was in the same call, at the same stack pointer, before
//!   and after it was read.
//! - **T3** It takes [`MOST_TIME`] at most, whatever the processes are: a thread of its own opens
//!   their files and reads, and nobody joins it, because a file system may keep it waiting for ever.
//!   Threads behind that have the innermost frame only.
use crate::callers::space_of;
use crate::process_modules::modules_of_processes;
use crate::python::{PythonReader, ThreadIdentity};
use crate::waited_files::WaitedFilesReader;
use kymo_perf::bpf::{TaskRegisters, TaskState, WaitedFiles, states_of_tasks};
use kymo_perf::proc::{self, ProcessMemory, WaitingCall};
use kymo_symbols::unwind::{AddressSpace, Convention, MAX_FRAMES, Stop, UnwindModules, Unwinder, UserRegs};
use std::collections::HashMap;
use std::sync::mpsc;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// So long stacks and files are read at the end of a recording.
const MOST_TIME: Duration = Duration::from_secs(3);
/// How much of a stack is read, and of one that is longer: as much as the first thread of a program
/// usually may have.
const STACK_BYTES: usize = 128 << 10;
const MOST_STACK_BYTES: usize = 8 << 20;

/// Where a thread waits.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitingStack {
    /// The call; `None`: it does not wait any more, or may not be asked.
    pub(crate) call: Option<WaitingCall>,
    /// Addresses, innermost first, those of callers within the call; the innermost one only, if no
    /// more could be read.
    pub(crate) frames: Vec<u64>,
    /// They reach the function that the thread has begun in.
    pub(crate) is_whole: bool,
    /// Return addresses in the kernel, innermost first, if the kernel tells; some callers may be
    /// missing.
    pub(crate) kernel: Vec<u64>,
    /// How long it has had no CPU, if the kernel tells.
    pub(crate) off_cpu_ns: Option<u64>,
    /// Records that name functions of Python among the frames, to be written before it.
    pub(crate) names: Vec<u8>,
    /// For whom it waits, if for files.
    pub(crate) files: WaitedFiles,
}

impl WaitingStack {
    /// Puts the frames of Python into it, if there are any. What the user should know.
    pub(crate) fn put_python(
        &mut self,
        python: &mut PythonReader,
        reader: &mut StackReader,
        (pid, tid): (i32, i32),
    ) -> Option<String> {
        let own_tid = proc::own_number(pid, tid).unwrap_or(tid);
        let identity = ThreadIdentity { pointer: reader.thread_pointer(tid), own_tid };
        let read = &mut |at: u64, bytes: &mut [u8]| reader.read(pid, at, bytes).unwrap_or(0);
        let native = self.frames.clone();
        python.put((pid, tid), identity, &mut self.frames, self.is_whole, read);
        // What was read of one that has run meanwhile may be of another moment.
        if self.call.is_some() && proc::waiting_call(pid, tid) != self.call {
            self.frames = native;
        }
        let (names, remark) = python.take_records();
        self.names = names;
        remark
    }
}

/// What was read in time.
pub(crate) struct WaitingStacks(HashMap<i32, WaitingStack>);

impl WaitingStacks {
    /// Of these processes' threads; those of one process should follow each other. `python`: reads
    /// Python's functions, if they are wanted. Waits for [`MOST_TIME`] at most.
    pub(crate) fn of(threads: Vec<(i32, i32)>, python: Option<PythonReader>) -> WaitingStacks {
        let (mut all, until) = (HashMap::<i32, WaitingStack>::new(), Instant::now() + MOST_TIME);
        let (send, receive) = mpsc::channel();
        let read = move || read_all(&threads, python, &send);
        if let Err(error) = Builder::new().name("waiting stacks".into()).spawn(read) {
            tracing::debug!(%error, "no stacks of waiting threads");
        }
        // Until it has read all, or could not begin, or takes too long.
        while let Ok(found) = receive.recv_timeout(until.saturating_duration_since(Instant::now())) {
            match found {
                ThreadFacts::Stack(tid, stack) => _ = all.insert(tid, stack),
                ThreadFacts::Files(tid, files) => all.entry(tid).or_default().files = files,
            }
        }
        WaitingStacks(all)
    }

    /// Where this thread waits.
    pub(crate) fn stack_of(&mut self, pid: i32, tid: i32) -> WaitingStack {
        self.0.remove(&tid).unwrap_or_else(|| {
            let call = proc::waiting_call(pid, tid);
            let frames = call.map(|call| call.pc).into_iter().collect();
            WaitingStack { call, frames, ..WaitingStack::default() }
        })
    }
}

/// Facts of a thread, as they are read.
enum ThreadFacts {
    Stack(i32, WaitingStack),
    Files(i32, WaitedFiles),
}

/// Reads all stacks, and then what the threads wait for, until nobody listens any more.
fn read_all(
    threads: &[(i32, i32)],
    mut python: Option<PythonReader>,
    found: &mpsc::Sender<ThreadFacts>,
) -> Option<()> {
    let (mut reader, mut calls) = (StackReader::of(threads), Vec::new());
    for &(pid, tid) in threads {
        let mut stack = reader.stack_of(pid, tid);
        if let Some(python) = &mut python {
            // An interpreter that cannot be read was named while the recording ran.
            stack.put_python(python, &mut reader, (pid, tid));
        }
        calls.extend(stack.call.map(|call| (pid, tid, call)));
        found.send(ThreadFacts::Stack(tid, stack)).ok()?;
    }
    let mut files = WaitedFilesReader::default();
    for (pid, tid, call) in calls {
        let waited = files.look(pid, call, |at, bytes| reader.read(pid, at, bytes).unwrap_or(0));
        // One that has run meanwhile waits for something else.
        if waited != WaitedFiles::Unknown && proc::waiting_call(pid, tid) == Some(call) {
            found.send(ThreadFacts::Files(tid, waited)).ok()?;
        }
    }
    Some(())
}

/// Reads the stacks of threads that wait, as long as that takes.
pub(crate) struct StackReader {
    modules: UnwindModules,
    unwinder: Unwinder,
    states: HashMap<i32, TaskState>,
    process: Option<WaitingProcess>,
    stack: Vec<u8>,
}

/// The process that was read last.
struct WaitingProcess {
    pid: i32,
    space: AddressSpace,
    memory: ProcessMemory,
}

impl StackReader {
    pub(crate) fn of(threads: &[(i32, i32)]) -> StackReader {
        let mut wanted: Vec<i32> = threads.iter().map(|(_, tid)| *tid).collect();
        wanted.sort_unstable();
        let states = if wanted.is_empty() {
            HashMap::new()
        } else {
            let found = states_of_tasks(|tid| wanted.binary_search(&tid).is_ok());
            found
                .inspect_err(|error| tracing::debug!(%error, "stacks are read without registers"))
                .unwrap_or_default()
        };
        StackReader {
            modules: modules_of_processes(|| false),
            unwinder: Unwinder::new(Convention::Lookup),
            states,
            process: None,
            stack: vec![0; STACK_BYTES],
        }
    }

    /// Of a thread of the process that was read last, if they follow each other.
    pub(crate) fn stack_of(&mut self, pid: i32, tid: i32) -> WaitingStack {
        let off_cpu_ns = self.states.get(&tid).map(|state| state.off_cpu_ns);
        let Some(call) = proc::waiting_call(pid, tid) else {
            return WaitingStack { off_cpu_ns, ..WaitingStack::default() };
        };
        let kernel = self.states.get(&tid).filter(|state| has_entered_call(&state.registers, call));
        let is_frame = |address: &u64| *address != 0;
        let kernel = kernel.map(|state| state.kernel.into_iter().take_while(is_frame).collect());
        let (frames, is_whole) = self.walk(pid, tid, call).unwrap_or_else(|| (vec![call.pc], false));
        let kernel = kernel.unwrap_or_default();
        WaitingStack { call: Some(call), frames, is_whole, kernel, off_cpu_ns, ..WaitingStack::default() }
    }

    /// The thread's own id in its C library (`pthread_self`), if the kernel tells.
    pub(crate) fn thread_pointer(&self, tid: i32) -> Option<u64> {
        self.states.get(&tid).map(|state| state.thread_pointer).filter(|&pointer| pointer != 0)
    }

    /// Reads memory of a process that is there; how much of it came.
    pub(crate) fn read(&mut self, pid: i32, address: u64, bytes: &mut [u8]) -> Option<usize> {
        self.process(pid)?.memory.read_resident(pid, address, bytes).ok()
    }

    /// The code and the memory of a process.
    fn process(&mut self, pid: i32) -> Option<&WaitingProcess> {
        if self.process.as_ref().is_none_or(|process| process.pid != pid) {
            let space = space_of(&self.modules, pid, &proc::maps(pid));
            self.process = Some(WaitingProcess { pid, space, memory: ProcessMemory::open(pid).ok()? });
        }
        self.process.as_ref()
    }

    /// The frames, and whether they are whole.
    fn walk(&mut self, pid: i32, tid: i32, call: WaitingCall) -> Option<(Vec<u64>, bool)> {
        let regs = user_regs(call, self.states.get(&tid).map(|state| &state.registers))?;
        self.process(pid)?;
        let WaitingProcess { space, memory, .. } = self.process.as_ref()?;
        let read = memory.read_resident(pid, call.sp, &mut self.stack).ok()?;
        if proc::waiting_call(pid, tid) != Some(call) {
            return None;
        }
        let mut frames = Vec::new();
        let mut stop = self.unwinder.unwind(space, &regs, &self.stack[..read], MAX_FRAMES, &mut frames);
        if stop == Stop::StackEnd && read == self.stack.len() {
            // A frame may hold more than that (`alloca`).
            let mut stack = vec![0; MOST_STACK_BYTES];
            let read = memory.read_resident(pid, call.sp, &mut stack).ok()?;
            if proc::waiting_call(pid, tid) != Some(call) {
                return None;
            }
            frames.clear();
            stop = self.unwinder.unwind(space, &regs, &stack[..read], MAX_FRAMES, &mut frames);
        }
        (!frames.is_empty()).then_some((frames, stop == Stop::Root))
    }

    /// The frames of a thread that ran, by what a sample has copied of it.
    pub(crate) fn unwind(&mut self, pid: i32, regs: &UserRegs, stack: &[u8]) -> Option<(Vec<u64>, bool)> {
        self.process(pid)?;
        let mut frames = Vec::new();
        let space = &self.process.as_ref()?.space;
        let stop = self.unwinder.unwind(space, regs, stack, MAX_FRAMES, &mut frames);
        (!frames.is_empty()).then_some((frames, stop == Stop::Root))
    }
}

/// Whether the registers are those with which a thread has entered this call.
fn has_entered_call(TaskRegisters(words): &TaskRegisters, call: WaitingCall) -> bool {
    words.contains(&call.pc) && words.contains(&call.sp)
}

/// The registers of a thread that waits, as far as they are known; `None` for a 32-bit one.
#[cfg(target_arch = "x86_64")]
fn user_regs(call: WaitingCall, all: Option<&TaskRegisters>) -> Option<UserRegs> {
    const USER_CODE: u64 = 0x33;
    let mut regs = UserRegs::new(call.pc, call.sp, 0);
    // The frame pointer is not known.
    regs.set(6, None);
    let Some(TaskRegisters(words)) = all else { return Some(regs) };
    let [r15, r14, r13, r12, bp, bx, .., ip, cs, _, sp, _] = *words;
    if cs != USER_CODE {
        return None;
    }
    if (ip, sp) == (call.pc, call.sp) {
        let kept = [(3, bx), (6, bp), (12, r12), (13, r13), (14, r14), (15, r15)];
        kept.into_iter().for_each(|(number, value)| regs.set(number, Some(value)));
    }
    Some(regs)
}

#[cfg(not(target_arch = "x86_64"))]
fn user_regs(call: WaitingCall, all: Option<&TaskRegisters>) -> Option<UserRegs> {
    use kymo_symbols::Arch;
    // x0 to x30, the stack pointer, the place.
    const MASK: u64 = (1 << 33) - 1;
    let TaskRegisters(words) = all?;
    let is_there = words[31] == call.sp && words[32] == call.pc;
    UserRegs::from_perf(Arch::NATIVE.filter(|_| is_there)?, 2, MASK, words[..33].iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// Checks that the stack of a program of Debian that waits in `read` reaches the function that
    /// it has begun in, and that it is not stopped.
    #[test]
    fn a_program_that_waits() {
        let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = cat.id() as i32;
        while proc::waiting_call(pid, pid).is_none_or(|call| call.number != libc::SYS_read) {
            std::thread::yield_now();
        }
        let found = WaitingStacks::of(vec![(pid, pid)], None).stack_of(pid, pid);
        drop(cat.stdin.take());
        cat.wait().unwrap();
        assert_eq!(found.call.map(|call| call.number), Some(libc::SYS_read));
        // read < main < __libc_start_call_main < __libc_start_main < _start
        assert!(found.frames.len() >= 4, "{:x?}", found.frames);
    }
}
