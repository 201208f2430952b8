//! Whether a thread waits for work or for an answer, by the files or signals of its system call.
use crate::sockets::{SocketRole, Sockets};
use kymo_perf::bpf::WaitedFiles;
use kymo_perf::proc::{self, WaitingCall};
use rustix::process::Signal;
use std::fs;

/// System calls by what their first arguments are: numbers of x86-64, and those of aarch64.
const EPOLLS: [(i64, i64); 3] = [(232, -2), (281, 22), (441, 441)];
const POLLS: [(i64, i64); 2] = [(7, -2), (271, 73)];
const SELECTS: [(i64, i64); 2] = [(23, -2), (270, 72)];
const ACCEPTS: [(i64, i64); 2] = [(43, 202), (288, 242)];
const READS: [(i64, i64); 4] = [(0, 63), (19, 65), (45, 207), (47, 212)];
const RINGS: [(i64, i64); 1] = [(426, 426)];
const SIGNAL_WAITS: [(i64, i64); 1] = [(128, 137)];
/// The flag of `io_uring_enter` by which its first argument is no descriptor
/// (IORING_ENTER_REGISTERED_RING).
const REGISTERED_RING: u64 = 1 << 4;
/// Signals by which the kernel tells of a child or a file: an answer, perhaps.
const ANSWERS: [Signal; 3] = [Signal::CHILD, Signal::URG, Signal::IO];
/// So many files of a call are looked at; of more it is not known what they are.
const MOST_FILES: usize = 4096;

/// Whether a call is one of these on this machine.
pub(crate) fn is_any(call: i64, known: &[(i64, i64)]) -> bool {
    known.iter().any(|&(x86, arm)| call == if cfg!(target_arch = "aarch64") { arm } else { x86 })
}

/// What a descriptor of a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum File {
    /// A socket, by its inode.
    Socket(u64),
    /// An end of a pipe, by its inode.
    Pipe(u64),
    /// An epoll instance.
    Epoll,
    /// Anything else, as /proc names it.
    Other(String),
}

impl File {
    /// The file of a descriptor; `None` if there is none, or it may not be seen.
    pub(crate) fn find(pid: i32, descriptor: i32) -> Option<File> {
        let link = fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).ok()?;
        let link = link.to_string_lossy().into_owned();
        let inode = |kind: &str| link.strip_prefix(kind)?.strip_prefix(":[")?.strip_suffix(']')?.parse().ok();
        let known = inode("socket").map(File::Socket).or(inode("pipe").map(File::Pipe));
        let is_epoll = link == "anon_inode:[eventpoll]";
        Some(known.unwrap_or(if is_epoll { File::Epoll } else { File::Other(link) }))
    }

    /// Whether it is one by which a process wakes itself, or the kernel tells it of a time, a
    /// signal or a change of a file: nobody is asked over it.
    fn is_own_signal(&self) -> bool {
        const OWN: [&str; 4] = ["[eventfd]", "[timerfd]", "[signalfd]", "inotify"];
        let File::Other(link) = self else { return false };
        link.strip_prefix("anon_inode:").is_some_and(|kind| OWN.contains(&kind))
    }
}

/// The descriptors that an epoll instance watches (`man 5 proc_pid_fdinfo`).
pub(crate) fn watched(pid: i32, descriptor: i32) -> Vec<i32> {
    let info = proc::text(format!("/proc/{pid}/fdinfo/{descriptor}")).unwrap_or_default();
    let number = |line: &str| line.strip_prefix("tfd:")?.split_ascii_whitespace().next()?.parse().ok();
    info.lines().filter_map(number).collect()
}

/// Looks at the files of waiting threads.
#[derive(Debug, Default)]
pub(crate) struct WaitedFilesReader {
    sockets: Sockets,
}

impl WaitedFilesReader {
    /// What a call of a process waits for. `read`: memory of the process, how much of it came.
    pub(crate) fn look(
        &mut self,
        pid: i32,
        call: WaitingCall,
        mut read: impl FnMut(u64, &mut [u8]) -> usize,
    ) -> WaitedFiles {
        let [first, second, third, fourth] = call.arguments;
        let is = |known: &[(i64, i64)]| is_any(call.number, known);
        let descriptors = match () {
            () if is(&ACCEPTS) => return WaitedFiles::Work,
            () if is(&RINGS) && fourth & REGISTERED_RING != 0 => return WaitedFiles::Unknown,
            () if is(&RINGS) => return ring_wait(pid, first as i32).unwrap_or_default(),
            () if is(&SIGNAL_WAITS) => return signal_wait(first, read).unwrap_or_default(),
            () if is(&EPOLLS) => watched(pid, first as i32),
            () if is(&READS) => vec![first as i32],
            () if is(&POLLS) => polled(first, second, read).unwrap_or_default(),
            () if is(&SELECTS) => selected(first, [second, third, fourth], &mut read).unwrap_or_default(),
            () => Vec::new(),
        };
        if descriptors.len() > MOST_FILES {
            return WaitedFiles::Unknown;
        }
        let mut files: Vec<Option<File>> = descriptors.iter().map(|&file| File::find(pid, file)).collect();
        files.retain(|file| !file.as_ref().is_some_and(File::is_own_signal));
        let mut own_pipes: Option<Vec<u64>> = None;
        files.retain(|file| match file {
            Some(File::Pipe(inode)) => !own_pipes.get_or_insert_with(|| whole_pipes(pid)).contains(inode),
            _ => true,
        });
        let mut role = |file: &Option<File>| match file {
            Some(File::Socket(inode)) => {
                self.sockets.find(pid, *inode).map_or(SocketRole::Unknown, |found| found.role)
            }
            _ => SocketRole::Unknown,
        };
        let roles: Vec<SocketRole> = files.iter().map(&mut role).collect();
        socket_wait(&roles)
    }
}

