//! Functions: the names that frames are counted under.
use crate::timeline::ModuleId;
use rustc_hash::FxHashMap;

/// Index of a function in [`Functions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u32);

/// Which side of the privilege line code ran on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The kernel.
    Kernel,
    /// A program.
    User,
    /// A hypervisor.
    Hypervisor,
    /// A guest's kernel.
    GuestKernel,
    /// A guest's program.
    GuestUser,
}

impl Level {
    /// The level of a sample's `PERF_RECORD_MISC_CPUMODE` bits.
    pub fn of_mode(mode: u8) -> Level {
        match mode {
            1 => Level::Kernel,
            3 => Level::Hypervisor,
            4 => Level::GuestKernel,
            5 => Level::GuestUser,
            _ => Level::User,
        }
    }

    /// The letter that tables show in brackets before a symbol.
    pub fn letter(self) -> char {
        match self {
            Level::Kernel => 'k',
            Level::User => '.',
            Level::Hypervisor => 'H',
            Level::GuestKernel => 'g',
            Level::GuestUser => 'u',
        }
    }
}

/// What a frame is counted under: a symbol, an inlined function inside one, or a bare address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Where the code lies, `None` outside every mapping.
    pub module: Option<ModuleId>,
    /// Its name; `None` where no symbol covers the address.
    pub name: Option<Box<str>>,
    /// First address of the symbol in the module's own terms; the address itself for a bare address.
    pub start: u64,
    /// One past the last address; equal to `start` for a bare address.
    pub end: u64,
    /// The code was inlined into the symbol at `start`.
    pub inlined: bool,
    /// Code that the recording itself names, made while it ran.
    pub generated: bool,
    /// Privilege.
    pub level: Level,
}

/// Module, level, start, end, which symbol covers it, and the name of an inlined function.
type Key = (Option<ModuleId>, Level, u64, u64, Covered, Option<Box<str>>);

/// Whether a symbol covers an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Covered {
    No,
    Symbol,
    /// One of those that generated code had at this place at different times.
    Generated(u32),
}

/// All functions of a profile, each once.
#[derive(Debug, Default)]
pub struct Functions {
    list: Vec<Function>,
    index: FxHashMap<Key, FunctionId>,
}

impl Functions {
    /// The function of a symbol.
    pub fn symbol(&mut self, module: ModuleId, level: Level, start: u64, end: u64, name: &str) -> FunctionId {
        self.intern((Some(module), level, start, end, Covered::Symbol, None), Some(name))
    }

    /// A piece of generated code; `serial` tells it from others that were in its place.
    pub(crate) fn generated(
        &mut self,
        module: ModuleId,
        level: Level,
        (start, end): (u64, u64),
        serial: u32,
        name: &str,
    ) -> FunctionId {
        self.intern((Some(module), level, start, end, Covered::Generated(serial), None), Some(name))
    }

    /// A function that was inlined into the symbol `[start, end)`.
    pub fn inlined(
        &mut self,
        module: ModuleId,
        level: Level,
        start: u64,
        end: u64,
        name: &str,
    ) -> FunctionId {
        self.intern((Some(module), level, start, end, Covered::Symbol, Some(name.into())), Some(name))
    }

    /// Code that no symbol covers.
    pub fn address(&mut self, module: Option<ModuleId>, level: Level, address: u64) -> FunctionId {
        self.intern((module, level, address, address, Covered::No, None), None)
    }

    fn intern(&mut self, key: Key, name: Option<&str>) -> FunctionId {
        if let Some(&id) = self.index.get(&key) {
            return id;
        }
        let id = FunctionId(self.list.len() as u32);
        let (module, level, start, end, covered, ref inlined) = key;
        let (name, inlined) = (name.map(Into::into), inlined.is_some());
        let generated = matches!(covered, Covered::Generated(_));
        self.list.push(Function { module, name, start, end, inlined, generated, level });
        self.index.insert(key, id);
        id
    }

    /// The function of an id given by this table.
    pub fn get(&self, id: FunctionId) -> &Function {
        &self.list[id.0 as usize]
    }

    /// All functions with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (FunctionId, &Function)> {
        self.list.iter().enumerate().map(|(i, f)| (FunctionId(i as u32), f))
    }

    /// How many functions.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// No function at all.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}
