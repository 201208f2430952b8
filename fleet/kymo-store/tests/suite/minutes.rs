//! What daemons write each minute, and what readers count.
use std::collections::BTreeMap;

use kymo_dataset::rows::ON_CPU;
use kymo_dataset::{
    DatasetError, DatasetFile, DatasetStore, DatasetWriter, EventRow, FrameKind, FrameRow, HostRow,
    LocationRow, ProcessRow, SampleValue, Table, TableReader, live_files,
};

/// 2026-11-26 23:50 UTC: the minutes are of two days.
const START_NS: i64 = 1_795_737_000_000_000_000;
const MINUTE_NS: i64 = 60_000_000_000;
/// Services of a host.
pub(crate) const SERVICES: [&str; 3] = ["web", "db", "cache"];

/// Values by host and minute (µs since 1970).
pub(crate) type Sums = BTreeMap<(i64, i64), i64>;

/// The files of a minute of a host, those with samples last.
pub(crate) fn files(host: u32, minute: i64) -> Vec<DatasetFile> {
    let start_ns = START_NS + minute * MINUTE_NS;
    let row =
        HostRow { host: format!("host-{host}"), cpus: 2, first_seen_ns: start_ns, ..HostRow::default() };
    let mut writer = DatasetWriter::new(row, start_ns, 0);
    let event = EventRow { event: "cpu-clock", value_unit: "ns", state: ON_CPU, waker: None };
    let event = writer.event(&event);
    for (pid, command) in (1..).zip(SERVICES) {
        let frames = [FrameRow { function: Some("main"), file: None, line: None }];
        let (build_id, kind) = (Some("ab"), FrameKind::User);
        let location = LocationRow { module: command, build_id, address: 16, kind, frames: &frames };
        let location = writer.location(&location);
        let stack = writer.stack(&[location]);
        let process = writer.process(&ProcessRow { pid, command, ..ProcessRow::default() });
        let value = SampleValue { time_ns: start_ns, value: value(host, minute, pid), samples: 1 };
        writer.sample(process, event, stack, value).expect("a sample");
    }
    writer.finish().expect("files")
}

fn value(host: u32, minute: i64, pid: i32) -> i64 {
    1_000_000 + minute * 1000 + i64::from(host) * 10 + i64::from(pid)
}

/// What those files count.
pub(crate) fn sums(host: u32, minute: i64) -> ((i64, i64), i64) {
    let all = (1..).zip(SERVICES).map(|(pid, _)| value(host, minute, pid)).sum();
    let host_id = kymo_dataset::ids::host(&format!("host-{host}"));
    ((host_id, (START_NS + minute * MINUTE_NS) / 1000), all)
}

/// What a reader counts.
///
/// # Errors
/// Also for a file that went away while it read.
pub(crate) fn read(store: &dyn DatasetStore) -> Result<Sums, DatasetError> {
    let mut sums = Sums::new();
    for file in live_files(store, Table::Samples)? {
        let bytes = store.read(&file.path, 0..file.bytes)?;
        let reader = TableReader::of_bytes(&file.path, bytes, Table::Samples)?;
        let of = |column: &str| reader.required(column, reader.int64(column)?);
        let (hosts, times, values) = (of("host_id")?, of("time")?, of("value")?);
        for ((host, time), value) in hosts.into_iter().zip(times).zip(values) {
            *sums.entry((host, time)).or_default() += value;
        }
    }
    Ok(sums)
}
