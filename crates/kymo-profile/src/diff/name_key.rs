//! Names of functions and modules that stay the same from one build to the next.
//!
//! Compilers append hashes, numbers of clones and numbers of closures, which change with every
//! build. [`function`] removes what never tells two functions apart; [`without_numbers`] removes
//! the numbers of closures, too, which matter only where both builds number them in the same way.
use std::borrow::Cow;

/// Suffixes of symbols that name a part or a copy of a function, each with an optional number:
/// GCC's and LLVM's.
const CLONE_SUFFIXES: [&str; 12] = [
    "cold",
    "hot",
    "isra",
    "part",
    "constprop",
    "lto_priv",
    "localalias",
    "clone",
    "llvm",
    "__uniq",
    "split",
    "warm",
];

/// A function's name without hashes and suffixes of clones: `foo.isra.0.cold`, `foo [clone .cold]`,
/// `foo::h0123456789abcdef` and `foo` are the same.
pub(crate) fn function(name: &str) -> Cow<'_, str> {
    until_stable(name, |name| {
        let rest = without_legacy_hash(without_suffix(without_clone_note(name)));
        without_tier(without_disambiguators(rest))
    })
}

/// Applies a rewrite until it changes nothing more; each change makes a name shorter or gives it
/// the final prefix.
fn until_stable<'n>(name: &'n str, rewrite: impl Fn(&str) -> Cow<'_, str>) -> Cow<'n, str> {
    let mut name = Cow::Borrowed(name);
    loop {
        let next = rewrite(&name);
        if *next == *name {
            return name;
        }
        name = Cow::Owned(next.into_owned());
    }
}

/// The same without the numbers of closures and lambdas: `{closure#2}`, `{{closure}}#2`,
/// `{lambda(int)#2}` and Go's `main.func2.1`.
pub(crate) fn without_numbers(name: &str) -> Cow<'_, str> {
    until_stable(name, without_closure_numbers)
}

fn without_closure_numbers(name: &str) -> Cow<'_, str> {
    let name = match is_go_closure(name) {
        Some(function) => Cow::Owned(format!("{function}.func")),
        None => Cow::Borrowed(name),
    };
    if !name.contains('#') {
        return name;
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = &*name;
    while let Some(at) = rest.find('#') {
        let (head, tail) = rest.split_at(at);
        out.push_str(head);
        let digits = tail[1..].bytes().take_while(u8::is_ascii_digit).count();
        let after = &tail[1 + digits..];
        let closes = after.is_empty() || after.starts_with(['}', ':', ' ']);
        if digits == 0 || !closes {
            out.push('#');
            rest = &tail[1..];
        } else {
            rest = after;
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// A module without the version of a shared library: `libz.so.1.2.13` and `libz-1.2.11.so` are
/// `libz.so`.
pub(crate) fn module(name: &str) -> Cow<'_, str> {
    until_stable(name, without_version)
}

fn without_version(name: &str) -> Cow<'_, str> {
    if let Some(at) = name.find(".so.") {
        let is_version = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if name[at + 4..].split('.').all(is_version) {
            return module_stem(&name[..at + 3]);
        }
    }
    module_stem(name)
}

/// `libc-2.31.so`: the version before the suffix.
fn module_stem(name: &str) -> Cow<'_, str> {
    let Some(stem) = name.strip_suffix(".so") else { return Cow::Borrowed(name) };
    match stem.rsplit_once('-') {
        Some((base, version))
            if version.starts_with(|first: char| first.is_ascii_digit())
                && version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') =>
        {
            Cow::Owned(format!("{base}.so"))
        }
        _ => Cow::Borrowed(name),
    }
}

/// Without ` [clone .cold]` at the end.
fn without_clone_note(name: &str) -> &str {
    match name.rfind(" [clone ") {
        Some(at) if at > 0 && name.ends_with(']') => &name[..at],
        _ => name,
    }
}

/// Without one suffix of a clone, and the number after it.
fn without_suffix(name: &str) -> &str {
    let Some((head, last)) = name.rsplit_once('.') else { return name };
    if head.is_empty() {
        return name;
    }
    if CLONE_SUFFIXES.contains(&last) {
        return head;
    }
    let is_number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
    match head.rsplit_once('.') {
        Some((function, suffix)) if is_number && !function.is_empty() && CLONE_SUFFIXES.contains(&suffix) => {
            function
        }
        _ => name,
    }
}

/// Without the hash of Rust's older mangling.
fn without_legacy_hash(name: &str) -> &str {
    match name.rsplit_once("::h") {
        Some((head, hash))
            if hash.len() == 16
                && !head.is_empty()
                && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) =>
        {
            head
        }
        _ => name,
    }
}

/// Without the disambiguators of crates in Rust's newer mangling: `core[4a1b2c3d4e5f6071]::fmt`.
fn without_disambiguators(name: &str) -> Cow<'_, str> {
    if !name.contains('[') {
        return Cow::Borrowed(name);
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find('[') {
        let (head, tail) = rest.split_at(at);
        out.push_str(head);
        let inner = tail[1..].find(']').map(|end| &tail[1..=end]);
        let is_of_word = head.ends_with(|last: char| last.is_alphanumeric() || last == '_');
        match inner {
            Some(hash)
                if is_of_word
                    && (8..=16).contains(&hash.len())
                    && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) =>
            {
                rest = &tail[hash.len() + 2..];
            }
            _ => {
                out.push('[');
                rest = &tail[1..];
            }
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Without V8's mark of the tier that compiled a function: `JS:*run file.js:3` and `JS:~run ...`.
fn without_tier(name: Cow<'_, str>) -> Cow<'_, str> {
    let prefixes = ["JS:", "LazyCompile:", "Function:", "Eval:", "Script:"];
    let Some(prefix) = prefixes.iter().find(|prefix| name.starts_with(**prefix)) else { return name };
    let rest = &name[prefix.len()..];
    let function = rest.trim_start_matches(['*', '~', '^', '+']);
    if function.len() == rest.len() && *prefix == "JS:" { name } else { Cow::Owned(format!("JS:{function}")) }
}

/// The function of a Go closure: `main.run.func2` and `main.run.func2.1`.
fn is_go_closure(name: &str) -> Option<&str> {
    let at = name.rfind(".func")?;
    let (function, numbers) = (&name[..at], &name[at + ".func".len()..]);
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    (!function.is_empty() && numbers.split('.').all(is_number)).then_some(function)
}

#[cfg(test)]
mod tests {
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
        ] {
            assert_eq!(module(versioned), name, "{versioned}");
        }
    }

    proptest! {
        /// Checks that a key is a key of itself, and never empty for a name that is not, whatever a
        /// recording contains.
        #[test]
        fn keys_are_stable(name in "\\PC{0,40}|([a-z:.\\[\\]{}#*~]|cold|isra|func|[0-9a-f]{8}|::h[0-9a-f]{16}){0,8}") {
            let key = function(&name).into_owned();
            prop_assert_eq!(&*function(&key), &key);
            prop_assert_eq!(key.is_empty(), name.is_empty());
            let bare = without_numbers(&key).into_owned();
            prop_assert_eq!(&*without_numbers(&bare), &bare);
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
}
