//! A core file: the memory and the threads of a program as they were when it was dumped.
//!
//! ```text
//!  PT_NOTE: NT_PRSTATUS (registers of each thread), NT_PRPSINFO (name), NT_FILE (what was mapped),
//!           NT_AUXV (where the program is)
//!  PT_LOAD: memory
//! ```
//! What is read is what `core(5)` and the kernel's `fs/binfmt_elf.c` have, of x86-64.
//!
//! # Invariants
//! - **C1** Any bytes give threads and mappings, or an error: sizes that the file claims are
//!   bounded by what is there.
use kymo_perf::proc::build_id_of_notes;
use kymo_symbols::Arch;
use kymo_symbols::unwind::{MappedFile, UserRegs};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// More threads and mappings than a program has.
const MOST_SEGMENTS: usize = 1 << 20;
/// What the notes may take.
const MOST_NOTE_BYTES: u64 = 256 << 20;
const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
/// Of a build id's note, and what precedes it in a file.
const MOST_ID_BYTES: usize = 4096;

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PF_X: u32 = 1;
const NT_PRSTATUS: u32 = 1;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_FILE: u32 = 0x4649_4c45;
/// Of the auxiliary vector: where the program's own headers are.
const AT_PHDR: u64 = 3;
/// `ELFCLASS64`, little-endian, `ET_CORE`, `EM_X86_64`.
const MAGIC: &[u8] = b"\x7fELF\x02\x01";
const CORE: u16 = 4;
const X86_64: u16 = 62;

/// A thread as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CoreThread {
    pub(crate) tid: i32,
    /// The signal that has ended the program, of the thread that it came to; 0: another one.
    pub(crate) signal: i32,
    /// As the kernel's `struct user_regs_struct` has them.
    registers: [u64; 27],
}

/// A part of a file that was mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CoreMapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) offset: u64,
    pub(crate) path: Vec<u8>,
    pub(crate) executable: bool,
    /// Of the file; empty if the dump has not its first page.
    pub(crate) build_id: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct CoreSegment {
    address: u64,
    bytes: u64,
    offset: u64,
    /// How many bytes of it are in the file.
    file_bytes: u64,
    executable: bool,
}

/// A core file.
#[derive(Debug)]
pub(crate) struct CoreFile {
    file: File,
    segments: Vec<CoreSegment>,
    pub(crate) pid: i32,
    /// The program's name, at most 15 bytes.
    pub(crate) name: Vec<u8>,
    /// The one that had the signal first.
    pub(crate) threads: Vec<CoreThread>,
    pub(crate) mappings: Vec<CoreMapping>,
    /// Where the program's own headers were; 0: not known.
    program_headers: u64,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

impl CoreFile {
    /// Opens a core file, and reads what it says of threads and mappings.
    ///
    /// # Errors
    /// It cannot be read, or is no core file of x86-64.
    pub(crate) fn open(path: &Path) -> io::Result<CoreFile> {
        let file = kymo_files::open_regular(path)?;
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).map_err(|_| wrong("it is no core file: it is too short"))?;
        if !header.starts_with(MAGIC) || u16_at(&header, 16) != Some(CORE) {
            return Err(wrong("it is no core file"));
        }
        if u16_at(&header, 18) != Some(X86_64) {
            return Err(wrong("it is of another processor than x86-64"));
        }
        let (at, count) = (u64_at(&header, 32).unwrap_or(0), u16_at(&header, 56).unwrap_or(0));
        // With more segments than that the first section has their number.
        const MANY: u16 = u16::MAX;
        let mut segments_count = usize::from(count);
        if count == MANY {
            let mut section = [0; 64];
            file.read_exact_at(&mut section, u64_at(&header, 40).unwrap_or(0))?;
            segments_count = u32_at(&section, 44).unwrap_or(0) as usize;
        }
        let table = read_at_most(&file, at, segments_count.min(MOST_SEGMENTS) * SEGMENT_BYTES)?;
        let mut core = CoreFile {
            file,
            segments: Vec::new(),
            pid: 0,
            name: Vec::new(),
            threads: Vec::new(),
            mappings: Vec::new(),
            program_headers: 0,
        };
        let mut notes = Vec::new();
        for entry in table.chunks_exact(SEGMENT_BYTES) {
            let word = |at: usize| u64_at(entry, at).unwrap_or(0);
            match u32_at(entry, 0) {
                Some(PT_LOAD) => core.segments.push(CoreSegment {
                    address: word(16),
                    bytes: word(40),
                    offset: word(8),
                    file_bytes: word(32),
                    executable: u32_at(entry, 4).unwrap_or(0) & PF_X != 0,
                }),
                Some(PT_NOTE) => {
                    let most = word(32).min(MOST_NOTE_BYTES) as usize;
                    notes.extend(read_at_most(&core.file, word(8), most)?);
                }
                _ => {}
            }
        }
        core.segments.sort_by_key(|segment| segment.address);
        core.read_notes(&notes);
        if core.threads.is_empty() {
            return Err(wrong("it has no threads"));
        }
        core.pid = if core.pid == 0 { core.threads[0].tid } else { core.pid };
        core.identify_files();
        Ok(core)
    }

