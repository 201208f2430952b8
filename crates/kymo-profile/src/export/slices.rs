//! Stacks over time as slices: samples of a thread that share outer frames are one stretch of them.
//!
//! ```text
//!  samples   main>a>b  main>a>b  main>a    main>c        main>c
//!  slices    |main--------------------------->|  gap    |main->|
//!            |a----------------->|c---------->|         |c---->|
//!            |b---------->|
//! ```
//! A sample stands for the time until the next one of its thread, but for no more than twice what
//! usually lies between two of them: the thread did not run then. Counts are exact even so: a slice
//! has the samples and periods of all that is in it.
use super::samples::{ExportSamples, SampleRow, Track};
use std::io;

/// The length of the only sample of a thread, ns.
const SINGLE_NS: u64 = 1_000_000;

/// What happens at a moment of a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SliceEdge {
    /// A function was entered.
    Begin { function: u32, at_ns: u64 },
    /// The innermost function that was entered and not left was left.
    End { at_ns: u64, samples: u64, period: u64 },
}

/// A function that was entered, and what was sampled in it since.
struct Open {
    function: u32,
    samples: u64,
    period: u64,
}

/// Calls `each` with the begins and ends of slices in order of time.
pub(super) fn each_edge(
    samples: &ExportSamples<'_>,
    track: &Track,
    mut each: impl FnMut(SliceEdge) -> io::Result<()>,
) -> io::Result<()> {
    let longest = longest_sample(samples, track);
    let mut open: Vec<Open> = Vec::new();
    let mut path = Vec::new();
    let mut rows = samples.rows_of(track).peekable();
    let mut reached = 0;
    while let Some(row) = rows.next() {
        let begin = row.begin_ns.max(reached);
        if begin > reached {
            close(&mut open, 0, reached, &mut each)?;
        }
        samples.path(row.event, row.node, &mut path);
        let shared =
            open.iter().zip(&path).take_while(|(open, function)| open.function == **function).count();
        close(&mut open, shared, begin, &mut each)?;
        for function in path.iter().skip(shared) {
            open.push(Open { function: *function, samples: 0, period: 0 });
            each(SliceEdge::Begin { function: *function, at_ns: begin })?;
        }
        for slice in &mut open {
            slice.samples = slice.samples.saturating_add(row.samples);
            slice.period = slice.period.saturating_add(row.period);
        }
        let next = rows.peek().map(|next| next.begin_ns);
        reached = end_of(samples, &row, next, longest).max(begin);
    }
    close(&mut open, 0, reached, &mut each)
}

/// The end of a row: its own, or where the next one begins.
fn end_of(samples: &ExportSamples<'_>, row: &SampleRow, next: Option<u64>, longest: u64) -> u64 {
    let own = match samples.is_of_spans() {
        true => row.end_ns,
        false => row.begin_ns.saturating_add(longest),
    };
    next.map_or(own, |next| next.min(own))
}

/// Leaves all functions from a depth on, the innermost first.
fn close(
    open: &mut Vec<Open>,
    depth: usize,
    at_ns: u64,
    each: &mut impl FnMut(SliceEdge) -> io::Result<()>,
) -> io::Result<()> {
    while open.len() > depth
        && let Some(Open { samples, period, .. }) = open.pop()
    {
        each(SliceEdge::End { at_ns, samples, period })?;
    }
    Ok(())
}

/// Twice the median of what lies between two samples.
fn longest_sample(samples: &ExportSamples<'_>, track: &Track) -> u64 {
    let mut last = None;
    let mut gaps: Vec<u64> = Vec::with_capacity(samples.row_count(track));
    for row in samples.rows_of(track) {
        gaps.extend(last.map(|last| row.begin_ns.saturating_sub(last)));
        last = Some(row.begin_ns);
    }
    if gaps.is_empty() {
        return SINGLE_NS;
    }
    let middle = gaps.len() / 2;
    (*gaps.select_nth_unstable(middle).1).saturating_mul(2).max(1)
}
