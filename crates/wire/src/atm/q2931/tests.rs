use proptest::prelude::*;

use super::*;
use crate::atm::arp::Digits;
use crate::atm::{Circuit, Nsap};

fn reference(value: u32) -> CallReference {
    CallReference::new(value, false).unwrap()
}

fn emitted(elements: &Elements, kind: MessageType) -> Vec<u8> {
    let mut buffer = vec![0xee; MESSAGE_MAX];
    let length = elements.emit(reference(7), kind, &mut buffer).unwrap();
    buffer.truncate(length);
    buffer
}

/// Byte by byte as in the figures of Q.2931 §4.5.
#[test]
fn elements_are_as_drawn() {
    let elements = Elements {
        cause: Some(Cause::new(Cause::NORMAL).at(1)),
        aal: Some(Aal::Five {
            forward_max: Some(9180),
            backward_max: Some(1500),
        }),
        traffic: Some(TrafficDescriptor::constant(1000, 2000)),
        connection: Some(ConnectionIdentifier::exclusive(Circuit { vpi: 1, vci: 33 })),
        qos: Some(QosClasses::default()),
        bearer: Some(Bearer::data()),
        called: Some(Party::from(Nsap([0x47; 20]))),
        restart: Some(Restart::Link),
        ..Elements::default()
    };
    let mut wanted = vec![9, 3, 0, 0, 7, 0x05, 0x80, 0, 93];
    wanted.extend([0x08, 0x80, 0, 2, 0x81, 0x90]);
    wanted.extend([0x58, 0x80, 0, 7, 5, 0x8c, 0x23, 0xdc, 0x81, 0x05, 0xdc]);
    wanted.extend([0x59, 0x80, 0, 8, 0x84, 0, 0x03, 0xe8, 0x85, 0, 0x07, 0xd0]);
    wanted.extend([0x5a, 0x80, 0, 5, 0x88, 0, 1, 0, 33]);
    wanted.extend([0x5c, 0x80, 0, 2, 0, 0]);
    wanted.extend([0x5e, 0x80, 0, 3, 0x10, 0x80, 0x80]);
    wanted.extend([0x70, 0x80, 0, 21, 0x82]);
    wanted.extend([0x47; 20]);
    wanted.extend([0x79, 0x80, 0, 1, 0x82]);
    wanted[8] = (wanted.len() - HEADER_LEN) as u8;
    let bytes = emitted(&elements, MessageType::Setup);
    assert_eq!(bytes, wanted);
    let message = Message::new(&bytes).unwrap();
    assert_eq!(message.elements().0, elements);
    assert_eq!(message.reference(), reference(7));
    assert_eq!(
        MessageType::from_number(message.kind()),
        Some(MessageType::Setup)
    );
}

#[test]
fn what_is_no_message_has_its_cause() {
    let bytes = emitted(&Elements::default(), MessageType::Status);
    let error = |bytes: &[u8]| Message::new(bytes).unwrap_err();
    for short in 0..bytes.len() {
        assert_eq!(error(&bytes[..short]), Error::Truncated);
    }
    let with = |at: usize, value: u8| {
        let mut changed = bytes.clone();
        changed[at] = value;
        changed
    };
    assert_eq!(error(&with(0, 8)), Error::Discriminator(8));
    assert_eq!(error(&with(1, 2)), Error::ReferenceLength(2));
    assert_eq!(error(&with(8, 1)), Error::Truncated);
    assert_eq!(CallReference::new(1 << 23, false), None);
}

/// A message with these bytes as its elements.
fn with_body(body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![9, 3, 0, 0, 7, 0x7d, 0x80, 0, body.len() as u8];
    bytes.extend(body);
    bytes
}

#[test]
fn faults_say_what_is_to_be_done() {
    let body = [
        &[0x42, 0x80, 0, 1, 0][..],
        &[0x43, 0x90, 0, 0],
        &[0x44, 0x95, 0, 0],
        &[0x08, 0x80, 0, 1, 0],
        &[0x08, 0x80, 0, 2, 0x80, 0x90],
        &[0x08, 0x80, 0, 2, 0x80, 0x91],
    ]
    .concat();
    let bytes = with_body(&body);
    let (elements, faults) = Message::new(&bytes).unwrap().elements();
    assert_eq!(elements.cause, Some(Cause::new(Cause::NORMAL)));
    let faults: Vec<_> = faults
        .iter()
        .map(|fault| (fault.id, fault.kind, fault.action))
        .collect();
    let (unknown, contents) = (FaultKind::Unknown, FaultKind::Contents);
    assert_eq!(
        faults,
        [
            (0x42, unknown, None),
            (0x43, unknown, Some(ElementAction::Clear)),
            (0x44, unknown, Some(ElementAction::IgnoreMessage)),
            (0x08, contents, None),
        ]
    );
}

