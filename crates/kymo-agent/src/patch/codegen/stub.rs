//! The code of one probe: what its site jumps to.
//!
//! ```text
//!   descriptors (32 bytes)    of the restartable sequences below
//!   enter:    rsp -= 160      over the red zone of whoever runs here; registers that are used are kept in it
//!             one of this CPU's counters += 1                                            (count.rs)
//!             rsp += 160      all registers and flags are as they were
//!   moved:    the displaced instructions                                                 (moved.rs)
//!             jmp behind them in the function
//! ```
//!
//! With a look at the return, the stub takes the return address off the stack and calls the moved
//! instructions, so the function returns here, and the processor's own stack of return addresses
//! stays right:
//!
//! ```text
//!   enter:    rsp -= 160; count
//!             entry above the top of the thread's shadow stack = (slot's address, return address)     (shadow.rs)
//!             rsp += 168
//!             call moved      the slot has the stub's address now
//!   landing:  rsp -= 56       over the slot again, which gets the entry's return address
//!             the entry leaves the shadow stack; count, or histogram
//!             rsp += 48; ret
//! ```
//!
//! Nothing here changes flags: sums are made by `lea`, decisions by `jrcxz`, and a histogram keeps
//! them in `ah` meanwhile.
use super::assembly::{self, Place, Stub};
use super::context::{CodegenContext, Emitted};
use super::count::Counter;
use super::record::{RecordContext, Recorder};
use super::slow_path::{self, SlowPath, SlowPathParts};
use super::{moved, predicate};
use crate::patch::filter::InternedAction;
use crate::patch::layout::{ENTRY_BYTES, FREE, ORIGIN_AT, ORIGIN_KEPT, TIME_AT, TIME_KEPT};
use crate::patch::record::Record;
use crate::patch::site::Site;
use iced_x86::IcedError;
use iced_x86::code_asm::{
    AsmMemoryOperand, AsmRegister64, CodeAssembler, CodeLabel, al, dword_ptr, eax, ecx, edx, ptr, qword_ptr,
    rax, rcx, rdi, rdx, rsi, rsp,
};
use kymo_core::holds::HoldRole;
use kymo_core::latency::{SLOTS as TIME_SLOTS, UNTIMED};
use kymo_core::probe::value::Operand;

/// The red zone, in which an instruction before the site may have written, and room for the three
/// registers that are kept; a multiple of 16.
const FRAME: i32 = 128 + 32;
/// What the landing keeps: three registers, what `shadow::leave` gives, flags.
const LANDING: i32 = 48;
const FLAGS_KEPT: i32 = 40;

/// What a stub does beside what the function does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StubSpec {
    /// The counter that a hit raises.
    pub(crate) hits: u32,
    pub(crate) at_return: ReturnAction,
    /// What is written at a hit, or at the return, and the counter of what had no room.
    pub(crate) record: Option<(Record, u32)>,
    /// Which hits it is for, if not for all.
    pub(crate) action: Option<InternedAction>,
    /// What of it the handler does, and what counts the hits that it did not look at.
    pub(crate) slow_path: Option<(SlowPath, u32)>,
    /// What the function does with a lock, if holds are timed.
    pub(crate) hold: Option<HoldRole>,
}

