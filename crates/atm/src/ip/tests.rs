use proptest::prelude::*;
use tidewall_wire::atm::Nsap;

use super::*;

const A: Circuit = Circuit { vpi: 0, vci: 100 };
const B: Circuit = Circuit { vpi: 0, vci: 101 };

fn host(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, last)
}

fn second(seconds: u64) -> Time {
    Duration::from_secs(seconds)
}

fn interface(last: u8, server: bool) -> Subnetwork {
    Subnetwork::new(Config {
        address: host(last),
        prefix_len: 24,
        number: Number::Nsap(Nsap([last; 20])),
        server,
        asks: None,
        idle: IDLE_DEFAULT,
    })
}

/// Passes each end's payloads to the other until there are none; both name the circuit
/// the same.
fn exchange(now: Time, left: &mut Subnetwork, right: &mut Subnetwork) {
    loop {
        let sent = [left.poll_transmit(), right.poll_transmit()];
        let [from_left, from_right] = sent;
        if from_left.is_none() && from_right.is_none() {
            return;
        }
        if let Some((circuit, bytes)) = from_left {
            assert_eq!(right.received(now, circuit, &bytes), None);
        }
        if let Some((circuit, bytes)) = from_right {
            assert_eq!(left.received(now, circuit, &bytes), None);
        }
    }
}

fn packet(operation: Operation, source: Party, target: Party) -> Vec<u8> {
    let mut bytes = vec![0; 200];
    let packet = Packet {
        operation,
        source,
        target,
    };
    let rest = llc::emit_routed(EtherType::ARP, &mut bytes).unwrap();
    let length = packet.emit(rest).unwrap();
    bytes.truncate(HEADER_LEN + length);
    bytes
}

fn party(last: u8) -> Party {
    Party {
        number: Number::Nsap(Nsap([last; 20])),
        address: Some(host(last)),
    }
}

#[test]
fn neighbours_find_one_another_and_are_forgotten_when_silent() {
    let (mut left, mut right) = (interface(1, false), interface(2, false));
    left.add(second(0), A, None).unwrap();
    // Its first request is lost.
    assert!(left.poll_transmit().is_some());
    assert_eq!(left.way(second(0), host(2)), Way::None);
    assert_eq!(left.poll_timeout(), Some(second(3)));
    right.add(second(1), A, None).unwrap();
    exchange(second(1), &mut left, &mut right);
    assert_eq!(left.way(second(0), host(2)), Way::By(A));
    assert_eq!(right.way(second(0), host(1)), Way::By(A));
    assert_eq!(left.poll_timeout(), Some(second(1 + 15 * 60)));
    // The other end is gone: asked every three seconds, and forgotten after five minutes
    // more.
    let mut requests = 0;
    while let Some(due) = left
        .poll_timeout()
        .filter(|due| *due <= second(1 + 20 * 60))
    {
        left.handle_timeout(due);
        requests += std::iter::from_fn(|| left.poll_transmit()).count();
    }
    assert_eq!(requests, 101);
    assert_eq!(left.way(second(0), host(2)), Way::None);
    assert_eq!(left.neighbours().next().unwrap().address, None);
    // It returns with another address.
    let mut right = interface(3, false);
    right.add(second(2000), A, None).unwrap();
    exchange(second(2000), &mut left, &mut right);
    assert_eq!(left.way(second(0), host(3)), Way::By(A));
}

#[test]
fn what_is_said_of_a_circuit_stays() {
    let mut left = interface(1, false);
    left.add(second(0), A, Some(host(2))).unwrap();
    assert_eq!(left.poll_timeout(), None);
    assert_eq!(left.add(second(0), A, None), Err(AddError::Circuit));
    assert_eq!(
        left.add(second(0), B, Some(host(2))),
        Err(AddError::Address(host(2)))
    );
    assert_eq!(
        left.add(second(0), B, Some(host(1))),
        Err(AddError::Address(host(1)))
    );
    left.add(second(0), B, None).unwrap();
    left.poll_transmit().unwrap();
    left.add_route(Ipv4Addr::new(10, 20, 0, 0), 16, host(2))
        .unwrap();
    // A false report is neither trusted nor answered.
    let nobody = Party::default();
    let at = |address| Party {
        address: Some(address),
        ..nobody
    };
    for (circuit, source) in [
        (A, party(3)),
        (B, party(2)),
        (B, party(1)),
        (B, nobody),
        (B, at(Ipv4Addr::BROADCAST)),
        (B, party(0)),
        (B, party(255)),
        (B, at(Ipv4Addr::new(10, 9, 1, 3))),
        (B, at(Ipv4Addr::new(10, 20, 0, 5))),
    ] {
        let bytes = packet(Operation::InverseRequest, source, nobody);
        left.received(second(1), circuit, &bytes);
    }
    assert_eq!(left.counters().conflicts, 9);
    assert_eq!(left.poll_transmit(), None);
    assert_eq!(left.way(second(0), Ipv4Addr::new(10, 20, 0, 5)), Way::By(A));
    assert_eq!(left.way(second(0), host(2)), Way::By(A));
    // A circuit that does not exist.
    let bytes = packet(Operation::InverseReply, party(4), nobody);
    left.received(second(1), Circuit { vpi: 3, vci: 3 }, &bytes);
    assert_eq!(left.way(second(0), host(4)), Way::None);
}

