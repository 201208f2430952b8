//! The stub of a site.
use super::events::{EventRings, Sequences, StubEvent};
use super::go::may_move_in_go;
use super::{Convention, FreestandingError, RED_ZONE, RoutineAddresses};
use crate::patch::codegen::assembly::{self, Place, Stub};
use crate::patch::codegen::context::Emitted;
use crate::patch::codegen::{moved, predicate};
use crate::patch::site::Site;
use iced_x86::code_asm::{CodeAssembler, CodeLabel, al, eax, ecx, edx, qword_ptr, rax, rcx, rdx, rsp};
use iced_x86::{Code, ConditionCode, FlowControl, IcedError, Instruction, MemoryOperand, Register};
use kymo_core::probe::value::Condition;

/// What counts a site's hits.
#[derive(Clone, Copy, Debug)]
pub enum HitCounter {
    /// The stub, in this word.
    Word(u64),
    /// The routine to which the stub tells that a call has begun.
    Routine,
}

/// What a stub is to do.
#[derive(Clone, Copy, Debug)]
pub struct FreestandingSpec<'a> {
    /// Whose rules hold.
    pub convention: Convention,
    /// The site's number.
    pub number: u32,
    /// The counter of the hits of this site; none at exits.
    pub hits: Option<HitCounter>,
    /// Before which of the displaced instructions, or behind the last one, hits are counted;
    /// `None`: before all of them.
    pub hits_at: Option<u64>,
    /// Which hits are counted, and which calls timed, by registers alone where the function begins.
    pub condition: &'a Condition,
    /// Which of these calls are timed, by registers alone where they return.
    pub return_condition: &'a Condition,
    /// One of so many of them is timed, and its caller counted; 0 and 1: each.
    pub every: u32,
    /// A byte that is 0 in processes that are not to count.
    pub while_set: Option<u64>,
    /// The routines, where calls are timed.
    pub timed: Option<RoutineAddresses>,
    /// The routine that counts callers, where they are told apart.
    pub callers: Option<u64>,
    /// Where calls of the function end, ascending.
    pub exits: &'a [u64],
    /// The events that are written; then nothing is timed and no caller told.
    pub events: Option<StubEvents<'a>>,
}

/// Events of a function.
#[derive(Clone, Copy, Debug)]
pub struct StubEvents<'a> {
    /// Where to.
    pub rings: EventRings,
    /// Of its hits.
    pub entry: Option<StubEvent<'a>>,
    /// Of its returns.
    pub back: Option<StubEvent<'a>>,
}

/// The stub of a site, to lie at `at`; where events are written, a multiple of 32.
///
/// # Errors
/// Where a displaced instruction may not be moved there.
pub fn freestanding_stub(
    site: &Site,
    spec: &FreestandingSpec<'_>,
    at: u64,
) -> Result<Stub, FreestandingError> {
    if spec.convention == Convention::Go {
        site.displaced.iter().try_for_each(may_move_in_go)?;
    }
    let jumps = |instruction: &&Instruction| {
        spec.exits.binary_search(&instruction.ip()).is_ok()
            && instruction.flow_control() != FlowControl::Return
    };
    let needs_results = spec.events.is_some_and(|events| events.back.is_some());
    if (needs_results || !spec.return_condition.is_empty())
        && let Some(jump) = site.displaced.iter().find(jumps)
    {
        return Err(FreestandingError::NoReturn(jump.ip()));
    }
    stub(site, spec, at).map_err(|_| FreestandingError::OutOfReach(site.address))
}

