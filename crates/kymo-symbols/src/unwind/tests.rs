//! The engine against the model, and against damaged input.

use std::sync::Arc;

use proptest::prelude::*;

use super::elf::ElfParts;
use super::expression::{Expression, ExpressionError};
use super::machine_code::{self, CallerPlace, MachineCode, RegisterValue};
use super::model::{Model, value_of};
use super::rule::Rule;
use super::*;
use crate::arch::{Arch, RBP, RSP};

use crate::Budget;
use kymo_testing::skip;

/// A store that finds this image under every path.
pub(super) fn store_of(bytes: Arc<[u8]>) -> UnwindModules {
    UnwindModules::with_opener(Box::new(move |_| Ok(Image::Bytes(Arc::clone(&bytes)))), u64::MAX)
}

/// A mapping of the whole image at the addresses that its first executable segment states.
fn space_of(modules: &UnwindModules, parts: &ElfParts) -> (AddressSpace, std::ops::Range<u64>) {
    let code = parts.segments.iter().find(|s| s.executable).expect("an executable segment");
    let mapped = code.svma..code.svma + code.file_bytes;
    let mut space = AddressSpace::new();
    space.map(mapped.start, mapped.end, code.offset, modules.module(b"/image", b""));
    (space, mapped)
}

fn read(path: &str) -> Arc<[u8]> {
    std::fs::read(path).expect(path).into()
}

/// The file that a part of the test program's own mappings comes from.
fn mapped_file(part: &str) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().filter_map(|l| l.split_whitespace().nth(5)).find(|p| p.contains(part)).map(str::to_owned)
}

/// A small, fast source of numbers, so that failures can be repeated from the seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

pub(super) const STACK_AT: u64 = 0x7ffd_0000_0000;

/// Registers and a stack on which many words are addresses of code or of the stack, so that walks get somewhere.
fn scene(random: &mut Random, arch: Arch, functions: &[(u64, u64)]) -> (UserRegs, Vec<u8>) {
    let code = |random: &mut Random| {
        let (start, end) = functions[random.below(functions.len() as u64) as usize];
        start + random.below(end - start)
    };
    let words = random.below(1024);
    let inside = |random: &mut Random| STACK_AT + 8 * random.below(words + 8);
    let mut stack = Vec::new();
    for _ in 0..words {
        let word = match random.below(8) {
            0..4 => code(random),
            4..6 => inside(random),
            6 => random.below(4),
            _ => random.next(),
        };
        stack.extend_from_slice(&word.to_le_bytes());
    }
    let (ip, fp) = (code(random), inside(random));
    let mut regs = UserRegs::unknown(arch, ip);
    regs.set_sp(STACK_AT);
    regs.set(arch.fp(), Some(fp));
    for register in (0..arch.registers()).filter(|&r| r != arch.sp() && r != arch.fp()) {
        let value = match random.below(4) {
            0 => None,
            1 => Some(inside(random)),
            2 if register == arch.return_column() => Some(code(random)),
            _ => Some(random.next()),
        };
        regs.set(register, value);
    }
    (regs, stack)
}

fn engine_equals_model(image: Arc<[u8]>, scenes: u64) {
    let parts = ElfParts::read(&Image::Bytes(Arc::clone(&image)), &Budget::new()).expect("an ELF file");
    let model = Model::new(&parts);
    let functions: Vec<_> = {
        let code = parts.segments.iter().find(|s| s.executable).expect("code");
        let inside = |&(start, end): &(u64, u64)| {
            start >= code.svma && end <= code.svma + code.file_bytes && start < end
        };
        model.functions().into_iter().filter(inside).collect()
    };
    let modules = store_of(image).of_arch(parts.arch).without_code();
    let (space, mapped) = space_of(&modules, &parts);
    let mut unwinder = Unwinder::new(Convention::Return);
    let mut deep = 0;
    for seed in 1..=scenes {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (regs, stack) = scene(&mut random, parts.arch, &functions);
        let mut frames = Vec::new();
        let stop = unwinder.unwind(&space, &regs, &stack, MAX_FRAMES, &mut frames);
        let expected = model.unwind(&mapped, &regs, &stack, MAX_FRAMES);
        assert_eq!((&frames, stop), (&expected.0, expected.1), "seed {seed}, {regs:x?}");
        deep += usize::from(frames.len() > 2);
    }
    assert!(deep > scenes as usize / 40, "only {deep} of {scenes} walks got deeper than two frames");
    assert_eq!(unwinder.stats().samples, scenes);
    assert_eq!(Stop::ALL.iter().map(|&s| unwinder.stats().stopped(s)).sum::<u64>(), scenes);
}

