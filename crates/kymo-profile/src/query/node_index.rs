//! Sums by node that are made before they are asked for: of blocks of rows, so that a range costs
//! the blocks in it and a look at the rows at its two ends.
//!
//! ```text
//!   rows    0 ......... B ......... 2B ......... 3B ......... 4B
//!   range          [----|------------|------------|--)
//!                  rows    block 1      block 2    rows
//! ```
use super::scan::Sum;
use crate::columns::{Columns, RowField};
use crate::export::{NO_PARENT, RowNodes};
use kymo_symbols::pool;
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::OnceLock;

/// Rows of a block. Those at the ends of a range cost some nanoseconds each.
const ROWS: usize = if cfg!(test) { 16 } else { 1 << 17 };
/// With more nodes than this, a quarter of the rows, the sums of a block may be nearly as many as
/// its rows, and take more memory than they save time.
const MOST_NODES: usize = 1 << 15;

/// The node of each row, and the sums of blocks of rows.
#[derive(Debug, Default)]
pub(crate) struct NodeIndex {
    nodes: RowNodes,
    /// One more than the largest node.
    count: usize,
    blocks: OnceLock<Vec<Block>>,
}

/// By event its nodes with their sums.
type Block = Vec<Vec<BlockSum>>;

/// What a node has in a block.
#[derive(Clone, Copy, Debug)]
struct BlockSum {
    node: u32,
    samples: u32,
    period: u64,
}

impl NodeIndex {
    /// Of the node of each row. The sums are made at the first question.
    pub(crate) fn new(nodes: RowNodes) -> NodeIndex {
        // One more than the largest; none is one more than all others, and so 0.
        const { assert!(NO_PARENT.wrapping_add(1) == 0) };
        let count = nodes.iter().fold(0, |count, node| count.max(node.wrapping_add(1))) as usize;
        NodeIndex { nodes, count, blocks: OnceLock::new() }
    }

    /// Makes the sums of blocks, which the first question would wait for.
    pub(crate) fn prepare(&self, columns: &Columns) {
        if self.count <= MOST_NODES {
            self.blocks.get_or_init(|| self.blocks_of(columns));
        }
    }

    /// By row its node, [`NO_PARENT`] where it has none.
    pub(crate) fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// How many nodes there may be.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Calls `add` with the sums of the blocks that lie in a range of rows. Gives the rows that are
    /// in no such block.
    pub(super) fn each_block(
        &self,
        columns: &Columns,
        event: u32,
        rows: Range<usize>,
        mut add: impl FnMut(u32, Sum),
    ) -> [Range<usize>; 2] {
        let (first, end) = (rows.start.div_ceil(ROWS), rows.end / ROWS);
        if first >= end || self.count > MOST_NODES {
            return [rows, 0..0];
        }
        let blocks = self.blocks.get_or_init(|| self.blocks_of(columns));
        for block in blocks.get(first..end).unwrap_or_default() {
            for sum in block.get(event as usize).into_iter().flatten() {
                add(sum.node, Sum { samples: sum.samples.into(), period: sum.period });
            }
        }
        [rows.start..first * ROWS, end * ROWS..rows.end]
    }

    fn blocks_of(&self, columns: &Columns) -> Vec<Block> {
        let starts: Vec<usize> = (0..columns.len() / ROWS).map(|block| block * ROWS).collect();
        pool::map(&starts, |start| {
            let mut sums: FxHashMap<(usize, u32), Sum> = FxHashMap::default();
            for (row, node) in (*start..start + ROWS).zip(self.nodes.get(*start..).unwrap_or_default()) {
                let event = columns.get(RowField::Event, row) as usize;
                *sums.entry((event, *node)).or_default() +=
                    Sum { samples: 1, period: columns.get(RowField::Period, row) };
            }
            let mut block = Block::new();
            for ((event, node), Sum { samples, period }) in sums {
                if block.len() <= event {
                    block.resize(event + 1, Vec::new());
                }
                block[event].push(BlockSum { node, samples: samples as u32, period });
            }
            block
        })
    }
}
