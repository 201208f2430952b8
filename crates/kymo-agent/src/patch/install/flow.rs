//! Where a function's instructions jump to: what tells whether somebody may land inside the bytes
//! of a patch.
use super::memory::Memory;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// What one pass over a function's instructions tells.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// The targets of all direct branches, sorted.
    pub(crate) targets: Vec<u64>,
    /// Whether it jumps to addresses that it computes.
    pub(crate) computed: bool,
    /// Addresses that the function takes of data: where a table of its jumps may be.
    tables: Vec<u64>,
}

/// More targets than this in one table are not looked at: nobody has them.
const TABLE_ENTRIES: u64 = 4096;

impl Flow {
    /// Looks at all instructions of `code`, which lies at `start`. What is no instruction is
    /// stepped over byte by byte: it is data, or ends.
    pub(crate) fn of(code: &[u8], start: u64) -> Flow {
        let mut flow = Flow::default();
        let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            flow.see(&instruction);
        }
        flow.targets.sort_unstable();
        flow.targets.dedup();
        flow
    }

    fn see(&mut self, instruction: &Instruction) {
        match instruction.flow_control() {
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch | FlowControl::Call
                if instruction.op0_kind() == OpKind::NearBranch64 =>
            {
                self.targets.push(instruction.near_branch64());
            }
            FlowControl::IndirectBranch => {
                // `jmp [rip + x]` is a tail call through a table of addresses of functions.
                self.computed |= !instruction.is_ip_rel_memory_operand();
                if instruction.memory_base() == Register::None && instruction.memory_index() != Register::None
                {
                    self.tables.push(instruction.memory_displacement64());
                }
            }
            FlowControl::Next
                if instruction.mnemonic() == Mnemonic::Lea && instruction.is_ip_rel_memory_operand() =>
            {
                self.tables.push(instruction.ip_rel_memory_address());
            }
            FlowControl::Next
                if instruction.memory_index() != Register::None
                    && instruction.memory_base() == Register::None
                    && instruction.memory_displ_size() >= 4 =>
            {
                self.tables.push(instruction.memory_displacement64());
            }
            _ => {}
        }
    }

    /// An entry of a jump table that leads into `from..to`.
    ///
    /// A table is a row of 4-byte distances from its own begin, or of 8-byte addresses, that all
    /// lead into the function; where the row ends, nothing says. So a row is read as long as its
    /// entries lead into `function`, and one that only seems to be a table costs a refusal at
    /// worst.
    pub(crate) fn table_into(
        &self,
        memory: &dyn Memory,
        function: (u64, u64),
        from: u64,
        to: u64,
    ) -> Option<u64> {
        if !self.computed || from >= to {
            return None;
        }
        let inside = |target: &u64| (function.0..function.1).contains(target);
        self.tables.iter().find_map(|&table| {
            // In pieces: most addresses are of no table, and end with the first entry.
            let mut at = 0;
            // Distances, and addresses: their bytes, and whether all so far lead into the function.
            let mut kinds = [(4, true), (8, true)];
            while at < TABLE_ENTRIES && kinds.iter().any(|(_, leads)| *leads) {
                let piece = memory.bytes(table.wrapping_add(at * 4), 64);
                for (bytes, leads) in &mut kinds {
                    for entry in piece.chunks_exact(*bytes) {
                        let mut word = [0; 8];
                        word[..*bytes].copy_from_slice(entry);
                        let word = u64::from_le_bytes(word);
                        let near = table.wrapping_add_signed(i64::from(word as i32));
                        let target = if *bytes == 4 { near } else { word };
                        *leads = *leads && inside(&target);
                        if *leads && (from..to).contains(&target) {
                            return Some(target);
                        }
                    }
                }
                if piece.len() < 64 {
                    break;
                }
                at += 16;
            }
            None
        })
    }
}

/// The first of the sorted `targets` in `from..to`.
pub(crate) fn first_in(targets: &[u64], from: u64, to: u64) -> Option<u64> {
    let at = targets.partition_point(|&target| target < from);
    targets.get(at).copied().filter(|&target| target < to)
}
