//! The document: tables of columns for each thread.
use super::frames::{FrameFacts, FrameSide, FrameSource};
use super::modules::FirefoxModule;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};
use serde_json::json;

/// Indexes of `meta.categories`.
const OTHER: u32 = 0;
const USER: u32 = 1;
const KERNEL: u32 = 2;
/// The schema of the markers.
const MARKER: &str = "kymo";
/// The type of a resource that is a library.
const LIBRARY: u32 = 1;

/// The whole profile.
#[derive(Serialize)]
pub(crate) struct Document<'a> {
    pub(crate) meta: Meta,
    pub(crate) libs: &'a [FirefoxModule],
    pub(crate) threads: Vec<ThreadTables>,
}

/// A stretch of time on a thread's track.
pub(crate) struct Marker {
    /// What is shown on it.
    pub(crate) name: String,
    /// Begin and end, ns.
    pub(crate) span_ns: (u64, u64),
    /// What ended it, or how much it is about.
    pub(crate) detail: String,
}

/// What the profile is.
pub(crate) struct Meta(serde_json::Value);

impl Serialize for Meta {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl Meta {
    /// `is_symbolicated`: frames have names, and none is asked for.
    pub(crate) fn new(
        (title, event): (&str, &str),
        start_unix_ns: Option<u64>,
        is_symbolicated: bool,
    ) -> Meta {
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
            "symbolicated": is_symbolicated,
            "stackwalk": 1,
            "usesOnlyOneStackType": true,
            "doesNotUseFrameImplementation": true,
            "sourceCodeIsNotOnSearchfox": true,
            "categories": [
                category("Other", "grey"), category("User", "yellow"), category("Kernel", "orange"),
            ],
            "markerSchema": [{
                "name": MARKER,
                "display": ["marker-chart", "marker-table", "timeline-overview"],
                "chartLabel": "{marker.name}",
                "tooltipLabel": "{marker.name}",
                "tableLabel": "{marker.name}: {marker.data.detail}",
                "data": [{"key": "detail", "label": "Detail", "format": "string"}],
            }],
            "extensions": {"length": 0, "baseURL": [], "id": [], "name": []},
            "importedFrom": "kymo",
        }))
    }
}

/// A stack of a thread: the rest of it, and its innermost frame.
type Stack = (Option<u32>, u32);

/// A frame in a table.
#[derive(Debug)]
struct FrameEntry {
    address: Option<u64>,
    category: u32,
    function: u32,
    inline_depth: u32,
    line: Option<u32>,
}

/// A function in a table: its name and file as strings, and the place of its resource.
#[derive(Debug)]
struct Function {
    name: u32,
    resource: Option<u32>,
    file: Option<u32>,
}

/// A sample in a table.
#[derive(Debug)]
struct Sample {
    stack: Option<u32>,
    time_ns: u64,
    weight: Option<SampleWeight>,
}

/// What a sample stands for, where it is not one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SampleWeight {
    /// Time, ns.
    Time(u64),
    Bytes(u64),
    /// So many samples, or of another thing that was counted.
    Count(u64),
}

impl SampleWeight {
    /// The number that the profiler reads, and its name of what that is.
    fn number(self) -> (serde_json::Number, &'static str) {
        let ms = |ns: u64| serde_json::Number::from_f64(ns as f64 / 1e6);
        match self {
            SampleWeight::Time(ns) => (ms(ns).unwrap_or_else(|| 0.into()), "tracing-ms"),
            SampleWeight::Bytes(bytes) => (bytes.into(), "bytes"),
            SampleWeight::Count(count) => (count.into(), "samples"),
        }
    }
}

