//! `--metric-only`: what follows from the counts in columns, as perf prints it.

use kymo_perf::count::aggregate::CountPlace;

use super::derived::Metric;
use super::json::place_name;
use super::line::{Form, Line};

/// Columns of a metric.
const WIDTH: usize = 20;

/// Whether perf shows it alone: it leaves out rates and what depends on the time only, but not what
/// `-M` names, whose units end with that name.
fn is_shown(metric: &Metric) -> bool {
    !["/sec", "CPUs utilized", "Hz"].iter().any(|part| metric.unit.ends_with(part))
}

/// What the metric is called without its count.
fn name(line: &Line, metric: &Metric) -> String {
    if metric.unit.starts_with("of all") {
        format!("{} {}", line.event, metric.unit)
    } else {
        metric.unit.clone()
    }
}

fn shown(lines: &[Line]) -> impl Iterator<Item = (String, &Metric)> {
    lines.iter().filter_map(|line| {
        let metric = line.metric.as_ref().filter(|metric| is_shown(metric))?;
        Some((name(line, metric), metric))
    })
}

/// The text for all lines of one moment, which are sorted by event. `heading`: with the names.
pub(super) fn text(lines: &[Line], form: &Form, heading: bool) -> String {
    let mut places: Vec<(CountPlace, Vec<Line>)> = Vec::new();
    for line in lines {
        match places.iter_mut().find(|(place, _)| *place == line.place) {
            Some((_, own)) => own.push(line.clone()),
            None => places.push((line.place.clone(), vec![line.clone()])),
        }
    }
    let mut out = String::new();
    let names: Vec<String> =
        places.first().map(|(_, lines)| shown(lines).map(|(name, _)| name).collect()).unwrap_or_default();
    let timed = lines.first().is_some_and(|line| line.time_ns.is_some());
    if heading {
        match form {
            Form::Table => {
                let place = if timed { "#           time ".to_owned() } else { String::new() };
                let indent = places.first().map_or(0, |(_, lines)| placed(&lines[0]).len());
                out += &format!("{place}{:indent$}", "");
                names.iter().for_each(|name| out += &format!("{name:>WIDTH$} "));
                out.push('\n');
            }
            Form::Csv(separator) => {
                names.iter().for_each(|name| out += &format!("{name}{separator}"));
                out.push('\n');
            }
            Form::Json => {}
        }
    }
    for (_, lines) in &places {
        out += &row(lines, form);
        out.push('\n');
    }
    out
}

fn row(lines: &[Line], form: &Form) -> String {
    let first = &lines[0];
    let time = first.time_ns.map(|time| format!("{:>6}.{:09}", time / 1_000_000_000, time % 1_000_000_000));
    match form {
        Form::Table => {
            let mut out = time.map_or(String::new(), |time| time + " ") + &placed(first);
            shown(lines).for_each(|(_, metric)| out += &format!("{:>WIDTH$} ", metric.wide()));
            out
        }
        Form::Csv(separator) => {
            let mut fields: Vec<String> = time.into_iter().collect();
            if first.place != CountPlace::All {
                fields.push(placed(first).trim().to_owned());
            }
            fields.extend(shown(lines).map(|(_, metric)| metric.bare()));
            fields.iter().map(|field| format!("{field}{separator}")).collect()
        }
        Form::Json => {
            let quoted = |text: &str| serde_json::Value::from(text).to_string();
            let time = time.map(|time| format!("\"interval\" : {}", time.trim_start()));
            let place = Some(placed(first)).filter(|_| first.place != CountPlace::All);
            let place = place.map(|place| format!("\"place\" : {}", quoted(place.trim())));
            let metrics =
                shown(lines).map(|(name, metric)| format!("{} : {}", quoted(&name), quoted(&metric.bare())));
            format!("{{{}}}", time.into_iter().chain(place).chain(metrics).collect::<Vec<_>>().join(", "))
        }
    }
}

fn placed(line: &Line) -> String {
    match line.place {
        CountPlace::All => String::new(),
        CountPlace::Cpu(cpu) => format!("CPU{cpu:<7} "),
        CountPlace::Thread(task) => format!("{:>16}-{task:<8} ", line.comm),
        _ => format!("{:<16} {:>4} ", place_name(&line.place), line.cpus),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::stat::line::Value;

    fn line(event: &str, metric: (f64, &'static str, &str), cpu: i32) -> Line {
        let (value, suffix, unit) = metric;
        Line {
            time_ns: None,
            place: CountPlace::Cpu(cpu),
            comm: String::new(),
            cpus: 1,
            event: event.into(),
            unit: String::new(),
            value: Value::Number(1.0),
            fraction: false,
            running_ns: 1.0,
            enabled_ns: 1.0,
            noise: None,
            metric: Some(Metric { value, digits: 2, suffix, unit: unit.into() }),
            cgroup: None,
        }
    }

    /// Checks the columns, that rates are left out, and that misses are called after their event.
    #[test]
    fn columns() {
        let lines = [
            line("cycles", (3.0, "", "GHz"), 0),
            line("instructions", (1.5, " ", "insn per cycle"), 0),
            line("instructions", (0.5, " ", "insn per cycle"), 1),
            line("branch-misses", (2.0, "%", "of all branches"), 0),
            line("branch-misses", (4.0, "%", "of all branches"), 1),
        ];
        let table = text(&lines, &Form::Table, true);
        let expected = [
            "                 insn per cycle branch-misses of all branches ",
            "CPU0                   1.50                 2.00% ",
            "CPU1                   0.50                 4.00% ",
        ];
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(table.lines().map(words).collect::<Vec<_>>(), expected.map(words));
        assert_eq!(text(&lines[..2], &Form::Csv(";".into()), false), "CPU0;1.50;\n");
        assert_eq!(
            text(&lines[1..2], &Form::Json, true),
            "{\"place\" : \"CPU0\", \"insn per cycle\" : \"1.50\"}\n"
        );
    }
}
