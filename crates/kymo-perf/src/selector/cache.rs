//! Names of the generalized cache events: `L1-dcache-load-misses` and its many spellings.
//!
//! A name is a cache, and up to two of an operation and a result, joined by `-`. Left out, the
//! operation is a read and the result an access. Spellings may hold `-` themselves, so the longest
//! spelling wins at each step.

const CACHES: [&[&str]; 7] = [
    &["L1-dcache", "l1-d", "l1d", "L1-data"],
    &["L1-icache", "l1-i", "l1i", "L1-instruction"],
    &["LLC", "L2"],
    &["dTLB", "d-tlb", "Data-TLB"],
    &["iTLB", "i-tlb", "Instruction-TLB"],
    &["branch", "branches", "bpu", "btb", "bpc"],
    &["node"],
];

const OPERATIONS: [&[&str]; 3] = [
    &["load", "loads", "read"],
    &["store", "stores", "write"],
    &["prefetch", "prefetches", "speculative-read", "speculative-load"],
];

const RESULTS: [&[&str]; 2] = [&["refs", "Reference", "ops", "access"], &["misses", "miss"]];

/// Which operations exist for each cache, as a mask over [`OPERATIONS`]; the kernel has no number
/// for the others.
const ALLOWED: [u8; 7] = [0b111, 0b101, 0b111, 0b111, 0b001, 0b001, 0b111];

/// What a cache event's name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheName {
    /// The attr's config.
    Event(u64),
    /// The parts are known, but this cache has no such operation.
    NoSuchOperation,
}

/// Reads a name; `None` if it is none of a cache event.
pub(crate) fn parse(name: &str) -> Option<CacheName> {
    // A cache's spelling may begin another's (`branch`, `branches`), so every one that fits is
    // tried.
    CACHES.iter().enumerate().find_map(|(cache, spellings)| {
        spellings.iter().find_map(|spelling| {
            let rest = name.strip_prefix(spelling)?;
            let (operation, result) = qualifiers(rest)?;
            Some(match ALLOWED[cache] >> operation & 1 {
                1 => CacheName::Event(cache as u64 | (operation as u64) << 8 | (result as u64) << 16),
                _ => CacheName::NoSuchOperation,
            })
        })
    })
}

/// Reads `-load-misses` and the like in either order, each at most once.
fn qualifiers(rest: &str) -> Option<(usize, usize)> {
    let (mut operation, mut result) = (None, None);
    let mut rest = rest;
    while !rest.is_empty() {
        rest = rest.strip_prefix('-')?;
        let (behind, index) = if let Some((behind, index)) = longest(&OPERATIONS, rest) {
            (behind, operation.replace(index))
        } else {
            let (behind, index) = longest(&RESULTS, rest)?;
            (behind, result.replace(index))
        };
        if index.is_some() {
            return None;
        }
        rest = behind;
    }
    Some((operation.unwrap_or(0), result.unwrap_or(0)))
}

/// The longest spelling that begins `text` and ends at `-` or the end.
fn longest<'a>(table: &[&[&str]], text: &'a str) -> Option<(&'a str, usize)> {
    table
        .iter()
        .enumerate()
        .flat_map(|(index, spellings)| spellings.iter().map(move |spelling| (index, *spelling)))
        .filter_map(|(index, spelling)| Some((text.strip_prefix(spelling)?, index)))
        .filter(|(rest, _)| rest.is_empty() || rest.starts_with('-'))
        .min_by_key(|(rest, _)| rest.len())
}

/// The usual spelling of every cache event, with its config, in the kernel's order.
pub(super) fn all() -> impl Iterator<Item = (String, u64)> {
    let of = |cache: usize| {
        (0..OPERATIONS.len()).filter(move |operation| ALLOWED[cache] >> operation & 1 == 1).flat_map(
            move |operation| {
                (0..RESULTS.len()).map(move |result| {
                    let name = match result {
                        0 => format!("{}-{}", CACHES[cache][0], OPERATIONS[operation][1]),
                        _ => format!("{}-{}-misses", CACHES[cache][0], OPERATIONS[operation][0]),
                    };
                    (name, cache as u64 | (operation as u64) << 8 | (result as u64) << 16)
                })
            },
        )
    };
    (0..CACHES.len()).flat_map(of)
}

/// Every cache event: its usual spelling, its config, and what it counts, in the kernel's order.
pub fn cache_events() -> impl Iterator<Item = (String, u64, String)> {
    all().map(|(name, config)| (name, config, describe(config)))
}

fn describe(config: u64) -> String {
    let caches = [
        "first-level data cache",
        "first-level instruction cache",
        "last-level cache",
        "data TLB",
        "instruction TLB",
        "branch predictor",
        "memory of this NUMA node",
    ];
    let what = |table: &[&'static str], index: u64| table.get(index as usize & 0xff).copied().unwrap_or("?");
    let operation = what(&["loads", "stores", "prefetches"], config >> 8 & 0xff);
    let cache = what(&caches, config & 0xff);
    match config >> 16 & 0xff {
        0 => format!("{operation}: {cache}"),
        _ => format!("{operation} that miss: {cache}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &str) -> Option<u64> {
        match parse(name)? {
            CacheName::Event(config) => Some(config),
            CacheName::NoSuchOperation => None,
        }
    }

    /// Checks every cache and spelling class against the kernel's numbering: cache, operation << 8,
    /// result << 16.
    #[test]
    fn spellings() {
        let cases = [
            ("L1-dcache-load-misses", 0x1_0000),
            ("L1-dcache-loads", 0),
            ("L1-dcache-misses-load", 0x1_0000),
            ("l1d", 0),
            ("l1-d-write-miss", 0x1_0100),
            ("L1-icache-loads", 1),
            ("L1-instruction-speculative-read", 0x201),
            ("LLC-store-refs", 0x102),
            ("L2-prefetch-misses", 0x1_0202),
            ("dTLB-loads", 3),
            ("Data-TLB-speculative-load-access", 0x203),
            ("iTLB-load-misses", 0x1_0004),
            ("branches-load", 5),
            ("branch-loads", 5),
            ("bpc-misses", 0x1_0005),
            ("node-prefetches", 0x206),
        ];
        for (name, expected) in cases {
            assert_eq!(config(name), Some(expected), "{name}");
        }
    }

    /// Checks that near misses are no cache events, and that an operation a cache lacks is told
    /// apart.
    #[test]
    fn refusals() {
        for name in ["L1", "LLC-", "LLC-load-load", "LLC-misses-miss", "LLCloads", "LLC-loadsx", "l1dx", ""] {
            assert_eq!(parse(name), None, "{name}");
        }
        assert_eq!(parse("iTLB-stores"), Some(CacheName::NoSuchOperation));
        assert_eq!(parse("L1-icache-stores"), Some(CacheName::NoSuchOperation));
    }

    /// Checks that the listing's names read back as the configs beside them.
    #[test]
    fn listing_reads_back() {
        assert_eq!(all().count(), 2 * (3 + 2 + 3 + 3 + 1 + 1 + 3));
        for (name, expected) in all() {
            assert_eq!(config(&name), Some(expected), "{name}");
        }
        assert!(all().any(|(name, _)| name == "L1-dcache-load-misses"));
        assert!(all().any(|(name, _)| name == "node-prefetches"));
    }
}
