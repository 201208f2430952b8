//! Reproducible random numbers: the same seed gives the same answer on every machine.

/// Steele's, Lea's and Flood's SplitMix64.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// The next 64 bits.
    pub fn next_bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `end`; 0 for an `end` of 0.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next_bits()) * end as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the first numbers against those of the published algorithm for the seed
    /// 1234567.
    #[test]
    fn numbers_are_the_published_ones() {
        let mut random = SplitMix64::new(1_234_567);
        let found: Vec<u64> = (0..3).map(|_| random.next_bits()).collect();
        assert_eq!(found, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    /// Checks that numbers below an end are below it, and take every value.
    #[test]
    fn numbers_below_an_end() {
        let mut random = SplitMix64::new(7);
        let mut seen = [0; 6];
        (0..6000).for_each(|_| seen[random.below(6)] += 1);
        assert!(seen.iter().all(|count| (850..1150).contains(count)), "{seen:?}");
        assert_eq!(random.below(0), 0);
    }
}
