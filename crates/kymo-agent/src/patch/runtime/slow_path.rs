//! The slow path: what a hit needs beyond a stub's own instructions, that is memory that arguments
//! point to, texts, callers.
//!
//! ```text
//!   stub: all registers and flags into a frame --> handle(frame, which)
//!                                                    |  this thread's reader, a section          (kymo_core::probe, kymo_core::epoch)
//!                                                    |  the registry: which --> consumers
//!                                                    v
//!                                                  SlowProbe: conditions, counters, callers, the event into the frame's buffer
//!   stub: event into this CPU's ring, all registers back <-- what is to be done
//! ```
//!
//! # What it may do
//! It runs anywhere, also in a handler of a signal, with the locks of the program held: it takes no
//! lock, allocates nothing, and calls no function of a library, not even to copy memory. It looks
//! at the program's memory by a system call, which fails where a load would end the process. What
//! it needs lies on the stack and in the thread's page (`shadow.rs`), so a signal that comes in
//! between does no harm; a probe that it runs into itself is not handled but counted as missed.
//!
//! # Lifetime
//! A consumer that was unregistered is freed when no hit is in its hands any more. A thread that
//! left a handler by force (a `longjmp` out of a signal's handler, a cancelled thread) never comes
//! back: then consumers stay.
#![allow(unsafe_code)]
use super::callers::Callers;
use super::shadow::{calls, page};
use crate::fence::Membarrier;
use crate::patch::filter::InternedAction;
use crate::patch::layout::{
    BUFFER_AT, MISSED, RAW_AT, REGISTER_COUNT, STACK_POINTER, SlowPathFrame, record_header,
};
use crate::patch::slots::Slots;
use crate::sys::{fork, raw, restriction};
use kymo_core::epoch::{Fence, Symmetric, SynchronizeError, TaskId};
use kymo_core::probe::value::{Compare, Condition, Operand, Test};
use kymo_core::probe::wire::{Fetch, FetchKind, Layout, ProbeAction};
use kymo_core::probe::{Consumer, Handle, Key, ModuleId, NoSites, ReaderHandle, Registry, Verdict};
use std::arch::asm;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Threads that can have a reader; those beyond are missed.
const READERS: usize = 8 << 10;

/// One probe that needs the handler.
#[derive(Debug)]
pub(crate) struct SlowProbe {
    action: InternedAction,
    layouts: [Layout; 2],
    counters: ProbeCounters,
    site: u64,
    /// From the thread pointer to the number of its CPU.
    cpu_at: i32,
    process: u32,
    callers: Option<Callers>,
}

/// A hit, as consumers see it.
pub(crate) struct Hit {
    frame: *mut SlowPathFrame,
    returned: bool,
    tid: u32,
    /// 0: nothing more; 1: go on; more: there is an event of so many bytes.
    verdict: u64,
}

/// The counters of a probe: slots of all CPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeCounters {
    pub(crate) slots: &'static Slots,
    pub(crate) hits: u32,
    pub(crate) returns: u32,
}

impl SlowProbe {
    pub(crate) fn new(
        action: InternedAction,
        counters: ProbeCounters,
        site: u64,
        rseq: i32,
    ) -> std::io::Result<SlowProbe> {
        let callers = if action.callers { Some(Callers::map()?) } else { None };
        let layouts = [action.layout(false), action.layout(true)];
        let process = std::process::id();
        Ok(SlowProbe { action, layouts, counters, site, cpu_at: rseq, process, callers })
    }

    pub(crate) fn callers(&self) -> Option<&Callers> {
        self.callers.as_ref()
    }

    /// Room for its longest event.
    pub(crate) fn room(action: &ProbeAction) -> u32 {
        let most = |event: bool, returns| if event { action.layout(returns).most_bytes } else { 0 };
        let most = most(action.event.is_some(), false).max(most(action.return_event.is_some(), true));
        // A word more than needed, so that the end can be cleared at once.
        (RAW_AT as u32 + most + 16).next_multiple_of(16)
    }

    fn cpu(&self) -> u64 {
        let cpu: u32;
        // SAFETY: the thread's own area for restartable sequences, of which a stub has read the
        // same word.
        unsafe {
            asm!("mov {0:e}, dword ptr fs:[{1}]", out(reg) cpu, in(reg) i64::from(self.cpu_at),
                options(nostack, readonly, preserves_flags));
        };
        u64::from(cpu)
    }

