//! Damaged files and senseless memory: an answer or a sentence, never a panic, a hang or memory without bound.

use std::ops::Range;
use std::sync::OnceLock;

use kymo_testing::skip;
use proptest::prelude::*;

use super::exhaust::exercise;
use super::programs::{CXX, RUST, build_c};
use crate::tools::{lacks, run};

/// A program's bytes, and where what matters lies in them.
type Program = (Vec<u8>, Vec<Range<usize>>);

/// Programs with debug information in different forms, compiled once; and where their sections of it are.
fn programs() -> &'static [Program] {
    static PROGRAMS: OnceLock<Vec<Program>> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let mut found = Vec::new();
        if !lacks("place::hostile", &["cc", "c++"]) {
            for (name, flags) in [("c4", &["-gdwarf-4", "-fdebug-types-section"][..]), ("c5", &["-gdwarf-5"])]
            {
                found.push(build_c(dir.path(), name, flags));
            }
            std::fs::write(dir.path().join("a.cc"), CXX).expect("the source");
            run(dir.path(), "c++", &["a.cc", "-std=c++17", "-fno-access-control", "-g", "-o", "cxx"]);
            found.push(dir.path().join("cxx"));
        }
        if !lacks("place::hostile", &["rustc"]) {
            std::fs::write(dir.path().join("places.rs"), RUST).expect("the source");
            let flags =
                ["places.rs", "--edition", "2021", "-g", "-Awarnings", "-Cdwarf-version=5", "-o", "rust"];
            run(dir.path(), "rustc", &flags);
            found.push(dir.path().join("rust"));
        }
        found.into_iter().map(|path| std::fs::read(path).expect("the program")).map(with_sections).collect()
    })
}

/// The sections that can be found by the section headers, those with debug information or symbols.
fn with_sections(bytes: Vec<u8>) -> Program {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")) as usize;
    let half = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (table, count, names) = (word(40), half(60), half(62));
    let names = word(table + 64 * names + 24);
    let headers = std::iter::once(table..bytes.len());
    let mut ranges: Vec<Range<usize>> = headers.collect();
    for number in 0..count {
        let header = table + 64 * number;
        let name =
            names + u32::from_le_bytes(bytes[header..header + 4].try_into().expect("4 bytes")) as usize;
        let wanted: [&[u8]; 9] = [
            b".debug_info",
            b".debug_abbrev",
            b".debug_str",
            b".debug_addr",
            b".debug_types",
            b".symtab",
            b".debug_line",
            b".debug_loclists",
            b".debug_rnglists",
        ];
        let (start, len) = (word(header + 24), word(header + 32));
        if wanted.iter().any(|wanted| bytes[name..].starts_with(wanted)) && len > 0 {
            ranges.push(start..start + len);
        }
    }
    (bytes, ranges)
}

/// Checks that whole programs with senseless memory get answers (the questions do mean something).
#[test]
fn senseless_memory_is_survived() {
    for (bytes, _) in programs() {
        for salt in 0..4 {
            exercise(bytes, salt);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Checks that programs with changed bytes, most of them in the debug information, do no harm.
    #[test]
    fn changed_bytes_do_no_harm(
        which in any::<prop::sample::Index>(),
        changes in proptest::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..48),
    ) {
        if programs().is_empty() {
            skip("changed_bytes_do_no_harm", "no compiler is installed");
            return Ok(());
        }
        let (bytes, sections) = which.get(programs());
        let mut bytes = bytes.clone();
        for (section, at, value) in changes {
            let section = section.get(sections);
            bytes[section.start + at.index(section.len())] = value;
        }
        exercise(&bytes, 7);
    }

    /// Checks that programs that end early do no harm.
    #[test]
    fn cut_programs_do_no_harm(which in any::<prop::sample::Index>(), end in any::<prop::sample::Index>()) {
        if programs().is_empty() {
            skip("cut_programs_do_no_harm", "no compiler is installed");
            return Ok(());
        }
        let (bytes, _) = which.get(programs());
        exercise(&bytes[..end.index(bytes.len())], 3);
    }
}
