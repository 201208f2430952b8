//! Sockets by what the kernel lists of them in `/proc/PID/net` (`man 5 proc_pid_net`).
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

/// So much of a list is read: some hundred thousand sockets. What listens comes first.
const MOST_BYTES: u64 = 16 << 20;

/// A socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    /// Its addresses, as tables show them.
    pub(crate) name: String,
    pub(crate) role: SocketRole,
}

/// How a socket got its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketRole {
    /// Clients connect to it.
    Listening,
    /// It came by `accept`: its own address is that of a listening socket.
    Accepted,
    /// Nothing listens on its port: it was connected to a server, unless its own server has ended.
    Connected,
    /// It has no peer, or nothing tells how it got that.
    Unknown,
}

/// The sockets of all networks that were asked for, each read once.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    /// By network namespace, and by inode.
    networks: HashMap<PathBuf, HashMap<u64, Socket>>,
}

impl Sockets {
    /// The socket of this inode in the network of a process.
    pub(crate) fn find(&mut self, pid: i32, inode: u64) -> Option<&Socket> {
        // Where the namespace may not be read, each process has one.
        let own = || PathBuf::from(pid.to_string());
        let network = fs::read_link(format!("/proc/{pid}/ns/net")).unwrap_or_else(|_| own());
        self.networks.entry(network).or_insert_with(|| read(pid)).get(&inode)
    }
}

