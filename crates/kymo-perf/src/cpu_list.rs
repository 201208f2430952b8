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

/// The list of these CPUs, which ascend.
pub fn format(cpus: &[u32]) -> String {
    let runs = cpus.chunk_by(|before, next| before + 1 == *next);
    let runs = runs.map(|run| match *run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run[0].to_string(),
    });
    runs.collect::<Vec<_>>().join(",")
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
        for list in ["", "5", "0-3,8,10-11"] {
            assert_eq!(super::format(&super::parse(list)), list);
        }
    }
}
