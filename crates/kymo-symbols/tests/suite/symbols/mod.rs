//! Symbols against perf, the GNU demangler and addr2line.

mod cache;
mod exhaust;
mod hostile;
mod lines;
mod mini_debug_info;
mod oracle;
mod plt;

use std::path::PathBuf;
use std::process::Command;

use kymo_symbols::{ModuleKey, SymbolOptions, SymbolStore, demangle};

use crate::tools::{lacks, run, workshop};
use kymo_testing::skip;
use oracle::{Mapped, compare, compare_file, kernel_text, probes};

const C: &str = r#"
#include <math.h>
#include <string.h>
#include <stdlib.h>
#include <stdio.h>
static __attribute__((noinline)) long only_here(long n) { volatile long s = 0; for (long i = 0; i < n; i++) s += i; return s; }
__attribute__((noinline)) long seen(long n) { return only_here(n) + 1; }
long alias_of_seen(long) __attribute__((alias("seen")));
long __weak_alias(long) __attribute__((weak, alias("seen")));
__attribute__((weak, noinline)) long weak_one(long n) { return only_here(n) + 2; }
static long chosen_a(long n) { return n * 3; }
static long chosen_b(long n) { return n * 5; }
static void *choose(void) { return getenv("B") ? (void *)chosen_b : (void *)chosen_a; }
long chosen(long) __attribute__((ifunc("choose")));
void camlStdlib__Array__map_154(void) {}
void camlFoo__Bar$21baz(void) {}
long data_object[64] = {1};
static char zeroed[4096];
__asm__(".text\n.globl bare_label\nbare_label:\n nop\n nop\nlocal_label:\n nop\n.type typed_label,@function\ntyped_label:\n nop\n .size typed_label, 1\n nop\n ret\n"
        ".globl hidden_label\n.hidden hidden_label\nhidden_label:\n nop\n ret\n"
        ".globl outer\n.type outer,@function\nouter:\n nop\n nop\n nop\n.type inner,@function\ninner:\n nop\n nop\n.size inner, 2\n nop\n nop\n.size outer, 7\n ret\n");
int main(int argc, char **argv) {
    char b[64]; memset(b, argc, sizeof b); zeroed[argc] = 1;
    printf("%ld %f %ld %ld\n", seen(1000) + weak_one(10) + chosen(argc), cos(argc), (long)strlen(b) * 0, data_object[argc]);
    return 0;
}
"#;

const CXX: &str = r#"
#include <string>
#include <vector>
#include <map>
#include <algorithm>
#include <iostream>
namespace { struct Hidden { template <class T> __attribute__((noinline)) T spin(T n) const { return n * 3; } }; }
namespace a::b {
struct Base { virtual ~Base(); virtual long f(long) const; };
Base::~Base() {} long Base::f(long n) const { return n; }
struct Other { virtual long g() &; virtual void h() &&; long x; };
long Other::g() & { return 1; } void Other::h() && {}
struct Both : Other, virtual Base { long f(long n) const override; operator bool() const; operator const char *() const; };
long Both::f(long n) const { return n + 1; } Both::operator bool() const { return true; } Both::operator const char *() const { return ""; }
template <unsigned N, class F> __attribute__((noinline)) long with(F f) { return f(N); }
template <long *P, bool B, char C> __attribute__((noinline)) long arg() { return *P + B + C; }
template <int (*F)(int)> __attribute__((noinline)) int call(int x) { return F(x); }
}
long global = 1;
__attribute__((noinline)) int plain(int x) { return x + 1; }
namespace a { __attribute__((noinline)) int spaced(int x) { return x + 2; } }
std::ostream &operator<<(std::ostream &o, const a::b::Other &x) { return o << x.x; }
int main(int argc, char **argv) {
    Hidden h; std::vector<std::string> v(argv, argv + argc); std::sort(v.begin(), v.end());
    std::map<std::string, std::vector<long>> m; m["x"].push_back(argc);
    auto lambda = [&](long q) __attribute__((noinline)) { return q * argc; };
    a::b::Both both; both.x = 1;
    std::cout << h.spin<long>(argc) + a::b::with<7u>(lambda) + a::b::arg<&global, true, 'x'>() + a::b::call<plain>(1) + a::b::call<a::spaced>(1) << both << both.f(1) << (both ? "" : "");
    return 0;
}
"#;

