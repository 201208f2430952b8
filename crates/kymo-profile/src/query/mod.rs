//! Questions about a recording, and their answers as plain values.
//!
//! *You give it* a [`Dataset`] (a recording as columns, with names) and a [`Query`]: what is asked,
//! and which rows count. *It gives you* a [`QueryAnswer`], as structs that serialize. Whoever shows
//! something of a recording asks here, and computes nothing.
//!
//! ```text
//!  text --parse--> Query { verb, filter }                       (language)
//!                    |
//!  Dataset ----> rows that the filter leaves ----> sums by (thread, CPU, state, stack)   (scan)
//!   samples        a table per column that               |
//!   or spans       is asked about (filter)               |--> top: functions, modules, ... (top)
//!                                                        |--> trees, callers, callees      (tree)
//!                                                        |--> waits                        (waits)
//!                                                        |--> tiles, heat map  (tiles, heatmap)
//!                                                        '--> instructions, lines      (annotate)
//! ```
//!
//! # Two kinds of rows
//! A recording has samples; one of `kymo record --wall` also has spans of wall time, which make the
//! event [`WALL_TIME`]. A query is about one event, because periods of two cannot be added.
//!
//! # Invariants
//! - **Q1** An answer is that of a plain filter over all rows, whatever way was taken (`model`).
//! - **Q2** A range of time of samples has those of `kymo report --time`, and the sums of functions
//!   are those of `kymo report --json`.
//! - **Q3** A span counts with the part of it that lies in the range. The sums of two ranges that
//!   follow each other are the sum of both, to the nanosecond.
//! - **Q4** The cost is that of the rows in the range, of the distinct stacks, and for spans of a
//!   look at one number for each 1024 rows after the range.
//! - **Q5** A query ends soon after its cancel flag is set, with [`QueryError::Cancelled`].
pub mod annotate;
mod answer;
mod branch;
mod dataset;
mod filter;
mod function_key;
mod heatmap;
mod language;
#[cfg(test)]
mod model;
mod node_index;
mod nodes;
mod rows_over_time;
mod scan;
#[cfg(test)]
mod tests;
mod text;
mod tiles;
mod top;
mod tree;
mod waits;

pub use answer::{AnswerHead, Body, QueryAnswer, SCHEMA_VERSION};
pub(crate) use branch::Levels;
pub use branch::{Branch, BranchNode, TreeKind};
pub use dataset::{Dataset, DatasetKind, EventRow, OpenError, WALL_TIME, open};
pub use filter::{Condition, Filter, FilterField, FilterValue};
pub use function_key::FunctionKey;
pub use heatmap::HeatMap;
pub(crate) use heatmap::column_ns as heat_column_ns;
pub use language::parse;
pub(crate) use node_index::NodeIndex;
pub use nodes::{NodeSums, SelectedThreads, Selection};
pub(crate) use rows_over_time::RowNumbers;
pub(crate) use text::cell as markdown_cell;
pub use text::{amount, write_json, write_markdown, write_text};
pub use tiles::{Lane, LaneKey, Tiles};
pub use top::{GroupBy, Top, TopRow, Weight};
pub(crate) use tree::MOST_NODES;
pub use tree::{CallTreeAnswer, TreeNode};
pub use waits::{WaitRow, Waits};

use kymo_symbols::SymbolStore;
use std::sync::atomic::AtomicBool;

