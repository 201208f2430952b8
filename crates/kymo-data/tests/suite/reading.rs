//! Reading real recordings: the same records in every way of reading, and what they say.

use crate::fixtures::{FILES, bytes, each_record, one_by_one, open, open_bytes, pipe_of, read, word};
use kymo_data::abi::*;
use kymo_data::{Compressor, Record, build, tracing_data};

/// Checks that one thread, several threads, a second reading and record by record deliver the same,
/// with positions that are unique and without problems.
#[test]
fn all_ways_of_reading_agree() {
    for name in FILES.into_iter().chain(["threads.dir"]) {
        let recording = open(name);
        assert!(recording.problems.is_empty(), "{name}: {:?}", recording.problems);
        let (one_by_one, problems) = one_by_one(&recording);
        assert!(problems.is_empty());
        assert!(one_by_one.len() > 5, "{name} has records");
        assert!(one_by_one.is_sorted_by(|a, b| a.0 < b.0), "{name}: positions increase");
        for threads in [3, 1, 2] {
            let (records, summary) = read(&recording, threads);
            assert_eq!(records, one_by_one, "{name} with {threads} threads");
            assert_eq!(summary.records as usize, records.len(), "{name}");
            assert_eq!(summary.bytes as usize, records.iter().map(|r| r.1.2.len() + 8).sum::<usize>());
            assert_eq!(summary.problems, [], "{name}");
        }
    }
}

/// Checks that every record of the recordings parses, every sample too, and that samples find their
/// events.
#[test]
fn everything_parses() {
    for name in FILES.into_iter().chain(["threads.dir"]) {
        let recording = open(name);
        let mut samples = 0;
        each_record(&recording, |record| {
            let parsed = record.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
            if parsed == Record::Sample {
                let event = recording.events.event_of(record).expect("an event has the id");
                let sample = recording.events.list[event].layout.parse_record(record).expect("parses");
                assert!(
                    sample.time.is_some() && sample.tid.is_some_and(|tid| tid >= 0),
                    "{name}: {sample:?}"
                );
                samples += 1;
            } else if !record.is_user_type() {
                let id = recording.events.sample_id(record);
                assert!(id.time.is_some(), "{name}: {parsed:?} has a trailer");
            }
        });
        assert!(samples > 1 || name == "threads.dir/data", "{name} has samples");
    }
}

/// Checks what the recordings tell about themselves: names, groups, fields of features.
#[test]
fn features_and_names() {
    let group = open("group.data");
    let names: Vec<_> = group.events.list.iter().map(|e| e.name.as_str()).collect();
    assert_eq!(names[..2], ["cpu-clock", "page-faults"]);
    assert_eq!((group.events.list[0].leader, group.events.list[1].leader), (0, 0));
    let features = &open("plain.data").features;
    assert_eq!(features.arch.as_deref(), Some("x86_64"));
    assert!(features.version.as_deref().is_some_and(|v| v.starts_with("6.1")));
    assert!(features.cmdline.contains(&"record".to_owned()));
    assert!(features.nr_cpus.is_some() && features.total_mem_kb.is_some());
    assert_eq!(
        features.cpu_topology.as_ref().map(|t| t.cpus.len()),
        features.nr_cpus.map(|n| n.available as usize)
    );
    assert!(features.sample_time.is_some_and(|(first, last)| first < last));
    assert!(open("compressed.data").features.compressed.is_some_and(|c| c.kind == 1 && c.mmap_len > 0));
    assert!(open("dwarf.data").features.build_ids.iter().any(|id| id.filename.ends_with(b"/spin")));
    let clock = open("clock.data").features;
    assert_eq!((clock.clockid_resolution_ns, clock.clock_data.map(|c| c.clockid)), (Some(1), Some(1)));
    assert_eq!(open("threads.dir").features.dir_format, Some(1));
    let pipe = open("pipe-tracepoint.data");
    assert!(pipe.is_pipe);
    assert_eq!(pipe.events.list[0].name, "sched:sched_process_exec");
    assert_eq!(pipe.features.arch.as_deref(), Some("x86_64"));
}

