//! Runs programs without a kernel: what the verifier would refuse is a panic that says so.
//!
//! Tests put tasks and maps into a [`BpfMachine`], run programs at events of their own, and look at
//! what they wrote. Instructions and helpers are those that programs of this folder use; any other
//! is a panic with its number. Offsets in structs of the kernel are those that programs describe
//! (`types`), as nobody relocates them here.
//!
//! ```text
//!  Assembler -> Program --run--> registers, stack ---.
//!                                maps by number      +--> Output: samples that were written
//!                                memory of the test -'
//! ```
use super::insn::BpfHelper;
use super::program::{Program, THIS_CPU};
use super::sys::Instruction;
use std::collections::BTreeMap;

/// Programs of this folder are far shorter, and have no loops.
const MOST_STEPS: usize = 100_000;
const STACK_BYTES: usize = 512;
/// Where the address of a map lies: nobody may read it.
const MAPS_AT: u64 = 0xffff_0000_0000_0000;

/// What a map keeps.
#[derive(Debug)]
pub(super) enum TestMap {
    /// Any keys, each with the region of its value.
    Hash { key_bytes: usize, value_bytes: usize, most: usize, values: BTreeMap<Vec<u8>, u64> },
    /// The regions of values 0 to the size.
    Array(Vec<u64>),
    /// The same, for each CPU.
    PerCpuArray(Vec<Vec<u64>>),
    /// Takes samples.
    Events,
}

/// A sample that a program has written, or tried to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) cpu: usize,
    /// The thread that ran.
    pub(super) tid: i32,
    pub(super) raw: Vec<u8>,
    /// There was no room.
    pub(super) lost: bool,
}

/// A machine: memory, maps, and what runs at this moment.
#[derive(Debug, Default)]
pub(super) struct BpfMachine {
    /// Regions of memory, by what is in the upper half of their addresses.
    regions: BTreeMap<u64, Vec<u8>>,
    next_region: u64,
    maps: BTreeMap<i32, TestMap>,
    pub(super) now_ns: u64,
    pub(super) cpu: usize,
    /// Process and thread that run.
    pub(super) current: (i32, i32),
    /// The running task, and the registers of any task in user space.
    pub(super) task: u64,
    pub(super) registers: u64,
    /// The next samples find no room.
    pub(super) is_full: bool,
    pub(super) output: Vec<Output>,
}

/// A machine that runs a program.
struct Run<'a> {
    machine: &'a mut BpfMachine,
    code: &'a [Instruction],
    at: usize,
    registers: [u64; 11],
}

impl BpfMachine {
    /// New memory with these bytes: its address.
    pub(super) fn memory(&mut self, bytes: Vec<u8>) -> u64 {
        self.next_region += 1;
        self.regions.insert(self.next_region, bytes);
        self.next_region << 32
    }

    /// A new hash map of this number, which holds so many keys at most.
    pub(super) fn hash(&mut self, number: i32, key_bytes: usize, value_bytes: usize, most: usize) {
        self.maps.insert(number, TestMap::Hash { key_bytes, value_bytes, most, values: BTreeMap::new() });
    }

    /// A new array of this number.
    pub(super) fn array(&mut self, number: i32, value_bytes: usize, entries: usize) {
        let values = (0..entries).map(|_| self.memory(vec![0; value_bytes])).collect();
        self.maps.insert(number, TestMap::Array(values));
    }

    /// A new array with values of each CPU.
    pub(super) fn per_cpu_array(&mut self, number: i32, value_bytes: usize, entries: usize, cpus: usize) {
        let mut values = || (0..entries).map(|_| self.memory(vec![0; value_bytes])).collect();
        let values = (0..cpus).map(|_| values()).collect();
        self.maps.insert(number, TestMap::PerCpuArray(values));
    }

    /// A new map of events of this number.
    pub(super) fn events(&mut self, number: i32) {
        self.maps.insert(number, TestMap::Events);
    }

    /// All keys of a hash and their values.
    pub(super) fn entries(&self, number: i32) -> Vec<(Vec<u8>, Vec<u8>)> {
        let TestMap::Hash { values, .. } = &self.maps[&number] else { panic!("map {number} is no hash") };
        values.iter().map(|(key, at)| (key.clone(), self.regions[&(at >> 32)].clone())).collect()
    }

    /// The first word of an array's value.
    pub(super) fn word(&mut self, number: i32, index: u32) -> u64 {
        let at = self.look_up(number, &index.to_ne_bytes());
        self.load(at, 8)
    }