/// Checks that walks through random stacks of this Rust program equal the model's, frame for frame and end for end.
#[test]
fn walks_in_this_program_equal_the_models() {
    engine_equals_model(read("/proc/self/exe"), 3000);
}

/// Checks the same in a program of aarch64, where callers of leaf functions are in a register.
#[test]
fn walks_in_a_program_of_aarch64_equal_the_models() {
    engine_equals_model(read(&fixture("work-nofp")), 3000);
}

/// A program of the recordings of aarch64.
fn fixture(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/recordings/aarch64/sysroot/kymo/");
    format!("{folder}{name}")
}

/// Checks the same in the C library, which has signal trampolines and rules by expression.
#[test]
fn walks_in_the_c_library_equal_the_models() {
    match mapped_file("/libc.so").or_else(|| mapped_file("/libc-")) {
        Some(path) => engine_equals_model(read(&path), 3000),
        None => {
            skip("unwind::walks_in_the_c_library_equal_the_models", "this program has no shared C library")
        }
    }
}

/// Checks that every function of a file has the same rules whether its section table is there or cut off, and
/// whether its lookup table is there or not.
#[test]
fn cut_off_tables_change_no_walk() {
    let image = read("/proc/self/exe");
    let parts = ElfParts::read(&Image::Bytes(Arc::clone(&image)), &Budget::new()).expect("an ELF file");
    let functions = Model::new(&parts).functions();
    let mut without_sections = image.to_vec();
    without_sections[40..48].fill(0);
    let mut without_table = image.to_vec();
    let header = parts.eh_frame_hdr.as_ref().expect(".eh_frame_hdr");
    let at = image.windows(64).position(|w| w == &header.bytes[..64]).expect("the table in the file");
    // The encoding of the table becomes "omitted".
    without_table[at + 3] = 0xff;
    let code = parts.segments.iter().find(|s| s.executable).expect("code");
    let inside = functions.iter().find(|f| code.svma < f.0 && f.1 < code.svma + code.file_bytes);
    let stack = inside.expect("a function").0.to_le_bytes().repeat(1024);
    let walks = |image: Vec<u8>| {
        let modules = store_of(image.into()).without_code();
        let (space, mapped) = space_of(&modules, &parts);
        let mut unwinder = Unwinder::new(Convention::Return);
        let mut walks = Vec::new();
        for &(start, end) in functions.iter().filter(|f| mapped.contains(&f.0)).take(2000) {
            let mut frames = Vec::new();
            let ip = start + (end - start) / 2;
            let stop =
                unwinder.unwind(&space, &UserRegs::new(ip, STACK_AT, STACK_AT + 64), &stack, 3, &mut frames);
            walks.push((frames, stop));
        }
        assert_eq!(modules.problems(), []);
        walks
    };
    let whole = walks(image.to_vec());
    assert!(whole.iter().filter(|(frames, _)| frames.len() > 1).count() > 100);
    assert!(walks(without_sections) == whole, "without section headers");
    assert!(walks(without_table) == whole, "without lookup table");
}

