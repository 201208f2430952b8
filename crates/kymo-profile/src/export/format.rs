//! Which formats there are, and the writer of each.
use super::row_filter::RowFilter;
use super::samples::ExportSamples;
use super::{callgrind, chrome, firefox, folded, otlp, perfetto, pprof, speedscope};
use std::io::{self, Write};

/// A format of other tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// `profile.proto`, compressed: `go tool pprof`, Pyroscope, Parca.
    Pprof,
    /// A profile of the Firefox Profiler, compressed.
    Firefox,
    /// speedscope's own format.
    Speedscope,
    /// A trace of Perfetto.
    Perfetto,
    /// A request to a collector of OpenTelemetry.
    Otlp,
    /// Trace events in JSON: chrome://tracing and others.
    Chrome,
    /// KCachegrind and callgrind_annotate.
    Callgrind,
    /// A line for each stack: flame graph tools.
    Folded,
}

impl ExportFormat {
    /// All of them, in the order of the documents.
    pub const ALL: [ExportFormat; 8] = [
        ExportFormat::Pprof,
        ExportFormat::Firefox,
        ExportFormat::Speedscope,
        ExportFormat::Perfetto,
        ExportFormat::Otlp,
        ExportFormat::Chrome,
        ExportFormat::Callgrind,
        ExportFormat::Folded,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ExportFormat::Pprof => "pprof",
            ExportFormat::Firefox => "firefox",
            ExportFormat::Speedscope => "speedscope",
            ExportFormat::Perfetto => "perfetto",
            ExportFormat::Otlp => "otlp",
            ExportFormat::Chrome => "chrome",
            ExportFormat::Callgrind => "callgrind",
            ExportFormat::Folded => "folded",
        }
    }

    /// Writes a recording in this format.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(self, samples: &ExportSamples<'_>, out: &mut dyn Write) -> io::Result<()> {
        match self {
            ExportFormat::Pprof => pprof(samples, out),
            ExportFormat::Firefox => firefox(samples, out),
            ExportFormat::Speedscope => speedscope(samples, out),
            ExportFormat::Perfetto => perfetto(samples, out),
            ExportFormat::Otlp => otlp(samples, RowFilter::All, out),
            ExportFormat::Chrome => chrome(samples, out),
            ExportFormat::Callgrind => callgrind(samples, out),
            ExportFormat::Folded => {
                samples.profile.events.iter().try_for_each(|event| folded(&samples.profile, event, out))
            }
        }
    }
}