fn stub(site: &Site, spec: &FreestandingSpec<'_>, at: u64) -> Result<Stub, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let is_exit = |instruction: &Instruction| spec.exits.binary_search(&instruction.ip()).is_ok();
    let count = sequences(spec, site.displaced.iter().filter(|one| is_exit(one)).count());
    let mut sequences = Sequences::declare(&mut a, count)?;
    let enter = assembly::entry_of(at, count);
    if spec.hits_at.is_none() {
        moved::raise_stack(&mut a, site)?;
        hit(&mut a, spec, &mut sequences)?;
        moved::lower_stack(&mut a, site)?;
    }
    let moved = assembly::displaced(&mut a, site, enter, &mut |a, place| {
        let at = if let Place::Before(instruction) = place { instruction.ip() } else { site.resume() };
        if spec.hits_at == Some(at) {
            hit(a, spec, &mut sequences)?;
        }
        match place {
            Place::Before(instruction) if is_exit(instruction) => exit(a, instruction, spec, &mut sequences),
            _ => Ok(()),
        }
    })?;
    assembly::finish(a, sequences.into_counters(), &moved, at)
}

/// How many restartable sequences a stub has, with so many exits in it.
fn sequences(spec: &FreestandingSpec<'_>, exits: usize) -> usize {
    let Some(events) = spec.events.filter(|events| events.rings.rseq.is_some()) else { return 0 };
    let of_hits = spec.hits.is_some() && events.entry.is_some();
    usize::from(of_hits) + if events.back.is_some() { exits } else { 0 }
}

/// Counts a hit that its condition lets through, and notes when the call began and who called.
fn hit(a: &mut CodeAssembler, spec: &FreestandingSpec<'_>, sequences: &mut Sequences) -> Emitted {
    let Some(hits) = spec.hits else { return Ok(()) };
    if let Some(StubEvents { rings, entry: Some(event), .. }) = &spec.events {
        return hit_event(a, spec, hits, (rings, event, sequences));
    }
    let is_counted_only = spec.timed.is_none() && spec.callers.is_none();
    if spec.condition.is_empty() {
        return if is_counted_only { count(a, spec, hits) } else { begin(a, spec, hits) };
    }
    let (mut other, mut on) = (a.create_label(), a.create_label());
    predicate::open(a)?;
    predicate::only_if(a, spec.condition, false, other)?;
    if is_counted_only {
        let mut child = unless_child(a, spec)?;
        hits.count(a)?;
        land(a, &mut child)?;
        a.set_label(&mut other)?;
        return predicate::close(a);
    }
    predicate::close(a)?;
    begin(a, spec, hits)?;
    a.jmp(on)?;
    a.set_label(&mut other)?;
    predicate::close(a)?;
    if let Some(routines) = spec.timed {
        call(a, spec, routines.forget)?;
    }
    a.set_label(&mut on)?;
    a.zero_bytes()
}

