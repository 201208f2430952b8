//! Facts from /proc about a process before it is entered: whether it can be, and its mappings.
//! Untrusted text.
use super::refusal::EnterError;
use super::restoring;
use super::seccomp;
use crate::proc::{self, Mappings, ProcessMemory, field};
use rustix::process::getuid;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// No mapping's name is longer than a path.
const MOST_MAPS_BYTES: u64 = 256 << 20;

/// How long a thread of this process that has traced it may take to end.
const OURS: Duration = Duration::from_millis(500);

/// A process, looked at and not touched.
#[derive(Debug)]
pub(super) struct TargetProcess {
    pub(super) pid: i32,
    memory: ProcessMemory,
}

/// Says no where the process's own words do. Who may be traced, only the kernel knows; its refusal
/// comes later.
pub(super) fn check_status(status: &str) -> Result<(), EnterError> {
    match field(status, "State").and_then(|state| state.chars().next()) {
        Some('Z' | 'X') => return Err(EnterError::Gone),
        Some('T') => return Err(EnterError::Stopped),
        _ => {}
    }
    let number = |name| field(status, name).and_then(|text| text.parse().ok()).filter(|number| *number != 0);
    if let Some(by) = number("TracerPid") {
        return Err(EnterError::Traced(by));
    }
    seccomp::mode(status).map_or(Ok(()), |mode| Err(EnterError::Seccomp(mode)))
}

/// What kind of program the first bytes of an ELF file say.
pub(super) fn check_elf(head: &[u8]) -> Result<(), EnterError> {
    match head {
        [0x7f, b'E', b'L', b'F', 1, ..] => Err(EnterError::Processor("32-bit")),
        [0x7f, b'E', b'L', b'F', 2, 1, ..] if head.get(18..20) == Some(&[62, 0]) => Ok(()),
        _ => Err(EnterError::Processor("foreign")),
    }
}

/// Why ptrace said no, as far as it can be seen.
pub(super) fn not_permitted(pid: i32) -> EnterError {
    let status = proc::text(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = |name| -> Vec<u32> {
        field(&status, name).unwrap_or("").split_ascii_whitespace().filter_map(|id| id.parse().ok()).collect()
    };
    let (uids, mine) = (ids("Uid"), getuid().as_raw());
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let because =
        if let Some(by) = field(&status, "TracerPid").and_then(|by| by.parse().ok()).filter(|by| *by != 0) {
            return EnterError::Traced(by);
        } else if mine == 0 {
            // Root without its rights, of a container or of a security module.
            by_scope(&scope)
        } else if uids.windows(2).any(|pair| pair[0] != pair[1]) {
            "it changed its user (setuid); run kymo as root"
        } else if uids.first().is_some_and(|uid| *uid != mine) {
            "it belongs to another user; run kymo as that user or as root"
        } else if fs::metadata(format!("/proc/{pid}")).is_ok_and(|meta| meta.uid() != mine) {
            "it is not dumpable (setuid, or prctl(PR_SET_DUMPABLE)); run kymo as root"
        } else {
            by_scope(&scope)
        };
    EnterError::NotPermitted(because)
}

/// What the setting kernel.yama.ptrace_scope has to do with it.
fn by_scope(scope: &str) -> &'static str {
    match scope.trim() {
        "1" => {
            "kernel.yama.ptrace_scope is 1: only children may be traced; start it with kymo, run kymo as root, or sysctl kernel.yama.ptrace_scope=0"
        }
        "2" => "kernel.yama.ptrace_scope is 2: only root may trace; run kymo as root",
        "3" => "kernel.yama.ptrace_scope is 3: nobody may trace until the next boot; use --engine kernel",
        _ => "it needs CAP_SYS_PTRACE (in a container: --cap-add SYS_PTRACE)",
    }
}

impl TargetProcess {
    /// Looks at a process. One that a thread of ours has just traced is let go when that thread has
    /// ended, which is waited for; and so is the restorer of a kymo that was killed.
    pub(super) fn look(pid: i32) -> Result<TargetProcess, EnterError> {
        restoring::wait_for_others(pid);
        let target = TargetProcess::look_with(pid, check_status)?;
        // Each thread has filters of its own.
        seccomp::check_threads(pid)?;
        Ok(target)
    }

