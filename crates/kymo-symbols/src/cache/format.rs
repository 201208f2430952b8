//! A file of the symbol cache: what one module answered, as bytes.
//!
//! ```text
//!  HEADER     "kymosym" VERSION, checksum of the rest, flags, lengths of the parts
//!  identity   bytes that must be equal, see `identity.rs`
//!  answers    (address, symbol, list) by address: what was asked
//!  symbols    (start, end, name, stored name, number in its table)
//!  frames     (function, file, line): each once
//!  lists      length and frames of each list of inlined functions
//!  strings    (offset, length) in the text
//!  text       UTF-8
//! ```
//!
//! Numbers are little-endian. `NONE` stands for what is not there, `NOT_ASKED` for what nobody
//! asked.
//!
//! Invariants:
//! - **C1** Any bytes give either answers or `None`, never a panic: every number is checked when
//!   the file is read, and every access checks its bounds again.
//! - **C2** Reading takes as much memory as the file has bytes, and three words for each string.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;

use crate::elf::Fields;
use crate::inline::{InlineFrame, MOST_FRAMES};
use crate::table::SymbolRef;

/// What the file begins with; the last byte is the version. It is raised when the layout changes.
const MAGIC: [u8; 8] = *b"kymosym\x01";
const HEADER: usize = 48;
const ANSWER: usize = 16;
const SYMBOL: usize = 28;
const FRAME: usize = 12;

/// An address without a symbol, a frame without a file.
const NONE: u32 = u32::MAX;
/// An address whose symbol, or whose inlined functions, were not asked for.
const NOT_ASKED: u32 = u32::MAX - 1;
/// A line that is not known: lines are counted from 1.
const NO_LINE: u32 = 0;
/// The module has no debug information: no address has inlined functions.
const NO_LINES_AT_ALL: u32 = 1;

/// The answers of one file of the cache.
#[derive(Debug)]
pub(crate) struct Answers {
    bytes: Vec<u8>,
    parts: Parts,
    flags: u32,
    /// Strings that frames share, made when first asked for.
    shared: Box<[OnceLock<Arc<str>>]>,
}

/// Where the parts lie.
#[derive(Debug, Clone, Default)]
struct Parts {
    identity: Range<usize>,
    answers: Range<usize>,
    symbols: Range<usize>,
    frames: Range<usize>,
    lists: Range<usize>,
    strings: Range<usize>,
    text: Range<usize>,
}

impl Parts {
    /// The parts of a file of this length, if they fill it.
    fn of(header: Fields<'_>, len: usize) -> Option<Parts> {
        let mut at = HEADER;
        let mut part = |field: usize, size: usize| {
            let start = at;
            at = start.checked_add((header.u32(field) as usize).checked_mul(size)?)?;
            Some(start..at)
        };
        let parts = Parts {
            identity: part(20, 1)?,
            answers: part(24, ANSWER)?,
            symbols: part(28, SYMBOL)?,
            frames: part(32, FRAME)?,
            lists: part(36, 4)?,
            strings: part(40, 8)?,
            text: part(44, 1)?,
        };
        (at == len).then_some(parts)
    }
}

/// A sum that damage changes. It is not meant against intent: the folder is the user's own.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(bytes.len() as u64, |sum, word| mix(sum, u64::from_le_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| mix(sum, u64::from(*byte)))
}

impl Answers {
    /// The answers in these bytes, if they are a whole file of this version.
    pub(crate) fn read(bytes: Vec<u8>) -> Option<Answers> {
        let header = Fields(bytes.get(..HEADER)?);
        if !bytes.starts_with(&MAGIC) || header.u64(8) != checksum(bytes.get(16..)?) {
            return None;
        }
        let parts = Parts::of(header, bytes.len())?;
        let flags = header.u32(16);
        let strings = parts.strings.len() / 8;
        let shared = (0..strings).map(|_| OnceLock::new()).collect();
        let answers = Answers { bytes, parts, flags, shared };
        answers.is_sound().then_some(answers)
    }

