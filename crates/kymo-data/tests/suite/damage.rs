//! Truncated and bit-flipped copies of real recordings: never a panic, always an end.

use crate::exhaust::{all_formats, exhaust, print_format};
use crate::fixtures::{FILES, bytes, folder, open, open_bytes, read};
use kymo_data::print_format::{NoKernelNames, PrintFormat};
use kymo_data::{jitdump, tracing_data};

/// A small generator, so that every run damages the same places.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }
}

/// Checks that every recording, cut at many places, is delivered up to the last whole record before
/// the cut.
#[test]
fn truncated_copies() {
    for name in FILES {
        let whole = bytes(name);
        let records = read(&open(name), 1).0;
        let mut dice = Dice(1);
        let cuts = (0..120).chain((0..100).map(|_| dice.below(whole.len())));
        for cut in cuts.filter(|cut| *cut < whole.len()) {
            let Ok(recording) = open_bytes(whole[..cut].to_vec()) else { continue };
            exhaust(&recording);
            let (cut_records, _) = read(&recording, 1);
            if name != "compressed.data" {
                let count = cut_records.len();
                assert!(cut_records[..] == records[..count], "{name} cut at {cut}: a prefix");
                let next =
                    records.get(count).map(|(position, (_, _, body))| position + 8 + body.len() as u64);
                assert!(next.is_none_or(|end| end > cut as u64), "{name} cut at {cut}: the longest prefix");
            }
        }
    }
}

/// Checks that copies with flipped bits are read to some end.
#[test]
fn bit_flipped_copies() {
    for name in FILES {
        let whole = bytes(name);
        let mut dice = Dice(2);
        for round in 0..150 {
            let mut copy = whole.clone();
            for _ in 0..=dice.below(3) {
                // Half of the flips go to where the header and the attrs are.
                let end = if round % 2 == 0 { whole.len() } else { whole.len().min(800) };
                let at = dice.below(end);
                copy[at] ^= 1 << dice.below(8);
            }
            if let Ok(recording) = open_bytes(copy) {
                exhaust(&recording);
            }
        }
    }
}

/// Checks that words replaced by the largest, smallest and oddest numbers do not confuse any
/// reader.
#[test]
fn lying_words() {
    for name in FILES {
        let whole = bytes(name);
        let mut dice = Dice(3);
        for _ in 0..150 {
            let mut copy = whole.clone();
            let at = dice.below(copy.len() - 8) & !3;
            let lie = [u64::MAX, 0, 1 << 63, 0x7fff_ffff, 0xffff_ffff, whole.len() as u64][dice.below(6)];
            let width = [2, 4, 8][dice.below(3)];
            copy[at..at + width].copy_from_slice(&lie.to_le_bytes()[..width]);
            if let Ok(recording) = open_bytes(copy) {
                exhaust(&recording);
            }
        }
    }
}

/// Checks that damaged tracing data and jitdumps are read to some end, too.
#[test]
fn other_formats() {
    let blob = open("tracepoint.data").features.tracing_data.expect("tracing data");
    let mut dice = Dice(4);
    for _ in 0..2000 {
        let mut copy = blob.clone();
        let at = dice.below(copy.len());
        copy[at] ^= 1 << dice.below(8);
        copy.truncate(copy.len() - dice.below(copy.len()) / 4);
        if let Ok(data) = tracing_data::parse(&copy) {
            for format in &data.formats {
                let _ = format.print_fields(&copy);
                if let Ok(parsed) = PrintFormat::parse(format) {
                    let _ = parsed.print(format, &copy, &NoKernelNames);
                }
            }
        }
        copy[..4].copy_from_slice(b"DTiJ");
        if let Ok((_, records)) = jitdump::parse(&copy) {
            let _ = records.count();
        }
    }
}

/// Checks that an offset into the recording is named by the errors that damage causes.
#[test]
fn errors_name_the_place() {
    let whole = bytes("plain.data");
    let records = read(&open("plain.data"), 1).0;
    let (position, (kind, _, _)) = records[records.len() / 2];
    let mut copy = whole;
    copy[position as usize + 6..position as usize + 8].copy_from_slice(&[4, 0]);
    let (left, summary) = read(&open_bytes(copy).expect("opens"), 2);
    assert_eq!(left.len(), records.len() / 2);
    let said = summary.problems[0].to_string();
    assert!(
        said.starts_with(&format!("at offset {position:#x}: ")) && said.contains(&format!(" ({kind}): ")),
        "{said}"
    );
    assert!(said.contains("size is 4, less than its own header of 8"), "{said}");
}

/// Checks that the corpus of the print formats is parsed and printed without a panic, by the same
/// function.
#[test]
fn corpus_of_print_formats() {
    let corpus = folder().join("../../fuzz/corpus/formats");
    let files: Vec<_> = std::fs::read_dir(&corpus).expect("the corpus is there").flatten().collect();
    assert!(!files.is_empty());
    for file in files {
        print_format(&std::fs::read(file.path()).expect("reads"));
    }
}

/// Checks that the corpus of the fuzz target is read without a panic, by the same function.
#[test]
fn corpus_of_the_fuzz_target() {
    let corpus = folder().join("../../fuzz/corpus/reader");
    let mut files: Vec<_> = std::fs::read_dir(&corpus)
        .expect("the corpus is there")
        .map(|entry| entry.expect("a file").path())
        .collect();
    files.sort();
    assert!(files.len() >= 25, "{} files", files.len());
    for file in files {
        all_formats(&std::fs::read(&file).expect("reads"));
    }
}