#[test]
fn a_neighbour_is_a_host_of_the_subnetwork() {
    let own = Ipv4Addr::new(10, 9, 0, 6);
    for (prefix_len, inside, outside) in [
        (
            0,
            vec![[8, 8, 8, 8]],
            vec![[0; 4], [255; 4], [127, 0, 0, 1], [224, 0, 0, 1]],
        ),
        (
            24,
            vec![[10, 9, 0, 1], [10, 9, 0, 254]],
            vec![[10, 9, 0, 0], [10, 9, 0, 255], [10, 9, 1, 1]],
        ),
        (
            30,
            vec![[10, 9, 0, 5]],
            vec![[10, 9, 0, 4], [10, 9, 0, 7], [10, 9, 0, 8]],
        ),
        (31, vec![[10, 9, 0, 7]], vec![[10, 9, 0, 5], [10, 9, 0, 8]]),
        (32, vec![], vec![[10, 9, 0, 7]]),
    ] {
        let config = Config {
            address: own,
            prefix_len,
            number: Number::None,
            server: false,
            asks: None,
            idle: IDLE_DEFAULT,
        };
        for (addresses, is) in [(inside, true), (outside, false)] {
            for address in addresses.into_iter().map(Ipv4Addr::from) {
                assert_eq!(config.is_neighbour(address), is, "{address}/{prefix_len}");
            }
        }
    }
}

#[test]
fn the_longest_route_leads() {
    let mut left = interface(1, false);
    left.add(second(0), A, Some(host(2))).unwrap();
    left.add(second(0), B, Some(host(3))).unwrap();
    let of = |text: &str| text.parse::<Ipv4Addr>().unwrap();
    left.add_route(of("0.0.0.0"), 0, host(2)).unwrap();
    left.add_route(of("10.20.0.0"), 16, host(3)).unwrap();
    left.add_route(of("10.20.30.0"), 24, host(9)).unwrap();
    assert_eq!(left.way(second(0), of("8.8.8.8")), Way::By(A));
    assert_eq!(left.way(second(0), of("10.20.1.1")), Way::By(B));
    assert_eq!(left.way(second(0), host(3)), Way::By(B));
    assert_eq!(
        left.way(second(0), of("10.20.30.1")),
        Way::None,
        "nobody is there"
    );
    assert_eq!(left.counters().no_circuit, 1);
    for (prefix, length) in [("10.0.0.1", 8), ("10.0.0.0", 33)] {
        let wrong = left.add_route(of(prefix), length, host(2));
        assert_eq!(wrong, Err(AddError::Prefix(of(prefix), length)));
    }
}

