//! Tracepoints of the scheduler as typed events, by the formats that the recording carries.
//!
//! Kernels differ in the places of fields and in the letters of `prev_state`; both come from the
//! format, and nothing is assumed of a kernel's version.
use super::event::{OutState, SchedEventKind, SwitchedIn, SwitchedOut, TaskName, WakeupStep};
use kymo_data::tracing_data::{Field, Format, TracingData, Value};
use kymo_data::{Event, abi};

/// The fields of one tracepoint.
#[derive(Debug)]
pub(super) enum Decoder {
    Switch(Box<SwitchFields>),
    Wakeup { step: WakeupStep, name: Option<Field>, tid: Field, cpu: Option<Field>, flags: Option<Field> },
    Migrate { tid: Field, from: Field, to: Field },
    Fork { parent: Field, child: Field },
    Exit { tid: Field },
    Runtime { tid: Field, runtime: Field },
}

#[derive(Debug)]
pub(super) struct SwitchFields {
    prev_name: Option<Field>,
    prev_tid: Field,
    prev_state: Field,
    prev_priority: Option<Field>,
    next_name: Option<Field>,
    next_tid: Field,
    next_priority: Option<Field>,
    /// The bit that each letter stands for, lowest first.
    letters: Vec<(u64, char)>,
}

/// What the kernel shows of `prev_state` since 4.14, for a format whose letters cannot be read.
const LETTERS: [(u64, char); 8] =
    [(0x1, 'S'), (0x2, 'D'), (0x4, 'T'), (0x8, 't'), (0x10, 'X'), (0x20, 'Z'), (0x40, 'P'), (0x80, 'I')];

impl Decoder {
    /// The decoder of an event, if it is one of the scheduler's that are understood.
    pub(super) fn of(event: &Event, formats: &TracingData) -> Option<Decoder> {
        if event.attr.kind != abi::PERF_TYPE_TRACEPOINT {
            return None;
        }
        let format = formats.format(event.attr.config).filter(|format| format.system == "sched")?;
        let field = |name: &str| format.field(name).cloned();
        let wakeup = |step| {
            let flags = field("common_flags");
            let (name, cpu) = (field("comm"), field("target_cpu"));
            Some(Decoder::Wakeup { step, name, tid: field("pid")?, cpu, flags })
        };
        match format.name.as_str() {
            "sched_switch" => Some(Decoder::Switch(Box::new(SwitchFields::of(format)?))),
            "sched_waking" => wakeup(WakeupStep::Waking),
            "sched_wakeup" => wakeup(WakeupStep::Enqueued),
            "sched_wakeup_new" => wakeup(WakeupStep::New),
            "sched_migrate_task" => Some(Decoder::Migrate {
                tid: field("pid")?,
                from: field("orig_cpu")?,
                to: field("dest_cpu")?,
            }),
            "sched_process_fork" => {
                Some(Decoder::Fork { parent: field("parent_pid")?, child: field("child_pid")? })
            }
            "sched_process_exit" => Some(Decoder::Exit { tid: field("pid")? }),
            "sched_stat_runtime" => Some(Decoder::Runtime { tid: field("pid")?, runtime: field("runtime")? }),
            _ => None,
        }
    }

    /// The event in the raw bytes of a sample; `None` when they end before its fields do.
    pub(super) fn decode(&self, raw: &[u8]) -> Option<SchedEventKind> {
        Some(match self {
            Decoder::Switch(fields) => fields.decode(raw)?,
            Decoder::Wakeup { step, name, tid, cpu, flags } => SchedEventKind::Wakeup {
                step: *step,
                tid: task(tid, raw)?,
                name: task_name(name.as_ref(), raw),
                target_cpu: cpu.as_ref().and_then(|cpu| u32::try_from(number(cpu, raw)?).ok()),
                in_interrupt: flags.as_ref().and_then(|flags| number(flags, raw)).is_some_and(in_interrupt),
            },
            Decoder::Migrate { tid, from, to } => SchedEventKind::Migrate {
                tid: task(tid, raw)?,
                from_cpu: u32::try_from(number(from, raw)?).ok()?,
                to_cpu: u32::try_from(number(to, raw)?).ok()?,
            },
            Decoder::Fork { parent, child } => {
                SchedEventKind::Fork { tid: task(child, raw)?, pid: None, parent_tid: task(parent, raw)? }
            }
            Decoder::Exit { tid } => SchedEventKind::Exit { tid: task(tid, raw)? },
            Decoder::Runtime { tid, runtime } => SchedEventKind::Runtime {
                tid: task(tid, raw)?,
                runtime_ns: number(runtime, raw)?.cast_unsigned(),
            },
        })
    }
}

impl SwitchFields {
    fn of(format: &Format) -> Option<SwitchFields> {
        let field = |name: &str| format.field(name).cloned();
        let mut letters = state_letters(&format.print_fmt);
        if letters.is_empty() {
            letters = LETTERS.to_vec();
        }
        Some(SwitchFields {
            prev_name: field("prev_comm"),
            prev_tid: field("prev_pid")?,
            prev_state: field("prev_state")?,
            prev_priority: field("prev_prio"),
            next_name: field("next_comm"),
            next_tid: field("next_pid")?,
            next_priority: field("next_prio"),
            letters,
        })
    }

