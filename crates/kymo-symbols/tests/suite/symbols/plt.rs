//! Stubs of the procedure linkage table against objdump.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use kymo_symbols::{ModuleKey, SymbolOptions, SymbolStore};

use super::files_of_this_machine;
use crate::tools::{run, workshop};

const SECTIONS: [&str; 3] = [".plt", ".plt.sec", ".plt.got"];

/// objdump's names of all stubs, by file offset; nothing for a file that it does not read.
fn named_by_objdump(path: &Path) -> BTreeMap<u64, String> {
    let text = |arguments: &[&str]| {
        let output = Command::new("objdump").args(arguments).arg(path).env("LC_ALL", "C").output();
        String::from_utf8_lossy(&output.expect("objdump").stdout).into_owned()
    };
    let headers = text(&["-h", "-w"]);
    let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let mut names = BTreeMap::new();
    for section in SECTIONS {
        let fields = headers.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let Some(fields) = fields.into_iter().find(|fields| fields.get(1) == Some(&section)) else {
            continue;
        };
        let (Some(address), Some(offset)) = (hex(fields[3]), hex(fields[5])) else { continue };
        for line in text(&["-d", "-j", section]).lines() {
            let Some((start, rest)) = line.split_once(" <") else { continue };
            if let (Some(start), Some(name)) = (hex(start), rest.strip_suffix(">:"))
                && name.ends_with("@plt")
            {
                names.insert(start - address + offset, name.to_owned());
            }
        }
    }
    names
}

fn compare(path: &Path) -> usize {
    let expected = named_by_objdump(path);
    let store = SymbolStore::new(SymbolOptions { demangle: false, ..SymbolOptions::default() });
    let module = store.get(&ModuleKey::file(path.into(), None));
    if module.table().is_empty() {
        return 0;
    }
    let found: BTreeMap<u64, String> = module
        .table()
        .iter()
        .filter(|symbol| symbol.raw_name.ends_with("@plt"))
        .map(|symbol| (symbol.start, symbol.raw_name.to_owned()))
        .collect();
    let wrong: Vec<_> = expected
        .keys()
        .chain(found.keys())
        .filter(|at| expected.get(at) != found.get(at))
        .map(|at| format!("{at:#x}: objdump {:?}, kymo {:?}", expected.get(at), found.get(at)))
        .collect();
    assert!(
        wrong.is_empty(),
        "{}: {} stubs\n{}",
        path.display(),
        expected.len(),
        wrong[..wrong.len().min(12)].join("\n")
    );
    expected.len()
}

/// Checks that stubs have objdump's names in programs linked in every way, with functions that are chosen at the start
/// (IFUNC), and in this machine's files.
#[test]
fn stubs_are_named_as_by_objdump() {
    let test = "stubs_are_named_as_by_objdump";
    let Some(dir) = workshop(test, &["gcc", "objdump"], &[("a.c", super::C)]) else { return };
    let mut stubs = 0;
    for (name, flags) in [
        ("plain", &[][..]),
        ("lazy", &["-Wl,-z,lazy"]),
        ("now", &["-Wl,-z,now"]),
        ("marked", &["-fcf-protection", "-Wl,-z,ibtplt"]),
        ("marked-lazy", &["-fcf-protection", "-Wl,-z,ibtplt", "-Wl,-z,lazy"]),
        ("no-plt", &["-fno-plt"]),
        ("fixed", &["-no-pie"]),
        ("library", &["-shared", "-fPIC"]),
        ("stripped", &["-s"]),
    ] {
        let mut arguments = vec!["a.c", "-O1", "-lm", "-o", name];
        arguments.extend(flags);
        run(dir.path(), "gcc", &arguments);
        stubs += compare(&dir.path().join(name));
    }
    assert!(stubs > 20, "{stubs} stubs");
    for file in files_of_this_machine() {
        stubs += compare(&file);
    }
    eprintln!("{stubs} stubs");
}

/// Checks that code of `.plt` that no stub covers is called `.plt`, as newer perf names it: the header where calls are
/// bound lazily, and the whole section where `.plt.sec` has the stubs.
#[test]
fn what_resolves_functions_is_no_address() {
    let test = "what_resolves_functions_is_no_address";
    let Some(dir) = workshop(test, &["gcc", "objdump"], &[("a.c", super::C)]) else { return };
    for (name, flags) in
        [("lazy", &["-fcf-protection=none"][..]), ("marked", &["-fcf-protection", "-Wl,-z,ibtplt"])]
    {
        // Stripped: `_init`, which has no length, would reach into `.plt`.
        let mut arguments = vec!["a.c", "-O1", "-lm", "-shared", "-fPIC", "-s", "-Wl,-z,lazy", "-o", name];
        arguments.extend(flags);
        run(dir.path(), "gcc", &arguments);
        let path = dir.path().join(name);
        let headers = run(dir.path(), "objdump", &["-h", "-w", name]);
        let section = |name: &str| {
            let fields = headers.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let fields = fields.into_iter().find(|fields| fields.get(1) == Some(&name))?;
            let hex = |digits: &str| u64::from_str_radix(digits, 16).expect("a number");
            Some((hex(fields[5]), hex(fields[2])))
        };
        let (offset, size) = section(".plt").expect("a .plt");
        let store = SymbolStore::new(SymbolOptions { demangle: false, ..SymbolOptions::default() });
        let module = store.get(&ModuleKey::file(path, None));
        let named = |at: u64| module.table().find(at).map(|symbol| symbol.raw_name.to_owned());
        assert_eq!(named(offset).as_deref(), Some(".plt"), "{name}");
        assert_eq!(named(offset + 15).as_deref(), Some(".plt"), "{name}");
        let last = named(offset + size - 1).expect("a name");
        assert_eq!(last == ".plt", section(".plt.sec").is_some(), "{name}: {last}");
    }
}