    /// Raises this CPU's counter; its new value, 0 where nothing is counted.
    fn raise(&self, slot: u32) -> u64 {
        self.counters.slots.raise(self.cpu(), slot)
    }

    fn note(&self, hit: &mut Hit) {
        let action: &ProbeAction = &self.action;
        if hit.returned {
            if holds(&action.return_condition, hit) {
                self.raise(self.counters.returns);
                hit.verdict = 1;
                if action.return_event.is_some() {
                    self.event(hit, &action.return_fetches, &self.layouts[1]);
                }
            }
            return;
        }
        if !holds(&action.entry_condition, hit) {
            return;
        }
        let number = self.raise(self.counters.hits);
        if action.every > 1 && number.checked_rem(u64::from(action.every)) != Some(0) {
            return;
        }
        hit.verdict = 1;
        if let Some(callers) = &self.callers {
            callers.count(self.cpu(), hit.stack_word(0));
        }
        if action.event.is_some() {
            self.event(hit, &action.fetches, &self.layouts[0]);
        }
    }

    /// Writes the event into the frame's buffer, but for its time and CPU.
    fn event(&self, hit: &mut Hit, fetches: &[Fetch], layout: &Layout) {
        let action: &ProbeAction = &self.action;
        let event = if hit.returned { action.return_event } else { action.event };
        let Some(event) = event else { return };
        let mut place = self.site;
        if hit.returned {
            place = hit.stack_word(-8);
            hit.put(RAW_AT as u32 + 16, place);
        }
        hit.put(8, event.id);
        hit.put(16, place);
        hit.put(24, u64::from(self.process) | u64::from(hit.tid) << 32);
        hit.put(48, 1_u64);
        hit.put(RAW_AT as u32, u32::from(event.kind));
        hit.put(RAW_AT as u32 + 4, hit.tid);
        hit.put(RAW_AT as u32 + 8, self.site);
        let mut end = layout.fixed_bytes;
        // Not by iterators of pairs, which unoptimised builds copy with the C library's help.
        let mut number = 0;
        while let (Some(fetch), Some(at)) = (fetches.get(number), layout.at.get(number)) {
            number += 1;
            match fetch.kind {
                FetchKind::Number => {
                    let value = hit.number(&fetch.operand).unwrap_or(0);
                    hit.put(RAW_AT as u32 + *at, value);
                }
                FetchKind::String { offset, most } => {
                    let bytes = hit.text(&fetch.operand, offset, most, RAW_AT as u32 + end);
                    hit.put(RAW_AT as u32 + *at, end | bytes << 16);
                    end += bytes;
                }
            }
        }
        let whole = (RAW_AT as u32 + end).next_multiple_of(8);
        // What the texts have not filled of the last word, and some of the room behind: by one
        // store, for a loop of them becomes the C library's memset, which changes vector registers
        // that nobody keeps here.
        hit.put(RAW_AT as u32 + end, 0_u64);
        hit.put(56, whole - RAW_AT as u32);
        hit.put(0, record_header(whole));
        hit.verdict = u64::from(whole);
    }
}

impl Consumer for SlowProbe {
    type Context = Hit;

    fn hit(&self, hit: &mut Hit) -> Verdict {
        self.note(hit);
        Verdict::Keep
    }
}

impl Hit {
    fn register(&self, number: u8) -> u64 {
        // SAFETY: the stub's frame, which is there until handle() returns.
        let frame = unsafe { &*self.frame };
        frame.registers[usize::from(number) % REGISTER_COUNT]
    }

    /// A word of the stack by its distance from the stack pointer, where a call has put a return
    /// address.
    fn stack_word(&self, distance: i64) -> u64 {
        let at = self.register(STACK_POINTER).wrapping_add_signed(distance) as *const u64;
        // SAFETY: a function's stack pointer at its entry, or the word that its return has read.
        unsafe { at.read_volatile() }
    }

    /// Writes into the buffer, somewhere in its room.
    fn put<T: Copy>(&mut self, at: u32, value: T) {
        let to: *mut T = self.frame.cast::<u8>().wrapping_add(BUFFER_AT as usize + at as usize).cast();
        // SAFETY: the stub has made room for the longest event behind the frame (SlowProbe::room).
        unsafe { to.write_unaligned(value) };
    }