    /// Looks at a process whose threads will be held, and which makes no call for us: filters of
    /// system calls do not matter.
    pub(super) fn look_to_hold(pid: i32) -> Result<TargetProcess, EnterError> {
        TargetProcess::look_with(pid, |status| match check_status(status) {
            Err(EnterError::Seccomp(_)) => Ok(()),
            checked => checked,
        })
    }

    /// Looks at a process that the calling thread traces.
    pub(super) fn look_traced(pid: i32) -> Result<TargetProcess, EnterError> {
        TargetProcess::look_once(pid, |status: &str| match check_status(status) {
            Err(EnterError::Traced(_) | EnterError::Stopped) => {
                seccomp::mode(status).map_or(Ok(()), |mode| Err(EnterError::Seccomp(mode)))
            }
            checked => checked,
        })
    }

    fn look_with(
        pid: i32,
        check: impl Fn(&str) -> Result<(), EnterError>,
    ) -> Result<TargetProcess, EnterError> {
        let until = Instant::now() + OURS;
        loop {
            match TargetProcess::look_once(pid, &check) {
                Err(EnterError::Traced(by))
                    if Instant::now() < until && Path::new(&format!("/proc/self/task/{by}")).exists() =>
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                looked => return looked,
            }
        }
    }

    fn look_once(
        pid: i32,
        check: impl Fn(&str) -> Result<(), EnterError>,
    ) -> Result<TargetProcess, EnterError> {
        let status = proc::text(format!("/proc/{pid}/status")).map_err(|_| EnterError::Gone)?;
        check(&status)?;
        let mut head = [0; 64];
        match File::open(format!("/proc/{pid}/exe")) {
            Ok(mut file) => file.read_exact(&mut head).map_err(EnterError::failed("reading the program"))?,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(not_permitted(pid)),
            // A process without a program is the kernel's.
            Err(_) => return Err(EnterError::KernelThread),
        }
        check_elf(&head)?;
        let memory = ProcessMemory::open_to_write(pid).map_err(|_| not_permitted(pid))?;
        Ok(TargetProcess { pid, memory })
    }

