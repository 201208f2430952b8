//! The BPF programs that walk Python's frames. Each is written here as it runs.
//!
//! What changes in a loop lies in the scratch, a map's memory: the verifier believes nothing of it,
//! so that it looks at each loop once (700 instructions in all; 170,000 when it followed each turn).
//! Bounds are made where numbers are used: an offset within the copy of a frame has 7 bits, whatever
//! the layout says.
use super::layout::{NONE, OBJECT, SEPARATED, at};
use super::record::{self, FRAME_BYTES, HEAD_BYTES, MOST_FRAMES};
use crate::bpf::insn::{
    Assembler, BpfHelper, Compare, FP, Label, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, Reg,
};
use crate::bpf::program::{CLONE_THREAD, Program, THIS_CPU};
use crate::bpf::types::Member;

/// The descriptors of the maps that the programs use.
#[derive(Clone, Copy, Debug)]
pub struct PythonMaps {
    /// Process id -> layout: processes whose frames are walked.
    pub(super) processes: i32,
    /// Process id -> samples of it: processes that are not known to be Python.
    pub(super) others: i32,
    /// Thread id -> address of its state in the interpreter.
    pub(super) threads: i32,
    /// Code objects whose names were told.
    pub(super) codes: i32,
    /// Room for one sample's frames.
    pub(super) scratch: i32,
    /// The walker, once there is one.
    pub(super) programs: i32,
    /// The event of each CPU that takes what the walker tells.
    pub(super) events: i32,
    /// Processes to be looked at.
    pub(super) requests: i32,
    /// What tells of stacks.
    pub(super) stacks: StackPagesMaps,
}

/// The same of what tells of stacks.
#[derive(Clone, Copy, Debug)]
pub(super) struct StackPagesMaps {
    /// Thread id -> how many of its samples are looked at, and how many pages the kernel copies.
    pub(super) wanted: i32,
    pub(super) scratch: i32,
    /// The program that tells pages, once there is one.
    pub(super) programs: i32,
}

/// So many thread states are looked through.
const MOST_STATES: i32 = 512;
/// So many code objects are told at one sample.
const MOST_CODES: i32 = 32;

/// On the stack of the programs.
const PID: i16 = -4;
const TID: i16 = -8;
const COUNT: i16 = -16;
const INDEX: i16 = -20;
/// What functions in loops get: the context, the layout, the scratch.
const SHARED: i16 = -48;

/// Where the scratch has the frames that are told, a copy of one as it lies in memory, and the
/// record of a code object.
const RAW_FRAME: i16 = 2112;
const RAW_FRAME_BYTES: i32 = 128;
/// The words that functions share: of the verifier's view, so that it looks at a loop once.
const WORDS: i16 = RAW_FRAME + RAW_FRAME_BYTES as i16;
const FS_BASE: i16 = WORDS;
const STATE: i16 = WORDS + 8;
const INTERPRETER: i16 = WORDS + 16;
const WORD: i16 = WORDS + 24;
const FRAME: i16 = WORDS + 32;
/// How many frames there are so far, how many code objects were told, whether a state was found.
const FRAMES: i16 = WORDS + 40;
const CODES_TOLD: i16 = WORDS + 48;
const FOUND: i16 = WORDS + 56;
/// The key of a code object: its address, what its names are, which interpreter's it is.
const CODE: i16 = WORDS + 64;
const CODE_NAMES_HASH: i16 = CODE + 8;
const CODE_INTERPRETER: i16 = CODE + 12;
/// File name, name, and the two that follow: qualified name and lines, or lines and nothing.
const NAMES: i16 = CODE + 16;
const POSITION: i16 = NAMES + 32;
const LINES: i16 = POSITION + 8;
/// The process: one that another has forked may have other code at the same address.
const OWN_PID: i16 = LINES + 8;
const CODE_RECORD: i16 = OWN_PID + 8;
pub(super) const SCRATCH_BYTES: usize = CODE_RECORD as usize + record::CODE_RECORD_BYTES;

impl Assembler {
    /// At each sample: what is told of its stack, and of Python. R6 is the context.
    pub(in crate::bpf) fn walk_python(&mut self, maps: PythonMaps) {
        self.go_on_with_stack_pages(maps.stacks);
        self.enter_walker(maps);
    }

