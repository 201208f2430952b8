//! The mark in chains where a caller is a guess.
//!
//! A frame named `[guessed]` stands between the code and the caller that was searched for, so that
//! every view shows it. It has an address like a function of an interpreted program, whose name the
//! recording has ([`InterpretedFunction`]); perf shows an unknown function of a module `[guessed]`.
use kymo_data::{Attr, EventSet, InterpretedFunction, SampleId, abi, build};
use rustc_hash::FxHashSet;

/// Name and module of the mark.
const NAME: &str = "[guessed]";
/// Its address: the last ones of interpreted functions.
const ADDRESS: u64 = InterpretedFunction::END_ADDRESS - SIZE as u64 - 1;
const SIZE: u32 = 16;
/// So many processes are remembered that have it.
const MOST_PROCESSES: usize = 1 << 16;

/// Puts the mark into chains.
#[derive(Debug)]
pub(super) struct GuessedMark {
    attr: Attr,
    id: Option<u64>,
    is_named: bool,
    mapped: FxHashSet<i32>,
}

impl GuessedMark {
    pub(super) fn new(events: &EventSet) -> GuessedMark {
        let first = events.list.first();
        GuessedMark {
            attr: first.map(|event| event.attr.clone()).unwrap_or_default(),
            id: first.and_then(|event| event.ids.first().copied()),
            is_named: false,
            mapped: FxHashSet::default(),
        }
    }

    /// Puts the mark before these frames, by their numbers, ascending. At most `most` frames are in
    /// the chain afterwards. `notes`: records that say what it is.
    pub(super) fn put(
        &mut self,
        (pid, tid, time_ns): (i32, i32, u64),
        guessed: &[usize],
        (frames, most): (&mut Vec<u64>, usize),
        notes: &mut Vec<u8>,
    ) {
        if guessed.is_empty() {
            return;
        }
        for &at in guessed.iter().rev() {
            frames.insert(at.min(frames.len()), ADDRESS);
        }
        frames.truncate(most);
        if !std::mem::replace(&mut self.is_named, true) {
            let function = InterpretedFunction {
                address: ADDRESS,
                size: SIZE,
                name: NAME.to_owned(),
                file: NAME.to_owned(),
                ..InterpretedFunction::default()
            };
            notes.extend(function.record());
        }
        if self.mapped.len() >= MOST_PROCESSES {
            self.mapped.clear();
        }
        if self.mapped.insert(pid) {
            let map = build::MapSpec {
                addr: ADDRESS,
                len: SIZE.into(),
                filename: NAME.as_bytes(),
                ..code(pid, tid)
            };
            notes.extend(build::mmap2(&self.attr, &self.sample_id(pid, tid, time_ns), &map));
        }
    }

    /// A process executes another program.
    pub(super) fn forget(&mut self, pid: i32) {
        self.mapped.remove(&pid);
    }

    fn sample_id(&self, pid: i32, tid: i32, time_ns: u64) -> SampleId {
        sample_id(self.id, pid, tid, time_ns)
    }
}

/// A mapping of code of a process.
pub(super) fn code(pid: i32, tid: i32) -> build::MapSpec<'static> {
    let (prot, flags) = (5, 2);
    build::MapSpec { pid, tid, prot, flags, misc: abi::PERF_RECORD_MISC_USER, ..build::MapSpec::default() }
}

/// What stands behind a record that the recorder makes.
pub(super) fn sample_id(id: Option<u64>, pid: i32, tid: i32, time_ns: u64) -> SampleId {
    SampleId { pid: Some(pid), tid: Some(tid), time: Some(time_ns), id, cpu: Some(0), ..SampleId::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kymo_data::{RawRecord, RecordCursor};

    /// Checks that the mark stands between a frame and its guessed caller, that its name is told
    /// once and its place once for each process, and that a chain stays within its limit.
    #[test]
    fn a_guess_is_marked() {
        let mut mark = GuessedMark::new(&EventSet::default());
        let mut put = |pid, guessed: &[usize], most| {
            let (mut frames, mut notes) = (vec![10, 20, 30, 40], Vec::new());
            mark.put((pid, pid, 7), guessed, (&mut frames, most), &mut notes);
            let records = RecordCursor::new(&notes).map(|found| {
                let (header, body) = (found.header, found.body());
                InterpretedFunction::parse(&RawRecord { header, body, position: 0 }).map(|one| one.name)
            });
            (frames, records.collect::<Vec<_>>())
        };
        assert_eq!(put(1, &[], 127), (vec![10, 20, 30, 40], vec![]));
        let told = vec![Some(NAME.to_owned()), None];
        assert_eq!(put(1, &[1], 127), (vec![10, ADDRESS, 20, 30, 40], told));
        assert_eq!(put(1, &[1, 3], 127), (vec![10, ADDRESS, 20, 30, ADDRESS, 40], vec![]));
        assert_eq!(put(2, &[2], 4), (vec![10, 20, ADDRESS, 30], vec![None]));
    }
}
