//! Tasks as a line of JSON. docs/reference/formats/tasks-json.md has every key.
use kymo_agent::table::{GroupRow, TaskRow};
use serde_json::{Map, Value, json};

use super::Shown;

pub(super) fn line(shown: &Shown<'_>) -> Value {
    let groups: Vec<Value> = shown.frame.groups.iter().map(group).collect();
    json!({
        "schema": "kymo-stat-tasks",
        "schema_version": 1,
        "pid": shown.pid,
        "time_ns": shown.frame.time_ns,
        "span_ns": shown.span_ns,
        "last": shown.frame.last,
        "problem": (!shown.frame.problem.is_empty()).then_some(&shown.frame.problem),
        "groups": groups,
    })
}

fn group(group: &GroupRow) -> Value {
    let tasks: Vec<Value> = group.tasks.iter().map(|row| task(group, row)).collect();
    let mut object = numbers(group, &group.own, &group.counts);
    object.insert("number".into(), group.number.into());
    object.insert("name".into(), group.name.as_str().into());
    object.insert("per_task".into(), group.per_task.into());
    object.insert("spawned".into(), group.spawned.into());
    object.insert("tasks".into(), tasks.into());
    object.into()
}

fn task(group: &GroupRow, task: &TaskRow) -> Value {
    let mut object = numbers(group, &task.own, &task.counts);
    object.insert("number".into(), task.number.into());
    object.insert("name".into(), task.name.as_str().into());
    object.insert("running".into(), task.running.into());
    object.into()
}

fn numbers(group: &GroupRow, own: &[u64; 4], counts: &[Option<u64>]) -> Map<String, Value> {
    let mut object = Map::new();
    for (name, value) in ["polls", "switches", "migrations", "uncounted"].into_iter().zip(own) {
        object.insert(name.into(), (*value).into());
    }
    let counts = group.counters.iter().zip(counts);
    let counts: Map<String, Value> = counts.map(|(name, count)| (name.clone(), json!(count))).collect();
    object.insert("counts".into(), counts.into());
    object
}
