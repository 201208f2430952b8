//! What a recording tells about the machine and itself: the feature sections of its header.
//!
//! A string is a `u32` length and that many bytes, padded with zeros; a list is a `u32` count and
//! its entries. [`decode`](Features::set_section) and [`section`](Features::section) are inverse to
//! each other for every section that is understood; sections that are not are kept as bytes in
//! [`Features::other`].

mod decode;
mod encode;
mod imported;

pub use imported::{ImportedFacts, ImportedUnit, SampleLabel, SamplingPeriod};

use crate::abi::{PERF_RECORD_MISC_CPUMODE_MASK, PERF_RECORD_MISC_KERNEL};
use crate::attr::Attr;
use crate::record::BuildId;

/// What a recording tells about where and how it was made. Everything is optional.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Features {
    /// Formats of tracepoints; see [`tracing_data`](crate::tracing_data).
    pub tracing_data: Option<Vec<u8>>,
    /// Build IDs of the files that samples hit.
    pub build_ids: Vec<BuildId>,
    /// Name of the machine.
    pub hostname: Option<String>,
    /// Kernel release.
    pub os_release: Option<String>,
    /// Version of the recorder.
    pub version: Option<String>,
    /// Machine, as `uname -m` says it.
    pub arch: Option<String>,
    /// Number of CPUs.
    pub nr_cpus: Option<NrCpus>,
    /// Model name of the CPU.
    pub cpu_desc: Option<String>,
    /// Vendor, family, model, stepping.
    pub cpuid: Option<String>,
    /// Memory in KiB.
    pub total_mem_kb: Option<u64>,
    /// The recorder's command line.
    pub cmdline: Vec<String>,
    /// The events with their names.
    pub event_desc: Vec<EventDesc>,
    /// Cores, sockets, dies.
    pub cpu_topology: Option<CpuTopology>,
    /// NUMA nodes.
    pub numa: Vec<NumaNode>,
    /// Samples carry branch records.
    pub branch_stack: bool,
    /// Dynamic PMU numbers and names.
    pub pmu_mappings: Vec<(u32, String)>,
    /// Groups of more than one event.
    pub groups: Vec<GroupDesc>,
    /// A recording of `perf stat`.
    pub stat: bool,
    /// CPU caches.
    pub caches: Vec<CacheLevel>,
    /// Time of the first and last sample in ns.
    pub sample_time: Option<(u64, u64)>,
    /// Resolution in ns of the clock that `-k` chose.
    pub clockid_resolution_ns: Option<u64>,
    /// Version of the directory form.
    pub dir_format: Option<u64>,
    /// How records are compressed.
    pub compressed: Option<CompressedInfo>,
    /// Capabilities of the CPU's PMU, name and value.
    pub cpu_pmu_caps: Vec<(String, String)>,
    /// How the recording's clock relates to the wall clock.
    pub clock_data: Option<ClockData>,
    /// What an imported profile says of itself.
    pub imported: Option<ImportedFacts>,
    /// Sections that are kept as bytes: (feature bit, payload), ascending.
    pub other: Vec<(u32, Vec<u8>)>,
}

impl Features {
    /// The build id of the recorded kernel's text. Recorders that found its image list it by the
    /// image's path.
    pub fn kernel_build_id(&self) -> Option<&[u8]> {
        let is_kernel = |entry: &&BuildId| {
            entry.misc & PERF_RECORD_MISC_CPUMODE_MASK == PERF_RECORD_MISC_KERNEL
                && !entry.id.is_empty()
                && is_kernel_image(&entry.filename)
        };
        self.build_ids.iter().find(is_kernel).map(|entry| &entry.id[..])
    }
}

/// `[kernel.kallsyms]`, `/usr/lib/debug/boot/vmlinux-6.1`, a copy of the cache of build ids.
fn is_kernel_image(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    path.starts_with(b"[kernel.") || name.starts_with(b"vmlinux") || name == b"kcore" || name == b"kallsyms"
}

/// Number of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NrCpus {
    /// CPUs that could come online.
    pub available: u32,
    /// CPUs that were online.
    pub online: u32,
}

