//! Stacks recorded as bytes, turned into call chains while samples are read.
//!
//! The result has the form of a chain that the kernel walked (a marker, then addresses), so that everything after
//! this treats both alike.
//!
//! The kernel's chains of aarch64 go along frame records, and a leaf function keeps none: its
//! caller is missing. It is put in from the link register where unwind data says that it is there,
//! as perf does.
//!
//! The processor's branch records can be a stack of calls (`--call-graph lbr`). Their addresses
//! then take the place of the program's callers, as in perf. perf puts the target of the newest
//! call first; here it is the address that was interrupted, so that what was inlined there is seen.
use crate::chains::{CallerAddresses, RawChain};
use crate::timeline::{ModuleKind, Timeline};
use kymo_data::abi::{
    PERF_CONTEXT_MAX, PERF_CONTEXT_USER, PERF_SAMPLE_BRANCH_CALL_STACK, PERF_SAMPLE_BRANCH_STACK,
    PERF_SAMPLE_CALLCHAIN, PERF_SAMPLE_REGS_USER, PERF_SAMPLE_STACK_USER,
};
use kymo_data::{Attr, Recording, Sample};
use kymo_symbols::unwind::{
    AddressSpace, Convention, FileId, MAX_FRAMES, MappedFile, Stop, UnwindModules, UnwindStats, Unwinder,
    UserRegs,
};
use kymo_symbols::{Arch, SymbolOptions};
use std::sync::OnceLock;

/// The instruction set of the recorded machine, if its stacks are unwound. Where a pipe does not
/// name the machine, the recorded registers tell: bits 24 to 31 stand for none of x86_64.
pub fn recorded_arch(recording: &Recording) -> Option<Arch> {
    match &recording.features.arch {
        Some(machine) => Arch::of_machine(machine),
        None => {
            let masks = recording.events.list.iter().map(|event| event.attr.sample_regs_user);
            let registers = masks.fold(0, |all, mask| all | mask);
            Some(if registers >> 24 & 0xff == 0 { Arch::X86_64 } else { Arch::Aarch64 })
        }
    }
}

/// That the copied stacks of a recording cannot be unwound, if they cannot: one sentence.
pub fn not_unwound(recording: &Recording) -> Option<String> {
    let copies = |event: &kymo_data::Event| event.attr.sample_type & PERF_SAMPLE_STACK_USER != 0;
    let machine = recording.features.arch.as_deref().filter(|_| recorded_arch(recording).is_none())?;
    recording.events.list.iter().any(copies).then(|| {
        format!(
            "the recording's copies of stacks are of {machine}, which kymo does not unwind: programs have \
             the sampled function only, without callers (record there with `--call-graph fp`)"
        )
    })
}

/// What all threads that unwind share: modules, and the address space of each version once it is needed.
#[derive(Debug)]
pub struct StackUnwinder<'a> {
    timeline: &'a Timeline,
    arch: Option<Arch>,
    modules: UnwindModules,
    spaces: Vec<OnceLock<AddressSpace>>,
}

