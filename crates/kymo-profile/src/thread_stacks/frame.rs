//! A function in a stack, with its file and line.
use crate::chains::{ChainId, Chains};
use crate::raw_frames::{Place, walk_chain};
use crate::resolve::Resolver;
use crate::timeline::Timeline;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// So many frames of a stack are named.
const MOST_FRAMES: usize = 4096;

/// A function in a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StackFrame {
    /// Its name; of what has none, the address.
    pub function: String,
    /// The file that its code is in; `None` outside of every mapping.
    pub module: Option<String>,
    /// Source file, and the line that it is at.
    pub place: Option<(Arc<str>, u32)>,
    /// The compiler has put it into the next one.
    pub inlined: bool,
    /// It was made while the program ran.
    pub is_generated: bool,
}

/// Names frames; each address once.
pub(super) struct FrameNames<'a> {
    timeline: &'a Timeline,
    resolver: Resolver<'a>,
    known: FxHashMap<Place, Vec<StackFrame>>,
}

impl<'a> FrameNames<'a> {
    pub(super) fn new(timeline: &'a Timeline, resolver: Resolver<'a>) -> FrameNames<'a> {
        FrameNames { timeline, resolver, known: FxHashMap::default() }
    }

    /// The frames of a chain, innermost first.
    pub(super) fn of(&mut self, chains: &Chains, id: ChainId) -> Vec<StackFrame> {
        let mut frames = Vec::new();
        walk_chain(chains, chains.get(id), MOST_FRAMES, |place| {
            let (timeline, resolver) = (self.timeline, &self.resolver);
            let found = self.known.entry(place).or_insert_with(|| frames_at(timeline, resolver, place));
            frames.extend_from_slice(found);
        });
        frames
    }
}

/// The functions at an address, those that are inlined there first.
fn frames_at(timeline: &Timeline, resolver: &Resolver<'_>, place: Place) -> Vec<StackFrame> {
    let found = resolver.named(place, true);
    let module = found.module.map(|module| timeline.modules.get(module));
    let is_generated = module.is_some_and(|module| module.short_name.starts_with("[JIT]"));
    let module = module.map(|module| module.short_name.clone());
    let recorded = found.recorded_address(place);
    let name = found.symbol.map_or_else(|| format!("{recorded:#x}"), |(.., name)| name.into());
    let inlined = found.inlined.len();
    let names = found.inlined.iter().map(|name| name.to_string()).chain([name]);
    let mut places = resolver.source_places(place);
    // The last one is that of the symbol.
    let missing = (inlined + 1).saturating_sub(places.len());
    places.splice(0..0, std::iter::repeat_n(None, missing));
    let mut frames = Vec::new();
    for (number, (function, place)) in names.zip(places).enumerate() {
        frames.push(StackFrame {
            function,
            module: module.clone(),
            place: place.filter(|(_, line)| *line != 0),
            inlined: number < inlined,
            is_generated,
        });
    }
    frames
}

/// Puts the frames that a runtime has named itself in the place of its generated code, from the
/// innermost frame of that to the outermost.
pub(super) fn put_managed(frames: &mut Vec<StackFrame>, managed: &[StackFrame]) {
    let first = frames.iter().position(|frame| frame.is_generated);
    let last = frames.iter().rposition(|frame| frame.is_generated);
    if let (Some(first), Some(last), false) = (first, last, managed.is_empty()) {
        frames.splice(first..=last, managed.iter().cloned());
    }
}
