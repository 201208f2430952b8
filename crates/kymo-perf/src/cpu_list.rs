//! Lists of CPUs as the kernel writes them: `0-3,8,10-11`.

/// The CPUs of such a list, ascending and each once; what cannot be read is left out. At most 2^16
/// CPUs.
pub fn parse(text: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(from), Ok(to)) = (from.trim().parse::<u32>(), to.trim().parse::<u32>()) {
            cpus.extend(from..=to.min(0xffff));
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}

/// How many CPUs this machine can ever have, so that every number of a CPU is smaller.
pub(crate) fn possible() -> u32 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = parse(&text).last().copied();
    last.or_else(|| crate::sys::online_cpus().last().copied()).map_or(1, |last| last + 1)
}

#[cfg(test)]
mod tests {
    /// Checks ranges, single CPUs, order, repetition and what is no list at all.
    #[test]
    fn lists() {
        assert_eq!(super::parse("0-3,8,2\n"), [0, 1, 2, 3, 8]);
        assert_eq!(super::parse("5"), [5]);
        assert!(super::parse("").is_empty());
        assert!(super::parse("a-b,-").is_empty());
        assert_eq!(super::parse("65535-4000000000"), [65535]);
    }
}