    /// At each sample of a process: the walker goes on if it is known to be Python; else it is
    /// counted. R6 is the context.
    pub(super) fn enter_walker(&mut self, maps: PythonMaps) {
        let (unknown, end) = (self.label(), self.label());
        self.running_process(end);
        self.look_up(maps.processes, PID, unknown);
        self.go_on_with_walker(maps);
        self.jump(end);
        self.place(unknown);
        self.count_other(maps);
        self.place(end);
    }

    /// The walker goes on if the running process is known to be Python. R6 is the context.
    pub(super) fn enter_known(&mut self, maps: PythonMaps) {
        let end = self.label();
        self.running_process(end);
        self.look_up(maps.processes, PID, end);
        self.go_on_with_walker(maps);
        self.place(end);
    }

    /// The running process is counted unless it is known to be Python. R0 to R5 and R7 are lost,
    /// and 20 bytes of the stack.
    pub(in crate::bpf) fn count_unknown(&mut self, maps: PythonMaps) {
        let (unknown, end) = (self.label(), self.label());
        self.running_process(end);
        self.look_up(maps.processes, PID, unknown);
        self.jump(end);
        self.place(unknown);
        self.count_other(maps);
        self.place(end);
    }

    /// *PID = the running process, or on to `idle` on a CPU that has none
    fn running_process(&mut self, idle: Label) {
        self.call(BpfHelper::CurrentPidTgid);
        self.shift_right_imm(R0, 32);
        self.store32(FP, PID, R0);
        self.jump_if(R0, 0, idle);
    }

    /// Does not return, unless there is no walker. R6 is the context.
    fn go_on_with_walker(&mut self, maps: PythonMaps) {
        self.mov(R1, R6);
        self.load_map(R2, maps.programs);
        self.mov_imm(R3, 0);
        self.call(BpfHelper::GoOn);
    }

    /// Counts the process *PID, which is looked at outside at its 1st, 2nd, 4th, 8th .. sample.
    fn count_other(&mut self, maps: PythonMaps) {
        let (first, tell, end) = (self.label(), self.label(), self.label());
        self.look_up(maps.others, PID, first);
        self.load64(R7, R0, 0);
        self.add_imm(R7, 1);
        self.store64(R0, 0, R7);
        self.mov(R1, R7);
        self.add_imm(R1, -1);
        self.and(R1, R7);
        self.jump_unless(R1, 0, end); // not a power of two
        self.jump(tell);
        self.place(first);
        self.mov_imm(R7, 1);
        self.store64(FP, COUNT, R7);
        self.set(maps.others, PID, COUNT, 0);
        self.place(tell);
        self.load_map(R1, maps.requests);
        self.mov_imm(R2, 16);
        self.mov_imm(R3, 0);
        self.call(BpfHelper::RingReserve);
        self.jump_if(R0, 0, end);
        self.load32(R1, FP, PID);
        self.store64(R0, 0, R1);
        self.store64(R0, 8, R7);
        self.mov(R1, R0);
        self.mov_imm(R2, 0);
        self.call(BpfHelper::RingSubmit);
        self.place(end);
    }
}

/// What the functions of the walker have in common: R6 is the context, R7 the layout, R8 the
/// scratch.
impl Assembler {
    /// reg = the address of a word of the scratch
    fn scratch_address(&mut self, reg: Reg, offset: i16) {
        self.mov(reg, R8);
        self.add_imm(reg, offset.into());
    }

    /// *word = 8 bytes of the running process at R3, or on to `unread`
    fn read_user_word(&mut self, word: i16, unread: Label) {
        self.scratch_address(R1, word);
        self.mov_imm(R2, 8);
        self.call(BpfHelper::ReadUser);
        self.jump_unless(R0, 0, unread);
    }

    /// *to = the word at *from + the offset that the layout has at `offset`, or on to `unread`
    fn follow(&mut self, to: i16, from: i16, offset: i16, unread: Label) {
        self.load64(R3, R8, from);
        self.load32(R1, R7, offset);
        self.add(R3, R1);
        self.read_user_word(to, unread);
    }

    /// R1 = the address of the field in the copy of the frame whose offset the layout has
    fn frame_field(&mut self, offset: i16) {
        self.load32(R1, R7, offset);
        self.and_imm(R1, RAW_FRAME_BYTES - 1);
        self.add(R1, R8);
    }

    /// reg = the lesser of reg and `most`, without signs
    fn limit(&mut self, reg: Reg, most: i32) {
        let within = self.label();
        self.jump_if_below(reg, most, within);
        self.mov_imm(reg, most);
        self.place(within);
    }

