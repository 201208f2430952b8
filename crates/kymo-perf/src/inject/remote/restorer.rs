//! Takes stubs away when kymo is killed.
//!
//! ```text
//!   kymo  --- the sites, the stubs' memory, its locks, the process --->  restorer, another kymo
//!         --- the socket is closed: kymo is gone --------------------->  restores the code, unmaps
//!         kills it when everything is restored
//! ```
//! The restorer is started before the first site is written, and knows what has to be restored. It
//! holds the locks on the stubs' memory as kymo does: until it has ended, nobody takes the stubs for
//! those of a kymo that is gone.
//!
//! # Limits
//! Who kills the restorer, too (its cgroup, or root), leaves the stubs to the next kymo
//! (`leftover_regions.rs`).
use super::super::connection::send_with;
use super::super::restoring::{AT_WORK, MOST_RESTORING, RESTORER};
use super::region::{RemoteRegion, is_stubs};
use super::write::{SITE_BYTES, SitePatch};
use super::{RemoteProcess, RemoteTarget};
use crate::proc::{Mappings, MapsEntry};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recv,
    recvmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// For what it is told.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);
/// How often another kymo may be in its way, about.
const PAUSE: Duration = Duration::from_millis(20);
/// More regions than a program has modules, and more sites than it has functions and exits.
const MOST_REGIONS: u64 = 1 << 10;
const MOST_SITES: u64 = 64 << 20;

/// Whether this program is a restorer when it is executed with [`RESTORER`].
static IS_PROVIDED: AtomicBool = AtomicBool::new(false);

/// Says that this program calls [`restore_probes`] when its first argument is [`RESTORER`].
pub fn provide_restorer() {
    // Relaxed: a flag by itself, set before there are threads.
    IS_PROVIDED.store(true, Ordering::Relaxed);
}

/// The process that outlives this one, until this is dropped.
#[derive(Debug)]
pub struct Restorer {
    socket: OwnedFd,
    child: Child,
}

impl Restorer {
    /// Starts one for sites that are about to be written. `restore` is what takes them away. `None`:
    /// this program provides none, or there is no process left; then stubs are left to the next
    /// kymo.
    pub(super) fn start(pid: i32, restore: &[SitePatch], regions: &[&RemoteRegion]) -> Option<Restorer> {
        // Relaxed: see `provide_restorer`.
        if !IS_PROVIDED.load(Ordering::Relaxed) {
            return None;
        }
        let started = Restorer::try_start(pid, restore, regions);
        started.inspect_err(|error| tracing::debug!(%error, "no restorer")).ok()
    }

    fn try_start(pid: i32, restore: &[SitePatch], regions: &[&RemoteRegion]) -> io::Result<Restorer> {
        let number = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        let process = pidfd_open(number, PidfdFlags::empty())?;
        let (ours, its) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let mut command = Command::new("/proc/self/exe");
        command.args([RESTORER, &pid.to_string()]).env_clear().current_dir("/").stdin(Stdio::from(its));
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        // From here on it is killed if anything fails.
        let restorer = Restorer { socket: ours, child };
        set_socket_timeout(&restorer.socket, Timeout::Send, Some(LISTENS_WITHIN))?;
        let mut files = vec![process.as_fd()];
        files.extend(regions.iter().map(|region| region.owner()));
        let mut job = vec![pid as u64, files.len() as u64];
        job.extend(regions.iter().flat_map(|region| {
            let (code, all) = (region.code_range(), region.range());
            [code.start, code.end, all.start, all.end]
        }));
        job.push(restore.len() as u64);
        let mut bytes: Vec<u8> = job.into_iter().flat_map(u64::to_le_bytes).collect();
        for patch in restore {
            bytes.extend(patch.at.to_le_bytes());
            bytes.extend(patch.from.iter().chain(&patch.to));
            bytes.extend(patch.group.to_le_bytes());
        }
        let mut stream = UnixStream::from(restorer.socket.try_clone()?);
        stream.write_all(&(files.len() as u64).to_le_bytes())?;
        // Which the socket has room for.
        files.into_iter().try_for_each(|file| send_with(&restorer.socket, &[0], file))?;
        stream.write_all(&bytes)?;
        Ok(restorer)
    }
}

