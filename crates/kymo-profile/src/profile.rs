//! A recording with names: the counts of [`load`](crate::load) and the functions of
//! [`resolve`](crate::resolve).
use crate::functions::{FunctionId, Functions};
use crate::load::{Extra, ExtraId, FirstPass, LoadOptions, Loaded, Progress};
use crate::resolve::{ResolveOptions, Resolver, Stacks};
use crate::timeline::{ModuleId, Timeline};
use crate::tracepoint::Tracepoints;
use kymo_data::{ReadError, Recording, abi};
use kymo_symbols::{Absence, SymbolStore};
use regex_lite::Regex;
use rustc_hash::FxHashMap;
use std::num::NonZeroUsize;

/// Everything that reports and exports are made from.
#[derive(Debug)]
pub struct Profile {
    /// Counts by thread name, stack and event.
    pub loaded: Loaded,
    /// Names.
    pub functions: Functions,
    /// The functions of every distinct stack.
    pub stacks: Stacks,
    /// What the user should know about symbols: sentences.
    pub notes: Vec<String>,
    /// Files without names that have many samples, and why.
    pub absences: Vec<(ModuleId, Absence)>,
    /// The text of each [`Extra`] of a tracepoint, by id; empty unless they
    /// were loaded.
    pub traces: Vec<Box<str>>,
}

/// Who gets a profile of a part of the samples, before all are read.
#[derive(Clone, Copy)]
pub struct EarlyProfile<'a> {
    /// Of one chunk of the recording in so many.
    pub one_in: NonZeroUsize,
    /// Gets it; all samples are read when it returns.
    pub take: &'a dyn Fn(Profile),
}

impl Profile {
    /// Reads and resolves a recording.
    ///
    /// # Errors
    /// When the file cannot be read at all. Damage inside it is not an error: see
    /// [`Loaded::summary`].
    pub fn open(
        recording: &Recording,
        load_options: &LoadOptions,
        resolve_options: ResolveOptions,
        store: &SymbolStore,
        progress: Progress<'_>,
    ) -> Result<Profile, ReadError> {
        Profile::open_early(recording, load_options, (resolve_options, store), progress, None)
    }

    /// The same; `early` gets a profile of a part of a large recording's samples as soon as it can
    /// be had: of one chunk in so many, evenly over the recording.
    ///
    /// # Errors
    /// Those of [`Profile::open`].
    pub fn open_early(
        recording: &Recording,
        load_options: &LoadOptions,
        (resolve_options, store): (ResolveOptions, &SymbolStore),
        progress: Progress<'_>,
        early: Option<EarlyProfile<'_>>,
    ) -> Result<Profile, ReadError> {
        // Reading the kernel's symbol list takes as long as a pass, and nearly every recording
        // needs it.
        let of_kernel =
            recording.events.list.iter().any(|e| e.attr.flags & abi::ATTR_FLAG_EXCLUDE_KERNEL == 0);
        let symbols_of_kernel = |timeline: &Timeline| {
            if of_kernel && let Some(text) = timeline.kernel.text {
                Resolver::new(timeline, store).symbols(text);
            }
        };
        std::thread::scope(|scope| {
            // It is read by the kernel on one CPU: the sooner it begins, the less waits for it.
            let kernel = of_kernel.then(|| recorded_kernel(recording)).flatten();
            if let Some(build_id) = kernel {
                let read_list = move || store.prepare_symbol_list(build_id);
                _ = std::thread::Builder::new().spawn_scoped(scope, read_list);
            }
            let first = FirstPass::read(recording, load_options, store.options(), progress)?;
            if let Some(EarlyProfile { one_in, take }) = early
                && let Some(loaded) = first.some_samples(one_in, &symbols_of_kernel)?
            {
                take(Profile::of_loaded(recording, loaded, load_options, (resolve_options, store)));
            }
            let loaded = first.samples(progress, &symbols_of_kernel)?;
            Ok(Profile::of_loaded(recording, loaded, load_options, (resolve_options, store)))
        })
    }