    /// Tells R5 bytes of the scratch from `from` on; R0 = 0 if that was done
    fn tell_scratch(&mut self, events: i32, from: i16) {
        self.mov(R1, R6);
        self.load_map(R2, events);
        self.mov_imm64(R3, THIS_CPU);
        self.scratch_address(R4, from);
        self.call(BpfHelper::EventOutput);
    }

    /// Calls a function with the shared registers, so often at most, until it says that it is done.
    pub(super) fn repeat(&mut self, times: i32, function: Label) {
        for (place, reg) in (SHARED..).step_by(8).zip([R6, R7, R8]) {
            self.store64(FP, place, reg);
        }
        self.mov_imm(R1, times);
        self.load_function(R2, function);
        self.stack_address(R3, SHARED);
        self.mov_imm(R4, 0);
        self.call(BpfHelper::Loop);
    }

    /// The beginning of such a function: R9 is the number of the call.
    pub(super) fn begin_function(&mut self, function: Label, starts: &mut Vec<usize>) {
        starts.push(self.here());
        self.place(function);
        self.mov(R9, R1);
        for (offset, reg) in (0..).step_by(8).zip([R6, R7, R8]) {
            self.load64(reg, R2, offset);
        }
    }

    /// The two ends of such a function.
    pub(super) fn end_function(&mut self, more: Label, done: Label) {
        self.place(more);
        self.mov_imm(R0, 0);
        self.exit();
        self.place(done);
        self.mov_imm(R0, 1);
        self.exit();
    }

    /// *STATE = the state of the running thread, or on to `none`: the one that it had at its last
    /// sample, if it is still its own, else the one of its id among those of all interpreters.
    fn find_state(&mut self, maps: PythonMaps, search_step: Label, none: Label) {
        let (search, end) = (self.label(), self.label());
        self.look_up(maps.threads, TID, search);
        self.load64(R1, R0, 0);
        self.store64(R8, STATE, R1);
        self.follow(WORD, STATE, at::THREAD_ID, search);
        self.load64(R1, R8, WORD);
        self.load64(R2, R8, FS_BASE);
        self.jump_if_same(R1, R2, end);

        self.place(search);
        self.store64_imm(R8, FOUND, 0);
        self.load64(R3, R7, at::INTERPRETERS);
        self.read_user_word(INTERPRETER, none);
        self.load64(R1, R8, INTERPRETER);
        self.jump_if(R1, 0, none);
        self.follow(STATE, INTERPRETER, at::INTERPRETER_THREADS, none);
        self.repeat(MOST_STATES, search_step);
        self.load64(R1, R8, FOUND);
        self.jump_if(R1, 0, none);
        self.load_map(R1, maps.threads);
        self.stack_address(R2, TID);
        self.scratch_address(R3, STATE);
        self.mov_imm(R4, 0);
        self.call(BpfHelper::MapUpdate);
        self.place(end);
    }

    /// Looks at one state; the next one is that of the list, or the first of the next interpreter.
    fn search_step(&mut self, function: Label, starts: &mut Vec<usize>) {
        let (next, more, done) = (self.label(), self.label(), self.label());
        self.begin_function(function, starts);
        self.load64(R1, R8, STATE);
        self.jump_if(R1, 0, next);
        self.follow(WORD, STATE, at::THREAD_ID, done);
        self.load64(R1, R8, WORD);
        self.load64(R2, R8, FS_BASE);
        let other = self.label();
        self.jump_on(Compare::NotEqual, R1, R2, other);
        self.store64_imm(R8, FOUND, 1);
        self.jump(done);
        self.place(other);
        self.follow(STATE, STATE, at::THREAD_NEXT, done);
        self.jump(more);
        self.place(next);
        self.follow(INTERPRETER, INTERPRETER, at::INTERPRETER_NEXT, done);
        self.load64(R1, R8, INTERPRETER);
        self.jump_if(R1, 0, done);
        self.follow(STATE, INTERPRETER, at::INTERPRETER_THREADS, done);
        self.end_function(more, done);
    }

    /// *FRAME = the innermost frame of *STATE, or on to `none`
    fn innermost_frame(&mut self, none: Label) {
        let direct = self.label();
        self.follow(FRAME, STATE, at::THREAD_FRAME, none);
        self.load32(R1, R7, at::INNER_FRAME);
        self.mov_imm64(R2, u64::from(NONE));
        self.jump_if_same(R1, R2, direct);
        self.follow(FRAME, FRAME, at::INNER_FRAME, none);
        self.place(direct);
    }

