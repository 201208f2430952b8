//! What a system call waits for: the file, the peer or the process, in words.
use kymo_perf::proc::{self, WaitingCall};
use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

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

fn is(call: i64, (x86, arm): (i64, i64)) -> bool {
    call == if cfg!(target_arch = "aarch64") { arm } else { x86 }
}

/// Names files, and keeps what takes long to find.
#[derive(Debug, Default)]
pub(super) struct Objects {
    /// By process: its sockets by inode.
    sockets: HashMap<i32, HashMap<u64, String>>,
    /// Who holds which pipe, by inode: process, and whether it writes.
    pipes: Option<HashMap<u64, Vec<(i32, bool)>>>,
}

impl Objects {
    /// What a call of a thread of this process is about; nothing where that is not known.
    pub(super) fn of(&mut self, pid: i32, call: WaitingCall) -> String {
        let WaitingCall { number, arguments, .. } = call;
        if OF_DESCRIPTORS.iter().any(|known| is(number, *known)) {
            return self.file(pid, arguments[0] as i32).unwrap_or_default();
        }
        if is(number, WAIT4) {
            return child(arguments[0] as i32);
        }
        match is(number, WAITID) {
            true => child(arguments[1] as i32),
            false => String::new(),
        }
    }

    fn file(&mut self, pid: i32, descriptor: i32) -> Option<String> {
        let link = fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).ok()?;
        let link = link.to_string_lossy().into_owned();
        let inode = |kind: &str| link.strip_prefix(kind)?.strip_prefix(":[")?.strip_suffix(']')?.parse().ok();
        if let Some(inode) = inode("socket") {
            return Some(self.socket(pid, inode));
        }
        if let Some(inode) = inode("pipe") {
            return Some(self.pipe(pid, descriptor, inode));
        }
        if link == "anon_inode:[eventpoll]" {
            return Some(self.watched(pid, descriptor));
        }
        Some(link)
    }

    /// The files that an epoll instance watches.
    fn watched(&mut self, pid: i32, descriptor: i32) -> String {
        let info = proc::text(format!("/proc/{pid}/fdinfo/{descriptor}")).unwrap_or_default();
        let number = |line: &str| line.strip_prefix("tfd:")?.split_ascii_whitespace().next()?.parse().ok();
        let all: Vec<i32> = info.lines().filter_map(number).collect();
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
        let known = self.sockets.entry(pid).or_insert_with(|| sockets(pid));
        known.get(&inode).cloned().unwrap_or_else(|| format!("socket {inode}"))
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

/// Whether a descriptor can be written.
fn writes(pid: i32, descriptor: i32) -> bool {
    let info = proc::text(format!("/proc/{pid}/fdinfo/{descriptor}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(0);
    flags & rustix::fs::OFlags::RWMODE.bits() != 0
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
            let Ok(link) = fs::read_link(entry.path()) else { continue };
            let Some(inode) =
                link.to_str().and_then(|link| link.strip_prefix("pipe:[")?.strip_suffix(']')?.parse().ok())
            else {
                continue;
            };
            let Some(descriptor) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            found.entry(inode).or_default().push((pid, writes(pid, descriptor)));
        }
    }
    found
}

/// The sockets of a process's network, by inode.
fn sockets(pid: i32) -> HashMap<u64, String> {
    let mut found = HashMap::new();
    for kind in ["tcp", "tcp6", "udp", "udp6"] {
        let text = proc::text(format!("/proc/{pid}/net/{kind}")).unwrap_or_default();
        found.extend(text.lines().skip(1).filter_map(|line| internet_socket(kind, line)));
    }
    let text = proc::text(format!("/proc/{pid}/net/unix")).unwrap_or_default();
    found.extend(text.lines().skip(1).filter_map(unix_socket));
    found
}

/// `num RefCount Protocol Flags Type St Inode Path`
fn unix_socket(line: &str) -> Option<(u64, String)> {
    let mut words = line.split_ascii_whitespace().skip(6);
    let inode = words.next()?.parse().ok()?;
    let path = words.next().map_or_else(|| "unnamed".to_owned(), str::to_owned);
    Some((inode, format!("unix socket {path}")))
}

/// `sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode`
fn internet_socket(kind: &str, line: &str) -> Option<(u64, String)> {
    const LISTENS: &str = "0A";
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let (local, remote) = (address(words.get(1)?)?, address(words.get(2)?)?);
    let inode = words.get(9)?.parse().ok()?;
    let kind = kind.trim_end_matches('6');
    let text = match *words.get(3)? {
        LISTENS => format!("{kind} {local}, listening"),
        _ if remote.port() == 0 => format!("{kind} {local}"),
        _ => format!("{kind} {local} to {remote}"),
    };
    Some((inode, text))
}

/// An address as /proc/net writes it: words of the machine's byte order in hexadecimal digits.
fn address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(host.get(at..at + 8)?, 16).ok();
    let host = match host.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?.to_ne_bytes())),
        32 => {
            let mut bytes = [0; 16];
            for (part, at) in bytes.chunks_exact_mut(4).zip((0..).step_by(8)) {
                part.copy_from_slice(&word(at)?.to_ne_bytes());
            }
            let host = Ipv6Addr::from(bytes);
            host.to_ipv4_mapped().map_or(IpAddr::V6(host), IpAddr::V4)
        }
        _ => return None,
    };
    Some(SocketAddr::new(host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks addresses as /proc/net/tcp and tcp6 have them on x86-64.
    #[test]
    fn addresses() {
        let read = |text| address(text).map(|address| address.to_string());
        assert_eq!(read("0100007F:1F90").as_deref(), Some("127.0.0.1:8080"));
        assert_eq!(read("00000000000000000000000001000000:0016").as_deref(), Some("[::1]:22"));
        assert_eq!(read("0000000000000000FFFF00000100007F:0050").as_deref(), Some("127.0.0.1:80"));
        assert_eq!(read("0100007F"), None);
        let line = "   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4242 1";
        let expected = (4242, "tcp 127.0.0.1:8080 to 127.0.0.1:50000".to_owned());
        assert_eq!(internet_socket("tcp", line), Some(expected));
    }

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
