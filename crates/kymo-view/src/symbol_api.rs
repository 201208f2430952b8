//! What the Firefox Profiler asks of a local server: the profile, names for addresses, source
//! files, and code. The paths and documents are those of the Mozilla symbol server and its
//! followers: `/symbolicate/v5`, `/source/v1` and `/asm/v1`.
//!
//! The page of the profiler is another site's. So these paths have a token of their own, in the
//! path, and answer pages of that one origin alone; the user's own page has another token, and
//! nothing of it is told here.
use kymo_profile::firefox::{FirefoxModule, FirefoxProfile};
use kymo_symbols::disassembly::{SourceFiles, SourceOptions, Syntax, disassemble};
use kymo_symbols::{ModuleSymbols, SymbolStore};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The only site whose pages are answered.
pub(crate) const PROFILER: &str = "https://profiler.firefox.com";
/// Frames of one request.
const MOST_FRAMES: usize = 1 << 18;
/// Names and files of one answer.
const MOST_TEXT_BYTES: usize = 128 << 20;

/// A path of the profiler's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SymbolPath {
    /// The profile itself.
    Profile,
    /// Names for addresses.
    Symbolicate,
    /// A source file.
    Source,
    /// The instructions of a function.
    Assembly,
}

impl SymbolPath {
    /// The path behind the token.
    pub(crate) fn of(path: &str) -> Option<SymbolPath> {
        Some(match path {
            "profile.json" => SymbolPath::Profile,
            "symbolicate/v5" => SymbolPath::Symbolicate,
            "source/v1" => SymbolPath::Source,
            "asm/v1" => SymbolPath::Assembly,
            _ => return None,
        })
    }
}

/// A profile with the modules that may be asked about.
#[derive(Debug)]
pub struct SymbolApi {
    json: Arc<Vec<u8>>,
    modules: Vec<FirefoxModule>,
    /// By debug name and breakpad id.
    by_debug_id: HashMap<(String, String), usize>,
    sources: SourceOptions,
}

/// Why a request has no answer: a sentence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoSymbols(pub(crate) String);

fn refused<T>(why: impl Into<String>) -> Result<T, NoSymbols> {
    Err(NoSymbols(why.into()))
}

/// A job of a request for names.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Job {
    /// Debug name and breakpad id of each module.
    memory_map: Vec<(String, String)>,
    /// Of each frame: the place of its module, or -1, and the offset in it.
    stacks: Vec<Vec<(i64, u64)>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum SymbolicateRequest {
    Jobs { jobs: Vec<Job> },
    One(Job),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SourceRequest {
    debug_name: String,
    debug_id: String,
    module_offset: Hex,
    file: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AssemblyRequest {
    name: Option<String>,
    code_id: Option<String>,
    debug_name: Option<String>,
    debug_id: Option<String>,
    start_address: Hex,
    size: Hex,
    #[serde(default)]
    continue_until_function_end: bool,
}

/// A number as `0x1f`.
struct Hex(u64);

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Hex, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.strip_prefix("0x").unwrap_or("");
        // No sign, which `from_str_radix` takes.
        let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u64::from_str_radix(digits, 16).ok().filter(|_| is_number);
        number.map(Hex).ok_or_else(|| serde::de::Error::custom("expected a number such as 0x1f"))
    }
}

fn hex(number: u64) -> String {
    format!("{number:#x}")
}

/// A frame with its name.
#[derive(Default, Serialize)]
struct NamedFrame {
    frame: usize,
    module: String,
    module_offset: String,
    #[serde(flatten)]
    symbol: Option<NamedSymbol>,
}

#[derive(Clone, Serialize)]
struct NamedSymbol {
    function: String,
    function_offset: String,
    function_size: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    inlines: Vec<InlinedFunction>,
}

#[derive(Clone, Serialize)]
struct InlinedFunction {
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
struct JobResult {
    stacks: Vec<Vec<NamedFrame>>,
    found_modules: BTreeMap<String, bool>,
}

impl SymbolApi {
    /// Serves a profile. `store`: the symbols that it was made with.
    pub fn new(profile: FirefoxProfile, store: &SymbolStore) -> SymbolApi {
        let FirefoxProfile { json, modules } = profile;
        let mut by_debug_id = HashMap::new();
        for (at, module) in modules.iter().enumerate() {
            by_debug_id.entry((module.debug_name.clone(), module.breakpad_id.clone())).or_insert(at);
        }
        let sources = SourceOptions { symfs: store.options().symfs.clone(), ..SourceOptions::default() };
        SymbolApi { json: Arc::new(json), modules, by_debug_id, sources }
    }

