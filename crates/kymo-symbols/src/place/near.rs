//! Names like the one that was not found.

/// How many names are suggested.
pub(super) const MOST_NEAR: usize = 5;
/// A longer name is no slip of the hand, and the table of distances would be large.
const LONGEST: usize = 96;

/// The names most like `wanted`, the nearest first; at most [`MOST_NEAR`].
///
/// A name is like it when its last segment is few letters away, or when one contains the other.
pub(super) fn nearest<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let wanted_word = Word::new(last_segment(wanted));
    if wanted_word.letters.is_empty() || wanted_word.letters.len() > LONGEST {
        return Vec::new();
    }
    let limit = wanted_word.letters.len().div_ceil(3).min(4);
    let mut found: Vec<(usize, &str)> = Vec::new();
    for name in names {
        let worst = if found.len() == MOST_NEAR { found[MOST_NEAR - 1].0 } else { usize::MAX };
        let segment = last_segment(name);
        if segment.len() > 4 * LONGEST {
            continue;
        }
        let word = Word::new(segment);
        let difference = word.letters.len().abs_diff(wanted_word.letters.len());
        let distance = if difference > limit || word.misses(&wanted_word) > 2 * limit {
            None
        } else {
            Some(distance(&wanted_word.letters, &word.letters)).filter(|&d| d <= limit)
        };
        // What only contains the word comes behind all slips.
        let rank = match distance {
            Some(distance) => distance,
            None if wanted_word.letters.len() >= 3 && contains(&word.letters, &wanted_word.letters) => {
                limit + 1 + difference
            }
            None => continue,
        };
        if rank >= worst || found.iter().any(|&(_, known)| known == name) {
            continue;
        }
        let at = found.partition_point(|&(known, _)| known <= rank);
        found.insert(at, (rank, name));
        found.truncate(MOST_NEAR);
    }
    found.into_iter().map(|(_, name)| name.chars().take(256).collect()).collect()
}

/// `c` of `a::b::c`; generic arguments are no segments.
pub(super) fn last_segment(path: &str) -> &str {
    let mut depth = 0usize;
    let bytes = path.as_bytes();
    let mut start = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'<' | b'(' | b'{' => depth += 1,
            b'>' | b')' | b'}' => depth = depth.saturating_sub(1),
            b':' if depth == 0 && at > 0 && bytes[at - 1] == b':' => start = at + 1,
            _ => {}
        }
    }
    &path[start..]
}

struct Word {
    letters: Vec<char>,
    /// How often each letter occurs, by its low bits: names that differ much here need no table.
    counts: [u8; 32],
}

impl Word {
    fn new(text: &str) -> Word {
        let letters: Vec<char> = text.chars().flat_map(char::to_lowercase).take(4 * LONGEST).collect();
        let mut counts = [0u8; 32];
        for &letter in &letters {
            let slot = &mut counts[letter as usize % 32];
            *slot = slot.saturating_add(1);
        }
        Word { letters, counts }
    }

    fn misses(&self, other: &Word) -> usize {
        self.counts.iter().zip(&other.counts).map(|(&a, &b)| usize::from(a.abs_diff(b))).sum()
    }
}

fn contains(whole: &[char], part: &[char]) -> bool {
    whole.windows(part.len()).any(|window| window == part)
}

/// Letters to change, a swap of neighbours counting one.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut rows = [vec![0; b.len() + 1], (0..=b.len()).collect(), vec![0; b.len() + 1]];
    for i in 1..=a.len() {
        let [before, last, row] = &mut rows;
        row[0] = i;
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        rows.rotate_left(1);
    }
    rows[1][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that slips come first, then names that contain the word, and nothing unlike it.
    #[test]
    fn slips_come_before_longer_names() {
        let names = ["counter", "ns::Pool::countre", "counters", "total_counter_of_all", "zebra", "count"];
        assert_eq!(nearest("conuter", names), ["counter", "ns::Pool::countre", "counters", "count"]);
        let found = nearest("counter_of", names);
        assert!(found.len() == 4 && found[3] == "total_counter_of_all", "{found:?}");
        assert!(nearest("", names).is_empty());
        assert!(nearest(&"x".repeat(5000), names).is_empty());
    }
}
