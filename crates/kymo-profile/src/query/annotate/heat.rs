//! What each sampled address of each function has.
use super::super::dataset::{Dataset, Source};
use super::super::filter::{Filter, FilterValue, fits, unknown};
use super::super::scan::{Scan, Sum};
use super::super::{AnswerHead, QueryError};
use crate::chains::ChainId;
use crate::functions::{Function, FunctionId};
use crate::profile::Profile;
use crate::resolve::Resolver;
use crate::timeline::ModuleId;
use kymo_symbols::SymbolStore;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// What compilers put after the name of a part that they split off or changed.
const PARTS: [&str; 8] = ["cold", "isra", "part", "constprop", "lto_priv", "llvm", "localalias", "clone"];

/// A function with rows of its own.
#[derive(Debug)]
pub struct HotFunction {
    pub(super) id: FunctionId,
    /// By the sampled address, in the module's terms.
    pub(super) counts: BTreeMap<u64, Sum>,
    pub(super) sum: Sum,
    /// Where one of the rows was: address space, mode and address.
    pub(super) place: (u32, u8, u64),
    /// The name that was asked for, where tables have another one of the same address.
    pub(super) alias: Option<String>,
}

impl HotFunction {
    /// Rows in it itself.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.sum.samples
    }

    /// The sum of their periods.
    #[must_use]
    pub fn period(&self) -> u64 {
        self.sum.period
    }
}

/// The functions of a recording with rows of their own.
#[derive(Debug)]
pub struct Annotator<'a> {
    pub(super) profile: &'a Profile,
    pub(super) resolver: Resolver<'a>,
    pub(super) store: &'a SymbolStore,
    head: AnswerHead,
    whole: Sum,
    functions: Vec<HotFunction>,
    /// The rows that count, by stack.
    pub(super) rows: Vec<(ChainId, Sum)>,
}

impl Dataset {
    /// Counts the rows that a filter leaves by function and address.
    ///
    /// # Errors
    /// When the filter names what the recording does not have, or the rows are spans, which have no
    /// sampled address.
    pub fn annotator<'a>(
        &'a self,
        filter: &Filter,
        store: &'a SymbolStore,
        cancel: &'a AtomicBool,
    ) -> Result<Annotator<'a>, QueryError> {
        self.annotator_of_scan(&Scan::new(self, filter, cancel)?, store)
    }

    /// The same of rows that are chosen already.
    pub(in super::super) fn annotator_of_scan<'a>(
        &'a self,
        scan: &Scan<'_>,
        store: &'a SymbolStore,
    ) -> Result<Annotator<'a>, QueryError> {
        let Source::Samples(profile) = &self.source else {
            let why = "spans of wall time have no sampled instruction: ask about another event";
            return Err(QueryError::NotRecorded(why.into()));
        };
        Annotator::new(scan, profile, store)
    }
}

