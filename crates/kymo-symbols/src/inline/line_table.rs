//! The source lines of one unit.
use std::sync::{Arc, OnceLock};

use gimli::{LineProgramHeader, Reader as _, UnitRef};

use super::sections::Reader;
use super::texts::Texts;

/// Files of a unit beyond these have no name.
const MOST_FILES: u64 = 1 << 20;

/// Instructions of one line.
#[derive(Clone, Copy, Debug)]
struct Row {
    address: u64,
    file: u32,
    line: u32,
}

/// Rows without a gap.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    begin: u64,
    end: u64,
    /// Where its rows are in the list of all.
    rows: (usize, usize),
}

/// The lines of a unit, and the files that they are in.
pub(super) struct LineTable {
    rows: Vec<Row>,
    sequences: Vec<Sequence>,
    header: LineProgramHeader<Reader>,
    /// Names of files, made when they are first asked for.
    files: Vec<OnceLock<Option<Arc<str>>>>,
}

impl LineTable {
    pub(super) fn parse(program: gimli::IncompleteLineProgram<Reader>) -> gimli::Result<LineTable> {
        let (mut all, mut sequences) = (Vec::<Row>::new(), Vec::new());
        let mut first = 0;
        let mut rows = program.rows();
        while let Some((_, row)) = rows.next_row()? {
            if row.end_sequence() {
                match all.get(first).map(|row: &Row| row.address) {
                    Some(begin) if begin < row.address() => {
                        sequences.push(Sequence { begin, end: row.address(), rows: (first, all.len()) });
                    }
                    _ => all.truncate(first),
                }
                first = all.len();
                continue;
            }
            let line = row.line().map_or(0, |line| line.get() as u32);
            let file = u32::try_from(row.file_index()).unwrap_or(u32::MAX);
            let row = Row { address: row.address(), file, line };
            match all.get_mut(first..).and_then(<[Row]>::last_mut) {
                Some(last) if last.address == row.address => *last = row,
                _ => all.push(row),
            }
        }
        all.truncate(first);
        sequences.sort_unstable_by_key(|sequence| sequence.begin);
        let header = rows.header().clone();
        // Before version 5 files are counted from 1.
        let count = header.file_names().len() + usize::from(header.version() < 5);
        let files = std::iter::repeat_with(OnceLock::new).take(count.min(MOST_FILES as usize)).collect();
        Ok(LineTable { rows: all, sequences, header, files })
    }

    /// The addresses that have lines.
    pub(super) fn ranges(&self) -> impl Iterator<Item = gimli::Range> {
        self.sequences.iter().map(|at| gimli::Range { begin: at.begin, end: at.end })
    }

    /// The file and the line of an address; line 0 is none.
    pub(super) fn find(&self, address: u64) -> Option<(u64, u32)> {
        let side = |at: &Sequence| match () {
            () if address < at.begin => std::cmp::Ordering::Greater,
            () if address >= at.end => std::cmp::Ordering::Less,
            () => std::cmp::Ordering::Equal,
        };
        let sequence = self.sequences.get(self.sequences.binary_search_by(side).ok()?)?;
        let rows = self.rows.get(sequence.rows.0..sequence.rows.1)?;
        let at = match rows.binary_search_by_key(&address, |row| row.address) {
            Ok(at) => at,
            Err(after) => after.checked_sub(1)?,
        };
        let row = rows.get(at)?;
        Some((row.file.into(), row.line))
    }

    /// The name of a file, with its folder.
    pub(super) fn file(&self, unit: UnitRef<'_, Reader>, number: u64, texts: &Texts) -> Option<Arc<str>> {
        let known = self.files.get(usize::try_from(number).ok()?)?;
        known.get_or_init(|| self.file_name(unit, number).map(|name| texts.path(&name))).clone()
    }

    fn file_name(&self, unit: UnitRef<'_, Reader>, number: u64) -> Option<String> {
        let Some(file) = self.header.file(number) else {
            return (number == 0).then(String::new);
        };
        let text = |reader: &Reader| reader.to_string_lossy().map(std::borrow::Cow::into_owned).ok();
        let mut path = match &unit.comp_dir {
            Some(folder) => text(folder)?,
            None => String::new(),
        };
        // Folder 0 is the one in which the unit was compiled.
        if file.directory_index() != 0
            && let Some(folder) = file.directory(&self.header)
        {
            push(&mut path, &text(&unit.attr_string(folder).ok()?)?);
        }
        push(&mut path, &text(&unit.attr_string(file.path_name()).ok()?)?);
        Some(path)
    }
}

/// Adds a path below another one, unless it begins at a root of its own.
fn push(path: &mut String, more: &str) {
    let is_of_windows = |path: &str| path.starts_with('\\') || path.get(1..3) == Some(":\\");
    if more.starts_with('/') || more.get(1..3) == Some(":/") || is_of_windows(more) {
        path.clear();
    } else {
        let between = if is_of_windows(path) { '\\' } else { '/' };
        if !path.is_empty() && !path.ends_with(between) {
            path.push(between);
        }
    }
    path.push_str(more);
}
