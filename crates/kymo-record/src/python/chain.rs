//! Python's frames in the place of the native frames that run them.

/// A frame of Python in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChainFrame {
    /// What stands for it in the chain; `None`: it only ends a group.
    pub(super) address: Option<u64>,
    /// Native code has entered it: the frames that follow belong to the next native frame.
    pub(super) ends: bool,
}

/// Replaces the native frames that run Python, those of which `runs` is true, by the frames that
/// they run, both innermost first.
///
/// One native frame runs a group of frames of Python, up to the one that native code has entered.
/// There may be one more native frame than groups, or one less, where a function was just being
/// entered or left. A chain that is `whole` is matched from its outermost frame on: then the native
/// frame that has no group stays, and a group without a native frame comes first. Of another chain
/// the outermost frames are missing: it is matched from the innermost on, and ends with the groups
/// that are left.
pub(super) fn replace(
    native: &[u64],
    whole: bool,
    runs: impl Fn(u64) -> bool,
    python: &[ChainFrame],
    chain: &mut Vec<u64>,
) {
    chain.clear();
    let groups = python.split_inclusive(|frame| frame.ends).count();
    let mut runners = native.iter().filter(|&&address| runs(address)).count();
    let mut left = python.split_inclusive(|frame| frame.ends);
    let put = |group: Option<&[ChainFrame]>, chain: &mut Vec<u64>| {
        chain.extend(group.into_iter().flatten().filter_map(|frame| frame.address));
    };
    if whole {
        for _ in runners..groups {
            put(left.next(), chain);
        }
    }
    for &address in native {
        if !runs(address) {
            chain.push(address);
            continue;
        }
        runners -= 1;
        // Of a whole chain the outermost runners have the groups.
        match if whole && runners >= groups { None } else { left.next() } {
            Some(group) => put(Some(group), chain),
            None => chain.push(address),
        }
    }
    left.for_each(|group| put(Some(group), chain));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Python's frames from letters: a capital one ends its group, a dot is no function.
    fn frames(text: &str) -> Vec<ChainFrame> {
        let frame = |letter: u8| ChainFrame {
            address: (letter != b'.').then_some(letter.to_ascii_lowercase().into()),
            ends: !letter.is_ascii_lowercase(),
        };
        text.bytes().map(frame).collect()
    }

    /// Checks chains of native functions (digits) and loops that run Python (`E`), whole or not,
    /// with one group more and less, with frames that are no functions, and with no Python at all.
    #[test]
    fn chains() {
        let cases = [
            ("1E2E3", true, "aBcD", "1ab2cd3"),
            ("E2", true, "abc.", "abc2"),
            // A loop that has just been entered, and one that has just been left.
            ("1EE3", true, "aB", "1Eab3"),
            ("1E3", true, "AbC", "a1bc3"),
            ("123", true, "aB", "ab123"),
            // Outer frames are missing.
            ("1E2E", false, "aBcDeF", "1ab2cdef"),
            ("1", false, "aBcD", "1abcd"),
            ("1E2E", false, "aB", "1ab2E"),
            ("1E2", true, "", "1E2"),
            ("", true, "aB", "ab"),
            // A walk of Python's frames that was cut short.
            ("E2E3", true, "aBc", "ab2c3"),
        ];
        for (native, whole, python, expected) in cases {
            let native: Vec<u64> = native.bytes().map(u64::from).collect();
            let mut chain = vec![99];
            replace(&native, whole, |address| address == u64::from(b'E'), &frames(python), &mut chain);
            let chain: String = chain.iter().map(|&address| address as u8 as char).collect();
            assert_eq!(chain, expected, "{native:?} {python}");
        }
    }
}
