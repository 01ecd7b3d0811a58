//! SYN floods, on the virtual clock.

use super::*;
use std::collections::HashMap;

/// A small generator of repeatable numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// A client that answers the segments it receives. Returns whether it connected.
fn connect(listener: &mut Listener, flow: FourTuple, now: Duration) -> bool {
    let (_, sent) = give(listener, &syn(flow, flow.remote.port().into()), now);
    let Some((_, answer)) = sent.first() else {
        return false;
    };
    let later = now + Duration::from_millis(20);
    let (reaction, _) = give(listener, &ack_of(flow, answer), later);
    matches!(reaction, Reaction::Established(_))
}

#[test]
fn a_million_syns_cost_no_more_than_the_queue_and_keep_nobody_out() {
    const SYNS: u32 = 1_000_000;
    let mut listener = listener(256);
    let mut random = Random(1);
    let (mut tried, mut entered, mut most) = (0, 0, 0);
    let mut last = START;
    for number in 0..SYNS {
        // 100,000 per second for ten seconds.
        let now = START + Duration::from_micros(10) * number;
        let source = random.next();
        let remote = SocketAddr::new(
            IpAddr::V4(((source >> 32) as u32).into()),
            (source as u16).max(1),
        );
        give(&mut listener, &syn(flow(remote), source as u32), now);
        most = most.max(listener.half_open_len());
        if number % 1000 == 999 {
            tried += 1;
            let port = 1000 + (number / 1000) as u16;
            entered += u32::from(connect(&mut listener, client(number % 7, port), now));
            run_timers(&mut listener, now);
        }
        last = now;
    }
    assert_eq!(most, 256);
    assert!(listener.sends_cookies() && listener.takes_cookies());
    assert_eq!((tried, entered), (1000, 1000));
    // When it ends, the listener works as before.
    run_timers(&mut listener, last + 300 * SECOND);
    assert_eq!(listener.half_open_len(), 0);
    assert!(!listener.sends_cookies() && !listener.takes_cookies());
    assert_eq!(listener.next_timeout(), None);
}

#[test]
fn one_prefix_gets_no_more_than_its_share() {
    for six in [false, true] {
        let mut listener = listener(256);
        let abuser = |number: u32| {
            let address: IpAddr = if six {
                let low = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8;
                let address = 0x2001_0db8_0066 << 80 | low & u128::from(u64::MAX);
                std::net::Ipv6Addr::from(address).into()
            } else {
                std::net::Ipv4Addr::from(0xcb00_7100 + number % 256).into()
            };
            flow(SocketAddr::new(address, 1024 + (number % 60_000) as u16))
        };
        for number in 0..100_000 {
            // A thousand per second.
            let now = START + Duration::from_millis(1) * number;
            give(&mut listener, &syn(abuser(number), number), now);
            run_timers(&mut listener, now);
            assert!(listener.half_open_len() <= 32, "its share is an eighth");
        }
        // All other clients get an ordinary handshake: no cookie, all options kept.
        let now = START + 100 * SECOND;
        let other = client(1, 1000);
        let (reaction, _) = give(&mut listener, &syn(other, 1), now);
        assert_eq!(reaction, Reaction::HalfOpen(other));
        // An honest neighbour of the attacker connects by cookie.
        assert!(connect(&mut listener, abuser(3), now));
        // So many SYNs are an attack that the driver must handle.
        assert!(listener.sends_cookies());
    }
}

#[test]
fn a_few_clients_of_one_prefix_are_no_attack() {
    let mut listener = listener(64);
    // Forty browsers behind one address.
    for port in 0..40 {
        give(&mut listener, &syn(client(1, 1000 + port), 1), START);
    }
    assert_eq!(listener.half_open_len(), 8);
    assert!(!listener.sends_cookies(), "the driver need not answer");
    assert!(listener.takes_cookies());
}

#[test]
fn half_open_connections_leave_sooner_when_there_are_many() {
    let mut listener = listener(64);
    let lives = |listener: &mut Listener, count: u32| {
        let now = START;
        for number in 0..count {
            give(listener, &syn(client(number << 8, 1000), 1), now);
        }
        let mut lives: HashMap<u64, usize> = HashMap::new();
        while let Some(next) = listener.next_timeout() {
            let (_, forgotten) = run_timers(listener, next);
            *lives.entry((next - now).as_secs()).or_default() += forgotten.len();
        }
        lives.retain(|_, count| *count > 0);
        lives
    };
    assert_eq!(lives(&mut listener, 10), HashMap::from([(63, 10)]));
    // 33 of 64 are dropped after seven seconds; the rest may stay.
    let crowded = lives(&mut listener, 64);
    assert_eq!(crowded, HashMap::from([(7, 32), (63, 32)]));
}
