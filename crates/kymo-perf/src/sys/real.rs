//! The kernel that runs.
//!
//! # Safety
//! Raw system calls: the risk is a wrong argument type or a descriptor of the wrong owner. Each wrapper takes borrowed
//! descriptors and returns owned ones.
#![allow(unsafe_code, reason = "raw system calls")]
use super::{Kernel, perf_event_attr};
use crate::ring::Ring;
use perf_event_open_sys::{bindings, ioctls};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The kernel that runs this program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Real;

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Kernel for Real {
    fn open(
        &self,
        attr: &perf_event_attr,
        task: i32,
        cpu: i32,
        group: Option<BorrowedFd<'_>>,
        cloexec: bool,
    ) -> io::Result<OwnedFd> {
        let mut attr = *attr;
        let flags = if cloexec { bindings::PERF_FLAG_FD_CLOEXEC } else { 0 };
        let group = group.map_or(-1, |fd| fd.as_raw_fd());
        // SAFETY: attr is initialised and as long as its size field says (sys::attr); the kernel only reads it (and writes size on E2BIG).
        let fd = unsafe { perf_event_open_sys::perf_event_open(&mut attr, task, cpu, group, flags.into()) };
        check(fd)?;
        // SAFETY: the kernel has just made this descriptor for us; nobody else knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
    }

    fn enable(&self, event: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: no pointer argument.
        check(unsafe { ioctls::ENABLE(event.as_raw_fd(), 0) })
    }

    fn disable(&self, event: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: no pointer argument.
        check(unsafe { ioctls::DISABLE(event.as_raw_fd(), 0) })
    }

    fn set_output(&self, event: BorrowedFd<'_>, output: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: the argument is a descriptor number, not a pointer.
        check(unsafe { ioctls::SET_OUTPUT(event.as_raw_fd(), output.as_raw_fd()) })
    }

    fn set_filter(&self, event: BorrowedFd<'_>, filter: &str) -> io::Result<()> {
        let filter = CString::new(filter)?;
        // SAFETY: a zero-terminated string that outlives the call; the kernel only reads it.
        check(unsafe { ioctls::SET_FILTER(event.as_raw_fd(), filter.as_ptr().cast_mut()) })
    }

    fn id(&self, event: BorrowedFd<'_>) -> io::Result<u64> {
        let mut id = 0u64;
        // SAFETY: the kernel writes one u64 through the pointer.
        check(unsafe { ioctls::ID(event.as_raw_fd(), &mut id) })?;
        Ok(id)
    }

    fn read(&self, event: BorrowedFd<'_>, words: &mut [u64]) -> io::Result<usize> {
        let mut bytes = vec![0u8; words.len() * 8];
        let read = rustix::io::read(event, &mut bytes)?;
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut raw = [0; 8];
            raw.copy_from_slice(chunk);
            *word = u64::from_ne_bytes(raw);
        }
        Ok(read / 8)
    }

    fn map(&self, event: BorrowedFd<'_>, data_pages: usize) -> io::Result<Ring> {
        Ring::map(event, data_pages)
    }

    fn raise_descriptors(&self) -> Option<u64> {
        let now = getrlimit(Resource::Nofile);
        let raised = match (now.current, now.maximum) {
            (Some(soft), Some(hard)) if soft < hard => Rlimit { current: Some(hard), maximum: Some(hard) },
            (_, Some(hard)) => Rlimit { current: Some(hard + 1000), maximum: Some(hard + 1000) },
            _ => return None,
        };
        let to = raised.current;
        setrlimit(Resource::Nofile, raised).ok()?;
        to
    }
}

/// The machine's page size in bytes: asked, not assumed.
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// The CPUs that are online now, ascending.
pub fn online_cpus() -> Vec<u32> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let list = crate::cpu_list::parse(&text);
    if list.is_empty() { vec![0] } else { list }
}

/// Whether this process has root's user id; what it may really do is learned by trying.
pub fn is_root_like() -> bool {
    rustix::process::geteuid().is_root()
}