    /// *CODE, *POSITION of the frame whose copy the scratch has; on to `entry` if it runs no code
    fn frame_parts(&mut self, entry: Label) {
        let (index, unmarked, code) = (self.label(), self.label(), self.label());
        self.frame_field(at::FRAME_CODE);
        self.load64(R4, R1, RAW_FRAME);
        self.and_imm(R4, -8); // from 3.14 on the lowest bits say how it is owned
        self.store64(R8, CODE, R4);
        self.frame_field(at::FRAME_POSITION);
        self.load64(R5, R1, RAW_FRAME);
        self.load32(R2, R7, at::KIND);
        self.jump_if(R2, OBJECT, index);
        self.sub(R5, R4); // an address within the code object
        self.place(index);
        self.shift_left_imm(R5, 33);
        self.shift_right_imm(R5, 33);
        self.store32_imm(R8, CODE_NAMES_HASH, 0);
        self.load32(R1, R7, at::ID);
        self.store32(R8, CODE_INTERPRETER, R1);
        self.frame_field(at::FRAME_MARK);
        self.load8(R3, R1, RAW_FRAME);
        self.load32(R4, R7, at::ENTRY_MARK);
        self.store32(R8, POSITION, R5);
        self.jump_on(Compare::NotEqual, R3, R4, unmarked);
        self.mov_imm(R1, 1);
        self.shift_left_imm(R1, 31);
        self.add(R5, R1);
        self.store32(R8, POSITION, R5);
        self.jump_unless(R2, SEPARATED, code);
        self.jump(entry);
        self.place(unmarked);
        self.place(code);
    }

    /// *NAMES and their hash of the code object *CODE, or on to `unread`
    fn code_names(&mut self, unread: Label) {
        let all = self.label();
        self.load64(R3, R8, CODE);
        self.load32(R1, R7, at::CODE_NAMES);
        self.add(R3, R1);
        self.scratch_address(R1, NAMES);
        self.mov_imm(R2, 32);
        self.call(BpfHelper::ReadUser);
        self.jump_unless(R0, 0, unread);
        self.load32(R1, R7, at::KIND);
        self.jump_unless(R1, OBJECT, all);
        // Behind the lines stands what changes, and names are not qualified.
        self.load64(R1, R8, NAMES + 16);
        self.store64(R8, NAMES + 24, R1);
        self.store64_imm(R8, NAMES + 16, 0);
        self.place(all);
        self.load64(R1, R8, OWN_PID);
        self.shift_left_imm(R1, 9);
        self.load64(R2, R8, NAMES);
        self.add(R1, R2);
        for (offset, bits) in [(8, 5), (16, 11), (24, 17)] {
            self.load64(R2, R8, NAMES + offset);
            self.shift_left_imm(R2, bits);
            self.add(R1, R2);
        }
        self.mov(R2, R1);
        self.shift_right_imm(R2, 32);
        self.add(R1, R2);
        self.store32(R8, CODE_NAMES_HASH, R1);
    }

    /// The text whose address is in a word, with its head, to `to` of the scratch.
    fn copy_text(&mut self, word: i16, to: i16) {
        let end = self.label();
        self.store64_imm(R8, to + 16, 0);
        self.load64(R3, R8, word);
        self.jump_if(R3, 0, end);
        self.scratch_address(R1, to);
        self.mov_imm(R2, record::TEXT_HEAD_BYTES);
        self.call(BpfHelper::ReadUser);
        self.jump_unless(R0, 0, end);
        self.load64(R2, R8, to + 16); // characters
        self.limit(R2, record::TEXT_BYTES);
        // The width of each is 1, 2 or 4 bytes, from bit 2 of the state on. Earlier
        // versions of 3.14 had it from bit 16 on, and nothing at bit 2.
        let width = self.label();
        self.load32(R4, R8, to + 32);
        self.mov(R1, R4);
        self.shift_right_imm(R1, 2);
        self.and_imm(R1, 7);
        self.jump_unless(R1, 0, width);
        self.mov(R1, R4);
        self.shift_right_imm(R1, 16);
        self.and_imm(R1, 7);
        self.place(width);
        self.shift_right_imm(R1, 1);
        self.shift_left(R2, R1);
        self.limit(R2, record::TEXT_BYTES);
        self.add_imm(R2, record::TEXT_HEAD_BYTES);
        self.scratch_address(R1, to);
        self.load64(R3, R8, word);
        self.call(BpfHelper::ReadUser);
        self.place(end);
    }

