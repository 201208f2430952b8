//! Every function of a loaded module, also where nobody left symbols: the unwind information names
//! them all.
use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, LittleEndian, Register, RegisterRule, UnwindContext,
    UnwindSection,
};
use kymo_agent::patch::{
    EntryState, Function, OwnMemory, Refusal, Site, Surroundings, jump_targets, plan, returns_oddly,
};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use std::collections::BTreeMap;

/// Of x86-64, as DWARF numbers them.
const STACK_POINTER: Register = Register(7);
const RETURN_ADDRESS: Register = Register(16);

#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) site: Site,
    /// Whether its return may be looked at.
    pub(crate) returns: bool,
    /// Its module's place in the list, and its own address in the module's file.
    pub(crate) module: usize,
    pub(crate) offset: u64,
}

#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) path: String,
    pub(crate) functions: usize,
    pub(crate) served: usize,
    /// Pieces of functions that are entered by jumps only: not functions, not probed.
    pub(crate) parts: usize,
    pub(crate) refused: BTreeMap<&'static str, usize>,
}

/// What a symbol or the unwind information says of a piece of code.
#[derive(Clone, Copy, Debug, Default)]
struct Piece {
    bytes: u64,
    /// Its name or its frame says that a look at its return is not for it.
    oddly: bool,
    /// It is entered by jumps only, with a frame in place.
    part: bool,
}

/// The modules mapped from a path with one of the `wanted` parts, with their first address.
pub(crate) fn modules(wanted: &str) -> Vec<(String, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut found: Vec<(String, u64)> = Vec::new();
    for line in maps.lines() {
        let Some(path) = line.find('/').map(|at| &line[at..]) else { continue };
        let Some((begin, _)) = line.split_once('-') else { continue };
        let begin = u64::from_str_radix(begin, 16).unwrap_or(0);
        let matches = wanted.split(',').any(|part| !part.is_empty() && path.contains(part));
        if matches && !path.contains("libeverything") && found.iter().all(|entry| entry.0 != path) {
            found.push((path.to_string(), begin));
        }
    }
    found
}

/// Plans every function of a module; `number` is its place in the list of modules.
pub(crate) fn plan_all(
    memory: &OwnMemory,
    path: &str,
    base: u64,
    number: usize,
) -> Option<(Module, Vec<Planned>)> {
    let bytes = std::fs::read(path).ok()?;
    let elf = object::File::parse(&*bytes).ok()?;
    // Programs that are not moved have their addresses in the file.
    let base = if elf.kind() == object::ObjectKind::Executable { 0 } else { base };
    let code: Vec<(u64, u64)> = elf
        .sections()
        .filter(|section| section.name() == Ok(".text"))
        .map(|section| (section.address(), section.size()))
        .collect();
    let inside = |at: u64| code.iter().find(|(begin, bytes)| (*begin..begin + bytes).contains(&at));
    let mut pieces: BTreeMap<u64, Piece> = BTreeMap::new();
    for (at, bytes, oddly, part) in frames(&elf) {
        if inside(at).is_some() {
            pieces.insert(at, Piece { bytes, oddly, part });
        }
    }
    for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
        if symbol.kind() == SymbolKind::Text && symbol.size() > 0 && inside(symbol.address()).is_some() {
            let piece = pieces.entry(symbol.address()).or_default();
            piece.bytes = piece.bytes.max(symbol.size());
            piece.oddly |= symbol.name().is_ok_and(returns_oddly);
            piece.part |= symbol.name().is_ok_and(|name| name.contains(".cold"));
        }
    }
    let mut targets = Vec::new();
    for &(begin, bytes) in &code {
        let whole = begin + base..begin + base + bytes;
        targets.extend(jump_targets(memory, whole.clone(), &[whole]));
    }
    let starts: Vec<u64> = pieces.keys().copied().collect();
    let mut module =
        Module { path: path.to_string(), functions: 0, served: 0, parts: 0, refused: BTreeMap::new() };
    let mut all = Vec::new();
    for (index, (&start, piece)) in pieces.iter().enumerate() {
        if piece.part {
            module.parts += 1;
            continue;
        }
        module.functions += 1;
        let end = inside(start).map_or(start, |(begin, bytes)| begin + bytes);
        let next = starts.get(index + 1).copied().unwrap_or(end).min(end);
        let function = Function { start: start + base, bytes: piece.bytes, next: next + base };
        match plan(
            memory,
            &function,
            &Surroundings { targets: &targets, looks_at: Some(EntryState::NOTHING) },
        ) {
            Ok(site) => {
                module.served += 1;
                all.push(Planned { site, returns: !piece.oddly, module: number, offset: start });
            }
            Err(why) => *module.refused.entry(Refusal::word(&why)).or_default() += 1,
        }
    }
    Some((module, all))
}

/// The ranges of the unwind information: address, bytes, whether a return must not be looked at,
/// whether it is a part of a function.
fn frames(elf: &object::File<'_>) -> Vec<(u64, u64, bool, bool)> {
    let Some(section) = elf.section_by_name(".eh_frame") else { return Vec::new() };
    let Ok(data) = section.data() else { return Vec::new() };
    let frames = EhFrame::new(data, LittleEndian);
    let text = elf.section_by_name(".text").map_or(0, |text| text.address());
    let bases = BaseAddresses::default().set_eh_frame(section.address()).set_text(text);
    let mut context = UnwindContext::new();
    let mut all = Vec::new();
    let mut entries = frames.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let Ok(fde) = partial.parse(EhFrame::cie_from_offset) else { continue };
        let Ok(mut rows) = fde.rows(&frames, &bases, &mut context) else { continue };
        let Ok(Some(first)) = rows.next_row() else { continue };
        let entry = *first.cfa() == CfaRule::RegisterAndOffset { register: STACK_POINTER, offset: 8 };
        // A program's first function has no caller; a signal's frame is entered by a return.
        let oddly = matches!(first.register(RETURN_ADDRESS), Some(RegisterRule::Undefined))
            || fde.is_signal_trampoline();
        all.push((fde.initial_address(), fde.len(), oddly || !entry, !entry));
    }
    all
}