/// Writes the event of a hit that its condition lets through, or of one in so many. They are
/// counted where that is needed for it.
fn hit_event(
    a: &mut CodeAssembler,
    spec: &FreestandingSpec<'_>,
    hits: HitCounter,
    (rings, event, sequences): (&EventRings, &StubEvent<'_>, &mut Sequences),
) -> Emitted {
    let mut shut = a.create_label();
    predicate::open(a)?;
    predicate::only_if(a, spec.condition, false, shut)?;
    let mut child = unless_child(a, spec)?;
    if spec.every > 1 {
        hits.number(a, spec)?;
        predicate::only_each(a, spec.every, shut)?;
    }
    sequences.write(a, rings, event, false)?;
    land(a, &mut child)?;
    a.set_label(&mut shut)?;
    predicate::close(a)
}

/// Writes the event of a return that its condition lets through.
fn return_event(
    a: &mut CodeAssembler,
    spec: &FreestandingSpec<'_>,
    (rings, event, sequences): (&EventRings, &StubEvent<'_>, &mut Sequences),
) -> Emitted {
    let mut shut = a.create_label();
    predicate::open(a)?;
    predicate::only_if(a, spec.return_condition, true, shut)?;
    let mut child = unless_child(a, spec)?;
    sequences.write(a, rings, event, true)?;
    land(a, &mut child)?;
    a.set_label(&mut shut)?;
    predicate::close(a)
}

/// Counts a hit, and nothing more.
fn count(a: &mut CodeAssembler, spec: &FreestandingSpec<'_>, hits: HitCounter) -> Emitted {
    if spec.convention == Convention::Go {
        let mut child = unless_child(a, spec)?;
        hits.count(a)?;
        return land(a, &mut child);
    }
    a.lea(rsp, rsp - (RED_ZONE + 16))?;
    a.mov(qword_ptr(rsp), rax)?;
    a.lahf()?;
    a.seto(al)?;
    let mut child = unless_child(a, spec)?;
    hits.count(a)?;
    land(a, &mut child)?;
    a.add(al, 127)?;
    a.sahf()?;
    a.mov(rax, qword_ptr(rsp))?;
    a.lea(rsp, rsp + (RED_ZONE + 16))
}

/// Counts a hit and its caller, and notes when the call began.
fn begin(a: &mut CodeAssembler, spec: &FreestandingSpec<'_>, hits: HitCounter) -> Emitted {
    keep(a, spec)?;
    let mut child = unless_child(a, spec)?;
    if spec.every <= 1 {
        hits.count(a)?;
        // The time last: what comes before is not the function's.
        let enter = spec.timed.map(|routines| routines.enter);
        each_routine(a, spec, spec.callers.into_iter().chain(enter))?;
    } else {
        let (mut other, mut on) = (a.create_label(), a.create_label());
        hits.number(a, spec)?;
        unless_each(a, spec.every, other)?;
        let begin = spec.timed.map(|routines| routines.begin);
        each_routine(a, spec, spec.callers.into_iter().chain(begin))?;
        a.jmp(on)?;
        a.set_label(&mut other)?;
        a.zero_bytes()?;
        each_routine(a, spec, spec.timed.map(|routines| routines.forget).into_iter())?;
        a.set_label(&mut on)?;
        a.zero_bytes()?;
    }
    land(a, &mut child)?;
    put_back(a, spec)
}

/// Calls routines with the site's number, where registers are kept.
fn each_routine(
    a: &mut CodeAssembler,
    spec: &FreestandingSpec<'_>,
    routines: impl Iterator<Item = u64>,
) -> Emitted {
    for routine in routines {
        a.mov(ecx, spec.number)?;
        a.call(routine)?;
    }
    Ok(())
}

/// Goes to a label unless rax is a multiple of `every`. Uses rax and rcx.
fn unless_each(a: &mut CodeAssembler, every: u32, other: CodeLabel) -> Emitted {
    if every.is_power_of_two() {
        a.test(eax, every - 1)?;
    } else {
        a.push(rdx)?;
        a.mov(ecx, every)?;
        a.xor(edx, edx)?;
        a.div(rcx)?;
        a.test(rdx, rdx)?;
        // Which changes no flag.
        a.pop(rdx)?;
    }
    a.jne(other)
}

/// Calls a routine with the site's number.
fn call(a: &mut CodeAssembler, spec: &FreestandingSpec<'_>, routine: u64) -> Emitted {
    keep(a, spec)?;
    let mut child = unless_child(a, spec)?;
    each_routine(a, spec, std::iter::once(routine))?;
    land(a, &mut child)?;
    put_back(a, spec)
}

/// Before an instruction with which calls end.
fn exit(
    a: &mut CodeAssembler,
    instruction: &Instruction,
    spec: &FreestandingSpec<'_>,
    sequences: &mut Sequences,
) -> Emitted {
    if let Some(StubEvents { rings, back: Some(event), .. }) = &spec.events {
        return return_event(a, spec, (rings, event, sequences));
    }
    let Some(routines) = spec.timed else { return Ok(()) };
    if !spec.return_condition.is_empty() {
        let (mut other, mut on) = (a.create_label(), a.create_label());
        predicate::open(a)?;
        predicate::only_if(a, spec.return_condition, true, other)?;
        predicate::close(a)?;
        call(a, spec, routines.leave)?;
        a.jmp(on)?;
        a.set_label(&mut other)?;
        predicate::close(a)?;
        call(a, spec, routines.forget)?;
        a.set_label(&mut on)?;
        return a.zero_bytes();
    }
    if instruction.flow_control() != FlowControl::ConditionalBranch {
        return call(a, spec, routines.leave);
    }
    let mut stays = a.create_label();
    unless(a, instruction.condition_code(), stays)?;
    call(a, spec, routines.leave)?;
    a.set_label(&mut stays)?;
    a.zero_bytes()
}

/// Goes to a label unless a condition holds.
fn unless(a: &mut CodeAssembler, condition: ConditionCode, to: CodeLabel) -> Emitted {
    match condition {
        ConditionCode::o => a.jno(to),
        ConditionCode::no => a.jo(to),
        ConditionCode::b => a.jae(to),
        ConditionCode::ae => a.jb(to),
        ConditionCode::e => a.jne(to),
        ConditionCode::ne => a.je(to),
        ConditionCode::be => a.ja(to),
        ConditionCode::a => a.jbe(to),
        ConditionCode::s => a.jns(to),
        ConditionCode::ns => a.js(to),
        ConditionCode::p => a.jnp(to),
        ConditionCode::np => a.jp(to),
        ConditionCode::l => a.jge(to),
        ConditionCode::ge => a.jl(to),
        ConditionCode::le => a.jg(to),
        ConditionCode::g => a.jle(to),
        // Those of rcx are no exits that anybody asks for.
        ConditionCode::None => Ok(()),
    }
}

/// Keeps what routines change: the caller's rax, rcx and flags. The frame begins
/// [`STUB_KEEPS`](super::STUB_KEEPS) above the stack pointer that a routine finds, and in C the red
/// zone.
fn keep(a: &mut CodeAssembler, spec: &FreestandingSpec<'_>) -> Emitted {
    if spec.convention == Convention::C {
        a.lea(rsp, rsp - RED_ZONE)?;
    }
    a.push(rax)?;
    a.push(rcx)?;
    a.lahf()?;
    a.seto(al)?;
    a.push(rax)
}

fn put_back(a: &mut CodeAssembler, spec: &FreestandingSpec<'_>) -> Emitted {
    a.pop(rax)?;
    a.add(al, 127)?;
    a.sahf()?;
    a.pop(rcx)?;
    a.pop(rax)?;
    if spec.convention == Convention::C {
        a.lea(rsp, rsp + RED_ZONE)?;
    }
    Ok(())
}

/// Goes to the label that is given, in processes that are not to count. Changes flags.
fn unless_child(a: &mut CodeAssembler, spec: &FreestandingSpec<'_>) -> Result<Option<CodeLabel>, IcedError> {
    let Some(flag) = spec.while_set else { return Ok(None) };
    let child = a.create_label();
    a.add_instruction(Instruction::with2(Code::Cmp_rm8_imm8, relative(flag), 0_i32)?)?;
    a.je(child)?;
    Ok(Some(child))
}

fn land(a: &mut CodeAssembler, label: &mut Option<CodeLabel>) -> Emitted {
    match label {
        Some(label) => {
            a.set_label(label)?;
            a.zero_bytes()
        }
        None => Ok(()),
    }
}

/// Memory at an address that code near it is to reach.
fn relative(address: u64) -> MemoryOperand {
    MemoryOperand::with_base_displ(Register::RIP, address as i64)
}

impl HitCounter {
    /// Raises the word, if it is the stub that does.
    fn count(self, a: &mut CodeAssembler) -> Emitted {
        let HitCounter::Word(word) = self else { return Ok(()) };
        let mut increment = Instruction::with1(Code::Inc_rm64, relative(word))?;
        increment.set_has_lock_prefix(true);
        a.add_instruction(increment)
    }

    /// The same, whoever counts, and leaves in rax the how-manieth hit it is. Uses rcx.
    fn number(self, a: &mut CodeAssembler, spec: &FreestandingSpec<'_>) -> Emitted {
        let HitCounter::Word(word) = self else {
            let hit = spec.timed.map(|routines| routines.hit);
            return each_routine(a, spec, hit.into_iter());
        };
        a.mov(eax, 1_u32)?;
        let mut add = Instruction::with2(Code::Xadd_rm64_r64, relative(word), Register::RAX)?;
        add.set_has_lock_prefix(true);
        a.add_instruction(add)?;
        a.inc(rax)
    }
}
