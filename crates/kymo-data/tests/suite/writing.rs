//! Writing: what is written reads back here and in perf, at every moment of the writing.

use crate::fixtures::{FILES, Owned, folder, kernel_names, open, open_bytes, read, run};
use kymo_data::abi::*;
use kymo_data::*;
use kymo_testing::perf;
use std::io;
use std::path::Path;
use std::sync::Mutex;

/// Memory that can be written at any offset, remembers every write, and is full at some point.
struct Memory {
    log: Mutex<Vec<(u64, Vec<u8>)>>,
    capacity: u64,
}

impl Memory {
    fn new(capacity: u64) -> Memory {
        Memory { log: Mutex::new(Vec::new()), capacity }
    }

    fn writes(&self) -> Vec<(u64, Vec<u8>)> {
        self.log.lock().expect("fine").clone()
    }
}

impl WriteAt for Memory {
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let room = self.capacity.saturating_sub(offset).min(buf.len() as u64) as usize;
        if room == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.log.lock().expect("fine").push((offset, buf[..room].to_vec()));
        Ok(room)
    }
}

fn apply(file: &mut Vec<u8>, write: &(u64, Vec<u8>)) {
    let (at, end) = (write.0 as usize, write.0 as usize + write.1.len());
    file.resize(file.len().max(end), 0);
    file[at..end].copy_from_slice(&write.1);
}

fn whole(record: &Owned) -> Vec<u8> {
    let header = RecordHeader { kind: record.0, misc: record.1, size: record.2.len() as u16 + 8 };
    [&header.to_bytes()[..], &record.2].concat()
}

fn specs(recording: &Recording) -> Vec<EventSpec> {
    let events = recording.events.list.iter();
    events.map(|e| EventSpec { attr: e.attr.clone(), ids: e.ids.clone(), name: e.name.clone() }).collect()
}

/// The records of a recording that belong into a file's data.
fn data_records(recording: &Recording) -> Vec<Owned> {
    let not_data = [PERF_RECORD_HEADER_ATTR, PERF_RECORD_HEADER_FEATURE, PERF_RECORD_HEADER_TRACING_DATA];
    let records = read(recording, 1).0.into_iter().map(|(_, record)| record);
    records.filter(|record| !not_data.contains(&record.0)).collect()
}

/// Everything that a recording says, with the compression taken off.
fn plain_features(recording: &Recording) -> Features {
    Features { compressed: None, dir_format: None, ..recording.features.clone() }
}

/// `perf script` that takes the kernel's names from a list.
fn perf_script(test: &str, kernel_names: &Path) -> Option<std::process::Command> {
    let mut command = perf(test)?;
    command.arg("script").arg("--kallsyms").arg(kernel_names).arg("-i");
    Some(command)
}

/// What perf says about a file; panics when it warns of something.
fn perf_says(test: &str, args: &[&str], file: &Path) -> Option<String> {
    let mut command = perf(test)?;
    command.args(args).arg("-i").arg(file);
    let (said, complaints) = run(command);
    // perf 6.1 misses tools such as addr2line on some machines; that is no word about the file.
    let complaints: Vec<_> = complaints.lines().filter(|line| !line.trim().is_empty()).collect();
    assert!(complaints.is_empty(), "perf {args:?} {}: {complaints:#?}", file.display());
    for word in ["WARNING", "Warning", "error"] {
        assert!(!said.contains(word), "perf {args:?} {}: {said}", file.display());
    }
    Some(said)
}

fn without_place_and_date(header: &str) -> Vec<&str> {
    let vary =
        ["# captured on", "# data offset", "# data size", "# feat offset", "# missing features", "# header"];
    header.lines().filter(|line| !vary.iter().any(|word| line.starts_with(word))).collect()
}

