//! One function with its instructions, source lines and their costs.
use super::super::scan::Sum;
use super::heat::{Annotator, HotFunction};
use crate::timeline::ModuleKind;
use kymo_symbols::disassembly::{
    CodeError, Flow, FunctionCode, SourceFile, SourceFiles, Syntax, disassemble,
};
use kymo_symbols::{InlineFrame, ModuleKey, ModuleSymbols};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

/// Source files of which a function says that they cannot be shown.
const MOST_SOURCE_NOTES: usize = 3;
/// Frames of all distinct inline stacks of a function; damaged debug information has more.
const MOST_FRAMES: usize = 1 << 18;
/// Characters of a source line that are shown.
const LONGEST_LINE: usize = 512;

/// A function with its code.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AnnotatedFunction {
    /// Its name.
    pub name: String,
    /// The name that was asked for, if it is another one of the same address.
    pub alias: Option<String>,
    /// The module that it is in, as tables show it.
    pub module: String,
    /// The file that its code was read from.
    pub file: Option<String>,
    /// Rows in it itself.
    pub samples: u64,
    /// The sum of their periods.
    pub period: u64,
    /// Of these, rows outside of the instructions.
    pub outside_samples: u64,
    /// Why its code is not shown.
    pub refusal: Option<String>,
    /// What the reader should know: sentences.
    pub notes: Vec<String>,
    /// By address.
    pub instructions: Vec<InstructionRow>,
    /// The distinct stacks of inlined functions, each innermost first.
    pub frames: Vec<Vec<FrameRow>>,
    /// The source lines, by file and number.
    pub lines: Vec<LineRow>,
}

/// An instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InstructionRow {
    /// Where it is: as the file was linked, or in memory.
    pub address: u64,
    /// Its bytes as hexadecimal digits.
    pub bytes: String,
    /// As an assembler writes it.
    pub text: String,
    /// `next`, `jump`, `branch`, `call` or `return`.
    pub flow: &'static str,
    /// Where a direct jump or call goes.
    pub target: Option<u64>,
    /// Rows of its bytes.
    pub samples: u64,
    /// The sum of their periods.
    pub period: u64,
    /// Rows of what this instruction called.
    pub call_samples: u64,
    /// The sum of their periods.
    pub call_period: u64,
    /// Its stack of inlined functions, a place in the list of the function.
    pub frames: Option<usize>,
}

fn plain_text<S: serde::Serializer>(text: &Arc<str>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(text)
}

fn optional_text<S: serde::Serializer>(text: &Option<Arc<str>>, to: S) -> Result<S::Ok, S::Error> {
    text.as_deref().serialize(to)
}

/// A function that was inlined, or the function itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FrameRow {
    /// Its name.
    #[serde(serialize_with = "optional_text")]
    pub function: Option<Arc<str>>,
    /// The source line, a place in the list of the function.
    pub line: Option<usize>,
}

/// A source line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LineRow {
    /// The file, as the debug information names it.
    #[serde(serialize_with = "plain_text")]
    pub file: Arc<str>,
    /// Its number, from 1 on.
    pub line: u32,
    /// The line itself, if its file is here.
    pub text: Option<String>,
    /// Rows of instructions of this line.
    pub self_samples: u64,
    /// The sum of their periods.
    pub self_period: u64,
    /// Those, and those of what was inlined into this line.
    pub total_samples: u64,
    /// The sum of their periods.
    pub total_period: u64,
}