    /// Whether all numbers lead to something.
    fn is_sound(&self) -> bool {
        let count = |part: &Range<usize>, size: usize| (part.len() / size) as u32;
        let strings = count(&self.parts.strings, 8);
        let symbols = count(&self.parts.symbols, SYMBOL);
        let is_name = |number: u32| number < strings;
        let text = self.bytes.get(self.parts.text.clone()).unwrap_or(&[]);
        let Ok(text) = std::str::from_utf8(text) else { return false };
        let is_text = |string: Fields<'_>| {
            let start = string.u32(0) as usize;
            start.checked_add(string.u32(4) as usize).is_some_and(|end| text.get(start..end).is_some())
        };
        let addresses = || self.records(&self.parts.answers, ANSWER).map(|answer| answer.u64(0));
        self.records(&self.parts.strings, 8).all(is_text)
            && self.records(&self.parts.symbols, SYMBOL).all(|s| is_name(s.u32(16)) && is_name(s.u32(20)))
            && self.records(&self.parts.frames, FRAME).all(|frame| {
                [frame.u32(0), frame.u32(4)].into_iter().all(|name| name == NONE || is_name(name))
            })
            && self.records(&self.parts.answers, ANSWER).all(|answer| {
                (answer.u32(8) >= NOT_ASKED || answer.u32(8) < symbols)
                    && (answer.u32(12) >= NOT_ASKED || self.list(answer.u32(12)).is_some())
            })
            && addresses().zip(addresses().skip(1)).all(|(a, b)| a < b)
    }

    fn records(&self, part: &Range<usize>, size: usize) -> impl Iterator<Item = Fields<'_>> {
        self.bytes.get(part.clone()).unwrap_or(&[]).chunks_exact(size).map(Fields)
    }

    fn record(&self, part: &Range<usize>, size: usize, number: u32) -> Option<Fields<'_>> {
        let start = (number as usize).checked_mul(size)?;
        self.bytes.get(part.clone())?.get(start..start.checked_add(size)?).map(Fields)
    }

    /// The frames of a list, as numbers; nothing unless all of them are there.
    fn list(&self, start: u32) -> Option<impl Iterator<Item = Fields<'_>>> {
        let length = self.record(&self.parts.lists, 4, start)?.u32(0);
        // Lists of a damaged file could all be long, and overlap.
        (length as usize <= MOST_FRAMES).then_some(())?;
        let numbers = start.checked_add(1)?..start.checked_add(1)?.checked_add(length)?;
        let frames = (self.parts.frames.len() / FRAME) as u32;
        let number = move |at: u32| self.record(&self.parts.lists, 4, at).map(|word| word.u32(0));
        let is_whole = numbers.clone().all(|at| number(at).is_some_and(|frame| frame < frames));
        is_whole.then(|| numbers.filter_map(move |at| self.record(&self.parts.frames, FRAME, number(at)?)))
    }

    /// What the answers depend on, as it was when they were given.
    pub(crate) fn identity(&self) -> &[u8] {
        self.bytes.get(self.parts.identity.clone()).unwrap_or(&[])
    }

    /// What it takes in memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.bytes.len() + size_of_val(&*self.shared)) as u64
    }

    /// How many addresses were asked.
    pub(crate) fn len(&self) -> usize {
        self.parts.answers.len() / ANSWER
    }

    fn answer(&self, address: u64) -> Option<Fields<'_>> {
        let (mut low, mut high) = (0u32, u32::try_from(self.len()).ok()?);
        while low < high {
            let middle = low + (high - low) / 2;
            let answer = self.record(&self.parts.answers, ANSWER, middle)?;
            match answer.u64(0).cmp(&address) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Some(answer),
            }
        }
        None
    }

    /// The symbol that covers an address, if that was asked: `Some(None)` says that there is none.
    pub(crate) fn symbol(&self, address: u64) -> Option<Option<SymbolRef<'_>>> {
        match self.answer(address)?.u32(8) {
            NOT_ASKED => None,
            NONE => Some(None),
            number => self.symbol_at(number).map(Some),
        }
    }

    fn symbol_at(&self, number: u32) -> Option<SymbolRef<'_>> {
        let symbol = self.record(&self.parts.symbols, SYMBOL, number)?;
        Some(SymbolRef {
            start: symbol.u64(0),
            end: symbol.u64(8),
            name: self.string(symbol.u32(16))?,
            raw_name: self.string(symbol.u32(20))?,
            index: symbol.u32(24),
        })
    }

    /// The functions at an address, if they were asked.
    pub(crate) fn frames(&self, address: u64) -> Option<Arc<[InlineFrame]>> {
        if self.has_no_lines() {
            return Some(Arc::default());
        }
        match self.answer(address)?.u32(12) {
            NOT_ASKED | NONE => None,
            list => Some(self.list(list)?.map(|frame| self.frame(frame)).collect()),
        }
    }

    /// Whether the module has no debug information.
    pub(crate) fn has_no_lines(&self) -> bool {
        self.flags & NO_LINES_AT_ALL != 0
    }

    fn frame(&self, frame: Fields<'_>) -> InlineFrame {
        let line = Some(frame.u32(8)).filter(|&line| line != NO_LINE);
        InlineFrame { function: self.shared(frame.u32(0)), file: self.shared(frame.u32(4)), line }
    }

    fn shared(&self, number: u32) -> Option<Arc<str>> {
        let made = self.shared.get(number as usize)?;
        Some(Arc::clone(made.get_or_init(|| self.string(number).unwrap_or("").into())))
    }

    fn string(&self, number: u32) -> Option<&str> {
        let string = self.record(&self.parts.strings, 8, number)?;
        let text = self.bytes.get(self.parts.text.clone())?;
        let start = string.u32(0) as usize;
        let bytes = text.get(start..start.checked_add(string.u32(4) as usize)?)?;
        // The whole text and the ends of all strings were checked when it was read.
        std::str::from_utf8(bytes).ok()
    }

    /// Gives every answer to a builder.
    fn pour(&self, into: &mut Builder) {
        for answer in self.records(&self.parts.answers, ANSWER) {
            let address = answer.u64(0);
            if let Some(symbol) = self.symbol(address) {
                into.symbol(address, symbol);
            }
            if !self.has_no_lines()
                && let Some(frames) = self.frames(address)
            {
                into.frames(address, &frames);
            }
        }
    }
}

