//! Goroutines, from the list that Go's runtime has of them: those that wait have no thread.
//!
//! ```text
//!  runtime.allgptr, allglen --> g: status, reason, saved registers --> stack, read from outside
//! ```
//! Where the fields of `runtime.g` are differs between versions: the program's debug information
//! tells it.
use super::image::ProcessImage;
use crate::core_file::CoreFile;
use crate::mapped_files;
use kymo_perf::proc::{self, Mappings};
use kymo_symbols::SymbolOptions;
use kymo_symbols::place::{self, Mapping, ModuleFile, Target};
use kymo_symbols::unwind::UserRegs;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// More goroutines are not read.
const MOST_GOROUTINES: u64 = 100_000;
/// How much is read of a goroutine's struct, and of its stack.
const STRUCT_BYTES: usize = 1024;
const STACK_BYTES: u64 = 64 << 10;
/// The longest reason.
const MOST_REASON: u64 = 64;
/// Set in a status while the collector looks at the stack.
const SCANNED: u32 = 0x1000;
/// Of `runtime.g.atomicstatus`.
const RUNNABLE: u32 = 1;
const RUNNING: u32 = 2;
const IN_CALL: u32 = 3;
const WAITING: u32 = 4;
const PREEMPTED: u32 = 9;

/// A goroutine.
#[derive(Clone, Debug, Default)]
pub(super) struct Goroutine {
    pub(super) id: u64,
    /// The thread that it is on, by that thread's own number.
    pub(super) own_tid: Option<i32>,
    /// What it waits for, in Go's words; `runnable` if it waits for a thread.
    pub(super) reason: String,
    /// Its stack, innermost first, if it is on no thread.
    pub(super) frames: Vec<u64>,
    /// The stack reaches the function that the goroutine has begun in.
    pub(super) is_whole: bool,
}

/// Where Go's runtime has what is read.
#[derive(Clone, Copy, Debug)]
struct GoRuntime {
    all: u64,
    count: u64,
    reasons: u64,
    id: usize,
    status: usize,
    reason: usize,
    stack_pointer: usize,
    pc: usize,
    frame_pointer: usize,
    stack_end: usize,
    machine: usize,
    /// In `runtime.m`.
    machine_tid: u64,
}

/// The program that a process of Go runs.
pub(super) struct GoProgram(GoRuntime);

impl GoProgram {
    /// `None`: it is no Go program.
    ///
    /// # Errors
    /// Why its goroutines are not seen.
    pub(super) fn find_in_process(pid: i32) -> Result<Option<GoProgram>, String> {
        let exe = PathBuf::from(format!("/proc/{pid}/exe"));
        let Ok(name) = std::fs::read_link(&exe) else { return Ok(None) };
        let maps = proc::maps(pid);
        let mapping = |map: kymo_perf::proc::MapsEntry<'_>| (map.start..map.end, map.offset, path(map.path));
        GoProgram::find(&exe, &name, Mappings::new(&maps).map(mapping))
    }

    /// The same for the process of a core file.
    ///
    /// # Errors
    /// See [`GoProgram::find_in_process`].
    pub(super) fn find_in_core(core: &CoreFile) -> Result<Option<GoProgram>, String> {
        let Some(program) = core.program() else { return Ok(None) };
        let Ok(opened) = mapped_files::open(&program.file()) else { return Ok(None) };
        let readable = PathBuf::from(format!("/proc/self/fd/{}", opened.file.as_raw_fd()));
        let mappings = core.mappings.iter();
        let mappings =
            mappings.map(|mapping| (mapping.start..mapping.end, mapping.offset, path(&mapping.path)));
        GoProgram::find(&readable, &path(&program.path), mappings)
    }

    fn find(
        readable: &Path,
        name: &Path,
        mappings: impl Iterator<Item = (Range<u64>, u64, PathBuf)>,
    ) -> Result<Option<GoProgram>, String> {
        let Ok(file) = ModuleFile::open(readable, name, &SymbolOptions::default()) else { return Ok(None) };
        if !file.is_go() {
            return Ok(None);
        }
        let mappings: Vec<Mapping> =
            mappings.map(|(range, offset, path)| Mapping { range, offset, path }).collect();
        let file = Arc::new(file);
        let open = |mapping: &Mapping| (mapping.path == name).then(|| Arc::clone(&file));
        let modules = place::modules_of(&mappings, Some(name), open);
        let memory = |_: u64, _: &mut [u8]| Err(io::ErrorKind::Unsupported.into());
        GoRuntime::find(&Target { modules, memory: &memory }).map(|runtime| Some(GoProgram(runtime)))
    }
}

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// The goroutines of a process, and how many more it has than are read.
///
/// # Errors
/// Why they are not seen.
pub(super) fn read(
    program: &GoProgram,
    process: &mut dyn ProcessImage,
) -> Result<(Vec<Goroutine>, u64), String> {
    let GoProgram(runtime) = program;
    let missing = || "the runtime's list of them is not in memory".to_owned();
    let all = process.word(runtime.all).ok_or_else(missing)?;
    let count = process.word(runtime.count).ok_or_else(missing)?;
    let mut found = Vec::new();
    for number in 0..count.min(MOST_GOROUTINES) {
        let at = process.word(all.wrapping_add(8 * number)).filter(|&at| at != 0);
        found.extend(at.and_then(|at| runtime.goroutine(at, process)));
    }
    Ok((found, count.saturating_sub(MOST_GOROUTINES)))
}

