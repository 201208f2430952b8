//! Learns of CPUs that go offline and come back, and keeps account of what was not observed there.
//!
//! *You give it* the CPUs that are observed, and a way to open their events anew
//! ([`crate::evlist::Evlist::reopen`]); *it gives you* [`CpuGap`]s: from when to when a CPU was
//! there without being observed.
//!
//! ```text
//!  CPU 3  observed |      offline      | online, events opened anew | observed
//!                  |<---------------- gap ------------------------->|
//! ```
//! While a CPU is offline nothing runs there. But how long it ran before its events were opened is
//! not known, and neither is what it did, so the gap covers all of it.
//!
//! # How it learns
//! From the kernel's device messages (netlink, `NETLINK_KOBJECT_UEVENT`), which any user may read:
//! one comes when a CPU is gone and one when it is there again, within a millisecond, and nobody
//! wakes up while nothing happens. The list of CPUs in sysfs is read at each message, and once a
//! [`CpuWatch::INTERVAL`] besides: in a user namespace of its own a process gets no messages, and a
//! full socket loses some. The list alone would not do, because a CPU can go and come back between
//! two looks; its events are over then all the same.
//!
//! What else could tell does not: the kernel says POLLHUP of events that it removes from a CPU in
//! some versions only, and timers bound to a CPU move to another one.
//!
//! # Limits
//! Where no message comes, a CPU that is away for less than the interval is not seen. During a
//! suspend all CPUs but one go offline without a message while this process is frozen, too.
use crate::sys::online_cpus;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recvfrom, socket_with};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The multicast group of the kernel's own messages; programs such as udev send to another.
const KERNEL_GROUP: u32 = 1;
/// Longer than any message of a CPU; the rest of a longer one is cut off.
const MESSAGE_BYTES: usize = 4096;
/// So many messages are read in one go: others may send faster than we read.
const MOST_MESSAGES: usize = 1024;

/// A CPU went offline, or came online.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuChange {
    /// Its number.
    pub cpu: u32,
    /// Whether it is there now.
    pub online: bool,
}

/// A time in which a CPU was not observed, although it was there for a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuGap {
    /// Its number.
    pub cpu: u32,
    /// When it went, or was first seen, ns of the caller's clock.
    pub start_ns: u64,
    /// When it was observed again, had gone again, or all was over.
    pub end_ns: u64,
    /// Why it was not observed again, if it was not.
    pub reason: Option<String>,
}

impl CpuGap {
    /// How long it was, ns.
    pub fn len_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

impl fmt::Display for CpuGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cpu, seconds) = (self.cpu, self.len_ns() as f64 / 1e9);
        match &self.reason {
            None => write!(
                f,
                "CPU {cpu} went offline and came back: what ran there within {seconds:.3} s may be missing"
            ),
            Some(reason) => write!(
                f,
                "CPU {cpu} came online and was not observed for {seconds:.3} s, because {reason}: \
                 what ran there is missing"
            ),
        }
    }
}

/// Follows the CPUs of an observation: takes up those that come back, and notes the gaps.
#[derive(Debug)]
pub struct CpuFollower {
    watch: CpuWatch,
    /// The CPUs that matter; `None`: all.
    only: Option<Vec<u32>>,
    /// CPUs that are gone, and since when.
    gone: BTreeMap<u32, u64>,
    /// CPUs that are there and not observed: since when, and why.
    unobserved: BTreeMap<u32, (u64, String)>,
}

impl CpuFollower {
    /// From now on: `observed` are the CPUs whose events are open; `only`: no others matter.
    pub fn begin(observed: &[u32], only: bool) -> CpuFollower {
        CpuFollower {
            watch: CpuWatch::begin(observed),
            only: only.then(|| observed.to_vec()),
            gone: BTreeMap::new(),
            unobserved: BTreeMap::new(),
        }
    }

