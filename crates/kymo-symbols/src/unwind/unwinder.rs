//! The walk itself, and the cache that makes it fast.

use std::sync::Arc;

use gimli::UnwindContext;

use super::call_sites::CallSites;
use super::compat::{CompatMemory, CompatWalker};
use super::generated::{self, GeneratedCode, GeneratedFrame, UnknownCode, step_frame_pointer};
use super::module::Module;
use super::regs::UserRegs;
use super::rule::{Exotic, FrameRule, Plain, Rule, SAME};
use super::space::{AddressSpace, Mapping};
use super::stack::Stack;
use super::stats::{Stop, UnwindStats};
use super::step::{step_exotic, step_plain_aarch64, step_plain_x86_64};
use crate::arch::{Arch, LR, MOST_SAVED};

/// Rules kept per unwinder: a power of two. 16 Ki rules of 32 bytes fit into the second-level cache
/// of a core, and hold all addresses that a large program's profile returns to often.
const PLACES: usize = 1 << 14;

/// What the addresses of caller frames mean. The sampled address itself is always given as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convention {
    /// As `perf script` and `perf report` have them: return addresses are lowered by 1, so that
    /// they lie in the call; the instruction that a signal interrupted is given as it is.
    Perf,
    /// To look up symbols and lines: like [`Convention::Perf`], but a signal trampoline is given as
    /// it is too. It was not called, so the byte before it is no part of it, and perf shows
    /// `[unknown]`.
    Lookup,
    /// As the kernel writes them into a callchain: return addresses as found on the stack.
    Return,
}

/// Walks stacks. One per thread: it holds the cache of rules and scratch memory.
#[derive(Debug)]
pub struct Unwinder {
    convention: Convention,
    cache: Box<[Cached]>,
    /// Rules that do not fit into a place of the cache, by number.
    exotic: Vec<Arc<Exotic>>,
    context: Box<UnwindContext<usize>>,
    /// Where the callers of generated code are searched for, if they are.
    call_sites: Option<CallSites>,
    compat: CompatWalker,
    /// The stack pointer of each frame of the last walk.
    stack_pointers: Vec<u64>,
    /// Where the walk has searched for callers.
    searches: Vec<CallerSearch>,
    /// How many frames the walk had with the first one of generated code whose machine code was
    /// followed.
    by_generated_code: Option<usize>,
    /// The bits of addresses of code in the process that is walked.
    address_mask: u64,
    stats: UnwindStats,
}

/// A frame of generated code whose caller was searched for.
#[derive(Clone, Copy, Debug)]
struct CallerSearch {
    /// How many frames the walk had with this one.
    frames: usize,
    regs: UserRegs,
    /// Where the return address was found. It may be one that an earlier call left there.
    slot: u64,
}

/// What a walk reads.
#[derive(Clone, Copy)]
struct Memory<'a> {
    space: &'a AddressSpace,
    stack: Stack<'a>,
}

/// The frame that a walk is at.
#[derive(Clone, Copy, Debug)]
struct Frame {
    regs: UserRegs,
    /// A caller's address is behind its call instruction, possibly in the next function: one byte back
    /// is in it. The sampled instruction, and one that a signal interrupted, is looked up as it is.
    back: u64,
    first: bool,
}

/// One place of the cache.
#[derive(Clone, Copy, Debug)]
struct Cached {
    /// Module id and file offset; 0 is an empty place, as no module has id 0.
    key: u64,
    rule: CachedRule,
}

/// A rule in a place of the cache.
#[derive(Clone, Copy, Debug)]
struct CachedRule {
    plain: Plain,
    kind: Kind,
    signal: bool,
    /// The machine code says so, no table.
    by_code: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    /// The number of the rule is in `cfa_offset`.
    Exotic,
    Root,
    FramePointer,
    /// Generated code.
    Generated,
    Bad,
}

const NOTHING: Plain = Plain { cfa_register: 0, cfa_offset: 0, return_address: 0, saved: [SAME; MOST_SAVED] };

