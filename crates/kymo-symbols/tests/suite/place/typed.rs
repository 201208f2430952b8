//! Places by type: fields, elements and pointers of compiled programs, held against the programs themselves and gdb.

use std::process::Command;

use kymo_symbols::place::Access;
use kymo_testing::skip;

use super::programs::{C, CXX, RUST, Running, build_c};
use crate::tools::{run, workshop};

/// Flags that change how debug information is written, and what is written of it.
const C_FLAGS: &[(&str, &[&str])] = &[
    ("dwarf4", &["-gdwarf-4"]),
    ("dwarf5", &["-gdwarf-5"]),
    ("dwarf3", &["-gdwarf-3", "-gstrict-dwarf"]),
    ("no-pie", &["-g", "-no-pie"]),
    ("type-units", &["-gdwarf-4", "-fdebug-types-section"]),
    ("type-units5", &["-gdwarf-5", "-fdebug-types-section"]),
    ("compressed", &["-g", "-gz=zlib"]),
    ("optimized", &["-g", "-O2"]),
    ("one-unit", &["-g", "-flto", "-O0"]),
    ("static", &["-g", "-static"]),
];

/// Checks the places of a C program in every form of debug information, against the addresses that it prints.
#[test]
fn c_places_are_where_the_program_has_them() {
    let Some(dir) = workshop("c_places_are_where_the_program_has_them", &["cc"], &[]) else { return };
    for (name, flags) in C_FLAGS {
        let program = build_c(dir.path(), name, flags);
        Running::start(&program).check_places(name);
    }
}

/// Checks C++: base classes, virtual ones, templates, namespaces, static members, containers, references.
#[test]
fn cxx_places_are_where_the_program_has_them() {
    let Some(dir) = workshop("cxx_places_are_where_the_program_has_them", &["c++"], &[("a.cc", CXX)]) else {
        return;
    };
    for (name, flags) in [
        ("dwarf4", &["-gdwarf-4", "-O0"][..]),
        ("dwarf5", &["-gdwarf-5", "-O1"]),
        ("units", &["-g", "-fdebug-types-section"]),
    ] {
        let mut arguments = vec!["a.cc", "-std=c++17", "-fno-access-control", "-o", name];
        arguments.extend_from_slice(flags);
        run(dir.path(), "c++", &arguments);
        Running::start(&dir.path().join(name)).check_places(name);
    }
}

