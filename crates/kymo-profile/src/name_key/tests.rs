//! The table of names, and properties of every key.
use super::looser::without_numbers;
use super::*;
use proptest::prelude::*;

/// Checks names as compilers write them against the function that a person would name.
#[test]
fn compilers_decorations_are_removed() {
    for (decorated, name) in [
        ("foo", "foo"),
        ("foo.cold", "foo"),
        ("foo.cold.1", "foo"),
        ("foo.isra.0", "foo"),
        ("foo.part.3.isra.0.cold", "foo"),
        ("foo.constprop.0", "foo"),
        ("foo.lto_priv.17", "foo"),
        ("foo.llvm.1234567890123", "foo"),
        ("ns::foo(int) [clone .cold]", "ns::foo(int)"),
        ("ns::foo(int) [clone .isra.0] [clone .cold]", "ns::foo(int)"),
        ("app::run::h0123456789abcdef", "app::run"),
        ("app::run::h0123456789abcdef.llvm.7", "app::run"),
        (
            "<core[4a1b2c3d4e5f6071]::iter::Map<I> as app[12345678]::T>::next",
            "<core::iter::Map<I> as app::T>::next",
        ),
        ("JS:*run file.js:3", "JS:run file.js:3"),
        ("LazyCompile:~run file.js:3", "JS:run file.js:3"),
        ("JS:run file.js:3", "JS:run file.js:3"),
        ("L$$Lambda$1/0x00007f768d000a08.run", "L$$Lambda$1.run"),
        ("int L$$Lambda/0x00007f768d000a08.applyAsInt(int)", "int L$$Lambda.applyAsInt(int)"),
        ("java.lang.invoke.LambdaForm$MH+0x0000000800c03000.invoke", "java.lang.invoke.LambdaForm$MH.invoke"),
        ("std::__cxx11::to_string[abi:cxx11](int)", "std::__cxx11::to_string(int)"),
        ("memcpy@@GLIBC_2.14", "memcpy"),
        ("memcpy@GLIBC_2.2.5", "memcpy"),
        ("SSL_read@@OPENSSL_3.0.0", "SSL_read"),
        ("{anonymous}::f(int)", "(anonymous namespace)::f(int)"),
        ("app::_GLOBAL__N_1::f(int)", "app::(anonymous namespace)::f(int)"),
        ("void [app] Program::Main()[OptimizedTier1]", "void [app] Program::Main()"),
        ("void [app] Program::Main()[Tier0]", "void [app] Program::Main()"),
    ] {
        assert_eq!(function(decorated), name, "{decorated}");
    }
}

/// Checks that what only looks like a decoration stays.
#[test]
fn other_names_stay() {
    for name in [
        "",
        ".cold",
        ".isra.0",
        "main.run",
        "cold",
        "a.b.0",
        "operator[]",
        "x[0]",
        "f::hello",
        "f::h0123",
        "buf[deadbeefcafe",
        "[unknown]",
        "[kernel.kallsyms]",
        "std::h0123456789abcdeg",
        "read@plt",
        "@@GLIBC_2.2",
        "Object#each@/srv/x.rb:3",
        "f+0x1234",
        "mail@Home of things",
        "[Tier0]",
        "[abi:cxx11]",
    ] {
        assert_eq!(function(name), name);
    }
}

/// Checks that closures of one function have one name, whatever their numbers.
#[test]
fn closures_lose_their_numbers() {
    for (numbered, name) in [
        ("app::run::{closure#0}", "app::run::{closure}"),
        ("app::run::{{closure}}#12", "app::run::{{closure}}"),
        ("app::run::{closure#0}::{closure#1}", "app::run::{closure}::{closure}"),
        ("run(int)::{lambda(int)#2}::operator()", "run(int)::{lambda(int)}::operator()"),
        ("main.run.func2", "main.run.func"),
        ("main.run.func2.1", "main.run.func"),
        ("operator#", "operator#"),
        ("C#3x", "C#3x"),
        ("main.function", "main.function"),
        ("L$$Lambda$14.run", "L$$Lambda$.run"),
        ("int L.lambda$main$0(int)", "int L.lambda$main$(int)"),
        (
            "jdk.internal.reflect.GeneratedMethodAccessor17.invoke",
            "jdk.internal.reflect.GeneratedMethodAccessor.invoke",
        ),
        ("com.sun.proxy.$Proxy12.get", "com.sun.proxy.$Proxy.get"),
        ("Outer$1.run", "Outer$.run"),
        ("$1", "$1"),
        ("price$5x", "price$5x"),
    ] {
        assert_eq!(without_numbers(numbered), name, "{numbered}");
    }
}

/// Checks modules with and without versions.
#[test]
fn versions_of_libraries_are_removed() {
    for (versioned, name) in [
        ("libz.so.1.2.13", "libz.so"),
        ("libz.so.1", "libz.so"),
        ("libz.so", "libz.so"),
        ("libc-2.31.so", "libc.so"),
        ("libstdc++.so.6.0.30", "libstdc++.so"),
        ("foo.so.d", "foo.so.d"),
        ("python3.11", "python3.11"),
        ("[kernel.kallsyms]", "[kernel.kallsyms]"),
        ("lib-x86.so", "lib-x86.so"),
        ("[JIT] tid 24011", "[JIT]"),
        ("perf-24011.map", "[JIT]"),
        ("jitted-24011-17.so", "[JIT]"),
        ("[JIT] tid x", "[JIT] tid x"),
        ("perf-tool.map", "perf-tool.map"),
    ] {
        assert_eq!(module(versioned), name, "{versioned}");
    }
}

