//! Prefixes of ATM addresses, by which calls are routed.

use std::fmt;
use std::str::FromStr;

use tidewall_wire::atm::{NSAP_LEN, Nsap};

/// The first digits of numbers, 0 to 40 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumberPrefix {
    /// The digits, followed by zeros.
    number: Nsap,
    digits: u8,
}

/// The text was not up to forty hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not the beginning of an ATM address: up to forty hexadecimal digits, with dots wherever they help"
)]
pub struct InvalidPrefix;

impl NumberPrefix {
    /// The number of digits.
    #[must_use]
    pub const fn digits(&self) -> usize {
        self.digits as usize
    }

    /// True if a number has this prefix.
    #[must_use]
    pub fn has(&self, number: &Nsap) -> bool {
        let whole = self.digits() / 2;
        let half = self.digits() % 2 == 1;
        let upper = |number: &Nsap| number.0.get(whole).map(|byte| byte >> 4);
        self.number.0.get(..whole) == number.0.get(..whole)
            && (!half || upper(&self.number) == upper(number))
    }
}

impl From<Nsap> for NumberPrefix {
    fn from(number: Nsap) -> Self {
        Self {
            number,
            digits: 2 * NSAP_LEN as u8,
        }
    }
}

impl FromStr for NumberPrefix {
    type Err = InvalidPrefix;

    fn from_str(text: &str) -> Result<Self, InvalidPrefix> {
        let mut number = [0; NSAP_LEN];
        let mut digits = 0;
        for digit in text.chars().filter(|character| *character != '.') {
            let value = digit.to_digit(16).ok_or(InvalidPrefix)? as u8;
            let byte: &mut u8 = number
                .get_mut(usize::from(digits / 2))
                .ok_or(InvalidPrefix)?;
            *byte |= if digits % 2 == 0 { value << 4 } else { value };
            digits += 1;
        }
        Ok(Self {
            number: Nsap(number),
            digits,
        })
    }
}

impl fmt::Display for NumberPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.number.to_string();
        f.write_str(all.get(..self.digits()).unwrap_or_default())
    }
}

impl fmt::Debug for NumberPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_numbers_that_begin_so() {
        let number: Nsap = format!("4700{}", "1".repeat(36)).parse().unwrap();
        for (text, has) in [
            ("", true),
            ("4", true),
            ("47.00", true),
            ("47001", true),
            ("47002", false),
            ("48", false),
            (&number.to_string(), true),
        ] {
            let prefix: NumberPrefix = text.parse().unwrap();
            assert_eq!(prefix.has(&number), has, "{text}");
            assert_eq!(prefix.to_string(), text.replace('.', ""));
        }
        assert_eq!(NumberPrefix::from(number).digits(), 40);
        for wrong in ["4g", &"0".repeat(41)] {
            assert_eq!(wrong.parse::<NumberPrefix>(), Err(InvalidPrefix));
        }
    }
}
