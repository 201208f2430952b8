//! The call graph under a row: pipes and percentages.
//!
//! ```text
//!             |
//!             ---main                  a single root that has all of the row's samples
//!                work
//!                |
//!                |--60.00%--hash       branches, with their share of the whole event
//!                |          mix        a run of frames without a branch stands in one column
//!                |
//!                 --40.00%--sort       the last branch ends the pipe
//! ```
use super::shown;
use crate::hist::{CallNode, CallTree, Order, Row};
use crate::profile::Profile;
use std::io::{self, Write};

/// What a branch says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GraphForm {
    /// Its share of the whole event.
    #[default]
    Graph,
    /// Its share of what all branches beside it have.
    Fractal,
    /// There are no branches: each stack is a line, with its share of the whole event.
    Folded,
}

/// How call graphs are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GraphOptions {
    /// What a branch says.
    pub form: GraphForm,
    /// From the row to what it called, or to who called it.
    pub order: Order,
    /// Branches below this share are left out, percent.
    pub least_percent: f64,
}

/// Spaces before the first pipe.
const MARGIN: usize = 12;

/// Draws the graph of a row. `whole`: of the event; `weight`: of the row.
pub(super) fn write(
    out: &mut dyn Write,
    profile: &Profile,
    row: &Row,
    options: &GraphOptions,
    (whole, weight): (u64, u64),
) -> io::Result<()> {
    // Rounded down, as perf does: in a small recording a branch of one sample stays.
    let least = (whole as f64 * options.least_percent / 100.0) as u64;
    let least = if options.form == GraphForm::Graph { least.max(1) } else { 1 };
    let tree = CallTree::new(profile, row, options.order, least);
    if options.form == GraphForm::Folded {
        return write_folded(out, profile, &tree, options, whole);
    }
    let mut drawing = Drawing { out, profile, options, whole, margin: MARGIN, pipes: Vec::new() };
    match &tree.roots[..] {
        [] => return Ok(()),
        // One root with everything needs no percentage.
        [root] if root.total == weight => {
            drawing.line_start()?;
            writeln!(drawing.out, "|")?;
            for (at, function) in root.functions.iter().enumerate() {
                drawing.line_start()?;
                let dashes = if at == 0 { "---" } else { "   " };
                writeln!(drawing.out, "{dashes}{}", shown(&profile.frame_name(*function)))?;
            }
            drawing.margin += 3;
            drawing.level(&root.children, weight)?;
        }
        roots => drawing.level(roots, weight)?,
    }
    writeln!(drawing.out)
}

/// Writes each stack of a row as a line, as `perf report -g folded` does: the largest first.
fn write_folded(
    out: &mut dyn Write,
    profile: &Profile,
    tree: &CallTree,
    options: &GraphOptions,
    whole: u64,
) -> io::Result<()> {
    let mut stacks: Vec<(u64, String)> = Vec::new();
    let mut left: Vec<(String, &CallNode)> =
        tree.roots.iter().rev().map(|root| (String::new(), root)).collect();
    while let Some((mut stack, node)) = left.pop() {
        for function in &node.functions {
            let between = if stack.is_empty() { "" } else { ";" };
            stack = format!("{stack}{between}{}", shown(&profile.frame_name(*function)));
        }
        if node.own as f64 * 100.0 >= options.least_percent * whole as f64 && node.own > 0 {
            stacks.push((node.own, stack.clone()));
        }
        left.extend(node.children.iter().rev().map(|child| (stack.clone(), child)));
    }
    stacks.sort_by_key(|(period, _)| std::cmp::Reverse(*period));
    for (period, stack) in stacks {
        writeln!(out, "{:.2}% {stack}", 100.0 * period as f64 / whole.max(1) as f64)?;
    }
    Ok(())
}

struct Drawing<'a> {
    out: &'a mut dyn Write,
    profile: &'a Profile,
    options: &'a GraphOptions,
    whole: u64,
    margin: usize,
    /// For each level whether its pipe goes on below.
    pipes: Vec<bool>,
}

impl Drawing<'_> {
    fn line_start(&mut self) -> io::Result<()> {
        write!(self.out, "{:1$}", "", self.margin.min(super::WIDEST_COLUMN))
    }

    fn pipe(&mut self, level: usize) -> io::Result<()> {
        self.out.write_all(if self.pipes[level] { b"|" } else { b" " })
    }

    /// `of`: what all branches beside these and these have.
    fn level(&mut self, nodes: &[CallNode], of: u64) -> io::Result<()> {
        let is_fractal = self.options.form == GraphForm::Fractal;
        let least = if is_fractal { of as f64 * self.options.least_percent / 100.0 } else { 0.0 };
        let nodes: Vec<&CallNode> = nodes.iter().filter(|node| node.total as f64 >= least).collect();
        let shown_total: u64 = nodes.iter().map(|node| node.total).sum();
        // What is left out here, as perf says it.
        let rest = of.saturating_sub(shown_total);
        let rest = Some(rest).filter(|&rest| is_fractal && rest > 0 && rest < of);
        let base = if is_fractal { of } else { self.whole };
        let depth = self.pipes.len();
        self.pipes.push(true);
        let count = nodes.len() + usize::from(rest.is_some());
        for (at, node) in nodes.into_iter().enumerate() {
            let names: Vec<_> =
                node.functions.iter().map(|function| self.profile.frame_name(*function)).collect();
            self.branch(&names, (node.total, base), at + 1 == count)?;
            self.level(&node.children, node.total - node.own)?;
        }
        if let Some(rest) = rest {
            self.pipes[depth] = false;
            self.share(&["[...]"], (rest, base))?;
        }
        self.pipes.pop();
        Ok(())
    }

    /// A run of functions, with its share of `base`.
    fn branch(
        &mut self,
        names: &[impl AsRef<str>],
        (total, base): (u64, u64),
        is_last: bool,
    ) -> io::Result<()> {
        let depth = self.pipes.len() - 1;
        // The separating line still shows this level's pipe; a last branch then ends it.
        self.line_start()?;
        for level in 0..=depth {
            self.pipe(level)?;
            self.out.write_all(b"          ")?;
        }
        writeln!(self.out)?;
        self.pipes[depth] = !is_last;
        self.share(names, (total, base))
    }

    /// The lines of a branch, without the separating line, which perf leaves out before `[...]`.
    fn share(&mut self, names: &[impl AsRef<str>], (total, base): (u64, u64)) -> io::Result<()> {
        let depth = self.pipes.len() - 1;
        for (row, name) in names.iter().enumerate() {
            self.line_start()?;
            for level in 0..depth {
                self.pipe(level)?;
                self.out.write_all(b"          ")?;
            }
            self.pipe(depth)?;
            if row == 0 {
                let share = 100.0 * total as f64 / base.max(1) as f64;
                write!(self.out, "--{share:.2}%--")?;
            } else {
                self.out.write_all(b"          ")?;
            }
            writeln!(self.out, "{}", shown(name.as_ref()))?;
        }
        Ok(())
    }
}
