//! Numbers that look random and are the same on every machine.

/// A seeded generator: SplitMix64 (Steele, Lea and Flood 2014). The stored tables depend
/// on its numbers, which no library guarantees to keep.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Creates an independent generator for each seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`; zero if that is zero.
    pub const fn below(&mut self, limit: u64) -> u64 {
        // The high half of a 128-bit product (Lemire 2019, without its rejection: the
        // bias is below 2⁻³² for the values drawn here).
        ((self.bits() as u128 * limit as u128) >> 64) as u64
    }

    /// True with a probability from 0 to 1; values outside are clamped.
    pub fn chance(&mut self, probability: f64) -> bool {
        // 53 bits, as many as the float has: exact, and the same everywhere.
        const ONE: u64 = 1 << 53;
        let threshold = (probability.clamp(0.0, 1.0) * ONE as f64) as u64;
        self.bits() >> 11 < threshold
    }

    /// Another generator for a separate use: draws from one do not change those of the
    /// other.
    #[must_use]
    pub const fn fork(&mut self) -> Self {
        Self::new(self.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        // As published with the algorithm, for the seed 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.bits(), 6_457_827_717_110_365_317);
        assert_eq!(random.bits(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn chances_are_as_said() {
        let mut random = Random::new(1);
        let hits = (0..100_000).filter(|_| random.chance(0.01)).count();
        assert!((900..1100).contains(&hits), "{hits}");
        assert!(!(0..1000).any(|_| random.chance(0.0)));
        assert!((0..1000).all(|_| random.chance(1.0)));
        assert!(!random.chance(f64::NAN));
    }

    #[test]
    fn below_covers_its_range() {
        let mut random = Random::new(2);
        let mut seen = [false; 7];
        for _ in 0..1000 {
            seen[random.below(7) as usize] = true;
        }
        assert_eq!(seen, [true; 7]);
        assert_eq!(random.below(0), 0);
    }
}