const EMPTY: Cached =
    Cached { key: 0, rule: CachedRule { plain: NOTHING, kind: Kind::Bad, signal: false, by_code: false } };

/// How often a walk goes back to a search that led elsewhere than to the thread's start.
const MOST_RETRIES: usize = 16;

/// Exotic rules kept before the whole cache starts afresh.
const MAX_EXOTIC: usize = 1 << 14;

/// Words that a function of a known layout may have pushed in its middle, where a sample meets it.
const MOST_PUSHED_WORDS: u32 = 4;

impl Unwinder {
    /// An unwinder with an empty cache.
    pub fn new(convention: Convention) -> Unwinder {
        Unwinder {
            convention,
            cache: vec![EMPTY; PLACES].into(),
            exotic: Vec::new(),
            context: Box::default(),
            call_sites: None,
            compat: CompatWalker::default(),
            stack_pointers: Vec::new(),
            searches: Vec::new(),
            by_generated_code: None,
            address_mask: u64::MAX,
            stats: UnwindStats::default(),
        }
    }

    /// Where generated code of an unknown runtime keeps no frame pointer, its caller is searched
    /// for on the stack: the first word that is the address behind a call instruction and leads to
    /// the thread's start. That is a guess: [`guessed_callers`](Unwinder::guessed_callers) says
    /// where.
    #[must_use]
    pub fn searching_callers(mut self) -> Unwinder {
        self.call_sites = Some(CallSites::default());
        self
    }

    /// Appends the frames of one sample to `out`, innermost first, at most `max_frames` (perf:
    /// [`MAX_FRAMES`]), and says why it stopped there. `stack` holds the bytes from the sampled
    /// stack pointer upwards.
    ///
    /// All spaces given to one unwinder must take their modules from one store.
    ///
    /// [`MAX_FRAMES`]: super::MAX_FRAMES
    pub fn unwind(
        &mut self,
        space: &AddressSpace,
        regs: &UserRegs,
        stack: &[u8],
        max_frames: usize,
        out: &mut Vec<u64>,
    ) -> Stop {
        self.unwind_generated(space, regs, stack, max_frames, &mut UnknownCode, out)
    }

    /// The same of a process whose generated code is known.
    pub fn unwind_generated(
        &mut self,
        space: &AddressSpace,
        regs: &UserRegs,
        stack: &[u8],
        max_frames: usize,
        code: &mut dyn GeneratedCode,
        out: &mut Vec<u64>,
    ) -> Stop {
        let before = out.len();
        let stack = Stack { start: regs.sp(), bytes: stack };
        let full = before.saturating_add(max_frames);
        self.stack_pointers.clear();
        self.searches.clear();
        let stop = if regs.compat {
            let back = u64::from(self.convention != Convention::Return);
            let memory = CompatMemory { space, stack };
            let stop = self.compat.walk(memory, regs, back, full, out);
            self.stats.guessed_frames += (out.len() - before).saturating_sub(1) as u64;
            stop
        } else {
            self.walk(Memory { space, stack }, *regs, full, code, out)
        };
        self.stats.count(out.len() - before, stop);
        stop
    }

    /// The stack pointer of each frame of the last walk, innermost first: for a caller the address
    /// just above the return address that led to it. None of a 32-bit task's.
    pub fn stack_pointers(&self) -> &[u64] {
        &self.stack_pointers
    }

