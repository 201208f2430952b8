//! Rows of the table `samples` in memory, and as row groups.
use crate::encode::TableFile;
use crate::error::DatasetError;
use bytes::Bytes;
use parquet::data_type::ByteArray;
use rustc_hash::FxHashMap;

/// Samples of a partition that are held as rows; then they become a row group. Engines read row
/// groups in parallel, and each has a dictionary of its stacks.
pub(crate) const SAMPLES_OF_GROUP: usize = 1 << 20;

/// Distinct texts.
#[derive(Default)]
pub(crate) struct Texts {
    numbers: FxHashMap<String, u32>,
    list: Vec<ByteArray>,
}

impl Texts {
    pub(crate) fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.list.len() as u32;
        self.list.push(bytes_of(text));
        self.numbers.insert(text.to_owned(), number);
        number
    }

    pub(crate) fn get(&self, number: u32) -> ByteArray {
        self.list[number as usize].clone()
    }
}

/// A text without bytes has an address all the same: the library compares each value with one of
/// its dictionary, and for empty ones at no address glibc's `memcmp` for AVX-512 takes 40 times as
/// long as for others: the processor reads there, and has to suppress the fault.
fn bytes_of(text: &str) -> ByteArray {
    static SOMEWHERE: [u8; 1] = [0];
    match text {
        "" => Bytes::from_static(&SOMEWHERE[..0]).into(),
        _ => text.into(),
    }
}

/// A process or thread; texts are numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct InternedProcess {
    pub(crate) host_id: i64,
    pub(crate) pid: i32,
    pub(crate) tid: Option<i32>,
    pub(crate) command: u32,
    pub(crate) container: Option<u32>,
    pub(crate) pod: Option<u32>,
    pub(crate) systemd_unit: Option<u32>,
    /// Processes of one number are in one partition.
    pub(crate) service: u32,
}

/// What is measured; texts are numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct InternedEvent {
    pub(crate) event: u32,
    pub(crate) value_unit: u32,
    pub(crate) state: u32,
    pub(crate) waker: Option<u32>,
}

/// The innermost location of a stack without any.
pub(crate) const NO_LOCATION: i64 = -1;

/// A row; process and event are numbers.
#[derive(Clone, Copy)]
pub(crate) struct BufferedSample {
    pub(crate) event: u32,
    pub(crate) process: u32,
    pub(crate) time_us: i64,
    pub(crate) stack_id: i64,
    /// The innermost location of the stack; ids are never negative, and [`NO_LOCATION`] is none.
    pub(crate) leaf_location_id: i64,
    pub(crate) value: i64,
    pub(crate) samples: i64,
}

/// What rows name by number.
#[derive(Default)]
pub(crate) struct SampleTables {
    pub(crate) texts: Texts,
    processes: Vec<InternedProcess>,
    process_numbers: FxHashMap<InternedProcess, u32>,
    events: Vec<InternedEvent>,
    event_numbers: FxHashMap<InternedEvent, u32>,
}

impl SampleTables {
    /// The number of a process.
    pub(crate) fn process(&mut self, process: InternedProcess) -> u32 {
        let next = self.processes.len() as u32;
        let number = *self.process_numbers.entry(process).or_insert(next);
        if number == next {
            self.processes.push(process);
        }
        number
    }

    /// The process of a number.
    pub(crate) fn process_of(&self, number: u32) -> InternedProcess {
        self.processes[number as usize]
    }

    /// The number of an event.
    pub(crate) fn event(&mut self, event: InternedEvent) -> u32 {
        let next = self.events.len() as u32;
        let number = *self.event_numbers.entry(event).or_insert(next);
        if number == next {
            self.events.push(event);
        }
        number
    }

    /// The places of events by their names, and of processes by host and number.
    fn ranks(&self) -> (Vec<u32>, Vec<u32>) {
        fn places<K: Ord>(count: usize, key: impl Fn(usize) -> K) -> Vec<u32> {
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by_key(|number| key(*number));
            let mut places = vec![0; count];
            order.into_iter().zip(0..).for_each(|(number, place)| places[number] = place);
            places
        }
        let events =
            places(self.events.len(), |number| self.texts.get(self.events[number].event).data().to_vec());
        let processes = places(self.processes.len(), |number| {
            let process = &self.processes[number];
            (process.host_id, process.pid)
        });
        (events, processes)
    }

    /// Sorts rows, and adds them to a file as a row group.
    pub(crate) fn write(
        &self,
        rows: &mut [BufferedSample],
        file: &mut TableFile,
    ) -> Result<(), DatasetError> {
        // Runs of equal values, and moments that grow: as `sorting_columns` tells readers.
        let (events, processes) = self.ranks();
        rows.sort_unstable_by_key(|row| {
            let (event, process) = (events[row.event as usize], processes[row.process as usize]);
            (event, process, row.time_us, row.stack_id, row.value)
        });
        let process = |row: &BufferedSample| &self.processes[row.process as usize];
        let optional = |number: Option<u32>| number.map(|number| self.texts.get(number));
        let event = |row: &BufferedSample| &self.events[row.event as usize];
        file.row_group(|columns| {
            columns.int64(rows.iter().map(|row| row.time_us));
            columns.int64(rows.iter().map(|row| process(row).host_id));
            columns.int32(rows.iter().map(|row| process(row).pid));
            columns.optional_int32(rows.iter().map(|row| process(row).tid));
            columns.text(rows.iter().map(|row| self.texts.get(process(row).command)));
            columns.optional_text(rows.iter().map(|row| optional(process(row).container)));
            columns.optional_text(rows.iter().map(|row| optional(process(row).pod)));
            columns.optional_text(rows.iter().map(|row| optional(process(row).systemd_unit)));
            columns.text(rows.iter().map(|row| self.texts.get(event(row).event)));
            columns.text(rows.iter().map(|row| self.texts.get(event(row).value_unit)));
            columns.text(rows.iter().map(|row| self.texts.get(event(row).state)));
            columns.int64(rows.iter().map(|row| row.stack_id));
            columns.int64(rows.iter().map(|row| row.value));
            columns.int64(rows.iter().map(|row| row.samples));
            columns.optional_int64(
                rows.iter().map(|row| Some(row.leaf_location_id).filter(|id| *id != NO_LOCATION)),
            );
            columns.optional_text(rows.iter().map(|row| optional(event(row).waker)));
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a text without bytes lies somewhere: see [`bytes_of`] for what it costs if not.
    #[test]
    fn empty_texts_have_an_address() {
        let mut texts = Texts::default();
        let number = texts.number("");
        assert_eq!((texts.number(""), texts.get(number).data()), (number, &b""[..]));
        // The first page is never mapped.
        assert!(texts.get(number).data().as_ptr().addr() > 4096);
    }
}