impl GoRuntime {
    fn find(target: &Target<'_>) -> Result<GoRuntime, String> {
        let address = |expression: &str| {
            let request = place::parse(expression).map_err(|error| error.to_string())?;
            place::resolve(&request, target).map(|found| found.avma).map_err(|error| error.to_string())
        };
        let (g, m) = (address("runtime.g0")?, address("runtime.m0")?);
        let field = |name: &str| -> Result<usize, String> {
            let offset = address(&format!("runtime.g0.{name}"))?.wrapping_sub(g);
            let fits = usize::try_from(offset).ok().filter(|offset| offset + 8 <= STRUCT_BYTES);
            fits.ok_or_else(|| format!("runtime.g.{name} is far away"))
        };
        Ok(GoRuntime {
            all: address("runtime.allgptr")?,
            count: address("runtime.allglen")?,
            reasons: address("runtime.waitReasonStrings")?,
            id: field("goid")?,
            status: field("atomicstatus")?,
            reason: field("waitreason")?,
            stack_pointer: field("sched.sp")?,
            pc: field("sched.pc")?,
            frame_pointer: field("sched.bp")?,
            stack_end: field("stack.hi")?,
            machine: field("m")?,
            machine_tid: address("runtime.m0.procid")?.wrapping_sub(m),
        })
    }

    fn goroutine(&self, at: u64, process: &mut dyn ProcessImage) -> Option<Goroutine> {
        let mut bytes = [0; STRUCT_BYTES];
        // The struct is shorter, and may be the last one of its page.
        if process.read(at, &mut bytes) <= self.stack_end.max(self.reason) {
            return None;
        }
        let word =
            |at: usize| bytes.get(at..at + 8)?.first_chunk::<8>().map(|word| u64::from_le_bytes(*word));
        let status = word(self.status)? as u32 & !SCANNED;
        let mut found = Goroutine { id: word(self.id)?, ..Goroutine::default() };
        match status {
            RUNNING | IN_CALL => {
                let tid = process.word(word(self.machine)?.wrapping_add(self.machine_tid))?;
                found.own_tid = i32::try_from(tid).ok();
                return Some(found);
            }
            RUNNABLE => found.reason = "runnable".to_owned(),
            PREEMPTED => found.reason = "preempted".to_owned(),
            WAITING => found.reason = self.reason_text(bytes[self.reason], process).unwrap_or_default(),
            // Dead, or not begun.
            _ => return None,
        }
        let (sp, pc, bp) = (word(self.stack_pointer)?, word(self.pc)?, word(self.frame_pointer)?);
        let left = word(self.stack_end)?.saturating_sub(sp).min(STACK_BYTES);
        let mut stack = vec![0; left as usize];
        let read = process.read(sp, &mut stack);
        // One that has run meanwhile has another stack by now.
        let mut again = [0; STRUCT_BYTES];
        process.read(at, &mut again);
        let is_same = |field: usize| again.get(field..field + 8) == bytes.get(field..field + 8);
        if ![self.status, self.id, self.stack_pointer, self.pc].into_iter().all(is_same) {
            return Some(found);
        }
        let regs = UserRegs::new(pc, sp, bp);
        (found.frames, found.is_whole) = process.unwind(&regs, &stack[..read]).unwrap_or_default();
        // It goes on behind the call that it waits in. One that has not begun stands at the begin
        // of its first function, which `runtime.goexit` seems to have called.
        if let [pc, _, _, ..] = &mut found.frames[..] {
            *pc -= 1;
        }
        Some(found)
    }

    /// Go's words for a reason: a string is an address and a length.
    fn reason_text(&self, number: u8, process: &mut dyn ProcessImage) -> Option<String> {
        let at = self.reasons.wrapping_add(16 * u64::from(number));
        let (address, length) = (process.word(at)?, process.word(at.wrapping_add(8))?);
        let mut text = vec![0; length.min(MOST_REASON) as usize];
        let read = process.read(address, &mut text);
        Some(String::from_utf8_lossy(&text[..read]).into_owned())
    }
}
