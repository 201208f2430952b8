//! Times calls where they end: a function's begin and all its exits are patched together, with the
//! stubs that tracers write into programs without the agent (`codegen/freestanding.rs`).
//!
//! No return address changes, so programs may walk, copy, switch and leave their stacks as they
//! like. The identity of a call is the place of its frame; which calls are under way is kept in one
//! table of the process. `call_stubs.rs` makes the code.
use super::error::PatchError;
use super::hold::Holder;
use super::memory::OwnMemory;
use super::patcher::{Patcher, may_write, patcher, surroundings};
use super::probe::Probe;
use crate::patch::Consumers;
use crate::patch::codegen::context::CodegenContext;
use crate::patch::site::Site;
use crate::patch::slots::Slots;

/// A function whose calls are to be timed where they end.
#[derive(Clone, Debug)]
pub struct TimedCall {
    /// Its begin.
    pub entry: Site,
    /// Where its calls end, ascending.
    pub ends: Vec<u64>,
    /// What is patched for those that are not in `entry`.
    pub exits: Vec<Site>,
}

/// Puts probes at these functions where that can be, each with all of its exits, and tells why not
/// at the others, in the same order. The first probe of each is the one that counts.
///
/// # Errors
/// As [`attach_each`](super::patcher::attach_each).
pub fn attach_calls(
    calls: &[TimedCall],
    holder: &mut Holder<'_>,
) -> Result<Vec<Result<Vec<Probe>, PatchError>>, PatchError> {
    patcher()?.attach_calls(calls, holder)
}

impl Patcher {
    fn attach_calls(
        &mut self,
        calls: &[TimedCall],
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
            let prepared = self.prepare_call(&memory, call, slots, &context);
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
        call: &TimedCall,
        slots: &'static Slots,
        context: &CodegenContext,
    ) -> Result<Vec<Probe>, PatchError> {
        let of = (&call.entry, &call.ends[..]);
        let entry = self.prepare(memory, of, Consumers::LatencyAtExits, slots, context)?;
        let times = entry.times_slots().map_or(0, |(first, _)| first);
        let mut probes = vec![Ok(entry)];
        for exit in &call.exits {
            match self.prepare(memory, (exit, &call.ends), Consumers::Exit(times), slots, context) {
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
