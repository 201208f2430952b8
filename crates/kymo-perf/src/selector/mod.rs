//! Event selectors: perf's grammar of `-e`, parsed and resolved for this machine.
//!
//! Two steps, because they fail for different reasons. [`parse()`] reads text and knows nothing
//! about the machine: its errors point at a character. [`resolve()`] looks names up in this
//! machine's PMUs and tracepoints: its errors say what is missing and what to run.
//!
//! ```text
//!  "{cycles,cs}:u,sched:sched_*"  --parse-->  [Group, Group]  --resolve(machine)-->  [Selected; n]
//!                                             (syntax tree)                           attr + name + leader
//! ```
//!
//! The names, spellings and modifiers are those of `perf record -e`, and what [`resolve()`] puts in
//! an attr equals what perf 6.1 puts there (tests compare the two). Differences, all on purpose:
//!
//! - a group that is not closed is an error, where perf 6.1 quietly opens its events one by one;
//! - spaces around commas and braces are allowed and do not become part of the name;
//! - a breakpoint's name keeps its length and access (`mem:0x1000/8:w`), where perf 6.1 cuts it at
//!   the slash;
//! - terms are accepted on every kind of event, as far as they make sense there.
//!
//! Vendor event tables (`inst_retired.any`) are not built in: an event is known if the kernel names
//! it.

mod attr;
mod cache;
mod error;
mod names;
mod parse;
mod resolve;
mod syntax;
mod terms;
#[cfg(test)]
mod tests;

pub use attr::{EventAttr, Sampling};
pub use cache::cache_events;
pub(crate) use error::Span;
pub use error::{ResolveError, ResolveErrorKind, SyntaxError};
pub use names::{KnownEvent, KnownEventKind, known_events};
pub(crate) use parse::is_modifier;
pub use parse::parse;
pub(crate) use resolve::resolve_on;
pub use resolve::{default_event, resolve};
pub use syntax::{Access, EventGroup, EventSelector, Head, Modifiers, Term, TermValue};
pub use terms::{CallGraph, Overrides, branch_bits, branch_types};

use crate::tracefs::{Tracepoint, TracepointFilter};

/// One event, ready to be opened: what the kernel gets, and what the recorder has to know beside
/// it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Selected {
    /// The name as perf prints it: the text as typed, or the `name=` term, or `system:event` for a
    /// tracepoint.
    pub name: String,
    /// The part of the kernel's attr that the selector decides. [`EventAttr::to_raw`] makes the
    /// kernel's struct.
    pub attr: EventAttr,
    /// Index of the group's leader in the same list; its own index if it leads or stands alone.
    pub leader: usize,
    /// `:S`: read the whole group at each sample of the leader. The other members then do not
    /// sample themselves.
    pub group_read: bool,
    /// `:W`: if the group cannot be opened as one, open its members separately.
    pub weak: bool,
    /// `:P`: start with the highest precision and step down until the kernel accepts it.
    pub precise_max: bool,
    /// The user typed `G` or `H`, so dropping `exclude_guest`/`exclude_host` to please an old
    /// kernel is not allowed.
    pub guest_host_given: bool,
    /// CPUs that this event must be opened on (an uncore PMU's cpumask, a hybrid core PMU's CPUs),
    /// ascending. `None`: any CPU.
    pub cpus: Option<Vec<u32>>,
    /// The event belongs to a PMU that counts per socket, not per task: it can be opened with `-a`
    /// or `-C` only.
    pub system_wide_only: bool,
    /// Set when this is a tracepoint.
    pub tracepoint: Option<Tracepoint>,
    /// Set when the tool itself measures it (`duration_time`): the attr counts nothing, and there is
    /// nothing to record.
    pub tool: Option<&'static str>,
    /// Of the samples of this tracepoint only those are recorded of which this holds (`--filter`).
    pub filter: Option<String>,
    /// Per-event settings given as terms, which win over the command line.
    pub overrides: Overrides,
    /// The PMU alias's unit and scale, for printing counts (`0.0000610`, `Joules`).
    pub unit: Option<Unit>,
    /// Where in the selector's text this event stands.
    pub span: Span,
}

impl Selected {
    /// The filter of the samples, for the request to open it.
    pub fn tracepoint_filter(&self) -> Option<TracepointFilter> {
        Some(TracepointFilter { text: self.filter.clone()?, tracepoint: self.tracepoint.clone()? })
    }

    /// Adds a condition to those that its samples must meet already.
    pub fn add_filter(&mut self, text: &str) {
        self.filter = Some(match &self.filter {
            Some(earlier) => format!("({earlier}) && ({text})"),
            None => text.to_owned(),
        });
    }
}

/// How a raw count becomes a quantity: `count * scale` in `name`.
#[derive(Debug, Clone, PartialEq)]
pub struct Unit {
    /// Factor to multiply the count with.
    pub scale: f64,
    /// The quantity's name, such as `Joules`; empty if the kernel gives only a scale.
    pub name: String,
}
