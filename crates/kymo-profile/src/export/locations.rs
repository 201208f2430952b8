//! The frames of each stack as addresses: where they are mapped, what was inlined there, and the
//! lines of their source files.
use super::collect::{function_of, module_of_unnamed};
use super::model::{Function, FunctionKind, NO_PARENT, Node};
use crate::chains::{ChainId, Chains};
use crate::functions::{FunctionId, Functions};
use crate::profile::Profile;
use crate::raw_frames::{Place, walk_chain};
use crate::resolve::{KernelIdentity, Resolver, SourcePlace, Stacks};
use crate::timeline::{ModuleId, ModuleKind, Timeline};
use crate::wall::{Wall, only_switches};
use kymo_symbols::pool;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Frames of a stack that are looked at, as in reports.
const MOST_FRAMES: usize = 127;

/// What is known of the frames of all stacks.
#[derive(Debug, Default)]
pub struct Locations {
    /// The pieces of address spaces that frames lie in.
    pub mappings: Vec<MappedFile>,
    /// Distinct frames.
    pub list: Vec<FrameLocation>,
    lines: Vec<LocationLine>,
    /// Frames of all stacks, innermost first, as places in the list.
    frames: Vec<u32>,
    /// Where each stack's frames end.
    ends: Vec<u32>,
    /// By function its source file, as far as known.
    files: Vec<Option<Arc<str>>>,
}

/// A file, or another module, in an address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedFile {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// Offset of the first address in the file, bytes.
    pub offset: u64,
    /// Path, or name in brackets.
    pub path: String,
    /// Base name, as tables show it.
    pub short_name: String,
    /// Build id, empty if not known.
    pub build_id: Vec<u8>,
    /// The kernel, or one of its modules.
    pub is_kernel: bool,
    /// What kind of thing it is.
    pub kind: ModuleKind,
}

/// A frame of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameLocation {
    /// Place in [`Locations::mappings`], `None` outside every mapping.
    pub mapping: Option<u32>,
    /// Address in the process: of the call for callers. 0 where it is not known.
    pub address: u64,
    /// The address that symbols were looked up by, the same in every process and on every host: an
    /// offset in the file, in the kernel from `_text` on, in its modules from their beginning on. 0
    /// where there is none: outside of files.
    pub file_address: u64,
    begin: u32,
    end: u32,
}

/// A function at a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocationLine {
    /// Index into the functions of the profile.
    pub function: u32,
    /// Line in the function's source file, 0 if not known.
    pub line: u32,
}

impl Locations {
    /// Those of a profile; `functions` are those of the export that was made from it.
    pub(super) fn of_profile(
        profile: &Profile,
        resolver: &Resolver<'_>,
        functions: &[Function],
    ) -> Locations {
        let loaded = &profile.loaded;
        let (chains, timeline) = (&loaded.chains, &loaded.timeline);
        let stacks =
            ResolvedStacks { chains, timeline, functions: &profile.functions, stacks: &profile.stacks };
        let mut builder = Builder::new(stacks, resolver, functions);
        builder.add_stacks(Frames::All);
        builder.locations
    }

    /// Those of the spans of wall time: each stack as a thread runs on it, then each as one waits
    /// on it, from where the wait begins. `functions` are those of the export, all of the stacks
    /// among them.
    pub(super) fn of_wall(wall: &Wall, resolver: &Resolver<'_>, functions: &[Function]) -> Locations {
        let (chains, timeline) = (&wall.chains, &wall.timeline);
        let stacks = ResolvedStacks { chains, timeline, functions: &wall.functions, stacks: &wall.stacks };
        let mut builder = Builder::new(stacks, resolver, functions);
        builder.add_stacks(Frames::All);
        builder.add_stacks(Frames::OfWait);
        builder.locations
    }

    /// Those of a call tree without addresses: each node is a stack, and each function a frame.
    pub(super) fn of_nodes(nodes: &[Node], functions: &[Function]) -> Locations {
        let mut locations = Locations { files: vec![None; functions.len()], ..Locations::default() };
        for function in 0..functions.len() as u32 {
            locations.lines.push(LocationLine { function, line: 0 });
            let (begin, end) = (function, function + 1);
            locations.list.push(FrameLocation { mapping: None, address: 0, file_address: 0, begin, end });
        }
        for at in 0..nodes.len() {
            let mut at = at;
            loop {
                let Node { parent, function, .. } = nodes[at];
                let is_frame = functions.get(function as usize).is_some_and(|f| f.kind != FunctionKind::Comm);
                if is_frame {
                    locations.frames.push(function);
                }
                if parent == NO_PARENT || parent as usize >= at {
                    break;
                }
                at = parent as usize;
            }
            locations.ends.push(locations.frames.len() as u32);
        }
        locations
    }

