//! Probes inside the program: a site becomes a jump into code that was made for it.
//!
//! *You give* a function and what is to happen at its entry; *you get* a [`Probe`] that counts, at
//! the price of a few instructions, and a [`Refusal`] in words where that cannot be. `control/`
//! calls it on behalf of a tracer; programs with probes of their own, and the tests, call it
//! directly.
//!
//! | room | what it does |
//! |---|---|
//! | `install/` | looks at functions (`plan.rs`), holds or asks threads, writes sites, changes tables; in the agent's own thread |
//! | `codegen/` | emits stubs, the ways from them into this crate, and what unwinders read about them |
//! | `runtime/` | runs at a hit, a return or a trap, in threads of the program: no allocation, no lock, no library |
//! | `layout.rs` | registers, offsets and frames that emitted code and `runtime/` both know |
//!
//! `install/` uses all of them, `codegen/` and `runtime/` only the files beside them: `slots.rs`
//! (counters), `rings.rs` and `record.rs` (events), `filter.rs` (which hits), `clock.rs`,
//! `site.rs`, `mapping.rs` and `os.rs`.
//!
//! ```text
//!   function                          stub, within 2 GiB                    moved
//!   push rbp           1 byte         (keeps two registers under            push rbp
//!   mov  rbp, rsp      3 bytes   ==>   the red zone, counts,        -->     mov  rbp, rsp
//!   sub  rsp, 0x20     4 bytes         puts them back)             sub  rsp, 0x20
//!   ...                                                                     jmp  function + 8
//!
//!   before         55        48 89 e5           48 83 ec 20
//!   after          e9        xx xx xx           xx 83 ec 20
//! ```
//!
//! # How a site is written
//! Stubs and plans are made while all threads run. For the writing there are two ways, by whether a
//! tracer holds the threads (`install/hold.rs`):
//!
//! ```text
//!   a tracer holds them (or there are none)               no tracer holds them (publish.rs)
//!   1 all but this thread stand still                     1 traps   d6        d6 89 e5           d6 83 ec 20     cores look again
//!   2 who stands at +1 or +4, or was interrupted          2 leave   no thread stands at +1 or +4 (threads.rs): whoever did
//!     there by a signal, goes on in the moved copy                  is in the moved copy now
//!   3 all sites in one pass (pass.rs), cores look again   3 tail    d6        xx xx xx           xx 83 ec 20     cores look again
//!   4 all go on                                           4 head    e9        xx xx xx           xx 83 ec 20     cores look again
//! ```
//!
//! A detach goes back the same way: one pass, or a trap over the `e9`, the old tail, the old head,
//! with the cores looking between. While a trap is in place, its handler (`runtime/trap.rs`) does
//! what the jump does: no hit is lost, none waits. Only where threads are held can the C library be
//! served, and programs that block SIGILL: there is no trap then.
//!
//! When the tracer ends without a word, its sites are restored with traps, but for those of the C
//! library, and all where only a tracer can write code: they stay, count for nobody, and are taken
//! away when the next tracer holds the threads ([`abandon`], [`clean`]). When it ends in the middle
//! of a pass, the kernel lets the threads go, and the pass, which looks for that before each few
//! sites, ends: each site is then either written or as it was.
//!
//! # What runs at a hit
//! Registers and flags are the program's again before it goes on; a stub uses these meanwhile, kept
//! below the red zone:
//!
//! | consumer | registers | memory that it writes | over the bare call |
//! |---|---|---|---|
//! | [`Consumers::Count`] | rax, rcx | this CPU's word of the counter | 0.6-0.8 ns |
//! | [`Consumers::CountReturns`] | rax, rcx, rdx | the same for both, the thread's shadow stack, the return slot | 3-4 ns |
//! | [`Consumers::Latency`] | the same, flags in ah | the same, one of the histogram's words | 26 ns, most of it two `rdtsc` |
//! | [`Consumers::LatencyAtExits`] | all kept | a table of calls, this CPU's words, locked | 28 ns |
//! | [`Consumers::Record`] | rax, rcx, rdx, rsi, rdi, r8, flags in ah | this CPU's ring | 9-10 ns |
//! | [`Consumers::Filtered`] | as one of the above, after a predicate that uses those of `Record` | likewise, if the predicate holds | and some for the predicate |
//! | either, with memory, texts or callers | all, vector registers' lower halves too | its stack, the thread's page, a table of callers | `runtime/slow_path.rs`: tens of ns, and a system call for each look at memory |
//!
//! No lock, no locked instruction (but one where an event is lost, and where calls are timed at
//! their ends), no line that another CPU writes. The figures are of
//! `kymo bench probe trigger -p 1,2`
//! ([run](../../../../bench/runs/2026-11-22-probe.txt)): the same with one thread and with two, on
//! a virtual machine (AMD EPYC, Zen 4).
//!
//! # Invariants
//! - **I1** A byte is written where a thread may execute it only if it is the first byte of an
//!   instruction, before and after. Or no thread executes anything while it is written.
//! - **I2** At the address of each instruction that a patch overwrites stands a trap, or no thread
//!   comes there.
//! - **I3** A stub that was published is never changed nor freed; the same probe at the same site
//!   finds it again. So what comes and goes costs memory once for each site and set of consumers.
//! - **I4** No page is writable and executable: stubs and sites are written through
//!   `/proc/self/mem`, as a debugger would. Where the kernel does not permit that
//!   ([`OwnMemory::is_forced`]), stubs are written through a second mapping of their memory, and
//!   sites by the tracer that holds the threads.
//! - **I5** At every moment a thread that executes a site with a probe counts one hit, and changes
//!   no register and no flag.
//! - **I6** After a detach every byte is what it was.
//! - **I8** What `runtime/slow_path.rs` does at a hit takes no lock, allocates nothing, calls no
//!   library, and does not fault; no hit uses a consumer that was taken away
//!   ([`kymo_core::probe`]).
//! - **I7** A function with a look at its return returns to where it was called from, whatever
//!   happened in between (`runtime/shadow/`), but on a stack that was copied: there the process
//!   ends. Calls that are timed at their ends ([`attach_calls`]) return as without probes.
//! - **I9** While threads are held, the one that writes takes no lock and allocates nothing: a
//!   lock's holder may stand still.
//!
//! # What is refused
//! [`plan`] looks at all instructions of the function: a branch, a known branch from elsewhere
//! ([`Surroundings`]), or a jump table's entry that leads into the replaced bytes refuses the site.
//! Jumps through addresses that are computed otherwise cannot be known: for these the rule is that
//! only function entries are planned, to which compilers lead no computed jump but a call
//! ([`plan_inside`] refuses). Of CPython, SQLite, zstd, the C and the C++ library, 99.8 to 100 % of
//! the functions are served (`examples/coverage.rs`). Where nobody holds the threads, a program in
//! which one has blocked SIGILL before the first attach is refused as a whole; afterwards none can
//! (`install/got_hooks.rs`).
//!
//! # Known limits
//! - With threads held, stacks are searched for what signals have interrupted, from the stack
//!   pointer to the end of its mapping, 1 MiB at most (less where there are hundreds of threads). A
//!   handler that has left for another stack by itself (coroutines that are switched in handlers)
//!   is not found.
//! - Without: likewise (`runtime/frames.rs`), 256 KiB of a stack, 64 KiB of one that waits; a
//!   program that installs its own handler of SIGILL by a system call of its own, while a site is
//!   being written, gets our traps. One that calls `sigaction` or `signal` has its handler behind
//!   ours.
//! - Without: the C library blocks all signals by itself for moments (making threads and processes,
//!   `abort`). A thread that runs into a site of the C library at such a moment, while that site is
//!   being written, ends the process by SIGILL.
//! - A process that shares this one's memory and is neither a thread of it nor a child of its
//!   `vfork` (`clone` with CLONE_VM alone) is not held.
//! - A uprobe that the kernel puts between two sites in the microsecond in which they are written
//!   loses its trap.
//! - A uprobe that another tool puts at one of the instructions that were replaced: the kernel
//!   executes the instruction of the file, and the thread goes on inside of the jump. At most
//!   functions' begins it does no harm: the jump is behind the instruction there ([`plan`]).
//!   kymo's own uprobes look first (`kymo-perf`'s `patched.rs`); those of others do not.
//! - A child of `vfork` counts into its parent's words until it executes another program, and may
//!   lose a count there: some 4 of 100,000 calls, with another thread that does the same
//!   (`examples/stress`). A probe that records may lose events of the thread on the CPU that the
//!   parent was on.
//! - Calls that exceptions and longjmps have left go with the next call from above them, on the
//!   thread's own stack and on its signal stack. Elsewhere (a coroutine's stack, a former signal
//!   stack, one that a handler disarms) they pile up as long as nothing overwrites their return
//!   slots, and so do those beyond the 126 that are set aside (`runtime/stale_frames.rs`). With
//!   more than [`DEPTH`] the next returns are not looked at, and [`returns_missed`] says so.
//! - A signal's handler that throws, having interrupted a stub itself or one of the instructions
//!   that were moved there, finds no caller: as if nobody caught.
//! - A coroutine that was abandoned, whose stack another one gets, and that returns on a third
//!   thread, may find the entry of the first one.
//! - An exception costs some microseconds for each frame of a function whose returns are looked at;
//!   where that is on a stack some MiB from the one on which its thread made the first such call (a
//!   coroutine's), also for each thread that has made one.
//! - A handler of SIGILL that a child of `vfork` installs for itself, before it executes another
//!   program, is not called (its parent's is not changed).
//! - A child of `vfork` that stands between the first instructions of a function, when that is
//!   written without the threads being held, is not asked.
//! - Unwinders outside of the process (profilers) see the stub as the caller of a function whose
//!   return is looked at. Those inside are answered, also copies in programs
//!   (`install/unwinder_hooks.rs`).
//! - Code with shadow stacks of the processor switched on (CET) is not handled; Linux switches them
//!   on only for programs that ask for it.
mod clock;
mod codegen;
mod filter;
mod install;
mod layout;
mod mapping;
mod os;
mod record;
mod rings;
mod runtime;
mod site;
mod slots;