impl<'a> StackUnwinder<'a> {
    /// An unwinder for the samples of one timeline; files are read when a stack leads into them.
    pub fn new(timeline: &'a Timeline, recording: &Recording, symbols: &SymbolOptions) -> StackUnwinder<'a> {
        let spaces = (0..timeline.version_count()).map(|_| OnceLock::new()).collect();
        let arch = recorded_arch(recording);
        let modules = UnwindModules::of_recording(symbols, timeline.recorded_until);
        let modules = match arch {
            Some(arch) => modules.of_arch(arch),
            None => modules,
        };
        StackUnwinder { timeline, arch, modules, spaces }
    }

    /// Whether chains of a recording's samples are others than the kernel's.
    pub fn is_needed(recording: &Recording) -> bool {
        let arch = recorded_arch(recording);
        recording.events.list.iter().any(|event| {
            let has = |bits| event.attr.sample_type & bits == bits;
            let by_link = PERF_SAMPLE_CALLCHAIN | PERF_SAMPLE_REGS_USER;
            let by_branches = call_stack(&event.attr, PERF_SAMPLE_CALLCHAIN);
            has(PERF_SAMPLE_STACK_USER) || by_branches || (arch == Some(Arch::Aarch64) && has(by_link))
        })
    }

    /// One thread's part.
    pub fn thread(&'a self) -> ThreadUnwinder<'a> {
        let unwinder = || Unwinder::new(Convention::Perf);
        ThreadUnwinder { shared: self, unwinder: unwinder(), links: unwinder(), frames: Vec::new() }
    }

    fn space(&self, version: u32) -> &AddressSpace {
        self.spaces[version as usize].get_or_init(|| {
            let mut space = AddressSpace::new();
            let timeline = self.timeline;
            for mapping in timeline.maps(version).iter(&timeline.mappings).filter(|m| m.executable) {
                let module = timeline.modules.get(mapping.module);
                let unwindable = matches!(module.kind, ModuleKind::File | ModuleKind::Vdso);
                // Files of one build id are one.
                let is_known = !module.build_id.is_empty();
                let file_id = if is_known { FileId::default() } else { module.file_id };
                let (path, build_id) = (&module.path[..], &module.build_id[..]);
                let file = MappedFile { path, build_id, file_id, seen: None };
                let module = unwindable.then(|| self.modules.module_of(&file)).flatten();
                space.map(mapping.start, mapping.end, mapping.pgoff, module);
            }
            space
        })
    }
}

/// One thread's unwinder with its caches.
#[derive(Debug)]
pub struct ThreadUnwinder<'a> {
    shared: &'a StackUnwinder<'a>,
    unwinder: Unwinder,
    /// For callers by the link register: those are no walks to be counted.
    links: Unwinder,
    frames: Vec<u64>,
}

impl ThreadUnwinder<'_> {
    /// Whether the call chain of a sample is another than the kernel's.
    #[inline]
    fn changes(&self, attr: &Attr, sample: &Sample<'_>) -> bool {
        match sample.user_stack {
            Some(stack) => !stack.is_empty(),
            None if sample.branches.is_some() => call_stack(attr, 0),
            None => self.shared.arch == Some(Arch::Aarch64) && sample.user_regs.is_some(),
        }
    }

    /// The call chain of a sample: as recorded, or put together in `scratch`.
    #[inline]
    pub(crate) fn chain<'s>(
        &mut self,
        attr: &Attr,
        sample: &Sample<'s>,
        maps: u32,
        scratch: &'s mut Vec<u8>,
    ) -> RawChain<'s> {
        if !self.changes(attr, sample) {
            return recorded_chain(attr, sample);
        }
        let callers = self.whole_chain(attr, sample, maps, scratch);
        RawChain { bytes: scratch, callers }
    }

    /// The frames of the recorded stack, innermost first; `None` without registers.
    pub(crate) fn frames(&mut self, sample: &Sample<'_>, maps: u32, stack: &[u8]) -> Option<&[u64]> {
        self.frames.clear();
        let Some(arch) = self.shared.arch else {
            // Where the kernel walked nothing, the program itself was sampled.
            let in_kernel = sample.callchain.is_some_and(|chain| chain.iter().next().is_some());
            self.frames.extend(sample.ip.filter(|_| !in_kernel));
            return Some(&self.frames);
        };
        let regs = sample.user_regs?;
        let regs = UserRegs::from_perf(arch, regs.abi, regs.mask, regs.values.iter())?;
        self.unwinder.unwind(self.shared.space(maps), &regs, stack, MAX_FRAMES, &mut self.frames);
        Some(&self.frames)
    }

    /// Puts the call chain of a sample into `out`: what the kernel walked, then the frames of the
    /// recorded stack where there is one. Returns what the addresses of its callers are.
    fn whole_chain(
        &mut self,
        attr: &Attr,
        sample: &Sample<'_>,
        maps: u32,
        out: &mut Vec<u8>,
    ) -> CallerAddresses {
        out.clear();
        let RawChain { bytes, callers } = recorded_chain(attr, sample);
        out.extend_from_slice(bytes);
        match sample.user_stack {
            Some(stack) if !stack.is_empty() => {
                let Some(frames) = self.frames(sample, maps, stack) else { return callers };
                out.extend_from_slice(&PERF_CONTEXT_USER.to_le_bytes());
                out.extend(frames.iter().flat_map(|frame| frame.to_le_bytes()));
                CallerAddresses::InCall
            }
            None if call_stack(attr, 0) && put_branches(sample, out) => CallerAddresses::InCall,
            None if self.shared.arch == Some(Arch::Aarch64) => {
                self.put_leaf_caller(sample, maps, out);
                callers
            }
            _ => callers,
        }
    }

    /// Puts the caller of a leaf function into a chain that the kernel walked, behind the function,
    /// if others follow there, as perf does.
    fn put_leaf_caller(&mut self, sample: &Sample<'_>, maps: u32, chain: &mut Vec<u8>) {
        let Some(regs) = sample.user_regs else { return };
        let mut words = chain.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let Some(marker) = words.position(|word| word == PERF_CONTEXT_USER) else { return };
        let mut next = || words.next().filter(|word| *word < PERF_CONTEXT_MAX);
        let (Some(leaf), Some(outer)) = (next(), next()) else { return };
        let Some(regs) = UserRegs::of_leaf(leaf, regs.mask, regs.values.iter()) else { return };
        self.frames.clear();
        self.links.unwind(self.shared.space(maps), &regs, &[], 2, &mut self.frames);
        if let [_, caller] = self.frames[..]
            && caller != outer
        {
            let at = (marker + 2) * 8;
            chain.splice(at..at, caller.to_le_bytes());
        }
    }

    /// How this thread's walks ended.
    pub fn stats(&self) -> &UnwindStats {
        self.unwinder.stats()
    }
}

