//! Selectors to sites.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::lines::LineMatch;
use super::module::{Function, ProbeModule};
use super::selector::{Place, ProbeSelector, glob};

/// A place that a probe can be put on.
#[derive(Clone, Debug)]
pub struct Site {
    /// The file that it is in.
    pub module: Arc<ProbeModule>,
    /// Where in the file.
    pub offset: u64,
    /// Where as linked.
    pub svma: u64,
    /// For people: `alpha::beta`, `alpha::beta+0x10`, `file.c:120`, `provider:name`.
    pub name: String,
    /// The symbol of the function it is in, if there is one.
    pub symbol: Option<Box<str>>,
    /// From here to the function's end; 0 where that is not known.
    pub length_bytes: u64,
    /// What kind of place.
    pub kind: SiteKind,
    /// Where in the file a marker's counter of listeners lies.
    pub semaphore: Option<u64>,
}

/// Kinds of places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SiteKind {
    /// The first instruction of a function: only these have returns.
    Function,
    /// An instruction further in, or one of which no function is known.
    Inside,
    /// The first instruction of a line.
    Line,
    /// A marker, with where its arguments are.
    Marker {
        /// `8@%rdi -4@$5`
        arguments: String,
    },
}

impl SiteKind {
    /// One word.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            SiteKind::Function => "function",
            SiteKind::Inside => "instruction",
            SiteKind::Line => "line",
            SiteKind::Marker { .. } => "marker",
        }
    }
}

/// A selector that fits nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct MissingSite {
    /// What was looked for and where, a sentence without its end.
    pub what: String,
    /// The name that was looked for.
    pub wanted: String,
    /// Names that there are, to suggest a near one from.
    pub names: Vec<String>,
    /// What to do, if that is known already.
    pub hint: Option<String>,
}

/// More sites than anyone can mean.
const MOST: usize = 1 << 20;

/// Whether a selector's module part means this file: its path, its name or a glob of it, the name without its version
/// (`libc.so` for `libc.so.6`), or what comes before `.so` (`libc`).
#[must_use]
pub fn module_matches(wanted: &str, path: &Path) -> bool {
    let text = path.to_string_lossy();
    if wanted.contains('/') {
        let canonical = Path::new(wanted).canonicalize();
        let same = text == wanted || canonical.is_ok_and(|wanted| wanted == path) || glob(wanted, &text);
        return same
            || (!wanted.starts_with('/')
                && text.ends_with(&format!("/{}", wanted.trim_start_matches("./"))));
    }
    let name = text.rsplit('/').next().unwrap_or(&text);
    let stem = name.find(".so").map_or(name, |at| &name[..at]);
    // `libz-1.3.so`
    let plain =
        stem.rsplit_once('-').filter(|(_, version)| version.starts_with(|c: char| c.is_ascii_digit()));
    glob(wanted, name)
        || (name.contains(".so") && (wanted == stem || plain.is_some_and(|(stem, _)| stem == wanted)))
        || name.strip_prefix(wanted).is_some_and(|rest| wanted.ends_with(".so") && rest.starts_with('.'))
}

/// The sites that a selector means, in the order of modules and offsets. The first module is the program itself.
///
/// # Errors
/// [`MissingSite`] if it means none.
pub fn find(selector: &ProbeSelector, modules: &[Arc<ProbeModule>]) -> Result<Vec<Site>, MissingSite> {
    let chosen: Vec<&Arc<ProbeModule>> = match (&selector.module, &selector.place) {
        (Some(wanted), _) => modules.iter().filter(|module| module_matches(wanted, module.path())).collect(),
        // A marker or a line says enough by itself.
        (None, Place::Marker { .. } | Place::Line { .. }) => modules.iter().collect(),
        (None, _) => modules.iter().take(1).collect(),
    };
    if chosen.is_empty() {
        let wanted = selector.module.clone().unwrap_or_default();
        let what = if wanted.is_empty() {
            "there is no program to probe".to_owned()
        } else {
            format!("no module `{wanted}` is among the program's")
        };
        let names = modules.iter().map(|module| module.name().into_owned()).collect();
        let hint = "a library that is loaded later can be named by its path".to_owned();
        return Err(MissingSite { what, wanted, names, hint: Some(hint) });
    }
    let mut found = Vec::new();
    for module in &chosen {
        match &selector.place {
            Place::Function { glob, offset } => functions(module, glob, *offset, &mut found),
            Place::Line { file, line } => {
                if let LineMatch::Addresses(addresses) = module.line(file, *line) {
                    of_line(module, file, *line, &addresses, &mut found);
                }
            }
            Place::Offset(offset) => {
                let function = module.function_at(*offset);
                let begins =
                    function.is_none_or(|function| module.is_instruction(function, offset - function.offset));
                if module.is_code(*offset) && begins {
                    found.push(at(module, *offset, None));
                }
            }
            Place::Marker { provider, name } => {
                let fits =
                    module.markers().iter().filter(|m| glob(provider, &m.provider) && glob(name, &m.name));
                found.extend(fits.map(|marker| Site {
                    name: format!("{}:{}", marker.provider, marker.name),
                    kind: SiteKind::Marker { arguments: marker.arguments.clone() },
                    semaphore: marker.semaphore,
                    ..at(module, marker.offset, None)
                }));
            }
        }
    }
    if selector.returns {
        found.retain(|site| site.kind == SiteKind::Function);
    }
    found.truncate(MOST);
    if found.is_empty() { Err(missing(selector, &chosen, modules)) } else { Ok(found) }
}

