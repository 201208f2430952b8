//! Files that are damaged, from the future, or no recordings at all: each gets its own sentence, and never a panic.

use std::path::{Path, PathBuf};

use crate::tools::{Said, kymo};

/// A small recording written by hand, byte by byte as the format says, so that these tests need no perf.
mod bytes {
    /// Bytes of the header.
    pub(super) const HEADER: usize = 104;
    /// Bytes of one attribute and its section of ids.
    pub(super) const ATTR: usize = 128 + 16;
    /// How many samples there are.
    pub(super) const SAMPLES: u64 = 50;
    /// Bytes of one sample: header, ip, pid and tid, time.
    pub(super) const SAMPLE: usize = 8 + 24;

    /// One event `cpu-clock`, one COMM record, [`SAMPLES`] samples of pid 7 in no mapping.
    pub(super) fn recording() -> Vec<u8> {
        let records = records();
        let mut file = Vec::new();
        file.extend(b"PERFILE2");
        for word in [HEADER, ATTR, HEADER, ATTR, HEADER + ATTR, records.len(), 0, 0, 0, 0, 0, 0] {
            file.extend((word as u64).to_le_bytes());
        }
        assert_eq!(file.len(), HEADER);
        let mut attr = vec![0; ATTR];
        attr[..4].copy_from_slice(&1_u32.to_le_bytes()); // PERF_TYPE_SOFTWARE
        attr[4..8].copy_from_slice(&128_u32.to_le_bytes());
        attr[16..24].copy_from_slice(&1_000_000_u64.to_le_bytes()); // sample_period
        attr[24..32].copy_from_slice(&0b111_u64.to_le_bytes()); // IP | TID | TIME
        attr[40..48].copy_from_slice(&(1_u64 << 18).to_le_bytes()); // sample_id_all
        file.extend(attr);
        file.extend(records);
        file
    }

    fn records() -> Vec<u8> {
        let mut records =
            record(3, &[&7_u32.to_le_bytes()[..], &7_u32.to_le_bytes(), b"made-up\0", &[0; 16]].concat());
        for i in 0..SAMPLES {
            let mut body = (0x40_0000 + i * 4096).to_le_bytes().to_vec();
            body.extend([7, 0, 0, 0, 7, 0, 0, 0]);
            body.extend((1_000_000 * (i + 1)).to_le_bytes());
            records.extend(record(9, &body));
        }
        records
    }

    /// One record with its header; `misc` says "user".
    pub(super) fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let mut record = kind.to_le_bytes().to_vec();
        record.extend(2_u16.to_le_bytes());
        record.extend(u16::try_from(8 + body.len()).expect("a small record").to_le_bytes());
        record.extend(body);
        record
    }

    /// The recording with something between its first record and the rest.
    pub(super) fn with_record(extra: &[u8]) -> Vec<u8> {
        let mut file = recording();
        let first = HEADER + ATTR;
        let size = usize::from(u16::from_le_bytes([file[first + 6], file[first + 7]]));
        file.splice(first + size..first + size, extra.iter().copied());
        let data = u64::try_from(file.len() - first).expect("a small file");
        file[48..56].copy_from_slice(&data.to_le_bytes());
        file
    }
}

fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("damaged").join(test);
    std::fs::create_dir_all(&folder).expect("the tests' folder is writable");
    folder
}

/// What `kymo report` says about a file of these bytes.
fn report(test: &str, bytes: &[u8]) -> Said {
    let path = folder(test).join("perf.data");
    std::fs::write(&path, bytes).expect("the tests' folder is writable");
    report_file(&path)
}

fn report_file(path: &Path) -> Said {
    let file = path.to_str().expect("a plain name");
    kymo().run(["report", "-i", file, "--stdio", "--no-children", "-g", "none", "-F", "sample,comm,dso,sym"])
}

/// A refusal: exit code 1, nothing on stdout, and one message that names the file and has one of these words.
fn refused(said: &Said, words: &[&str]) {
    assert_eq!(said.code, Some(1), "{}: {}", said.command, said.stderr);
    assert_eq!(said.stdout, "", "{} printed a report", said.command);
    let lower = said.stderr.to_lowercase();
    assert!(!lower.contains("panicked"), "{}", said.stderr);
    assert!(words.iter().any(|word| lower.contains(word)), "none of {words:?} in: {}", said.stderr);
    let names_it = ["perf.data", "damaged"].iter().any(|name| said.stderr.contains(name));
    assert!(names_it, "no file name in: {}", said.stderr);
}

/// Readable, with this many samples; returns what was said on stderr.
fn readable(said: &Said, samples: u64) -> &str {
    shows(said, 0, samples)
}

/// The same with this status.
fn shows(said: &Said, status: i32, samples: u64) -> &str {
    assert_eq!(said.code, Some(status), "{}: {}", said.command, said.stderr);
    assert!(!said.stderr.contains("panicked"), "{}", said.stderr);
    assert_eq!(
        crate::table::samples(&said.stdout),
        samples,
        "{}\n{}\n{}",
        said.command,
        said.stdout,
        said.stderr
    );
    said.stderr.trim()
}

/// Checks that the hand-written recording is one: all samples are shown, without a warning.
#[test]
fn a_sound_file_is_read_silently() {
    let said = report("sound", &bytes::recording());
    assert_eq!(readable(&said, bytes::SAMPLES), "");
}