/// Checks that recordings which are read and written again are the same to perf: header,
/// statistics, every sample.
#[test]
fn perf_sees_the_same_in_a_rewritten_file() {
    let (folder_out, names) = (tempfile::tempdir().expect("a folder"), kernel_names());
    for name in FILES.into_iter().filter(|name| !name.starts_with("pipe") && *name != "threads.dir/data") {
        let recording = open(name);
        let path = folder_out.path().join(name);
        let file = std::fs::File::create(&path).expect("creates");
        let writer = FileWriter::create(file, &specs(&recording)).expect("writes");
        for record in data_records(&recording) {
            writer.append(&whole(&record)).expect("writes");
        }
        writer.publish().expect("writes");
        assert_eq!(writer.finish(&plain_features(&recording)).expect("writes"), 0);

        let again = open_bytes(std::fs::read(&path).expect("reads")).expect("opens");
        assert_eq!((&again.features, &again.problems), (&plain_features(&recording), &vec![]), "{name}");
        for (event, original) in again.events.list.iter().zip(&recording.events.list) {
            // The attr has the smallest size that holds it, whatever it had before.
            let mut event = event.clone();
            assert!(event.attr.size <= original.attr.size, "{name}");
            event.attr.size = original.attr.size;
            assert_eq!(&event, original, "{name}");
        }
        assert_eq!(data_records(&again), data_records(&recording), "{name}");

        let original = folder().join(name);
        let test = "writing::perf_sees_the_same_in_a_rewritten_file";
        let ask = |args: &[&str], file: &Path| perf_says(test, args, file);
        let Some(header) = ask(&["report", "--header-only"], &path) else { return };
        let theirs = ask(&["report", "--header-only"], &original).expect("perf is there");
        let compressed = name == "compressed.data";
        let theirs =
            without_place_and_date(&theirs).into_iter().filter(|line| !line.starts_with("# compressed"));
        assert_eq!(without_place_and_date(&header), theirs.collect::<Vec<_>>(), "{name}");
        let names = names.path().to_str().expect("a plain name");
        let fields = "comm,pid,tid,time,event,ip,sym,period";
        let script = &["script", "--kallsyms", names, "-F", fields, "--show-mmap-events"];
        assert_eq!(ask(script, &path), ask(script, &original), "{name}");
        if !compressed {
            let stats = &["report", "--stats"];
            assert_eq!(ask(stats, &path), ask(stats, &original), "{name}");
        }
    }
}

/// Checks that perf reads what the compressor makes, with the same samples as uncompressed.
#[test]
fn perf_reads_compressed() {
    let folder_out = tempfile::tempdir().expect("a folder");
    for name in ["dwarf.data", "switch.data"] {
        let recording = open(name);
        let records = data_records(&recording);
        let path = folder_out.path().join(name);
        let writer = FileWriter::create(std::fs::File::create(&path).expect("creates"), &specs(&recording))
            .expect("writes");
        let mut compressor = Compressor::new(1).expect("zstd works");
        // Many times the same, so that records cross the borders of compressed ones.
        let (mut packed, mut all) = (Vec::new(), Vec::new());
        for _ in 0..40 {
            for record in records.iter().filter(|record| record.0 < 64) {
                all.extend_from_slice(&whole(record));
            }
        }
        compressor.compress(&all, &mut packed).expect("compresses");
        packed.extend_from_slice(&build::finished_round());
        writer.append(&packed).expect("writes");
        let mut features = plain_features(&recording);
        features.compressed = Some(compressor.info());
        writer.finish(&features).expect("writes");
        let kernel = records.iter().filter(|record| record.0 < 64).count();
        let again = open_bytes(std::fs::read(&path).expect("reads")).expect("opens");
        assert_eq!(read(&again, 2).0.len(), 40 * kernel + 1, "{name}");
        let samples = 40 * records.iter().filter(|record| record.0 == PERF_RECORD_SAMPLE).count();
        let test = "writing::perf_reads_compressed";
        let Some(stats) = perf_says(test, &["report", "--stats"], &path) else { return };
        let line = stats.lines().find(|line| line.contains("SAMPLE events")).expect("a line");
        assert_eq!(line.split_whitespace().nth(2), Some(samples.to_string().as_str()), "{name}: {stats}");
    }
}

