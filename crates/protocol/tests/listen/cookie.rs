//! SYN cookies: what they encode, how long they are valid, and that none can be forged.

use super::*;
use proptest::prelude::*;
use tidewall_protocol::tcp::{Cookies, cookie::LIFETIME, isn, timestamp};

fn cookies() -> Cookies {
    Cookies::new(&Config::default(), SECRETS.cookie)
}

fn flows() -> impl Strategy<Value = FourTuple> {
    (any::<bool>(), any::<u128>(), 1u16..).prop_map(|(six, address, port)| {
        let address: IpAddr = if six {
            // Not a mapped address: those are IPv4.
            std::net::Ipv6Addr::from(address | 1 << 125).into()
        } else {
            std::net::Ipv4Addr::from(address as u32).into()
        };
        flow(SocketAddr::new(address, port))
    })
}

proptest! {
    #[test]
    fn a_cookie_keeps_what_was_offered(
        flow in flows(),
        isn: u32,
        mss in prop::option::of(536u16..),
        scale in prop::option::of(0u8..20),
        sack: bool,
        clock in prop::option::of(any::<u32>()),
        at in 0u64..1 << 45,
        later in 0u64..64_000,
        ecn: bool,
    ) {
        let cookies = cookies();
        let now = Duration::from_millis(at);
        let options = Options {
            maximum_segment_size: mss,
            window_scale: scale,
            sack_permitted: sack,
            timestamps: clock.map(|value| Timestamps { value, echo: 0 }),
            ..Options::default()
        };
        let flags = if ecn {
            Flags::SYN | Flags::ECE | Flags::CWR
        } else {
            Flags::SYN
        };
        let syn = segment(flow, flags, isn, 0, options);
        let answer = cookies.answer(&syn, now).unwrap().header;
        prop_assert_eq!(answer.acknowledgment, isn.wrapping_add(1));
        prop_assert_eq!(answer.options.timestamps.is_some(), clock.is_some());
        prop_assert_eq!(answer.options.sack_permitted, sack && clock.is_some());
        prop_assert_eq!(answer.options.window_scale.is_some(), scale.is_some() && clock.is_some());
        let then = now + Duration::from_millis(later);
        let ack = ack_of(flow, &answer);
        let handshake = cookies.check(&ack, then).unwrap();
        prop_assert_eq!(handshake.flow, flow);
        prop_assert_eq!(handshake.local_isn, answer.sequence);
        prop_assert_eq!(handshake.remote_isn, isn);
        let named = mss.unwrap_or(if flow.remote.is_ipv4() { 536 } else { 1220 });
        prop_assert!(handshake.mss <= named && handshake.mss * 3 >= named.min(8940));
        prop_assert_eq!(handshake.sack, answer.options.sack_permitted);
        // Like everything except the maximum segment size, only with a timestamp.
        prop_assert_eq!(handshake.ecn, ecn && clock.is_some());
        prop_assert_eq!(answer.flags.contains(Flags::ECE), handshake.ecn);
        let kept = scale.filter(|_| clock.is_some()).map(|scale| scale.min(14));
        prop_assert_eq!(handshake.window_scale, kept);
        // Our timestamps never go back, whatever the answer carried.
        if let Some(sent) = answer.options.timestamps {
            let next = timestamp(then, handshake.timestamp_offset);
            prop_assert!((next.wrapping_sub(sent.value) as i32) >= 0);
            let offset = isn::timestamp_offset(&SECRETS.cookie, &flow);
            prop_assert_eq!(handshake.timestamp_offset, offset);
        }
    }

    #[test]
    fn a_cookie_is_good_for_one_to_two_periods(flow in flows(), isn: u32, at in 0u64..1 << 30) {
        let cookies = cookies();
        let now = Duration::from_secs(at);
        let answer = cookies.answer(&syn(flow, isn), now).unwrap().header;
        let ack = ack_of(flow, &answer);
        prop_assert!(cookies.check(&ack, now + Duration::from_secs(64)).is_some());
        prop_assert!(cookies.check(&ack, now + LIFETIME).is_none());
        // A cookie from the future is invalid as well.
        if at >= 128 {
            prop_assert!(cookies.check(&ack, now - LIFETIME).is_none());
        }
    }

    #[test]
    fn no_other_flow_sequence_or_key_makes_it_valid(
        flow in flows(), other in flows(), isn: u32, bit in 0u32..32,
    ) {
        let cookies = cookies();
        let answer = cookies.answer(&syn(flow, isn), START).unwrap().header;
        let ack = ack_of(flow, &answer);
        prop_assert!(cookies.check(&ack, START).is_some());
        let mut forged = ack;
        forged.header.acknowledgment ^= 1 << bit;
        prop_assert!(cookies.check(&forged, START).is_none());
        let mut forged = ack;
        forged.header.sequence ^= 1 << bit;
        prop_assert!(cookies.check(&forged, START).is_none());
        let mut forged = ack;
        forged.flow = other;
        prop_assert!(flow == other || cookies.check(&forged, START).is_none());
        let mut key = SECRETS.cookie;
        key[3] ^= 1;
        prop_assert!(Cookies::new(&Config::default(), key).check(&ack, START).is_none());
        for flags in [Flags::NONE, Flags::RST | Flags::ACK, Flags::SYN | Flags::ACK] {
            let mut forged = ack;
            forged.header.flags = flags;
            prop_assert!(cookies.check(&forged, START).is_none());
        }
    }
}

#[test]
fn guessing_does_not_pay() {
    let cookies = cookies();
    let flow = client(1, 1000);
    let mut number = 1u32;
    let hits = (0..1_000_000).filter(|_| {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let guess = segment(flow, Flags::ACK, 501, number, Options::default());
        cookies.check(&guess, START).is_some()
    });
    // One in 2^28 would hit.
    assert_eq!(hits.count(), 0);
}

#[test]
fn a_segment_size_too_small_to_keep_gets_no_cookie() {
    let tiny = Options {
        maximum_segment_size: Some(535),
        ..Options::default()
    };
    let syn = segment(client(1, 1), Flags::SYN, 1, 0, tiny);
    assert!(cookies().answer(&syn, START).is_none());
}

#[test]
fn cookies_count_only_while_some_are_out() {
    let mut listener = listener(16);
    let flow = client(1, 1000);
    let answer = cookies().answer(&syn(flow, 5), START).unwrap().header;
    let ack = ack_of(flow, &answer);
    // No cookie was sent: a lucky guess is of no use.
    let (reaction, sent) = give(&mut listener, &ack, START);
    assert!(matches!(reaction, Reaction::Dropped(_)), "{reaction:?}");
    assert_eq!(sent[0].1.flags, Flags::RST);
}
