//! From rows to the files of one writing.
use crate::encode::TableFile;
use crate::error::DatasetError;
use crate::ids;
use crate::rows::{BuildRow, EventRow, FrameKind, HostRow, LocationRow, ProcessRow, SampleValue};
use crate::samples::{
    BufferedSample, InternedEvent, InternedProcess, NO_LOCATION, SAMPLES_OF_GROUP, SampleTables, Texts,
};
use crate::schema::{Day, FileStem, Table, file_path, safe_service};
use parquet::data_type::ByteArray;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Rows of stacks and frames in a row group.
const SIDE_ROWS_OF_GROUP: usize = 4 << 20;

/// A location that a writer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocationNumber(u32);

/// A stack that a writer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackNumber(u32);

/// A process or thread that a writer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessNumber(u32);

/// An event, state and waker that a writer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventNumber(u32);

/// A whole Parquet file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetFile {
    /// Its table.
    pub table: Table,
    /// Its path below the dataset, with `/` between the names: also the end of an object's key.
    pub path: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// Makes the files of one writing: those of a recording, or of some minutes of a daemon.
///
/// ```
/// use kymo_dataset::{DatasetWriter, EventRow, FrameKind, FrameRow, HostRow, LocationRow};
/// use kymo_dataset::{ProcessRow, SampleValue, rows::ON_CPU};
///
/// # fn main() -> Result<(), kymo_dataset::DatasetError> {
/// let start_ns = 1_795_737_600_000_000_000;
/// let host = HostRow { host: "web-1".into(), ..HostRow::default() };
/// let mut writer = DatasetWriter::new(host, start_ns, 0);
/// let main = writer.location(&LocationRow {
///     module: "server",
///     build_id: Some("ab12"),
///     address: 0x1040,
///     kind: FrameKind::User,
///     frames: &[FrameRow { function: Some("main"), ..FrameRow::default() }],
/// });
/// let stack = writer.stack(&[main]);
/// let thread = ProcessRow { pid: 7, command: "server", ..ProcessRow::default() };
/// let process = writer.process(&thread);
/// let event = writer.event(&EventRow {
///     event: "cpu-clock",
///     value_unit: "ns",
///     state: ON_CPU,
///     waker: None,
/// });
/// let value = SampleValue { time_ns: start_ns, value: 50_000, samples: 3 };
/// writer.sample(process, event, stack, value)?;
/// for file in writer.finish()? {
///     println!("{}: {} bytes", file.path, file.bytes.len());
/// }
/// # Ok(())
/// # }
/// ```
pub struct DatasetWriter {
    host: HostRow,
    stem: FileStem,
    builds: BTreeMap<String, BuildRow>,
    texts: Texts,
    locations: InternedLocations,
    stacks: InternedStacks,
    samples: SampleTables,
    /// By process its service, among the texts.
    services: Vec<u32>,
    partitions: BTreeMap<(Day, u32), Partition>,
    /// By day the stacks that it has samples of.
    days: BTreeMap<Day, Vec<bool>>,
}

#[derive(Default)]
struct InternedLocations {
    numbers: FxHashMap<i64, u32>,
    ids: Vec<i64>,
    /// Rows of the table, those of a location together.
    frames: Vec<InternedFrame>,
}

/// Texts are numbers.
struct InternedFrame {
    location_id: i64,
    inline_depth: i32,
    function: Option<u32>,
    file: Option<u32>,
    line: Option<i32>,
    module: u32,
    build_id: Option<u32>,
    address: i64,
    kind: FrameKind,
}

#[derive(Default)]
struct InternedStacks {
    numbers: FxHashMap<i64, u32>,
    ids: Vec<i64>,
    /// Numbers of locations, innermost first.
    locations: Vec<u32>,
    /// Where each stack's locations end.
    ends: Vec<usize>,
}

impl InternedStacks {
    fn get(&self, stack: usize) -> &[u32] {
        let begin = stack.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.locations[begin..self.ends[stack]]
    }
}

