//! Rows within rows: the first sort key divides all samples, the second what each of its values
//! has, and so on.
use super::rows::{Hist, HistOptions, Row, compare};
use crate::load::Count;
use crate::profile::Profile;
use std::cmp::{Ordering, Reverse};

/// One value of a sort key, within the values of the keys before it.
#[derive(Debug, Clone)]
pub struct HierarchyNode<'a> {
    /// How many keys are before this one.
    pub depth: usize,
    /// Samples with all these values.
    pub own: Count,
    /// What of them was in the kernel, as a sum of periods.
    pub own_kernel: u64,
    /// One of the rows with these values, for what to show.
    pub row: &'a Row,
    /// The values of the next key, largest first. Empty at the last key.
    pub below: Vec<HierarchyNode<'a>>,
}

/// The rows that filters leave, as a tree with a level for each sort key.
pub fn hierarchy<'a>(profile: &Profile, hist: &'a Hist, options: &HistOptions) -> Vec<HierarchyNode<'a>> {
    let rows = hist.rows.iter().filter(|row| !row.filtered).collect();
    level(profile, options, rows, 0)
}

fn level<'a>(
    profile: &Profile,
    options: &HistOptions,
    mut rows: Vec<&'a Row>,
    depth: usize,
) -> Vec<HierarchyNode<'a>> {
    let Some(&key) = options.keys.get(depth) else { return Vec::new() };
    rows.sort_by(|a, b| compare(profile, key, a, b));
    let mut nodes: Vec<HierarchyNode<'a>> = rows
        .chunk_by(|a, b| compare(profile, key, a, b) == Ordering::Equal)
        .map(|same| {
            let mut own = Count::default();
            same.iter().for_each(|row| own += row.own);
            HierarchyNode {
                depth,
                own,
                own_kernel: same.iter().map(|row| row.own_kernel).sum(),
                row: same[0],
                below: level(profile, options, same.to_vec(), depth + 1),
            }
        })
        .collect();
    // Equal ones stay in the order of their key.
    nodes.sort_by_key(|node| Reverse(if options.by_latency { node.own.latency } else { node.own.period }));
    nodes
}
