//! The code of a module, as a process has it and as its file has it.
use kymo_agent::patch::Memory;
use kymo_perf::inject::RemoteTarget;
use kymo_symbols::sites::ProbeModule;
use std::cell::RefCell;
use std::collections::HashMap;

/// What is asked of the process at once: each question is answered by a helper process.
const BLOCK_BYTES: u64 = 64 << 10;
/// What is kept: 64 MiB.
const MOST_BLOCKS: usize = 1024;

/// The memory of a process, read in blocks that are kept: as it was when it was read first. What is
/// written over it is compared once more, while the threads stand still.
pub(super) struct ProcessCode<'a> {
    process: &'a dyn RemoteTarget,
    /// By the number of the block; shorter where memory ends.
    blocks: RefCell<HashMap<u64, Vec<u8>>>,
}

impl<'a> ProcessCode<'a> {
    pub(super) fn of(process: &'a dyn RemoteTarget) -> ProcessCode<'a> {
        ProcessCode { process, blocks: RefCell::default() }
    }

    /// Copies what the block of this address has from there on: how many bytes; nothing where it
    /// does not reach to the address, or ends before `into` does.
    fn read_block(&self, address: u64, into: &mut [u8]) -> usize {
        let mut blocks = self.blocks.borrow_mut();
        if blocks.len() >= MOST_BLOCKS {
            blocks.clear();
        }
        let number = address / BLOCK_BYTES;
        let block = blocks.entry(number).or_insert_with(|| {
            let mut bytes = vec![0; BLOCK_BYTES as usize];
            let read = self.process.read(number * BLOCK_BYTES, &mut bytes);
            bytes.truncate(read);
            bytes
        });
        let from = (address % BLOCK_BYTES) as usize;
        let wanted = into.len().min(BLOCK_BYTES as usize - from);
        let Some(bytes) = block.get(from..from + wanted) else { return 0 };
        into[..wanted].copy_from_slice(bytes);
        wanted
    }
}

impl Memory for ProcessCode<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() {
            let at = address.wrapping_add(done as u64);
            match self.read_block(at, &mut into[done..]) {
                // The block begins or ends where nothing is mapped.
                0 => return done + self.process.read(at, &mut into[done..]),
                read => done += read,
            }
        }
        done
    }
}

/// Where code is read: addresses of the process.
pub(super) struct CodeSource<'a> {
    pub(super) module: &'a ProbeModule,
    pub(super) bias: u64,
    /// The process's memory; without it the file is read.
    pub(super) process: Option<&'a ProcessCode<'a>>,
}

impl Memory for CodeSource<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        if let Some(process) = self.process {
            return process.read(address, into);
        }
        let bytes = self.module.loaded(address.wrapping_sub(self.bias), into.len() as u64);
        let count = bytes.len().min(into.len());
        into[..count].copy_from_slice(&bytes[..count]);
        count
    }
}

impl CodeSource<'_> {
    /// Whether the process has its file's bytes here; yes before there is a process.
    pub(super) fn matches_file(&self, address: u64, bytes: u64) -> bool {
        let file = CodeSource { process: None, ..*self };
        self.process.is_none() || file.bytes(address, bytes) == self.bytes(address, bytes)
    }
}

/// A jump that the process has, and its file has not.
pub(super) struct ForeignJump {
    pub(super) at: u64,
    /// The jump.
    pub(super) now: [u8; 5],
    /// What the file has.
    pub(super) file: [u8; 5],
    /// Where it leads.
    pub(super) to: u64,
}

impl ForeignJump {
    /// The one that begins at `start` of these bytes, which lie at `base`.
    fn at(its: &[u8], files: &[u8], start: usize, base: u64) -> Option<ForeignJump> {
        let now: [u8; 5] = its.get(start..start + 5)?.try_into().ok()?;
        let file: [u8; 5] = files.get(start..start + 5)?.try_into().ok()?;
        let distance = i32::from_le_bytes([now[1], now[2], now[3], now[4]]);
        let at = base + start as u64;
        let to = at.wrapping_add(5).wrapping_add_signed(i64::from(distance));
        (now[0] == 0xe9).then_some(ForeignJump { at, now, file, to })
    }
}

/// The jumps of a module's code that differ from its file.
pub(super) fn jumps_not_of_file(code: &CodeSource<'_>, begin: u64, bytes: u64) -> Vec<ForeignJump> {
    const PIECE: u64 = 1 << 20;
    let file = CodeSource { process: None, ..*code };
    let mut found: Vec<ForeignJump> = Vec::new();
    let mut at = begin;
    while at < begin + bytes {
        let piece = PIECE.min(begin + bytes - at);
        // With what a jump at the end needs.
        let (its, files) = (code.bytes(at, piece + 8), file.bytes(at, piece + 8));
        for (place, _) in its.iter().zip(&files).enumerate().filter(|(_, (its, files))| its != files) {
            let is_known = found.last().is_some_and(|last| at + (place as u64) < last.at + 5);
            if is_known || place as u64 >= piece {
                continue;
            }
            // The file may have the same first bytes.
            let starts = (0..5).filter_map(|back| place.checked_sub(back));
            found.extend(starts.into_iter().find_map(|start| ForeignJump::at(&its, &files, start, at)));
        }
        at += piece;
    }
    found
}
