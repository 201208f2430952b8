//! The compressed symbol table of stripped files, made as Fedora's packages make it.

use std::collections::BTreeMap;
use std::path::Path;

use kymo_symbols::{ModuleKey, SymbolOptions, SymbolStore};

use crate::tools::{run, workshop};

const TOOLS: [&str; 4] = ["gcc", "nm", "objcopy", "xz"];

/// The functions that kymo finds in a file, by name, with their sizes; and what it notes.
fn functions(path: &Path) -> (BTreeMap<String, u64>, Vec<String>) {
    let store = SymbolStore::new(SymbolOptions { demangle: false, ..SymbolOptions::default() });
    let module = store.get(&ModuleKey::file(path.into(), None));
    let found = module.table().iter().map(|symbol| (symbol.raw_name.to_owned(), symbol.end - symbol.start));
    (found.collect(), module.notes().iter().map(|note| note.0.clone()).collect())
}

/// Puts bytes, compressed, into a copy of the stripped program.
fn carrying(dir: &Path, name: &str, packed: &str) -> std::path::PathBuf {
    run(dir, "objcopy", &["--add-section", &format!(".gnu_debugdata={packed}"), "stripped", name]);
    dir.join(name)
}

/// Checks that a stripped program has the names of its local functions with the sizes that nm gives,
/// from the compressed table, and those of `.dynsym`; that what unpacks to more than a table does is
/// refused with a sentence; and that damaged bytes do no harm.
#[test]
fn stripped_files_that_carry_symbols() {
    let Some(folder) = workshop("symbols::mini_debug_info", &TOOLS, &[("a.c", super::C)]) else { return };
    let dir = folder.path();
    run(dir, "gcc", &["a.c", "-g", "-O2", "-rdynamic", "-lm", "-o", "whole"]);
    run(dir, "objcopy", &["--only-keep-debug", "whole", "debug"]);
    run(dir, "objcopy", &["-S", "whole", "stripped"]);
    let listed = run(dir, "nm", &["--format=posix", "--defined-only", "whole"]);
    let local: BTreeMap<&str, u64> = (listed.lines())
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let size = fields.get(3).and_then(|size| u64::from_str_radix(size, 16).ok())?;
            // Of several names of one address one is shown.
            let is_only = listed.matches(fields[2]).count() == 1;
            (fields[1] == "t" && size > 0 && is_only).then_some((fields[0], size))
        })
        .collect();
    assert!(local.contains_key("only_here") && local.len() > 1, "{listed}");
    let keep: String = local.keys().map(|name| format!("{name}\n")).collect();
    std::fs::write(dir.join("keep"), keep).expect("a file");
    run(dir, "objcopy", &["-S", "--keep-symbols=keep", "debug", "mini"]);
    run(dir, "xz", &["mini"]);
    let (without, _) = functions(&dir.join("stripped"));
    assert!(!without.contains_key("only_here") && without.contains_key("main"), "{without:?}");
    let (found, notes) = functions(&carrying(dir, "carrying", "mini.xz"));
    for (name, size) in &local {
        assert_eq!(found.get(*name), Some(size), "{name}: {found:?} {notes:?}");
    }
    assert!(found.contains_key("main"), "{found:?}");
    assert!(notes.is_empty(), "{notes:?}");

    std::fs::write(dir.join("zeros"), vec![0; 80 << 20]).expect("a file");
    run(dir, "xz", &["-0", "zeros"]);
    let (bomb, notes) = functions(&carrying(dir, "bomb", "zeros.xz"));
    assert_eq!(bomb, without);
    assert!(notes.iter().any(|note| note.contains("unpacks to more than")), "{notes:?}");

    let packed = std::fs::read(dir.join("mini.xz")).expect("a file");
    for cut in [0, 7, packed.len() / 2] {
        let mut damaged = packed.clone();
        damaged[cut] ^= 0x55;
        std::fs::write(dir.join("damaged.xz"), damaged).expect("a file");
        let (found, notes) = functions(&carrying(dir, "damaged", "damaged.xz"));
        assert!(!found.contains_key("only_here"), "{found:?}");
        assert!(notes.iter().any(|note| note.contains(".gnu_debugdata")), "{notes:?}");
    }
}
