//! The most obvious reader of lines and inlined functions, addr2line's: it reads the roots of all
//! units before it answers. The tests compare every answer with its.
use std::path::Path;
use std::sync::Arc;

use gimli::Reader as _;

use super::{InlineFrame, Lines, sections_of};
use crate::budget::Budget;
use crate::elf::ElfFile;
use crate::name::shortened;
use crate::options::SymbolOptions;

/// The frames at a linked address, innermost first.
fn frames_of(context: &addr2line::Context<super::Reader>, linked: u64) -> Vec<InlineFrame> {
    let Ok(mut found) = context.find_frames(linked).skip_all_loads() else { return Vec::new() };
    let mut frames = Vec::new();
    while let Ok(Some(frame)) = found.next() {
        let text = |bytes: &[u8]| Arc::<str>::from(&*shortened(bytes));
        let location = frame.location.as_ref();
        frames.push(InlineFrame {
            function: frame
                .function
                .and_then(|function| function.name.to_slice().ok().map(|name| text(&name))),
            file: location.and_then(|at| at.file).map(|file| text(file.as_bytes())),
            line: location.and_then(|at| at.line),
        });
    }
    frames
}

/// Compares the answers at linked addresses of a file; how many have frames.
fn compare(path: &Path, addresses: impl Iterator<Item = u64>) -> usize {
    let elf = Arc::new(ElfFile::open(path, &Budget::new()).expect("an ELF file"));
    let (mut dwarf, _room) = sections_of(&elf);
    if let Ok(Some(shared)) = super::supplementary(&elf) {
        dwarf.set_sup(sections_of(&shared).0);
    }
    let model = addr2line::Context::from_arc_dwarf(Arc::new(dwarf)).expect("debug information");
    let options = SymbolOptions { demangle: false, ..SymbolOptions::default() };
    // Without a file that was mapped, addresses are linked ones.
    let lines = Lines::new(Some(Arc::clone(&elf)), None, 0, &options);
    let mut named = 0;
    for address in addresses {
        let (ours, mut theirs) = (lines.frames(address), frames_of(&model, address));
        if ours.len() < theirs.len() {
            // It takes what was split off a function for another call of it.
            theirs.dedup_by(|outer, inner| outer.function == inner.function);
        }
        assert_eq!(&*ours, &*theirs, "{}: {address:#x}", path.display());
        named += usize::from(!ours.is_empty());
    }
    assert_eq!(lines.refusals(), Vec::<String>::new(), "{}", path.display());
    named
}

/// Every `step`th address of the code of a file.
fn addresses(path: &Path, step: u64) -> Vec<u64> {
    let elf = ElfFile::open(path, &Budget::new()).expect("an ELF file");
    let code = elf.sections.iter().filter(|section| section.flags & crate::elf::SHF_EXECINSTR != 0);
    code.flat_map(|section| (section.addr..section.addr + section.size).step_by(step as usize)).collect()
}

/// Checks the answers at many addresses of this test's own program, a large program of Rust.
#[test]
fn the_answers_of_addr2line_in_a_program_of_rust() {
    let path = std::env::current_exe().expect("this program");
    let step = std::env::var("KYMO_ADDRESS_STEP").ok().and_then(|step| step.parse().ok()).unwrap_or(4099);
    let all = addresses(&path, step);
    let named = compare(&path, all.iter().copied());
    assert!(named > all.len() / 2, "{named} of {}", all.len());
}

/// Checks the answers at many addresses of the files in `KYMO_SYMBOL_FILES`.
#[test]
fn the_answers_of_addr2line_in_named_files() {
    let files = std::env::var("KYMO_SYMBOL_FILES").unwrap_or_default();
    for file in files.split(':').filter(|file| !file.is_empty()) {
        let all = addresses(Path::new(file), 1009);
        eprintln!(
            "{file}: {} of {} addresses have frames",
            compare(Path::new(file), all.iter().copied()),
            all.len()
        );
    }
}

/// Checks the answers at every byte of programs of C in all forms that gcc writes: versions of
/// DWARF, one unit or several, without `.debug_aranges`, with sections for each function, and with
/// the whole program optimized at the link.
#[test]
fn the_answers_of_addr2line_in_programs_of_c() {
    const ONE: &str = "static inline __attribute__((always_inline)) int in(int x) { return x * x + 3; }
        __attribute__((noinline)) int other(int x) { int s = 0; while (x-- > 0) s += in(x ^ s); return s; }
        __attribute__((noinline, cold)) int unused_one(int x) { return in(x) * 7; }";
    const TWO: &str = "int other(int);
        static inline __attribute__((always_inline)) int a(int x) { return other(x) + 1; }
        static inline __attribute__((always_inline)) int b(int x) { return a(x) * a(x + 1); }
        int main(int c, char **v) { if (c > 5) __builtin_abort(); return b(c) + b(c * 2); }";
    let tool = |name: &str| std::process::Command::new(name).arg("--version").output().is_ok();
    let test = "the_answers_of_addr2line_in_programs_of_c";
    if !tool("gcc") || !tool("objcopy") {
        return kymo_testing::skip(test, "gcc or objcopy is missing");
    }
    let dir = tempfile::tempdir().expect("a folder");
    for (name, text) in [("one.c", ONE), ("two.c", TWO)] {
        std::fs::write(dir.path().join(name), text).expect("written");
    }
    let run = |tool: &str, arguments: &[&str]| {
        let status = std::process::Command::new(tool).args(arguments).current_dir(dir.path()).status();
        assert!(status.expect("it starts").success(), "{tool} {arguments:?}");
    };
    for (name, flags) in [
        ("v5", &["-O2", "-g"][..]),
        ("v4", &["-O2", "-gdwarf-4"]),
        ("v3", &["-O2", "-gdwarf-3"]),
        ("sections", &["-O2", "-g", "-ffunction-sections", "-Wl,--gc-sections"]),
        ("whole", &["-O2", "-g", "-flto"]),
        ("types", &["-O2", "-g", "-fdebug-types-section"]),
        ("wide", &["-O2", "-g", "-gdwarf64"]),
        ("packed", &["-O2", "-g", "-gz"]),
    ] {
        let arguments = [&["one.c", "two.c", "-o", name][..], flags].concat();
        run("gcc", &arguments);
        let path = dir.path().join(name);
        let named = compare(&path, addresses(&path, 1).into_iter());
        assert!(named > 50, "{name}: {named}");
        run("objcopy", &["--remove-section=.debug_aranges", name, "bare"]);
        let bare = dir.path().join("bare");
        assert_eq!(compare(&bare, addresses(&path, 1).into_iter()), named, "{name}");
    }
}
