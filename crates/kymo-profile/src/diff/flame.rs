//! A comparison as two flame graphs: frames as wide as on one side, coloured by what they changed.
use super::Comparison;
use crate::export::{draw, stack_frame};
use crate::text::shown;
use inferno::flamegraph;
use std::io::{self, Write};

/// Which side the widths are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlameSide {
    /// What vanished is in the picture, what appeared is not.
    Old,
    /// What appeared is in the picture, what vanished is not.
    New,
}

/// Costs are whole numbers in the picture: the whole of the larger side is so many.
const WHOLE: f64 = 1e7;

/// Writes an SVG. Red frames cost more on the new side, blue ones less, in both pictures.
///
/// # Errors
/// Those of `out`, and "no stacks" where the side has no cost.
pub fn write_flamegraph(out: &mut dyn Write, comparison: &Comparison, side: FlameSide) -> io::Result<()> {
    let paths = &comparison.paths;
    let scale = paths.scale(WHOLE);
    let mut lines = Vec::new();
    for path in &paths.list {
        let (old, new) = ((path.old * scale).round() as u64, (path.new * scale).round() as u64);
        if old.max(new) > 0 && !path.functions.is_empty() {
            let name = |number: &u32| stack_frame(&paths.functions[*number as usize].name);
            let frames: Vec<String> = path.functions.iter().map(name).collect();
            let (first, second) = if side == FlameSide::New { (old, new) } else { (new, old) };
            lines.push(format!("{} {first} {second}", frames.join(";")));
        }
    }
    if lines.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "no stacks to draw: the runs have no samples",
        ));
    }
    lines.sort_unstable();
    let mut options = flamegraph::Options::default();
    let (name, other) = if side == FlameSide::New { ("new", "old") } else { ("old", "new") };
    options.title = format!("kymo diff: {}, widths of the {name} side", shown(&comparison.event));
    options.subtitle = Some(format!(
        "red costs more on the new side, blue less; what only the {other} side has is not shown. {}",
        shown(&comparison.verdict_sentence())
    ));
    options.count_name = "parts of 10,000,000".to_owned();
    options.deterministic = true;
    options.no_sort = true;
    // Widths are those of the last number; the colour is always that of new minus old.
    options.negate_differentials = side == FlameSide::Old;
    options.font_type = "ui-monospace, Menlo, Consolas, monospace".to_owned();
    draw(&mut options, &lines, out)
}