pub use clock::Clock;
pub(crate) use clock::know_tick;
pub use codegen::assembly::Stub;
pub use codegen::freestanding::{
    CALL_TABLE_BYTES, CallCounts, CallTable, CallerCount, CallerTable, Convention, EventRings,
    FreestandingError, FreestandingSpec, HitCounter, MOST_TIMED_SITES, RoutineAddresses, StubEvent,
    StubEvents, callers_routine, freestanding_stub, routines, slot_bytes,
};
pub use codegen::stub::RecordedExit;
pub use filter::{FilteredProbe, Measure};
pub use install::arena::places_near;
pub use install::call_plan::{CallEnds, CallPlan, CallRefusal};
pub(crate) use install::call_sites::callers_of_calls;
pub use install::call_sites::{CallConsumers, attach_calls};
pub use install::error::PatchError;
pub(crate) use install::got_hooks::{PatchOutcome as GotOutcome, each_word, exchange};
pub use install::hold::{Hold, Holder, Request};
pub(crate) use install::holds::release as release_holds;
pub use install::holds::share as share_holds;
pub use install::jump_targets::jump_targets;
pub use install::leading::EntryState;
pub use install::memory::{Memory, OwnMemory};
pub use install::pass::SiteEdit;
pub use install::patcher::{abandon, attach, attach_each, clean, detach, detach_with, leave};
pub(crate) use install::patcher::{release_counters, write_code};
pub use install::plan::{Function, Surroundings, plan, plan_begin, plan_inside};
pub use install::probe::Probe;
pub use install::refusal::Refusal;
pub(crate) use install::threads::is_another_filtered;
use kymo_core::holds::HoldRole;
use kymo_core::probe::value::reads_memory;

