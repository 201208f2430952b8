//! How times of calls are counted: by their size, eight buckets for each doubling, so a value is known to an eighth.

/// Slots that the times of one probe take.
pub const BUCKETS: u32 = 512;
const PER_DOUBLING: u64 = 8;

/// The buckets that can have calls: there are no lower values, and higher ones do not fit into 64 bits.
pub const USED: std::ops::Range<u32> = PER_DOUBLING as u32..BUCKETS - 16;

/// The first value of a bucket, in nanoseconds; it ends before the next one's first. Of buckets that are not [`USED`] it is any number.
///
/// A value plus 8 is written as `top * 2^shift`, where `top` has four bits; its bucket is `8 * shift + top`.
pub fn first_ns(bucket: u32) -> u64 {
    let bucket = u64::from(bucket).max(PER_DOUBLING);
    let (shift, top) = ((bucket / PER_DOUBLING - 1).min(100), bucket % PER_DOUBLING + PER_DOUBLING);
    // The last bucket's end is the first value that does not fit.
    u64::try_from(u128::from(top) << shift).unwrap_or(u64::MAX) - PER_DOUBLING
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Checks that buckets follow each other without a gap, and that each is an eighth of its value at most.
    #[test]
    fn buckets_are_an_eighth() {
        assert_eq!(first_ns(8), 0);
        let bucket_of = |value: u64| {
            let sum = u128::from(value) + 8;
            let shift = sum.ilog2() - 3;
            8 * shift + (sum >> shift) as u32
        };
        for value in (0..5000).chain((4..64).map(|bit| (1 << bit) - 9)).chain((3..60).map(|bit| 1 << bit)) {
            let bucket = bucket_of(value);
            assert!(USED.contains(&bucket), "{value}");
            assert!(first_ns(bucket) <= value && value < first_ns(bucket + 1), "{value}");
            assert!(first_ns(bucket + 1) - first_ns(bucket) <= (value + 8).div_ceil(8), "{value}");
        }
    }

    /// Checks that any number of a bucket has an answer.
    #[test]
    fn any_bucket() {
        for bucket in [0, 1, 7, 495, 496, 511, 512, 10_000, u32::MAX] {
            first_ns(bucket);
        }
    }
}