    fn decode(&self, raw: &[u8]) -> Option<SchedEventKind> {
        let state = number(&self.prev_state, raw)?.cast_unsigned();
        let prev = SwitchedOut {
            tid: task(&self.prev_tid, raw)?,
            name: task_name(self.prev_name.as_ref(), raw),
            state: self.state(state),
            priority: priority(self.prev_priority.as_ref(), raw),
        };
        let next = SwitchedIn {
            tid: task(&self.next_tid, raw)?,
            pid: None,
            name: task_name(self.next_name.as_ref(), raw),
            priority: priority(self.next_priority.as_ref(), raw),
        };
        Some(SchedEventKind::Switch { prev: Some(prev), next: Some(next) })
    }

    /// The lowest bit that has a letter names the state, as in perf. The kernel tells a preemption
    /// by a bit above all letters.
    fn state(&self, bits: u64) -> OutState {
        let letter = self.letters.iter().find(|(bit, _)| bits & bit != 0).map(|(_, letter)| *letter);
        let above = self.letters.last().map_or(0, |(bit, _)| !(bit | (bit - 1)));
        OutState { letter: letter.unwrap_or('R'), preempted: bits & above != 0 }
    }
}

/// The letters of a state in the print format of `sched_switch`: pairs such as `{ 0x0001, "S" }`,
/// ordered by their bits.
fn state_letters(print_format: &str) -> Vec<(u64, char)> {
    let mut letters: Vec<(u64, char)> = print_format
        .split('{')
        .skip(1)
        .filter_map(|pair| {
            let (bit, name) = pair.split_once('}')?.0.split_once(',')?;
            let bit = bit.trim();
            let bit = match bit.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok()?,
                None => bit.parse().ok()?,
            };
            let letter = name.trim().trim_matches('"').chars().next()?;
            bit.is_power_of_two().then_some((bit, letter))
        })
        .collect();
    letters.sort_unstable();
    letters
}

/// Whether the flags of a tracepoint tell of an interrupt: hard, soft, or one that cannot be
/// masked.
fn in_interrupt(flags: i64) -> bool {
    const HARD: i64 = 0x08;
    const SOFT: i64 = 0x10;
    const UNMASKABLE: i64 = 0x40;
    flags & (HARD | SOFT | UNMASKABLE) != 0
}

fn number(field: &Field, raw: &[u8]) -> Option<i64> {
    match field.value(raw)? {
        Value::Unsigned(value) => Some(value.cast_signed()),
        Value::Signed(value) => Some(value),
        Value::Text(_) | Value::Bytes(_) => None,
    }
}

fn task(field: &Field, raw: &[u8]) -> Option<i32> {
    i32::try_from(number(field, raw)?).ok()
}

fn priority(field: Option<&Field>, raw: &[u8]) -> i32 {
    field.and_then(|field| task(field, raw)).unwrap_or(-1)
}

fn task_name(field: Option<&Field>, raw: &[u8]) -> TaskName {
    match field.and_then(|field| field.value(raw)) {
        Some(Value::Text(text) | Value::Bytes(text)) => TaskName::new(text),
        _ => TaskName::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The print format of Linux 4.9, of 4.14, and one that names no letters.
    const OLD: &str = r#"REC->prev_state & (1024-1) ? __print_flags(REC->prev_state & (1024-1), "|", { 1, "S"} , { 2, "D" }, { 4, "T" }, { 8, "t" }, { 16, "Z" }, { 32, "X" }, { 64, "x" }, { 128, "K"}, { 256, "W" }, { 512, "P" }, { 1024, "N" }) : "R", REC->prev_state & 2048 ? "+" : """#;
    const NEW: &str = r#"__print_flags(REC->prev_state & 0xff, "|", { 0x00000001, "S" }, { 0x00000002, "D" }, { 0x00000004, "T" }, { 0x00000008, "t" }, { 0x00000010, "X" }, { 0x00000020, "Z" }, { 0x00000040, "P" }, { 0x00000080, "I" }) : "R", REC->prev_state & 0x100 ? "+" : """#;

    fn switch_fields(print_fmt: &str) -> SwitchFields {
        let text = format!(
            "name: sched_switch\nID: 1\nformat:\n\
             \tfield:pid_t prev_pid;\toffset:0;\tsize:4;\tsigned:1;\n\
             \tfield:long prev_state;\toffset:8;\tsize:8;\tsigned:1;\n\
             \tfield:pid_t next_pid;\toffset:16;\tsize:4;\tsigned:1;\n\nprint fmt: {print_fmt}\n"
        );
        SwitchFields::of(&Format::parse("sched", text.as_bytes()).unwrap()).unwrap()
    }

    /// Checks that states are named by the kernel that was recorded: their bits have changed.
    #[test]
    fn states_are_named_by_the_recorded_kernel() {
        let state = |fields: &SwitchFields, bits| {
            let state = fields.state(bits);
            (state.letter, state.preempted)
        };
        let (old, new, none) = (switch_fields(OLD), switch_fields(NEW), switch_fields("\"\""));
        assert_eq!([0, 1, 2, 16, 2048].map(|bits| state(&old, bits)), {
            [('R', false), ('S', false), ('D', false), ('Z', false), ('R', true)]
        });
        for fields in [&new, &none] {
            assert_eq!([0, 1, 0x10, 0x80, 0x100, 0x82].map(|bits| state(fields, bits)), {
                [('R', false), ('S', false), ('X', false), ('I', false), ('R', true), ('D', false)]
            });
        }
    }

    /// Checks that raw bytes of any length that end within the fields are no event.
    #[test]
    fn short_samples_are_no_events() {
        let fields = switch_fields(NEW);
        let raw = [7_u8; 20];
        assert!((0..20).all(|len| fields.decode(&raw[..len]).is_none()));
        assert!(fields.decode(&raw).is_some());
    }
}