    /// The number that an operand means; `None` where memory cannot be read.
    fn number(&self, operand: &Operand) -> Option<u64> {
        let mut value = self.register(operand.register);
        let mut left = operand.steps.len();
        for step in &operand.steps {
            left -= 1;
            let bytes = if left == 0 { u64::from(operand.bytes.min(8)) } else { 8 };
            let mut word = 0_u64;
            let from = value.wrapping_add_signed(i64::from(*step));
            // SAFETY: our own variable, of 8 bytes.
            if unsafe { read(from, (&raw mut word).cast(), bytes) } != bytes {
                return None;
            }
            // SAFETY: our own variable, which the kernel has written.
            value = unsafe { (&raw const word).read_volatile() };
        }
        let spare = 64 - 8 * u32::from(operand.bytes.clamp(1, 8));
        let high = value.wrapping_shl(spare);
        Some(if operand.signed { (high.cast_signed() >> spare).cast_unsigned() } else { high >> spare })
    }

    /// Reads the text that an operand points to into the buffer; its bytes with the zero behind it.
    fn text(&mut self, operand: &Operand, offset: i32, most: u8, at: u32) -> u32 {
        let into = self.frame.cast::<u8>().wrapping_add(BUFFER_AT as usize + at as usize);
        let from = self.number(operand).map(|from| from.wrapping_add_signed(i64::from(offset)));
        // SAFETY: the room has `most` bytes for each of its texts (SlowProbe::room).
        let got = from.map_or(0, |from| unsafe { read(from, into, u64::from(most)) } as u32);
        let mut length = 0;
        while length < got {
            // SAFETY: in the buffer, written by the kernel.
            if unsafe { into.wrapping_add(length as usize).read_volatile() } == 0 {
                break;
            }
            length += 1;
        }
        self.put(at + length, 0_u8);
        length + 1
    }
}

/// Copies memory of this process that may not be there; how many bytes came, from the first on.
///
/// # Safety
/// `into` has room for so many bytes.
unsafe fn read(from: u64, into: *mut u8, bytes: u64) -> u64 {
    const PAGE: u64 = 4096;
    if restriction::is_on() {
        return 0;
    }
    let local = [into as u64, bytes];
    // In parts that are there or not.
    let first = bytes.min(PAGE - from % PAGE);
    let remote = [[from, first], [from.wrapping_add(first), bytes - first]];
    let parts = 1 + u64::from(bytes > first);
    let (local, remote) = (local.as_ptr() as u64, remote.as_ptr() as u64);
    let arguments = [page::process_id(), local, 1, remote, parts, 0];
    // SAFETY: the kernel writes what the caller says may be written.
    let got = unsafe { raw::call(libc::SYS_process_vm_readv, arguments) };
    u64::try_from(got).unwrap_or(0).min(bytes)
}

fn holds(condition: &Condition, hit: &Hit) -> bool {
    condition.is_empty() || condition.iter().any(|tests| tests.iter().all(|test| passes(test, hit)))
}

fn passes(test: &Test, hit: &Hit) -> bool {
    let Some(value) = hit.number(&test.operand) else { return false };
    let order = if test.operand.signed {
        value.cast_signed().cmp(&test.value.cast_signed())
    } else {
        value.cmp(&test.value)
    };
    match test.compare {
        Compare::Equal => order.is_eq(),
        Compare::NotEqual => order.is_ne(),
        Compare::Less => order.is_lt(),
        Compare::LessEqual => order.is_le(),
        Compare::Greater => order.is_gt(),
        Compare::GreaterEqual => order.is_ge(),
    }
}

/// The barrier of whatever kind there is, with a wait that sleeps.
#[derive(Debug)]
struct ProcessFence(Option<Membarrier>);

impl Fence for ProcessFence {
    #[inline]
    fn light(&self) {
        match &self.0 {
            Some(fence) => fence.light(),
            None => Symmetric.light(),
        }
    }

    fn heavy(&self) {
        match &self.0 {
            Some(fence) => fence.heavy(),
            None => Symmetric.heavy(),
        }
    }

