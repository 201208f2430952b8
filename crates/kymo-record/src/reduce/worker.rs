//! Unwinds the samples of buffers, in place.
use super::generated_bytes::GeneratedBytes;
use super::guessed::{self, GuessedMark};
use super::hotspot::{JavaFrames, ProcessCode};
use super::moved_text::MovedTexts;
use super::order::Side;
use super::outer_frames::OuterFrames;
use super::outer_memory::OuterMemory;
use super::stack_pages::{self, StackOutcome, StackPages};
use crate::account::Unwound;
use crate::python::PythonStacks;
use crate::waits::{WaitSample, WaitSamples};
use kymo_data::{EventSet, RawRecord, RecordHeader, Sample, StackParts, WholeRecord, abi, build, record_at};
use kymo_profile::timeline::{LiveSpaces, Moment, SideEvent};
use kymo_symbols::Arch;
use kymo_symbols::unwind::{Convention, MAX_FRAMES, Stop, UnwindModules, Unwinder, UserRegs};
use std::sync::Arc;

/// How much of a stack is read at once beyond its copy: first as much as most stacks have, then
/// more, as each byte is copied between processes.
const FIRST_STACK_BYTES: usize = 32 << 10;
const MORE_STACK_BYTES: usize = 64 << 10;
/// How much of a stack is looked at, with its copy.
const MOST_STACK_BYTES: usize = 1 << 20;

/// One thread's part: what it knows of tasks and mappings, and its unwinder.
pub(super) struct Worker {
    events: Arc<EventSet>,
    spaces: LiveSpaces,
    modules: Arc<UnwindModules>,
    unwinder: Unwinder,
    outer_frames: OuterFrames,
    outer_memory: OuterMemory,
    java_frames: JavaFrames,
    generated_bytes: GeneratedBytes,
    moved_texts: MovedTexts,
    guessed_mark: GuessedMark,
    /// Numbers of frames that are guessed.
    guessed: Vec<usize>,
    /// Records to be written before the samples.
    notes: Vec<u8>,
    /// Records to be written after them: they correct what is there.
    corrections: Vec<u8>,
    stack_pointers: Vec<u64>,
    /// A stack longer than its copy.
    longer: Vec<u8>,
    frames: Vec<u64>,
    /// The last stack went on beyond its copy, and what lies there was not known.
    was_cut: bool,
    counts: Unwound,
    /// Whose samples tell of Python's frames and of stacks, and what they told.
    pub(super) python: Option<(usize, PythonStacks)>,
    pub(super) stack_pages: Option<StackPages>,
    pub(super) waits: Option<WaitSamples>,
    pub(super) keeps_data_mappings: bool,
}

impl Worker {
    /// `events`: as the kernel writes their samples.
    pub(super) fn new(events: Arc<EventSet>, modules: Arc<UnwindModules>) -> Worker {
        // The addresses that perf would give for the stack's bytes: within the call, where every
        // reader looks for it.
        let unwinder = Unwinder::new(Convention::Perf).searching_callers();
        let guessed_mark = GuessedMark::new(&events);
        Worker {
            events,
            spaces: LiveSpaces::new(),
            modules,
            unwinder,
            outer_frames: OuterFrames::default(),
            outer_memory: OuterMemory::default(),
            java_frames: JavaFrames::default(),
            generated_bytes: GeneratedBytes::default(),
            moved_texts: MovedTexts::default(),
            guessed_mark,
            guessed: Vec::new(),
            notes: Vec::new(),
            corrections: Vec::new(),
            longer: Vec::new(),
            stack_pointers: Vec::with_capacity(MAX_FRAMES),
            frames: Vec::with_capacity(MAX_FRAMES),
            was_cut: false,
            counts: Unwound::default(),
            python: None,
            stack_pages: None,
            waits: None,
            keeps_data_mappings: true,
        }
    }

    /// Takes in what is needed to know for the samples that follow.
    pub(super) fn side(&mut self, moment: Moment, side: &Side) {
        match side {
            Side::Event(event) => {
                match event {
                    SideEvent::Comm { pid, tid, exec: true, .. } => {
                        self.outer_frames.forget(*tid);
                        self.java_frames.forget(*pid);
                        self.generated_bytes.forget(*pid);
                        self.guessed_mark.forget(*pid);
                        self.moved_texts.forget(*pid);
                        self.python.iter_mut().for_each(|(_, stacks)| stacks.forget(*pid));
                    }
                    SideEvent::Fork { pid, tid, .. } if pid == tid => {
                        self.java_frames.forget(*pid);
                        self.generated_bytes.forget(*pid);
                    }
                    SideEvent::Map { pid, start, end, pgoff, prot, path, .. } if prot & 4 != 0 => {
                        self.java_frames.mapped(*pid, (*start, *end), *pgoff, path);
                        self.generated_bytes.forget(*pid);
                        self.moved_texts.mapped(moment, event);
                    }
                    _ => {}
                }
                self.spaces.apply(moment, event, &self.modules);
            }
            Side::Ended { tid } => {
                self.outer_frames.forget(*tid);
                self.spaces.ended(moment, *tid);
            }
        }
    }

