//! `StackPages` tells at a sample those pages of the stack that the kernel's copy of it left out.
//!
//! The kernel copies a stack upwards from the stack pointer. It ends at a limit, or at the first
//! page that is not in memory, such as the untouched part of a large array. The frames further out
//! are there, but not in the copy. A program at the sampling event reads them, while the thread
//! stands still, and puts each page into a sample of another event, `bpf-output`, just before the
//! sample itself in the same ring. It does so for threads that were asked for, and for as many of
//! their samples.
//!
//! ```text
//!  sample -> is its thread in WANTED? -> program: page, page, .. -> bpf-output    (WANTED -= 1)
//!               ^-- want_stack_pages                   '-> those beyond the copy that are in memory
//! ```
//!
//! # Invariants
//! - **S1** The program only reads, and brings no page into memory.
//! - **S2** At one sample, [`MOST_LOOKED_AT`] pages are looked at, and [`MOST_TOLD`] are told.
//! - **S3** A thread that nobody asked for costs one look-up a sample.
use super::programs::{PythonMaps, StackPagesMaps};
use crate::bpf::attach::load;
use crate::bpf::error::BpfError;
use crate::bpf::insn::{Assembler, BpfHelper, Compare, FP, Label, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9};
use crate::bpf::program::{Program, THIS_CPU};
use crate::bpf::sys::sized_map::{SizedMap, SizedMapKind};
use crate::bpf::sys::{self, ProgramKind};
use crate::bpf::types::TaskTypes;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

/// Threads that are asked for at the same time; the one that was not sampled for longest is forgotten.
const THREADS: u32 = 1 << 12;
/// So many pages from the stack pointer's on are looked at.
const MOST_LOOKED_AT: i32 = 64;
/// So many of them are told.
const MOST_TOLD: i32 = 16;
const PAGE: i32 = 1 << PAGE_SHIFT;
const PAGE_SHIFT: i32 = 12;
/// Where `struct pt_regs` of x86-64 has the stack pointer.
const STACK_POINTER_OFFSET: i32 = 152;

/// What a record begins with; other kinds are those of [`PythonRecord`](super::PythonRecord).
const KIND: i32 = 3;
const HEAD_BYTES: i32 = 16;
const RECORD_BYTES: i32 = HEAD_BYTES + PAGE;

/// The scratch: the record, and what changes in the loop.
const ADDRESS: i16 = 8;
const FIRST: i16 = RECORD_BYTES as i16;
const COPIED: i16 = FIRST + 8;
const TOLD: i16 = FIRST + 16;
const SCRATCH_BYTES: usize = FIRST as usize + 24;

/// On the stack of the programs.
const TID: i16 = -8;
const INDEX: i16 = -20;

/// Where [`StackPagesMaps::programs`] has the program.
const PROGRAM_INDEX: u32 = 0;

/// The maps and the program.
#[derive(Debug)]
pub(super) struct StackPages {
    wanted: SizedMap,
    scratch: SizedMap,
    programs: SizedMap,
    /// Once a thread was asked for. `None`: the kernel refused it.
    program: OnceLock<Option<OwnedFd>>,
}

impl StackPages {
    /// # Errors
    /// [`BpfError::Map`]: what the kernel refused.
    pub(super) fn new() -> Result<StackPages, BpfError> {
        let map = |what, kind, sizes, entries| {
            let made = SizedMap::new(kind, sizes, entries, sys::name("kymo_stacks"));
            made.map_err(|cause| BpfError::Map { what, entries, cause })
        };
        Ok(StackPages {
            wanted: map("threads with deep stacks", SizedMapKind::RecentlyUsed, (4, 8), THREADS)?,
            scratch: map("pages of stacks", SizedMapKind::PerCpuArray, (4, SCRATCH_BYTES), 1)?,
            programs: map("programs", SizedMapKind::Programs, (4, 4), 1)?,
            program: OnceLock::new(),
        })
    }

    pub(super) fn maps(&self) -> StackPagesMaps {
        StackPagesMaps {
            wanted: self.wanted.number(),
            scratch: self.scratch.number(),
            programs: self.programs.number(),
        }
    }

