//! What a thread does at a moment, and how that is told from the stack at which it waits.
use crate::futex_kind::{LockKind, WaitEnd, has_own_lock, kind_of_wait};
use serde::Serialize;

/// What a thread does, or waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It has a CPU.
    Running,
    /// It waits for a CPU.
    Runnable,
    /// Its cgroup has used up its quota (`cpu.max`).
    Throttled,
    /// It waits for a lock: a futex, or a lock of the kernel.
    Lock,
    /// It waits on a condition, until another thread says that there is something to do.
    Condition,
    /// It waits for a disk.
    Disk,
    /// It waits for the network.
    Network,
    /// It waits for the other end of a pipe or of a local socket.
    Pipe,
    /// It waits for one of several files.
    Poll,
    /// It sleeps for a time.
    Timer,
    /// It waits for a page of its memory.
    PageFault,
    /// It waits for io_uring.
    IoUring,
    /// It waits for another process, or thread, to end.
    Child,
    /// It is stopped, by a signal or a debugger.
    Stopped,
    /// Anything else.
    Other,
    /// Nothing tells what for: it began to wait before the recording, no stack says what its futex
    /// is, or there are context switches only.
    Unknown,
}

impl State {
    /// All of them, in the order of the tables.
    pub const ALL: [State; 16] = [
        State::Running,
        State::Runnable,
        State::Throttled,
        State::Lock,
        State::Condition,
        State::Disk,
        State::Network,
        State::Pipe,
        State::Poll,
        State::Timer,
        State::PageFault,
        State::IoUring,
        State::Child,
        State::Stopped,
        State::Other,
        State::Unknown,
    ];

    /// As tables show it.
    pub fn name(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Runnable => "runnable",
            State::Throttled => "throttled",
            State::Lock => "lock",
            State::Condition => "condition",
            State::Disk => "disk",
            State::Network => "network",
            State::Pipe => "pipe",
            State::Poll => "poll",
            State::Timer => "timer",
            State::PageFault => "page fault",
            State::IoUring => "io_uring",
            State::Child => "child",
            State::Stopped => "stopped",
            State::Other => "other",
            State::Unknown => "unknown",
        }
    }
}

/// What a thread does in a span of time, and whether nobody waits for it meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanState {
    /// What it does, or waits for.
    pub state: State,
    /// It is part of an idle wait ([`Wall::is_idle`](super::Wall::is_idle)).
    pub of_idle: bool,
}

impl SpanState {
    /// How many there are.
    pub const COUNT: usize = 2 * State::ALL.len();

    /// As columns hold it, from 1 on.
    #[inline]
    pub fn number(self) -> u8 {
        let idle = if self.of_idle { State::ALL.len() } else { 0 };
        (1 + idle + self.state as usize) as u8
    }

    /// The state of a number; `None` for 0, and for what is none.
    #[inline]
    pub fn of_number(number: u8) -> Option<SpanState> {
        let at = Some(usize::from(number.checked_sub(1)?)).filter(|at| *at < Self::COUNT)?;
        Some(SpanState { state: State::ALL[at % State::ALL.len()], of_idle: at >= State::ALL.len() })
    }

    /// The thread has nothing to do; once it is ready, it has.
    pub fn is_idle(self) -> bool {
        self.of_idle && self.state != State::Runnable
    }

    /// The same for all states that have one name.
    pub fn shown(self) -> SpanState {
        SpanState { of_idle: self.is_idle(), ..self }
    }

    /// As pictures and tables show it: `lock`, `idle: condition`.
    pub fn name(self) -> String {
        if self.is_idle() { format!("idle: {}", self.state.name()) } else { self.state.name().to_owned() }
    }
}

/// Set in a task's state where its cgroup had no quota left.
const THROTTLED: u32 = 1 << 31;

