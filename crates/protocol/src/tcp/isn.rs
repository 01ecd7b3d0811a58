//! Initial sequence numbers (RFC 6528) and timestamp offsets (RFC 7323 §5.4).

use super::{Flow, Time, keyed};

/// The initial sequence number of a connection: a clock of 4 µs plus a secret
/// offset of the flow (RFC 6528 §3), so that no stranger can guess it and a later
/// connection of the same flow begins above the earlier one.
///
/// `secret` is [`Secrets::sequence`](super::Secrets::sequence).
#[must_use]
pub fn initial(secret: &[u8; 16], flow: &Flow, now: Time) -> u32 {
    let clock = (now.as_micros() / 4) as u32;
    clock.wrapping_add(keyed::hash(secret, flow, None) as u32)
}

/// What a flow's timestamps are ahead of the clock, in milliseconds: the same for
/// every connection of the flow, so that a peer that remembers an earlier one
/// (RFC 6191) never sees them go back.
///
/// `secret` is [`Secrets::cookie`](super::Secrets::cookie), for connections of
/// either direction: the driver computes the same for its SYN cookies.
#[must_use]
pub fn timestamp_offset(secret: &[u8; 16], flow: &Flow) -> u32 {
    keyed::hash(secret, flow, None) as u32
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use proptest::prelude::*;

    fn flow(port: u16) -> Flow {
        Flow {
            local: "192.0.2.1:80".parse().unwrap(),
            remote: (std::net::Ipv4Addr::new(198, 51, 100, 7), port).into(),
        }
    }

    proptest! {
        #[test]
        fn numbers_of_a_flow_climb_with_the_clock(
            secret: [u8; 16], port: u16, start in 0u64..1 << 40, later in 4u64..1 << 32,
        ) {
            let at = |micros| initial(&secret, &flow(port), Duration::from_micros(micros));
            let climbed = at(start + later).wrapping_sub(at(start));
            prop_assert!(u64::from(climbed).abs_diff(later / 4) <= 1);
        }

        #[test]
        fn flows_and_secrets_tell_nothing_of_each_other(secret: [u8; 16], port: u16) {
            let now = Duration::from_secs(1);
            let other = flow(port.wrapping_add(1));
            let mut changed = secret;
            changed[0] ^= 1;
            let number = initial(&secret, &flow(port), now);
            prop_assert_ne!(number, initial(&secret, &other, now));
            prop_assert_ne!(number, initial(&changed, &flow(port), now));
            prop_assert_eq!(
                timestamp_offset(&secret, &flow(port)),
                timestamp_offset(&secret, &flow(port))
            );
        }
    }
}