const RUST: &str = r#"
use std::collections::BTreeMap;
trait Shape { fn area(&self) -> f64; }
struct Circle<const N: usize>([f64; N]);
impl<const N: usize> Shape for Circle<N> { #[inline(never)] fn area(&self) -> f64 { self.0.iter().sum() } }
#[inline(never)] fn generic<T: std::fmt::Debug, F: Fn(&T) -> usize>(t: T, f: F) -> usize { f(&t) + format!("{t:?}").len() }
mod inner { pub mod deeper { #[inline(never)] pub fn leaf(x: u64) -> u64 { x.rotate_left(3) ^ 7 } } }
fn main() {
    let mut m = BTreeMap::new();
    for i in 0..100u64 { m.insert(i, inner::deeper::leaf(i)); }
    let shapes: Vec<Box<dyn Shape>> = vec![Box::new(Circle([1.0; 3])), Box::new(Circle([2.0; 5]))];
    println!("{} {}", generic(m, |m| m.len()), shapes.iter().map(|s| s.area()).sum::<f64>());
}
"#;

/// Builds one program per set of flags, and compares each file of `files` with perf.
fn build_and_compare(test: &str, compiler: &str, source: (&str, &str), flag_sets: &[(&str, &[&str])]) {
    let Some(dir) = workshop(test, &["perf", compiler], &[source]) else { return };
    for (name, flags) in flag_sets {
        let mut arguments = vec![source.0, "-o", name];
        arguments.extend_from_slice(flags);
        run(dir.path(), compiler, &arguments);
        compare_file(name, &dir.path().join(name), 60_000);
    }
}

/// Checks that every address of C programs, linked in many ways, has perf's symbol.
#[test]
fn c_programs_have_the_symbols_of_perf() {
    build_and_compare(
        "c_programs_have_the_symbols_of_perf",
        "gcc",
        ("a.c", C),
        &[
            ("pie", &["-O1", "-lm"]),
            ("no-pie", &["-O1", "-no-pie", "-lm"]),
            ("static", &["-O1", "-static", "-lm"]),
            ("debug", &["-O2", "-g", "-lm"]),
            ("stripped", &["-O1", "-s", "-rdynamic", "-lm"]),
            ("one-segment", &["-O1", "-Wl,-z,noseparate-code", "-lm"]),
            ("separate", &["-O1", "-Wl,-z,separate-code", "-lm"]),
            ("now", &["-O1", "-Wl,-z,now,-z,relro", "-fcf-protection=full", "-lm"]),
            ("ibt", &["-O1", "-fcf-protection=full", "-Wl,-z,lazy", "-lm"]),
            ("sysv-hash", &["-O1", "-rdynamic", "-Wl,--hash-style=sysv,-z,lazy", "-lm"]),
            ("library", &["-O1", "-shared", "-fPIC", "-lm"]),
        ],
    );
}

/// Checks the same for C++ programs: templates, lambdas, thunks, anonymous namespaces.
#[test]
fn cxx_programs_have_the_symbols_of_perf() {
    build_and_compare(
        "cxx_programs_have_the_symbols_of_perf",
        "g++",
        ("a.cpp", CXX),
        &[
            ("cxx-O0", &["-O0", "-std=c++17"]),
            ("cxx-O2", &["-O2", "-std=c++17"]),
            ("cxx-lazy", &["-O1", "-std=c++17", "-Wl,-z,lazy"]),
        ],
    );
}

/// Checks the same for Rust programs with both manglings.
#[test]
fn rust_programs_have_the_symbols_of_perf() {
    build_and_compare(
        "rust_programs_have_the_symbols_of_perf",
        "rustc",
        ("a.rs", RUST),
        &[
            ("rust-debug", &["-Cdebuginfo=1"]),
            ("rust-legacy", &["-O"]),
            ("rust-v0", &["-O", "-Csymbol-mangling-version=v0"]),
        ],
    );
}

/// Checks programs whose symbols lie elsewhere: in a debug file next to them, in `.debug`, or only partly stripped.
#[test]
fn split_debug_files_are_found_as_perf_finds_them() {
    const TEST: &str = "split_debug_files_are_found_as_perf_finds_them";
    let Some(dir) = workshop(TEST, &["perf", "gcc", "objcopy", "strip"], &[("a.c", C)]) else { return };
    let dir = dir.path();
    std::fs::create_dir(dir.join(".debug")).expect("a directory");
    for (name, flag) in [("with-id", "-Wl,--build-id=sha1"), ("without-id", "-Wl,--build-id=none")] {
        run(dir, "gcc", &["a.c", "-g", "-O1", "-lm", "-Wl,-z,lazy", flag, "-o", name]);
        let debug = format!("{name}.debug");
        run(dir, "objcopy", &["--only-keep-debug", name, &debug]);
        run(dir, "strip", &[name]);
        run(dir, "objcopy", &[&format!("--add-gnu-debuglink={debug}"), name]);
        compare_file(name, &dir.join(name), 60_000);
        std::fs::rename(dir.join(&debug), dir.join(".debug").join(&debug)).expect("the move");
        compare_file(&format!("{name} in .debug"), &dir.join(name), 60_000);
        std::fs::remove_file(dir.join(".debug").join(&debug)).expect("the removal");
        compare_file(&format!("{name} lost"), &dir.join(name), 60_000);
    }
    run(dir, "gcc", &["a.c", "-O1", "-rdynamic", "-lm", "-o", "partly"]);
    run(dir, "objcopy", &["--strip-symbol=seen", "--strip-symbol=main", "partly"]);
    compare_file("partly stripped", &dir.join("partly"), 60_000);
}

/// The files of this machine that real recordings are full of.
fn files_of_this_machine() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = [
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
        "/usr/lib/x86_64-linux-gnu/libm.so.6",
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
        "/usr/bin/perf",
        "/usr/bin/bash",
        "/usr/bin/xz",
        "/usr/lib/gcc/x86_64-linux-gnu/12/cc1",
    ]
    .iter()
    .map(PathBuf::from)
    .collect();
    if let Ok(python) = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output() {
        let python = PathBuf::from(String::from_utf8_lossy(&python.stdout).trim());
        files.extend(python.canonicalize());
    }
    // More of them by hand, for a sweep over a whole machine.
    if let Some(more) = std::env::var_os("KYMO_SYMBOL_FILES") {
        files.extend(std::env::split_paths(&more));
    }
    files.iter().filter_map(|file| file.canonicalize().ok()).filter(|file| file.is_file()).collect()
}

/// Checks that every symbol of the machine's usual programs and libraries is perf's.
#[test]
fn installed_files_have_the_symbols_of_perf() {
    if lacks("installed_files_have_the_symbols_of_perf", &["perf"]) {
        return;
    }
    for file in files_of_this_machine() {
        compare_file(&file.display().to_string(), &file, 150_000);
    }
}

/// Checks the kernel's own symbols against perf, address by address.
#[test]
fn the_kernel_has_the_symbols_of_perf() {
    const TEST: &str = "the_kernel_has_the_symbols_of_perf";
    if lacks(TEST, &["perf"]) {
        return;
    }
    let Some(text) = kernel_text() else {
        return skip(TEST, "the kernel hides its addresses (run as root, kptr_restrict 0)");
    };
    let dir = tempfile::tempdir().expect("a directory");
    let store = SymbolStore::new(SymbolOptions {
        buildid_dir: Some(dir.path().join(".debug")),
        ..SymbolOptions::default()
    });
    let key = ModuleKey::Kernel { build_id: None, reference: Some(("_text".into(), text)) };
    let mut addresses = probes(&key, &store, 200_000, 0);
    addresses.retain(|&address| address >= text);
    compare("kernel", &store, &key, &Mapped::Kernel, &addresses, dir.path());
}

/// Checks generated code: overlapping, replaced and odd entries of a perf map.
#[test]
fn perf_maps_have_the_symbols_of_perf() {
    const TEST: &str = "perf_maps_have_the_symbols_of_perf";
    if lacks(TEST, &["perf"]) {
        return;
    }
    // A process number beyond the kernel's range, so that no living process is meant.
    let pid = 5_000_000 + std::process::id() as i32 % 100_000;
    let map = PathBuf::from(format!("/tmp/perf-{pid}.map"));
    let mut text = String::new();
    let mut state = 12345u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    for i in 0..3000u64 {
        let start = oracle::BASE + random(20_000);
        text += &format!("{start:x} {:x} function number {i}\n", random(200));
        if i % 50 == 0 {
            text += "garbage\n";
            text += &format!("0x{:x} 0x10 ab\n", start + 5);
        }
    }
    std::fs::write(&map, text).expect("the map");
    let dir = tempfile::tempdir().expect("a directory");
    let store = SymbolStore::new(SymbolOptions::default());
    let key = ModuleKey::PerfMap { pid };
    let addresses: Vec<u64> = (oracle::BASE..oracle::BASE + 21_000).collect();
    let outcome = std::panic::catch_unwind(|| {
        compare("perf map", &store, &key, &Mapped::Jit(pid), &addresses, dir.path());
    });
    std::fs::remove_file(&map).expect("the removal");
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// Checks every mangled name of the machine's largest libraries against the GNU demangler, which is perf's.
#[test]
fn names_are_demangled_as_by_cplusfilt() {
    const TEST: &str = "names_are_demangled_as_by_cplusfilt";
    if lacks(TEST, &["nm", "c++filt"]) {
        return;
    }
    let mut names = std::collections::BTreeSet::new();
    for file in ["/usr/lib/x86_64-linux-gnu/libstdc++.so.6", "/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus"] {
        let output = Command::new("nm").args(["-D", "--defined-only", file]).output().expect("nm");
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let name = line.split(' ').next_back().unwrap_or("");
            let name = name.split('@').next().unwrap_or("");
            if name.starts_with("_Z") || name.starts_with("_R") {
                names.insert(name.to_owned());
            }
        }
    }
    if let Some(extra) = std::env::var_os("KYMO_MANGLED_NAMES") {
        let text = std::fs::read_to_string(extra).expect("the list of names");
        names.extend(text.lines().map(str::to_owned));
    }
    let dir = tempfile::tempdir().expect("a directory");
    let list = dir.path().join("names");
    let joined: Vec<&str> = names.iter().map(String::as_str).collect();
    std::fs::write(&list, joined.join("\n") + "\n").expect("the list");
    let input = std::fs::File::open(&list).expect("the list");
    let output = Command::new("c++filt").args(["-p", "-i"]).stdin(input).output().expect("c++filt");
    let theirs = String::from_utf8_lossy(&output.stdout);
    let wrong: Vec<String> = names
        .iter()
        .zip(theirs.lines())
        .filter(|(raw, theirs)| demangle::readable(raw) != *theirs)
        .map(|(raw, theirs)| format!("{raw}\n  perf {theirs}\n  kymo {}", demangle::readable(raw)))
        .collect();
    eprintln!("{} names, {} differ", names.len(), wrong.len());
    assert!(
        wrong.is_empty(),
        "{} names differ\n{}",
        wrong.len(),
        wrong[..wrong.len().min(std::env::var_os("KYMO_MANGLED_NAMES").map_or(20, |_| 10_000))].join("\n")
    );
}

/// Checks the vdso, which no file holds.
#[test]
fn the_vdso_has_the_symbols_of_perf() {
    if lacks("the_vdso_has_the_symbols_of_perf", &["perf"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let store = SymbolStore::new(SymbolOptions::default());
    let key = ModuleKey::Vdso { build_id: None };
    let addresses: Vec<u64> = (0..8192).collect();
    compare("vdso", &store, &key, &Mapped::Vdso, &addresses, dir.path());
    assert!(store.get(&key).table().iter().any(|symbol| symbol.name.contains("clock_gettime")));
}

/// Checks that a file that was replaced since the recording gives no names and a note, and that the build-id cache
/// still gives those of the recorded one.
#[test]
fn a_replaced_file_is_refused_and_the_cache_serves() {
    const TEST: &str = "a_replaced_file_is_refused_and_the_cache_serves";
    let Some(dir) = workshop(TEST, &["gcc", "readelf"], &[("a.c", C)]) else { return };
    let dir = dir.path();
    run(dir, "gcc", &["a.c", "-O1", "-lm", "-o", "prog"]);
    let notes = run(dir, "readelf", &["-n", "prog"]);
    let hex = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).expect("a build id");
    let id: Vec<u8> =
        (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex")).collect();
    let cache = dir.join("cache");
    let key = ModuleKey::file(dir.join("prog"), Some(id));
    let fresh_store =
        || SymbolStore::new(SymbolOptions { buildid_dir: Some(cache.clone()), ..SymbolOptions::default() });
    let before: Vec<u64> = fresh_store().get(&key).table().iter().map(|s| s.start).collect();
    assert!(before.len() > 20);

    let kept = cache.join(".build-id").join(&hex[..2]).join(&hex[2..]);
    std::fs::create_dir_all(&kept).expect("the cache");
    std::fs::copy(dir.join("prog"), kept.join("elf")).expect("the copy");
    run(dir, "gcc", &["a.c", "-O2", "-g", "-lm", "-o", "prog"]);
    let cached: Vec<u64> = fresh_store().get(&key).table().iter().map(|s| s.start).collect();
    assert_eq!(before, cached);

    std::fs::remove_dir_all(&cache).expect("the removal");
    let module = fresh_store().get(&key);
    assert!(module.table().is_empty());
    assert!(module.notes()[0].0.contains("build id differs"), "{:?}", module.notes());
}

/// Checks that what is no file with symbols is answered with a note that names it.
#[test]
fn what_holds_no_symbols_says_why() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = dir.path().join("text");
    std::fs::write(&text, "hello").expect("the file");
    let store = SymbolStore::new(SymbolOptions::default());
    for (path, words) in [
        (text, "not an ELF file"),
        (dir.path().to_owned(), "not a regular file"),
        (dir.path().join("missing"), "No such file"),
    ] {
        let module = store.get(&ModuleKey::file(path.clone(), None));
        let note = &module.notes()[0].0;
        assert!(note.contains(words) && note.contains(&path.display().to_string()), "{note}");
        assert_eq!(module.find(0x1000), None);
    }
    let module = store.get(&ModuleKey::PerfMap { pid: 4_999_999 });
    assert!(module.notes()[0].0.contains("/tmp/perf-4999999.map"), "{:?}", module.notes());
}

/// Checks that many threads that ask at once get one table, and the same answers.
#[test]
fn threads_share_one_table() {
    let store = SymbolStore::new(SymbolOptions::default());
    let key = ModuleKey::file(std::env::current_exe().expect("this program"), None);
    let tables: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| store.get(&key))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread")).collect()
    });
    assert!(tables.iter().all(|table| std::sync::Arc::ptr_eq(table, &tables[0])));
    assert!(tables[0].table().iter().any(|symbol| symbol.name.contains("threads_share_one_table")));
}