/// System calls that wait: numbers of x86-64, those of aarch64, and what for.
const CALLS: [(i64, i64, State); 25] = [
    (232, -2, State::Poll),
    (281, 22, State::Poll),
    (441, 441, State::Poll),
    (7, -2, State::Poll),
    (271, 73, State::Poll),
    (23, -2, State::Poll),
    (270, 72, State::Poll),
    (35, 101, State::Timer),
    (230, 115, State::Timer),
    (61, 260, State::Child),
    (247, 95, State::Child),
    (43, 202, State::Network),
    (288, 242, State::Network),
    (45, 207, State::Network),
    (47, 212, State::Network),
    (299, 243, State::Network),
    (426, 426, State::IoUring),
    (74, 82, State::Disk),
    (75, 83, State::Disk),
    (26, 227, State::Disk),
    // Signals and messages of System V.
    (34, -2, State::Other),
    (128, 137, State::Other),
    (130, 133, State::Other),
    (69, 189, State::Other),
    (70, 188, State::Other),
];

/// The system call `futex`.
const FUTEX: (i64, i64) = (202, 98);

/// The system call that a thread waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct WaitCall {
    /// -1 outside of any, or if it is not known.
    pub(super) number: i64,
    /// The second argument, a futex's operation.
    pub(super) operation: u32,
    /// The number is one of aarch64.
    pub(super) is_arm: bool,
    /// The wait had not ended.
    pub(super) is_unfinished: bool,
}

impl WaitCall {
    pub(super) fn is_futex(self) -> bool {
        self.number == if self.is_arm { FUTEX.1 } else { FUTEX.0 }
    }

    /// What for, where no function of the kernel tells. `user`: the functions of the program,
    /// innermost first.
    fn state<'a>(self, user: impl Iterator<Item = &'a str> + Clone) -> State {
        let here = |(x86, arm): (i64, i64)| if self.is_arm { arm } else { x86 };
        match self.number {
            _ if self.is_futex() => self.state_of_futex(user),
            0.. => {
                let is_call = |(x86, arm, _): &&(i64, i64, State)| here((*x86, *arm)) == self.number;
                CALLS.iter().find(is_call).map_or(State::Unknown, |(.., state)| *state)
            }
            _ => State::Unknown,
        }
    }

    fn state_of_futex<'a>(self, user: impl Iterator<Item = &'a str> + Clone) -> State {
        let end = if self.is_unfinished { WaitEnd::Unfinished } else { WaitEnd::Unobserved };
        match kind_of_wait(self.operation, end, user.clone()) {
            LockKind::Condition if sleeps(user) => State::Timer,
            LockKind::Lock | LockKind::Place => State::Lock,
            LockKind::Condition => State::Condition,
            LockKind::Join => State::Child,
            LockKind::Unknown => State::Unknown,
        }
    }
}

/// Functions of runtimes whose threads sleep on a condition that nobody signals.
const SLEEPS: [&str; 2] = ["JVM_Sleep", "rb_thread_wait_for"];

fn sleeps<'a>(mut user: impl Iterator<Item = &'a str>) -> bool {
    user.any(|name| SLEEPS.iter().any(|begin| name.starts_with(begin)))
}

