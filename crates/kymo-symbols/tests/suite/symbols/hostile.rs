//! Damaged files: nothing may panic, hang or take more memory than the file is worth.

use std::path::PathBuf;
use std::sync::OnceLock;

use kymo_symbols::{ModuleKey, SymbolOptions, SymbolStore};
use proptest::prelude::*;

use crate::tools::{run, workshop};
use kymo_testing::skip;

/// A small program with debug information, compiled once.
fn program() -> Option<&'static [u8]> {
    static PROGRAM: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    PROGRAM
        .get_or_init(|| {
            let dir = workshop("symbols::hostile", &["gcc"], &[("a.c", super::C)])?;
            run(dir.path(), "gcc", &["a.c", "-g", "-O2", "-rdynamic", "-lm", "-Wl,-z,lazy", "-o", "a"]);
            std::fs::read(dir.path().join("a")).ok()
        })
        .as_deref()
}

/// Loads a file and asks it everything.
fn exercise(bytes: &[u8]) {
    let dir = tempfile::tempdir().expect("a directory");
    let path: PathBuf = dir.path().join("damaged");
    std::fs::write(&path, bytes).expect("the file");
    super::exhaust::exercise(&path, bytes);
    let store = SymbolStore::new(SymbolOptions::default());
    let module = store.get(&ModuleKey::file(path, None));
    for symbol in module.table().iter().take(200) {
        module.find(symbol.start);
        module.find(symbol.end);
        module.inline_frames(symbol.start);
    }
    for address in (0..bytes.len() as u64).step_by(257) {
        if let Some(symbol) = module.find(address) {
            assert!(symbol.start <= address);
        }
    }
}

/// Checks that the corpus of the fuzz target `symbols` is asked everything without a panic.
#[test]
fn corpus_of_the_fuzz_target() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/symbols");
    let files: Vec<_> = std::fs::read_dir(&corpus).expect("the corpus is there").flatten().collect();
    assert!(!files.is_empty());
    for file in files {
        exercise(&std::fs::read(file.path()).expect("reads"));
    }
}

/// Checks that one symbol of a section that is not there, as post-link optimizers leave it, costs no other symbol its name.
#[test]
fn one_odd_symbol_costs_no_other_its_name() {
    let Some(program) = program() else {
        return skip("one_odd_symbol_costs_no_other_its_name", "gcc is not installed");
    };
    let word = |at: usize| u64::from_le_bytes(program[at..at + 8].try_into().expect("8 bytes")) as usize;
    let half = |at: usize| usize::from(u16::from_le_bytes([program[at], program[at + 1]]));
    let kind = |at: usize| u32::from_le_bytes(program[at + 4..at + 8].try_into().expect("4 bytes"));
    let headers = (0..half(60)).map(|number| word(40) + 64 * number);
    let symtab = headers.clone().find(|&at| kind(at) == 2).expect("a symbol table");
    let (start, size) = (word(symtab + 24), word(symtab + 32));
    // The first global function.
    let odd = (start..start + size).step_by(24).find(|&at| program[at + 4] == 0x12 && half(at + 6) > 0);
    let odd = odd.expect("a function");
    let mut bytes = program.to_vec();
    bytes[odd + 6..odd + 8].copy_from_slice(&60_000u16.to_le_bytes());
    let dir = tempfile::tempdir().expect("a directory");
    let count = |bytes: &[u8], name: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).expect("the file");
        let store = SymbolStore::new(SymbolOptions::default());
        store.get(&ModuleKey::file(path, None)).table().len()
    };
    let (all, without) = (count(program, "whole"), count(&bytes, "odd"));
    assert!(without + 1 >= all, "{without} of {all} symbols are left");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    /// Checks that a real program with flipped bytes is read without a panic; half of the flips hit the headers.
    #[test]
    fn flipped_bytes_do_no_harm(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..24),
    ) {
        let Some(program) = program() else {
            skip("flipped_bytes_do_no_harm", "gcc is not installed");
            return Ok(());
        };
        let mut bytes = program.to_vec();
        let sections = u64::from_le_bytes(bytes[40..48].try_into().expect("8 bytes")) as usize;
        for (at, value, in_headers) in flips {
            let at = if in_headers {
                let headers = bytes.len() - sections;
                let at = at.index(headers + 64);
                if at < 64 { at } else { sections + at - 64 }
            } else {
                at.index(bytes.len())
            };
            bytes[at] = value;
        }
        exercise(&bytes);
    }

    /// Checks that a program cut short at any point is read without a panic.
    #[test]
    fn truncation_does_no_harm(at in any::<prop::sample::Index>()) {
        let Some(program) = program() else {
            skip("truncation_does_no_harm", "gcc is not installed");
            return Ok(());
        };
        exercise(&program[..at.index(program.len())]);
    }
}
