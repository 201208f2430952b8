//! JSON lines with perf's keys.

use kymo_perf::count::aggregate::CountPlace;

use super::line::{Line, Value};

/// A place that is no CPU and no thread, as perf writes it in CSV and JSON.
pub(super) fn place_name(place: &CountPlace) -> String {
    match place {
        CountPlace::Core(socket, die, core) => format!("S{socket}-D{die}-C{core}"),
        CountPlace::Die(socket, die) => format!("S{socket}-D{die}"),
        CountPlace::Socket(socket) => format!("S{socket}"),
        CountPlace::Node(node) => format!("N{node}"),
        CountPlace::Cluster(socket, die, cluster) => format!("S{socket}-D{die}-CLS{cluster}"),
        CountPlace::Cache(socket, die, level, id) => format!("S{socket}-D{die}-L{level}-ID{id}"),
        CountPlace::All | CountPlace::Cpu(_) | CountPlace::Thread(_) => String::new(),
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// One object, without the end of its line.
pub(super) fn line(line: &Line) -> String {
    let mut members: Vec<(&str, String)> = Vec::new();
    if let Some(time) = line.time_ns {
        members.push(("interval", format!("{}.{:09}", time / 1_000_000_000, time % 1_000_000_000)));
    }
    let key = match line.place {
        CountPlace::All => None,
        CountPlace::Cpu(cpu) => Some(("cpu", quoted(&cpu.to_string()))),
        CountPlace::Thread(task) => Some(("thread", quoted(&format!("{}-{task}", line.comm)))),
        CountPlace::Core(..) => Some(("core", quoted(&place_name(&line.place)))),
        CountPlace::Die(..) => Some(("die", quoted(&place_name(&line.place)))),
        CountPlace::Socket(_) => Some(("socket", quoted(&place_name(&line.place)))),
        CountPlace::Node(_) => Some(("node", quoted(&place_name(&line.place)))),
        CountPlace::Cluster(..) => Some(("cluster", quoted(&place_name(&line.place)))),
        CountPlace::Cache(..) => Some(("cache", quoted(&place_name(&line.place)))),
    };
    let summed = !matches!(line.place, CountPlace::All | CountPlace::Cpu(_) | CountPlace::Thread(_));
    members.extend(key);
    members.extend(summed.then(|| ("aggregate-number", line.cpus.to_string())));
    members.push((
        "counter-value",
        match line.value {
            Value::NotSupported => quoted("<not supported>"),
            Value::NotCounted => quoted("<not counted>"),
            Value::Number(value) => quoted(&format!("{value:.6}")),
        },
    ));
    members.push(("unit", quoted(&line.unit)));
    members.push(("event", quoted(&line.event)));
    members.extend(line.cgroup.as_ref().map(|cgroup| ("cgroup", quoted(cgroup))));
    members.extend(line.noise.map(|noise| ("variance", format!("{noise:.2}"))));
    members.push(("event-runtime", format!("{:.0}", line.running_ns)));
    members.push(("pcnt-running", format!("{:.2}", line.percent_running())));
    let metric = line.metric.as_ref().filter(|_| matches!(line.value, Value::Number(_)));
    members.push(("metric-value", format!("{:.6}", metric.map_or(0.0, |metric| metric.value))));
    members.push(("metric-unit", quoted(metric.map_or("", |metric| &metric.unit))));
    let members: Vec<String> = members.iter().map(|(key, value)| format!("\"{key}\" : {value}")).collect();
    format!("{{{}}}", members.join(", "))
}
