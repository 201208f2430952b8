//! Inlined functions and lines against addr2line.

use std::path::Path;
use std::process::Command;

use kymo_symbols::{ModuleKey, SymbolOptions, SymbolStore};

use crate::tools::{run, workshop};

const C: &str = r#"
#include <stdio.h>
static inline __attribute__((always_inline)) int inner(int x) { int s = 0; for (int i = 0; i < x; i++) s += i ^ x; return s; }
static inline __attribute__((always_inline)) int middle(int x) { return inner(x + 1) * 3; }
__attribute__((noinline)) int outer(int x) { int a = middle(x); return a + inner(x); }
int main(int argc, char **argv) { printf("%d\n", outer(argc) + middle(argc)); return 0; }
"#;

/// Function, file and line.
type Frame = (String, String, Option<u32>);

/// The frames at each address, innermost first, as addr2line prints them.
fn addr2line(file: &Path, addresses: &[u64]) -> Vec<Vec<Frame>> {
    let list: Vec<String> = addresses.iter().map(|address| format!("{address:#x}")).collect();
    let mut command = Command::new("addr2line");
    let output = command.args(["-a", "-i", "-f", "-e"]).arg(file).args(&list).output().expect("addr2line");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut all: Vec<Vec<Frame>> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            all.push(Vec::new());
            continue;
        }
        let location = lines.next().unwrap_or("");
        let location = location.split(" (discriminator").next().unwrap_or("");
        let (file, number) = location.rsplit_once(':').unwrap_or((location, ""));
        let frame = (line.to_owned(), file.to_owned(), number.parse().ok());
        all.last_mut().expect("an address first").push(frame);
    }
    all
}

/// Checks every instruction byte of the program's functions against addr2line: functions, files and lines.
fn check(what: &str, file: &Path, wanted: &str) {
    let store = SymbolStore::new(SymbolOptions { demangle: false, ..SymbolOptions::default() });
    let module = store.get(&ModuleKey::file(file.to_owned(), None));
    let mut addresses = Vec::new();
    for symbol in module.table().iter().filter(|symbol| symbol.raw_name.contains(wanted)) {
        addresses.extend(symbol.start..symbol.end.min(symbol.start + 400));
    }
    assert!(!addresses.is_empty(), "{what}: no function {wanted}");
    // The program is linked so that text lies at the same offset in the file and in memory.
    let theirs = addr2line(file, &addresses);
    assert_eq!(theirs.len(), addresses.len());
    let mut deepest = 0;
    for (address, theirs) in addresses.iter().zip(theirs) {
        let ours: Vec<Frame> = module
            .inline_frames(*address)
            .iter()
            .map(|frame| {
                let file = frame.file.as_deref().unwrap_or("??");
                (frame.function.as_deref().unwrap_or("??").to_owned(), file.to_owned(), frame.line)
            })
            .collect();
        deepest = deepest.max(ours.len());
        let short = |list: &[Frame]| -> Vec<Frame> {
            let name = |path: &str| path.rsplit('/').next().unwrap_or("").to_owned();
            // Line 0 means "no line"; addr2line prints it as ?.
            list.iter().map(|(f, p, l)| (f.clone(), name(p), l.filter(|&line| line != 0))).collect()
        };
        assert_eq!(short(&ours), short(&theirs), "{what}: {address:#x}");
    }
    assert!(deepest >= 2, "{what}: nothing is inlined, so nothing was tested");
}

/// Checks inline frames of plain, compressed and split debug information.
#[test]
fn inlined_functions_and_lines_are_those_of_addr2line() {
    let (test, tools) =
        ("inlined_functions_and_lines_are_those_of_addr2line", ["gcc", "addr2line", "objcopy", "strip"]);
    let Some(dir) = workshop(test, &tools, &[("a.c", C)]) else { return };
    let dir = dir.path();
    for (name, flags) in [
        ("plain", &["-O2", "-g"][..]),
        ("dwarf4", &["-O2", "-gdwarf-4"]),
        ("compressed", &["-O2", "-g", "-gz=zlib"]),
        ("no-pie", &["-O2", "-g", "-no-pie", "-Wl,-Ttext-segment=0"]),
    ] {
        let mut arguments = vec!["a.c", "-o", name];
        arguments.extend_from_slice(flags);
        run(dir, "gcc", &arguments);
        check(name, &dir.join(name), "outer");
    }
    run(dir, "objcopy", &["--only-keep-debug", "plain", "plain.debug"]);
    run(dir, "strip", &["plain"]);
    run(dir, "objcopy", &["--add-gnu-debuglink=plain.debug", "plain"]);
    check("split", &dir.join("plain"), "outer");
}

