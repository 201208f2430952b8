//! The rings that probes inside a program write to, as the recorder sees them. The file is ours;
//! what is in it is the program's, and is not believed.
use super::memory;
use crate::evlist::{self, EvlistPlan, OpenEngine, Request, Targets};
use crate::ring::Ring;
use crate::sys::{self, Perf, attr_zeroed};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// As the target's list of mappings names their memory.
pub(super) const NAME: &str = "kymo-probes";
const MOST_BYTES: u64 = 1 << 30;

/// Makes rings, one for each CPU, of the data's bytes rounded up to a power of two. With the file,
/// for the target, and the bytes of each ring's data. `slot_bytes`: of records that many writers
/// write; `None`: there is one writer at a time.
pub(super) fn create(
    cpus: u32,
    data_bytes: u32,
    slot_bytes: Option<usize>,
) -> io::Result<(OwnedFd, u32, Vec<Ring>)> {
    let page = sys::page_size() as u64;
    let data_bytes = u64::from(data_bytes).clamp(page, MOST_BYTES).next_power_of_two();
    let stride = page + data_bytes;
    let file = memory::create(NAME, stride * u64::from(cpus))?;
    let pages = (data_bytes / page) as usize;
    let part = |cpu| match slot_bytes {
        Some(slot_bytes) => Ring::map_slots(file.as_fd(), cpu * stride, pages, slot_bytes),
        None => Ring::map_part(file.as_fd(), cpu * stride, pages),
    };
    let rings = (0..u64::from(cpus)).map(part).collect::<io::Result<_>>()?;
    Ok((file, data_bytes as u32, rings))
}

/// How the processor's time stamp counter becomes a time of recordings, `zero_ns + (ticks * tick >>
/// 32)`, as `(tick, zero_ns)`. `None` where that is not known:
/// the counter is not the kernel's clock, or events are not permitted.
pub(super) fn recording_clock() -> Option<(u64, u64)> {
    let mut attr = attr_zeroed();
    attr.type_ = Perf::SOFTWARE;
    attr.config = Perf::SW_DUMMY;
    attr.sample_period = 1;
    attr.set_exclude_kernel(1);
    attr.set_disabled(1);
    let plan = EvlistPlan {
        events: vec![Request::new("dummy:u", attr)],
        targets: Targets::per_thread(vec![std::process::id() as i32]),
    };
    let mut events = evlist::open(Arc::new(sys::Real), plan, OpenEngine::Serial).ok()?;
    let rings = events.map_rings(1, false).ok()?;
    rings.first()?.ring.tick_and_zero()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{SealFlags, fcntl_get_seals};

    /// Checks that rings have the size that was asked for, rounded up, within bounds, in a file
    /// that cannot get shorter.
    #[test]
    fn made_here() {
        let page = sys::page_size() as u32;
        for (asked, bytes) in [(0, page), (page + 1, 2 * page), (2 * page, 2 * page)] {
            let (file, data_bytes, rings) = create(2, asked, None).unwrap();
            assert_eq!((rings.len(), rings[1].size_bytes() as u32, data_bytes), (2, bytes, bytes));
            assert_eq!(rings[1].lost(), 0);
            assert!(fcntl_get_seals(&file).unwrap().contains(SealFlags::SHRINK | SealFlags::SEAL));
        }
    }
}
