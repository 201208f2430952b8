//! The events of a recording with their settings, as `perf evlist` prints them.
use crate::text::shown;
use kymo_data::{Attr, Event, Recording, abi, tracing_data};
use std::io::{self, Write};

/// What [`write_events`] prints of each event besides its name.
#[derive(Debug, Clone, Copy, Default)]
pub struct EventList {
    /// The frequency or period.
    pub frequency: bool,
    /// All settings that are not zero.
    pub settings: bool,
    /// Events of one group on one line.
    pub groups: bool,
    /// The names of a tracepoint's fields.
    pub fields: bool,
}

/// Names of the bits of `sample_type`, in the order in which perf prints them.
const SAMPLE_BITS: [(u64, &str); 25] = [
    (abi::PERF_SAMPLE_IP, "IP"),
    (abi::PERF_SAMPLE_TID, "TID"),
    (abi::PERF_SAMPLE_TIME, "TIME"),
    (abi::PERF_SAMPLE_ADDR, "ADDR"),
    (abi::PERF_SAMPLE_READ, "READ"),
    (abi::PERF_SAMPLE_CALLCHAIN, "CALLCHAIN"),
    (abi::PERF_SAMPLE_ID, "ID"),
    (abi::PERF_SAMPLE_CPU, "CPU"),
    (abi::PERF_SAMPLE_PERIOD, "PERIOD"),
    (abi::PERF_SAMPLE_STREAM_ID, "STREAM_ID"),
    (abi::PERF_SAMPLE_RAW, "RAW"),
    (abi::PERF_SAMPLE_BRANCH_STACK, "BRANCH_STACK"),
    (abi::PERF_SAMPLE_REGS_USER, "REGS_USER"),
    (abi::PERF_SAMPLE_STACK_USER, "STACK_USER"),
    (abi::PERF_SAMPLE_IDENTIFIER, "IDENTIFIER"),
    (abi::PERF_SAMPLE_REGS_INTR, "REGS_INTR"),
    (abi::PERF_SAMPLE_DATA_SRC, "DATA_SRC"),
    (abi::PERF_SAMPLE_WEIGHT, "WEIGHT"),
    (abi::PERF_SAMPLE_PHYS_ADDR, "PHYS_ADDR"),
    (abi::PERF_SAMPLE_AUX, "AUX"),
    (abi::PERF_SAMPLE_CGROUP, "CGROUP"),
    (abi::PERF_SAMPLE_DATA_PAGE_SIZE, "DATA_PAGE_SIZE"),
    (abi::PERF_SAMPLE_CODE_PAGE_SIZE, "CODE_PAGE_SIZE"),
    (abi::PERF_SAMPLE_WEIGHT_STRUCT, "WEIGHT_STRUCT"),
    (abi::PERF_SAMPLE_TRANSACTION, "TRANSACTION"),
];

const READ_BITS: [(u64, &str); 5] = [
    (abi::PERF_FORMAT_TOTAL_TIME_ENABLED, "TOTAL_TIME_ENABLED"),
    (abi::PERF_FORMAT_TOTAL_TIME_RUNNING, "TOTAL_TIME_RUNNING"),
    (abi::PERF_FORMAT_ID, "ID"),
    (abi::PERF_FORMAT_GROUP, "GROUP"),
    (abi::PERF_FORMAT_LOST, "LOST"),
];

/// Names of the bits of `flags` from bit 0 on, as in the kernel's `perf_event_attr`. `precise_ip` has two bits.
const FLAGS: [&str; 40] = [
    "disabled",
    "inherit",
    "pinned",
    "exclusive",
    "exclude_user",
    "exclude_kernel",
    "exclude_hv",
    "exclude_idle",
    "mmap",
    "comm",
    "freq",
    "inherit_stat",
    "enable_on_exec",
    "task",
    "watermark",
    "precise_ip",
    "",
    "mmap_data",
    "sample_id_all",
    "exclude_host",
    "exclude_guest",
    "exclude_callchain_kernel",
    "exclude_callchain_user",
    "mmap2",
    "comm_exec",
    "use_clockid",
    "context_switch",
    "write_backward",
    "namespaces",
    "ksymbol",
    "bpf_event",
    "aux_output",
    "cgroup",
    "text_poke",
    "build_id",
    "inherit_thread",
    "remove_on_exec",
    "sigtrap",
    "defer_callchain",
    "defer_output",
];

const TYPES: [&str; 6] = ["HARDWARE", "SOFTWARE", "TRACEPOINT", "HW_CACHE", "RAW", "BREAKPOINT"];
const HARDWARE: [&str; 10] = [
    "CPU_CYCLES",
    "INSTRUCTIONS",
    "CACHE_REFERENCES",
    "CACHE_MISSES",
    "BRANCH_INSTRUCTIONS",
    "BRANCH_MISSES",
    "BUS_CYCLES",
    "STALLED_CYCLES_FRONTEND",
    "STALLED_CYCLES_BACKEND",
    "REF_CPU_CYCLES",
];
const SOFTWARE: [&str; 12] = [
    "CPU_CLOCK",
    "TASK_CLOCK",
    "PAGE_FAULTS",
    "CONTEXT_SWITCHES",
    "CPU_MIGRATIONS",
    "PAGE_FAULTS_MIN",
    "PAGE_FAULTS_MAJ",
    "ALIGNMENT_FAULTS",
    "EMULATION_FAULTS",
    "DUMMY",
    "BPF_OUTPUT",
    "CGROUP_SWITCHES",
];

