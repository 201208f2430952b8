//! The BPF programs that follow tasks and filter samples.
//!
//! Each is written here as it runs, from top to bottom. `FOLLOWED` and `STATE` are the maps of
//! [`super::map`], `EVER` that of [`super::followed_bitmap`].
use super::insn::{Assembler, BpfHelper, FP, Label, R0, R1, R2, R3, R4, R6, R7, R8, R9, Reg};
use super::sys::Instruction;
use super::types::Member;

/// In FOLLOWED: samples are kept.
pub(super) const NOW: u64 = 1;
/// In FOLLOWED: samples are kept once it has executed a program.
pub(super) const FROM_EXEC: u64 = 2;

/// In STATE: how many could not be followed because FOLLOWED was full or memory was short.
pub(super) const MISSED: u32 = 0;
/// In STATE: 1 when every target that was there before is in FOLLOWED.
pub(super) const SETTLED: u32 = 1;

/// A hit of a tracepoint whose program returns 0 is hidden from everyone else who listens to it, so
/// ours return this.
const SHOW_TO_OTHERS: i32 = 1;

/// Among the flags of a new task: it is a thread of its maker's process.
pub(super) const CLONE_THREAD: i32 = 0x1_0000;

/// The CPU on which a program runs, as an index of events.
pub(super) const THIS_CPU: u64 = 0xffff_ffff;

/// Where on the stack the programs keep what they give to the kernel by address.
const KEY: i16 = -4;
const OTHER: i16 = -8;
const VALUE: i16 = -16;
const WORD: i16 = -20;

/// What FOLLOWED's keys are, all in the first pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FollowKey {
    /// Ids of processes: their threads need no entries.
    Process,
    /// Ids of threads.
    Thread,
}

/// The descriptors of the maps, and what FOLLOWED's keys are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maps {
    pub(super) followed: i32,
    pub(super) state: i32,
    /// `None` where there is no such map.
    pub(super) ever: Option<i32>,
    pub(super) key: FollowKey,
}

/// Where a program that runs at a tracepoint finds a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArgumentSource {
    /// In the tracepoint's record, at this offset in bytes.
    Record(i16),
    /// In the raw tracepoint's argument of this number.
    Argument(i16),
    /// In the task whose address is the raw tracepoint's first argument.
    Task,
}

/// A program, and which of its instructions wait for the offset of a member.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) code: Vec<Instruction>,
    pub(super) wanted: Vec<(usize, Member)>,
    /// Where functions begin that it calls in loops.
    pub(super) functions: Vec<usize>,
    /// What it runs at, by its number in the kernel's type information ([`super::kernel_btf`]): a
    /// function, or a tracepoint whose arguments have types; 0: neither.
    pub(super) kernel_type: u32,
}

impl From<Vec<Instruction>> for Program {
    /// A program that needs no types.
    fn from(code: Vec<Instruction>) -> Program {
        Program { code, wanted: Vec::new(), functions: Vec::new(), kernel_type: 0 }
    }
}

impl Program {
    /// The least program: drops everything. To find out whether programs may be loaded at all.
    pub(super) fn nothing() -> Program {
        let mut a = Assembler::new();
        a.mov_imm(R0, 0);
        a.exit();
        a.finish().into()
    }
}

/// What the programs have in common.
impl Assembler {
    /// `R0 = address of map[*key]`, or on to `absent`
    pub(super) fn look_up(&mut self, map: i32, key: i16, absent: Label) {
        self.load_map(R1, map);
        self.stack_address(R2, key);
        self.call(BpfHelper::MapLookup);
        self.jump_if(R0, 0, absent);
    }

    /// `R0 = 0` if `map[*key] = *value` was done; `flags`: 0 for a key that is new or not
    pub(super) fn set(&mut self, map: i32, key: i16, value: i16, flags: i32) {
        self.load_map(R1, map);
        self.stack_address(R2, key);
        self.stack_address(R3, value);
        self.mov_imm(R4, flags);
        self.call(BpfHelper::MapUpdate);
    }

    /// Removes `map[*key]`, if it exists
    pub(super) fn remove(&mut self, map: i32, key: i16) {
        self.load_map(R1, map);
        self.stack_address(R2, key);
        self.call(BpfHelper::MapDelete);
    }

    /// *slot = the running thread's key
    pub(super) fn running(&mut self, slot: i16, key: FollowKey) {
        self.call(BpfHelper::CurrentPidTgid); // the lower half is the thread, the upper the process
        if key == FollowKey::Process {
            self.shift_right_imm(R0, 32);
        }
        self.store32(FP, slot, R0);
    }

    /// `map[word] += 1` of a map of words; *slot is lost
    pub(super) fn add_one(&mut self, map: i32, word: u32, slot: i16) {
        let end = self.label();
        self.store32_imm(FP, slot, word as i32);
        self.look_up(map, slot, end); // never absent: the verifier wants it asked
        self.add_one_at_r0();
        self.place(end);
    }

