//! What the recording's header says about the machine, and its clocks.
use kymo_data::{ClockData, CpuPlace, CpuTopology, Features, NrCpus};
use kymo_perf::event_clock::{EventClock, monotonic_ns};
use kymo_perf::machine::Machine;
use kymo_perf::{cpu_list, sys};
use rustix::time::{ClockId, DynamicClockId, Timespec, clock_getres, clock_gettime, clock_gettime_dynamic};
use std::fs;

/// Stands for the clock of events for which none was asked: -1, as in perf.
const NO_CLOCK_ID: u32 = u32::MAX;

fn line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim_end();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Everything that is known without the recording itself.
pub(crate) fn features(version: &str, cmdline: &[String]) -> Features {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |key: &str| {
        let found = cpuinfo.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix(':'));
        found.map(|value| value.trim().to_owned())
    };
    let cpuid = || {
        Some(format!(
            "{},{},{},{}",
            field("vendor_id")?,
            field("cpu family")?,
            field("model\t")?,
            field("stepping")?
        ))
    };
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let online = sys::online_cpus().len() as u32;
    let present = line("/sys/devices/system/cpu/present")
        .map_or(online, |text| online.max(cpu_list::parse(&text).len() as u32));
    Features {
        hostname: line("/proc/sys/kernel/hostname"),
        os_release: line("/proc/sys/kernel/osrelease"),
        version: Some(version.to_owned()),
        arch: rustix::system::uname().machine().to_str().ok().map(str::to_owned),
        nr_cpus: Some(NrCpus { available: present.max(online), online }),
        cpu_desc: field("model name"),
        cpuid: cpuid(),
        total_mem_kb: total.and_then(|text| text.trim().trim_end_matches("kB").trim_end().parse().ok()),
        cmdline: cmdline.to_vec(),
        cpu_topology: topology(present.max(online)),
        pmu_mappings: Machine::here().pmus().iter().map(|pmu| (pmu.kind, pmu.name.clone())).collect(),
        ..Features::default()
    }
}

/// Packages, cores and dies; `None` if sysfs does not tell of every CPU.
fn topology(cpus: u32) -> Option<CpuTopology> {
    let mut topology = CpuTopology::default();
    let add = |list: &mut Vec<String>, text: Option<String>| {
        if let Some(text) = text
            && !list.contains(&text)
        {
            list.push(text);
        }
    };
    for cpu in 0..cpus {
        let file = |name: &str| line(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}"));
        add(&mut topology.core_siblings, file("core_siblings_list"));
        add(&mut topology.thread_siblings, file("thread_siblings_list"));
        add(&mut topology.die_siblings, file("die_cpus_list"));
        let number = |name: &str| file(name).and_then(|text| text.parse().ok());
        topology.cpus.push(CpuPlace {
            core: number("core_id").unwrap_or(u32::MAX),
            socket: number("physical_package_id").unwrap_or(u32::MAX),
            die: number("die_id"),
        });
    }
    (!topology.core_siblings.is_empty() && !topology.thread_siblings.is_empty()).then_some(topology)
}

/// One moment on the recording's clock and on the wall clock; `None` where the kernel does not tell
/// the time of its scheduler, which is the clock of events for which none was asked.
pub(crate) fn clock(clock: Option<crate::RecordingClock>) -> Option<ClockData> {
    let moment = EventClock::new(clock.map(crate::RecordingClock::id))?.now()?;
    let since_ns = monotonic_ns().saturating_sub(moment.monotonic_ns);
    Some(ClockData {
        version: 1,
        clockid: clock.map_or(NO_CLOCK_ID, |clock| clock.id().unsigned_abs()),
        wall_clock_ns: ns(clock_gettime(ClockId::Realtime)).saturating_sub(since_ns),
        clockid_time_ns: moment.recording_ns,
    })
}

/// The clock's resolution in ns.
pub(crate) fn clock_resolution_ns(clock: crate::RecordingClock) -> u64 {
    // TAI ticks as the wall clock does.
    ns(clock_getres(clock_id(clock).unwrap_or(ClockId::Realtime)))
}

/// The time of this clock, ns.
pub(crate) fn now_ns(clock: crate::RecordingClock) -> u64 {
    let wall = || clock_gettime(ClockId::Realtime);
    ns(match clock_id(clock) {
        Some(id) => clock_gettime(id),
        None => clock_gettime_dynamic(DynamicClockId::Tai).unwrap_or_else(|_| wall()),
    })
}

/// `None`: TAI, which is asked for in another way.
fn clock_id(clock: crate::RecordingClock) -> Option<ClockId> {
    Some(match clock {
        crate::RecordingClock::Realtime => ClockId::Realtime,
        crate::RecordingClock::Monotonic => ClockId::Monotonic,
        crate::RecordingClock::MonotonicRaw => ClockId::MonotonicRaw,
        crate::RecordingClock::Boottime => ClockId::Boottime,
        crate::RecordingClock::Tai => return None,
    })
}

fn ns(time: Timespec) -> u64 {
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// The number in a file of /proc.
pub(crate) fn read_number(path: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}
