//! Reads whatever there is to read: shared by the tests on damaged bytes, the replay of the corpus
//! and the fuzz target.

use kymo_data::print_format::{NoKernelNames, PrintFormat};
use kymo_data::{Recording, jitdump, tracing_data};
use std::sync::Arc;

/// Reads `bytes` as every format that there is.
pub(crate) fn all_formats(bytes: &[u8]) {
    if let Ok(recording) = Recording::open(Arc::new(bytes.to_vec()), Vec::new()) {
        exhaust(&recording);
        let count = |count: &mut u64, chunk: &kymo_data::Chunk| *count += chunk.records().count() as u64;
        let first = recording.read_parallel(1, || 0, count, &|_, _| {}).expect("memory can be read");
        let second = recording.read_parallel(1, || 0, count, &|_, _| {}).expect("memory can be read");
        assert_eq!(first, second, "a second reading is as the first");
        assert_eq!(first.0[0], first.1.records);
        // Whatever was understood can be written.
        for bit in recording.features.bits() {
            let _ = recording.features.section(bit);
        }
    }
    // As the part of a directory, too: records from the first byte on.
    let part: Arc<dyn kymo_data::ReadAt> = Arc::new(bytes.to_vec());
    let attr = kymo_data::build::header_attr(&kymo_data::Attr::default(), &[]);
    let main = [b"PERFILE2".as_slice(), &16u64.to_le_bytes(), &attr].concat();
    let recording =
        Recording::open(Arc::new(main), vec![("part".to_owned(), part)]).expect("a good main file");
    exhaust(&recording);
    if let Ok((_, records)) = jitdump::parse(bytes) {
        let _ = records.count();
    }
    print_format(bytes);
    if let Ok(data) = tracing_data::parse(bytes) {
        for format in &data.formats {
            let _ = format.print_fields(bytes);
        }
    }
}

/// Reads the text before the first zero byte as the format of a tracepoint, and prints what follows
/// it by that.
pub(crate) fn print_format(bytes: &[u8]) {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let (text, rest) = bytes.split_at(end);
    let Some(format) = tracing_data::Format::parse("any", text) else { return };
    let _ = format.print_fields(rest);
    if let Ok(print) = PrintFormat::parse(&format) {
        assert!(print.print(&format, rest, &NoKernelNames).len() <= 64 << 10);
    }
}

/// Reads and parses everything in a recording.
pub(crate) fn exhaust(recording: &Recording) {
    let mut reader = recording.records();
    while let Ok(Some(record)) = reader.next_record() {
        let _ = record.parse();
        let _ = recording.events.sample_id(&record);
        if let Some(event) = recording.events.event_of(&record).and_then(|at| recording.events.list.get(at))
            && let Ok(sample) = event.layout.parse_record(&record)
        {
            let _ = sample.read.map(|read| read.counters().count());
            let _ = sample.user_regs.map(|regs| (0..64).filter_map(|n| regs.get(n)).count());
        }
    }
    for problem in recording.problems.iter().chain(reader.problems()) {
        let _ = problem.to_string();
    }
    if let Some(blob) = &recording.features.tracing_data {
        let _ = tracing_data::parse(blob);
    }
}