/// The samples of a day and service.
#[derive(Default)]
struct Partition {
    rows: Vec<BufferedSample>,
    file: Option<TableFile>,
}

impl DatasetWriter {
    /// A writer without rows. `start_ns`: when they begin, nanoseconds since 1970; with `sequence`
    /// it tells the files from others of the host.
    pub fn new(host: HostRow, start_ns: i64, sequence: u32) -> DatasetWriter {
        let identity = host.host.clone();
        DatasetWriter::of_identity(host, &identity, start_ns, sequence)
    }

    /// The same for a host whose name others may have, too: `identity` tells it from all others,
    /// and only its hash is written.
    pub fn of_identity(host: HostRow, identity: &str, start_ns: i64, sequence: u32) -> DatasetWriter {
        let stem = FileStem { host_id: ids::host(identity), start_ns, sequence };
        DatasetWriter {
            host,
            stem,
            builds: BTreeMap::new(),
            texts: Texts::default(),
            locations: InternedLocations::default(),
            stacks: InternedStacks::default(),
            samples: SampleTables::default(),
            services: Vec::new(),
            partitions: BTreeMap::new(),
            days: BTreeMap::new(),
        }
    }

    /// What the names of its files have in common.
    pub fn stem(&self) -> FileStem {
        self.stem
    }

    /// Adds a file with code; one of the same build id is kept as it is.
    pub fn build(&mut self, build: BuildRow) {
        self.builds.entry(build.build_id.clone()).or_insert(build);
    }

    /// Adds a location. The same one has the same number.
    pub fn location(&mut self, location: &LocationRow<'_>) -> LocationNumber {
        let id = ids::location(self.stem.host_id, location);
        let next = self.locations.ids.len() as u32;
        let number = *self.locations.numbers.entry(id).or_insert(next);
        if number == next {
            self.locations.ids.push(id);
            let module = self.texts.number(location.module);
            let build_id = location.build_id.map(|id| self.texts.number(id));
            for (frame, inline_depth) in location.frames.iter().zip(0..) {
                self.locations.frames.push(InternedFrame {
                    location_id: id,
                    inline_depth,
                    function: frame.function.map(|name| self.texts.number(name)),
                    file: frame.file.map(|name| self.texts.number(name)),
                    line: frame.line,
                    module,
                    build_id,
                    address: location.address,
                    kind: location.kind,
                });
            }
        }
        LocationNumber(number)
    }

    /// Adds a stack of locations, innermost first. The same one has the same number.
    pub fn stack(&mut self, locations: &[LocationNumber]) -> StackNumber {
        let of_number = |location: &LocationNumber| self.locations.ids[location.0 as usize];
        let id = ids::stack(locations.iter().map(of_number));
        let stacks = &mut self.stacks;
        let next = stacks.ids.len() as u32;
        let number = *stacks.numbers.entry(id).or_insert(next);
        if number == next {
            stacks.ids.push(id);
            stacks.locations.extend(locations.iter().map(|location| location.0));
            stacks.ends.push(stacks.locations.len());
        }
        StackNumber(number)
    }

    /// Adds a process or thread. The same one has the same number.
    pub fn process(&mut self, process: &ProcessRow<'_>) -> ProcessNumber {
        let service = self.texts.number(&safe_service(process.service_name()));
        let texts = &mut self.samples.texts;
        let interned = InternedProcess {
            host_id: self.stem.host_id,
            pid: process.pid,
            tid: process.tid,
            command: texts.number(process.command),
            container: process.container.map(|name| texts.number(name)),
            pod: process.pod.map(|name| texts.number(name)),
            systemd_unit: process.systemd_unit.map(|name| texts.number(name)),
            service,
        };
        let number = self.samples.process(interned);
        if number as usize == self.services.len() {
            self.services.push(service);
        }
        ProcessNumber(number)
    }