pub use kymo_core::probe::returns_oddly;
pub use layout::DEPTH;
pub(crate) use os::{add_to_count, register_barriers};
pub use record::Record;
pub use rings::Rings;
pub use runtime::shadow::calls::missed as returns_missed;
pub use site::Site;
pub(crate) use slots::{share as share_counters, sizes as counter_sizes};

/// Excludes the calling thread, which is the agent's: from now on nothing that it does is counted
/// or recorded.
pub(crate) fn exclude_current_thread() {
    // For good.
    _ = crate::sys::rseq::leave_for(os::possible_cpus() as u32);
}

/// Runs code of ours in a thread of the program: nothing that it does is counted or recorded.
pub(crate) fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    let left = crate::sys::rseq::leave_for(os::possible_cpus() as u32);
    let done = work();
    left.into_iter().for_each(crate::sys::rseq::LeftArea::join);
    done
}

/// What happens at a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Consumers {
    /// It is counted.
    Count,
    /// It is counted, and so is the function's return. Not for functions that [`returns_oddly`]
    /// names.
    CountReturns,
    /// It is counted, and the time from there to the function's return becomes part of a
    /// [`Latencies`](kymo_core::latency::Latencies). Not for those that [`returns_oddly`] names.
    /// The return address is replaced.
    Latency,
    /// The same with the time to where the function's calls end ([`attach_calls`]): no return
    /// address changes. Of all calls, or of some, by registers alone, and with their callers.
    LatencyAtExits(FilteredProbe),
    /// Calls of these end here, and their times are counted from this slot on ([`attach_calls`]).
    Exit(u32, FilteredProbe),
    /// It is counted, and written as an event into [`Rings`].
    Record(Record),
    /// The same, and returns are recorded where the function's calls end ([`attach_calls`]): no
    /// return address changes.
    RecordAtExits(Record),
    /// Calls end here whose returns are recorded ([`attach_calls`]).
    RecordedExit(Record, RecordedExit),
    /// One of the first three, for some hits only, or with more than that.
    Filtered(FilteredProbe),
    /// It is counted, and the lock that the function takes or gives back is timed
    /// ([`share_holds`]).
    Hold(HoldRole),
}

