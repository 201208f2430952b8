//! Instructions beside those of objdump, and of bytes that are no code.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;

use super::*;
use crate::{Arch, ModuleKey, SymbolOptions, SymbolStore};

fn code_of(bytes: &[u8], bits: u32) -> FunctionCode {
    let machine = if bits == 64 { 62 } else { 3 };
    FunctionCode::of_bytes(PathBuf::from("test"), 0x1000, bytes, machine).expect("a few bytes")
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

/// Checks the words of aarch64's instructions, where they go, and bytes that are none.
#[test]
fn words_of_aarch64() {
    let words =
        [0x9400_0004u32, 0x5400_0062, 0xf940_1c22, 0x9000_0335, 0x8b3b_4ebb, 0x2522_1ce1, 0xd65f_03c0];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend([1, 2]);
    let code = FunctionCode::of_bytes("test".into(), 0x1000, &bytes, 183).expect("a few bytes");
    let name = |address: u64| (address == 0x1010).then(|| "main+0x10".to_owned());
    let found = disassemble(&code, Syntax::Att, &name);
    let texts: Vec<&str> = found.iter().map(|found| &*found.text).collect();
    assert_eq!(
        texts,
        [
            "bl     1010 <main+0x10>",
            "b.cs   1010 <main+0x10>",
            "ldr    x2, [x1, #56]",
            "adrp   x21, 65000",
            "add    x27, x21, w27, uxtw #3",
            ".inst  0x25221ce1",
            "ret",
            ".inst  0x0201",
        ]
    );
    let flows: Vec<_> = found.iter().map(|found| (found.flow, found.target)).collect();
    assert_eq!(flows[..2], [(Flow::Call, Some(0x1010)), (Flow::Branch, Some(0x1010))]);
    assert_eq!(flows[6], (Flow::Return, None));
    assert_eq!(found.iter().map(|found| u64::from(found.length)).sum::<u64>(), bytes.len() as u64);
    let other = FunctionCode::of_bytes("test".into(), 0, &bytes, 22).expect_err("s390");
    assert!(other.0.contains("ELF machine 22"), "{other}");
    if cfg!(not(feature = "capstone")) {
        let riscv = FunctionCode::of_bytes("test".into(), 0, &bytes, 243).expect_err("RISC-V");
        assert!(riscv.0.contains("RISC-V") && riscv.0.contains("--features capstone"), "{riscv}");
    }
}

proptest! {
    /// Checks D2 and D3 for aarch64: whatever the bytes are, the instructions cover them in order.
    #[test]
    fn any_bytes_of_aarch64(bytes in prop::collection::vec(any::<u8>(), 1..600), address: u64) {
        let code = FunctionCode::of_bytes("test".into(), address, &bytes, 183).expect("a few bytes");
        let mut at = code.address;
        for found in disassemble(&code, Syntax::Att, &no_name) {
            prop_assert_eq!(found.address, at);
            prop_assert!(found.length > 0 && !found.text.is_empty());
            at = at.wrapping_add(u64::from(found.length));
        }
        prop_assert_eq!(at, code.address.wrapping_add(bytes.len() as u64));
    }
}

/// The C library of aarch64, of Debian's `libc6-arm64-cross`, and what objdump says of it: the text
/// of each instruction by address, without symbols and comments.
fn aarch64_objdump() -> Result<(PathBuf, BTreeMap<u64, String>), &'static str> {
    let path = PathBuf::from("/usr/aarch64-linux-gnu/lib/libc.so.6");
    if !path.is_file() {
        return Err("there is no C library of aarch64 (libc6-arm64-cross)");
    }
    let output = Command::new("aarch64-linux-gnu-objdump").args(["-d", "-z"]).arg(&path).output();
    let output = output.map_err(|_| "there is no aarch64-linux-gnu-objdump (binutils-aarch64-linux-gnu)")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = |line: &str| {
        let (address, rest) = line.split_once(":\t")?;
        let (_bytes, text) = rest.split_once('\t')?;
        Some((u64::from_str_radix(address.trim(), 16).ok()?, plain(text)))
    };
    Ok((path, text.lines().filter_map(line).collect()))
}

