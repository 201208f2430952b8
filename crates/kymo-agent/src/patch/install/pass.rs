//! Writing sites in one go, while no other thread runs.
//!
//! ```text
//!   sites     .#....#..#......#.#.....#                             .#..#...
//!   runs      |------------------------|                            |------|         neighbours, at most a page
//!             read, compare, change, write                          ...
//! ```
//! Neighbours are read and written by one call each: tens of thousands of sites take milliseconds.
//! But where a byte between sites may be a uprobe's trap, or a site is not as it should be, each
//! site is written by itself: a trap that is written again when its uprobe has ended in between
//! kills the program. A site whose bytes are not what they should be stays as it is.
use super::memory::{Memory, OwnMemory};
use crate::patch::os;
use crate::patch::site::JUMP_BYTES;
use crate::sys::raw;
use std::io;
use std::ops::Range;

/// Bytes between two sites that are rather read and written, too, than left out by a call.
const GAP_BYTES: u64 = 512;
const MOST_RUN_BYTES: u64 = 4 << 10;
/// What the kernel writes for a uprobe: `int3`.
const KERNEL_TRAP: u8 = 0xcc;
const PAGE_BYTES: u64 = 4096;

/// One site, what is there, and what is to be there. As a tracer reads it in this process's memory
/// (`kymo_core::probe::wire::PatchSites`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SiteEdit {
    pub(crate) at: u64,
    pub(crate) from: [u8; JUMP_BYTES],
    pub(crate) to: [u8; JUMP_BYTES],
}

const _: () = assert!(size_of::<SiteEdit>() as u64 == kymo_core::probe::wire::EDIT_BYTES);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EditOutcome {
    /// It is as it was before.
    Untouched,
    Written,
    /// It is as it was before, which is not what it should be.
    Changed,
    /// It is as it was before, for the kernel said this.
    Failed(i32),
}

/// Everything that writing needs, so that nothing is allocated meanwhile.
#[derive(Debug)]
pub(crate) struct Pass<'m> {
    memory: &'m OwnMemory,
    edits: Vec<SiteEdit>,
    runs: Vec<Range<usize>>,
    fates: Vec<EditOutcome>,
    buffer: Vec<u8>,
}

