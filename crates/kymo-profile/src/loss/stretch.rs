//! Intervals of time, and sets of them.

/// An interval of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stretch {
    /// Its begin, ns of the recording's clock.
    pub start_ns: u64,
    /// Its end, ns.
    pub end_ns: u64,
}

impl Stretch {
    /// Its length, ns.
    pub fn len_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

/// The same time as disjoint stretches in order. Empty ones go.
pub(super) fn union(mut list: Vec<Stretch>) -> Vec<Stretch> {
    list.retain(|s| s.end_ns > s.start_ns);
    list.sort_unstable();
    list.dedup_by(|next, last| {
        let joins = next.start_ns <= last.end_ns;
        if joins {
            last.end_ns = last.end_ns.max(next.end_ns);
        }
        joins
    });
    list
}

/// Length of disjoint stretches, ns.
pub(super) fn length_ns(list: &[Stretch]) -> u64 {
    list.iter().map(Stretch::len_ns).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that overlapping, touching and contained stretches become one, and empty or reversed ones none.
    #[test]
    fn unions() {
        let stretch = |&(start_ns, end_ns): &(u64, u64)| Stretch { start_ns, end_ns };
        let list = [(50, 60), (10, 20), (20, 30), (12, 15), (40, 40), (9, 3), (55, 70)];
        let union = union(list.iter().map(stretch).collect());
        assert_eq!(union, [(10, 30), (50, 70)].iter().map(stretch).collect::<Vec<_>>());
        assert_eq!(length_ns(&union), 40);
    }
}
