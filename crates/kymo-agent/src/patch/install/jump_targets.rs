//! Where the jumps of a module lead, as far as that is where somebody wants to write.
//!
//! ```text
//!   few places     each byte at which a jump to one of them may begin is a candidate; one that no
//!                  instruction begins with, whichever way what lies before it is decoded, is none
//!   many places    all instructions of the module are decoded, one after the other
//! ```
//!
//! # Invariant
//! - **J1** A jump that decoding all instructions finds is found among the candidates, too. So the
//!   fast way refuses no less: where both differ, it has found a jump between data.
use super::memory::Memory;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};
use std::ops::Range;

/// Longer than any instruction.
const LONGEST: u64 = 16;
/// Code is looked at in pieces of so many bytes.
const PIECE: u64 = 1 << 20;
/// How far a jump of two bytes leads, and its bytes.
const NEAR: u64 = 128 + 2;
/// Decoding from anywhere is in step with the instructions after so many bytes: nearly always after
/// three or four instructions.
const IN_STEP: u64 = 64;

/// The targets in some `places` of all direct jumps in `code`, sorted, as
/// [`Surroundings`](crate::patch::Surroundings) needs them of a module. Calls are left out, because
/// they lead to functions' begins.
///
/// Where the places are few, it takes some 1 ns for each byte of the code, otherwise 10 ns.
pub fn jump_targets(memory: &dyn Memory, code: Range<u64>, places: &[Range<u64>]) -> Vec<u64> {
    let places = merged(places);
    let wanted: u64 = places.iter().map(|place| place.end - place.start).sum();
    let mut targets = Vec::new();
    let mut add = |jump: Jump| {
        if holds(&places, jump.to) {
            targets.push(jump.to);
        }
    };
    if wanted > code.end.saturating_sub(code.start) / 8 {
        decode(memory, code, &mut add);
    } else {
        search(memory, code, &places, &mut add);
    }
    targets.sort_unstable();
    targets.dedup();
    targets
}

/// A direct jump: where it ends, and where it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Jump {
    end: u64,
    to: u64,
}

impl Jump {
    fn of(instruction: &Instruction) -> Option<Jump> {
        let jumps = matches!(
            instruction.flow_control(),
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
        );
        (jumps && instruction.op0_kind() == OpKind::NearBranch64)
            .then(|| Jump { end: instruction.next_ip(), to: instruction.near_branch64() })
    }
}

