//! Numbers of functions and tracepoints in the kernel's own type information (BTF), which the
//! kernel wants when it loads a program for one of them.
//!
//! A program at a *typed* tracepoint reads the members of a task by plain loads, which cannot
//! fault; one at a raw tracepoint has an address only, and copies each member by a helper.
//!
//! The file has about 5 MB, which are searched in some milliseconds. It is the kernel's own, but it
//! is read as any other: every length is checked, and a damaged one has nothing. The layout:
//! `Documentation/bpf/btf.rst` of the kernel.
use std::ffi::CStr;
use std::io::Read;

const PATH: &str = "/sys/kernel/btf/vmlinux";
/// Those of Debian have 5 to 9 MB.
const MOST_BYTES: u64 = 64 << 20;
const MAGIC: u16 = 0xeb9f;
const TYPEDEF: u32 = 8;
const FUNCTION: u32 = 12;

/// The kernel's type information.
#[derive(Debug)]
pub(super) struct KernelBtf(Vec<u8>);

impl KernelBtf {
    /// `None`: this kernel has none, or does not show it.
    pub(super) fn read() -> Option<KernelBtf> {
        let mut bytes = Vec::new();
        std::fs::File::open(PATH).ok()?.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
        Some(KernelBtf(bytes))
    }

    /// The number of a tracepoint's type. `None`: there is no such tracepoint, or the bytes are
    /// none that we know.
    pub(super) fn tracepoint(&self, point: &CStr) -> Option<u32> {
        self.find(TYPEDEF, &[b"\0btf_trace_", point.to_bytes_with_nul()].concat())
    }

    /// The number of a function, or `None` as above.
    pub(super) fn function(&self, name: &CStr) -> Option<u32> {
        self.find(FUNCTION, &[b"\0", name.to_bytes_with_nul()].concat())
    }

    /// A type of this kind, by its name between zeros.
    fn find(&self, wanted: u32, name: &[u8]) -> Option<u32> {
        let (types, strings) = self.sections()?;
        // The kernel has each name once.
        let name = u32::try_from(memchr::memmem::find(strings, name)? + 1).ok()?;
        let mut at = 0;
        // Type 0 is void, which is not written.
        for id in 1.. {
            let info = word(types, at + 4)?;
            let (kind, members) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
            if kind == wanted && word(types, at)? == name {
                return Some(id);
            }
            at += 12 + more_bytes(kind, members)?;
        }
        None
    }

    fn sections(&self) -> Option<(&[u8], &[u8])> {
        if self.0.first_chunk().map(|magic| u16::from_ne_bytes(*magic)) != Some(MAGIC) {
            return None;
        }
        let number = |at| word(&self.0, at).map(|word| word as usize);
        let header = number(4)?;
        let section = |from, bytes| self.0.get(header.checked_add(number(from)?)?..)?.get(..number(bytes)?);
        Some((section(8, 12)?, section(16, 20)?))
    }
}

/// How many bytes follow the first twelve of a type; `None` for a kind that is not known, behind
/// which nothing can be found.
fn more_bytes(kind: u32, members: usize) -> Option<usize> {
    Some(match kind {
        // Integers, variables, tags of declarations.
        1 | 14 | 17 => 4,
        // Arrays.
        3 => 12,
        // Structs, unions, sections, enumerations of 64 bits.
        4 | 5 | 15 | 19 => 12 * members,
        // Enumerations, prototypes.
        6 | 13 => 8 * members,
        // Pointers, declarations, typedefs, qualifiers, functions, floats, tags of types.
        2 | 7..=12 | 16 | 18 => 0,
        _ => return None,
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn btf(types: &[u32], strings: &[u8]) -> Vec<u8> {
        let bytes = size_of_val(types) as u32;
        let header = [0x0001_eb9f, 24, 0, bytes, bytes, strings.len() as u32];
        header
            .iter()
            .chain(types)
            .flat_map(|word| word.to_ne_bytes())
            .chain(strings.iter().copied())
            .collect()
    }

    /// Checks that a tracepoint and a function are found behind types of several lengths, by their
    /// whole names, and that cut or damaged bytes give nothing.
    #[test]
    fn types_by_name() {
        let strings = b"\0int\0futex\0btf_trace_sched_switched\0btf_trace_sched_switch\0";
        let of = |name: &[u8]| memchr::memmem::find(strings, name).unwrap() as u32 + 1;
        let types = [
            vec![of(b"\0int\0"), 1 << 24, 4, 32],                        // 1: int
            vec![0, 4 << 24 | 1, 4, of(b"\0int\0"), 1, 0],               // 2: a struct of one member
            vec![of(b"\0btf_trace_sched_switched\0"), TYPEDEF << 24, 2], // 3
            vec![of(b"\0btf_trace_sched_switch\0"), TYPEDEF << 24, 2],   // 4
            vec![of(b"\0futex\0"), FUNCTION << 24, 1],                   // 5
        ];
        let bytes = btf(&types.concat(), strings);
        let kernel = KernelBtf(bytes.clone());
        assert_eq!(kernel.tracepoint(c"sched_switch"), Some(4));
        assert_eq!(kernel.tracepoint(c"sched_waking"), None);
        assert_eq!((kernel.function(c"futex"), kernel.function(c"int")), (Some(5), None));
        for at in 0..bytes.len() / 4 {
            let mut damaged = bytes.clone();
            damaged[4 * at..4 * at + 4].fill(0xff);
            KernelBtf(damaged).function(c"futex");
        }
        for length in 0..bytes.len() {
            assert_eq!(KernelBtf(bytes[..length].to_vec()).tracepoint(c"sched_switch"), None, "{length}");
        }
        let unknown = btf(&[vec![0, 31 << 24, 0], types[3].clone()].concat(), strings);
        assert_eq!(KernelBtf(unknown).tracepoint(c"sched_switch"), None);
    }
}
