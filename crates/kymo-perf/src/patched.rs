//! Processes whose code differs from their file at the address of a uprobe.
//!
//! A uprobe replaces the first byte in memory by a trap, and at a hit the kernel executes the
//! instruction that the *file* has there. Where another tool has written a jump into the process,
//! the thread then goes on in the middle of that jump, and the program dies:
//!
//! ```text
//!   file      8d 14 3f | 81 c2 c1 03 00 00
//!   memory    e9 0b 95   e3 fb c1 03 00 00      patched: a jump of five bytes
//!   uprobe    cc 0b 95   e3 fb c1 03 00 00      executes 8d 14 3f, goes on at e3
//! ```
//! kymo's own agent writes such jumps. They are there as long as its kymo lives, some moments
//! longer when that was killed, and those in the C library until the next kymo enters the process.
//!
//! A tool that patches a process after it was looked at is not seen; kymo's agent looks for the
//! kernel's traps before it writes.

use crate::proc::{self, Mappings, ProcessMemory};
use iced_x86::{Decoder, DecoderOptions};
use rustix::fs::{major, minor, stat};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// No instruction has more.
const MOST_BYTES: usize = 15;
/// What stands in memory for the first bytes where a uprobe is.
const TRAP: &[u8] = if cfg!(target_arch = "aarch64") { &[0xa0, 0x00, 0x20, 0xd4] } else { &[0xcc] };
/// How long code may take to become that of the file again: the agent of a killed kymo restores it.
const RESTORING: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(20);

/// A process that executes other code at a place than the file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patched {
    /// Its id.
    pub pid: i32,
}

impl fmt::Display for Patched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "process {pid} has other code there than its file, and would crash: another kymo or another \
             tool has patched it; end that one, or, where a kymo was killed, run \
             `kymo probe -p {pid} --engine inproc -d 1 FUNCTION`, which takes away what is left; one that was \
             forked while its parent was probed keeps that code until it executes a program",
            pid = self.pid
        )
    }
}

/// For each place, an offset in a file, a process that has other code there; `pids`: of these
/// processes, else of all that there are. Code that is just being restored is waited for, three
/// seconds at most.
pub(crate) fn patched(places: &[(&Path, u64)], pids: Option<&[i32]>) -> Vec<Option<Patched>> {
    let until = Instant::now() + RESTORING;
    loop {
        let found = look(places, pids);
        if found.iter().all(Option::is_none) || Instant::now() >= until {
            return found;
        }
        std::thread::sleep(PAUSE);
    }
}

/// The same, without waiting.
pub(crate) fn look(places: &[(&Path, u64)], pids: Option<&[i32]>) -> Vec<Option<Patched>> {
    let mut found = vec![None; places.len()];
    let files = files(places);
    let all = || proc::processes().unwrap_or_default();
    for pid in pids.map_or_else(all, <[i32]>::to_vec) {
        for (number, same) in differing(pid, &files) {
            if !same {
                found[number].get_or_insert(Patched { pid });
            }
        }
    }
    found
}

/// A file with places in it.
struct Probed<'a> {
    path: &'a Path,
    file: File,
    device: (u32, u32),
    inode: u64,
    /// Numbers and offsets.
    places: Vec<(usize, u64)>,
}

fn files<'a>(places: &[(&'a Path, u64)]) -> Vec<Probed<'a>> {
    let mut files: BTreeMap<&Path, Vec<(usize, u64)>> = BTreeMap::new();
    for (number, (path, offset)) in places.iter().enumerate() {
        files.entry(path).or_default().push((number, *offset));
    }
    let open = |(path, places): (&'a Path, Vec<(usize, u64)>)| {
        let (file, status) = (kymo_files::open_regular(path).ok()?, stat(path).ok()?);
        let device = (major(status.st_dev), minor(status.st_dev));
        Some(Probed { path, file, device, inode: status.st_ino, places })
    };
    files.into_iter().filter_map(open).collect()
}

/// Each place that the process has mapped, and whether its code is the file's.
fn differing(pid: i32, files: &[Probed<'_>]) -> Vec<(usize, bool)> {
    let maps = proc::maps(pid);
    let (mut found, mut memory) = (Vec::new(), None);
    for mapping in Mappings::new(&maps).filter(|mapping| mapping.prot & 4 != 0) {
        let name = |path: &[u8]| path.rsplit(|byte| *byte == b'/').next().map(<[u8]>::to_vec);
        let is = |probed: &&Probed<'_>| {
            // Some file systems show one device here and another one there.
            let same = (mapping.major, mapping.minor) == probed.device
                || name(mapping.path) == name(probed.path.as_os_str().as_bytes());
            mapping.inode == probed.inode && same
        };
        let Some(probed) = files.iter().find(is) else { continue };
        let length = mapping.end - mapping.start;
        for &(number, offset) in &probed.places {
            let Some(at) = offset.checked_sub(mapping.offset).filter(|at| *at < length) else { continue };
            if memory.is_none() {
                memory = ProcessMemory::open(pid).ok();
            }
            let Some(memory) = &memory else { return found };
            let bytes = MOST_BYTES.min((length - at) as usize);
            if let Some(same) = is_of_file(memory, mapping.start + at, &probed.file, offset, bytes) {
                found.push((number, same));
            }
        }
    }
    found
}

