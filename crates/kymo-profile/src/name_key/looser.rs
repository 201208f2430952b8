//! Keys under which two builds may name one function differently, the strictest first.
//!
//! Keys of [`merged`] join all functions that have them: closures that both builds number
//! differently are told apart no more. Keys of [`renamed`] join two functions only where each side
//! has one, because overloads share them.
use super::{Cow, until_stable};

/// The namespace of names that only one source file sees.
pub(super) const ANONYMOUS_NAMESPACE: &str = "(anonymous namespace)::";

/// How many keys [`merged`] has.
pub(crate) const MERGING_KEYS: usize = 6;

/// A key of functions that builds may name differently, from 0: without the numbers of closures and
/// classes, without the shapes of Go's generics, without the line of a script, and with only three,
/// two and one of the last parts of its path.
pub(crate) fn merged(name: &str, key: usize) -> Cow<'_, str> {
    match key {
        0 => without_numbers(name),
        1 => without_shapes(name),
        2 => script_key(name, usize::MAX),
        3.. => script_key(name, 6_usize.saturating_sub(key).max(1)),
    }
}

/// How many keys [`renamed`] has.
pub(crate) const RENAMING_KEYS: usize = 4;

/// A key under which the only function of each side is the same, from 0: its place in a script,
/// without the signature, without template arguments, and without the variant for a processor.
/// `None`: the name has no such key.
pub(crate) fn renamed(name: &str, key: usize) -> Option<Cow<'_, str>> {
    match key {
        0 => place_in_script(name).map(Cow::Borrowed),
        1 => Some(without_signature(name)),
        2 => Some(without_arguments(without_signature(name))),
        _ => Some(without_variant(without_arguments(without_signature(name)))),
    }
}

/// Without the numbers of closures, lambdas and classes: `{closure#2}`, `{{closure}}#2`,
/// `{lambda(int)#2}`, Go's `main.func2.1`, the JVM's `L$$Lambda$14`, `lambda$main$0` and `$Proxy3`.
pub(crate) fn without_numbers(name: &str) -> Cow<'_, str> {
    until_stable(name, |name| without_class_numbers(without_closure_numbers(name)))
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
        let digits = digits(&tail[1..]);
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

/// The function of a Go closure: `main.run.func2` and `main.run.func2.1`.
fn is_go_closure(name: &str) -> Option<&str> {
    let at = name.rfind(".func")?;
    let (function, numbers) = (&name[..at], &name[at + ".func".len()..]);
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    (!function.is_empty() && numbers.split('.').all(is_number)).then_some(function)
}

/// Without the numbers that the JVM and its compilers give to classes in the order in which they
/// are made.
fn without_class_numbers(name: Cow<'_, str>) -> Cow<'_, str> {
    const GENERATED: [&str; 4] = ["$", "GeneratedMethodAccessor", "GeneratedConstructorAccessor", "$Proxy"];
    let Some(at) = GENERATED.iter().find_map(|start| {
        name.match_indices(start).map(|(at, _)| at + start.len()).find(|at| {
            let rest = &name[*at..];
            let after = &rest[digits(rest)..];
            after.len() < rest.len()
                && (after.is_empty() || after.starts_with(['.', ':', '(', ';', '/', '$']))
        })
    }) else {
        return name;
    };
    // A name that begins with its number, as a shell's `$1`, is no class.
    if at == 1 {
        return name;
    }
    let after = at + digits(&name[at..]);
    Cow::Owned(format!("{}{}", &name[..at], &name[after..]))
}

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// Without the type arguments of Go's generics, which its two symbol tables write as
/// `main.Map[go.shape.int_0]` and `main.Map[...]`.
fn without_shapes(name: &str) -> Cow<'_, str> {
    const ANY: &str = "[...]";
    let Some(start) = name.find("[go.shape.") else { return Cow::Borrowed(name) };
    let mut depth = 0_usize;
    let end = name[start..].bytes().position(|byte| {
        depth = match byte {
            b'[' => depth + 1,
            b']' => depth.saturating_sub(1),
            _ => depth,
        };
        depth == 0
    });
    match end {
        Some(end) => {
            let rest = without_shapes(&name[start + end + 1..]);
            Cow::Owned(format!("{}{ANY}{rest}", &name[..start]))
        }
        None => Cow::Borrowed(name),
    }
}

/// Where a name has the path of a script, and the line after it: `JS:f /srv/x.js:12:5`,
/// `py::f:/srv/x.py`, `f@/srv/x.rb:3`. The ends of the path and of the place.
fn script_in(name: &str) -> Option<(usize, usize, usize)> {
    const SUFFIXES: [&str; 15] =
        ["js", "mjs", "cjs", "ts", "mts", "cts", "jsx", "tsx", "py", "pyx", "rb", "lua", "php", "pl", "erl"];
    let is_suffix = |end: usize, suffix: &str| {
        let rest = &name[end + 1..];
        rest.starts_with(suffix)
            && rest[suffix.len()..].chars().next().is_none_or(|next| matches!(next, ':' | ')' | ' ' | '$'))
    };
    let (dot, suffix) = name.rmatch_indices('.').find_map(|(dot, _)| {
        SUFFIXES.iter().find(|suffix| is_suffix(dot, suffix)).map(|of| (dot, of.len()))
    })?;
    let end = dot + 1 + suffix;
    let start = path_start(&name[..dot])?;
    let mut after = end;
    for _ in 0..2 {
        let digits = name[after..].strip_prefix(':').map_or(0, digits);
        after += if digits > 0 { digits + 1 } else { 0 };
    }
    Some((start, end, after))
}

