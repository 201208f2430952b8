//! Selectors as typed, and sites of a program compiled for the purpose.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

fn function(glob: &str, offset: u64) -> Place {
    Place::Function { glob: glob.into(), offset }
}

/// Checks every form of a selector, and names with colons, signs and digits that are not those of a form.
#[test]
fn forms() {
    let line = |file: &str, line| Place::Line { file: file.into(), line };
    let marker = |provider: &str, name: &str| Place::Marker { provider: provider.into(), name: name.into() };
    for (text, module, place, returns) in [
        ("main", None, function("main", 0), false),
        ("libc.so.6:mal*", Some("libc.so.6"), function("mal*", 0), false),
        ("/a/b:f+0x10", Some("/a/b"), function("f", 16), false),
        ("f+12", None, function("f", 12), false),
        ("f%return", None, function("f", 0), true),
        ("a::b", None, function("a::b", 0), false),
        ("prog:a::b<c::d>", Some("prog"), function("a::b<c::d>", 0), false),
        ("x::operator+", None, function("x::operator+", 0), false),
        ("operator+=*", None, function("operator+=*", 0), false),
        ("file.c:120", None, line("file.c", 120), false),
        ("prog:src/file.c:7", Some("prog"), line("src/file.c", 7), false),
        ("lib.so:0x1f0", Some("lib.so"), Place::Offset(0x1f0), false),
        ("usdt:p:n", None, marker("p", "n"), false),
        ("usdt:libpthread.so:p:*", Some("libpthread.so"), marker("p", "*"), false),
    ] {
        let selector = ProbeSelector::parse(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(selector.module.as_deref(), module, "{text}");
        assert_eq!((selector.place, selector.returns), (place, returns), "{text}");
    }
    let wrong =
        ["", ":", "lib:", ":f", "usdt:", "usdt:p", "usdt:p:", "usdt:a:b:c:d", "f+1%return", "a:99999999999"];
    for wrong in wrong.into_iter().chain(["a:0xg"]) {
        assert!(ProbeSelector::parse(wrong).is_err(), "{wrong}");
    }
}

/// Checks which files a module's name means.
#[test]
fn module_names() {
    let path = Path::new("/usr/lib/x86_64-linux-gnu/libc.so.6");
    for name in [
        "libc.so.6",
        "libc",
        "libc.so",
        "libc*",
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        "x86_64-linux-gnu/libc.so.6",
    ] {
        assert!(module_matches(name, path), "{name}");
    }
    for name in ["lib", "libcrypt", "c.so.6", "libc.s", "/lib/libc.so.6x", "gnu/libc.so.6"] {
        assert!(!module_matches(name, path), "{name}");
    }
    assert!(module_matches("libz", Path::new("/lib/libz-1.3.so")));
    assert!(module_matches("prog", Path::new("/home/me/prog")));
    assert!(!module_matches("prog", Path::new("/home/me/program")));
}

/// The obvious way to match a glob.
fn obvious(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.first(), text.first()) {
        (None, None) => true,
        (Some(b'*'), _) => obvious(&pattern[1..], text) || (!text.is_empty() && obvious(pattern, &text[1..])),
        (Some(b'?'), Some(_)) => obvious(&pattern[1..], &text[1..]),
        (Some(a), Some(b)) if a == b => obvious(&pattern[1..], &text[1..]),
        _ => false,
    }
}

proptest! {
    /// Checks globs against the obvious way.
    #[test]
    fn globs(pattern in "[ab*?]{0,8}", text in "[ab]{0,10}") {
        prop_assert_eq!(glob(&pattern, &text), obvious(pattern.as_bytes(), text.as_bytes()));
    }

    /// Checks that any text is a selector or an error, never a panic.
    #[test]
    fn any_text(text in "(usdt:)?[a-z*:+0-9x%é]{0,30}(%return)?") {
        let _ = ProbeSelector::parse(&text);
    }
}

