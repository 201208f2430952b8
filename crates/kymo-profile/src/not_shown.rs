//! What a recording has besides its samples' stacks, and tables do not show.
use kymo_data::abi::{
    PERF_RECORD_AUXTRACE, PERF_RECORD_AUXTRACE_INFO, PERF_SAMPLE_BRANCH_CALL_STACK, PERF_SAMPLE_BRANCH_STACK,
    PERF_SAMPLE_PHYS_ADDR, PERF_SAMPLE_WEIGHT, PERF_SAMPLE_WEIGHT_STRUCT,
};
use kymo_data::{Event, Recording};
use std::collections::BTreeMap;

/// Names of the units that write traces, as `perf list` has them.
const TRACES: [&str; 6] = ["intel_pt", "intel_bts", "cs_etm", "arm_spe", "hisi_ptt", "s390_cf"];

/// What is recorded and not shown, if there is any: one sentence. `by_type`: how many records of
/// each type there are.
pub fn not_shown(recording: &Recording, by_type: &BTreeMap<u32, u64>) -> Option<String> {
    let events = &recording.events.list;
    let any = |has: &dyn Fn(&Event) -> bool| events.iter().any(has);
    let mut parts: Vec<(String, &str)> = Vec::new();
    // Call stacks of the processor are shown as such.
    let has_branches = |event: &Event| {
        event.attr.sample_type & PERF_SAMPLE_BRANCH_STACK != 0
            && event.attr.branch_sample_type & PERF_SAMPLE_BRANCH_CALL_STACK == 0
    };
    if any(&has_branches) {
        parts.push(("branch stacks".to_owned(), "`perf report -b`"));
    }
    // perf asks for the source alone whenever it asks for data addresses.
    let memory = PERF_SAMPLE_WEIGHT | PERF_SAMPLE_WEIGHT_STRUCT | PERF_SAMPLE_PHYS_ADDR;
    if any(&|event: &Event| event.attr.sample_type & memory != 0) {
        parts.push(("latencies of memory accesses".to_owned(), "`perf mem report`"));
    }
    let has_trace = |kind: u32| by_type.get(&kind).is_some_and(|count| *count > 0);
    if has_trace(PERF_RECORD_AUXTRACE) || has_trace(PERF_RECORD_AUXTRACE_INFO) {
        let is_trace = |event: &&Event| TRACES.iter().any(|name| event.name.starts_with(name));
        let of = events.iter().find(is_trace).map_or_else(String::new, |event| format!(" ({})", event.name));
        parts.push((format!("a hardware trace{of}"), "`perf script --itrace`"));
    }
    if parts.is_empty() {
        return None;
    }
    let (what, with): (Vec<String>, Vec<&str>) = parts.into_iter().unzip();
    Some(format!(
        "the recording also has {}, which kymo does not show: use {}",
        what.join(" and "),
        with.join(" and ")
    ))
}
