//! What comes behind the counts: times, and how several runs differ.

use std::fmt::Write as _;

use kymo_perf::workload::Usage;

use super::repeat::{Series, precision};

/// The time elapsed, as perf prints it; of one run also the CPU time of the command.
pub(super) fn footer(elapsed: &Series, repeated: bool, table: bool, usage: Option<Usage>) -> String {
    let mut out = String::new();
    // Infallible all over: a String takes everything.
    if !repeated {
        let _ = writeln!(out, " {:17.9} seconds time elapsed", elapsed.mean());
        if let Some(usage) = usage {
            let seconds = |ns: u64| ns as f64 / 1e9;
            let _ = writeln!(
                out,
                "\n {:17.9} seconds user\n {:17.9} seconds sys\n",
                seconds(usage.user_ns),
                seconds(usage.system_ns)
            );
        } else {
            out.push('\n');
        }
        return out;
    }
    let (mean, error) = (elapsed.mean(), elapsed.standard_error());
    let digits = precision(error);
    if table {
        out += "         # Table of individual measurements:\n";
        for value in &elapsed.0 {
            let distance = value - mean;
            let bars = ((100.0 * distance / mean).abs() / 5.0).round().min(50.0) as usize;
            let _ = writeln!(out, " {value:17.digits$} ({distance:+.digits$}) {}", "#".repeat(bars));
        }
        out += "\n         # Final result:\n";
    }
    let _ = writeln!(
        out,
        " {mean:17.digits$} +- {error:.digits$} seconds time elapsed  ( +-{:>6.2}% )\n",
        elapsed.noise()
    );
    out
}

/// Median, range and outliers of each series.
pub(super) fn spread(series: &[(String, Series, usize)]) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{:>18} {:>16} {:>16}  of the runs", "median", "least", "most");
    for (name, values, digits) in series {
        let (least, most) = values.range();
        let _ = write!(out, "{:>18.digits$} {least:>16.digits$} {most:>16.digits$}  {name}", values.median());
        let outliers = values.outliers();
        if !outliers.is_empty() {
            let shown: Vec<String> = outliers.iter().take(8).map(usize::to_string).collect();
            let more = if outliers.len() > shown.len() { ", ..." } else { "" };
            let _ = write!(out, "  (stands out: run {}{more})", shown.join(", "));
        }
        out.push('\n');
    }
    out.push('\n');
    out
}