const SOURCE: &str = r#"
#include <stdio.h>
static inline __attribute__((always_inline)) int only_inlined(int x) { return x * 3; }
__attribute__((noinline)) int probed_one(int x) { return only_inlined(x) + 1; }
__attribute__((noinline)) int probed_two(int x) {
    int y = x;
    for (int i = 0; i < x; i++)
        y += probed_one(i); /* line 8 */
    return y;
}
extern int alias_of_two(int) __attribute__((alias("probed_two")));
static int pick(int x) { return x; }
static int (*resolve(void))(int) { return pick; }
int picked(int) __attribute__((ifunc("resolve")));
int main(int argc, char **argv) {
    __asm__ volatile("990: nop\n"
        ".pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n.4byte 992f-991f, 994f-993f, 3\n"
        "991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte 990b\n.8byte 0\n.8byte listeners\n"
        ".asciz \"shop\"\n.asciz \"sold\"\n.asciz \"-4@%0\"\n994: .balign 4\n.popsection\n" :: "r"(argc));
    return probed_two(argc) + picked(argc) == 12345;
}
__attribute__((section(".probes"), used)) unsigned short listeners;
"#;

fn compiled(flags: &[&str]) -> Option<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir().ok()?;
    let (source, program) = (folder.path().join("shop.c"), folder.path().join("shop"));
    std::fs::write(&source, SOURCE).ok()?;
    let status = Command::new("cc").args(flags).arg("-o").arg(&program).arg(&source).status().ok()?;
    status.success().then_some((folder, program))
}

fn found(text: &str, modules: &[Arc<ProbeModule>]) -> Result<Vec<Site>, MissingSite> {
    find(&ProbeSelector::parse(text).expect("a selector"), modules)
}

/// Checks functions, aliases, offsets, lines, markers, and each reason for finding nothing, on a position-independent program and on one that is not.
#[test]
fn sites_of_a_program() {
    for flags in [&["-O1", "-g"][..], &["-O1", "-g", "-no-pie"]] {
        let Some((_folder, program)) = compiled(flags) else {
            kymo_testing::skip("sites_of_a_program", "no C compiler");
            return;
        };
        let module = Arc::new(ProbeModule::open(&program, None).unwrap());
        assert!(module.is_64() && module.is_native());
        let modules = [Arc::clone(&module)];

        let both = found("probed_*", &modules).unwrap();
        let names: Vec<&str> = both.iter().map(|site| site.name.as_str()).collect();
        assert_eq!(names, ["probed_one", "probed_two"]);
        assert!(both.iter().all(|site| site.kind == SiteKind::Function && site.length_bytes > 0));
        // What `nm` says, as a file offset.
        let nm = Command::new("nm").arg(&program).output().unwrap();
        let nm = String::from_utf8(nm.stdout).unwrap();
        let line = nm.lines().find(|line| line.ends_with(" probed_one")).unwrap();
        let address = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
        assert_eq!(both[0].svma, address);
        assert_eq!(module.svma_of(both[0].offset), Some(address));

        // Two names of one place are one site.
        let alias = found("alias_of_two", &modules).unwrap();
        assert_eq!((alias.len(), alias[0].offset), (1, both[1].offset));
        assert_eq!(found("*of_two", &modules).unwrap().len(), 1);
        let all = found("shop:*", &modules).unwrap();
        assert_eq!(all.iter().filter(|site| site.offset == both[1].offset).count(), 1);

        // One of the first bytes begins an instruction, and not all of them do.
        let inside: Vec<Site> =
            (1..16).filter_map(|at| found(&format!("probed_two+{at}"), &modules).ok()).flatten().collect();
        assert!((1..15).contains(&inside.len()));
        let first = inside[0].offset;
        assert!(first > both[1].offset && inside[0].kind == SiteKind::Inside, "{inside:?}");
        assert_eq!(found(&format!("shop:{first:#x}"), &modules).unwrap()[0].offset, first);
        assert!(found("probed_two+0x10000", &modules).unwrap_err().what.contains("bytes"));

        let line = found("shop.c:8", &modules).unwrap();
        assert_eq!((line.len(), line[0].symbol.as_deref()), (1, Some("probed_two")));
        assert_eq!(line[0].name, "shop.c:8");
        let nothing = found("shop.c:11", &modules).unwrap_err();
        assert!(nothing.hint.unwrap().contains("nearest"), "{}", nothing.what);
        assert!(found("shup.c:8", &modules).unwrap_err().names.contains(&"shop.c".to_owned()));

        let marker = &found("usdt:shop:so*", &modules).unwrap()[0];
        assert_eq!(marker.name, "shop:sold");
        assert!(marker.semaphore.is_some() && module.is_code(marker.offset));
        let SiteKind::Marker { arguments } = &marker.kind else { panic!("{:?}", marker.kind) };
        assert!(arguments.starts_with("-4@%"));
        assert_eq!(found("usdt:shop:bought", &modules).unwrap_err().names, ["shop:sold"]);

        let near = found("probed_tow", &modules).unwrap_err();
        assert!(near.names.contains(&"probed_two".to_owned()));
        assert!(found("only_inlined", &modules).unwrap_err().what.contains("inlined"));
        assert!(found("picked", &modules).unwrap_err().what.contains("IFUNC"));
        assert!(found("libnone.so:f", &modules).unwrap_err().what.contains("libnone.so"));
        assert!(found("shop:0x0", &modules).unwrap_err().what.contains("begins"));
        assert_eq!(found(&format!("shop:{:#x}", both[0].offset), &modules).unwrap()[0].name, "probed_one");
    }
}