/// Checks that what machine code says of a frame is what the tables say, in functions of this Rust
/// program: of each some instructions, those in prologues and epilogues among them.
#[test]
fn machine_code_says_what_the_tables_say() {
    use iced_x86::{Decoder, DecoderOptions};
    let image = read("/proc/self/exe");
    let parts = ElfParts::read(&Image::Bytes(Arc::clone(&image)), &Budget::new()).expect("an ELF file");
    if parts.arch != Arch::X86_64 {
        return skip("unwind::machine_code_says_what_the_tables_say", "the code of x86-64 only is looked at");
    }
    let (functions, modules) = (Model::new(&parts).functions(), store_of(Arc::clone(&image)));
    let module = modules.module(b"/image", b"").expect("a module");
    let tables = module.frames().expect("tables");
    let segment = *parts.segments.iter().find(|s| s.executable).expect("code");
    let offset = |address: u64| address - segment.svma + segment.offset;
    let read = |address: u64, bytes| module.code_bytes(offset(address), bytes);
    let range = segment.svma..segment.svma + segment.file_bytes;
    // As symbols say it.
    let starts: Vec<u64> = functions.iter().map(|function| function.0).collect();
    let code = MachineCode { range: range.clone(), bits: 64, starts: &starts, read: &read };
    let mut context = gimli::UnwindContext::new();
    let (mut same, mut other, mut silent) = (0, 0, 0);
    for &(start, end) in functions.iter().filter(|f| range.contains(&f.0) && f.1 <= range.end).step_by(29) {
        let bytes = read(start, end - start).expect("code");
        let instructions = Decoder::with_ip(64, &bytes, start, DecoderOptions::NONE);
        for address in instructions.into_iter().map(|one| one.ip()).step_by(7) {
            let table = tables.rule_at(&module, offset(address), false, &mut context).rule;
            let found = machine_code::caller_place(address, false, &code).and_then(|place| place.rule());
            match (table, found) {
                (Rule::Plain(table), Some(Rule::Plain(found)))
                    if table.cfa_register == found.cfa_register =>
                {
                    if table.cfa_offset == found.cfa_offset {
                        same += 1
                    } else {
                        other += 1
                    }
                }
                _ => silent += 1,
            }
        }
    }
    assert!(
        same > 1000 && other * 100 <= same,
        "{same} as the tables, {other} others, {silent} not compared"
    );
}

/// Checks a function that never returns: where its symbol says that it begins, the instructions up
/// to the address say where its caller is, and its registers. And one that has another stack: it
/// has no caller.
#[test]
fn machine_code_since_the_function_began() {
    // push %rbp; push %rbx; xor %ebx,%ebx; sub $0x18,%rsp; call +0; int3
    let mut bytes = vec![0x55, 0x53, 0x31, 0xdb, 0x48, 0x83, 0xec, 0x18, 0xe8, 0, 0, 0, 0, 0xcc];
    // At 0x0e: push %rbp; mov 0x38(%r14),%rsp; call *%r12; int3
    bytes.extend([0x55, 0x49, 0x8b, 0x66, 0x38, 0x41, 0xff, 0xd4, 0xcc]);
    let read = |address: u64, len: u64| Some(bytes[address as usize..][..len as usize].to_vec());
    let place = |address, is_caller, starts: &[u64]| {
        let code = MachineCode { range: 0..bytes.len() as u64, bits: 64, starts, read: &read };
        machine_code::caller_place(address, is_caller, &code)
    };
    assert_eq!(place(0x0d, true, &[]), None, "no return, no beginning");
    let (slot, sp) = (RegisterValue::Register(7, 0x28), RegisterValue::Register(7, 0x30));
    let saved = vec![(3, RegisterValue::Word(7, 0x18, 0))];
    assert_eq!(place(0x0d, true, &[0, 0x0e]), Some(CallerPlace::Return { slot, sp, saved }));
    assert_eq!(place(0x16, true, &[0, 0x0e]), Some(CallerPlace::OtherStack));
}