/// What a thread waits for that waits for a set of signals: for work, if all are such as others
/// send, or tell it of a time. Real-time signals may be of asynchronous reads.
fn signal_wait(set: u64, read: impl FnOnce(u64, &mut [u8]) -> usize) -> Option<WaitedFiles> {
    let mut bytes = [0; 8];
    let set = (read(set, &mut bytes) == bytes.len()).then(|| u64::from_ne_bytes(bytes))?;
    let is_in = |signal: Signal| set & 1 << (signal.as_raw() - 1) != 0;
    let has_others = set >> 31 != 0 || ANSWERS.into_iter().any(is_in);
    (set != 0 && !has_others).then_some(WaitedFiles::Work)
}

/// What a thread waits for that waits for requests of an io_uring: for work, if none is in flight,
/// because as many were answered as taken, and none waits for a file. A kernel that does not
/// tell (before Linux 5.16) leaves it unknown. A request that is answered more than once may hide
/// another one, unless it waits for a file.
fn ring_wait(pid: i32, descriptor: i32) -> Option<WaitedFiles> {
    let link = fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).ok()?;
    if link.as_os_str() != "anon_inode:[io_uring]" {
        return None;
    }
    let info = proc::text(format!("/proc/{pid}/fdinfo/{descriptor}")).ok()?;
    is_empty_ring(&info)?.then_some(WaitedFiles::Work)
}

/// Whether of a ring nothing is in flight; `None`: its text does not tell.
fn is_empty_ring(info: &str) -> Option<bool> {
    let number = |name: &str| {
        let after = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        after.trim().parse::<u32>().ok()
    };
    let mut polled = info.lines().skip_while(|line| *line != "PollList:").skip(1);
    let waits_for_file = polled.next()?.starts_with(' ');
    let is_answered = number("CachedSqHead")? == number("CachedCqTail")?;
    Some(number("SqTail")? == number("CachedSqHead")? && is_answered && !waits_for_file)
}

/// What a thread waits for that waits at such sockets: at one connection to a server it may wait
/// for the answer, whatever else it waits for.
fn socket_wait(roles: &[SocketRole]) -> WaitedFiles {
    if roles.contains(&SocketRole::Connected) {
        return WaitedFiles::Answers;
    }
    match roles.is_empty() || roles.contains(&SocketRole::Unknown) {
        true => WaitedFiles::Unknown,
        false => WaitedFiles::Work,
    }
}

/// The descriptors of an array of `struct pollfd`; `None` if it could not be read.
fn polled(array: u64, count: u64, read: impl FnOnce(u64, &mut [u8]) -> usize) -> Option<Vec<i32>> {
    /// A descriptor and two words of 16 bits.
    const BYTES: usize = 8;
    let count = usize::try_from(count).ok().filter(|count| *count <= MOST_FILES)?;
    let mut bytes = vec![0; count * BYTES];
    if read(array, &mut bytes) < bytes.len() {
        return None;
    }
    let all = bytes.chunks_exact(BYTES).filter_map(|entry| Some(i32::from_ne_bytes(*entry.first_chunk()?)));
    // Negative ones are left out by the kernel, too.
    Some(all.filter(|descriptor| *descriptor >= 0).collect())
}

/// The descriptors below `count` in any of three sets of `select`, of which some may not be there;
/// `None` if they could not be read.
fn selected(count: u64, sets: [u64; 3], mut read: impl FnMut(u64, &mut [u8]) -> usize) -> Option<Vec<i32>> {
    let count = usize::try_from(count).ok().filter(|count| *count <= MOST_FILES)?;
    let mut chosen = vec![0; count.div_ceil(8)];
    for set in sets.into_iter().filter(|set| *set != 0) {
        let mut bytes = vec![0; chosen.len()];
        if read(set, &mut bytes) < bytes.len() {
            return None;
        }
        chosen.iter_mut().zip(bytes).for_each(|(all, byte)| *all |= byte);
    }
    let is_chosen = |descriptor: &usize| chosen[descriptor / 8] & 1 << (descriptor % 8) != 0;
    Some((0..count).filter(is_chosen).map(|descriptor| descriptor as i32).collect())
}