impl<'m> Pass<'m> {
    /// Prepares to write `edits`, which do not overlap.
    ///
    /// # Errors
    /// Where the kernel cannot make cores look at memory anew.
    pub(crate) fn prepare(memory: &'m OwnMemory, mut edits: Vec<SiteEdit>) -> io::Result<Pass<'m>> {
        edits.sort_unstable_by_key(|edit| edit.at);
        let mut runs: Vec<Range<usize>> = Vec::new();
        for (number, edit) in edits.iter().enumerate() {
            match runs.last_mut() {
                Some(run)
                    if edit.at - (edits[run.end - 1].at + JUMP_BYTES as u64) <= GAP_BYTES
                        && edit.at + JUMP_BYTES as u64 - edits[run.start].at <= MOST_RUN_BYTES =>
                {
                    run.end = number + 1;
                }
                _ => runs.push(number..number + 1),
            }
        }
        // Registers the process for it, which takes the kernel a while when there are many threads.
        os::sync_cores()?;
        let fates = vec![EditOutcome::Untouched; edits.len()];
        Ok(Pass { memory, edits, runs, fates, buffer: vec![0; MOST_RUN_BYTES as usize] })
    }

    /// What the one who holds the threads has to write, because this process cannot: nothing, where
    /// it can.
    pub(crate) fn for_the_holder(&self) -> Vec<SiteEdit> {
        if self.memory.writes_code().is_some() { Vec::new() } else { self.edits.clone() }
    }

    /// Makes the process's own copies of all pages that will be written, by writing a byte of each
    /// as it is: that is most of the time that writing takes.
    pub(crate) fn warm(&self) {
        let Some(file) = self.memory.writes_code() else { return };
        let mut warmed = 0;
        let mut warm = |at: u64| {
            let page = at & !(PAGE_BYTES - 1);
            let mut byte = [0];
            if page != warmed && raw::read_at(file, &mut byte, at).is_ok_and(|count| count == 1) {
                // Where this fails the writing will, and says so.
                _ = raw::write_at(file, &byte, at);
            }
            warmed = page;
        };
        for edit in &self.edits {
            warm(edit.at);
            warm(edit.at + JUMP_BYTES as u64 - 1);
        }
    }

    /// Writes all, as long as `goes_on`; or looks what the holder has written. Allocates nothing,
    /// takes no lock, calls no library.
    pub(crate) fn write(&mut self, goes_on: &dyn Fn() -> bool) {
        let Some(file) = self.memory.writes_code() else { return self.look() };
        for run in &self.runs {
            let (edits, fates) = (&self.edits[run.clone()], &mut self.fates[run.clone()]);
            let begin = edits[0].at;
            let end = edits[edits.len() - 1].at + JUMP_BYTES as u64;
            let bytes = &mut self.buffer[..(end - begin) as usize];
            let fate = match raw::read_at(file, bytes, begin) {
                Ok(count) if count == bytes.len() => None,
                Ok(_) => Some(EditOutcome::Changed),
                Err(error) => Some(EditOutcome::Failed(error.raw_os_error().unwrap_or(libc::EIO))),
            };
            if let Some(fate) = fate {
                fates.fill(fate);
                continue;
            }
            // A tracer that ends lets the threads go: looked at before each write.
            if change(bytes, begin, edits, fates) {
                if !goes_on() {
                    return fates.fill(EditOutcome::Untouched);
                }
                let done = raw::write_at(file, bytes, begin).unwrap_or(0) as u64;
                for (edit, fate) in edits.iter().zip(&mut *fates) {
                    if edit.at + JUMP_BYTES as u64 > begin + done {
                        *fate = write_one(file, edit);
                    }
                }
                continue;
            }
            for (edit, fate) in edits.iter().zip(&mut *fates) {
                if *fate == EditOutcome::Written {
                    *fate = if goes_on() { write_one(file, edit) } else { EditOutcome::Untouched };
                }
            }
        }
        // Cores that run a thread of this process look at memory anew now, and those that run none
        // do so before they run one (the kernel's Documentation/features/sched/membarrier-sync-core
        // says by what: an `iret`, a change of page tables, or an instruction for this purpose). A
        // stop by ptrace alone does not promise it: a thread may go on by `sysret`, on the core
        // that it stopped on.
        _ = os::sync_cores();
    }

    /// Finds out what the holder has written. It may have ended in between: then some are written,
    /// and each whole.
    fn look(&mut self) {
        for (edit, fate) in self.edits.iter().zip(&mut self.fates) {
            let mut bytes = [0; JUMP_BYTES];
            let got = self.memory.read(edit.at, &mut bytes);
            let is = |other: &[u8; JUMP_BYTES]| bytes.iter().zip(other).all(|(byte, other)| byte == other);
            *fate = match got {
                JUMP_BYTES if is(&edit.to) => EditOutcome::Written,
                JUMP_BYTES if is(&edit.from) => EditOutcome::Failed(libc::EIO),
                _ => EditOutcome::Changed,
            };
        }
        // As in `write`.
        _ = os::sync_cores();
    }

    /// What became of the sites: their addresses, ascending.
    pub(crate) fn fates(&self) -> impl Iterator<Item = (u64, EditOutcome)> {
        self.edits.iter().map(|edit| edit.at).zip(self.fates.iter().copied())
    }
}

/// Makes of a run's bytes what they are to be, and of each fate whether its site can be written.
/// Whether all can be, in one go with what lies between them. Byte by byte, so that nothing is
/// called.
fn change(bytes: &mut [u8], begin: u64, edits: &[SiteEdit], fates: &mut [EditOutcome]) -> bool {
    let (mut whole, mut between) = (true, 0);
    for (edit, fate) in edits.iter().zip(fates) {
        let at = (edit.at - begin) as usize;
        for byte in &bytes[between..at] {
            whole &= *byte != KERNEL_TRAP;
        }
        between = at + JUMP_BYTES;
        let mut same = true;
        for (byte, from) in bytes[at..between].iter().zip(&edit.from) {
            same &= byte == from;
        }
        for (byte, to) in bytes[at..between].iter_mut().zip(&edit.to) {
            *byte = *to;
        }
        *fate = if same { EditOutcome::Written } else { EditOutcome::Changed };
        whole &= same;
    }
    whole
}

/// Writes one site, whole or not at all.
fn write_one(file: i32, edit: &SiteEdit) -> EditOutcome {
    let failed = match raw::write_at(file, &edit.to, edit.at) {
        Ok(JUMP_BYTES) => return EditOutcome::Written,
        Ok(_) => None,
        Err(error) => Some(error),
    };
    // A site may lie in two pages, of which one can be refused.
    _ = raw::write_at(file, &edit.from, edit.at);
    EditOutcome::Failed(failed.and_then(|error| error.raw_os_error()).unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(page: &[u8], at: usize, to: u8) -> SiteEdit {
        let mut from = [0; JUMP_BYTES];
        from.copy_from_slice(&page[at..at + JUMP_BYTES]);
        SiteEdit { at: page.as_ptr() as u64 + at as u64, from, to: [to; JUMP_BYTES] }
    }

    /// Checks that sites near and far are written, one that is not as expected is left, nothing
    /// else changes, and that nothing is written from the moment on when the threads run.
    #[test]
    fn writes_what_it_should() {
        let memory = OwnMemory::open().expect("/proc");
        let plain: Vec<u8> = (0..40_000u32).map(|at| (at % 251) as u8).collect();
        let page = plain.clone();
        let places = [10, 15, 100, 4093, 9000, 20_000, 39_995];
        let mut edits: Vec<SiteEdit> = places.iter().rev().map(|&at| edit(&page, at, 1)).collect();
        edits[2].from[4] ^= 1;
        let mut pass = Pass::prepare(&memory, edits).expect("membarrier");
        assert!(pass.runs.len() > 1 && pass.runs.len() < places.len(), "{:?}", pass.runs);
        pass.warm();
        assert_eq!(page, plain);
        pass.write(&|| true);
        let mut expected = plain.clone();
        for at in [10, 15, 100, 4093, 20_000, 39_995] {
            expected[at..at + JUMP_BYTES].fill(1);
        }
        assert!(page == expected);
        let fates: Vec<EditOutcome> = pass.fates().map(|(_, fate)| fate).collect();
        let (written, changed) = (EditOutcome::Written, EditOutcome::Changed);
        assert_eq!(fates, [written, written, written, written, changed, written, written]);
        let asked = std::cell::Cell::new(0);
        let mut pass =
            Pass::prepare(&memory, [10, 20_000].map(|at| edit(&page, at, 2)).to_vec()).expect("membarrier");
        pass.write(&|| asked.replace(asked.get() + 1) == 0);
        expected[10..15].fill(2);
        assert!(page == expected);
        assert_eq!(pass.fates().map(|(_, fate)| fate).collect::<Vec<_>>(), [written, EditOutcome::Untouched]);
    }

    /// Checks that what lies between sites is not written where it may be a uprobe's trap, or a
    /// site is another's.
    #[test]
    fn traps_of_the_kernel_are_not_written() {
        let original = [7; 32];
        let edits = [edit(&original, 2, 1), edit(&original, 20, 1)];
        let at = edits[0].at;
        let whole = |trap: Option<usize>| {
            let mut bytes = original[2..25].to_vec();
            if let Some(trap) = trap {
                bytes[trap] = KERNEL_TRAP;
            }
            let mut fates = [EditOutcome::Untouched; 2];
            (change(&mut bytes, at, &edits, &mut fates), fates)
        };
        let (written, changed) = (EditOutcome::Written, EditOutcome::Changed);
        assert_eq!(whole(None), (true, [written, written]));
        assert_eq!(whole(Some(10)), (false, [written, written]));
        assert_eq!(whole(Some(18)), (false, [written, changed]));
    }

    /// Checks that memory which is not there fails, and only that.
    #[test]
    fn what_is_not_there() {
        let memory = OwnMemory::open().expect("/proc");
        let nowhere = SiteEdit { at: 4096, from: [0; JUMP_BYTES], to: [1; JUMP_BYTES] };
        let page = vec![7; 100];
        let mut pass = Pass::prepare(&memory, vec![nowhere, edit(&page, 3, 1)]).expect("membarrier");
        pass.warm();
        pass.write(&|| true);
        let fates: Vec<EditOutcome> = pass.fates().map(|(_, fate)| fate).collect();
        assert!(matches!(fates[0], EditOutcome::Failed(_) | EditOutcome::Changed), "{fates:?}");
        assert_eq!(fates[1], EditOutcome::Written);
    }
}