/// What begins the names of the kernel's functions in which a thread waits, in the order in which
/// they are asked: a function further in decides before one further out. The names are those of
/// Linux 5.10 to 7.2.
const KERNEL: [(&str, State); 68] = [
    ("io_cqring_wait", State::IoUring),
    ("io_wq", State::IoUring),
    ("io_sq_thread", State::IoUring),
    ("ep_poll", State::Poll),
    ("do_epoll_", State::Poll),
    ("do_sys_poll", State::Poll),
    ("do_poll", State::Poll),
    ("do_select", State::Poll),
    ("do_pselect", State::Poll),
    ("pipe_", State::Pipe),
    ("anon_pipe_", State::Pipe),
    ("fifo_", State::Pipe),
    ("wait_for_partner", State::Pipe),
    ("unix_", State::Pipe),
    ("__unix_", State::Pipe),
    ("eventfd_", State::Pipe),
    ("signalfd_", State::Other),
    ("sk_wait_data", State::Network),
    ("sk_stream_wait", State::Network),
    ("tcp_", State::Network),
    ("udp_", State::Network),
    ("inet_", State::Network),
    ("inet6_", State::Network),
    ("__skb_wait", State::Network),
    ("__skb_recv", State::Network),
    ("netlink_", State::Network),
    ("nfs_", State::Network),
    ("rpc_wait", State::Network),
    ("do_nanosleep", State::Timer),
    ("hrtimer_nanosleep", State::Timer),
    ("msleep", State::Timer),
    ("usleep_range", State::Timer),
    ("timerfd_", State::Timer),
    ("do_wait", State::Child),
    ("kernel_wait", State::Child),
    // Until a child of vfork executes or ends.
    ("kernel_clone", State::Child),
    ("vfork", State::Child),
    ("wait_for_vfork_done", State::Child),
    ("do_signal_stop", State::Stopped),
    ("ptrace_stop", State::Stopped),
    ("do_jobctl_trap", State::Stopped),
    ("do_freezer_trap", State::Stopped),
    ("__refrigerator", State::Stopped),
    ("io_schedule", State::Disk),
    ("folio_wait", State::Disk),
    ("wait_on_page", State::Disk),
    ("__lock_page", State::Disk),
    ("__folio_lock", State::Disk),
    ("wait_on_buffer", State::Disk),
    ("__wait_on_buffer", State::Disk),
    ("submit_bio_wait", State::Disk),
    ("blk_", State::Disk),
    ("blkdev_", State::Disk),
    ("jbd2_", State::Disk),
    ("ext4_", State::Disk),
    ("xfs_", State::Disk),
    ("btrfs_", State::Disk),
    ("rwsem_", State::Lock),
    ("__mutex_lock", State::Lock),
    ("mutex_lock", State::Lock),
    ("down_", State::Lock),
    ("__down", State::Lock),
    ("rt_mutex", State::Lock),
    ("percpu_rwsem", State::Lock),
    ("n_tty_", State::Other),
    ("do_sigtimedwait", State::Other),
    ("sigsuspend", State::Other),
    ("msg_", State::Other),
];

/// The kernel's functions that wait at a futex.
const FUTEXES: [&str; 3] = ["futex_", "__futex_", "do_futex"];

/// The kernel's functions in which an event loop waits for any of its files, and a server for
/// clients.
const WAITING_PLACES: [&str; 5] = ["ep_poll", "do_epoll_", "inet_csk_accept", "unix_accept", "inet_accept"];

/// System calls that wait there: numbers of x86-64, and those of aarch64.
const WAITING_CALLS: [(i64, i64); 5] = [(232, -2), (281, 22), (441, 441), (43, 202), (288, 242)];

/// Whether a thread that has nothing to do waits so: on a condition, in an event loop, or for a
/// client. One that sleeps, or waits for an answer, a disk or another process, has something to do.
/// `kernel`: the functions of the wait's stack; `number`: its system call.
pub(super) fn may_be_idle<'a>(
    state: State,
    mut kernel: impl Iterator<Item = &'a str>,
    (is_arm, number): (bool, i64),
) -> bool {
    let is_place = |name: &str| WAITING_PLACES.iter().any(|begin| name.starts_with(begin));
    let is_call = |(x86, arm): &(i64, i64)| number == if is_arm { *arm } else { *x86 };
    match state {
        State::Condition => true,
        State::Poll | State::Network | State::Pipe => {
            kernel.any(is_place) || WAITING_CALLS.iter().any(is_call)
        }
        _ => false,
    }
}

/// The kernel's functions that handle a fault of a program's memory.
const FAULTS: [&str; 6] =
    ["exc_page_fault", "asm_exc_page_fault", "do_user_addr_fault", "do_page_fault", "do_mem_abort", "el0_da"];

/// What a wait is for. `kernel` and `user`: the names of the functions of its stack, innermost
/// first; they are asked twice.
pub(super) fn of_wait<'a>(
    task_state: u32,
    call: WaitCall,
    kernel: impl Iterator<Item = &'a str> + Clone,
    user: impl Iterator<Item = &'a str> + Clone,
) -> State {
    if task_state & THROTTLED != 0 {
        return State::Throttled;
    }
    if task_state == 0 {
        return State::Runnable;
    }
    if kernel.clone().any(|name| FAULTS.iter().any(|fault| name.starts_with(fault))) {
        return State::PageFault;
    }
    if has_own_lock(user.clone()) {
        return State::Lock;
    }
    if kernel.clone().next().is_none() {
        return call.state(user);
    }
    let is_futex = |name: &str| FUTEXES.iter().any(|begin| name.starts_with(begin));
    let known = |name: &str| KERNEL.iter().find(|(begin, _)| name.starts_with(begin)).map(|known| known.1);
    let found = kernel.clone().find_map(|name| is_futex(name).then_some(None).or(known(name).map(Some)));
    match found {
        Some(Some(state)) => state,
        Some(None) => call.state_of_futex(user),
        None => State::Other,
    }
}