#[test]
fn a_server_answers_for_others() {
    let mut server = interface(1, true);
    for circuit in [A, B] {
        server.add(second(0), circuit, None).unwrap();
        server.poll_transmit().unwrap();
    }
    let nobody = Party::default();
    server.received(
        second(0),
        A,
        &packet(Operation::InverseReply, party(2), nobody),
    );
    server.received(
        second(0),
        B,
        &packet(Operation::InverseReply, party(3), nobody),
    );
    let asked = |server: &mut Subnetwork, last| {
        let target = Party {
            address: Some(host(last)),
            ..nobody
        };
        let bytes = packet(Operation::Request, party(3), target);
        server.received(second(1), B, &bytes);
        let (circuit, bytes) = server.poll_transmit()?;
        assert_eq!(circuit, B);
        Some(Packet::parse(&bytes[HEADER_LEN..]).unwrap())
    };
    let reply = asked(&mut server, 2).unwrap();
    assert_eq!(reply.operation, Operation::Reply);
    assert_eq!((reply.source, reply.target), (party(2), party(3)));
    let unknown = asked(&mut server, 9).unwrap();
    assert_eq!(unknown.operation, Operation::Unknown);
    assert_eq!(unknown.source, party(3));
    assert_eq!(unknown.target.address, Some(host(9)));
    assert_eq!(asked(&mut server, 1).unwrap().source, party(1));
    assert_eq!(asked(&mut server, 3).unwrap().source, party(3));
    // A report about another host's address, or about an unused one, is not kept.
    for address in [host(2), host(8)] {
        let lie = Party {
            address: Some(address),
            ..party(66)
        };
        server.received(second(1), B, &packet(Operation::Request, lie, party(1)));
        assert!(server.poll_transmit().is_some());
        assert_eq!(server.number(host(3)), Some(party(3).number));
    }
    assert_eq!(asked(&mut server, 2).unwrap().source, party(2));
    let unknown = asked(&mut server, 8).unwrap();
    assert_eq!(unknown.operation, Operation::Unknown);
    // A report about itself is.
    let moved = Party {
        address: Some(host(3)),
        ..party(66)
    };
    server.received(second(1), B, &packet(Operation::Request, moved, party(1)));
    assert!(server.poll_transmit().is_some());
    assert_eq!(server.number(host(3)), Some(moved.number));
    // A replaced or silent neighbour is forgotten, with its address.
    let reply = |last| packet(Operation::InverseReply, party(last), nobody);
    server.received(second(2), A, &reply(4));
    let unknown = asked(&mut server, 2).unwrap();
    assert_eq!(unknown.operation, Operation::Unknown);
    assert_eq!(asked(&mut server, 4).unwrap().source, party(4));
    server.handle_timeout(second(2 + 20 * 60));
    while server.poll_transmit().is_some() {}
    let unknown = asked(&mut server, 4).unwrap();
    assert_eq!(unknown.operation, Operation::Unknown);
    let mut other = interface(1, false);
    other.add(second(0), B, Some(host(3))).unwrap();
    assert_eq!(asked(&mut other, 2), None);
    assert_eq!(asked(&mut other, 1).unwrap().source, party(1));
}

#[test]
fn packets_are_ipv4_behind_llc_and_answers_have_a_limit() {
    let mut left = interface(1, false);
    left.add(second(0), A, Some(host(2))).unwrap();
    let mut bytes = vec![0; HEADER_LEN + 40];
    llc::emit_routed(EtherType::IPV4, &mut bytes).unwrap();
    bytes[HEADER_LEN] = 0x45;
    bytes[HEADER_LEN + 3] = 20;
    let whole = bytes[HEADER_LEN..HEADER_LEN + 20].to_vec();
    assert_eq!(left.received(second(0), A, &bytes), Some(&whole[..]));
    // Not IPv4 behind IPv4's header: IPv6, half a packet, nothing.
    let mut other = bytes.clone();
    other[HEADER_LEN] = 0x60;
    assert_eq!(left.received(second(0), A, &other), None);
    for length in [HEADER_LEN, HEADER_LEN + 19] {
        assert_eq!(left.received(second(0), A, &bytes[..length]), None);
    }
    llc::emit_routed(EtherType::IPV6, &mut bytes).unwrap();
    assert_eq!(left.received(second(0), A, &bytes), None);
    assert_eq!(left.received(second(0), A, &bytes[..3]), None);
    assert_eq!(left.counters().received, 1);
    assert_eq!(left.counters().malformed, 5);
    let request = packet(Operation::InverseRequest, party(2), Party::default());
    for _ in 0..WAITING_MAX + 5 {
        left.received(second(0), A, &request);
    }
    assert_eq!(left.counters().unanswered, 5);
    assert_eq!(
        std::iter::from_fn(|| left.poll_transmit()).count(),
        WAITING_MAX
    );
}

proptest! {
    /// For any input, each neighbour has one circuit, and each circuit one neighbour.
    #[test]
    fn whatever_comes_circuits_and_neighbours_belong_together(
        steps in prop::collection::vec((0u16..4, prop_oneof![Just(1u16), Just(2), Just(8), Just(9)], 0u8..6, 0u64..900, any::<u8>()), 0..200),
    ) {
        let mut left = interface(1, true);
        for vci in 0..3 {
            let circuit = Circuit { vpi: 0, vci };
            left.add(second(0), circuit, (vci == 0).then(|| host(5))).unwrap();
        }
        let mut now = second(0);
        for (vci, operation, last, seconds, damage) in steps {
            now += second(seconds);
            left.handle_timeout(now);
            let mut bytes = packet(Operation::InverseReply, party(last), party(1));
            bytes[HEADER_LEN + 7] = operation as u8;
            let place = usize::from(damage) % (bytes.len() * 2);
            if let Some(byte) = bytes.get_mut(place) {
                *byte ^= damage;
            }
            left.received(now, Circuit { vpi: 0, vci }, &bytes);
            while left.poll_transmit().is_some() {}
            let known: Vec<_> = left.neighbours().filter_map(|it| Some((it.address?, it.circuit))).collect();
            for (address, circuit) in &known {
                prop_assert_eq!(left.way(second(0), *address), Way::By(*circuit));
            }
            prop_assert_eq!(known.len(), left.neighbours.len());
        }
    }
}