/// Checks that a rewritten pipe recording is the same to perf script, with names and tracepoint
/// fields.
#[test]
fn perf_reads_our_pipes() {
    let (test, names) = ("writing::perf_reads_our_pipes", kernel_names());
    for name in ["plain.data", "tracepoint.data", "group.data", "pipe-tracepoint.data"] {
        let recording = open(name);
        let mut writer =
            PipeWriter::create(Vec::new(), &specs(&recording), &plain_features(&recording)).expect("writes");
        for record in data_records(&recording) {
            writer.append(&whole(&record)).expect("writes");
        }
        let bytes = writer.finish().expect("writes");
        let again = open_bytes(bytes.clone()).expect("opens");
        assert!(again.is_pipe && again.problems.is_empty());
        let mut features = again.features.clone();
        // In a pipe the padding of tracing data is part of it.
        features.tracing_data.clone_from(&plain_features(&recording).tracing_data);
        assert_eq!(features, plain_features(&recording), "{name}");
        // The writer adds names and build IDs as records of its own.
        let kernel = |of: &Recording| data_records(of).into_iter().filter(|r| r.0 < 64).collect::<Vec<_>>();
        assert_eq!(kernel(&again), kernel(&recording), "{name}");
        let mut file = tempfile::tempfile().expect("a file");
        io::Write::write_all(&mut file, &bytes).expect("writes");
        io::Seek::rewind(&mut file).expect("seeks");
        let Some(mut command) = perf_script(test, names.path()) else { return };
        let output = command.arg("-").stdin(file).output().expect("perf runs");
        let Some(mut command) = perf_script(test, names.path()) else { return };
        if name.starts_with("pipe") {
            command.arg("-").stdin(std::fs::File::open(folder().join(name)).expect("opens"));
        } else {
            command.arg(folder().join(name));
        }
        let want = command.output().expect("perf runs");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{name}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&want.stdout), "{name}");
        assert!(want.stdout.len() > 200, "{name}");
    }
}

/// Checks that a pipe whose writer did not come to its end says so, wherever it ends, and that the
/// mark which tells it is not for copies.
#[test]
fn pipes_without_their_end() {
    let recording = open("plain.data");
    let pipe = || PipeWriter::create(Vec::new(), &specs(&recording), &Features::default()).expect("writes");
    let whole_pipe = |ends: bool| {
        let mut writer = pipe();
        let records = data_records(&recording);
        records.iter().for_each(|record| writer.append(&whole(record)).expect("writes"));
        let bytes = writer.finish().expect("writes");
        let end = bytes.len() - if ends { 0 } else { 80 };
        bytes[..end].to_vec()
    };
    let all = open_bytes(whole_pipe(true)).expect("opens");
    assert!(all.problems.is_empty() && !all.lacks_its_end(), "{:?}", all.problems);
    let mut marks = 0;
    let mut records = all.records();
    while let Some(record) = records.next_record().expect("a vector") {
        marks += u32::from(record.header.kind == PERF_RECORD_HEADER_EVENT_TYPE);
        assert!(!kymo_data::is_lasting_mark(&record));
    }
    assert_eq!(marks, 2);
    let cut = open_bytes(whole_pipe(false)).expect("opens");
    assert!(cut.lacks_its_end() && cut.problems[0].what.contains("did not finish"), "{:?}", cut.problems);
}

/// What is in a file, without the cover of its last table, which is none of the records that were
/// written.
fn without_cover(mut there: Vec<Owned>, records: &[Owned]) -> Vec<Owned> {
    if !records.starts_with(&there) && there.last().is_some_and(|last| last.0 == PERF_RECORD_FINISHED_ROUND) {
        there.pop();
    }
    there
}

