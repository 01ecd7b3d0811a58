//! CRCs of long runs of bytes by carry-less multiplication, if the CPU has it. Bytes far
//! from the end of a message are replaced by a shorter string with the same remainder
//! (Gopal et al., *Fast CRC Computation for Generic Polynomials Using PCLMULQDQ*, Intel
//! 2009).

/// Below this number of bytes the tables are as fast.
#[cfg(target_arch = "x86_64")]
const LEAST: usize = 128;

/// Returns sixteen bytes with the same remainder as the CRC so far and `bytes` without
/// their rest, and that rest. `None` if the tables must do all of it.
pub(super) fn fold(crc: u32, bytes: &[u8]) -> Option<([u8; 16], &[u8])> {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= LEAST
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("ssse3")
    {
        // SAFETY: the CPU has the features that the function needs beyond those of every
        // x86-64.
        return unsafe { x86::fold(crc, bytes) };
    }
    let _ = (crc, bytes);
    None
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, _mm_clmulepi64_si128, _mm_cvtsi128_si64, _mm_set_epi64x, _mm_shuffle_epi8,
        _mm_unpackhi_epi64, _mm_xor_si128,
    };

    use super::super::POLYNOMIAL;

    /// The remainder of a power of x.
    const fn power(exponent: u32) -> i64 {
        let (mut remainder, mut done) = (1_u32, 0);
        while done < exponent {
            let over = remainder >> 31 != 0;
            remainder = remainder << 1 ^ if over { POLYNOMIAL } else { 0 };
            done += 1;
        }
        remainder as i64
    }

    /// Factors for the upper and the lower 64 bits that move 128 bits on by `bits`.
    const fn factors(bits: u32) -> (i64, i64) {
        (power(bits + 64), power(bits))
    }

    const OVER_ONE: (i64, i64) = factors(128);
    const OVER_FOUR: (i64, i64) = factors(512);

    /// The first byte of a message is its highest.
    #[target_feature(enable = "pclmulqdq,ssse3")]
    fn load(bytes: &[u8; 16]) -> __m128i {
        let bits = u128::from_le_bytes(*bytes);
        let reversed = _mm_set_epi64x(0x0001_0203_0405_0607, 0x0809_0a0b_0c0d_0e0f);
        _mm_shuffle_epi8(_mm_set_epi64x((bits >> 64) as i64, bits as i64), reversed)
    }

    /// Combines both into one value with the same remainder as one after the other.
    #[target_feature(enable = "pclmulqdq,ssse3")]
    fn over(front: __m128i, (upper, lower): (i64, i64), back: __m128i) -> __m128i {
        let factors = _mm_set_epi64x(upper, lower);
        let upper = _mm_clmulepi64_si128::<0x11>(front, factors);
        let lower = _mm_clmulepi64_si128::<0x00>(front, factors);
        _mm_xor_si128(_mm_xor_si128(upper, lower), back)
    }

    #[target_feature(enable = "pclmulqdq,ssse3")]
    pub(super) fn fold(crc: u32, bytes: &[u8]) -> Option<([u8; 16], &[u8])> {
        let (blocks, rest) = bytes.as_chunks::<16>();
        let (fours, singles) = blocks.as_chunks::<4>();
        let (first, fours) = fours.split_first()?;
        // Four lanes at once, since one lane would wait for each of its products.
        let mut lanes = first.each_ref().map(|block| load(block));
        let begun = _mm_set_epi64x((u64::from(crc) << 32) as i64, 0);
        lanes[0] = _mm_xor_si128(lanes[0], begun);
        for four in fours {
            for (lane, block) in lanes.iter_mut().zip(four) {
                *lane = over(*lane, OVER_FOUR, load(block));
            }
        }
        let [mut folded, second, third, fourth] = lanes;
        for next in [second, third, fourth] {
            folded = over(folded, OVER_ONE, next);
        }
        for block in singles {
            folded = over(folded, OVER_ONE, load(block));
        }
        let upper = _mm_cvtsi128_si64(_mm_unpackhi_epi64(folded, folded)) as u64;
        let lower = _mm_cvtsi128_si64(folded) as u64;
        let bits = u128::from(upper) << 64 | u128::from(lower);
        Some((bits.to_be_bytes(), rest))
    }
}
