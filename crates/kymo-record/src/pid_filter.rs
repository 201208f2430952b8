//! Drops side-band records of processes that are not recorded.
//!
//! Events on every CPU see the names, mappings, forks and exits of the whole machine, even where a
//! BPF program keeps only the samples of some processes. The rest would be noise, and would reveal
//! other users' file names. Records are read late and ring by ring, so the set of processes
//! followed *now* cannot decide. The set of processes *ever* followed can ([`FollowedBitmap`]): it
//! only grows.
use kymo_data::{abi, retain_records};
use kymo_perf::bpf::FollowedBitmap;
use kymo_perf::sys::perf_event_attr;
use rustc_hash::FxHashMap;

/// Where a record that names a process has its id, in bytes from the record's start.
const PID_AT: usize = 8;
/// Where a FORK record has the maker's process.
const PARENT_AT: usize = 12;

/// What follows a record's own fields behind the ids of its writer, each 8 bytes long.
const BEHIND_TID: [u64; 5] = [
    abi::PERF_SAMPLE_TIME,
    abi::PERF_SAMPLE_ID,
    abi::PERF_SAMPLE_STREAM_ID,
    abi::PERF_SAMPLE_CPU,
    abi::PERF_SAMPLE_IDENTIFIER,
];

/// Drops records of other processes from buffers.
#[derive(Debug, Default)]
pub(crate) struct PidFilter {
    /// `None`: all records are wanted, or nobody can tell.
    ever: Option<FollowedBitmap>,
    /// Where records have the process in which they were written, in bytes from their end.
    writer_from_end: Option<usize>,
    /// Samples of events that no program filters in the kernel, by their ids: where they have the
    /// process, in bytes from their start.
    unfiltered: FxHashMap<u64, usize>,
}

impl PidFilter {
    /// For records of these events.
    pub(crate) fn new<'a>(
        ever: Option<FollowedBitmap>,
        attrs: impl IntoIterator<Item = &'a perf_event_attr>,
    ) -> PidFilter {
        // Only one event tracks, whatever the others put behind their records.
        let tracking = attrs.into_iter().find(|attr| attr.task() == 1);
        let writer_from_end = tracking
            .filter(|attr| attr.sample_id_all() == 1 && attr.sample_type & abi::PERF_SAMPLE_TID != 0)
            .map(|attr| 8 + 8 * BEHIND_TID.iter().filter(|&bit| attr.sample_type & bit != 0).count());
        PidFilter { ever, writer_from_end, unfiltered: FxHashMap::default() }
    }

    /// Drops strangers' samples of these events, too, which have the given fields and ids.
    pub(crate) fn with_samples<'a>(
        mut self,
        events: impl IntoIterator<Item = (u64, &'a [u64])>,
    ) -> PidFilter {
        const NEEDED: u64 = abi::PERF_SAMPLE_IDENTIFIER | abi::PERF_SAMPLE_TID;
        for (sample_type, ids) in events.into_iter().filter(|(fields, _)| fields & NEEDED == NEEDED) {
            // Behind the header and the id.
            let pid_at = if sample_type & abi::PERF_SAMPLE_IP != 0 { 24 } else { 16 };
            self.unfiltered.extend(ids.iter().map(|id| (*id, pid_at)));
        }
        self
    }

    /// Moves the wanted records to the front; returns how many bytes they are.
    pub(crate) fn remove(&self, records: &mut [u8]) -> usize {
        match &self.ever {
            None => records.len(),
            Some(ever) => retain(records, |record| {
                let followed = |pid| ever.contains(pid);
                self.is_ours(record, followed) && about(record, self.writer_from_end, followed)
            }),
        }
    }
}

impl PidFilter {
    /// Whether a record is none of the samples that a stranger's doing made.
    fn is_ours(&self, record: &[u8], followed: impl Fn(i32) -> bool) -> bool {
        let is_sample = record.starts_with(&abi::PERF_RECORD_SAMPLE.to_le_bytes());
        if self.unfiltered.is_empty() || !is_sample {
            return true;
        }
        let id = record.get(8..16).and_then(|id| id.try_into().ok()).map(u64::from_le_bytes);
        let at = id.and_then(|id| self.unfiltered.get(&id));
        at.and_then(|at| pid_at(record, *at)).is_none_or(followed)
    }
}

