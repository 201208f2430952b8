//! A second opinion: the linux-perf-data crate reads the same recordings.

use crate::fixtures::{FILES, bytes, open, read};
use kymo_data::Sample;
use kymo_data::abi::PERF_RECORD_SAMPLE;
use linux_perf_data::linux_perf_event_reader::EventRecord;
use linux_perf_data::{PerfFileReader, PerfFileRecord};
use std::io::Cursor;

fn events_by_the_other(name: &str) -> Vec<(u32, u16, Vec<u8>)> {
    let mut out = Vec::new();
    let file = Cursor::new(bytes(name));
    let reader = if name.starts_with("pipe") {
        PerfFileReader::parse_pipe(file)
    } else {
        PerfFileReader::parse_file(file)
    };
    let PerfFileReader { mut perf_file, mut record_iter } = reader.expect("parses");
    while let Some(record) = record_iter.next_record(&mut perf_file).expect("reads") {
        if let PerfFileRecord::EventRecord { record, .. } = record {
            out.push((record.record_type.0, record.misc, record.data.as_slice().into_owned()));
        }
    }
    out.sort();
    out
}

/// Checks that both libraries find the same kernel records, byte for byte, in every recording.
#[test]
fn same_records() {
    // The other library does not know that tracing data follows its record in a pipe, and finds
    // nothing behind it.
    for name in FILES.into_iter().filter(|name| *name != "pipe-tracepoint.data") {
        let mut ours: Vec<_> = read(&open(name), 2).0.into_iter().map(|(_, record)| record).collect();
        ours.retain(|record| record.0 < 64);
        ours.sort();
        let theirs = events_by_the_other(name);
        assert_eq!(ours.len(), theirs.len(), "{name}");
        assert!(ours == theirs, "{name}");
    }
}

/// Checks that both libraries read the same fields of samples.
#[test]
fn same_samples() {
    for name in FILES.into_iter().filter(|name| !name.starts_with("pipe") && *name != "threads.dir/data") {
        let recording = open(name);
        let PerfFileReader { mut perf_file, mut record_iter } =
            PerfFileReader::parse_file(Cursor::new(bytes(name))).expect("parses");
        let mut compared = 0;
        while let Some(record) = record_iter.next_record(&mut perf_file).expect("reads") {
            let PerfFileRecord::EventRecord { attr_index, record } = record else { continue };
            let Ok(EventRecord::Sample(theirs)) = record.parse() else { continue };
            assert_eq!(record.record_type.0, PERF_RECORD_SAMPLE);
            let body = record.data.as_slice();
            let ours = recording.events.list[attr_index].layout.parse(record.misc, &body).expect("parses");
            let Sample { ip, pid, tid, time, addr, id, stream_id, cpu, period, .. } = ours;
            let common = (theirs.ip, theirs.pid, theirs.tid, theirs.timestamp, theirs.addr);
            assert_eq!((ip, pid, tid, time, addr), common, "{name}");
            let common = (theirs.id, theirs.stream_id, theirs.cpu, theirs.period);
            assert_eq!((id, stream_id, cpu, period), common, "{name}");
            let their_chain =
                theirs.callchain.map(|c| (0..c.len()).filter_map(|i| c.get(i)).collect::<Vec<_>>());
            assert_eq!(ours.callchain.map(|chain| chain.iter().collect()), their_chain, "{name}");
            let their_raw = theirs.raw.map(|raw| raw.as_slice().into_owned());
            assert_eq!(ours.raw.map(<[u8]>::to_vec), their_raw, "{name}");
            if let (Some(ours), Some((theirs, dynamic))) = (ours.user_stack, theirs.user_stack) {
                assert_eq!(ours, &theirs.as_slice()[..dynamic as usize], "{name}");
            }
            if let (Some(ours), Some(theirs)) = (ours.user_regs, theirs.user_regs) {
                for register in 0..24 {
                    let their_value = theirs.get(register.into());
                    assert_eq!(ours.get(register), their_value, "{name}, register {register}");
                }
            }
            compared += 1;
        }
        assert!(compared > 1, "{name}");
    }
}