    /// The address of a value, or 0.
    pub(super) fn look_up(&mut self, number: i32, key: &[u8]) -> u64 {
        let cpu = self.cpu;
        let index = || key.try_into().map(u32::from_ne_bytes).expect("the key of an array") as usize;
        match self.maps.get(&number) {
            Some(TestMap::Hash { values, .. }) => values.get(key).copied().unwrap_or(0),
            Some(TestMap::Array(values)) => values.get(index()).copied().unwrap_or(0),
            Some(TestMap::PerCpuArray(values)) => values[cpu].get(index()).copied().unwrap_or(0),
            other => panic!("map {number} has no values: {other:?}"),
        }
    }

    /// Sets a value: 0, or the negative errno.
    pub(super) fn update(&mut self, number: i32, key: &[u8], value: &[u8], flags: u64) -> i64 {
        let known = self.look_up(number, key);
        match self.maps.get(&number) {
            Some(TestMap::Hash { most, values, .. }) => match (known, flags) {
                (0, 2) => return -i64::from(libc::ENOENT),
                (0, _) if values.len() >= *most => return -i64::from(libc::E2BIG),
                (1.., 1) => return -i64::from(libc::EEXIST),
                _ => {}
            },
            _ if known == 0 => return -i64::from(libc::E2BIG),
            _ => {}
        }
        // A new value stands elsewhere: whoever has the address of the old one sees that.
        match self.maps.get(&number) {
            Some(TestMap::Hash { .. }) => {
                let at = self.memory(value.to_vec());
                let Some(TestMap::Hash { values, .. }) = self.maps.get_mut(&number) else { unreachable!() };
                values.insert(key.to_vec(), at);
            }
            _ => self.bytes(known, value.len()).copy_from_slice(value),
        }
        0
    }

    /// Removes a key of a hash: 0, or the negative errno.
    pub(super) fn remove(&mut self, number: i32, key: &[u8]) -> i64 {
        let Some(TestMap::Hash { values, .. }) = self.maps.get_mut(&number) else {
            panic!("map {number} is no hash")
        };
        values.remove(key).map_or(-i64::from(libc::ENOENT), |_| 0)
    }

    fn sizes(&self, number: i32) -> (usize, usize) {
        match &self.maps[&number] {
            TestMap::Hash { key_bytes, value_bytes, .. } => (*key_bytes, *value_bytes),
            TestMap::Array(values) => (4, self.regions[&(values[0] >> 32)].len()),
            other => panic!("a program changes map {number}: {other:?}"),
        }
    }

    fn bytes(&mut self, address: u64, count: usize) -> &mut [u8] {
        let from = (address & 0xffff_ffff) as usize;
        let region = self.regions.get_mut(&(address >> 32));
        let bytes = region.and_then(|region| region.get_mut(from..from.checked_add(count)?));
        bytes.unwrap_or_else(|| panic!("{count} bytes at {address:#x} are no memory of the program"))
    }

    pub(super) fn load(&mut self, address: u64, count: usize) -> u64 {
        let mut word = [0; 8];
        word[..count].copy_from_slice(self.bytes(address, count));
        u64::from_le_bytes(word)
    }

    pub(super) fn store(&mut self, address: u64, count: usize, value: u64) {
        self.bytes(address, count).copy_from_slice(&value.to_le_bytes()[..count]);
    }

    /// Runs a program with these words as its context; what it returns.
    pub(super) fn run(&mut self, program: &Program, context: &[u64]) -> u64 {
        let words: Vec<u8> = context.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (context, stack) = (self.memory(words), self.memory(vec![0; STACK_BYTES]));
        let mut registers = [0; 11];
        (registers[1], registers[10]) = (context, stack + STACK_BYTES as u64);
        let mut run = Run { machine: self, code: &program.code, at: 0, registers };
        let result = run.finish();
        for at in [context, stack] {
            self.regions.remove(&(at >> 32));
        }
        result
    }
}

