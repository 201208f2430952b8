//! Annotated functions in the form that users of `perf annotate --stdio` know.
//!
//! ```text
//!  Percent |  Source code & Disassembly of spin for cpu-clock (12 samples, percent: ...)
//! ------------------------------------------------------------------------------------
//!          : 0000000000001200 <spin>:
//!          : spin() spin.c:18
//!          : 18   for (unsigned long i = 0; i < steps; i++) {
//!     0.06 :   121b:   add    $0x1,%rcx
//! ```
use super::function::{AnnotatedFunction, FrameRow, InstructionRow, LineRow};
use crate::text::shown;
use std::fmt::Write as _;
use std::io::{self, Write};

/// A line with this share is hot, percent; the least that perf draws in red.
const HOT_PERCENT: f64 = 5.0;
/// The least that perf draws in green.
const WARM_PERCENT: f64 = 0.5;
/// Bytes of the longest instruction of a column of bytes.
const COLUMN_BYTES: usize = 10;

/// What a percentage is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PercentBase {
    /// The periods of the function.
    #[default]
    LocalPeriod,
    /// The samples of the function.
    LocalHits,
    /// The periods of all rows.
    GlobalPeriod,
    /// The number of all rows.
    GlobalHits,
}

impl PercentBase {
    /// As perf calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PercentBase::LocalPeriod => "local period",
            PercentBase::LocalHits => "local hits",
            PercentBase::GlobalPeriod => "global period",
            PercentBase::GlobalHits => "global hits",
        }
    }
}

/// What the first column has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CostColumn {
    /// Shares.
    #[default]
    Percent,
    /// Numbers of samples.
    Samples,
    /// Sums of periods.
    Period,
}

/// How annotated functions are shown.
#[derive(Clone, Debug, Default)]
pub struct AnnotationStyle {
    /// What the first column has.
    pub column: CostColumn,
    /// What percentages are of.
    pub percent: PercentBase,
    /// Paths are shown whole.
    pub full_paths: bool,
    /// The bytes of instructions are shown.
    pub raw_bytes: bool,
    /// Source lines are shown with their instructions.
    pub source: bool,
    /// The places of source lines are shown, and first the hottest of them.
    pub line_numbers: bool,
    /// Costs are coloured, as on a terminal.
    pub colored: bool,
}

/// What a percentage is of, and of what.
struct Costs<'a> {
    style: &'a AnnotationStyle,
    /// Samples and periods that are 100 %.
    base: (u64, u64),
}

impl<'a> Costs<'a> {
    fn new(style: &'a AnnotationStyle, function: &AnnotatedFunction, whole: (u64, u64)) -> Costs<'a> {
        let base = match style.percent {
            PercentBase::LocalPeriod | PercentBase::LocalHits => (function.samples, function.period),
            PercentBase::GlobalPeriod | PercentBase::GlobalHits => whole,
        };
        Costs { style, base }
    }

    fn percent(&self, samples: u64, period: u64) -> f64 {
        let (part, whole) = match self.style.percent {
            PercentBase::LocalPeriod | PercentBase::GlobalPeriod => (period, self.base.1),
            PercentBase::LocalHits | PercentBase::GlobalHits => (samples, self.base.0),
        };
        100.0 * part as f64 / whole.max(1) as f64
    }

    /// The first column of an instruction.
    fn cell(&self, samples: u64, period: u64) -> String {
        let percent = self.percent(samples, period);
        let cell = match self.style.column {
            CostColumn::Percent => format!("{percent:8.2}"),
            CostColumn::Samples => format!("{samples:8}"),
            CostColumn::Period => format!("{period:11}"),
        };
        self.colored(percent, cell)
    }

    fn colored(&self, percent: f64, cell: String) -> String {
        let color = match percent {
            percent if percent >= HOT_PERCENT => "\x1b[31m",
            percent if percent >= WARM_PERCENT => "\x1b[32m",
            _ => return cell,
        };
        if self.style.colored { format!("{color}{cell}\x1b[m") } else { cell }
    }

    /// The first column of a line without costs.
    fn empty(&self) -> &'static str {
        match self.style.column {
            CostColumn::Percent | CostColumn::Samples => "        ",
            CostColumn::Period => "           ",
        }
    }
}

/// A path as the style shows it.
fn path<'a>(style: &AnnotationStyle, path: &'a str) -> std::borrow::Cow<'a, str> {
    let name = path.rsplit('/').next().unwrap_or(path);
    shown(if style.full_paths { path } else { name })
}

/// Writes what stands above a function: what it is of, and of which event. `module`: the path of
/// its module.
///
/// # Errors
/// Those of `out`.
pub fn write_heading(
    out: &mut dyn Write,
    function: &AnnotatedFunction,
    (event, module): (&str, &str),
    style: &AnnotationStyle,
) -> io::Result<()> {
    let (width, word) = match style.column {
        CostColumn::Percent => (8, "Percent"),
        CostColumn::Samples => (8, "Samples"),
        CostColumn::Period => (11, "Period"),
    };
    let file = path(style, module);
    let line = format!(
        "{word:>width$} |\tSource code & Disassembly of {file} for {} ({} samples, percent: {})",
        shown(event),
        function.samples,
        style.percent.name()
    );
    writeln!(out, "{line}\n{}", "-".repeat(line.chars().count()))
}

