//! The sorted table of one module's symbols.

/// One symbol: the half-open range that it covers and what it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolRef<'a> {
    /// First address of the symbol, in the module's address space.
    pub start: u64,
    /// First address after the symbol.
    pub end: u64,
    /// The name as perf prints it (demangled unless switched off).
    pub name: &'a str,
    /// The name as the file stores it.
    pub raw_name: &'a str,
    /// Number of the symbol in its table: a small key for aggregation, stable for this table.
    pub index: u32,
}

/// Every symbol of one module, ordered by start.
#[derive(Debug, Default)]
pub struct SymbolTable {}

impl SymbolTable {
    /// The symbol that covers `address`, if there is one.
    pub fn find(&self, _address: u64) -> Option<SymbolRef<'_>> {
        None
    }

    /// The symbol with this number.
    pub fn get(&self, _index: u32) -> Option<SymbolRef<'_>> {
        None
    }

    /// How many symbols there are.
    pub fn len(&self) -> usize {
        0
    }

    /// Whether there is no symbol at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
