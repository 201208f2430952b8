//! Metrics that have a name (`kymo stat -M`): those of perf that need software events only, which
//! every machine has.

/// A metric: what one event's count says per second of CPU time, or CPU time per time elapsed.
#[derive(Debug, PartialEq, Eq)]
pub struct NamedMetric {
    /// perf's name.
    pub name: &'static str,
    /// perf's unit.
    unit: &'static str,
    /// The counted event; `None` is the clock of CPU time itself.
    event: Option<&'static str>,
}

/// All of them, by name.
const METRICS: &[NamedMetric] = &[
    NamedMetric { name: "CPUs_utilized", unit: "CPUs", event: None },
    NamedMetric { name: "cs_per_second", unit: "cs/sec", event: Some("context-switches") },
    NamedMetric { name: "migrations_per_second", unit: "migrations/sec", event: Some("cpu-migrations") },
    NamedMetric { name: "page_faults_per_second", unit: "faults/sec", event: Some("page-faults") },
];

/// The metric with this name.
///
/// # Errors
/// A sentence that names those that exist.
pub fn find(name: &str) -> Result<&'static NamedMetric, String> {
    METRICS.iter().find(|metric| metric.name.eq_ignore_ascii_case(name)).ok_or_else(|| {
        let names: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
        format!(
            "Cannot find metric or group `{name}': there are {}, and no tables of vendors' metrics; instructions per cycle, \
             shares of misses and rates are printed behind the counts (-d: more of them)",
            names.join(", ")
        )
    })
}

/// The events that some metrics need, each with the metric that is printed behind it. The clock of
/// CPU time, which each of them needs, is the last one.
pub fn events(
    metrics: &[&'static NamedMetric],
    clock: &'static str,
) -> Vec<(&'static str, Option<&'static NamedMetric>)> {
    let mut events: Vec<(&'static str, Option<&'static NamedMetric>)> = Vec::new();
    for &metric in metrics {
        let Some(event) = metric.event else { continue };
        if !events.contains(&(event, Some(metric))) {
            events.push((event, Some(metric)));
        }
    }
    if !metrics.is_empty() {
        events.push((clock, metrics.iter().copied().find(|metric| metric.event.is_none())));
    }
    events
}

impl NamedMetric {
    /// The value, from the count of its event, CPU time and time elapsed; `None` where the divisor
    /// is nothing.
    pub fn value(&self, count: f64, clock_ns: f64, elapsed_ns: f64) -> Option<f64> {
        let (part, whole) = match self.event {
            Some(_) => (count * 1e9, clock_ns),
            None => (clock_ns, elapsed_ns),
        };
        (whole > 0.0).then(|| part / whole)
    }

    /// What stands behind the value, as in perf 7.
    pub fn label(&self) -> String {
        format!("{}  {}", self.unit, self.name)
    }

    /// Digits behind the point.
    pub fn digits(&self) -> usize {
        if self.event.is_some() { 1 } else { 3 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which events are counted, that the clock is counted once and last, and the values.
    #[test]
    fn events_and_values() {
        let faults = find("page_faults_per_second").expect("a metric of perf");
        let cpus = find("cpus_utilized").expect("names have no case");
        assert_eq!(
            events(&[cpus, faults, faults], "task-clock"),
            [("page-faults", Some(faults)), ("task-clock", Some(cpus))]
        );
        assert_eq!(events(&[faults], "cpu-clock"), [("page-faults", Some(faults)), ("cpu-clock", None)]);
        assert_eq!(events(&[], "cpu-clock"), []);
        assert_eq!(faults.value(50.0, 5e8, 1e9), Some(100.0));
        assert_eq!(faults.value(50.0, 0.0, 1e9), None);
        assert_eq!(cpus.value(5e8, 5e8, 1e9), Some(0.5));
        assert_eq!(faults.label(), "faults/sec  page_faults_per_second");
        let words = find("ipc").expect_err("no metric of perf");
        assert!(words.contains("`ipc'") && words.contains("cs_per_second"), "{words}");
    }
}
