//! Unbounded sequence numbers: one direction of one connection counts from its SYN in 64
//! bits, and only the wire has 32.

/// Position of a SYN. One cycle of the wire's numbers above zero, so that a number from
/// before the SYN also has a position.
pub(crate) const SYN: u64 = 1 << 32;

/// Position of the first byte.
pub(crate) const FIRST: u64 = SYN + 1;

/// The numbers of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbers {
    initial: u32,
}

impl Numbers {
    pub(crate) const fn new(initial: u32) -> Self {
        Self { initial }
    }

    /// The wire's number for a position.
    pub(crate) const fn wire(self, position: u64) -> u32 {
        self.initial.wrapping_add(position as u32)
    }

    /// The position nearest to `near` of the wire's number.
    pub(crate) const fn position(self, near: u64, number: u32) -> u64 {
        let distance = number.wrapping_sub(self.wire(near)) as i32;
        near.wrapping_add_signed(distance as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_again_on_either_side() {
        let numbers = Numbers::new(u32::MAX - 10);
        assert_eq!(numbers.wire(SYN), u32::MAX - 10);
        for near in [SYN, SYN + 5, SYN + (7 << 32) + 3] {
            for distance in [-1_000_000i64, -1, 0, 1, 20, 1_000_000] {
                let position = near.wrapping_add_signed(distance);
                assert_eq!(numbers.position(near, numbers.wire(position)), position);
            }
        }
    }
}
