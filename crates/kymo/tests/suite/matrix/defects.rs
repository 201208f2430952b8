//! What perf itself gets wrong, so that a difference there is no fault of kymo: each with the releases and the reason.

/// A complaint of perf's on stderr that says nothing about the file.
pub(super) struct Complaint {
    /// Part of the line.
    pub(super) part: &'static str,
    /// Why it is no fault of the file.
    pub(super) _reason: &'static str,
}

/// Lines on perf's stderr that say nothing about the file.
pub(super) const COMPLAINTS: &[Complaint] = &[Complaint {
    part: "The data has no samples!",
    _reason: "a program may have none; that both tools show none is compared",
}];

/// Rows that releases of perf name each in another way.
pub(super) const ROWS: &[Complaint] = &[
    Complaint {
        part: "@plt",
        _reason: "perf 6.1 names jump stubs by the order of relocations, perf 7 by what they jump to; the symbol tests of \
              kymo-profile judge kymo's names by objdump",
    },
    Complaint { part: "[.] 0x0", _reason: "an address in a jump table that one of the two does not name" },
];

/// A kind of recording in which perf reports something else than what it recorded.
pub(super) struct Miscount {
    /// The releases, by suite.
    pub(super) suites: &'static [&'static str],
    /// The kind's name.
    pub(super) kind: &'static str,
    /// Why.
    pub(super) _reason: &'static str,
}

/// Kinds whose counts by row differ for a reason of perf's own.
///
/// Threads that perf shows as `:PID` are in no list: `crate::table::name_threads` moves their counts.
pub(super) const MISCOUNTS: &[Miscount] = &[];

/// Values of tracepoints that perf prints wrong.
pub(super) struct Trace {
    /// Part of the line.
    pub(super) part: &'static str,
    /// From here on the line is not compared.
    pub(super) from: &'static str,
    /// Why.
    pub(super) _reason: &'static str,
}

/// Values of tracepoints that all three releases print wrong; the kernel's own text (`trace` in tracefs) is kymo's.
pub(super) const TRACES: &[Trace] = &[
    Trace {
        part: " timer:timer_start: ",
        from: " flags=",
        _reason: "perf masks by the first of several names in parentheses and adds the others: D|P|I at every timer",
    },
    Trace {
        part: " probe:called:called_plain: ",
        from: " h=",
        _reason: "perf prints a negative field of 16 bits as 65528, although its format says %d and that it is signed",
    },
    Trace {
        part: " probe:called:called_text: ",
        from: " text=",
        _reason: "perf prints control characters as they are; kymo writes them out, for a terminal would obey them",
    },
];
