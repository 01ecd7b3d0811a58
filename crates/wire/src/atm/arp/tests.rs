use proptest::prelude::*;

use super::*;

const OURS: Party = Party {
    number: Number::Nsap(Nsap([0x47; 20])),
    address: Some(Ipv4Addr::new(192, 0, 2, 1)),
};

#[test]
fn a_request_as_rfc_2225_draws_it() {
    let request = Packet {
        operation: Operation::Request,
        source: OURS,
        target: Party {
            number: Number::None,
            address: Some(Ipv4Addr::new(192, 0, 2, 2)),
        },
    };
    let mut buffer = [0; MAX_LEN];
    let length = request.emit(&mut buffer).unwrap();
    assert_eq!(length, 12 + 20 + 4 + 4);
    let fixed = [0, 0x13, 8, 0, 20, 0, 0, 1, 4, 0, 0, 4];
    assert_eq!(buffer[..12], fixed);
    assert_eq!(buffer[32..length], [192, 0, 2, 1, 192, 0, 2, 2]);
    assert_eq!(Packet::parse(&buffer[..length]), Ok(request));
    for short in 0..length {
        assert_eq!(Packet::parse(&buffer[..short]), Err(Error::Truncated));
    }
    assert!(request.emit(&mut [0; 39]).is_err());
}

#[test]
fn what_is_not_understood_has_its_cause() {
    let packet = Packet {
        operation: Operation::InverseRequest,
        source: OURS,
        target: Party::default(),
    };
    let mut buffer = [0; MAX_LEN];
    packet.emit(&mut buffer).unwrap();
    let with = |at: usize, value: u8| {
        let mut changed = buffer;
        changed[at] = value;
        Packet::parse(&changed).unwrap_err()
    };
    assert_eq!(with(1, 1), Error::Types(1, 0x800));
    assert_eq!(with(7, 3), Error::Operation(3));
    assert_eq!(with(4, 19), Error::AddressLength(19));
    assert_eq!(with(4, 0x40), Error::AddressLength(0x40));
    assert_eq!(with(5, 7), Error::AddressLength(7));
    assert_eq!(with(8, 16), Error::AddressLength(16));
}

fn number() -> impl Strategy<Value = Number> {
    let nsap = any::<[u8; 20]>().prop_map(Nsap);
    let e164 = "[0-9]{1,15}".prop_map(|digits| Digits::new(digits.as_bytes()).unwrap());
    prop_oneof![
        Just(Number::None),
        nsap.clone().prop_map(Number::Nsap),
        (e164, prop::option::of(nsap)).prop_map(|(digits, sub)| Number::E164(digits, sub)),
    ]
}

fn party() -> impl Strategy<Value = Party> {
    let address = any::<u32>().prop_map(|bits| Some(Ipv4Addr::from(bits | 1)));
    (number(), prop_oneof![Just(None), address])
        .prop_map(|(number, address)| Party { number, address })
}

proptest! {
    #[test]
    fn what_is_emitted_is_read(source in party(), target in party()) {
        let packet = Packet { operation: Operation::Reply, source, target };
        let mut buffer = [0; MAX_LEN];
        let length = packet.emit(&mut buffer).unwrap();
        prop_assert_eq!(length, packet.len());
        prop_assert_eq!(Packet::parse(&buffer[..length]), Ok(packet));
    }
}
