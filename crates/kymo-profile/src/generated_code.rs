//! Names of generated code: from marks in the recording.
//!
//! The timeline needs to know when an address changes its name, so these are read before it is
//! built.
use crate::timeline::{Moment, SideEvent};
use kymo_data::{CodeNames, RawRecord};
use kymo_symbols::{CodeMap, CodeMapBuilder, SymbolOptions};
use rustc_hash::FxHashMap;

/// The generated code of each process that the recording tells of.
pub(crate) type CodeMaps = FxHashMap<i32, CodeMap>;

/// What the first pass finds about generated code.
#[derive(Debug, Default)]
pub(crate) struct CodeRecords {
    /// Marks with names, as they are in the file, by position.
    names: Vec<(u64, i32, Vec<u8>)>,
}

impl CodeRecords {
    /// Keeps a record if it tells of generated code.
    pub(crate) fn take(&mut self, record: &RawRecord<'_>) {
        if let Some(pid) = CodeNames::pid_of(record) {
            self.names.push((record.position, pid, record.body.to_vec()));
        }
    }

    /// Adds what another worker found.
    pub(crate) fn absorb(&mut self, other: CodeRecords) {
        self.names.extend(other.names);
    }

    /// Reads it all; the moments at which names change join the events.
    pub(crate) fn finish(
        mut self,
        events: &mut Vec<(Moment, SideEvent)>,
        options: &SymbolOptions,
    ) -> CodeMaps {
        self.names.sort_unstable_by_key(|(position, ..)| *position);
        let mut builders: FxHashMap<i32, CodeMapBuilder> = FxHashMap::default();
        for (position, pid, body) in &self.names {
            let Some(names) = CodeNames::parse(&whole(*position, body)) else { continue };
            let builder = builders.entry(*pid).or_insert_with(|| CodeMapBuilder::new(&options.budget));
            builder.add_lines(&names.text, names.from_ns, names.until_ns);
        }
        let maps: CodeMaps = builders.into_iter().map(|(pid, builder)| (pid, builder.finish())).collect();
        for (&pid, map) in &maps {
            let change = |&time_ns: &u64| (Moment { time_ns, position: 0 }, SideEvent::CodeChange { pid });
            events.extend(map.changes().iter().map(change));
        }
        maps
    }
}

/// The record whose body was kept.
fn whole(position: u64, body: &[u8]) -> RawRecord<'_> {
    let header = kymo_data::RecordHeader {
        kind: kymo_data::abi::PERF_RECORD_HEADER_EVENT_TYPE,
        misc: 0,
        size: (body.len() + kymo_data::RECORD_HEADER_BYTES) as u16,
    };
    RawRecord { header, body, position }
}
