//! The rings that probes inside a program write to, as the recorder sees them: memory of the program, which is not believed.
use crate::evlist::{self, Engine, Plan, Request, Targets};
use crate::ring::Ring;
use crate::sys::{self, Perf, attr_zeroed};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

const MOST_BYTES: u32 = 1 << 30;
/// Of linux/magic.h.
const TMPFS: i64 = 0x0102_1994;

/// Maps the rings in a file that a program made, one for each CPU. `cpus`: as it says, and the most that this machine can have. `data_bytes` of each ring: as it says, and
/// as it was asked; it rounds up.
///
/// # Errors
/// `InvalidData` if the file is not what was said, or could be cut off later.
pub(super) fn map(
    file: &OwnedFd,
    (cpus, most_cpus): (u32, u32),
    (data_bytes, asked_bytes): (u32, u32),
) -> io::Result<Vec<Ring>> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let page = sys::page_size() as u64;
    let most = u64::from(MOST_BYTES).min(2 * page.max(asked_bytes.into()));
    let fits = data_bytes.is_power_of_two() && (page..=most).contains(&data_bytes.into());
    if cpus == 0 || cpus > most_cpus || !fits {
        return Err(wrong("the program says impossible sizes of its rings"));
    }
    // A file system of the program's own could answer as late as it likes.
    if fstatfs(file)?.f_type as i64 != TMPFS {
        return Err(wrong("the program's rings are not in memory"));
    }
    // Whoever maps a file that gets shorter is killed when it looks there.
    if !fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
        return Err(wrong("the file of the program's rings can be cut off"));
    }
    let stride = page + u64::from(data_bytes);
    if (fstat(file)?.st_size as u64) < stride * u64::from(cpus) {
        return Err(wrong("the file of the program's rings is too short"));
    }
    let pages = (u64::from(data_bytes) / page) as usize;
    (0..u64::from(cpus)).map(|cpu| Ring::map_part(file.as_fd(), cpu * stride, pages)).collect()
}

/// How the processor's time stamp counter becomes a time of recordings, `zero_ns + (ticks * tick >> 32)`, as `(tick, zero_ns)`. `None` where that is not known:
/// the counter is not the kernel's clock, or events are not permitted.
pub(super) fn recording_clock() -> Option<(u64, u64)> {
    let mut attr = attr_zeroed();
    attr.type_ = Perf::SOFTWARE;
    attr.config = Perf::SW_DUMMY;
    attr.sample_period = 1;
    attr.set_exclude_kernel(1);
    attr.set_disabled(1);
    let plan = Plan {
        events: vec![Request::new("dummy:u", attr)],
        targets: Targets::per_thread(vec![std::process::id() as i32]),
    };
    let mut events = evlist::open(Arc::new(sys::Real), plan, Engine::Serial).ok()?;
    let rings = events.map_rings(1, false).ok()?;
    rings.first()?.ring.tick_and_zero()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    /// Checks that only a file that is long enough and stays so is mapped, whatever sizes are said.
    #[test]
    fn hostile_sizes() {
        let file = memfd_create("rings", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        let page = sys::page_size() as u32;
        ftruncate(&file, u64::from(3 * page) * 2).unwrap();
        let asked = 2 * page;
        assert!(map(&file, (2, 2), (2 * page, asked)).is_err(), "it can be cut off");
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        let rings = map(&file, (2, 2), (2 * page, asked)).unwrap();
        assert_eq!((rings.len(), rings[1].size_bytes() as u32, rings[1].lost()), (2, 2 * page, 0));
        for (cpus, bytes) in
            [(3, 2 * page), (0, page), (1, 0), (1, 3 * page), (u32::MAX, page), (1, 1 << 31), (1, 8)]
        {
            assert!(map(&file, (cpus, u32::MAX), (bytes, u32::MAX)).is_err(), "{cpus} {bytes}");
        }
        assert!(map(&file, (2, 1), (2 * page, asked)).is_err(), "more CPUs than the machine has");
        assert!(map(&file, (1, 2), (2 * page, page / 2)).is_ok(), "rounded up");
        let large = memfd_create("rings", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&large, u64::from(9 * page)).unwrap();
        fcntl_add_seals(&large, SealFlags::SHRINK).unwrap();
        assert!(map(&large, (1, 2), (4 * page, page)).is_err(), "more than was asked for");
        assert!(map(&large, (1, 2), (4 * page, 3 * page)).is_ok());
        let pipe = rustix::pipe::pipe().unwrap().0;
        assert!(map(&pipe, (1, 2), (page, page)).is_err(), "not in memory");
    }
}
