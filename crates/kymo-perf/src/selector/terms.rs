//! Terms between slashes: what each one sets in the attr or in the recording of its event.

use super::attr::{EventAttr, Sampling};
use super::error::{ResolveError, ResolveErrorKind};
use super::parse::parse_terms;
use super::syntax::{EventGroup, Term, TermValue};
use crate::pmu::{Alias, Pmu};
use crate::suggest::nearest;
use perf_event_open_sys::bindings;

/// How an event's call chains are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallGraph {
    /// None for this event.
    None,
    /// By frame pointers, in the kernel.
    FramePointers,
    /// By a copy of the user stack, of so many bytes (`None`: the default size), unwound later.
    Dwarf(Option<u32>),
    /// From the last-branch records.
    Lbr,
}

/// Settings given to one event as terms. `None`: what the command line says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Overrides {
    /// `call-graph=no|fp|dwarf|lbr`, with `stack-size=` folded in.
    pub call_graph: Option<CallGraph>,
    /// `max-stack=`: at most so many frames.
    pub max_stack: Option<u16>,
    /// `inherit` / `no-inherit`: count in children too.
    pub inherit: Option<bool>,
    /// `overwrite` / `no-overwrite`: the ring keeps the newest instead of the oldest records.
    pub overwrite: Option<bool>,
    /// `branch_type=`: `PERF_SAMPLE_BRANCH_*` bits.
    pub branch_type: Option<u64>,
}

/// The largest user stack copy the kernel takes, a multiple of 8 that keeps a record below 64 KiB.
const STACK_LIMIT_BYTES: u64 = 65_528;

const GENERIC: [&str; 21] = [
    "config",
    "config1",
    "config2",
    "config3",
    "name",
    "period",
    "freq",
    "branch_type",
    "time",
    "call-graph",
    "stack-size",
    "max-stack",
    "nr",
    "inherit",
    "no-inherit",
    "overwrite",
    "no-overwrite",
    "percore",
    "aux-output",
    "aux-sample-size",
    "metric-id",
];

/// What a list of terms came to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Applied {
    pub(crate) attr: EventAttr,
    pub(crate) overrides: Overrides,
    pub(crate) name: Option<String>,
    /// The ready-made event among the terms, for its scale and unit.
    pub(crate) alias: Option<Alias>,
}

/// Applies `terms` to `attr`. Without a PMU only the generic terms are known.
pub(crate) fn apply(
    group: &EventGroup,
    terms: &[Term],
    attr: EventAttr,
    pmu: Option<&Pmu>,
) -> Result<Applied, ResolveError> {
    let mut applier =
        Applier { group, pmu, out: Applied { attr, ..Applied::default() }, stack: None, wanting: Vec::new() };
    for term in terms {
        applier.term(term)?;
    }
    applier.finish(terms)
}

struct Applier<'a> {
    group: &'a EventGroup,
    pmu: Option<&'a Pmu>,
    out: Applied,
    /// `stack-size=`, until it is known whether the call graph is dwarf, and the term that said it.
    stack: Option<(u32, Term)>,
    /// Terms that a ready-made event leaves open (`chip=?`) and that nobody has given yet.
    wanting: Vec<String>,
}