    /// As [`CpuWatch::fd`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.fd()
    }

    /// Deals with what has changed; to be called at least once a [`CpuWatch::INTERVAL`]. `reopen`
    /// opens a CPU's events anew: `true` if there were some to open. Returns the gaps that are
    /// over.
    pub fn follow(
        &mut self,
        now_ns: &mut dyn FnMut() -> u64,
        reopen: &mut dyn FnMut(u32) -> Result<bool, String>,
    ) -> Vec<CpuGap> {
        let changes = self.watch.changes();
        self.take(&changes, now_ns, reopen)
    }

    fn take(
        &mut self,
        changes: &[CpuChange],
        now_ns: &mut dyn FnMut() -> u64,
        reopen: &mut dyn FnMut(u32) -> Result<bool, String>,
    ) -> Vec<CpuGap> {
        let mut gaps = Vec::new();
        for &CpuChange { cpu, online } in changes {
            if self.only.as_ref().is_some_and(|only| !only.contains(&cpu)) {
                continue;
            }
            let now = now_ns();
            if !online {
                match self.unobserved.remove(&cpu) {
                    Some((start_ns, reason)) => {
                        gaps.push(CpuGap { cpu, start_ns, end_ns: now, reason: Some(reason) });
                    }
                    None => _ = self.gone.insert(cpu, now),
                }
                continue;
            }
            let start_ns = self.gone.remove(&cpu).unwrap_or(now);
            match reopen(cpu) {
                Ok(true) => gaps.push(CpuGap { cpu, start_ns, end_ns: now_ns(), reason: None }),
                Ok(false) => {}
                Err(reason) => _ = self.unobserved.insert(cpu, (start_ns, reason)),
            }
        }
        gaps
    }

    /// The gaps that last until the end.
    pub fn finish(self, now_ns: &mut dyn FnMut() -> u64) -> Vec<CpuGap> {
        let gaps = self.unobserved.into_iter();
        gaps.map(|(cpu, (start_ns, reason))| {
            let end_ns = now_ns();
            CpuGap { cpu, start_ns, end_ns, reason: Some(reason) }
        })
        .collect()
    }
}

/// Which CPUs there are, as far as it is known, and what tells of changes.
#[derive(Debug)]
pub struct CpuWatch {
    messages: Option<OwnedFd>,
    online: BTreeSet<u32>,
    looked: Instant,
}

impl CpuWatch {
    /// How long one may wait between two calls of [`CpuWatch::changes`] if nothing can be read.
    pub const INTERVAL: Duration = Duration::from_millis(500);

    /// From now on: `online` are the CPUs that the caller knows of.
    pub fn begin(online: &[u32]) -> CpuWatch {
        let messages = kernel_messages()
            .inspect_err(|error| tracing::debug!(%error, "no messages about CPUs: the list is read"))
            .ok();
        CpuWatch { messages, online: online.iter().copied().collect(), looked: Instant::now() }
    }

    /// Readable when there may be a change; `None`: the interval alone tells.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.messages.as_ref().map(AsFd::as_fd)
    }

    /// What has changed since the last call. Cheap if nothing has.
    pub fn changes(&mut self) -> Vec<CpuChange> {
        let told = self.messages.as_ref().map(read_messages).unwrap_or_default();
        if told.is_empty() && self.looked.elapsed() < CpuWatch::INTERVAL {
            return Vec::new();
        }
        self.looked = Instant::now();
        self.update(&told, &online_cpus())
    }

    /// The changes from what was known, through what was told, to what there is now.
    fn update(&mut self, told: &[CpuChange], now: &[u32]) -> Vec<CpuChange> {
        let mut changes = Vec::new();
        let mut set = |online: &mut BTreeSet<u32>, change: CpuChange| {
            let changed = match change.online {
                true => online.insert(change.cpu),
                false => online.remove(&change.cpu),
            };
            changes.extend(changed.then_some(change));
        };
        for &change in told {
            // A CPU that is said to come back must have been gone, whoever missed that.
            if change.online && self.online.contains(&change.cpu) {
                set(&mut self.online, CpuChange { online: false, ..change });
            }
            // What is not there now has gone again: it is taken up when it is there.
            if !change.online || now.contains(&change.cpu) {
                set(&mut self.online, change);
            }
        }
        let gone: Vec<u32> = self.online.iter().copied().filter(|cpu| !now.contains(cpu)).collect();
        gone.into_iter().for_each(|cpu| set(&mut self.online, CpuChange { cpu, online: false }));
        now.iter().for_each(|&cpu| set(&mut self.online, CpuChange { cpu, online: true }));
        changes
    }
}

/// A socket that gets what the kernel tells of devices.
fn kernel_messages() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(netlink::KOBJECT_UEVENT))?;
    bind(&socket, &SocketAddrNetlink::new(0, KERNEL_GROUP))?;
    Ok(socket)
}

/// What the waiting messages tell of CPUs.
fn read_messages(socket: &OwnedFd) -> Vec<CpuChange> {
    let mut told = Vec::new();
    for _ in 0..MOST_MESSAGES {
        let mut bytes = [0; MESSAGE_BYTES];
        match recvfrom(socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((length, _, sender)) => {
                // Anybody may send to a socket of netlink; the kernel has no number.
                let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
                if sender.is_some_and(|sender| sender.pid() == 0) {
                    told.extend(parse(&bytes[..length.min(MESSAGE_BYTES)]));
                }
            }
            // Messages were lost: the list in sysfs tells.
            Err(rustix::io::Errno::NOBUFS | rustix::io::Errno::INTR) => {}
            Err(_) => break,
        }
    }
    told
}

