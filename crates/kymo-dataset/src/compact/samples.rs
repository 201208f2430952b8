//! Samples of a day and service, of all hosts.
use super::Compaction;
use crate::encode::TableFile;
use crate::error::DatasetError;
use crate::read::{RowGroup, TableReader};
use crate::samples::{
    BufferedSample, InternedEvent, InternedProcess, NO_LOCATION, SAMPLES_OF_GROUP, SampleTables, Texts,
};
use crate::schema::Table;
use parquet::data_type::ByteArray;
use std::sync::atomic::Ordering;

/// A file is put, and the next one begun, when it has so many bytes.
const BYTES_OF_FILE: usize = 256 << 20;

impl Compaction<'_> {
    pub(super) fn samples(&self, folder: &str, files: &[String]) -> Result<(), DatasetError> {
        let mut partition = Partition {
            of: self,
            folder,
            rows: Vec::new(),
            tables: SampleTables::default(),
            file: None,
            files: 0,
        };
        for file in files {
            let reader = TableReader::open(&self.next(file)?, Table::Samples)?;
            for group in 0..reader.group_count() {
                partition.add(&reader.group(group))?;
            }
        }
        partition.write()?;
        partition.put()
    }
}

/// The rows of a partition that no file has yet.
struct Partition<'a> {
    of: &'a Compaction<'a>,
    folder: &'a str,
    rows: Vec<BufferedSample>,
    tables: SampleTables,
    file: Option<TableFile>,
    files: u32,
}

impl Partition<'_> {
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
        self.of.rows.fetch_add(time.len() as u64, Ordering::Relaxed);
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
        if self.rows.is_empty() {
            return Ok(());
        }
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.of.file(Table::Samples, self.folder, self.files)?,
        };
        self.tables.write(&mut self.rows, &mut file)?;
        self.rows.clear();
        let is_full = file.bytes_written() >= BYTES_OF_FILE;
        self.file = Some(file);
        if is_full { self.put() } else { Ok(()) }
    }

    fn put(&mut self) -> Result<(), DatasetError> {
        self.files += 1;
        self.file.take().map_or(Ok(()), |file| self.of.put(Table::Samples, file))
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