    fn read_notes(&mut self, mut notes: &[u8]) {
        while let (Some(name), Some(bytes), Some(kind)) =
            (u32_at(notes, 0), u32_at(notes, 4), u32_at(notes, 8))
        {
            let begin = 12 + (name as usize).next_multiple_of(4);
            let Some(body) = notes.get(begin..).and_then(|rest| rest.get(..bytes as usize)) else { return };
            match kind {
                NT_PRSTATUS => {
                    // The signal stands in the status of all threads, that of the first is its own.
                    let signal = if self.threads.is_empty() { u16_at(body, 12).unwrap_or(0) } else { 0 };
                    self.threads.extend(thread(body, signal.into()));
                }
                NT_PRPSINFO => {
                    self.pid = u32_at(body, 24).unwrap_or(0) as i32;
                    let name = body.get(40..56).unwrap_or_default();
                    self.name = name.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
                }
                NT_AUXV => {
                    let mut entries = body.chunks_exact(16);
                    let entry = entries.find(|entry| u64_at(entry, 0) == Some(AT_PHDR));
                    self.program_headers = entry.and_then(|entry| u64_at(entry, 8)).unwrap_or(0);
                }
                NT_FILE => self.mappings = self.files(body).unwrap_or_default(),
                _ => {}
            }
            let next = begin + (bytes as usize).next_multiple_of(4);
            notes = notes.get(next..).unwrap_or_default();
        }
    }

    /// How many, the size of a page, then begin, end and offset in pages of each, then their paths.
    fn files(&self, body: &[u8]) -> Option<Vec<CoreMapping>> {
        let count = usize::try_from(u64_at(body, 0)?).ok().filter(|&count| count <= body.len() / 24)?;
        let page = u64_at(body, 8)?;
        let mut paths = body.get(16 + 24 * count..)?.split(|byte| *byte == 0);
        let mut found = Vec::new();
        for entry in body[16..].chunks_exact(24).take(count) {
            let (start, end) = (u64_at(entry, 0)?, u64_at(entry, 8)?);
            let executable = self.segment_at(start).is_some_and(|segment| segment.executable);
            found.push(CoreMapping {
                start,
                end,
                offset: u64_at(entry, 16)?.saturating_mul(page),
                path: paths.next()?.to_vec(),
                executable,
                build_id: Vec::new(),
            });
        }
        Some(found)
    }

    /// Build ids by the notes of files whose first page is in the dump, as it is by default.
    fn identify_files(&mut self) {
        let firsts: Vec<(Vec<u8>, u64)> = self
            .mappings
            .iter()
            .filter(|mapping| mapping.offset == 0)
            .map(|mapping| (mapping.path.clone(), mapping.start))
            .collect();
        for (path, start) in firsts {
            let Some(build_id) = self.build_id_at(start) else { continue };
            self.mappings
                .iter_mut()
                .filter(|mapping| mapping.path == path)
                .for_each(|mapping| mapping.build_id.clone_from(&build_id));
        }
    }

    fn build_id_at(&self, start: u64) -> Option<Vec<u8>> {
        let mut page = vec![0; MOST_ID_BYTES];
        let read = self.read(start, &mut page);
        let page = page.get(..read).filter(|page| page.starts_with(MAGIC))?;
        let (at, count) = (usize::try_from(u64_at(page, 32)?).ok()?, u16_at(page, 56)?);
        let table = page.get(at..)?.chunks_exact(SEGMENT_BYTES).take(count.into());
        let note = |entry: &[u8]| {
            let (at, bytes) = (u64_at(entry, 16)?, u64_at(entry, 32)?.min(MOST_ID_BYTES as u64));
            let mut notes = vec![0; bytes as usize];
            // Libraries are linked for address 0, programs may be for another one.
            let first = page.get(at as usize..).map_or(&[][..], |rest| &rest[..rest.len().min(notes.len())]);
            notes[..first.len()].copy_from_slice(first);
            build_id_of_notes(&notes)
        };
        table.filter(|entry| u32_at(entry, 0) == Some(PT_NOTE)).find_map(note)
    }