    /// `*R0 += 1`; R1 is lost
    pub(super) fn add_one_at_r0(&mut self) {
        self.mov_imm(R1, 1);
        self.atomic_add64(R0, 0, R1);
    }

    /// EVER's bit of the process *slot is set; R9 is lost
    fn set_ever(&mut self, ever: i32, slot: i16) {
        let beyond = self.label();
        self.load32(R9, FP, slot);
        self.mov(R1, R9);
        self.shift_right_imm(R1, 6);
        self.store32(FP, WORD, R1);
        self.look_up(ever, WORD, beyond); // pid_max was raised since: such ids count as set
        self.and_imm(R9, 63);
        self.mov_imm(R1, 1);
        self.shift_left(R1, R9);
        self.atomic_or64(R0, 0, R1);
        self.place(beyond);
    }

    /// *slot = `bytes` bytes of a member of the struct at R3, or on to `unread`
    pub(super) fn read_member(
        &mut self,
        slot: i16,
        bytes: i32,
        member: Member,
        unread: Label,
        wanted: &mut Vec<(usize, Member)>,
    ) {
        wanted.push((self.here(), member));
        self.add_imm(R3, member.described_offset()); // patched: the offset on this kernel
        self.stack_address(R1, slot);
        self.mov_imm(R2, bytes);
        self.call(BpfHelper::ReadKernel);
        self.jump_unless(R0, 0, unread);
    }

    /// dst = a member of the struct at `from`, whose type the kernel knows; `bytes`: as described
    /// in [`super::types`], which the kernel changes to what the member has there
    pub(super) fn load_member(
        &mut self,
        (dst, from): (Reg, Reg),
        bytes: i32,
        member: Member,
        wanted: &mut Vec<(usize, Member)>,
    ) {
        wanted.push((self.here(), member));
        let offset = member.described_offset() as i16; // patched: the offset on this kernel
        match bytes {
            4 => self.load32(dst, from, offset),
            _ => self.load64(dst, from, offset),
        }
    }

    /// R0 = a 64-bit number; R6 is the context
    fn fetch64(&mut self, from: ArgumentSource) {
        match from {
            ArgumentSource::Record(offset) => self.load64(R0, R6, offset),
            // Arguments are 8 bytes wide, whatever their type; the task is the first.
            ArgumentSource::Argument(number) => self.load64(R0, R6, 8 * number),
            ArgumentSource::Task => self.load64(R0, R6, 0),
        }
    }

    /// *slot = the id of a task, or on to `unread`; R6 is the context
    fn fetch_id(
        &mut self,
        slot: i16,
        from: ArgumentSource,
        unread: Label,
        wanted: &mut Vec<(usize, Member)>,
    ) {
        match from {
            ArgumentSource::Record(offset) => self.load32(R0, R6, offset),
            ArgumentSource::Argument(_) => self.fetch64(from),
            ArgumentSource::Task => {
                self.load64(R3, R6, 0);
                self.read_member(slot, 4, Member::Id, unread, wanted); // never: the task is there
                return;
            }
        }
        self.store32(FP, slot, R0);
    }

    /// the end of all programs at tracepoints
    pub(super) fn show(&mut self, end: Label) {
        self.place(end);
        self.mov_imm(R0, SHOW_TO_OTHERS);
        self.exit();
    }
}

/// Runs at each overflow of a sampling event, in its interrupt: is what runs here followed? `kept`:
/// what else is done at a sample that is kept; R6 is the context.
pub(super) fn sample(maps: Maps, kept: impl FnOnce(&mut Assembler)) -> Program {
    let mut a = Assembler::new();
    let (drop, keep) = (a.label(), a.label());
    a.mov(R6, R1); // R6 = the context
    a.running(KEY, maps.key);
    a.jump_if(R0, 0, drop); // an idle CPU: process 0, thread 0
    a.look_up(maps.followed, KEY, drop); // not in the map
    a.load64(R0, R0, 0);
    a.jump_if(R0, NOW as i32, keep);
    a.place(drop); // a stranger, or one that has not executed its program yet
    a.mov_imm(R0, 0);
    a.exit(); // no sample is written
    a.place(keep);
    kept(&mut a);
    a.mov_imm(R0, 1);
    a.exit();
    a.finish().into()
}

