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
use crate::hist::{CallNode, CallTree, Order};
use crate::profile::Profile;
use std::io::{self, Write};

/// How call graphs are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GraphOptions {
    /// From the row to what it called, or to who called it.
    pub order: Order,
    /// Branches below this share of the event are left out, percent.
    pub least_percent: f64,
}

/// Spaces before the first pipe.
const MARGIN: usize = 12;

pub(super) fn write(
    out: &mut dyn Write,
    profile: &Profile,
    tree: &CallTree,
    whole: u64,
    row: u64,
) -> io::Result<()> {
    let mut drawing = Drawing { out, profile, whole, margin: MARGIN, pipes: Vec::new() };
    match &tree.roots[..] {
        [] => return Ok(()),
        // One root with everything needs no percentage.
        [root] if root.total == row => {
            drawing.line_start()?;
            writeln!(drawing.out, "|")?;
            for (at, function) in root.functions.iter().enumerate() {
                drawing.line_start()?;
                let dashes = if at == 0 { "---" } else { "   " };
                writeln!(drawing.out, "{dashes}{}", shown(&profile.frame_name(*function)))?;
            }
            drawing.margin += 3;
            drawing.level(&root.children)?;
        }
        roots => drawing.level(roots)?,
    }
    writeln!(drawing.out)
}

struct Drawing<'a> {
    out: &'a mut dyn Write,
    profile: &'a Profile,
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

    fn level(&mut self, nodes: &[CallNode]) -> io::Result<()> {
        let depth = self.pipes.len();
        self.pipes.push(true);
        for (at, node) in nodes.iter().enumerate() {
            // The separating line still shows this level's pipe; a last branch then ends it.
            self.line_start()?;
            for level in 0..=depth {
                self.pipe(level)?;
                self.out.write_all(b"          ")?;
            }
            writeln!(self.out)?;
            self.pipes[depth] = at + 1 < nodes.len();
            for (row, function) in node.functions.iter().enumerate() {
                self.line_start()?;
                for level in 0..depth {
                    self.pipe(level)?;
                    self.out.write_all(b"          ")?;
                }
                self.pipe(depth)?;
                if row == 0 {
                    let share = 100.0 * node.total as f64 / self.whole.max(1) as f64;
                    write!(self.out, "--{share:.2}%--")?;
                } else {
                    self.out.write_all(b"          ")?;
                }
                writeln!(self.out, "{}", shown(&self.profile.frame_name(*function)))?;
            }
            self.level(&node.children)?;
        }
        self.pipes.pop();
        Ok(())
    }
}