/// What a thread waits for whose stack was read while it waits. `call`: its system call, that
/// call's second argument, and whether the number is one of aarch64; `has_callers`: its stack has
/// more than the innermost function.
pub(crate) fn state_of_waiting_thread<'a>(
    (number, operation, is_arm): (i64, u32, bool),
    has_callers: bool,
    kernel: impl Iterator<Item = &'a str> + Clone,
    user: impl Iterator<Item = &'a str> + Clone,
) -> State {
    /// Any but that of one that is ready.
    const WAITS: u32 = 1;
    of_wait(WAITS, WaitCall { number, operation, is_arm, is_unfinished: !has_callers }, kernel, user)
}

/// Functions of the kernel that switch, wake up or are ours: they tell nothing of what is waited
/// for.
const SWITCHES: [&str; 14] = [
    "bpf_",
    "__bpf_",
    "__traceiter_",
    "__schedule",
    "schedule",
    "preempt_schedule",
    "io_schedule",
    "try_to_wake_up",
    "wake_up_",
    "__wake_up",
    "default_wake_function",
    "autoremove_wake_function",
    "woken_wake_function",
    "ttwu_",
];

/// Whether a function of the kernel is one of those.
pub(super) fn is_switch(name: &str) -> bool {
    SWITCHES.iter().any(|begin| name.starts_with(begin))
}

/// Where the kernel handles interrupts, softirqs among them (x86-64 and aarch64).
const INTERRUPTS: [&str; 14] = [
    "asm_sysvec_",
    "sysvec_",
    "asm_common_interrupt",
    "common_interrupt",
    "__irq_exit_rcu",
    "irq_exit_rcu",
    "handle_softirqs",
    "__do_softirq",
    "do_softirq",
    "el1h_64_irq",
    "el0t_64_irq",
    "el1_interrupt",
    "gic_handle_irq",
    "handle_irq_event",
];

/// What ends a wait whose time is over.
pub(super) const A_TIMER: &str = "a timer";

/// What an interrupt was about, by functions that it called.
const CAUSES: [(&str, &str); 12] = [
    ("hrtimer_", A_TIMER),
    ("__hrtimer_", A_TIMER),
    ("process_timeout", A_TIMER),
    ("call_timer_fn", A_TIMER),
    ("posix_timer_fn", A_TIMER),
    ("net_rx_action", "the network"),
    ("napi_", "the network"),
    ("__napi_", "the network"),
    ("blk_", "a disk"),
    ("virtblk_", "a disk"),
    ("nvme_", "a disk"),
    ("scsi_", "a disk"),
];

/// What interrupts are about, as [`interrupt`] says it.
pub(crate) const INTERRUPT_CAUSES: [&str; 4] = [A_TIMER, "the network", "a disk", "an interrupt"];

/// The number of what an interrupt was about, its place in [`INTERRUPT_CAUSES`] plus one.
pub(super) fn number_of_interrupt(cause: &str) -> u32 {
    INTERRUPT_CAUSES.iter().position(|known| *known == cause).map_or(0, |at| at as u32 + 1)
}

