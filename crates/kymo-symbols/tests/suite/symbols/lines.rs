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

/// Checks that calls which were inlined into their own function are frames: half of a recursion was
/// missing.
#[test]
fn recursion_that_was_inlined_is_shown() {
    const RECURSION: &str = "volatile int sink;
        static inline __attribute__((always_inline)) int leaf(int n) {
            for (int i = 0; i < n; i++) sink += i % 7;
            return sink + n; }
        int outer(int n) { if (n > 0) return outer(n - 1) + 1; return leaf(n); }
        int main(int c, char **v) { return outer(40 + c); }";
    let test = "recursion_that_was_inlined_is_shown";
    let Some(dir) = workshop(test, &["gcc"], &[("r.c", RECURSION)]) else { return };
    let dir = dir.path();
    for flags in ["-gdwarf-5", "-gdwarf-4"] {
        run(dir, "gcc", &["r.c", "-o", "recursion", "-O2", flags, "-fno-optimize-sibling-calls"]);
        // addr2line shows three: gcc has also split a part off.
        assert_eq!(most_at_once("outer", &frames(&dir.join("recursion"))), 2, "{flags}");
    }
}

/// Checks that the rest of a call, which gcc splits off behind an early return and inlines again,
/// is not taken for another call, and has its own lines.
#[test]
fn what_was_split_off_a_function_is_no_call() {
    const SPLIT: &str = "#include <stdio.h>
        volatile int sink;
        static int part(int *p, int n) {
            if (!p) return -1;
            int s = 0;
            for (int i = 0; i < n; i++) {
                s += p[i] * 3; sink += s; if (s % 7 == 3) printf(\"x\");
                for (int j = 0; j < n; j++) sink += j * i;
            }
            return s; }
        __attribute__((noinline)) int outer(int *p, int n) { return part(p, n); }
        __attribute__((noinline)) int other(int *p, int n) { return part(p, n) + 1; }
        int main(int c, char **v) { int a[100] = {0}; for (int i = 0; i < c * 100; i++)
            sink += outer(a, 100) + other(c > 1 ? a : 0, 100); return sink; }";
    let test = "what_was_split_off_a_function_is_no_call";
    let Some(dir) = workshop(test, &["gcc", "llvm-dwarfdump"], &[("s.c", SPLIT)]) else { return };
    let dir = dir.path();
    run(dir, "gcc", &["s.c", "-o", "split", "-O3", "-g"]);
    let dump = run(dir, "llvm-dwarfdump", &["--name=part", "-c", "split"]);
    let parts = dump.matches("DW_AT_call_line\t(3)").count();
    let found = frames(&dir.join("split"));
    assert_eq!(most_at_once("part", &found), 1, "{parts} parts: {found:#?}");
    assert!(found.iter().any(|(_, frames)| frames[0] == "part Some(8)"), "{found:#?}");
    if parts == 0 {
        kymo_testing::skip(test, "this gcc split nothing off");
    }
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

/// Checks that functions are found whose names and units `dwz` has put into a file that two
/// programs share; and that where this file is missing or another one, nothing wrong is named, and
/// one sentence says which file it is.
#[test]
fn shared_debug_information() {
    let test = "shared_debug_information";
    let Some(dir) = workshop(test, &["gcc", "dwz", "readelf"], &[("a.c", C)]) else { return };
    for (name, flags, form, section) in [
        ("four", "-gdwarf-4", &[][..], ".gnu_debugaltlink"),
        ("five", "-gdwarf-5", &[], ".gnu_debugaltlink"),
        ("standard", "-gdwarf-5", &["--dwarf-5"], ".debug_sup"),
    ] {
        let folder = dir.path().join(name);
        std::fs::create_dir(&folder).expect("a folder");
        for program in ["whole", "one", "two"] {
            run(&folder, "gcc", &["../a.c", "-O2", "-g", flags, "-o", program]);
        }
        run(&folder, "dwz", &[form, &["-m", "shared.debug", "-r", "one", "two"]].concat());
        let one = folder.join("one");
        assert!(run(&folder, "readelf", &["-SW", "one"]).contains(section), "{name}: nothing is shared");
        let whole = frames(&folder.join("whole"));
        assert_eq!(frames(&one), whole, "{name}");
        assert_eq!(notes(&one), [""; 0], "{name}");
        let (shared, away) = (folder.join("shared.debug"), folder.join("away"));
        std::fs::rename(&shared, &away).expect("moved");
        let is_said = |why: &str| {
            let (found, notes) = (frames(&one), notes(&one));
            let known = |text: &String| whole.iter().any(|(_, frames)| frames.contains(text));
            let (named, unnamed): (Vec<_>, Vec<_>) =
                found.iter().flat_map(|(_, frames)| frames).partition(|text| !text.starts_with("??"));
            assert!(named.into_iter().all(known) && !unnamed.is_empty(), "{name}: {found:?}");
            assert!(notes.len() == 1 && notes[0].contains(why), "{name}: {notes:?}");
            assert!(notes[0].contains("shared.debug"), "{name}: {notes:?}");
        };
        is_said("No such file");
        run(&folder, "gcc", &["../a.c", "-O1", "-g", flags, "-o", "shared.debug"]);
        is_said("it is of another build");
    }
}

/// Checks the functions that clang splits off in DWARF 5 and 4, in files of their own and packed.
#[test]
fn split_debug_information_of_clang() {
    let test = "split_debug_information_of_clang";
    let Some(dir) = workshop(test, &["clang", "llvm-dwp"], &[("a.c", C)]) else { return };
    for flags in ["-gdwarf-5", "-gdwarf-4"] {
        let folder = dir.path().join(flags);
        std::fs::create_dir(&folder).expect("a folder");
        std::fs::copy(dir.path().join("a.c"), folder.join("a.c")).expect("copied");
        // All functions are in the split file only.
        let both = ["-O2", "-g", flags, "-fno-split-dwarf-inlining"];
        run(&folder, "clang", &[&both[..], &["a.c", "-o", "whole"]].concat());
        run(&folder, "clang", &[&both[..], &["-gsplit-dwarf", "-c", "a.c"]].concat());
        run(&folder, "clang", &["a.o", "-o", "split"]);
        let (split, whole) = (folder.join("split"), frames(&folder.join("whole")));
        assert!(whole.iter().any(|(_, frames)| frames.len() > 1), "nothing is inlined");
        assert_eq!(frames(&split), whole, "{flags}");
        run(&folder, "llvm-dwp", &["-e", "split", "-o", "split.dwp"]);
        std::fs::remove_file(folder.join("a.dwo")).expect("clang's name for it");
        assert_eq!(frames(&split), whole, "{flags}, packed");
        std::fs::remove_file(folder.join("split.dwp")).expect("removed");
        let (found, notes) = (frames(&split), notes(&split));
        assert!(found.iter().all(|(_, frames)| frames.len() < 2), "{flags}: {found:?}");
        assert!(notes.len() == 1 && notes[0].contains("a.dwo: No such file"), "{flags}: {notes:?}");
    }
}

const RUST: &str = r#"
#[inline(always)] fn inner(x: i32) -> i32 { let mut s = 0i32; for i in 0..x { s = s.wrapping_add(i ^ x); std::hint::black_box(s); } s }
#[inline(always)] fn middle(x: i32) -> i32 { inner(x + 1).wrapping_mul(3) }
#[unsafe(no_mangle)] #[inline(never)] pub extern "C" fn outer(x: i32) -> i32 { let a = middle(x); a.wrapping_add(inner(x)) }
fn main() { println!("{}", outer(std::env::args().count() as i32)); }
"#;

/// Checks the functions that rustc splits off: `-C split-debuginfo=unpacked`, and `packed`.
#[test]
fn split_debug_information_of_rustc() {
    let test = "split_debug_information_of_rustc";
    let Some(dir) = workshop(test, &["rustc", "cc"], &[("a.rs", RUST)]) else { return };
    let dir = dir.path();
    let build = |program: &str, split: &str| {
        let split = format!("split-debuginfo={split}");
        let options = ["--edition", "2024", "-O", "-g", "-C", "codegen-units=1", "-C", &split];
        run(dir, "rustc", &[&options[..], &["a.rs", "-o", program]].concat());
        dir.join(program)
    };
    let whole = frames(&build("whole", "off"));
    assert!(whole.iter().any(|(_, frames)| frames.len() > 1), "nothing is inlined");
    let unpacked = build("unpacked", "unpacked");
    assert_eq!(frames(&unpacked), whole, "unpacked");
    let packed = build("packed", "packed");
    assert!(dir.join("packed.dwp").is_file(), "rustc packs otherwise");
    assert_eq!(frames(&packed), whole, "packed");
    std::fs::remove_file(dir.join("packed.dwp")).expect("removed");
    let said = notes(&packed);
    assert!(said.len() == 1 && said[0].contains("packed.dwp"), "{said:?}");
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

/// How often a function is among the frames of one address at most.
fn most_at_once(name: &str, found: &[(u64, Vec<String>)]) -> usize {
    let count = |frames: &Vec<String>| frames.iter().filter(|frame| frame.starts_with(name)).count();
    found.iter().map(|(_, frames)| count(frames)).max().unwrap_or(0)
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
