//! Functions as instructions and source lines, with what each cost.
//!
//! ```text
//!  rows that the filter leaves --by stack, function--> HotFunction: sums by address    (heat)
//!  stacks that pass through it --return addresses--> what its calls called           (calls)
//!  HotFunction --code, lines, sources--> AnnotatedFunction                         (function)
//!  AnnotatedFunction --> the text that users of `perf annotate --stdio` know           (text)
//! ```
//!
//! # Invariants
//! - **A1** Every row counts at the address that was sampled, in the function that tables have it
//!   in. Of its callers the instructions that called have it apart from their own, each once.
//! - **A2** An instruction has the rows of all its bytes. The sums of the instructions, and
//!   what lies outside of them, are the sum of the function.
//! - **A3** A source line has its rows once, however often it is inlined: itself, where it is the
//!   innermost line; in all, where it is the line or the place of an inlined call around it.
//! - **A4** Code of another file than the recorded one is never shown; the answer says why.
mod calls;
mod function;
mod heat;
mod text;

pub use function::{AnnotatedFunction, FrameRow, InstructionRow, LineRow};
pub use heat::{Annotator, HotFunction};
pub use text::{AnnotationStyle, CostColumn, PercentBase, write_annotation, write_heading, write_hot_lines};

use super::QueryError;
use super::filter::FilterValue;
use kymo_symbols::disassembly::{SourceFiles, SourceOptions, Syntax};
use serde::Serialize;

/// Functions that one answer has at most.
pub(super) const MOST_FUNCTIONS: usize = 16;

/// Functions with their code.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Annotations {
    /// All rows that count.
    pub samples: u64,
    /// The sum of their periods.
    pub period: u64,
    /// The hottest first.
    pub functions: Vec<AnnotatedFunction>,
    /// How many functions are left out.
    pub more: usize,
}

impl Annotations {
    /// Leaves out what was read of source files: for readers who may not read every file that
    /// debug information names.
    pub fn remove_source_text(&mut self) {
        for function in &mut self.functions {
            function.lines.iter_mut().for_each(|line| line.text = None);
            // They say which of these files are there.
            function.notes.clear();
            function.notes.push("source lines are not shown of recordings that the client chose".into());
        }
    }
}

/// The functions of a name, and the parts that the compiler split off.
pub(super) fn annotations(
    annotator: &Annotator<'_>,
    function: &FilterValue,
) -> Result<Annotations, QueryError> {
    let found = annotator.matching(&function.text);
    if found.is_empty() {
        return Err(annotator.unknown(function));
    }
    let symfs = annotator.symfs().map(ToOwned::to_owned);
    let mut sources = SourceFiles::new(SourceOptions { symfs, ..SourceOptions::default() });
    let shown = found.iter().take(MOST_FUNCTIONS);
    let functions = shown.map(|hot| annotator.annotate(hot, Syntax::Att, Some(&mut sources))).collect();
    let (samples, period) = annotator.whole();
    Ok(Annotations { samples, period, functions, more: found.len().saturating_sub(MOST_FUNCTIONS) })
}