impl Annotator<'_> {
    /// A function with its code, its lines and their costs. Without `sources` no source text is
    /// read.
    pub fn annotate(
        &self,
        hot: &HotFunction,
        syntax: Syntax,
        sources: Option<&mut SourceFiles>,
    ) -> AnnotatedFunction {
        let function = self.function(hot);
        let mut shown = AnnotatedFunction {
            name: self.name(hot).to_owned(),
            alias: hot.alias.clone(),
            module: self.module(hot).to_owned(),
            samples: hot.sum.samples,
            period: hot.sum.period,
            ..AnnotatedFunction::default()
        };
        let code = match self.code(hot) {
            Ok(code) => code,
            Err(CodeError(why)) => {
                shown.refusal = Some(why);
                return shown;
            }
        };
        shown.file = Some(code.path.display().to_string());
        if code.is_unchecked {
            shown.notes.push(format!(
                "{}: the recording has no build id of it: whether it has changed since cannot be checked",
                code.path.display()
            ));
        }
        let symbols = self.symbols_with_files(hot);
        self.add_instructions(&mut shown, hot, &code, symbols.as_deref(), syntax);
        if let Some(symbols) = &symbols {
            let mut lines = LineTable::default();
            for row in &mut shown.instructions {
                let address = row.address.wrapping_sub(code.address).wrapping_add(function.start);
                let sum = Sum { samples: row.samples, period: row.period };
                row.frames = lines.add(&symbols.inline_frames(address), sum);
            }
            lines.finish(&mut shown);
        }
        if let Some(sources) = sources {
            let key = function.module.map(|module| self.resolver.key(module));
            let fetcher = self.store.options().debuginfod.as_ref();
            sources.begin_module(fetcher, key.and_then(ModuleKey::build_id), code.is_root_owned);
            add_sources(&mut shown, &code, sources);
        }
        shown
    }

    fn add_instructions(
        &self,
        shown: &mut AnnotatedFunction,
        hot: &HotFunction,
        code: &FunctionCode,
        symbols: Option<&ModuleSymbols>,
        syntax: Syntax,
    ) {
        let function = self.function(hot);
        let end = code.address.saturating_add(function.end.saturating_sub(function.start));
        let name = |address: u64| {
            let (start, name): (u64, &str) = if (code.address..end).contains(&address) {
                (code.address, &shown.name)
            } else {
                let symbol = symbols?.find(code.module_address(address)?)?;
                (code.linked_address(symbol.start)?, symbol.name)
            };
            match address.wrapping_sub(start) {
                0 => Some(name.to_owned()),
                offset => Some(format!("{name}+{offset:#x}")),
            }
        };
        let found = disassemble(code, syntax, &name);
        let calls = self.calls(hot);
        let mut inside = 0;
        let rows = found.into_iter().map(|instruction| {
            let at = instruction.address.wrapping_sub(code.address);
            let bytes = code.bytes.get(at as usize..).unwrap_or(&[]);
            let bytes = bytes.iter().take(instruction.length.into());
            let from = function.start.saturating_add(at);
            let bytes_of = from..from.saturating_add(instruction.length.into());
            let sum_of = |counts: &BTreeMap<u64, Sum>| {
                let mut sum = Sum::default();
                counts.range(bytes_of.clone()).for_each(|(_, count)| sum += *count);
                sum
            };
            // An interrupt leaves a return address, too, and no instruction called it.
            let called = if instruction.flow == Flow::Call { sum_of(&calls) } else { Sum::default() };
            let sum = sum_of(&hot.counts);
            inside += sum.samples;
            InstructionRow {
                address: instruction.address,
                bytes: bytes.fold(String::new(), |mut text, byte| {
                    // SANITY: writing to a String cannot fail.
                    let _ = write!(text, "{byte:02x}");
                    text
                }),
                text: instruction.text,
                flow: instruction.flow.word(),
                target: instruction.target,
                samples: sum.samples,
                period: sum.period,
                call_samples: called.samples,
                call_period: called.period,
                frames: None,
            }
        });
        let rows = rows.collect();
        shown.instructions = rows;
        shown.outside_samples = hot.sum.samples.saturating_sub(inside);
        if shown.outside_samples > 0 {
            shown.notes.push(format!("{} samples lie after the last instruction", shown.outside_samples));
        }
    }

    /// The symbols of the module of a function, if they are of a file.
    fn symbols_with_files(&self, hot: &HotFunction) -> Option<Arc<ModuleSymbols>> {
        let module = self.function(hot).module?;
        self.resolver.has_files(module).then(|| self.resolver.symbols(module))
    }

    fn code(&self, hot: &HotFunction) -> Result<FunctionCode, CodeError> {
        let function = self.function(hot);
        let Some(module) = function.module else {
            return Err(CodeError("the function is in no module".into()));
        };
        let timeline = &self.profile.loaded.timeline;
        let refused = |why: &str| Err(CodeError(format!("{}: {why}", self.module(hot))));
        match timeline.modules.get(module).kind {
            ModuleKind::Ksymbol => refused("code that came into the kernel at run time is in no file"),
            ModuleKind::Script => refused("an interpreter runs this function: it has no instructions"),
            ModuleKind::Jit { pid } if self.resolver.is_generated(module) => {
                let (maps, _, _) = hot.place;
                let time_ns = timeline.version_from(maps).time_ns;
                let address = *hot.counts.keys().next().unwrap_or(&function.start);
                let (bytes, machine) =
                    timeline.code.bytes_at(pid, address, time_ns, self.store.options()).map_err(CodeError)?;
                let path = PathBuf::from(format!("the generated code of process {pid}"));
                FunctionCode::of_bytes(path, function.start, &bytes, machine)
            }
            _ => self.store.code(self.resolver.key(module), function.start, function.end),
        }
    }
}