impl StubSpec {
    /// The counters that it raises, in the order of [`Probe`](crate::patch::Probe)'s.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        std::iter::once(self.hits).chain(self.lost()).chain(self.at_return.slots())
    }

    /// The counter of what was not looked at, or had no room in a ring.
    pub(crate) fn lost(&self) -> Option<u32> {
        self.record.map(|(_, lost)| lost).or(self.slow_path.map(|(_, missed)| missed))
    }

    /// The counter of calls whose return is not looked at, because too many are under way.
    fn unseen(&self) -> Option<u32> {
        match self.at_return {
            ReturnAction::Timed(first) => Some(first + UNTIMED),
            ReturnAction::Recorded(_) => self.lost(),
            _ => None,
        }
    }

    fn slow_path(&self, returned: bool) -> Option<SlowPath> {
        let (slow_path, _) = self.slow_path?;
        (if returned { slow_path.at_return } else { slow_path.at_entry }).then_some(slow_path)
    }

    fn at_entry(&self) -> Option<(Record, u32)> {
        let is_exit = matches!(self.at_return, ReturnAction::Exit(_));
        self.record.filter(|(record, _)| record.action.event.is_some() && !is_exit)
    }

    /// Whether the stub is come back to when the function returns.
    fn is_returned_to(&self) -> bool {
        use ReturnAction::{Exit, Ignored, RecordedAtExits};
        !matches!(self.at_return, Ignored | RecordedAtExits(_) | Exit(_))
    }

    /// What is written where a call ends among the displaced instructions: the counter of returns,
    /// the function's begin.
    fn at_exit(&self, site: &Site) -> Option<RecordedExit> {
        match self.at_return {
            ReturnAction::RecordedAtExits(returns) => {
                let lost = self.record.map_or(0, |(_, lost)| lost);
                Some(RecordedExit { function: site.place, returns, lost })
            }
            ReturnAction::Exit(exit) => Some(exit),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ReturnAction {
    /// Nothing: the stub does not look.
    Ignored,
    /// This counter is raised.
    Counted(u32),
    /// One of the counters from this one on, by the time since the entry ([`kymo_core::latency`]).
    Timed(u32),
    /// This counter is raised, and an event written.
    Recorded(u32),
    /// The same, before the instructions with which the function's calls end, as far as they are
    /// displaced here.
    RecordedAtExits(u32),
    /// The same, and the stub does nothing else: no call begins here.
    Exit(RecordedExit),
    /// The lock of this call is taken now, if it succeeded.
    Acquired(HoldRole),
}

impl ReturnAction {
    /// The counters that it raises.
    pub(crate) fn slots(self) -> std::ops::Range<u32> {
        match self {
            ReturnAction::Ignored | ReturnAction::Acquired(_) => 0..0,
            ReturnAction::Exit(RecordedExit { returns: slot, .. }) => slot..slot + 1,
            ReturnAction::Counted(slot)
            | ReturnAction::Recorded(slot)
            | ReturnAction::RecordedAtExits(slot) => slot..slot + 1,
            ReturnAction::Timed(slot) => slot..slot + TIME_SLOTS,
        }
    }
}

/// A place where calls of a function end whose returns are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordedExit {
    /// Where the function begins.
    pub(crate) function: u64,
    /// The counter of its returns.
    pub(crate) returns: u32,
    /// The counter of its events that had no room.
    pub(crate) lost: u32,
}

/// Generates the code for a probe at `site`, to lie at `at` (a multiple of 32). `ends`: where calls
/// of its function end, ascending, if they are looked at there.
///
/// # Errors
/// Where the displaced instructions do not reach their data from there.
pub(crate) fn generate(
    (site, ends): (&Site, &[u64]),
    spec: &StubSpec,
    context: &CodegenContext,
    at: u64,
) -> Result<Stub, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let returns = spec.is_returned_to();
    let is_exit = matches!(spec.at_return, ReturnAction::Exit(_));
    let entered = spec.at_entry();
    let mut recorder = entered.map(|_| Recorder::declare(&mut a)).transpose()?;
    let mut hits = (entered.is_none() && !is_exit).then(|| Counter::declare(&mut a)).transpose()?;
    let recorded = matches!(spec.at_return, ReturnAction::Recorded(_));
    let mut back_recorder = recorded.then(|| Recorder::declare(&mut a)).transpose()?;
    let mut back = (returns && !recorded).then(|| Counter::declare(&mut a)).transpose()?;
    let mut untimed = spec.unseen().map(|_| Counter::declare(&mut a)).transpose()?;
    let exit = spec.at_exit(site);
    let ends = if exit.is_some() { ends } else { &[] };
    let their = site.displaced.iter().filter(|instruction| ends.binary_search(&instruction.ip()).is_ok());
    let end_recorders: Vec<Recorder> = their.map(|_| Recorder::declare(&mut a)).collect::<Result<_, _>>()?;
    let count = match (entered.is_some(), recorded) {
        (true, true) => 6,
        (true, false) => 3,
        (false, true) => 4,
        (false, false) => usize::from(!is_exit) + usize::from(returns),
    };
    let count = count + usize::from(untimed.is_some()) + 3 * end_recorders.len();
    let enter = assembly::entry_of(at, count);
    let mut body = a.create_label();
    moved::raise_stack(&mut a, site)?;
    // Whether what comes now has counted the hit.
    let counted = is_exit || looked_at(&mut a, spec, context, (&mut recorder, &mut hits), (site, body))?;
    if returns || !counted {
        a.lea(rsp, rsp - FRAME)?;
        a.mov(qword_ptr(rsp), rax)?;
        a.mov(qword_ptr(rsp + 8), rcx)?;
        if returns {
            a.mov(qword_ptr(rsp + 16), rdx)?;
        }
        if !counted {
            // SANITY: as above.
            hits.as_mut().expect("a counter").raise(&mut a, context, spec.hits)?;
        }
        if let Some(lock) = spec.hold.and_then(released_by) {
            a.mov(rax, lock)?;
            a.mov(rcx, u64::from(spec.hold == Some(HoldRole::Wait)))?;
            a.call(context.calls.released)?;
        }
    }
    if returns {
        let mut landed = a.create_label();
        entry(&mut a, spec, context, (body, landed), untimed.as_mut())?;
        a.set_label(&mut landed)?;
        landing(&mut a, spec, context, back.as_mut(), back_recorder.as_mut().map(|back| (back, site.place)))?;
    } else if !counted {
        restore(&mut a, false)?;
        a.lea(rsp, rsp + FRAME)?;
    }
    a.set_label(&mut body)?;
    a.zero_bytes()?;
    moved::lower_stack(&mut a, site)?;
    let (moved, used) = displaced(&mut a, (site, ends), enter, (exit, spec.record, context), end_recorders)?;
    let of = |recorder: Option<Recorder>| recorder.map_or_else(Vec::new, Recorder::counters);
    // In the order of their declaration.
    let counters = of(recorder).into_iter().chain(hits).chain(of(back_recorder)).chain(back).chain(untimed);
    assembly::finish(a, counters.chain(used).collect(), &moved, at)
}