/// Checks what is no recording: each is refused in words of its own, and one that is not there with what to do.
#[test]
fn no_recordings() {
    let (mut big_endian, mut no_events) = (bytes::recording(), bytes::recording());
    big_endian[..8].reverse();
    no_events[32..40].fill(0);
    let text = b"# PERF 1.0: this is the text of perf script, not a recording\n".repeat(9);
    let cases: [(&str, &[u8], &[&str]); 5] = [
        ("empty", b"", &["empty"]),
        ("text", &text, &["not a perf.data", "not a recording"]),
        ("cut-header", &bytes::recording()[..50], &["cut", "truncated", "ends", "short"]),
        ("big-endian", &big_endian, &["big-endian", "byte order"]),
        ("no-events", &no_events, &["event", "attr"]),
    ];
    for (name, bytes, words) in cases {
        refused(&report(name, bytes), words);
    }
    refused(&report_file(&folder("folder")), &["directory", "folder"]);
    refused(&report_file(&folder("missing").join("perf.data.that-is-not-there")), &["no such file"]);
}

/// Checks that a file which ends inside a sample shows all whole samples, says where it ends, and ends with a status of its own, in
/// every form that a report has.
#[test]
fn a_cut_tail() {
    let whole = bytes::recording();
    let said = report("cut-tail", &whole[..whole.len() - 10]);
    let words = shows(&said, 2, bytes::SAMPLES - 1);
    let offset = whole.len() - bytes::SAMPLE;
    let named = words.contains(&offset.to_string()) || words.contains(&format!("{offset:#x}"));
    assert!(named, "the offset {offset} ({offset:#x}) is not in: {words}");
    let path = folder("cut-tail").join("perf.data");
    for form in [&["report", "--json"][..], &["report", "--folded"], &["report", "--loss", "-"], &["script"]]
    {
        let said =
            kymo().run(form.iter().copied().chain(["-i", path.to_str().expect("a plain name")])).ends(2);
        assert!(said.stderr.contains("cut off") && !said.stdout.is_empty(), "{}", said.stderr);
    }
}

/// Checks that a data size of zero, which perf leaves behind when it is killed, does not hide the samples.
#[test]
fn a_recorder_that_was_killed() {
    let mut file = bytes::recording();
    file[48..56].fill(0);
    let said = report("killed", &file);
    assert_ne!(readable(&said, bytes::SAMPLES), "", "it is said that the recorder did not finish");
}

/// Checks that a record type from the future is skipped by its size, with one warning that names it.
#[test]
fn a_newer_record_type() {
    let newer = bytes::record(4242, &[0xaa; 40]).repeat(3);
    let said = report("newer-record", &bytes::with_record(&newer));
    let words = readable(&said, bytes::SAMPLES);
    assert!(words.contains("4242"), "the type is not named: {words}");
    assert_eq!(words.lines().count(), 1, "one warning for three records: {words}");
}

/// Checks that simpleperf's own records are called that, and none of a newer perf.
#[test]
fn records_of_simpleperf() {
    let own = bytes::record(32777, &[0xaa; 40]);
    let said = report("simpleperf-record", &bytes::with_record(&own));
    let words = readable(&said, bytes::SAMPLES);
    assert!(words.contains("1 record of simpleperf") && !words.contains("newer perf"), "{words}");
}

/// Checks that `report` says that the recording has a hardware trace, which it does not show.
#[test]
fn a_hardware_trace_is_told() {
    let info = bytes::record(70, &[1, 0, 0, 0, 0, 0, 0, 0]);
    let said = report("hardware-trace", &bytes::with_record(&info));
    let words = readable(&said, bytes::SAMPLES);
    assert!(words.contains("also has a hardware trace, which kymo does not show"), "{words}");
    assert_eq!(words.lines().count(), 1, "{words}");
}

/// Checks that attributes which are larger than today's are read up to what is known.
#[test]
fn a_newer_attribute() {
    let mut file = bytes::recording();
    let extra = 32_u64;
    let end_of_attr = bytes::HEADER + 128;
    file.splice(end_of_attr..end_of_attr, [0xbb; 32]);
    file[bytes::HEADER + 4..bytes::HEADER + 8].copy_from_slice(&(128 + 32_u32).to_le_bytes());
    for (at, value) in [(16, bytes::ATTR as u64 + extra), (32, bytes::ATTR as u64 + extra)] {
        file[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    let data = (bytes::HEADER + bytes::ATTR) as u64 + extra;
    file[40..48].copy_from_slice(&data.to_le_bytes());
    let said = report("newer-attr", &file);
    readable(&said, bytes::SAMPLES);
}

/// Checks that no cut of a recording makes kymo panic or hang, and that every failure has words.
#[test]
fn every_cut() {
    let whole = bytes::recording();
    for length in (0..bytes::HEADER + bytes::ATTR + 200).step_by(29) {
        let said = report("every-cut", &whole[..length]);
        assert!(matches!(said.code, Some(0..=2)), "cut at {length}: {:?} {}", said.code, said.stderr);
        assert!(!said.stderr.is_empty(), "cut at {length} is not worth a word");
        assert!(!said.stderr.contains("panicked"), "cut at {length}: {}", said.stderr);
    }
}
