//! What all stubs end with, and the bytes of it.
//!
//! ```text
//!   descriptors (32 bytes)    of restartable sequences: declared before anything else
//!   enter:    what the stub does at a hit                       (stub.rs, freestanding/stub.rs)
//!   moved:    the displaced instructions, each behind what the stub does before it
//!             what the stub does behind them
//!             jmp behind them in the function                   if the flow comes so far
//!             aborts of the sequences
//! ```
use super::context::Emitted;
use super::count::{Counter, DESCRIPTOR_BYTES};
use super::moved;
use crate::patch::site::Site;
use iced_x86::code_asm::{CodeAssembler, CodeLabel};
use iced_x86::{BlockEncoderOptions, IcedError, Instruction};

/// A stub's bytes for one address, and the places in it.
#[derive(Clone, Debug)]
pub struct Stub {
    /// To be written where it was made for.
    pub code: Vec<u8>,
    /// Where the site has to jump: behind the descriptors of restartable sequences.
    pub enter: u64,
    /// Where each displaced instruction is now.
    pub moved: Vec<u64>,
}

impl Stub {
    /// Where a thread goes on that stands at one of the site's interiors: pairs.
    pub fn moves(&self, site: &Site) -> Vec<[u64; 2]> {
        let pairs = site.displaced.iter().zip(&self.moved).map(|(instruction, &to)| [instruction.ip(), to]);
        pairs.filter(|[from, _]| site.interiors().any(|interior| interior == *from)).collect()
    }
}

/// Where a stub that lies at `at` is entered, behind so many descriptors.
pub(super) fn entry_of(at: u64, sequences: usize) -> u64 {
    at + (sequences * DESCRIPTOR_BYTES) as u64
}

/// Writes the displaced instructions and the way back. `before` may write something before each of
/// them, and behind the last one, if the flow comes so far. Where each one is.
pub(super) fn displaced(
    a: &mut CodeAssembler,
    site: &Site,
    enter: u64,
    before: &mut dyn FnMut(&mut CodeAssembler, Place<'_>) -> Emitted,
) -> Result<Vec<CodeLabel>, IcedError> {
    let (moved, ends) =
        moved::each(a, site, enter, &mut |a, instruction| before(a, Place::Before(instruction)))?;
    if !ends {
        before(a, Place::Behind)?;
        a.jmp(site.resume())?;
    }
    Ok(moved)
}

/// A place among displaced instructions.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    /// Before this one.
    Before(&'a Instruction),
    /// Behind all of them.
    Behind,
}

/// Makes bytes of a stub at `at`. `sequences`: all that were declared, in this order.
pub(super) fn finish(
    mut a: CodeAssembler,
    mut sequences: Vec<Counter>,
    moved: &[CodeLabel],
    at: u64,
) -> Result<Stub, IcedError> {
    sequences.iter_mut().try_for_each(|sequence| sequence.abort(&mut a))?;
    let done = a.assemble_options(at, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
    let moved = moved.iter().map(|label| done.label_ip(label)).collect::<Result<_, _>>()?;
    let mut code = done.inner.code_buffer.clone();
    for (place, sequence) in code.as_chunks_mut::<DESCRIPTOR_BYTES>().0.iter_mut().zip(&sequences) {
        *place = sequence.descriptor(&done)?;
    }
    Ok(Stub { code, enter: entry_of(at, sequences.len()), moved })
}
