//! Dynamic symbols of a module, read from the process's memory: this works for deleted files, other
//! roots and modules without a file name.
//!
//! Everything is read from a process that may lie: nothing is allocated by what it claims, nothing
//! is looked at for ever.
use super::target::TargetProcess;
use std::io;

const MOST_HEADERS: usize = 64;
const MOST_DYNAMIC: usize = 256;
/// libc has 3,000.
const MOST_SYMBOLS: u64 = 200_000;
const MOST_NAME_BYTES: usize = 64;
/// Of a table of names. libc has 30 KiB, libLLVM 2 MiB.
const MOST_NAMES_BYTES: u64 = 8 << 20;
/// Of it that are read at once.
const PART_BYTES: usize = 64 << 10;
const SYMBOL_BYTES: u64 = 24;

/// The tables of one module.
#[derive(Debug)]
pub(super) struct Symbols<'t> {
    target: &'t TargetProcess,
    /// What is added to an address of the file.
    bias: u64,
    table: u64,
    names: u64,
    names_bytes: u64,
    count: u64,
}

/// A function that a module offers: its first address and the one after its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExportedFunction {
    pub(super) start: u64,
    pub(super) end: u64,
}

fn bad(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u16::from_le_bytes(*word))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_le_bytes(*word))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

impl<'t> Symbols<'t> {
    /// Those of the module whose ELF header is at `base`.
    pub(super) fn of(target: &'t TargetProcess, base: u64) -> io::Result<Symbols<'t>> {
        let mut header = [0; 64];
        target.read(base, &mut header)?;
        if header[..6] != *b"\x7fELF\x02\x01" {
            return Err(bad("no ELF header"));
        }
        let (at, size, count) = (u64_at(&header, 32), u16_at(&header, 54), u16_at(&header, 56));
        if size != 56 || usize::from(count) > MOST_HEADERS {
            return Err(bad("odd program headers"));
        }
        let mut headers = vec![0; usize::from(count) * 56];
        target.read(base.wrapping_add(at), &mut headers)?;
        let (mut first, mut dynamic) = (None, None);
        for header in headers.chunks_exact(56) {
            match u32_at(header, 0) {
                1 if u64_at(header, 8) == 0 => first = Some(u64_at(header, 16)),
                2 => dynamic = Some((u64_at(header, 16), u64_at(header, 40))),
                _ => {}
            }
        }
        let bias = base.wrapping_sub(first.ok_or_else(|| bad("no loaded part with the header"))?);
        let (at, bytes) = dynamic.ok_or_else(|| bad("not dynamic"))?;
        let mut entries = vec![0; (bytes as usize).min(MOST_DYNAMIC * 16)];
        target.read(bias.wrapping_add(at), &mut entries)?;
        let value = |tag: u64| {
            let found = entries.chunks_exact(16).take_while(|entry| u64_at(entry, 0) != 0);
            found.into_iter().find(|entry| u64_at(entry, 0) == tag).map(|entry| u64_at(entry, 8))
        };
        // glibc's linker has made these addresses of the process, musl's has not.
        let absolute = |value: u64| if value < base { bias.wrapping_add(value) } else { value };
        let (Some(names), Some(table)) = (value(5).map(absolute), value(6).map(absolute)) else {
            return Err(bad("no dynamic symbols"));
        };
        let names_bytes = value(10).unwrap_or(MOST_NAMES_BYTES).min(MOST_NAMES_BYTES);
        let mut symbols = Symbols { target, bias, table, names, names_bytes, count: 0 };
        symbols.count = match (value(4).map(absolute), value(0x6fff_fef5).map(absolute)) {
            (Some(hash), _) => {
                let mut head = [0; 8];
                target.read(hash, &mut head)?;
                u64::from(u32_at(&head, 4))
            }
            (None, Some(hash)) => symbols.count_by_gnu_hash(hash)?,
            (None, None) => return Err(bad("no hash table")),
        }
        .min(MOST_SYMBOLS);
        Ok(symbols)
    }

    /// The table says only where each chain begins; the last chain's end is the end of the symbols.
    fn count_by_gnu_hash(&self, hash: u64) -> io::Result<u64> {
        let mut head = [0; 16];
        self.target.read(hash, &mut head)?;
        let (buckets, first, bloom) =
            (u64::from(u32_at(&head, 0)), u64::from(u32_at(&head, 4)), u64::from(u32_at(&head, 8)));
        if buckets > MOST_SYMBOLS || bloom > MOST_SYMBOLS {
            return Err(bad("odd hash table"));
        }
        let mut bytes = vec![0; buckets as usize * 4];
        let at = hash.wrapping_add(16 + bloom * 8);
        self.target.read(at, &mut bytes)?;
        let mut last = bytes.chunks_exact(4).map(|chain| u64::from(u32_at(chain, 0))).max().unwrap_or(0);
        if last < first {
            return Ok(first);
        }
        let chains = at.wrapping_add(buckets * 4);
        while last < MOST_SYMBOLS {
            let mut word = [0; 4];
            self.target.read(chains.wrapping_add((last - first) * 4), &mut word)?;
            last += 1;
            if u32_at(&word, 0) & 1 != 0 {
                break;
            }
        }
        Ok(last)
    }

    /// The functions with these names, in the order of the names; `None` for those that the module
    /// does not define.
    pub(super) fn functions<const N: usize>(
        &self,
        names: [&str; N],
    ) -> io::Result<[Option<ExportedFunction>; N]> {
        let mut found = [None; N];
        let texts = self.texts();
        let mut part = vec![0; 1024 * SYMBOL_BYTES as usize];
        let mut at = 0;
        while at < self.count {
            let here = (self.count - at).min(1024);
            let part = &mut part[..(here * SYMBOL_BYTES) as usize];
            self.target.read(self.table.wrapping_add(at * SYMBOL_BYTES), part)?;
            for symbol in part.chunks_exact(SYMBOL_BYTES as usize) {
                let (kind, section) = (symbol[4] & 15, u16_at(symbol, 6));
                // A function (2) that is defined here. One that is chosen at run time (10) has
                // another address than this.
                if kind != 2 || section == 0 {
                    continue;
                }
                let name = texts.get(u32_at(symbol, 0) as usize..).unwrap_or(&[]);
                let name = &name[..name.len().min(MOST_NAME_BYTES)];
                let name = name.split(|&byte| byte == 0).next().unwrap_or(name);
                let Some(which) = names.iter().position(|wanted| wanted.as_bytes() == name) else {
                    continue;
                };
                let start = self.bias.wrapping_add(u64_at(symbol, 8));
                let end = start.wrapping_add(u64_at(symbol, 16).max(1));
                found[which].get_or_insert(ExportedFunction { start, end });
            }
            at += here;
        }
        Ok(found)
    }

    /// The table of names, as far as it is there: in few calls, for each of them asks another
    /// process.
    fn texts(&self) -> Vec<u8> {
        let mut texts = Vec::new();
        let mut part = vec![0; PART_BYTES];
        while (texts.len() as u64) < self.names_bytes {
            let left = (self.names_bytes - texts.len() as u64).min(PART_BYTES as u64) as usize;
            let at = self.names.wrapping_add(texts.len() as u64);
            let read = self.target.read_some(at, &mut part[..left]);
            texts.extend_from_slice(&part[..read]);
            if read < left {
                break;
            }
        }
        texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks on this process that the C library offers what it must, at addresses within its code,
    /// and not what it cannot.
    #[test]
    fn c_library() {
        let target = TargetProcess::look(std::process::id() as i32).unwrap();
        let modules = target.modules().unwrap();
        let mut seen = [false; 2];
        for (base, _) in &modules {
            let Ok(symbols) = Symbols::of(&target, *base) else { continue };
            let [malloc, getpid, nothing] =
                symbols.functions(["malloc", "getpid", "kymo_is_not_there"]).unwrap();
            assert_eq!(nothing, None);
            seen[0] |= malloc.is_some_and(|function| function.end > function.start);
            seen[1] |= getpid.is_some_and(|function| function.start == libc::getpid as *const () as u64);
        }
        assert_eq!(seen, [true, true]);
    }

    /// Checks that memory which is no module is refused, whatever is in it.
    #[test]
    fn no_module() {
        let target = TargetProcess::look(std::process::id() as i32).unwrap();
        let noise: Vec<u8> = (0..4096u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        assert!(Symbols::of(&target, noise.as_ptr().addr() as u64).is_err());
        let mut header = noise.clone();
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        assert!(Symbols::of(&target, header.as_ptr().addr() as u64).is_err());
        header[54..58].copy_from_slice(&[56, 0, 2, 0]);
        header[32..40].copy_from_slice(&64u64.to_le_bytes());
        assert!(Symbols::of(&target, header.as_ptr().addr() as u64).is_err());
        assert!(Symbols::of(&target, 8).is_err());
    }
}