/// The same places, ascending and apart.
fn merged(places: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted: Vec<Range<u64>> = places.iter().filter(|place| !place.is_empty()).cloned().collect();
    sorted.sort_unstable_by_key(|place| (place.start, place.end));
    sorted.dedup_by(|next, last| {
        let touches = next.start <= last.end;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
    sorted
}

fn holds(places: &[Range<u64>], at: u64) -> bool {
    let next = places.partition_point(|place| place.end <= at);
    places.get(next).is_some_and(|place| place.contains(&at))
}

/// Tells all jumps of code whose first byte begins an instruction.
fn decode(memory: &dyn Memory, code: Range<u64>, add: &mut dyn FnMut(Jump)) {
    let mut at = code.start;
    while at < code.end {
        // Pieces overlap, so that no instruction is cut.
        let bytes = memory.bytes(at, (PIECE + LONGEST).min(code.end - at));
        let mut decoder = Decoder::with_ip(64, &bytes, at, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() && (decoder.position() as u64) < PIECE {
            decoder.decode_out(&mut instruction);
            Jump::of(&instruction).into_iter().for_each(&mut *add);
        }
        if decoder.position() == 0 {
            break;
        }
        at += decoder.position() as u64;
    }
}

/// Tells all jumps of `code` that lead into one of the `places`.
fn search(memory: &dyn Memory, code: Range<u64>, places: &[Range<u64>], add: &mut dyn FnMut(Jump)) {
    for place in places {
        let around = place.start.saturating_sub(NEAR)..place.end.saturating_add(NEAR);
        let around = around.start.max(code.start)..around.end.min(code.end);
        let begin = around.start.saturating_sub(IN_STEP + LONGEST).max(code.start);
        let bytes = memory.bytes(begin, around.end.saturating_sub(begin));
        for at in (around.start - begin) as usize..bytes.len() {
            if let Some(jump) = short_jump(&bytes, begin, at)
                && place.contains(&jump.to)
                && is_decoded(&bytes, begin, jump)
            {
                add(jump);
            }
        }
    }
    let mut at = code.start;
    while at < code.end {
        let begin = at.saturating_sub(IN_STEP + LONGEST).max(code.start);
        let bytes = memory.bytes(begin, (at - begin) + (PIECE + LONGEST).min(code.end - at));
        let own = (at - begin) as usize;
        for first in memchr::memchr2_iter(0xe9, 0x0f, bytes.get(own..).unwrap_or_default()) {
            let first = own + first;
            if let Some(jump) = long_jump(&bytes, begin, first)
                && holds(places, jump.to)
                && is_decoded(&bytes, begin, jump)
            {
                add(jump);
            }
        }
        if (bytes.len() as u64) < (at - begin) + PIECE {
            break;
        }
        at += PIECE;
    }
}

/// The jump of two bytes that bytes at `begin` have at this place, if it is one's operation code.
fn short_jump(bytes: &[u8], begin: u64, at: usize) -> Option<Jump> {
    let [0x70..=0x7f | 0xe0..=0xe3 | 0xeb, distance] = *bytes.get(at..at + 2)? else { return None };
    let end = begin + at as u64 + 2;
    Some(Jump { end, to: end.wrapping_add_signed(i64::from(distance as i8)) })
}

/// The same of one with a distance of four bytes.
fn long_jump(bytes: &[u8], begin: u64, at: usize) -> Option<Jump> {
    let code_bytes = match bytes.get(at..at + 2)? {
        [0xe9, _] => 1,
        [0x0f, 0x80..=0x8f] => 2,
        _ => return None,
    };
    let (distance, _) = bytes.get(at + code_bytes..)?.split_first_chunk::<4>()?;
    let end = begin + (at + code_bytes + 4) as u64;
    Some(Jump { end, to: end.wrapping_add_signed(i64::from(i32::from_le_bytes(*distance))) })
}

/// Whether decoding from one of the bytes some way before it comes to this jump.
fn is_decoded(bytes: &[u8], begin: u64, jump: Jump) -> bool {
    let end = (jump.end - begin) as usize;
    let last = end.saturating_sub(IN_STEP as usize);
    let mut instruction = Instruction::default();
    (last.saturating_sub(LONGEST as usize)..=last).any(|from| {
        let ip = begin + from as u64;
        let mut decoder = Decoder::with_ip(64, &bytes[from..end], ip, DecoderOptions::NONE);
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if instruction.next_ip() == jump.end {
                return Jump::of(&instruction) == Some(jump);
            }
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patch::OwnMemory;

    /// The C library's code, as it is mapped here.
    fn libc() -> Range<u64> {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("a list");
        let line = maps.lines().find(|line| line.contains("libc.so") && line.contains(" r-xp "));
        let (range, _) = line.expect("the C library").split_once(' ').expect("a range");
        let (start, end) = range.split_once('-').expect("two addresses");
        let number = |text| u64::from_str_radix(text, 16).expect("an address");
        number(start)..number(end)
    }

    /// Checks J1: of thousands of places all over the C library, the search finds each jump that
    /// decoding all of it finds, and hardly one more.
    #[test]
    fn each_jump_is_found() {
        let (memory, code) = (OwnMemory::open().expect("/proc"), libc());
        let mut all = Vec::new();
        decode(&memory, code.clone(), &mut |jump| all.push(jump));
        assert!(all.len() > 10_000, "{}", all.len());
        let (mut known, mut found) = (0, 0);
        // One in sixteen places of 24 bytes, another one each time.
        for turn in 0..16 {
            let starts = code.clone().step_by(24 * 16).map(|start| start + 24 * turn);
            let places: Vec<Range<u64>> = starts.map(|start| start..start + 24).collect();
            let mut expected: Vec<u64> =
                all.iter().map(|jump| jump.to).filter(|to| holds(&places, *to)).collect();
            expected.sort_unstable();
            expected.dedup();
            let targets = jump_targets(&memory, code.clone(), &places);
            let missing = expected.iter().find(|to| targets.binary_search(to).is_err());
            assert_eq!(missing, None);
            known += expected.len();
            found += targets.len();
        }
        assert!(found - known < known / 100, "{found} targets, {known} of which decoding finds");
    }

    /// Checks a jump of each kind from before and behind a place, one from within it, one that ends
    /// at it and leads elsewhere, and what only looks like one.
    #[test]
    fn jumps_of_each_kind() {
        // Two places of ten bytes at 0x1100 and 0x1800; `nop` elsewhere.
        let mut code = vec![0x90_u8; 0x1000];
        let mut put = |at: usize, bytes: &[u8]| code[at - 0x1000..][..bytes.len()].copy_from_slice(bytes);
        put(0x10f0, &[0x74, 0x11]);
        put(0x1120, &[0xe3, 0xe2]);
        put(0x1102, &[0xeb, 0x03]);
        put(0x1200, &[0xf2, 0xe9, 0x02, 0xff, 0xff, 0xff]);
        put(0x1300, &[0x0f, 0x8f, 0xfd, 0x04, 0x00, 0x00]);
        put(0x1400, &[0xe9, 0x00, 0x01, 0x00, 0x00]);
        // `mov eax, imm32` whose number looks like a short jump to 0x1805, before the place.
        put(0x17e0, &[0xb8, 0xeb, 0x22, 0x90, 0x90]);
        let memory = (0x1000_u64, &code[..]);
        let places = [0x1100..0x110a, 0x1800..0x180a];
        let targets = jump_targets(&memory, 0x1000..0x2000, &places);
        assert_eq!(targets, [0x1103, 0x1104, 0x1107, 0x1108, 0x1803]);
        let whole = 0x1000..0x2000;
        let targets = jump_targets(&memory, whole.clone(), std::slice::from_ref(&whole));
        assert_eq!(targets, [0x1103, 0x1104, 0x1107, 0x1108, 0x1505, 0x1803]);
        assert!(jump_targets(&memory, whole, &[]).is_empty());
        assert!(jump_targets(&memory, 0x3000..0x4000, &places).is_empty());
    }
}
