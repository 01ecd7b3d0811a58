//! The work of an application, in the unit that RHIP's figure 10 uses.

use std::hint::black_box;

/// Multiplies two floating-point numbers `times` times, each product needing
/// the one before (about four cycles each on current processors), and returns
/// the last. The compiler can neither leave it out nor shorten it.
///
/// ```
/// assert_eq!(tidewall_service::multiply(3, 2.0), 8.0);
/// ```
pub fn multiply(times: u32, factor: f64) -> f64 {
    let factor = black_box(factor);
    let mut product = 1.0;
    for _ in 0..times {
        product *= factor;
    }
    black_box(product)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_multiplication_happens() {
        assert_eq!(multiply(0, 3.0), 1.0);
        assert_eq!(multiply(10, 2.0), 1024.0);
    }
}