/// The part that looks at hits before they count, or writes events; whether there is one, which
/// counts them then. On to `body` for hits that are not to be looked at.
fn looked_at(
    a: &mut CodeAssembler,
    spec: &StubSpec,
    context: &CodegenContext,
    (recorder, hits): (&mut Option<Recorder>, &mut Option<Counter>),
    (site, body): (&Site, CodeLabel),
) -> Result<bool, IcedError> {
    let entered = spec.at_entry();
    let gated = spec.action.filter(|action| action.chooses());
    if let Some(slow_path) = spec.slow_path(false) {
        let means = match (recorder, entered, hits) {
            (Some(recorder), Some((record, lost)), _) => SlowPathParts::Record(recorder, record, lost),
            // SANITY: declared where there is no recorder; handling has a counter of what it
            // misses.
            (_, _, hits) => {
                SlowPathParts::Count(hits.as_mut().expect("a counter"), spec.lost().expect("a counter"))
            }
        };
        slow_path::write(a, (slow_path, false), context, means, body)?;
    } else if let (Some(recorder), Some((record, lost))) = (recorder, entered) {
        let task = RecordContext { record: &record, lost, site: site.place, context };
        recorder.at_entry(a, spec.hits, task, body)?;
    } else if let Some(action) = gated {
        // SANITY: declared where there is no recorder.
        let counter = hits.as_mut().expect("a counter");
        predicate::before(a, (&action.entry_condition, action.every), (counter, spec.hits), context, body)?;
    } else {
        return Ok(false);
    }
    Ok(true)
}

