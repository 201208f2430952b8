//! Looks at calls where they end: a function's begin and all its exits are patched together. Calls
//! are timed by the stubs that tracers write into programs without the agent
//! (`codegen/freestanding/`); events of returns are written by those of `codegen/stub.rs`.
//!
//! No return address changes, so programs may walk, copy, switch and leave their stacks as they
//! like. The identity of a call is the place of its frame; which calls are under way is kept in one
//! table of the process. `call_stubs.rs` makes the code.
use super::call_plan::CallPlan;
use super::call_stubs::function_number;
use super::error::PatchError;
use super::hold::Holder;
use super::memory::OwnMemory;
use super::patcher::{Patcher, may_write, patcher, surroundings};
use super::probe::Probe;
use crate::patch::codegen::context::CodegenContext;
use crate::patch::codegen::freestanding::CallerCount;
use crate::patch::slots::Slots;
use crate::patch::{Consumers, FilteredProbe, Record, RecordedExit};

/// What happens where calls begin and end.
#[derive(Clone, Copy, Debug)]
pub enum CallConsumers {
    /// Calls are timed: which of them, and whether callers are told apart.
    Timed(FilteredProbe),
    /// Returns are recorded, and begins, too, if the record has an event for them.
    Recorded(Record),
}

impl Consumers {
    /// What [`attach_calls`] is to be asked for, if it is that.
    pub(crate) fn at_exits(self) -> Option<CallConsumers> {
        match self {
            Consumers::LatencyAtExits(filtered) => Some(CallConsumers::Timed(filtered)),
            Consumers::RecordAtExits(record) => Some(CallConsumers::Recorded(record)),
            _ => None,
        }
    }
}

impl CallConsumers {
    /// What the probe at a function's begin does.
    fn entry(self) -> Consumers {
        match self {
            CallConsumers::Timed(filtered) => Consumers::LatencyAtExits(filtered),
            CallConsumers::Recorded(record) => Consumers::RecordAtExits(record),
        }
    }

    /// What the probes do where its calls end.
    fn exit(self, entry: &Probe) -> Consumers {
        match self {
            CallConsumers::Timed(filtered) => {
                Consumers::Exit(entry.times_slots().map_or(0, |(first, _)| first), filtered)
            }
            CallConsumers::Recorded(record) => {
                let function = entry.site.place;
                let lost = entry.spec.lost().unwrap_or(0);
                let returns = entry.spec.at_return.slots().start;
                Consumers::RecordedExit(record, RecordedExit { function, returns, lost })
            }
        }
    }
}

/// Puts probes at these functions where that can be, each with all of its exits, and tells why not
/// at the others, in the same order. The first probe of each is the one that counts.
///
/// # Errors
/// As [`attach_each`](super::patcher::attach_each).
pub fn attach_calls(
    calls: &[CallPlan],
    consumers: CallConsumers,
    holder: &mut Holder<'_>,
) -> Result<Vec<Result<Vec<Probe>, PatchError>>, PatchError> {
    patcher()?.attach_calls(calls, consumers, holder)
}

/// Who called, for each of these probes of [`attach_calls`] that tells callers apart.
pub(crate) fn callers_of_calls(probes: &[&Probe]) -> Vec<Option<Vec<CallerCount>>> {
    let is_asked = |probe: &&Probe| probe.watch.is_none() && probe.spec.action.is_some_and(|it| it.callers);
    let counted = patcher().map(|patcher| patcher.call_stubs.callers()).unwrap_or_default();
    let of = |probe: &&Probe| {
        let number = function_number(probe.spec.hits);
        is_asked(probe).then(|| counted.get(&number).cloned().unwrap_or_default())
    };
    probes.iter().map(of).collect()
}

impl Patcher {
    fn attach_calls(
        &mut self,
        calls: &[CallPlan],
        consumers: CallConsumers,
        holder: &mut Holder<'_>,
    ) -> Result<Vec<Result<Vec<Probe>, PatchError>>, PatchError> {
        let memory = OwnMemory::open().map_err(PatchError::system("open /proc/self/mem"))?;
        may_write(&memory, holder)?;
        let (slots, context) = surroundings(true)?;
        let sites = calls.iter().flat_map(|call| std::iter::once(&call.entry).chain(&call.exits));
        self.forget_unloaded(&memory, sites);
        // Those of all functions together, to be written in one pass; and for each function how
        // many these are.
        let (mut probes, mut counts) = (Vec::new(), Vec::new());
        for call in calls {
            let prepared = self.prepare_call(&memory, (call, consumers), slots, &context);
            counts.push(match prepared {
                Ok(prepared) => {
                    let count = prepared.len();
                    probes.extend(prepared.into_iter().map(Ok));
                    Ok(count)
                }
                Err(error) if error.concerns_one_site() => Err(error),
                Err(error) => return Err(self.forget(&memory, probes, error)),
            });
        }
        self.arena.seal();
        if matches!(consumers, CallConsumers::Timed(filtered) if filtered.action.callers) {
            let numbers = probes.iter().flatten().map(|probe: &Probe| function_number(probe.spec.hits));
            self.call_stubs.clear_callers(&numbers.collect());
        }
        if !probes.is_empty()
            && let Err(error) = self.arm(&memory, &mut probes, holder)
        {
            return Err(self.forget(&memory, probes, error));
        }
        let mut probes = probes.into_iter();
        let each = counts.into_iter().map(|count| self.whole(probes.by_ref().take(count?).collect()));
        Ok(each.collect())
    }

    /// The probes of a function, none of which is written.
    fn prepare_call(
        &mut self,
        memory: &OwnMemory,
        (call, consumers): (&CallPlan, CallConsumers),
        slots: &'static Slots,
        context: &CodegenContext,
    ) -> Result<Vec<Probe>, PatchError> {
        let of = (&call.entry, &call.ends[..]);
        let entry = self.prepare(memory, of, consumers.entry(), slots, context)?;
        let at_exit = consumers.exit(&entry);
        let mut probes = vec![Ok(entry)];
        for exit in &call.exits {
            match self.prepare(memory, (exit, &call.ends), at_exit, slots, context) {
                Ok(probe) => probes.push(Ok(probe)),
                Err(error) => return Err(self.forget(memory, probes, error)),
            }
        }
        probes.into_iter().collect()
    }

    /// A function's probes, if all are written; else what is written waits for somebody who takes
    /// it away. A call that has begun and is not seen to end harms nobody.
    fn whole(&mut self, probes: Vec<Result<Probe, PatchError>>) -> Result<Vec<Probe>, PatchError> {
        let mut written = Vec::new();
        let mut failed = None;
        for probe in probes {
            match probe {
                Ok(probe) => written.push(probe),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let Some(error) = failed else { return Ok(written) };
        self.left.extend(written);
        Err(error)
    }
}
