//! Work on all CPUs, or on the calling thread alone where the system permits no more threads.
//!
//! rayon's own pool panics at its first use where a thread cannot be made (`ulimit -u`, `pids.max`, `ulimit -v`). The
//! result is the same either way.
use std::cmp::Ordering;
use std::sync::OnceLock;

use rayon::prelude::*;

/// `None`: there is none, and there will be none.
fn pool() -> Option<&'static rayon::ThreadPool> {
    static POOL: OnceLock<Option<rayon::ThreadPool>> = OnceLock::new();
    POOL.get_or_init(|| rayon::ThreadPoolBuilder::new().build().ok()).as_ref()
}

/// What becomes of each item, in their order.
pub fn map<T: Sync, R: Send>(items: &[T], each: impl Fn(&T) -> R + Sync + Send) -> Vec<R> {
    map_on(pool(), items, each)
}

fn map_on<T: Sync, R: Send>(
    pool: Option<&rayon::ThreadPool>,
    items: &[T],
    each: impl Fn(&T) -> R + Sync + Send,
) -> Vec<R> {
    match pool {
        Some(pool) => pool.install(|| items.par_iter().map(each).collect()),
        None => items.iter().map(each).collect(),
    }
}

/// Sorts by a key; the order of equal ones is any.
pub fn sort_by_key<T: Send, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K + Sync + Send) {
    match pool() {
        Some(pool) => pool.install(|| items.par_sort_unstable_by_key(key)),
        None => items.sort_unstable_by_key(key),
    }
}

/// Sorts by a comparison; the order of equal ones is any.
pub fn sort_by<T: Send>(items: &mut [T], order: impl Fn(&T, &T) -> Ordering + Sync + Send) {
    match pool() {
        Some(pool) => pool.install(|| items.par_sort_unstable_by(order)),
        None => items.sort_unstable_by(order),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that work comes to the same with threads and without.
    #[test]
    fn without_threads_the_same() {
        let items: Vec<u32> = (0..1000).collect();
        let alone = map_on(None, &items, |item| item * 2);
        assert_eq!(map(&items, |item| item * 2), alone);
        let mut sorted = alone.clone();
        sort_by_key(&mut sorted, |item| std::cmp::Reverse(*item));
        let reversed: Vec<u32> = alone.iter().rev().copied().collect();
        assert_eq!(sorted, reversed);
        sort_by(&mut sorted, |a, b| a.cmp(b));
        assert_eq!(sorted, alone);
    }
}
