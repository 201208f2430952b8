//! The table: header, column widths, rows.
use super::graph::{self, GraphOptions};
use super::shown;
use crate::hist::{Hist, KEYS, Row, SortKey, cgroup_name, symbol_size};
use crate::profile::Profile;
use kymo_symbols::pool;
use std::borrow::Cow;
use std::io::{self, Write};
use std::str::FromStr;

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// Share of the samples taken in the row, percent.
    Overhead,
    /// Share of the samples taken in the row or below, percent.
    Children,
    /// What the row's samples added to the time that the whole took, percent.
    Latency,
    /// What samples taken in the row or below added to it, percent.
    ChildrenLatency,
    /// Number of samples taken in the row.
    Samples,
    /// Sum of their periods.
    Period,
    /// Share of the samples taken in the row, in the kernel, percent.
    Kernel,
    /// Share of the samples taken in the row, in programs, percent.
    User,
    /// A sort key's value.
    Key(SortKey),
}

/// A word that is no column.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown field '{0}': the fields are overhead, overhead_children, overhead_sys, overhead_us, latency, latency_children, sample, period, {KEYS}"
)]
pub struct UnknownColumn(pub String);

impl FromStr for Column {
    type Err = UnknownColumn;

    fn from_str(word: &str) -> Result<Column, Self::Err> {
        Ok(match word.trim() {
            "overhead" => Column::Overhead,
            "overhead_children" => Column::Children,
            "latency" => Column::Latency,
            "latency_children" => Column::ChildrenLatency,
            "sample" | "samples" => Column::Samples,
            "period" => Column::Period,
            "overhead_sys" => Column::Kernel,
            "overhead_us" => Column::User,
            other => Column::Key(other.parse().map_err(|_| UnknownColumn(other.to_string()))?),
        })
    }
}

/// Colour, and the width that lines are cut to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableStyle {
    /// Percentages are coloured by weight.
    pub color: bool,
    /// Columns of the terminal, `None` for no limit.
    pub width: Option<usize>,
}

/// What a table shows.
#[derive(Debug, Clone, Default)]
pub struct TableOptions {
    /// Columns in order.
    pub columns: Vec<Column>,
    /// With totals: the overhead column is called `Self`.
    pub children: bool,
    /// Rows below this share are left out, percent.
    pub percent_limit: f64,
    /// Call graphs under the rows.
    pub graph: Option<GraphOptions>,
    /// Fields are separated by this and not padded.
    pub separator: Option<String>,
    /// Colour and width.
    pub look: TableStyle,
    /// Widths of the columns by their order; 0 and columns beyond are as wide as needed.
    pub widths: Vec<usize>,
}

/// `882333` is `882K`: perf's short form of a count, without its unit letter where there is none.
pub fn count_in_units(mut value: u64) -> (u64, char) {
    let mut unit = ' ';
    for next in ['K', 'M', 'G'] {
        if value > 1000 {
            value /= 1000;
            unit = next;
        }
    }
    (value, unit)
}

impl Column {
    /// Whether rows can be sorted by it, largest first.
    pub fn is_weight(self) -> bool {
        matches!(self, Column::Overhead | Column::Children | Column::Latency | Column::ChildrenLatency)
    }