/// The settings of an event that are not zero, each as name and value, in perf's order. `name` is the event's.
pub(super) fn settings(recording: &Recording, attr: &Attr, name: &str) -> Vec<(&'static str, String)> {
    let mut out = vec![("type", kind(recording, attr.kind))];
    let mut put = |name, value: u64| {
        if value != 0 {
            out.push((name, value.to_string()));
        }
    };
    put("size", attr.size.into());
    out.push(("config", config(attr, name)));
    let mut put = |name, value: String| {
        if !matches!(&value[..], "" | "0") {
            out.push((name, value));
        }
    };
    put("{ sample_period, sample_freq }", attr.sample_period.to_string());
    put("sample_type", bits(attr.sample_type, &SAMPLE_BITS));
    put("read_format", bits(attr.read_format, &READ_BITS));
    for (bit, name) in FLAGS.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
        let value = match *name {
            "precise_ip" => attr.precise_ip().into(),
            _ => attr.flags >> bit & 1,
        };
        put(name, value.to_string());
    }
    let hex = |value: u64| if value == 0 { String::new() } else { format!("{value:#x}") };
    put("{ wakeup_events, wakeup_watermark }", attr.wakeup.to_string());
    put("bp_type", attr.bp_type.to_string());
    put("{ bp_addr, config1 }", hex(attr.config1));
    put("{ bp_len, config2 }", hex(attr.config2));
    put("branch_sample_type", hex(attr.branch_sample_type));
    put("sample_regs_user", hex(attr.sample_regs_user));
    put("sample_stack_user", attr.sample_stack_user.to_string());
    put("clockid", attr.clockid.to_string());
    put("sample_regs_intr", hex(attr.sample_regs_intr));
    put("aux_watermark", attr.aux_watermark.to_string());
    put("sample_max_stack", attr.sample_max_stack.to_string());
    put("aux_sample_size", attr.aux_sample_size.to_string());
    put("sig_data", attr.sig_data.to_string());
    out
}

fn kind(recording: &Recording, kind: u32) -> String {
    let known = TYPES.get(kind as usize).map(|name| format!("PERF_TYPE_{name}"));
    let dynamic = || {
        let mapping = recording.features.pmu_mappings.iter().find(|(number, _)| *number == kind)?;
        Some(shown(&mapping.1).into_owned())
    };
    match known.or_else(dynamic) {
        Some(name) => format!("{kind} ({name})"),
        None => kind.to_string(),
    }
}

fn config(attr: &Attr, event: &str) -> String {
    let number = if attr.config == 0 { "0".to_owned() } else { format!("{:#x}", attr.config) };
    let nth = |names: &[&str], prefix: &str| {
        let name = usize::try_from(attr.config).ok().and_then(|at| names.get(at))?;
        Some(format!("PERF_COUNT_{prefix}_{name}"))
    };
    let name = match attr.kind {
        abi::PERF_TYPE_HARDWARE => nth(&HARDWARE, "HW"),
        abi::PERF_TYPE_SOFTWARE => nth(&SOFTWARE, "SW"),
        abi::PERF_TYPE_TRACEPOINT => {
            Some(shown(event.split_once("/").map_or(event, |(head, _)| head)).into_owned())
        }
        _ => None,
    };
    match name {
        Some(name) => format!("{number} ({name})"),
        None => number,
    }
}

fn bits(value: u64, names: &[(u64, &str)]) -> String {
    let set: Vec<&str> = names.iter().filter(|(bit, _)| value & bit != 0).map(|(_, name)| *name).collect();
    set.join("|")
}

/// Writes one line for each event, or for each group.
///
/// # Errors
/// Those of the writer.
pub fn write_events(out: &mut dyn Write, recording: &Recording, list: EventList) -> io::Result<()> {
    let events = &recording.events.list;
    if list.groups {
        return write_groups(out, events);
    }
    let formats = recording.features.tracing_data.as_deref().and_then(|blob| tracing_data::parse(blob).ok());
    for event in events {
        let attr = &event.attr;
        write!(out, "{}", shown(&event.name))?;
        if list.fields {
            let fields = formats.as_ref().filter(|_| attr.kind == abi::PERF_TYPE_TRACEPOINT);
            match fields.and_then(|data| data.format(attr.config)) {
                Some(format) => {
                    // The fields that all tracepoints share are left out.
                    let own = format.fields.iter().filter(|field| !field.name.starts_with("common_"));
                    let names: Vec<_> = own.map(|field| shown(&field.name)).collect();
                    write!(out, ": trace_fields: {}", names.join(","))?;
                }
                None => write!(out, ": (not a tracepoint)")?,
            }
        } else if list.settings {
            let all = settings(recording, attr, &event.name);
            let all: Vec<String> = all.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            write!(out, ": {}", all.join(", "))?;
        } else if list.frequency {
            let term = if attr.freq().is_some() { "sample_freq" } else { "sample_period" };
            write!(out, ": {term}={}", attr.sample_period)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Members follow their leader.
fn write_groups(out: &mut dyn Write, events: &[Event]) -> io::Result<()> {
    for (index, event) in events.iter().enumerate() {
        if event.leader != index {
            continue;
        }
        let names = events.iter().filter(|member| member.leader == index).map(|member| shown(&member.name));
        let names: Vec<_> = names.collect();
        let group = event.group_name.as_deref().map(shown).unwrap_or_default();
        match &names[..] {
            [alone] => writeln!(out, "{alone}")?,
            _ => writeln!(out, "{group}{{{}}}", names.join(","))?,
        }
    }
    Ok(())
}
