//! The rows of a recording that were added up: one for each process, stack, event, state and waker.
//!
//! ```text
//!   samples ------------> (process, event, on-cpu, -, stack) ----------.
//!   spans of waits -----> (process, offcpu-time, state, waker, stack) --+--> sum, count
//! ```
//! Threads and moments are not told apart: a row has the beginning of the interval and no thread.
use super::{RecordingRows, samples_of};
use crate::error::DatasetError;
use crate::process_names::ProcessNames;
use crate::rows::{EventRow, ProcessRow, SampleValue};
use crate::schema::NO_SERVICE;
use crate::writer::{DatasetFile, EventNumber, ProcessNumber, StackNumber};
use kymo_profile::export::{RowFilter, SampleRow};
use kymo_profile::load::ExtraId;
use kymo_profile::wall::{OFF_CPU, is_of_waits};
use rustc_hash::FxHashMap;

/// The state of a thread that waits, or is ready and has no CPU, where nothing says what for.
const STATE_OFF_CPU: &str = "off-cpu";

/// The files of an interval, and what is in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SummedFiles {
    /// The files, those with samples last.
    pub files: Vec<DatasetFile>,
    /// Rows of samples in them.
    pub rows: u64,
    /// Samples that they are sums of, and waits.
    pub samples: u64,
}

/// By row its value, and its samples.
type Sums = FxHashMap<(ProcessNumber, EventNumber, StackNumber), (i64, i64)>;

/// What a process is in, by its number and the cgroup of a sample; waits have none.
type NamesOf<'a> = dyn Fn(i32, Option<ExtraId>) -> ProcessNames + 'a;

impl RecordingRows<'_> {
    /// The files, with a row for all samples of a process that have the same stack, event, state
    /// and waker. `start_ns`: the time of all rows, nanoseconds since 1970. `names`: what a process
    /// is in, by its number and the cgroup of a sample ([`SampleRow::extra`]), which waits do not
    /// have.
    ///
    /// # Errors
    /// Those of the Parquet library.
    pub fn into_sums(mut self, start_ns: i64, names: &NamesOf<'_>) -> Result<SummedFiles, DatasetError> {
        let mut sums = Sums::default();
        self.add_up(&mut sums, names);
        if self.begin_waits() {
            self.add_up(&mut sums, names);
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        // A hash table's order must not reach the files.
        sums.sort_unstable_by_key(|(key, _)| *key);
        let mut summed = SummedFiles { rows: sums.len() as u64, ..SummedFiles::default() };
        for ((process, event, stack), (value, count)) in sums {
            summed.samples = summed.samples.saturating_add_signed(count);
            let value = SampleValue { time_ns: start_ns, value, samples: count };
            self.writer.sample(process, event, stack, value)?;
        }
        summed.files = self.writer.finish()?;
        Ok(summed)
    }

    /// Adds the rows of what is read now.
    fn add_up(&mut self, sums: &mut Sums, names: &NamesOf<'_>) {
        let mut processes = FxHashMap::default();
        let samples = self.samples;
        for row in samples.by_time() {
            if !self.filter.keeps(samples, &row) {
                continue;
            }
            let process = *processes
                .entry((row.named_thread, row.extra))
                .or_insert_with(|| self.summed_process(&row, names));
            let stack = self.stack(row.stack);
            let Some(event) = self.summed_event(&row) else { continue };
            let (value, count) = sums.entry((process, event, stack)).or_default();
            *value = value.saturating_add_unsigned(row.period);
            *count = count.saturating_add(samples_of(&row));
        }
    }

    /// The event of a row; none for records of waits that are no time of a thread.
    fn summed_event(&mut self, row: &SampleRow) -> Option<EventNumber> {
        let name = self.samples.event(row.event).name.as_str();
        match name {
            OFF_CPU => {
                let (value_unit, state) = ("ns", STATE_OFF_CPU);
                Some(self.writer.event(&EventRow { event: OFF_CPU, value_unit, state, waker: None }))
            }
            _ if is_of_waits(name) => None,
            _ => Some(self.event(row)),
        }
    }

    fn summed_process(&mut self, row: &SampleRow, names: &NamesOf<'_>) -> ProcessNumber {
        let thread = self.samples.thread(row.thread);
        let pid = thread.pid;
        let names = names(pid, Some(row.extra).filter(|_| self.filter != RowFilter::OffCpu));
        // Threads have names of their own; a service is a program.
        let program = self.samples.process_name(thread).unwrap_or(NO_SERVICE);
        let program = Some(program).filter(|_| names.is_empty());
        self.writer.process(&ProcessRow {
            pid,
            tid: None,
            command: self.samples.comm(row),
            container: names.container.as_deref(),
            pod: names.pod.as_deref(),
            systemd_unit: names.systemd_unit.as_deref(),
            service: self.options.service.or(program),
        })
    }
}