    /// Tells the code object *CODE with its names and lines; what was told is not told again.
    fn tell_code(&mut self, maps: PythonMaps) {
        let (no_lines, end) = (self.label(), self.label());
        let field = |offset: usize| CODE_RECORD + offset as i16;
        self.load64(R1, R8, CODES_TOLD);
        self.add_imm(R1, 1);
        self.store64(R8, CODES_TOLD, R1);
        let room = self.label();
        self.jump_if_below(R1, MOST_CODES, room);
        self.jump(end);
        self.place(room);
        self.store32_imm(R8, field(0), record::CODE_KIND);
        self.load32(R1, R8, CODE_INTERPRETER);
        self.store32(R8, field(4), R1);
        self.load64(R1, R8, CODE);
        self.store64(R8, field(8), R1);
        self.load32(R1, R8, CODE_NAMES_HASH);
        self.store64(R8, field(16), R1);
        self.scratch_address(R1, field(record::CODE_AT));
        self.mov_imm(R2, record::CODE_BYTES);
        self.load64(R3, R8, CODE);
        self.call(BpfHelper::ReadUser);
        self.jump_unless(R0, 0, end);
        for (word, to) in (NAMES..).step_by(8).zip(record::TEXTS_AT) {
            self.copy_text(word, field(to));
        }
        self.store64_imm(R8, LINES, 0);
        self.load64(R3, R8, NAMES + 24);
        self.add_imm(R3, 16);
        self.read_user_word(LINES, no_lines);
        self.place(no_lines);
        self.load64(R2, R8, LINES);
        self.store64(R8, field(record::LINES_AT), R2);
        self.limit(R2, record::MOST_LINE_BYTES);
        self.store64(R8, LINES, R2);
        self.scratch_address(R1, field(record::LINES_AT + 8));
        self.load64(R3, R8, NAMES + 24);
        self.add_imm(R3, 32);
        self.call(BpfHelper::ReadUser);
        self.load64(R5, R8, LINES);
        self.limit(R5, record::MOST_LINE_BYTES);
        self.add_imm(R5, record::LINES_AT as i32 + 8);
        self.tell_scratch(maps.events, CODE_RECORD);
        self.jump_unless(R0, 0, end); // no room: it is told at a later sample
        self.load_map(R1, maps.codes);
        self.scratch_address(R2, CODE);
        self.scratch_address(R3, LINES);
        self.mov_imm(R4, 0);
        self.call(BpfHelper::MapUpdate);
        self.place(end);
    }

    /// Looks at the frame *FRAME; the next one is the one that called it.
    fn frame_step(&mut self, maps: PythonMaps, function: Label, starts: &mut Vec<usize>) {
        let (add, more, done) = (self.label(), self.label(), self.label());
        self.begin_function(function, starts);
        self.load64(R3, R8, FRAME);
        self.jump_if(R3, 0, done);
        self.scratch_address(R1, RAW_FRAME);
        self.load32(R2, R7, at::FRAME_BYTES);
        self.limit(R2, RAW_FRAME_BYTES);
        self.call(BpfHelper::ReadUser);
        self.jump_unless(R0, 0, done);
        self.frame_parts(add);
        self.code_names(add);
        self.load_map(R1, maps.codes);
        self.scratch_address(R2, CODE);
        self.call(BpfHelper::MapLookup);
        self.jump_unless(R0, 0, add);
        self.tell_code(maps);
        self.place(add);
        self.and_imm(R9, MOST_FRAMES as i32 - 1);
        self.mov(R1, R9);
        self.shift_left_imm(R1, FRAME_BYTES.ilog2() as i32);
        self.add(R1, R8);
        self.load64(R2, R8, CODE);
        self.store64(R1, HEAD_BYTES as i16, R2);
        self.load32(R2, R8, CODE_NAMES_HASH);
        self.store32(R1, HEAD_BYTES as i16 + 8, R2);
        self.load32(R2, R8, POSITION);
        self.store32(R1, HEAD_BYTES as i16 + 12, R2);
        self.frame_field(at::FRAME_PREVIOUS);
        self.load64(R2, R1, RAW_FRAME);
        self.store64(R8, FRAME, R2);
        self.add_imm(R9, 1);
        self.store64(R8, FRAMES, R9);
        self.end_function(more, done);
    }
}