/// Where the path begins that ends here: after a space, `@`, `(` or a colon that is no drive's or
/// scheme's.
fn path_start(text: &str) -> Option<usize> {
    let scheme = text.find("://").map_or(0, |at| at + 3);
    let start = text[scheme..].rfind([' ', '@', '(', ':']).map_or(scheme, |at| scheme + at + 1);
    let before = &text[..scheme];
    let start = if start > scheme { start } else { before.rfind([' ', '@', '(']).map_or(0, |at| at + 1) };
    (start < text.len()).then_some(start)
}

/// A name with only so many of the last parts of its script's path, and without the line.
fn script_key(name: &str, parts: usize) -> Cow<'_, str> {
    let Some((start, end, after)) = script_in(name) else { return Cow::Borrowed(name) };
    let path = &name[start..end];
    let kept = path.rmatch_indices('/').nth(parts.saturating_sub(1)).map_or(path, |(at, _)| &path[at + 1..]);
    match kept.len() == path.len() && after == end {
        true => Cow::Borrowed(name),
        false => Cow::Owned(format!("{}{kept}{}", &name[..start], &name[after..])),
    }
}

/// The file of a script and the line: `x.js:12:5`. `None` where there is no line.
fn place_in_script(name: &str) -> Option<&str> {
    let (start, end, after) = script_in(name)?;
    let file = name[start..end].rfind('/').map_or(start, |at| start + at + 1);
    (after > end).then(|| &name[file..after])
}

/// Without parameters, qualifiers after them, and anonymous namespaces: `app::f(int) const` and
/// `(anonymous namespace)::app::f(long)` are `app::f`.
fn without_signature(name: &str) -> Cow<'_, str> {
    let without_qualifier = |name: &str| -> Option<usize> {
        let suffixes = [" const", " volatile", " noexcept", "&"];
        let rest = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix))?;
        Some(rest.trim_end().len()).filter(|length| *length > 0)
    };
    let mut bare = name;
    while let Some(length) = without_qualifier(bare) {
        bare = &bare[..length];
    }
    if bare.ends_with(')') {
        let mut depth = 0_usize;
        let start = bare.bytes().rposition(|byte| {
            depth = match byte {
                b')' => depth + 1,
                b'(' => depth.saturating_sub(1),
                _ => depth,
            };
            depth == 0
        });
        bare = start.filter(|start| *start > 0).map_or(bare, |start| &bare[..start]);
    }
    let public = bare.replace(ANONYMOUS_NAMESPACE, "");
    match public.is_empty() || public.len() == bare.len() {
        true => Cow::Borrowed(bare),
        false => Cow::Owned(public),
    }
}

/// Without template arguments: `app::f<int>` is `app::f`. Names of operators and Rust's `<T as U>`
/// have brackets that are none.
fn without_arguments(name: Cow<'_, str>) -> Cow<'_, str> {
    if name.starts_with('<') || name.contains("operator") || !name.contains('<') {
        return name;
    }
    let (mut out, mut depth) = (String::with_capacity(name.len()), 0_usize);
    for char in name.chars() {
        match char {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ if depth == 0 => out.push(char),
            _ => {}
        }
    }
    if out.is_empty() { name } else { Cow::Owned(out) }
}

/// Without the processor that a copy of a function is for: glibc's `__memmove_avx_unaligned_erms`
/// and GCC's `f.avx2.0`, `f.default.1` and `f.arch_haswell`.
fn without_variant(name: Cow<'_, str>) -> Cow<'_, str> {
    const PROCESSORS: [&str; 16] = [
        "sse2", "sse3", "ssse3", "sse4", "sse42", "avx", "avx2", "avx512", "evex", "evex512", "erms", "fma",
        "neon", "sve", "arch", "default",
    ];
    let starts_variant = |at: usize| {
        let rest = &name[at + 1..];
        let end = rest.find(|char: char| !char.is_ascii_alphanumeric()).unwrap_or(rest.len());
        PROCESSORS.contains(&&rest[..end])
    };
    let is_glibc = name.starts_with("__");
    let start = name
        .char_indices()
        .filter(|(at, char)| *at > 2 && (*char == '.' || *char == '_' && is_glibc))
        .find(|(at, _)| starts_variant(*at));
    match start {
        Some((at, _)) => Cow::Owned(name[..at].to_owned()),
        None => name,
    }
}

/// The name without its namespace, class, return type and signature: `app::detail::hash(int)` is
/// `hash`. Empty where there is none.
pub(crate) fn last_part(name: &str) -> Cow<'_, str> {
    if name.contains("operator") || script_in(name).is_some() {
        return Cow::Borrowed(name);
    }
    let plain = without_variant(without_arguments(without_signature(name)));
    match plain.rfind([':', '.', ' ']) {
        Some(at) => Cow::Owned(plain[at + 1..].to_owned()),
        None => plain,
    }
}