    /// Adds an event in a state, with who ended it. The same one has the same number.
    pub fn event(&mut self, event: &EventRow<'_>) -> EventNumber {
        let texts = &mut self.samples.texts;
        let interned = InternedEvent {
            event: texts.number(event.event),
            value_unit: texts.number(event.value_unit),
            state: texts.number(event.state),
            waker: event.waker.map(|name| texts.number(name)),
        };
        EventNumber(self.samples.event(interned))
    }

    /// Adds a sample, or a sum of some.
    ///
    /// # Errors
    /// Those of the Parquet library, where a million rows have become a row group.
    pub fn sample(
        &mut self,
        process: ProcessNumber,
        event: EventNumber,
        stack: StackNumber,
        value: SampleValue,
    ) -> Result<(), DatasetError> {
        let day = Day::of_ns(value.time_ns);
        let used = self.days.entry(day).or_default();
        if used.len() <= stack.0 as usize {
            used.resize(self.stacks.ids.len(), false);
        }
        used[stack.0 as usize] = true;
        let key = (day, self.services[process.0 as usize]);
        let leaf = self.stacks.get(stack.0 as usize).first();
        let partition = self.partitions.entry(key).or_default();
        partition.rows.push(BufferedSample {
            event: event.0,
            process: process.0,
            time_us: value.time_ns.div_euclid(1000),
            stack_id: self.stacks.ids[stack.0 as usize],
            leaf_location_id: leaf.map_or(NO_LOCATION, |leaf| self.locations.ids[*leaf as usize]),
            value: value.value,
            samples: value.samples,
        });
        if partition.rows.len() >= SAMPLES_OF_GROUP { self.write_samples(key) } else { Ok(()) }
    }

    /// The files, in the order in which they are to be put: what samples name comes before them.
    ///
    /// # Errors
    /// Those of the Parquet library.
    pub fn finish(mut self) -> Result<Vec<DatasetFile>, DatasetError> {
        let mut files = vec![self.hosts_file()?, self.builds_file()?, self.frames_file()?];
        for (day, used) in std::mem::take(&mut self.days) {
            files.push(self.stacks_file(day, &used)?);
        }
        let keys: Vec<(Day, u32)> = self.partitions.keys().copied().collect();
        for key in keys {
            self.write_samples(key)?;
        }
        for file in std::mem::take(&mut self.partitions).into_values().filter_map(|partition| partition.file)
        {
            files.push(finished(Table::Samples, file)?);
        }
        Ok(files)
    }

    /// A file for about so many rows.
    fn table_file(&self, table: Table, partitions: &[&str], rows: usize) -> Result<TableFile, DatasetError> {
        TableFile::new(table, &self.host.host, file_path(table, partitions, &self.stem), rows)
    }

    /// Makes a row group of the rows of a partition.
    fn write_samples(&mut self, key: (Day, u32)) -> Result<(), DatasetError> {
        let Some(mut partition) = self.partitions.remove(&key) else { return Ok(()) };
        let mut rows = std::mem::take(&mut partition.rows);
        if !rows.is_empty() {
            let mut file = match partition.file.take() {
                Some(file) => file,
                None => {
                    let service = self.texts.get(key.1);
                    let service = service.as_utf8().unwrap_or_default();
                    self.table_file(Table::Samples, &[&key.0.to_string(), service], rows.len())?
                }
            };
            self.samples.write(&mut rows, &mut file)?;
            partition.file = Some(file);
        }
        self.partitions.insert(key, partition);
        Ok(())
    }