/// Whether memory has the file's instruction, but for a trap in place of its first bytes. What
/// follows it is another instruction, which may be patched: a `ret` stands right before the next
/// function.
fn is_of_file(memory: &ProcessMemory, address: u64, file: &File, offset: u64, bytes: usize) -> Option<bool> {
    let (mut its, mut files) = ([0; MOST_BYTES], [0; MOST_BYTES]);
    memory.read(address, &mut its[..bytes]).ok()?;
    let read = file.read_at(&mut files[..bytes], offset).ok()?;
    if its.starts_with(TRAP) {
        its[..TRAP.len()].copy_from_slice(&files[..TRAP.len()]);
    }
    let length = instruction_bytes(&files[..read]);
    Some(its[..length] == files[..length])
}

/// How long the first instruction is; all bytes where none can be decoded.
fn instruction_bytes(code: &[u8]) -> usize {
    if cfg!(target_arch = "x86_64") {
        let instruction = Decoder::new(64, code, DecoderOptions::NONE).decode();
        if !instruction.is_invalid() { instruction.len() } else { code.len() }
    } else {
        // Of the other architectures, those that kymo runs on have instructions of four bytes.
        code.len().min(4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// The first executable mapping of this program: address and offset; none until it is executed.
    fn text(pid: i32, path: &Path) -> Option<(u64, u64)> {
        let maps = proc::maps(pid);
        let is = |mapping: &crate::proc::MapsEntry<'_>| {
            mapping.prot & 4 != 0 && mapping.path == path.as_os_str().as_bytes()
        };
        Mappings::new(&maps).find(is).map(|mapping| (mapping.start, mapping.offset))
    }

    /// Checks that only the instruction at the place is compared: a `ret` is the file's, whatever
    /// is written right behind it.
    #[test]
    fn what_follows_the_instruction_may_be_patched() {
        assert_eq!(instruction_bytes(&[0xc3, 0xe9, 1, 2, 3, 4]), 1);
        assert_eq!(instruction_bytes(&[0x83, 0xf7, 0x20, 0x69, 0xd7]), 3);
        assert_eq!(instruction_bytes(&[0xe9, 1, 2, 3, 4, 0x90]), 5);
        assert_eq!(instruction_bytes(&[]), 0);
    }

    /// Checks that a process with a jump over a place of its program is named, one with a uprobe's
    /// trap there is not, and that the neighbour's place and other processes are as they were.
    #[test]
    fn a_process_with_other_code_than_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sleep");
        std::fs::copy("/bin/sleep", &path).unwrap();
        let mut program = Command::new(&path).arg("60").spawn().unwrap();
        let pid = program.id() as i32;
        let (start, offset) = loop {
            match text(pid, &path) {
                Some(text) => break text,
                None => std::thread::yield_now(),
            }
        };
        let places = [(path.as_path(), offset + 0x100), (path.as_path(), offset + 0x200)];
        let write = |at: u64, bytes: &[u8]| {
            let memory = File::options().write(true).open(format!("/proc/{pid}/mem")).unwrap();
            memory.write_all_at(bytes, at).unwrap();
        };
        const JUMP_BYTES: usize = 5;
        let mut before = [0; JUMP_BYTES];
        File::open(&path).unwrap().read_exact_at(&mut before, offset + 0x100).unwrap();
        assert_eq!(look(&places, Some(&[pid])), [None, None]);
        write(start + 0x100, TRAP);
        assert_eq!(look(&places, Some(&[pid])), [None, None]);
        let jump = before.map(|byte| byte ^ 0x55);
        write(start + 0x100, &jump);
        assert_eq!(look(&places, Some(&[pid])), [Some(Patched { pid }), None]);
        assert_eq!(look(&places, None), [Some(Patched { pid }), None]);
        assert_eq!(look(&places, Some(&[std::process::id() as i32])), [None, None]);
        assert_eq!(patched(&places, Some(&[pid])), [Some(Patched { pid }), None]);
        // What is restored meanwhile is waited for.
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| patched(&places, Some(&[pid])));
            std::thread::sleep(PAUSE);
            write(start + 0x100, &before);
            assert_eq!(waits.join().unwrap(), [None, None]);
        });
        program.kill().unwrap();
        program.wait().unwrap();
    }
}