    /// Answers a request: JSON.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn answer(
        &self,
        path: SymbolPath,
        body: &[u8],
        store: &SymbolStore,
        cancel: &AtomicBool,
    ) -> Result<Vec<u8>, NoSymbols> {
        let answered = match path {
            SymbolPath::Profile => return Ok(self.json.to_vec()),
            SymbolPath::Symbolicate => {
                let results = self.symbolicate(read(body)?, store, cancel)?;
                return write(&json!({ "results": results }));
            }
            SymbolPath::Source => self.source(&read(body)?, store)?,
            SymbolPath::Assembly => self.assembly(&read(body)?, store)?,
        };
        write(&answered)
    }

    fn module(&self, name: &str, id: &str) -> Option<&FirefoxModule> {
        let at = self.by_debug_id.get(&(name.to_owned(), id.to_owned()))?;
        self.modules.get(*at)
    }

    fn symbolicate(
        &self,
        request: SymbolicateRequest,
        store: &SymbolStore,
        cancel: &AtomicBool,
    ) -> Result<Vec<JobResult>, NoSymbols> {
        let jobs = match request {
            SymbolicateRequest::Jobs { jobs } => jobs,
            SymbolicateRequest::One(job) => vec![job],
        };
        let frames: usize = jobs.iter().flat_map(|job| &job.stacks).map(Vec::len).sum();
        if frames > MOST_FRAMES {
            return refused(format!("{frames} frames are more than the {MOST_FRAMES} of one request"));
        }
        let mut room = MOST_TEXT_BYTES;
        let mut results = Vec::new();
        for job in jobs {
            let known = |(name, id): &(String, String)| {
                let found = self.module(name, id);
                found.map(|module| (module, store.get(&module.key)))
            };
            let modules: Vec<_> = job.memory_map.iter().map(known).collect();
            let mut stacks = Vec::new();
            for stack in &job.stacks {
                let mut named = Vec::new();
                for (at, (module, offset)) in stack.iter().enumerate() {
                    // Relaxed: nothing else is told by it.
                    if cancel.load(Ordering::Relaxed) {
                        return refused("cancelled");
                    }
                    let place = usize::try_from(*module).ok();
                    let found = place.and_then(|place| modules.get(place)?.as_ref());
                    let symbol = found.and_then(|(module, symbols)| named_symbol(module, symbols, *offset));
                    room = symbol
                        .as_ref()
                        .map_or(Some(room), |symbol| room.checked_sub(symbol.bytes()))
                        .ok_or_else(|| {
                            NoSymbols(format!(
                                "the names are more than {MOST_TEXT_BYTES} bytes: ask for fewer frames"
                            ))
                        })?;
                    let module = place.and_then(|place| job.memory_map.get(place));
                    let module = module.map_or_else(String::new, |(name, _)| name.clone());
                    named.push(NamedFrame { frame: at, module, module_offset: hex(*offset), symbol });
                }
                stacks.push(named);
            }
            let found = |((name, id), found): (&(String, String), &Option<_>)| {
                (format!("{name}/{id}"), found.is_some())
            };
            let found_modules = job.memory_map.iter().zip(&modules).map(found).collect();
            results.push(JobResult { stacks, found_modules });
        }
        Ok(results)
    }

    /// A source file, if the debug information of the address names it: no other is read.
    fn source(&self, request: &SourceRequest, store: &SymbolStore) -> Result<Value, NoSymbols> {
        let SourceRequest { debug_name, debug_id, module_offset, file } = request;
        let Some(module) = self.module(debug_name, debug_id) else {
            return refused(format!("the recording has no module {debug_name} with the id {debug_id}"));
        };
        let frames = store.get(&module.key).inline_frames(module.base.wrapping_add(module_offset.0));
        let mut named = frames.iter().filter_map(|frame| frame.file.as_ref());
        let Some(name) = named.find(|name| ***name == file[..]) else {
            return refused(format!(
                "no function at {} of {debug_name} is in this file",
                hex(module_offset.0)
            ));
        };
        match SourceFiles::new(self.sources.clone()).get(name) {
            Ok(source) => Ok(json!({
                "symbolsLastModified": null,
                "sourceLastModified": null,
                "file": file,
                "source": source.text(),
            })),
            Err(why) => refused(why),
        }
    }