    fn pause(&self, turn: u32) {
        const SPINS: u32 = 100;
        if turn < SPINS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

type Probes = Registry<SlowProbe, NoSites, ProcessFence>;
type ThreadHandle = ReaderHandle<'static, SlowProbe, NoSites, ProcessFence>;

static REGISTRY: OnceLock<Probes> = OnceLock::new();
/// How long a grace period is waited for. A thread that has left a handler by force never ends its
/// section.
const GRACE_TIMEOUT: Duration = Duration::from_secs(2);
/// A grace period did not end: none is waited for any more.
static READER_STUCK: AtomicBool = AtomicBool::new(false);

fn registry() -> &'static Probes {
    REGISTRY.get_or_init(|| {
        let registry = Registry::new(ProcessFence(Membarrier::register()), NoSites);
        registry.reserve(READERS);
        // From here on a hit asks without making anything.
        _ = fork::is_child();
        registry
    })
}

/// What a stub asks by: a probe's entry, or its return.
fn key(number: u64, returned: bool) -> Key {
    Key { module: ModuleId(0), offset: number << 1 | u64::from(returned) }
}

/// Makes hits of the stubs with this number come to `watch`. To be called before the first of them,
/// and not by threads that are hit.
pub(crate) fn register(number: u64, watch: &Arc<SlowProbe>) -> Vec<Handle> {
    let both = [false, true].map(|returned| (key(number, returned).into(), Arc::clone(watch)));
    // Nothing is armed by this, so nothing is refused.
    registry().register_all(both).into_iter().flatten().collect()
}

/// Ends that for all of these together. When it returns, no hit uses one of them, unless a thread
/// left a handler by force: then they stay.
pub(crate) fn unregister(handles: &[Handle], tid: u32) {
    if handles.is_empty() {
        return;
    }
    registry().unregister(handles);
    // Relaxed: a thread that does not see it yet waits once more than it must.
    if READER_STUCK.load(Ordering::Relaxed) {
        return;
    }
    let deadline = Instant::now() + GRACE_TIMEOUT;
    let wait = || registry().try_synchronize(TaskId(u64::from(tid)), || Instant::now() >= deadline);
    // A fence that the kernel refuses by now (a program may forbid itself system calls) panics.
    // Nothing is said: stderr is the program's.
    match catch_unwind(AssertUnwindSafe(wait)) {
        Ok(Ok(()) | Err(SynchronizeError::InSection(_))) => {}
        Ok(Err(SynchronizeError::TimedOut)) | Err(_) => READER_STUCK.store(true, Ordering::Relaxed),
    }
}

/// This thread's part of its page: whether it is handling, and its reader.
#[repr(C)]
struct ThreadState {
    /// The frame of the hit that is handled.
    busy: u64,
    joined: u64,
    reader: MaybeUninit<ThreadHandle>,
}

const _: () = assert!(size_of::<ThreadState>() as u64 <= page::SLOW_PATH_BYTES);

/// Called by stubs with their frame and what they ask by.
///
/// # Safety
/// `frame` is a stub's, filled, with the room behind it that the probe needs.
pub(crate) unsafe extern "C" fn handle(frame: *mut SlowPathFrame, which: u64) -> u64 {
    let Some(registry) = REGISTRY.get() else { return 0 };
    let key = Key { module: ModuleId(0), offset: which };
    let (tid, own) = calls::own();
    let own: *mut ThreadState = own.cast();
    if own.is_null() {
        return MISSED;
    }
    // SAFETY: this thread's page, which stays, made of zeros; signals' handlers of this thread see
    // it between two steps only.
    let own = unsafe { &mut *own };
    let at = frame as u64;
    /// More than handling takes of a stack.
    const OWN_STACK_BYTES: u64 = 4096;
    if own.busy > at && own.busy - at < OWN_STACK_BYTES {
        // A probe in what handling does.
        return MISSED;
    }
    if own.joined == 0 {
        let Some(reader) = registry.try_join(TaskId(u64::from(tid))) else {
            return MISSED;
        };
        own.reader.write(reader);
        own.joined = 1;
    }
    // SAFETY: written when `joined` became 1.
    let reader = unsafe { own.reader.assume_init_ref() };
    let before = own.busy;
    own.busy = at;
    let mut hit = Hit { frame, returned: which & 1 == 1, tid, verdict: 0 };
    let found = reader.enter().hit(key, &mut hit);
    own.busy = if before > at { 0 } else { before };
    // A hit that began before the probe went is nobody's.
    if found { hit.verdict } else { 0 }
}
