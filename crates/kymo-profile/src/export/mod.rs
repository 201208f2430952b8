//! A finished profile in the forms that people pass around: JSON, folded stacks, a flame graph, one HTML page.
//!
//! You give it an [`ExportProfile`]: plain values, filled by whoever aggregated a recording. It gives you bytes.
//! Every writer here is a pure function of the model: the same profile gives the same bytes, nothing reads the clock,
//! the environment or the network.
//!
//! - [`json()`]: the machine-readable report, described in `docs/reference/formats/report-json.md`.
//! - [`folded()`]: one line per stack (`comm;outer;inner count`), what flame graph tools read.
//! - [`flamegraph()`]: an SVG.
//! - [`html()`]: one self-contained page with timeline, flame graph and table; its source is in `ui/`.
//!
//! # Invariants
//! - E1: a node's parent has a smaller index than the node; a root has [`NO_PARENT`]. Walks need no recursion.
//! - E2: every root node names a function of kind [`FunctionKind::Comm`]: the command name is the outermost frame.
//! - E3: names come from a recording and are hostile; each writer escapes them for its own format.
//!
//! Writers skip what breaks E1 or E2, they do not panic.
mod callgrind;
mod chrome;
mod collect;
mod firefox;
mod format;
mod html;
mod json;
mod locations;
pub mod model;
mod otlp;
mod perfetto;
mod pprof;
mod process_names;
mod protobuf;
mod reused_ids;
mod row_filter;
mod samples;
mod slices;
mod speedscope;
#[cfg(test)]
mod tests;
mod text;
pub mod totals;
mod wakers;

pub use callgrind::callgrind;
pub use chrome::chrome;
pub use collect::collect;
pub(crate) use collect::{
    MOST_ENTRIES, RowNodes, collect_with_nodes, facts, function_of, recorder, row_nodes, step, unit_of,
};
pub use firefox::firefox;
pub use format::ExportFormat;
pub(crate) use html::{
    ComparedFunction, ServedPage, compared_html, entries_json, html_with_codes, page_json,
};
pub use html::{html, policy, write_served_page};
pub use json::json;
pub use locations::{FrameLocation, LocationLine, Locations, MappedFile};
pub use otlp::otlp;
pub use perfetto::perfetto;
pub use pprof::pprof;
pub use row_filter::RowFilter;
pub use samples::{ExportSamples, SampleRow, Track};
pub use speedscope::speedscope;

pub use model::{
    ExportEvent, ExportProfile, Function, FunctionKind, Interval, IntervalKind, Link, Loss, NO_CPU,
    NO_PARENT, Node, SCHEMA_VERSION, StackTree, Thread, Timeline, TimelineEntry,
};
pub(crate) use text::{draw, stack_frame};
pub use text::{flamegraph, folded};
pub use totals::Totals;