/// What is asked, of which rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// What is asked.
    pub verb: Verb,
    /// Which rows count.
    pub filter: Filter,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Verb {
    /// What took most.
    Top {
        /// What is counted apart.
        group: GroupBy,
        /// So many rows at most.
        count: usize,
        /// What the order is by.
        by: Weight,
    },
    /// The call tree, from the outermost callers or from the innermost functions.
    Tree {
        /// From the innermost functions to their callers.
        inverted: bool,
        /// Nodes with less of the whole are left out, percent.
        least_percent: f64,
    },
    /// What calls a function: a tree that begins with it.
    Callers {
        /// Its name, with `*` for any characters.
        function: FilterValue,
        /// Nodes with less of the whole are left out, percent.
        least_percent: f64,
    },
    /// What a function calls: a tree that begins with it.
    Callees {
        /// Its name, with `*` for any characters.
        function: FilterValue,
        /// Nodes with less of the whole are left out, percent.
        least_percent: f64,
    },
    /// What lies below a path of a call tree; the text of queries has no word for it.
    Branch {
        /// Which tree.
        kind: TreeKind,
        /// From the root of the tree on.
        path: Vec<FunctionKey>,
        /// So many levels of nodes below the path. Nodes without others beside them cost no level,
        /// up to the first that have some: a chain comes whole.
        levels: usize,
        /// Nodes with less of the whole are left out, percent.
        least_percent: f64,
    },
    /// Sums by time: tiles of equal length, in lanes.
    Timeline {
        /// What has a lane of its own.
        lanes: LaneKey,
        /// How many tiles.
        tiles: u32,
    },
    /// What each part of each second has.
    HeatMap {
        /// Into how many parts a second, or what a column has in its place, is divided.
        rows: u32,
    },
    /// The instructions and source lines of a function, with what each cost.
    Annotate {
        /// Its name, with `*` for any characters.
        function: FilterValue,
    },
    /// Where threads wait, for what, and who ends it.
    Waits {
        /// So many rows at most.
        count: usize,
    },
    /// The events that can be asked about.
    Events,
}

/// Why a query has no answer.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum QueryError {
    /// The text is no query.
    #[error("{what}, at character {at} of the query")]
    Syntax {
        /// Which character of the text, from 1 on.
        at: usize,
        /// What is wrong there, and what may stand there.
        what: String,
    },
    /// A name that the recording does not have.
    #[error("{0}")]
    Unknown(String),
    /// The recording does not tell what is asked.
    #[error("{0}")]
    NotRecorded(String),
    /// The cancel flag was set.
    #[error("the query was cancelled")]
    Cancelled,
}

impl Dataset {
    /// Answers a query. `store`: the symbols that the recording was opened with; code and lines
    /// come from its files. `cancel` may be set by another thread.
    ///
    /// # Errors
    /// When the query names what the recording does not have, or was cancelled.
    pub fn ask(
        &self,
        query: &Query,
        store: &SymbolStore,
        cancel: &AtomicBool,
    ) -> Result<QueryAnswer, QueryError> {
        let scan = scan::Scan::new(self, &query.filter, cancel)?;
        let body = match &query.verb {
            Verb::Top { group, count, by } => Body::Top(top::top(&scan, *group, *count, *by)?),
            Verb::Tree { inverted, least_percent } => {
                Body::Tree(tree::whole(&scan, *inverted, *least_percent)?)
            }
            Verb::Callers { function, least_percent } => {
                Body::Tree(tree::around(&scan, function, tree::Side::Callers, *least_percent)?)
            }
            Verb::Callees { function, least_percent } => {
                Body::Tree(tree::around(&scan, function, tree::Side::Callees, *least_percent)?)
            }
            Verb::Branch { kind, path, levels, least_percent } => {
                Body::Branch(branch::branch(&scan, *kind, path, *levels, *least_percent)?)
            }
            Verb::Timeline { lanes, tiles } => Body::Timeline(tiles::tiles(&scan, *lanes, *tiles)?),
            Verb::HeatMap { rows } => Body::HeatMap(heatmap::heat_map(&scan, *rows, None)?),
            Verb::Annotate { function } => {
                let annotator = self.annotator(&query.filter, store, cancel)?;
                Body::Annotate(annotate::annotations(&annotator, function)?)
            }
            Verb::Waits { count } => Body::Waits(waits::waits(&scan, *count)?),
            Verb::Events => Body::Events(self.events()),
        };
        Ok(QueryAnswer { head: scan.head(), body })
    }
}
