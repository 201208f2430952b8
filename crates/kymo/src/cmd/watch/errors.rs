//! Why nothing is watched, in one sentence each.

use anyhow::anyhow;
use kymo_perf::caps;
use kymo_perf::explain;
use kymo_perf::sys;
use kymo_perf::watch::{ScheduleError, WatchError, holders};
use rustix::io::Errno;

use kymo_probe::watch::place::Place;

/// There is no plan.
pub(super) fn no_plan(error: &ScheduleError, places: &[Place], refused: bool) -> anyhow::Error {
    match error {
        ScheduleError::Range { index, source } => {
            let place = places.get(*index).map_or("", |place| place.expression.as_str());
            anyhow!("{place}: {source}")
        }
        ScheduleError::NoHardware => {
            anyhow!("{error}: nothing can be watched here; some virtual machines hide them")
        }
        ScheduleError::NoneFree(_) => anyhow!("{error}: {}", holders()),
        ScheduleError::TooMany { .. } if refused => anyhow!("{error}; {}", holders()),
        ScheduleError::TooMany { .. } => anyhow!("{error} (without --no-rotate)"),
        _ => anyhow!("{error}"),
    }
}

/// The kernel refused.
pub(super) fn refused(error: &WatchError, places: &[Place], pids: &[i32]) -> anyhow::Error {
    let errno = error.errno().map(Errno::from_raw_os_error);
    let kernel_place = places.iter().find(|place| place.range.is_kernel());
    if let WatchError::Open(..) = error {
        match errno {
            Some(Errno::ACCESS | Errno::PERM | Errno::INVAL) if kernel_place.is_some() => {
                let place = kernel_place.map_or("", |place| place.expression.as_str());
                return anyhow!(
                    "{place} is the kernel's memory, which only a privileged user may watch: run as root, or give kymo CAP_PERFMON ({})",
                    explain::setcap_command(&caps::probe())
                );
            }
            Some(Errno::OPNOTSUPP | Errno::NOENT | Errno::NODEV | Errno::NOSYS | Errno::NXIO) => {
                return anyhow!(
                    "this machine has no breakpoint registers for programs: nothing can be watched here; some virtual machines hide them"
                );
            }
            Some(Errno::SRCH) => {
                let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
                return anyhow!("process {} ended before it could be watched", pids.join(", "));
            }
            _ => {}
        }
    }
    match error {
        WatchError::Open(open, requests) => anyhow!("{}", explain::explain_list(open, requests, None)),
        WatchError::Ring(ring) => {
            let bytes = (ring.pages * sys::page_size()) as u64;
            let cpus = sys::online_cpus().len() as u64;
            let errno = ring.source.raw_os_error().unwrap_or(0);
            anyhow!("{}", explain::explain_map(errno, &ring.event, bytes, cpus, &caps::probe()))
        }
        other => anyhow!("{other}"),
    }
}