    pub(super) fn title(self, options: &TableOptions) -> &'static str {
        match self {
            Column::Overhead if options.children => "Self",
            Column::Overhead => "Overhead",
            Column::Children => "Children",
            Column::Latency | Column::ChildrenLatency => "Latency",
            Column::Samples => "Samples",
            Column::Period => "Period",
            Column::Key(SortKey::Comm) => "Command",
            Column::Key(SortKey::Thread) => "    Pid:Command",
            Column::Key(SortKey::Process) => "   Tgid:Command",
            Column::Key(SortKey::Dso) => "Shared Object",
            Column::Key(SortKey::Symbol) => "Symbol",
            Column::Key(SortKey::Cpu) => "CPU",
            Column::Kernel => "sys",
            Column::User => "usr",
            Column::Key(SortKey::Parent) => "Parent symbol",
            Column::Key(SortKey::SymbolSize) => "Symbol size",
            Column::Key(SortKey::SourceLine) => "Source:Line",
            Column::Key(SortKey::Time) => "Time",
            Column::Key(SortKey::Trace) => "Trace output",
            Column::Key(SortKey::Cgroup) => "Cgroup",
            Column::Key(SortKey::Container) => "Container",
            Column::Key(SortKey::Unit) => "Unit",
            Column::Key(SortKey::Pod) => "Pod",
            Column::Key(SortKey::Parallelism) => "Parallelism",
        }
    }

    /// Numbers stand at the right of their column.
    pub(super) fn right(self) -> bool {
        !matches!(self, Column::Key(key) if !matches!(key, SortKey::Cpu | SortKey::SymbolSize | SortKey::Parallelism))
    }

    /// Whether it may be longer than a screen is wide.
    fn is_name(self) -> bool {
        use SortKey::{Cpu, Parallelism, SymbolSize, Time};
        matches!(self, Column::Key(key) if !matches!(key, Cpu | SymbolSize | Time | Parallelism))
    }

    pub(super) fn least_width(self) -> usize {
        match self {
            Column::Overhead | Column::Children | Column::Kernel | Column::User | Column::Latency => 8,
            // As perf, whose column is as wide as its title.
            Column::ChildrenLatency => 7,
            Column::Samples | Column::Period => 12,
            Column::Key(SortKey::Cpu) => 3,
            Column::Key(_) => 0,
        }
    }

    pub(super) fn value(self, profile: &Profile, hist: &Hist, row: &Row) -> String {
        let timeline = &profile.loaded.timeline;
        match self {
            Column::Overhead => percent(row.own.period, hist.whole),
            Column::Children => percent(row.total.period, hist.whole),
            Column::Latency => percent(row.own.latency, hist.whole_latency),
            Column::ChildrenLatency => percent(row.total.latency, hist.whole_latency),
            Column::Kernel => percent(row.own_kernel, hist.whole),
            Column::User => percent(row.own.period.saturating_sub(row.own_kernel), hist.whole),
            Column::Samples => row.own.samples.to_string(),
            Column::Period => row.own.period.to_string(),
            Column::Key(SortKey::Comm) => shown(&timeline.comm(row.group.comm)).into_owned(),
            Column::Key(SortKey::Thread) => {
                format!("{:7}:{}", row.group.tid, shown(&timeline.comm(row.group.comm)))
            }
            Column::Key(SortKey::Process) => {
                format!("{:7}:{}", row.group.pid, shown(&timeline.comm(row.group.comm)))
            }
            Column::Key(SortKey::Dso) => shown(profile.module_name(row.function)).into_owned(),
            Column::Key(SortKey::Symbol) => symbol(profile, row),
            // As perf shows a CPU that was not recorded.
            Column::Key(SortKey::Cpu) if row.group.cpu == u32::MAX => "-001".to_string(),
            Column::Key(SortKey::Cpu) => format!("{:03}", row.group.cpu),
            Column::Key(SortKey::Parent) => match row.parent {
                Some(parent) => shown(&profile.frame_name(parent)).into_owned(),
                None => "[other]".to_owned(),
            },
            Column::Key(SortKey::SymbolSize) => match symbol_size(profile, row.function) {
                Some(size) => size.to_string(),
                None => "unknown".to_owned(),
            },
            Column::Key(SortKey::SourceLine) => shown(profile.stacks.line(row.group.chain)).into_owned(),
            Column::Key(SortKey::Time) => {
                let time = profile.loaded.extras.get(row.group.extra).time_ns;
                format!("{}.{:06}", time / 1_000_000_000, time % 1_000_000_000 / 1000)
            }
            Column::Key(SortKey::Parallelism) => {
                profile.loaded.extras.get(row.group.extra).parallelism.to_string()
            }
            Column::Key(SortKey::Trace) => shown(profile.trace(row.group.extra)).into_owned(),
            Column::Key(key @ (SortKey::Cgroup | SortKey::Container | SortKey::Unit | SortKey::Pod)) => {
                shown(cgroup_name(profile, key, &row.group)).into_owned()
            }
        }
    }
}

/// `[k] name`; an address in full width where there is no name.
fn symbol(profile: &Profile, row: &Row) -> String {
    let function = profile.functions.get(row.function);
    let level = function.level.letter();
    match &function.name {
        Some(name) if function.inlined => format!("[{level}] {} (inlined)", shown(name)),
        Some(name) => format!("[{level}] {}", shown(name)),
        // As C prints it: zero has no prefix.
        None if function.start == 0 => format!("[{level}] {:016x}", 0),
        None => format!("[{level}] {:#018x}", function.start),
    }
}