/// A site at an offset, named by the function around it.
fn at(module: &Arc<ProbeModule>, offset: u64, name: Option<String>) -> Site {
    let function = module.function_at(offset);
    let inside = function.map_or(0, |function| offset - function.offset);
    let own = || match function {
        Some(function) if inside == 0 => function.name().into_owned(),
        Some(function) => format!("{}+{inside:#x}", function.name()),
        None => format!("{offset:#x}"),
    };
    Site {
        module: Arc::clone(module),
        offset,
        svma: module.svma_of(offset).unwrap_or(0),
        name: name.unwrap_or_else(own),
        symbol: function.map(|function| function.raw_name.clone()),
        length_bytes: function.map_or(0, |function| function.size_bytes.saturating_sub(inside)),
        kind: if function.is_some() && inside == 0 { SiteKind::Function } else { SiteKind::Inside },
        semaphore: None,
    }
}

fn functions(module: &Arc<ProbeModule>, pattern: &str, into: u64, found: &mut Vec<Site>) {
    // Of several names for one place (S2), the first that fits: they are ordered by how good they are.
    let mut last = None;
    for function in module.functions().iter().filter(|function| !function.is_resolver) {
        if last == Some(function.offset) || !names(pattern, function) {
            continue;
        }
        last = Some(function.offset);
        if into == 0 {
            found.push(Site {
                name: function.name().into_owned(),
                symbol: Some(function.raw_name.clone()),
                length_bytes: function.size_bytes,
                kind: SiteKind::Function,
                ..at(module, function.offset, None)
            });
        } else if let Some(offset) = function.offset.checked_add(into)
            && into < function.size_bytes
            && module.is_code(offset)
            && module.is_instruction(function, into)
        {
            found.push(at(module, offset, Some(format!("{}+{into:#x}", function.name()))));
        }
    }
}

/// Whether a pattern names a function: by its readable name, by its raw one, or as a whole that the compiler made of it.
fn names(pattern: &str, function: &Function) -> bool {
    let raw = &*function.raw_name;
    if glob(pattern, raw) {
        return !is_part(raw) || is_part(pattern) || pattern == raw;
    }
    let readable = function.name();
    let base = |name: &str| -> Option<usize> {
        [".isra.", ".constprop.", ".lto_priv.", ".llvm."].iter().filter_map(|made| name.find(made)).min()
    };
    if readable != raw && glob(pattern, &readable) {
        return !is_part(raw) || is_part(pattern);
    }
    base(raw).is_some_and(|end| !is_part(raw) && glob(pattern, &raw[..end]))
}

/// A part of a function that is not entered by calls.
fn is_part(name: &str) -> bool {
    [".cold", ".part."].iter().any(|part| name.contains(part))
}

/// One site in each function, the first (S2).
fn of_line(module: &Arc<ProbeModule>, file: &str, line: u32, addresses: &[u64], found: &mut Vec<Site>) {
    let mut first: BTreeMap<u64, u64> = BTreeMap::new();
    for offset in addresses.iter().filter_map(|&svma| module.elf().code_offset(svma)) {
        let function = module.function_at(offset).map_or(offset, |function| function.offset);
        let known = first.entry(function).or_insert(offset);
        *known = offset.min(*known);
    }
    let last = file.rsplit('/').next().unwrap_or(file);
    for offset in first.into_values() {
        let site = at(module, offset, Some(format!("{last}:{line}")));
        found.push(Site { kind: SiteKind::Line, ..site });
    }
}