/// The tables of a thread.
#[derive(Debug)]
pub(crate) struct ThreadTables {
    pid: i32,
    /// How many processes had the number before.
    earlier_processes: u32,
    tid: i32,
    name: String,
    process_name: String,
    strings: Vec<String>,
    by_string: FxHashMap<String, u32>,
    functions: Vec<Function>,
    by_function: FxHashMap<u32, u32>,
    /// Module and name of each resource.
    resources: Vec<(u32, u32)>,
    by_module: FxHashMap<u32, u32>,
    frames: Vec<FrameEntry>,
    /// By the number of the profile.
    by_frame: FxHashMap<u32, u32>,
    stacks: Vec<Stack>,
    by_stack: FxHashMap<Stack, u32>,
    /// By the caller's number of a stack.
    by_number: FxHashMap<u32, Option<u32>>,
    samples: Vec<Sample>,
    /// Name, begin and end in ns, detail.
    markers: Vec<(u32, (u64, u64), String)>,
}

impl ThreadTables {
    pub(crate) fn new(pid: i32, tid: i32, earlier_processes: u32) -> ThreadTables {
        ThreadTables {
            pid,
            earlier_processes,
            tid,
            name: String::new(),
            process_name: String::new(),
            strings: Vec::new(),
            by_string: FxHashMap::default(),
            functions: Vec::new(),
            by_function: FxHashMap::default(),
            resources: Vec::new(),
            by_module: FxHashMap::default(),
            frames: Vec::new(),
            by_frame: FxHashMap::default(),
            stacks: Vec::new(),
            by_stack: FxHashMap::default(),
            by_number: FxHashMap::default(),
            samples: Vec::new(),
            markers: Vec::new(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The last one stays.
    pub(crate) fn set_name(&mut self, name: &str) {
        if self.name != name {
            name.clone_into(&mut self.name);
        }
    }

    pub(crate) fn set_process_name(&mut self, names: &FxHashMap<(i32, u32), String>) {
        self.process_name = names.get(&(self.pid, self.earlier_processes)).unwrap_or(&self.name).clone();
    }

    /// A sample with its stack, which has a number and frames, outermost first. `weight`: what it
    /// stands for, where that is not one sample.
    pub(crate) fn add_sample(
        &mut self,
        (time_ns, weight): (u64, Option<SampleWeight>),
        (number, frames): (u32, &[u32]),
        source: &impl FrameSource,
    ) {
        let stack = match self.by_number.get(&number) {
            Some(known) => *known,
            None => {
                let stack = frames.iter().fold(None, |prefix, frame| {
                    let frame = self.frame(*frame, source);
                    Some(self.stack((prefix, frame)))
                });
                self.by_number.insert(number, stack);
                stack
            }
        };
        self.samples.push(Sample { stack, time_ns, weight });
    }

    /// A stretch of time on the thread's track.
    pub(crate) fn add_marker(&mut self, marker: Marker) {
        let name = self.string(&marker.name);
        self.markers.push((name, marker.span_ns, marker.detail));
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

    fn frame(&mut self, number: u32, source: &impl FrameSource) -> u32 {
        if let Some(known) = self.by_frame.get(&number) {
            return *known;
        }
        let facts = source.frame_facts(number);
        let category = match facts.side {
            FrameSide::Program => USER,
            FrameSide::Kernel => KERNEL,
            FrameSide::State => OTHER,
        };
        let function = self.function(&facts, source);
        let FrameFacts { address, inline_depth, line, .. } = facts;
        self.frames.push(FrameEntry { address, category, function, inline_depth, line });
        let own = (self.frames.len() - 1) as u32;
        self.by_frame.insert(number, own);
        own
    }

    fn function(&mut self, facts: &FrameFacts<'_>, source: &impl FrameSource) -> u32 {
        if let Some(known) = facts.function.and_then(|function| self.by_function.get(&function)) {
            return *known;
        }
        let name = self.string(&facts.name);
        let file = facts.file.map(|file| self.string(file));
        let resource = facts.module.map(|module| self.resource(module, source));
        let number = self.functions.len() as u32;
        self.functions.push(Function { name, resource, file });
        if let Some(function) = facts.function {
            self.by_function.insert(function, number);
        }
        number
    }

    fn resource(&mut self, module: u32, source: &impl FrameSource) -> u32 {
        if let Some(known) = self.by_module.get(&module) {
            return *known;
        }
        let name = self.string(source.module_name(module));
        let number = self.resources.len() as u32;
        self.resources.push((module, name));
        self.by_module.insert(module, number);
        number
    }
}

/// The samples of a thread as a table, column by column.
struct SampleTable<'a>(&'a [Sample]);

/// A column that is written while it is made.
struct Column<F>(F);

impl<T: Serialize, I: Iterator<Item = T>, F: Fn() -> I> Serialize for Column<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

impl Serialize for SampleTable<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let samples = self.0;
        let weights = samples.first().and_then(|sample| sample.weight);
        let ms = |ns: u64| ns as f64 / 1e6;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("length", &samples.len())?;
        map.serialize_entry("stack", &Column(|| samples.iter().map(|sample| sample.stack)))?;
        map.serialize_entry("time", &Column(|| samples.iter().map(|sample| ms(sample.time_ns))))?;
        if let Some(first) = weights {
            let weight = |sample: &Sample| sample.weight.map(|weight| weight.number().0);
            map.serialize_entry("weight", &Column(|| samples.iter().map(weight)))?;
            map.serialize_entry("weightType", first.number().1)?;
        } else {
            map.serialize_entry("weight", &None::<u32>)?;
            map.serialize_entry("weightType", "samples")?;
        }
        map.end()
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
        // The profiler takes any text.
        let pid = match self.earlier_processes {
            0 => self.pid.to_string(),
            number => format!("{}.{number}", self.pid),
        };
        map.serialize_entry("pid", &pid)?;
        map.serialize_entry("tid", &self.tid)?;
        map.serialize_entry("processStartupTime", &0)?;
        map.serialize_entry("processShutdownTime", &none)?;
        map.serialize_entry("registerTime", &0)?;
        map.serialize_entry("unregisterTime", &none)?;
        map.serialize_entry("pausedRanges", &[(); 0])?;
        map.serialize_entry("samples", &SampleTable(&self.samples))?;
        map.serialize_entry(
            "stackTable",
            &json!({
                "length": self.stacks.len(),
                "prefix": column(&self.stacks, |(prefix, _)| *prefix),
                "frame": column(&self.stacks, |(_, frame)| *frame),
                "category": column(&self.stacks, |(_, frame)| self.frames[*frame as usize].category),
                "subcategory": same(self.stacks.len(), 0),
            }),
        )?;
        map.serialize_entry(
            "frameTable",
            &json!({
                "length": frames,
                "address": column(&self.frames, |frame| frame.address.map_or(-1, |address| address as i64)),
                "inlineDepth": column(&self.frames, |frame| frame.inline_depth),
                "category": column(&self.frames, |frame| frame.category),
                "subcategory": same(frames, 0),
                "func": column(&self.frames, |frame| frame.function),
                "nativeSymbol": same(frames, none),
                "innerWindowID": same(frames, none),
                "implementation": same(frames, none),
                "line": column(&self.frames, |frame| frame.line),
                "column": same(frames, none),
            }),
        )?;
        map.serialize_entry(
            "funcTable",
            &json!({
                "length": functions,
                "name": column(&self.functions, |function| function.name),
                "isJS": same(functions, false),
                "relevantForJS": same(functions, false),
                "resource": column(&self.functions, |function| function.resource.map_or(-1, i64::from)),
                "fileName": column(&self.functions, |function| function.file),
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
        let markers = self.markers.len();
        map.serialize_entry(
            "markers",
            &json!({
                "length": markers,
                "category": same(markers, OTHER),
                "data": column(&self.markers, |(.., detail)| json!({"type": MARKER, "detail": detail})),
                "startTime": column(&self.markers, |(_, (begin, _), _)| *begin as f64 / 1e6),
                "endTime": column(&self.markers, |(_, (_, end), _)| *end as f64 / 1e6),
                "name": column(&self.markers, |(name, ..)| *name),
                // A span with a begin and an end.
                "phase": same(markers, 1),
            }),
        )?;
        map.serialize_entry("stringArray", &self.strings)?;
        map.end()
    }
}