/// Checks that a stripped program's functions come from the file that its debug link names.
#[test]
fn separate_debug_file() {
    let Some((folder, program)) = compiled(&["-O1", "-g"]) else {
        kymo_testing::skip("separate_debug_file", "no C compiler");
        return;
    };
    let before = {
        let modules = [Arc::new(ProbeModule::open(&program, None).unwrap())];
        (found("probed_two", &modules).unwrap()[0].offset, found("shop.c:8", &modules).unwrap()[0].offset)
    };
    let debug = folder.path().join("shop.debug");
    let objcopy = |args: &[&str]| {
        let status = Command::new("objcopy").args(args).status();
        status.is_ok_and(|status| status.success())
    };
    let (program_text, debug_text) = (program.to_str().unwrap(), debug.to_str().unwrap());
    let link = format!("--add-gnu-debuglink={debug_text}");
    if !objcopy(&["--only-keep-debug", program_text, debug_text])
        || !objcopy(&["--strip-all", &link, program_text])
    {
        kymo_testing::skip("separate_debug_file", "no objcopy");
        return;
    }
    let modules = [Arc::new(ProbeModule::open(&program, None).unwrap())];
    let site = &found("probed_two", &modules).unwrap()[0];
    assert_eq!((site.offset, found("shop.c:8", &modules).unwrap()[0].offset), before);
}

/// Checks that this test's own libraries are found as they are mapped.
#[test]
fn own_libraries() {
    let exe = std::env::current_exe().unwrap();
    let module = ProbeModule::open(&exe, None).unwrap();
    let found = libraries(&module, &Search::default());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut mapped = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).map(PathBuf::from);
    let libc = mapped.find(|path| path.to_string_lossy().contains("libc.so")).expect("libc is mapped");
    assert!(found.contains(&libc), "{found:?} without {}", libc.display());
}

/// Checks that damaged copies of a program give sites or errors, never a panic.
#[test]
fn damaged_programs() {
    let Some((folder, program)) = compiled(&["-O1", "-g"]) else {
        kymo_testing::skip("damaged_programs", "no C compiler");
        return;
    };
    let whole = std::fs::read(&program).unwrap();
    let copy = folder.path().join("copy");
    let mut dice = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..60 {
        let mut bytes = whole.clone();
        if round % 4 == 0 {
            bytes.truncate(whole.len() * round / 60);
        }
        for _ in 0..40 {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            if let Some(len) = (bytes.len() as u64).checked_sub(1).filter(|&len| len > 0) {
                bytes[(dice % len) as usize] = (dice >> 32) as u8;
            }
        }
        std::fs::write(&copy, &bytes).unwrap();
        let Ok(module) = ProbeModule::open(&copy, None) else { continue };
        let _ = libraries(&module, &Search::default());
        let modules = [Arc::new(module)];
        for text in ["*", "shop.c:8", "usdt:*:*", "copy:0x1139", "none"] {
            let _ = found(text, &modules).map(|sites| sites.len());
        }
    }
}