/// Checks that all sections of features are written as perf wrote them, byte for byte.
#[test]
fn features_round_trip() {
    for name in FILES.into_iter().filter(|name| !name.starts_with("pipe")) {
        let file = bytes(name);
        let features = open(name).features;
        let mut table = word(&file, 40) + word(&file, 48);
        let mut compared = 0;
        for bit in (0..256u32).filter(|bit| word(&file, 72 + *bit as usize / 64 * 8) >> (bit % 64) & 1 == 1) {
            let (at, len) = (word(&file, table), word(&file, table + 8));
            table += 16;
            let section = features.section(bit);
            if len == 0 && section.is_none() {
                continue; // A list without entries.
            }
            assert_eq!(section.as_deref(), Some(&file[at..at + len]), "{name}, feature {bit}");
            compared += 1;
        }
        assert!(compared > 10, "{name}");
    }
}

/// Checks that tracepoints name their fields and values, in a file and in a pipe.
#[test]
fn tracepoints_have_fields() {
    for name in ["tracepoint.data", "pipe-tracepoint.data"] {
        let recording = open(name);
        let blob = recording.features.tracing_data.as_deref().expect("tracing data");
        let formats = tracing_data::parse(blob).expect("parses");
        let mut lines = Vec::new();
        each_record(&recording, |record| {
            if record.header.kind != PERF_RECORD_SAMPLE {
                return;
            }
            let event = &recording.events.list[recording.events.event_of(record).expect("known id")];
            let sample = event.layout.parse_record(record).expect("parses");
            if let (Some(raw), Some(format)) = (sample.raw, formats.format(event.attr.config)) {
                assert_eq!(event.name, format!("{}:{}", format.system, format.name));
                lines.push(format!("{} {}", format.name, format.print_fields(raw)));
            }
        });
        let exec = lines.iter().find(|line| line.starts_with("sched_process_exec")).expect("an exec");
        assert!(exec.contains("filename=") && exec.contains(" pid="), "{exec}");
        assert!(exec.contains("/spin") || exec.contains("/true"), "{exec}");
    }
}

/// Checks that user stacks and registers are there in a dwarf recording, with as many bytes as
/// really were copied.
#[test]
fn stacks_and_registers() {
    let recording = open("dwarf.data");
    let mut seen = 0;
    each_record(&recording, |record| {
        if record.header.kind != PERF_RECORD_SAMPLE {
            return;
        }
        let sample = recording.events.list[0].layout.parse_record(record).expect("parses");
        let (Some(regs), Some(stack)) = (sample.user_regs, sample.user_stack) else { return };
        let (sp, ip) = (7, 8);
        assert!(regs.get(sp).is_some_and(|sp| sp > 0x7000_0000_0000), "the stack pointer on x86-64");
        assert!(regs.get(ip).is_some() && regs.get(63).is_none());
        assert!(!stack.is_empty() && stack.len() <= 1024);
        seen += 1;
    });
    assert!(seen > 2);
}

/// Checks that a recording whose recorder was killed (data size 0) is read to the end of the file,
/// with a problem.
#[test]
fn unfinished_recording() {
    let mut file = bytes("plain.data");
    let (whole, _) = read(&open("plain.data"), 1);
    let end = word(&file, 40) + word(&file, 48);
    file.truncate(end);
    file[48..56].fill(0);
    let recording = open_bytes(file.clone()).expect("opens");
    assert!(recording.problems[0].to_string().contains("did not finish"), "{:?}", recording.problems);
    let (records, summary) = read(&recording, 2);
    assert_eq!((records, summary.problems), (whole.clone(), vec![]));
    // And cut within its last record, which has to be longer than a header for that.
    let last = whole.iter().rposition(|(_, (_, _, body))| !body.is_empty()).expect("a long record");
    let (position, (_, _, body)) = &whole[last];
    file.truncate(*position as usize + 8 + body.len() - 3);
    let (records, summary) = read(&open_bytes(file).expect("opens"), 2);
    assert_eq!(records[..], whole[..last]);
    let said = summary.problems[0].to_string();
    assert!(said.contains("3 of its") && said.contains(&format!("at offset {position:#x}")), "{said}");
}

/// Checks that an empty data section of a finished recording is no damage.
#[test]
fn finished_without_records() {
    let file = bytes("plain.data");
    let (data, size) = (word(&file, 40), word(&file, 48));
    let mut empty = file[..data].to_vec();
    let mut tail = file[data + size..].to_vec();
    let bits: u32 = (72..104).step_by(8).map(|at| word(&file, at).count_ones()).sum();
    for entry in tail[..16 * bits as usize].chunks_exact_mut(16) {
        let at = word(entry, 0) - size;
        entry[..8].copy_from_slice(&at.to_le_bytes());
    }
    empty.extend_from_slice(&tail);
    empty[48..56].fill(0);
    let recording = open_bytes(empty).expect("opens");
    assert_eq!(recording.problems, []);
    assert_eq!(recording.features.arch.as_deref(), Some("x86_64"));
    assert_eq!(read(&recording, 1).0, []);
}

