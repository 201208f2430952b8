//! `-F`: what is printed of each sample, by perf's words.
use kymo_data::{Event, abi};

/// A part of a sample's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Field {
    /// Name of the thread.
    Comm,
    /// Process id.
    Pid,
    /// Thread id.
    Tid,
    /// CPU.
    Cpu,
    /// Letters for where the sample was taken: K is the kernel, U a program.
    Misc,
    /// Time, seconds.
    Time,
    /// Period.
    Period,
    /// Name of the event.
    Event,
    /// A tracepoint's own fields.
    Trace,
    /// Data address.
    Addr,
    /// Instruction pointer, or the call chain.
    Ip,
    /// Symbols with the addresses.
    Sym,
    /// Offsets with the symbols.
    SymOff,
    /// Modules with the addresses.
    Dso,
    /// Source lines after the addresses.
    SrcLine,
    /// Physical address of the data.
    PhysAddr,
    /// Path of the cgroup.
    Cgroup,
    /// Registers at the interrupt.
    InterruptRegisters,
    /// Registers of the program.
    UserRegisters,
}

/// All fields with their words.
const FIELDS: [(&str, Field); 19] = [
    ("comm", Field::Comm),
    ("pid", Field::Pid),
    ("tid", Field::Tid),
    ("cpu", Field::Cpu),
    ("misc", Field::Misc),
    ("time", Field::Time),
    ("period", Field::Period),
    ("event", Field::Event),
    ("trace", Field::Trace),
    ("addr", Field::Addr),
    ("ip", Field::Ip),
    ("sym", Field::Sym),
    ("symoff", Field::SymOff),
    ("dso", Field::Dso),
    ("srcline", Field::SrcLine),
    ("phys_addr", Field::PhysAddr),
    ("cgroup", Field::Cgroup),
    ("iregs", Field::InterruptRegisters),
    ("uregs", Field::UserRegisters),
];

/// A word that is no field, or fields that cannot be combined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// No such field.
    #[error("unknown field '{0}': the fields are {list}{reason}", list = listed(), reason = reason(.0))]
    Unknown(String),
    /// Some words change the usual fields, and others name all.
    #[error("-F {0}: give all fields with + or -, or none of them")]
    Mixed(String),
}

fn listed() -> String {
    FIELDS.map(|(word, _)| word).join(", ")
}

/// Why a field of perf is none here.
fn reason(word: &str) -> &'static str {
    match word {
        _ if word.starts_with("br") => "; kymo does not read branch stacks, `perf script` does",
        "insn" | "insnlen" | "disasm" => "; `perf script` prints instructions",
        "tod" => "; times are of the recording's clock",
        _ => "",
    }
}

impl std::str::FromStr for Field {
    type Err = FieldError;

    fn from_str(word: &str) -> Result<Field, FieldError> {
        let found = FIELDS.iter().find(|(name, _)| *name == word.trim());
        found.map(|(_, field)| *field).ok_or_else(|| FieldError::Unknown(word.trim().to_owned()))
    }
}

/// A set of fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FieldSet(u32);

impl FieldSet {
    /// Whether a field is printed.
    pub fn has(self, field: Field) -> bool {
        self.0 & 1 << field as u8 != 0
    }

    fn with(self, field: Field, on: bool) -> FieldSet {
        let bit = 1 << field as u8;
        FieldSet(if on { self.0 | bit } else { self.0 & !bit })
    }
}

impl FromIterator<Field> for FieldSet {
    fn from_iter<I: IntoIterator<Item = Field>>(fields: I) -> FieldSet {
        fields.into_iter().fold(FieldSet::default(), |set, field| set.with(field, true))
    }
}

/// Which events a rule is for: all, or those of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventKind {
    Hardware,
    Software,
    Tracepoint,
    Raw,
}

impl EventKind {
    fn is(self, event: &Event) -> bool {
        match self {
            EventKind::Hardware => event.attr.kind == abi::PERF_TYPE_HARDWARE,
            EventKind::Software => event.attr.kind == abi::PERF_TYPE_SOFTWARE,
            EventKind::Tracepoint => event.attr.kind == abi::PERF_TYPE_TRACEPOINT,
            EventKind::Raw => event.attr.kind == abi::PERF_TYPE_RAW,
        }
    }
}