const EXITS: &str = r#"
typedef long (*function)(long);
#define ONE __attribute__((noinline, noclone))
ONE long plain(long x) { __asm__ volatile("" ::: "memory"); return x + 1; }
ONE long tail(long x) { return plain(x + 1); }
ONE long through(function f, long x) { return f(x); }
function table[4];
ONE long indexed(long x) { return table[x & 3](x); }
ONE void never(void) { __builtin_trap(); }
__attribute__((noinline, cold)) void rarely(void) { __asm__ volatile("" ::: "memory"); }
ONE long colder(long x) {
    if (__builtin_expect(x == 7, 0)) { rarely(); return plain(x) + 3; }
    __asm__ volatile("" ::: "memory");
    return x;
}
ONE long cases(long x) {
    long y = plain(x);
    switch (x) {
    case 0: y *= 3; plain(y); break;
    case 1: y ^= 5; plain(y + 1); break;
    case 2: y += 9; plain(y + 2); break;
    case 3: y -= 4; plain(y + 3); break;
    case 4: y |= 8; plain(y + 4); break;
    case 5: y &= 6; plain(y + 5); break;
    }
    return plain(y) + 1;
}
__asm__(".text\n.globl odd\n.type odd,@function\nodd: .cfi_startproc\n mov 1f(%rip), %rax\n ret\n1: .8byte 0xc3c3c3c3\n.cfi_endproc\n.size odd, .-odd\n"
        ".globl taken\n.type taken,@function\ntaken: .cfi_startproc\n test %rdi, %rdi\n je plain\n ret\n.cfi_endproc\n.size taken, .-taken\n"
        ".globl bare\n.type bare,@function\nbare: ret\n.size bare, .-bare\n"
        ".globl __restore_rt\n.type __restore_rt,@function\n__restore_rt: mov $15, %rax\n syscall\n.size __restore_rt, .-__restore_rt\n");
int main(int argc, char **argv) {
    table[0] = plain;
    return tail(argc) + through(plain, 1) + indexed(0) + colder(argc) + cases(argc) == 5;
}
"#;

/// Checks where calls are seen to end: at `ret`, at jumps to other functions with their conditions, in cold parts, not at jumps of a switch; and that functions
/// of which it cannot be known, and code that is known by its bytes, are refused with the reason.
#[test]
fn exits_of_functions() {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("exits.c"), folder.path().join("exits"));
    std::fs::write(&source, EXITS).expect("a source");
    let compiled = Command::new("cc").args(["-O2", "-g", "-o"]).arg(&program).arg(&source).status();
    if !compiled.is_ok_and(|status| status.success()) || !cfg!(target_arch = "x86_64") {
        return kymo_testing::skip("symbols::sites::exits_of_functions", "no compiler for x86-64");
    }
    let modules = [Arc::new(ProbeModule::open(&program, None).expect("a program"))];
    let site = |name: &str| found(name, &modules).expect("a function").remove(0);
    let exits = |name: &str| site(name).call_sites().unwrap_or_else(|why| panic!("{name}: {why}")).exits;
    let returning = |name: &str| exits(name).iter().filter(|exit| exit.returns).count();
    assert_eq!((returning("plain"), exits("plain").len()), (1, 1));
    let tail = exits("tail");
    assert!(tail.len() == 1 && !tail[0].returns && tail[0].when == ExitWhen::Always, "{tail:?}");
    let leaves = |exit: &Exit| matches!(exit.when, ExitWhen::Leaves { displacement: None, .. });
    assert!(exits("through").iter().any(leaves), "{:?}", exits("through"));
    // `je` has number 4.
    assert_eq!(exits("taken")[0].when, ExitWhen::Flags(4));
    let own = site("colder");
    let part = modules[0].functions().iter().find(|function| function.raw_name.starts_with("colder.cold"));
    if let Some(part) = part {
        let inside = |exit: &&Exit| (part.offset..part.offset + part.size_bytes).contains(&exit.offset);
        let back = exits("colder").iter().filter(inside).count();
        assert!(back > 0 && exits("colder").len() > back, "{:?} {part:?} {own:?}", exits("colder"));
    }
    // Without a frame a switch looks like a tail call: where it leads decides.
    assert!(returning("cases") > 0, "{:?}", exits("cases"));
    let refused = |name: &str| site(name).call_sites().expect_err(name);
    assert!(refused("indexed").contains("computed jump"));
    assert!(refused("never").contains("never returns"));
    let odd = refused("odd");
    assert!(odd.contains("data") || odd.contains("no instruction"), "{odd}");
    assert!(refused("bare").contains("no unwind table"));
    assert!(site("__restore_rt").untouchable().is_some() && site("plain").untouchable().is_none());
    assert_eq!((stack_walker([&*modules[0]]), leaves_calls([&*modules[0]])), (None, None));
}