#[test]
fn a_shift_hides_what_is_of_another_codeset() {
    let cause = [0x08, 0x80, 0, 2, 0x80, 0x90];
    let once = with_body(&[&[0x61, 0x80, 0, 1, 0x85][..], &cause, &cause].concat());
    let (elements, faults) = Message::new(&once).unwrap().elements();
    assert!(elements.cause.is_some() && faults.iter().next().is_none());
    let for_good = with_body(&[&[0x60, 0x80, 0, 1, 0x85][..], &cause].concat());
    assert_eq!(Message::new(&for_good).unwrap().elements().0.cause, None);
}

#[test]
fn an_element_beyond_the_message_is_a_fault() {
    let bytes = with_body(&[0x08, 0x80, 0, 9, 0x80]);
    let (elements, faults) = Message::new(&bytes).unwrap().elements();
    assert_eq!(elements, Elements::default());
    assert_eq!(faults.iter().count(), 1);
}

fn party() -> impl Strategy<Value = Party> {
    prop_oneof![
        any::<[u8; 20]>().prop_map(|address| Party::from(Nsap(address))),
        "[0-9]{1,15}".prop_map(|digits| {
            let mut contents = vec![0x11, 0x80];
            contents.extend(digits.as_bytes());
            let party = Party::parse(&contents).unwrap();
            assert_eq!(
                party.number,
                Number::E164(Digits::new(digits.as_bytes()).unwrap())
            );
            party
        }),
    ]
}

fn opaque<const N: usize>() -> impl Strategy<Value = Opaque<N>> {
    prop::collection::vec(any::<u8>(), 1..=N).prop_map(|bytes| Opaque::new(&bytes).unwrap())
}

proptest! {
    #[test]
    fn what_is_emitted_is_read(
        called in prop::option::of(party()),
        calling in prop::option::of(party()),
        low_layer in prop::option::of(opaque::<13>()),
        high_layer in prop::option::of(opaque::<9>()),
        subaddresses in (prop::option::of(opaque::<21>()), prop::option::of(opaque::<21>())),
        cause in prop::option::of((0_u8..128, prop::collection::vec(any::<u8>(), 0..=4))),
        vci in prop::option::of(prop::option::of(any::<u16>())),
        rates in prop::option::of((0_u32..1 << 24, 0_u32..1 << 24, any::<bool>())),
        sizes in prop::option::of((prop::option::of(any::<u16>()), prop::option::of(any::<u16>()))),
        flags in any::<[bool; 4]>(),
        kind in prop::sample::select(&MessageType::ALL[..]),
    ) {
        let elements = Elements {
            cause: cause.map(|(value, diagnostic)| Cause::new(value).with(&diagnostic)),
            call_state: flags[0].then_some(11),
            aal: sizes.map(|(forward_max, backward_max)| Aal::Five { forward_max, backward_max }),
            traffic: rates.map(|(forward, backward, best_effort)| {
                let mut descriptor = TrafficDescriptor::constant(forward, backward);
                descriptor.best_effort = best_effort;
                descriptor
            }),
            connection: vci.map(|vci| ConnectionIdentifier { vpi: 3, vci }),
            qos: flags[1].then_some(QosClasses { forward: 1, backward: 2 }),
            high_layer,
            bearer: flags[2].then_some(Bearer::data()),
            low_layer,
            sending_complete: flags[3],
            calling,
            calling_subaddress: subaddresses.0,
            called,
            called_subaddress: subaddresses.1,
            restart: flags[0].then_some(Restart::Path),
        };
        let bytes = emitted(&elements, kind);
        let message = Message::new(&bytes).unwrap();
        let (read, faults) = message.elements();
        prop_assert_eq!(read, elements);
        prop_assert_eq!(faults.iter().count(), 0);
        prop_assert!(elements.emit(reference(1), kind, &mut vec![0; bytes.len() - 1]).is_err());
    }
}