    /// The stacks that a day has samples of; those that share their outer frames are neighbours.
    fn stacks_file(&self, day: Day, used: &[bool]) -> Result<DatasetFile, DatasetError> {
        let stacks = &self.stacks;
        let mut order: Vec<usize> = (0..used.len()).filter(|at| used[*at]).collect();
        order.sort_by(|a, b| stacks.get(*a).iter().rev().cmp(stacks.get(*b).iter().rev()));
        let mut file = self.table_file(Table::Stacks, &[&day.to_string()], stacks.locations.len())?;
        let mut rest = &order[..];
        while !rest.is_empty() {
            let mut rows = 0;
            let fits = |at: &&usize| {
                rows += stacks.get(**at).len();
                rows <= SIDE_ROWS_OF_GROUP
            };
            let (now, later) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            rest = later;
            let of_rows =
                || now.iter().flat_map(|at| stacks.get(*at).iter().zip(0..).map(move |row| (*at, row)));
            file.row_group(|columns| {
                columns.int64(of_rows().map(|(at, _)| stacks.ids[at]));
                columns.int32(of_rows().map(|(_, (_, depth))| depth));
                columns.int64(of_rows().map(|(_, (location, _))| self.locations.ids[*location as usize]));
            })?;
        }
        finished(Table::Stacks, file)
    }

    fn frames_file(&mut self) -> Result<DatasetFile, DatasetError> {
        let mut file = self.table_file(Table::Frames, &[], self.locations.frames.len())?;
        let texts = &self.texts;
        let optional = |number: Option<u32>| number.map(|number| texts.get(number));
        // Code of one file, in its order. The sort is stable: inlined functions stay in theirs.
        self.locations.frames.sort_by_key(|frame| (frame.module, frame.address, frame.location_id));
        for rows in self.locations.frames.chunks(SIDE_ROWS_OF_GROUP) {
            file.row_group(|columns| {
                columns.int64(rows.iter().map(|row| row.location_id));
                columns.int32(rows.iter().map(|row| row.inline_depth));
                columns.optional_text(rows.iter().map(|row| optional(row.function)));
                columns.optional_text(rows.iter().map(|row| optional(row.file)));
                columns.optional_int32(rows.iter().map(|row| row.line));
                columns.text(rows.iter().map(|row| texts.get(row.module)));
                columns.optional_text(rows.iter().map(|row| optional(row.build_id)));
                columns.int64(rows.iter().map(|row| row.address));
                columns.text(rows.iter().map(|row| ByteArray::from(row.kind.name())));
            })?;
        }
        finished(Table::Frames, file)
    }

    fn builds_file(&self) -> Result<DatasetFile, DatasetError> {
        let mut file = self.table_file(Table::Builds, &[], self.builds.len())?;
        let rows = || self.builds.values();
        if !self.builds.is_empty() {
            file.row_group(|columns| {
                columns.text(rows().map(|row| ByteArray::from(row.build_id.as_str())));
                columns.text(rows().map(|row| ByteArray::from(row.path.as_str())));
                columns.text(rows().map(|row| ByteArray::from(row.module.as_str())));
                columns.text(rows().map(|row| ByteArray::from(row.arch.as_str())));
                columns.int64(rows().map(|row| row.first_seen_ns.div_euclid(1000)));
                columns.optional_int64(rows().map(|row| row.code_bias));
            })?;
        }
        finished(Table::Builds, file)
    }

    fn hosts_file(&self) -> Result<DatasetFile, DatasetError> {
        let mut file = self.table_file(Table::Hosts, &[], 1)?;
        let host = &self.host;
        let text = |text: &str| std::iter::once(ByteArray::from(text));
        file.row_group(|columns| {
            columns.int64(std::iter::once(self.stem.host_id));
            columns.text(text(&host.host));
            columns.text(text(&host.kernel));
            columns.text(text(&host.arch));
            columns.int32(std::iter::once(host.cpus));
            columns.double(std::iter::once(host.rate_hz));
            columns.text(text(&host.kymo_version));
            columns.int64(std::iter::once(host.first_seen_ns.div_euclid(1000)));
        })?;
        finished(Table::Hosts, file)
    }
}

fn finished(table: Table, file: TableFile) -> Result<DatasetFile, DatasetError> {
    let (path, bytes) = file.finish()?;
    Ok(DatasetFile { table, path, bytes })
}
