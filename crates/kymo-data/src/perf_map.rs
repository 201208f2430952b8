//! `/tmp/perf-PID.map`: the names of generated code, as JIT compilers write them.
//!
//! One line per symbol: start and size in hexadecimal, then the name up to the end of the line.
//! Compilers append and reuse memory, so of entries that overlap the later one counts.

/// The symbols of one process, ordered by address and without overlap at their starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerfMap {
    /// The symbols, ascending by start.
    pub symbols: Vec<MapSymbol>,
}

/// One symbol of a perf map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapSymbol {
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Name, as the compiler wrote it.
    pub name: String,
}

impl PerfMap {
    /// Reads the text of a perf map. Lines that are no entries (a compiler may be in the middle of
    /// writing one) are left out.
    pub fn parse(text: &[u8]) -> PerfMap {
        let mut symbols: Vec<MapSymbol> =
            text.split(|&byte| byte == b'\n').filter_map(MapSymbol::parse).collect();
        // Stable: of equal starts the later line stays last, and wins below.
        symbols.sort_by_key(|symbol| symbol.start);
        symbols.reverse();
        symbols.dedup_by_key(|symbol| symbol.start);
        symbols.reverse();
        PerfMap { symbols }
    }

    /// The symbol that `address` lies in.
    pub fn lookup(&self, address: u64) -> Option<&MapSymbol> {
        let after = self.symbols.partition_point(|symbol| symbol.start <= address);
        let symbol = self.symbols.get(after.checked_sub(1)?)?;
        (address - symbol.start < symbol.len).then_some(symbol)
    }
}

impl MapSymbol {
    fn parse(line: &[u8]) -> Option<MapSymbol> {
        let line = String::from_utf8_lossy(line);
        let mut words = line.trim().splitn(3, ' ');
        let mut hex = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
        let (start, len) = (hex()?, hex()?);
        let name = words.next()?.trim();
        (!name.is_empty() && len > 0).then(|| MapSymbol { start, len, name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks order, lookup, names with spaces, replaced entries and broken lines.
    #[test]
    fn parses_and_finds() {
        let map = PerfMap::parse(
            b"2000 10 second\n1000 0x20 LazyCompile:~f file.js:1\nnot a line\n3000 10\n2000 8 newer\r\n\xff 1 x\n0 0 empty\n5 1 \xff",
        );
        let starts: Vec<_> = map.symbols.iter().map(|s| s.start).collect();
        assert_eq!(starts, [5, 0x1000, 0x2000]);
        let name = |at| map.lookup(at).map(|s| s.name.as_str());
        assert_eq!(name(0x101f), Some("LazyCompile:~f file.js:1"));
        assert_eq!((name(0x1020), name(0xfff), name(0)), (None, None, None));
        assert_eq!((name(0x2007), name(0x2008), name(u64::MAX)), (Some("newer"), None, None));
    }
}
