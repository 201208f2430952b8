//! Which rows are meant where a recording has both samples and waits.
use super::samples::{ExportSamples, SampleRow};
use crate::wall::{OFF_CPU, State, is_of_waits};

/// Which rows of an [`ExportSamples`] a format has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowFilter {
    /// All of them.
    All,
    /// All but the records of waits: their time comes from spans.
    Samples,
    /// The spans in which a thread does not run: while it does, it has samples.
    OffCpu,
}

impl RowFilter {
    /// Whether a row is one of these.
    pub fn keeps(self, samples: &ExportSamples<'_>, row: &SampleRow) -> bool {
        match self {
            RowFilter::All => true,
            RowFilter::Samples => !is_of_waits(&samples.event(row.event).name),
            RowFilter::OffCpu => row.state.is_some_and(|state| state.state != State::Running),
        }
    }

    /// The name of an event's rows: that of the event, and `offcpu-time` for spans off a CPU.
    pub fn event_name<'a>(self, samples: &'a ExportSamples<'_>, event: u32) -> &'a str {
        if self == RowFilter::OffCpu { OFF_CPU } else { &samples.event(event).name }
    }
}