    fn of_loaded(
        recording: &Recording,
        loaded: Loaded,
        load_options: &LoadOptions,
        (resolve_options, store): (ResolveOptions, &SymbolStore),
    ) -> Profile {
        let mut functions = Functions::default();
        let resolver = Resolver::new(&loaded.timeline, store);
        let stacks = resolver.resolve(&loaded.chains, &mut functions, resolve_options);
        let heavy = heavy_modules(&loaded, &functions, &stacks);
        let (notes, absences) = (resolver.notes(&heavy), resolver.absences(&heavy));
        let traces = if load_options.dims.raw { traces(recording, &loaded, &resolver) } else { Vec::new() };
        Profile { loaded, functions, stacks, notes, absences, traces }
    }

    /// The text of a tracepoint's fields; empty where none was asked for.
    pub fn trace(&self, extra: ExtraId) -> &str {
        self.traces.get(extra as usize).map_or("", |text| text)
    }

    /// Cuts each stack below the outermost function that matches: what it called counts as its own.
    pub fn ignore_callees(&mut self, pattern: &Regex) {
        let matching: Vec<bool> = self
            .functions
            .iter()
            .map(|(_, f)| !f.inlined && f.name.as_deref().is_some_and(|name| pattern.is_match(name)))
            .collect();
        self.stacks.cut_below(|function| matching[function.0 as usize]);
    }

    /// What a table calls a module: its short name, `[unknown]` outside every mapping.
    pub fn module_name(&self, function: FunctionId) -> &str {
        match self.functions.get(function).module {
            Some(module) => &self.loaded.timeline.modules.get(module).short_name,
            None => "[unknown]",
        }
    }

    /// A frame as call graphs show it: the name, `(inlined)` after inlined ones, an address where
    /// there is no name.
    pub fn frame_name(&self, function: FunctionId) -> String {
        let f = self.functions.get(function);
        match &f.name {
            Some(name) if f.inlined => format!("{name} (inlined)"),
            Some(name) => name.to_string(),
            // As C prints it: zero has no prefix.
            None if f.start == 0 => "0".to_string(),
            None => format!("{:#x}", f.start),
        }
    }
}

/// The build id of the kernel that was recorded, as far as it is known before the records are read;
/// `None` where nothing says that it is the running one or another one that is known.
fn recorded_kernel(recording: &Recording) -> Option<Option<Vec<u8>>> {
    let features = &recording.features;
    if let Some(id) = features.kernel_build_id() {
        return Some(Some(id.to_vec()));
    }
    let running = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    (features.os_release.as_deref() == Some(running.trim())).then_some(None)
}

fn traces(recording: &Recording, loaded: &Loaded, resolver: &Resolver<'_>) -> Vec<Box<str>> {
    let mut tracepoints = Tracepoints::of(recording);
    let mut text = |extra: &Extra| {
        let raw = extra.raw.as_ref()?;
        let event = recording.events.list.get(extra.event as usize)?;
        tracepoints.as_mut()?.text(event.attr.config, raw, resolver)
    };
    loaded.extras.iter().map(|extra| text(extra).unwrap_or_default().into()).collect()
}

/// Modules with at least one sample in a hundred: missing names elsewhere are not worth a sentence.
fn heavy_modules(loaded: &Loaded, functions: &Functions, stacks: &Stacks) -> Vec<ModuleId> {
    let mut samples: FxHashMap<ModuleId, u64> = FxHashMap::default();
    let mut all = 0;
    for (key, count) in &loaded.groups {
        all += count.samples;
        if let Some(module) = functions.get(stacks.leaf(key.chain)).module {
            *samples.entry(module).or_default() += count.samples;
        }
    }
    let mut heavy: Vec<ModuleId> =
        samples.into_iter().filter(|(_, n)| n * 100 >= all).map(|(m, _)| m).collect();
    heavy.sort_unstable();
    heavy
}
