//! Initial sequence numbers (RFC 6528) and timestamp offsets (RFC 7323 §5.4).

use super::{FourTuple, Time, keyed};

/// The initial sequence number of a connection: a clock plus a secret offset of the flow
/// (RFC 6528 §3). So no stranger can guess it, and a later connection of the same flow
/// begins above the earlier one.
///
/// The clock ticks every 64 ns, as Linux's does, not every 4 µs. A peer in TIME-WAIT
/// accepts a new connection of the same flow only if its number is beyond those the
/// earlier one sent. At 4 µs, a connection of more than 250 KB/s overtakes the clock. The
/// clock wraps in 275 s, which is longer than any TIME-WAIT.
///
/// `secret` is [`Secrets::sequence`](super::Secrets::sequence).
#[must_use]
pub fn initial(secret: &[u8; 16], flow: &FourTuple, now: Time) -> u32 {
    let clock = (now.as_nanos() >> 6) as u32;
    clock.wrapping_add(keyed::hash(secret, flow, None) as u32)
}

/// How far a flow's timestamps are ahead of the clock, in milliseconds. It is the same
/// for every connection of the flow, so a peer that remembers an earlier one (RFC 6191)
/// never sees them go back.
///
/// `secret` is [`Secrets::cookie`](super::Secrets::cookie), for connections of
/// either direction: the driver computes the same for its SYN cookies.
#[must_use]
pub fn timestamp_offset(secret: &[u8; 16], flow: &FourTuple) -> u32 {
    keyed::hash(secret, flow, None) as u32
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use proptest::prelude::*;

    fn flow(port: u16) -> FourTuple {
        FourTuple {
            local: "192.0.2.1:80".parse().unwrap(),
            remote: (std::net::Ipv4Addr::new(198, 51, 100, 7), port).into(),
        }
    }

    proptest! {
        #[test]
        fn numbers_of_a_flow_climb_with_the_clock(
            secret: [u8; 16], port: u16, start in 0u64..1 << 50, later in 64u64..200_000_000_000,
        ) {
            let at = |nanos| initial(&secret, &flow(port), Duration::from_nanos(nanos));
            let climbed = at(start + later).wrapping_sub(at(start));
            prop_assert!(u64::from(climbed).abs_diff(later / 64) <= 1);
        }

        /// A client connects, asks and leaves, again and again from one port: each
        /// initial number is above those of the last connection, at 10 MB/s.
        #[test]
        fn a_new_connection_begins_above_the_last(
            secret: [u8; 16], port: u16, start in 0u64..1 << 50, sent in 200u32..10_000_000,
        ) {
            let later = start + u64::from(sent) * 100;
            let first = initial(&secret, &flow(port), Duration::from_nanos(start));
            let second = initial(&secret, &flow(port), Duration::from_nanos(later));
            prop_assert!(second.wrapping_sub(first) > sent);
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