/// Checks that record types from a newer perf are delivered, and reported once per type.
#[test]
fn unknown_types_pass() {
    let mut file = bytes("pipe.data");
    let known = read(&open("pipe.data"), 1).0.len();
    for kind in [200u32, 40, 200] {
        file.extend_from_slice(&kind.to_le_bytes());
        file.extend_from_slice(&[0, 0, 16, 0]);
        file.extend_from_slice(&[0xff; 8]);
    }
    let recording = open_bytes(file).expect("opens");
    for _ in 0..2 {
        let (records, summary) = read(&recording, 1);
        assert_eq!(records.len(), known + 3);
        let said: Vec<_> = summary.problems.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("unknown (200)") && said[0].contains("2 records"), "{said:?}");
        assert!(said[1].contains("unknown (40)") && said[1].contains("1 record "), "{said:?}");
    }
}

/// Checks that AUX data behind its record is passed over, however much it is.
#[test]
fn aux_data_is_passed_over() {
    let mut file = bytes("pipe.data");
    let known = read(&open("pipe.data"), 1).0.len();
    for size in [40u64, 3 << 20] {
        file.extend_from_slice(&PERF_RECORD_AUXTRACE.to_le_bytes());
        file.extend_from_slice(&[0, 0, 48, 0]);
        file.extend_from_slice(&size.to_le_bytes());
        file.extend_from_slice(&[0; 32]);
        file.resize(file.len() + size as usize, 0xff);
    }
    file.extend_from_slice(&[68, 0, 0, 0, 0, 0, 8, 0]);
    let (records, summary) = read(&open_bytes(file.clone()).expect("opens"), 2);
    assert_eq!((records.len(), summary.problems), (known + 3, vec![]));
    file.truncate(file.len() - 20);
    let (records, summary) = read(&open_bytes(file).expect("opens"), 2);
    assert_eq!(records.len(), known + 2);
    assert!(summary.problems[0].what.contains("12 bytes of payload are missing"), "{:?}", summary.problems);
}

/// Checks that progress reaches the total, which it names from the start.
#[test]
fn progress_reaches_the_total() {
    for name in ["plain.data", "compressed.data"] {
        let recording = open(name);
        let seen = std::sync::Mutex::new(Vec::new());
        recording
            .read_parallel(1, || (), |(), _| {}, &|done, total| {
                seen.lock().expect("fine").push((done, total))
            })
            .expect("memory can be read");
        let seen = seen.into_inner().expect("fine");
        assert_eq!(seen.last(), Some(&(recording.data_bytes(), recording.data_bytes())), "{name}");
    }
}

/// Checks that a stream of many windows, with records across their borders, is read by several
/// threads as it is by one after the other, whatever is in the middle: nothing special, AUX data,
/// compressed records, damage, a cut.
#[test]
fn many_windows() {
    let main = pipe_of(PERF_SAMPLE_IP);
    let mut noise = 7u64;
    let mut below = |end: u64| {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (noise >> 33) % end
    };
    let mut records = |bytes: usize, odd: bool| {
        let mut out = Vec::new();
        while out.len() < bytes {
            // Mostly small ones, some as large as can be, some of nothing but a header.
            let size = match below(40) {
                0 => 65_535 - below(100),
                1..6 => 8,
                _ => 8 + below(400),
            };
            let size = if odd { size } else { size & !7 };
            out.extend_from_slice(&[9, 0, 0, 0, 2, 0]);
            out.extend_from_slice(&(size as u16).to_le_bytes());
            out.resize(out.len() + size as usize - 8, below(256) as u8);
        }
        out
    };
    for case in ["plain", "odd sizes", "AUX data", "compressed", "damage", "cut", "exactly one window"] {
        let mut part = records(5 << 20, case == "odd sizes");
        let mut middle = Vec::new();
        match case {
            "AUX data" => {
                middle = [&PERF_RECORD_AUXTRACE.to_le_bytes()[..], &[0, 0, 48, 0]].concat();
                middle.extend_from_slice(&(3u64 << 20).to_le_bytes());
                middle.resize(48 + (3 << 20), 0xff);
            }
            "compressed" => {
                let mut compressor = Compressor::new(1).expect("zstd works");
                compressor.compress(&records(3 << 20, false), &mut middle).expect("compresses");
            }
            "damage" => middle = vec![9, 0, 0, 0, 0, 0, 5, 0],
            "exactly one window" => {
                part.clear();
                part.resize(1 << 20, 0);
                part.chunks_exact_mut(64)
                    .for_each(|record| record[..8].copy_from_slice(&[9, 0, 0, 0, 0, 0, 64, 0]));
            }
            _ => {}
        }
        part.extend_from_slice(&middle);
        if case != "exactly one window" {
            part.extend_from_slice(&records(3 << 20, false));
        }
        if case == "cut" {
            part.extend_from_slice(&[9, 0, 0, 0, 0, 0, 80, 0, 1, 2, 3]);
        }
        let open = || {
            let parts: Vec<(String, std::sync::Arc<dyn kymo_data::ReadAt>)> =
                vec![("part".to_owned(), std::sync::Arc::new(part.clone()))];
            kymo_data::Recording::open(std::sync::Arc::new(main.clone()), parts).expect("opens")
        };
        let recording = open();
        let (want, problems) = one_by_one(&recording);
        assert!(want.len() > 2_000, "{case}");
        assert_eq!(problems.is_empty(), !["damage", "cut"].contains(&case), "{case}: {problems:?}");
        for threads in [1, 2, 5] {
            let recording = open();
            for pass in ["first", "second"] {
                let (records, summary) = read(&recording, threads);
                assert!(records == want, "{case}, {threads} threads, {pass} reading");
                assert_eq!(summary.problems, problems, "{case}, {threads} threads, {pass} reading");
                assert_eq!(summary.records, want.len() as u64, "{case}, {threads} threads, {pass} reading");
            }
        }
    }
}