/// Writes the displaced instructions, an event of a return before each with which calls end, and
/// the way back. Each one's label, and the sequences of the events.
fn displaced(
    a: &mut CodeAssembler,
    (site, ends): (&Site, &[u64]),
    enter: u64,
    (exit, record, context): (Option<RecordedExit>, Option<(Record, u32)>, &CodegenContext),
    recorders: Vec<Recorder>,
) -> Result<(Vec<CodeLabel>, Vec<Counter>), IcedError> {
    let (mut recorders, mut used) = (recorders.into_iter(), Vec::new());
    let moved = assembly::displaced(a, site, enter, &mut |a, place| {
        let Place::Before(instruction) = place else { return Ok(()) };
        let is_end = ends.binary_search(&instruction.ip()).is_ok();
        let (Some(exit), Some((record, _)), true) = (exit, &record, is_end) else { return Ok(()) };
        // SANITY: one was declared for each of them.
        let mut recorder = recorders.next().expect("a recorder");
        let task = RecordContext { record, lost: exit.lost, site: exit.function, context };
        recorder.at_return(a, exit.returns, task)?;
        used.extend(recorder.counters());
        Ok(())
    })?;
    Ok((moved, used))
}

/// The register that has the lock which a function gives back.
fn released_by(role: HoldRole) -> Option<AsmRegister64> {
    match role {
        HoldRole::Acquire(_) => None,
        HoldRole::Release => Some(rdi),
        HoldRole::Wait => Some(rsi),
    }
}

/// The registers as they were at the entry; `rsp` stays.
fn restore(a: &mut CodeAssembler, all: bool) -> Emitted {
    a.mov(rax, qword_ptr(rsp))?;
    a.mov(rcx, qword_ptr(rsp + 8))?;
    if all {
        a.mov(rdx, qword_ptr(rsp + 16))?;
    }
    Ok(())
}

fn top(context: &CodegenContext) -> AsmMemoryOperand {
    qword_ptr(i64::from(context.top)).fs()
}

/// Pushes an entry to the shadow stack and calls `body`, or jumps there without a look.
fn entry(
    a: &mut CodeAssembler,
    spec: &StubSpec,
    context: &CodegenContext,
    (body, landing): (CodeLabel, CodeLabel),
    untimed: Option<&mut Counter>,
) -> Emitted {
    let (mut slow, mut fast, mut hooked, mut unhooked) =
        (a.create_label(), a.create_label(), a.create_label(), a.create_label());
    // The top's frame is alive if its slot is above ours: its key plus our slot's address plus 9 is
    // below 0.
    a.mov(rcx, top(context))?;
    a.mov(rax, qword_ptr(rcx))?;
    a.lea(rax, rsp + rax + (FRAME + 9))?;
    a.cqo()?;
    a.mov(rax, rcx)?;
    a.mov(rcx, rdx)?;
    a.jrcxz(slow)?;
    // And above it is room: a free entry.
    const { assert!(FREE == 0) };
    a.mov(rcx, qword_ptr(rax + ENTRY_BYTES))?;
    a.jrcxz(fast)?;
    // Between the two, where these short branches reach.
    a.set_label(&mut slow)?;
    a.lea(rax, rsp + FRAME)?;
    a.call(context.calls.enter)?;
    a.jrcxz(unhooked)?;
    a.jmp(hooked)?;
    a.set_label(&mut unhooked)?;
    if let (Some(counter), Some(slot)) = (untimed, spec.unseen()) {
        // A place of its own for the label, which the counter's first instruction has not.
        a.zero_bytes()?;
        counter.raise(a, context, slot)?;
    }
    restore(a, true)?;
    a.lea(rsp, rsp + FRAME)?;
    a.jmp(body)?;

    a.set_label(&mut fast)?;
    a.lea(rcx, rax + ENTRY_BYTES)?;
    a.set_label(&mut hooked)?;
    // The slot before the entry: one with a key whose slot holds something else is of a frame that
    // is gone, for the handler of a signal that comes now, too. Until there is a key, such a
    // handler uses the same entry, and leaves it free.
    a.mov(rdx, qword_ptr(rsp + FRAME))?;
    a.lea(rax, ptr(landing))?;
    a.mov(qword_ptr(rsp + FRAME), rax)?;
    // From here on the entry is ours, by a key that nobody looks for. If a handler does not come
    // back, it stays no longer than what was overwritten with the slot, wherever the top is then.
    a.lea(rax, rsp + (FRAME + 8))?;
    a.mov(qword_ptr(rcx), rax)?;
    a.mov(top(context), rcx)?;
    a.mov(qword_ptr(rcx + ORIGIN_AT), rdx)?;
    a.not(rax)?;
    a.mov(qword_ptr(rcx), rax)?;
    if matches!(spec.at_return, ReturnAction::Timed(_)) {
        a.rdtsc()?;
        a.mov(dword_ptr(rcx + TIME_AT), eax)?;
        a.mov(dword_ptr(rcx + (TIME_AT + 4)), edx)?;
    }
    if let ReturnAction::Acquired(role) = spec.at_return {
        // The lock in the place of the time.
        a.mov(qword_ptr(rcx + TIME_AT), released_by(role).unwrap_or(rdi))?;
    }
    restore(a, true)?;
    a.lea(rsp, rsp + (FRAME + 8))?;
    a.call(body)
}

