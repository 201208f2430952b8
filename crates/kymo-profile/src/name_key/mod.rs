//! Names of functions and modules that stay the same from one run, one build and one folder to the
//! next: the one table of such rules, for comparisons, datasets and queries.
//!
//! Compilers append hashes and numbers of clones, virtual machines addresses, and each process has
//! a module of its own for generated code. [`function`] and [`module`] remove what never tells two
//! functions apart. What sometimes does (numbers of closures, lines and folders of scripts,
//! signatures) stays, and [`merged`] and [`renamed`] have looser keys, for names that one of two
//! builds lacks.
mod looser;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

pub(crate) use looser::{MERGING_KEYS, RENAMING_KEYS, last_part, merged, renamed};

/// The module of all code that a process generated at run time. Tables of single recordings say
/// `[JIT] tid N`, as perf does.
pub const GENERATED_CODE: &str = "[JIT]";

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

/// How .NET marks the tier that compiled a method.
const DOTNET_TIERS: [&str; 12] = [
    "Tier0",
    "Tier1",
    "Tier-0",
    "Tier-1",
    "Tier1OSR",
    "OptimizedTier1",
    "OptimizedTier1OSR",
    "Optimized",
    "MinOptJitted",
    "QuickJitted",
    "PreJIT",
    "ReadyToRun",
];

/// A function's name without hashes, addresses, tiers and suffixes of clones: `foo.isra.0.cold`,
/// `foo [clone .cold]`, `foo::h0123456789abcdef`, `foo@@LIB_2.14` and `foo` are the same.
pub fn function(name: &str) -> Cow<'_, str> {
    until_stable(name, |name| {
        let rest = without_symbol_version(without_dotnet_tier(without_clone_note(name)));
        let rest = without_disambiguators(without_legacy_hash(without_suffix(rest)));
        without_tier(anonymous_namespace(without_class_address(rest)))
    })
}

/// Applies a rewrite until it changes nothing more; each change makes a name shorter or gives it
/// its final spelling.
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

/// A module without the version of a shared library: `libz.so.1.2.13` and `libz-1.2.11.so` are
/// `libz.so`. Generated code has one module in all processes: `[JIT] tid 12`, `perf-12.map` and
/// `jitted-12-3.so` are `[JIT]`.
pub fn module(name: &str) -> Cow<'_, str> {
    match is_generated_code(name) {
        true => Cow::Borrowed(GENERATED_CODE),
        false => until_stable(name, without_version),
    }
}

/// Whether a module is the code that one process generated: perf's names of it, that of a perf map,
/// and those of the files that `perf inject --jit` writes for each function.
fn is_generated_code(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let between = |start: &str, end: &str| name.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
    name.strip_prefix("[JIT] tid ").is_some_and(is_number)
        || between("perf-", ".map").is_some_and(is_number)
        || between("jitted-", ".so").is_some_and(|numbers| numbers.split('-').all(is_number))
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

/// Without the disambiguators of crates in Rust's newer mangling, `core[4a1b2c3d4e5f6071]::fmt`,
/// and without ABI tags of C++, `name[abi:cxx11]()`.
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
            Some(tag) if is_of_word && (is_crate_hash(tag) || is_abi_tag(tag)) => {
                rest = &tail[tag.len() + 2..];
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

fn is_crate_hash(tag: &str) -> bool {
    (8..=16).contains(&tag.len()) && tag.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_abi_tag(tag: &str) -> bool {
    let word = |tag: &str| tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    tag.strip_prefix("abi:").is_some_and(|tag| !tag.is_empty() && word(tag))
}

/// Without the version of a symbol: `memcpy@@GLIBC_2.14`, `memcpy@GLIBC_2.2.5`. `read@plt` is other
/// code than `read`.
fn without_symbol_version(name: &str) -> &str {
    let Some((symbol, version)) = name.split_once('@') else { return name };
    let version = version.strip_prefix('@').unwrap_or(version);
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
    let is_version = version.starts_with(|first: char| first.is_ascii_uppercase())
        && version.bytes().all(is_word)
        && !symbol.contains([' ', '/', ':']);
    if is_version && !symbol.is_empty() { symbol } else { name }
}

/// Without the tier at the end of a method of .NET: `void [app] Program::Main()[OptimizedTier1]`.
fn without_dotnet_tier(name: &str) -> &str {
    let Some((method, tier)) = name.strip_suffix(']').and_then(|name| name.rsplit_once('[')) else {
        return name;
    };
    if !method.is_empty() && DOTNET_TIERS.contains(&tier) { method } else { name }
}

/// Without the addresses that the JVM gives hidden classes: `L$$Lambda$1/0x00007f768d000a08.run`,
/// `LambdaForm$MH+0x0000000800c03000`. They differ from run to run.
fn without_class_address(name: Cow<'_, str>) -> Cow<'_, str> {
    if !name.contains("0x") {
        return name;
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = &*name;
    while let Some(at) = rest.find("0x") {
        let (head, tail) = rest.split_at(at);
        let digits = tail[2..].bytes().take_while(u8::is_ascii_hexdigit).count();
        let class = head.strip_suffix(['/', '+']).filter(|class| class.ends_with(is_in_class_name));
        match class {
            // Shorter ones are offsets in functions.
            Some(class) if digits >= 8 => out.push_str(class),
            _ => out.push_str(&rest[..at + 2 + digits]),
        }
        rest = &tail[2 + digits..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

fn is_in_class_name(last: char) -> bool {
    last.is_alphanumeric() || matches!(last, '$' | '_')
}

/// One spelling of C++'s anonymous namespace: that of `c++filt`.
fn anonymous_namespace(name: Cow<'_, str>) -> Cow<'_, str> {
    const SPELLINGS: [&str; 2] = ["{anonymous}::", "_GLOBAL__N_1::"];
    match SPELLINGS.iter().find(|spelling| name.contains(**spelling)) {
        Some(spelling) => Cow::Owned(name.replace(spelling, looser::ANONYMOUS_NAMESPACE)),
        None => name,
    }
}

/// Without V8's mark of the tier that compiled a function: `JS:*run file.js:3` and `JS:~run ...`.
fn without_tier(name: Cow<'_, str>) -> Cow<'_, str> {
    let prefixes = ["JS:", "LazyCompile:", "Function:", "Eval:", "Script:"];
    let Some(prefix) = prefixes.iter().find(|prefix| name.starts_with(**prefix)) else { return name };
    let rest = &name[prefix.len()..];
    let function = rest.trim_start_matches(['*', '~', '^', '+']);
    if function.len() == rest.len() && *prefix == "JS:" { name } else { Cow::Owned(format!("JS:{function}")) }
}