/// Puts an ELF file together: one executable segment with this code at file offset and address 0x1000.
pub(super) fn small_elf(code: &[u8]) -> Arc<[u8]> {
    let mut elf = vec![0_u8; 0x1000];
    elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
    elf[18..20].copy_from_slice(&62_u16.to_le_bytes());
    elf[32..40].copy_from_slice(&64_u64.to_le_bytes());
    elf[54..56].copy_from_slice(&56_u16.to_le_bytes());
    elf[56..58].copy_from_slice(&1_u16.to_le_bytes());
    let words: [u64; 7] = [1 | 5 << 32, 0x1000, 0x1000, 0x1000, code.len() as u64, code.len() as u64, 0x1000];
    for (at, word) in (64..).step_by(8).zip(words) {
        elf[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    elf.extend_from_slice(code);
    elf.into()
}

pub(super) fn stack_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Checks that a signal trampoline without unwind data is recognised by its code, that the interrupted registers come
/// from the kernel's frame, and what each convention makes of the addresses.
#[test]
fn signal_trampoline_without_unwind_data() {
    let mut code = vec![0x90; 64];
    code[16..25].copy_from_slice(&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05]);
    let modules = store_of(small_elf(&code));
    let mut space = AddressSpace::new();
    space.map(0x40_1000, 0x40_1040, 0x1000, modules.module(b"/a", b""));
    // A handler with a frame pointer, called by the trampoline at 0x401010.
    let mut words = vec![0_u64; 40];
    words[0] = 0x1234;
    words[1] = 0x40_1010;
    let context = 2;
    let interrupted = STACK_AT + 8 * 30;
    words[context + 5 + 10] = interrupted; // rbp
    words[context + 5 + 15] = interrupted - 64; // rsp
    words[context + 5 + 16] = 0x40_1030; // rip
    words[30] = 0;
    words[31] = 0x40_1020;
    let regs = UserRegs::new(0x40_1008, STACK_AT, STACK_AT);
    for (convention, expected) in [
        (Convention::Return, [0x40_1008, 0x40_1010, 0x40_1030, 0x40_1020]),
        (Convention::Lookup, [0x40_1008, 0x40_1010, 0x40_1030, 0x40_101f]),
        (Convention::Perf, [0x40_1008, 0x40_100f, 0x40_1030, 0x40_101f]),
    ] {
        let mut frames = Vec::new();
        let mut unwinder = Unwinder::new(convention);
        // Near the trampoline the frame pointer would be followed: the handler and the last function stay clear.
        let stop = unwinder.unwind(&space, &regs, &stack_of(&words), MAX_FRAMES, &mut frames);
        assert_eq!((frames.as_slice(), stop), (&expected[..], Stop::Root), "{convention:?}");
    }
}

/// Checks that memory without a file is walked by frame pointers and counted so, and that the limit holds.
#[test]
fn generated_code_is_walked_by_frame_pointers() {
    let mut space = AddressSpace::new();
    space.map(0x1000, 0x2000, 0, None);
    let frame = |n: u64| STACK_AT + 16 * n;
    let words: Vec<u64> = (0..100).flat_map(|n| [frame(n + 1), 0x1001 + n]).collect();
    let regs = UserRegs::new(0x1fff, STACK_AT, frame(0));
    let mut unwinder = Unwinder::new(Convention::Return);
    let mut frames = Vec::new();
    assert_eq!(unwinder.unwind(&space, &regs, &stack_of(&words), MAX_FRAMES, &mut frames), Stop::StackEnd);
    assert_eq!(frames.len(), 101);
    assert_eq!(unwinder.stats().guessed_frames, 100);
    assert_eq!(unwinder.unwind(&space, &regs, &stack_of(&words), 7, &mut frames), Stop::Limit);
    assert_eq!((frames.len(), unwinder.stats().frames), (108, 108));
    assert_eq!(unwinder.unwind(&AddressSpace::new(), &regs, &[], 7, &mut frames), Stop::NoMapping);
}

/// Code with frames of four words, of which a runtime first says that they have three.
struct Recompiled {
    asked_again: usize,
}

impl GeneratedCode for Recompiled {
    fn frame_at(&mut self, _: u64, _: bool) -> Option<GeneratedFrame> {
        Some(GeneratedFrame::ByStackPointer { return_address: 16, frame_pointer: Some(8) })
    }

    fn frame_at_again(&mut self, _: u64, _: bool) -> Option<GeneratedFrame> {
        self.asked_again += 1;
        Some(GeneratedFrame::ByStackPointer { return_address: 24, frame_pointer: Some(16) })
    }
}

/// Checks that the innermost function of generated code may have pushed up to four words, that a
/// caller may not, and that a layout which leads to no code is asked for again.
#[test]
fn generated_frames_with_pushes_and_recompiled_ones() {
    let mut space = AddressSpace::new();
    space.map(0x1000, 0x2000, 0, None);
    let unwound = |words: &[u64]| {
        let mut code = Recompiled { asked_again: 0 };
        let (regs, mut frames) = (UserRegs::new(0x1100, STACK_AT, 0), Vec::new());
        let mut unwinder = Unwinder::new(Convention::Return);
        unwinder.unwind_generated(&space, &regs, &stack_of(words), MAX_FRAMES, &mut code, &mut frames);
        (frames, code.asked_again)
    };
    for pushed in 0..=4 {
        let words = [vec![5; pushed], vec![7, 8, 0x1200]].concat();
        assert_eq!(unwound(&words), (vec![0x1100, 0x1200], 1), "{pushed} words");
    }
    assert_eq!(unwound(&[5, 5, 5, 5, 5, 5, 7, 8, 0x1200]), (vec![0x1100], 1));
    // The caller's frame has four words.
    assert_eq!(unwound(&[7, 8, 0x1200, 5, 7, 8, 0x1300]), (vec![0x1100, 0x1200, 0x1300], 2));
}

/// Checks that a file whose build id is not the recorded one is refused, in words, and not used.
#[test]
fn another_build_of_a_file_is_refused() {
    let image = read("/proc/self/exe");
    let parts = ElfParts::read(&Image::Bytes(Arc::clone(&image)), &Budget::new()).expect("an ELF file");
    let Some(id) = parts.build_id.clone() else {
        skip("unwind::another_build_of_a_file_is_refused", "the test program has no build id");
        return;
    };
    let modules = store_of(image);
    let mut padded = id.clone();
    padded.resize(20.max(id.len()), 0);
    let right = modules.module(b"/a", &padded).expect("a module");
    assert!(right.frames().is_some());
    let wrong = modules.module(b"/a", &[7; 20]).expect("a module");
    assert!(wrong.frames().is_none());
    let problems = modules.problems();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].why.contains("the file changed"), "{problems:?}");
}