/// All sockets of a process's network, by inode.
fn read(pid: i32) -> HashMap<u64, Socket> {
    let text = |kind: &str| {
        let mut bytes = Vec::new();
        // What cannot be read has no sockets that anybody would find.
        _ = File::open(format!("/proc/{pid}/net/{kind}"))
            .and_then(|list| list.take(MOST_BYTES).read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let internet = ["tcp", "tcp6", "udp", "udp6"].map(|kind| (kind, text(kind)));
    let lines = internet.iter().flat_map(|(kind, text)| text.lines().skip(1).map(|line| (*kind, line)));
    let mut found = internet_sockets(lines.filter_map(|(kind, line)| InternetLine::parse(kind, line)));
    found.extend(unix_sockets(text("unix").lines().skip(1).filter_map(UnixLine::parse)));
    found
}

/// A line of `/proc/net/tcp` and its like.
struct InternetLine {
    inode: u64,
    kind: &'static str,
    local: SocketAddr,
    remote: SocketAddr,
    is_listening: bool,
}

impl InternetLine {
    /// `sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode`
    fn parse(kind: &str, line: &str) -> Option<InternetLine> {
        const LISTENS: &str = "0A";
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let kind = if kind.starts_with("tcp") { "tcp" } else { "udp" };
        Some(InternetLine {
            inode: words.get(9)?.parse().ok()?,
            kind,
            local: address(words.get(1)?)?,
            remote: address(words.get(2)?)?,
            is_listening: kind == "tcp" && *words.get(3)? == LISTENS,
        })
    }
}

fn internet_sockets(lines: impl Iterator<Item = InternetLine>) -> HashMap<u64, Socket> {
    let lines: Vec<InternetLine> = lines.collect();
    let listening: HashSet<SocketAddr> =
        lines.iter().filter(|line| line.is_listening).map(|line| line.local).collect();
    let everywhere = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let is_accepted = |local: SocketAddr| {
        let mut hosts = [local.ip()].into_iter().chain(everywhere);
        hosts.any(|host| listening.contains(&SocketAddr::new(host, local.port())))
    };
    let socket = |line: InternetLine| {
        let InternetLine { inode, kind, local, remote, is_listening } = line;
        let (name, role) = match (is_listening, remote.port()) {
            (true, _) => (format!("{kind} {local}, listening"), SocketRole::Listening),
            (_, 0) => (format!("{kind} {local}"), SocketRole::Unknown),
            _ if kind == "tcp" && is_accepted(local) => {
                (format!("{kind} {local} to {remote}"), SocketRole::Accepted)
            }
            _ => (format!("{kind} {local} to {remote}"), SocketRole::Connected),
        };
        (inode, Socket { name, role })
    };
    lines.into_iter().map(socket).collect()
}

/// A line of `/proc/net/unix`.
struct UnixLine {
    inode: u64,
    path: Option<String>,
    is_listening: bool,
    is_connected: bool,
}

impl UnixLine {
    /// `Num RefCount Protocol Flags Type St Inode Path`
    fn parse(line: &str) -> Option<UnixLine> {
        /// `__SO_ACCEPTCON`
        const LISTENS: u32 = 1 << 16;
        const CONNECTED: &str = "03";
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        Some(UnixLine {
            inode: words.get(6)?.parse().ok()?,
            path: words.get(7).map(|path| (*path).to_owned()),
            is_listening: u32::from_str_radix(words.get(3)?, 16).ok()? & LISTENS != 0,
            is_connected: *words.get(5)? == CONNECTED,
        })
    }
}

fn unix_sockets(lines: impl Iterator<Item = UnixLine>) -> HashMap<u64, Socket> {
    let lines: Vec<UnixLine> = lines.collect();
    let listening: HashSet<String> =
        lines.iter().filter(|line| line.is_listening).filter_map(|line| line.path.clone()).collect();
    let socket = |line: UnixLine| {
        let role = match &line.path {
            _ if line.is_listening => SocketRole::Listening,
            Some(path) if line.is_connected && listening.contains(path) => SocketRole::Accepted,
            // A client's has no path. Neither has one of `socketpair`.
            _ => SocketRole::Unknown,
        };
        let name = format!("unix socket {}", line.path.as_deref().unwrap_or("unnamed"));
        (line.inode, Socket { name, role })
    };
    lines.into_iter().map(socket).collect()
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
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    /// Checks addresses as /proc/net/tcp and tcp6 have them on x86-64.
    #[test]
    fn addresses() {
        let read = |text| address(text).map(|address| address.to_string());
        assert_eq!(read("0100007F:1F90").as_deref(), Some("127.0.0.1:8080"));
        assert_eq!(read("00000000000000000000000001000000:0016").as_deref(), Some("[::1]:22"));
        assert_eq!(read("0000000000000000FFFF00000100007F:0050").as_deref(), Some("127.0.0.1:80"));
        assert_eq!(read("0100007F"), None);
        let line = "   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4242 1";
        let found = internet_sockets(InternetLine::parse("tcp6", line).into_iter());
        let name = "tcp 127.0.0.1:8080 to 127.0.0.1:50000".to_owned();
        assert_eq!(found[&4242], Socket { name, role: SocketRole::Connected });
    }

    /// Checks the roles of real sockets: who listens, who was accepted, who connected.
    #[test]
    fn roles_of_connections() {
        let pid = std::process::id() as i32;
        let role = |file: &dyn AsRawFd| {
            let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
            let inode = link.to_str().unwrap().strip_prefix("socket:[").unwrap().strip_suffix(']').unwrap();
            Sockets::default().find(pid, inode.parse().unwrap()).map(|socket| socket.role)
        };
        for host in ["127.0.0.1:0", "0.0.0.0:0"] {
            let listener = TcpListener::bind(host).unwrap();
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            assert_eq!(role(&listener), Some(SocketRole::Listening), "{host}");
            assert_eq!(role(&accepted), Some(SocketRole::Accepted), "{host}");
            assert_eq!(role(&client), Some(SocketRole::Connected), "{host}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(role(&listener), Some(SocketRole::Listening));
        assert_eq!(role(&accepted), Some(SocketRole::Accepted));
        assert_eq!(role(&client), Some(SocketRole::Unknown));
        assert_eq!(role(&UdpSocket::bind("127.0.0.1:0").unwrap()), Some(SocketRole::Unknown));
    }
}
