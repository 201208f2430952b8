//! Instructions beside those of objdump, and of bytes that are no code.
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;

use super::*;
use crate::{ModuleKey, SymbolOptions, SymbolStore};

fn code_of(bytes: &[u8], bits: u32) -> FunctionCode {
    FunctionCode::of_bytes(PathBuf::from("test"), 0x1000, bytes, bits).expect("a few bytes")
}

fn no_name(_: u64) -> Option<String> {
    None
}

fn texts(bytes: &[u8], syntax: Syntax) -> Vec<String> {
    let name = |address: u64| (address == 0x1010).then(|| "main+0x10".to_owned());
    disassemble(&code_of(bytes, 64), syntax, &name).into_iter().map(|found| found.text).collect()
}

/// Checks the words of some instructions in both syntaxes, with the symbols of their targets.
#[test]
fn words() {
    // mov %rax,%rdx; je 1010; call 2008; mov 0x100(%rip),%eax; ret
    let bytes = b"\x48\x89\xc2\x74\x0b\xe8\xfe\x0f\0\0\x8b\x05\0\x01\0\0\xc3";
    let att = [
        "mov    %rax,%rdx",
        "je     1010 <main+0x10>",
        "call   2008",
        "mov    0x100(%rip),%eax        # 1110",
        "ret",
    ];
    assert_eq!(texts(bytes, Syntax::Att), att);
    let intel = [
        "mov    rdx,rax",
        "je     1010 <main+0x10>",
        "call   2008",
        "mov    eax,DWORD PTR [rip+0x100]        ; 1110",
        "ret",
    ];
    assert_eq!(texts(bytes, Syntax::Intel), intel);
    let found = disassemble(&code_of(bytes, 64), Syntax::Att, &no_name);
    let flows: Vec<_> = found.iter().map(|found| (found.flow, found.target)).collect();
    assert_eq!(
        flows,
        [
            (Flow::Next, None),
            (Flow::Branch, Some(0x1010)),
            (Flow::Call, Some(0x2008)),
            (Flow::Next, None),
            (Flow::Return, None)
        ]
    );
}

proptest! {
    /// Checks D2 and D3: whatever the bytes are, the instructions cover them in order.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 1..600), is_64: bool, is_intel: bool) {
        let code = code_of(&bytes, if is_64 { 64 } else { 32 });
        let syntax = if is_intel { Syntax::Intel } else { Syntax::Att };
        let mut at = code.address;
        for found in disassemble(&code, syntax, &no_name) {
            prop_assert_eq!(found.address, at);
            prop_assert!(found.length > 0 && !found.text.is_empty());
            at += u64::from(found.length);
        }
        prop_assert_eq!(at, code.address + bytes.len() as u64);
    }
}

/// Checks that code of every length up to the limit is taken, and none beyond it.
#[test]
fn long_functions() {
    let long = vec![0x90; MOST_CODE_BYTES as usize + 1];
    let of = |bytes: &[u8]| FunctionCode::of_bytes("x".into(), 0, bytes, 64);
    let code = of(&long[1..]).expect("at the limit");
    assert_eq!(disassemble(&code, Syntax::Att, &no_name).len() as u64, MOST_CODE_BYTES);
    assert!(of(&long).expect_err("too long").0.contains("more than the 2097152 that are disassembled"));
    assert!(of(&[]).expect_err("nothing").0.contains("no bytes"));
}

/// Where objdump begins an instruction, by function label.
fn objdump(path: &Path) -> Option<BTreeSet<u64>> {
    let output = Command::new("objdump").args(["-d", "-z", "--no-show-raw-insn"]).arg(path).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let address = |line: &str| {
        let (number, _) = line.strip_prefix(' ')?.split_once(":\t")?;
        u64::from_str_radix(number.trim(), 16).ok()
    };
    Some(text.lines().filter_map(address).collect())
}

/// Files of this machine with many functions: the C library, CPython, and the compiler's library.
fn large_files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let of_map =
        |name: &str| maps.lines().find(|line| line.contains(name))?.split(' ').next_back().map(PathBuf::from);
    files.extend(of_map("/libc.so.6"));
    let script = "import sysconfig, os, sys\nv = sysconfig.get_config_var\nlib = os.path.join(v('LIBDIR') or '', v('LDLIBRARY') or '')\nprint(lib if lib.endswith('.so') and os.path.exists(lib) else os.path.realpath(sys.executable))";
    let python = Command::new("python3").args(["-c", script]).output();
    files.extend(python.ok().map(|said| PathBuf::from(String::from_utf8_lossy(&said.stdout).trim())));
    files.into_iter().filter(|path| path.is_file()).collect()
}

/// Checks D2 beside objdump: the boundaries of every function of the C library and of CPython.
#[test]
fn boundaries_are_those_of_objdump() {
    let store = SymbolStore::new(SymbolOptions { cache: None, ..SymbolOptions::default() });
    if Command::new("objdump").arg("--version").output().is_err() {
        return kymo_testing::skip("disassembly::boundaries_are_those_of_objdump", "there is no objdump");
    }
    for path in large_files() {
        let Some(expected) = objdump(&path) else { continue };
        let key = ModuleKey::Elf { path: path.clone(), build_id: None };
        let symbols = store.get(&key);
        let (mut compared, mut instructions) = (0, 0);
        let mut wrong: HashMap<String, String> = HashMap::new();
        for symbol in symbols.table().iter() {
            // Data has symbols, too.
            let Ok(code) = store.code(&key, symbol.start, symbol.end) else { continue };
            let end = code.address + code.bytes.len() as u64;
            if !expected.contains(&code.address) {
                continue;
            }
            let found: BTreeSet<u64> =
                disassemble(&code, Syntax::Att, &no_name).iter().map(|found| found.address).collect();
            let objdumps: BTreeSet<u64> = expected.range(code.address..end).copied().collect();
            (compared, instructions) = (compared + 1, instructions + found.len());
            if found != objdumps {
                let first = found.symmetric_difference(&objdumps).next();
                wrong.insert(symbol.name.to_owned(), format!("{first:x?}"));
            }
        }
        assert!(compared > 500, "{}: {compared} functions", path.display());
        assert!(wrong.is_empty(), "{}: {} of {compared}: {wrong:#?}", path.display(), wrong.len());
        println!("{}: {compared} functions, {instructions} instructions", path.display());
    }
}