/// Checks that names of memory without a file are no modules, that equal keys share one, and that the budget holds.
#[test]
fn what_is_a_module() {
    let modules =
        UnwindModules::with_opener(Box::new(|_| std::fs::File::open("/proc/self/exe").map(Image::File)), 1);
    for name in [&b"//anon"[..], b"[heap]", b"[stack]", b"anon_inode:[perf_event]", b""] {
        assert!(modules.module(name, b"").is_none(), "{}", String::from_utf8_lossy(name));
    }
    let a = modules.module(b"/bin/a", b"").expect("a module");
    assert_eq!(a.id(), modules.module(b"/bin/a", b"").expect("a module").id());
    assert_ne!(a.id(), modules.module(b"/bin/a", b"\x01").expect("a module").id());
    assert!(a.frames().is_none() && modules.kept_bytes() == 0);
    assert!(modules.problems()[0].why.contains("do not fit"), "{:?}", modules.problems());
}

/// Checks that perf's register numbers arrive under DWARF's, whatever the mask leaves out.
#[test]
fn registers_of_a_sample() {
    // ax bx cx dx si di bp sp ip flags cs ss, r8-r15: the mask perf record uses.
    let mask = 0xff_0fff;
    let values = (0..12).chain(16..24).map(|number: u64| 100 + number);
    let regs = UserRegs::from_perf(Arch::X86_64, 2, mask, values).expect("registers");
    let by_dwarf: Vec<_> = (0..17).map(|n| regs.get(n).expect("known")).collect();
    let expected = [100, 103, 102, 101, 104, 105, 106, 107, 116, 117, 118, 119, 120, 121, 122, 123, 108];
    assert_eq!(by_dwarf, expected);
    let few = UserRegs::from_perf(Arch::X86_64, 2, 0b1_1000_0000, [1, 2]).expect("sp and ip");
    assert_eq!((few.sp(), few.ip, few.get(0)), (1, 2, None));
    assert!(UserRegs::from_perf(Arch::X86_64, 2, 0b1_0000_0000, [1]).is_none());
    assert!(UserRegs::from_perf(Arch::X86_64, 2, u64::MAX, []).is_none());
}