/// The pipes of which a process has both ends.
fn whole_pipes(pid: i32) -> Vec<u64> {
    let Ok(list) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let mut ends: Vec<(u64, bool)> = Vec::new();
    for entry in list.flatten().take(MOST_FILES) {
        let descriptor = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(descriptor) = descriptor else { continue };
        if let Some(File::Pipe(inode)) = File::find(pid, descriptor) {
            ends.push((inode, writes(pid, descriptor)));
        }
    }
    let other = |(inode, writes): &(u64, bool)| !writes && ends.contains(&(*inode, true));
    ends.iter().filter(|end| other(end)).map(|(inode, _)| *inode).collect()
}

/// Whether a descriptor can be written.
pub(crate) fn writes(pid: i32, descriptor: i32) -> bool {
    let info = proc::text(format!("/proc/{pid}/fdinfo/{descriptor}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(0);
    flags & rustix::fs::OFlags::RWMODE.bits() != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn poll(files: &[i32]) -> WaitedFiles {
        let array: Vec<u8> =
            files.iter().flat_map(|file| [file.to_ne_bytes(), [1, 0, 0, 0]].concat()).collect();
        let call =
            WaitingCall { number: libc::SYS_ppoll, arguments: [16, files.len() as u64, 0, 0], pc: 0, sp: 0 };
        let read = |at: u64, bytes: &mut [u8]| {
            assert_eq!(at, 16);
            bytes.copy_from_slice(&array);
            bytes.len()
        };
        WaitedFilesReader::default().look(std::process::id() as i32, call, read)
    }

    /// Checks the sets of `select`: those that are there, and their bits below the count.
    #[test]
    fn sets_of_descriptors() {
        let read = |at: u64, bytes: &mut [u8]| {
            bytes.fill(at as u8);
            bytes.len()
        };
        assert_eq!(selected(10, [0, 0x21, 0], read), Some(vec![0, 5, 8]));
        assert_eq!(selected(10, [0x01, 0, 0x82], read), Some(vec![0, 1, 7, 8, 9]));
        assert_eq!(selected(0, [1, 1, 1], read), Some(Vec::new()));
        assert_eq!(selected(MOST_FILES as u64 + 1, [1, 1, 1], read), None);
        assert_eq!(selected(10, [1, 0, 0], |_, _| 0), None);
    }

    /// Checks what is said of real files: a server's are its clients', one connection to another
    /// server may bring an answer, and of a pipe from elsewhere nobody knows.
    #[test]
    fn clients_and_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let (reading, writing) = std::io::pipe().unwrap();
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        let [listener, client, accepted, reading, event] =
            [&listener as &dyn AsRawFd, &client, &accepted, &reading, &event].map(|file| file.as_raw_fd());
        assert_eq!(poll(&[listener]), WaitedFiles::Work);
        assert_eq!(poll(&[listener, accepted, event, -1, reading]), WaitedFiles::Work);
        assert_eq!(poll(&[listener, client]), WaitedFiles::Answers);
        assert_eq!(poll(&[event]), WaitedFiles::Unknown);
        assert_eq!(poll(&[]), WaitedFiles::Unknown);
        assert_eq!(poll(&[listener, 0x7fff_fff0]), WaitedFiles::Unknown);
        drop(writing);
        assert_eq!(poll(&[listener, reading]), WaitedFiles::Unknown);
    }

    /// Checks sets of signals: those that others send are work, and a time; one of a child is not.
    #[test]
    fn sets_of_signals() {
        let of = |signals: &[i32]| {
            let set: u64 = signals.iter().map(|signal| 1 << (signal - 1)).sum();
            signal_wait(16, |_, bytes: &mut [u8]| {
                bytes.copy_from_slice(&set.to_ne_bytes());
                bytes.len()
            })
        };
        assert_eq!(of(&[libc::SIGTERM, libc::SIGHUP, libc::SIGALRM]), Some(WaitedFiles::Work));
        assert_eq!(of(&[libc::SIGTERM, libc::SIGCHLD]), None);
        assert_eq!(of(&[34]), None);
        assert_eq!(of(&[]), None);
        assert_eq!(signal_wait(16, |_, _| 0), None);
    }

    /// Checks what the kernel says of a ring: as many answers as requests, and no poll; with more
    /// requests than answers, taken or not, or a poll, something is in flight.
    #[test]
    fn rings() {
        let of = |[tail, taken, answered]: [u32; 3], polled: &str| {
            is_empty_ring(&format!(
                "SqMask:\t0x7ff\nSqHead:\t{taken}\nSqTail:\t{tail}\nCachedSqHead:\t{taken}\nCqHead:\t1\n\
                 CqTail:\t{answered}\nCachedCqTail:\t{answered}\nPollList:\n{polled}CqOverflowList:\n"
            ))
        };
        assert_eq!(of([17, 17, 17], ""), Some(true));
        assert_eq!(of([17, 17, 16], ""), Some(false));
        assert_eq!(of([18, 17, 17], ""), Some(false));
        assert_eq!(of([17, 17, 17], "  op=6, task_works=0\n"), Some(false));
        assert_eq!(is_empty_ring("SqHead:\t1\nPollList:\n"), None);
    }
}
