//! The code of a function as the page shows it: source lines and instructions beside each other.
//!
//! Addresses are text and targets are rows, because a browser's numbers hold 53 bits.
use super::{PageSelection, RecordingView};
use crate::query::annotate::{AnnotatedFunction, Annotator, FrameRow, LineRow};
use crate::query::{QueryError, Selection};
use hashbrown::HashMap;
use kymo_symbols::SymbolStore;
use kymo_symbols::disassembly::{SourceFiles, SourceOptions, Syntax};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Functions of one name.
const MOST_FUNCTIONS: usize = 8;
/// Lines around those that have code.
const CONTEXT: u32 = 4;
/// Lines that lie further apart are two pieces.
const GAP: u32 = 24;
/// Source lines of one answer, and characters of each.
const MOST_LINES: usize = 20_000;
const LONGEST_LINE: usize = 512;
/// A bundle has the code of so many functions of an event at most, each with so much of its
/// samples, parts of 1000.
const BUNDLED_FUNCTIONS: usize = 60;
const LEAST_SHARE: u64 = 2;

/// The functions that a name means in a module.
#[derive(Clone, Debug, Serialize)]
pub struct PageCode {
    /// All rows that count.
    pub samples: u64,
    /// The sum of their periods.
    pub period: u64,
    /// The function that was asked for, then parts of it that the compiler split off.
    pub functions: Vec<PageFunction>,
    /// Pieces of source files, by file and number.
    pub sources: Vec<SourcePiece>,
}

/// A function with its code.
#[derive(Clone, Debug, Serialize)]
pub struct PageFunction {
    name: String,
    module: String,
    file: Option<String>,
    samples: u64,
    period: u64,
    refusal: Option<String>,
    notes: Vec<String>,
    instructions: Vec<PageInstruction>,
    frames: Vec<Vec<FrameRow>>,
    lines: Vec<LineRow>,
}

#[derive(Clone, Debug, Serialize)]
struct PageInstruction {
    address: String,
    text: String,
    flow: &'static str,
    /// The instruction of this function where a jump or call goes.
    to: Option<usize>,
    samples: u64,
    period: u64,
    /// Rows of what it called.
    call_samples: u64,
    call_period: u64,
    frames: Option<usize>,
}

/// Lines of a source file that follow each other.
#[derive(Clone, Debug, Serialize)]
pub struct SourcePiece {
    file: String,
    /// The number of the first one.
    first: u32,
    lines: Vec<String>,
}

impl PageFunction {
    fn of(mut shown: AnnotatedFunction) -> PageFunction {
        let rows = std::mem::take(&mut shown.instructions);
        let places: HashMap<u64, usize> = rows.iter().zip(0..).map(|(row, at)| (row.address, at)).collect();
        let instructions = rows.into_iter().map(|row| PageInstruction {
            address: format!("{:x}", row.address),
            text: row.text,
            flow: row.flow,
            to: row.target.and_then(|target| places.get(&target).copied()),
            samples: row.samples,
            period: row.period,
            call_samples: row.call_samples,
            call_period: row.call_period,
            frames: row.frames,
        });
        // The pieces of the sources have the text.
        shown.lines.iter_mut().for_each(|line| line.text = None);
        PageFunction {
            instructions: instructions.collect(),
            name: shown.name,
            module: shown.module,
            file: shown.file,
            samples: shown.samples,
            period: shown.period,
            refusal: shown.refusal,
            notes: shown.notes,
            frames: shown.frames,
            lines: shown.lines,
        }
    }
}

impl RecordingView {
    /// The code of a function of the page, with the costs of what is selected. `store`: the symbols
    /// that the recording was opened with.
    ///
    /// # Errors
    /// [`QueryError::Unknown`] for a function that the page does not have, or that has no
    /// samples; [`QueryError::NotRecorded`] for wall time; [`QueryError::Cancelled`].
    pub fn code(
        &self,
        selection: PageSelection,
        function: usize,
        store: &SymbolStore,
        cancel: &AtomicBool,
    ) -> Result<PageCode, QueryError> {
        let annotator = self.data.annotator_of(&self.selection(selection)?, store, cancel)?;
        self.code_by(&annotator, function, store)
    }

