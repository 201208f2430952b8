//! Tables as text, in the form that users of `perf report --stdio` know.
//!
//! The layout is perf's, column by column and pipe by pipe, because scripts and eyes are trained on
//! it. Piped output has no colour and no width limit, so it is the same bytes for the same
//! recording everywhere.
mod escape;
mod graph;
mod hierarchy;
mod table;
#[cfg(test)]
mod tests;

pub use escape::{SEMICOLON_IN_STACK, WIDEST_COLUMN, json, json_pretty, shown, shown_in_stack};
pub use graph::{GraphForm, GraphOptions};
pub use hierarchy::write_hierarchy;
pub use table::{Column, TableOptions, TableStyle, count_in_units, shortened, write_table};