/// Collects answers, and writes them.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    answers: HashMap<u64, (u32, u32)>,
    symbols: Vec<u8>,
    symbol_numbers: HashMap<(u64, u64, u32, u32, u32), u32>,
    frames: Vec<u8>,
    frame_numbers: HashMap<(u32, u32, u32), u32>,
    lists: Vec<u8>,
    list_starts: HashMap<Vec<u32>, u32>,
    strings: Vec<u8>,
    string_numbers: HashMap<Box<str>, u32>,
    text: String,
    has_no_lines: bool,
}

impl Builder {
    /// Takes over what a file has.
    pub(crate) fn add(&mut self, answers: &Answers) {
        self.has_no_lines |= answers.has_no_lines();
        answers.pour(self);
    }

    /// Says that no address has inlined functions.
    pub(crate) fn no_lines(&mut self) {
        self.has_no_lines = true;
    }

    /// The symbol at an address, or that there is none.
    pub(crate) fn symbol(&mut self, address: u64, symbol: Option<SymbolRef<'_>>) {
        let number = match symbol {
            None => NONE,
            Some(SymbolRef { start, end, name, raw_name, index }) => {
                let (name, raw_name) = (self.string(name), self.string(raw_name));
                let next = self.symbol_numbers.len() as u32;
                *self.symbol_numbers.entry((start, end, name, raw_name, index)).or_insert_with(|| {
                    self.symbols.extend([start, end].into_iter().flat_map(u64::to_le_bytes));
                    self.symbols.extend([name, raw_name, index].into_iter().flat_map(u32::to_le_bytes));
                    next
                })
            }
        };
        self.answers.entry(address).or_insert((NOT_ASKED, NOT_ASKED)).0 = number;
    }

