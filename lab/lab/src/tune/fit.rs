//! A straight line through measured costs.

/// Returns intercept and slope, neither below zero, of y = a + b·x with the least squares
/// of *relative* errors: the cost of a round of two frames must count as much as that of
/// five hundred. `None` for fewer than two different x, or a y that is not above zero.
pub(super) fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    if points.len() < 2
        || points
            .iter()
            .any(|(x, y)| !x.is_finite() || !y.is_finite() || *y <= 0.0)
    {
        return None;
    }
    let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
        points.iter().map(|&(x, y)| of(x, y) / (y * y)).sum()
    };
    let weight = sum(&|_, _| 1.0);
    let (x, y) = (sum(&|x, _| x) / weight, sum(&|_, y| y) / weight);
    let spread = sum(&|a, _| (a - x) * (a - x));
    if spread / weight <= 1e-6 * x * x {
        return None;
    }
    let slope = sum(&|a, b| (a - x) * (b - y)) / spread;
    let intercept = y - slope * x;
    if slope < 0.0 {
        // The cost of a frame is negligible beside that of a round.
        return Some((y, 0.0));
    }
    if intercept < 0.0 {
        return Some((0.0, sum(&|x, y| x * y) / sum(&|x, _| x * x)));
    }
    Some((intercept, slope))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: Option<(f64, f64)>, expected: (f64, f64)) {
        let found = found.unwrap();
        assert!(
            (found.0 - expected.0).abs() < 1e-6 && (found.1 - expected.1).abs() < 1e-6,
            "{found:?}"
        );
    }

    #[test]
    fn a_line_is_found_again() {
        let on = |x: f64| (x, 1_500.0 + 420.0 * x);
        near(
            line(&[on(2.0), on(8.0), on(64.0), on(512.0)]),
            (1_500.0, 420.0),
        );
    }

    #[test]
    fn an_error_of_a_large_round_does_not_hide_the_small_ones() {
        let on = |x: f64| (x, 1_500.0 + 420.0 * x);
        let (x, y) = on(512.0);
        let (intercept, slope) =
            line(&[on(2.0), on(8.0), on(32.0), on(128.0), (x, y * 1.1)]).unwrap();
        assert!((1_300.0..1_600.0).contains(&intercept), "{intercept}");
        assert!((410.0..460.0).contains(&slope), "{slope}");
    }

    #[test]
    fn no_cost_is_below_zero() {
        let (intercept, slope) = line(&[(1.0, 100.0), (2.0, 250.0), (4.0, 550.0)]).unwrap();
        assert_eq!(intercept, 0.0);
        assert!((100.0..150.0).contains(&slope), "{slope}");
        assert_eq!(line(&[(1.0, 300.0), (2.0, 200.0)]).unwrap().1, 0.0);
    }

    #[test]
    fn what_is_no_line_is_refused() {
        for points in [
            &[][..],
            &[(1.0, 1.0)],
            &[(3.0, 1.0), (3.0, 2.0)],
            &[(1.0, 0.0), (2.0, 1.0)],
            &[(f64::NAN, 1.0), (2.0, 1.0)],
        ] {
            assert_eq!(line(points), None, "{points:?}");
        }
    }
}