    /// Loads the program. `maps`: of what samples beside it.
    ///
    /// # Errors
    /// [`BpfError`]: what the kernel refused.
    fn load(&self, maps: PythonMaps, types: &TaskTypes) -> Result<OwnedFd, BpfError> {
        let loaded = load(ProgramKind::PerfEvent, "kymo_stack", &program(maps), Some(types))?;
        let set = self.programs.set_program(PROGRAM_INDEX, loaded.as_fd());
        set.map_err(|cause| BpfError::Enter { targets: 1, cause })?;
        Ok(loaded)
    }

    /// As [`PythonWalker::want_stack_pages`](super::PythonWalker::want_stack_pages).
    pub(super) fn want(&self, maps: PythonMaps, types: &TaskTypes, tid: i32, wish: StackWish) -> bool {
        let load = || {
            let loaded = self.load(maps, types);
            loaded.inspect_err(|error| tracing::debug!(%error, "stacks end with their copies")).ok()
        };
        if self.program.get_or_init(load).is_none() {
            return false;
        }
        let pages = wish.copied_bytes >> PAGE_SHIFT;
        let value = u64::from(pages) << 32 | u64::from(wish.samples);
        self.wanted.update(&tid.to_ne_bytes(), &value.to_ne_bytes()).is_ok()
    }
}

/// What is wanted of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackWish {
    /// At so many of its next samples, at least one.
    pub samples: u32,
    /// The kernel copies at most so many bytes of its stack by itself.
    pub copied_bytes: u32,
}

/// A page of a stack, in the raw bytes of a sample of the `bpf-output` event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackPage<'a> {
    /// Its first byte's address.
    pub address: u64,
    /// All of it.
    pub bytes: &'a [u8],
}

impl<'a> StackPage<'a> {
    /// `None`: the bytes are another record.
    pub fn parse(raw: &'a [u8]) -> Option<StackPage<'a>> {
        let (&kind, rest) = raw.split_first_chunk()?;
        let (&address, rest) = rest.get(4..)?.split_first_chunk()?;
        if i32::from_ne_bytes(kind) != KIND {
            return None;
        }
        Some(StackPage { address: u64::from_ne_bytes(address), bytes: rest.get(..PAGE as usize)? })
    }
}

impl Assembler {
    /// Goes on with the program that tells pages if the running thread is wanted. R6 is the context.
    pub(super) fn go_on_with_stack_pages(&mut self, maps: StackPagesMaps) {
        let end = self.label();
        self.call(BpfHelper::CurrentPidTgid);
        self.store32(FP, TID, R0);
        self.look_up(maps.wanted, TID, end);
        self.mov(R1, R6);
        self.load_map(R2, maps.programs);
        self.mov_imm(R3, PROGRAM_INDEX as i32);
        self.call(BpfHelper::GoOn);
        self.place(end);
    }

    /// R8 = the scratch, with the page of the stack pointer, and how many pages the kernel has
    /// copied at most; or on to `end`. The thread is wanted once less.
    fn begin_stack(&mut self, maps: StackPagesMaps, end: Label) {
        let (last, more) = (self.label(), self.label());
        self.call(BpfHelper::CurrentPidTgid);
        self.store32(FP, TID, R0);
        self.store32_imm(FP, INDEX, 0);
        self.look_up(maps.scratch, INDEX, end);
        self.mov(R8, R0);
        self.look_up(maps.wanted, TID, end);
        self.load64(R7, R0, 0);
        self.mov(R1, R7);
        self.add_imm(R1, -1);
        self.store64(R0, 0, R1);
        self.mov(R1, R7);
        self.shift_right_imm(R1, 32);
        self.store64(R8, COPIED, R1);
        self.truncate32(R7);
        self.jump_if_below(R7, 2, last);
        self.jump(more);
        self.place(last);
        self.remove(maps.wanted, TID);
        self.place(more);
        self.call(BpfHelper::CurrentTaskTyped);
        self.mov(R1, R0);
        self.call(BpfHelper::TaskRegisters);
        self.mov(R3, R0);
        self.add_imm(R3, STACK_POINTER_OFFSET);
        self.mov(R1, R8);
        self.add_imm(R1, FIRST.into());
        self.mov_imm(R2, 8);
        self.call(BpfHelper::ReadKernel);
        self.jump_unless(R0, 0, end);
        self.load64(R1, R8, FIRST);
        self.shift_right_imm(R1, PAGE_SHIFT);
        self.shift_left_imm(R1, PAGE_SHIFT);
        self.store64(R8, FIRST, R1);
        self.store64_imm(R8, TOLD, 0);
        self.store32_imm(R8, 0, KIND);
        self.store32_imm(R8, 4, 0);
    }

