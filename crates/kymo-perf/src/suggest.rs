//! Similar names, for "did you mean".

/// The candidate most similar to `name`, if any is similar enough to be a slip of the hand.
///
/// Similar means at most one change (insert, delete, replace, or swap of neighbours) per three
/// characters. Among equals the first candidate wins. Allocates two short rows, so it is fit for
/// thousands of candidates.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A name longer than any real one is no slip; the bound also keeps the table small for hostile
    // input.
    let wanted: Vec<char> = name.chars().flat_map(char::to_lowercase).take(129).collect();
    if wanted.is_empty() || wanted.len() > 128 {
        return None;
    }
    let limit = wanted.len().div_ceil(3).min(4);
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates {
        let cap = best.map_or(limit, |(distance, _)| distance.saturating_sub(1));
        let chars: Vec<char> = candidate.chars().flat_map(char::to_lowercase).take(160).collect();
        if chars.len().abs_diff(wanted.len()) > cap {
            continue;
        }
        let distance = distance(&wanted, &chars);
        if distance <= cap && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Edits between two words, a swap of neighbours counting one (optimal string alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replace = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replace.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks typical slips, and that unlike words get no suggestion.
    #[test]
    fn slips_find_their_word() {
        let words = ["cycles", "cs", "instructions", "branch-misses", "cache-misses"];
        let near = |name| nearest(name, words);
        assert_eq!(near("cylces"), Some("cycles"));
        assert_eq!(near("cycle"), Some("cycles"));
        assert_eq!(near("Instuctions"), Some("instructions"));
        assert_eq!(near("branch_misses"), Some("branch-misses"));
        assert_eq!(near("zebra"), None);
        assert_eq!(near(""), None);
        assert_eq!(near(&"x".repeat(5000)), None);
    }
}