    /// The functions at an address.
    pub(crate) fn frames(&mut self, address: u64, frames: &[InlineFrame]) {
        // A line that cannot be told from one that is not known: no compiler writes it.
        if frames.iter().any(|frame| frame.line == Some(NO_LINE)) {
            return;
        }
        let numbers: Vec<u32> = frames.iter().map(|frame| self.frame(frame)).collect();
        let start = match self.list_starts.get(&numbers) {
            Some(&start) => start,
            None => {
                let start = (self.lists.len() / 4) as u32;
                self.lists.extend((numbers.len() as u32).to_le_bytes());
                self.lists.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
                self.list_starts.insert(numbers, start);
                start
            }
        };
        self.answers.entry(address).or_insert((NOT_ASKED, NOT_ASKED)).1 = start;
    }

    fn frame(&mut self, frame: &InlineFrame) -> u32 {
        let mut number_of = |text: &Option<Arc<str>>| text.as_ref().map_or(NONE, |text| self.string(text));
        let function = number_of(&frame.function);
        let file = number_of(&frame.file);
        let key = (function, file, frame.line.unwrap_or(NO_LINE));
        let next = self.frame_numbers.len() as u32;
        *self.frame_numbers.entry(key).or_insert_with(|| {
            self.frames.extend([key.0, key.1, key.2].into_iter().flat_map(u32::to_le_bytes));
            next
        })
    }

    fn string(&mut self, text: &str) -> u32 {
        if let Some(&number) = self.string_numbers.get(text) {
            return number;
        }
        let number = self.string_numbers.len() as u32;
        self.strings.extend((self.text.len() as u32).to_le_bytes());
        self.strings.extend((text.len() as u32).to_le_bytes());
        self.text.push_str(text);
        self.string_numbers.insert(text.into(), number);
        number
    }

    /// The file, if it has at most `most` bytes.
    pub(crate) fn finish(self, identity: &[u8], most: u64) -> Option<Vec<u8>> {
        let mut answers: Vec<(u64, (u32, u32))> = self.answers.into_iter().collect();
        answers.sort_unstable_by_key(|answer| answer.0);
        let parts = [&self.symbols, &self.frames, &self.lists, &self.strings, self.text.as_bytes()];
        let rest: usize = parts.iter().map(|part| part.len()).sum();
        let len = HEADER + identity.len() + ANSWER * answers.len() + rest;
        if len as u64 > most.min(u64::from(NOT_ASKED)) {
            return None;
        }
        let counts = [
            identity.len(),
            answers.len(),
            self.symbols.len() / SYMBOL,
            self.frames.len() / FRAME,
            self.lists.len() / 4,
            self.strings.len() / 8,
            self.text.len(),
        ];
        let mut bytes = Vec::with_capacity(len);
        bytes.extend(MAGIC);
        bytes.extend([0; 8]);
        bytes.extend(u32::from(self.has_no_lines).to_le_bytes());
        bytes.extend(counts.into_iter().flat_map(|count| (count as u32).to_le_bytes()));
        bytes.extend_from_slice(identity);
        for (address, (symbol, frames)) in answers {
            bytes.extend(address.to_le_bytes());
            bytes.extend([symbol, frames].into_iter().flat_map(u32::to_le_bytes));
        }
        parts.into_iter().for_each(|part| bytes.extend_from_slice(part));
        let sum = checksum(bytes.get(16..)?);
        bytes.get_mut(8..16)?.copy_from_slice(&sum.to_le_bytes());
        Some(bytes)
    }
}
