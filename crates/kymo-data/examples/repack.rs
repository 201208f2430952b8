//! Copies a recording record by record, compressed if asked:
//! `... --example repack -- IN OUT [LEVEL]`.
//!
//! What perf says about OUT and IN has to be the same; a pipe or a directory becomes one plain
//! file.

use kymo_data::{Compressor, EventSpec, Features, FileWriter, RecordHeader, Recording, abi};
use std::error::Error;
use std::fs::File;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, rest @ ..] = args.as_slice() else {
        return Err("usage: repack IN OUT [LEVEL]".into());
    };
    let mut compressor =
        rest.first().map(|level| level.parse()).transpose()?.map(Compressor::new).transpose()?;
    let recording = Recording::open(Arc::new(File::open(input)?), Vec::new())?;
    let specs: Vec<EventSpec> = recording
        .events
        .list
        .iter()
        .map(|e| EventSpec { attr: e.attr.clone(), ids: e.ids.clone(), name: e.name.clone() })
        .collect();
    let writer = FileWriter::create(File::create(output)?, &specs)?;
    let (mut pending, mut packed) = (Vec::new(), Vec::new());
    let mut flush = |pending: &mut Vec<u8>| -> Result<(), Box<dyn Error>> {
        if let Some(compressor) = &mut compressor {
            compressor.compress(pending, &mut packed)?;
            writer.append(&packed)?;
            packed.clear();
        } else {
            writer.append(pending)?;
        }
        pending.clear();
        Ok(())
    };
    let mut records = recording.records();
    while let Some(record) = records.next_record()? {
        let RecordHeader { kind, .. } = record.header;
        // In a file these are sections.
        if matches!(
            kind,
            abi::PERF_RECORD_HEADER_ATTR
                | abi::PERF_RECORD_HEADER_FEATURE
                | abi::PERF_RECORD_HEADER_TRACING_DATA
        ) {
            continue;
        }
        pending.extend_from_slice(&record.header.to_bytes());
        pending.extend_from_slice(record.body);
        if pending.len() > 400_000 {
            flush(&mut pending)?;
        }
    }
    flush(&mut pending)?;
    for problem in records.problems() {
        eprintln!("{input}: {problem}");
    }
    let info = compressor.as_ref().map(Compressor::info);
    writer.finish(&Features { compressed: info, ..recording.features.clone() })?;
    Ok(())
}