/// The call chain of a sample as it was recorded.
pub(crate) fn recorded_chain<'s>(attr: &Attr, sample: &Sample<'s>) -> RawChain<'s> {
    let bytes = sample.callchain.map_or(&[][..], |words| words.as_bytes());
    let callers =
        if attr.has_unwound_chains() { CallerAddresses::InCall } else { CallerAddresses::AfterCall };
    RawChain { bytes, callers }
}

/// Whether samples have these fields and branch records that are a stack of calls.
fn call_stack(attr: &Attr, fields: u64) -> bool {
    let fields = fields | PERF_SAMPLE_BRANCH_STACK;
    attr.branch_sample_type & PERF_SAMPLE_BRANCH_CALL_STACK != 0 && attr.sample_type & fields == fields
}

/// Puts the calls of branch records in the place of the callers in a chain's user part, as perf
/// does; `false` where one of both is missing.
fn put_branches(sample: &Sample<'_>, chain: &mut Vec<u8>) -> bool {
    let Some(branches) = sample.branches else { return false };
    let mut words = chain.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let Some(marker) = words.position(|word| word == PERF_CONTEXT_USER) else { return false };
    let interrupted = words.next().filter(|word| *word < PERF_CONTEXT_MAX);
    // From where, to where, and flags: the newest call first.
    let mut calls = branches.entries.iter().enumerate().filter(|(at, _)| at % 3 < 2).map(|(_, word)| word);
    let Some((newest, target)) = calls.next().zip(calls.next()) else { return false };
    chain.truncate((marker + 1) * 8);
    let callers = calls.step_by(2);
    let frames = [interrupted.unwrap_or(target), newest].into_iter().chain(callers);
    chain.extend(frames.flat_map(u64::to_le_bytes));
    true
}

/// How all walks of a recording ended, in one line for people; `None` where nothing was unwound.
pub fn unwound(stats: &UnwindStats) -> Option<String> {
    let causes: Vec<String> = (Stop::ALL.iter().filter(|&&stop| stats.stopped(stop) > 0))
        .map(|&stop| format!("{} {}", stats.stopped(stop), stop.label()))
        .collect();
    let each = stats.frames as f64 / stats.samples as f64;
    let line = || format!("unwound {} stacks, {each:.1} frames each: {}", stats.samples, causes.join(", "));
    (stats.samples > 0).then(line)
}