/// What one `-F` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldRule {
    kind: Option<EventKind>,
    change: FieldChange,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum FieldChange {
    /// These and no others.
    Only(FieldSet),
    /// The usual ones with each of these added or taken away.
    Usual(Vec<(Field, bool)>),
}

impl FieldRule {
    /// These fields of every event, and no others.
    pub fn only(fields: impl IntoIterator<Item = Field>) -> FieldRule {
        FieldRule { kind: None, change: FieldChange::Only(fields.into_iter().collect()) }
    }

    /// Whether the field was asked for by its name.
    pub fn names(&self, field: Field) -> bool {
        match &self.change {
            FieldChange::Only(set) => set.has(field),
            FieldChange::Usual(list) => list.contains(&(field, true)),
        }
    }
}

impl std::str::FromStr for FieldRule {
    type Err = FieldError;

    /// `comm,ip,sym`, `trace:comm,trace`, `+srcline,-comm`.
    fn from_str(text: &str) -> Result<FieldRule, FieldError> {
        let (kind, words) = match text.split_once(':') {
            Some(("hw", words)) => (Some(EventKind::Hardware), words),
            Some(("sw", words)) => (Some(EventKind::Software), words),
            Some(("trace", words)) => (Some(EventKind::Tracepoint), words),
            Some(("raw", words)) => (Some(EventKind::Raw), words),
            _ => (None, text),
        };
        let words: Vec<&str> = words.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
        let is_change = |word: &&&str| word.starts_with(['+', '-']);
        let change = match words.iter().filter(is_change).count() {
            0 => FieldChange::Only(words.iter().map(|word| word.parse()).collect::<Result<_, _>>()?),
            all if all == words.len() => {
                let change = |word: &&str| Ok((word[1..].parse()?, word.starts_with('+')));
                FieldChange::Usual(words.iter().map(change).collect::<Result<_, FieldError>>()?)
            }
            _ => return Err(FieldError::Mixed(text.to_owned())),
        };
        Ok(FieldRule { kind, change })
    }
}

/// The fields of an event: the usual ones, as perf chooses them, changed by the rules. `chains`
/// says that some tracepoint has call chains: then addresses are printed for all tracepoints.
pub(super) fn of_event(event: &Event, rules: &[FieldRule], chains: bool) -> FieldSet {
    let tracepoint = event.attr.kind == abi::PERF_TYPE_TRACEPOINT;
    let usual = FIELDS.iter().map(|(_, field)| *field).filter(|field| match field {
        Field::Pid | Field::Addr | Field::Misc => false,
        Field::SrcLine | Field::PhysAddr | Field::Cgroup => false,
        Field::InterruptRegisters | Field::UserRegisters => false,
        Field::Period => !tracepoint,
        Field::Trace => tracepoint,
        Field::Ip => !tracepoint || chains,
        _ => true,
    });
    let mut fields: FieldSet = usual.collect();
    for rule in rules.iter().filter(|rule| rule.kind.is_none_or(|kind| kind.is(event))) {
        match &rule.change {
            FieldChange::Only(set) => fields = *set,
            FieldChange::Usual(list) => {
                fields = list.iter().fold(fields, |fields, (field, on)| fields.with(*field, *on));
            }
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks lists, changes and kinds, and that a mixture is refused.
    #[test]
    fn rules() {
        let event = |kind| Event::new(kymo_data::Attr { kind, ..kymo_data::Attr::default() }, Vec::new(), 0);
        let software = event(abi::PERF_TYPE_SOFTWARE);
        let of = |text: &str| of_event(&software, &[text.parse().expect(text)], false);
        assert_eq!(of("comm,ip"), FieldSet::from_iter([Field::Comm, Field::Ip]));
        assert!(of("+srcline,-comm").has(Field::SrcLine) && !of("+srcline,-comm").has(Field::Comm));
        assert_eq!(of("trace:comm"), of_event(&software, &[], false));
        assert_eq!(of("sw:comm"), FieldSet::from_iter([Field::Comm]));
        assert!("comm,+ip".parse::<FieldRule>().is_err());
        assert!("+nonsense".parse::<FieldRule>().is_err());
    }
}