fn listed(modules: &[&Arc<ProbeModule>]) -> String {
    let mut names: Vec<_> = modules.iter().take(3).map(|module| module.name().into_owned()).collect();
    if modules.len() > 3 {
        names.push(format!("{} more", modules.len() - 3));
    }
    names.join(", ")
}

/// Says why nothing was found.
fn missing(selector: &ProbeSelector, chosen: &[&Arc<ProbeModule>], all: &[Arc<ProbeModule>]) -> MissingSite {
    let inside = listed(chosen);
    let plain = |what: String, wanted: &str, names: Vec<String>, hint: Option<String>| MissingSite {
        what,
        wanted: wanted.to_owned(),
        names,
        hint,
    };
    match &selector.place {
        Place::Function { glob: wanted, offset } => {
            let all_names = || chosen.iter().flat_map(|module| module.functions());
            if let Some(resolver) = all_names().find(|f| f.is_resolver && glob(wanted, &f.raw_name)) {
                let what = format!(
                    "`{}` in {inside} is chosen when the program starts (IFUNC), so it has no code of its own",
                    resolver.name()
                );
                let hint = format!("probe its implementations, for example '*{}*'", resolver.raw_name);
                return plain(what, wanted, Vec::new(), Some(hint));
            }
            if *offset > 0
                && let Some(function) = all_names().find(|function| names(wanted, function))
            {
                let what = format!(
                    "no instruction of `{}` in {inside} ({} bytes) begins at +{offset:#x}",
                    function.name(),
                    function.size_bytes
                );
                let hint = "`objdump -d` shows where instructions begin".to_owned();
                return plain(what, wanted, Vec::new(), Some(hint));
            }
            if let Some((file, line)) = chosen.iter().find_map(|module| module.inlined_only(wanted)) {
                let what =
                    format!("`{wanted}` in {inside} has no code of its own: it was inlined everywhere");
                let hint = format!("probe a line in it, from {file}:{line} on");
                return plain(what, wanted, Vec::new(), Some(hint));
            }
            let elsewhere = all.iter().find(|module| {
                selector.module.is_none() && module.functions().iter().any(|function| names(wanted, function))
            });
            let hint = match elsewhere {
                Some(module) => Some(format!("{} has it: say '{}:{wanted}'", module.name(), module.name())),
                None if all_names().next().is_none() => Some(
                    "it has no symbol table: install its debug symbols, or probe an offset ('FILE:0xOFFSET')"
                        .into(),
                ),
                None => None,
            };
            let names = all_names().map(|function| function.name().into_owned()).collect();
            plain(format!("no function in {inside} matches `{wanted}`"), wanted, names, hint)
        }
        Place::Line { file, line } => {
            let mut files = Vec::new();
            let mut debug = false;
            for module in chosen {
                match module.line(file, *line) {
                    LineMatch::NoCode(before, behind) => {
                        let near: Vec<String> =
                            [before, behind].iter().flatten().map(u32::to_string).collect();
                        let hint = format!("the nearest lines with code: {}", near.join(" and "));
                        let what = format!("{file}:{line} has no code in {}", module.name());
                        return plain(what, file, Vec::new(), (!near.is_empty()).then_some(hint));
                    }
                    LineMatch::NoFile(names) => {
                        debug = true;
                        files.extend(names);
                    }
                    LineMatch::NoDebugInfo | LineMatch::Addresses(_) => {}
                }
            }
            if debug {
                return plain(format!("no source file of {inside} is `{file}`"), file, files, None);
            }
            let what = format!("{inside} has no debug information, so its lines are not known");
            let hint = "compile with -g, or install the debug symbols".to_owned();
            plain(what, file, files, Some(hint))
        }
        Place::Offset(offset) => {
            plain(format!("no instruction begins at {offset:#x} of {inside}"), "", Vec::new(), None)
        }
        Place::Marker { provider, name } => {
            let all = chosen.iter().flat_map(|module| module.markers());
            let names: Vec<String> =
                all.map(|marker| format!("{}:{}", marker.provider, marker.name)).collect();
            let hint = names.is_empty().then(|| "it has no markers at all".to_owned());
            let wanted = format!("{provider}:{name}");
            plain(format!("no marker in {inside} matches `{wanted}`"), &wanted, names, hint)
        }
    }
}