/// One event as the recorder described it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventDesc {
    /// Its settings.
    pub attr: Attr,
    /// Its name.
    pub name: String,
    /// Its ids.
    pub ids: Vec<u64>,
}

/// Where the CPUs are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuTopology {
    /// CPU lists (`0-3`) of each package.
    pub core_siblings: Vec<String>,
    /// CPU lists of each core.
    pub thread_siblings: Vec<String>,
    /// Core and socket number of each available CPU; `u32::MAX` for one that was offline.
    pub cpus: Vec<CpuPlace>,
    /// CPU lists of each die; empty in older recordings.
    pub die_siblings: Vec<String>,
}

/// Where one CPU is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuPlace {
    /// Core number within the socket.
    pub core: u32,
    /// Socket number.
    pub socket: u32,
    /// Die number, if recorded.
    pub die: Option<u32>,
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Its number.
    pub node: u32,
    /// Memory in KiB.
    pub total_kb: u64,
    /// Free memory in KiB when it was recorded.
    pub free_kb: u64,
    /// CPU list.
    pub cpus: String,
}

/// One group of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDesc {
    /// The name it was given; perf writes `{anon_group}` where there was none.
    pub name: String,
    /// Index of the leader.
    pub leader: u32,
    /// Number of events, the leader included.
    pub members: u32,
}

/// One level of cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheLevel {
    /// 1, 2, 3.
    pub level: u32,
    /// Line size in bytes.
    pub line_bytes: u32,
    /// Number of sets.
    pub sets: u32,
    /// Ways.
    pub ways: u32,
    /// `Data`, `Instruction`, `Unified`.
    pub kind: String,
    /// Size such as `32K`.
    pub size: String,
    /// CPU list that shares it.
    pub cpus: String,
}

/// How records are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedInfo {
    /// Version of this description: 0, as perf writes it; other readers refuse any other.
    pub version: u32,
    /// Algorithm: 1 is zstd.
    pub kind: u32,
    /// Compression level.
    pub level: u32,
    /// Compression ratio in whole numbers.
    pub ratio: u32,
    /// Size in bytes of one ring.
    pub mmap_len: u32,
}

/// One moment on two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockData {
    /// Version of this description: 1.
    pub version: u32,
    /// The recording's clock.
    pub clockid: u32,
    /// Wall clock in ns.
    pub wall_clock_ns: u64,
    /// The recording's clock in ns.
    pub clockid_time_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the kernel's build id is found under the path of its image, too, and that those
    /// of modules and programs are not taken for it.
    #[test]
    fn kernel_build_ids() {
        let id = |misc, filename: &str| {
            let features = Features {
                build_ids: vec![BuildId { misc, pid: -1, id: vec![7; 20], filename: filename.into() }],
                ..Features::default()
            };
            features.kernel_build_id().is_some()
        };
        let (kernel, user) = (PERF_RECORD_MISC_KERNEL, crate::abi::PERF_RECORD_MISC_USER);
        assert!(id(kernel, "[kernel.kallsyms]"));
        assert!(id(kernel, "/lib/modules/6.6.7-arch1-1/build/vmlinux"));
        assert!(id(kernel, "/usr/lib/debug/boot/vmlinux-6.1.0-18-amd64"));
        assert!(!id(kernel, "/lib/modules/6.1.0/kernel/fs/xfs/xfs.ko"));
        assert!(!id(user, "/home/me/vmlinux"));
        assert!(!id(user, "[vdso]"));
    }

    /// Checks that an empty section of text is one that the recorder could not fill, and no damage;
    /// one that is cut off is.
    #[test]
    fn empty_texts() {
        let mut features = Features::default();
        assert!(features.set_section(crate::abi::HEADER_CPUDESC, &[]));
        assert_eq!((features.cpu_desc.as_deref(), features.other.len()), (None, 0));
        assert!(!features.set_section(crate::abi::HEADER_CPUDESC, &[9, 0, 0, 0, b'x']));
    }
}