/// Checks that after every single write the file opens and holds a prefix of the records, complete
/// up to the last publication, has its early features from the first write on, also while their
/// table moves (I3), and tells until its end that its recorder has not finished.
#[test]
fn valid_at_every_moment() {
    let recording = open("tracepoint.data");
    let records = data_records(&recording);
    let tracing = Features {
        tracing_data: recording.features.tracing_data.clone(),
        arch: Some("x".into()),
        ..Features::default()
    };
    for early in [Features::default(), tracing.clone()] {
        let memory = Memory::new(u64::MAX);
        let writer = FileWriter::create_with_features(&memory, &specs(&recording), &early).expect("writes");
        let mut published = vec![(memory.writes().len(), 0)];
        for (index, record) in records.iter().enumerate() {
            writer.append(&whole(record)).expect("writes");
            if index % 3 == 2 {
                writer.publish().expect("writes");
                published.push((memory.writes().len(), index + 1));
            }
        }
        writer.finish(&recording.features).expect("writes");
        let writes = memory.writes();
        published.push((writes.len(), records.len()));
        let mut file = Vec::new();
        for (count, write) in writes.iter().enumerate() {
            apply(&mut file, write);
            let now = open_bytes(file.clone()).unwrap_or_else(|error| panic!("after write {count}: {error}"));
            let least =
                published.iter().rev().find(|(at, _)| *at <= count + 1).map_or(0, |(_, records)| *records);
            let (mut there, summary) = read(&now, 1);
            there.retain(|(_, record)| record.0 != PERF_RECORD_HEADER_EVENT_TYPE || record.2.len() < 80 - 8);
            let there = without_cover(there.into_iter().map(|(_, record)| record).collect(), &records);
            assert!(there.len() >= least && there[..] == records[..there.len()], "after write {count}");
            if count + 1 >= published[1].0 {
                let unfinished = now.problems.iter().all(|problem| problem.what.contains("did not finish"));
                assert!(unfinished, "after write {count}: {:?}", now.problems);
                assert_eq!(now.problems.is_empty(), count + 1 == writes.len(), "after write {count}");
                assert_eq!(summary.problems, [], "after write {count}");
            }
            if early != Features::default() {
                assert_eq!(now.features.tracing_data, tracing.tracing_data, "after write {count}");
                assert_ne!(file[72..104], [0; 32], "after write {count}: the header has no features");
                assert_eq!(now.events.list[1].name, "sched:sched_process_exec");
            }
        }
        let last = open_bytes(file).expect("opens");
        assert_eq!(last.features, recording.features);
    }
}

/// Checks that perf opens a recording of tracepoints whose recorder was killed after any of its
/// writes: without their formats, which are in a feature, perf would open none.
#[test]
fn perf_opens_an_unfinished_file() {
    let recording = open("tracepoint.data");
    let early = Features { tracing_data: recording.features.tracing_data.clone(), ..Features::default() };
    let memory = Memory::new(u64::MAX);
    let writer = FileWriter::create_with_features(&memory, &specs(&recording), &early).expect("writes");
    let records = data_records(&recording);
    let mut published = Vec::new();
    for record in &records {
        writer.append(&whole(record)).expect("writes");
        writer.publish().expect("writes");
        published.push((memory.writes().len(), u32::from(record.0 == PERF_RECORD_SAMPLE)));
    }
    // What was appended and not published is not seen.
    writer.append(&build::finished_init()).expect("writes");
    let (out, mut file) = (tempfile::NamedTempFile::new().expect("a file"), Vec::new());
    for (count, write) in memory.writes().iter().enumerate() {
        apply(&mut file, write);
        std::fs::write(out.path(), &file).expect("writes");
        let Some(said) = perf_says("writing::perf_opens_an_unfinished_file", &["script"], out.path()) else {
            return;
        };
        let there = published.iter().take_while(|(writes, _)| *writes <= count + 1);
        let samples: u32 = there.map(|(_, sample)| sample).sum();
        assert_eq!(said.lines().count(), samples as usize, "after write {count}: {said}");
        let named = said.matches("sched:sched_process_exec: filename=").count();
        assert_eq!(named, said.matches("sched:sched_process_exec").count(), "after write {count}: {said}");
    }
}