pub(super) fn percent(part: u64, whole: u64) -> String {
    let share = if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 };
    format!("{share:.2}%")
}

/// Writes one event's table with its header.
///
/// # Errors
/// Those of the writer.
pub fn write_table(
    out: &mut dyn Write,
    profile: &Profile,
    hist: &Hist,
    event_name: &str,
    options: &TableOptions,
) -> io::Result<()> {
    write_head(out, hist, event_name)?;
    let widths = widths(profile, hist, options);
    if let Some(separator) = &options.separator {
        let titles: Vec<_> = options.columns.iter().map(|c| c.title(options)).collect();
        writeln!(out, "# {}", titles.join(separator))?;
    } else {
        let titles = options.columns.iter().zip(&widths).map(|(column, &width)| {
            let title = column.title(options);
            if column.right() { format!("{title:>width$}") } else { format!("{title:width$}") }
        });
        let titles = format!("# {}", titles.collect::<Vec<_>>().join("  "));
        writeln!(out, "{}", cut(&titles, options.look.width))?;
        let dots: Vec<_> = widths.iter().map(|&w| ".".repeat(w)).collect();
        writeln!(out, "{}", cut(&format!("# {}", dots.join("  ")), options.look.width))?;
        writeln!(out, "#")?;
    }
    let is_shown = |row: &&Row| {
        let weight = weight(row, options);
        !row.filtered
            && (weight > 0 || row.own.samples > 0 || options.children)
            && (weight as f64) * 100.0 >= options.percent_limit * hist.whole as f64
    };
    let rows: Vec<&Row> = hist.rows.iter().filter(is_shown).collect();
    // Call graphs are drawn on all CPUs. Few rows at once: a reader sees the first ones early, and
    // their text is not held.
    for rows in rows.chunks(ROWS_AT_ONCE) {
        for text in pool::map(rows, |row| row_text(profile, hist, row, &widths, options)) {
            out.write_all(&text?)?;
        }
    }
    Ok(())
}

/// Rows that are written at once.
const ROWS_AT_ONCE: usize = 128;

fn weight(row: &Row, options: &TableOptions) -> u64 {
    if options.children { row.total.period } else { row.own.period }
}

/// A row with its call graph.
fn row_text(
    profile: &Profile,
    hist: &Hist,
    row: &Row,
    widths: &[usize],
    options: &TableOptions,
) -> io::Result<Vec<u8>> {
    let (mut out, mut line) = (Vec::new(), String::new());
    let weight = weight(row, options);
    row_line(&mut line, profile, hist, row, widths, options);
    let line = cut(&line, options.look.width);
    if options.look.color {
        writeln!(out, "{}", colored(line, weight as f64 * 100.0 / hist.whole.max(1) as f64))?;
    } else {
        writeln!(out, "{line}")?;
    }
    let Some(graph) = &options.graph else { return Ok(out) };
    if options.look.width.is_none() {
        graph::write(&mut out, profile, row, graph, (hist.whole, weight))?;
        return Ok(out);
    }
    // A wrapped name would tear the pipes apart.
    let mut drawn = Vec::new();
    graph::write(&mut drawn, profile, row, graph, (hist.whole, weight))?;
    for line in String::from_utf8_lossy(&drawn).lines() {
        writeln!(out, "{}", cut(line, options.look.width))?;
    }
    Ok(out)
}

pub(super) fn write_head(out: &mut dyn Write, hist: &Hist, event_name: &str) -> io::Result<()> {
    let (short, unit) = count_in_units(hist.total.samples);
    writeln!(out, "# Samples: {short}{unit} of event '{}'", shown(event_name))?;
    writeln!(out, "# Event count (approx.): {}", hist.total.period)?;
    writeln!(out, "#")
}

/// A name of which its beginning and its end are kept where there is no room for so many characters; as
/// it is where there is room for fewer than twenty.
pub fn shortened(name: &str, room: usize) -> Cow<'_, str> {
    const LEAST: usize = 20;
    let length = name.chars().count();
    if length <= room || room < LEAST {
        return name.into();
    }
    let end = (room - 2) / 2;
    let begin = room - 2 - end;
    name.chars().take(begin).chain("..".chars()).chain(name.chars().skip(length - end)).collect()
}

/// The part of a line that a terminal of this many columns can show.
pub(super) fn cut(line: &str, width: Option<usize>) -> &str {
    match width.and_then(|width| line.char_indices().nth(width)) {
        Some((end, _)) => &line[..end],
        None => line,
    }
}