    /// Looks at one page, and tells it unless the kernel has copied it.
    fn stack_page_step(&mut self, events: i32, function: Label, starts: &mut Vec<usize>) {
        let (absent, more, done) = (self.label(), self.label(), self.label());
        self.begin_function(function, starts);
        self.mov(R3, R9);
        self.shift_left_imm(R3, PAGE_SHIFT);
        self.load64(R1, R8, FIRST);
        self.add(R3, R1);
        self.store64(R8, ADDRESS, R3);
        self.mov(R1, R8);
        self.add_imm(R1, HEAD_BYTES);
        self.mov_imm(R2, PAGE);
        self.call(BpfHelper::ReadUser);
        self.jump_unless(R0, 0, absent);
        self.load64(R1, R8, COPIED);
        self.mov(R2, R9);
        self.add_imm(R2, 1);
        self.jump_on(Compare::GreaterEqual, R1, R2, more);
        self.mov(R1, R6);
        self.load_map(R2, events);
        self.mov_imm64(R3, THIS_CPU);
        self.mov(R4, R8);
        self.mov_imm(R5, RECORD_BYTES);
        self.call(BpfHelper::EventOutput);
        self.jump_unless(R0, 0, done); // no room
        self.load64(R1, R8, TOLD);
        self.add_imm(R1, 1);
        self.store64(R8, TOLD, R1);
        self.jump_if_below(R1, MOST_TOLD, more);
        self.jump(done);
        // The kernel's copy ended here.
        self.place(absent);
        self.store64_imm(R8, COPIED, 0);
        self.end_function(more, done);
    }
}

/// Tells the pages of the running thread's stack that its sample will not have; keeps the sample.
fn program(maps: PythonMaps) -> Program {
    let (mut a, mut functions) = (Assembler::new(), Vec::new());
    let (step, end) = (a.label(), a.label());
    a.mov(R6, R1); // R6 = the context
    a.begin_stack(maps.stacks, end);
    a.mov_imm(R7, 0);
    a.repeat(MOST_LOOKED_AT, step);
    a.place(end);
    a.enter_walker(maps);
    let kept = a.label();
    a.show(kept);
    a.stack_page_step(maps.events, step, &mut functions);
    Program { functions, ..a.finish().into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::PythonWalker;
    use kymo_testing::skip;

    /// Checks that the kernel accepts the program, once a thread is wanted.
    #[test]
    fn stack_pages_load() {
        let walker = match PythonWalker::new() {
            Ok(walker) => walker,
            Err(error) => return skip("bpf::stack_pages::stack_pages_load", error.to_string()),
        };
        walker.stacks.load(walker.maps(), &walker.types).unwrap();
        assert!(walker.want_stack_pages(1, StackWish { samples: 8, copied_bytes: 1 << 16 }));
    }

    /// Checks that a page is read as it is written, and that other kinds and cut bytes are none.
    #[test]
    fn pages_are_read() {
        let mut raw = [&3u64.to_ne_bytes()[..], &0x7000u64.to_ne_bytes()].concat();
        raw.resize(RECORD_BYTES as usize + 4, 7);
        let page = StackPage::parse(&raw).unwrap();
        assert_eq!((page.address, page.bytes.len(), page.bytes[0]), (0x7000, 4096, 7));
        assert_eq!(StackPage::parse(&raw[..4111]), None);
        raw[0] = 2;
        assert_eq!(StackPage::parse(&raw), None);
    }
}
