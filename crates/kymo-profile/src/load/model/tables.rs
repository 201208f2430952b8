//! Names and tables of the obvious reader: every frame of every sample is asked for, and added, by itself.
use super::{Frame, Machine, Seen};
use crate::functions::{FunctionId, Functions, Level};
use crate::load::Count;
use crate::resolve::{KernelIdentity, module_key};
use crate::timeline::{Mapping, Module, ModuleId, ModuleKind};
use kymo_data::Recording;
use kymo_symbols::{ModuleSymbols, SymbolStore};
use std::collections::HashMap;
use std::sync::Arc;

/// Names of frames, asked one by one.
#[derive(Debug)]
pub struct Names<'a> {
    recording: &'a Recording,
    store: &'a SymbolStore,
    inline: bool,
    symbols: HashMap<ModuleId, Arc<ModuleSymbols>>,
    /// All functions that were named.
    pub functions: Functions,
}

impl<'a> Names<'a> {
    /// Names from a symbol store; `inline` tells inlined functions as frames of their own.
    pub fn new(recording: &'a Recording, store: &'a SymbolStore, inline: bool) -> Names<'a> {
        Names { recording, store, inline, symbols: HashMap::new(), functions: Functions::default() }
    }

    /// The function that a sample in `frame` is counted under.
    pub fn leaf(&mut self, machine: &Machine, frame: &Frame) -> FunctionId {
        let level = Level::of_mode(frame.mode);
        let Some(mapping) = frame.mapping else { return self.functions.address(None, level, frame.ip) };
        let address = mapping.module_address(frame.ip);
        self.symbol(machine, &mapping, level, address)
            .unwrap_or_else(|| self.functions.address(Some(mapping.module), level, address))
    }

    /// Appends the functions that a frame of a call chain stands for, innermost first.
    pub fn frame(&mut self, machine: &Machine, frame: &Frame, out: &mut Vec<FunctionId>) {
        let level = Level::of_mode(frame.mode);
        let module = frame.lookup_mapping.map(|m| m.module);
        let Some((mapping, function)) = frame.lookup_mapping.and_then(|m| {
            let address = m.module_address(frame.lookup);
            self.symbol(machine, &m, level, address).map(|f| (m, f))
        }) else {
            out.push(self.functions.address(module, level, frame.ip));
            return;
        };
        if self.inline && machine.modules.get(mapping.module).kind != ModuleKind::Ksymbol {
            let symbols = self.symbols(machine, mapping.module);
            let told = symbols.inline_frames(mapping.module_address(frame.lookup));
            let mut names: Vec<&str> = told.iter().filter_map(|f| f.function.as_deref()).collect();
            let outermost = names.pop();
            let of = self.functions.get(function);
            let (start, end) = (of.start, of.end);
            for name in names.into_iter().filter(|name| Some(*name) != outermost) {
                out.push(self.functions.inlined(mapping.module, level, start, end, name));
            }
        }
        out.push(function);
    }

    fn symbol(&mut self, machine: &Machine, map: &Mapping, level: Level, address: u64) -> Option<FunctionId> {
        let module = machine.modules.get(map.module);
        if module.kind == ModuleKind::Ksymbol {
            let name = String::from_utf8_lossy(&module.path);
            return Some(self.functions.symbol(map.module, level, map.start, map.end, &name));
        }
        let symbols = self.symbols(machine, map.module);
        let symbol = symbols.find(address)?;
        Some(self.functions.symbol(map.module, level, symbol.start, symbol.end, symbol.name))
    }

    fn symbols(&mut self, machine: &Machine, module: ModuleId) -> Arc<ModuleSymbols> {
        if let Some(symbols) = self.symbols.get(&module) {
            return Arc::clone(symbols);
        }
        let told = &self.recording.features.build_ids;
        let build_id = |of: &Module| match told.iter().find(|id| id.filename == of.path) {
            Some(known) if of.build_id.is_empty() => known.id.clone(),
            _ => of.build_id.clone(),
        };
        let kernel = machine.modules.iter().find(|(_, m)| m.kind == ModuleKind::Kernel);
        let kernel = KernelIdentity {
            reference: machine.reference.clone(),
            build_id: kernel
                .map(|(_, m)| build_id(m))
                .filter(|id| !id.is_empty())
                .or_else(|| self.recording.features.kernel_build_id().map(<[u8]>::to_vec)),
        };
        let of = machine.modules.get(module);
        let build_id = match of.kind {
            ModuleKind::Kernel => kernel.build_id.clone().unwrap_or_default(),
            _ => build_id(of),
        };
        let of = Module { build_id, ..of.clone() };
        let key = module_key(&of, &kernel, self.recording.modified());
        let symbols = self.store.get(&key);
        self.symbols.insert(module, Arc::clone(&symbols));
        symbols
    }
}

/// Own count, and count with what was called.
pub type OwnAndTotal = (Count, Count);

/// perf's default tables: rows by event, thread name and function, with what they called if asked for, and every row's
/// call graph. Each sample is added to each of its rows by itself.
#[derive(Debug, Default)]
pub struct Tables {
    children: bool,
    rows: HashMap<(usize, usize, FunctionId), TableRow>,
    stack: Vec<FunctionId>,
    seen: Vec<FunctionId>,
}

#[derive(Debug, Default)]
struct TableRow {
    own: Count,
    total: Count,
    /// The call graph: node and function to node, and each node's period.
    graph: HashMap<(usize, FunctionId), usize>,
    periods: Vec<u64>,
}

impl TableRow {
    fn add(&mut self, stack: &[FunctionId], period: u64) {
        let mut node = 0;
        for function in stack.iter().rev() {
            let next = self.graph.len() + 1;
            node = *self.graph.entry((node, *function)).or_insert(next);
        }
        self.periods.resize(self.graph.len() + 1, 0);
        self.periods[node] += period;
    }
}

impl Tables {
    /// Tables with or without what rows called.
    pub fn new(children: bool) -> Tables {
        Tables { children, ..Tables::default() }
    }

    /// Adds one sample.
    pub fn add(&mut self, names: &mut Names<'_>, machine: &Machine, seen: &Seen<'_>) {
        let count = Count { samples: 1, period: seen.period, latency: 0 };
        let leaf = names.leaf(machine, &seen.leaf);
        self.stack.clear();
        for frame in seen.frames {
            names.frame(machine, frame, &mut self.stack);
        }
        let row = self.rows.entry((seen.event, seen.comm, leaf)).or_default();
        row.own += count;
        row.total += count;
        row.add(&self.stack, seen.period);
        if !self.children {
            return;
        }
        self.seen.clear();
        self.seen.push(leaf);
        for at in (0..self.stack.len()).rev() {
            let function = self.stack[at];
            if self.seen.contains(&function) {
                continue;
            }
            self.seen.push(function);
            let row = self.rows.entry((seen.event, seen.comm, function)).or_default();
            row.total += count;
            row.add(&self.stack[..=at], seen.period);
        }
    }

    /// The rows when all samples are in: event, thread name and function with own and total counts.
    pub fn rows(&self, machine: &Machine) -> HashMap<(usize, String, FunctionId), OwnAndTotal> {
        let mut rows: HashMap<_, OwnAndTotal> = HashMap::new();
        for (&(event, comm, function), row) in &self.rows {
            let sums = rows.entry((event, machine.comm(comm), function)).or_default();
            sums.0 += row.own;
            sums.1 += row.total;
        }
        rows
    }
}