    /// The frames of a stack, innermost first, as places in [`Locations::list`].
    pub fn stack(&self, stack: u32) -> &[u32] {
        let begin = (stack as usize).checked_sub(1).map_or(0, |before| self.ends[before]) as usize;
        &self.frames[begin..self.ends[stack as usize] as usize]
    }

    /// How many stacks there are.
    pub fn stack_count(&self) -> u32 {
        self.ends.len() as u32
    }

    /// The functions at a location, innermost first: those but the last are inlined.
    pub fn lines(&self, location: &FrameLocation) -> &[LocationLine] {
        &self.lines[location.begin as usize..location.end as usize]
    }

    /// The source file of a function, if debug information says.
    pub fn file(&self, function: u32) -> Option<&str> {
        self.files.get(function as usize)?.as_deref()
    }
}

/// Stacks as addresses, and as functions.
#[derive(Clone, Copy)]
struct ResolvedStacks<'a> {
    chains: &'a Chains,
    timeline: &'a Timeline,
    functions: &'a Functions,
    /// There may be more of them: those have no addresses.
    stacks: &'a Stacks,
}

impl ResolvedStacks<'_> {
    /// The addresses of a stack, innermost first; only the sampled one if it has no call chain.
    fn places_of(&self, stack: ChainId, places: &mut Vec<Place>) {
        places.clear();
        if stack as usize >= self.chains.len() {
            return;
        }
        let chain = self.chains.get(stack);
        walk_chain(self.chains, chain, MOST_FRAMES, |place| places.push(place));
        if places.is_empty() {
            places.push(Place::sampled(chain));
        }
    }

    fn ids(&self) -> std::ops::Range<ChainId> {
        0..self.stacks.len() as ChainId
    }
}

/// Which frames of a stack there are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Frames {
    All,
    /// Those from where a wait begins: without the kernel's innermost ones, which only switch.
    OfWait,
}

struct Builder<'a> {
    source: ResolvedStacks<'a>,
    resolver: &'a Resolver<'a>,
    /// By function of the profile that of the export.
    numbers: FxHashMap<FunctionId, u32>,
    /// By module that of its code without symbols.
    unnamed: FxHashMap<Option<ModuleId>, u32>,
    by_function: FxHashMap<&'a Function, u32>,
    locations: Locations,
    mapping_numbers: FxHashMap<(u64, u64, u64, ModuleId), u32>,
    /// Locations by place, and whether inlined functions were left out.
    by_place: FxHashMap<(Place, u32), u32>,
    /// Locations by what they say: mapping, both addresses and lines.
    by_content: FxHashMap<(Option<u32>, u64, u64, Vec<LocationLine>), u32>,
    source_places: FxHashMap<Place, Vec<Option<SourcePlace>>>,
    /// Where the kernel's `_text` lay, if the recording says.
    kernel_text: Option<u64>,
}

