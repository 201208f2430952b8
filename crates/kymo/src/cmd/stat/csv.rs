//! perf's fields with a separator: place, value, unit, event, (cgroup,) (noise,) time running, share running, metric, its unit.

use kymo_perf::count::aggregate::CountPlace;

use super::line::{Line, Value};

/// One line, without its end.
pub(super) fn line(line: &Line, separator: &str, repeated: bool) -> String {
    let mut fields: Vec<String> = Vec::new();
    if let Some(time) = line.time_ns {
        fields.push(format!("{:>6}.{:09}", time / 1_000_000_000, time % 1_000_000_000));
    }
    match line.place {
        CountPlace::All => {}
        CountPlace::Cpu(cpu) => fields.push(format!("CPU{cpu}")),
        CountPlace::Thread(task) => fields.push(format!("{}-{task}", line.comm)),
        _ => fields.extend([super::json::place_name(&line.place), line.cpus.to_string()]),
    }
    fields.push(line.number());
    fields.extend([line.unit.clone(), line.event.clone()]);
    fields.extend(line.cgroup.clone());
    if repeated {
        fields.push(format!("{:.2}%", line.noise.unwrap_or(0.0)));
    }
    fields.extend([format!("{:.0}", line.running_ns), format!("{:.2}", line.percent_running())]);
    match line.metric.as_ref().filter(|_| matches!(line.value, Value::Number(_))) {
        Some(metric) => fields.extend([metric.bare(), metric.unit.clone()]),
        None => fields.extend([String::new(), String::new()]),
    }
    fields.join(separator)
}