/// Checks keys that join all functions which have them.
#[test]
fn keys_of_closures_shapes_and_scripts() {
    let last = MERGING_KEYS - 1;
    for (key, name, joined) in [
        (1, "main.Map[go.shape.int_0]", "main.Map[...]"),
        (1, "main.(*Set[go.shape.[]int_0,go.shape.string_1]).Add", "main.(*Set[...]).Add"),
        (1, "main.Map[...]", "main.Map[...]"),
        (1, "x[0]", "x[0]"),
        (2, "JS:foo /srv/old/x.js:12:5", "JS:foo /srv/old/x.js"),
        (2, "Object#each@/srv/x.rb:3", "Object#each@/srv/x.rb"),
        (3, "JS:foo /srv/a/b/old/x.js:12:5", "JS:foo b/old/x.js"),
        (4, "JS:foo /srv/a/b/old/x.js:12:5", "JS:foo old/x.js"),
        (last, "JS:foo /srv/old/x.js:12:5", "JS:foo x.js"),
        (last, "JS:foo file:///srv/old/x.mjs:12:5", "JS:foo x.mjs"),
        (last, "py::foo:/srv/old/x.py", "py::foo:x.py"),
        (last, "py::<module>:/srv/old/x.py", "py::<module>:x.py"),
        (last, "foo (/srv/old/x.lua:12)", "foo (x.lua)"),
        (last, "JS: /srv/old/x.js:12:5", "JS: x.js"),
        (last, "JS:foo node:internal/timers:514:1", "JS:foo node:internal/timers:514:1"),
        (last, "operator/", "operator/"),
        (last, ".js", ".js"),
    ] {
        assert_eq!(merged(name, key), joined, "{name}");
    }
}

/// Checks keys that join the only function of each side.
#[test]
fn keys_of_signatures_arguments_and_variants() {
    for (key, name, joined) in [
        (0, "JS:foo /srv/old/x.js:12:5", Some("x.js:12:5")),
        (0, "py::foo:/srv/old/x.py", None),
        (0, "app::f(int)", None),
        (1, "app::f(unsigned long, long) const", Some("app::f")),
        (1, "app::(anonymous namespace)::f(int)", Some("app::f")),
        (1, "f(void (*)(int), long)", Some("f")),
        (1, "A::operator()(int) const", Some("A::operator()")),
        (1, "main.(*T).Method", Some("main.(*T).Method")),
        (1, "&", Some("&")),
        (1, " const", Some(" const")),
        (2, "app::f<int, A<long> >(int)", Some("app::f")),
        (2, "operator<< <char>", Some("operator<< <char>")),
        (2, "<A<i32> as B>::next", Some("<A<i32> as B>::next")),
        (3, "__memmove_avx_unaligned_erms", Some("__memmove")),
        (3, "__memmove_evex_unaligned_erms", Some("__memmove")),
        (3, "sum.avx2.0", Some("sum")),
        (3, "sum.arch_haswell.1", Some("sum")),
        (3, "my_avx_sum", Some("my_avx_sum")),
    ] {
        assert_eq!(renamed(name, key).as_deref(), joined, "{name}");
    }
    for (name, last) in [
        ("app::detail::hash<int>(unsigned long, long, int)", "hash"),
        ("hash", "hash"),
        ("int com.app.L.hash(int)", "hash"),
        ("a::", ""),
        ("JS:foo /srv/x.js:1:2", "JS:foo /srv/x.js:1:2"),
    ] {
        assert_eq!(last_part(name), last, "{name}");
    }
}

proptest! {
    /// Checks that a key is a key of itself, and never empty for a name that is not, whatever a
    /// recording contains.
    #[test]
    fn keys_are_stable(name in "\\PC{0,40}|([a-z:.\\[\\]{}#*~$()/@<> ]|cold|0x[0-9a-f]{8}|\\.js:|operator|const|go\\.shape\\.|isra|func|[0-9a-f]{8}|::h[0-9a-f]{16}){0,8}") {
        let key = function(&name).into_owned();
        prop_assert_eq!(&*function(&key), &key);
        prop_assert_eq!(key.is_empty(), name.is_empty());
        let bare = without_numbers(&key).into_owned();
        prop_assert_eq!(&*without_numbers(&bare), &bare);
        for key in 0..MERGING_KEYS {
            let joined = merged(&name, key).into_owned();
            prop_assert!(joined.len() <= name.len() && joined.is_empty() == name.is_empty());
        }
        for key in 0..RENAMING_KEYS {
            prop_assert!(renamed(&name, key).is_none_or(|key| key.is_empty() == name.is_empty()));
        }
        let library = module(&name).into_owned();
        prop_assert_eq!(&*module(&library), &library);
    }

    /// Checks that decorations of a plain name are removed in any order and number.
    #[test]
    fn any_decorations_are_removed(suffixes in proptest::collection::vec((0..12usize, proptest::option::of(0..99u32)), 0..6)) {
        let mut name = "handle_request".to_owned();
        for (suffix, number) in suffixes {
            name.push('.');
            name.push_str(CLONE_SUFFIXES[suffix]);
            number.iter().for_each(|number| name.push_str(&format!(".{number}")));
        }
        prop_assert_eq!(function(&name), "handle_request");
    }
}