/// Checks that threads which append, publish and complete pieces out of order lose nothing, with
/// and without early features.
#[test]
fn many_threads_append() {
    let attr = Attr { sample_type: PERF_SAMPLE_IP, ..Attr::default() };
    let spec = EventSpec { attr, ids: vec![1], name: "x".to_owned() };
    for early in [Features::default(), Features { arch: Some("x".into()), ..Features::default() }] {
        let memory = Memory::new(u64::MAX);
        let writer =
            FileWriter::create_with_features(&memory, std::slice::from_ref(&spec), &early).expect("writes");
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let writer = &writer;
                scope.spawn(move || {
                    for number in 0..200u64 {
                        let record =
                            build::record(PERF_RECORD_SAMPLE, 0, &(thread << 32 | number).to_le_bytes());
                        if number % 5 == 0 {
                            let (first, second) = (writer.reserve(16), writer.reserve(16));
                            writer
                                .get_ref()
                                .write_all_at(
                                    &build::record(PERF_RECORD_SAMPLE, 0, &u64::MAX.to_le_bytes()),
                                    second.offset,
                                )
                                .expect("writes");
                            writer.complete(second).expect("writes");
                            writer.get_ref().write_all_at(&record, first.offset).expect("writes");
                            writer.complete(first).expect("writes");
                        } else {
                            writer.append(&record).expect("writes");
                        }
                        if number % 7 == 0 {
                            writer.publish().expect("writes");
                        }
                    }
                });
            }
        });
        assert_eq!(writer.finish(&Features::default()).expect("writes"), 0);
        let mut file = Vec::new();
        memory.writes().iter().for_each(|write| apply(&mut file, write));
        let recording = open_bytes(file).expect("opens");
        assert_eq!(recording.features.arch, early.arch);
        let (records, summary) = read(&recording, 2);
        assert_eq!(summary.problems, []);
        let mut ips: Vec<u64> = records
            .iter()
            .filter(|(_, record)| record.0 == PERF_RECORD_SAMPLE)
            .map(|(_, record)| u64::from_le_bytes(record.2[..8].try_into().expect("8 bytes")))
            .collect();
        ips.sort_unstable();
        let mut want: Vec<u64> = (0..4).flat_map(|thread| (0..200).map(move |n| thread << 32 | n)).collect();
        want.extend([u64::MAX; 160]);
        want.sort_unstable();
        assert_eq!(ips, want);
    }
}

/// Checks that on a full disk the error is told, and the file keeps what was published before, at
/// every size of disk.
#[test]
fn full_disk() {
    let recording = open("plain.data");
    let records = data_records(&recording);
    let early = Features { arch: Some("x".into()), ..Features::default() };
    let mut failures = 0;
    for capacity in (4_000..14_000).step_by(61) {
        let memory = Memory::new(capacity);
        let Ok(writer) = FileWriter::create_with_features(&memory, &specs(&recording), &early) else {
            continue;
        };
        let mut published = 0;
        let mut failed = false;
        for (index, record) in records.iter().enumerate() {
            failed |= writer.append(&whole(record)).is_err();
            if failed {
                break;
            }
            match writer.publish() {
                Ok(()) => published = index + 1,
                Err(_) => failed = true,
            }
        }
        failed |= writer.finish(&recording.features).is_err();
        failures += usize::from(failed);
        let mut file = Vec::new();
        memory.writes().iter().for_each(|write| apply(&mut file, write));
        let now = open_bytes(file).expect("opens");
        let mut there: Vec<_> = read(&now, 1).0.into_iter().map(|(_, record)| record).collect();
        there.retain(|record| record.0 != PERF_RECORD_HEADER_EVENT_TYPE);
        let there = without_cover(there, &records);
        assert!(there.len() >= published && there[..] == records[..there.len()], "with {capacity} bytes");
        assert!(failed || now.features.hostname.is_some(), "with {capacity} bytes");
    }
    assert!(failures > 20, "the disk was full {failures} times");
}

/// Checks that groups are described from leaders as perf does.
#[test]
fn groups_from_leaders() {
    let all = groups(&[0, 0, 2, 3, 3, 3]);
    let found: Vec<_> = all.iter().map(|g| (g.leader, g.members)).collect();
    assert_eq!(found, [(0, 2), (3, 3)]);
    assert_eq!(open("group.data").features.groups, groups(&[0, 0, 2])[..1]);
}