    /// Which frames of the last walk are guessed, as numbers of frames: the innermost one is 0. All
    /// further out follow from the guess.
    pub fn guessed_callers(&self) -> impl Iterator<Item = usize> + '_ {
        self.searches.iter().map(|search| search.frames)
    }

    /// Counts the last walk, which had run out of stack bytes, as complete: its outer frames, so
    /// many, were known.
    pub fn completed(&mut self, outer_frames: usize) {
        self.stats.complete(outer_frames);
    }

    /// Walks a stack again, of which the last walk had too few bytes, with more of them. The
    /// further ones were read later than the sample: they are believed only if they lead to the
    /// thread's start. Otherwise `out` keeps the last walk's frames.
    pub fn unwind_longer(
        &mut self,
        space: &AddressSpace,
        regs: &UserRegs,
        stack: &[u8],
        max_frames: usize,
        code: &mut dyn GeneratedCode,
        out: &mut Vec<u64>,
    ) -> Stop {
        let inner = out.len();
        out.clear();
        self.stack_pointers.clear();
        let stack = Stack { start: regs.sp(), bytes: stack };
        let stop = self.walk(Memory { space, stack }, *regs, max_frames, code, out);
        match stop {
            // Where the last walk had guessed, this one may have fewer frames.
            Stop::Root => self.stats.complete(out.len().saturating_sub(inner)),
            _ => out.truncate(inner),
        }
        stop
    }

    /// What this unwinder did since it was made.
    pub fn stats(&self) -> &UnwindStats {
        &self.stats
    }

    /// Bytes of generated code may be others by now than at the sample: what they said counts only
    /// if the walk comes to the thread's start, or to the end of the bytes. Otherwise the chain
    /// ends at the first frame for which they were read.
    fn walk(
        &mut self,
        memory: Memory<'_>,
        regs: UserRegs,
        full: usize,
        code: &mut dyn GeneratedCode,
        out: &mut Vec<u64>,
    ) -> Stop {
        let before = out.len();
        self.by_generated_code = None;
        let stop = self.walk_searching(memory, regs, full, code, out);
        let is_right = matches!(stop, Stop::Root | Stop::Limit | Stop::StackEnd);
        let Some(frames) = self.by_generated_code.filter(|_| !is_right) else { return stop };
        self.searches.retain(|search| search.frames < frames);
        out.truncate(before + frames);
        self.stack_pointers.truncate(frames);
        Stop::NoUnwindInfo
    }

    /// A walk that came to a wrong end, and had searched for callers, goes on from the next candidates
    /// of the last searches. If none reaches the thread's start the chain ends at the first frame
    /// whose caller was searched for: what lies on the stack of generated code is often left from
    /// earlier calls.
    fn walk_searching(
        &mut self,
        memory: Memory<'_>,
        regs: UserRegs,
        full: usize,
        code: &mut dyn GeneratedCode,
        out: &mut Vec<u64>,
    ) -> Stop {
        let before = out.len();
        self.searches.clear();
        if let Some(call_sites) = &mut self.call_sites {
            call_sites.begin();
        }
        let innermost = Frame { regs, back: 0, first: true };
        let stop = self.walk_from(memory, innermost, full, code, out);
        let Some(first) = self.searches.first().map(|search| search.frames) else { return stop };
        if matches!(stop, Stop::Root | Stop::Limit | Stop::StackEnd) {
            return stop;
        }
        for _ in 0..MOST_RETRIES {
            let Some(search) = self.searches.pop() else { break };
            let mut regs = search.regs;
            let Some(slot) = self.search(memory, &mut regs, Some(search.slot)) else { continue };
            self.searches.push(CallerSearch { slot, ..search });
            out.truncate(before + search.frames);
            self.stack_pointers.truncate(search.frames);
            let frame = Frame { regs, back: 1, first: false };
            if self.walk_from(memory, frame, full, code, out) == Stop::Root {
                return Stop::Root;
            }
        }
        self.searches.clear();
        out.truncate(before + first);
        self.stack_pointers.truncate(first);
        Stop::NoUnwindInfo
    }

    /// Walks on from a frame of which the callees are in `out`.
    fn walk_from(
        &mut self,
        memory: Memory<'_>,
        frame: Frame,
        full: usize,
        code: &mut dyn GeneratedCode,
        out: &mut Vec<u64>,
    ) -> Stop {
        let Memory { space, stack } = memory;
        let mut mapping: Option<&Mapping> = None;
        let Frame { mut regs, mut back, mut first } = frame;
        let highest = space.mappings().last().map_or(0, |mapping| mapping.end);
        let mask = regs.arch.address_mask(highest.max(regs.sp()));
        self.address_mask = mask;
        loop {
            if out.len() >= full {
                return Stop::Limit;
            }
            let lookup = regs.ip.wrapping_sub(back);
            if !mapping.is_some_and(|m| m.start <= lookup && lookup < m.end) {
                mapping = space.find(lookup);
            }
            let rule = mapping.map(|mapping| self.rule(mapping, lookup, back != 0));
            // A caller is code that is mapped.
            if rule.is_none() && !first {
                return Stop::NoMapping;
            }
            let lowered = match self.convention {
                Convention::Lookup if rule.is_some_and(|r| r.signal) => 0,
                Convention::Perf | Convention::Lookup => back,
                Convention::Return => 0,
            };
            out.push(regs.ip.wrapping_sub(lowered));
            self.stack_pointers.push(regs.sp());
            let Some(rule) = rule else { return Stop::NoMapping };

            let (ip, sp) = (regs.ip, regs.sp());
            let frame = Frame { regs, back, first };
            let mut stepped = match rule.kind {
                Kind::Plain => match regs.arch {
                    Arch::X86_64 => step_plain_x86_64(&rule.plain, &mut regs, stack, first),
                    Arch::Aarch64 => step_plain_aarch64(&rule.plain, &mut regs, stack),
                },
                Kind::Exotic => match self.exotic.get(rule.plain.cfa_offset as usize) {
                    Some(exotic) => step_exotic(exotic, &mut regs, stack),
                    None => Err(Stop::BadUnwindInfo),
                },
                Kind::FramePointer => self.step_without_data(memory, frame, &mut regs),
                Kind::Generated => self.step_generated(memory, frame, &mut regs, code),
                Kind::Root => Err(Stop::Root),
                Kind::Bad => Err(Stop::BadUnwindInfo),
            };
            regs.ip &= mask;
            if rule.by_code && rule.kind != Kind::Root {
                stepped = self.check_step_by_code(memory, frame, stepped, &mut regs);
                regs.ip &= mask;
            }
            if let Err(stop) = stepped {
                return stop;
            }
            if regs.ip == 0 {
                return Stop::Root;
            }
            if regs.ip == ip && regs.sp() == sp {
                return Stop::Loop;
            }
            back = u64::from(!rule.signal);
            first = false;
        }
    }

    /// A step by what machine code says counts if it came to the address behind a call. Otherwise
    /// the frame pointer is followed from `frame`.
    fn check_step_by_code(
        &mut self,
        memory: Memory<'_>,
        frame: Frame,
        stepped: Result<(), Stop>,
        regs: &mut UserRegs,
    ) -> Result<(), Stop> {
        match stepped {
            // What is missing says nothing against the step.
            Err(Stop::StackEnd) => stepped,
            Ok(()) if regs.ip != 0 && self.is_code(regs.arch, memory, regs.ip) => {
                self.stats.guessed_frames += 1;
                Ok(())
            }
            _ => {
                *regs = frame.regs;
                self.step_without_data(memory, frame, regs)
            }
        }
    }

    /// Searches the stack for a caller of generated code behind this address: where its return
    /// address lies.
    fn search(&mut self, memory: Memory<'_>, regs: &mut UserRegs, behind: Option<u64>) -> Option<u64> {
        self.call_sites.as_mut()?.search(memory.space, regs, memory.stack, behind)
    }

    /// The caller of a frame of generated code. Where its runtime is known, there is no guessing.
    fn step_generated(
        &mut self,
        memory: Memory<'_>,
        frame: Frame,
        regs: &mut UserRegs,
        code: &mut dyn GeneratedCode,
    ) -> Result<(), Stop> {
        let address = regs.ip.wrapping_sub(frame.back);
        let Some(layout) = code.frame_at(address, frame.first) else {
            if let Some(stepped) = self.step_by_generated_code(memory, frame, regs, code) {
                return stepped;
            }
            let stepped = self.step_without_data(memory, frame, regs);
            let Err(stop) = stepped else { return Ok(()) };
            if stop == Stop::Root && !frame.first {
                return stepped;
            }
            let Some(slot) = self.search(memory, regs, None) else { return Err(stop) };
            let frames = self.stack_pointers.len();
            self.searches.push(CallerSearch { frames, regs: frame.regs, slot });
            self.stats.guessed_frames += 1;
            return Ok(());
        };
        let stepped = self.step_by_layout(memory, frame, layout, regs);
        if stepped.is_ok() || layout == GeneratedFrame::Unknown {
            return stepped;
        }
        match code.frame_at_again(address, frame.first) {
            Some(again) if again != layout => self.step_by_layout(memory, frame, again, regs),
            _ => stepped,
        }
    }

    /// The same by the machine code, if it can be had and leads to the address behind a call.
    /// `regs` stay as they are if not.
    fn step_by_generated_code(
        &mut self,
        memory: Memory<'_>,
        frame: Frame,
        regs: &mut UserRegs,
        code: &mut dyn GeneratedCode,
    ) -> Option<Result<(), Stop>> {
        let Memory { space, stack } = memory;
        let call_sites = self.call_sites.as_mut().filter(|_| regs.arch == Arch::X86_64)?;
        let mapping = space.find(regs.ip.wrapping_sub(frame.back))?;
        let rule = generated::rule_by_code(code, mapping.start..mapping.end, (regs.ip, frame.back != 0))?;
        let mut caller = *regs;
        let stepped = match &rule {
            Rule::Plain(plain) => step_plain_x86_64(plain, &mut caller, stack, frame.first),
            Rule::Exotic(exotic) => step_exotic(exotic, &mut caller, stack),
            Rule::Root | Rule::FramePointer | Rule::Bad => return None,
        };
        // What is missing says nothing against the step.
        if stepped == Err(Stop::StackEnd) {
            return Some(stepped);
        }
        let is_in_file = space.find(caller.ip)?.module.is_some();
        let is_caller = match is_in_file {
            true => call_sites.may_return_to(caller.arch, space, caller.ip),
            false => generated::follows_call(code, caller.arch, caller.ip),
        };
        if stepped.is_err() || !is_caller {
            return None;
        }
        *regs = caller;
        self.stats.guessed_frames += 1;
        self.by_generated_code.get_or_insert(self.stack_pointers.len());
        Some(Ok(()))
    }

    /// The caller of a frame of generated code that lies like this on the stack. `regs` stay as they
    /// are if it leads to no code.
    fn step_by_layout(
        &mut self,
        memory: Memory<'_>,
        frame: Frame,
        layout: GeneratedFrame,
        regs: &mut UserRegs,
    ) -> Result<(), Stop> {
        let before = *regs;
        let stop = match layout.step(regs, memory.stack) {
            Ok(()) if self.is_code(regs.arch, memory, regs.ip) => return Ok(()),
            Ok(()) => Stop::NoUnwindInfo,
            Err(stop) => stop,
        };
        for words in 1..=MOST_PUSHED_WORDS {
            let Some(pushed) = layout.after_pushes(words).filter(|_| frame.first) else { break };
            *regs = before;
            if pushed.step(regs, memory.stack).is_ok() && self.is_code(regs.arch, memory, regs.ip) {
                return Ok(());
            }
        }
        *regs = before;
        Err(stop)
    }

    /// Whether a frame without tables may return to this address.
    fn is_code(&mut self, arch: Arch, memory: Memory<'_>, address: u64) -> bool {
        match &mut self.call_sites {
            Some(call_sites) => call_sites.may_return_to(arch, memory.space, address),
            None => memory.space.find(address).is_some(),
        }
    }

    /// The caller of a frame that no unwind data covers, by its frame pointer. The innermost frame
    /// (`first`) may keep none. `regs` stay as they are if there is none.
    fn step_without_data(
        &mut self,
        memory: Memory<'_>,
        frame: Frame,
        regs: &mut UserRegs,
    ) -> Result<(), Stop> {
        let mut caller = *regs;
        let mask = self.address_mask;
        let stepped = step_frame_pointer(&mut caller, memory.stack);
        caller.ip &= mask;
        if regs.arch == Arch::Aarch64
            && frame.first
            && let Some(link) = regs.get(LR).map(|link| link & mask)
            && (stepped.is_err() || caller.ip != link)
            // Where the code cannot be read a frame record is believed first.
            && CallSites::is_link(memory.space, regs, link)
                .unwrap_or(stepped.is_err() && !memory.stack.bytes.is_empty())
        {
            // A leaf function keeps no frame record: the frame pointer is its caller's.
            regs.ip = link;
            regs.set(LR, None);
            self.stats.guessed_frames += 1;
            return Ok(());
        }
        let Some(call_sites) = &mut self.call_sites else {
            *regs = caller;
            self.stats.guessed_frames += u64::from(stepped.is_ok());
            return stepped;
        };
        match stepped {
            Ok(()) if call_sites.may_return_to(caller.arch, memory.space, caller.ip) => {
                *regs = caller;
                self.stats.guessed_frames += 1;
                Ok(())
            }
            // In code that keeps no frame pointer it is 0 by chance.
            Err(Stop::Root) if !frame.first => Err(Stop::Root),
            _ if !frame.first && call_sites.is_thread_start(regs.arch, memory.space, regs.ip) => {
                Err(Stop::Root)
            }
            stepped => Err(stepped.err().unwrap_or(Stop::NoUnwindInfo)),
        }
    }

    /// The rule for an address in a mapping.
    #[inline]
    fn rule(&mut self, mapping: &Mapping, avma: u64, is_caller: bool) -> CachedRule {
        let Some(module) = &mapping.module else {
            return CachedRule { plain: NOTHING, kind: Kind::Generated, signal: false, by_code: false };
        };
        let offset = mapping.file_offset(avma);
        let key = (u64::from(module.id()) << 40) | (offset & ((1 << 40) - 1));
        let place = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - PLACES.trailing_zeros())) as usize;
        // Two neighbours may hold a key, so that two hot addresses that meet do not drive each
        // other out.
        if self.cache[place].key == key {
            return self.cache[place].rule;
        }
        if self.cache[place ^ 1].key == key {
            return self.cache[place ^ 1].rule;
        }
        self.work_out(module, offset, is_caller, (key, place))
    }

    /// Works a rule out from the module's data and puts it where `rule` looks.
    #[cold]
    fn work_out(
        &mut self,
        module: &Module,
        offset: u64,
        is_caller: bool,
        (key, place): (u64, usize),
    ) -> CachedRule {
        self.stats.rules_parsed += 1;
        let rule = match module.frames() {
            // Files beyond a tebibyte do not occur; their offsets would share keys.
            Some(frames) if offset < 1 << 40 => frames.rule_at(module, offset, is_caller, &mut self.context),
            _ => Rule::FramePointer.into(),
        };
        let rule = self.keep(rule);
        let other_is_free = self.cache[place].key != 0 && self.cache[place ^ 1].key == 0;
        self.cache[place ^ usize::from(other_is_free)] = Cached { key, rule };
        rule
    }

    fn keep(&mut self, rule: FrameRule) -> CachedRule {
        let (plain, kind) = match rule.rule {
            Rule::Plain(plain) => (plain, Kind::Plain),
            Rule::Exotic(exotic) => {
                if self.exotic.len() >= MAX_EXOTIC {
                    self.exotic.clear();
                    self.cache.iter_mut().for_each(|place| place.key = 0);
                }
                self.exotic.push(Arc::from(exotic));
                (Plain { cfa_offset: self.exotic.len() as i32 - 1, ..NOTHING }, Kind::Exotic)
            }
            Rule::Root => (NOTHING, Kind::Root),
            Rule::FramePointer => (NOTHING, Kind::FramePointer),
            Rule::Bad => (NOTHING, Kind::Bad),
        };
        CachedRule { plain, kind, signal: rule.signal, by_code: rule.by_code }
    }
}