impl Consumers {
    /// Why nobody can do it, in words.
    pub(crate) fn beyond(self) -> Option<&'static str> {
        let reads_memory = |filtered: FilteredProbe| {
            reads_memory(&filtered.action.entry_condition) || filtered.action.needs_handler_back(false)
        };
        match self {
            Consumers::Filtered(filtered) if filtered.action.needs_handler_back(false) => {
                Some("a condition of memory at a return needs a probe that writes events")
            }
            Consumers::RecordAtExits(record) if record.action.needs_handler_back(true) => {
                Some("where calls end, code looks at no memory")
            }
            Consumers::RecordAtExits(record) if record.action.chooses() => Some(
                "where calls end, it is not known which of them a condition of their begin, or one in N, has chosen",
            ),
            Consumers::LatencyAtExits(filtered) if reads_memory(filtered) => {
                Some("where calls end, code looks at no memory")
            }
            _ => None,
        }
    }

    /// Whether it looks at returns.
    pub(crate) fn returns(self) -> bool {
        match self {
            Consumers::Count | Consumers::LatencyAtExits(_) | Consumers::Exit(..) => false,
            Consumers::RecordAtExits(_) | Consumers::RecordedExit(..) => false,
            Consumers::CountReturns | Consumers::Latency => true,
            Consumers::Record(record) => record.returns(),
            Consumers::Filtered(filtered) => filtered.measure != Measure::Count,
            Consumers::Hold(role) => role.acquires(),
        }
    }
}