impl Applier<'_> {
    fn fault(&self, term: &Term, message: String, hint: Option<String>) -> ResolveError {
        ResolveError {
            kind: ResolveErrorKind::BadTerm,
            input: self.group.input.to_string(),
            span: term.span.start..term.value_span.end,
            message,
            hint,
        }
    }

    fn number(&self, term: &Term, least: u64, most: u64) -> Result<u64, ResolveError> {
        match term.value {
            Some(TermValue::Number(value)) if (least..=most).contains(&value) => Ok(value),
            Some(TermValue::Number(value)) => Err(self.fault(
                term,
                format!("`{}={value}` is out of range; it must be {least} to {most}", term.name),
                None,
            )),
            _ => Err(self.fault(
                term,
                format!("`{}` needs a number", term.name),
                Some(format!("write `{}=123`", term.name)),
            )),
        }
    }

    fn switch(&self, term: &Term) -> Result<bool, ResolveError> {
        if term.value.is_none() { Ok(true) } else { Ok(self.number(term, 0, 1)? == 1) }
    }

    fn word<'t>(&self, term: &'t Term) -> Result<&'t str, ResolveError> {
        match &term.value {
            Some(TermValue::Word(word) | TermValue::Quoted(word)) => Ok(word),
            _ => Err(self.fault(term, format!("`{}` needs a word", term.name), None)),
        }
    }

    fn term(&mut self, term: &Term) -> Result<(), ResolveError> {
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        match term.name.as_str() {
            "config" => self.out.attr.config = self.number(term, 0, u64::MAX)?,
            "config1" => self.out.attr.config1 = self.number(term, 0, u64::MAX)?,
            "config2" => self.out.attr.config2 = self.number(term, 0, u64::MAX)?,
            "config3" => self.out.attr.config3 = self.number(term, 0, u64::MAX)?,
            "name" => self.out.name = Some(self.word(term)?.to_owned()),
            // The kernel keeps the top bit for itself.
            "period" => self.out.attr.sampling = Sampling::Period(self.number(term, 1, i64::MAX as u64)?),
            "freq" => {
                self.out.attr.sampling = Sampling::Frequency(self.number(term, 1, u64::from(u32::MAX))?)
            }
            // All samples have times.
            "time" => _ = self.switch(term)?,
            "inherit" => self.out.overrides.inherit = Some(self.switch(term)?),
            "no-inherit" => self.out.overrides.inherit = Some(!self.switch(term)?),
            "overwrite" => self.out.overrides.overwrite = Some(self.switch(term)?),
            "no-overwrite" => self.out.overrides.overwrite = Some(!self.switch(term)?),
            "max-stack" => {
                let frames = self.number(term, 1, u64::from(u16::MAX))?;
                self.out.overrides.max_stack = u16::try_from(frames).ok();
            }
            "stack-size" => {
                let bytes = self.number(term, 8, STACK_LIMIT_BYTES)?;
                // The kernel wants whole words; perf rounds up too.
                self.stack = Some((narrow(bytes.next_multiple_of(8)), term.clone()));
            }
            "call-graph" => self.out.overrides.call_graph = Some(self.call_graph(term)?),
            "branch_type" => self.out.overrides.branch_type = Some(self.branch_type(term)?),
            "metric-id" => return self.unsupported(term, "is for perf's metrics, which kymo does not have"),
            "percore" => return self.unsupported(term, "is for perf stat: kymo counts each CPU for itself"),
            "nr" => {
                return self.unsupported(term, "is for perf trace, which kymo does not have");
            }
            "aux-output" | "aux-sample-size" => {
                return self.unsupported(term, "is for processor traces, which kymo does not record");
            }
            _ => self.pmu_term(term)?,
        }
        Ok(())
    }

    fn unsupported(&self, term: &Term, why: &str) -> Result<(), ResolveError> {
        Err(self.fault(term, format!("`{}` {why}", term.name), None))
    }

    fn call_graph(&self, term: &Term) -> Result<CallGraph, ResolveError> {
        Ok(match self.word(term)? {
            "no" => CallGraph::None,
            "fp" => CallGraph::FramePointers,
            "dwarf" => CallGraph::Dwarf(None),
            "lbr" => CallGraph::Lbr,
            other => {
                let message = format!("`{other}` is not a way to take call graphs");
                return Err(self.fault(term, message, Some("use fp, dwarf, lbr or no".into())));
            }
        })
    }

    fn branch_type(&self, term: &Term) -> Result<u64, ResolveError> {
        branch_bits(self.word(term)?).map_err(|unknown| {
            let hint = format!("branch types are {}", branch_types());
            self.fault(term, format!("`{unknown}` is not a branch type"), Some(hint))
        })
    }

    /// A term that only the PMU can know: a format, or one of its ready-made events.
    fn pmu_term(&mut self, term: &Term) -> Result<(), ResolveError> {
        let Some(pmu) = self.pmu else {
            return Err(self.unknown(term));
        };
        if term.value.is_none()
            && let Some(alias) = pmu.event(&term.name)
        {
            return self.alias(term, alias);
        }
        let Some(format) = pmu.format(&term.name) else {
            return Err(self.unknown(term));
        };
        let value = if term.value.is_none() { 1 } else { self.number(term, 0, u64::MAX)? };
        if value > format.max() {
            let message = format!(
                "{value:#x} does not fit `{}` of PMU `{}`; the largest value is {:#x}",
                format.name,
                pmu.name,
                format.max()
            );
            return Err(self.fault(term, message, None));
        }
        format.deposit(word_of(&mut self.out.attr, format.word), value);
        self.wanting.retain(|name| *name != format.name);
        Ok(())
    }

    /// Puts in the terms of a ready-made event. Its text comes from sysfs, so its faults are not
    /// the user's.
    fn alias(&mut self, term: &Term, alias: &Alias) -> Result<(), ResolveError> {
        let blank = self.fault(term, String::new(), None);
        let broken = |cause: String| ResolveError {
            kind: ResolveErrorKind::BrokenSystemFile,
            message: format!("the kernel's description of `{}` cannot be used: {cause}", alias.name),
            ..blank.clone()
        };
        let inner = parse_terms(&alias.terms)
            .map_err(|error| broken(format!("{} in `{}`", error.message, alias.terms)))?;
        for part in &inner {
            if matches!(&part.value, Some(TermValue::Word(word)) if word == "?") {
                self.wanting.push(part.name.clone());
                continue;
            }
            // One event may not name another: sysfs never does, and a loop of names would not end.
            let generic = GENERIC.contains(&part.name.as_str());
            if !generic && self.pmu.is_none_or(|pmu| pmu.format(&part.name).is_none()) {
                return Err(broken(format!("it uses `{}`, which is no format of the PMU", part.name)));
            }
            let place = Term { span: term.span.clone(), value_span: term.value_span.clone(), ..part.clone() };
            self.term(&place)?;
        }
        self.out.alias = Some(alias.clone());
        Ok(())
    }

    fn unknown(&self, term: &Term) -> ResolveError {
        let (whose, own): (String, Vec<&str>) = match self.pmu {
            Some(pmu) => (
                format!("PMU `{}` has no term or event `{}`", pmu.name, term.name),
                pmu.formats
                    .iter()
                    .map(|f| f.name.as_str())
                    .chain(pmu.events.iter().map(|e| e.name.as_str()))
                    .collect(),
            ),
            None => (format!("`{}` is not a term of this kind of event", term.name), Vec::new()),
        };
        let near = nearest(&term.name, own.iter().copied().chain(GENERIC));
        let hint = near.map(|near| format!("did you mean `{near}`?")).unwrap_or_else(|| {
            let shown: Vec<&str> =
                own.iter().copied().take(24).chain(GENERIC[4..20].iter().copied()).collect();
            format!("terms are {}", shown.join(", "))
        });
        self.fault(term, whose, Some(hint))
    }

    fn finish(mut self, terms: &[Term]) -> Result<Applied, ResolveError> {
        if let (Some(open), Some(term)) = (self.wanting.first(), terms.first()) {
            return Err(self.fault(
                term,
                format!("this event leaves `{open}` open"),
                Some(format!("add a value for it: `{open}=0`")),
            ));
        }
        if let Some((bytes, term)) = self.stack.take() {
            match self.out.overrides.call_graph {
                Some(CallGraph::Dwarf(_)) | None => {
                    self.out.overrides.call_graph = Some(CallGraph::Dwarf(Some(bytes)));
                }
                // perf takes the pair and ignores the size; so do we, since it harms nobody.
                Some(_) => tracing::debug!(term = %term, "stack-size without call-graph=dwarf has no effect"),
            }
        }
        Ok(self.out)
    }
}