impl Drop for Restorer {
    fn drop(&mut self) {
        // It does nothing yet: the socket is open.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// What the restorer does; its input is the socket.
///
/// # Errors
/// That it was not started by kymo, or what keeps it from its work.
pub fn restore_probes() -> io::Result<()> {
    // Whoever types it has a terminal there.
    socket_type(io::stdin())?;
    // Signals of kymo's terminal and of its group are not for it.
    _ = rustix::process::setsid();
    Restoration::receive()?.wait_and_restore()
}

/// What is to be taken away.
struct Restoration {
    socket: OwnedFd,
    /// The process, and then the locks on the stubs' memory.
    files: Vec<OwnedFd>,
    pid: i32,
    code: Vec<Range<u64>>,
    all: Vec<Range<u64>>,
    restore: Vec<SitePatch>,
}

impl Restoration {
    fn receive() -> io::Result<Restoration> {
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        let mut stream = UnixStream::from(socket.try_clone()?);
        let mut word = || -> io::Result<u64> {
            let mut bytes = [0; 8];
            stream.read_exact(&mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        };
        let files = (0..bounded(word()?, MOST_REGIONS)?).map(|_| file(&socket)).collect::<io::Result<_>>()?;
        let pid = i32::try_from(word()?).map_err(io::Error::other)?;
        let regions = bounded(word()?, MOST_REGIONS)?.saturating_sub(1);
        let (mut code, mut all) = (Vec::new(), Vec::new());
        for _ in 0..regions {
            code.push(word()?..word()?);
            all.push(word()?..word()?);
        }
        let count = bounded(word()?, MOST_SITES)?;
        let mut restore = Vec::new();
        for _ in 0..count {
            let mut bytes = [0; 8 + 2 * SITE_BYTES as usize + 4];
            stream.read_exact(&mut bytes)?;
            let (at, rest) = bytes.split_at(8);
            let (from, rest) = rest.split_at(SITE_BYTES as usize);
            let (to, group) = rest.split_at(SITE_BYTES as usize);
            // SANITY: they are as long as that.
            restore.push(SitePatch {
                at: u64::from_le_bytes(at.try_into().expect("eight bytes")),
                from: from.try_into().expect("a site"),
                to: to.try_into().expect("a site"),
                moves: Vec::new(),
                group: u32::from_le_bytes(group.try_into().expect("four bytes")),
                is_interruptible: false,
            });
        }
        Ok(Restoration { socket, files, pid, code, all, restore })
    }

    fn wait_and_restore(self) -> io::Result<()> {
        // Nothing more is said: this waits for kymo's end.
        while recv(&self.socket, &mut [0], RecvFlags::empty()) == Err(Errno::INTR) {}
        _ = rustix::thread::set_name(AT_WORK);
        let process =
            RemoteProcess::look(self.pid).map_err(|refusal| io::Error::other(refusal.to_string()))?;
        // Another one may have its number by now.
        let ended = self.files.first().is_none_or(|process| {
            let now = Timespec::default();
            poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)) != Ok(0)
        });
        // So is one that has executed another program, where the stubs' memory was.
        if ended || !self.has_stubs(&process)? {
            return Ok(());
        }
        // Another kymo may hold its threads at the moment.
        let begun = Instant::now();
        loop {
            match process.take_away(&self.restore, &self.code, &self.all) {
                Err(_) if begun.elapsed() < MOST_RESTORING / 2 => std::thread::sleep(PAUSE),
                done => return done.map_err(io::Error::other),
            }
        }
    }
}

impl Restoration {
    /// Whether the process still has all of the stubs' memory, by the files that this one has, too.
    fn has_stubs(&self, process: &RemoteProcess) -> io::Result<bool> {
        let maps = process.maps()?;
        for (code, file) in self.code.iter().zip(self.files.iter().skip(1)) {
            let inode = fstat(file)?.st_ino;
            let is_its = |mapping: &MapsEntry<'_>| {
                mapping.start == code.start && mapping.inode == inode && is_stubs(mapping.path)
            };
            if !Mappings::new(&maps).any(|mapping| is_its(&mapping)) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn bounded(count: u64, most: u64) -> io::Result<u64> {
    (count <= most).then_some(count).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The next file that was sent.
fn file(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let files = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files).into_iter().flatten(),
        _ => None.into_iter().flatten(),
    });
    files.into_iter().next().ok_or_else(|| io::ErrorKind::InvalidData.into())
}