/// Walks the frames of the running thread and tells them; returns 1, so that the sample is kept.
pub(super) fn walker(maps: PythonMaps) -> Program {
    let (mut a, mut wanted, mut functions) = (Assembler::new(), Vec::new(), Vec::new());
    let (search_step, frame_step, end) = (a.label(), a.label(), a.label());
    a.mov(R6, R1); // R6 = the context
    a.call(BpfHelper::CurrentPidTgid);
    a.store32(FP, TID, R0);
    a.shift_right_imm(R0, 32);
    a.store32(FP, PID, R0);
    a.look_up(maps.processes, PID, end);
    a.mov(R7, R0); // R7 = the layout
    a.store32_imm(FP, INDEX, 0);
    a.look_up(maps.scratch, INDEX, end);
    a.mov(R8, R0); // R8 = the scratch
    a.call(BpfHelper::CurrentTask);
    a.mov(R3, R0);
    a.read_member(SHARED, 8, Member::FsBase, end, &mut wanted);
    a.load64(R1, FP, SHARED);
    a.store64(R8, FS_BASE, R1);
    a.load32(R1, FP, PID);
    a.store64(R8, OWN_PID, R1);
    a.find_state(maps, search_step, end);
    a.innermost_frame(end);
    a.store64_imm(R8, CODES_TOLD, 0);
    a.store64_imm(R8, FRAMES, 0);
    a.repeat(MOST_FRAMES as i32, frame_step);
    a.load64(R9, R8, FRAMES);
    a.jump_if(R9, 0, end);
    a.limit(R9, MOST_FRAMES as i32);
    a.store32_imm(R8, 0, record::FRAMES_KIND);
    a.load32(R1, R7, at::ID);
    a.store32(R8, 4, R1);
    a.store64(R8, 8, R9);
    a.mov(R5, R9);
    a.shift_left_imm(R5, FRAME_BYTES.ilog2() as i32);
    a.add_imm(R5, HEAD_BYTES as i32);
    a.tell_scratch(maps.events, 0);
    a.show(end);
    a.search_step(search_step, &mut functions);
    a.frame_step(maps, frame_step, &mut functions);
    Program { wanted, functions, ..a.finish().into() }
}

/// For events without another program: keeps every sample.
pub(super) fn gate(maps: PythonMaps) -> Program {
    let mut a = Assembler::new();
    let end = a.label();
    a.mov(R6, R1); // R6 = the context
    a.walk_python(maps);
    a.show(end);
    a.finish().into()
}

/// Runs when a process executes a program, or (`ends`) when a thread ends: what is known of the
/// process is no longer true.
pub(super) fn forget(maps: PythonMaps, ends: bool) -> Program {
    let mut a = Assembler::new();
    let end = a.label();
    a.call(BpfHelper::CurrentPidTgid);
    a.mov(R6, R0);
    a.shift_right_imm(R6, 32);
    a.store32(FP, PID, R6);
    if ends {
        a.truncate32(R0);
        a.jump_on(Compare::NotEqual, R0, R6, end); // not the first thread
    }
    a.remove(maps.processes, PID);
    a.remove(maps.others, PID);
    a.show(end);
    a.finish().into()
}

/// Runs in the maker when a task has been made and has not run yet: a new process is what its maker
/// is, with everything at the same addresses.
pub(super) fn inherit(maps: PythonMaps) -> Program {
    let (mut a, mut wanted) = (Assembler::new(), Vec::new());
    let end = a.label();
    a.load64(R2, R1, 8); // the flags
    a.load64(R6, R1, 0); // R6 = the new task
    a.and_imm(R2, CLONE_THREAD);
    a.jump_unless(R2, 0, end);
    a.mov(R3, R6);
    a.read_member(TID, 4, Member::Id, end, &mut wanted);
    a.call(BpfHelper::CurrentPidTgid);
    a.shift_right_imm(R0, 32);
    a.store32(FP, PID, R0);
    a.look_up(maps.processes, PID, end);
    a.mov(R3, R0);
    a.load_map(R1, maps.processes);
    a.stack_address(R2, TID);
    a.mov_imm(R4, 0);
    a.call(BpfHelper::MapUpdate);
    a.show(end);
    Program { wanted, ..a.finish().into() }
}