    /// Whether this thread of the process still runs in the memory that was looked at, so whether
    /// it has not executed another program since. The random bytes that the kernel gives to each
    /// program tell it, which nobody knows before.
    pub(super) fn is_memory_of(&self, tid: i32) -> bool {
        const AT_RANDOM: u64 = 25;
        const MOST_VECTOR_BYTES: u64 = 4096;
        let same = || -> io::Result<bool> {
            let task = format!("/proc/{}/task/{tid}", self.pid);
            let mut vector = Vec::new();
            File::open(format!("{task}/auxv"))?.take(MOST_VECTOR_BYTES).read_to_end(&mut vector)?;
            let word =
                |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
            let mut pairs = vector.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..])));
            let (_, at) = pairs.find(|(kind, _)| *kind == AT_RANDOM).ok_or(io::ErrorKind::NotFound)?;
            let (mut ours, mut its) = ([0; 16], [0; 16]);
            self.memory.read(at, &mut ours)?;
            ProcessMemory::of_thread(self.pid, tid)?.read(at, &mut its)?;
            Ok(ours == its)
        };
        same().unwrap_or(false)
    }

    /// Whether its real user is root.
    pub(super) fn is_of_root(&self) -> bool {
        let status = proc::text(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        field(&status, "Uid").and_then(|uids| uids.split_ascii_whitespace().next()) == Some("0")
    }

    /// Reads memory as far as there is some: how many bytes.
    pub(super) fn read_some(&self, address: u64, bytes: &mut [u8]) -> usize {
        self.memory.read_some(address, bytes).unwrap_or(0)
    }

    /// Reads each of these ranges as far as there is something.
    pub(super) fn read_each(&self, ranges: &[(u64, usize)]) -> Vec<Vec<u8>> {
        self.memory.read_each(ranges)
    }

    /// Reads memory as far as there is some, without fetching pages that were never touched: how
    /// many bytes. In the place of such pages is what no address is.
    pub(super) fn read_resident(&self, address: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.memory.read_resident(self.pid, address, bytes)
    }

    /// Whether a signal waits for this thread that it would take; yes if that cannot be told.
    pub(super) fn has_signals(&self, tid: i32) -> bool {
        let status = proc::text(format!("/proc/{}/task/{tid}/status", self.pid)).unwrap_or_default();
        let set = |name| field(&status, name).and_then(|set| u64::from_str_radix(set, 16).ok());
        match (set("SigPnd"), set("ShdPnd"), set("SigBlk")) {
            (Some(own), Some(shared), Some(blocked)) => (own | shared) & !blocked != 0,
            _ => true,
        }
    }

    /// Reads memory: all of it or an error.
    pub(super) fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.memory.read(address, bytes)
    }

    /// Writes memory of the process, where this process has made it.
    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        #[cfg(test)]
        crate::sys::ptrace::faults::step();
        self.memory.write(address, bytes)
    }

    pub(super) fn maps(&self) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        File::open(format!("/proc/{}/maps", self.pid))?.take(MOST_MAPS_BYTES).read_to_end(&mut text)?;
        Ok(text)
    }

    /// The first addresses of all mapped ELF files with executable parts, with their names.
    pub(super) fn modules(&self) -> io::Result<Vec<(u64, Vec<u8>)>> {
        let text = self.maps()?;
        let mut modules: Vec<(u64, Vec<u8>)> = Vec::new();
        let mut base: Option<(u64, &[u8])> = None;
        for mapping in Mappings::new(&text).filter(|mapping| !mapping.path.is_empty()) {
            if mapping.offset == 0 && base.is_none_or(|(_, path)| path != mapping.path) {
                base = Some((mapping.start, mapping.path));
            }
            if let Some((start, path)) = base
                && path == mapping.path
                && mapping.prot & 4 != 0
                && modules.last().is_none_or(|(last, _)| *last != start)
            {
                modules.push((start, path.to_vec()));
            }
        }
        Ok(modules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    /// Checks that states in which a process cannot be entered are told apart, from the kernel's
    /// own words.
    #[test]
    fn states() {
        let status = |state: &str, tracer: u32, seccomp: u32| {
            format!("Name:\tx\\nState: Z\nState:\t{state}\nTracerPid:\t{tracer}\nSeccomp:\t{seccomp}\n")
        };
        assert!(check_status(&status("S (sleeping)", 0, 0)).is_ok());
        assert!(matches!(check_status(&status("Z (zombie)", 0, 0)), Err(EnterError::Gone)));
        assert!(matches!(check_status(&status("T (stopped)", 0, 0)), Err(EnterError::Stopped)));
        assert!(matches!(check_status(&status("t (tracing stop)", 7, 0)), Err(EnterError::Traced(7))));
        assert!(matches!(check_status(&status("S (sleeping)", 0, 2)), Err(EnterError::Seccomp(2))));
    }

    /// Checks that programs of other processors are refused by their first bytes, and short files
    /// are.
    #[test]
    fn processors() {
        let mut head = [0; 64];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[18] = 62;
        assert!(check_elf(&head).is_ok());
        head[18] = 183;
        assert!(matches!(check_elf(&head), Err(EnterError::Processor("foreign"))));
        head[4] = 1;
        assert!(matches!(check_elf(&head), Err(EnterError::Processor("32-bit"))));
        assert!(check_elf(b"\x7fELF").is_err());
    }

    /// Checks that a process which has executed another program is not the one that was looked at,
    /// although its number is the same.
    #[test]
    fn another_program() {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "read line; echo begun; read line; exec cat"]);
        let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut say, mut said) = (shell.stdin.take().unwrap(), BufReader::new(shell.stdout.take().unwrap()));
        let mut hear = || {
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            line
        };
        say.write_all(b"one\n").unwrap();
        assert_eq!(hear(), "begun\n");
        let pid = shell.id() as i32;
        let target = TargetProcess::look(pid).unwrap();
        assert!(target.is_memory_of(pid));
        say.write_all(b"two\nthree\n").unwrap();
        assert_eq!(hear(), "three\n");
        assert!(!target.is_memory_of(pid));
        drop(say);
        shell.wait().unwrap();
    }

    /// Checks on this process that modules have the addresses of their ELF headers.
    #[test]
    fn this_process() {
        let target = TargetProcess::look(std::process::id() as i32).unwrap();
        let modules = target.modules().unwrap();
        assert!(!modules.is_empty());
        for (base, path) in modules.iter().filter(|(_, path)| path.starts_with(b"/")) {
            let mut head = [0; 4];
            target.read(*base, &mut head).unwrap();
            assert_eq!(&head, b"\x7fELF", "{}", String::from_utf8_lossy(path));
        }
    }
}