fn word_of(attr: &mut EventAttr, word: u8) -> &mut u64 {
    match word {
        0 => &mut attr.config,
        1 => &mut attr.config1,
        2 => &mut attr.config2,
        3 => &mut attr.config3,
        _ => &mut attr.config4,
    }
}
/// The kinds of branches by their names in perf's `-j`.
const BRANCH_TYPES: [(&str, u32); 17] = [
    ("u", bindings::PERF_SAMPLE_BRANCH_USER),
    ("k", bindings::PERF_SAMPLE_BRANCH_KERNEL),
    ("hv", bindings::PERF_SAMPLE_BRANCH_HV),
    ("any", bindings::PERF_SAMPLE_BRANCH_ANY),
    ("any_call", bindings::PERF_SAMPLE_BRANCH_ANY_CALL),
    ("any_ret", bindings::PERF_SAMPLE_BRANCH_ANY_RETURN),
    ("ind_call", bindings::PERF_SAMPLE_BRANCH_IND_CALL),
    ("abort_tx", bindings::PERF_SAMPLE_BRANCH_ABORT_TX),
    ("in_tx", bindings::PERF_SAMPLE_BRANCH_IN_TX),
    ("no_tx", bindings::PERF_SAMPLE_BRANCH_NO_TX),
    ("cond", bindings::PERF_SAMPLE_BRANCH_COND),
    ("stack", bindings::PERF_SAMPLE_BRANCH_CALL_STACK),
    ("ind_jmp", bindings::PERF_SAMPLE_BRANCH_IND_JUMP),
    ("call", bindings::PERF_SAMPLE_BRANCH_CALL),
    ("no_flags", bindings::PERF_SAMPLE_BRANCH_NO_FLAGS),
    ("no_cycles", bindings::PERF_SAMPLE_BRANCH_NO_CYCLES),
    ("save_type", bindings::PERF_SAMPLE_BRANCH_TYPE_SAVE),
];

/// The `PERF_SAMPLE_BRANCH_*` bits of kinds of branches such as `any,u`.
///
/// # Errors
/// The word that names none.
pub fn branch_bits(text: &str) -> Result<u64, &str> {
    text.split([',', '|', '+']).try_fold(0, |bits, word| {
        let known = BRANCH_TYPES.iter().find(|(name, _)| *name == word);
        known.map(|(_, bit)| bits | u64::from(*bit)).ok_or(word)
    })
}

/// The names of all kinds of branches, for sentences.
pub fn branch_types() -> String {
    BRANCH_TYPES.map(|(name, _)| name).join(", ")
}