/// Writes a function: its instructions with their costs, between them the source lines. `whole`:
/// samples and periods of all rows.
///
/// # Errors
/// Those of `out`.
pub fn write_annotation(
    out: &mut dyn Write,
    function: &AnnotatedFunction,
    whole: (u64, u64),
    style: &AnnotationStyle,
) -> io::Result<()> {
    let costs = Costs::new(style, function, whole);
    let empty = costs.empty();
    let start = function.instructions.first().map_or(0, |row| row.address);
    let alias = function.alias.as_deref().map_or(String::new(), |alias| format!(" (also {})", shown(alias)));
    writeln!(out, "{empty} : {start:016x} <{}>{alias}:", shown(&function.name))?;
    if let Some(why) = &function.refusal {
        return writeln!(out, "{empty} : {}", shown(why));
    }
    let mut before: &[FrameRow] = &[];
    let (mut line_before, mut marked) = (None, None);
    for row in &function.instructions {
        let frames = row.frames.and_then(|at| function.frames.get(at)).map_or(&[][..], Vec::as_slice);
        let line = frames.first().and_then(|frame| frame.line);
        let is_new_line = line.is_some() && line != line_before;
        if style.source && (is_new_line || functions_of(frames).ne(functions_of(before))) {
            write_source(out, function, (frames, before), &costs)?;
        }
        if !frames.is_empty() {
            (before, line_before) = (frames, line);
        }
        write_instruction(out, row, &costs)?;
        match line.and_then(|line| function.lines.get(line)) {
            Some(at) if style.line_numbers && row.samples > 0 && marked != line => {
                marked = line;
                writeln!(out, " // {}:{}", path(style, &at.file), at.line)?;
            }
            _ => writeln!(out)?,
        }
    }
    Ok(())
}

/// The names of a stack of inlined functions.
fn functions_of(frames: &[FrameRow]) -> impl Iterator<Item = Option<&str>> {
    frames.iter().map(|frame| frame.function.as_deref())
}

/// The source line of an instruction, below the functions that it is inlined through, if these are
/// others than before.
fn write_source(
    out: &mut dyn Write,
    function: &AnnotatedFunction,
    (frames, before): (&[FrameRow], &[FrameRow]),
    costs: &Costs<'_>,
) -> io::Result<()> {
    let empty = costs.empty();
    let place = |frame: &FrameRow| frame.line.and_then(|line| function.lines.get(line));
    let at = |row: &LineRow| format!("{}:{}", path(costs.style, &row.file), row.line);
    let mut is_said = false;
    if functions_of(frames).ne(functions_of(before)) {
        let mut text = String::new();
        for frame in frames {
            // SANITY: writing to a String cannot fail.
            let separator = if text.is_empty() { "" } else { " < " };
            let name = shown(frame.function.as_deref().unwrap_or("[unknown]"));
            let calls = if name.ends_with(')') { "" } else { "()" };
            let _ = write!(text, "{separator}{name}{calls}");
            if let Some(row) = place(frame) {
                is_said = true;
                let _ = write!(text, " {}", at(row));
            }
        }
        if !text.is_empty() {
            writeln!(out, "{empty} : {text}")?;
        }
    }
    let Some(row) = frames.first().and_then(place) else { return Ok(()) };
    match &row.text {
        Some(text) => {
            let text = text.replace('\t', "        ");
            writeln!(out, "{empty} : {:<4} {}", row.line, shown(text.trim_end()))
        }
        None if is_said => Ok(()),
        None => writeln!(out, "{empty} : {}", at(row)),
    }
}

fn write_instruction(out: &mut dyn Write, row: &InstructionRow, costs: &Costs<'_>) -> io::Result<()> {
    write!(out, "{} :   {:x}:   ", costs.cell(row.samples, row.period), row.address)?;
    if costs.style.raw_bytes {
        let bytes: Vec<&str> =
            (0..row.bytes.len() / 2).filter_map(|at| row.bytes.get(2 * at..2 * at + 2)).collect();
        write!(out, "{:<width$} ", bytes.join(" "), width = 3 * COLUMN_BYTES)?;
    }
    write!(out, "{}", shown(&row.text))
}

/// Writes the source lines with the highest cost, as `-l` of perf does, if there are any.
///
/// # Errors
/// Those of `out`.
pub fn write_hot_lines(
    out: &mut dyn Write,
    function: &AnnotatedFunction,
    (module, whole): (&str, (u64, u64)),
    style: &AnnotationStyle,
) -> io::Result<()> {
    let costs = Costs::new(style, function, whole);
    let share = |row: &LineRow| costs.percent(row.self_samples, row.self_period);
    let mut hot: Vec<&LineRow> = function.lines.iter().filter(|row| share(row) >= WARM_PERCENT).collect();
    hot.sort_by(|a, b| share(b).total_cmp(&share(a)));
    if hot.is_empty() {
        return Ok(());
    }
    let title = format!("Sorted summary for file {}", shown(module));
    writeln!(out, "\n{title}\n{}\n", "-".repeat(title.chars().count()))?;
    for row in hot {
        let cell = costs.colored(share(row), format!("{:8.2}", share(row)));
        writeln!(out, "{cell} {}:{}", path(style, &row.file), row.line)?;
    }
    Ok(())
}