/// Checks that debug information packed in the old way, in sections named `.zdebug_*`, has the
/// same lines and inlined functions.
#[test]
fn zlib_gnu_sections_have_lines_and_inlined_functions() {
    let test = "zlib_gnu_sections_have_lines_and_inlined_functions";
    let Some(dir) = workshop(test, &["gcc", "addr2line", "readelf"], &[("a.c", C)]) else { return };
    let dir = dir.path();
    run(dir, "gcc", &["a.c", "-o", "zdebug", "-O2", "-g", "-gdwarf-4", "-gz=zlib-gnu"]);
    assert!(run(dir, "readelf", &["-SW", "zdebug"]).contains(".zdebug_info"), "another form was written");
    check("zlib-gnu", &dir.join("zdebug"), "outer");
    run(dir, "gcc", &["a.c", "-o", "old", "-O2", "-g", "-gdwarf-3", "-gz=zlib-gnu"]);
    check("zlib-gnu, DWARF 3", &dir.join("old"), "main");
}

/// Checks that functions are found which the compiler split off: in files of their own, beside the
/// program when they were moved, and in a package; and that one sentence names what is missing.
#[test]
fn split_debug_information() {
    let test = "split_debug_information";
    let Some(dir) = workshop(test, &["gcc", "llvm-dwp"], &[("a.c", C)]) else { return };
    let dir = dir.path();
    for (name, flags) in [("five", &["-gdwarf-5"][..]), ("four", &["-gdwarf-4"])] {
        let folder = dir.join(name);
        std::fs::create_dir(&folder).expect("a folder");
        std::fs::copy(dir.join("a.c"), folder.join("a.c")).expect("copied");
        let both = ["a.c", "-O2", "-g", "-o"];
        run(&folder, "gcc", &[&both[..], &["whole"], flags].concat());
        run(&folder, "gcc", &[&both[..], &["split", "-gsplit-dwarf"], flags].concat());
        let split = folder.join("split");
        assert_eq!(frames(&split), frames(&folder.join("whole")), "{name}");
        run(&folder, "llvm-dwp", &["-e", "split", "-o", "split.dwp"]);
        let dwo = folder.join("split-a.dwo");
        assert!(dwo.is_file(), "gcc calls it otherwise");
        std::fs::create_dir(folder.join("moved")).expect("a folder");
        std::fs::rename(&dwo, folder.join("moved/split-a.dwo")).expect("moved");
        assert_eq!(frames(&split), frames(&folder.join("whole")), "{name}, packed");
        std::fs::remove_file(folder.join("split.dwp")).expect("removed");
        let (found, notes) = (frames(&split), notes(&split));
        assert!(found.iter().all(|frames| frames.1.len() < 2), "{name}: {found:?}");
        assert!(notes.len() == 1 && notes[0].contains("inlined functions of"), "{name}: {notes:?}");
        assert!(
            notes[0].contains("split-a.dwo: No such file") && notes[0].contains("split.dwp"),
            "{notes:?}"
        );
        std::fs::copy(&split, folder.join("moved/split")).expect("copied");
        assert_eq!(frames(&folder.join("moved/split")), frames(&folder.join("whole")), "{name}, moved");
    }
}

/// The functions at each address of `outer`, by their distance from its first one.
fn frames(file: &Path) -> Vec<(u64, Vec<String>)> {
    let (store, key) = module_of(file);
    let module = store.get(&key);
    let outer = module.table().iter().find(|symbol| symbol.raw_name == "outer").expect("outer");
    let name = |frame: &kymo_symbols::InlineFrame| {
        format!("{} {:?}", frame.function.as_deref().unwrap_or("??"), frame.line)
    };
    (outer.start..outer.end)
        .map(|address| (address - outer.start, module.inline_frames(address).iter().map(name).collect()))
        .collect()
}

/// What is said of a file whose functions were asked for.
fn notes(file: &Path) -> Vec<String> {
    let (store, key) = module_of(file);
    let module = store.get(&key);
    let outer = module.table().iter().find(|symbol| symbol.raw_name == "outer").expect("outer");
    (outer.start..outer.end).for_each(|address| _ = module.inline_frames(address));
    module.notes().into_iter().map(|note| note.0).collect()
}

fn module_of(file: &Path) -> (SymbolStore, ModuleKey) {
    let store = SymbolStore::new(SymbolOptions { demangle: false, ..SymbolOptions::default() });
    (store, ModuleKey::file(file.to_owned(), None))
}
