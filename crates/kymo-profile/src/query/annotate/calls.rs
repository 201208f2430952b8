//! What each call of a function has of all that it called.
use super::super::scan::Sum;
use super::heat::{Annotator, HotFunction, means};
use crate::chains::ChainId;
use crate::functions::FunctionId;
use crate::raw_frames::walk_chain;
use std::collections::BTreeMap;

impl Annotator<'_> {
    /// By address of the last byte of a call, in the module's terms: the rows of what it called.
    ///
    /// A row counts once for each call that its stack passes through, however often it recurs.
    pub(super) fn calls(&self, hot: &HotFunction) -> BTreeMap<u64, Sum> {
        let mut calls: BTreeMap<u64, Sum> = BTreeMap::new();
        let mut passed = Vec::new();
        for &(stack, sum) in &self.rows {
            if !self.profile.stacks.frames(stack).contains(&hot.id) {
                continue;
            }
            passed.clear();
            self.return_places(stack, hot.id, |_, address| passed.push(address));
            passed.sort_unstable();
            passed.dedup();
            passed.iter().for_each(|address| *calls.entry(*address).or_default() += sum);
        }
        calls
    }

    /// Calls `each` with the places in a function that a stack returns to: address space, mode and
    /// address as recorded, and the address before it in the module's terms.
    fn return_places(&self, stack: ChainId, id: FunctionId, mut each: impl FnMut((u32, u8, u64), u64)) {
        let function = self.profile.functions.get(id);
        let chains = &self.profile.loaded.chains;
        let chain = chains.get(stack);
        let mut is_leaf = true;
        walk_chain(chains, chain, usize::MAX, |place| {
            if std::mem::take(&mut is_leaf) {
                return;
            }
            let found = self.resolver.named(place, false);
            let address = found.module_address;
            if found.module == function.module && (function.start..function.end).contains(&address) {
                each((place.maps, place.mode, found.address), address);
            }
        });
    }

    /// Functions of a name that have no rows themselves, but called others that have.
    pub(super) fn callers_called(&self, name: &str) -> Vec<HotFunction> {
        let functions = self.profile.functions.iter();
        let named = functions.filter(|(_, function)| {
            !function.inlined && function.name.as_deref().is_some_and(|found| means(name, found))
        });
        named.filter_map(|(id, _)| self.caller(id)).collect()
    }

    fn caller(&self, id: FunctionId) -> Option<HotFunction> {
        self.profile.functions.get(id).module?;
        let mut place = None;
        for (stack, _) in &self.rows {
            if self.profile.stacks.frames(*stack).contains(&id) {
                self.return_places(*stack, id, |at, _| place = Some(at));
            }
            if place.is_some() {
                break;
            }
        }
        let place = place?;
        Some(HotFunction { id, counts: BTreeMap::new(), sum: Sum::default(), place, alias: None })
    }
}
