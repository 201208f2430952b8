//! Callers where unwind tables are missing, compressed or in another file: the right ones, or none.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::programs::sources;
use crate::tools::{Need, kymo, perf, ready, run, text};

/// Functions outside of `main` in programs of the GNU C library.
const OUTSIDE: [&str; 3] = ["_start", "__libc_start_main", "__libc_start_call_main"];

/// Runs a tool that must succeed.
fn done(command: &mut Command) {
    let said = run(command);
    assert_eq!(said.code, Some(0), "{}:\n{}", said.command, said.stderr);
}

/// A folder and a program in it, built from a source of the fixtures; `None`, said, where that
/// cannot be.
fn built(test: &str, compiler: &'static str, flags: &[&str], source: &str) -> Option<(TempDir, PathBuf)> {
    if !cfg!(target_arch = "x86_64") {
        kymo_testing::skip(test, "machine code of x86-64 only is looked at");
        return None;
    }
    if !ready(test, &[Need::Program(compiler)]) {
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join(source.split('.').next().expect("a name"));
    let mut command = Command::new(compiler);
    command.args(flags).arg(sources().join(source)).arg("-o").arg(&program);
    let said = run(&mut command);
    if said.code != Some(0) {
        kymo_testing::skip(test, format!("{}: {}", said.command, said.stderr));
        return None;
    }
    Some((folder, program))
}

/// The user frames of a recording's samples, outermost first, without the program's name and the
/// versions of names, and how many samples have them.
fn stacks_of(recording: &Path) -> Vec<(Vec<String>, usize)> {
    let said = kymo().succeed(["report", "-i", text(recording), "--folded"]);
    let stack = |line: &str| {
        let (frames, count) = line.rsplit_once(' ').expect("a stack and a number");
        let plain = |frame: &str| frame.split("@@").next().unwrap_or(frame).to_owned();
        (frames.split(';').skip(1).map(plain).collect(), count.parse().expect("a number"))
    };
    said.stdout.lines().map(stack).collect()
}

/// Records a program, without the kernel's frames: its stacks, and what the recorder says.
fn recorded(folder: &TempDir, program: &[&str]) -> (Vec<(Vec<String>, usize)>, String) {
    let path = folder.path().join("recording");
    let command = [&["record", "-F", "999", "-e", "cpu-clock:u", "-o", text(&path), "--"], program].concat();
    let said = kymo().succeed(command);
    (stacks_of(&path), said.stderr)
}

/// Of the samples in a function all, and those with exactly these frames.
fn exact(stacks: &[(Vec<String>, usize)], innermost: &str, frames: &[&str]) -> (usize, usize) {
    let inside = || stacks.iter().filter(|(names, _)| names.last().is_some_and(|name| name == innermost));
    let is_exact = |names: &[String]| names.iter().map(String::as_str).eq(frames.iter().copied());
    let sum = |all: &mut dyn Iterator<Item = &(Vec<String>, usize)>| all.map(|(_, count)| count).sum();
    (sum(&mut inside()), sum(&mut inside().filter(|(names, _)| is_exact(names))))
}

const WITHOUT_TABLES: [&str; 3] = ["-O1", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];

/// Takes the debug information out of a program, into a file that it names.
fn split_off(program: &Path) {
    let debug = program.with_extension("debug");
    let name = text(program);
    done(Command::new("objcopy").args(["--only-keep-debug", name, text(&debug)]));
    done(Command::new("objcopy").arg("-g").arg(format!("--add-gnu-debuglink={}", text(&debug))).arg(name));
}

/// Checks that a caller which is over, and whose return address is still on the stack, is in no
/// chain, and that the callers are right: with `.debug_frame` as it is, compressed in both ways, in
/// a separate file, and with no table at all.
#[test]
fn no_stale_caller() {
    const TEST: &str = "callers::no_stale_caller";
    if !ready(TEST, &[Need::Program("objcopy")]) {
        return;
    }
    let right = [&OUTSIDE[..], &["main", "render", "format"]].concat();
    for (flags, is_split) in [
        (&["-g"][..], false),
        (&["-g", "-gz"], false),
        (&["-g", "-gz=zlib-gnu"], false),
        (&["-g"], true),
        (&[], false),
    ] {
        let flags = [&WITHOUT_TABLES, flags].concat();
        let Some((folder, program)) = built(TEST, "gcc", &flags, "stalecaller.c") else { return };
        if is_split {
            split_off(&program);
        }
        let (stacks, _) = recorded(&folder, &[text(&program)]);
        let (all, whole) = exact(&stacks, "format", &right);
        // log_setup calls it, too, for some microseconds.
        assert!(all > 5 && whole >= all - 2, "{flags:?}: {whole} of {all}: {stacks:?}");
    }
}

/// Checks the callers of a function whose stack pointer is in a page that nobody has touched, so
/// that the kernel copies no byte of its stack.
#[test]
fn stack_whose_first_page_was_never_touched() {
    const TEST: &str = "callers::stack_whose_first_page_was_never_touched";
    if !ready(TEST, &[Need::Root]) {
        return;
    }
    let Some((folder, program)) = built(TEST, "gcc", &["-O1"], "untouchedstack.c") else { return };
    let (stacks, said) = recorded(&folder, &[text(&program)]);
    let (all, whole) = exact(&stacks, "work", &[&OUTSIDE[..], &["main", "render", "work"]].concat());
    // The pages are asked for once a first sample was seen.
    assert!(all > 20 && whole * 2 > all, "{whole} of {all}: {stacks:?}\n{said}");
}

/// Checks that stacks which perf has copied are unwound with a compressed `.debug_frame`, and with
/// one in a separate file.
#[test]
fn stacks_of_perf_with_debug_frame() {
    const TEST: &str = "callers::stacks_of_perf_with_debug_frame";
    if !ready(TEST, &[Need::Perf, Need::Program("objcopy")]) {
        return;
    }
    let right = [&OUTSIDE[..], &["main", "render", "format"]].concat();
    for (flags, is_split) in [(["-g", "-gz"], false), (["-g", "-O1"], true)] {
        let flags = [&WITHOUT_TABLES[..], &flags].concat();
        let Some((folder, program)) = built(TEST, "gcc", &flags, "stalecaller.c") else { return };
        if is_split {
            split_off(&program);
        }
        let path = folder.path().join("recording");
        let options =
            ["record", "--call-graph", "dwarf", "-F", "499", "-e", "cpu-clock:u", "-o", text(&path)];
        perf().succeed([&options[..], &["--", text(&program)]].concat());
        let stacks = stacks_of(&path);
        let (all, whole) = exact(&stacks, "format", &right);
        assert!(all > 5 && whole >= all - 2, "{flags:?}: {whole} of {all}: {stacks:?}");
    }
}

const GO: &str = "package main
import \"time\"
var sink uint64
//go:noinline
func leaf(n uint64) uint64 { sum := uint64(0); for i := uint64(0); i < n; i++ { sum += i*i ^ sum }; return sum }
//go:noinline
func level(n int) uint64 { if n == 0 { return leaf(100000) }; return level(n-1) + 1 }
//go:noinline
func other() uint64 { return leaf(90000) + 3 }
func main() {
	end := time.Now().Add(300 * time.Millisecond)
	done := make(chan int)
	go func() { for time.Now().Before(end) { sink += level(6) }; done <- 1 }()
	for time.Now().Before(end) { sink += other() }
	<-done
}
";

/// Checks programs of Go as they are built by default, whose `.debug_frame` is compressed, and
/// without debug information: the caller of a function without a frame is there, and all callers
/// up to where the goroutine begins.
#[test]
fn programs_of_go() {
    const TEST: &str = "callers::programs_of_go";
    if !cfg!(target_arch = "x86_64") || !ready(TEST, &[Need::Program("go")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("work.go"), GO).expect("a source");
    for flags in ["-ldflags=", "-ldflags=-s -w"] {
        let mut build = Command::new("go");
        build.args(["build", flags, "-o", "work", "work.go"]).current_dir(folder.path());
        done(build.env("GOCACHE", folder.path().join("cache")));
        let (stacks, _) = recorded(&folder, &[text(&folder.path().join("work"))]);
        let named =
            |begin: &str| stacks.iter().any(|(names, _)| names.first().is_some_and(|name| name == begin));
        let begin = if named("runtime.goexit.abi0") { "runtime.goexit.abi0" } else { "runtime.goexit" };
        let of_main = [begin, "runtime.main", "main.main", "main.other", "main.leaf"];
        let of_other = [&[begin, "main.main.func1"][..], &["main.level"; 7], &["main.leaf"]].concat();
        let (all, by_main) = exact(&stacks, "main.leaf", &of_main);
        let (_, by_other) = exact(&stacks, "main.leaf", &of_other);
        let whole = by_main + by_other;
        assert!(
            by_main > 0 && by_other > 0 && whole * 100 >= all * 99,
            "{flags}: {whole} of {all}: {stacks:?}"
        );
    }
}

/// Checks a static program of musl, whose code has no tables: the function that was called before
/// is in no chain, the chains reach `_start`, and none is counted as cut.
#[test]
fn static_programs_of_musl() {
    const TEST: &str = "callers::static_programs_of_musl";
    let flags = ["-O1", "-g", "-static"];
    let Some((folder, program)) = built(TEST, "musl-gcc", &flags, "stalecaller.c") else { return };
    let (stacks, said) = recorded(&folder, &[text(&program)]);
    let right = ["_start", "libc_start_main_stage2", "main", "render", "format"];
    let (all, whole) = exact(&stacks, "format", &right);
    assert!(all > 5 && whole >= all - 2, "{whole} of {all}: {stacks:?}");
    assert!(!said.contains("no unwind data"), "{said}");
}

/// Checks that a program whose code is in anonymous memory, at the addresses at which it was
/// mapped, has its names and callers, and that perf finds the names, too.
#[test]
fn text_moved_to_anonymous_memory() {
    const TEST: &str = "callers::text_moved_to_anonymous_memory";
    let library = ["-O1", "-g", "-shared", "-fPIC", "-DLIBRARY"];
    let Some((folder, built_library)) = built(TEST, "gcc", &library, "movedtext.c") else { return };
    let mover = folder.path().join("libmover.so");
    std::fs::rename(built_library, &mover).expect("the library takes its name");
    let program = folder.path().join("movedtext");
    let mut build = Command::new("gcc");
    build.args(["-O1", "-g"]).arg(sources().join("movedtext.c")).arg("-o").arg(&program).arg(&mover);
    done(&mut build);
    let (stacks, _) = recorded(&folder, &[text(&program)]);
    let right = [&OUTSIDE[..], &["main", "hot_alpha"]].concat();
    let (all, whole) = exact(&stacks, "hot_alpha", &right);
    // Samples that came before the memory was looked at have a guess, or no caller.
    let is_marked = |names: &[String]| names.len() == 1 || names.contains(&"[guessed]".to_owned());
    let inside = stacks.iter().filter(|(names, _)| names.last().is_some_and(|name| name == "hot_alpha"));
    let marked: usize = inside.filter(|(names, _)| is_marked(names)).map(|(_, count)| count).sum();
    assert!(whole > 5 && whole + marked >= all - 2, "{whole} of {all}: {stacks:?}");
    let generated = stacks.iter().filter(|(names, _)| names.iter().any(|name| name.contains("[JIT]")));
    assert_eq!(generated.count(), 0, "{stacks:?}");
    if ready(TEST, &[Need::Perf]) {
        let path = folder.path().join("recording");
        let said = perf().succeed(["script", "-i", text(&path), "-F", "ip,sym"]);
        assert!(said.stdout.contains("hot_alpha"), "{}", said.stdout);
    }
}

/// Checks generated code without unwind data and frame pointer, as LLVM makes it: its callers, in
/// files and in generated code, are those that its machine code says, and not marked as guessed.
#[test]
fn generated_code_without_frame_pointers() {
    const TEST: &str = "callers::generated_code_without_frame_pointers";
    let flags = ["-O1", "-g", "-fomit-frame-pointer"];
    let Some((folder, program)) = built(TEST, "gcc", &flags, "jitframes.c") else { return };
    let (stacks, _) = recorded(&folder, &[text(&program), "300000"]);
    for innermost in ["works", "jit_inner"] {
        let right = [&OUTSIDE[..], &["main", "calls_it", "jit_outer", innermost]].concat();
        let (all, whole) = exact(&stacks, innermost, &right);
        assert!(all > 20 && whole * 2 > all, "{innermost}: {whole} of {all}: {stacks:?}");
        // The code is read when its first samples are unwound: those have a guess, or no caller.
        let is_marked =
            |names: &[String]| names[0].starts_with("jit_") || names.contains(&"[guessed]".to_owned());
        let inside = stacks.iter().filter(|(names, _)| names.last().is_some_and(|name| name == innermost));
        let marked: usize = inside.filter(|(names, _)| is_marked(names)).map(|(_, count)| count).sum();
        assert_eq!(whole + marked, all, "{innermost}: {stacks:?}");
    }
}

/// Checks programs of 32 bits without frame pointers: the callers are right as far as the machine
/// code says, no frame is left out in between, and chains that end early are counted as cut.
#[test]
fn programs_of_32_bits_without_frame_pointers() {
    const TEST: &str = "callers::programs_of_32_bits_without_frame_pointers";
    let flags = ["-m32", "-O1", "-g"];
    let Some((folder, program)) = built(TEST, "gcc", &flags, "stalecaller.c") else { return };
    let (stacks, said) = recorded(&folder, &[text(&program)]);
    let inside = stacks.iter().filter(|(names, _)| names.last().is_some_and(|name| name == "format"));
    let (mut all, mut right) = (0, 0);
    for (names, count) in inside {
        all += count;
        let inner = ["main", "render", "format"].map(String::from);
        right += if names.ends_with(&inner) { *count } else { 0 };
    }
    assert!(all > 5 && right >= all - 2, "{right} of {all}: {stacks:?}");
    assert!(said.contains("cut short"), "{said}");
}
