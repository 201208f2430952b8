//! What a system call waits for: the file, the peer or the process, in words.
use crate::sockets::Sockets;
use crate::waited_files::{self, File, is_any, writes};
use kymo_perf::proc::{self, WaitingCall};
use std::collections::HashMap;
use std::fs;

/// System calls whose first argument is a descriptor: of x86-64, and of aarch64.
const OF_DESCRIPTORS: [(i64, i64); 22] = [
    (0, 63),    // read
    (1, 64),    // write
    (17, 67),   // pread64
    (18, 68),   // pwrite64
    (19, 65),   // readv
    (20, 66),   // writev
    (42, 203),  // connect
    (43, 202),  // accept
    (44, 206),  // sendto
    (45, 207),  // recvfrom
    (46, 211),  // sendmsg
    (47, 212),  // recvmsg
    (72, 25),   // fcntl
    (73, 32),   // flock
    (74, 82),   // fsync
    (75, 83),   // fdatasync
    (232, -2),  // epoll_wait
    (281, 22),  // epoll_pwait
    (288, 242), // accept4
    (299, 243), // recvmmsg
    (307, 269), // sendmmsg
    (441, 441), // epoll_pwait2
];
/// `wait4`, and `waitid`, whose second argument is the process.
const WAIT4: (i64, i64) = (61, 260);
const WAITID: (i64, i64) = (247, 95);
/// So many files of an epoll instance are named.
const MOST_FILES: usize = 3;
/// So many descriptors of all processes are looked at for the other end of a pipe.
const MOST_DESCRIPTORS: usize = 100_000;

/// Names files, and keeps what takes long to find.
#[derive(Debug, Default)]
pub(super) struct Objects {
    sockets: Sockets,
    /// Who holds which pipe, by inode: process, and whether it writes.
    pipes: Option<HashMap<u64, Vec<(i32, bool)>>>,
}

impl Objects {
    /// What a call of a thread of this process is about; nothing where that is not known.
    pub(super) fn of(&mut self, pid: i32, call: WaitingCall) -> String {
        let WaitingCall { number, arguments, .. } = call;
        if is_any(number, &OF_DESCRIPTORS) {
            return self.file(pid, arguments[0] as i32).unwrap_or_default();
        }
        if is_any(number, &[WAIT4]) {
            return child(arguments[0] as i32);
        }
        match is_any(number, &[WAITID]) {
            true => child(arguments[1] as i32),
            false => String::new(),
        }
    }

    fn file(&mut self, pid: i32, descriptor: i32) -> Option<String> {
        Some(match File::find(pid, descriptor)? {
            File::Socket(inode) => self.socket(pid, inode),
            File::Pipe(inode) => self.pipe(pid, descriptor, inode),
            File::Epoll => self.watched(pid, descriptor),
            File::Other(link) => link,
        })
    }

    /// The files that an epoll instance watches.
    fn watched(&mut self, pid: i32, descriptor: i32) -> String {
        let all = waited_files::watched(pid, descriptor);
        let is_plain = |file: &String| !file.starts_with("anon_inode:");
        let named: Vec<String> =
            all.iter().filter_map(|&file| self.file(pid, file)).filter(is_plain).take(MOST_FILES).collect();
        match (all.len(), named.is_empty()) {
            (0, _) => "epoll of no file".to_owned(),
            (count, true) => format!("epoll of {count} files"),
            (count, false) => format!("epoll of {count} files: {}", named.join(", ")),
        }
    }

    fn socket(&mut self, pid: i32, inode: u64) -> String {
        let found = self.sockets.find(pid, inode);
        found.map_or_else(|| format!("socket {inode}"), |socket| socket.name.clone())
    }

    /// A pipe, and who has its other end.
    fn pipe(&mut self, pid: i32, descriptor: i32, inode: u64) -> String {
        let writes = writes(pid, descriptor);
        let holders = self.pipes.get_or_insert_with(pipes).get(&inode).cloned().unwrap_or_default();
        let mut others: Vec<i32> =
            holders.into_iter().filter(|(_, other)| *other != writes).map(|(pid, _)| pid).collect();
        others.sort_unstable();
        others.dedup();
        let end = if writes { "reads" } else { "writes" };
        match &others[..] {
            [] => format!("pipe {inode}, which no process that can be seen {end}"),
            [one] => format!("pipe {inode}, which process {one} ({}) {end}", name(*one)),
            [first, ..] => {
                let more = others.len() - 1;
                format!(
                    "pipe {inode}, which process {first} ({}) and {more} more can {}",
                    name(*first),
                    &end[..end.len() - 1]
                )
            }
        }
    }
}

fn name(pid: i32) -> String {
    proc::comm(pid, pid).map_or_else(String::new, |name| String::from_utf8_lossy(&name).into_owned())
}

/// What a call waits for that waits for children.
fn child(pid: i32) -> String {
    match pid {
        1.. => format!("process {pid} ({})", name(pid)),
        _ => "any child".to_owned(),
    }
}

/// The pipes of all processes that may be asked.
fn pipes() -> HashMap<u64, Vec<(i32, bool)>> {
    let mut found: HashMap<u64, Vec<(i32, bool)>> = HashMap::new();
    let mut left = MOST_DESCRIPTORS;
    for pid in proc::processes().unwrap_or_default() {
        let Ok(list) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for entry in list.flatten() {
            left -= 1;
            if left == 0 {
                return found;
            }
            let descriptor = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(descriptor) = descriptor else { continue };
            if let Some(File::Pipe(inode)) = File::find(pid, descriptor) {
                found.entry(inode).or_default().push((pid, writes(pid, descriptor)));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a pipe is named with the process that has its other end.
    #[test]
    fn pipes_with_their_other_end() {
        let (reading, writing) = std::io::pipe().unwrap();
        use std::os::fd::AsRawFd;
        let pid = std::process::id() as i32;
        let mut objects = Objects::default();
        let reads = objects.file(pid, reading.as_raw_fd()).unwrap();
        assert!(reads.contains(&format!("which process {pid}")) && reads.ends_with("writes"), "{reads}");
        let writes = objects.file(pid, writing.as_raw_fd()).unwrap();
        assert!(writes.ends_with("reads"), "{writes}");
    }
}