    /// The module of a request for code, by either pair of names.
    fn module_of_code(&self, request: &AssemblyRequest) -> Option<&FirefoxModule> {
        let AssemblyRequest { name, code_id, debug_name, debug_id, .. } = request;
        if let (Some(name), Some(id)) = (debug_name, debug_id)
            && let Some(found) = self.module(name, id)
        {
            return Some(found);
        }
        let (name, id) = (name.as_ref()?, code_id.as_ref()?);
        let is = |module: &&FirefoxModule| {
            module.name == *name && module.code_id.as_ref().is_some_and(|code| code.eq_ignore_ascii_case(id))
        };
        self.modules.iter().find(is)
    }

    fn assembly(&self, request: &AssemblyRequest, store: &SymbolStore) -> Result<Value, NoSymbols> {
        let Some(module) = self.module_of_code(request) else {
            return refused("the recording has no module with these names and ids");
        };
        let symbols = store.get(&module.key);
        let start = module.base.wrapping_add(request.start_address.0);
        let mut end = start.saturating_add(request.size.0);
        if request.continue_until_function_end
            && let Some(symbol) = symbols.find(start)
        {
            end = end.max(symbol.end);
        }
        let code = store.code(&module.key, start, end).map_err(|error| NoSymbols(error.to_string()))?;
        let name = |address: u64| {
            let symbol = symbols.find(code.module_address(address)?)?;
            let offset = code.module_address(address)? - symbol.start;
            Some(if offset == 0 { symbol.name.to_owned() } else { format!("{}+{offset:#x}", symbol.name) })
        };
        let instructions = disassemble(&code, Syntax::Intel, &name);
        let rows: Vec<Value> = instructions
            .iter()
            .map(|instruction| json!([instruction.address - code.address, instruction.text]))
            .collect();
        let arch = code.machine_name();
        let syntax = match arch {
            "i686" | "x86_64" => "Intel",
            "aarch64" => "ARM",
            other => other,
        };
        Ok(json!({
            "startAddress": hex(request.start_address.0),
            "size": hex(end - start),
            "arch": arch,
            "syntax": [syntax],
            "instructions": rows,
        }))
    }
}

impl NamedSymbol {
    /// What counts of it for the size of an answer.
    fn bytes(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let inlined = |inlined: &InlinedFunction| 64 + text(&inlined.function) + text(&inlined.file);
        128 + self.function.len() + text(&self.file) + self.inlines.iter().map(inlined).sum::<usize>()
    }
}

/// The name of an offset, with the functions that are inlined there, innermost first.
fn named_symbol(module: &FirefoxModule, symbols: &ModuleSymbols, offset: u64) -> Option<NamedSymbol> {
    let address = module.base.checked_add(offset)?;
    let symbol = symbols.find(address)?;
    let frames = symbols.inline_frames(address);
    let text = |text: &Option<Arc<str>>| text.as_ref().map(|text| text.to_string());
    // The last one is the function of the symbol.
    let (outer, inlined) = frames.split_last().map_or((None, &[][..]), |(outer, rest)| (Some(outer), rest));
    let inlined = inlined.iter().map(|frame| InlinedFunction {
        function: text(&frame.function),
        file: text(&frame.file),
        line: frame.line,
    });
    Some(NamedSymbol {
        function: symbol.name.to_owned(),
        function_offset: hex(address - symbol.start),
        function_size: hex(symbol.end.saturating_sub(symbol.start)),
        file: outer.and_then(|outer| text(&outer.file)),
        line: outer.and_then(|outer| outer.line),
        inlines: inlined.collect(),
    })
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, NoSymbols> {
    serde_json::from_slice(body).map_err(|error| NoSymbols(format!("the request is not understood: {error}")))
}

fn write(answer: &Value) -> Result<Vec<u8>, NoSymbols> {
    serde_json::to_vec(answer).map_err(|error| NoSymbols(format!("the answer cannot be written: {error}")))
}