impl<'a> Annotator<'a> {
    pub(in super::super) fn new(
        scan: &Scan<'_>,
        profile: &'a Profile,
        store: &'a SymbolStore,
    ) -> Result<Annotator<'a>, QueryError> {
        let resolver = Resolver::new(&profile.loaded.timeline, store);
        let mut whole = Sum::default();
        let mut functions: FxHashMap<FunctionId, HotFunction> = FxHashMap::default();
        let mut rows = Vec::new();
        for (key, sum) in scan.by_stack()? {
            whole += sum;
            rows.push((key.stack, sum));
            let id = profile.stacks.leaf(key.stack);
            let function = profile.functions.get(id);
            if function.name.is_none() || function.module.is_none() {
                continue;
            }
            let chain = profile.loaded.chains.get(key.stack);
            let place = (chain.maps, chain.mode, chain.ip);
            let Some(address) = resolver.module_address(place.0, place.1, place.2) else { continue };
            let hot = functions.entry(id).or_insert_with(|| HotFunction {
                id,
                counts: BTreeMap::new(),
                sum: Sum::default(),
                place,
                alias: None,
            });
            hot.sum += sum;
            *hot.counts.entry(address).or_default() += sum;
        }
        let mut functions: Vec<HotFunction> = functions.into_values().collect();
        functions.sort_unstable_by_key(|hot| (std::cmp::Reverse((hot.sum.period, hot.sum.samples)), hot.id));
        Ok(Annotator { profile, resolver, store, head: scan.head(), whole, functions, rows })
    }

    /// The event that was counted.
    pub fn event(&self) -> &str {
        &self.head.event
    }

    /// All rows that count, also those outside of functions, and the sum of their periods.
    pub fn whole(&self) -> (u64, u64) {
        (self.whole.samples, self.whole.period)
    }

    /// The hottest first.
    pub fn functions(&self) -> &[HotFunction] {
        &self.functions
    }

    /// What a function is called.
    pub fn name(&self, hot: &HotFunction) -> &'a str {
        self.function(hot).name.as_deref().unwrap_or("")
    }

    /// The module that a function is in, as tables show it.
    pub fn module(&self, hot: &HotFunction) -> &'a str {
        self.function(hot).module.map_or("", |module| self.resolver.module_name(module))
    }

    /// The full path of that module.
    pub fn module_path(&self, hot: &HotFunction) -> String {
        let module = self.function(hot).module.map(|module| self.profile.loaded.timeline.modules.get(module));
        module.map_or_else(String::new, |module| String::from_utf8_lossy(&module.path).into_owned())
    }

    pub(super) fn function(&self, hot: &HotFunction) -> &'a Function {
        self.profile.functions.get(hot.id)
    }

    pub(super) fn symfs(&self) -> Option<&Path> {
        self.store.options().symfs.as_deref()
    }

    /// The functions that a name means, the hottest first: those that are called so, the parts that
    /// a compiler split off of them, or those that have it as another name of their address. Of
    /// functions without rows themselves those that called others which have some.
    pub fn matching(&self, name: &str) -> Vec<HotFunction> {
        let by_name: Vec<HotFunction> =
            self.functions.iter().filter(|hot| means(name, self.name(hot))).map(HotFunction::copy).collect();
        if !by_name.is_empty() {
            return by_name;
        }
        let by_alias = self.by_alias(name);
        if by_alias.is_empty() { self.callers_called(name) } else { by_alias }
    }

    /// That no function is called so, and which are called nearly so.
    pub fn no_function(&self, name: &str) -> QueryError {
        self.unknown(&FilterValue { text: name.to_owned(), at: 0 })
    }

    pub(super) fn unknown(&self, wanted: &FilterValue) -> QueryError {
        let names = self.functions.iter().map(|hot| self.name(hot));
        unknown("function with samples of its own", wanted, names)
    }

    /// Functions that have this name beside that of tables.
    fn by_alias(&self, name: &str) -> Vec<HotFunction> {
        let mut found = Vec::new();
        let mut modules: BTreeMap<ModuleId, Vec<&HotFunction>> = BTreeMap::new();
        for hot in &self.functions {
            if let Some(module) = self.function(hot).module {
                modules.entry(module).or_default().push(hot);
            }
        }
        for (module, hots) in modules {
            if !self.resolver.has_files(module) {
                continue;
            }
            let named = self.resolver.symbols(module).addresses_of(|other| means(name, other));
            for hot in hots {
                if let Some((_, other)) = named.iter().find(|(at, _)| *at == self.function(hot).start) {
                    found.push(HotFunction { alias: Some(other.clone()), ..hot.copy() });
                }
            }
        }
        found.sort_by_key(|hot| std::cmp::Reverse(hot.sum.period));
        found
    }
}

impl HotFunction {
    fn copy(&self) -> HotFunction {
        let HotFunction { id, ref counts, sum, place, ref alias } = *self;
        HotFunction { id, counts: counts.clone(), sum, place, alias: alias.clone() }
    }
}

/// Whether a name that somebody wrote means this function: it is the name, its part before the
/// parameters, or the name of the function that it was split off of.
pub(super) fn means(wanted: &str, name: &str) -> bool {
    if fits(wanted, name) {
        return true;
    }
    let whole = without_parts(name);
    fits(wanted, whole) || !wanted.ends_with(')') && fits(wanted, without_parameters(whole))
}

/// `f` of `f.cold`, `f.isra.0` and `f(int) [clone .part.1]`.
fn without_parts(name: &str) -> &str {
    if let Some((whole, _)) = name.split_once(" [clone ") {
        return whole;
    }
    let is_part = |(at, _): &(usize, &str)| {
        let word = name[at + 1..].split('.').next().unwrap_or("");
        *at > 0 && PARTS.contains(&word)
    };
    name.match_indices('.').find(is_part).map_or(name, |(at, _)| &name[..at])
}

/// `a::f` of `a::f(int) const`.
fn without_parameters(name: &str) -> &str {
    let Some(end) = name.rfind(')') else { return name };
    let mut depth = 0;
    for (at, char) in name[..=end].char_indices().rev() {
        match char {
            ')' => depth += 1,
            '(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return if at > 0 { &name[..at] } else { name };
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which functions a written name means.
    #[test]
    fn names() {
        for (wanted, name) in [
            ("f", "f"),
            ("f", "f.cold"),
            ("f", "f.isra.0"),
            ("f", "f.part.0.constprop.1"),
            ("f.cold", "f.cold"),
            ("a::f", "a::f(int, b<c>)"),
            ("a::f", "a::f(void (*)(int)) const"),
            ("a::f(int)", "a::f(int) [clone .cold]"),
            ("(anonymous namespace)::f", "(anonymous namespace)::f()"),
            ("a*", "a::f(int)"),
        ] {
            assert!(means(wanted, name), "{wanted} {name}");
        }
        for (wanted, name) in
            [("f", "g"), ("f", "f.more"), ("f", "f2.cold"), ("f.cold", "f"), ("f(int)", "f(long)")]
        {
            assert!(!means(wanted, name), "{wanted} {name}");
        }
    }
}
