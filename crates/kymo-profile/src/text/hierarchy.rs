//! `--hierarchy`: each level of rows further to the right, as perf 6.1 prints it.
use super::graph;
use super::table::{Column, TableOptions, cut, percent, write_head};
use crate::hist::{HierarchyNode, Hist, HistOptions, hierarchy};
use crate::profile::Profile;
use std::io::{self, Write};

/// Spaces by which each level is further to the right.
const STEP: usize = 3;

/// Writes one event's rows as a hierarchy with its header.
///
/// # Errors
/// Those of the writer.
pub fn write_hierarchy(
    out: &mut dyn Write,
    profile: &Profile,
    hist: &Hist,
    event_name: &str,
    keys: &HistOptions,
    options: &TableOptions,
) -> io::Result<()> {
    write_head(out, hist, event_name)?;
    let nodes = hierarchy(profile, hist, keys);
    let levels = keys.keys.len();
    let numbers: Vec<Column> =
        options.columns.iter().copied().filter(|column| !matches!(column, Column::Key(_))).collect();
    let widths: Vec<usize> = keys
        .keys
        .iter()
        .map(|key| {
            let column = Column::Key(*key);
            let rows = hist.rows.iter().filter(|row| !row.filtered);
            let values = rows.map(|row| column.value(profile, hist, row).trim_start().chars().count());
            values.max().unwrap_or(0).max(column.title(options).trim().chars().count())
        })
        .collect();
    let layout =
        Layout { profile, hist, keys, options, numbers, widths, inset: STEP * levels.saturating_sub(1) };
    layout.head(out)?;
    layout.level(out, &nodes)
}

struct Layout<'a> {
    profile: &'a Profile,
    hist: &'a Hist,
    keys: &'a HistOptions,
    options: &'a TableOptions,
    /// The columns before the names.
    numbers: Vec<Column>,
    /// Of each level's names.
    widths: Vec<usize>,
    /// How far the last level is to the right of the first.
    inset: usize,
}

impl Layout<'_> {
    fn head(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = |column: &Column| column.least_width().max(column.title(self.options).len());
        let titles: Vec<String> =
            self.numbers.iter().map(|c| format!("{:>1$}", c.title(self.options), width(c))).collect();
        let names: Vec<&str> =
            self.keys.keys.iter().map(|key| Column::Key(*key).title(self.options).trim()).collect();
        let (titles, names) = (titles.join("  "), names.join(" / "));
        let widest = self.widths.iter().enumerate().map(|(depth, width)| STEP * depth + width).max();
        let dots = (".".repeat(self.inset + titles.len()), ".".repeat(names.len().max(widest.unwrap_or(0))));
        let line = format!("# {:1$}{titles}  {names}", "", self.inset);
        writeln!(out, "{}", cut(&line, self.options.look.width))?;
        writeln!(out, "{}", cut(&format!("# {}  {}", dots.0, dots.1), self.options.look.width))?;
        writeln!(out, "#")
    }

    fn level(&self, out: &mut dyn Write, nodes: &[HierarchyNode<'_>]) -> io::Result<()> {
        let limit = self.options.percent_limit * self.hist.whole as f64;
        let mut written = 0;
        for node in
            nodes.iter().filter(|node| node.own.period as f64 * 100.0 >= limit && node.own.samples > 0)
        {
            written += 1;
            let line = self.line(node);
            writeln!(out, "{}", cut(line.trim_end(), self.options.look.width))?;
            if let (Some(graph), []) = (&self.options.graph, &node.below[..]) {
                graph::write(out, self.profile, node.row, graph, (self.hist.whole, node.own.period))?;
            }
            if !node.below.is_empty() {
                self.level(out, &node.below)?;
            }
        }
        if let (0, Some(first)) = (written, nodes.first()) {
            let indent = STEP * first.depth + self.inset + 12;
            writeln!(out, "{:indent$}no entry >= {:.2}%", "", self.options.percent_limit)?;
        }
        Ok(())
    }

    fn line(&self, node: &HierarchyNode<'_>) -> String {
        let whole = self.hist.whole;
        let values: Vec<String> = self
            .numbers
            .iter()
            .map(|column| {
                let value = match column {
                    Column::Samples => node.own.samples.to_string(),
                    Column::Period => node.own.period.to_string(),
                    Column::Kernel => percent(node.own_kernel, whole),
                    Column::Latency => percent(node.own.latency, self.hist.whole_latency),
                    Column::User => percent(node.own.period.saturating_sub(node.own_kernel), whole),
                    _ => percent(node.own.period, whole),
                };
                let width = column.least_width().max(column.title(self.options).len());
                format!("{value:>width$}")
            })
            .collect();
        let name = match self.keys.keys.get(node.depth) {
            Some(key) => Column::Key(*key).value(self.profile, self.hist, node.row),
            None => String::new(),
        };
        let indent = STEP * node.depth + 2;
        let inset = self.inset;
        format!("{:indent$}{}{:inset$}  {}", "", values.join("  "), "", name.trim_start())
    }
}