/// What the function returns to.
fn landing(
    a: &mut CodeAssembler,
    spec: &StubSpec,
    context: &CodegenContext,
    counter: Option<&mut Counter>,
    recorder: Option<(&mut Recorder, u64)>,
) -> Emitted {
    let (mut fast, mut left) = (a.create_label(), a.create_label());
    a.lea(rsp, rsp - (LANDING + 8))?;
    a.mov(qword_ptr(rsp), rax)?;
    a.mov(qword_ptr(rsp + 8), rcx)?;
    a.mov(rax, top(context))?;
    a.mov(rcx, qword_ptr(rax))?;
    // Its key is the complement of the address behind the slot: 0 if the top is this call's.
    a.lea(rcx, rsp + rcx + (LANDING + 9))?;
    a.jrcxz(fast)?;
    a.lea(rax, rsp + LANDING)?;
    a.lea(rcx, rsp + ORIGIN_KEPT)?;
    a.call(context.calls.leave)?;
    a.mov(rcx, qword_ptr(rsp + ORIGIN_KEPT))?;
    a.jmp(left)?;

    a.set_label(&mut fast)?;
    if matches!(spec.at_return, ReturnAction::Timed(_)) {
        // In halves, as they were stored: a word that was stored in halves is slow to load.
        a.mov(ecx, dword_ptr(rax + TIME_AT))?;
        a.mov(dword_ptr(rsp + TIME_KEPT), ecx)?;
        a.mov(ecx, dword_ptr(rax + (TIME_AT + 4)))?;
        a.mov(dword_ptr(rsp + (TIME_KEPT + 4)), ecx)?;
    }
    if matches!(spec.at_return, ReturnAction::Acquired(_)) {
        a.mov(rcx, qword_ptr(rax + TIME_AT))?;
        a.mov(qword_ptr(rsp + TIME_KEPT), rcx)?;
    }
    a.mov(rcx, qword_ptr(rax + ORIGIN_AT))?;
    if matches!(spec.at_return, ReturnAction::Acquired(_)) {
        a.mov(qword_ptr(rsp + ORIGIN_KEPT), rcx)?;
    }
    // First free, then below the top: a handler that comes in between goes there itself.
    a.mov(qword_ptr(rax), FREE as i32)?;
    a.lea(rax, rax - ENTRY_BYTES)?;
    a.mov(top(context), rax)?;

    // The slot last: as long as the entry has a key, its slot holds the stub.
    a.set_label(&mut left)?;
    a.mov(qword_ptr(rsp + LANDING), rcx)?;
    let none = Vec::new();
    let filter = spec.action.as_ref().map_or(&none, |action| &action.return_condition);
    let mut passed = a.create_label();
    let keep = !filter.is_empty() || matches!(spec.at_return, ReturnAction::Timed(_));
    match (spec.at_return, counter) {
        (ReturnAction::Recorded(slot), _) => {
            restore(a, false)?;
            a.lea(rsp, rsp + LANDING)?;
            if let (Some((recorder, site)), Some((record, lost))) = (recorder, spec.record) {
                if let Some(slow_path) = spec.slow_path(true) {
                    let mut out = a.create_label();
                    let means = SlowPathParts::Record(recorder, record, lost);
                    slow_path::write(a, (slow_path, true), context, means, out)?;
                    a.set_label(&mut out)?;
                    return a.ret();
                }
                recorder.at_return(a, slot, RecordContext { record: &record, lost, site, context })?;
            }
            return a.ret();
        }
        (ReturnAction::Acquired(role), _) => {
            a.mov(rax, rsp)?;
            a.mov(rcx, u64::from(role.number()))?;
            a.call(context.calls.acquired)?;
        }
        (ReturnAction::Ignored | ReturnAction::RecordedAtExits(_) | ReturnAction::Exit(_), _) | (_, None) => {
        }
        (ReturnAction::Counted(slot), Some(counter)) if !keep => counter.raise(a, context, slot)?,
        (ReturnAction::Counted(slot) | ReturnAction::Timed(slot), Some(counter)) => {
            a.mov(qword_ptr(rsp + 16), rdx)?;
            a.lahf()?;
            a.seto(al)?;
            a.mov(qword_ptr(rsp + FLAGS_KEPT), rax)?;
            predicate::only_if_of(a, filter, passed, returned)?;
            if matches!(spec.at_return, ReturnAction::Timed(_)) {
                bucket(a, context)?;
                counter.raise_one_of(a, context, slot)?;
            } else {
                counter.raise(a, context, slot)?;
            }
            a.set_label(&mut passed)?;
            a.mov(rax, qword_ptr(rsp + FLAGS_KEPT))?;
            a.add(al, 127)?;
            a.sahf()?;
            a.mov(rdx, qword_ptr(rsp + 16))?;
        }
    }
    restore(a, false)?;
    a.lea(rsp, rsp + LANDING)?;
    a.ret()
}