fn row_line(
    line: &mut String,
    profile: &Profile,
    hist: &Hist,
    row: &Row,
    widths: &[usize],
    options: &TableOptions,
) {
    use std::fmt::Write;
    for (at, (column, &width)) in options.columns.iter().zip(widths).enumerate() {
        let mut value = column.value(profile, hist, row);
        if options.widths.get(at).is_some_and(|given| *given > 0) {
            value = cut(&value, Some(width)).to_owned();
        }
        if at + 1 == options.columns.len() && options.separator.is_none() && column.is_name() {
            let used = line.chars().count() + 2;
            let room = options.look.width.map_or(usize::MAX, |width| width.saturating_sub(used));
            value = shortened(&value, room).into_owned();
        }
        match &options.separator {
            Some(separator) => {
                if at > 0 {
                    line.push_str(separator);
                }
                // A separator inside a value would shift the fields after it.
                line.push_str(&value.replace(separator.as_str(), "."));
            }
            None => {
                line.push_str("  ");
                // SANITY: writing to a String cannot fail.
                let done = if column.right() {
                    write!(line, "{value:>width$}")
                } else if at + 1 == widths.len() {
                    // Nothing stands behind it, and among long names the width of a C++ one can be
                    // thousands.
                    line.push_str(&value);
                    Ok(())
                } else {
                    write!(line, "{value:width$}")
                };
                done.expect("writing to a string");
            }
        }
    }
    line.truncate(line.trim_end().len());
}

/// Every row counts for the widths, also those that a limit leaves out.
fn widths(profile: &Profile, hist: &Hist, options: &TableOptions) -> Vec<usize> {
    let given = options.widths.iter().copied().chain(std::iter::repeat(0));
    options
        .columns
        .iter()
        .zip(given)
        .map(|(column, given)| {
            let title = column.title(options).chars().count();
            if given > 0 && options.separator.is_none() {
                return given.max(title);
            }
            let least = column.least_width().max(title);
            if !matches!(column, Column::Key(_)) || options.separator.is_some() {
                return least;
            }
            let widths = pool::map(&hist.rows, |row| {
                if row.filtered {
                    return 0;
                }
                let width = column.value(profile, hist, row).chars().count();
                // A row without a symbol makes room for an address in the module's column, too.
                match column {
                    Column::Key(SortKey::Dso) if profile.functions.get(row.function).name.is_none() => {
                        width.max(16)
                    }
                    _ => width,
                }
            });
            widths.into_iter().max().unwrap_or(0).max(least).min(super::WIDEST_COLUMN)
        })
        .collect()
}

/// Red from 5 %, green from 0.5 %: perf's colours.
fn colored(line: &str, percent: f64) -> String {
    let color = if percent >= 5.0 {
        "\x1b[31m"
    } else if percent >= 0.5 {
        "\x1b[32m"
    } else {
        return line.to_string();
    };
    match line.find('%') {
        Some(end) => format!("{color}{}\x1b[m{}", &line[..=end], &line[end + 1..]),
        None => line.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks perf's short counts at their edges.
    /// Checks that a name which is too long for the terminal keeps both of its ends, and others are as they are.
    #[test]
    fn names_are_shortened_in_the_middle() {
        const NAME: &str = "alloc::vec::Vec<T,A>::extend_trusted";
        assert_eq!(shortened(NAME, 30), "alloc::vec::Ve..extend_trusted");
        assert_eq!(shortened("main", 30), "main");
        assert_eq!(shortened(NAME, usize::MAX), NAME);
        assert_eq!(shortened(NAME, 10), NAME);
    }

    #[test]
    fn counts_in_units() {
        assert_eq!(count_in_units(0), (0, ' '));
        assert_eq!(count_in_units(1000), (1000, ' '));
        assert_eq!(count_in_units(1001), (1, 'K'));
        assert_eq!(count_in_units(882_333), (882, 'K'));
        assert_eq!(count_in_units(1_200_000), (1, 'M'));
    }

    /// Checks that columns are read by perf's names.
    #[test]
    fn columns_by_name() {
        assert_eq!("sample".parse::<Column>().unwrap(), Column::Samples);
        assert_eq!("sym".parse::<Column>().unwrap(), Column::Key(SortKey::Symbol));
        assert!("nonsense".parse::<Column>().is_err());
    }
}