/// Source lines and stacks of inlined functions, each once.
#[derive(Default)]
struct LineTable {
    lines: Vec<LineRow>,
    line_of: FxHashMap<(Arc<str>, u32), usize>,
    frames: Vec<Vec<FrameRow>>,
    frames_of: FxHashMap<Arc<[InlineFrame]>, usize>,
    frame_count: usize,
}

impl LineTable {
    /// Counts an instruction; the place of its frames.
    fn add(&mut self, frames: &Arc<[InlineFrame]>, sum: Sum) -> Option<usize> {
        if frames.is_empty() {
            return None;
        }
        let at = match self.frames_of.get(frames) {
            Some(&at) => at,
            None => {
                self.frame_count += frames.len();
                if self.frame_count > MOST_FRAMES {
                    return None;
                }
                let rows = frames.iter().map(|frame| FrameRow {
                    function: frame.function.clone(),
                    line: frame.file.clone().zip(frame.line.filter(|line| *line > 0)).map(|at| self.line(at)),
                });
                let rows = rows.collect::<Vec<_>>();
                self.frames.push(rows);
                self.frames_of.insert(Arc::clone(frames), self.frames.len() - 1);
                self.frames.len() - 1
            }
        };
        if sum.samples > 0 {
            let stack = &self.frames[at];
            for (depth, frame) in stack.iter().enumerate() {
                let Some(line) = frame.line else { continue };
                let row = &mut self.lines[line];
                if depth == 0 {
                    row.self_samples += sum.samples;
                    row.self_period = row.self_period.saturating_add(sum.period);
                }
                // A line that is inlined into itself has its cost once.
                if stack[..depth].iter().all(|inner| inner.line != Some(line)) {
                    row.total_samples += sum.samples;
                    row.total_period = row.total_period.saturating_add(sum.period);
                }
            }
        }
        Some(at)
    }

    fn line(&mut self, (file, line): (Arc<str>, u32)) -> usize {
        let lines = &mut self.lines;
        *self.line_of.entry((file, line)).or_insert_with_key(|(file, line)| {
            lines.push(LineRow {
                file: Arc::clone(file),
                line: *line,
                text: None,
                self_samples: 0,
                self_period: 0,
                total_samples: 0,
                total_period: 0,
            });
            lines.len() - 1
        })
    }

    /// Puts the lines in order.
    fn finish(mut self, shown: &mut AnnotatedFunction) {
        let mut order: Vec<usize> = (0..self.lines.len()).collect();
        order.sort_unstable_by(|a, b| {
            let key = |at: &usize| (&self.lines[*at].file, self.lines[*at].line);
            key(a).cmp(&key(b))
        });
        let mut place = vec![0; order.len()];
        order.iter().enumerate().for_each(|(new, old)| place[*old] = new);
        for frame in self.frames.iter_mut().flatten() {
            frame.line = frame.line.map(|line| place[line]);
        }
        shown.lines = order.iter().map(|at| self.lines[*at].clone()).collect();
        shown.frames = self.frames;
    }
}

/// Adds the text of source lines, and what is to be known of their files.
fn add_sources(shown: &mut AnnotatedFunction, code: &FunctionCode, sources: &mut SourceFiles) {
    let built = std::fs::metadata(&code.path).and_then(|metadata| metadata.modified()).ok();
    let mut last: Option<(Arc<str>, Option<Arc<SourceFile>>)> = None;
    let mut missing = Vec::new();
    for row in &mut shown.lines {
        if last.as_ref().is_none_or(|(name, _)| *name != row.file) {
            let file = match sources.get(&row.file) {
                Ok(file) => Some(file),
                Err(why) => {
                    missing.push(why);
                    None
                }
            };
            if let Some(file) = &file
                && let (Some(built), Some(changed)) = (built, file.modified)
                && changed > built
            {
                shown.notes.push(format!(
                    "{} is newer than {}: its lines may have moved since",
                    file.path.display(),
                    code.path.display()
                ));
            }
            last = Some((Arc::clone(&row.file), file));
        }
        let line = last.as_ref().and_then(|(_, file)| file.as_ref()?.line(row.line));
        row.text = line.map(|line| line.chars().take(LONGEST_LINE).collect());
    }
    if shown.lines.is_empty() {
        let why = format!("{}: no debug information has lines of this function", code.path.display());
        shown.notes.push(why);
    }
    let more = missing.len().saturating_sub(MOST_SOURCE_NOTES);
    shown.notes.extend(missing.into_iter().take(MOST_SOURCE_NOTES));
    if more > 0 {
        shown.notes.push(format!("{more} more source files cannot be read"));
    }
}