/// What an interrupt was about in which a thread was woken; `None`: it was none, but the thread
/// that ran. `kernel`: the functions of the waker's stack.
pub(super) fn interrupt<'a>(mut kernel: impl Iterator<Item = &'a str> + Clone) -> Option<&'static str> {
    if !kernel.clone().any(|name| INTERRUPTS.iter().any(|begin| name.starts_with(begin))) {
        return None;
    }
    let of = |name: &str| CAUSES.iter().find(|(begin, _)| name.starts_with(begin)).map(|(_, cause)| *cause);
    kernel.find_map(of).or(Some("an interrupt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that each state has a number of its own, and that other numbers have none.
    #[test]
    fn numbers_of_states() {
        for at in 1..=SpanState::COUNT as u8 {
            assert_eq!(SpanState::of_number(at).map(SpanState::number), Some(at));
        }
        assert_eq!([0, 1 + SpanState::COUNT as u8, u8::MAX].map(SpanState::of_number), [None; 3]);
    }

    /// Checks that all that interrupts are about has a number.
    #[test]
    fn numbers_of_interrupts() {
        let causes =
            CAUSES.iter().map(|(_, cause)| *cause).chain(interrupt(["common_interrupt"].into_iter()));
        for cause in causes {
            let number = number_of_interrupt(cause) as usize;
            assert_eq!(INTERRUPT_CAUSES[number - 1], cause);
        }
        assert_eq!(number_of_interrupt("a ghost"), 0);
    }

    const CALL: WaitCall = WaitCall { number: -1, operation: 128, is_arm: false, is_unfinished: false };

    fn of(kernel: &[&str], user: &[&str]) -> State {
        of_wait(1, CALL, kernel.iter().copied(), user.iter().copied())
    }

    /// Checks stacks as they were recorded on Linux 6.18 and 6.1.
    #[test]
    fn stacks() {
        let futex = ["futex_wait_queue", "__futex_wait", "futex_wait", "do_futex", "__x64_sys_futex"];
        assert_eq!(of(&futex, &["__lll_lock_wait", "pthread_mutex_lock", "work"]), State::Lock);
        assert_eq!(
            of(&futex, &["__futex_abstimed_wait_common", "pthread_cond_wait", "take"]),
            State::Condition
        );
        assert_eq!(of(&futex, &["__pthread_clockjoin_ex", "main"]), State::Child);
        assert_eq!(of(&futex, &["pthread_cond_timedwait", "JavaThread::sleep", "JVM_Sleep"]), State::Timer);
        assert_eq!(of(&["do_nanosleep", "hrtimer_nanosleep"], &[]), State::Timer);
        assert_eq!(of(&["schedule_hrtimeout_range_clock", "ep_poll", "do_epoll_wait"], &[]), State::Poll);
        let read = ["io_schedule", "folio_wait_bit_common", "filemap_fault", "do_user_addr_fault"];
        assert_eq!(of(&read, &[]), State::PageFault);
        assert_eq!(of(&read[..3], &[]), State::Disk);
        assert_eq!(of(&["schedule_timeout", "unix_stream_data_wait"], &[]), State::Pipe);
        assert_eq!(of(&["wait_woken", "sk_wait_data", "tcp_recvmsg_locked"], &[]), State::Network);
        assert_eq!(of(&["do_sigtimedwait"], &[]), State::Other);
        let at = |task_state| of_wait(task_state, CALL, std::iter::empty(), std::iter::empty());
        assert_eq!([at(0), at(1 << 31)], [State::Runnable, State::Throttled]);
    }

    /// Checks that nothing is called a lock, or idle, of which no stack and no call tells what it
    /// is.
    #[test]
    fn waits_of_which_nothing_tells() {
        let futex = ["futex_wait_queue", "__futex_wait", "futex_wait", "do_futex", "__x64_sys_futex"];
        assert_eq!(of(&[], &[]), State::Unknown, "a context switch");
        assert_eq!(of(&futex, &[]), State::Unknown);
        assert_eq!(of(&futex, &["syscall", "wait_for_work"]), State::Unknown, "a futex of the program's own");
        let unfinished = WaitCall { number: 202, is_unfinished: true, ..CALL };
        let at = |call: WaitCall, name| of_wait(1, call, std::iter::empty(), std::iter::once(name));
        assert_eq!(at(unfinished, "__futex_abstimed_wait_common64"), State::Unknown);
        assert_eq!(at(unfinished, "__lll_lock_wait"), State::Lock);
        assert_eq!(at(WaitCall { number: 230, ..unfinished }, "clock_nanosleep"), State::Timer);
        assert_eq!(at(WaitCall { number: 98, is_arm: true, ..unfinished }, "0x1"), State::Unknown);
    }
}
