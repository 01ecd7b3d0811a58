//! The network that a client is in, and what each network has of what all share.

use std::collections::HashMap;
use std::net::IpAddr;

/// A /24 of IPv4 or a /64 of IPv6: whoever has one address of it may have many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Prefix {
    V4([u8; 3]),
    V6([u16; 4]),
}

impl Prefix {
    pub(super) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => {
                let [a, b, c, _] = address.octets();
                Prefix::V4([a, b, c])
            }
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Prefix::V6([a, b, c, d])
            }
        }
    }
}

/// How much each prefix has; nothing is kept of those that have none.
#[derive(Debug, Default)]
pub(super) struct Shares {
    held: HashMap<Prefix, usize>,
}

impl Shares {
    /// Takes one more for a prefix, unless it has `most`.
    pub(super) fn take(&mut self, prefix: Prefix, most: usize) -> bool {
        let held = self.held.get(&prefix).copied().unwrap_or(0);
        let takes = held < most;
        if takes {
            self.held.insert(prefix, held + 1);
        }
        takes
    }

    /// Gives back what [`Shares::take`] has taken.
    pub(super) fn give(&mut self, prefix: Prefix) {
        if let Some(held) = self.held.get_mut(&prefix) {
            *held = held.saturating_sub(1);
            if *held == 0 {
                self.held.remove(&prefix);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        Prefix::of(text.parse().unwrap())
    }

    #[test]
    fn addresses_of_one_network_share() {
        assert_eq!(prefix("192.0.2.1"), prefix("192.0.2.255"));
        assert_eq!(prefix("192.0.2.1"), prefix("::ffff:192.0.2.7"));
        assert_ne!(prefix("192.0.2.1"), prefix("192.0.3.1"));
        assert_eq!(prefix("2001:db8::1"), prefix("2001:db8::ffff:0:0:1"));
        assert_ne!(prefix("2001:db8::1"), prefix("2001:db8:0:1::1"));
    }

    #[test]
    fn a_share_is_bounded_and_given_back() {
        let mut shares = Shares::default();
        let (one, other) = (prefix("192.0.2.1"), prefix("192.0.3.1"));
        assert!(shares.take(one, 2) && shares.take(one, 2) && !shares.take(one, 2));
        assert!(shares.take(other, 2));
        shares.give(one);
        assert!(shares.take(one, 2));
        for prefix in [one, one, other] {
            shares.give(prefix);
        }
        assert!(shares.held.is_empty());
    }
}