impl Run<'_> {
    fn finish(&mut self) -> u64 {
        for _ in 0..MOST_STEPS {
            let at = self.at;
            let code = self.code;
            let insn = code.get(at).unwrap_or_else(|| panic!("the program goes on behind its end: {at}"));
            self.at += 1;
            if insn.code == 0x95 {
                return self.registers[0];
            }
            self.step(insn);
        }
        panic!("the program does not end");
    }

    fn step(&mut self, insn: &Instruction) {
        let (dst, src) = (usize::from(insn.registers & 15), usize::from(insn.registers >> 4));
        let imm = i64::from(insn.imm).cast_unsigned();
        let offset = i64::from(insn.offset).cast_unsigned();
        let bytes = [4, 2, 1, 8][usize::from(insn.code >> 3 & 3)];
        let from = if insn.code & 8 != 0 { self.registers[src] } else { imm };
        match (insn.code & 7, insn.code & 0xf0) {
            (0, 0x10) if insn.code == 0x18 => self.load_wide(dst, src, insn.imm),
            (1, 0x60 | 0x70) => {
                let address = self.registers[src].wrapping_add(offset);
                self.registers[dst] = self.machine.load(address, bytes);
            }
            (2 | 3, 0x60 | 0x70) => {
                let value = if insn.code & 7 == 2 { imm } else { self.registers[src] };
                self.machine.store(self.registers[dst].wrapping_add(offset), bytes, value);
            }
            (3, 0xc0 | 0xd0) => self.atomic(self.registers[dst].wrapping_add(offset), bytes, src, insn.imm),
            (7, operation) => self.registers[dst] = alu(operation, self.registers[dst], from, 64, insn),
            (4, operation) => {
                let value = alu(operation, self.registers[dst] & 0xffff_ffff, from & 0xffff_ffff, 32, insn);
                self.registers[dst] = value & 0xffff_ffff;
            }
            (5, 0x80) => self.call(insn),
            (5 | 6, operation) => {
                let (mut one, mut other) = (self.registers[dst], from);
                if insn.code & 7 == 6 {
                    // The lower halves, with their signs.
                    [one, other] = [one, other].map(|word| i64::from(word as i32).cast_unsigned());
                }
                if jumps(operation, one, other, insn) {
                    self.at = self.at.wrapping_add_signed(isize::from(insn.offset));
                }
            }
            _ => panic!("instruction {:#x} is not emulated: {insn:?}", insn.code),
        }
    }

    /// A number of two instructions, or a map.
    fn load_wide(&mut self, dst: usize, kind: usize, imm: i32) {
        let upper = u64::from(self.code[self.at].imm.cast_unsigned());
        self.at += 1;
        self.registers[dst] = match kind {
            0 => upper << 32 | u64::from(imm.cast_unsigned()),
            1 => MAPS_AT | u64::from(imm.cast_unsigned()),
            _ => panic!("an address of kind {kind} is not emulated"),
        };
    }

    fn atomic(&mut self, address: u64, bytes: usize, src: usize, operation: i32) {
        let (old, with) = (self.machine.load(address, bytes), self.registers[src]);
        let new = match operation & !1 {
            0 => old.wrapping_add(with),
            0x40 => old | with,
            0x50 => old & with,
            0xa0 => old ^ with,
            0xe0 => with,
            0xf0 if old == self.registers[0] => with,
            0xf0 => old,
            _ => panic!("atomic operation {operation:#x} is not emulated"),
        };
        self.machine.store(address, bytes, new);
        match operation {
            0xf1 => self.registers[0] = old,
            _ if operation & 1 != 0 => self.registers[src] = old,
            _ => {}
        }
    }

    fn map(&self, register: usize) -> i32 {
        let address = self.registers[register];
        assert_eq!(address & MAPS_AT, MAPS_AT, "{address:#x} is no map");
        address as u32 as i32
    }

    /// Calls a helper by its number.
    fn call(&mut self, insn: &Instruction) {
        assert_eq!(insn.registers, 0, "calls of functions are not emulated");
        let is = |helper: BpfHelper| insn.imm == helper as i32;
        let [_, r1, r2, r3, r4, r5, ..] = self.registers;
        let result = if is(BpfHelper::MapLookup) {
            let (map, key) = (self.map(1), self.key(1));
            self.machine.look_up(map, &key)
        } else if is(BpfHelper::MapUpdate) {
            let (map, key) = (self.map(1), self.key(1));
            let value = self.machine.sizes(map).1;
            let value = self.machine.bytes(r3, value).to_vec();
            self.machine.update(map, &key, &value, r4).cast_unsigned()
        } else if is(BpfHelper::MapDelete) {
            let (map, key) = (self.map(1), self.key(1));
            self.machine.remove(map, &key).cast_unsigned()
        } else if is(BpfHelper::Now) {
            self.machine.now_ns
        } else if is(BpfHelper::CpuNumber) {
            self.machine.cpu as u64
        } else if is(BpfHelper::CurrentPidTgid) {
            let (pid, tid) = self.machine.current;
            u64::from(pid.cast_unsigned()) << 32 | u64::from(tid.cast_unsigned())
        } else if is(BpfHelper::CurrentTask) || is(BpfHelper::CurrentTaskTyped) {
            self.machine.task
        } else if is(BpfHelper::TaskRegisters) {
            self.machine.registers
        } else if is(BpfHelper::ReadKernel) {
            let bytes = self.machine.bytes(r3, r2 as usize).to_vec();
            self.machine.bytes(r1, r2 as usize).copy_from_slice(&bytes);
            0
        } else if is(BpfHelper::EventOutput) {
            assert!(matches!(self.machine.maps[&self.map(2)], TestMap::Events));
            assert_eq!(r3, THIS_CPU, "samples of other CPUs are not emulated");
            self.write(r4, r5 as usize).cast_unsigned()
        } else {
            panic!("helper {} is not emulated", insn.imm)
        };
        // What a program must not use any more.
        self.registers[1..6].fill(0xdead_dead_dead_dead);
        self.registers[0] = result;
    }

    fn key(&mut self, map: usize) -> Vec<u8> {
        let map = self.map(map);
        let bytes = match self.machine.maps.get(&map) {
            Some(TestMap::Hash { key_bytes, .. }) => *key_bytes,
            Some(_) => 4,
            None => panic!("there is no map {map}"),
        };
        self.machine.bytes(self.registers[2], bytes).to_vec()
    }

    fn write(&mut self, from: u64, bytes: usize) -> i64 {
        let raw = self.machine.bytes(from, bytes).to_vec();
        let lost = self.machine.is_full;
        let (cpu, tid) = (self.machine.cpu, self.machine.current.1);
        self.machine.output.push(Output { cpu, tid, raw, lost });
        if lost { -i64::from(libc::ENOSPC) } else { 0 }
    }
}