/// `offline@/devices/system/cpu/cpu3`, then a zero and more.
fn parse(message: &[u8]) -> Option<CpuChange> {
    let head = message.split(|&byte| byte == 0).next()?;
    let (action, device) = std::str::from_utf8(head).ok()?.split_once('@')?;
    let cpu = device.strip_prefix("/devices/system/cpu/cpu")?.parse().ok()?;
    match action {
        "online" => Some(CpuChange { cpu, online: true }),
        "offline" => Some(CpuChange { cpu, online: false }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(cpu: u32, online: bool) -> CpuChange {
        CpuChange { cpu, online }
    }

    /// Checks that only the kernel's words about CPUs count.
    #[test]
    fn messages() {
        let message = b"offline@/devices/system/cpu/cpu12\0ACTION=offline\0SUBSYSTEM=cpu\0";
        assert_eq!(parse(message), Some(change(12, false)));
        assert_eq!(parse(b"online@/devices/system/cpu/cpu0\0"), Some(change(0, true)));
        let others: [&[u8]; 6] = [
            b"add@/devices/system/cpu/cpu1",
            b"online@/devices/system/memory/memory1",
            b"online@/devices/system/cpu/cpu",
            b"online@/devices/system/cpu/cpu-1",
            b"\xff@\xff",
            b"",
        ];
        assert!(others.iter().all(|message| parse(message).is_none()));
    }

    /// Checks that a CPU which went and came back between two calls is seen as gone and back, with
    /// and without the first message, and that the list corrects what no message told.
    #[test]
    fn a_cpu_that_goes_away_and_comes_back() {
        let watch = || CpuWatch { messages: None, online: (0..4).collect(), looked: Instant::now() };
        let both = [change(3, false), change(3, true)];
        assert_eq!(watch().update(&both, &[0, 1, 2, 3]), both);
        assert_eq!(watch().update(&both[1..], &[0, 1, 2, 3]), both);
        assert_eq!(watch().update(&both[..1], &[0, 1, 2, 3]), both);
        assert_eq!(watch().update(&[], &[0, 1, 2, 4]), [change(3, false), change(4, true)]);
        // Told too early: it has gone again.
        assert_eq!(watch().update(&both, &[0, 1, 2]), both[..1]);
        assert_eq!(watch().update(&[], &[0, 1, 2, 3]), []);
    }

    /// Checks the account: a CPU that goes and does not come back leaves no gap, one that comes
    /// back leaves one until it is observed again, and one that cannot be observed one until it
    /// goes again or all is over. CPUs outside of the observed ones do not matter where others do.
    #[test]
    fn gaps() {
        let follower = |only| CpuFollower::begin(&[0, 1, 2, 3], only);
        let take = |follower: &mut CpuFollower, changes: &[CpuChange], mut time: u64| {
            let mut now = || {
                time += 1;
                time
            };
            follower.take(changes, &mut now, &mut |cpu| match cpu {
                0..3 => Ok(true),
                3 => Ok(false),
                _ => Err("it was not there".into()),
            })
        };
        let gap = |cpu, start_ns, end_ns, reason: Option<&str>| CpuGap {
            cpu,
            start_ns,
            end_ns,
            reason: reason.map(str::to_owned),
        };
        let mut all = follower(false);
        assert_eq!(take(&mut all, &[change(1, false), change(3, false)], 10), []);
        assert_eq!(take(&mut all, &[change(1, true)], 20), [gap(1, 11, 22, None)]);
        assert_eq!(take(&mut all, &[change(3, true), change(7, true), change(8, true)], 30), []);
        let absent = Some("it was not there");
        assert_eq!(take(&mut all, &[change(7, false), change(2, false)], 40), [gap(7, 32, 41, absent)]);
        assert_eq!(all.finish(&mut || 50), [gap(8, 33, 50, absent)]);
        let mut some = follower(true);
        assert_eq!(take(&mut some, &[change(7, true), change(2, false), change(2, true)], 10).len(), 1);
        assert_eq!(some.finish(&mut || 20), []);
    }

    /// Checks that nothing has changed right after the start, with whatever this machine gives.
    #[test]
    fn nothing_changes_here() {
        assert_eq!(CpuWatch::begin(&online_cpus()).changes(), []);
    }
}