    /// Takes in code of files that was found in anonymous memory.
    fn find_moved_texts(&mut self) {
        while let Some(text) = self.moved_texts.next() {
            self.spaces.apply(text.moment, &text.event(), &self.modules);
            let Some(first) = self.events.list.first() else { return };
            let (major, minor, inode) = text.file_id;
            let map = build::MapSpec {
                addr: text.start,
                len: text.end - text.start,
                pgoff: text.pgoff,
                maj: major,
                min: minor,
                ino: inode,
                filename: &text.path,
                ..guessed::code(text.pid, text.tid)
            };
            let id = guessed::sample_id(first.ids.first().copied(), text.pid, text.tid, text.moment.time_ns);
            self.corrections.extend(build::mmap2(&first.attr, &id, &map));
        }
    }

    /// Records to be written before what was reduced last.
    pub(super) fn take_notes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.notes)
    }

    /// Records to be written after it.
    pub(super) fn take_corrections(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.corrections)
    }

    /// No sample that is still to come is older.
    pub(super) fn forget_before(&mut self, floor_ns: u64) {
        self.spaces.prune(floor_ns);
    }

    /// Rewrites the samples among these records; the records then are the first bytes, as many as
    /// are returned. `ring`: where they come from.
    pub(super) fn records(&mut self, ring: usize, bytes: &mut [u8]) -> usize {
        self.find_moved_texts();
        let (mut from, mut to) = (0, 0);
        while let Some(WholeRecord { header, .. }) = record_at(bytes, from) {
            let size = usize::from(header.size);
            if self.drops(header) || self.tells_of_python(ring, header, bytes, from) {
                from += size;
                continue;
            }
            let body = from + 8..from + size;
            let waits = self.waits.as_ref();
            let wait = waits.and_then(|waits| waits.complete(header, bytes.get_mut(body)?));
            let start = to;
            let reduced = self.sample(ring, header, bytes, from);
            let has_frames = matches!(reduced, Some((_, true)));
            to += match reduced {
                Some((parts, user)) => {
                    parts.unwind(bytes, from, size, to, user.then_some(self.frames.as_slice()))
                }
                None => {
                    bytes.copy_within(from..from + size, to);
                    size
                }
            };
            match (wait, &self.waits) {
                (Some(WaitSample::Renamed(id)), _) => {
                    bytes[start + 8..start + 16].copy_from_slice(&id.to_le_bytes());
                }
                (Some(WaitSample::OfOther), Some(waits)) => waits.clear_stack(&mut bytes[start..to]),
                (Some(WaitSample::Wait), Some(waits)) if has_frames => {
                    waits.locate(&mut bytes[start..to], self.frames.first());
                }
                _ => {}
            }
            from += size;
        }
        // What is no record stays: whoever counts damage sees it.
        bytes.copy_within(from.., to);
        to + (bytes.len() - from)
    }

    /// Whether a record was needed for unwinding only.
    pub(super) fn drops(&self, header: RecordHeader) -> bool {
        let is_mapping = matches!(header.kind, abi::PERF_RECORD_MMAP | abi::PERF_RECORD_MMAP2);
        !self.keeps_data_mappings && is_mapping && header.misc & abi::PERF_RECORD_MISC_MMAP_DATA != 0
    }

    /// Unwinds the sample at `from` into `frames`: what of it changes, and whether it has a user's
    /// part. `None`: it stays as it is.
    fn sample(
        &mut self,
        ring: usize,
        header: RecordHeader,
        bytes: &mut [u8],
        from: usize,
    ) -> Option<(StackParts, bool)> {
        if header.kind != abi::PERF_RECORD_SAMPLE {
            return None;
        }
        let body = &bytes[from + 8..from + usize::from(header.size)];
        let record = RawRecord { header, body, position: 0 };
        let layout = &self.events.list[self.events.event_of(&record)?].layout;
        let parts = layout.stack_parts(body)?;
        let mut sample = Sample::default();
        layout.parse_into(header.misc, body, &mut sample).ok()?;
        let regs = sample
            .user_regs
            .zip(Arch::NATIVE)
            .and_then(|(regs, arch)| UserRegs::from_perf(arch, regs.abi, regs.mask, regs.values.iter()));
        let Some((regs, stack)) = regs.zip(sample.user_stack) else { return Some((parts, false)) };
        let pid = sample.pid.unwrap_or(-1);
        let (tid, time_ns) = (sample.tid.unwrap_or(pid), sample.time.unwrap_or(0));
        let pages = self.stack_pages.as_mut().map(|pages| pages.take(ring, tid)).unwrap_or_default();
        if stack.is_empty() && pages.is_empty() {
            // A task that is starting or ending has none; or the stack pointer's page was never
            // touched, and the pages beyond it are asked for.
            self.counts.without_stack += 1;
            if let Some(stack_pages) = &mut self.stack_pages {
                stack_pages.unwound((pid, tid, time_ns), StackOutcome::Cut);
            }
            return Some((parts, false));
        }
        // Readers take so many frames with the kernel's part.
        let kernel = sample
            .callchain
            .map_or(0, |chain| chain.iter().filter(|&word| word < abi::PERF_CONTEXT_MAX).count());
        let most = MAX_FRAMES.saturating_sub(kernel).min(parts.room());
        let ip = sample.ip.zip(layout.field_offset(abi::PERF_SAMPLE_IP));
        let is_whole = self.unwind((pid, tid, time_ns), &regs, (stack, &pages), most);
        self.guessed.clear();
        self.guessed.extend(self.unwinder.guessed_callers());
        let chain = (&mut self.frames, most);
        self.guessed_mark.put((pid, tid, time_ns), &self.guessed, chain, &mut self.notes);
        if let Some(stack_pages) = &mut self.stack_pages {
            let outcome = match (self.was_cut, is_whole, pages.is_empty()) {
                (false, ..) | (_, true, true) => StackOutcome::Whole,
                (_, true, false) => StackOutcome::WholeByPages,
                (_, false, true) => StackOutcome::Cut,
                (_, false, false) => StackOutcome::CutWithPages,
            };
            stack_pages.unwound((pid, tid, time_ns), outcome);
        }
        if let Some((_, python)) = &mut self.python
            && python.put(ring, (pid, tid, time_ns), &mut self.frames, is_whole, most)
            && header.misc & abi::PERF_RECORD_MISC_CPUMODE_MASK == abi::PERF_RECORD_MISC_USER
            && let (Some(&innermost), Some((ip, at))) = (self.frames.first(), ip)
            && let Some(place) = bytes.get_mut(from + 8 + at..from + 16 + at)
            && place == ip.to_le_bytes()
        {
            place.copy_from_slice(&innermost.to_le_bytes());
        }
        Some((parts, true))
    }

    /// Takes in a sample that tells of Python's frames; `false`: it is another record.
    fn tells_of_python(&mut self, ring: usize, header: RecordHeader, bytes: &[u8], from: usize) -> bool {
        let Some((event, python)) = &mut self.python else { return false };
        if header.kind != abi::PERF_RECORD_SAMPLE {
            return false;
        }
        let body = &bytes[from + 8..from + usize::from(header.size)];
        if self.events.event_of(&RawRecord { header, body, position: 0 }) != Some(*event) {
            return false;
        }
        let mut sample = Sample::default();
        let layout = &self.events.list[*event].layout;
        if layout.parse_into(header.misc, body, &mut sample).is_ok()
            && let (Some(tid), Some(raw)) = (sample.tid, sample.raw)
            && !self.stack_pages.as_mut().is_some_and(|pages| pages.told(ring, tid, raw))
        {
            python.told(ring, tid, raw);
        }
        true
    }

    /// Unwinds one stack into `frames`, with the outer frames that its copy has not, if they can be
    /// found; `true`: they reach the thread's start.
    fn unwind(
        &mut self,
        (pid, tid, time_ns): (i32, i32, u64),
        regs: &UserRegs,
        (stack, pages): (&[u8], &[(u64, Vec<u8>)]),
        most: usize,
    ) -> bool {
        self.was_cut = false;
        let space = self.spaces.space(pid, tid, Moment { time_ns, position: u64::MAX });
        let (unwinder, frames) = (&mut self.unwinder, &mut self.frames);
        let bytes = &mut self.generated_bytes;
        let code = &mut ProcessCode { frames: &mut self.java_frames, bytes, pid, space };
        frames.clear();
        let mut stop = unwinder.unwind_generated(space, regs, stack, most, code, frames);
        if stop == Stop::StackEnd {
            self.stack_pointers.clear();
            self.stack_pointers.extend_from_slice(unwinder.stack_pointers());
            self.outer_frames.begin(tid);
            let outer = self.outer_frames.append(tid, time_ns, &mut self.stack_pointers, frames, most);
            if outer > 0 {
                unwinder.completed(outer);
                return true;
            }
            self.was_cut = true;
            self.longer.clear();
            self.longer.extend_from_slice(stack);
            if stack_pages::append(pages, regs.sp(), MOST_STACK_BYTES, &mut self.longer) {
                stop = unwinder.unwind_longer(space, regs, &self.longer, most, code, frames);
            }
        }
        let mut wanted = FIRST_STACK_BYTES;
        while stop == Stop::StackEnd && self.longer.len() < MOST_STACK_BYTES {
            let end = regs.sp().wrapping_add(self.longer.len() as u64);
            if !self.outer_memory.append(pid, tid, end, wanted, &mut self.longer) {
                return false;
            }
            wanted = MORE_STACK_BYTES;
            stop = unwinder.unwind_longer(space, regs, &self.longer, most, code, frames);
        }
        if stop == Stop::Root {
            self.outer_frames.keep(tid, time_ns, unwinder.stack_pointers(), frames);
        }
        stop == Stop::Root
    }

    /// What came of it.
    pub(super) fn counts(&self) -> Unwound {
        let events = self.events.list.iter();
        let copied_bytes = events.map(|event| event.attr.sample_stack_user).max().unwrap_or(0);
        Unwound { stats: self.unwinder.stats().clone(), copied_bytes, ..self.counts.clone() }
    }
}
