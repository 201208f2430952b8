//! Unused memory of a thread's stack, where the sigreturn frame is written before the thread runs
//! for us.
//!
//! ```text
//!   on its own stack                       on another one (a coroutine's, a signal handler's)
//!   +--------------------+                 +--------------------+
//!   | frames             |                 | frames             |  its own stack, where it waits
//!   +- stack pointer ----+                 +--------------------+
//!   | red zone, 128      |                 | zero               |
//!   | room               |  as the kernel  | room               |
//!   |                    |  for a handler  | zero               |  handlers would need it
//!   +--------------------+                 +--------------------+  the lowest address
//! ```
//! What lies below a pointer into another stack may be anybody's: stacks of coroutines are small,
//! and lie in heaps. There the low end of the thread's own stack is taken, if it is zero. The
//! deepest frame that a thread has left there ends with a return address, so zeros from the lowest
//! address on have no frame below them.
use super::target::TargetProcess;
use crate::proc::{Mappings, MapsEntry};
use crate::sys::ptrace::Registers;
use std::io;
use std::ops::Range;

/// What a function may use below the stack pointer.
const RED_ZONE_BYTES: u64 = 128;
/// Left free below the room: a handler may run there in the moment before signals are held back.
const HANDLER_BYTES: u64 = 32 << 10;
const READ: u32 = 1;
const WRITE: u32 = 2;

/// Room for so many bytes for a thread that stands still with these registers; `None` if there is
/// none. `left`: what a kymo that was killed may have left there.
pub(super) fn of(
    target: &TargetProcess,
    tid: i32,
    registers: &Registers,
    bytes: u64,
    left: Option<[u8; 16]>,
) -> io::Result<Option<Range<u64>>> {
    let maps = target.maps()?;
    let is_first = tid == target.pid;
    let Some(own) = own_stack(&maps, is_first, registers.fs_base) else { return Ok(None) };
    if let Some(room) = below(&own, registers, is_first, bytes) {
        return Ok(Some(room));
    }
    // A signal's stack or a coroutine's.
    if own.contains(&registers.rsp) {
        return Ok(None);
    }
    let end = own.start + HANDLER_BYTES + bytes;
    let mut low = vec![0; (HANDLER_BYTES + bytes) as usize];
    if end > own.end || target.read(own.start, &mut low).is_err() {
        return Ok(None);
    }
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let (below, room) = low.split_at(HANDLER_BYTES as usize);
    let is_left = || left.is_some_and(|left| memchr::memmem::find(room, &left).is_some());
    if !is_zero(below) || !(is_zero(room) || is_left()) {
        return Ok(None);
    }
    Ok(Some(own.start + HANDLER_BYTES..end))
}

/// The mapping that a thread's own stack is in. That of the first thread has a name; of others it
/// is the one with the thread's control block, which the C library puts at the upper end.
fn own_stack(maps: &[u8], is_first: bool, control_block: u64) -> Option<Range<u64>> {
    let is_own = |mapping: &MapsEntry<'_>| match is_first {
        true => mapping.path == b"[stack]",
        false => (mapping.start..mapping.end).contains(&control_block),
    };
    let own = Mappings::new(maps).find(is_own)?;
    (own.prot & (READ | WRITE) == READ | WRITE).then_some(own.start..own.end)
}

/// Below the red zone, where the kernel puts a handler's frame.
fn below(own: &Range<u64>, registers: &Registers, is_first: bool, bytes: u64) -> Option<Range<u64>> {
    // Above the control block is another thread's memory, or the heap.
    let is_on_it = own.contains(&registers.rsp) && (is_first || registers.rsp < registers.fs_base);
    let end = registers.rsp.checked_sub(RED_ZONE_BYTES).filter(|_| is_on_it)?;
    let start = end.checked_sub(bytes)?;
    // The first thread's stack grows by itself, but not when another process writes.
    (start >= own.start + bytes).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ptrace::no_registers;

    const MAPS: &[u8] = b"1000-9000 rw-p 00000000 00:00 0 \n\
        20000-60000 rw-p 00000000 00:00 0 \n\
        100000-140000 rw-p 00000000 00:00 0 [stack]\n";

    fn room(is_first: bool, rsp: u64, fs_base: u64) -> Option<Range<u64>> {
        let mut registers = no_registers();
        (registers.rsp, registers.fs_base) = (rsp, fs_base);
        let own = own_stack(MAPS, is_first, fs_base)?;
        below(&own, &registers, is_first, 0x1000)
    }

    /// Checks that room is found below the red zone of a thread's own stack only: not near its
    /// lower end, not on another stack, and not in what lies above the thread's control block.
    #[test]
    fn below_the_red_zone() {
        assert_eq!(room(true, 0x13_0080, 0x1500), Some(0x12_f000..0x13_0000));
        assert_eq!(room(true, 0x10_1800, 0x1500), None);
        assert_eq!(room(true, 0x3_0000, 0x1500), None);
        assert_eq!(room(false, 0x3_0080, 0x5_0000), Some(0x2_f000..0x3_0000));
        assert_eq!(room(false, 0x5_8000, 0x5_0000), None);
        assert_eq!(room(false, 0x13_0000, 0x5_0000), None);
        assert_eq!(room(false, 0x3_0000, 0x7_0000), None);
    }

    /// Checks that a thread on a stack of another kind is given the low end of its own one, as long
    /// as that is zero.
    #[test]
    fn on_another_stack() {
        let target = TargetProcess::look(std::process::id() as i32).unwrap();
        let stack = vec![0_u8; 512 << 10];
        let at = |offset: u64| stack.as_ptr() as u64 + offset;
        let mut registers = no_registers();
        // As a thread whose control block is in this vector's mapping, and that runs elsewhere.
        (registers.rsp, registers.fs_base) = (8, at(256 << 10));
        let tid = target.pid + 1;
        let maps = target.maps().unwrap();
        let own = own_stack(&maps, false, registers.fs_base).unwrap();
        let found = of(&target, tid, &registers, 0x1000, None).unwrap();
        let mut low = vec![0; (HANDLER_BYTES + 0x1000) as usize];
        target.read(own.start, &mut low).unwrap();
        let expected = own.start + HANDLER_BYTES..own.start + HANDLER_BYTES + 0x1000;
        // The vector's mapping begins with its allocator's words, or with others' zeros.
        assert_eq!(found, low.iter().all(|byte| *byte == 0).then_some(expected));
    }
}