/// Checks Rust: statics of modules and functions, enums, tuples, boxes, slices, vectors, locks.
#[test]
fn rust_places_are_where_the_program_has_them() {
    let Some(dir) =
        workshop("rust_places_are_where_the_program_has_them", &["rustc"], &[("places.rs", RUST)])
    else {
        return;
    };
    for (name, flags) in [
        ("debug", &["-Cdwarf-version=4"][..]),
        ("release", &["-O", "-Cdwarf-version=5", "-Csymbol-mangling-version=v0"]),
    ] {
        let mut arguments = vec![
            "places.rs",
            "--edition",
            "2021",
            "-g",
            "-Astatic_mut_refs",
            "-Adead_code",
            "-Aunused",
            "-o",
            name,
        ];
        arguments.extend_from_slice(flags);
        run(dir.path(), "rustc", &arguments);
        let running = Running::start(&dir.path().join(name));
        running.check_places(name);
        let error = running.resolve("PER_THREAD").expect_err("a thread-local").to_string();
        assert!(error.contains("thread-local"), "{error}");
        for (text, shown) in
            [("MODE", "Fast"), ("LETTER", "233 'é'"), ("FLAG", "true"), ("HEAD.0.value", "1")]
        {
            let watch = running.resolve(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(running.value(&watch), shown, "{text}: {watch:?}");
        }
    }
}

/// Checks the same C expressions against gdb, which knows nothing of what the program prints.
#[test]
fn gdb_has_the_same_places() {
    const TEST: &str = "gdb_has_the_same_places";
    let Some(dir) = workshop(TEST, &["gdb", "cc"], &[]) else { return };
    let running = Running::start(&build_c(dir.path(), "judged", &["-g"]));
    let mut texts: Vec<&str> = running.places.iter().map(|(text, ..)| text.as_str()).collect();
    // What the program cannot name itself.
    texts.retain(|text| !text.contains(".c:"));
    texts.extend(["calls::counter", "other::counter", "calls::local.value", "outer.hidden->inside[2]"]);
    compare_with_gdb(TEST, "c", &running, &texts);
}

/// Asks gdb for the address and size of each expression.
fn compare_with_gdb(test: &str, language: &str, running: &Running, texts: &[&str]) {
    let mut gdb = Command::new("gdb");
    // It takes the language of where the program waits, which is the C library.
    gdb.args(["-nx", "-batch", "-p", &running.pid().to_string(), "-ex", &format!("set language {language}")]);
    for text in texts {
        gdb.args([
            "-ex",
            &format!("printf \"%s %lx %lx\\n\", \"{text}\", (long)&({text}), (long)sizeof({text})"),
        ]);
    }
    let output = gdb.output().expect("gdb");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut compared = 0;
    for text in texts {
        let line = told.lines().find_map(|line| line.strip_prefix(&format!("{text} ")));
        let Some((address, size)) = line.and_then(|line| line.split_once(' ')) else { continue };
        let hex = |word: &str| u64::from_str_radix(word, 16).expect("a number");
        let watch = running.resolve(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!((watch.avma, watch.len_bytes), (hex(address), hex(size)), "{text}");
        compared += 1;
    }
    if compared == 0 {
        return skip(test, "gdb may not attach here");
    }
    assert!(compared + 3 > texts.len(), "gdb told {compared} of {} places:\n{told}", texts.len());
}

/// Checks C++ against gdb: base classes, virtual ones, statics of classes, templates.
#[test]
fn gdb_has_the_same_places_of_cxx() {
    const TEST: &str = "gdb_has_the_same_places_of_cxx";
    let Some(dir) = workshop(TEST, &["gdb", "c++"], &[("a.cc", CXX)]) else { return };
    run(dir.path(), "c++", &["a.cc", "-std=c++17", "-fno-access-control", "-g", "-o", "judged"]);
    let running = Running::start(&dir.path().join("judged"));
    let texts = [
        "both",
        "both.left",
        "both.right",
        "both.plain",
        "both.id",
        "derived->id",
        "base->id",
        "ns::Both::made",
        "ns::Box<int>::last",
        "ns::Box<double>::last",
        "box.inner.deep",
        "ns::inner::value",
        "ns::pool.used",
        "ns::Pool::limit",
        "arr._M_elems[5]",
        "vec._M_impl._M_start",
        "referred",
        "color",
    ];
    compare_with_gdb(TEST, "c++", &running, &texts);
}

/// Checks types, values, lengths, accesses and warnings of what was found.
#[test]
fn types_say_how_to_watch_and_print() {
    let Some(dir) = workshop("types_say_how_to_watch_and_print", &["cc"], &[]) else { return };
    let running = Running::start(&build_c(dir.path(), "typed", &["-g"]));
    for (text, type_name, shown) in [
        ("counter", "int", "1"),
        ("real", "volatile double", "0.5"),
        ("mode", "enum mode", "BUSY"),
        ("flag", "_Bool", "true"),
        ("text[0]", "char", "116 't'"),
        ("nothing", "node_t *", "0x0"),
        ("atomic_count", "_Atomic unsigned int", "7"),
        ("chain", "node_t [3]", ""),
        ("grid[1]", "int [4][5]", ""),
        ("outer.nodes[1]", "node_t", ""),
        ("head->next->next->value", "int", "9"),
    ] {
        let watch = running.resolve(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(watch.type_name.as_deref(), Some(type_name), "{text}");
        assert_eq!(watch.access, Access::Write);
        if !shown.is_empty() {
            assert_eq!(running.value(&watch), shown, "{text}");
        }
    }
    let watch = running.resolve("outer.nodes[1].value").expect("a place");
    let symbol = watch.symbol.as_ref().map(ToString::to_string);
    assert!(symbol.is_some_and(|symbol| symbol.starts_with("outer+0x")), "{watch:?}");
    assert!(watch.warnings.is_empty(), "{watch:?}");
    let watch = running.resolve("head->value").expect("a place");
    assert!(watch.warnings[0].contains("stays there"), "{watch:?}");
    // 3 + 5 bits share a byte, 9 bits do not.
    let start = running.resolve("outer.flags").expect("a place").avma;
    let watch = running.resolve("outer.flags.b").expect("a place");
    assert_eq!((watch.avma, watch.len_bytes), (start, 1), "{watch:?}");
    assert!(watch.warnings[0].contains("5 bits"), "{watch:?}");
    let watch = running.resolve("outer.flags.c").expect("a place");
    assert_eq!((watch.avma, watch.len_bytes), (start, 4), "{watch:?}");
    let watch = running.resolve("main").expect("a place");
    assert_eq!((watch.access, watch.len_bytes), (Access::Execute, 8));
    let watch = running.resolve("outer.first:r").expect("a place");
    assert!(watch.access == Access::ReadWrite && watch.warnings[0].contains("x86 cannot"), "{watch:?}");
    // An unaligned field is covered by several pieces.
    let watch = running.resolve("outer.packed.number").expect("a place");
    assert!(!watch.avma.is_multiple_of(4));
    assert!(
        watch.pieces(4).0.len() > 1
            && watch.pieces(4).0.iter().map(|piece| u64::from(piece.1)).sum::<u64>() == 4
    );
    // A type of another file, known here by name only.
    let watch = running.resolve("outer.hidden->inside[2]").expect("a place");
    assert_eq!(running.value(&watch), "3");
    let watch = running.resolve("opaque_pointer->before").expect("a place");
    assert_eq!(running.value(&watch), "5");
}

/// Checks the sentence of each refusal that types can cause.
#[test]
fn refusals_about_types_say_what_to_do() {
    let Some(dir) = workshop("refusals_about_types_say_what_to_do", &["cc"], &[]) else { return };
    let running = Running::start(&build_c(dir.path(), "refused", &["-g"]));
    for (text, words) in [
        ("conuter", "did you mean 'counter'"),
        ("own", "'own' is the name of 2 variables: own (main.c:"),
        ("twice", "twice (other.c:7), twice (third.c:1); write FILE:twice"),
        ("head->vaule", "did you mean 'value'"),
        ("head->nothing_like_it", "did you mean 'next', 'value' or 'name'"),
        ("counter.x", "its type is int, which has no fields"),
        ("counter[1]", "which has no elements"),
        ("*counter", "which is no pointer; leave the * out"),
        ("outer->first", "not a pointer; write outer.first"),
        ("chain[3]", "index 3 is out of range: chain has 3 elements, 0 to 2"),
        ("grid[0][-1]", "index -1 is out of range"),
        ("nothing->value", "nothing is null now"),
        ("*untyped", ""),
        ("untyped->x", "is only an address"),
        ("per_thread", "thread-local"),
        ("locals::only_local", "is a local variable of locals"),
        ("only_local", "is a local variable of locals"),
        ("outer.packed.number:4", "not a multiple of 4"),
        ("chain:24", "bad length 24"),
    ] {
        match running.resolve(text) {
            Ok(watch) => assert!(words.is_empty(), "{text}: {watch:?}"),
            Err(error) => {
                let error = error.to_string();
                assert!(!words.is_empty() && error.contains(words), "{text}: {error}");
                assert!(!error.contains('\n'), "{error}");
            }
        }
    }
    let in_main = running.resolve("main.c:own").expect("one of them");
    let in_other = running.resolve("other.c:own").expect("the other");
    assert_ne!(in_main.avma, in_other.avma);
    let told = running.places.iter().find(|(name, ..)| name == "main.c:own").map(|(_, address, _)| *address);
    assert_eq!(Some(in_main.avma), told);
    assert_ne!(
        running.resolve("calls::counter").expect("a place").avma,
        running.resolve("counter").expect("it").avma
    );
}

/// Checks programs whose debug information lies elsewhere, is split, or is missing.
#[test]
fn debug_information_is_found_or_its_lack_is_told() {
    let Some(dir) =
        workshop("debug_information_is_found_or_its_lack_is_told", &["cc", "objcopy", "strip"], &[])
    else {
        return;
    };
    let dir = dir.path();
    build_c(dir, "linked", &["-g"]);
    run(dir, "objcopy", &["--only-keep-debug", "linked", "linked.debug"]);
    run(dir, "strip", &["linked"]);
    run(dir, "objcopy", &["--add-gnu-debuglink=linked.debug", "linked"]);
    Running::start(&dir.join("linked")).check_places("debuglink");

    let bare = Running::start(&build_c(dir, "bare", &[]));
    let watch = bare.resolve("outer").expect("a symbol");
    assert_eq!(watch.type_name, None);
    let error = bare.resolve("outer.first").expect_err("no types").to_string();
    assert!(
        error.contains(
            "bare was built without debug information; rebuild it with -g, or watch outer+OFFSET:LENGTH"
        ),
        "{error}"
    );
    let error = bare.resolve("own").expect_err("two of them").to_string();
    assert!(error.contains("own (main.c), own (other.c)"), "{error}");
    assert!(bare.resolve("main.c:own").is_ok());

    let split = Running::start(&build_c(dir, "split", &["-g", "-gsplit-dwarf"]));
    assert!(split.resolve("counter").is_ok());
    let error = split.resolve("outer.first").expect_err("no types").to_string();
    assert!(error.contains("split into .dwo files"), "{error}");

    let stripped = build_c(dir, "stripped", &["-g"]);
    run(dir, "strip", &["stripped"]);
    let error = Running::start(&stripped).resolve("outer").expect_err("no symbols").to_string();
    assert!(error.contains("no symbol or variable 'outer' in stripped"), "{error}");
    assert!(C.contains("struct outer"));
}

/// Checks variables of libraries: a library's own, one that the program took a copy of, and one that both have.
#[test]
fn variables_of_libraries_are_found_where_they_are_used() {
    let Some(dir) = workshop(
        "variables_of_libraries_are_found_where_they_are_used",
        &["cc"],
        &[("lib.c", LIBRARY), ("user.c", USER)],
    ) else {
        return;
    };
    let dir = dir.path();
    run(dir, "cc", &["-g", "-shared", "-fPIC", "lib.c", "-o", "libplaces.so"]);
    for (name, flags) in [("copied", &["-no-pie"][..]), ("shared", &["-fPIE", "-pie"])] {
        let mut arguments = vec!["-g", "user.c", "-o", name, "-L.", "-lplaces", "-Wl,-rpath,$ORIGIN"];
        arguments.extend_from_slice(flags);
        run(dir, "cc", &arguments);
        let running = Running::start(&dir.join(name));
        assert_eq!(running.places.len(), 5);
        for (text, address, size) in &running.places {
            let watch = running.resolve(text).unwrap_or_else(|error| panic!("{name} {text}: {error}"));
            assert_eq!((watch.avma, watch.len_bytes), (*address, *size), "{name} {text}: {watch:?}");
            assert!(watch.type_name.is_some(), "{name} {text}: {watch:?}");
        }
    }
}

const LIBRARY: &str = r#"
struct pair { int first; long second; };
struct pair exported = { 1, 2 };
static struct pair kept = { 3, 4 };
int both = 5;
static int local = 6;
struct pair *kept_place(void) { return &kept; }
int *local_place(void) { return &local; }
"#;

const USER: &str = r#"
#include <stdio.h>
#include <unistd.h>
struct pair { int first; long second; };
extern struct pair exported;
extern int both;
struct pair *kept_place(void);
int *local_place(void);
#define AS(name, place, size) printf("%s %#lx %zu\n", name, (unsigned long)(place), size)
int main(void) {
    AS("exported", &exported, sizeof exported); AS("exported.second", &exported.second, sizeof exported.second);
    AS("kept.second", &kept_place()->second, sizeof(long)); AS("local", local_place(), sizeof(int)); AS("both", &both, sizeof both);
    printf("ready\n"); fflush(stdout);
    char c; return (int)read(0, &c, 1);
}
"#;