/// An instruction without symbols and comments, with one space between its parts.
fn plain(text: &str) -> String {
    let text = text.split("//").next().unwrap_or("");
    let text = text.split(" <").next().unwrap_or("").split(" ;").next().unwrap_or("");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Checks D2 beside objdump for every function of aarch64's C library: all boundaries, and the text
/// of all instructions but those of scalable vectors, which the decoder does not know.
#[test]
fn aarch64_as_objdump() {
    let (path, expected) = match aarch64_objdump() {
        Ok(found) => found,
        Err(why) => return kymo_testing::skip("disassembly::aarch64_as_objdump", why),
    };
    let options = SymbolOptions { arch: Some(Arch::Aarch64), cache: None, ..SymbolOptions::default() };
    let store = SymbolStore::new(options);
    let key = ModuleKey::file(path, None);
    let (mut functions, mut instructions, mut scalable) = (0, 0, 0);
    let mut other: BTreeMap<String, (String, String)> = BTreeMap::new();
    let mut others = 0;
    for symbol in store.get(&key).table().iter() {
        let Ok(code) = store.code(&key, symbol.start, symbol.end) else { continue };
        if !expected.contains_key(&code.address) {
            continue;
        }
        functions += 1;
        let end = code.address + code.bytes.len() as u64;
        let found = disassemble(&code, Syntax::Att, &no_name);
        let boundaries: Vec<u64> = found.iter().map(|found| found.address).collect();
        let objdumps: Vec<u64> = expected.range(code.address..end).map(|(address, _)| *address).collect();
        assert_eq!(boundaries, objdumps, "{}", symbol.name);
        for found in found {
            let (ours, theirs) = (plain(&found.text), &expected[&found.address]);
            // Constants between functions.
            if theirs.starts_with(".word") {
                continue;
            }
            instructions += 1;
            if ours.starts_with(".inst") {
                scalable += usize::from(ours != *theirs);
            } else if ours != *theirs {
                others += 1;
                let mnemonic = theirs.split(' ').next().unwrap_or("").to_owned();
                other.entry(mnemonic).or_insert((ours, theirs.clone()));
            }
        }
    }
    println!(
        "{functions} functions, {instructions} instructions: {scalable} are of scalable vectors, {others} differ"
    );
    assert!(functions > 500, "{functions} functions");
    assert!(scalable * 1000 < instructions, "{scalable} of {instructions}");
    assert!(others == 0, "{others} of {instructions}: {other:#?}");
}

/// Checks the words of RISC-V and PowerPC, where they go, and bytes that are no instruction.
#[cfg(feature = "capstone")]
#[test]
fn words_of_capstone() {
    let name = |address: u64| (address == 0x1010).then(|| "main+0x10".to_owned());
    let of = |machine: u16, bytes: &[u8]| {
        let code = FunctionCode::of_bytes("test".into(), 0x1000, bytes, machine).expect("a few bytes");
        let found = disassemble(&code, Syntax::Att, &name);
        assert_eq!(found.iter().map(|found| u64::from(found.length)).sum::<u64>(), bytes.len() as u64);
        found.into_iter().map(|found| (found.text, found.flow, found.target)).collect::<Vec<_>>()
    };
    // jal 1010; bnez a5,1010; ld a5,-1994(a5); ret; ecall; no instruction; one byte
    let riscv = b"\xef\x00\x00\x01\x63\x96\x07\x00\x83\xb7\x67\x83\x82\x80\x73\x00\x00\x00\xff\xff\x01";
    let found = of(243, riscv);
    let texts: Vec<&str> = found.iter().map(|found| &*found.0).collect();
    assert_eq!(
        texts,
        [
            "jal    1010 <main+0x10>",
            "bnez   a5, 1010 <main+0x10>",
            "ld     a5, -0x7ca(a5)",
            "ret",
            "ecall",
            ".inst  0xffff",
            ".inst  0x01"
        ]
    );
    let flows: Vec<Flow> = found.iter().map(|found| found.1).collect();
    use Flow::*;
    assert_eq!(flows, [Call, Branch, Next, Return, Call, Next, Next]);
    assert_eq!(found[1].2, Some(0x1010));
    // bl 1010; li r9,0; blr
    let power = b"\x11\x00\x00\x48\x00\x00\x20\x39\x20\x00\x80\x4e";
    let found = of(21, power);
    assert_eq!(found[0], ("bl     1010 <main+0x10>".to_owned(), Call, Some(0x1010)));
    assert_eq!(found[2], ("blr".to_owned(), Return, None));
}

/// Checks D2 beside objdump for every function of the C libraries of RISC-V and 32-bit ARM, of
/// Debian's packages for cross-compiling: all boundaries, but those of constants. The instructions
/// of PowerPC all have four bytes.
#[cfg(feature = "capstone")]
#[test]
fn boundaries_of_other_machines() {
    // With what part of the functions may differ: ARM has constants between its instructions, where
    // both tools guess.
    let machines = [
        ("riscv64-linux-gnu", "libc6-riscv64-cross", 0.0),
        ("arm-linux-gnueabihf", "libc6-armhf-cross", 0.1),
    ];
    for (target, package, may_differ) in machines {
        let path = PathBuf::from(format!("/usr/{target}/lib/libc.so.6"));
        let output = Command::new(format!("{target}-objdump")).args(["-d", "-z"]).arg(&path).output();
        let Some(output) = output.ok().filter(|output| output.status.success()) else {
            let why = format!("there is no {target}-objdump, or no {package}");
            kymo_testing::skip("disassembly::boundaries_of_other_machines", &why);
            continue;
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let line = |line: &str| {
            let (address, rest) = line.split_once(":\t")?;
            let (_bytes, text) = rest.split_once('\t')?;
            Some((u64::from_str_radix(address.trim(), 16).ok()?, text.to_owned()))
        };
        let expected: BTreeMap<u64, String> = text.lines().filter_map(line).collect();
        let store = SymbolStore::new(SymbolOptions { cache: None, ..SymbolOptions::default() });
        let key = ModuleKey::file(path, None);
        let (mut functions, mut wrong) = (0_u32, Vec::new());
        for symbol in store.get(&key).table().iter() {
            let Ok(code) = store.code(&key, symbol.start, symbol.end) else { continue };
            let end = code.address + code.bytes.len() as u64;
            let theirs: BTreeMap<u64, &String> =
                expected.range(code.address..end).map(|(at, text)| (*at, text)).collect();
            // Tables between instructions: objdump knows them by marks that stripped files lack.
            if theirs.is_empty() || theirs.values().any(|text| text.starts_with('.')) {
                continue;
            }
            functions += 1;
            let found = disassemble(&code, Syntax::Att, &no_name);
            if !found.iter().map(|found| found.address).eq(theirs.keys().copied()) {
                wrong.push(symbol.name.to_string());
            }
        }
        println!("{target}: {functions} functions, {} differ: {wrong:?}", wrong.len());
        let most_wrong = f64::from(functions) * may_differ;
        assert!(functions > 500 && wrong.len() as f64 <= most_wrong, "{target}: {functions}, {wrong:?}");
    }
}

/// Checks that code of every length up to the limit is taken, and none beyond it.
#[test]
fn long_functions() {
    let long = vec![0x90; MOST_CODE_BYTES as usize + 1];
    let of = |bytes: &[u8]| FunctionCode::of_bytes("x".into(), 0, bytes, 62);
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
        let key = ModuleKey::file(path.clone(), None);
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