    /// What was mapped at an address of a file.
    pub(crate) fn mapping_at(&self, address: u64) -> Option<&CoreMapping> {
        self.mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&address))
    }

    /// The program, where its headers were.
    pub(crate) fn program(&self) -> Option<&CoreMapping> {
        self.mapping_at(self.program_headers)
    }

    fn segment_at(&self, address: u64) -> Option<&CoreSegment> {
        let after = self.segments.partition_point(|segment| segment.address <= address);
        let segment = self.segments.get(after.checked_sub(1)?)?;
        (address - segment.address < segment.bytes).then_some(segment)
    }

    /// Reads memory; how much of it is in the dump, from the first byte on.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let Some(segment) = self.segment_at(address) else { return 0 };
        let within = address - segment.address;
        let most = segment.file_bytes.saturating_sub(within).min(into.len() as u64) as usize;
        let Some(offset) = segment.offset.checked_add(within) else { return 0 };
        let mut read = 0;
        while read < most {
            match self.file.read_at(&mut into[read..most], offset + read as u64) {
                Ok(0) | Err(_) => break,
                Ok(bytes) => read += bytes,
            }
        }
        read
    }
}

/// What is there of so many bytes.
fn read_at_most(file: &File, at: u64, most: usize) -> io::Result<Vec<u8>> {
    let there = file.metadata()?.len().saturating_sub(at);
    let mut bytes = vec![0; most.min(usize::try_from(there).unwrap_or(0))];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

/// `struct elf_prstatus`: the signal at byte 12, the thread at 32, the registers at 112.
fn thread(body: &[u8], signal: i32) -> Option<CoreThread> {
    let mut registers = [0; 27];
    for (number, register) in registers.iter_mut().enumerate() {
        *register = u64_at(body, 112 + 8 * number)?;
    }
    Some(CoreThread { tid: u32_at(body, 32)? as i32, signal, registers })
}

impl CoreMapping {
    /// For the opener.
    pub(crate) fn file(&self) -> MappedFile<'_> {
        MappedFile { path: &self.path, build_id: &self.build_id, ..MappedFile::default() }
    }
}

impl CoreThread {
    /// For a walk through its stack.
    pub(crate) fn user_regs(&self) -> Option<UserRegs> {
        const MASK: u64 = 0xff_0fff;
        let [r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, _, ip, cs, flags, sp, ss, ..] =
            self.registers;
        let by_perf =
            [ax, bx, cx, dx, si, di, bp, sp, ip, flags, cs, ss, r8, r9, r10, r11, r12, r13, r14, r15];
        UserRegs::from_perf(Arch::X86_64, 2, MASK, by_perf)
    }

    pub(crate) fn stack_pointer(&self) -> u64 {
        self.registers[19]
    }

    /// `fs_base`: its own id in its C library (`pthread_self`).
    pub(crate) fn thread_pointer(&self) -> Option<u64> {
        Some(self.registers[21]).filter(|&pointer| pointer != 0)
    }

    /// The system call that it was in, -1 outside of any, and its first two arguments. One that a
    /// signal has interrupted has one of the numbers by which the kernel would have repeated it.
    pub(crate) fn call(&self) -> (i64, [u64; 2]) {
        const INTERRUPTED: [i64; 5] = [-4, -512, -513, -514, -516];
        let (result, call) = (self.registers[10].cast_signed(), self.registers[15].cast_signed());
        let is_in_call = call >= 0 && INTERRUPTED.contains(&result);
        (if is_in_call { call } else { -1 }, [self.registers[14], self.registers[13]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that files that are no core files, or end early, are refused in words, and that
    /// claimed sizes are bounded.
    #[test]
    fn hostile_files() {
        let folder = tempfile::tempdir().unwrap();
        let open = |bytes: &[u8]| {
            let path = folder.path().join("core");
            std::fs::write(&path, bytes).unwrap();
            CoreFile::open(&path).map(|_| ()).map_err(|error| error.to_string())
        };
        assert!(open(b"").unwrap_err().contains("no core file"));
        assert!(open(&[0; 100]).unwrap_err().contains("no core file"));
        let mut header = [0_u8; HEADER_BYTES];
        header[..6].copy_from_slice(MAGIC);
        header[16..18].copy_from_slice(&CORE.to_le_bytes());
        header[18..20].copy_from_slice(&X86_64.to_le_bytes());
        assert_eq!(open(&header).unwrap_err(), "it has no threads");
        // Many segments, far behind the file's end, and notes that claim to be long.
        header[32..40].copy_from_slice(&8_u64.to_le_bytes());
        header[56..58].copy_from_slice(&1000_u16.to_le_bytes());
        assert!(open(&header).is_err());
        header[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        header[56..58].copy_from_slice(&u16::MAX.to_le_bytes());
        assert!(open(&header).is_err());
        let mut noted = header.to_vec();
        noted[32..40].copy_from_slice(&64_u64.to_le_bytes());
        noted[56..58].copy_from_slice(&1_u16.to_le_bytes());
        let mut segment = [0_u8; SEGMENT_BYTES];
        segment[..4].copy_from_slice(&PT_NOTE.to_le_bytes());
        segment[8..16].copy_from_slice(&120_u64.to_le_bytes());
        segment[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        noted.extend(segment);
        noted.extend([0xff; 64]);
        assert_eq!(open(&noted).unwrap_err(), "it has no threads");
    }
}