/// Leaves in rax an operand at the return, in the landing's frame.
fn returned(a: &mut CodeAssembler, operand: &Operand) -> Emitted {
    let register = predicate::REGISTERS[usize::from(operand.register) % predicate::REGISTERS.len()];
    match register {
        _ if register == rax => a.mov(rax, qword_ptr(rsp))?,
        _ if register == rcx => a.mov(rax, qword_ptr(rsp + 8))?,
        _ if register == rsp => a.lea(rax, rsp + (LANDING + 8))?,
        _ => a.mov(rax, register)?,
    }
    predicate::extend(a, operand)
}

/// Leaves in rdx the bucket of the time since the entry (`kymo_core::latency` says which is which).
/// Uses rax and rcx.
fn bucket(a: &mut CodeAssembler, context: &CodegenContext) -> Emitted {
    let mut later = a.create_label();
    a.rdtsc()?;
    a.sub(eax, dword_ptr(rsp + TIME_KEPT))?;
    a.sbb(edx, dword_ptr(rsp + (TIME_KEPT + 4)))?;
    // Counters of two CPUs may differ by some ticks.
    a.jns(later)?;
    a.xor(eax, eax)?;
    a.xor(edx, edx)?;
    a.set_label(&mut later)?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)?;
    a.mov(rdx, context.tick)?;
    a.mul(rdx)?;
    a.shrd(rax, rdx, 32)?;
    a.add(rax, 8)?;
    a.bsr(rcx, rax)?;
    a.sub(ecx, 3)?;
    a.shr(rax, iced_x86::code_asm::cl)?;
    a.lea(rdx, rax + rcx * 8)
}
