//! The document: tables of columns for each thread.
use super::is_kernel;
use super::modules::{FirefoxModule, FrameSpot, ModuleTable};
use crate::chains::ChainId;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};
use serde_json::json;

/// Indexes of `meta.categories`.
const USER: u32 = 1;
const KERNEL: u32 = 2;
/// The type of a resource that is a library.
const LIBRARY: u32 = 1;

#[derive(Serialize)]
pub(super) struct Document<'a> {
    pub(super) meta: Meta,
    pub(super) libs: &'a [FirefoxModule],
    pub(super) threads: Vec<ThreadTables>,
}

/// What the profile is.
pub(super) struct Meta(serde_json::Value);

impl Serialize for Meta {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl Meta {
    pub(super) fn new(title: &str, event: &str, start_unix_ns: Option<u64>) -> Meta {
        let category =
            |name: &str, color: &str| json!({"name": name, "color": color, "subcategories": ["Other"]});
        Meta(json!({
            "version": 24,
            "preprocessedProfileVersion": 48,
            "product": format!("{title} ({event})"),
            "startTime": start_unix_ns.unwrap_or(0) as f64 / 1e6,
            "interval": 1.0,
            "processType": 0,
            "debug": false,
            "symbolicated": false,
            "stackwalk": 1,
            "usesOnlyOneStackType": true,
            "doesNotUseFrameImplementation": true,
            "sourceCodeIsNotOnSearchfox": true,
            "categories": [
                category("Other", "grey"), category("User", "yellow"), category("Kernel", "orange"),
            ],
            "markerSchema": [],
            "extensions": {"length": 0, "baseURL": [], "id": [], "name": []},
            "importedFrom": "kymo",
        }))
    }
}

/// A stack of a thread: the rest of it, and its innermost frame.
type Stack = (Option<u32>, u32);

/// The tables of a thread.
#[derive(Debug)]
pub(super) struct ThreadTables {
    pid: i32,
    tid: i32,
    name: String,
    process_name: String,
    strings: Vec<String>,
    by_string: FxHashMap<String, u32>,
    /// Names as strings, and the places of their resources.
    functions: Vec<(u32, Option<u32>)>,
    /// Module and name of each resource.
    resources: Vec<(u32, u32)>,
    by_module: FxHashMap<u32, u32>,
    /// Address, category; the function has the same place.
    frames: Vec<(Option<u64>, u32)>,
    /// By the number of the profile.
    by_frame: FxHashMap<u32, u32>,
    stacks: Vec<Stack>,
    by_stack: FxHashMap<Stack, u32>,
    by_chain: FxHashMap<ChainId, Option<u32>>,
    /// Stack, and time in ns.
    samples: Vec<(Option<u32>, u64)>,
}

impl ThreadTables {
    pub(super) fn new(pid: i32, tid: i32) -> ThreadTables {
        ThreadTables {
            pid,
            tid,
            name: String::new(),
            process_name: String::new(),
            strings: Vec::new(),
            by_string: FxHashMap::default(),
            functions: Vec::new(),
            resources: Vec::new(),
            by_module: FxHashMap::default(),
            frames: Vec::new(),
            by_frame: FxHashMap::default(),
            stacks: Vec::new(),
            by_stack: FxHashMap::default(),
            by_chain: FxHashMap::default(),
            samples: Vec::new(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The last one stays.
    pub(super) fn set_name(&mut self, name: &str) {
        if self.name != name {
            name.clone_into(&mut self.name);
        }
    }

    pub(super) fn set_process_name(&mut self, names: &FxHashMap<i32, String>) {
        self.process_name = names.get(&self.pid).unwrap_or(&self.name).clone();
    }

    /// A sample with its frames, outermost first.
    pub(super) fn add_sample(
        &mut self,
        time_ns: u64,
        (chain, frames): (ChainId, &[u32]),
        modules: &ModuleTable<'_>,
    ) {
        let stack = match self.by_chain.get(&chain) {
            Some(known) => *known,
            None => {
                let stack = frames.iter().fold(None, |prefix, frame| {
                    let frame = self.frame(*frame, modules);
                    Some(self.stack((prefix, frame)))
                });
                self.by_chain.insert(chain, stack);
                stack
            }
        };
        self.samples.push((stack, time_ns));
    }

    fn stack(&mut self, stack: Stack) -> u32 {
        let next = self.stacks.len() as u32;
        let number = *self.by_stack.entry(stack).or_insert(next);
        if number == next {
            self.stacks.push(stack);
        }
        number
    }

    fn string(&mut self, text: &str) -> u32 {
        if let Some(known) = self.by_string.get(text) {
            return *known;
        }
        let number = self.strings.len() as u32;
        self.strings.push(text.to_owned());
        self.by_string.insert(text.to_owned(), number);
        number
    }

    fn frame(&mut self, number: u32, modules: &ModuleTable<'_>) -> u32 {
        if let Some(known) = self.by_frame.get(&number) {
            return *known;
        }
        let frame = modules.get(number);
        let category = if is_kernel(frame) { KERNEL } else { USER };
        // Each frame has a function of its own until the profiler has names.
        match frame {
            FrameSpot::Address { module, address, .. } => {
                let name = self.string(&format!("{address:#x}"));
                let resource = self.resource(*module, modules);
                self.functions.push((name, Some(resource)));
                self.frames.push((Some(*address), category));
            }
            FrameSpot::Label { text, .. } => {
                let name = self.string(text);
                self.functions.push((name, None));
                self.frames.push((None, category));
            }
        }
        let own = (self.frames.len() - 1) as u32;
        self.by_frame.insert(number, own);
        own
    }

    fn resource(&mut self, module: u32, modules: &ModuleTable<'_>) -> u32 {
        if let Some(known) = self.by_module.get(&module) {
            return *known;
        }
        let name = self.string(modules.module_name(module));
        let number = self.resources.len() as u32;
        self.resources.push((module, name));
        self.by_module.insert(module, number);
        number
    }
}

/// A column of a table.
fn column<T, U: Serialize>(rows: &[T], of: impl Fn(&T) -> U) -> Vec<U> {
    rows.iter().map(of).collect()
}

/// A column with the same value in each row.
fn same<T: Clone>(rows: usize, value: T) -> Vec<T> {
    vec![value; rows]
}

impl Serialize for ThreadTables {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (frames, functions, none) = (self.frames.len(), self.functions.len(), None::<u32>);
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("processName", &self.process_name)?;
        map.serialize_entry("processType", "default")?;
        map.serialize_entry("isMainThread", &(self.pid == self.tid))?;
        map.serialize_entry("pid", &self.pid.to_string())?;
        map.serialize_entry("tid", &self.tid)?;
        map.serialize_entry("processStartupTime", &0)?;
        map.serialize_entry("processShutdownTime", &none)?;
        map.serialize_entry("registerTime", &0)?;
        map.serialize_entry("unregisterTime", &none)?;
        map.serialize_entry("pausedRanges", &[(); 0])?;
        map.serialize_entry(
            "samples",
            &json!({
                "length": self.samples.len(),
                "stack": column(&self.samples, |(stack, _)| *stack),
                "time": column(&self.samples, |(_, time_ns)| *time_ns as f64 / 1e6),
                "weight": none,
                "weightType": "samples",
            }),
        )?;
        map.serialize_entry(
            "stackTable",
            &json!({
                "length": self.stacks.len(),
                "prefix": column(&self.stacks, |(prefix, _)| *prefix),
                "frame": column(&self.stacks, |(_, frame)| *frame),
                "category": column(&self.stacks, |(_, frame)| self.frames[*frame as usize].1),
                "subcategory": same(self.stacks.len(), 0),
            }),
        )?;
        map.serialize_entry(
            "frameTable",
            &json!({
                "length": frames,
                "address": column(&self.frames, |(address, _)| address.map_or(-1, |address| address as i64)),
                "inlineDepth": same(frames, 0),
                "category": column(&self.frames, |(_, category)| *category),
                "subcategory": same(frames, 0),
                "func": (0..frames).collect::<Vec<usize>>(),
                "nativeSymbol": same(frames, none),
                "innerWindowID": same(frames, none),
                "implementation": same(frames, none),
                "line": same(frames, none),
                "column": same(frames, none),
            }),
        )?;
        map.serialize_entry(
            "funcTable",
            &json!({
                "length": functions,
                "name": column(&self.functions, |(name, _)| *name),
                "isJS": same(functions, false),
                "relevantForJS": same(functions, false),
                "resource": column(&self.functions, |(_, resource)| resource.map_or(-1, i64::from)),
                "fileName": same(functions, none),
                "lineNumber": same(functions, none),
                "columnNumber": same(functions, none),
            }),
        )?;
        map.serialize_entry(
            "resourceTable",
            &json!({
                "length": self.resources.len(),
                "lib": column(&self.resources, |(module, _)| *module),
                "name": column(&self.resources, |(_, name)| *name),
                "host": same(self.resources.len(), none),
                "type": same(self.resources.len(), LIBRARY),
            }),
        )?;
        map.serialize_entry(
            "nativeSymbols",
            &json!({
                "length": 0, "address": [], "functionSize": [], "libIndex": [], "name": [],
            }),
        )?;
        map.serialize_entry("markers", &json!({
            "length": 0, "category": [], "data": [], "endTime": [], "name": [], "phase": [], "startTime": [],
        }))?;
        map.serialize_entry("stringArray", &self.strings)?;
        map.end()
    }
}