/// Runs in the maker when a task has been made and has not run yet: what the maker is, the new one
/// becomes.
///
/// A stranger's child is taken out, so that an entry that outlived its owner (put there from a list
/// that was old by then) is never taken for whoever got the same id: every entry is right from
/// birth (I3). Before SETTLED this is off: the maker may be a target that is about to be entered.
pub(super) fn newtask(maps: Maps, id: ArgumentSource, flags: ArgumentSource, follow: bool) -> Program {
    let (mut a, mut wanted) = (Assembler::new(), Vec::new());
    let (end, stranger, unsettled, missed) = (a.label(), a.label(), a.label(), a.label());
    a.mov(R6, R1); // R6 = the context
    if maps.key == FollowKey::Process {
        a.fetch64(flags);
        a.and_imm(R0, CLONE_THREAD);
        a.jump_unless(R0, 0, end); // a thread is what its process is
    }
    a.fetch_id(OTHER, id, if follow { missed } else { end }, &mut wanted); // OTHER = the child
    // SETTLED first, then the maker (I4): if settled is seen, the maker's entry is what it will
    // stay.
    a.mov_imm(R7, 0);
    a.store32_imm(FP, VALUE, SETTLED as i32);
    a.look_up(maps.state, VALUE, unsettled); // never: the verifier wants it asked
    a.load64(R7, R0, 0); // R7 = settled?
    a.place(unsettled);
    // Where only the named threads are wanted, whatever they make is a stranger.
    if follow {
        a.running(KEY, maps.key); // KEY = the maker
        a.look_up(maps.followed, KEY, stranger);
        a.load64(R8, R0, 0);
        a.store64(FP, VALUE, R8); // VALUE = what the maker is: NOW or FROM_EXEC
        if let Some(ever) = maps.ever {
            let thread = a.label();
            if maps.key == FollowKey::Thread {
                a.fetch64(flags);
                a.and_imm(R0, CLONE_THREAD);
                a.jump_unless(R0, 0, thread); // its process is its maker's: set already (I7)
            }
            a.set_ever(ever, OTHER); // a new process has the id of its first thread
            a.place(thread);
        }
        a.set(maps.followed, OTHER, VALUE, 0);
        a.jump_unless(R0, 0, missed);
        a.jump(end);
    }
    a.place(stranger);
    a.jump_if(R7, 0, end);
    a.look_up(maps.followed, OTHER, end); // asking first takes no lock; nearly always it is not there
    a.remove(maps.followed, OTHER);
    if follow {
        a.jump(end);
        a.place(missed);
        a.add_one(maps.state, MISSED, VALUE);
    }
    a.show(end);
    Program { wanted, ..a.finish().into() }
}

/// Runs in a thread that exits, before its id is free for others. `last`: where to see that no
/// thread of the process is left: in a byte of the record that is not 0 then, or in the task.
pub(super) fn exit(maps: Maps, last: ArgumentSource) -> Program {
    let (mut a, mut wanted) = (Assembler::new(), Vec::new());
    let end = a.label();
    a.mov(R6, R1); // R6 = the context
    a.running(KEY, maps.key);
    a.look_up(maps.followed, KEY, end); // asking first takes no lock: most of the machine is not followed
    match (maps.key, last) {
        (FollowKey::Thread, _) => {}
        (FollowKey::Process, ArgumentSource::Record(offset)) => {
            a.load8(R0, R6, offset);
            a.jump_if(R0, 0, end); // others of the process live
        }
        (FollowKey::Process, _) => {
            a.load64(R3, R6, 0); // R3 = the task
            a.read_member(VALUE, 8, Member::Signal, end, &mut wanted); // unreadable: keep it; birth sets the id's next owner right
            a.load64(R3, FP, VALUE); // R3 = what the threads share
            a.read_member(OTHER, 4, Member::Live, end, &mut wanted);
            a.load32(R0, FP, OTHER);
            a.jump_unless(R0, 0, end); // others of the process live
        }
    }
    a.remove(maps.followed, KEY);
    a.show(end);
    Program { wanted, ..a.finish().into() }
}

/// Runs in a process that is getting its new name in exec, just behind the point where events with
/// `enable_on_exec` begin to count. (Also at other renamings; a command that is held before its
/// exec does none.)
pub(super) fn rename(maps: Maps) -> Program {
    let mut a = Assembler::new();
    let end = a.label();
    a.running(KEY, maps.key);
    a.look_up(maps.followed, KEY, end);
    a.store64_imm(R0, 0, NOW as i32); // in place: cannot fail for want of memory
    a.show(end);
    a.finish().into()
}

/// For keys that are threads: runs in one that has executed a program, `old` being its id before: a
/// thread other than the first has taken over the first's id.
pub(super) fn exec(maps: Maps, old: ArgumentSource) -> Program {
    let (mut a, mut wanted) = (Assembler::new(), Vec::new());
    let (end, missed, same) = (a.label(), a.label(), a.label());
    a.mov(R6, R1); // R6 = the context
    a.fetch_id(OTHER, old, end, &mut wanted); // OTHER = the id before
    a.running(KEY, maps.key); // KEY = the id now
    a.look_up(maps.followed, OTHER, end); // a stranger
    a.load32(R1, FP, OTHER);
    a.load32(R2, FP, KEY);
    a.jump_if_same(R1, R2, same);
    a.store64_imm(FP, VALUE, NOW as i32);
    a.set(maps.followed, KEY, VALUE, 0); // the new entry before the old one goes
    a.mov(R6, R0);
    a.remove(maps.followed, OTHER);
    a.jump_unless(R6, 0, missed);
    a.jump(end);
    a.place(missed);
    a.add_one(maps.state, MISSED, VALUE);
    a.jump(end);
    a.place(same);
    a.store64_imm(R0, 0, NOW as i32); // in place: cannot fail for want of memory
    a.show(end);
    Program { wanted, ..a.finish().into() }
}
