//! Samples of a day and service, of all hosts.
use super::{Merged, Merging, rows_of};
use crate::encode::TableFile;
use crate::error::DatasetError;
use crate::read::{MOST_ROWS, RowGroup};
use crate::samples::{
    BufferedSample, InternedEvent, InternedProcess, NO_LOCATION, SAMPLES_OF_GROUP, SampleTables, Texts,
};
use crate::schema::Table;
use crate::store::StoredFile;
use parquet::data_type::ByteArray;

/// A file that has so many bytes takes no other.
pub(super) const BYTES_OF_FILE: u64 = 256 << 20;
/// Nor one of so many rows: the reader refuses files of twice as many.
pub(super) const ROWS_OF_FILE: i64 = MOST_ROWS / 2;

impl Merging<'_> {
    pub(super) fn samples(&self, path: String, files: &[StoredFile]) -> Result<Merged, DatasetError> {
        let mut partition = Partition {
            rows: Vec::new(),
            tables: SampleTables::default(),
            file: TableFile::new(Table::Samples, "", path, rows_of(files))?,
            row_count: 0,
        };
        let (mut taken, mut bytes) = (0, 0);
        for file in files {
            let reader = self.open(file, Table::Samples)?;
            let rows = partition.row_count + reader.row_count() as i64;
            if taken > 0 && (rows > ROWS_OF_FILE || bytes + file.bytes > BYTES_OF_FILE) {
                break;
            }
            for group in 0..reader.group_count() {
                partition.add(&reader.group(group))?;
            }
            (taken, bytes) = (taken + 1, bytes + file.bytes);
        }
        partition.write()?;
        Ok(Merged { file: partition.file, taken, samples: partition.row_count as u64 })
    }
}

/// The rows that no row group has yet, and the file for them.
struct Partition {
    rows: Vec<BufferedSample>,
    tables: SampleTables,
    file: TableFile,
    row_count: i64,
}

impl Partition {
    fn add(&mut self, group: &RowGroup<'_>) -> Result<(), DatasetError> {
        let texts = &mut self.tables.texts;
        let [command, event, unit, state] = ["command", "event", "value_unit", "state"].map(|column| {
            let values = group.text(column).and_then(|values| group.required(column, values));
            values.map(|values| numbers(texts, values.into_iter().map(Some)))
        });
        let [container, pod, systemd_unit, waker] = ["container", "pod", "systemd_unit", "waker"]
            .map(|column| group.text(column).map(|values| numbers(texts, values.into_iter())));
        let (command, event, unit, state) = (command?, event?, unit?, state?);
        let (container, pod, systemd_unit, waker) = (container?, pod?, systemd_unit?, waker?);
        let of = |column: &str| group.int64(column).and_then(|values| group.required(column, values));
        let (time, host_id, stack_id) = (of("time")?, of("host_id")?, of("stack_id")?);
        let (value, samples) = (of("value")?, of("samples")?);
        let pid = group.required("pid", group.int32("pid")?)?;
        let (tid, leaf) = (group.int32("tid")?, group.int64("leaf_location_id")?);
        self.row_count += time.len() as i64;
        // Rows of one process and event follow each other.
        let mut last = None;
        for row in 0..time.len() {
            let process = InternedProcess {
                host_id: host_id[row],
                pid: pid[row],
                tid: tid[row],
                command: command[row].unwrap_or(0),
                container: container[row],
                pod: pod[row],
                systemd_unit: systemd_unit[row],
                service: 0,
            };
            let interned = InternedEvent {
                event: event[row].unwrap_or(0),
                value_unit: unit[row].unwrap_or(0),
                state: state[row].unwrap_or(0),
                waker: waker[row],
            };
            let (process, event) = match last {
                Some((of, event_of, numbers)) if of == process && event_of == interned => numbers,
                _ => (self.tables.process(process), self.tables.event(interned)),
            };
            last = Some((self.tables.process_of(process), interned, (process, event)));
            self.rows.push(BufferedSample {
                event,
                process,
                time_us: time[row],
                stack_id: stack_id[row],
                leaf_location_id: leaf[row].unwrap_or(NO_LOCATION),
                value: value[row],
                samples: samples[row],
            });
            if self.rows.len() >= SAMPLES_OF_GROUP {
                self.write()?;
            }
        }
        Ok(())
    }

    /// Makes a row group of the rows.
    fn write(&mut self) -> Result<(), DatasetError> {
        if !self.rows.is_empty() {
            self.tables.write(&mut self.rows, &mut self.file)?;
            self.rows.clear();
        }
        Ok(())
    }
}

/// Texts as numbers. Equal ones often follow each other.
fn numbers(texts: &mut Texts, values: impl Iterator<Item = Option<ByteArray>>) -> Vec<Option<u32>> {
    let mut last: Option<(ByteArray, u32)> = None;
    values
        .map(|value| {
            let value = value?;
            if let Some((_, number)) = last.as_ref().filter(|(text, _)| *text == value) {
                return Some(*number);
            }
            let number = texts.number(value.as_utf8().unwrap_or_default());
            last = Some((value, number));
            Some(number)
        })
        .collect()
}
