//! `-o`: the accesses as a perf.data file. The kernel's samples are of one event for all watchpoints; in the file each is of its own watchpoint.
use super::place::Place;
use anyhow::bail;
use kymo_data::abi::{ATTR_FLAG_SAMPLE_ID_ALL, PERF_RECORD_FORK, PERF_RECORD_LOST, PERF_RECORD_SAMPLE};
use kymo_data::{Attr, EventSpec, RecordCursor, RecordHeader, SampleLayout};
use kymo_perf::bpf::{FollowedBitmap, WatchSample};
use kymo_perf::sys::Perf;
use kymo_perf::watch::Schedule;
use kymo_record::StandaloneWriter;
use rustc_hash::FxHashMap;
use std::path::Path;

/// The id of what tells of names and mappings; watchpoints have those behind it.
const TRACKING: u64 = 1;
/// Where a sample has its event's id and the data's address: the first and the fifth word behind the header.
const ID_AT: usize = 8;
const ADDRESS_AT: usize = 8 + 4 * 8;
/// Where it has how many accesses it stands for: the seventh.
const PERIOD_AT: usize = 8 + 6 * 8;

/// A recording in the making.
pub struct Recording {
    writer: StandaloneWriter,
    layout: SampleLayout,
    ever: Option<FollowedBitmap>,
    ids: FxHashMap<u64, u64>,
    copy: Vec<u8>,
}

impl Recording {
    /// Makes the file, with what the processes are now.
    pub fn create(
        path: &Path,
        layout: &Attr,
        schedule: &Schedule,
        places: &[Place],
        pids: &[i32],
        ever: Option<FollowedBitmap>,
    ) -> anyhow::Result<Recording> {
        let mut specs = vec![EventSpec {
            attr: Attr {
                kind: Perf::SOFTWARE,
                config: Perf::SW_DUMMY,
                sample_period: 1,
                flags: layout.flags | ATTR_FLAG_SAMPLE_ID_ALL,
                ..layout.clone()
            },
            ids: vec![TRACKING],
            name: "dummy:u".to_owned(),
        }];
        let mut ids = FxHashMap::default();
        for (index, register) in schedule.registers.iter().enumerate() {
            let id = TRACKING + 1 + index as u64;
            ids.insert(register.piece.address, id);
            let served = register.ranges.iter().filter_map(|&place| places.get(place));
            let names: Vec<&str> = served.map(|place| place.expression.as_str()).collect();
            let attr = Attr {
                kind: Perf::BREAKPOINT,
                bp_type: register.piece.kind.bits(),
                config1: register.piece.address,
                config2: register.piece.bytes,
                ..specs[0].attr.clone()
            };
            let name = format!("mem:{}/{}:{}", names.join("|"), register.piece.bytes, register.piece.kind);
            specs.push(EventSpec { attr: Attr { config: 0, ..attr }, ids: vec![id], name });
        }
        let cmdline: Vec<String> =
            std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        let version = format!("kymo {}", env!("CARGO_PKG_VERSION"));
        let writer = StandaloneWriter::create(path, &specs, pids, &cmdline, &version)?;
        Ok(Recording { writer, layout: SampleLayout::new(layout), ever, ids, copy: Vec::new() })
    }

    /// Takes what was in a ring.
    pub fn records(&mut self, bytes: &[u8]) {
        self.copy.clear();
        for record in RecordCursor::new(bytes) {
            self.record(record.header, record.bytes);
        }
        let copy = std::mem::take(&mut self.copy);
        // The writer keeps the first failure until the end.
        let _ = self.writer.append(&copy);
        self.copy = copy;
    }

    fn record(&mut self, header: RecordHeader, record: &[u8]) {
        let at = self.copy.len();
        if header.kind == PERF_RECORD_SAMPLE {
            let Ok(sample) = self.layout.parse(header.misc, &record[8..]) else { return };
            let told = sample.raw.and_then(WatchSample::parse).map(|told| told.address);
            let address = told.or(sample.addr).unwrap_or(0);
            let Some(&id) = self.ids.get(&address) else { return };
            self.copy.extend_from_slice(record);
            self.copy[at + ID_AT..at + ID_AT + 8].copy_from_slice(&id.to_le_bytes());
            self.copy[at + ADDRESS_AT..at + ADDRESS_AT + 8].copy_from_slice(&address.to_le_bytes());
            self.copy[at + PERIOD_AT..at + PERIOD_AT + 8].copy_from_slice(&1u64.to_le_bytes());
            return;
        }
        let pid = |from: usize| {
            record.get(from..from + 4).and_then(|bytes| bytes.try_into().ok()).map_or(-1, i32::from_le_bytes)
        };
        let wanted = self.ever.as_ref().is_none_or(|ever| {
            header.kind == PERF_RECORD_LOST
                || ever.contains(pid(8))
                || header.kind == PERF_RECORD_FORK && ever.contains(pid(12))
        });
        if wanted && record.len() >= 16 {
            self.copy.extend_from_slice(record);
            let end = self.copy.len();
            self.copy[end - 8..].copy_from_slice(&TRACKING.to_le_bytes());
        }
    }

    /// All rings were read.
    pub fn round(&mut self) {
        let _ = self.writer.round();
    }

    /// Completes the file; how many bytes it has.
    pub fn finish(self, path: &Path) -> anyhow::Result<u64> {
        let end = self.writer.finish();
        let Some((error, lost)) = end.failed else { return Ok(end.bytes) };
        bail!(
            "failed to write {} {error}; what came before is complete: it has {} samples, and the last {lost} are missing; {}",
            path.display(),
            end.samples,
            error.advice()
        );
    }
}