    /// By event of the page the code of its hottest functions, by their numbers. Functions whose
    /// code cannot be shown are among them, with the reason.
    ///
    /// # Errors
    /// [`QueryError::Cancelled`].
    pub fn codes(
        &self,
        store: &SymbolStore,
        cancel: &AtomicBool,
    ) -> Result<Vec<BTreeMap<usize, PageCode>>, QueryError> {
        let mut codes = Vec::new();
        for event in 0..self.export.events.len() {
            let selection: Selection = self.selection(PageSelection { event, ..PageSelection::default() })?;
            let annotator = match self.data.annotator_of(&selection, store, cancel) {
                Ok(annotator) => annotator,
                // Wall time has no instructions.
                Err(QueryError::NotRecorded(_)) => {
                    codes.push(BTreeMap::new());
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut of_event = BTreeMap::new();
            for function in self.hottest(event) {
                if let Ok(code) = self.code_by(&annotator, function, store) {
                    of_event.insert(function, code);
                }
            }
            codes.push(of_event);
        }
        Ok(codes)
    }

    /// The functions of an event with most samples of their own.
    fn hottest(&self, event: usize) -> Vec<usize> {
        let Some(event) = self.export.events.get(event) else { return Vec::new() };
        let mut sums = vec![0_u64; self.export.functions.len()];
        for node in &event.stacks.nodes {
            if let Some(sum) = sums.get_mut(node.function as usize) {
                *sum = sum.saturating_add(node.self_period);
            }
        }
        let least = event.total_period / 1000 * LEAST_SHARE;
        let mut hottest: Vec<usize> = (0..sums.len()).filter(|at| sums[*at] > least).collect();
        hottest.sort_by_key(|at| std::cmp::Reverse(sums[*at]));
        hottest.truncate(BUNDLED_FUNCTIONS);
        hottest
    }

    fn code_by(
        &self,
        annotator: &Annotator<'_>,
        function: usize,
        store: &SymbolStore,
    ) -> Result<PageCode, QueryError> {
        let wanted = self.export.functions.get(function);
        let wanted = wanted.ok_or_else(|| QueryError::Unknown("the page has no such function".into()))?;
        let mut found = annotator.matching(&wanted.name);
        found.retain(|hot| annotator.module(hot) == wanted.module);
        found.sort_by_key(|hot| annotator.name(hot) != wanted.name);
        if found.is_empty() {
            let why = "has no samples in what is selected";
            return Err(QueryError::Unknown(format!("{} {why}", wanted.name)));
        }
        let symfs = store.options().symfs.clone();
        let mut files = SourceFiles::new(SourceOptions { symfs, ..SourceOptions::default() });
        let shown: Vec<AnnotatedFunction> = (found.iter().take(MOST_FUNCTIONS))
            .map(|hot| annotator.annotate(hot, Syntax::Att, Some(&mut files)))
            .collect();
        let sources = pieces(&shown, &mut files);
        let (samples, period) = annotator.whole();
        Ok(PageCode {
            samples,
            period,
            functions: shown.into_iter().map(PageFunction::of).collect(),
            sources,
        })
    }
}

/// The source lines of functions, with those around them.
fn pieces(shown: &[AnnotatedFunction], files: &mut SourceFiles) -> Vec<SourcePiece> {
    let mut numbers: BTreeMap<&Arc<str>, BTreeSet<u32>> = BTreeMap::new();
    for line in shown.iter().flat_map(|function| &function.lines) {
        numbers.entry(&line.file).or_default().insert(line.line);
    }
    let mut pieces = Vec::new();
    let mut left = MOST_LINES;
    for (name, numbers) in numbers {
        let Ok(file) = files.get(name) else { continue };
        let mut spans: Vec<(u32, u32)> = Vec::new();
        for number in numbers {
            let (from, to) = (number.saturating_sub(CONTEXT).max(1), number.saturating_add(CONTEXT));
            match spans.last_mut() {
                Some(last) if from <= last.1.saturating_add(GAP) => last.1 = to,
                _ => spans.push((from, to)),
            }
        }
        for (first, to) in spans {
            let lines = (first..=to).map_while(|number| file.line(number));
            let lines: Vec<String> =
                lines.take(left).map(|line| line.chars().take(LONGEST_LINE).collect()).collect();
            left -= lines.len();
            if !lines.is_empty() {
                pieces.push(SourcePiece { file: name.to_string(), first, lines });
            }
        }
    }
    pieces
}
