//! The stub's part that writes an event into this CPU's ring, by one of two ways.
//!
//! Where threads have restartable sequences, as the agent does it (`codegen/record.rs`): whoever
//! loses the CPU in the middle begins again, so a ring has one writer at a time.
//!
//! Where they have none, all threads on a CPU write its ring at once ([`kymo_core::ring::slots`]
//! has the rule, and the same in Rust):
//!
//! ```text
//!            time and CPU by rdtscp
//!   again:   free, then next = reserved;  next - free >= size:  lost += 1, done
//!            is the slot zero?  reserved: next -> next + slot, or again;  it was not zero: again
//!            the record;  its header last
//! ```
//! All records are of one size, a power of two, so that none is cut at the end of its ring. The
//! reader fills in what it knows better: the process, the CPU, the period.
use crate::patch::clock::Clock;
use crate::patch::codegen::context::Emitted;
use crate::patch::codegen::count::Counter;
use crate::patch::codegen::record::{EventFields, now};
use crate::patch::layout::{HEAD_AT, PAGE_BYTES, RAW_AT, TAIL_AT, record_header};
use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, CodeLabel, dword_ptr, eax, ecx, qword_ptr, r8, r8d, rax, rcx, rdi, rdx, rsi,
};
use kymo_core::probe::wire::{EventId, Fetch, FetchKind, Layout};
use kymo_core::ring::slots::{FREE_AT, LOST_AT, RESERVED_AT};

/// The largest record that a stub writes, and the least.
const MOST_SLOT_BYTES: u32 = 1024;
const LEAST_SLOT_BYTES: u32 = 128;

/// Rings that stubs write to.
#[derive(Clone, Copy, Debug)]
pub struct EventRings {
    /// Where the first CPU's ring begins.
    pub first: u64,
    /// From one ring to the next, in bytes.
    pub stride_bytes: u32,
    /// CPUs.
    pub cpus: u32,
    /// The data of each, a power of two.
    pub data_bytes: u32,
    /// Of each record, as [`slot_bytes`] says.
    pub slot_bytes: u32,
    /// From the thread pointer to where the thread's number is.
    pub thread_number: i32,
    /// From the thread pointer to the thread's `struct rseq`, if threads have that.
    pub rseq: Option<i32>,
}

/// An event that a stub writes.
#[derive(Clone, Copy, Debug)]
pub struct StubEvent<'a> {
    /// Its numbers.
    pub id: EventId,
    /// Its values, of registers alone.
    pub fetches: &'a [Fetch],
    /// The function.
    pub site: u64,
    /// What counts those that had no room.
    pub lost: u64,
}

/// The size of slots for events with these values; `None`: a stub cannot tell them, or not in one
/// record.
pub fn slot_bytes<'a>(events: impl Iterator<Item = (&'a [Fetch], bool)>) -> Option<u32> {
    let mut most = LEAST_SLOT_BYTES;
    for (fetches, returns) in events {
        let is_register = |fetch: &Fetch| {
            fetch.kind == FetchKind::Number && fetch.operand.steps.is_empty() && fetch.operand.bits.is_none()
        };
        if !fetches.iter().all(is_register) {
            return None;
        }
        most = most.max(RAW_AT as u32 + Layout::of(fetches, returns).fixed_bytes);
    }
    let bytes = most.next_power_of_two();
    (bytes <= MOST_SLOT_BYTES).then_some(bytes)
}

/// The sequences that a stub's events need: made before anything else of the stub.
#[derive(Default)]
pub(super) struct Sequences {
    free: Vec<Counter>,
    used: Vec<Counter>,
}

impl Sequences {
    pub(super) fn declare(a: &mut CodeAssembler, count: usize) -> Result<Sequences, IcedError> {
        let free = (0..count).map(|_| Counter::declare(a)).collect::<Result<_, _>>()?;
        Ok(Sequences { free, used: Vec::new() })
    }

    /// All of them, in the order of their declaration.
    pub(super) fn into_counters(mut self) -> Vec<Counter> {
        // They were taken from the end.
        self.used.reverse();
        self.free.append(&mut self.used);
        self.free
    }

    /// Writes an event, where registers are kept by `predicate::open`. `returned`: the stack
    /// pointer was at the address that is returned to.
    pub(super) fn write(
        &mut self,
        a: &mut CodeAssembler,
        rings: &EventRings,
        event: &StubEvent<'_>,
        returned: bool,
    ) -> Emitted {
        let mut lost = Lost { all: a.create_label(), one: a.create_label() };
        match (rings.rseq, self.free.pop()) {
            (Some(rseq), Some(mut sequence)) => {
                in_sequence(a, rings, (rseq, &mut sequence), (event, returned), &lost)?;
                self.used.push(sequence);
            }
            _ => in_slot(a, rings, (event, returned), &lost)?,
        }
        let mut done = a.create_label();
        a.jmp(done)?;
        a.set_label(&mut lost.all)?;
        // For all probes together, where the reader finds it also when the program is gone.
        a.lock().inc(qword_ptr(rsi + LOST_AT as i32))?;
        a.set_label(&mut lost.one)?;
        a.mov(rax, event.lost)?;
        a.lock().inc(qword_ptr(rax))?;
        a.set_label(&mut done)?;
        match rings.rseq {
            Some(rseq) => Counter::forget(a, rseq),
            None => a.zero_bytes(),
        }
    }
}

