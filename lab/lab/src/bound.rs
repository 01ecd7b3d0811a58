//! The bound of a claim, as text such as `>=0.95`.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How a measured value is compared with the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    AtLeast,
    Above,
    AtMost,
}

impl Comparison {
    const ALL: [(Comparison, &str); 3] = [
        // The longer texts first: `>` is a prefix of `>=`.
        (Comparison::AtLeast, ">="),
        (Comparison::AtMost, "<="),
        (Comparison::Above, ">"),
    ];
}

/// A limit and its good side.
///
/// ```
/// use tidewall_lab::Bound;
/// let bound: Bound = ">=0.95".parse().unwrap();
/// assert!(bound.holds(0.95) && !bound.holds(0.94) && !bound.holds(f64::NAN));
/// assert_eq!(bound.to_string(), ">=0.95");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    comparison: Comparison,
    limit: f64,
}

/// The text was not `>=`, `>` or `<=` and a finite number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidBound;

impl fmt::Display for InvalidBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a bound is >=, > or <= and a number")
    }
}

impl std::error::Error for InvalidBound {}

impl Bound {
    /// Holds at `limit` and above.
    pub const fn at_least(limit: f64) -> Self {
        Bound {
            comparison: Comparison::AtLeast,
            limit,
        }
    }

    /// Holds above `limit`.
    pub const fn above(limit: f64) -> Self {
        Bound {
            comparison: Comparison::Above,
            limit,
        }
    }

    /// Holds at `limit` and below.
    pub const fn at_most(limit: f64) -> Self {
        Bound {
            comparison: Comparison::AtMost,
            limit,
        }
    }

    /// Compares two figures: `Less` if `a` is the worse.
    pub(crate) fn compare(&self, a: f64, b: f64) -> Ordering {
        match self.comparison {
            Comparison::AtLeast | Comparison::Above => a.total_cmp(&b),
            Comparison::AtMost => b.total_cmp(&a),
        }
    }

    /// Returns true if everything from `low` to `high` is on the good side, false if
    /// nothing is; `None` if the limit lies between.
    pub fn decides(&self, low: f64, high: f64) -> Option<bool> {
        let holds = self.holds(low);
        (holds == self.holds(high)).then_some(holds)
    }

    /// Returns true if `measured` is on the good side; false for NaN.
    pub fn holds(&self, measured: f64) -> bool {
        match self.comparison {
            Comparison::AtLeast => measured >= self.limit,
            Comparison::Above => measured > self.limit,
            Comparison::AtMost => measured <= self.limit,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = Comparison::ALL
            .iter()
            .find(|(comparison, _)| *comparison == self.comparison)
            .map_or("", |(_, text)| text);
        write!(f, "{text}{}", self.limit)
    }
}

impl FromStr for Bound {
    type Err = InvalidBound;

    fn from_str(text: &str) -> Result<Self, InvalidBound> {
        let text = text.trim();
        let (comparison, rest) = Comparison::ALL
            .iter()
            .find_map(|(comparison, prefix)| Some((*comparison, text.strip_prefix(prefix)?)))
            .ok_or(InvalidBound)?;
        let limit: f64 = rest.trim().parse().map_err(|_| InvalidBound)?;
        if !limit.is_finite() {
            return Err(InvalidBound);
        }
        Ok(Bound { comparison, limit })
    }
}

impl Serialize for Bound {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bound {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_read_written_and_kept() {
        let cases = [
            (">=0.95", 0.95, true),
            (">=0.95", 0.9499, false),
            (">1", 1.0, false),
            (">1", 1.01, true),
            ("<=0.2", 0.2, true),
            ("<=0.2", 0.21, false),
        ];
        for (text, measured, holds) in cases {
            let bound: Bound = text.parse().unwrap();
            assert_eq!(bound.to_string(), text);
            assert_eq!(bound.holds(measured), holds, "{measured} {text}");
            let json = serde_json::to_string(&bound).unwrap();
            assert_eq!(serde_json::from_str::<Bound>(&json).unwrap(), bound);
        }
    }

    #[test]
    fn what_is_no_bound_is_refused() {
        for text in ["", "<3", "0.95", "=1", ">=", ">=x", ">=inf", ">=NaN", "=>1"] {
            assert_eq!(text.parse::<Bound>(), Err(InvalidBound), "{text}");
        }
        assert!(!Bound::at_least(0.0).holds(f64::NAN));
        assert!(!Bound::at_most(0.0).holds(f64::NAN));
    }

    #[test]
    fn an_interval_decides_when_it_is_clear_of_the_limit() {
        let bound = Bound::at_least(0.8);
        assert_eq!(bound.decides(0.8, 0.9), Some(true));
        assert_eq!(bound.decides(0.7, 0.79), Some(false));
        assert_eq!(bound.decides(0.7, 0.9), None);
        assert_eq!(Bound::at_most(1.5).decides(1.2, 1.5), Some(true));
        assert_eq!(Bound::at_most(1.5).decides(1.2, 1.6), None);
    }
}
