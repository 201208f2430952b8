//! perf's table.

use std::fmt::Write as _;

use kymo_perf::count::aggregate::{By, CountPlace};

use super::json::place_name;
use super::line::{Line, Value};

/// Columns of an event's name.
const NAME: usize = 32;
/// Columns of what is computed.
const METRIC: usize = 35;
/// Columns in its place where nothing was counted.
const NO_METRIC: usize = 28;
/// Columns of what a metric is.
const METRIC_UNIT: usize = 23;

/// What stands above the lines of intervals.
pub(super) fn heading(by: By, cgroups: bool) -> String {
    let place = match by {
        By::All => "            ",
        By::Cpu => "CPU                    ",
        By::Core => "core            cpus             ",
        By::Die => "die          cpus             ",
        By::Socket => "socket cpus             ",
        By::Node => "node   cpus             ",
        By::Cluster => "cluster              cpus             ",
        By::Cache(_) => "cache                  cpus             ",
        By::Thread => "            comm-pid                  ",
    };
    let behind = if cgroups { "                           cgroup" } else { "" };
    format!("#           time {place}counts unit events{behind}")
}

/// One line, without its end.
pub(super) fn line(line: &Line, unit_width: usize) -> String {
    let mut out = String::new();
    if let Some(time) = line.time_ns {
        out += &format!("{:>6}.{:09} ", time / 1_000_000_000, time % 1_000_000_000);
    }
    out += &place(line);
    let number = line.number();
    // Infallible: a String takes everything.
    let _ = write!(out, "{number:>18} {:unit_width$} {:NAME$}", line.unit, line.event);
    if let Some(cgroup) = &line.cgroup {
        let _ = write!(out, " {cgroup}");
    }
    let counted = matches!(line.value, Value::Number(_));
    match &line.metric {
        _ if !counted => out += &" ".repeat(NO_METRIC),
        None => out += &" ".repeat(METRIC),
        Some(metric) => {
            let _ = write!(out, " # {} {:METRIC_UNIT$}", metric.wide(), metric.unit);
        }
    }
    if counted {
        if let Some(noise) = line.noise.filter(|&noise| noise != 0.0) {
            let _ = write!(out, "  ( +-{noise:>6.2}% )");
        }
        if line.running_ns != line.enabled_ns {
            let _ = write!(out, "  ({:.2}%)", line.percent_running());
        }
    }
    out
}

fn place(line: &Line) -> String {
    match line.place {
        CountPlace::All => String::new(),
        CountPlace::Cpu(cpu) => format!("CPU{cpu:<7} "),
        CountPlace::Core(socket, die, core) => format!("S{socket}-D{die}-C{core:<8} {:>4} ", line.cpus),
        CountPlace::Die(socket, die) => format!("S{socket}-D{die:<8} {:>4} ", line.cpus),
        CountPlace::Socket(socket) => format!("S{socket:<5} {:>4} ", line.cpus),
        CountPlace::Node(node) => format!("N{node:<5} {:>4} ", line.cpus),
        CountPlace::Cluster(..) => format!("{:<16} {:>8} ", place_name(&line.place), line.cpus),
        CountPlace::Cache(..) => format!("{:<20} {:>6} ", place_name(&line.place), line.cpus),
        CountPlace::Thread(task) => format!("{:>16}-{task:<8} ", line.comm),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::stat::derived::Metric;

    fn counted(value: Value) -> Line {
        Line {
            time_ns: None,
            place: CountPlace::All,
            comm: String::new(),
            cpus: 1,
            event: "cycles".into(),
            unit: String::new(),
            value,
            fraction: false,
            running_ns: 2.0,
            enabled_ns: 3.0,
            noise: None,
            metric: Some(Metric { value: 3.0, digits: 3, suffix: "", unit: "GHz".into() }),
            cgroup: None,
        }
    }

    /// Checks the columns of perf 6.1: a count of a part of the time with its share, repetitions with their error, places, and what was not
    /// counted.
    #[test]
    fn columns() {
        let shared = counted(Value::Number(1500.0));
        let expected = "              1500      cycles                           #    3.000 GHz                      (66.67%)";
        assert_eq!(line(&shared, 4), expected);
        let mut repeated = Line { noise: Some(1.5), enabled_ns: 2.0, ..shared.clone() };
        assert!(
            line(&repeated, 4).ends_with("GHz                      ( +-  1.50% )"),
            "{}",
            line(&repeated, 4)
        );
        repeated.noise = Some(0.0);
        assert!(line(&repeated, 4).ends_with("GHz                    "));
        let none = line(&Line { metric: None, ..counted(Value::NotCounted) }, 4);
        assert_eq!(none, format!("     <not counted>      {:60}", "cycles"));
        for (place, prefix) in [
            (CountPlace::Cpu(3), "CPU3       "),
            (CountPlace::Core(0, 0, 1), "S0-D0-C1           1 "),
            (CountPlace::Socket(0), "S0        1 "),
            (CountPlace::Thread(77), "                -77       "),
        ] {
            let placed = line(&Line { place, ..shared.clone() }, 4);
            assert_eq!(placed, format!("{prefix}{expected}"));
        }
    }
}
