//! Source lines to addresses: the way back of a line table.

use std::collections::BTreeSet;
use std::sync::Arc;

use gimli::Reader as _;

use super::super::elf::ElfFile;
use super::super::inline::{Reader, sections_of};
use super::super::metered;

/// What a search for a line gave.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LineMatch {
    /// Linked addresses where statements of the line begin, ascending.
    Addresses(Vec<u64>),
    /// There is no debug information.
    NoDebugInfo,
    /// No file of that name; names to suggest one from.
    NoFile(Vec<String>),
    /// No code of that line; the nearest lines that have some, before and behind.
    NoCode(Option<u32>, Option<u32>),
}

/// Asks the debug information of a file, within what it may cost.
pub(super) fn ask<T>(elf: &Arc<ElfFile>, question: impl FnOnce(&gimli::Dwarf<Reader>) -> T) -> T {
    let (dwarf, _room) = sections_of(elf);
    let work = Arc::new(elf.budget.work(elf.stored));
    metered::question(&work, elf.stored, || question(&dwarf)).0
}

/// Looks for a line. The file is named by the end of its path, in whole names.
pub(super) fn find(dwarf: &gimli::Dwarf<Reader>, file: &str, line: u32) -> LineMatch {
    let (mut addresses, mut files) = (BTreeSet::new(), BTreeSet::new());
    let (mut before, mut behind, mut seen) = (None::<u32>, None::<u32>, false);
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        let Ok(unit) = dwarf.unit(header) else { continue };
        let Some(program) = unit.line_program.clone() else { continue };
        // Which numbers of this program's table are the file. They are few, and asked for each row.
        let mut known: Vec<Option<bool>> = Vec::new();
        let mut is_file = |number: u64, header: &gimli::LineProgramHeader<Reader>| -> bool {
            let index = usize::try_from(number).unwrap_or(usize::MAX).min(1 << 20);
            if known.len() <= index {
                known.resize(index + 1, None);
            }
            *known[index].get_or_insert_with(|| {
                let Some(path) = path_of(dwarf, &unit, header, number) else { return false };
                let fits = ends_with(&path, file);
                if !fits && files.len() < 100_000 {
                    files.insert(path.rsplit('/').next().unwrap_or(&path).to_owned());
                }
                fits
            })
        };
        let mut rows = program.rows();
        let mut previous = None;
        while let Ok(Some((header, row))) = rows.next_row() {
            let at = row.line().map_or(0, |line| u32::try_from(line.get()).unwrap_or(u32::MAX));
            let place = (row.file_index(), at);
            if row.end_sequence() {
                previous = None;
                continue;
            }
            // Tombstones of functions that the linker has dropped.
            if row.is_stmt() && row.address() != 0 && is_file(row.file_index(), header) {
                seen = true;
                match at.cmp(&line) {
                    std::cmp::Ordering::Equal if previous != Some(place) => {
                        addresses.insert(row.address());
                    }
                    std::cmp::Ordering::Less if at > 0 => before = Some(before.map_or(at, |b| b.max(at))),
                    std::cmp::Ordering::Greater => behind = Some(behind.map_or(at, |b| b.min(at))),
                    _ => {}
                }
            }
            previous = Some(place);
        }
    }
    match () {
        () if !addresses.is_empty() => LineMatch::Addresses(addresses.into_iter().collect()),
        () if seen => LineMatch::NoCode(before, behind),
        () => LineMatch::NoFile(files.into_iter().collect()),
    }
}

fn text(
    dwarf: &gimli::Dwarf<Reader>,
    unit: &gimli::Unit<Reader>,
    value: gimli::AttributeValue<Reader>,
) -> Option<String> {
    let bytes = dwarf.attr_string(unit, value).ok()?;
    Some(bytes.to_string_lossy().ok()?.into_owned())
}

fn path_of(
    dwarf: &gimli::Dwarf<Reader>,
    unit: &gimli::Unit<Reader>,
    header: &gimli::LineProgramHeader<Reader>,
    number: u64,
) -> Option<String> {
    let entry = header.file(number)?;
    let name = text(dwarf, unit, entry.path_name())?;
    let folder = entry.directory(header).and_then(|value| text(dwarf, unit, value));
    Some(match folder {
        Some(folder) if !name.starts_with('/') => format!("{folder}/{name}"),
        _ => name,
    })
}

/// Whether a path ends with these whole names.
fn ends_with(path: &str, end: &str) -> bool {
    let end = end.trim_start_matches("./");
    path.strip_suffix(end).is_some_and(|head| head.is_empty() || head.ends_with('/') || end.starts_with('/'))
}

/// Whether there is a function of that name that was inlined and has no code of its own: where it
/// was written.
pub(super) fn inlined_only(dwarf: &gimli::Dwarf<Reader>, name: &str) -> Option<(String, u32)> {
    let last = name.rsplit("::").next().unwrap_or(name);
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        let Ok(unit) = dwarf.unit(header) else { continue };
        let mut entries = unit.entries();
        while let Ok(Some(entry)) = entries.next_dfs() {
            if entry.tag() != gimli::DW_TAG_subprogram || entry.attr_value(gimli::DW_AT_inline).is_none() {
                continue;
            }
            let Some(found) = entry.attr_value(gimli::DW_AT_name).and_then(|value| text(dwarf, &unit, value))
            else {
                continue;
            };
            if found != last {
                continue;
            }
            let line = entry.attr_value(gimli::DW_AT_decl_line).and_then(|value| value.udata_value());
            let file = match entry.attr_value(gimli::DW_AT_decl_file) {
                Some(gimli::AttributeValue::FileIndex(number)) => Some(number),
                Some(value) => value.udata_value(),
                None => None,
            };
            let program = unit.line_program.as_ref();
            let file = file.and_then(|number| path_of(dwarf, &unit, program?.header(), number));
            let file = file.map(|path| path.rsplit('/').next().unwrap_or(&path).to_owned());
            return Some((file.unwrap_or_default(), line.and_then(|line| line.try_into().ok()).unwrap_or(0)));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    /// Checks that a path is matched in whole names.
    #[test]
    fn ends() {
        use super::ends_with;
        assert!(ends_with("/src/a/file.c", "file.c"));
        assert!(ends_with("/src/a/file.c", "a/file.c"));
        assert!(ends_with("file.c", "./file.c"));
        assert!(ends_with("/src/a/file.c", "/src/a/file.c"));
        assert!(!ends_with("/src/a/profile.c", "file.c"));
        assert!(!ends_with("/src/a/file.c", "b/file.c"));
    }
}