/// Where it goes on without a record: with a ring in rsi, and without one.
struct Lost {
    all: CodeLabel,
    one: CodeLabel,
}

fn in_sequence(
    a: &mut CodeAssembler,
    rings: &EventRings,
    (rseq, sequence): (i32, &mut Counter),
    (event, returned): (&StubEvent<'_>, bool),
    lost: &Lost,
) -> Emitted {
    let bytes = rings.slot_bytes;
    a.mov(r8d, dword_ptr(i64::from(rings.thread_number)).fs())?;
    sequence.begin_on_cpu(a, rseq)?;
    ring_of(a, rings, lost.one)?;
    a.mov(rcx, qword_ptr(rsi + HEAD_AT))?;
    a.mov(rdx, rcx)?;
    a.sub(rdx, qword_ptr(rsi + TAIL_AT))?;
    a.add(rdx, bytes as i32)?;
    a.cmp(rdx, rings.data_bytes as i32)?;
    a.jae(lost.all)?;
    a.mov(rdi, rcx)?;
    a.and(rdi, rings.data_bytes as i32 - 1)?;
    a.lea(rdi, rsi + rdi + PAGE_BYTES as i32)?;
    now(a, Clock::TICKS)?;
    a.mov(qword_ptr(rdi + 32), rax)?;
    a.mov(rax, record_header(bytes))?;
    a.mov(qword_ptr(rdi), rax)?;
    let StubEvent { id, site, fetches, .. } = *event;
    EventFields { id, site, fetches, bytes }.write(a, returned)?;
    a.add(rcx, bytes as i32)?;
    a.mov(qword_ptr(rsi + HEAD_AT), rcx)?;
    sequence.finish(a)
}

fn in_slot(
    a: &mut CodeAssembler,
    rings: &EventRings,
    (event, returned): (&StubEvent<'_>, bool),
    lost: &Lost,
) -> Emitted {
    /// Linux puts the CPU's number into these bits of what `rdtscp` tells.
    const CPU_BITS: u32 = 0xfff;
    let mut again = a.create_label();
    a.rdtscp()?;
    a.shl(rdx, 32)?;
    a.lea(rdi, rax + rdx)?;
    a.and(ecx, CPU_BITS)?;
    a.mov(eax, ecx)?;
    ring_of(a, rings, lost.one)?;
    a.set_label(&mut again)?;
    reserve(a, rings, (again, lost.all))?;
    a.mov(r8d, dword_ptr(i64::from(rings.thread_number)).fs())?;
    a.mov(qword_ptr(rcx + 32), rdi)?;
    a.mov(rdi, rcx)?;
    let StubEvent { id, site, fetches, .. } = *event;
    EventFields { id, site, fetches, bytes: rings.slot_bytes }.write(a, returned)?;
    a.mov(rax, record_header(rings.slot_bytes))?;
    a.mov(qword_ptr(rdi), rax)
}

/// Leaves the ring of the CPU in eax in rsi. Uses rax.
fn ring_of(a: &mut CodeAssembler, rings: &EventRings, none: CodeLabel) -> Emitted {
    a.cmp(eax, rings.cpus)?;
    a.jae(none)?;
    a.imul_3(rax, rax, rings.stride_bytes as i32)?;
    a.mov(rsi, rings.first)?;
    a.add(rsi, rax)
}

/// Leaves the address of a slot that nobody else has in rcx. Uses rax, rdx and r8.
fn reserve(a: &mut CodeAssembler, rings: &EventRings, (again, full): (CodeLabel, CodeLabel)) -> Emitted {
    let slot_bytes = rings.slot_bytes as i32;
    // Free first: it is never more than what is reserved later.
    a.mov(rdx, qword_ptr(rsi + FREE_AT as i32))?;
    a.mov(rax, qword_ptr(rsi + RESERVED_AT as i32))?;
    a.mov(rcx, rax)?;
    a.sub(rcx, rdx)?;
    a.cmp(rcx, rings.data_bytes as i32)?;
    a.jae(full)?;
    a.mov(ecx, eax)?;
    a.and(ecx, (rings.data_bytes - rings.slot_bytes) as i32)?;
    a.lea(rcx, rsi + rcx + PAGE_BYTES as i32)?;
    a.mov(r8, qword_ptr(rcx))?;
    a.lea(rdx, rax + slot_bytes)?;
    a.lock().cmpxchg(qword_ptr(rsi + RESERVED_AT as i32), rdx)?;
    a.jne(again)?;
    a.test(r8, r8)?;
    a.jne(again)
}