impl<'a> Builder<'a> {
    fn new(source: ResolvedStacks<'a>, resolver: &'a Resolver<'a>, functions: &'a [Function]) -> Builder<'a> {
        let reference = KernelIdentity::of(source.timeline).reference;
        let mut builder = Builder {
            source,
            resolver,
            numbers: FxHashMap::default(),
            unnamed: FxHashMap::default(),
            by_function: functions.iter().zip(0..).collect(),
            locations: Locations { files: vec![None; functions.len()], ..Locations::default() },
            mapping_numbers: FxHashMap::default(),
            by_place: FxHashMap::default(),
            by_content: FxHashMap::default(),
            source_places: FxHashMap::default(),
            kernel_text: reference.filter(|(symbol, _)| symbol == "_text").map(|(_, address)| address),
        };
        builder.source_places = builder.look_up_lines();
        builder
    }

    /// Adds all stacks, in their order.
    fn add_stacks(&mut self, frames: Frames) {
        let mut places = Vec::new();
        for stack in self.source.ids() {
            self.source.places_of(stack, &mut places);
            self.add_stack(stack, &places, frames);
            self.locations.ends.push(self.locations.frames.len() as u32);
        }
    }

    fn look_up_lines(&self) -> FxHashMap<Place, Vec<Option<SourcePlace>>> {
        let (mut places, mut of_stack) = (Vec::new(), Vec::new());
        for stack in self.source.ids() {
            self.source.places_of(stack, &mut of_stack);
            places.extend_from_slice(&of_stack);
            if places.len() > 1 << 20 {
                places.sort_unstable();
                places.dedup();
            }
        }
        places.sort_unstable();
        places.dedup();
        let found = pool::map(&places, |place| self.resolver.source_places(*place));
        places.into_iter().zip(found).filter(|(_, found)| !found.is_empty()).collect()
    }

    /// Divides the functions of a stack among its addresses: the last of each is not inlined.
    fn add_stack(&mut self, stack: ChainId, places: &[Place], wanted: Frames) {
        let source = self.source;
        let leaf = [source.stacks.leaf(stack)];
        let frames = match source.stacks.frames(stack) {
            [] => &leaf[..],
            frames => frames,
        };
        let mut rest = frames;
        let mut has_begun = wanted == Frames::All;
        for place in places {
            let is_inlined = |id: &FunctionId| source.functions.get(*id).inlined;
            let count = rest.iter().position(|id| !is_inlined(id)).map_or(rest.len(), |at| at + 1);
            let (here, after) = rest.split_at(count);
            rest = after;
            if here.is_empty() {
                return;
            }
            has_begun = has_begun || !here.iter().all(|id| only_switches(source.functions.get(*id)));
            if !has_begun {
                continue;
            }
            let known = (*place, count as u32);
            let location = match self.by_place.get(&known) {
                Some(location) => *location,
                None => {
                    let location = self.location(*place, here);
                    self.by_place.insert(known, location);
                    location
                }
            };
            self.locations.frames.push(location);
        }
    }

    fn location(&mut self, place: Place, functions: &[FunctionId]) -> u32 {
        let numbers: Vec<u32> = functions.iter().map(|id| self.function(*id)).collect();
        let sources = self.source_places.get(&place).map_or(&[][..], |sources| sources);
        // Both end with the symbol.
        let missing = numbers.len().saturating_sub(sources.len());
        let sources = &sources[sources.len().saturating_sub(numbers.len())..];
        let mut lines: Vec<LocationLine> =
            numbers.into_iter().map(|function| LocationLine { function, line: 0 }).collect();
        for (line, source) in lines[missing..].iter_mut().zip(sources) {
            let Some((file, number)) = source else { continue };
            let known = &mut self.locations.files[line.function as usize];
            // A function has one file: a line of another one would be a line of the wrong file.
            if known.get_or_insert_with(|| Arc::clone(file)) == file {
                line.line = *number;
            }
        }
        let Place { maps, mode, .. } = place;
        let address = self.resolver.named(place, false).address;
        let mapping = self.mapping(maps, mode, address);
        let file_address = self.file_address(maps, mode, address);
        let next = self.locations.list.len() as u32;
        *self.by_content.entry((mapping, address, file_address, lines)).or_insert_with_key(|key| {
            let begin = self.locations.lines.len() as u32;
            self.locations.lines.extend_from_slice(&key.3);
            let end = self.locations.lines.len() as u32;
            self.locations.list.push(FrameLocation { mapping, address, file_address, begin, end });
            next
        })
    }

    fn file_address(&self, maps: u32, mode: u8, ip: u64) -> u64 {
        let Some(mapping) = self.resolver.mapping(maps, mode, ip) else { return 0 };
        match self.source.timeline.modules.get(mapping.module).kind {
            ModuleKind::File | ModuleKind::Vdso => mapping.module_address(ip),
            ModuleKind::Kernel => self.kernel_text.map_or(0, |text| ip.wrapping_sub(text)),
            ModuleKind::KernelModule => ip.wrapping_sub(mapping.start),
            _ => 0,
        }
    }

    fn function(&mut self, id: FunctionId) -> u32 {
        let (functions, modules) = (self.source.functions, &self.source.timeline.modules);
        let find = || self.by_function.get(&function_of(functions, modules, id)).copied().unwrap_or(0);
        match module_of_unnamed(functions, id) {
            Some(module) => *self.unnamed.entry(module).or_insert_with(find),
            None => *self.numbers.entry(id).or_insert_with(find),
        }
    }

    fn mapping(&mut self, maps: u32, mode: u8, ip: u64) -> Option<u32> {
        let mapping = self.resolver.mapping(maps, mode, ip)?;
        let next = self.locations.mappings.len() as u32;
        let key = (mapping.start, mapping.end, mapping.pgoff, mapping.module);
        let number = *self.mapping_numbers.entry(key).or_insert(next);
        if number == next {
            let module = self.source.timeline.modules.get(mapping.module);
            let is_kernel =
                matches!(module.kind, ModuleKind::Kernel | ModuleKind::KernelModule | ModuleKind::Ksymbol);
            let path = match module.kind {
                ModuleKind::Kernel => module.short_name.clone(),
                _ => String::from_utf8_lossy(&module.path).into_owned(),
            };
            self.locations.mappings.push(MappedFile {
                start: mapping.start,
                end: mapping.end,
                offset: mapping.pgoff,
                path,
                short_name: module.short_name.clone(),
                build_id: module.build_id.clone(),
                is_kernel,
                kind: module.kind,
            });
        }
        Some(number)
    }
}