fn pid_at(record: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_le_bytes(record.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// Whether a record is about somebody who is `followed`, or about the machine.
fn about(record: &[u8], writer_from_end: Option<usize>, followed: impl Fn(i32) -> bool) -> bool {
    let kind = u32::from_le_bytes([record[0], record[1], record[2], record[3]]);
    let also_at = match kind {
        // Of a child that is being made the kernel says so before it is followed; its maker is by
        // then.
        abi::PERF_RECORD_FORK => Some(PARENT_AT),
        // The same; and a switch is from one to another: written by either of them.
        abi::PERF_RECORD_NAMESPACES | abi::PERF_RECORD_SWITCH_CPU_WIDE => {
            writer_from_end.and_then(|bytes| record.len().checked_sub(bytes))
        }
        abi::PERF_RECORD_MMAP
        | abi::PERF_RECORD_MMAP2
        | abi::PERF_RECORD_COMM
        | abi::PERF_RECORD_EXIT
        | abi::PERF_RECORD_READ => None,
        // Samples were chosen in the kernel; the others are about the machine or the recording.
        _ => return true,
    };
    // -1 is the kernel itself, or somebody who is gone already.
    let wanted = |pid: i32| pid < 0 || followed(pid);
    let Some(pid) = pid_at(record, PID_AT) else { return true };
    wanted(pid) || also_at.and_then(|at| pid_at(record, at)).is_some_and(wanted)
}

/// Moves the wanted records to the front, in order; returns their length. What follows an
/// impossible size stays.
fn retain(records: &mut [u8], wanted: impl Fn(&[u8]) -> bool) -> usize {
    let (kept, passed) = retain_records(records, |_, record| wanted(record));
    records.copy_within(passed.., kept);
    kept + records.len() - passed
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: i32 = 100;
    const OTHER: i32 = 200;
    /// Time and CPU behind the ids.
    const WRITER_FROM_END: usize = 24;

    /// A record with these ids first, then `words` words, and who wrote it.
    fn record(kind: u32, ids: &[i32], words: usize, writer: i32) -> Vec<u8> {
        let mut out = vec![0; 8];
        out.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        out.extend(vec![0xee; 8 * words]);
        out.extend([writer, writer, 0, 0, 0, 0].iter().flat_map(|id| id.to_le_bytes()));
        out[..4].copy_from_slice(&kind.to_le_bytes());
        let size = u16::try_from(out.len()).unwrap();
        out[6..8].copy_from_slice(&size.to_le_bytes());
        out
    }

    fn wanted(record: &[u8]) -> bool {
        about(record, Some(WRITER_FROM_END), |pid| pid == OURS)
    }

    /// Checks that samples of events which no program filters are dropped if they are strangers',
    /// with and without an address before the process.
    #[test]
    fn samples_of_strangers() {
        const FIELDS: u64 = abi::PERF_SAMPLE_IDENTIFIER | abi::PERF_SAMPLE_TID;
        let filter = PidFilter::new(None, []).with_samples([
            (FIELDS | abi::PERF_SAMPLE_IP, &[7, 8][..]),
            (FIELDS, &[9]),
            (1 << 1, &[10]),
        ]);
        let ours = |id: i32, ids: &[i32]| {
            let sample = record(abi::PERF_RECORD_SAMPLE, &[&[id, 0], ids].concat(), 2, OURS);
            filter.is_ours(&sample, |pid| pid == OURS)
        };
        assert_eq!([ours(8, &[1, 1, OURS]), ours(8, &[1, 1, OTHER])], [true, false]);
        assert_eq!([ours(9, &[OURS]), ours(9, &[OTHER])], [true, false]);
        assert!(ours(10, &[OTHER]) && ours(11, &[OTHER]));
        let other = record(abi::PERF_RECORD_COMM, &[9, 0, OTHER], 2, OTHER);
        assert!(filter.is_ours(&other, |pid| pid == OURS));
    }

    /// Checks for each kind that names a process that ours stays and a stranger's goes, and that
    /// the kernel's own mappings stay.
    #[test]
    fn by_process() {
        for kind in [
            abi::PERF_RECORD_MMAP,
            abi::PERF_RECORD_MMAP2,
            abi::PERF_RECORD_COMM,
            abi::PERF_RECORD_EXIT,
            abi::PERF_RECORD_READ,
            abi::PERF_RECORD_FORK,
            abi::PERF_RECORD_NAMESPACES,
            abi::PERF_RECORD_SWITCH_CPU_WIDE,
        ] {
            assert!(wanted(&record(kind, &[OURS, 7], 3, OURS)), "{kind}");
            assert!(!wanted(&record(kind, &[OTHER, 7], 3, OTHER)), "{kind}");
            assert!(!wanted(&record(kind, &[0, 0], 3, OTHER)), "{kind}: an idle CPU");
            assert!(wanted(&record(kind, &[-1, 0], 3, OTHER)), "{kind}");
        }
    }

    /// Checks that a new process is judged by its maker as well, as the kernel writes that record
    /// first; an ended one is not.
    #[test]
    fn by_maker() {
        assert!(wanted(&record(abi::PERF_RECORD_FORK, &[OTHER, OURS, 7, 8], 1, OURS)));
        assert!(wanted(&record(abi::PERF_RECORD_FORK, &[OURS, OTHER, 7, 8], 1, OTHER)));
        assert!(wanted(&record(abi::PERF_RECORD_NAMESPACES, &[OTHER, 7], 2, OURS)));
        assert!(!wanted(&record(abi::PERF_RECORD_EXIT, &[OTHER, OURS, 7, 8], 1, OTHER)));
    }

    /// Checks that a switch between one of ours and a stranger stays, whoever wrote it.
    #[test]
    fn switches() {
        assert!(wanted(&record(abi::PERF_RECORD_SWITCH_CPU_WIDE, &[OTHER, 7], 0, OURS)));
        assert!(wanted(&record(abi::PERF_RECORD_SWITCH_CPU_WIDE, &[OURS, 7], 0, OTHER)));
        // Without the writer's ids only the named one can tell.
        assert!(!about(&record(abi::PERF_RECORD_SWITCH_CPU_WIDE, &[OTHER, 7], 0, OURS), None, |p| p == OURS));
    }

    /// Checks that what is about the machine or the recording stays, whoever wrote it.
    #[test]
    fn of_the_machine() {
        for kind in [
            abi::PERF_RECORD_SAMPLE,
            abi::PERF_RECORD_LOST,
            abi::PERF_RECORD_LOST_SAMPLES,
            abi::PERF_RECORD_THROTTLE,
            abi::PERF_RECORD_UNTHROTTLE,
            abi::PERF_RECORD_KSYMBOL,
            abi::PERF_RECORD_BPF_EVENT,
            abi::PERF_RECORD_TEXT_POKE,
            abi::PERF_RECORD_CGROUP,
            999,
        ] {
            assert!(wanted(&record(kind, &[OTHER, OTHER], 3, OTHER)), "{kind}");
        }
    }

    /// Checks that what is kept is whole, in order and at the front, for every pattern of seven
    /// records of different lengths.
    #[test]
    fn every_pattern() {
        for pattern in 0..1 << 7u32 {
            let (mut bytes, mut expected) = (Vec::new(), Vec::new());
            for at in 0..7 {
                let ours = pattern >> at & 1 == 1;
                let pid = if ours { OURS } else { OTHER };
                let one = record(abi::PERF_RECORD_COMM, &[pid, at], at as usize % 4, pid);
                bytes.extend(&one);
                expected.extend(ours.then_some(one).into_iter().flatten());
            }
            let len = retain(&mut bytes, wanted);
            assert_eq!(&bytes[..len], &expected, "{pattern:b}");
        }
    }

    /// Checks that damaged and cut records end the pass and stay, behind what was kept before them.
    #[test]
    fn damaged() {
        let ours = record(abi::PERF_RECORD_COMM, &[OURS, 1], 2, OURS);
        for tail in [vec![0; 16], vec![1, 2, 3], [&[3, 0, 0, 0, 0, 0, 0xff, 0xff][..], &[9; 20]].concat()] {
            let mut bytes = record(abi::PERF_RECORD_COMM, &[OTHER, 1], 1, OTHER);
            bytes.extend(&ours);
            bytes.extend(&tail);
            let len = retain(&mut bytes, wanted);
            assert_eq!(bytes[..len], [&ours[..], &tail].concat());
        }
        // Too short to name anybody.
        let mut short = vec![3, 0, 0, 0, 0, 0, 8, 0];
        assert_eq!(retain(&mut short, wanted), 8);
        assert_eq!(retain(&mut [], wanted), 0);
    }

    /// Checks where the writer's ids are looked for, and that without knowledge of who was followed
    /// everything stays.
    #[test]
    fn layouts() {
        let mut attrs = [kymo_perf::sys::attr_zeroed(), kymo_perf::sys::attr_zeroed()];
        attrs[1].set_task(1);
        attrs[1].sample_type =
            abi::PERF_SAMPLE_IP | abi::PERF_SAMPLE_TID | abi::PERF_SAMPLE_TIME | abi::PERF_SAMPLE_IDENTIFIER;
        assert_eq!(PidFilter::new(None, &attrs).writer_from_end, None);
        attrs[1].set_sample_id_all(1);
        let pid_filter = PidFilter::new(None, &attrs);
        assert_eq!(pid_filter.writer_from_end, Some(24));
        let mut bytes = record(abi::PERF_RECORD_COMM, &[OTHER, 1], 1, OTHER);
        assert_eq!(pid_filter.remove(&mut bytes), bytes.len());
    }
}