/// An operation of so many bits.
fn alu(operation: u8, one: u64, other: u64, bits: u32, insn: &Instruction) -> u64 {
    match operation {
        0x00 => one.wrapping_add(other),
        0x10 => one.wrapping_sub(other),
        0x20 => one.wrapping_mul(other),
        0x30 => one.checked_div(other).unwrap_or(0),
        0x40 => one | other,
        0x50 => one & other,
        0x60 => one << (other & u64::from(bits - 1)),
        0x70 => one >> (other & u64::from(bits - 1)),
        0x80 => one.wrapping_neg(),
        0x90 => one.checked_rem(other).unwrap_or(one),
        0xa0 => one ^ other,
        0xb0 => other,
        0xc0 if bits == 64 => (one.cast_signed() >> (other & 63)).cast_unsigned(),
        _ => panic!("operation {operation:#x} is not emulated: {insn:?}"),
    }
}

fn jumps(operation: u8, one: u64, other: u64, insn: &Instruction) -> bool {
    let (signed_one, signed_other) = (one.cast_signed(), other.cast_signed());
    match operation {
        0x00 => true,
        0x10 => one == other,
        0x20 => one > other,
        0x30 => one >= other,
        0x40 => one & other != 0,
        0x50 => one != other,
        0x60 => signed_one > signed_other,
        0x70 => signed_one >= signed_other,
        0xa0 => one < other,
        0xb0 => one <= other,
        0xc0 => signed_one < signed_other,
        0xd0 => signed_one <= signed_other,
        _ => panic!("jump {operation:#x} is not emulated: {insn:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::insn::{Assembler, Compare, FP, R0, R1, R2, R3};
    use super::*;

    /// Checks arithmetic, memory and jumps by a program that sums the numbers up to its argument.
    #[test]
    fn sums() {
        let mut a = Assembler::new();
        let (again, end) = (a.label(), a.label());
        a.load64(R2, R1, 8);
        a.store64_imm(FP, -8, 0);
        a.mov_imm(R3, 0);
        a.place(again);
        a.jump_on(Compare::Equal, R3, R2, end);
        a.add_imm(R3, 1);
        a.atomic_add64(FP, -8, R3);
        a.jump(again);
        a.place(end);
        a.load64(R0, FP, -8);
        a.exit();
        assert_eq!(BpfMachine::default().run(&a.finish().into(), &[7, 100]), 5050);
    }

    /// Checks that a full hash takes no new key, and known ones still.
    #[test]
    fn a_full_hash() {
        let mut machine = BpfMachine::default();
        machine.hash(3, 4, 8, 2);
        let mut set = |key: u32| machine.update(3, &key.to_ne_bytes(), &[0; 8], 0);
        assert_eq!([1, 2, 3, 2].map(&mut set), [0, 0, -7, 0]);
        assert_eq!(machine.remove(3, &[9; 4]), -2);
    }

    /// Checks that a program that leaves its stack is found.
    #[test]
    #[should_panic(expected = "8 bytes at")]
    fn outside_of_the_stack() {
        let mut a = Assembler::new();
        a.store64_imm(FP, -520, 1);
        a.exit();
        BpfMachine::default().run(&a.finish().into(), &[]);
    }

    /// Checks that an unknown helper is named.
    #[test]
    #[should_panic(expected = "helper 109 is not emulated")]
    fn unknown_helper() {
        let mut a = Assembler::new();
        a.call(BpfHelper::SendSignal);
        a.exit();
        BpfMachine::default().run(&a.finish().into(), &[]);
    }
}
