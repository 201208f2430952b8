//! Tasks, mappings and the kernel as /proc and /sys show them. Entries may vanish or change while
//! they are read, and other users choose names in them: what cannot be read is left out, and
//! nothing aborts.
mod kernel;
mod kin;
mod maps;
mod memory;
mod page_map;
mod tmp_folder;

pub use kernel::{
    KernelModule, KernelText, build_id_of_notes, kernel_build_id, kernel_text, module_build_id, modules,
};
pub use kin::{Namesake, command_line, descendants, named};
pub use maps::{Mappings, MapsEntry};
pub use memory::ProcessMemory;
pub(crate) use memory::Unanswered;
pub use tmp_folder::{InnerIdentity, TmpFolder, read_from};

use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The longest name of a task in bytes.
const COMM_BYTES: usize = 15;

fn numbers(path: &str) -> io::Result<Vec<i32>> {
    let mut found: Vec<i32> = fs::read_dir(path)?
        .flatten()
        .filter_map(|entry| std::str::from_utf8(entry.file_name().as_bytes()).ok()?.parse().ok())
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// All processes, ascending.
///
/// # Errors
/// If /proc is not mounted.
pub fn processes() -> io::Result<Vec<i32>> {
    numbers("/proc")
}

/// The threads of a process, ascending.
///
/// # Errors
/// ENOENT if there is no such process (any more).
pub fn tasks(pid: i32) -> io::Result<Vec<i32>> {
    let found = numbers(&format!("/proc/{pid}/task"))?;
    // The directory of a process that ends while it is read is empty.
    if found.is_empty() { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok(found) }
}

/// The processes that belong to a user.
///
/// # Errors
/// If /proc is not mounted.
pub fn processes_of_user(uid: u32) -> io::Result<Vec<i32>> {
    let owned = |pid: &i32| fs::metadata(format!("/proc/{pid}")).is_ok_and(|meta| meta.uid() == uid);
    Ok(processes()?.into_iter().filter(owned).collect())
}

/// A text of the kernel whose numbers matter. Names in it are bytes: the kernel cuts a thread's
/// name after 15 of them, also inside of a letter, and paths are as programs made them. What is not
/// UTF-8 is replaced, and the rest of the text is good all the same.
///
/// # Errors
/// Of reading it, but none of its content.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    /// Most texts. Files of /proc have no size, so that `fs::read` would begin with 32 bytes and
    /// make eight calls.
    const USUAL_BYTES: usize = 4 << 10;
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    fs::File::open(path)?.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The value of a line `name: value` of a status file. A name of a program in it has its newlines
/// escaped, so a line that begins with the name is the kernel's.
pub(crate) fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// The process that a thread belongs to; `None` if it is gone.
pub fn process_of(tid: i32) -> Option<i32> {
    field(&text(format!("/proc/{tid}/status")).ok()?, "Tgid")?.parse().ok()
}

/// A thread's name, as the kernel's own records carry it: any bytes but zero, at most 15 of them.
pub fn comm(pid: i32, tid: i32) -> Option<Vec<u8>> {
    let mut comm = fs::read(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    if comm.last() == Some(&b'\n') {
        comm.pop();
    }
    // For its workers /proc adds what they work on, beyond the length of a name.
    comm.truncate(COMM_BYTES);
    (!comm.is_empty()).then_some(comm)
}

/// For how many nanoseconds a thread has had a CPU; `None` where the kernel does not say, or it is
/// gone.
pub(crate) fn ran(pid: i32, tid: i32) -> Option<u64> {
    let text = text(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    text.split(' ').next()?.parse().ok().filter(|&ran| ran > 0)
}

/// How often a thread was given a CPU; `None` where the kernel does not say, or it is gone.
pub(crate) fn turns(pid: i32, tid: i32) -> Option<u64> {
    let text = text(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    text.trim_end().rsplit(' ').next()?.parse().ok().filter(|&turns| turns > 0)
}

/// The letter that the kernel has for a thread's state (`man 5 proc_pid_stat`); `None` when it is
/// gone.
pub fn state(pid: i32, tid: i32) -> Option<char> {
    let stat = text(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// A thread's number in its own pid namespace; `None` if it is gone.
pub fn own_number(pid: i32, tid: i32) -> Option<i32> {
    let status = text(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    field(&status, "NSpid")?.split_ascii_whitespace().last()?.parse().ok()
}

/// How often a thread has left its CPU, for whatever reason; `None` if it is gone.
pub fn switches(pid: i32, tid: i32) -> Option<u64> {
    let status = text(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let count = |name: &str| field(&status, name)?.parse::<u64>().ok();
    Some(count("voluntary_ctxt_switches")? + count("nonvoluntary_ctxt_switches")?)
}

/// The kernel's functions in which a thread waits, innermost first (`man 5 proc_pid_stack`); none
/// where it runs, is gone, or may not be asked: root may.
pub fn kernel_stack(pid: i32, tid: i32) -> Vec<String> {
    let text = text(format!("/proc/{pid}/task/{tid}/stack")).unwrap_or_default();
    let name = |line: &str| Some(line.split_once("] ")?.1.split('+').next()?.to_owned());
    text.lines().filter_map(name).collect()
}

/// The system call that a thread waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingCall {
    /// Its number, -1 outside of any.
    pub number: i64,
    /// Its first four arguments.
    pub arguments: [u64; 4],
    /// Where the program is.
    pub pc: u64,
    /// Its stack pointer.
    pub sp: u64,
}

/// The call that a thread waits in (`man 5 proc_pid_syscall`); `None` when it runs, is gone, or may
/// not be asked.
pub fn waiting_call(pid: i32, tid: i32) -> Option<WaitingCall> {
    parse_call(&text(format!("/proc/{pid}/task/{tid}/syscall")).ok()?)
}

fn parse_call(line: &str) -> Option<WaitingCall> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let [.., sp, pc] = words[..] else { return None };
    let (number, sp, pc) = (words.first()?.parse().ok()?, hex(sp)?, hex(pc)?);
    // Outside of calls there are only the stack pointer and the place.
    let argument =
        |at: usize| words.get(at).filter(|_| words.len() == 9).and_then(|word| hex(word)).unwrap_or(0);
    Some(WaitingCall { number, arguments: [1, 2, 3, 4].map(argument), pc, sp })
}

/// A process's parent; `None` if the process is gone.
pub fn parent(pid: i32) -> Option<i32> {
    parent_in_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The parent's id in the text of a stat file. The name in parentheses may hold anything, so what
/// counts comes after the last one.
fn parent_in_stat(stat: &[u8]) -> Option<i32> {
    let close = stat.iter().rposition(|&b| b == b')')?;
    let mut fields = std::str::from_utf8(&stat[close + 1..]).ok()?.split_ascii_whitespace();
    fields.nth(1)?.parse().ok()
}

/// The namespaces of a thread in the order of the kernel's records (network, host name, IPC, PIDs,
/// users, mounts, cgroups): device and inode; 0 where it is gone or may not be seen.
pub fn namespaces(pid: i32, tid: i32) -> [(u64, u64); 7] {
    ["net", "uts", "ipc", "pid", "user", "mnt", "cgroup"].map(|name| {
        let link = fs::metadata(format!("/proc/{pid}/task/{tid}/ns/{name}"));
        link.map_or((0, 0), |meta| (meta.dev(), meta.ino()))
    })
}

/// The text of a process's mappings, for [`Mappings`]; empty for kernel threads and vanished
/// processes.
pub fn maps(pid: i32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/maps")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{WaitingCall, parse_call};

    /// Checks the lines of a thread in a call, outside of any, and that runs.
    #[test]
    fn calls_of_threads() {
        let line = "202 0x7f01 0x80 0x0 0x0 0x0 0xffffffff 0x7ffd00 0x7f12\n";
        let call = WaitingCall { number: 202, arguments: [0x7f01, 0x80, 0, 0], pc: 0x7f12, sp: 0x7ffd00 };
        assert_eq!(parse_call(line), Some(call));
        let outside = WaitingCall { number: -1, arguments: [0; 4], pc: 0x40, sp: 0x7ffd00 };
        assert_eq!(parse_call("-1 0x7ffd00 0x40\n"), Some(outside));
        assert_eq!((parse_call("running\n"), parse_call("")), (None, None));
    }

    /// Checks names with spaces, newlines and parentheses.
    #[test]
    fn stat_of_hostile_names() {
        assert_eq!(super::parent_in_stat(b"12 (a b) R 7 12 12 0"), Some(7));
        assert_eq!(super::parent_in_stat(b"12 (x) S 1 (\n) R 99) S 42 12"), Some(42));
        assert_eq!(super::parent_in_stat(b"12 (gone"), None);
        assert_eq!(super::parent_in_stat(b""), None);
    }

    /// Checks what /proc says about this process.
    #[test]
    fn this_process() {
        let pid = std::process::id() as i32;
        assert!(super::processes().unwrap().contains(&pid));
        assert!(super::tasks(pid).unwrap().contains(&pid));
        assert_eq!(super::process_of(pid), Some(pid));
        assert_eq!(super::parent(pid), Some(std::os::unix::process::parent_id() as i32));
        assert!(super::comm(pid, pid).is_some());
        assert!(super::tasks(i32::MAX).is_err());
        let uid = rustix::process::geteuid().as_raw();
        assert!(super::processes_of_user(uid).unwrap().contains(&pid));
    }
}