/// Checks that tracing data which is made from the texts in perf's tracing data is perf's, byte for
/// byte.
#[test]
fn tracing_data_is_built_as_perf_does() {
    struct Blob<'a>(&'a [u8]);
    impl<'a> Blob<'a> {
        fn take(&mut self, len: usize) -> &'a [u8] {
            let (taken, rest) = self.0.split_at(len);
            self.0 = rest;
            taken
        }
        fn number(&mut self, bytes: usize) -> usize {
            self.take(bytes).iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
        }
        fn text(&mut self, size_bytes: usize) -> Vec<u8> {
            let len = self.number(size_bytes);
            self.take(len).to_vec()
        }
    }
    let original = open("tracepoint.data").features.tracing_data.expect("tracing data");
    let mut blob = Blob(&original);
    assert_eq!(blob.take(10 + 4 + 2), b"\x17\x08\x44tracing0.6\0\0\x08");
    let mut files = tracing_data::Files { page_size: blob.number(4) as u32, ..Default::default() };
    assert_eq!(blob.take(12), b"header_page\0");
    files.header_page = blob.text(8);
    assert_eq!(blob.take(13), b"header_event\0");
    files.header_event = blob.text(8);
    assert_eq!(blob.number(4), 0, "no ftrace events");
    for _ in 0..blob.number(4) {
        let len = blob.0.iter().position(|&byte| byte == 0).expect("a name");
        let name = String::from_utf8(blob.take(len).to_vec()).expect("text");
        blob.take(1);
        let events = (0..blob.number(4)).map(|_| blob.text(8)).collect();
        files.systems.push((name, events));
    }
    assert_eq!(files.systems.iter().map(|system| system.1.len()).sum::<usize>(), 3);
    files.kallsyms = blob.text(4);
    files.printk_formats = blob.text(4);
    files.saved_cmdlines = blob.text(8);
    assert_eq!(blob.0, b"", "nothing is left");
    assert!(files.to_blob() == original);
}

/// Checks that what the decoder still holds when a chunk is full is delivered, also when no
/// compressed record follows: records that compress well, several chunks of them in the last
/// compressed record.
#[test]
fn the_end_of_a_well_compressed_stream_is_delivered() {
    let count = 127; // A little more than a chunk.
    for first in 1..20 {
        let record = build::record(PERF_RECORD_SAMPLE, 0, &[0; 8432]);
        let mut file = pipe_of(PERF_SAMPLE_IP);
        let mut compressor = Compressor::new(1).expect("zstd works");
        for part in [first, count - first] {
            compressor.compress(&record.repeat(part), &mut file).expect("compresses");
        }
        let (back, summary) = read(&open_bytes(file).expect("opens"), 2);
        assert_eq!(summary.problems, [], "{first} records before the rest");
        assert_eq!(back.iter().filter(|record| record.1.0 == PERF_RECORD_SAMPLE).count(), count);
    }
}