/// Checks the same of aarch64, and the registers of samples that have the link register only.
#[test]
fn registers_of_a_sample_of_aarch64() {
    let mask = (1 << 33) - 1;
    let regs = UserRegs::from_perf(Arch::Aarch64, 2, mask, 100..133).expect("registers");
    let by_dwarf: Vec<_> = (0..32).map(|n| regs.get(n).expect("known")).collect();
    assert_eq!((by_dwarf, regs.ip, regs.sp()), ((100..132).collect(), 132, 131));
    let leaf = UserRegs::of_leaf(0x1000, 1 << 30, [0x2000]).expect("the link register");
    assert_eq!((leaf.ip, leaf.get(30), leaf.get(29)), (0x1000, Some(0x2000), None));
    assert!(UserRegs::of_leaf(0x1000, 1 << 29, [1]).is_none());
}

/// Checks on a leaf function of aarch64 that the caller is the link register's address without its
/// signature, that the next frame comes from the stack, and what a file of the other machine is.
#[test]
fn a_leaf_function_of_aarch64() {
    let image = read(&fixture("work-nofp"));
    let parts = ElfParts::read(&Image::Bytes(Arc::clone(&image)), &Budget::new()).expect("an ELF file");
    // inner() keeps nothing on the stack; heavy() calls it, and keeps 16 bytes with x30 in the
    // first word.
    let (inner, after_call) = (0x9fc, 0xa30);
    let base = 0xaaaa_dae0_0000;
    let modules = store_of(Arc::clone(&image)).of_arch(Arch::Aarch64);
    let mut space = AddressSpace::new();
    let code = parts.segments.iter().find(|s| s.executable).expect("code");
    let start = base + code.svma;
    space.map(start, start + code.file_bytes, code.offset, modules.module(b"/image", b""));
    let words = [(base + 0xa98) | (0x2a << 48), 0, 0, 0];
    let stack: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
    let mut regs = UserRegs::unknown(Arch::Aarch64, base + inner);
    regs.set_sp(0xffff_f000_0000);
    regs.set(30, Some((base + after_call) | 0x15 << 48));
    let mut frames = Vec::new();
    let mut unwinder = Unwinder::new(Convention::Return);
    unwinder.unwind(&space, &regs, &stack, 3, &mut frames);
    assert_eq!(frames, [base + inner, base + after_call, base + 0xa98]);
    let others = store_of(image).of_arch(Arch::X86_64);
    let module = others.module(b"/image", b"").expect("a module");
    assert!(module.frames().is_none() && module.code_at::<4>(0).is_none());
    assert!(others.problems()[0].why.contains("aarch64"), "{:?}", others.problems());
}

/// Operations that both evaluators know, with operands.
fn operation() -> impl Strategy<Value = Vec<u8>> {
    let plain = prop::sample::select(vec![
        0x06_u8, 0x12, 0x13, 0x14, 0x16, 0x17, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f, 0x20, 0x21, 0x22,
        0x24, 0x25, 0x26, 0x27, 0x29, 0x2a, 0x2b, 0x2c, 0x2d, 0x2e, 0x96,
    ]);
    prop_oneof![
        4 => plain.prop_map(|op| vec![op]),
        4 => (0x30_u8..0x50).prop_map(|op| vec![op]),
        2 => (0x70_u8..0x90, any::<u8>()).prop_map(|(op, n)| vec![op, n & 0x7f]),
        1 => (0x70_u8..0x90, any::<u8>(), any::<u8>()).prop_map(|(op, n, m)| vec![op, n | 0x80, m & 0x7f]),
        1 => (0x08_u8..0x0a, any::<u8>()).prop_map(|(op, n)| vec![op, n]),
        1 => (0x0a_u8..0x0c, any::<[u8; 2]>()).prop_map(|(op, n)| [&[op], &n[..]].concat()),
        1 => (0x0c_u8..0x0e, any::<[u8; 4]>()).prop_map(|(op, n)| [&[op], &n[..]].concat()),
        1 => (0x0e_u8..0x10, any::<[u8; 8]>()).prop_map(|(op, n)| [&[op], &n[..]].concat()),
        1 => any::<[u8; 8]>().prop_map(|n| [&[0x03], &n[..]].concat()),
        1 => (0_u8..4).prop_map(|n| vec![0x15, n]),
        1 => (1_u8..9).prop_map(|n| vec![0x94, n]),
        1 => (0x10_u8..0x12, any::<u8>(), any::<u8>()).prop_map(|(op, n, m)| vec![op, n | 0x80, m & 0x7f]),
        1 => any::<u8>().prop_map(|n| vec![0x23, n & 0x7f]),
        1 => (prop::sample::select(vec![0x28_u8, 0x2f]), any::<[u8; 2]>()).prop_map(|(op, n)| [&[op], &n[..]].concat()),
    ]
}

