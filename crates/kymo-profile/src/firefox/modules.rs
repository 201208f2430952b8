//! Modules as the profiler names them in its requests, and addresses as offsets in them.
use super::frames::{FrameFacts, FrameSide, FrameSource};
use crate::raw_frames::Place;
use crate::resolve::Resolver;
use crate::timeline::{ModuleId, ModuleKind, Timeline};
use kymo_symbols::ModuleKey;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::borrow::Cow;

const MODE_KERNEL: u8 = 1;

/// A module whose symbols are in files.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FirefoxModule {
    /// Its file's name.
    pub name: String,
    /// Its path.
    pub path: String,
    /// The same as its name.
    pub debug_name: String,
    /// The same as its path.
    pub debug_path: String,
    /// Its build id in the form of breakpad; see [`breakpad_id`].
    pub breakpad_id: String,
    /// Its build id in hexadecimal digits, if it is known.
    pub code_id: Option<String>,
    arch: Option<String>,
    /// Where its symbols are asked for.
    #[serde(skip)]
    pub key: ModuleKey,
    /// What is added to an offset of the profile for an address of the module's symbols: 0 of
    /// files, whose addresses are file offsets.
    #[serde(skip)]
    pub base: u64,
}

impl FirefoxModule {
    /// A module by its name and path. `number`: one that no other module has, which stands for a
    /// build id that is not known. `base`: see [`FirefoxModule::base`].
    pub fn new(
        (name, path): (String, String),
        build_id: Option<&[u8]>,
        number: u64,
        (key, base): (ModuleKey, u64),
    ) -> FirefoxModule {
        FirefoxModule {
            debug_name: name.clone(),
            debug_path: path.clone(),
            name,
            path,
            breakpad_id: build_id.map_or_else(|| format!("{:032X}0", number + 1), breakpad_id),
            code_id: build_id.map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect()),
            arch: None,
            key,
            base,
        }
    }
}

/// A build id as breakpad writes it: the first 16 bytes as a GUID, whose first three fields are
/// little-endian, and the age 0.
pub fn breakpad_id(build_id: &[u8]) -> String {
    let mut bytes = [0; 16];
    let count = build_id.len().min(16);
    bytes[..count].copy_from_slice(&build_id[..count]);
    bytes[..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
    let digits: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
    format!("{digits}0")
}

/// A frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum FrameSpot {
    /// An address of a module in the list.
    Address { module: u32, address: u64, mode: u8 },
    /// What has no module with files: generated code by its name, or an address.
    Label { text: String, mode: u8 },
}

/// The modules and frames of a profile.
#[derive(Debug)]
pub(super) struct ModuleTable<'a> {
    resolver: &'a Resolver<'a>,
    timeline: &'a Timeline,
    list: Vec<FirefoxModule>,
    by_id: FxHashMap<ModuleId, u32>,
    frames: Vec<FrameSpot>,
    by_frame: FxHashMap<FrameSpot, u32>,
    by_place: FxHashMap<Place, u32>,
}

impl<'a> ModuleTable<'a> {
    pub(super) fn new(resolver: &'a Resolver<'a>, timeline: &'a Timeline) -> ModuleTable<'a> {
        ModuleTable {
            resolver,
            timeline,
            list: Vec::new(),
            by_id: FxHashMap::default(),
            frames: Vec::new(),
            by_frame: FxHashMap::default(),
            by_place: FxHashMap::default(),
        }
    }

    /// The number of the frame of an address.
    pub(super) fn frame(&mut self, place: Place) -> u32 {
        if let Some(known) = self.by_place.get(&place) {
            return *known;
        }
        let frame = self.frame_of(place);
        let next = self.frames.len() as u32;
        let number = *self.by_frame.entry(frame.clone()).or_insert(next);
        if number == next {
            self.frames.push(frame);
        }
        self.by_place.insert(place, number);
        number
    }

    fn frame_of(&mut self, place: Place) -> FrameSpot {
        let named = self.resolver.named(place, false);
        let Place { maps, mode, .. } = place;
        if let Some(id) = named.module
            && self.resolver.has_files(id)
        {
            let module = self.module(id, maps, mode, named.address);
            let address = named.module_address.wrapping_sub(self.list[module as usize].base);
            // The profiler's numbers are exact up to 53 bits.
            if address < 1 << 53 {
                return FrameSpot::Address { module, address, mode };
            }
        }
        let text = named.symbol.map_or_else(|| format!("{:#x}", place.ip), |(_, _, name)| name.into());
        FrameSpot::Label { text, mode }
    }

    fn module(&mut self, id: ModuleId, maps: u32, mode: u8, ip: u64) -> u32 {
        if let Some(known) = self.by_id.get(&id) {
            return *known;
        }
        let module = self.timeline.modules.get(id);
        let number = self.list.len() as u32;
        let mapping = self.resolver.mapping(maps, mode, ip);
        // Of the kernel whole addresses are known; a base makes them small, and is no secret.
        let base =
            mapping.filter(|mapping| mapping.identity).map_or(0, |mapping| mapping.start & !0x3fff_ffff);
        let name = match module.kind {
            ModuleKind::Vdso => "[vdso]".to_owned(),
            _ => module.short_name.clone(),
        };
        let path = String::from_utf8_lossy(&module.path).into_owned();
        let build_id = Some(&module.build_id[..]).filter(|id| !id.is_empty());
        let key = self.resolver.key(id).clone();
        self.list.push(FirefoxModule::new((name, path), build_id, u64::from(number), (key, base)));
        self.by_id.insert(id, number);
        number
    }

    pub(super) fn finish(self) -> Vec<FirefoxModule> {
        self.list
    }
}

impl FrameSource for ModuleTable<'_> {
    /// Each frame has a function of its own until the profiler has names.
    fn frame_facts(&self, frame: u32) -> FrameFacts<'_> {
        let side = |mode| if mode == MODE_KERNEL { FrameSide::Kernel } else { FrameSide::Program };
        let (name, module, address, side) = match &self.frames[frame as usize] {
            FrameSpot::Address { module, address, mode } => {
                (Cow::Owned(format!("{address:#x}")), Some(*module), Some(*address), side(*mode))
            }
            FrameSpot::Label { text, mode } => (Cow::Borrowed(&text[..]), None, None, side(*mode)),
        };
        FrameFacts { name, function: None, module, address, side, inline_depth: 0, file: None, line: None }
    }

    fn module_name(&self, module: u32) -> &str {
        &self.list[module as usize].name
    }
}