/// Joins operations; jumps, whose operand says which operation they go to, get their distance.
fn assemble(operations: &[Vec<u8>]) -> Vec<u8> {
    let mut starts = vec![0];
    for operation in operations {
        starts.push(starts[starts.len() - 1] + operation.len());
    }
    let mut bytes = operations.concat();
    for (at, operation) in operations.iter().enumerate().filter(|(_, op)| matches!(op[0], 0x28 | 0x2f)) {
        let target = starts[usize::from(operation[1]) % starts.len()];
        let distance = target as i16 - starts[at + 1] as i16;
        bytes[starts[at] + 1..starts[at + 1]].copy_from_slice(&distance.to_le_bytes());
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks that expressions have the value that gimli's evaluator gives, or fail where it fails.
    #[test]
    fn expressions_equal_gimlis(operations in prop::collection::vec(operation(), 1..16), initial in any::<u64>()) {
        let bytes = assemble(&operations);
        let mut regs = UserRegs::new(0x1000, STACK_AT, 3);
        (0..16).filter(|r| ![RSP, RBP, 9].contains(r)).for_each(|r| regs.set(r, Some(r as u64 * 0x1111_2222_3333)));
        let memory = |address: u64| (address & 2 == 0).then(|| address.wrapping_mul(0x9e37_79b9));
        let ours = Expression::new(&bytes).expect("short").evaluate(Some(initial), &regs, memory);
        let theirs = value_of(&bytes, initial, &regs, &|a| memory(a).ok_or(Stop::Unreadable));
        let ours = ours.map_err(|error| match error {
            ExpressionError::Bad => Stop::BadUnwindInfo,
            ExpressionError::RegisterUnknown => Stop::RegisterUnknown,
            ExpressionError::Unreadable(_) => Stop::Unreadable,
        });
        prop_assert_eq!(ours, theirs, "{:02x?}", bytes);
    }

    /// Checks that arbitrary bytes as an expression end.
    #[test]
    fn any_bytes_end_as_an_expression(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let regs = UserRegs::new(1, 2, 3);
        let _ = Expression::new(&bytes).expect("short").evaluate(None, &regs, Some);
    }
}

/// Checks that a damaged file neither panics nor hangs a walk: the vdso, small and complete, with bytes changed
/// and its end cut off.
#[test]
fn damaged_files_end_every_walk() {
    let modules = UnwindModules::new();
    let vdso = modules.module(b"[vdso]", b"").expect("a module");
    if vdso.frames().is_none() {
        skip("unwind::damaged_files_end_every_walk", format!("{:?}", modules.problems()));
        return;
    }
    let image = vdso.image().expect("the vdso");
    let whole = image.read(0, image.len().expect("its size")).expect("its bytes");
    let parts = ElfParts::read(&image, &Budget::new()).expect("an ELF file");
    let functions = Model::new(&parts).functions();
    for seed in 1..=3000_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut bytes = whole.clone();
        for _ in 0..1 + random.below(40) {
            let at = random.below(bytes.len() as u64) as usize;
            // Half of the changes hit the headers and the tables at the front.
            let at = if random.below(2) == 0 { at % 0x800 } else { at };
            bytes[at] = random.next() as u8;
        }
        if random.below(4) == 0 {
            bytes.truncate(random.below(bytes.len() as u64) as usize);
        }
        let modules = store_of(bytes.into());
        let (space, _) = space_of(&modules, &parts);
        let mut unwinder = Unwinder::new(Convention::Perf);
        for _ in 0..4 {
            let (regs, stack) = scene(&mut random, parts.arch, &functions);
            let mut frames = Vec::new();
            unwinder.unwind(&space, &regs, &stack, MAX_FRAMES, &mut frames);
            assert!((1..=MAX_FRAMES).contains(&frames.len()), "seed {seed}");
        }
    }
}
